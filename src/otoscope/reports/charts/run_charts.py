"""The charts of one run."""

from __future__ import annotations

from collections.abc import Iterator

from otoscope.reports.charts import categories, distribution, failures, length, orders, timing
from otoscope.reports.charts.measured import Measured
from otoscope.reports.charts.style import Drawing, stamp
from otoscope.scoring import Summary
from otoscope.texts import Catalogue


def drawings_of(summary: Summary, measured: Measured, say: Catalogue) -> Iterator[Drawing]:
    """Yield every chart that a run has something to show in, one at a time.

    A control run's charts say that they are one.
    """
    control = summary.control
    for drawing in _every(summary, measured, say):
        if drawing is not None:
            yield drawing if control is None else stamp(drawing, say(f"control.{control}"))


def _every(summary: Summary, measured: Measured, say: Catalogue) -> Iterator[Drawing | None]:
    yield categories.draw(summary, say)
    yield distribution.draw(summary, measured, say)
    yield orders.draw(summary, measured, say)
    yield length.draw(summary, measured, say)
    yield failures.draw(summary, say)
    yield timing.draw(summary, measured, say)
