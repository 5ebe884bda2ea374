"""A table of numbers on the terminal, which stand under each other and are never cut."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from otoscope.reports.text import print_line

_LEAST_NAME = 8
_GAPS = ("   ", "  ", " ")


def print_aligned(
    console: Console, head: Sequence[str], rows: Sequence[tuple[Sequence[str], str]], *, total: bool = True
) -> None:
    """Print rows of a name and numbers, each with its style; ``total`` sets the last one apart.

    Where the terminal is too narrow, first the gaps become smaller, then the names are cut.
    """
    columns = list(zip(head, *(cells for cells, _ in rows), strict=True))
    names, *widths = (max(map(cell_len, column)) for column in columns)
    gap = next((gap for gap in _GAPS if names + _taken(widths, gap) <= console.width), _GAPS[-1])
    names = max(_LEAST_NAME, min(names, console.width - _taken(widths, gap)))

    def line(cells: Sequence[str], style: str) -> Text:
        numbers = [
            " " * (width - cell_len(cell)) + cell for cell, width in zip(cells[1:], widths, strict=True)
        ]
        return Text(gap.join([_cut(cells[0], names), *numbers]).rstrip(), style=style)

    rule = ("─" if console.encoding.lower().startswith("utf") else "-") * (names + _taken(widths, gap))
    print_line(console, line(head, "dim"))
    print_line(console, Text(rule, style="dim"))
    for index, (cells, style) in enumerate(rows):
        if total and index == len(rows) - 1:
            print_line(console, Text(rule, style="dim"))
        print_line(console, line(cells, style))


def _taken(widths: Sequence[int], gap: str) -> int:
    return sum(len(gap) + width for width in widths)


def _cut(name: str, width: int) -> str:
    return set_cell_size(name if cell_len(name) <= width else f"{set_cell_size(name, width - 1)}~", width)
