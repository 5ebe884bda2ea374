"""A call in a thread that nobody has to wait for to the end."""

from __future__ import annotations

import threading
from asyncio import CancelledError
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

_T = TypeVar("_T")


def in_thread(call: Callable[[], _T]) -> Future[_T]:
    """Start a call in a thread of its own, and return what will hold its result, or what it raised.

    Python may end while it still goes on, as for a pool's thread it may not: a name lookup knows no timeout.
    """
    future: Future[_T] = Future()
    threading.Thread(target=settle, args=(future, call), daemon=True).start()
    return future


def settle(future: Future[_T], call: Callable[[], _T]) -> None:
    """Carry a call out, and put into the future what it returns or raises."""
    try:
        future.set_result(call())
    except (StopIteration, CancelledError) as error:
        # Which would be taken for what they mean to whoever waits.
        future.set_exception(RuntimeError(f"{type(error).__name__}: {error}"))
    except BaseException as error:  # whatever it is, it is raised where the result is asked for
        future.set_exception(error)
