"""One sample's numbers as a flat line."""

from __future__ import annotations

from otoscope.benchmark import TASKS
from otoscope.records import Answer, Json, Order, Outcome
from otoscope.scoring.rules import Rule
from otoscope.scoring.sent import seconds_cut, seconds_sent


def result_line(outcome: Outcome, rule: Rule, *, control: str | None = None) -> Json:
    """Return how a sample ended by a rule, as a line of ``samples.jsonl`` says it: flat, for pandas.

    ``control`` is what the run sends in place of the clips, if it does.
    """
    result = rule(outcome).result
    clip = outcome.clip or {}
    answer = outcome.answer if isinstance(outcome.answer, Answer) else None
    line: Json = {
        "category": TASKS[outcome.sample.task].category,
        "status": result.status,
        "gpt_score": result.gpt_score,
        "reference_score": result.reference_score,
        "result": result.result,
        "failure": result.failure.kind.value if result.failure else None,
        "failure_message": result.failure.message if result.failure else None,
        "failure_stage": result.stage,
        "answer": answer.text if answer else None,
        "raw_answer": answer.raw_text if answer and answer.filtered else None,
        "finish_reason": answer.replies[-1].finish_reason if answer and answer.replies else None,
        "seconds": clip.get("seconds"),
        "clip_sha256": clip.get("sha256"),
        "seconds_sent": seconds_sent(outcome),
        "seconds_cut": seconds_cut(outcome),
        "audio_changed": "; ".join(map(str, clip.get("changed") or ())) or None,
        "control": control,
        "clip_from": clip.get("from"),
    }
    for order in Order:
        verdict = outcome.verdicts.get(order)
        answer_score, reference_score = (verdict and rule.read(order, verdict)) or (None, None)
        line[f"answer_score_{order.value}"] = answer_score
        line[f"reference_score_{order.value}"] = reference_score
        line[f"judge_reply_{order.value}"] = verdict.replies[-1].text if verdict and verdict.replies else None
    return line
