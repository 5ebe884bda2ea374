"""What the tool itself costs, counted instead of timed: requests, bytes, objects, modules.

Timings are noisy where tests run; ``make bench`` has them. These counts change only when the code does.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import time
import tracemalloc
import wave
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import pytest

from benchmarks import data_sets
from benchmarks.loopback_server import FAULTS, JUDGE, Latencies
from benchmarks.processes import CommandError, Running, Server, measure
from benchmarks.run import Row
from benchmarks.soak import Look, Soaked, criteria, soak
from otoscope import run_task
from otoscope.benchmark import TASKS
from otoscope.records import Event, Judged
from tests.support import REPOSITORY, config, environment, write_data

IO = Path("/proc/self/io")
HOURS = 3600.0


@pytest.fixture(scope="module")
def running_server() -> Iterator[Server]:
    """Give the loopback server as a process of its own."""
    with Server() as server:
        yield server


@pytest.fixture
def server(running_server: Server) -> Server:
    """Give the loopback server, without latencies, its counts at zero."""
    running_server.reset(answer_latency=0, verdict_latency=0)
    return running_server


def evaluate(
    server: Server, data: Path, run: Path, *, on_event: Callable[[Event], None] | None = None
) -> None:
    """Evaluate in this process against the loopback server."""
    settings = config(f"{server.url}/v1", data, run, model="model", judge_args={"model_id": JUDGE})
    run_task(settings, on_event=on_event)


def data_with_clips_of(size: int, root: Path, tasks: tuple[str, ...]) -> Path:
    """Write a data set with one clip of ``size`` bytes of audio for each task."""
    write_data(root, each=1, tasks=tasks, seconds=0)
    for number, path in enumerate(sorted(root.rglob("*.wav"))):
        with wave.open(str(path), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(1)
            file.setframerate(8000)
            # Every clip has bytes of its own.
            file.writeframes(bytes([number]) * size)
    return root


def command(server: Server, data: Path, run: Path) -> list[str]:
    """Return the arguments of an evaluation against the loopback server."""
    url = f"{server.url}/v1"
    return [
        "eval", "--model", "model", "--api-url", url, "--api-key", "k", "--judge-model", JUDGE,
        "--judge-api-url", url, "--judge-api-key", "k", "--data", str(data), "--run-dir", str(run),
        "--no-html",
    ]  # fmt: skip


# --- what a run costs ---------------------------------------------------------------------------------------


def test_a_run_asks_once_for_each_answer_and_verdict(server: Server, tmp_path: Path) -> None:
    """Of 16 samples: 16 answers, 32 verdicts, nothing twice; and a finished run asks for nothing."""
    data = write_data(tmp_path / "data")
    evaluate(server, data, tmp_path / "run")
    stats = server.stats()
    assert stats["requests"] == {"answers": 16, "verdicts": 32}
    assert stats["duplicates"] == {"answers": 0, "verdicts": 0}
    evaluate(server, data, tmp_path / "run")
    assert server.stats()["requests"] == {"answers": 16, "verdicts": 32}


def test_connections_are_used_again(server: Server, tmp_path: Path) -> None:
    """There are no more connections than requests that may be in flight, and those that count here."""
    evaluate(server, write_data(tmp_path / "data", each=8), tmp_path / "run")
    assert server.stats()["requests"]["verdicts"] == 128
    assert server.stats()["connections"] <= 2 * 16 + 2


def test_the_floor_client_sends_the_same_requests(server: Server, tmp_path: Path) -> None:
    """What the floor client sends afterwards is, byte for byte, what the evaluation has sent."""
    data = write_data(tmp_path / "data", seconds=2)
    evaluate(server, data, tmp_path / "run")
    sent = server.stats()
    server.reset(keep_seen=True)
    floor = [sys.executable, str(REPOSITORY / "benchmarks" / "floor_client.py"), str(data)]
    more = ["--url", server.url, "--in-flight", "4", "--output", str(tmp_path / "floor.jsonl")]
    measure([*floor, *more], tmp_path / "log")
    again = server.stats()
    assert again["duplicates"] == again["requests"] == sent["requests"]
    assert again["bytes_in"] == sent["bytes_in"]
    kept = [json.loads(line) for line in (tmp_path / "floor.jsonl").read_text(encoding="utf-8").splitlines()]
    assert sum("answer" in line for line in kept) == 16
    assert sum("verdict" in line for line in kept) == 32


@pytest.mark.skipif(not IO.exists(), reason="the system does not count what is read")
@pytest.mark.parametrize(
    ("size", "tasks", "times"),
    [(1_000_000, tuple(TASKS), 1), (20_000_000, ("sound_QA",), 2)],
    ids=["held in memory until it was sent", "too large for that"],
)
def test_how_often_a_clip_is_read(
    size: int, tasks: tuple[str, ...], times: int, server: Server, tmp_path: Path
) -> None:
    """For each byte more of audio one is read, or two without room to hold it, and 4/3 are sent."""

    def cost(size: int) -> tuple[int, int, int]:
        data = data_with_clips_of(size, tmp_path / f"{size}", tasks)
        server.reset()
        before = _bytes_read()
        evaluate(server, data, tmp_path / f"run-{size}")
        return data_sets.audio_bytes(data), _bytes_read() - before, server.stats()["bytes_in"]

    cost(100)  # what is imported, and read for that, at the first run
    few, many = cost(1_000), cost(1_000 + size)
    audio, read, sent = (b - a for a, b in zip(few, many, strict=True))
    assert audio == len(tasks) * size
    assert read / audio == pytest.approx(times, abs=0.02)
    assert sent / audio == pytest.approx(4 / 3, abs=0.01)


def test_a_clip_is_never_held_whole(server: Server, tmp_path: Path) -> None:
    """A clip too large to be held takes no more memory than a small one, but for the blocks on their way."""

    def peak(size: int) -> int:
        data = data_with_clips_of(size, tmp_path / f"{size}", ("sound_QA",))
        tracemalloc.start()
        try:
            evaluate(server, data, tmp_path / f"run-{size}")
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(100)  # what is imported at the first run
    assert peak(32_000_000) - peak(1_000) < 4_000_000


def test_what_is_held_of_a_sample(server: Server, tmp_path: Path) -> None:
    """Towards the end of a run there are a few objects and kilobytes for each sample, however many."""
    source = write_data(tmp_path / "source", each=4)

    def held(samples: int) -> tuple[int, int]:
        data = data_sets.short_clips(tmp_path, source, samples)
        verdicts = 0
        found = (0, 0)

        def listen(event: Event) -> None:
            nonlocal verdicts, found
            verdicts += isinstance(event, Judged)
            if verdicts == 2 * samples and found == (0, 0):
                gc.collect()
                found = (len(gc.get_objects()), tracemalloc.get_traced_memory()[0])

        tracemalloc.start()
        try:
            evaluate(server, data, tmp_path / f"run-{samples}", on_event=listen)
        finally:
            tracemalloc.stop()
        return found

    held(8)  # what is imported and cached at the first run
    few, many = held(40), held(80)
    objects, size = ((b - a) / 40 for a, b in zip(few, many, strict=True))
    assert objects < OBJECTS_PER_SAMPLE
    assert size < BYTES_PER_SAMPLE


OBJECTS_PER_SAMPLE = 20
BYTES_PER_SAMPLE = 4500


def _bytes_read() -> int:
    return int(dict(line.split(": ") for line in IO.read_text(encoding="utf-8").splitlines())["rchar"])


# --- what a start costs -------------------------------------------------------------------------------------

HEAVY = "matplotlib jinja2 scipy pandas torch modelscope requests httpx".split()
"""Distributions that no start of a command may load."""


def modules_imported(log: str) -> list[str]:
    """Return the modules that ``python -X importtime`` tells of."""
    lines = (line for line in log.splitlines() if line.startswith("import time:"))
    return [line.rpartition("|")[2].strip() for line in lines if "imported package" not in line]


def test_modules_imported_for_help() -> None:
    """``otoscope --help`` loads little, and nothing that evaluates, reports or computes."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "otoscope", "--help"],
        capture_output=True, encoding="utf-8", env=environment(), timeout=60, check=True,
    )  # fmt: skip
    modules = modules_imported(done.stderr)
    unwanted = {*HEAVY, "numpy", "soundfile", "pycurl", "rich"}
    assert not [name for name in modules if name.partition(".")[0] in unwanted]
    assert not [name for name in modules if name.startswith(("otoscope.evaluation", "otoscope.reports."))]
    assert len(modules) < HELP_MODULES


