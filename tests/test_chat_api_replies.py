"""What came back: reading completions, event streams, errors, and `Retry-After`."""

from __future__ import annotations

import gzip
import json
import math
import time
import tracemalloc
from collections.abc import Mapping
from datetime import datetime, timezone
from email.utils import format_datetime, formatdate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otoscope.chat_api.replies import (
    MOST_EVENTS,
    Completion,
    ServerError,
    clean,
    read_completion,
    read_error,
    read_models,
    retry_after,
)
from otoscope.records import FailureKind, json_bytes
from tests.chat_helpers import failed, replied, settings
from tests.scripted_server import Response, ScriptedServer, sequence

SSE = "text/event-stream"


def completion(*choices: Any, **fields: Any) -> Completion:
    """Read a JSON completion and insist that it is one."""
    read = read_completion(json_bytes({"choices": list(choices), **fields}), "application/json")
    assert isinstance(read, Completion), read
    return read


def message(content: Any, **fields: Any) -> dict[str, Any]:
    """Return a choice with a message."""
    return {"message": {"role": "assistant", "content": content, **fields}, "finish_reason": "stop"}


def stream(*events: Any, end: bytes = b"data: [DONE]\n\n", newline: bytes = b"\n") -> bytes:
    """Return an event stream."""
    return b"".join(b"data: " + json_bytes(event) + newline * 2 for event in events) + end


def delta(index: int = 0, finish: str | None = None, **fields: Any) -> dict[str, Any]:
    """Return a chunk with one piece of one choice."""
    return {"choices": [{"index": index, "delta": fields, "finish_reason": finish}]}


# --- completions ------------------------------------------------------------------------------------------


def test_reply_holds_everything_the_server_said() -> None:
    """Text, reasoning, finish reason, usage, model, request id and what was sent all reach the Reply."""
    response = Response(
        text="A dog barks.",
        reasoning="Hm.",
        finish_reason="length",
        model="served-name",
        usage={"prompt_tokens": 3},
        request_id="req-7",
    )
    before = time.time()
    with ScriptedServer(sequence(response)) as server:
        reply = replied(settings(server), max_tokens=7)
    assert (reply.text, reply.reasoning, reply.finish_reason) == ("A dog barks.", "Hm.", "length")
    assert (reply.model, reply.usage, reply.request_id) == ("served-name", {"prompt_tokens": 3}, "req-7")
    assert reply.parameters == {"temperature": 0, "max_tokens": 7}
    assert reply.endpoint == server.url
    assert reply.attempts == 1
    assert before <= reply.started_at <= time.time()
    assert 0 < reply.latency < 10


def test_request_id_falls_back_to_the_completion_id() -> None:
    """Without a header the completion's own id is the request id."""
    assert completion(message("x"), id="chatcmpl-1").id == "chatcmpl-1"


@pytest.mark.parametrize(
    ("choices", "text"),
    [
        ([message("one"), message("two")], "one"),
        ([message(None), message("two")], "two"),
        ([message(""), message("two")], "two"),
        ([message(None), message("")], ""),
        ([message(None)], None),
        ([{"message": None}], None),
        ([None], None),
        (["text"], None),
        ([message(17)], None),
        ([message([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])], "ab"),
        ([message([{"text": "a"}, {"type": "output_audio", "data": ""}, "c", None])], "a"),
        ([message([])], None),
        ([message(None, refusal="I cannot.")], "I cannot."),
        ([message([{"type": "refusal", "refusal": "No."}])], "No."),
        ([message("x", refusal=None)], "x"),
    ],
)
def test_text_is_that_of_the_first_choice_with_text(choices: list[Any], text: str | None) -> None:
    """The first choice with text counts, in whatever form the text comes; a refusal is text too."""
    assert completion(*choices).text == text


@pytest.mark.parametrize(
    ("fields", "reasoning"),
    [
        ({"reasoning_content": "a"}, "a"),
        ({"reasoning": "b"}, "b"),
        ({"reasoning_content": "", "reasoning": "b"}, "b"),
        ({"reasoning_content": None}, None),
        ({"reasoning_content": ""}, None),
        ({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "c"}]}]}, "c"),
        ({"content": [{"type": "reasoning", "text": "d"}, {"type": "text", "text": "x"}]}, "d"),
    ],
)
def test_reasoning_is_kept_apart(fields: dict[str, Any], reasoning: str | None) -> None:
    """Reasoning is read from each place where servers put it, and never mixed into the text."""
    read = completion({"message": {"content": "x", **fields}})
    assert read.reasoning == reasoning
    assert read.text in ("x", None)


