"""Control runs: silence, another sample's clip, or nothing in place of the audio."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import tracemalloc
import wave
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile as sf
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from otoscope import TaskConfig, run_task
from otoscope.audio.silence import SilentWav
from otoscope.chat_api import AudioData
from otoscope.chat_api.body import Body
from otoscope.config import resolve
from otoscope.dataset import shuffled_clips
from otoscope.errors import ConfigError, EndpointError, RunDirectoryError
from otoscope.evaluation import dry_run
from otoscope.records import FailureKind, Sample
from otoscope.reports.plan import render_dry_run
from otoscope.runs import Run
from tests.audio_files import (
    arrived,
    clip_of,
    decoded,
    loader,
    place,
    sent_bytes,
    tone,
    write_records,
    write_sound,
)
from tests.scripted_server import Response, ScriptedServer, Seen, scripted_answers
from tests.support import config, flags, lines, otoscope, write_data

TASKS = ("sound_QA", "music_QA")


def evaluate(server: ScriptedServer, data: Path, run: Path, control: str | None, **more: Any) -> Run:
    """Run a control without a judge."""
    settings = config(server.url, data, run, control=control, **{"no_judge": True, **more})
    return run_task(settings, environ={"OTOSCOPE_CACHE": str(run.with_name("cache"))})


def answers(run: Path) -> dict[str, dict[str, Any]]:
    """Return the answer lines that are no failures, by key."""
    return {line["key"]: line for line in lines(run / "answers.jsonl") if "failure" not in line}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return two tasks' data with four clips each, all of different lengths; one has two questions."""
    clips = [(task, f"{number}.wav", f"{task} {number}?") for task in TASKS for number in range(4)]
    root = write_records(tmp_path / "data", [*clips, (TASKS[0], "0.wav", f"{TASKS[0]} 0 again?")])
    for count, (task, name, _) in enumerate(clips):
        write_sound(place(root, task, name), tone(0.2 + count / 100, 8000, hertz=200 + 9 * count), 8000)
    return root


# --- silence ----------------------------------------------------------------------------------------------


@given(
    frames=st.integers(0, 3000),
    rate=st.sampled_from([8000, 16000, 44100, 384000]),
    channels=st.integers(1, 8),
    offset=st.integers(0, 60_000),
    size=st.integers(0, 60_000),
)
def test_silence_is_the_wav_that_an_encoder_would_write(
    frames: int, rate: int, channels: int, offset: int, size: int
) -> None:
    """Any piece of it has the bytes that stand there in a file of zeros."""
    file = io.BytesIO()
    with wave.open(file, "wb") as written:
        written.setnchannels(channels)
        written.setsampwidth(2)
        written.setframerate(rate)
        written.writeframes(bytes(2 * frames * channels))
    data = file.getvalue()
    silence = SilentWav(frames, rate, channels)
    assert silence.read_at(offset, size) == data[offset : offset + size]
    assert silence.size == len(data)
    assert silence.sha256 == hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("as-is", ("WAV", 44100, 2, 1.5)),
        ("rate=16000,mono,max-seconds=0.5,over=truncate", ("WAV", 16000, 1, 0.5)),
        ("format=flac", ("FLAC", 44100, 2, 1.5)),
        ("format=mp3,mono", ("MP3", 44100, 1, 1.5)),
    ],
)
def test_silence_is_as_long_as_what_would_be_sent(
    tmp_path: Path, policy: str, expected: tuple[str, int, int, float]
) -> None:
    """Rate, channels and length are those after the policy, the format wav or the policy's; all is zero."""
    path = write_sound(tmp_path / "a", tone(1.5, 44100, 2), 44100, "mp3")
    clip = clip_of(loader(policy).silent(path))
    info, heard = decoded(sent_bytes(clip))
    assert (info.format, info.samplerate, info.channels) == expected[:3]
    assert info.duration == pytest.approx(expected[3], abs=0.001)
    assert not heard.any()
    assert clip.sent is not None
    assert clip.sha256_sent == hashlib.sha256(sent_bytes(clip)).hexdigest()
    assert clip.sha256 == hashlib.sha256(Path(path).read_bytes()).hexdigest()
    assert not (tmp_path / "unused").exists()


