"""A fixed share of the samples: who gets which, and where it is said that a run is one."""

from __future__ import annotations

import html
import io
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from otoscope.benchmark import TASKS
from otoscope.config import Shard, TaskConfig, changed_fields, fingerprint, resolve, without_selection
from otoscope.dataset.selection import of_shard
from otoscope.errors import ConfigError, DatasetError
from otoscope.evaluation import run_task
from otoscope.leaderboard import leaderboard
from otoscope.records import Sample
from otoscope.reports.html import render_html
from otoscope.reports.latex import render_latex
from otoscope.reports.markdown import render_markdown
from otoscope.reports.terminal import render
from otoscope.runs import load_run
from otoscope.store import MANIFEST, read_manifest
from otoscope.texts import LANGUAGES, catalogue
from tests.report_runs import reported
from tests.scripted_server import ScriptedServer
from tests.support import DEMO, config, flags, lines, otoscope, write_data

KEYS = {"OTOSCOPE_JUDGE_API_KEY": "k"}


def a_sample(task: str, clip: str, number: int) -> Sample:
    """Return a question about a clip."""
    return Sample(
        task=task, dataset="d", path=clip, uniq_id=number, question="?", reference="!", description="",
        audio_path="", digest="0",
    )  # fmt: skip


@st.composite
def selections(draw: st.DrawFn) -> list[Sample]:
    """Give samples of some tasks, in any order, of which several may be about one clip."""
    found = [
        a_sample(task, f"clip_{clip}.wav", number)
        for task in draw(st.sets(st.sampled_from(list(TASKS)), min_size=1))
        for clip, questions in enumerate(draw(st.lists(st.integers(1, 3), max_size=12)))
        for number in range(questions)
    ]
    return draw(st.permutations(found))


def keys(samples: Sequence[Sample]) -> list[str]:
    """Return the samples' keys."""
    return [sample.key for sample in samples]


# --- who gets which ---------------------------------------------------------------------------------------


@given(selections(), st.integers(1, 9), st.randoms())
def test_shards_divide_the_selection_exactly(samples: list[Sample], of: int, random: Any) -> None:
    """Every sample is in one shard, in its place; a clip is in one, too; the order of the data is nothing."""
    parts = [of_shard(samples, Shard(number, of)) for number in range(1, of + 1)]
    assert sorted(key for part in parts for key in keys(part)) == sorted(keys(samples))
    for part in parts:
        assert part == [sample for sample in samples if sample in part]
    clips = Counter(clip for part in parts for clip in {sample.clip_key for sample in part})
    assert set(clips.values()) <= {1}
    shuffled = random.sample(samples, len(samples))
    for number, part in enumerate(parts, start=1):
        assert set(keys(of_shard(shuffled, Shard(number, of)))) == set(keys(part))
    assert of_shard(samples, None) == samples


@given(selections(), st.integers(1, 9))
def test_shares_are_as_equal_as_clips_allow(samples: list[Sample], of: int) -> None:
    """Of a task no shard has more than another by more than one clip's questions."""
    parts = [Counter(sample.task for sample in of_shard(samples, Shard(i, of))) for i in range(1, of + 1)]
    questions = Counter((sample.task, sample.clip_key) for sample in samples)
    for task in {sample.task for sample in samples}:
        sizes = [part[task] for part in parts]
        assert max(sizes) - min(sizes) <= max(n for (name, _), n in questions.items() if name == task)


@given(st.lists(st.integers(0, 30), min_size=8, max_size=8), st.integers(1, 40))
def test_with_a_question_a_clip_the_shares_differ_by_one(sizes: list[int], of: int) -> None:
    """What tasks leave over goes to whoever has least: in all no two shards differ by more than a sample."""
    samples = [a_sample(t, f"{n}.wav", n) for t, size in zip(TASKS, sizes, strict=True) for n in range(size)]
    counts = [len(of_shard(samples, Shard(number, of))) for number in range(1, of + 1)]
    assert max(counts) - min(counts) <= 1


def test_who_gets_which_never_changes() -> None:
    """The shares of a machine, a version or a process are those of every other one."""
    samples = [a_sample("sound_QA", f"clip_{n}.wav", 0) for n in range(12)]
    code = (
        "from otoscope.config import Shard; from otoscope.dataset.selection import of_shard; "
        "from tests.test_shards import a_sample; "
        "samples = [a_sample('sound_QA', f'clip_{n}.wav', 0) for n in range(12)]; "
        "print(*(s.path for s in of_shard(samples, Shard(2, 3))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        encoding="utf-8",
        check=True,
        cwd=Path(__file__).parent.parent,
    )
    assert done.stdout.split() == [sample.path for sample in of_shard(samples, Shard(2, 3))]
    assert done.stdout.split() == ["clip_0.wav", "clip_3.wav", "clip_7.wav", "clip_11.wav"]


def test_more_shards_than_clips_leave_the_last_ones_empty() -> None:
    """A shard beyond the number of clips has nothing, and its number costs no memory."""
    samples = [a_sample(task, f"{n}.wav", 0) for task in list(TASKS)[:2] for n in range(2)]
    whole = [of_shard(samples, Shard(number, 10**5)) for number in (1, 2, 3, 4, 5, 10**5)]
    assert [len(part) for part in whole] == [1, 1, 1, 1, 0, 0]


