"""A key in a file of its own, which no list of processes and no shell's history shows."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from otoscope.errors import ConfigError

MOST_BYTES = 1 << 16
"""Above any key, and above any certificate that was meant to be one."""
_UTF_8_MARK = "\ufeff"


def read_key(file: Path, flag: str) -> str:
    """Return the key that a file holds: its one line, without blanks around it.

    Raises ``ConfigError`` that names flag and file, and shows nothing of what is in it.
    """
    try:
        with file.open("rb") as opened:
            content = opened.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{flag}: {file}: cannot be read: {error.strerror or error}") from None
    except ValueError:
        raise ConfigError(f"{flag}: {str(file)!r} is no name of a file") from None
    try:
        lines = content.decode("utf-8").removeprefix(_UTF_8_MARK).split("\n")
    except UnicodeDecodeError:
        lines = []
    key, *others = (line.strip() for line in lines or [""])
    if any(others):
        why = "holds more than one line"
    elif len(content) > MOST_BYTES or not lines or not (key.isprintable() and key.isascii()):
        why = "is not text with a key on its first line"
    elif not key:
        why = "is empty, or its first line is"
    else:
        return key
    raise ConfigError(f"{flag}: {file}: {why}. Write the key alone into it, on one line")


def open_to_others(file: Path) -> bool:
    """Whether others than its owner may read a file. No where that cannot be told, as on Windows."""
    try:
        status = file.stat()
    except OSError:
        return False
    return os.name == "posix" and stat.S_ISREG(status.st_mode) and bool(status.st_mode & 0o077)
