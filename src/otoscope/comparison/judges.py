"""Differences between judges of the same answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from otoscope.comparison.cells import Difference, Group, references_of, scores_of
from otoscope.comparison.pairing import Paired
from otoscope.stats import rate
from otoscope.stats.ranks import spearman


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeCell:
    """How two judges differ in one cell; ``None`` is "not available"."""

    n: int
    clips: int
    gpt_score: Difference | None = None
    """Of the model's answers."""
    reference_score: Difference | None = None
    """Of the reference answers."""
    agreement: float | None = None
    """Share of the samples (0 to 1) in which both let the same one win: model, reference or neither."""
    agreement_ci95: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class JudgeDifference:
    """How the judge of a run differs from the baseline's, over the same answers."""

    run: str
    """The letter of the run."""
    cells: Mapping[str, JudgeCell]
    rank_correlation: float | None
    """Spearman's, of the model's scores over all samples in common; ``None`` where one is constant."""
    kappa: float | None
    """Cohen's, of win, tie and loss over all samples in common; ``None`` where chance alone agrees always."""


def compare_judges(
    groups: Mapping[str, Group], paired: Sequence[Paired], baseline: str, others: Sequence[str]
) -> tuple[JudgeDifference, ...]:
    """Compare the judge of each other run with the baseline's."""
    return tuple(
        JudgeDifference(
            run,
            {name: _cell(group, baseline, run) for name, group in groups.items()},
            spearman(_ranked(paired, baseline), _ranked(paired, run)),
            _kappa([(_result(one, baseline), _result(one, run)) for one in paired]),
        )
        for run in others
    )


def _cell(group: Group, baseline: str, run: str) -> JudgeCell:
    if not group.complete:
        return JudgeCell(n=len(group.samples), clips=group.clips)

    def agrees(sample: Paired) -> float:
        return float(_result(sample, baseline) == _result(sample, run))

    return JudgeCell(
        n=len(group.samples),
        clips=group.clips,
        gpt_score=group.difference(scores_of(baseline), scores_of(run)),
        reference_score=group.difference(references_of(baseline), references_of(run)),
        agreement=group.mean(agrees),
        agreement_ci95=rate(group.strata(agrees)).ci95,
    )


def _result(sample: Paired, letter: str) -> str:
    return str(sample.samples[letter].result.result)


def _ranked(paired: Sequence[Paired], letter: str) -> list[float]:
    # Scores that differ only as binary fractions do are ties.
    return [round(sample.score(letter), 9) for sample in paired]


def _kappa(results: Sequence[tuple[str, str]]) -> float | None:
    """Return Cohen's kappa (Educational and Psychological Measurement 20, 1960): agreement beyond chance."""
    n = len(results)
    first, second = Counter(a for a, _ in results), Counter(b for _, b in results)
    by_chance = sum(first[result] * second[result] for result in first)
    if by_chance == n * n:
        return None
    agreed = sum(a == b for a, b in results)
    # Whole numbers, multiplied out by n squared.
    return (n * agreed - by_chance) / (n * n - by_chance)
