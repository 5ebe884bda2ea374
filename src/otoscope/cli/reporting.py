"""``otoscope report``: stored runs in every format; and the page at the end of an evaluation."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from otoscope._version import __version__
from otoscope.benchmark import VIEWS
from otoscope.children import module_command
from otoscope.choices import LANGUAGES, TRACKERS
from otoscope.cli.terminal import as_json, complain, console
from otoscope.errors import ConfigError, RunDirectoryError, TrackingError, did_you_mean
from otoscope.shell import shell_command

if TYPE_CHECKING:
    from otoscope.reports.gathered import Gathered
    from otoscope.reports.reported import Reported
    from otoscope.runs import Run

PAGE = "report.html"
FORMATS = ("terminal", "html", "md", "latex", "csv", "json")
EMBEDDED = ("all", "failed", "won", "tied", "lost")
EXIT_NOTHING_SCORED = 1
"""Every sample of a run failed."""
_HEAD = 4096
"""Bytes at the beginning of a page that say its language and version."""
PAGE_SECONDS = 600
"""How long the page may take at the end of an evaluation before it is given up."""
TRACKING_SECONDS = 600
"""How long a tracker may take for a run where that is what was asked for."""


def add(commands: Any) -> None:
    """Add the command and its flags."""
    parser = commands.add_parser(
        "report",
        help="stored runs: on the terminal, as a page, as tables for a paper",
        description="Show the numbers of stored runs. html is one file that opens offline; md and latex are "
        "tables for a paper; csv is samples.csv and scores.csv.",
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--format", choices=FORMATS, default="terminal", help="default terminal")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="PATH",
        help="a file, of csv a folder (default: html and csv of one run into its folder, else stdout)",
    )
    add_language(parser)
    parser.add_argument(
        "--scoring",
        choices=("default", "official"),
        default="default",
        help="rules applied to the stored replies; official: the official script's",
    )
    parser.add_argument(
        "--view",
        choices=tuple(VIEWS),
        default="full",
        help="paper-2000: without the two generation tasks, as in the paper's table",
    )
    parser.add_argument(
        "--appendix",
        action="store_true",
        help="md, latex: protocol card, tables by task and source, examples",
    )
    parser.add_argument("--figures", type=Path, metavar="DIR", help="also write the charts there")
    parser.add_argument(
        "--figure-format", choices=("svg", "pdf"), default="svg", help="of the charts (default svg)"
    )
    parser.add_argument(
        "--embed-audio",
        metavar="WHICH",
        help=f"html: put clips into the page: {', '.join(EMBEDDED)}, or keys separated by commas. Mind the "
        "clips' licences before you pass it on",
    )
    add_tracking(parser)
    parser.set_defaults(carry_out=run)


def add_language(parser: argparse.ArgumentParser) -> None:
    """Add the flag for the language of headings and explanations."""
    parser.add_argument(
        "--lang", choices=LANGUAGES, default="en", help="of headings and explanations (default en)"
    )


def add_tracking(parser: Any) -> None:
    """Add the flag for trackers."""
    parser.add_argument(
        "--track",
        action="append",
        metavar="TRACKER",
        help=f"also log the run there, as often as you like: {', '.join(TRACKERS)} (pip install "
        "'otoscope[mlflow]'; where that is, MLFLOW_TRACKING_URI says)",
    )


def run(args: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Write the report. Raises ``RunDirectoryError``, ``ConfigError`` and ``TrackingError``."""
    _check(args)
    trackers = _trackers(args)
    if args.format == "html" and len(args.runs) == 1:
        runs = [_write_page_of_one(args)]
    else:
        runs = _write_report(args)
    if args.figures is not None:
        _write_figures(runs, args)
    if trackers and (
        trouble := track_runs(
            runs, trackers, environ, seconds=TRACKING_SECONDS, scoring=args.scoring, view=args.view
        )
    ):
        raise TrackingError("\n".join(trouble))
    nothing = [run for run in runs if 0 < run.summary.counts["expected"] == run.summary.counts["failed"]]
    return EXIT_NOTHING_SCORED if nothing else 0


def _write_report(args: argparse.Namespace) -> list[Run]:
    from otoscope.runs import load_run

    runs = [load_run(path, scoring=args.scoring, view=args.view) for path in args.runs]
    match args.format:
        case "terminal":
            _write_terminal(runs, args)
        case "json":
            told = [run.summary.to_json() for run in runs]
            _write_text(as_json(told if len(told) > 1 else told[0]) + "\n", args.output)
        case "html":
            _write_page(_reported(runs), args)
        case "csv":
            _write_csv(runs, args)
        case _:
            _write_tables(runs, args)
    return runs


