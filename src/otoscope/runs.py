"""A stored run, read back and summed up: a pure function of its run directory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from otoscope.benchmark import VIEWS
from otoscope.config import Settings
from otoscope.errors import ConfigError, did_you_mean
from otoscope.nesting import STORED_DEPTH, decoded
from otoscope.records import Estimate, Failure, Json, Order, Outcome, Sample, Sending
from otoscope.scoring import FORMAT, Rule, Scoring, Summary, Summing, control_of, result_line, summarise
from otoscope.store import (
    ANSWERS,
    MANIFEST,
    SAMPLES,
    SUMMARY,
    VERDICTS,
    RunStore,
    read_manifest,
    sample_to_line,
)


@dataclass(frozen=True)
class Run:
    """A stored run: where it lies, and its numbers."""

    path: Path
    summary: Summary = field(repr=False)
    changed: bool = field(default=False, repr=False, compare=False)
    """Whether its results were written anew in this session."""

    @property
    def manifest(self) -> Mapping[str, Any]:
        """What the run's manifest says: settings without secrets, fingerprint, data set, label, tags."""
        return read_manifest(self.path / MANIFEST)

    def outcomes(self) -> Iterator[Outcome]:
        """Yield everything known of each sample, one at a time, read from the run directory."""
        with RunStore.open(self.path) as store:
            yield from store.outcomes(store.samples(), store.manifest.get("judge_id"))


@dataclass(frozen=True, slots=True)
class ToDownload:
    """What of the data set a run would download first."""

    hub: str
    dataset: str
    files: int | None
    """``None``: not even the metadata are here, which say what is needed."""
    bytes: int | None
    """``None`` where the hub does not tell it."""
    place: Path | None
    """The folder that it would be completed in; ``None``: the hub's cache, which holds nothing of it."""


@dataclass(frozen=True, slots=True)
class DryRun:
    """What a run would do. Nothing was sent and nothing written."""

    settings: Settings
    samples: Mapping[str, int]
    """Number of samples of each task."""
    task_sizes: Mapping[str, int]
    sending: Sending
    unusable: Sequence[tuple[str, Failure]]
    """Key and trouble of each sample whose clip cannot be sent."""
    answers_done: int = 0
    """Answers that the run to be continued has already, failures that last included."""
    verdicts_done: int = 0
    download: ToDownload | None = None
    estimate: Estimate | None = None
    """What the calls to the judge will use; ``None`` where nobody is paid."""
    limit_warning: str | None = None
    """What is to be said where that is more than a limit leaves."""

    @property
    def answers(self) -> int:
        """Number of calls to the model, without retries."""
        return max(0, sum(self.samples.values()) - max(self.answers_done, self.without_answer))

    @property
    def without_answer(self) -> int:
        """Number of samples whose clip cannot be sent, or is left out by the audio policy."""
        skips = self.settings.audio.policy.over == "skip"
        return len(self.unusable) + (self.sending.over_limit if skips else 0)

    @property
    def verdicts(self) -> int:
        """Number of calls to the judge, without asking again."""
        judge = self.settings.judge
        if judge is None:
            return 0
        usable = sum(self.samples.values()) - self.without_answer
        return max(0, usable * len(Order.judged(swap=judge.swap)) - self.verdicts_done)


@dataclass(frozen=True, slots=True)
class Reading:
    """A stored run that is about to be read: what is known of it before its samples are."""

    manifest: Mapping[str, Any]
    rule: Rule
    """How its samples are scored."""
    view: str
    """Of which samples it is summed up: one of :data:`otoscope.benchmark.VIEWS`."""


Listener = Callable[[Outcome], None]


def load_run(path: str | Path, *, scoring: str = "default", view: str = "full") -> Run:
    """Read a run and sum it up by a scoring rule, over the samples of a view.

    ``scoring`` is ``default`` or ``official``; ``view`` is one of :data:`otoscope.benchmark.VIEWS`. Raises
    ``RunDirectoryError``, and ``ConfigError`` where the run cannot be scored like that.
    """
    return read_run(Path(path), scoring=scoring, view=view, listeners=lambda _reading: ())


def read_run(
    path: Path, *, scoring: str, view: str, listeners: Callable[[Reading], Iterable[Listener]]
) -> Run:
    """Load a run as :func:`load_run` does, and let others hear of its samples in the same reading.

    ``listeners`` is asked once, before the first sample; who it returns hears of each sample of the view.
    Raises as :func:`load_run` does.
    """
    rule = _scoring(scoring)
    if view not in VIEWS:
        known = ", ".join(VIEWS)
        raise ConfigError(f"view: there is no {view!r}{did_you_mean(view, VIEWS)}; there are {known}")
    with RunStore.open(path) as store:
        reading = Reading(store.manifest, rule_of(store.manifest, rule), view)
        summing = Summing(orders=reading.rule.orders, manifest=store.manifest, scoring=rule, view=view)
        told = (summing.add, *listeners(reading))
        samples = store.samples()
        for outcome in store.outcomes(samples, store.manifest.get("judge_id")):
            if outcome.sample.task in VIEWS[view]:
                for tell in told:
                    tell(outcome)
        return Run(path, summing.summary(**_beside(store, samples)))


