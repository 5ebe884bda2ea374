"""``otoscope report`` as a process: every format, where it is written, and the page after an evaluation."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from otoscope.cli import main
from otoscope.cli.reporting import has_page
from tests.scripted_server import ScriptedServer
from tests.support import DEMO, flags, lines, otoscope


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of the bundled clips."""
    path = tmp_path_factory.mktemp("report") / "run"
    with ScriptedServer() as server:
        done = otoscope(*flags(server.url, DEMO, "--run-dir", str(path), "--label", "first"))
    assert done.returncode == 0, done.stderr
    return path


def test_an_evaluation_ends_with_a_page(tmp_path: Path) -> None:
    """After the report on the terminal, report.html lies in the run, and where is said."""
    with ScriptedServer() as server:
        done = otoscope(*flags(server.url, DEMO, "--run-dir", str(tmp_path / "run")), page=True, timeout=240)
    assert done.returncode == 0, done.stderr
    page = tmp_path / "run" / "report.html"
    assert f"Report: {page}" in done.stderr
    text = page.read_text(encoding="utf-8")
    assert text.lower().startswith("<!doctype html>")
    assert "Content-Security-Policy" in text
    assert "scripted-model" in text


def test_a_resume_that_finds_nothing_to_do_leaves_everything_as_it_is(tmp_path: Path) -> None:
    """No request, and no file of the run is written again: neither its numbers nor its page."""
    path = tmp_path / "run"
    with ScriptedServer() as server:
        words = flags(server.url, DEMO, "--run-dir", str(path))
        first = otoscope(*words, page=True, timeout=240)
        before = {file.name: file.stat().st_mtime_ns for file in path.iterdir()}
        server.reset()
        again = otoscope(*words, page=True, timeout=240)
        requests = len(server.requests)
    assert (first.returncode, again.returncode) == (0, 0), again.stderr
    assert requests == 0
    assert {file.name: file.stat().st_mtime_ns for file in path.iterdir()} == before
    assert again.stdout == first.stdout
    assert "Report:" not in again.stderr


def test_a_resume_that_changes_what_the_page_says_writes_it_again(tmp_path: Path) -> None:
    """No sample was owed, but the run has a label now."""
    path = tmp_path / "run"
    with ScriptedServer() as server:
        words = flags(server.url, DEMO, "--limit", "1", "--tasks", "sound_QA", "--run-dir", str(path))
        assert otoscope(*words, page=True, timeout=240).returncode == 0
        again = otoscope(*words, "--label", "renamed since", page=True, timeout=240)
    assert again.returncode == 0, again.stderr
    page = path / "report.html"
    assert f"Report: {page}" in again.stderr
    assert "renamed since" in page.read_text(encoding="utf-8")


@pytest.fixture
def paged(run: Path, tmp_path: Path) -> Path:
    """Return a copy of the run with its page."""
    path = tmp_path / "paged"
    shutil.copytree(run, path)
    assert main(["report", str(path), "--format", "html"]) == 0
    return path


def test_a_page_counts_as_long_as_nothing_it_was_made_of_is_newer(paged: Path) -> None:
    """A line, a manifest or a summary that came after it makes it an old one."""
    page = paged / "report.html"
    assert has_page(paged, "en")
    written = page.stat().st_mtime_ns
    for name in ("manifest.json", "answers.jsonl", "verdicts.jsonl", "samples.jsonl", "summary.json"):
        before = (paged / name).stat().st_mtime_ns
        os.utime(paged / name, ns=(written, written))
        assert not has_page(paged, "en")
        os.utime(paged / name, ns=(before, before))
    assert has_page(paged, "en")
    page.unlink()
    assert not has_page(paged, "en")


def test_a_page_counts_only_in_its_language_and_by_this_version(paged: Path) -> None:
    """What it opens in and what wrote it stand at its beginning."""
    page = paged / "report.html"
    assert not has_page(paged, "zh")
    text = page.read_text(encoding="utf-8")
    page.write_text(text.replace('content="otoscope ', 'content="otoscope 0', 1), encoding="utf-8")
    assert not has_page(paged, "en")


