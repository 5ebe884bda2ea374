"""Several servers of one model: who is asked, and what becomes of one that is away."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from otoscope.chat_api import AudioPart, Budget, Replicas
from otoscope.chat_api.server import PROBE_TEXT
from otoscope.config import EndpointSettings, JudgeLimits
from otoscope.errors import EndpointError, LimitReachedError
from otoscope.records import Failure, FailureKind, Reply
from tests.chat_helpers import KEY, make_clip, settings
from tests.scripted_server import Response, Script, ScriptedServer, Seen, require_key, scripted_answers

T = TypeVar("T")
Servers = list[ScriptedServer]


@contextmanager
def started(*scripts: Script | None) -> Iterator[Servers]:
    """Run so many servers; they are in the order in which ties are decided, which is that of their ports."""
    with ExitStack() as stack:
        servers = [stack.enter_context(ScriptedServer()) for _ in scripts]
        servers.sort(key=lambda server: server.url)
        for server, script in zip(servers, scripts, strict=True):
            server.script = script or server.script
        yield servers


def addressed(servers: Servers, **more: Any) -> EndpointSettings:
    """Return settings for all of these servers; ``wait_ready`` may be given."""
    seconds = more.pop("wait_ready", 0.0)
    return replace(settings(",".join(server.url for server in servers), **more), wait_ready=seconds)


def use(
    endpoint: EndpointSettings,
    work: Callable[[Replicas], Awaitable[T]],
    notices: list[str] | None = None,
    budget: Budget | None = None,
) -> T:
    """Do some work in an event loop of its own, which must be left without any task."""

    async def main() -> T:
        notify = (notices if notices is not None else []).append
        async with Replicas(endpoint, notify, budget=budget) as chat:
            result = await work(chat)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return result

    return asyncio.run(main())


def question(number: int) -> list[dict[str, Any]]:
    """Return a request that differs from all others."""
    return [{"role": "user", "content": f"What is heard in clip {number}?"}]


async def all_asked(chat: Replicas, count: int, slots: int = 6) -> list[Reply | Failure]:
    """Ask so many questions, so many at a time."""
    free = asyncio.Semaphore(slots)

    async def one(number: int) -> Reply | Failure:
        async with free:
            return await chat.ask(question(number))

    return await asyncio.gather(*map(one, range(count)))


def asked(server: ScriptedServer) -> list[Seen]:
    """Return what a server was asked, but for probes."""
    return [seen for seen in server.requests if seen.text != PROBE_TEXT]


def paid(servers: Sequence[ScriptedServer]) -> Counter[str]:
    """Return how often each request was answered with a completion, by any of them."""
    return Counter(seen.digest for one in servers for seen in asked(one) if seen.served_at is not None)


def dying(at: int) -> Script:
    """Answer; die of the request of that number, counted from 1."""
    healthy, count = scripted_answers(), 0

    def script(seen: Seen, attempt: int) -> Response:
        nonlocal count
        count += 1
        return Response(die=True) if count == at else healthy(seen, attempt)

    return script


def dies_of(mark: str) -> Script:
    """Answer; die of every request with this text."""
    healthy = scripted_answers()
    return lambda seen, attempt: Response(die=True) if mark in seen.text else healthy(seen, attempt)


def always(response: Response) -> Script:
    """Answer everything alike."""
    return lambda *_: response


# --- one queue --------------------------------------------------------------------------------------------


def test_ties_go_round() -> None:
    """Calls one after the other go to each server in turn, and each reply names who gave it."""
    with started(None, None, None) as servers:

        async def work(chat: Replicas) -> list[Reply | Failure]:
            return [await chat.ask(question(number)) for number in range(6)]

        replies = use(addressed(servers), work)
        urls = [server.url for server in servers]
        assert [reply.endpoint for reply in replies if isinstance(reply, Reply)] == [*urls, *urls]


def test_a_slow_server_gets_less() -> None:
    """Who has the least in flight is next: a server that keeps its calls gets no more of them."""
    let_go = threading.Event()
    with started(None, always(Response(after=let_go)), None) as servers:

        async def work(chat: Replicas) -> int:
            done = 0
            free = asyncio.Semaphore(6)

            async def one(number: int) -> None:
                nonlocal done
                async with free:
                    assert isinstance(await chat.ask(question(number)), Reply)
                done += 1
                if done == 28:
                    let_go.set()

            await asyncio.gather(*map(one, range(30)))
            return done

        assert use(addressed(servers), work) == 30
        assert len(servers[1].requests) == 2
        assert min(len(servers[0].requests), len(servers[2].requests)) > 2


def test_key_and_headers_go_to_all_and_credentials_to_their_own() -> None:
    """A key is for every replica; what one URL holds goes to that one alone."""
    with started(None, None) as servers:
        first = servers[0].url.replace("http://", "http://me:hush-hush@")
        urls = f"{first},{servers[1].url}"

        async def work(chat: Replicas) -> list[Reply | Failure]:
            return [await chat.ask(question(number)) for number in range(2)]

        use(settings(urls, api_key=KEY, extra_headers={"X-Team": "ears"}), work)
        use(settings(urls, api_key=None), work)
        heads = [[seen.headers.get("authorization") for seen in server.requests] for server in servers]
        assert heads[0] == [f"Bearer {KEY}", "Basic bWU6aHVzaC1odXNo"]
        assert heads[1] == [f"Bearer {KEY}", None]
        assert [server.requests[0].headers["x-team"] for server in servers] == ["ears", "ears"]


def test_what_a_server_refuses_is_learnt_of_it_alone() -> None:
    """One that takes no max_tokens gets another name for it; the others get what was asked for."""
    healthy = scripted_answers()

    def choosy(seen: Seen, attempt: int) -> Response:
        if "max_tokens" in seen.payload:
            return Response(status=400, error={"message": "Unsupported parameter: 'max_tokens'"})
        return healthy(seen, attempt)

    notices: list[str] = []
    with started(None, choosy) as servers:

        async def work(chat: Replicas) -> list[Reply | Failure]:
            return [await chat.ask(question(number)) for number in range(4)]

        replies = use(addressed(servers), work, notices)
        sent = [
            (r.endpoint, "max_tokens" in r.parameters, r.attempts) for r in replies if isinstance(r, Reply)
        ]
        first, second = (server.url for server in servers)
        assert sent == [(first, True, 1), (second, False, 2), (first, True, 1), (second, False, 1)]
        (told,) = notices
        assert told.startswith(f"the model 'scripted-model' at {second} refuses max_tokens; ")


def test_the_form_of_a_clip_is_learnt_of_each(tmp_path: Path) -> None:
    """Where a clip that moved on was refused says nothing of the next server."""
    clip = make_clip(tmp_path, 3000)
    parts = [AudioPart(clip, ("input_audio", "audio_url")), {"type": "text", "text": "What?"}]

    def only_urls(seen: Seen, attempt: int) -> Response:
        if "input_audio" in str(seen.payload):
            return Response(status=400, error={"message": "unknown part type: input_audio"})
        return Response(text="a url")

    with started(only_urls, None) as servers:

        async def work(chat: Replicas) -> list[Reply | Failure]:
            return [await chat.ask([{"role": "user", "content": parts}]) for _ in range(4)]

        replies = use(addressed(servers), work)
        forms = [(reply.endpoint, reply.audio_part) for reply in replies if isinstance(reply, Reply)]
        assert Counter(forms) == {(servers[0].url, "audio_url"): 2, (servers[1].url, "input_audio"): 2}


@pytest.mark.parametrize("seconds", [20, 7200])
def test_a_pause_is_that_servers_alone(seconds: int) -> None:
    """Who asks to wait is left alone that long, however long; the call goes elsewhere at once."""
    busy = Response(status=429, headers={"retry-after": str(seconds)})
    with started(always(busy), None) as servers:
        replies = use(addressed(servers), lambda chat: all_asked(chat, 8, slots=1))
        assert all(isinstance(reply, Reply) for reply in replies)
        assert len(servers[0].requests) == 1


# --- one that is away -------------------------------------------------------------------------------------


def test_one_that_is_killed_costs_no_sample_and_no_reply() -> None:
    """Its calls go elsewhere in the same try; whatever was answered counts once and is not asked again."""
    notices: list[str] = []
    with started(None, dying(at=5), None) as servers:
        budget = Budget(JudgeLimits(calls=1000))
        replies = use(addressed(servers, tries=1), lambda chat: all_asked(chat, 40), notices, budget)
        assert all(isinstance(reply, Reply) for reply in replies)
        assert len(paid(servers)) == 40
        assert set(paid(servers).values()) == {1}
        assert budget.spent.replies == 40
        # What was in flight there may have been paid for, and counts as calls: once, and where a connection
        # was an old one, once more.
        assert any(seen.served_at is None for seen in asked(servers[1]))
        assert 41 <= budget.spent.calls <= 40 + 2 * 6
    aside = [notice for notice in notices if "set aside" in notice]
    assert aside
    assert all(f"at {servers[1].url} is set aside: " in notice for notice in aside)
    assert aside[0].endswith("; 2 go on")


def test_one_that_never_was_there() -> None:
    """A replica that nobody listens at is found out by its first call."""
    notices: list[str] = []
    with started(None, None) as servers:
        servers[0].stop()
        replies = use(addressed(servers, tries=1), lambda chat: all_asked(chat, 10), notices)
        assert all(isinstance(reply, Reply) for reply in replies)
        assert len(servers[1].requests) == 10
    assert sum("set aside: no connection" in notice for notice in notices) == 1


def test_one_that_comes_back_serves_again() -> None:
    """It is asked for a completion now and then, and gets its share once one works."""
    notices: list[str] = []
    with started(None, None) as servers:
        servers[1].stop()

        async def work(chat: Replicas) -> None:
            number = 0
            while not asked(servers[1]):
                assert isinstance(await chat.ask(question(number)), Reply)
                number += 1
                if number == 4:
                    servers[1].start()

        use(addressed(servers), work, notices)
        assert servers[1].requests[0].text == PROBE_TEXT
    called = f"the model 'scripted-model' at {servers[1].url}"
    assert [notice.partition(":")[0] for notice in notices if "back" in notice] == [
        f"{called} is back".partition(":")[0]
    ]
    assert notices[-1] == f"{called} is back"


def test_one_that_fails_every_call_is_set_aside_until_it_does_not() -> None:
    """Three server errors in a row are enough; it is told, and comes back when a completion works."""
    notices: list[str] = []
    with started(None, always(Response(status=503))) as servers:

        async def work(chat: Replicas) -> None:
            assert all(isinstance(one, Reply) for one in await all_asked(chat, 20, slots=1))
            assert len(asked(servers[1])) == 3
            servers[1].script = scripted_answers()
            number = 100
            while len(asked(servers[1])) == 3:
                assert isinstance(await chat.ask(question(number)), Reply)
                number += 1

        use(addressed(servers, tries=1), work, notices)
    assert "3 attempts in a row failed, the last one with 503" in notices[0]
    assert notices[0].endswith("; one goes on")
    assert notices[-1].endswith("is back")


def test_a_sample_that_every_server_fails_at_fails_alone() -> None:
    """Errors that are the request's own set nobody aside, and use up the tries that there are."""
    healthy = scripted_answers()

    def picky(seen: Seen, attempt: int) -> Response:
        return Response(status=500) if "clip 7?" in seen.text else healthy(seen, attempt)

    notices: list[str] = []
    with started(picky, picky) as servers:
        replies = use(addressed(servers, tries=2), lambda chat: all_asked(chat, 20, slots=4), notices)
        failures = [reply for reply in replies if isinstance(reply, Failure)]
        assert [(one.kind, one.attempts) for one in failures] == [(FailureKind.SERVER_ERROR, 4)]
    assert notices == []


