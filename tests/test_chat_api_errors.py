"""What a refusal means: the table of statuses, adaptation to the server, and what people are told."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from otoscope.chat_api import ChatEndpoint
from otoscope.chat_api.replies import ServerError
from otoscope.chat_api.wire_form import WireForm
from otoscope.config import EndpointSettings
from otoscope.errors import EndpointError
from otoscope.records import Failure, FailureKind, Reply
from tests.chat_helpers import (
    KEY,
    QUESTION,
    asked,
    failed,
    raw_server,
    read_head,
    replied,
    settings,
    use,
)
from tests.scripted_server import Response, Script, ScriptedServer, Seen, known_models, require_key, sequence


def refused(endpoint: EndpointSettings) -> EndpointError:
    """Ask once and insist that the endpoint stops the run."""
    with pytest.raises(EndpointError) as caught:
        asked(endpoint)
    return caught.value


def error(message: str = "", code: Any = None, **fields: Any) -> dict[str, Any]:
    """Return an error object of the usual shape."""
    return {"message": message, "type": "invalid_request_error", "param": None, "code": code, **fields}


# --- one sample's trouble ---------------------------------------------------------------------------------

TOO_LONG = "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens."
FILTERED = "The response was filtered due to the prompt triggering Azure OpenAI's content management policy."


@pytest.mark.parametrize(
    ("status", "server_error", "kind"),
    [
        (400, error("odd"), FailureKind.REJECTED),
        (422, error("odd"), FailureKind.REJECTED),
        (418, error("odd"), FailureKind.REJECTED),
        (400, error(TOO_LONG, "context_length_exceeded"), FailureKind.CONTEXT_TOO_SMALL),
        (400, error("the request exceeds the available context size"), FailureKind.CONTEXT_TOO_SMALL),
        (400, error("longer than the maximum model length of 10"), FailureKind.CONTEXT_TOO_SMALL),
        (500, error("context length exceeded"), FailureKind.CONTEXT_TOO_SMALL),
        (400, error(FILTERED, "content_filter"), FailureKind.CONTENT_FILTER),
        (
            400,
            error("Input data may contain inappropriate content.", "data_inspection_failed"),
            FailureKind.CONTENT_FILTER,
        ),
        (403, error("Your input was flagged"), FailureKind.CONTENT_FILTER),
        (413, error("Request Entity Too Large"), FailureKind.TOO_LARGE),
    ],
)
def test_lasting_refusal_is_a_failure_by_name(
    status: int, server_error: dict[str, Any], kind: FailureKind
) -> None:
    """What is the sample's own trouble is a Failure by name, with the server's words, after one request."""
    with ScriptedServer(sequence(Response(status=status, error=server_error))) as server:
        failure = failed(settings(server))
    assert (failure.kind, failure.attempts, len(server.requests)) == (kind, 1, 1)
    assert failure.message == f"{status}: {server_error['message']}"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (408, FailureKind.TIMEOUT),
        (409, FailureKind.SERVER_ERROR),
        (429, FailureKind.RATE_LIMITED),
        (500, FailureKind.SERVER_ERROR),
        (502, FailureKind.SERVER_ERROR),
        (503, FailureKind.SERVER_ERROR),
        (529, FailureKind.SERVER_ERROR),
    ],
)
def test_passing_trouble_is_retried(status: int, kind: FailureKind) -> None:
    """Passing trouble costs six tries at most, and any good reply among them counts."""
    bad = Response(status=status)
    with ScriptedServer(sequence(*[bad] * 5, Response(text="fine"))) as server:
        assert replied(settings(server)).attempts == 6
    with ScriptedServer(sequence(bad)) as server:
        failure = failed(settings(server))
    assert (failure.kind, failure.attempts, len(server.requests)) == (kind, 6, 6)


def test_status_inside_a_good_reply_counts() -> None:
    """An error that comes with a 200 but names its own status is treated as that status."""
    body = b'{"error": {"message": "slow down", "code": 429}}'
    with ScriptedServer(sequence(Response(body=body))) as server:
        assert failed(settings(server, tries=2)).kind is FailureKind.RATE_LIMITED


# --- the endpoint's trouble -------------------------------------------------------------------------------


@pytest.mark.parametrize(("role", "exit_code"), [("model", 4), ("judge", 5)])
@pytest.mark.parametrize("status", [301, 302, 307, 308, 401, 402, 403, 404, 405, 407])
def test_endpoint_that_refuses_everything_stops_the_run(status: int, role: str, exit_code: int) -> None:
    """A wrong key, name or URL, or an empty account, stops the run after one request, by its exit code."""
    with ScriptedServer(sequence(Response(status=status))) as server:
        stop = refused(settings(server, role=role))
    assert stop.exit_code == exit_code
    assert str(status) in str(stop)
    assert f"the {role} 'scripted-model'" in str(stop)
    assert server.url in str(stop)
    assert [seen.method for seen in server.requests].count("POST") == 1


def test_wrong_key_says_where_to_give_it() -> None:
    """A 401 names the flag for the key."""
    with ScriptedServer(require_key(sequence(Response()), "another")) as server:
        stop = refused(settings(server))
    assert "--api-key" in str(stop)
    assert "Incorrect API key" in str(stop)


def test_unknown_model_lists_what_is_served() -> None:
    """A 404 names the models that the server has, and the likely one."""
    script = known_models(sequence(Response()), ["scripted-model-7b"])
    with ScriptedServer(script, models=["scripted-model-7b", "other"]) as server:
        stop = refused(settings(server))
    assert "did you mean 'scripted-model-7b'?" in str(stop)
    assert "other, scripted-model-7b" in str(stop)


@pytest.mark.parametrize("models", [["scripted-model"], []])
def test_not_found_without_a_better_idea(models: list[str]) -> None:
    """A 404 for a model that is served, or from a server that serves none, names the flags to check."""
    with ScriptedServer(sequence(Response(status=404)), models=models) as server:
        stop = refused(settings(server, role="judge"))
    assert "--judge-model" in str(stop)
    assert "--judge-api-url" in str(stop)


@pytest.mark.parametrize(
    ("status", "code"),
    [(429, "insufficient_quota"), (403, "insufficient_quota"), (400, "Arrearage"), (402, None)],
)
def test_used_up_quota_stops_the_run(status: int, code: str | None) -> None:
    """A used up quota is not waited for: the run stops and can be resumed."""
    response = Response(status=status, error=error("You exceeded your current quota", code))
    with ScriptedServer(sequence(response)) as server:
        stop = refused(settings(server))
    assert "quota" in str(stop)
    assert "resume" in str(stop)
    assert len(server.requests) == 1


def test_redirect_is_not_followed() -> None:
    """A redirect stops the run and names its target, which sees no request and no key."""
    with ScriptedServer() as target:
        redirect = Response(status=307, headers={"Location": f"{target.url}/chat/completions"})
        with ScriptedServer(sequence(redirect)) as server:
            stop = refused(settings(server))
        assert target.requests == []
        assert target.url in str(stop)


def test_redirect_of_the_list_of_models_is_not_followed() -> None:
    """Where the list is asked for, to say what is served, its redirect takes no key anywhere either."""
    asked_for: list[bytes] = []
    with ScriptedServer() as target:

        def redirect(connection: socket.socket, _number: int) -> None:
            head, _ = read_head(connection)
            asked_for.append(head.partition(b" HTTP")[0])
            status = b"307 Moved" if head.startswith(b"GET") else b"404 Not Found"
            location = f"Location: {target.url}/models".encode()
            connection.sendall(b"HTTP/1.1 %s\r\n%s\r\nContent-Length: 0\r\n\r\n" % (status, location))

        with raw_server(redirect) as url:
            stop = refused(settings(url))
        assert target.requests == []
    assert asked_for == [b"POST /v1/chat/completions", b"GET /v1/models"]
    assert "Check --model and --api-url" in str(stop)


# --- refusals by an endpoint that has served others -------------------------------------------------------


def refusing_some(response: Response) -> Script:
    """Refuse every request that says so."""
    return lambda seen, _attempt: response if seen.text == "refused" else Response(text="fine")


async def ask_each(chat: ChatEndpoint, *texts: str) -> list[Reply | Failure]:
    """Ask one after the other."""
    return [await chat.ask([{"role": "user", "content": text}]) for text in texts]


@pytest.mark.parametrize("status", [301, 307, 403, 404, 405])
def test_refusal_after_a_reply_is_the_samples_own(status: int) -> None:
    """A 403, 404, 405 or redirect from an endpoint that has served others is a Failure, without a retry."""
    script = refusing_some(Response(status=status, error=error("Blocked"), headers={"Location": "/login"}))
    texts = "served refused refused served refused refused served".split()
    with ScriptedServer(script) as server:
        results = use(settings(server), lambda chat: ask_each(chat, *texts))
    for text, result in zip(texts, results, strict=True):
        if text == "served":
            assert isinstance(result, Reply)
            continue
        assert isinstance(result, Failure)
        assert (result.kind, result.attempts) == (FailureKind.REJECTED, 1)
        assert f"{status}: Blocked" in result.message
        assert ("it redirects to /login" in result.message) == (status < 400)
    assert len(server.requests) == len(texts)


@pytest.mark.parametrize("status", [301, 307, 403, 404, 405])
def test_three_refusals_in_a_row_stop_the_run(status: int) -> None:
    """Three such refusals without a reply between stop the run, with the advice of a first one."""
    advice = {403: "--api-key", 404: "--api-url", 405: "--api-url"}.get(status, "Redirects are not followed")

    async def main(chat: ChatEndpoint) -> list[Reply | Failure]:
        results = await ask_each(chat, "served", "refused", "refused")
        with pytest.raises(EndpointError, match="3 requests in a row") as caught:
            await ask_each(chat, "refused")
        assert str(status) in str(caught.value)
        assert advice in str(caught.value)
        return results

    with ScriptedServer(refusing_some(Response(status=status))) as server:
        _, *failures = use(settings(server), main)
    assert all(isinstance(failure, Failure) for failure in failures)
    assert [seen.method for seen in server.requests].count("POST") == 4


@pytest.mark.parametrize(
    ("status", "code"), [(401, None), (402, None), (403, "insufficient_quota"), (407, None)]
)
def test_key_and_quota_stop_the_run_whenever_refused(status: int, code: str | None) -> None:
    """A key that is refused, or a used up quota, stops the run also after replies, at once."""
    script = refusing_some(Response(status=status, error=error("No", code)))
    with ScriptedServer(script) as server, pytest.raises(EndpointError, match=str(status)):
        use(settings(server), lambda chat: ask_each(chat, "served", "refused"))
    assert len(server.requests) == 2


def test_a_bad_reply_proves_no_endpoint() -> None:
    """Only a usable reply proves key, name and URL: a 403 after other troubles stops the run at once."""
    script = sequence(Response(status=500), Response(body=b"<html>"), Response(status=403))
    with ScriptedServer(script) as server:
        refused(settings(server))
    assert len(server.requests) == 3


# --- secrets ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("filler", [0, 350, 395])
@pytest.mark.parametrize("status", [200, 302, 400, 401, 404, 429, 500])
def test_key_is_in_no_message(status: int, filler: int) -> None:
    """A server that repeats key and headers gets them into no message, not even a piece of them."""

    def echo(seen: Seen, _attempt: int) -> Response:
        said = "x" * filler + " " + seen.headers["authorization"] + seen.headers["x-token"]
        if status == 200:
            return Response(body=said.encode())
        return Response(status=status, error=error(said), headers={"Location": f"http://x/?k={KEY}"})

    with ScriptedServer(echo) as server:
        endpoint = settings(server, tries=1, extra_headers={"X-Token": "hidden-token"})
        try:
            message = str(asked(endpoint))
        except EndpointError as stop:
            message = str(stop)
    assert KEY[:9] not in message
    assert "hidden" not in message


def test_credentials_of_the_url_go_as_basic_and_stay_secret() -> None:
    """A user and password in the URL travel as Basic authorization and appear in no message."""

    def echo(seen: Seen, _attempt: int) -> Response:
        return Response(status=401, error=error(f"{seen.headers['authorization']} is me:pass-word-1"))

    with ScriptedServer(echo) as server:
        url = server.url.replace("://", "://me:pass-word-1@")
        stop = refused(settings(url, api_key=None))
    assert server.requests[0].headers["authorization"] == "Basic bWU6cGFzcy13b3JkLTE="
    assert "bWU6" not in str(stop)
    assert "pass-word" not in str(stop)


def test_secret_of_the_query_stays_secret() -> None:
    """A key in the URL's query is sent and not shown; other parameters are no secret."""

    def echo(seen: Seen, _attempt: int) -> Response:
        return Response(status=400, error=error(seen.path))

    with ScriptedServer(echo) as server:
        failure = failed(settings(server.url + "?api-version=2024-10-21&key=query-secret"))
    assert "query-secret" in server.requests[0].path
    assert "query-secret" not in failure.message
    assert "2024-10-21" in failure.message