def test_a_page_takes_one_reading_of_the_run(run: Path, tmp_path: Path) -> None:
    """Numbers, charts and samples come of one reading: a file is opened to be indexed and to be read."""
    code = (
        "import collections, json, os, sys\n"
        "opened = collections.Counter()\n"
        "def hear(event, arguments):\n"
        "    if event == 'open' and isinstance(arguments[0], (str, bytes)):\n"
        "        opened[os.path.basename(os.fsdecode(arguments[0]))] += 1\n"
        "sys.addaudithook(hear)\n"
        "from otoscope.cli import main\n"
        "assert main(sys.argv[1:]) == 0\n"
        "print(json.dumps(opened))"
    )
    words = ["report", str(run), "--format", "html", "--output", str(tmp_path / "page.html")]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, encoding="utf-8", check=True, timeout=240
    )
    opened = json.loads(done.stdout)
    assert opened["samples.jsonl"] == 1
    assert 1 <= opened["answers.jsonl"] <= 2
    assert 1 <= opened["verdicts.jsonl"] <= 2


def test_a_place_that_cannot_be_written_is_named(run: Path) -> None:
    """A place that cannot be written is named, with what to do."""
    page = run / "manifest.json" / "page.html"
    done = otoscope("report", str(run), "--format", "html", "--output", str(page), timeout=240)
    assert done.returncode == 6
    assert "cannot be written" in done.stderr
    assert "--output" in done.stderr


def test_the_page_of_one_run_lies_beside_its_numbers(run: Path) -> None:
    """Without --output the page is written into the run's folder, with the clips beside found."""
    done = otoscope("report", str(run), "--format", "html", "--lang", "zh", timeout=240)
    assert done.returncode == 0, done.stderr
    text = (run / "report.html").read_text(encoding="utf-8")
    assert 'lang="zh' in text
    assert not [path for path in run.iterdir() if path.name.startswith(".report")]


def test_two_runs_are_one_page(run: Path, tmp_path: Path) -> None:
    """Two runs are compared in one page, which is written where it is asked for."""
    page = tmp_path / "both" / "page.html"
    done = otoscope("report", str(run), str(run), "--format", "html", "--output", str(page), timeout=240)
    assert done.returncode == 0, done.stderr
    assert page.is_file()


def test_tables_for_a_paper_go_to_stdout(run: Path) -> None:
    """Markdown and LaTeX print a table with a row for the run, and nothing else on stdout."""
    markdown = otoscope("report", str(run), "--format", "md")
    assert markdown.returncode == 0, markdown.stderr
    assert "| first |" in markdown.stdout
    latex = otoscope("report", str(run), "--format", "latex", "--appendix", "--lang", "zh")
    assert latex.returncode == 0, latex.stderr
    assert r"\toprule" in latex.stdout


def test_csv_is_two_files(run: Path, tmp_path: Path) -> None:
    """scores.csv has a line for each cell, samples.csv one for each sample."""
    done = otoscope("report", str(run), "--format", "csv", "--output", str(tmp_path / "tables"))
    assert done.returncode == 0, done.stderr
    with (tmp_path / "tables" / "samples.csv").open(encoding="utf-8", newline="") as file:
        assert len(list(csv.DictReader(file))) == len(lines(run / "samples.jsonl"))
    with (tmp_path / "tables" / "scores.csv").open(encoding="utf-8", newline="") as file:
        assert "average" in {row["cell"] for row in csv.DictReader(file)}


def test_json_goes_to_stdout_or_a_file(run: Path, tmp_path: Path) -> None:
    """The same summary, printed or written whole."""
    printed = otoscope("report", str(run), "--format", "json", "--view", "paper-2000")
    file = tmp_path / "numbers.json"
    assert (
        otoscope(
            "report", str(run), "--format", "json", "--view", "paper-2000", "--output", str(file)
        ).returncode
        == 0
    )
    assert json.loads(printed.stdout) == json.loads(file.read_text(encoding="utf-8"))
    assert json.loads(printed.stdout)["view"] == "paper-2000"


