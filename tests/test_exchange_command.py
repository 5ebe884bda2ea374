"""``otoscope import`` and ``otoscope export`` as processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from otoscope.cli import exchange
from otoscope.exchange import FORMATS
from otoscope.records import Order
from tests.foreign_files import batch_output, chat_result, metadata, official_scores, write_json, write_lines
from tests.scripted_server import ScriptedServer
from tests.support import flags, lines, otoscope, write_data


def test_the_flag_names_every_format() -> None:
    """What ``--format`` takes is every format that there is, and auto."""
    assert ("auto", *FORMATS) == exchange.FORMATS


def test_a_run_goes_out_and_comes_back(tmp_path: Path) -> None:
    """Export, import and report: the official numbers of the run that came back are the first run's."""
    data, run = write_data(tmp_path / "data", each=2), tmp_path / "run"
    with ScriptedServer() as server:
        assert otoscope(*flags(server.url, data, "--run-dir", str(run))).returncode == 0
    exported = otoscope("export", str(run), "--to", str(tmp_path / "official"))
    assert (exported.returncode, exported.stderr) == (0, "")
    assert f"{tmp_path / 'official' / 'chat_score_cir.json'}: 16" in exported.stdout
    files = [
        str(tmp_path / "official" / name) for name in ("batch_run_output.jsonl", "batch_run_output_cir.jsonl")
    ]
    back = tmp_path / "back"
    imported = otoscope(
        "import", *files, "--data", str(data), "--run-dir", str(back), "--model", "scripted-model"
    )
    assert (imported.returncode, imported.stderr) == (0, "")
    assert "verdicts: reference_first 16, answer_first 16" in imported.stdout
    reports = [
        json.loads(otoscope("report", str(path), "--format", "json", "--scoring", "official").stdout)
        for path in (run, back)
    ]
    for name in ("average", "mixed_audio", "categories", "tasks", "all_samples", "counts", "judge", "model"):
        assert reports[0][name] == reports[1][name]


def test_imported_answers_are_judged(tmp_path: Path) -> None:
    """The command that an import prints judges its answers; nothing else of the run is needed."""
    rows = [chat_result(metadata(n), text) for n, text in enumerate(["one", "two", None])]
    path = write_lines(tmp_path / "Chat_result_modelx.jsonl", rows)
    imported = otoscope("import", str(path), "--run-dir", "run", "--tag", "stage=2", cwd=tmp_path)
    assert imported.returncode == 0
    assert "rows without an answer, whose samples failed: 1 (Chat_result_modelx.jsonl:3)" in imported.stderr
    assert f"otoscope judge {tmp_path / 'run'}" in imported.stdout
    with ScriptedServer() as server:
        judged = otoscope(
            "judge", str(tmp_path / "run"), "--judge-model", "scripted-judge", "--judge-api-url", server.url,
            "--judge-api-key", "k", "--min-coverage", "0.5", "--format", "json",
        )  # fmt: skip
        assert len(server.requests) == 4
    assert judged.returncode == 0, judged.stderr
    counts = json.loads(judged.stdout)["counts"]
    assert (counts["scored"], counts["failed"]) == (2, 1)


def test_at_most_five_places_are_named(tmp_path: Path) -> None:
    """What is found a hundred times is counted, and five of its places are named."""
    rows = [chat_result(metadata(n), None if n else "x") for n in range(101)]
    path = write_lines(tmp_path / "c.jsonl", rows)
    done = otoscope("import", str(path), "--run-dir", str(tmp_path / "run"))
    (line,) = done.stderr.splitlines()
    assert line.startswith("otoscope: rows without an answer, whose samples failed: 100 (c.jsonl:2, ")
    assert line.endswith("c.jsonl:6 and 95 more)")


def test_help_fits_into_the_terminal() -> None:
    """No line is wider than the terminal, and every format is named."""
    shown = otoscope("import", "--help", environ={"COLUMNS": "80"}).stdout
    assert max(map(len, shown.splitlines())) <= 80
    assert all(name in " ".join(shown.split()) for name in FORMATS)


