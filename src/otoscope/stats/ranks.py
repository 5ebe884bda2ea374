"""Rank correlation."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import correlation


def spearman(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Return Spearman's rank correlation: Pearson's of the ranks, ties having their average rank.

    Source: Spearman 1904, "The proof and measurement of association between two things". ``None`` where x
    or y does not vary. Raises ``ValueError`` when their lengths differ.
    """
    if len(x) != len(y):
        raise ValueError(f"x has {len(x)} values and y {len(y)}; a correlation needs pairs")
    if len(set(x)) < 2 or len(set(y)) < 2:
        return None
    return correlation(_ranks(x), _ranks(y))


def _ranks(values: Sequence[float]) -> list[float]:
    positions: dict[float, list[int]] = {}
    for position, value in enumerate(sorted(values), start=1):
        positions.setdefault(value, []).append(position)
    average = {value: (tied[0] + tied[-1]) / 2 for value, tied in positions.items()}
    return [average[value] for value in values]