def test_long_silence_is_never_held(tmp_path: Path) -> None:
    """A request with ten minutes of it costs blocks, not its hundred megabytes."""
    path, second = tmp_path / "a.flac", np.zeros((44100, 2), "int16")
    with sf.SoundFile(path, "w", 44100, 2, format="FLAC", subtype="PCM_16") as file:
        for _ in range(600):
            file.write(second)

    async def size(body: Body) -> int:
        total = 0
        while (block := body.ready()) != b"":
            total += len(block or b"")
            if block is None:
                await body.load()
        return total

    tracemalloc.start()
    try:
        clip = clip_of(loader("as-is").silent(str(path)))
        body = Body({"audio": AudioData(clip)})
        assert asyncio.run(size(body)) == body.length
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert clip.size_sent > 100_000_000
    assert peak < 10_000_000


def test_every_question_is_asked_with_silence(tmp_path: Path, data: Path) -> None:
    """What arrives is as long as the sample's own clip and silent; the facts are the clip's, and say so."""
    with ScriptedServer(keep_bodies=True) as server:
        run = evaluate(server, data, tmp_path / "run", "silence")
        got = arrived(server)
        assert len(got) == 9
        for question, audio in got.items():
            assert audio is not None
            task, number = question.removesuffix(" again?").rstrip("?").split()
            own = sf.info(place(data, task, f"{number}.wav"))
            info, heard = decoded(audio[0])
            assert (info.frames, info.samplerate, info.channels) == (own.frames, own.samplerate, 1)
            assert not heard.any()
            assert audio[1] == "wav"
        for key, line in answers(run.path).items():
            task, _, name = key.split("/")
            file = place(data, task, name.partition("#")[0])
            assert line["clip"]["control"] == "silence"
            assert line["clip"]["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
            assert line["clip"]["sent"]["seconds"] == line["clip"]["seconds"]
            assert line["clip"]["changed"] == ["silence of the same length"]
            assert "from" not in line["clip"]
            assert "converter" not in line["clip"]
        evaluate(server, data, tmp_path / "run", "silence")
        assert len(server.requests) == 9
        # Its length may be another one by now.
        write_sound(place(data, TASKS[1], "3.wav"), tone(0.5, 8000), 8000)
        evaluate(server, data, tmp_path / "run", "silence")
        assert len(server.requests) == 10


def test_silence_lies_in_no_file(tmp_path: Path) -> None:
    """A wire form that sends a file's place is refused before anything starts, with the remedy."""
    with pytest.raises(ConfigError, match="use another --audio-part"):
        resolve(config("http://127.0.0.1:9/v1", tmp_path, control="silence", audio_part="file_url"), {})


# --- shuffled ---------------------------------------------------------------------------------------------


def a_sample(task: str, dataset: str, path: str, uniq_id: int) -> Sample:
    """Return a sample about some clip."""
    return Sample(
        task=task,
        dataset=dataset,
        path=path,
        uniq_id=uniq_id,
        question="?",
        reference="!",
        description="{}",
        audio_path=f"/data/{task}_{dataset}/{path}",
        digest="d" * 64,
    )


@st.composite
def selections(draw: st.DrawFn) -> list[Sample]:
    """Draw samples of which every task has two clips at least, some with several questions."""
    chosen: list[Sample] = []
    for task in draw(
        st.lists(st.sampled_from(["sound_QA", "music_QA", "speech_QA"]), min_size=1, unique=True)
    ):
        clip = st.tuples(st.sampled_from(["one", "two"]), st.text("abcé", min_size=1, max_size=3))
        clips = draw(st.lists(clip, min_size=2, max_size=8, unique=True))
        asked = draw(st.lists(st.sampled_from(clips), max_size=8))
        chosen += [a_sample(task, *named, number) for number, named in enumerate([*clips, *asked])]
    return chosen


@given(selections(), st.integers(), st.randoms(use_true_random=False))
def test_shuffled_clips_are_a_derangement_within_each_task(
    samples: list[Sample], seed: int, dice: Any
) -> None:
    """No clip stays at its place, each takes one other's within its task, whatever the order of the data."""
    others = shuffled_clips(samples, seed)
    assert set(others) == {sample.key for sample in samples}
    taken: dict[str, str] = {}
    for sample in samples:
        other = others[sample.key]
        assert other.clip_key != sample.clip_key
        assert other.task == sample.task
        assert taken.setdefault(sample.clip_key, other.clip_key) == other.clip_key
    assert set(taken.values()) == set(taken)
    mixed = list(samples)
    dice.shuffle(mixed)
    again = shuffled_clips(mixed, seed)
    assert {key: other.audio_path for key, other in again.items()} == {
        key: other.audio_path for key, other in others.items()
    }


def test_another_seed_is_another_order_and_another_task_beside_it_changes_nothing() -> None:
    """The seed decides, for each task by itself."""
    samples = [a_sample("sound_QA", "d", f"{n}.wav", n) for n in range(20)]
    beside = [a_sample("music_QA", "d", f"{n}.wav", n) for n in range(5)]
    first, second = (
        {key: other.clip_key for key, other in shuffled_clips(samples, seed).items()} for seed in (1, 2)
    )
    assert first != second
    with_more = shuffled_clips([*beside, *samples], 1)
    assert {sample.key: with_more[sample.key].clip_key for sample in samples} == first


def test_every_question_is_asked_about_another_clip_of_its_task(tmp_path: Path, data: Path) -> None:
    """The clip that arrives is the one that the line names, by name and by facts, and never the own one."""
    with ScriptedServer() as server:
        run = evaluate(server, data, tmp_path / "run", "shuffled")
        sent = {seen.text: seen.audio_sha256 for seen in server.requests}
        assert len(sent) == 9
    taken: dict[str, str] = {}
    for key, line in answers(run.path).items():
        clip = line["clip"]
        own, source = key.partition("#")[0], clip["from"]
        task, _, name = source.split("/")
        file = place(data, task, name)
        assert clip["control"] == "shuffled"
        assert source != own
        assert task == own.split("/")[0]
        assert taken.setdefault(own, source) == source
        assert (clip["sha256"], clip["bytes"]) == (
            hashlib.sha256(file.read_bytes()).hexdigest(), file.stat().st_size,
        )  # fmt: skip
        assert clip["seconds"] == pytest.approx(sf.info(file).duration)
        assert "sent" not in clip
        question = next(
            text for text in sent if text.startswith(f"{own.split('/')[0]} {own.split('/')[2][0]}")
        )
        assert sent[question] == clip["sha256"]
    assert Counter(taken.values()) == Counter(taken.keys())


def test_the_policy_holds_for_the_clip_that_is_sent(tmp_path: Path, data: Path) -> None:
    """Another sample's clip is converted like the own one would be."""
    with ScriptedServer(keep_bodies=True) as server:
        run = evaluate(server, data, tmp_path / "run", "shuffled", audio_policy="rate=16000,format=flac")
        for audio in arrived(server).values():
            assert audio is not None
            assert decoded(audio[0])[0].samplerate == 16000
    for line in answers(run.path).values():
        assert (line["clip"]["rate"], line["clip"]["sent"]["rate"]) == (8000, 16000)


@pytest.mark.parametrize("limits", [(2, None), (None, 2)], ids=["grown", "shrunk"])
def test_an_answer_about_another_partner_is_owed_again(
    limits: tuple[int | None, int | None], tmp_path: Path, data: Path
) -> None:
    """When the selection changes so do the pairs: the run is then what a fresh one of that selection is."""
    before, after = limits
    with ScriptedServer() as server:
        evaluate(server, data, tmp_path / "run", "shuffled", limit=before)
        first = answers(tmp_path / "run")
        evaluate(server, data, tmp_path / "fresh", "shuffled", limit=after)
        fresh = {key: line["clip"]["from"] for key, line in answers(tmp_path / "fresh").items()}
        count = len(server.requests)
        evaluate(server, data, tmp_path / "run", "shuffled", limit=after)
        kept = {
            key for key, partner in fresh.items() if key in first and first[key]["clip"]["from"] == partner
        }
        assert 0 < len(fresh) - len(kept) == len(server.requests) - count
    resumed = answers(tmp_path / "run")
    assert {key: resumed[key]["clip"]["from"] for key in fresh} == fresh
    with ScriptedServer() as server:
        evaluate(server, data, tmp_path / "run", "shuffled", limit=after, allow_changed=["model.api_url"])
        assert server.requests == []


def test_the_clip_that_was_sent_decides_what_is_owed_again(tmp_path: Path, data: Path) -> None:
    """A sample is owed again when the clip it was asked about changed, and not when its own did."""
    with ScriptedServer() as server:
        evaluate(server, data, tmp_path / "run", "shuffled")
        before = answers(tmp_path / "run")
        write_sound(place(data, TASKS[1], "2.wav"), tone(0.5, 8000, hertz=999), 8000)
        evaluate(server, data, tmp_path / "run", "shuffled")
        assert len(server.requests) == 10
    changed = {
        line["key"] for line in lines(tmp_path / "run" / "answers.jsonl")
        if line.get("failure", {}).get("kind") == "clip_changed"
    }  # fmt: skip
    assert changed == {
        key for key, line in before.items() if line["clip"]["from"] == f"{TASKS[1]}/made/2.wav"
    }
    (key,) = changed
    assert not key.startswith(f"{TASKS[1]}/made/2.wav")


def test_a_partner_that_is_missing_is_that_samples_failure(tmp_path: Path, data: Path) -> None:
    """The file that is named is the one that was to be sent; once it is there, the sample is owed again."""
    path = place(data, TASKS[1], "1.wav")
    content = path.read_bytes()
    path.unlink()
    with ScriptedServer() as server:
        run = evaluate(server, data, tmp_path / "run", "shuffled")
        (failed,) = [line for line in lines(run.path / "answers.jsonl") if "failure" in line]
        assert failed["failure"]["kind"] == "missing_audio"
        assert str(path) in failed["failure"]["message"]
        assert not failed["key"].startswith(f"{TASKS[1]}/made/1.wav")
        path.write_bytes(content)
        evaluate(server, data, tmp_path / "run", "shuffled")
        assert failed["key"] in answers(tmp_path / "run")
        assert len(server.requests) == 9


def test_a_task_with_one_clip_cannot_be_shuffled(tmp_path: Path, data: Path) -> None:
    """It is said for all such tasks at once, before a run is made, with the ways out."""
    with ScriptedServer() as server, pytest.raises(ConfigError) as refusal:
        evaluate(server, data, tmp_path / "run", "shuffled", limit=1)
    assert f"of {', '.join(TASKS)} there is one clip" in str(refusal.value)
    assert "--limit" in str(refusal.value)
    assert not (tmp_path / "run").exists()


# --- no audio ---------------------------------------------------------------------------------------------


def test_questions_are_asked_without_audio(tmp_path: Path, data: Path) -> None:
    """The message has the question and nothing else; no clip is read, not even one that is missing."""
    place(data, TASKS[0], "1.wav").unlink()
    with ScriptedServer(keep_bodies=True) as server:
        run = evaluate(server, data, tmp_path / "run", "no-audio")
        assert list(arrived(server).values()) == [None] * 9
        content = server.requests[0].payload["messages"][0]["content"]
        assert [part["type"] for part in content] == ["text"]
        assert run.summary.counts["failures"] == {}
        for line in answers(run.path).values():
            assert (line["clip"], line["audio_part"]) == (None, None)
        write_sound(place(data, TASKS[0], "1.wav"), tone(1, 8000), 8000)
        evaluate(server, data, tmp_path / "run", "no-audio")
        assert len(server.requests) == 9


def refuses_text(seen: Seen, _attempt: int) -> Response:
    """Answer as an audio model's endpoint does to a request without audio."""
    error = {"message": "This model requires that input content contains audio.", "type": "invalid_request"}
    return Response(status=400, error=error)


def test_an_endpoint_that_wants_audio_is_one_clear_error(tmp_path: Path, data: Path) -> None:
    """Its own words, and that silence does instead."""
    with ScriptedServer(refuses_text) as server:
        with pytest.raises(EndpointError, match="--control silence") as refusal:
            evaluate(server, data, tmp_path / "run", "no-audio")
        assert "contains audio" in str(refusal.value)
        assert len(server.requests) == 3


def test_a_single_refusal_says_it_too(tmp_path: Path, data: Path) -> None:
    """Where others were answered it is that sample's failure, with the same advice."""

    def script(seen: Seen, attempt: int) -> Response:
        return refuses_text(seen, attempt) if "3?" in seen.text else scripted_answers()(seen, attempt)

    with ScriptedServer(script) as server:
        run = evaluate(server, data, tmp_path / "run", "no-audio")
    failed = [line["failure"] for line in lines(run.path / "answers.jsonl") if "failure" in line]
    assert [failure["kind"] for failure in failed] == [FailureKind.REJECTED] * 2
    assert all("--control silence" in failure["message"] for failure in failed)


def test_the_baseline_is_nothing_without_a_clip(tmp_path: Path) -> None:
    """It is refused before anything starts, with the remedy."""
    args = {"air_bench_chat": {"local_path": str(tmp_path)}}
    settings = TaskConfig(model="baseline", no_judge=True, dataset_args=args, control="no-audio")
    with pytest.raises(ConfigError, match="use --control silence"):
        resolve(settings, {})
    assert resolve(replace(settings, control="silence"), {}).audio.control == "silence"


# --- every control ----------------------------------------------------------------------------------------


def test_a_control_is_no_evaluation_and_no_other_control(tmp_path: Path, data: Path) -> None:
    """It stands in the fingerprint, and cannot change within a run."""
    with ScriptedServer() as server:
        run = evaluate(server, data, tmp_path / "run", "silence")
        assert run.manifest["fingerprint"]["prompt"]["control"] == "silence"
        for other in ("shuffled", "no-audio", None):
            with pytest.raises(RunDirectoryError, match=r"prompt\.control: was 'silence', now"):
                evaluate(server, data, tmp_path / "run", other)
        assert len(server.requests) == 9


def test_the_command_says_boldly_that_it_is_a_control(tmp_path: Path) -> None:
    """The first line before the run starts is the mark; the run itself ends as any other."""
    data = write_data(tmp_path / "data", each=2, tasks=["sound_QA"])
    with ScriptedServer() as server:
        done = otoscope(*flags(server.url, data, "--run-dir", str(tmp_path / "run"), "--control", "shuffled"))
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("CONTROL RUN: ")
    assert "Not an evaluation of the model" in done.stderr.splitlines()[0]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))
    assert summary["control"] == "shuffled"
    assert summary["counts"]["scored"] == 2


@pytest.mark.parametrize(
    ("control", "said"),
    [
        ("silence", "silence as long is sent"),
        ("shuffled", "as base64"),
        ("no-audio", "max_tokens=2048; no audio"),
        ("no-audio", "audio    none is sent"),
        (None, "as base64"),
    ],
)
def test_a_dry_run_says_what_a_control_sends(data: Path, control: str | None, said: str) -> None:
    """The mark first, and beside the calls silence, clips or nothing; of an evaluation there is no mark."""
    console = Console(file=io.StringIO(), width=80)
    render_dry_run(dry_run(resolve(config("http://127.0.0.1:9/v1", data, control=control), {})), console)
    assert isinstance(console.file, io.StringIO)
    told = console.file.getvalue()
    assert told.startswith("CONTROL RUN: ") is (control is not None)
    assert said in " ".join(told.split()) or said in told
