"""Servers that fail, lie, stall and storm, and connections that break."""

from __future__ import annotations

import dataclasses
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from email.utils import formatdate
from functools import partial
from pathlib import Path

import pytest

from tests.faults.conftest import Tally
from tests.faults.driver import (
    DEADLINE,
    IN_FLIGHT,
    Evaluation,
    Whole,
    end_of,
    evaluation_script,
    numbers,
    small_data,
    uninterrupted,
    until,
)
from tests.scripted_server import Kind, Response, Script, ScriptedServer, Seen, early, failing

pytestmark = [pytest.mark.faults, pytest.mark.kind("network")]

MANY = 50 << 20
TIMEOUT = 2.0
"""Seconds for an attempt, where the server lets more pass."""
ROLES: Sequence[tuple[Kind, int]] = (("model", 4), ("judge", 5))
"""Who misbehaves, and the exit code of a run that this stops."""


@dataclass(frozen=True)
class Fault:
    """One way in which a server fails."""

    response: Response
    harmless: bool = False
    """Whether the reply is a whole one, and to be read as such."""
    stops: bool = False
    """Whether one such reply ends the run: no other request would fare better."""
    lasting: str | None = None
    """The kind under which a sample has failed for good, so that only ``--retry-failed`` asks again."""
    gives_up: bool = False
    """Whether a sample that met it is not tried again in the same run."""


