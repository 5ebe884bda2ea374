"""The command ``compare`` on real run folders: what it prints, what it refuses, and its JSON."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from otoscope.benchmark import TASKS
from otoscope.comparison import CELLS, JudgedRun, compare
from otoscope.records import Answer, AudioClip, Failure, FailureKind, Order, Reply, Sample, Verdict
from otoscope.reports.comparison import render
from otoscope.runs import judged_orders
from otoscope.store import RunStore, sample_to_line
from tests.scripted_server import ScriptedServer, scripted_answers
from tests.support import flags, otoscope, write_data

REJECTED = Failure(FailureKind.REJECTED, "the server refused it", 1)


def write_run(
    path: Path,
    scores: Sequence[float | None],
    *,
    model: str = "qwen2-audio",
    label: str | None = None,
    judge: dict[str, Any] | None = None,
    text: str | None = None,
    tasks: Sequence[str] = tuple(TASKS),
) -> Path:
    """Write a run that gave these scores to the samples of each task; ``None`` is a failed answer."""
    requested = {"name": "gpt-4", "protocol": "default", "do_swap": True, **(judge or {})}
    manifest = {
        "label": label,
        "dataset": {"digest": "d"},
        "fingerprint": {"model": {"name": model}, "prompt": {}, "judge": requested},
        "judge_id": "judge",
    }
    samples = []
    with RunStore.create(path, manifest) as store:
        store.open_for_writing()
        for task in tasks:
            for number, score in enumerate(scores):
                sample = Sample(
                    task, TASKS[task].folders[0], f"{number}.wav", number, "q", "r", "d", "", "digest"
                )
                samples.append(sample)
                clip = AudioClip("", f"{task} {number}", 1, 1, "wav", 1.0, 8000, 1)
                if score is None:
                    store.append_answer(sample, clip, REJECTED)
                    continue
                said = text or f"{model} says {number}"
                answer = Answer(raw_text=said, text=said, replies=(Reply(text=said),))
                store.append_answer(sample, clip, answer)
                for order in Order:
                    verdict = Verdict(
                        order=order,
                        judge_id="judge",
                        answer_sha256=answer.sha256,
                        score_kind="integer",
                        reference_score=8,
                        answer_score=score,
                        replies=(Reply(text=f"8 {score}"),),
                    )
                    store.append_verdict(sample, order, "judge", answer.sha256, verdict)
        store.write_samples(sample_to_line(sample) for sample in samples)
    return path


def rendered(paths: Sequence[Path], *, width: int = 80, encoding: str = "utf-8", **options: Any) -> str:
    """Return the report on these runs as a terminal of this width shows it."""
    runs = []
    for path in paths:
        with RunStore.open(path) as store:
            outcomes = list(store.outcomes(store.samples(), store.manifest["judge_id"]))
            runs.append(JudgedRun(path.name, store.manifest, judged_orders(store.manifest), outcomes))
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    render(compare(runs, **options), Console(file=file, width=width, highlight=False))
    file.seek(0)
    return file.read()


def row(report: str, name: str) -> list[str]:
    """Return the cells of a table's first row of this name."""
    line = next(line for line in report.splitlines() if line.startswith(f"{name} "))
    return re.split(r"  +|(?<=\d) (?=[+\d\[<-])|(?<=\]) ", line.removeprefix(name).strip())


LOW, HIGH = [5, 6, 4, 7, 5, 6], [6, 8, 5, 7, 7, 9]


def test_a_run_in_a_process_against_another(tmp_path: Path) -> None:
    """Two evaluations by the real command are compared by it; its JSON has the numbers that it prints."""
    data = write_data(tmp_path / "data", each=3)
    for name, salt in (("one", "x"), ("two", "y")):
        with ScriptedServer(scripted_answers(salt=salt)) as server:
            done = otoscope(*flags(server.url, data, "--run-dir", str(tmp_path / name)))
            assert done.returncode == 0, done.stderr
    again = otoscope("compare", "one", "two", cwd=tmp_path, environ={"COLUMNS": "80"})
    assert again.returncode == 0, again.stderr
    assert "24 samples in common" in again.stdout
    assert "asked at two addresses" in "".join(again.stdout.splitlines())
    stored = json.loads(otoscope("compare", "one", "two", "--format", "json", cwd=tmp_path).stdout)
    average = stored["models"][0]["cells"]["average"]["gpt_score"]
    assert f"Average {average['value']:+.2f}" in again.stdout
    for name, run in (("one", "baseline_mean"), ("two", "mean")):
        report = json.loads(otoscope("report", name, "--format", "json", cwd=tmp_path).stdout)
        assert report["average"]["gpt_score"] == average[run]
    itself = otoscope("compare", "one", "one", cwd=tmp_path)
    assert itself.returncode == 0, itself.stderr
    assert "identical on every sample in common" in itself.stdout


