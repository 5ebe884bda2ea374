"""Files of reports, written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path


def write_whole(path: Path, blocks: Iterable[bytes]) -> None:
    """Write a file beside its place and rename it there: whatever goes wrong, what was there stays.

    The folder is made where there is none. What a link leads to is written, and what is no file (a device, a
    pipe) is written into. Raises ``OSError``.
    """
    # Asked of the path as it was given: what /dev/stdout leads to, where it is a pipe, has no name.
    if path.exists() and not path.is_file():
        with path.open("wb") as stream:
            stream.writelines(blocks)
        return
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    beside = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines(blocks)
        beside.chmod(0o666 & ~_umask())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
