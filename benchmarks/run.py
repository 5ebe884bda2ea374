"""What Otoscope itself costs: whole processes, measured beside a bare client, against the goals.

    python -m benchmarks.run            # small: a tenth of the data, once or twice each (make bench)
    python -m benchmarks.run --full     # all of it (make bench-full)

Prints one Markdown table: medians of what was measured, and for each goal whether it is met. What runs and
how it is measured is told in docs/performance.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import data_sets
from benchmarks.loopback_server import ANSWER_LATENCY, JUDGE, SIGMA, VERDICT_LATENCY
from benchmarks.processes import REPOSITORY, Measured, Running, Server, measure

MB = 1e6
KEY = "benchmark"


@dataclass(frozen=True)
class Row:
    """One line of the table. ``values`` are those of the repetitions; their median is what counts."""

    what: str
    values: Sequence[float]
    unit: str = ""
    goal: float | None = None
    """The most that the median may be."""

    @property
    def value(self) -> float:
        """The median."""
        return median(self.values)

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; ``None`` where there is none."""
        return None if self.goal is None else self.value <= self.goal

    def markdown(self) -> str:
        """Return the line."""
        spread = f"{_number(min(self.values))} to {_number(max(self.values))}" if len(self.values) > 1 else ""
        goal = "" if self.goal is None else f"≤ {_number(self.goal)}{self.unit}"
        verdict = {None: "", True: "pass", False: "**miss**"}[self.met]
        return f"| {self.what} | {_number(self.value)}{self.unit} | {spread} | {goal} | {verdict} |"


@dataclass(frozen=True)
class Form:
    """How much is run."""

    name: str
    samples: int
    repeats: int
    growth: tuple[int, ...]
    """Numbers of samples with short clips, smallest first."""


SMALL = Form("small", data_sets.SMALL, 2, (220, 2200))
FULL = Form("full", data_sets.FULL, 3, (220, 2200, 22000))


@dataclass(frozen=True)
class Evaluated:
    """A run of an evaluation: its process, and what the server counted meanwhile."""

    process: Measured
    stats: dict[str, Any]

    @property
    def start(self) -> float:
        """Seconds from the start of the process to its first request."""
        return float(self.stats["first_request"]) - self.process.started

    def over_bound(self, in_flight: int) -> float:
        """Wall over the latency bound: the sum of the server's latencies, so many at a time."""
        return self.process.wall / (float(self.stats["latency_sum"]) / in_flight)

    def replied_over_bound(self, in_flight: int) -> float:
        """Return the same until the last reply was written: without what sums up and draws."""
        until = float(self.stats["last_reply"]) - self.process.started
        return until / (float(self.stats["latency_sum"]) / in_flight)


