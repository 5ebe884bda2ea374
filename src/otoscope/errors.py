"""What stops a run. Each error carries its exit code, and a message that says the next step.

The whole tree::

    OtoscopeError
    ├── ConfigError           2   a flag, a JSON setting or the environment is wrong
    ├── DatasetError          3   the data cannot be read or used
    │   └── hub.UnreachableError  3   the hub that has them is out of reach
    ├── EndpointError         4   the model's endpoint cannot go on   (role "model")
    │                         5   the judge's endpoint cannot go on   (role "judge")
    ├── RunDirectoryError     6   the run directory cannot be used or continued
    ├── LimitReachedError     7   stopped at a limit that the user set
    ├── TrackingError         8   a tracker could not be told of a stored run   (report --track)
    └── RunInterruptedError 130   stopped by Ctrl-C                   (143: by SIGTERM)

Trouble with one sample is never an exception that stops a run: it is a
:class:`otoscope.records.Failure`, which is data. An exception outside of this tree is our own bug and
is shown with its traceback. Exit code 1 is no error: the run finished, with some samples failed.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

Role = Literal["model", "judge"]


class OtoscopeError(Exception):
    """Anything that stops a run and that a user can do something about."""

    exit_code = 2
    run_path: Path | None = None
    """The run that was stopped, where there was one: with ``use_cache`` set to it, it goes on."""


class ConfigError(OtoscopeError):
    """A flag, a JSON setting or an environment variable is missing or wrong."""

    exit_code = 2


class DatasetError(OtoscopeError):
    """The data set cannot be found, read, or used as it is."""

    exit_code = 3


class EndpointError(OtoscopeError):
    """An endpoint refuses every request or is gone; what was done so far is stored and can be resumed."""

    def __init__(self, role: Role, message: str) -> None:
        super().__init__(message)
        self.role = role
        self.exit_code = 4 if role == "model" else 5


class RunDirectoryError(OtoscopeError):
    """The run directory cannot be created, read, written or continued."""

    exit_code = 6


class LimitReachedError(OtoscopeError):
    """A limit of the user's own for the judge is reached; what was done so far is stored and can be resumed.

    ``flag`` names the limit. ``enough`` is a higher one that should do for what is owed still.
    """

    exit_code = 7

    def __init__(self, message: str, *, flag: str, enough: float) -> None:
        super().__init__(message)
        self.flag = flag
        self.enough = enough


class TrackingError(OtoscopeError):
    """A tracker could not be told of a run that is stored; at the end of an evaluation this is a warning."""

    exit_code = 8


class RunInterruptedError(OtoscopeError):
    """The run was stopped by a signal; its state is saved."""

    exit_code = 130

    def __init__(self, message: str, *, terminated: bool = False) -> None:
        super().__init__(message)
        self.exit_code = 143 if terminated else 130


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ``", did you mean 'x'?"`` for the closest of the known words, or nothing when none is close."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f", did you mean {close[0]!r}?" if close else ""


def counted(count: int, noun: str) -> str:
    """Return ``"1 call"`` or ``"1,200 calls"``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
