"""Local runs and published scores side by side: who is ranked with whom, and what stands apart."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from otoscope.benchmark import PAPER_JUDGE, TASKS
from otoscope.comparison import Comparison, JudgedRun, compare
from otoscope.errors import ConfigError, RunDirectoryError
from otoscope.judge import PROMPT_SHA256
from otoscope.leaderboard import Group, Leaderboard, Row, leaderboard
from otoscope.parsing import PARSER_VERSION
from otoscope.records import (
    Answer,
    AudioClip,
    Failure,
    FailureKind,
    Json,
    Order,
    Reply,
    Sample,
    Verdict,
    text_digest,
)
from otoscope.reports.leaderboard import render, to_csv, to_json, to_markdown
from otoscope.runs import judged_orders, load_run
from otoscope.store import MANIFEST, SUMMARY, VERDICTS, RunStore, sample_to_line
from tests.scripted_server import ScriptedServer
from tests.support import DEMO, flags, lines, otoscope

JUDGE: Json = {
    "revision": None, "api_url": "http://judge/v1", "parameters": {"temperature": 0, "max_tokens": 1024},
    "extra_body": {}, "extra_headers": [], "protocol": "default", "do_swap": True,
    "prompt_sha256": PROMPT_SHA256, "parser_version": PARSER_VERSION,
}  # fmt: skip
PROMPT = {"template": "{question}", "system": None, "part_order": "audio-first"}
FULL = {name: task.samples for name, task in TASKS.items()}
FEW = dict.fromkeys(TASKS, 2)
HOSTILE = "a|b [bold]*x*\x1b[31m\n<b> \u202e"


def write_run(
    path: Path,
    *,
    sizes: Mapping[str, int] = FEW,
    score: int = 7,
    model: str = "qwen2-audio",
    judge: str | None = PAPER_JUDGE,
    served: str | None = PAPER_JUDGE,
    failed: Mapping[str, int] | None = None,
    pending: int = 0,
    swap: bool = True,
    asked: Json | None = None,
    sent: Mapping[str, Any] | None = None,
    kind: str = "integer",
    summary: bool = True,
    **manifest: Any,
) -> Path:
    """Write a run as an evaluation does: so many samples of each task, all but a few with this score.

    ``failed`` is how many samples of a task failed, ``pending`` how many of each have no verdict yet.
    ``served`` is the name of the judge in the server's replies, ``sent`` what they say was sent, ``asked``
    what was requested of it otherwise than usual.
    """
    requested = {**JUDGE, "name": judge, "do_swap": swap, **(asked or {})} if judge else None
    fingerprint = {"model": {"name": model}, "prompt": PROMPT, "judge": requested}
    selection = {"limit": None, "shuffle": False}
    stored: Json = {"fingerprint": fingerprint, "judge_id": "j" if judge else None, "selection": selection}
    samples = []
    with RunStore.create(path, {"label": None, "tags": {}, **stored, **manifest}) as store:
        store.open_for_writing()
        for task, size in sizes.items():
            for number in range(size):
                sample = a_sample(task, number)
                samples.append(sample)
                if number < (failed or {}).get(task, 0):
                    store.append_answer(sample, None, Failure(FailureKind.BAD_AUDIO, "empty"))
                    continue
                clip = AudioClip("c.wav", f"{task}{number}", 9, 1, "wav", 1.0, 8000, 1, ())
                answer = Answer(raw_text="yes", text="yes", replies=(Reply(text="yes", model=model),))
                store.append_answer(sample, clip, answer)
                if judge is None or number < pending:
                    continue
                # Scores that vary, so that there is an interval, around the one asked for.
                given = score + (number % 3 - 1 if number < size - size % 3 else 0)
                for order in Order.judged(swap=swap):
                    verdict = a_verdict(order, given, served, sent or {}, kind)
                    store.append_verdict(sample, order, "j", answer.sha256, verdict)
        store.write_samples(map(sample_to_line, samples))
    if summary:
        write_summary(path)
    return path


def a_sample(task: str, number: int) -> Sample:
    """Return one sample of a task."""
    name = f"{number}.wav"
    return Sample(task, TASKS[task].folders[0], name, number, f"q {number}?", "r", "d", "", f"{task}{number}")


def a_verdict(order: Order, score: float, served: str | None, sent: Mapping[str, Any], kind: str) -> Verdict:
    """Return a verdict of a server that says what its model is called."""
    return Verdict(
        order=order,
        judge_id="j",
        answer_sha256="",
        score_kind=kind,
        reference_score=8,
        answer_score=score,
        replies=(Reply(text=f"8 {score}", model=served, parameters=sent),),
    )


def write_summary(path: Path, **changed: Any) -> None:
    """Write the summary as an evaluation does at its end, with other values where given."""
    content = json.dumps({**load_run(path).summary.to_json(), **changed})
    (path / SUMMARY).write_text(content, encoding="utf-8")
    set_age(path, newer=True)


def copy_run(
    source: Path, path: Path, *, served: str = PAPER_JUDGE, failed: Mapping[str, int] | None = None
) -> None:
    """Copy a run, with another name in the judge's replies, or failures in the place of scores."""
    shutil.copytree(source, path)
    lost = {
        a_sample(task, n).key: a_sample(task, n)
        for task, count in (failed or {}).items()
        for n in range(count)
    }
    kept = [line for line in lines(path / VERDICTS) if line["key"] not in lost]
    for line in kept:
        line["replies"][0]["model"] = served
    (path / VERDICTS).write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
    with RunStore.open(path) as store:
        store.open_for_writing()
        for sample in lost.values():
            failure = Failure(FailureKind.UNPARSEABLE, "the judge said no")
            for order in Order:
                store.append_verdict(sample, order, "j", text_digest("yes"), failure)
    write_summary(path)


