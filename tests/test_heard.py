"""A clip as a model written in Python hears it."""

from __future__ import annotations

import gc
import io
import pickle
from pathlib import Path

import numpy as np
import pytest
import soundfile as sf

from otoscope import AudioClip
from otoscope.audio import ConvertedClips, HeldClips, Loader
from otoscope.audio.heard import DamagedClipError
from otoscope.config import AudioPolicy
from tests.audio_files import clip_of, loader, tone, write_sound


def heard(path: str, policy: str = "as-is") -> AudioClip:
    """Return a file's clip under a policy."""
    return AudioClip(clip_of(loader(policy).load(path)))


@pytest.mark.parametrize("kind", ["wav", "float wav", "mp3", "24-bit flac"])
def test_samples_are_those_of_the_file(tmp_path: Path, kind: str) -> None:
    """Float32, a row a frame; mono is the mean of the channels; the rate is the file's, or what is asked."""
    left, right = tone(1, 16000) * 1.0, tone(1, 16000) * 0.5
    path = write_sound(tmp_path / "a", np.concatenate([left, right], axis=1), 16000, kind)
    clip = heard(path)
    whole, _ = sf.read(path, dtype="float32", always_2d=True)
    assert (clip.rate, clip.channels) == (16000, 2)
    assert clip.seconds == pytest.approx(len(whole) / 16000, abs=0.1)
    both = clip.samples(mono=False)
    assert (both.dtype, both.shape) == (np.float32, whole.shape)
    # A format that does not travel has been made a 16-bit wav.
    assert np.abs(both - whole).max() < 1 / 32768
    mono = clip.samples()
    assert (mono.dtype, mono.shape) == (np.float32, (len(whole),))
    assert np.abs(mono - whole.mean(axis=1)).max() < 1 / 32768
    resampled = clip.samples(8000)
    assert resampled.dtype == np.float32
    assert len(resampled) == pytest.approx(len(whole) / 2, abs=2)
    assert clip.samples(8000, mono=False).shape[1] == 2


def test_it_is_what_the_policy_makes_of_the_file(tmp_path: Path) -> None:
    """Under a policy, path, bytes and samples are the converted clip's; the file of its own goes with it."""
    path = write_sound(tmp_path / "a", tone(2, 44100, 2), 44100)
    clip = heard(path, "rate=16000,mono,max-seconds=1,over=truncate")
    assert (clip.rate, clip.channels, clip.seconds, clip.format) == (16000, 1, 1.0, "wav")
    assert len(clip.samples()) == 16000
    assert clip.path.read_bytes() == clip.read() != Path(path).read_bytes()
    assert len(clip.read()) == clip.size
    written = clip.path
    assert written != Path(path)
    assert written.suffix == ".wav"
    del clip
    gc.collect()
    assert not written.exists()


def test_without_a_policy_it_is_the_file_itself(tmp_path: Path) -> None:
    """Nothing is copied: the path is the data set's own."""
    path = write_sound(tmp_path / "a.wav", tone(1, 16000), 16000)
    clip = heard(path)
    assert clip.path == Path(path)
    assert clip.read() == Path(path).read_bytes()
    assert repr(clip) == "AudioClip(1 s, 16000 Hz, 1 channels, wav)"


def test_bytes_that_are_held_are_not_read_again(tmp_path: Path) -> None:
    """They are those that were hashed, whatever became of the file; once they are gone the file is read."""
    path = write_sound(tmp_path / "a.wav", tone(1, 16000), 16000)
    whole = Path(path).read_bytes()
    held = Loader(AudioPolicy(), ConvertedClips(tmp_path / "none", 0), HeldClips(1 << 20))
    clip = clip_of(held.load(path))
    Path(path).write_bytes(b"other")
    assert AudioClip(clip).read() == whole
    assert clip.held is not None
    clip.held.drop()
    with pytest.raises(OSError, match="has 5 bytes, and had"):
        AudioClip(clip).read()


def test_it_travels_with_its_bytes(tmp_path: Path) -> None:
    """Pickled, it is the same clip where its file is not; its path then is a file of its own."""
    path = Path(write_sound(tmp_path / "a.wav", tone(1, 16000), 16000))
    there = pickle.dumps(heard(str(path)))
    whole = path.read_bytes()
    path.unlink()
    clip = pickle.loads(there)  # noqa: S301 (its own bytes)
    assert (clip.read(), clip.path.read_bytes(), clip.rate) == (whole, whole, 16000)
    assert len(clip.samples()) == 16000
    again = pickle.loads(pickle.dumps(clip))  # noqa: S301 (its own bytes)
    assert again.read() == whole


def test_silence_is_heard_too(tmp_path: Path) -> None:
    """What a control puts in a clip's place is what a model gets."""
    path = write_sound(tmp_path / "a.wav", tone(1, 16000), 16000)
    clip = AudioClip(clip_of(loader("as-is").silent(path)))
    assert not clip.samples().any()
    assert len(clip.samples()) == 16000
    assert clip.path != Path(path)


def test_a_clip_that_cannot_be_decoded_is_said_to_be_damaged(tmp_path: Path) -> None:
    """Whatever its header promised."""
    path = Path(write_sound(tmp_path / "a", tone(1, 16000), 16000))
    clip = heard(str(path))
    with pytest.raises(ValueError, match="must be above 0"):
        clip.samples(0)
    whole = bytearray(path.read_bytes())
    whole[20:22] = (0x55).to_bytes(2, "little")  # says that it is an mp3 within a wav
    path.write_bytes(whole)
    with pytest.raises(DamagedClipError, match="cannot be decoded"):
        clip.samples()


def test_samples_of_a_long_mp3_are_whole(tmp_path: Path) -> None:
    """More than one block of it, without a seam."""
    times = np.arange(20 * 16000) / 16000
    rising = 0.4 * np.sin(2 * np.pi * (200 + 50 * times) * times)[:, None]
    path = write_sound(tmp_path / "a", rising, 16000, "mp3")
    at_once, _ = sf.read(io.BytesIO(Path(path).read_bytes()), dtype="float32")
    assert np.abs(heard(path).samples() - at_once).max() < 1e-5
