"""The user's own limits: what a bucket lets through, who is next, and what a server gets to see of it."""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from rich.console import Console

from otoscope import judge_runs, run_task
from otoscope.benchmark import BENCHMARK
from otoscope.chat_api import ChatEndpoint
from otoscope.chat_api.rate import Bucket, RateLimit, Turn, estimated_tokens, tokens_used
from otoscope.cli.arguments import JUDGING_FLAGS, given_flags, judge_config, task_config
from otoscope.cli.parser import command_parser
from otoscope.config import TaskConfig, resolve
from otoscope.records import FailureKind, Reply
from otoscope.reports.plan import render_settings
from tests.chat_helpers import QUESTION, about, failed, make_clip, sent_audio, settings, use
from tests.scripted_server import Response, ScriptedServer, Seen, sequence
from tests.support import FAST, config, write_data


class Clock:
    """A clock that stands still but while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """Return the time, in seconds."""
        return self.now

    async def sleep(self, seconds: float) -> None:
        """Let others run, then let the time pass."""
        await asyncio.sleep(0)
        self.now += seconds


def a_reply(usage: dict[str, Any] | None, text: str = "") -> Reply:
    """Return a reply with so many tokens."""
    return Reply(
        text=text,
        reasoning=None,
        finish_reason="stop",
        usage=usage,
        model="m",
        request_id=None,
        parameters={},
        endpoint="e",
        started_at=0.0,
        latency=0.0,
        attempts=1,
    )


def used(tokens: float) -> Reply:
    """Return a reply whose usage has so many tokens in all."""
    return a_reply({"total_tokens": tokens})


def a_message(text: str) -> list[dict[str, Any]]:
    """Return messages with nothing but this text."""
    return [{"content": text}]


# --- the bucket -------------------------------------------------------------------------------------------

AMOUNTS = st.floats(0.01, 3000)
STEPS = st.lists(
    st.tuples(st.floats(0, 30), AMOUNTS, st.none() | st.floats(-3000, 3000)), min_size=1, max_size=40
)


@given(st.floats(0.05, 50_000), STEPS)
def test_no_span_of_time_has_more_than_the_bucket_and_what_flows_in(
    per_minute: float, steps: list[tuple[float, float, float | None]]
) -> None:
    """Whatever is taken, corrected and given back, a span holds the bucket and what flowed in at most."""
    clock = Clock()
    bucket = Bucket(per_minute, clock)
    taken: list[tuple[float, float]] = []
    waited_for: list[int] = []
    for pause, amount, correction in steps:
        clock.now += pause
        while (left := bucket.seconds_until(amount)) > 0:
            clock.now += left
        bucket.take(amount)
        waited_for.append(len(taken))
        taken.append((clock.now, amount))
        if correction is not None:
            bucket.take(correction)
            taken.append((clock.now, correction))
    for last in waited_for:
        before = 0.0
        for began, amount in reversed(taken[:last]):
            before += amount
            most = bucket.capacity + bucket.rate * (taken[last][0] - began)
            assert before <= most * (1 + 1e-9) + 1e-6


@given(st.floats(0.05, 50_000), AMOUNTS)
def test_a_full_bucket_lets_anything_through(per_minute: float, amount: float) -> None:
    """What is larger than the bucket goes when it is full, and the next one waits for all of it."""
    clock = Clock()
    bucket = Bucket(per_minute, clock)
    assert bucket.seconds_until(amount) == 0
    bucket.take(amount)
    wait = bucket.seconds_until(bucket.capacity)
    assert wait == pytest.approx(amount / bucket.rate, abs=0.01)


def test_what_a_minute_allows_is_used() -> None:
    """Who always waits gets the limit itself, after five seconds' worth at once."""
    clock = Clock()
    bucket = Bucket(60, clock)
    for _ in range(65):
        while (left := bucket.seconds_until(1)) > 0:
            clock.now += left
        bucket.take(1)
    assert 60 <= clock.now - 1000 <= 60.1


def test_a_slow_limit_holds_one() -> None:
    """A fraction of a request a minute is one request each so many minutes."""
    clock = Clock()
    bucket = Bucket(0.5, clock)
    clock.now += 10_000
    assert bucket.seconds_until(1) == 0
    bucket.take(1)
    assert bucket.seconds_until(1) == pytest.approx(120)


# --- the line ---------------------------------------------------------------------------------------------


