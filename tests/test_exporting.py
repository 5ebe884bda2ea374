"""A run -> the official scripts' files: what their scorer makes of them, and back again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from otoscope import load_run, run_task
from otoscope.errors import ConfigError, RunDirectoryError
from otoscope.exporting import FILES, export_run
from otoscope.importing import ImportSettings, import_files
from otoscope.records import Answer, Order, Outcome
from otoscope.runs import Run
from tests.foreign_files import metadata, official_scores, write_json
from tests.scripted_server import Response, Script, ScriptedServer, Seen, scripted_answers
from tests.support import config, lines, write_data

REFERENCE_FIRST, ANSWER_FIRST = Order
CHAT_SCORES = {REFERENCE_FIRST: "chat_score.json", ANSWER_FIRST: "chat_score_cir.json"}
OUTPUTS = {REFERENCE_FIRST: "batch_run_output.jsonl", ANSWER_FIRST: "batch_run_output_cir.jsonl"}


def a_run(tmp_path: Path, script: Script | None = None, **more: Any) -> Run:
    """Evaluate three samples of each task against the scripted server."""
    data = tmp_path / "data"
    if not data.exists():
        write_data(data, each=3)
    with ScriptedServer(script or scripted_answers()) as server:
        return run_task(config(server.url, data, tmp_path / "run", **more))


def prose_at_first(seen: Seen, attempt: int) -> Response:
    """Judge the first clip of each task in prose, until asked again."""
    if seen.kind == "judge" and "'tone': 1}" in seen.text and len(seen.payload["messages"]) == 1:
        return Response(text="Both answers are fine.")
    return scripted_answers()(seen, attempt)


def first_replies(outcome: Outcome) -> dict[Order, str | None]:
    """Return the first reply of each order."""
    return {
        order: min(verdict.replies, key=lambda reply: reply.started_at).text
        for order, verdict in outcome.verdicts.items()
    }


def test_the_files_hold_the_answers_and_the_first_replies(tmp_path: Path) -> None:
    """Each file has the official names, and of each order the first reply, whatever was asked again."""
    run = a_run(tmp_path)
    exported = export_run(run.path, tmp_path / "official")
    assert sorted(path.name for path in (tmp_path / "official").iterdir()) == sorted(FILES)
    assert exported.rows == dict.fromkeys(FILES, 24)
    assert not exported.findings
    outcomes = list(run.outcomes())
    results = lines(tmp_path / "official" / "Chat_result_modelx.jsonl")
    assert list(results[0]) == [
        "meta_info", "question", "answer_gt", "path", "task_name", "dataset_name", "response", "uniq_id",
    ]  # fmt: skip
    for result, outcome in zip(results, outcomes, strict=True):
        assert isinstance(outcome.answer, Answer)
        assert result["response"] == outcome.answer.text
        assert result["meta_info"] == outcome.sample.description
    for order in Order:
        outputs = lines(tmp_path / "official" / OUTPUTS[order])
        scores = json.loads((tmp_path / "official" / CHAT_SCORES[order]).read_text(encoding="utf-8"))
        told = [first_replies(outcome)[order] for outcome in outcomes]
        assert [output["gen"] for output in outputs] == told
        assert [score["gpt-score"] for score in scores] == told
        assert len({output["uuid"] for output in outputs}) == len(outputs)
        assert outputs[0]["openai_args"]["model"] == "scripted-judge"


def test_the_first_reply_counts_also_where_the_second_was_the_verdict(tmp_path: Path) -> None:
    """What was asked again is a verdict of ours, and not of the official scorer's."""
    run = a_run(tmp_path, prose_at_first)
    assert run.summary.counts["scored"] == 24
    export_run(run.path, tmp_path / "official")
    for name in CHAT_SCORES.values():
        scores = json.loads((tmp_path / "official" / name).read_text(encoding="utf-8"))
        assert [s["uniq_id"] for s in scores if s["gpt-score"] == "Both answers are fine."] == [1]


