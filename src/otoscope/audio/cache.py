"""Converted clips on disk, found again by what they were made of.

A file's name tells all that is known of it: ``KEY-FRAMES-SHA256.FORMAT``. So nothing lies beside it that
could disagree with it, one rename makes it whole, and damage is noticed. Files that were not used for the
longest time go first. Several threads and processes may use one folder; whoever reads a clip holds it open,
so that it is sent to its end even if it goes from the folder meanwhile.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import secrets
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from otoscope.audio.header import sha256_of
from otoscope.descriptors import read_at
from otoscope.records import AudioBytes

Make = Callable[[BinaryIO], int]
"""Writes a converted clip and returns its number of frames."""

_NAME = re.compile(r"[0-9a-f]{64}-(\d+)-([0-9a-f]{64})\.\w+")
_PART = ".part"
_PART_SECONDS = 3600.0
"""Age from which on a file that nobody finished is a dead process's."""
_FULL, _ROOM, _LOOK_AFTER = 0.95, 0.9, 0.05
"""Shares of the limit: from where on, and down to where, clips go; what may come until the next look."""
_LOCKS = 64


@dataclass(frozen=True, slots=True)
class Converted:
    """A converted clip: its bytes, their number and SHA-256 (hex), and its frames."""

    content: AudioBytes
    size: int
    sha256: str
    frames: int


class ConvertedClips:
    """A folder of converted clips that holds ``limit`` bytes at most; with 0, nothing is kept.

    Where the folder cannot be written, clips are held in the system's folder of temporary files, and where
    that cannot be written, in memory. ``trouble`` then says why.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder = folder
        self._limit = limit
        self.trouble: str | None = None
        """Why nothing is kept any more; what is there is still read."""
        self._making = [threading.Lock() for _ in range(_LOCKS)]
        """So that questions about one clip have it converted once. By key; a few keys share one."""
        self._counting = threading.Lock()
        self._since_look: int | None = None
        """Bytes that came since the folder was looked at; ``None``: never yet."""

    def get(self, made_of: str, format_name: str, make: Make) -> Converted:
        """Return what ``make`` writes, from the folder where it is there already.

        ``made_of`` is all that it depends on. Raises what ``make`` raises, but for ``OSError``.
        """
        key = hashlib.sha256(made_of.encode()).hexdigest()
        with self._making[int(key[:2], 16) % _LOCKS]:
            return self._found(key) or self._made(key, format_name, make)

    # --- what is there ------------------------------------------------------------------------------------

    def _found(self, key: str) -> Converted | None:
        if not self._limit:
            return None
        try:
            with os.scandir(self._folder / key[:2]) as entries:
                names = sorted(entry.name for entry in entries if entry.name.startswith(key))
        except OSError:
            return None
        sound = (self._read(self._folder / key[:2] / name) for name in names)
        return next(filter(None, sound), None)

    def _read(self, path: Path) -> Converted | None:
        """Return what a file holds; ``None`` where it cannot be read. A damaged one is removed."""
        if (named := _NAME.fullmatch(path.name)) is None:
            return None
        try:
            with path.open("rb", buffering=0) as file:
                if sha256_of(file) == named[2]:
                    # Its time is when it was used last.
                    with contextlib.suppress(OSError):
                        os.utime(path)
                    size = os.fstat(file.fileno()).st_size
                    return Converted(_OpenFile(file), size, named[2], int(named[1]))
            path.unlink()
        except OSError:
            pass
        return None

    # --- what is new --------------------------------------------------------------------------------------

    def _made(self, key: str, format_name: str, make: Make) -> Converted:
        if self._limit and self.trouble is None:
            try:
                if (kept := self._kept(key, format_name, make)) is not None:
                    return kept
            except OSError as error:
                self.trouble = f"{self._folder}: {error.strerror or error}"
        try:
            # On Windows it is a wrapper that does the same.
            with cast("BinaryIO", tempfile.TemporaryFile()) as file:
                return _finished(file, make(file))
        except OSError:
            memory = io.BytesIO()
            return _finished(memory, make(memory))

    def _kept(self, key: str, format_name: str, make: Make) -> Converted | None:
        """Return a clip that is in the folder now; ``None`` where it is too large, or is gone already."""
        folder = self._folder / key[:2]
        folder.mkdir(parents=True, exist_ok=True)
        beside = folder / f".{secrets.token_hex(8)}{_PART}"
        try:
            with beside.open("x+b") as file:
                frames = make(file)
                size, sha256 = _measured(file)
            if size > self._limit:
                return None
            # Closed by now: Windows renames no file that is open.
            place = beside.replace(folder / f"{key}-{frames}-{sha256}.{format_name}")
        finally:
            # Where it was kept it has another name by now.
            with contextlib.suppress(OSError):
                beside.unlink()
        try:
            with place.open("rb", buffering=0) as kept:
                converted = Converted(_OpenFile(kept), size, sha256, frames)
        except FileNotFoundError:  # another process has made room
            return None
        self._count(size)
        return converted

    # --- the limit ----------------------------------------------------------------------------------------

    def _count(self, size: int) -> None:
        with self._counting:
            known = self._since_look is not None
            self._since_look = (self._since_look or 0) + size
            if not known or self._since_look > _LOOK_AFTER * self._limit:
                self._since_look = 0
                self._make_room()

    def _make_room(self) -> None:
        """Remove what was not used for the longest time, where the folder is almost full."""
        files = sorted(self._files())
        total = sum(size for _, size, _ in files)
        if total <= _FULL * self._limit:
            return
        for _, size, path in files:
            if total <= _ROOM * self._limit:
                return
            # Another process may have removed it; and where it cannot be removed, the next one may be.
            with contextlib.suppress(OSError):
                path.unlink()
                total -= size

    def _files(self) -> Iterator[tuple[float, int, Path]]:
        """Yield when each file was used, its size and place; remove what nobody finished."""
        long_ago = time.time() - _PART_SECONDS
        for folder in _entries(self._folder):
            for entry in _entries(folder):
                # Gone since it was listed, or not ours to look at.
                with contextlib.suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    if _NAME.fullmatch(entry.name):
                        yield status.st_mtime, status.st_size, Path(entry.path)
                    elif entry.name.endswith(_PART) and status.st_mtime < long_ago:
                        Path(entry.path).unlink()


def _entries(folder: Path | os.DirEntry[str]) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def _finished(file: BinaryIO, frames: int) -> Converted:
    """Return what was written to a file. Raises ``OSError``."""
    size, sha256 = _measured(file)
    content = InMemory(file.getvalue()) if isinstance(file, io.BytesIO) else _OpenFile(file)
    return Converted(content, size, sha256, frames)


def _measured(file: BinaryIO) -> tuple[int, str]:
    """Return size and SHA-256 of what was written to a file. Raises ``OSError``."""
    file.flush()
    return file.seek(0, io.SEEK_END), sha256_of(file)


class InMemory:
    """Bytes that are held in memory."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)
        self.sha256 = hashlib.sha256(data).hexdigest()

    def read_at(self, offset: int, size: int) -> bytes:
        """Return ``size`` bytes from ``offset`` on, fewer only at the end."""
        return self._data[offset : offset + size]


class _OpenFile:
    """A file that stays open as long as somebody may read it, whatever becomes of its name."""

    def __init__(self, file: BinaryIO | io.FileIO) -> None:
        self._descriptor = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._descriptor)

    def read_at(self, offset: int, size: int) -> bytes:
        """Return ``size`` bytes from ``offset`` on, fewer only at the end. Raises ``OSError``."""
        return read_at(self._descriptor, size, offset)
