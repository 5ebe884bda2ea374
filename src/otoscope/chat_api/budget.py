"""What a user lets the judge use: calls, tokens and money, set aside before a call and settled after it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from otoscope.chat_api.rate import estimated_tokens
from otoscope.chat_api.wire_form import Message
from otoscope.config import JudgeLimits
from otoscope.errors import LimitReachedError, counted
from otoscope.records import Estimate, Price, Reply, Spent, token_count, tokens_spent

TYPICAL_VERDICT_TOKENS = 4.0
"""Of a judge that writes two numbers and nothing else; it counts until a reply says how many they are."""

_FLAGS = {"calls": "--max-judge-calls", "tokens": "--max-judge-tokens", "cost": "--max-cost"}
_ROOM = 1.1
"""How much more than what is expected a limit has that should be enough."""


@dataclass(frozen=True, slots=True)
class Stake:
    """What one call is expected to use, set aside while it is in flight."""

    guessed: float = 0.0
    """Tokens of the request by its characters."""
    tokens: float = 0.0
    cost: float = 0.0


_NOTHING = Stake()


class Budget:
    """What all judges of one command may use together, and what was used. To be used in one event loop.

    Of calls there are never more than the limit. Under a limit of tokens or cost a call is made only while
    what was used, what the calls in flight are expected to use, and what it is itself expected to use are
    within it; so it can be passed by no more than what replies in flight at the end have beyond what was
    expected. That is what the texts come to by their characters, in the ratio that the server's own counts
    had to this so far, and a reply of the mean length so far. Once a reply is there, its usage counts. A
    call without a reply counts as a call, and no tokens; one that was not even sent counts for nothing.
    """

    def __init__(self, limits: JudgeLimits) -> None:
        self.spent = Spent()
        self.cost: float | None = None
        """Of all tokens that have a price; ``None`` while none had one."""
        self._limits = limits
        self._by_tokens = limits.tokens is not None or limits.cost is not None
        self._staked_tokens = self._staked_cost = 0.0
        self._guessed = self._said = 0.0
        """Tokens of requests: by their characters, and what the servers said of the same ones."""
        self._reached: str | None = None

    def count(self, spent: Spent, price: Price | None) -> None:
        """Count what a run used before."""
        self.spent.add(spent)
        self._pay(spent.prompt_tokens, spent.completion_tokens, price)

    def reserve(self, messages: Sequence[Message], price: Price | None) -> Stake:
        """Count a call that is about to be made, and set aside what it is expected to use.

        Raises ``LimitReachedError`` when a limit leaves no room for it, and from then on always.
        """
        stake = self._expected(messages, price) if self._by_tokens else _NOTHING
        self._reached = self._reached or self._passed(1, stake.tokens, stake.cost)
        if self._reached is not None:
            raise self.error()
        self.spent.calls += 1
        self._staked_tokens += stake.tokens
        self._staked_cost += stake.cost
        return stake

    def release(self, stake: Stake, *, counts: bool = True) -> None:
        """Give back what was set aside for a call that is over; ``counts`` says whether it was one."""
        self._staked_tokens -= stake.tokens
        self._staked_cost -= stake.cost
        # What is told of a limit that was reached has to add up.
        if not counts and self._reached is None:
            self.spent.calls -= 1

    def settle(self, stake: Stake, messages: Sequence[Message], reply: Reply, price: Price | None) -> Reply:
        """Put what a call used in the place of what was set aside for it.

        Returned is the reply, with an estimate of its tokens where the server did not tell them.
        """
        self.release(stake)
        reply = _with_tokens(reply, messages)
        prompt = tokens_spent(reply, "prompt_tokens")
        self.spent.add_reply(reply.usage, reply.estimated)
        self._pay(prompt, tokens_spent(reply, "completion_tokens"), price)
        self._guessed += stake.guessed
        self._said += prompt if stake.guessed else 0.0
        return reply

    def warning(self, estimate: Estimate) -> str | None:
        """Return what is to be said where more is owed, by an estimate, than a limit leaves."""
        tokens = estimate.prompt_tokens + estimate.completion_tokens
        passed = self._passed(estimate.calls, tokens, estimate.cost or 0.0) if estimate.calls else None
        if passed is None:
            return None
        return (
            f"{_FLAGS[passed]} {getattr(self._limits, passed):,.12g} will probably be reached before all "
            "verdicts are there: the run then stops, and can be resumed"
        )

    def error(self, owed: int | None = None) -> LimitReachedError:
        """Return what says that the limit was reached, and that so many verdicts are owed still."""
        reached, spent = self._reached or "calls", self.spent
        limit, used = getattr(self._limits, reached), self._used(reached)
        told = f"{counted(spent.calls, 'call')}, {spent.prompt_tokens:,} tokens in"
        told += f", {spent.completion_tokens:,} out"
        told += f" (of {spent.estimated:,} replies estimated)" if spent.estimated else ""
        told += f", cost {self.cost:,.6g}" if self.cost is not None else ""
        fits = "" if reached == "calls" else ", and no further call fits"
        be = "is" if owed == 1 else "are"
        left = f" {counted(owed, 'verdict')} {be} owed still." if owed is not None else ""
        # By what was used for each reply so far; before the first one nothing is known.
        more = _ROOM * used / spent.replies * (owed or 0) if spent.replies else limit
        return LimitReachedError(
            f"{_FLAGS[reached]} {limit:,.12g} is reached: {told}, sessions before this one included{fits}."
            f"{left}",
            flag=_FLAGS[reached],
            enough=_rounded_up(max(used + more, _ROOM * limit)),
        )

    def _expected(self, messages: Sequence[Message], price: Price | None) -> Stake:
        guessed, spent = estimated_tokens(messages), self.spent
        prompt = guessed * (self._said / self._guessed if self._guessed else 1.0)
        completion = spent.completion_tokens / spent.replies if spent.replies else TYPICAL_VERDICT_TOKENS
        return Stake(guessed, prompt + completion, 0.0 if price is None else price.of(prompt, completion))

    def _pay(self, prompt: float, completion: float, price: Price | None) -> None:
        if price is not None:
            self.cost = (self.cost or 0.0) + price.of(prompt, completion)

    def _passed(self, calls: int, tokens: float, cost: float) -> str | None:
        """Return the limit that so much more would pass; ``None``: none."""
        limits = self._limits
        if limits.calls is not None and self._used("calls") + calls > limits.calls:
            return "calls"
        if limits.tokens is not None and self._used("tokens") + self._staked_tokens + tokens > limits.tokens:
            return "tokens"
        if limits.cost is not None and self._used("cost") + self._staked_cost + cost > limits.cost:
            return "cost"
        return None

    def _used(self, what: str) -> float:
        match what:
            case "calls":
                return self.spent.calls
            case "tokens":
                return self.spent.prompt_tokens + self.spent.completion_tokens
            case _:
                return self.cost or 0.0


def _with_tokens(reply: Reply, messages: Sequence[Message]) -> Reply:
    """Return a reply with an estimate of what the server did not say of its tokens."""
    estimated: dict[str, int] = {}
    texts = [reply.text or "", reply.reasoning or ""]
    # Some servers say 0 for what they do not count.
    if not token_count(reply, "prompt_tokens"):
        estimated["prompt_tokens"] = math.ceil(estimated_tokens(messages))
    completion = token_count(reply, "completion_tokens")
    if completion is None or (not completion and any(texts)):
        estimated["completion_tokens"] = math.ceil(estimated_tokens(texts))
    return replace(reply, estimated=estimated) if estimated else reply


def _rounded_up(number: float) -> float:
    """Return a number of two digits that is not smaller."""
    unit = 10.0 ** (math.floor(math.log10(number)) - 1)
    rounded = math.ceil(round(number / unit, 9)) * unit
    return round(rounded) if unit >= 1 else float(f"{rounded:.2g}")
