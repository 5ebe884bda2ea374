"""A run's report on the terminal: one table, a few lines, and the warnings.

It fits on a screen of 24 by 80, warnings aside: a window that is not tall enough for the tasks' rows gets
the categories alone.

Only ASCII is written besides the table's rule and foreign text, and nothing is told by colour alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from otoscope.benchmark import AVERAGE_PARTS, MIXED_PARTS, TASKS
from otoscope.config import ANSWER_PARAMETERS, JUDGE_PARAMETERS
from otoscope.records import Order
from otoscope.reports.blocks import warning_text
from otoscope.reports.counts import short_count
from otoscope.reports.text import Cleaner, print_line, print_wrapped
from otoscope.reports.told import (
    audio_told,
    cost_told,
    flagged_keys,
    names_returned,
    scoring_words,
    with_control,
)
from otoscope.scoring import CONTROL_WARNINGS, Cell, Summary
from otoscope.shell import shell_command
from otoscope.texts import Catalogue, catalogue

NOT_AVAILABLE = "n/a"

_CONTROLS = frozenset(CONTROL_WARNINGS.values())
_FIRST = (
    *_CONTROLS, "embedded_judge", "self_judged", "baseline", "prompt", "audio_policy", "shard",
    "missing_shards",
)  # fmt: skip
"""Warnings that change what every number below them means."""

_TO_COPY = ("run", "next")
"""Lines that are never broken, so that a path or a command can be copied."""
_KEYS = 3
"""Keys of flagged answers that are listed."""
_TALL = 34
"""Lines of a window that has room for a row of each task."""
_HEADLINE, _TOTAL, _GROUP, _TASK, _QUIET, _WARNING = "bold cyan", "bold", "bold", "", "dim", "bold yellow"


def render(summary: Summary, console: Console, *, run_path: Path | None = None, language: str = "en") -> None:
    """Print the report of a run: what was measured and how, every mean with its counts, then the rest.

    ``run_path`` is where the run lies; it is named, with the next step where one is due. Text from models,
    judges and data is printed without its control characters and never read as markup.
    """
    _Report(summary, console, catalogue(language), run_path).print()


@dataclass(frozen=True, slots=True)
class _Column:
    header: str
    """The key of its heading, after ``terminal.column.``."""
    show: Callable[[Cell], str]


_SCORE = _Column("score", lambda cell: _score(cell.gpt_score))
_INTERVAL = _Column("interval", lambda cell: _range(cell.ci95))
_LEAST = _Column("least", lambda cell: "" if (low := cell.lower_bound) is None else _score(low))
_REFERENCE = _Column("reference", lambda cell: _score(cell.reference_score))
_RELATIVE = _Column("relative", lambda cell: _points(cell.relative_score))
_RATES = (
    _Column("win", lambda cell: _percent(cell.win_rate)),
    _Column("tie", lambda cell: _percent(cell.tie_rate)),
    _Column("loss", lambda cell: _percent(cell.loss_rate)),
)
_SCORED = _Column("scored", lambda cell: f"{cell.scored}/{cell.n}")
_FAILED = _Column("failed", lambda cell: str(cell.failed))
_PENDING = _Column("pending", lambda cell: str(cell.pending))
_ORDERS = (
    _Column("reference_first", lambda cell: _of_order(cell, Order.REFERENCE_FIRST)),
    _Column("answer_first", lambda cell: _of_order(cell, Order.ANSWER_FIRST)),
)
"""Under official scoring: each order's own mean and number of replies."""
_FIRST_TO_GO = (_RELATIVE, _RATES[2], _RATES[1], _REFERENCE, _RATES[0], *_ORDERS, _FAILED)
"""What a narrow terminal does without: first what follows from the other columns."""

_Row = tuple[str, Cell, str]
"""A name, its numbers and its style."""


