"""Whether runs were judged alike: the same judge, sampling and scoring."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from otoscope.comparison.reading import ReadRun
from otoscope.records import text_digest

_LONG = 100


@dataclass(frozen=True, slots=True)
class Differing:
    """A setting in which a run differs from the baseline."""

    field: str
    run: str
    """The letter of the run."""
    baseline_value: Any
    value: Any

    def told(self, baseline: str) -> str:
        """Return the setting and both values in words."""
        return (
            f"{self.field}: {_short(self.baseline_value)} in {baseline}, {_short(self.value)} in {self.run}"
        )


def judged_differently(baseline: ReadRun, run: ReadRun) -> list[Differing]:
    """Return what differs between the judges of two runs, their sampling and their scoring.

    The judge's URL does not: a restarted server has another. What its server returned and was really sent
    counts where both runs know it, and where what was requested does not tell the difference already.
    """
    found = _differing("judge", baseline, run, ignored=("api_url",))
    told = {difference.field for difference in found}
    if not told & {"judge.name", "judge.weights"}:
        found += _observed("judge's name as returned", run, baseline.judge_names, run.judge_names)
    if "judge.parameters" not in told:
        found += _observed("judge's parameters as sent", run, baseline.sent, run.sent)
    found += _observed("scoring", run, baseline.score_kinds, run.score_kinds)
    return found


def prompted_differently(baseline: ReadRun, run: ReadRun) -> list[Differing]:
    """Return what is known to differ between the models' prompts, and in what of an answer is judged.

    Which tool's files an import is from does not count: what that tool sent does.
    """
    return [
        difference
        for difference in _differing("prompt", baseline, run, ignored=("source",))
        if _told(baseline, difference.baseline_value) and _told(run, difference.value)
    ]


def other_address(baseline: ReadRun, run: ReadRun) -> Differing | None:
    """Return the judge's address where it differs and no revision says that the judge is the same."""
    first, second = (one.run.requested.get("judge") or {} for one in (baseline, run))
    urls = first.get("api_url"), second.get("api_url")
    if None in urls or urls[0] == urls[1] or first.get("name") != second.get("name"):
        return None
    if first.get("revision") is not None:
        return None
    return Differing("judge.api_url", run.letter, *urls)


def _told(read: ReadRun, value: Any) -> bool:
    """Whether a setting is known: files of other tools do not tell each of them."""
    return value is not None or not read.run.manifest.get("imported")


def _short(value: Any) -> str:
    """Return a value as it is, or of a long one its beginning and what tells it from others."""
    text = repr(value)
    if len(text) <= _LONG:
        return text
    return f"{text[:_LONG]}... ({len(text):,} characters, SHA-256 {text_digest(text)[:8]})"


def _differing(part: str, baseline: ReadRun, run: ReadRun, ignored: Sequence[str] = ()) -> list[Differing]:
    first: Mapping[str, Any] = baseline.run.requested.get(part) or {}
    second: Mapping[str, Any] = run.run.requested.get(part) or {}
    return [
        Differing(f"{part}.{name}", run.letter, first.get(name), second.get(name))
        for name in sorted({*first, *second}.difference(ignored))
        if first.get(name) != second.get(name)
    ]


def _observed(field: str, run: ReadRun, first: Iterable[str], second: Iterable[str]) -> list[Differing]:
    values = [", ".join(sorted(known)) for known in (first, second)]
    if not all(values) or values[0] == values[1]:
        return []
    return [Differing(field, run.letter, *values)]
