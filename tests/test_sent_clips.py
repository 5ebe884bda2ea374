"""What was sent of the clips, in numbers: changed, shortened, skipped; and what is then warned of."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otoscope.benchmark import TASKS
from otoscope.choices import CONTROLS
from otoscope.records import Answer, Failure, FailureKind, Json, Order, Outcome, Reply, Sample, Verdict
from otoscope.scoring import Rule, Summary, control_of, result_line, summarise

OWN: Json = {"sha256": "a", "bytes": 9, "format": "mp3", "seconds": 42.0, "rate": 44_100, "channels": 2}
SENT: Json = {"sha256": "b", "bytes": 5, "format": "mp3", "seconds": 42.0, "rate": 44_100, "channels": 2}
POLICY = "rate=16000,mono,max-seconds=30,over=truncate,format=wav"
NOTHING = {"changed": 0, "shortened": 0, "resampled": 0, "mixed_down": 0, "encoded": 0, "seconds_cut": 0.0}


def facts(**sent: Any) -> Json:
    """Return the facts of a clip that was sent with these differences."""
    return {**OWN, "changed": ["somehow"], "sent": {**SENT, **sent}}


def an_outcome(
    clip: Json | None, number: int = 0, *, failure: FailureKind | None = None, text: str = "", tokens: int = 0
) -> Outcome:
    """Return a judged sample whose answer line has these clip facts."""
    text = text or f"It is number {number}."
    task = tuple(TASKS)[number % len(TASKS)]
    question = f"What {'really ' * (number % 3)}is it?"
    sample = Sample(task, "iemocap", f"{number}.wav", number, question, "r", "d", "", str(number))
    if failure is not None:
        return Outcome(sample, Failure(failure, "no"), {}, clip)
    usage = {"prompt_tokens": tokens} if tokens else None
    answer = Answer(raw_text=text, text=text, replies=(Reply(text=text, usage=usage, model="m-1"),))
    verdicts: dict[Order, Verdict | Failure] = {
        order: Verdict(
            order=order,
            judge_id="j",
            answer_sha256="a",
            score_kind="integer",
            answer_score=number % 7,
            reference_score=8,
            replies=(Reply(text=f"8 {number % 7}", model="j-1"),),
        )
        for order in Order
    }
    return Outcome(sample, answer, verdicts, clip)


def manifest(control: str | None = None, policy: str | None = POLICY) -> Json:
    """Return what a run's manifest says."""
    prompt = {"template": "{question}", "system": None, "part_order": "audio-first"}
    prompt |= {"audio_policy": policy, "control": control}
    return {"fingerprint": {"model": {"name": "m-1"}, "prompt": prompt, "judge": {"name": "j-1"}}}


def summed(outcomes: Sequence[Outcome], control: str | None = None, policy: str | None = POLICY) -> Summary:
    """Sum up."""
    return summarise(outcomes, orders=tuple(Order), manifest=manifest(control, policy))


def warned(summary: Summary) -> dict[str, Mapping[str, Any]]:
    """Return the warnings by name."""
    return {warning["name"]: warning for warning in summary.warnings}


@pytest.mark.parametrize(
    ("clip", "counted"),
    [
        (OWN, {}),
        (facts(), {"changed": 1}),
        (facts(seconds=30.0), {"changed": 1, "shortened": 1, "seconds_cut": 12.0}),
        (facts(seconds=41.9985), {"changed": 1, "shortened": 1, "seconds_cut": 0.002}),
        (facts(seconds=41.9991), {"changed": 1}),
        (facts(seconds=42.05), {"changed": 1}),
        (facts(rate=16_000), {"changed": 1, "resampled": 1}),
        (facts(channels=1), {"changed": 1, "mixed_down": 1}),
        (facts(format="wav"), {"changed": 1, "encoded": 1}),
        (
            facts(seconds=30.0, rate=16_000, channels=1, format="wav"),
            {**dict.fromkeys(NOTHING, 1), "seconds_cut": 12.0},
        ),
        # A line of before there was ``sent``: the format is that of what was sent.
        ({**OWN, "format": "wav", "changed": ["flac to 16-bit wav"]}, {"changed": 1, "encoded": 1}),
        ({**OWN, "changed": []}, {}),
    ],
)
def test_what_was_done_to_a_clip_is_counted(clip: Json, counted: Json) -> None:
    """A clip counts once in each of the things that were done to it; a millisecond is no cut."""
    audio = summed([an_outcome(clip), an_outcome(OWN, 1)]).audio
    assert {name: audio[name] for name in NOTHING} == pytest.approx({**NOTHING, **counted})
    assert (audio["policy"], audio["clips"], audio["seconds"]) == (POLICY, 2, 84.0)


