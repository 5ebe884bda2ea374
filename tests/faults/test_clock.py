"""A clock that is set back: in the middle of a run, or between two parts of one."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.faults.conftest import Tally
from tests.faults.driver import (
    IN_FLIGHT,
    Evaluation,
    Whole,
    end_of,
    evaluation_script,
    kill,
    line_count,
    requests_of,
    stored_lines,
    until,
)
from tests.scripted_server import ScriptedServer

pytestmark = [pytest.mark.faults, pytest.mark.kind("clock")]

DAY = 86400.0


@pytest.mark.full(shift=[-400 * DAY, 90.0])
@pytest.mark.parametrize("shift", [-3600.0, -400 * DAY, 90.0], ids=["hour", "year", "forward"])
def test_a_clock_that_is_set_in_a_run_changes_no_number(
    shift: float, whole: Whole, folder: Path, tally: Tally
) -> None:
    """No time goes negative, nothing waits for the clock to come back, and every number is the same."""
    switch = folder / "clock is off"
    with ScriptedServer(evaluation_script()) as server:
        evaluation = Evaluation(server, whole, folder)
        process = evaluation.start(clock=[str(switch), shift])
        assert until(lambda: requests_of(server, "judge") >= 15, process)
        switch.touch()
        ended = end_of(process)
        assert ended.code == 0, ended.stderr
        replies = [reply for line in stored_lines(evaluation.run_dir) for reply in line["replies"]]
        assert all(reply["latency"] >= 0 for reply in replies)
        # The command did see the other clock.
        moments = [reply["started_at"] for reply in replies]
        assert max(moments) - min(moments) > abs(shift) / 2
        tally.add("clock set in the run", evaluation.findings())


def age(path: Path, seconds: float) -> None:
    """Date a file as if the clock had been ahead, or behind, when it was written."""
    then = time.time() + seconds
    os.utime(path, (then, then))


@pytest.mark.full(ahead=[-DAY])
@pytest.mark.parametrize("ahead", [DAY, -DAY], ids=["ahead", "behind"])
def test_a_clock_that_is_set_between_changes_no_number(
    ahead: float, whole: Whole, folder: Path, tally: Tally
) -> None:
    """A killed run whose files, lock included, are dated tomorrow or yesterday goes on at once."""
    switch = folder / "clock is off"
    with ScriptedServer(evaluation_script()) as server:
        evaluation = Evaluation(server, whole, folder)
        process = evaluation.start()
        assert until(lambda: line_count(evaluation.run_dir) >= 20, process)
        assert kill(process)
        evaluation.interrupted(in_flight=IN_FLIGHT)
        for path in evaluation.run_dir.rglob("*"):
            age(path, ahead)
        switch.touch()
        resumed = evaluation.run(clock=[str(switch), -ahead])
        assert resumed.code == 0, resumed.stderr
        tally.add("clock set before going on", evaluation.findings())