# --- what is sent -----------------------------------------------------------------------------------------


def test_headers_and_fields_of_the_user_have_the_last_word() -> None:
    """`extra_headers` replace ours whatever their case, `extra_body` replaces fields; no cookies are kept."""
    script = sequence(Response(headers={"Set-Cookie": "a=b"}))
    with ScriptedServer(script) as server:
        endpoint = settings(
            server,
            extra_headers={"AUTHORIZATION": "Token t", "User-Agent": "mine"},
            extra_body={"top_k": 1, "temperature": 0.5},
        )

        async def twice(chat: ChatEndpoint) -> list[Reply | Failure]:
            return [await chat.ask(QUESTION), await chat.ask(QUESTION)]

        reply = use(endpoint, twice)[0]
    assert isinstance(reply, Reply)
    for seen in server.requests:
        assert seen.headers["authorization"] == "Token t"
        assert seen.headers["user-agent"] == "mine"
        assert "cookie" not in seen.headers
        assert (seen.payload["top_k"], seen.payload["temperature"]) == (1, 0.5)
    assert reply.parameters == {"temperature": 0.5, "max_tokens": 2048, "top_k": 1}


def test_without_key_no_authorization_is_sent() -> None:
    """Without a key there is no header for it."""
    with ScriptedServer() as server:
        replied(settings(server, api_key=None))
    assert "authorization" not in server.requests[0].headers


