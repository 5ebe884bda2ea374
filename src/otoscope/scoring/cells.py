"""The numbers of a group of samples: a task, a source folder, a category, Mixed, the Average, all samples.

A category pools its samples; Mixed and the Average are plain means of their parts' numbers (AIR-Bench, ACL
2024). Under default scoring a row is a sample; under official scoring it is one order's reply, and a number
is the mean of the two orders' own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from otoscope.benchmark import (
    AVERAGE_PARTS,
    CATEGORIES,
    MIXED_PARTS,
    SCORE_MAX,
    SCORE_MIN,
    TASK_GROUPS,
    TASKS,
)
from otoscope.scoring.samples import mean, result_of
from otoscope.stats import Design, Estimate

Interval = tuple[float, float]
FULL_COVERAGE = 0.99
"""Under this share of scored samples, a mean is shown with its lower bound."""
SAMPLE = "sample"
"""The one pass of default scoring, in which a row is a sample's mean over its orders."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """The numbers of one group of samples. ``None`` is "not available".

    Scores are from 0 to 10, rates from 0 to 1. Intervals (95 %) and ``standard_error`` are over questions
    and clips, judge and decoding held fixed: see :class:`otoscope.stats.Design`. ``relative_score`` is
    100 x ``gpt_score`` / ``reference_score``. ``bounds`` are ``gpt_score`` with failed samples counted as 0
    and as 10. ``gpt_score_full_weights`` is the mean of the task means, each weighted by the task's size in
    the full set. Raises ``AssertionError`` when the counts do not add up.
    """

    n: int
    scored: int
    failed: int
    pending: int
    clips: int = 0
    """Number of distinct clips among the scored samples."""
    gpt_score: float | None = None
    ci95: Interval | None = None
    standard_error: float | None = None
    reference_score: float | None = None
    reference_ci95: Interval | None = None
    relative_score: float | None = None
    win_rate: float | None = None
    win_rate_ci95: Interval | None = None
    tie_rate: float | None = None
    tie_rate_ci95: Interval | None = None
    loss_rate: float | None = None
    loss_rate_ci95: Interval | None = None
    bounds: Interval | None = None
    partial: bool = False
    """Whether the tasks' shares of the scored samples differ from the full set's."""
    gpt_score_full_weights: float | None = None
    orders: Mapping[str, Mapping[str, float | None]] | None = None
    """Under official scoring, each order's own: ``n`` replies that count and ``missing`` ones, which do not;
    ``gpt_score``, ``reference_score`` and ``win_rate`` over the former."""

    def __post_init__(self) -> None:
        if self.scored + self.failed + self.pending != self.n:
            raise AssertionError(
                f"{self.scored} scored + {self.failed} failed + {self.pending} pending != {self.n}"
            )

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Cell:
        """Read a cell as ``summary.json`` has it. Raises ``TypeError`` for fields that a cell has not."""
        pairs = {name: tuple(value) for name, value in stored.items() if isinstance(value, list)}
        return cls(**{**stored, **pairs})

    @property
    def coverage(self) -> float | None:
        """Share of what ended that the mean is over: samples, or replies under official scoring."""
        if self.orders is None:
            counted, missing = float(self.scored), float(self.failed)
        else:
            counted = sum(order["n"] or 0 for order in self.orders.values())
            missing = sum(order["missing"] or 0 for order in self.orders.values())
        return counted / (counted + missing) if counted + missing else None

    @property
    def lower_bound(self) -> float | None:
        """The lower bound of a mean that is over less than 99 %: it stands beside the mean. Else ``None``."""
        if self.bounds is None or self.coverage is None or self.coverage >= FULL_COVERAGE:
            return None
        return self.bounds[0]


_COLUMNS = ("scores", "references", "wins", "ties", "losses", "clips")


@dataclass(slots=True)
class Rows:
    """Scored rows, column by column."""

    scores: list[float] = field(default_factory=list)
    references: list[float] = field(default_factory=list)
    wins: list[float] = field(default_factory=list)
    """1.0 where the row was one, else 0.0; ``ties`` and ``losses`` likewise."""
    ties: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    clips: list[str] = field(default_factory=list)
    missing: int = 0
    """Rows that there would be, had their samples not failed."""

    def add(self, score: float, reference: float, clip: str) -> None:
        """Add one row."""
        result = result_of(score, reference)
        self.scores.append(score)
        self.references.append(reference)
        self.wins.append(float(result == "win"))
        self.ties.append(float(result == "tie"))
        self.losses.append(float(result == "loss"))
        self.clips.append(clip)

    def __len__(self) -> int:
        return len(self.scores)

    def without(self, places: Collection[int]) -> Rows:
        """Return the rows but for those at some places; missing ones stay missing."""
        kept = [place for place in range(len(self)) if place not in places]
        rows = Rows(missing=self.missing)
        for name in _COLUMNS:
            column = getattr(self, name)
            setattr(rows, name, [column[place] for place in kept])
        return rows

    @classmethod
    def joined(cls, parts: Sequence[Rows]) -> Rows:
        """Return the rows of several, one after the other."""
        rows = cls(missing=sum(part.missing for part in parts))
        for part in parts:
            for name in _COLUMNS:
                getattr(rows, name).extend(getattr(part, name))
        return rows


@dataclass(slots=True)
class Leaf:
    """The samples of one task and source folder. ``passes`` holds one set of rows, or one for each order."""

    passes: Mapping[str, Rows]
    scored: int = 0
    failed: int = 0
    pending: int = 0
    flagged: dict[str, set[int]] = field(default_factory=dict)
    """By pass, the places of the rows whose answer is flagged."""

    def without_flagged(self) -> Leaf:
        """Return the leaf as it would be without the rows whose answer is flagged; its counts stay."""
        if not self.flagged:
            return self
        passes = {name: rows.without(self.flagged.get(name, ())) for name, rows in self.passes.items()}
        return replace(self, passes=passes, flagged={})


Leaves = Mapping[tuple[str, str], Leaf]
"""By task and source folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """All cells of a run."""

    average: Cell
    mixed_audio: Cell
    categories: Mapping[str, Cell]
    tasks: Mapping[str, Cell]
    datasets: Mapping[str, Cell]
    all_samples: Cell


