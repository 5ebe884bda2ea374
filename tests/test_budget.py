"""What the judge may use: told beforehand, counted over all sessions, the end of a run when it is used up."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otoscope import TaskConfig, judge_runs, load_run, run_task
from otoscope.bundle import export_bundle
from otoscope.chat_api import Budget
from otoscope.config import JudgeLimits, resolve
from otoscope.errors import ConfigError, LimitReachedError
from otoscope.estimate import TYPICAL_ANSWER_CHARACTERS
from otoscope.prompts import JUDGE_PROMPT
from otoscope.records import Estimate, Event, Notice, Price, Reply, RunStarted, Spent
from otoscope.reports.counts import estimate_told
from otoscope.store import RunStore
from tests.scripted_server import (
    Response,
    Script,
    ScriptedServer,
    Seen,
    by_model,
    delayed,
    failing,
    scripted_answers,
)
from tests.support import DEMO, FAST, command, config, environment, flags, lines, otoscope, write_data

posix_only = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")

TEXT: list[dict[str, Any]] = [{"role": "user", "content": "x" * 396}]
"""A request of 100 tokens by its characters."""
USAGE = {"prompt_tokens": 300, "completion_tokens": 5}
NUMBERS = ("counts", "average", "mixed_audio", "categories", "tasks", "datasets", "all_samples", "position")


def verdicts_with(**reply: Any) -> Script:
    """Return a script whose judge's replies differ from the usual ones in this."""
    usual = scripted_answers()

    def script(seen: Seen, attempt: int) -> Response:
        response = usual(seen, attempt)
        return replace(response, **reply) if seen.kind == "judge" else response

    return script


def to_judge(server: ScriptedServer) -> list[Seen]:
    """Return the requests that the judge got."""
    return [seen for seen in server.requests if seen.kind == "judge"]


def paid_twice(server: ScriptedServer) -> int:
    """Return how many completions were sent for something that had one already."""
    paid = Counter(seen.digest for seen in server.requests if seen.status == 200)
    return sum(paid.values()) - len(paid)


def summary(run: Path) -> dict[str, Any]:
    """Return what a run's summary holds."""
    return dict(json.loads((run / "summary.json").read_text(encoding="utf-8")))


def numbers(run: Path) -> dict[str, Any]:
    """Return the numbers of a run's summary that do not depend on when and how often something was asked."""
    stored = summary(run)
    return {name: stored[name] for name in NUMBERS}


def until(condition: Callable[[], bool], seconds: float = 30) -> None:
    """Wait for something to become true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


def a_reply(**more: Any) -> Reply:
    """Return a judge's reply."""
    return Reply(**{"text": "8 7", "usage": USAGE, **more})


# --- the budget -------------------------------------------------------------------------------------------


@given(st.integers(1, 40), st.lists(st.sampled_from(["reply", "none", "flying"]), max_size=60))
def test_there_are_never_more_calls_than_the_limit(limit: int, ends: list[str]) -> None:
    """However the calls end, or whether they are still in flight; and once it is reached it stays so."""
    budget, made = Budget(JudgeLimits(calls=limit)), 0
    for end in ends:
        try:
            stake = budget.reserve(TEXT, None)
        except LimitReachedError:
            break
        made += 1
        if end == "reply":
            budget.settle(stake, TEXT, a_reply(), None)
        elif end == "none":
            budget.release(stake)
    assert made == budget.spent.calls == min(limit, len(ends))


@given(st.floats(100, 20_000), st.lists(st.tuples(st.integers(1, 900), st.integers(0, 60)), max_size=40))
def test_a_limit_of_tokens_is_passed_only_by_what_was_not_expected(
    limit: float, used: list[tuple[int, int]]
) -> None:
    """With one call at a time, no more is used than the limit and what the last reply had beyond expected."""
    budget = Budget(JudgeLimits(tokens=limit))
    beyond = 0.0
    for prompt, completion in used:
        try:
            stake = budget.reserve(TEXT, None)
        except LimitReachedError:
            break
        usage = {"prompt_tokens": prompt, "completion_tokens": completion}
        budget.settle(stake, TEXT, a_reply(usage=usage), None)
        beyond = max(0.0, prompt + completion - stake.tokens)
    assert budget.spent.prompt_tokens + budget.spent.completion_tokens <= limit + beyond + 1e-6


def test_calls_in_flight_are_counted_with_what_they_are_expected_to_use() -> None:
    """The first by its characters and a typical reply; the next as the server counted those before."""
    budget = Budget(JudgeLimits(tokens=1000))
    first = budget.reserve(TEXT, None)
    assert first.tokens == 104
    budget.settle(first, TEXT, a_reply(), None)
    assert [budget.reserve(TEXT, None).tokens for _ in range(2)] == [305, 305]
    with pytest.raises(LimitReachedError, match="max-judge-tokens 1,000 is reached: 3 calls, 300 tokens in"):
        budget.reserve(TEXT, None)