def test_numbers_that_are_no_json_are_unknown() -> None:
    """NaN and infinities, which some servers send, become null, so that the reply can be stored."""
    content = b'{"choices":[{"message":{"content":"x"}}],"usage":{"a":NaN,"b":-Infinity,"c":1e999,"d":1.5}}'
    read = read_completion(content, "application/json")
    assert isinstance(read, Completion)
    assert read.usage == {"a": None, "b": None, "c": None, "d": 1.5}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty"),
        (b"<html><h1>Welcome to nginx</h1></html>", "not JSON: <html>"),
        (b'{"choices": [{"message": {"content": "cut', "not JSON"),
        (b"{}", "no choices"),
        (b"null", "no choices"),
        (b"[1]", "no choices"),
        (b'{"choices": []}', "no choices"),
        (b'{"choices": null}', "no choices"),
        (b'{"choices": {"0": 1}}', "no choices"),
        (b'{"error": {"message": "overloaded"}}', "overloaded"),
        (b'{"error": "overloaded"}', "overloaded"),
        (b'{"object": "error", "message": "overloaded", "code": 503}', "overloaded"),
        (b"[" * 200_000, "nested too deeply"),
        (b"\xff\xfe\x00", "not JSON"),
        (b"9" * 10_000, "not JSON"),
    ],
)
def test_what_is_no_completion_is_named(content: bytes, says: str) -> None:
    """A 200 with anything else than a completion is an error that says what it is."""
    read = read_completion(content, "application/json")
    assert isinstance(read, ServerError)
    assert says in read.message


@pytest.mark.parametrize("content_type", ["text/html", "", "application/octet-stream", "Application/JSON"])
def test_content_type_does_not_matter(content_type: str) -> None:
    """A completion under the wrong content type is read all the same."""
    with ScriptedServer(sequence(Response(text="fine", content_type=content_type or "x/y"))) as server:
        assert replied(settings(server)).text == "fine"


@pytest.mark.parametrize("body", [b"", b"<html>proxy</html>", b'{"choices": [', b'{"choices": []}'])
def test_bad_reply_is_asked_for_again(body: bytes) -> None:
    """A 200 without a completion is retried, and becomes `bad_reply` when the tries are used up."""
    with ScriptedServer(sequence(Response(body=body), Response(text="fine"))) as server:
        assert replied(settings(server)).attempts == 2
    with ScriptedServer(sequence(Response(body=body))) as server:
        failure = failed(settings(server, tries=3))
    assert (failure.kind, failure.attempts) == (FailureKind.BAD_REPLY, 3)
    assert len(server.requests) == 3


def test_reply_without_end_is_cut() -> None:
    """A reply over 16 MB is given up, not asked for again and not kept in memory."""
    with ScriptedServer(sequence(Response(body=b"x" * ((16 << 20) + 1)))) as server:
        failure = failed(settings(server))
    assert (failure.kind, failure.attempts) == (FailureKind.BAD_REPLY, 1)
    assert "16 MB" in failure.message


def test_stream_of_endless_events_is_given_up() -> None:
    """A stream that is within the limit of bytes, but of nothing but small events, is read no further."""
    reply = b'data: {"choices": [{"delta": {"content": "fine"}, "finish_reason": "stop"}]}\n'
    for events, read in ((MOST_EVENTS - 1, True), (MOST_EVENTS, False)):
        completion = read_completion(b"data:1\n" * events + reply, "text/event-stream")
        assert isinstance(completion, Completion) is read


def test_reply_that_unpacks_without_end_is_cut() -> None:
    """The limit is on what a compressed reply unpacks to: unpacking stops there, whatever is to come."""
    packed = gzip.compress(bytes(100 << 20), compresslevel=1)
    with ScriptedServer(
        sequence(Response(body=packed, headers={"Content-Encoding": "gzip"}, content_type="application/json"))
    ) as server:
        endpoint = settings(server)
        tracemalloc.start()
        try:
            failure = failed(endpoint)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert (failure.kind, failure.attempts) == (FailureKind.BAD_REPLY, 1)
    assert "16 MB" in failure.message
    assert most < 60 << 20


@pytest.mark.parametrize("size", [9_000, 60_000])
def test_reply_with_a_large_header_is_read(size: int) -> None:
    """A header that a gateway made long costs no reply."""
    with ScriptedServer(sequence(Response(text="fine", headers={"X-Trace": "x" * size}))) as server:
        assert replied(settings(server)).attempts == 1


def test_reply_with_too_large_a_header_is_named() -> None:
    """A header over 64 KB is named, without its text, and the paid request is not made again."""
    with ScriptedServer(sequence(Response(headers={"X-Trace": "x" * 70_000}))) as server:
        failure = failed(settings(server))
    assert (failure.kind, failure.attempts) == (FailureKind.BAD_REPLY, 1)
    assert "header of over 64 KB" in failure.message
    assert "xx" not in failure.message
    assert len(server.requests) == 1


