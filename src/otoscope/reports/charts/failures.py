"""Why samples failed."""

from __future__ import annotations

from otoscope.reports.charts.measured import run_name
from otoscope.reports.charts.style import (
    COLUMN,
    FAILED,
    QUIET,
    SMALL,
    TEXT,
    Drawing,
    add_axes,
    blocks,
    named,
    new_figure,
    text_width,
    write,
)
from otoscope.scoring import Summary
from otoscope.texts import Catalogue

_RIGHT, _ROW, _TOP = 0.45, 0.22, 0.24
_NARROWEST = 1.0
"""Of the bars, in inches."""


def draw(summary: Summary, say: Catalogue) -> Drawing | None:
    """Draw a bar for each kind of failure, the most frequent first; ``None`` when nothing failed."""
    failures = sorted(summary.counts["failures"].items(), key=lambda entry: (-entry[1], entry[0]))
    if not failures:
        return None
    height = _TOP + len(failures) * _ROW + 0.06
    figure = new_figure(COLUMN, height)
    names = {kind: _name(kind, say) for kind, _ in failures}
    needed = max(text_width(name, TEXT) for name in names.values()) / 72 + 0.12
    left = min(needed, COLUMN - _RIGHT - _NARROWEST)
    axes = add_axes(figure, left, 0.06, COLUMN - left - _RIGHT, len(failures) * _ROW, ground=False)
    axes.set_xlim(0, failures[0][1])
    axes.set_ylim(len(failures) - 0.5, -0.5)
    for row, (kind, count) in enumerate(failures):
        bar = blocks(axes, [(0, row - 0.31, count, 0.62)], FAILED)
        named(bar, "failed", kind)
        write(axes, -0.03, row, names[kind], ha="right", va="center", beside=True)
        write(axes, count / failures[0][1] + 0.03, row, f"{count:,}", va="center", beside=True, of=kind)
    total, expected = summary.counts["failed"], summary.counts["expected"]
    of = say("chart.failures.of", failed=f"{total:,}", expected=f"{expected:,}")
    write(figure, 0.05, height - 0.14, of, size=SMALL, alpha=QUIET)
    told = "; ".join(f"{names[kind]} {count:,}" for kind, count in failures)
    return Drawing(
        "failures",
        figure,
        say("chart.failures.title", model=run_name(summary, say)),
        say("chart.failures.desc", of=of, told=told),
    )


def _name(kind: str, say: Catalogue) -> str:
    """Return a kind of failure in words."""
    name = f"failure.{kind}"
    return say(name) if name in say else kind.replace("_", " ")