def test_clips_over_the_limit_are_counted_apart() -> None:
    """What the policy skipped is a failure of a kind of its own, and no clip that was sent."""
    outcomes = [
        an_outcome(None, 0, failure=FailureKind.OVER_LIMIT),
        an_outcome(OWN, 1, failure=FailureKind.OVER_LIMIT),
        an_outcome(OWN, 2, failure=FailureKind.TIMEOUT),
        an_outcome(OWN, 3),
        an_outcome(None, 4),
    ]
    summary = summed(outcomes)
    assert (summary.audio["skipped"], summary.audio["clips"]) == (2, 1)
    assert summary.counts["failures"] == {"over_limit": 2, "timeout": 1}


def test_the_converters_seen_are_a_set_with_counts() -> None:
    """Runs that were continued with other libraries tell both."""
    clips = [{**facts(), "converter": "soxr 1.0"}, {**facts(), "converter": "soxr 1.1"}, OWN]
    outcomes = [an_outcome(clip, number) for number, clip in enumerate([*clips, clips[0]])]
    assert summed(outcomes).audio["converters"] == {"soxr 1.0": 2, "soxr 1.1": 1}


SILENT = {**OWN, "control": "silence", "changed": ["silence of the same length"]}


@pytest.mark.parametrize(
    ("control", "clip", "counted"),
    [
        ("silence", {**SILENT, "sent": {**SENT, "format": "wav"}}, {}),
        (
            "silence",
            {**SILENT, "sent": {**SENT, "format": "wav", "seconds": 30.0, "rate": 16_000}},
            {"changed": 1, "shortened": 1, "seconds_cut": 12.0, "resampled": 1},
        ),
        ("shuffled", {**OWN, "control": "shuffled", "from": "speech_QA/iemocap/2.wav"}, {}),
        (
            "shuffled",
            {**facts(seconds=30.0), "control": "shuffled", "from": "speech_QA/iemocap/2.wav"},
            {"changed": 1, "shortened": 1, "seconds_cut": 12.0},
        ),
        ("no-audio", {**OWN, "control": "no-audio"}, {}),
    ],
)
def test_what_a_control_sends_is_not_the_policys_doing(control: str, clip: Json, counted: Json) -> None:
    """Only what the policy would have done to the clip is counted, and the control is named."""
    summary = summed([an_outcome(clip)], control)
    assert {name: summary.audio[name] for name in NOTHING} == pytest.approx({**NOTHING, **counted})
    assert summary.control == control
    assert summary.to_json()["control"] == control


def test_what_nobody_tells_is_null() -> None:
    """An import does not know how the clips were sent; a run of before there were controls is none."""
    summary = summed([an_outcome(None)], policy=None)
    assert summary.audio["policy"] is None
    assert "audio_policy" not in warned(summary)
    assert control_of({}) is None
    assert control_of({"fingerprint": {"prompt": {"template": "x"}}}) is None


@pytest.mark.parametrize(
    "odd",
    [
        {"seconds": "long", "sent": {"seconds": 3}},
        {"seconds": True},
        {"sent": "bytes"},
        {"sent": {"seconds": None, "rate": "fast"}},
        {},
    ],
)
def test_facts_of_another_form_are_not_counted_and_do_no_harm(odd: Json) -> None:
    """A line from elsewhere may hold anything."""
    audio = summed([an_outcome({"sha256": "a", **odd})]).audio
    assert audio["shortened"] == audio["resampled"] == 0
    assert math.isfinite(audio["seconds"])


LENGTHS = st.floats(0.1, 600, allow_nan=False)


@settings(deadline=None)
@given(st.lists(st.tuples(LENGTHS, st.none() | LENGTHS), max_size=12), st.randoms(use_true_random=False))
def test_the_numbers_do_not_depend_on_the_order_and_add_up(
    lengths: list[tuple[float, float | None]], chance: random.Random
) -> None:
    """No count exceeds the clips', and no more is cut off than there was."""
    outcomes = [
        an_outcome({**OWN, "seconds": whole, **({"sent": {**SENT, "seconds": sent}} if sent else {})}, n)
        for n, (whole, sent) in enumerate(lengths)
    ]
    audio = summed(outcomes).audio
    assert 0 <= audio["shortened"] <= audio["changed"] <= audio["clips"] == len(lengths)
    assert 0 <= audio["seconds_cut"] <= audio["seconds"] + 1e-6
    chance.shuffle(outcomes)
    assert summed(outcomes).audio == audio


