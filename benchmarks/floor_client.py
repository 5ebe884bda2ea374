"""The floor: a client that only sends what an evaluation must send, and writes down what comes back.

    python benchmarks/floor_client.py ROOT --url http://127.0.0.1:8000 --in-flight 64 --output floor.jsonl

It sends byte for byte the requests that ``otoscope eval`` sends by default, answers and verdicts in one
budget of connections, and reads every clip once, block by block, through base64 into the socket. It has no
retries, no checks, no settings and no report: what it costs, any evaluation costs at the least. ``--base64
stdlib`` takes the standard library's encoder in the place of the one with vector instructions.
"""

from __future__ import annotations

import argparse
import asyncio
import binascii
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson
import pybase64
import uvloop

BLOCK = 192 * 1024
"""Divisible by 3, so that the base64 of successive blocks joins; small enough for a core's cache."""
UNSENT = 256 * 1024
"""Bytes that a connection holds before its sender waits."""
PROMPT = Path(__file__).parent.parent / "src" / "otoscope" / "prompts" / "judge.txt"
ENCODERS: dict[str, Callable[[bytes], bytes]] = {
    "simd": pybase64.b64encode,
    "stdlib": lambda block: binascii.b2a_base64(block, newline=False),
}

_MARK = "@"


class Connection(asyncio.Protocol):
    """A connection that carries one request at a time."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._transport: asyncio.Transport
        self._reply: asyncio.Future[bytes]
        self._may_write = asyncio.Event()
        self._may_write.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:  # noqa: D102 (asyncio's)
        self._transport = transport  # type: ignore[assignment]
        self._transport.set_write_buffer_limits(high=UNSENT)

    def pause_writing(self) -> None:  # noqa: D102 (asyncio's)
        self._may_write.clear()

    def resume_writing(self) -> None:  # noqa: D102 (asyncio's)
        self._may_write.set()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: D102 (asyncio's)
        self._may_write.set()
        if not self._reply.done():
            self._reply.set_exception(exc or ConnectionError("the server closed the connection"))

    def data_received(self, data: bytes) -> None:  # noqa: D102 (asyncio's)
        self._received += data
        head_end = self._received.find(b"\r\n\r\n")
        if head_end < 0:
            return
        head = bytes(self._received[:head_end]).lower()
        length = int(head.partition(b"content-length:")[2].partition(b"\r")[0])
        if len(self._received) < head_end + 4 + length:
            return
        body = bytes(self._received[head_end + 4 :])
        self._received.clear()
        if head[9:12] != b"200":
            self._reply.set_exception(RuntimeError(f"refused: {head!r} {body!r}"))
        else:
            self._reply.set_result(body)

    async def send(self, data: bytes) -> None:
        """Hand on what is to be sent; wait while too much of it is unsent."""
        self._transport.write(data)
        if not self._may_write.is_set():
            await self._may_write.wait()

    def expect_reply(self) -> asyncio.Future[bytes]:
        """Return what will hold the next reply's body."""
        self._reply = asyncio.get_running_loop().create_future()
        return self._reply

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()


class Floor:
    """The requests of one evaluation of the data set under ``root``."""

    def __init__(self, root: Path, url: str, encode: Callable[[bytes], bytes], output: int) -> None:
        parts = urlsplit(url)
        self._chat = root / "Chat"
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        self._head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {parts.netloc}\r\n".encode()
        self._encode = encode
        self._output = output
        self._prompt = PROMPT.read_text(encoding="utf-8")
        self._records: list[dict[str, Any]] = orjson.loads((self._chat / "Chat_meta.json").read_bytes())
        self._left = 3 * len(self._records)
        # Last in, first out: what can be judged is judged before more is answered.
        self._owed: asyncio.LifoQueue[int | tuple[int, str, str, str] | None] = asyncio.LifoQueue()

    async def run(self, in_flight: int) -> None:
        """Send everything, with so many requests in flight at most."""
        for index in reversed(range(len(self._records))):
            self._owed.put_nowait(index)
        await asyncio.gather(*(self._work() for _ in range(in_flight)))

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(Connection, self._host, self._port)
        while (job := await self._owed.get()) is not None:
            if isinstance(job, int):
                await self._answer(connection, job)
            else:
                await self._judge(connection, *job)
        self._owed.put_nowait(None)
        connection.close()

    async def _answer(self, connection: Connection, index: int) -> None:
        record = self._records[index]
        path = self._chat / f"{record['task_name']}_{record['dataset_name']}" / record["path"]
        content = [
            {"type": "input_audio", "input_audio": {"data": _MARK, "format": path.suffix[1:]}},
            {"type": "text", "text": record["question"]},
        ]
        before, _, after = _body("model", content, max_tokens=2048).partition(f'"{_MARK}"'.encode())
        before, after = before + b'"', b'"' + after
        file = os.open(path, os.O_RDONLY)
        try:
            size = os.fstat(file).st_size
            reply = connection.expect_reply()
            await connection.send(self._headers(len(before) + 4 * ((size + 2) // 3) + len(after)) + before)
            while block := os.read(file, BLOCK):
                await connection.send(self._encode(block))
            await connection.send(after)
        finally:
            os.close(file)
        text = _text(await reply)
        self._keep({"index": index, "answer": text})
        reference = record["answer_gt"]
        self._owed.put_nowait((index, "reference_first", reference, text))
        self._owed.put_nowait((index, "answer_first", text, reference))

    async def _judge(self, connection: Connection, index: int, order: str, first: str, second: str) -> None:
        record = self._records[index]
        prompt = self._prompt
        # The texts of the synthetic data hold no braces, so that this is the single pass of the real one.
        for name, value in (
            ("meta_info", record["meta_info"]),
            ("question", record["question"]),
            ("assistant_1", first),
            ("assistant_2", second),
        ):
            prompt = prompt.replace(f"{{{name}}}", value, 1)
        body = _body("judge", prompt, max_tokens=1024)
        reply = connection.expect_reply()
        await connection.send(self._headers(len(body)) + body)
        self._keep({"index": index, "order": order, "verdict": _text(await reply)})

    def _headers(self, length: int) -> bytes:
        return b"%bContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (self._head, length)

    def _keep(self, line: dict[str, Any]) -> None:
        os.write(self._output, orjson.dumps(line) + b"\n")
        self._left -= 1
        if not self._left:
            self._owed.put_nowait(None)


def _body(model: str, content: Any, *, max_tokens: int) -> bytes:
    messages = [{"role": "user", "content": content}]
    return orjson.dumps({"model": model, "messages": messages, "temperature": 0, "max_tokens": max_tokens})


def _text(reply: bytes) -> str:
    return str(orjson.loads(reply)["choices"][0]["message"]["content"])


def main() -> int:
    """Send the requests and return 0; whatever goes wrong is a traceback."""
    parser = argparse.ArgumentParser(description="What any evaluation of this data set costs at the least.")
    parser.add_argument("root", type=Path, help="the folder that contains Chat/")
    parser.add_argument("--url", required=True, help="of the server, without a path")
    parser.add_argument("--in-flight", type=int, default=64, help="connections (default 64)")
    parser.add_argument("--base64", choices=tuple(ENCODERS), default="simd")
    parser.add_argument("--output", type=Path, required=True, help="JSON Lines; written anew")
    arguments = parser.parse_args()
    output = os.open(arguments.output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o666)

    async def run() -> None:
        floor = Floor(arguments.root, arguments.url, ENCODERS[arguments.base64], output)
        await floor.run(arguments.in_flight)

    uvloop.run(run())
    os.close(output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
