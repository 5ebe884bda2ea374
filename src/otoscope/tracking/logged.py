"""What of a run is told to a tracker, in names and values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from otoscope._version import __version__
from otoscope.benchmark import BENCHMARK, CATEGORIES, TASKS
from otoscope.runs import Run, newer
from otoscope.scoring import Cell
from otoscope.store import ANSWERS, MANIFEST, SAMPLES, SUMMARY, VERDICTS

_CELLS = ("average", "mixed_audio", *CATEGORIES, *TASKS, "all_samples")
_NUMBERS = (
    "gpt_score gpt_score_full_weights reference_score relative_score win_rate tie_rate loss_rate "
    "n scored failed pending"
).split()
_INTERVALS = {"gpt_score": "ci95", "win_rate": "win_rate_ci95"}
_ODD = re.compile(r"[^A-Za-z0-9_. -]")
_LONGEST_NAME = 250


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """A run as a tracker is told of it; names hold ASCII letters and digits, and ``_ . - /`` and blanks."""

    identity: Mapping[str, str]
    """By what it is found again: the run's id, and the rules that it was scored by."""
    name: str
    """For people."""
    params: Mapping[str, str]
    """What was asked of model and judge: it does not change while a run goes on."""
    tags: Mapping[str, str]
    """What may change, or belongs to the user; all but the user's own begin with ``otoscope.``."""
    metrics: Mapping[str, float]
    """``speech/gpt_score`` and the like: finite, and without what is not available."""
    not_available: frozenset[str]
    """The metrics that a run may have and this one has not."""
    summary: str
    """The content of ``summary.json`` by these rules."""
    page: Path | None
    """The report, where it is newer than what it was made from."""
    started: datetime | None
    ended: datetime
    """When the last line was written."""
    complete: bool
    """Whether no sample is pending."""


def logged(run: Run, *, page: str | None = None) -> Logged:
    """Return what a tracker is told of a run. ``page`` names the report's file in the run's folder.

    Raises ``RunDirectoryError`` where the run cannot be read.
    """
    manifest, summary = run.manifest, run.summary
    numbers = dict(_metrics(run))
    own = {_name(name): _text(value) for name, value in summary.tags.items()}
    about = {
        "benchmark": BENCHMARK,
        "version": __version__,
        "made_by": manifest.get("package_version"),
        "path": str(run.path.absolute()),
        "label": summary.label,
        "model": summary.model,
        "judge": summary.judge,
        "judge_id": manifest.get("judge_id"),
        "protocol": summary.protocol,
        "control": summary.control,
        "headline": summary.headline,
        "partial": summary.partial,
        "failures": summary.counts["failures"],
        "warnings": [warning["name"] for warning in summary.warnings],
        "dataset": (manifest.get("dataset") or {}).get("digest"),
        "selection": summary.selection,
        "setting": _settings(manifest),
        "endpoint": dict(_urls(summary.requested)),
        "tags": sorted(own),
    }
    return Logged(
        identity={
            "otoscope.run": _name(str(manifest["run_id"])),
            "otoscope.scoring": summary.scoring,
            "otoscope.view": summary.view,
        },
        name=_text(summary.label or summary.model),
        params=dict(_flat(_without_urls(summary.requested))),
        tags={**own, **dict(_flat(about, "otoscope"))},
        metrics={name: float(value) for name, value in numbers.items() if value is not None},
        not_available=frozenset(name for name, value in numbers.items() if value is None),
        summary=json.dumps(summary.to_json(), indent=1, allow_nan=False) + "\n",
        page=None if page is None else _current(run.path, page),
        started=_time(manifest.get("created_at")),
        ended=_last_written(run.path),
        complete=not summary.counts["pending"],
    )


def _metrics(run: Run) -> Iterator[tuple[str, float | None]]:
    """Yield every metric that a run may have, ``None`` where this one's is not available."""
    summary = run.summary
    for name in _CELLS:
        try:
            cell = summary.cell(name)
        except KeyError:  # none of its samples was chosen
            cell = None
        yield from ((f"{name}/{of}", value) for of, value in _of_cell(cell))
    for name in ("expected", "scored", "failed", "pending"):
        yield f"counts/{name}", summary.counts[name]
    for part in ("model", "judge"):
        for name, value in summary.usage[part].items():
            if value is None or isinstance(value, (int, float)):
                yield f"usage/{part}/{name}", value


def _of_cell(cell: Cell | None) -> Iterator[tuple[str, float | None]]:
    for name in _NUMBERS:
        yield name, getattr(cell, name, None)
    for name, interval in _INTERVALS.items():
        low, high = getattr(cell, interval, None) or (None, None)
        yield f"{name}_ci95_low", low
        yield f"{name}_ci95_high", high


def _settings(manifest: Mapping[str, Any]) -> dict[str, Any]:
    kept = manifest.get("settings") or {}
    return {name: value for name, value in kept.items() if name not in ("label", "tags")}


def _urls(requested: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for part, asked in requested.items():
        if isinstance(asked, Mapping) and asked.get("api_url"):
            yield part, asked["api_url"]


def _without_urls(requested: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fingerprint without addresses: a server may move while a run goes on."""
    return {
        part: {name: value for name, value in asked.items() if name != "api_url"}
        for part, asked in requested.items()
        if isinstance(asked, Mapping)
    }


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield the leaves of nested objects as texts, under dotted names; what is empty is left out."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flat(item, f"{name}.{key}" if name else str(key))
    elif value not in (None, "", []):
        yield _name(name), _text(value)


def _name(text: str) -> str:
    # A name that begins with a dot would be a path upwards to some trackers.
    return _ODD.sub("_", text)[:_LONGEST_NAME].strip(". ") or "_"


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    # What no database takes as text: half of a pair, and the end of a string in C.
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")


def _current(folder: Path, page: str) -> Path | None:
    made_from = [folder / name for name in (MANIFEST, ANSWERS, VERDICTS, SAMPLES, SUMMARY)]
    try:
        return folder / page if newer(folder / page, made_from) else None
    except OSError:
        return None


def _time(text: Any) -> datetime | None:
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)
    except (TypeError, ValueError):
        return None


def _last_written(folder: Path) -> datetime:
    return datetime.fromtimestamp(max(_written(folder / name for name in (ANSWERS, VERDICTS))), timezone.utc)


def _written(files: Iterable[Path]) -> Iterator[float]:
    yield from (file.stat().st_mtime for file in files if file.exists())
