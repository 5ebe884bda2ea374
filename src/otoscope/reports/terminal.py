"""A run's report on the terminal: one table and a few lines, so that it fits on a screen of 24 by 80.

Only ASCII is written besides the table's rule and foreign text, and nothing is told by colour alone.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from otoscope.benchmark import AVERAGE_PARTS, MIXED_PARTS, TASKS
from otoscope.config import ANSWER_PARAMETERS, JUDGE_PARAMETERS
from otoscope.reports.text import Cleaner, print_line, print_wrapped, short_count
from otoscope.scoring import FULL_COVERAGE, Cell, Summary

NOT_AVAILABLE = "n/a"

_FIRST = ("embedded_judge", "self_judged", "baseline", "prompt")
"""Warnings that change what every number below them means."""

_NAMES = {
    "speech": "Speech",
    "sound": "Sound",
    "music": "Music",
    "mixed_audio": "Mixed audio",
    "speech_and_sound": "Speech and sound",
    "speech_and_music": "Speech and music",
    "average": "Average",
    "all_samples": "All samples",
}
_TO_COPY = ("Run", "Next")
"""Lines that are never broken, so that a path or a command can be copied."""
_HEADLINE, _TOTAL, _GROUP, _TASK, _QUIET, _WARNING = "bold cyan", "bold", "bold", "", "dim", "bold yellow"


def render(summary: Summary, console: Console, *, run_path: Path | None = None) -> None:
    """Print the report of a run: what was measured and how, every mean with its counts, then the rest.

    ``run_path`` is where the run lies; it is named, with the next step where one is due. Text from models,
    judges and data is printed without its control characters and never read as markup.
    """
    say = Cleaner(console.encoding)
    # The line "Partial" says what that warning does, and has the numbers.
    warnings = [warning for warning in summary.warnings if warning["name"] != "partial"]
    _print_warnings(console, [warning for warning in warnings if warning["name"] in _FIRST], say)
    _print_report(summary, console, say, run_path)
    _print_warnings(console, [warning for warning in warnings if warning["name"] not in _FIRST], say)


def _print_report(summary: Summary, console: Console, say: Cleaner, run_path: Path | None) -> None:
    print_wrapped(console, _title(summary, say))
    print_wrapped(console, _how(summary, say))
    console.print()
    if _judged(summary):
        for line in _table(summary, console):
            print_line(console, line)
        console.print()
    for label, text in _notes(summary, say, run_path):
        lead = Text(label.ljust(10), style=_QUIET)
        if label in _TO_COPY:
            print_line(console, Text.assemble(lead, text))
        else:
            print_wrapped(console, Text(text), lead=lead)


def _print_warnings(console: Console, warnings: Iterable[Mapping[str, str]], say: Cleaner) -> None:
    for warning in warnings:
        print_wrapped(console, Text(say(warning["message"])), lead=Text("! ", style=_WARNING))


# --- the first lines --------------------------------------------------------------------------------------


def _title(summary: Summary, say: Cleaner) -> Text:
    title = Text(f"{_served(summary, 'model', summary.model, say)} on AIR-Bench Chat: ", style=_TOTAL)
    cell = summary.cell(summary.headline)
    if not _judged(summary):
        return title.append("not judged", style=_HEADLINE)
    title.append(f"{_NAMES[summary.headline]} {_score(cell.gpt_score)}", style=_HEADLINE)
    if cell.gpt_score is not None:
        beside = []
        if (low := _least(cell)) is not None:
            beside.append(f"at least {_score(low)}")
        if cell.partial and cell.gpt_score_full_weights is not None:
            beside.append(f"{_score(cell.gpt_score_full_weights)} with full weights")
        if beside:
            title.append(f" ({', '.join(beside)})")
    return title


def _how(summary: Summary, say: Cleaner) -> Text:
    if summary.judge is None:
        how = ["No judge was asked"]
    else:
        orders = "in both orders" if summary.do_swap else "in one order only (the reference first)"
        how = [f"Judged by {_served(summary, 'judge', summary.judge, say)} {orders}"]
        if summary.protocol is not None:
            how.append(f"{say(summary.protocol)} protocol")
        if summary.scoring != "default":
            how.append(f"{say(summary.scoring)} scoring")
    if summary.label:
        how.append(f"label {say(summary.label)}")
    how.extend(f"{say(name)}={say(value)}" for name, value in summary.tags.items())
    return Text(", ".join(how))


def _served(summary: Summary, role: str, name: str, say: Cleaner) -> str:
    """Return the name asked for, and the names the server returned where they are not just that."""
    names: Mapping[str, int] = (summary.observed.get(role) or {}).get("names") or {}
    returned = {served: count for served, count in names.items() if served != "not named"}
    if set(returned) <= {name}:
        return say(name)
    if "weights" in (summary.requested.get(role) or {}):
        return f"{say(name)} ({say(', '.join(returned))})"
    if len(returned) == 1:
        return f"{say(name)} (the server says {say(next(iter(returned)))})"
    most = sorted(returned.items(), key=lambda entry: (-entry[1], entry[0]))
    shown = ", ".join(f"{say(served)} {count:,} times" for served, count in most[:3])
    return f"{say(name)} (the server says {shown}{', and others' if len(most) > 3 else ''})"


# --- the table --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Column:
    header: str
    show: Callable[[Cell], str]


_SCORE = _Column("score", lambda cell: _score(cell.gpt_score))
_LEAST = _Column("least", lambda cell: "" if (low := _least(cell)) is None else _score(low))
_REFERENCE = _Column("ref.", lambda cell: _score(cell.reference_score))
_RATES = (
    _Column("win", lambda cell: _percent(cell.win_rate)),
    _Column("tie", lambda cell: _percent(cell.tie_rate)),
    _Column("loss", lambda cell: _percent(cell.loss_rate)),
)
_SCORED = _Column("scored/n", lambda cell: f"{cell.scored}/{cell.n}")
_FAILED = _Column("failed", lambda cell: str(cell.failed))
_PENDING = _Column("pending", lambda cell: str(cell.pending))
_FIRST_TO_GO = (_RATES[2], _RATES[1], _REFERENCE, _RATES[0])
"""What a narrow terminal does without: first what follows from the other columns."""


def _table(summary: Summary, console: Console) -> list[Text]:
    groups, totals = _rows(summary)
    rows = groups + totals
    columns, gap = _fitting(_columns([cell for _, cell, _ in rows]), rows, console.width)
    names = max(len(name) for name, _, _ in rows)
    widths = [_width(column, rows) for column in columns]

    def line(name: str, values: Iterable[str], style: str) -> Text:
        cells = [value.rjust(width) for value, width in zip(values, widths, strict=True)]
        return Text(gap.join([name.ljust(names), *cells]), style=style)

    def row(name: str, cell: Cell, style: str) -> Text:
        return line(name, [column.show(cell) for column in columns], style)

    header = line("", [column.header for column in columns], _QUIET)
    rule = Text(("-" if console.options.ascii_only else "─") * len(header.plain), style=_QUIET)
    return [header, *(row(*entry) for entry in groups), rule, *(row(*entry) for entry in totals)]


_Row = tuple[str, Cell, str]


def _rows(summary: Summary) -> tuple[list[_Row], list[_Row]]:
    """Return the rows of the paper's categories with their tasks, and those of the two means over all."""
    groups: list[_Row] = []
    for group in AVERAGE_PARTS:
        cell = summary.mixed_audio if group == "mixed_audio" else summary.categories.get(group)
        if cell is None or cell.n == 0:
            continue
        groups.append((_NAMES[group], cell, _GROUP))
        members = MIXED_PARTS if group == "mixed_audio" else (group,)
        groups.extend(
            (f"  {task}", own, _TASK)
            for task, own in summary.tasks.items()
            if TASKS[task].category in members
        )
    everything = (_NAMES["all_samples"], summary.all_samples, _TASK)
    return groups, [(_NAMES["average"], summary.average, _TOTAL), everything]


