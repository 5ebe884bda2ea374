"""The cache of converted clips: found again, whole or not at all, and never in the way."""

from __future__ import annotations

import errno
import io
import json
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otoscope.audio import ConvertedClips
from otoscope.audio.cache import Converted
from otoscope.audio.conversion import encode
from otoscope.records import AudioClip
from tests.audio_files import clip_of, loader, sent_bytes, tone, write_sound
from tests.scripted_server import ScriptedServer
from tests.support import command, environment, flags, lines, write_data

POLICY = "rate=16000,mono,format=wav"
PATTERN = "*/*.*"


def kept(cache: Path) -> list[Path]:
    """Return all files of a cache."""
    return sorted(path for path in cache.rglob("*") if path.is_file())


def size_of(cache: Path) -> int:
    """Return the bytes of all files of a cache."""
    return sum(path.stat().st_size for path in kept(cache))


def writes(data: bytes) -> Callable[[BinaryIO], int]:
    """Return a conversion that writes these bytes."""

    def make(target: BinaryIO) -> int:
        target.write(data)
        return len(data)

    return make


def content(converted: Converted) -> bytes:
    """Return all bytes of a converted clip."""
    return converted.content.read_at(0, converted.size)


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Return a clip that the policy changes."""
    return write_sound(tmp_path / "a.mp3", tone(1, 44100, 2), 44100, "mp3")


def test_a_clip_is_converted_once(tmp_path: Path, path: str) -> None:
    """What was converted lies in the cache and is sent from there, the same file the next time."""
    cache = tmp_path / "cache"
    first = clip_of(loader(POLICY, cache).load(path))
    (file,) = kept(cache)
    assert file.read_bytes() == sent_bytes(first)
    before = file.stat()
    os.utime(file, ns=(0, 0))
    again = clip_of(loader(POLICY, cache).load(path))
    assert again == first
    assert sent_bytes(again) == sent_bytes(first)
    (same,) = kept(cache)
    assert (same.stat().st_ino, same.stat().st_size) == (before.st_ino, before.st_size)
    assert same.stat().st_mtime_ns > 0  # its time is when it was used last


def test_another_policy_or_other_bytes_are_another_clip(tmp_path: Path, path: str) -> None:
    """Content and conversion are the key; what a clip is called is not."""
    cache = tmp_path / "cache"
    for policy in (
        POLICY,
        "rate=8000,mono,format=wav",
        "rate=16000,format=wav",
        "rate=16000,mono,format=flac",
    ):
        loader(policy, cache).load(path)
    assert len(kept(cache)) == 4
    (tmp_path / "copy").write_bytes(Path(path).read_bytes())
    loader(POLICY, cache).load(str(tmp_path / "copy"))
    assert len(kept(cache)) == 4
    loader(POLICY, cache).load(write_sound(tmp_path / "b", tone(1, 44100, 2, hertz=500), 44100))
    assert len(kept(cache)) == 5


def test_formats_that_do_not_travel_are_kept_without_a_policy(tmp_path: Path) -> None:
    """A FLAC that is sent as wav is converted once, too."""
    cache = tmp_path / "cache"
    path = write_sound(tmp_path / "a", tone(1, 16000), 16000, "flac")
    assert sent_bytes(clip_of(loader("as-is", cache).load(path))) == kept(cache)[0].read_bytes()


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "longer"])
def test_a_damaged_file_is_made_again(tmp_path: Path, path: str, damage: str) -> None:
    """A file that does not hold what its name says is never sent; a good one takes its place."""
    cache = tmp_path / "cache"
    good = sent_bytes(clip_of(loader(POLICY, cache).load(path)))
    (file,) = kept(cache)
    match damage:
        case "flip":
            file.write_bytes(good[:1000] + bytes([good[1000] ^ 1]) + good[1001:])
        case "cut":
            file.write_bytes(good[:-1])
        case "empty":
            file.write_bytes(b"")
        case _:
            file.write_bytes(good + b"\0")
    assert sent_bytes(clip_of(loader(POLICY, cache).load(path))) == good
    assert [place.read_bytes() for place in kept(cache)] == [good]


def test_a_file_with_a_strange_name_is_left_alone(tmp_path: Path, path: str) -> None:
    """What is not ours is neither sent nor removed, also when it begins like ours."""
    cache = tmp_path / "cache"
    loader(POLICY, cache).load(path)
    (file,) = kept(cache)
    strange = file.with_name(file.name[:64] + "-note.txt")
    strange.write_text("mine", encoding="utf-8")
    (cache / "README").write_text("mine", encoding="utf-8")
    good = sent_bytes(clip_of(loader(POLICY, cache, limit=size_of(cache)).load(path)))
    assert good == file.read_bytes()
    assert strange.read_text(encoding="utf-8") == (cache / "README").read_text(encoding="utf-8") == "mine"


def test_what_was_not_used_for_the_longest_time_goes_first(tmp_path: Path) -> None:
    """The cache never exceeds its limit; a clip that is used stays, older ones go."""
    clips = ConvertedClips(tmp_path / "cache", 10_000)
    for number in range(9):
        clips.get(f"clip {number}", "wav", writes(bytes([number]) * 1000))
        for file in kept(tmp_path / "cache"):
            status = file.stat()
            os.utime(file, ns=(0, status.st_mtime_ns - 10**9))  # all that is there grows older
    clips.get("clip 0", "wav", writes(b"never made"))
    for number in range(9, 12):
        clips.get(f"clip {number}", "wav", writes(bytes([number]) * 1000))
        assert size_of(tmp_path / "cache") <= 10_000
    left = {file.read_bytes()[0] for file in kept(tmp_path / "cache")}
    assert {0, 9, 10, 11} <= left
    assert not {1, 2} & left


@settings(max_examples=30, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 4000), min_size=1, max_size=30),
    limit=st.integers(1, 10_000),
)
def test_the_limit_holds_whatever_comes(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], limit: int
) -> None:
    """After each clip the folder is within its limit, and every clip is what was made, also one too large."""
    cache = tmp_path_factory.mktemp("limit")
    clips = ConvertedClips(cache, limit)
    for number, size in enumerate(sizes):
        data = os.urandom(size)
        assert content(clips.get(f"clip {number}", "wav", writes(data))) == data
        assert size_of(cache) <= limit
    assert clips.trouble is None


def test_a_clip_that_goes_while_it_is_sent_is_sent_to_its_end(tmp_path: Path) -> None:
    """Whoever reads a clip keeps it, though it makes room in the folder meanwhile."""
    clips = ConvertedClips(tmp_path / "cache", 1000)
    first = clips.get("first", "wav", writes(b"1" * 800))
    clips.get("second", "wav", writes(b"2" * 800))
    assert [file.read_bytes()[:1] for file in kept(tmp_path / "cache")] == [b"2"]
    assert content(first) == b"1" * 800


def test_without_a_limit_to_fill_nothing_is_kept(tmp_path: Path, path: str) -> None:
    """With a size of 0 no folder is made, and what is there is not used."""
    cache = tmp_path / "cache"
    assert sent_bytes(clip_of(loader(POLICY, cache, limit=0).load(path)))
    assert not cache.exists()


def test_what_a_dead_process_left_is_removed_and_what_a_live_one_writes_is_not(tmp_path: Path) -> None:
    """A part that is an hour old has nobody who finishes it."""
    cache = tmp_path / "cache"
    (cache / "ab").mkdir(parents=True)
    dead, live = cache / "ab" / ".dead.part", cache / "ab" / ".live.part"
    for file in (dead, live):
        file.write_bytes(b"half")
    os.utime(dead, (1, 1))
    ConvertedClips(cache, 1000).get("clip", "wav", writes(b"whole"))
    assert not dead.exists()
    assert live.exists()


def test_a_conversion_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """Neither a part nor a file that could be taken for a clip."""
    path = Path(write_sound(tmp_path / "a", tone(1, 16000), 16000, "flac"))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert not isinstance(loader("mono,format=wav", tmp_path / "cache").load(str(path)), AudioClip)
    assert kept(tmp_path / "cache") == []


def test_questions_about_one_clip_have_it_converted_once(tmp_path: Path) -> None:
    """Threads that want the same clip at the same time wait for the first."""
    clips = ConvertedClips(tmp_path / "cache", 1000)
    made: list[int] = []
    begun = threading.Barrier(8)

    def make(target: BinaryIO) -> int:
        made.append(1)
        return target.write(b"whole")

    def want(_number: int) -> bytes:
        begun.wait()
        return content(clips.get("clip", "wav", make))

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(want, range(8))) == [b"whole"] * 8
    assert len(made) == 1


_FILL = """
import json, sys
from pathlib import Path
from tests.audio_files import clip_of, loader
cache, policy, paths = json.loads(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
load = loader(policy, Path(cache))
print(json.dumps([clip_of(load.load(path)).sha256_sent for path in paths]))
"""


def test_two_processes_fill_one_cache_at_once(tmp_path: Path) -> None:
    """Both get every clip whole, and every file that is left is one."""
    paths = [write_sound(tmp_path / f"{n}", tone(3, 44100, 2, hertz=200 + n), 44100) for n in range(8)]
    asked = json.dumps([str(tmp_path / "cache"), POLICY, paths])
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _FILL, asked],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
        )
        for _ in range(2)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    told = [json.loads(process.communicate()[0]) for process in processes]
    here = [clip_of(loader(POLICY).load(path)).sha256_sent for path in paths]
    assert told == [here, here]
    assert [process.returncode for process in processes] == [0, 0]
    files = kept(tmp_path / "cache")
    assert len(files) == 8
    assert sorted(file.name.split("-")[2].partition(".")[0] for file in files) == sorted(here)


def test_a_cache_that_cannot_be_written_is_no_trouble_for_the_clips(tmp_path: Path, path: str) -> None:
    """With a file in the folder's place the clip is sent all the same, and why is known."""
    (tmp_path / "cache").write_text("a file", encoding="utf-8")
    clips = ConvertedClips(tmp_path / "cache", 1000)
    assert content(clips.get("clip", "wav", writes(b"whole"))) == b"whole"
    assert clips.trouble is not None
    assert str(tmp_path / "cache") in clips.trouble
    made = clip_of(loader(POLICY, tmp_path / "cache").load(path))
    assert sent_bytes(made) == sent_bytes(clip_of(loader(POLICY).load(path)))


def test_what_is_there_is_read_though_nothing_can_be_written(tmp_path: Path) -> None:
    """Once the folder could not be written, nothing more is tried there; what it has is still sent."""
    ConvertedClips(tmp_path / "cache", 1000).get("clip", "wav", writes(b"whole"))
    clips = ConvertedClips(tmp_path / "cache", 1000)
    clips.trouble = "read-only"
    assert content(clips.get("clip", "wav", writes(b"never made"))) == b"whole"
    assert content(clips.get("other", "wav", writes(b"other"))) == b"other"
    assert len(kept(tmp_path / "cache")) == 1


class FullDisk(io.BytesIO):
    """A file that has room for so many bytes."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room

    def write(self, data: Any) -> int:
        """Write, or fail as a full disk does."""
        if self.tell() + len(data) > self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(data)


@pytest.mark.parametrize("form", ["wav", "mp3", "flac"])
def test_no_byte_that_is_lost_goes_unnoticed(form: str) -> None:
    """Whichever byte of a clip has no room, also the last that an encoder writes at its end, is an error."""
    blocks = [tone(1, 16000), tone(1, 16000, hertz=500)]
    whole = FullDisk(10**9)
    assert encode(blocks, form, 16000, 1, whole) == 32000
    size = len(whole.getvalue())
    assert encode(blocks, form, 16000, 1, FullDisk(size)) == 32000
    for missing in (1, 2, 50, 1000, size // 2, size - 10, size):
        with pytest.raises(OSError, match="No space left"):
            encode(blocks, form, 16000, 1, FullDisk(size - missing))


@pytest.mark.skipif(sys.platform == "win32", reason="limits of file sizes are POSIX's")
def test_a_full_disk_stops_no_run(tmp_path: Path) -> None:
    """Where neither the cache nor a temporary file has room, clips are sent from memory, and that is told.

    The limit of a file's size stands for the disk: it gives an error to whoever writes beyond it.
    """
    data = write_data(tmp_path / "data", each=2, tasks=["sound_QA", "music_QA"], seconds=1)
    policy = "rate=48000"
    path = str(data / "Chat" / "sound_QA_tones" / "clip_0.wav")
    limit = (clip_of(loader(policy).load(path)).size_sent * 9) // 10
    assert limit > 20_000  # so that the run's own files are within it
    with ScriptedServer() as server:
        done = subprocess.run(
            command(
                *flags(server.url, data, "--run-dir", str(tmp_path / "run"), "--audio-policy", policy),
            ),
            env=environment(OTOSCOPE_CACHE=str(tmp_path / "cache")),
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        got = {seen.audio_sha256 for seen in server.requests if seen.kind == "model"}
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("converted clips are not kept for the next run") == 1
    assert "File too large" in done.stderr
    answers = lines(tmp_path / "run" / "answers.jsonl")
    assert {line["clip"]["sent"]["sha256"] for line in answers} == got
    assert all(line["clip"]["sent"]["seconds"] == 1.0 for line in answers)
    assert kept(tmp_path / "cache" / "audio") == []


def test_a_reader_of_a_converted_clip_reads_like_a_file(tmp_path: Path, path: str) -> None:
    """It seeks from everywhere, reads what it is asked for, and ends at the end."""
    clip = clip_of(loader(POLICY, tmp_path / "cache").load(path))
    data = sent_bytes(clip)
    with clip.open() as file:
        assert file.seek(-10, io.SEEK_END) == len(data) - 10
        assert file.read() == data[-10:]
        assert file.seek(5) == 5
        assert file.read(7) == data[5:12]
        assert file.seek(3, io.SEEK_CUR) == 15
        assert file.read(1) == data[15:16]
        file.seek(len(data) + 5)
        assert file.read(1) == b""
