"""The one look of every chart: colours, sizes, and the few ways in which things are drawn.

Two colours say what is whose: the answers are blue, the reference answers orange. All else is ink, fainter
where it matters less. The colours differ in lightness and for colour-blind readers, and stand on white as on
black. What a mark means stands beside it; there are no frames, and no titles, which captions are.
"""

from __future__ import annotations

import math
import unicodedata
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.transforms import Affine2D

INK = "#1c1c1f"
ANSWER = "#2877bb"
REFERENCE = "#c8690a"
SERIES = (ANSWER, REFERENCE, "#148f77", "#8b5fbf")
"""In this order, and again from the start, for several runs in one chart."""
MARKERS = ("o", "D", "s", "^")
"""One for each colour, so that no series is told by its colour alone."""
FAILED = "#b5474d"

FULL, QUIET, RULE, FAINT = 1.0, 0.72, 0.35, 0.13
"""How much of the ink: texts and marks, texts that matter less, lines, lines behind everything."""

WIDE, COLUMN = 6.9, 3.3
"""Widths in inches: of a page's text and of one of its two columns."""
TEXT, SMALL = 7.5, 6.5
"""Font sizes in points."""
LINE, THIN = 1.4, 0.6
"""Line widths in points."""
MARK = 4.5
"""Size of a mark in points."""

NOT_AVAILABLE = "n/a"

_SETTINGS: dict[str, Any] = {
    "font.family": ["DejaVu Sans"],
    "font.size": TEXT,
    # A dollar in a model's name is a dollar.
    "text.parse_math": False,
    "text.usetex": False,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.unicode_minus": True,
    "lines.linewidth": LINE,
    "lines.markersize": MARK,
    "lines.markeredgewidth": 0.9,
    "lines.solid_capstyle": "butt",
    "path.simplify": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "otoscope",
    # TrueType fonts in a PDF stay text; publishers refuse Type 3.
    "pdf.fonttype": 42,
    "pdf.compression": 6,
}


@contextmanager
def applied(fonts: Sequence[str] = ()) -> Iterator[None]:
    """Draw and write in this style; afterwards matplotlib's settings are what they were.

    ``fonts`` are families for characters that matplotlib's own font lacks.
    """
    families = [*_SETTINGS["font.family"], *fonts]
    with mpl.rc_context(), warnings.catch_warnings():
        # Whatever a user's own matplotlibrc says must not show in a chart.
        mpl.rcdefaults()
        mpl.rcParams.update(_SETTINGS | {"font.family": families})
        # In SVG a text is shown in the reader's fonts, which have what matplotlib's own has not.
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from (current )?font")
        yield


@dataclass(frozen=True, slots=True)
class Drawing:
    """A finished chart, with what is said to those who do not see it."""

    name: str
    figure: Figure
    title: str
    description: str

    def __post_init__(self) -> None:
        # Nothing reaches out of its axes by mistake, and a clip path for each would be most of an SVG.
        for artist in self.figure.findobj():
            artist.set_clip_on(False)

    @property
    def wide(self) -> bool:
        """Whether it takes a page's full width."""
        return bool(self.figure.get_figwidth() > COLUMN)


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure without a background. Sizes in inches."""
    figure = Figure(figsize=(width, height))
    figure.patch.set_visible(False)
    return figure


def add_axes(
    figure: Figure, left: float, bottom: float, width: float, height: float, *, ground: bool = True
) -> Axes:
    """Return new axes with their lower left corner and size in inches; the only line is the ``ground``."""
    across, up = figure.get_size_inches()
    axes = figure.add_axes((left / across, bottom / up, width / across, height / up))
    axes.patch.set_visible(False)
    for side, spine in axes.spines.items():
        spine.set_visible(ground and side == "bottom")
        spine.set_linewidth(THIN)
        spine.set_alpha(RULE)
    axes.tick_params(length=0, pad=3, labelsize=SMALL)
    axes.set_xticks([])
    axes.set_yticks([])
    return axes


def stamp(drawing: Drawing, text: str) -> Drawing:
    """Write a line above everything else in a chart, for what must be known wherever it is shown."""
    figure = drawing.figure
    height = figure.get_figheight()
    figure.set_figheight(height + _STAMP)
    for axes in figure.axes:  # all else is placed in inches from the lower left corner
        left, bottom, width, high = axes.get_position().bounds
        share = height / (height + _STAMP)
        axes.set_position((left, bottom * share, width, high * share))
    write(figure, _LEFT, height + 0.06, text, bold=True)
    return drawing


def set_ticks(axes: Axes, way: str, places: Sequence[float], labels: Sequence[str], *, grid: bool) -> None:
    """Put ticks on the ``x`` or ``y`` axis: small texts, and faint lines through the chart with ``grid``."""
    axis = axes.xaxis if way == "x" else axes.yaxis
    axis.set_ticks(places, labels)
    for label in axis.get_ticklabels():
        label.set_alpha(QUIET)
    if grid:
        axes.set_axisbelow(True)
        axes.grid(visible=True, axis="x" if way == "x" else "y", color=INK, alpha=FAINT, linewidth=THIN)


def write(
    place: Axes | Figure,
    x: float,
    y: float,
    text: str,
    *,
    ha: str = "left",
    va: str = "baseline",
    size: float = TEXT,
    alpha: float = FULL,
    bold: bool = False,
    beside: bool = False,
    of: str | None = None,
) -> None:
    """Write a text at a place of the axes' data, or at inches from a figure's lower left corner.

    ``beside`` the axes, ``x`` is a share of their width. ``of`` names what the text is of, for the SVG.
    """
    if isinstance(place, Axes):
        transform = place.get_yaxis_transform() if beside else place.transData
    else:
        transform = place.dpi_scale_trans
    written = place.text(
        x,
        y,
        text,
        ha=ha,
        va=va,
        fontsize=size,
        alpha=alpha if alpha < 1 else None,
        fontweight="bold" if bold else "normal",
        transform=transform,
    )
    if of is not None:
        written.set_gid(f"value:{of}")


def named(artist: Artist, kind: str, name: str) -> None:
    """Say in the SVG what an artist is: a class, and the name of what it shows. Neither is foreign text."""
    artist.set_gid(f"{kind}:{name}")


def whisker(
    axes: Axes, ends: tuple[float, float], at: float, color: str, name: str, *, upright: bool = False
) -> None:
    """Draw an interval as a line without caps: across, or ``upright``."""
    across = ([at, at], list(ends)) if upright else (list(ends), [at, at])
    (line,) = axes.plot(*across, color=color, linewidth=LINE)
    named(line, "interval", name)


Box = tuple[float, float, float, float]
"""Left, bottom, width and height, in an axes' data."""


