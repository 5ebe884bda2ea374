"""Outcomes -> Summary: every number that a run prints.

The paper's means (AIR-Bench, ACL 2024): a category pools its samples, ``mixed_audio`` is the mean of the
two mixed categories, and the average is the mean of speech, sound, music and mixed audio. A sample whose
verdict is incomplete is failed: it is counted, and never enters a mean as 0 or as half a verdict.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

from otoscope.benchmark import (
    AVERAGE_PARTS,
    BENCHMARK,
    CATEGORIES,
    MIXED_PARTS,
    SCORE_MAX,
    SCORE_MIN,
    TASK_GROUPS,
    TASKS,
)
from otoscope.records import Answer, Failure, Json, Order, Outcome, Reply, Verdict

FORMAT = 1
FULL_COVERAGE = 0.99
"""Under this share of scored samples, a mean is shown with its lower bound."""
BLANK_SHARE = 0.01

Status = Literal["scored", "failed", "pending"]


@dataclass(frozen=True, slots=True)
class SampleResult:
    """One sample's numbers: means over the orders judged, each score from 0 to 10."""

    status: Status
    gpt_score: float | None = None
    reference_score: float | None = None
    failure: Failure | None = None
    stage: Literal["answer", "verdict"] | None = None
    """Where a failed sample failed."""

    @property
    def result(self) -> Literal["win", "tie", "loss"] | None:
        """Whether the model's answer scored above, like, or below the reference."""
        if self.gpt_score is None or self.reference_score is None:
            return None
        # Binary fractions: (8.1 + 8.2) / 2 and (8.3 + 8.0) / 2 differ in the last bit, and are a tie.
        lead = round(self.gpt_score - self.reference_score, 9)
        if not lead:
            return "tie"
        return "win" if lead > 0 else "loss"


