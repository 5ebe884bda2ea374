"""Local runs and published scores side by side, split by judge: a rank never crosses judges.

A local run belongs to a judge by what was asked for *and* by what the server said it was, so that two runs
under one name whose servers returned different models are never ranked together.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from otoscope.benchmark import AVERAGE_PARTS, PAPER_JUDGE, TASKS
from otoscope.errors import ConfigError, OtoscopeError, RunDirectoryError, did_you_mean
from otoscope.published import PublishedScore, published_scores
from otoscope.records import Json
from otoscope.runs import load_run
from otoscope.scoring import FORMAT, FULL_COVERAGE
from otoscope.store import ANSWERS, MANIFEST, SUMMARY, VERDICTS

LOCAL = "local"
"""The status of a run under the folder; published rows have their own."""
TEXT_COLUMNS = ("model", "label", "judge", "protocol", "scoring", "status", "source", "path")
NUMBER_COLUMNS = ("speech", "sound", "music", "mixed", "average", "scored", "failed", "pending", "n")
SORTABLE = ("rank", *NUMBER_COLUMNS, *TEXT_COLUMNS)
WHERE_FIELDS = ("model", "label", "judge", "status")
"""What ``where`` matches besides the names of tags."""

_NOT_COMPARABLE = (
    "embedded_judge", "baseline", "self_judged", "same_family", "prompt", "no_swap", "several_judges",
)  # fmt: skip
"""Warnings that a row repeats word for word, since they say with what its numbers can be compared."""
_SAID_BY_PARTIAL = ("coverage", "first_n", "outside_selection", "partial", "pending")
_NOT_NAMED = "not named"
"""How a summary counts replies that do not say which model they are from."""
_DECIMALS = 2
_MALFORMED = (AttributeError, KeyError, TypeError, ValueError)
"""What reading values of another form than expected ends in."""


class Judge(NamedTuple):
    """Whom scores come from. Rows with equal judges are ranked together, all others are not."""

    name: str
    revision: str | None = None
    observed: frozenset[str] = frozenset()
    """The names that the server returned, ``not named`` for replies without one; empty where none had any."""
    weights: str = ""
    """The files of an embedded judge, with their SHA-256, as JSON."""
    known: bool = True

    @property
    def title(self) -> str:
        """The name asked for, and whatever else sets this judge apart."""
        title = self.name if self.revision is None else f"{self.name}, revision {self.revision}"
        if self.observed == {self.name} or not self.known:
            return title
        if not self.observed:
            return f"{title} (no server said so)"
        returned = ", ".join(sorted(self.observed))
        return f"{title} ({returned})" if self.weights else f"{title} (the server says: {returned})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One run or published row. Scores are from 0 to 10; ``None`` is "not available"."""

    model: str
    label: str | None = None
    judged_by: Judge | None
    """``None`` for a run that has no judge."""
    rank: int | None = None
    """Among the rows with the same judge, whatever is shown of them; equal ones share a rank."""
    speech: float | None
    sound: float | None
    music: float | None
    mixed: float | None
    average: float | None
    ci95: tuple[float, float] | None = None
    """Of the average, over questions and clips; judge and decoding held fixed."""
    decimals: int = _DECIMALS
    """How many decimals the scores are known with at most."""
    scored: int | None = None
    failed: int | None = None
    pending: int | None = None
    n: int | None = None
    protocol: str | None
    scoring: str | None = None
    status: str
    tags: Mapping[str, str] = field(default_factory=dict)
    partial: str | None = None
    """Why the row stands apart, without a rank."""
    warnings: tuple[str, ...] = ()
    """Names of all the run's warnings."""
    note: str = ""
    source: str | None = None
    path: str | None = None

    @property
    def judge(self) -> str | None:
        """The judge's name, as asked for or as published."""
        return self.judged_by.name if self.judged_by is not None else None

    @property
    def complete(self) -> bool:
        """Whether the row has an average, over the whole set."""
        return self.partial is None


@dataclass(frozen=True, slots=True)
class Group:
    """The rows of one judge, or those that have none."""

    judge: Judge | None
    rows: tuple[Row, ...]
    """Those over the whole set, then the partial ones."""

    @property
    def title(self) -> str | None:
        """The judge in words."""
        return self.judge.title if self.judge is not None else None


@dataclass(frozen=True, slots=True)
class Leaderboard:
    """Rows split by judge, the paper's judge first."""

    groups: tuple[Group, ...]
    skipped: tuple[str, ...] = ()
    """Folders that cannot be read, each with the reason."""