def test_reply_with_too_many_headers_is_named() -> None:
    """What libcurl would break off for the sum of it is not paid for again, either."""
    headers = {f"X-Trace-{number}": "x" * 60_000 for number in range(6)}
    with ScriptedServer(sequence(Response(headers=headers))) as server:
        failure = failed(settings(server))
    assert (failure.kind, failure.attempts) == (FailureKind.BAD_REPLY, 1)
    assert "too many headers" in failure.message


def test_other_good_statuses_hold_replies() -> None:
    """A completion with 201 is a completion."""
    with ScriptedServer(sequence(Response(status=201, text="fine"))) as server:
        assert replied(settings(server)).text == "fine"


# --- event streams ----------------------------------------------------------------------------------------


def test_stream_gives_the_same_reply() -> None:
    """With streaming the pieces join to the same text and reasoning, with usage and finish reason."""
    response = Response(text="Grüße 🔔 and more", reasoning="Let me think.", finish_reason="length")
    with ScriptedServer(sequence(response)) as server:
        whole = replied(settings(server))
        streamed = replied(settings(server, stream=True))
    assert (streamed.text, streamed.reasoning) == (whole.text, whole.reasoning)
    assert (streamed.finish_reason, streamed.model) == (whole.finish_reason, whole.model)
    assert streamed.usage is not None
    assert streamed.parameters["stream"] is True
    assert server.requests[1].payload["stream_options"] == {"include_usage": True}


def test_stream_that_nobody_asked_for_is_read() -> None:
    """A server that streams all the same is understood."""
    with ScriptedServer(sequence(Response(text="fine", stream=True))) as server:
        assert replied(settings(server)).text == "fine"


def test_whole_reply_to_a_streaming_request_is_read() -> None:
    """A server that ignores `stream` is understood, whatever content type it gives."""
    response = Response(text="fine", stream=False, content_type=SSE)
    with ScriptedServer(sequence(response)) as server:
        assert replied(settings(server, stream=True)).text == "fine"


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"])
def test_stream_line_ends(newline: bytes) -> None:
    """Each of the three line ends of event streams is understood, and U+2028 is none."""
    content = stream(delta(content="a\u2028"), delta(content="b"), delta(finish="stop"), newline=newline)
    read = read_completion(b": ping\n\nevent: x\n" + content, "")
    assert isinstance(read, Completion)
    assert (read.text, read.finish_reason) == ("a\u2028b", "stop")


def test_stream_with_two_choices() -> None:
    """Of a stream with two choices that with text counts."""
    content = stream(
        delta(0, audio={"data": ""}),
        delta(1, content="he"),
        delta(1, content="y"),
        delta(1, "stop"),
        delta(0, "stop"),
    )
    read = read_completion(content, SSE)
    assert isinstance(read, Completion)
    assert read.text == "hey"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (stream(delta(content="half"), end=b""), "ended before"),
        (stream(delta(content="half"), end=b'data: {"choi'), "not JSON"),
        (stream(), "no reply"),
        (b"data: \n\n", "no reply"),
        (stream(delta(content="half"), {"error": {"message": "engine died", "code": 500}}), "engine died"),
        (stream({"object": "error", "message": "engine died"}), "engine died"),
    ],
)
def test_stream_that_breaks_off(content: bytes, says: str) -> None:
    """A stream that is cut or ends in an error is never taken for an answer."""
    read = read_completion(content, SSE)
    assert isinstance(read, ServerError)
    assert says in read.message


def test_stream_may_end_without_done() -> None:
    """A finish reason ends a reply even where the server leaves out the end mark."""
    read = read_completion(stream(delta(content="all"), delta(finish="stop"), end=b""), SSE)
    assert isinstance(read, Completion)
    assert read.text == "all"


def test_stream_cut_on_the_wire_is_asked_for_again() -> None:
    """A connection that breaks in the middle of a stream costs a try and no answer."""
    script = sequence(Response(text="half of it", cut=600), Response(text="whole"))
    with ScriptedServer(script) as server:
        reply = replied(settings(server, stream=True))
    assert (reply.text, reply.attempts) == ("whole", 2)


def test_error_in_the_stream_has_its_status() -> None:
    """An error event that names a status is treated as that status."""
    body = stream(delta(content="ha"), {"error": {"message": "maximum context length is 10", "code": 400}})
    with ScriptedServer(sequence(Response(body=body, content_type=SSE))) as server:
        failure = failed(settings(server, stream=True))
    assert (failure.kind, failure.attempts) == (FailureKind.CONTEXT_TOO_SMALL, 1)


