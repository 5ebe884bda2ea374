"""How scores change over runs that differ in a number: a training step, a size, a temperature."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from otoscope.benchmark import AVERAGE_PARTS, SCORE_MAX, SCORE_MIN, TASKS, VIEWS
from otoscope.reports.charts.canvas import Axes, Figure, Text
from otoscope.reports.charts.categories import score_text
from otoscope.reports.charts.style import (
    INK,
    LINE,
    MARK,
    MARKERS,
    QUIET,
    SERIES,
    SMALL,
    TEXT,
    WIDE,
    Drawing,
    Entry,
    add_axes,
    foreign,
    key,
    key_mark,
    named,
    new_figure,
    set_ticks,
    stamp,
    text_width,
    whisker,
    write,
)
from otoscope.reports.reported import Reported
from otoscope.reports.told import with_control
from otoscope.scoring import FULL_COVERAGE, Cell, Summary
from otoscope.texts import Catalogue

_HEIGHT, _LEFT, _BOTTOM, _TOP = 3.0, 0.32, 0.30, 0.36
_LARGE, _SMALL, _GAP = 2.75, 1.55, 0.30
"""Widths of the Average's panel and of a category's, and the room between panels; inches."""


@dataclass(frozen=True, slots=True)
class _Point:
    x: float
    summary: Summary

    def cell(self, name: str) -> Cell | None:
        try:
            return self.summary.cell(name)
        except KeyError:
            return None


def numeric_tags(runs: Sequence[Reported]) -> list[str]:
    """Return the tags that are a number in every run, and not the same in all of them."""
    if len(runs) < 2:
        return []
    names = set.intersection(*(set(run.summary.tags) for run in runs))
    found = []
    for name in sorted(names):
        values = [_number(run.summary.tags[name]) for run in runs]
        if None not in values and len(set(values)) > 1:
            found.append(name)
    return found


def draw(runs: Sequence[Reported], tag: str, say: Catalogue) -> Drawing | None:
    """Draw the Average and its parts over a tag, for the runs in which it is a number.

    Only runs that were judged and scored alike are joined by a line. ``None`` with fewer than two different
    numbers, and where there is no score.
    """
    lines: dict[str, list[_Point]] = {}
    for run in runs:
        x = _number(run.summary.tags.get(tag))
        if x is not None:
            lines.setdefault(_likeness(run.summary), []).append(_Point(x, run.summary))
    points = [point for line in lines.values() for point in line]
    cells = [cell for point in points for name in _PANELS if (cell := point.cell(name)) is not None]
    ends = [
        end for cell in cells if cell.gpt_score is not None for end in (cell.gpt_score, *(cell.ci95 or ()))
    ]
    xs = sorted({point.x for point in points})
    if len(xs) < 2 or not ends:
        return None
    figure = new_figure(WIDE, _HEIGHT)
    limits = _limits(ends)
    for number, name in enumerate(_PANELS):
        axes = _panel(figure, number)
        axes.set_xlim(*_padded(xs))
        axes.set_ylim(*limits)
        _frame(axes, number, name, xs, limits, say)
        for place, line in enumerate(lines.values()):
            _line(axes, sorted(line, key=lambda point: point.x), name, place)
    write(figure, _LEFT + _LARGE / 2, 0.03, foreign(tag), ha="center", size=SMALL, alpha=QUIET)
    key(figure, _key(list(lines.values()), say))
    told = "; ".join(_told(point, tag, say) for point in sorted(points, key=lambda point: point.x))
    drawing = Drawing(
        "trend",
        figure,
        say("chart.trend.title", tag=foreign(tag)),
        say("chart.trend.desc", told=told, interval=say("chart.interval")),
    )
    controls = {point.summary.control for point in points}
    control = next(iter(controls)) if len(controls) == 1 else None
    return drawing if control is None else stamp(drawing, say(f"control.{control}"))


_PANELS = ("average", *AVERAGE_PARTS)


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _likeness(summary: Summary) -> str:
    """Return what must be equal for scores to be points of one line."""
    judge = summary.requested.get("judge") or {}
    names = sorted((summary.observed.get("judge") or {}).get("names") or ())
    alike = [summary.control, judge, names, summary.do_swap, summary.scoring, summary.view]
    return json.dumps(alike, sort_keys=True, default=str)


def _incomplete(summary: Summary) -> bool:
    """Return whether a run's means are not over what others' are: a part of the set, or many failed."""
    full = sum(TASKS[name].samples for name in VIEWS[summary.view])
    return bool(summary.counts["scored"] < FULL_COVERAGE * full)


def _limits(ends: Sequence[float]) -> tuple[float, float]:
    """Return the axis of scores: what is shown with some air, within the scale, and 1 point at least."""
    low, high = min(ends), max(ends)
    air = max(0.08 * (high - low), (1 - (high - low)) / 2)
    return max(low - air, min(SCORE_MIN - 0.2, low)), min(high + air, SCORE_MAX + 0.2)


def _padded(xs: Sequence[float]) -> tuple[float, float]:
    pad = 0.05 * (xs[-1] - xs[0])
    return xs[0] - pad, xs[-1] + pad


def _panel(figure: Figure, number: int) -> Axes:
    room = _HEIGHT - _BOTTOM - _TOP - 0.14
    if number == 0:
        return add_axes(figure, _LEFT, _BOTTOM, _LARGE, room)
    half = (room - _GAP) / 2
    left = _LEFT + _LARGE + _GAP + ((number - 1) % 2) * (_SMALL + 0.22)
    return add_axes(figure, left, _BOTTOM + (1 - (number - 1) // 2) * (half + _GAP), _SMALL, half)


def _frame(
    axes: Axes, number: int, name: str, xs: Sequence[float], limits: tuple[float, float], say: Catalogue
) -> None:
    span = limits[1] - limits[0]
    step = next((step for step in (0.2, 0.5, 1.0, 2.0) if span / step < 6), 5.0)
    ticks = [tick * step for tick in range(math.ceil(limits[0] / step), math.floor(limits[1] / step) + 1)]
    labels = [f"{tick:g}" if number == 0 or number % 2 else "" for tick in ticks]
    set_ticks(axes, "y", ticks, labels, grid=True)
    shown = _apart(xs, axes.width)
    labelled = number not in (1, 2)
    set_ticks(axes, "x", shown, [_written(x) if labelled else "" for x in shown], grid=False)
    above = (axes.left, axes.bottom + 1.04 * axes.height)
    axes.add(Text(place=above, text=say(f"cell.{name}"), color=INK, size=TEXT, bold=number == 0))


def _apart(xs: Sequence[float], room: float) -> list[float]:
    """Return the numbers that can be written along ``room`` points, from the last to the first."""
    low, high = _padded(xs)
    kept: list[float] = []
    free = math.inf
    for x in reversed(xs):
        at, half = room * (x - low) / (high - low), text_width(_written(x), SMALL) / 2
        if at + half < free:
            kept.append(x)
            free = at - half - SMALL / 2
    return kept


def _written(x: float) -> str:
    return f"{x:,.0f}" if x.is_integer() and abs(x) < 10**9 else f"{x:g}"


def _line(axes: Axes, line: Sequence[_Point], name: str, place: int) -> None:
    color, marker = SERIES[place % len(SERIES)], MARKERS[place % len(MARKERS)]
    known: list[tuple[_Point, Cell, float]] = []
    for point in line:
        cell = point.cell(name)
        if cell is not None and cell.gpt_score is not None:
            known.append((point, cell, cell.gpt_score))
    if not known:
        return
    if len(known) > 1:
        places = [point.x for point, _, _ in known], [score for _, _, score in known]
        joined = axes.line(*places, color=color, width=LINE * 0.6, alpha=0.6)
        named(joined, "line", name)
    for point, cell, score in known:
        if cell.ci95 is not None:
            whisker(axes, cell.ci95, point.x, color, name, upright=True)
        hollow = _incomplete(point.summary)
        mark = axes.marks([point.x], [score], marker, color=color, size=MARK * 0.8, hollow=hollow)
        named(mark, "mean", name)


def _key(lines: Sequence[Sequence[_Point]], say: Catalogue) -> list[Entry]:
    entries: list[Entry] = []
    for place, line in enumerate(lines if len(lines) > 1 else ()):
        color, marker = SERIES[place % len(SERIES)], MARKERS[place % len(MARKERS)]
        first = line[0].summary
        name = say("chart.trend.judge", judge=foreign(first.judge or "?"))
        mark = key_mark(marker, color)
        entries.append(((mark,), with_control(name, first.control, say)))
    if any(_incomplete(point.summary) for line in lines for point in line):
        hollow = key_mark("o", SERIES[0], hollow=True)
        entries.append(((hollow,), say("chart.trend.incomplete")))
    return entries


def _told(point: _Point, tag: str, say: Catalogue) -> str:
    scores: Mapping[str, Cell | None] = {name: point.cell(name) for name in _PANELS}
    cells = ", ".join(
        f"{say(f'cell.{name}')} {score_text(cell)}" for name, cell in scores.items() if cell is not None
    )
    return f"{foreign(tag)} {_written(point.x)}: {cells}"
