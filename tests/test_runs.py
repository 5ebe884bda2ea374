"""A stored run read back: what was written of it stands as long as nothing it was made from has changed."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from otoscope.errors import RunDirectoryError
from otoscope.records import Outcome, Sample
from otoscope.reports.terminal import render
from otoscope.runs import Listener, Reading, load_run, newer, read_run, standing_results, summary_of
from otoscope.scoring import Summary
from otoscope.store import ANSWERS, MANIFEST, SAMPLES, SUMMARY, RunStore
from tests.report_runs import hostile_run, small_run, write_run

LATER = 10**9
"""A second, in nanoseconds."""


def standing(path: Path, samples: list[Sample] | None = None) -> Summary | None:
    """Return the summary that still stands for these samples, or for the run's own."""
    with RunStore.open(path) as store:
        return standing_results(store, store.samples() if samples is None else samples)


def touch_after(path: Path, other: Path) -> None:
    """Date a file a second after another."""
    later = other.stat().st_mtime_ns + LATER
    os.utime(path, ns=(later, later))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a finished run, whose summary is newer than all else."""
    path = write_run(tmp_path / "run", small_run())
    touch_after(path / SUMMARY, path / SAMPLES)
    return path


@pytest.mark.parametrize("ended", [small_run, hostile_run])
@pytest.mark.parametrize("scoring", ["default", "official"])
def test_a_summary_is_read_back_as_it_was_written(
    tmp_path: Path, ended: Callable[[], list[object]], scoring: str
) -> None:
    """What stands in its JSON is all of it: it is told again in the same words and numbers."""
    summary = load_run(write_run(tmp_path / "run", ended()), scoring=scoring).summary  # type: ignore[arg-type]
    stored = summary.to_json()
    again = Summary.from_json(json.loads(json.dumps(stored)))
    assert again.to_json() == stored
    assert (again.average, again.tasks, again.datasets) == (summary.average, summary.tasks, summary.datasets)
    assert terminal(again) == terminal(summary)


def terminal(summary: Summary) -> str:
    """Return the report on the terminal."""
    file = io.StringIO()
    render(summary, Console(file=file, width=100, force_terminal=False))
    return file.getvalue()


def test_results_stand_while_nothing_changed(run: Path) -> None:
    """They are what summing up anew gives."""
    found = standing(run)
    assert found is not None
    assert found.to_json() == load_run(run).summary.to_json()


@pytest.mark.parametrize("name", [MANIFEST, ANSWERS, SAMPLES])
def test_results_do_not_stand_when_a_file_is_as_new(run: Path, name: str) -> None:
    """What they were made from is no older than they are."""
    os.utime(run / name, ns=((run / SUMMARY).stat().st_mtime_ns,) * 2)
    assert standing(run) is None


def test_results_do_not_stand_for_other_samples(run: Path) -> None:
    """A selection of fewer samples, and a sample whose record changed, are summed up anew."""
    with RunStore.open(run) as store:
        samples = store.samples()
    assert standing(run, samples[1:]) is None
    first = samples[0]
    changed = Sample(
        first.task, first.dataset, first.path, first.uniq_id, first.question, "Other.", first.description,
        first.audio_path, "other",
    )  # fmt: skip
    assert standing(run, [changed, *samples[1:]]) is None


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 1, "scoring": "default", "view": "full"}'])
def test_a_summary_of_another_form_does_not_stand(run: Path, content: str) -> None:
    """An empty file, and one by another version or hand, is written anew."""
    (run / SUMMARY).write_text(content, encoding="utf-8")
    touch_after(run / SUMMARY, run / SAMPLES)
    assert standing(run) is None


def test_a_run_without_results_has_none_that_stand(run: Path) -> None:
    """Nor does a run whose samples cannot be read."""
    (run / SUMMARY).unlink()
    assert standing(run) is None
    with pytest.raises(FileNotFoundError):
        newer(run / SUMMARY, [])


def test_the_manifest_keeps_its_time_when_it_says_the_same(run: Path) -> None:
    """In whatever order; a change is written."""
    before = (run / MANIFEST).stat().st_mtime_ns
    with RunStore.open(run) as store:
        store.manifest = dict(reversed(store.manifest.items()))
        store.write_manifest()
        assert (run / MANIFEST).stat().st_mtime_ns == before
        store.manifest["label"] = "another"
        store.write_manifest()
    assert json.loads((run / MANIFEST).read_text("utf-8"))["label"] == "another"


def test_others_hear_of_each_sample_in_the_same_reading(run: Path) -> None:
    """They hear of those within the view, in order, after they were told how the run is scored."""
    heard: list[Outcome] = []
    known: list[Reading] = []

    def listeners(reading: Reading) -> list[Listener]:
        known.append(reading)
        return [heard.append]

    read = read_run(run, scoring="official", view="paper-2000", listeners=listeners)
    with RunStore.open(run) as store:
        summary = summary_of(store, store.samples(), scoring="official", view="paper-2000")
    assert read.summary == summary
    assert [(one.rule.scoring, one.view) for one in known] == [("official", "paper-2000")]
    own = [one for one in load_run(run).outcomes() if "generation" not in one.sample.task]
    assert heard == own


def test_a_run_that_is_none_is_named(tmp_path: Path) -> None:
    """Nobody hears of anything then."""
    with pytest.raises(RunDirectoryError, match="not a run"):
        read_run(tmp_path, scoring="default", view="full", listeners=lambda _reading: [])
