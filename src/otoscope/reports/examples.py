"""A few samples to look at: chosen by chance, and the same ones for every run over the same samples."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from otoscope.benchmark import CATEGORIES, TASKS, VIEWS
from otoscope.records import Answer, Order, Outcome
from otoscope.reports.blocks import Block, Heading, Pairs, Paragraph, inert
from otoscope.reports.reported import Reported
from otoscope.scoring import Rule
from otoscope.texts import Catalogue

EXAMPLES = 6
SEED = 0
_LONGEST = 600
"""Characters of a text that are shown."""


def examples(run: Reported, say: Catalogue) -> Iterator[Block]:
    """Yield the examples of a run: question, reference answer, answer, and the scores of each order."""
    chosen = choose(run)
    if not chosen:
        return
    yield Heading(say("table.examples", count=len(chosen), seed=SEED), 2)
    if run.manifest.get("withheld"):
        yield Paragraph(say("table.withheld"))
        return
    for position, outcome in enumerate(chosen, start=1):
        yield Heading(f"{position}. {inert(outcome.sample.key)}", 3)
        yield Pairs(list(_pairs(outcome, run.rule, say)))


def choose(run: Reported) -> list[Outcome]:
    """Return six scored samples of the run's view: one of each category, the others from all of them.

    Which ones depends on their keys and on ``SEED`` alone: those whose keyed digest is the lowest.
    """
    rule = run.rule
    lowest: dict[str, list[tuple[str, Outcome]]] = {category: [] for category in CATEGORIES}
    for outcome in run.outcomes():
        task = outcome.sample.task
        if task not in VIEWS[run.summary.view] or rule(outcome).result.status != "scored":
            continue
        drawn = hashlib.sha256(f"{SEED}:{outcome.sample.key}".encode("utf-8", "surrogatepass")).hexdigest()
        of_category = lowest[TASKS[task].category]
        of_category.append((drawn, outcome))
        of_category.sort(key=lambda entry: entry[0])
        del of_category[EXAMPLES:]
    first = [found[0] for found in lowest.values() if found]
    others = sorted((entry for found in lowest.values() for entry in found[1:]), key=lambda entry: entry[0])
    return [outcome for _, outcome in (first + others)[:EXAMPLES]]


def _pairs(outcome: Outcome, rule: Rule, say: Catalogue) -> Iterator[tuple[str, str]]:
    sample = outcome.sample
    answer = outcome.answer.text if isinstance(outcome.answer, Answer) else ""
    yield say("table.example_question"), inert(sample.question, longest=_LONGEST, say=say)
    yield say("table.example_reference"), inert(sample.reference, longest=_LONGEST, say=say)
    shown = inert(answer, longest=_LONGEST, say=say)
    yield say("table.example_answer"), shown or say("table.blank")
    for order in Order:
        verdict = outcome.verdicts.get(order)
        if verdict is not None and (scores := rule.read(order, verdict)) is not None:
            yield (
                say(f"table.example_{order.value}"),
                say(
                    "table.example_scores",
                    answer=f"{round(scores[0], 2):g}",
                    reference=f"{round(scores[1], 2):g}",
                ),
            )
