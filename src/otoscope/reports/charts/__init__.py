"""Charts: a run's, a comparison's, and of several runs over a number, as SVG for a page or files for papers.

::

    style          the one look: colours, sizes, how texts, marks and intervals are drawn
    measured       what the charts show of a run's samples, in one pass
    categories, distribution, orders, length, failures, timing    the charts of a run, one module each
    difference     two or more compared runs
    trend          runs over a numeric tag
    several        the charts of several runs, for a page
    canvas         what a chart is made of
    svg, pdf       a drawn chart -> SVG text, PDF
    files          charts -> files
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from otoscope.reports.charts.measured import Measured, measure
from otoscope.reports.charts.run_charts import drawings_of
from otoscope.reports.charts.svg import page_svg
from otoscope.reports.reported import Reported
from otoscope.texts import catalogue

if TYPE_CHECKING:
    from otoscope.reports.charts.files import FileFormat, write_figures
    from otoscope.reports.charts.pdf import chinese_fonts, pdf_language
    from otoscope.reports.charts.several import difference_chart, numeric_tags, trend_chart

__all__ = [
    "FileFormat",
    "Measured",
    "charts_of",
    "chinese_fonts",
    "difference_chart",
    "measure",
    "numeric_tags",
    "pdf_language",
    "trend_chart",
    "write_figures",
]

_HOMES = {
    "FileFormat": "files",
    "write_figures": "files",
    "chinese_fonts": "pdf",
    "pdf_language": "pdf",
    "difference_chart": "several",
    "numeric_tags": "several",
    "trend_chart": "several",
}
"""What a single run's page does not need: it would load matplotlib and numpy."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def charts_of(run: Reported, *, language: str, measured: Measured | None = None) -> dict[str, str]:
    """Return a run's charts as SVG to put into a page, by name.

    Names are ``categories``, ``distribution``, ``orders``, ``length``, ``failures`` and ``timing``, in this
    order; one that has nothing to show is not there. The page may set ``--chart-1`` to ``--chart-5``; text
    and lines are in its own colour. No identifier is in two charts, whatever run or language they are of.
    ``measured`` is of the run's samples, where they were read already.
    """
    summary = run.summary
    measured = measured or measure(run)
    identity = f"{run.path.name}\0{run.name}\0{summary.created_at}\0{language}"
    return {
        drawing.name: page_svg(drawing, identity)
        for drawing in drawings_of(summary, measured, catalogue(language))
    }
