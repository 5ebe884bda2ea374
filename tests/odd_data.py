"""A data set with whatever damage a test needs, in real files."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import soundfile as sf

from otoscope.audit import Verification, verify
from otoscope.benchmark import TASKS
from otoscope.cli import main
from otoscope.config import SelectionSettings

RATE = 16_000
_NOISE = np.random.default_rng(0).standard_normal(2 * RATE)
_TURNS = np.arange(2 * RATE) / RATE
SOUND = (0.3 * np.sin(2 * np.pi * 440 * _TURNS) * np.sin(6 * np.pi * _TURNS) + 0.02 * _NOISE).astype(
    "float32"
)
"""Two seconds whose loudness changes, so that an mp3's bit rate does."""


def encoded(
    kind: str = "WAV", subtype: str = "PCM_16", sound: Any = SOUND, *, rate: int = RATE, **more: Any
) -> bytes:
    """Return a sound as a file of some format."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sound"
        sf.write(path, sound, rate, format=kind, subtype=subtype, **more)
        return path.read_bytes()


WAV = encoded()
MP3 = encoded("MP3", "MPEG_LAYER_III")


class Data:
    """A data set being made: every clip other bytes, unless it is said what it holds."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.records: list[Any] = []
        (root / "Chat").mkdir(parents=True)

    def add(self, path: str, content: bytes | None = None, *, task: str = "sound_QA", **changed: Any) -> str:
        """Add a record, and its clip where there is content or none lies there yet; return its key."""
        number = len(self.records)
        record: dict[str, Any] = {
            "path": path,
            "question": f"What is heard in {number}?",
            "answer_gt": "Rain.",
            "task_name": task,
            "dataset_name": "clotho",
            "uniq_id": number,
            "meta_info": "{'sound': 'rain'}",
            **changed,
        }
        self.records.append(record)
        place = self.folder(task, record["dataset_name"]) / path
        if content is not None or not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(encoded(sound=SOUND[number : 1600 + number]) if content is None else content)
        return f"{task}/{record['dataset_name']}/{path}#{record['uniq_id']}"

    def folder(self, task: str = "sound_QA", dataset: str = "clotho") -> Path:
        """Return the folder of a task's clips."""
        return self.root / "Chat" / f"{task}_{dataset}"

    def verify(self, **more: Any) -> Verification:
        """Write the metadata and verify all of it."""
        return verify(self.write(), selection(**more.pop("selection", {})), **more)

    def write(self) -> Path:
        """Write the metadata and return the root."""
        metadata = self.root / "Chat" / "Chat_meta.json"
        metadata.write_text(json.dumps(self.records), encoding="utf-8")
        return self.root


def selection(**changed: Any) -> SelectionSettings:
    """Return a selection: everything, unless something else is said."""
    return SelectionSettings(
        **{"tasks": tuple(TASKS), "limit": None, "shuffle": False, "seed": 42, **changed}
    )


class Ended(NamedTuple):
    """How a command ended, and what it printed."""

    returncode: int
    stdout: str
    stderr: str


class Here:
    """Runs commands inside of the test's process: a start of their own is a second each."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capsys = capsys
        self._monkeypatch = monkeypatch
        monkeypatch.setenv("COLUMNS", "100")
        monkeypatch.delenv("OTOSCOPE_DATA", raising=False)

    def __call__(self, *arguments: str, **environ: str) -> Ended:
        """Run a command to its end, with these variables set for it alone."""
        with self._monkeypatch.context() as changed:
            for name, value in environ.items():
                changed.setenv(name, value)
            code = main(arguments)
        return Ended(code, *self._capsys.readouterr())
