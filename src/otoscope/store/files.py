"""Files of a run directory: their names, the manifest's form, and errors in words."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from otoscope._version import __version__
from otoscope.errors import RunDirectoryError
from otoscope.records import (
    Json,
)
from otoscope.store import shapes
from otoscope.store.lines import parse_line

FORMAT = 1
OLDEST_FORMAT = 1
"""What this version still reads."""
MANIFEST, ANSWERS, VERDICTS = "manifest.json", "answers.jsonl", "verdicts.jsonl"
SAMPLES, SUMMARY = "samples.jsonl", "summary.json"


def read_manifest(path: Path) -> Json:
    """Read a manifest. Raises ``RunDirectoryError`` when it is none, or of a format that is not read."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from None
    try:
        manifest = parse_line(content)
    except (ValueError, TypeError):
        what = "it holds no JSON object, or not all of one" if content.strip() else "it is empty"
        raise _unreadable(path, what) from None
    version, run_id = manifest.get("format"), manifest.get("run_id")
    if type(version) is not int or not isinstance(run_id, str):
        raise RunDirectoryError(
            f"{path}: cannot be read: it must name a format and a run_id, but has {version!r:.80} and "
            f"{run_id!r:.80}. Restore it from a copy"
        )
    if version > FORMAT:
        raise RunDirectoryError(
            f"{path}: has run format {version}, and this is otoscope {__version__}, which reads up to "
            f"{FORMAT}. It was written by otoscope {manifest.get('package_version', '?')}: use that version "
            "or a newer one"
        )
    if version < OLDEST_FORMAT:
        raise RunDirectoryError(
            f"{path}: has run format {version}, and this is otoscope {__version__}, which reads none older "
            f"than {OLDEST_FORMAT}. It was written by otoscope {manifest.get('package_version', '?')}: use "
            "that version"
        )
    try:
        shapes.check(manifest, shapes.MANIFEST)
    except TypeError as error:
        raise _unreadable(path, str(error)) from None
    return manifest


def _unreadable(path: Path, why: str) -> RunDirectoryError:
    return RunDirectoryError(
        f"{path}: cannot be read: {why}. Without it the run cannot be used; restore it from a copy"
    )


def run_folders(work_dir: Path, name: str) -> Iterator[Path]:
    """Yield where a new run may lie, named by time and ``name``; the first that is not taken is its place."""
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", name.rpartition("/")[2]).strip("-.")[:60] or "model"
    stem = f"{time.strftime('%Y%m%d-%H%M%S')}-{slug}"
    yield work_dir / stem
    for number in itertools.count(2):
        yield work_dir / f"{stem}-{number}"


def pretty_json(value: Any) -> bytes:
    """Return ``value`` as JSON for people to read. Raises ``ValueError`` for NaN and infinities."""
    return json.dumps(value, indent=1, ensure_ascii=True, allow_nan=False).encode("ascii") + b"\n"


def now() -> str:
    """Return the time in UTC, to the second, as ISO 8601 has it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


@contextlib.contextmanager
def directory_errors(path: Path) -> Iterator[None]:
    """Turn an ``OSError`` into a ``RunDirectoryError`` that names the file and the next step."""
    try:
        yield
    except OSError as error:
        raise RunDirectoryError(
            f"{error.filename or path}: {error.strerror or error}. Nothing that was stored before is lost; "
            "put it right (space, rights, quota), then resume the run"
        ) from None
