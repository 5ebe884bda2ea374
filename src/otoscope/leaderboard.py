"""Local runs and published scores side by side, split by judge: a rank never crosses judges.

A judge is more than its name: runs are ranked together only where ``compare`` would not refuse them (see
:mod:`otoscope.judge_profile`). Published scores are by the official protocol, as far as they say: they stand
with local runs of the default protocol and, once more, with those of the official one.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from otoscope.benchmark import AVERAGE_PARTS, PAPER_JUDGE, TASKS
from otoscope.choices import PROTOCOLS
from otoscope.config import JUDGE_PARAMETERS
from otoscope.errors import ConfigError, OtoscopeError, RunDirectoryError, did_you_mean
from otoscope.judge import PROMPT_SHA256
from otoscope.judge_profile import JudgeProfile, judge_profile
from otoscope.parsing import PARSER_VERSION
from otoscope.published import PublishedScore, published_scores
from otoscope.records import Json
from otoscope.runs import current_summary, load_run
from otoscope.scoring import CONTROL_WARNINGS, FULL_COVERAGE
from otoscope.store import MANIFEST

LOCAL = "local"
"""The status of a run under the folder; published rows have their own."""
TEXT_COLUMNS = ("model", "label", "control", "judge", "protocol", "scoring", "status", "source", "path")
NUMBER_COLUMNS = ("speech", "sound", "music", "mixed", "average", "scored", "failed", "pending", "n")
SORTABLE = ("rank", *NUMBER_COLUMNS, *TEXT_COLUMNS)
WHERE_FIELDS = ("model", "label", "control", "judge", "status")
"""What ``where`` matches besides the names of tags."""

_NOT_COMPARABLE = ("embedded_judge", "baseline", "self_judged", "same_family", "several_judges")
"""Warnings that a row repeats word for word, since they say with what its numbers can be compared."""
_OTHER_INPUT = ("prompt", "foreign_prompt", "audio_policy", "audio_ignored", "audio_cut")
"""Warnings that the model was not sent what the benchmark sends: such a row stands apart, for that reason."""
_SAID_ELSEWHERE = (
    *CONTROL_WARNINGS.values(), *_OTHER_INPUT, "clips_shortened", "coverage", "nothing_scored", "first_n",
    "outside_selection", "partial", "pending", "not_judged", "not_imported", "no_swap", "shard",
    "missing_shards",
)  # fmt: skip
"""Warnings that the judge's title or the reason to stand apart tells already."""
_ANY_PROTOCOL = ("official swap", "not stated")
"""Of published rows: those that are ranked with local runs, which say that they are by another."""
_NOT_NAMED = "not named"
"""How a summary counts replies that do not say which model they are from."""
_DECIMALS = 2
_MALFORMED = (AttributeError, KeyError, TypeError, ValueError)
"""What reading values of another form than expected ends in."""


