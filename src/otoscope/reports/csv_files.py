"""Runs as CSV: ``samples.csv``, one line a sample, and ``scores.csv``, one line for each run and cell.

UTF-8, commas and line feeds; texts are quoted and numbers are not; what is not available is empty. A text
that a spreadsheet would take for a formula gets an apostrophe in front: ``samples.jsonl`` has the exact one.
``docs/columns.md`` says what each column means.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import fields

from otoscope.benchmark import CATEGORIES, TASKS, VIEWS
from otoscope.records import Answer, Json, Order, Outcome, Sample
from otoscope.reports.reported import Reported
from otoscope.scoring import Cell, Rule, Summary, result_line, result_of
from otoscope.scoring.addressing import addresses_judge
from otoscope.scoring.wording import in_another_language, says_it_cannot_hear
from otoscope.store import sample_to_line

Value = str | int | float | None

_PAIRS = ("ci95", "reference_ci95", "win_rate_ci95", "tie_rate_ci95", "loss_rate_ci95", "bounds")
"""Fields of a cell that hold two numbers: a column each."""
_OF_ORDER = ("n", "missing", "gpt_score", "reference_score", "win_rate")
_FORMULA = re.compile("[=+\\-@\t\r\n＝＋－＠]")
"""How a text begins that a spreadsheet would calculate; also in the full width of East Asian scripts."""
_UNFIT = re.compile("[\x00\ud800-\udfff]")
"""What UTF-8 cannot hold, and where a reader written in C would stop."""


def samples_csv(run: Reported) -> Iterator[str]:
    """Yield ``samples.csv`` line by line: the fields of ``samples.jsonl``, and what is odd about a sample.

    Samples outside of the summary's view are left out.
    """
    nobody = Outcome(Sample(next(iter(TASKS)), "", "", 0, "", "", "", "", ""), None)
    rule, control = run.rule, run.summary.control
    yield csv_line(_sample(nobody, rule, control))
    for outcome in run.outcomes():
        if outcome.sample.task in VIEWS[run.summary.view]:
            yield csv_line(_sample(outcome, rule, control).values())


def scores_csv(runs: Iterable[Reported]) -> str:
    """Return ``scores.csv``: every field of every cell of every run, under machine names."""
    none = Cell(n=0, scored=0, failed=0, pending=0)
    lines = [csv_line([*_ABOUT, "kind", "cell", *_numbers(none)])]
    for run in runs:
        about = _about(run)
        lines += [
            csv_line([*about, kind, name, *_numbers(cell).values()])
            for kind, name, cell in _cells(run.summary)
        ]
    return "".join(lines)


# --- samples ----------------------------------------------------------------------------------------------


def _sample(outcome: Outcome, rule: Rule, control: str | None) -> Json:
    result = result_line(outcome, rule, control=control)
    return {**sample_to_line(outcome.sample), **result, **_flags(outcome, rule)}


def _flags(outcome: Outcome, rule: Rule) -> Json:
    """Return what is odd about a sample: ``None`` without an answer; of the last, without both verdicts."""
    answer = outcome.answer if isinstance(outcome.answer, Answer) else None
    last = answer.replies[-1] if answer and answer.replies else None
    read = [rule.read(order, verdict) for order, verdict in outcome.verdicts.items() if order in rule.orders]
    results = [result_of(*scores) for scores in read if scores is not None]
    return {
        "blank": answer.blank if answer else None,
        "filtered": answer.filtered if answer else None,
        "cut_at_token_limit": last is not None and last.finish_reason == "length" if answer else None,
        "says_it_cannot_hear": says_it_cannot_hear(answer.text) if answer else None,
        "other_language": in_another_language(outcome.sample.question, answer.text) if answer else None,
        "addresses_judge": addresses_judge(answer.text) if answer else None,
        "orders_disagree": len(set(results)) > 1 if len(results) == len(Order) else None,
    }


# --- scores -----------------------------------------------------------------------------------------------

_ABOUT = (
    "run",
    "run_id",
    "label",
    "model",
    "control",
    "audio_policy",
    "judge",
    "judge_returned",
    "protocol",
    "do_swap",
    "scoring",
    "view",
)


def _about(run: Reported) -> list[Value]:
    summary = run.summary
    names = sorted((summary.observed.get("judge") or {}).get("names") or ())
    return [
        run.name,
        run.manifest.get("run_id"),
        summary.label,
        summary.model,
        summary.control,
        summary.audio["policy"],
        summary.judge,
        " ".join(names) or None,
        summary.protocol,
        summary.do_swap,
        summary.scoring,
        summary.view,
    ]


def _cells(summary: Summary) -> Iterator[tuple[str, str, Cell]]:
    yield "mean", "average", summary.average
    yield "mean", "mixed_audio", summary.mixed_audio
    yield "mean", "all_samples", summary.all_samples
    yield from (
        ("category", name, summary.categories[name]) for name in CATEGORIES if name in summary.categories
    )
    yield from (("task", name, cell) for name, cell in summary.tasks.items())
    yield from (("dataset", name, cell) for name, cell in summary.datasets.items())


def _numbers(cell: Cell) -> dict[str, Value]:
    """Return every field of a cell, those that hold several numbers spread over a column each."""
    numbers: dict[str, Value] = {}
    for field in fields(cell):
        value = getattr(cell, field.name)
        if field.name in _PAIRS:
            numbers[f"{field.name}_low"], numbers[f"{field.name}_high"] = value or (None, None)
        elif field.name == "orders":
            for order in Order:
                of_order = (value or {}).get(order.value) or {}
                numbers.update({f"{order.value}_{name}": of_order.get(name) for name in _OF_ORDER})
        else:
            numbers[field.name] = value
    return numbers


# --- the form ---------------------------------------------------------------------------------------------


def csv_line(values: Iterable[Value]) -> str:
    """Return one line: texts quoted and no formulas, numbers and truth values as they are, ``None`` empty."""
    return ",".join(map(_written, values)) + "\n"


def _written(value: Value) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        return str(value)
    text = _UNFIT.sub("\ufffd", value)
    if _FORMULA.match(text):
        text = f"'{text}"
    return '"' + text.replace('"', '""') + '"'
