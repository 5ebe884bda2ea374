"""What can be said of scores: claims, which make a verdict, and doubts, which only gainsay one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

Claim = tuple[int, float]
"""What a line or a JSON value says: (1 or 2, score)."""
NAN = float("nan")
"""Claimed for a score that cannot be, so that it contradicts every other claim instead of vanishing."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """What speaks of scores without being a verdict: it never gives scores, but it must not gainsay them."""

    labels: Sequence[int]
    """The assistants that are named beside the numbers, in their order; 0 stands for both."""
    numbers: Sequence[float]
    final: bool = False
    """Whether it calls itself final: such words count wherever they stand, others only below a verdict."""

    def agrees(self, first: float, second: float) -> bool:
        """Return whether it can be read as these scores, and as no others."""
        if any(number not in (first, second) for number in self.numbers):
            return False
        stated, named = tuple(self.numbers), tuple(self.labels)
        if len(stated) == 2:
            return stated == ((second, first) if named == (2, 1) else (first, second)) or 0 < len(named) != 2
        if len(stated) == 1 and 0 in named:
            return first == second
        if len(stated) == 1 and len(set(named)) == 1:
            return stated[0] == (first, second)[named[0] - 1]
        return True


def as_doubts(said: Iterable[Claim | Doubt]) -> Iterator[Doubt]:
    """Yield what is said without the right to give scores: all claims become one doubt."""
    claims: list[Claim] = []
    for one in said:
        if isinstance(one, Doubt):
            yield one
        else:
            claims.append(one)
    if claims:
        labels, numbers = zip(*claims, strict=True)
        yield Doubt(labels, numbers)
