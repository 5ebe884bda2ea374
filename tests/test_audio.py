from __future__ import annotations

import ctypes
import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile as sf
from hypothesis import given, settings
from hypothesis import strategies as st

from otoscope import audio
from otoscope.records import AudioClip, Failure, FailureKind

RATE = 16_000
SECONDS = 0.5
FRAMES = int(RATE * SECONDS)
TONE = (0.3 * np.sin(2 * np.pi * 440 * np.arange(FRAMES) / RATE)).astype("float32")

MP3 = ("MP3", "MPEG_LAYER_III")
WAV = ("WAV", "PCM_16")

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Return a function that writes the tone to a file of a given name, format and subtype."""

    def _write(name: str, kind: tuple[str, str], *, gain: float = 1.0, channels: int = 1) -> str:
        path = tmp_path / name
        data = np.stack([TONE * gain] * channels, axis=1)
        # The library decides by the name where it can, so the name is given afterwards.
        sf.write(tmp_path / "written", data, RATE, format=kind[0], subtype=kind[1])
        (tmp_path / "written").rename(path)
        return str(path)

    return _write


def clip(path: str) -> AudioClip:
    """Return the clip of a file that must be a good one."""
    loaded = audio.load(path)
    assert isinstance(loaded, AudioClip), loaded
    return loaded


def failure(path: str) -> Failure:
    """Return the Failure of a file that must be a bad one."""
    loaded = audio.load(path)
    assert isinstance(loaded, Failure), loaded
    return loaded


def sent(loaded: AudioClip) -> bytes:
    """Return the bytes that are sent for a clip."""
    with loaded.open() as file:
        return file.read()


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("a.wav", WAV, "wav"),
        ("a.mp3", MP3, "mp3"),
        ("mp3 bytes.wav", MP3, "mp3"),
        ("wav bytes.mp3", WAV, "wav"),
        ("no-ending", WAV, "wav"),
        ("a.raw", MP3, "mp3"),
        ("a.wav", ("WAVEX", "PCM_16"), "wav"),
        ("Zwölf Töne — 音.wav", WAV, "wav"),
    ],
)
def test_the_format_comes_from_the_bytes(
    write: Write, name: str, kind: tuple[str, str], expected: str
) -> None:
    """Wav and mp3 are told apart by their bytes, whatever the file is called, and travel unchanged."""
    path = write(name, kind)
    loaded = clip(path)
    assert loaded.format == expected
    assert loaded.changed == ()
    assert loaded.sent is None
    assert sent(loaded) == Path(path).read_bytes()
    assert (loaded.rate, loaded.channels) == (RATE, 1)
    assert loaded.seconds == pytest.approx(SECONDS, abs=0.1)


@pytest.mark.parametrize("subtype", ["FLOAT", "DOUBLE", "PCM_24", "PCM_U8"])
def test_every_kind_of_wav_travels_as_it_is(write: Write, subtype: str) -> None:
    """A float, 24-bit or 8-bit wav is sent unchanged."""
    path = write("a.wav", ("WAV", subtype))
    loaded = clip(path)
    assert (loaded.format, loaded.changed) == ("wav", ())
    assert sent(loaded) == Path(path).read_bytes()


@pytest.mark.parametrize(
    "kind",
    [
        ("FLAC", "PCM_16"),
        ("FLAC", "PCM_24"),
        ("OGG", "VORBIS"),
        ("OGG", "OPUS"),
        ("AIFF", "PCM_16"),
        ("AIFF", "FLOAT"),
        ("CAF", "DOUBLE"),
        ("RF64", "PCM_16"),
    ],
)
@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("name", ["a.bin", "a.raw", "a.wav"])
def test_other_formats_become_16_bit_wav(
    write: Write, kind: tuple[str, str], channels: int, name: str
) -> None:
    """Whatever else can be read becomes a 16-bit wav of the same length, rate, channels and loudness."""
    loaded = clip(write(name, kind, channels=channels))
    assert (loaded.format, loaded.format_sent) == (kind[0].lower(), "wav")
    assert loaded.changed == (f"{kind[0].lower()} to 16-bit wav",)
    assert loaded.size_sent == len(sent(loaded))
    with loaded.open() as file:
        info = sf.info(file)
    assert (info.format, info.subtype) == ("WAV", "PCM_16")
    assert (info.frames, info.samplerate, info.channels) == (FRAMES, RATE, channels)
    assert (loaded.seconds, loaded.rate, loaded.channels) == (SECONDS, RATE, channels)
    with loaded.open() as file:
        heard, _ = sf.read(file)
    assert np.abs(heard).max() == pytest.approx(0.3, abs=0.1)


def test_a_16_bit_flac_loses_nothing(write: Write) -> None:
    """The frames of a 16-bit FLAC are those of the wav, bit for bit."""
    path = write("a.flac", ("FLAC", "PCM_16"))
    with clip(path).open() as file:
        heard, _ = sf.read(file, dtype="int16")
    np.testing.assert_array_equal(heard, sf.read(path, dtype="int16")[0])


@pytest.mark.parametrize("kind", [("AIFF", "FLOAT"), ("OGG", "VORBIS")])
def test_what_is_too_loud_for_16_bit_is_clipped(write: Write, kind: tuple[str, str]) -> None:
    """Values beyond full scale stay at full scale; they do not wrap around to the other sign."""
    with clip(write("a", kind, gain=4.0)).open() as file:
        heard, _ = sf.read(file)
    loud = np.abs(TONE * 4) > 1.1
    assert (np.sign(heard) == np.sign(TONE))[loud].all()
    assert np.abs(heard).max() == pytest.approx(1.0, abs=0.001)


def test_the_facts_are_those_of_the_source_file(write: Write) -> None:
    """SHA-256, size and time belong to the file in the data set, also where the clip was converted."""
    path = Path(write("a.flac", ("FLAC", "PCM_16")))
    os.utime(path, ns=(0, 1_234_567_890_000_000_123))
    loaded = clip(str(path))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert (loaded.sha256, loaded.size) == (digest, path.stat().st_size)
    assert loaded.mtime_ns == path.stat().st_mtime_ns
    assert loaded.size_sent != loaded.size
    assert audio.file_sha256(str(path)) == digest
    assert audio.file_state(str(path)) == {"bytes": loaded.size, "mtime_ns": loaded.mtime_ns}


@pytest.mark.parametrize("kind", [WAV, MP3, ("FLAC", "PCM_16")])
def test_a_clip_can_be_opened_again_and_again(write: Write, kind: tuple[str, str]) -> None:
    """Every reader starts at the first byte and yields the same bytes, also beside another one."""
    loaded = clip(write("a", kind))
    with loaded.open() as one, loaded.open() as other:
        assert one.read(10) == other.read(10)
        assert one.read() == other.read()
    assert sent(loaded) == sent(loaded)


@pytest.mark.parametrize("kind", [WAV, MP3, ("FLAC", "PCM_16")])
def test_measuring_reads_the_header_alone(write: Write, kind: tuple[str, str]) -> None:
    """Measuring tells the same length, size, rate and channels as loading, and fails for the same reasons."""
    path = write("a", kind)
    measured, loaded = audio.measure(path), clip(path)
    assert isinstance(measured, audio.Header)
    assert (measured.seconds, measured.size) == (loaded.seconds, loaded.size)
    assert (measured.rate, measured.channels) == (loaded.rate, loaded.channels)
    Path(path).write_bytes(b"garbage")
    assert audio.measure(path) == failure(path)
    Path(path).unlink()
    assert audio.measure(path) == failure(path)


def test_a_missing_file_is_missing_audio(tmp_path: Path) -> None:
    """No file, a path through a file, and a folder in its place are missing audio."""
    (tmp_path / "file").write_bytes(b"x")
    for path in (tmp_path / "none.wav", tmp_path / "file" / "a.wav", tmp_path):
        found = failure(str(path))
        assert found.kind is FailureKind.MISSING_AUDIO
        assert str(path) in found.message
    assert audio.file_state(str(tmp_path / "none.wav")) is None
    assert audio.file_sha256(str(tmp_path / "none.wav")) is None
    assert audio.file_sha256(str(tmp_path)) is None


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_named_pipe_does_not_hang(tmp_path: Path) -> None:
    """A named pipe in a clip's place is bad audio at once; nobody waits for a writer."""
    os.mkfifo(tmp_path / "a.wav")
    assert failure(str(tmp_path / "a.wav")).kind is FailureKind.BAD_AUDIO


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_is_not_given_is_unreadable(write: Write) -> None:
    """A file without permission to read it is unreadable, and says why."""
    path = write("a.wav", WAV)
    Path(path).chmod(0)
    found = failure(path)
    assert found.kind is FailureKind.UNREADABLE_AUDIO
    assert "cannot be read: Permission denied" in found.message
    assert audio.file_sha256(path) is None