@hypothesis_settings(deadline=None, max_examples=50)
@given(
    st.none() | st.floats(20, 6000),
    st.none() | st.floats(3000, 60_000),
    st.lists(st.tuples(st.integers(0, 2000), st.integers(1, 1000)), min_size=1, max_size=20),
)
def test_first_come_first_served(
    rpm: float | None, tpm: float | None, requests: Sequence[tuple[int, int]]
) -> None:
    """Attempts begin in the order in which they came, however large they are, and keep to both limits."""
    clock = Clock()
    begun: list[tuple[float, int]] = []

    async def one(limit: RateLimit, number: int, characters: int, tokens: int) -> None:
        messages = a_message("x" * characters)
        turn = await limit.turn(messages, clock.sleep)
        begun.append((clock.now, number))
        assert turn.waited == clock.now - 1000
        await asyncio.sleep(0)
        limit.correct(turn, messages, used(tokens))

    async def main() -> None:
        limit = RateLimit(rpm, tpm, clock)
        await asyncio.gather(*(one(limit, number, *request) for number, request in enumerate(requests)))

    asyncio.run(main())
    assert [number for _, number in begun] == list(range(len(requests)))
    if rpm is not None:
        capacity = max(1.0, rpm / 60 * 5)
        for first, (began, _) in enumerate(begun):
            for last, (ended, _) in enumerate(begun[first:], start=1):
                assert last <= capacity + rpm / 60 * (ended - began) + 1e-6


def turns(limit: RateLimit, clock: Clock, *messages: list[dict[str, Any]] | Reply) -> list[Turn]:
    """Take a turn for each of the messages, one after the other; a reply corrects the one before it."""

    async def main() -> list[Turn]:
        taken: list[tuple[Turn, list[dict[str, Any]]]] = []
        for one in messages:
            if isinstance(one, Reply):
                limit.correct(*taken[-1], one)
            else:
                taken.append((await limit.turn(one, clock.sleep), one))
        return [turn for turn, _ in taken]

    return asyncio.run(main())


def test_the_mean_of_the_replies_is_taken_beforehand() -> None:
    """The first request is estimated by its size, later ones by the replies."""
    clock = Clock()
    question = a_message("x" * 40)
    taken = turns(
        RateLimit(None, 6000, clock), clock, question, used(300), question, used(100), question, used(5)
    )
    assert [turn.tokens for turn in taken] == [10, 300, 200]


def test_more_tokens_than_expected_make_the_next_one_wait() -> None:
    """A reply may leave the bucket below zero; the next attempt waits until that is made good."""
    clock = Clock()
    question = a_message("x" * 40)
    # 100 tokens a second, 500 at once: 1,000 are missing, and 500 more for one that needs it full.
    second = turns(RateLimit(None, 6000, clock), clock, question, used(1500), question)[1]
    assert second.waited == pytest.approx(15, abs=0.01)


def test_fewer_tokens_than_expected_are_given_back() -> None:
    """What a reply did not use is there for the next attempt at once."""
    clock = Clock()
    limit = RateLimit(None, 6000, clock)
    long, short = a_message("x" * 2000), a_message("x" * 4)
    assert turns(limit, clock, long, used(100), short, short)[2].waited == 0
    clock = Clock()
    assert turns(RateLimit(None, 6000, clock), clock, long, short)[1].waited > 0


def test_a_turn_that_is_not_used_is_given_back() -> None:
    """An attempt that was not made counts neither as a request nor with its tokens."""
    clock = Clock()
    for limit in (RateLimit(1, None, clock), RateLimit(None, 60, clock)):
        for _ in range(3):
            (turn,) = turns(limit, clock, QUESTION)
            assert turn.waited == 0
            limit.give_back(turn)
        turns(limit, clock, QUESTION)
        assert turns(limit, clock, QUESTION)[0].waited > 0


def test_who_leaves_the_line_takes_nothing() -> None:
    """What a sleeper raises ends its wait alone; the one behind it is next."""
    clock = Clock()

    async def gives_up(seconds: float) -> None:
        await asyncio.sleep(0)
        raise asyncio.CancelledError(f"no more waiting: {seconds} s")

    async def main() -> None:
        limit = RateLimit(60, None, clock)
        for _ in range(5):
            await limit.turn(QUESTION, clock.sleep)
        waiting = [asyncio.ensure_future(limit.turn(QUESTION, how)) for how in (gives_up, clock.sleep)]
        left, stayed = await asyncio.gather(*waiting, return_exceptions=True)
        assert isinstance(left, asyncio.CancelledError)
        assert isinstance(stayed, Turn)
        assert stayed.waited == pytest.approx(1, abs=0.01)

    asyncio.run(main())


def test_without_limits_nobody_waits() -> None:
    """Any number of attempts begin at once, and nothing is counted."""
    clock = Clock()
    limit = RateLimit(None, None, clock)
    assert set(turns(limit, clock, *[QUESTION] * 1000)) == {Turn()}
    assert limit.correct(Turn(), QUESTION, a_reply(None))


