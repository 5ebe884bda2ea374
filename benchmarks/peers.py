"""The same data and server for other evaluators: installed into an environment of their own, run, compared.

    python -m benchmarks.peers            # a tenth of the data (make bench-peers)
    python -m benchmarks.peers --full

Prints one Markdown table with Otoscope, each peer and the floor client. Which evaluators there are that can
run this benchmark, and why others cannot, is told in docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import data_sets
from benchmarks.loopback_server import ANSWER_LATENCY, JUDGE, SIGMA, VERDICT_LATENCY
from benchmarks.processes import REPOSITORY, Measured, Running, Server, measure
from benchmarks.run import KEY, MB, duplicates, machine

IN_FLIGHT = 64
PACKAGES = ("evalscope", "soundfile")
"""What is installed; soundfile is what evalscope wants for this benchmark."""


@dataclass(frozen=True)
class Tool:
    """An evaluator: how it is started for a data set, with its results in a folder, new or continued."""

    name: str
    command: Callable[[str, Path, Path, bool], list[str]]
    """From the server's URL, the data, the folder, and whether to continue what is there."""


def otoscope(url: str, data: Path, folder: Path, _goes_on: bool) -> list[str]:
    """Return Otoscope's command: 32 in flight at each endpoint. Continuing is the same command."""
    api = f"{url}/v1"
    return [
        sys.executable, "-m", "otoscope", "eval", "--model", "model", "--api-url", api, "--api-key", KEY,
        "--judge-model", JUDGE, "--judge-api-url", api, "--judge-api-key", KEY, "--data", str(data),
        "--eval-batch-size", str(IN_FLIGHT // 2), "--judge-batch-size", str(IN_FLIGHT // 2),
        "--run-dir", str(folder),
    ]  # fmt: skip


def evalscope(program: Path) -> Tool:
    """Return evalscope, whose one batch size is for answers and verdicts together."""

    def command(url: str, data: Path, folder: Path, goes_on: bool) -> list[str]:
        api = f"{url}/v1"
        judge = {"model_id": JUDGE, "api_url": api, "api_key": KEY}
        arguments = [
            "eval", "--model", "model", "--api-url", api, "--api-key", KEY, "--eval-type", "openai_api",
            "--datasets", "air_bench_chat",
            "--dataset-args", json.dumps({"air_bench_chat": {"local_path": str(data)}}),
            "--generation-config", json.dumps({"temperature": 0, "max_tokens": 2048}),
            "--judge-model-args", json.dumps(judge), "--judge-strategy", "llm",
            "--eval-batch-size", str(IN_FLIGHT), "--work-dir", str(folder), "--no-timestamp",
        ]  # fmt: skip
        return [str(program), *arguments, *(["--use-cache", str(folder)] if goes_on else [])]

    return Tool("evalscope", command)


def installed(folder: Path) -> Path:
    """Return the folder of programs of an environment that holds the peers, made if need be."""
    programs = folder / "bin"
    if not (programs / "evalscope").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)  # noqa: S603 (our own)
        pip = [str(programs / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *PACKAGES], check=True)  # noqa: S603 (our own)
    return programs


