"""A file -> an AudioClip: what it really is, whether it can be used, and the bytes to send.

The format comes from the bytes, never from the name. wav and mp3 travel as they are; whatever else
libsndfile reads becomes 16-bit wav. Functions here block; call them in a thread.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import soundfile

from otoscope.records import AudioClip, Failure, FailureKind

_T = TypeVar("_T")

_READ_BLOCK = 1 << 20
_WIRE_FORMATS = {"WAV": "wav", "WAVEX": "wav", "MP3": "mp3"}
"""libsndfile's names of what travels as it is."""
_SAMPLES_BLOCK = 1 << 18
_BEYOND_16_BIT = frozenset({"FLOAT", "DOUBLE", "VORBIS", "OPUS"})
"""Subtypes that libsndfile neither scales (float) nor clips (the codecs) when it is asked for integers."""


@dataclass(frozen=True, slots=True)
class Header:
    """What a clip's header says, and the file's size (bytes) and time."""

    format: str
    """libsndfile's name of the format."""
    frames: int
    rate: int
    channels: int
    size: int
    mtime_ns: int

    @property
    def seconds(self) -> float:
        """The clip's length."""
        return round(self.frames / self.rate, 6)


def load(path: str) -> AudioClip | Failure:
    """Read a clip's header, hash its bytes, and convert it where it cannot travel as it is.

    Returns a ``missing_audio`` Failure when there is no file, and ``bad_audio`` when it is no regular file,
    is empty, has no frames or is not audio; ``unreadable_audio`` when the system does not give it. Raises
    nothing for a bad clip.
    """
    return _opened(path, _clip)


def measure(path: str) -> Header | Failure:
    """Read a clip's header alone. Returns a Failure as :func:`load`, but for what only decoding shows."""
    return _opened(path, lambda _path, _file, header: header)


def _opened(path: str, read: Callable[[str, io.FileIO, Header], _T | str]) -> _T | Failure:
    """Return what ``read`` makes of a clip whose header is good, or why there is nothing.

    A text that it returns is what is wrong with the clip.
    """
    try:
        # Asked before opening: to open a named pipe is to wait for whoever writes into it.
        if not stat.S_ISREG(mode := Path(path).stat().st_mode):
            kind = FailureKind.MISSING_AUDIO if stat.S_ISDIR(mode) else FailureKind.BAD_AUDIO
            return Failure(kind, f"{path}: is a folder or device, not a file")
        # Unbuffered: libsndfile shares the descriptor, so its position must be the one we set.
        with Path(path).open("rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            header = _header(file, status)
            found = header if isinstance(header, str) else read(path, file, header)
    except (FileNotFoundError, NotADirectoryError):
        return Failure(FailureKind.MISSING_AUDIO, f"{path}: there is no such file")
    except OSError as error:
        reason = error.strerror or error
        return Failure(FailureKind.UNREADABLE_AUDIO, f"{path}: cannot be read: {reason}")
    if isinstance(found, str):
        return Failure(FailureKind.BAD_AUDIO, f"{path}: {found}", file=_state(status))
    return found


def _clip(path: str, file: io.FileIO, header: Header) -> AudioClip | str:
    sha256 = _sha256(file)
    wire_format = _WIRE_FORMATS.get(header.format)
    converted = None if wire_format else _as_wav(file, header)
    if isinstance(converted, str):
        return converted
    return AudioClip(
        path=path,
        sha256=sha256,
        size=header.size,
        mtime_ns=header.mtime_ns,
        format=wire_format or "wav",
        seconds=header.seconds,
        rate=header.rate,
        channels=header.channels,
        changed=() if wire_format else (f"{header.format.lower()} to 16-bit wav",),
        converted=converted,
    )


def file_state(path: str) -> dict[str, int] | None:
    """Return the file's ``bytes`` and ``mtime_ns``, or ``None`` when there is none."""
    try:
        return _state(Path(path).stat())
    except OSError:
        return None


def file_sha256(path: str) -> str | None:
    """Return the SHA-256 (hex) of a file, or ``None`` when it cannot be read."""
    try:
        with Path(path).open("rb") as file:
            return _sha256(file)
    except OSError:
        return None


def _state(status: os.stat_result) -> dict[str, int]:
    return {"bytes": status.st_size, "mtime_ns": status.st_mtime_ns}


def _header(file: io.FileIO, status: os.stat_result) -> Header | str:
    """Return what the header says, or what is wrong with it."""
    if status.st_size == 0:
        return "the file is empty (0 bytes)"
    start = file.read(16)
    file.seek(0)
    try:
        # A descriptor, not a name: libsndfile must not fall back to the name's ending.
        with soundfile.SoundFile(file.fileno(), closefd=False) as sound:
            facts = (sound.format, sound.frames, sound.samplerate, sound.channels)
            header = Header(*facts, status.st_size, status.st_mtime_ns)
    except soundfile.SoundFileError as error:
        return f"is not audio that can be read ({_reason(error)}); it begins with {start!r}"
    if header.frames <= 0 or header.rate <= 0:
        return "has a header but no audio (0 frames)"
    return header


def _reason(error: Exception) -> str:
    text = str(getattr(error, "error_string", error)).rstrip(".")
    # libsndfile's words for an MP3 without a frame that can be decoded.
    return "damaged or cut off" if text.startswith("File does not exist") else text


def _sha256(file: Any) -> str:
    file.seek(0)
    hasher = hashlib.sha256()
    while block := file.read(_READ_BLOCK):
        hasher.update(block)
    return hasher.hexdigest()


def _as_wav(file: io.FileIO, header: Header) -> bytes | str:
    """Return the clip as 16-bit wav, or what is wrong with it."""
    file.seek(0)
    out = io.BytesIO()
    frames = 0
    try:
        with (
            soundfile.SoundFile(file.fileno(), closefd=False) as source,
            soundfile.SoundFile(
                out, "w", header.rate, header.channels, format="WAV", subtype="PCM_16"
            ) as target,
        ):
            dtype = "float32" if source.subtype in _BEYOND_16_BIT else "int16"
            while len(block := source.read(max(1, _SAMPLES_BLOCK // header.channels), dtype=dtype)):
                target.write(block)
                frames += len(block)
    except soundfile.SoundFileError as error:
        return f"cannot be decoded ({_reason(error)})"
    if frames < header.frames:
        return f"is damaged or cut off: only {frames} of {header.frames} frames can be decoded"
    return out.getvalue()