def build_cells(leaves: Leaves, *, view: Sequence[str] = tuple(TASKS)) -> Cells:
    """Build every cell. ``view`` are the tasks of the full set that shares and weights are taken from."""
    tasks = _groups(leaves, lambda leaf: leaf[0])
    groups = _headline_groups(leaves)
    task_cells = {name: _cell(group) for name, group in tasks.items()}
    category_cells = {
        name: _with_weights(_cell(groups[name]), task_cells, _within(TASK_GROUPS[name], view))
        for name in CATEGORIES
        if name in groups
    }
    mixed_cell = _with_parts(_cell(groups["mixed_audio"]), [category_cells.get(name) for name in MIXED_PARTS])
    part_cells = {**category_cells, "mixed_audio": mixed_cell}
    return Cells(
        average=_with_parts(_cell(groups["average"]), [part_cells.get(name) for name in AVERAGE_PARTS]),
        mixed_audio=mixed_cell,
        categories=category_cells,
        tasks={name: task_cells[name] for name in TASKS if name in task_cells},
        datasets={name: _cell(group) for name, group in _groups(leaves, "/".join).items()},
        all_samples=_with_weights(_cell(groups["all_samples"]), task_cells, view),
    )


def means_without_flagged(leaves: Leaves) -> dict[str, float | None]:
    """Return what the mean scores would be without the rows whose answer is flagged.

    By cell: the categories that there are, ``mixed_audio``, ``average`` and ``all_samples``, each by the
    formula of its :class:`Cell`; ``None`` where no row is left for it.
    """
    groups = _headline_groups({key: leaf.without_flagged() for key, leaf in leaves.items()})
    return {name: _value(group, _scores) if group.known else None for name, group in groups.items()}


# --- groups of rows ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Group:
    """What a cell is computed from. ``orders`` has, for each pass, the weight and the rows of each stratum.

    Strata are tasks: each has its own mean. Weights add up to 1 in a pass.
    """

    scored: int
    failed: int
    pending: int
    orders: Mapping[str, Sequence[tuple[float, Rows]]]
    parts: Sequence[_Group] = ()
    """Of a mean of parts: those."""
    complete: bool = True
    """Whether no part is missing."""

    @property
    def known(self) -> bool:
        """Whether there are rows for every number: in each pass, and of each part."""
        return self.complete and bool(self.orders) and all(map(self.has, self.orders))

    def has(self, order: str) -> bool:
        """Whether one pass has rows, in every part."""
        if self.parts:
            return self.complete and all(part.has(order) for part in self.parts)
        return any(rows.scores for _, rows in self.orders.get(order, ()))


