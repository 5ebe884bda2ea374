"""Time: deadlines that hold whatever the server does, back-off, and pauses that the server asks for."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from email.utils import formatdate
from pathlib import Path

import pytest

from otoscope.chat_api import ChatEndpoint
from otoscope.chat_api.asking import Asking
from otoscope.errors import EndpointError
from otoscope.records import Failure, FailureKind, Reply
from tests.chat_helpers import (
    QUESTION,
    about,
    asked,
    failed,
    make_clip,
    raw_server,
    read_head,
    read_request,
    replied,
    settings,
    use,
)
from tests.scripted_server import Response, ScriptedServer, Seen, sequence


@contextlib.contextmanager
def lasting(least: float, most: float) -> Iterator[None]:
    """Insist that the block takes so many seconds."""
    began = time.monotonic()
    yield
    assert least <= time.monotonic() - began <= most


# --- deadlines --------------------------------------------------------------------------------------------


def test_hanging_server_ends_with_the_tries() -> None:
    """A server that never answers costs each try its time, and is a `timeout`."""
    with ScriptedServer(sequence(Response(hang=True))) as server, lasting(0.6, 1.5):
        failure = failed(settings(server, attempt_timeout=0.3, tries=2))
    assert (failure.kind, failure.attempts) == (FailureKind.TIMEOUT, 2)
    assert "0.3 s" in failure.message


def test_reply_that_stalls_is_a_timeout() -> None:
    """A reply that stalls half-way is bounded as well."""
    with ScriptedServer(sequence(Response(hang=True, cut=20))) as server, lasting(0.3, 1.0):
        failure = failed(settings(server, attempt_timeout=0.3, tries=1))
    assert failure.kind is FailureKind.TIMEOUT


def test_total_deadline_cuts_an_attempt_short() -> None:
    """The total deadline holds within an attempt, and leaves no time for a next one."""
    with ScriptedServer(sequence(Response(hang=True))) as server, lasting(0.7, 1.2):
        failure = failed(settings(server, attempt_timeout=0.6, total_timeout=0.7))
    assert failure.kind is FailureKind.TIMEOUT
    assert len(server.requests) == 2


def test_dripping_reply_is_bounded() -> None:
    """A server that sends a byte now and then cannot hold a request open."""
    stopped = threading.Event()

    def drip(connection: socket.socket, _number: int) -> None:
        read_request(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        while not stopped.wait(0.05):
            connection.sendall(b" ")

    with raw_server(drip) as url, lasting(0.4, 1.2):
        failure = failed(settings(url, attempt_timeout=0.4, tries=1))
        stopped.set()
    assert failure.kind is FailureKind.TIMEOUT


def test_server_that_stops_reading_is_bounded(tmp_path: Path) -> None:
    """A server that accepts an upload and then reads no more cannot hold a request open."""
    clip = make_clip(tmp_path, 24 << 20)
    stopped = threading.Event()

    def stall(connection: socket.socket, _number: int) -> None:
        read_head(connection)
        stopped.wait()

    with raw_server(stall) as url, lasting(0.8, 2.5):
        failure = failed(settings(url, attempt_timeout=0.4, tries=2), about(clip))
        stopped.set()
    assert failure.kind is FailureKind.TIMEOUT


def test_slow_reply_in_time_is_fine() -> None:
    """A reply within the attempt's time counts."""
    with ScriptedServer(sequence(Response(text="late", delay=0.4))) as server:
        reply = replied(settings(server, attempt_timeout=5.0))
    assert reply.text == "late"
    assert reply.latency >= 0.4


def test_back_off_ends_at_the_deadline() -> None:
    """No request waits for a back-off that its deadline does not allow."""
    with ScriptedServer(sequence(Response(status=500))) as server, lasting(0.0, 2.0):
        failure = failed(settings(server, total_timeout=0.3, tries=1000))
    assert failure.kind is FailureKind.SERVER_ERROR
    assert 1 < failure.attempts < 1000


# --- pauses -----------------------------------------------------------------------------------------------


def test_retry_after_uses_up_no_try() -> None:
    """A 429 that says how long to wait may come again and again."""
    busy = Response(status=429, headers={"Retry-After": "0.05"})
    with ScriptedServer(sequence(*[busy] * 8, Response(text="fine"))) as server, lasting(0.4, 2.0):
        reply = replied(settings(server, tries=1))
    assert reply.attempts == 9


