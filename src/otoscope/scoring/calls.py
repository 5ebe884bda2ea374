"""What an endpoint's replies add up to."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from otoscope.records import Json, Reply, token_count
from otoscope.scoring.samples import mean


@dataclass(slots=True)
class Calls:
    """What one endpoint's replies add up to."""

    replies: int = 0
    tokens: Counter[str] = field(default_factory=Counter)
    names: Counter[str] = field(default_factory=Counter)
    endpoints: Counter[str] = field(default_factory=Counter)
    parameters: Counter[str] = field(default_factory=Counter)
    """As JSON with sorted keys, so that it does not matter which reply came first."""
    latencies: list[float] = field(default_factory=list)
    first: float = math.inf
    last: float = -math.inf

    def add(self, replies: Iterable[Reply]) -> None:
        """Add replies, each of which was paid for."""
        for reply in replies:
            self.replies += 1
            for name in ("prompt_tokens", "completion_tokens"):
                self.tokens[name] += token_count(reply, name) or 0
            self.names[reply.model or "not named"] += 1
            self.endpoints[reply.endpoint or "?"] += 1
            self.parameters[_sorted_json(reply.parameters)] += 1
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
        }

    def usage(self) -> Json:
        """Return the number of replies and of tokens."""
        return {
            "replies": self.replies,
            **{n: self.tokens[n] for n in ("prompt_tokens", "completion_tokens")},
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
