"""A long run of the real command against a server that misbehaves: whether anything grows that should not.

    python -m benchmarks.soak                  # 10,000 short clips, a few minutes (make soak)
    python -m benchmarks.soak --samples 1000   # less

Prints what the run's process held at each tenth of its verdicts, which objects it held towards the end, and
whether each criterion is met. Exits with 1 where one is not. Needs Linux: what a process holds is read in
``/proc``. A run keeps an index of its lines in memory by design: its share is told apart.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import data_sets
from benchmarks.loopback_server import JUDGE
from benchmarks.processes import REPOSITORY, Server, clean_environment, measure

SAMPLES = 10_000
FAULTS = 0.05
"""Share of the requests that meet a fault."""
SLOTS = 16
"""Calls in flight at each endpoint."""
MEMORY_GROWTH = 0.10
"""The most by which memory may grow from the first tenth of the run to its end."""
INSIDE = REPOSITORY / "benchmarks" / "inside"
INDEX = "otoscope.store.lines."
"""How the names of the types begin that a run's index of its lines is made of."""
_ENOUGH = 0.985
"""Share of the verdicts after which the run is looked at no more: some of its lines are about re-asking."""
_LARGEST = 8


@dataclass(frozen=True)
class Look:
    """What the run's process held at one moment."""

    lines: int
    """Lines of verdicts so far."""
    rss: int
    """Resident memory in bytes."""
    descriptors: int
    threads: int
    tasks: int
    objects: Mapping[str, tuple[int, int]] | None = None
    """By type: how many, and their bytes."""


@dataclass(frozen=True)
class Soaked:
    """A run that was watched."""

    samples: int
    looks: Sequence[Look]
    stats: Mapping[str, Any]
    """What the server counted."""
    wall: float
    """Seconds."""

    def tenth(self, number: int) -> list[Look]:
        """Return the looks in a tenth of the run, 1 to 10, by its lines of verdicts."""
        last = self.looks[-1].lines
        return [look for look in self.looks if (number - 1) * last < 10 * look.lines <= number * last]


@dataclass(frozen=True)
class Criterion:
    """What must not grow, and whether it did."""

    what: str
    figure: str
    limit: str
    met: bool

    def markdown(self) -> str:
        """Return the line of the table."""
        return f"| {self.what} | {self.figure} | {self.limit} | {'pass' if self.met else '**miss**'} |"


def soak(
    data: Path, folder: Path, samples: int, *, every: float = 0.1, slots: int = SLOTS, faults: float = FAULTS
) -> Soaked:
    """Evaluate a data set of so many samples, and look at the process every so many seconds.

    Raises ``CommandError`` when the command fails, which it does also where a sample did not end well.
    """
    run, log = folder / "soak", folder / "soak.looks"
    shutil.rmtree(run, ignore_errors=True)
    log.unlink(missing_ok=True)
    plan = {
        "log": str(log),
        "every": every,
        "file": str(run / "verdicts.jsonl"),
        "census": int(_ENOUGH * 2 * samples),
    }
    environ = clean_environment()
    path = [str(INSIDE), *filter(None, [environ.get("PYTHONPATH")])]
    environ |= {"PYTHONPATH": os.pathsep.join(path), "WATCH": json.dumps(plan)}
    with Server() as server:
        server.reset(faults=faults)
        command = _command(f"{server.url}/v1", data, run, slots)
        measured = measure(command, folder / "soak.log", environ=environ)
        stats = server.stats()
    looks = [Look(**json.loads(line)) for line in log.read_text(encoding="utf-8").splitlines()]
    return Soaked(samples, [look for look in looks if look.lines], stats, measured.wall)


def _command(url: str, data: Path, run: Path, slots: int) -> list[str]:
    patience = "retry_interval=0.02"
    judge = {"api_key": "soak", "generation_config": {"retry_interval": 0.02}}
    return [
        sys.executable, "-m", "otoscope", "eval", "--no-html", "--min-coverage", "1",
        "--model", "model", "--api-url", url, "--api-key", "soak", "--eval-batch-size", str(slots),
        "--judge-model", JUDGE, "--judge-api-url", url, "--judge-batch-size", str(slots),
        "--generation-config", patience, "--judge-model-args", json.dumps(judge),
        "--data", str(data), "--run-dir", str(run),
    ]  # fmt: skip


# --- what is told -------------------------------------------------------------------------------------------


