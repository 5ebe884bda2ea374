"""Clips in memory between being hashed and being sent: read once, within a limit, and given back."""

from __future__ import annotations

from pathlib import Path

from otoscope.audio import ConvertedClips, HeldClips, Loader
from otoscope.chat_api import AudioData
from otoscope.chat_api.body import READ_BLOCK, Body
from otoscope.config import AudioPolicy
from otoscope.records import AudioClip
from tests.audio_files import tone, write_sound
from tests.chat_helpers import collected

SIZE = 44 + 2 * 300_000


def loaded(path: Path, held: HeldClips) -> AudioClip:
    """Return a clip of over two blocks, loaded with room for it or without."""
    write_sound(path, tone(30, 10_000), 10_000)
    clip = Loader(AudioPolicy(), ConvertedClips(path.parent, 0), held).load(str(path))
    assert isinstance(clip, AudioClip)
    assert clip.size > 2 * READ_BLOCK
    return clip


def sent(clip: AudioClip) -> bytes:
    """Return the body of a request with the clip."""
    return collected(Body({"audio": AudioData(clip)}))


def test_held_clip_is_sent_without_reading_it_again(tmp_path: Path) -> None:
    """What was hashed is what is sent, whatever became of the file meanwhile."""
    path = tmp_path / "a.wav"
    from_file = sent(loaded(path, HeldClips(0)))
    clip = loaded(path, HeldClips(SIZE))
    path.unlink()
    assert sent(clip) == from_file


def test_clip_is_read_from_its_file_once_it_was_sent(tmp_path: Path) -> None:
    """A second attempt reads the file: no memory is kept for it."""
    clip = loaded(tmp_path / "a.wav", HeldClips(SIZE))
    first = sent(clip)
    assert clip.held is not None
    assert clip.held.read_at(0, 1) == b""
    assert sent(clip) == first


def test_only_what_has_room_is_held(tmp_path: Path) -> None:
    """With room for one clip a second one is not held, until the first was sent."""
    held = HeldClips(SIZE)
    first = loaded(tmp_path / "a.wav", held)
    assert loaded(tmp_path / "b.wav", held).held is None
    sent(first)
    assert loaded(tmp_path / "c.wav", held).held is not None


def test_room_comes_back_from_a_clip_that_nobody_sends(tmp_path: Path) -> None:
    """A clip whose request never begins takes no room for ever."""
    held = HeldClips(SIZE)
    clip = loaded(tmp_path / "a.wav", held)
    assert clip.held is not None
    del clip
    assert loaded(tmp_path / "b.wav", held).held is not None
