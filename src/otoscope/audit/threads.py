"""Work on many files at once: decoding, hashing and numpy leave the interpreter free while they run."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_MOST_THREADS = 32


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the work on the files is. Sizes in bytes."""

    files_done: int
    files: int
    bytes_done: int
    bytes: int


def in_threads(work: Callable[[_Item], _Result], items: Iterable[_Item]) -> Generator[_Result, None, None]:
    """Yield what ``work`` makes of each item, in the order in which they are done.

    What it raises is raised here. Whoever stops iterating, or is interrupted, waits for nothing: no further
    item is begun, and the process can end although a thread waits for a dead network disk.
    """
    source = iter(items)
    taking = threading.Lock()
    stopped = threading.Event()
    done: queue.SimpleQueue[tuple[list[_Result], BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        error: BaseException | None = None
        try:
            while not stopped.is_set():
                with taking:
                    item = next(source)
                done.put(([work(item)], None))
        except StopIteration:
            pass
        except BaseException as raised:
            error = raised
        done.put(([], error))

    # Twice the processors: while one waits for the disk, another decodes.
    count = min(_MOST_THREADS, 2 * _processors())
    threads = [threading.Thread(target=run, daemon=True) for _ in range(count)]
    try:
        for thread in threads:
            thread.start()
        running = len(threads)
        while running:
            results, error = done.get()
            if error is not None:
                raise error
            running -= not results
            yield from results
    finally:
        stopped.set()


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
