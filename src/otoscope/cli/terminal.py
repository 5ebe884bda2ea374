"""What every command does with the terminal."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
from collections.abc import Sequence
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


def shell_command(words: Sequence[str]) -> str:
    """Return a command as a person can copy it into a shell.

    Names that the terminal cannot show, as under the C locale, are written by their bytes, in the way that
    bash, ksh and zsh read.
    """
    return " ".join(shlex.quote(word) if _can_be_shown(word) else _by_bytes(word) for word in words)


def _can_be_shown(word: str) -> bool:
    try:
        word.encode(getattr(sys.stderr, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return False
    return word.isprintable()


def _by_bytes(word: str) -> str:
    plain = (
        chr(byte) if 32 <= byte < 127 and byte not in b"'\\" else f"\\{byte:03o}"
        for byte in os.fsencode(word)
    )
    return f"$'{''.join(plain)}'"


def silence_stdout() -> None:
    """Send what is still buffered nowhere, so that the interpreter does not fail over it at its end."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
