"""Progress while weights or clips are fetched: a bar on a terminal, a line now and then anywhere else."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.status import Status
from rich.text import Text

from otoscope.records import Downloading, DownloadPlanned, Fetching
from otoscope.reports.text import Cleaner, print_wrapped, size

LINE_EVERY = 60.0
"""Seconds after which a log gets a line of a download, where no tenth of it was passed before."""


class FetchDisplay:
    """Shows :class:`Fetching` events of one file after the other, and the events of a download.

    ``close`` gives the terminal back. ``clock`` returns seconds.
    """

    def __init__(
        self, console: Console, *, interactive: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console = console
        self._interactive = interactive
        self._clock = clock
        self._bars: Progress | None = None
        self._asking: Status | None = None
        self._file = ""
        self._tenths = -1
        self._last_line = 0.0

    def __call__(self, event: Fetching | DownloadPlanned | Downloading) -> None:
        """Take in one event."""
        match event:
            case DownloadPlanned():
                self.close()
                self._announce(event)
            case Downloading():
                self._show_download(event)
            case Fetching():
                self._show_file(event)

    def close(self) -> None:
        """End what is drawn."""
        if self._asking is not None:
            self._asking.stop()
            self._asking = None
        if self._bars is not None:
            self._bars.stop()
            self._bars = None
        self._file = ""

    def _announce(self, event: DownloadPlanned) -> None:
        say = Cleaner(self._console.encoding)
        here = f"{event.wanted:,} files wanted, {event.here:,} here already"
        if event.files:
            told = (
                f"{here}; {event.files:,} to fetch from {event.source}, {size(event.bytes)}, into "
                f"{event.place} ({size(event.free)} free)"
            )
        else:
            told = f"{here}: nothing to fetch; {event.place}"
        if self._interactive:
            print_wrapped(self._console, Text(say(told)))
        else:
            self._console.print(say(told), markup=False, soft_wrap=True)

    def _show_download(self, event: Downloading) -> None:
        if event.files:
            counted = f"{event.done_files:,}/{event.files:,} files"
            self._show(f"{event.source}: {counted}", "download", event.done_bytes, event.bytes)
        elif self._interactive and self._asking is None:
            self._asking = self._console.status(f"waiting for {event.source}")
            self._asking.start()

    def _show_file(self, event: Fetching) -> None:
        source = f" from {event.source}" if event.source else ""
        self._show(f"fetching {event.file}{source}", event.file, event.done, event.total)

    def _show(self, title: str, which: str, done: int, total: int) -> None:
        title = Cleaner(self._console.encoding)(title)
        if self._interactive:
            self._draw(title, which, done, total)
        else:
            self._say(title, which, done, total)

    def _draw(self, title: str, which: str, done: int, total: int) -> None:
        if self._bars is None:
            self.close()
            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=None),
                DownloadColumn(),
                TransferSpeedColumn(),
                TimeRemainingColumn(),
            )
            self._bars = Progress(*columns, console=self._console, expand=True)
            self._bars.start()
        if which != self._file:
            self._file = which
            self._bars.add_task(title, total=total)
        self._bars.update(self._bars.task_ids[-1], completed=done, total=total, description=title)

    def _say(self, title: str, which: str, done: int, total: int) -> None:
        tenths, now = 10 * done // max(1, total), self._clock()
        quiet = now - self._last_line < LINE_EVERY
        if which == self._file and tenths <= self._tenths and quiet:
            return
        self._file, self._tenths, self._last_line = which, tenths, now
        self._console.print(f"{title}: {size(done)} of {size(total)}", markup=False, soft_wrap=True)
