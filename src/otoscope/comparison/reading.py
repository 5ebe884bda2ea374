"""A run's outcomes -> what of them is compared: numbers and digests, no texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from otoscope.judge_profile import JudgeProfile, judge_profile
from otoscope.records import Answer, Order, Outcome, Verdict
from otoscope.scoring import SampleResult, control_of, sample_result
from otoscope.scoring.sent import NO_AUDIO, SHUFFLED


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
    def control(self) -> str | None:
        """What the run sent in place of the clips; ``None`` for an evaluation."""
        return control_of(self.manifest)

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
    """Of the sample's own clip; ``None`` where it is not known, as where a control sent another."""
    needs_clip: bool
    """Whether only the same clip makes it the same sample: a control may know nothing of the sample's own."""
    clip: str
    """What tells it from other clips where no run knows its bytes: the file's name within its source."""
    result: SampleResult
    answer_sha256: str | None
    """``None`` where there is no answer, or an import does not tell it."""


@dataclass(frozen=True, slots=True)
class ReadRun:
    """A run that was read: its samples by key, and how it was judged."""

    letter: str
    run: JudgedRun
    samples: Mapping[str, ReadSample]
    judge: JudgeProfile
    """By the replies of what it scored: what failed enters no number."""

    def count(self, status: str) -> int:
        """Return the number of samples that are ``scored``, ``failed`` or ``pending``."""
        return sum(sample.result.status == status for sample in self.samples.values())


def read_run(letter: str, run: JudgedRun) -> ReadRun:
    """Read a run's outcomes; of them only numbers and digests are kept."""
    samples: dict[str, ReadSample] = {}
    names: set[str] = set()
    sent: list[Mapping[str, Any]] = []
    kinds: set[str] = set()
    control = run.control
    for outcome in run.outcomes:
        sample = outcome.sample
        known = (outcome.clip or {}).get("sha256") if control != SHUFFLED else None
        samples[sample.key] = ReadSample(
            sample.task,
            sample.digest,
            known or None,
            control not in (SHUFFLED, NO_AUDIO) or bool(known),
            f"{sample.dataset}/{sample.path}",
            sample_result(outcome, run.orders),
            _answer_sha256(outcome),
        )
        for verdict in outcome.verdicts.values():
            if isinstance(verdict, Verdict):
                names.update(reply.model for reply in verdict.replies if reply.model)
                sent += (reply.parameters for reply in verdict.replies if reply.parameters not in sent)
                kinds.add("expected" if verdict.score_kind == "expected" else "written")
    judge = run.requested.get("judge") or {}
    return ReadRun(letter, run, samples, judge_profile(judge, names=names, sent=sent, score_kinds=kinds))


def _answer_sha256(outcome: Outcome) -> str | None:
    answer = outcome.answer
    if not isinstance(answer, Answer) or not (answer.text or answer.replies):
        return None
    return answer.sha256
