"""How large numbers are written for people, in every report."""

from __future__ import annotations


def short_count(count: int) -> str:
    """Return a count in three digits: 987, 12.3k, 1.24M."""
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= 0.9995 * size:
            return f"{count / size:.3g}{unit}"
    return str(count)
