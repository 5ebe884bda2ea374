"""Where a run stands: each category with its interval, the reference answers, and what others published."""

from __future__ import annotations

from collections.abc import Sequence

from otoscope.benchmark import SCORE_MAX, SCORE_MIN
from otoscope.leaderboard import published_judge
from otoscope.published import PublishedScore, published_scores
from otoscope.reports.charts.canvas import Across, Axes, Line
from otoscope.reports.charts.measured import run_name
from otoscope.reports.charts.style import (
    ANSWER,
    INK,
    LINE,
    MARK,
    NOT_AVAILABLE,
    QUIET,
    REFERENCE,
    RULE,
    SMALL,
    THIN,
    WIDE,
    Drawing,
    Entry,
    add_axes,
    foreign,
    key,
    key_line,
    key_mark,
    named,
    new_figure,
    set_ticks,
    strokes,
    whisker,
    write,
)
from otoscope.scoring import Cell, Summary
from otoscope.texts import Catalogue

ROWS = ("speech", "sound", "music", "mixed_audio", "average")
_COLUMNS = {"mixed_audio": "mixed"}
"""A cell's name among published columns, where it is another."""

_LEFT, _RIGHT, _TOP, _BOTTOM, _ROW = 0.95, 1.25, 0.30, 0.30, 0.44
"""Inches."""
_PLACES = (0, 1, 2, 3, 4.2)
"""Where each row stands, in rows: the average apart from what it is the mean of."""
_VALUES = 1.03
"""Where the numbers beside the chart begin; a share of its width."""
_RUG, _NAMES = 0.27, 0.52
"""How far below a row's marks the published ones stand, and their names; in rows."""


def draw(summary: Summary, say: Catalogue) -> Drawing | None:
    """Draw the categories and the average; ``None`` where the run has no score at all."""
    cells = {name: cell for name in ROWS if (cell := _cell(summary, name)) is not None}
    if all(cell.gpt_score is None for cell in cells.values()):
        return None
    room = (_PLACES[-1] + 1.2) * _ROW
    figure = new_figure(WIDE, _TOP + room + _BOTTOM)
    axes = add_axes(figure, _LEFT, _BOTTOM, WIDE - _LEFT - _RIGHT, room)
    lowest = min([float(SCORE_MIN), *(end for cell in cells.values() for end in cell.ci95 or ())])
    axes.set_xlim(lowest, SCORE_MAX)
    axes.set_ylim(_PLACES[-1] + 0.75, -0.45)
    places = range(SCORE_MIN, SCORE_MAX + 1, 2)
    set_ticks(axes, "x", places, [str(place) for place in places], grid=True)
    # What was published are evaluations: none is by a control's like.
    judge = published_judge(summary.to_json()) if summary.control is None else None
    published = published_scores()
    for row, name in zip(_PLACES, ROWS, strict=True):
        _row(axes, row, name, cells.get(name), say)
        _published(axes, row, name, cells.get(name), published, judge)
    y = axes.y_at(_PLACES[-2] + 0.72)
    ends = [(axes.left - 0.19 * axes.width, y), (axes.left + 1.26 * axes.width, y)]
    axes.add(Line(pieces=[ends], color=INK, alpha=RULE, width=THIN))
    write(figure, _LEFT + (WIDE - _LEFT - _RIGHT) / 2, 0.03, say("chart.score"), ha="center", size=SMALL,
          alpha=QUIET)  # fmt: skip
    key(figure, _key(judge, say))
    told = "; ".join(_told(name, cells.get(name), say) for name in ROWS)
    return Drawing(
        "categories",
        figure,
        say("chart.categories.title", model=run_name(summary, say)),
        say("chart.categories.desc", scores=told, interval=say("chart.interval")),
    )


def _cell(summary: Summary, name: str) -> Cell | None:
    try:
        return summary.cell(name)
    except KeyError:
        return None


