"""Files of reports, written whole or not at all."""

from __future__ import annotations

import glob
import hashlib
import os
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from otoscope.lock import Identity


def write_whole(path: Path, blocks: Iterable[bytes]) -> None:
    """Write a file beside its place and rename it there: whatever goes wrong, what was there stays.

    The folder is made where there is none. What a link leads to is written, and what is no file (a device, a
    pipe) is written into. What a killed process left beside it is removed. Raises ``OSError``.
    """
    # Asked of the path as it was given: what /dev/stdout leads to, where it is a pipe, has no name.
    if path.exists() and not path.is_file():
        with path.open("wb") as stream:
            stream.writelines(blocks)
        return
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    here = Identity.of_this_process()
    _sweep(path, here)
    prefix = f"{_prefix(path, here)}{here.pid}-{here.process_start}-"
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=prefix)
    beside = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines(blocks)
        beside.chmod(0o666 & ~_umask())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _prefix(path: Path, here: Identity) -> str:
    """Return how the names of what is written beside a file begin, where this system's processes write it."""
    system = f"{here.host} {here.boot_id} {here.pid_namespace}"
    return f".{path.name}.{hashlib.sha256(system.encode()).hexdigest()[:8]}-"


def _sweep(path: Path, here: Identity) -> None:
    """Remove what processes left that were killed while they wrote a file; those elsewhere may be alive."""
    if not here.can_see(here):
        return
    prefix = _prefix(path, here)
    for left in path.parent.glob(f"{glob.escape(prefix)}*"):
        pid, _, rest = left.name.removeprefix(prefix).partition("-")
        if not (pid.isdecimal() and len(pid) < 10):
            continue
        writer = replace(here, pid=int(pid), process_start=rest.partition("-")[0])
        if not writer.is_alive():
            with suppress(OSError):
                left.unlink()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
