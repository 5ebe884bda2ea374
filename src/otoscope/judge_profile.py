"""What of a run's judge, its sampling and its scoring shapes scores.

Scores of runs that differ in it are not compared (``comparison``) and not ranked together (``leaderboard``).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from otoscope.records import Json

_TOKEN_LIMITS = ("max_tokens", "max_completion_tokens")
"""Raised within a run when a reply was cut off: no other way of sampling."""
_APART = ("api_url", "parameters", "extra_body", "imported")
"""Of what was requested: a restarted server has another URL, what is sent is told by ``sent``, and which
files replies were imported from changes no score."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeProfile:
    """How a run was judged. Make one with :func:`judge_profile`."""

    requested: Mapping[str, Any] = field(hash=False)
    """What was requested of the judge and tells it from others; what is not told, or empty, is left out."""
    names: frozenset[str]
    """What its server called it; empty where no reply named a model."""
    sent: frozenset[str]
    """The parameters of its requests, token limits aside, each set as JSON with sorted keys."""
    score_kinds: frozenset[str]
    """``expected`` for scores computed from probabilities, ``written`` for those that a reply spells out."""

    @property
    def parameters(self) -> list[Json]:
        """The sets of parameters that were sent; none for a judge inside of this process."""
        return [json.loads(sent) for sent in sorted(self.sent)]

    def differing(self, other: JudgeProfile) -> Iterator[tuple[str, Any, Any]]:
        """Yield what differs in another profile: a setting's name, its value here, and there.

        The names that a server returned count where both are known; where another judge was requested, they
        say nothing new.
        """
        told = set()
        for name in sorted({*self.requested, *other.requested}):
            values = self.requested.get(name), other.requested.get(name)
            if values[0] != values[1]:
                told.add(name)
                yield (f"judge.{name}", *values)
        another = bool(told & {"name", "weights"})
        if self.sent != other.sent and "weights" not in told:
            yield "judge.parameters", _one_or_all(self.parameters), _one_or_all(other.parameters)
        if self.names and other.names and self.names != other.names and not another:
            yield "judge's name as returned", _listed(self.names), _listed(other.names)
        if self.score_kinds != other.score_kinds:
            yield "scoring", _listed(self.score_kinds), _listed(other.score_kinds)


def judge_profile(
    requested: Mapping[str, Any],
    *,
    names: Collection[str],
    sent: Iterable[Mapping[str, Any]],
    score_kinds: Collection[str],
) -> JudgeProfile:
    """Return the profile of a judge that was requested like this, and whose replies tell the rest.

    ``requested`` is the fingerprint's ``judge`` part. Where no reply tells what was ``sent``, or how scores
    were read (``score_kinds``), it is what such a judge is asked for.
    """
    told = {name: value for name, value in requested.items() if name not in _APART}
    told = {name: value for name, value in told.items() if value not in (None, {}, [])}
    if "weights" in told:
        # The SHA-256 of an embedded judge's files say more than its replies, and it samples nothing.
        kinds = frozenset(score_kinds or ("expected",))
        return JudgeProfile(requested=told, names=frozenset(), sent=frozenset(), score_kinds=kinds)
    wanted = {**(requested.get("parameters") or {}), **(requested.get("extra_body") or {})}
    return JudgeProfile(
        requested=told,
        names=frozenset(names),
        sent=frozenset({_sampling(one) for one in sent if one} or {_sampling(wanted)}),
        score_kinds=frozenset(score_kinds or ("written",)),
    )


def _sampling(parameters: Mapping[str, Any]) -> str:
    kept = {name: _number(value) for name, value in parameters.items() if name not in _TOKEN_LIMITS}
    return json.dumps(kept, sort_keys=True, default=str)


def _number(value: Any) -> Any:
    """Return 1 for 1.0: they are one value, and two texts."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _listed(values: Iterable[str]) -> str:
    return ", ".join(sorted(values))


def _one_or_all(sets: list[Json]) -> Json | list[Json]:
    return sets[0] if len(sets) == 1 else sets
