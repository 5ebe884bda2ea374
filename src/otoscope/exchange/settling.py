"""What the rows of one sample say together: its answer, and each order's verdict; or that they disagree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from otoscope.exchange.joining import UNJOINED, Joined
from otoscope.exchange.rows import Row, VerdictRow
from otoscope.records import Answer, Failure, FailureKind, Order, Reply, Sample, canonical_digest

Answers = dict[str, Answer | Failure]
"""By the sample's key."""


@dataclass(frozen=True, slots=True)
class Settled:
    """What is known of each sample, once its rows are compared."""

    samples: list[Sample]
    """Those of the data set or of the rows; or one for each verdict, where none could be joined."""
    answers: Answers = field(default_factory=dict)
    verdicts: list[tuple[Sample, Order, VerdictRow]] = field(default_factory=list)
    failures: list[tuple[Sample, Order, Failure]] = field(default_factory=list)
    """Verdicts that contradict each other or are not there."""


def is_unknown(answer: Answer | Failure) -> bool:
    """Whether an answer stands for one that no file tells: it has no text and no reply."""
    return isinstance(answer, Answer) and not answer.replies


def settle(joined: Joined) -> Settled:
    """Compare the rows of each sample. What is found is added to the findings of ``joined``.

    Where rows contradict each other, none of them is chosen: the sample gets a Failure. Where no verdict at
    all could be joined, each becomes a sample of its own, and no other sample is left.
    """
    answers = {
        sample.key: answer for sample in joined.samples if (answer := _answer(sample, joined)) is not None
    }
    samples = list(joined.samples)
    if not joined.verdicts and not joined.unjoined:
        samples = _complete(joined, answers)
    settled = Settled(samples, answers)
    if joined.unjoined and not joined.verdicts:
        return _unjoined(joined, answers)
    for row in joined.unjoined:
        joined.findings.leave_out("verdicts that are about no sample for certain", row.place)
    _settle_verdicts(joined, settled)
    _fail_the_lacking(joined, settled)
    return settled


def _answer(sample: Sample, joined: Joined) -> Answer | Failure | None:
    """Return a sample's answer: the one text that all its rows have, or a Failure where they differ.

    Where only verdicts are known, an answer without text or reply stands for the one that was judged.
    """
    rows = joined.answers.get(sample.key, [])
    judged = [row for order in Order for row in joined.verdicts.get((sample.key, order), [])]
    texts = {row.text: row for row in rows if row.text is not None}
    told = {*texts, *(row.answer for row in judged if row.answer is not None)}
    if len(rows) > 1 and len(told) <= 1:
        joined.findings.add("rows that repeat an answer", *(row.place for row in rows[1:]))
    if len(told) > 1:
        places = [row.place for row in (*rows, *judged)]
        joined.findings.add("rows with different answers to one sample, whose samples failed", *places)
        return Failure(
            FailureKind.BAD_REPLY,
            f"{len(told)} different answers in {', '.join(places[:5])}: "
            + ", ".join(map(_short, sorted(told))),
        )
    if told:
        (text,) = told
        row = texts.get(text)
        if row is None or row.reply is None:
            return Answer(raw_text=text, text=text, replies=(Reply(text=text),))
        raw = text if row.raw_text is None else row.raw_text
        return Answer(
            raw_text=raw,
            text=text,
            reasoning=row.reply.reasoning,
            filter="none" if row.raw_text is None else "imported",
            replies=(row.reply,),
        )
    if rows:
        for row in rows:
            lacking = row.failure.kind is FailureKind.NO_ANSWER
            what = "rows without an answer" if lacking else "rows whose answer is no text"
            joined.findings.add(f"{what}, whose samples failed", row.place)
        return rows[-1].failure
    return Answer(raw_text="", text="") if judged else None


def _complete(joined: Joined, answers: Answers) -> list[Sample]:
    """Return the samples that a judge could be shown; the answers of the others are taken out."""
    for key in sorted(joined.incomplete):
        places = (row.place for row in joined.answers.get(key, []))
        joined.findings.leave_out(
            "rows without question, answer_gt or meta_info, which the judge needs and --data ROOT gives",
            *places,
        )
        answers.pop(key, None)
    return [sample for sample in joined.samples if sample.key not in joined.incomplete]


def _settle_verdicts(joined: Joined, settled: Settled) -> None:
    """Find the one reply for each sample and order."""
    samples = {sample.key: sample for sample in joined.samples}
    for (key, order), rows in joined.verdicts.items():
        if isinstance(settled.answers.get(key), Failure):
            continue
        replies = {row.reply.text: row for row in reversed(rows)}
        if len(replies) > 1:
            # What the official script stores of a call that failed; it asks again.
            replies.pop("error", None)
        places = [row.place for row in rows]
        if len(replies) == 1:
            if repeated := _repeated(rows):
                joined.findings.add("rows that repeat a verdict", *repeated)
            settled.verdicts.append((samples[key], order, next(iter(replies.values()))))
            continue
        joined.findings.add("rows with different verdicts on one answer, whose samples failed", *places)
        said = ", ".join(_short(text or "") for text in replies)
        message = f"{len(replies)} different verdicts in {', '.join(places[:5])}: {said}"
        settled.failures.append((samples[key], order, Failure(FailureKind.BAD_REPLY, message)))


def _repeated(rows: Sequence[Row]) -> list[str]:
    """Return the places of rows that a file has more than once; outputs and scores hold the same verdicts."""
    first: dict[str, Row] = {}
    return [row.place for row in rows if first.setdefault(row.file, row) is not row]


def _fail_the_lacking(joined: Joined, settled: Settled) -> None:
    """Give a Failure to each answer that an order's file has no verdict of: nobody can ask for it again."""
    for order in sorted({order for _, order in joined.verdicts}):
        for sample in settled.samples:
            judged = (sample.key, order) in joined.verdicts
            if judged or not isinstance(settled.answers.get(sample.key), Answer):
                continue
            what = f"answers without a verdict in the order {order.value}, whose samples failed"
            joined.findings.add(what, sample.key)
            failure = Failure(FailureKind.NO_ANSWER, "the imported files have no verdict in this order")
            settled.failures.append((sample, order, failure))


def _unjoined(joined: Joined, answers: Answers) -> Settled:
    """Give each verdict a sample of its own, which has that one order alone."""
    if answers:
        what = "answers to which no verdict could be joined: import them without verdicts to judge them"
        joined.findings.leave_out(what, *answers)
    settled = Settled([])
    numbers: Counter[Order] = Counter()
    for row in joined.unjoined:
        if row.order is None or row.task is None:
            continue
        numbers[row.order] += 1
        question, reference, description = row.question or "", row.reference or "", _description(row)
        sample = Sample(
            task=row.task,
            dataset=UNJOINED,
            path=f"{row.order.value}/{numbers[row.order]}",
            uniq_id=numbers[row.order],
            question=question,
            reference=reference,
            description=description,
            audio_path="",
            digest=canonical_digest([row.task, question, reference, description]),
        )
        text = row.answer
        replies = () if text is None else (Reply(text=text),)
        settled.samples.append(sample)
        settled.answers[sample.key] = Answer(raw_text=text or "", text=text or "", replies=replies)
        settled.verdicts.append((sample, row.order, row))
    return settled


def _description(row: Row) -> str:
    return row.description if isinstance(row.description, str) else str(row.description or "")


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:60] + "…")
