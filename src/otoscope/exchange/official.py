"""The official scripts' files of verdicts, read and written, and their file of answers, written.

``batch_run_output.jsonl`` has the judge's reply under ``gen`` and the prompt under ``openai_args``; a file
holds one order. ``chat_score.json`` (the reference is Assistant 1) and ``chat_score_cir.json`` (the model's
answer is) have the reply under ``gpt-score``: all that the official scorer reads beside ``task_name``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from otoscope.errors import ConfigError
from otoscope.exchange.reading import Records
from otoscope.exchange.rows import VerdictRow, text_or_none, token_counts, told
from otoscope.records import Json, Order, Reply, Sample, text_digest

CHAT_RESULT = "Chat_result_modelx.jsonl"
BATCH_OUTPUT: Mapping[Order, str] = {
    Order.REFERENCE_FIRST: "batch_run_output.jsonl",
    Order.ANSWER_FIRST: "batch_run_output_cir.jsonl",
}
"""The official script calls both the first: the second is the name that an export gives."""
CHAT_SCORE: Mapping[Order, str] = {
    Order.REFERENCE_FIRST: "chat_score.json",
    Order.ANSWER_FIRST: "chat_score_cir.json",
}

_ANSWER_FIELDS = ("Audio-LLM-response", "response")
_SHOWN = re.compile(
    r"\[The Start of Assistant 1'?s Answer\]\n(?P<first>.*)\n\[The End of Assistant 1'?s Answer\]\n"
    r"\[The Start of Assistant 2'?s Answer\]\n(?P<second>.*)\n\[The End of Assistant 2'?s Answer\]",
    re.DOTALL,
)
_FLAGS = "--reference-first FILE or --answer-first FILE"


def batch_output_rows(records: Records, stated: Order | None) -> Iterator[VerdictRow]:
    """Yield a row for each reply. ``stated`` is the order that the user says the file holds.

    The order is read from each prompt, where the reference answer stands in one place and the model's in the
    other; where a prompt does not show it, it is ``stated`` or what the file's name stands for. Raises
    ``ConfigError`` when a prompt gainsays these.
    """
    yield from _ordered(records, list(_rows(records, "gen")), stated or _output_named(records.path))


def _output_named(path: Path) -> Order | None:
    """Return the order that a file of outputs has by its name, which says it only where both lie together."""
    order = next((order for order, name in BATCH_OUTPUT.items() if name == path.name), None)
    together = all(path.with_name(name).is_file() for name in BATCH_OUTPUT.values())
    return order if order is Order.ANSWER_FIRST or together else None


def chat_score_rows(records: Records, stated: Order | None) -> Iterator[VerdictRow]:
    """Yield a row for each reply; the order is ``stated``, or the one that the file's name stands for.

    Raises ``ConfigError`` when nothing tells it, or when a prompt that was left in gainsays it.
    """
    rows = list(_rows(records, "gpt-score"))
    named = next((order for order, name in CHAT_SCORE.items() if name == records.path.name), None)
    if stated is None and named is None and all(row.order is None for row in rows):
        raise ConfigError(
            f"{records.path}: whose answer does the judge read first in it? A file of scores tells by its "
            f"name ({' or '.join(CHAT_SCORE.values())}) or not at all: give it with {_FLAGS}"
        )
    yield from _ordered(records, rows, stated or named)


def _ordered(records: Records, rows: Sequence[VerdictRow], order: Order | None) -> Iterator[VerdictRow]:
    """Give each row an order: the one its prompt shows, else ``order``, else that of all other prompts."""
    for row in rows:
        if order is not None and row.order not in (None, order):
            raise ConfigError(
                f"{records.path}: is taken for {order.value}, but the prompt of row {row.number} has the "
                f"{'reference' if row.order is Order.REFERENCE_FIRST else 'model'}'s answer first. "
                f"Give it with {_FLAGS}, whichever is right"
            )
    # Where answer and reference are the same text, a prompt does not show its order: it is the file's.
    shown = {row.order for row in rows} - {None}
    order = order or (next(iter(shown)) if len(shown) == 1 else None)
    for row in rows:
        yield row if row.order is not None else replace(row, order=order)


def _rows(records: Records, reply_field: str) -> Iterator[VerdictRow]:
    for number, record in records.objects:
        place = f"{records.name}:{number}"
        text = record.get(reply_field)
        if not isinstance(text, str):
            what = f"rows without {reply_field}" if text is None else f"rows whose {reply_field} is no text"
            records.findings.leave_out(what, place)
            continue
        if not isinstance(record.get("task_name"), str):
            records.findings.leave_out("rows without task_name", place)
            continue
        answer = next((record[name] for name in _ANSWER_FIELDS if name in record), None)
        answer = text_or_none(answer)
        arguments = record.get("openai_args")
        arguments = arguments if isinstance(arguments, dict) else {}
        fields = told(record)
        prompt = _prompt(arguments)
        yield VerdictRow(
            file=records.name,
            number=number,
            **fields,
            order=_order(prompt, fields["reference"], answer),
            answer=answer,
            prompt=prompt,
            judge=text_or_none(arguments.get("model")),
            reply=Reply(
                text=text,
                finish_reason=text_or_none(record.get("finish_reason")),
                usage=token_counts(record.get("prompt_tokens"), record.get("completion_tokens")),
                parameters={
                    name: arguments[name]
                    for name in ("temperature", "max_tokens")
                    if _is_number(arguments.get(name))
                },
            ),
        )


def _is_number(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


def _prompt(arguments: Json) -> str | None:
    messages = arguments.get("messages")
    if not isinstance(messages, list) or len(messages) != 1 or not isinstance(messages[0], dict):
        return None
    return text_or_none(messages[0].get("content"))


def _order(prompt: str | None, reference: str | None, answer: str | None) -> Order | None:
    """Return the order that a prompt shows, or ``None`` where it shows none."""
    shown = _SHOWN.search(prompt or "")
    if shown is None or reference is None or answer is None or reference == answer:
        return None
    orders = {
        (reference, answer): Order.REFERENCE_FIRST,
        (answer, reference): Order.ANSWER_FIRST,
    }
    return orders.get((shown["first"], shown["second"]))


# --- writing ----------------------------------------------------------------------------------------------


def chat_result_record(sample: Sample, answer: str | None) -> Json:
    """Return a line of ``Chat_result_modelx.jsonl``, in the official order of fields.

    ``None`` is an answer that failed: the official script leaves out a null response.
    """
    return {
        "meta_info": sample.description,
        "question": sample.question,
        "answer_gt": sample.reference,
        "path": sample.path,
        "task_name": sample.task,
        "dataset_name": sample.dataset,
        "response": answer,
        "uniq_id": sample.uniq_id,
    }


def batch_output_record(
    sample: Sample, answer: str, order: Order, reply: Reply, prompt: str, judge: str
) -> Json:
    """Return a line of ``batch_run_output.jsonl``, and ``uniq_id``, by which it can be joined again."""
    usage: Mapping[str, Any] = reply.usage or {}
    return {
        "uuid": text_digest(f"{sample.key}/{order.value}")[:22],
        "openai_args": {
            "model": judge,
            **{n: v for n, v in reply.parameters.items() if n in ("temperature", "max_tokens")},
            "messages": [{"role": "user", "content": prompt}],
        },
        "meta_info": sample.description,
        "path": sample.path,
        "question": sample.question,
        "answer_gt": sample.reference,
        "task_name": sample.task,
        "dataset_name": sample.dataset,
        "Audio-LLM-response": answer,
        "gen": reply.text or "",
        "prompt_tokens": usage.get("prompt_tokens"),
        "completion_tokens": usage.get("completion_tokens"),
        "finish_reason": reply.finish_reason,
        "uniq_id": sample.uniq_id,
    }


def chat_score_record(sample: Sample | None, task: str, answer: str | None, reply: Reply) -> Json:
    """Return an entry of ``chat_score.json``; without a sample, only what the official scorer reads."""
    scored = {"task_name": task, "gpt-score": reply.text or ""}
    if sample is None:
        return scored
    about = {
        "meta_info": sample.description,
        "question": sample.question,
        "answer_gt": sample.reference,
        "path": sample.path,
        "task_name": task,
        "dataset_name": sample.dataset,
        "uniq_id": sample.uniq_id,
    }
    return {**about, **({} if answer is None else {"response": answer}), **scored}