def blocks(axes: Axes, boxes: Sequence[Box], color: str, *, alpha: float | None = None) -> PathPatch:
    """Fill boxes, all as one shape: a histogram's bars, or the cells of one shade."""
    outlines = []
    for left, bottom, width, height in boxes:
        right, top = left + width, bottom + height
        corners = [(left, bottom), (left, top), (right, top), (right, bottom), (left, bottom)]
        outlines.append(Path(corners, closed=True))
    shape = PathPatch(Path.make_compound_path(*outlines), facecolor=color, alpha=alpha, linewidth=0)
    axes.add_patch(shape)
    return shape


def strokes(axes: Axes, xs: Sequence[float], low: float, high: float, alpha: float, width: float) -> Line2D:
    """Draw upright strokes of ink, all as one line with gaps."""
    gap = math.nan
    (line,) = axes.plot(
        [place for x in xs for place in (x, x, gap)],
        [low, high, gap] * len(xs),
        color=INK,
        alpha=alpha,
        linewidth=width,
    )
    return line


Entry = tuple[Sequence[Artist], str]
"""Marks around (0, 0), in points, and what they mean."""
_LEFT, _MARK, _BETWEEN, KEY_LINE = 0.05, 0.17, 0.16, 0.16
_STAMP = 0.22
"""Inches that a line above a chart takes."""


def key_lines(entries: Sequence[Entry]) -> int:
    """Return how many lines a key over the full width takes, each ``KEY_LINE`` inches high."""
    return 1 + max((line for line, _ in _key_places(entries)), default=0)


def key(figure: Figure, entries: Sequence[Entry]) -> None:
    """Draw marks with what they mean behind them, from a wide figure's upper left corner."""
    top = figure.get_figheight() - 0.12
    for (marks, text), (line, x) in zip(entries, _key_places(entries), strict=True):
        y = top - line * KEY_LINE
        for mark in marks:
            _place(mark, figure, x + 0.07, y)
        write(figure, x + _MARK, y - 0.035, text, size=SMALL, alpha=QUIET)


def _key_places(entries: Sequence[Entry]) -> list[tuple[int, float]]:
    """Return each entry's line and where it begins in it."""
    places, line, x = [], 0, _LEFT
    for _, text in entries:
        width = _MARK + text_width(text, SMALL) / 72
        if x > _LEFT and x + width > WIDE:
            line, x = line + 1, _LEFT
        places.append((line, x))
        x += width + _BETWEEN
    return places


def _place(mark: Artist, figure: Figure, x: float, y: float) -> None:
    from_points = Affine2D().scale(1 / 72).translate(x, y)
    mark.set_transform(from_points + figure.dpi_scale_trans)
    figure.add_artist(mark)


def text_width(text: str, size: float) -> float:
    """Return about how wide a text is, in points: in whatever font a reader has."""
    ems = sum(1.0 if unicodedata.east_asian_width(character) in "WF" else 0.57 for character in text)
    return ems * size


def foreign(text: str, limit: int = 30) -> str:
    """Return text from outside as one line that can stand in XML, shortened to ``limit`` characters."""
    printable = "".join(character if character.isprintable() else " " for character in str(text))
    line = " ".join(printable.split())
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


def signed(value: float) -> str:
    """Return two decimals with their sign, a true minus; 0 has none where nothing is left of it."""
    return f"{value:+.2f}".replace("-", "−") if value else "0.00"


class LogScale:
    """A logarithmic axis that has a place for 0: ``log10(1 + value)``, with ticks at 1, 2, 5, 10, ..."""

    def __init__(self, values: Sequence[float]) -> None:
        low, high = self.at(min(values)), self.at(max(values))
        pad = max(0.04 * (high - low), 0.4 - (high - low) / 2)
        self.low, self.high = max(low - pad, -0.04), high + pad

    @staticmethod
    def at(value: float) -> float:
        """Return where a value stands on the axis. Values are not negative."""
        return math.log10(1 + value)

    @property
    def limits(self) -> tuple[float, float]:
        """The axis' ends."""
        return self.low, self.high

    def ticks(self, most: int) -> list[int]:
        """Return up to about ``most`` round values within the axis."""
        for steps in ((1, 2, 5), (1, 3), (1,)):
            values = [0, *(step * 10**power for power in range(9) for step in steps)]
            within = [value for value in values if self.low <= self.at(value) <= self.high]
            if len(within) <= most:
                break
        return within[:: math.ceil(len(within) / most)] if within else []
