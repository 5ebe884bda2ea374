"""The leaderboard, for people (terminal, Markdown) and for machines (CSV, JSON)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from otoscope.benchmark import BENCHMARK
from otoscope.leaderboard import LOCAL, Group, Leaderboard, Row
from otoscope.records import Json
from otoscope.reports.csv_files import csv_line
from otoscope.reports.markdown import escape
from otoscope.reports.text import Cleaner, print_line, print_wrapped
from otoscope.stats import INTERVAL_LABEL

FORMAT = 1
NOT_AVAILABLE = "n/a"

_APART = "Apart, without a rank"
_CONTROLS = "Controls, not evaluations: without a rank"
_INTERVAL = f"ci95 is the 95 % interval of the average, {INTERVAL_LABEL}"
_PUBLISHED = (
    "Published rows beside local ones were sampled by the official protocol (judge at temperature 1.0), or "
    "do not say how; local ones by the default protocol (temperature 0), if the judge's title names no other"
)
_MORE = "A wider terminal shows more columns; --format csv, md or json all of them"
_LEAST_NAME, _MOST_NAME = 12, 40
"""Between them lies the width of the names: longer ones are folded."""
_TITLE, _LOCAL, _QUIET, _WARNING = "bold", "bold", "dim", "bold yellow"


# --- for machines -----------------------------------------------------------------------------------------


def to_json(board: Leaderboard) -> Json:
    """Return plain JSON values: full precision, n/a as ``null``, never NaN."""
    return {
        "format": FORMAT,
        "benchmark": BENCHMARK,
        "intervals": INTERVAL_LABEL,
        "groups": [
            {"judge": group.title, "rows": [_plain(row) for row in group.rows]} for group in board.groups
        ],
        "skipped": list(board.skipped),
    }


def to_csv(board: Leaderboard) -> str:
    """Return one table with a header: full precision, n/a as an empty field, tags as a JSON object."""
    lines = [csv_line(["judge_group", *_FIELDS])]
    for group in board.groups:
        for row in group.rows:
            values = _plain(row)
            low, high = values.pop("ci95") or (None, None)
            tags = json.dumps(values.pop("tags"), ensure_ascii=False) if row.tags else None
            values.update(ci95_low=low, ci95_high=high, tags=tags, warnings=" ".join(row.warnings))
            lines.append(csv_line([group.title, *(values[name] for name in _FIELDS)]))
    return "".join(lines)


_FIELDS = (
    "rank", "model", "label", "control", "speech", "sound", "music", "mixed", "average", "ci95_low",
    "ci95_high", "scored", "failed", "pending", "n", "judge", "protocol", "scoring", "status", "tags",
    "audio_policy", "partial", "warnings", "note", "source", "path",
)  # fmt: skip


def _plain(row: Row) -> Json:
    return {
        "rank": row.rank,
        "model": row.model,
        "label": row.label,
        "control": row.control,
        "speech": row.speech,
        "sound": row.sound,
        "music": row.music,
        "mixed": row.mixed,
        "average": row.average,
        "ci95": list(row.ci95) if row.ci95 is not None else None,
        "scored": row.scored,
        "failed": row.failed,
        "pending": row.pending,
        "n": row.n,
        "judge": row.judge,
        "protocol": row.protocol,
        "scoring": row.scoring,
        "status": row.status,
        "tags": dict(row.tags),
        "audio_policy": row.audio_policy,
        "partial": row.partial,
        "warnings": list(row.warnings),
        "note": row.note or None,
        "source": row.source,
        "path": row.path,
    }


# --- what people see --------------------------------------------------------------------------------------


class _Footnotes:
    """Numbers texts in the order in which they are first met; equal ones share a number."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def mark(self, row: Row) -> str:
        """Return what stands behind a row's name: nothing where there is nothing to say of it."""
        text = "; ".join(filter(None, (row.partial, row.note)))
        return f" [{self._numbers.setdefault(text, len(self._numbers) + 1)}]" if text else ""

    def __iter__(self) -> Iterator[tuple[int, str]]:
        return ((number, text) for text, number in self._numbers.items())


@dataclass(frozen=True, slots=True)
class _Column:
    header: str
    show: Callable[[Row], str]
    to_the_left: bool = False
    """Texts stand at the left of their column, numbers at the right."""


def _score(name: str, header: str | None = None) -> _Column:
    return _Column(header or name, lambda row: _decimals(getattr(row, name), row.decimals))


def _decimals(value: float | None, decimals: int) -> str:
    # The points of rows with one decimal and with two stand below each other.
    return NOT_AVAILABLE if value is None else f"{value:.{decimals}f}" + " " * (2 - decimals)


