"""Outcomes -> Summary: every number that a run prints.

The paper's means (AIR-Bench, ACL 2024): a category pools its samples, ``mixed_audio`` is the mean of the
two mixed categories, and the average is the mean of speech, sound, music and mixed audio. A sample whose
verdict is incomplete is failed: it is counted, and never enters a mean as 0 or as half a verdict.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from otoscope.benchmark import BENCHMARK, MIXED_PARTS, TASKS, VIEWS
from otoscope.errors import ConfigError
from otoscope.records import Answer, Json, Order, Outcome, Price
from otoscope.scoring.addressing import addresses_judge
from otoscope.scoring.answers import Answers
from otoscope.scoring.behaviour import Behaviour
from otoscope.scoring.calls import Calls, plain
from otoscope.scoring.cells import Cell, Leaf, Rows, build_cells, means_without_flagged
from otoscope.scoring.rules import Rule, Scoring
from otoscope.scoring.sent import SentClips, control_of
from otoscope.scoring.warnings import Evidence, find_warnings, lacks_shards
from otoscope.stats import INTERVAL_LABEL

FORMAT = 1
OFFICIAL_TEMPERATURES = frozenset({"1", "2"})
"""The official script's default is 1.0, and on a random half of its calls it sends 2.0."""
_NOT_STATED = "not stated"
"""What an import notes of a file that does not tell its temperature."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """All numbers of a run; what reporters read and ``summary.json`` holds."""

    model: str
    judge: str | None
    label: str | None
    control: str | None
    """What was sent in place of the clips: then the run is no evaluation of the model."""
    audio: Mapping[str, Any]
    """The audio policy, and what it did: counts of clips, and seconds."""
    tags: Mapping[str, str]
    protocol: str | None
    do_swap: bool
    requested: Mapping[str, Any]
    observed: Mapping[str, Any]
    selection: Mapping[str, Any]
    partial: bool
    headline: str
    """The cell that stands for the run: ``average``, or a category where only that was chosen."""
    counts: Mapping[str, Any]
    average: Cell
    mixed_audio: Cell
    categories: Mapping[str, Cell]
    tasks: Mapping[str, Cell]
    datasets: Mapping[str, Cell]
    all_samples: Cell
    position: Mapping[str, Any]
    answers: Mapping[str, int]
    flagged: Mapping[str, Any]
    """Answers that address the judge: ``count``, ``keys``, and ``gpt_score_without`` them, by cell."""
    length: Mapping[str, Any]
    """Mean lengths in characters, and the correlation of answer length with score within tasks."""
    verdicts: Mapping[str, Any]
    usage: Mapping[str, Any]
    timing: Mapping[str, Any]
    warnings: Sequence[Mapping[str, Any]]
    """``name``, ``values`` and the English ``message`` of each."""
    scoring: Scoring = "default"
    view: str = "full"
    created_at: str | None = None

    def cell(self, name: str) -> Cell:
        """Return a cell by its name: ``average``, ``mixed_audio``, ``all_samples``, a category or a task.

        Raises ``KeyError`` when the run has no such cell.
        """
        match name:
            case "average":
                return self.average
            case "mixed_audio":
                return self.mixed_audio
            case "all_samples":
                return self.all_samples
            case _:
                return self.categories[name] if name in self.categories else self.tasks[name]

    @property
    def prompt(self) -> Mapping[str, Any]:
        """The model's prompt as it was requested, but with the forms in which clips were really sent."""
        prompt: Mapping[str, Any] = self.requested.get("prompt") or {}
        sent = (self.observed.get("model") or {}).get("audio_parts")
        return {**prompt, "audio_part": ", ".join(sent)} if sent else prompt

    @property
    def judge_temperatures(self) -> tuple[str, ...] | None:
        """The temperatures that the judge was really asked with, as text; ``None`` where nobody tells.

        "default" stands for a request that left it to the server.
        """
        judge = self.requested.get("judge") or {}
        if "imported" in judge:
            found = (judge["imported"] or {}).get("temperatures") or [_NOT_STATED]
        else:
            variants = (self.observed.get("judge") or {}).get("parameters") or ()
            found = [variant["sent"].get("temperature", "default") for variant in variants]
        texts = {_as_number(temperature) for temperature in found}
        return None if not texts or _NOT_STATED in texts else tuple(sorted(texts))

    @property
    def sampled_officially(self) -> bool:
        """Whether the judge was asked at the official script's temperatures, and no other."""
        return set(self.judge_temperatures or ("",)) <= OFFICIAL_TEMPERATURES

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Summary:
        """Read what :meth:`to_json` returned; intervals that are in no cell are lists then.

        Raises ``KeyError``, ``TypeError`` or ``AttributeError`` for values of another form.
        """
        told = {**stored, **stored["fingerprint"]}
        read: Json = {f.name: told[f.name] for f in fields(cls)}
        for name in ("average", "mixed_audio", "all_samples"):
            read[name] = Cell.from_json(read[name])
        for name in ("categories", "tasks", "datasets"):
            read[name] = {key: Cell.from_json(cell) for key, cell in read[name].items()}
        return cls(**read)

    def to_json(self) -> Json:
        """Return the content of ``summary.json``: plain JSON values, n/a as ``null``, never NaN."""
        stored: Json = {"format": FORMAT, "benchmark": BENCHMARK}
        for name in (
            "model",
            "judge",
            "label",
            "control",
            "audio",
            "tags",
            "created_at",
            "scoring",
            "view",
            "protocol",
            "do_swap",
        ):
            stored[name] = plain(getattr(self, name))
        stored["fingerprint"] = plain({"requested": self.requested, "observed": self.observed})
        stored["intervals"] = INTERVAL_LABEL
        for f in fields(self):
            if f.name not in ("requested", "observed"):
                stored.setdefault(f.name, _stored(getattr(self, f.name)))
        return stored