class Comparison:
    """The cases for each tool, against one server."""

    def __init__(self, server: Server, data: Path, folder: Path) -> None:
        self._server = server
        self._data = data
        self._samples = len(json.loads(data_sets.metadata(data).read_text(encoding="utf-8")))
        self._folder = folder
        self._log = folder / "last.log"

    def line(self, tool: Tool) -> str:
        """Run a tool in every case and return its line of the table."""
        bound = self._run(tool, latency=True)
        stats = self._server.stats()
        plain = self._run(tool, latency=False)
        twice, verdicts = self._killed(tool)
        return self._line(tool.name, bound, stats, plain, f"{twice} of {verdicts}")

    def floor_line(self) -> str:
        """Return the floor client's line."""
        script = str(REPOSITORY / "benchmarks" / "floor_client.py")
        output = str(self._folder / "floor.jsonl")
        command = [sys.executable, script, str(self._data), "--url", self._server.url, "--output", output]
        self._reset(latency=True)
        bound = measure([*command, "--in-flight", str(IN_FLIGHT)], self._log)
        stats = self._server.stats()
        self._reset(latency=False)
        plain = measure([*command, "--in-flight", str(IN_FLIGHT)], self._log)
        return self._line("floor client", bound, stats, plain, "cannot continue")

    def _line(self, name: str, bound: Measured, stats: dict[str, float], plain: Measured, twice: str) -> str:
        least = stats["latency_sum"] / IN_FLIGHT
        mean = stats["in_flight_mean"]
        return (
            f"| {name} | {bound.wall / least:.2f} × | {mean:.0f} | {plain.cpu:.1f} s | "
            f"{plain.wall:.1f} s | {max(bound.peak_largest, plain.peak_largest) / MB:,.0f} MB | {twice} |"
        )

    def _run(self, tool: Tool, *, latency: bool) -> Measured:
        self._reset(latency=latency)
        measured = measure(tool.command(self._server.url, self._data, self._fresh(tool), False), self._log)
        print(f"  {tool.name}: {measured.wall:.1f} s, CPU {measured.cpu:.1f} s", file=sys.stderr, flush=True)
        return measured

    def _killed(self, tool: Tool) -> tuple[int, int]:
        """Kill the tool once half of the verdicts were asked for; return how many calls were made twice."""
        folder = self._fresh(tool)
        self._reset(latency=True)
        running = Running(tool.command(self._server.url, self._data, folder, False), self._log)
        while self._server.stats()["requests"]["verdicts"] < self._samples:
            if running.over:
                running.finish()
                raise RuntimeError(f"{tool.name} was over before it could be killed")
            time.sleep(0.05)
        running.kill()
        before = sum(self._server.stats()["requests"].values())
        measure(tool.command(self._server.url, self._data, folder, True), self._log)
        return duplicates(self._server.stats()), before

    def _fresh(self, tool: Tool) -> Path:
        folder = self._folder / f"peers-{tool.name}"
        shutil.rmtree(folder, ignore_errors=True)
        return folder

    def _reset(self, *, latency: bool) -> None:
        answers, verdicts = (ANSWER_LATENCY, VERDICT_LATENCY) if latency else (0.0, 0.0)
        self._server.reset(answer_latency=answers, verdict_latency=verdicts, sigma=SIGMA)


def main(argv: Sequence[str] | None = None) -> int:
    """Install the peers, run everything, print the table and return 0."""
    build = REPOSITORY / "build"
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--full", action="store_true", help="2,200 samples in the place of 220")
    parser.add_argument("--data-dir", type=Path, default=build / "bench", help="kept between runs")
    parser.add_argument("--environment", type=Path, default=build / "peers", help="where peers are installed")
    arguments = parser.parse_args(argv)
    programs = installed(arguments.environment.absolute())
    versions = subprocess.run(  # noqa: S603 (our own)
        [str(programs / "python"), "-c", "import importlib.metadata as m; print(m.version('evalscope'))"],
        capture_output=True, check=True, encoding="utf-8",
    )  # fmt: skip
    folder = arguments.data_dir.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    data = data_sets.synthetic(folder, data_sets.FULL if arguments.full else data_sets.SMALL)
    data_sets.warm(data)
    with Server() as server:
        comparison = Comparison(server, data, folder)
        tools = [Tool("otoscope", otoscope), evalscope(programs / "evalscope")]
        lines = [comparison.floor_line(), *map(comparison.line, tools)]
    print(f"{data.name}; evalscope {versions.stdout.strip()}. {machine()}.\n")
    print(
        f"| tool | wall over the latency bound, {IN_FLIGHT} in flight | mean in flight | CPU, no latency ",
        end="",
    )
    print("| wall, no latency | peak memory, largest process | calls made twice after SIGKILL half way |")
    print("|---|---|---|---|---|---|---|")
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
