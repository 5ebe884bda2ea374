"""What was measured, for people: shown with ``pytest -rP`` or ``-s``."""

from __future__ import annotations

import resource
import sys


def peak_memory() -> float:
    """Return the largest memory (GB) that this process has had."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9


def report(*lines: str) -> None:
    """Print what was measured."""
    print(*lines, sep="\n")
