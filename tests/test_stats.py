"""Estimates, intervals, correlations and tests: each against brute force, with its properties."""

from __future__ import annotations

import itertools
import math
import random
import subprocess
import sys
from collections.abc import Hashable, Iterable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from otoscope.stats import (
    Design,
    Estimate,
    PairedStratum,
    Stratum,
    correlation_within,
    estimate,
    rate,
    student_t_quantile,
    wilson,
)
from otoscope.stats.permutation import holm, sign_flip_test
from otoscope.stats.ranks import spearman

SCORES = st.integers(0, 20).map(lambda half: half / 2)


@st.composite
def cells(draw: st.DrawFn, *, most: int = 3) -> list[Stratum]:
    """Draw strata whose clips carry several questions and may stand in several strata."""
    strata = []
    for _ in range(draw(st.integers(1, most))):
        clips = draw(st.lists(st.integers(0, 6), min_size=2, max_size=12).filter(lambda c: len(set(c)) > 1))
        values = draw(st.lists(SCORES, min_size=len(clips), max_size=len(clips)))
        strata.append(Stratum(draw(st.sampled_from([0.125, 0.25, 0.5, 1.0])), values, clips))
    return strata


def weighted_mean(strata: Sequence[Stratum]) -> float:
    """Return the estimate by its definition."""
    return sum(s.weight * sum(s.values) / len(s.values) for s in strata)


