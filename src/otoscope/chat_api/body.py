"""What is sent: JSON around the base64 of a clip that is read from disk meanwhile."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pybase64

from otoscope.records import AudioClip, json_bytes

READ_BLOCK = 96 * 1024
"""Divisible by 3, so that the base64 of successive blocks joins without padding. Each request holds one."""

WHOLE_UP_TO = 1 << 18
"""Bytes up to which a body without a clip is handed over in one piece."""
_MIME = {"wav": "audio/wav", "mp3": "audio/mpeg", "flac": "audio/flac"}
# Unguessable, and never sent: so that no question or answer can contain it.
_MARK = f"@{os.urandom(16).hex()}@"


@dataclass(frozen=True, slots=True)
class AudioData:
    """Stands in a message where the base64 of a clip is to be streamed, after an optional prefix."""

    clip: AudioClip
    prefix: str = ""


@dataclass(frozen=True, slots=True)
class AudioPart:
    """Stands among the parts of a message for a clip, in whichever wire form the endpoint takes."""

    clip: AudioClip
    forms: tuple[str, ...]
    """Those that it may have, of :data:`otoscope.choices.AUDIO_PARTS`, in the order of trying."""

    def in_form(self, form: str) -> Mapping[str, Any]:
        """Return the part as it is sent."""
        clip = self.clip
        data_uri = f"data:{_MIME.get(clip.format_sent)};base64,"
        match form:
            case "audio_url":
                return {"type": "audio_url", "audio_url": {"url": AudioData(clip, data_uri)}}
            case "data_uri":
                audio = {"data": AudioData(clip, data_uri), "format": clip.format_sent}
                return {"type": "input_audio", "input_audio": audio}
            case "bare_uri":
                audio = {"data": AudioData(clip, "data:;base64,"), "format": clip.format_sent}
                return {"type": "input_audio", "input_audio": audio}
            case "file_url":
                return {"type": "audio_url", "audio_url": {"url": Path(clip.path).absolute().as_uri()}}
            case _:
                audio = {"data": AudioData(clip), "format": clip.format_sent}
                return {"type": "input_audio", "input_audio": audio}


class Body:
    """The body of one attempt: ``length`` bytes, in blocks, to be used once.

    Holds one block of the clip at a time. There may be one :class:`AudioPart` or
    :class:`AudioData` in the payload; ``audio_form`` is the form that the part gets, else its first.
    """

    def __init__(self, payload: Mapping[str, Any], audio_form: str | None = None) -> None:
        clips: list[AudioClip] = []
        self.audio: AudioPart | None = None
        self.audio_form: str | None = None
        """The form that the clip is sent in, where there is one."""

        def stand_in(value: Any) -> Any:
            if isinstance(value, AudioPart):
                self.audio = value
                self.audio_form = audio_form if audio_form in value.forms else value.forms[0]
                return value.in_form(self.audio_form)
            if not isinstance(value, AudioData):
                raise TypeError(f"cannot be sent as JSON: {value!r}")
            clips.append(value.clip)
            return value.prefix + _MARK

        before, *after = json_bytes(payload, default=stand_in).split(_MARK.encode())
        if len(after) > 1:
            raise TypeError("a request carries one clip at most")
        self._clip = clips[0] if clips else None
        self._edges = [before, *after]
        self._begun = False
        self._audio_left = 0 if self._clip is None else self._clip.size_sent
        self.length = sum(map(len, self._edges)) + 4 * ((self._audio_left + 2) // 3)
        self.whole = before if self._clip is None and len(before) <= WHOLE_UP_TO else None
        """All of it, where there is no clip and it is not large."""
        self.changed: str | None = None
        """Why sending was broken off, when that is the clip's fault."""
        self._block: bytes | None = None
        """Of the clip, read beforehand."""

    def ready(self) -> bytes | None:
        """Return the next block, empty at the end; ``None`` where :meth:`load` has to read it first."""
        if self._clip is not None and self._audio_left:
            block, self._block = self._block, None
            if block is None:
                block = self._held(self._clip)
            if block is None:
                return None
            self._audio_left -= len(block)
            pieces = [pybase64.b64encode(block)]
            if not self._begun:
                pieces.insert(0, self._edges.pop(0))
        else:
            pieces = []
        self._begun = True
        if self._edges and not self._audio_left:
            pieces.append(self._edges.pop(0))
        return b"".join(pieces)

    def _held(self, clip: AudioClip) -> bytes | None:
        """Return the clip's next block where its bytes are in memory."""
        if clip.held is None or not (block := clip.held.read_at(*self._next(clip))):
            return None
        if len(block) == self._audio_left:
            clip.held.drop()
        return block

    def _next(self, clip: AudioClip) -> tuple[int, int]:
        return clip.size_sent - self._audio_left, min(READ_BLOCK, self._audio_left)

    async def load(self) -> None:
        """Read the clip's next block, for which :meth:`ready` then does not wait.

        Raises ``OSError``, with the reason in ``changed``, when the clip is not (or no longer) the one that
        was promised; the body is then short of its ``length``, so no server can take it for complete.
        """
        if self._clip is None:
            return
        try:
            self._block = await asyncio.to_thread(_read, self._clip, *self._next(self._clip))
        except OSError as error:
            # Out of descriptors: the clip is not to blame, and the next attempt may well succeed.
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                self.changed = f"{self._clip.path}: {_reason(error)}"
            raise


def _read(clip: AudioClip, offset: int, size: int) -> bytes:
    """Return ``size`` bytes of what was promised. Raises ``OSError`` when it is another file by now.

    Opens it anew each time: an attempt that is cancelled leaves no file open, and a clip that was replaced
    or deleted meanwhile is noticed.
    """
    if clip.sent is not None:
        block = clip.sent.content.read_at(offset, size)
        if len(block) < size:
            raise OSError("the converted clip was cut off while being sent")
        return block
    with clip.open() as file:
        file.seek(offset)
        block = b""
        while len(block) < size and (more := file.read(size - len(block))):
            block += more
        stat = os.fstat(file.fileno())
    if stat.st_size != clip.size or len(block) < size:
        raise OSError(f"the file changed while being sent: it had {clip.size} bytes, now {stat.st_size}")
    if stat.st_mtime_ns != clip.mtime_ns:
        raise OSError("the file changed while being sent: it was written to")
    return block


def _reason(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "the file changed while being sent: it is gone"
    return (
        str(error) if error.errno is None else f"the file cannot be read while being sent: {error.strerror}"
    )