def test_one_that_refuses_the_key_is_set_aside() -> None:
    """The others go on; where all refuse it, the run stops as with a single server."""
    notices: list[str] = []
    with started(require_key(scripted_answers(), "another"), None) as servers:
        replies = use(addressed(servers), lambda chat: all_asked(chat, 6, slots=1), notices)
        assert all(isinstance(reply, Reply) for reply in replies)
        assert len(asked(servers[0])) == 1
        assert "is set aside: the key was refused (401" in notices[0]
        servers[1].script = servers[0].script
        with pytest.raises(EndpointError, match="the key was refused"):
            use(addressed(servers), lambda chat: all_asked(chat, 6, slots=1))


def test_all_dead_is_one_dead_endpoint() -> None:
    """The run stops, says where it asked, and how to go on."""
    notices: list[str] = []
    with started(None, None, None) as servers:
        endpoint = addressed(servers)
    with pytest.raises(EndpointError, match="Is the server running") as caught:
        use(endpoint, lambda chat: all_asked(chat, 6), notices)
    assert ",".join(server.url for server in servers) in str(caught.value)
    assert [notice.rpartition("; ")[2] for notice in notices] == ["2 go on", "one goes on", "none is left"]


def test_all_dying_in_the_middle_stop_the_run() -> None:
    """What was answered before is there; what was not ends in the one error."""
    with started(dying(at=4), dying(at=4)) as servers:
        endpoint = addressed(servers)

        async def work(chat: Replicas) -> list[Reply | Failure | BaseException]:
            return await asyncio.gather(
                *(chat.ask(question(number)) for number in range(12)), return_exceptions=True
            )

        ends = use(endpoint, work)
        assert 1 <= sum(isinstance(end, Reply) for end in ends) <= sum(paid(servers).values())
        assert {type(end) for end in ends} == {Reply, EndpointError}


