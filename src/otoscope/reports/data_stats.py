"""The data set in numbers: on the terminal, and as Markdown in the words of the benchmark's page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from otoscope.audit import LIMITS, Description, Durations, Loudness, Part
from otoscope.audit.description import EXCERPT_SECONDS
from otoscope.benchmark import TASKS
from otoscope.reports.aligned import print_aligned
from otoscope.reports.audit import duration
from otoscope.reports.text import Cleaner, print_line, print_wrapped, size

NOT_AVAILABLE = "n/a"

_Rows = Sequence[Sequence[str]]


def render(found: Description, console: Console, *, root: Path) -> None:
    """Print the tables: texts, clips, durations with their histogram, and levels."""
    clean = Cleaner(console.encoding)
    print_line(console, Text(clean(str(root)), style="bold"))
    print_wrapped(console, Text(_summary(found)))
    for title, head, rows in _tables(found):
        console.print()
        print_wrapped(console, Text(title, style="bold"))
        styles = [""] * (len(rows) - 1) + ["bold"]
        print_aligned(console, head, list(zip(rows, styles, strict=True)))
    for note in _notes(found):
        console.print()
        print_wrapped(console, Text(note))


def to_markdown(found: Description) -> str:
    """Return the same as Markdown: first the benchmark page's own tables, with its words."""
    total = found.total
    parts = [
        "## Data Statistics",
        _markdown(
            ("Metric", "Value"),
            [
                ("Total Samples", f"{total.samples:,}"),
                ("Prompt Length (Mean)", f"{total.questions.mean:.2f} chars"),
                ("Prompt Length (Min/Max)", f"{total.questions.least:,} / {total.questions.most:,} chars"),
                ("Target Length (Mean)", f"{total.targets.mean:.2f} chars"),
            ],
            right=False,
        ),
        "**Per-Subset Statistics:**",
        _markdown(
            ("Subset", "Samples", "Prompt Mean", "Prompt Min", "Prompt Max", "Target Mean"),
            _of_tasks(found, _text_cells, total=False),
        ),
        "**Audio Statistics:**",
        _markdown(
            ("Metric", "Value"),
            [
                ("Total Audio Files", f"{total.samples:,}"),
                ("Audio per Sample", "min: 1, max: 1, mean: 1"),
                ("Formats", _listed(total.formats)),
            ],
            right=False,
        ),
    ]
    for title, head, rows in list(_tables(found))[1:]:
        parts += [f"**{title}:**", _markdown(head, rows)]
    parts += _notes(found)
    return "\n\n".join(parts) + "\n"


def _summary(found: Description) -> str:
    total = found.total
    audio = "" if total.durations is None else f", {duration(total.durations.total)} of audio"
    counts = f"samples: {total.samples:,}, clips: {total.clips:,}, {size(found.size)}{audio}"
    return f"{counts}; audio per sample: min 1, max 1, mean 1"


def _tables(found: Description) -> Iterator[tuple[str, Sequence[str], _Rows]]:
    """Yield title, head and rows of every table."""
    yield (
        "Lengths of questions and reference answers, in characters",
        ("task", "samples", "mean", "min", "max", "target mean"),
        _of_tasks(found, _text_cells),
    )
    yield (
        "Clips",
        ("task", "clips", "formats", "kHz", "channels"),
        _of_tasks(found, _clip_cells),
    )
    yield (
        "Durations in seconds",
        ("task", "mean", "median", "95 %", "max", "total"),
        _of_tasks(found, _duration_cells),
    )
    yield (
        "Samples by duration",
        ("task", *(f"<= {limit} s" for limit in LIMITS), f"> {LIMITS[-1]} s"),
        _of_tasks(found, _histogram_cells),
    )
    over = "whole clips" if found.whole else f"{EXCERPT_SECONDS:g} s from the middle of each clip"
    yield (
        f"Loudness: RMS level in dBFS, over {over}",
        ("task", "quietest", "median", "loudest", "silent"),
        _of_tasks(found, _loudness_cells),
    )


def _of_tasks(
    found: Description, cells: Callable[[Part], Iterable[str]], *, total: bool = True
) -> list[list[str]]:
    rows = [[task, *cells(part)] for task, part in found.tasks.items()]
    return [*rows, ["all", *cells(found.total)]] if total else rows


def _text_cells(part: Part) -> Iterator[str]:
    yield f"{part.samples:,}"
    yield f"{part.questions.mean:.2f}"
    yield f"{part.questions.least:,}"
    yield f"{part.questions.most:,}"
    yield f"{part.targets.mean:.2f}"


def _clip_cells(part: Part) -> Iterator[str]:
    yield f"{part.clips:,}"
    yield _listed(part.formats)
    yield _listed(f"{rate / 1000:g}" for rate in part.rates)
    yield _listed(map(str, part.channels))


def _listed(values: Iterable[str]) -> str:
    return ", ".join(values) or NOT_AVAILABLE


def _duration_cells(part: Part) -> Iterator[str]:
    told = part.durations
    if told is None:
        return iter([NOT_AVAILABLE] * 5)
    return iter(
        [
            f"{told.mean:.2f}",
            f"{told.median:.2f}",
            f"{told.p95:.2f}",
            f"{told.most:.2f}",
            f"{told.total:,.0f}",
        ]
    )


def _histogram_cells(part: Part) -> Iterator[str]:
    if part.durations is None:
        return iter([NOT_AVAILABLE] * (len(LIMITS) + 1))
    return (f"{count:,}" if count else "-" for count in part.durations.histogram)


def _loudness_cells(part: Part) -> Iterator[str]:
    told = part.loudness
    if told is None:
        return iter([NOT_AVAILABLE] * 4)
    levels = (told.quietest, told.median, told.loudest)
    return iter([*(_level(level) for level in levels), f"{told.silent:,}" if told.silent else "-"])


def _level(level: float | None) -> str:
    return NOT_AVAILABLE if level is None else f"{level:.1f}"


def _notes(found: Description) -> Iterator[str]:
    total = found.total
    durations: Durations | None = total.durations
    if durations is not None and durations.over_30_seconds:
        yield (
            f"Longer than 30 s: the clips of {durations.over_30_seconds:,} of {total.samples:,} samples. "
            "Many servers cut or refuse them: see --audio-policy of 'otoscope eval'."
        )
    loudness: Loudness | None = total.loudness
    if loudness is not None and loudness.silent and not found.whole:
        yield "Silent is said of the excerpt; 'otoscope data verify' hears the whole clip."
    why = "'otoscope data verify' says why."
    if total.unusable:
        yield (
            f"Without a clip that can be read: {total.unusable:,} of {total.samples:,} samples. Only their "
            f"texts are counted; {why}"
        )
    if found.bad_records:
        yield f"Records that cannot be used, and are not counted: {found.bad_records:,}; {why}"


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]], *, right: bool = True) -> str:
    rule = [":--", *("--:" if right else ":--" for _ in head[1:])]
    # Nothing of it is foreign text: names of tasks and formats, and numbers.
    cells = [[f"`{name}`" if name in TASKS else name, *values] for name, *values in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, rule, *cells])
