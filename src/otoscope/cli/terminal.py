"""What every command does with the terminal."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Any


def as_json(value: Any) -> str:
    """Return a value as JSON for people and machines. Raises ``ValueError`` for NaN."""
    return json.dumps(value, indent=1, allow_nan=False)


def console(*, stderr: bool = False) -> Any:
    """Return a console on stdout, or an optional one, whose reader may go away, on stderr."""
    from otoscope.reports.text import ReportConsole

    return ReportConsole(stderr=stderr, optional=stderr)


def complain(text: str) -> None:
    """Tell a person something, without what would steer a terminal; where nobody can be told, go on."""
    if sys.stderr is not None:
        legible = "".join(
            character if character.isprintable() or character == "\n" else " " for character in text
        )
        with contextlib.suppress(OSError):
            print(legible, file=sys.stderr, flush=True)


def silence_stdout() -> None:
    """Send what is still buffered nowhere, so that the interpreter does not fail over it at its end."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
