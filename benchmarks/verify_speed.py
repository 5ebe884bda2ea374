"""How fast ``otoscope data verify`` and ``stats`` are, beside what they cannot do without.

    python -m benchmarks.verify_speed ROOT [--runs N]

Every command runs N times, all of them in turn, and the medians are printed as a Markdown table. Reading is
``cat`` of every file into nothing; decoding is one thread of the same audio library that does nothing else.
Ratios are to that: the machine's own speed, and whatever else it does, is in both. Files are read once
before: nobody waits for the disk.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from benchmarks.processes import Measured, measure

_DECODE = """
import sys, pathlib, numpy, soundfile
buffer = numpy.empty(1 << 16, "int16")
for path in sorted(pathlib.Path(sys.argv[1]).rglob("*.*")):
    if path.suffix in (".wav", ".mp3"):
        with soundfile.SoundFile(path) as sound:
            frames = buffer.reshape(-1, sound.channels)
            while len(sound.read(out=frames)):
                pass
"""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("root", type=Path, help="made by benchmarks/synthetic_data.py")
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    read = f"find {args.root}/Chat -type f -print0 | xargs -0 cat > /dev/null"
    otoscope = [sys.executable, "-m", "otoscope", "data"]
    commands = {
        "reading alone (cat)": ["sh", "-c", read],
        "decoding alone, one thread": [sys.executable, "-c", _DECODE, str(args.root / "Chat")],
        "otoscope data verify": [*otoscope, "verify", str(args.root)],
        "otoscope data stats": [*otoscope, "stats", str(args.root)],
        "otoscope data stats --full": [*otoscope, "stats", str(args.root), "--full"],
    }
    subprocess.run(["sh", "-c", read], check=True)  # noqa: S603, S607 (our own command)
    results: dict[str, list[Measured]] = {name: [] for name in commands}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(args.runs):
            for name, command in commands.items():
                results[name].append(measure(command, Path(folder) / "log"))
    print(f"{os.cpu_count()} cores, medians of {args.runs} runs\n")
    print("| | wall | CPU | wall / decoding | CPU / decoding | peak memory |")
    print("| :-- | --: | --: | --: | --: | --: |")
    base = results["decoding alone, one thread"]
    for name, runs in results.items():
        wall, cpu = median(run.wall for run in runs), median(run.cpu for run in runs)
        ratios = [
            f"{median(of(run) / of(other) for run, other in zip(runs, base, strict=True)):.2f}"
            for of in (lambda run: run.wall, lambda run: run.cpu)
        ]
        peak = max(run.peak_largest for run in runs) / 1e6
        print(f"| {name} | {wall:.1f} s | {cpu:.1f} s | {ratios[0]} | {ratios[1]} | {peak:.0f} MB |")


if __name__ == "__main__":
    main()
