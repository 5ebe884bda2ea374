from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import scripted_server
from tests.scripted_server import (
    CHAT_PATH,
    KEPT_BODY,
    Response,
    ScriptedServer,
    Seen,
    Supervisor,
    by_model,
    delayed,
    early,
    failing,
    known_models,
    require_key,
    scripted_answers,
    sequence,
)

JUDGE_PROMPT = "You are helpful.\n[The Start of Assistant 1s Answer]\n{}\n[The End of Assistant 1s Answer]"
CLIP = bytes(range(256)) * 4


@dataclass
class Got:
    """A whole reply."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        """The body, parsed."""
        return json.loads(self.body)

    @property
    def text(self) -> Any:
        """The content of the first choice."""
        return self.json["choices"][0]["message"]["content"]


def chat(text: str = "What is heard?", *, model: str = "lalm", **more: Any) -> dict[str, Any]:
    """Give the body of a request with one text."""
    return {"model": model, "messages": [{"role": "user", "content": text}], **more}


def judge_chat(answer: str, model: str = "judge") -> dict[str, Any]:
    """Give the body of a judge's request about an answer."""
    return chat(JUDGE_PROMPT.format(answer), model=model)


def audio_chat(part: dict[str, Any], question: str = "What is heard?") -> dict[str, Any]:
    """Give the body of a request with an audio part and a question."""
    return {
        "model": "lalm",
        "messages": [{"role": "user", "content": [part, {"type": "text", "text": question}]}],
    }


def input_audio(data: bytes) -> dict[str, Any]:
    """Give an audio part with base64 data."""
    return {"type": "input_audio", "input_audio": {"data": base64.b64encode(data).decode(), "format": "wav"}}


def connect(server: ScriptedServer) -> closing[http.client.HTTPConnection]:
    """Prepare a connection that can serve several requests."""
    return closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=5))


def send(
    connection: http.client.HTTPConnection,
    payload: Any,
    method: str = "POST",
    path: str = CHAT_PATH,
    **headers: str,
) -> Got:
    """Send a request on a connection and read the reply."""
    body = None if payload is None else json.dumps(payload)
    connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
    with connection.getresponse() as reply:
        return Got(reply.status, reply.headers, reply.read())


def post(server: ScriptedServer, payload: Any, **headers: str) -> Got:
    """Send a chat request on a connection of its own."""
    with connect(server) as connection:
        return send(connection, payload, **headers)


def raw(server: ScriptedServer, data: bytes) -> socket.socket:
    """Open a connection and send some bytes of a request."""
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=5)
    connection.sendall(data)
    return connection


def request_head(length: int, *lines: str) -> bytes:
    """Give the head of a chat request."""
    head = ["POST /v1/chat/completions HTTP/1.1", "Host: x", f"Content-Length: {length}", *lines]
    return "\r\n".join([*head, "", ""]).encode()


def read_all(connection: socket.socket) -> bytes:
    """Read until the server closes."""
    received = b""
    while piece := connection.recv(65536):
        received += piece
    return received


