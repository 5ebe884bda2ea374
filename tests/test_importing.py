"""Foreign files -> a run directory, read back."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from otoscope import TaskConfig, load_run
from otoscope.errors import ConfigError, DatasetError, RunDirectoryError
from otoscope.importing import Imported, ImportSettings, import_files
from otoscope.judge import PROMPT_SHA256
from otoscope.records import Answer, Failure, FailureKind, Order, Verdict, canonical_digest
from otoscope.store import RunStore
from tests.foreign_files import (
    TASKS_OF_TESTS,
    batch_output,
    chat_result,
    evalscope,
    lmms_eval,
    metadata,
    official_scores,
    write_json,
    write_lines,
)
from tests.support import environment, lines, write_data

REFERENCE_FIRST, ANSWER_FIRST = Order


def import_to(tmp_path: Path, *files: Path, **more: Any) -> Imported:
    """Import files into ``tmp_path/run``."""
    return import_files(ImportSettings(files=files, run_dir=tmp_path / "run", **more))


def manifest_of(imported: Imported) -> dict[str, Any]:
    """Return the run's manifest."""
    manifest: dict[str, Any] = json.loads((imported.run.path / "manifest.json").read_text(encoding="utf-8"))
    return manifest


def scored_rows(replies: dict[Order, list[str]]) -> dict[Order, list[dict[str, Any]]]:
    """Return rows of batch_run_output for each order, with these replies, over all categories in turn."""
    return {
        order: [
            batch_output(metadata(n, TASKS_OF_TESTS[n % 5]), f"answer {n}", order, gen)
            for n, gen in enumerate(gens)
        ]
        for order, gens in replies.items()
    }


# --- answers ----------------------------------------------------------------------------------------------


def test_answers_make_a_run_that_waits_for_its_judge(tmp_path: Path) -> None:
    """The run is as eval makes it without a judge: pending, null failed, an empty text answered."""
    rows = [chat_result(metadata(n), text) for n, text in enumerate(["one", "", None])]
    imported = import_to(
        tmp_path, write_lines(tmp_path / "Chat_result_modelx.jsonl", rows), model="m", label="L"
    )
    manifest = manifest_of(imported)
    assert manifest["fingerprint"]["judge"] is None
    assert manifest["judge_id"] is None
    assert manifest["fingerprint"]["model"]["name"] == "m"
    assert manifest["fingerprint"]["prompt"]["source"] == "chat-result"
    assert (manifest["label"], manifest["settings"]["model"]) == ("L", "m")
    assert "cannot_be_judged" not in manifest
    counts = load_run(imported.run.path).summary.counts
    assert (counts["expected"], counts["pending"], counts["failed"]) == (3, 2, 1)
    first, empty, null = imported.run.outcomes()
    assert isinstance(first.answer, Answer)
    assert isinstance(empty.answer, Answer)
    assert isinstance(null.answer, Failure)
    assert (first.answer.text, empty.answer.text, null.answer.kind) == ("one", "", FailureKind.NO_ANSWER)
    assert first.clip is None
    assert (imported.answers, imported.failed, dict(imported.verdicts)) == (2, 1, {})
    assert first.sample.digest == canonical_digest(metadata(0))
    assert {path.name for path in imported.run.path.iterdir()} == {
        "manifest.json", "answers.jsonl", "verdicts.jsonl", "samples.jsonl", "summary.json",
    }  # fmt: skip
    assert [line["answer"] for line in lines(imported.run.path / "samples.jsonl")] == ["one", "", None]


def test_the_stored_settings_are_those_that_judge_needs(tmp_path: Path) -> None:
    """What the manifest keeps can be laid under a judge's flags, and resolves without data set or model."""
    from otoscope.config import judging_only, resolve

    path = write_lines(tmp_path / "c.jsonl", [chat_result(metadata(1), "x")])
    stored = manifest_of(import_to(tmp_path, path))["settings"]
    given = TaskConfig(judge_model_args={"model_id": "j", "api_url": "http://127.0.0.1:1/v1", "api_key": "k"})
    settings = resolve(judging_only(given.over(stored)), {})
    assert settings.judge is not None
    assert settings.judge.endpoint.name == "j"
    assert settings.stored["model"]


