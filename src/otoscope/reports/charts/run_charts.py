"""The charts of one run."""

from __future__ import annotations

from collections.abc import Iterator

from otoscope.reports.charts import categories, distribution, failures, length, orders, timing
from otoscope.reports.charts.measured import measure
from otoscope.reports.charts.style import Drawing, stamp
from otoscope.reports.reported import Reported
from otoscope.texts import Catalogue


def drawings_of(run: Reported, say: Catalogue) -> Iterator[Drawing]:
    """Yield every chart that a run has something to show in, one at a time. Its samples are read once.

    A control run's charts say that they are one.
    """
    control = run.summary.control
    for drawing in _every(run, say):
        if drawing is not None:
            yield drawing if control is None else stamp(drawing, say(f"control.{control}"))


def _every(run: Reported, say: Catalogue) -> Iterator[Drawing | None]:
    summary, measured = run.summary, measure(run)
    yield categories.draw(summary, say)
    yield distribution.draw(summary, measured, say)
    yield orders.draw(summary, measured, say)
    yield length.draw(summary, measured, say)
    yield failures.draw(summary, say)
    yield timing.draw(summary, measured, say)
