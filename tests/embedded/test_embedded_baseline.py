"""The baseline with its real recogniser, event detection and language model, on the bundled clips."""

from __future__ import annotations

import ast
import asyncio
import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from otoscope import audio
from otoscope.backends.baseline import Analysis, BaselineBackend
from otoscope.llm import LocalModel
from otoscope.records import Answer, AudioClip, Failure, FailureKind, Sample
from tests.embedded.measured import peak_memory, report
from tests.support import DEMO

if TYPE_CHECKING:
    from otoscope.backends.listening import Listener

pytestmark = pytest.mark.embedded

RECORDS: list[dict[str, Any]] = json.loads((DEMO / "Chat" / "Chat_meta.json").read_text(encoding="utf-8"))
MAX_WORD_ERRORS = 0.15
RATE = 16_000


@pytest.fixture(scope="module")
def listener(recogniser: Path) -> Listener:
    """Give the analysis, whose models all tests share."""
    from otoscope.backends.listening import Listener

    return Listener(recogniser, threads=2)


def path_of(record: dict[str, Any]) -> Path:
    """Return a record's clip."""
    return DEMO / "Chat" / f"{record['task_name']}_{record['dataset_name']}" / str(record["path"])


def clip_of(record: dict[str, Any]) -> AudioClip:
    """Return a record's clip, read as the pipeline does."""
    clip = audio.load(str(path_of(record)))
    assert isinstance(clip, AudioClip)
    return clip


def heard(listener: Listener, name: str) -> Analysis:
    """Return the analysis of the bundled clip of this name."""
    found = listener(clip_of(next(record for record in RECORDS if record["path"] == name)))
    assert isinstance(found, Analysis)
    return found


def words(text: str) -> list[str]:
    """Return a text's words without case, punctuation, hyphens and "Mr."."""
    plain = re.sub(r"\bmr\b\.?", "mister", text.lower()).replace("-", " ")
    return re.findall(r"[a-z']+", plain)


def errors(reference: list[str], found: list[str]) -> int:
    """Return the least number of words to insert, leave out and replace (Levenshtein)."""
    row = list(range(len(found) + 1))
    for i, word in enumerate(reference, 1):
        above, row = row, [i]
        for j, other in enumerate(found, 1):
            row.append(min(above[j] + 1, row[-1] + 1, above[j - 1] + (word != other)))
    return row[-1]


def test_the_recogniser_understands_readings(listener: Listener) -> None:
    """Under 15 % word errors over the LibriVox clips, those with sound and music behind them included."""
    wrong = total = 0
    start = time.perf_counter()
    for record in (r for r in RECORDS if "librivox" in r["dataset_name"]):
        found = heard(listener, record["path"])
        reference = words(ast.literal_eval(record["meta_info"])["transcription"])
        wrong += errors(reference, words(" ".join(phrase.text for phrase in found.words)))
        total += len(reference)
        assert found.language == "en"
    report(f"{wrong} of {total} words wrong ({wrong / total:.1%}), {time.perf_counter() - start:.1f} s")
    assert wrong / total < MAX_WORD_ERRORS


@pytest.mark.parametrize(
    ("name", "speech", "music"),
    [
        ("sense_and_sensibility_01_0870.wav", True, False),
        ("dialogue_library.wav", True, False),
        ("crow_three_calls.wav", False, False),
        ("tabla_loop.mp3", False, True),
        ("guitar_e_minor_ninth.mp3", False, True),
        ("reading_0920_with_guitar.mp3", True, True),
    ],
)
def test_speech_and_music_are_told_apart(listener: Listener, name: str, speech: bool, music: bool) -> None:
    """Readings, dialogues, music, both and neither are what they are; where nobody speaks, no words are."""
    found = heard(listener, name)
    assert (bool(found.speech), bool(found.music), bool(found.singing)) == (speech, music, False)
    assert bool(found.words) == speech


def test_calls_are_counted(listener: Listener) -> None:
    """The crow's three calls are three stretches of sound, where they were put."""
    starts = [start for start, _ in heard(listener, "crow_three_calls.wav").sounding]
    assert starts == pytest.approx([0.3, 1.5, 2.7], abs=0.15)


