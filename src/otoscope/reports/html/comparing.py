"""Two runs -> their comparison, or why there is none."""

from __future__ import annotations

from collections.abc import Sequence

from otoscope.comparison import Comparison, JudgedRun, compare
from otoscope.errors import ConfigError
from otoscope.reports.reported import Reported


def compared(runs: Sequence[Reported]) -> Comparison | ConfigError:
    """Compare runs with the first of them; an error that says why is returned where they cannot be."""
    judged = [JudgedRun(run.name, run.manifest, run.orders, run.outcomes()) for run in runs]
    try:
        return compare(judged)
    except ConfigError as error:
        return error
