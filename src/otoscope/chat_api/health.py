"""Whether a server lives: waited for at the start, and when it dies in the run. A completion alone proves it.

Health pages are never asked: many say "ok" while the model is still being loaded, or once it has crashed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from otoscope.chat_api.troubles import Next, Trouble
from otoscope.errors import EndpointError, Role
from otoscope.records import FailureKind

DEATHS = 2
"""A call that was in flight at so many kills the server: at the last one nothing else was in flight."""
LEAST_BETWEEN_PROBES, MAX_BETWEEN_PROBES = 0.05, 10.0
"""Seconds. The back-off between two probes begins with the endpoint's own, and doubles."""
SAY_AGAIN = 60.0
"""Seconds after which people are told again that it is still waited."""

_STILL_COMING = 1.0
"""Seconds. Replies that were on their way when the server died may be read after connections broke."""


@dataclass(frozen=True, slots=True)
class Probe:
    """How one endpoint of a server is asked for a completion, and how people are told of it."""

    role: Role
    called: str
    """The endpoint's name and place, for people."""
    ask: Callable[[float], Awaitable[Trouble | None]]
    """Asks once, until that time of the event loop at most; ``None`` when it worked. Raises ``EndpointError``
    for what no waiting can mend."""
    tell: Callable[[str], None]
    sleep: Callable[[float], Awaitable[None]]
    """Waits for some seconds, or raises when the run stops."""
    interval: float
    """Seconds before the second probe."""

    async def until_it_works(self, seconds: float) -> float:
        """Ask again and again, after one that did not work; return how long that took, in seconds.

        Raises ``EndpointError`` when none worked within ``seconds``, and what ``ask`` and ``sleep`` raise.
        """
        loop = asyncio.get_running_loop()
        began, interval, say_at = loop.time(), max(self.interval, LEAST_BETWEEN_PROBES), SAY_AGAIN
        while True:
            # The last one is asked when the time is over, and not when there is none for another pause.
            await self.sleep(min(interval, max(0.0, began + seconds - loop.time())))
            trouble = await self.ask(began + seconds)
            waited = loop.time() - began
            if trouble is None:
                return waited
            interval = min(MAX_BETWEEN_PROBES, 2 * interval)
            if waited >= seconds:
                raise EndpointError(
                    self.role,
                    f"{self.called}: no completion worked within the {seconds:g} s of --wait-ready; the last "
                    f"one: {trouble.message}. Nothing is lost: start the server, then resume the run, or "
                    "give it more time",
                )
            if waited >= say_at:
                self.tell(f"{self.called}: still not ready after {waited:.0f} s: {trouble.message}")
                say_at += SAY_AGAIN


@dataclass(slots=True, eq=False)
class Call:
    """What is known of one call, over all its attempts. Times are those of the event loop."""

    began: float = 0.0
    """When the last attempt began."""
    broke: float | None = None
    """When the connection of the last attempt that had one broke, if it did."""
    deaths: int = 0
    last_death: int = 0
    """The number of the last death that it was in flight at."""

    @property
    def kills(self) -> bool:
        """Whether the server dies of it."""
        return self.deaths >= DEATHS


