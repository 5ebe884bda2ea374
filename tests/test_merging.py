"""Runs joined into one: the same numbers as of one run, nothing twice, nothing that differs, nothing lost."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import otoscope as package
from otoscope.bundle import export_bundle
from otoscope.config import TaskConfig
from otoscope.errors import ConfigError, OtoscopeError, RunDirectoryError
from otoscope.evaluation import run_task
from otoscope.judging import judge_runs
from otoscope.lock import Identity, RunLock
from otoscope.merging import merge, merge_runs
from otoscope.merging.sources import open_source
from otoscope.runs import Run, load_run
from otoscope.store import ANSWERS, MANIFEST, SAMPLES, SUMMARY, VERDICTS, RunStore, read_manifest
from otoscope.texts import LANGUAGES, catalogue
from tests.scripted_server import Response, ScriptedServer, Seen, scripted_answers
from tests.support import command, config, environment, flags, lines, otoscope, write_data

KEYS = {"OTOSCOPE_JUDGE_API_KEY": "judge-key"}
FILES = (ANSWERS, VERDICTS, SAMPLES, SUMMARY, MANIFEST)


def numbers(run: Path, **how: Any) -> dict[str, Any]:
    """Return everything of a run's summary but when it was made."""
    summary = load_run(run, **how).summary.to_json()
    written = json.loads((run / SUMMARY).read_text(encoding="utf-8"))
    if not how:
        assert json.loads(json.dumps(summary)) == written
    return {name: value for name, value in summary.items() if name not in ("created_at", "timing")}


def sharded(server: ScriptedServer, data: Path, folder: Path, of: int, **more: Any) -> list[Path]:
    """Evaluate every shard and return the runs."""
    shards = [(number, folder / str(number)) for number in range(1, of + 1)]
    for number, path in shards:
        run_task(config(server.url, data, path, shard=f"{number}/{of}", **more))
    return [path for _, path in shards]


def refused(
    runs: list[Path], place: Path, error: type[OtoscopeError] = RunDirectoryError, **more: Any
) -> str:
    """Return what is said of runs that cannot be joined; nothing is left then."""
    before = place.exists()
    with pytest.raises(error) as caught:
        merge_runs(runs, place, **more)
    assert place.exists() is before
    return str(caught.value)


def state(run: Path) -> dict[str, tuple[bytes, int]]:
    """Return the bytes and times of a run's files."""
    return {
        path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in run.iterdir() if path.is_file()
    }


