"""Ctrl-C once and twice, SIGTERM and SIGHUP, in every phase."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.conftest import Tally
from tests.faults.driver import (
    IN_FLIGHT,
    Evaluation,
    Whole,
    end_of,
    evaluation_script,
    requests_of,
    spin,
    until,
)
from tests.scripted_server import ScriptedServer

pytestmark = [pytest.mark.faults, pytest.mark.kind("signals")]

NAMES = {signal.SIGINT: "SIGINT", signal.SIGTERM: "SIGTERM", signal.SIGHUP: "SIGHUP"}
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 143}


def moment(evaluation: Evaluation, phase: str, dice: random.Random) -> Callable[[], bool]:
    """Return what becomes true at a random moment of a phase."""
    server, calls = evaluation.server, evaluation.whole.calls
    match phase:
        case "opening":
            return lambda: (
                "open manifest.json" in evaluation.steps() or "open .lock/owner.json" in evaluation.steps()
            )
        case "answering":
            target = dice.randint(1, calls["model"] - 2)
            return lambda: requests_of(server, "model") >= target
        case "judging":
            target = dice.randint(1, calls["judge"] - 2)
            return lambda: requests_of(server, "judge") >= target
        case _:
            return lambda: "open .summary.json.tmp" in evaluation.steps()


CHOSEN = [
    (signal.SIGINT, "opening"),
    (signal.SIGINT, "answering"),
    (signal.SIGINT, "judging"),
    (signal.SIGINT, "summarising"),
    (signal.SIGTERM, "opening"),
    (signal.SIGTERM, "answering"),
    (signal.SIGTERM, "judging"),
    (signal.SIGTERM, "summarising"),
    (signal.SIGHUP, "judging"),
]


@pytest.mark.full(phase=["opening", "summarising"])
@pytest.mark.full(number=[signal.SIGHUP])
@pytest.mark.full(number=[signal.SIGINT], phase=["judging"])
@pytest.mark.full(number=[signal.SIGTERM], phase=["answering"])
@pytest.mark.parametrize(
    ("number", "phase"), CHOSEN, ids=[f"{NAMES[number]} {phase}" for number, phase in CHOSEN]
)
def test_a_signal_costs_nothing_at_all(
    number: signal.Signals, phase: str, whole: Whole, folder: Path, tally: Tally
) -> None:
    """One signal lets calls in flight end: none is lost, none is repeated, and the way back is printed."""
    dice = random.Random(f"{number} {phase}")  # noqa: S311 (a test's dice)
    with ScriptedServer(evaluation_script(model=0.05, judge=0.05)) as server:
        evaluation = Evaluation(server, whole, folder)
        process = evaluation.start()
        assert until(moment(evaluation, phase, dice), process)
        spin(dice, 0.02)
        process.send_signal(number)
        ended = end_of(process)
        # One that comes when the work is done, or before it began, finds nothing that needs care.
        early_or_late = {-number, 0} if phase in ("opening", "summarising") else set()
        assert ended.code in {CODES[number], *early_or_late}, ended.stderr
        if ended.code == CODES[number] and phase in ("answering", "judging"):
            assert f"otoscope eval --use-cache {evaluation.run_dir}" in ended.stderr
        assert "Traceback" not in ended.stderr
        evaluation.interrupted(in_flight=0)
        resumed = evaluation.run()
        assert resumed.code == 0, resumed.stderr
        tally.add(f"{NAMES[number]}", evaluation.findings())


@pytest.mark.full(phase=["answering"])
@pytest.mark.rounds(full=2, short=1)
@pytest.mark.parametrize("phase", ["answering", "judging"])
def test_a_second_signal_gives_up_calls_in_flight_alone(
    phase: str, seed: int, whole: Whole, folder: Path, tally: Tally
) -> None:
    """Ctrl-C twice, or with a SIGTERM after it, does not wait; what was stored stays and counts."""
    dice = random.Random(f"{phase} {seed}")  # noqa: S311 (a test's dice)
    second = dice.choice([signal.SIGINT, signal.SIGTERM])
    with ScriptedServer(evaluation_script(model=0.3, judge=0.3)) as server:
        evaluation = Evaluation(server, whole, folder)
        process = evaluation.start()
        assert until(moment(evaluation, phase, dice), process)
        process.send_signal(signal.SIGINT)
        spin(dice, 0.2)
        process.send_signal(second)
        ended = end_of(process)
        assert ended.code == CODES[second], ended.stderr
        assert "Traceback" not in ended.stderr
        evaluation.interrupted(in_flight=IN_FLIGHT)
        server.script = evaluation_script()
        resumed = evaluation.run()
        assert resumed.code == 0, resumed.stderr
        tally.add("SIGINT twice, or with SIGTERM", evaluation.findings())