def set_age(path: Path, *, newer: bool) -> None:
    """Make the summary newer or older than the verdicts."""
    at = (path / VERDICTS).stat().st_mtime + (10 if newer else -10)
    os.utime(path / SUMMARY, (at, at))


def rows_of(board: Leaderboard) -> list[Row]:
    """Return all rows in their order."""
    return [row for group in board.groups for row in group.rows]


def local(board: Leaderboard) -> list[Row]:
    """Return the rows of local runs in their order."""
    return [row for row in rows_of(board) if row.status == "local"]


def group_of(board: Leaderboard, row: Row) -> Group:
    """Return the group that a row is in."""
    return next(group for group in board.groups if row in group.rows)


def printed(board: Leaderboard, width: int = 80) -> str:
    """Return what a terminal of this width shows."""
    text = io.StringIO()
    render(board, Console(file=text, width=width, highlight=False))
    return text.getvalue()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two whole runs of the paper's judge, one that another model judged, one of a few samples."""
    folder = tmp_path_factory.mktemp("runs")
    write_run(folder / "a", sizes=FULL, score=7, label="lora", tags={"lr": "1e-5", "seed": "1"})
    write_run(folder / "deep" / "er" / "b", sizes=FULL, score=6, tags={"lr": "1e-4"})
    copy_run(folder / "a", folder / "c", served="gpt-4o-2024-08-06")
    write_run(folder / "d", score=9, label="try")
    return folder


# --- published scores ---------------------------------------------------------------------------------------


def test_without_runs_there_are_the_published_scores() -> None:
    """The paper's judge comes first, ranked by the published averages; who published nothing has no rank."""
    board = leaderboard(None)
    first = board.groups[0]
    assert first.title == PAPER_JUDGE
    assert [(row.rank, row.model) for row in first.rows][:3] == [
        (1, "Qwen2-Audio-Instruct"), (2, "Qwen-Audio-Turbo"), (3, "SALMONN"),
    ]  # fmt: skip
    assert [(row.rank, row.model) for row in first.rows][-2:] == [
        (None, "Gemini-1.5-pro"), (None, "Whisper-large-v2 + GPT-4 Turbo"),
    ]  # fmt: skip
    assert [row.rank for row in first.rows[:9]] == list(range(1, 10))
    assert first.rows[-2].partial == "about a fifth of the samples is missing (safety blocks)"
    assert len(rows_of(board)) == 32
    assert board.skipped == ()


def test_scores_of_an_unknown_judge_have_no_rank() -> None:
    """Where nobody knows the judge, nothing is ranked, and these rows come last."""
    *_, stated, verified = leaderboard(None).groups
    assert (stated.title, verified.title) == ("not stated", "not verified")
    assert all(row.rank is None for row in (*stated.rows, *verified.rows))


