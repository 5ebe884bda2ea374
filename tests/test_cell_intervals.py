"""The intervals of a run's cells: which weights and strata they are made of, and when there are none."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otoscope.benchmark import AVERAGE_PARTS, CATEGORIES, MIXED_PARTS, TASK_GROUPS, TASKS
from otoscope.records import Answer, Failure, FailureKind, Json, Order, Outcome, Sample, Verdict
from otoscope.scoring import Cell, Summary, sample_result, summarise
from otoscope.stats import INTERVAL_LABEL

ORDERS = tuple(Order)
MANIFEST: Json = {"fingerprint": {"model": {"name": "m"}, "judge": {"name": "j", "protocol": "default"}}}
FAILED = Failure(FailureKind.TIMEOUT, "took too long")


def outcome(number: int, task: str, clip: str, score: float, *, reference: float = 7.0) -> Outcome:
    """Return a sample about a clip that got this score in both orders."""
    sample = Sample(task, TASKS[task].folders[0], f"{number}.wav", number, "q", "r", "d", "", str(number))
    verdicts: dict[Order, Verdict | Failure] = {
        order: Verdict(
            order=order,
            judge_id="j",
            answer_sha256="a",
            score_kind="integer",
            reference_score=reference,
            answer_score=score,
        )
        for order in ORDERS
    }
    return Outcome(sample, Answer(raw_text="a", text="a"), verdicts, {"sha256": clip})


def summed(outcomes: Sequence[Outcome]) -> Summary:
    """Sum up by the default rules."""
    return summarise(outcomes, orders=ORDERS, manifest=MANIFEST)


def some_outcomes(seed: int, each: int = 12) -> list[Outcome]:
    """Return samples of all tasks: clips with several questions, some of them in two tasks of a category."""
    rng = random.Random(seed)  # noqa: S311 (no secret hangs on it)
    found: list[Outcome] = []
    for task in TASKS.values():
        for number in range(each + rng.randint(0, 5)):
            clip = f"{task.category}-{number % each}"
            found.append(outcome(len(found), task.name, clip, float(rng.randint(0, 10))))
    return found


def standard_error_by_hand(outcomes: Sequence[Outcome], weights: dict[str, float]) -> float:
    """Return the clustered standard error of a weighted mean of task means, by deleting clips.

    Leaving out clip g moves task t's mean by d_gt; the variance is the sum over clips of the square of
    sum_t weight_t d_gt sqrt((G_t - 1) / G_t).
    """
    scores: dict[str, dict[str, list[float]]] = {task: defaultdict(list) for task in weights}
    for o in outcomes:
        if o.sample.task in weights:
            clip = str((o.clip or {})["sha256"])
            scores[o.sample.task][clip].append(sample_result(o, ORDERS).gpt_score or 0.0)
    moved: dict[str, float] = defaultdict(float)
    for task, weight in weights.items():
        clips = scores[task]
        everyone = [score for values in clips.values() for score in values]
        mean = sum(everyone) / len(everyone)
        for clip, values in clips.items():
            without = (sum(everyone) - sum(values)) / (len(everyone) - len(values))
            moved[clip] += weight * (without - mean) * math.sqrt((len(clips) - 1) / len(clips))
    return math.sqrt(sum(value**2 for value in moved.values()))


def weights_of(outcomes: Sequence[Outcome], name: str) -> dict[str, float]:
    """Return each task's weight in a cell: pooled within a category, equal between the parts of a mean."""
    if name in ("mixed_audio", "average"):
        parts = MIXED_PARTS if name == "mixed_audio" else AVERAGE_PARTS
        return {
            task: weight / len(parts) for part in parts for task, weight in weights_of(outcomes, part).items()
        }
    tasks = TASK_GROUPS.get(name, (name,) if name in TASKS else tuple(TASKS))
    counts = {task: sum(o.sample.task == task for o in outcomes) for task in tasks}
    return {task: count / sum(counts.values()) for task, count in counts.items()}


@pytest.mark.parametrize("seed", range(4))
def test_standard_errors_are_those_of_the_definition(seed: int) -> None:
    """In every cell, what leaving out a clip moves the tasks' means by is weighted, squared and added up."""
    outcomes = some_outcomes(seed)
    summary = summed(outcomes)
    for name in (*TASKS, *CATEGORIES, "mixed_audio", "average", "all_samples"):
        cell = summary.cell(name)
        by_hand = standard_error_by_hand(outcomes, weights_of(outcomes, name))
        assert cell.standard_error == pytest.approx(by_hand, rel=1e-9), name
        assert cell.gpt_score is not None
        assert cell.ci95 is not None
        low, high = cell.ci95
        assert low < cell.gpt_score < high
    assert summary.to_json()["intervals"] == INTERVAL_LABEL


def test_the_average_is_surer_than_its_parts() -> None:
    """The Average's interval is narrower than that of any part, and wider than nothing."""
    summary = summed(some_outcomes(1))
    widths = {name: width(summary.cell(name)) for name in (*AVERAGE_PARTS, "average")}
    assert 0 < widths["average"] < min(widths[part] for part in AVERAGE_PARTS)


def width(cell: Cell) -> float:
    """Return the width of a cell's interval."""
    assert cell.ci95 is not None
    return cell.ci95[1] - cell.ci95[0]


def test_questions_about_one_clip_are_not_independent() -> None:
    """The same scores over a fourth of the clips, alike within a clip, make the interval wider."""
    rng = random.Random(5)  # noqa: S311
    scores = [float(rng.randint(0, 10)) for _ in range(20)]
    together = [outcome(4 * n + k, "music_QA", f"{n}", s) for n, s in enumerate(scores) for k in range(4)]
    apart = [replace(o, clip={"sha256": str(number)}) for number, o in enumerate(together)]
    one, other = summed(together).tasks["music_QA"], summed(apart).tasks["music_QA"]
    assert one.gpt_score == other.gpt_score
    assert (one.clips, other.clips) == (20, 80)
    assert width(one) > 1.8 * width(other)


