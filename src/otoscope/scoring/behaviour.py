"""The judge's own behaviour: what a place in the prompt is worth to it, and how it answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from otoscope.benchmark import SCORE_MAX, SCORE_MIN
from otoscope.records import Failure, Json, Order, Outcome, Verdict
from otoscope.scoring.rules import Rule, Scores
from otoscope.scoring.samples import mean, result_of
from otoscope.stats import Design


@dataclass(slots=True)
class _TaskOrders:
    """Paired differences between the two orders, of one task."""

    answer: list[float] = field(default_factory=list)
    """How much more the answer got when it stood first."""
    reference: list[float] = field(default_factory=list)
    disagree: list[float] = field(default_factory=list)
    clips: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Behaviour:
    """What the verdicts of a run tell about the judge."""

    verdicts: Counter[str] = field(default_factory=Counter)
    _pairs: Counter[Scores] = field(default_factory=Counter)
    """How often each pair of scores was given, as it stood in the reply."""
    _by_role: Counter[Scores] = field(default_factory=Counter)
    """How often each was given to the answer and the reference."""
    _tasks: dict[str, _TaskOrders] = field(default_factory=dict)
    _greedy: int = 0
    """Scored samples of which every verdict also says which whole scores were the most probable."""
    _greedy_ties: int = 0

    def add(self, outcome: Outcome, rule: Rule, by_order: Mapping[Order, Scores], clip: str) -> None:
        """Add one sample; ``by_order`` is empty unless every order has scores by the rule."""
        for order, verdict in outcome.verdicts.items():
            self.verdicts["asked_again"] += len(verdict.replies) > 1
            if isinstance(verdict, Verdict):
                self.verdicts["expected"] += verdict.score_kind == "expected"
                # The official rule reads whole numbers alone.
                self.verdicts["decimal"] += rule.scoring == "default" and verdict.score_kind == "decimal"
            self._add_scores(order, rule.read(order, verdict))
        if len(by_order) == len(Order):
            task = self._tasks.setdefault(outcome.sample.task, _TaskOrders())
            answer_first, reference_first = by_order[Order.ANSWER_FIRST], by_order[Order.REFERENCE_FIRST]
            task.answer.append(answer_first[0] - reference_first[0])
            task.reference.append(reference_first[1] - answer_first[1])
            task.disagree.append(float(result_of(*answer_first) != result_of(*reference_first)))
            task.clips.append(clip)
        if by_order:
            self._add_greedy([outcome.verdicts[order] for order in by_order])

    def _add_scores(self, order: Order, scores: Scores | None) -> None:
        if scores is None:
            self.verdicts["failed"] += 1
            return
        answer, reference = scores
        self.verdicts["judged"] += 1
        self.verdicts["answer_scored_0"] += answer == SCORE_MIN
        self.verdicts["answer_scored_10"] += answer == SCORE_MAX
        self.verdicts["reference_scored_0"] += reference == SCORE_MIN
        self.verdicts["reference_scored_10"] += reference == SCORE_MAX
        self._by_role[scores] += 1
        self._pairs[(reference, answer) if order is Order.REFERENCE_FIRST else scores] += 1

    def _add_greedy(self, verdicts: Sequence[Verdict | Failure]) -> None:
        given = [v.probabilities for v in verdicts if isinstance(v, Verdict) and v.probabilities is not None]
        if len(given) == len(verdicts):
            self._greedy += 1
            # Whole numbers over the same orders: their sums tie where their means do.
            sums = (sum(one[f"{role}_greedy"] for one in given) for role in ("answer", "reference"))
            self._greedy_ties += next(sums) == next(sums)

    def position(self) -> Json:
        """Return how much the first place is worth in points, for the answer and for the reference.

        Means of paired differences over the samples that both orders scored, with their intervals;
        ``orders_disagree`` is the share of them of which the orders name another winner.
        """
        position: Json = {
            "samples": 0,
            "answer_effect": None,
            "answer_effect_ci95": None,
            "reference_effect": None,
            "reference_effect_ci95": None,
            "orders_disagree": None,
            "orders_disagree_ci95": None,
            "greedy_tie_rate": self._greedy_ties / self._greedy if self._greedy else None,
        }
        tasks = [self._tasks[name] for name in sorted(self._tasks)]
        total = sum(len(task.clips) for task in tasks)
        if not total:
            return position
        position["samples"] = total
        design = Design([(len(task.clips) / total, task.clips) for task in tasks])
        span = SCORE_MAX - SCORE_MIN
        for role in ("answer", "reference"):
            effect = design.estimate([getattr(task, role) for task in tasks], low=-span, high=span)
            position[f"{role}_effect"] = mean([value for task in tasks for value in getattr(task, role)])
            position[f"{role}_effect_ci95"] = effect.ci95
        disagree = design.rate([task.disagree for task in tasks])
        # A share is a count through a count: weighted means of the tasks' would be a last bit off.
        position["orders_disagree"] = sum(sum(task.disagree) for task in tasks) / total
        position["orders_disagree_ci95"] = disagree.ci95
        return position

    def most_common_pair(self) -> tuple[str, int] | None:
        """Return the pair of scores given most often, as it stood in the reply, and how often it came."""
        return _most_common(self._pairs)

    def most_common_pair_by_role(self) -> tuple[str, int] | None:
        """Return the scores most often given to the answer and the reference, in this order; how often."""
        return _most_common(self._by_role)


def _most_common(pairs: Counter[Scores]) -> tuple[str, int] | None:
    if not pairs:
        return None
    (first, second), count = max(pairs.items(), key=lambda entry: (entry[1], entry[0]))
    return f"{first:g} {second:g}", count
