"""A scripted OpenAI-compatible chat server on loopback, for tests and for trying things out.

It speaks HTTP/1.1 on real sockets, runs an event loop of its own in a background thread, and can therefore be
used from synchronous tests, from asynchronous ones and by real processes. What it answers is decided by a
*script*: a function of the request and of its attempt number. Beyond good answers a script can ask for
everything that goes wrong between a client and a server: delays, errors before the body was read, hanging,
replies cut short, connections that break.

    with ScriptedServer(failing(scripted_answers(), 0.1, Response(status=500))) as server:
        ...  # talk to server.url, then look at server.requests

As a program (`python tests/scripted_server.py --port 0`) it is a server to try the command on by hand.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import dataclasses
import hashlib
import http
import json
import re
import signal
import socket
import ssl
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

KEPT_BODY = 64 * 1024
CHAT_PATH = "/v1/chat/completions"
MODELS_PATH = "/v1/models"
DEMONSTRATION_PREFIX = "[scripted demonstration reply] "

_JUDGE_MARKS = ("[The Start of Assistant 1s Answer]", "assistant for checking the quality of the answer")
_MODEL_NAME = re.compile(rb'"model"\s*:\s*"([^"\\]+)"')
_PEEK = 4096
_BLOCK = 256 * 1024
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)

Kind = Literal["model", "judge", "other", "unknown"]


@dataclass
class Seen:
    """One request as the server saw it; filled in while it arrives.

    `kind` is `judge` where the text holds the judge prompt, `model` for every other chat request, `other` for
    other paths, and `unknown` as long as too little of the body was read. `digest` is the SHA-256 of the
    whole body, `audio_sha256` that of the decoded audio. Of large bodies only the first 64 KB are kept, and
    `payload` then holds a note in place of the audio, unless the server was told `keep_bodies=True`.
    `served_at` is when a whole completion was handed to the client's connection, under `request_id`.
    """

    method: str
    path: str
    headers: dict[str, str]
    connection: int
    body: bytes = b""
    size: int = 0
    payload: Any = None
    model: str = ""
    kind: Kind = "unknown"
    complete: bool = False
    digest: str = ""
    audio_sha256: str | None = None
    status: int | None = None
    request_id: str = ""
    served_at: float | None = None
    at: float = field(default_factory=time.monotonic)

    @property
    def text(self) -> str:
        """All text of the messages, one part a line."""
        return "\n".join(_texts(self.payload))


@dataclass(frozen=True)
class Response:
    """What the server does with one request; without arguments a plain completion with status 200.

    Content: `text` (a string, None or a list of parts), `reasoning` (sent as `reasoning_content`),
    `finish_reason`, `model` (default: the one asked for), `usage` (None: estimated from the sizes; `{}`: left
    out), `choices` (texts or whole choice objects, instead of `text`), `error` (an OpenAI error object),
    `body` (raw bytes instead of all that), `stream` (None: as the request asks).

    Trouble: `delay` (seconds before the reply), `hang` (no answer until the client goes; with `cut`, the
    reply stalls there), `cut` (only so many bytes of the reply's body, then the connection ends), `drop` (the
    connection is reset instead of a reply), `die` (the whole server is gone, as a process that crashed: see
    `ScriptedServer.died`), `close` (says `Connection: close` and does it), `silent_close`
    (says keep-alive and closes), `break_next` (keeps the connection, but resets it when the next request
    comes on it), `before_body` (answers after the headers and closes, the body unread), `cut_upload` (resets
    the connection in the middle of the upload). The last two are decided before the body is known: see
    `early`. Before the event `after` is set there is no reply. `drip` sends the reply's body in ten pieces,
    so many seconds apart; `more_headers` are added to the head as they are, also where there is one of that
    name.
    """

    status: int = 200
    text: str | list[Any] | None = "A scripted reply."
    reasoning: str | None = None
    finish_reason: str | None = "stop"
    model: str | None = None
    usage: Mapping[str, Any] | None = None
    choices: Sequence[str | Mapping[str, Any] | None] | None = None
    error: Mapping[str, Any] | None = None
    body: bytes | None = None
    stream: bool | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str | None = None
    request_id: str | None = None
    delay: float = 0.0
    hang: bool = False
    cut: int | None = None
    drop: bool = False
    die: bool = False
    close: bool = False
    silent_close: bool = False
    break_next: bool = False
    before_body: bool = False
    cut_upload: bool = False
    drip: float = 0.0
    after: threading.Event | None = None
    more_headers: Sequence[tuple[str, str]] = ()

    @property
    def is_completion(self) -> bool:
        """Whether it is a whole completion, such as is paid for."""
        return 200 <= self.status < 300 and self.body is None and self.error is None and self.cut is None

    @property
    def is_early(self) -> bool:
        """Whether it is decided before the body was read."""
        return self.before_body or self.cut_upload


Script = Callable[[Seen, int], Response]
"""Gets the request and how many times the same body was sent before; returns what to do."""

_READ_ON = Response()


# ---------------------------------------------------------------------------------------------- scripts


@dataclass(frozen=True)
class _Early:
    script: Script

    def __call__(self, seen: Seen, attempt: int) -> Response:
        return self.script(seen, attempt)


def early(script: Script) -> Script:
    """Let a script be asked before the body is read, so that it can answer `before_body` or `cut_upload`.

    It is asked up to three times for one request: when the headers have come, when the start of the body has
    (not with `Expect: 100-continue`), and, unless it has answered by then, when the whole request is
    `complete`. Until then `payload` is None, `model` and `kind` are known only from the body's start or from
    an earlier request of the same length, and the attempt counts the earlier requests of the same length. Any
    response other than those two means "read on". `sequence` and `failing` do this by themselves for
    responses that need it.
    """
    return _Early(script)


def ask(script: Script, seen: Seen, attempt: int) -> Response:
    """Ask a script from within another one; only an `early` script is asked about an incomplete request."""
    return script(seen, attempt) if seen.complete or isinstance(script, _Early) else _READ_ON


def _composed(script: Script, *parts: Script) -> Script:
    return early(script) if any(isinstance(part, _Early) for part in parts) else script


def _as_script(answer: Response | Script) -> Script:
    if not isinstance(answer, Response):
        return answer
    response = answer

    def constant(_seen: Seen, _attempt: int) -> Response:
        return response

    return early(constant) if response.is_early else constant


def scripted_answers(prefix: str = "", salt: str = "") -> Script:
    """Answer by content alone: the same question and clip, or judge prompt, always get the same reply.

    `prefix` goes before the answers (not before the judge's scores); another `salt` gives other answers.
    """

    def script(seen: Seen, _attempt: int) -> Response:
        if seen.kind == "judge":
            dice = _Dice(salt, seen.text)
            return Response(text=f"{1 + dice.below(10)} {1 + dice.below(10)}")
        return Response(text=prefix + _answer_text(_Dice(salt, seen.text, seen.audio_sha256 or "")))

    return script


def sequence(*answers: Response | Script) -> Script:
    """Successive answers to the same body; the last one is repeated."""
    scripts = [_as_script(answer) for answer in answers]

    def script(seen: Seen, attempt: int) -> Response:
        return ask(scripts[min(attempt, len(scripts) - 1)], seen, attempt)

    return _composed(script, *scripts)


def by_model(scripts: Mapping[str, Response | Script], otherwise: Response | Script | None = None) -> Script:
    """One script for each model name; other names get `otherwise` (default: `scripted_answers()`)."""
    named = {name: _as_script(answer) for name, answer in scripts.items()}
    rest = scripted_answers() if otherwise is None else _as_script(otherwise)

    def script(seen: Seen, attempt: int) -> Response:
        if not seen.model and not seen.complete:
            return _READ_ON
        return ask(named.get(seen.model, rest), seen, attempt)

    return _composed(script, rest, *named.values())


def failing(
    script: Script,
    rate: float,
    response: Response | Script,
    kinds: Sequence[Kind] = ("judge",),
    first_attempt_only: bool = False,
    seed: int = 0,
) -> Script:
    """Give `response` to a share of the requests, chosen by body, attempt and seed, so always the same ones.

    A response that must be given before the body is known is chosen by the body's length instead.
    """
    failure = _as_script(response)
    decides_early = isinstance(failure, _Early)

    def fails(seen: Seen, attempt: int) -> bool:
        if seen.kind not in kinds or (first_attempt_only and attempt > 0) or decides_early is seen.complete:
            return False
        identity = seen.headers.get("content-length", "") if decides_early else seen.digest
        return _Dice(str(seed), str(attempt), identity).share() < rate

    def choose(seen: Seen, attempt: int) -> Response:
        return ask(failure if fails(seen, attempt) else script, seen, attempt)

    return _composed(choose, failure, script)


def delayed(script: Script, model: float = 0.0, judge: float = 0.0) -> Script:
    """Delay every reply of a script by so many seconds more."""

    def slow(seen: Seen, attempt: int) -> Response:
        response = ask(script, seen, attempt)
        return dataclasses.replace(
            response, delay=response.delay + (judge if seen.kind == "judge" else model)
        )

    return _composed(slow, script)


def require_key(script: Script, key: str, before_body: bool = False) -> Script:
    """Answer 401 to requests without this key; with `before_body` as servers behind a gateway do."""

    def guarded(seen: Seen, attempt: int) -> Response:
        given = seen.headers.get("authorization", "").removeprefix("Bearer ").strip()
        if given == key:
            return ask(script, seen, attempt)
        masked = given[:3] + "*" * len(given[3:])
        message = f"Incorrect API key provided: {masked}." if given else "You didn't provide an API key."
        return _refusal(401, message, "invalid_api_key", before_body=before_body and not seen.complete)

    return early(guarded) if before_body else _composed(guarded, script)


def known_models(script: Script, names: Collection[str]) -> Script:
    """Answer 404 to requests for other models than these."""

    def choosy(seen: Seen, attempt: int) -> Response:
        if seen.complete and seen.model not in names:
            return _refusal(404, f"The model `{seen.model}` does not exist.", "model_not_found")
        return ask(script, seen, attempt)

    return _composed(choosy, script)


def _refusal(status: int, message: str, code: str, *, before_body: bool = False) -> Response:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
    return Response(status=status, error=error, before_body=before_body)


class _Dice:
    """A short run of numbers that depends on nothing but the texts given."""

    def __init__(self, *parts: str) -> None:
        data = "\0".join(parts).encode("utf-8", "surrogatepass")
        self._value = int.from_bytes(hashlib.sha256(data).digest(), "big")

    def below(self, limit: int) -> int:
        self._value, drawn = divmod(self._value, limit)
        return drawn

    def pick(self, choices: Sequence[str]) -> str:
        return choices[self.below(len(choices))]

    def share(self) -> float:
        return self.below(1 << 53) / (1 << 53)


_SOUNDS = (
    "a calm male voice|a young woman speaking quickly|two people talking over each other|"
    "a child's laughter|an acoustic guitar|a slow piano figure|a distorted electric bass|"
    "a choir singing «Gloria»|steady rain|a dog barking|footsteps on gravel|a train passing|"
    "a door closing|birdsong|a crowd cheering|a speaker who says „Grüß Gott“|"
    "a radio announcer greeting São Paulo|a bell 🔔"
).split("|")
_PLACES = (
    "in a small room|outdoors|in a large hall|close to the microphone|at some distance|"
    "on a street|in a crowded café|over a telephone line|in a studio|by the sea|in a kitchen|"
    "in a car"
).split("|")
_MOODS = (
    "cheerful|tense|melancholic|calm|hurried|solemn|playful|blasé|nostalgic|neutral|"
    "hopeful|angry|dreamy|energetic"
).split("|")


def _answer_text(dice: _Dice) -> str:
    first, second = dice.pick(_SOUNDS), dice.pick(_SOUNDS)
    seconds = dice.below(2000) / 100
    answer = (
        f"The recording has {first} {dice.pick(_PLACES)}. After about {seconds:.2f} seconds {second} "
        f"can be heard {dice.pick(_PLACES)}, and the overall mood is {dice.pick(_MOODS)}"
    )
    return answer + (f", then {dice.pick(_MOODS)}." if dice.below(2) else ".")


# ---------------------------------------------------------------------------------------- reading requests


def _texts(payload: Any) -> Iterator[str]:
    for part in _parts(payload):
        if isinstance(part, str):
            yield part
        elif isinstance(part, dict) and isinstance(part.get("text"), str):
            yield part["text"]


def _parts(payload: Any) -> Iterator[Any]:
    messages = payload.get("messages") if isinstance(payload, dict) else None
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list):
            yield from content
        else:
            yield content


def _audio_slot(part: Any) -> tuple[dict[str, Any], str] | None:
    """Find where an audio part keeps its base64 text: the object and the key."""
    if not isinstance(part, dict):
        return None
    for name, key in (("input_audio", "data"), ("audio_url", "url")):
        slot = part.get(name)
        if isinstance(slot, dict) and isinstance(slot.get(key), str):
            return slot, key
    return None


def _audio_digest(payload: Any, *, forget: bool) -> str | None:
    """Hash the first clip in a payload; `forget` puts a note in the place of every clip's text."""
    found: str | None = None
    for slot, key in filter(None, map(_audio_slot, _parts(payload))):
        value = slot[key]
        is_uri = value.startswith("data:")
        if key == "url" and not is_uri:
            continue
        encoded = value.partition(",")[2] if is_uri else value
        digest: str | None
        try:
            digest = hashlib.sha256(base64.b64decode(encoded, validate=True)).hexdigest()
        except ValueError:
            digest = None
        found = found or digest
        if forget:
            slot[key] = f"<{len(value)} characters, sha256 of the audio {digest}>"
    return found


def _understand(seen: Seen, body: bytes, *, keep: bool) -> None:
    """Fill in everything that follows from the whole body."""
    seen.digest = hashlib.sha256(body).hexdigest()
    try:
        seen.payload = json.loads(body) if body else None
    except ValueError:
        seen.payload = None
    seen.audio_sha256 = _audio_digest(seen.payload, forget=not keep and len(body) > KEPT_BODY)
    model = seen.payload.get("model") if isinstance(seen.payload, dict) else None
    seen.model = model if isinstance(model, str) else ""
    seen.kind = "judge" if _JUDGE_MARKS[0] in seen.text else "model"
    seen.complete = True


def _guess(seen: Seen, start: bytes) -> None:
    """Fill in what the start of the body tells."""
    match = _MODEL_NAME.search(start)
    if match:
        seen.model = match[1].decode("utf-8", "replace")
    seen.kind = "judge" if any(mark.encode() in start for mark in _JUDGE_MARKS) else "model"


class _Body:
    """The body of one request, with a Content-Length or in chunks, read piece by piece."""

    def __init__(self, reader: asyncio.StreamReader, headers: Mapping[str, str]) -> None:
        self._reader = reader
        self._chunked = "chunked" in headers.get("transfer-encoding", "").lower()
        self._left = 0 if self._chunked else int(headers.get("content-length", "0"))
        if self._left < 0:
            raise ValueError("negative Content-Length")
        self.ended = not self._chunked and self._left == 0
        self.data = bytearray()

    async def read(self, limit: int = _BLOCK) -> None:
        """Add the next piece to `data`, or set `ended`."""
        if self._chunked and self._left == 0:
            self._left = int((await self._reader.readuntil(b"\n")).partition(b";")[0], 16)
            if self._left == 0:
                while (await self._reader.readuntil(b"\n")).strip():
                    pass
                self.ended = True
                return
        piece = await self._reader.read(min(limit, self._left))
        if not piece:
            raise EOFError
        self.data += piece
        self._left -= len(piece)
        if self._left == 0 and self._chunked:
            await self._reader.readuntil(b"\n")
        self.ended = not self._chunked and self._left == 0


# ----------------------------------------------------------------------------------------- writing replies


def _json(value: Any) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # a lone surrogate travels as an escape
        return json.dumps(value).encode()


def _choices(response: Response) -> list[dict[str, Any]]:
    choices: list[dict[str, Any]] = []
    for index, given in enumerate([response.text] if response.choices is None else response.choices):
        if isinstance(given, Mapping):
            choices.append({"index": index, **given})
            continue
        message: dict[str, Any] = {"role": "assistant", "content": given}
        if response.reasoning is not None:
            message["reasoning_content"] = response.reasoning
        choices.append({"index": index, "message": message, "finish_reason": response.finish_reason})
    return choices


def _usage(seen: Seen, response: Response) -> dict[str, Any]:
    if response.usage is not None:
        return dict(response.usage)
    text = len(seen.text)
    prompt = 1 + text // 4 + max(0, seen.size - text) // 1700  # 25 tokens for a second of 16 kHz audio
    completion = max(1, len(str(response.text or "")) // 4)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _frame(seen: Seen, response: Response, attempt: int) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-scripted-{seen.digest[:16]}-{attempt}",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": seen.model if response.model is None else response.model,
        "system_fingerprint": "scripted",
    }


def _completion(seen: Seen, response: Response, attempt: int) -> bytes:
    reply = _frame(seen, response, attempt) | {"choices": _choices(response)}
    usage = _usage(seen, response)
    return _json(reply | {"usage": usage} if usage else reply)


def _deltas(choice: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    message = dict(choice.get("message") or {})
    content = message.pop("content", None)
    reasoning = message.pop("reasoning_content", None)
    yield message | {"content": ""}
    for name, value in (("reasoning_content", reasoning), ("content", content)):
        if isinstance(value, str):
            step = max(1, -(-len(value) // 4))
            yield from ({name: value[at : at + step]} for at in range(0, len(value), step))
        elif value is not None:
            yield {name: value}


def _event_stream(seen: Seen, response: Response, attempt: int) -> bytes:
    """Render server-sent events: deltas, the finish reason, the usage if asked for, the end mark."""
    frame = _frame(seen, response, attempt) | {"object": "chat.completion.chunk"}
    chunks: list[dict[str, Any]] = []
    for choice in _choices(response):
        index = choice["index"]
        chunks += [
            {"choices": [{"index": index, "delta": delta, "finish_reason": None}]}
            for delta in _deltas(choice)
        ]
        ending = {"index": index, "delta": {}, "finish_reason": choice.get("finish_reason")}
        chunks.append({"choices": [ending]})
    options = seen.payload.get("stream_options") if isinstance(seen.payload, dict) else None
    usage = _usage(seen, response)
    if usage and isinstance(options, dict) and options.get("include_usage"):
        chunks.append({"choices": [], "usage": usage})
    return b"".join(b"data: %s\n\n" % _json(frame | chunk) for chunk in chunks) + b"data: [DONE]\n\n"


def _render(seen: Seen, response: Response, attempt: int) -> tuple[str, bytes, bool]:
    """Give the reply's content type, its body, and whether it is an event stream."""
    plain = response.content_type or "application/json"
    if response.body is not None:
        return plain, response.body, response.stream is True
    error = response.error
    if error is None and response.status >= 400:
        error = {
            "message": f"Scripted error {response.status}.",
            "type": "error",
            "param": None,
            "code": None,
        }
    if error is not None:
        return plain, _json({"error": dict(error)}), False
    asked = isinstance(seen.payload, dict) and seen.payload.get("stream") is True
    if asked if response.stream is None else response.stream:
        events = response.content_type or "text/event-stream; charset=utf-8"
        return events, _event_stream(seen, response, attempt), True
    return plain, _completion(seen, response, attempt), False


def _head(status: int, headers: Mapping[str, str], more: Sequence[tuple[str, str]]) -> bytes:
    try:
        reason = http.HTTPStatus(status).phrase
    except ValueError:
        reason = "Scripted"
    lines = [f"HTTP/1.1 {status} {reason}"]
    lines += [f"{name}: {value}" for name, value in (*headers.items(), *more)]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"


# --------------------------------------------------------------------------------------------- the server


class _Log:
    """What was seen, shared between the server's thread and the reader's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flying: Counter[str] = Counter()
        self.clear()

    def clear(self) -> None:
        with self._lock:
            self._requests: list[Seen] = []
            self._errors: list[Exception] = []
            self._peak = +self._flying
            self._by_content: Counter[tuple[str, str]] = Counter()
            self._by_length: Counter[str] = Counter()
            self._unread: Counter[str] = Counter()
            self._last_of_length: dict[str, tuple[str, Kind]] = {}

    def requests(self) -> list[Seen]:
        with self._lock:
            return list(self._requests)

    def errors(self) -> list[Exception]:
        with self._lock:
            return list(self._errors)

    def peak(self) -> dict[str, int]:
        with self._lock:
            return dict(self._peak)

    def arrived(self, seen: Seen) -> int:
        """Enter a request whose headers have come; gives the number of earlier ones of the same length."""
        length = seen.headers.get("content-length", "")
        with self._lock:
            self._requests.append(seen)
            seen.model, seen.kind = self._last_of_length.get(length, ("", "unknown"))
            self._by_length[length] += 1
            return self._by_length[length] - 1

    def recognised(self, seen: Seen) -> None:
        """Remember what requests of this length are."""
        with self._lock:
            self._last_of_length[seen.headers.get("content-length", "")] = (seen.model, seen.kind)

    def refused(self, seen: Seen) -> None:
        """Count a request that was ended before its body was read: its next try is a second one."""
        with self._lock:
            self._unread[seen.headers.get("content-length", "")] += 1

    def completed(self, seen: Seen) -> int:
        """Give the number of earlier requests with the same content."""
        with self._lock:
            key = (seen.model, seen.digest)
            self._by_content[key] += 1
            return self._by_content[key] - 1 + self._unread[seen.headers.get("content-length", "")]

    def failed(self, error: Exception) -> None:
        with self._lock:
            self._errors.append(error)

    @contextlib.contextmanager
    def flying(self, model: str) -> Iterator[None]:
        """Count a request as in flight."""
        with self._lock:
            self._flying[model] += 1
            self._peak[model] = max(self._peak[model], self._flying[model])
        try:
            yield
        finally:
            with self._lock:
                self._flying[model] -= 1


class ScriptedServer:
    """The server: use it as a context manager, or `start` and `stop` it.

    `script` (default: `scripted_answers()`) and `ignore_expect` (never send `100 Continue`) may be changed
    while it runs; `models` are the names that `GET /v1/models` lists. With `tls`, which may be changed while
    it is stopped, it speaks HTTPS. An exception in a script becomes a reply with status 500 and is raised
    when the `with` block is left.
    """

    def __init__(
        self,
        script: Script | None = None,
        *,
        models: Collection[str] = ("scripted-model", "scripted-judge"),
        keep_bodies: bool = False,
        ignore_expect: bool = False,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.script: Script = scripted_answers() if script is None else script
        self.models = tuple(models)
        self.keep_bodies = keep_bodies
        self.ignore_expect = ignore_expect
        self.tls = tls
        self.port = 0
        self._log = _Log()
        self._connections: set[_Connection] = set()
        self._connection_count = 0
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self.died = threading.Event()
        """Set when the server died of a request; `start` clears it and listens on the same port again."""

    @property
    def url(self) -> str:
        """The base URL, for instance `http://127.0.0.1:8000/v1`."""
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}/v1"

    @property
    def requests(self) -> list[Seen]:
        """Every request so far, in order of arrival."""
        return self._log.requests()

    @property
    def errors(self) -> list[Exception]:
        """What the scripts raised."""
        return self._log.errors()

    @property
    def max_in_flight(self) -> dict[str, int]:
        """For each model name the largest number of requests that waited for their reply at once."""
        return self._log.peak()

    @property
    def open_connections(self) -> int:
        """How many connections are open now."""
        return len(self._connections)

    def reset(self) -> None:
        """Forget what was seen, the attempts too."""
        self._log.clear()

    def start(self, port: int | None = None) -> None:
        """Listen on a port: the given one, else the one it had before, else a free one."""
        if self.died.is_set():
            self.stop()
        if self._thread is not None:
            raise RuntimeError("the server is running")
        self.died.clear()
        listener = socket.create_server(("127.0.0.1", self.port if port is None else port), backlog=1024)
        self.port = listener.getsockname()[1]
        ready = threading.Event()
        serve = self._serve(listener, ready)
        self._thread = threading.Thread(
            target=asyncio.run, args=(serve,), name="scripted-server", daemon=True
        )
        self._thread.start()
        ready.wait()

    def stop(self) -> None:
        """Stop listening and drop all connections; `start` listens on the same port again."""
        if self._thread is None or self._loop is None or self._stopping is None:
            return
        with contextlib.suppress(RuntimeError):  # it has died: the loop is closed
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()
        self._thread = self._loop = self._stopping = None

    def die(self) -> None:
        """Be gone, as a process that crashes; a script may call it, where `stop` would wait for itself."""
        assert self._stopping is not None
        self._stopping.set()
        self.died.set()

    def drop_connections(self) -> None:
        """Reset every open connection, busy or idle, and go on listening."""
        if self._loop is not None:
            asyncio.run_coroutine_threadsafe(self._drop_all(), self._loop).result()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if self.errors and error is None:
            raise RuntimeError(f"the script failed: {self.errors[0]!r}") from self.errors[0]

    async def _serve(self, listener: socket.socket, ready: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        await self._loop.create_server(self._accept, sock=listener, backlog=1024, ssl=self.tls)
        ready.set()
        await self._stopping.wait()
        # Not by closing the server: a connection that was just accepted could not be attached to it any more,
        # and its socket would be left open.
        self._loop.remove_reader(listener)
        listener.close()
        for _ in range(5):  # such a connection appears within a few turns of the loop
            await asyncio.sleep(0)
            await self._drop_all()

    async def _drop_all(self) -> None:
        tasks = [connection.drop() for connection in list(self._connections)]
        await asyncio.gather(*tasks, return_exceptions=True)

    def _accept(self) -> _Connection:
        self._connection_count += 1
        return _Connection(self, self._log, self._connections, self._connection_count)


class _Connection(asyncio.Protocol):
    """One TCP connection: a task that serves its requests and is cancelled when the client goes."""

    transport: asyncio.Transport
    reader: asyncio.StreamReader
    task: asyncio.Task[None]

    def __init__(self, server: ScriptedServer, log: _Log, registry: set[_Connection], number: int) -> None:
        self.server = server
        self.log = log
        self.registry = registry
        self.number = number
        self.break_next = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start serving."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.reader = asyncio.StreamReader(_BLOCK, asyncio.get_running_loop())
        self.reader.set_transport(transport)
        self.registry.add(self)
        self.task = asyncio.get_running_loop().create_task(self._run())

    def data_received(self, data: bytes) -> None:
        """Hand the bytes on."""
        if not self.transport.is_closing():
            self.reader.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop whatever was being done for this client."""
        self.registry.discard(self)
        self.task.cancel()

    def drop(self) -> asyncio.Task[None]:
        """Reset the connection; the task given ends when that is done."""
        connected = self.transport.get_extra_info("socket")
        if connected is not None:  # of TLS that is closed already there is none
            with contextlib.suppress(OSError):
                connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self.transport.abort()
        return self.task

    async def _run(self) -> None:
        try:
            while await self._serve_one():
                pass
        except EOFError:
            pass
        except (ValueError, asyncio.LimitOverrunError) as error:  # not HTTP
            self._write(None, Response(status=400, error={"message": f"bad request: {error}"}, close=True), 0)
        except Exception as error:  # whatever it is, the test is told when it leaves the block
            self.log.failed(error)
        self.transport.close()

    async def _serve_one(self) -> bool:
        """Serve one request; gives whether the connection can serve another one."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").strip().split("\r\n")
        method, path, version = first.split(" ")
        headers = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
        }
        seen = Seen(method, path, headers, self.number)
        earlier = self.log.arrived(seen)
        if self.break_next:
            self.log.refused(seen)
            self.drop()
            return False
        body = _Body(self.reader, headers)
        is_chat = method == "POST" and path.partition("?")[0] == CHAT_PATH
        try:
            response = await self._early_response(seen, body, earlier) if is_chat else None
            if response is None:
                self._continue(seen)
                while not body.ended:
                    await body.read()
        finally:
            seen.size = len(body.data)
            seen.body = bytes(body.data if self.server.keep_bodies else body.data[:KEPT_BODY])
        attempt = earlier
        if response is None:
            _understand(seen, bytes(body.data), keep=self.server.keep_bodies)
            body.data.clear()
            if is_chat:
                self.log.recognised(seen)
                attempt = self.log.completed(seen)
                response = self._response(seen, attempt)
            else:
                seen.kind, attempt, response = "other", 0, self._other(seen)
        keep = headers.get("connection", "").lower() != "close" and version != "HTTP/1.0"
        return await self._act(seen, response, attempt) and keep

    async def _early_response(self, seen: Seen, body: _Body, earlier: int) -> Response | None:
        """Ask an early script about the headers, then about the start of the body."""
        script = self.server.script
        if not isinstance(script, _Early) or body.ended:
            return None
        response = self._ask(script, seen, earlier)
        expects = "expect" in seen.headers
        if response.cut_upload or not (response.is_early or expects):
            self._continue(seen)
            while not body.ended and len(body.data) < _PEEK and not _MODEL_NAME.search(body.data):
                await body.read(_PEEK)
            _guess(seen, bytes(body.data))
            self.log.recognised(seen)
            response = response if response.is_early else self._ask(script, seen, earlier)
        if not response.is_early:
            return None
        self.log.refused(seen)
        return response

    def _response(self, seen: Seen, attempt: int) -> Response:
        script = self.server.script
        response = self._ask(script, seen, attempt)
        if response.is_early and not isinstance(script, _Early):
            self.log.failed(
                TypeError("a script that answers before_body or cut_upload must be wrapped in early()")
            )
        return response

    def _ask(self, script: Script, seen: Seen, attempt: int) -> Response:
        try:
            return script(seen, attempt)
        except Exception as error:  # whatever it is, the test is told when it leaves the block
            self.log.failed(error)
            return Response(status=500, error={"message": f"the script failed: {error!r}"})

    def _continue(self, seen: Seen) -> None:
        if "100-continue" in seen.headers.get("expect", "").lower() and not self.server.ignore_expect:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _other(self, seen: Seen) -> Response:
        path = seen.path.partition("?")[0]
        if path not in (CHAT_PATH, MODELS_PATH):
            return _refusal(404, f"Invalid URL ({seen.method} {path})", "unknown_url")
        if seen.method not in ("GET", "HEAD") or (path == CHAT_PATH and seen.method != "HEAD"):
            return _refusal(405, f"Not allowed to {seen.method} on {path}", "method_not_allowed")
        models = [{"id": name, "object": "model", "owned_by": "scripted"} for name in self.server.models]
        return Response(body=_json({"object": "list", "data": models}))

    async def _act(self, seen: Seen, response: Response, attempt: int) -> bool:
        """Do what the response says; gives whether the connection can serve another request."""
        if response.cut_upload:
            self.drop()
            return False
        with self.log.flying(seen.model) if seen.model else contextlib.nullcontext():
            if response.delay:
                await asyncio.sleep(response.delay)
            while response.after is not None and not response.after.is_set():  # noqa: ASYNC110 (a thread's)
                await asyncio.sleep(0.01)
            if response.hang and response.cut is None:
                await asyncio.get_running_loop().create_future()
        if response.die:
            self.server.die()
        if response.drop or response.die:
            self.drop()
            return False
        seen.status = response.status
        if response.drip:
            await self._drip(seen, response, attempt)
        else:
            self._write(seen, response, attempt)
        if response.hang:
            await asyncio.get_running_loop().create_future()
        self.break_next = response.break_next
        return not (
            response.close or response.silent_close or response.before_body or response.cut is not None
        )

    async def _drip(self, seen: Seen, response: Response, attempt: int) -> None:
        head, body = self._rendered(seen, response, attempt)
        self.transport.write(head)
        step = max(1, -(-len(body) // 10))
        *pieces, last = (body[at : at + step] for at in range(0, max(1, len(body)), step))
        for piece in pieces:
            await asyncio.sleep(response.drip)
            self.transport.write(piece)
        await asyncio.sleep(response.drip)
        self._send_last(seen, response, last)

    def _write(self, seen: Seen | None, response: Response, attempt: int) -> None:
        seen = seen or Seen("", "", {}, self.number)
        head, body = self._rendered(seen, response, attempt)
        self._send_last(seen, response, head + body)

    def _send_last(self, seen: Seen, response: Response, data: bytes) -> None:
        if response.is_completion and not self.transport.is_closing():
            seen.served_at = time.monotonic()
        self.transport.write(data)

    def _rendered(self, seen: Seen, response: Response, attempt: int) -> tuple[bytes, bytes]:
        """Give the bytes to send: the head, and as much of the body as is to go out."""
        content_type, body, streams = _render(seen, response, attempt)
        seen.request_id = response.request_id or f"req-{seen.digest[:16]}-{attempt}"
        wanted = {name.lower() for name in response.headers}
        headers = {
            "content-type": content_type,
            "x-request-id": seen.request_id,
            "connection": "close" if response.close or response.before_body else "keep-alive",
            **({"transfer-encoding": "chunked"} if streams else {"content-length": str(len(body))}),
        }
        headers = {name: value for name, value in headers.items() if name not in wanted} | dict(
            response.headers
        )
        sent = body if response.cut is None else body[: response.cut]
        if seen.method == "HEAD":
            sent = b""
        elif streams:  # pieces that respect neither events nor characters, as networks do
            pieces = (sent[at : at + 113] for at in range(0, len(sent), 113))
            sent = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
            sent += b"0\r\n\r\n" if response.cut is None else b""
        return _head(response.status, headers, response.more_headers), sent


class Supervisor:
    """Starts a server again, so many seconds after it died of a request; counts how often it did."""

    def __init__(self, server: ScriptedServer, down: float) -> None:
        self.deaths = 0
        self._server = server
        self._down = down
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="supervisor", daemon=True)

    def _watch(self) -> None:
        while not self._over.is_set():
            if self._server.died.wait(0.02):
                self.deaths += 1
                time.sleep(self._down)
                self._server.start()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join()


# --------------------------------------------------------------------------------------- as a program


def main() -> None:
    """Run as a server until SIGTERM or Ctrl-C."""
    parser = argparse.ArgumentParser(
        description="A scripted chat server: its replies are made up, not computed."
    )
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1 (default: a free one)")
    parser.add_argument(
        "--delay-model", type=float, default=0.0, metavar="S", help="seconds before an answer"
    )
    parser.add_argument(
        "--delay-judge", type=float, default=0.0, metavar="S", help="seconds before a verdict"
    )
    arguments = parser.parse_args()
    signals = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    answers = scripted_answers(prefix=DEMONSTRATION_PREFIX)
    server = ScriptedServer(delayed(answers, model=arguments.delay_model, judge=arguments.delay_judge))
    server.start(arguments.port)
    print(f"listening on {server.url}", flush=True)
    signal.sigwait(signals)
    server.stop()


if __name__ == "__main__":
    main()