def test_a_contradiction_stands_beside_the_row() -> None:
    """What a published row says against itself is in its note, on paper and for machines."""
    board = leaderboard(None, where=[("model", "NExT-GPT")])
    told = "the average 4.13 contradicts its own columns, whose mean is 3.93"
    assert rows_of(board)[0].note == told
    for text in (printed(board), to_csv(board), to_markdown(board), json.dumps(to_json(board))):
        assert told in text


# --- who is ranked with whom --------------------------------------------------------------------------------


def test_a_run_of_the_papers_judge_is_ranked_with_the_papers_rows(runs: Path) -> None:
    """Asked for and served under the paper's name, a whole run takes its place among the official rows."""
    ranked = [(row.rank, row.model, row.label) for row in leaderboard(runs).groups[0].rows[:5]]
    assert ranked == [
        (1, "qwen2-audio", "lora"), (2, "Qwen2-Audio-Instruct", None), (3, "Qwen-Audio-Turbo", None),
        (4, "SALMONN", None), (5, "Qwen-Audio-Chat", None),
    ]  # fmt: skip


def test_the_numbers_are_the_runs(runs: Path) -> None:
    """A local row has the summary's means, the interval of its average, and every count."""
    row = local(leaderboard(runs))[0]
    summary = load_run(runs / "a").summary
    means = [summary.cell(name).gpt_score for name in ("speech", "sound", "music", "mixed_audio", "average")]
    assert [row.speech, row.sound, row.music, row.mixed, row.average] == means
    assert row.ci95 == summary.average.ci95
    assert (row.scored, row.failed, row.pending, row.n) == (2200, 0, 0, 2200)
    assert (row.protocol, row.scoring, row.partial) == ("default", "default", None)
    assert row.path == str(runs / "a")


def test_a_server_that_says_another_name_is_another_judge(runs: Path) -> None:
    """The name asked for does not make a judge: what the server says it was sets the run apart."""
    board = leaderboard(runs)
    row = next(row for row in local(board) if row.path == str(runs / "c"))
    group = group_of(board, row)
    assert group.title == f"{PAPER_JUDGE} (the server says: gpt-4o-2024-08-06)"
    assert (row.rank, len(group.rows)) == (1, 1)
    assert board.groups.index(group) == 1


def test_observed_names_separate_local_runs(tmp_path: Path) -> None:
    """Runs that asked for one judge and got different models, or one that gave no name, are apart."""
    for served in ("x-1", "x-2", None):
        write_run(tmp_path / str(served), judge="x", served=served)
    board = leaderboard(tmp_path, where=[("status", "local")])
    assert [group.title for group in board.groups] == [
        "x (no server said so)", "x (the server says: x-1)", "x (the server says: x-2)",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("written", "title"),
    [
        ({"swap": False}, "x, one order only"),
        ({"asked": {"protocol": "official", "parameters": {"temperature": 1.0}}}, "x, official protocol"),
        ({"asked": {"protocol": None}}, "x, protocol not known, temperature 0"),
        ({"asked": {"parameters": {"temperature": 0.7}}}, "x, temperature 0.7"),
        ({"asked": {"parameters": {}}}, "x, temperature left to the server"),
        ({"sent": {"temperature": 0, "top_p": 0.5}}, "x, top_p 0.5"),
        ({"asked": {"extra_body": {"effort": "low"}}}, 'x, effort "low"'),
        ({"asked": {"revision": "v2"}}, "x, revision v2"),
        ({"asked": {"prompt_sha256": "0123456789abcdef"}}, "x, prompt 01234567"),
        ({"asked": {"prompt_sha256": None}}, "x, prompt not known"),
        ({"asked": {"parser_version": 99}}, "x, parser version 99"),
        ({"asked": {"extra_headers": ["x-mode"]}}, 'x, extra_headers ["x-mode"]'),
        ({"kind": "expected"}, "x, expected scores"),
    ],
)
def test_a_judge_that_was_asked_in_another_way_is_another_judge(
    tmp_path: Path, written: dict[str, Any], title: str
) -> None:
    """What compare refuses is not ranked together, and the title says what is not as usual."""
    write_run(tmp_path / "usual", judge="x", served="x")
    write_run(tmp_path / "other", judge="x", served="x", **written)
    board = leaderboard(tmp_path, where=[("status", "local")])
    assert [group.title for group in board.groups] == ["x", title]
    with pytest.raises(ConfigError, match="not judged alike"):
        compared(tmp_path / "usual", tmp_path / "other")