def deviations_matrix(strata: Sequence[Stratum]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the matrix from all values to the clips' deviations, and the working covariances of the values.

    Built from the definition: deleting a clip moves a stratum's mean to that of the rest. One working
    covariance for each stratum: a clip's values are one number, clips are independent with variance 1.
    """
    rows = [(t, clip) for t, stratum in enumerate(strata) for clip in stratum.clips]
    clips = sorted({clip for _, clip in rows}, key=str)
    matrix = np.zeros((len(clips), len(rows)))
    for t, stratum in enumerate(strata):
        own = set(stratum.clips)
        here = np.array([row[0] == t for row in rows])
        for g, clip in enumerate(clips):
            if clip not in own:
                continue
            rest = here & np.array([row[1] != clip for row in rows])
            moved = here / here.sum() - rest / rest.sum()
            matrix[g] += stratum.weight * math.sqrt((len(own) - 1) / len(own)) * moved
    labels = np.array([[t, clips.index(clip)] for t, clip in rows])
    same = (labels[:, None] == labels[None]).all(axis=2)
    covariances = [(same & (labels[:, 0] == t)).astype(float) for t in range(len(strata))]
    return matrix, covariances


def brute_force(strata: Sequence[Stratum]) -> tuple[float, float]:
    """Return the variance and its degrees of freedom with explicit matrices over all values."""
    matrix, covariances = deviations_matrix(strata)
    values = np.array([value for stratum in strata for value in stratum.values])
    variance = float(((matrix @ values) ** 2).sum())
    working = [matrix @ covariance @ matrix.T for covariance in covariances]
    place = np.array([t for t, stratum in enumerate(strata) for _ in stratum.values])
    observed = [
        float(((matrix[:, place == t] @ values[place == t]) ** 2).sum() / np.trace(working[t]))
        for t in range(len(strata))
    ]
    results = []
    for scales in (observed, [1.0] * len(strata)):
        c = sum(scale * w for scale, w in zip(scales, working, strict=True))
        results.append(float(np.trace(c) ** 2 / np.trace(c @ c)))
    return variance, min(results)


def interval(result: Estimate) -> tuple[float, float]:
    """Return the interval of an estimate that has one."""
    assert result.ci95 is not None
    return result.ci95


# --- Student's t ------------------------------------------------------------------------------------------


@given(
    p=st.floats(1e-10, 1 - 1e-10),
    df=st.one_of(st.floats(1, 50), st.floats(50, 1e6), st.integers(1, 3000)),
)
def test_student_t_quantile_is_scipys(p: float, df: float) -> None:
    """Any probability and any real degrees of freedom give scipy's quantile to nine digits."""
    expected = float(scipy_stats.t.ppf(p, df))
    assert student_t_quantile(p, df) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(("df", "printed"), [(1, 12.706), (2, 4.303), (3, 3.182), (10, 2.228), (1000, 1.962)])
def test_student_t_quantile_is_the_printed_tables(df: float, printed: float) -> None:
    """The two-sided 95 % values are those of the tables in textbooks."""
    assert round(student_t_quantile(0.975, df), 3) == printed


@given(p=st.floats(1e-6, 0.5), df=st.floats(1, 100))
def test_student_t_quantile_is_symmetric(p: float, df: float) -> None:
    """The quantiles of p and 1 - p differ in their sign alone."""
    assert student_t_quantile(1 - p, df) == pytest.approx(-student_t_quantile(p, df), rel=1e-8, abs=1e-9)


@pytest.mark.parametrize(
    ("p", "df"), [(0, 3), (1, 3), (math.nan, 3), (0.9, 0.5), (0.9, math.inf), (0.9, math.nan)]
)
def test_student_t_quantile_refuses_what_has_none(p: float, df: float) -> None:
    """Probabilities of 0 and 1 and degrees of freedom under 1 or without end are refused."""
    with pytest.raises(ValueError, match=r"quantile needs|freedom"):
        student_t_quantile(p, df)


# --- estimate ---------------------------------------------------------------------------------------------


def test_one_question_a_clip_is_the_textbooks_interval() -> None:
    """Independent values give the mean, s / sqrt(n) and Student's t with n - 1 degrees of freedom."""
    values = [3.0, 5.5, 7.0, 8.5, 9.0]
    result = estimate([Stratum(1.0, values, range(5))])
    assert result.value == pytest.approx(6.6)
    assert result.standard_error == pytest.approx(scipy_stats.sem(values))
    assert result.df == pytest.approx(4)
    assert interval(result) == pytest.approx(
        scipy_stats.t.interval(0.95, 4, loc=6.6, scale=scipy_stats.sem(values))
    )


@given(cells())
def test_estimate_is_the_matrix_form(strata: list[Stratum]) -> None:
    """Value, variance and degrees of freedom are those of explicit matrices over all values."""
    result = estimate(strata)
    assert result.value == pytest.approx(weighted_mean(strata))
    variance, df = brute_force(strata) if result.df is not None else (0.0, 0.0)
    assert result.standard_error == pytest.approx(math.sqrt(variance), abs=1e-9)
    if result.df is not None:
        assert result.df == pytest.approx(df)
        assert (result.ci95 is None) == (result.df < 2 - 1e-9)


@given(cells(most=1))
def test_variance_is_the_delete_one_clip_jackknife(strata: list[Stratum]) -> None:
    """In one stratum the variance is the jackknife's about the estimate, computed by leaving clips out."""
    (stratum,) = strata
    clips = set(stratum.clips)
    left_out = []
    for clip in clips:
        rest = [v for v, c in zip(stratum.values, stratum.clips, strict=True) if c != clip]
        left_out.append(stratum.weight * sum(rest) / len(rest))
    squares = sum((mean - weighted_mean(strata)) ** 2 for mean in left_out)
    expected = math.sqrt((len(clips) - 1) / len(clips) * squares)
    assert estimate(strata).standard_error == pytest.approx(expected, abs=1e-9)


def test_equal_clip_sizes_have_the_plain_correction() -> None:
    """Where each clip has two questions, the correction is G / (G - 1) on the residuals' sums by clip."""
    values = [1.0, 4.0, 6.0, 7.0, 9.0, 8.0]
    residuals = np.array(values) - np.mean(values)
    by_clip = residuals.reshape(3, 2).sum(axis=1) / 6
    result = estimate([Stratum(1.0, values, [0, 0, 1, 1, 2, 2])])
    assert result.standard_error == pytest.approx(math.sqrt(3 / 2 * (by_clip**2).sum()))
    assert result.df == pytest.approx(2)


def test_disjoint_strata_have_satterthwaites_degrees_of_freedom() -> None:
    """Strata without common clips give V² / sum(V_t² / (G_t - 1))."""
    first, second = [2.0, 7.0, 4.0, 9.0], [1.0, 8.0, 6.0, 2.0]
    result = estimate([Stratum(0.5, first, "abcd"), Stratum(0.5, second, "efgh")])
    v = [0.25 * np.var(values, ddof=1) / 4 for values in (first, second)]
    assert result.df == pytest.approx(sum(v) ** 2 / (v[0] ** 2 / 3 + v[1] ** 2 / 3))


@given(st.lists(st.tuples(SCORES, SCORES), min_size=3, max_size=12))
def test_clips_that_cross_two_strata_count_once(pairs: list[tuple[float, float]]) -> None:
    """Clips that all stand in both strata give the interval of their weighted sums, with G - 1."""
    first, second = [a for a, _ in pairs], [b for _, b in pairs]
    crossed = estimate([Stratum(0.8, first, range(len(pairs))), Stratum(0.2, second, range(len(pairs)))])
    sums = [0.8 * a + 0.2 * b for a, b in pairs]
    single = estimate([Stratum(1.0, sums, range(len(pairs)))])
    assert crossed.standard_error == pytest.approx(single.standard_error, abs=1e-9)
    if single.df is not None:
        assert crossed.df == pytest.approx(len(pairs) - 1)
        assert interval(crossed) == pytest.approx(interval(single))


def test_degrees_of_freedom_grow_from_crossed_to_disjoint() -> None:
    """The fewer clips two strata share, the more degrees of freedom there are, from G - 1 to 2 (G - 1)."""
    values = [3.0, 9.0, 5.0, 8.0, 6.0, 2.0]
    found = []
    for shift in range(7):
        clips = range(shift, 6 + shift)
        result = estimate([Stratum(0.5, values, range(6)), Stratum(0.5, values, clips)])
        assert result.df is not None
        found.append(result.df)
    assert found == sorted(found)
    assert found[0] == pytest.approx(5)
    assert found[-1] == pytest.approx(10)


def test_unequal_clips_have_fewer_degrees_of_freedom() -> None:
    """A clip with most of the questions leaves less to learn the spread from."""
    even = estimate([Stratum(1.0, [1, 2, 3, 4, 5, 7, 8, 9], "aabbccdd")])
    uneven = estimate([Stratum(1.0, [1, 2, 3, 4, 5, 7, 8, 9], "aaaaabcd")])
    assert even.df is not None
    assert uneven.df is not None
    assert uneven.df < even.df == pytest.approx(3)


def test_standard_error_is_the_cluster_bootstraps() -> None:
    """Drawing whole clips again, a clip with its questions in both tasks, spreads as the estimate says."""
    draw = np.random.default_rng(7)
    effects = [draw.normal(0, 1.5) for _ in range(80)]
    first = [
        (6 + effects[c] + draw.normal(0, 1), c) for c in range(80) for _ in range(int(draw.choice([1, 1, 2])))
    ]
    second = [(5 + effects[c] + draw.normal(0, 1), c) for c in range(80)]

    questions = [
        (weight, [[value for value, c in rows if c == clip] for clip in range(80)])
        for weight, rows in ((0.6, first), (0.4, second))
    ]

    def strata(clips: Iterable[int]) -> list[Stratum]:
        result = []
        for weight, by_clip in questions:
            drawn = [(value, place) for place, clip in enumerate(clips) for value in by_clip[clip]]
            result.append(Stratum(weight, [v for v, _ in drawn], [c for _, c in drawn]))
        return result

    again = [weighted_mean(strata(draw.integers(0, 80, 80).tolist())) for _ in range(1500)]
    result = estimate(strata(range(80)))
    assert result.standard_error == pytest.approx(np.std(again), rel=0.08)


@given(cells(), st.randoms(use_true_random=False))
def test_order_does_not_matter(strata: list[Stratum], shuffle: random.Random) -> None:
    """Rows and strata in another order give the same numbers to the last bit."""
    mixed = []
    for stratum in strata:
        rows = list(zip(stratum.values, stratum.clips, strict=True))
        shuffle.shuffle(rows)
        mixed.append(Stratum(stratum.weight, [v for v, _ in rows], [c for _, c in rows]))
    shuffle.shuffle(mixed)
    assert estimate(mixed) == estimate(strata)


@given(cells())
def test_copying_each_question_changes_nothing(strata: list[Stratum]) -> None:
    """A clip's question counted as two equal ones is no more evidence."""
    doubled = [Stratum(s.weight, [*s.values, *s.values], [*s.clips, *s.clips]) for s in strata]
    one, two = estimate(strata), estimate(doubled)
    assert two.value == pytest.approx(one.value)
    assert two.standard_error == pytest.approx(one.standard_error, abs=1e-9)
    assert two.df == (pytest.approx(one.df) if one.df is not None else None)


@given(cells(), st.floats(-20, 20), st.floats(0.1, 10))
def test_shift_and_scale_pass_through(strata: list[Stratum], shift: float, scale: float) -> None:
    """Adding a constant moves the value, a factor stretches value and standard error, neither touches df."""
    changed = [Stratum(s.weight, [shift + scale * v for v in s.values], s.clips) for s in strata]
    one, two = estimate(strata), estimate(changed)
    assert two.value == pytest.approx(shift * sum(s.weight for s in strata) + scale * one.value, abs=1e-9)
    assert two.standard_error == pytest.approx(scale * (one.standard_error or 0.0), abs=1e-9)
    assert two.df == (pytest.approx(one.df) if one.df is not None else None)


@given(cells())
def test_swapping_the_models_negates_the_difference(strata: list[Stratum]) -> None:
    """Differences with their signs turned give the mirrored value and interval."""
    turned = [Stratum(s.weight, [-v for v in s.values], s.clips) for s in strata]
    one, two = estimate(strata), estimate(turned)
    assert two.value == -one.value
    assert two.standard_error == one.standard_error
    if one.ci95 is not None:
        assert interval(two) == (-one.ci95[1], -one.ci95[0])


@given(cells())
def test_an_interval_stays_within_its_range(strata: list[Stratum]) -> None:
    """An interval holds its value and ends at the limits of the scale."""
    weights = sum(s.weight for s in strata)
    result = estimate([s._replace(weight=s.weight / weights) for s in strata], low=0, high=10)
    if result.ci95 is not None:
        assert 0 <= result.ci95[0] <= result.value <= result.ci95[1] <= 10


def test_a_stratum_of_one_clip_has_no_standard_error() -> None:
    """Fewer than two clips in any stratum leave the value alone."""
    strata = [Stratum(0.5, [1, 2, 3], "abc"), Stratum(0.5, [4, 6], "dd")]
    assert estimate(strata) == Estimate(3.5, None, None, None)


@pytest.mark.parametrize(
    ("values", "clips"),
    [([7.0] * 4, "abcd"), ([0.1] * 3, "abc"), ([3.0, 5.0, 3.0, 5.0], "aabb"), ([0.1, 0.3, 0.3, 0.1], "aabb")],
)
def test_clips_that_do_not_vary_have_no_interval(values: list[float], clips: str) -> None:
    """Clips with one and the same mean have a standard error of exactly 0, whatever the rounding."""
    result = estimate([Stratum(1.0, values, clips)])
    assert (result.standard_error, result.df, result.ci95) == (0.0, None, None)


def test_one_degree_of_freedom_has_no_interval() -> None:
    """Two clips have a standard error but, below two degrees of freedom, no interval."""
    result = estimate([Stratum(1.0, [2.0, 8.0], "ab")])
    assert result.standard_error == pytest.approx(3)
    assert result.df == pytest.approx(1)
    assert result.ci95 is None


def test_three_clips_have_an_interval() -> None:
    """Exactly two degrees of freedom suffice, whatever the rounding of their computation."""
    for values in ([6.0, 6.5, 0.5], [1.5, 5.5, 6.5], [0.1, 0.7, 9.3]):
        assert estimate([Stratum(0.25, values, "abc")]).ci95 is not None


@pytest.mark.parametrize(
    "strata",
    [
        [],
        [Stratum(1.0, [], [])],
        [Stratum(1.0, [1.0, 2.0], ["a"])],
        [Stratum(1.0, [1.0, math.nan], ["a", "b"])],
        [Stratum(math.inf, [1.0, 2.0], ["a", "b"])],
    ],
    ids=["no stratum", "an empty one", "a clip missing", "not a number", "an infinite weight"],
)
def test_estimate_refuses_what_has_no_value(strata: list[Stratum]) -> None:
    """Nothing, too few clips and numbers that are none are refused instead of giving NaN."""
    with pytest.raises(ValueError, match=r"stratum needs|estimate needs"):
        estimate(strata)


# --- many columns of one design ---------------------------------------------------------------------------


def design_of(strata: Sequence[Stratum]) -> Design:
    """Return the design of strata, without their values."""
    return Design([(stratum.weight, stratum.clips) for stratum in strata])


def holding(strata: Sequence[Stratum], column: Sequence[Sequence[float]]) -> list[Stratum]:
    """Return the strata with other values."""
    return [stratum._replace(values=values) for stratum, values in zip(strata, column, strict=True)]


@given(cells(), st.data())
def test_a_design_estimates_each_column_as_its_own(strata: list[Stratum], data: st.DataObject) -> None:
    """One design gives every column of scores or rates, in turn, what it gets alone, to the last bit."""
    weights = sum(stratum.weight for stratum in strata)
    strata = [stratum._replace(weight=stratum.weight / weights) for stratum in strata]
    design = design_of(strata)
    for _ in range(3):
        scores = [data.draw(st.lists(SCORES, min_size=len(s.clips), max_size=len(s.clips))) for s in strata]
        wins = [[float(score > 5) for score in of_stratum] for of_stratum in scores]
        assert design.estimate(scores, low=2, high=8) == estimate(holding(strata, scores), low=2, high=8)
        assert design.rate(wins) == rate(holding(strata, wins))


class CountedClip:
    """A clip that counts how often its hash is asked for."""

    asked = 0

    def __hash__(self) -> int:
        type(self).asked += 1
        return id(self)


def test_a_further_column_asks_nothing_of_the_clips() -> None:
    """What depends on the clips alone is worked out once, however many columns there are."""
    clips = [CountedClip() for _ in range(6)]
    design = Design([(0.5, clips[:4] * 2), (0.5, clips[2:])])
    first = design.estimate([[1, 2, 3, 4, 5, 6, 7, 9], [4, 3, 8, 1]])
    asked = CountedClip.asked
    second = design.estimate([[9, 2, 3, 4, 5, 1, 7, 9], [4, 3, 8, 2]])
    assert first.ci95 is not None
    assert second.ci95 is not None
    assert CountedClip.asked == asked > 0


@given(cells())
def test_a_design_counts_distinct_clips(strata: list[Stratum]) -> None:
    """A clip with several questions, or in several strata, is one clip."""
    assert design_of(strata).clips == len({clip for stratum in strata for clip in stratum.clips})


@pytest.mark.parametrize(
    "values",
    [[[1, 2]], [[1, 2], [3, 4], [5, 6]], [[1, 2], [3]], [[1, 2], [3, math.inf]]],
    ids=["a stratum missing", "a stratum more", "a value missing", "an infinite value"],
)
def test_a_design_refuses_values_that_do_not_fit(values: list[list[float]]) -> None:
    """Each stratum must have one finite value to a clip."""
    with pytest.raises(ValueError, match=r"stratum needs|estimate needs"):
        Design([(0.5, "ab"), (0.5, "cd")]).estimate(values)


# --- rates ------------------------------------------------------------------------------------------------


def test_wilson_is_scipys() -> None:
    """Wilson's interval is scipy's for whole counts."""
    for wins, n in ((0, 5), (5, 5), (3, 10), (411, 800)):
        expected = scipy_stats.binomtest(wins, n).proportion_ci(method="wilson")
        assert wilson(wins / n, n) == pytest.approx((expected.low, expected.high), abs=1e-12)


@given(st.floats(0, 1), st.floats(0.1, 1e6))
def test_wilson_holds_the_share(share: float, n: float) -> None:
    """The interval lies within 0 and 1, holds the share, and mirrors with it."""
    low, high = wilson(share, n)
    assert 0 <= low <= share <= high <= 1
    assert wilson(1 - share, n) == pytest.approx((1 - high, 1 - low), abs=1e-9)


@pytest.mark.parametrize(("share", "n"), [(-0.1, 3), (1.1, 3), (0.5, 0), (math.nan, 3), (0.5, math.nan)])
def test_wilson_refuses_what_is_no_share(share: float, n: float) -> None:
    """A share outside 0 to 1 and a sample of nothing are refused."""
    with pytest.raises(ValueError, match="an interval needs"):
        wilson(share, n)


def test_a_varying_rate_is_an_estimate_within_0_and_1() -> None:
    """Where wins and losses both occur, a rate is the estimate, cut to 0 to 1."""
    strata = [Stratum(1.0, [1, 0, 0, 0], "abcd")]
    assert rate(strata) == estimate(strata, low=0, high=1)
    assert interval(rate(strata))[0] == 0


def test_a_rate_without_variation_is_wilsons_over_clips() -> None:
    """Wins alone have Wilson's interval, with as many clips as the weights leave, not as many questions."""
    strata = [Stratum(0.8, [1] * 8, "aabbccdd"), Stratum(0.2, [1, 1], "ef")]
    result = rate(strata)
    assert result.value == pytest.approx(1)
    assert result.standard_error == 0
    assert interval(result) == pytest.approx(wilson(1, 1 / (0.64 / 4 + 0.04 / 2)))


def test_a_rate_of_one_clip_has_no_interval() -> None:
    """Wilson's interval needs two clips in every stratum too."""
    assert rate([Stratum(1.0, [1, 1, 1], "aaa")]).ci95 is None


def test_a_rate_survives_weights_that_sum_to_a_little_over_1() -> None:
    """The rounding of the weights does not push a share of 1 out of its range."""
    weights = (0.006628019742707442, 0.505665103192449, 0.4877068770648437)
    strata = [Stratum(weight, [1, 1], "ab") for weight in weights]
    assert estimate(strata).value > 1
    assert rate(strata).value == interval(rate(strata))[1] == 1


@given(st.lists(st.tuples(st.sampled_from([-1, 0, 1]), st.integers(0, 5)), min_size=2))
def test_wins_and_losses_swap(results: list[tuple[int, int]]) -> None:
    """The rate of what is no win is 1 less the rate of wins, its interval mirrored."""
    clips = [clip for _, clip in results]
    wins = rate([Stratum(1.0, [float(r == 1) for r, _ in results], clips)])
    others = rate([Stratum(1.0, [float(r != 1) for r, _ in results], clips)])
    assert others.value == pytest.approx(1 - wins.value)
    if wins.ci95 is None:
        assert others.ci95 is None
    else:
        assert interval(others) == pytest.approx((1 - wins.ci95[1], 1 - wins.ci95[0]), abs=1e-9)


# --- correlation ------------------------------------------------------------------------------------------


def pairs_of(draw: np.random.Generator, tasks: int, clips: int) -> list[PairedStratum]:
    """Draw pairs that correlate within tasks, two questions to every third clip."""
    strata = []
    for task in range(tasks):
        rows: list[tuple[float, float, Hashable]] = []
        for clip in range(clips):
            for _ in range(2 if clip % 3 == 0 else 1):
                x = draw.normal(100 * task, 1)
                rows.append((x, 0.5 * x + draw.normal(-70 * task, 1), (task, clip)))
        strata.append(PairedStratum(*(list(column) for column in zip(*rows, strict=True))))
    return strata


def test_correlation_in_one_stratum_is_pearsons() -> None:
    """One stratum has Pearson's correlation."""
    (stratum,) = pairs_of(np.random.default_rng(1), 1, 20)
    expected = scipy_stats.pearsonr(stratum.x, stratum.y).statistic
    assert correlation_within([stratum]).value == pytest.approx(expected)


def test_correlation_between_strata_does_not_count() -> None:
    """Tasks that differ in both means do not correlate for that; only what is within them counts."""
    strata = pairs_of(np.random.default_rng(2), 3, 20)
    x = np.concatenate([np.array(s.x) - np.mean(s.x) for s in strata])
    y = np.concatenate([np.array(s.y) - np.mean(s.y) for s in strata])
    result = correlation_within(strata)
    assert result.value == pytest.approx(np.corrcoef(x, y)[0, 1])
    assert result.ci95 is not None
    assert -1 < result.ci95[0] < float(result.value or 0) < result.ci95[1] < 1


def test_correlation_has_the_jackknifes_interval() -> None:
    """The standard error on Fisher's scale is close to that of leaving out one clip at a time."""
    strata = pairs_of(np.random.default_rng(3), 2, 60)
    clips = sorted({clip for s in strata for clip in s.clips}, key=str)
    left_out = []
    for clip in clips:
        rest = []
        for s in strata:
            rows = [row for row in zip(*s, strict=True) if row[2] != clip]
            rest.append(PairedStratum(*(list(column) for column in zip(*rows, strict=True))))
        left_out.append(math.atanh(correlation_within(rest).value or 0.0))
    jackknife = math.sqrt((len(clips) - 1) * float(np.var(left_out)))
    result = correlation_within(strata)
    assert result.ci95 is not None
    half = (math.atanh(result.ci95[1]) - math.atanh(result.ci95[0])) / 2
    assert half / student_t_quantile(0.975, len(clips) - 3) == pytest.approx(jackknife, rel=0.05)


@given(st.lists(st.tuples(SCORES, SCORES, st.integers(0, 8)), min_size=3, max_size=20), st.randoms())
def test_correlation_turns_with_its_sign(
    rows: list[tuple[float, float, int]], shuffle: random.Random
) -> None:
    """Order does not matter, x and y may change places, and a turned sign mirrors value and interval."""
    one = correlation_within([PairedStratum(*zip(*rows, strict=True))])
    shuffle.shuffle(rows)
    x, y, clips = zip(*rows, strict=True)
    assert correlation_within([PairedStratum(x, y, clips)]) == one
    assert correlation_within([PairedStratum(y, x, clips)]) == one
    turned = correlation_within([PairedStratum(x, [-b for b in y], clips)])
    if one.value is None:
        assert turned.value is None
    else:
        assert -1 <= one.value <= 1
        assert turned.value == -one.value
    if one.ci95 is not None:
        assert turned.ci95 == (-one.ci95[1], -one.ci95[0])


@pytest.mark.parametrize(
    ("x", "y", "clips", "has_value"),
    [
        ([1, 2, 3], [2, 1, 5], "aab", False),
        ([1, 1, 1], [2, 1, 5], "abc", False),
        ([1, 2, 3], [0.1, 0.1, 0.1], "abc", False),
        ([1, 2, 3], [2, 4, 6], "abc", True),
        ([], [], "", False),
    ],
    ids=["two clips", "x does not vary", "y does not vary", "proportional", "nothing"],
)
def test_correlation_says_where_it_is_not_available(
    x: list[float], y: list[float], clips: str, has_value: bool
) -> None:
    """Too few clips and no variation leave no value; proportional pairs leave no interval."""
    result = correlation_within([PairedStratum(x, y, clips)])
    assert (result.value is not None) == has_value
    assert result.ci95 is None


def test_correlation_leaves_out_strata_of_one_sample() -> None:
    """A task of one sample has no deviation and takes no degree of freedom."""
    strata = pairs_of(np.random.default_rng(4), 1, 10)
    assert correlation_within([*strata, PairedStratum([3.0], [9.0], ["z"])]) == correlation_within(strata)


@pytest.mark.parametrize("y", [[1.0, 2.0], [1.0, 2.0, math.inf]])
def test_correlation_refuses_what_has_no_pairs(y: list[float]) -> None:
    """Columns of different lengths and infinite numbers are refused."""
    with pytest.raises(ValueError, match="a correlation needs"):
        correlation_within([PairedStratum([1.0, 2.0, 3.0], y, "abc")])


# --- ranks ------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(SCORES, SCORES), min_size=2))
def test_spearman_is_scipys(pairs: list[tuple[float, float]]) -> None:
    """Ties have their average rank; without variation there is no correlation."""
    x, y = [a for a, _ in pairs], [b for _, b in pairs]
    result = spearman(x, y)
    if len(set(x)) == 1 or len(set(y)) == 1:
        assert result is None
    else:
        assert result == pytest.approx(scipy_stats.spearmanr(x, y).statistic)


def test_spearman_refuses_what_has_no_pairs() -> None:
    """Columns of different lengths are refused."""
    with pytest.raises(ValueError, match="needs pairs"):
        spearman([1, 2], [1, 2, 3])


# --- permutation ------------------------------------------------------------------------------------------


def test_sign_flips_are_those_of_full_enumeration() -> None:
    """The p-values of ten clips are close to those over all 1,024 flips."""
    draw = np.random.default_rng(5)
    table = [[draw.normal(0.3, 1), draw.normal(0, 1), float(draw.choice([0.0, 0.0, 1.5]))] for _ in range(10)]
    flips = np.array(list(itertools.product([-1, 1], repeat=10)))
    exact = (np.abs(flips @ np.array(table)) >= np.abs(np.sum(table, axis=0)) - 1e-9).mean(axis=0)
    assert sign_flip_test(table) == pytest.approx(list(exact), abs=0.02)


def test_sign_flips_are_the_same_for_all_columns() -> None:
    """A column and its multiple, of either sign, have the same p-value: a clip flips as a whole."""
    draw = np.random.default_rng(6)
    table = [[x, -3 * x, x] for x in (draw.normal(0.4, 1) for _ in range(30))]
    first, second, third = sign_flip_test(table)
    assert first == second == third
    assert first == sign_flip_test([[row[0]] for row in table])[0]


def test_sign_flips_repeat_with_their_seed() -> None:
    """The same seed gives the same p-value, another one another."""
    table = [[x] for x in np.random.default_rng(8).normal(0.2, 1, 40)]
    assert sign_flip_test(table, seed=3) == sign_flip_test(table, seed=3)
    assert sign_flip_test(table, seed=3) != sign_flip_test(table, seed=4)


def test_sign_flips_never_give_zero() -> None:
    """A difference that no flip reaches has p = 1 / (1 + draws)."""
    assert sign_flip_test([[1.0]] * 60, draws=999) == [1 / 1000]


@given(
    st.lists(st.floats(-10, 10), min_size=1, max_size=6).flatmap(
        lambda row: st.lists(
            st.lists(st.floats(-10, 10), min_size=len(row), max_size=len(row)), min_size=1, max_size=9
        )
    )
)
@settings(max_examples=50)
def test_sign_flips_do_not_care_who_is_first(table: list[list[float]]) -> None:
    """Swapping the two models keeps every p-value; each is above 0 and at most 1."""
    p_values = sign_flip_test(table, draws=99)
    assert sign_flip_test([[-x for x in row] for row in table], draws=99) == p_values
    assert all(0 < p <= 1 for p in p_values)


def test_no_difference_has_p_1() -> None:
    """A column of zeros has p = 1, beside others and alone; no clips have no columns."""
    assert sign_flip_test([[0.0, 1.0]] * 50)[0] == 1
    assert sign_flip_test([[0.0]]) == [1]
    assert sign_flip_test([]) == []


def test_rounding_does_not_decide_a_sign_flip() -> None:
    """Flips that reach the observed sum save for the last bit count."""
    assert sign_flip_test([[0.1], [0.2], [-0.3]]) == [1]


@pytest.mark.parametrize("table", [[[1.0], [1.0, 2.0]], [[math.nan]]])
def test_sign_flips_refuse_what_is_no_table(table: list[list[float]]) -> None:
    """Rows of different lengths and numbers that are none are refused."""
    with pytest.raises(ValueError, match=r"inhomogeneous|finite"):
        sign_flip_test(table)


def test_holm_is_the_worked_example() -> None:
    """Four p-values are multiplied by 4, 3, 2 and 1 from the smallest up, and never fall."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.floats(0.001, 0.5))
def test_holm_rejects_what_the_step_down_rule_rejects(p_values: list[float], level: float) -> None:
    """An adjusted value is at most the level exactly where Holm's sequence of tests rejects."""
    adjusted = holm(p_values)
    assert all(p <= a <= 1 for p, a in zip(p_values, adjusted, strict=True))
    rejected = set()
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        if (len(p_values) - rank) * p_values[index] > level:
            break
        rejected.add(index)
    assert {index for index, a in enumerate(adjusted) if a <= level} == rejected


# --- the package ------------------------------------------------------------------------------------------


def test_the_estimates_load_without_numpy() -> None:
    """Numbers of a run need the standard library alone; only the permutation test loads numpy."""
    code = (
        "import sys, otoscope.stats, otoscope.stats.ranks; "
        "sys.exit(int(bool({'numpy', 'scipy'} & set(sys.modules))))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
