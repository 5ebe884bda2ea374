"""Shapes: which type each field of a line or a manifest has, where it is there at all.

A file may come from elsewhere, or have been edited by hand. What is checked here, once, when it is read,
nobody who works with it has to check again. Fields that are not named here are nobody's business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

_END_OF_9999 = 253_402_300_800
_MOST = 1 << 62
"""Above any count or size; arithmetic with floats stays possible below it."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a field must be, as a test and in words; of an object also what its own fields must be."""

    words: str
    fits: Callable[[Any], bool]
    fields: Mapping[str, Shape] = field(default_factory=dict)
    or_null: bool = True


def _number(low: float, high: float) -> Callable[[Any], bool]:
    return lambda value: type(value) in (int, float) and low <= value < high


def _whole(low: int, high: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and low <= value < high


def _every(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(fits, value))


def _by_name(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(map(fits, value.values()))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


TEXT = Shape("text", _is_text)
FLAG = Shape("true or false", lambda value: isinstance(value, bool))
OBJECT = Shape("an object", lambda value: isinstance(value, dict))
WHOLE = Shape("a whole number", _whole(-_MOST, _MOST))
COUNT = Shape("a count", _whole(0, _MOST))
NUMBER = Shape("a number", _number(-_MOST, _MOST))
SECONDS = Shape("a number of seconds", _number(0, _END_OF_9999))
MOMENT = Shape("a Unix time", _number(0, _END_OF_9999))
TEXTS = Shape("a list of texts", _every(_is_text))
TEXTS_BY_NAME = Shape("an object of texts", _by_name(_is_text))
COUNTS_BY_NAME = Shape("an object of counts", _by_name(COUNT.fits))


def _object(fields: Mapping[str, Shape]) -> Shape:
    return replace(OBJECT, fields=fields)


def _required(shape: Shape) -> Shape:
    return replace(shape, or_null=False)


REPLY: Mapping[str, Shape] = {
    "text": TEXT,
    "reasoning": TEXT,
    "finish_reason": TEXT,
    "usage": OBJECT,
    "model": TEXT,
    "request_id": TEXT,
    "parameters": _required(OBJECT),
    "endpoint": TEXT,
    "audio_part": TEXT,
    "started_at": _required(MOMENT),
    "latency": _required(SECONDS),
    "attempts": _required(COUNT),
    "probabilities": OBJECT,
    "estimated": COUNTS_BY_NAME,
}
_CLIP: Mapping[str, Shape] = {
    "sha256": TEXT,
    "bytes": WHOLE,
    "mtime_ns": WHOLE,
    "format": TEXT,
    "seconds": SECONDS,
    "rate": COUNT,
    "channels": COUNT,
    "changed": TEXTS,
    "sent": _object(
        {
            "sha256": TEXT,
            "bytes": COUNT,
            "format": TEXT,
            "seconds": SECONDS,
            "rate": COUNT,
            "channels": COUNT,
        }
    ),
    "control": TEXT,
    "from": TEXT,
    "converter": TEXT,
}
LINE: Mapping[str, Shape] = {
    "clip": _object(_CLIP),
    "failure": _object({"message": TEXT, "attempts": COUNT, "file": OBJECT}),
    "reasoning": TEXT,
    "filter": TEXT,
    "audio_part": TEXT,
    "probabilities": OBJECT,
    "replies": _required(Shape("a list of objects", _every(OBJECT.fits))),
}

_ENDPOINT: Mapping[str, Shape] = {
    "name": TEXT,
    "revision": TEXT,
    "api_url": TEXT,
    "parameters": OBJECT,
    "extra_body": OBJECT,
}
_JUDGE: Mapping[str, Shape] = {**_ENDPOINT, "protocol": TEXT, "do_swap": FLAG, "prompt_sha256": TEXT}
MANIFEST: Mapping[str, Shape] = {
    "benchmark": TEXT,
    "created_at": TEXT,
    "package_version": TEXT,
    "label": TEXT,
    "tags": TEXTS_BY_NAME,
    "settings": OBJECT,
    "judge_id": TEXT,
    "dataset": _object({"root": TEXT, "digest": TEXT, "task_sizes": COUNTS_BY_NAME}),
    "selection": _object(
        {
            "tasks": TEXTS,
            "limit": NUMBER,
            "shuffle": FLAG,
            "seed": WHOLE,
            "samples": COUNT,
            "shard": TEXT,
            "selected": COUNT,
            "missing_shards": TEXTS,
        }
    ),
    "fingerprint": _object({"model": _object(_ENDPOINT), "prompt": OBJECT, "judge": _object(_JUDGE)}),
    "answers_from": OBJECT,
    "merged_from": Shape("a list of objects", _every(OBJECT.fits)),
    "imported": OBJECT,
}


def check(value: Mapping[str, Any], shapes: Mapping[str, Shape], place: str = "") -> None:
    """Raise ``TypeError`` for the first field that has not its shape; ``place`` goes before its name."""
    for name, shape in shapes.items():
        if name not in value:
            continue
        found = value[name]
        if found is None and shape.or_null:
            continue
        if not shape.fits(found):
            raise TypeError(f"{place}{name} must be {shape.words}, but is {found!r:.80}")
        if shape.fields:
            check(found, shape.fields, f"{place}{name}.")
