"""One sample's numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from otoscope.records import Failure, Order, Outcome, Verdict

Status = Literal["scored", "failed", "pending"]
Result = Literal["win", "tie", "loss"]


@dataclass(frozen=True, slots=True)
class SampleResult:
    """One sample's numbers: means over the orders judged, each score from 0 to 10."""

    status: Status
    gpt_score: float | None = None
    reference_score: float | None = None
    failure: Failure | None = None
    stage: Literal["answer", "verdict"] | None = None
    """Where a failed sample failed."""

    @property
    def result(self) -> Result | None:
        """Whether the model's answer scored above, like, or below the reference."""
        if self.gpt_score is None or self.reference_score is None:
            return None
        return result_of(self.gpt_score, self.reference_score)


def result_of(score: float, reference_score: float) -> Result:
    """Return whether a score is above, like, or below the reference's."""
    # Binary fractions: (8.1 + 8.2) / 2 and (8.3 + 8.0) / 2 differ in the last bit, and are a tie.
    lead = round(score - reference_score, 9)
    if not lead:
        return "tie"
    return "win" if lead > 0 else "loss"


def sample_result(outcome: Outcome, orders: Sequence[Order]) -> SampleResult:
    """Score one sample over the orders that its run judges.

    Failed when the answer or the verdict of any order failed; else pending while anything is missing.
    """
    if outcome.answer is None:
        return SampleResult("pending")
    if isinstance(outcome.answer, Failure):
        return SampleResult("failed", failure=outcome.answer, stage="answer")
    verdicts = [outcome.verdicts.get(order) for order in orders]
    for verdict in verdicts:
        if isinstance(verdict, Failure):
            return SampleResult("failed", failure=verdict, stage="verdict")
    complete = [verdict for verdict in verdicts if isinstance(verdict, Verdict)]
    if not complete or len(complete) < len(orders):
        return SampleResult("pending")
    return SampleResult(
        "scored",
        mean([verdict.answer_score for verdict in complete]),
        mean([verdict.reference_score for verdict in complete]),
    )


def mean(values: Sequence[float]) -> float:
    """Return the arithmetic mean, whatever the order of the values: ``math.fsum`` is exact."""
    return math.fsum(values) / len(values)