def _counts(row: Row) -> str:
    return f"{row.scored}/{row.n}" if row.n is not None else ""


_RANK = _Column("#", lambda row: str(row.rank) if row.rank is not None else "")
_PARTS = tuple(_score(name) for name in ("speech", "sound", "music", "mixed"))
_AVERAGE, _SHORT_AVERAGE = _score("average"), _score("average", "avg")
_CI95 = _Column("ci95", lambda row: f"{row.ci95[0]:.2f}-{row.ci95[1]:.2f}" if row.ci95 else "")
_SCORED = _Column("scored/n", _counts)
_STATUS = _Column("status", lambda row: row.status, to_the_left=True)
_BOTH = _Column("status", lambda row: f"{row.status} {_counts(row)}".rstrip(), to_the_left=True)
"""Status and counts in the space of one."""
_PROTOCOL = _Column("protocol", lambda row: row.protocol or "", to_the_left=True)
_SCORING = _Column("scoring", lambda row: row.scoring or "", to_the_left=True)
_TAGS = _Column("tags", lambda row: " ".join(f"{k}={v}" for k, v in row.tags.items()), to_the_left=True)
_FROM = _Column("from", lambda row: row.path or row.source or "", to_the_left=True)

_ALL = (_RANK, *_PARTS, _AVERAGE, _CI95, _SCORED, _STATUS, _PROTOCOL, _SCORING, _TAGS, _FROM)
_FIRST_TO_GO = (_FROM, _SCORING, _TAGS, _PROTOCOL)
_NARROW = (
    (_RANK, *_PARTS, _SHORT_AVERAGE, _CI95, _BOTH),
    (_RANK, *_PARTS, _SHORT_AVERAGE, _STATUS),
    (_RANK, _SHORT_AVERAGE, _STATUS),
)
"""What is left where there is too little space for any of the others, from the widest on."""


def _name(row: Row) -> str:
    name = f"{row.label} ({row.model})" if row.label else row.model
    return name if row.control is None else f"{name}, CONTROL ({row.control})"


def _title(group: Group) -> str:
    judge = group.judge
    if judge is None:
        return "Not judged"
    return f"Judge: {judge.title}" if judge.known else f"Judge {judge.title}: without ranks"


def _parts(group: Group) -> Iterator[tuple[str, list[Row]]]:
    """Yield the rows over the whole set, those that stand apart, and controls, with what is said above."""
    evaluations = [row for row in group.rows if row.control is None]
    parts = {
        "": [row for row in evaluations if row.complete],
        _APART: [row for row in evaluations if not row.complete],
        _CONTROLS: [row for row in group.rows if row.control is not None],
    }
    yield from ((above, rows) for above, rows in parts.items() if rows)


def _below(board: Leaderboard, *, intervals: bool) -> Iterator[str]:
    """Yield what has to be said below the tables."""
    if any(len({row.status == LOCAL for row in group.rows}) == 2 for group in board.groups):
        yield _PUBLISHED
    if intervals:
        yield _INTERVAL


def _used(columns: Iterable[_Column], rows: Sequence[Row]) -> list[_Column]:
    return [column for column in columns if any(column.show(row).strip() for row in rows)]


# --- terminal ---------------------------------------------------------------------------------------------


def render(board: Leaderboard, console: Console) -> None:
    """Print a table for each judge, the notes below, and what was skipped.

    Foreign text is printed without its control characters and never read as markup. A narrow terminal does
    without what tells least; long names are folded.
    """
    say, footnotes = Cleaner(console.encoding), _Footnotes()
    rows = [row for group in board.groups for row in group.rows]
    if not rows:
        print_line(console, Text("No run and no published row matches."))
        _print_skipped(board, console, say)
        return
    table = _Table(console, say, rows, lambda row: say(_name(row)) + footnotes.mark(row))
    for group in board.groups:
        table.print_group(group)
        console.print()
    for number, text in footnotes:
        print_wrapped(console, Text(say(text)), lead=Text(f"[{number}]".ljust(5), style=_QUIET))
    for text in _below(board, intervals=table.shows(_CI95)):
        print_wrapped(console, Text(text, style=_QUIET))
    if not table.shows(_FROM):
        print_wrapped(console, Text(_MORE, style=_QUIET))
    _print_skipped(board, console, say)


def _print_skipped(board: Leaderboard, console: Console, say: Cleaner) -> None:
    for text in board.skipped:
        print_wrapped(console, Text(f"skipped: {say(text)}"), lead=Text("! ", style=_WARNING))


