from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otoscope.backends.baseline import (
    MAX_TOKENS,
    SYSTEM,
    Analysis,
    BaselineBackend,
    Phrase,
    describe,
    joined,
    prompt,
    without,
)
from otoscope.llm import LocalModel
from otoscope.records import Answer, AudioClip, Failure, FailureKind, Sample
from tests.fake_llm import FakeModel, spelling

SAMPLE = Sample(
    task="speech_QA",
    dataset="readings",
    path="a.wav",
    uniq_id=1,
    question="What is said?",
    reference="Good morning.",
    description="{}",
    audio_path="/nowhere/a.wav",
    digest="d" * 64,
)
SPOKEN = Analysis(
    seconds=4.0,
    speech=((0.5, 3.5),),
    words=(Phrase(0.5, 3.5, "Good morning."),),
    language="en",
    sounding=((0.4, 3.6),),
    level=-20.0,
    loudest=1.2,
    centre=1500.0,
)


def clip(sha256: str = "c" * 64) -> AudioClip:
    """Return a clip that nobody opens."""
    return AudioClip("/nowhere/a.wav", sha256, 1000, 0, "wav", 4.0, 16000, 1)


class Ears:
    """Hears the same in every clip, and counts how often it listened."""

    def __init__(self, heard: Analysis | Failure = SPOKEN) -> None:
        self.heard = heard
        self.clips: list[str] = []

    def __call__(self, clip: AudioClip) -> Analysis | Failure:
        """Take note of the clip."""
        self.clips.append(clip.sha256)
        return self.heard


def answers(
    fake: FakeModel, ears: Ears, clips: Sequence[AudioClip] = (clip(),), **sizes: int
) -> list[Answer | Failure]:
    """Ask the same question about each clip, all at once."""
    kept: list[Failure] = []

    async def run() -> list[Answer | Failure]:
        model = LocalModel("fake-1b", lambda: fake, **sizes)
        backend = BaselineBackend(model, ears)
        try:
            return await asyncio.gather(*(backend.answer(SAMPLE, one, keep=kept.append) for one in clips))
        finally:
            await model.close()

    found = asyncio.run(run())
    assert kept == []
    return found


# --- the backend ------------------------------------------------------------------------------------------


