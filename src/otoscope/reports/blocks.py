"""What a written report consists of, before it is Markdown or LaTeX: headings, tables, paragraphs, pairs.

Every text in a block is plain: each format escapes all of it. Foreign text goes in through :func:`inert`.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from otoscope.scoring import Cell
from otoscope.scoring.warnings import worded
from otoscope.texts import Catalogue

NOT_AVAILABLE = "--"
ISOLATE, END_ISOLATE = "\u2068", "\u2069"
"""Around right-to-left text, so that what stands beside it keeps its place."""

_JOINERS = "\u200c\u200d"
"""Format characters that belong to words (Persian, Hindi) and to emoji."""


@dataclass(frozen=True, slots=True)
class Score:
    """A mean with its interval; ``least`` is the mean with failed samples counted as 0, where it is shown."""

    value: float | None
    ci95: Sequence[float] | None
    least: float | None

    @classmethod
    def of(cls, cell: Cell | None) -> Score:
        """Return a cell's score; of no cell, or one without a score, the one that is not available."""
        if cell is None or cell.gpt_score is None:
            return cls(None, None, None)
        return cls(cell.gpt_score, cell.ci95, cell.lower_bound)


Value = str | Score
"""What stands in one place of a table."""


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading; ``level`` 1 is a run's, 2 a part of it, 3 a sample's."""

    text: str
    level: int


@dataclass(frozen=True, slots=True)
class Table:
    """A table: the first column holds names, the others numbers or, where ``prose``, texts."""

    name: str
    """What ``\\label`` calls it."""
    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[Value]]
    notes: Sequence[str] = ()
    prose: bool = False
    listed_as: str = "AIR-Bench Chat"
    """What a list of tables calls it, in ASCII: that is set before this file's own commands are known."""


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A sentence or two."""

    text: str


@dataclass(frozen=True, slots=True)
class Pairs:
    """Texts under their names."""

    pairs: Sequence[tuple[str, str]]


Block = Heading | Table | Paragraph | Pairs


# --- texts ------------------------------------------------------------------------------------------------


def inert(text: object, *, longest: int | None = None, say: Catalogue | None = None) -> str:
    """Return foreign text on one line, without control and direction characters; right-to-left text isolated.

    Of more than ``longest`` characters the rest is left out, and ``say`` tells how many they are.
    """
    kept = "".join(_printable(character) for character in str(text))
    line = " ".join(kept.split())
    if longest is not None and say is not None and len(line) > longest:
        left_out = len(line) - longest
        line = f"{line[:longest].rstrip()} {say('table.shortened', count=f'{left_out:,}')}"
    return f"{ISOLATE}{line}{END_ISOLATE}" if _has_right_to_left(line) else line


def _printable(character: str) -> str:
    if character.isprintable() or character in _JOINERS:
        return character
    return "\ufffd" if unicodedata.category(character) == "Cs" else " "


def _has_right_to_left(text: str) -> bool:
    return not text.isascii() and any(unicodedata.bidirectional(c) in ("R", "AL", "AN") for c in text)


def warning_text(warning: Mapping[str, Any], say: Catalogue) -> str:
    """Return a warning's text in the language of the report, where the catalogue has it."""
    key, values = f"warning.{warning['name']}", warning.get("values")
    if key in say and values is not None:
        return inert(worded(key, values, say))
    return inert(warning["message"])


# --- numbers ----------------------------------------------------------------------------------------------


def number(value: float | None) -> str:
    """Return a score with two decimals."""
    return NOT_AVAILABLE if value is None else f"{value:.2f}"


def interval(ci95: Sequence[float]) -> str:
    """Return an interval in brackets."""
    return f"[{ci95[0]:.2f}, {ci95[1]:.2f}]"


def percent(share: float | None) -> str:
    """Return a share as whole per cent."""
    return NOT_AVAILABLE if share is None else f"{100 * share:.0f} %"


def coverage(scored: int, n: int) -> str:
    """Return which share is scored, rounded down: only all of them are 100 %."""
    if scored == n:
        return "100 %"
    return f"{math.floor(1000 * scored / n) / 10:.1f} %"
