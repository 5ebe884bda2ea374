"""Two or more judged runs -> Comparison: paired differences over the samples that all of them scored.

::

    reading      a run's outcomes -> what of them is compared
    pairing      the samples that the runs have in common, and why the others are left out
    likeness     what of judge, sampling and scoring differs: then no difference is the models' alone
    cells        categories, Mixed, Average and all samples as strata of paired samples
    models       differences between models: intervals, tests, wins
    judges       differences between judges of the same answers
    result       all of it: compare()
"""

from otoscope.comparison.cells import CELLS, Difference
from otoscope.comparison.judges import JudgeCell, JudgeDifference
from otoscope.comparison.models import ModelCell, ModelDifference
from otoscope.comparison.pairing import LeftOut
from otoscope.comparison.reading import JudgedRun
from otoscope.comparison.result import ComparedRun, Comparison, Contrast, compare

__all__ = [
    "CELLS",
    "ComparedRun",
    "Comparison",
    "Contrast",
    "Difference",
    "JudgeCell",
    "JudgeDifference",
    "JudgedRun",
    "LeftOut",
    "ModelCell",
    "ModelDifference",
    "compare",
]
