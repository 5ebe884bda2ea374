"""What the charts of a run show of its samples, gathered in one pass: numbers, and no text."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from otoscope.benchmark import VIEWS
from otoscope.records import Answer, Order, Outcome, Reply, token_count
from otoscope.reports.charts.style import foreign
from otoscope.reports.reported import Reported
from otoscope.reports.told import with_control
from otoscope.scoring import Rule, Summary
from otoscope.texts import Catalogue


@dataclass(slots=True)
class Calls:
    """What the replies of one endpoint took. What a server did not tell is left out."""

    seconds: list[float] = field(default_factory=list)
    prompt_tokens: list[float] = field(default_factory=list)
    completion_tokens: list[float] = field(default_factory=list)

    def add(self, reply: Reply) -> None:
        """Add one reply."""
        # Replies that were read from other tools' files have 0.
        if 0 < reply.latency < math.inf:
            self.seconds.append(reply.latency)
        for name, values in (
            ("prompt_tokens", self.prompt_tokens),
            ("completion_tokens", self.completion_tokens),
        ):
            if (value := token_count(reply, name)) is not None:
                values.append(float(value))


@dataclass(frozen=True, slots=True)
class Length:
    """A scored answer's length in characters, and what it got."""

    characters: int
    score: float
    clip: str


@dataclass(slots=True)
class Measured:
    """The samples of a run, within its summary's view and by its scoring rule."""

    scores: list[float] = field(default_factory=list)
    """Of the answers: one a sample, or one an order under official scoring."""
    references: list[float] = field(default_factory=list)
    orders: Counter[tuple[float, float]] = field(default_factory=Counter)
    """How often an answer got these scores: where the reference stood first, where the answer did."""
    lengths: list[Length] = field(default_factory=list)
    model: Calls = field(default_factory=Calls)
    judge: Calls = field(default_factory=Calls)

    def add(self, outcome: Outcome, rule: Rule) -> None:
        """Add one sample, by the run's scoring rule."""
        ruled = rule(outcome)
        for score, reference in ruled.rows.values():
            self.scores.append(score)
            self.references.append(reference)
        if len(ruled.by_order) == len(Order):
            self.orders[ruled.by_order[Order.REFERENCE_FIRST][0], ruled.by_order[Order.ANSWER_FIRST][0]] += 1
        answer = outcome.answer
        if isinstance(answer, Answer) and ruled.result.gpt_score is not None:
            self.lengths.append(Length(len(answer.text), ruled.result.gpt_score, outcome.clip_identity))
        for reply in (*outcome.superseded, *(answer.replies if answer is not None else ())):
            self.model.add(reply)
        for reply in outcome.surplus:
            self.judge.add(reply)
        for verdict in outcome.verdicts.values():
            for reply in verdict.replies:
                self.judge.add(reply)


def measure(run: Reported) -> Measured:
    """Read a run's samples."""
    found = Measured()
    tasks, rule = VIEWS[run.summary.view], run.rule
    for outcome in run.outcomes():
        if outcome.sample.task in tasks:
            found.add(outcome, rule)
    return found


def run_name(summary: Summary, say: Catalogue) -> str:
    """Return what a run is called in a title: its label, else its model, and the control that it is."""
    return with_control(foreign(summary.label or summary.model, 60), summary.control, say)