def test_a_call_without_a_reply_gives_its_tokens_back() -> None:
    """It was a call, but nobody knows of tokens that it used."""
    budget = Budget(JudgeLimits(calls=3, tokens=110))
    for _ in range(3):
        budget.release(budget.reserve(TEXT, None))
    with pytest.raises(LimitReachedError, match="--max-judge-calls 3 is reached"):
        budget.reserve(TEXT, None)


def test_one_is_told_as_one() -> None:
    """One call, and one verdict that is owed."""
    budget = Budget(JudgeLimits(calls=1))
    budget.reserve(TEXT, None)
    assert "is reached: 1 call, 0 tokens in" in str(budget.error(1))
    assert str(budget.error(1)).endswith("1 verdict is owed still.")
    assert str(budget.error(2)).endswith("2 verdicts are owed still.")
    assert "about 1 call to the judge" in estimate_told(Estimate(1, 9, 1, None, 0, 400, 0, 1))


def test_a_call_that_found_no_server_is_none() -> None:
    """It leaves its room to others, until the limit is reached: then what was told adds up."""
    budget = Budget(JudgeLimits(calls=2))
    for _ in range(5):
        budget.release(budget.reserve(TEXT, None), counts=False)
    assert budget.spent.calls == 0
    first, _ = budget.reserve(TEXT, None), budget.reserve(TEXT, None)
    with pytest.raises(LimitReachedError):
        budget.reserve(TEXT, None)
    budget.release(first, counts=False)
    assert "--max-judge-calls 2 is reached: 2 calls" in str(budget.error())


def test_money_is_that_of_the_price() -> None:
    """Prices are those of a million tokens; each judge's tokens cost what they cost there."""
    budget = Budget(JudgeLimits(cost=1.0))
    budget.count(Spent(1, 1, 100_000, 10_000, 0), Price(2, 10))
    budget.count(Spent(1, 1, 100_000, 10_000, 0), None)
    assert budget.cost == pytest.approx(0.3)
    budget.settle(budget.reserve(TEXT, Price(1000, 0)), TEXT, a_reply(), Price(1000, 0))
    assert budget.cost == pytest.approx(0.6)
    with pytest.raises(LimitReachedError, match=r"--max-cost 1 is reached: 3 calls.*cost 0\.6") as caught:
        budget.reserve(TEXT, Price(4000, 0))
    assert caught.value.flag == "--max-cost"


@pytest.mark.parametrize(
    ("usage", "estimated"),
    [
        ({"prompt_tokens": 7, "completion_tokens": 3}, None),
        ({"prompt_tokens": 7, "completion_tokens": 0}, {"completion_tokens": 1}),
        ({"prompt_tokens": 0, "completion_tokens": 0}, {"prompt_tokens": 100, "completion_tokens": 1}),
        ({"total_tokens": 9}, {"prompt_tokens": 100, "completion_tokens": 1}),
        ({"prompt_tokens": "many"}, {"prompt_tokens": 100, "completion_tokens": 1}),
        (None, {"prompt_tokens": 100, "completion_tokens": 1}),
    ],
)
def test_tokens_are_estimated_only_where_the_server_does_not_tell_them(
    usage: dict[str, Any] | None, estimated: dict[str, int] | None
) -> None:
    """A request without tokens cannot be; a text without any neither."""
    budget = Budget(JudgeLimits())
    reply = budget.settle(budget.reserve(TEXT, None), TEXT, a_reply(usage=usage), None)
    assert (reply.usage, reply.estimated) == (usage, estimated)
    assert Reply.from_json(reply.to_json()).estimated == estimated


def test_cached_and_reasoning_tokens_are_in_the_servers_counts() -> None:
    """What it says of them beside is not added: cached tokens count in full."""
    usage = {
        "prompt_tokens": 300,
        "prompt_tokens_details": {"cached_tokens": 256},
        "completion_tokens": 40,
        "completion_tokens_details": {"reasoning_tokens": 36},
    }
    budget = Budget(JudgeLimits())
    budget.settle(budget.reserve(TEXT, None), TEXT, a_reply(usage=usage), None)
    assert (budget.spent.prompt_tokens, budget.spent.completion_tokens) == (300, 40)


@pytest.mark.parametrize(
    ("limits", "warned"),
    [
        (JudgeLimits(), None),
        (JudgeLimits(calls=30, tokens=5000, cost=2.0), None),
        (JudgeLimits(calls=29), "--max-judge-calls 29"),
        (JudgeLimits(tokens=4999), "--max-judge-tokens 4,999"),
        (JudgeLimits(cost=1.99), "--max-cost 1.99"),
    ],
)
def test_more_than_a_limit_leaves_is_said_beforehand(limits: JudgeLimits, warned: str | None) -> None:
    """What was used before counts."""
    budget = Budget(limits)
    budget.count(Spent(10, 10, 900, 100, 0), Price(1000, 1000))
    told = budget.warning(Estimate(20, 3900, 100, 1.0, 0, 0.0, 0, 0))
    assert (told is None) if warned is None else (told is not None and told.startswith(warned))


