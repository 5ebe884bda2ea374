"""Commands in messages, as a person can copy them into a shell."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable


def shell_command(words: Iterable[str]) -> str:
    """Return a command as a person can copy it into a shell; one word is a command, too.

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