def has_page(run_path: Path, language: str) -> bool:
    """Whether a run has a page that opens in this language, of this version, and of what the run is now."""
    from otoscope.runs import newer
    from otoscope.store import ANSWERS, MANIFEST, SAMPLES, SUMMARY, VERDICTS

    page = run_path / PAGE
    files = [run_path / name for name in (MANIFEST, ANSWERS, VERDICTS, SAMPLES, SUMMARY)]
    try:
        if not newer(page, files):
            return False
        with page.open("rb") as file:
            head = file.read(_HEAD)
    except OSError:
        return False
    return f'<html lang="{language}">'.encode() in head and f'"otoscope {__version__}"'.encode() in head


def write_page_apart(run_path: Path, language: str) -> None:
    """Write a run's page by a process of its own: what draws the charts is not to be in this one's memory.

    Whatever comes of it, the run is done: trouble is told, and how to try again.
    """
    import subprocess

    page = run_path / PAGE
    before = _written_at(page)
    words = ["report", str(run_path), "--format", "html", "--lang", language]
    command = module_command("otoscope", *words)
    try:
        done = subprocess.run(  # noqa: S603 (our own command)
            command,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=PAGE_SECONDS,
            check=False,
        )
        trouble = "" if done.returncode in (0, EXIT_NOTHING_SCORED) else _last_line(done.stderr)
        # That code is a traceback's, too.
        if not trouble and _written_at(page) in (None, before):
            trouble = _last_line(done.stderr) or "nothing was written"
    except (OSError, subprocess.TimeoutExpired) as error:
        trouble = str(error)
    except KeyboardInterrupt:
        trouble = "stopped"
    if trouble:
        again = shell_command(["otoscope", *words])
        complain(f"otoscope: {page} was not written: {trouble}. Try again with:\n  {again}")
    else:
        complain(f"Report: {page}")


