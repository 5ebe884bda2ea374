"""Outcomes -> Summary: every number that a run prints.

::

    samples      one sample's numbers
    rules        default and official scoring: what each makes of a sample's stored replies
    cells        the numbers of a group of samples, with intervals
    lines        one sample's as a flat line
    behaviour    the judge's own: position effect, how it answers
    answers      the model's answers: how they ended, length, signs that something is wrong
    ├── wording, addressing, identical, audio_tokens    the signs
    ├── families                                        which line a model's name belongs to
    sent         what was sent of the clips: changed, shortened or skipped by the audio policy
    calls        what an endpoint's replies add up to
    warnings     what a reader should know before believing a number
    summary      all of it: summarise()
"""

from otoscope.scoring.cells import FULL_COVERAGE, Cell
from otoscope.scoring.lines import result_line
from otoscope.scoring.rules import Rule, Scoring
from otoscope.scoring.samples import SampleResult, result_of, sample_result
from otoscope.scoring.sent import CONTROL_WARNINGS, control_of
from otoscope.scoring.summary import FORMAT, Summary, Summing, summarise

__all__ = [
    "CONTROL_WARNINGS",
    "FORMAT",
    "FULL_COVERAGE",
    "Cell",
    "Rule",
    "SampleResult",
    "Scoring",
    "Summary",
    "Summing",
    "control_of",
    "result_line",
    "result_of",
    "sample_result",
    "summarise",
]
