"""Charts: a run's, a comparison's, and of several runs over a number, as SVG for a page or files for papers.

::

    style          the one look: colours, sizes, how texts, marks and intervals are drawn
    measured       what the charts show of a run's samples, in one pass
    categories, distribution, orders, length, failures, timing    the charts of a run, one module each
    difference     two or more compared runs
    trend          runs over a numeric tag
    svg            a drawn chart -> SVG text
    files          charts -> files
"""

from __future__ import annotations

from collections.abc import Sequence

from otoscope.comparison import Comparison
from otoscope.reports.charts import difference, trend
from otoscope.reports.charts.files import FileFormat, chinese_fonts, pdf_language, write_figures
from otoscope.reports.charts.run_charts import drawings_of
from otoscope.reports.charts.style import applied
from otoscope.reports.charts.svg import page_svg
from otoscope.reports.charts.trend import numeric_tags
from otoscope.reports.reported import Reported
from otoscope.texts import catalogue

__all__ = [
    "FileFormat",
    "charts_of",
    "chinese_fonts",
    "difference_chart",
    "numeric_tags",
    "pdf_language",
    "trend_chart",
    "write_figures",
]


def charts_of(run: Reported, *, language: str) -> dict[str, str]:
    """Return a run's charts as SVG to put into a page, by name.

    Names are ``categories``, ``distribution``, ``orders``, ``length``, ``failures`` and ``timing``, in this
    order; one that has nothing to show is not there. The page may set ``--chart-1`` to ``--chart-5``; text
    and lines are in its own colour. No identifier is in two charts, whatever run or language they are of.
    """
    summary = run.summary
    identity = f"{run.path.name}\0{run.name}\0{summary.created_at}\0{language}"
    with applied():
        return {
            drawing.name: page_svg(drawing, identity) for drawing in drawings_of(run, catalogue(language))
        }


def difference_chart(comparison: Comparison, *, language: str) -> str:
    """Return the paired differences to the baseline, with their intervals, as SVG to put into a page."""
    with applied():
        return page_svg(difference.draw(comparison, catalogue(language)), language)


def trend_chart(runs: Sequence[Reported], tag: str, *, language: str) -> str | None:
    """Return the Average and its parts over a numeric tag as SVG to put into a page.

    ``None`` where the tag is not a number that differs in at least two of the runs; see :func:`numeric_tags`.
    """
    with applied():
        drawing = trend.draw(runs, tag, catalogue(language))
        return None if drawing is None else page_svg(drawing, language)
