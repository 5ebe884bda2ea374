"""Progress over the clips of a data set: a bar on a terminal, four lines anywhere else."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from otoscope.audit import Progress as AuditProgress
from otoscope.reports.text import size

_LINES = 4


class AuditDisplay:
    """Shows how far an audit is. Leaving its ``with`` block gives the terminal back."""

    def __init__(self, console: Console, what: str) -> None:
        self._console = console
        self._what = what
        self._said = 0
        self._bar: Progress | None = None

    def __enter__(self) -> AuditDisplay:  # noqa: PYI034 (Self needs Python 3.11)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, progress: AuditProgress) -> None:
        """Take in how far it is."""
        if self._console.is_terminal:
            self._draw(progress)
        else:
            self._say(progress)

    def _draw(self, progress: AuditProgress) -> None:
        if self._bar is None:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("clips {task.fields[read]}"),
                TimeRemainingColumn(),
            )
            # What was drawn goes: the report says how many there were.
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._bar.add_task(self._what, total=progress.files, read="")
            self._bar.start()
        task = self._bar.task_ids[0]
        self._bar.update(task, completed=progress.files_done, read=size(progress.bytes_done))

    def _say(self, progress: AuditProgress) -> None:
        part = _LINES * progress.files_done // max(1, progress.files)
        if part > self._said:
            self._said = part
            said = f"{self._what}: {progress.files_done:,} of {progress.files:,} clips"
            self._console.print(f"{said}, {size(progress.bytes_done)}", markup=False, soft_wrap=True)
