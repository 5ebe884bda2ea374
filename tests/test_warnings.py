"""What a reader is warned of: by name, with the number, and never at the cost of a score."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from otoscope.benchmark import TASKS
from otoscope.records import Answer, Failure, FailureKind, Json, Order, Outcome, Reply, Sample, Verdict
from otoscope.scoring import Summary, summarise
from otoscope.scoring.warnings import worded
from otoscope.texts import catalogue

ORDERS = tuple(Order)
QUESTION = "What instrument plays the melody in this recording?"


def outcome(
    number: int,
    *,
    text: str | None = None,
    question: str = QUESTION,
    seconds: float = 5.0,
    tokens: int | None = None,
    scores: tuple[float, float] = (6, 8),
    flip: bool = False,
    clip: str | None = None,
) -> Outcome:
    """Return a judged sample: the answer's and the reference's score, exchanged in one order to ``flip``."""
    text = f"It is instrument number {number}." if text is None else text
    usage = None if tokens is None else {"prompt_tokens": tokens}
    answer = Answer(raw_text=text, text=text, replies=(Reply(text=text, usage=usage, model="m-1"),))
    verdicts: dict[Order, Verdict | Failure] = {}
    for order in ORDERS:
        mine, theirs = scores[::-1] if flip and order is Order.ANSWER_FIRST else scores
        verdicts[order] = Verdict(
            order=order,
            judge_id="j",
            answer_sha256="a",
            score_kind="integer",
            answer_score=mine,
            reference_score=theirs,
            replies=(Reply(text="x", model="j-1"),),
        )
    task = tuple(TASKS)[number % len(TASKS)]
    sample = Sample(
        task, TASKS[task].folders[0], f"{number}.wav", number, question, "r", "d", "", str(number)
    )
    return Outcome(sample, answer, verdicts, {"sha256": clip or str(number), "seconds": seconds})


def summed(
    outcomes: Iterable[Outcome], *, model: str = "m-1", judge: str = "j-1", **manifest: Any
) -> Summary:
    """Sum up by the default rules."""
    fingerprint: Json = {"model": {"name": model}, "judge": {"name": judge, "protocol": "default"}}
    return summarise(outcomes, orders=ORDERS, manifest={"fingerprint": fingerprint, **manifest})


def warned(summary: Summary) -> dict[str, Mapping[str, Any]]:
    """Return the warnings by name."""
    return {warning["name"]: warning for warning in summary.warnings}


def healthy(count: int = 64) -> list[Outcome]:
    """Return samples with nothing to warn of."""
    rng = random.Random(3)  # noqa: S311 (no secret hangs on it)
    lengths = [rng.uniform(2, 60) for _ in range(count)]
    return [
        outcome(n, seconds=s, tokens=round(40 + 25 * s), scores=(rng.randint(2, 7), 8))
        for n, s in enumerate(lengths)
    ]


NOT_ABOUT_ANSWERS = {"partial"}


def test_nothing_is_warned_of_where_nothing_is_wrong() -> None:
    """A healthy run has no warning but that of its shares."""
    assert set(warned(summed(healthy()))) <= NOT_ABOUT_ANSWERS


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_warning_can_be_said_in_every_language(language: str) -> None:
    """A warning has a name, values as JSON holds them, and a text for them in each catalogue."""
    say = catalogue(language)
    found = warned(summed([outcome(n, text="", flip=True) for n in range(40)]))
    assert {"orders_disagree", "empty_answer"} <= set(found)
    for name, warning in found.items():
        assert json.loads(json.dumps(warning["values"])) == warning["values"]
        assert say(f"warning.{name}", **warning["values"])
    assert catalogue("en")("warning.empty_answer", count=40, answered=40) == found["empty_answer"]["message"]


@pytest.mark.parametrize(("flipped", "said"), [(30, False), (31, True)])
def test_orders_that_disagree_are_said_above_30_percent(flipped: int, said: bool) -> None:
    """Where the winner depends on the order in more than 30 % of the samples, the share is told."""
    found = warned(summed([outcome(n, flip=n < flipped) for n in range(100)]))
    assert ("orders_disagree" in found) == said
    if said:
        assert "31 %" in found["orders_disagree"]["message"]


@pytest.mark.parametrize(("alike", "said"), [(2, False), (3, True)])
def test_identical_answers_to_distinct_clips_are_said_above_2_percent(alike: int, said: bool) -> None:
    """Where more than 2 % of the clips share an answer with another, it is told with the commonest one."""
    found = warned(summed([outcome(n, text="A man speaks." if n < alike else None) for n in range(100)]))
    assert ("identical_answers" in found) == said
    if said:
        assert "3 of 100 distinct clips" in found["identical_answers"]["message"]
        assert "'A man speaks.'" in found["identical_answers"]["message"]


def test_one_clip_may_get_one_answer_to_several_questions() -> None:
    """The same words about the same clip say nothing about the audio."""
    found = warned(summed([outcome(n, text=f"Yes, {n // 4}.", clip=str(n // 4)) for n in range(100)]))
    assert "identical_answers" not in found


@pytest.mark.parametrize(("same", "said"), [(80, False), (81, True)])
def test_one_pair_of_scores_is_said_above_80_percent(same: int, said: bool) -> None:
    """A judge that gives nearly always one pair of scores is told, with the pair as its reply has it."""
    outcomes = []
    for n in range(100):
        one = outcome(n, scores=(5, 9))
        if n < same:  # "8 7" whichever answer stands first
            first, second = one.verdicts.values()
            assert isinstance(first, Verdict)
            assert isinstance(second, Verdict)
            first = replace(first, reference_score=8, answer_score=7)
            second = replace(second, answer_score=8, reference_score=7)
            one = replace(one, verdicts=dict(zip(ORDERS, (first, second), strict=True)))
        outcomes.append(one)
    found = warned(summed(outcomes))
    assert ("one_pair" in found) == said
    if said:
        assert "'8 7' in 162 of 200 replies" in found["one_pair"]["message"]


@pytest.mark.parametrize(
    ("model", "judge", "name"),
    [
        ("gpt-4o-audio-preview", "gpt-4-0125-preview", "same_family"),
        ("Qwen/Qwen2-Audio-7B-Instruct", "qwen-max", "same_family"),
        ("my-model", "my-model", "self_judged"),
        ("My-Model", "my-model", "self_judged"),
        ("my-model", "gpt-4-0125-preview", None),
        ("my-model", "another-model", None),
    ],
)
def test_a_judge_of_the_models_family_is_said(model: str, judge: str, name: str | None) -> None:
    """The judge being the model, or of its family, is told; two unknown names are no family."""
    outcomes = [replace(o, verdicts={}, answer=Answer(raw_text="a", text="a")) for o in healthy(4)]
    found = set(warned(summed(outcomes, model=model, judge=judge)))
    assert found & {"same_family", "self_judged"} == ({name} if name else set())


def test_names_that_servers_return_count_for_the_family() -> None:
    """What serves behind a neutral name is known by the name that the server returns."""
    outcomes = [outcome(n) for n in range(4)]
    renamed = [
        replace(o, answer=replace(o.answer, replies=(Reply(text="a", model="gpt-4o-audio"),)))
        for o in outcomes
        if isinstance(o.answer, Answer)
    ]
    assert warned(summed(renamed, model="ours", judge="gpt-4-turbo"))["same_family"]["values"]["family"]


@pytest.mark.parametrize(("deaf", "said"), [(5, False), (6, True)])
def test_answers_that_hear_nothing_are_said_above_5_percent(deaf: int, said: bool) -> None:
    """Where more than 5 % of the answers say that they cannot hear, the number is told."""
    text = "I'm sorry, but I can't listen to audio files."
    found = warned(summed([outcome(n, text=f"{text} {n}" if n < deaf else None) for n in range(100)]))
    assert ("cannot_hear" in found) == said


def test_answers_in_another_language_are_told_with_the_means() -> None:
    """The share of answers in another script, and the mean score with and without them."""
    outcomes = [outcome(n, text=f"这段音乐里演奏旋律的乐器是钢琴{n}。", scores=(2, 8)) for n in range(5)]
    outcomes += [outcome(n, scores=(6, 8)) for n in range(5, 20)]
    message = warned(summed(outcomes))["other_language"]["message"]
    assert "5 of 20 answers (25 %)" in message
    assert "mean score 5.00, without them 6.00" in message


def test_prompt_tokens_that_do_not_grow_are_said() -> None:
    """A server that counts the same prompt for every clip seems to ignore the audio."""
    outcomes = [replace_tokens(o, 60 + n % 3) for n, o in enumerate(healthy(100))]
    assert "seems to ignore the audio" in warned(summed(outcomes))["audio_ignored"]["message"]


def test_prompt_tokens_that_stop_growing_are_said_with_their_place() -> None:
    """A server that cuts at 30 s is told with how many clips are longer and the mean scores."""
    outcomes = []
    for n, one in enumerate(healthy(200)):
        seconds = float((one.clip or {})["seconds"])
        scores = (2.0, 8.0) if seconds > 30 else (6.0, 8.0)
        changed = outcome(n, seconds=seconds, tokens=round(40 + 25 * min(seconds, 30)), scores=scores)
        outcomes.append(changed)
    warning = warned(summed(outcomes))["audio_cut"]
    assert abs(int(warning["values"]["seconds"]) - 30) <= 1
    assert warning["values"]["longer"] > 50
    assert float(warning["values"]["mean_longer"]) < 3 < 5 < float(warning["values"]["mean_others"])


def replace_tokens(one: Outcome, tokens: int) -> Outcome:
    """Return the outcome with another number of prompt tokens."""
    assert isinstance(one.answer, Answer)
    reply = replace(one.answer.replies[0], usage={"prompt_tokens": tokens})
    return replace(one, answer=replace(one.answer, replies=(reply,)))


def test_answers_of_another_tool_are_said_to_be_such() -> None:
    """Imported answers name the tool that made them, whose prompt may be another."""
    manifest: Json = {
        "fingerprint": {"model": {"name": "m"}, "prompt": {"source": "evalscope"}, "judge": None}
    }
    found = {w["name"]: w for w in summarise(healthy(4), orders=ORDERS, manifest=manifest).warnings}
    assert "evalscope" in found["foreign_prompt"]["message"]
    assert "prompt" not in found


def test_warnings_never_change_a_score() -> None:
    """Whatever there is to warn of, the means are those of the verdicts."""
    plain = [outcome(n) for n in range(40)]
    odd = [
        replace(o, answer=Answer(raw_text="", text="", replies=o.answer.replies))
        for o in plain
        if isinstance(o.answer, Answer)
    ]
    one, other = summed(plain), summed(odd)
    assert len(other.warnings) > len(one.warnings)
    assert (one.average, one.all_samples) == (other.average, other.all_samples)


def test_failed_samples_warn_of_that_alone() -> None:
    """A run that answered nothing has no answers to be suspicious of."""
    failed = [
        replace(o, answer=Failure(FailureKind.TIMEOUT, "late"), verdicts={}, clip=None) for o in healthy(40)
    ]
    assert set(warned(summed(failed))) - NOT_ABOUT_ANSWERS == {"nothing_scored"}


def test_without_a_judge_nothing_is_said_of_means() -> None:
    """A run that was only answered, with one failure, has not "all samples failed"."""
    outcomes = [replace(o, verdicts={}) for o in healthy(20)]
    outcomes[0] = replace(outcomes[0], answer=Failure(FailureKind.TIMEOUT, "late"))
    manifest: Json = {"fingerprint": {"model": {"name": "m"}, "judge": None}}
    found = {w["name"] for w in summarise(outcomes, orders=ORDERS, manifest=manifest).warnings}
    assert not {"coverage", "nothing_scored"} & found
    assert "not_judged" in found


def test_means_are_named_in_the_reports_language() -> None:
    """Names of cells are the machine's; people read those of the report, and a list of them in its way."""
    values = {"cells": ["sound", "all_samples"]}
    assert "(Sound, All samples)" in worded("warning.partial", values, catalogue("en"))
    chinese = worded("warning.partial", values, catalogue("zh"))
    assert "、".join(catalogue("zh")(f"cell.{name}") for name in values["cells"]) in chinese
    # As it was written before.
    assert "(sound, music)" in worded("warning.partial", {"cells": "sound, music"}, catalogue("en"))
