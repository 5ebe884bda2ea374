"""One run as every reporter sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from otoscope.records import Order, Outcome
from otoscope.runs import Run, judged_orders, rule_of
from otoscope.scoring import Rule, Summary


@dataclass(frozen=True, slots=True)
class Reported:
    """A run's numbers, and its samples one at a time.

    ``outcomes`` reads the run directory anew at each call, and covers all samples of the run, whatever the
    summary's view is.
    """

    path: Path
    summary: Summary
    manifest: Mapping[str, Any]
    outcomes: Callable[[], Iterator[Outcome]]

    @classmethod
    def of(cls, run: Run) -> Reported:
        """Return a loaded run as reporters see it."""
        return cls(run.path, run.summary, run.manifest, run.outcomes)

    @property
    def orders(self) -> Sequence[Order]:
        """The orders that the run judges."""
        return judged_orders(self.manifest)

    @property
    def rule(self) -> Rule:
        """The rule by which the summary scores its samples."""
        return rule_of(self.manifest, self.summary.scoring)

    @property
    def name(self) -> str:
        """What the run is called in tables: its label, else its model."""
        return self.summary.label or self.summary.model


def control_first(runs: Sequence[Reported]) -> list[Reported]:
    """Return the runs, of two a control before an evaluation: the second less the first is then the audio's.

    Any others stay in the order that they are in.
    """
    if len(runs) == 2:
        return sorted(runs, key=lambda run: run.summary.control is None)
    return list(runs)
