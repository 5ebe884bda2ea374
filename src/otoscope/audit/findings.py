"""What can be found wrong with a data set."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from otoscope.records import Json


class Kind(str, Enum):
    """A kind of finding. The value is what is written and counted; the order is that of reports."""

    BAD_RECORD = "bad_record"
    DUPLICATE_KEY = "duplicate_key"
    EMPTY_QUESTION = "empty_question"
    EMPTY_REFERENCE = "empty_reference"
    MISSING = "missing"
    OUTSIDE_ROOT = "outside_root"
    UNREADABLE = "unreadable"
    EMPTY = "empty"
    NOT_AUDIO = "not_audio"
    DAMAGED = "damaged"
    ZERO_DURATION = "zero_duration"
    TRUNCATED = "truncated"
    LENGTH_MISMATCH = "length_mismatch"
    SILENT = "silent"
    NAME_MISMATCH = "name_mismatch"
    DUPLICATE_CLIP = "duplicate_clip"
    EMPTY_DESCRIPTION = "empty_description"
    UNNAMED_FILES = "unnamed_files"

    @property
    def fails(self) -> bool:
        """Whether it loses or falsifies a sample; the others are warnings."""
        return self not in _WARNINGS


_WARNINGS = frozenset(
    {
        Kind.SILENT,
        Kind.NAME_MISMATCH,
        Kind.DUPLICATE_CLIP,
        Kind.EMPTY_DESCRIPTION,
        Kind.UNNAMED_FILES,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was found. It names no folder outside of the data set."""

    kind: Kind
    task: str | None = None
    dataset: str | None = None
    path: str | None = None
    """The file or folder, from the root on, with ``/``."""
    keys: tuple[str, ...] = ()
    """The samples that it concerns."""
    detail: str = ""

    def to_json(self) -> Json:
        """Return the form that machines read."""
        return {
            "kind": self.kind.value,
            "fails": self.kind.fails,
            "task": self.task,
            "dataset": self.dataset,
            "path": self.path,
            "keys": list(self.keys),
            "detail": self.detail,
        }
