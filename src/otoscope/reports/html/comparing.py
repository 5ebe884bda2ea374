"""Two runs -> their comparison, or why there is none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from otoscope.benchmark import VIEWS
from otoscope.comparison import Comparison, JudgedRun, compare
from otoscope.errors import ConfigError
from otoscope.records import Outcome
from otoscope.reports.reported import Reported


def compared(runs: Sequence[Reported]) -> Comparison | ConfigError:
    """Compare runs with the first of them; an error that says why is returned where they cannot be."""
    if any(run.summary.scoring != "default" for run in runs):
        return ConfigError(
            "differences are paired sample by sample, which official scoring does not do: it takes each "
            "order's mean by itself"
        )
    judged = [JudgedRun(run.name, run.manifest, run.orders, _in_view(run)) for run in runs]
    try:
        return compare(judged, baseline=0)
    except ConfigError as error:
        return error


def _in_view(run: Reported) -> Iterator[Outcome]:
    return (outcome for outcome in run.outcomes() if outcome.sample.task in VIEWS[run.summary.view])