def test_with_the_data_set_samples_and_clips_are_its_own(tmp_path: Path) -> None:
    """Records come from Chat_meta.json, clips are hashed, and what has no row or no clip is named."""
    data = write_data(tmp_path / "data", each=2, tasks=["speech_QA", "sound_QA"])
    records = json.loads((data / "Chat" / "Chat_meta.json").read_text(encoding="utf-8"))
    (data / "Chat" / "speech_QA_tones" / "clip_1.wav").unlink()
    told = ("task_name", "dataset_name", "path", "uniq_id")
    rows: list[dict[str, Any]] = [
        {**{name: record[name] for name in told}, "answer": "x"} for record in records[:2]
    ]
    rows.append({"key": "speech_QA/tones/other.wav#7", "answer": "y"})
    imported = import_to(tmp_path, write_lines(tmp_path / "mine.jsonl", rows), data=data)
    assert [outcome.sample.digest for outcome in imported.run.outcomes()] == [
        canonical_digest(record) for record in records[:2]
    ]
    first, second = imported.run.outcomes()
    assert first.clip is not None
    assert first.clip["format"] == "wav"
    assert second.clip is None
    assert imported.findings == {
        "rows that are about no sample": ["mine.jsonl:3"],
        "clips that cannot be used (missing_audio): intervals take each for one": [second.sample.key],
    }
    assert manifest_of(imported)["dataset"]["digest"] is not None


def test_samples_without_a_row_are_pending(tmp_path: Path) -> None:
    """With the data set it is known which samples of the files' tasks are missing, and they count."""
    data = write_data(tmp_path / "data", each=3, tasks=["speech_QA", "sound_QA"])
    record = json.loads((data / "Chat" / "Chat_meta.json").read_text(encoding="utf-8"))[0]
    imported = import_to(tmp_path, write_lines(tmp_path / "c.jsonl", [chat_result(record, "x")]), data=data)
    assert imported.run.summary.counts["expected"] == 3
    assert imported.run.summary.counts["pending"] == 3
    (missing,) = imported.findings.values()
    assert len(missing) == 2
    warned = {warning["name"]: warning["values"] for warning in imported.run.summary.warnings}
    assert warned["not_imported"] == {"count": 2, "n": 3}
    assert warned["not_judged"] == {"pending": 1, "n": 3}
    assert "import_incomplete" not in warned


def test_a_judged_import_without_some_rows_is_not_resumed(tmp_path: Path) -> None:
    """With verdicts too, a sample of which the files say nothing is told as that, and not as unfinished."""
    data = write_data(tmp_path / "data", each=3, tasks=["speech_QA", "sound_QA"])
    records = json.loads((data / "Chat" / "Chat_meta.json").read_text(encoding="utf-8"))
    rows = [batch_output(record, "x", REFERENCE_FIRST, "8 7") for record in records[1:4]]
    imported = import_to(tmp_path, write_lines(tmp_path / "b.jsonl", rows), data=data)
    assert imported.run.summary.counts["pending"] == 3
    warned = {warning["name"]: warning["values"] for warning in imported.run.summary.warnings}
    assert warned["not_imported"] == {"count": 3, "n": 6}
    assert "pending" not in warned
    assert manifest_of(imported)["imported"]["without_row"] == {"speech_QA": 1, "sound_QA": 2}