# --- a run that reaches a limit ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Give a data set of 40 samples, and a run of it that nothing stopped."""
    folder = tmp_path_factory.mktemp("whole")
    data = write_data(folder / "data", each=5)
    with ScriptedServer(verdicts_with(usage=USAGE)) as server:
        run_task(config(server.url, data, folder / "run"))
    return data, folder / "run"


@pytest.mark.parametrize(
    "limits",
    [
        {"max_judge_calls": 31},
        {"max_judge_tokens": 31 * 305 + 100},
        {"max_cost": 31.1 * 0.00305, "judge_price": "10,10"},
    ],
    ids=["calls", "tokens", "cost"],
)
@pytest.mark.parametrize("in_flight", [1, 16, 64])
def test_a_run_stops_at_a_limit_and_goes_on_with_a_higher_one(
    tmp_path: Path, whole: tuple[Path, Path], limits: dict[str, Any], in_flight: int
) -> None:
    """Nothing is asked beyond it, all that was asked is stored; resumed, the numbers are the usual ones."""
    data, unstopped = whole
    script = delayed(verdicts_with(usage=USAGE), judge=0.01)
    with ScriptedServer(script) as server:
        settings = config(server.url, data, tmp_path / "run", judge_batch_size=in_flight)
        with pytest.raises(LimitReachedError) as caught:
            run_task(replace(settings, **limits))
        assert caught.value.exit_code == 7
        asked = len(to_judge(server))
        # The first two requests of all know nothing of the server's counts, and set less aside.
        assert asked == 31 or ("max_judge_calls" not in limits and 30 <= asked <= 31)
        stored = summary(tmp_path / "run")
        assert len(lines(tmp_path / "run" / "verdicts.jsonl")) == stored["usage"]["judge"]["calls"] == asked
        assert f"{80 - asked} verdicts are owed still" in str(caught.value)
        assert stored["counts"]["pending"] > 0
        name = next(iter(limits))
        run_task(replace(settings, **{**limits, name: type(limits[name])(3 * limits[name])}))
        assert len(to_judge(server)) == 80
        assert paid_twice(server) == 0
    assert numbers(tmp_path / "run") == numbers(unstopped)


def test_what_earlier_sessions_used_counts_and_a_resume_without_the_flag_has_no_limit(
    tmp_path: Path, whole: tuple[Path, Path]
) -> None:
    """The same limit again asks for nothing more; the limit is not stored."""
    data, unstopped = whole
    with ScriptedServer(verdicts_with(usage=USAGE)) as server:
        settings = config(server.url, data, tmp_path / "run")
        for _ in range(2):
            with pytest.raises(LimitReachedError, match="20 calls"):
                run_task(replace(settings, max_judge_calls=20))
            assert len(to_judge(server)) == 20
        manifest = json.loads((tmp_path / "run" / "manifest.json").read_text(encoding="utf-8"))
        assert "max_judge_calls" not in manifest["settings"]
        run_task(settings)
        assert paid_twice(server) == 0
    assert numbers(tmp_path / "run") == numbers(unstopped)


def test_calls_in_flight_get_the_time_that_they_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit is no hurry: what is paid for is stored, however long after the stop it comes."""
    monkeypatch.setattr("otoscope.pipeline.GRACE", 0.05)
    data = write_data(tmp_path / "data", each=2)
    held = threading.Event()

    def script(seen: Seen, attempt: int) -> Response:
        slow = seen.kind == "judge" and len(to_judge(server)) > 2
        return replace(scripted_answers()(seen, attempt), after=held if slow else None)

    def on_event(event: Event) -> None:
        if isinstance(event, Notice) and "stopping at a limit" in event.message:
            threading.Timer(0.5, held.set).start()

    with ScriptedServer(script) as server:
        with pytest.raises(LimitReachedError):
            run_task(config(server.url, data, tmp_path / "run", max_judge_calls=12), on_event=on_event)
        assert len(to_judge(server)) == 12
    assert len(lines(tmp_path / "run" / "verdicts.jsonl")) == 12


@posix_only
def test_a_signal_hurries_a_run_that_waits_at_a_limit(tmp_path: Path) -> None:
    """Ctrl-C is confirmed; twice it ends the run at once, with the exit code of a limit; nothing is lost."""
    data = write_data(tmp_path / "data", each=2)
    held = threading.Event()

    def script(seen: Seen, attempt: int) -> Response:
        slow = seen.kind == "judge" and len(to_judge(server)) > 2
        return replace(scripted_answers()(seen, attempt), after=held if slow else None)

    with ScriptedServer(script) as server:
        run = tmp_path / "run"
        arguments = flags(server.url, data, "--run-dir", str(run), "--max-judge-calls", "12")
        process = subprocess.Popen(
            command(*arguments),
            env=environment(),
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
        )
        assert process.stderr is not None
        while "stopping at a limit" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        while "once more stops at once" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, complaint = process.communicate(timeout=15)
        held.set()
    assert process.returncode == 7, complaint
    assert "Traceback" not in complaint
    assert len(lines(run / "verdicts.jsonl")) == 2


@posix_only
def test_a_run_that_waits_at_a_limit_can_be_taken_over(tmp_path: Path) -> None:
    """While its calls in flight end it still looks at its lock, and writes nothing once that is another's."""
    data = write_data(tmp_path / "data", each=2)
    held = threading.Event()

    def script(seen: Seen, attempt: int) -> Response:
        slow = seen.kind == "judge" and 2 < len(to_judge(server)) <= 12
        return replace(scripted_answers()(seen, attempt), after=held if slow else None)

    with ScriptedServer(script) as server:
        run = tmp_path / "run"
        arguments = flags(server.url, data, "--run-dir", str(run))
        first = subprocess.Popen(
            command(*arguments, "--max-judge-calls", "12"),
            env=environment(), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, encoding="utf-8",
        )  # fmt: skip
        assert first.stderr is not None
        while "stopping at a limit" not in first.stderr.readline():
            assert first.poll() is None
        run_task(config(server.url, data, run, take_over=True))
        first.communicate(timeout=20)
        held.set()
    assert first.returncode == 6
    assert len(lines(run / "verdicts.jsonl")) == 32


