"""``otoscope data verify``: every record looked at, every clip decoded."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from otoscope.cli.data.choosing import add_follow_links, add_root, add_selection, chosen, root_of
from otoscope.cli.data.quiet import quiet_decoders
from otoscope.cli.terminal import as_json, console
from otoscope.errors import DatasetError


def add(actions: Any) -> None:
    """Add the action and its flags."""
    parser = actions.add_parser(
        "verify",
        help="check the metadata and decode every clip",
        description="Check every record of the metadata, and decode every clip from its first to its last "
        "frame.",
        epilog="Exit code 3: something loses or falsifies samples, that is records that cannot be used, keys "
        "that occur twice, empty questions or references, and clips that are missing, unreadable, empty, not "
        "audio, damaged, without duration, cut off, of another length than their header says, or behind a "
        "link that leaves the data set. Silent clips, names that promise another format, equal clips under "
        "several names, empty descriptions and files that no record names are warnings: exit code 0, unless "
        "--strict.",
    )
    add_root(parser)
    add_selection(parser)
    add_follow_links(parser)
    parser.add_argument("--strict", action="store_true", help="exit with 3 for warnings, too")
    parser.add_argument("--json", action="store_true", help="print all of it as JSON")
    parser.add_argument(
        "--list", metavar="FILE", help="write the findings to a file of tab-separated values, to pass on"
    )
    parser.set_defaults(carry_out=run)


def run(args: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Verify and print what was found; return 0 or 3. Raises ``ConfigError`` and ``DatasetError``."""
    from otoscope.audit import verify
    from otoscope.reports.audit import render, to_tsv
    from otoscope.reports.audit_progress import AuditDisplay
    from otoscope.reports.writing import write_whole

    data, selection = chosen(args, environ)
    root = root_of(data, "otoscope data verify ROOT")
    with quiet_decoders(), AuditDisplay(console(stderr=True), "decoding") as display:
        found = verify(root, selection, follow_links=data.follow_links, on_progress=display)
    listed, unwritable = args.list, None
    if listed is not None:
        try:
            write_whole(Path(listed), [to_tsv(found.findings)])
        except OSError as error:
            # What was found took a while to find: it is printed all the same.
            listed, unwritable = None, error
    if args.json:
        print(as_json(found.to_json()))
    else:
        render(found, console(), root=root, listed=listed, strict=args.strict)
    if unwritable is not None:
        raise unwritable
    return DatasetError.exit_code if found.failed(strict=args.strict) else 0
