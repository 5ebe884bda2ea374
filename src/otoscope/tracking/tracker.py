"""What a tracker has to be able to do."""

from __future__ import annotations

from typing import Protocol

from otoscope.tracking.logged import Logged


class Tracker(Protocol):
    """A tracker behind its own library."""

    def log(self, run: Logged) -> str:
        """Tell of a run, or of what changed where it was told before; return where it is to be seen.

        Whatever is raised is trouble with the tracker, never with the run.
        """
        ...
