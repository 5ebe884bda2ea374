"""Lines with an answer each, and whatever tells its sample; ``Chat_result_modelx.jsonl`` is one kind.

The answer stands under ``response``, ``answer`` or ``text``: null is no answer, an empty text is one. The
sample is told by ``key``, or by ``task_name``, ``dataset_name``, ``path`` and ``uniq_id`` or ``question``.
The ``answers.jsonl`` and ``samples.jsonl`` of a run can be read like this too.
"""

from __future__ import annotations

from collections.abc import Iterator

from otoscope.exchange.reading import Records
from otoscope.exchange.rows import NULL_ANSWER, AnswerRow, text_or_none, told
from otoscope.records import Failure, FailureKind, Json, Reply

ANSWER_FIELDS = ("response", "answer", "text")
_RAW_FIELDS = {"answer": "raw_answer", "text": "raw_text"}
_JSON_NAMES = {list: "list", dict: "object", bool: "boolean", int: "number", float: "number"}


def answer_rows(records: Records) -> Iterator[AnswerRow]:
    """Yield a row for each record that has an answer's field."""
    for number, record in records.objects:
        name = next((name for name in ANSWER_FIELDS if name in record), None)
        failure = record.get("failure")
        if name is None and failure is None:
            what = f"rows without {', '.join(ANSWER_FIELDS)}"
            records.findings.leave_out(what, f"{records.name}:{number}")
            continue
        value = record.get(name) if name is not None else None
        text = text_or_none(value)
        raw = text_or_none(record.get(_RAW_FIELDS.get(name or "", "")))
        yield AnswerRow(
            file=records.name,
            number=number,
            **told(record),
            text=text,
            raw_text=raw if raw != text else None,
            failure=NULL_ANSWER if text is not None else _failure(value, failure),
            model=text_or_none(record.get("model")),
            reply=Reply(text=text if raw is None else raw) if text is not None else None,
        )


def _failure(value: object, failure: Json | str | None) -> Failure:
    if isinstance(failure, dict):
        return Failure(FailureKind.NO_ANSWER, str(failure.get("message") or failure.get("kind")))
    if value is None:
        return NULL_ANSWER
    return Failure(FailureKind.BAD_REPLY, f"no text in the file, but a JSON {_JSON_NAMES[type(value)]}")