def test_what_could_not_be_used_is_told_in_every_report(tmp_path: Path) -> None:
    """Rows that a damaged file lost are not in n: how many, and where, stays with the run as a warning."""
    rows = scored_rows({REFERENCE_FIRST: ["8 7"] * 9})[REFERENCE_FIRST]
    path = write_lines(tmp_path / "b.jsonl", [*rows, rows[0]])
    whole = path.read_bytes().splitlines()
    torn = [line[: len(line) // 2] for line in whole[:6]]
    path.write_bytes(b"\n".join([*torn, *whole[6:]]) + b"\n")
    imported = import_to(tmp_path, path)
    assert manifest_of(imported)["imported"]["findings"] == {
        "lines that are not JSON": {"count": 6, "places": [f"b.jsonl:{n}" for n in range(1, 6)]},
    }
    summary = load_run(imported.run.path).summary
    (warned,) = (warning for warning in summary.warnings if warning["name"] == "import_incomplete")
    assert warned["values"] == {"count": 6}
    assert "6" in warned["message"]
    assert summary.counts["expected"] == 4


def test_what_costs_no_row_is_no_warning(tmp_path: Path) -> None:
    """Repeated rows, and those whose samples failed, are in the numbers already."""
    rows = [chat_result(metadata(n), text) for n, text in enumerate(["x", None])]
    imported = import_to(tmp_path, write_lines(tmp_path / "c.jsonl", [*rows, rows[0]]))
    assert len(imported.findings) == 2
    assert "import_incomplete" not in {warning["name"] for warning in imported.run.summary.warnings}


def test_a_clip_that_cannot_be_used_is_in_the_manifest_too(tmp_path: Path) -> None:
    """What is found only while the run is written is kept with the rest."""
    data = write_data(tmp_path / "data", each=1, tasks=["speech_QA"])
    (record,) = json.loads((data / "Chat" / "Chat_meta.json").read_text(encoding="utf-8"))
    (data / "Chat" / "speech_QA_tones" / "clip_0.wav").unlink()
    imported = import_to(tmp_path, write_lines(tmp_path / "c.jsonl", [chat_result(record, "x")]), data=data)
    assert list(manifest_of(imported)["imported"]["findings"]) == list(imported.findings)
    assert len(imported.findings) == 1


# --- the answer filter ------------------------------------------------------------------------------------

THOUGHT = "<think>It may be a dog.</think>A cat."


def test_answers_to_be_judged_are_filtered_as_those_made_here(tmp_path: Path) -> None:
    """Thinking is taken out before the judge sees it; the raw text is kept, and the fingerprint says so."""
    rows = [chat_result(metadata(n), text) for n, text in enumerate([THOUGHT, "plain", "<think>Hm.</think>"])]
    path = write_lines(tmp_path / "c.jsonl", rows)
    imported = import_to(tmp_path, path)
    thought, plain, nothing = (outcome.answer for outcome in imported.run.outcomes())
    assert isinstance(thought, Answer)
    assert (thought.text, thought.raw_text, thought.filter) == ("A cat.", THOUGHT, "strip-thinking")
    assert isinstance(plain, Answer)
    assert plain.text == plain.raw_text == "plain"
    assert isinstance(nothing, Failure)
    assert nothing.kind is FailureKind.BLANK_AFTER_FILTER
    assert nothing.replies[0].text == "<think>Hm.</think>"
    assert manifest_of(imported)["fingerprint"]["prompt"]["answer_filter"] == "strip-thinking"
    assert imported.run.summary.answers["filtered"] == 1
    assert (imported.answers, imported.failed) == (2, 1)
    assert len(imported.findings) == 2
    other = import_files(ImportSettings(files=[path], run_dir=tmp_path / "other", answer_filter="none"))
    assert [getattr(o.answer, "text", None) for o in other.run.outcomes()] == [r["response"] for r in rows]
    assert manifest_of(other)["fingerprint"]["prompt"]["answer_filter"] == "none"


def test_a_tools_own_filter_comes_first(tmp_path: Path) -> None:
    """What another tool has filtered is filtered on, and the raw text is that of its model."""
    data = write_data(tmp_path / "data", each=1, tasks=["sound_QA"])
    (record,) = json.loads((data / "Chat" / "Chat_meta.json").read_text(encoding="utf-8"))
    row = lmms_eval(record, "A cat. END", resps=[["<think>Hm.</think>A cat. END more"]])
    path = write_lines(tmp_path / "x_samples_air_bench_chat_sound.jsonl", [row])
    (outcome,) = import_to(tmp_path, path, data=data, answer_filter="regex:(.*) END").run.outcomes()
    assert isinstance(outcome.answer, Answer)
    assert (outcome.answer.text, outcome.answer.filter) == ("A cat.", "imported, regex:(.*) END")
    assert outcome.answer.raw_text == "<think>Hm.</think>A cat. END more"


def test_an_answer_that_was_cut_while_thinking_is_no_answer(tmp_path: Path) -> None:
    """Where the file tells that the token limit was met within the thinking, nothing is judged."""
    data = write_data(tmp_path / "data", each=2, tasks=["speech_QA"])
    records = json.loads((data / "Chat" / "Chat_meta.json").read_text(encoding="utf-8"))
    rows = [evalscope(record, "<think>It may", sent=record["question"]) for record in records]
    rows[0]["model_output"]["choices"][0]["stop_reason"] = "max_tokens"
    rows[1] = evalscope(records[1], "A cat.", sent=records[1]["question"])
    path = write_lines(tmp_path / "air_bench_chat_speech_QA.jsonl", rows)
    cut, whole = import_to(tmp_path, path, data=data).run.outcomes()
    assert isinstance(cut.answer, Failure)
    assert cut.answer.kind is FailureKind.CUT_WHILE_THINKING
    assert isinstance(whole.answer, Answer)


def test_an_answer_with_a_verdict_stays_as_it_was_judged(tmp_path: Path) -> None:
    """A filter would put other words under the judge's scores: there is none, and none can be asked for."""
    row = batch_output(metadata(1), THOUGHT, REFERENCE_FIRST, "8 7")
    path = write_lines(tmp_path / "b.jsonl", [row])
    with pytest.raises(ConfigError, match="--answer-filter is for answers that are still to be judged"):
        import_to(tmp_path, path, answer_filter="strip-thinking")
    imported = import_to(tmp_path, path)
    (outcome,) = imported.run.outcomes()
    assert isinstance(outcome.answer, Answer)
    assert outcome.answer.text == THOUGHT
    assert manifest_of(imported)["fingerprint"]["prompt"]["answer_filter"] == "none"


def test_a_filter_that_there_is_not_is_refused(tmp_path: Path) -> None:
    """A misspelt filter stops the import before a run is made."""
    path = write_lines(tmp_path / "c.jsonl", [chat_result(metadata(1), "x")])
    with pytest.raises(ConfigError, match="strip-thinking"):
        import_to(tmp_path, path, answer_filter="strip_thinking")
    assert not (tmp_path / "run").exists()


def test_files_without_any_answer_make_no_run(tmp_path: Path) -> None:
    """Where nothing can be judged the import says so and why, and does not advise to judge it."""
    rows = [chat_result(metadata(n), text) for n, text in enumerate([None, "<think>Hm.</think>", ["a"]])]
    with pytest.raises(DatasetError) as refused:
        import_to(tmp_path, write_lines(tmp_path / "c.jsonl", rows))
    assert "c.jsonl: no answer can be judged: " in str(refused.value)
    assert "rows without an answer, whose samples failed: 1 (c.jsonl:1)" in str(refused.value)
    assert "--data" not in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_evalscopes_prompt_is_in_the_fingerprint(tmp_path: Path) -> None:
    """What evalscope sent, system message and the order of the parts included, is written down."""
    data = write_data(tmp_path / "data", each=2, tasks=["speech_QA"])
    records = json.loads((data / "Chat" / "Chat_meta.json").read_text(encoding="utf-8"))
    rows = [
        evalscope(record, "x", sent=f"Listen.\n{record['question']}!", system="Be brief.")
        for record in records
    ]
    folder = tmp_path / "predictions" / "qwen2-audio"
    write_lines(folder / "air_bench_chat_speech_QA.jsonl", rows)
    imported = import_to(tmp_path, tmp_path / "predictions", data=data)
    fingerprint = manifest_of(imported)["fingerprint"]
    assert fingerprint["model"]["name"] == "qwen2-audio"
    prompt = fingerprint["prompt"]
    assert prompt["template"] == "Listen.\n{question}!"
    assert (prompt["system"], prompt["part_order"]) == ("Be brief.", "audio-first")
    assert prompt["source"] == "evalscope"
    assert imported.run.summary.usage["model"]["prompt_tokens"] == 2 * 99


def test_lmms_evals_suffix_is_in_the_fingerprint(tmp_path: Path) -> None:
    """The post-prompt is part of the template; where it is not the same for all, each is kept."""
    data = write_data(tmp_path / "data", each=2, tasks=["sound_QA"])
    records = json.loads((data / "Chat" / "Chat_meta.json").read_text(encoding="utf-8"))
    rows = [lmms_eval(record, "x", after="\nAnswer in English.") for record in records]
    name = "20260101_samples_air_bench_chat_sound.jsonl"
    imported = import_to(tmp_path, write_lines(tmp_path / name, rows), data=data)
    prompt = manifest_of(imported)["fingerprint"]["prompt"]
    assert (prompt["template"], prompt["source"]) == ("{question}\nAnswer in English.", "lmms-eval")
    rows[1] = lmms_eval(records[1], "x")
    other = import_files(
        ImportSettings(files=[write_lines(tmp_path / name, rows)], data=data, run_dir=tmp_path / "other")
    )
    prompt = manifest_of(other)["fingerprint"]["prompt"]
    assert prompt["template"] is None
    assert prompt["templates"] == [
        {"template": "{question}\nAnswer in English.", "rows": 1},
        {"template": "{question}", "rows": 1},
    ]


def test_files_that_lack_what_a_sample_is_need_the_data_set(tmp_path: Path) -> None:
    """Without --data, evalscope's answers cannot be judged, and the message says what to do."""
    path = write_lines(tmp_path / "air_bench_chat_speech_QA.jsonl", [evalscope(metadata(1), "x", sent="q")])
    with pytest.raises(DatasetError, match=r"nothing can be imported: rows .*--data ROOT") as refused:
        import_to(tmp_path, path)
    assert str(refused.value).count("--data") == 1
    assert not (tmp_path / "run").exists()


# --- verdicts ---------------------------------------------------------------------------------------------

REPLIES = {
    REFERENCE_FIRST: ["8 7", "10 1", "0 10", "9 9", "7 8\n", "8 8", "Both are good.", "+5 6", "6 11", "-1 5"],
    ANSWER_FIRST: ["7 8", "2 9", "10 0", "8 9", "8  7", "error", "3 4", "8.5 8", "Score: 8 9", "5 5"],
}


def check_official(imported: Imported, files: dict[Order, Path]) -> None:
    """Compare official scoring of the run with what the official scorer makes of its own files."""
    scores = {order: official_scores(path, cir=order is ANSWER_FIRST) for order, path in files.items()}
    summary = load_run(imported.run.path, scoring="official").summary
    assert set(summary.categories) == set(scores[REFERENCE_FIRST])
    for name, cell in summary.categories.items():
        (_, wins, reference, answer), (_, other_wins, other_answer, other_reference) = (
            scores[order][name] for order in Order
        )
        assert cell.gpt_score == pytest.approx((answer + other_answer) / 2, abs=1e-12)
        assert cell.reference_score == pytest.approx((reference + other_reference) / 2, abs=1e-12)
        assert cell.win_rate == pytest.approx((wins + other_wins) / 2, abs=1e-12)


def as_scores(tmp_path: Path, rows: dict[Order, list[dict[str, Any]]]) -> dict[Order, Path]:
    """Write the least that the official scorer reads of these rows."""
    return {
        order: write_json(
            tmp_path / f"scores_{order.value}.json",
            [{"task_name": row["task_name"], "gpt-score": row["gen"]} for row in rows[order]],
        )
        for order in Order
    }


def test_outputs_of_both_orders_make_a_judged_run(tmp_path: Path) -> None:
    """Each sample has both orders' verdicts, the swap undone, and every raw reply is kept."""
    rows = scored_rows(REPLIES)
    rows[ANSWER_FIRST].reverse()
    files = [write_lines(tmp_path / f"{order.value}.jsonl", rows[order]) for order in Order]
    imported = import_to(tmp_path, *files, judge_model="gpt-4-0125-preview")
    judge = manifest_of(imported)["fingerprint"]["judge"]
    assert (judge["name"], judge["protocol"], judge["do_swap"]) == ("gpt-4-0125-preview", "official", True)
    assert judge["prompt_sha256"] == PROMPT_SHA256
    assert judge["imported"] == {"temperatures": ["1.0", "2.0"]}
    assert dict(imported.verdicts) == {REFERENCE_FIRST: 10, ANSWER_FIRST: 10}
    assert not imported.findings
    by_path = {outcome.sample.path: outcome for outcome in imported.run.outcomes()}
    second = by_path["sound_QA_1.wav"].verdicts
    reference_first, answer_first = second[REFERENCE_FIRST], second[ANSWER_FIRST]
    assert isinstance(reference_first, Verdict)
    assert isinstance(answer_first, Verdict)
    assert (reference_first.reference_score, reference_first.answer_score) == (10, 1)
    assert (answer_first.reference_score, answer_first.answer_score) == (9, 2)
    unparseable = by_path["sound_QA_6.wav"].verdicts[REFERENCE_FIRST]
    assert isinstance(unparseable, Failure)
    assert unparseable.kind is FailureKind.UNPARSEABLE
    assert unparseable.replies[0].text == "Both are good."
    check_official(imported, as_scores(tmp_path, rows))


@pytest.mark.parametrize(
    ("temperatures", "protocol"),
    [
        ([1.0, 2.0, 1], "official"),
        ([1.0, 1.0, 1.0], "official"),
        ([0, 0, 0], None),
        ([1.0, 2.0, 0.7], None),
        ([2.0, 2.0, 2.0], None),
        ([1.0, None, 1.0], None),
    ],
)
def test_official_sampling_is_claimed_only_where_the_files_show_it(
    tmp_path: Path, temperatures: list[float | None], protocol: str | None
) -> None:
    """The official script sends 1.0, and 2.0 on a random half; anything else is no known protocol."""
    rows = scored_rows({REFERENCE_FIRST: ["8 7"] * 3})[REFERENCE_FIRST]
    for row, temperature in zip(rows, temperatures, strict=True):
        row["openai_args"]["temperature"] = temperature
    imported = import_to(tmp_path, write_lines(tmp_path / "b.jsonl", rows))
    assert imported.run.summary.protocol == protocol
    told = manifest_of(imported)["fingerprint"]["judge"]["imported"]["temperatures"]
    assert told == sorted(map(str, {"not stated" if t is None else t for t in temperatures}))


def test_another_prompt_is_no_official_sampling(tmp_path: Path) -> None:
    """Nor are scores, which show no prompt and no temperature."""
    rows = scored_rows({REFERENCE_FIRST: ["8 7"] * 3})[REFERENCE_FIRST]
    rows[1]["openai_args"]["messages"][0]["content"] += " Be brief."
    assert import_to(tmp_path, write_lines(tmp_path / "b.jsonl", rows)).run.summary.protocol is None
    path = write_json(tmp_path / "chat_score.json", [{"task_name": "sound_QA", "gpt-score": "8 7"}])
    other = import_files(ImportSettings(files=[path], run_dir=tmp_path / "other"))
    assert other.run.summary.protocol is None


def test_rows_that_one_order_lacks_do_not_cost_the_others(tmp_path: Path) -> None:
    """Calls that failed have no row: by official scoring each order keeps all its own rows."""
    rows = scored_rows(REPLIES)
    rows[REFERENCE_FIRST][0:1], rows[ANSWER_FIRST][4:6] = [], []
    files = [write_lines(tmp_path / f"{order.value}.jsonl", rows[order]) for order in Order]
    imported = import_to(tmp_path, *files)
    assert imported.run.summary.counts["pending"] == 0
    check_official(imported, as_scores(tmp_path, rows))


def test_scores_without_keys_keep_their_official_numbers(tmp_path: Path) -> None:
    """The least that the official scorer reads is enough for official scoring, and the run says so."""
    files = {}
    for order, name in ((REFERENCE_FIRST, "chat_score.json"), (ANSWER_FIRST, "chat_score_cir.json")):
        scores = [{"task_name": TASKS_OF_TESTS[n % 5], "gpt-score": r} for n, r in enumerate(REPLIES[order])]
        files[order] = write_json(tmp_path / name, scores)
    imported = import_to(tmp_path, *files.values())
    manifest = manifest_of(imported)
    assert manifest["unjoined"] is True
    assert manifest["unknown_answers"] == 20
    assert manifest["fingerprint"]["judge"]["name"] != manifest["fingerprint"]["model"]["name"]
    assert "cannot_be_judged" in manifest
    assert imported.unjoined
    assert imported.run.summary.scoring == "official"
    assert [outcome.sample.path for outcome in imported.run.outcomes()][16] == "answer_first/7"
    check_official(imported, files)


def test_a_missing_finish_reason_loses_no_low_score(tmp_path: Path) -> None:
    """A file of scores tells no finish_reason: a short reply that ends in 1 is a verdict all the same."""
    score = {**metadata(1), "response": "x", "gpt-score": "8 1"}
    path = write_json(tmp_path / "chat_score.json", [score])
    imported = import_to(tmp_path, path)
    (outcome,) = imported.run.outcomes()
    verdict = outcome.verdicts[REFERENCE_FIRST]
    assert isinstance(verdict, Verdict)
    assert (verdict.reference_score, verdict.answer_score) == (8, 1)
    assert verdict.replies[0].finish_reason is None
    assert manifest_of(imported)["fingerprint"]["judge"]["do_swap"] is False
    assert imported.run.summary.counts["scored"] == 1


def test_a_reply_that_was_cut_off_is_no_verdict(tmp_path: Path) -> None:
    """What the judge's own rules refuse is refused here too."""
    row = batch_output(metadata(1), "mine", REFERENCE_FIRST, "8 1", finish_reason="length")
    (outcome,) = import_to(tmp_path, write_lines(tmp_path / "b.jsonl", [row])).run.outcomes()
    verdict = outcome.verdicts[REFERENCE_FIRST]
    assert isinstance(verdict, Failure)
    assert verdict.kind is FailureKind.CUT_OFF


def test_answers_and_verdicts_can_be_imported_together(tmp_path: Path) -> None:
    """The file of answers tells the keys that the outputs lack."""
    rows = scored_rows(REPLIES)
    results = [
        chat_result(metadata(n, TASKS_OF_TESTS[n % 5]), f"answer {n}")
        for n in range(len(REPLIES[ANSWER_FIRST]))
    ]
    files = [write_lines(tmp_path / f"{order.value}.jsonl", rows[order]) for order in Order]
    imported = import_to(tmp_path, write_lines(tmp_path / "c.jsonl", results), *files)
    assert [outcome.sample.uniq_id for outcome in imported.run.outcomes()] == list(range(10))
    assert not imported.findings
    assert "cannot_be_judged" not in manifest_of(imported)


def test_one_order_alone_is_enough_when_the_reference_is_first(tmp_path: Path) -> None:
    """The reference first alone is a run without the swap; the answer first alone has no whole sample."""
    rows = scored_rows(REPLIES)
    path = write_lines(tmp_path / "a.jsonl", rows[REFERENCE_FIRST])
    imported = import_to(tmp_path, path)
    assert imported.run.summary.do_swap is False
    assert imported.run.summary.counts["pending"] == 0
    path = write_lines(tmp_path / "b.jsonl", rows[ANSWER_FIRST])
    other = import_files(ImportSettings(files=[path], run_dir=tmp_path / "other"))
    assert other.unjoined
    assert manifest_of(other)["unjoined"] is True
    assert other.run.summary.scoring == "official"


def test_the_prompt_of_another_tool_is_not_called_the_benchmarks(tmp_path: Path) -> None:
    """Where any row's prompt is not the benchmark's, byte for byte, its hash is not claimed."""
    rows = [batch_output(metadata(n), "mine", REFERENCE_FIRST, "8 7") for n in range(2)]
    rows[1]["openai_args"]["messages"][0]["content"] += (
        " Please only output the 2 required number and no text."
    )
    imported = import_to(tmp_path, write_lines(tmp_path / "b.jsonl", rows))
    assert imported.run.summary.counts["scored"] == 2
    assert manifest_of(imported)["fingerprint"]["judge"]["prompt_sha256"] is None


def test_verdicts_of_two_judges_are_never_mixed(tmp_path: Path) -> None:
    """Two judges' names in the prompts stop the import, unless the user names the one that it was."""
    rows = [batch_output(metadata(n), "mine", REFERENCE_FIRST, "8 7") for n in range(2)]
    for row, name in zip(rows, "ab", strict=True):
        row["openai_args"]["model"] = name
    path = write_lines(tmp_path / "b.jsonl", rows)
    with pytest.raises(DatasetError, match="several judges: a, b"):
        import_to(tmp_path, path)
    assert manifest_of(import_to(tmp_path, path, judge_model="a"))["fingerprint"]["judge"]["name"] == "a"


def test_one_file_is_never_both_orders(tmp_path: Path) -> None:
    """A file given twice, or a copy of it, would give each verdict to the wrong order as well."""
    scores = [{"task_name": "sound_QA", "gpt-score": "8 7"}]
    path = write_json(tmp_path / "chat_score.json", scores)
    with pytest.raises(ConfigError, match="same content"):
        import_to(tmp_path, path, answer_first=[path])
    with pytest.raises(ConfigError, match="same content"):
        import_to(tmp_path, path, write_json(tmp_path / "chat_score_cir.json", scores))


def test_files_of_one_name_are_told_apart(tmp_path: Path) -> None:
    """Both orders' outputs have one name, in two folders: what is found names the folder too."""
    rows = scored_rows({REFERENCE_FIRST: ["8 7"], ANSWER_FIRST: ["7 8"]})
    files = []
    for order in Order:
        rows[order].append({**rows[order][0], "gen": None})
        files.append(write_lines(tmp_path / order.value / "batch_run_output.jsonl", rows[order]))
    imported = import_to(tmp_path, *files)
    assert imported.findings == {"rows without gen": [f"{path}:2" for path in files]}


def test_keys_join_scores_that_tell_nothing_else(tmp_path: Path) -> None:
    """Task, dataset, path and uniq_id are a key; such a run has scores, and can be judged by nobody else."""
    names = ("task_name", "dataset_name", "path", "uniq_id")
    scores = [{**{name: metadata(n)[name] for name in names}, "gpt-score": f"{n} 8"} for n in range(3)]
    files = [
        write_json(tmp_path / "chat_score.json", scores),
        write_json(tmp_path / "chat_score_cir.json", scores[::-1]),
    ]
    imported = import_to(tmp_path, *files)
    assert [outcome.sample.uniq_id for outcome in imported.run.outcomes()] == [0, 1, 2]
    assert imported.run.summary.counts["scored"] == 3
    assert not imported.unjoined
    assert "cannot_be_judged" in manifest_of(imported)


def test_answers_of_two_models_are_never_mixed(tmp_path: Path) -> None:
    """Two names of the model stop the import."""
    rows = [{**chat_result(metadata(n), "x"), "model": name} for n, name in enumerate("ab")]
    with pytest.raises(DatasetError, match="several models: a, b"):
        import_to(tmp_path, write_lines(tmp_path / "c.jsonl", rows))


# --- the run directory ------------------------------------------------------------------------------------


def test_an_import_never_writes_into_a_run(tmp_path: Path) -> None:
    """A folder that holds something is refused, and stays as it is; an empty one is used."""
    path = write_lines(tmp_path / "c.jsonl", [chat_result(metadata(1), "x")])
    import_to(tmp_path, path)
    before = (tmp_path / "run" / "manifest.json").read_bytes()
    with pytest.raises(RunDirectoryError, match="not empty"):
        import_to(tmp_path, path)
    assert (tmp_path / "run" / "manifest.json").read_bytes() == before
    (tmp_path / "empty").mkdir()
    imported = import_files(ImportSettings(files=[path], run_dir=tmp_path / "empty"))
    assert RunStore.exists(imported.run.path)


def test_an_import_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """What cannot be imported leaves no half of a run, under no name."""
    work = tmp_path / "outputs"
    path = write_lines(tmp_path / "c.jsonl", [{"question": "q", "answer": "x"}])
    with pytest.raises(DatasetError):
        import_files(ImportSettings(files=[path], work_dir=work))
    with pytest.raises(ConfigError, match="nothing to import"):
        import_files(ImportSettings(files=[], work_dir=work))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c.jsonl"]


@pytest.mark.parametrize("place", ["work", "work/deeper"])
def test_a_place_that_cannot_be_used_is_named(tmp_path: Path, place: str) -> None:
    """The message is about the place that was given, not the folder beside it, and nothing can be resumed."""
    (tmp_path / "work").write_text("a file where the folder should be", encoding="utf-8")
    path = write_lines(tmp_path / "c.jsonl", [chat_result(metadata(1), "x")])
    with pytest.raises(RunDirectoryError) as refused:
        import_files(ImportSettings(files=[path], work_dir=tmp_path / place))
    assert f"{tmp_path / place}/" in str(refused.value)
    assert "there is a file where its folder should be" in str(refused.value)
    assert "another place with --work-dir" in str(refused.value)
    assert "importing" not in str(refused.value)
    assert "resume" not in str(refused.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c.jsonl", "work"]


def test_a_full_disk_leaves_nothing_and_says_so(tmp_path: Path) -> None:
    """Where a file cannot be written to its end, the message has the run's place and the reason."""
    path = write_lines(tmp_path / "c.jsonl", [chat_result(metadata(n), "x" * 5000) for n in range(9)])
    code = (
        "import resource, sys; from otoscope.cli import main; "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000)); sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "import", str(path), "--run-dir", str(tmp_path / "run")],
        capture_output=True, encoding="utf-8", env=environment(), check=False,
    )  # fmt: skip
    assert done.returncode == RunDirectoryError.exit_code
    assert f"{tmp_path / 'run'}: cannot be made: the disk is full" in done.stderr
    assert "resume" not in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["c.jsonl"]


