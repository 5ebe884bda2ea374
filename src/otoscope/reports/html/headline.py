"""What stands at the top: the run's one number, what qualifies it, and what the run was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from otoscope.benchmark import AVERAGE_PARTS, MIXED_PARTS
from otoscope.reports.html import numbers
from otoscope.reports.html.words import Said, known, said
from otoscope.reports.reported import Reported
from otoscope.reports.told import audio_told, converters_told, names_returned, scoring_words
from otoscope.scoring import CONTROL_WARNINGS, Summary
from otoscope.scoring.warnings import with_names

_FIRST = (
    "embedded_judge", "self_judged", "baseline", "prompt", "foreign_prompt", "audio_policy", "shard",
    "missing_shards",
)  # fmt: skip
"""Warnings that change what every number below them means."""
_SAID_ABOVE = ("pending", "not_judged", *CONTROL_WARNINGS.values())
"""Warnings that the page has beside its title."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A name and what stands beside it."""

    name: Said | str
    entries: Sequence[Said | str]


def notes(summary: Summary) -> Iterator[Said]:
    """Yield what a reader must know of the headline's number, shortest first."""
    cell = summary.cell(summary.headline)
    if summary.judge is None:
        return
    if cell.gpt_score is None:
        yield from _why_not_available(summary)
        return
    if (least := cell.lower_bound) is not None:
        yield said("html.at_least", score=numbers.score(least))
    full_weights = numbers.score(cell.gpt_score_full_weights)
    known = cell.gpt_score_full_weights is not None
    if cell.partial and known and full_weights != numbers.score(cell.gpt_score):
        yield said("html.full_weights", score=full_weights)


def _why_not_available(summary: Summary) -> Iterator[Said]:
    everything = summary.all_samples
    if not everything.scored:
        failed = everything.n and everything.failed == everything.n
        yield said("html.all_failed" if failed else "html.none_scored")
        return
    parts = {**summary.categories, "mixed_audio": summary.mixed_audio}
    needed = MIXED_PARTS if summary.headline == "mixed_audio" else AVERAGE_PARTS
    without = [part for part in needed if part not in parts or parts[part].gpt_score is None]
    if without:
        yield said("html.needs_parts", parts=_all_of([_cell(part) for part in without]))


def _cell(name: str) -> Said:
    return said(f"cell.{name}")


def _all_of(names: Sequence[Said]) -> Said:
    return reduce(lambda first, second: said("html.and", first=first, second=second), names)


def warnings(summary: Summary) -> list[Said | str]:
    """Return what is warned of: first what changes the meaning of every number."""
    others = [warning for warning in summary.warnings if warning["name"] not in _SAID_ABOVE]
    ordered = sorted(others, key=lambda warning: warning["name"] not in _FIRST)
    return [_warning(warning) for warning in ordered]


def _warning(warning: Mapping[str, Any]) -> Said | str:
    text = known(f"warning.{warning['name']}", warning["message"])
    if not isinstance(text, Said):
        return text
    return said(text.key, **with_names(warning.get("values") or {}, _cell, _all_of))


def control_mark(summary: Summary) -> Said | None:
    """Return what was sent in place of the clips; ``None`` for an evaluation."""
    return None if summary.control is None else said(f"warning.{CONTROL_WARNINGS[summary.control]}")


def audio_policy(summary: Summary) -> list[Said | str]:
    """Return what is said of an audio policy that is not the benchmark's; nothing of any other."""
    return [_warning(warning) for warning in summary.warnings if warning["name"] == "audio_policy"]


def named(run: Reported) -> Said | str:
    """Return what a run is called, with the control that it is."""
    control = run.summary.control
    if control is None:
        return run.name
    return said("control.name", name=run.name, control=said(f"control.{control}"))


def facts(run: Reported) -> list[Fact]:
    """Return what was measured, by whom it was judged, and when."""
    summary = run.summary
    found = [Fact(said("html.model"), served(summary, "model", summary.model))]
    if summary.judge is not None:
        orders = said("html.both_orders" if summary.do_swap else "html.one_order")
        found.append(Fact(said("html.judge"), [*served(summary, "judge", summary.judge), orders]))
        found.append(Fact(said("html.protocol"), how(summary)))
    else:
        found.append(Fact(said("html.judge"), [said("html.no_judge")]))
    found.append(Fact(said("html.samples"), [_samples(summary), *_failures(summary)]))
    if audio := [said(key, **values) for key, values in audio_told(summary)]:
        found.append(Fact(said("html.audio"), [summary.audio["policy"] or "", *audio]))
    everything = summary.all_samples
    if summary.judge is not None:
        coverage = numbers.coverage(everything.scored, everything.n)
        found.append(Fact(said("html.coverage"), [said("html.coverage_of", share=coverage)]))
    found.append(Fact(said("html.date"), [numbers.date_of(summary.created_at)]))
    if summary.tags:
        found.append(Fact(said("html.tags"), [f"{name} = {value}" for name, value in summary.tags.items()]))
    return found


def converters(summary: Summary) -> list[Said | str]:
    """Return the libraries that converted clips, as they were named, with counts."""
    return [said(key, **values) for key, values in converters_told(summary)]


def served(summary: Summary, role: str, name: str) -> list[Said | str]:
    """Return the name that was asked for, and those that the server gave where they are others."""
    returned = names_returned(summary, role)
    return [name, *(said("html.served_as", name=one, count=numbers.count(count)) for one, count in returned)]


def how(summary: Summary) -> list[Said | str]:
    """Return how the judge was asked, and by which rule its replies are scored."""
    told: list[Said | str] = []
    if summary.protocol is not None:
        told.append(known(f"html.protocol.{summary.protocol}", summary.protocol))
    key, values = scoring_words(summary)
    told.append(said(key, **values))
    if summary.view != "full":
        told.append(known(f"html.view.{summary.view}", summary.view))
    return told


def _samples(summary: Summary) -> Said:
    cell = summary.all_samples
    if summary.judge is None:
        answered = summary.answers.get("answered", 0)
        return said("html.answered_of", answered=numbers.count(answered), n=numbers.count(cell.n))
    counts = {name: numbers.count(getattr(cell, name)) for name in ("scored", "failed", "pending", "n")}
    return said("html.counts" if cell.pending else "html.counts_ended", **counts)


def _failures(summary: Summary) -> Iterator[Said]:
    kinds: Mapping[str, int] = summary.counts.get("failures") or {}
    for kind, count in sorted(kinds.items(), key=lambda entry: (-entry[1], entry[0])):
        yield said("html.failed_kind", kind=failure_kind(kind), count=numbers.count(count))


def failure_kind(kind: str) -> Said | str:
    """Return what a kind of failure is called."""
    return known(f"failure.{kind}", kind.replace("_", " "))
