"""Models in Python on Ray itself, on the CPU: a Ray of the run's own, and a cluster that was there before.

The real command as a process, real workers, real deaths. Ray's processes are known by a variable of their
environment, so that none is left over unnoticed, and none is taken for ours.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from otoscope.backends.ray_workers import Needs, places
from otoscope.config import RaySettings
from otoscope.errors import ConfigError
from tests.support import command, environment, lines, otoscope, write_data

pytestmark = [pytest.mark.extras, pytest.mark.filterwarnings("ignore")]

TASK = "speech_QA"
PATIENCE = 120.0
"""Seconds for whatever has to happen: a busy machine starts Ray slowly."""
MARK = "TEST_OF_RAY"


def until(happens: Callable[[], Any]) -> Any:
    """Wait until something is true, and return it."""
    deadline = time.monotonic() + PATIENCE
    while not (found := happens()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)
    return found


def marked(mark: str, name: str = "") -> list[int]:
    """Return the processes that have this mark in their environment, and a name in their command."""
    found = []
    for place in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            ours = place.name.isdigit() and f"{MARK}={mark}".encode() in (place / "environ").read_bytes()
            if ours and name.encode() in (place / "cmdline").read_bytes():
                found.append(int(place.name))
    return found


@pytest.fixture
def mark() -> Iterator[str]:
    """Give a mark; what still has it at the end is ended."""
    mark = secrets.token_hex(8)
    yield mark
    for left in marked(mark):
        with contextlib.suppress(ProcessLookupError):
            os.kill(left, signal.SIGKILL)


@dataclass(frozen=True)
class Cluster:
    """A cluster with two CPUs, and two GPUs that are none."""

    address: str
    environ: Mapping[str, str]
    mark: str


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Give a cluster that lives as long as these tests."""
    # Short: names of sockets lie below, and have to have less than 108 characters.
    folder = Path(tempfile.mkdtemp(prefix="ray"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mark = secrets.token_hex(8)
    environ = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(16),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    told = folder / "told"
    with told.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            [
                Path(sys.executable).with_name("ray"), "start", "--head", "--block", f"--port={port}",
                "--num-cpus=2", "--num-gpus=2", "--object-store-memory=100000000",
                "--include-dashboard=false", f"--temp-dir={folder}",
            ],
            env=environment(**environ, **{MARK: mark}), stdout=output, stderr=output,
        )  # fmt: skip
    try:
        until(lambda: "Ray runtime started" in told.read_text(encoding="utf-8") or process.poll() is not None)
        assert process.poll() is None, told.read_text(encoding="utf-8")
        yield Cluster(f"127.0.0.1:{port}", environ, mark)
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(40)
        for left in marked(mark):
            os.kill(left, signal.SIGKILL)
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a data set with eight samples of one task."""
    return write_data(tmp_path / "data", each=8, tasks=[TASK])


def asking(model: str, *more: str) -> list[str]:
    """Return the arguments that have a model answer on Ray, without a judge."""
    return [
        "eval", "--model", model, "--data", "data", "--no-judge", "--run-dir", "run", "--engine", "ray", *more
    ]  # fmt: skip


Begin = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def begun(tmp_path: Path) -> Iterator[Begin]:
    """Give what starts the real command, which is ended with the test."""
    processes: list[subprocess.Popen[str]] = []

    def begin(*arguments: str, **environ: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command(*arguments),
            cwd=tmp_path,
            env=environment(**environ),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )
        processes.append(process)
        return process

    yield begin
    for process in processes:
        if process.poll() is None:
            process.kill()
            process.communicate()


def run_on(cluster: Cluster, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the real command to its end, on the cluster."""
    return otoscope(
        *arguments, "--ray-address", cluster.address, cwd=folder, environ=cluster.environ, timeout=PATIENCE
    )


def stored(folder: Path) -> dict[str, list[Any]]:
    """Return what is stored of each sample: its answers, or the kind of its failure."""
    found: dict[str, list[Any]] = {}
    for line in lines(folder / "run" / "answers.jsonl"):
        failure = line.get("failure")
        found.setdefault(line["key"], []).append(failure["kind"] if failure else line["text"])
    return found


def answers(*without: int, of: int = 8) -> dict[str, list[Any]]:
    """Return what is stored where each sample was answered once, but for those without an answer."""
    keys = {number: f"{TASK}/tones/clip_{number}.wav#{number}" for number in range(of)}
    return {keys[n]: [f"What is heard in clip {n} of {TASK}? 800"] for n in range(of) if n not in without}


def text(written: str | bytes) -> str:
    """Return what was written without the ends of lines."""
    return " ".join((written if isinstance(written, str) else written.decode()).split())


HEARS = """
import os, time

class Model:
    def __init__(self):
        {built}
        with open("built.txt", "a") as file:
            file.write(f"{os.getpid()} {os.environ.get('CUDA_VISIBLE_DEVICES')}\\n")

    def answer(self, audio, question):
        {first}
        return f"{question} {len(audio.samples())}"

    def once(self, name):
        try:
            with open(name, "x") as file:
                file.write(str(os.getpid()))
        except FileExistsError:
            return False
        return True

class Batches(Model):
    def answer_batch(self, questions):
        time.sleep(0.2)
        return [self.answer(*question) for question in questions]
"""


def write_model(folder: Path, first: str = "pass", built: str = "pass") -> None:
    """Write a model that hears clips, and does something ``first``, or when it is ``built``."""
    text = HEARS.replace("{first}", first).replace("{built}", built)
    (folder / "model.py").write_text(text, encoding="utf-8")


# --- what fits --------------------------------------------------------------------------------------------

GPUS = {"GPU": 4.0, "CPU": 8.0}


@pytest.mark.parametrize(
    ("gpus", "workers", "nodes", "needs"),
    [
        (None, None, [{"CPU": 2.0}], Needs(2, 0, 1)),
        (None, 1, [{"CPU": 8.0}], Needs(1, 0, 8)),
        (None, 3, [{"CPU": 8.0}, {"CPU": 3.0}], Needs(3, 0, 3)),
        (None, None, [GPUS, GPUS], Needs(8, 1, 0)),
        (2.0, None, [GPUS, {"GPU": 3.0, "CPU": 1.0}], Needs(3, 2, 0)),
        (0.3, None, [GPUS], Needs(12, 0.3, 0)),
        (0.0, None, [GPUS], Needs(8, 0, 1)),
        (1.0, 3, [GPUS], Needs(3, 1, 0)),
    ],
)
def test_as_many_models_as_fit(
    gpus: float | None, workers: int | None, nodes: list[Mapping[str, float]], needs: Needs
) -> None:
    """One a GPU, or a CPU; none that would have to lie on two machines, or share of two GPUs."""
    assert places(RaySettings(address="auto", gpus=gpus, workers=workers), nodes) == needs


@pytest.mark.parametrize(
    ("gpus", "workers", "nodes", "said"),
    [
        (2.0, None, [{"CPU": 2.0}], "asked for 2 GPUs a model, and Ray has 0 GPUs and 2 CPUs on 1 node"),
        (8.0, None, [GPUS, GPUS], "asked for 8 GPUs a model, and Ray has 8 GPUs and 16 CPUs on 2 nodes"),
        (None, 5, [GPUS], "asked for 5 models with 1 GPU each, and Ray has 4 GPUs and 8 CPUs on 1 node"),
        (None, 3, [{"CPU": 2.0}], "asked for 3 models with 1 CPU each, and Ray has 0 GPUs and 2 CPUs"),
        (None, None, [{"CPU": 0.0}], "asked for 1 CPU a model, and Ray has 0 GPUs and 0 CPUs on 1 node"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_there_is(
    gpus: float | None, workers: int | None, nodes: list[Mapping[str, float]], said: str
) -> None:
    """In numbers, of what was asked for and of what there is."""
    with pytest.raises(ConfigError, match=re.escape(said)):
        places(RaySettings(address="auto", gpus=gpus, workers=workers), nodes)


# --- a Ray of the run's own -------------------------------------------------------------------------------


def test_a_worker_that_is_killed_costs_its_samples_one_try(
    tmp_path: Path, begun: Begin, data: Path, mark: str
) -> None:
    """Each sample is answered once, the notices name the worker, and nothing of Ray is left afterwards."""
    write_model(tmp_path, "if 'clip 3' in question and self.once('killed.txt'):\n            time.sleep(600)")
    process = begun(*asking("model.py:Model", "--ray-workers", "2"), **{MARK: mark})
    killed = int(
        until(
            lambda: (
                (tmp_path / "killed.txt").exists() and (tmp_path / "killed.txt").read_text(encoding="utf-8")
            )
        )
    )
    assert killed in marked(mark)
    os.kill(killed, signal.SIGKILL)
    out, told = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, told
    assert stored(tmp_path) == answers()
    assert "8 answered" in out
    (name,) = re.findall(rf"(worker \d of 2 \([\d.]+, process {killed}\)) is ready", told)
    assert f"{name} was lost: its process ended" in told
    assert len(re.findall(r"worker \d of 2 \(.*\) is ready", told)) >= 2
    replies = [line["replies"][0] for line in lines(tmp_path / "run" / "answers.jsonl")]
    assert Counter(reply["attempts"] for reply in replies) == {1: 7, 2: 1}
    assert all(re.fullmatch(r"ray worker [12] of 2 \([\d.]+\)", reply["endpoint"]) for reply in replies)
    until(lambda: not marked(mark))


def test_a_killed_run_is_gone_on_with_and_leaves_no_worker(
    tmp_path: Path, begun: Begin, data: Path, mark: str
) -> None:
    """Models go with a run that gets SIGKILL; the same command asks only what was in flight once more.

    Two helpers of Ray's, which hold none, look for a minute whether what they belong to comes back.
    """
    write_model(
        tmp_path,
        "open('asked.txt', 'a').write(question + '\\n')\n"
        "        if 'clip 4' in question and self.once('reached.txt'): time.sleep(600)",
    )
    arguments = asking("model.py:Model", "--ray-workers", "2")
    process = begun(*arguments, **{MARK: mark})
    until(lambda: (tmp_path / "reached.txt").exists() and len(stored(tmp_path)) >= 3)
    until(lambda: len(marked(mark, "OtoscopeWorker")) == 2)
    process.kill()
    process.communicate()
    until(lambda: not marked(mark, "OtoscopeWorker") and not marked(mark, "raylet"))
    done = otoscope(*arguments, cwd=tmp_path, environ={MARK: mark}, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert stored(tmp_path) == answers()
    asked = Counter((tmp_path / "asked.txt").read_text(encoding="utf-8").splitlines())
    assert len(asked) == 8
    assert sum(asked.values()) <= 10


# --- on a cluster -----------------------------------------------------------------------------------------


def test_a_cluster_is_joined_with_one_model_for_each_gpu(
    tmp_path: Path, data: Path, cluster: Cluster
) -> None:
    """Batches are batches; each model sees a GPU of its own; the cluster lives on, without our workers."""
    write_model(tmp_path)
    done = run_on(cluster, tmp_path, *asking("model.py:Batches", "--eval-batch-size", "2"))
    assert done.returncode == 0, done.stderr
    assert stored(tmp_path) == answers()
    built = [line.split() for line in (tmp_path / "built.txt").read_text(encoding="utf-8").splitlines()]
    assert sorted(gpu for _, gpu in built) == ["0", "1"]
    endpoints = {line["replies"][0]["endpoint"] for line in lines(tmp_path / "run" / "answers.jsonl")}
    assert {re.sub(r"[\d.]+,", "IP,", one) for one in endpoints} <= {
        f"ray worker {number} of 2 (IP, GPU {gpu})" for number in (1, 2) for gpu in (0, 1)
    }
    until(lambda: not any(Path(f"/proc/{process}").exists() for process, _ in built))
    assert marked(cluster.mark)


def test_workers_on_a_cluster_go_with_a_killed_run(
    tmp_path: Path, begun: Begin, data: Path, cluster: Cluster
) -> None:
    """And are no hindrance for the next one."""
    write_model(tmp_path, "if self.once('reached.txt'): time.sleep(600)")
    arguments = asking("model.py:Model", "--ray-address", cluster.address)
    process = begun(*arguments, **cluster.environ)
    worker = until(
        lambda: (tmp_path / "reached.txt").exists() and (tmp_path / "reached.txt").read_text(encoding="utf-8")
    )
    process.kill()
    process.communicate()
    until(lambda: not Path(f"/proc/{worker}").exists())
    done = run_on(cluster, tmp_path, *asking("model.py:Model"))
    assert done.returncode == 0, done.stderr
    assert stored(tmp_path) == answers()


def test_a_stopped_run_names_its_cluster_again(
    tmp_path: Path, begun: Begin, data: Path, cluster: Cluster
) -> None:
    """Which no run directory's word is enough to join: Ctrl-C, and the printed command goes on."""
    write_model(tmp_path, "if 'clip 2' in question and self.once('reached.txt'): time.sleep(600)")
    arguments = asking("model.py:Model", "--ray-address", cluster.address, "--gpus-per-model", "0.5")
    process = begun(*arguments, "--ray-workers", "1", **cluster.environ)
    until((tmp_path / "reached.txt").exists)
    process.send_signal(signal.SIGINT)
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    words = told.split("Resume with:\n  otoscope ")[1].split("\n")[0].split()
    assert words == [
        "eval", "--use-cache", f"{tmp_path}/run", "--model", f"{tmp_path}/model.py:Model", "--engine", "ray",
        "--gpus-per-model", "0.5", "--ray-workers", "1", "--ray-address", cluster.address, "--no-judge",
    ]  # fmt: skip
    done = otoscope(*words, cwd=tmp_path, environ=cluster.environ, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert stored(tmp_path) == answers()


def test_a_sample_that_kills_its_workers_is_a_failure(tmp_path: Path, data: Path, cluster: Cluster) -> None:
    """The second time it was alone, so that those of its batch are answered."""
    write_model(tmp_path, "if 'clip 5' in question: os.kill(os.getpid(), 9)")
    done = run_on(cluster, tmp_path, *asking("model.py:Batches", "--eval-batch-size", "4"))
    assert done.returncode == 1, done.stderr
    found = stored(tmp_path)
    assert found.pop(f"{TASK}/tones/clip_5.wav#5") == ["server_crash"]
    assert found == answers(5)
    assert "two workers were lost while they were asked this" in text(done.stderr)
    assert "--retry-failed server_crash" in done.stderr


def test_a_call_that_hangs_costs_its_worker(tmp_path: Path, data: Path, cluster: Cluster) -> None:
    """It is a timeout; its process is gone, another one is built, and all others are answered."""
    write_model(tmp_path, "if 'clip 3' in question: self.once('hung.txt'); time.sleep(600)")
    arguments = asking("model.py:Model", "--ray-workers", "1", "--timeout", "2")
    done = run_on(cluster, tmp_path, *arguments)
    assert done.returncode == 1, done.stderr
    found = stored(tmp_path)
    assert found.pop(f"{TASK}/tones/clip_3.wav#3") == ["timeout"]
    assert found == answers(3)
    assert "was lost: a call did not return within 2 s (--timeout), and it was ended" in text(done.stderr)
    assert len((tmp_path / "built.txt").read_text(encoding="utf-8").splitlines()) == 2
    assert not Path(f"/proc/{(tmp_path / 'hung.txt').read_text(encoding='utf-8')}").exists()


def test_a_model_that_never_returns_is_given_up(tmp_path: Path, data: Path, cluster: Cluster) -> None:
    """After three calls in a row."""
    write_model(tmp_path, "time.sleep(600 if 'clip 0' not in question else 0)")
    done = run_on(cluster, tmp_path, *asking("model.py:Model", "--timeout", "1"))
    assert done.returncode == 4
    assert "3 calls in a row of model.py:Model did not return within 1 s" in text(done.stderr), done.stderr


@pytest.mark.parametrize(
    ("built", "said"),
    [
        ("raise OSError('no weights here')", "raise OSError('no weights here')"),
        ("os.kill(os.getpid(), 9)", "model.py:Model could not be built, its process did not live"),
    ],
)
def test_a_model_that_cannot_be_built_anywhere_stops_the_run(
    tmp_path: Path, data: Path, cluster: Cluster, built: str, said: str
) -> None:
    """With what it raised, or that it died; nothing was asked, and the run can be gone on with."""
    write_model(tmp_path, built=built)
    done = run_on(cluster, tmp_path, *asking("model.py:Model", "--ray-workers", "2"))
    assert done.returncode == 4
    assert said in done.stderr
    assert lines(tmp_path / "run" / "answers.jsonl") == []


def test_what_the_cluster_has_not_is_refused_before_anything(
    tmp_path: Path, data: Path, cluster: Cluster
) -> None:
    """GPUs that are not there; a cluster that is not there, or wants a token; no run is begun."""
    write_model(tmp_path)
    arguments = asking("model.py:Model", "--gpus-per-model", "3")
    refused = run_on(cluster, tmp_path, *arguments)
    assert "asked for 3 GPUs a model, and Ray has 2 GPUs and 2 CPUs on 1 node" in text(refused.stderr)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{free.getsockname()[1]}"
        gone = otoscope(*asking("model.py:Model", "--ray-address", nobody), cwd=tmp_path)
    assert f"--ray-address {nobody}: the cluster could not be joined: nobody answers there" in gone.stderr
    assert (refused.returncode, gone.returncode) == (2, 2)
    assert not (tmp_path / "run").exists()


def test_a_cluster_that_others_use_is_not_waited_for(
    tmp_path: Path, begun: Begin, data: Path, cluster: Cluster
) -> None:
    """What is free is told beside what there is."""
    write_model(tmp_path, "if self.once('reached.txt'): time.sleep(600)")
    other = begun(*asking("model.py:Model", "--ray-address", cluster.address), **cluster.environ)
    until((tmp_path / "reached.txt").exists)
    until(lambda: len((tmp_path / "built.txt").read_text(encoding="utf-8").splitlines()) == 2)
    refused = run_on(cluster, tmp_path, *asking("model.py:Model", "--run-dir", "another"))
    other.kill()
    other.communicate()
    assert refused.returncode == 2
    assert "has 2 GPUs and 2 CPUs on 1 node, of which 0 GPUs and 2 CPUs are free" in text(refused.stderr)


OBJECTS = """
import sys, threading
from otoscope import evaluate
from otoscope.errors import ConfigError
from beside import Base

class Model(Base):
    def __init__(self, tail):
        self.tail = tail
    def answer(self, audio, question):
        return self.said(question) + self.tail(audio)

def evaluated(model, run_dir):
    return evaluate(model=model, data="data", run_dir=run_dir, no_judge=True, engine="ray",
                    ray_address=sys.argv[1], gpus_per_model=0, limit=2)

if __name__ == "__main__":
    built = Model(lambda audio: f" {len(audio.samples())}")
    for number, model in enumerate([built, built.answer, lambda audio, question: question]):
        run = evaluated(model, f"run{number}")
        print([outcome.answer.text for outcome in run.outcomes()])
    try:
        evaluated(Model(threading.Lock()), "none")
    except ConfigError as error:
        print(error)
"""


def test_objects_are_sent_to_the_workers(tmp_path: Path, data: Path, cluster: Cluster) -> None:
    """With code of files that no worker could import; what cannot be sent is refused."""
    (tmp_path / "script").mkdir()
    (tmp_path / "beside.py").write_text(
        "class Base:\n    def said(self, question):\n        return question[:13]\n", encoding="utf-8"
    )
    (tmp_path / "script" / "objects.py").write_text(OBJECTS, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "script/objects.py", cluster.address],
        cwd=tmp_path,
        env=environment(
            **cluster.environ, PYTHONPATH=f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
        ),
        capture_output=True,
        encoding="utf-8",
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "['What is heard 800', 'What is heard 800']\n" * 2 in done.stdout
    assert f"['What is heard in clip 0 of {TASK}?', 'What is heard in clip 1 of {TASK}?']" in done.stdout
    assert "cannot be sent to another process: TypeError: cannot pickle '_thread.lock' object" in done.stdout
    assert "Give a class" in done.stdout
