"""The circuit breaker: calls that all fail in the same way stop the run, and are owed again."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from otoscope import judge_runs, load_run, run_task
from otoscope.breaker import LIMIT, Breaker
from otoscope.errors import EndpointError
from otoscope.records import Failure, FailureKind
from tests.scripted_server import Response, Script, ScriptedServer, Seen, scripted_answers
from tests.support import config, lines, write_data

REFUSED = Response(status=400, error={"message": "This deployment is disabled."})
FILTERED = Response(status=400, error={"message": "flagged", "code": "content_filter"})


def failure(kind: FailureKind = FailureKind.REJECTED) -> Failure:
    """Return a failure."""
    return Failure(kind, "400: no", 1)


# --- the count --------------------------------------------------------------------------------------------


def fed(breaker: Breaker, *results: object, owed: list[Failure] | None = None) -> None:
    """Let calls end one after the other; ``owed`` gets the failures that are owed again."""
    kept: list[Failure] = [] if owed is None else owed
    for result in results:
        with breaker.call() as ended:
            ended(result, kept.append)


def test_so_many_failures_alike_break() -> None:
    """The last one stops the run, with count, kind and message; all of them are owed again."""
    breaker = Breaker("judge")
    owed: list[Failure] = []
    fed(breaker, *[failure()] * (LIMIT - 1), owed=owed)
    assert owed == []
    with pytest.raises(
        EndpointError, match=f"last {LIMIT} calls .* rejected, the last one: 400: no"
    ) as caught:
        fed(breaker, failure(), owed=owed)
    assert caught.value.exit_code == 5
    assert owed == [failure()] * LIMIT


@pytest.mark.parametrize("position", [0, 1, LIMIT // 2, LIMIT - 1])
def test_any_success_begins_anew(position: int) -> None:
    """With one success among them, fifty failures break nothing."""
    results: list[object] = [failure()] * LIMIT
    results.insert(position, "an answer")
    fed(Breaker("model"), *results[:LIMIT])


def test_failures_of_several_kinds_break_nothing() -> None:
    """Timeouts and refused connections in turn are not the same trouble."""
    kinds = [FailureKind.TIMEOUT, FailureKind.CONNECTION] * LIMIT
    fed(Breaker("model"), *map(failure, kinds))


@pytest.mark.parametrize(
    "kind", [FailureKind.MISSING_AUDIO, FailureKind.CONTEXT_TOO_SMALL, FailureKind.TOO_LARGE]
)
def test_what_is_the_samples_own_counts_for_nothing(kind: FailureKind) -> None:
    """Clips that are missing or too long come in rows; they neither break nor mend."""
    fed(Breaker("model"), *[failure(kind)] * (2 * LIMIT))
    mixed = [failure(), failure(kind)] * LIMIT
    with pytest.raises(EndpointError):
        fed(Breaker("model"), *mixed)


def test_what_fails_at_once_does_not_overtake_what_serves() -> None:
    """Of many calls in flight those that fail may all end first: the others began before, and decide."""
    breaker = Breaker("model")
    owed: list[Failure] = []
    with ExitStack() as stack:
        slow = stack.enter_context(breaker.call())
        fed(breaker, *[failure()] * (2 * LIMIT), owed=owed)
        slow("an answer", owed.append)
    fed(breaker, *[failure()] * (LIMIT - 1), owed=owed)
    assert owed == []


def test_what_is_in_flight_when_it_breaks_is_owed_again_too() -> None:
    """Calls that end in the same way afterwards say as little of their samples."""
    breaker = Breaker("model")
    owed: list[Failure] = []
    with ExitStack() as stack:
        with pytest.raises(EndpointError):
            fed(breaker, *[failure()] * LIMIT)
        late = stack.enter_context(breaker.call())
        late(failure(), owed.append)
        other = stack.enter_context(breaker.call())
        other(failure(FailureKind.CONTENT_FILTER), owed.append)
    assert owed == [failure()]


def test_a_call_without_a_result_counts_for_nothing() -> None:
    """One that was cut off by its own run's trouble does not keep the others from being counted."""
    breaker = Breaker("model")
    with pytest.raises(ZeroDivisionError), breaker.call():
        raise ZeroDivisionError
    with pytest.raises(EndpointError):
        fed(breaker, *[failure()] * LIMIT)


# --- in a run ---------------------------------------------------------------------------------------------