@pytest.mark.parametrize(
    "names",
    [
        [*OUTPUTS.values()],
        [*CHAT_SCORES.values()],
        ["Chat_result_modelx.jsonl", *OUTPUTS.values()],
        ["Chat_result_modelx.jsonl", *CHAT_SCORES.values()],
    ],
)
@pytest.mark.parametrize("data", [None, "data"])
def test_what_was_exported_comes_back(tmp_path: Path, names: list[str], data: str | None) -> None:
    """Imported again, a run has the same answers, the same scores and the same official files."""
    run = a_run(tmp_path)
    folder, again_folder = tmp_path / "official", tmp_path / "again"
    export_run(run.path, folder)
    imported = import_files(
        ImportSettings(
            files=[folder / name for name in names],
            run_dir=tmp_path / "imported",
            data=tmp_path / data if data else None,
        )
    )
    assert not imported.findings
    told, again = list(run.outcomes()), list(imported.run.outcomes())
    assert [o.sample.key for o in again] == [o.sample.key for o in told]
    assert [o.sample.digest for o in again] == [o.sample.digest for o in told]
    assert [getattr(o.answer, "text", None) for o in again] == [getattr(o.answer, "text", None) for o in told]
    for before, after in zip(told, again, strict=True):
        assert first_replies(after) == first_replies(before)
    for scoring in ("default", "official"):
        before_json = load_run(run.path, scoring=scoring).summary.to_json()
        after_json = load_run(imported.run.path, scoring=scoring).summary.to_json()
        assert after_json["counts"] == before_json["counts"]
        for name in ("average", "mixed_audio", "all_samples"):
            for number in ("n", "gpt_score", "reference_score", "win_rate"):
                assert after_json[name][number] == before_json[name][number]
        if data:  # intervals need the clips
            for name in ("average", "mixed_audio", "categories", "tasks", "all_samples"):
                assert after_json[name] == before_json[name]
    export_run(imported.run.path, again_folder)
    for order, name in CHAT_SCORES.items():
        cir = order is ANSWER_FIRST
        assert official_scores(again_folder / name, cir=cir) == official_scores(folder / name, cir=cir)
    assert (again_folder / FILES[0]).read_bytes() == (folder / FILES[0]).read_bytes()


def test_the_official_scorers_numbers_are_the_reports(tmp_path: Path) -> None:
    """The official rules, applied to the exported files, give what official scoring of the run gives."""
    run = a_run(tmp_path)
    export_run(run.path, tmp_path / "official")
    scores = {
        order: official_scores(tmp_path / "official" / name, cir=order is ANSWER_FIRST)
        for order, name in CHAT_SCORES.items()
    }
    for name, cell in load_run(run.path, scoring="official").summary.categories.items():
        reference_first, answer_first = scores[REFERENCE_FIRST][name], scores[ANSWER_FIRST][name]
        assert cell.gpt_score == pytest.approx((reference_first[3] + answer_first[2]) / 2, abs=1e-12)
        assert cell.reference_score == pytest.approx((reference_first[2] + answer_first[3]) / 2, abs=1e-12)
        assert cell.win_rate == pytest.approx((reference_first[1] + answer_first[1]) / 2, abs=1e-12)


def test_a_run_without_the_swap_has_one_orders_files(tmp_path: Path) -> None:
    """One order was judged: there is no file of the other."""
    run = a_run(tmp_path, extra_params={"do_swap": False})
    export_run(run.path, tmp_path / "official")
    assert sorted(path.name for path in (tmp_path / "official").iterdir()) == [
        "Chat_result_modelx.jsonl", "batch_run_output.jsonl", "chat_score.json",
    ]  # fmt: skip


def test_a_run_without_a_judge_has_answers_alone(tmp_path: Path) -> None:
    """An answer that failed is written as null; without verdicts there are no other files."""
    data = write_data(tmp_path / "data", each=3)
    (data / "Chat" / "sound_QA_tones" / "clip_2.wav").unlink()
    run = a_run(tmp_path, no_judge=True)
    exported = export_run(run.path, tmp_path / "official")
    assert exported.rows == {"Chat_result_modelx.jsonl": 24}
    assert exported.findings == {"answers that failed, written as null": ["sound_QA/tones/clip_2.wav#8"]}
    results = lines(tmp_path / "official" / "Chat_result_modelx.jsonl")
    assert [result["uniq_id"] for result in results if result["response"] is None] == [8]


def test_failed_samples_come_back(tmp_path: Path) -> None:
    """Exported and imported again, a run has as many failed samples as before, and the same coverage."""
    data = write_data(tmp_path / "data", each=3)
    (data / "Chat" / "sound_QA_tones" / "clip_2.wav").unlink()
    run = a_run(tmp_path)
    export_run(run.path, tmp_path / "official")
    imported = import_files(ImportSettings(files=[tmp_path / "official"], run_dir=tmp_path / "imported"))
    told, again = run.summary.counts, imported.run.summary.counts
    for name in ("expected", "scored", "failed", "pending"):
        assert again[name] == told[name]
    assert again["failed"] == 1
    assert list(imported.findings) == ["rows without an answer, whose samples failed"]


