"""Quantiles of Student's t for any real degrees of freedom, without scipy: it would load for a second."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

_TINY = 1e-300
"""Stands for a denominator of 0 in the continued fraction."""


def student_t_quantile(p: float, df: float) -> float:
    """Return the value that Student's t with ``df`` degrees of freedom stays below with probability ``p``.

    The tail probability is an incomplete beta function (Abramowitz & Stegun 1964, 26.7.1). Raises
    ``ValueError`` unless 0 < p < 1 and ``df`` is finite and at least 1.
    """
    if not 0 < p < 1:
        raise ValueError(f"a quantile needs 0 < p < 1, not {p}")
    if not 1 <= df < math.inf:
        raise ValueError(f"Student's t needs finite degrees of freedom of at least 1, not {df}")
    if p < 0.5:
        return -_upper_quantile(p, df)
    return _upper_quantile(1 - p, df)


# The columns of a cell of one task have the same degrees of freedom.
@lru_cache(maxsize=1024)
def _upper_quantile(tail: float, df: float) -> float:
    """Return the ``t`` whose upper tail is ``tail``, at most 0.5.

    Newton's method from the first two terms of the expansion about the normal quantile (Abramowitz & Stegun
    1964, 26.7.5), which lie below: the tail falls and is convex, hence the steps only go up, until rounding
    stops them.
    """
    z = abs(NormalDist().inv_cdf(tail))
    t = z + (z**3 + z) / (4 * df)
    log_scale = _log_gamma_ratio(df / 2) - 0.5 * math.log(df * math.pi)
    while True:
        density = math.exp(log_scale - (df + 1) / 2 * math.log1p(t * t / df))
        following = t + (_upper_tail(t, df) - tail) / density
        if following <= t * (1 + 1e-15):
            return t
        t = following


def _upper_tail(t: float, df: float) -> float:
    """Return P(T > t) for ``t`` of at least 0."""
    x, y = df / (df + t * t), t * t / (df + t * t)
    if x < (df / 2 + 1) / (df / 2 + 2.5):
        return _incomplete_beta(df / 2, 0.5, x, y) / 2
    return (1 - _incomplete_beta(0.5, df / 2, y, x)) / 2


def _incomplete_beta(a: float, b: float, x: float, y: float) -> float:
    """Return the regularised incomplete beta function I_x(a, b), one of a and b being 1/2, with y = 1 - x.

    The continued fraction of Abramowitz & Stegun 1964, 26.5.8, by Lentz's method (Press et al., Numerical
    Recipes, 6.4); it converges quickly for x < (a + 1) / (a + b + 2).
    """
    if x == 0:
        return 0.0
    log_front = a * math.log(x) + b * math.log(y) + _log_gamma_ratio(max(a, b)) - 0.5 * math.log(math.pi)
    c, d = 1.0, 1 / _nonzero(1 - (a + b) * x / (a + 1))
    fraction, m = d, 0
    while True:
        m += 1
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d, c = 1 / _nonzero(1 + even * d), _nonzero(1 + even / c)
        fraction *= d * c
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        d, c = 1 / _nonzero(1 + odd * d), _nonzero(1 + odd / c)
        fraction *= d * c
        if abs(d * c - 1) < 1e-15:
            return math.exp(log_front) * fraction / a


def _log_gamma_ratio(a: float) -> float:
    """Return log(gamma(a + 1/2) / gamma(a)); by its series where a difference of logarithms is coarse."""
    if a < 30:
        return math.lgamma(a + 0.5) - math.lgamma(a)
    return 0.5 * math.log(a) - 1 / (8 * a) + 1 / (192 * a**3) - 1 / (640 * a**5) + 17 / (14336 * a**7)


def _nonzero(x: float) -> float:
    return x if abs(x) > _TINY else _TINY