# --- adaptation -------------------------------------------------------------------------------------------


def refusing(name: str, message: str, status: int = 400) -> Script:
    """Refuse every request that has this parameter."""

    def script(seen: Seen, _attempt: int) -> Response:
        if name in seen.payload:
            return Response(status=status, error=error(message, "unsupported_parameter", param=name))
        return Response(text="fine")

    return script


def streaming_only(status: int, message: str) -> Script:
    """Refuse every request that does not stream."""

    def script(seen: Seen, _attempt: int) -> Response:
        if not seen.payload.get("stream"):
            return Response(status=status, error=error(message))
        return Response(text="fine")

    return script


USE_OTHER = (
    "Unsupported parameter: 'max_tokens' is not supported with this model. "
    "Use 'max_completion_tokens' instead."
)
ONLY_ONE = (
    "Unsupported value: 'temperature' does not support 0 with this model. "
    "Only the default (1) value is supported."
)
ADAPTATIONS: list[tuple[Script, dict[str, Any]]] = [
    (refusing("max_tokens", USE_OTHER), {"temperature": 0, "max_completion_tokens": 2048}),
    (
        refusing("max_tokens", "Extra inputs are not permitted", 422),
        {"temperature": 0, "max_completion_tokens": 2048},
    ),
    (refusing("temperature", ONLY_ONE), {"max_tokens": 2048}),
    (
        streaming_only(400, "This model only support stream mode, please enable the stream parameter."),
        {"temperature": 0, "max_tokens": 2048, "stream": True, "stream_options": {"include_usage": True}},
    ),
    (
        streaming_only(422, "only streaming is supported"),
        {"temperature": 0, "max_tokens": 2048, "stream": True, "stream_options": {"include_usage": True}},
    ),
]