# --- errors -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (
            b'{"error": {"message": "m", "type": "t", "param": "p", "code": "c"}}',
            ServerError("m", "c", "t", "p"),
        ),
        (b'{"error": {"message": "m", "code": 429}}', ServerError("m", "429", status=429)),
        (b'{"error": {"message": "m", "code": "503"}}', ServerError("m", "503", status=503)),
        (b'{"error": "m"}', ServerError("m")),
        (b'{"message": "m", "code": 7}', ServerError("m", "7")),
        (b'{"object": "error", "message": "m", "code": 400}', ServerError("m", "400", status=400)),
        (b'{"detail": "Not Found"}', ServerError("Not Found")),
        (
            b'{"detail": [{"loc": ["body", "max_tokens"], "msg": "bad"}, "x"]}',
            ServerError("body.max_tokens: bad; x"),
        ),
        (b'[{"error": {"message": "m", "code": 400}}]', ServerError("m", "400", status=400)),
        (b"Bad gateway", ServerError("Bad gateway")),
        (b'"text"', ServerError("text")),
        (b"{}", ServerError("")),
        (b"", ServerError("")),
    ],
)
def test_shapes_of_errors(content: bytes, expected: ServerError) -> None:
    """Every shape in which servers word their errors is read."""
    assert read_error(content) == expected


def test_clean_gives_one_short_line() -> None:
    """A server's text becomes one line of bearable length, without control characters."""
    assert clean("\x1b[31mred\r\nnew\u2028line\x00 ") == "[31mred new line"
    assert len(clean("x" * 1000)) == 400


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                "choices message content text type delta index refusal error code usage finish_reason "
                "reasoning thinking object detail loc msg model id".split()
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=25,
)


@given(st.binary() | json_values.map(lambda value: json.dumps(value).encode()), st.booleans())
def test_no_bytes_crash_the_readers(content: bytes, as_stream: bool) -> None:
    """Any bytes, and any JSON with the right names in the wrong places, are read without an exception."""
    wrapped = b"data: " + content if as_stream else content
    read_error(wrapped)
    read_models(wrapped)
    read = read_completion(wrapped, SSE if as_stream else "")
    if isinstance(read, Completion):
        json_bytes({"text": read.text, "reasoning": read.reasoning, "usage": read.usage})


# --- Retry-After ------------------------------------------------------------------------------------------

DATE = "Mon, 30 Nov 2026 10:00:00 GMT"
LATER = "Mon, 30 Nov 2026 10:00:20 GMT"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, 0),
        ({"retry-after": "7"}, 7),
        ({"retry-after": " 0.5 "}, 0.5),
        ({"retry-after": "0"}, 0),
        ({"retry-after": "-5"}, 0),
        ({"retry-after": "soon"}, 0),
        ({"retry-after": ""}, 0),
        ({"retry-after": "nan"}, 0),
        ({"retry-after": "inf"}, 0),
        ({"retry-after": "9" * 400}, 0),
        ({"retry-after": "1_0"}, 0),
        ({"retry-after": "٣"}, 0),
        ({"retry-after": LATER, "date": DATE}, 20),
        ({"retry-after": DATE, "date": LATER}, 0),
        ({"retry-after": "Mon, 30 Nov 2026 10:00:20 -0000", "date": DATE}, 20),
        ({"retry-after": "Mon, 30 Nov 99999 10:00:20 GMT", "date": DATE}, 0),
        ({"retry-after": "Mon, 30 Nov 2026 10:00:20 +9999999999999", "date": DATE}, 0),
        ({"retry-after": "Mon, 30 Nov 2000 10:00:00 GMT"}, 0),
    ],
)
def test_retry_after(headers: Mapping[str, str], seconds: float) -> None:
    """Seconds and dates are read, the latter against the server's clock; garbage asks for nothing."""
    assert retry_after(headers) == seconds


@pytest.mark.parametrize("headers", [{}, {"date": "broken"}])
def test_retry_after_without_the_servers_clock(headers: dict[str, str]) -> None:
    """A date from a server that does not tell its own time counts from ours."""
    until = datetime.fromtimestamp(time.time() + 30, timezone.utc)
    assert 28 < retry_after({"retry-after": format_datetime(until, usegmt=True), **headers}) <= 30


@given(st.text(), st.text())
def test_no_header_crashes_retry_after(value: str, date: str) -> None:
    """Any header gives a finite number of seconds, not below zero."""
    for headers in (
        {"retry-after": value, "date": date},
        {"retry-after": formatdate() + value, "date": date},
    ):
        seconds = retry_after(headers)
        assert seconds >= 0
        assert math.isfinite(seconds)
