"""What an endpoint's replies add up to."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from otoscope.records import Json, Price, Reply, tokens_spent
from otoscope.scoring.samples import mean


@dataclass(slots=True)
class Calls:
    """What one endpoint's replies add up to."""

    replies: int = 0
    requests: int = 0
    """Those that brought no reply included."""
    estimated: int = 0
    """Replies whose tokens, or some of them, were estimated."""
    tokens: Counter[str] = field(default_factory=Counter)
    names: Counter[str] = field(default_factory=Counter)
    endpoints: Counter[str] = field(default_factory=Counter)
    parameters: Counter[str] = field(default_factory=Counter)
    """As JSON with sorted keys, so that it does not matter which reply came first."""
    audio_parts: Counter[str] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)
    first: float = math.inf
    last: float = -math.inf

    def add(self, replies: Iterable[Reply]) -> None:
        """Add replies, each of which was paid for."""
        for reply in replies:
            self.replies += 1
            self.requests += reply.attempts
            self.estimated += reply.estimated is not None
            for name in ("prompt_tokens", "completion_tokens"):
                self.tokens[name] += tokens_spent(reply, name)
            self.names[reply.model or "not named"] += 1
            self.endpoints[reply.endpoint or "?"] += 1
            self.parameters[_sorted_json(reply.parameters)] += 1
            if reply.audio_part is not None:
                self.audio_parts[reply.audio_part] += 1
            if reply.started_at:  # else imported: nobody knows when
                self.latencies.append(reply.latency)
                self.first = min(self.first, reply.started_at)
                self.last = max(self.last, reply.started_at + reply.latency)

    def observed(self) -> Json:
        """Return the names that the server returned, its endpoints and what was sent, each with counts."""
        return {
            "names": dict(sorted(self.names.items())),
            "endpoints": dict(sorted(self.endpoints.items())),
            "parameters": [
                {"sent": json.loads(sent), "replies": count}
                for sent, count in sorted(self.parameters.items(), key=lambda entry: (-entry[1], entry[0]))
            ],
            **({"audio_parts": dict(sorted(self.audio_parts.items()))} if self.audio_parts else {}),
        }

    def usage(self) -> Json:
        """Return the number of replies and of tokens."""
        return {
            "replies": self.replies,
            **{n: self.tokens[n] for n in ("prompt_tokens", "completion_tokens")},
        }

    def spent(self, price: Price | None) -> Json:
        """Return also the number of requests, and what the tokens cost; ``None`` without a price."""
        tokens = self.tokens["prompt_tokens"], self.tokens["completion_tokens"]
        return {
            "calls": self.requests,
            **self.usage(),
            "estimated_replies": self.estimated,
            "price": None if price is None else {"prompt": price.prompt, "completion": price.completion},
            "cost": None if price is None else round(price.of(*tokens), 6),
        }

    def timing(self) -> Json | None:
        """Return latencies (s) and the first and last moment (Unix time); ``None`` when no reply tells."""
        if not self.latencies:
            return None
        return {
            "mean_latency": round(mean(self.latencies), 4),
            "total_latency": round(math.fsum(self.latencies), 3),
            "first_at": self.first,
            "last_at": round(self.last, 3),
        }


def plain(value: Any) -> Any:
    """Return mappings, tuples and lists as plain JSON objects and lists."""
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


_sorted_json = json.JSONEncoder(sort_keys=True, default=plain).encode
