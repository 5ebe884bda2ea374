"""What the chunks of a wav say of its length. Decoders read what there is, and do not tell."""

from __future__ import annotations

import io
import os
import struct
from dataclasses import dataclass

_UNKNOWN = 0x7FFF0000
"""A size from here on stands for "not known yet" where less than that follows: written into a pipe."""
_PADDING_LOOKED_AT = 1 << 16


@dataclass(frozen=True, slots=True)
class WavLayout:
    """The sizes (bytes) in a wav. ``frame`` is that of one frame or block, ``speed`` in bytes a second."""

    claimed: int | None
    """The samples' size by the header; ``None`` where it does not say."""
    held: int
    """What follows the header of the samples, to the end of the file or of ``claimed``."""
    beyond: int
    """What follows the samples and is no chunk."""
    frame: int
    speed: int

    def seconds(self, size: int) -> float:
        """Return how long so many bytes last."""
        return size / max(1, self.speed)


def wav_layout(file: io.FileIO) -> WavLayout | None:
    """Return the sizes in a wav (RIFF, RIFX, RF64), or ``None`` where it has no samples' chunk."""
    end = file.seek(0, os.SEEK_END)
    file.seek(0)
    kind = file.read(12)[:4]
    order = ">" if kind == b"RIFX" else "<"
    frame = speed = 0
    long_size: int | None = None
    place = 12
    while place + 8 <= end:
        file.seek(place)
        name, size = struct.unpack(f"{order}4sI", file.read(8))
        if name == b"fmt " and size >= 16:
            rate, speed, frame = struct.unpack(f"{order}4xIIH", file.read(14))
            speed = speed or rate * frame
        elif name == b"ds64" and size >= 16:
            long_size = struct.unpack("<8xQ", file.read(16))[0]
        elif name == b"data":
            start = place + 8
            if kind == b"RF64" and size == 0xFFFFFFFF and long_size is not None:
                size = long_size
            held = end - start
            if (size == 0 and held > 0) or (size >= _UNKNOWN and size > held):
                return WavLayout(None, held, 0, frame, speed)
            if size >= held:
                return WavLayout(size, held, 0, frame, speed)
            beyond = _no_chunks(file, start + size, end, order, odd=bool(size % 2))
            return WavLayout(size, size, beyond, frame, speed)
        place += 8 + size + size % 2
    return None


def _no_chunks(file: io.FileIO, start: int, end: int, order: str, *, odd: bool) -> int:
    """Return how many of the bytes from ``start`` on are neither chunks nor padding."""
    # An odd chunk is followed by a byte of padding, which some writers forget.
    places = (start, min(end, start + 1)) if odd else (start,)
    return min(_rest(file, place, end, order) for place in places)


def _rest(file: io.FileIO, place: int, end: int, order: str) -> int:
    while end - place >= 8:
        file.seek(place)
        name, size = struct.unpack(f"{order}4sI", file.read(8))
        after = place + 8 + size
        if not (name.isascii() and name.decode().isprintable()) or after > end:
            break
        place = min(end, after + size % 2)
    if end - place < 8:
        return 0
    file.seek(place)
    block = file.read(min(end - place, _PADDING_LOOKED_AT))
    return 0 if not any(block) and len(block) == end - place else end - place
