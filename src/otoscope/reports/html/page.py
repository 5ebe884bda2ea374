"""Runs -> the page."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from otoscope._version import __version__
from otoscope.benchmark import AVERAGE_PARTS
from otoscope.comparison import Comparison
from otoscope.errors import ConfigError
from otoscope.published import published_scores
from otoscope.reports.html import headline, method, numbers, tables
from otoscope.reports.html.clips import Clips
from otoscope.reports.html.comparing import compared
from otoscope.reports.html.rows import Book, book_of, embedded, packed
from otoscope.reports.html.words import Words, texts
from otoscope.reports.reported import Reported
from otoscope.reports.tables import by_judge
from otoscope.reports.told import cost_told

SCRIPTS = ("texts.js", "samples.js", "list.js", "detail.js", "explorer.js", "page.js")
"""They share one scope, so a file uses what the files before it define."""
_MOST_WITH_SAMPLES = 2
"""Of more runs, the samples would make a page that is slow to open; each run's own page has them."""
_CHARTS = ("distribution", "orders", "length", "failures", "timing")


def render_html(
    runs: Sequence[Reported],
    *,
    language: str,
    figures: Mapping[str, Mapping[str, str]],
    embed_audio: Collection[str] = (),
    comparison: Comparison | ConfigError | None = None,
    folder: Path | None = None,
    book: Book | None = None,
    now: str,
) -> str:
    """Return the page about one run, two that are compared, or several.

    ``language`` is the one that it opens in; it holds both. ``figures`` are SVG elements by language and
    name (``categories``, ``distribution``, ``orders``, ``length``, ``failures``, ``timing``; of two runs
    ``difference``; of several ``trend``); they are put into the page as they are. ``embed_audio`` are the
    keys of samples whose clips are put into the page; other clips are linked from ``folder``, where the page
    will lie (default: the first run's directory). ``comparison`` is that of two runs, or why there is none
    (default: it is made here). ``book`` has the samples, where they were read already. ``now`` is the time
    that the page says it was written at.

    Raises ``KeyError`` for a language that there is not, and ``RunDirectoryError``.
    """
    if len(runs) == 2 and comparison is None:
        comparison = compared(runs)
    with_samples = runs if len(runs) <= _MOST_WITH_SAMPLES else ()
    clips = [Clips(run.manifest, folder or runs[0].path) for run in with_samples]
    if book is None:
        book = book_of(with_samples, clips)
    style, script = _file("style.css"), _script()
    template = {1: "one_run", 2: "two_runs"}.get(len(runs), "several_runs")
    page = (
        _environment(Words(language))
        .get_template(f"{template}.html.j2")
        .render(
            language=language,
            title=_title(runs, Words(language)),
            runs=runs,
            comparison=comparison,
            refused=str(comparison) if isinstance(comparison, ConfigError) else None,
            published=published_scores(),
            figures=figures.get(language) or next(iter(figures.values()), {}),
            packed_figures=packed({name: dict(drawn) for name, drawn in figures.items()}),
            packed_samples=packed(book.content(with_samples)),
            samples_count=len(book),
            clips=embedded(with_samples, clips, frozenset(embed_audio)),
            facts={
                "language": language,
                "runs": [
                    {"letter": letter, "name": run.name, "control": run.summary.control}
                    for letter, run in zip("AB", with_samples, strict=False)
                ],
                "texts": texts(),
            },
            style=Markup(style),  # noqa: S704 (a file of this package)
            script=Markup(script),  # noqa: S704 (likewise)
            style_hash=_hash(style),
            script_hash=_hash(script),
            version=__version__,
            now=now,
        )
    )
    # A lone surrogate, which foreign text may hold, cannot be written as UTF-8.
    return page.encode("utf-8", "replace").decode("utf-8")


def _script() -> str:
    files = "\n".join(map(_file, SCRIPTS))
    return f'"use strict";\n(() => {{\n{files}}})();\n'


def _title(runs: Sequence[Reported], words: Words) -> str:
    names = [words.plain(headline.named(run)) for run in runs[:3]]
    return " · ".join(names) + (" …" if len(runs) > 3 else "")


def _environment(words: Words) -> Environment:
    environment = Environment(
        loader=FunctionLoader(_file),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(
        say=words.say,
        show=words.show,
        attribute=words.attribute,
        headline=headline,
        method=method.method,
        score_rows=tables.score_rows,
        source_rows=tables.source_rows,
        has_calls=tables.has_calls,
        cost_told=cost_told,
        span=tables.span,
        any_cell=tables.any_cell,
        by_judge=by_judge,
        charts=_CHARTS,
        AVERAGE_PARTS=AVERAGE_PARTS,
    )
    environment.filters.update(
        score=numbers.score,
        signed=numbers.signed,
        interval=numbers.interval,
        signed_interval=numbers.signed_interval,
        percent=numbers.percent,
        points=numbers.points,
        count=numbers.count,
        p_value=numbers.p_value,
        seconds=numbers.seconds,
        date=numbers.date_of,
        place=tables.place,
        svg=Markup,
        data=_data_block,
    )
    return environment


def _file(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode("utf-8")).digest()).decode("ascii")


def _data_block(value: Any) -> Markup:
    """Return JSON that can stand in a script element: nothing in it can end the element."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c"))  # noqa: S704 (see above)
