"""Settings laid over each other, each value with where it came from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from otoscope.config.checks import setting_named
from otoscope.errors import ConfigError

Place = tuple[str, ...]
"""Where a value lies in nested settings: ``("judge_model_args", "rpm")``."""

ALTERNATIVES = ("api_key", "api_key_file")
"""Two ways to say the same: whoever says it in one of them means neither that a lower layer has."""

OF_ALL_MODELS = ("max_judge_calls", "max_judge_tokens", "max_cost")
"""What counts for all runs of one command together."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value came from; ``name`` is the flag, variable, provider or run, or the file with its line."""

    kind: Literal["stored", "file", "environment", "flag", "provider"]
    name: str

    def __str__(self) -> str:
        match self.kind:
            case "stored":
                return f"stored run {self.name}"
            case "environment":
                return f"environment variable {self.name}"
            case "flag":
                return f"flag {self.name}"
            case "provider":
                return f"provider {self.name}"
            case "file":
                return self.name


@dataclass(frozen=True, slots=True)
class Layer:
    """Settings from one source or several: fields of ``TaskConfig``, and where the values in them came from.

    What has no origin was given in Python.
    """

    values: Mapping[str, Any]
    origins: Mapping[Place, Origin] = field(default_factory=dict)

    def over(self, below: Layer) -> Layer:
        """Return these settings laid over others.

        Objects are merged key by key, but for an empty ``generation_config``, which replaces.
        """
        above = {name: value for name, value in self.values.items() if value is not None}
        merged = _merged(below.values, above)
        said = {place for place, _ in leaves(above)}
        known = {place: (self if place in said else below).origins.get(place) for place, _ in leaves(merged)}
        return Layer(merged, {place: origin for place, origin in known.items() if origin is not None})


def leaves(values: Mapping[str, Any], within: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Yield every value that is no object, or an empty one, with its place."""
    for name, value in values.items():
        place = (*within, name)
        if isinstance(value, Mapping) and value:
            yield from leaves(value, place)
        else:
            yield place, value


def at(given: Any, place: Iterable[str]) -> Any:
    """Return what lies at a place in nested objects, or ``None``."""
    for name in place:
        given = given.get(name) if isinstance(given, Mapping) else None
    return given


def located(error: ConfigError, layer: Layer) -> ConfigError:
    """Return an error about a setting as one that says in which line of a file it stands, if it does."""
    origin = origin_of(error, layer)
    return ConfigError(f"{origin}: {error}") if origin is not None and origin.kind == "file" else error


def origin_of(error: ConfigError, layer: Layer) -> Origin | None:
    """Return where the setting came from that an error is about, or the first value within it."""
    named = setting_named(str(error))
    if not named:
        return None
    for place, origin in layer.origins.items():
        if place[: len(named)] == named:
            return origin
    # What is said of the data set goes without its outer names.
    for place, origin in layer.origins.items():
        if place[0] == "dataset_args" and named == place[-len(named) :]:
            return origin
    return None


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    said_anew = ALTERNATIVES if any(above.get(name) is not None for name in ALTERNATIVES) else ()
    merged = {name: value for name, value in below.items() if name not in said_anew}
    for key, value in above.items():
        lower = merged.get(key)
        replaces = key == "generation_config" and not value
        if isinstance(lower, Mapping) and isinstance(value, Mapping) and not replaces:
            value = _merged(lower, value)
        merged[key] = value
    return merged
