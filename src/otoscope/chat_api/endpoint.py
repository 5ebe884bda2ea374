"""The loop: attempts, pauses, deadlines, and what is learnt of the server meanwhile."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, NoReturn

from otoscope.chat_api.body import Body
from otoscope.chat_api.budget import Budget
from otoscope.chat_api.connections import MAX_REPLY_BYTES, BrokenError, Connections, Exchanged, Route
from otoscope.chat_api.health import Call, Gate, Probe
from otoscope.chat_api.rate import RateLimit
from otoscope.chat_api.replies import (
    Completion,
    ServerError,
    clean,
    read_completion,
    read_error,
    read_models,
    retry_after,
)
from otoscope.chat_api.troubles import (
    CONNECTION_ERRORS,
    Next,
    Trouble,
    is_tls,
    meaning_of,
    meaning_of_break,
)
from otoscope.chat_api.wire_form import Message, WireForm, speaks_of_audio_part
from otoscope.config import EndpointSettings
from otoscope.errors import EndpointError, did_you_mean
from otoscope.records import Failure, FailureKind, Reply

MAX_BACKOFF = 60.0
TRIES_UNTIL_FIRST_REPLY = 3
"""A server that has never answered is probably not there: a person is waiting for that news."""
REFUSALS_IN_A_ROW = 3
"""From an endpoint that has served others, one is a gateway's whim and three are a key that was revoked."""
EXPECT_FROM = 64 * 1024
"""Bytes from which on a body can still be in our own buffers when the server breaks the connection."""

PROBE_TEXT = "Answer with one word: ready"
"""What a server is asked to know whether a completion works. Text alone: no clip is worth more for that."""
PROBE: Sequence[Message] = ({"role": "user", "content": PROBE_TEXT},)
PROBE_TOKENS = 16
PROBE_TIMEOUT = 60.0
"""Seconds for one probe. The first completion after the start of a server may take long."""

_CRASH = "the server died while this was in flight, and once more when nothing else was"
_KEY_ADVICE = {
    "model": "Give the right one with --api-key-file, OTOSCOPE_API_KEY or --api-key",
    "judge": "Give the right one with --judge-api-key-file, OTOSCOPE_JUDGE_API_KEY, OPENAI_API_KEY or "
    "--judge-api-key",
}
_PLACE_ADVICE = {
    "model": "Check --model and --api-url",
    "judge": "Check --judge-model and --judge-api-url, or judge in here with --judge-model embedded",
}


@dataclass(slots=True)
class _Asking:
    """One call of ``ask``, from its first attempt to its end. Times are those of the event loop."""

    deadline: float
    route: Route = field(default_factory=Route)
    attempts: int = 0
    failed_tries: int = 0
    unreachable_since: float | None = None
    """When the first of the last attempts failed that all found no server."""
    failing_since: float = 0.0
    """When the first of the failed tries had failed."""
    probing: bool = False
    """Whether it only is to show that a completion works."""
    audio_refusals: dict[str, str] = field(default_factory=dict)
    """The wire forms in which the clip was refused, each with the server's words."""
    audio_form: str | None = None
    """The form to try next, while none is known to be taken."""

    def note(self, trouble: Trouble, now: float) -> None:
        """Keep count of an attempt that brought no reply."""
        if trouble.next is Next.BACK_OFF:
            self.failing_since = self.failing_since if self.failed_tries else now
            self.failed_tries += 1
        if not trouble.unreachable:
            self.unreachable_since = None
        elif self.unreachable_since is None:
            self.unreachable_since = now