@pytest.mark.parametrize("swap", [True, False])
def test_the_exported_folder_is_imported_as_it_is(tmp_path: Path, swap: bool) -> None:
    """Given the folder alone, answers and both orders come back by their names."""
    run = a_run(tmp_path, extra_params={"do_swap": swap})
    export_run(run.path, tmp_path / "official")
    imported = import_files(ImportSettings(files=[tmp_path / "official"], run_dir=tmp_path / "imported"))
    assert not imported.findings
    assert imported.run.summary.do_swap is swap
    assert imported.run.summary.to_json()["all_samples"]["gpt_score"] == run.summary.all_samples.gpt_score
    assert imported.run.summary.counts == run.summary.counts


def test_samples_that_are_not_answered_are_left_out(tmp_path: Path) -> None:
    """A pending sample has no row: it is neither an answer nor a failure."""
    run = a_run(tmp_path, no_judge=True)
    path = run.path / "answers.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[1:]))
    exported = export_run(run.path, tmp_path / "official")
    assert exported.rows == {"Chat_result_modelx.jsonl": 23}
    assert list(exported.findings) == ["samples that are not answered, left out"]


def test_outputs_that_would_lack_verdicts_are_not_written(tmp_path: Path) -> None:
    """Where some answers are not known there is no prompt to write: the scores alone hold every verdict."""
    scores = [{**metadata(n), "gpt-score": "8 7", **({"response": "x"} if n else {})} for n in range(2)]
    path = write_json(tmp_path / "chat_score.json", scores)
    imported = import_files(ImportSettings(files=[path], run_dir=tmp_path / "imported"))
    exported = export_run(imported.run.path, tmp_path / "official")
    assert exported.rows == {"Chat_result_modelx.jsonl": 1, "chat_score.json": 2}
    again = import_files(ImportSettings(files=[tmp_path / "official"], run_dir=tmp_path / "again"))
    assert again.run.summary.counts == imported.run.summary.counts


def test_expected_scores_have_no_official_files(tmp_path: Path) -> None:
    """A judge that gives probabilities has said no two numbers: only the answers are written."""
    run = a_run(tmp_path)
    verdicts = lines(run.path / "verdicts.jsonl")
    for line in verdicts:
        line["score_kind"] = "expected"
        line["replies"][-1]["probabilities"] = {"first_mean": 5.0, "second_mean": 5.0}
    (run.path / "verdicts.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in verdicts), encoding="utf-8"
    )
    exported = export_run(run.path, tmp_path / "official")
    assert exported.expected_scores
    assert exported.rows == {"Chat_result_modelx.jsonl": 24}
    assert [path.name for path in (tmp_path / "official").iterdir()] == ["Chat_result_modelx.jsonl"]


def test_nothing_is_replaced_without_force(tmp_path: Path) -> None:
    """Files that are there stay; with force those of another run are gone, also the ones not written anew."""
    run = a_run(tmp_path)
    folder = tmp_path / "official"
    export_run(run.path, folder)
    (folder / "mine.txt").write_text("kept", encoding="utf-8")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(ConfigError, match="--force"):
        export_run(run.path, folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    answers = import_files(
        ImportSettings(files=[folder / "Chat_result_modelx.jsonl"], run_dir=tmp_path / "answers")
    )
    export_run(answers.run.path, folder, force=True)
    assert sorted(path.name for path in folder.iterdir()) == ["Chat_result_modelx.jsonl", "mine.txt"]


def test_scores_that_were_never_joined_are_written_as_they_came(tmp_path: Path) -> None:
    """An unjoined row is no sample: of it, only what the official scorer reads is written."""
    scores = [{"task_name": "sound_QA", "gpt-score": "8 7"}, {"task_name": "speech_QA", "gpt-score": "3 4"}]
    path = write_json(tmp_path / "chat_score.json", scores)
    imported = import_files(ImportSettings(files=[path], run_dir=tmp_path / "imported"))
    exported = export_run(imported.run.path, tmp_path / "official")
    assert exported.rows == {"chat_score.json": 2}
    written = json.loads((tmp_path / "official" / "chat_score.json").read_text(encoding="utf-8"))
    assert written == scores
    assert official_scores(tmp_path / "official" / "chat_score.json", cir=False) == official_scores(
        path, cir=False
    )


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    """A folder without a manifest is named, and nothing is written."""
    with pytest.raises(RunDirectoryError, match="not a run"):
        export_run(tmp_path, tmp_path / "official")
    assert not (tmp_path / "official").exists()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """A file in the folder's place is an error with its name."""
    run = a_run(tmp_path, no_judge=True)
    (tmp_path / "official").write_text("a file", encoding="utf-8")
    with pytest.raises(RunDirectoryError, match="official"):
        export_run(run.path, tmp_path / "official")