def test_a_server_dies_of_a_request() -> None:
    """The second one that does ends it, by name; the third goes on with everything else."""
    notices: list[str] = []
    with started(*[dies_of("clip 3?")] * 3) as servers:
        replies = use(addressed(servers), lambda chat: all_asked(chat, 30), notices)
        failures = {number: one for number, one in enumerate(replies) if isinstance(one, Failure)}
        assert {number: one.kind for number, one in failures.items()} == {3: FailureKind.SERVER_CRASH}
        assert sum(server.died.is_set() for server in servers) == 2
        assert set(paid(servers).values()) == {1}


# --- --wait-ready -----------------------------------------------------------------------------------------


def test_a_server_that_is_ready_later_joins() -> None:
    """The first that is ready begins; the others are asked until they are."""
    notices: list[str] = []
    with started(None, None) as servers:
        servers[0].stop()

        async def work(chat: Replicas) -> None:
            await chat.until_ready()
            assert isinstance(await chat.ask(question(0)), Reply)
            servers[0].start()
            number = 1
            while not asked(servers[0]):
                assert isinstance(await chat.ask(question(number)), Reply)
                number += 1

        use(addressed(servers, wait_ready=60.0), work, notices)
    assert f"at {servers[0].url} is set aside: it is not ready (no connection" in notices[0]
    assert notices[-1] == f"the model 'scripted-model' at {servers[0].url} is back"


