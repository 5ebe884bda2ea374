"""One server: single attempts at it, its pauses, and what is learnt of it meanwhile."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from otoscope.chat_api.asking import Asking, EndOfAsking
from otoscope.chat_api.body import Body
from otoscope.chat_api.budget import Budget
from otoscope.chat_api.connections import MAX_REPLY_BYTES, BrokenError, Connections, Exchanged, Route
from otoscope.chat_api.rate import RateLimit, Turn
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
from otoscope.config import PROVIDERS, EndpointSettings
from otoscope.errors import EndpointError, did_you_mean
from otoscope.records import FailureKind, Reply

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

_KEY_ADVICE = {
    "model": "Give the right one with --api-key-file, OTOSCOPE_API_KEY or --api-key",
    "judge": "Give the right one with --judge-api-key-file, OTOSCOPE_JUDGE_API_KEY, OPENAI_API_KEY or "
    "--judge-api-key",
}
_PLACE_ADVICE = {
    "model": "Check --model and --api-url",
    "judge": "Check --judge-model and --judge-api-url, or judge in here with --judge-model embedded",
}


def _key_advice(settings: EndpointSettings) -> str:
    """Return how the right key is given."""
    variable = None if settings.provider is None else PROVIDERS[settings.provider].key
    return _KEY_ADVICE[settings.role] + (f"; for --provider it is read from {variable}" if variable else "")


def called(settings: EndpointSettings) -> str:
    """Return what an endpoint is called when people are told of it."""
    return f"the {settings.role} {settings.name!r}"


class Server:
    """A server that is asked for one model. Attempts may be made concurrently.

    What the server makes us change (a parameter's name, streaming) is learnt once and kept for the life
    of this object; ``notify`` gets a sentence about each change and each pause. ``served_before``
    says that it served this run before: then a refusal that may be one sample's is taken for that. ``rate``
    is what it shares with others, ``budget`` what its requests are paid from, and ``end`` when no more is
    asked. ``heard`` is called when it has answered anything but a probe. ``called`` is its name for people.
    Raises ``ConfigError`` for a proxy in the environment that cannot be used.
    """

    def __init__(
        self,
        settings: EndpointSettings,
        notify: Callable[[str], None],
        *,
        called: str,
        served_before: bool,
        rate: RateLimit,
        budget: Budget | None,
        end: EndOfAsking,
        heard: Callable[[], None],
    ) -> None:
        self.settings = settings
        self.called = called
        self.last_response: float | None = None
        """When it answered last, whatever it said; a time of the event loop."""
        self.paused_until = 0.0
        """Until when it asked all requests to wait; a time of the event loop."""
        self._shown_url = settings.shown_url
        self._notify = notify
        self._connections = Connections(settings)
        self._mask = self._connections.mask
        self._form = WireForm(stream=settings.stream)
        self._expect_works = True
        self._rate = rate
        self._budget = budget
        self._end = end
        self._heard = heard
        self._says_tokens = True
        self._has_served = served_before
        self._refusals_in_a_row = 0

    async def open(self) -> None:
        """Get ready; needs the running event loop."""
        await self._connections.open()

    async def close(self) -> None:
        """Close every connection."""
        await self._connections.close()

    @property
    def place(self) -> str:
        """Who is asked, and where, for people."""
        return f"{called(self.settings)} at {self._shown_url}"

    def note_tokens(self, turn: Turn, messages: Sequence[Message], reply: Reply) -> None:
        """Correct by a reply what its turn took of the limits."""
        said = self._rate.correct(turn, messages, reply)
        if self._says_tokens and not said:
            self._says_tokens = False
            self._notify(f"{self.called} does not say how many tokens it uses; they are estimated")

    async def probe(self, until: float) -> Trouble | None:
        """Ask for a small completion; return why there is none, ``None`` where there is one.

        A refusal of the request itself counts as one: who refuses a text without a clip, or finds a fault
        with it, is there, and waiting changes nothing. Raises ``EndpointError`` as :meth:`attempt` does, but
        not for what a server that is starting may answer, and not for a model that is not listed while none
        is.
        """
        loop = asyncio.get_running_loop()
        names = ("max_tokens", "max_completion_tokens")
        limits = {name: PROBE_TOKENS for name in names if name in self.settings.parameters}
        asking = Asking(deadline=until, route=Route(fresh=True), probing=True)
        while True:
            await self.wait_while_paused(until)
            turn = await self._rate.turn(PROBE, self._end.sleep)
            asking.deadline = max(until, loop.time() + 1.0)
            result = await self.attempt(PROBE, limits, asking)
            if isinstance(result, Reply):
                self.note_tokens(turn, PROBE, result)
                return None
            if result.next is Next.GIVE_UP:
                self._notify(f"{self.called} is there, but refuses a completion: {result.message}")
                return None
            if result.next is Next.PAUSE:
                self.pause(result.pause)
            if result.next is not Next.AT_ONCE:
                return result

    # --- one attempt --------------------------------------------------------------------------------------

    async def attempt(
        self, messages: Sequence[Message], overrides: Mapping[str, Any], asking: Asking
    ) -> Reply | Trouble:
        """Make an attempt if the budget has room for it.

        Raises ``LimitReachedError``, and ``EndpointError`` where no other request would fare better.
        """
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
        self, messages: Sequence[Message], overrides: Mapping[str, Any], asking: Asking
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

    def _note_response(self, asking: Asking) -> None:
        self.last_response = asyncio.get_running_loop().time()
        # What a probe was answered may be that the model is still being loaded.
        if not asking.probing:
            self._heard()

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
        if is_tls(error) and self.last_response is None:
            self.refuse(message)
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
        asking: Asking,
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
            self.refuse(row.say.format(text=text, key=_key_advice(self.settings), place=place))
        if row.next is Next.ADAPT:
            if self._adapt(error, form, sent):
                return Trouble(row.kind, text, Next.AT_ONCE)
            return self._after_audio_refusal(Trouble(row.kind, text, Next.GIVE_UP), error, asking, body)
        if row.next is Next.BACK_OFF and (pause := retry_after(exchanged.headers)) > 0:
            if pause > self.settings.total_timeout:
                self.paused_until = asyncio.get_running_loop().time() + pause
                self.refuse(f"it asks to wait {pause:.0f} s ({text}). Nothing is lost: resume the run then")
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
        self._notify(f"{self.called} {change}, for the rest of the run")
        return True

    def _after_audio_refusal(
        self, trouble: Trouble, error: ServerError, asking: Asking, body: Body
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

    def _note_audio_form(self, form: str | None, asking: Asking) -> None:
        """Remember the form in which a clip was taken."""
        if form is None or self._form.audio_part is not None:
            return
        self._form = replace(self._form, audio_part=form)
        if asking.audio_refusals:
            refused = " and ".join(asking.audio_refusals)
            self._notify(
                f"{self.called} refuses the clip as {refused}; it gets {form} for the rest of the run"
            )

    # --- what people are told -----------------------------------------------------------------------------

    def refuse(self, message: str) -> NoReturn:
        """Raise the ``EndpointError`` that says this of the server."""
        raise EndpointError(self.settings.role, f"{self.place}: {message}")

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

    def _said(self, text: str) -> str:
        """Return what a server or library said: without our key, which some repeat, and not too long."""
        return clean(self._mask.text(text))

    # --- pauses -------------------------------------------------------------------------------------------

    def pause(self, seconds: float) -> None:
        """Note that it asked all requests to wait for some seconds."""
        now = asyncio.get_running_loop().time()
        # Not less than a first back-off: a fraction of a second, asked for again and again, is a flood.
        until = now + max(seconds, min(1.0, self.settings.retry_interval))
        if until > max(self.paused_until, now) + 1:
            self._notify(f"{self.called} asks to wait {seconds:.0f} s; all requests to it wait")
        self.paused_until = max(self.paused_until, until)

    async def wait_while_paused(self, deadline: float) -> None:
        """Wait until it may be asked again, or a time of the event loop."""
        loop = asyncio.get_running_loop()
        # A pause may have grown meanwhile.
        while (left := min(self.paused_until, deadline) - loop.time()) > 0:
            # A little later than asked, spread out: the lower bound holds, and not all come at once.
            spread = random.uniform(0, min(1.0, 0.1 * left))  # noqa: S311 (jitter)
            await self._end.sleep(min(left + spread, deadline - loop.time()))
