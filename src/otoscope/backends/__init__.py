"""Backends: what turns a clip and a question into an answer, one file each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from otoscope.records import Answer, AudioClip, Failure, Reply, Sample


class Backend(Protocol):
    """Whatever turns a clip and a question into an answer."""

    async def until_ready(self) -> None:
        """Wait until it can be asked, as long as the settings say; ``EndpointError`` when it cannot."""

    async def answer(
        self,
        sample: Sample,
        clip: AudioClip | None,
        *,
        earlier: Sequence[Reply],
        keep: Callable[[Failure], None],
    ) -> Answer | Failure:
        """Return the answer or why there is none; ``keep`` a reply that did not serve before the next.

        ``clip`` ``None`` asks the question alone.
        """