def rule_of(manifest: Mapping[str, Any], scoring: Scoring) -> Rule:
    """Return the rule by which a run's samples are scored, by its manifest."""
    return Rule(scoring, judged_orders(manifest), bool(manifest.get("unjoined")))


def _scoring(scoring: str) -> Scoring:
    match scoring:
        case "default" | "official":
            return scoring
        case _:
            raise ConfigError(f"scoring: must be default or official, not {scoring!r}")


def judged_orders(manifest: Mapping[str, Any]) -> tuple[Order, ...]:
    """Return the orders that a run judges, by its manifest."""
    judge = (manifest.get("fingerprint") or {}).get("judge") or {}
    return Order.judged(swap=judge.get("do_swap", True))


def summary_of(
    store: RunStore, samples: Sequence[Sample], *, scoring: Scoring = "default", view: str = "full"
) -> Summary:
    """Sum up an opened run over these samples. Raises ``ConfigError`` as :func:`summarise` does."""
    return summarise(
        store.outcomes(samples, store.manifest.get("judge_id")),
        orders=judged_orders(store.manifest),
        manifest=store.manifest,
        scoring=scoring,
        view=view,
        **_beside(store, samples),
    )


def write_results(store: RunStore, samples: Sequence[Sample]) -> Summary:
    """Write what the lines add up to, ``samples.jsonl`` and ``summary.json``, and return the summary.

    Each sample is read once. The summary is by the default rules, but of a run whose orders could not be
    joined, which has no other than the official one. Raises ``RunDirectoryError``.
    """
    orders = judged_orders(store.manifest)
    scoring: Scoring = "official" if store.manifest.get("unjoined") else "default"
    summing = Summing(orders=orders, manifest=store.manifest, scoring=scoring)
    rule, control = Rule("default", orders), control_of(store.manifest)

    def lines() -> Iterator[Json]:
        for outcome in store.outcomes(samples, store.manifest.get("judge_id")):
            summing.add(outcome)
            yield {**sample_to_line(outcome.sample), **result_line(outcome, rule, control=control)}

    store.write_samples(lines())
    summary = summing.summary(**_beside(store, samples))
    store.write_file(SUMMARY, json.dumps(summary.to_json(), indent=1, allow_nan=False).encode() + b"\n")
    return summary


def current_summary(path: Path) -> Json | None:
    """Return what ``summary.json`` holds, or ``None`` where it may not say what the run's lines do.

    It is by the default rules, of all the run's samples. Nothing but its outermost form was looked at.
    """
    file = path / SUMMARY
    try:
        if not newer(file, [path / name for name in (MANIFEST, ANSWERS, VERDICTS)]):
            return None
        summary = decoded(file.read_bytes(), _DECODER, STORED_DEPTH)
    except (OSError, ValueError):
        return None
    if not isinstance(summary, dict):
        return None
    kind = (summary.get("format"), summary.get("scoring"), summary.get("view"))
    return summary if kind == (FORMAT, "default", "full") else None


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_no_constant)


def newer(file: Path, inputs: Iterable[Path]) -> bool:
    """Whether a file was written after all of those that it was made from. Raises ``OSError``."""
    written = file.stat().st_mtime_ns
    # Not older is not enough: a file system may tell times to the second only.
    return all(other.stat().st_mtime_ns < written for other in inputs if other.exists())


def standing_results(store: RunStore, samples: Sequence[Sample]) -> Summary | None:
    """Return the summary that was written of just these samples, where no line was written since.

    ``None`` where it may have changed: :func:`write_results` then sums up anew. Raises
    ``RunDirectoryError`` where ``samples.jsonl`` cannot be read.
    """
    stored = current_summary(store.path)
    if stored is None or not newer(store.path / SUMMARY, [store.path / SAMPLES]):
        return None
    told = ((sample.key, sample.digest) for sample in store.samples())
    if list(told) != [(sample.key, sample.digest) for sample in samples]:
        return None
    try:
        return Summary.from_json(stored)
    except (AssertionError, AttributeError, KeyError, TypeError):  # by another version, or edited by hand
        return None


def _beside(store: RunStore, samples: Sequence[Sample]) -> dict[str, int]:
    """Return how many lines the run has that enter no number, and why."""
    keys = {sample.key for sample in samples}
    return {"skipped_lines": store.skipped_lines, "outside": store.answered_outside(keys)}
