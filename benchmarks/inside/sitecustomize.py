"""Loaded by the interpreter of a command that is watched, before anything else: tells what is inside of it.

What to do is in the environment, in ``WATCH``, as JSON::

    log     file that gets a line of JSON every so many seconds, as long as an event loop runs
    every   seconds between two lines
    file    a file of lines that the command appends to: its progress
    census  lines of it from which on the objects in memory are counted, once; nothing is told afterwards,
            since counting takes memory itself

A line says: ``lines`` of the file so far, ``rss`` (bytes), ``descriptors``, ``threads``, ``tasks``, and the
last one ``objects``: of each type the number, and the bytes with those of the plain values that they hold.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any


class Watch:
    """Looks at this process from within its event loop."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self._log = Path(plan["log"])
        self._every = plan["every"]
        self._file = Path(plan["file"])
        self._census = plan["census"]
        self._counted = False
        self._read = self._lines = 0
        self._run = asyncio.BaseEventLoop.run_forever

    def run_forever(self, loop: asyncio.BaseEventLoop) -> None:
        """Stand for the method of that name."""
        # At its end a loop runs once more, for what is left in it.
        if not self._counted:
            loop.call_soon(self._look, loop)
        self._run(loop)

    def _look(self, loop: asyncio.BaseEventLoop) -> None:
        status = dict(
            line.split(":", 1) for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        )
        seen: dict[str, Any] = {
            "lines": self._progress(),
            "rss": int(status["VmRSS"].split()[0]) * 1024,
            # One of them is the folder that is being listed.
            "descriptors": len(os.listdir("/proc/self/fd")) - 1,  # noqa: PTH208 (names alone)
            "threads": int(status["Threads"]),
            "tasks": len(asyncio.all_tasks(loop)),
        }
        if self._lines >= self._census:
            self._counted = True
            seen["objects"] = census()
        with self._log.open("a", encoding="utf-8", newline="\n") as log:
            log.write(json.dumps(seen) + "\n")
        if not self._counted:
            loop.call_later(self._every, self._look, loop)

    def _progress(self) -> int:
        if self._file.exists():
            with self._file.open("rb") as file:
                file.seek(self._read)
                content = file.read()
            self._read += len(content)
            self._lines += content.count(b"\n")
        return self._lines


def census() -> dict[str, tuple[int, int]]:
    """Return of each type the number of its objects, and their bytes; a value in several counts once."""
    counts: defaultdict[str, int] = defaultdict(int)
    sizes: defaultdict[str, int] = defaultdict(int)
    known: set[int] = set()
    for one in gc.get_objects():
        name = f"{type(one).__module__}.{type(one).__qualname__}"
        counts[name] += 1
        held = [one]
        while held:
            value = held.pop()
            sizes[name] += sys.getsizeof(value)
            # What the collector does not track, such as texts, is found at those that hold it.
            for inner in gc.get_referents(value):
                if not gc.is_tracked(inner) and id(inner) not in known:
                    known.add(id(inner))
                    held.append(inner)
    return {name: (counts[name], sizes[name]) for name in counts}


if "WATCH" in os.environ:
    # Taken out, so that a process which this one starts is not watched as well.
    _watch = Watch(json.loads(os.environ.pop("WATCH")))

    def _run_forever(self: asyncio.BaseEventLoop) -> None:
        _watch.run_forever(self)

    asyncio.BaseEventLoop.run_forever = _run_forever  # type: ignore[method-assign]
