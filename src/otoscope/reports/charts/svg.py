"""A drawn figure -> SVG text: for a page, or as a file of its own.

Matplotlib's SVG is rewritten, since a page needs other things than a file: it stands in the page's own
markup, so no style leaks out of it and no identifier is there twice; its colours follow the page's scheme;
and it has presentation attributes only, which a Content-Security-Policy without inline styles lets pass.
"""

from __future__ import annotations

import hashlib
import io
import re

# The only XML that is read is what matplotlib has just written.
from xml.etree import ElementTree as ET

from matplotlib.backends.backend_svg import FigureCanvasSVG

from otoscope.reports.charts.style import FAILED, INK, SERIES, Drawing

_SVG, _LINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
_HREF = f"{{{_LINK}}}href"

_PAGE_COLOURS = {
    INK: "currentColor",
    **{color: f"var(--chart-{number}, {color})" for number, color in enumerate((*SERIES, FAILED), 1)},
}
"""What a page may set: ``--chart-1`` (answers) to ``--chart-4`` for series, ``--chart-5`` for failures."""
_FILE_FONTS = (
    "'DejaVu Sans', Helvetica, Arial, 'Noto Sans CJK SC', 'PingFang SC', 'Microsoft YaHei', sans-serif"
)

_NUMBER = re.compile(r"-?\d+\.\d{3,}")
_FONT = re.compile(r"(?:(\w+) )*?([\d.]+)px ")
"""The shorthand that older versions of matplotlib write."""
_DROPPED = ("font-family", "font-stretch", "font-variant")


def page_svg(drawing: Drawing, identity: str) -> str:
    """Return a chart to be put into a page: an ``svg`` element, without size or prolog.

    ``identity`` tells charts of the same content in one page apart. Foreign text is text, and nothing else.
    """
    return _written(drawing, identity, for_page=True)


def file_svg(drawing: Drawing) -> str:
    """Return a chart as a file of its own: with its size, its fonts and the colours themselves."""
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + _written(drawing, "", for_page=False) + "\n"


def _written(drawing: Drawing, identity: str, *, for_page: bool) -> str:
    raw = io.BytesIO()
    FigureCanvasSVG(drawing.figure).print_figure(raw, format="svg", metadata={"Date": None})
    drawn = ET.fromstring(raw.getvalue())  # noqa: S314
    digest = hashlib.sha256(
        b"\0".join((raw.getvalue(), drawing.description.encode(), identity.encode(errors="replace")))
    )
    prefix = f"{drawing.name}-{digest.hexdigest()[:10]}"
    used = sorted(_referred(drawn))
    identifiers = {old: f"{prefix}-{number}" for number, old in enumerate(used)}
    colours = _PAGE_COLOURS if for_page else {}
    root = ET.Element(
        "svg",
        {
            "xmlns": _SVG,
            "xmlns:xlink": _LINK,
            "class": f"chart chart-{'wide' if drawing.wide else 'column'} chart-{drawing.name}",
            "role": "img",
            "aria-labelledby": f"{prefix}-title {prefix}-desc",
            "viewBox": drawn.get("viewBox", ""),
            "stroke-linejoin": "round",
        },
    )
    if not for_page:
        width, height = drawing.figure.get_size_inches()
        root.attrib |= {"width": f"{width:g}in", "height": f"{height:g}in", "font-family": _FILE_FONTS}
    ET.SubElement(root, "title", {"id": f"{prefix}-title"}).text = drawing.title
    ET.SubElement(root, "desc", {"id": f"{prefix}-desc"}).text = drawing.description
    for child in drawn:
        _copy(child, root, identifiers, colours)
    return ET.tostring(root, encoding="unicode")


def _referred(drawn: ET.Element) -> set[str]:
    """Return the identifiers of the marks that something refers to."""
    return {element.attrib[_HREF].removeprefix("#") for element in drawn.iter() if _HREF in element.attrib}


def _copy(
    element: ET.Element, parent: ET.Element, identifiers: dict[str, str], colours: dict[str, str]
) -> None:
    """Copy what is drawn, without groups that say nothing, empty elements, styles and metadata."""
    tag = element.tag.rpartition("}")[2]
    if tag in ("metadata", "style"):
        return
    attributes = _attributes(element, identifiers, colours)
    if tag == "g" and not attributes:
        for child in element:
            _copy(child, parent, identifiers, colours)
        return
    copied = ET.Element(tag, attributes)
    if tag == "text":
        copied.text = element.text
    for child in element:
        _copy(child, copied, identifiers, colours)
    if tag not in ("g", "defs") or len(copied):
        parent.append(copied)


def _attributes(element: ET.Element, identifiers: dict[str, str], colours: dict[str, str]) -> dict[str, str]:
    attributes: dict[str, str] = {}
    for name, value in element.attrib.items():
        if name == "id":
            if value in identifiers:
                attributes["id"] = identifiers[value]
            elif ":" in value:
                attributes["class"], _, attributes["data-name"] = value.partition(":")
        elif name == _HREF:
            attributes["xlink:href"] = f"#{identifiers[value.removeprefix('#')]}"
        elif name == "style":
            attributes |= _style(value, colours)
        elif name != "transform" or not value.startswith("rotate(-0 "):
            attributes[name] = " ".join(_NUMBER.sub(_rounded, value).split())
    return attributes


def _style(style: str, colours: dict[str, str]) -> dict[str, str]:
    """Return a style as presentation attributes."""
    attributes = {}
    for declaration in style.split(";"):
        name, _, value = (part.strip() for part in declaration.partition(":"))
        if name == "font" and (font := _FONT.match(value)):
            attributes["font-size"] = font[2]
            if font[1] in ("bold", "700"):
                attributes["font-weight"] = "700"
        elif name and name not in _DROPPED:
            attributes[name] = colours.get(value, value.removesuffix("px"))
    return attributes


def _rounded(number: re.Match[str]) -> str:
    # A hundredth of a point is finer than any printer; what is left is the same on every machine.
    return f"{float(number[0]):.2f}".rstrip("0").rstrip(".")