def _columns(cells: Sequence[Cell]) -> list[_Column]:
    """Return the columns that this run needs: means nobody has yet are not worth four columns of n/a."""
    columns = [_SCORE]
    if any(_least(cell) is not None for cell in cells):
        columns.append(_LEAST)
    if any(cell.scored for cell in cells):
        columns.extend([_REFERENCE, *_RATES])
    columns.extend([_SCORED, _FAILED])
    if any(cell.pending for cell in cells):
        columns.append(_PENDING)
    return columns


def _fitting(columns: list[_Column], rows: Sequence[_Row], width: int) -> tuple[list[_Column], str]:
    """Return the columns that fit, and what stands between them."""
    names = max(len(name) for name, _, _ in rows)
    for leave_out in range(len(_FIRST_TO_GO) + 1):
        kept = [column for column in columns if column not in _FIRST_TO_GO[:leave_out]]
        needed = names + sum(_width(column, rows) for column in kept)
        for gap in (2, 1):
            if needed + gap * len(kept) <= width:
                return kept, " " * gap
    return kept, " "


def _width(column: _Column, rows: Sequence[_Row]) -> int:
    return max(len(column.header), *(len(column.show(cell)) for _, cell, _ in rows))


# --- the lines below --------------------------------------------------------------------------------------


