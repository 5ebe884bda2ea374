"""Loaded by the interpreter of a command under test before anything else: sees its steps, and interferes.

What to do is in the environment, in ``FAULT_PLAN``, as JSON::

    roots   folders: each operation on a file below one is a step, named by operation and relative path
    log     file that gets a line for each step, before it is done
    die     [step, n]: the process is killed by SIGKILL just before it takes that step for the nth time
    tear    [step, n, bytes]: likewise, but so many bytes of that write are done before
    clock   [file, seconds]: as long as the file exists, the clock is off by so many seconds

Only calls of the operating system are seen and changed, none of the package under test. Steps are what the
interpreter's audit events tell (open, mkdir, rename, remove, rmdir, utime) and, as it has none for these,
calls of ``os.write`` and ``os.fsync``. The clock is that of the module ``time``; dates of files are the
kernel's.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

_TOKEN = re.compile(r"[0-9a-f]{16}|torn-[0-9]+|empty-[0-9]+")
_NAMED_BY = {"os.mkdir": 0, "os.rename": 1, "os.remove": 0, "os.rmdir": 0, "os.utime": 0}
_DIR_FD = {"os.mkdir": 2, "os.rename": 3, "os.remove": 1, "os.rmdir": 1, "os.utime": 3}
_HEARD = frozenset({"open", *_NAMED_BY})
_CHANGES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Watch:
    """Counts the steps of this process, and ends it at one."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self._roots = [root + os.sep for root in plan["roots"]]
        self._log = os.open(plan["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT) if "log" in plan else -1
        self._die = plan.get("die")
        self._tear = plan.get("tear")
        self._counts: Counter[str] = Counter()
        self._counting = threading.Lock()
        self._write, self._fsync = os.write, os.fsync
        os.write, os.fsync = self.write, self.fsync  # type: ignore[assignment]
        sys.addaudithook(self.hear)

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Take an audit event for a step, where it is one."""
        if event not in _HEARD:
            return
        if event == "open":
            path, _mode, flags = arguments
            self._step("open" if flags & _CHANGES else "read", path)
        else:
            self._step(event.removeprefix("os."), arguments[_NAMED_BY[event]], arguments[_DIR_FD[event]])

    def write(self, descriptor: int, data: bytes) -> int:
        """Stand for ``os.write``."""
        taken = self._step("write", descriptor)
        if taken is not None and self._tear is not None and taken == self._tear[:2]:
            self._write(descriptor, data[: self._tear[2]])
            _end()
        return self._write(descriptor, data)

    def fsync(self, descriptor: int) -> None:
        """Stand for ``os.fsync``."""
        self._step("fsync", descriptor)
        self._fsync(descriptor)

    def _step(self, operation: str, path: Any, folder: int = -1) -> list[Any] | None:
        name = self._relative(_absolute(path, folder))
        if name is None:
            return None
        step = f"{operation} {_TOKEN.sub('*', name)}"
        with self._counting:
            self._counts[step] += 1
            taken = [step, self._counts[step]]
        if self._log >= 0:
            self._write(self._log, f"{step}\n".encode())
        if taken == self._die:
            _end()
        return taken

    def _relative(self, path: str) -> str | None:
        return next((path[len(root) :] for root in self._roots if path.startswith(root)), None)


def _absolute(path: Any, folder: int) -> str:
    if isinstance(path, int):
        with contextlib.suppress(OSError):
            return str(Path(f"/proc/self/fd/{path}").readlink())
        return ""
    name = os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else ""
    if not name or Path(name).is_absolute():
        return name
    return str(Path(_absolute(folder, -1) if folder >= 0 else Path.cwd()) / name)


def _end() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _shift_clock(switch: str, seconds: float) -> None:
    read, read_ns, to_utc, to_local, to_text = (
        time.time,
        time.time_ns,
        time.gmtime,
        time.localtime,
        time.strftime,
    )

    def shift() -> float:
        return seconds if os.path.exists(switch) else 0  # noqa: PTH110 (called for every look at the clock)

    time.time = lambda: read() + shift()
    time.time_ns = lambda: read_ns() + int(shift() * 1e9)
    time.gmtime = lambda at=None: to_utc(time.time() if at is None else at)
    time.localtime = lambda at=None: to_local(time.time() if at is None else at)
    time.strftime = lambda form, at=None: to_text(form, time.localtime() if at is None else at)


if "FAULT_PLAN" in os.environ:
    _plan = json.loads(os.environ["FAULT_PLAN"])
    if "clock" in _plan:
        _shift_clock(*_plan["clock"])
    if "roots" in _plan:
        Watch(_plan)
