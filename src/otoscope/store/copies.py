"""A run over a copy of another run's answers, for another judge: made, and renewed when those change."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from otoscope.config import with_judge_of
from otoscope.errors import RunDirectoryError
from otoscope.records import Json
from otoscope.store.files import ANSWERS, MANIFEST, directory_errors, read_manifest
from otoscope.store.lines import parse_line, sample_to_line
from otoscope.store.run_store import RunStore

_BLOCK = 1 << 20


def answers_digest(run: Path) -> str | None:
    """Return the SHA-256 (hex) of a run's ``answers.jsonl``, or ``None`` where there is none.

    Raises ``RunDirectoryError``.
    """
    digest = hashlib.sha256()
    with directory_errors(run / ANSWERS):
        try:
            for block in _blocks(run):
                digest.update(block)
        except FileNotFoundError:
            return None
    return digest.hexdigest()


def copy_run(source: Path, path: Path) -> None:
    """Make ``path`` a run over a byte-for-byte copy of the answers of ``source``, with no judge yet.

    Where it is one already, answers that changed since are copied anew, and its verdicts stay: those about
    a text that is no longer there do not count. Every file is renamed into place, and a call that was cut
    off at any moment is made good by the next one. Whoever calls this holds the lock of ``path``.

    Raises ``RunDirectoryError``, also where ``path`` holds another run, or answers of its own.
    """
    origin, copy = read_manifest(source / MANIFEST), RunStore(path)
    answered = RunStore(source)
    answered.manifest = origin
    if not RunStore.exists(path):
        answered_by = {**(origin.get("fingerprint") or {}), "judge": None}
        copy = RunStore.create(
            path, {**_about(origin), "fingerprint": answered_by, "answers_from": _named(origin, source, path)}
        )
    copy.manifest = read_manifest(path / MANIFEST)
    if is_current_copy(source, path):
        return
    _check_own_lines(copy, source)
    samples = answered.samples()
    hashed = hashlib.sha256()
    copy.write_file(ANSWERS, _hashed(source, hashed))
    copy.write_samples(map(sample_to_line, samples))
    # Last: what it says is then true.
    settings = with_judge_of(origin.get("settings") or {}, copy.manifest.get("settings") or {})
    named = _named(origin, source, path, hashed.hexdigest())
    copy.manifest.update({**_about(origin), "settings": settings, "answers_from": named})
    copy.write_manifest()


def is_current_copy(source: Path, path: Path) -> bool:
    """Whether the run ``path`` holds the answers of ``source`` as they are now.

    Raises ``RunDirectoryError`` where it holds no copy of them at all.
    """
    recorded = read_manifest(path / MANIFEST).get("answers_from") or {}
    if recorded.get("run_id") != read_manifest(source / MANIFEST)["run_id"]:
        raise RunDirectoryError(
            f"{path}: holds a run that is no copy of {source}. Give a new folder for the copy with --run-dir"
        )
    digest = answers_digest(source)
    return digest is not None and digest == recorded.get("sha256") == answers_digest(path)


def _about(origin: Json) -> Json:
    """Return what a run's manifest says of its answers."""
    names = ("label", "tags", "settings", "dataset", "selection", "imported")
    return {name: origin[name] for name in names if name in origin}


def _named(origin: Json, source: Path, path: Path, sha256: str | None = None) -> Json:
    """Return what a copy's manifest says of its source. Without a SHA-256 nothing has been copied yet."""
    named: Json = {
        "run_id": origin["run_id"],
        "sha256": sha256,
        "path": os.path.relpath(source.resolve(), path.resolve()),
    }
    named.update({name: origin[name] for name in ("answers_from", "merged_from") if origin.get(name)})
    return named


def _check_own_lines(copy: RunStore, source: Path) -> None:
    """Refuse to renew a copy in which answers were asked for after it was made: they were paid for."""
    with directory_errors(copy.path / ANSWERS):
        try:
            with (copy.path / ANSWERS).open("rb") as file:
                own = any(_run_of(line) == copy.manifest["run_id"] for line in file)
        except FileNotFoundError:
            return
    if own:
        raise RunDirectoryError(
            f"{copy.path}: the answers of {source} have changed since they were copied here, and this run "
            "has answers of its own, which a new copy would lose. Give a new folder with --run-dir"
        )


def _run_of(line: bytes) -> object:
    try:
        return parse_line(line).get("run")
    except (ValueError, TypeError):
        return None


def _blocks(run: Path) -> Iterator[bytes]:
    with (run / ANSWERS).open("rb") as file:
        while block := file.read(_BLOCK):
            yield block


def _hashed(run: Path, digest: hashlib._Hash) -> Iterator[bytes]:
    for block in _blocks(run):
        digest.update(block)
        yield block
