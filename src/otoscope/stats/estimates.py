"""Weighted means of samples that come in clips, with their intervals.

One estimator serves every cell: a stratum is a task, its weight is the share of its mean in the cell. The
questions of one clip are not independent, and a clip may stand in two tasks, so the clip is what varies.
A cell has several columns of values: what they owe to the clips alone is in its ``Design``, made once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, combinations_with_replacement
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


class Design:
    """Which clip each value comes from, and what each stratum's mean weighs: made once for many columns.

    ``strata`` are (weight, clips), as in ``Stratum``. A column is given as the values of each stratum, in the
    same order. Raises ``ValueError`` when there is no stratum, a stratum is empty or a weight is not finite.
    """

    def __init__(self, strata: Sequence[tuple[float, Sequence[Hashable]]]) -> None:
        if not strata:
            raise ValueError("an estimate needs at least one stratum")
        for weight, clips in strata:
            if not clips:
                raise ValueError("a stratum needs values, and a clip for each: it has no clip")
            if not math.isfinite(weight):
                raise ValueError(f"an estimate needs finite weights, not {weight}")
        self._strata = [_Clips(weight, clips) for weight, clips in strata]
        self._places = _places(clip for stratum in self._strata for clip in stratum.places)

    @property
    def clips(self) -> int:
        """Number of distinct clips."""
        return len(self._places)

    def estimate(
        self, values: Sequence[Sequence[float]], *, low: float = -math.inf, high: float = math.inf
    ) -> Estimate:
        """Return the weighted sum of the strata's means with its 95 % interval, clipped to [low, high].

        The variance is the linearised one of survey sampling, summed by clip over all strata before squaring
        (Liang & Zeger 1986, Biometrika 73; Särndal, Swensson & Wretman 1992, 5.5): a clip that makes up the
        share f of a stratum of G clips deviates by f (clip's mean - stratum's mean), times the correction
        sqrt((G - 1) / G) / (1 - f). That is sqrt(G / (G - 1)) where every clip has as many questions, and in
        general the jackknife that deletes one clip at a time ("CR3": Bell & McCaffrey 2002, Survey
        Methodology 28; MacKinnon, Nielsen & Webb 2023, Journal of Econometrics 232), which does not come out
        too small where some clips carry more questions than others.

        Student's t has Satterthwaite's degrees of freedom: see ``_degrees_of_freedom``. Nothing depends on
        the order of values, clips or strata. Raises ``ValueError`` unless each stratum has one finite value
        to a clip.
        """
        self._check(values)
        means = [math.fsum(column) / len(column) for column in values]
        value = math.fsum(stratum.weight * mean for stratum, mean in zip(self._strata, means, strict=True))
        if min(len(stratum.places) for stratum in self._strata) < 2:
            return Estimate(value, None, None, None)
        deviations = [
            stratum.deviations(column, mean)
            for stratum, column, mean in zip(self._strata, values, means, strict=True)
        ]
        standard_error = math.sqrt(
            _sum_of_squares(_sums(list(chain.from_iterable(deviations)), self._places.values()))
        )
        size = math.fsum(
            abs(stratum.weight) * max(map(abs, column))
            for stratum, column in zip(self._strata, values, strict=True)
        )
        if standard_error <= _ROUNDING * size:
            return Estimate(value, 0.0, None, None)
        df = self._degrees_of_freedom([_sum_of_squares(of_stratum) for of_stratum in deviations])
        if df < _MIN_DF * (1 - _ROUNDING):
            return Estimate(value, standard_error, df, None)
        margin = student_t_quantile(0.975, df) * standard_error
        return Estimate(value, standard_error, df, (max(low, value - margin), min(high, value + margin)))

    def rate(self, values: Sequence[Sequence[float]]) -> Estimate:
        """Return the weighted share of ones among values of 0 and 1, with its 95 % interval within [0, 1].

        As ``estimate``. Where nothing varies but every stratum has 2 clips or more, the interval is Wilson's
        for 1 / sum(weight² / clips) clips: as many as would give one unweighted sample the same variance.
        Raises ``ValueError`` as ``estimate`` does.
        """
        share = self.estimate(values, low=0.0, high=1.0)
        if share.standard_error != 0:
            return share
        clips = 1 / math.fsum(stratum.weight**2 / len(stratum.places) for stratum in self._strata)
        # The weights may sum to a little over 1 in the last bit.
        value = min(1.0, max(0.0, share.value))
        return replace(share, value=value, ci95=wilson(value, clips))

    def _check(self, values: Sequence[Sequence[float]]) -> None:
        if len(values) != len(self._strata):
            raise ValueError(f"an estimate needs values for {len(self._strata)} strata, not {len(values)}")
        for stratum, column in zip(self._strata, values, strict=True):
            if len(column) != stratum.n:
                raise ValueError(
                    f"a stratum needs values, and a clip for each: {len(column)} values, {stratum.n} clips"
                )
            if not all(map(math.isfinite, column)):
                raise ValueError("an estimate needs finite values")

    def _degrees_of_freedom(self, variances: Sequence[float]) -> float:
        """Return the degrees of freedom of the variance: twice its squared mean over its variance.

        ``variances`` are those that each stratum alone would have. Source: Satterthwaite 1946, Biometrics
        Bulletin 2, for the sum of squares of correlated deviations as in Bell & McCaffrey 2002. In the
        working model the clips' means in a stratum are independent with one variance; with C the covariance
        of the deviations, df = trace(C)² / trace(C C), where C sums the strata that a clip stands in. Two
        choices of the strata's variances, and the smaller result: those observed, which for strata without
        common clips and with as many questions in each clip give the classic V² / sum(V_t² / (G_t - 1)) and
        for clips that all stand in the same strata G - 1; and all equal, which holds the noise of the first
        down when there are few clips.
        """
        observed = [
            variance / stratum.trace if stratum.trace else 0.0
            for variance, stratum in zip(variances, self._strata, strict=True)
        ]
        return min(self._satterthwaite(observed), self._satterthwaite([1.0] * len(observed)))

    def _satterthwaite(self, scales: Sequence[float]) -> float:
        """Return trace(C)² / trace(C C) for C = sum(scale * C of a stratum)."""
        mean = math.fsum(scale * stratum.trace for scale, stratum in zip(scales, self._strata, strict=True))
        square = math.fsum(scales[a] * scales[b] * product for (a, b), product in self._products.items())
        return mean * mean / square

    @cached_property
    def _products(self) -> dict[tuple[int, int], float]:
        """The trace of the product of two strata's covariances; for two different strata, of both orders."""
        pairs = combinations_with_replacement(range(len(self._strata)), 2)
        return {
            (a, b): (1 if a == b else 2) * _trace_of_product(self._strata[a], self._strata[b])
            for a, b in pairs
        }


