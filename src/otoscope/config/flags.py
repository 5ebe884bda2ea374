"""Flags given as text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NoReturn

from otoscope.benchmark import BENCHMARK
from otoscope.config.layers import Place
from otoscope.errors import ConfigError

PLACES_OF_FLAGS: Mapping[str, Place] = MappingProxyType(
    {
        "data": ("dataset_args", BENCHMARK, "local_path"),
        "tasks": ("dataset_args", BENCHMARK, "extra_params", "tasks"),
        "no_swap": ("dataset_args", BENCHMARK, "extra_params", "do_swap"),
        "timeout": ("generation_config", "timeout"),
        "tag": ("tags",),
        "judge_model": ("judge_model_args", "model_id"),
        "judge_api_url": ("judge_model_args", "api_url"),
        "judge_api_key": ("judge_model_args", "api_key"),
        "judge_api_key_file": ("judge_model_args", "api_key_file"),
        "judge_revision": ("judge_model_args", "revision"),
        "judge_rpm": ("judge_model_args", "rpm"),
        "judge_tpm": ("judge_model_args", "tpm"),
    }
)
"""Where the values of flags go that do not bear the name of a field of ``TaskConfig``."""


def parse_object(text: str, flag: str) -> dict[str, Any]:
    """Read a flag given as a JSON object or as ``k=v,k=v``. Raises ``ConfigError`` that names the flag."""
    text = text.strip()
    if not text:
        raise ConfigError(f"{flag}: is empty; give a JSON object, {{}} for one without keys, or name=value")
    if not text.startswith("{"):
        return _parse_pairs(text, flag)
    try:
        return dict(_json(text))
    except json.JSONDecodeError as error:
        # Not what stands there: it may be a part of a key.
        raise ConfigError(
            f"{flag}: not valid JSON: {error.msg} at character {error.pos + 1}. "
            "Quote the whole value for the shell in single quotes, names and texts in double quotes"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{flag}: not valid JSON: {error}") from None


def parse_limit(text: str) -> int | float:
    """Read ``--limit``: ``10`` is the first ten of each task, ``0.1`` a tenth of each.

    Raises ``ConfigError`` for what is no number; whether it is a possible one is :func:`resolve`'s to say.
    """
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"--limit: {text!r} is neither a whole number nor a fraction such as 0.1") from None


def _json(text: str) -> Any:
    """Read JSON. Raises ``ValueError`` for NaN and infinities too, which Python's reader would take."""

    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is not a JSON number")

    return json.loads(text, parse_constant=refuse)


def _parse_pairs(text: str, flag: str) -> dict[str, Any]:
    pairs: dict[str, Any] = {}
    for number, piece in enumerate(filter(None, (p.strip() for p in text.split(","))), start=1):
        name, equals, value = (part.strip() for part in piece.partition("="))
        if not equals or not name:
            # Not what stands there: it may be a header with its key.
            raise ConfigError(
                f"{flag}: is neither JSON ({{...}}) nor of the form name=value,name=value (part {number})"
            )
        lowered = value.lower()
        try:
            pairs[name] = _json(
                {"none": "null"}.get(lowered, lowered if lowered in ("true", "false") else value)
            )
        except (ValueError, RecursionError):
            pairs[name] = value
    return pairs