@pytest.mark.parametrize(("script", "sent"), ADAPTATIONS)
def test_adapts_once_for_all(script: Script, sent: dict[str, Any]) -> None:
    """Requests in flight together and later ones all succeed, with one notice, and say what was sent."""
    notices: list[str] = []

    async def many(chat: ChatEndpoint) -> list[Reply | Failure]:
        together = await asyncio.gather(*[chat.ask(QUESTION) for _ in range(8)])
        return [*together, await chat.ask(QUESTION)]

    with ScriptedServer(script) as server:
        replies = use(settings(server, tries=1), many, notices)
    assert len(notices) == 1
    for reply in replies:
        assert isinstance(reply, Reply)
        assert reply.parameters == sent
    assert replies[-1].attempts == 1
    assert len(server.requests) <= 17


def test_adapts_back_to_the_old_name() -> None:
    """A server that knows only `max_tokens` gets the value of `max_completion_tokens` under it."""
    script = refusing("max_completion_tokens", "unknown field max_completion_tokens")
    with ScriptedServer(script) as server:
        reply = replied(settings(server, generation_config={"max_completion_tokens": 99}))
    assert reply.parameters == {"temperature": 0, "max_tokens": 99}


def test_adapts_to_several_refusals() -> None:
    """One refusal after the other is learnt, without using up tries."""
    first = refusing("max_tokens", USE_OTHER)
    second = refusing("temperature", ONLY_ONE)
    third = refusing("stream_options", "stream_options: extra fields not permitted")

    def script(seen: Seen, attempt: int) -> Response:
        responses = [part(seen, attempt) for part in (first, second, third)]
        return next((response for response in responses if response.status != 200), responses[0])

    notices: list[str] = []
    with ScriptedServer(script) as server:
        reply = asked(settings(server, tries=1, stream=True), notices=notices)
    assert isinstance(reply, Reply)
    assert reply.parameters == {"max_completion_tokens": 2048, "stream": True}
    assert (reply.attempts, len(notices)) == (4, 3)


@pytest.mark.parametrize("name", ["max_tokens", "temperature"])
def test_does_not_adapt_for_ever(name: str) -> None:
    """A parameter that `extra_body` insists on, or that is refused under each name, ends in a Failure."""
    message = f"{name} and max_completion_tokens are not supported"

    def script(_seen: Seen, _attempt: int) -> Response:
        return Response(status=400, error=error(message))

    with ScriptedServer(script) as server:
        assert failed(settings(server, extra_body={name: 1})).kind is FailureKind.REJECTED
        assert failed(settings(server)).kind is FailureKind.REJECTED
    assert len(server.requests) <= 8


@pytest.mark.parametrize(
    "message",
    [
        "max_tokens is too large: 2048. This model supports at most 1024 completion tokens",
        "temperature must be at most 2",
        "the audio is not supported",
        "stream of audio could not be decoded",
        "Internal tokens",
    ],
)
def test_other_refusals_change_nothing(message: str) -> None:
    """A refusal of a value, or of something else, teaches nothing about the form."""
    sent = {"temperature": 0, "max_tokens": 2048}
    assert WireForm(stream=False).after(ServerError(message), sent) is None
