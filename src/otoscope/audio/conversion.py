"""Decode, cut, mix down, resample, encode: block by block, so that a long clip costs little memory.

What is sent has 16 bits: samples are rounded to the nearest, without dither, and what is beyond full scale
stays at full scale. An mp3 is made of the same 16-bit samples. The same libraries make the same bytes of the
same clip, whichever process they run in.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import numpy as np
import soundfile

from otoscope.audio.header import Header, reason_of
from otoscope.audio.policy import Change

Block = Any
"""Float32 samples, full scale 1, of shape (frames, channels)."""

_BLOCK_SAMPLES = 1 << 17
"""Samples of all channels that are decoded at a time; 512 KB as float32."""
_WRITES: dict[str, dict[str, Any]] = {
    "wav": {"format": "WAV", "subtype": "PCM_16"},
    "flac": {"format": "FLAC", "subtype": "PCM_16"},
    # Variable bit rate at the encoder's best quality ("V0"): what is lost should be the policy's doing alone.
    "mp3": {
        "format": "MP3",
        "subtype": "MPEG_LAYER_III",
        "bitrate_mode": "VARIABLE",
        "compression_level": 0.0,
    },
}
_FIRST_FRAME, _TAIL = 256, 4096
"""Bytes in which an mp3 tells its length; bytes after the last frame that are no more than a tag."""
_QUALITY = "HQ"
"""Of soxr: 20 bits, the whole pass band that 16-bit audio needs."""


class Sound(soundfile.SoundFile):  # type: ignore[misc]  # the library has no types
    """A file that is read from its beginning to its end.

    After each read the library would seek to where it is already. In an mp3 that loses what a frame takes
    from the one before it, and the first samples of every block came out wrong.
    """

    def seekable(self) -> bool:
        """Say that it is not, so that nothing seeks."""
        return False


class DamagedClipError(Exception):
    """A clip whose header is good, but that cannot be converted all the same. The message says why."""


def convert(source: io.FileIO, header: Header, change: Change, target: BinaryIO) -> int:
    """Write to ``target`` what a change makes of a clip, and return the number of frames.

    A wav or mp3 that lacks its end is heard where it is sent as it is, so here too what can be decoded of it
    is taken; of other formats all must be there. Raises ``DamagedClipError``, and ``OSError`` when the
    target cannot be written.
    """
    blocks = _decoded(source, header, change.frames)
    if change.channels != change.channels_before:
        blocks = (block.mean(axis=1, keepdims=True) for block in blocks)
    if change.resamples:
        blocks = _resampled(blocks, change)
    frames = encode(blocks, change.format, change.rate, change.channels, target)
    if not frames:
        raise DamagedClipError("is too short: nothing of it is left")
    return frames


def encode(blocks: Iterable[Block], format_name: str, rate: int, channels: int, target: BinaryIO) -> int:
    """Write blocks as 16-bit wav or flac, or as mp3, and return the number of frames.

    Raises ``OSError`` when the target cannot be written, ``DamagedClipError`` when the encoder takes no such
    audio, and what ``blocks`` raises.
    """
    out = _Target(target)
    frames = 0
    try:
        with soundfile.SoundFile(out, "w", rate, channels, **_WRITES[format_name]) as sound:
            for block in blocks:
                samples = _sixteen_bit(block)
                # libsndfile 1.2.2 makes noise of two channels of integers in an mp3; of floats it does not.
                sound.write(samples if format_name != "mp3" else (samples / 32768.0).astype("float32"))
                out.check()
                frames += len(block)
    except soundfile.SoundFileError as error:
        out.check()
        raise DamagedClipError(f"cannot be encoded as {format_name} ({reason_of(error)})") from None
    # An encoder's last bytes are written as it closes, and nobody else hears that they were not.
    out.check()
    return frames


def converter(change: Change) -> str:
    """Return which libraries make a change, with their versions."""
    made_by = f"soundfile {soundfile.__version__}, libsndfile {soundfile.__libsndfile_version__}"
    return f"{made_by}, soxr {_soxr().__version__}" if change.resamples else made_by


def _soxr() -> Any:
    # Only a policy that resamples needs it.
    import soxr

    return soxr


def _decoded(source: io.FileIO, header: Header, frames: int) -> Iterator[Block]:
    """Yield the first ``frames`` frames. Raises ``DamagedClipError``."""
    source.seek(0)
    left = frames
    try:
        with Sound(source.fileno(), closefd=False) as sound:
            at_once = max(1, _BLOCK_SAMPLES // header.channels)
            while left and len(block := sound.read(min(left, at_once), dtype="float32", always_2d=True)):
                left -= len(block)
                # One sample that is no number would take all others of a resampled clip with it.
                yield np.nan_to_num(block, copy=False, nan=0.0, posinf=1.0, neginf=-1.0)
    except soundfile.SoundFileError as error:
        raise DamagedClipError(f"cannot be decoded ({reason_of(error)})") from None
    if left == frames or (left and header.format not in ("WAV", "WAVEX", "MP3")):
        raise DamagedClipError(
            f"is damaged or cut off: only {frames - left} of {frames} frames can be decoded"
        )
    if frames == header.frames and header.format == "MP3" and _goes_on(source, header):
        raise DamagedClipError(
            "does not tell its length (a variable bit rate without a Xing header), so that it cannot be "
            "converted whole. Give it one, as by ffmpeg -i OLD.mp3 -c copy NEW.mp3"
        )


def _goes_on(source: io.FileIO, header: Header) -> bool:
    """Whether an mp3, decoded as far as its length was guessed, has more to be heard."""
    unread = header.size - source.tell()
    source.seek(0)
    start = source.read(10)
    tag = sum((byte & 0x7F) << (7 * place) for place, byte in enumerate(reversed(start[6:10])))
    source.seek(10 + tag if start.startswith(b"ID3") else 0)
    first = source.read(_FIRST_FRAME)
    told = any(name in first for name in (b"Xing", b"Info", b"VBRI"))
    return not told and unread > _TAIL + header.size // 100


def resampled(samples: Block, rate_before: int, rate: int) -> Block:
    """Return a whole clip's samples at another rate (Hz), by the same resampler as a policy's."""
    return _soxr().resample(samples, rate_before, rate, quality=_QUALITY)


def _resampled(blocks: Iterable[Block], change: Change) -> Iterator[Block]:
    stream = _soxr().ResampleStream(
        change.rate_before, change.rate, change.channels, dtype="float32", quality=_QUALITY
    )
    for block in blocks:
        yield stream.resample_chunk(np.ascontiguousarray(block))
    yield stream.resample_chunk(np.zeros((0, change.channels), "float32"), last=True)


def _sixteen_bit(block: Block) -> Any:
    return np.clip(np.rint(block * 32768.0), -32768, 32767).astype("int16")


class _Target:
    """What libsndfile writes to. Keeps the first error, which libsndfile would swallow or rename."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._error: OSError | None = None

    def check(self) -> None:
        """Raise the error that there was."""
        if self._error is not None:
            raise self._error

    def write(self, data: bytes) -> int:
        try:
            self._file.write(data)
        except OSError as error:
            self._error = self._error or error
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        try:
            return self._file.seek(offset, whence)
        except OSError as error:
            # Seeking writes what was buffered.
            self._error = self._error or error
            return offset

    def tell(self) -> int:
        return self._file.tell()

    def read(self, size: int = -1) -> bytes:
        return self._file.read(size)

    def flush(self) -> None:
        """Leave that to whoever opened the file."""