# --- as a setting -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0/4", "counted from 1, so that of 4 they are 1/4 to 4/4"),
        ("0/4", "$((SLURM_ARRAY_TASK_ID+1))/$SLURM_ARRAY_TASK_COUNT"),
        ("5/4", "of 4 shards the last is 4/4"),
        ("1/0", "there are no shards of 0"),
        ("1/100001", "at most 100,000"),
        ("0/0", "there are no shards of 0"),
        *(
            (text, "must have the form I/N")
            for text in ("1", "1/", "/4", "-1/4", "1/4/2", "a/b", "1.5/4", "٢/٤")
        ),
    ],
)
def test_a_shard_that_there_is_not_is_refused(text: str, said: str) -> None:
    """Each mistake is told by what it is."""
    with pytest.raises(ConfigError) as caught:
        Shard.parse(text)
    assert said in str(caught.value)
    assert str(caught.value).startswith("shard: ")


def settled(**more: Any) -> TaskConfig:
    """Return settings that can be resolved without anything being there."""
    return TaskConfig(model="m", api_url="http://127.0.0.1:9/v1", judge_model_args={"api_key": "k"}, **more)


def test_a_shard_is_part_of_the_selection_and_of_no_fingerprint() -> None:
    """It is stored, goes with the selection, and changes nothing that answers depend on; 1/1 is the whole."""
    sharded, whole = (resolve(settled(**more), {}) for more in ({"shard": " 2/4 "}, {}))
    assert sharded.selection.shard == Shard(2, 4)
    assert str(sharded.selection.shard) == "2/4"
    assert resolve(TaskConfig().over(sharded.stored), KEYS).selection == sharded.selection
    assert resolve(settled().over(without_selection(sharded.stored)), {}).selection == whole.selection
    assert resolve(settled(shard="1/1"), {}).selection == whole.selection
    prints = [fingerprint(one, judge_prompt_sha256="", parser_version=1) for one in (sharded, whole)]
    assert changed_fields(*prints) == {}


def test_wrong_shards_end_the_command_before_anything_is_sent(tmp_path: Path) -> None:
    """0/4 and 5/4 are usage; a shard without samples is named with what there is to divide."""
    data = write_data(tmp_path / "data", each=1)
    with ScriptedServer() as server:
        for shard, code, said in (
            ("0/4", 2, "counted from 1"),
            ("5/4", 2, "the last is 4/4"),
            ("", 2, "--shard: is empty"),
            ("9/9", 3, "8 samples about 8 clips"),
        ):
            done = otoscope(*flags(server.url, data, "--run-dir", str(tmp_path / "run"), "--shard", shard))
            assert (done.returncode, said in done.stderr) == (code, True), done.stderr
        assert server.requests == []
    assert not (tmp_path / "run").exists()


# --- as a run ---------------------------------------------------------------------------------------------


def test_shards_are_evaluated_apart_and_ask_for_each_sample_once(tmp_path: Path) -> None:
    """Each says in its manifest which one it is, and of how many samples; a resume keeps it as the limit."""
    data = write_data(tmp_path / "data", each=3)
    with ScriptedServer() as server:
        runs = [
            run_task(config(server.url, data, tmp_path / str(i), limit=2, shard=f"{i}/3")) for i in (1, 2, 3)
        ]
        assert sum(seen.kind == "model" for seen in server.requests) == 16
        told = [run.manifest["selection"] for run in runs]
        assert [(one["shard"], one["selected"], one["limit"]) for one in told] == [
            (f"{i}/3", 16, 2) for i in (1, 2, 3)
        ]
        assert sum(one["samples"] for one in told) == 16
        again = run_task(TaskConfig(use_cache=str(tmp_path / "2")), environ=KEYS)
        assert again.manifest["selection"] == told[1]
        asked = [line["key"] for i in (1, 2, 3) for line in lines(tmp_path / str(i) / "answers.jsonl")]
        assert len(asked) == len(set(asked)) == 16


def test_another_shard_in_the_same_folder_is_a_changed_selection(tmp_path: Path) -> None:
    """What is outside of it stays and enters no number; the first shard then owes nothing."""
    data = write_data(tmp_path / "data", each=2)
    with ScriptedServer() as server:
        for shard in ("1/2", "2/2"):
            run = run_task(config(server.url, data, tmp_path / "run", shard=shard))
        warned = {warning["name"]: warning["values"] for warning in run.summary.warnings}
        assert warned["outside_selection"] == {"outside": 8}
        assert warned["shard"] == {"shard": "2/2"}
        assert run.summary.counts["expected"] == 8
        count = len(server.requests)
        run_task(config(server.url, data, tmp_path / "run", shard="1/2"))
        whole = run_task(config(server.url, data, tmp_path / "run"))
        assert len(server.requests) == count
    assert whole.summary.counts["scored"] == 16
    assert "shard" not in whole.manifest["selection"]


