"""What an audio policy does to one clip, by its header."""

from __future__ import annotations

from dataclasses import dataclass

from otoscope.audio.header import Header
from otoscope.config import MP3_RATES, AudioPolicy

_OWN_FORMATS = {"WAV": "wav", "WAVEX": "wav", "MP3": "mp3", "FLAC": "flac"}
"""libsndfile's names of the formats that can be sent."""
_TRAVELS = frozenset({"wav", "mp3"})
"""What is sent as it is when the policy names no format."""
_MOST_WAV_BYTES = 0xFFFFFFFF - 36
"""A wav's header counts in 32 bits."""
_FLAC_CHANNELS, _FLAC_RATE, _MP3_CHANNELS = 8, 655_350, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What is done to one clip, in this order: cut, mixed down, resampled, encoded."""

    frames: int
    """How many frames of the source are kept, from its start on."""
    rate_before: int
    rate: int
    """Sampling rates (Hz): the source's, and what it becomes."""
    channels_before: int
    channels: int
    """1, or as many as the source has."""
    format: str
    """One of ``wav``, ``mp3``, ``flac``."""
    said: tuple[str, ...]
    """The same in words."""

    @property
    def frames_after(self) -> int:
        """How many frames it becomes, when all of the source can be decoded."""
        return (2 * self.frames * self.rate + self.rate_before) // (2 * self.rate_before)

    @property
    def resamples(self) -> bool:
        """Whether the rate changes."""
        return self.rate != self.rate_before

    def __str__(self) -> str:
        """Return the text by which the result is found again."""
        return f"frames={self.frames},channels={self.channels},rate={self.rate},format={self.format}"


def over_limit(header: Header, policy: AudioPolicy) -> bool:
    """Whether a clip is longer than the policy lets one be, by at least one frame."""
    return policy.max_seconds is not None and header.frames > round(policy.max_seconds * header.rate)


def change_of(header: Header, policy: AudioPolicy) -> Change | str | None:
    """Return what is done to a clip, ``None`` when nothing is, or why it cannot be done.

    A clip over the limit is cut, whatever ``policy.over`` says: whoever skips it does not ask.
    """
    own = own_format(header)
    wanted = policy.format or (own if own in _TRAVELS else "wav")
    rate = policy.rate or header.rate
    channels = 1 if policy.mono else header.channels
    cut = over_limit(header, policy)
    kept = round(policy.max_seconds * header.rate) if cut and policy.max_seconds else header.frames
    if (wanted, rate, channels, kept) == (own, header.rate, header.channels, header.frames):
        return None
    if policy.format is None and wanted == "mp3" and lacks("mp3", rate, channels):
        wanted = "wav"
    said = (
        f"cut from {header.seconds:g} to {policy.max_seconds:g} s" if cut else "",
        f"{header.channels} channels to mono" if channels != header.channels else "",
        f"{header.rate} to {rate} Hz" if rate != header.rate else "",
        f"{own} to {_called(wanted)}" if wanted != own else "",
    )
    change = Change(
        frames=kept,
        rate_before=header.rate,
        rate=rate,
        channels_before=header.channels,
        channels=channels,
        format=wanted,
        said=tuple(filter(None, said)),
    )
    lack = lacks(wanted, rate, channels, change.frames_after)
    return f"cannot be sent as {wanted}: {lack}" if lack else change


def _called(format_name: str) -> str:
    return format_name if format_name == "mp3" else f"16-bit {format_name}"


def own_format(header: Header) -> str:
    """Return what a clip's own format is called here."""
    return _OWN_FORMATS.get(header.format, header.format.lower())


def lacks(format_name: str, rate: int, channels: int, frames: int = 0) -> str:
    """Return why a format cannot hold such audio; nothing when it can. Of 16-bit wav also how long it is."""
    match format_name:
        case "mp3":
            if rate not in MP3_RATES:
                return f"it cannot have {rate} Hz (rate= of the policy changes that)"
            return f"it cannot have {channels} channels (mono)" if channels > _MP3_CHANNELS else ""
        case "flac":
            if rate > _FLAC_RATE:
                return f"it cannot have {rate} Hz (rate= of the policy changes that)"
            return f"it cannot have {channels} channels (mono)" if channels > _FLAC_CHANNELS else ""
        case _:
            too_long = frames * channels * 2 > _MOST_WAV_BYTES
            return "it would have over 4 GB (max-seconds=, mono, rate= make it smaller)" if too_long else ""