def until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    """Wait until something is true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    """Run a server with the default script."""
    with ScriptedServer() as running:
        yield running


# ------------------------------------------------------------------------------------------ good answers


def test_same_content_gets_the_same_answer_from_any_server(server: ScriptedServer) -> None:
    """Two servers give the same answer to the same question and clip, and others to other ones."""
    payloads = [audio_chat(input_audio(clip), text) for clip in (CLIP, CLIP[1:]) for text in ("One?", "Two?")]
    here = [post(server, payload).text for payload in payloads]
    with ScriptedServer() as other:
        there = [post(other, payload).text for payload in payloads]
    assert here == there
    assert len(set(here)) == 4


def test_answers_differ_between_many_questions(server: ScriptedServer) -> None:
    """Every sample of a run gets an answer of its own, and some answers are not ASCII."""
    with connect(server) as connection:
        answers = [send(connection, chat(f"Question {number}?")).text for number in range(300)]
    assert len(set(answers)) == 300
    assert 0 < sum(answer.isascii() for answer in answers) < 300


def test_another_salt_gives_other_answers(server: ScriptedServer) -> None:
    """Two models with different salts answer the same question differently, with the prefix before it."""
    server.script = by_model({"salted": scripted_answers(prefix=">> ", salt="b")})
    plain, salted = post(server, chat()).text, post(server, chat(model="salted")).text
    assert salted.startswith(">> ")
    assert plain != salted.removeprefix(">> ")


def test_judge_prompts_get_two_scores(server: ScriptedServer) -> None:
    """A judge prompt gets two whole numbers from 1 to 10 that depend on the prompt alone."""
    with connect(server) as connection:
        replies = [send(connection, judge_chat(f"answer {number}")).text for number in range(200)]
        again = [send(connection, judge_chat(f"answer {number}", "other")).text for number in range(200)]
    assert replies == again
    scores = [tuple(map(int, reply.split(" "))) for reply in replies]
    assert {first for first, _ in scores} == {second for _, second in scores} == set(range(1, 11))


def test_completion_has_the_form_of_the_api(server: ScriptedServer) -> None:
    """A plain reply is a chat completion with the model's name, one choice, usage and a request id."""
    reply = post(server, chat(model="lalm"))
    assert reply.status == 200
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["x-request-id"]
    completion = reply.json
    assert (completion["object"], completion["model"]) == ("chat.completion", "lalm")
    assert completion["choices"][0]["finish_reason"] == "stop"
    usage = completion["usage"]
    assert usage["prompt_tokens"] > 0
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_response_sets_every_part_of_the_completion(server: ScriptedServer) -> None:
    """Text, reasoning, finish reason, model, usage, headers and request id arrive as the script gave them."""
    server.script = sequence(
        Response(
            text="Ja — 猫", reasoning="Hm.", finish_reason="length", model="other", usage={"total_tokens": 3},
            headers={"X-Extra": "1"}, request_id="req-7",
        )
    )  # fmt: skip
    reply = post(server, chat())
    assert reply.json["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Ja — 猫", "reasoning_content": "Hm."},
            "finish_reason": "length",
        }
    ]
    assert (reply.json["model"], reply.json["usage"]) == ("other", {"total_tokens": 3})
    assert (reply.headers["x-extra"], reply.headers["x-request-id"]) == ("1", "req-7")


@pytest.mark.parametrize("text", [None, [{"type": "text", "text": "a"}], "lone \ud800 surrogate"])
def test_content_may_be_anything(server: ScriptedServer, text: str | list[Any] | None) -> None:
    """Content that is null, a list of parts or not valid Unicode is sent."""
    server.script = sequence(Response(text=text, usage={}))
    reply = post(server, chat())
    assert reply.text == text
    assert "usage" not in reply.json