def test_links_are_followed_and_a_dash_is_stdout(run: Path, tmp_path: Path) -> None:
    """What a link leads to is written, the link stays; a device is written into, and - means stdout."""
    target, link = tmp_path / "target.md", tmp_path / "link.md"
    target.write_text("old", encoding="utf-8")
    link.symlink_to(target)
    for place in (str(link), os.devnull):
        assert otoscope("report", str(run), "--format", "md", "--output", place).returncode == 0
    assert link.is_symlink()
    assert "| first |" in target.read_text(encoding="utf-8")
    assert not Path(os.devnull).is_file()
    assert "| first |" in otoscope("report", str(run), "--format", "md", "--output", "-").stdout


def test_a_pipe_is_written_into(run: Path) -> None:
    """/dev/stdout is a pipe where another command reads it, and gets the report."""
    done = otoscope("report", str(run), "--format", "json", "--output", "/dev/stdout")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["benchmark"] == "air_bench_chat"


@pytest.mark.parametrize("form", ["svg", "pdf"])
def test_figures_are_written_beside_any_format(run: Path, tmp_path: Path, form: str) -> None:
    """--figures writes the charts for a paper, whatever else is asked for."""
    done = otoscope("report", str(run), "--figures", str(tmp_path), "--figure-format", form, timeout=240)
    assert done.returncode == 0, done.stderr
    assert {path.suffix for path in tmp_path.iterdir()} == {f".{form}"}
    assert (tmp_path / f"categories.{form}").is_file()


@pytest.mark.parametrize("which", ["all", "lost", "KEY"])
def test_clips_can_be_put_into_the_page(run: Path, tmp_path: Path, which: str) -> None:
    """The chosen samples' clips stand in the page, so that it can be passed on."""
    key = lines(run / "samples.jsonl")[0]["key"]
    page = tmp_path / "page.html"
    done = otoscope(
        "report", str(run), "--format", "html", "--output", str(page),
        "--embed-audio", key if which == "KEY" else which, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    text = page.read_text(encoding="utf-8")
    chosen = [
        line for line in lines(run / "samples.jsonl") if which in ("all", "KEY") or line["result"] == "loss"
    ]
    assert ("data:audio/" in text or "audio/wav" in text) == bool(chosen)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--format", "terminal", "--appendix"], "--appendix is for --format md or latex"),
        (["--format", "md", "--embed-audio", "all"], "--embed-audio is for --format html"),
        (["--output", "x"], "--output is for"),
        (["--format", "html", "--embed-audio", "speech"], "no sample has the key 'speech'"),
        (["--format", "pdf"], "invalid choice"),
    ],
)
def test_what_makes_no_sense_is_refused(run: Path, words: list[str], said: str) -> None:
    """A flag that the format has no use for is an error of usage, not ignored."""
    done = otoscope("report", str(run), *words, timeout=120)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_run_in_which_every_sample_failed_is_reported_with_1(tmp_path: Path) -> None:
    """Its reasons are shown, and the exit code says that there is no number."""
    with ScriptedServer() as server:
        path = tmp_path / "run"
        data = tmp_path / "data"
        (data / "Chat" / "sound_QA_clotho").mkdir(parents=True)
        record = {
            "path": "gone.wav", "question": "What?", "answer_gt": "That.", "task_name": "sound_QA",
            "dataset_name": "clotho", "uniq_id": 1, "meta_info": "{}",
        }  # fmt: skip
        (data / "Chat" / "Chat_meta.json").write_text(json.dumps([record]), encoding="utf-8")
        done = otoscope(*flags(server.url, data, "--tasks", "sound_QA", "--run-dir", str(path)))
    assert done.returncode == 1
    again = otoscope("report", str(path))
    assert again.returncode == 1
    assert "missing_audio 1" in again.stdout