def test_links_that_lead_in_a_circle_are_unreadable(tmp_path: Path) -> None:
    """A link that leads back to itself is a Failure, not a crash."""
    (tmp_path / "a.wav").symlink_to(tmp_path / "b.wav")
    (tmp_path / "b.wav").symlink_to(tmp_path / "a.wav")
    assert failure(str(tmp_path / "a.wav")).kind is FailureKind.UNREADABLE_AUDIO


def wav_header() -> bytes:
    """Return a wav file that has a header and not one frame."""
    with tempfile.TemporaryFile() as file:
        sf.write(file, np.zeros(0, "int16"), RATE, format="WAV", subtype="PCM_16")
        file.seek(0)
        return file.read()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty (0 bytes)"),
        (wav_header(), "no audio (0 frames)"),
        (b"RIFF", "not audio that can be read"),
        (b"not audio at all, though long enough to be some" * 20, "it begins with b'not audio at all"),
        (b"\xff\xfb\x90\x00" + b"\x55" * 5000, "damaged or cut off"),
        (b"version https://git-lfs.github.com/spec/v1\n", "b'version https://"),
    ],
)
def test_a_file_without_audio_is_bad_audio(tmp_path: Path, content: bytes, said: str) -> None:
    """Empty files, bare headers and garbage are bad audio, with the reason, the size and the time."""
    path = tmp_path / "a.wav"
    path.write_bytes(content)
    found = failure(str(path))
    assert found.kind is FailureKind.BAD_AUDIO
    assert said in found.message
    assert found.file == {"bytes": len(content), "mtime_ns": path.stat().st_mtime_ns}


