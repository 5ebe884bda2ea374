"""Scores by expectation: from a language model's next-token probabilities to two scores from 0 to 10.

Small judges write the same two numbers under nearly every question; what they think of it shows in how
sure they are. So the score is the mean over the probabilities of all eleven scores, not the one that would
be written. The arithmetic stands here, apart from any runtime, for whatever gives probabilities.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MIN_MASS = 0.5
"""Less probability than this on digits: the model was about to write something else than a score."""


@dataclass(frozen=True, slots=True)
class ScoreDistribution:
    """How probable each score is at one position."""

    probabilities: tuple[float, ...]
    """Of the scores 0, 1, ... 10; they add up to 1, or are all 0 when ``mass`` is."""
    mass: float
    """The probability that a digit stands here at all, before renormalising: 0 to 1."""

    @property
    def mean(self) -> float:
        """The expected score, 0 to 10."""
        return math.fsum(score * p for score, p in enumerate(self.probabilities))

    @property
    def greedy(self) -> int:
        """The most probable score; of equals the lowest."""
        return self.probabilities.index(max(self.probabilities))


@dataclass(frozen=True, slots=True)
class ScorePair:
    """The distributions of both scores, the second one given the most probable first one."""

    first: ScoreDistribution
    second: ScoreDistribution

    @property
    def usable(self) -> bool:
        """Whether the model was about to write a digit at both positions (see ``MIN_MASS``)."""
        return min(self.first.mass, self.second.mass) >= MIN_MASS

    @property
    def text(self) -> str:
        """The two most probable scores, as a judge that writes them would."""
        return f"{self.first.greedy} {self.second.greedy}"

    def to_json(self) -> Mapping[str, Any]:
        """Return what is stored with a verdict."""
        stored: dict[str, Any] = {}
        for name, one in (("first", self.first), ("second", self.second)):
            stored[name] = list(one.probabilities)
            stored[f"{name}_mean"] = one.mean
            stored[f"{name}_greedy"] = one.greedy
            stored[f"{name}_mass"] = one.mass
        return stored


def distribution(digits: Sequence[float], zero_after_one: float) -> ScoreDistribution:
    """Return the distribution over 0 to 10 at a position where a score is due.

    ``digits`` are the probabilities of the tokens "0" to "9" there, ``zero_after_one`` that of "0" right
    after a "1": P(10) = P("1") P("0"|"1"), P(1) = P("1") (1 - P("0"|"1")), P(d) = P("d") for the others, all
    renormalised. This holds for tokenizers that give every digit a token of its own.
    """
    mass = math.fsum(digits)
    scores = [*digits, digits[1] * zero_after_one]
    scores[1] = digits[1] * (1 - zero_after_one)
    return ScoreDistribution(tuple(p / mass if mass > 0 else 0.0 for p in scores), min(mass, 1.0))


def probabilities(logits: Sequence[float], tokens: Sequence[int]) -> list[float]:
    """Return the softmax probabilities of ``tokens`` under the ``logits`` of the whole vocabulary."""
    top = max(logits)
    total = math.fsum(math.exp(logit - top) for logit in logits)
    return [math.exp(logits[token] - top) / total for token in tokens]
