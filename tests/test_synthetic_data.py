"""The synthetic data set: the real layout, counts and lengths, and the same bytes each time."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks import synthetic_data
from otoscope.audit import verify
from otoscope.benchmark import TASKS
from tests.odd_data import selection
from tests.support import REPOSITORY

SCRIPT = REPOSITORY / "benchmarks" / "synthetic_data.py"
SMALL = ("--scale", "0.02", "--small-clips")


def make(root: Path, *arguments: str) -> dict[str, Any]:
    """Run the script and return what it tells."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(root), *arguments],
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def contents(root: Path) -> dict[str, bytes]:
    """Return all files below a root, the mp3 files aside: their encoder may be another one."""
    files = (path for path in root.rglob("*.*") if path.suffix != ".mp3")
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a small data set."""
    root = tmp_path_factory.mktemp("small") / "data"
    told = make(root, *SMALL)
    clips = [path for path in root.rglob("*.*") if path.suffix in (".wav", ".mp3")]
    assert (told["samples"], told["clips"]) == (44, len(clips))
    assert told["audio_bytes"] == sum(path.stat().st_size for path in clips)
    return root


def test_it_is_sound(small: Path) -> None:
    """There is nothing to find in it, and its folders are the benchmark's."""
    found = verify(small, selection())
    assert found.findings == ()
    assert set(found.folders) == {(task.name, source) for task in TASKS.values() for source in task.folders}
    assert {task: row.samples for task, row in found.tasks.items()} == {
        task.name: task.samples // 50 for task in TASKS.values()
    }


def test_the_same_arguments_give_the_same_bytes(small: Path, tmp_path: Path) -> None:
    """Metadata and wav files are the same byte for byte; with another seed all of them are others."""
    make(tmp_path / "again", *SMALL)
    make(tmp_path / "other", *SMALL, "--seed", "1")
    first, again, other = (contents(root) for root in (small, tmp_path / "again", tmp_path / "other"))
    assert first == again
    assert first.keys() == other.keys()
    assert all(first[name] != other[name] for name in first)


def test_the_full_one_has_the_real_counts_and_lengths(tmp_path: Path) -> None:
    """2,200 samples, 1.8 GB, and questions and references as long as the benchmark's page says."""
    records, clips = synthetic_data.plan(tmp_path, seed=0)
    assert len(records) == len(clips) == 2200
    assert Counter(record["task_name"] for record in records) == {
        task.name: task.samples for task in TASKS.values()
    }
    size = sum(2 * clip.frames * clip.folder.channels for clip in clips if clip.folder.ending == "wav")
    assert 1.75e9 < size < 1.9e9
    questions, references = defaultdict(list), defaultdict(list)
    for record in records:
        for task in (record["task_name"], "all"):
            questions[task].append(len(record["question"]))
            references[task].append(len(record["answer_gt"]))
    told = {
        task: (round(statistics.mean(lengths), 2), min(lengths), max(lengths))
        for task, lengths in questions.items()
    }
    assert told == {
        "speech_QA": (64.33, 23, 148),
        "speech_dialogue_QA": (77.03, 29, 206),
        "sound_QA": (73.29, 17, 166),
        "sound_generation_QA": (222.52, 130, 423),
        "music_QA": (57.54, 24, 202),
        "music_generation_analysis_QA": (267.52, 148, 395),
        "speech_and_sound_QA": (63.98, 25, 127),
        "speech_and_music_QA": (69.37, 32, 127),
        "all": (83.89, 17, 423),
    }
    assert round(statistics.mean(references["all"]), 2) == 140.38
    assert round(statistics.mean(references["music_generation_analysis_QA"]), 2) == 1068.28


def test_clips_can_be_shared(tmp_path: Path) -> None:
    """With --shared-clips several questions are about one clip, also in two tasks, with the same bytes."""
    told = make(tmp_path / "data", "--scale", "0.05", "--small-clips", "--shared-clips")
    assert told["clips"] < told["samples"] == 110
    found = verify(tmp_path / "data", selection())
    assert found.findings == ()
    assert found.shared == 8
    chat = tmp_path / "data" / "Chat"
    generation = chat / "sound_generation_QA_clotho"
    for clip in generation.iterdir():
        assert clip.read_bytes() == (chat / "sound_QA_clotho" / clip.name).read_bytes()


def test_nothing_is_overwritten(small: Path) -> None:
    """A root that holds a data set is refused and stays as it is."""
    before = contents(small)
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(small), *SMALL], capture_output=True, encoding="utf-8", check=False
    )
    assert done.returncode == 1
    assert "is there already" in done.stderr
    assert contents(small) == before
