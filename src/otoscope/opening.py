"""Opens a run directory for this process: created or continued, and locked against every other."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from otoscope import embedded
from otoscope.config import URL_FIELDS, Settings, changed_fields, fingerprint
from otoscope.errors import OtoscopeError, RunDirectoryError
from otoscope.judge import PROMPT_SHA256, judge_identity
from otoscope.lock import RunLock
from otoscope.parsing import PARSER_VERSION
from otoscope.records import Json
from otoscope.store import MANIFEST, RunStore


@contextlib.contextmanager
def opened(settings: Settings, about: Json) -> Iterator[tuple[RunStore, RunLock]]:
    """Create or continue the run, locked for this process; ``about`` is what its manifest says of it."""
    path = _run_path(settings)
    requested = _requested(settings)
    try:
        with RunLock(path, take_over=settings.run.take_over) as lock:
            if RunStore.exists(path):
                store = RunStore.open(path)
                _continue(store, settings, requested, about)
            else:
                store = RunStore.create(path, {**about, "fingerprint": requested})
            with store:
                _name_judge(store)
                store.write_manifest()
                store.open_for_writing()
                yield store, lock
    except OtoscopeError as error:
        error.run_path = path
        raise


def peek(settings: Settings) -> RunStore | None:
    """Open, for reading alone, the run that these settings would continue; ``None`` when it would be new.

    Raises ``RunDirectoryError`` as continuing it would.
    """
    path = settings.run.path
    if path is None or not RunStore.exists(path):
        return None
    store = RunStore.open(path)
    _continue(store, settings, _requested(settings), {"settings": store.manifest.get("settings")})
    _name_judge(store)
    return store


def _requested(settings: Settings) -> Json:
    return fingerprint(
        settings,
        judge_prompt_sha256=PROMPT_SHA256,
        parser_version=PARSER_VERSION,
        weights=embedded.hashes(),
    )


def _run_path(settings: Settings) -> Path:
    """Return where the run lives, the folder made. Raises ``RunDirectoryError``."""
    path = settings.run.path
    if path is not None and not RunStore.exists(path):
        try:
            entries = list(path.iterdir()) if path.is_dir() else []
        except OSError as error:
            raise RunDirectoryError(f"{path}: cannot be looked into: {error.strerror or error}") from None
        strangers = [entry.name for entry in entries if not entry.name.startswith(".")]
        if strangers:
            raise RunDirectoryError(
                f"{path}: holds {strangers[0]!r}, but no {MANIFEST}: it is no run. Give a new folder"
            )
    try:
        if path is not None:
            path.mkdir(parents=True, exist_ok=True)
            return path
        return _new_folder(settings.run.work_dir, settings.model.name)
    except OSError as error:
        raise RunDirectoryError(
            f"{error.filename}: cannot be made: {error.strerror}. "
            "Give another place with --work-dir or --run-dir"
        ) from None


def _new_folder(work_dir: Path, model: str) -> Path:
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", model.rpartition("/")[2]).strip("-.")[:60] or "model"
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{slug}"
    number = 1
    while True:
        path = work_dir / (name if number == 1 else f"{name}-{number}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            number += 1
        else:
            return path


def _continue(store: RunStore, settings: Settings, requested: Json, about: Json) -> None:
    """Refuse, by name, a changed setting that affects answers or verdicts; else note what is new."""
    manifest = store.manifest
    before = manifest.get("fingerprint") or {}
    if not about:
        # Only judged: what the answers were made with stays as it is.
        requested = {**before, "judge": requested["judge"]}
    changes = {
        name: change
        for name, change in changed_fields(before, requested).items()
        # What no line depends on yet may still be corrected: a mistyped URL must not lock an empty run.
        if store.has_verdicts or (store.has_answers and not name.startswith("judge."))
    }
    refused = {name: change for name, change in changes.items() if name not in settings.run.allow_changed}
    if refused:
        raise RunDirectoryError(_refusal(store.path, refused))
    if changes:
        manifest.setdefault("allowed_changes", []).extend(
            {"field": name, "from": old, "to": new} for name, (old, new) in changes.items()
        )
    if requested["judge"] is None:
        requested = {**requested, "judge": before.get("judge")}
    manifest["fingerprint"] = requested
    kept = {name: value for name, value in about.items() if value or name not in ("label", "tags")}
    manifest.update(kept)
    if not about and settings.judge is not None:
        stored = manifest.setdefault("settings", {})
        stored["judge_model_args"] = settings.stored.get("judge_model_args")


def _refusal(path: Path, refused: Mapping[str, tuple[Any, Any]]) -> str:
    lines = [f"  {name}: was {old!r}, now {new!r}" for name, (old, new) in refused.items()]
    if all(name in URL_FIELDS for name in refused):
        flags = " ".join(f"--allow-changed {name}" for name in refused)
        advice = (
            f"If it is the same model behind another address, go on with the same command and {flags}. "
            "(With --model-revision or --judge-revision the revision is the identity, and the URL is free)"
        )
    elif all(name.startswith("judge.") for name in refused):
        advice = (
            "A run has one judge: verdicts of two would be mixed. Give the old values to go on, or start a "
            "new run with another --run-dir"
        )
    else:
        advice = "Give the old values to go on with this run, or start a new one with another --run-dir"
    what = "\n".join(lines)
    return f"{path}: this run was made with other settings that its numbers depend on:\n{what}\n{advice}"


def _name_judge(store: RunStore) -> None:
    judge = store.manifest["fingerprint"].get("judge")
    store.manifest["judge_id"] = judge_identity(judge) if judge else None
