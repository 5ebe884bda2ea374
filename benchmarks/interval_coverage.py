"""How often the 95 % intervals contain the truth, on simulated runs; prints a Markdown table.

    python benchmarks/interval_coverage.py --runs 4000 --jobs 2

A simulated run has the benchmark's tasks and sizes, or the first ``limit`` samples of each task. The
questions of one clip stand together: a clip of a QA task has 1, 2 or 3 of them. The questions of
``sound_generation_QA`` are about the first clips of ``sound_QA``, one each, and likewise in music. An
answer's quality is the task's level plus an effect of the clip (shared by its questions, across tasks) plus
one of the question; but the model mishears some clips, with all their questions, and misses the point of
some questions, and is then much worse. The score is the mean of two integers: the quality with the judge's
error of each order, rounded and cut to 0 to 10. 5 % of the samples fail, whatever their score.

The truth is exact: an integer's expectation is a sum of normal probabilities. A category weighs each task's
true mean by its share of the category's scored samples, as its estimate does, so the truth is what that
estimate would become with more and more clips at the same shares. Runs in which a task of the cell scored
nothing have no estimate and count as without an interval.
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from multiprocessing import Pool
from statistics import NormalDist, fmean
from typing import NamedTuple

import numpy as np

from otoscope import __version__
from otoscope.benchmark import (
    AVERAGE_PARTS,
    CATEGORIES,
    MIXED_PARTS,
    SCORE_MAX,
    SCORE_MIN,
    TASK_GROUPS,
    TASKS,
)
from otoscope.stats import Stratum, estimate

LIMITS = (3, 10, None)
CELLS = ("speech", "sound", "music", "Average")

LEVELS = {
    "speech_QA": 8.0,
    "speech_dialogue_QA": 7.0,
    "sound_QA": 7.5,
    "sound_generation_QA": 6.5,
    "music_QA": 7.5,
    "music_generation_analysis_QA": 6.5,
    "speech_and_sound_QA": 7.0,
    "speech_and_music_QA": 6.5,
}
"""Quality of an answer that got the point."""
MISSED_LEVEL = 2.5
CLIPS_MISHEARD, QUESTIONS_MISSED = 0.1, 0.1
CLIP_SD, QUESTION_SD, JUDGE_SD = 1.0, 1.4, 0.7
QUESTIONS_PER_CLIP = {1: 0.6, 2: 0.3, 3: 0.1}
FAILED = 0.05


class Scores(NamedTuple):
    """One task's scored samples."""

    values: list[float]
    clips: list[str]


def true_mean(task: str) -> float:
    """Return the expectation of a score."""
    missed = 1 - (1 - CLIPS_MISHEARD) * (1 - QUESTIONS_MISSED)
    return (1 - missed) * _expected_score(LEVELS[task]) + missed * _expected_score(MISSED_LEVEL)


def _expected_score(level: float) -> float:
    quality = NormalDist(level, (CLIP_SD**2 + QUESTION_SD**2 + JUDGE_SD**2) ** 0.5)
    return SCORE_MIN + sum(1 - quality.cdf(k - 0.5) for k in range(SCORE_MIN + 1, SCORE_MAX + 1))


def simulate(random: np.random.Generator, limit: int | None) -> dict[str, Scores]:
    """Return one run's scores by task."""
    clips: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    run = {}
    for name, task in TASKS.items():
        n = min(limit or task.samples, task.samples)
        # Two tasks about the same kind of clip share them; each other task has its own.
        collection = task.category if task.category in ("sound", "music") else name
        if collection not in clips:
            most = max(other.samples for other in TASKS.values())
            clips[collection] = random.normal(0, CLIP_SD, most), random.random(most) < CLIPS_MISHEARD
        effects, misheard = clips[collection]
        clip = np.repeat(np.arange(n), 1 if "generation" in name else _questions(random, n))[:n]
        missed = misheard[clip] | (random.random(n) < QUESTIONS_MISSED)
        quality = (
            np.where(missed, MISSED_LEVEL, LEVELS[name]) + effects[clip] + random.normal(0, QUESTION_SD, n)
        )
        orders = np.rint(quality[:, None] + random.normal(0, JUDGE_SD, (n, 2)))
        scores = np.clip(orders, SCORE_MIN, SCORE_MAX).mean(axis=1)
        scored = random.random(n) >= FAILED
        run[name] = Scores(scores[scored].tolist(), [f"{collection} {c}" for c in clip[scored]])
    return run


def _questions(random: np.random.Generator, clips: int) -> np.ndarray:
    return random.choice(list(QUESTIONS_PER_CLIP), size=clips, p=list(QUESTIONS_PER_CLIP.values()))


def weights(run: Mapping[str, Scores], cell: str) -> dict[str, float] | None:
    """Return what each task's mean weighs in a cell; ``None`` where one of its tasks scored nothing."""
    if cell == "Average":
        shares = dict.fromkeys(CATEGORIES, 1 / len(AVERAGE_PARTS))
        shares |= dict.fromkeys(MIXED_PARTS, 1 / len(AVERAGE_PARTS) / len(MIXED_PARTS))
    else:
        shares = {cell: 1.0}
    weighed = {}
    for category, share in shares.items():
        counts = {task: len(run[task].values) for task in TASK_GROUPS[category]}
        if 0 in counts.values():
            return None
        weighed.update({task: share * n / sum(counts.values()) for task, n in counts.items()})
    return weighed


def intervals(limit: int | None, number: int) -> list[tuple[bool, float] | None]:
    """Return for each cell of one run whether its interval contains the truth, and its width."""
    run = simulate(np.random.default_rng([limit or 0, number]), limit)
    return [_interval(run, cell) for cell in CELLS]


def _interval(run: Mapping[str, Scores], cell: str) -> tuple[bool, float] | None:
    weighed = weights(run, cell)
    if weighed is None:
        return None
    ci95 = estimate(
        [Stratum(weight, *run[task]) for task, weight in weighed.items()], low=SCORE_MIN, high=SCORE_MAX
    ).ci95
    if ci95 is None:
        return None
    truth = sum(weight * true_mean(task) for task, weight in weighed.items())
    return ci95[0] <= truth <= ci95[1], ci95[1] - ci95[0]


def rows(limit: int | None, results: Sequence[Sequence[tuple[bool, float] | None]]) -> Iterator[str]:
    """Yield the table's row of each cell."""
    for cell, of_runs in zip(CELLS, zip(*results, strict=True), strict=True):
        present = [result for result in of_runs if result is not None]
        contained = f"{fmean(hit for hit, _ in present):.2%}" if present else "n/a"
        width = f"{fmean(width for _, width in present):.2f}" if present else "n/a"
        without = 1 - len(present) / len(of_runs)
        yield f"| {limit or 'full'} | {cell} | {contained} | {width} | {without:.1%} |"


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", 1)[0])
    parser.add_argument(
        "--runs", type=int, default=4000, help="simulated runs per limit (default: %(default)s)"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: %(default)s)")
    args = parser.parse_args()
    versions = f"Otoscope {__version__}, Python {platform.python_version()}, numpy {np.__version__}"
    print(f"{versions}; {args.runs:,} runs for each limit.\n")
    print("| limit per task | cell | truth within the interval | mean width | no interval |")
    print("| --- | --- | --- | --- | --- |")
    with Pool(args.jobs) as pool:
        for limit in LIMITS:
            results = pool.map(partial(intervals, limit), range(args.runs), chunksize=20)
            print("\n".join(rows(limit, results)), flush=True)


if __name__ == "__main__":
    main()
