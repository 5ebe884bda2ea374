"""A call in a thread that nobody has to wait for to the end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

_T = TypeVar("_T")


def in_thread(call: Callable[[], _T]) -> Future[_T]:
    """Start a call in a thread of its own, and return what will hold its result, or what it raised.

    Python may end while it still goes on, as for a pool's thread it may not: a name lookup knows no timeout.
    """
    future: Future[_T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # whatever it is, it is raised where the result is asked for
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future