def test_the_command_refuses_with_2_and_a_missing_run_with_6(tmp_path: Path) -> None:
    """Runs judged differently, a baseline that is none of them, one run alone: 2; no run there: 6."""
    write_run(tmp_path / "a", LOW, label="first")
    write_run(tmp_path / "b", HIGH, model="other", judge={"name": "gpt-4o"})
    refused = otoscope("compare", "a", "b", cwd=tmp_path)
    assert refused.returncode == 2
    assert "judge.name: 'gpt-4' in A, 'gpt-4o' in B" in refused.stderr
    waved = otoscope("compare", "a", "b", "--across-judges", cwd=tmp_path)
    assert waved.returncode == 0, waved.stderr
    assert waved.stdout.startswith("! the runs were not judged alike")
    unknown = otoscope("compare", "a", "b", "--baseline", "frist", cwd=tmp_path)
    assert unknown.returncode == 2
    assert "did you mean 'first'?" in unknown.stderr
    assert otoscope("compare", "a", cwd=tmp_path).returncode == 2
    missing = otoscope("compare", "a", "c", cwd=tmp_path)
    assert missing.returncode == 6
    assert "Traceback" not in missing.stderr


def test_the_baseline_is_named_by_path_or_label(tmp_path: Path) -> None:
    """--baseline takes another spelling of a run's path, or its label; two runs of one label need a path."""
    write_run(tmp_path / "a", LOW, label="same")
    write_run(tmp_path / "b", HIGH, model="other", label="mine")
    write_run(tmp_path / "c", HIGH, model="third", label="same")
    for named in (f"../{tmp_path.name}/b", "mine"):
        done = otoscope("compare", "a", "b", "--baseline", named, "--format", "json", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        stored = json.loads(done.stdout)
        assert stored["baseline"] == "B"
        assert [one["run"] for one in stored["models"]] == ["A"]
        assert stored["models"][0]["cells"]["speech"]["gpt_score"]["value"] == -1.5
    twice = otoscope("compare", "a", "b", "c", "--baseline", "same", cwd=tmp_path)
    assert twice.returncode == 2
    assert "2 runs have the label 'same'" in twice.stderr


# --- what the terminal shows ------------------------------------------------------------------------------


def test_the_report_says_which_run_is_which_and_what_a_sign_means(tmp_path: Path) -> None:
    """Letters, models, labels and paths come first; columns are named by letters, and the sign is told."""
    runs = [write_run(tmp_path / "a", LOW, label="first try"), write_run(tmp_path / "b", HIGH, model="other")]
    report = rendered(runs)
    assert "All judged by gpt-4 in both orders, default protocol" in report
    assert "A  qwen2-audio, label first try (baseline)\n   a\nB  other\n   b\n" in report
    assert "B against A: Average +1.50 [" in report
    assert "above 0: B scored higher than A" in report
    assert "over questions and clips; judge and decoding held fixed" in report
    cells = row(report, "Speech")
    assert cells[:3] == ["5.50", "7.00", "+1.50"]
    assert "83/17/0" in cells
    turned = rendered(runs, baseline=1)
    assert row(turned, "Speech")[:3] == ["7.00", "5.50", "-1.50"]
    assert "above 0: A scored higher than B" in turned


def test_p_is_never_printed_as_0(tmp_path: Path) -> None:
    """The smallest p of 10,000 draws is printed as <0.001; that of identical scores as 1."""
    runs = [write_run(tmp_path / "a", LOW * 4), write_run(tmp_path / "b", HIGH * 4, model="other")]
    report = rendered(runs)
    assert ", p <0.001" in report
    assert "0.000" not in report
    assert row(rendered([runs[0], runs[0]]), "Speech")[3:5] == ["identical", "1"]


@pytest.mark.parametrize("width", [80, 60, 40])
@pytest.mark.parametrize("count", [2, 3, 5])
def test_every_line_fits_the_terminal(tmp_path: Path, count: int, width: int) -> None:
    """Tables and notes of two to five runs stay within its columns, with perfect scores and failures too."""
    scores: list[list[float | None]] = [
        [10, 10, 10, None],
        [0, 0, 3, 0],
        [5, 6, 7, 8],
        [2, 2, 2, 9],
        [1, 2, 3, 4],
    ]
    runs = [write_run(tmp_path / f"run{n}", own, model=f"m{n}") for n, own in enumerate(scores[:count])]
    for baseline in (0, 1):
        report = rendered(runs, baseline=baseline, width=width)
        assert max(map(len, report.splitlines())) <= width
        assert "-10.00" in report or "+10.00" in report
        assert "left out: 8 failed in A" in " ".join(report.split())
        assert report.count(" against ") == count - 1
        assert f"over {5 * (count - 1)} tests" in " ".join(report.split())


def test_a_narrow_terminal_gets_the_same_numbers_in_tables_below_each_other(tmp_path: Path) -> None:
    """What a table of 60 columns has no space for stands in a second one: no number is left out."""
    runs = [write_run(tmp_path / "a", LOW), write_run(tmp_path / "b", HIGH, model="other")]
    wide, narrow = (rendered(runs, width=width).splitlines() for width in (80, 60))
    for name in ("Sound ", "Average "):
        (line,) = (line for line in wide if line.startswith(name))
        first, second = (line.removeprefix(name).split() for line in narrow if line.startswith(name))
        assert [*first, *second] == line.split()[1:]


def test_a_judge_comparison_shows_both_scores(tmp_path: Path) -> None:
    """The same answers under two judges: two tables, the correlation, the agreement, and what differs."""
    runs = [
        write_run(tmp_path / "a", LOW, text="Mom"),
        write_run(tmp_path / "b", HIGH, text="Mom", judge={"name": "gpt-4o"}),
    ]
    report = rendered(runs)
    assert "Judges of the same answers compared" in report
    assert "B's judge against A's: Average +1.50 [" in report
    assert "judge.name: 'gpt-4' in A, 'gpt-4o' in B" in report
    _, answers, references = re.split("The model's answers|The reference answers", report)
    assert row(answers, "Average")[:3] == ["5.50", "7.00", "+1.50"]
    assert row(references, "Average") == ["8.00", "8.00", "0.00", "identical"]
    assert max(map(len, report.splitlines())) <= 80
    assert "identical on every" not in report


def test_judges_that_differ_in_more_than_a_line_tells_are_not_called_alike(tmp_path: Path) -> None:
    """One name, protocol and both orders, but another parser: each run has its own line, and no 'All'."""
    runs = [
        write_run(tmp_path / name, LOW, text="Mom", judge={"parser_version": version})
        for name, version in (("a", 1), ("b", 2))
    ]
    report = rendered(runs)
    assert "All judged" not in report
    assert report.count("judged by gpt-4 in both orders, default protocol") == 2


def test_missing_categories_are_not_shown_and_the_average_is_not_available(tmp_path: Path) -> None:
    """Runs of one task have that category's row, and n/a where a mean needs others."""
    runs = [
        write_run(tmp_path / "a", LOW, tasks=("sound_QA",)),
        write_run(tmp_path / "b", HIGH, tasks=("sound_QA",), model="other"),
    ]
    report = rendered(runs)
    assert "Sound +1.50" in report
    assert "\nMusic" not in report
    assert set(row(report, "Average")) == {"n/a"}
    assert "needs every one of them" in report
    one = [write_run(tmp_path / n, [s], tasks=("sound_QA",), model=n) for n, s in (("c", 5), ("d", 7))]
    assert "n/a with under 2 clips in a task" in rendered(one)


def test_foreign_text_cannot_change_the_terminal(tmp_path: Path) -> None:
    """Names and labels are shown without control characters, also where a terminal has only ASCII."""
    runs = [
        write_run(tmp_path / "a", LOW, model="\x1b[31mred\x07", label="[bold]日本[/bold]"),
        write_run(tmp_path / "b", HIGH, model="other\nline"),
    ]
    for encoding in ("utf-8", "ascii"):
        report = rendered(runs, encoding=encoding)
        assert "\x1b" not in report
        assert "\x07" not in report
        assert "[bold]" in report
        assert "other line" in report
    assert report.isascii()


def test_json_holds_every_cell_of_every_run(tmp_path: Path) -> None:
    """The JSON of three runs has both other runs, all cells, and what was left out, without NaN."""
    runs = [write_run(tmp_path / n, [s, s + 1, None], model=n) for n, s in (("a", 3), ("b", 5), ("c", 6))]
    done = otoscope("compare", *map(str, runs), "--format", "json")
    assert done.returncode == 0, done.stderr
    stored = json.loads(done.stdout, parse_constant=pytest.fail)
    assert [(one["run"], list(one["cells"])) for one in stored["models"]] == [
        ("B", list(CELLS)),
        ("C", list(CELLS)),
    ]
    assert stored["left_out"] == [{"reason": "failed", "runs": ["A", "B", "C"], "samples": 8}]
    assert [run["name"] for run in stored["runs"]] == list(map(str, runs))
