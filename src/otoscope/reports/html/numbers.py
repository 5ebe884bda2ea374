"""How numbers are written in the page: the same in every language, with the signs of print."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timezone

NOT_AVAILABLE = "n/a"
MINUS = "−"


def score(value: float | None) -> str:
    """Return a score with two decimals."""
    return NOT_AVAILABLE if value is None else f"{value:.2f}".replace("-", MINUS)


def signed(value: float | None) -> str:
    """Return a difference of scores, with its sign."""
    return NOT_AVAILABLE if value is None else f"{value:+.2f}".replace("-", MINUS)


def interval(ends: Sequence[float] | None) -> str:
    """Return an interval of scores in brackets."""
    return "" if ends is None else f"[{score(ends[0])}, {score(ends[1])}]"


def signed_interval(ends: Sequence[float] | None) -> str:
    """Return an interval of differences in brackets."""
    return "" if ends is None else f"[{signed(ends[0])}, {signed(ends[1])}]"


def percent(share: float | None) -> str:
    """Return a share (0 to 1) in whole percent."""
    return NOT_AVAILABLE if share is None else f"{100 * share:.0f}\u00a0%"


def coverage(scored: int, n: int) -> str:
    """Return how much of it is scored, rounded down as in every report: only all of it is 100 %."""
    if not n:
        return NOT_AVAILABLE
    shown = f"{math.floor(1000 * scored / n) / 10:.1f}"
    return f"{shown.removesuffix('.0')}\u00a0%"


def points(value: float | None) -> str:
    """Return a number without decimals."""
    return NOT_AVAILABLE if value is None else f"{value:.0f}"


def count(number: float) -> str:
    """Return a count, its thousands set apart."""
    return f"{number:,.0f}"


def p_value(p: float | None) -> str:
    """Return a p-value to the thousandth."""
    if p is None:
        return NOT_AVAILABLE
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def seconds(value: float | None) -> str:
    """Return a latency."""
    return NOT_AVAILABLE if value is None else f"{value:.2f} s"


def duration(value: float) -> str:
    """Return a span of time (s) in the units a person would say."""
    if value < 90:
        return f"{value:.0f} s"
    minutes = round(value / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def moment(unix: float) -> str:
    """Return a Unix time as date and time of day, UTC."""
    return datetime.fromtimestamp(unix, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def date_of(text: str | None) -> str:
    """Return an ISO time as date and time of day; what is none, as it is."""
    if not text:
        return NOT_AVAILABLE
    try:
        parsed = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return text
    return moment(parsed.timestamp()) if parsed.tzinfo else parsed.strftime("%Y-%m-%d %H:%M")
