"""The loop at one server: tries, pauses, deadlines, and what becomes of a call while the server is away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from otoscope.chat_api.asking import Asking, EndOfAsking
from otoscope.chat_api.budget import Budget
from otoscope.chat_api.health import Call, Gate, Probe
from otoscope.chat_api.rate import RateLimit
from otoscope.chat_api.server import Server, called
from otoscope.chat_api.troubles import Next, Trouble
from otoscope.chat_api.wire_form import Message
from otoscope.config import EndpointSettings
from otoscope.records import Failure, FailureKind, Reply

TRIES_UNTIL_FIRST_REPLY = 3
"""A server that has never answered is probably not there: a person is waiting for that news."""

_CRASH = "the server died while this was in flight, and once more when nothing else was"
RATE_PAUSE = Trouble(FailureKind.RATE_LIMITED, "the server asked all requests to wait", Next.PAUSE)
"""What a call has met whose time ran out before its first attempt."""


class ChatEndpoint:
    """An OpenAI-compatible endpoint. Use as an async context manager; ``ask`` may be called concurrently.

    What the server makes us change is learnt as :class:`Server` says; ``notify`` gets a sentence about each
    change and each pause. ``rate`` is for endpoints that share one limit, and ``gate`` for those of one
    server; without them the settings' own count. ``served_before`` and ``budget`` as for :class:`Server`.
    Raises ``ConfigError`` for a proxy in the environment that cannot be used.
    """

    def __init__(
        self,
        settings: EndpointSettings,
        notify: Callable[[str], None],
        *,
        served_before: bool = False,
        rate: RateLimit | None = None,
        budget: Budget | None = None,
        gate: Gate | None = None,
    ) -> None:
        self.settings = settings
        self._notify = notify
        self._rate = rate or RateLimit(settings.rpm, settings.tpm)
        self._gate = gate or Gate(settings.wait_ready)
        self._end = EndOfAsking()
        self._server = Server(
            settings,
            notify,
            called=called(settings),
            served_before=served_before,
            rate=self._rate,
            budget=budget,
            end=self._end,
            heard=self._gate.heard,
        )

    async def __aenter__(self) -> ChatEndpoint:  # noqa: PYI034 (Self needs Python 3.11)
        self._end.open()
        await self._server.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._gate.close()
        await self._server.close()

    def stop_asking(self) -> None:
        """Begin no attempt any more: a run that stops gives calls in flight time to end, and no new ones.

        Attempts in flight go on to their end, and what they bring is returned. Where a further attempt would
        follow, or a first one, ``ask`` raises ``asyncio.CancelledError`` instead; where it waits for its
        turn, it does so at once. To be called in the event loop, any number of times.
        """
        self._end.set()

    async def until_ready(self) -> None:
        """Wait until a completion works, as long as the settings say; they may say not at all.

        Raises ``EndpointError`` when none works, or for what no waiting can mend; ``asyncio.CancelledError``
        after :meth:`stop_asking`.
        """
        if not self.settings.wait_ready or self._server.last_response is not None:
            return
        waiting = asyncio.ensure_future(self._until_ready(self.settings.wait_ready))
        try:
            await asyncio.wait((waiting, self._end.come), return_when=asyncio.FIRST_COMPLETED)
            # A probe in flight is worth nothing to a run that stops.
            self._end.check()
            waiting.result()
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

    async def ask(self, messages: Sequence[Message], **overrides: Any) -> Reply | Failure:
        """Send one request, retried as the settings say, and return the reply or why there is none.

        ``overrides`` replace parameters for this request. Raises ``EndpointError`` when the endpoint
        refuses every request (key, model name, URL, quota) or cannot be reached any more, also for want of
        file descriptors; ``LimitReachedError`` when nothing is left of the budget;
        ``asyncio.CancelledError`` after :meth:`stop_asking`.

        Once it has given a reply, a 403, 404, 405 or redirect is this request's own Failure, until there are
        :data:`~otoscope.chat_api.server.REFUSALS_IN_A_ROW` of them without a reply between.

        Where the settings say to wait for it, a server that dies is waited for (see :class:`Gate`). What it
        dies of is a ``server_crash`` Failure.
        """
        call = self._gate.call()
        try:
            return await self._ask(messages, overrides, call)
        finally:
            self._gate.ended(call)

    async def _ask(
        self, messages: Sequence[Message], overrides: Mapping[str, Any], call: Call
    ) -> Reply | Failure:
        loop, gate, server = asyncio.get_running_loop(), self._gate, self._server
        asking = Asking(deadline=loop.time() + self.settings.total_timeout)
        trouble = RATE_PAUSE
        while True:
            await server.wait_while_paused(asking.deadline)
            asking.deadline += await gate.opened(call, self._end.come)
            self._end.check()
            if loop.time() >= asking.deadline:
                return self._failure(asking, trouble)
            turn = await self._rate.turn(messages, self._end.sleep)
            # The wait for a limit of the user's own is not the server's, and no sample may fail for it.
            asking.deadline += turn.waited
            self._end.check()
            if server.paused_until > loop.time() or not gate.is_open(call):
                self._rate.give_back(turn)
                continue
            gate.begin(call)
            result = await server.attempt(messages, overrides, asking)
            gate.end(call, None if isinstance(result, Reply) else result)
            if isinstance(result, Reply):
                server.note_tokens(turn, messages, result)
                return result
            trouble = result
            if await self._died(call, trouble, asking):
                if call.kills:
                    return Failure(FailureKind.SERVER_CRASH, f"{_CRASH} ({trouble.message})", asking.attempts)
                continue
            asking.note(trouble, loop.time())
            wait = 0.0
            if trouble.next is Next.PAUSE:
                server.pause(trouble.pause)
                wait = server.paused_until - loop.time()
            elif trouble.next is Next.BACK_OFF:
                wait = asking.backoff(self.settings)
            out_of_tries = asking.failed_tries >= allowed_tries(self.settings, trouble, server.last_response)
            if out_of_tries and await self._was_down(trouble, asking):
                asking.failed_tries = 0
                continue
            if trouble.next is Next.GIVE_UP or out_of_tries or loop.time() + wait >= asking.deadline:
                return self._failure(asking, trouble)
            if trouble.next is Next.BACK_OFF:
                await self._end.sleep(wait)

    async def _died(self, call: Call, trouble: Trouble, asking: Asking) -> bool:
        """Whether an attempt was lost because the server had died; it is back by then."""
        if trouble.next is Next.AT_ONCE or not (trouble.unreachable or trouble.broken):
            return False
        return await self._off_the_clock(asking, self._gate.lost(call, self._as_probe(), self._end.come))

    async def _was_down(self, trouble: Trouble, asking: Asking) -> bool:
        """Whether all tries were told server errors because the server was dead; it is back by then."""
        if trouble.kind is not FailureKind.SERVER_ERROR:
            return False
        return await self._off_the_clock(
            asking, self._gate.failing(asking.failing_since, self._as_probe(), self._end.come)
        )

    async def _off_the_clock(self, asking: Asking, finding_out: Awaitable[bool]) -> bool:
        """Await something that takes no time of the asking's own."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        found = await finding_out
        asking.deadline += loop.time() - began
        return found

    def _failure(self, asking: Asking, trouble: Trouble) -> Failure:
        """Return the Failure that this amounts to. Raises ``EndpointError`` for a server that is gone."""
        if (gone := why_gone(asking, trouble, self._server.last_response)) is not None:
            self._server.refuse(gone)
        return Failure(trouble.kind, trouble.message, asking.attempts)

    def _as_probe(self) -> Probe:
        return Probe(
            role=self.settings.role,
            called=self._server.place,
            ask=self._server.probe,
            tell=self._notify,
            sleep=self._end.sleep,
            interval=self.settings.retry_interval,
        )

    async def _until_ready(self, seconds: float) -> None:
        probe = self._as_probe()
        trouble = await probe.ask(asyncio.get_running_loop().time() + seconds)
        if trouble is not None:
            probe.tell(
                f"{probe.called} is not ready ({trouble.message}); waiting {seconds:g} s at most until a "
                "completion works"
            )
            waited = await probe.until_it_works(seconds)
            probe.tell(f"{probe.called} is ready after {waited:.0f} s")


def allowed_tries(settings: EndpointSettings, trouble: Trouble, last_response: float | None) -> int:
    """Return how many tries a call has that met this; ``last_response`` is when anybody was answered."""
    nobody_there = trouble.unreachable and last_response is None
    return min(settings.tries, TRIES_UNTIL_FIRST_REPLY) if nobody_there else settings.tries


def why_gone(asking: Asking, trouble: Trouble, last_response: float | None) -> str | None:
    """Return what is to be said where a call ends because nothing can be reached; else ``None``.

    ``last_response`` is when anybody was answered.
    """
    if trouble.ours:
        return f"{trouble.message} ({asking.attempts} attempts). Nothing is lost: then resume the run"
    since = asking.unreachable_since
    never_worked = last_response is None and trouble.kind is FailureKind.CONNECTION
    # Others may have been answered since: then it is not the server that is gone.
    if never_worked or (since is not None and last_response is not None and last_response < since):
        return (
            f"{trouble.message} ({asking.attempts} attempts). Is the server running, and is the URL "
            "right? Nothing is lost: start it, then resume the run (--wait-ready S waits for it)"
        )
    return None
