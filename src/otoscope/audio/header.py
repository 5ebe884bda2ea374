"""What a clip's bytes say of themselves: the header, the digest, the file's size and time."""

from __future__ import annotations

import hashlib
import io
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

from otoscope.records import Failure, FailureKind

_T = TypeVar("_T")

_MIDI_DUMP = b"\xf0\x7e"
"""How a MIDI sample dump begins. libsndfile reads these, but prints what is wrong with one on standard
output, where the numbers belong."""
_READ_BLOCK = 1 << 20


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

    @property
    def file(self) -> dict[str, int]:
        """The file's size and time, as a Failure has them."""
        return {"bytes": self.size, "mtime_ns": self.mtime_ns}


def measure(path: str) -> Header | Failure:
    """Read a clip's header alone.

    Returns a ``missing_audio`` Failure when there is no file, and ``bad_audio`` when it is no regular file,
    is empty, has no frames or is not audio; ``unreadable_audio`` when the system does not give it. Raises
    nothing for a bad clip.
    """
    return opened(path, lambda _file, header: header)


def opened(path: str, read: Callable[[io.FileIO, Header], _T | str]) -> _T | Failure:
    """Return what ``read`` makes of a clip whose header is good, or why there is nothing.

    A text that it returns is what is wrong with the clip. Otherwise as :func:`measure`.
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
            found = header if isinstance(header, str) else read(file, header)
    except (FileNotFoundError, NotADirectoryError):
        return Failure(FailureKind.MISSING_AUDIO, f"{path}: there is no such file")
    except OSError as error:
        reason = error.strerror or error
        return Failure(FailureKind.UNREADABLE_AUDIO, f"{path}: cannot be read: {reason}")
    if isinstance(found, str):
        return Failure(FailureKind.BAD_AUDIO, f"{path}: {found}", file=_state(status))
    return found


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
            return sha256_of(file)
    except OSError:
        return None


def sha256_of(file: BinaryIO | io.FileIO) -> str:
    """Return the SHA-256 (hex) of an open file from its start on. Raises ``OSError``."""
    file.seek(0)
    hasher = hashlib.sha256()
    while block := file.read(_READ_BLOCK):
        hasher.update(block)
    return hasher.hexdigest()


def reason_of(error: Exception) -> str:
    """Return libsndfile's words for what is wrong, or better ones."""
    text = str(getattr(error, "error_string", error)).rstrip(".")
    # libsndfile's words for an MP3 without a frame that can be decoded.
    return "damaged or cut off" if text.startswith("File does not exist") else text


def _state(status: os.stat_result) -> dict[str, int]:
    return {"bytes": status.st_size, "mtime_ns": status.st_mtime_ns}


def _header(file: io.FileIO, status: os.stat_result) -> Header | str:
    """Return what the header says, or what is wrong with it."""
    # With NumPy behind it: whoever reads no clip does without both.
    import soundfile

    if status.st_size == 0:
        return "the file is empty (0 bytes)"
    start = file.read(16)
    if start.startswith(_MIDI_DUMP):
        return "is a MIDI sample dump, which is not read"
    file.seek(0)
    try:
        # A descriptor, not a name: libsndfile must not fall back to the name's ending.
        with soundfile.SoundFile(file.fileno(), closefd=False) as sound:
            facts = (sound.format, sound.frames, sound.samplerate, sound.channels)
            header = Header(*facts, status.st_size, status.st_mtime_ns)
    except soundfile.SoundFileError as error:
        return f"is not audio that can be read ({reason_of(error)}); it begins with {start!r}"
    if header.frames <= 0 or header.rate <= 0:
        return "has a header but no audio (0 frames)"
    return header
