"""Outcomes -> what the page knows of each sample: everything, compressed."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from otoscope.benchmark import TASKS, VIEWS
from otoscope.records import Answer, Failure, Json, Order, Outcome, Reply, Sample, Verdict, json_bytes
from otoscope.reports.html.clips import Clips
from otoscope.reports.reported import Reported
from otoscope.scoring.rules import Ruled, Scores
from otoscope.scoring.samples import result_of
from otoscope.scoring.sent import NO_AUDIO, SHUFFLED, SILENCE, seconds_cut
from otoscope.scoring.wording import in_another_language, says_it_cannot_hear


def book_of(runs: Sequence[Reported], clips: Sequence[Clips]) -> Json:
    """Return every sample of one run or several. Descriptions, which samples share, stand there once."""
    book = _Book()
    for index, run in enumerate(runs):
        usual = _usual(run)
        for outcome in _shown(run):
            book.add(index, run, outcome, clips[index], usual)
    return {
        "descriptions": list(book.descriptions),
        "samples": list(book.samples.values()),
    }


def packed(value: Any) -> str:
    """Return JSON, compressed (zlib), in base64."""
    return base64.b64encode(zlib.compress(json_bytes(value), 9)).decode("ascii")


def embedded(runs: Sequence[Reported], clips: Sequence[Clips], keys: Collection[str]) -> dict[str, str]:
    """Return these samples' clips as ``data:`` URLs, by key; what cannot be read is left out."""
    found: dict[str, str] = {}
    for run, known in zip(runs, clips, strict=True):
        for outcome in _shown(run) if keys else ():
            key = outcome.sample.key
            if key in keys and key not in found and (url := known.embedded(outcome.sample)) is not None:
                found[key] = url
    return found


def _shown(run: Reported) -> Iterator[Outcome]:
    tasks = VIEWS[run.summary.view]
    return (outcome for outcome in run.outcomes() if outcome.sample.task in tasks)


class _Book:
    """The samples, each with a part for every run, and the descriptions that they share."""

    def __init__(self) -> None:
        self.samples: dict[str, Json] = {}
        self.descriptions: dict[str, int] = {}

    def add(
        self, index: int, run: Reported, outcome: Outcome, clips: Clips, usual: Mapping[str, Json]
    ) -> None:
        sample = outcome.sample
        row = self.samples.get(sample.key)
        if row is None:
            row = self.samples[sample.key] = self._sample(sample, clips)
        if (clip := _clip(outcome, run.summary.control)) is not None:
            row.setdefault("clip", clip)
        row["runs"].extend([None] * (index - len(row["runs"])))
        row["runs"].append(_result(run, outcome, usual))

    def _sample(self, sample: Sample, clips: Clips) -> Json:
        return _without_nothing(
            {
                "key": sample.key,
                "task": sample.task,
                "category": TASKS[sample.task].category,
                "source": sample.dataset,
                "path": sample.path,
                "question": sample.question,
                "reference": sample.reference,
                "description": self.descriptions.setdefault(sample.description, len(self.descriptions)),
                "audio": clips.link(sample),
                "runs": [],
            }
        )


def _result(run: Reported, outcome: Outcome, usual: Mapping[str, Json]) -> Json:
    ruled = run.rule(outcome)
    result = ruled.result
    answer = outcome.answer
    return _without_nothing(
        {
            "status": result.status,
            **_scores(ruled),
            **_orders(ruled),
            "flags": list(_flags(outcome)) or None,
            "stage": result.stage,
            "failure": _failure(result.failure),
            "answer": _answer(answer) if isinstance(answer, Answer) else None,
            "sent": _sent(outcome, run.summary.control) if isinstance(answer, Answer) else None,
            "replies": _replies(answer.replies, usual["model"]) if answer is not None else None,
            "superseded": _replies(outcome.superseded, usual["model"]) or None,
            "verdicts": {
                order.value: _verdict(verdict, run.rule.read(order, verdict), usual["judge"])
                for order, verdict in outcome.verdicts.items()
            }
            or None,
        }
    )


def _answer(answer: Answer) -> Json:
    return _without_nothing(
        {
            "text": answer.text,
            "raw": answer.raw_text if answer.filtered else None,
            "filter": answer.filter if answer.filtered else None,
            "reasoning": answer.reasoning,
        }
    )


