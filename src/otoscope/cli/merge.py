"""``otoscope merge``: the runs of a job array's shards become one run."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from otoscope.cli import reporting
from otoscope.cli.terminal import as_json, complain, console
from otoscope.errors import counted
from otoscope.shell import shell_command

if TYPE_CHECKING:
    from otoscope.merging import Merged


def add(commands: Any) -> None:
    """Add the command and its flags."""
    parser = commands.add_parser(
        "merge",
        help="join the runs of all shards into one run",
        description="Join runs of one model, prompt and judge into a new run: the shards of a job array, or "
        "runs of different tasks. The runs are only read. What two of them say of the same sample is joined "
        "once where it is the same, and refused where it differs. What is unfinished stays owed: go on with "
        "'otoscope judge DIR' or 'otoscope eval --use-cache DIR'.",
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--run-dir", required=True, metavar="DIR", help="make the run here")
    parser.add_argument(
        "--partial", action="store_true", help="also without some of the shards; the run's reports say which"
    )
    parser.add_argument(
        "--allow-changed",
        action="append",
        metavar="FIELD",
        help="what may differ between the runs: model.api_url, judge.api_url; may be repeated",
    )
    parser.add_argument("--label", metavar="TEXT", help="the run's name in tables (default: the runs')")
    parser.add_argument("--tag", action="append", metavar="K=V", help="may be repeated (default: the runs')")
    parser.add_argument("--take-over", action="store_true", help="take DIR from another process")
    shown = parser.add_argument_group("the report")
    shown.add_argument(
        "--format", choices=("terminal", "json"), default="terminal", help="on stdout (default terminal)"
    )
    reporting.add_language(parser)
    shown.add_argument("--no-html", action="store_true", help=f"do not write {reporting.PAGE} at the end")
    parser.set_defaults(carry_out=run)


def run(args: argparse.Namespace, _environ: Mapping[str, str]) -> int:
    """Merge, and show the run. Raises ``ConfigError`` and ``RunDirectoryError``."""
    from otoscope.cli.arguments import given_tags
    from otoscope.merging import merge
    from otoscope.reports.terminal import render

    fields = [word.strip() for given in args.allow_changed or () for word in given.split(",")]
    merged = merge(
        args.runs,
        args.run_dir,
        partial=args.partial,
        allow_changed=[field for field in fields if field],
        label=args.label,
        tags=given_tags(args.tag),
        take_over=args.take_over,
    )
    _tell(merged)
    made = merged.run
    if args.format == "json":
        print(as_json(made.summary.to_json()))
    else:
        render(made.summary, console(), run_path=made.path, language=args.lang)
    if not args.no_html and (made.changed or not reporting.has_page(made.path, args.lang)):
        reporting.write_page_apart(made.path, args.lang)
    return 0


def _tell(merged: Merged) -> None:
    path, summary = merged.run.path, merged.run.summary
    runs, samples = counted(merged.sources, "run"), counted(summary.counts["expected"], "sample")
    if merged.standing:
        complain(f"otoscope: {path}: is there already, made of the same {runs}, which have not changed")
        return
    complain(f"otoscope: {path}: {samples} of {runs}")
    if merged.shared:
        complain(
            f"otoscope: {counted(merged.shared, 'sample')} in several runs, the same in all: joined once"
        )
    if merged.skipped_lines:
        lines = counted(merged.skipped_lines, "line")
        complain(
            f"otoscope: {lines} of the runs, torn or foreign, left out: what only they held is owed again"
        )
    if merged.missing:
        complain(f"otoscope: without the shards {', '.join(merged.missing)}: --partial was given")
    if any(merged.owed):
        for source, *owed in merged.unfinished:
            complain(f"otoscope: {source}: is not finished: it owes {_owed(owed)}")
        complain(f"otoscope: {path}: owes {_owed(merged.owed)}")
    if any(merged.owed) or merged.missing:
        words = ["otoscope", "eval", "--use-cache", str(path)]
        words += ["--no-judge"] if summary.judge is None else []
        complain(f"What is missing is asked for with:\n  {shell_command(words)}")


def _owed(counts: Sequence[int]) -> str:
    words = zip(counts, ("answer", "verdict"), strict=True)
    return " and ".join(counted(count, noun) for count, noun in words if count)