@dataclass(slots=True)
class _Tally:
    """What is kept of the outcomes: numbers and digests only."""

    rule: Rule
    leaves: dict[tuple[str, str], Leaf] = field(default_factory=dict)
    failures: Counter[str] = field(default_factory=Counter)
    stages: Counter[str] = field(default_factory=Counter)
    model: Calls = field(default_factory=Calls)
    judge: Calls = field(default_factory=Calls)
    answers: Answers = field(default_factory=Answers)
    sent: SentClips = field(default_factory=SentClips)
    behaviour: Behaviour = field(default_factory=Behaviour)
    negative: int = 0

    def add(self, outcome: Outcome) -> None:
        sample = outcome.sample
        ruled = self.rule(outcome)
        leaf = self.leaves.get((sample.task, sample.dataset))
        if leaf is None:
            leaf = Leaf({name: Rows() for name in self.rule.passes})
            self.leaves[sample.task, sample.dataset] = leaf
        clip = outcome.clip_identity
        answer = outcome.answer
        addresses = isinstance(answer, Answer) and addresses_judge(answer.text)
        for name, (score, reference) in ruled.rows.items():
            if addresses:
                leaf.flagged.setdefault(name, set()).add(len(leaf.passes[name]))
            leaf.passes[name].add(score, reference, clip)
            self.negative += score < 0 or reference < 0
        for name in ruled.missing:
            leaf.passes[name].missing += 1
        result = ruled.result
        leaf.scored += result.status == "scored"
        leaf.failed += result.status == "failed"
        leaf.pending += result.status == "pending"
        if result.failure is not None:
            self.failures[result.failure.kind.value] += 1
            self.stages[str(result.stage)] += 1
        self.model.add(outcome.superseded)
        self.judge.add(outcome.surplus)
        self.judge.requests += outcome.unanswered
        if outcome.answer is not None:
            self.model.add(outcome.answer.replies)
        for verdict in outcome.verdicts.values():
            self.judge.add(verdict.replies)
        self.answers.add(outcome, result.gpt_score, clip, addresses=addresses)
        self.sent.add(outcome)
        self.behaviour.add(outcome, self.rule, ruled.by_order, clip)


