"""One of the shares that a selection is divided into, given as text."""

from __future__ import annotations

import re
from dataclasses import dataclass

from otoscope.errors import ConfigError

_FORM = re.compile(r"([0-9]{1,9})/([0-9]{1,9})")
_MOST = 100_000


@dataclass(frozen=True, slots=True)
class Shard:
    """The share ``number`` of ``of`` shares, counted from 1."""

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Read ``I/N``. Raises ``ConfigError`` for what is none of 1/N to N/N."""
        found = _FORM.fullmatch(text.strip())
        if found is None:
            raise ConfigError(
                f"shard: {text!r:.80} must have the form I/N, such as 1/4 for the first of four shards"
            )
        number, of = map(int, found.groups())
        if of == 0:
            raise ConfigError(f"shard: {text!r} there are no shards of 0; give I/N with N from 1 up")
        if number == 0:
            raise ConfigError(
                f"shard: {text!r}: shards are counted from 1, so that of {of} they are 1/{of} to {of}/{of}. "
                "Where a job array counts from 0, add 1: $((SLURM_ARRAY_TASK_ID+1))/$SLURM_ARRAY_TASK_COUNT"
            )
        if of > _MOST:
            raise ConfigError(f"shard: {text!r}: there can be at most {_MOST:,} shards")
        if number > of:
            raise ConfigError(f"shard: {text!r}: of {of} shards the last is {of}/{of}")
        return cls(number, of)

    def __str__(self) -> str:
        """Return the text that means this shard."""
        return f"{self.number}/{self.of}"