@pytest.mark.parametrize(
    "written",
    [
        {"asked": {"api_url": "http://other/v1"}},
        {"asked": {"parameters": {"temperature": 0.0, "max_completion_tokens": 8192}}},
        {"sent": {"temperature": 0, "max_tokens": 8192}},
        {"kind": "decimal"},
    ],
)
def test_another_address_or_token_limit_is_no_other_judge(tmp_path: Path, written: dict[str, Any]) -> None:
    """What changes no score does not set judges apart, neither here nor in compare."""
    write_run(tmp_path / "usual", judge="x", served="x")
    write_run(tmp_path / "other", judge="x", served="x", **written)
    [group] = leaderboard(tmp_path, where=[("status", "local")]).groups
    assert len(group.rows) == 2
    assert compared(tmp_path / "usual", tmp_path / "other").judged_differently == ()


def compared(*paths: Path) -> Comparison:
    """Compare runs whose answers are made to differ, so that it is not their judges that are compared."""
    runs = []
    for path in paths:
        run = load_run(path)
        outcomes = [
            replace(
                one, answer=replace(one.answer, text=path.name) if isinstance(one.answer, Answer) else None
            )
            for one in run.outcomes()
        ]
        runs.append(JudgedRun(path.name, run.manifest, judged_orders(run.manifest), outcomes))
    return compare(runs)


def test_an_embedded_judge_is_told_by_its_file(tmp_path: Path) -> None:
    """Its title names the file; expected scores are its usual ones; another SHA-256 is another judge."""
    for digest in ("a" * 64, "b" * 64):
        asked = {"weights": {"q4.gguf": digest}, "parameters": {}}
        made: dict[str, Any] = {
            "judge": "embedded",
            "served": "q4.gguf",
            "sent": {"expectation": True},
            "kind": "expected",
        }
        write_run(tmp_path / digest[0], asked=asked, **made)
        write_run(tmp_path / f"{digest[0]}-empty", asked=asked, pending=2, **made)
    groups = leaderboard(tmp_path, where=[("status", "local")]).groups
    assert [(group.title, len(group.rows)) for group in groups] == [("embedded (q4.gguf)", 2)] * 2


def test_published_rows_stand_with_local_ones_of_the_default_and_of_the_official_protocol(
    runs: Path, tmp_path: Path
) -> None:
    """A run by the official protocol is ranked among the published rows, and not with default runs."""
    shutil.copytree(runs / "a", tmp_path / "a")
    asked = {"protocol": "official", "parameters": {"temperature": 1, "max_tokens": 1024}}
    write_run(tmp_path / "b", sizes=FULL, score=6, asked=asked)
    first, second, *_ = leaderboard(tmp_path).groups
    assert (first.title, second.title) == (PAPER_JUDGE, f"{PAPER_JUDGE}, official protocol")
    for group, path in ((first, "a"), (second, "b")):
        assert [row.path for row in group.rows if row.status == "local"] == [str(tmp_path / path)]
        assert sum(row.status == "official" for row in group.rows) == 11
        assert [row.rank for row in group.rows if row.rank] == list(range(1, 11))


def test_a_published_row_by_another_protocol_is_in_a_group_of_its_own() -> None:
    """What a row says of its protocol is in its judge's title, where it is not the official script's."""
    titles = [group.title for group in leaderboard(None).groups]
    assert "gpt-4 family (as stated by the user), one order only" in titles
    assert "gpt-4o (default of the lmms-eval task), lmms-eval prompt + suffix" in titles


def test_it_is_said_by_which_protocol_published_rows_are(runs: Path) -> None:
    """Where local and published rows are ranked together, the difference in sampling stands below."""
    for text in (printed(leaderboard(runs)), to_markdown(leaderboard(runs))):
        assert "sampled by the official protocol" in " ".join(text.split())
    for alone in (leaderboard(None), leaderboard(runs, where=[("status", "local")])):
        assert "official protocol" not in printed(alone)
    by_status = {row.status: row.protocol for row in leaderboard(runs).groups[0].rows}
    assert by_status == {"local": "default", "official": "official swap"}


