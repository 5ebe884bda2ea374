"""What a run's page shows of its samples, gathered in the reading in which they are added up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from otoscope.records import Outcome
from otoscope.reports.charts import Measured
from otoscope.reports.html import Book, Clips
from otoscope.runs import Listener, Reading
from otoscope.scoring import control_of


class Gathered:
    """What the charts show of a run's samples, and what the page lists of them.

    ``folder`` is where the page will lie.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.measured = Measured()
        self.book = Book()

    def listeners(self, reading: Reading) -> Sequence[Listener]:
        """Return who is to hear of each sample; for :func:`otoscope.runs.read_run`."""
        rule, measured = reading.rule, self.measured
        part = self.book.part(rule, control_of(reading.manifest), Clips(reading.manifest, self._folder))

        def measure(outcome: Outcome) -> None:
            measured.add(outcome, rule)

        return measure, part.add
