"""Checks of one value each, that say the setting's name when they refuse it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import Any, NoReturn

from otoscope.config.urls import joined_urls
from otoscope.errors import ConfigError, did_you_mean
from otoscope.nesting import decoded

_NAMED = re.compile(
    r"--(?P<flag>[a-z-]+)(?=[:\s])|(?P<name>\w+(?:\.[\w-]+)*):(?: unknown key '(?P<key>[^']*)'|(?=\s))"
)
"""How every message about one setting begins."""


def setting_named(message: str) -> tuple[str, ...]:
    """Return the place of the setting that a message begins with; outer names may be left out of it."""
    found = _NAMED.match(message)
    if found is None:
        return ()
    if found["flag"]:
        return (found["flag"].replace("-", "_"),)
    return (*found["name"].split("."), *([found["key"]] if found["key"] else []))


def only_known(given: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    """Refuse an object with a key that does not exist."""
    known = tuple(known)
    for key in given:
        if key not in known:
            raise ConfigError(
                f"{where}: unknown key {key!r}{did_you_mean(str(key), known)}\nKnown: {', '.join(known)}"
            )


def plain_object(given: Any, where: str) -> dict[str, Any]:
    """Return a deep copy as plain JSON. Messages never show the value: it may hold a key."""
    if not isinstance(given, Mapping):
        raise ConfigError(f"{where}: must be an object, not {type(given).__name__}")
    try:
        copy = decoded(json.dumps(given, allow_nan=False, default=_plain))
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: cannot be written as JSON: {error}") from None
    return dict(copy)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, PathLike):
        return fspath(value)
    raise TypeError(f"a value of type {type(value).__name__}")


def checked_text(value: Any, name: str) -> str | None:
    """Return text or ``None`` as it is, and a path as text. No text may be empty: :func:`refuse_empty`."""
    if isinstance(value, PathLike):
        value = fspath(value)
    if value is None:
        return None
    if not isinstance(value, str):
        raise ConfigError(f"{name}: must be text, not {type(value).__name__}")
    refuse_empty(value, name)
    return value


def checked_urls(value: Any, name: str) -> str | None:
    """Return the URLs of a list as one text, ``A,B,C``; text or ``None`` as it is."""
    if value is None or isinstance(value, str):
        return checked_text(value, name)
    if not isinstance(value, (list, tuple)) or not value or not all(isinstance(one, str) for one in value):
        raise ConfigError(f"{name}: must be a URL, or a list of the URLs of replicas")
    return joined_urls(value)


def refuse_empty(text: str, name: str) -> None:
    """Refuse an empty text, which stands for no default: more likely a variable was not set.

    An empty system prompt or label is none, which can be meant.
    """
    if not text.strip() and name.strip("-").replace("-", "_") not in ("system_prompt", "label"):
        raise ConfigError(f"{name}: is empty (a variable that is not set?). Give a value, or leave it out")


def checked_words(given: Any, name: str) -> list[str]:
    """Return a list of words; ``"a,b"`` is two."""
    if isinstance(given, str):
        return [word.strip() for word in given.split(",") if word.strip()]
    if not isinstance(given, (list, tuple, set, frozenset)) or not all(isinstance(w, str) for w in given):
        raise ConfigError(f"{name}: {given!r} must be a list of names")
    return list(given)


def expanded_path(text: Any) -> Path:
    """Return a path, with ``~`` as the user's home."""
    return Path(text).expanduser()


def checked_choice(value: str, known: tuple[str, ...], name: str) -> str:
    """Return a word that is one of the known ones."""
    if value not in known:
        raise ConfigError(f"{name}: {value!r} is not one of {', '.join(known)}{did_you_mean(value, known)}")
    return value


def checked_number(value: Any, name: str, *, low: float = -math.inf, high: float = math.inf) -> float:
    """Return a number within its bounds; ``True`` and ``False`` are none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        _refuse_number(value, name, "a number", low, high)
    return value


def checked_integer(value: Any, name: str, *, low: float = -math.inf) -> int:
    """Return a whole number that is not too low; ``True`` and ``False`` are none."""
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        _refuse_number(value, name, "a whole number", low, math.inf)
    return value


def _refuse_number(value: Any, name: str, what: str, low: float, high: float) -> NoReturn:
    bounds = f" from {low:g}" + (f" to {high:g}" if high < math.inf else " up") if low > -math.inf else ""
    raise ConfigError(f"{name}: {value!r} must be {what}{bounds}")


def checked_rate(value: Any, name: str) -> float | None:
    """Return a limit per minute, above 0, or ``None`` as it is."""
    if value is None:
        return None
    if isinstance(value, (int, float)) and value <= 0:
        raise ConfigError(f"{name}: {value!r} must be above 0; for no limit, leave it out")
    return checked_number(value, name, low=0.0, high=1e12)


def checked_flag(value: Any, name: str) -> bool:
    """Return ``True`` or ``False`` as it is."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name}: {value!r} must be true or false")
    return value


def or_default(value: Any, default: Any) -> Any:
    """Return the value, or its default for ``None``."""
    return default if value is None else value