def estimate(strata: Sequence[Stratum], *, low: float = -math.inf, high: float = math.inf) -> Estimate:
    """Return ``Design.estimate`` of one column; raises ``ValueError`` as it and ``Design`` do."""
    return _design(strata).estimate([stratum.values for stratum in strata], low=low, high=high)


def rate(strata: Sequence[Stratum]) -> Estimate:
    """Return ``Design.rate`` of one column; raises ``ValueError`` as it and ``Design`` do."""
    return _design(strata).rate([stratum.values for stratum in strata])


def _design(strata: Sequence[Stratum]) -> Design:
    return Design([(stratum.weight, stratum.clips) for stratum in strata])


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


class _Alike(NamedTuple):
    """What each of the clips that have one and the same number of questions is to their stratum."""

    clips: int
    """How many they are."""
    factor: float
    """From the sum of a clip's residuals to what it adds to the estimate's error, its deviation."""
    q: float
    r: float
    """The working model's covariance of two clips' deviations g and h is q_g r_h + r_g q_h, and q_g² more
    where g is h, in units of the variance of a clip's mean."""


class _Clips:
    """One stratum's clips and what its mean weighs. Needs 2 clips for more than the attributes."""

    def __init__(self, weight: float, clips: Sequence[Hashable]) -> None:
        self.weight = weight
        self.n = len(clips)
        self.places = _places(clips)
        self.questions = {clip: len(places) for clip, places in self.places.items()}

    @cached_property
    def alike(self) -> dict[int, _Alike]:
        """The clips by their number of questions."""
        sizes = Counter(self.questions.values())
        squares = math.fsum(count * (questions / self.n) ** 2 for questions, count in sizes.items())
        clips = len(self.places)
        alike = {}
        for questions, count in sizes.items():
            share = questions / self.n
            factor = self.weight * math.sqrt((clips - 1) / clips) / (1 - share)
            q = factor * share
            alike[questions] = _Alike(count, factor / self.n, q, q * (squares / 2 - share))
        return alike

    @cached_property
    def trace(self) -> float:
        """The trace of the working model's covariance."""
        return math.fsum(x.clips * (x.q * (x.q + 2 * x.r)) for x in self.alike.values())

    @cached_property
    def _factors(self) -> list[float]:
        return [self.alike[questions].factor for questions in self.questions.values()]

    def deviations(self, values: Sequence[float], mean: float) -> list[float]:
        """Return what each clip adds to the estimate's error."""
        sums = _sums([value - mean for value in values], self.places.values())
        return [factor * total for factor, total in zip(self._factors, sums, strict=True)]


def _places(clips: Iterable[Hashable]) -> dict[Hashable, list[int]]:
    """Return where each clip stands."""
    places: dict[Hashable, list[int]] = {}
    for place, clip in enumerate(clips):
        places.setdefault(clip, []).append(place)
    return places


def _sums(values: Sequence[float], groups: Collection[Sequence[int]]) -> Sequence[float]:
    """Return the sum of the values of each clip; ``groups`` are the ``_places`` of all of them."""
    if len(groups) == len(values):
        return values
    # Most clips stand alone even here, and each math.fsum costs much more than all the rest.
    return [
        values[group[0]] if len(group) == 1 else math.fsum([values[place] for place in group])
        for group in groups
    ]


def _sum_of_squares(values: Iterable[float]) -> float:
    return math.fsum([value * value for value in values])


def _trace_of_product(a: _Clips, b: _Clips) -> float:
    """Return trace(A B) of two strata's covariances, in time linear in the number of clips.

    Each is a diagonal and a matrix of rank 2 (see ``_Alike``): diag(q²) + q r' + r q'. Clips that have as
    many questions in each stratum are alike. ``a`` and ``b`` can be exchanged, to the last bit.
    """
    common = Counter(
        (a.questions[clip], b.questions[clip]) for clip in a.questions.keys() & b.questions.keys()
    )
    alike = [(count, a.alike[m], b.alike[k]) for (m, k), count in common.items()]
    diagonal = math.fsum(
        count * (x.q * y.q * (x.q * y.q + 2 * (x.q * y.r + x.r * y.q))) for count, x, y in alike
    )
    qq = math.fsum(count * (x.q * y.q) for count, x, y in alike)
    qr = math.fsum(count * (x.q * y.r) for count, x, y in alike)
    rq = math.fsum(count * (x.r * y.q) for count, x, y in alike)
    rr = math.fsum(count * (x.r * y.r) for count, x, y in alike)
    return diagonal + 2 * (qq * rr + qr * rq)
