"""Files as the official scripts, evalscope and lmms-eval write them, for tests."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from otoscope.benchmark import TASK_GROUPS
from otoscope.judge import render_prompt
from otoscope.records import Order, Sample

TASKS_OF_TESTS = ("speech_QA", "sound_QA", "music_QA", "speech_and_sound_QA", "speech_and_music_QA")


def metadata(number: int, task: str = "speech_QA", **more: Any) -> dict[str, Any]:
    """Return a record of the data set."""
    return {
        "path": f"{task}_{number}.wav",
        "question": f"What is heard in clip {number}?",
        "answer_gt": f"A tone, number {number}.",
        "task_name": task,
        "dataset_name": "tones",
        "uniq_id": number,
        "meta_info": f"{{'tone': {number}}}",
        **more,
    }


def chat_result(record: Mapping[str, Any], response: Any) -> dict[str, Any]:
    """Return a line of ``Chat_result_modelx.jsonl``."""
    return {**record, "response": response}


def batch_output(
    record: Mapping[str, Any], response: str, order: Order, gen: Any, *, prompt: bool = True, **more: Any
) -> dict[str, Any]:
    """Return a line of ``batch_run_output.jsonl``, which has no ``uniq_id``.

    As the official script does, half of them were sent with another temperature.
    """
    about = {name: value for name, value in record.items() if name != "uniq_id"}
    sample = Sample("", "", "", 0, record["question"], record["answer_gt"], record["meta_info"], "", "")
    content = render_prompt(sample, response, order)
    temperature = 2.0 if record["uniq_id"] % 2 else 1.0
    message = {"role": "user", "content": content}
    arguments = {"messages": [message], "temperature": temperature} if prompt else {}
    return {
        "uuid": f"{order.value}-{record['path']}",
        "openai_args": arguments,
        **about,
        "Audio-LLM-response": response,
        "gen": gen,
        "prompt_tokens": 300,
        "completion_tokens": 3,
        "finish_reason": "stop",
        **more,
    }


def evalscope(
    record: Mapping[str, Any] | None,
    content: Any,
    *,
    sent: str,
    system: str | None = None,
    index: int = 0,
    **output: Any,
) -> dict[str, Any]:
    """Return a line of evalscope's predictions; without a ``record``, one that saved no metadata."""
    kept = ("uniq_id", "task_name", "dataset_name", "meta_info", "question")
    message = {"id": "a1", "role": "assistant", "content": content, "source": "generate", "model": "m"}
    choice = {"message": message, "stop_reason": "stop", "logprobs": None}
    user = {
        "role": "user",
        "content": [{"type": "audio", "audio": "UklGRg==", "format": "wav"}, {"type": "text", "text": sent}],
    }
    return {
        "index": index,
        "model": "qwen2-audio",
        "model_output": {
            "model": "Qwen2-Audio-7B",
            "choices": [choice],
            "usage": {"input_tokens": 99, "output_tokens": 7, "total_tokens": 106},
            "time": 1.5,
            "error": None,
            **output,
        },
        "messages": [*([{"role": "system", "content": system}] if system else []), user, message],
        "metadata": {} if record is None else {"category": "speech", **{n: record[n] for n in kept}},
    }


def lmms_eval(record: Mapping[str, Any], response: str, *, after: str = "", **more: Any) -> dict[str, Any]:
    """Return a line of lmms-eval's samples, from which it has taken the record out."""
    return {
        "doc_id": record["uniq_id"],
        "target": record["answer_gt"],
        "filtered_resps": [response],
        "doc_hash": "0",
        "gpt_eval": {"eval_answer": ["8 7", "7 8"], "model_name": "gpt-4o"},
        "input": f"{record['question']}{after}",
        **more,
    }


def write_lines(path: Path, rows: Iterable[Any]) -> Path:
    """Write JSON Lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_json(path: Path, value: Any) -> Path:
    """Write one JSON value."""
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


def official_scores(path: Path, *, cir: bool) -> dict[str, tuple[int, float, float, float]]:
    """Return n, win rate, mean of Assistant 1 and of Assistant 2 by category, as the official scorer does.

    Written anew from its rules, over the very file that it would read.
    """
    found: dict[str, list[tuple[int, int]]] = {}
    for entry in json.loads(path.read_text(encoding="utf-8")):
        category = next(name for name, tasks in TASK_GROUPS.items() if entry["task_name"] in tasks)
        words = entry["gpt-score"].strip().replace("\n", "").split(" ")
        try:
            first, second = (int(word) for word in words)
        except ValueError:
            continue
        if first <= 10 and second <= 10:
            found.setdefault(category, []).append((first, second))
    return {name: _means(pairs, cir=cir) for name, pairs in found.items()}


def _means(pairs: Sequence[tuple[int, int]], *, cir: bool) -> tuple[int, float, float, float]:
    n = len(pairs)
    wins = sum((first > second) if cir else (second > first) for first, second in pairs)
    return n, wins / n, sum(first for first, _ in pairs) / n, sum(second for _, second in pairs) / n
