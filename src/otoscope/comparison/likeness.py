"""Whether runs were judged alike: the same judge, sampling and scoring."""

from __future__ import annotations

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
    """Return what differs between the judges of two runs, their sampling and their scoring."""
    return [
        Differing(field, run.letter, first, second)
        for field, first, second in baseline.judge.differing(run.judge)
    ]


def prompted_differently(baseline: ReadRun, run: ReadRun) -> list[Differing]:
    """Return what is known to differ between the models' prompts, and in what of an answer is judged.

    Which tool's files an import is from does not count: what that tool sent does. Nor do controls, which
    say themselves what is compared.
    """
    first, second = (one.run.requested.get("prompt") or {} for one in (baseline, run))
    return [
        Differing(f"prompt.{name}", run.letter, first.get(name), second.get(name))
        for name in sorted({*first, *second} - {"source", "control"})
        if first.get(name) != second.get(name)
        and _told(baseline, first.get(name))
        and _told(run, second.get(name))
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