def test_new_runs_are_named_by_their_model(tmp_path: Path) -> None:
    """Two imports at once get folders of their own."""
    path = write_lines(tmp_path / "c.jsonl", [chat_result(metadata(1), "x")])
    settings = ImportSettings(files=[path], work_dir=tmp_path / "outputs", model="org/Qwen2 Audio")
    first, second = import_files(settings), import_files(settings)
    assert first.run.path != second.run.path
    assert "Qwen2-Audio" in first.run.path.name
    assert {p.name for p in (tmp_path / "outputs").iterdir()} == {first.run.path.name, second.run.path.name}


@pytest.mark.parametrize(
    ("place", "label"),
    [
        ("modelA.v1.jsonl", "modelA.v1"),
        ("modelB/Chat_result_modelx.jsonl", "modelB"),
        ("modelC", "modelC"),
    ],
)
def test_a_run_of_an_unknown_model_is_labelled_by_its_file(tmp_path: Path, place: str, label: str) -> None:
    """Runs are told apart by their files, or by folders where all models' files have one name."""
    path = tmp_path / place
    rows = [chat_result(metadata(1), "x")]
    write_lines(path if path.suffix else path / "Chat_result_modelx.jsonl", rows)
    settings = ImportSettings(files=[path], work_dir=tmp_path / "outputs")
    imported = import_files(settings)
    assert (imported.run.summary.label, imported.run.summary.model) == (label, "unknown model")
    assert manifest_of(imported)["settings"]["label"] == label
    assert imported.run.path.name.endswith(f"-{label}")
    assert import_files(replace(settings, label="mine")).run.summary.label == "mine"
    assert import_files(replace(settings, model="m")).run.summary.label is None