def test_several_choices(server: ScriptedServer) -> None:
    """Several choices are sent in order, texts as well as whole objects, also none at all."""
    server.script = sequence(
        Response(choices=[None, "second", {"message": {"content": "third"}, "finish_reason": "x"}]),
        Response(choices=[]),
    )
    choices = post(server, chat()).json["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2]
    assert [choice["message"]["content"] for choice in choices] == [None, "second", "third"]
    assert post(server, chat()).json["choices"] == []


def test_errors_and_raw_bodies(server: ScriptedServer) -> None:
    """A script can send an OpenAI error, a bare status or any bytes with any content type."""
    error = {"message": "slow down", "type": "t", "param": None, "code": "rate_limit"}
    server.script = sequence(
        Response(status=429, error=error, headers={"Retry-After": "7"}),
        Response(status=503),
        Response(status=502, body=b"<html>", content_type="text/html"),
        Response(status=599),
    )
    first, second, third, fourth = (post(server, chat()) for _ in range(4))
    assert (first.status, first.json, first.headers["retry-after"]) == (429, {"error": error}, "7")
    assert (second.status, "503" in second.json["error"]["message"]) == (503, True)
    assert (third.status, third.body, third.headers["content-type"]) == (502, b"<html>", "text/html")
    assert fourth.status == 599


def events(reply: Got) -> list[Any]:
    """Parse a streamed reply up to its end mark."""
    lines = [line.removeprefix("data: ") for line in reply.body.decode().split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def test_streams_when_asked(server: ScriptedServer) -> None:
    """A streamed reply comes in several deltas, then a finish reason, then the usage, then the end mark."""
    server.script = sequence(Response(text="Ein Hörbeispiel: „Grüß Gott“ 🔔", reasoning="Let me listen."))
    reply = post(server, chat(stream=True, stream_options={"include_usage": True}))
    assert reply.headers["content-type"].startswith("text/event-stream")
    *chunks, usage = events(reply)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert sum(bool(delta.get("content")) for delta in deltas) > 2
    assert "".join(delta.get("content", "") for delta in deltas) == "Ein Hörbeispiel: „Grüß Gott“ 🔔"
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "Let me listen."
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert usage["choices"] == []
    assert usage["usage"]["total_tokens"] > 0


def test_stream_without_usage_and_streaming_against_the_request(server: ScriptedServer) -> None:
    """No usage is streamed unasked; a script can stream unasked, or refuse to stream."""
    assert all("usage" not in chunk for chunk in events(post(server, chat(stream=True))))
    server.script = sequence(Response(stream=True))
    assert events(post(server, chat()))
    server.script = sequence(Response(stream=False))
    assert post(server, chat(stream=True)).text


# ---------------------------------------------------------------------------------------- what is recorded


def test_requests_are_recorded(server: ScriptedServer) -> None:
    """Each request is kept in order with its method, headers, payload, model, kind, connection and status."""
    with connect(server) as connection:
        send(connection, chat("One?"), Authorization="Bearer k")
        send(connection, judge_chat("One."))
    post(server, chat("Two?"))
    first, second, third = server.requests
    assert (first.method, first.path, first.headers["authorization"]) == (
        "POST",
        "/v1/chat/completions",
        "Bearer k",
    )
    assert (first.payload, first.text, first.model, first.kind) == (chat("One?"), "One?", "lalm", "model")
    assert (json.loads(first.body), first.complete, first.status) == (chat("One?"), True, 200)
    assert first.digest == hashlib.sha256(first.body).hexdigest()
    assert (second.model, second.kind) == ("judge", "judge")
    assert first.connection == second.connection != third.connection
    assert first.at <= second.at <= third.at
    server.reset()
    assert server.requests == []


@pytest.mark.parametrize(
    ("part", "hashed"),
    [
        (input_audio(CLIP), True),
        ({"type": "audio_url", "audio_url": {"url": "data:audio/wav;base64,{}"}}, True),
        ({"type": "input_audio", "input_audio": {"data": "data:audio/wav;base64,{}", "format": "wav"}}, True),
        ({"type": "audio_url", "audio_url": {"url": "file:///clip.wav"}}, False),
        ({"type": "input_audio", "input_audio": {"data": "not base64!", "format": "wav"}}, False),
        ({"type": "text", "text": "no audio"}, False),
    ],
)
def test_audio_is_hashed_in_every_wire_form(
    server: ScriptedServer, part: dict[str, Any], hashed: bool
) -> None:
    """The decoded clip is hashed wherever its base64 stands; links, damaged base64 and no clip give None."""
    part = json.loads(json.dumps(part).replace("{}", base64.b64encode(CLIP).decode()))
    post(server, audio_chat(part))
    assert server.requests[0].audio_sha256 == (hashlib.sha256(CLIP).hexdigest() if hashed else None)
    assert server.requests[0].payload == audio_chat(part)


def test_large_bodies_are_not_kept(server: ScriptedServer) -> None:
    """Of a large body only the start is kept, with the clip's hash and a note in the clip's place."""
    payload = audio_chat(input_audio(CLIP * 200))
    post(server, payload)
    (seen,) = server.requests
    assert (len(seen.body), seen.size) == (KEPT_BODY, len(json.dumps(payload)))
    assert seen.audio_sha256 == hashlib.sha256(CLIP * 200).hexdigest()
    assert seen.audio_sha256 in seen.payload["messages"][0]["content"][0]["input_audio"]["data"]
    with ScriptedServer(keep_bodies=True) as keeper:
        post(keeper, payload)
        assert json.loads(keeper.requests[0].body) == keeper.requests[0].payload == payload


def test_requests_in_flight_are_counted_by_model(server: ScriptedServer) -> None:
    """The largest number of requests waiting at once is known for each model."""
    server.script = delayed(scripted_answers(), model=0.2, judge=0.2)
    payloads = [chat(str(number), model="a") for number in range(5)] + [
        judge_chat("x", "b"),
        judge_chat("y", "b"),
    ]
    threads = [threading.Thread(target=post, args=(server, payload)) for payload in payloads]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert server.max_in_flight == {"a": 5, "b": 2}
    server.reset()
    assert server.max_in_flight == {}


# ------------------------------------------------------------------------------------------------ protocol


def test_other_paths_and_methods(server: ScriptedServer) -> None:
    """Models are listed, HEAD gets no body, other paths get 404 and other methods 405, on one connection."""
    with connect(server) as connection:
        models = send(connection, None, "GET", "/v1/models")
        head = send(connection, None, "HEAD", "/v1/models")
        missing = send(connection, {}, "POST", "/chat/completions")
        wrong = send(connection, None, "GET")
    assert [model["id"] for model in models.json["data"]] == ["scripted-model", "scripted-judge"]
    assert (head.status, head.headers["content-length"], head.body) == (200, str(len(models.body)), b"")
    assert (missing.status, wrong.status) == (404, 405)
    assert [(seen.kind, seen.connection) for seen in server.requests] == [("other", 1)] * 4


def test_chunked_bodies(server: ScriptedServer) -> None:
    """A body sent in chunks, cut anywhere and with trailers, is read like any other."""
    body = json.dumps(chat("In chunks?")).encode()
    chunks = [body[:5], body[5:6], body[6:]]
    encoded = b"".join(b"%X;x=y\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\nA: b\r\n\r\n"
    head = b"POST /v1/chat/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    with raw(server, head + encoded) as connection:
        assert read_all(connection).startswith(b"HTTP/1.1 200 OK")
    assert server.requests[0].payload == chat("In chunks?")


def test_body_that_is_not_json(server: ScriptedServer) -> None:
    """A body that is not JSON has no payload and is handed to the script."""
    with connect(server) as connection:
        connection.request("POST", "/v1/chat/completions", b"\xff{")
        connection.getresponse().read()
    assert (server.requests[0].payload, server.requests[0].body, server.requests[0].complete) == (
        None,
        b"\xff{",
        True,
    )


def test_what_is_not_http_gets_400(server: ScriptedServer) -> None:
    """Bytes that are not HTTP, or a senseless length, get a 400 and the connection ends."""
    for data in (b"hello\r\n\r\n", request_head(-1)):
        with raw(server, data) as connection:
            assert read_all(connection).startswith(b"HTTP/1.1 400 ")


def test_expect_gets_a_continue(server: ScriptedServer) -> None:
    """A request with `Expect: 100-continue` is told to go on before its body is read."""
    body = json.dumps(chat()).encode()
    with raw(server, request_head(len(body), "Expect: 100-continue", "Connection: close")) as connection:
        assert connection.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert read_all(connection).startswith(b"HTTP/1.1 200 OK")


def test_expect_can_be_ignored(server: ScriptedServer) -> None:
    """A server that ignores `Expect` says nothing until the body comes."""
    server.ignore_expect = True
    body = json.dumps(chat()).encode()
    with raw(server, request_head(len(body), "Expect: 100-continue", "Connection: close")) as connection:
        connection.settimeout(0.1)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        connection.settimeout(5)
        connection.sendall(body)
        assert read_all(connection).startswith(b"HTTP/1.1 200 OK")


def test_script_that_raises_is_told_to_the_test() -> None:
    """An exception in a script is a 500 for the client and is raised at the end of the block."""

    def broken(_seen: Seen, _attempt: int) -> Response:
        raise ZeroDivisionError("oops")

    with pytest.raises(RuntimeError, match="oops"), ScriptedServer(broken) as server:  # noqa: PT012
        assert post(server, chat()).status == 500
        assert isinstance(server.errors[0], ZeroDivisionError)


# ------------------------------------------------------------------------------------------------- trouble


def test_answer_before_the_body(server: ScriptedServer) -> None:
    """With `before_body` the reply comes after the headers, and the connection is closed."""
    server.script = sequence(Response(status=401, before_body=True))
    with raw(server, request_head(10**6)) as connection:
        reply = read_all(connection)
    assert reply.startswith(b"HTTP/1.1 401 ")
    assert b"connection: close" in reply
    (seen,) = server.requests
    assert (seen.status, seen.complete, seen.body, seen.size) == (401, False, b"", 0)


def test_answer_before_the_body_resets_an_upload(server: ScriptedServer) -> None:
    """A client that is still sending a large body when `before_body` strikes gets a broken connection."""
    server.script = sequence(Response(status=413, before_body=True))
    with raw(server, request_head(64 * 10**6)) as connection, pytest.raises(ConnectionError):
        connection.sendall(bytes(64 * 10**6))
    assert server.requests[0].size < 64 * 10**6


def test_answer_before_the_body_instead_of_a_continue(server: ScriptedServer) -> None:
    """A request that expects a `100 Continue` gets the early answer in its place."""
    server.script = require_key(scripted_answers(), "right", before_body=True)
    head = request_head(5, "Expect: 100-continue", "Authorization: Bearer wrong")
    with raw(server, head) as connection:
        assert read_all(connection).startswith(b"HTTP/1.1 401 ")
    with raw(server, request_head(5, "Expect: 100-continue", "Authorization: Bearer right")) as connection:
        assert connection.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"


def test_next_try_after_an_early_answer_is_a_second_attempt(server: ScriptedServer) -> None:
    """A body refused unread counts as sent once, so a sequence goes on with its second answer."""
    server.script = sequence(
        Response(status=429, before_body=True), Response(cut_upload=True), scripted_answers()
    )
    assert post(server, chat()).status == 429
    with pytest.raises(ConnectionError):
        post(server, chat())
    assert post(server, chat()).text


def test_early_answers_for_one_model_only(server: ScriptedServer) -> None:
    """Which model an upload is for is known from the start of its body, and remembered for the next try."""
    refuse = sequence(Response(status=401, before_body=True))
    server.script = by_model({"lalm": refuse})
    with raw(server, request_head(10**6) + b'{"model": "lalm", "messages": [') as connection:
        assert read_all(connection).startswith(b"HTTP/1.1 401 ")
    with raw(server, request_head(10**6, "Expect: 100-continue")) as connection:
        assert read_all(connection).startswith(b"HTTP/1.1 401 ")
    assert post(server, judge_chat("x")).status == 200
    assert [(seen.model, seen.kind) for seen in server.requests[:2]] == [("lalm", "model")] * 2


def test_early_answer_without_early_is_told_to_the_test() -> None:
    """A script that answers `before_body` without being `early` is a mistake that is not passed over."""

    def mistaken(_seen: Seen, _attempt: int) -> Response:
        return Response(before_body=True)

    with pytest.raises(RuntimeError, match="early"), ScriptedServer(mistaken) as server:
        post(server, chat())
    with ScriptedServer(early(mistaken)) as server:
        post(server, chat())


def test_cut_in_the_middle_of_the_upload(server: ScriptedServer) -> None:
    """With `cut_upload` the connection is reset while the body arrives, and nothing is answered."""
    server.script = sequence(Response(cut_upload=True))
    with (
        raw(server, request_head(10**6) + b'{"model": "lalm"') as connection,
        pytest.raises(ConnectionResetError),
    ):
        read_all(connection)
    (seen,) = server.requests
    assert (seen.model, seen.complete, seen.status, seen.body) == ("lalm", False, None, b'{"model": "lalm"')


def test_client_that_goes_in_the_middle_of_the_upload(server: ScriptedServer) -> None:
    """An upload that the client gives up is recorded as far as it came."""
    raw(server, request_head(100) + b'{"model": "lalm"').close()
    until(lambda: not server.open_connections and len(server.requests) == 1)
    (seen,) = server.requests
    assert (seen.complete, seen.status, seen.body in (b"", b'{"model": "lalm"')) == (False, None, True)


def test_delay(server: ScriptedServer) -> None:
    """A delayed reply comes after its delay, by kind, and does not hold up others."""
    server.script = delayed(scripted_answers(), judge=0.3)
    slow = threading.Thread(target=post, args=(server, judge_chat("x")))
    begin = time.monotonic()
    slow.start()
    post(server, chat())
    assert time.monotonic() - begin < 0.25
    slow.join()
    assert time.monotonic() - begin >= 0.3


def test_hang_until_the_client_goes(server: ScriptedServer) -> None:
    """A hanging request is never answered, and is forgotten when the client goes."""
    server.script = sequence(Response(hang=True))
    body = json.dumps(chat()).encode()
    with raw(server, request_head(len(body)) + body) as connection:
        connection.settimeout(0.1)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        assert server.open_connections == 1
    until(lambda: server.open_connections == 0)
    assert (server.requests[0].status, server.requests[0].complete) == (None, True)


@pytest.mark.parametrize("stream", [False, True])
def test_reply_cut_short(server: ScriptedServer, stream: bool) -> None:
    """With `cut` only the first bytes of the reply's body arrive before the connection ends."""
    server.script = sequence(Response(cut=150))
    with pytest.raises(http.client.IncompleteRead) as caught:
        post(server, chat(stream=stream))
    assert len(caught.value.partial) == 150
    assert server.requests[0].status == 200


def test_reply_that_stalls(server: ScriptedServer) -> None:
    """With `cut` and `hang` the first bytes of the reply arrive and then nothing more."""
    server.script = sequence(Response(cut=20, hang=True))
    body = json.dumps(chat()).encode()
    with raw(server, request_head(len(body)) + body) as connection:
        connection.settimeout(0.1)
        received = b""
        with pytest.raises(TimeoutError):  # noqa: PT012
            while True:
                received += connection.recv(1000)
    assert len(received.partition(b"\r\n\r\n")[2]) == 20


def test_reply_in_pieces(server: ScriptedServer) -> None:
    """With `drip` the body arrives whole, but only after ten pauses; until then it is not served."""
    server.script = sequence(Response(drip=0.02), Response(drip=5))
    begun = time.monotonic()
    got = post(server, chat())
    assert time.monotonic() - begun >= 0.2
    assert got.text == "A scripted reply."
    body = json.dumps(chat()).encode()
    with raw(server, request_head(len(body)) + body) as connection:
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")
    until(lambda: server.open_connections == 0)
    assert [seen.served_at is not None for seen in server.requests] == [True, False]
    assert got.headers["x-request-id"] == server.requests[0].request_id


def test_reply_that_waits_for_an_event(server: ScriptedServer) -> None:
    """With `after` there is no reply before the event is set."""
    go_on = threading.Event()
    server.script = sequence(Response(after=go_on))
    body = json.dumps(chat()).encode()
    with raw(server, request_head(len(body)) + body) as connection:
        until(lambda: len(server.requests) == 1 and server.requests[0].complete)
        assert server.requests[0].status is None
        go_on.set()
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")


def test_headers_that_are_there_twice(server: ScriptedServer) -> None:
    """With `more_headers` a header may be there a second time."""
    server.script = sequence(Response(more_headers=(("Server", "a"), ("Server", "b"), ("x-request-id", "c"))))
    headers = post(server, chat()).headers
    assert headers.get_all("server") == ["a", "b"]
    assert headers.get_all("x-request-id") == [server.requests[0].request_id, "c"]


@pytest.mark.parametrize(
    "response",
    [Response(status=500), Response(body=b"{}"), Response(cut=10), Response(error={}), Response(drop=True)],
)
def test_what_is_no_whole_completion_is_not_served(server: ScriptedServer, response: Response) -> None:
    """Errors, raw bodies and replies that are cut are nothing that would be paid for."""
    server.script = sequence(response)
    with contextlib.suppress(http.client.HTTPException, OSError):
        post(server, chat())
    until(lambda: server.open_connections == 0)
    assert server.requests[0].served_at is None


def test_dropped_without_a_reply(server: ScriptedServer) -> None:
    """With `drop` the whole request is read and the connection reset without a reply."""
    server.script = sequence(Response(drop=True))
    with pytest.raises(ConnectionResetError):
        post(server, chat())
    assert (server.requests[0].complete, server.requests[0].status) == (True, None)


def test_close_says_so(server: ScriptedServer) -> None:
    """With `close` the reply announces the end of the connection, and it ends."""
    server.script = sequence(Response(close=True))
    body = json.dumps(chat()).encode()
    with raw(server, request_head(len(body)) + body) as connection:
        assert b"\r\nconnection: close\r\n" in read_all(connection)


def test_silent_close_says_nothing(server: ScriptedServer) -> None:
    """With `silent_close` the reply says keep-alive, but the connection ends after it."""
    server.script = sequence(Response(silent_close=True))
    body = json.dumps(chat()).encode()
    with raw(server, request_head(len(body)) + body) as connection:
        assert b"\r\nconnection: keep-alive\r\n" in read_all(connection)


def test_next_request_on_a_connection_breaks(server: ScriptedServer) -> None:
    """With `break_next` a connection is reused in vain, and its request goes through on a new one."""
    server.script = by_model({"breaks": sequence(Response(break_next=True))})
    with connect(server) as connection:
        assert send(connection, chat(model="breaks")).status == 200
        with pytest.raises((ConnectionResetError, http.client.RemoteDisconnected)):
            send(connection, chat("Again?"))
    assert post(server, chat("Again?")).status == 200
    assert [seen.status for seen in server.requests] == [200, None, 200]


# ------------------------------------------------------------------------------------------------- scripts


def test_sequence_counts_each_body(server: ScriptedServer) -> None:
    """Successive answers go to the same body, each body has its own count, and the last answer repeats."""
    server.script = sequence(Response(status=500), Response(status=429), scripted_answers())
    assert [post(server, chat("One?")).status for _ in range(4)] == [500, 429, 200, 200]
    assert post(server, chat("Two?")).status == 500
    server.reset()
    assert post(server, chat("One?")).status == 500


def test_failing_hits_a_share_of_the_chosen_kind(server: ScriptedServer) -> None:
    """About the given share of the judge's requests fails, always the same ones, and no model's request."""
    server.script = failing(scripted_answers(), 0.2, Response(text="Both are fine."))

    def failed(connection: http.client.HTTPConnection) -> list[bool]:
        return [send(connection, judge_chat(str(n))).text == "Both are fine." for n in range(300)]

    with connect(server) as connection:
        first = failed(connection)
        server.reset()
        assert failed(connection) == first
        assert failed(connection) != first, "a second attempt draws again"
        server.reset()
        server.script = failing(scripted_answers(), 0.2, Response(text="Both are fine."), seed=1)
        assert failed(connection) != first
        assert all(send(connection, chat(str(n))).text != "Both are fine." for n in range(50))
    assert 30 <= sum(first) <= 90


def test_failing_at_the_first_attempt_only(server: ScriptedServer) -> None:
    """With `first_attempt_only` every second try succeeds, also when the failure comes before the body."""
    for trouble in (Response(status=500), Response(status=500, before_body=True)):
        server.reset()
        server.script = failing(scripted_answers(), 1.0, trouble, kinds=("model",), first_attempt_only=True)
        assert [post(server, chat()).status for _ in range(3)] == [500, 200, 200]
        assert post(server, judge_chat("x")).status == 200


def test_required_key(server: ScriptedServer) -> None:
    """Without the right key there is a 401 in OpenAI's form that does not give the key away."""
    server.script = require_key(scripted_answers(), "sk-right")
    none, wrong = post(server, chat()), post(server, chat(), Authorization="Bearer sk-wrong")
    assert (none.status, wrong.status) == (401, 401)
    assert wrong.json["error"]["code"] == "invalid_api_key"
    assert b"sk-wrong" not in wrong.body
    assert post(server, chat(), Authorization="Bearer sk-right").status == 200


def test_known_models(server: ScriptedServer) -> None:
    """A model that is not known gets a 404 in OpenAI's form that names it."""
    server.script = known_models(scripted_answers(), ["lalm"])
    assert post(server, chat(model="lalm")).status == 200
    reply = post(server, chat(model="nobody"))
    assert (reply.status, reply.json["error"]["code"]) == (404, "model_not_found")
    assert "nobody" in reply.json["error"]["message"]


# ------------------------------------------------------------------------------------------ life and limits


def test_stop_and_start_on_the_same_port(server: ScriptedServer) -> None:
    """A stopped server refuses connections and drops those it had; started again it has the same address."""
    url = server.url
    with connect(server) as connection:
        send(connection, chat())
        server.stop()
        server.stop()
        with pytest.raises((ConnectionError, http.client.RemoteDisconnected)):
            send(connection, chat())
    with pytest.raises(ConnectionRefusedError):
        post(server, chat())
    server.start()
    assert server.url == url
    assert post(server, chat()).status == 200
    assert len(server.requests) == 2


def test_a_server_that_dies_of_a_request_is_started_again(server: ScriptedServer) -> None:
    """It is gone with all its connections; a supervisor starts it on the same port and counts the deaths."""
    url = server.url
    server.script = sequence(Response(die=True), Response())
    with pytest.raises((ConnectionError, http.client.RemoteDisconnected)):
        post(server, chat())
    assert server.died.wait(5)
    until(lambda: server.open_connections == 0)
    with pytest.raises(ConnectionRefusedError):
        post(server, chat())
    with Supervisor(server, 0.0) as supervisor:
        until(lambda: supervisor.deaths == 1 and not server.died.is_set())
        assert server.url == url
        assert post(server, chat()).status == 200


def test_stop_leaves_nothing_behind(server: ScriptedServer) -> None:
    """Stopping in the middle of hanging, delayed and half-sent requests ends all threads and connections."""
    server.script = by_model({"hang": sequence(Response(hang=True))}, delayed(scripted_answers(), model=60))
    bodies = [json.dumps(chat(model=model)).encode() for model in ("hang", "slow")]
    sends = [*(request_head(len(body)) + body for body in bodies), request_head(100) + b"{", b"POST /v1", b""]
    connections = [raw(server, data) for data in sends]
    until(lambda: len(server.requests) == 3 and server.open_connections == 5)
    server.stop()
    assert server.open_connections == 0
    assert not [thread for thread in threading.enumerate() if thread.name == "scripted-server"]
    for connection in connections:
        with connection, pytest.raises(ConnectionResetError):
            connection.recv(1)


def test_drop_connections_keeps_listening(server: ScriptedServer) -> None:
    """Idle connections can be reset while the server goes on."""
    with connect(server) as connection:
        send(connection, chat())
        server.drop_connections()
        with pytest.raises((ConnectionError, http.client.RemoteDisconnected)):
            send(connection, chat())
    assert post(server, chat()).status == 200


def test_many_connections_and_requests(server: ScriptedServer) -> None:
    """256 connections with several requests each are all served, at a rate that does not hold tests up."""
    body = json.dumps(chat()).encode()
    message = request_head(len(body)) + body

    async def client() -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        served = 0
        for _ in range(5):
            writer.write(message)
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head)
            assert length is not None
            await reader.readexactly(int(length[1]))
            served += head.startswith(b"HTTP/1.1 200 OK")
        writer.close()
        await writer.wait_closed()
        return served

    async def clients() -> int:
        return sum(await asyncio.gather(*(client() for _ in range(256))))

    begin = time.monotonic()
    assert asyncio.run(clients()) == len(server.requests) == 1280
    assert time.monotonic() - begin < 5
    assert len({seen.connection for seen in server.requests}) == 256


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_demonstration_program(ending: signal.Signals) -> None:
    """The program prints its address, says that its replies are scripted, and ends cleanly when told to."""
    program = [
        sys.executable,
        "-W",
        "error",
        str(Path(scripted_server.__file__)),
        "--port",
        "0",
        "--delay-judge",
        "0.1",
    ]
    with subprocess.Popen(
        program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8"
    ) as process:
        assert process.stdout is not None
        match = re.fullmatch(r"listening on http://127\.0\.0\.1:(\d+)/v1\n", process.stdout.readline())
        assert match is not None
        with closing(http.client.HTTPConnection("127.0.0.1", int(match[1]), timeout=5)) as connection:
            assert send(connection, chat()).text.startswith("[scripted demonstration reply] ")
            begin = time.monotonic()
            assert re.fullmatch(r"\d+ \d+", send(connection, judge_chat("x")).text)
            assert time.monotonic() - begin >= 0.1
            process.send_signal(ending)
            _, errors = process.communicate(timeout=5)
    assert (process.returncode, errors) == (0, "")
