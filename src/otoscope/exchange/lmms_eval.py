"""lmms-eval's answers: ``*_samples_air_bench_chat_CATEGORY.jsonl``, written with ``--log_samples``.

A line holds ``target`` (the reference answer), ``input`` (the question between the task's pre- and
post-prompt), ``filtered_resps`` and, where they differ, ``resps``. The record itself is taken out before
writing, so that a sample is told by its reference answer and the question within ``input``; versions that
leave ``doc`` or ``arguments`` in are read too. ``doc_id`` counts rows and says nothing of the sample.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from otoscope.exchange.reading import Records
from otoscope.exchange.rows import AnswerRow, Asked, text_or_none, told
from otoscope.records import Failure, FailureKind, Reply

_CATEGORY_OF_FILE = re.compile(r"samples_air_bench_chat_(speech|sound|music|mixed)(?:[._]|$)")


def lmms_eval_rows(records: Records) -> Iterator[AnswerRow]:
    """Yield a row for each logged sample."""
    named = _CATEGORY_OF_FILE.search(records.path.name)
    category = named[1].replace("mixed", "mixed_audio") if named else None
    for number, record in records.objects:
        if "filtered_resps" not in record and "resps" not in record:
            what = "rows without filtered_resps and resps"
            records.findings.leave_out(what, f"{records.name}:{number}")
            continue
        doc = record.get("doc")
        fields = told(doc if isinstance(doc, dict) else {})
        if fields["reference"] is None:
            fields["reference"] = text_or_none(record.get("target"))
        raw, filtered = _first_text(record.get("resps")), _first_text(record.get("filtered_resps"))
        text = filtered if filtered is not None else raw
        sent = _first_text(record.get("input")) or _first_text(record.get("arguments"))
        yield AnswerRow(
            file=records.name,
            number=number,
            **fields,
            text=text,
            raw_text=raw if raw != text else None,
            failure=Failure(FailureKind.NO_ANSWER, "lmms-eval stored no answer"),
            asked=Asked(sent) if sent else None,
            category=category,
            reply=None if text is None else Reply(text=text if raw is None else raw),
        )


def _first_text(value: Any) -> str | None:
    """Return the first text of however deeply nested lists."""
    while isinstance(value, list) and value:
        value = value[0]
    return text_or_none(value)
