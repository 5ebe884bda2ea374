"""A model behind an OpenAI-compatible endpoint: clip and question -> answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from otoscope.backends.reading import read_answer
from otoscope.chat_api import AudioPart, ChatEndpoint, Replicas
from otoscope.config import PromptSettings
from otoscope.parsing import AnswerFilter
from otoscope.records import Answer, AudioClip, Failure, FailureKind, Reply, Sample

_WITHOUT_AUDIO = "an endpoint that takes no request without audio is asked with --control silence"


class EndpointBackend:
    """Asks a model for answers. May be asked for many at once."""

    def __init__(self, endpoint: ChatEndpoint | Replicas, prompt: PromptSettings) -> None:
        self._endpoint = endpoint
        self._prompt = prompt
        self._filter = AnswerFilter.parse(prompt.answer_filter)

    async def until_ready(self) -> None:
        """Wait as :meth:`ChatEndpoint.until_ready` does."""
        await self._endpoint.until_ready()

    async def answer(
        self,
        sample: Sample,
        clip: AudioClip | None,
        *,
        earlier: Sequence[Reply] = (),
        keep: Callable[[Failure], None],
    ) -> Answer | Failure:
        """Ask about one clip, or without one; a blank answer is asked for once more, then taken as it is.

        ``earlier`` and ``keep`` as for :meth:`otoscope.judge.Judge.verdict`. Raises ``EndpointError`` when
        the endpoint refuses every request.
        """
        if self._prompt.audio_part == "file_url" and clip is not None and clip.sent is not None:
            return Failure(
                FailureKind.REJECTED,
                f"{clip.path}: file_url sends the file's own path, but {clip.changed[0]} is needed first",
            )
        replies = list(earlier)
        form = self._prompt.audio_part if clip is not None else None
        while True:
            if replies:
                read = read_answer(replies, self._filter, form=form)
                if read is not None:
                    return read
                if len(replies) > len(earlier):
                    keep(Failure(FailureKind.ASKED_AGAIN, "the answer was blank", 1, tuple(replies)))
            asked = await self._endpoint.ask(self.messages(sample, clip))
            if isinstance(asked, Failure):
                message = asked.message
                if clip is None and asked.kind is FailureKind.REJECTED:
                    message += f" ({_WITHOUT_AUDIO})"
                return Failure(asked.kind, message, asked.attempts, tuple(replies), asked.file)
            replies.append(asked)

    def messages(self, sample: Sample, clip: AudioClip | None) -> list[dict[str, Any]]:
        """Return the chat messages: audio part, where there is a clip, and question through the template."""
        question = self._prompt.template.replace("{question}", sample.question)
        parts: list[Mapping[str, Any] | AudioPart] = [{"type": "text", "text": question}]
        if clip is not None:
            parts.insert(0, AudioPart(clip, (self._prompt.audio_part, *self._prompt.audio_fallbacks)))
        if self._prompt.part_order == "text-first":
            parts.reverse()
        messages: list[dict[str, Any]] = [{"role": "user", "content": parts}]
        if self._prompt.system is not None:
            messages.insert(0, {"role": "system", "content": self._prompt.system})
        return messages
