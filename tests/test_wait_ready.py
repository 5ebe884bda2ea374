"""--wait-ready: the real command against servers that start late, die, or never come."""

from __future__ import annotations

import signal
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from otoscope import load_run, run_task
from otoscope.chat_api.server import PROBE_TEXT
from tests.scripted_server import (
    Response,
    Script,
    ScriptedServer,
    Seen,
    Supervisor,
    scripted_answers,
)
from tests.support import command, config, environment, flags, otoscope, write_data

SAMPLES = 8


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Give a small data set."""
    return write_data(tmp_path / "data", each=1)


def is_probe(seen: Seen) -> bool:
    """Whether a request only asks whether a completion works."""
    return seen.text == PROBE_TEXT


def served(server: ScriptedServer) -> Counter[str]:
    """Return how often each request of the run was answered with a completion."""
    seen = (one for one in server.requests if one.served_at is not None and not is_probe(one))
    return Counter(one.digest for one in seen)


def waiting(server: ScriptedServer, data: Path, run: Path, *more: str, seconds: float = 30) -> list[str]:
    """Return the command that evaluates and waits for the server."""
    batch = ("--eval-batch-size", "4", "--judge-batch-size", "4")
    return flags(server.url, data, "--run-dir", str(run), "--wait-ready", str(seconds), *batch, *more)


def killed_once(mark: str) -> Script:
    """Answer; die of the first request of the run that has this text."""
    healthy = scripted_answers()
    left = 1

    def script(seen: Seen, attempt: int) -> Response:
        nonlocal left
        if left and mark in seen.text:
            left -= 1
            return Response(die=True)
        return healthy(seen, attempt)

    return script


def begun(arguments: list[str]) -> subprocess.Popen[str]:
    """Start the command."""
    return subprocess.Popen(command(*arguments), env=environment(), stderr=subprocess.PIPE, encoding="utf-8")


def told(process: subprocess.Popen[str], words: str, times: int = 1) -> str:
    """Read what a command says until it has said these words so often."""
    assert process.stderr is not None
    said = ""
    while said.count(words) < times:
        line = process.stderr.readline()
        assert line, said
        said += line
    return said


def test_a_server_that_starts_late(data: Path, tmp_path: Path) -> None:
    """The run begins when the server does; each request is paid for once."""
    server = ScriptedServer()
    server.start()
    server.stop()
    process = begun(waiting(server, data, tmp_path / "run"))
    told(process, "is not ready", times=2)
    server.start()
    _, rest = process.communicate(timeout=30)
    server.stop()
    assert process.returncode == 0, rest
    assert rest.count("is ready after") == 2
    assert sum(map(is_probe, server.requests)) == 2
    assert len(served(server)) == 3 * SAMPLES
    assert set(served(server).values()) == {1}


def test_a_server_that_stays_away(data: Path, tmp_path: Path) -> None:
    """When the time is over the run stops with the role's exit code, says how to go on, and goes on."""
    run = tmp_path / "run"
    with (
        ScriptedServer() as model,
        ScriptedServer(killed_once("clip 3 of")) as judge,
    ):
        arguments = waiting(model, data, run, "--judge-api-url", judge.url, seconds=0.5)
        arguments = [
            word.replace(f'"api_url": "{model.url}"', f'"api_url": "{judge.url}"') for word in arguments
        ]
        done = otoscope(*arguments)
        assert done.returncode == 5, done.stderr
        assert "within the 0.5 s of --wait-ready" in done.stderr
        assert "otoscope eval --use-cache" in done.stderr
        assert "Traceback" not in done.stderr
        judge.start()
        again = otoscope(*arguments)
        assert again.returncode == 0, again.stderr
    assert load_run(run).summary.counts["scored"] == SAMPLES


@pytest.mark.parametrize("hanging", [False, True])
def test_ctrl_c_while_waiting_stops_at_once(data: Path, tmp_path: Path, hanging: bool) -> None:
    """Neither a probe that hangs nor the wait for the next one holds it up."""
    server = ScriptedServer(lambda *_: Response(hang=True))
    server.start()
    if not hanging:
        server.stop()
    process = begun(waiting(server, data, tmp_path / "run", seconds=3600))
    if hanging:
        while not server.requests:
            assert process.poll() is None
    else:
        told(process, "is not ready")
    process.send_signal(signal.SIGINT)
    _, rest = process.communicate(timeout=30)
    server.stop()
    assert process.returncode == 130, rest
    assert "Traceback" not in rest


def test_the_first_sample_may_be_the_one_that_kills(data: Path, tmp_path: Path) -> None:
    """It goes alone, kills the server twice, and fails by name once another one was served."""
    healthy = scripted_answers()

    def script(seen: Seen, attempt: int) -> Response:
        return Response(die=True) if "clip 0 of" in seen.text else healthy(seen, attempt)

    with ScriptedServer(script) as server, Supervisor(server, 0.2) as supervisor:
        run = run_task(config(server.url, data, tmp_path / "run", wait_ready=30))
    assert supervisor.deaths == 2
    assert run.summary.counts["failures"] == {"server_crash": 1}
    assert run.summary.counts["scored"] == SAMPLES - 1
