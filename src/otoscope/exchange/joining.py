"""Which sample each row is about: told by its key, or by what it says where that is unique.

A row's place in its file says nothing. A verdict whose sample is not certain stays *unjoined*: only official
scoring, which looks at one order at a time and never at a sample, can use it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from otoscope.benchmark import TASK_GROUPS, TASKS
from otoscope.errors import did_you_mean
from otoscope.exchange.rows import AnswerRow, Findings, Row, VerdictRow
from otoscope.records import Json, Order, Sample, canonical_digest

UNJOINED = "unjoined"
"""The ``dataset_name`` of the samples that stand for rows which could not be joined."""

_AMBIGUOUS = "rows that fit several samples"
_FOREIGN = "rows that are about no sample"
_DIFFERENT = "rows that contradict the sample's question or reference answer"


@dataclass(slots=True)
class Joined:
    """Rows by the sample that they are about."""

    samples: list[Sample]
    """In the data set's order, or else in that of the rows.

    With the data set also those that no row is about, of the tasks that any row is about.
    """
    answers: dict[str, list[AnswerRow]] = field(default_factory=dict)
    """By the sample's key."""
    verdicts: dict[tuple[str, Order], list[VerdictRow]] = field(default_factory=dict)
    unjoined: list[VerdictRow] = field(default_factory=list)
    """Verdicts of which the order is known, and the sample is not."""
    incomplete: set[str] = field(default_factory=set)
    """Keys of samples whose question, reference answer or description nothing tells: blank in the sample."""
    findings: Findings = field(default_factory=Findings)


def join(rows: Sequence[AnswerRow | VerdictRow], samples: Sequence[Sample] | None) -> Joined:
    """Join rows to samples: those of the data set, or else those that the rows themselves tell."""
    findings = Findings()
    known: list[AnswerRow | VerdictRow] = []
    for row in rows:
        if row.task is not None and row.task not in TASKS:
            hint = did_you_mean(row.task, TASKS)
            findings.leave_out(f"rows of a task that there is not ({row.task!r:.60}{hint})", row.place)
        elif isinstance(row, VerdictRow) and row.order is None:
            findings.leave_out(
                "verdicts whose order is not known without --reference-first or --answer-first", row.place
            )
        else:
            known.append(row)
    joined = _samples_told(known) if samples is None else Joined(list(samples))
    joined.findings = findings
    catalogue = _Catalogue(joined.samples)
    for row in known:
        found = catalogue.find(row)
        if isinstance(row, AnswerRow):
            if isinstance(found, Sample):
                joined.answers.setdefault(found.key, []).append(row)
            else:
                findings.leave_out(_lacking(row) if samples is None else found, row.place)
        elif isinstance(found, Sample) and row.order is not None:
            joined.verdicts.setdefault((found.key, row.order), []).append(row)
        else:
            joined.unjoined.append(row)
    used = {*joined.answers, *(key for key, _ in joined.verdicts)}
    if samples is None:
        joined.samples = [sample for sample in joined.samples if sample.key in used]
        joined.incomplete &= used
    else:
        tasks = {sample.task for sample in samples if sample.key in used}.union(*map(_tasks_named, known))
        joined.samples = [sample for sample in samples if sample.task in tasks]
    return joined


def _tasks_named(row: Row) -> Iterable[str]:
    """Return the tasks that a row names; a row that does not say its task may be about no sample at all."""
    if row.task is not None:
        return (row.task,)
    category = row.category if isinstance(row, AnswerRow) else None
    return () if category is None else TASK_GROUPS[category]


def _lacking(row: Row) -> str:
    """Return what a row lacks to tell a sample by itself; what cannot be told apart lacks its ``uniq_id``."""
    fields = {"task_name": row.task, "dataset_name": row.dataset, "path": row.path, "question": row.question}
    lacking = [name for name, value in fields.items() if value is None] or ["uniq_id"]
    return f"rows without {', '.join(lacking)}, which need --data ROOT"


class _Catalogue:
    """Samples by what rows can say of them."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        self._by_key: dict[str, Sample] = {}
        self._by_question: dict[tuple[str, str, str, str], list[Sample]] = {}
        self._by_text: dict[str, list[Sample]] = {}
        """By question alone."""
        self._by_reference: dict[str, list[Sample]] = {}
        for sample in samples:
            self._by_key[sample.key] = sample
            about = (sample.task, sample.dataset, sample.path, sample.question)
            self._by_question.setdefault(about, []).append(sample)
            self._by_text.setdefault(sample.question, []).append(sample)
            self._by_reference.setdefault(sample.reference, []).append(sample)

    def find(self, row: AnswerRow | VerdictRow) -> Sample | str:
        """Return the row's sample, or why there is none."""
        sample = self._by_key.get(row.told_key or "")
        if sample is None and row.by_question is not None:
            return _only(self._by_question.get(row.by_question, []), row)
        if sample is None and isinstance(row, AnswerRow) and row.path is None and row.key is None:
            return _only(self._fitting(row), row)
        return _only([sample] if sample is not None else [], row)

    def _fitting(self, row: AnswerRow) -> list[Sample]:
        """Return the samples that fit all that a row says which has no path: tools leave that out."""
        sent = row.asked.text if row.asked is not None else None
        if row.question is not None:
            fitting = self._by_text.get(row.question, [])
        elif sent is None:
            return []
        elif row.reference is not None:
            same = self._by_reference.get(row.reference, [])
            fitting = [sample for sample in same if sample.question == sent] or [
                sample for sample in same if sample.question in sent
            ]
        else:
            fitting = self._by_text.get(sent, [])
        return [sample for sample in fitting if _fits(sample, row)]


