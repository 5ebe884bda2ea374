"""A chat server on loopback that costs next to nothing; a request's hash gives its latency and its reply.

    python benchmarks/loopback_server.py --port 8000 --latencies

It speaks enough of the OpenAI chat interface for a model and a judge behind one URL. What is asked of the
model ``judge`` is a verdict, everything else an answer. A request's body is hashed as it arrives and never
kept or parsed: a clip of a megabyte costs its way through the socket and the hash. The same body always gets
the same reply after the same latency, so two clients, and two runs of one, meet the same server.

``GET /stats`` tells as JSON what was counted since the last ``POST /reset``. The body of ``/reset`` is a JSON
object that may set ``answer_latency`` and ``verdict_latency`` (mean seconds, 0 for none), ``sigma`` (of the
lognormal), ``keep_seen`` (true: requests made before still make duplicates of those that come) and ``faults``
(share of the requests that meet one of :data:`FAULTS`, in their first two attempts).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import resource
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any, Literal

import httptools
import uvloop
import xxhash

ANSWER_LATENCY, VERDICT_LATENCY, SIGMA = 1.0, 0.5, 0.5
"""The lognormal's means (seconds) and its sigma, with ``--latencies``."""
JUDGE = "judge"
"""The model's name that is asked for verdicts."""

Kind = Literal["answers", "verdicts"]
Fault = Literal["429", "500", "cut", "drop", "truncated", "unclear", "drip", "closed"]
FAULTS: tuple[Fault, ...] = ("429", "500", "cut", "drop", "truncated", "unclear", "drip", "closed")
"""Too many requests; server error; connection cut in the middle of the reply, or reset instead of one; JSON
that ends too soon; a reply without scores (of the model: none); a reply in pieces; a connection that was to
be kept and is closed after the reply."""
FAULTY_ATTEMPTS = 2
"""A request meets a fault in its first attempts alone, so that every one is served in the end."""
RETRY_AFTER = 0.1
"""Seconds that a 429 asks for."""
DRIP = 0.02
"""Seconds between the pieces of a reply that comes in ten."""

_EDGE = 2048
"""Bytes kept of both ends of a body: the model's name is there, whichever side a client puts it on."""
_WORDS = (
    "a the calm voice speaks while rain falls on leaves and guitar plays slow chords before applause rises "
    "then drums enter with bass under bright piano notes near traffic far thunder dog barks woman laughs"
).split()
_NORMAL = NormalDist()
_CHAT = b"/chat/completions"
_REASONS = {
    200: b"OK",
    400: b"Bad Request",
    404: b"Not Found",
    429: b"Too Many Requests",
    500: b"Internal Server Error",
}
_RE_ASKED = b'"assistant"'
"""Stands in a request, with these quotes, only where the judge is asked once more after a reply."""


@dataclass
class Latencies:
    """How long replies take: a lognormal with these means (seconds); a mean of 0 is none at all."""

    answers: float = 0.0
    verdicts: float = 0.0
    sigma: float = SIGMA

    def of(self, kind: Kind, digest: int) -> float:
        """Return the latency (s) of the request with this 128-bit digest."""
        mean = self.answers if kind == "answers" else self.verdicts
        if mean <= 0:
            return 0.0
        # Never 0 or 1, where the quantile is infinite.
        share = ((digest & 0xFFFFFFFF) + 0.5) / 2**32
        return math.exp(math.log(mean) - self.sigma**2 / 2 + self.sigma * _NORMAL.inv_cdf(share))


@dataclass
class Counts:
    """What was counted since the last reset."""

    requests: Counter[Kind] = field(default_factory=Counter)
    duplicates: Counter[Kind] = field(default_factory=Counter)
    faults: Counter[Fault] = field(default_factory=Counter)
    bytes_in: int = 0
    """Of the bodies of chat requests."""
    reply_bytes: int = 0
    """Of the bodies of the replies to them."""
    text_bytes: int = 0
    """Of the texts in those replies."""
    unsent: int = 0
    """Replies whose connection was gone by then."""
    latency_sum: float = 0.0
    connections: int = 0
    first_request: float | None = None
    """Unix time at which the head of the first chat request had come."""
    last_reply: float | None = None
    """Unix time at which the last reply was written."""
    in_flight: int = 0
    in_flight_max: int = 0
    _area: float = 0.0
    _since: float | None = None
    _changed: float = 0.0

    def moved(self, by: int) -> None:
        """Note that one request more (1) or less (-1) waits for its reply."""
        now = time.monotonic()
        if self._since is None:
            self._since = self._changed = now
        self._area += self.in_flight * (now - self._changed)
        self._changed = now
        self.in_flight += by
        self.in_flight_max = max(self.in_flight_max, self.in_flight)

    def told(self) -> dict[str, Any]:
        """Return the counts as ``GET /stats`` gives them."""
        span = 0.0 if self._since is None else self._changed - self._since
        return {
            "requests": {"answers": self.requests["answers"], "verdicts": self.requests["verdicts"]},
            "duplicates": {"answers": self.duplicates["answers"], "verdicts": self.duplicates["verdicts"]},
            "faults": dict(self.faults),
            "bytes_in": self.bytes_in,
            "reply_bytes": self.reply_bytes,
            "text_bytes": self.text_bytes,
            "unsent": self.unsent,
            "latency_sum": round(self.latency_sum, 3),
            "connections": self.connections,
            "first_request": self.first_request,
            "last_reply": self.last_reply,
            "in_flight": self.in_flight,
            "in_flight_max": self.in_flight_max,
            "in_flight_mean": round(self._area / span, 2) if span else 0.0,
            "span": round(span, 3),
        }


