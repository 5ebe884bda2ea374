"""What is done with either hub: files are looked for, asked for in batches, watched, and accounted for.

Both libraries take patterns, not names, and match each against every file that they list. So a folder that
lacks everything is one pattern, and single files go in batches that keep the matching cheap.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import wait
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from otoscope.hub.troubles import (
    HubTrouble,
    Kind,
    disk_trouble,
    failed_files,
    hub_trouble,
    network_words,
    status_of,
    words,
)
from otoscope.threads import in_thread

BATCH = 100
"""Names in one call: fnmatch forgets its patterns beyond 256, and compiles each anew for every file then."""
CONNECT_SECONDS, PROBE_SECONDS = 5.0, 10.0
"""For a connection to a hub to come about, and for its first answer, name lookup included."""
SILENT_SECONDS = 300.0
"""A hub that answers, and sends no byte of any file for so long, is given up."""
PROBES = 3
"""Probes in a row that fail before a hub is given up."""


class Source(Protocol):
    """One hub's copy of a data set, behind the hub's own library. Paths are those in the copy, with ``/``."""

    @property
    def endpoint(self) -> str:
        """The hub's URL for people: without credentials, which that of a mirror may hold."""

    def probe(self, seconds: float) -> None:
        """Get any answer at all from the hub. Raises whatever there is to raise."""

    def find(self) -> None:
        """Find the data set at the hub. Raises when the hub has none, or does not show it."""

    def download(self, paths: Sequence[str], folder: str | None = None) -> Path:
        """Fetch files, which may be all of a folder; return the folder that the paths are relative to."""

    def listing(self, folder: str) -> dict[str, int | None]:
        """Return the size (bytes) of each file below a folder; a folder that is not there is empty."""

    def keeps(self, path: str, size: int | None) -> bool:
        """Whether the library's cache keeps a file's bytes, of an earlier version of the data set perhaps."""

    def partial_bytes(self, paths: Iterable[str], root: Path) -> int:
        """Return the bytes that have come of files which are not whole yet."""

    def discard(self, path: str, root: Path) -> None:
        """Remove a file that is there and is not what it should be."""

    def clean_up(self) -> None:
        """Remove what nobody can go on with. Called right before the process ends."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a fetch is."""

    files: int = 0
    bytes: int = 0