@pytest.mark.parametrize("served", ["x", "x-2"])
def test_a_run_without_a_reply_stands_with_the_judge_that_it_asked_for(tmp_path: Path, served: str) -> None:
    """Nobody knows who would have replied: the run is among that judge's, partial, whoever that one is."""
    write_run(tmp_path / "a", judge="x", served=served)
    write_run(tmp_path / "b", judge="x", pending=2)
    write_run(tmp_path / "c", judge="y", pending=2)
    groups = leaderboard(tmp_path, where=[("status", "local")]).groups
    titles = ["x" if served == "x" else "x (the server says: x-2)", "y"]
    assert [(group.title, len(group.rows)) for group in groups] == [(titles[0], 2), (titles[1], 1)]
    assert all("16 of 16 samples are pending" in (group.rows[-1].partial or "") for group in groups)


def test_equal_averages_share_a_rank(runs: Path, tmp_path: Path) -> None:
    """Where two rows show the same average, the next rank is left out."""
    for name in "ab":
        shutil.copytree(runs / "a", tmp_path / name)
    assert [row.rank for row in leaderboard(tmp_path).groups[0].rows[:3]] == [1, 1, 3]


# --- what stands apart --------------------------------------------------------------------------------------


def test_a_partial_run_stands_apart(runs: Path) -> None:
    """However good its average, a run of a few samples has no rank, stands last, and says why."""
    group = leaderboard(runs).groups[0]
    row = group.rows[-3]
    assert (row.label, row.rank, row.complete) == ("try", None, False)
    assert row.partial == "16 samples where the full set has 2,200"


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ({"judge": None}, "not judged"),
        ({"pending": 1}, "8 of 16 samples are pending"),
        ({"sizes": {"speech_QA": 3}}, "3 samples where the full set has 2,200, 1 of 8 tasks"),
        ({"failed": {"speech_QA": 1}}, "1 of 4 samples failed in speech"),
        ({"selection": {"limit": 2, "shuffle": False}}, "16 samples where the full set has 2,200, limit 2"),
    ],
)
def test_it_says_why_a_run_is_partial(tmp_path: Path, written: dict[str, Any], told: str) -> None:
    """Not judged, not finished, limited, some tasks only, or too many failed: each is named with numbers."""
    write_run(tmp_path / "run", **written)
    row = local(leaderboard(tmp_path))[0]
    assert told in (row.partial or "")
    assert row.rank is None


def test_a_few_failures_leave_the_rank(runs: Path, tmp_path: Path) -> None:
    """Up to one in a hundred of each column's samples may have failed; beyond, a run stands apart."""
    copy_run(runs / "a", tmp_path / "a", failed={"music_QA": 5})
    copy_run(runs / "a", tmp_path / "b", failed={"music_QA": 6})
    first, second = local(leaderboard(tmp_path))
    assert (first.rank, first.scored, first.failed, first.n) == (1, 2195, 5, 2200)
    assert (second.rank, second.partial) == (None, "6 of 500 samples failed in music")


@pytest.mark.parametrize("name", ["prompt", "foreign_prompt", "audio_ignored", "audio_cut"])
def test_a_model_that_was_sent_something_else_stands_apart(runs: Path, tmp_path: Path, name: str) -> None:
    """Another prompt, or audio that the server cuts or ignores, leaves a run without a rank, and says why."""
    shutil.copytree(runs / "a", tmp_path / "a")
    write_summary(tmp_path / "a", warnings=[{"name": name, "values": {}, "message": "it is so"}])
    [row] = local(leaderboard(tmp_path))
    assert (row.rank, row.partial, row.note) == (None, "it is so", "")


def test_answers_cut_at_the_token_limit_are_noted_and_ranked(runs: Path, tmp_path: Path) -> None:
    """What is the model's own doing is in the note, and leaves the rank."""
    shutil.copytree(runs / "a", tmp_path / "a")
    write_summary(tmp_path / "a", warnings=[{"name": "cut_at_token_limit", "values": {}, "message": "cut"}])
    [row] = local(leaderboard(tmp_path))
    assert (row.rank, row.note) == (1, "its report warns of: cut_at_token_limit")


# --- which numbers ------------------------------------------------------------------------------------------


def test_a_current_summary_is_used(tmp_path: Path) -> None:
    """The numbers of a summary that is newer than the run's files are taken as they are."""
    run = write_run(tmp_path / "run")
    write_summary(run, model="from the summary")
    assert local(leaderboard(tmp_path))[0].model == "from the summary"


def test_an_older_summary_is_computed_anew(tmp_path: Path) -> None:
    """Where lines came after the summary, the row says what the lines do; nothing is written."""
    run = write_run(tmp_path / "run")
    write_summary(run, model="from the summary")
    set_age(run, newer=False)
    before = (run / SUMMARY).read_bytes()
    assert local(leaderboard(tmp_path))[0].model == "qwen2-audio"
    assert (run / SUMMARY).read_bytes() == before


