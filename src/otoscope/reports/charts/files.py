"""Charts as files, for papers."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.font_manager import fontManager

from otoscope.comparison import Comparison
from otoscope.errors import ConfigError
from otoscope.reports.charts import difference, trend
from otoscope.reports.charts.run_charts import drawings_of
from otoscope.reports.charts.style import Drawing, applied
from otoscope.reports.charts.svg import file_svg
from otoscope.reports.reported import Reported
from otoscope.reports.writing import write_whole
from otoscope.texts import catalogue

FileFormat = Literal["svg", "pdf"]

_CHINESE_FONTS = (
    "Noto Sans SC", "Microsoft YaHei", "SimHei", "WenQuanYi Micro Hei", "WenQuanYi Zen Hei", "Heiti SC",
    "Droid Sans Fallback", "Arial Unicode MS", "PingFang SC", "Hiragino Sans GB",
    "Noto Sans CJK SC", "Noto Sans CJK JP", "Source Han Sans SC", "Source Han Sans CN",
)  # fmt: skip
"""The last ones have outlines of another kind, which take a PDF seconds each."""


def pdf_language(language: str) -> str:
    """Return the language of charts in PDF: English where no installed font has the characters of another."""
    return language if language == "en" or chinese_fonts() else "en"


def chinese_fonts() -> list[str]:
    """Return the installed font that has Chinese characters and goes into a PDF best, if there is one."""
    installed = set(fontManager.get_font_names())
    return [name for name in _CHINESE_FONTS if name in installed][:1]


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
        with applied(chinese_fonts() if file_format == "pdf" else ()):
            for name, drawing in _drawings(runs, comparison, language):
                path = folder / f"{name}.{file_format}"
                write_whole(path, [_pdf(drawing) if file_format == "pdf" else file_svg(drawing).encode()])
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
        for drawing in drawings_of(run, say):
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


def _pdf(drawing: Drawing) -> bytes:
    raw = io.BytesIO()
    metadata = {"Title": drawing.title, "Subject": drawing.description, "CreationDate": None}
    FigureCanvasPdf(drawing.figure).print_figure(raw, format="pdf", metadata=metadata)
    return raw.getvalue()
