"""``otoscope data ACTION``: get the data set, check it, know it."""

from __future__ import annotations

from typing import Any

from otoscope.cli.data import download, show, stats, verify

_ACTIONS = (download, verify, stats, show)


def add(commands: Any) -> None:
    """Add the command and its actions."""
    parser = commands.add_parser("data", help="get the data set, check it, know it")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for action in _ACTIONS:
        action.add(actions)