def _notes(summary: Summary, say: Cleaner, run_path: Path | None) -> Iterator[tuple[str, str]]:
    """Yield a label and a text for each line below the table."""
    everything = summary.all_samples
    if _judged(summary):
        yield from _why_not_available(summary)
        if any(_least(cell) is not None for cell in _all_cells(summary)):
            yield "Least", "the mean with failed samples counted as 0"
        if summary.partial and everything.scored:
            yield "Partial", _full_weights(summary)
    yield "Samples", _samples(summary, say)
    if everything.failed and (not everything.scored or _least(everything) is not None):
        yield "Failed", _where_failed(summary, say)
    if everything.scored:
        yield "Position", _position(summary)
    if used := _used(summary):
        yield "Tokens", used
    for role in ("model", "judge"):
        if sent := _sent(summary, role, say):
            yield "Sent", f"to the {role}: {sent}"
    if run_path is not None:
        yield "Run", say(str(run_path))
        if not _judged(summary):
            yield "Next", f"otoscope judge {say(shlex.quote(str(run_path)))}"


def _why_not_available(summary: Summary) -> Iterator[tuple[str, str]]:
    everything = summary.all_samples
    if not everything.scored:
        why = "no sample is scored yet" if everything.failed < max(1, everything.n) else "every sample failed"
        yield "Scores", f"{NOT_AVAILABLE} because {why}"
        return
    parts = {**summary.categories, "mixed_audio": summary.mixed_audio}
    means = (("Mixed", summary.mixed_audio, MIXED_PARTS), ("Average", summary.average, AVERAGE_PARTS))
    for label, mean, needed in means:
        without = [_NAMES[part] for part in needed if part not in parts or parts[part].gpt_score is None]
        if mean.n and without:
            yield label, f"{NOT_AVAILABLE} because it needs a score in {_listed(without)} too"


def _full_weights(summary: Summary) -> str:
    names = (*AVERAGE_PARTS, "average", "all_samples")
    cells = {**summary.categories, **{name: summary.cell(name) for name in names[-3:]}}
    partial = [(name, cells[name]) for name in names if name in cells and cells[name].partial]
    means = {_NAMES[name]: cell.gpt_score_full_weights for name, cell in partial if cell.n}
    shown = ", ".join(f"{name} {_score(mean)}" for name, mean in means.items())
    if all(mean is None for mean in means.values()):
        shown = f"{NOT_AVAILABLE}, since tasks are missing"
    return f"not the full set's shares of tasks; with those: {shown}"