def _verdict(verdict: Verdict | Failure, scores: Scores | None, usual: Json) -> Json:
    stored: Json = {"replies": _replies(verdict.replies, usual)}
    if isinstance(verdict, Failure):
        stored["failure"] = _failure(verdict)
    elif verdict.score_kind != "integer":
        stored["kind"] = verdict.score_kind
    if scores is not None:
        stored["answer"], stored["reference"] = scores
    return stored


def _failure(failure: Failure | None) -> Json | None:
    if failure is None:
        return None
    return {"kind": failure.kind.value, "message": failure.message, "attempts": failure.attempts}


def _replies(replies: Sequence[Reply], usual: Json) -> list[Json]:
    return [_reply(reply, usual) for reply in replies]


def _reply(reply: Reply, usual: Json) -> Json:
    usage = reply.usage or {}
    sent = dict(reply.parameters)
    return _without_nothing(
        {
            "text": reply.text,
            "reasoning": reply.reasoning,
            "finish": reply.finish_reason,
            "model": reply.model,
            "in": usage.get("prompt_tokens"),
            "out": usage.get("completion_tokens"),
            "latency": round(reply.latency, 2),
            "attempts": reply.attempts if reply.attempts > 1 else None,
            "sent": json_bytes(sent).decode() if sent != usual else None,
        }
    )


def _usual(run: Reported) -> dict[str, Json]:
    """Return the parameters that were sent most often to model and judge: the page says them once."""
    sent = {}
    for role in ("model", "judge"):
        variants = (run.summary.observed.get(role) or {}).get("parameters") or [{"sent": {}}]
        sent[role] = dict(variants[0]["sent"])
    return sent


def _scores(ruled: Ruled) -> Json:
    """Return the sample's means over its orders, of those that the scoring reads."""
    result = ruled.result
    return _without_nothing(
        {"score": result.gpt_score, "reference": result.reference_score, "result": result.result}
    )


def _orders(ruled: Ruled) -> Json:
    """Return whether the two orders name another winner, and by how much their leads differ."""
    if len(ruled.by_order) < len(Order):
        return {}
    answer_first, reference_first = ruled.by_order[Order.ANSWER_FIRST], ruled.by_order[Order.REFERENCE_FIRST]
    leads = [answer - reference for answer, reference in (answer_first, reference_first)]
    return {
        "disagree": (result_of(*answer_first) != result_of(*reference_first)) or None,
        "apart": round(abs(leads[0] - leads[1]), 4),
    }


def _flags(outcome: Outcome) -> Iterator[str]:
    """Yield what a report warns of and holds for this sample's answer."""
    answer = outcome.answer
    if not isinstance(answer, Answer):
        return
    if answer.blank:
        yield "blank"
    if answer.replies and answer.replies[-1].finish_reason == "length":
        yield "cut"
    if says_it_cannot_hear(answer.text):
        yield "cannot_hear"
    if in_another_language(outcome.sample.question, answer.text):
        yield "other_language"


_OF_CLIP = ("seconds", "rate", "channels", "format", "bytes")


def _clip(outcome: Outcome, control: str | None) -> Json | None:
    """Return the facts of the sample's own clip, as it lies in the data set."""
    facts = outcome.clip
    if not facts or control == SHUFFLED:
        return None
    known = {name: facts.get(name) for name in _OF_CLIP}
    if facts.get("changed") and not facts.get("sent"):
        del known["format"]  # of what was sent, in lines that say no more of it
    return _without_nothing(known)


def _sent(outcome: Outcome, control: str | None) -> Json | None:
    """Return what the model was sent, where that is not the sample's clip as it lies."""
    facts: Mapping[str, Any] = outcome.clip or {}
    sent = facts.get("sent") or {}
    if control is None and not sent and not facts.get("changed"):
        return None
    told: Json = {"control": control, "from": facts.get("from")}
    if control != NO_AUDIO:
        told |= {name: sent.get(name) for name in _OF_CLIP} if sent else {"format": facts.get("format")}
        if control == SHUFFLED and not sent:
            told |= {name: facts.get(name) for name in _OF_CLIP}
        if cut := seconds_cut(outcome):
            told |= {"cut": round(cut, 3), "whole": facts.get("seconds")}
        if control != SILENCE:
            told["changed"] = list(facts.get("changed") or ()) or None
    return _without_nothing(told)


def _without_nothing(stored: Json) -> Json:
    return {name: value for name, value in stored.items() if value is not None}
