"""Answers that were made elsewhere become a run, which is then judged like any other.

A file has one run, which is found again by the file's place. When the file has changed, or how it is to be
read, its run gets the answers anew and keeps its verdicts: each is bound to the text that it is about, so
that only what is new is judged. A new run takes over the verdicts of one that was made of the same bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path

from otoscope.config import with_judge_of
from otoscope.errors import DatasetError, RunDirectoryError
from otoscope.exchange import Findings
from otoscope.importing import ImportSettings, import_files
from otoscope.lock import RunLock
from otoscope.records import Json, canonical_digest
from otoscope.store import ANSWERS, MANIFEST, SAMPLES, VERDICTS, RunStore, read_manifest
from otoscope.store.lines import line_bytes, parse_line

_MADE_OF = "answers_file"
"""The manifest's part that says which file a run was made of, and how that was read."""


@dataclass(frozen=True, slots=True)
class FileRun:
    """The run of a file of answers."""

    path: Path
    """Where it lies, or on trial would lie."""
    lies_in: Path
    """Where it can be looked at: on trial elsewhere, unless it is there already."""
    findings: Findings
    """What is to be told of the file."""


def file_sha256(file: Path) -> str:
    """Return the SHA-256 (hex) of a file. Raises ``DatasetError``."""
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        raise DatasetError(f"{file}: cannot be read: {error.strerror or error}") from None


def run_of_file(settings: ImportSettings, *, take_over: bool = False, trial: Path | None = None) -> FileRun:
    """Make the run of one file of answers, renew it, or find it as it has to be.

    Without ``run_dir`` it lies in ``work_dir`` under a name made of the file's place. ``trial`` is a folder
    where it is made instead, when it would have to be; nothing else is written then. ``take_over`` takes the
    lock of a run that has to be renewed. Raises ``ConfigError``, ``DatasetError``, and ``RunDirectoryError``.
    """
    (file,) = settings.files
    made_of = _made_of(settings, file)
    path = (settings.run_dir or settings.work_dir / _name(file)).expanduser()
    there = RunStore.exists(path)
    if there:
        known = read_manifest(path / MANIFEST).get(_MADE_OF) or {}
        if known == made_of:
            return FileRun(path, path, Findings())
        if known.get("name") != file.name:
            raise RunDirectoryError(f"{path}: holds a run, but not of {file}. Give a new folder")
    earlier = path if there else None if settings.run_dir else _of_the_same_bytes(path.parent, made_of)
    with contextlib.ExitStack() as stack:
        if trial is not None:
            staging = trial / path.absolute().name
        else:
            place = path.absolute()
            staging = place.with_name(f".{place.name}.from-file-{secrets.token_hex(4)}")
            stack.callback(shutil.rmtree, staging, ignore_errors=True)
        findings = import_files(replace(settings, run_dir=staging)).findings
        if there and trial is None:
            stack.enter_context(RunLock(path, take_over=take_over))
        _finish(staging, made_of, earlier, same_run=there)
        if trial is not None:
            return FileRun(path, staging, findings)
        if there:
            _renew(path, staging)
        else:
            _move(staging, path)
    return FileRun(path, path, findings)


def _made_of(settings: ImportSettings, file: Path) -> Json:
    places = ("files", "run_dir", "work_dir")
    how = {f.name: getattr(settings, f.name) for f in fields(settings) if f.name not in places}
    if settings.data is not None:
        how["data"] = str(settings.data.resolve())
    return {"name": file.name, "sha256": file_sha256(file), "read_as": canonical_digest(how)}


def _name(file: Path) -> str:
    return f"{file.stem}-{canonical_digest(str(file.resolve()))[:12]}"


def _of_the_same_bytes(folder: Path, made_of: Json) -> Path | None:
    """Return a run in the folder that was judged and made of a file of the same bytes, whatever its name."""
    for place in sorted(folder.glob(f"*/{MANIFEST}")):
        with contextlib.suppress(RunDirectoryError):
            manifest = read_manifest(place)
            if (manifest.get(_MADE_OF) or {}).get("sha256") == made_of["sha256"] and manifest.get("judge_id"):
                return place.parent
    return None


def _finish(staging: Path, made_of: Json, earlier: Path | None, *, same_run: bool) -> None:
    """Give a run that was just imported the judge and the verdicts of an earlier one; or be that very run."""
    store = RunStore(staging)
    store.manifest = manifest = read_manifest(staging / MANIFEST)
    manifest[_MADE_OF] = made_of
    if earlier is not None and manifest.get("judge_id") is not None:
        if same_run:
            raise RunDirectoryError(
                f"{earlier}: holds verdicts that {made_of['name']} told before it was changed. Give a new "
                "folder with --run-dir"
            )
    elif earlier is not None:
        made, known = manifest["run_id"], read_manifest(earlier / MANIFEST)
        kept = ("judge_id", "allowed_changes", *(("run_id", "created_at") if same_run else ()))
        manifest.update({name: known[name] for name in kept if name in known})
        manifest["fingerprint"] = {**manifest["fingerprint"], "judge": known["fingerprint"].get("judge")}
        manifest["settings"] = with_judge_of(manifest["settings"], known.get("settings") or {})
        for file, run_id in ((staging / ANSWERS, made), (earlier / VERDICTS, known["run_id"])):
            if file.exists():
                store.write_file(file.name, _lines_of(file, run_id, called=manifest["run_id"]))
    store.write_manifest()


def _lines_of(file: Path, run_id: str, *, called: str) -> Iterator[bytes]:
    """Yield the lines of a run under another id; those that are torn or foreign counted nowhere."""
    with file.open("rb") as lines:
        for data in lines:
            try:
                line = parse_line(data)
            except (ValueError, TypeError):
                continue
            if line.get("run") == run_id:
                yield line_bytes({**line, "run": called})


def _renew(path: Path, staging: Path) -> None:
    """Put the answers of the new state of a run into its place. Whoever calls this holds the lock."""
    run = RunStore(path)
    for name in (ANSWERS, SAMPLES):
        run.write_file(name, (staging / name).read_bytes())
    # Last: what it says is then true.
    run.manifest = read_manifest(staging / MANIFEST)
    run.write_manifest()


def _move(staging: Path, path: Path) -> None:
    try:
        if path.is_dir():
            path.rmdir()
        staging.rename(path)
    except OSError as error:
        raise RunDirectoryError(
            f"{path}: cannot be made: {error.strerror or error}. "
            "Give another place with --work-dir or --run-dir"
        ) from None
