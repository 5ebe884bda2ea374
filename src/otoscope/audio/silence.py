"""A wav of zeros that is never held whole."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

_HEADER_BYTES = 44
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class SilentWav:
    """A 16-bit wav without a sound: the same bytes that an encoder would write, made where they are read."""

    frames: int
    rate: int
    channels: int

    @property
    def size(self) -> int:
        """Number of bytes."""
        return _HEADER_BYTES + 2 * self.frames * self.channels

    @property
    def sha256(self) -> str:
        """SHA-256 (hex) of the bytes."""
        hasher = hashlib.sha256()
        for offset in range(0, self.size, _BLOCK):
            hasher.update(self.read_at(offset, _BLOCK))
        return hasher.hexdigest()

    def read_at(self, offset: int, size: int) -> bytes:
        """Return ``size`` bytes from ``offset`` on, fewer only at the end."""
        end = max(offset, min(self.size, offset + size))
        start = self._header()[offset:end]
        return start + bytes(end - offset - len(start))

    def _header(self) -> bytes:
        frame = 2 * self.channels
        data = self.frames * frame
        riff = struct.pack("<4sI4s", b"RIFF", data + _HEADER_BYTES - 8, b"WAVE")
        form = struct.pack(
            "<4sIHHIIHH", b"fmt ", 16, 1, self.channels, self.rate, self.rate * frame, frame, 16
        )
        return riff + form + struct.pack("<4sI", b"data", data)
