"""Cells of paired samples: the same pools and means as a run's own, over the samples in common.

A category pools its samples: a task's weight is its share of them. Mixed audio is the mean of its two
categories, the Average that of speech, sound, music and mixed audio (AIR-Bench, ACL 2024); both are not
available unless every part is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from otoscope.benchmark import (
    AVERAGE_PARTS,
    CATEGORIES,
    MIXED_PARTS,
    SCORE_MAX,
    SCORE_MIN,
    TASK_GROUPS,
    TASKS,
)
from otoscope.comparison.pairing import Paired
from otoscope.stats import Estimate, Stratum, estimate

CELLS: tuple[str, ...] = (*CATEGORIES, "mixed_audio", "average", "all_samples")
_PARTS: Mapping[str, tuple[str, ...]] = {"mixed_audio": MIXED_PARTS, "average": AVERAGE_PARTS}

Column = Callable[[Paired], float]


@dataclass(frozen=True, slots=True)
class Difference:
    """A mean in two runs, and its paired difference: ``value`` = ``mean`` - ``baseline_mean``.

    ``ci95`` is over questions and clips, judge and decoding held fixed: see :func:`otoscope.stats.estimate`.
    It is ``None`` where it is not available, and where the runs are ``identical``. ``value_full_weights`` is
    ``value`` with each task weighted by its size in the full set: ``None`` where a task is missing.
    """

    baseline_mean: float
    mean: float
    value: float
    standard_error: float | None
    ci95: tuple[float, float] | None
    identical: bool
    """Whether the difference is 0 in each of the samples."""
    value_full_weights: float | None


@dataclass(frozen=True, slots=True)
class Group:
    """The paired samples of one cell, by task. ``parts`` are those that a mean of parts is of."""

    tasks: Mapping[str, Sequence[Paired]]
    full: Sequence[str]
    """The cell's tasks in the full set."""
    parts: Sequence[Group] = ()
    complete: bool = True
    """Whether no part is missing: else the cell has counts and no numbers."""

    @property
    def samples(self) -> list[Paired]:
        """All samples of the cell."""
        return [sample for samples in self.tasks.values() for sample in samples]

    @property
    def clips(self) -> int:
        """Number of distinct clips."""
        return len({sample.clip for sample in self.samples})

    def mean(self, column: Column) -> float:
        """Return the cell's mean of a column, as a run's own report computes it."""
        values = [part.mean(column) for part in self.parts] or [column(one) for one in self.samples]
        return math.fsum(values) / len(values)

    def weights(self) -> dict[str, float]:
        """Return the weight of each task's mean in the cell's; they add up to 1."""
        if not self.parts:
            total = len(self.samples)
            return {task: len(samples) / total for task, samples in self.tasks.items()}
        return {
            task: weight / len(self.parts) for part in self.parts for task, weight in part.weights().items()
        }

    def mean_full_weights(self, column: Column) -> float | None:
        """Return the same, each task weighted by its size in the full set; ``None`` where one is missing."""
        if self.parts:
            means = [part.mean_full_weights(column) for part in self.parts]
            known = [mean for mean in means if mean is not None]
            return math.fsum(known) / len(known) if len(known) == len(means) else None
        if any(task not in self.tasks for task in self.full):
            return None
        weighted = [
            TASKS[task].samples / len(samples) * column(one)
            for task, samples in self.tasks.items()
            for one in samples
        ]
        return math.fsum(weighted) / sum(TASKS[task].samples for task in self.full)

    @property
    def has_other_shares(self) -> bool:
        """Whether the full set's tasks are all there, with other shares of the samples than in it."""
        if self.parts:
            return self.complete and any(part.has_other_shares for part in self.parts)
        if any(task not in self.tasks for task in self.full):
            return False
        n, size = len(self.samples), sum(TASKS[task].samples for task in self.full)
        # Whole numbers, multiplied out: a share is equal or it is not.
        return any(len(own) * size != TASKS[task].samples * n for task, own in self.tasks.items())

    def strata(self, column: Column) -> list[Stratum]:
        """Return a column of the cell as strata, one for each task."""
        weights = self.weights()
        return [
            Stratum(weights[task], [column(one) for one in samples], [one.clip for one in samples])
            for task, samples in self.tasks.items()
        ]

    def difference(self, baseline: Column, other: Column) -> Difference:
        """Return the paired difference of two columns of scores."""
        lead = leads(baseline, other)
        identical = not any(lead(sample) for sample in self.samples)
        span = SCORE_MAX - SCORE_MIN
        known = (
            Estimate(0.0, None, None, None)
            if identical
            else estimate(self.strata(lead), low=-span, high=span)
        )
        return Difference(
            baseline_mean=self.mean(baseline),
            mean=self.mean(other),
            value=self.mean(lead),
            standard_error=known.standard_error,
            ci95=known.ci95,
            identical=identical,
            value_full_weights=self.mean_full_weights(lead),
        )


def leads(baseline: Column, other: Column) -> Column:
    """Return the column of differences, by sample: 0 where they are only those of binary fractions."""
    # (8.1 + 8.2) / 2 and (8.3 + 8.0) / 2 differ in the last bit. Adding 0.0 makes 0.0 of -0.0.
    return lambda sample: round(other(sample) - baseline(sample), 9) + 0.0


def scores_of(letter: str) -> Column:
    """Return the column of the model's scores in a run."""
    return lambda sample: sample.score(letter)


def references_of(letter: str) -> Column:
    """Return the column of the reference's scores in a run."""
    return lambda sample: sample.reference(letter)


def group(paired: Sequence[Paired]) -> dict[str, Group]:
    """Return the samples of every cell, by its name, in the order of ``CELLS``."""
    by_task: dict[str, list[Paired]] = {}
    for sample in paired:
        by_task.setdefault(sample.task, []).append(sample)
    tasks = {name: by_task[name] for name in TASKS if name in by_task}
    groups: dict[str, Group] = {}
    for category in CATEGORIES:
        own = {name: samples for name, samples in tasks.items() if TASKS[name].category == category}
        groups[category] = Group(own, TASK_GROUPS[category], complete=bool(own))
    for name, parts in _PARTS.items():
        groups[name] = _mean_of([groups[part] for part in parts])
    groups["all_samples"] = Group(tasks, tuple(TASKS))
    return groups


def _mean_of(parts: Sequence[Group]) -> Group:
    tasks = {task: samples for part in parts for task, samples in part.tasks.items()}
    full = [task for part in parts for task in part.full]
    return Group(tasks, full, parts, complete=all(part.complete for part in parts))
