"""Outcomes -> what the page knows of each sample: everything, compressed."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from otoscope.benchmark import TASKS, VIEWS
from otoscope.records import (
    Answer,
    Failure,
    Json,
    Order,
    Outcome,
    Reply,
    Sample,
    Verdict,
    json_bytes,
    token_count,
)
from otoscope.reports.html.clips import Clips
from otoscope.reports.reported import Reported
from otoscope.scoring.addressing import addresses_judge
from otoscope.scoring.rules import Rule, Ruled, Scores
from otoscope.scoring.samples import result_of
from otoscope.scoring.sent import NO_AUDIO, SHUFFLED, SILENCE, seconds_cut
from otoscope.scoring.wording import in_another_language, says_it_cannot_hear


def book_of(runs: Sequence[Reported], clips: Sequence[Clips]) -> Book:
    """Read every sample of one run or several."""
    book = Book()
    for run, known in zip(runs, clips, strict=True):
        part = book.part(run.rule, run.summary.control, known)
        for outcome in _shown(run):
            part.add(outcome)
    return book


def packed(value: Any) -> str:
    """Return JSON, compressed (zlib), in base64."""
    # The highest level takes half as long again, for 2 % fewer bytes.
    return base64.b64encode(zlib.compress(json_bytes(value), 6)).decode("ascii")


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


class Book:
    """Every sample of one run or several. Descriptions, which samples share, stand there once."""

    def __init__(self) -> None:
        self._samples: dict[str, Json] = {}
        self._descriptions: dict[str, int] = {}
        self._parts: list[Part] = []

    def part(self, rule: Rule, control: str | None, clips: Clips) -> Part:
        """Return the part of one more run, to which its samples are to be added before the next one's."""
        part = Part(rule, control, clips, len(self._parts), self._samples, self._descriptions)
        self._parts.append(part)
        return part

    def content(self, runs: Sequence[Reported]) -> Json:
        """Return what the page knows of the samples; ``runs`` are those of the parts, in their order."""
        for part, run in zip(self._parts, runs, strict=True):
            part.say_unusual(run)
        return {"descriptions": list(self._descriptions), "samples": list(self._samples.values())}

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._samples)


class Part:
    """What a book has of one run."""

    def __init__(
        self,
        rule: Rule,
        control: str | None,
        clips: Clips,
        index: int,
        samples: dict[str, Json],
        descriptions: dict[str, int],
    ) -> None:
        self._rule = rule
        self._control = control
        self._clips = clips
        self._index = index
        self._samples = samples
        self._descriptions = descriptions
        self._sent = {"model": _Sent(), "judge": _Sent()}

    def add(self, outcome: Outcome) -> None:
        """Add one sample."""
        sample = outcome.sample
        row = self._samples.get(sample.key)
        if row is None:
            row = self._samples[sample.key] = self._sample(sample)
        if (clip := _clip(outcome, self._control)) is not None:
            row.setdefault("clip", clip)
        row["runs"].extend([None] * (self._index - len(row["runs"])))
        row["runs"].append(self._result(outcome))

    def say_unusual(self, run: Reported) -> None:
        """Note with each reply what was sent for it, but where that is what was sent most often.

        The page says that once, from the run's summary.
        """
        for role, sent in self._sent.items():
            variants = (run.summary.observed.get(role) or {}).get("parameters") or [{"sent": {}}]
            sent.note(but=dict(variants[0]["sent"]))

    def _sample(self, sample: Sample) -> Json:
        descriptions = self._descriptions
        return _without_nothing(
            {
                "key": sample.key,
                "task": sample.task,
                "category": TASKS[sample.task].category,
                "source": sample.dataset,
                "path": sample.path,
                "question": sample.question,
                "reference": sample.reference,
                "description": descriptions.setdefault(sample.description, len(descriptions)),
                "audio": self._clips.link(sample),
                "runs": [],
            }
        )

    def _result(self, outcome: Outcome) -> Json:
        ruled = self._rule(outcome)
        result = ruled.result
        answer = outcome.answer
        model, judge = self._sent["model"], self._sent["judge"]
        return _without_nothing(
            {
                "status": result.status,
                **_scores(ruled),
                **_orders(ruled),
                "flags": list(_flags(outcome)) or None,
                "stage": result.stage,
                "failure": _failure(result.failure),
                "answer": _answer(answer) if isinstance(answer, Answer) else None,
                "sent": _sent(outcome, self._control) if isinstance(answer, Answer) else None,
                "replies": _replies(answer.replies, model) if answer is not None else None,
                "superseded": _replies(outcome.superseded, model) or None,
                "verdicts": {
                    order.value: _verdict(verdict, self._rule.read(order, verdict), judge)
                    for order, verdict in outcome.verdicts.items()
                }
                or None,
            }
        )


class _Sent:
    """What was sent for the replies of one endpoint, and for which of them: mostly the same for all."""

    def __init__(self) -> None:
        self._replies: dict[str, list[Json]] = {}
        self._parameters: dict[str, Json] = {}
        self._last = ""

    def add(self, parameters: Mapping[str, Any], reply: Json) -> None:
        if self._parameters.get(self._last) != parameters:
            sent = dict(parameters)
            self._last = json_bytes(sent).decode()
            self._parameters.setdefault(self._last, sent)
        self._replies.setdefault(self._last, []).append(reply)

    def note(self, *, but: Json) -> None:
        for text, replies in self._replies.items():
            if self._parameters[text] != but:
                for reply in replies:
                    reply["sent"] = text


def _answer(answer: Answer) -> Json:
    return _without_nothing(
        {
            "text": answer.text,
            "raw": answer.raw_text if answer.filtered else None,
            "filter": answer.filter if answer.filtered else None,
            "reasoning": answer.reasoning,
        }
    )


def _verdict(verdict: Verdict | Failure, scores: Scores | None, sent: _Sent) -> Json:
    stored: Json = {"replies": _replies(verdict.replies, sent)}
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


def _replies(replies: Sequence[Reply], sent: _Sent) -> list[Json]:
    return [_reply(reply, sent) for reply in replies]


def _reply(reply: Reply, sent: _Sent) -> Json:
    stored = _without_nothing(
        {
            "text": reply.text,
            "reasoning": reply.reasoning,
            "finish": reply.finish_reason,
            "model": reply.model,
            "in": token_count(reply, "prompt_tokens"),
            "out": token_count(reply, "completion_tokens"),
            "latency": round(reply.latency, 2),
            "attempts": reply.attempts if reply.attempts > 1 else None,
        }
    )
    sent.add(reply.parameters, stored)
    return stored


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
    if addresses_judge(answer.text):
        yield "addresses_judge"


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
