"""Stopping work: how it is asked for, and event loops in which calls that are paid for may end first."""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent import futures
from typing import Any, TypeVar

from otoscope.errors import RunInterruptedError
from otoscope.records import Event
from otoscope.threads import in_thread

STOP_SECONDS, LAST_SECONDS = 9.5, 2.0
"""After the first and after the second request to stop: when nothing more is waited for."""
_LOOK_SECONDS = 0.1
"""Between two looks of a thread that waits: Windows does not wake it for Ctrl-C."""

_T = TypeVar("_T")


class Stop:
    """A request to stop, as a signal makes it. The second one does not wait for calls in flight."""

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self.at_once = False
        self.terminated = False
        self.patient = False
        """Whether calls in flight get all the time that they need."""

    def begin_no_more(self) -> None:
        """Ask to stop once all calls in flight have ended; a signal can still hurry that."""
        self.patient = not self.requested.is_set()
        self.requested.set()

    def request(self, *, terminated: bool = False) -> None:
        """Ask to stop; ``terminated`` tells SIGTERM from Ctrl-C."""
        self.at_once = self.requested.is_set() and not self.patient
        self.patient = False
        self.terminated = self.terminated or terminated
        self.requested.set()

    def heeded(self, tell: Callable[[Event], None]) -> Callable[[Event], None]:
        """Return a listener that ends, at its next event, what goes on in a thread once this is asked for."""

        def listen(event: Event) -> None:
            if self.requested.is_set():
                raise RunInterruptedError("stopped", terminated=self.terminated)
            tell(event)

        return listen


def run_in_loop(main: Coroutine[Any, Any, _T]) -> _T:
    """Run something in an event loop of its own, one that can watch sockets for libcurl."""
    if sys.platform != "win32":
        return asyncio.run(main)
    # Windows' own default cannot.
    if sys.version_info >= (3, 12):
        return asyncio.run(main, loop_factory=asyncio.SelectorEventLoop)
    asyncio.set_event_loop_policy(asyncio.WindowsSelectorEventLoopPolicy())
    return asyncio.run(main)


async def stoppable(work: Callable[[Stop], Coroutine[Any, Any, _T]]) -> _T:
    """Await the work; to be cancelled asks it to stop, a second time to stop at once.

    ``CancelledError`` is raised once the work has ended by itself, or has had its time to.
    """
    stop = Stop()
    task = asyncio.ensure_future(work(stop))
    try:
        # Unlike awaiting the task, this does not cancel it.
        await asyncio.wait([task])
    except asyncio.CancelledError as cancelled:
        await _stopped(task, stop)
        error = task.exception() if task.done() and not task.cancelled() else None
        raise cancelled from (None if isinstance(error, RunInterruptedError) else error)
    return await task


async def _stopped(task: asyncio.Task[Any], stop: Stop) -> None:
    """Ask a task to stop, and wait for it to end; after its time it is cancelled."""
    stop.request()
    seconds = STOP_SECONDS
    while True:
        try:
            await asyncio.wait([task], timeout=seconds)
            break
        except asyncio.CancelledError:
            stop.request()
            seconds = LAST_SECONDS
    if task.cancel():
        await asyncio.wait([task], timeout=LAST_SECONDS)


def run_stoppable(work: Callable[[Stop], Coroutine[Any, Any, _T]]) -> _T:
    """Do the work in an event loop of its own, in a thread of its own where a loop is running already.

    Ctrl-C asks it to stop, a second one to stop at once; ``KeyboardInterrupt`` is raised when it has.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _run_here(work)
    return _run_in_thread(work)


def _run_here(work: Callable[[Stop], Coroutine[Any, Any, _T]]) -> _T:
    # Whoever has a handler of their own, or calls this in another thread, does not want this one.
    on_main = threading.current_thread() is threading.main_thread()
    listens = on_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    interrupts: list[int] = []

    async def main() -> _T:
        task = asyncio.ensure_future(stoppable(work))
        with _cancelled_by_ctrl_c(task, interrupts) if listens else contextlib.nullcontext():
            return await task

    try:
        result = run_in_loop(main())
    except asyncio.CancelledError as cancelled:
        if interrupts:
            raise KeyboardInterrupt from cancelled.__cause__
        raise
    if interrupts:
        raise KeyboardInterrupt
    return result


@contextlib.contextmanager
def _cancelled_by_ctrl_c(task: asyncio.Task[Any], interrupts: list[int]) -> Iterator[None]:
    """Cancel a task at each Ctrl-C, and note it; a third one is ``KeyboardInterrupt`` on the spot.

    What asyncio does by itself, from Python 3.11 on, cancels the first time only.
    """
    loop = asyncio.get_running_loop()

    def heard(number: int, _frame: object) -> None:
        interrupts.append(number)
        if len(interrupts) > 2:
            raise KeyboardInterrupt
        loop.call_soon_threadsafe(task.cancel)

    before = signal.signal(signal.SIGINT, heard)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _run_in_thread(work: Callable[[Stop], Coroutine[Any, Any, _T]]) -> _T:
    """Wait for the work in a thread; whatever ends the wait stops the work, which gets its time to end."""
    started: futures.Future[Callable[[], object]] = futures.Future()

    async def main() -> _T:
        loop = asyncio.get_running_loop()
        task = asyncio.ensure_future(stoppable(work))
        started.set_result(lambda: loop.call_soon_threadsafe(task.cancel))
        return await task

    def cancel(begun: futures.Future[Callable[[], object]]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the work has ended
            begun.result()()

    done = in_thread(lambda: run_in_loop(main()))
    ended_by: BaseException | None = None
    # A little more than the work gets: what cannot be ended by then is left alone.
    for seconds in (math.inf, STOP_SECONDS + 2 * LAST_SECONDS, 3 * LAST_SECONDS):
        try:
            _wait_for(done, seconds)
            break
        except BaseException as error:  # Ctrl-C, or what another handler of a signal raises
            ended_by = error
            started.add_done_callback(cancel)
    if ended_by is not None:
        raise ended_by
    return done.result()


def _wait_for(done: futures.Future[Any], seconds: float) -> None:
    """Block for so many seconds at most. Raises ``CancelledError`` when the blocked task is cancelled.

    It cannot be told in any other way, and from Python 3.11 on that is all that asyncio does at Ctrl-C.
    """
    blocked = asyncio.current_task()
    before = _cancellings(blocked)
    deadline = time.monotonic() + seconds
    while not done.done() and time.monotonic() < deadline:
        futures.wait([done], timeout=_LOOK_SECONDS)
        if _cancellings(blocked) > before:
            raise asyncio.CancelledError


def _cancellings(task: asyncio.Task[Any] | None) -> int:
    """Return how often a task was asked to end; before Python 3.11 that is not known."""
    if sys.version_info >= (3, 11) and task is not None:
        return task.cancelling()
    return 0