def test_what_a_run_holds_can_be_imported_once_it_is_taken_out(tmp_path: Path) -> None:
    """The lines of a run's samples.jsonl, failures among them, are answers like any other."""
    rows = [chat_result(metadata(n), text) for n, text in enumerate(["one", None])]
    first = import_to(tmp_path, write_lines(tmp_path / "c.jsonl", rows))
    path = tmp_path / "samples.jsonl"
    path.write_bytes((first.run.path / "samples.jsonl").read_bytes())
    again = import_files(ImportSettings(files=[path], run_dir=tmp_path / "again"))
    assert [o.answer.text if isinstance(o.answer, Answer) else None for o in again.run.outcomes()] == [
        "one",
        None,
    ]
    assert [o.sample.key for o in again.run.outcomes()] == [o.sample.key for o in first.run.outcomes()]


@pytest.mark.parametrize("name", ["", "answers.jsonl", "samples.jsonl", "verdicts.jsonl", "manifest.json"])
def test_a_run_needs_no_import(tmp_path: Path, name: str) -> None:
    """A run, and a run's own files, are refused with the run's folder in the command."""
    run = import_to(tmp_path, write_lines(tmp_path / "c.jsonl", [chat_result(metadata(1), "x")])).run.path
    with pytest.raises(DatasetError) as refused:
        import_files(ImportSettings(files=[run / name], work_dir=tmp_path / "outputs"))
    what = f"is a run's own {name}" if name else "is a run"
    assert f"{what}, which needs no import" in str(refused.value)
    assert str(refused.value).endswith(f"otoscope judge {run}")
    assert "--data" not in str(refused.value)
    assert not (tmp_path / "outputs").exists()
