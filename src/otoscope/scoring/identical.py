"""Answers -> how many clips share one, letter for letter: the sign of a server that never got the audio."""

from __future__ import annotations

import hashlib

_SHOWN = 80
"""Characters of the most common answer that are kept to be shown."""


class IdenticalAnswers:
    """Counts the clips that share an answer with another clip.

    Answers are compared letter for letter after collapsing white space, whatever the question was. Blank ones
    are left out, and so is an answer that one clip got to several of its questions. Of an answer that one
    clip alone got, only a digest is kept in memory. Nothing depends on the order of the answers.
    """

    def __init__(self) -> None:
        self._clips: set[str] = set()
        self._owner: dict[bytes, str] = {}
        """The clip that got an answer first."""
        self._shared: dict[bytes, tuple[str, set[str]]] = {}
        """Of each answer that several clips got: its text, shortened, and the clips."""

    def add(self, clip: str, answer: str) -> None:
        """Count one answer to a clip."""
        text = " ".join(answer.split())
        if not text:
            return
        self._clips.add(clip)
        digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        first = self._owner.setdefault(digest, clip)
        if first != clip:
            self._shared.setdefault(digest, (text[:_SHOWN], {first}))[1].add(clip)

    @property
    def clips(self) -> int:
        """Number of distinct clips with an answer that is not blank."""
        return len(self._clips)

    @property
    def identical(self) -> int:
        """Number of those of which at least one answer was given to another clip as well."""
        return len({clip for _, clips in self._shared.values() for clip in clips})

    @property
    def most_common(self) -> tuple[str, int] | None:
        """The start of the answer shared by the most clips, and how many they are.

        Of equally common ones it is the alphabetically first.
        """
        ranked = ((-len(clips), text) for text, clips in self._shared.values())
        count, text = min(ranked, default=(0, ""))
        return (text, -count) if count else None
