"""The runs that are joined, opened for reading alone, and what keeps them from being one."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from otoscope.config import URL_FIELDS, changed_fields
from otoscope.errors import ConfigError, RunDirectoryError
from otoscope.records import Json, Sample
from otoscope.runs import judged_orders
from otoscope.store import ANSWERS, MANIFEST, SAMPLES, VERDICTS, RunStore

_BLOCK = 1 << 20
_READ = (MANIFEST, ANSWERS, VERDICTS, SAMPLES)


@dataclass(frozen=True, slots=True)
class Source:
    """One run that is joined to others."""

    path: Path
    store: RunStore
    samples: Mapping[str, Sample]
    """Its samples, by key."""
    state: Mapping[str, tuple[int, int]]
    """Size and mtime (ns) of its files when it was opened."""

    @property
    def manifest(self) -> Json:
        """What its manifest says."""
        return self.store.manifest

    @property
    def selection(self) -> Mapping[str, Any]:
        """What its manifest says of the choice of its samples."""
        return self.manifest.get("selection") or {}

    def named(self, place: Path) -> Json:
        """Return what the manifest of a run at ``place`` says of this one. Raises ``RunDirectoryError``."""
        names = ("answers_from", "merged_from")
        return {
            "run_id": self.manifest["run_id"],
            "path": os.path.relpath(self.path.resolve(), place.resolve()),
            "sha256": {name: _sha256(self.path / name) for name in (ANSWERS, VERDICTS)},
            "samples": len(self.samples),
            **({"shard": self.selection["shard"]} if self.selection.get("shard") else {}),
            **{name: self.manifest[name] for name in names if self.manifest.get(name)},
        }

    def refuse_changes(self) -> None:
        """Raise ``RunDirectoryError`` where a file is no longer what it was when the run was opened."""
        now = state_of(self.path)
        if changed := [name for name in _READ if now.get(name) != self.state.get(name)]:
            raise RunDirectoryError(
                f"{self.path}: was written to while it was read ({', '.join(changed)}). Wait until nobody "
                "works on it, then repeat the command"
            )


def owed(store: RunStore, samples: Iterable[Sample]) -> tuple[int, int]:
    """Return how many answers, and verdicts on the others, a resume of a run would owe."""
    manifest = store.manifest
    plan = store.plan(
        list(samples),
        judged_orders(manifest),
        manifest.get("judge_id"),
        clip_changed=_unchanged,
        mended=_unchanged,
    )
    return len(plan.answers), len(plan.verdicts)


def _unchanged(*_: object) -> bool:
    return False


def open_source(path: Path) -> Source:
    """Open a run that is to be joined. Raises ``RunDirectoryError``, also for one that cannot be."""
    state = state_of(path)
    store = RunStore.open(path)
    if reason := _why_not(store.manifest):
        store.close()
        raise RunDirectoryError(f"{path}: cannot be merged: {reason}")
    return Source(path, store, {sample.key: sample for sample in store.samples()}, state)


def state_of(path: Path) -> dict[str, tuple[int, int]]:
    """Return size and mtime (ns) of each of a run's files that is there. Raises ``RunDirectoryError``."""
    state: dict[str, tuple[int, int]] = {}
    for name in _READ:
        try:
            found = (path / name).stat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise RunDirectoryError(f"{path / name}: cannot be read: {error.strerror or error}") from None
        state[name] = (found.st_size, found.st_mtime_ns)
    return state


def _why_not(manifest: Mapping[str, Any]) -> str | None:
    if manifest.get("withheld"):
        return "it was shared without its texts, and what stands for them differs from bundle to bundle"
    if manifest.get("imported") or manifest.get("unjoined"):
        return "it was made of files. Give all the files to one 'otoscope import', or one 'otoscope judge'"
    return None


def refuse_differences(sources: Sequence[Source], allowed: Iterable[str]) -> list[Json]:
    """Return the allowed differences of the runs' fingerprints, as manifests have them.

    Raises ``RunDirectoryError`` that names every other one, with both values, and the way on.
    """
    allowed = frozenset(allowed)
    waved: list[Json] = []
    told: list[str] = []
    refused: set[str] = set()
    for other, one, changes in _compared(sources):
        waved += (
            {"field": name, "from": was, "to": now} for name, (was, now) in changes.items() if name in allowed
        )
        differ = {name: values for name, values in changes.items() if name not in allowed}
        refused |= differ.keys()
        told += (
            f"  {name}: {was!r} in {one.path}, {now!r} in {other.path}" for name, (was, now) in differ.items()
        )
    if not refused:
        return waved
    lines = ["these runs were made with different settings, which their numbers depend on:", *told]
    if refused <= set(URL_FIELDS):
        roles = " and ".join(sorted(name.partition(".")[0] for name in refused))
        flags = " ".join(f"--allow-changed {name}" for name in sorted(refused))
        lines.append(f"If it is the same {roles} behind another address, add {flags} to the command")
    else:
        lines.append(
            "One run has one model, prompt and judge: merge those that were made alike. Others can be set "
            "side by side with 'otoscope compare'"
        )
    raise RunDirectoryError("\n".join(lines))


def _compared(
    sources: Sequence[Source],
) -> Iterator[tuple[Source, Source, dict[str, tuple[Any, Any]]]]:
    """Yield each run with the first that was made, or judged, and how it differs from that."""
    first: dict[str, Source] = {}
    for source in sources:
        prints = source.manifest.get("fingerprint") or {}
        for part in ("model", "prompt", "judge"):
            if not prints.get(part):
                continue
            one = first.setdefault(part, source)
            before = one.manifest["fingerprint"][part]
            if changes := changed_fields({part: before}, {part: prints[part]}):
                yield source, one, changes


def refuse_other_data(sources: Sequence[Source]) -> None:
    """Raise ``RunDirectoryError`` where runs are about different data, or know a sample differently."""
    first = sources[0]
    for source in sources[1:]:
        one, other = ((run.manifest.get("dataset") or {}).get("digest") for run in (first, source))
        if one != other:
            raise RunDirectoryError(
                f"these runs are about different data: the records' SHA-256 is {one} in {first.path}, and "
                f"{other} in {source.path}. Make them anew with the same Chat_meta.json"
            )
    known: dict[str, Source] = {}
    for source in sources:
        for key, sample in source.samples.items():
            other_source = known.setdefault(key, source)
            if other_source.samples[key].digest != sample.digest:
                raise RunDirectoryError(
                    f"{source.path}: knows the sample {key!r} by another record than {other_source.path}. "
                    "Merge runs of the same data"
                )


def _sha256(file: Path) -> str | None:
    digest = hashlib.sha256()
    try:
        with file.open("rb") as content:
            while block := content.read(_BLOCK):
                digest.update(block)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunDirectoryError(f"{file}: cannot be read: {error.strerror or error}") from None
    return digest.hexdigest()


def refuse_none(paths: Sequence[Path], place: Path) -> list[Path]:
    """Return each run once. Raises ``ConfigError`` where there is none, or the new run is one of them."""
    if not paths:
        raise ConfigError("nothing to merge: give the runs of all shards")
    once = {path.resolve(): path for path in paths}
    if place.resolve() in once:
        raise ConfigError(f"{place}: is where the merged run is to be made, and one of those to merge, too")
    return list(once.values())
