"""Judge stored answers, of one run or of many together: in place, or over a copy for another judge.

Runs are looked at first, without writing anything: then it is known, and can be said, what will be judged
where. All runs share one limit, and what is learnt of a judge's server. A run's own trouble (locked, broken,
of a newer format) is its own; that of the judge stops all.

::

    looking    what is owed, and where its verdicts go
    together   the work on several runs
    files      a file of answers becomes a run
"""

from otoscope.judging.files import FileRun, file_sha256, run_of_file
from otoscope.judging.looking import Found, Owed, Skipped, Unusable, look
from otoscope.judging.together import foreseen, judge_all, judge_runs, trackers_of

__all__ = [
    "FileRun",
    "Found",
    "Owed",
    "Skipped",
    "Unusable",
    "file_sha256",
    "foreseen",
    "judge_all",
    "judge_runs",
    "look",
    "run_of_file",
    "trackers_of",
]
