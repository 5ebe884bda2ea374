"""Clip facts -> what was sent of the clips: how many the audio policy changed, shortened or skipped.

The facts are those of an answer line (see ``docs/run-directory.md``). ``sent`` is there only where other
bytes than the file's were sent. In a control run the facts are those of the clip that was sent in place of
the sample's own (``shuffled``), or of the sample's own (``silence``, ``no-audio``).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from otoscope.choices import CONTROLS
from otoscope.records import Answer, Failure, FailureKind, Json, Outcome

SILENCE, SHUFFLED, NO_AUDIO = "silence", "shuffled", "no-audio"
"""The controls: see :data:`otoscope.choices.CONTROLS`."""
CONTROL_WARNINGS = {control: f"control_{control.replace('-', '_')}" for control in CONTROLS}
"""What each control is warned of as; of every report the first line."""
SHORTENED = 0.001
"""Seconds: encoders round, so a clip that lost no more than that was not shortened."""


def control_of(manifest: Mapping[str, Any]) -> str | None:
    """Return what a run sends in place of the clips: one of ``choices.CONTROLS``, or ``None``."""
    return ((manifest.get("fingerprint") or {}).get("prompt") or {}).get("control")


def seconds_sent(outcome: Outcome) -> float | None:
    """Return how long the clip was that the model was sent (s); ``None`` for none, and where nobody knows."""
    clip = outcome.clip or {}
    if clip.get("control") == NO_AUDIO:
        return None
    sent = _number(clip, "sent", "seconds")
    return _number(clip, "seconds") if sent is None else sent


def seconds_cut(outcome: Outcome) -> float | None:
    """Return how much was cut off a clip before it was sent (s); 0 where it was not shortened."""
    whole, sent = _number(outcome.clip or {}, "seconds"), seconds_sent(outcome)
    if whole is None or sent is None:
        return None
    cut = round(whole - sent, 6)
    return cut if cut > SHORTENED else 0.0


@dataclass(slots=True)
class SentClips:
    """What a run sent of its clips. Holds numbers, and the names of converters."""

    counts: Counter[str] = field(default_factory=Counter)
    converters: Counter[str] = field(default_factory=Counter)
    _seconds: list[float] = field(default_factory=list)
    _cut: list[float] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """Add one sample."""
        if isinstance(outcome.answer, Failure):
            self.counts["skipped"] += outcome.answer.kind is FailureKind.OVER_LIMIT
        if not isinstance(outcome.answer, Answer) or not outcome.clip:
            return
        clip = outcome.clip
        self.counts["clips"] += 1
        self._seconds.append(_number(clip, "seconds") or 0.0)
        if converter := clip.get("converter"):
            self.converters[str(converter)] += 1
        if clip.get("control") == NO_AUDIO:
            return
        cut = seconds_cut(outcome) or 0.0
        self._cut.append(cut)
        done = {
            "shortened": cut > 0,
            "resampled": _differs(clip, "rate"),
            "mixed_down": _differs(clip, "channels"),
            # Silence is made, in a form of its own: that of the clip was not changed.
            "encoded": clip.get("control") != SILENCE and _is_encoded(clip),
        }
        self.counts.update(name for name, so in done.items() if so)
        sent = bool(clip.get("sent") or clip.get("changed")) and clip.get("control") != SILENCE
        self.counts["changed"] += sent or any(done.values())

    def summary(self, policy: str | None) -> Json:
        """Return the counts, in clips, and seconds: of the files, and cut off them."""
        names = ("clips", "changed", "shortened", "resampled", "mixed_down", "encoded", "skipped")
        return {
            "policy": policy,
            **{name: int(self.counts[name]) for name in names},
            "seconds": round(math.fsum(self._seconds), 3),
            "seconds_cut": round(math.fsum(self._cut), 3),
            "converters": dict(sorted(self.converters.items())),
        }


def _is_encoded(clip: Mapping[str, Any]) -> bool:
    """Return whether a clip was sent in another format than it lies in the data set."""
    sent = clip.get("sent")
    if isinstance(sent, Mapping):
        return bool(sent.get("format") != clip.get("format"))
    # Of lines without these facts the format is that of what was sent; only formats were changed then.
    return bool(clip.get("changed"))


def _differs(clip: Mapping[str, Any], name: str) -> bool:
    sent, own = _number(clip, "sent", name), _number(clip, name)
    return sent is not None and own is not None and sent != own


def _number(facts: Mapping[str, Any], *names: str) -> float | None:
    """Return a fact that is a finite number."""
    value: Any = facts
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)
