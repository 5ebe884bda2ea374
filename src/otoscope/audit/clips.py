"""One clip, decoded from its first to its last frame, and what is wrong with it."""

from __future__ import annotations

import io
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import soundfile

from otoscope.audit.findings import Kind
from otoscope.audit.mpeg import MpegFrames, mpeg_frames
from otoscope.audit.riff import wav_layout

_BLOCK = 1 << 16
"""Samples that are decoded at a time, of all channels together."""
_LOOKED_AT = 1 << 10
_IN_16_BIT = frozenset({"PCM_16", "PCM_S8", "PCM_U8"})
"""Subtypes that lose nothing in 16 bit; others are decoded to floating point."""
_LOSSY = ("MP3", "OGG")
_ONE_STEP = 2.0**-15
"""Of 16 bit: what lossy coding makes of silence may differ by less."""
_TOLERATED_SECONDS = 0.01
_UNHEARD_FRAMES = 6
"""Frames of an mp3 that need not be heard: what the encoder put before and behind, and a decoder's guess."""
_MAGIC = (b"RIFF", b"RIFX", b"RF64", b"fLaC", b"OggS", b"FORM", b"caff", b"ID3", b".snd")
_Samples = npt.NDArray[np.float32 | np.int16]

_ENDINGS = {
    "wav": ("WAV", "WAVEX", "RF64"),
    "wave": ("WAV", "WAVEX", "RF64"),
    "mp3": ("MP3",),
    "flac": ("FLAC",),
    "ogg": ("OGG",),
    "opus": ("OGG",),
    "aiff": ("AIFF",),
    "aif": ("AIFF",),
    "caf": ("CAF",),
    "au": ("AU",),
    "m4a": (),
    "aac": (),
    "mp4": (),
    "webm": (),
}
"""What an ending promises, in libsndfile's names of formats."""


@dataclass(slots=True)
class Inspection:
    """What was found out about one file. Frames are those that were decoded."""

    troubles: list[tuple[Kind, str]] = field(default_factory=list)
    format: str | None = None
    """libsndfile's name; ``None`` where it is no audio."""
    frames: int = 0
    rate: int = 0
    channels: int = 0

    @property
    def seconds(self) -> float:
        """How much of it can be heard."""
        return self.frames / self.rate if self.rate else 0.0

    def add(self, kind: Kind, detail: str = "") -> None:
        """Note one trouble."""
        self.troubles.append((kind, detail))


def inspect(path: str) -> Inspection:
    """Decode a clip whole and return what is wrong with it. Raises nothing for a bad clip."""
    found = Inspection()
    try:
        # Asked before opening: to open a named pipe is to wait for whoever writes into it.
        status = Path(path).stat()
        if not stat.S_ISREG(status.st_mode):
            found.add(Kind.UNREADABLE, f"is a {_what(status.st_mode)}, not a file")
        elif status.st_size == 0:
            found.add(Kind.EMPTY)
        else:
            # Unbuffered: libsndfile shares the descriptor, so its position must be the one we set.
            with Path(path).open("rb", buffering=0) as file:
                _inspect(file, found)
            _compare_with_name(path, found)
    except (FileNotFoundError, NotADirectoryError):
        found.add(Kind.MISSING, "is a link to a file that is not there" if Path(path).is_symlink() else "")
    except OSError as error:
        found.add(Kind.UNREADABLE, error.strerror or type(error).__name__)
    return found