def criteria(soaked: Soaked) -> Iterator[Criterion]:
    """Yield what must be true of a long run."""
    few, many = soaked.tenth(1)[-1], soaked.looks[-1]
    # Two verdicts a sample.
    samples = (many.lines - few.lines) / 2
    indexed = index_bytes(soaked)
    for name, grown in (
        ("memory from 10 % to the end", many.rss - few.rss),
        ("the same without the index of lines", many.rss - few.rss - indexed * samples),
    ):
        share = grown / few.rss
        yield Criterion(
            name,
            f"{100 * share:+.1f} % of {few.rss / 1e6:.1f} MB, {grown / samples / 1000:.2f} KB a sample",
            f"≤ {100 * MEMORY_GROWTH:+.0f} %",
            share <= MEMORY_GROWTH,
        )
    for name in ("descriptors", "threads", "tasks"):
        # The median, since connections come and go by the server's faults.
        most = max(getattr(look, name) for look in soaked.tenth(1))
        later = max(
            median(getattr(look, name) for look in soaked.tenth(n)) for n in range(2, 11) if soaked.tenth(n)
        )
        yield Criterion(
            f"{name}: highest median of a later tenth",
            f"{later:g}",
            f"≤ {most}, the first tenth's most",
            later <= most,
        )


def tenths(soaked: Soaked) -> Iterator[str]:
    """Yield the lines of the table of what was held at each tenth."""
    yield "| progress | RSS at its end | descriptors, median (most) | threads | tasks |"
    yield "|---|---|---|---|---|"
    for number in range(1, 11):
        looks = soaked.tenth(number)
        cells = [
            f"{median(values):g} ({max(values)})"
            for values in (
                [getattr(look, name) for look in looks] for name in ("descriptors", "threads", "tasks")
            )
            if values
        ]
        size = f"{looks[-1].rss / 1e6:.1f} MB" if looks else ""
        yield f"| {10 * number} % | {size} | {' | '.join(cells or ['', '', ''])} |"


def index_bytes(soaked: Soaked) -> float:
    """Return the bytes a sample of the index of lines, which is empty at the start."""
    last = soaked.looks[-1]
    counted = last.objects or {}
    return sum(size for name, (_, size) in counted.items() if name.startswith(INDEX)) / (last.lines / 2)


def held(soaked: Soaked) -> Iterator[str]:
    """Yield the lines of the table of what was held towards the end, by types."""
    last = soaked.looks[-1]
    counted = last.objects or {}
    largest = sorted(counted, key=lambda name: counted[name][1], reverse=True)
    yield f"| objects held at {last.lines:,} lines of verdicts | a sample | KB a sample |"
    yield "|---|---|---|"
    for name in largest[:_LARGEST]:
        count, size = counted[name]
        yield f"| {name} | {count / soaked.samples:.2f} | {size / soaked.samples / 1000:.2f} |"
    rest = sum(counted[name][1] for name in largest[_LARGEST:])
    yield f"| all others | | {rest / soaked.samples / 1000:.2f} |"
    yield f"| of all these, the index of lines | | {index_bytes(soaked) / 1000:.2f} |"


def main(argv: Sequence[str] | None = None) -> int:
    """Run, print the tables, and return 1 where a criterion is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--samples", type=int, default=SAMPLES, help=f"at least 100 (default {SAMPLES:,})")
    parser.add_argument(
        "--data-dir", type=Path, default=REPOSITORY / "build" / "bench", help="kept between runs"
    )
    arguments = parser.parse_args(argv)
    if arguments.samples < 100:
        parser.error("--samples: at least 100, so that a tenth of them says something")
    folder = arguments.data_dir.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    source = data_sets.synthetic(folder, data_sets.SMALL)
    soaked = soak(data_sets.short_clips(folder, source, arguments.samples), folder, arguments.samples)
    faults = ", ".join(f"{name} {count:,}" for name, count in sorted(soaked.stats["faults"].items()))
    requests = sum(soaked.stats["requests"].values())
    print(f"{soaked.samples:,} samples, {requests:,} requests, {soaked.wall:.0f} s. Faults: {faults}.\n")
    found = list(criteria(soaked))
    for block in (
        tenths(soaked),
        held(soaked),
        ["| criterion | measured | limit | |", "|---|---|---|---|", *(one.markdown() for one in found)],
    ):
        print("\n".join(block), end="\n\n")
    return 0 if all(one.met for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
