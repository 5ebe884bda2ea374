"""Whether a server lives: waited for at the start, and when it dies in the run."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from otoscope.chat_api import ChatEndpoint, Gate
from otoscope.chat_api.health import Probe
from otoscope.chat_api.server import PROBE_TEXT, PROBE_TOKENS
from otoscope.chat_api.troubles import Next, Trouble
from otoscope.config import EndpointSettings
from otoscope.errors import EndpointError
from otoscope.records import Failure, FailureKind, Reply
from tests.chat_helpers import KEY, about, make_clip, settings, use
from tests.scripted_server import Response, Script, ScriptedServer, Seen, Supervisor, require_key, sequence

POISON = "poison"
DOWN = 0.2
"""Seconds for which a server that died is away."""


def waiting(server: ScriptedServer, seconds: float = 20.0, **more: Any) -> EndpointSettings:
    """Return settings that wait for the server."""
    return settings(server, wait_ready=seconds, **more)


def is_probe(seen: Seen) -> bool:
    """Whether a request only asks whether a completion works."""
    return seen.text == PROBE_TEXT


def posts(server: ScriptedServer) -> list[Seen]:
    """Return the chat requests."""
    return [seen for seen in server.requests if seen.method == "POST"]


@contextmanager
def started_later(server: ScriptedServer, seconds: float) -> Iterator[None]:
    """Start a server that has had its port before, after so many seconds."""
    starter = threading.Timer(seconds, server.start)
    starter.start()
    try:
        yield
    finally:
        starter.join()
        server.stop()


def away(script: Script | None = None) -> ScriptedServer:
    """Return a server that has a port, and does not listen."""
    server = ScriptedServer(script or sequence(Response(text="fine")))
    server.start()
    server.stop()
    return server


async def until_ready(chat: ChatEndpoint) -> None:
    """Wait for the server."""
    await chat.until_ready()


# --- at the start -----------------------------------------------------------------------------------------


def test_nothing_is_asked_unless_to_be_waited_for() -> None:
    """Without --wait-ready there is no request beside those of the run."""
    with ScriptedServer() as server:
        use(settings(server), until_ready)
        assert server.requests == []


def test_a_server_that_starts_late_is_waited_for() -> None:
    """What is refused at first works later; it is said once that it is waited, and once that it is ready."""
    notices: list[str] = []
    server = away()
    with started_later(server, 0.5):
        use(waiting(server), until_ready, notices)
        assert [is_probe(seen) for seen in server.requests] == [True]
    first, last = notices
    assert "is not ready (no connection" in first
    assert "is ready after" in last


LOADING = [
    Response(status=503, error={"message": "Loading model", "type": "unavailable_error", "code": 503}),
    Response(status=404, error={"message": "The model does not exist"}),
    Response(status=405),
    Response(status=424),
    Response(status=429),
    Response(status=429, headers={"Retry-After": "0"}),
    Response(status=502),
    Response(status=500),
    Response(body=b"<html>The service is starting</html>"),
    Response(drop=True),
    Response(body=b'{"error": {"message": "Loading model", "code": 503}}'),
]


@pytest.mark.parametrize("response", LOADING)
def test_what_a_loading_server_answers_is_waited_for(response: Response) -> None:
    """Refused connections, 404 while no model is listed, 5xx and pages for people all pass with time."""
    script = sequence(response, response, Response(text=""))
    with ScriptedServer(script, models=()) as server:
        use(waiting(server), until_ready)
        assert len(posts(server)) == 3
        assert all(map(is_probe, posts(server)))


FOR_GOOD = [
    (401, ["scripted-model"]),
    (402, ["scripted-model"]),
    (403, ["scripted-model"]),
    (307, ["scripted-model"]),
    (404, ["another-model"]),
]


@pytest.mark.parametrize(("status", "models"), FOR_GOOD)
def test_what_waiting_cannot_mend_stops_at_once(status: int, models: list[str]) -> None:
    """A wrong key, an empty account, a redirect, and a model where others are listed are told at once."""
    with ScriptedServer(sequence(Response(status=status)), models=models) as server:
        with pytest.raises(EndpointError, match=str(status)):
            use(waiting(server), until_ready)
        assert len(posts(server)) == 1


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_server_that_refuses_a_text_alone_is_there(status: int) -> None:
    """Some models take no request without a clip: the first sample will show what they do take."""
    message = "This model requires that either input content or output modality contain audio."
    notices: list[str] = []
    with ScriptedServer(sequence(Response(status=status, error={"message": message}))) as server:
        use(waiting(server), until_ready, notices)
    assert message in notices[0]


def test_the_probe_is_a_request_like_any_other() -> None:
    """It has key and name, teaches the wire form, and is small."""

    def script(seen: Seen, _attempt: int) -> Response:
        if "max_tokens" in seen.payload:
            return Response(status=400, error={"message": "Unsupported parameter: 'max_tokens'"})
        return Response(text="ready")

    async def work(chat: ChatEndpoint) -> Reply | Failure:
        await chat.until_ready()
        await chat.until_ready()
        return await chat.ask([{"role": "user", "content": "What is heard?"}])

    with ScriptedServer(require_key(script, KEY)) as server:
        reply = use(waiting(server), work)
        assert [seen.model for seen in server.requests] == ["scripted-model"] * 3
        assert server.requests[1].payload["max_completion_tokens"] == PROBE_TOKENS
    assert isinstance(reply, Reply)
    assert reply.parameters == {"temperature": 0, "max_completion_tokens": 2048}


@pytest.mark.parametrize("role", ["model", "judge"])
def test_a_server_that_does_not_come_is_told_by_its_role(role: str) -> None:
    """After the time that was given the run stops, with what the last try was told and what to do."""
    server = away()
    with pytest.raises(EndpointError, match=r"within the 0\.3 s of --wait-ready") as caught:
        use(waiting(server, 0.3, role=role), until_ready)
    assert caught.value.exit_code == {"model": 4, "judge": 5}[role]
    assert "resume" in str(caught.value)


def test_a_server_is_waited_for_to_the_end_of_the_time() -> None:
    """The pauses grow, but none of the time that was given is left out."""
    asked: list[float] = []

    async def ask(_until: float) -> Trouble:
        asked.append(asyncio.get_running_loop().time())
        return Trouble(FailureKind.CONNECTION, "no connection", Next.BACK_OFF, unreachable=True)

    async def work() -> None:
        probe = Probe("model", "the model", ask, lambda _: None, asyncio.sleep, interval=0.1)
        began = asyncio.get_running_loop().time()
        with pytest.raises(EndpointError, match=r"within the 0\.4 s"):
            await probe.until_it_works(0.4)
        # After 0.1 and 0.3 s, the next pause would be one of 0.4 s.
        assert asked[-1] - began >= 0.4

    asyncio.run(work())


def test_a_run_that_stops_waits_no_more() -> None:
    """Neither for the next probe nor for one that hangs."""

    async def work(chat: ChatEndpoint) -> None:
        ready = asyncio.ensure_future(chat.until_ready())
        await asyncio.sleep(0.2)
        chat.stop_asking()
        with pytest.raises(asyncio.CancelledError):
            await ready

    with ScriptedServer(sequence(Response(hang=True))) as server:
        use(waiting(server, 600.0), work)
    use(replace(waiting(away(), 600.0), retry_interval=100.0), work)


# --- death in the run -------------------------------------------------------------------------------------


def question(number: int | str) -> list[dict[str, Any]]:
    """Return a question of its own."""
    return [{"role": "user", "content": f"What is heard in {number}?"}]


def dying(*deaths: Callable[[Seen, int], bool]) -> Script:
    """Answer after a moment; die of the first request that each of these fits, and of none twice."""
    left = list(deaths)

    def script(seen: Seen, attempt: int) -> Response:
        if left and not is_probe(seen) and left[0](seen, attempt):
            left.pop(0)
            return Response(die=True, delay=0.05)
        return Response(text="fine", delay=0.1)

    return script


def poisoned(seen: Seen, _attempt: int) -> bool:
    """Whether this request is the one that kills."""
    return POISON in seen.text


def of_all(numbers: range | list[Any], slots: int) -> Callable[[ChatEndpoint], Awaitable[list[Any]]]:
    """Return how to ask so many questions, so many at a time."""

    async def work(chat: ChatEndpoint) -> list[Any]:
        free = asyncio.Semaphore(slots)

        async def one(number: Any) -> Reply | Failure:
            async with free:
                return await chat.ask(question(number))

        await chat.until_ready()
        return await asyncio.gather(*map(one, numbers))

    return work


def seventh(seen: Seen, _attempt: int) -> bool:
    """Whether this is the request with number 7."""
    return "in 7?" in seen.text


def test_a_server_that_comes_back_costs_no_sample() -> None:
    """All wait for one probe; what was in flight goes first, one at a time; then all slots work again."""
    notices: list[str] = []
    with ScriptedServer(dying(seventh)) as server, Supervisor(server, DOWN) as supervisor:
        results = use(waiting(server), of_all(range(24), 8), notices)
        seen = posts(server)
    assert supervisor.deaths == 1
    assert all(isinstance(result, Reply) for result in results)
    gone, back_again = notices
    assert "is gone" in gone
    assert "is back" in back_again
    assert "8 calls that were in flight go first" in back_again
    assert (
        max(Counter(one.text for one in seen if one.served_at is not None and not is_probe(one)).values())
        == 1
    )
    # The first request is the probe at the start, the second one that of the server that is back.
    back = [number for number, one in enumerate(seen) if is_probe(one)][-1]
    alone, later = seen[back + 1 : back + 9], seen[back + 9 :]
    assert {one.text for one in alone} == {one.text for one in seen[1:9]}
    for one, following in pairwise(alone):
        assert one.served_at is not None
        assert following.at >= one.served_at
    assert any(other.at < one.served_at for one, other in pairwise(later) if one.served_at)


def test_what_kills_the_server_twice_is_a_failure_by_name() -> None:
    """The second time it was alone: it has failed, for good, and every other one is answered once."""
    numbers = [*range(7), POISON, *range(8, 20)]
    with ScriptedServer(dying(poisoned, poisoned)) as server, Supervisor(server, DOWN) as supervisor:
        results = dict(zip(numbers, use(waiting(server), of_all(numbers, 8)), strict=True))
        served = Counter(one.text for one in posts(server) if one.served_at is not None and not is_probe(one))
    crash = results.pop(POISON)
    assert isinstance(crash, Failure)
    assert crash.kind is FailureKind.SERVER_CRASH
    assert not crash.kind.passing
    assert all(isinstance(result, Reply) for result in results.values())
    assert supervisor.deaths == 2
    assert set(served.values()) == {1}


def test_a_request_that_was_not_sent_is_not_acquitted(tmp_path: Path) -> None:
    """After a broken upload the server is asked with Expect; to ignore that is not to live through it."""
    clip = about(make_clip(tmp_path, 200_000))

    async def work(chat: ChatEndpoint) -> Reply | Failure:
        await chat.until_ready()
        return await chat.ask(clip)

    def script(seen: Seen, _attempt: int) -> Response:
        return Response() if is_probe(seen) else Response(die=True)

    server = ScriptedServer(script, ignore_expect=True)
    with server, Supervisor(server, DOWN) as supervisor:
        failure = use(waiting(server), work)
    assert isinstance(failure, Failure)
    assert (failure.kind, supervisor.deaths) == (FailureKind.SERVER_CRASH, 2)


def test_one_server_behind_two_endpoints_dies_as_one() -> None:
    """What the one endpoint sends alone is not taken for what kills the server that both ask."""

    async def both(server: ScriptedServer) -> list[Any]:
        gate = Gate(20.0)
        model, judge = (waiting(server, role=role) for role in ("model", "judge"))
        async with (
            ChatEndpoint(model, lambda _: None, gate=gate) as one,
            ChatEndpoint(judge, lambda _: None, gate=gate) as other,
        ):
            numbers = [*range(5), POISON, *range(6, 12)]
            results = await asyncio.gather(of_all(numbers, 4)(one), of_all(list(range(20, 32)), 4)(other))
        return [result for part in results for result in part]

    with ScriptedServer(dying(poisoned, poisoned)) as server, Supervisor(server, DOWN):
        results = asyncio.run(both(server))
    failed = [result for result in results if isinstance(result, Failure)]
    assert [failure.kind for failure in failed] == [FailureKind.SERVER_CRASH]


def test_connections_that_break_are_no_death() -> None:
    """A server that answers the probe lives: what was cut is tried again as ever, and is not condemned."""
    notices: list[str] = []
    cuts = 0

    def script(seen: Seen, _attempt: int) -> Response:
        nonlocal cuts
        if POISON in seen.text and cuts < 4:
            cuts += 1
            return Response(drop=True)
        return Response(text="fine")

    with ScriptedServer(script) as server:
        (result,) = use(waiting(server), of_all([POISON], 1), notices)
    assert isinstance(result, Reply)
    assert (cuts, notices) == (4, [])


def test_a_connection_that_nobody_cut_holds_up_nothing() -> None:
    """A host that lost its power resets no connection: what waits on one does not keep others from going."""
    broke = Trouble(FailureKind.CONNECTION, "the connection broke", Next.BACK_OFF)
    answers = iter([broke, None])

    async def ask(_until: float) -> Trouble | None:
        return next(answers)

    async def main() -> None:
        gate, stopping = Gate(20.0), asyncio.get_running_loop().create_future()
        probe = Probe("model", "the model", ask, lambda _: None, asyncio.sleep, 0.0)
        hanging, broken, other = gate.call(), gate.call(), gate.call()
        gate.begin(hanging)
        gate.begin(broken)
        gate.end(broken, broke)
        assert await gate.lost(broken, probe, stopping)
        assert (gate.is_open(broken), gate.is_open(other)) == (True, False)
        gate.begin(broken)
        assert not gate.is_open(other)
        gate.end(broken, None)
        assert gate.is_open(other)

    asyncio.run(main())


def test_a_reply_to_another_call_clears_the_doubt() -> None:
    """Who answers somebody lives: the probe that hangs meanwhile is given up, and holds up nobody."""
    notices: list[str] = []
    probes = drops = 0

    def script(seen: Seen, _attempt: int) -> Response:
        nonlocal probes, drops
        if is_probe(seen):
            probes += 1
            return Response(hang=probes > 1)
        if POISON in seen.text and not drops:
            drops += 1
            return Response(drop=True, delay=0.1)
        return Response(text="fine", delay=0.0 if POISON in seen.text else 0.6)

    with ScriptedServer(script) as server:
        results = use(waiting(server, 600.0), of_all([1, POISON], 2), notices)
    assert all(isinstance(result, Reply) for result in results)
    assert (probes, drops, notices) == (2, 1, [])


@pytest.mark.parametrize("status", [500, 502, 503])
def test_a_server_that_is_gone_behind_a_gateway_is_waited_for(status: int) -> None:
    """Out of tries with nothing but server errors, a call asks whether a completion works; then all wait."""
    notices: list[str] = []
    gone = threading.Event()
    down = iter([*[True] * 7, *[False] * 100])

    def script(_seen: Seen, _attempt: int) -> Response:
        return Response(status=status) if gone.is_set() and next(down) else Response(text="fine")

    async def work(chat: ChatEndpoint) -> list[Any]:
        served = await of_all(range(4), 2)(chat)
        # No reply is on its way then: one that came between two server errors would tell of life.
        gone.set()
        return [*served, *await of_all(range(4, 12), 2)(chat)]

    with ScriptedServer(script) as server:
        results = use(waiting(server, tries=2), work, notices)
    assert all(isinstance(result, Reply) for result in results)
    went, back = notices
    assert f"is gone ({status}" in went
    assert "is back" in back


def test_server_errors_of_one_sample_are_its_own() -> None:
    """Where a completion works, nothing waits, and the sample has failed after its tries as ever."""
    notices: list[str] = []

    def script(seen: Seen, _attempt: int) -> Response:
        return Response(status=500) if POISON in seen.text else Response(text="fine")

    with ScriptedServer(script) as server:
        (failure,) = use(waiting(server, tries=3), of_all([POISON], 1), notices)
        assert sum(map(is_probe, server.requests)) == 2
    assert isinstance(failure, Failure)
    assert (failure.kind, failure.attempts, notices) == (FailureKind.SERVER_ERROR, 3, [])


def test_a_server_that_stays_away_stops_the_run() -> None:
    """After the time that was given, everything that waits is told; nothing is a sample's failure."""

    async def work(chat: ChatEndpoint) -> list[Any]:
        await chat.until_ready()
        return await asyncio.gather(*(chat.ask(question(n)) for n in range(6)), return_exceptions=True)

    with ScriptedServer(dying(lambda *_: True)) as server:
        results = use(waiting(server, 0.5), work)
    assert {type(result) for result in results} == {EndpointError}


def test_deadlines_move_while_the_server_is_away() -> None:
    """No sample fails because its time went by while nobody could be asked."""
    with ScriptedServer(dying(seventh)) as server, Supervisor(server, 0.8):
        results = use(waiting(server, total_timeout=0.6, tries=1), of_all(range(8), 8))
    assert all(isinstance(result, Reply) for result in results)


def test_a_run_that_stops_leaves_no_probe_behind() -> None:
    """Stopped while the server is away, calls end at once."""

    async def work(chat: ChatEndpoint) -> None:
        await chat.until_ready()
        calls = [asyncio.ensure_future(chat.ask(question(number))) for number in range(4)]
        await asyncio.to_thread(server.died.wait)
        await asyncio.sleep(0.3)
        chat.stop_asking()
        # Only a wait that nothing ends early is as long as that.
        done, _ = await asyncio.wait(calls, timeout=50)
        assert [call.cancelled() for call in done] == [True] * 4

    with ScriptedServer(dying(lambda *_: True)) as server:
        use(replace(waiting(server, 600.0), retry_interval=100.0), work)
