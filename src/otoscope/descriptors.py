"""Files by their descriptors, in the same way on every system."""

from __future__ import annotations

import os
import sys
import threading

BINARY: int = getattr(os, "O_BINARY", 0)
"""For each ``os.open``: without it, Windows changes the ends of lines."""

_SEEKING = threading.Lock()


def read_at(descriptor: int, size: int, offset: int) -> bytes:
    """Return ``size`` bytes from ``offset`` on, fewer only at the file's end. Raises ``OSError``.

    Several threads may read from one descriptor. Its position may move, so nobody else may rely on that.
    """
    block = b""
    while more := _read_some(descriptor, size - len(block), offset + len(block)):
        block += more
    return block


def _read_some(descriptor: int, size: int, offset: int) -> bytes:
    if hasattr(os, "pread"):
        block: bytes = os.pread(descriptor, size, offset)
        return block
    # Windows has no such call.
    with _SEEKING:
        os.lseek(descriptor, offset, os.SEEK_SET)
        return os.read(descriptor, size)


if sys.platform == "win32":
    import msvcrt

    def try_to_lock(descriptor: int) -> bool:
        """Lock an open file against other processes until it is closed; returns whether it was free."""
        os.lseek(descriptor, 0, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return False
        return True

else:
    import fcntl

    def try_to_lock(descriptor: int) -> bool:
        """Lock an open file against other processes until it is closed; returns whether it was free."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
