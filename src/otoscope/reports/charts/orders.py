"""What the judge gave an answer in one order against what it gave it in the other."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from otoscope.benchmark import SCORE_MAX, SCORE_MIN
from otoscope.reports.charts.canvas import POINTS, Area, Figure
from otoscope.reports.charts.measured import Measured, run_name
from otoscope.reports.charts.style import (
    ANSWER,
    COLUMN,
    INK,
    QUIET,
    RULE,
    SMALL,
    THIN,
    Drawing,
    add_axes,
    blocks,
    named,
    new_figure,
    set_ticks,
    write,
)
from otoscope.scoring import Summary
from otoscope.texts import Catalogue

_HEIGHT, _LEFT, _BOTTOM, _SIDE = 2.7, 0.38, 0.30, 2.16


def draw(summary: Summary, measured: Measured, say: Catalogue) -> Drawing | None:
    """Draw a heat map of whole scores; ``None`` where no sample has both orders."""
    counts: Counter[tuple[int, int]] = Counter()
    for (reference_first, answer_first), count in measured.orders.items():
        counts[_whole(reference_first), _whole(answer_first)] += count
    if not counts:
        return None
    lowest = min(SCORE_MIN, *(score for pair in counts for score in pair))
    figure = new_figure(COLUMN, _HEIGHT)
    axes = add_axes(figure, _LEFT, _BOTTOM, _SIDE, _SIDE, ground=False)
    axes.set_xlim(lowest - 0.5, SCORE_MAX + 0.5)
    axes.set_ylim(lowest - 0.5, SCORE_MAX + 0.5)
    ends = [lowest - 0.5, SCORE_MAX + 0.5]
    axes.line(ends, ends, color=INK, alpha=RULE, width=THIN)
    most = max(counts.values())
    for (x, y), count in sorted(counts.items()):
        cell = blocks(axes, [(x - 0.46, y - 0.46, 0.92, 0.92)], ANSWER, alpha=_shade(count, most))
        named(cell, "count", f"{x},{y},{count}")
    places = range(SCORE_MIN, SCORE_MAX + 1, 2)
    for way in ("x", "y"):
        set_ticks(axes, way, places, [str(place) for place in places], grid=False)
    write(figure, _LEFT, _HEIGHT - 0.14, say("chart.orders.y"), size=SMALL, alpha=QUIET)
    write(figure, _LEFT + _SIDE / 2, 0.03, say("chart.orders.x"), ha="center", size=SMALL, alpha=QUIET)
    _scale(figure, most, say)
    total = sum(counts.values())
    sides = _sides(counts, total)
    left, top = _LEFT + _SIDE + 0.12, _BOTTOM + _SIDE - 0.12
    write(figure, left, top, say("chart.orders.answer_first"), size=SMALL, alpha=QUIET)
    for number, side in enumerate(("above", "same", "below"), 1):
        text = say(f"chart.orders.{side}", share=sides[side])
        write(figure, left, top - number * 0.15, text, size=SMALL, of=side)
    return Drawing(
        "orders",
        figure,
        say("chart.orders.title", model=run_name(summary, say)),
        say("chart.orders.desc", count=f"{total:,}", **sides),
    )


def _shade(count: int, most: int) -> float:
    """Return how opaque a count is: by its logarithm, so that single samples stay visible."""
    return min(1.0, 0.1 + 0.9 * (math.log1p(count) / math.log1p(most)))


def _whole(score: float) -> int:
    return math.floor(score + 0.5)


def _scale(figure: Figure, most: int, say: Catalogue) -> None:
    """Draw what the shades mean: a few steps, each with its count."""
    left, bottom, side = _LEFT + _SIDE + 0.12, _BOTTOM + 0.04, 0.12
    steps = [1]
    while steps[-1] * 10 < most:
        steps.append(steps[-1] * 10)
    if most > steps[-1]:
        steps.append(most)
    for number, count in enumerate(steps):
        y = bottom + number * (side + 0.05)
        corners = ((left, y), (left + side, y), (left + side, y + side), (left, y + side))
        outline = [(POINTS * right, POINTS * up) for right, up in corners]
        figure.add(Area(outlines=[outline], color=ANSWER, alpha=_shade(count, most)))
        write(figure, left + side + 0.05, y + 0.025, f"{count:,}", size=SMALL, alpha=QUIET)
    y = bottom + len(steps) * (side + 0.05) + 0.04
    write(figure, left, y, say("chart.samples"), size=SMALL, alpha=QUIET)


def _sides(counts: Mapping[tuple[int, int], int], total: int) -> dict[str, str]:
    same = sum(count for (x, y), count in counts.items() if x == y)
    above = sum(count for (x, y), count in counts.items() if y > x)
    shares = {"same": same, "above": above, "below": total - same - above}
    return {name: f"{count / total:.0%}" for name, count in shares.items()}