class Bench:
    """The cases, against one server, with data and runs in one folder."""

    def __init__(self, server: Server, folder: Path, form: Form) -> None:
        self._server = server
        self._form = form
        self._log = folder / "last.log"
        self._runs = folder / "runs"
        shutil.rmtree(self._runs, ignore_errors=True)
        self._runs.mkdir(parents=True)
        self._data = data_sets.synthetic(folder, form.samples)
        self._tenth = data_sets.synthetic(folder, data_sets.SMALL)
        self._short = {n: data_sets.short_clips(folder, self._data, n) for n in form.growth}
        for root in (self._data, self._tenth, *self._short.values()):
            data_sets.warm(root)

    @property
    def cases(self) -> dict[str, Callable[[], Iterator[Row]]]:
        """The cases by their names, in the order in which they are run."""
        return {
            "help": self.help,
            "start": self.start,
            "cpu": self.cpu,
            "wall-64": lambda: self.latency_bound(64, goal_wall=1.08, goal_memory=110),
            "wall-256": lambda: self.latency_bound(256, goal_wall=1.30, goal_memory=160),
            "finished": self.finished_run,
            "killed": self.killed,
            "growth": self.growth,
        }

    # --- cases --------------------------------------------------------------------------------------------

    def help(self) -> Iterator[Row]:
        """``otoscope --help`` beside ``python -c pass``."""
        pairs = [
            (self._python("-m", "otoscope", "--help").cpu, self._python("-c", "pass").cpu) for _ in range(9)
        ]
        values = [help_cpu - bare for help_cpu, bare in pairs]
        yield Row("`otoscope --help`, CPU over `python -c pass`", values, " s", 0.15)

    def start(self) -> Iterator[Row]:
        """From the start of the process to the first request, on data of several sizes."""
        roots = {
            f"{data_sets.SMALL:,} samples": self._tenth,
            f"{self._form.samples:,} samples": self._data,
            f"{max(self._short):,} short clips": self._short[max(self._short)],
        }
        for name, root in roots.items():
            values = [self._time_to_first_request(root) for _ in range(2 * self._form.repeats - 1)]
            yield Row(f"start to first request, {name}", values, " s", 0.5)

    def cpu(self) -> Iterator[Row]:
        """CPU without latency, interleaved with the floor client; and what is on disk then."""
        runs: list[Evaluated] = []
        floors: list[Evaluated] = []
        for _ in range(self._form.repeats):
            floors.append(self._floor(64))
            runs.append(self._evaluate(self._data, 64, self._fresh("cpu")))
        plain = self._floor(64, "--base64", "stdlib")
        pairs = list(zip(runs, floors, strict=True))
        assert_same_requests([*runs, *floors, plain])
        yield Row("floor client, CPU", [f.process.cpu for f in floors], " s")
        yield Row("floor client with the standard library's base64, CPU", [plain.process.cpu], " s")
        yield Row("floor client, peak memory", [f.process.peak_largest / MB for f in floors], " MB")
        yield Row("no latency: CPU, whole command", [r.process.cpu for r in runs], " s")
        yield Row(
            "no latency: CPU over the floor's", [r.process.cpu / f.process.cpu for r, f in pairs], " ×", 4
        )
        yield Row(
            "of that, the run's own process", [r.process.cpu_self / f.process.cpu for r, f in pairs], " ×"
        )
        yield Row(
            "of that, the process that draws the page",
            [r.process.cpu_children / f.process.cpu for r, f in pairs],
            " ×",
        )
        yield from self._disk(runs[-1])

    def _disk(self, evaluated: Evaluated) -> Iterator[Row]:
        """Tell what the run directory of the last run without latency holds, over what was received."""
        received = float(evaluated.stats["reply_bytes"])
        files = sorted(path for path in (self._runs / "cpu").iterdir() if path.is_file())
        sizes = {path.name: path.stat().st_size for path in files}
        yield Row("bytes of the replies", [received / MB], " MB")
        yield Row("bytes on disk over those of the replies", [sum(sizes.values()) / received], " ×", 4)
        for name, size in sizes.items():
            yield Row(f"of that, {name}", [size / received], " ×")

    def latency_bound(self, in_flight: int, *, goal_wall: float, goal_memory: float) -> Iterator[Row]:
        """Wall and memory with latencies."""
        run = f"bound-{in_flight}"
        runs = [
            self._evaluate(self._data, in_flight, self._fresh(run), latency=True)
            for _ in range(self._form.repeats)
        ]
        floors = [self._floor(in_flight, latency=True)]
        assert_same_requests([*runs, *floors])
        name = f"{in_flight} in flight"
        bounds = [float(r.stats["latency_sum"]) / in_flight for r in runs]
        yield Row(f"{name}: latency bound", bounds, " s")
        yield Row(f"{name}: wall over the bound", [r.over_bound(in_flight) for r in runs], " ×", goal_wall)
        yield Row(
            f"{name}: the same to the last reply", [r.replied_over_bound(in_flight) for r in runs], " ×"
        )
        yield Row(
            f"{name}: floor client, wall over the bound", [f.over_bound(in_flight) for f in floors], " ×"
        )
        yield Row(
            f"{name}: wall over the floor client's",
            [r.process.wall / floors[0].process.wall for r in runs],
            " ×",
        )
        yield Row(f"{name}: mean in flight", [float(r.stats["in_flight_mean"]) for r in runs])
        yield Row(f"{name}: CPU, whole command", [r.process.cpu for r in runs], " s")
        yield Row(
            f"{name}: peak memory of the run's process",
            [r.process.peak / MB for r in runs],
            " MB",
            goal_memory,
        )
        yield Row(
            f"{name}: peak memory of the largest process", [r.process.peak_largest / MB for r in runs], " MB"
        )
        yield Row(f"{name}: bytes sent", [float(r.stats["bytes_in"]) / MB for r in runs], " MB")
        yield Row(f"{name}: duplicate calls", [float(duplicates(r.stats)) for r in runs], "", 0)

    def finished_run(self) -> Iterator[Row]:
        """Resuming, and reporting on, a run that has ended."""
        sizes = {self._form.samples: (self._data, 2.0)}
        if (most := max(self._short)) > self._form.samples:
            sizes[most] = (self._short[most], 10.0)
        for samples, (root, report_goal) in sizes.items():
            run = self._fresh("finished")
            self._evaluate(root, 64, run, "--no-html")
            if samples == self._form.samples:
                # The first time the page is drawn as well, which --no-html had left out.
                self._evaluate(root, 64, run)
                again = [self._evaluate(root, 64, run) for _ in range(3)]
                calls = [float(sum(r.stats["requests"].values())) for r in again]
                yield Row(
                    f"resume of a finished run, {samples:,} samples", [r.process.wall for r in again], " s", 1
                )
                yield Row("requests made by it", calls, "", 0)
            for form in ("terminal", "json"):
                times = range(self._form.repeats)
                walls = [self._otoscope("report", str(run), "--format", form).wall for _ in times]
                yield Row(f"report ({form}), {samples:,} samples", walls, " s", report_goal)
            page = self._otoscope("report", str(run), "--format", "html")
            yield Row(f"report (html), {samples:,} samples", [page.wall], " s")
            yield Row(f"report (html), {samples:,} samples: peak memory", [page.peak_largest / MB], " MB")

    def killed(self) -> Iterator[Row]:
        """SIGKILL half way, then the same command: what is asked for twice."""
        lost, repeated = [], []
        for _ in range(self._form.repeats):
            run = self._fresh("killed")
            command = self._eval_command(self._data, 64, run, "--no-html")
            self._server.reset(**self._latencies(on=True))
            running = Running(command, self._log)
            while sum(self._server.stats()["requests"].values()) < 1.5 * self._form.samples:
                if running.over:
                    running.finish()
                    raise RuntimeError("the run was over before it could be killed")
                time.sleep(0.05)
            running.kill()
            lost.append(float(self._server.stats()["in_flight"]))
            measure(command, self._log)
            repeated.append(float(duplicates(self._server.stats())))
        yield Row("SIGKILL half way: in flight at that moment", lost)
        yield Row("SIGKILL half way: calls made twice", repeated, "", 64)

    def growth(self) -> Iterator[Row]:
        """CPU and memory of the run's process for each sample, as there are more of them."""
        # What else the machine does only adds to CPU, and the differences are small: the least counts.
        fixed = min(self._cpu_of(self._tenth, "--limit", "1") for _ in range(3))
        yield Row("CPU of a run of 8 samples, without the page", [fixed], " s")
        cpu: dict[int, float] = {}
        peaks: dict[int, float] = {}
        for samples, root in self._short.items():
            times = 3 if samples == data_sets.SMALL else 1
            cpu[samples] = (min(self._cpu_of(root) for _ in range(times)) - fixed) / (samples - 8)
            peaks[samples] = self._last.process.peak
            name = f"{samples:,} short clips"
            yield Row(f"{name}: CPU for each further sample", [1e3 * cpu[samples]], " ms")
            yield Row(f"{name}: peak memory of the run's process", [peaks[samples] / MB], " MB")
        few, many = min(cpu), max(cpu)
        spread = 100 * (max(cpu.values()) / min(cpu.values()) - 1)
        yield Row(f"CPU for each sample from {few:,} to {many:,}: spread", [spread], " %", 15)
        # From where the run's start no longer hides what the samples take.
        base = sorted(cpu)[-2]
        each = (peaks[many] - peaks[base]) / (many - base) / 1000
        yield Row(f"memory for each further sample, {base:,} to {many:,}", [each], " KB", 4)

    def _cpu_of(self, root: Path, *more: str) -> float:
        self._last = self._evaluate(root, 64, self._fresh("growth"), "--no-html", *more)
        return self._last.process.cpu

    # --- the commands -------------------------------------------------------------------------------------

    def _fresh(self, name: str) -> Path:
        run = self._runs / name
        shutil.rmtree(run, ignore_errors=True)
        return run

    def _python(self, *arguments: str) -> Measured:
        return measure([sys.executable, *arguments], self._log)

    def _otoscope(self, *arguments: str) -> Measured:
        _tell(f"otoscope {' '.join(arguments[:1])}")
        return self._python("-m", "otoscope", *arguments)

    def _eval_command(self, root: Path, in_flight: int, run: Path, *more: str) -> list[str]:
        url, each = f"{self._server.url}/v1", str(in_flight // 2)
        return [
            sys.executable, "-m", "otoscope", "eval",
            "--model", "model", "--api-url", url, "--api-key", KEY, "--eval-batch-size", each,
            "--judge-model", JUDGE, "--judge-api-url", url, "--judge-api-key", KEY,
            "--judge-batch-size", each,
            "--data", str(root), "--run-dir", str(run), *more,
        ]  # fmt: skip

    def _evaluate(
        self, root: Path, in_flight: int, run: Path, *more: str, latency: bool = False
    ) -> Evaluated:
        self._server.reset(**self._latencies(on=latency))
        process = measure(self._eval_command(root, in_flight, run, *more), self._log)
        evaluated = Evaluated(process, self._server.stats())
        cost = f"{process.wall:.1f} s, CPU {process.cpu:.1f} s, {process.peak / MB:.0f} MB"
        _tell(f"{run.name} ({root.name}): {cost}")
        return evaluated

    def _floor(self, in_flight: int, *more: str, latency: bool = False) -> Evaluated:
        self._server.reset(**self._latencies(on=latency))
        output = self._runs / "floor.jsonl"
        script = str(REPOSITORY / "benchmarks" / "floor_client.py")
        process = self._python(
            script, str(self._data), "--url", self._server.url, "--in-flight", str(in_flight),
            "--output", str(output), *more,
        )  # fmt: skip
        _tell(f"floor: {process.wall:.1f} s, CPU {process.cpu:.1f} s")
        return Evaluated(process, self._server.stats())

    def _time_to_first_request(self, root: Path) -> float:
        run = self._fresh("start")
        self._server.reset(**self._latencies(on=True))
        running = Running(self._eval_command(root, 64, run), self._log)
        while (first := self._server.stats()["first_request"]) is None:
            if running.over:
                running.finish()
                raise RuntimeError("the run was over before it had sent anything")
            time.sleep(0.02)
        running.kill()
        return float(first) - running.started

    @staticmethod
    def _latencies(*, on: bool) -> dict[str, float]:
        answers, verdicts = (ANSWER_LATENCY, VERDICT_LATENCY) if on else (0.0, 0.0)
        return {"answer_latency": answers, "verdict_latency": verdicts, "sigma": SIGMA}


def duplicates(stats: dict[str, Any]) -> int:
    """Return how many requests had been made before."""
    return sum(stats["duplicates"].values())


def assert_same_requests(runs: Sequence[Evaluated]) -> None:
    """Raise ``RuntimeError`` unless all runs sent as many requests and as many bytes as each other."""
    sent = {(*run.stats["requests"].values(), run.stats["bytes_in"]) for run in runs}
    if len(sent) > 1:
        raise RuntimeError(f"these runs cannot be compared, they sent (answers, verdicts, bytes): {sent}")


def machine() -> str:
    """Return what this was measured on, in a line."""
    info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    names = [line.partition(":")[2].strip() for line in info.splitlines() if line.startswith("model name")]
    packages = ", ".join(f"{name} {version(name)}" for name in ("otoscope", "pycurl", "pybase64", "uvloop"))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{os.cpu_count()} cores of {names[0] if names else platform.machine()}, {memory:.0f} GiB, "
        f"{platform.system()} {platform.release()}, Python {platform.python_version()}, {packages}"
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def _tell(line: str) -> None:
    print(f"  {line}", file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark, print the table and return 0: a goal that is missed is told, not an error."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--full", action="store_true", help="2,200 samples, three times each, and 22,000")
    parser.add_argument(
        "--data-dir", type=Path, default=REPOSITORY / "build" / "bench", help="kept between runs"
    )
    parser.add_argument("--only", nargs="+", metavar="CASE", help="cases by name; a wrong one lists them")
    arguments = parser.parse_args(argv)
    form = FULL if arguments.full else SMALL
    folder = arguments.data_dir.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    with Server() as server:
        bench = Bench(server, folder, form)
        if unknown := set(arguments.only or ()) - set(bench.cases):
            parser.error(f"there is no case {', '.join(unknown)}; there are {', '.join(bench.cases)}")
        rows = [
            row for name, case in bench.cases.items() if name in (arguments.only or [name]) for row in case()
        ]
    shutil.rmtree(folder / "runs", ignore_errors=True)
    load = os.getloadavg()[0]
    print(f"Form: {form.name}, {form.samples:,} samples. {machine()}. Load average at the end {load:.1f}.\n")
    print("| measured | median | from, to | goal | |\n|---|---|---|---|---|")
    for row in rows:
        print(row.markdown())
    if not arguments.full:
        print(
            f"\nThe goals are for {data_sets.FULL:,} samples. Of {form.samples:,}, the first one, which goes "
            "alone, and the last latencies are a large part of the wall: compare with the floor client's."
        )
    judged = [row.met for row in rows if row.met is not None]
    print(f"\n{sum(judged)} of {len(judged)} goals met; {time.monotonic() - begun:.0f} s in all.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
