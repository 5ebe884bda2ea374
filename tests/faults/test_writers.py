"""Two processes on one run directory, on one host and on two: lock, sign of life, take-over."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from otoscope.judge import CORRECTION
from otoscope.lock import RENEW_SECONDS, STALE_SECONDS
from otoscope.pipeline import LOOK_OVERDUE
from otoscope.store import ANSWERS, SAMPLES, SUMMARY, VERDICTS
from tests.faults.conftest import Tally
from tests.faults.driver import (
    IN_FLIGHT,
    Evaluation,
    Whole,
    end_of,
    evaluation_script,
    kill,
    line_count,
    until,
)
from tests.scripted_server import Response, Script, ScriptedServer, Seen

pytestmark = [pytest.mark.faults, pytest.mark.kind("two writers")]

ANOTHER = "another-host"


# On one host a stopped process still is the owner, however long it is silent.
LOSSES = [("this host", "taken over"), ("another host", "silent"), ("another host", "taken over")]


def another_host() -> Sequence[str]:
    """Return what starts a process on a host of another name; skips where the machine refuses that.

    Of all that tells hosts apart the name is what differs: the kernel, and so its boot id, is the same.
    """
    prefix = ("unshare", "--uts", "sh", "-c", f'hostname {ANOTHER} && exec "$@"', "sh")
    if shutil.which("unshare") is None or shutil.which("hostname") is None:
        pytest.skip("unshare or hostname is not there")
    tried = subprocess.run([*prefix, "hostname"], capture_output=True, encoding="utf-8", check=False)
    if tried.stdout.strip() != ANOTHER:
        pytest.skip(f"no other host name can be given: {tried.stderr.strip()}")
    return prefix


def held(go_on: threading.Event, *, after: int) -> Script:
    """Return a script that answers so many requests, and the others once it is told to."""
    healthy = evaluation_script()
    left = itertools.count(after, -1)

    def script(seen: Seen, attempt: int) -> Response:
        response = healthy(seen, attempt)
        return response if next(left) > 0 else dataclasses.replace(response, after=go_on)

    return script


def prefix_of(where: str) -> Sequence[str]:
    """Return what starts a process on this host or on another one."""
    return another_host() if where == "another host" else ()


def lose_signs_of_life(run: Path) -> None:
    """Let the lock look as if its owner had been silent for longer than an owner elsewhere may be."""
    then = time.time() - STALE_SECONDS - 5
    os.utime(run / ".lock" / "owner.json", (then, then))


def owner_host(run: Path) -> str:
    """Return the host that the lock names."""
    return str(json.loads((run / ".lock" / "owner.json").read_bytes())["host"])


@pytest.mark.full(where=["this host"])
@pytest.mark.parametrize("where", ["this host", "another host"])
def test_a_second_process_is_refused_and_harms_nothing(
    where: str, whole: Whole, folder: Path, tally: Tally
) -> None:
    """While one works, another one exits with 6 and names the first; it sends nothing."""
    prefix = prefix_of(where)
    go_on = threading.Event()
    with ScriptedServer(held(go_on, after=10)) as server:
        evaluation = Evaluation(server, whole, folder)
        first = evaluation.start()
        assert until(lambda: len(server.requests) > 10, first)
        second = evaluation.run(prefix=prefix)
        assert second.code == 6, second.stderr
        assert f"pid {first.pid} on host" in second.stderr
        assert "--take-over" in second.stderr
        go_on.set()
        ended = end_of(first)
        assert ended.code == 0, ended.stderr
        tally.add(f"a second process, on {where}", evaluation.findings())


@pytest.mark.rounds(full=2, short=1)
def test_of_many_that_start_at_once_one_works(seed: int, whole: Whole, folder: Path, tally: Tally) -> None:
    """Processes on two hosts that start on a new run directory: one does it, the others say who."""
    hosts = [prefix_of(where) for where in ("this host", "another host")]
    go_on = threading.Event()
    with ScriptedServer(held(go_on, after=10)) as server:
        evaluation = Evaluation(server, whole, folder)
        started = [evaluation.start(prefix=hosts[(number + seed) % 2]) for number in range(4)]
        assert until(lambda: sum(process.poll() is not None for process in started) == 3)
        go_on.set()
        ended = [end_of(process) for process in started]
        assert sorted(one.code for one in ended) == [0, 6, 6, 6], [one.stderr for one in ended]
        tally.add("four processes at once, on two hosts", evaluation.findings(), 3)


def test_a_killed_owner_on_another_host_is_followed_when_it_has_been_silent(
    whole: Whole, folder: Path, tally: Tally
) -> None:
    """Until then nobody can know that it is dead, and is told how long to wait."""
    prefix = another_host()
    with ScriptedServer(evaluation_script()) as server:
        evaluation = Evaluation(server, whole, folder)
        first = evaluation.start(prefix=prefix)
        assert until(lambda: line_count(evaluation.run_dir) >= 20, first)
        assert owner_host(evaluation.run_dir) == ANOTHER
        assert kill(first)
        evaluation.interrupted(in_flight=IN_FLIGHT)
        early = evaluation.run()
        assert early.code == 6, early.stderr
        assert ANOTHER in early.stderr
        assert f"{STALE_SECONDS:.0f} s after its last sign of life" in early.stderr
        lose_signs_of_life(evaluation.run_dir)
        ended = evaluation.run()
        assert ended.code == 0, ended.stderr
        tally.add("owner killed on another host", evaluation.findings())


@pytest.mark.full(where=["this host"])
@pytest.mark.full(way=["taken over"])
@pytest.mark.parametrize(("where", "way"), LOSSES)
def test_an_owner_that_lost_its_lock_writes_nothing_more(
    where: str, way: str, whole: Whole, folder: Path, tally: Tally
) -> None:
    """Stopped for a while, and followed by another one meanwhile, it exits with 6 when it wakes up."""
    with ScriptedServer(evaluation_script(model=0.05, judge=0.05)) as server:
        evaluation = Evaluation(server, whole, folder)
        first = evaluation.start(prefix=prefix_of(where))
        assert until(lambda: line_count(evaluation.run_dir) >= 20, first)
        first.send_signal(signal.SIGSTOP)
        try:
            # For replies on their way to the stopped process; and a while without a look at the lock.
            time.sleep(LOOK_OVERDUE + 0.5)
            evaluation.interrupted(in_flight=IN_FLIGHT)
            if way == "silent":
                lose_signs_of_life(evaluation.run_dir)
                second = evaluation.run()
            else:
                second = evaluation.run("--take-over")
        finally:
            first.send_signal(signal.SIGCONT)
        assert second.code == 0, second.stderr
        asked = len(server.requests)
        ended = end_of(first)
        assert ended.code == 6, ended.stderr
        assert "Traceback" not in ended.stderr
        # It begins no other sample: what it may still send was on its way, or goes on with what was.
        assert len(server.requests) <= asked + IN_FLIGHT
        tally.add(f"an owner on {where} that was {way}", evaluation.findings(stray=IN_FLIGHT))


def test_an_owner_that_lost_its_lock_keeps_no_reply_that_did_not_serve(whole: Whole, folder: Path) -> None:
    """Replies on their way when it was stopped, each of which would be stored before it is asked again."""
    healthy = evaluation_script(model=0.02, judge=0.2)

    def never_clear(seen: Seen, attempt: int) -> Response:
        if seen.kind == "judge" and CORRECTION not in seen.text:
            return Response(text="Both of them are good.", delay=0.2)
        return healthy(seen, attempt)

    with ScriptedServer(never_clear) as server:
        evaluation = Evaluation(server, whole, folder)
        first = evaluation.start()
        assert until(lambda: line_count(evaluation.run_dir) >= 20, first)
        # Between two bursts of replies: what is being written at this moment is written when it wakes up.
        assert until(lambda: _is_quiet(evaluation.run_dir), first)
        first.send_signal(signal.SIGSTOP)
        try:
            time.sleep(LOOK_OVERDUE + 0.5)
            second = evaluation.run("--take-over")
            files = [evaluation.run_dir / name for name in (ANSWERS, VERDICTS, SAMPLES, SUMMARY)]
            before = [file.read_bytes() for file in files]
        finally:
            first.send_signal(signal.SIGCONT)
        assert second.code == 0, second.stderr
        assert end_of(first).code == 6
        assert [file.read_bytes() for file in files] == before


@pytest.mark.full
def test_an_owner_gives_signs_of_life(whole: Whole, folder: Path, tally: Tally) -> None:
    """The lock of a run that takes longer than that is renewed in time, however little happens."""
    with ScriptedServer(evaluation_script()) as server:
        healthy = server.script
        server.script = evaluation_script(model=0.01, judge=60)
        evaluation = Evaluation(server, whole, folder)
        process = evaluation.start()
        owner = evaluation.run_dir / ".lock" / "owner.json"
        assert until(owner.exists, process)
        first = owner.stat().st_mtime_ns
        assert until(lambda: owner.stat().st_mtime_ns > first, process, seconds=3 * RENEW_SECONDS)
        assert kill(process)
        evaluation.interrupted(in_flight=IN_FLIGHT)
        server.script = healthy
        ended = evaluation.run()
        assert ended.code == 0, ended.stderr
        tally.add("owner killed after a sign of life", evaluation.findings())


def _is_quiet(run_dir: Path) -> bool:
    """Whether nothing was appended for a moment that is short beside a judge's delay."""
    before = line_count(run_dir)
    time.sleep(0.06)
    return line_count(run_dir) == before