def _what(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "folder"
    return "named pipe" if stat.S_ISFIFO(mode) else "device or socket"


def _inspect(file: io.FileIO, found: Inspection) -> None:
    start = file.read(64)
    file.seek(0)
    try:
        # A descriptor, not a name: libsndfile must not fall back to the name's ending.
        with soundfile.SoundFile(file.fileno(), closefd=False) as sound:
            found.format, found.rate, found.channels = sound.format, sound.samplerate, sound.channels
            silent = _decode(sound, found)
            frames = sound.frames
    except soundfile.SoundFileError as error:
        if found.format is None:
            _add_unopened(start, error, found)
            return
        _compare_lengths(file, 0, found)
        if not found.troubles:
            found.add(Kind.DAMAGED, f"cannot be decoded to its end ({_reason(error)})")
        return
    _compare_lengths(file, frames, found)
    if found.frames == 0 and not found.troubles:
        found.add(Kind.ZERO_DURATION)
    elif silent:
        found.add(Kind.SILENT, f"{found.seconds:.2f} s")


def _decode(sound: soundfile.SoundFile, found: Inspection) -> bool:
    """Decode all of it; return whether every channel holds one value throughout."""
    shape = (max(1, _BLOCK // sound.channels), sound.channels)
    buffer: _Samples = np.empty(shape, "int16" if sound.subtype in _IN_16_BIT else "float32")
    tolerated = _ONE_STEP if sound.format in _LOSSY else 0
    first: npt.NDArray[np.float64] | None = None
    constant = True
    # Read to the end: what the header says is not trusted here.
    while len(block := sound.read(out=buffer)):
        found.frames += len(block)
        if first is None:
            first = block[0].astype(np.float64)
        # Most clips are known to sound after a few frames; the rest of them need not be compared.
        for part in (block[:_LOOKED_AT], block[_LOOKED_AT:]):
            constant = constant and bool((np.abs(part - first) <= tolerated).all())
    return constant and found.frames > 0


def _compare_lengths(file: io.FileIO, frames: int, found: Inspection) -> None:
    """Compare what is there with what the file says of itself; ``frames`` is the decoder's opinion."""
    if found.format == "MP3" and (walked := mpeg_frames(file)) is not None:
        _compare_mp3(walked, found)
        return
    before = len(found.troubles)
    if found.format in ("WAV", "WAVEX", "RF64"):
        _compare_wav(file, found)
    if found.frames < frames and len(found.troubles) == before:
        told = f"only {found.seconds:.2f} s of {frames / found.rate:.2f} s can be decoded"
        found.add(Kind.TRUNCATED, told)


def _compare_wav(file: io.FileIO, found: Inspection) -> None:
    layout = wav_layout(file)
    if layout is None:
        return
    held = layout.seconds(layout.held)
    if layout.claimed is None:
        found.add(
            Kind.LENGTH_MISMATCH, f"the header does not say how long it is, the file holds {held:.2f} s"
        )
    elif layout.claimed - layout.held >= max(1, layout.frame):
        claimed = layout.seconds(layout.claimed)
        found.add(Kind.TRUNCATED, f"the header says {claimed:.2f} s, the file ends after {held:.2f} s")
    elif layout.seconds(layout.beyond) >= _TOLERATED_SECONDS:
        found.add(
            Kind.LENGTH_MISMATCH,
            f"the header says {held:.2f} s, another {layout.beyond:,} bytes follow that are no chunks",
        )


def _compare_mp3(walked: MpegFrames, found: Inspection) -> None:
    held = walked.seconds(walked.frames)
    # Some encoders count the frame that states the number.
    stated = walked.claimed is not None and abs(walked.claimed - walked.frames) <= 1
    if walked.skipped:
        found.add(Kind.DAMAGED, f"{walked.skipped:,} bytes of it are no frames")
    elif walked.claimed is not None and not stated:
        kind = Kind.TRUNCATED if walked.claimed > walked.frames else Kind.LENGTH_MISMATCH
        claimed = walked.seconds(walked.claimed)
        found.add(kind, f"the header says {claimed:.2f} s, the file holds {held:.2f} s")
    elif walked.cut and walked.claimed != walked.frames:
        found.add(Kind.TRUNCATED, f"ends within a frame, after {held:.2f} s")
    elif held - found.seconds <= walked.seconds(_UNHEARD_FRAMES):
        return
    elif walked.claimed is None:
        # Of changing bit rate and without the header that such a file needs: libsndfile stops at its guess.
        heard = f"decoders guess, and may stop after {found.seconds:.2f} s of {held:.2f} s"
        found.add(Kind.LENGTH_MISMATCH, f"does not say how long it is: {heard}")
    else:
        found.add(Kind.DAMAGED, f"only {found.seconds:.2f} s of {held:.2f} s can be decoded")


def _compare_with_name(path: str, found: Inspection) -> None:
    promised = _ENDINGS.get(os.path.splitext(path)[1].lower().removeprefix("."))  # noqa: PTH122 (bytes)
    if promised is not None and found.format is not None and found.format not in promised:
        found.add(Kind.NAME_MISMATCH, f"holds {found.format.lower()}")


def _add_unopened(start: bytes, error: soundfile.SoundFileError, found: Inspection) -> None:
    if start.startswith(b"version https://git-lfs"):
        found.add(Kind.NOT_AUDIO, "is a Git LFS pointer, not the file that it points to")
    elif start.lstrip()[:1] == b"<":
        found.add(Kind.NOT_AUDIO, f"is a web page or XML: it begins with {start[:24]!r}")
    elif not any(start):
        found.add(Kind.NOT_AUDIO, "begins with nothing but zeros")
    elif start.startswith(_MAGIC) or (start[0] == 0xFF and len(start) > 1 and start[1] >= 0xE0):
        found.add(Kind.DAMAGED, f"cannot be opened ({_reason(error)})")
    else:
        found.add(Kind.NOT_AUDIO, f"begins with {start[:16]!r}")


def _reason(error: soundfile.SoundFileError) -> str:
    text = str(getattr(error, "error_string", "") or error).strip().rstrip(".")
    # libsndfile's words for an MP3 without a frame that can be decoded, or with too much between its frames.
    vague = not text or text.startswith(("File does not exist", "Unspecified internal error"))
    return "damaged or cut off" if vague else text