def _fits(sample: Sample, row: AnswerRow) -> bool:
    return (
        row.task in (None, sample.task)
        and row.dataset in (None, sample.dataset)
        and (row.uniq_id is None or str(row.uniq_id) == str(sample.uniq_id))
        and row.reference in (None, sample.reference)
        and (row.category is None or sample.task in TASK_GROUPS[row.category])
    )


def _only(candidates: Sequence[Sample], row: Row) -> Sample | str:
    if len(candidates) != 1:
        return _AMBIGUOUS if candidates else _FOREIGN
    (sample,) = candidates
    same = row.question in (None, sample.question) and row.reference in (None, sample.reference)
    return sample if same else _DIFFERENT


# --- samples that rows tell -------------------------------------------------------------------------------


def _samples_told(rows: Iterable[Row]) -> Joined:
    """Return the samples that rows tell: by key, or where they have no ``uniq_id``, by question.

    Rows about the same clip and question that differ in reference answer or description are about different
    samples; which of them a row without these is about is then not certain.
    """
    by_key: dict[str, Json] = {}
    without_id: dict[tuple[str, str, str, str], list[Row]] = {}
    for row in rows:
        if row.uniq_id is not None and None not in (row.task, row.dataset, row.path):
            key = f"{row.task}/{row.dataset}/{row.path}#{row.uniq_id}"
            record = by_key.setdefault(key, _record(row, row.uniq_id))
            _tell(record, row.question, row.reference, row.description)
        elif row.by_question is not None:
            without_id.setdefault(row.by_question, []).append(row)
    questions = {_about(record) for record in by_key.values()}
    for about, told in without_id.items():
        if about in questions:
            continue
        for reference, text in _variants(told):
            uniq_id = "q" + canonical_digest([about[3], reference, text])[:12]
            record = _record(told[0], uniq_id)
            _tell(record, about[3], reference, None if text is None else json.loads(text))
            by_key[f"{about[0]}/{about[1]}/{about[2]}#{uniq_id}"] = record
    joined = Joined([])
    for record in by_key.values():
        sample = _sample(record)
        joined.samples.append(sample)
        if None in record.values():
            joined.incomplete.add(sample.key)
    return joined


def _variants(rows: Iterable[Row]) -> list[tuple[str | None, str | None]]:
    """Return the different (reference, description as JSON) that rows tell.

    What a row leaves open fits any.
    """
    told = {(row.reference, _as_json(row.description)) for row in rows}
    whole = [pair for pair in told if None not in pair]
    if len({reference for reference, _ in told if reference is not None}) <= 1 and (
        len({text for _, text in told if text is not None}) <= 1
    ):
        return [
            (
                next((reference for reference, _ in told if reference is not None), None),
                next((text for _, text in told if text is not None), None),
            )
        ]
    return sorted(whole or told, key=str)


def _as_json(value: Any) -> str | None:
    return None if value is None else json.dumps(value, sort_keys=True)


def _record(row: Row, uniq_id: int | str) -> Json:
    return {
        "path": row.path,
        "question": None,
        "answer_gt": None,
        "task_name": row.task,
        "dataset_name": row.dataset,
        "uniq_id": uniq_id,
        "meta_info": None,
    }


def _tell(record: Json, question: str | None, reference: str | None, description: Any) -> None:
    """Fill in what the record lacks; what it has stays, and a row that says otherwise will not fit it."""
    for name, value in (("question", question), ("answer_gt", reference), ("meta_info", description)):
        if record[name] is None:
            record[name] = value


def _about(record: Mapping[str, Any]) -> tuple[str, str, str, str]:
    return (record["task_name"], record["dataset_name"], record["path"], record["question"])


def _sample(record: Json) -> Sample:
    description = record["meta_info"]
    return Sample(
        task=record["task_name"],
        dataset=record["dataset_name"],
        path=record["path"],
        uniq_id=record["uniq_id"],
        question=record["question"] or "",
        reference=record["answer_gt"] or "",
        description=description if isinstance(description, str) else str(description or ""),
        audio_path=f"Chat/{record['task_name']}_{record['dataset_name']}/{record['path']}",
        digest=canonical_digest(record),
    )
