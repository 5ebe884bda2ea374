"""Which charts a page about these runs has, in every language."""

from __future__ import annotations

from collections.abc import Sequence

from otoscope.comparison import Comparison
from otoscope.errors import ConfigError
from otoscope.reports.charts import (
    Measured,
    charts_of,
    difference_chart,
    measure,
    numeric_tags,
    trend_chart,
)
from otoscope.reports.reported import Reported
from otoscope.texts import LANGUAGES

Figures = dict[str, dict[str, str]]
"""SVG by language and name."""


def page_figures(
    runs: Sequence[Reported],
    comparison: Comparison | ConfigError | None,
    measured: Measured | None = None,
) -> Figures:
    """Return the charts of a page: a run's own, of two that are compared their differences, of more a trend.

    The trend is over the first tag whose value is another number in the runs. ``measured`` is of a single
    run's samples, where they were read already.
    """
    if len(runs) == 1:
        measured = measured or measure(runs[0])
    return {language: _figures(runs, comparison, measured, language) for language in LANGUAGES}


def _figures(
    runs: Sequence[Reported],
    comparison: Comparison | ConfigError | None,
    measured: Measured | None,
    language: str,
) -> dict[str, str]:
    if len(runs) == 1:
        return charts_of(runs[0], language=language, measured=measured)
    if isinstance(comparison, Comparison):
        return {"difference": difference_chart(comparison, language=language)}
    if len(runs) > 2:
        for tag in numeric_tags(runs):
            if (chart := trend_chart(runs, tag, language=language)) is not None:
                return {"trend": chart}
    return {}
