"""The one look of every chart: colours, sizes, and the few ways in which things are drawn.

Two colours say what is whose: the answers are blue, the reference answers orange. All else is ink, fainter
where it matters less. The colours differ in lightness and for colour-blind readers, and stand on white as on
black. What a mark means stands beside it; there are no frames, and no titles, which captions are.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace

from otoscope.reports.charts.canvas import (
    POINTS,
    Across,
    Area,
    Axes,
    Figure,
    Item,
    Line,
    Marks,
    Place,
    Shape,
    Text,
    Up,
)

INK = "#1c1c1f"
ANSWER = "#2877bb"
REFERENCE = "#c8690a"
SERIES = (ANSWER, REFERENCE, "#148f77", "#8b5fbf")
"""In this order, and again from the start, for several runs in one chart."""
MARKERS: tuple[Shape, ...] = ("o", "D", "s", "^")
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

_PAD = 3.0
"""Points between axes and their labels."""

NOT_AVAILABLE = "n/a"


@dataclass(frozen=True, slots=True)
class Drawing:
    """A finished chart, with what is said to those who do not see it."""

    name: str
    figure: Figure
    title: str
    description: str

    @property
    def wide(self) -> bool:
        """Whether it takes a page's full width."""
        return self.figure.width > COLUMN


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure without a background. Sizes in inches."""
    return Figure(width, height)


def add_axes(
    figure: Figure, left: float, bottom: float, width: float, height: float, *, ground: bool = True
) -> Axes:
    """Return new axes with their lower left corner and size in inches; the only line is the ``ground``."""
    axes = Axes(left, bottom, width, height)
    figure.axes.append(axes)
    if ground:
        ends = [(axes.left, axes.bottom), (axes.left + axes.width, axes.bottom)]
        axes.ground(Line(pieces=[ends], color=INK, alpha=RULE, width=THIN))
    return axes


def stamp(drawing: Drawing, text: str) -> Drawing:
    """Write a line above everything else in a chart, for what must be known wherever it is shown."""
    figure = drawing.figure
    height = figure.height
    figure.height += _STAMP  # everything is placed from the lower left corner
    write(figure, _LEFT, height + 0.06, text, bold=True)
    return drawing


def set_ticks(axes: Axes, way: str, places: Sequence[float], labels: Sequence[str], *, grid: bool) -> None:
    """Put ticks on the ``x`` or ``y`` axis: small texts, and faint lines through the chart with ``grid``."""
    for place, label in zip(places, labels, strict=True):
        if way == "x":
            x, y = axes.x_at(place), axes.bottom
            across: Across = "center"
            up: Up = "top"
            ends = [(x, y), (x, y + axes.height)]
            at = (x, y - _PAD)
        else:
            x, y = axes.left, axes.y_at(place)
            across, up = "right", "digits"
            ends = [(x, y), (x + axes.width, y)]
            at = (x - _PAD, y)
        if grid:
            axes.behind(Line(pieces=[ends], color=INK, alpha=FAINT, width=THIN))
        if label:
            axes.behind(Text(place=at, text=label, color=INK, alpha=QUIET, size=SMALL, across=across, up=up))


def write(
    place: Axes | Figure,
    x: float,
    y: float,
    text: str,
    *,
    ha: Across = "left",
    va: Up = "baseline",
    size: float = TEXT,
    alpha: float = FULL,
    bold: bool = False,
    beside: bool = False,
    of: str | None = None,
) -> None:
    """Write a text at a place of the axes' data, or at inches from a figure's lower left corner.

    ``beside`` the axes, ``x`` is a share of their width. ``of`` names what the text is of, for the SVG.
    """
    written = Text(
        place=_place_of(place, x, y, beside=beside),
        text=text,
        color=INK,
        alpha=alpha if alpha < 1 else None,
        size=size,
        across=ha,
        up=va,
        bold=bold,
    )
    if of is not None:
        named(written, "value", of)
    place.add(written)


def _place_of(place: Axes | Figure, x: float, y: float, *, beside: bool) -> Place:
    if isinstance(place, Figure):
        return POINTS * x, POINTS * y
    return (place.left + place.width * x if beside else place.x_at(x)), place.y_at(y)


def named(item: Item, kind: str, name: str) -> None:
    """Say in the SVG what an item is: a class, and the name of what it shows. Neither is foreign text."""
    item.kind, item.name = kind, name


def whisker(
    axes: Axes, ends: tuple[float, float], at: float, color: str, name: str, *, upright: bool = False
) -> None:
    """Draw an interval as a line without caps: across, or ``upright``."""
    xs, ys = ([at, at], ends) if upright else (ends, [at, at])
    named(axes.line(xs, ys, color=color, width=LINE), "interval", name)


Box = tuple[float, float, float, float]
"""Left, bottom, width and height, in an axes' data."""


def blocks(axes: Axes, boxes: Sequence[Box], color: str, *, alpha: float | None = None) -> Area:
    """Fill boxes, all as one shape: a histogram's bars, or the cells of one shade."""
    area = Area(outlines=[_corners(axes, box) for box in boxes], color=color, alpha=alpha)
    axes.add(area)
    return area


def _corners(axes: Axes, box: Box) -> list[Place]:
    left, bottom, width, height = box
    right, top = left + width, bottom + height
    return [axes.at(x, y) for x, y in ((left, bottom), (left, top), (right, top), (right, bottom))]


def strokes(axes: Axes, xs: Sequence[float], low: float, high: float, alpha: float, width: float) -> Line:
    """Draw upright strokes of ink, all as one line with gaps."""
    pieces = [[axes.at(x, low), axes.at(x, high)] for x in xs]
    line = Line(pieces=pieces, color=INK, alpha=alpha, width=width)
    axes.add(line)
    return line


Entry = tuple[Sequence[Line | Marks], str]
"""Marks around (0, 0), in points, and what they mean."""
_LEFT, _MARK, _BETWEEN, KEY_LINE = 0.05, 0.17, 0.16, 0.16
_STAMP = 0.22
"""Inches that a line above a chart takes."""


def key_lines(entries: Sequence[Entry]) -> int:
    """Return how many lines a key over the full width takes, each ``KEY_LINE`` inches high."""
    return 1 + max((line for line, _ in _key_places(entries)), default=0)


def key(figure: Figure, entries: Sequence[Entry]) -> None:
    """Draw marks with what they mean behind them, from a wide figure's upper left corner."""
    top = figure.height - 0.12
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


def key_line(*ends: Place, color: str, width: float, alpha: float | None = None) -> Line:
    """Return a line of a key's entry: its ends in points around (0, 0)."""
    return Line(pieces=[ends], color=color, width=width, alpha=alpha)


def key_mark(shape: Shape, color: str, *, size: float | None = None, hollow: bool = False) -> Marks:
    """Return a mark of a key's entry."""
    return Marks(
        places=[(0, 0)], shape=shape, color=color, size=MARK if size is None else size, hollow=hollow
    )


def _place(mark: Line | Marks, figure: Figure, x: float, y: float) -> None:
    def moved(places: Sequence[Place]) -> list[Place]:
        return [(POINTS * x + right, POINTS * y + up) for right, up in places]

    if isinstance(mark, Line):
        figure.add(replace(mark, pieces=[moved(piece) for piece in mark.pieces]))
    else:
        figure.add(replace(mark, places=moved(mark.places)))


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