@posix_only
def test_a_killed_run_has_not_forgotten_what_it_spent(tmp_path: Path, whole: tuple[Path, Path]) -> None:
    """After SIGKILL every stored reply counts; only calls in flight at that moment are unknown."""
    data, unstopped = whole
    with ScriptedServer(delayed(verdicts_with(usage=USAGE), judge=0.02)) as server:
        run = tmp_path / "run"
        arguments = flags(server.url, data, "--run-dir", str(run), "--judge-batch-size", "4")
        limited = [*arguments, "--max-judge-calls", "40"]
        process = subprocess.Popen(
            command(*limited), env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        until(lambda: len(to_judge(server)) >= 20 or process.poll() is not None)
        process.kill()
        process.wait()
        stored = len(lines(run / "verdicts.jsonl"))
        before = len(to_judge(server))
        keys = {"OTOSCOPE_API_KEY": "model-key", "OTOSCOPE_JUDGE_API_KEY": "judge-key"}
        with pytest.raises(LimitReachedError):
            run_task(TaskConfig(use_cache=run, max_judge_calls=40), environ=keys)
        assert len(to_judge(server)) - before == 40 - stored
        assert before - stored <= 4
        run_task(TaskConfig(use_cache=run), environ=keys)
    assert numbers(run) == numbers(unstopped)


def test_every_request_counts_also_one_that_failed_or_was_repeated(tmp_path: Path) -> None:
    """Retries, failures, and replies that did not serve; the summary's calls are those the server got."""
    data = write_data(tmp_path / "data", each=2)
    broken = failing(scripted_answers(), 0.3, Response(status=500))
    unclear = failing(broken, 0.3, Response(text="Both are good."), seed=1)

    with ScriptedServer(unclear) as server:
        settings = config(
            server.url, data, tmp_path / "run", judge_args={"generation_config": {**FAST, "retries": 1}}
        )
        run = run_task(settings)
        used = run.summary.usage["judge"]
        assert used["calls"] == len(to_judge(server)) > 32
        assert used["replies"] == sum(seen.status == 200 for seen in to_judge(server)) < used["calls"]
        with RunStore.open(run.path) as store:
            assert store.judge_spent.calls == used["calls"]
        # What failed is owed again, and its requests stay counted.
        server.script = scripted_answers()
        again = run_task(settings).summary
        assert again.usage["judge"]["calls"] == len(to_judge(server))
        with RunStore.open(run.path) as store:
            assert store.judge_spent.calls == len(to_judge(server))
            assert store.judge_spent.replies == again.usage["judge"]["replies"]
            assert store.judge_spent.prompt_tokens == again.usage["judge"]["prompt_tokens"]
    assert again.counts["scored"] == 16


def test_retries_are_paid_from_the_limit(tmp_path: Path) -> None:
    """A judge whose server is out of order uses the calls up, and no more than those."""
    data = write_data(tmp_path / "data", each=2)
    first_two: set[str] = set()

    def script(seen: Seen, attempt: int) -> Response:
        if seen.kind == "judge" and (len(first_two) < 2 or seen.digest in first_two):
            first_two.add(seen.digest)
            return scripted_answers()(seen, attempt)
        return Response(status=503) if seen.kind == "judge" else scripted_answers()(seen, attempt)

    with ScriptedServer(script) as server:
        with pytest.raises(LimitReachedError, match="--max-judge-calls 25 is reached: 25 calls"):
            run_task(config(server.url, data, tmp_path / "run", max_judge_calls=25))
        assert len(to_judge(server)) == 25


def test_a_judge_that_is_not_there_uses_nothing_up(tmp_path: Path) -> None:
    """Neither tries that find nobody nor waiting for it: what the limit leaves is there for the verdicts."""
    data = write_data(tmp_path / "data", each=1)
    healthy, loading = scripted_answers(), [Response(status=503)] * 2

    def script(seen: Seen, attempt: int) -> Response:
        return loading.pop() if loading else healthy(seen, attempt)

    with ScriptedServer() as model:
        judge = ScriptedServer(script)
        judge.start()
        judge.stop()
        arguments = [
            word.replace(f'"api_url": "{model.url}"', f'"api_url": "{judge.url}"')
            for word in flags(model.url, data, "--run-dir", str(tmp_path / "run"))
        ]
        done = otoscope(*arguments, "--max-judge-calls", "2")
        assert done.returncode == 5, done.stderr
        process = subprocess.Popen(
            command(*arguments, "--max-judge-calls", "17", "--wait-ready", "30"),
            env=environment(),
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            encoding="utf-8",
        )
        assert process.stderr is not None
        while "is not ready" not in process.stderr.readline():
            assert process.poll() is None
        time.sleep(0.3)  # time to look again, and again
        judge.start()
        _, rest = process.communicate(timeout=30)
        judge.stop()
    assert process.returncode == 0, rest
    assert "is ready after" in rest
    assert not loading
    assert len(to_judge(judge)) == 16


def test_a_server_that_tells_no_tokens_is_counted_by_the_texts(tmp_path: Path) -> None:
    """The estimate is stored as one, limits the run as well, and is marked as such in every report."""
    data = write_data(tmp_path / "data", each=2)
    with ScriptedServer(verdicts_with(usage={})) as server:
        settings = config(server.url, data, tmp_path / "run", judge_price=[2, 8])
        with pytest.raises(LimitReachedError, match=r"\(of \d+ replies estimated\)"):
            run_task(replace(settings, max_judge_tokens=3000))
        used = summary(tmp_path / "run")["usage"]["judge"]
        assert 2000 < used["prompt_tokens"] + used["completion_tokens"] <= 3000
        run = run_task(settings)
    assert run.summary.usage["model"].keys() == {"replies", "prompt_tokens", "completion_tokens"}
    used = run.summary.usage["judge"]
    assert used["estimated_replies"] == used["replies"] == 32
    prompts = [len(seen.text) for seen in to_judge(server)]
    assert used["prompt_tokens"] == pytest.approx(sum(prompts) / 4, rel=0.01)
    stored = lines(run.path / "verdicts.jsonl")
    assert all("usage" not in r and r["estimated"]["prompt_tokens"] > 0 for v in stored for r in v["replies"])
    told = otoscope("report", str(run.path), "--format", "md", "--appendix")
    assert "in part estimated" in " ".join(told.stdout.split()), told.stderr


# --- several runs -----------------------------------------------------------------------------------------


def answered_runs(server: ScriptedServer, folder: Path, count: int) -> list[Path]:
    """Make runs with answers of their own, and no verdicts."""
    data = write_data(folder / "data", each=2)
    runs = []
    for number in range(count):
        server.script = scripted_answers(salt=f"model {number}")
        settings = config(server.url, data, folder / f"run-{number}", no_judge=True, model=f"m-{number}")
        runs.append(run_task(settings).path)
    server.script = verdicts_with(usage=USAGE)
    server.reset()
    return runs


def test_runs_that_are_judged_together_share_a_limit(tmp_path: Path) -> None:
    """One limit for all; what the runs that are done have used counts at the next start, too."""
    with ScriptedServer() as server:
        runs = [str(run) for run in answered_runs(server, tmp_path, 3)]
        key = {"OTOSCOPE_JUDGE_API_KEY": "k"}
        words = ["judge", *runs, "--judge-model", "j", "--judge-api-url", server.url]
        words += ["--judge-batch-size", "8"]
        words += ["--judge-price", "10,20"]
        limited = otoscope(*words, "--max-judge-calls", "50", environ=key)
        assert limited.returncode == 7, limited.stderr
        assert len(to_judge(server)) == 50
        assert sum(len(lines(Path(run) / "verdicts.jsonl")) for run in runs if _judged(run)) == 50
        assert "46 verdicts are owed still" in limited.stderr
        assert "96 verdicts to ask for" in limited.stderr
        assert "about 96 calls" in " ".join(limited.stderr.split())
        assert "--max-judge-calls 50 will probably be reached" in limited.stderr
        judge = {"model_id": "j", "api_url": server.url}
        with pytest.raises(LimitReachedError, match=r"60 calls.* 36 verdicts are owed still"):
            judge_runs(runs, TaskConfig(judge_model_args=judge, max_judge_calls=60), environ=key)
        assert len(to_judge(server)) == 60
        told = limited.stderr.splitlines()[-1].strip()
        assert told.startswith(f"otoscope judge {runs[0]}")
        done = otoscope(*shlex.split(told)[1:], environ=key)
        assert done.returncode == 0, done.stderr
        assert len(to_judge(server)) == 96
        assert paid_twice(server) == 0
    assert all(summary(Path(run))["usage"]["judge"]["cost"] == pytest.approx(32 * 0.0031) for run in runs)


def _judged(run: str) -> bool:
    return (Path(run) / "verdicts.jsonl").exists()


def test_judges_of_different_price_share_money(tmp_path: Path) -> None:
    """Each run's tokens cost what its own judge's do."""
    with ScriptedServer() as server:
        first, second = answered_runs(server, tmp_path, 2)
        for run, price in ((first, "100,0"), (second, "10,0")):
            judge = {"model_id": f"j{price}", "api_url": server.url, "api_key": "k"}
            with pytest.raises(LimitReachedError):
                judge_runs([run], TaskConfig(judge_model_args=judge, judge_price=price, max_judge_calls=4))
        key = {"OTOSCOPE_JUDGE_API_KEY": "k"}
        with pytest.raises(LimitReachedError) as caught:
            judge_runs([first, second], TaskConfig(max_cost=0.3), environ=key)
        # 4 calls at 0.03 and 4 at 0.003 were there before.
        spent = sum(summary(run)["usage"]["judge"]["cost"] for run in (first, second))
        assert 0.26 < spent <= 0.3 + 1e-9
        assert re.search(r"cost 0\.\d+", str(caught.value))


def test_a_run_without_a_price_is_refused_with_a_limit_of_cost(tmp_path: Path) -> None:
    """It is named, and so is the flag that helps."""
    with ScriptedServer() as server:
        (run,) = answered_runs(server, tmp_path, 1)
        judge = {"model_id": "j", "api_url": server.url, "api_key": "k"}
        with pytest.raises(ConfigError, match="--max-cost needs --judge-price") as caught:
            judge_runs([run], TaskConfig(judge_model_args=judge, max_cost=3))
        assert str(run) in str(caught.value)


# --- what is told -----------------------------------------------------------------------------------------


def test_the_estimate_is_near_to_what_is_used(tmp_path: Path) -> None:
    """Of a run with answers the prompts are known to the character."""
    data = write_data(tmp_path / "data", each=3)
    seen: list[Event] = []
    with ScriptedServer() as server:
        settings = config(server.url, data, tmp_path / "run", judge_price="1,1")
        run_task(replace(settings, no_judge=True, judge_price=None))
        run = run_task(settings, on_event=seen.append)
        prompts = sum(len(one.text) for one in to_judge(server))
    (started,) = [event for event in seen if isinstance(event, RunStarted)]
    assert started.estimate is not None
    assert started.estimate.calls == 48 == started.verdicts_owed
    assert started.estimate.prompt_tokens == pytest.approx(prompts / 4)
    assert started.estimate.completion_tokens == 48 * 4
    assert started.estimate.cost == pytest.approx(run.summary.usage["judge"]["cost"], rel=0.1)


def test_a_dry_run_tells_what_the_judge_will_use(tmp_path: Path) -> None:
    """Without a run by typical lengths, of a run begun by its own; and where a limit leaves less."""
    with ScriptedServer(verdicts_with(usage=USAGE)) as server:
        run = ["--run-dir", str(tmp_path / "run"), "--judge-price", "10,30"]
        first = otoscope(*flags(server.url, DEMO, "--dry-run", *run, "--max-judge-calls", "9"))
        assert first.returncode == 0, first.stderr
        told = " ".join(first.stdout.split())
        characters = len(JUDGE_PROMPT) + TYPICAL_ANSWER_CHARACTERS
        found = re.search(r"32 calls to the judge, ([\d.]+)k tokens in, 130 out, cost ([\d.]+)", told)
        assert found is not None, told
        into, cost = found.groups()
        assert 32 * characters / 4 < 1000 * float(into) < 3 * 32 * characters / 4
        assert float(cost) == pytest.approx(float(into) / 100, rel=0.1)
        assert "answers of 400 characters" in told
        assert "--max-judge-calls 9 will probably be reached" in told
        assert "at most 9 calls for the judge" in told
        assert "10 in and 30 out, a million tokens" in told
        assert server.requests == []
        with pytest.raises(LimitReachedError):
            run_task(config(server.url, DEMO, tmp_path / "run", max_judge_calls=9))
        second = otoscope(*flags(server.url, DEMO, "--dry-run", *run))
        told = " ".join(second.stdout.split())
        assert "about 23 calls" in told
        assert "verdicts of 5 tokens as so far" in told
        assert "will probably be reached" not in told


def test_a_judging_dry_run_tells_it_too(tmp_path: Path) -> None:
    """Of all runs together, with the limits and what they leave."""
    with ScriptedServer() as server:
        runs = [str(run) for run in answered_runs(server, tmp_path, 2)]
        words = ["judge", *runs, "--judge-model", "j", "--judge-api-url", server.url, "--dry-run"]
        done = otoscope(*words, "--judge-price", "10,10", "--max-cost", "0.01")
        assert done.returncode == 0, done.stderr
        told = " ".join(done.stdout.split())
        assert "about 64 calls to the judge" in told
        assert "at most a cost of 0.01 for the judge" in told
        assert "--max-cost 0.01 will probably be reached" in told
        assert server.requests == []


def test_the_command_that_is_printed_at_a_limit_finishes_the_run(tmp_path: Path) -> None:
    """Its limit is enough by what was used so far, and the other limits are in it, too."""
    data = write_data(tmp_path / "data", each=4)
    with ScriptedServer(verdicts_with(usage=USAGE)) as server:
        run = tmp_path / "run"
        key = {"OTOSCOPE_JUDGE_API_KEY": "judge-key"}
        words = ["eval", "--model", "m", "--api-url", server.url, "--data", str(data), "--run-dir", str(run)]
        words += ["--judge-model", "j", "--judge-api-url", server.url, "--judge-price", "2.5,10"]
        words += ["--max-cost", "0.02", "--max-judge-calls", "500"]
        done = otoscope(*words, environ=key)
        assert done.returncode == 7
        assert "otoscope: stopped: --max-cost 0.02 is reached" in done.stderr
        told = done.stderr.splitlines()[-1].strip()
        assert told.startswith(f"otoscope eval --use-cache {run} --max-judge-calls 500 --max-cost 0.0")
        done = otoscope(*shlex.split(told)[1:], environ=key)
        assert done.returncode == 0, done.stderr
        assert "Cost 0.051 for the judge, at 2.5 and 10 a million tokens in and out" in " ".join(
            done.stdout.split()
        )
        assert paid_twice(server) == 0
    assert summary(run)["usage"]["judge"] == {
        "calls": 64,
        "replies": 64,
        "prompt_tokens": 64 * 300,
        "completion_tokens": 64 * 5,
        "estimated_replies": 0,
        "price": {"prompt": 2.5, "completion": 10.0},
        "cost": 0.0512,
    }


@pytest.mark.parametrize(
    ("given", "repeated"),
    [
        ({}, ""),
        ({"generation_config": {"max_tokens": 9}}, ""),
        ({"api_key_file": "key"}, ' --judge-model-args \'{"api_key_file": "key"}\''),
        ({"api_key": "judge-key"}, " --judge-model-args ..."),
        ({"generation_config": {"extra_headers": {"X-Team": "a"}}}, " --judge-model-args ..."),
    ],
)
def test_the_command_repeats_of_a_json_flag_what_the_run_does_not_keep(
    tmp_path: Path, given: dict[str, Any], repeated: str
) -> None:
    """A file of a key by its name, a secret by dots; for all else the printed command is whole as it is."""
    data = write_data(tmp_path / "data", each=1)
    (tmp_path / "key").write_text("judge-key\n", encoding="utf-8")
    (tmp_path / "key").chmod(0o600)
    key = {} if "api_key_file" in given or "api_key" in given else {"OTOSCOPE_JUDGE_API_KEY": "judge-key"}
    with ScriptedServer() as server:
        run = tmp_path / "run"
        words = ["eval", "--model", "m", "--api-url", server.url, "--data", str(data), "--run-dir", str(run)]
        words += ["--judge-model", "j", "--judge-api-url", server.url, "--max-judge-calls", "1"]
        words += ["--judge-model-args", json.dumps(given)] if given else []
        done = otoscope(*words, environ=key, cwd=tmp_path)
        assert done.returncode == 7, done.stderr
        (told,) = (line.strip() for line in done.stderr.splitlines() if "eval --use-cache" in line)
        assert told.endswith(f"--max-judge-calls 18{repeated}")
        assert ("give it again" in done.stderr) is repeated.endswith("...")
        if not repeated.endswith("..."):
            again = otoscope(*shlex.split(told)[1:], environ=key, cwd=tmp_path)
            assert again.returncode == 0, again.stderr
        judging = ["judge", str(run), *words[9:]]
        judging += ["--run-dir", str(tmp_path / "copy"), "--judge-revision", "2", "--max-judge-calls", "1"]
        done = otoscope(*judging, environ=key, cwd=tmp_path)
        assert done.returncode == 7, done.stderr
        (told,) = (line.strip() for line in done.stderr.splitlines() if line.startswith("  otoscope judge"))
        if repeated.endswith("..."):
            assert told.endswith(" --judge-model-args ...")
        else:
            again = otoscope(*shlex.split(told)[1:], environ=key, cwd=tmp_path)
            assert again.returncode == 0, again.stderr


def test_the_command_that_goes_on_keeps_the_limits(tmp_path: Path) -> None:
    """Whatever stopped the run; but without a judge there is nothing to limit."""
    data = write_data(tmp_path / "data", each=1)
    refused = by_model({"scripted-judge": Response(status=401, error={"message": "bad key"})})
    with ScriptedServer(refused) as server:
        limits = ["--max-judge-calls", "50", "--max-judge-tokens", "9000"]
        done = otoscope(*flags(server.url, data, "--run-dir", str(tmp_path / "run"), *limits))
    assert done.returncode == 5
    resuming, answering = (line for line in done.stderr.splitlines() if "otoscope eval --use-cache" in line)
    assert "--max-judge-calls 50 --max-judge-tokens 9000" in resuming
    assert "--no-judge" in answering
    assert "--max" not in answering


def test_a_new_price_is_that_of_all_tokens(tmp_path: Path) -> None:
    """It is stored with the run, applies to what was used before, and changes nothing that is asked."""
    data = write_data(tmp_path / "data", each=1)
    with ScriptedServer(verdicts_with(usage=USAGE)) as server:
        settings = config(server.url, data, tmp_path / "run", judge_price="1,1")
        assert run_task(settings).summary.usage["judge"]["cost"] == pytest.approx(16 * 305 / 1e6)
        asked = len(server.requests)
        again = run_task(TaskConfig(use_cache=str(tmp_path / "run"), judge_price=[3, 3]), environ={
            "OTOSCOPE_API_KEY": "model-key", "OTOSCOPE_JUDGE_API_KEY": "judge-key"
        })  # fmt: skip
        assert again.summary.usage["judge"]["cost"] == pytest.approx(3 * 16 * 305 / 1e6)
        judged = judge_runs(
            [again.path], TaskConfig(judge_price="5,5"), environ={"OTOSCOPE_JUDGE_API_KEY": "judge-key"}
        )
        assert judged[0].summary.usage["judge"]["cost"] == pytest.approx(5 * 16 * 305 / 1e6)
        assert load_run(again.path).summary.usage["judge"]["price"] == {"prompt": 5, "completion": 5}
        assert len(server.requests) == asked
        bundle = tmp_path / "bundle.zip"
        export_bundle(again.path, bundle, with_data=False)
        with zipfile.ZipFile(bundle) as packed:
            (name,) = (name for name in packed.namelist() if name.endswith("summary.json"))
            assert json.loads(packed.read(name))["usage"]["judge"] == judged[0].summary.usage["judge"]


def test_the_page_tells_what_the_judge_cost(tmp_path: Path) -> None:
    """Also that some requests brought no reply."""
    data = write_data(tmp_path / "data", each=1)
    with ScriptedServer(failing(verdicts_with(usage=USAGE), 0.4, Response(status=500))) as server:
        run = run_task(config(server.url, data, tmp_path / "run", judge_price="1000,1000")).path
    calls = summary(run)["usage"]["judge"]["calls"]
    page = tmp_path / "zh.html"
    done = otoscope("report", str(run), "--format", "html", "--lang", "zh", "--output", str(page))
    assert done.returncode == 0, done.stderr
    text = page.read_text(encoding="utf-8")
    assert "评审模型费用 4.88" in text
    assert f"{calls} 次请求" in text


# --- settings ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"max_cost": 5}, "--max-cost needs --judge-price IN,OUT"),
        ({"max_cost": 0, "judge_price": "1,1"}, "max_cost: 0 must be above 0"),
        ({"max_judge_calls": 0}, "max_judge_calls: 0 must be a whole number from 1 up"),
        ({"max_judge_calls": 2.5}, "max_judge_calls: 2.5 must be a whole number"),
        ({"max_judge_tokens": -1}, "max_judge_tokens: -1 must be above 0"),
        ({"max_judge_tokens": float("nan")}, "max_judge_tokens: nan must be a number"),
        ({"judge_price": "10"}, "judge_price: '10' must be two numbers"),
        ({"judge_price": "10,-1"}, "must be two numbers from 0 up"),
        ({"judge_price": "10,nan"}, "must be two numbers"),
        ({"judge_price": "10,inf"}, "must be two numbers"),
        ({"judge_price": "10,20,30"}, "for example 2.5,10"),
        ({"judge_price": [True, 1]}, "must be two numbers"),
        ({"judge_price": 10}, "must be two numbers"),
        ({"no_judge": True, "judge_price": "x"}, "must be two numbers"),
        ({"no_judge": True, "max_judge_calls": 5}, "--max-judge-calls: no judge is asked with --no-judge"),
        (
            {"judge_model_args": {"model_id": "embedded"}, "judge_price": "1,1", "max_cost": 4},
            "--max-cost, --judge-price: the embedded judge costs nothing",
        ),
    ],
)
def test_what_cannot_be_a_limit_or_a_price_is_refused(given: dict[str, Any], said: str) -> None:
    """With the setting's name, and what to give instead."""
    judge = {"model_id": "j", "api_url": "http://127.0.0.1:1/v1", "api_key": "k"}
    args = {"judge_model_args": judge, **given}
    with pytest.raises(ConfigError) as caught:
        resolve(TaskConfig(model="baseline", **args), {})
    assert said in str(caught.value)


def test_a_price_describes_the_judge(tmp_path: Path) -> None:
    """It is kept for later with --no-judge, and is not that of another judge named later."""
    data = write_data(tmp_path / "data", each=1)
    with ScriptedServer(by_model({})) as server:
        settings = config(server.url, data, tmp_path / "run", judge_price="7,9")
        run = run_task(replace(settings, no_judge=True)).path
        assert json.loads((run / "manifest.json").read_text(encoding="utf-8"))["settings"]["judge_price"] == [
            7.0,
            9.0,
        ]
        (judged,) = judge_runs([run], environ={"OTOSCOPE_JUDGE_API_KEY": "k"})
        assert judged.summary.usage["judge"]["price"] == {"prompt": 7.0, "completion": 9.0}
        other = {"model_id": "other", "api_url": server.url, "api_key": "k"}
        (copy,) = judge_runs([run], TaskConfig(judge_model_args=other))
        assert copy.path != run
        assert copy.summary.usage["judge"]["price"] is None
        assert copy.summary.usage["judge"]["cost"] is None
