"""Lines of the run's files: what one says, whether it is sound, and what is kept of it in memory."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from otoscope.benchmark import SCORE_MAX, SCORE_MIN, TASKS
from otoscope.nesting import STORED_DEPTH, decoded
from otoscope.records import (
    Failure,
    FailureKind,
    Json,
    Order,
    Reply,
    Sample,
    json_bytes,
)
from otoscope.store import shapes

Place = tuple[int, int]
"""Offset and length of a line."""


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """What is kept in memory of an answer line; its texts stay on disk."""

    place: Place
    sample_digest: str
    answer_sha256: str
    clip_sha256: str
    clip_bytes: int
    clip_mtime_ns: int
    blank: bool
    characters: int
    """Of the text that is judged."""
    clip_from: str | None = None
    """Where a control took another sample's clip: ``task/dataset/path``, which the other facts are about."""


@dataclass(frozen=True, slots=True)
class StoredFailure:
    """What is kept in memory of a failure line, of an answer or a verdict."""

    place: Place
    sample_digest: str
    kind: FailureKind
    file: Mapping[str, Any] | None = None
    clip: Mapping[str, Any] | None = None
    """Facts of the clip that was sent, where one was."""


# Tuples, because almost every sample has one answer and no failure: a list for each would double the index.
@dataclass(slots=True)
class VerdictLines:
    """The lines of one verdict's identity."""

    order: Order
    judge_id: str
    answer_sha256: str
    sample_digest: str
    success: Place | None = None
    failures: tuple[StoredFailure, ...] = ()
    surplus: tuple[Place, ...] = ()
    """Further successes: paid for, and of no account."""
    unanswered: int = 0
    """Requests that ended an asking without a reply."""

    @property
    def places(self) -> list[Place]:
        """Where all of them lie."""
        success = () if self.success is None else (self.success,)
        return [*success, *(failure.place for failure in self.failures), *self.surplus]


@dataclass(slots=True)
class SampleLines:
    """The lines of one sample's key, in the order in which they were written."""

    answers: tuple[StoredAnswer, ...] = ()
    failures: tuple[StoredFailure, ...] = ()
    verdicts: tuple[VerdictLines, ...] = ()


def sample_to_line(sample: Sample) -> Json:
    """Return the part of a ``samples.jsonl`` line that says what the sample is."""
    return {
        "key": sample.key,
        "task_name": sample.task,
        "dataset_name": sample.dataset,
        "path": sample.path,
        "uniq_id": sample.uniq_id,
        "question": sample.question,
        "answer_gt": sample.reference,
        "meta_info": sample.description,
        "sample_digest": sample.digest,
    }


def sample_from_line(line: Json) -> Sample:
    """Read what :func:`sample_to_line` wrote; the clip's place is relative to the data root.

    Raises ``KeyError`` for a field that is missing and for a task that there is not, ``TypeError`` for one of
    another type.
    """
    for name in ("task_name", "dataset_name", "path", "question", "answer_gt", "meta_info", "sample_digest"):
        text_of(line, name)
    if isinstance(line["uniq_id"], bool) or not isinstance(line["uniq_id"], (int, str)):
        raise TypeError("uniq_id must be a whole number or text")
    if line["task_name"] not in TASKS:
        raise KeyError(line["task_name"])
    return Sample(
        task=line["task_name"],
        dataset=line["dataset_name"],
        path=line["path"],
        uniq_id=line["uniq_id"],
        question=line["question"],
        reference=line["answer_gt"],
        description=line["meta_info"],
        audio_path=f"Chat/{line['task_name']}_{line['dataset_name']}/{line['path']}",
        digest=line["sample_digest"],
    )


def same_verdict(lines: SampleLines, sought: VerdictLines) -> VerdictLines | None:
    """Return the lines of the same identity that are known already."""
    for verdict in lines.verdicts:
        if (
            verdict.order is sought.order
            and verdict.judge_id == sought.judge_id
            and verdict.answer_sha256 == sought.answer_sha256
            and verdict.sample_digest == sought.sample_digest
        ):
            return verdict
    return None


def shared(text: str, known: Iterable[str]) -> str:
    """Return the equal text that is held already: each digest is kept once."""
    return next((other for other in known if other == text), text)


