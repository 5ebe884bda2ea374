"""What a second worker of Ray brings, with a model that needs a processor of its own.

    python -m benchmarks.ray_speedup [--pairs N] [--samples N] [--seconds S]

Each sample takes S seconds of processor time in pure Python. Runs with one worker and with two alternate;
a run's time is that from its first answer's start to its last one's end, as they are stored with the answers:
the start of Ray is in neither. How busy a worker was is the share of that time for which it was in a call.
The machine's load stands beside it: on two processors that others use as well, no two workers can be busy.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import wave
from pathlib import Path
from statistics import median
from typing import NamedTuple

TASK = "speech_QA"
MODEL = """
import time

def answer(audio, question):
    end = time.process_time() + {seconds}
    while time.process_time() < end:
        sum(range(1000))
    return f"{question} {len(audio.samples())}"
"""


class Run(NamedTuple):
    """What one run took."""

    seconds: float
    busy: dict[str, float]
    """Share of the time for which each worker was in a call."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--samples", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=0.2)
    args = parser.parse_args()
    ratios = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_data(folder / "data", args.samples)
        model = MODEL.replace("{seconds}", str(args.seconds))
        (folder / "model.py").write_text(model, encoding="utf-8", newline="\n")
        print("| pair | 1 worker (s) | 2 workers (s) | ratio | busy, of two | load |")
        print("|--:|--:|--:|--:|---|--:|")
        for pair in range(args.pairs):
            order = (1, 2) if pair % 2 == 0 else (2, 1)
            took = {workers: measured(folder, workers, f"{pair}-{workers}") for workers in order}
            ratios.append(took[1].seconds / took[2].seconds)
            busy = " and ".join(f"{100 * share:.0f} %" for share in took[2].busy.values())
            print(
                f"| {pair + 1} | {took[1].seconds:.1f} | {took[2].seconds:.1f} | {ratios[-1]:.2f} | {busy} | "
                f"{os.getloadavg()[0]:.1f} |",
                flush=True,
            )
    print(f"\nmedian ratio {median(ratios):.2f}, from {min(ratios):.2f} to {max(ratios):.2f}")


def write_data(root: Path, samples: int) -> None:
    """Write a data set of short clips."""
    folder = root / "Chat" / f"{TASK}_tones"
    folder.mkdir(parents=True)
    records = []
    for number in range(samples):
        with wave.open(str(folder / f"{number}.wav"), "wb") as file:
            file.setparams((1, 2, 16000, 0, "NONE", ""))
            file.writeframes(number.to_bytes(2, "little") * 16000)
        records.append(
            {
                "path": f"{number}.wav", "question": f"Question {number}?", "answer_gt": "A tone.",
                "task_name": TASK, "dataset_name": "tones", "uniq_id": number, "meta_info": "{}",
            }
        )  # fmt: skip
    (root / "Chat" / "Chat_meta.json").write_text(json.dumps(records), encoding="utf-8", newline="\n")


def measured(folder: Path, workers: int, run: str) -> Run:
    """Evaluate with so many workers, and return what the stored answers tell."""
    subprocess.run(  # noqa: S603 (our own command)
        [
            sys.executable, "-m", "otoscope", "eval", "--model", "model.py:answer", "--data", "data",
            "--no-judge", "--no-html", "--run-dir", run, "--engine", "ray", "--ray-workers", str(workers),
        ],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip
    stored = (folder / run / "answers.jsonl").read_text(encoding="utf-8").splitlines()
    # Without the first one, which goes alone in every run.
    replies = [reply for line in stored for reply in json.loads(line)["replies"]][1:]
    start = min(reply["started_at"] for reply in replies)
    seconds = max(reply["started_at"] + reply["latency"] for reply in replies) - start
    busy: dict[str, float] = {}
    for reply in replies:
        busy[reply["endpoint"]] = busy.get(reply["endpoint"], 0.0) + reply["latency"] / seconds
    return Run(seconds, dict(sorted(busy.items())))


if __name__ == "__main__":
    main()