@pytest.mark.parametrize("status", [408, 409, 500, 503])
def test_retry_after_counts_with_other_statuses(status: int) -> None:
    """Other passing trouble is waited for as long as the server asks."""
    busy = Response(status=status, headers={"Retry-After": "0.3"})
    with ScriptedServer(sequence(busy, Response(text="fine"))) as server, lasting(0.3, 1.5):
        assert replied(settings(server, tries=1)).attempts == 2


def test_retry_after_date_counts_from_the_servers_clock() -> None:
    """A date is a lower bound too, by the clock of a server that lives in another year."""
    headers = {
        "Retry-After": formatdate(1_000_000_001, usegmt=True),
        "Date": formatdate(1_000_000_000, usegmt=True),
    }
    busy = Response(status=429, headers=headers)
    with ScriptedServer(sequence(busy, Response(text="fine"))) as server, lasting(1.0, 2.5):
        replied(settings(server, tries=1))


@pytest.mark.parametrize("value", ["0", "-1", "soon", "", "nan"])
def test_senseless_retry_after_is_an_ordinary_back_off(value: str) -> None:
    """A Retry-After without sense uses up tries like any other 429: nobody retries for ever."""
    busy = Response(status=429, headers={"Retry-After": value})
    with ScriptedServer(sequence(busy)) as server:
        assert failed(settings(server, tries=3)).attempts == 3


def test_pause_holds_for_all_requests() -> None:
    """While one request was told to wait, no other one is sent, and people are told once."""
    notices: list[str] = []

    def script(seen: Seen, attempt: int) -> Response:
        if seen.text == "busy" and attempt == 0:
            return Response(status=429, headers={"Retry-After": "1.2"})
        return Response(text="fine")

    async def main(chat: ChatEndpoint) -> list[Reply | Failure]:
        asking = [asyncio.create_task(chat.ask([{"role": "user", "content": "busy"}]))]
        await asyncio.sleep(0.2)
        asking += [asyncio.create_task(chat.ask(QUESTION)) for _ in range(5)]
        return await asyncio.gather(*asking)

    with ScriptedServer(script) as server:
        replies = use(settings(server, tries=1), main, notices)
    assert all(isinstance(reply, Reply) for reply in replies)
    first, *others = [seen.at for seen in server.requests]
    assert len(others) == 6
    assert min(others) - first >= 1.2
    assert len(notices) == 1
    assert "asks to wait 1 s" in notices[0]


def test_pause_is_bounded_by_the_deadline() -> None:
    """A pause that outlasts the deadline is not waited for, and pauses without end stop at it."""
    busy = Response(status=429, headers={"Retry-After": "0.2"})
    with ScriptedServer(sequence(busy)) as server, lasting(0.3, 1.5):
        failure = failed(settings(server, total_timeout=0.5))
    assert failure.kind is FailureKind.RATE_LIMITED
    assert failure.message.startswith("429")


def test_request_that_meets_a_longer_pause_ends_at_its_deadline() -> None:
    """A request that never got its turn says why."""

    async def main(chat: ChatEndpoint) -> Reply | Failure:
        asking = asyncio.create_task(chat.ask(QUESTION))
        await asyncio.sleep(0.1)
        server.script = sequence(Response(status=429, headers={"Retry-After": "0.95"}))
        late = asyncio.create_task(chat.ask([{"role": "user", "content": "late"}]))
        await asking
        return await late

    with (
        ScriptedServer(sequence(Response(status=429, headers={"Retry-After": "0.9"}))) as server,
        lasting(0, 2),
    ):
        failure = use(settings(server, total_timeout=1.0), main)
    assert isinstance(failure, Failure)
    assert failure.kind is FailureKind.RATE_LIMITED


def test_wait_of_hours_stops_the_run() -> None:
    """A server that asks to wait for longer than any request may take stops the run in a resumable state."""
    busy = Response(status=429, headers={"Retry-After": "7200"})
    with (
        ScriptedServer(sequence(busy)) as server,
        pytest.raises(EndpointError, match="wait 7200 s") as caught,
    ):
        asked(settings(server))
    assert "resume" in str(caught.value)
    assert len(server.requests) == 1


def test_back_off_is_spread_and_grows() -> None:
    """The waits between tries are random, bounded by an interval that doubles up to a minute."""
    endpoint = settings("http://127.0.0.1:9/v1")
    for failed_tries in (1, 4, 50, 5000):
        ceiling = min(60.0, 0.01 * 2 ** min(failed_tries - 1, 30))
        call = Asking(deadline=0.0, failed_tries=failed_tries)
        waits = [call.backoff(endpoint) for _ in range(200)]
        assert all(0 <= wait <= ceiling for wait in waits)
        assert min(waits) < ceiling / 2 < max(waits)


