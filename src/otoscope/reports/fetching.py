"""Progress while weights are fetched: a bar on a terminal, a line for each tenth anywhere else."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from otoscope.records import Fetching
from otoscope.reports.text import Cleaner, size


class FetchDisplay:
    """Shows :class:`Fetching` events of one file after the other. ``close`` gives the terminal back."""

    def __init__(self, console: Console, *, interactive: bool) -> None:
        self._console = console
        self._interactive = interactive
        self._bars: Progress | None = None
        self._file = ""
        self._tenths = -1

    def __call__(self, event: Fetching) -> None:
        """Take in one event."""
        if self._interactive:
            self._draw(event)
        else:
            self._say(event)

    def close(self) -> None:
        """End what is drawn."""
        if self._bars is not None:
            self._bars.stop()
            self._bars = None

    def _draw(self, event: Fetching) -> None:
        if self._bars is None:
            columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
            self._bars = Progress(*columns, console=self._console)
            self._bars.start()
        if event.file != self._file:
            self._file = event.file
            self._bars.add_task(self._title(event), total=event.total)
        task = self._bars.task_ids[-1]
        self._bars.update(task, completed=event.done, total=event.total, description=self._title(event))

    def _say(self, event: Fetching) -> None:
        tenths = 10 * event.done // max(1, event.total)
        if event.file == self._file and tenths <= self._tenths:
            return
        self._file, self._tenths = event.file, tenths
        said = f"{self._title(event)}: {size(event.done)} of {size(event.total)}"
        self._console.print(said, markup=False, soft_wrap=True)

    def _title(self, event: Fetching) -> str:
        source = f" from {event.source}" if event.source else ""
        return Cleaner(self._console.encoding)(f"fetching {event.file}{source}")