def test_a_whole_command_over_a_run_chooses_its_shard_itself(tmp_path: Path) -> None:
    """With --use-cache and a model the shard is not taken over, like every selection."""
    data = write_data(tmp_path / "data", each=1)
    with ScriptedServer() as server:
        run_task(config(server.url, data, tmp_path / "run", shard="1/2"))
        whole = run_task(config(server.url, data, use_cache=str(tmp_path / "run")))
    assert whole.summary.counts["scored"] == 8


def test_shuffled_clips_are_those_of_the_whole_selection(tmp_path: Path) -> None:
    """In a control run whose clip takes whose place does not depend on the shards."""
    data = write_data(tmp_path / "data", each=3, tasks=["sound_QA"])

    def sent(run: Path) -> dict[str, str]:
        return {line["key"]: line["clip"]["from"] for line in lines(run / "answers.jsonl")}

    with ScriptedServer() as server:
        for name, shard in (("whole", None), ("1", "1/3"), ("2", "2/3"), ("3", "3/3")):
            run_task(config(server.url, data, tmp_path / name, shard=shard, control="shuffled"))
    parts = [sent(tmp_path / name) for name in ("1", "2", "3")]
    assert {key: clip for part in parts for key, clip in part.items()} == sent(tmp_path / "whole")
    assert all(len(part) == 1 for part in parts)


def test_a_folder_that_only_other_shards_need_may_be_missing(tmp_path: Path) -> None:
    """What a shard does not read need not be on its machine, and what it reads is missed by name."""
    data = write_data(tmp_path / "data", each=1, tasks=["sound_QA", "music_QA"])
    folder = data / "Chat" / "music_QA_tones"
    folder.rename(tmp_path / "elsewhere")
    with ScriptedServer() as server:
        with pytest.raises(DatasetError, match="music_QA_tones"):
            run_task(config(server.url, data, tmp_path / "1", shard="1/2"))
        run = run_task(config(server.url, data, tmp_path / "2", shard="2/2"))
    assert list(run.summary.tasks) == ["sound_QA"]


# --- where it is said -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a finished run of a shard of the bundled clips whose tasks' shares are those of the whole."""
    path = tmp_path_factory.mktemp("shards") / "run"
    with ScriptedServer() as server:
        run_task(config(server.url, DEMO, path, shard="2/2"))
    return path


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_report_says_that_it_is_a_shard(sharded: Path, language: str) -> None:
    """Before the numbers on the terminal and in the page, under the table elsewhere, with what to do."""
    say, run = catalogue(language), reported(sharded)
    text = say("warning.shard", shard="2/2")
    assert "otoscope merge" in text
    stream = io.StringIO()
    render(run.summary, Console(file=stream, width=200), language=language)
    shown = stream.getvalue()
    assert f"! {text}" in shown
    assert shown.index(text) < shown.index("scripted-model on" if language == "en" else "AIR-Bench")
    page = render_html([run], language=language, figures={}, now="2026-11-30 12:00 UTC")
    assert say("html.fact.shard") in page
    assert text in html.unescape(re.sub(r"<[^>]*>", "", page))
    assert text in render_markdown([run], say, appendix=True)
    assert "2/2" in render_latex([run], say, appendix=True)


def test_a_shard_is_partial_for_programs_and_in_the_leaderboard(sharded: Path) -> None:
    """summary.json says so whatever the tasks' shares, and the leaderboard ranks no shard with whole runs."""
    summary = json.loads((sharded / "summary.json").read_text(encoding="utf-8"))
    assert summary["partial"] is True
    assert summary["selection"]["shard"] == "2/2"
    assert load_run(sharded, view="paper-2000").summary.partial
    rows = [row for group in leaderboard(sharded.parent).groups for row in group.rows]
    (row,) = (row for row in rows if row.path == str(sharded))
    assert "shard 2/2" in str(row.partial)


def test_settings_and_dry_run_show_the_shard(tmp_path: Path) -> None:
    """Before anything is sent one sees which share it is, and its calls alone are counted."""
    with ScriptedServer() as server:
        limited = ["--shard", "1/4", "--limit", "1"]
        done = otoscope(*flags(server.url, DEMO, "--dry-run", *limited), cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "at most 1 of each task, in the order of the data; of these shard 1 of 4" in " ".join(
            done.stdout.split()
        )
        assert "2 to the model, 4 to the judge" in done.stdout
        assert server.requests == []


def test_a_bundle_says_that_it_is_a_shard(sharded: Path, tmp_path: Path) -> None:
    """The mark goes with what is passed on."""
    done = otoscope("export", str(sharded), "--bundle", str(tmp_path / "b.zip"), "--no-data")
    assert done.returncode == 0, done.stderr
    subprocess.run([sys.executable, "-m", "zipfile", "-e", "b.zip", "."], cwd=tmp_path, check=True)
    (folder,) = tmp_path.glob("run-*")
    assert read_manifest(folder / MANIFEST)["selection"]["shard"] == "2/2"
    assert any(warning["name"] == "shard" for warning in load_run(folder).summary.warnings)
