"""The audio policy: what is done to a clip before it is sent, given as text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from otoscope.config.checks import checked_choice
from otoscope.errors import ConfigError, did_you_mean

FORMATS = ("wav", "mp3", "flac")
MP3_RATES = (8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)
"""The sampling rates (Hz) that an mp3 can have."""
OVER = ("truncate", "skip", "error")
AS_IS = "as-is"
_KEYS = ("rate", "mono", "max-seconds", "over", "format")
_EXAMPLE = "rate=16000,mono,max-seconds=30,over=truncate,format=wav"


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioPolicy:
    """What is done to a clip before it is sent. Without anything set, clips are sent as they are."""

    rate: int | None = None
    """Samples per second to resample to."""
    mono: bool = False
    max_seconds: float | None = None
    over: str | None = None
    """What becomes of a clip over ``max_seconds``: one of ``OVER``."""
    format: str | None = None
    """One of ``FORMATS``; ``None``: the clip's own where it travels, else wav."""

    @property
    def is_as_is(self) -> bool:
        """Whether nothing is set."""
        return self == AudioPolicy()

    @classmethod
    def parse(cls, text: str) -> AudioPolicy:
        """Read ``key=value,...``, or ``as-is``. Raises ``ConfigError`` that names the key."""
        given: dict[str, Any] = {}
        if text.strip() == AS_IS:
            return cls()
        for piece in filter(None, (piece.strip() for piece in text.split(","))):
            key, equals, value = (part.strip() for part in piece.partition("="))
            if key not in _KEYS:
                raise ConfigError(
                    f"audio_policy: unknown key {key!r}{did_you_mean(key, _KEYS)}\n"
                    f"Known: {', '.join(_KEYS)}; or {AS_IS} alone. For example {_EXAMPLE}"
                )
            if key in given:
                raise ConfigError(f"audio_policy: {key!r} is given twice")
            if bool(equals) == (key == "mono"):
                form = "mono, without a value" if key == "mono" else f"{key}=VALUE"
                raise ConfigError(f"audio_policy: {piece!r} must have the form {form}")
            given[key] = _value(key, value)
        if "over" in given and "max-seconds" not in given:
            raise ConfigError("audio_policy: over= needs max-seconds=: it says what becomes of longer clips")
        if "max-seconds" in given and "over" not in given:
            raise ConfigError(
                f"audio_policy: max-seconds= needs over=, what becomes of longer clips: {', '.join(OVER)}"
            )
        if given.get("format") == "mp3" and given.get("rate", MP3_RATES[0]) not in MP3_RATES:
            rates = ", ".join(map(str, MP3_RATES))
            raise ConfigError(f"audio_policy: an mp3 cannot have rate={given['rate']}, only {rates}")
        return cls(**{key.replace("-", "_"): value for key, value in given.items()})

    def __str__(self) -> str:
        """Return the text that means this policy, always the same one."""
        parts = [
            f"rate={self.rate}" if self.rate else "",
            "mono" if self.mono else "",
            f"max-seconds={_shortest(self.max_seconds)}" if self.max_seconds else "",
            f"over={self.over}" if self.over else "",
            f"format={self.format}" if self.format else "",
        ]
        return ",".join(filter(None, parts)) or AS_IS


def _shortest(number: float) -> str:
    """Return the shortest text that means this very number."""
    text = f"{number:g}"
    return text if float(text) == number else repr(number)


def _value(key: str, text: str) -> Any:
    if key == "mono":
        return True
    if key in ("over", "format"):
        return checked_choice(text, OVER if key == "over" else FORMATS, f"audio_policy: {key}")
    low, high = (1_000, 384_000) if key == "rate" else (0.1, 86_400.0)
    try:
        number = int(text) if key == "rate" else float(text)
    except ValueError:
        number = 0
    if not low <= number <= high:
        unit = "samples per second, a whole number" if key == "rate" else "seconds"
        raise ConfigError(f"audio_policy: {key}={text!r} must be {unit} from {low:g} to {high:g}")
    return number