@pytest.mark.parametrize(
    "changed",
    [
        {"format": 0},
        {"format": 10**6},
        {"scoring": "official"},
        {"view": "paper-2000"},
        {"average": float("nan")},
        {"average": {"gpt_score": "7"}},
        {"average": None},
        {"tags": [1]},
        {"warnings": 7},
        {"fingerprint": []},
    ],
)
def test_a_summary_that_is_not_one_is_computed_anew(tmp_path: Path, changed: Json) -> None:
    """Another format, rule or view, NaN, or values of another form: the lines still have everything."""
    run = write_run(tmp_path / "run")
    write_summary(run, **changed, model="from the summary")
    row = local(leaderboard(tmp_path))[0]
    assert (row.model, row.average) == ("qwen2-audio", load_run(run).summary.average.gpt_score)


def test_a_run_without_a_summary_is_computed(tmp_path: Path) -> None:
    """A run that was stopped, or is still going on, is listed too."""
    write_run(tmp_path / "run", pending=1, summary=False)
    assert local(leaderboard(tmp_path))[0].scored == 8


# --- which runs ---------------------------------------------------------------------------------------------


def test_broken_runs_are_skipped_by_name(tmp_path: Path) -> None:
    """A broken manifest, a newer format, lines that are gone: each is named, the others are listed."""
    write_run(tmp_path / "good")
    for name, content in {
        "torn": "{",
        "foreign": '{"name": "a web app"}',
        "newer": json.dumps({"format": 99, "run_id": "x"}),
        "odd": json.dumps({"format": 1, "run_id": "x", "fingerprint": "odd"}),
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / MANIFEST).write_text(content, encoding="utf-8")
    (tmp_path / "odd" / "samples.jsonl").write_text("", encoding="utf-8")
    shutil.copytree(tmp_path / "good", tmp_path / "lost", ignore=shutil.ignore_patterns("s*.json*"))
    board = leaderboard(tmp_path)
    assert [row.path for row in local(board)] == [str(tmp_path / "good")]
    assert sorted(Path(text.split(": ")[0]).relative_to(tmp_path).parts[0] for text in board.skipped) == [
        "foreign", "lost", "newer", "odd", "torn",
    ]  # fmt: skip
    assert all(text in to_json(board)["skipped"] for text in board.skipped)
    assert "skipped: " in " ".join(printed(board).split()) + " "


def test_hidden_folders_and_what_lies_in_runs_are_left_out(tmp_path: Path) -> None:
    """Locks, caches and copies kept inside of a run are no runs of their own."""
    run = write_run(tmp_path / "run")
    for place in (tmp_path / ".cache", run / ".lock", run / "copy"):
        shutil.copytree(run, place, ignore=shutil.ignore_patterns(".lock", "copy"))
    assert len(local(leaderboard(tmp_path))) == 1


def test_links_are_followed_once(tmp_path: Path) -> None:
    """A linked run is found; a link to a folder above ends nowhere; one run is one row."""
    write_run(tmp_path / "elsewhere" / "run")
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("one", "two"):
        (folder / name).symlink_to(tmp_path / "elsewhere" / "run")
    (folder / "up").symlink_to(folder)
    board = leaderboard(folder)
    assert [row.path for row in local(board)] == [str(folder / "one")]
    assert board.skipped == ()


def test_the_folder_may_be_a_run(tmp_path: Path) -> None:
    """Given one run, that is the one listed."""
    run = write_run(tmp_path / "run")
    assert [row.path for row in local(leaderboard(run))] == [str(run)]


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """A mistyped folder does not pass for one without runs."""
    with pytest.raises(RunDirectoryError, match="there is no such folder"):
        leaderboard(tmp_path / "missing")
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(RunDirectoryError, match="is no folder"):
        leaderboard(tmp_path / "file")