class State:
    """What all connections share."""

    def __init__(self, latencies: Latencies) -> None:
        self.latencies = latencies
        self.counts = Counts()
        self.seen: Counter[int] = Counter()
        """How often each request has come, by its digest."""
        self.fault_share = 0.0
        self._cpu_before = _cpu()

    def reset(self, wanted: dict[str, Any]) -> None:
        """Begin to count anew; see the module for what may be asked for."""
        self.latencies = Latencies(
            float(wanted.get("answer_latency", self.latencies.answers)),
            float(wanted.get("verdict_latency", self.latencies.verdicts)),
            float(wanted.get("sigma", self.latencies.sigma)),
        )
        self.fault_share = float(wanted.get("faults", 0.0))
        self.counts = Counts()
        self._cpu_before = _cpu()
        if not wanted.get("keep_seen"):
            self.seen.clear()

    def told(self) -> dict[str, Any]:
        """Return what ``GET /stats`` gives."""
        return {**self.counts.told(), "cpu": round(_cpu() - self._cpu_before, 3)}


class Connection(asyncio.Protocol):
    """One client's connection: requests one after the other, each answered after its latency."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:  # noqa: D102 (asyncio's)
        self._transport = transport  # type: ignore[assignment]
        self._state.counts.connections += 1

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: D102 (asyncio's)
        self._transport = None

    def data_received(self, data: bytes) -> None:  # noqa: D102 (asyncio's)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._reply(400, {"error": {"message": f"this is not HTTP: {error}"}})
            if self._transport is not None:
                self._transport.close()

    # --- what the HTTP parser calls, in this order --------------------------------------------------------

    def on_message_begin(self) -> None:  # noqa: D102
        self._url = b""
        self._hash = xxhash.xxh3_128()
        self._head = self._tail = b""
        self._size = 0

    def on_url(self, url: bytes) -> None:  # noqa: D102
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:  # noqa: D102
        if name.lower() == b"expect" and value.lower() == b"100-continue" and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_headers_complete(self) -> None:  # noqa: D102
        self._path = self._url.partition(b"?")[0]
        counts = self._state.counts
        if counts.first_request is None and self._path.endswith(_CHAT):
            counts.first_request = time.time()

    def on_body(self, body: bytes) -> None:  # noqa: D102
        self._hash.update(body)
        self._size += len(body)
        if len(self._head) < _EDGE:
            self._head += body[: _EDGE - len(self._head)]
        self._tail = body[-_EDGE:] if len(body) >= _EDGE else (self._tail + body)[-_EDGE:]

    def on_message_complete(self) -> None:  # noqa: D102
        method = self._parser.get_method()
        if method == b"POST" and self._path.endswith(_CHAT):
            self._chat()
        elif method == b"GET" and self._path == b"/stats":
            self._reply(200, self._state.told())
        elif method == b"POST" and self._path == b"/reset":
            self._state.reset(json.loads(self._head or b"{}"))
            self._reply(200, {})
        elif method == b"GET" and self._path.endswith(b"/models"):
            names = ("model", JUDGE)
            self._reply(200, {"object": "list", "data": [{"id": n, "object": "model"} for n in names]})
        else:
            self._reply(404, {"error": {"message": f"there is no {self._path.decode('latin-1')}"}})

    # --- replies ------------------------------------------------------------------------------------------

    def _chat(self) -> None:
        state, digest = self._state, self._hash.intdigest()
        # At a time when the state is reset, what is still in flight belongs to the counts before.
        counts = state.counts
        model = _model(self._head, self._tail)
        kind: Kind = "verdicts" if model == JUDGE else "answers"
        attempt = state.seen[digest]
        if attempt:
            counts.duplicates[kind] += 1
        state.seen[digest] += 1
        counts.requests[kind] += 1
        counts.bytes_in += self._size
        counts.moved(1)
        latency = state.latencies.of(kind, digest)
        counts.latency_sum += latency
        as_json = b"JSON" in self._head or b"JSON" in self._tail
        text = _verdict(digest, as_json=as_json) if kind == "verdicts" else _answer(digest)
        fault = _fault(state.fault_share, digest, attempt)
        if fault == "unclear":
            fault = None if kind == "answers" or _RE_ASKED in self._tail else fault
            text = text if fault is None else "Both of them are good."
        if fault is not None:
            counts.faults[fault] += 1
        reply = _completion(model, text, digest, self._size)
        if fault is not None and fault != "unclear":
            self._misbehave(fault, reply)
            counts.moved(-1)
        elif latency:
            asyncio.get_running_loop().call_later(latency, self._finish, counts, reply, len(text))
        else:
            self._finish(counts, reply, len(text))

    def _misbehave(self, fault: Fault, reply: bytes) -> None:
        """Do to a request what the fault says; ``reply`` is the good one."""
        if self._transport is None:
            return
        if fault == "429":
            self._reply(429, {"error": {"message": "slow down"}}, b"Retry-After: %g\r\n" % RETRY_AFTER)
        elif fault == "500":
            self._reply(500, {"error": {"message": "try again"}})
        elif fault == "drop":
            self._transport.abort()
        elif fault == "truncated":
            self._write(200, reply[: len(reply) // 2])
        else:
            whole = _rendered(200, reply)
            if fault == "drip":
                step = -(-len(whole) // 10)
                self._drip([whole[at : at + step] for at in range(0, len(whole), step)])
                return
            self._transport.write(whole[: len(whole) // 2] if fault == "cut" else whole)
            self._transport.close()

    def _drip(self, pieces: list[bytes]) -> None:
        if self._transport is None:
            return
        self._transport.write(pieces[0])
        if len(pieces) > 1:
            asyncio.get_running_loop().call_later(DRIP, self._drip, pieces[1:])

    def _finish(self, counts: Counts, reply: bytes, text_bytes: int) -> None:
        counts.moved(-1)
        if self._transport is None:
            counts.unsent += 1
            return
        counts.reply_bytes += len(reply)
        counts.text_bytes += text_bytes
        counts.last_reply = time.time()
        self._write(200, reply)

    def _reply(self, status: int, value: Any, more_head: bytes = b"") -> None:
        self._write(status, json.dumps(value).encode(), more_head)

    def _write(self, status: int, body: bytes, more_head: bytes = b"") -> None:
        if self._transport is not None:
            self._transport.write(_rendered(status, body, more_head))


def _rendered(status: int, body: bytes, more_head: bytes = b"") -> bytes:
    """Return a whole reply; ``more_head`` are further lines of its head."""
    head = b"HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
    return head % (status, _REASONS[status], len(body)) + more_head + b"\r\n" + body


def _fault(share: float, digest: int, attempt: int) -> Fault | None:
    """Return the fault that this attempt at a request meets; always the same one."""
    if not share or attempt >= FAULTY_ATTEMPTS:
        return None
    drawn = xxhash.xxh3_64_intdigest(digest.to_bytes(16, "big"), seed=attempt + 1)
    if drawn % 2**32 >= share * 2**32:
        return None
    return FAULTS[(drawn >> 32) % len(FAULTS)]


def _model(head: bytes, tail: bytes) -> str:
    """Return the model's name, looked for at both ends of a body."""
    for edge in (head, tail):
        _, found, rest = edge.rpartition(b'"model"') if edge is tail else edge.partition(b'"model"')
        parts = rest[:200].split(b'"', 2)
        if found and len(parts) == 3 and parts[0].strip() == b":":
            return parts[1].decode("utf-8", "replace")
    return ""


