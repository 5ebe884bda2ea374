"""evalscope's answers: ``predictions/MODEL/air_bench_chat_TASK.jsonl``.

A line holds ``model``, ``model_output`` (``choices[0].message.content``: text, or a list of text and
reasoning parts), ``messages`` (what was sent, and the answer), and in newer versions ``metadata`` (without
path and reference answer), unless that was switched off. ``index`` counts within what was chosen and says
nothing of the sample.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from otoscope.benchmark import BENCHMARK, TASKS
from otoscope.exchange.reading import Records
from otoscope.exchange.rows import AnswerRow, Asked, text_or_none, token_counts, told
from otoscope.records import Failure, FailureKind, Json, Reply

_STOP_REASONS = {"max_tokens": "length", "unknown": None}
_TASK_OF_FILE = re.compile(rf"{BENCHMARK}_({'|'.join(TASKS)})\.jsonl")


def evalscope_rows(records: Records) -> Iterator[AnswerRow]:
    """Yield a row for each prediction."""
    named = _TASK_OF_FILE.fullmatch(records.path.name)
    for number, record in records.objects:
        if "model_output" not in record:
            records.findings.leave_out("rows without model_output", f"{records.name}:{number}")
            continue
        fields = told(_object(record.get("metadata")))
        if fields["task"] is None and named is not None:
            fields["task"] = named[1]
        output = _object(record["model_output"])
        text, reasoning, stop_reason = _said(output)
        usage = _object(output.get("usage"))
        model = text_or_none(record.get("model")) or text_or_none(output.get("model"))
        seconds = output.get("time")
        error = text_or_none(output.get("error")) or "evalscope stored no answer"
        yield AnswerRow(
            file=records.name,
            number=number,
            **fields,
            text=text,
            failure=Failure(FailureKind.NO_ANSWER, error),
            model=model or None,
            asked=_asked(record.get("messages")),
            reply=None
            if text is None
            else Reply(
                text=text,
                reasoning=reasoning,
                finish_reason=stop_reason,
                usage=token_counts(usage.get("input_tokens"), usage.get("output_tokens")),
                model=text_or_none(output.get("model")) or None,
                latency=seconds if isinstance(seconds, float) and 0 <= seconds < 1e9 else 0.0,
            ),
        )


def _said(output: Json) -> tuple[str | None, str | None, str | None]:
    """Return the answer's text, its reasoning, and why it ended."""
    choices = output.get("choices")
    choice = _object(choices[0]) if isinstance(choices, list) and choices else {}
    message = _object(choice.get("message"))
    content = message.get("content")
    stop_reason = text_or_none(choice.get("stop_reason"))
    stop_reason = _STOP_REASONS.get(stop_reason, stop_reason) if stop_reason else None
    if isinstance(content, str):
        return content, text_or_none(message.get("reasoning")), stop_reason
    if not isinstance(content, list):
        return None, None, stop_reason
    parts = [_object(part) for part in content]
    # evalscope joins an answer's parts with a newline, and judges that.
    text = "\n".join(part["text"] for part in parts if isinstance(part.get("text"), str))
    reasoning = "\n".join(part["reasoning"] for part in parts if isinstance(part.get("reasoning"), str))
    return text, reasoning or None, stop_reason


def _asked(messages: Any) -> Asked | None:
    sent = [_object(message) for message in messages] if isinstance(messages, list) else []
    system = next((_text(message) for message in sent if message.get("role") == "system"), None)
    user = next((message for message in sent if message.get("role") == "user"), None)
    if user is None:
        return None
    content = user.get("content")
    kinds = [_object(part).get("type") for part in content] if isinstance(content, list) else []
    part_order = None
    if "audio" in kinds and "text" in kinds:
        part_order = "audio-first" if kinds.index("audio") < kinds.index("text") else "text-first"
    return Asked(_text(user), system, part_order)


def _text(message: Json) -> str:
    content = message.get("content")
    if isinstance(content, list):
        texts = [_object(part).get("text") for part in content]
        return "\n".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""


def _object(value: Any) -> Json:
    return dict(value) if isinstance(value, Mapping) else {}