def test_an_mp3_cut_within_its_first_frame_is_bad_audio(write: Write) -> None:
    """An mp3 of which not one frame is whole is bad audio."""
    path = Path(write("a.mp3", MP3))
    path.write_bytes(path.read_bytes()[:50])
    assert failure(str(path)).kind is FailureKind.BAD_AUDIO


@pytest.mark.parametrize("kind", [WAV, MP3])
def test_a_clip_cut_later_travels_as_it_is(write: Write, kind: tuple[str, str]) -> None:
    """A wav or mp3 that lacks its end is sent as it is: what there is can be heard."""
    path = Path(write("a", kind))
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    loaded = clip(str(path))
    assert sent(loaded) == path.read_bytes()
    assert 0 < loaded.seconds <= SECONDS + 0.1


def test_a_damaged_clip_is_not_converted_in_part(write: Write) -> None:
    """A FLAC that lacks its end is bad audio: a shorter wav would hide the damage."""
    path = Path(write("a.flac", ("FLAC", "PCM_16")))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    found = failure(str(path))
    assert found.kind is FailureKind.BAD_AUDIO
    assert "decoded" in found.message


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="this system does not list descriptors")
def test_no_descriptor_is_left_open(write: Write, tmp_path: Path) -> None:
    """Loading good, converted and bad clips leaves no file open."""
    (tmp_path / "garbage").write_bytes(b"fLaC" + b"\1" * 100)
    paths = [
        write("a.wav", WAV),
        write("a.mp3", MP3),
        write("a.flac", ("FLAC", "PCM_16")),
        str(tmp_path / "garbage"),
        str(tmp_path / "none"),
        str(tmp_path),
    ]
    before = len(list(Path("/proc/self/fd").iterdir()))
    for path in paths * 5:
        audio.load(path)
        audio.file_sha256(path)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


MAGIC = (
    b"",
    b"RIFF\x24\x00\x00\x00WAVEfmt \x10\x00\x00\x00\x01\x00\x01\x00",
    b"fLaC\x00\x00\x00\x22",
    b"OggS\x00\x02",
    b"FORM\x00\x00\x00\x40AIFFCOMM",
    b"ID3\x04\x00\x00\x00\x00\x00\x0a",
    b".snd\x00\x00\x00\x18",
    b"caff\x00\x01\x00\x00desc",
    b"Creative Voice File\x1a",
    wav_header(),
)


def test_a_damaged_midi_dump_prints_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Standard output is for the numbers: a library that would print there does not get the file."""
    path = tmp_path / "clip.sds"
    sf.write(path, np.zeros(4000, dtype="int16"), 8000, format="SDS", subtype="PCM_16")
    content = bytearray(path.read_bytes())
    content[200::50] = b"\x55" * len(content[200::50])
    path.write_bytes(content)
    loaded = audio.load(str(path))
    assert isinstance(loaded, Failure)
    assert loaded.kind is FailureKind.BAD_AUDIO
    assert "MIDI" in loaded.message
    # The C library's buffer is written out when it is full, or at the end of the process.
    ctypes.CDLL(None).fflush(None)
    assert capfd.readouterr() == ("", "")


@settings(max_examples=300, deadline=None)
@given(magic=st.sampled_from(MAGIC), rest=st.binary(max_size=400))
def test_no_bytes_crash_the_loader(magic: bytes, rest: bytes) -> None:
    """Whatever a file holds, loading it gives a clip with readable bytes, or a bad_audio Failure."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "clip"
        path.write_bytes(magic + rest)
        loaded = audio.load(str(path))
        if isinstance(loaded, AudioClip):
            assert loaded.seconds >= 0
            assert len(sent(loaded)) == loaded.size_sent > 0
        else:
            assert loaded.kind is FailureKind.BAD_AUDIO
