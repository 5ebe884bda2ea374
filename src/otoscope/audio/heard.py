"""A clip as a model written in Python hears it."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from otoscope import records
from otoscope.audio.conversion import DamagedClipError, Sound, resampled
from otoscope.audio.header import reason_of

__all__ = ["AudioClip", "DamagedClipError"]

_BLOCK_FRAMES = 1 << 16


class AudioClip:
    """A clip as it would be sent to a server: the data set's own, unless an audio policy changed it.

    ``format`` is ``wav``, ``mp3`` or ``flac``; ``seconds``, ``rate`` (Hz) and ``channels`` are those of the
    bytes that :meth:`read` returns. It can be pickled: then it takes its bytes along.
    """

    def __init__(self, clip: records.AudioClip) -> None:
        sent = clip.sent
        self.format = clip.format_sent
        self.seconds, self.rate, self.channels = (
            (clip.seconds, clip.rate, clip.channels)
            if sent is None
            else (sent.seconds, sent.rate, sent.channels)
        )
        self.size = clip.size_sent
        """Number of bytes."""
        self._clip: records.AudioClip | None = clip
        self._content = b""
        self._path = Path(clip.path) if sent is None else None

    @property
    def path(self) -> Path:
        """A file with these very bytes. It is not yours to change, and may be gone once you have answered.

        Raises ``OSError`` where it has to be written first, and cannot be.
        """
        if self._path is None:
            handle, name = tempfile.mkstemp(prefix="otoscope-", suffix=f".{self.format}")
            weakref.finalize(self, _remove, name)
            with os.fdopen(handle, "wb") as file:
                file.write(self.read())
            self._path = Path(name)
        return self._path

    def read(self) -> bytes:
        """Return the bytes. Raises ``OSError``, also when the file is not the one that was looked at."""
        if self._clip is None:
            return self._content
        held = self._clip.held
        data = b"" if held is None else held.read_at(0, self.size)
        if len(data) != self.size:
            with self._clip.open() as file:
                data = file.read()
        if len(data) != self.size:
            raise OSError(f"{self._clip.path}: has {len(data):,} bytes, and had {self.size:,} a moment ago")
        return data

    def samples(self, rate: int | None = None, *, mono: bool = True) -> Any:
        """Return the sound as a new numpy array of float32, full scale 1 (a lossy format can exceed it).

        Its shape is (frames,), the mean of the channels, and with ``mono=False`` (frames, channels). ``rate``
        (Hz) resamples; without it, ``self.rate`` is the array's. Raises ``OSError`` for a file that cannot be
        read, and ``otoscope.audio.DamagedClipError`` for one that cannot be decoded.
        """
        if rate is not None and rate <= 0:
            raise ValueError(f"rate={rate!r} must be above 0")
        blocks = []
        try:
            with Sound(io.BytesIO(self.read())) as sound:
                # Until there is no more: an mp3 may not tell its length.
                while len(block := sound.read(_BLOCK_FRAMES, dtype="float32", always_2d=True)):
                    blocks.append(block.mean(axis=1, keepdims=True) if mono else block)
        except soundfile.SoundFileError as error:
            raise DamagedClipError(f"cannot be decoded ({reason_of(error)})") from None
        if not blocks:
            raise DamagedClipError("cannot be decoded: it has no sample")
        decoded = np.nan_to_num(np.concatenate(blocks), copy=False, nan=0.0, posinf=1.0, neginf=-1.0)
        if rate is not None and rate != self.rate:
            decoded = resampled(decoded, self.rate, rate)
        return decoded[:, 0] if mono else decoded

    def __repr__(self) -> str:
        return f"AudioClip({self.seconds:.3g} s, {self.rate} Hz, {self.channels} channels, {self.format})"

    def __getstate__(self) -> dict[str, Any]:
        kept = {name: value for name, value in vars(self).items() if name not in ("_clip", "_path")}
        return {**kept, "_clip": None, "_path": None, "_content": self.read()}


def _remove(name: str) -> None:
    with contextlib.suppress(OSError):
        Path(name).unlink()
