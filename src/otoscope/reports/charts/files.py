"""Charts as files, for papers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from otoscope.comparison import Comparison
from otoscope.errors import ConfigError
from otoscope.reports.charts import difference, trend
from otoscope.reports.charts.measured import measure
from otoscope.reports.charts.pdf import pdf, pdf_language
from otoscope.reports.charts.run_charts import drawings_of
from otoscope.reports.charts.style import Drawing
from otoscope.reports.charts.svg import file_svg
from otoscope.reports.reported import Reported
from otoscope.reports.writing import write_whole
from otoscope.texts import catalogue

FileFormat = Literal["svg", "pdf"]


def write_figures(
    runs: Sequence[Reported],
    folder: Path,
    *,
    file_format: FileFormat,
    language: str,
    comparison: Comparison | None = None,
) -> list[Path]:
    """Write every chart of these runs, each whole or not at all, and return the files.

    One run's files are named by their charts, several runs' by the run too. Beside them are the
    ``comparison``'s chart, and one over each tag that is a different number in the runs. PDF needs a font
    with Chinese characters for ``zh``: without one its texts are English (:func:`pdf_language`).

    Raises ``ConfigError`` where the folder cannot be written.
    """
    if file_format == "pdf":
        language = pdf_language(language)
    written = []
    try:
        for name, drawing in _drawings(runs, comparison, language):
            path = folder / f"{name}.{file_format}"
            write_whole(path, [pdf(drawing) if file_format == "pdf" else file_svg(drawing).encode()])
            written.append(path)
    except OSError as error:
        raise ConfigError(
            f"{error.filename or folder}: cannot be written: {error.strerror or error}. "
            "Make room, or give another folder with --figures"
        ) from None
    return written


def _drawings(
    runs: Sequence[Reported], comparison: Comparison | None, language: str
) -> Iterator[tuple[str, Drawing]]:
    say = catalogue(language)
    for prefix, run in zip(_prefixes(runs), runs, strict=True):
        for drawing in drawings_of(run.summary, measure(run), say):
            yield prefix + drawing.name, drawing
    if comparison is not None:
        yield "difference", difference.draw(comparison, say)
    for tag in trend.numeric_tags(runs):
        over = trend.draw(runs, tag, say)
        if over is not None:
            yield f"trend-{_plain(tag)}", over


def _prefixes(runs: Sequence[Reported]) -> list[str]:
    """Return what the names of each run's files begin with: nothing for a single run, else its name."""
    if len(runs) == 1:
        return [""]
    return [f"{number}-{_plain(run.name)}-" for number, run in enumerate(runs, 1)]


def _plain(name: str) -> str:
    """Return a name that every file system and every TeX takes."""
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")[:60] or "x"
