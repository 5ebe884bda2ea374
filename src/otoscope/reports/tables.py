"""What a written report says: a table with a row for each run, as in a paper, and all about each run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from otoscope.benchmark import AVERAGE_PARTS, MIXED_PARTS, TASKS
from otoscope.config.audio_policy import AS_IS
from otoscope.records import canonical_digest
from otoscope.reports.blocks import (
    NOT_AVAILABLE,
    Block,
    Heading,
    Paragraph,
    Score,
    Table,
    Value,
    coverage,
    inert,
    number,
    percent,
    warning_text,
)
from otoscope.reports.examples import examples
from otoscope.reports.protocol_card import protocol_card, served
from otoscope.reports.reported import Reported
from otoscope.reports.told import control_mark, flagged_keys, scoring_words, with_control
from otoscope.scoring import Cell, Summary
from otoscope.texts import Catalogue, catalogue

MEANS = (*AVERAGE_PARTS, "average")
"""The columns of the paper's own table."""

_SAID_BELOW = frozenset(
    "embedded_judge self_judged same_family baseline prompt foreign_prompt several_judges pending not_judged "
    "no_swap first_n shard missing_shards negative_scores audio_ignored cannot_hear addresses_judge "
    "clips_shortened".split()
)
"""Warnings without which the numbers above them would be misread. ``partial`` has a note with numbers."""

_KEYS = 50
"""Keys of flagged answers that an appendix lists."""


def document(runs: Sequence[Reported], say: Catalogue, *, appendix: bool) -> Iterator[Block]:
    """Yield the report of some runs: a table for each judge, and with ``appendix`` all about each run.

    Runs of different judges, or of one that was asked differently, never stand in one table: their scores
    are not comparable; nor do controls with evaluations. Runs keep their order: nothing is ranked.
    """
    for position, group in enumerate(by_judge(runs)):
        yield _means(group, say, "chat" if position == 0 else f"chat-{position + 1}")
    if appendix:
        for position, run in enumerate(runs):
            yield from _appendix(run, say, f"run-{position + 1}")


def by_judge(runs: Sequence[Reported]) -> list[list[Reported]]:
    """Return the runs apart by control, by who judged them, how, and by which rule, in the order given."""
    groups: dict[object, list[Reported]] = {}
    for run in runs:
        groups.setdefault(_judged_how(run.summary), []).append(run)
    return list(groups.values())


def _judged_how(summary: Summary) -> tuple[object, ...]:
    """Return what must be equal for two runs' scores to stand side by side."""
    asked = {
        name: value for name, value in (summary.requested.get("judge") or {}).items() if name != "api_url"
    }
    returned = frozenset((summary.observed.get("judge") or {}).get("names") or ())
    rules = summary.do_swap, summary.scoring, summary.view
    return summary.control, canonical_digest(asked), returned, *rules


# --- the paper's table ------------------------------------------------------------------------------------


def _means(runs: Sequence[Reported], say: Catalogue, name: str) -> Table:
    cells = [[_cell(run.summary, mean) for mean in MEANS] for run in runs]
    rows: list[list[Value]] = [
        [name, *map(Score.of, of_run)] for name, of_run in zip(_names(runs), cells, strict=True)
    ]
    return Table(
        name,
        _caption(runs, say),
        [say("table.run"), *(say(f"cell.{mean}") for mean in MEANS)],
        rows,
        list(
            _notes(
                runs,
                say,
                any_least=any(c is not None and c.lower_bound is not None for row in cells for c in row),
            )
        ),
        listed_as=with_control("AIR-Bench Chat", runs[0].summary.control, catalogue()),
    )


def _cell(summary: Summary, name: str) -> Cell | None:
    try:
        return summary.cell(name)
    except KeyError:
        return None


def _caption(runs: Sequence[Reported], say: Catalogue) -> str:
    summary = runs[0].summary
    sentences = []
    if (mark := control_mark(summary, say)) is not None:
        sentences.append(say("table.sentence", text=mark))
    if summary.judge is None:
        sentences.append(say("table.caption_not_judged"))
    else:
        protocol = [say("table.protocol", protocol=inert(summary.protocol))] if summary.protocol else []
        how = [
            *protocol,
            say("table.both_orders" if summary.do_swap else "table.one_order"),
            scoring_name(summary, say),
        ]
        judge = served(summary, "judge", say)
        sentences.append(say("table.caption", judge=judge, how=say("table.list_separator").join(how)))
        sentences.append(say("table.intervals"))
    sentences.extend(_audio_policies(runs, say))
    if summary.view != "full":
        sentences.append(say("table.paper_view"))
    counted = {name: _coverage(run.summary, say) for name, run in zip(_names(runs), runs, strict=True)}
    told = set(counted.values())
    if len(runs) > 1 and len(told) == 1:
        sentences.append(say("table.each_run", counts=told.pop()))
    elif len(runs) > 1:
        each = [say("table.of_run", run=name, text=text) for name, text in counted.items()]
        sentences.append(say("table.sentence", text=say("table.run_separator").join(each)))
    else:
        sentences.append(say("table.sentence", text=told.pop()))
    return say("table.sentence_separator").join(sentences)