def _row(axes: Axes, row: float, name: str, cell: Cell | None, say: Catalogue) -> None:
    bold = name == "average"
    write(axes, -0.03, row, say(f"cell.{name}"), ha="right", va="center", bold=bold, beside=True)
    if cell is None or cell.gpt_score is None:
        write(axes, _VALUES, row, NOT_AVAILABLE, va="center", alpha=QUIET, beside=True, of=name)
        return
    if (bound := cell.lower_bound) is not None:
        line = axes.line([bound, cell.gpt_score], [row, row], color=ANSWER, width=LINE * 0.7, dashes=(1, 1.5))
        named(line, "bound", name)
    if cell.ci95 is not None:
        whisker(axes, cell.ci95, row, ANSWER, name)
    mark = axes.marks([cell.gpt_score], [row], "o", color=ANSWER, size=MARK * 0.85)
    named(mark, "mean", name)
    if cell.reference_score is not None:
        mark = axes.marks([cell.reference_score], [row], "D", color=REFERENCE, size=MARK * 0.85, hollow=True)
        named(mark, "reference", name)
    write(axes, _VALUES, row, score_text(cell), va="center", bold=bold, beside=True, of=name)
    if bound is not None:
        text = say("chart.lower_bound", bound=f"{bound:.2f}")
        write(axes, _VALUES, row + 0.32, text, va="center", size=SMALL, alpha=QUIET, beside=True)


def _published(
    axes: Axes,
    row: float,
    name: str,
    cell: Cell | None,
    published: Sequence[PublishedScore],
    judge: str | None,
) -> None:
    if cell is None or cell.gpt_score is None:
        return
    scores: dict[bool, list[tuple[float, str]]] = {True: [], False: []}
    for other in published:
        score = getattr(other, _COLUMNS.get(name, name))
        if score is not None:
            scores[other.judge == judge].append((score, other.model))
    at = row + _RUG
    for alike, found in scores.items():
        xs = [score for score, _ in found]
        half, alpha, width = (0.10, QUIET, 0.9) if alike else (0.06, 0.28, THIN)
        if xs:
            line = strokes(axes, xs, at - half, at + half, alpha, width)
            named(line, "published-same" if alike else "published-other", name)
    below = [one for one in scores[True] if one[0] <= cell.gpt_score]
    above = [one for one in scores[True] if one[0] > cell.gpt_score]
    sides: tuple[tuple[tuple[float, str] | None, Across], ...] = (
        (max(below, default=None), "right"),
        (min(above, default=None), "left"),
    )
    for nearest, ha in sides:
        if nearest is not None:
            score, model = nearest
            write(axes, score, row + _NAMES, f"{foreign(model)} {score:.2f}", ha=ha, va="center",
                  size=SMALL - 0.5, alpha=QUIET)  # fmt: skip


def _key(judge: str | None, say: Catalogue) -> list[Entry]:
    entries: list[Entry] = [
        (
            (
                key_line((-5, 0), (5, 0), color=ANSWER, width=LINE),
                key_mark("o", ANSWER),
            ),
            say("chart.mean_interval"),
        ),
        (
            (key_mark("D", REFERENCE, size=MARK * 0.85, hollow=True),),
            say("chart.reference"),
        ),
    ]
    if judge is not None:
        tick = key_line((0, -3), (0, 3), color=INK, alpha=QUIET, width=0.9)
        entries.append(((tick,), say("chart.published_same", judge=foreign(judge))))
    tick = key_line((0, -2), (0, 2), color=INK, alpha=0.28, width=THIN)
    entries.append(((tick,), say("chart.published_other" if judge else "chart.published_any")))
    return entries


# --- numbers in words -------------------------------------------------------------------------------------


def score_text(cell: Cell) -> str:
    """Return a cell's mean with its interval."""
    if cell.gpt_score is None:
        return NOT_AVAILABLE
    if cell.ci95 is None:
        return f"{cell.gpt_score:.2f}"
    return f"{cell.gpt_score:.2f} [{cell.ci95[0]:.2f}, {cell.ci95[1]:.2f}]"


def _told(name: str, cell: Cell | None, say: Catalogue) -> str:
    score = NOT_AVAILABLE if cell is None else score_text(cell)
    return f"{say(f'cell.{name}')} {score}"