# --- choosing and sorting -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "paths"),
    [
        ([("lr", "1e-5")], ["a", "c"]),
        ([("lr", "1e-4"), ("model", "qwen2-audio")], ["deep/er/b"]),
        ([("label", "try")], ["d"]),
        ([("lr", "1e-5"), ("label", "try")], []),
        ([("judge", "gpt-4o-2024-08-06")], ["c"]),
        ([("status", "local"), ("judge", PAPER_JUDGE)], ["a", "deep/er/b", "d", "c"]),
    ],
)
def test_where_keeps_what_matches_all(runs: Path, where: list[tuple[str, str]], paths: list[str]) -> None:
    """Tags, label, model, judge (asked for or served) and status choose rows; all of them have to match."""
    rows = rows_of(leaderboard(runs, where=where))
    assert [row.path for row in rows] == [str(runs / path) for path in paths]


def test_a_rank_does_not_depend_on_what_is_shown(runs: Path) -> None:
    """A row alone on the screen keeps the rank that it has among all."""
    [row] = rows_of(leaderboard(runs, where=[("lr", "1e-4")]))
    assert row.rank == next(r.rank for r in local(leaderboard(runs)) if r.tags == {"lr": "1e-4"})
    assert (row.rank or 0) > 1


def test_a_mistyped_name_is_an_error(runs: Path) -> None:
    """A column or tag that does not exist is refused with what may have been meant."""
    with pytest.raises(ConfigError, match="no column 'averge', did you mean 'average'"):
        leaderboard(None, sort="averge")
    with pytest.raises(ConfigError, match="no run has a tag 'sed', did you mean 'seed'"):
        leaderboard(runs, where=[("sed", "1")])


@pytest.mark.parametrize("column", ["speech", "n", "model", "rank", "path", "average"])
def test_sorting_stays_within_a_judge_and_keeps_partial_rows_apart(runs: Path, column: str) -> None:
    """Numbers go from the highest, ranks and texts from the lowest; what has no value comes last."""
    groups = leaderboard(runs, sort=column).groups
    assert [group.title for group in groups] == [group.title for group in leaderboard(runs).groups]
    for group in groups:
        assert [row.complete for row in group.rows] == sorted((r.complete for r in group.rows), reverse=True)
        for complete in (True, False):
            values = [getattr(row, column) for row in group.rows if row.complete == complete]
            there = [value for value in values if value is not None]
            assert values == there + [None] * (len(values) - len(there))
            if column in ("rank", "model", "path"):
                assert there == sorted(
                    there, key=lambda value: value.casefold() if column != "rank" else value
                )
            else:
                assert there == sorted(there, reverse=True)


# --- formats ------------------------------------------------------------------------------------------------


def test_csv_has_every_number_in_full(runs: Path) -> None:
    """Read back, the table has the same rows, in full precision, and empty fields for what is n/a."""
    board = leaderboard(runs)
    table = list(csv.DictReader(io.StringIO(to_csv(board))))
    rows = rows_of(board)
    assert len(table) == len(rows)
    for stored, row in zip(table, rows, strict=True):
        for name in ("speech", "sound", "music", "mixed", "average"):
            value = getattr(row, name)
            assert stored[name] == ("" if value is None else repr(value))
        assert stored["rank"] == ("" if row.rank is None else str(row.rank))
        assert (stored["model"], stored["judge"]) == (row.model, row.judge)
        assert stored["ci95_low"] == (repr(row.ci95[0]) if row.ci95 else "")
        assert json.loads(stored["tags"] or "{}") == row.tags
    assert {stored["judge_group"] for stored in table} == {group.title or "" for group in board.groups}


def test_json_is_json(runs: Path) -> None:
    """The document holds every row under its judge, without NaN, and says what the interval is over."""
    board = leaderboard(runs)
    stored = json.loads(json.dumps(to_json(board), allow_nan=False))
    assert [[row["model"] for row in group["rows"]] for group in stored["groups"]] == [
        [row.model for row in group.rows] for group in board.groups
    ]
    assert stored["groups"][0]["rows"][0]["ci95"] == list(rows_of(board)[0].ci95 or ())
    assert "judge and decoding held fixed" in stored["intervals"]


def test_foreign_text_breaks_no_format(tmp_path: Path) -> None:
    """Markup, pipes, line breaks and control characters in names and tags stay text in every format."""
    write_run(
        tmp_path / "run", judge=HOSTILE, served=HOSTILE, model=HOSTILE, label=HOSTILE, tags={HOSTILE: HOSTILE}
    )
    board = leaderboard(tmp_path)
    row = local(board)[0]
    assert (row.model, row.tags) == (HOSTILE, {HOSTILE: HOSTILE})
    stored = [line for line in csv.DictReader(io.StringIO(to_csv(board))) if line["status"] == "local"]
    assert [line["model"] for line in stored] == [HOSTILE]
    for width in (80, 300):
        text = printed(board, width)
        assert "a|b [bold]*x* [31m <b>" in " ".join(text.split())
        assert "\x1b" not in text
        assert "\u202e" not in text
    document = to_markdown(board).splitlines()
    table = [line.replace("\\|", "") for line in document if line.startswith("|")]
    assert {line.count("|") for line in table} == {table[0].count("|")}
    assert any(r"a\|b \[bold\]\*x\* \[31m \<b\>" in line for line in document)