def test_modules_imported_before_the_first_request(server: Server, tmp_path: Path) -> None:
    """What ``otoscope eval`` has loaded when its first request comes holds no charts and no data frames."""
    server.reset(answer_latency=HOURS, verdict_latency=HOURS, sigma=0)
    arguments = command(server, write_data(tmp_path / "data"), tmp_path / "run")
    running = Running(
        [sys.executable, "-X", "importtime", "-m", "otoscope", *arguments], tmp_path / "log", environment()
    )
    while server.stats()["requests"]["answers"] == 0 and not running.over:
        time.sleep(0.02)
    running.kill()
    assert server.stats()["requests"]["answers"] == 1
    modules = modules_imported((tmp_path / "log").read_text(encoding="utf-8"))
    assert "otoscope.evaluation" in modules
    assert not [name for name in modules if name.partition(".")[0] in HEAVY]
    assert not [name for name in modules if name.startswith(("otoscope.reports.html", "otoscope.bundle"))]
    assert len(modules) < EVAL_MODULES


HELP_MODULES, EVAL_MODULES = 200, 620


# --- what a run that meets faults holds ---------------------------------------------------------------------


@pytest.mark.skipif(not IO.exists(), reason="what a process holds is read in /proc")
def test_faults_leave_nothing_open(tmp_path: Path) -> None:
    """After hundreds of faults a run holds no more tasks than at its tenth, and connections for its calls."""
    data = data_sets.short_clips(tmp_path, write_data(tmp_path / "source", each=4), 400)
    soaked = soak(data, tmp_path, 400, every=0.02, slots=2, faults=0.2)
    assert set(soaked.stats["faults"]) == set(FAULTS)
    assert soaked.looks[-1].lines > 2 * 390
    first, last = soaked.tenth(1), soaked.tenth(10)
    assert median(look.tasks for look in last) <= max(look.tasks for look in first)
    # Of the four calls at a time each may have come to a connection of its own since.
    assert median(look.descriptors for look in last) <= max(look.descriptors for look in first) + 4


