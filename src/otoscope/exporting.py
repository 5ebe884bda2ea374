"""A run directory -> the official scripts' files, so that their scorer runs on a run unchanged."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from otoscope.errors import ConfigError, RunDirectoryError
from otoscope.exchange import (
    BATCH_OUTPUT,
    CHAT_RESULT,
    CHAT_SCORE,
    UNJOINED,
    Findings,
    batch_output_record,
    chat_result_record,
    chat_score_record,
    is_unknown,
)
from otoscope.judge import render_prompt
from otoscope.records import Answer, Failure, Order, Outcome, Reply, Verdict, json_bytes
from otoscope.scoring import control_of
from otoscope.store import RunStore

FILES = (CHAT_RESULT, *BATCH_OUTPUT.values(), *CHAT_SCORE.values())
"""Every file that an export may write."""


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written, and what was left out."""

    folder: Path
    rows: Mapping[str, int]
    """Number of rows by the file's name."""
    findings: Findings
    """What was left out or written otherwise -> the keys of the samples."""
    expected_scores: bool
    """Whether the run has expected scores, of which there are no official files."""
    control: str | None
    """What the run sent in place of the clips, which the files do not say."""


@dataclass(slots=True)
class _Rows:
    """The rows of each file, as they are written."""

    answers: list[bytes] = field(default_factory=list)
    outputs: dict[Order, list[bytes]] = field(default_factory=dict)
    scores: dict[Order, list[bytes]] = field(default_factory=dict)


def export_run(run: Path, folder: Path, *, force: bool = False, control: bool = False) -> Exported:
    """Write the official files of a run: answers, and for each order that was judged, replies and scores.

    The reply that counts is the first of each order, as it came, whatever came later. An answer that failed
    is written as null, as the official script does. Of a run with expected scores only the answers are
    written, and outputs only where they are those of every verdict of their order. Raises ``ConfigError``
    when there are such files already (without ``force``), the run's texts were withheld, or it is a control
    (without ``control``): nothing in the files would tell it from an evaluation; and ``RunDirectoryError``.
    """
    rows, findings = _Rows(), Findings()
    expected = False
    with RunStore.open(run) as store:
        if store.manifest.get("withheld"):
            raise ConfigError(
                f"{run}: comes from a bundle without data: its texts are stand-ins, and no official files "
                "are made of those. Export the run that the bundle was made of"
            )
        if (sent := control_of(store.manifest)) is not None and not control:
            raise ConfigError(
                f"{run}: is a control run (--control {sent}), and the official files have no place to say "
                "so: they would be taken for an evaluation of the model. Give --force-control to write them "
                "all the same, in a folder whose name says it; a --bundle keeps the mark"
            )
        there = [name for name in FILES if (folder / name).exists()]
        if there and not force:
            raise ConfigError(
                f"{folder}: holds {', '.join(there)} already. Give --force to replace them, or another folder"
            )
        judge = ((store.manifest.get("fingerprint") or {}).get("judge") or {}).get("name") or "unknown"
        for outcome in store.outcomes(store.samples(), store.manifest.get("judge_id")):
            if outcome.answer is None:
                findings.add("samples that are not answered, left out", outcome.sample.key)
                continue
            _add_answer(rows, outcome, outcome.answer, findings)
            if isinstance(outcome.answer, Failure):
                continue
            if _has_expected_scores(outcome):
                expected = True
            else:
                _add_verdicts(rows, outcome, outcome.answer, judge, findings)
    _drop_incomplete_outputs(rows)
    contents = _contents(rows) if not expected else {CHAT_RESULT: b"".join(rows.answers)}
    written = {name: content for name, content in contents.items() if content}
    _write(folder, written, stale=[name for name in there if name not in written])
    counts = {CHAT_RESULT: len(rows.answers)}
    if not expected:
        counts |= {BATCH_OUTPUT[order]: len(rows.outputs[order]) for order in rows.outputs}
        counts |= {CHAT_SCORE[order]: len(rows.scores[order]) for order in rows.scores}
    return Exported(folder, {name: n for name, n in counts.items() if n}, findings, expected, sent)


def _add_answer(rows: _Rows, outcome: Outcome, answer: Answer | Failure, findings: Findings) -> None:
    if isinstance(answer, Failure):
        findings.add("answers that failed, written as null", outcome.sample.key)
        rows.answers.append(json_bytes(chat_result_record(outcome.sample, None)) + b"\n")
        return
    if is_unknown(answer) or outcome.sample.dataset == UNJOINED:
        findings.add("samples whose answer, or what it is about, was not imported", outcome.sample.key)
        return
    if answer.filtered:
        findings.add("answers written as they were judged, after the answer filter", outcome.sample.key)
    rows.answers.append(json_bytes(chat_result_record(outcome.sample, answer.text)) + b"\n")


def _add_verdicts(rows: _Rows, outcome: Outcome, answer: Answer, judge: str, findings: Findings) -> None:
    sample = outcome.sample
    known = not is_unknown(answer) and sample.dataset != UNJOINED
    for order, verdict in outcome.verdicts.items():
        reply = _first(verdict)
        if reply is None:
            findings.add(f"verdicts without a reply ({order.value})", sample.key)
            continue
        about = sample if sample.dataset != UNJOINED else None
        score = chat_score_record(about, sample.task, answer.text if known else None, reply)
        rows.scores.setdefault(order, []).append(json_bytes(score))
        if known:
            prompt = render_prompt(sample, answer.text, order)
            output = batch_output_record(sample, answer.text, order, reply, prompt, judge)
            rows.outputs.setdefault(order, []).append(json_bytes(output) + b"\n")


def _first(verdict: Verdict | Failure) -> Reply | None:
    return verdict.replies[0] if verdict.replies else None


def _has_expected_scores(outcome: Outcome) -> bool:
    replies = (reply for verdict in outcome.verdicts.values() for reply in verdict.replies)
    return any(reply.probabilities is not None for reply in replies)


def _drop_incomplete_outputs(rows: _Rows) -> None:
    """Drop outputs that lack a verdict which the scores have: its answer is not known, so nor its prompt."""
    for order, scores in rows.scores.items():
        if len(rows.outputs.get(order, ())) < len(scores):
            rows.outputs.pop(order, None)


# --- writing ----------------------------------------------------------------------------------------------


def _contents(rows: _Rows) -> dict[str, bytes]:
    contents = {CHAT_RESULT: b"".join(rows.answers)}
    for order in Order:
        contents[BATCH_OUTPUT[order]] = b"".join(rows.outputs.get(order, ()))
        scores = rows.scores.get(order)
        contents[CHAT_SCORE[order]] = b"[\n" + b",\n".join(scores) + b"\n]\n" if scores else b""
    return contents


def _write(folder: Path, contents: Mapping[str, bytes], stale: Iterable[str]) -> None:
    """Write every file beside its place, then rename them all: none is ever seen half written.

    ``stale`` files are removed: what an earlier export left must not stand beside this one as if it were of
    the same run.
    """
    beside = {name: folder / f".{name}.tmp" for name in contents}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            with beside[name].open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        _remove(folder / name for name in stale)
        for name, path in beside.items():
            path.replace(folder / name)
    except OSError as error:
        raise RunDirectoryError(
            f"{error.filename or folder}: cannot be written: {error.strerror or error}. "
            "Make room, or give another folder with --to"
        ) from None
    finally:
        _remove(beside.values())


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
