"""Foreign files -> rows -> samples, without any run directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otoscope.errors import ConfigError, DatasetError
from otoscope.exchange import (
    UNJOINED,
    AnswerRow,
    ForeignFile,
    VerdictRow,
    files_of,
    is_unknown,
    join,
    read_file,
    settle,
)
from otoscope.records import Answer, Failure, FailureKind, Order, Reply, Sample, canonical_digest
from tests.foreign_files import (
    batch_output,
    chat_result,
    evalscope,
    lmms_eval,
    metadata,
    write_json,
    write_lines,
)

REFERENCE_FIRST, ANSWER_FIRST = Order


def sample(record: dict[str, Any]) -> Sample:
    """Return the data set's sample for a record."""
    return Sample(
        task=record["task_name"],
        dataset=record["dataset_name"],
        path=record["path"],
        uniq_id=record["uniq_id"],
        question=record["question"],
        reference=record["answer_gt"],
        description=record["meta_info"],
        audio_path="",
        digest=canonical_digest(record),
    )


def answers(file: ForeignFile) -> list[AnswerRow]:
    """Return a file's rows, all of them answers."""
    rows = [row for row in file.rows if isinstance(row, AnswerRow)]
    assert len(rows) == len(file.rows)
    return rows


def verdicts(file: ForeignFile) -> list[VerdictRow]:
    """Return a file's rows, all of them verdicts."""
    rows = [row for row in file.rows if isinstance(row, VerdictRow)]
    assert len(rows) == len(file.rows)
    return rows


# --- reading ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\n\n \n"])
def test_the_form_of_the_lines_does_not_matter(tmp_path: Path, start: bytes, end: bytes) -> None:
    """A byte order mark, CRLF, blank lines and another order of the fields change no row."""
    rows = [chat_result(metadata(number), f"a\u2028b {number}") for number in range(3)]
    plain = read_file(write_lines(tmp_path / "plain.jsonl", rows))
    backwards = [dict(reversed(list(row.items()))) for row in rows]
    path = tmp_path / "other.jsonl"
    path.write_bytes(start + b"".join(json.dumps(r, ensure_ascii=False).encode() + end for r in backwards))
    read = read_file(path)
    assert not read.findings
    assert [(row.told_key, row.text) for row in answers(read)] == [
        (row.told_key, row.text) for row in answers(plain)
    ]


def test_a_list_is_read_like_lines(tmp_path: Path) -> None:
    """One JSON list of objects holds the same rows as JSON Lines, whatever the file is called."""
    rows = [chat_result(metadata(number), "x") for number in range(3)]
    listed = read_file(write_json(tmp_path / "Chat_result_modelx.jsonl", rows))
    assert [row.told_key for row in listed.rows] == [
        f"speech_QA/tones/speech_QA_{n}.wav#{n}" for n in range(3)
    ]
    assert [row.number for row in listed.rows] == [1, 2, 3]


def test_a_cut_off_end_costs_only_what_was_cut(tmp_path: Path) -> None:
    """Of JSON Lines and of a list, all that stands before the cut is read, and the cut is named."""
    rows = [chat_result(metadata(number), "x") for number in range(3)]
    cut = tmp_path / "lines.jsonl"
    cut.write_bytes(write_lines(tmp_path / "whole.jsonl", rows).read_bytes()[:-20])
    read = read_file(cut)
    assert len(read.rows) == 2
    assert read.findings == {"last lines that are cut off": ["lines.jsonl:3"]}
    listed = tmp_path / "list.json"
    listed.write_bytes(write_json(tmp_path / "whole.json", rows).read_bytes()[:-20])
    read = read_file(listed)
    assert len(read.rows) == 2
    assert read.findings == {"lists that are cut off or damaged from there on": ["list.json:3"]}