class Turning:
    """Answers, and after so many calls of a kind fails each of that kind; until it is mended."""

    def __init__(self, kind: str, after: int, response: Response) -> None:
        self._healthy = scripted_answers()
        self._kind = kind
        self._left = after
        self._response = response
        self.mended = False

    def __call__(self, seen: Seen, attempt: int) -> Response:
        """Answer, or fail."""
        if seen.kind == self._kind and not self.mended:
            self._left -= 1
            if self._left < 0:
                return replace(self._response, delay=0.02)
        return self._healthy(seen, attempt)


def asked(server: ScriptedServer, kind: str) -> int:
    """Return how many requests of a kind came."""
    return sum(seen.kind == kind for seen in server.requests)


@pytest.mark.parametrize("response", [REFUSED, FILTERED], ids=["rejected", "content_filter"])
def test_a_model_that_fails_for_all_stops_the_run_and_all_is_owed(tmp_path: Path, response: Response) -> None:
    """With 64 in flight it is told after few more than fifty calls; mended, the run has lost nothing."""
    data = write_data(tmp_path / "data", each=14)
    turning = Turning("model", 20, response)
    with ScriptedServer(turning) as server:
        settings: dict[str, Any] = {"eval_batch_size": 64, "no_judge": True}
        with pytest.raises(EndpointError, match=f"last {LIMIT} calls to the model") as caught:
            run_task(config(server.url, data, tmp_path / "run", **settings))
        assert caught.value.exit_code == 4
        assert 20 + LIMIT <= asked(server, "model") <= 20 + LIMIT + 64
        stored = load_run(tmp_path / "run").summary.counts
        assert set(stored["failures"]) == {"endpoint_failed"}
        turning.mended = True
        run = run_task(config(server.url, data, tmp_path / "run", **settings))
    answers = [line for line in lines(run.path / "answers.jsonl") if "failure" not in line]
    assert len(answers) == len({line["key"] for line in answers}) == 112
    assert run.summary.counts["failures"] == {}


@pytest.mark.parametrize(
    ("response", "kind"),
    [(REFUSED, "endpoint_failed"), (Response(text="Both are good."), "unparseable")],
)
def test_a_judge_that_fails_for_all_stops_the_run(tmp_path: Path, response: Response, kind: str) -> None:
    """What would have lasted is owed again; what is owed again anyway keeps its name."""
    data = write_data(tmp_path / "data", each=6)
    turning = Turning("judge", 10, response)
    with ScriptedServer(turning) as server:
        settings = config(server.url, data, tmp_path / "run", judge_batch_size=8)
        with pytest.raises(EndpointError, match=f"last {LIMIT} calls to the judge") as caught:
            run_task(settings)
        assert caught.value.exit_code == 5
        assert set(load_run(tmp_path / "run").summary.counts["failures"]) == {kind}
        turning.mended = True
        run = run_task(settings)
    assert run.summary.counts["scored"] == 48
    verdicts = [line for line in lines(run.path / "verdicts.jsonl") if "failure" not in line]
    assert len(verdicts) == len({(line["key"], line["order"]) for line in verdicts}) == 96


def every(nth: int, response: Response) -> Script:
    """Answer each nth request to the model, and fail the others at once."""
    healthy = scripted_answers()
    count = 0

    def script(seen: Seen, attempt: int) -> Response:
        nonlocal count
        count += 1
        return replace(healthy(seen, attempt), delay=0.2) if count % nth == 1 else response

    return script


def test_a_success_now_and_then_lets_the_run_end(tmp_path: Path) -> None:
    """With 128 in flight, and answers that take their time, failures that come at once break nothing."""
    data = write_data(tmp_path / "data", each=20)
    with ScriptedServer(every(10, REFUSED)) as server:
        settings = {"eval_batch_size": 128, "no_judge": True}
        run = run_task(config(server.url, data, tmp_path / "run", **settings))
    counts = run.summary.counts
    assert counts["failures"] == {"rejected": 160 - 16}


def test_runs_that_are_judged_together_share_the_count(tmp_path: Path) -> None:
    """A judge that fails for all is told after fifty verdicts, however few each run has."""
    data = write_data(tmp_path / "data", each=1)
    turning = Turning("judge", 2, REFUSED)
    with ScriptedServer(turning) as server:
        runs = [
            run_task(config(server.url, data, tmp_path / f"run-{number}", no_judge=True)).path
            for number in range(6)
        ]
        judging = config(server.url, data)
        asking = {"judge_model_args": judging.judge_model_args, "judge_batch_size": 4}
        with pytest.raises(EndpointError, match=f"last {LIMIT} calls to the judge"):
            judge_runs(runs, asking)
        assert asked(server, "judge") <= 2 + LIMIT + 8
