"""What a model's replies to one question amount to, whatever model it is."""

from __future__ import annotations

from collections.abc import Sequence

from otoscope.parsing import AnswerFilter, thinking_unclosed
from otoscope.records import Answer, Failure, FailureKind, Reply

_NORMAL_ENDS = frozenset({"stop", "eos", "end_turn"})


def read_answer(
    replies: Sequence[Reply], answer_filter: AnswerFilter, *, form: str | None
) -> Answer | Failure | None:
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
    text = answer_filter.apply(raw)
    if cut and answer_filter.spec == "strip-thinking" and thinking_unclosed(raw):
        return failure(FailureKind.CUT_WHILE_THINKING, "the token limit was reached while thinking")
    if raw.strip() and not text.strip():
        kind = FailureKind.CUT_WHILE_THINKING if cut else FailureKind.BLANK_AFTER_FILTER
        return failure(kind, f"nothing is left after the answer filter {answer_filter.spec!r}")
    return Answer(
        raw_text=raw,
        text=text,
        reasoning=last.reasoning,
        filter=answer_filter.spec,
        audio_part=last.audio_part or form,
        replies=tuple(replies),
    )