FAULTS = {
    "401 before the body": Fault(Response(status=401, before_body=True), stops=True),
    "413 before the body": Fault(Response(status=413, before_body=True), lasting="too_large", gives_up=True),
    "429 before the body": Fault(Response(status=429, before_body=True)),
    "500": Fault(Response(status=500)),
    "200 with an HTML page": Fault(
        Response(body=b"<!DOCTYPE html><title>8 7</title><p>8 7</p>", content_type="text/html; charset=utf-8")
    ),
    "truncated JSON": Fault(
        Response(body=b'{"id":"x","choices":[{"index":0,"finish_reason":"stop","message":{"content":"8 7"}}')
    ),
    "empty body": Fault(Response(body=b"")),
    "body of 50 MB": Fault(Response(body=b" " * MANY), gives_up=True),
    "reply of 50 MB": Fault(
        Response(body=b'{"choices":[{"message":{"content":"' + b"8 7 " * (MANY // 4) + b'"}}]}'),
        gives_up=True,
    ),
    "redirect": Fault(
        Response(status=302, headers={"Location": "http://127.0.0.1:9/v1/chat/completions"}),
        lasting="rejected",
        gives_up=True,
    ),
    "body cut": Fault(Response(cut=40)),
    "body stalls": Fault(Response(cut=40, hang=True)),
    "no reply": Fault(Response(hang=True)),
    "connection reset": Fault(Response(drop=True)),
    "upload cut": Fault(Response(cut_upload=True)),
    "two lengths": Fault(Response(body=b"{}", more_headers=(("Content-Length", "3"),))),
    "drip too slow": Fault(Response(drip=TIMEOUT / 5)),
    "slow drip": Fault(Response(drip=TIMEOUT / 50), harmless=True),
    "wrong content type": Fault(Response(content_type="text/html"), harmless=True),
    "duplicate headers": Fault(
        Response(
            more_headers=(
                ("Content-Type", "text/html"),
                ("X-Request-Id", "b"),
                ("Server", "a"),
                ("Server", "b"),
            )
        ),
        harmless=True,
    ),
    "closed at once": Fault(Response(silent_close=True), harmless=True),
    "closed under the next request": Fault(Response(break_next=True), harmless=True),
}


ALWAYS = [
    "401 before the body", "413 before the body", "429 before the body", "500", "200 with an HTML page",
    "truncated JSON", "empty body", "reply of 50 MB", "redirect", "body cut", "no reply", "connection reset",
]  # fmt: skip
"""What a server is also tried with that does nothing else."""


class Counting:
    """Gives a fault instead of an answer, and counts how often."""

    def __init__(self, fault: Fault, healthy: Script) -> None:
        self._fault = fault
        self._healthy = healthy
        self.times = 0

    def __call__(self, seen: Seen, attempt: int) -> Response:
        """Return the fault's response; a harmless one with the healthy answer inside."""
        response = self._fault.response
        self.times += 1
        if not self._fault.harmless:
            return response
        answer = self._healthy(seen, attempt)
        return with_manners(answer, response)

    @property
    def script(self) -> Script:
        """The script, which is asked before the body where the fault needs it."""
        return early(self) if self._fault.response.is_early else self


def with_manners(answer: Response, manners: Response) -> Response:
    """Return an answer that is delivered as another response is."""
    names = ("drip", "content_type", "more_headers", "silent_close", "break_next")
    return dataclasses.replace(answer, **{name: getattr(manners, name) for name in names})


def slow(name: str) -> bool:
    """Whether a fault takes the time of an attempt's timeout."""
    return name in ("body stalls", "no reply", "drip too slow", "slow drip")


def patience(name: str) -> float:
    """Return the seconds that an attempt may take: few only where the fault is that more pass."""
    return TIMEOUT if slow(name) else DEADLINE


def share(name: str) -> float:
    """Return the share of requests that meet a fault: less, where each takes time or memory."""
    return 0.07 if slow(name) or "50 MB" in name else 0.3


def resumed(evaluation: Evaluation, fault: Fault) -> None:
    """Let the evaluation go on with a healthy server."""
    for server in (evaluation.server, evaluation.judge):
        server.script = evaluation_script()
    again = ("--retry-failed", fault.lasting) if fault.lasting else ()
    ended = evaluation.run(*again)
    assert ended.code == 0, ended.stderr


@pytest.mark.rounds(full=1)
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_now_and_then_costs_nothing(
    name: str, seed: int, whole: Whole, folder: Path, tally: Tally
) -> None:
    """What fails for some requests is tried again, in the run or by the next; the numbers are the same."""
    fault = FAULTS[name]
    bad = Counting(fault, evaluation_script())
    script = failing(
        evaluation_script(),
        share(name),
        bad.script,
        kinds=("model", "judge"),
        first_attempt_only=not fault.stops,
        seed=seed,
    )
    with ScriptedServer(script) as server:
        evaluation = Evaluation(server, whole, folder, timeout=patience(name))
        ended = evaluation.run()
        codes = {4, 5} if fault.stops else {0, 1, 4, 5} if fault.gives_up else {0}
        assert ended.code in codes, (ended.code, ended.stderr)
        assert "Traceback" not in ended.stderr
        evaluation.interrupted(in_flight=0)
        if ended.code or fault.gives_up:
            resumed(evaluation, fault)
        tally.add(name, evaluation.findings(), bad.times)
    assert bad.times


@pytest.mark.rounds(full=1)
@pytest.mark.parametrize("name", ALWAYS)
def test_a_server_that_always_fails_stops_the_run_resumably(
    name: str, seed: int, whole: Whole, folder: Path, tally: Tally
) -> None:
    """No score comes out of it, and what the other endpoint was paid for is kept."""
    fault = FAULTS[name]
    kind, code = ROLES[list(FAULTS).index(name) % 2]
    bad = Counting(fault, evaluation_script())
    with ScriptedServer(failing(evaluation_script(), 1.0, bad.script, kinds=(kind,), seed=seed)) as server:
        # The first request of its length cannot be told from any other before it was read.
        retries = 0 if slow(name) else 2
        evaluation = Evaluation(server, whole, folder, timeout=patience(name), retries=retries)
        ended = evaluation.run()
        # Where each sample has its own lasting failure, the run ends, and says that too many failed.
        assert ended.code == code or (fault.lasting and ended.code == 1), (ended.code, ended.stderr)
        assert "Traceback" not in ended.stderr
        evaluation.interrupted(in_flight=0)
        if bad.script is bad:
            stored = numbers(evaluation.run_dir)
            assert stored["counts"]["scored"] == 0
            assert stored["average"]["gpt_score"] is None
        resumed(evaluation, fault)
        tally.add(name, evaluation.findings(), bad.times)
    assert bad.times


@pytest.mark.rounds(full=2, short=1)
def test_all_faults_together_cost_nothing(seed: int, whole: Whole, folder: Path, tally: Tally) -> None:
    """Whatever a server does, once or twice, to whichever request: the numbers are the same."""
    healthy = evaluation_script()
    kinds = {name: fault for name, fault in FAULTS.items() if not (fault.stops or fault.response.is_early)}
    times: Counter[str] = Counter()

    def script(seen: Seen, attempt: int) -> Response:
        dice = random.Random(f"{seed} {attempt} {seen.digest}")  # noqa: S311 (a test's dice)
        name = dice.choice(list(kinds))
        if attempt > 1 or dice.random() > (0.1 if slow(name) or "50 MB" in name else 0.6):
            return healthy(seen, attempt)
        times[name] += 1
        answer = kinds[name].response
        return with_manners(healthy(seen, attempt), answer) if kinds[name].harmless else answer

    with ScriptedServer(script) as server:
        evaluation = Evaluation(server, whole, folder, timeout=TIMEOUT)
        # No request is met by more than two faults, and no sample has more than six requests.
        for _ in range(8):
            ended = evaluation.run("--retry-failed", "rejected")
            assert "Traceback" not in ended.stderr
            assert ended.code in (0, 1, 4, 5), ended.stderr
            evaluation.interrupted(in_flight=0)
            if ended.code == 0 and numbers(evaluation.run_dir)["counts"]["failed"] == 1:
                break
        for name, count in times.items():
            tally.add(name, evaluation.findings(), count)


@pytest.mark.full(kind=["model"])
@pytest.mark.parametrize("kind", ["model", "judge"])
def test_no_redirect_is_followed_and_no_key_leaves(
    kind: Kind, whole: Whole, folder: Path, tally: Tally
) -> None:
    """A redirect to another server stops the run; that server hears nothing, and no key."""
    with ScriptedServer(evaluation_script()) as elsewhere, ScriptedServer() as server:
        away = Response(status=307, headers={"Location": f"{elsewhere.url}/chat/completions"})
        server.script = failing(evaluation_script(), 1.0, away, kinds=(kind,))
        evaluation = Evaluation(server, whole, folder)
        ended = evaluation.run()
        assert ended.code == dict(ROLES)[kind], ended.stderr
        assert elsewhere.url in ended.stderr
        assert elsewhere.requests == []
        evaluation.interrupted(in_flight=0)
        resumed(evaluation, FAULTS["redirect"])
        tally.add("redirect", evaluation.findings())


# --- storms -----------------------------------------------------------------------------------------------


def http_date(ahead: float = 0) -> str:
    """Return a time so many seconds from now as headers have it: whole seconds."""
    return formatdate(time.time() + ahead, usegmt=True)


STORMS: Mapping[str, Callable[[], dict[str, str]]] = {
    "429 storm": dict,
    "429 storm, Retry-After in seconds": lambda: {"Retry-After": "1"},
    "429 storm, Retry-After as a date": lambda: {"Date": http_date(), "Retry-After": http_date(1)},
    "429 storm, Retry-After as a date, no Date": lambda: {"Retry-After": http_date(2)},
    "429 storm, the server's clock an hour ahead": lambda: {
        "Date": http_date(3600),
        "Retry-After": http_date(3601),
    },
    "429 storm, Retry-After unreadable": lambda: {"Retry-After": "soon"},
}


class Storm:
    """Refuses every request for a time, once the server has answered a number of them."""

    def __init__(self, begins_after: int, seconds: float, headers: Callable[[], dict[str, str]]) -> None:
        self._healthy = evaluation_script()
        self._left = begins_after
        self._seconds = seconds
        self._headers = headers
        self._ends_at: float | None = None
        self.times = 0

    def __call__(self, seen: Seen, attempt: int) -> Response:
        """Answer, or refuse."""
        self._left -= 1
        if self._left >= 0:
            return self._healthy(seen, attempt)
        now = time.monotonic()
        self._ends_at = self._ends_at or now + self._seconds
        if now >= self._ends_at:
            return self._healthy(seen, attempt)
        self.times += 1
        return Response(status=429, headers=self._headers())


@pytest.mark.full(name=list(STORMS)[3:])
@pytest.mark.rounds(full=1, short=1)
@pytest.mark.parametrize("name", STORMS)
def test_a_storm_of_429_is_waited_out(name: str, seed: int, whole: Whole, folder: Path, tally: Tally) -> None:
    """Told how long to wait, all requests wait and none fails; not told, what gave up is asked again."""
    dice = random.Random(f"{name} {seed}")  # noqa: S311 (a test's dice)
    storm = Storm(dice.randint(5, 50), 1.2, STORMS[name])
    with ScriptedServer(storm) as server:
        evaluation = Evaluation(server, whole, folder)
        ended = evaluation.run()
        told = STORMS[name]().get("Retry-After", "soon") != "soon"
        assert ended.code in ({0} if told else {0, 1, 4, 5}), ended.stderr
        assert "Traceback" not in ended.stderr
        evaluation.interrupted(in_flight=0)
        if not told:
            resumed(evaluation, FAULTS["500"])
        tally.add(name, evaluation.findings(), storm.times)
    assert storm.times


# --- hangs ------------------------------------------------------------------------------------------------


@pytest.mark.rounds(full=1, short=1)
def test_one_request_of_a_hundred_hangs(
    seed: int, short: bool, tmp_path: Path, folder: Path, tally: Tally
) -> None:
    """A short timeout turns each hang into another try: one run is enough, and it ends."""
    data = small_data(tmp_path / "data", each=5 if short else 12)
    whole = uninterrupted(data, tmp_path / "whole")
    dice = random.Random(seed)  # noqa: S311 (a test's dice)
    bodies = sorted(whole.served)
    hung = set(dice.sample(bodies, max(2, len(bodies) // 100)))
    healthy = evaluation_script()

    def script(seen: Seen, attempt: int) -> Response:
        return Response(hang=True) if seen.digest in hung and attempt == 0 else healthy(seen, attempt)

    with ScriptedServer(script) as server:
        evaluation = Evaluation(server, whole, folder, timeout=TIMEOUT)
        ended = evaluation.run()
        assert ended.code == 0, ended.stderr
        tally.add("1 % of requests hang", evaluation.findings(), len(hung))


def reached(server: ScriptedServer, requests: int) -> bool:
    """Whether so many requests have come."""
    return len(server.requests) >= requests


@pytest.mark.rounds(full=2, short=1)
def test_every_connection_cut_at_once_loses_nothing(
    seed: int, whole: Whole, folder: Path, tally: Tally
) -> None:
    """A network that goes away under all calls, also for a time, costs another try of those in flight."""
    dice = random.Random(seed)  # noqa: S311 (a test's dice)
    cuts = 3
    with ScriptedServer(evaluation_script()) as server:
        evaluation = Evaluation(server, whole, folder)
        process = evaluation.start()
        for cut in range(1, cuts + 1):
            target = cut * len(whole.served) // (cuts + 1) + dice.randint(0, 5)
            assert until(partial(reached, server, target), process)
            server.drop_connections()
        ended = end_of(process)
        assert ended.code == 0, ended.stderr
        # A reply may have been on its way.
        evaluation.interrupted(in_flight=IN_FLIGHT * cuts)
        tally.add("every connection cut", evaluation.findings(), cuts)


@pytest.mark.full(kind=["model"])
@pytest.mark.rounds(full=2, short=1)
@pytest.mark.parametrize("kind", ["model", "judge"])
def test_a_server_that_goes_away_stops_the_run_with_nothing_lost(
    kind: Kind, seed: int, whole: Whole, folder: Path, tally: Tally
) -> None:
    """Gone in the middle of a run, an endpoint stops it with its exit code; back again, the run goes on."""
    dice = random.Random(f"{kind} {seed}")  # noqa: S311 (a test's dice)
    target = dice.randint(3, whole.calls[kind] // 2)
    with ScriptedServer(evaluation_script()) as model, ScriptedServer(evaluation_script()) as judge:
        evaluation = Evaluation(model, whole, folder, judge=judge)
        gone = model if kind == "model" else judge
        process = evaluation.start()
        assert until(lambda: len(gone.requests) >= target, process)
        gone.stop()
        ended = end_of(process)
        assert ended.code == dict(ROLES)[kind], ended.stderr
        assert "Traceback" not in ended.stderr
        evaluation.interrupted(in_flight=IN_FLIGHT)
        gone.start()
        resumed(evaluation, FAULTS["500"])
        tally.add("server gone", evaluation.findings())