def stored_failure(place: Place, digest: str, failure: Json, clip: Json | None = None) -> StoredFailure:
    """Return what is kept in memory of a failure line. Raises ``ValueError`` for a kind that there is not."""
    return StoredFailure(place, digest, FailureKind(failure["kind"]), failure.get("file"), clip or None)


def failure_of(told: Sequence[Json]) -> Failure:
    """Return the Failure that the last of these lines tells, with the replies of all of them."""
    stored = told[-1]["failure"]
    return Failure(
        FailureKind(stored["kind"]),
        stored.get("message", ""),
        stored.get("attempts", 0),
        replies_of(told),
        stored.get("file"),
        stored.get("traceback"),
    )


_ENDED_BY_REPLIES = frozenset(
    {
        FailureKind.UNPARSEABLE,
        FailureKind.CUT_OFF,
        FailureKind.CONTENT_FILTER,
        FailureKind.NO_ANSWER,
        FailureKind.BLANK_AFTER_FILTER,
        FailureKind.CUT_WHILE_THINKING,
    }
)


def open_end(kind: FailureKind) -> bool:
    """Whether an asking that failed like this can be gone on with: it was no reply that ended it.

    Its replies are paid for; the next try would only pay for the same ones again.
    """
    return kind not in _ENDED_BY_REPLIES


def replies_of(told: Iterable[Json]) -> tuple[Reply, ...]:
    """Return every reply that these lines of one identity hold, in their order."""
    found: list[Json] = []
    before: Json | None = None
    for line in told:
        found += new_replies(before, line)
        before = line
    return tuple(Reply.from_json(reply) for reply in found)


def new_replies(before: Json | None, line: Json) -> list[Json]:
    """Return the replies of a line but for those that it repeats of the one before it, of the same identity.

    A line that goes on after one with :func:`open_end` repeats its replies: those count once.
    """
    replies: list[Json] = line.get("replies", [])
    failure = (before or {}).get("failure")
    if before is None or failure is None or not open_end(FailureKind(failure["kind"])):
        return replies
    asked: list[Json] = before.get("replies", [])
    return replies[len(asked) :] if replies[: len(asked)] == asked else replies


def unanswered(line: Json) -> int:
    """Return how many requests ended an asking without a reply, by a line that says how it ended."""
    failure = line.get("failure")
    if failure is None:
        return 0
    kind, replies = FailureKind(failure["kind"]), line.get("replies", [])
    refused = kind is FailureKind.CONTENT_FILTER and not (
        replies and str(replies[-1].get("finish_reason") or "").lower() == "content_filter"
    )
    ended = refused or (open_end(kind) and kind is not FailureKind.ASKED_AGAIN)
    return int(failure.get("attempts") or 0) if ended else 0


def check_line(line: Json) -> None:
    """Check the form of all that is read of a line later, whatever it tells.

    Raises ``KeyError``, ``TypeError`` or ``ValueError``.
    """
    shapes.check(line, shapes.LINE)
    for reply in line.get("replies", ()):
        shapes.check(reply, shapes.REPLY)
    replies_of([line])


def check_scores(*scores: Any) -> None:
    """Raise ``ValueError`` unless all are numbers from 0 to 10."""
    for score in scores:
        number = isinstance(score, (int, float)) and not isinstance(score, bool)
        if not (number and SCORE_MIN <= score <= SCORE_MAX):
            raise ValueError(f"not a score: {score!r}")


def text_of(line: Json, name: str) -> str:
    """Return a text field. Raises ``KeyError`` or ``TypeError``."""
    value = line[name]
    if not isinstance(value, str):
        raise TypeError(f"{name} must be text")
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def parse_line(data: bytes) -> Json:
    """Read a JSON object. Raises ``ValueError`` or ``TypeError`` when it is none."""
    value = decoded(data.decode("utf-8"), _DECODER, STORED_DEPTH)
    if not isinstance(value, dict):
        raise TypeError("not a JSON object")
    return value


def line_bytes(line: Json) -> bytes:
    """Return a line as it is written, newline included."""
    try:
        return json_bytes(line) + b"\n"
    except ValueError:
        # A server's usage may hold NaN, which is not JSON; its reply is paid for all the same.
        return json_bytes({**line, "replies": _finite(line["replies"])}) + b"\n"


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
