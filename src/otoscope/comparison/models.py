"""Differences between models: paired, with intervals, tests, and who won how often."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from otoscope.benchmark import CATEGORIES
from otoscope.comparison.cells import Column, Difference, Group, leads, scores_of
from otoscope.stats.permutation import holm, sign_flip_test

DRAWS, SEED = 10_000, 0
DETECTABLE = 2.80
"""Standard errors that a difference must have to be found in 80 % of studies by a two-sided test at 5 %:
1.96 + 0.84, the normal quantiles of 0.975 and 0.80."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCell:
    """How two models differ in one cell; ``None`` is "not available". Rates are from 0 to 1.

    ``p`` is of the sign-flip permutation test with one flip per clip for all its samples, (1 + b) / (1 + B);
    ``p_holm`` is the same after Holm's correction over the five categories times the models compared with
    the baseline, and ``None`` outside of that family. A win is a sample that got a higher score than with
    the baseline. ``detectable_difference`` is 2.80 standard errors of the paired difference.
    """

    n: int
    clips: int
    gpt_score: Difference | None = None
    p: float | None = None
    p_holm: float | None = None
    detectable_difference: float | None = None
    wins: int | None = None
    ties: int | None = None
    losses: int | None = None
    win_rate: float | None = None
    tie_rate: float | None = None
    loss_rate: float | None = None


@dataclass(frozen=True, slots=True)
class ModelDifference:
    """How the model of a run differs from the baseline's, in every cell."""

    run: str
    """The letter of the run."""
    cells: Mapping[str, ModelCell]


def compare_models(
    groups: Mapping[str, Group], baseline: str, others: Sequence[str]
) -> tuple[tuple[ModelDifference, ...], int]:
    """Compare each other run with the baseline; also return how many tests Holm's correction is over."""
    found = {run: _cells(groups, baseline, run) for run in others}
    family = [(cells, name) for cells in found.values() for name in CATEGORIES if groups[name].complete]
    adjusted = holm([p for cells, name in family if (p := cells[name].p) is not None])
    for (cells, name), p_holm in zip(family, adjusted, strict=True):
        cells[name] = replace(cells[name], p_holm=p_holm)
    return tuple(ModelDifference(run, cells) for run, cells in found.items()), len(family)


def _cells(groups: Mapping[str, Group], baseline: str, run: str) -> dict[str, ModelCell]:
    lead = leads(scores_of(baseline), scores_of(run))
    tested = {name: group for name, group in groups.items() if group.complete}
    p_values = dict(zip(tested, sign_flip_test(_by_clip(tested, lead), draws=DRAWS, seed=SEED), strict=True))
    return {
        name: _cell(group, baseline, run, p_values[name])
        if group.complete
        else ModelCell(n=len(group.samples), clips=group.clips)
        for name, group in groups.items()
    }


def _cell(group: Group, baseline: str, run: str, p: float) -> ModelCell:
    difference = group.difference(scores_of(baseline), scores_of(run))
    lead = leads(scores_of(baseline), scores_of(run))
    signs = [(lead(sample) > 0) - (lead(sample) < 0) for sample in group.samples]
    error = difference.standard_error
    return ModelCell(
        n=len(group.samples),
        clips=group.clips,
        gpt_score=difference,
        p=1.0 if difference.identical else p,
        detectable_difference=DETECTABLE * error if error else None,
        wins=signs.count(1),
        ties=signs.count(0),
        losses=signs.count(-1),
        win_rate=group.mean(lambda sample: lead(sample) > 0),
        tie_rate=group.mean(lambda sample: lead(sample) == 0),
        loss_rate=group.mean(lambda sample: lead(sample) < 0),
    )


def _by_clip(groups: Mapping[str, Group], lead: Column) -> list[list[float]]:
    """Return what each clip adds to each cell's difference: rows are clips, sorted, columns are cells."""
    rows: dict[str, list[float]] = {}
    for column, group in enumerate(groups.values()):
        weights = group.weights()
        for task, samples in group.tasks.items():
            for sample in samples:
                row = rows.setdefault(sample.clip, [0.0] * len(groups))
                row[column] += weights[task] * lead(sample) / len(samples)
    return [rows[clip] for clip in sorted(rows)]
