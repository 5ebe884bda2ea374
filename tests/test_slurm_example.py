"""The Slurm example, run as Slurm would run it: by bash, with its variables and its signals."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from otoscope.runs import load_run
from otoscope.store import ANSWERS, SAMPLES
from tests.scripted_server import Response, ScriptedServer, Seen, scripted_answers
from tests.support import REPOSITORY, environment, lines, write_data

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="clusters with Slurm run Linux")

EXAMPLE = REPOSITORY / "examples" / "slurm"
ANSWER, JUDGE = EXAMPLE / "answer.sbatch", EXAMPLE / "judge.sh"
GUIDE = (REPOSITORY / "docs" / "how-to" / "slurm.md").read_text(encoding="utf-8")


@pytest.fixture
def node(tmp_path: Path) -> dict[str, str]:
    """Give the environment of a node: commands on its path, and what the user exports."""
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, does in (
        ("otoscope", f'exec {sys.executable} -X utf8 -m otoscope "$@"'),
        ("scontrol", f'echo "$@" >>{tmp_path}/scontrol.log'),
    ):
        (commands / name).write_text(f"#!/bin/sh\n{does}\n", encoding="utf-8")
        (commands / name).chmod(0o755)
    data = write_data(tmp_path / "data", each=3)
    return environment(
        PATH=f"{commands}{os.pathsep}{os.environ['PATH']}",
        MODEL="scripted-model",
        DATA=str(data),
        RUNS=str(tmp_path / "runs of mine"),
        OTOSCOPE_JUDGE_API_KEY="judge-key",
        OTOSCOPE_API_KEY="model-key",
    )


def task(number: int, count: int = 2, **more: str) -> dict[str, str]:
    """Return the variables that Slurm sets for a task of an array."""
    return {
        "SLURM_JOB_ID": str(4711 + number),
        "SLURM_ARRAY_JOB_ID": "4711",
        "SLURM_ARRAY_TASK_ID": str(number),
        "SLURM_ARRAY_TASK_COUNT": str(count),
        **more,
    }


def run(script: Path, environ: Mapping[str, str], *more: str) -> subprocess.CompletedProcess[str]:
    """Run a script to its end."""
    return subprocess.run(
        ["bash", str(script), *more],
        env=environ,
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )


class Gated:
    """A server's script that answers some requests, and from then on none."""

    def __init__(self, few: int) -> None:
        self._few = few
        self.asked = 0

    def __call__(self, seen: Seen, attempt: int) -> Response:
        """Answer, or leave the request waiting."""
        self.asked += 1
        return scripted_answers()(seen, attempt) if self.asked <= self._few else Response(hang=True)


def interrupted(environ: Mapping[str, str], server: ScriptedServer, number: signal.Signals, log: Path) -> int:
    """Start a task, send it a signal once it is in the middle of its work, and return how it ended."""
    gate = Gated(4)
    server.script = gate
    with log.open("wb") as file:
        words = ["bash", str(ANSWER), "--eval-batch-size", "1"]
        process = subprocess.Popen(words, env=environ, stdout=file, stderr=subprocess.STDOUT)
        try:
            while gate.asked <= 4 and process.poll() is None:
                time.sleep(0.01)
            process.send_signal(number)
            code = process.wait(timeout=60)
        finally:
            process.kill()
            process.wait()
    server.script = scripted_answers()
    return code


@pytest.mark.parametrize("script", [ANSWER, JUDGE], ids=lambda path: path.name)
def test_the_scripts_are_sound(script: Path) -> None:
    """They parse, a shell may run them, and shellcheck, where it is there, finds nothing."""
    subprocess.run(["bash", "-n", str(script)], check=True)
    assert os.access(script, os.X_OK)
    if shellcheck := shutil.which("shellcheck"):
        subprocess.run([shellcheck, "--severity", "warning", str(script)], check=True)


def test_an_array_a_preempted_task_then_the_judge(node: dict[str, str], tmp_path: Path) -> None:
    """Two tasks, one preempted and started again; merged and judged they are one run."""
    with ScriptedServer() as server:
        node["API_URL"] = server.url
        code = interrupted({**node, **task(0)}, server, signal.SIGTERM, tmp_path / "0.log")
        assert code == 143, (tmp_path / "0.log").read_text(encoding="utf-8")
        assert not (tmp_path / "scontrol.log").exists()
        first = Path(node["RUNS"]) / "shard-1-of-2"
        stored = len(lines(first / ANSWERS))
        assert 0 < stored < len(lines(first / SAMPLES)) == 12
        early = run(JUDGE, {**node, "JUDGE_MODEL": "scripted-judge"})
        assert (early.returncode, "missing shards: 2/2" in early.stderr) == (6, True)
        for number, more in ((1, {}), (0, {"SLURM_RESTART_COUNT": "1"})):
            done = run(ANSWER, {**node, **task(number), **more})
            assert done.returncode == 0, done.stderr
        judging = {**node, "JUDGE_MODEL": "scripted-judge"}
        judged = run(JUDGE, judging, "--judge-api-url", server.url)
        assert judged.returncode == 0, judged.stderr
        count = len(server.requests)
        again = run(JUDGE, judging, "--judge-api-url", server.url)
        assert again.returncode == 0, again.stderr
        assert len(server.requests) == count
    merged = load_run(Path(node["RUNS"]) / "merged")
    assert merged.summary.counts["scored"] == 24
    assert merged.summary.usage["model"]["replies"] == 24
    assert "missing_shards" not in merged.manifest["selection"]


