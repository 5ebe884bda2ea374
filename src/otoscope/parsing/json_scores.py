"""JSON: the scores in a value that a reply holds, under the keys that judges use for them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from otoscope.parsing.claims import Claim, Doubt, as_doubts
from otoscope.parsing.grammar import MAX_LINE, written_score

_MAX_JSON_FAILURES = 16  # each costs up to the whole text; a reply holds one JSON value, not dozens
_JSON_OPENING = re.compile(r'[\s`*]*(?:json\s*)?(?=\{\s*(?:"|$)|\[\s*(?:[\[{"]|[0-9.]+\s*(?:,|$)|$))')
_JSON_REST = re.compile(r"[ \t`*.,;]*(?![^\r\n])")
# Numbers are read as floats because int() refuses very long ones. Objects become tuples of pairs, so that a
# repeated key is seen twice, and stay apart from lists.
_JSON = json.JSONDecoder(parse_int=float, parse_float=float, object_pairs_hook=tuple)
_SCORE_KEY = re.compile(r"(?:final|overall)?(?:scores?|ratings?)")
_LABEL_KEY = re.compile(
    r"(?:scores?|ratings?)?(?:of|for)?(?:ai)?(?:assistant|助手|助理)?([12])s?(?:scores?|ratings?)?"
)


class JsonScores:
    """The JSON values in one reply, read where a line begins one."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._failures = 0
        self.end = 0
        """Where the last value ends: up to there, lines are a part of it."""

    def said(self, line: str, start: int) -> Iterable[Claim | Doubt] | None:
        """Return what the value says that begins on the line at ``start``, or ``None`` if none does."""
        opening = _JSON_OPENING.match(line)
        if not opening or self._failures >= _MAX_JSON_FAILURES:
            return None
        try:
            value, self.end = _JSON.raw_decode(self._text, start + opening.end())
        except (ValueError, RecursionError):
            self._failures += 1
            return None
        return _json_said(value, alone=_JSON_REST.match(self._text, self.end) is not None)


def _json_said(value: Any, *, alone: bool) -> Iterable[Claim | Doubt]:
    """Return what a JSON value says; within a sentence, or under unknown keys, it is no verdict."""
    claims = list(_json_claims(value))
    if claims:
        return claims if alone else as_doubts(claims)
    numbers = _json_numbers(value)
    return (Doubt((), numbers),) if len(numbers) == 2 else ()


def _json_numbers(value: Any) -> list[float]:
    numbers: list[float] = []
    pending = [value]
    while pending:
        value = pending.pop()
        if isinstance(value, list):
            pending += reversed(value)
        elif isinstance(value, tuple):
            pending += [item for _, item in reversed(value)]
        elif isinstance(value, float):
            numbers.append(value)
    return numbers


def _json_claims(value: Any) -> Iterator[Claim]:
    yield from _json_pair(value)
    pending: list[tuple[int, Any]] = [(0, value)]  # with the assistant under whose key the value lies, or 0
    while pending:
        owner, value = pending.pop()
        if isinstance(value, list):
            pending += [(owner, item) for item in value]
        elif isinstance(value, tuple):
            for key, item in value:
                name = re.sub(r"[\W_]+", "", key.lower()) if len(key) <= MAX_LINE else ""
                label = _LABEL_KEY.fullmatch(name)
                is_score = _SCORE_KEY.fullmatch(name) is not None
                assistant = int(label[1]) if label else owner
                score = _json_score(item)
                if score is None:
                    pending.append((assistant, item))
                elif assistant and (label or is_score):
                    yield assistant, score
                if is_score and not owner:
                    yield from _json_pair(item)


def _json_pair(value: Any) -> Iterable[Claim]:
    if not isinstance(value, list) or len(value) != 2:
        return ()
    first, second = _json_score(value[0]), _json_score(value[1])
    return () if first is None or second is None else ((1, first), (2, second))


def _json_score(value: Any) -> float | None:
    """Return a number, or a text that is one, as it is claimed; ``None`` for anything else."""
    if isinstance(value, float):
        return value
    return written_score(value.strip()) if isinstance(value, str) else None
