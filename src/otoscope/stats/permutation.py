"""Permutation tests and many tests at once."""

from __future__ import annotations

from collections.abc import Sequence

_ROUNDING = 1e-12
"""Two sums of the same numbers count as equal up to this share of the sum of their sizes."""

_CHUNK = 256
"""Draws held in memory at once."""


def sign_flip_test(
    contributions: Sequence[Sequence[float]], *, draws: int = 10_000, seed: int = 0
) -> list[float]:
    """Return each column's two-sided p-value that its sum is 0, by flipping whole rows' signs at random.

    Rows are clips, columns cells; an entry is what the clip adds to the cell's difference. A draw flips a
    clip in all columns alike, so a clip's samples stay together. p = (1 + b) / (1 + draws), where b counts
    the draws whose sum is at least as far from 0 as the observed one: Phipson & Smyth 2010, "Permutation
    p-values should never be zero". A column of zeros has p = 1. No rows: no columns. The same seed gives
    the same flips. Raises ``ValueError`` for rows of different lengths and for what is not finite.
    """
    if not contributions:
        return []
    import numpy as np

    table = np.array(contributions, dtype=np.float64)
    if table.ndim != 2 or not np.isfinite(table).all():
        raise ValueError("the contributions must be a table of finite numbers: clips by cells")
    observed = np.abs(table.sum(axis=0)) - _ROUNDING * np.abs(table).sum(axis=0)
    generator = np.random.default_rng(seed)
    as_far = np.zeros(table.shape[1], dtype=np.int64)
    for start in range(0, draws, _CHUNK):
        flips = generator.integers(0, 2, size=(min(_CHUNK, draws - start), len(table)))
        as_far += (np.abs((2.0 * flips - 1.0) @ table) >= observed).sum(axis=0)
    return [(1 + int(b)) / (1 + draws) for b in as_far]


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values adjusted for their number, in the given order; each at most 1.

    The step-down rule of Holm 1979, "A simple sequentially rejective multiple test procedure": the k-th
    smallest of m is multiplied by m - k + 1, and none becomes smaller than one before it.
    """
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted
