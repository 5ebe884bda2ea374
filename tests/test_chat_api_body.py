"""What is sent: the request's body, streamed from disk."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import os
import socket
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otoscope.chat_api import AudioData
from otoscope.chat_api.body import READ_BLOCK, Body
from otoscope.records import AudioClip, FailureKind
from tests.chat_helpers import (
    COMPLETION,
    about,
    announced,
    asked,
    collected,
    failed,
    make_clip,
    raw_server,
    read_head,
    read_request,
    replied,
    sent_audio,
    settings,
)
from tests.scripted_server import ScriptedServer


@pytest.mark.parametrize(
    "size", [1, 2, 3, 1000, READ_BLOCK - 1, READ_BLOCK, READ_BLOCK + 1, 3 * READ_BLOCK + 2]
)
def test_clip_arrives_unchanged(tmp_path: Path, size: int) -> None:
    """A clip of any size arrives as the base64 of its bytes, under an exact Content-Length."""
    clip = make_clip(tmp_path, size)
    with ScriptedServer(keep_bodies=True) as server:
        replied(settings(server), about(clip))
    (seen,) = server.requests
    assert seen.audio_sha256 == clip.sha256
    assert seen.headers["content-length"] == str(seen.size)
    assert "transfer-encoding" not in seen.headers
    assert seen.headers["content-type"] == "application/json"
    assert seen.payload["messages"][0]["content"][0]["input_audio"]["format"] == "wav"


def test_prefix_goes_before_the_audio(tmp_path: Path) -> None:
    """The prefix of a data URI stands directly before the base64."""
    clip = make_clip(tmp_path, 10)
    with ScriptedServer(keep_bodies=True) as server:
        replied(settings(server), about(clip, "data:audio/wav;base64,"))
    sent = server.requests[0].payload["messages"][0]["content"][0]["input_audio"]["data"]
    assert sent == "data:audio/wav;base64," + base64.b64encode(Path(clip.path).read_bytes()).decode()


def test_converted_clip_is_sent_instead_of_the_file(tmp_path: Path) -> None:
    """Of a converted clip the converted bytes are sent, whatever became of the file."""
    converted = os.urandom(READ_BLOCK + 5)
    clip = make_clip(tmp_path, 100, converted=converted)
    Path(clip.path).unlink()
    with ScriptedServer() as server:
        replied(settings(server), about(clip))
    assert server.requests[0].audio_sha256 == hashlib.sha256(converted).hexdigest()


def test_same_request_has_the_same_bytes(tmp_path: Path) -> None:
    """Every attempt sends the same body, since nothing random is left in it."""
    payload = {"model": "m", "messages": about(make_clip(tmp_path, 5000))}
    assert collected(Body(payload)) == collected(Body(payload))


def test_body_is_never_held_whole(tmp_path: Path) -> None:
    """The memory for a request does not grow with its clip."""
    clip = make_clip(tmp_path, 30 << 20)
    size = Path(clip.path).stat().st_size

    def drain(connection: socket.socket, _number: int) -> None:
        head, rest = read_head(connection)
        left = announced(head) - len(rest)
        buffer = bytearray(1 << 16)
        while left > 0:
            left -= connection.recv_into(buffer)
        connection.sendall(COMPLETION)

    with raw_server(drain) as url:
        tracemalloc.start()
        try:
            replied(settings(url), about(clip))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < size / 4


def grow(path: Path) -> None:
    """Append to a file."""
    with path.open("ab") as file:
        file.write(b"more")


def grow_unseen(path: Path) -> None:
    """Append to a file and put its time back."""
    before = path.stat().st_mtime_ns
    grow(path)
    os.utime(path, ns=(before, before))


def shrink(path: Path) -> None:
    """Cut a file's end off."""
    os.truncate(path, path.stat().st_size - 3)


def touch(path: Path) -> None:
    """Change nothing but the time."""
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))


def replace(path: Path) -> None:
    """Put another file with the same bytes in the place of a file."""
    other = path.with_suffix(".new")
    other.write_bytes(path.read_bytes())
    os.utime(other, ns=(0, 1))
    other.replace(path)


CHANGES: list[Callable[[Path], None]] = [grow, grow_unseen, shrink, touch, replace, Path.unlink]


@pytest.mark.parametrize("change", CHANGES)
def test_clip_changed_before_sending(tmp_path: Path, change: Callable[[Path], None]) -> None:
    """A clip that is not the promised one any more is `bad_audio`, and no server gets a whole request."""
    clip = make_clip(tmp_path, 1000)
    promised = Body({"messages": about(clip)}).length
    change(Path(clip.path))
    received: list[bytes] = []
    with raw_server(lambda connection, _number: received.append(read_request(connection))) as url:
        failure = failed(settings(url), about(clip))
    assert failure.kind is FailureKind.BAD_AUDIO
    assert "changed while being sent" in failure.message
    assert clip.path in failure.message
    assert failure.attempts == 1
    assert failure.file is None  # so the sample is owed again, whatever became of the file
    assert all(len(body) < promised for body in received)


@pytest.mark.parametrize("change", CHANGES)
def test_clip_changed_during_sending(tmp_path: Path, change: Callable[[Path], None]) -> None:
    """A clip that changes while its first part is already sent breaks the request off."""
    clip = make_clip(tmp_path, 24 << 20)
    promised = Body({"messages": about(clip)}).length
    received = [0]

    def change_then_read(connection: socket.socket, _number: int) -> None:
        received[0] += len(read_head(connection)[1] or connection.recv(1 << 10))
        change(Path(clip.path))
        while piece := connection.recv(1 << 20):
            received[0] += len(piece)

    with raw_server(change_then_read) as url:
        failure = failed(settings(url), about(clip))
    assert failure.kind is FailureKind.BAD_AUDIO
    assert "changed while being sent" in failure.message
    assert 0 < received[0] < promised


def test_unreadable_clip(tmp_path: Path) -> None:
    """A clip that turns out to be unreadable is `bad_audio` with the system's reason."""
    clip = make_clip(tmp_path, 1000)
    Path(clip.path).unlink()
    Path(clip.path).mkdir()
    with raw_server(lambda connection, _number: read_request(connection)) as url:
        failure = failed(settings(url), about(clip))
    assert (failure.kind, failure.attempts) == (FailureKind.BAD_AUDIO, 1)
    assert "directory" in failure.message


class _Broken:
    """Bytes whose reading fails in a way that no file does."""

    sha256, size = "", 1000

    def read_at(self, offset: int, size: int) -> bytes:
        raise RuntimeError(f"{size} bytes at {offset}")

    def drop(self) -> None:
        """Nothing is held."""


@pytest.mark.parametrize("place", ["held", "converted"])
def test_bug_while_reading_a_clip_is_raised(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], place: str
) -> None:
    """What goes wrong under libcurl's hands reaches the caller at once, rather than a timeout or stderr."""
    clip = make_clip(tmp_path, 1000)
    if place == "held":
        clip = dataclasses.replace(clip, held=_Broken())
    else:
        sent = dataclasses.replace(sent_audio(b""), content=_Broken(), size=9)
        clip = dataclasses.replace(clip, sent=sent)
    with (
        raw_server(lambda connection, _number: read_request(connection)) as url,
        pytest.raises(RuntimeError, match="bytes at 0"),
    ):
        asked(settings(url), about(clip))
    assert capfd.readouterr().err == ""


def test_two_clips_are_our_own_bug(tmp_path: Path) -> None:
    """Two clips in one request are refused loudly: their bytes could not be told apart."""
    clip = make_clip(tmp_path, 10)
    with pytest.raises(TypeError, match="one clip"):
        Body({"messages": about(clip) + about(clip)})


def test_foreign_objects_are_our_own_bug() -> None:
    """What is no JSON is refused loudly."""
    with pytest.raises(TypeError, match="cannot be sent"):
        Body({"messages": [object()]})


def test_lone_surrogate_is_sent_as_escape(tmp_path: Path) -> None:
    """A question with a lone surrogate, which UTF-8 cannot carry, is sent as a JSON escape with its clip."""
    clip = make_clip(tmp_path, 10)
    messages = [*about(clip), {"role": "user", "content": "\ud800"}]
    with ScriptedServer() as server:
        replied(settings(server), messages)
    assert server.requests[0].audio_sha256 == clip.sha256
    assert server.requests[0].payload["messages"][1]["content"] == "\ud800"


@given(st.text(), st.binary(max_size=50))
def test_body_is_the_json_of_its_payload(text: str, audio: bytes) -> None:
    """Any text around any converted clip gives JSON of the announced length that reads back the same."""
    clip = make_clip_in_memory(audio)
    body = Body({"before": text, "audio": AudioData(clip, text), "after": text})
    content = collected(body)
    assert len(content) == body.length
    expected = {"before": text, "audio": text + base64.b64encode(audio).decode(), "after": text}
    assert json.loads(content) == expected


def make_clip_in_memory(audio: bytes) -> AudioClip:
    """Return a converted clip."""
    return AudioClip("no file", "", 0, 0, "flac", 1.0, 16000, 1, ("converted",), sent_audio(audio))
