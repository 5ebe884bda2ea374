"""The limits that a user sets for a hosted service: requests and tokens a minute, as token buckets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from otoscope.chat_api.body import AudioData, AudioPart
from otoscope.chat_api.wire_form import Message
from otoscope.records import Reply

BURST_SECONDS = 5.0
"""How many seconds' worth of a limit may be used at once after a time without requests."""
CHARACTERS_PER_TOKEN = 4.0
TOKENS_PER_AUDIO_SECOND = 25.0
"""What audio encoders commonly make of a second. It counts until the first reply says how many they were."""

_LOOK_AGAIN = 1.0
"""Seconds after which who is next looks again: a reply that came meanwhile may have given tokens back."""
_SHORTEST_WAIT = 0.001
"""Seconds. What is missing after rounding would be waited for in steps too small to move the clock."""
_MOST_TOKENS = 1e8
"""A larger count for one request is a server's error: believed, it would stop the run for hours."""


class Bucket:
    """What may still be used of one limit: it fills continuously, and holds a few seconds' worth.

    ``per_minute`` is the limit, in units a minute; ``clock`` gives seconds. In any span of t seconds, what
    was taken before the last taking is at most ``capacity + rate * t`` units.
    """

    def __init__(self, per_minute: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate = per_minute / 60
        """Units a second."""
        self.capacity = max(1.0, self.rate * BURST_SECONDS)
        self._clock = clock
        self._level = self.capacity
        self._filled_at = clock()

    def seconds_until(self, amount: float) -> float:
        """Return how long it takes, in seconds, until so many units may be taken; 0: now.

        More than the bucket can hold may be taken when it is full.
        """
        self._fill()
        missing = min(amount, self.capacity) - self._level
        return max(missing / self.rate, _SHORTEST_WAIT) if missing > 0 else 0.0

    def take(self, amount: float) -> None:
        """Take so many units, whether they are there or not; a negative amount gives back."""
        self._fill()
        self._level = min(self.capacity, self._level - amount)

    def _fill(self) -> None:
        now = self._clock()
        self._level = min(self.capacity, self._level + (now - self._filled_at) * self.rate)
        self._filled_at = now


@dataclass(frozen=True, slots=True)
class Turn:
    """One attempt's turn: the tokens taken for it, and the seconds waited for it."""

    tokens: float = 0.0
    waited: float = 0.0


class RateLimit:
    """The limits of one service, in requests and tokens a minute (``None``: none), and the line before it.

    For the tokens of an attempt, the mean of all replies so far is taken beforehand; before the first reply,
    what its text and clip come to by :data:`CHARACTERS_PER_TOKEN` and :data:`TOKENS_PER_AUDIO_SECOND`. What
    the reply's usage says corrects that. An attempt without a reply keeps what was taken: the service may
    have done the work. To be used in one event loop.
    """

    def __init__(
        self, rpm: float | None, tpm: float | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._requests = None if rpm is None else Bucket(rpm, clock)
        self._tokens = None if tpm is None else Bucket(tpm, clock)
        self._line = asyncio.Lock()
        self._replies = 0
        self._used = 0.0

    async def turn(self, messages: Sequence[Message], sleep: Callable[[float], Awaitable[None]]) -> Turn:
        """Wait until an attempt may begin, first come, first served, and take what it needs.

        ``sleep`` waits for some seconds; whatever it raises ends the waiting, and nothing is taken.
        """
        if self._requests is None and self._tokens is None:
            return Turn()
        joined = self._clock()
        # A lock serves in the order of arrival, so that only who is next looks at the clock.
        async with self._line:
            tokens = self._expected(messages)
            while (left := self._seconds_until_next(tokens)) > 0:
                await sleep(min(left, _LOOK_AGAIN))
                tokens = self._expected(messages)
            self._take(1, tokens)
        return Turn(tokens, self._clock() - joined)

    def give_back(self, turn: Turn) -> None:
        """Give back what was taken for an attempt that was not made."""
        self._take(-1, -turn.tokens)

    def correct(self, turn: Turn, messages: Sequence[Message], reply: Reply) -> bool:
        """Take or give back what the reply's tokens differ by; whether it said how many they were.

        Without that, they are estimated from request and reply.
        """
        if self._tokens is None:
            return True
        said = tokens_used(reply.usage or {})
        texts = (reply.text or "", reply.reasoning or "")
        used = sum(map(estimated_tokens, (messages, *texts))) if said is None else said
        self._tokens.take(used - turn.tokens)
        self._replies += 1
        self._used += used
        return said is not None

    def _expected(self, messages: Sequence[Message]) -> float:
        if self._tokens is None:
            return 0.0
        return self._used / self._replies if self._replies else estimated_tokens(messages)

    def _seconds_until_next(self, tokens: float) -> float:
        requests = 0.0 if self._requests is None else self._requests.seconds_until(1)
        return requests if self._tokens is None else max(requests, self._tokens.seconds_until(tokens))

    def _take(self, requests: float, tokens: float) -> None:
        if self._requests is not None:
            self._requests.take(requests)
        if self._tokens is not None:
            self._tokens.take(tokens)


def tokens_used(usage: Mapping[str, Any]) -> float | None:
    """Return the tokens of request and reply by what the server says, or ``None`` where it does not."""
    total, prompt, completion = (_count(usage.get(f"{n}_tokens")) for n in ("total", "prompt", "completion"))
    return total or prompt + completion or None


def _count(value: Any) -> float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if is_number and 0 < value <= _MOST_TOKENS else 0.0


def estimated_tokens(content: Any) -> float:
    """Return about how many tokens the texts and clips in messages, or in any part of them, come to."""
    return sum(_estimates(content))


def _estimates(content: Any) -> Iterator[float]:
    if isinstance(content, str):
        yield len(content) / CHARACTERS_PER_TOKEN
    elif isinstance(content, (AudioPart, AudioData)):
        clip = content.clip
        yield (clip.seconds if clip.sent is None else clip.sent.seconds) * TOKENS_PER_AUDIO_SECOND
    elif isinstance(content, (Mapping, list, tuple)):
        for part in content.values() if isinstance(content, Mapping) else content:
            yield from _estimates(part)