def test_the_answer_is_the_models_from_the_description() -> None:
    """The LLM gets the instructions, the notes and the question; its answer comes with its costs."""
    fake = FakeModel(spelling(" Good morning.\n"))
    (answer,) = answers(fake, Ears())
    assert isinstance(answer, Answer)
    assert (answer.raw_text, answer.text) == ("Good morning.", "Good morning.")
    (reply,) = answer.replies
    assert (reply.text, reply.model, reply.finish_reason) == ("Good morning.", "baseline", "stop")
    assert reply.parameters == {"temperature": 0, "max_tokens": MAX_TOKENS}
    assert reply.usage is not None
    assert reply.usage["completion_tokens"] == len(" Good morning.\n")
    assert reply.latency > 0
    assert reply.started_at > 0
    assert fake.prompts[-1] == (
        f"<|im_start|>system\n{SYSTEM}<|im_end|>\n"
        f"<|im_start|>user\nNotes:\n{describe(SPOKEN)}\n\nQuestion: What is said?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_a_clip_is_listened_to_once() -> None:
    """Several questions about one clip, also at the same time, cost one analysis; another clip one more."""
    ears = Ears()
    found = answers(FakeModel(spelling("Yes.")), ears, [clip("a"), clip("a"), clip("b"), clip("a")])
    assert len(found) == 4
    assert ears.clips == ["a", "b"]


def test_a_long_answer_is_cut_at_the_limit() -> None:
    """It is taken as it is, and says that it was cut."""
    (answer,) = answers(FakeModel(spelling("la" * MAX_TOKENS)), Ears())
    assert isinstance(answer, Answer)
    assert len(answer.text) == MAX_TOKENS
    assert answer.replies[0].finish_reason == "length"


def test_a_clip_that_cannot_be_heard_is_its_failure() -> None:
    """What the analysis says is wrong with the clip is what is stored."""
    bad = Failure(FailureKind.BAD_AUDIO, "a.wav: no audio could be decoded")
    assert answers(FakeModel(), Ears(bad)) == [bad]


def test_notes_that_do_not_fit_are_a_failure_and_are_not_cut() -> None:
    """A clip in which very much is said can be too long for the model."""
    (failure,) = answers(FakeModel(spelling("Yes.")), Ears(), answer_context=400)
    assert isinstance(failure, Failure)
    assert failure.kind is FailureKind.CONTEXT_TOO_SMALL
    assert "400" in failure.message


# --- the description --------------------------------------------------------------------------------------


def test_speech_is_described_with_its_words() -> None:
    """Who is heard when, the language, the words, what is missing, and how it sounds."""
    assert describe(SPOKEN) == (
        "The clip is 4.0 seconds long.\n"
        "Speech is heard from 0.5 to 3.5 s.\n"
        'The words are in English: "Good morning."\n'
        "No music is heard.\n"
        "The clip is of medium loudness, and loudest at 1.2 s.\n"
        "The tone is neither dark nor bright."
    )


def test_a_dialogue_is_described_line_by_line() -> None:
    """Each phrase stands in its own line with its time, and pauses for breath do not split the speech."""
    heard = Analysis(
        seconds=9.0,
        speech=((0.0, 2.0), (2.3, 5.0), (6.0, 9.0)),
        words=(Phrase(0.0, 2.0, "Hello?"), Phrase(2.3, 5.0, "Hello."), Phrase(6.0, 9.0, "Bye.")),
        language="xx",
        sounding=((0.0, 9.0),),
        level=-20.0,
    )
    assert describe(heard).splitlines()[1:6] == [
        "Speech is heard from 0.0 to 5.0 s and from 6.0 to 9.0 s.",
        "The words are in xx:",
        '  at 0.0 s: "Hello?"',
        '  at 2.3 s: "Hello."',
        '  at 6.0 s: "Bye."',
    ]


def test_music_is_described_as_far_as_it_was_measured() -> None:
    """Tempo, key and notes are told when they are known, and only then."""
    heard = Analysis(
        seconds=12.0,
        music=((0.0, 12.0),),
        sounding=((0.0, 12.0),),
        level=-10.0,
        loudest=6.0,
        change=-9.0,
        centre=700.0,
        tempo=89.6,
        key="E minor",
        notes=("E", "B", "G"),
    )
    assert describe(heard) == (
        "The clip is 12.0 seconds long.\n"
        "No speech and no singing is heard.\n"
        "Music is heard from 0.0 to 12.0 s.\n"
        "Its beat is regular, with about 90 beats per minute.\n"
        "Its key is probably E minor.\n"
        "Its strongest notes are E, B and G.\n"
        "The clip is loud, and loudest at 6.0 s. It gets softer towards its end.\n"
        "The tone is dark."
    )


def test_other_sounds_are_counted() -> None:
    """What is neither voice nor music is told with its times, short sounds too."""
    heard = Analysis(
        seconds=8.0,
        music=((0.2, 3.4),),
        sounding=((0.2, 2.8), (3.6, 3.9), (4.4, 5.0)),
        level=-40.0,
        change=7.0,
        centre=4000.0,
    )
    assert describe(heard).splitlines()[3:] == [
        "Sound that is neither speech nor music is heard 2 times: from 3.6 to 3.9 s and from 4.4 to 5.0 s.",
        "The clip is quiet, and loudest at 0.0 s. It gets louder towards its end.",
        "The tone is bright.",
    ]


def test_a_voice_without_words_is_said_to_have_none() -> None:
    """Something like speech or singing in which nothing was understood is not passed over."""
    heard = Analysis(seconds=3.0, singing=((0.0, 2.9),), sounding=((0.0, 3.0),), level=-20.0)
    assert describe(heard).splitlines()[1:4] == [
        "No speech is heard. Singing is heard from 0.0 to 2.9 s.",
        "No words could be made out.",
        "No music is heard.",
    ]


def test_silence_is_described_as_silence() -> None:
    """Nothing else is said of a clip in which nothing is heard."""
    assert describe(Analysis(seconds=2.0)) == "The clip is 2.0 seconds long.\nIt is silent."


def test_the_prompt_holds_no_more_than_notes_and_question() -> None:
    """Neither the reference answer nor the benchmark's description of the clip can get in."""
    system, user = prompt("It is silent.", "What is heard?")
    assert system == {"role": "system", "content": SYSTEM}
    assert user == {"role": "user", "content": "Notes:\nIt is silent.\n\nQuestion: What is heard?"}


spans = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 40)).map(lambda s: (s[0] / 2, (s[0] + s[1]) / 2)), max_size=6
)


@given(spans)
def test_joined_spans_are_in_order_and_apart(given_spans: list[tuple[float, float]]) -> None:
    """Whatever overlaps becomes one; nothing that was covered is lost."""
    found = joined(given_spans)
    assert all(before[1] < after[0] for before, after in pairwise(found))
    assert all(any(a <= start and end <= b for a, b in found) for start, end in given_spans)


@given(spans, spans)
def test_what_is_outside_is_really_outside(
    given_spans: list[tuple[float, float]], others: list[tuple[float, float]]
) -> None:
    """No rest overlaps any of the others, and with no others everything is left."""
    assert without(given_spans, ()) == given_spans
    for start, end in without(given_spans, others):
        assert all(end <= a or b <= start for a, b in others)


@pytest.mark.parametrize(
    ("field", "value"),
    [("tempo", 100.0), ("key", "C major"), ("notes", ("C",)), ("centre", 9000.0), ("change", 20.0)],
)
def test_what_was_not_measured_is_not_said(field: str, value: Any) -> None:
    """Leaving a field out leaves out its words and no others."""
    all_of_it = ((0.0, 5.0),)
    plain: dict[str, Any] = {"seconds": 5.0, "music": all_of_it, "sounding": all_of_it, "level": -20.0}
    without_it = describe(Analysis(**plain)).splitlines()
    with_it = describe(Analysis(**plain, **{field: value})).splitlines()
    assert len(with_it) - len(without_it) == (0 if field == "change" else 1)
    assert with_it != without_it
