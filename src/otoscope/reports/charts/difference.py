"""How compared runs differ from the baseline, cell by cell, with intervals around zero."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from otoscope.benchmark import CATEGORIES
from otoscope.comparison import CELLS, Comparison, Difference
from otoscope.reports.charts.canvas import Axes, Figure, Line
from otoscope.reports.charts.style import (
    INK,
    KEY_LINE,
    MARK,
    MARKERS,
    NOT_AVAILABLE,
    QUIET,
    RULE,
    SERIES,
    SMALL,
    THIN,
    WIDE,
    Drawing,
    Entry,
    add_axes,
    foreign,
    key,
    key_lines,
    key_mark,
    named,
    new_figure,
    set_ticks,
    signed,
    whisker,
    write,
)
from otoscope.reports.told import with_control
from otoscope.texts import Catalogue

_LEFT, _RIGHT, _TOP, _BOTTOM, _ROW, _LEAD = 1.25, 1.30, 0.12, 0.46, 0.17, 0.10
_BESIDE_CONTROL = 16
"""Characters of a name that are shown where the control stands behind it."""
_LEAST = 0.25
"""How far the axis reaches to both sides at least, in points of score."""


@dataclass(frozen=True, slots=True)
class _Series:
    letter: str
    label: str
    cells: Mapping[str, Difference | None]


def draw(comparison: Comparison, say: Catalogue) -> Drawing:
    """Draw every difference to the baseline: of models, or of two judges' scores of the same answers."""
    series = _series(comparison, say)
    known = [one for line in series for one in line.cells.values() if one is not None]
    ends = [abs(end) for one in known for end in (one.value, *(one.ci95 or ()))]
    reach = max([_LEAST, *ends]) * 1.06
    row = _ROW * len(series) + _LEAD
    entries = _key(series) if len(series) > 1 else []
    top = _TOP + (0.10 + KEY_LINE * key_lines(entries) if entries else 0)
    height = top + _BOTTOM + len(CELLS) * row
    figure = new_figure(WIDE, height)
    axes = add_axes(figure, _LEFT, _BOTTOM, WIDE - _LEFT - _RIGHT, len(CELLS) * row)
    axes.set_xlim(-reach, reach)
    axes.set_ylim(len(CELLS) - 0.5, -0.5)
    ticks = _ticks(reach)
    set_ticks(axes, "x", ticks, [signed(tick).rstrip("0").rstrip(".") or "0" for tick in ticks], grid=True)
    middle, below = axes.x_at(0), axes.y_at(len(CATEGORIES) - 0.5)
    upright = [(middle, axes.bottom), (middle, axes.bottom + axes.height)]
    across = [(axes.left, below), (axes.left + axes.width, below)]
    axes.add(Line(pieces=[upright], color=INK, alpha=RULE, width=THIN * 1.5))
    axes.add(Line(pieces=[across], color=INK, alpha=RULE, width=THIN))
    for place, cell in enumerate(CELLS):
        bold = cell == comparison.headline
        write(axes, -0.03, place, say(f"cell.{cell}"), ha="right", va="center", bold=bold, beside=True)
        for number, line in enumerate(series):
            at = place + (number - (len(series) - 1) / 2) * _ROW / row
            _mark(axes, at, number, f"{line.letter}-{cell}", line.cells.get(cell), bold, say)
    baseline = _named_run(comparison, comparison.baseline, say)
    others = [run.letter for run in comparison.runs if run.letter != comparison.baseline]
    other = _named_run(comparison, others[0], say) if len(others) == 1 else say("chart.difference.the_other")
    _directions(figure, baseline, other, say)
    key(figure, entries)
    told = "; ".join(f"{line.label}: {_told(line, say)}" for line in series)
    return Drawing(
        "difference",
        figure,
        say("chart.difference.title", baseline=baseline),
        say(
            "chart.difference.desc",
            samples=f"{comparison.samples:,}",
            told=told,
            interval=say("chart.interval"),
        ),
    )


def _named_run(comparison: Comparison, letter: str, say: Catalogue) -> str:
    """Return a run's letter with what it is compared as: a model, or a judge."""
    run = comparison.run(letter)
    name = (run.label or run.model) if comparison.kind == "models" else run.judge
    shown = foreign(name) if run.control is None else foreign(name, _BESIDE_CONTROL)
    return f"{letter} ({with_control(shown, run.control, say)})"


def _series(comparison: Comparison, say: Catalogue) -> list[_Series]:
    found = []
    for model in comparison.models:
        label = _named_run(comparison, model.run, say)
        found.append(_Series(model.run, label, {name: cell.gpt_score for name, cell in model.cells.items()}))
    for judge in comparison.judges:
        label = _named_run(comparison, judge.run, say)
        answers = {name: cell.gpt_score for name, cell in judge.cells.items()}
        references = {name: cell.reference_score for name, cell in judge.cells.items()}
        for whose, cells in (("answer", answers), ("reference", references)):
            found.append(_Series(f"{judge.run}-{whose}", f"{label}, {say(f'chart.{whose}')}", cells))
    return found


def _key(series: Sequence[_Series]) -> list[Entry]:
    looks = zip(series, SERIES * len(series), MARKERS * len(series), strict=False)
    return [((key_mark(mark, color),), line.label) for line, color, mark in looks]


def _mark(
    axes: Axes, at: float, number: int, name: str, one: Difference | None, bold: bool, say: Catalogue
) -> None:
    color, marker = SERIES[number % len(SERIES)], MARKERS[number % len(MARKERS)]
    if one is None:
        write(axes, 1.03, at, NOT_AVAILABLE, va="center", size=SMALL, alpha=QUIET, beside=True, of=name)
        return
    if one.ci95 is not None:
        whisker(axes, one.ci95, at, color, name)
    mark = axes.marks([one.value], [at], marker, color=color, size=MARK, hollow=one.identical)
    named(mark, "difference", name)
    text = _text(one, say)
    write(axes, 1.03, at, text, va="center", size=SMALL, bold=bold, beside=True, of=name)


def _directions(figure: Figure, baseline: str, other: str, say: Catalogue) -> None:
    middle = _LEFT + (WIDE - _LEFT - _RIGHT) / 2
    left = say("chart.difference.lower", run=baseline)
    right = say("chart.difference.higher", run=other)
    write(figure, middle - 0.1, 0.16, left, ha="right", size=SMALL, alpha=QUIET)
    write(figure, middle + 0.1, 0.16, right, size=SMALL, alpha=QUIET)
    write(figure, middle, 0.03, say("chart.difference.x"), ha="center", size=SMALL, alpha=QUIET)


def _ticks(reach: float) -> list[float]:
    for step in (0.1, 0.2, 0.5, 1.0, 2.0, 5.0):
        if reach / step < 4:
            break
    count = int(reach / step)
    return [number * step for number in range(-count, count + 1)]


def _text(one: Difference, say: Catalogue) -> str:
    """Return a difference with its interval."""
    if one.identical:
        return say("chart.difference.identical")
    if one.ci95 is None:
        return signed(one.value)
    return f"{signed(one.value)} [{signed(one.ci95[0])}, {signed(one.ci95[1])}]"


def _told(line: _Series, say: Catalogue) -> str:
    cells = ((name, line.cells.get(name)) for name in CELLS)
    return ", ".join(
        f"{say(f'cell.{name}')} {NOT_AVAILABLE if one is None else _text(one, say)}" for name, one in cells
    )
