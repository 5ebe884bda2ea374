"""Several servers of one model: one queue over all of them, and what becomes of one that is away.

A call goes to the server with the least in flight. What one server is at fault for is tried at the others
before that counts as a failed try: a run goes on as long as one of them serves.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from otoscope.chat_api.asking import MAX_BACKOFF, Asking, EndOfAsking
from otoscope.chat_api.budget import Budget
from otoscope.chat_api.endpoint import RATE_PAUSE, allowed_tries, why_gone
from otoscope.chat_api.health import DEATHS, LEAST_BETWEEN_PROBES, MAX_BETWEEN_PROBES, SAY_AGAIN
from otoscope.chat_api.rate import RateLimit
from otoscope.chat_api.server import PROBE_TIMEOUT, Server, called
from otoscope.chat_api.troubles import Next, Trouble
from otoscope.chat_api.wire_form import Message
from otoscope.config import EndpointSettings
from otoscope.errors import EndpointError, LimitReachedError
from otoscope.records import Failure, FailureKind, Reply

FAILURES_IN_A_ROW = 3
"""So many attempts that all ended in server errors, broken connections or no reply set a server aside."""

_AT_FAULT = frozenset({FailureKind.SERVER_ERROR, FailureKind.TIMEOUT, FailureKind.CONNECTION})
_CRASH = "a server died while this was in flight, and so did the next one that it was sent to"


@dataclass(slots=True, eq=False)
class _Replica:
    """One server, and how it fares. Times are those of the event loop."""

    server: Server
    url: str
    """For people."""
    in_flight: int = 0
    turn: int = 0
    """The number of the attempt that it was given last."""
    heard: float = float("-inf")
    """When it had answered anything but a probe."""
    failures: int = 0
    """Attempts in a row that it is at fault for."""
    aside: str | None = None
    """Why it is set aside; ``None``: it serves."""
    aside_since: float = float("-inf")
    dead: bool = False
    """Whether it is set aside because it is not there, rather than for what it says."""
    refusal: EndpointError | None = None
    """What it said last, if that was that it refuses every request."""
    asides: int = 0
    """How often it was set aside since its last reply."""
    back_since: float = float("-inf")
    """When it was taken back; what began before says nothing of it."""
    doubt: asyncio.Task[bool] | None = None
    """Finds out whether it lives."""
    revival: asyncio.Task[None] | None = None

    @property
    def serves(self) -> bool:
        """Whether calls are sent to it."""
        return self.aside is None and self.doubt is None


@dataclass(slots=True, eq=False)
class _Call(Asking):
    """A call, and where it has been."""

    at: _Replica | None = None
    """Where its next attempt must be: what follows at once goes to the same server."""
    last: _Replica | None = None
    tried: set[_Replica] = field(default_factory=set)
    """Where the try that is going on has been in vain."""
    broke: _Replica | None = None
    """Where the connection of the last attempt broke."""
    deaths: int = 0


class Replicas:
    """Several servers of one model, asked as if they were one; as :class:`ChatEndpoint` is used.

    ``settings`` have more than one replica. The number of calls at a time, ``rate`` and ``budget`` are those
    of all together. What a server makes us change is learnt of each by itself.

    A server that cannot be reached, or fails :data:`FAILURES_IN_A_ROW` attempts, is set aside, and asked for
    a small completion now and then until one works; ``notify`` gets a sentence about both. While none
    serves, calls are treated as a single server's are, and with ``wait_ready`` they wait for the first
    that is back. Calls whose connections broke when a server died go on one at a time: one that a second
    server dies of is a ``server_crash`` Failure while there is another way for the rest.
    """

    def __init__(
        self,
        settings: EndpointSettings,
        notify: Callable[[str], None],
        *,
        served_before: bool = False,
        rate: RateLimit | None = None,
        budget: Budget | None = None,
    ) -> None:
        self.settings = settings
        self._notify = notify
        self._rate = rate or RateLimit(settings.rpm, settings.tpm)
        self._end = EndOfAsking()
        self._turns = 0
        self._suspects: list[_Call] = []
        self._changed: asyncio.Future[None] | None = None
        self._none_since = float("-inf")
        """Since when no server serves; a time of the event loop, as the next one."""
        self._say_at = float("-inf")
        """When people are told again that none does."""
        self._place = f"{called(settings)} at {settings.shown_url}"
        self._replicas = [
            self._replica(one, served_before=served_before, budget=budget) for one in settings.replicas
        ]

    def _replica(self, settings: EndpointSettings, *, served_before: bool, budget: Budget | None) -> _Replica:
        def heard() -> None:
            replica.heard = asyncio.get_running_loop().time()

        server = Server(
            settings,
            self._notify,
            called=f"{called(settings)} at {settings.shown_url}",
            served_before=served_before,
            rate=self._rate,
            budget=budget,
            end=self._end,
            heard=heard,
        )
        replica = _Replica(server, settings.shown_url)
        return replica

    async def __aenter__(self) -> Replicas:  # noqa: PYI034 (Self needs Python 3.11)
        self._end.open()
        for replica in self._replicas:
            await replica.server.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks = [task for one in self._replicas for task in (one.doubt, one.revival) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for replica in self._replicas:
            await replica.server.close()

    def stop_asking(self) -> None:
        """Begin no attempt any more, as :meth:`ChatEndpoint.stop_asking` does."""
        self._end.set()

    async def until_ready(self) -> None:
        """Wait until a completion works at one of the servers, as long as the settings say.

        Those that are not ready then join later. Raises as :meth:`ChatEndpoint.until_ready` does.
        """
        if not self.settings.wait_ready or any(one.server.last_response for one in self._replicas):
            return
        began = asyncio.get_running_loop().time()
        until = began + self.settings.wait_ready
        probes = [asyncio.ensure_future(self._why_not(one, until)) for one in self._replicas]
        left = set(probes)
        try:
            while left and not any(one.done() and one.result() is None for one in probes):
                waited_for: list[asyncio.Future[Any]] = [*left, self._end.come]
                await asyncio.wait(waited_for, return_when=asyncio.FIRST_COMPLETED)
                self._end.check()
                left = {one for one in left if not one.done()}
        finally:
            for probe in probes:
                probe.cancel()
            await asyncio.gather(*probes, return_exceptions=True)
        for replica, probe in zip(self._replicas, probes, strict=True):
            why = "no answer yet" if probe.cancelled() else probe.result()
            if why is not None:
                self._set_aside(replica, f"it is not ready ({why})", dead=True)
        self._none_since = began
        await self._until_one_serves()

    async def ask(self, messages: Sequence[Message], **overrides: Any) -> Reply | Failure:
        """Send one request, as :meth:`ChatEndpoint.ask` does, and raise as it does.

        A server that refuses every request is set aside too: ``EndpointError`` is raised when it is the last
        one, and none is waited for.
        """
        call = _Call(deadline=asyncio.get_running_loop().time() + self.settings.total_timeout)
        try:
            return await self._ask(messages, overrides, call)
        finally:
            self._acquit(call)

    async def _ask(
        self, messages: Sequence[Message], overrides: Mapping[str, Any], call: _Call
    ) -> Reply | Failure:
        loop = asyncio.get_running_loop()
        trouble = RATE_PAUSE
        while True:
            # Another call may have found out first that the server had died, and not only a connection.
            late = call.at is not None and call.at is call.broke and await self._is_dead(call.at, call)
            if late and self._kills(call):
                return self._crash(call, trouble)
            began_waiting = loop.time()
            await self._until_its_turn(call)
            await self._until_one_serves()
            # Neither this nor the wait for a limit of the user's own is the server's, and no sample may fail
            # for it.
            call.deadline += loop.time() - began_waiting
            await self._wait_while_paused(call.deadline)
            if loop.time() >= call.deadline:
                return self._failure(call, trouble)
            turn = await self._rate.turn(messages, self._end.sleep)
            call.deadline += turn.waited
            self._end.check()
            replica = self._next(call)
            if replica is None:
                self._rate.give_back(turn)
                continue
            began = loop.time()
            try:
                with self._in_flight(replica, call):
                    result = await replica.server.attempt(messages, overrides, call)
            except EndpointError as error:
                if not (self._others(replica) or self._waits_for_others(replica)):
                    raise
                self._set_aside(replica, self._why_refused(replica, error), dead=False)
                continue
            if isinstance(result, Reply):
                replica.server.note_tokens(turn, messages, result)
                self._has_served(replica, began)
                return result
            trouble = result
            if trouble.broken:
                call.broke = replica
            if trouble.next is Next.AT_ONCE:
                call.at = replica
                continue
            if trouble.next is Next.PAUSE:
                replica.server.pause(trouble.pause)
            if await self._died(replica, trouble, began, call):
                if self._kills(call):
                    return self._crash(call, trouble)
            else:
                self._blame(replica, trouble, began)
                # What was not even sent is no less suspect for that.
                if not trouble.unreachable:
                    self._acquit(call)
            wait = self._noted(call, replica, trouble)
            out_of_tries = call.failed_tries >= allowed_tries(self.settings, trouble, self._last_response())
            if trouble.next is Next.GIVE_UP or out_of_tries or loop.time() + wait >= call.deadline:
                return self._failure(call, trouble)
            if wait:
                await self._end.sleep(wait)

    def _noted(self, call: _Call, replica: _Replica, trouble: Trouble) -> float:
        """Keep count of an attempt in vain; return for how long to wait before the next, in seconds.

        A try is used up when all servers that serve have had it, and none while a dead server is waited for.
        """
        call.tried.add(replica)
        last = self._last_response()
        if call.unreachable_since is not None and last is not None and last > call.unreachable_since:
            # It was another one that answered somebody meanwhile.
            call.unreachable_since = None
        there = self._serving()
        elsewhere = any(one not in call.tried for one in there)
        waits = not there and self.settings.wait_ready and (trouble.unreachable or trouble.broken)
        # What this process is at fault for is the same everywhere.
        uses_up = trouble.ours or not (elsewhere or waits)
        call.note(trouble, asyncio.get_running_loop().time(), uses_up_a_try=uses_up)
        if not uses_up:
            return 0.0
        call.tried.clear()
        return call.backoff(self.settings) if trouble.next is Next.BACK_OFF else 0.0

    def _crash(self, call: _Call, trouble: Trouble) -> Failure:
        return Failure(FailureKind.SERVER_CRASH, f"{_CRASH} ({trouble.message})", call.attempts)

    def _failure(self, call: _Call, trouble: Trouble) -> Failure:
        """Return the Failure that this amounts to. Raises ``EndpointError`` where no server is left."""
        gone = why_gone(call, trouble, self._last_response())
        if gone is not None and (trouble.ours or not self._serving()):
            raise EndpointError(self.settings.role, f"{self._place}: {gone}")
        return Failure(trouble.kind, trouble.message, call.attempts)

    # --- where the next attempt goes ----------------------------------------------------------------------

    def _serving(self) -> list[_Replica]:
        return [one for one in self._replicas if one.serves]

    def _others(self, replica: _Replica) -> bool:
        """Whether another one serves."""
        return any(one is not replica for one in self._serving())

    def _waits_for_others(self, replica: _Replica) -> bool:
        """Whether another one, that does not refuse every request, may come back in time."""
        others = (one for one in self._replicas if one is not replica)
        return bool(self.settings.wait_ready) and any(one.refusal is None for one in others)

    def _next(self, call: _Call) -> _Replica | None:
        """Return where the call's next attempt goes; ``None`` where it has to wait after all."""
        now = asyncio.get_running_loop().time()
        there = self._serving()
        if not there and (self.settings.wait_ready or any(one.doubt for one in self._replicas)):
            return None
        free = [one for one in there or self._replicas if one.server.paused_until <= now]
        chosen, call.at = call.at, None
        if chosen in free:
            return chosen
        untried = [one for one in free if one not in call.tried] or free
        return min(untried, key=lambda one: (one.in_flight, one.turn), default=None)

    @contextlib.contextmanager
    def _in_flight(self, replica: _Replica, call: _Call) -> Iterator[None]:
        self._turns += 1
        replica.turn = self._turns
        replica.in_flight += 1
        if replica is not call.last:
            call.elsewhere()
            call.last = replica
        try:
            yield
        finally:
            replica.in_flight -= 1

    async def _wait_while_paused(self, deadline: float) -> None:
        """Wait until a server may be asked that none has paused, or a time of the event loop."""
        there = self._serving() or self._replicas
        await min(there, key=lambda one: one.server.paused_until).server.wait_while_paused(deadline)

    def _last_response(self) -> float | None:
        """Return when any of them answered last."""
        times = [one.server.last_response for one in self._replicas]
        return max((time for time in times if time is not None), default=None)

    async def _until_one_serves(self) -> None:
        """Wait until a server serves, where the settings say to wait for one, or one is in doubt.

        Raises ``EndpointError`` when none was back in time, or all refuse every request.
        """
        loop, seconds = asyncio.get_running_loop(), self.settings.wait_ready
        while not self._serving():
            in_doubt = any(one.doubt is not None for one in self._replicas)
            if not (seconds or in_doubt):
                return
            refusals = [one.refusal for one in self._replicas if one.refusal is not None]
            if len(refusals) == len(self._replicas):
                raise refusals[0]
            waited = loop.time() - self._none_since
            if not in_doubt and waited >= seconds:
                whys = "; ".join(f"{one.url}: {one.aside}" for one in self._replicas)
                raise EndpointError(
                    self.settings.role,
                    f"{self._place}: no completion worked within the {seconds:g} s of --wait-ready ({whys}). "
                    "Nothing is lost: start a server, then resume the run, or give it more time",
                )
            if not in_doubt and loop.time() >= self._say_at:
                self._say_at = loop.time() + SAY_AGAIN
                self._notify(f"{self._place}: still none is ready after {waited:.0f} s")
            await self._change(SAY_AGAIN if in_doubt else min(SAY_AGAIN, seconds - waited))

    async def _change(self, seconds: float) -> None:
        """Wait until a server or a call fares otherwise, at most so long; raises when no more is asked."""
        if self._changed is None:
            self._changed = asyncio.get_running_loop().create_future()
        waited_for = (self._changed, self._end.come)
        await asyncio.wait(waited_for, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        self._end.check()

    def _wake(self) -> None:
        if self._changed is not None:
            self._changed.set_result(None)
            self._changed = None

    # --- how a server fares -------------------------------------------------------------------------------

    def _has_served(self, replica: _Replica, began: float) -> None:
        """Note that an attempt that began then brought a reply."""
        replica.failures = replica.asides = 0
        # An older one may have come from a server that has died since.
        if replica.aside is not None and began >= replica.aside_since:
            self._take_back(replica)

    def _blame(self, replica: _Replica, trouble: Trouble, began: float) -> None:
        """Set a server aside if this attempt, which began then, shows that it does not serve."""
        if trouble.ours or began < replica.back_since:
            return
        if trouble.unreachable:
            if replica.heard < began:
                self._set_aside(replica, trouble.message, dead=True)
        elif trouble.next is not Next.BACK_OFF or trouble.kind not in _AT_FAULT:
            replica.failures = 0
        else:
            replica.failures += 1
            if replica.failures >= FAILURES_IN_A_ROW:
                why = f"{replica.failures} attempts in a row failed, the last one with {trouble.message}"
                self._set_aside(replica, why, dead=False)

    async def _died(self, replica: _Replica, trouble: Trouble, began: float, call: _Call) -> bool:
        """Whether the connection broke because the server had died under this attempt.

        What it answered before proves nothing: only a completion does.
        """
        broke, call.broke = call.broke, None
        if broke is not replica or began < replica.back_since:
            return False
        if trouble.unreachable:
            self._blame(replica, trouble, began)
        elif not trouble.broken:
            return False
        if not (trouble.unreachable or replica.aside):
            replica.doubt = replica.doubt or asyncio.ensure_future(self._doubted(replica))
        return await self._is_dead(replica, call)

    async def _is_dead(self, replica: _Replica, call: _Call) -> bool:
        """Whether a server is set aside because it is not there, once that is no more in doubt."""
        if (doubt := replica.doubt) is None:
            return replica.dead
        loop = asyncio.get_running_loop()
        began = loop.time()
        await asyncio.wait((doubt, self._end.come), return_when=asyncio.FIRST_COMPLETED)
        call.deadline += loop.time() - began
        self._end.check()
        return doubt.result()

    async def _doubted(self, replica: _Replica) -> bool:
        """Set a server aside that gives no completion; whether it was."""
        try:
            why = await self._why_not(replica, asyncio.get_running_loop().time() + PROBE_TIMEOUT)
        except LimitReachedError:
            # Nothing more is asked at all; the call that is next says so.
            why = None
        finally:
            replica.doubt = None
            self._wake()
        if why is not None:
            self._set_aside(replica, why, dead=True)
        return why is not None

    async def _why_not(self, replica: _Replica, until: float) -> str | None:
        """Return why no completion works at a server; ``None`` where one does, or its life is certain.

        Raises ``LimitReachedError`` where nothing is left of the budget.
        """
        replica.refusal = None
        try:
            trouble = await replica.server.probe(until)
        except EndpointError as error:
            return self._why_refused(replica, error)
        # Whoever counts our requests lives.
        counts = trouble is not None and trouble.kind is FailureKind.RATE_LIMITED
        return None if trouble is None or counts else trouble.message

    def _why_refused(self, replica: _Replica, error: EndpointError) -> str:
        replica.refusal = error
        return str(error).removeprefix(f"{replica.server.place}: ")

    def _set_aside(self, replica: _Replica, why: str, *, dead: bool) -> None:
        if replica.aside is not None:
            return
        now = asyncio.get_running_loop().time()
        replica.aside, replica.aside_since, replica.dead = why, now, dead
        replica.asides += 1
        left = len(self._serving())
        match left:
            case 0:
                self._none_since, self._say_at = now, now + SAY_AGAIN
                waits = f", waiting {self.settings.wait_ready:g} s at most until one is back"
                rest = f"none is left{waits if self.settings.wait_ready else ''}"
            case 1:
                rest = "one goes on"
            case _:
                rest = f"{left} go on"
        self._notify(f"{replica.server.called} is set aside: {why}; {rest}")
        replica.revival = asyncio.ensure_future(self._revived(replica))
        self._wake()

    def _take_back(self, replica: _Replica) -> None:
        replica.aside = replica.refusal = None
        replica.dead = False
        replica.failures = 0
        replica.back_since = asyncio.get_running_loop().time()
        if replica.revival is not None and replica.revival is not asyncio.current_task():
            replica.revival.cancel()
        replica.revival = None
        self._notify(f"{replica.server.called} is back")
        self._wake()

    async def _revived(self, replica: _Replica) -> None:
        """Ask a server that is set aside for a completion, now and then, until one works."""
        loop = asyncio.get_running_loop()
        # One that comes and goes is waited for the longer.
        first = max(self.settings.retry_interval, LEAST_BETWEEN_PROBES) * 2.0 ** min(replica.asides - 1, 30)
        wait = min(MAX_BACKOFF, first)
        why: str | None = ""
        while why is not None:
            await self._end.sleep(max(wait, replica.server.paused_until - loop.time()))
            try:
                why = await self._why_not(replica, loop.time() + PROBE_TIMEOUT)
            except LimitReachedError:
                return
            wait = min(max(wait, MAX_BETWEEN_PROBES), 2 * wait)
            if why is not None:
                replica.aside = why
        self._take_back(replica)

    # --- calls that a server may have died of -------------------------------------------------------------

    def _kills(self, call: _Call) -> bool:
        """Count a death that a call was in flight at; whether it is what servers die of.

        Where none is left, a command that waits for none stops, and no call is to blame.
        """
        call.broke = None
        if self._serving() or self.settings.wait_ready:
            call.deaths += 1
            if call not in self._suspects:
                self._suspects.append(call)
        return call.deaths >= DEATHS

    def _acquit(self, call: _Call) -> None:
        call.deaths = 0
        if call in self._suspects:
            self._suspects.remove(call)
            self._wake()

    async def _until_its_turn(self, call: _Call) -> None:
        """Wait until no other call is tried that a server may have died of, where this is such a one."""
        while call in self._suspects and call is not self._suspects[0]:
            await self._change(SAY_AGAIN)
        self._end.check()
