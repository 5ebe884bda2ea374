"""What a row of a foreign file says, before it is known which sample it is about."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from otoscope.benchmark import TASKS
from otoscope.records import Failure, FailureKind, Json, Order, Reply

NULL_ANSWER = Failure(FailureKind.NO_ANSWER, "null in the file")

_NAMED = 5
"""How many of the places where something was found are named."""


class Findings(dict[str, list[str]]):
    """What is to be told of rows: what it is -> the places where it is so, each ``FILE:NUMBER``.

    What it is reads well before any number: "rows that are about no sample".
    """

    def __init__(self) -> None:
        super().__init__()
        self.lost: set[str] = set()
        """What is so at places of which nothing enters any number."""

    def add(self, what: str, *places: str) -> None:
        """Note that ``what`` is so at these places."""
        self.setdefault(what, []).extend(places)

    def leave_out(self, what: str, *places: str) -> None:
        """Note that ``what`` is so at these places, and that what stands there enters no number."""
        self.add(what, *places)
        self.lost.add(what)

    def include(self, others: Iterable[Findings]) -> None:
        """Take over what others found."""
        for other in others:
            for what, places in other.items():
                self.add(what, *places)
            self.lost |= other.lost

    @property
    def left_out(self) -> int:
        """Number of places of which nothing enters any number."""
        return sum(len(self[what]) for what in self.lost)

    def told(self) -> Iterator[str]:
        """Yield each finding as people are told of it: what, how often, and where first."""
        for what, places in self.items():
            more = f" and {len(places) - _NAMED} more" if len(places) > _NAMED else ""
            yield f"{what}: {len(places)} ({', '.join(places[:_NAMED])}{more})"

    def to_json(self) -> Json:
        """Return how often each is so, and the first places."""
        return {what: {"count": len(places), "places": places[:_NAMED]} for what, places in self.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What a row says of its sample; ``None`` where it does not say."""

    file: str
    number: int
    """From 1: the line, or the place in the list."""
    key: str | None = None
    task: str | None = None
    dataset: str | None = None
    path: str | None = None
    uniq_id: int | str | None = None
    question: str | None = None
    reference: str | None = None
    description: Any = None
    """``meta_info`` as it stands there: usually text."""

    @property
    def place(self) -> str:
        """Where the row stands, for people."""
        return f"{self.file}:{self.number}"

    @property
    def told_key(self) -> str | None:
        """The sample's key, where the row tells all of it."""
        if self.key is not None:
            return self.key
        parts = (self.task, self.dataset, self.path, self.uniq_id)
        return None if None in parts else f"{self.task}/{self.dataset}/{self.path}#{self.uniq_id}"

    @property
    def by_question(self) -> tuple[str, str, str, str] | None:
        """Task, dataset, path and question, where the row tells all of them."""
        if self.task is None or self.dataset is None or self.path is None or self.question is None:
            return None
        return (self.task, self.dataset, self.path, self.question)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a tool sent to the model, where its file tells."""

    text: str
    system: str | None = None
    part_order: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRow(Row):
    """A model's answer; ``text`` is ``None`` where there is none, and ``failure`` says why."""

    text: str | None
    raw_text: str | None = None
    """Before the tool's own filter, where that changed it."""
    failure: Failure = NULL_ANSWER
    reply: Reply | None = None
    model: str | None = None
    asked: Asked | None = None
    category: str | None = None
    """``speech``, ``sound``, ``music`` or ``mixed_audio``, where that is all that is told of the task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictRow(Row):
    """A judge's reply on one answer in one order; ``order`` is ``None`` where it cannot be known."""

    order: Order | None
    answer: str | None
    """The text that was judged, where the row tells it."""
    reply: Reply
    prompt: str | None = None
    """The judge's whole prompt, where it was one user message."""
    judge: str | None = None


@dataclass(frozen=True, slots=True)
class ForeignFile:
    """One file, read."""

    name: str
    format: str
    sha256: str
    rows: tuple[AnswerRow | VerdictRow, ...]
    findings: Findings = field(default_factory=Findings)


def told(record: Mapping[str, Any]) -> Json:
    """Return what a record says of its sample under the data set's own names, as fields of a :class:`Row`.

    A value of another type than it must have says nothing.
    """
    uniq_id = record.get("uniq_id")
    if isinstance(uniq_id, float) and uniq_id.is_integer():
        uniq_id = int(uniq_id)  # a table's column of numbers with gaps
    if isinstance(uniq_id, bool) or not isinstance(uniq_id, (int, str)):
        uniq_id = None
    key, task = text_or_none(record.get("key")), text_or_none(record.get("task_name"))
    if key is not None and task is None and key.partition("/")[0] in TASKS:
        task = key.partition("/")[0]
    return {
        "key": key,
        "task": task,
        "dataset": text_or_none(record.get("dataset_name")),
        "path": text_or_none(record.get("path")),
        "uniq_id": uniq_id,
        "question": text_or_none(record.get("question")),
        "reference": text_or_none(record.get("answer_gt")),
        "description": record.get("meta_info"),
    }


def text_or_none(value: Any) -> str | None:
    """Return a text, and ``None`` for anything else."""
    return value if isinstance(value, str) else None


def token_counts(prompt: Any, completion: Any) -> Json | None:
    """Return token counts as servers name them; ``None`` where there are none."""
    counts = {"prompt_tokens": prompt, "completion_tokens": completion}
    whole = {name: n for name, n in counts.items() if isinstance(n, int) and not isinstance(n, bool)}
    return whole or None
