"""How texts and counts are written for people, in every report."""

from __future__ import annotations

import contextlib
import sys
from typing import IO, Any, cast

from rich.console import Console
from rich.text import Text

_LEAST_WIDTH, _USUAL_WIDTH = 20, 80


class _Forgiving:
    """A stream that drops what it cannot write: its disk is full, or nobody is there."""

    def __init__(self, stream: IO[str] | None) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @property
    def closed(self) -> bool:
        return self._stream is None or self._stream.closed

    @property
    def encoding(self) -> str:
        return str(getattr(self._stream, "encoding", None) or "utf-8")

    def isatty(self) -> bool:
        return self._stream is not None and self._stream.isatty()

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, AttributeError):
            return cast("IO[str]", self._stream).write(text)
        return 0

    def flush(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            cast("IO[str]", self._stream).flush()


class ReportConsole(Console):
    """A console whose reader may go away, and whose width is never too small to say anything.

    What is printed after the reader has gone is dropped where ``optional``, as progress is; otherwise
    ``BrokenPipeError`` is raised.
    """

    def __init__(self, *, stderr: bool = False, optional: bool = False) -> None:
        stream = sys.stderr if stderr else sys.stdout
        file = cast("IO[str]", _Forgiving(stream)) if optional else stream
        super().__init__(file=file, highlight=False)
        self._optional = optional
        if self.width < _LEAST_WIDTH:
            self.width = _USUAL_WIDTH

    def on_broken_pipe(self) -> None:
        """Take note that the reader has gone; rich's own way is to end the process with 1."""
        if not self._optional:
            raise BrokenPipeError
        self.quiet = True


class Cleaner:
    """Makes foreign text fit to be printed: one line, no control characters, nothing a terminal lacks."""

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding

    def __call__(self, text: str) -> str:
        """Return the text as it may be printed."""
        printable = "".join(character if character.isprintable() else " " for character in str(text))
        encoded = " ".join(printable.split()).encode(self._encoding, "backslashreplace")
        return encoded.decode(self._encoding)


def print_wrapped(console: Console, text: Text, *, lead: Text | None = None) -> None:
    """Print a text wrapped behind its lead, further lines indented as far, without trailing spaces."""
    lead = lead or Text()
    for line in text.wrap(console, max(20, console.width - lead.cell_len), overflow="fold"):
        line.rstrip()
        print_line(console, Text.assemble(lead, line))
        lead = Text(" " * lead.cell_len)


def print_line(console: Console, line: Text) -> None:
    """Print one line as it is, however long."""
    console.print(line, no_wrap=True, overflow="ignore", crop=False)


def size(count: float) -> str:
    """Return a number of bytes: 987 B, 1.2 kB, 1.1 GB."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} GB"