class ChatEndpoint:
    """An OpenAI-compatible endpoint. Use as an async context manager; ``ask`` may be called concurrently.

    What the server makes us change (a parameter's name, streaming) is learnt once and kept for the life
    of this object; ``notify`` gets a sentence about each change and each pause. ``served_before``
    says that it served this run before: then a refusal that may be one sample's is taken for that. ``rate``
    is for endpoints that share one limit, and ``gate`` for those of one server; without them the settings'
    own count. ``budget`` is what its requests are paid from. Raises ``ConfigError`` for a proxy in the
    environment that cannot be used.
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
        self._shown_url = settings.shown_url
        self._notify = notify
        self._connections = Connections(settings)
        self._mask = self._connections.mask
        self._form = WireForm(stream=settings.stream)
        self._expect_works = True
        self._paused_until = 0.0
        self._rate = rate or RateLimit(settings.rpm, settings.tpm)
        self._budget = budget
        self._gate = gate or Gate(settings.wait_ready)
        self._says_tokens = True
        self._last_response: float | None = None
        self._has_served = served_before
        self._refusals_in_a_row = 0
        self._no_more: asyncio.Future[None] | None = None

    async def __aenter__(self) -> ChatEndpoint:  # noqa: PYI034 (Self needs Python 3.11)
        self._no_more = asyncio.get_running_loop().create_future()
        await self._connections.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._gate.close()
        await self._connections.close()

    def stop_asking(self) -> None:
        """Begin no attempt any more: a run that stops gives calls in flight time to end, and no new ones.

        Attempts in flight go on to their end, and what they bring is returned. Where a further attempt would
        follow, or a first one, ``ask`` raises ``asyncio.CancelledError`` instead; where it waits for its
        turn, it does so at once. To be called in the event loop, any number of times.
        """
        if not self._end_of_asking.done():
            self._end_of_asking.set_result(None)

    async def until_ready(self) -> None:
        """Wait until a completion works, as long as the settings say; they may say not at all.

        Raises ``EndpointError`` when none works, or for what no waiting can mend; ``asyncio.CancelledError``
        after :meth:`stop_asking`.
        """
        if not self.settings.wait_ready or self._last_response is not None:
            return
        waiting = asyncio.ensure_future(self._until_ready(self.settings.wait_ready))
        try:
            await asyncio.wait((waiting, self._end_of_asking), return_when=asyncio.FIRST_COMPLETED)
            # A probe in flight is worth nothing to a run that stops.
            self._check_asking()
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
        :data:`REFUSALS_IN_A_ROW` of them without a reply between.

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
        loop, gate = asyncio.get_running_loop(), self._gate
        asking = _Asking(deadline=loop.time() + self.settings.total_timeout)
        trouble = Trouble(FailureKind.RATE_LIMITED, "the server asked all requests to wait", Next.PAUSE)
        while True:
            await self._wait_while_paused(asking.deadline)
            asking.deadline += await gate.opened(call, self._end_of_asking)
            self._check_asking()
            if loop.time() >= asking.deadline:
                return self._end(asking, trouble)
            turn = await self._rate.turn(messages, self._sleep)
            # The wait for a limit of the user's own is not the server's, and no sample may fail for it.
            asking.deadline += turn.waited
            self._check_asking()
            if self._paused_until > loop.time() or not gate.is_open(call):
                self._rate.give_back(turn)
                continue
            gate.begin(call)
            result = await self._paid_attempt(messages, overrides, asking)
            gate.end(call, None if isinstance(result, Reply) else result)
            if isinstance(result, Reply):
                self._note_tokens(said=self._rate.correct(turn, messages, result))
                return result
            trouble = result
            if await self._died(call, trouble, asking):
                if call.kills:
                    return Failure(FailureKind.SERVER_CRASH, f"{_CRASH} ({trouble.message})", asking.attempts)
                continue
            asking.note(trouble, loop.time())
            wait = 0.0
            if trouble.next is Next.PAUSE:
                self._pause(trouble.pause)
                wait = self._paused_until - loop.time()
            elif trouble.next is Next.BACK_OFF:
                wait = self._backoff(asking.failed_tries)
            out_of_tries = asking.failed_tries >= self._allowed_tries(trouble)
            if out_of_tries and await self._was_down(trouble, asking):
                asking.failed_tries = 0
                continue
            if trouble.next is Next.GIVE_UP or out_of_tries or loop.time() + wait >= asking.deadline:
                return self._end(asking, trouble)
            if trouble.next is Next.BACK_OFF:
                await self._sleep(wait)

    async def _died(self, call: Call, trouble: Trouble, asking: _Asking) -> bool:
        """Whether an attempt was lost because the server had died; it is back by then."""
        if trouble.next is Next.AT_ONCE or not (trouble.unreachable or trouble.broken):
            return False
        return await self._off_the_clock(asking, self._gate.lost(call, self._as_probe(), self._end_of_asking))

    async def _was_down(self, trouble: Trouble, asking: _Asking) -> bool:
        """Whether all tries were told server errors because the server was dead; it is back by then."""
        if trouble.kind is not FailureKind.SERVER_ERROR:
            return False
        return await self._off_the_clock(
            asking, self._gate.failing(asking.failing_since, self._as_probe(), self._end_of_asking)
        )

    async def _off_the_clock(self, asking: _Asking, finding_out: Awaitable[bool]) -> bool:
        """Await something that takes no time of the asking's own."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        found = await finding_out
        asking.deadline += loop.time() - began
        return found

    # --- whether a completion works -----------------------------------------------------------------------

    def _as_probe(self) -> Probe:
        return Probe(
            role=self.settings.role,
            called=f"{self._called()} at {self._shown_url}",
            ask=self._probe,
            tell=self._notify,
            sleep=self._sleep,
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

    async def _probe(self, until: float) -> Trouble | None:
        """Ask for a small completion; return why there is none, ``None`` where there is one.

        A refusal of the request itself counts as one: who refuses a text without a clip, or finds a fault
        with it, is there, and waiting changes nothing. Raises ``EndpointError`` as :meth:`ask` does, but not
        for what a server that is starting may answer, and not for a model that is not listed while none is.
        """
        loop = asyncio.get_running_loop()
        names = ("max_tokens", "max_completion_tokens")
        limits = {name: PROBE_TOKENS for name in names if name in self.settings.parameters}
        asking = _Asking(deadline=until, route=Route(fresh=True), probing=True)
        while True:
            await self._wait_while_paused(until)
            turn = await self._rate.turn(PROBE, self._sleep)
            asking.deadline = max(until, loop.time() + 1.0)
            result = await self._paid_attempt(PROBE, limits, asking)
            if isinstance(result, Reply):
                self._note_tokens(said=self._rate.correct(turn, PROBE, result))
                return None
            if result.next is Next.GIVE_UP:
                self._notify(f"{self._called()} is there, but refuses a completion: {result.message}")
                return None
            if result.next is Next.PAUSE:
                self._pause(result.pause)
            if result.next is not Next.AT_ONCE:
                return result

    def _note_tokens(self, *, said: bool) -> None:
        if self._says_tokens and not said:
            self._says_tokens = False
            self._notify(f"{self._called()} does not say how many tokens it uses; they are estimated")

    def _check_asking(self) -> None:
        if self._end_of_asking.done():
            raise asyncio.CancelledError("no more is asked: the run stops")

    async def _sleep(self, seconds: float) -> None:
        await asyncio.wait((self._end_of_asking,), timeout=seconds)
        self._check_asking()

    @property
    def _end_of_asking(self) -> asyncio.Future[None]:
        if self._no_more is None:
            raise RuntimeError("the endpoint is used outside of its context manager")
        return self._no_more

    def _allowed_tries(self, trouble: Trouble) -> int:
        nobody_there = trouble.unreachable and self._last_response is None
        return min(self.settings.tries, TRIES_UNTIL_FIRST_REPLY) if nobody_there else self.settings.tries

    def _backoff(self, failed_tries: int) -> float:
        """Full jitter: anything from nothing to the exponentially growing interval, in seconds."""
        ceiling = min(MAX_BACKOFF, self.settings.retry_interval * 2.0 ** min(failed_tries - 1, 30))
        return random.uniform(0, ceiling)  # noqa: S311 (no secret hangs on it)

    def _end(self, asking: _Asking, trouble: Trouble) -> Failure:
        """Return the Failure that this amounts to. Raises ``EndpointError`` for a server that is gone."""
        if trouble.ours:
            self._refuse(
                f"{trouble.message} ({asking.attempts} attempts). Nothing is lost: then resume the run"
            )
        last, since = self._last_response, asking.unreachable_since
        never_worked = last is None and trouble.kind is FailureKind.CONNECTION
        # Others may have been answered since: then it is not the server that is gone.
        if never_worked or (since is not None and last is not None and last < since):
            self._refuse(
                f"{trouble.message} ({asking.attempts} attempts). Is the server running, and is the URL "
                "right? Nothing is lost: start it, then resume the run (--wait-ready S waits for it)"
            )
        return Failure(trouble.kind, trouble.message, asking.attempts)

    # --- one attempt --------------------------------------------------------------------------------------

    async def _paid_attempt(
        self, messages: Sequence[Message], overrides: Mapping[str, Any], asking: _Asking
    ) -> Reply | Trouble:
        """Make an attempt if the budget has room for it. Raises ``LimitReachedError``."""
        budget, price = self._budget, self.settings.price
        if budget is None:
            return await self._attempt(messages, overrides, asking)
        stake = budget.reserve(messages, price)
        result = await self._attempt(messages, overrides, asking)
        if isinstance(result, Reply):
            return budget.settle(stake, messages, result, price)
        # Nobody is paid for being waited for, however long that takes.
        budget.release(stake, counts=not (result.unreachable or asking.probing))
        return result

    async def _attempt(
        self, messages: Sequence[Message], overrides: Mapping[str, Any], asking: _Asking
    ) -> Reply | Trouble:
        settings, form, loop = self.settings, self._form, asyncio.get_running_loop()
        sent = form.parameters({**settings.parameters, **overrides}, settings.extra_body)
        body = Body(
            {"model": settings.name, "messages": list(messages), **sent}, form.audio_part or asking.audio_form
        )
        patience = (
            min(settings.attempt_timeout, PROBE_TIMEOUT) if asking.probing else settings.attempt_timeout
        )
        limit = min(patience, asking.deadline - loop.time())
        asking.attempts += 1
        asking.route.expect = asking.route.expect and self._expect_works
        started_at, clock = time.time(), time.monotonic()
        try:
            exchanged = await self._connections.exchange(body, asking.route, limit)
        except CONNECTION_ERRORS as error:
            if body.changed is not None:
                return Trouble(FailureKind.BAD_AUDIO, body.changed, Next.GIVE_UP)
            if asking.route.answered:
                self._note_response(asking)
            return self._after_break(error, body, asking.route, limit)
        latency = time.monotonic() - clock
        if exchanged is None or (exchanged.status == 417 and asking.route.expect):
            self._expect_works = False
            message = "the server does not answer Expect: 100-continue"
            return Trouble(FailureKind.TIMEOUT, message, Next.AT_ONCE)
        self._note_response(asking)
        read = self._read(exchanged)
        if isinstance(read, Trouble):
            return read
        if isinstance(read, ServerError):
            return await self._after_refusal(exchanged, read, form, sent, asking, body)
        self._has_served, self._refusals_in_a_row = True, 0
        self._note_audio_form(body.audio_form, asking)
        return Reply(
            text=read.text,
            reasoning=read.reasoning,
            finish_reason=read.finish_reason,
            usage=read.usage,
            model=read.model,
            request_id=self._mask.text(exchanged.headers.get("x-request-id") or "") or read.id,
            parameters=sent,
            endpoint=self._shown_url,
            started_at=started_at,
            latency=latency,
            attempts=asking.attempts,
            audio_part=body.audio_form,
        )

    def _note_response(self, asking: _Asking) -> None:
        self._last_response = asyncio.get_running_loop().time()
        # What a probe was answered may be that the model is still being loaded.
        if not asking.probing:
            self._gate.heard()

    def _read(self, exchanged: Exchanged) -> Completion | ServerError | Trouble:
        if exchanged.content is None:
            # Paid for and thrown away: the next one would be no smaller.
            message = f"{exchanged.status}, but the reply has over {MAX_REPLY_BYTES >> 20} MB"
            return Trouble(FailureKind.BAD_REPLY, message, Next.GIVE_UP)
        if 200 <= exchanged.status < 300:
            return read_completion(exchanged.content, exchanged.headers.get("content-type", ""))
        return read_error(exchanged.content)

    def _after_break(self, error: BrokenError | OSError, body: Body, route: Route, limit: float) -> Trouble:
        row = meaning_of_break(error)
        reason = self._said(str(error)) or type(error).__name__
        message = self._said(row.say.format(limit=limit, error=reason))
        if is_tls(error) and self._last_response is None:
            self._refuse(message)
        trouble = Trouble(row.kind, message, row.next, unreachable=row.unreachable, ours=row.ours)
        if trouble.broken and not route.answered and not route.fresh:
            # Whatever else is in the pool may be as dead: from here on this request opens its own. And what
            # looks like a broken upload is often a refusal that was lost with the connection.
            route.fresh = True
            route.expect = body.length >= EXPECT_FROM
            if route.reused or route.expect:
                return replace(trouble, next=Next.AT_ONCE)
        return trouble

    async def _after_refusal(
        self,
        exchanged: Exchanged,
        error: ServerError,
        form: WireForm,
        sent: Mapping[str, Any],
        asking: _Asking,
        body: Body,
    ) -> Trouble:
        """Return what an error means, be it a status or inside of a 200. Raises ``EndpointError``."""
        status = exchanged.status if exchanged.status >= 300 else error.status or 200
        row = meaning_of(status, error)
        text = self._said(f"{status}: {error.message}" if error.message else f"{status}")
        if 300 <= status < 400 and (location := exchanged.headers.get("location")):
            text = f"{text}: it redirects to {self._said(location)}"
        if asking.probing and row.starting and not await self._serves_others():
            return Trouble(row.kind, text, Next.BACK_OFF)
        if row.next is Next.STOP_UNLESS_SERVED and self._has_served and not asking.probing:
            self._refusals_in_a_row += 1
            if self._refusals_in_a_row < REFUSALS_IN_A_ROW:
                return Trouble(row.kind, text, Next.GIVE_UP)
            text = f"{self._refusals_in_a_row} requests in a row were refused, the last one with {text}"
        if row.next in (Next.STOP, Next.STOP_UNLESS_SERVED):
            place = await self._place(text) if "{place}" in row.say else ""
            self._refuse(row.say.format(text=text, key=_KEY_ADVICE[self.settings.role], place=place))
        if row.next is Next.ADAPT:
            if self._adapt(error, form, sent):
                return Trouble(row.kind, text, Next.AT_ONCE)
            return self._after_audio_refusal(Trouble(row.kind, text, Next.GIVE_UP), error, asking, body)
        if row.next is Next.BACK_OFF and (pause := retry_after(exchanged.headers)) > 0:
            if pause > self.settings.total_timeout:
                self._refuse(f"it asks to wait {pause:.0f} s ({text}). Nothing is lost: resume the run then")
            return Trouble(row.kind, text, Next.PAUSE, pause=pause)
        return Trouble(row.kind, text, row.next)

    def _adapt(self, error: ServerError, form: WireForm, sent: Mapping[str, Any]) -> bool:
        """Learn from a refused form of request; whether the request may now be sent in another one."""
        if form is not self._form:
            return True  # another request has learnt it while this one was on its way
        learnt = form.after(error, sent)
        if learnt is None:
            return False
        self._form, change = learnt
        self._notify(f"{self._called()} {change}, for the rest of the run")
        return True

    def _after_audio_refusal(
        self, trouble: Trouble, error: ServerError, asking: _Asking, body: Body
    ) -> Trouble:
        """Return what a refused request amounts to that may have held a clip: another form of it, to try.

        Where a clip was taken before, in whatever form, this one is refused for what it is.
        """
        audio, form, refused = body.audio, body.audio_form, asking.audio_refusals
        if audio is None or form is None or self._form.audio_part is not None:
            return trouble
        if not refused and not speaks_of_audio_part(error):
            return trouble
        refused[form] = trouble.message
        untried = [other for other in audio.forms if other not in refused]
        if untried:
            asking.audio_form = untried[0]
            return replace(trouble, next=Next.AT_ONCE)
        first, *others = refused.items()
        if others:
            also = "; ".join(f"as {name} {clean(said, 120)}" for name, said in others)
            return replace(trouble, message=f"{first[1]} (the clip as {first[0]}; {also})")
        return replace(
            trouble,
            message=f"{trouble.message} (--audio-part {form} was given; without it, others are tried)",
        )

    def _note_audio_form(self, form: str | None, asking: _Asking) -> None:
        """Remember the form in which a clip was taken."""
        if form is None or self._form.audio_part is not None:
            return
        self._form = replace(self._form, audio_part=form)
        if asking.audio_refusals:
            refused = " and ".join(asking.audio_refusals)
            self._notify(
                f"{self._called()} refuses the clip as {refused}; it gets {form} for the rest of the run"
            )

    # --- what people are told -----------------------------------------------------------------------------

    def _refuse(self, message: str) -> NoReturn:
        raise EndpointError(self.settings.role, f"{self._called()} at {self._shown_url}: {message}")

    async def _place(self, text: str) -> str:
        """Return what is wrong with the model's name or the URL, as far as the server lets us know."""
        name, advice = self.settings.name, _PLACE_ADVICE[self.settings.role]
        served = read_models(await self._connections.listing())
        if served is None or name in served:
            return f"{text}. The model's name or the path of the URL is wrong. {advice}"
        names = self._said(", ".join(sorted(served)[:12]) or "none")
        hint = did_you_mean(name, served) or "."
        return f"it does not know the model ({text}){hint} It serves: {names}. {advice}"

    async def _serves_others(self) -> bool:
        """Whether the server lists models, and not ours: then there is nothing to wait for."""
        served = read_models(await self._connections.listing())
        return bool(served) and self.settings.name not in (served or ())

    def _called(self) -> str:
        return f"the {self.settings.role} {self.settings.name!r}"

    def _said(self, text: str) -> str:
        """Return what a server or library said: without our key, which some repeat, and not too long."""
        return clean(self._mask.text(text))

    # --- pauses -------------------------------------------------------------------------------------------

    def _pause(self, seconds: float) -> None:
        now = asyncio.get_running_loop().time()
        # Not less than a first back-off: a fraction of a second, asked for again and again, is a flood.
        until = now + max(seconds, min(1.0, self.settings.retry_interval))
        if until > max(self._paused_until, now) + 1:
            self._notify(f"{self._called()} asks to wait {seconds:.0f} s; all requests to it wait")
        self._paused_until = max(self._paused_until, until)

    async def _wait_while_paused(self, deadline: float) -> None:
        loop = asyncio.get_running_loop()
        # A pause may have grown meanwhile.
        while (left := min(self._paused_until, deadline) - loop.time()) > 0:
            # A little later than asked, spread out: the lower bound holds, and not all come at once.
            spread = random.uniform(0, min(1.0, 0.1 * left))  # noqa: S311 (jitter)
            await self._sleep(min(left + spread, deadline - loop.time()))