# --- one sample -------------------------------------------------------------------------------------------


def test_a_line_tells_what_was_sent() -> None:
    """How long it was, how much was cut, what was done; and of a control, which and from where."""
    rule = Rule("default", tuple(Order))
    line = result_line(an_outcome({**facts(seconds=30.0), "changed": ["cut", "mono"]}), rule)
    assert (line["seconds"], line["seconds_sent"], line["seconds_cut"]) == (42.0, 30.0, 12.0)
    assert (line["audio_changed"], line["control"], line["clip_from"]) == ("cut; mono", None, None)
    shuffled = {**OWN, "control": "shuffled", "from": "speech_QA/iemocap/2.wav"}
    line = result_line(an_outcome(shuffled), rule, control="shuffled")
    assert (line["seconds_sent"], line["seconds_cut"]) == (42.0, 0.0)
    assert (line["control"], line["clip_from"]) == ("shuffled", "speech_QA/iemocap/2.wav")
    for clip in (None, {**OWN, "control": "no-audio"}):
        line = result_line(an_outcome(clip), rule, control="no-audio")
        assert (line["seconds_sent"], line["seconds_cut"], line["control"]) == (None, None, "no-audio")


# --- warnings ---------------------------------------------------------------------------------------------


def test_a_policy_and_what_it_cut_are_warned_of() -> None:
    """The policy is named as it was asked for; clips that were shortened, with how much in all."""
    outcomes = [an_outcome(facts(seconds=30.0) if n < 3 else OWN, n) for n in range(5)]
    found = warned(summed(outcomes))
    assert f"audio: {POLICY}" in found["audio_policy"]["message"]
    assert found["clips_shortened"]["values"] == {"n": 3, "of": 5, "seconds": "36.0"}
    assert "3 of 5 clips" in found["clips_shortened"]["message"]
    as_is = warned(summed([an_outcome(OWN)], policy="as-is"))
    assert not {"audio_policy", "clips_shortened"} & set(as_is)


@pytest.mark.parametrize("control", CONTROLS)
def test_a_control_is_what_is_said_first(control: str) -> None:
    """Before anything else, and once."""
    names = [warning["name"] for warning in summed([an_outcome(None)], control).warnings]
    assert names[0] == f"control_{control.replace('-', '_')}"
    assert sum(name.startswith("control_") for name in names) == 1


def deaf(control: str | None) -> Summary:
    """Return a run whose answers are alike, deaf, and of as many tokens for every clip."""
    outcomes = [
        an_outcome(
            {**OWN, "sha256": str(n), "seconds": 2.0 + n, "control": control},
            n,
            text="I cannot hear the audio clip.",
            tokens=500,
        )
        for n in range(40)
    ]
    return summed(outcomes, control)


def test_what_a_control_brings_about_is_not_warned_of() -> None:
    """Alike answers, deaf ones, and tokens that do not grow are a fault in an evaluation alone."""
    signs = {"cannot_hear", "identical_answers", "audio_ignored"}
    assert signs <= set(warned(deaf(None)))
    assert not signs & set(warned(deaf("silence")))
    assert not signs & set(warned(deaf("no-audio")))
    # Real clips are sent, which a server may ignore as in an evaluation.
    assert signs & set(warned(deaf("shuffled"))) == {"audio_ignored"}


def test_tokens_are_weighed_against_what_was_sent() -> None:
    """Of clips that a policy cut, prompt tokens stop growing there by our own doing, not the server's."""
    lengths = list(itertools.islice(itertools.cycle(range(2, 62, 2)), 90))
    cut = [
        an_outcome(
            {**OWN, "seconds": float(s), "sent": {**SENT, "seconds": min(30.0, s)}},
            n,
            tokens=40 + 25 * min(30, s),
        )
        for n, s in enumerate(lengths)
    ]
    whole = [
        an_outcome({**OWN, "seconds": float(s)}, n, tokens=40 + 25 * min(30, s))
        for n, s in enumerate(lengths)
    ]
    assert "audio_cut" in warned(summed(whole))
    assert "audio_cut" not in warned(summed(cut))
