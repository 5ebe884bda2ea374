"""A model behind an OpenAI-compatible endpoint: clip and question -> answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from otoscope.chat_api import AudioPart, ChatEndpoint
from otoscope.config import PromptSettings
from otoscope.parsing import AnswerFilter, thinking_unclosed
from otoscope.records import Answer, AudioClip, Failure, FailureKind, Reply, Sample

_WITHOUT_AUDIO = "an endpoint that takes no request without audio is asked with --control silence"
_NORMAL_ENDS = frozenset({"stop", "eos", "end_turn"})


class EndpointBackend:
    """Asks a model for answers. May be asked for many at once."""

    def __init__(self, endpoint: ChatEndpoint, prompt: PromptSettings) -> None:
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
                read = self._read(replies, form)
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

    def _read(self, replies: Sequence[Reply], form: str | None) -> Answer | Failure | None:
        """Return what the last reply amounts to; ``None`` when it is blank for the first time.

        ``form`` is that of the audio part where the reply does not say it, ``None`` where there was none.
        """
        last = replies[-1]
        raw, finish = last.text or "", last.finish_reason
        cut = finish == "length"

        def failure(kind: FailureKind, message: str) -> Failure:
            return Failure(kind, f"{message} (finish_reason {finish!r})", last.attempts, tuple(replies))

        if not raw.strip():
            if finish == "content_filter":
                return failure(FailureKind.CONTENT_FILTER, "a content filter blocked the answer")
            if cut and (last.reasoning or "").strip():
                return failure(FailureKind.CUT_WHILE_THINKING, "the token limit was reached while thinking")
            ended_otherwise = finish is not None and finish not in _NORMAL_ENDS
            if ended_otherwise or (finish is None and last.text is None):
                return failure(FailureKind.NO_ANSWER, "the reply holds no text")
            if len(replies) == 1:
                return None
        text = self._filter.apply(raw)
        if cut and self._filter.spec == "strip-thinking" and thinking_unclosed(raw):
            return failure(FailureKind.CUT_WHILE_THINKING, "the token limit was reached while thinking")
        if raw.strip() and not text.strip():
            kind = FailureKind.CUT_WHILE_THINKING if cut else FailureKind.BLANK_AFTER_FILTER
            return failure(kind, f"nothing is left after the answer filter {self._filter.spec!r}")
        return Answer(
            raw_text=raw,
            text=text,
            reasoning=last.reasoning,
            filter=self._filter.spec,
            audio_part=last.audio_part or form,
            replies=tuple(replies),
        )
