"""The audio policy: what becomes of clips before they are sent."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import threading
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile as sf
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from otoscope import run_task
from otoscope.audio import Header, change_of
from otoscope.audio.policy import Change
from otoscope.audio.silence import SilentWav
from otoscope.config import MP3_RATES, AudioPolicy, resolve
from otoscope.errors import ConfigError, DatasetError, RunDirectoryError
from otoscope.evaluation import dry_run
from otoscope.records import FailureKind
from otoscope.reports.plan import render_dry_run
from otoscope.runs import Run
from tests.audio_files import (
    arrived,
    clip_of,
    decoded,
    failure_of,
    loader,
    pitch,
    place,
    sent_bytes,
    tone,
    write_records,
    write_sound,
)
from tests.scripted_server import Response, ScriptedServer, Seen, scripted_answers
from tests.support import command, config, environment, flags, lines, otoscope, write_data

ONE_BIT = 1 / 32768


# --- the text ---------------------------------------------------------------------------------------------


@st.composite
def policies(draw: st.DrawFn) -> AudioPolicy:
    """Draw any policy that can be written down."""
    form = draw(st.sampled_from([None, "wav", "mp3", "flac"]))
    rates = st.sampled_from(MP3_RATES) if form == "mp3" else st.integers(1_000, 384_000)
    limited = draw(st.booleans())
    return AudioPolicy(
        rate=draw(st.none() | rates),
        mono=draw(st.booleans()),
        max_seconds=draw(st.floats(0.1, 86_400)) if limited else None,
        over=draw(st.sampled_from(["truncate", "skip", "error"])) if limited else None,
        format=form,
    )


@given(policies())
def test_a_policy_is_what_its_text_says(policy: AudioPolicy) -> None:
    """The canonical text of any policy reads back as that policy, to the last digit."""
    assert AudioPolicy.parse(str(policy)) == policy
    assert str(AudioPolicy.parse(str(policy))) == str(policy)


def test_one_policy_has_one_text() -> None:
    """Order and spaces do not make another policy."""
    given = AudioPolicy.parse(" format = wav , over=truncate,mono, max-seconds=30.0 ,rate=16000")
    assert str(given) == "rate=16000,mono,max-seconds=30,over=truncate,format=wav"
    assert str(AudioPolicy()) == "as-is"
    assert AudioPolicy.parse("as-is").is_as_is


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("as-is,mono", "as-is alone"),
        ("ratte=16000", "did you mean 'rate'"),
        ("format=mp3,rate=96000", "an mp3 cannot have rate=96000"),
        ("max-seconds=nan,over=skip", "must be seconds from 0.1"),
        ("max-seconds=30", "needs over="),
        ("over=skip", "needs max-seconds="),
        ("mono,mono", "given twice"),
        ("mono=yes", "without a value"),
        ("format=ogg", "ogg"),
    ],
)
def test_a_policy_that_means_nothing_is_refused(text: str, said: str) -> None:
    """What cannot be carried out is refused by name before anything starts."""
    with pytest.raises(ConfigError) as refusal:
        AudioPolicy.parse(text)
    assert said in str(refusal.value)


# --- one clip ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["wav", "float wav", "mp3", "24-bit flac", "ogg"])
@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("rate=16000", (None, 16000, 2, 2.0)),
        ("mono", (None, 44100, 1, 2.0)),
        ("max-seconds=0.5,over=truncate", (None, 44100, 2, 0.5)),
        ("format=wav,rate=8000,mono,max-seconds=1,over=truncate", ("wav", 8000, 1, 1.0)),
        ("format=mp3,rate=48000", ("mp3", 48000, 2, 2.0)),
        ("format=flac,mono", ("flac", 44100, 1, 2.0)),
        ("format=flac,rate=22050", ("flac", 22050, 2, 2.0)),
    ],
)
def test_what_is_sent_is_what_the_policy_says(
    tmp_path: Path, kind: str, policy: str, expected: tuple[str | None, int, int, float]
) -> None:
    """Rate, channels, length and format are the policy's, and the tone is still the same tone."""
    path = write_sound(tmp_path / "a", tone(2, 44100, 2), 44100, kind)
    clip = clip_of(loader(policy).load(path))
    form, rate, channels, seconds = expected
    form = form or ("mp3" if kind == "mp3" else "wav")
    info, heard = decoded(sent_bytes(clip))
    assert clip.sent is not None
    assert (info.format.lower(), info.samplerate, info.channels) == (form, rate, channels)
    assert clip.sent.facts() == {
        "sha256": hashlib.sha256(sent_bytes(clip)).hexdigest(),
        "bytes": len(sent_bytes(clip)),
        "format": form,
        "seconds": pytest.approx(seconds, abs=0.001),
        "rate": rate,
        "channels": channels,
    }
    assert len(heard) / rate == pytest.approx(seconds, abs=0.001)
    assert pitch(heard, rate) == pytest.approx(440, abs=3)
    assert np.abs(heard[len(heard) // 4 : -len(heard) // 4]).max() == pytest.approx(0.3, abs=0.03)


@pytest.mark.parametrize(
    ("kind", "policy"),
    [
        ("wav", "rate=16000,mono,max-seconds=2,over=truncate,format=wav"),
        ("float wav", "rate=16000,mono"),
        ("mp3", "rate=16000,mono,format=mp3"),
        ("mp3", "mono,max-seconds=30,over=skip"),
        ("flac", "format=flac,mono,max-seconds=2,over=error"),
        ("24-bit flac", "format=flac"),
    ],
)
def test_a_clip_that_fulfils_the_policy_is_sent_as_it_is(tmp_path: Path, kind: str, policy: str) -> None:
    """Byte for byte, without a new encoding, and nothing is said to have been changed."""
    path = write_sound(tmp_path / "a", tone(2, 16000), 16000, kind)
    clip = clip_of(loader(policy).load(path))
    assert sent_bytes(clip) == Path(path).read_bytes()
    assert (clip.sent, clip.changed) == (None, ())
    assert clip.sha256_sent == clip.sha256
    assert set(clip.facts()) == {
        "sha256", "bytes", "mtime_ns", "format", "seconds", "rate", "channels", "changed",
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["mp3", "ogg", "24-bit flac"])
def test_a_long_clip_is_decoded_as_if_at_once(tmp_path: Path, kind: str) -> None:
    """Where one block of a long clip ends and the next begins, nothing of the sound is lost."""
    times = np.arange(30 * 16000) / 16000
    rising = 0.4 * np.sin(2 * np.pi * (200 + 50 * times) * times)[:, None]
    path = write_sound(tmp_path / "a", rising, 16000, kind)
    heard, _ = sf.read(io.BytesIO(sent_bytes(clip_of(loader("format=wav").load(path)))), dtype="int16")
    at_once, _ = sf.read(path, dtype="float32")
    assert len(heard) == len(at_once)
    assert np.abs(heard - (at_once * 32768).clip(-32768, 32767)).max() <= 1


def test_what_was_changed_is_said_in_the_facts(tmp_path: Path) -> None:
    """Top-level facts are the file's; beside them stand those of what was sent, and who made it."""
    path = write_sound(tmp_path / "a", tone(2, 44100, 2), 44100, "mp3")
    facts = clip_of(loader("rate=16000,mono,max-seconds=0.5,over=truncate,format=wav").load(path)).facts()
    assert (facts["format"], facts["rate"], facts["channels"]) == ("mp3", 44100, 2)
    assert facts["seconds"] == pytest.approx(2, abs=0.1)
    assert (facts["sent"]["format"], facts["sent"]["rate"], facts["sent"]["seconds"]) == ("wav", 16000, 0.5)
    assert facts["changed"] == [
        f"cut from {facts['seconds']:g} to 0.5 s",
        "2 channels to mono",
        "44100 to 16000 Hz",
        "mp3 to 16-bit wav",
    ]
    assert facts["converter"].startswith(f"soundfile {sf.__version__}, libsndfile ")
    assert ", soxr " in facts["converter"]
    plain = clip_of(loader("mono").load(path)).facts()
    assert "soxr" not in plain["converter"]


def test_nothing_of_what_is_cut_off_is_heard(tmp_path: Path) -> None:
    """A clip is cut before it is resampled: no filter smears what comes after the cut into what is sent."""
    silence, noise = tone(1, 44100, level=0.0), tone(1, 44100, level=0.9)
    path = write_sound(tmp_path / "a", np.concatenate([silence, noise]), 44100)
    clip = clip_of(loader("rate=16000,max-seconds=1,over=truncate").load(path))
    assert not decoded(sent_bytes(clip))[1].any()


def test_mono_is_the_mean_of_the_channels(tmp_path: Path) -> None:
    """Channels are added up and divided: opposite ones cancel out, and nothing is clipped."""
    left, right = tone(0.5, 16000, level=0.9), tone(0.5, 16000, level=0.5)
    path = write_sound(tmp_path / "a", np.concatenate([left, right], axis=1), 16000, "float wav")
    heard = decoded(sent_bytes(clip_of(loader("mono").load(path))))[1]
    np.testing.assert_allclose(heard, (left + right) / 2, atol=ONE_BIT)
    path = write_sound(tmp_path / "b", np.concatenate([left, -left], axis=1), 16000, "float wav")
    assert not decoded(sent_bytes(clip_of(loader("mono").load(path))))[1].any()


def test_samples_are_rounded_to_the_nearest_without_dither(tmp_path: Path) -> None:
    """0.4 of a bit becomes 0, 0.6 becomes 1; beyond full scale is full scale; no number is silence."""
    values = [0.4, 0.6, -0.4, -0.6, 7.5001, 32766.6, 40000.0, -40000.0, np.nan, np.inf, -np.inf]
    sound = np.array(values, "float32").reshape(-1, 1) * ONE_BIT
    clip = clip_of(loader("format=flac").load(write_sound(tmp_path / "a", sound, 16000, "float wav")))
    with clip.open() as file:
        sent, _ = sf.read(file, dtype="int16")
    assert sent.tolist() == [0, 1, 0, -1, 8, 32767, 32767, -32768, 0, 32767, -32768]


def test_one_sample_that_is_no_number_spoils_no_other(tmp_path: Path) -> None:
    """A resampled clip is still heard around a NaN."""
    sound = tone(1, 44100)
    sound[22050] = np.nan
    path = write_sound(tmp_path / "a", sound, 44100, "float wav")
    heard = decoded(sent_bytes(clip_of(loader("rate=16000").load(path))))[1]
    assert np.abs(heard[10000:]).max() == pytest.approx(0.3, abs=0.01)


def test_what_the_new_rate_cannot_carry_is_filtered_out(tmp_path: Path) -> None:
    """A tone above half the new rate does not come back as a lower one."""
    path = write_sound(tmp_path / "a", tone(1, 44100, hertz=10_000), 44100)
    heard = decoded(sent_bytes(clip_of(loader("rate=16000").load(path))))[1]
    assert np.abs(heard[1000:-1000]).max() < 2 * ONE_BIT


def test_a_long_clip_costs_little_memory(tmp_path: Path) -> None:
    """Ten minutes are converted in blocks: the peak is a small part of what goes in and comes out."""
    path = tmp_path / "a.wav"
    silent = SilentWav(frames=600 * 24000, rate=24000, channels=2)
    path.write_bytes(silent.read_at(0, silent.size))
    policy = loader("rate=16000,mono")
    tracemalloc.start()
    try:
        clip = clip_of(policy.load(str(path)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert clip.sent is not None
    assert (clip.sent.seconds, clip.sent.size) == (600.0, 44 + 600 * 16000 * 2)
    assert peak < clip.sent.size / 3


@pytest.mark.parametrize("over", ["skip", "error"])
def test_a_clip_over_the_limit_is_left_out_by_name(tmp_path: Path, over: str) -> None:
    """It is a Failure of its own kind, with the file's state; one frame less is within the limit."""
    within = write_sound(tmp_path / "a", tone(1, 16000), 16000)
    longer = write_sound(tmp_path / "b", tone(1 + 1 / 16000, 16000), 16000)
    policy = loader(f"max-seconds=1,over={over}")
    assert clip_of(policy.load(within)).sent is None
    for load in (policy.load, policy.silent):
        failure = failure_of(load(longer))
        assert failure.kind is FailureKind.OVER_LIMIT
        assert not failure.kind.passing
        assert "takes 1 s at most" in failure.message
        status = Path(longer).stat()
        assert failure.file == {"bytes": status.st_size, "mtime_ns": status.st_mtime_ns}


def test_a_damaged_clip_is_converted_as_far_as_it_can_be_heard(tmp_path: Path) -> None:
    """Of an mp3 that was cut off what there is is sent, and that is said; a FLAC is bad audio."""
    path = Path(write_sound(tmp_path / "a", tone(4, 16000), 16000, "mp3"))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    clip = clip_of(loader("format=wav").load(str(path)))
    assert clip.sent is not None
    assert clip.sent.seconds < 3
    assert clip.changed == (
        "mp3 to 16-bit wav",
        f"only {clip.sent.seconds:g} of {clip.seconds:g} s can be decoded",
    )
    path.write_bytes(path.read_bytes() + bytes(4000))
    assert failure_of(loader("format=wav").load(str(path))).kind is FailureKind.BAD_AUDIO
    path = Path(write_sound(tmp_path / "b", tone(4, 16000), 16000, "flac"))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    failure = failure_of(loader("mono,format=wav").load(str(path)))
    assert failure.kind is FailureKind.BAD_AUDIO
    assert "decoded" in failure.message
    # What is cut off need not be there.
    start = clip_of(loader("max-seconds=1,over=truncate").load(str(path)))
    assert start.sent is not None
    assert start.sent.seconds == 1.0


def test_an_mp3_that_does_not_tell_its_length_is_not_cut_in_silence(tmp_path: Path) -> None:
    """Where the decoder would stop at a guess, before the end, the clip fails by name."""
    rng = np.random.default_rng(3)
    quiet_end = np.concatenate([0.3 * rng.standard_normal((16000, 1)), tone(5, 16000, level=0.0)])
    path = Path(write_sound(tmp_path / "a", quiet_end, 16000, "mp3"))
    assert clip_of(loader("format=wav").load(str(path))).changed == ("mp3 to 16-bit wav",)
    data = path.read_bytes()
    second = data.index(data[:2], 20)  # the first frame holds the length and no sound
    assert b"Xing" in data[:second]
    path.write_bytes(data[second:])
    failure = failure_of(loader("format=wav").load(str(path)))
    assert failure.kind is FailureKind.BAD_AUDIO
    assert "does not tell its length" in failure.message
    assert clip_of(loader("as-is").load(str(path))).sent is None


def test_a_clip_of_which_nothing_is_left_is_bad_audio(tmp_path: Path) -> None:
    """A single frame that is resampled to less than one is no clip."""
    failure = failure_of(loader("rate=8000").load(write_sound(tmp_path / "a", tone(1 / 44100, 44100), 44100)))
    assert failure.kind is FailureKind.BAD_AUDIO
    assert "nothing of it is left" in failure.message


@pytest.mark.parametrize(
    ("header", "policy", "said"),
    [
        (("WAV", 96000, 96000, 1), "format=mp3", "it cannot have 96000 Hz (rate= of the policy"),
        (("WAV", 16000, 16000, 6), "format=mp3", "it cannot have 6 channels (mono)"),
        (("WAV", 16000, 16000, 9), "format=flac", "it cannot have 9 channels (mono)"),
        (("CAF", 7 * 10**9, 16000, 1), "as-is", "over 4 GB"),
    ],
)
def test_what_a_format_cannot_hold_is_said_with_the_remedy(
    header: tuple[str, int, int, int], policy: str, said: str
) -> None:
    """The message names what is too much, and the key of the policy that changes it."""
    change = change_of(Header(*header, 1, 1), AudioPolicy.parse(policy))
    assert isinstance(change, str)
    assert said in change


def test_an_mp3_that_needs_a_rate_no_mp3_has_becomes_a_wav() -> None:
    """Without a format in the policy a clip keeps its own, unless that cannot hold it."""
    change = change_of(Header("MP3", 44100, 44100, 2, 1, 1), AudioPolicy.parse("rate=96000"))
    assert isinstance(change, Change)
    assert (change.format, change.rate) == ("wav", 96000)


_ELSEWHERE = """
import json, sys
from pathlib import Path
from tests.audio_files import loader
paths, policies = json.loads(sys.argv[1])
clips = [loader(policy).load(path) for path in paths for policy in policies]
print(json.dumps([clip.sha256_sent for clip in clips]))
"""


def test_every_process_makes_the_same_bytes(tmp_path: Path) -> None:
    """Wav, mp3 and flac, resampled and mixed down, are the same bit for bit in this and other processes."""
    rng = np.random.default_rng(7)
    noise = (0.2 * rng.standard_normal((30000, 2))).astype("float32")
    paths = [write_sound(tmp_path / kind, noise, 44100, kind) for kind in ("wav", "mp3", "ogg")]
    texts = [f"rate=16000,mono,format={form}" for form in ("wav", "mp3", "flac")] + ["format=mp3"]
    here = [clip_of(loader(text).load(path)).sha256_sent for path in paths for text in texts]
    assert len(set(here)) == len(here)
    done = subprocess.run(
        [sys.executable, "-c", _ELSEWHERE, json.dumps([paths, texts])],
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    assert json.loads(done.stdout) == here


# --- a run ------------------------------------------------------------------------------------------------

TASK = "sound_QA"
KEPT_BY = "rate=16000,mono,max-seconds=1,over=truncate,format=wav"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a data set with a clip that fulfils the policies here, and others that do not."""
    root = write_records(
        tmp_path / "data",
        [(TASK, "fits.wav", "Fits?"), (TASK, "long.wav", "Long?"), (TASK, "stereo.mp3", "Stereo?")],
    )
    write_sound(place(root, TASK, "fits.wav"), tone(1, 16000), 16000)
    write_sound(place(root, TASK, "long.wav"), tone(3, 44100, hertz=300), 44100)
    write_sound(place(root, TASK, "stereo.mp3"), tone(2, 48000, 2), 48000, "mp3")
    return root


def evaluate(server: ScriptedServer, data: Path, run: Path, policy: str | None, **more: Any) -> Run:
    """Run an evaluation without a judge under a policy, with a cache of converted clips beside the run."""
    settings = config(server.url, data, run, audio_policy=policy, no_judge=True, **more)
    return run_task(settings, environ={"OTOSCOPE_CACHE": str(run.with_name("cache"))})


def facts(run: Path) -> dict[str, Any]:
    """Return the clip facts of each answer, by the clip's name."""
    return {
        line["key"].split("/")[2].partition("#")[0]: line["clip"] for line in lines(run / "answers.jsonl")
    }


@pytest.mark.parametrize("form", ["input_audio", "audio_url", "data_uri"])
def test_the_server_gets_what_the_policy_says(tmp_path: Path, data: Path, form: str) -> None:
    """Every clip arrives as 16 kHz mono wav of at most a second, in every wire form; one came as it was."""
    with ScriptedServer(keep_bodies=True) as server:
        evaluate(server, data, tmp_path / "run", KEPT_BY, audio_part=form)
        got = arrived(server)
    assert set(got) == {"Fits?", "Long?", "Stereo?"}
    for audio in got.values():
        assert audio is not None
        content, said = audio
        info, _ = decoded(content)
        assert (info.format, info.samplerate, info.channels, info.duration) == ("WAV", 16000, 1, 1.0)
        assert said in ("wav", "data:audio/wav;base64")
    assert got["Fits?"] is not None
    assert got["Fits?"][0] == place(data, TASK, "fits.wav").read_bytes()
    stored = facts(tmp_path / "run")
    assert "sent" not in stored["fits.wav"]
    for name, question in (("long.wav", "Long?"), ("stereo.mp3", "Stereo?")):
        audio = got[question]
        assert audio is not None
        assert stored[name]["sent"] == {
            "sha256": hashlib.sha256(audio[0]).hexdigest(), "bytes": len(audio[0]), "format": "wav",
            "seconds": 1.0, "rate": 16000, "channels": 1,
        }  # fmt: skip
        assert "soxr" in stored[name]["converter"]
        assert stored[name]["sha256"] == hashlib.sha256(place(data, TASK, name).read_bytes()).hexdigest()
    assert (stored["long.wav"]["seconds"], stored["long.wav"]["rate"]) == (3.0, 44100)


@pytest.mark.parametrize(
    ("form", "mime"), [("mp3", "audio/mpeg"), ("flac", "audio/flac"), ("wav", "audio/wav")]
)
def test_the_format_is_named_as_it_is_sent(tmp_path: Path, data: Path, form: str, mime: str) -> None:
    """The request says the format of the bytes that it holds, in both ways of saying it."""
    for part, expected in (("input_audio", form), ("audio_url", f"data:{mime};base64")):
        with ScriptedServer(keep_bodies=True) as server:
            evaluate(server, data, tmp_path / part, f"format={form}", audio_part=part)
            got = arrived(server)
        for audio in got.values():
            assert audio is not None
            assert (decoded(audio[0])[0].format.lower(), audio[1]) == (form, expected)


def test_the_policy_stands_in_the_fingerprint_and_cannot_change(tmp_path: Path, data: Path) -> None:
    """Its canonical text is kept; another policy within the run is refused by name, the same one is not."""
    with ScriptedServer() as server:
        run = evaluate(server, data, tmp_path / "run", "mono,rate=16000")
        assert run.manifest["fingerprint"]["prompt"]["audio_policy"] == "rate=16000,mono"
        for other in ("mono", "as-is", None):
            with pytest.raises(RunDirectoryError, match=r"prompt\.audio_policy: was 'rate=16000,mono'"):
                evaluate(server, data, tmp_path / "run", other)
        evaluate(server, data, tmp_path / "run", "rate=16000, mono")
        assert len(server.requests) == 3


def test_a_run_from_before_there_were_policies_goes_on(tmp_path: Path, data: Path) -> None:
    """A fingerprint that names no policy means clips as they are."""
    with ScriptedServer() as server:
        evaluate(server, data, tmp_path / "run", None)
        manifest = json.loads((tmp_path / "run" / "manifest.json").read_text(encoding="utf-8"))
        del manifest["fingerprint"]["prompt"]["audio_policy"], manifest["fingerprint"]["prompt"]["control"]
        (tmp_path / "run" / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
        evaluate(server, data, tmp_path / "run", None)
        assert len(server.requests) == 3


def test_clips_over_the_limit_are_skipped_and_not_asked_about(tmp_path: Path, data: Path) -> None:
    """They fail by a lasting kind of their own; once the file is another one, they are owed again."""
    with ScriptedServer(keep_bodies=True) as server:
        run = evaluate(server, data, tmp_path / "run", "max-seconds=1.5,over=skip")
        assert set(arrived(server)) == {"Fits?"}
        assert run.summary.counts["failures"] == {"over_limit": 2}
        failed = [line for line in lines(run.path / "answers.jsonl") if "failure" in line]
        assert {line["failure"]["kind"] for line in failed} == {"over_limit"}
        path = place(data, TASK, "long.wav")
        assert {"bytes": path.stat().st_size, "mtime_ns": path.stat().st_mtime_ns} in [
            line["failure"]["file"] for line in failed
        ]
        evaluate(server, data, tmp_path / "run", "max-seconds=1.5,over=skip")
        assert len(server.requests) == 1
        write_sound(path, tone(1, 44100), 44100)
        run = evaluate(server, data, tmp_path / "run", "max-seconds=1.5,over=skip")
        assert set(arrived(server)) == {"Fits?", "Long?"}
        assert run.summary.counts["failures"] == {"over_limit": 1}


def test_the_first_samples_may_all_be_over_the_limit(tmp_path: Path) -> None:
    """What the policy leaves out says nothing about the endpoint: the run goes on to what it asks for."""
    clips = [(TASK, f"{n}.wav", f"Question {n}?") for n in range(6)]
    root = write_records(tmp_path / "data", clips)
    for number, (_, name, _) in enumerate(clips):
        write_sound(place(root, TASK, name), tone(0.5 if number == 5 else 1, 8000, hertz=200 + number), 8000)
    with ScriptedServer(keep_bodies=True) as server:
        run = evaluate(server, root, tmp_path / "run", "max-seconds=0.5,over=skip")
        assert set(arrived(server)) == {"Question 5?"}
    assert run.summary.counts["failures"] == {"over_limit": 5}


def test_over_error_stops_before_anything_is_sent(tmp_path: Path, data: Path) -> None:
    """The headers of all owed clips are read first; the message names the clips and the ways on."""
    with ScriptedServer() as server:
        with pytest.raises(DatasetError) as refusal:
            evaluate(server, data, tmp_path / "run", "max-seconds=1.5,over=error")
        assert server.requests == []
    told = str(refusal.value)
    assert told.startswith("2 of the clips are over the 1.5 s of the audio policy:\n")
    assert f"  {TASK}/made/long.wav: 3 s\n" in told
    assert "over=truncate or over=skip" in told
    assert refusal.value.exit_code == 3


def test_over_error_asks_about_what_is_owed_alone(tmp_path: Path, data: Path) -> None:
    """A clip that grew after its answer came is told of as changed, and one that is done stops nothing."""
    long, stereo = place(data, TASK, "long.wav"), place(data, TASK, "stereo.mp3")
    whole = long.read_bytes(), stereo.read_bytes()
    write_sound(long, tone(1, 16000, hertz=300), 16000)
    stereo.unlink()
    with ScriptedServer() as server:
        evaluate(server, data, tmp_path / "run", "max-seconds=1.5,over=error")
        assert len(server.requests) == 2
        stereo.write_bytes(whole[1])
        with pytest.raises(DatasetError, match="1 of the clips"):
            evaluate(server, data, tmp_path / "run", "max-seconds=1.5,over=error")
        stereo.unlink()
        evaluate(server, data, tmp_path / "run", "max-seconds=1.5,over=error")
        assert len(server.requests) == 2


def test_a_changed_clip_is_owed_again_though_it_was_converted(tmp_path: Path, data: Path) -> None:
    """What decides is the data set's own file, whatever was sent of it, and the cache knows the new bytes."""
    with ScriptedServer(keep_bodies=True) as server:
        evaluate(server, data, tmp_path / "run", KEPT_BY)
        write_sound(place(data, TASK, "long.wav"), tone(3, 44100, hertz=900), 44100)
        evaluate(server, data, tmp_path / "run", KEPT_BY)
        assert len(server.requests) == 4
        audio = arrived(server)["Long?"]
    assert audio is not None
    assert pitch(decoded(audio[0])[1], 16000) == pytest.approx(900, abs=3)


def test_a_run_that_was_killed_goes_on_with_the_same_clips(tmp_path: Path) -> None:
    """After SIGKILL the same command ends with the facts and answers of a run that nobody killed."""
    data = write_data(tmp_path / "data", each=6, tasks=["sound_QA", "music_QA"], seconds=0.3)
    policy = "rate=16000,max-seconds=0.2,over=truncate,format=flac"
    begun = threading.Semaphore(0)

    def script(seen: Seen, attempt: int) -> Response:
        begun.release()
        return replace(scripted_answers()(seen, attempt), delay=0.02)

    with ScriptedServer(script) as server:
        call = flags(
            server.url, data, "--run-dir", str(tmp_path / "killed"), "--eval-batch-size", "2",
            "--audio-policy", policy, "--no-judge",
        )  # fmt: skip
        environ = environment(OTOSCOPE_CACHE=str(tmp_path / "cache"))
        process = subprocess.Popen(command(*call), env=environ, stderr=subprocess.DEVNULL)
        for _ in range(5):
            assert begun.acquire(timeout=60)
        process.kill()
        process.wait()
        assert 0 < len(lines(tmp_path / "killed" / "answers.jsonl")) < 12
        evaluate(server, data, tmp_path / "killed", policy, eval_batch_size=2)
        evaluate(server, data, tmp_path / "whole", policy)
    told = [
        {line["key"]: (line["text"], line["clip"]) for line in lines(tmp_path / name / "answers.jsonl")}
        for name in ("killed", "whole")
    ]
    assert told[0] == told[1]
    assert len(told[0]) == 12


def test_a_dry_run_tells_the_policy(data: Path) -> None:
    """They say the policy, how many clips it converts, and what becomes of those over the limit."""
    expected = {
        KEPT_BY: ["2 samples' clips converted", "2 samples' clips over 1 s would be cut, by 3.0 s in all"],
        "max-seconds=2.5,over=skip": ["1 sample's clip over 2.5 s would be skipped", "2 to the model"],
        "max-seconds=2.5,over=error": ["1 sample's clip over 2.5 s: the run would stop"],
        "as-is": ["as base64"],
    }
    for policy, said in expected.items():
        console = Console(file=io.StringIO(), width=80)
        settings = resolve(config("http://127.0.0.1:9/v1", data, audio_policy=policy), {})
        render_dry_run(dry_run(settings), console)
        assert isinstance(console.file, io.StringIO)
        told = console.file.getvalue()
        assert (f"audio    {policy}\n" in told) is (policy != "as-is")
        for part in said:
            assert part in " ".join(told.split())


def test_the_command_stops_with_the_exit_code_of_the_data(tmp_path: Path, data: Path) -> None:
    """Over=error ends with 3 and the next step, and the settings before it say the policy."""
    policy = "max-seconds=1,over=error"
    run = ["--run-dir", str(tmp_path / "run"), "--audio-policy", policy]
    done = otoscope(*flags("http://127.0.0.1:9/v1", data, *run, "--audio-cache-size", "0"))
    assert done.returncode == 3
    assert f"audio    {policy}\n" in done.stderr
    assert "Give a larger max-seconds=" in done.stderr