@pytest.mark.parametrize("width", [80, 100, 160, 300])
def test_a_terminal_gets_a_table_that_fits(runs: Path, width: int) -> None:
    """No line is longer than the terminal is wide; scores have two decimals, notes are numbered."""
    text = printed(leaderboard(runs), width)
    assert max(map(len, text.splitlines())) <= width
    assert not any(line != line.rstrip() for line in text.splitlines())
    assert "nan" not in text.lower().replace("finance", "")
    assert "2200/2200" in text
    assert "[1]" in text
    first = next(line for line in text.splitlines() if line.startswith((" 1 ", "1 ")))
    assert "lora" in first
    assert f"{load_run(runs / 'a').summary.average.gpt_score:.2f}" in first
    assert ("1e-5" in text, str(runs / "a") in text) == (width == 300,) * 2 or width == 160


@pytest.mark.parametrize(("width", "gone"), [(60, ["ci95", "2200/2200"]), (40, ["ci95", "7.18"])])
def test_a_narrow_terminal_gets_fewer_columns(runs: Path, width: int, gone: list[str]) -> None:
    """Ranks, averages and what is local always fit; what is left out is not explained below."""
    text = printed(leaderboard(runs), width)
    assert max(map(len, text.splitlines())) <= width
    assert not any(name in text for name in gone)
    first = next(line for line in text.splitlines() if line.startswith(" 1 "))
    assert f"{load_run(runs / 'a').summary.average.gpt_score:.2f}" in first
    assert first.endswith("local")


def test_a_row_with_one_decimal_is_shown_with_one() -> None:
    """What was published as 7.3 is not shown as 7.30."""
    text = printed(leaderboard(None, where=[("model", "MGM-Omni-7B")]))
    assert "7.3 " in text
    assert "7.30" not in text


def test_nothing_that_matches_is_said(runs: Path) -> None:
    """An empty table says that it is empty, and is a table all the same."""
    board = leaderboard(runs, where=[("model", "none such")])
    assert "matches" in printed(board)
    assert len(to_csv(board).splitlines()) == 1
    assert to_json(board)["groups"] == []


# --- the command --------------------------------------------------------------------------------------------


def test_the_command_lists_a_run_that_was_just_made(tmp_path: Path) -> None:
    """After an evaluation under outputs, otoscope leaderboard shows it, in every format, and exits 0."""
    with ScriptedServer() as server:
        made = otoscope(*flags(server.url, DEMO, "--label", "first", "--tag", "lr=1"), cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    shown = otoscope("leaderboard", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "first (scripted-model)" in shown.stdout
    assert "Judge: scripted-judge" in shown.stdout
    assert "Qwen2-Audio-Instruct" in shown.stdout
    chosen = otoscope("leaderboard", "outputs", "--where", "lr=1", "--format", "json", cwd=tmp_path)
    [group] = json.loads(chosen.stdout)["groups"]
    assert [row["label"] for row in group["rows"]] == ["first"]
    for form in ("csv", "md"):
        done = otoscope("leaderboard", "--format", form, cwd=tmp_path, environ={"PYTHONIOENCODING": "ascii"})
        assert done.returncode == 0, done.stderr
        assert "scripted-model" in done.stdout


def test_the_command_says_what_is_wrong(tmp_path: Path) -> None:
    """Unknown columns and malformed conditions exit with 2, a missing folder with 6; no traceback."""
    for arguments, code, told in (
        (["--sort", "averge"], 2, "did you mean 'average'"),
        (["--where", "lr"], 2, "must be K=V"),
        (["missing"], 6, "there is no such folder"),
    ):
        done = otoscope("leaderboard", *arguments, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (code, "")
        assert told in done.stderr
        assert "Traceback" not in done.stderr
    assert "Qwen2-Audio-Instruct" in otoscope("leaderboard", cwd=tmp_path).stdout