def test_a_clip_in_two_tasks_is_one_clip() -> None:
    """Two tasks about the same clips, with scores alike, say less together than two about different clips."""
    rng = random.Random(6)  # noqa: S311
    scores = [float(rng.randint(0, 10)) for _ in range(30)]
    same, different = [], []
    for n, score in enumerate(scores):
        for k, task in enumerate(("sound_QA", "sound_generation_QA")):
            same.append(outcome(2 * n + k, task, f"{n}", score))
            different.append(outcome(2 * n + k, task, f"{task}{n}", score))
    one, other = summed(same).categories["sound"], summed(different).categories["sound"]
    assert (one.clips, other.clips) == (30, 60)
    assert width(one) > 1.3 * width(other)


def test_without_a_digest_clips_are_told_apart_by_their_name() -> None:
    """Imported answers know no digest: then source folder and file name stand for the clip."""
    outcomes = some_outcomes(2)
    named = [
        replace(o, clip=None, sample=replace(o.sample, dataset="d", path=str((o.clip or {})["sha256"])))
        for o in outcomes
    ]
    assert [c.ci95 for c in summed(named).categories.values()] == [
        c.ci95 for c in summed(outcomes).categories.values()
    ]


def test_too_few_clips_have_no_interval() -> None:
    """A task with one clip leaves every cell it is part of without an interval; the mean stays."""
    outcomes = [o for o in some_outcomes(3) if o.sample.task != "speech_and_sound_QA"]
    alone = [outcome(9000 + k, "speech_and_sound_QA", "one clip", 3.0 + k) for k in range(5)]
    summary = summed([*outcomes, *alone])
    without = {n for n in (*CATEGORIES, "mixed_audio", "average", "all_samples") if not summary.cell(n).ci95}
    assert without == {"speech_and_sound", "mixed_audio", "average", "all_samples"}
    assert summary.average.gpt_score is not None
    assert summary.to_json()["average"]["ci95"] is None


def test_scores_that_do_not_vary_have_no_interval() -> None:
    """Where every sample scored the same there is nothing to say how sure that is; rates take Wilson's."""
    cell = summed([outcome(n, "music_QA", f"{n}", 8.0) for n in range(50)]).tasks["music_QA"]
    assert (cell.gpt_score, cell.ci95, cell.win_rate) == (8.0, None, 1.0)
    assert cell.win_rate_ci95 == pytest.approx((0.9287, 1.0), abs=1e-3)
    assert cell.loss_rate_ci95 == pytest.approx((0.0, 0.0713), abs=1e-3)


def test_intervals_stay_within_the_scale() -> None:
    """No interval leaves 0 to 10, nor a rate's 0 to 1, however few and extreme the scores are."""
    outcomes = [outcome(n, "music_QA", f"{n}", score) for n, score in enumerate((10, 10, 10, 0))]
    cell = summed(outcomes).tasks["music_QA"]
    assert cell.ci95 is not None
    assert cell.ci95[1] == 10
    assert cell.ci95[0] >= 0
    assert cell.win_rate_ci95 is not None
    assert 0 <= cell.win_rate_ci95[0] < cell.win_rate_ci95[1] <= 1


def test_the_relative_score_is_a_share_of_the_references() -> None:
    """relative_score is 100 x gpt_score / reference_score, and n/a where the reference got nothing."""
    cell = summed([outcome(n, "music_QA", f"{n}", 6.0, reference=8.0) for n in range(3)]).tasks["music_QA"]
    assert cell.relative_score == pytest.approx(75)
    assert summed([outcome(1, "music_QA", "1", 6.0, reference=0.0)]).tasks["music_QA"].relative_score is None


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1000), failures=st.integers(0, 30))
def test_failures_never_move_an_interval(seed: int, failures: int) -> None:
    """However many samples fail besides, every interval stays what it was; the bounds say what they hide."""
    outcomes = some_outcomes(seed, each=4)
    failed = [
        replace(outcomes[0], answer=FAILED, sample=replace(outcomes[0].sample, path=f"f{n}"))
        for n in range(failures)
    ]
    before, after = summed(outcomes), summed([*outcomes, *failed])
    for name in (*CATEGORIES, "mixed_audio", "average", "all_samples"):
        one, other = before.cell(name), after.cell(name)
        assert (one.ci95, one.win_rate_ci95, one.standard_error) == (
            other.ci95,
            other.win_rate_ci95,
            other.standard_error,
        )


def test_the_position_effect_has_an_interval() -> None:
    """What the first place is worth is a mean of paired differences, with the interval of one."""
    rng = random.Random(7)  # noqa: S311
    outcomes = []
    for number in range(60):
        one = outcome(number, "music_QA", str(number), 5.0, reference=9.0)
        moved = {
            order: replace(
                v, answer_score=v.answer_score + (order is Order.ANSWER_FIRST) * rng.choice((0, 1, 2))
            )
            for order, v in one.verdicts.items()
            if isinstance(v, Verdict)
        }
        outcomes.append(replace(one, verdicts=moved))
    position = summed(outcomes).position
    low, high = position["answer_effect_ci95"]
    assert 0.5 < low < position["answer_effect"] < high < 1.5
    assert position["reference_effect"] == 0
    assert position["reference_effect_ci95"] is None
    assert position["samples"] == 60
    assert position["orders_disagree"] == 0
