"""How the scores of answers and reference answers are spread."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from otoscope.benchmark import SCORE_MAX, SCORE_MIN
from otoscope.reports.charts.measured import Measured, run_name
from otoscope.reports.charts.style import (
    ANSWER,
    COLUMN,
    INK,
    NOT_AVAILABLE,
    QUIET,
    REFERENCE,
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

_HEIGHT, _LEFT, _RIGHT, _PANEL, _GAP, _BOTTOM = 2.7, 0.38, 0.08, 0.93, 0.30, 0.30


def draw(summary: Summary, measured: Measured, say: Catalogue) -> Drawing | None:
    """Draw two histograms, one above the other; ``None`` where nothing was scored."""
    if not measured.scores:
        return None
    # The mean of two whole numbers is a half at the finest.
    step = 0.5 if summary.do_swap and summary.scoring == "default" else 1.0
    shares = [_shares(scores, step) for scores in (measured.scores, measured.references)]
    highest = max(max(share.values()) for share in shares)
    lowest = min(SCORE_MIN, *(min(share) for share in shares))
    figure = new_figure(COLUMN, _HEIGHT)
    # The means are the summary's, which official scoring takes from each order's own.
    cell = summary.all_samples
    panels = (
        ("answer", ANSWER, cell.gpt_score, _BOTTOM + _PANEL + _GAP),
        ("reference", REFERENCE, cell.reference_score, _BOTTOM),
    )
    for (name, color, middle, bottom), share in zip(panels, shares, strict=True):
        axes = add_axes(figure, _LEFT, bottom, COLUMN - _LEFT - _RIGHT, _PANEL)
        axes.set_xlim(lowest - 0.5, SCORE_MAX + 0.5)
        axes.set_ylim(0, highest * 1.04)
        bars = [(place - 0.43 * step, 0, 0.86 * step, share[place]) for place in sorted(share)]
        named(blocks(axes, bars, color), "shares", name)
        if middle is not None:
            axes.line([middle, middle], [0, highest], color=INK, width=THIN)
        write(axes, 0, highest * 1.1, say(f"chart.{name}"), beside=True)
        text = _mean(middle, say)
        write(axes, 1, highest * 1.1, text, ha="right", size=SMALL, alpha=QUIET, beside=True)
        ticks = _percents(highest)
        set_ticks(axes, "y", ticks, [f"{tick:.0%}" for tick in ticks], grid=True)
        places = range(SCORE_MIN, SCORE_MAX + 1, 2)
        labels = [str(place) if name == "reference" else "" for place in places]
        set_ticks(axes, "x", places, labels, grid=False)
    middle_of_axis = (_LEFT + COLUMN - _RIGHT) / 2
    write(figure, middle_of_axis, 0.03, say("chart.score"), ha="center", size=SMALL, alpha=QUIET)
    told = "; ".join(f"{say(f'chart.{name}')}: {_mean(middle, say)}" for name, _, middle, _ in panels)
    return Drawing(
        "distribution",
        figure,
        say("chart.distribution.title", model=run_name(summary, say)),
        say("chart.distribution.desc", count=f"{len(measured.scores):,}", told=told),
    )


def _mean(value: float | None, say: Catalogue) -> str:
    return say("chart.mean", mean=NOT_AVAILABLE if value is None else f"{value:.2f}")


def _shares(scores: Sequence[float], step: float) -> dict[float, float]:
    counts = Counter(math.floor(score / step + 0.5) * step for score in scores)
    return {place: count / len(scores) for place, count in counts.items()}


def _percents(highest: float) -> list[float]:
    for step in (0.02, 0.05, 0.1, 0.2, 0.5):
        if highest / step < 4:
            break
    return [step * number for number in range(int(highest / step) + 1)]
