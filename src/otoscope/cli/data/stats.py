"""``otoscope data stats``: the data set in numbers."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import Any

from otoscope.cli.data.choosing import add_follow_links, add_root, add_selection, chosen, root_of
from otoscope.cli.data.quiet import quiet_decoders
from otoscope.cli.terminal import as_json, console


def add(actions: Any) -> None:
    """Add the action and its flags."""
    parser = actions.add_parser(
        "stats",
        help="the data set in numbers: lengths of texts, durations, rates, channels, loudness",
        description="Print the data set in numbers. Durations, rates and channels come from the clips' "
        "headers. Loudness is the RMS level in dBFS of two seconds from the middle of each clip.",
    )
    add_root(parser)
    add_selection(parser)
    add_follow_links(parser)
    parser.add_argument("--full", action="store_true", help="loudness over whole clips: decodes all of them")
    parser.add_argument(
        "--format", choices=("terminal", "json", "md"), default="terminal", help="default terminal"
    )
    parser.set_defaults(carry_out=run)


def run(args: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Measure and print. Raises ``ConfigError`` and ``DatasetError``."""
    from otoscope.audit import describe
    from otoscope.reports.audit_progress import AuditDisplay
    from otoscope.reports.data_stats import render, to_markdown

    data, selection = chosen(args, environ)
    root = root_of(data, "otoscope data stats ROOT")
    with quiet_decoders(), AuditDisplay(console(stderr=True), "measuring") as display:
        found = describe(
            root, selection, whole=args.full, follow_links=data.follow_links, on_progress=display
        )
    match args.format:
        case "json":
            print(as_json(found.to_json()))
        case "md":
            sys.stdout.flush()
            sys.stdout.buffer.write(to_markdown(found).encode("utf-8", "backslashreplace"))
        case _:
            render(found, console(), root=root)
    return 0
