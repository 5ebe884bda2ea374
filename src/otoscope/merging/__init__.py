"""Runs of one fingerprint -> a new run, which holds their lines: the shards of a job array become one run.

::

    joining      merge(): a run that is made whole or not at all, under its lock
    ├── sources      the runs that are read, and what keeps them from being joined
    ├── selection    which samples they are together, and which shards are missing
    └── overlaps     which run's lines count for a sample that several have
"""

from otoscope.merging.joining import Merged, merge, merge_runs

__all__ = ["Merged", "merge", "merge_runs"]
