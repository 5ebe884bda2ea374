"""Scoring rules: what each makes of one sample's stored replies.

``default``: a sample's scores are the means over its orders, and it is failed unless every order has a
verdict. ``official``: the official script's rules on the very same replies. In each order the first reply
counts, whatever came later, and only if it is two whole numbers and nothing else; what is not leaves that
order's mean. A category's score is then the mean of the two orders' own means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from otoscope.parsing import parse_official
from otoscope.records import Failure, FailureKind, Order, Outcome, Verdict
from otoscope.scoring.cells import SAMPLE
from otoscope.scoring.samples import SampleResult, mean, sample_result

Scoring = Literal["default", "official"]
Scores = tuple[float, float]
"""The answer's score, then the reference's."""


@dataclass(frozen=True, slots=True)
class Ruled:
    """One sample under a rule."""

    result: SampleResult
    rows: Mapping[str, Scores]
    """The rows that it adds to the means, by the pass they belong to."""
    missing: Sequence[str]
    """The passes to which it would have added one, had it not failed."""
    by_order: Mapping[Order, Scores]
    """The scores of each order, where all of them have one."""


@dataclass(frozen=True, slots=True)
class Rule:
    """How a run's samples are scored: by which rule, over which orders."""

    scoring: Scoring
    orders: Sequence[Order]
    unjoined: bool = False
    """Whether each outcome is one order's row, and has no other."""

    @property
    def passes(self) -> tuple[str, ...]:
        """The passes over which means are taken."""
        return (SAMPLE,) if self.scoring == "default" else tuple(order.value for order in self.orders)

    def __call__(self, outcome: Outcome) -> Ruled:
        """Apply the rule to a sample."""
        if self.scoring == "default":
            return _by_default(outcome, self.orders)
        return _officially(outcome, self.orders, unjoined=self.unjoined)

    def read(self, order: Order, verdict: Verdict | Failure) -> Scores | None:
        """Return the scores that the rule reads from one order, whatever the other says."""
        if self.scoring == "official":
            return _official_scores(verdict, order)
        if isinstance(verdict, Failure):
            return None
        return verdict.answer_score, verdict.reference_score


def _by_default(outcome: Outcome, orders: Sequence[Order]) -> Ruled:
    result = sample_result(outcome, orders)
    if result.gpt_score is None or result.reference_score is None:
        return Ruled(result, {}, (SAMPLE,) if result.status == "failed" else (), {})
    verdicts = {order: outcome.verdicts[order] for order in orders}
    by_order = {
        order: (float(verdict.answer_score), float(verdict.reference_score))
        for order, verdict in verdicts.items()
        if isinstance(verdict, Verdict)
    }
    return Ruled(result, {SAMPLE: (result.gpt_score, result.reference_score)}, (), by_order)


def _officially(outcome: Outcome, orders: Sequence[Order], *, unjoined: bool) -> Ruled:
    """Score a sample that has a row in at least one of its orders: it is the mean of those."""
    if outcome.answer is None:
        return Ruled(SampleResult("pending"), {}, (), {})
    expected = [order for order in orders if order in outcome.verdicts] if unjoined else orders
    if isinstance(outcome.answer, Failure):
        failed = SampleResult("failed", failure=outcome.answer, stage="answer")
        return Ruled(failed, {}, [order.value for order in expected], {})
    by_order: dict[Order, Scores] = {}
    pending, failure = False, None
    for order in expected:
        verdict = outcome.verdicts.get(order)
        if verdict is None:
            pending = True
        elif (scores := _official_scores(verdict, order)) is not None:
            by_order[order] = scores
        else:
            failure = failure or verdict
    rows = {order.value: scores for order, scores in by_order.items()}
    if pending:
        return Ruled(SampleResult("pending"), {}, (), {})
    missing = [order.value for order in expected if order not in by_order]
    if not rows:
        if not isinstance(failure, Failure):
            failure = Failure(FailureKind.UNPARSEABLE, "no order's first reply is two whole numbers")
        return Ruled(SampleResult("failed", failure=failure, stage="verdict"), {}, missing, {})
    complete = by_order if len(by_order) == len(orders) else {}
    answer, reference = (mean(scores) for scores in zip(*rows.values(), strict=True))
    return Ruled(SampleResult("scored", answer, reference), rows, missing, complete)


def _official_scores(verdict: Verdict | Failure, order: Order) -> Scores | None:
    """Return the scores that the official rule reads from an order's first reply, or ``None``."""
    if not verdict.replies:
        return None
    read = parse_official(verdict.replies[0].text or "")
    if read is None:
        return None
    reference, answer = read if order is Order.REFERENCE_FIRST else reversed(read)
    return float(answer), float(reference)