class Summing:
    """Adds up a run, one outcome at a time, in any order; of them only numbers and digests are kept.

    ``orders`` are those that the run judges. ``manifest`` is the run's: its ``fingerprint``, ``selection``,
    ``dataset``, ``label``, ``tags`` and ``created_at`` are repeated or make warnings. ``scoring`` is the
    rule that is applied to the stored replies, ``view`` one of :data:`otoscope.benchmark.VIEWS`.

    Raises ``ConfigError`` where the run cannot be scored by that rule.
    """

    def __init__(
        self,
        *,
        orders: Sequence[Order],
        manifest: Mapping[str, Any],
        scoring: Scoring = "default",
        view: str = "full",
    ) -> None:
        rule = Rule(scoring, orders, bool(manifest.get("unjoined")))
        if rule.unjoined and scoring == "default":
            raise ConfigError(
                "the two orders of this run could not be joined when it was imported: only --scoring "
                "official, which takes each order's mean by itself, is possible"
            )
        self._rule = rule
        self._manifest = manifest
        self._view = view
        self._tally = _Tally(rule)

    def add(self, outcome: Outcome) -> None:
        """Add one outcome; one outside of the view adds nothing."""
        if outcome.sample.task in VIEWS[self._view]:
            self._tally.add(outcome)

    def summary(self, *, skipped_lines: int = 0, outside: int = 0) -> Summary:
        """Return what all of them add up to. Raises ``ConfigError`` as the class does."""
        tally, manifest, view = self._tally, self._manifest, self._view
        scoring, orders = self._rule.scoring, self._rule.orders
        if scoring == "official" and tally.behaviour.verdicts["expected"]:
            raise ConfigError(
                "official scoring is n/a: it reads the whole numbers that a judge wrote, and this run's "
                "scores are expectations over probabilities"
            )
        cells = build_cells(tally.leaves, view=VIEWS[view])
        everything = cells.all_samples
        requested = manifest.get("fingerprint") or {}
        judge = requested.get("judge") or {}
        audio = tally.sent.summary((requested.get("prompt") or {}).get("audio_policy"))
        position = tally.behaviour.position()
        common = tally.behaviour.most_common_pair()
        headline = _headline(cells.tasks)
        flagged = {
            "count": len(tally.answers.addressing),
            "keys": sorted(tally.answers.addressing),
            "gpt_score_without": means_without_flagged(tally.leaves),
        }
        evidence = Evidence(
            manifest=manifest,
            orders=len(orders),
            cells=cells,
            headline=headline,
            flagged=flagged,
            answers=tally.answers,
            behaviour=tally.behaviour,
            audio=audio,
            position=position,
            model_names=_returned(tally.model),
            judge_names=_returned(tally.judge),
            negative=tally.negative,
            skipped_lines=skipped_lines,
            outside=outside,
        )
        return Summary(
            model=(requested.get("model") or {}).get("name", "?"),
            judge=judge.get("name"),
            label=manifest.get("label"),
            control=control_of(manifest),
            audio=audio,
            tags=manifest.get("tags") or {},
            created_at=manifest.get("created_at"),
            protocol=judge.get("protocol"),
            do_swap=len(orders) == 2,
            requested=requested,
            observed={"model": tally.model.observed(), "judge": tally.judge.observed()},
            selection=manifest.get("selection") or {},
            partial=everything.partial or lacks_shards(manifest),
            headline=headline,
            counts={
                "expected": everything.n,
                "scored": everything.scored,
                "failed": everything.failed,
                "pending": everything.pending,
                "failures": dict(sorted(tally.failures.items())),
                "failed_at": dict(sorted(tally.stages.items())),
            },
            average=cells.average,
            mixed_audio=cells.mixed_audio,
            categories=cells.categories,
            tasks=cells.tasks,
            datasets=cells.datasets,
            all_samples=everything,
            position=position,
            answers=_named(
                tally.answers.counts,
                "answered empty_answer filtered cut_at_token_limit asked_again says_it_cannot_hear "
                "other_language addresses_judge",
            ),
            flagged=flagged,
            length=tally.answers.length(),
            verdicts={
                **_named(
                    tally.behaviour.verdicts,
                    "judged failed asked_again answer_scored_0 answer_scored_10 reference_scored_0 "
                    "reference_scored_10 decimal expected",
                ),
                "most_common_pair": None if common is None else {"scores": common[0], "replies": common[1]},
            },
            usage={"model": tally.model.usage(), "judge": tally.judge.spent(_price(manifest))},
            timing={"model": tally.model.timing(), "judge": tally.judge.timing()},
            warnings=find_warnings(evidence),
            scoring=scoring,
            view=view,
        )


def summarise(
    outcomes: Iterable[Outcome],
    *,
    orders: Sequence[Order],
    manifest: Mapping[str, Any],
    skipped_lines: int = 0,
    outside: int = 0,
    scoring: Scoring = "default",
    view: str = "full",
) -> Summary:
    """Add up a run's outcomes: see :class:`Summing`."""
    summing = Summing(orders=orders, manifest=manifest, scoring=scoring, view=view)
    for outcome in outcomes:
        summing.add(outcome)
    return summing.summary(skipped_lines=skipped_lines, outside=outside)


def _price(manifest: Mapping[str, Any]) -> Price | None:
    """Return what the judge's tokens cost, as the run's settings have it."""
    return Price.from_json((manifest.get("settings") or {}).get("judge_price"))


def _headline(tasks: Iterable[str]) -> str:
    """Return which cell stands for a run of these tasks: a category or mixed_audio, where it is just that."""
    chosen = {TASKS[task].category for task in tasks}
    if len(chosen) == 1:
        return next(iter(chosen))
    return "mixed_audio" if chosen == set(MIXED_PARTS) else "average"


def _as_number(temperature: Any) -> str:
    try:
        return f"{float(temperature):g}"
    except (TypeError, ValueError):
        return str(temperature)


def _returned(calls: Calls) -> tuple[str, ...]:
    return tuple(name for name in sorted(calls.names) if name != "not named")


def _named(counts: Counter[str], names: str) -> dict[str, int]:
    return {name: int(counts[name]) for name in names.split()}


def _stored(value: Any) -> Any:
    if isinstance(value, Cell):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {name: _stored(item) for name, item in value.items()}
    return plain(value)