def _samples(summary: Summary, say: Cleaner) -> str:
    cell = summary.all_samples
    kinds: Mapping[str, int] = summary.counts.get("failures") or {}
    most = sorted(kinds.items(), key=lambda entry: (-entry[1], entry[0]))
    failed = f" ({', '.join(f'{say(kind)} {count:,}' for kind, count in most)})" if most else ""
    text = f"{cell.scored:,} scored + {cell.failed:,} failed{failed} + {cell.pending:,} pending = {cell.n:,}"
    if not _judged(summary):
        text += f"; {summary.answers.get('answered', 0):,} answered"
    return text


def _where_failed(summary: Summary, say: Cleaner) -> str:
    stages: Mapping[str, int] = summary.counts.get("failed_at") or {}
    where = ", ".join(f"{count:,} at the {say(stage)}" for stage, count in stages.items())
    return f"{where}; each one's reason is in samples.jsonl"


def _position(summary: Summary) -> str:
    answer = summary.position.get("answer_effect")
    reference = summary.position.get("reference_effect")
    disagree = summary.position.get("orders_disagree")
    if answer is None or reference is None:
        return f"{NOT_AVAILABLE}, since it takes both orders"
    told = (
        f"first place: answer {answer:+.2f}, reference {reference:+.2f}; "
        f"orders disagree in {_percent(disagree)}"
    )
    greedy = summary.position.get("greedy_tie_rate")
    return told if greedy is None else f"{told}; the likeliest whole scores tie in {_percent(greedy)}"


def _used(summary: Summary) -> str:
    used = []
    for role in ("model", "judge"):
        calls: Mapping[str, int] = summary.usage.get(role) or {}
        if not calls.get("replies"):
            continue
        into, out = calls.get("prompt_tokens", 0), calls.get("completion_tokens", 0)
        tokens = f"{short_count(into)} in, {short_count(out)} out" if into or out else "not reported"
        used.append(f"{role} {tokens}")
    timings = [timing for timing in summary.timing.values() if timing]
    if timings:
        span = max(timing["last_at"] for timing in timings) - min(timing["first_at"] for timing in timings)
        used.append(f"over {_duration(span)}")
    return "; ".join(used)


def _sent(summary: Summary, role: str, say: Cleaner) -> str:
    """Return what was really sent beside the messages, where that is not just the protocol's."""
    usual = ANSWER_PARAMETERS if role == "model" else JUDGE_PARAMETERS.get(summary.protocol or "", {})
    variants: Sequence[Mapping[str, Any]] = (summary.observed.get(role) or {}).get("parameters") or ()
    embedded = "weights" in (summary.requested.get(role) or {})
    if embedded or all(variant["sent"] == usual for variant in variants):
        return ""
    texts = []
    for variant in variants[:3]:
        sent = ", ".join(f"{name} {json.dumps(value)}" for name, value in variant["sent"].items())
        often = f" ({variant['replies']:,} times)" if len(variants) > 1 else ""
        texts.append(say(f"{sent or 'nothing'}{often}"))
    return "; ".join(texts) + ("; and others" if len(variants) > 3 else "")


# --- words and numbers ------------------------------------------------------------------------------------


def _judged(summary: Summary) -> bool:
    return summary.judge is not None


def _all_cells(summary: Summary) -> list[Cell]:
    groups, totals = _rows(summary)
    return [cell for _, cell, _ in groups + totals]


def _least(cell: Cell) -> float | None:
    """Return the lower bound of a mean that too few samples carry, and ``None`` for any other."""
    if cell.bounds is None or cell.scored >= FULL_COVERAGE * (cell.scored + cell.failed):
        return None
    return cell.bounds[0]


def _score(value: float | None) -> str:
    return NOT_AVAILABLE if value is None or not math.isfinite(value) else f"{value:.2f}"


def _percent(value: float | None) -> str:
    return NOT_AVAILABLE if value is None or not math.isfinite(value) else f"{100 * value:.0f}%"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