def leaderboard(
    folder: str | Path | None,
    *,
    where: Sequence[tuple[str, str]] = (),
    sort: str = "rank",
) -> Leaderboard:
    """List the runs under a folder, however deep, with the published scores.

    ``where`` keeps the rows that match every pair: a tag's name or one of ``WHERE_FIELDS``, and its value;
    ranks do not depend on it. ``sort`` is one of ``SORTABLE``: numbers from the highest, ranks and texts from
    the lowest, within each judge. Broken runs are skipped and named. Without a folder there are only
    published scores.

    Raises ``ConfigError`` for an unknown column or a name that is no tag of any run, and
    ``RunDirectoryError`` when the folder does not exist.
    """
    if sort not in SORTABLE:
        raise ConfigError(
            f"--sort: there is no column {sort!r}{did_you_mean(sort, SORTABLE)}; "
            f"there are {', '.join(SORTABLE)}"
        )
    skipped: list[str] = []
    rows = [_published_row(score) for score in published_scores()]
    if folder is not None:
        rows.extend(_local_rows(Path(folder), skipped.append))
    tags = {name for row in rows for name in row.tags}
    for name, _ in where:
        if name not in tags and name not in WHERE_FIELDS:
            known = [*WHERE_FIELDS, *sorted(tags)]
            raise ConfigError(
                f"--where: no run has a tag {name!r}{did_you_mean(name, known)}; there are {', '.join(known)}"
            )
    by_judge: dict[Judge | None, list[Row]] = {}
    for row in rows:
        by_judge.setdefault(row.judged_by, []).append(row)
    groups = []
    for judge, members in by_judge.items():
        kept = [row for row in _ranked(judge, members) if all(_matches(row, *pair) for pair in where)]
        if kept:
            groups.append(Group(judge, tuple(_sorted(kept, sort))))
    return Leaderboard(tuple(sorted(groups, key=_place)), tuple(skipped))


# --- order ------------------------------------------------------------------------------------------------


def _ranked(judge: Judge | None, rows: Sequence[Row]) -> list[Row]:
    """Give every complete row of a known judge its rank, by the average as it is shown."""
    if judge is None or not judge.known:
        return list(rows)
    shown = [_shown(row) for row in rows if row.complete]
    return [
        replace(row, rank=1 + sum(other > _shown(row) for other in shown)) if row.complete else row
        for row in rows
    ]


def _shown(row: Row) -> float:
    return round(row.average or 0.0, _DECIMALS)


def _sorted(rows: Iterable[Row], column: str) -> list[Row]:
    def key(row: Row) -> tuple[Any, ...]:
        value = getattr(row, column)
        highest_first = column in NUMBER_COLUMNS
        placed = (value is None, (-value if highest_first else _folded(value)) if value is not None else 0)
        average = -row.average if row.average is not None else 0.0
        return (not row.complete, *placed, row.average is None, average, row.model, row.path or "")

    return sorted(rows, key=key)


def _folded(value: Any) -> Any:
    return value.casefold() if isinstance(value, str) else value


def _place(group: Group) -> tuple[Any, ...]:
    """Return where a group stands: the paper's judge, those of local runs, others, unknown ones, none."""
    judge = group.judge
    if judge is None:
        return (4,)
    if not judge.known:
        return (3, judge.title)
    if judge == _published_judge(PAPER_JUDGE):
        return (0,)
    return (1 if any(row.status == LOCAL for row in group.rows) else 2, judge.title)


def _matches(row: Row, name: str, value: str) -> bool:
    if row.tags.get(name) == value:
        return True
    if name == "judge" and row.judged_by is not None and value in row.judged_by.observed:
        return True
    return name in WHERE_FIELDS and getattr(row, name) == value


# --- published rows ---------------------------------------------------------------------------------------


def _published_row(score: PublishedScore) -> Row:
    return Row(
        model=score.model,
        judged_by=_published_judge(score.judge) if score.judge_known else Judge(score.judge, known=False),
        speech=score.speech,
        sound=score.sound,
        music=score.music,
        mixed=score.mixed,
        average=score.average,
        decimals=score.decimals,
        protocol=score.protocol,
        status=score.status,
        partial="no average is published" if score.average is None else None,
        note="; ".join(filter(None, (score.note, score.inconsistency))),
        source=score.source,
    )


def _published_judge(name: str) -> Judge:
    return Judge(name, observed=frozenset({name}))


# --- local runs -------------------------------------------------------------------------------------------


def _local_rows(folder: Path, skip: Callable[[str], None]) -> Iterator[Row]:
    if not folder.is_dir():
        there = "is no folder" if folder.exists() else "there is no such folder"
        raise RunDirectoryError(f"{folder}: {there}. Give the one that holds the runs, or leave it out")
    for path in _run_folders(folder, skip, set()):
        row = _local_row(path, skip)
        if row is not None:
            yield row


def _run_folders(folder: Path, skip: Callable[[str], None], seen: set[Path]) -> Iterator[Path]:
    """Yield every folder with a manifest, by name; hidden folders and those within runs are left out."""
    try:
        real = folder.resolve()
        if real in seen:  # a link to a run that was met already, or to a folder above
            return
        seen.add(real)
        if (folder / MANIFEST).is_file():
            yield folder
            return
        below = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    except (OSError, RuntimeError) as error:
        skip(f"{folder}: {getattr(error, 'strerror', None) or error}")
        return
    for path in below:
        yield from _run_folders(path, skip, seen)


def _local_row(path: Path, skip: Callable[[str], None]) -> Row | None:
    try:
        return _row_of(path)
    except OtoscopeError as error:
        skip(str(error))
    except OSError as error:
        skip(f"{path}: {error.strerror or error}")
    except _MALFORMED as error:
        skip(f"{path}: cannot be read: its files hold values of an unknown form ({error!r})")
    return None