def test_bad_lines_are_named_and_the_others_read(tmp_path: Path) -> None:
    """Torn lines, lines in another encoding and rows that are no object are found by their numbers."""
    good = json.dumps(chat_result(metadata(1), "x")).encode()
    path = tmp_path / "mixed.jsonl"
    path.write_bytes(b"\n".join([good, b'{"torn": ', b'{"response": "\xff"}', b"[1, 2]", b"7", good, b""]))
    read = read_file(path)
    assert len(read.rows) == 2
    assert read.findings == {
        "lines that are not JSON": ["mixed.jsonl:2"],
        "lines that are not UTF-8": ["mixed.jsonl:3"],
        "rows that are no JSON object": ["mixed.jsonl:4", "mixed.jsonl:5"],
    }
    assert read.findings.left_out == 4


def test_nan_is_no_value(tmp_path: Path) -> None:
    """NaN, which is no JSON but which Python writes, is a missing value and never a number."""
    row = chat_result(metadata(1), float("nan"))
    read = answers(read_file(write_lines(tmp_path / "a.jsonl", [row])))
    assert read[0].text is None
    assert read[0].failure.message == "null in the file"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b" \r\n", "is empty"),
        (b"\xef\xbb\xbf\n", "is empty"),
        ("{}".encode("utf-16"), "UTF-16"),
        (b"[" + b'{"response": "\xff"}' + b"]", "not UTF-8"),
        (b'{"response": "caf\xe9", "path": "x"}', "not UTF-8"),
        (b'{"response": "caf\xe9", "path": "x"}\n' * 2, "not UTF-8"),
        (b'{"response": "caf\xc3', "no JSON object"),
        (b"version https://git-lfs.github.com/spec/v1\n", "no JSON object"),
        (b"[" * 100_000, "no JSON object"),
        (b"{}", "none of chat-result"),
        (b'[{"question": "q", "answer_gt": "a"}]', "--data"),
        (b'{"openai_args": {}, "Audio-LLM-response": "x"}', "judge's input"),
        (b'{"sample_score": {}, "index": 0}', "predictions/"),
        (b'{\n "results": {},\n "configs": {}\n}', "samples_*.jsonl"),
        (b'{"key": "k", "judge_id": "j", "reference_score": 1}', "verdicts.jsonl of a run"),
    ],
)
def test_a_file_of_another_kind_is_refused_by_name(tmp_path: Path, content: bytes, says: str) -> None:
    """What a file is, or what is wrong with it, stands in the message with the file's name."""
    path = tmp_path / "strange.json"
    path.write_bytes(content)
    with pytest.raises(DatasetError) as refused:
        read_file(path)
    assert says in str(refused.value)
    assert "strange.json" in str(refused.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """A file that is not there is an error with its name."""
    with pytest.raises(DatasetError, match=r"gone\.jsonl: cannot be read"):
        read_file(tmp_path / "gone.jsonl")


@given(st.binary(max_size=80))
def test_whatever_a_file_holds_it_is_read_or_refused(tmp_path_factory: Any, content: bytes) -> None:
    """No content raises anything but an error with a next step."""
    path = tmp_path_factory.mktemp("any") / "any.jsonl"
    for start in (b"", b"[", b'{"response":'):
        path.write_bytes(start + content)
        try:
            read_file(path)
        except (DatasetError, ConfigError):
            continue


# --- answers ----------------------------------------------------------------------------------------------


def test_null_is_no_answer_and_an_empty_text_is_one(tmp_path: Path) -> None:
    """As for the official script, only null is no answer; what is no text is none either."""
    rows = [chat_result(metadata(n), text) for n, text in enumerate(["", None, ["a"], "yes"])]
    read = read_file(write_lines(tmp_path / "Chat_result_modelx.jsonl", rows))
    assert read.format == "chat-result"
    assert [row.text for row in answers(read)] == ["", None, None, "yes"]
    assert answers(read)[2].failure.kind is FailureKind.BAD_REPLY
    assert answers(read)[2].failure.message == "no text in the file, but a JSON list"


def test_plain_answers_are_told_by_key_or_by_their_fields(tmp_path: Path) -> None:
    """The answer stands under response, answer or text; a key also tells the task."""
    record = metadata(4)
    rows = [
        {"key": "speech_QA/tones/speech_QA_4.wav#4", "answer": "by key"},
        {name: record[name] for name in ("task_name", "dataset_name", "path", "uniq_id")} | {"text": "by id"},
        {name: record[name] for name in ("task_name", "dataset_name", "path", "question")} | {"text": "by q"},
        {"question": record["question"], "answer": "by question alone"},
        {"question": record["question"]},
    ]
    read = read_file(write_lines(tmp_path / "mine.jsonl", rows))
    assert read.format == "answers"
    assert read.findings == {"rows without response, answer, text": ["mine.jsonl:5"]}
    joined = join(read.rows, [sample(record), sample(metadata(5))])
    assert [row.text for row in joined.answers[sample(record).key]] == [row.text for row in answers(read)]
    assert answers(read)[0].task == "speech_QA"


def test_evalscopes_answers_are_found_by_what_they_say(tmp_path: Path) -> None:
    """Without path and reference answer a prediction is told by its uniq_id or by what was asked."""
    first, second = metadata(1), metadata(2)
    thought = [{"type": "reasoning", "reasoning": "hm"}, {"type": "text", "text": "two"}]
    rows = [
        evalscope(first, "one", sent=first["question"], index=7),
        evalscope(None, thought, sent=second["question"], index=0),
        evalscope(first, "", sent="x", choices=[], error="refused", index=1),
    ]
    path = write_lines(tmp_path / "predictions" / "m" / "air_bench_chat_speech_QA.jsonl", rows)
    assert files_of(tmp_path / "predictions") == [path]
    file = read_file(path)
    one, two, none = answers(file)
    assert (file.format, one.text, two.text, none.text) == ("evalscope", "one", "two", None)
    assert none.failure.message == "refused"
    assert two.reply is not None
    assert (two.reply.reasoning, two.reply.usage) == ("hm", {"prompt_tokens": 99, "completion_tokens": 7})
    assert one.asked is not None
    assert (one.asked.text, one.asked.system, one.asked.part_order) == (
        first["question"],
        None,
        "audio-first",
    )
    joined = join(file.rows, [sample(second), sample(first)])
    assert [row.text for row in joined.answers[sample(first).key]] == ["one", None]
    assert [row.text for row in joined.answers[sample(second).key]] == ["two"]


def test_a_length_stop_is_named_as_servers_name_it(tmp_path: Path) -> None:
    """The stop reason max_tokens becomes length, so that answers that were cut off are counted."""
    row = evalscope(metadata(1), "cut", sent="x")
    row["model_output"]["choices"][0]["stop_reason"] = "max_tokens"
    (read,) = answers(read_file(write_lines(tmp_path / "air_bench_chat_speech_QA.jsonl", [row])))
    assert read.reply is not None
    assert read.reply.finish_reason == "length"


def test_lmms_evals_answers_are_told_by_reference_and_question(tmp_path: Path) -> None:
    """The question stands within the input, whatever the tool put behind it; doc_id says nothing."""
    records = [metadata(1, answer_gt="yes"), metadata(2, answer_gt="yes"), metadata(3, answer_gt="no")]
    suffix = "Give a detail answer to the question in English."
    rows = [lmms_eval(record, f"r{record['uniq_id']}", after=suffix, doc_id=0) for record in records]
    rows[2] |= {"resps": [["raw r3"]]}
    path = write_lines(tmp_path / "20260101_samples_air_bench_chat_speech.jsonl", rows)
    assert files_of(tmp_path) == [path]
    file = read_file(path)
    assert file.format == "lmms-eval"
    assert answers(file)[2].raw_text == "raw r3"
    joined = join(file.rows, [sample(record) for record in records])
    told = {key: [row.text for row in rows] for key, rows in joined.answers.items()}
    assert told == {sample(r).key: [f"r{r['uniq_id']}"] for r in records}


def test_lmms_evals_mixed_file_names_its_tasks(tmp_path: Path) -> None:
    """A question that two categories share is told apart by the file's name."""
    record, other = metadata(1, "speech_and_sound_QA"), metadata(2, "speech_QA")
    same = {"question": "What is heard?", "answer_gt": "A dog."}
    path = tmp_path / "x_samples_air_bench_chat_mixed.jsonl"
    file = read_file(write_lines(path, [lmms_eval({**record, **same}, "yes")]))
    joined = join(file.rows, [sample({**record, **same}), sample({**other, **same})])
    assert list(joined.answers) == [sample({**record, **same}).key]


def test_lmms_evals_rows_that_kept_their_record_need_no_data(tmp_path: Path) -> None:
    """Versions that leave the record in tell the sample whole."""
    record = metadata(1)
    row = lmms_eval(record, "yes", doc=record, arguments=[[record["question"], {}]])
    file = read_file(write_lines(tmp_path / "samples_air_bench_chat_speech.jsonl", [row]))
    assert join(file.rows, None).samples[0].digest == canonical_digest(record)


def test_a_folder_of_several_models_is_refused(tmp_path: Path) -> None:
    """Answers of two models are never mixed."""
    for model in ("a", "b"):
        write_lines(
            tmp_path / model / "air_bench_chat_sound_QA.jsonl", [evalscope(metadata(1), "x", sent="q")]
        )
    with pytest.raises(DatasetError, match="several models"):
        files_of(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DatasetError, match="Give the files"):
        files_of(tmp_path / "empty")


# --- verdicts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", list(Order))
def test_the_prompt_tells_the_order(tmp_path: Path, order: Order) -> None:
    """Where the reference answer stands in the prompt is the order; equal texts take the file's."""
    rows = [batch_output(metadata(1), "mine", order, "8 7")]
    rows.append(batch_output(metadata(2), metadata(2)["answer_gt"], order, "8 7"))
    file = read_file(write_lines(tmp_path / "batch_run_output.jsonl", rows))
    assert file.format == "batch-output"
    assert [row.order for row in verdicts(file)] == [order, order]
    assert verdicts(file)[0].reply.parameters == {"temperature": 2.0}


def test_an_order_that_the_prompt_gainsays_is_refused(tmp_path: Path) -> None:
    """A flag that would swap whose score is whose stops the import."""
    path = write_lines(tmp_path / "b.jsonl", [batch_output(metadata(1), "mine", REFERENCE_FIRST, "8 7")])
    with pytest.raises(ConfigError, match="prompt of row 1 has the reference's answer first"):
        read_file(path, order=ANSWER_FIRST)
    assert verdicts(read_file(path, order=REFERENCE_FIRST))[0].order is REFERENCE_FIRST


def test_without_a_prompt_the_user_says_the_order(tmp_path: Path) -> None:
    """Nothing is guessed: without prompt and flag, the rows have no order and are left out."""
    row = batch_output(metadata(1), "mine", REFERENCE_FIRST, "8 7", prompt=False)
    path = write_lines(tmp_path / "b.jsonl", [row])
    assert verdicts(read_file(path, order=ANSWER_FIRST))[0].order is ANSWER_FIRST
    joined = join(read_file(path).rows, None)
    assert not joined.verdicts
    assert not joined.unjoined
    assert any("--reference-first" in what for what in joined.findings)


def test_scores_tell_their_order_by_name_or_not_at_all(tmp_path: Path) -> None:
    """chat_score.json has the reference first, chat_score_cir.json the answer; others need a flag."""
    scores = [{"task_name": "sound_QA", "gpt-score": "8 7"}]
    for name, order in (("chat_score.json", REFERENCE_FIRST), ("chat_score_cir.json", ANSWER_FIRST)):
        assert verdicts(read_file(write_json(tmp_path / name, scores)))[0].order is order
    other = write_json(tmp_path / "chat_score_qwen.json", scores)
    with pytest.raises(ConfigError, match="--answer-first"):
        read_file(other)
    assert verdicts(read_file(other, order=ANSWER_FIRST))[0].order is ANSWER_FIRST


def test_a_prompt_that_was_left_in_scores_tells_their_order(tmp_path: Path) -> None:
    """A name that the prompts gainsay stops the import; without a known name the prompts tell the order."""
    row = batch_output(metadata(1), "mine", ANSWER_FIRST, "8 7")
    scores = [{**row, "gpt-score": "8 7"}]
    with pytest.raises(
        ConfigError, match="taken for reference_first, but the prompt of row 1 has the model's"
    ):
        read_file(write_json(tmp_path / "chat_score.json", scores))
    file = read_file(write_json(tmp_path / "scores.json", scores))
    assert verdicts(file)[0].order is ANSWER_FIRST


def test_rows_without_reply_or_task_are_named(tmp_path: Path) -> None:
    """A null reply, a number and a missing task are found, and are no verdicts."""
    rows: list[Any] = [
        {"task_name": "sound_QA", "gpt-score": "8 7"},
        {"task_name": "sound_QA", "gpt-score": None},
        {"task_name": "sound_QA", "gpt-score": 8},
        {"gpt-score": "8 7"},
    ]
    file = read_file(write_json(tmp_path / "chat_score.json", rows))
    assert len(file.rows) == 1
    assert file.findings == {
        "rows without gpt-score": ["chat_score.json:2"],
        "rows whose gpt-score is no text": ["chat_score.json:3"],
        "rows without task_name": ["chat_score.json:4"],
    }


def test_an_order_for_answers_is_refused(tmp_path: Path) -> None:
    """A file of answers has no order to be said."""
    path = write_lines(tmp_path / "Chat_result_modelx.jsonl", [chat_result(metadata(1), "x")])
    with pytest.raises(ConfigError, match="it has no order"):
        read_file(path, order=REFERENCE_FIRST)


def test_outputs_tell_their_order_by_name_only_where_both_lie_together(tmp_path: Path) -> None:
    """The official script calls both orders' outputs alike: the first's name alone says nothing."""
    row = batch_output(metadata(1), "mine", REFERENCE_FIRST, "8 7", prompt=False)
    first = write_lines(tmp_path / "batch_run_output.jsonl", [row])
    assert verdicts(read_file(first))[0].order is None
    second = write_lines(tmp_path / "batch_run_output_cir.jsonl", [row])
    assert verdicts(read_file(first))[0].order is REFERENCE_FIRST
    assert verdicts(read_file(second))[0].order is ANSWER_FIRST


def test_a_folder_of_the_official_files_is_read_by_their_names(tmp_path: Path) -> None:
    """Where both orders have outputs the scores add nothing; one file of outputs may be either order's."""
    names = ["Chat_result_modelx.jsonl", "batch_run_output.jsonl", "batch_run_output_cir.jsonl"]
    scores = ["chat_score.json", "chat_score_cir.json"]
    for name in (*names, *scores, "other.jsonl"):
        (tmp_path / name).touch()
    assert [path.name for path in files_of(tmp_path)] == names
    (tmp_path / names[2]).unlink()
    assert [path.name for path in files_of(tmp_path)] == [*names[:2], *scores]


def test_a_parameter_that_is_no_finite_number_is_left_out(tmp_path: Path) -> None:
    """What no judge can have been sent is not kept: true, or more than a number can be."""
    row = batch_output(metadata(1), "mine", REFERENCE_FIRST, "8 7")
    row["openai_args"] |= {"temperature": True, "max_tokens": "INFINITE"}
    path = write_lines(tmp_path / "b.jsonl", [row])
    path.write_text(path.read_text(encoding="utf-8").replace('"INFINITE"', "1e999"), encoding="utf-8")
    assert verdicts(read_file(path))[0].reply.parameters == {}


# --- joining ----------------------------------------------------------------------------------------------


def both_orders(tmp_path: Path, records: list[dict[str, Any]]) -> list[Any]:
    """Return the rows of both orders' outputs, the second file in the opposite order of rows."""
    rows: list[Any] = []
    for order in Order:
        outputs = [batch_output(record, f"a {record['path']}", order, "8 7") for record in records]
        outputs = outputs if order is REFERENCE_FIRST else outputs[::-1]
        rows += read_file(write_lines(tmp_path / f"{order.value}.jsonl", outputs)).rows
    return rows


def test_orders_are_joined_by_question_and_never_by_place(tmp_path: Path) -> None:
    """The two files' rows meet by task, dataset, path and question, in whatever order they stand."""
    records = [metadata(1), metadata(2), metadata(3, path="speech_QA_1.wav")]
    rows = both_orders(tmp_path, records)
    joined = join(rows, None)
    assert len(joined.samples) == 3
    for found in joined.samples:
        texts = {row.question for order in Order for row in joined.verdicts[found.key, order]}
        assert texts == {found.question}
    told = join(rows, [sample(record) for record in records])
    assert {key for key, _ in told.verdicts} == {sample(record).key for record in records}
    assert not joined.unjoined
    assert not told.unjoined


def test_rows_that_fit_two_samples_stay_unjoined(tmp_path: Path) -> None:
    """Two records with the same clip and question cannot be told apart without uniq_id."""
    twins = [metadata(1), metadata(2, path="speech_QA_1.wav", question=metadata(1)["question"])]
    rows = both_orders(tmp_path, [*twins, metadata(3)])
    for samples in (None, [sample(record) for record in (*twins, metadata(3))]):
        joined = join(rows, samples)
        assert len(joined.unjoined) == 4
        assert {key.partition("#")[0] for key, _ in joined.verdicts} == {"speech_QA/tones/speech_QA_3.wav"}


def test_scores_without_a_key_are_samples_of_their_own(tmp_path: Path) -> None:
    """Each row becomes a sample that says which order's row it is, with that one verdict."""
    rows: list[Any] = []
    for name in ("chat_score.json", "chat_score_cir.json"):
        scores = [{"task_name": "sound_QA", "gpt-score": f"8 {n}"} for n in range(3)]
        rows += read_file(write_json(tmp_path / name, scores)).rows
    settled = settle(join(rows, [sample(metadata(1, "sound_QA"))]))
    assert [found.path for found in settled.samples] == [
        f"{order.value}/{number}" for order in Order for number in (1, 2, 3)
    ]
    assert {found.dataset for found in settled.samples} == {UNJOINED}
    assert len({found.key for found in settled.samples}) == 6
    assert [row.reply.text for _, _, row in settled.verdicts] == ["8 0", "8 1", "8 2"] * 2
    assert all(is_unknown(answer) for answer in settled.answers.values())


def test_a_row_that_contradicts_its_sample_is_not_joined(tmp_path: Path) -> None:
    """A verdict against another reference answer than the data set's is no verdict on that sample."""
    rows = both_orders(tmp_path, [metadata(1), metadata(2, answer_gt="Another one.")])
    joined = join(rows, [sample(metadata(1)), sample(metadata(2))])
    assert {key for key, _ in joined.verdicts} == {sample(metadata(1)).key}
    assert len(joined.unjoined) == 2
    assert {found.uniq_id for found, _, _ in settle(joined).verdicts} == {1}
    assert joined.findings == {
        "verdicts that are about no sample for certain": [
            "reference_first.jsonl:2",
            "answer_first.jsonl:1",
        ]
    }


def test_foreign_rows_are_named(tmp_path: Path) -> None:
    """Rows of a task that there is not, and of a sample that there is not, are named and left out."""
    rows = [chat_result(metadata(n), "x") for n in (1, 9)] + [chat_result(metadata(2, "speach_QA"), "x")]
    file = read_file(write_lines(tmp_path / "c.jsonl", rows))
    joined = join(file.rows, [sample(metadata(1))])
    assert list(joined.answers) == [sample(metadata(1)).key]
    assert joined.findings == {
        "rows of a task that there is not ('speach_QA', did you mean 'speech_QA'?)": ["c.jsonl:3"],
        "rows that are about no sample": ["c.jsonl:2"],
    }


def test_a_row_that_does_not_say_its_task_adds_none(tmp_path: Path) -> None:
    """What is expected are the tasks that rows name or are found in; an unknown key names none."""
    tasks = ("speech_QA", "sound_QA", "music_QA")
    samples = [sample(metadata(n, task)) for n, task in enumerate(tasks)]
    rows: list[dict[str, Any]] = [
        {"key": samples[0].key, "answer": "x"},
        {"key": "who/knows", "answer": "y"},
    ]
    joined = join(read_file(write_lines(tmp_path / "a.jsonl", rows)).rows, samples)
    assert joined.samples == samples[:1]
    assert joined.findings == {"rows that are about no sample": ["a.jsonl:2"]}
    rows.append({"question": samples[2].question, "answer": "z"})
    joined = join(read_file(write_lines(tmp_path / "a.jsonl", rows)).rows, samples)
    assert joined.samples == [samples[0], samples[2]]


@given(st.permutations(range(6)))
def test_the_order_of_rows_does_not_matter(order: list[int]) -> None:
    """Whatever order the rows come in, each sample gets the same verdicts."""
    rows = [
        VerdictRow(
            file="f",
            number=number + 1,
            task="speech_QA",
            dataset="tones",
            path=f"{number % 3}.wav",
            question="q",
            reference="r",
            description="d",
            order=list(Order)[number // 3],
            answer="a",
            reply=Reply(text=f"{number} 1"),
        )
        for number in range(6)
    ]
    settled = settle(join([rows[at] for at in order], None))
    assert {(found.path, kind.value, row.reply.text) for found, kind, row in settled.verdicts} == {
        (f"{number % 3}.wav", list(Order)[number // 3].value, f"{number} 1") for number in range(6)
    }


# --- settling ---------------------------------------------------------------------------------------------


def settled_answers(tmp_path: Path, responses: list[Any]) -> tuple[Answer | Failure, dict[str, list[str]]]:
    """Return what several rows about one sample say together."""
    rows = [chat_result(metadata(1), response) for response in responses]
    joined = join(read_file(write_lines(tmp_path / "c.jsonl", rows)).rows, None)
    (answer,) = settle(joined).answers.values()
    return answer, joined.findings


def test_repeated_answers_count_once(tmp_path: Path) -> None:
    """The same answer twice is one answer, and the repetition is named."""
    answer, findings = settled_answers(tmp_path, ["x", "x", None])
    assert isinstance(answer, Answer)
    assert answer.text == "x"
    assert findings == {"rows that repeat an answer": ["c.jsonl:2", "c.jsonl:3"]}


def test_contradicting_answers_are_a_failure(tmp_path: Path) -> None:
    """Of two different answers neither is chosen; both are named in the failure."""
    answer, findings = settled_answers(tmp_path, ["x", "y"])
    assert isinstance(answer, Failure)
    assert answer.kind is FailureKind.BAD_REPLY
    assert "'x', 'y'" in answer.message
    assert findings == {
        "rows with different answers to one sample, whose samples failed": ["c.jsonl:1", "c.jsonl:2"]
    }


def test_a_null_answer_is_a_failure(tmp_path: Path) -> None:
    """Null alone is a sample without an answer, and a list is told as what it is; an empty text is one."""
    answer, findings = settled_answers(tmp_path, [None])
    assert isinstance(answer, Failure)
    assert answer.kind is FailureKind.NO_ANSWER
    assert list(findings) == ["rows without an answer, whose samples failed"]
    answer, findings = settled_answers(tmp_path, [7])
    assert isinstance(answer, Failure)
    assert answer.message == "no text in the file, but a JSON number"
    assert list(findings) == ["rows whose answer is no text, whose samples failed"]
    answer, _ = settled_answers(tmp_path, [""])
    assert isinstance(answer, Answer)
    assert (answer.text, answer.blank, is_unknown(answer)) == ("", True, False)


def settled_verdicts(tmp_path: Path, gens: list[str]) -> Any:
    """Return what several rows about one sample in one order say together."""
    rows = [batch_output(metadata(1), "mine", REFERENCE_FIRST, gen) for gen in gens]
    joined = join(read_file(write_lines(tmp_path / "b.jsonl", rows)).rows, None)
    return settle(joined), joined


def test_repeated_verdicts_and_failed_calls_are_no_contradiction(tmp_path: Path) -> None:
    """The same reply twice is one, and a stored "error" gives way to the reply that came after it."""
    settled, joined = settled_verdicts(tmp_path, ["error", "8 7", "8 7"])
    assert [row.reply.text for _, _, row in settled.verdicts] == ["8 7"]
    assert joined.findings == {"rows that repeat a verdict": ["b.jsonl:2", "b.jsonl:3"]}
    settled, _ = settled_verdicts(tmp_path, ["error"])
    assert [row.reply.text for _, _, row in settled.verdicts] == ["error"]


def test_contradicting_verdicts_fail_their_sample(tmp_path: Path) -> None:
    """Of two different verdicts neither is chosen; both are named in the failure."""
    settled, joined = settled_verdicts(tmp_path, ["8 7", "2 1"])
    ((failed, order, failure),) = settled.failures
    assert (failed.path, order, failure.kind) == ("speech_QA_1.wav", REFERENCE_FIRST, FailureKind.BAD_REPLY)
    assert "'8 7', '2 1'" in failure.message or "'2 1', '8 7'" in failure.message
    assert not settled.verdicts
    assert joined.findings == {
        "rows with different verdicts on one answer, whose samples failed": ["b.jsonl:1", "b.jsonl:2"]
    }


def test_a_verdict_that_one_order_lacks_is_a_failure(tmp_path: Path) -> None:
    """Nobody can ask for it again: the sample failed, and is not waited for."""
    rows = both_orders(tmp_path, [metadata(1), metadata(2)])[:-1]
    settled = settle(join(rows, None))
    ((failed, order, failure),) = settled.failures
    assert (failed.path, order, failure.kind) == ("speech_QA_1.wav", ANSWER_FIRST, FailureKind.NO_ANSWER)


def test_answers_that_no_judge_could_be_shown_are_left_out(tmp_path: Path) -> None:
    """Without the data set, an answer needs its reference answer and description in the file."""
    bare = {name: value for name, value in metadata(2).items() if name not in ("answer_gt", "meta_info")}
    rows = [chat_result(metadata(1), "x"), chat_result(bare, "y")]
    joined = join(read_file(write_lines(tmp_path / "c.jsonl", rows)).rows, None)
    settled = settle(joined)
    assert [found.uniq_id for found in settled.samples] == [1]
    assert joined.findings == {
        "rows without question, answer_gt or meta_info, which the judge needs and --data ROOT gives": [
            "c.jsonl:2"
        ]
    }
    assert joined.findings.left_out == 1


def test_a_verdict_in_outputs_and_scores_is_no_repetition(tmp_path: Path) -> None:
    """Both kinds of file hold the same verdicts; only a row that its own file has twice is named."""
    row = batch_output(metadata(1), "mine", REFERENCE_FIRST, "8 7")
    score = {**metadata(1), "response": "mine", "gpt-score": "8 7"}
    rows: list[Any] = [*read_file(write_lines(tmp_path / "b.jsonl", [row])).rows]
    rows += read_file(write_json(tmp_path / "chat_score.json", [score, score])).rows
    joined = join(rows, None)
    ((_, _, told),) = settle(joined).verdicts
    assert told.prompt is not None
    assert joined.findings == {"rows that repeat a verdict": ["chat_score.json:2"]}
