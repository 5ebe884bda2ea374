"""The frames of an mp3, counted from their headers.

A decoder tells the length that the first frame states or, where it states none, an estimate from the size;
neither shows that the file ends early. Sources: ISO/IEC 11172-3 and 13818-3 for the headers, and the
"Xing", "Info" and "VBRI" headers as encoders write them.
"""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

_BITRATES = {
    (1, 1): (32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448),
    (1, 2): (32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    (1, 3): (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (2, 1): (32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256),
    (2, 2): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    (2, 3): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
"""kbit/s by version (2 stands for 2.5, too) and layer."""
_RATES = {3: (44_100, 48_000, 32_000), 2: (22_050, 24_000, 16_000), 0: (11_025, 12_000, 8_000)}
"""Hz by the two bits that tell the version."""
_SEARCHED = 1 << 16
"""How far into a file its first frame is looked for."""
_WINDOW = 1 << 16
_PADDING = 4096
"""Zeros behind the last frame, up to here, are padding; more of them are a download that never came."""


class _Header(NamedTuple):
    size: int
    """Of the whole frame, in bytes."""
    kind: tuple[int, int, int]
    """Version, layer and rate: the same throughout a stream."""
    samples: int


@dataclass(frozen=True, slots=True)
class MpegFrames:
    """What a walk over the frames found. Lengths in frames of ``samples`` samples at ``rate`` Hz."""

    frames: int
    """Whole frames with audio."""
    claimed: int | None
    """The number that the first frame states."""
    skipped: int
    """Bytes between frames that belong to none."""
    cut: bool
    """Whether the file ends within a frame."""
    samples: int
    rate: int

    def seconds(self, frames: int) -> float:
        """Return how long so many frames last."""
        return frames * self.samples / self.rate


def mpeg_frames(file: io.FileIO) -> MpegFrames | None:
    """Return what the frames tell, or ``None`` where no first frame is found that says how long it is."""
    window = _Window(file)
    end = _without_tags(window)
    place = _first_audio(window, end)
    first = None if place is None else _header(window.at(place, 4))
    if place is None or first is None:
        return None
    claimed, informs = _stated(window.at(place, min(first.size, 256)), first)
    frames = skipped = 0
    cut = False
    while place < end:
        header = _header(window.at(place, 4))
        if header is not None and header.kind == first.kind:
            if place + header.size > end:
                cut = True
                break
            frames += 1
            place += header.size
            continue
        if tag := _tag_size(window, place):
            # Two files in one, as players accept them.
            place += tag
            continue
        found = next(_starts(window, place + 1, end, first.kind), None)
        if found is None:
            skipped += _garbage(window, place, end)
            break
        skipped += found - place
        place = found
    return MpegFrames(frames - informs, claimed, skipped, cut, first.samples, first.kind[2])


class _Window:
    """Reads a file in blocks, so that however long it is, little of it is held."""

    def __init__(self, file: io.FileIO) -> None:
        self._file = file
        self.size = file.seek(0, os.SEEK_END)
        self._start = 0
        self._block = b""

    def at(self, place: int, size: int) -> bytes:
        offset = place - self._start
        if not 0 <= offset <= len(self._block) - size:
            self._file.seek(place)
            self._block = self._file.read(max(_WINDOW, size))
            self._start, offset = place, 0
        return self._block[offset : offset + size]


def _header(read: bytes) -> _Header | None:
    if len(read) < 4 or read[0] != 0xFF:
        return None
    return _decoded(read[1], read[2])


@cache
def _decoded(second: int, third: int) -> _Header | None:
    version, layer = second >> 3 & 3, 4 - (second >> 1 & 3)
    bitrate, rate = third >> 4, third >> 2 & 3
    # 0 is "free": its frames do not tell how long they are.
    if second & 0xE0 != 0xE0 or version == 1 or layer == 4 or bitrate in (0, 15) or rate == 3:
        return None
    generation = 1 if version == 3 else 2
    hertz = _RATES[version][rate]
    samples = {1: 384, 2: 1152, 3: 1152 if generation == 1 else 576}[layer]
    slot = 4 if layer == 1 else 1
    slots = samples // 8 * 1000 * _BITRATES[generation, layer][bitrate - 1] // (hertz * slot)
    return _Header((slots + (third >> 1 & 1)) * slot, (version, layer, hertz), samples)


def _starts(window: _Window, place: int, end: int, kind: tuple[int, int, int] | None = None) -> Iterator[int]:
    """Yield where frames begin: a header whose frame is followed by another, or by the end."""
    while place < end:
        block = window.at(place, min(_WINDOW, end - place))
        offset = block.find(b"\xff")
        if offset < 0:
            place += len(block)
            continue
        place += offset
        header = _header(window.at(place, 4))
        if header is not None and kind in (None, header.kind):
            after = place + header.size
            following = _header(window.at(after, 4)) if after < end else None
            if after == end or (following is not None and following.kind == header.kind):
                yield place
        place += 1


def _first_audio(window: _Window, end: int) -> int | None:
    place = 0
    while tag := _tag_size(window, place):
        place += tag
    return next(_starts(window, place, min(end, place + _SEARCHED)), None)


def _stated(frame: bytes, header: _Header) -> tuple[int | None, bool]:
    """Return the number of frames that a first frame states, and whether it informs instead of sounding."""
    for name, skip in ((b"Xing", 4), (b"Info", 4), (b"VBRI", 10)):
        place = frame.find(name, 4)
        if place < 0:
            continue
        if name == b"VBRI":
            return int.from_bytes(frame[place + 14 : place + 18], "big") or None, True
        states = frame[place + skip + 3 : place + skip + 4] or b"\0"
        number = int.from_bytes(frame[place + 8 : place + 12], "big")
        return number if states[0] & 1 and number else None, True
    return None, False


def _tag_size(window: _Window, place: int) -> int:
    """Return the size of the ID3v2 tag at this place, 0 where there is none."""
    head = window.at(place, 10)
    if len(head) < 10 or head[:3] != b"ID3" or any(byte & 0x80 for byte in head[6:]):
        return 0
    size = head[6] << 21 | head[7] << 14 | head[8] << 7 | head[9]
    return 10 + size + (10 if head[5] & 0x10 else 0)


def _without_tags(window: _Window) -> int:
    """Return where the audio ends and the tags at the end of the file begin."""
    end = window.size
    while tag := _last_tag_size(window, end):
        end = max(0, end - tag)
    return end


def _last_tag_size(window: _Window, end: int) -> int:
    """Return the size of the ID3v1, Lyrics3 or APE tag that ends here, 0 where there is none."""
    if end >= 128 and window.at(end - 128, 3) == b"TAG":
        return 128
    if end >= 15 and window.at(end - 9, 9) == b"LYRICS200" and window.at(end - 15, 6).isdigit():
        return 15 + int(window.at(end - 15, 6))
    if end >= 32 and window.at(end - 32, 8) == b"APETAGEX":
        size, _, flags = struct.unpack("<III", window.at(end - 20, 12))
        return int(size) + (32 if flags & 0x8000_0000 else 0)
    return 0


def _garbage(window: _Window, place: int, end: int) -> int:
    """Return how many of the last bytes are more than padding."""
    rest = window.at(place, min(_PADDING, end - place))
    return 0 if len(rest) == end - place and not any(rest) else end - place
