"""A drawn figure -> SVG text: for a page, or as a file of its own.

A page needs other things than a file. It has the chart in its own markup, so no style leaks out of it and no
identifier is there twice; colours follow the page's scheme; and there are presentation attributes only, which
a Content-Security-Policy without inline styles lets pass.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from html import escape

from otoscope.reports.charts.canvas import POINTS, Area, Figure, Item, Line, Marks, Place, Shape, Text
from otoscope.reports.charts.style import FAILED, INK, SERIES, Drawing

_PAGE_COLOURS = {
    INK: "currentColor",
    **{color: f"var(--chart-{number}, {color})" for number, color in enumerate((*SERIES, FAILED), 1)},
}
"""What a page may set: ``--chart-1`` (answers) to ``--chart-4`` for series, ``--chart-5`` for failures."""
_FILE_FONTS = (
    "'DejaVu Sans', Helvetica, Arial, 'Noto Sans CJK SC', 'PingFang SC', 'Microsoft YaHei', sans-serif"
)

_ASCENT, _DESCENT = 0.76, 0.24
"""Of a line of text, in its size: how far DejaVu Sans reaches above and below the baseline."""
_RAISED = {"baseline": 0.0, "center": (_ASCENT - _DESCENT) / 2, "top": _ASCENT, "digits": _ASCENT / 2}
"""How far what stands at a text's place is above its baseline, in its size."""
_ANCHORS = {"left": "start", "center": "middle", "right": "end"}
_EDGE = 0.9
"""Width in points of the line around a mark."""


def page_svg(drawing: Drawing, identity: str) -> str:
    """Return a chart to be put into a page: an ``svg`` element, without size or prolog.

    ``identity`` tells charts of the same content in one page apart. Foreign text is text, and nothing else.
    """
    return _written(drawing, identity, for_page=True)


def file_svg(drawing: Drawing) -> str:
    """Return a chart as a file of its own: with its size, its fonts and the colours themselves."""
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + _written(drawing, "", for_page=False) + "\n"


def _written(drawing: Drawing, identity: str, *, for_page: bool) -> str:
    figure = drawing.figure
    shapes: dict[str, str] = {}
    elements = list(_Writer(figure, _PAGE_COLOURS if for_page else {}, shapes).elements())
    content = "".join(elements)
    told = (content, drawing.title, drawing.description, identity)
    digest = hashlib.sha256("\0".join(told).encode(errors="replace"))
    prefix = f"{drawing.name}-{digest.hexdigest()[:10]}"
    width, height = figure.width, figure.height
    attributes = {
        "xmlns": "http://www.w3.org/2000/svg",
        "xmlns:xlink": "http://www.w3.org/1999/xlink",
        "class": f"chart chart-{'wide' if drawing.wide else 'column'} chart-{drawing.name}",
        "role": "img",
        "aria-labelledby": f"{prefix}-title {prefix}-desc",
        "viewBox": f"0 0 {_number(POINTS * width)} {_number(POINTS * height)}",
        "stroke-linejoin": "round",
    }
    if not for_page:
        attributes |= {"width": f"{width:g}in", "height": f"{height:g}in", "font-family": _FILE_FONTS}
    for number, mark in enumerate(shapes.values()):
        content = content.replace(mark, f"{prefix}-{number}")
    return (
        f"<svg{_attributes(attributes)}>"
        f'<title id="{prefix}-title">{_text(drawing.title)}</title>'
        f'<desc id="{prefix}-desc">{_text(drawing.description)}</desc>'
        f"{content}</svg>"
    )


