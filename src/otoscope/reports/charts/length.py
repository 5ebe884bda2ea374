"""Whether longer answers score higher."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from otoscope.benchmark import SCORE_MAX, SCORE_MIN
from otoscope.reports.charts.measured import Length, Measured, run_name
from otoscope.reports.charts.style import (
    ANSWER,
    COLUMN,
    INK,
    LINE,
    MARK,
    QUIET,
    SMALL,
    Box,
    Drawing,
    LogScale,
    add_axes,
    blocks,
    named,
    new_figure,
    set_ticks,
    signed,
    whisker,
    write,
)
from otoscope.scoring import Summary
from otoscope.scoring.samples import mean
from otoscope.stats import Stratum, estimate
from otoscope.texts import Catalogue

_HEIGHT, _LEFT, _RIGHT, _BOTTOM, _TOP = 2.7, 0.38, 0.08, 0.30, 0.24
_ACROSS, _SHADES = 22, 8
"""Columns of the shading, whose rows are the whole scores, and its steps."""
_GROUPS, _LEAST = 10, 25
"""Groups of answers by length, and how many answers one has at least."""


def draw(summary: Summary, measured: Measured, say: Catalogue) -> Drawing | None:
    """Draw where the answers lie, and the mean score of short to long ones; ``None`` without a score."""
    if not measured.lengths:
        return None
    scale = LogScale([float(one.characters) for one in measured.lengths])
    figure = new_figure(COLUMN, _HEIGHT)
    axes = add_axes(figure, _LEFT, _BOTTOM, COLUMN - _LEFT - _RIGHT, _HEIGHT - _BOTTOM - _TOP)
    lowest = min(SCORE_MIN, math.floor(min(one.score for one in measured.lengths)))
    axes.set_xlim(*scale.limits)
    axes.set_ylim(lowest - 0.5, SCORE_MAX + 0.5)
    for opacity, boxes in _shading(measured.lengths, scale):
        named(blocks(axes, boxes, INK, alpha=opacity), "density", f"{opacity:.2f}")
    means = []
    for number, group in enumerate(_groups(measured.lengths)):
        at = mean([scale.at(one.characters) for one in group])
        scores = [one.score for one in group]
        known = estimate([Stratum(1.0, scores, [one.clip for one in group])], low=lowest, high=SCORE_MAX)
        if known.ci95 is not None:
            whisker(axes, known.ci95, at, ANSWER, str(number), upright=True)
        means.append((at, mean(scores)))
    places = [at for at, _ in means], [score for _, score in means]
    axes.line(*places, color=ANSWER, width=LINE * 0.6, alpha=0.6)
    marks = axes.marks(*places, "o", color=ANSWER, size=MARK)
    named(marks, "mean", "length")
    ticks = scale.ticks(6)
    set_ticks(axes, "x", [scale.at(tick) for tick in ticks], [f"{tick:,}" for tick in ticks], grid=False)
    rows = range(SCORE_MIN, SCORE_MAX + 1, 2)
    set_ticks(axes, "y", rows, [str(row) for row in rows], grid=True)
    write(figure, _LEFT, _HEIGHT - 0.14, say("chart.length.y"), size=SMALL, alpha=QUIET)
    related = _correlation(summary, say)
    write(figure, COLUMN - _RIGHT, _HEIGHT - 0.14, related, ha="right", size=SMALL, alpha=QUIET)
    write(figure, (_LEFT + COLUMN - _RIGHT) / 2, 0.03, say("chart.length.x"), ha="center", size=SMALL,
          alpha=QUIET)  # fmt: skip
    return Drawing(
        "length",
        figure,
        say("chart.length.title", model=run_name(summary, say)),
        say("chart.length.desc", count=f"{len(measured.lengths):,}", groups=str(len(means)), related=related),
    )


def _shading(lengths: Sequence[Length], scale: LogScale) -> Iterator[tuple[float, list[Box]]]:
    """Yield cells of one shade: by the square root of their counts, in a few steps."""
    width = (scale.high - scale.low) / _ACROSS
    counts: dict[tuple[int, int], float] = {}
    for one in lengths:
        column, below = int((scale.at(one.characters) - scale.low) / width), math.floor(one.score)
        # A score between two rows belongs to both, to the nearer one more.
        for row, share in ((below, below + 1 - one.score), (below + 1, one.score - below)):
            if share:
                counts[column, row] = counts.get((column, row), 0) + share
    most = max(counts.values())
    shades: dict[int, list[Box]] = {}
    for (column, row), count in sorted(counts.items()):
        shade = math.ceil(_SHADES * math.sqrt(count / most))
        shades.setdefault(shade, []).append((scale.low + column * width, row - 0.5, width, 1))
    for shade, boxes in sorted(shades.items()):
        yield 0.03 + 0.21 * shade / _SHADES, boxes


def _groups(lengths: Sequence[Length]) -> Iterator[list[Length]]:
    """Yield answers by length in groups of about one size; equally long ones are never parted."""
    ordered = sorted(lengths, key=lambda one: one.characters)
    groups = max(1, min(_GROUPS, len(ordered) // _LEAST))
    start = 0
    for number in range(1, groups + 1):
        end = len(ordered) * number // groups
        while start < end < len(ordered) and ordered[end].characters == ordered[end - 1].characters:
            end += 1
        if end > start:
            yield ordered[start:end]
            start = end


def _correlation(summary: Summary, say: Catalogue) -> str:
    value, interval = summary.length.get("correlation"), summary.length.get("correlation_ci95")
    if value is None:
        return ""
    text = signed(value)
    if interval is not None:
        text += f" [{signed(interval[0])}, {signed(interval[1])}]"
    return say("chart.length.correlation", value=text)