def _headline_groups(leaves: Leaves) -> dict[str, _Group]:
    """Return the categories, Mixed, the Average and all samples, by name."""
    categories = _groups(leaves, lambda leaf: TASKS[leaf[0]].category)
    groups = {name: categories[name] for name in CATEGORIES if name in categories}
    groups["mixed_audio"] = _mean_of([groups.get(name) for name in MIXED_PARTS])
    groups["average"] = _mean_of([groups.get(name) for name in AVERAGE_PARTS])
    groups["all_samples"] = _pooled((key, leaves[key]) for key in sorted(leaves))
    return groups


def _groups(leaves: Leaves, name: Callable[[tuple[str, str]], str]) -> dict[str, _Group]:
    members: dict[str, list[tuple[tuple[str, str], Leaf]]] = {}
    for key in sorted(leaves):
        members.setdefault(name(key), []).append((key, leaves[key]))
    return {group: _pooled(found) for group, found in members.items()}


def _pooled(members: Iterable[tuple[tuple[str, str], Leaf]]) -> _Group:
    """Pool samples: in each pass, every row has the same weight."""
    by_task: dict[str, list[Leaf]] = {}
    for (task, _), leaf in members:
        by_task.setdefault(task, []).append(leaf)
    leaves = [leaf for group in by_task.values() for leaf in group]
    orders: dict[str, list[tuple[float, Rows]]] = {}
    for name in {name: None for leaf in leaves for name in leaf.passes}:
        strata = [Rows.joined([leaf.passes[name] for leaf in group]) for group in by_task.values()]
        total = max(1, sum(len(rows.scores) for rows in strata))
        orders[name] = [(len(rows.scores) / total, rows) for rows in strata]
    return _Group(
        scored=sum(leaf.scored for leaf in leaves),
        failed=sum(leaf.failed for leaf in leaves),
        pending=sum(leaf.pending for leaf in leaves),
        orders=orders,
    )


def _mean_of(parts: Sequence[_Group | None]) -> _Group:
    """Return the group whose numbers are the plain means of its parts'; n/a unless every part has one."""
    there = [part for part in parts if part is not None]
    orders: dict[str, list[tuple[float, Rows]]] = {}
    for part in there:
        for name, strata in part.orders.items():
            weighted = [(weight / len(parts), rows) for weight, rows in strata]
            orders.setdefault(name, []).extend(weighted)
    return _Group(
        scored=sum(part.scored for part in there),
        failed=sum(part.failed for part in there),
        pending=sum(part.pending for part in there),
        orders=orders,
        parts=there,
        complete=len(there) == len(parts),
    )


# --- from a group to its numbers --------------------------------------------------------------------------

_Column = Callable[[Rows], Sequence[float]]


def _cell(group: _Group) -> Cell:
    official = bool(group.orders) and SAMPLE not in group.orders
    orders = {name: _of_one_order(group, name) for name in group.orders} if official else None
    if not group.known:
        return Cell(
            n=group.scored + group.failed + group.pending,
            scored=group.scored,
            failed=group.failed,
            pending=group.pending,
            orders=orders,
        )
    strata = _Strata(group)
    score, reference = strata.score(_scores), strata.score(_references)
    win, tie, loss = (strata.design.rate(strata.of(column)) for column in (_wins, _ties, _losses))
    gpt_score, reference_score = _value(group, _scores), _value(group, _references)
    return Cell(
        n=group.scored + group.failed + group.pending,
        scored=group.scored,
        failed=group.failed,
        pending=group.pending,
        clips=strata.design.clips,
        gpt_score=gpt_score,
        ci95=score.ci95,
        standard_error=score.standard_error,
        reference_score=reference_score,
        reference_ci95=reference.ci95,
        # A share of what is 0 but for the last bits of a binary fraction could be infinite.
        relative_score=100 * gpt_score / reference_score if round(reference_score, 9) > 0 else None,
        win_rate=_value(group, _wins),
        win_rate_ci95=win.ci95,
        tie_rate=_value(group, _ties),
        tie_rate_ci95=tie.ci95,
        loss_rate=_value(group, _losses),
        loss_rate_ci95=loss.ci95,
        bounds=(_bound(group, SCORE_MIN), _bound(group, SCORE_MAX)),
        orders=orders,
    )