@dataclass(frozen=True, slots=True)
class Judge:
    """Whom scores come from. Rows with equal judges are ranked together, all others are not."""

    profile: JudgeProfile
    title: str
    """The name, and whatever else sets this judge apart."""
    known: bool = True
    """Whether anybody says which judge it was."""
    heard: bool = True
    """Whether it replied at all."""

    @property
    def name(self) -> str:
        """The name, as asked for or as published."""
        return str(self.profile.requested["name"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One run or published row. Scores are from 0 to 10; ``None`` is "not available"."""

    model: str
    label: str | None = None
    control: str | None = None
    """What was sent in place of the clips; such a row stands apart."""
    audio_policy: str | None = None
    """``None`` where nobody tells."""
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
        """The judge's name."""
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
    rows = [_published_row(score, _published_judge(score)) for score in published_scores()]
    if folder is not None:
        rows.extend(_local_rows(Path(folder), skipped.append))
    tags = {name for row in rows for name in row.tags}
    for name, _ in where:
        if name not in tags and name not in WHERE_FIELDS:
            known = [*WHERE_FIELDS, *sorted(tags)]
            raise ConfigError(
                f"--where: no run has a tag {name!r}{did_you_mean(name, known)}; there are {', '.join(known)}"
            )
    by_judge = _by_judge(rows)
    groups = []
    for judge, members in by_judge.items():
        kept = [row for row in _ranked(judge, members) if all(_matches(row, *pair) for pair in where)]
        if kept:
            groups.append(Group(judge, tuple(_sorted(kept, sort))))
    return Leaderboard(tuple(sorted(groups, key=_place)), tuple(skipped))


def _by_judge(rows: Iterable[Row]) -> dict[Judge | None, list[Row]]:
    by_judge: dict[Judge | None, list[Row]] = {}
    unheard: list[tuple[Judge, Row]] = []
    for row in rows:
        if row.judged_by is not None and not row.judged_by.heard:
            unheard.append((row.judged_by, row))
        else:
            by_judge.setdefault(row.judged_by, []).append(row)
    for judge, row in unheard:
        by_judge.setdefault(_expected(judge, by_judge), []).append(row)
    for score in published_scores():
        official = _published_judge(score, sampled="official")
        if official in by_judge and official != _published_judge(score):
            by_judge[official].append(_published_row(score, official))
    return by_judge


def _expected(unheard: Judge, judges: Iterable[Judge | None]) -> Judge:
    """Return the judge that a run without a reply asked for: one that was asked alike, and is called so."""
    alike = [
        judge
        for judge in judges
        if judge is not None and replace(judge.profile, names=frozenset()) == unheard.profile
    ]
    return min(alike, key=lambda judge: judge.profile.names != {judge.name}, default=unheard)


# --- judges -----------------------------------------------------------------------------------------------

_USUAL: Json = {
    "protocol": "default",
    "do_swap": True,
    "prompt_sha256": PROMPT_SHA256,
    "parser_version": PARSER_VERSION,
}
"""What is requested of a judge beside its name, unless somebody wishes otherwise."""


def _title(profile: JudgeProfile, *, heard: bool = True) -> str:
    name = profile.requested["name"]
    title = ", ".join([name, *_ways(profile)])
    if weights := profile.requested.get("weights"):
        return f"{title} ({', '.join(sorted(weights))})"
    if not heard or profile.names == {name}:
        return title
    if not profile.names:
        return f"{title} (no server said so)"
    return f"{title} (the server says: {', '.join(sorted(profile.names))})"


def _ways(profile: JudgeProfile) -> Iterator[str]:
    """Yield in what a judge was asked, sampled or read otherwise than usual."""
    asked = profile.requested
    other = {name: asked.get(name) for name in (*_USUAL, *asked) if asked.get(name) != _USUAL.get(name)}
    if "revision" in other:
        yield f"revision {other['revision']}"
    if asked.get("do_swap") is False:
        yield "one order only"
    protocol = asked.get("protocol")
    if "protocol" in other:
        yield f"{protocol} protocol" if protocol in PROTOCOLS else str(protocol or "protocol not known")
    yield from _sampling(profile.parameters, JUDGE_PARAMETERS.get(str(protocol), {}))
    if "prompt_sha256" in other:
        yield f"prompt {str(asked['prompt_sha256'])[:8] if 'prompt_sha256' in asked else 'not known'}"
    if "parser_version" in other:
        yield f"parser version {asked.get('parser_version', 'not known')}"
    if profile.score_kinds != {"expected" if "weights" in asked else "written"}:
        yield f"{' and '.join(sorted(profile.score_kinds))} scores"
    for name in sorted(other.keys() - _USUAL.keys() - {"name", "revision", "weights"}):
        yield f"{name} {json.dumps(asked[name], sort_keys=True)}"


def _sampling(sent: Sequence[Json], usual: Mapping[str, Any]) -> Iterator[str]:
    """Yield what was sent beside what the protocol sends, token limits aside."""
    expected = {name: value for name, value in usual.items() if "token" not in name}
    if len(sent) > 1:
        yield " or ".join(
            ", ".join(f"{name} {json.dumps(value)}" for name, value in one.items()) or "no parameters"
            for one in sent
        )
    for one in sent if len(sent) == 1 else ():
        for name in sorted({*one, *expected}):
            if name not in one:
                yield f"{name} left to the server"
            elif name not in expected or one[name] != expected[name]:
                yield f"{name} {json.dumps(one[name])}"


def _published_judge(score: PublishedScore, *, sampled: str = "default") -> Judge:
    """Return the judge of a published row, for local runs that sampled theirs by a protocol.

    What the row says of its protocol counts where it is neither the official script's nor unknown.
    """
    other = score.judge_known and score.protocol not in _ANY_PROTOCOL
    protocol = score.protocol if other else sampled
    profile = judge_profile(
        {**_USUAL, "name": score.judge, "protocol": protocol, "parameters": JUDGE_PARAMETERS.get(protocol)},
        names={score.judge},
        sent=(),
        score_kinds=(),
    )
    return Judge(profile, _title(profile) if score.judge_known else score.judge, known=score.judge_known)


def published_judge(summary: Json) -> str | None:
    """Return the judge of published scores that a run is ranked with, by its summary, if there is one."""
    judge = _local_judge(summary)
    for score in published_scores():
        if score.judge_known and judge in {
            _published_judge(score, sampled=protocol) for protocol in PROTOCOLS
        }:
            return score.judge
    return None


def _local_judge(summary: Json) -> Judge | None:
    requested, observed = (summary["fingerprint"][name].get("judge") for name in ("requested", "observed"))
    if not requested:
        return None
    verdicts = summary["verdicts"]
    kinds = {"expected": verdicts["expected"], "written": verdicts["judged"] - verdicts["expected"]}
    profile = judge_profile(
        {**requested, "name": str(requested["name"])},
        names={str(name) for name in observed["names"] if name != _NOT_NAMED},
        sent=[one["sent"] for one in observed["parameters"]],
        score_kinds=[kind for kind, count in kinds.items() if count],
    )
    heard = bool(observed["names"])
    return Judge(profile, _title(profile, heard=heard), heard=heard)


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
    usual = judge.title == PAPER_JUDGE
    return (0 if usual else 1 if any(row.status == LOCAL for row in group.rows) else 2, judge.title)


def _matches(row: Row, name: str, value: str) -> bool:
    if row.tags.get(name) == value:
        return True
    if name == "judge" and row.judged_by is not None and value in row.judged_by.profile.names:
        return True
    return name in WHERE_FIELDS and getattr(row, name) == value


# --- published rows ---------------------------------------------------------------------------------------


def _published_row(score: PublishedScore, judge: Judge) -> Row:
    return Row(
        model=score.model,
        judged_by=judge,
        speech=score.speech,
        sound=score.sound,
        music=score.music,
        mixed=score.mixed,
        average=score.average,
        decimals=score.decimals,
        protocol=score.protocol,
        status=score.status,
        partial=score.partial or ("no average is published" if score.average is None else None),
        note="; ".join(filter(None, (score.note, score.inconsistency))),
        source=score.source,
    )


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
    stored = current_summary(path)
    if stored is not None:
        # Where it was edited by hand, the lines still have everything.
        with contextlib.suppress(*_MALFORMED):
            return _summary_row(path, stored)
    return _summary_row(path, load_run(path).summary.to_json())


def _summary_row(path: Path, summary: Json) -> Row:
    warnings: dict[str, str] = {warning["name"]: warning["message"] for warning in summary["warnings"]}
    counts, average = summary["counts"], summary["average"]
    scores = {name: _score(cell.get("gpt_score")) for name, cell in _columns(summary).items()}
    partial = "; ".join(_why_partial(summary, warnings)) or (
        "no average" if average["gpt_score"] is None else None
    )
    return Row(
        model=str(summary["model"]),
        label=summary["label"],
        control=summary.get("control"),
        audio_policy=_audio_policy(summary),
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


def _protocol(summary: Json) -> str | None:
    protocol = summary["protocol"]
    return protocol if protocol is None or summary["do_swap"] else f"{protocol}, one order only"


def _why_partial(summary: Json, warnings: Mapping[str, str]) -> Iterator[str]:
    counts, tasks = summary["counts"], summary["tasks"]
    yield from (warnings[name] for name in CONTROL_WARNINGS.values() if name in warnings)
    if summary["judge"] is None:
        yield "not judged"
    elif counts["pending"]:
        yield f"{counts['pending']:,} of {counts['expected']:,} samples are pending"
    if any(tasks.get(name, {}).get("n") != task.samples for name, task in TASKS.items()):
        yield ", ".join(_selected(summary))
    for name, cell in _columns(summary).items():
        if cell.get("failed") and cell["scored"] < FULL_COVERAGE * (cell["scored"] + cell["failed"]):
            yield f"{cell['failed']:,} of {cell['n']:,} samples failed in {name}"
    yield from (warnings[name] for name in _OTHER_INPUT if name in warnings)


def _audio_policy(summary: Json) -> str | None:
    policy = (summary["fingerprint"]["requested"].get("prompt") or {}).get("audio_policy")
    return None if policy is None else str(policy)


def _selected(summary: Json) -> Iterator[str]:
    """Yield how a run's samples differ from the full set."""
    full = sum(task.samples for task in TASKS.values())
    yield f"{summary['counts']['expected']:,} samples where the full set has {full:,}"
    if len(summary["tasks"]) < len(TASKS):
        yield f"{len(summary['tasks'])} of {len(TASKS)} tasks"
    if (limit := summary["selection"].get("limit")) is not None:
        yield f"limit {limit}"
    if (shard := summary["selection"].get("shard")) is not None:
        yield f"shard {shard}"
    if missing := summary["selection"].get("missing_shards"):
        yield f"without shard {', '.join(map(str, missing))}"


def _notes(warnings: Mapping[str, str]) -> Iterator[str]:
    yield from (warnings[name] for name in _NOT_COMPARABLE if name in warnings)
    rest = [name for name in warnings if name not in (*_NOT_COMPARABLE, *_SAID_ELSEWHERE)]
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
