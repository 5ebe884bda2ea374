"""A run's outcomes -> what of them is compared: numbers and digests, no texts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from otoscope.records import Answer, Order, Outcome, Reply, Verdict
from otoscope.scoring import SampleResult, sample_result

_TOKEN_LIMITS = ("max_tokens", "max_completion_tokens")
"""Raised within a run when a reply was cut off: no other way of sampling."""


@dataclass(frozen=True, slots=True)
class JudgedRun:
    """A run to be compared. ``outcomes`` are consumed once, one at a time, in any order.

    ``name`` is what messages call the run, usually its path. ``orders`` are those that it judges.
    """

    name: str
    manifest: Mapping[str, Any]
    orders: Sequence[Order]
    outcomes: Iterable[Outcome]

    @property
    def requested(self) -> Mapping[str, Any]:
        """What the run asked for: the manifest's fingerprint."""
        return self.manifest.get("fingerprint") or {}

    @property
    def label(self) -> str | None:
        """The run's name in tables, where it was given one."""
        return self.manifest.get("label")


@dataclass(frozen=True, slots=True)
class ReadSample:
    """What is compared of one sample in one run."""

    task: str
    digest: str
    """Of its record."""
    clip_sha256: str | None
    clip: str
    """What tells it from other clips where no run knows its bytes: the file's name within its source."""
    result: SampleResult
    answer_sha256: str | None
    """``None`` where there is no answer, or an import does not tell it."""


@dataclass(slots=True)
class ReadRun:
    """A run that was read: its samples by key, and what its judge's replies say of the judge."""

    letter: str
    run: JudgedRun
    samples: dict[str, ReadSample] = field(default_factory=dict)
    judge_names: set[str] = field(default_factory=set)
    """The names that the judge's server returned with its verdicts."""
    sent: set[str] = field(default_factory=set)
    """The parameters really sent for them, token limits aside, as JSON."""
    score_kinds: set[str] = field(default_factory=set)
    """``expected`` for scores computed from probabilities, ``written`` for those that a reply spells out."""

    def count(self, status: str) -> int:
        """Return the number of samples that are ``scored``, ``failed`` or ``pending``."""
        return sum(sample.result.status == status for sample in self.samples.values())


def read_run(letter: str, run: JudgedRun) -> ReadRun:
    """Read a run's outcomes; of them only numbers and digests are kept."""
    read = ReadRun(letter, run)
    for outcome in run.outcomes:
        sample = outcome.sample
        read.samples[sample.key] = ReadSample(
            sample.task,
            sample.digest,
            (outcome.clip or {}).get("sha256") or None,
            f"{sample.dataset}/{sample.path}",
            sample_result(outcome, run.orders),
            _answer_sha256(outcome),
        )
        for verdict in outcome.verdicts.values():
            # What failed enters no number.
            if isinstance(verdict, Verdict):
                read.judge_names.update(reply.model for reply in verdict.replies if reply.model)
                read.sent.update(_sent(reply) for reply in verdict.replies if reply.parameters)
                read.score_kinds.add("expected" if verdict.score_kind == "expected" else "written")
    return read


def _answer_sha256(outcome: Outcome) -> str | None:
    answer = outcome.answer
    if not isinstance(answer, Answer) or not (answer.text or answer.replies):
        return None
    return answer.sha256


def _sent(reply: Reply) -> str:
    kept = {name: value for name, value in reply.parameters.items() if name not in _TOKEN_LIMITS}
    return json.dumps(kept, sort_keys=True, default=str)