def _answer(digest: int) -> str:
    """Return an answer of 10 to 41 words, another one for each digest."""
    count = 10 + digest % 32
    words = (_WORDS[(digest >> (5 + 3 * number)) % len(_WORDS)] for number in range(count))
    return f"Clip {digest & 0xFFFFFFFF:08x}: {' '.join(words)}."


def _verdict(digest: int, *, as_json: bool) -> str:
    first, second = 1 + digest % 10, 1 + (digest >> 16) % 10
    return f'{{"assistant1": {first}, "assistant2": {second}}}' if as_json else f"{first} {second}"


def _completion(model: str, text: str, digest: int, size: int) -> bytes:
    prompt, completion = size // 4, max(1, len(text) // 4)
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    message = {"role": "assistant", "content": text}
    value = {
        "id": f"chatcmpl-{digest & 0xFFFFFFFFFFFFFFFF:016x}",
        "object": "chat.completion",
        "created": 1700000000,
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": usage,
    }
    return json.dumps(value, separators=(",", ":")).encode()


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def serve(port: int, latencies: Latencies, ready: Callable[[int], None]) -> None:
    """Serve on 127.0.0.1 until cancelled; ``ready`` gets the port (a free one for 0)."""
    state = State(latencies)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(state), "127.0.0.1", port, backlog=4096)
    async with server:
        ready(server.sockets[0].getsockname()[1])
        await server.serve_forever()


def main() -> None:
    """Serve until SIGTERM or Ctrl-C."""
    parser = argparse.ArgumentParser(description="A chat server on loopback for measuring clients.")
    parser.add_argument("--port", type=int, default=0, help="default: a free one")
    parser.add_argument("--latencies", action="store_true", help="lognormal, mean 1.0 s and 0.5 s, sigma 0.5")
    arguments = parser.parse_args()
    latencies = Latencies(ANSWER_LATENCY, VERDICT_LATENCY) if arguments.latencies else Latencies()
    uvloop.run(
        serve(
            arguments.port, latencies, lambda port: print(f"listening on http://127.0.0.1:{port}", flush=True)
        )
    )


if __name__ == "__main__":
    main()