# --- tokens -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"total_tokens": 7, "prompt_tokens": 3, "completion_tokens": 3}, 7),
        ({"prompt_tokens": 3, "completion_tokens": 4}, 7),
        ({"prompt_tokens": 3, "completion_tokens": 0}, 3),
        ({"total_tokens": None, "prompt_tokens": 3}, 3),
        ({"total_tokens": True}, None),
        ({"total_tokens": 0}, None),
        ({"total_tokens": -5}, None),
        ({"total_tokens": "7"}, None),
        ({"total_tokens": 10**300}, None),
        ({"total_tokens": float("nan")}, None),
        ({}, None),
    ],
)
def test_tokens_are_what_the_server_says(usage: dict[str, Any], tokens: float | None) -> None:
    """The total counts, else its parts; what is no count is none."""
    assert tokens_used(usage) == tokens


def test_text_and_clip_are_estimated(tmp_path: Path) -> None:
    """Four characters are a token, and a second of the audio that is sent is 25."""
    assert estimated_tokens(a_message("x" * 100)) == 25
    clip = make_clip(tmp_path, 1000)
    with_clip = about(clip, prefix="data:audio/wav;base64,")
    alone = estimated_tokens([{"role": "user", "content": [with_clip[0]["content"][1]]}])
    assert 25 < estimated_tokens(with_clip) - alone < 35
    assert make_clip(tmp_path, 500, converted=b"x" * 9).sent == sent_audio(b"x" * 9)


def test_a_reply_without_usage_is_estimated() -> None:
    """Request and reply count then with their texts, and that it is an estimate is said once."""
    clock = Clock()
    limit = RateLimit(None, 6000, clock)
    (turn,) = turns(limit, clock, a_message("x" * 40))
    assert not limit.correct(turn, a_message("x" * 40), a_reply(None, "y" * 360))
    assert turns(limit, clock, QUESTION)[0].tokens == 100

    async def two(chat: ChatEndpoint) -> None:
        for _ in range(2):
            assert isinstance(await chat.ask(QUESTION), Reply)

    for limits, times in (({"tpm": 1e6}, 1), ({"rpm": 6000}, 0)):
        notices: list[str] = []
        with ScriptedServer(sequence(Response(usage={}))) as server:
            use(settings(server, **limits), two, notices)
        assert sum("does not say how many tokens" in notice for notice in notices) == times


# --- what a server sees -----------------------------------------------------------------------------------


def arrivals(server: ScriptedServer, since: float) -> list[float]:
    """Return when the requests arrived, in seconds after a moment."""
    return sorted(seen.at - since for seen in server.requests)


async def ask_together(chat: ChatEndpoint, count: int) -> None:
    """Ask a number of times at once, and insist on replies."""
    replies = await asyncio.gather(*(chat.ask(QUESTION) for _ in range(count)))
    assert all(isinstance(reply, Reply) for reply in replies), replies


async def ask_six(chat: ChatEndpoint) -> None:
    """Ask six things at once, the first "first" and the last "late", and insist on replies."""
    texts = ("first", "second", "third", "fourth", "fifth", "late")
    replies = await asyncio.gather(*(chat.ask([{"role": "user", "content": text}]) for text in texts))
    assert all(isinstance(reply, Reply) for reply in replies), replies


def test_requests_keep_to_the_limit() -> None:
    """Of 56 requests at once under 600 a minute, 50 go at once and the others a tenth of a second apart."""
    with ScriptedServer() as server:
        began = time.monotonic()
        use(settings(server, rpm=600), lambda chat: ask_together(chat, 56))
    for number, at in enumerate(arrivals(server, began), start=1):
        assert at >= (number - 50) / 10
    assert len(server.requests) == 56


def test_tokens_keep_to_the_limit() -> None:
    """What the usage of the replies says counts, not what was expected of the requests."""
    with ScriptedServer(sequence(Response(usage={"total_tokens": 1000}))) as server:
        began = time.monotonic()

        async def main(chat: ChatEndpoint) -> None:
            for _ in range(6):
                await ask_together(chat, 1)

        use(settings(server, tpm=60_000), main)
    assert arrivals(server, began)[-1] >= 1.0


def test_each_try_is_a_request() -> None:
    """What is tried again counts again."""
    with ScriptedServer(sequence(Response(status=500))) as server:
        began = time.monotonic()
        failure = failed(settings(server, tries=6, rpm=60))
    assert (failure.kind, failure.attempts) == (FailureKind.SERVER_ERROR, 6)
    assert arrivals(server, began)[5] >= 1.0


def test_no_request_fails_for_the_limit() -> None:
    """The wait for a turn does not count towards the time that a request and its tries may take."""

    def script(seen: Seen, attempt: int) -> Response:
        return Response(status=500) if seen.text == "late" and attempt == 0 else Response()

    with ScriptedServer(script) as server:
        began = time.monotonic()
        use(settings(server, rpm=60, total_timeout=0.9), ask_six)
    assert [seen.text for seen in server.requests[-2:]] == ["late", "late"]
    assert arrivals(server, began)[-2] >= 1.0
    assert arrivals(server, began)[-1] >= 2.0


