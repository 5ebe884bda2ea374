"""How long replies took, and how many tokens they had."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import ceil

from otoscope.reports.charts.canvas import Figure
from otoscope.reports.charts.measured import Measured, run_name
from otoscope.reports.charts.style import (
    INK,
    NOT_AVAILABLE,
    QUIET,
    SERIES,
    SMALL,
    THIN,
    WIDE,
    Drawing,
    LogScale,
    add_axes,
    blocks,
    named,
    new_figure,
    set_ticks,
    write,
)
from otoscope.reports.counts import short_count
from otoscope.scoring import Summary
from otoscope.texts import Catalogue

_HEIGHT, _LEFT, _BOTTOM = 2.02, 0.72, 0.18
_ACROSS, _UP, _PANEL, _WIDTH = 2.06, 0.92, 0.56, 1.90
"""Inches from panel to panel, and a panel's height and width."""
_BARS = 32
_COLORS = {"model": SERIES[0], "judge": SERIES[3]}


def draw(summary: Summary, measured: Measured, say: Catalogue) -> Drawing | None:
    """Draw histograms of replies; ``None`` where no server told anything.

    Rows are the model's and the judge's replies, every one that was paid for; columns are seconds, tokens in
    and tokens out, on logarithmic axes of their own.
    """
    rows = {"model": measured.model, "judge": measured.judge}
    columns = ("seconds", "prompt_tokens", "completion_tokens")
    values = {(row, column): getattr(calls, column) for row, calls in rows.items() for column in columns}
    if not any(values.values()):
        return None
    figure = new_figure(WIDE, _HEIGHT)
    told = []
    for down, row in enumerate(rows):
        bottom = _BOTTOM + (1 - down) * _UP
        write(figure, 0.05, bottom + _PANEL / 2 - 0.03, say(f"chart.timing.{row}"))
        for right, column in enumerate(columns):
            left = _LEFT + right * _ACROSS
            if down == 0:
                write(figure, left, _HEIGHT - 0.13, say(f"chart.timing.{column}"))
            text = _panel(figure, left, bottom, (row, column), values[row, column], say)
            told.append(f"{say(f'chart.timing.{row}')}, {say(f'chart.timing.{column}')}: {text}")
    return Drawing(
        "timing",
        figure,
        say("chart.timing.title", model=run_name(summary, say)),
        say("chart.timing.desc", told="; ".join(told)),
    )


def _panel(
    figure: Figure, left: float, bottom: float, what: tuple[str, str], values: Sequence[float], say: Catalogue
) -> str:
    """Draw one histogram and return its middle and its end in words."""
    row, column = what
    if not values:
        write(figure, left, bottom + _PANEL / 2 - 0.03, NOT_AVAILABLE, alpha=QUIET)
        return NOT_AVAILABLE
    # Thousandths of a second: what is 0 at the axis' beginning is then nothing that is measured.
    unit = 1000 if column == "seconds" else 1
    ordered = sorted(values)
    scale = LogScale([value * unit for value in (ordered[0], ordered[-1])])
    axes = add_axes(figure, left, bottom, _WIDTH, _PANEL)
    axes.set_xlim(*scale.limits)
    width = (scale.high - scale.low) / _BARS
    counts = Counter(int((scale.at(value * unit) - scale.low) / width) for value in values)
    most = max(counts.values())
    axes.set_ylim(0, most * 1.05)
    bars = [(scale.low + (at + 0.06) * width, 0, 0.88 * width, count) for at, count in sorted(counts.items())]
    named(blocks(axes, bars, _COLORS[row]), row, column)
    half, most_of = _at_share(ordered, 0.5), _at_share(ordered, 0.95)
    axes.line([scale.at(half * unit)] * 2, [0, most], color=INK, width=THIN)
    ticks = scale.ticks(5)
    labels = [f"{tick / unit:g}" if tick < 1000 * unit else short_count(tick // unit) for tick in ticks]
    set_ticks(axes, "x", [scale.at(tick) for tick in ticks], labels, grid=False)
    text = say("chart.timing.middle", median=_shown(half, column), most=_shown(most_of, column))
    write(figure, left, bottom + _PANEL + 0.05, text, size=SMALL, alpha=QUIET)
    return text


def _at_share(ordered: Sequence[float], share: float) -> float:
    """Return the least value that a share of the values does not exceed."""
    return ordered[max(0, ceil(share * len(ordered)) - 1)]


def _shown(value: float, column: str) -> str:
    return f"{value:.3g} s" if column == "seconds" else f"{value:,.0f}"
