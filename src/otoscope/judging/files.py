"""Answers that were made elsewhere become a run, which is then judged like any other."""

from __future__ import annotations

import hashlib
from pathlib import Path

from otoscope.errors import DatasetError, RunDirectoryError
from otoscope.exchange import Findings
from otoscope.importing import ImportSettings, import_files
from otoscope.records import canonical_digest
from otoscope.store import MANIFEST, RunStore, read_manifest


def run_of_file(
    file: Path,
    *,
    data: Path | None = None,
    run_dir: str | Path | None = None,
    work_dir: str | Path | None = None,
) -> tuple[Path, Findings]:
    """Make a run of a file of answers, and return it with what is to be told of the file.

    Without ``run_dir`` it gets a name made of the file's bytes and the data's place, so that the same call
    finds the run that is there. Raises ``ConfigError``, ``DatasetError``, and ``RunDirectoryError``.
    """
    try:
        sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        raise DatasetError(f"{file}: cannot be read: {error.strerror or error}") from None
    about = canonical_digest([sha256, None if data is None else str(data.resolve())])
    path = Path(run_dir or Path(work_dir or "outputs") / f"{file.stem}-{about[:12]}").expanduser()
    if RunStore.exists(path):
        told = read_manifest(path / MANIFEST).get("imported") or []
        if [one.get("sha256") for one in told] != [sha256]:
            raise RunDirectoryError(f"{path}: holds a run, but not of {file} as it is. Give a new folder")
        return path, Findings()
    return path, import_files(ImportSettings(files=[file], data=data, run_dir=path)).findings
