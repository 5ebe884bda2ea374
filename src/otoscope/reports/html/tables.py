"""The rows of the page's tables, and where a number stands in the small drawings beside them."""

from __future__ import annotations

from otoscope.benchmark import AVERAGE_PARTS, MIXED_PARTS, TASKS
from otoscope.reports.html import numbers
from otoscope.reports.html.words import Said, said
from otoscope.scoring import Cell, Summary

_Row = tuple[Said | str, Cell, str]
"""What it is called, its numbers, and its kind: ``group``, ``task`` or ``total``."""


def score_rows(summary: Summary) -> list[_Row]:
    """Return the paper's categories with their tasks, then the two means over all."""
    rows: list[_Row] = []
    for group in AVERAGE_PARTS:
        cell = summary.mixed_audio if group == "mixed_audio" else summary.categories.get(group)
        if cell is None or not cell.n:
            continue
        rows.append((said(f"cell.{group}"), cell, "group"))
        members = MIXED_PARTS if group == "mixed_audio" else (group,)
        rows.extend(
            (task, own, "task") for task, own in summary.tasks.items() if TASKS[task].category in members
        )
    rows.append((said("cell.average"), summary.average, "total"))
    rows.append((said("cell.all_samples"), summary.all_samples, "rest"))
    return rows


def source_rows(summary: Summary) -> list[tuple[str, list[tuple[str, Cell]]]]:
    """Return the source folders' numbers, by task."""
    found: dict[str, list[tuple[str, Cell]]] = {}
    for name, cell in summary.datasets.items():
        task, source = name.split("/", 1)
        found.setdefault(task, []).append((source, cell))
    return [(task, sorted(found[task], key=lambda row: row[0])) for task in TASKS if task in found]


def any_cell(summary: Summary, name: str) -> bool:
    """Whether any cell has a number of this name, or is qualified by it."""
    cells = [cell for _, cell, _ in score_rows(summary)]
    if name == "at_least":
        return any(cell.lower_bound is not None for cell in cells)
    return any(getattr(cell, name) for cell in cells)


def span(summary: Summary) -> str | None:
    """Return how long it took from the first request to the last reply."""
    timings = [timing for timing in summary.timing.values() if timing]
    if not timings:
        return None
    first, last = min(one["first_at"] for one in timings), max(one["last_at"] for one in timings)
    return numbers.duration(last - first)


def has_calls(summary: Summary, role: str) -> bool:
    """Whether the model or the judge has replied at all."""
    return bool((summary.usage.get(role) or {}).get("replies"))


def place(difference: float) -> float:
    """Return where a difference stands on a scale from -2 to +2 that is 100 wide; beyond is the end."""
    return round(25 * max(-2.0, min(2.0, difference)), 3)