def test_none_is_ready_in_time() -> None:
    """The run stops when the time is over, and says of each what it said last."""
    with started(None, None) as servers:
        endpoint = addressed(servers, wait_ready=0.3)
    with pytest.raises(EndpointError, match=r"within the 0.3 s of --wait-ready") as caught:
        use(endpoint, lambda chat: chat.until_ready())
    assert all(f"{server.url}: " in str(caught.value) for server in servers)


def test_none_will_ever_be_ready() -> None:
    """What no waiting mends is not waited for."""
    with (
        started(*[require_key(scripted_answers(), "another")] * 2) as servers,
        pytest.raises(EndpointError, match="the key was refused"),
    ):
        use(addressed(servers, wait_ready=3600.0), lambda chat: chat.until_ready())


def test_all_dead_are_waited_for() -> None:
    """Calls wait for the first that is back, and use up no try."""
    with started(None, None) as servers:

        class Notices(list[str]):
            """Starts a server once it was told that none is left."""

            def append(self, notice: str) -> None:
                super().append(notice)
                if notice.endswith("; none is left, waiting 60 s at most until one is back"):
                    servers[1].start()

        async def work(chat: Replicas) -> list[Reply | Failure]:
            await chat.until_ready()
            for server in servers:
                server.stop()
            return await all_asked(chat, 12)

        notices = Notices()
        replies = use(addressed(servers, tries=1, wait_ready=60.0), work, notices)
        assert all(isinstance(reply, Reply) for reply in replies)
    assert notices[-1].endswith(f"at {servers[1].url} is back")


# --- ends -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [0.0, 3600.0])
def test_a_run_that_stops_begins_nothing(seconds: float) -> None:
    """Neither a wait for a server nor a back-off holds a stop up."""
    none_left = asyncio.Event()

    class Notices(list[str]):
        """Notes when it was told that none is left."""

        def append(self, notice: str) -> None:
            super().append(notice)
            if "none is left" in notice:
                none_left.set()

    with started(None, None) as servers:
        endpoint = addressed(servers, tries=1000, total_timeout=1e6, wait_ready=seconds)

    async def work(chat: Replicas) -> list[Any]:
        asking = [asyncio.ensure_future(chat.ask(question(number))) for number in range(4)]
        await none_left.wait()
        chat.stop_asking()
        return await asyncio.gather(*asking, return_exceptions=True)

    ends = use(replace(endpoint, retry_interval=3600.0), work, Notices())
    assert {type(end) for end in ends} == {asyncio.CancelledError}


def test_a_budget_is_that_of_all() -> None:
    """No more calls are made than it has, whichever server they go to."""
    with started(None, None) as servers:
        budget = Budget(JudgeLimits(calls=5))

        async def work(chat: Replicas) -> list[Reply | Failure | BaseException]:
            return await asyncio.gather(
                *(chat.ask(question(number)) for number in range(12)), return_exceptions=True
            )

        ends = Counter(map(type, use(addressed(servers), work, budget=budget)))
        assert ends == {Reply: 5, LimitReachedError: 7}
        assert sum(len(server.requests) for server in servers) == 5