def _row_of(path: Path) -> Row:
    """Return the row of a run: from its summary where that is current, else from its lines."""
    stored = _current_summary(path)
    if stored is not None:
        # Where it was edited by hand, the lines still have everything.
        with contextlib.suppress(*_MALFORMED):
            return _summary_row(path, stored)
    return _summary_row(path, load_run(path).summary.to_json())


def _current_summary(path: Path) -> Json | None:
    """Return what ``summary.json`` holds, or ``None`` where it may not say what the run's lines do."""
    file = path / SUMMARY
    try:
        written = file.stat().st_mtime_ns
        inputs = [path / name for name in (MANIFEST, ANSWERS, VERDICTS)]
        # Not newer is not enough: a file system may tell times to the second only.
        if any(other.stat().st_mtime_ns >= written for other in inputs if other.exists()):
            return None
        summary = json.loads(file.read_bytes(), parse_constant=_no_constant)
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(summary, dict):
        return None
    kind = (summary.get("format"), summary.get("scoring"), summary.get("view"))
    return summary if kind == (FORMAT, "default", "full") else None


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _summary_row(path: Path, summary: Json) -> Row:
    warnings: dict[str, str] = {warning["name"]: warning["message"] for warning in summary["warnings"]}
    counts, average = summary["counts"], summary["average"]
    scores = {name: _score(cell.get("gpt_score")) for name, cell in _columns(summary).items()}
    partial = "; ".join(_why_partial(summary)) or ("no average" if average["gpt_score"] is None else None)
    return Row(
        model=str(summary["model"]),
        label=summary["label"],
        judged_by=_local_judge(summary),
        speech=scores["speech"],
        sound=scores["sound"],
        music=scores["music"],
        mixed=scores["mixed"],
        average=_score(average["gpt_score"]),
        ci95=_interval(average["ci95"]),
        scored=counts["scored"],
        failed=counts["failed"],
        pending=counts["pending"],
        n=counts["expected"],
        protocol=_protocol(summary),
        scoring=summary["scoring"],
        status=LOCAL,
        tags={str(name): str(value) for name, value in summary["tags"].items()},
        partial=partial,
        warnings=tuple(warnings),
        note="; ".join(_notes(warnings)),
        path=str(path),
    )


def _columns(summary: Json) -> dict[str, Json]:
    """Return the cells that the average is the mean of; an empty one where the run has none."""
    categories = summary["categories"]
    cells = {name: categories.get(name) or {} for name in AVERAGE_PARTS if name != "mixed_audio"}
    return {**cells, "mixed": summary["mixed_audio"]}


def _local_judge(summary: Json) -> Judge | None:
    requested = summary["fingerprint"]["requested"].get("judge")
    if not requested:
        return None
    names = frozenset(map(str, summary["fingerprint"]["observed"]["judge"]["names"]))
    weights = requested.get("weights")
    return Judge(
        str(requested["name"]),
        requested.get("revision"),
        names if names != {_NOT_NAMED} else frozenset(),
        json.dumps(weights, sort_keys=True) if weights else "",
    )


def _protocol(summary: Json) -> str | None:
    protocol = summary["protocol"]
    return protocol if protocol is None or summary["do_swap"] else f"{protocol}, one order only"


def _why_partial(summary: Json) -> Iterator[str]:
    counts, tasks = summary["counts"], summary["tasks"]
    if summary["judge"] is None:
        yield "not judged"
    elif counts["pending"]:
        yield f"{counts['pending']:,} of {counts['expected']:,} samples are pending"
    if any(tasks.get(name, {}).get("n") != task.samples for name, task in TASKS.items()):
        yield ", ".join(_selected(summary))
    for name, cell in _columns(summary).items():
        if cell.get("failed") and cell["scored"] < FULL_COVERAGE * (cell["scored"] + cell["failed"]):
            yield f"{cell['failed']:,} of {cell['n']:,} samples failed in {name}"


def _selected(summary: Json) -> Iterator[str]:
    """Yield how a run's samples differ from the full set."""
    full = sum(task.samples for task in TASKS.values())
    yield f"{summary['counts']['expected']:,} samples where the full set has {full:,}"
    if len(summary["tasks"]) < len(TASKS):
        yield f"{len(summary['tasks'])} of {len(TASKS)} tasks"
    if (limit := summary["selection"].get("limit")) is not None:
        yield f"limit {limit}"


def _notes(warnings: Mapping[str, str]) -> Iterator[str]:
    yield from (warnings[name] for name in _NOT_COMPARABLE if name in warnings)
    rest = [name for name in warnings if name not in (*_NOT_COMPARABLE, *_SAID_BY_PARTIAL)]
    if rest:
        yield f"its report warns of: {', '.join(rest)}"


def _score(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise TypeError(f"{value!r} is no score")
    return float(value)


def _interval(value: Any) -> tuple[float, float] | None:
    if value is None:
        return None
    low, high = (_score(end) for end in value)
    return None if low is None or high is None else (low, high)