def changed(run: Path, name: str, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the first line of a file of a run, or its manifest."""
    path = run / name
    if name == MANIFEST:
        told = json.loads(path.read_text(encoding="utf-8"))
        change(told)
        path.write_text(json.dumps(told), encoding="utf-8")
        return
    first, *rest = lines(path)
    change(first)
    path.write_text("".join(json.dumps(line) + "\n" for line in (first, *rest)), encoding="utf-8")


def several_questions(root: Path) -> Path:
    """Write a small data set in which some clips have two questions."""
    write_data(root, each=5)
    place = root / "Chat" / "Chat_meta.json"
    records = json.loads(place.read_text(encoding="utf-8"))
    more = [
        {**record, "uniq_id": 1000 + n, "question": f"Again {n}?"} for n, record in enumerate(records[::4])
    ]
    place.write_text(json.dumps(records + more), encoding="utf-8")
    return root


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a small data set."""
    return several_questions(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def thirds(data: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Give the finished runs of three shards, which nobody may change."""
    with ScriptedServer() as server:
        return sharded(server, data, tmp_path_factory.mktemp("thirds"), 3)


def copied(runs: list[Path], folder: Path) -> list[Path]:
    """Return copies of runs that may be changed."""
    return [Path(shutil.copytree(run, folder / run.name)) for run in runs]


# --- the same numbers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("no_judge", [False, True])
def test_the_numbers_are_those_of_one_run(tmp_path: Path, data: Path, no_judge: bool) -> None:
    """Shards joined, in whatever order, give what one run over everything gives, by every rule and view."""
    with ScriptedServer() as server:
        run_task(config(server.url, data, tmp_path / "whole", no_judge=no_judge or None))
        runs = sharded(server, data, tmp_path / "runs", 4, no_judge=no_judge or None)
        before = [state(run) for run in runs]
        merged = merge_runs(runs, tmp_path / "merged")
        merge_runs(runs[::-1], tmp_path / "again")
        if no_judge:
            judge_runs([tmp_path / name for name in ("whole", "merged", "again")], environ=KEYS)
    assert [state(run) for run in runs] == before
    for name in ("merged", "again"):
        for how in ({}, {"scoring": "official"}, {"view": "paper-2000"}):
            assert numbers(tmp_path / name, **how) == numbers(tmp_path / "whole", **how)
    assert "shard" not in merged.manifest["selection"]
    whole, joined = (lines(tmp_path / name / SAMPLES) for name in ("whole", "merged"))
    for sample in (*whole, *joined):
        del sample["seconds"]
    assert sorted(whole, key=lambda one: str(one["key"])) == sorted(joined, key=lambda one: str(one["key"]))
    assert (tmp_path / "merged" / ANSWERS).read_bytes() == (tmp_path / "again" / ANSWERS).read_bytes()


def test_nothing_is_asked_again_of_a_merged_run(tmp_path: Path, data: Path) -> None:
    """Lines of the shards count: neither a resume nor the judge, nor a wider selection, pays twice."""
    with ScriptedServer() as server:
        runs = sharded(server, data, tmp_path / "runs", 3, limit=2)
        merged = merge_runs(runs, tmp_path / "merged")
        count = len(server.requests)
        again = run_task(TaskConfig(use_cache=str(merged.path)), environ=KEYS)
        judge_runs([merged.path], environ=KEYS)
        assert len(server.requests) == count
        assert again.summary.counts["expected"] == 16
        wider = run_task(TaskConfig(use_cache=str(merged.path), limit=3), environ=KEYS)
        assert len(server.requests) - count == 8 * 3
    assert wider.summary.counts["scored"] == 24


def test_the_manifest_names_what_it_was_made_of(thirds: list[Path], tmp_path: Path) -> None:
    """Ids, places and SHA-256s of the runs; each line still says which run wrote it, byte for byte."""
    merged = merge_runs(thirds, tmp_path / "merged", label="all of them", tags={"job": "17"})
    told = merged.manifest["merged_from"]
    assert [(tmp_path / "merged" / one["path"]).resolve() for one in told] == thirds
    assert [one["run_id"] for one in told] == [read_manifest(run / MANIFEST)["run_id"] for run in thirds]
    assert [one["shard"] for one in told] == ["1/3", "2/3", "3/3"]
    assert {name for one in told for name in one["sha256"]} == {ANSWERS, VERDICTS}
    for name in (ANSWERS, VERDICTS):
        written = (merged.path / name).read_bytes().splitlines()
        assert sorted(written) == sorted(
            line for run in thirds for line in (run / name).read_bytes().splitlines()
        )
    assert (merged.summary.label, merged.summary.tags) == ("all of them", {"job": "17"})
    assert merged.manifest["settings"]["label"] == "all of them"
    assert "shard" not in merged.manifest["settings"]


def test_runs_of_different_tasks_are_joined(tmp_path: Path, data: Path) -> None:
    """Runs without any shard, as they were made before there were some, are joined by their tasks."""
    with ScriptedServer() as server:
        chosen = ["music", "sound_QA,speech", "mixed_audio,sound_generation_QA"]
        for number, tasks in enumerate(chosen):
            settings = config(server.url, data, tmp_path / str(number), extra_params={"tasks": tasks})
            run_task(settings)
        run_task(config(server.url, data, tmp_path / "whole"))
        two = merge_runs([tmp_path / "0", tmp_path / "1"], tmp_path / "two")
        assert two.manifest["selection"]["tasks"] == [
            "speech_QA", "speech_dialogue_QA", "sound_QA", "music_QA", "music_generation_analysis_QA",
        ]  # fmt: skip
        count = len(server.requests)
        run_task(TaskConfig(use_cache=str(two.path)), environ=KEYS)
        assert len(server.requests) == count
        assert load_run(two.path).summary.counts == two.summary.counts
        merge_runs([tmp_path / "two", tmp_path / "2"], tmp_path / "merged")
    assert numbers(tmp_path / "merged") == numbers(tmp_path / "whole")


def test_another_judge_and_a_bundle_of_a_merged_run(thirds: list[Path], tmp_path: Path) -> None:
    """What is made of a merged run knows the runs that it was made of, too."""
    merged = merge_runs(thirds, tmp_path / "merged")
    with ScriptedServer(scripted_answers(salt="another")) as server:
        other = {"model_id": "other", "api_url": server.url, "api_key": "k"}
        (copy,) = judge_runs([merged.path], TaskConfig(judge_model_args=other), environ={})
        assert {seen.kind for seen in server.requests} == {"judge"}
    assert copy.summary.counts == merged.summary.counts
    for with_data in (True, False):
        for run in (merged.path, copy.path):
            file = tmp_path / f"{run.name}-{with_data}.zip"
            bundled = export_bundle(run, file, with_data=with_data)
            shutil.unpack_archive(file, file.with_suffix(""))
            unpacked = file.with_suffix("") / bundled.folder
            assert numbers(unpacked)["average"] == numbers(run)["average"]
            assert str(tmp_path) not in (unpacked / MANIFEST).read_text(encoding="utf-8")


def test_copies_that_were_judged_apart_are_joined(thirds: list[Path], tmp_path: Path) -> None:
    """Each shard judged by another judge over a copy: their answers' lines are those of the first runs."""
    with ScriptedServer(scripted_answers(salt="another")) as server:
        other = {"model_id": "other", "api_url": server.url, "api_key": "k"}
        settings = TaskConfig(judge_model_args=other, work_dir=str(tmp_path))
        copies = [run.path for run in judge_runs(thirds, settings, environ={})]
    merged = merge_runs(copies, tmp_path / "merged")
    assert merged.summary.judge == "other"
    assert merged.summary.counts["scored"] == merged.summary.counts["expected"] == 50


def test_what_a_later_version_wrote_is_kept(thirds: list[Path], tmp_path: Path) -> None:
    """Unknown fields of lines stay; torn and foreign lines are left out, and counted."""
    runs = copied(thirds, tmp_path)
    changed(runs[0], ANSWERS, lambda line: line.update(future={"a": [1]}))
    changed(runs[1], VERDICTS, lambda line: line.update(future="ü"))
    with (runs[2] / VERDICTS).open("ab") as file:
        file.write(b'{"run": "somebody else", "key": "x"}\n\0\0\0\n{"run": "torn')
    merged = merge(runs, tmp_path / "merged")
    assert [line["future"] for line in lines(tmp_path / "merged" / ANSWERS) if "future" in line] == [
        {"a": [1]}
    ]
    assert [line["future"] for line in lines(tmp_path / "merged" / VERDICTS) if "future" in line] == ["ü"]
    assert merged.skipped_lines == 3
    assert RunStore.open(tmp_path / "merged").skipped_lines == 0


# --- what cannot be joined --------------------------------------------------------------------------------


def test_every_difference_is_named_with_both_values(tmp_path: Path, data: Path) -> None:
    """Runs of other settings are refused: each field, of each run, with what it is in which."""
    with ScriptedServer() as server:
        run_task(config(server.url, data, tmp_path / "1", limit=1))
        run_task(config(server.url, data, tmp_path / "2", limit=1, answer_filter="none", model="other"))
        run_task(config(server.url, data, tmp_path / "3", limit=1, judge_args={"model_id": "third"}))
    said = refused([tmp_path / name for name in "123"], tmp_path / "merged")
    for told in (
        f"model.name: 'scripted-model' in {tmp_path / '1'}, 'other' in {tmp_path / '2'}",
        f"prompt.answer_filter: 'strip-thinking' in {tmp_path / '1'}, 'none' in {tmp_path / '2'}",
        f"judge.name: 'scripted-judge' in {tmp_path / '1'}, 'third' in {tmp_path / '3'}",
    ):
        assert told in said


def test_another_address_may_be_allowed(tmp_path: Path, data: Path) -> None:
    """A server of each job's own has a URL of its own: it is refused by name, or allowed, or revised."""
    for number in (1, 2):
        with ScriptedServer() as server:
            run_task(config(server.url, data, tmp_path / str(number), shard=f"{number}/2"))
            revised = {"model_revision": "r", "judge_args": {"revision": "r"}}
            run_task(config(server.url, data, tmp_path / f"r{number}", shard=f"{number}/2", **revised))
    runs = [tmp_path / "1", tmp_path / "2"]
    said = refused(runs, tmp_path / "merged")
    assert "add --allow-changed judge.api_url --allow-changed model.api_url to the command" in said
    assert "model.api_url" not in refused(runs, tmp_path / "merged", allow_changed=["model.api_url"])
    allowed = merge_runs(runs, tmp_path / "merged", allow_changed=["model.api_url", "judge.api_url"])
    told = {change["field"] for change in allowed.manifest["allowed_changes"]}
    assert told == {"model.api_url", "judge.api_url"}
    assert allowed.summary.counts["scored"] == 50
    assert merge_runs([tmp_path / "r1", tmp_path / "r2"], tmp_path / "r").summary.counts["scored"] == 50
    assert "only model.api_url, judge.api_url, " in refused(
        runs, tmp_path / "new", ConfigError, allow_changed=["model.name"]
    )


def test_other_data_are_refused(tmp_path: Path, data: Path, thirds: list[Path]) -> None:
    """Runs about other records say both digests; a sample that is known differently is named."""
    other = Path(shutil.copytree(data, tmp_path / "other"))
    changed_meta = (other / "Chat" / "Chat_meta.json").read_text(encoding="utf-8").replace("steady", "loud")
    (other / "Chat" / "Chat_meta.json").write_text(changed_meta, encoding="utf-8")
    with ScriptedServer() as server:
        run_task(config(server.url, other, tmp_path / "run", shard="1/3"))
    refusal = refused([tmp_path / "run", *thirds[1:]], tmp_path / "merged", allow_changed=[*URLS])
    assert "about different data" in refusal
    one, two = copied([thirds[0]], tmp_path / "a") + copied([thirds[0]], tmp_path / "b")
    changed(two, SAMPLES, lambda line: line.update(sample_digest="0" * 64))
    assert lines(one / SAMPLES)[0]["key"] in refused([one, two, *thirds[1:]], tmp_path / "merged")


URLS = ("model.api_url", "judge.api_url")


def test_samples_that_were_chosen_otherwise_are_refused(tmp_path: Path, data: Path) -> None:
    """Other limits and seeds make no one selection; a seed that nothing hangs on does not matter."""
    with ScriptedServer() as server:
        run_task(config(server.url, data, tmp_path / "1", limit=1))
        run_task(config(server.url, data, tmp_path / "2", limit=2))
        run_task(config(server.url, data, tmp_path / "3", limit=2, seed=7))
        run_task(config(server.url, data, tmp_path / "4", limit=2, seed=7, shuffle=True))
        run_task(config(server.url, data, tmp_path / "5", limit=2, seed=8, shuffle=True))
    said = refused([tmp_path / "1", tmp_path / "2"], tmp_path / "merged")
    assert f"limit: 1 in {tmp_path / '1'}, 2 in {tmp_path / '2'}" in said
    assert "seed: 7" in refused([tmp_path / "4", tmp_path / "5"], tmp_path / "merged")
    assert "shuffle: False" in refused([tmp_path / "3", tmp_path / "4"], tmp_path / "merged")
    assert merge_runs([tmp_path / "2", tmp_path / "3"], tmp_path / "merged").summary.counts["expected"] == 16


def test_runs_that_were_made_of_files_are_refused(thirds: list[Path], tmp_path: Path) -> None:
    """Imports are joined where they are imported, and texts that were withheld are no texts."""
    export_bundle(thirds[0], tmp_path / "b.zip", with_data=False)
    shutil.unpack_archive(tmp_path / "b.zip", tmp_path)
    (bundle,) = tmp_path.glob("run-*")
    assert "shared without its texts" in refused([bundle, *thirds[1:]], tmp_path / "merged")
    (run,) = copied([thirds[0]], tmp_path / "imported")
    changed(run, MANIFEST, lambda told: told.update(imported={"files": []}))
    assert "was made of files" in refused([run, *thirds[1:]], tmp_path / "merged")


@pytest.mark.parametrize("shard", ["0/3", "x", "1/9999999"])
def test_a_manifest_with_a_shard_that_there_is_not_is_named(
    thirds: list[Path], tmp_path: Path, shard: str
) -> None:
    """What a stranger wrote into a manifest costs neither a traceback nor the memory."""
    (run,) = copied(thirds[:1], tmp_path)
    changed(run, MANIFEST, lambda told: told["selection"].update(shard=shard))
    assert f"{run / MANIFEST}: shard: " in refused([run, thirds[1]], tmp_path / "merged")


def test_wrong_places_are_refused(thirds: list[Path], tmp_path: Path) -> None:
    """No run, no runs, a run of its own, a folder with something else: each is said, and nothing is made."""
    assert "nothing to merge" in refused([], tmp_path / "merged", ConfigError)
    assert "one of those to merge" in refused(thirds, thirds[0] / ".." / "1", ConfigError)
    assert "not a run" in refused([*thirds, tmp_path / "nothing"], tmp_path / "merged")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    assert "holds 'thesis.tex'" in refused(thirds, tmp_path / "full")
    (tmp_path / "answers").mkdir()
    (tmp_path / "answers" / ANSWERS).write_text("mine", encoding="utf-8")
    assert f"holds '{ANSWERS}'" in refused(thirds, tmp_path / "answers")
    (tmp_path / "file").touch()
    assert "cannot be made" in refused(thirds, tmp_path / "file")
    assert "cannot be made" in refused(thirds, tmp_path / "file" / "below")
    taken = copied(thirds[:1], tmp_path)[0]
    assert "holds another run already" in refused(thirds, taken)


# --- overlaps ---------------------------------------------------------------------------------------------


def test_what_is_the_same_is_joined_once(thirds: list[Path], tmp_path: Path) -> None:
    """The same run twice, or its copy, changes nothing: no answer is counted as paid for twice."""
    whole = merge_runs(thirds, tmp_path / "merged")
    copy = copied(thirds[:1], tmp_path / "copy")
    twice = merge([*thirds, *copy, thirds[1], tmp_path / "copy" / "." / "1"], tmp_path / "twice")
    assert numbers(tmp_path / "twice") == numbers(whole.path)
    assert twice.sources == 4
    assert twice.shared == whole.manifest["merged_from"][0]["samples"]
    for name in (ANSWERS, VERDICTS):
        assert len(lines(tmp_path / "twice" / name)) == len(lines(whole.path / name))


def test_the_same_answers_asked_for_twice_are_joined_once(
    tmp_path: Path, data: Path, thirds: list[Path]
) -> None:
    """Two runs that happened to be told the same count once, with the replies of one."""
    with ScriptedServer() as server:
        run_task(config(server.url, data, tmp_path / "music", extra_params={"tasks": "music"}))
    merged = merge([*thirds, tmp_path / "music"], tmp_path / "merged", allow_changed=URLS)
    assert merged.shared == 13
    assert merged.run.summary.usage["model"]["replies"] == 50
    assert merged.run.summary.counts["scored"] == 50


def test_different_answers_are_refused(tmp_path: Path, data: Path, thirds: list[Path]) -> None:
    """Which of two answers counts cannot be known: samples, texts and runs are named, the first few."""
    with ScriptedServer(scripted_answers(salt="warm")) as server:
        run_task(config(server.url, data, tmp_path / "music", extra_params={"tasks": "music"}))
    said = refused([*thirds, tmp_path / "music"], tmp_path / "merged", allow_changed=URLS)
    assert "different things of the same samples (13)" in said
    assert said.count("The recording has") == 10
    assert "and 8 more" in said
    assert f"in {tmp_path / 'music'}" in said


def test_different_verdicts_are_refused(thirds: list[Path], tmp_path: Path) -> None:
    """The same answer, scored differently, is a conflict, too; in what was written otherwise it is none."""
    (run,) = copied(thirds[:1], tmp_path)
    changed(run, VERDICTS, lambda line: line.update(answer_score=10 - line["answer_score"]))
    said = refused([*thirds, run], tmp_path / "merged")
    assert "different things of the same samples (1)" in said
    assert "_first, reference and answer scored (" in said
    (same,) = copied(thirds[:1], tmp_path / "same")
    changed(same, VERDICTS, lambda line: line["replies"][0].update(text="Scores: as before"))
    assert merge_runs([*thirds, same], tmp_path / "merged").summary.counts["scored"] == 50


def test_what_one_run_lacks_is_taken_from_the_other(thirds: list[Path], tmp_path: Path) -> None:
    """Of two copies one has other answers and other orders' verdicts than the other: nothing is owed."""
    first, second = copied(thirds[:1], tmp_path / "a") + copied(thirds[:1], tmp_path / "b")
    last = lines(first / ANSWERS)[-1]["key"]

    def keep(run: Path, name: str, wanted: Callable[[dict[str, Any]], bool]) -> None:
        kept = [
            line for line in (run / name).read_bytes().splitlines(keepends=True) if wanted(json.loads(line))
        ]
        (run / name).write_bytes(b"".join(kept))

    keep(first, ANSWERS, lambda line: line["key"] != last)
    keep(first, VERDICTS, lambda line: line["key"] != last and line["order"] == "reference_first")
    keep(second, VERDICTS, lambda line: line["key"] == last or line["order"] == "answer_first")
    merged = merge([first, second, *thirds[1:]], tmp_path / "merged")
    count = len(lines(thirds[0] / SAMPLES))
    assert {path: owed for path, *owed in merged.unfinished} == {
        first: [1, count - 1], second: [0, count - 1],
    }  # fmt: skip
    assert merged.owed == (0, 0)
    assert numbers(tmp_path / "merged") == numbers(merge_runs(thirds, tmp_path / "whole").path)


# --- shards that are missing or not finished --------------------------------------------------------------


def test_a_missing_shard_is_named(thirds: list[Path], tmp_path: Path) -> None:
    """Without it there is no run, unless that is asked for: then every report says what is missing."""
    said = refused([thirds[0], thirds[2]], tmp_path / "merged")
    assert "missing shards: 2/3" in said
    assert "--partial" in said
    merged = merge([thirds[0], thirds[2]], tmp_path / "merged", partial=True)
    assert merged.missing == ("2/3",)
    summary = json.loads((tmp_path / "merged" / SUMMARY).read_text(encoding="utf-8"))
    assert summary["partial"] is True
    assert summary["selection"]["missing_shards"] == ["2/3"]
    for language in LANGUAGES:
        shown = otoscope("report", str(tmp_path / "merged"), "--lang", language, environ={"COLUMNS": "200"})
        assert f"! {catalogue(language)('warning.missing_shards', shards='2/3')}" in shown.stdout
    later = merge_runs([tmp_path / "merged", thirds[1]], tmp_path / "later")
    assert numbers(later.path) == numbers(merge_runs(thirds, tmp_path / "whole").path)
    assert "missing_shards" not in later.manifest["selection"]
    assert "and this run, too" in refused(thirds, tmp_path / "merged")


def test_a_missing_shard_can_be_asked_for_in_the_merged_run(tmp_path: Path, data: Path) -> None:
    """Continuing a run that was merged in part does what is missing and nothing else; then it is whole."""
    with ScriptedServer() as server:
        runs = sharded(server, data, tmp_path / "runs", 3)
        merged = merge_runs(runs[:2], tmp_path / "merged", partial=True)
        count, missing = len(server.requests), 50 - merged.summary.counts["expected"]
        run = run_task(TaskConfig(use_cache=str(merged.path)), environ=KEYS)
        assert len(server.requests) - count == 3 * missing
        run_task(config(server.url, data, tmp_path / "whole"))
    assert numbers(merged.path) == numbers(tmp_path / "whole")
    assert "missing_shards" not in run.manifest["selection"]


def test_shards_of_another_division_count_for_what_they_hold(tmp_path: Path, data: Path) -> None:
    """A half and two quarters are the whole; one quarter less, and it is named."""
    with ScriptedServer() as server:
        halves = sharded(server, data, tmp_path / "halves", 2)
        quarters = sharded(server, data, tmp_path / "quarters", 4)
    said = refused([halves[0], *quarters[:2]], tmp_path / "merged")
    assert "2/2, 3/4, 4/4" in said
    merged = merge_runs([halves[0], *quarters], tmp_path / "merged")
    assert merged.summary.counts["scored"] == 50


def test_an_unfinished_shard_is_told_and_stays_owed(tmp_path: Path, data: Path) -> None:
    """What a preempted job has not answered is owed by the merged run, which gets it and nothing else."""

    def failing(seen: Seen, attempt: int) -> Response:
        if seen.kind == "model" and "clip 0 " in seen.text:
            return Response(status=500)
        return scripted_answers()(seen, attempt)

    with ScriptedServer(failing) as server:
        quick = {"generation_config": {"retry_interval": 0.01, "retries": 0}}
        runs = sharded(server, data, tmp_path / "runs", 2, **quick)
        merged = merge(runs, tmp_path / "merged")
        ((path, answers, verdicts),) = merged.unfinished
        assert path in runs
        assert (answers, verdicts) == merged.owed == (1, 0)
        server.script = scripted_answers()
        count = len(server.requests)
        run_task(TaskConfig(use_cache=str(tmp_path / "merged")), environ=KEYS)
        assert len(server.requests) - count == 3
        assert load_run(tmp_path / "merged").summary.counts["scored"] == 50


# --- the same command again -------------------------------------------------------------------------------


def test_the_same_merge_again_finds_the_run_as_it_is(thirds: list[Path], tmp_path: Path) -> None:
    """Nothing is written, whatever the order, also after the merged run has verdicts of its own."""
    merge_runs(thirds, tmp_path / "merged")
    before = state(tmp_path / "merged")
    again = merge(thirds[::-1], tmp_path / "merged")
    assert again.standing
    assert not again.run.changed
    assert state(tmp_path / "merged") == before


def test_shards_that_have_grown_are_merged_anew(tmp_path: Path, data: Path) -> None:
    """As long as nothing was added to it, the run is made anew under its id; else it has to be named, too."""
    with ScriptedServer() as server:
        runs = sharded(server, data, tmp_path / "runs", 2, no_judge=True)
        first = merge_runs(runs, tmp_path / "merged")
        run_id = first.manifest["run_id"]
        judge_runs(runs[:1], environ=KEYS)
        second = merge_runs(runs, tmp_path / "merged")
        assert second.manifest["run_id"] == run_id
        assert second.summary.counts["scored"] == len(lines(runs[0] / SAMPLES))
        judge_runs([tmp_path / "merged"], environ=KEYS)
        count = len(server.requests)
        judge_runs(runs[1:], environ=KEYS)
        said = refused(runs, tmp_path / "merged")
        assert "has answers or verdicts of its own" in said
        both = merge_runs([*runs, tmp_path / "merged"], tmp_path / "both")
        assert len(server.requests) - count == 2 * len(lines(runs[1] / SAMPLES))
    assert both.summary.counts["scored"] == 50


@pytest.mark.parametrize("moved", range(len(FILES) + 1))
def test_a_merge_that_was_cut_off_is_no_run_and_can_be_repeated(
    thirds: list[Path], tmp_path: Path, moved: int
) -> None:
    """Whatever was in place already: without the manifest it is no run, and the same command makes it."""
    whole, place = merge_runs(thirds, tmp_path / "whole"), tmp_path / "merged"
    shutil.copytree(whole.path, place / ".merging")
    for name in FILES[:moved]:
        (place / ".merging" / name).rename(place / name)
    if moved < len(FILES):
        assert otoscope("report", str(place)).returncode == 6
        assert otoscope("judge", str(place), environ=KEYS).returncode == 6
    merged = merge(thirds, place)
    assert merged.standing is (moved == len(FILES))
    assert sorted(path.name for path in place.iterdir()) == sorted(FILES)
    assert numbers(place) == numbers(whole.path)


def test_a_killed_merge_can_be_repeated(thirds: list[Path], tmp_path: Path) -> None:
    """The real command, killed when it has begun to write."""
    place = tmp_path / "merged"
    words = command("merge", *map(str, thirds), "--run-dir", str(place), "--no-html")
    process = subprocess.Popen(words, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and not (place / ".merging").exists():
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = otoscope(*words[5:])
    assert done.returncode == 0, done.stderr
    assert load_run(place).summary.counts["scored"] == 50


# --- other processes --------------------------------------------------------------------------------------


def test_a_run_that_is_being_written_is_refused(thirds: list[Path], tmp_path: Path) -> None:
    """Its owner is named, on this machine or on another; one that is dead holds up nobody."""
    (run,) = copied(thirds[:1], tmp_path)
    with RunLock(run):
        said = refused([run, *thirds[1:]], tmp_path / "merged")
        assert f"{run}: is in use by pid {Identity.of_this_process().pid} on host" in said
    elsewhere = Identity(host="node17", boot_id="b", pid_namespace="n", pid=4711, process_start="1")
    with RunLock(run, identity=elsewhere):
        assert "pid 4711 on host node17" in refused([run, *thirds[1:]], tmp_path / "merged")
    dead = subprocess.run(["true"], check=True)
    assert dead.returncode == 0
    here = Identity.of_this_process()
    gone = Identity(here.host, here.boot_id, here.pid_namespace, 2**22 - 1, "1")
    lock = RunLock(run, identity=gone)
    lock.acquire()
    before = state(run)
    assert merge_runs([run, *thirds[1:]], tmp_path / "merged").summary.counts["scored"] == 50
    assert state(run) == before
    assert (run / ".lock").exists()


def test_a_run_that_is_written_to_while_it_is_read_is_refused(thirds: list[Path], tmp_path: Path) -> None:
    """Whoever began and ended meanwhile is noticed by the files; a lock without an owner yet, too."""
    (run,) = copied(thirds[:1], tmp_path)
    source = open_source(run)
    source.refuse_changes()
    with (run / ANSWERS).open("ab") as file:
        file.write(b"\n")
    with pytest.raises(RunDirectoryError, match=rf"written to while it was read \({ANSWERS}\)"):
        source.refuse_changes()
    source.store.close()
    (run / ".lock").mkdir()
    assert "just being taken" in refused([run, *thirds[1:]], tmp_path / "merged")


def test_two_merges_into_one_folder_wait_for_each_other(thirds: list[Path], tmp_path: Path) -> None:
    """The folder is locked; --take-over takes it."""
    place = tmp_path / "merged"
    place.mkdir()
    lock = RunLock(place)
    lock.acquire()
    assert "is in use by" in refused(thirds, place)
    merge_runs(thirds, place, take_over=True)
    assert not lock.still_ours()


# --- the command ------------------------------------------------------------------------------------------


def test_the_command_shows_the_run_and_what_is_left(tmp_path: Path, data: Path) -> None:
    """It prints the report, tells what was joined, and exits as the errors say."""
    with ScriptedServer() as server:
        for shard in ("1/2", "2/2"):
            words = ["--shard", shard, "--run-dir", str(tmp_path / shard[0]), "--no-judge"]
            assert otoscope(*flags(server.url, data, *words)).returncode == 0
    runs = [str(tmp_path / "1"), str(tmp_path / "2")]
    place = str(tmp_path / "merged")
    done = otoscope("merge", runs[0], "--run-dir", place)
    assert (done.returncode, "missing shards: 2/2" in done.stderr) == (6, True)
    done = otoscope("merge", runs[0], "--run-dir", place, "--partial", "--no-html")
    assert done.returncode == 0, done.stderr
    assert "24 samples of 1 run" in done.stderr
    assert f"otoscope eval --use-cache {place} --no-judge" in done.stderr
    done = otoscope("merge", *runs, "--run-dir", place)
    assert (done.returncode, "holds another run already" in done.stderr) == (6, True)
    done = otoscope("merge", *runs, "--run-dir", place + "2", "--format", "json", "--tag", "a=b")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["tags"] == {"a": "b"}
    assert (tmp_path / "merged2" / "report.html").exists()
    for words, code, said in (
        (["merge", *runs], 2, "--run-dir"),
        (["merge", "--run-dir", place], 2, "RUN"),
        (["merge", *runs, "--run-dir", ""], 2, "--run-dir"),
        (["merge", *runs, "--run-dir", runs[0]], 2, "one of those to merge"),
        (["merge", *runs, "--run-dir", place + "3", "--allow-changed", "modl.api_url"], 2, "did you mean"),
        (["merge", *runs, "--run-dir", place + "3", "--tag", "x"], 2, "--tag"),
        (["merge", str(data), "--run-dir", place + "3"], 6, "not a run"),
    ):
        done = otoscope(*words)
        assert (done.returncode, said in done.stderr) == (code, True), (words, done.stderr)
        assert "Traceback" not in done.stderr
    assert not (tmp_path / "merged3").exists()


def test_the_function_is_public(thirds: list[Path], tmp_path: Path) -> None:
    """It takes what one has, text or paths, and returns the run."""
    run = package.merge_runs([str(path) for path in thirds], str(tmp_path / "merged"))
    assert isinstance(run, Run)
    assert "merge_runs" in package.__all__
