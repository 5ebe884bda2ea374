"""Scores of AIR-Bench Chat that others published: the rows of ``published_scores.csv``, and a check of each.

Published tables contradict themselves now and then. What a row's numbers say against each other is computed
here (:attr:`PublishedScore.inconsistency`); what else a reader should know of it is its ``note``.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from importlib import resources

UNKNOWN_JUDGES = ("not stated", "not verified")
"""What stands in the column of a row's judge where nobody knows which one it was."""

_SCORES = ("speech", "sound", "music", "mixed", "average")


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedScore:
    """One published row. Scores are from 0 to 10, ``None`` where none is published."""

    model: str
    speech: float | None
    sound: float | None
    music: float | None
    mixed: float | None
    average: float | None
    judge: str
    """As published, or one of ``UNKNOWN_JUDGES``."""
    protocol: str
    status: str
    """``official`` (the benchmark's authors), ``self-reported`` (the model's), ``third-party`` or
    ``reproduction``."""
    partial: str | None
    """Why the scores are not over the benchmark's samples, where they are said not to be."""
    source: str
    note: str

    @property
    def judge_known(self) -> bool:
        """Whether the judge is named."""
        return self.judge not in UNKNOWN_JUDGES

    @property
    def decimals(self) -> int:
        """Number of decimals the row was published with: the most that one of its scores has."""
        return max(-int(_decimal(score).as_tuple().exponent) for score in self._scores() if score is not None)

    @property
    def inconsistency(self) -> str | None:
        """How the average differs from the mean of the row's own four columns, in words.

        ``None`` where it is that mean, rounded either way, or cannot be checked. Two causes are told apart:
        within one unit of the last decimal, the average was cut, or taken before the columns were rounded
        (half a unit for them, half a unit for the average itself); beyond it, the row contradicts itself.
        """
        if None in self._scores():
            return None
        *columns, average = (_decimal(score) for score in self._scores() if score is not None)
        mean = sum(columns, Decimal()) / len(columns)
        unit = Decimal(1).scaleb(-self.decimals)
        published = average.quantize(unit)
        if abs(mean - average) <= unit / 2:
            return None
        if abs(mean - average) <= unit:
            cause = "cut, or taken" if average < mean else "taken"
            return (
                f"the average {published} is not the rounded mean of its own columns, {mean}: it was {cause} "
                "before they were rounded"
            )
        return f"the average {published} contradicts its own columns, whose mean is {mean}"

    def _scores(self) -> tuple[float | None, ...]:
        return tuple(getattr(self, name) for name in _SCORES)


def published_scores() -> tuple[PublishedScore, ...]:
    """Return the published rows in the order of the file."""
    file = resources.files("otoscope") / "published_scores.csv"
    rows = csv.DictReader(file.read_text(encoding="utf-8").splitlines())
    return tuple(_row(row) for row in rows)


def _row(row: Mapping[str, str]) -> PublishedScore:
    return PublishedScore(
        model=row["model"],
        speech=_score(row["speech"]),
        sound=_score(row["sound"]),
        music=_score(row["music"]),
        mixed=_score(row["mixed"]),
        average=_score(row["average"]),
        judge=row["judge"],
        protocol=row["protocol"],
        status=row["status"],
        partial=row["partial"] or None,
        source=row["source"],
        note=row["note"],
    )


def _score(text: str) -> float | None:
    return float(text) if text else None


def _decimal(score: float) -> Decimal:
    # By its shortest text, which is the published one: 6.79 is not a binary fraction.
    return Decimal(str(score))
