"""``otoscope config show``: what settings come to, and where each of them came from."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any

from otoscope.cli.terminal import as_json, complain, console
from otoscope.errors import OtoscopeError


def add(commands: Any, add_flags: Callable[[argparse.ArgumentParser], None]) -> None:
    """Add the command; ``add_flags`` adds the flags of ``eval``."""
    parser = commands.add_parser("config", help="settings: what they come to, and where each came from")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    show = actions.add_parser(
        "show",
        help="the settings that eval would have with these flags, this environment and this file",
        description="Print every setting that 'otoscope eval' would have, with where it came from: a flag, "
        "an environment variable, the file and its line, a stored run, or the default. Secrets are shown as "
        "***. Nothing is sent, and no key is needed.",
        conflict_handler="resolve",
    )
    add_flags(show)
    show.add_argument(
        "--format",
        choices=("terminal", "json", "yaml"),
        default="terminal",
        help="yaml is a file for --config that says the same (default terminal)",
    )
    show.set_defaults(carry_out=run)


def run(args: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Print the settings. Raises ``ConfigError`` for a file that cannot be read."""
    from otoscope.cli.arguments import DRY_RUN_KEYS
    from otoscope.cli.configured import asked_for, settings_file
    from otoscope.config.account import account, as_said, of_several
    from otoscope.config.files import text_of
    from otoscope.opening import over_stored
    from otoscope.reports.settings import render, to_json

    file = settings_file(args)
    told, errors = [], []
    for one in asked_for(args, file, environ):
        config, settings, error = one.config, None, None
        try:
            config = over_stored(one.config)
            settings = one.settings({**DRY_RUN_KEYS, **environ})
        except OtoscopeError as trouble:
            error = trouble
            errors.append(trouble)
        told.append((one.title, account(config, environ, settings), error))
    match args.format:
        case "json":
            print(
                as_json(
                    [
                        {"model": title, "settings": to_json(rows), "error": error and str(error)}
                        for title, rows, error in told
                    ]
                )
            )
        case "yaml":
            said = [as_said(rows) for _, rows, _ in told]
            print(text_of(of_several(said) if len(said) > 1 else said[0]), end="")
        case _:
            for number, (title, rows, _) in enumerate(told, start=1):
                if len(told) > 1:
                    console().print(f"Model {number} of {len(told)}: {title}", style="bold", markup=False)
                render(rows, console())
    for message in dict.fromkeys(map(str, errors)):
        complain(f"otoscope: error: {message}")
    return max([0, *(error.exit_code for error in errors)])