def _audio_policies(runs: Sequence[Reported], say: Catalogue) -> Iterator[str]:
    """Yield what was done to the clips, unless they were sent as they are, or nobody tells."""
    policies = [run.summary.audio["policy"] for run in runs]
    if set(policies) <= {None, AS_IS}:
        return
    told = [inert(policy) if policy is not None else say("table.not_told") for policy in policies]
    if len(set(told)) == 1:
        yield say("table.audio", policy=told[0])
        return
    each = [
        say("table.of_run", run=name, text=policy) for name, policy in zip(_names(runs), told, strict=True)
    ]
    yield say("table.audio_of_runs", each=say("table.run_separator").join(each))


def scoring_name(summary: Summary, say: Catalogue) -> str:
    """Return the scoring rule; the official one also says over which replies, where they are not its own."""
    key, values = scoring_words(summary)
    return say(key, **values)


def _names(runs: Sequence[Reported]) -> list[str]:
    """Return a name for each run: runs of one name are told apart by their number."""
    names = [inert(run.name) for run in runs]
    return [
        f"{name} ({names[: position + 1].count(name)})" if names.count(name) > 1 else name
        for position, name in enumerate(names)
    ]


def _coverage(summary: Summary, say: Catalogue) -> str:
    cell = summary.all_samples
    if not cell.n:
        return say("table.no_samples")
    text = say(
        "table.coverage", n=f"{cell.n:,}", scored=f"{cell.scored:,}", share=coverage(cell.scored, cell.n)
    )
    if cell.failed:
        text = say("table.joined", text=text, more=say("table.failed", count=f"{cell.failed:,}"))
    if cell.pending:
        text = say("table.joined", text=text, more=say("table.pending", count=f"{cell.pending:,}"))
    return text


def _notes(runs: Sequence[Reported], say: Catalogue, *, any_least: bool) -> Iterator[str]:
    if any_least:
        yield say("table.least")
    for name, run in zip(_names(runs), runs, strict=True):
        told = [warning_text(one, say) for one in run.summary.warnings if one["name"] in _SAID_BELOW]
        if any(one["name"] == "partial" for one in run.summary.warnings):
            told.append(_full_weights(run.summary, say))
        yield from (say("table.note", run=name, text=text) for text in told)


def _full_weights(summary: Summary, say: Catalogue) -> str:
    cells = {mean: _cell(summary, mean) for mean in (*MEANS, "all_samples")}
    shown = [
        f"{say(f'cell.{mean}')} {number(cell.gpt_score_full_weights)}"
        for mean, cell in cells.items()
        if cell is not None and cell.n and cell.partial
    ]
    return say("table.partial", means=say("table.list_separator").join(shown))


# --- the appendix -----------------------------------------------------------------------------------------


def _appendix(run: Reported, say: Catalogue, name: str) -> Iterator[Block]:
    named = with_control(inert(run.name), run.summary.control, say)
    yield Heading(say("table.appendix", run=named), 1)
    yield protocol_card(run, say, name=f"{name}-protocol", scoring=scoring_name(run.summary, say))
    for warning in run.summary.warnings:
        yield Paragraph(say("table.warning", text=warning_text(warning, say)))
    if (told := flagged_keys(run.summary, say, shown=_KEYS)) is not None:
        yield Paragraph(inert(told))
    yield _details(_task_rows(run.summary, say), say, f"{name}-tasks", say("table.by_task", run=named))
    sources = [(source, cell) for source, cell in run.summary.datasets.items()]
    yield _details(
        [(inert(source), cell) for source, cell in sources],
        say,
        f"{name}-sources",
        say("table.by_source", run=named),
    )
    yield from examples(run, say)


def _task_rows(summary: Summary, say: Catalogue) -> Iterator[tuple[str, Cell]]:
    """Yield the categories, each with its tasks below, and the means over all of them."""
    for group in AVERAGE_PARTS:
        cell = _cell(summary, group)
        if cell is None or not cell.n:
            continue
        yield say(f"cell.{group}"), cell
        for category in MIXED_PARTS if group == "mixed_audio" else (group,):
            if group == "mixed_audio" and category in summary.categories:
                yield say(f"cell.{category}"), summary.categories[category]
            yield from (
                (task, own) for task, own in summary.tasks.items() if TASKS[task].category == category
            )
    yield say("cell.average"), summary.average
    yield say("cell.all_samples"), summary.all_samples


def _details(
    rows: Sequence[tuple[str, Cell]] | Iterator[tuple[str, Cell]], say: Catalogue, name: str, caption: str
) -> Table:
    rows = list(rows)
    below = [say("table.least")] if any(cell.lower_bound is not None for _, cell in rows) else []
    heads = ("group", "score", "reference", "win", "tie", "scored", "clips")
    return Table(
        name, caption, [say(f"table.head_{head}") for head in heads], [_detail(*row) for row in rows], below
    )


def _detail(name: str, cell: Cell) -> list[Value]:
    return [
        name,
        Score.of(cell),
        number(cell.reference_score),
        percent(cell.win_rate),
        percent(cell.tie_rate),
        f"{cell.scored:,}/{cell.n:,}",
        f"{cell.clips:,}" if cell.clips else NOT_AVAILABLE,
    ]
