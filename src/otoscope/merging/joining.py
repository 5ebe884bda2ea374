"""A run that holds the lines of others: made whole or not at all, under its lock."""

from __future__ import annotations

import contextlib
import functools
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from otoscope.config import with_judge_of
from otoscope.config.fingerprints import allowed_changes
from otoscope.errors import RunDirectoryError
from otoscope.lock import RENEW_SECONDS, RunLock
from otoscope.merging.overlaps import Owners, owners
from otoscope.merging.selection import Together, together
from otoscope.merging.sources import (
    Source,
    open_source,
    owed,
    refuse_differences,
    refuse_none,
    refuse_other_data,
)
from otoscope.records import Json
from otoscope.runs import Run, load_run, write_results
from otoscope.store import ANSWERS, MANIFEST, SAMPLES, SUMMARY, VERDICTS, RunStore, read_manifest
from otoscope.store.lines import parse_line

_STAGING = ".merging"
"""Where a run is made, within its folder, until all of it is there."""
_FILES = (ANSWERS, VERDICTS, SAMPLES, SUMMARY, MANIFEST)
"""In the order in which they are put in place: without its manifest, a folder is no run."""


@dataclass(frozen=True, slots=True)
class Merged:
    """A run that was made of others."""

    run: Run
    sources: int
    """Number of runs that it was made of."""
    missing: tuple[str, ...]
    """Shards that none of them has, as ``I/N``."""
    unfinished: tuple[tuple[Path, int, int], ...]
    """Runs that owed answers, or verdicts on the others, with both counts."""
    owed: tuple[int, int]
    """The same two counts of the new run, as it was made."""
    shared: int
    """Samples that several runs had something of, joined once."""
    skipped_lines: int
    """Lines of the runs that are torn or foreign, and were left out."""
    standing: bool
    """Whether it was there already, made of the same bytes."""


def merge_runs(
    paths: Sequence[str | Path],
    run_dir: str | Path,
    *,
    partial: bool = False,
    allow_changed: Iterable[str] = (),
    label: str | None = None,
    tags: Mapping[str, str] | None = None,
    take_over: bool = False,
) -> Run:
    """Join runs of one fingerprint, such as those of all shards, into a new run in ``run_dir``.

    ``partial`` allows that shards are missing, ``allow_changed`` that ``model.api_url`` or ``judge.api_url``
    differ. ``label`` and ``tags`` are by default what all runs have in common. ``take_over`` takes the
    folder from another process. The runs are only read. The same call again finds the run as it is, or makes
    it anew where the runs have grown and nothing was added to it. What is unfinished stays owed. Raises
    :class:`otoscope.errors.OtoscopeError`.
    """
    return merge(
        paths,
        run_dir,
        partial=partial,
        allow_changed=allow_changed,
        label=label,
        tags=tags,
        take_over=take_over,
    ).run


def merge(
    paths: Sequence[str | Path],
    run_dir: str | Path,
    *,
    partial: bool = False,
    allow_changed: Iterable[str] = (),
    label: str | None = None,
    tags: Mapping[str, str] | None = None,
    take_over: bool = False,
) -> Merged:
    """Join runs as :func:`merge_runs` does, and return also what is to be told of it."""
    allowed = allowed_changes(tuple(allow_changed))
    place = Path(run_dir).expanduser()
    given = refuse_none([Path(path).expanduser() for path in paths], place)
    with _locked(place, take_over=take_over) as lock, contextlib.ExitStack() as stack:
        earlier = read_manifest(place / MANIFEST) if RunStore.exists(place) else None
        sources: list[Source] = []
        for path in given:
            lock.refuse_writer_of(path)
            source = open_source(path)
            stack.callback(source.store.close)
            sources.append(source)
        changes = refuse_differences(sources, allowed)
        refuse_other_data(sources)
        chosen = together(sources, partial=partial)
        # The same run, whichever way its sources were listed.
        sources.sort(key=_place_in_line)
        taken = owners(sources)
        merged_from = [source.named(place) for source in sources]
        if earlier is not None and _same(earlier.get("merged_from"), merged_from):
            run, owes, standing = load_run(place), (0, 0), True
        else:
            kept = {} if earlier is None else _renewed(earlier, merged_from, place)
            about = _about(sources, chosen, label, tags)
            manifest = {**about, **kept, **_allowed(sources, changes), "merged_from": merged_from}
            run, owes = _made(place, manifest, sources, chosen, taken, lock)
            standing = False
        unfinished = [(source.path, *owed(source.store, source.samples.values())) for source in sources]
        return Merged(
            run=run,
            sources=len(sources),
            missing=chosen.missing,
            unfinished=tuple(one for one in unfinished if any(one[1:])),
            owed=owes,
            shared=taken.shared,
            skipped_lines=sum(source.store.skipped_lines for source in sources),
            standing=standing,
        )


@contextlib.contextmanager
def _locked(place: Path, *, take_over: bool) -> Iterator[RunLock]:
    """Make the folder of the new run and lock it; where nothing comes of it, it goes again."""
    try:
        made = not place.exists()
        place.mkdir(parents=True, exist_ok=True)
        if not RunStore.exists(place):
            names = {entry.name for entry in place.iterdir()}
            strangers = sorted(name for name in names if not name.startswith("."))
            if strangers and not (_STAGING in names and set(strangers) <= set(_FILES)):
                raise RunDirectoryError(
                    f"{place}: holds {strangers[0]!r}, but no {MANIFEST}: it is no run. Give a new folder"
                )
    except OSError as error:
        raise RunDirectoryError(
            f"{error.filename or place}: cannot be made: {error.strerror or error}. Give another --run-dir"
        ) from None
    try:
        with RunLock(place, take_over=take_over) as lock:
            _sweep(place)
            yield lock
    finally:
        if made:
            with contextlib.suppress(OSError):
                place.rmdir()  # refused by the system once there is something in it


