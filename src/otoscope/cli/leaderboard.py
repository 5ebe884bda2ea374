"""``otoscope leaderboard``: local runs and published scores, split by judge."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from otoscope.cli.terminal import as_json, complain, console
from otoscope.errors import ConfigError

RUNS = Path("outputs")
"""Where runs are made unless ``--work-dir`` says otherwise."""


def add(commands: Any) -> None:
    """Add the command and its flags."""
    parser = commands.add_parser(
        "leaderboard",
        help="local runs and published scores, split by judge",
        description="List the runs under a folder with the published scores, split by judge: there is no "
        "rank across judges. Partial runs stand apart, and so do controls.",
    )
    parser.add_argument(
        "folder", nargs="?", type=Path, metavar="DIR", help=f"looked through for runs (default {RUNS})"
    )
    parser.add_argument(
        "--where",
        action="append",
        default=[],
        metavar="K=V",
        help="only rows with this tag, model, label, control, judge or status (status=local: no published "
        "scores); may be repeated",
    )
    parser.add_argument(
        "--sort", default="rank", metavar="COLUMN", help="within each judge, e.g. average or speech"
    )
    parser.add_argument(
        "--format",
        choices=("terminal", "csv", "md", "json"),
        default="terminal",
        help="csv and json have full precision (default terminal)",
    )
    parser.set_defaults(carry_out=run)


def run(args: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Print the leaderboard. Raises ``ConfigError`` and ``RunDirectoryError``."""
    from otoscope.leaderboard import leaderboard
    from otoscope.reports.leaderboard import render, to_csv, to_json, to_markdown

    folder = args.folder or (RUNS if RUNS.is_dir() else None)
    board = leaderboard(folder, where=_pairs(args.where), sort=args.sort)
    match args.format:
        case "json":
            print(as_json(to_json(board)))
        case "csv":
            _write(to_csv(board))
            for text in board.skipped:
                complain(f"otoscope: skipped: {text}")
        case "md":
            _write(to_markdown(board))
        case _:
            render(board, console())
    return 0


def _pairs(given: Sequence[str]) -> list[tuple[str, str]]:
    pairs = []
    for text in given:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise ConfigError(f"--where: must be K=V, such as model=qwen2-audio, not {text!r}")
        pairs.append((name, value))
    return pairs


def _write(text: str) -> None:
    """Write a document to stdout: UTF-8 and newlines as they are, whatever the terminal's own encoding is."""
    if sys.stdout is None:
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode("utf-8", "backslashreplace"))