# --- a run that stops -------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def asking(server: ScriptedServer, *, retry_interval: float = 0.01) -> AsyncIterator[ChatEndpoint]:
    """Open an endpoint, and insist that neither a task nor a connection is left at its end."""
    patient = settings(server, total_timeout=1000.0, tries=1000)
    tasks = asyncio.all_tasks()
    async with ChatEndpoint(dataclasses.replace(patient, retry_interval=retry_interval), print) as chat:
        yield chat
        assert asyncio.all_tasks() == tasks
    await asyncio.sleep(0.1)
    assert server.open_connections == 0


def test_calls_in_flight_end_and_no_other_begins() -> None:
    """After `stop_asking`, calls in flight bring their replies; a new one is cancelled and never sent."""

    async def main() -> None:
        async with asking(server) as chat:
            in_flight = [asyncio.create_task(chat.ask(QUESTION)) for _ in range(4)]
            await asyncio.sleep(0.2)
            chat.stop_asking()
            chat.stop_asking()
            with pytest.raises(asyncio.CancelledError):
                await chat.ask(QUESTION)
            assert all(isinstance(result, Reply) for result in await asyncio.gather(*in_flight))

    with ScriptedServer(sequence(Response(delay=0.5))) as server:
        asyncio.run(main())
    assert len(server.requests) == 4


@pytest.mark.parametrize(
    "response",
    [
        Response(status=500, delay=0.4),
        Response(status=429, headers={"Retry-After": "0.2"}, delay=0.4),
        Response(status=400, error={"message": "unsupported parameter: max_tokens"}, delay=0.4),
        Response(body=b"", delay=0.4),
    ],
)
def test_no_retry_begins_once_stopped(response: Response) -> None:
    """A call in flight that would be made again, by whatever rule, is cancelled instead."""

    async def main() -> None:
        async with asking(server) as chat:
            in_flight = asyncio.create_task(chat.ask(QUESTION))
            await asyncio.sleep(0.2)
            chat.stop_asking()
            assert not in_flight.done()
            with pytest.raises(asyncio.CancelledError):
                await in_flight

    with ScriptedServer(sequence(response, Response())) as server, lasting(0.4, 1.5):
        asyncio.run(main())
    assert len(server.requests) == 1


def test_refusal_in_flight_is_a_failure_once_stopped() -> None:
    """A call in flight that ends in a lasting refusal is reported as ever."""

    async def main() -> None:
        async with asking(server) as chat:
            in_flight = asyncio.create_task(chat.ask(QUESTION))
            await asyncio.sleep(0.1)
            chat.stop_asking()
            result = await in_flight
            assert isinstance(result, Failure)
            assert result.kind is FailureKind.TOO_LARGE

    with ScriptedServer(sequence(Response(status=413, delay=0.3))) as server:
        asyncio.run(main())


@pytest.mark.parametrize("headers", [{}, {"Retry-After": "60"}])
def test_who_waits_is_woken_at_once(headers: dict[str, str]) -> None:
    """A call that waits in a back-off or in the endpoint's pause is cancelled at once."""

    async def main() -> None:
        async with asking(server, retry_interval=1000.0) as chat:
            waiting = [asyncio.create_task(chat.ask(QUESTION))]
            await asyncio.sleep(0.3)
            if headers:
                waiting += [asyncio.create_task(chat.ask(QUESTION)) for _ in range(3)]
                await asyncio.sleep(0.1)
            sent = len(server.requests)
            chat.stop_asking()
            with lasting(0.0, 0.3):
                results = await asyncio.gather(*waiting, return_exceptions=True)
            assert all(isinstance(result, asyncio.CancelledError) for result in results)
            assert len(server.requests) == sent

    with ScriptedServer(sequence(Response(status=503, headers=headers))) as server:
        asyncio.run(main())


def test_cancelled_back_off_leaves_nothing() -> None:
    """A call that is cancelled while it waits leaves no task."""

    async def main() -> None:
        async with asking(server, retry_interval=100.0) as chat:
            waiting = asyncio.create_task(chat.ask(QUESTION))
            await asyncio.sleep(0.2)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting

    with ScriptedServer(sequence(Response(status=503))) as server:
        asyncio.run(main())
