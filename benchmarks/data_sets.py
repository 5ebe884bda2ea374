"""The data that the benchmark runs on: made once, then kept in a folder."""

from __future__ import annotations

import json
import math
import shutil
import struct
import subprocess
import sys
import wave
from pathlib import Path

from benchmarks.processes import REPOSITORY

FULL, SMALL = 2200, 220
"""Samples of the whole synthetic data set, and of its tenth."""

_CLIPS = 16
"""Short clips in each folder; the samples of a folder take them in turn."""
_RATE, _SECONDS = 16000, 0.25
_STRIDE = 389
"""Has no divisor in common with the number of samples, so that all of them come."""


def metadata(root: Path) -> Path:
    """Return where a data set's metadata lies."""
    return root / "Chat" / "Chat_meta.json"


def synthetic(folder: Path, samples: int) -> Path:
    """Return the synthetic data set with so many samples (:data:`FULL` or :data:`SMALL`), made if need be."""
    root = folder / f"synthetic-{samples}"
    if not metadata(root).exists():
        # Its metadata is what is written last: without it, this one was cut off.
        shutil.rmtree(root, ignore_errors=True)
        command = [sys.executable, "benchmarks/synthetic_data.py", str(root), "--scale", str(samples / FULL)]
        subprocess.run(command, cwd=REPOSITORY, check=True, stdout=subprocess.DEVNULL)  # noqa: S603 (our own)
    return root


def short_clips(folder: Path, source: Path, samples: int) -> Path:
    """Return a data set of so many samples that speak of a few short clips, made if need be.

    The texts are those of ``source``, over and over, each question with its number, so that every request
    differs; the clips are 16 tones a folder, of which each serves many samples. What it costs to handle a
    sample is then seen without its audio.
    """
    root = folder / f"short-{samples}"
    if metadata(root).exists():
        return root
    records = json.loads(metadata(source).read_text(encoding="utf-8"))
    made = []
    for number in range(samples):
        # Any number of them has all tasks in about the source's shares, which stand in blocks there.
        record = records[number * _STRIDE % len(records)]
        clips = root / "Chat" / f"{record['task_name']}_{record['dataset_name']}"
        if not clips.exists():
            clips.mkdir(parents=True)
            for tone in range(_CLIPS):
                _write_tone(clips / f"tone_{tone:02d}.wav", 220 + 20 * tone)
        question = f"{record['question']} ({number})"
        path = f"tone_{number % _CLIPS:02d}.wav"
        made.append({**record, "path": path, "question": question, "uniq_id": number})
    metadata(root).write_text(json.dumps(made), encoding="utf-8", newline="\n")
    return root


def audio_bytes(root: Path) -> int:
    """Return the bytes of all clips, each as often as there are samples about it."""
    records = json.loads(metadata(root).read_text(encoding="utf-8"))
    sizes: dict[Path, int] = {}
    total = 0
    for record in records:
        clip = root / "Chat" / f"{record['task_name']}_{record['dataset_name']}" / record["path"]
        if clip not in sizes:
            sizes[clip] = clip.stat().st_size
        total += sizes[clip]
    return total


def warm(root: Path) -> None:
    """Read every file once, so that it is in the system's cache."""
    for path in root.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                while file.read(1 << 20):
                    pass


def _write_tone(path: Path, tone: float) -> None:
    frames = [int(12000 * math.sin(2 * math.pi * tone * i / _RATE)) for i in range(int(_RATE * _SECONDS))]
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(_RATE)
        file.writeframes(struct.pack(f"<{len(frames)}h", *frames))