def _written_at(path: Path) -> int | None:
    """Return when a file was written (ns), ``None`` where there is none."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


def track_runs(
    runs: Sequence[Run],
    trackers: Sequence[str],
    environ: Mapping[str, str],
    *,
    seconds: float,
    scoring: str = "default",
    view: str = "full",
) -> list[str]:
    """Log runs in trackers and say where; return what is to be said of those that were not."""
    from otoscope.tracking import Tracked, track

    paths = [run.path for run in runs]
    trouble: list[str] = []
    for one in track(paths, trackers, environ, seconds=seconds, scoring=scoring, view=view, page=PAGE):
        if isinstance(one, Tracked):
            without = "" if one.with_page else f", without {PAGE}, which is missing or older than the run"
            complain(f"Logged in {one.tracker}{without}: {one.where}")
        else:
            trouble.append(one.message)
    return trouble


def _trackers(args: argparse.Namespace) -> list[str]:
    """Return the trackers that were asked for. Raises ``ConfigError``."""
    if not args.track:
        return []
    from otoscope.config.checks import checked_choice, checked_words
    from otoscope.tracking import require

    words = checked_words(",".join(args.track), "--track")
    names = list(dict.fromkeys(checked_choice(word, TRACKERS, "--track") for word in words))
    require(names)
    return names


# --- formats ----------------------------------------------------------------------------------------------


def _write_terminal(runs: Sequence[Run], args: argparse.Namespace) -> None:
    from otoscope.reports.terminal import render

    for number, one in enumerate(runs):
        if number:
            print()
        render(one.summary, console(), run_path=one.path, language=args.lang)


def _write_page_of_one(args: argparse.Namespace) -> Run:
    """Write the page of a single run, whose samples are read once for all that stands in it."""
    from otoscope.reports.gathered import Gathered
    from otoscope.reports.reported import Reported
    from otoscope.runs import read_run

    (path,) = args.runs
    gathered = Gathered(_page_of(args).parent)
    run = read_run(path, scoring=args.scoring, view=args.view, listeners=gathered.listeners)
    _write_page([Reported.of(run)], args, gathered)
    return run


def _write_page(runs: Sequence[Reported], args: argparse.Namespace, gathered: Gathered | None = None) -> None:
    from otoscope.reports.figures import page_figures
    from otoscope.reports.html import compared, render_html
    from otoscope.reports.reported import control_first

    page = _page_of(args)
    reported = control_first(runs)
    comparison = compared(reported) if len(reported) == 2 else None
    text = render_html(
        reported,
        language=args.lang,
        figures=page_figures(reported, comparison, gathered.measured if gathered else None),
        embed_audio=list(_to_embed(reported, args.embed_audio)),
        comparison=comparison,
        folder=page.parent,
        book=gathered.book if gathered else None,
        now=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
    )
    _write_text(text, page)


def _page_of(args: argparse.Namespace) -> Path:
    """Return where the page is to lie."""
    return args.output or (args.runs[0] / PAGE if len(args.runs) == 1 else Path(PAGE))


def _write_tables(runs: Sequence[Run], args: argparse.Namespace) -> None:
    from otoscope.reports.latex import render_latex
    from otoscope.reports.markdown import render_markdown
    from otoscope.texts import catalogue

    render = render_latex if args.format == "latex" else render_markdown
    _write_text(render(_reported(runs), catalogue(args.lang), appendix=args.appendix), args.output)


def _write_csv(runs: Sequence[Run], args: argparse.Namespace) -> None:
    from otoscope.reports.csv_files import samples_csv, scores_csv

    if len(runs) > 1 and args.output is None:
        raise ConfigError("--format csv of several runs: give the folder to write into with --output DIR")
    folder = args.output or runs[0].path
    reported = _reported(runs)
    _write(folder / "scores.csv", [scores_csv(reported)])
    for number, one in enumerate(reported, start=1):
        name = "samples.csv" if len(reported) == 1 else f"samples-{number}-{one.path.resolve().name}.csv"
        _write(folder / name, samples_csv(one))


def _write_figures(runs: Sequence[Run], args: argparse.Namespace) -> None:
    from otoscope.reports.charts import pdf_language, write_figures
    from otoscope.reports.html import compared
    from otoscope.reports.reported import control_first

    reported = control_first(_reported(runs))
    comparison = compared(reported) if len(reported) == 2 else None
    written = write_figures(
        reported,
        args.figures,
        file_format=args.figure_format,
        language=args.lang,
        comparison=None if isinstance(comparison, ConfigError) else comparison,
    )
    if args.figure_format == "pdf" and pdf_language(args.lang) != args.lang:
        complain("otoscope: no font with Chinese characters is installed: the charts' texts are English")
    complain(f"Charts: {len(written)} in {args.figures}")


# --- what is asked for ------------------------------------------------------------------------------------


def _check(args: argparse.Namespace) -> None:
    for flag, given, formats in (
        ("--appendix", args.appendix, ("md", "latex")),
        ("--embed-audio", args.embed_audio is not None, ("html",)),
        ("--output", args.output is not None, FORMATS[1:]),
    ):
        if given and args.format not in formats:
            raise ConfigError(f"{flag} is for --format {' or '.join(formats)}")


def _reported(runs: Sequence[Run]) -> list[Reported]:
    from otoscope.reports.reported import Reported

    return [Reported.of(run) for run in runs]


def _to_embed(runs: Sequence[Reported], which: str | None) -> Iterator[str]:
    """Yield the keys of the samples whose clips go into the page. Raises ``ConfigError``."""
    if which is None:
        return
    results = {"won": "win", "tied": "tie", "lost": "loss"}
    if which in EMBEDDED:
        for one in runs:
            rule = one.rule
            for outcome in one.outcomes():
                result = rule(outcome).result
                chosen = which in ("all", result.status) or results.get(which) == result.result
                if chosen and (result.result or which in ("all", "failed")):
                    yield outcome.sample.key
        return
    known = {outcome.sample.key for one in runs for outcome in one.outcomes()}
    for key in which.split(","):
        if key not in known:
            raise ConfigError(
                f"--embed-audio: no sample has the key {key!r}{did_you_mean(key, known)}. It is one of "
                f"{', '.join(EMBEDDED)}, or keys as samples.jsonl has them"
            )
        yield key


# --- writing ----------------------------------------------------------------------------------------------


def _write_text(text: str, path: Path | None) -> None:
    if path is None or str(path) == "-":
        print(text, end="")
    else:
        _write(path, [text])


def _write(path: Path, content: Iterable[str]) -> None:
    """Write a file whole and say where. Raises ``RunDirectoryError``."""
    from otoscope.reports.writing import write_whole

    try:
        write_whole(path, (text.encode() for text in content))
    except OSError as error:
        raise RunDirectoryError(
            f"{error.filename or path}: cannot be written: {error.strerror or error}. Make room, or give "
            "another place with --output"
        ) from None
    complain(f"Report: {path}")


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].removeprefix("otoscope: error: ").rstrip(".") if lines else "it ended without a word"
