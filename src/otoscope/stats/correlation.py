"""Correlation within tasks, with an interval over clips."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from otoscope.stats.student_t import student_t_quantile

_ROUNDING = 1e-12
"""What is smaller than this share of the numbers it was computed from is rounding."""


class PairedStratum(NamedTuple):
    """One task's pairs: ``x`` and ``y`` of each sample and the clip that it comes from."""

    x: Sequence[float]
    y: Sequence[float]
    clips: Sequence[Hashable]


@dataclass(frozen=True, slots=True)
class Correlation:
    """A correlation from -1 to 1 and its 95 % interval; ``None`` is "not available"."""

    value: float | None
    ci95: tuple[float, float] | None


def correlation_within(strata: Sequence[PairedStratum]) -> Correlation:
    """Return Pearson's correlation of x and y about the means of their own stratum.

    The interval is Student's on Fisher's z scale (Fisher 1921, Metron 1), with the standard error from
    the influence function of the correlation (Devlin, Gnanadesikan & Kettenring 1975, Biometrika 62) summed
    by clip (Liang & Zeger 1986, Biometrika 73). Of G clips, one degree of freedom is spent on each stratum's
    mean and one on the slope; the variance is divided by the square of the share that is left, as the
    jackknife does on average (MacKinnon & White 1985, Journal of Econometrics 29).

    Strata of one sample say nothing and are left out. Both are ``None`` for fewer than 3 clips or where x
    or y does not vary; the interval also where no degree of freedom is left, or x and y are proportional.
    Raises ``ValueError`` when a stratum's x, y and clips differ in length, or for what is not finite.
    """
    for stratum in strata:
        if not len(stratum.x) == len(stratum.y) == len(stratum.clips):
            raise ValueError("a correlation needs an x, a y and a clip for each sample")
        if not all(map(math.isfinite, (*stratum.x, *stratum.y))):
            raise ValueError("a correlation needs finite numbers")
    strata = [stratum for stratum in strata if len(stratum.x) > 1]
    clips = [clip for stratum in strata for clip in stratum.clips]
    x = [deviation for stratum in strata for deviation in _deviations(stratum.x)]
    y = [deviation for stratum in strata for deviation in _deviations(stratum.y)]
    x_size, y_size = math.hypot(*x), math.hypot(*y)
    if len(set(clips)) < 3 or not x_size or not y_size:
        return Correlation(None, None)
    pairs = [(a / x_size, b / y_size) for a, b in zip(x, y, strict=True)]
    value = max(-1.0, min(1.0, math.fsum(a * b for a, b in pairs)))
    df = len(set(clips)) - len(strata) - 1
    if df < 1 or 1 - value**2 <= _ROUNDING:
        return Correlation(value, None)
    influence: dict[Hashable, list[float]] = {}
    for clip, (a, b) in zip(clips, pairs, strict=True):
        influence.setdefault(clip, []).append(a * b - value / 2 * (a * a + b * b))
    spread = math.sqrt(math.fsum(math.fsum(of_clip) ** 2 for of_clip in influence.values()))
    margin = student_t_quantile(0.975, df) * len(influence) / df * spread / (1 - value**2)
    centre = math.atanh(value)
    return Correlation(value, (math.tanh(centre - margin), math.tanh(centre + margin)))


def _deviations(values: Sequence[float]) -> list[float]:
    """Return the values less their mean; exactly 0 where they differ by rounding alone."""
    if max(values) - min(values) <= _ROUNDING * max(map(abs, values)):
        return [0.0] * len(values)
    mean = math.fsum(values) / len(values)
    return [value - mean for value in values]