def test_the_notes_of_a_chord_are_in_the_chord(listener: Listener) -> None:
    """Of an E minor ninth only notes are named that it has; one held chord has no tempo."""
    found = heard(listener, "guitar_e_minor_ninth.mp3")
    assert found.notes
    assert set(found.notes) <= {"E", "G", "B", "D", "F sharp"}
    assert found.tempo is None
    assert found.change < -6


def test_a_scale_has_a_key_and_clicks_have_a_tempo() -> None:
    """What is known of a made sound is found: a C major scale over its chord, and 100 clicks a minute."""
    import numpy as np

    from otoscope.backends.listening import key, tempo

    def tone(midi: int, seconds: float) -> Any:
        time_axis = np.arange(int(seconds * RATE)) / RATE
        return np.sin(2 * np.pi * 440 * 2 ** ((midi - 69) / 12) * time_axis) * np.exp(-2 * time_axis)

    scale = np.concatenate([tone(60 + step, 0.5) for step in (0, 2, 4, 5, 7, 9, 11, 12)] * 2)
    chord = sum(np.tile(tone(note, 2.0), 4) for note in (48, 60, 64, 67))
    assert key((scale + chord).astype(np.float32)) == "C major"
    clicks = np.zeros(10 * RATE, dtype=np.float32)
    for beat in range(16):
        clicks[int(beat * 0.6 * RATE) :][:400] = np.random.default_rng(0).normal(0, 0.3, 400)
    assert tempo(clicks) == pytest.approx(100, rel=0.05)
    noise = np.random.default_rng(1).normal(0, 0.1, 10 * RATE).astype(np.float32)
    assert key(noise) is None
    assert tempo(noise) is None


@pytest.mark.parametrize("seconds", [0.001, 0.05, 1.0])
def test_silence_and_very_short_clips_are_analysed(listener: Listener, seconds: float) -> None:
    """A silent clip is silent, and no clip is too short to be looked at."""
    import numpy as np

    silence = np.zeros(int(seconds * RATE), dtype=np.float32)
    assert listener.analyse(silence) == Analysis(seconds=len(silence) / RATE)
    click = silence.copy()
    click[len(click) // 2] = 0.5
    assert listener.analyse(click).level is not None


def test_a_clip_that_is_gone_or_broken_is_a_failure(listener: Listener, tmp_path: Path) -> None:
    """What happened to the file after its header was read is told, and stops nothing."""
    clip = clip_of(RECORDS[0])
    broken = tmp_path / "broken.wav"
    broken.write_bytes(b"RIFF and nothing")
    kinds = {}
    for path in (tmp_path / "gone.wav", broken):
        changed = AudioClip(str(path), "0" * 64, 1, 0, "wav", clip.seconds, clip.rate, clip.channels)
        found = listener(changed)
        assert isinstance(found, Failure)
        kinds[path.name] = found.kind
    assert kinds == {"gone.wav": FailureKind.MISSING_AUDIO, "broken.wav": FailureKind.BAD_AUDIO}


def test_the_bundled_clips_are_answered(listener: Listener, local_model: LocalModel) -> None:
    """Each question gets an answer of at most 96 tokens, and what was said in a clip comes up in it."""
    backend = BaselineBackend(local_model, listener)
    seconds: list[float] = []
    for record in RECORDS:
        sample = Sample(
            task=record["task_name"],
            dataset=record["dataset_name"],
            path=record["path"],
            uniq_id=record["uniq_id"],
            question=record["question"],
            reference=record["answer_gt"],
            description=record["meta_info"],
            audio_path=str(path_of(record)),
            digest="0" * 64,
        )
        answer = asyncio.run(backend.answer(sample, clip_of(record), keep=lambda _: None))
        assert isinstance(answer, Answer)
        assert not answer.blank
        usage = answer.replies[0].usage or {}
        assert usage["completion_tokens"] <= 96
        seconds.append(answer.replies[0].latency)
        report(f"{record['path']}: {answer.text}")
        if record["uniq_id"] == 0:
            assert "dashwood" in answer.text.lower()
    report(f"{sum(seconds) / len(seconds):.1f} s an answer, at most {max(seconds):.1f} s")
    report(f"peak memory {peak_memory():.2f} GB")
    assert peak_memory() < 3.5
