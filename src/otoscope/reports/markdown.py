"""Runs as Markdown (CommonMark with GitHub's tables): one row a run, and with an appendix all about each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from otoscope.reports.blocks import (
    NOT_AVAILABLE,
    Block,
    Heading,
    Pairs,
    Paragraph,
    Score,
    Table,
    Value,
    interval,
    number,
)
from otoscope.reports.reported import Reported
from otoscope.reports.tables import document
from otoscope.texts import Catalogue

_SPECIAL = re.compile(r"[\\`*_\[\]<>&|~$#]")
_LEADING = re.compile(r"^(?:\d{1,9}(?=[.)](?:\s|$))|(?=[-+=]))")
"""Where a backslash keeps a line from beginning a list or underlining a heading."""
_LINKED = re.compile(r"(?i)\b(?:www(?=\.)|(?:mailto|xmpp)(?=:))|(?=://)")
"""Where a backslash keeps an address from becoming a link."""


def render_markdown(runs: Sequence[Reported], say: Catalogue, *, appendix: bool) -> str:
    """Return the runs as Markdown: a table for each judge, ``appendix`` with all about each run.

    All text in it is inert: it shows as it is, and makes no list, link, mention, HTML or table of its own.
    """
    return "\n\n".join("\n".join(_lines(block)) for block in document(runs, say, appendix=appendix)) + "\n"


def escape(text: str) -> str:
    """Return one line of text so that it shows just as it is, also in a table."""
    escaped = _SPECIAL.sub(r"\\\g<0>", text)
    escaped = _LEADING.sub(r"\g<0>\\", escaped, count=1)
    escaped = _LINKED.sub(r"\g<0>\\", escaped)
    # No backslash keeps an @ from making an address or, on some pages, a mention.
    return escaped.replace("@", "@&#8203;")


def _lines(block: Block) -> Iterator[str]:
    match block:
        case Heading():
            yield f"{'#' * (block.level + 1)} {escape(block.text)}"
        case Paragraph():
            yield escape(block.text)
        case Pairs():
            yield from (f"- **{escape(name)}:** {escape(text)}".rstrip() for name, text in block.pairs)
        case Table():
            yield from _table(block)


def _table(table: Table) -> Iterator[str]:
    yield escape(table.caption)
    yield ""
    yield _row(table.head)
    yield _row([":--", *(":--" if table.prose else "--:" for _ in table.head[1:])], raw=True)
    yield from (_row(row) for row in table.rows)
    if table.notes:
        yield ""
        yield from (f"- {escape(note)}" for note in table.notes)


def _row(values: Sequence[Value], *, raw: bool = False) -> str:
    return f"| {' | '.join(str(value) if raw else _value(value) for value in values)} |"


def _value(value: Value) -> str:
    if isinstance(value, str):
        return escape(value)
    return _score(value)


def _score(score: Score) -> str:
    if score.value is None:
        return NOT_AVAILABLE
    shown = number(score.value) + (f" {interval(score.ci95)}" if score.ci95 is not None else "")
    return shown if score.least is None else f"{shown} (≥ {number(score.least)})"
