"""A clip under a policy: what is sent of it, or silence of its length.

Most runs convert nothing, and one that is judged or read again has no clip to read: what decoding takes is
imported where it is done.
"""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from otoscope.audio.cache import ConvertedClips, InMemory
from otoscope.audio.header import Header, opened, sha256_of
from otoscope.audio.held import HeldBytes, HeldClips
from otoscope.audio.policy import Change, change_of, lacks, over_limit, own_format
from otoscope.audio.silence import SilentWav
from otoscope.config import AudioPolicy
from otoscope.errors import ConfigError
from otoscope.records import AudioClip, Failure, FailureKind, SentAudio

_AS_IS = AudioPolicy()
_FORM = 2
"""Counts what this package itself changes in how clips are converted, so that older ones are not found."""
_SHORTFALL = 0.05
"""Seconds that a decoder may find less than a header promises, before it is worth a word."""
_SILENT_BLOCK = 1 << 16


def load(path: str) -> AudioClip | Failure:
    """Read a clip's header, hash its bytes, and convert it where it cannot travel as it is.

    Nothing is kept for the next time. Failures as :meth:`Loader.load`.
    """
    return Loader(_AS_IS, ConvertedClips(Path(tempfile.gettempdir()), 0)).load(path)


def examine(path: str) -> AudioClip | Failure:
    """Read a clip's header and hash its bytes, and leave it as it is.

    Failures as :func:`otoscope.audio.measure`.
    """
    return opened(path, lambda file, header: _clip(path, header, sha256_of(file)))


class Loader:
    """Loads clips under one policy. May be used by several threads at once.

    The bytes of clips that travel as they are stay in ``held`` where it has room, so that they are read once.
    Raises ``ConfigError`` where the installed libsndfile cannot write the policy's format.
    """

    def __init__(self, policy: AudioPolicy, converted: ConvertedClips, held: HeldClips | None = None) -> None:
        self._policy = policy
        self._held = held
        self._converted = converted
        if policy.format is None:
            return
        import soundfile

        if policy.format.upper() not in soundfile.available_formats():
            raise ConfigError(
                f"audio_policy: the installed libsndfile {soundfile.__libsndfile_version__} cannot write "
                f"{policy.format}; its own wheel on the package index can: install soundfile from there"
            )

    def load(self, path: str) -> AudioClip | Failure:
        """Read a clip's header, hash its bytes, and convert it where the policy or its format need that.

        Returns a Failure as :func:`otoscope.audio.measure` does, ``bad_audio`` also for what only decoding
        shows, and ``over_limit`` for a clip that the policy leaves out. Raises nothing for a bad clip.
        """

        def read(file: io.FileIO, header: Header) -> AudioClip | Failure | str:
            if failure := self.over_limit(path, header):
                return failure
            change = change_of(header, self._policy)
            match change:
                case Change():
                    return self._changed(path, file, header, change)
                case None:
                    return self._as_is(path, file, header)
                case _:
                    return change

        return opened(path, read)

    def silent(self, path: str) -> AudioClip | Failure:
        """Read a clip's header, hash its bytes, and put silence in its place: as long as what is sent of it.

        The silence is a wav or of the policy's format. Failures as :meth:`load`, but for what only decoding
        shows.
        """

        def read(file: io.FileIO, header: Header) -> AudioClip | Failure | str:
            if failure := self.over_limit(path, header):
                return failure
            change = change_of(header, self._policy)
            if isinstance(change, str):
                return change
            sent = self._silence(header, change)
            if isinstance(sent, str):
                return sent
            return _clip(path, header, sha256_of(file), sent, ("silence of the same length",))

        return opened(path, read)

    def over_limit(self, path: str, header: Header) -> Failure | None:
        """Return the Failure of a clip that is too long for the policy; ``None`` where it is cut instead."""
        if self._policy.over == "truncate" or not over_limit(header, self._policy):
            return None
        return Failure(
            FailureKind.OVER_LIMIT,
            f"{path}: lasts {header.seconds:g} s, and the audio policy takes {self._policy.max_seconds:g} s "
            "at most",
            file=header.file,
        )

    def _as_is(self, path: str, file: io.FileIO, header: Header) -> AudioClip:
        if self._held is None or not self._held.room(header.size):
            return _clip(path, header, sha256_of(file))
        held = HeldBytes(self._held, header.size)
        file.seek(0)
        data = file.readall()
        clip = _clip(path, header, hashlib.sha256(data).hexdigest())
        # Otherwise it is being written to, which is found out when it is sent.
        if len(data) != header.size:
            return clip
        held.fill(data)
        return replace(clip, held=held)

    def _changed(self, path: str, file: io.FileIO, header: Header, change: Change) -> AudioClip | str:
        from otoscope.audio.conversion import DamagedClipError, converter

        sha256, made_by = sha256_of(file), converter(change)
        try:
            converted = self._converted.get(
                f"{sha256}\n{change}\n{made_by}\n{_FORM}",
                change.format,
                partial(_convert, file, header, change),
            )
        except DamagedClipError as error:
            return str(error)
        seconds = round(converted.frames / change.rate, 6)
        said = list(change.said)
        promised = change.frames_after / change.rate
        if promised - seconds > _SHORTFALL:
            said.append(f"only {seconds:g} of {promised:g} s can be decoded")
        sent = SentAudio(
            sha256=converted.sha256,
            size=converted.size,
            format=change.format,
            seconds=seconds,
            rate=change.rate,
            channels=change.channels,
            content=converted.content,
            converter=made_by,
        )
        return _clip(path, header, sha256, sent, said)

    def _silence(self, header: Header, change: Change | None) -> SentAudio | str:
        frames = change.frames_after if change else header.frames
        rate = change.rate if change else header.rate
        channels = change.channels if change else header.channels
        form = self._policy.format or "wav"
        if lack := lacks(form, rate, channels, frames):
            return f"silence of its length cannot be sent as {form}: {lack}"
        if form == "wav":
            content: SilentWav | InMemory = SilentWav(frames, rate, channels)
        else:
            from otoscope.audio.conversion import encode

            file = io.BytesIO()
            encode(_zeros(frames, channels), form, rate, channels, file)
            content = InMemory(file.getvalue())
        return SentAudio(
            sha256=content.sha256,
            size=content.size,
            format=form,
            seconds=round(frames / rate, 6),
            rate=rate,
            channels=channels,
            content=content,
        )


def _zeros(frames: int, channels: int) -> Iterator[Any]:
    import numpy as np

    for start in range(0, frames, _SILENT_BLOCK):
        yield np.zeros((min(_SILENT_BLOCK, frames - start), channels), "float32")


def _convert(file: io.FileIO, header: Header, change: Change, target: BinaryIO) -> int:
    from otoscope.audio.conversion import DamagedClipError, convert

    frames = convert(file, header, change, target)
    status = os.fstat(file.fileno())
    if header.file != {"bytes": status.st_size, "mtime_ns": status.st_mtime_ns}:
        # What was made is not of the bytes that were hashed, under which it would be found again.
        raise DamagedClipError("the file changed while it was read")
    return frames


def _clip(
    path: str,
    header: Header,
    sha256: str,
    sent: SentAudio | None = None,
    changed: Iterable[str] = (),
) -> AudioClip:
    return AudioClip(
        path=path,
        sha256=sha256,
        size=header.size,
        mtime_ns=header.mtime_ns,
        format=own_format(header),
        seconds=header.seconds,
        rate=header.rate,
        channels=header.channels,
        changed=tuple(changed),
        sent=sent,
    )