def test_a_task_that_is_out_of_time_goes_back_into_the_queue(node: dict[str, str], tmp_path: Path) -> None:
    """At USR1 it stops with everything stored, and asks Slurm to start just this task again."""
    with ScriptedServer() as server:
        node["API_URL"] = server.url
        code = interrupted({**node, **task(1)}, server, signal.SIGUSR1, tmp_path / "1.log")
        assert code == 143, (tmp_path / "1.log").read_text(encoding="utf-8")
        assert (tmp_path / "scontrol.log").read_text(encoding="utf-8") == "requeue 4711_1\n"
        done = run(ANSWER, {**node, **task(1), "SLURM_RESTART_COUNT": "1"})
        assert done.returncode == 0, done.stderr
    assert load_run(Path(node["RUNS"]) / "shard-2-of-2").summary.answers["answered"] == 12


def test_a_lock_that_a_killed_job_left_on_another_node_is_taken(node: dict[str, str], tmp_path: Path) -> None:
    """A job that Slurm starts again does not wait for the sign of life of the one before it."""
    with ScriptedServer() as server:
        node["API_URL"] = server.url
        assert run(ANSWER, {**node, **task(0)}).returncode == 0
        lock = Path(node["RUNS"]) / "shard-1-of-2" / ".lock"
        lock.mkdir()
        owner = '{"token": "a1", "since": "now", "host": "node17", "boot_id": "b", "pid_namespace": "n", '
        (lock / "owner.json").write_text(owner + '"pid": 1, "process_start": "1"}', encoding="utf-8")
        refused = run(ANSWER, {**node, **task(0)})
        assert (refused.returncode, "node17" in refused.stderr) == (6, True)
        assert run(ANSWER, {**node, **task(0), "SLURM_RESTART_COUNT": "1"}).returncode == 0


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[str]:
    """Give a command that serves the model at ``$port``, and writes down its process."""
    pid = tmp_path / "server.pid"
    script = REPOSITORY / "tests" / "scripted_server.py"
    yield f'echo $$ >{pid}; sleep 0.5; exec {sys.executable} {script} --port "$port"'
    # It was told to end with the script, and may take a moment for it; if not, this waits for ever.
    with contextlib.suppress(ProcessLookupError):
        while True:
            os.kill(int(pid.read_text(encoding="utf-8")), 0)
            time.sleep(0.01)


def test_a_task_serves_the_model_itself_and_ends_the_server(
    node: dict[str, str], serving: str, tmp_path: Path
) -> None:
    """Without API_URL the server of SERVER_COMMAND is started, waited for, and ended with the task."""
    node["PYTHONPATH"] = f"{REPOSITORY}{os.pathsep}{node.get('PYTHONPATH', '')}"
    port = str(20_000 + os.getpid() % 10_000)
    variables = {**node, **task(0, 1), "SHARDS": "1", "SERVER_COMMAND": serving, "PORT": port}
    done = run(ANSWER, variables)
    assert done.returncode == 0, done.stderr
    assert load_run(Path(node["RUNS"]) / "shard-1-of-1").summary.answers["answered"] == 24


def test_a_task_ends_with_its_server(node: dict[str, str], serving: str, tmp_path: Path) -> None:
    """A server that does not come up, or ends in the middle, is not waited for; the task goes on later."""
    node["PYTHONPATH"] = f"{REPOSITORY}{os.pathsep}{node.get('PYTHONPATH', '')}"
    variables = {**node, **task(0), "PORT": str(20_000 + os.getpid() % 10_000)}
    answers = Path(node["RUNS"]) / "shard-1-of-2" / ANSWERS
    in_the_middle = f"(until [ -s '{answers}' ]; do sleep 0.1; done; kill $$) & {serving}"
    for command in ("echo no GPU >&2; exit 3", in_the_middle):
        done = run(ANSWER, {**variables, "SERVER_COMMAND": command}, "--rpm", "20")
        assert (done.returncode, "The model's server has ended" in done.stderr) == (4, True), done.stderr
    assert 0 < len(lines(answers)) < 12
    done = run(ANSWER, {**variables, "SERVER_COMMAND": serving})
    assert done.returncode == 0, done.stderr


def test_mistakes_are_said_before_anything_is_done(node: dict[str, str]) -> None:
    """A variable that is not set, and a single task without SHARDS, which would be another share."""
    del node["DATA"]
    done = run(ANSWER, {**node, **task(0)})
    assert done.returncode != 0
    assert "DATA: the folder that contains Chat/" in done.stderr
    for number in (0, 2):
        done = run(
            ANSWER, {**node, "DATA": "/nowhere", "API_URL": "http://127.0.0.1:9/v1", **task(number, 1)}
        )
        assert (done.returncode, "set SHARDS to the number of shards" in done.stderr) == (2, True)
    assert not Path(node["RUNS"]).exists()
    judged = run(JUDGE, node)
    assert (judged.returncode, "not a run" in judged.stderr) == (6, True)


def test_the_guide_and_the_scripts_say_the_same() -> None:
    """What the guide names is in the scripts, and the documented shard is what they compute."""
    scripts = ANSWER.read_text(encoding="utf-8") + JUDGE.read_text(encoding="utf-8")
    for name in set(re.findall(r"`([A-Z][A-Z_]+)(?:=[^`]*)?`", GUIDE)) - {
        "SIGKILL",
        "SIGTERM",
        "OTOSCOPE_CACHE",
    }:
        assert name in scripts, name
    for option in set(re.findall(r"`(--(?:requeue|signal|array|open-mode)[^`]*)`", GUIDE)):
        assert option.split("=")[0] in scripts, option
    assert "--shard $((SLURM_ARRAY_TASK_ID+1))/$SLURM_ARRAY_TASK_COUNT" in GUIDE