def test_growth_is_a_miss() -> None:
    """Each thing that grows with the run is told by its name; a run that grows in nothing passes."""

    def missed(**growing: float) -> list[str]:
        def held(name: str, start: float, lines: int) -> int:
            return int(start + growing.get(name, 0) * lines)

        looks = [
            Look(
                n,
                held("rss", 1e8, n),
                held("descriptors", 40, n),
                held("threads", 8, n),
                held("tasks", 36, n),
            )
            for n in range(1, 201)
        ]
        return [one.what.split()[0].strip(":") for one in criteria(Soaked(100, looks, {}, 1)) if not one.met]

    assert missed() == []
    assert missed(descriptors=0.05) == ["descriptors"]
    assert missed(tasks=0.05) == ["tasks"]
    assert missed(threads=0.05) == ["threads"]
    assert missed(rss=1e5) == ["memory", "the"]


# --- the tools that measure ---------------------------------------------------------------------------------


def test_latencies_come_from_the_request_alone() -> None:
    """The same digest has the same latency; over many their mean is the one asked for."""
    latencies = Latencies(1.0, 0.5, 0.5)
    digests = [number * 2654435761 for number in range(20_000)]
    drawn = [latencies.of("answers", digest) for digest in digests]
    assert drawn == [latencies.of("answers", digest) for digest in digests]
    assert sum(drawn) / len(drawn) == pytest.approx(1.0, abs=0.02)
    verdicts = [latencies.of("verdicts", digest) for digest in digests]
    assert sum(verdicts) / len(verdicts) == pytest.approx(0.5, abs=0.01)
    assert Latencies().of("answers", 1) == 0


def test_a_command_is_measured_with_what_it_starts(tmp_path: Path) -> None:
    """CPU and memory of a child are told apart from those of the process itself."""
    child = "b = bytearray(60_000_000); sum(i * i for i in range(1_500_000))"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}], check=True)"
    measured = measure([sys.executable, "-c", parent], tmp_path / "log")
    assert measured.cpu_children > 0
    assert measured.cpu >= measured.cpu_children
    assert measured.peak_largest > 60_000_000 > measured.peak


def test_a_command_that_fails_is_no_measurement(tmp_path: Path) -> None:
    """The error tells the exit code and what the command said."""
    with pytest.raises(CommandError, match=r"(?s)exit code 3.*no luck"):
        measure([sys.executable, "-c", "print('no luck'); raise SystemExit(3)"], tmp_path / "log")


def test_a_row_tells_whether_its_goal_is_met() -> None:
    """The median decides."""
    assert "| 3 s | 1 to 9 | ≤ 4 s | pass |" in Row("x", [9, 1, 3], " s", 4).markdown()
    assert Row("x", [9, 1, 5], " s", 4).markdown().endswith("| **miss** |")
    assert Row("x", [9]).markdown() == "| x | 9 |  |  |  |"
