"""Where a hub's cache may hold a data set, whoever put it there."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from otoscope.config import HubSettings


def cached_roots(hub: HubSettings) -> list[Path]:
    """Return the folders in the hub's cache that hold ``Chat/`` of the data set, the newest layout first.

    Nothing is said of whether they are complete. Folders that cannot be read are left out.
    """
    match hub.name:
        case "huggingface":
            places = _huggingface(hub.cache, hub.dataset)
        case _:
            places = _modelscope(hub.cache, hub.dataset)
    # Unlike Path.is_dir, this takes a folder that may not be looked into for none.
    return [place for place in dict.fromkeys(places) if os.path.isdir(place / "Chat")]  # noqa: PTH112


def _modelscope(cache: Path, dataset: str) -> Iterator[Path]:
    """Yield the places by the layouts of modelscope, and of those who name a cache folder inside of its own.

    evalscope's cache folder is ``datasets`` in ModelScope's, below which the library lays out its own again.
    """
    owner, _, name = dataset.partition("/")
    owned = [Path(owner, name.replace(".", "___")), Path(owner, name)]
    flat = f"{owner}--{name}"
    yield from _snapshots(cache / "datasets" / flat, "master")
    for parent in ("datasets", "hub/datasets", ".", "hub"):
        yield from (cache / parent / place for place in owned)
    for parent in ("datasets/datasets", "hub/datasets/datasets"):
        yield from _snapshots(cache / parent / flat, "master")


def _huggingface(cache: Path, dataset: str) -> Iterator[Path]:
    repository = cache / f"datasets--{dataset.replace('/', '--')}"
    try:
        newest = (repository / "refs" / "main").read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        newest = "main"
    yield from _snapshots(repository, newest)


def _snapshots(repository: Path, first: str) -> Iterator[Path]:
    """Yield a repository's snapshots: the one that is called ``first``, then the latest made."""
    folder = repository / "snapshots"
    yield folder / first
    yield from sorted(_entries(folder), key=_made_ns, reverse=True)


def _entries(folder: Path) -> Iterable[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _made_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