class _Writer:
    """Writes the items of a figure as elements.

    ``shapes`` gets the form of each mark that is used, with what stands for its identifier, which is known
    only when all is written. That has a character which no text in XML has.
    """

    def __init__(self, figure: Figure, colours: dict[str, str], shapes: dict[str, str]) -> None:
        self._figure = figure
        self._top = POINTS * figure.height
        self._colours = colours
        self._shapes = shapes

    def elements(self) -> Iterator[str]:
        for item in self._figure.items():
            drawn = self._drawn(item)
            if item.kind is None:
                yield drawn
            else:
                yield f"<g{_attributes({'class': item.kind, 'data-name': item.name})}>{drawn}</g>"

    def _drawn(self, item: Item) -> str:
        match item:
            case Line():
                return self._line(item)
            case Area():
                return self._area(item)
            case Marks():
                return self._marks(item)
            case Text():
                return self._written_text(item)
            case _:
                raise TypeError(type(item).__name__)

    def _line(self, line: Line) -> str:
        attributes = {"d": " ".join(map(self._path, line.pieces)), "fill": "none"}
        if line.dashes is not None:
            attributes["stroke-dasharray"] = ",".join(_number(line.width * part) for part in line.dashes)
        attributes["stroke"] = self._colour(line.color)
        if line.alpha is not None:
            attributes["stroke-opacity"] = f"{line.alpha:g}"
        attributes["stroke-width"] = _number(line.width)
        return f"<path{_attributes(attributes)} />"

    def _area(self, area: Area) -> str:
        outlines = " ".join(f"{self._path(outline)} z" for outline in area.outlines)
        attributes = {"d": outlines, "fill": self._colour(area.color)}
        if area.alpha is not None and area.alpha < 1:
            attributes["opacity"] = f"{area.alpha:g}"
        return f"<path{_attributes(attributes)} />"

    def _marks(self, marks: Marks) -> str:
        colour = self._colour(marks.color)
        edge = {"stroke": colour, "stroke-width": _number(_EDGE)}
        if marks.shape != "o":
            edge["stroke-linejoin"] = "miter"
        outline = _outline(marks.shape, marks.size)
        defined = ""
        if outline not in self._shapes:
            mark = self._shapes[outline] = f"\0{len(self._shapes)}\0"
            defined = f"<defs><path{_attributes({'id': mark, 'd': outline})} /></defs>"
        fill = {"fill-opacity": "0"} if marks.hollow else {"fill": colour}
        used = ""
        for x, y in marks.places:
            at = {"xlink:href": f"#{self._shapes[outline]}", "x": _number(x), "y": _number(self._top - y)}
            used += f"<use{_attributes(at | fill | edge)} />"
        return defined + used

    def _written_text(self, text: Text) -> str:
        x, y = text.place
        attributes = {"font-size": f"{text.size:g}"}
        if text.bold:
            attributes["font-weight"] = "700"
        attributes |= {"text-anchor": _ANCHORS[text.across], "fill": self._colour(text.color)}
        if text.alpha is not None:
            attributes["opacity"] = f"{text.alpha:g}"
        raised = _RAISED[text.up] * text.size
        attributes |= {"x": _number(x), "y": _number(self._top - y + raised)}
        return f"<text{_attributes(attributes)}>{_text(text.text)}</text>"

    def _path(self, places: Sequence[Place]) -> str:
        corners = (f"{_number(x)} {_number(self._top - y)}" for x, y in places)
        return f"M {' L '.join(corners)}"

    def _colour(self, colour: str) -> str:
        return self._colours.get(colour, colour)


_ROUND = 0.5522847
"""How long the handles of a quarter circle are: 4/3 (sqrt(2) - 1)."""


def _outline(shape: Shape, size: float) -> str:
    """Return the outline of a mark around (0, 0)."""
    half = size / 2
    match shape:
        case "o":
            r, c = _number(half), _number(_ROUND * half)
            return (
                f"M 0 {r} C {c} {r} {r} {c} {r} 0 C {r} -{c} {c} -{r} 0 -{r} "
                f"C -{c} -{r} -{r} -{c} -{r} 0 C -{r} {c} -{c} {r} 0 {r} z"
            )
        case "D":
            r = _number(2**0.5 * half)
            return f"M 0 {r} L {r} 0 L 0 -{r} L -{r} 0 z"
        case "s":
            r = _number(half)
            return f"M -{r} {r} L {r} {r} L {r} -{r} L -{r} -{r} z"
        case "^":
            r = _number(half)
            return f"M 0 -{r} L -{r} {r} L {r} {r} z"


def _attributes(attributes: dict[str, str]) -> str:
    return "".join(f' {name}="{escape(value)}"' for name, value in attributes.items())


def _text(text: str) -> str:
    return escape(text, quote=False)


def _number(value: float) -> str:
    # A hundredth of a point is finer than any printer; what is left is the same on every machine.
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text