def test_a_pause_holds_for_who_waits_for_a_turn() -> None:
    """Who gets its turn while the server asks all to wait gives it back, and takes another one later."""
    busy = Response(status=429, headers={"Retry-After": "1.5"})

    def script(seen: Seen, attempt: int) -> Response:
        return busy if seen.text == "first" and attempt == 0 else Response()

    with ScriptedServer(script) as server:
        use(settings(server, rpm=60), ask_six)
        seen = {text: [one.at for one in server.requests if one.text == text] for text in ("first", "late")}
    assert len(seen["first"]) == 2
    assert len(seen["late"]) == 1
    assert seen["late"][0] >= seen["first"][0] + 1.5


def test_who_waits_for_a_turn_is_woken_when_the_run_stops() -> None:
    """A call that waits for its turn, next or further behind, is cancelled at once and never sent."""

    async def main(chat: ChatEndpoint) -> None:
        await ask_together(chat, 1)
        waiting = [asyncio.ensure_future(chat.ask(QUESTION)) for _ in range(20)]
        await asyncio.sleep(0.1)
        assert not any(task.done() for task in waiting)
        chat.stop_asking()
        # Their turns would come a minute apart.
        results = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 20)
        assert all(isinstance(result, asyncio.CancelledError) for result in results)

    with ScriptedServer() as server:
        use(settings(server, rpm=1), main)
    assert len(server.requests) == 1


def test_runs_with_one_judge_share_its_limit(tmp_path: Path) -> None:
    """Of runs that ask one judge in different ways, under different limits, the strictest holds for all."""
    data = write_data(tmp_path / "data", each=1)
    with ScriptedServer() as server:
        runs = []
        for number, rpm in enumerate((320, 6000)):
            generation = {**FAST, "temperature": 0.1 * number}
            judge = {"rpm": rpm, "generation_config": generation}
            path = tmp_path / f"run-{number}"
            cfg = config(server.url, data, path, no_judge=True, judge_args=judge, model=f"model-{number}")
            runs.append(run_task(cfg).path)
        server.reset()
        began = time.monotonic()
        judge_runs(runs, environ={"OTOSCOPE_JUDGE_API_KEY": "judge-key"})
        assert len(server.requests) == 32
        assert {seen.payload["temperature"] for seen in server.requests} == {0.0, 0.1}
    for number, at in enumerate(arrivals(server, began), start=1):
        assert at >= (number - 320 / 12) / (320 / 60)


# --- how limits are set -----------------------------------------------------------------------------------


def test_flags_set_the_limits_and_the_plan_shows_them() -> None:
    """Model and judge each have their own, which are stored with the run and said before it starts."""
    words = "eval --model m --api-url http://m.test/v1 --data / --judge-api-key k --judge-api-url http://j.test/v1"
    limits = "--rpm 500 --tpm 30000 --judge-rpm 0.5 --judge-tpm 1500000"
    asked = resolve(task_config(command_parser().parse_args(f"{words} {limits}".split())), {})
    again = resolve(TaskConfig(judge_model_args={"api_key": "k"}).over(asked.stored), {})
    for resolved in (asked, again):
        out = io.StringIO()
        render_settings(resolved, Console(file=out, width=300))
        said = out.getvalue().splitlines()
        model, judge = (next(line for line in said if line.startswith(name)) for name in ("model", "judge"))
        assert model.endswith("16 at a time, at most 500 requests and 30,000 tokens a minute")
        assert judge.endswith("16 at a time, at most 0.5 requests and 1,500,000 tokens a minute")
    out = io.StringIO()
    none = resolve(task_config(command_parser().parse_args([*words.split(), "--judge-rpm", "1"])), {})
    render_settings(none, Console(file=out, width=300))
    assert out.getvalue().count("a minute") == 1
    assert "at most 1 request a minute" in out.getvalue()


def test_judging_takes_the_judges_limits() -> None:
    """`judge` has the flags too, and they are part of the command that goes on with its runs."""
    args = command_parser().parse_args(["judge", "RUN", "--judge-rpm", "60", "--judge-tpm", "9000.5"])
    assert judge_config(args).judge_model_args == {"rpm": 60.0, "tpm": 9000.5}
    assert given_flags(args, JUDGING_FLAGS) == ["--judge-rpm", "60.0", "--judge-tpm", "9000.5"]


def test_a_model_in_here_takes_no_notice_of_limits() -> None:
    """A limit is for an endpoint; for the baseline it is checked and has no effect."""
    given: dict[str, Any] = {"no_judge": True, "dataset_args": {BENCHMARK: {"local_path": "/"}}}
    assert resolve(TaskConfig(model="baseline", rpm=5, **given), {}).stored["rpm"] == 5