class _Report:
    """One report being printed."""

    def __init__(self, summary: Summary, console: Console, texts: Catalogue, run_path: Path | None) -> None:
        self._summary = summary
        self._console = console
        self._texts = texts
        self._run_path = run_path
        self._clean = Cleaner(console.encoding)
        self._judged = summary.judge is not None

    def print(self) -> None:
        """Print all of it."""
        # The line "Partial" says what that warning does, and has the numbers.
        warnings = [warning for warning in self._summary.warnings if warning["name"] != "partial"]
        self._print_warnings([warning for warning in warnings if warning["name"] in _FIRST])
        print_wrapped(self._console, self._title())
        print_wrapped(self._console, Text(self._how()))
        self._console.print()
        if self._judged:
            for line in self._table():
                print_line(self._console, line)
            self._console.print()
        self._print_notes(list(self._notes()))
        self._print_warnings([warning for warning in warnings if warning["name"] not in _FIRST])

    def _print_notes(self, notes: Sequence[tuple[str, str]]) -> None:
        labels = {name: self._say(f"label.{name}") for name, _ in notes}
        width = max(9, *map(cell_len, labels.values())) + 1
        for name, text in notes:
            lead = Text(set_cell_size(labels[name], width), style=_QUIET)
            if name in _TO_COPY:
                print_line(self._console, Text.assemble(lead, text))
            else:
                print_wrapped(self._console, Text(text), lead=lead)

    def _print_warnings(self, warnings: Iterable[Mapping[str, Any]]) -> None:
        for warning in warnings:
            style = _TOTAL if warning["name"] in _CONTROLS else ""
            message = Text(self._clean(warning_text(warning, self._texts)), style=style)
            print_wrapped(self._console, message, lead=Text("! ", style=_WARNING))

    def _say(self, key: str, **values: Any) -> str:
        return self._clean(self._texts(f"terminal.{key}", **values))

    def _name(self, cell: str) -> str:
        return self._clean(self._texts(f"cell.{cell}"))

    # --- the first lines ----------------------------------------------------------------------------------

    def _title(self) -> Text:
        summary = self._summary
        model = with_control(self._served("model", summary.model), summary.control, self._texts)
        title = Text(f"{self._say('title', model=model)} ", style=_TOTAL)
        cell = summary.cell(summary.headline)
        if not self._judged:
            return title.append(self._say("not_judged"), style=_HEADLINE)
        title.append(f"{self._name(summary.headline)} {_score(cell.gpt_score)}", style=_HEADLINE)
        if cell.gpt_score is not None:
            title.append(_brackets(cell.ci95))
            beside = []
            if (low := cell.lower_bound) is not None:
                beside.append(self._say("at_least", score=_score(low)))
            full_weights = _score(cell.gpt_score_full_weights)
            if cell.partial and full_weights not in (NOT_AVAILABLE, _score(cell.gpt_score)):
                beside.append(self._say("with_full_weights", score=full_weights))
            if beside:
                title.append(f" ({', '.join(beside)})")
        return title

    def _how(self) -> str:
        summary = self._summary
        if summary.judge is None:
            how = [self._say("no_judge")]
        else:
            orders = self._say("both_orders" if summary.do_swap else "one_order")
            how = [self._say("judged_by", judge=self._served("judge", summary.judge), orders=orders)]
            if summary.protocol is not None:
                how.append(self._say("protocol", protocol=summary.protocol))
            if summary.scoring == "official":
                key, values = scoring_words(summary)
                how.append(self._clean(self._texts(key, **values)))
            if summary.view != "full":
                how.append(self._say(f"view.{summary.view}"))
        if summary.label:
            how.append(self._say("label", label=summary.label))
        how.extend(f"{self._clean(name)}={self._clean(value)}" for name, value in summary.tags.items())
        return ", ".join(how)

    def _served(self, role: str, name: str) -> str:
        """Return the name asked for, and the names the server returned where they are not just that."""
        clean, returned = self._clean, names_returned(self._summary, role)
        if not returned:
            return clean(name)
        if "weights" in (self._summary.requested.get(role) or {}):
            return f"{clean(name)} ({clean(', '.join(one for one, _ in returned))})"
        shown = [self._say("times", what=one, count=f"{count:,}") for one, count in returned[:3]]
        if len(returned) == 1:
            shown = [clean(returned[0][0])]
        shown += [self._say("and_others")] if len(returned) > 3 else []
        return f"{clean(name)} ({self._say('server_says', names=', '.join(shown))})"

    # --- the table ----------------------------------------------------------------------------------------

    def _table(self) -> list[Text]:
        groups, totals = self._rows()
        if self._console.is_terminal and self._console.height < _TALL:
            groups = [entry for entry in groups if entry[2] != _TASK]
        rows = groups + totals
        columns, gap = self._fitting(_columns([cell for _, cell, _ in rows]), rows)
        names = max(cell_len(name) for name, _, _ in rows)
        widths = [self._width(column, rows) for column in columns]

        def line(name: str, values: Iterable[str], style: str) -> Text:
            cells = [_right(value, width) for value, width in zip(values, widths, strict=True)]
            return Text(gap.join([set_cell_size(name, names), *cells]), style=style)

        header = line("", [self._header(column) for column in columns], _QUIET)
        shown = {id(entry): line(entry[0], [c.show(entry[1]) for c in columns], entry[2]) for entry in rows}
        rule = ("-" if self._console.options.ascii_only else "─") * cell_len(header.plain)
        return [
            header,
            *(shown[id(entry)] for entry in groups),
            Text(rule, style=_QUIET),
            *(shown[id(entry)] for entry in totals),
        ]

    def _rows(self) -> tuple[list[_Row], list[_Row]]:
        """Return the rows of the paper's categories with their tasks, and those of the two means over all."""
        summary = self._summary
        groups: list[_Row] = []
        for group in AVERAGE_PARTS:
            cell = summary.mixed_audio if group == "mixed_audio" else summary.categories.get(group)
            if cell is None or cell.n == 0:
                continue
            groups.append((self._name(group), cell, _GROUP))
            members = MIXED_PARTS if group == "mixed_audio" else (group,)
            groups.extend(
                (f"  {task}", own, _TASK)
                for task, own in summary.tasks.items()
                if TASKS[task].category in members
            )
        everything = (self._name("all_samples"), summary.all_samples, "")
        return groups, [(self._name("average"), summary.average, _TOTAL), everything]

    def _fitting(self, columns: list[_Column], rows: Sequence[_Row]) -> tuple[list[_Column], str]:
        """Return the columns that fit, and what stands between them."""
        names = max(cell_len(name) for name, _, _ in rows)
        for leave_out in range(len(_FIRST_TO_GO) + 1):
            kept = [column for column in columns if column not in _FIRST_TO_GO[:leave_out]]
            needed = names + sum(self._width(column, rows) for column in kept)
            for gap in (2, 1):
                if needed + gap * len(kept) <= self._console.width:
                    return kept, " " * gap
        return kept, " "

    def _width(self, column: _Column, rows: Sequence[_Row]) -> int:
        return max(cell_len(self._header(column)), *(len(column.show(cell)) for _, cell, _ in rows))

    def _header(self, column: _Column) -> str:
        return self._say(f"column.{column.header}")

    # --- the lines below ----------------------------------------------------------------------------------

    def _notes(self) -> Iterator[tuple[str, str]]:
        """Yield the name of a label and a text for each line below the table."""
        summary, everything = self._summary, self._summary.all_samples
        if self._judged:
            yield from self._why_not_available()
            if any(cell.lower_bound is not None for cell in self._all_cells()):
                yield "least", self._say("least")
            if everything.partial and everything.scored:
                yield "partial", self._full_weights()
            if everything.scored:
                known = any(cell.ci95 is not None for cell in self._all_cells())
                yield "intervals", self._say("intervals" if known else "no_intervals")
        yield "samples", self._samples()
        if audio := [self._clean(self._texts(key, **values)) for key, values in audio_told(summary)]:
            yield "audio", self._texts("table.list_separator").join(audio)
        if (flagged := flagged_keys(summary, self._texts, shown=_KEYS)) is not None:
            yield "flagged", self._clean(flagged)
        if everything.orders:
            yield "replies", self._replies(everything.orders)
        if everything.failed and (not everything.scored or everything.lower_bound is not None):
            yield "failed", self._where_failed()
        if everything.scored:
            yield "position", self._position()
            yield "judge", self._judge()
            yield "length", self._length()
        if used := self._used():
            yield "tokens", used
        if cost := [self._clean(self._texts(key, **values)) for key, values in cost_told(summary)]:
            yield "cost", self._texts("cost.separator").join(cost)
        for role in ("model", "judge"):
            if sent := self._sent(role):
                yield "sent", self._say(f"sent_to_{role}", sent=sent)
        if self._run_path is not None:
            yield "run", self._clean(str(self._run_path))
            if not self._judged:
                yield "next", f"otoscope judge {self._clean(shell_command([str(self._run_path)]))}"

    def _why_not_available(self) -> Iterator[tuple[str, str]]:
        summary, everything = self._summary, self._summary.all_samples
        if not everything.scored:
            if not everything.n:
                why = "no_samples" if summary.view == "full" else "not_in_view"
            else:
                why = "every_sample_failed" if everything.failed == everything.n else "no_sample_scored"
            yield "scores", self._say(why)
            return
        parts = {**summary.categories, "mixed_audio": summary.mixed_audio}
        means = (("mixed", summary.mixed_audio, MIXED_PARTS), ("average", summary.average, AVERAGE_PARTS))
        for label, mean, needed in means:
            lacking = [self._name(p) for p in needed if p not in parts or parts[p].gpt_score is None]
            if mean.n and lacking:
                yield label, self._say("needs_parts", parts=self._listed(lacking))

    def _full_weights(self) -> str:
        summary = self._summary
        names = (*AVERAGE_PARTS, "average", "all_samples")
        cells = {**summary.categories, **{name: summary.cell(name) for name in names[-3:]}}
        partial = [(name, cells[name]) for name in names if name in cells and cells[name].partial]
        means = {self._name(name): cell.gpt_score_full_weights for name, cell in partial if cell.n}
        if all(mean is None for mean in means.values()):
            return self._say("no_full_weights")
        return self._say("full_weights", means=", ".join(f"{n} {_score(m)}" for n, m in means.items()))

    def _samples(self) -> str:
        summary, cell = self._summary, self._summary.all_samples
        kinds: Mapping[str, int] = summary.counts.get("failures") or {}
        most = sorted(kinds.items(), key=lambda entry: (-entry[1], entry[0]))
        by_kind = f" ({', '.join(f'{self._clean(kind)} {count:,}' for kind, count in most)})" if most else ""
        text = self._say(
            "samples",
            scored=f"{cell.scored:,}",
            failed=f"{cell.failed:,}",
            by_kind=by_kind,
            pending=f"{cell.pending:,}",
            n=f"{cell.n:,}",
        )
        if not self._judged:
            text += self._say("answered", count=f"{summary.answers.get('answered', 0):,}")
        return text

    def _replies(self, orders: Mapping[str, Mapping[str, float | None]]) -> str:
        """Return how many replies count by the official rule, in each order."""
        told = []
        for name, order in orders.items():
            counted = int(order["n"] or 0)
            of = counted + int(order["missing"] or 0)
            told.append(self._say(f"replies_{name}", counted=f"{counted:,}", of=f"{of:,}"))
        return "; ".join(told)

    def _where_failed(self) -> str:
        stages: Mapping[str, int] = self._summary.counts.get("failed_at") or {}
        where = [self._say(f"failed_at_{stage}", count=f"{count:,}") for stage, count in stages.items()]
        return self._say("where_failed", where=", ".join(where))

    def _position(self) -> str:
        position = self._summary.position
        answer, reference = position.get("answer_effect"), position.get("reference_effect")
        if answer is None or reference is None:
            return self._say("no_position")
        told = self._say(
            "position",
            answer=f"{answer:+.2f}{_signed_brackets(position.get('answer_effect_ci95'))}",
            reference=f"{reference:+.2f}{_signed_brackets(position.get('reference_effect_ci95'))}",
            share=_percent(position.get("orders_disagree")),
        )
        greedy = position.get("greedy_tie_rate")
        return told if greedy is None else told + self._say("greedy_ties", share=_percent(greedy))

    def _judge(self) -> str:
        """Return how the judge answered."""
        counts: Mapping[str, Any] = self._summary.verdicts
        told = [self._say("verdicts", count=f"{counts.get('judged', 0):,}")]
        common = counts.get("most_common_pair")
        if common and common["replies"] > 1:
            often = self._say("most_often", scores=common["scores"], count=f"{common['replies']:,}")
            told.append(often)
        zero, ten = counts.get("answer_scored_0", 0), counts.get("answer_scored_10", 0)
        told.append(self._say("extremes", zero=f"{zero:,}", ten=f"{ten:,}"))
        rare = {name: counts.get(name, 0) for name in ("decimal", "asked_again", "failed")}
        told += [self._say(f"verdicts_{name}", count=f"{count:,}") for name, count in rare.items() if count]
        return ", ".join(told)

    def _length(self) -> str:
        lengths: Mapping[str, Any] = self._summary.length
        if lengths["answer"] is None:
            return self._say("no_lengths")
        told = self._say(
            "length", answer=f"{lengths['answer']:,.0f}", reference=f"{lengths['reference']:,.0f}"
        )
        related = lengths["correlation"]
        if related is None:
            return told
        brackets = _signed_brackets(lengths["correlation_ci95"])
        return told + self._say("length_correlation", correlation=f"{related:+.2f}{brackets}")

    def _used(self) -> str:
        used = []
        for role in ("model", "judge"):
            calls: Mapping[str, int] = self._summary.usage.get(role) or {}
            if not calls.get("replies"):
                continue
            into, out = calls.get("prompt_tokens", 0), calls.get("completion_tokens", 0)
            counted = self._say("tokens", into=short_count(into), out=short_count(out))
            used.append(self._say(f"used_{role}", tokens=counted if into or out else self._say("no_tokens")))
        timings = [timing for timing in self._summary.timing.values() if timing]
        if timings:
            first = min(timing["first_at"] for timing in timings)
            used.append(self._over(max(timing["last_at"] for timing in timings) - first))
        return "; ".join(used)

    def _over(self, seconds: float) -> str:
        if seconds < 90:
            return self._say("over_seconds", seconds=f"{seconds:.0f}")
        minutes = round(seconds / 60)
        if minutes < 60:
            return self._say("over_minutes", minutes=minutes)
        return self._say("over_hours", hours=minutes // 60, minutes=f"{minutes % 60:02d}")

    def _sent(self, role: str) -> str:
        """Return what was really sent beside the messages, where that is not just the protocol's."""
        summary = self._summary
        usual = ANSWER_PARAMETERS if role == "model" else JUDGE_PARAMETERS.get(summary.protocol or "", {})
        variants: Sequence[Mapping[str, Any]] = (summary.observed.get(role) or {}).get("parameters") or ()
        requested = summary.requested.get(role) or {}
        told = not {"weights", "imported"} & set(requested)
        if not told or all(variant["sent"] == usual for variant in variants):
            return ""
        texts = []
        for variant in variants[:3]:
            sent = ", ".join(f"{name} {json.dumps(value)}" for name, value in variant["sent"].items())
            sent = sent or self._say("nothing")
            if len(variants) > 1:
                sent = self._say("often", what=sent, count=f"{variant['replies']:,}")
            texts.append(self._clean(sent))
        texts += [self._say("and_others")] if len(variants) > 3 else []
        return "; ".join(texts)

    def _all_cells(self) -> list[Cell]:
        groups, totals = self._rows()
        return [cell for _, cell, _ in groups + totals]

    def _listed(self, names: Sequence[str]) -> str:
        if len(names) == 1:
            return names[0]
        return self._say("listed", first=", ".join(names[:-1]), last=names[-1])


def _columns(cells: Sequence[Cell]) -> list[_Column]:
    """Return the columns that this run needs: means nobody has yet are not worth four columns of n/a."""
    columns = [_SCORE]
    if any(cell.ci95 is not None for cell in cells):
        columns.append(_INTERVAL)
    if any(cell.lower_bound is not None for cell in cells):
        columns.append(_LEAST)
    if any(cell.scored for cell in cells):
        columns.extend([_REFERENCE, _RELATIVE, *_RATES])
    if any(cell.orders for cell in cells):
        columns.extend(_ORDERS)
    columns.extend([_SCORED, _FAILED])
    if any(cell.pending for cell in cells):
        columns.append(_PENDING)
    return columns


# --- numbers ----------------------------------------------------------------------------------------------


def _right(value: str, width: int) -> str:
    return " " * (width - cell_len(value)) + value


def _score(value: float | None) -> str:
    return NOT_AVAILABLE if value is None or not math.isfinite(value) else f"{value:.2f}"


def _percent(value: float | None) -> str:
    return NOT_AVAILABLE if value is None or not math.isfinite(value) else f"{100 * value:.0f}%"


def _points(value: float | None) -> str:
    return NOT_AVAILABLE if value is None or not math.isfinite(value) else f"{value:.0f}"


def _range(interval: Sequence[float] | None) -> str:
    if interval is None:
        return NOT_AVAILABLE
    # Official scoring lets negative scores pass: "-3.52-10.00" could not be read.
    between = " to " if interval[0] < 0 else "-"
    return f"{interval[0]:.2f}{between}{interval[1]:.2f}"


def _brackets(interval: Sequence[float] | None) -> str:
    return "" if interval is None else f" [{interval[0]:.2f}, {interval[1]:.2f}]"


def _signed_brackets(interval: Sequence[float] | None) -> str:
    return "" if interval is None else f" [{interval[0]:+.2f}, {interval[1]:+.2f}]"


def _of_order(cell: Cell, order: Order) -> str:
    one = (cell.orders or {}).get(order.value)
    return NOT_AVAILABLE if one is None else f"{_score(one['gpt_score'])} ({one['n']:.0f})"
