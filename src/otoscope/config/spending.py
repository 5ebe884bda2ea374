"""What the judge may use, and what its tokens cost."""

from __future__ import annotations

import math
from typing import Any

from otoscope.config.checks import checked_integer, checked_rate
from otoscope.config.settings import EmbeddedSettings, JudgeLimits, JudgeSettings
from otoscope.config.task import TaskConfig
from otoscope.errors import ConfigError
from otoscope.records import Price

_FLAGS = {
    "max_judge_calls": "--max-judge-calls",
    "max_judge_tokens": "--max-judge-tokens",
    "max_cost": "--max-cost",
}


def judge_price(config: TaskConfig) -> Price | None:
    """Resolve what the judge's tokens cost. Raises ``ConfigError``."""
    return None if config.judge_price is None else _checked_price(config.judge_price)


def judge_limits(config: TaskConfig, judge: JudgeSettings | None) -> JudgeLimits:
    """Resolve what may be used on the judge. Raises ``ConfigError``, also where a limit has no effect."""
    limits = JudgeLimits(
        calls=None
        if config.max_judge_calls is None
        else checked_integer(config.max_judge_calls, "max_judge_calls", low=1),
        tokens=checked_rate(config.max_judge_tokens, "max_judge_tokens"),
        cost=checked_rate(config.max_cost, "max_cost"),
    )
    given = ", ".join(flag for name, flag in _FLAGS.items() if getattr(config, name) is not None)
    if given and judge is None:
        raise ConfigError(f"{given}: no judge is asked with --no-judge; give limits to 'otoscope judge'")
    if judge is not None and isinstance(judge.endpoint, EmbeddedSettings):
        given = ", ".join(filter(None, (given, "--judge-price" if config.judge_price is not None else "")))
        if given:
            raise ConfigError(f"{given}: the embedded judge costs nothing; leave that out")
    elif limits.cost is not None and config.judge_price is None:
        raise ConfigError(
            "--max-cost needs --judge-price IN,OUT, what a million tokens in and out cost at your judge, for "
            "example --judge-price 10,30: no prices come with this tool, since they change"
        )
    return limits


def _checked_price(given: Any) -> Price:
    parts = given.split(",") if isinstance(given, str) else given
    if isinstance(parts, (list, tuple)) and len(parts) == 2:
        numbers = [_number(part) for part in parts]
        if all(0 <= number < 1e12 for number in numbers):
            return Price(*numbers)
    raise ConfigError(
        f"judge_price: {given!r} must be two numbers from 0 up, what a million tokens in and a million "
        "tokens out cost, for example 2.5,10"
    )


def _number(part: Any) -> float:
    """Return a number, or NaN for what is none."""
    try:
        return math.nan if isinstance(part, bool) else float(part)
    except (TypeError, ValueError, OverflowError):
        return math.nan