def sample_result(outcome: Outcome, orders: Sequence[Order]) -> SampleResult:
    """Score one sample over the orders that its run judges.

    Failed when the answer or the verdict of any order failed; else pending while anything is missing.
    """
    if outcome.answer is None:
        return SampleResult("pending")
    if isinstance(outcome.answer, Failure):
        return SampleResult("failed", failure=outcome.answer, stage="answer")
    verdicts = [outcome.verdicts.get(order) for order in orders]
    for verdict in verdicts:
        if isinstance(verdict, Failure):
            return SampleResult("failed", failure=verdict, stage="verdict")
    complete = [verdict for verdict in verdicts if isinstance(verdict, Verdict)]
    if not complete or len(complete) < len(orders):
        return SampleResult("pending")
    return SampleResult(
        "scored",
        _mean([verdict.answer_score for verdict in complete]),
        _mean([verdict.reference_score for verdict in complete]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """The numbers of one group of samples. ``None`` is "not available".

    Scores are from 0 to 10, rates from 0 to 1. ``bounds`` are ``gpt_score`` with failed samples counted as
    0 and as 10. ``gpt_score_full_weights`` is the mean of the task means, each weighted by the task's size
    in the full set. Raises ``AssertionError`` when the counts do not add up.
    """

    n: int
    scored: int
    failed: int
    pending: int
    gpt_score: float | None = None
    ci95: tuple[float, float] | None = None
    reference_score: float | None = None
    win_rate: float | None = None
    tie_rate: float | None = None
    loss_rate: float | None = None
    bounds: tuple[float, float] | None = None
    partial: bool = False
    """Whether the tasks' shares of the scored samples differ from the full set's."""
    gpt_score_full_weights: float | None = None

    def __post_init__(self) -> None:
        if self.scored + self.failed + self.pending != self.n:
            raise AssertionError(
                f"{self.scored} scored + {self.failed} failed + {self.pending} pending != {self.n}"
            )

    @property
    def coverage(self) -> float:
        """Share of the samples that were scored."""
        return self.scored / self.n if self.n else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """All numbers of a run; what reporters read and ``summary.json`` holds."""

    model: str
    judge: str | None
    label: str | None
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
    verdicts: Mapping[str, int]
    usage: Mapping[str, Any]
    timing: Mapping[str, Any]
    warnings: Sequence[Mapping[str, str]]
    scoring: str = "default"
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

    def to_json(self) -> Json:
        """Return the content of ``summary.json``: plain JSON values, n/a as ``null``, never NaN."""
        stored: Json = {"format": FORMAT, "benchmark": BENCHMARK}
        for name in ("model", "judge", "label", "tags", "created_at", "scoring", "protocol", "do_swap"):
            stored[name] = _plain(getattr(self, name))
        stored["fingerprint"] = _plain({"requested": self.requested, "observed": self.observed})
        for f in fields(self):
            if f.name not in ("requested", "observed"):
                stored.setdefault(f.name, _plain(getattr(self, f.name)))
        return stored


@dataclass(slots=True)
class _Leaf:
    """The samples of one task and source dataset."""

    scores: list[float] = field(default_factory=list)
    references: list[float] = field(default_factory=list)
    results: Counter[str] = field(default_factory=Counter)
    failed: int = 0
    pending: int = 0

    def add(self, result: SampleResult) -> None:
        if result.status == "failed":
            self.failed += 1
        elif result.gpt_score is None or result.reference_score is None:
            self.pending += 1
        else:
            self.scores.append(result.gpt_score)
            self.references.append(result.reference_score)
            self.results[str(result.result)] += 1


@dataclass(slots=True)
class _Calls:
    """What one endpoint's replies add up to."""

    replies: int = 0
    tokens: Counter[str] = field(default_factory=Counter)
    names: Counter[str] = field(default_factory=Counter)
    endpoints: Counter[str] = field(default_factory=Counter)
    parameters: Counter[str] = field(default_factory=Counter)
    """As JSON with sorted keys, so that it does not matter which reply came first."""
    latencies: list[float] = field(default_factory=list)
    first: float = math.inf
    last: float = -math.inf

    def add(self, replies: Iterable[Reply]) -> None:
        for reply in replies:
            self.replies += 1
            for name in ("prompt_tokens", "completion_tokens"):
                value = (reply.usage or {}).get(name)
                self.tokens[name] += value if isinstance(value, int) else 0
            self.names[reply.model or "not named"] += 1
            self.endpoints[reply.endpoint or "?"] += 1
            self.parameters[json.dumps(_plain(reply.parameters), sort_keys=True)] += 1
            self.latencies.append(reply.latency)
            self.first = min(self.first, reply.started_at)
            self.last = max(self.last, reply.started_at + reply.latency)

    def observed(self) -> Json:
        return {
            "names": dict(sorted(self.names.items())),
            "endpoints": dict(sorted(self.endpoints.items())),
            "parameters": [
                {"sent": json.loads(sent), "replies": count}
                for sent, count in sorted(self.parameters.items(), key=lambda entry: (-entry[1], entry[0]))
            ],
        }

    def usage(self) -> Json:
        return {
            "replies": self.replies,
            **{n: self.tokens[n] for n in ("prompt_tokens", "completion_tokens")},
        }

    def timing(self) -> Json | None:
        if not self.replies:
            return None
        return {
            "mean_latency": round(_mean(self.latencies), 4),
            "total_latency": round(math.fsum(self.latencies), 3),
            "first_at": self.first,
            "last_at": round(self.last, 3),
        }


@dataclass(slots=True)
class _Tally:
    """One pass over the outcomes."""

    orders: Sequence[Order]
    leaves: dict[tuple[str, str], _Leaf] = field(default_factory=dict)
    failures: Counter[str] = field(default_factory=Counter)
    stages: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)
    model: _Calls = field(default_factory=_Calls)
    judge: _Calls = field(default_factory=_Calls)
    by_order: dict[Order, list[tuple[float, float]]] = field(default_factory=dict)
    disagreements: int = 0
    pairs: int = 0
    greedy: int = 0
    """Scored samples of which every verdict also says which whole scores were the most probable."""
    greedy_ties: int = 0

    def add(self, outcome: Outcome) -> None:
        result = sample_result(outcome, self.orders)
        leaf = self.leaves.setdefault((outcome.sample.task, outcome.sample.dataset), _Leaf())
        leaf.add(result)
        if result.failure is not None:
            self.failures[result.failure.kind.value] += 1
            self.stages[str(result.stage)] += 1
        self.model.add(outcome.superseded)
        if outcome.answer is not None:
            self.model.add(outcome.answer.replies)
        if isinstance(outcome.answer, Answer):
            self._add_answer(outcome.answer)
        for verdict in outcome.verdicts.values():
            self.judge.add(verdict.replies)
            self._add_verdict(verdict)
        if result.status == "scored":
            self._add_orders([outcome.verdicts[order] for order in self.orders])

    def _add_answer(self, answer: Answer) -> None:
        last = answer.replies[-1] if answer.replies else None
        self.answers["answered"] += 1
        self.answers["empty_answer"] += answer.blank
        self.answers["filtered"] += answer.filtered
        self.answers["cut_at_token_limit"] += last is not None and last.finish_reason == "length"
        self.answers["asked_again"] += len(answer.replies) > 1

    def _add_verdict(self, verdict: Verdict | Failure) -> None:
        self.verdicts["asked_again"] += len(verdict.replies) > 1
        if isinstance(verdict, Failure):
            self.verdicts["failed"] += 1
            return
        self.verdicts["judged"] += 1
        self.verdicts["answer_scored_0"] += verdict.answer_score == SCORE_MIN
        self.verdicts["answer_scored_10"] += verdict.answer_score == SCORE_MAX
        self.verdicts["decimal"] += verdict.score_kind == "decimal"

    def _add_orders(self, verdicts: Sequence[Verdict | Failure]) -> None:
        winners = []
        for verdict in verdicts:
            if isinstance(verdict, Verdict):
                scores = (verdict.answer_score, verdict.reference_score)
                self.by_order.setdefault(verdict.order, []).append(scores)
                winners.append((scores[0] > scores[1]) - (scores[0] < scores[1]))
        if len(winners) == 2:
            self.pairs += 1
            self.disagreements += winners[0] != winners[1]
        given = [v.probabilities for v in verdicts if isinstance(v, Verdict) and v.probabilities is not None]
        if len(given) == len(verdicts):
            self.greedy += 1
            # Whole numbers over the same orders: their sums tie where their means do.
            sums = (sum(one[f"{role}_greedy"] for one in given) for role in ("answer", "reference"))
            self.greedy_ties += next(sums) == next(sums)


def summarise(
    outcomes: Iterable[Outcome],
    *,
    orders: Sequence[Order],
    manifest: Mapping[str, Any],
    skipped_lines: int = 0,
    outside: int = 0,
) -> Summary:
    """Add up a run. ``outcomes`` are consumed one at a time, in any order; of them only numbers are kept.

    ``orders`` are those that the run judges. ``manifest`` is the run's: its ``fingerprint``, ``selection``,
    ``dataset``, ``label``, ``tags`` and ``created_at`` are repeated or make warnings.
    """
    tally = _Tally(orders)
    for outcome in outcomes:
        tally.add(outcome)
    tasks = _cells(tally.leaves, lambda leaf: leaf[0])
    pooled = _cells(tally.leaves, lambda leaf: TASKS[leaf[0]].category)
    categories = {
        name: _with_weights(pooled[name], tasks, TASK_GROUPS[name]) for name in CATEGORIES if name in pooled
    }
    mixed = _mean_of_cells([categories.get(name) for name in MIXED_PARTS])
    parts = {**categories, "mixed_audio": mixed}
    average = _mean_of_cells([parts.get(name) for name in AVERAGE_PARTS])
    everything = _with_weights(_pool(tally.leaves.values()), tasks, TASKS)
    requested = manifest.get("fingerprint") or {}
    judge = requested.get("judge") or {}
    selection = manifest.get("selection") or {}
    chosen = tuple(task for task in TASKS if task in tasks)
    return Summary(
        model=(requested.get("model") or {}).get("name", "?"),
        judge=judge.get("name"),
        label=manifest.get("label"),
        tags=manifest.get("tags") or {},
        created_at=manifest.get("created_at"),
        protocol=judge.get("protocol"),
        do_swap=len(orders) == 2,
        requested=requested,
        observed={"model": tally.model.observed(), "judge": tally.judge.observed()},
        selection=selection,
        partial=everything.partial,
        headline=_headline(chosen),
        counts={
            "expected": everything.n,
            "scored": everything.scored,
            "failed": everything.failed,
            "pending": everything.pending,
            "failures": dict(sorted(tally.failures.items())),
            "failed_at": dict(sorted(tally.stages.items())),
        },
        average=average,
        mixed_audio=mixed,
        categories=categories,
        tasks={name: tasks[name] for name in chosen},
        datasets=_cells(tally.leaves, "/".join),
        all_samples=everything,
        position=_position(tally),
        answers=_named(tally.answers, "answered empty_answer filtered cut_at_token_limit asked_again"),
        verdicts=_named(tally.verdicts, "judged failed asked_again answer_scored_0 answer_scored_10 decimal"),
        usage={"model": tally.model.usage(), "judge": tally.judge.usage()},
        timing={"model": tally.model.timing(), "judge": tally.judge.timing()},
        warnings=_warnings(tally, everything, categories, tasks, manifest, skipped_lines, outside),
    )


def result_line(outcome: Outcome, orders: Sequence[Order]) -> Json:
    """Return the part of a ``samples.jsonl`` line that says how the sample ended: flat, for pandas."""
    result = sample_result(outcome, orders)
    answer = outcome.answer if isinstance(outcome.answer, Answer) else None
    line: Json = {
        "category": TASKS[outcome.sample.task].category,
        "status": result.status,
        "gpt_score": result.gpt_score,
        "reference_score": result.reference_score,
        "result": result.result,
        "failure": result.failure.kind.value if result.failure else None,
        "failure_message": result.failure.message if result.failure else None,
        "failure_stage": result.stage,
        "answer": answer.text if answer else None,
        "raw_answer": answer.raw_text if answer and answer.filtered else None,
        "finish_reason": answer.replies[-1].finish_reason if answer and answer.replies else None,
        "seconds": (outcome.clip or {}).get("seconds"),
        "clip_sha256": (outcome.clip or {}).get("sha256"),
    }
    for order in Order:
        verdict = outcome.verdicts.get(order)
        scored = verdict if isinstance(verdict, Verdict) else None
        line[f"answer_score_{order.value}"] = scored.answer_score if scored else None
        line[f"reference_score_{order.value}"] = scored.reference_score if scored else None
        line[f"judge_reply_{order.value}"] = verdict.replies[-1].text if verdict and verdict.replies else None
    return line


# --- cells ------------------------------------------------------------------------------------------------


def _cells(
    leaves: Mapping[tuple[str, str], _Leaf], name: Callable[[tuple[str, str]], str]
) -> dict[str, Cell]:
    groups: dict[str, list[_Leaf]] = {}
    for key in sorted(leaves):
        groups.setdefault(name(key), []).append(leaves[key])
    return {group: _pool(members) for group, members in groups.items()}


def _pool(leaves: Iterable[_Leaf]) -> Cell:
    leaves = list(leaves)
    scores = [score for leaf in leaves for score in leaf.scores]
    references = [score for leaf in leaves for score in leaf.references]
    results = sum((leaf.results for leaf in leaves), Counter[str]())
    scored = len(scores)
    failed = sum(leaf.failed for leaf in leaves)
    pending = sum(leaf.pending for leaf in leaves)
    n = scored + failed + pending
    if not scored:
        return Cell(n=n, scored=scored, failed=failed, pending=pending)
    total, ended = math.fsum(scores), scored + failed
    return Cell(
        n=n,
        scored=scored,
        failed=failed,
        pending=pending,
        gpt_score=total / scored,
        reference_score=_mean(references),
        win_rate=results["win"] / scored,
        tie_rate=results["tie"] / scored,
        loss_rate=results["loss"] / scored,
        bounds=((total + SCORE_MIN * failed) / ended, (total + SCORE_MAX * failed) / ended),
    )


def _with_weights(cell: Cell, tasks: Mapping[str, Cell], members: Iterable[str]) -> Cell:
    """Add whether the shares of the member tasks are the full set's, and the mean as if they were."""
    full = {name: TASKS[name].samples for name in members}
    size = sum(full.values())
    partial, weighted = False, []
    for name, samples in full.items():
        task = tasks.get(name)
        # Whole numbers, multiplied out: a share is equal or it is not.
        partial = partial or task is None or task.scored * size != samples * cell.scored
        if task is not None and task.gpt_score is not None:
            weighted.append(samples * task.gpt_score)
    mean = math.fsum(weighted) / size if len(weighted) == len(full) else None
    return replace(cell, partial=partial, gpt_score_full_weights=mean)


def _mean_of_cells(parts: Sequence[Cell | None]) -> Cell:
    """Return the cell whose numbers are the plain means of its parts'; n/a unless every part has one."""
    there = [part for part in parts if part is not None]
    complete = len(there) == len(parts)

    def mean(name: str) -> float | None:
        values = [getattr(part, name) for part in there]
        return _mean(values) if complete and all(value is not None for value in values) else None

    bounds = [part.bounds for part in there if part.bounds is not None]
    return Cell(
        n=sum(part.n for part in there),
        scored=sum(part.scored for part in there),
        failed=sum(part.failed for part in there),
        pending=sum(part.pending for part in there),
        gpt_score=mean("gpt_score"),
        reference_score=mean("reference_score"),
        win_rate=mean("win_rate"),
        tie_rate=mean("tie_rate"),
        loss_rate=mean("loss_rate"),
        bounds=(_mean([low for low, _ in bounds]), _mean([high for _, high in bounds]))
        if len(bounds) == len(parts)
        else None,
        partial=not complete or any(part.partial for part in there),
        gpt_score_full_weights=mean("gpt_score_full_weights"),
    )


def _headline(tasks: Sequence[str]) -> str:
    """Return which cell stands for a run of these tasks: a category or mixed_audio, where it is just that."""
    chosen = {TASKS[task].category for task in tasks}
    if len(chosen) == 1:
        return next(iter(chosen))
    return "mixed_audio" if chosen == set(MIXED_PARTS) else "average"


# --- the rest ---------------------------------------------------------------------------------------------


def _position(tally: _Tally) -> Json:
    """Return how much a place in the prompt is worth, in points, for the answer and for the reference."""
    means = {
        order: (_mean([a for a, _ in scores]), _mean([r for _, r in scores]))
        for order, scores in tally.by_order.items()
        if scores
    }
    position: Json = {
        "answer_effect": None,
        "reference_effect": None,
        "orders_disagree": None,
        "greedy_tie_rate": tally.greedy_ties / tally.greedy if tally.greedy else None,
    }
    if len(means) == 2:
        answer_first, reference_first = means[Order.ANSWER_FIRST], means[Order.REFERENCE_FIRST]
        position["answer_effect"] = answer_first[0] - reference_first[0]
        position["reference_effect"] = reference_first[1] - answer_first[1]
        position["orders_disagree"] = tally.disagreements / tally.pairs
    return position


def _warnings(
    tally: _Tally,
    everything: Cell,
    categories: Mapping[str, Cell],
    tasks: Mapping[str, Cell],
    manifest: Mapping[str, Any],
    skipped_lines: int,
    outside: int,
) -> list[dict[str, str]]:
    requested = manifest.get("fingerprint") or {}
    prompt = requested.get("prompt")
    model, judge = requested.get("model") or {}, requested.get("judge") or {}
    found: dict[str, str] = {}
    if "weights" in judge:
        found["embedded_judge"] = "the judge is the small embedded one: not comparable with published scores"
    if "weights" in model:
        found["baseline"] = (
            "the model is the baseline: a recogniser, and a language model that never hears a clip"
        )
    if "weights" in model and "weights" in judge:
        found["self_judged"] = "the baseline's answers are judged by the language model that wrote them"
    if prompt and (prompt.get("template"), prompt.get("system"), prompt.get("part_order")) != (
        "{question}",
        None,
        "audio-first",
    ):
        found["prompt"] = "the model's prompt is not the benchmark's"
    if everything.pending:
        state = "not finished; resume the run" if judge else "not judged: the run has no judge"
        found["pending"] = f"{everything.pending} of {everything.n} samples are {state}"
    ended = everything.scored + everything.failed
    if ended and everything.scored < FULL_COVERAGE * ended:
        found["coverage"] = f"{everything.failed} of {ended} samples failed; means are over the others"
    if len(tally.orders) == 1 and judge:
        found["no_swap"] = "judged in one order only (the reference first): position bias is not averaged out"
    if first := _first_of_each(tasks, manifest):
        found["first_n"] = f"first {first} of each task, not a random sample"
    if everything.partial:
        cells = [*(name for name, cell in categories.items() if cell.partial), "all_samples"]
        found["partial"] = (
            f"the tasks' shares are not the full set's ({', '.join(cells)}); gpt_score_full_weights weights "
            "them by their full sizes, where all of them are there"
        )
    names = [name for name in tally.judge.names if name != "not named"]
    if len(names) > 1:
        found["several_judges"] = (
            f"the judge's server returned several model names: {', '.join(sorted(names))}"
        )
    blank, answered = tally.answers["empty_answer"], tally.answers["answered"]
    if blank > BLANK_SHARE * answered:
        found["empty_answer"] = f"{blank} of {answered} answers are blank; they are judged as they are"
    if cut := tally.answers["cut_at_token_limit"]:
        found["cut_at_token_limit"] = f"{cut} of {answered} answers were cut at the token limit"
    if outside:
        found["outside_selection"] = (
            f"{outside} more samples of this run are answered, outside of this selection"
        )
    if skipped_lines:
        found["skipped_lines"] = f"{skipped_lines} lines of the run's files are torn or foreign and not used"
    return [{"name": name, "message": message} for name, message in found.items()]


def _first_of_each(tasks: Mapping[str, Cell], manifest: Mapping[str, Any]) -> str | None:
    """Return how much of each task a limit left, where it cut any task without shuffling it."""
    selection = manifest.get("selection") or {}
    sizes = (manifest.get("dataset") or {}).get("task_sizes") or {}
    limit = selection.get("limit")
    cut = any(cell.n < sizes.get(name, TASKS[name].samples) for name, cell in tasks.items())
    if limit is None or selection.get("shuffle") or not cut:
        return None
    return str(limit) if isinstance(limit, int) else f"{100 * limit:g} %"


def _named(counts: Counter[str], names: str) -> dict[str, int]:
    return {name: int(counts[name]) for name in names.split()}


def _mean(values: Sequence[float]) -> float:
    # fsum is exact, so that no mean depends on the order of its samples.
    return math.fsum(values) / len(values)


def _plain(value: Any) -> Any:
    if isinstance(value, Cell):
        return _plain(asdict(value))
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