@dataclass(slots=True)
class Copy:
    """A data set at a hub, and its place on this disk. Calls block; ``progress`` is for another thread."""

    source: Source
    root: Path = field(default_factory=Path)
    """Known once the first file was fetched."""
    _sizes: dict[str, int | None] = field(default_factory=dict)
    _listed: set[str] = field(default_factory=set)
    _waiting: list[str] = field(default_factory=list)
    """What the library is busy with."""
    _done: Progress = Progress()

    def metadata(self, path: str, *, again: bool) -> Path:
        """Fetch one file and return the root; ``again`` does not trust the one that is there."""
        if again:
            self.source.discard(path, self.root)
        self.root = self.source.download([path])
        if not (self.root / path).is_file():
            raise HubTrouble(Kind.NO_DATASET, f"it holds no {path}")
        return self.root

    def look(self, paths: Sequence[str]) -> dict[str, tuple[int | None, bool, bool]]:
        """Return the size (bytes) of each file, whether it is here, and whether its bytes are at least kept.

        A size is ``None`` where the hub does not tell it. What the hub lacks is left out.
        """
        self._list(paths)
        return {
            path: (self._sizes[path], self._is_whole(path), self.source.keeps(path, self._sizes[path]))
            for path in paths
            if path in self._sizes
        }

    def fetch(self, paths: Sequence[str]) -> dict[str, tuple[str, bool]]:
        """Fetch files that :meth:`look` found; return why for each one that did not come as it was listed.

        Beside the reason stands whether the hub just does not have it. Raises ``HubTrouble`` when there is
        no going on: a dead hub, a full disk, no right.
        """
        failed = self._attempt(paths)
        lost: list[str] = []
        again = [path for path, error in failed.items() if status_of(error) != 404]
        if again:
            # What changed at the hub meanwhile is listed anew; a passing trouble may have passed.
            self._listed -= {_folder(path) for path in again}
            self._list(again)
            lost = [path for path in again if path not in self._sizes]
            failed = {path: error for path, error in failed.items() if path not in again}
            failed |= self._attempt([path for path in again if path not in lost])
        told = {path: (self._reason(path, error), status_of(error) == 404) for path, error in failed.items()}
        return told | dict.fromkeys(lost, ("the hub does not have it any more", True))

    def progress(self) -> Progress:
        """Return what has come so far."""
        done, waiting = self._done, list(self._waiting)
        left = []
        for path in waiting:
            size = _size(self.root / path)
            if size is None or size != self._sizes.get(path, size):
                left.append(path)
            else:
                done = Progress(done.files + 1, done.bytes + size)
        return Progress(done.files, done.bytes + self.source.partial_bytes(left, self.root))

    def _list(self, paths: Iterable[str]) -> None:
        for folder in dict.fromkeys(map(_folder, paths)):
            if folder not in self._listed:
                stale = [path for path in self._sizes if _folder(path) == folder]
                for path in stale:
                    del self._sizes[path]
                self._sizes |= self.source.listing(folder)
                self._listed.add(folder)

    def _attempt(self, paths: Sequence[str]) -> dict[str, BaseException | None]:
        """Fetch files; return those that are not here then, with what was raised about them."""
        for path in paths:
            if _size(self.root / path) is not None and not self._is_whole(path):
                self.source.discard(path, self.root)
        failed: dict[str, BaseException | None] = {}
        for batch, folder in self._batches(paths):
            failed |= self._one_call(batch, folder)
        return failed

    def _one_call(self, paths: Sequence[str], folder: str | None = None) -> dict[str, BaseException | None]:
        """Call the library once. Where it does not say which file failed, halve until that is known."""
        self._waiting = list(paths)
        error: Exception | None = None
        try:
            self.source.download(paths, folder)
        except Exception as raised:
            # The libraries raise whatever they like; whatever it is, what came is on the disk.
            error = raised
            if (trouble := disk_trouble(error)) is not None:
                raise trouble from error
        left = [path for path in paths if not self._is_whole(path)]
        came = [self._sizes[path] or 0 for path in paths if path not in left]
        self._waiting, done = [], self._done
        self._done = Progress(done.files + len(came), done.bytes + sum(came))
        if left and error is not None and status_of(error) != 404:
            self._probe(error)
        named = failed_files(error)
        failed: dict[str, BaseException | None] = {path: named[path] for path in left if path in named}
        rest = [path for path in left if path not in named]
        if len(rest) == 1 == len(paths) or (rest and error is None):
            return failed | dict.fromkeys(rest, error)
        for half in (rest[: len(rest) // 2], rest[len(rest) // 2 :]):
            if half:
                failed |= self._one_call(half)
        return failed

    def _probe(self, error: Exception) -> None:
        """Raise where a failure is not the file's own but the hub's end."""
        for _ in range(PROBES):
            trouble = self._no_answer()
            if trouble is None:
                return
        raise HubTrouble(Kind.UNREACHABLE, f"it does not answer any more ({trouble})") from error

    def _no_answer(self) -> HubTrouble | None:
        """Return why the hub does not answer, after a moment for it to come back."""
        try:
            probe(self.source)
        except HubTrouble as trouble:
            time.sleep(0.5)
            return trouble
        return None

    def _batches(self, paths: Sequence[str]) -> Iterator[tuple[list[str], str | None]]:
        """Yield files that are fetched by one call, with their folder where they are all that it has."""
        by_folder: dict[str, list[str]] = {}
        for path in paths:
            by_folder.setdefault(_folder(path), []).append(path)
        single: list[str] = []
        for folder, wanted in by_folder.items():
            if len(wanted) > 1 and set(wanted) == {path for path in self._sizes if _folder(path) == folder}:
                yield wanted, folder
            else:
                single += wanted
        for start in range(0, len(single), BATCH):
            yield single[start : start + BATCH], None

    def _is_whole(self, path: str) -> bool:
        found, listed = _size(self.root / path), self._sizes.get(path)
        return found is not None and (found == listed if listed is not None else found > 0)

    def _reason(self, path: str, error: BaseException | None) -> str:
        if status_of(error) == 404:
            return "the hub lists it and does not have it (404)"
        if error is not None:
            return words(error)
        found, listed = _size(self.root / path), self._sizes.get(path)
        if found is None:
            return "the hub's library left it out without a word"
        return f"the hub lists {listed:,} bytes and sends {found:,}" if listed else "the hub sends no byte"


def probe(source: Source) -> None:
    """Find out whether a hub answers at all, within ``PROBE_SECONDS``. Raises ``HubTrouble``.

    In a thread, because the name lookup knows no timeout, and a connection's own counts for each address.
    """
    asked = in_thread(lambda: source.probe(CONNECT_SECONDS))
    if not wait([asked], PROBE_SECONDS).done:
        raise HubTrouble(Kind.UNREACHABLE, f"{source.endpoint}: no answer within {PROBE_SECONDS:.0f} s")
    if (error := asked.exception()) is not None:
        raise HubTrouble(Kind.UNREACHABLE, f"{source.endpoint}: {network_words(error)}") from error


@dataclass(slots=True)
class Watch:
    """Notices that a fetch stands still because its hub is gone.

    ``patience`` (s) is how long nothing may come before the hub is asked for a sign of life.
    """

    copy: Copy
    patience: float
    _last: Progress = Progress()
    _moved: float = field(default_factory=time.monotonic)
    _asked: float = field(default_factory=time.monotonic)
    _failures: int = 0

    def look(self) -> Progress:
        """Return the progress. Raises ``HubTrouble`` when there will be none."""
        progress, now = self.copy.progress(), time.monotonic()
        if progress != self._last:
            self._last, self._moved, self._asked, self._failures = progress, now, now, 0
        elif now - self._moved > SILENT_SECONDS:
            raise HubTrouble(Kind.UNREACHABLE, f"it sent nothing for {SILENT_SECONDS:.0f} s")
        elif now - self._asked > self.patience:
            try:
                probe(self.copy.source)
                self._failures = 0
            except HubTrouble as trouble:
                self._failures += 1
                if self._failures == PROBES:
                    raise HubTrouble(Kind.UNREACHABLE, f"it does not answer any more ({trouble})") from None
            self._asked = time.monotonic()
        return progress


def found(source: Source) -> None:
    """Find the hub and the data set. Raises ``HubTrouble``."""
    probe(source)
    try:
        source.find()
    except Exception as error:
        raise hub_trouble(error) from error


def _folder(path: str) -> str:
    """Return the folder that is listed as a whole: ``Chat/speech_QA_iemocap``."""
    parts = path.split("/")
    return "/".join(parts[: min(2, len(parts) - 1)])


def _size(path: Path) -> int | None:
    with suppress(OSError):
        return path.stat().st_size
    return None
