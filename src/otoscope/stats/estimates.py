"""Weighted means of samples that come in clips, with their intervals.

One estimator serves every cell: a stratum is a task, its weight is the share of its mean in the cell. The
questions of one clip are not independent, and a clip may stand in two tasks, so the clip is what varies.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import NamedTuple

from otoscope.stats.student_t import student_t_quantile

_MIN_DF = 2
"""Below, Student's t is so wide that the interval says nothing."""

_ROUNDING = 1e-12
"""What is smaller than this share of the numbers it was computed from is rounding."""


class Stratum(NamedTuple):
    """One task's values and what its mean weighs.

    The value of an estimate is the sum over strata of ``weight`` times the mean of ``values``. ``clips``
    names the clip that each value comes from; the same clip may stand in several strata.
    """

    weight: float
    values: Sequence[float]
    clips: Sequence[Hashable]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its uncertainty over questions and clips, in the unit of the values.

    ``standard_error`` is ``None`` where a stratum has fewer than 2 clips and 0 where nothing varies.
    ``ci95`` is ``None`` in both cases, and where ``df``, Student's degrees of freedom, is under 2.
    """

    value: float
    standard_error: float | None
    df: float | None
    ci95: tuple[float, float] | None


class _Part(NamedTuple):
    """What one clip is to one stratum."""

    deviation: float
    """What the clip adds to the estimate's error."""
    q: float
    r: float
    """The working model's covariance of two clips' deviations g and h is q_g r_h + r_g q_h, and q_g² more
    where g is h, in units of the variance of a clip's mean."""


def estimate(strata: Sequence[Stratum], *, low: float = -math.inf, high: float = math.inf) -> Estimate:
    """Return the weighted sum of the strata's means with its 95 % interval, clipped to [low, high].

    The variance is the linearised one of survey sampling, summed by clip over all strata before squaring
    (Liang & Zeger 1986, Biometrika 73; Särndal, Swensson & Wretman 1992, 5.5): a clip that makes up the
    share f of a stratum of G clips deviates by f (clip's mean - stratum's mean), times the correction
    sqrt((G - 1) / G) / (1 - f). That is sqrt(G / (G - 1)) where every clip has as many questions, and in
    general the jackknife that deletes one clip at a time ("CR3": Bell & McCaffrey 2002, Survey Methodology
    28; MacKinnon, Nielsen & Webb 2023, Journal of Econometrics 232), which does not come out too small
    where some clips carry more questions than others.

    Student's t has Satterthwaite's degrees of freedom: see ``_degrees_of_freedom``. Nothing depends on the
    order of values, clips or strata. Raises ``ValueError`` when there is no stratum, a stratum is empty, has
    not one clip to a value, or when a number is not finite.
    """
    _check(strata)
    means = [math.fsum(stratum.values) / len(stratum.values) for stratum in strata]
    value = math.fsum(stratum.weight * mean for stratum, mean in zip(strata, means, strict=True))
    if min(len(set(stratum.clips)) for stratum in strata) < 2:
        return Estimate(value, None, None, None)
    parts = [_parts(stratum, mean) for stratum, mean in zip(strata, means, strict=True)]
    deviations: dict[Hashable, list[float]] = {}
    for stratum_parts in parts:
        for clip, part in stratum_parts.items():
            deviations.setdefault(clip, []).append(part.deviation)
    standard_error = math.sqrt(math.fsum(math.fsum(of_clip) ** 2 for of_clip in deviations.values()))
    size = math.fsum(abs(stratum.weight) * max(map(abs, stratum.values)) for stratum in strata)
    if standard_error <= _ROUNDING * size:
        return Estimate(value, 0.0, None, None)
    df = _degrees_of_freedom(parts)
    if df < _MIN_DF * (1 - _ROUNDING):
        return Estimate(value, standard_error, df, None)
    margin = student_t_quantile(0.975, df) * standard_error
    return Estimate(value, standard_error, df, (max(low, value - margin), min(high, value + margin)))


def rate(strata: Sequence[Stratum]) -> Estimate:
    """Return the weighted share of ones among values of 0 and 1, with its 95 % interval within [0, 1].

    As ``estimate``. Where nothing varies but every stratum has 2 clips or more, the interval is Wilson's for
    1 / sum(weight² / clips) clips: as many as would give one unweighted sample the same variance. Raises
    ``ValueError`` as ``estimate`` does.
    """
    share = estimate(strata, low=0.0, high=1.0)
    if share.standard_error != 0:
        return share
    clips = 1 / math.fsum(stratum.weight**2 / len(set(stratum.clips)) for stratum in strata)
    # The weights may sum to a little over 1 in the last bit.
    value = min(1.0, max(0.0, share.value))
    return replace(share, value=value, ci95=wilson(value, clips))


