"""The charts of several runs, for a page."""

from __future__ import annotations

from collections.abc import Sequence

from otoscope.comparison import Comparison
from otoscope.reports.charts import difference, trend
from otoscope.reports.charts.svg import page_svg
from otoscope.reports.charts.trend import numeric_tags
from otoscope.reports.reported import Reported
from otoscope.texts import catalogue

__all__ = ["difference_chart", "numeric_tags", "trend_chart"]


def difference_chart(comparison: Comparison, *, language: str) -> str:
    """Return the paired differences to the baseline, with their intervals, as SVG to put into a page."""
    return page_svg(difference.draw(comparison, catalogue(language)), language)


def trend_chart(runs: Sequence[Reported], tag: str, *, language: str) -> str | None:
    """Return the Average and its parts over a numeric tag as SVG to put into a page.

    ``None`` where the tag is not a number that differs in at least two of the runs; see :func:`numeric_tags`.
    """
    drawing = trend.draw(runs, tag, catalogue(language))
    return None if drawing is None else page_svg(drawing, language)