def _scores(rows: Rows) -> Sequence[float]:
    return rows.scores


def _references(rows: Rows) -> Sequence[float]:
    return rows.references


def _wins(rows: Rows) -> Sequence[float]:
    return rows.wins


def _ties(rows: Rows) -> Sequence[float]:
    return rows.ties


def _losses(rows: Rows) -> Sequence[float]:
    return rows.losses


class _Strata:
    """A group's rows as strata: a task each; under official scoring a task and an order each.

    Where both orders of a task have the same rows, their means are one stratum's, as by the default rules:
    two strata of the same clips would only pretend to say more.
    """

    def __init__(self, group: _Group) -> None:
        passes = list(group.orders.values())
        weighted: list[tuple[float, Sequence[Rows]]] = []
        for of_task in zip(*passes, strict=True):
            (weight, first), *others = of_task
            if all(other == weight and rows.clips == first.clips for other, rows in others):
                weighted.append((weight, [rows for _, rows in of_task]))
            else:
                weighted += [(other / len(passes), [rows]) for other, rows in of_task]
        weighted = [(weight, alike) for weight, alike in weighted if alike[0].scores]
        self._rows = [alike for _, alike in weighted]
        self.design = Design([(weight, alike[0].clips) for weight, alike in weighted])

    def of(self, column: _Column) -> list[Sequence[float]]:
        """Return a column, stratum by stratum."""
        return [
            column(alike[0])
            if len(alike) == 1
            else [mean(row) for row in zip(*map(column, alike), strict=True)]
            for alike in self._rows
        ]

    def score(self, column: _Column) -> Estimate:
        """Return the estimate of a column of scores."""
        values = self.of(column)
        # Under official scoring negative numbers pass.
        return self.design.estimate(values, low=min(SCORE_MIN, *map(min, values)), high=SCORE_MAX)


def _value(group: _Group, column: _Column) -> float:
    """Return the mean of a column: exact for whole numbers, as adding up weighted means would not be."""
    if group.parts:
        return mean([_value(part, column) for part in group.parts])
    return mean([_mean_of_rows(strata, column) for strata in group.orders.values()])


def _mean_of_rows(strata: Sequence[tuple[float, Rows]], column: _Column) -> float:
    return mean([value for _, rows in strata for value in column(rows)])


def _bound(group: _Group, failed_as: float) -> float:
    if group.parts:
        return mean([_bound(part, failed_as) for part in group.parts])
    bounds = []
    for strata in group.orders.values():
        values = [value for _, rows in strata for value in rows.scores]
        missing = sum(rows.missing for _, rows in strata)
        bounds.append((math.fsum(values) + failed_as * missing) / (len(values) + missing))
    return mean(bounds)


def _of_one_order(group: _Group, name: str) -> dict[str, float | None]:
    one, known = _only(group, name), group.has(name)
    return {
        "n": sum(len(rows.scores) for _, rows in one.orders[name]),
        "missing": sum(rows.missing for _, rows in one.orders[name]),
        "gpt_score": _value(one, _scores) if known else None,
        "reference_score": _value(one, _references) if known else None,
        "win_rate": _value(one, _wins) if known else None,
    }


def _only(group: _Group, name: str) -> _Group:
    """Return the group as if only one order had been judged."""
    return replace(
        group,
        orders={name: group.orders.get(name, ())},
        parts=[_only(part, name) for part in group.parts],
    )


# --- shares and weights -----------------------------------------------------------------------------------


def _within(tasks: Iterable[str], view: Sequence[str]) -> list[str]:
    return [task for task in tasks if task in view]


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
    full_weights = math.fsum(weighted) / size if len(weighted) == len(full) else None
    return replace(cell, partial=partial, gpt_score_full_weights=full_weights)


def _with_parts(cell: Cell, parts: Sequence[Cell | None]) -> Cell:
    """Add the same to a mean of parts, from what its parts have."""
    there = [part for part in parts if part is not None]
    weights = [part.gpt_score_full_weights for part in there if part.gpt_score_full_weights is not None]
    complete = len(there) == len(parts)
    return replace(
        cell,
        partial=not complete or any(part.partial for part in there),
        gpt_score_full_weights=mean(weights) if len(weights) == len(parts) else None,
    )