class Gate:
    """What every attempt at one server passes. Closed while the server is dead, for ``seconds`` at most.

    An attempt that found no server, or whose connection broke, raises a doubt where nobody has heard of the
    server since it began; so does a call that had nothing but server errors, where nobody had a reply since
    the first of them. Then no attempt is begun, and one completion is asked for. If it works, that was the
    trouble of this call alone. If not, the server has died, and is asked until it works. What was in flight
    then, that is calls whose connections broke, goes first and alone, one after the other: each until the
    server has answered it, whatever it says. May be shared by all endpoints of a server. With 0 seconds it is
    always open.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._calls: set[Call] = set()
        self._in_flight: set[Call] = set()
        self._alone: deque[Call] = deque()
        self._heard = self._served = float("-inf")
        self._back = float("-inf")
        """When it was back from its last death."""
        self._serves: asyncio.Future[None] | None = None
        """Set by a reply while the server's life is in doubt."""
        self._doubt: asyncio.Task[bool] | None = None
        self._dead = False
        self._deaths = 0
        self._changed: asyncio.Future[None] | None = None
        self._error: EndpointError | None = None

    async def close(self) -> None:
        """End what is going on."""
        if self._doubt is not None:
            self._doubt.cancel()
            await asyncio.gather(self._doubt, return_exceptions=True)

    # --- one call -----------------------------------------------------------------------------------------

    def call(self) -> Call:
        """Return a new call; to be given to :meth:`ended` at its end."""
        call = Call()
        self._calls.add(call)
        return call

    def ended(self, call: Call) -> None:
        """Forget a call, however it ended."""
        self._calls.discard(call)
        self._in_flight.discard(call)
        self._acquit(call)
        self._wake()

    async def opened(self, call: Call, stopping: asyncio.Future[None]) -> float:
        """Wait until an attempt may begin, or the run stops; return how long that took, in seconds.

        Raises ``EndpointError`` when the server did not come back.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        while not self.is_open(call) and not stopping.done():
            if self._changed is None:
                self._changed = loop.create_future()
            await asyncio.wait((self._changed, stopping), return_when=asyncio.FIRST_COMPLETED)
        if self._error is not None:
            raise self._error
        return loop.time() - began

    def is_open(self, call: Call) -> bool:
        """Whether an attempt of this call may begin now, or is told that none can."""
        if self._error is not None:
            return True
        if self._doubt is not None:
            return False
        # What began before a death is not at the server that is back, even where nobody told its connection.
        return not self._alone or (
            call is self._alone[0] and all(other.began < self._back for other in self._in_flight)
        )

    def begin(self, call: Call) -> None:
        """Note that an attempt begins."""
        call.began = asyncio.get_running_loop().time()
        self._in_flight.add(call)

    def heard(self) -> None:
        """Note that the server has answered somebody, whatever it said."""
        self._heard = asyncio.get_running_loop().time()

    def end(self, call: Call, trouble: Trouble | None) -> None:
        """Note how an attempt ended: with a reply (``None``), or what was the trouble."""
        self._in_flight.discard(call)
        if trouble is not None and trouble.broken:
            call.broke = asyncio.get_running_loop().time()
            if self._dead:
                self._suspect(call)
        # What is tried again at once may not have been sent at all: the next attempt decides.
        elif trouble is None or not (trouble.unreachable or trouble.next is Next.AT_ONCE):
            call.broke = None
            self._acquit(call)
        if trouble is None:
            self._served = asyncio.get_running_loop().time()
            if self._serves is not None and not self._serves.done():
                self._serves.set_result(None)
        self._wake()

    async def lost(self, call: Call, probe: Probe, stopping: asyncio.Future[None]) -> bool:
        """Whether the server had died under an attempt that it did not answer; it is back by then.

        Raises ``EndpointError`` when it did not come back, or refuses every request since.
        """
        if self._doubt is None and (not self.seconds or self._heard >= call.began):
            return False
        died = await self._whether_dead(probe, stopping)
        if not died:
            self._acquit(call)
        return died

    async def failing(self, since: float, probe: Probe, stopping: asyncio.Future[None]) -> bool:
        """Whether the server was dead behind the gateway that has told errors since then; it is back now.

        Raises as :meth:`lost` does.
        """
        if self._doubt is None and (not self.seconds or self._served >= since):
            return False
        return await self._whether_dead(probe, stopping)

    # --- life and death -----------------------------------------------------------------------------------

    async def _whether_dead(self, probe: Probe, stopping: asyncio.Future[None]) -> bool:
        """Find out, all together, whether the server is dead, and wait until it is back."""
        if self._doubt is None:
            self._serves = asyncio.get_running_loop().create_future()
            self._doubt = asyncio.ensure_future(self._resolved(probe, self._serves))
            # What it raises is told to those that wait; a run that stops has none of them.
            self._doubt.add_done_callback(lambda task: task.cancelled() or task.exception())
        doubt = self._doubt
        await asyncio.wait((doubt, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not doubt.done():
            raise asyncio.CancelledError("no more is asked: the run stops")
        return doubt.result()

    async def _resolved(self, probe: Probe, serves: asyncio.Future[None]) -> bool:
        """Return whether the server had died; by then it is back."""
        try:
            trouble = await self._first_probe(probe, serves)
            if trouble is None:
                return False
            self._dead = True
            self._deaths += 1
            for call in self._calls:
                if call.broke is not None and call.broke + _STILL_COMING >= self._heard:
                    self._suspect(call)
            probe.tell(
                f"{probe.called} is gone ({trouble.message}). Every request to it waits until a completion "
                f"works again, {self.seconds:g} s at most"
            )
            waited = await probe.until_it_works(self.seconds)
            probe.tell(f"{probe.called} is back after {waited:.0f} s{self._one_by_one()}")
            self._back = self._heard = self._served = asyncio.get_running_loop().time()
            for call in self._calls:
                call.broke = None
        except EndpointError as error:
            self._error = error
            raise
        finally:
            self._dead = False
            self._doubt = self._serves = None
            self._wake()
        return True

    def _one_by_one(self) -> str:
        """Return what becomes of the calls that were in flight at a death, for people."""
        match len(self._alone):
            case 0:
                return ""
            case 1:
                return "; the one call that was in flight goes first, alone"
            case count:
                return f"; {count} calls that were in flight go first, one at a time"

    async def _first_probe(self, probe: Probe, serves: asyncio.Future[None]) -> Trouble | None:
        """Return why no completion works, or ``None`` where the server lives."""
        asking = asyncio.ensure_future(probe.ask(asyncio.get_running_loop().time() + self.seconds))
        try:
            await asyncio.wait((asking, serves), return_when=asyncio.FIRST_COMPLETED)
            trouble = asking.result() if asking.done() else None
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        # Whoever counts our requests lives.
        return None if trouble is not None and trouble.kind is FailureKind.RATE_LIMITED else trouble

    def _suspect(self, call: Call) -> None:
        if call.last_death == self._deaths:
            return
        call.last_death = self._deaths
        call.deaths += 1
        if call not in self._alone:
            self._alone.append(call)

    def _acquit(self, call: Call) -> None:
        call.deaths = 0
        if call in self._alone:
            self._alone.remove(call)

    def _wake(self) -> None:
        if self._changed is not None:
            self._changed.set_result(None)
            self._changed = None
