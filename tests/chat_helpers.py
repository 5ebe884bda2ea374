"""What the tests of the chat API share: settings, questions, clips, and a server of bare sockets."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import os
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from otoscope.audio.cache import InMemory
from otoscope.chat_api import AudioData, ChatEndpoint
from otoscope.chat_api.body import Body
from otoscope.config import EndpointSettings, TaskConfig, resolve
from otoscope.records import AudioClip, Failure, Reply, SentAudio
from tests.scripted_server import ScriptedServer
from tests.support import model_endpoint

KEY = "sk-test-0123456789"
QUESTION: list[dict[str, Any]] = [{"role": "user", "content": "What is heard?"}]

_CONTENT = b'{"choices": [{"message": {"content": "fine"}, "finish_reason": "stop"}]}'
COMPLETION = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(_CONTENT), _CONTENT)
"""A whole reply, with the text "fine"."""

T = TypeVar("T")


def settings(
    server: ScriptedServer | str,
    *,
    attempt_timeout: float = 10.0,
    total_timeout: float = 30.0,
    tries: int = 6,
    role: str = "model",
    **config: Any,
) -> EndpointSettings:
    """Resolve settings for a server or URL; more fields of `TaskConfig` may be given."""
    url = server if isinstance(server, str) else server.url
    given = {"model": "scripted-model", "api_url": url, "api_key": KEY, "no_judge": True, **config}
    data = {"air_bench_chat": {"local_path": "."}}
    resolved = model_endpoint(resolve(TaskConfig(**given, dataset_args=data), environ={}))
    return dataclasses.replace(
        resolved,
        role="judge" if role == "judge" else "model",
        attempt_timeout=attempt_timeout,
        total_timeout=total_timeout,
        tries=tries,
        retry_interval=0.01,
    )


def use(
    endpoint: EndpointSettings,
    work: Callable[[ChatEndpoint], Awaitable[T]],
    notices: list[str] | None = None,
) -> T:
    """Do some work with a new endpoint in an event loop of its own."""

    async def main() -> T:
        async with ChatEndpoint(endpoint, (notices if notices is not None else []).append) as chat:
            return await work(chat)

    return asyncio.run(main())


def asked(
    endpoint: EndpointSettings,
    messages: list[dict[str, Any]] = QUESTION,
    notices: list[str] | None = None,
    **overrides: Any,
) -> Reply | Failure:
    """Ask once."""
    return use(endpoint, lambda chat: chat.ask(messages, **overrides), notices)


def replied(endpoint: EndpointSettings, messages: list[dict[str, Any]] = QUESTION, **overrides: Any) -> Reply:
    """Ask once and insist on a reply."""
    result = asked(endpoint, messages, **overrides)
    assert isinstance(result, Reply), result
    return result


def failed(endpoint: EndpointSettings, messages: list[dict[str, Any]] = QUESTION) -> Failure:
    """Ask once and insist on a failure."""
    result = asked(endpoint, messages)
    assert isinstance(result, Failure), result
    return result


def make_clip(folder: Path, size: int, *, converted: bytes | None = None) -> AudioClip:
    """Write a file of random bytes and return it as a clip."""
    path = folder / f"clip-{size}.wav"
    data = os.urandom(size)
    path.write_bytes(data)
    stat = path.stat()
    return AudioClip(
        path=str(path),
        sha256=hashlib.sha256(data).hexdigest(),
        size=stat.st_size,
        mtime_ns=stat.st_mtime_ns,
        format="wav",
        seconds=1.0,
        rate=16000,
        channels=1,
        sent=None if converted is None else sent_audio(converted),
    )


def sent_audio(data: bytes) -> SentAudio:
    """Return what a conversion made of a clip, held in memory."""
    content = InMemory(data)
    return SentAudio(
        sha256=content.sha256,
        size=content.size,
        format="wav",
        seconds=1.0,
        rate=16000,
        channels=1,
        content=content,
    )


def about(clip: AudioClip, prefix: str = "") -> list[dict[str, Any]]:
    """Return messages with a clip and a question."""
    audio = {"type": "input_audio", "input_audio": {"data": AudioData(clip, prefix), "format": clip.format}}
    return [{"role": "user", "content": [audio, {"type": "text", "text": "What is heard?"}]}]


Handler = Callable[[socket.socket, int], object]


@contextlib.contextmanager
def raw_server(handler: Handler) -> Iterator[str]:
    """Run a server that hands each connection, with its number, to a handler in a thread; gives its URL."""
    listener = socket.create_server(("127.0.0.1", 0))
    connections: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def serve(connection: socket.socket, number: int) -> None:
        with contextlib.suppress(OSError), connection:
            handler(connection, number)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection = listener.accept()[0]
                connections.append(connection)
                threads.append(threading.Thread(target=serve, args=(connection, len(threads)), daemon=True))
                threads[-1].start()

    acceptor = threading.Thread(target=accept, daemon=True)
    acceptor.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    finally:
        for sock in (listener, *connections):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        acceptor.join()
        listener.close()
        for thread in threads:
            thread.join()


def read_head(connection: socket.socket) -> tuple[bytes, bytes]:
    """Read a request's head; gives it and what came after it."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = connection.recv(65536)
        if not piece:
            raise OSError("closed")
        data += piece
    head, _, rest = data.partition(b"\r\n\r\n")
    return head, rest


def announced(head: bytes) -> int:
    """Return the Content-Length of a request's head."""
    return next(int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))


def read_request(connection: socket.socket) -> bytes:
    """Read a whole request; gives its body, short when the client broke off."""
    head, body = read_head(connection)
    length = next(
        int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")
    )
    while len(body) < length and (piece := connection.recv(1 << 20)):
        body += piece
    return body


def collected(body: Body) -> bytes:
    """Return all of a body, outside of HTTP."""

    async def collect() -> bytes:
        blocks: list[bytes] = []
        while (block := body.ready()) != b"":
            if block is None:
                await body.load()
            else:
                blocks.append(block)
        return b"".join(blocks)

    return asyncio.run(collect())
