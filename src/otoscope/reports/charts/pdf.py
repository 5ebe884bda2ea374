"""A drawn figure -> PDF, whose fonts are matplotlib's business."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.text import Text as MplText

from otoscope.reports.charts.canvas import POINTS, Area, Item, Line, Marks, Place, Text
from otoscope.reports.charts.style import Drawing

_CHINESE_FONTS = (
    "Noto Sans SC", "Microsoft YaHei", "SimHei", "WenQuanYi Micro Hei", "WenQuanYi Zen Hei", "Heiti SC",
    "Droid Sans Fallback", "Arial Unicode MS", "PingFang SC", "Hiragino Sans GB",
    "Noto Sans CJK SC", "Noto Sans CJK JP", "Source Han Sans SC", "Source Han Sans CN",
)  # fmt: skip
"""The last ones have outlines of another kind, which take a PDF seconds each."""

_GAP = (math.nan, math.nan)

_SETTINGS: dict[Any, Any] = {
    # A dollar in a model's name is a dollar.
    "text.parse_math": False,
    "text.usetex": False,
    "lines.markeredgewidth": 0.9,
    "lines.solid_capstyle": "butt",
    "path.simplify": False,
    # TrueType fonts stay text; publishers refuse Type 3.
    "pdf.fonttype": 42,
    "pdf.compression": 6,
}


def pdf_language(language: str) -> str:
    """Return the language of charts in PDF: English where no installed font has the characters of another."""
    return language if language == "en" or chinese_fonts() else "en"


def chinese_fonts() -> list[str]:
    """Return the installed font that has Chinese characters and goes into a PDF best, if there is one."""
    installed = set(fontManager.get_font_names())
    return [name for name in _CHINESE_FONTS if name in installed][:1]


def pdf(drawing: Drawing) -> bytes:
    """Return a chart as a PDF. Afterwards matplotlib's settings are what they were."""
    with _applied():
        width, height = drawing.figure.width, drawing.figure.height
        figure = Figure(figsize=(width, height))
        figure.patch.set_visible(False)
        to_paper = figure.dpi_scale_trans
        for order, artist in enumerate(_artists(drawing)):
            artist.set_zorder(order)
            artist.set_transform(to_paper)
            figure.add_artist(artist)
            artist.set_clip_on(False)
        raw = io.BytesIO()
        metadata = {"Title": drawing.title, "Subject": drawing.description, "CreationDate": None}
        FigureCanvasPdf(figure).print_figure(raw, format="pdf", metadata=metadata)
        return raw.getvalue()


@contextmanager
def _applied() -> Iterator[None]:
    families = ["DejaVu Sans", *chinese_fonts()]
    with mpl.rc_context(), warnings.catch_warnings():
        # Whatever a user's own matplotlibrc says must not show in a chart.
        mpl.rcdefaults()
        mpl.rcParams.update(_SETTINGS | {"font.family": families})
        # What no font here has is left out of the PDF, and that is known.
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from (current )?font")
        yield


def _artists(drawing: Drawing) -> Iterator[Artist]:
    for item in drawing.figure.items():
        yield from _artists_of(item)


def _artists_of(item: Item) -> Iterator[Artist]:
    match item:
        case Line():
            # One path with gaps: where pieces of several lie over each other, they would be darker.
            places = [place for piece in item.pieces for place in (*piece, _GAP)]
            line = Line2D(*_inches(places), color=item.color, alpha=item.alpha, linewidth=item.width)
            if item.dashes is not None:
                line.set_linestyle((0, item.dashes))
            yield line
        case Marks():
            yield Line2D(*_inches(item.places), color=item.color, linestyle="none", marker=item.shape,
                         markersize=item.size, fillstyle="none" if item.hollow else "full")  # fmt: skip
        case Area():
            outlines = [Path([*_places(one), (0, 0)], closed=True) for one in item.outlines]
            outline = Path.make_compound_path(*outlines)
            yield PathPatch(outline, facecolor=item.color, alpha=item.alpha, linewidth=0)
        case Text():
            x, y = item.place
            up = "center_baseline" if item.up == "digits" else item.up
            weight = "bold" if item.bold else "normal"
            yield MplText(x / POINTS, y / POINTS, item.text, color=item.color, alpha=item.alpha,
                          fontsize=item.size, fontweight=weight, horizontalalignment=item.across,
                          verticalalignment=up)  # fmt: skip


def _places(places: Sequence[Place]) -> list[Place]:
    return [(x / POINTS, y / POINTS) for x, y in places]


def _inches(places: Sequence[Place]) -> tuple[list[float], list[float]]:
    inches = _places(places)
    return [x for x, _ in inches], [y for _, y in inches]
