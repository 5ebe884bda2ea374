"""Batches of questions, put to a model in Python by threads of this process."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from otoscope.backends.python_model import AudioQuestion, Built, PythonModel, one
from otoscope.errors import EndpointError, OtoscopeError, Role
from otoscope.records import Failure, FailureKind, Reply
from otoscope.threads import settle

HUNG_LIMIT = 3
"""Calls in a row that do not come back in time, at which the model is given up: each may hold a thread."""
HUNG_IN_ALL = 12
"""Likewise, however many came back in between."""
_T = TypeVar("_T")


class Workers(Protocol):
    """Whoever puts batches to a model."""

    batch: int
    """Questions in a batch at most."""
    calls: int
    """Batches at a time."""

    async def start(self) -> None:
        """Build the model. Raises ``EndpointError`` when it cannot be."""

    async def call(self, batch: Sequence[AudioQuestion]) -> Sequence[Reply | Failure]:
        """Return what became of each question, in their order. ``EndpointError`` when nothing more can be."""

    async def close(self) -> None:
        """Let go of the model."""


class Threads:
    """Threads that put batches to one model, which the first of them builds.

    A model that is ``async`` gets a thread with an event loop of its own, one that takes batches a single
    thread, and any other as many as it may be called at a time. A call that does not return in time is left
    to its thread; no other call gets into the same model as long as it may still be in there.
    """

    def __init__(self, model: PythonModel) -> None:
        settings = model.settings
        self._model = model
        self._role: Role = settings.role
        self._built: Built | None = None
        self.batch, self.calls = (settings.calls, 1) if model.batched else (1, settings.calls)
        self._free: list[_Caller] = [_Caller()]
        self._active = 0
        """Calls that are in the model, and in time."""
        self._late: dict[asyncio.Future[Any], _Caller] = {}
        """Calls that did not return in time, and may still be in the model."""
        self._left = asyncio.Condition()
        """Told when a call has left the model, or is late."""
        self._loop: _Loop | None = _Loop() if model.asynchronous else None
        self._hung = self._hung_in_all = 0
        self._telling: asyncio.Future[None] | None = None

    async def start(self) -> None:
        """Build the model. Raises ``EndpointError`` when it cannot be."""
        if self._built is None:
            self._built = await self._build(self._free[0])

    async def _build(self, caller: _Caller) -> Built:
        try:
            return await asyncio.wrap_future(caller.submit(self._model.build))
        except (asyncio.CancelledError, OtoscopeError):
            raise
        except BaseException as error:
            settings = self._model.settings
            failure = Built(settings, lambda: None, one).failure(error)
            raise EndpointError(
                self._role,
                f"the {self._role} {settings.name} could not be built, nothing was asked:\n"
                f"{(failure.traceback or failure.message).rstrip()}",
            ) from None

    async def call(self, batch: Sequence[AudioQuestion]) -> Sequence[Reply | Failure]:
        """Put a batch to the model. ``EndpointError`` after ``HUNG_LIMIT`` calls that did not come back."""
        await self.start()
        if self._loop is not None:
            return await self._in_time(self._loop.submit(self._model_built.answer_async(batch)), batch)
        await self._enter()
        try:
            built = self._model_built
            caller = self._free.pop() if self._free else _Caller()
            future = asyncio.wrap_future(caller.submit(lambda: built.answer(batch)))
            done, _ = await asyncio.wait((future,), timeout=self._model.settings.timeout)
            if done:
                self._free.append(caller)
            else:
                self._late[future] = caller
                future.add_done_callback(self._came_late)
        finally:
            self._active -= 1
            await self._tell()
        if not done:
            return self._timed_out(batch, self._model.settings.timeout)
        self._hung = 0
        return future.result()

    @property
    def _model_built(self) -> Built:
        if self._built is None:
            raise RuntimeError("a model is asked that was not built")
        return self._built

    async def _enter(self) -> None:
        """Wait until one call more can be in the model, those counted that are late."""
        async with self._left:
            while self._active + len(self._late) >= self.calls:
                if len(self._late) < self.calls:
                    await self._left.wait()
                else:
                    await self._get_clear_of_late_calls()
            self._active += 1

    async def _tell(self) -> None:
        async with self._left:
            self._left.notify_all()

    def _came_late(self, future: asyncio.Future[Any]) -> None:
        """Have a call's thread back that came after its time, unless its model was given up."""
        if not future.cancelled():
            future.exception()  # nobody asks any more
        if (caller := self._late.pop(future, None)) is not None:
            self._free.append(caller)
            self._telling = asyncio.ensure_future(self._tell())

    async def _in_time(
        self, call: Future[list[Reply | Failure]], batch: Sequence[AudioQuestion]
    ) -> Sequence[Reply | Failure]:
        """Return what a call in the event loop returns; one that is late is cancelled."""
        seconds = self._model.settings.timeout
        try:
            results = await asyncio.wait_for(asyncio.wrap_future(call), seconds)
        except asyncio.TimeoutError:
            return self._timed_out(batch, seconds)
        self._hung = 0
        return results

    async def _get_clear_of_late_calls(self) -> None:
        """See to it that the next call does not meet those in the model that are late, which are all.

        One of them is given as long again. Then a class is built anew, and a function is called beside them:
        what it does is in its own hands. An object is no more to be trusted, and the run stops.
        """
        done, _ = await asyncio.wait(
            list(self._late), timeout=self._model.settings.timeout, return_when=asyncio.FIRST_COMPLETED
        )
        if done:
            return
        if not self._model.replaceable:
            raise EndpointError(
                self._role,
                f"a call of {self._model.settings.name} has not returned for twice the time that it had "
                "(--timeout), and this object cannot be built anew. What was done is stored: put it right, "
                "or give a class, then resume the run",
            )
        for caller in self._late.values():
            caller.end()
        self._late.clear()
        caller = _Caller()
        self._free = [caller]
        self._built = await self._build(caller)

    def _timed_out(self, batch: Sequence[AudioQuestion], seconds: float) -> Sequence[Reply | Failure]:
        self._hung += 1
        self._hung_in_all += 1
        late = f"did not return within {seconds:g} s (--timeout)"
        if self._hung >= HUNG_LIMIT or self._hung_in_all >= HUNG_IN_ALL:
            which = f"{self._hung} calls in a row" if self._hung >= HUNG_LIMIT else f"{HUNG_IN_ALL} calls"
            raise EndpointError(
                self._role,
                f"{which} of {self._model.settings.name} {late}, and may go on for ever. "
                "What was done is stored: put it right, then resume the run",
            )
        message = f"the call {late}; it was left alone, and may still be running"
        return [Failure(FailureKind.TIMEOUT, message, 1) for _ in batch]

    async def close(self) -> None:
        """Let the threads end that are in no call."""
        for caller in self._free:
            caller.end()
        if self._loop is not None:
            self._loop.end()


class _Caller:
    """A thread that carries out one call after the other: what a library keeps for each thread stays."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        # Python may end while it is in a call.
        threading.Thread(target=self._work, name="otoscope model", daemon=True).start()

    def submit(self, call: Callable[[], _T]) -> Future[_T]:
        future: Future[_T] = Future()

        def carry_out() -> None:
            if future.set_running_or_notify_cancel():
                settle(future, call)

        self._calls.put(carry_out)
        return future

    def end(self) -> None:
        self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


class _Loop:
    """A thread with an event loop: what blocks in a model must not hold up ours."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._work, name="otoscope model", daemon=True).start()

    def submit(self, work: Coroutine[Any, Any, _T]) -> Future[_T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _work(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            for task in asyncio.all_tasks(self._loop):
                task.cancel()
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()