class _Table:
    """One layout for the tables of all judges, so that their columns stand below each other."""

    def __init__(
        self, console: Console, say: Cleaner, rows: Sequence[Row], name: Callable[[Row], str]
    ) -> None:
        self._console, self._say, self._name = console, say, name
        self._widths = {
            column: max(cell_len(column.header), *(cell_len(self._cell(column, row)) for row in rows))
            for column in {*_ALL, *chain.from_iterable(_NARROW)}
        }
        self._name_width = min(_MOST_NAME, max(cell_len(name(row)) for row in rows))
        self._columns, self._gap = self._fitting(rows)

    def _fitting(self, rows: Sequence[Row]) -> tuple[list[_Column], str]:
        for leave_out in range(len(_FIRST_TO_GO) + 1):
            columns = _used((column for column in _ALL if column not in _FIRST_TO_GO[:leave_out]), rows)
            for gap in (2, 1):
                if self._name_width + self._beside(columns, gap) <= self._console.width:
                    return columns, " " * gap
        for narrow in _NARROW:
            columns = _used(narrow, rows)
            left = self._console.width - self._beside(columns, 1)
            if left >= _LEAST_NAME:
                break
        self._name_width = min(self._name_width, max(_LEAST_NAME, left))
        return columns, " "

    def _beside(self, columns: Sequence[_Column], gap: int) -> int:
        return sum(self._widths[column] + gap for column in columns)

    def _cell(self, column: _Column, row: Row) -> str:
        return self._say(column.show(row)) if column.to_the_left else column.show(row)

    def shows(self, column: _Column) -> bool:
        """Whether there was space for a column."""
        return column in self._columns

    def print_group(self, group: Group) -> None:
        """Print the judge, the names of the columns, and the rows."""
        print_wrapped(self._console, Text(self._say(_title(group)), style=_TITLE))
        self._print("model", [column.header for column in self._columns], _QUIET)
        for above, rows in _parts(group):
            if above:
                print_line(self._console, Text(self._indent + above, style=_QUIET))
            for row in rows:
                self._print_row(row)

    def _print_row(self, row: Row) -> None:
        style = _LOCAL if row.status == LOCAL else ""
        name = Text(self._name(row)).wrap(self._console, self._name_width, overflow="fold")
        first, *more = (line.plain.rstrip() for line in name)
        self._print(first, [self._cell(column, row) for column in self._columns], style)
        for line in more:
            print_line(self._console, Text(self._indent + line, style=style))

    @property
    def _indent(self) -> str:
        """What stands before a name."""
        return " " * (self._widths[_RANK] + len(self._gap)) if self.shows(_RANK) else ""

    def _print(self, name: str, values: Sequence[str], style: str) -> None:
        cells = [
            _padded(value, self._widths[column], to_the_left=column.to_the_left)
            for value, column in zip(values, self._columns, strict=True)
        ]
        cells.insert(1 if self.shows(_RANK) else 0, _padded(name, self._name_width, to_the_left=True))
        print_line(self._console, Text(self._gap.join(cells).rstrip(), style=style))


def _padded(text: str, width: int, *, to_the_left: bool) -> str:
    space = " " * (width - cell_len(text))
    return text + space if to_the_left else space + text


# --- Markdown ---------------------------------------------------------------------------------------------


def to_markdown(board: Leaderboard) -> str:
    """Return a section with its tables for each judge, the notes as a numbered list, and what was skipped."""
    footnotes = _Footnotes()
    lines: list[str] = []
    everything = [row for group in board.groups for row in group.rows]
    columns = _used(_ALL, everything)
    for group in board.groups:
        lines += [f"### {_escaped(_title(group))}", ""]
        for above, rows in _parts(group):
            lines += [f"{above}:", ""] if above else []
            lines += [*_markdown_table(columns, rows, footnotes), ""]
    lines += [f"{number}. {_escaped(text)}" for number, text in footnotes]
    for text in _below(board, intervals=_CI95 in columns):
        lines += ["", f"{text}."]
    if board.skipped:
        lines += ["", "Skipped:", "", *(f"- {_escaped(text)}" for text in board.skipped)]
    return "\n".join(lines) + "\n"


def _markdown_table(columns: Sequence[_Column], rows: Sequence[Row], footnotes: _Footnotes) -> Iterator[str]:
    shown = [column for column in columns if column is not _RANK]
    yield _markdown_line(["#", "model", *(column.header for column in shown)])
    yield _markdown_line(["--:", "---", *("---" if column.to_the_left else "--:" for column in shown)])
    for row in rows:
        name = _escaped(_name(row)) + footnotes.mark(row)
        yield _markdown_line([_RANK.show(row), name, *(_escaped(column.show(row)) for column in shown)])


def _markdown_line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    return escape(Cleaner("utf-8")(text))