def wilson(share: float, n: float) -> tuple[float, float]:
    """Return the 95 % score interval of a share among ``n`` independent ones; ``n`` need not be whole.

    Source: Wilson 1927, Journal of the American Statistical Association 22. Raises ``ValueError`` unless
    0 <= share <= 1 and n > 0.
    """
    if not (0 <= share <= 1 and n > 0):
        raise ValueError(f"an interval needs a share from 0 to 1 and n > 0, not {share} and {n}")
    z = NormalDist().inv_cdf(0.975)
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    margin = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + (z / (2 * n)) ** 2)
    # Not past the share itself: at 0 and 1 that end is exact, save for rounding.
    return max(0.0, min(share, centre - margin)), min(1.0, max(share, centre + margin))


def _check(strata: Sequence[Stratum]) -> None:
    if not strata:
        raise ValueError("an estimate needs at least one stratum")
    for stratum in strata:
        if not stratum.values or len(stratum.values) != len(stratum.clips):
            raise ValueError(
                f"a stratum needs values, and a clip for each: {len(stratum.values)} values, "
                f"{len(stratum.clips)} clips"
            )
        if not (math.isfinite(stratum.weight) and all(map(math.isfinite, stratum.values))):
            raise ValueError("an estimate needs finite weights and values")


def _parts(stratum: Stratum, mean: float) -> dict[Hashable, _Part]:
    """Return what each clip of a stratum is to it; the stratum has 2 clips or more."""
    by_clip: dict[Hashable, list[float]] = {}
    for clip, value in zip(stratum.clips, stratum.values, strict=True):
        by_clip.setdefault(clip, []).append(value - mean)
    n, clips = len(stratum.values), len(by_clip)
    squares = math.fsum((len(values) / n) ** 2 for values in by_clip.values())
    parts = {}
    for clip, values in by_clip.items():
        share = len(values) / n
        factor = stratum.weight * math.sqrt((clips - 1) / clips) / (1 - share)
        q = factor * share
        parts[clip] = _Part(factor * math.fsum(values) / n, q, q * (squares / 2 - share))
    return parts


def _degrees_of_freedom(parts: Sequence[Mapping[Hashable, _Part]]) -> float:
    """Return the degrees of freedom of the variance: twice its squared mean over its variance.

    Source: Satterthwaite 1946, Biometrics Bulletin 2, for the sum of squares of correlated deviations as in
    Bell & McCaffrey 2002. In the working model the clips' means in a stratum are independent with one
    variance; with C the covariance of the deviations, df = trace(C)² / trace(C C), where C sums the strata
    that a clip stands in. Two choices of the strata's variances, and the smaller result: those observed,
    which for strata without common clips and with as many questions in each clip give the classic
    V² / sum(V_t² / (G_t - 1)) and for clips that all stand in the same strata G - 1; and all equal, which
    holds the noise of the first down when there are few clips.
    """
    traces = [math.fsum(p.q * (p.q + 2 * p.r) for p in stratum.values()) for stratum in parts]
    products = [[_trace_of_product(a, b) for b in parts] for a in parts]
    observed = [
        math.fsum(p.deviation**2 for p in stratum.values()) / trace if trace else 0.0
        for stratum, trace in zip(parts, traces, strict=True)
    ]
    return min(_satterthwaite(traces, products, scales) for scales in (observed, [1.0] * len(parts)))


def _satterthwaite(
    traces: Sequence[float], products: Sequence[Sequence[float]], scales: Sequence[float]
) -> float:
    """Return trace(C)² / trace(C C) for C = sum(scale * C of a stratum)."""
    mean = math.fsum(scale * trace for scale, trace in zip(scales, traces, strict=True))
    square = math.fsum(
        a * b * product
        for a, row in zip(scales, products, strict=True)
        for b, product in zip(scales, row, strict=True)
    )
    return mean * mean / square


def _trace_of_product(a: Mapping[Hashable, _Part], b: Mapping[Hashable, _Part]) -> float:
    """Return trace(A B) of two strata's covariances, in time linear in the number of clips.

    Each is a diagonal and a matrix of rank 2 (see ``_Part``): diag(q²) + q r' + r q'.
    """
    common = [(a[clip], b[clip]) for clip in a.keys() & b.keys()]
    diagonal = math.fsum(x.q**2 * y.q**2 + 2 * x.q**2 * y.q * y.r + 2 * y.q**2 * x.q * x.r for x, y in common)
    qq = math.fsum(x.q * y.q for x, y in common)
    qr = math.fsum(x.q * y.r for x, y in common)
    rq = math.fsum(x.r * y.q for x, y in common)
    rr = math.fsum(x.r * y.r for x, y in common)
    return diagonal + 2 * (qq * rr + qr * rq)
