"""The run directory: manifest, append, read back, and what is still owed.

JSON Lines, because clusters keep results on network file systems where a database's locks fail, and
because people grep them. A line is written by one ``os.write`` to an ``O_APPEND`` descriptor before the
reply's slot is freed; a torn tail, runs of NUL and foreign lines are skipped and counted on reading.

A line's identity is (key, sample digest) for an answer, and with it (order, judge, digest of the text
judged) for a verdict. Of one identity the first success wins, and a failure never replaces a success.
Another judge's verdicts are good lines: they are kept aside and not counted as skipped.
"""

from otoscope.store.copies import answers_digest, copy_run, is_current_copy
from otoscope.store.files import (
    ANSWERS,
    FORMAT,
    MANIFEST,
    SAMPLES,
    SUMMARY,
    VERDICTS,
    read_manifest,
    run_folders,
)
from otoscope.store.lines import StoredAnswer, StoredFailure, sample_from_line, sample_to_line
from otoscope.store.run_store import EMPTY_ANSWER, Plan, RunStore

__all__ = [
    "ANSWERS",
    "EMPTY_ANSWER",
    "FORMAT",
    "MANIFEST",
    "SAMPLES",
    "SUMMARY",
    "VERDICTS",
    "Plan",
    "RunStore",
    "StoredAnswer",
    "StoredFailure",
    "answers_digest",
    "copy_run",
    "is_current_copy",
    "read_manifest",
    "run_folders",
    "sample_from_line",
    "sample_to_line",
]
