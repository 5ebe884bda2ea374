"""What a chart is made of: lines, marks, areas and texts, each at its place on the paper.

A chart is written a dozen times for each page, so this is only what charts here need: linear axes, and four
kinds of shapes. ``svg`` and ``pdf`` write it. Places are points (1/72 inch) from the lower left corner.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

POINTS = 72
"""In an inch."""

Place = tuple[float, float]
Shape = Literal["o", "D", "s", "^"]
"""Of a mark: a circle, a diamond, a square, a triangle."""
Across = Literal["left", "center", "right"]
Up = Literal["baseline", "center", "top", "digits"]
"""What of a text stands at its place; ``digits``: the middle of its figures."""


@dataclass(slots=True, kw_only=True)
class Item:
    """Something drawn. ``kind`` and ``name`` say in an SVG what it is of; neither is foreign text."""

    color: str
    alpha: float | None = None
    kind: str | None = None
    name: str = ""


@dataclass(slots=True, kw_only=True)
class Line(Item):
    """One or more pieces of line, ``width`` points wide."""

    pieces: Sequence[Sequence[Place]]
    width: float
    dashes: tuple[float, float] | None = None
    """Drawn and left out, in line widths."""


@dataclass(slots=True, kw_only=True)
class Marks(Item):
    """Marks of one form, ``size`` points wide."""

    places: Sequence[Place]
    shape: Shape
    size: float
    hollow: bool = False


@dataclass(slots=True, kw_only=True)
class Area(Item):
    """Filled outlines, all as one shape."""

    outlines: Sequence[Sequence[Place]]


@dataclass(slots=True, kw_only=True)
class Text(Item):
    """A line of text."""

    place: Place
    text: str
    size: float
    across: Across = "left"
    up: Up = "baseline"
    bold: bool = False


_LAYERS = {Area: 1, Line: 2, Marks: 2, Text: 3}
"""What is drawn over what, within axes and on the paper."""
_GRID, _GROUND = 0, 2.5


class _Sheet:
    """Collects items; they are drawn in the order of their layers."""

    def __init__(self) -> None:
        self._items: list[tuple[float, Item]] = []

    def add(self, item: Item, layer: float | None = None) -> None:
        self._items.append((_LAYERS[type(item)] if layer is None else layer, item))

    def items(self) -> Iterator[Item]:
        for _, item in sorted(self._items, key=lambda entry: entry[0]):
            yield item


@dataclass(slots=True)
class Figure:
    """An empty chart without a background. Sizes in inches."""

    width: float
    height: float
    axes: list[Axes] = field(default_factory=list)
    _paper: _Sheet = field(default_factory=_Sheet)

    def add(self, item: Item) -> None:
        """Draw something on the paper, over all axes."""
        self._paper.add(item)

    def items(self) -> Iterator[Item]:
        """Yield everything in the order in which it is drawn."""
        for axes in self.axes:
            yield from axes.items()
        yield from self._paper.items()


class Axes:
    """A part of a figure with linear scales of its own. Place and size are in inches.

    Limits are set before anything is drawn. Nothing is cut off at the edges.
    """

    def __init__(self, left: float, bottom: float, width: float, height: float) -> None:
        self.left, self.bottom = POINTS * left, POINTS * bottom
        self.width, self.height = POINTS * width, POINTS * height
        self.xlim: tuple[float, float] = (0.0, 1.0)
        self.ylim: tuple[float, float] = (0.0, 1.0)
        self._sheet = _Sheet()

    def set_xlim(self, left: float, right: float) -> None:
        """Set which values stand at the left and right edge."""
        self.xlim = (left, right)

    def set_ylim(self, bottom: float, top: float) -> None:
        """Set which values stand at the lower and upper edge."""
        self.ylim = (bottom, top)

    def at(self, x: float, y: float) -> Place:
        """Return where a pair of values stands."""
        return self.x_at(x), self.y_at(y)

    def x_at(self, x: float) -> float:
        """Return how far to the right a value stands."""
        low, high = self.xlim
        return self.left + self.width * (x - low) / ((high - low) or 1.0)

    def y_at(self, y: float) -> float:
        """Return how high a value stands."""
        low, high = self.ylim
        return self.bottom + self.height * (y - low) / ((high - low) or 1.0)

    def line(
        self,
        xs: Sequence[float],
        ys: Sequence[float],
        *,
        color: str,
        width: float,
        alpha: float | None = None,
        dashes: tuple[float, float] | None = None,
    ) -> Line:
        """Draw a line through these values."""
        piece = [self.at(x, y) for x, y in zip(xs, ys, strict=True)]
        line = Line(pieces=[piece], color=color, width=width, alpha=alpha, dashes=dashes)
        self._sheet.add(line)
        return line

    def marks(
        self,
        xs: Sequence[float],
        ys: Sequence[float],
        shape: Shape,
        *,
        color: str,
        size: float,
        hollow: bool = False,
    ) -> Marks:
        """Draw a mark at each of these values."""
        places = [self.at(x, y) for x, y in zip(xs, ys, strict=True)]
        marks = Marks(places=places, shape=shape, color=color, size=size, hollow=hollow)
        self._sheet.add(marks)
        return marks

    def add(self, item: Item) -> None:
        """Draw something whose places are on the paper already."""
        self._sheet.add(item)

    def behind(self, item: Item) -> None:
        """Draw something behind everything else."""
        self._sheet.add(item, _GRID)

    def ground(self, item: Item) -> None:
        """Draw something over all but the texts."""
        self._sheet.add(item, _GROUND)

    def items(self) -> Iterator[Item]:
        """Yield what was drawn, what lies below first."""
        return self._sheet.items()
