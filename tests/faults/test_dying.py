"""Servers that die: once, for good, of one sample each time, behind one endpoint or two."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from otoscope import load_run
from tests.faults.conftest import Tally
from tests.faults.driver import (
    IN_FLIGHT,
    Evaluation,
    Whole,
    end_of,
    evaluation_script,
    is_probe,
    requests_of,
    small_data,
    uninterrupted,
    until,
)
from tests.scripted_server import Kind, Response, Script, ScriptedServer, Seen, Supervisor

pytestmark = [pytest.mark.faults, pytest.mark.kind("dying servers")]

CODES = {"model": 4, "judge": 5}
WAIT = ("--wait-ready", "60")
POISON = "clip 7 of"
"""Of the question of the sample that servers die of."""


def killed_by(fits: Callable[[Seen], bool]) -> Script:
    """Answer; die of every request that fits."""
    healthy = evaluation_script()

    def script(seen: Seen, attempt: int) -> Response:
        return Response(die=True) if not is_probe(seen) and fits(seen) else healthy(seen, attempt)

    return script


def number(*targets: int) -> Callable[[Seen], bool]:
    """Return what fits the requests with these numbers, counted over all of the run's own."""
    count = 0

    def fits(_seen: Seen) -> bool:
        nonlocal count
        count += 1
        return count in targets

    return fits


@pytest.mark.rounds(full=4, short=1)
def test_a_server_that_dies_and_comes_back_costs_nothing(
    seed: int, whole: Whole, folder: Path, tally: Tally
) -> None:
    """Both endpoints are behind it; the run waits for it, each time, and ends as if nothing had been."""
    dice = random.Random(seed)  # noqa: S311 (a test's dice)
    # What goes alone after one death must not meet the next one: it would be taken for what kills.
    deaths = [dice.randint(first, first + 8) for first in (2, 30, 58)]
    with ScriptedServer(killed_by(number(*deaths))) as server, Supervisor(server, 0.3) as supervisor:
        evaluation = Evaluation(server, whole, folder, *WAIT)
        ended = evaluation.run()
        assert ended.code == 0, ended.stderr
        assert "Traceback" not in ended.stderr
        # A reply may have been on its way.
        evaluation.interrupted(in_flight=IN_FLIGHT * len(deaths))
        tally.add("server dies and comes back", evaluation.findings(), supervisor.deaths)
    assert supervisor.deaths == len(deaths)


@pytest.mark.full(kind=["model"])
@pytest.mark.rounds(full=2, short=1)
@pytest.mark.parametrize("kind", ["model", "judge"])
def test_a_sample_that_kills_its_server_each_time_fails_alone(
    kind: Kind, seed: int, whole: Whole, folder: Path, tally: Tally
) -> None:
    """It is a failure by name, which lasts; the rest is paid for once, and the numbers of the rest stand."""
    deadly = killed_by(lambda seen: seen.kind == kind and POISON in seen.text)
    with ScriptedServer(deadly) as server, Supervisor(server, 0.2 + 0.1 * seed) as supervisor:
        evaluation = Evaluation(server, whole, folder, *WAIT)
        ended = evaluation.run()
        # One sample of 24 is always refused, and with this one the coverage is under 0.95.
        assert ended.code == 0, ended.stderr
        evaluation.interrupted(in_flight=IN_FLIGHT * supervisor.deaths)
        counts = load_run(evaluation.run_dir).summary.counts
        assert counts["failures"] == {"content_filter": 1, "server_crash": 1}
        before = len(server.requests)
        assert evaluation.run().code == 0
        assert len(server.requests) == before
        server.script = evaluation_script()
        assert evaluation.run("--retry-failed", "server_crash").code == 0
        tally.add(f"sample kills the {kind}'s server", evaluation.findings(), supervisor.deaths)
    # Alone at last, each call that kills has done so twice: an answer, or the verdicts of both orders.
    assert 2 <= supervisor.deaths <= (2 if kind == "model" else 4)


@pytest.mark.full(kind=["judge"])
@pytest.mark.rounds(full=2, short=1)
@pytest.mark.parametrize("kind", ["model", "judge"])
def test_a_server_that_dies_for_good_stops_the_run_resumably(
    kind: Kind, seed: int, whole: Whole, folder: Path, tally: Tally
) -> None:
    """After the time to wait the run stops with the role's exit code, and goes on with the same command."""
    dice = random.Random(f"{kind} {seed}")  # noqa: S311 (a test's dice)
    target = dice.randint(3, whole.calls[kind] // 2)
    with ScriptedServer(evaluation_script()) as model, ScriptedServer(evaluation_script()) as judge:
        evaluation = Evaluation(model, whole, folder, "--wait-ready", "1", judge=judge)
        gone = model if kind == "model" else judge
        gone.script = killed_by(number(target))
        ended = evaluation.run()
        assert ended.code == CODES[kind], ended.stderr
        assert "--wait-ready" in ended.stderr
        assert "Traceback" not in ended.stderr
        evaluation.interrupted(in_flight=IN_FLIGHT)
        gone.start()
        gone.script = evaluation_script()
        again = evaluation.run()
        assert again.code == 0, again.stderr
        tally.add("server dies for good", evaluation.findings())


@pytest.mark.rounds(full=2)
def test_a_killed_run_whose_server_dies_as_well(seed: int, whole: Whole, folder: Path, tally: Tally) -> None:
    """SIGKILL while the server is away: the next run waits for it, and only what was in flight is lost."""
    dice = random.Random(seed)  # noqa: S311 (a test's dice)
    target = dice.randint(4, 40)
    with ScriptedServer(killed_by(number(target))) as server:
        evaluation = Evaluation(server, whole, folder, *WAIT)
        process = evaluation.start()
        assert until(server.died.is_set, process)
        process.kill()
        end_of(process)
        evaluation.interrupted(in_flight=IN_FLIGHT)
        process = evaluation.start()
        server.script = evaluation_script()
        server.start()
        ended = end_of(process)
        assert ended.code == 0, ended.stderr
        tally.add("server and run die", evaluation.findings())


@pytest.mark.rounds(full=1)
def test_a_judge_that_refuses_all_is_told_early_and_owes_all(
    seed: int, tmp_path: Path, folder: Path, tally: Tally
) -> None:
    """Once it has served, and then refuses every call in the same way, the run stops; mended, it goes on."""
    whole = uninterrupted(small_data(tmp_path / "data", each=5), tmp_path / "whole")
    healthy = evaluation_script()

    def script(seen: Seen, attempt: int) -> Response:
        if seen.kind != "judge" or requests_of(server, "judge") <= 2 + seed:
            return healthy(seen, attempt)
        return Response(status=400, error={"message": "This deployment is disabled."})

    with ScriptedServer(script) as server:
        evaluation = Evaluation(server, whole, folder)
        ended = evaluation.run()
        assert ended.code == CODES["judge"], ended.stderr
        assert "last 50 calls" in ended.stderr
        evaluation.interrupted(in_flight=0)
        server.script = evaluation_script()
        again = evaluation.run()
        assert again.code == 0, again.stderr
        tally.add("every verdict refused", evaluation.findings())