def _sweep(place: Path) -> None:
    """Remove what a merge that was cut off has left. Whoever calls this holds the lock."""
    if not (place / _STAGING).exists():
        return
    if not RunStore.exists(place):
        for name in _FILES:
            (place / name).unlink(missing_ok=True)
    shutil.rmtree(place / _STAGING, ignore_errors=True)


def _place_in_line(source: Source) -> tuple[str, str, str]:
    # Array jobs are begun within the same second.
    shard = str(source.selection.get("shard") or "").rjust(20)
    return str(source.manifest.get("created_at")), shard, source.manifest["run_id"]


def _same(before: object, now: Sequence[Json]) -> bool:
    """Whether a run was made of the same bytes of the same runs, wherever those lie."""
    if not isinstance(before, list):
        return False
    one, other = ([(s.get("run_id"), s.get("sha256")) for s in sources] for sources in (before, now))
    return one == other


def _renewed(earlier: Json, merged_from: Sequence[Json], place: Path) -> Json:
    """Return what a run keeps that is made anew of the same runs.

    Raises ``RunDirectoryError`` where it is another run, or holds what would be lost.
    """
    before = earlier.get("merged_from") or []
    if {source.get("run_id") for source in before} != {source["run_id"] for source in merged_from}:
        too = ", and this run, too, to keep what it holds" if before else ""
        raise RunDirectoryError(
            f"{place}: holds another run already. Give a new folder for the merged run with --run-dir{too}"
        )
    if any(_has_lines_of(place / name, earlier["run_id"]) for name in (ANSWERS, VERDICTS)):
        raise RunDirectoryError(
            f"{place}: was made of these runs, which have changed since, and has answers or verdicts of "
            "its own, which a new merge would lose. Give a new folder with --run-dir, and name this run, too"
        )
    return {name: earlier[name] for name in ("run_id", "created_at") if name in earlier}


def _has_lines_of(file: Path, run_id: str) -> bool:
    try:
        with file.open("rb") as lines:
            return any(_writer_of(line) == run_id for line in lines)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise RunDirectoryError(f"{file}: cannot be read: {error.strerror or error}") from None


def _writer_of(line: bytes) -> object:
    try:
        return parse_line(line).get("run")
    except (ValueError, TypeError):
        return None


def _about(
    sources: Sequence[Source], chosen: Together, label: str | None, tags: Mapping[str, str] | None
) -> Json:
    """Return what the manifest says that the runs have in common, or one of them knows for all."""
    first = sources[0].manifest
    judged = next((source.manifest for source in sources if source.manifest.get("judge_id")), first)
    prints, labels = first.get("fingerprint") or {}, {source.manifest.get("label") for source in sources}
    label = label or (labels.pop() if len(labels) == 1 else None)
    common = dict(tags or _common([source.manifest.get("tags") or {} for source in sources]))
    settings = chosen.settings(with_judge_of(first.get("settings") or {}, judged.get("settings") or {}))
    settings = {name: value for name, value in settings.items() if name not in ("label", "tags")}
    if label is not None:
        settings["label"] = label
    if common:
        settings["tags"] = common
    return {
        "label": label,
        "tags": common,
        "settings": settings,
        **({"dataset": first["dataset"]} if first.get("dataset") else {}),
        "selection": chosen.to_json(),
        "fingerprint": {**prints, "judge": (judged.get("fingerprint") or {}).get("judge")},
        "judge_id": judged.get("judge_id"),
    }


def _common(tags: Sequence[Mapping[str, str]]) -> dict[str, str]:
    first, *others = tags
    return {name: value for name, value in first.items() if all(o.get(name) == value for o in others)}


def _allowed(sources: Sequence[Source], changes: Sequence[Json]) -> Json:
    """Return the differences that were allowed, by the runs and now."""
    before = [change for source in sources for change in source.manifest.get("allowed_changes") or ()]
    found = [*before, *changes]
    return {"allowed_changes": [c for n, c in enumerate(found) if c not in found[:n]]} if found else {}


def _made(
    place: Path, manifest: Json, sources: Sequence[Source], chosen: Together, taken: Owners, lock: RunLock
) -> tuple[Run, tuple[int, int]]:
    """Make the run in a folder within its own, and put it in place once it is whole.

    Returned beside it is what it owes: answers, and verdicts on the others.
    """
    staging = place / _STAGING
    try:
        store = RunStore.create(staging, manifest)
        for name in (ANSWERS, VERDICTS):
            store.write_file(name, _held(_lines(sources, taken, name), lock))
        with RunStore.open(staging) as store:
            summary = write_results(store, chosen.samples)
            owes = owed(store, chosen.samples)
        lock.renew()
        for source in sources:
            lock.refuse_writer_of(source.path)
            source.refuse_changes()
        for name in _FILES:
            (staging / name).replace(place / name)
    except OSError as error:
        raise RunDirectoryError(
            f"{place}: cannot be written: {error.strerror or error}. The runs that were read are as they "
            "were; make room, or give another --run-dir, and repeat the command"
        ) from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return Run(place, summary, changed=True), owes


def _lines(sources: Sequence[Source], taken: Owners, name: str) -> Iterator[bytes]:
    for place, source in enumerate(sources):
        yield from source.store.lines(name, functools.partial(taken.takes, place))


def _held(lines: Iterable[bytes], lock: RunLock) -> Iterator[bytes]:
    """Yield lines, and give the lock's sign of life in between."""
    renewed = time.monotonic()
    for line in lines:
        if time.monotonic() - renewed > RENEW_SECONDS:
            lock.renew()
            renewed = time.monotonic()
        yield line
