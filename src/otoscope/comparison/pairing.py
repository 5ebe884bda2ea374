"""The samples that all runs have in common, and why the others are left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from otoscope.comparison.reading import ReadRun, ReadSample

Reason = Literal["not_in", "record", "failed", "pending", "clip_unknown", "clip"]

_WORDS: Mapping[Reason, str] = {
    "not_in": "not in",
    "record": "with another record in",
    "failed": "failed in",
    "pending": "pending in",
    "clip_unknown": "whose clip is not known in",
    "clip": "with another clip in",
}


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Samples that are not compared. Each is counted once, under the first reason that holds.

    ``reason``: ``not_in`` (the run does not have it), ``record`` (not the baseline's record), ``failed``,
    ``pending``, ``clip_unknown`` (another run knows the clip's bytes, this one does not), ``clip`` (not the
    baseline's bytes), in this order. Of a control that sends other clips or none, no clip is asked for.
    """

    reason: Reason
    runs: tuple[str, ...]
    """The letters of the runs that this is so in."""
    samples: int

    def told(self) -> str:
        """Return in words why, to be written after a number of samples."""
        runs = " and ".join(filter(None, (", ".join(self.runs[:-1]), self.runs[-1])))
        return f"{_WORDS[self.reason]} {runs}"


@dataclass(frozen=True, slots=True)
class Paired:
    """One sample that all runs scored, on the same record and clip."""

    task: str
    clip: str
    samples: Mapping[str, ReadSample]
    """By the letter of the run."""

    def score(self, letter: str) -> float:
        """Return the model's score in this run, from 0 to 10."""
        return _known(self.samples[letter].result.gpt_score)

    def reference(self, letter: str) -> float:
        """Return the reference's score in this run, from 0 to 10."""
        return _known(self.samples[letter].result.reference_score)


def pair(runs: Sequence[ReadRun], baseline: str) -> tuple[list[Paired], tuple[LeftOut, ...]]:
    """Return the samples to compare, sorted by their keys, and how many are left out for which reason."""
    paired: list[Paired] = []
    left_out: Counter[tuple[Reason, tuple[str, ...]]] = Counter()
    for key in sorted({key for run in runs for key in run.samples}):
        found = {run.letter: run.samples[key] for run in runs if key in run.samples}
        reason = _obstacle(found, [run.letter for run in runs], baseline)
        if reason is None:
            sample = _telling_the_clip(found, baseline)
            paired.append(Paired(sample.task, sample.clip_sha256 or sample.clip, found))
        else:
            left_out[reason] += 1
    most = sorted(left_out.items(), key=lambda entry: (-entry[1], entry[0]))
    return paired, tuple(LeftOut(reason, letters, count) for (reason, letters), count in most)


def differing_records(first: ReadRun, second: ReadRun) -> int:
    """Return how many samples have the same key in both runs, and another record."""
    both = first.samples.keys() & second.samples.keys()
    return sum(first.samples[key].digest != second.samples[key].digest for key in both)


def same_answers(paired: Sequence[Paired]) -> bool:
    """Whether every common sample was answered with the same text, and a known one, in all runs."""
    answers = ({one.answer_sha256 for one in sample.samples.values()} for sample in paired)
    return all(len(texts) == 1 and None not in texts for texts in answers)


def _obstacle(
    found: Mapping[str, ReadSample], letters: Sequence[str], baseline: str
) -> tuple[Reason, tuple[str, ...]] | None:
    """Return the first reason not to compare a sample, and the runs that it is so in."""
    if absent := tuple(letter for letter in letters if letter not in found):
        return "not_in", absent
    base, clip = found[baseline], _telling_the_clip(found, baseline).clip_sha256
    known = any(one.clip_sha256 for one in found.values())
    checks: tuple[tuple[Reason, Callable[[ReadSample], bool]], ...] = (
        ("record", lambda one: one.digest != base.digest),
        ("failed", lambda one: one.result.status == "failed"),
        ("pending", lambda one: one.result.status == "pending"),
        ("clip_unknown", lambda one: known and one.needs_clip and not one.clip_sha256),
        ("clip", lambda one: one.needs_clip and one.clip_sha256 != clip),
    )
    for reason, holds in checks:
        if where := tuple(letter for letter, one in found.items() if holds(one)):
            return reason, where
    return None


def _telling_the_clip(found: Mapping[str, ReadSample], baseline: str) -> ReadSample:
    """Return the sample in the baseline, or where that is a control without the clip, in one that has it."""
    base = found[baseline]
    return base if base.needs_clip else next((one for one in found.values() if one.needs_clip), base)


def _known(score: float | None) -> float:
    if score is None:
        raise AssertionError("a paired sample is scored in every run")
    return score