def test_the_answer_filter_is_a_flag(tmp_path: Path) -> None:
    """What of each answer is judged can be said, and how many it changed is told."""
    rows = [chat_result(metadata(n), f"Hm. Answer: {n}") for n in range(3)]
    write_lines(tmp_path / "c.jsonl", rows)
    arguments = ("import", "c.jsonl", "--run-dir", "run", "--answer-filter", "after:Answer:")
    done = otoscope(*arguments, cwd=tmp_path)
    assert done.returncode == 0
    assert "answers from which the filter after:Answer: has taken something: 3 (" in done.stderr
    assert [line["answer"] for line in lines(tmp_path / "run" / "samples.jsonl")] == ["0", "1", "2"]


def test_scores_without_keys_are_reported_by_the_official_rules(tmp_path: Path) -> None:
    """Without a key only official scoring is possible; that is said, and its numbers are the scorer's."""
    for name, first in (("chat_score.json", 8), ("mine.json", 7)):
        scores = [{"task_name": "sound_QA", "gpt-score": f"{first} {n}"} for n in range(1, 5)]
        write_json(tmp_path / name, scores)
    done = otoscope(
        "import", "chat_score.json", "--answer-first", "mine.json", "--run-dir", "run", cwd=tmp_path
    )  # fmt: skip
    assert done.returncode == 0
    assert "only official scoring is possible" in done.stderr
    shown = otoscope("report", str(tmp_path / "run"), "--scoring", "official", "--format", "json")
    sound = json.loads(shown.stdout)["categories"]["sound"]
    answer_mean = official_scores(tmp_path / "chat_score.json", cir=False)["sound"][3]
    assert sound["gpt_score"] == (answer_mean + 7) / 2


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["import"], 2, "nothing to import"),
        (["import", "gone.jsonl"], 3, "gone.jsonl"),
        (["import", "empty.jsonl"], 3, "is empty"),
        (["import", "meta.json"], 3, "--data"),
        (["import", "null.jsonl"], 3, "no answer can be judged"),
        (["import", "prompts.jsonl", "--answer-first", "prompts.jsonl"], 2, "the prompt of row 1"),
        (["import", "prompts.jsonl", "--tag", "x"], 2, "name=value"),
        (["import", "prompts.jsonl", "--format", "nonsense"], 2, "invalid choice"),
        (["import", "prompts.jsonl", "--run-dir", "."], 6, "not empty"),
        (["export", "nowhere", "--to", "out"], 6, "not a run"),
    ],
)
def test_what_cannot_be_done_says_so(tmp_path: Path, arguments: list[str], code: int, says: str) -> None:
    """Each mistake has its exit code and a message, and leaves nothing behind."""
    (tmp_path / "empty.jsonl").touch()
    write_lines(tmp_path / "null.jsonl", [chat_result(metadata(1), None)])
    write_json(tmp_path / "meta.json", [metadata(1)])
    write_lines(tmp_path / "prompts.jsonl", [batch_output(metadata(1), "x", Order.REFERENCE_FIRST, "8 7")])
    before = sorted(path.name for path in tmp_path.iterdir())
    done = otoscope(*arguments, cwd=tmp_path)
    assert done.returncode == code
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_an_export_of_a_judged_import_with_unknown_answers_leaves_them_out(tmp_path: Path) -> None:
    """Verdicts whose answers no file tells go out as scores alone."""
    scores = [{**metadata(n), "gpt-score": "8 7"} for n in range(2)]
    path = write_json(tmp_path / "chat_score.json", scores)
    assert otoscope("import", str(path), "--run-dir", str(tmp_path / "run")).returncode == 0
    done = otoscope("export", str(tmp_path / "run"), "--to", str(tmp_path / "out"))
    assert done.returncode == 0
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["chat_score.json"]
    assert json.loads((tmp_path / "out" / "chat_score.json").read_text(encoding="utf-8")) == scores
    assert len(lines(tmp_path / "run" / "verdicts.jsonl")) == 2
