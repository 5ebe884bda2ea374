"""The judge: prompt, both orders, what its reply means, and the one place where the swap is undone."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from otoscope.config import JudgeSettings
from otoscope.parsing import Scores, parse_verdict
from otoscope.prompts import JUDGE_PROMPT
from otoscope.records import Failure, FailureKind, Order, Reply, Sample, Verdict, canonical_digest

PROMPT_SHA256 = hashlib.sha256(JUDGE_PROMPT.encode("utf-8")).hexdigest()

RE_ASKS = 2
"""How often an unparseable reply is asked for again under the default protocol."""
RAISED_MAX_TOKENS = 8192
"""What the judge may use once a reply was cut off."""
CORRECTION = (
    "Please answer with a single line containing only the two scores, for Assistant 1 and 2 respectively, "
    "separated by a space."
)

_PLACEHOLDER = re.compile(r"\{(meta_info|question|assistant_1|assistant_2)\}")


class JudgeModel(Protocol):
    """The seam to whatever judges: an endpoint, or a model in this process."""

    async def until_ready(self) -> None:
        """Wait until it can be asked, as long as the settings say; ``EndpointError`` when it cannot."""

    async def ask(self, messages: Sequence[Mapping[str, Any]], **overrides: Any) -> Reply | Failure:
        """Return the model's reply to these chat messages, or why there is none."""


def render_prompt(sample: Sample, answer: str, order: Order) -> str:
    """Return the benchmark's prompt, byte for byte, with the texts inserted unchanged.

    Substitution is a single pass: a text that contains a placeholder or a delimiter is never substituted
    again.
    """
    texts = (sample.reference, answer) if order is Order.REFERENCE_FIRST else (answer, sample.reference)
    values = {
        "meta_info": sample.description,
        "question": sample.question,
        "assistant_1": texts[0],
        "assistant_2": texts[1],
    }
    return _PLACEHOLDER.sub(lambda found: values[found[1]], JUDGE_PROMPT)


def judge_identity(requested: Mapping[str, Any]) -> str:
    """Return the ``judge_id`` of verdict lines: the judge's name, and a digest of all that shapes a verdict.

    ``requested`` is the fingerprint's ``judge`` part. The URL is left out: a restarted server has another.
    """
    shaping = {name: value for name, value in requested.items() if name != "api_url"}
    return f"{requested['name']}#{canonical_digest(shaping)[:12]}"


class Judge:
    """Asks a judge model for verdicts. May be asked for many at once."""

    def __init__(self, model: JudgeModel, settings: JudgeSettings, judge_id: str) -> None:
        self.judge_id = judge_id
        self._model = model
        self._official = settings.protocol == "official"
        parameters = settings.endpoint.parameters
        self._greedy = parameters.get("temperature") == 0
        self._limit_name = next((n for n in ("max_tokens", "max_completion_tokens") if n in parameters), None)
        limit = parameters.get(self._limit_name) if self._limit_name else None
        self._can_raise = isinstance(limit, int) and limit < RAISED_MAX_TOKENS and not self._official
        self._raised = False

    async def until_ready(self) -> None:
        """Wait until the judge model can be asked. Raises ``EndpointError`` when it cannot."""
        await self._model.until_ready()

    async def verdict(
        self,
        sample: Sample,
        answer: str,
        answer_sha256: str,
        order: Order,
        *,
        earlier: Sequence[Reply] = (),
        keep: Callable[[Failure], None],
    ) -> Verdict | Failure:
        """Judge one answer in one order.

        ``earlier`` are replies of an asking that was interrupted; it goes on after them. ``keep`` is called
        with each reply that did not serve, as an ``asked_again`` Failure, before the next is asked for.
        Raises ``EndpointError`` when the judge refuses every request.
        """
        prompt = render_prompt(sample, answer, order)
        replies = list(earlier)
        re_asks = 0 if self._official else RE_ASKS
        while True:
            if replies:
                verdict = self._read(order, answer_sha256, replies)
                if verdict is not None:
                    return verdict
                failure = self._unusable(replies, re_asks)
                if failure is not None:
                    return failure
                if len(replies) > len(earlier):
                    keep(Failure(FailureKind.ASKED_AGAIN, _said(replies[-1]), len(replies), tuple(replies)))
            asked = await self._model.ask(self._messages(prompt, replies), **self._overrides())
            if isinstance(asked, Failure):
                return Failure(asked.kind, asked.message, asked.attempts, tuple(replies))
            replies.append(asked)

    def _messages(self, prompt: str, replies: Sequence[Reply]) -> list[dict[str, str]]:
        messages = [{"role": "user", "content": prompt}]
        # A greedy judge would repeat itself. One that samples, or was cut off, is simply asked again.
        if replies and self._greedy and not _cut_off(replies[-1]):
            messages.append({"role": "assistant", "content": replies[-1].text or ""})
            messages.append({"role": "user", "content": CORRECTION})
        return messages

    def _overrides(self) -> dict[str, Any]:
        return {self._limit_name: RAISED_MAX_TOKENS} if self._raised and self._limit_name else {}

    def _unusable(self, replies: Sequence[Reply], re_asks: int) -> Failure | None:
        """Return the Failure that ends the asking, or ``None`` when it is worth asking again."""
        last = replies[-1]
        if _filtered(last):
            return Failure(
                FailureKind.CONTENT_FILTER, "the judge's content filter stopped the reply", 1, tuple(replies)
            )
        unparseable = sum(not _cut_off(reply) for reply in replies)
        if not _cut_off(last):
            if unparseable > re_asks:
                return Failure(FailureKind.UNPARSEABLE, _said(last), len(replies), tuple(replies))
            return None
        cut = len(replies) - unparseable
        if self._can_raise and cut == 1:
            self._raised = True
            return None
        limit = RAISED_MAX_TOKENS if self._raised else "its"
        message = f"the judge's reply was cut off at {limit} tokens: {_said(last)}"
        return Failure(FailureKind.CUT_OFF, message, len(replies), tuple(replies))

    def _read(self, order: Order, answer_sha256: str, replies: Sequence[Reply]) -> Verdict | None:
        """Return the verdict that the last reply states: the one place where the swap is undone."""
        last = replies[-1]
        if _filtered(last):
            return None
        given = last.probabilities
        scores = (
            _stated(last) if given is None else Scores(given["first_mean"], given["second_mean"], "expected")
        )
        if scores is None:
            return None
        positions = ("reference", "answer") if order is Order.REFERENCE_FIRST else ("answer", "reference")
        by_role = dict(zip(positions, (scores.first, scores.second), strict=True))
        return Verdict(
            order=order,
            judge_id=self.judge_id,
            answer_sha256=answer_sha256,
            score_kind=scores.kind,
            reference_score=by_role["reference"],
            answer_score=by_role["answer"],
            probabilities=None if given is None else _by_role(given, positions),
            replies=tuple(replies),
        )


def _by_role(given: Mapping[str, Any], positions: tuple[str, str]) -> dict[str, Any]:
    """Rename what a judge gives of its "first" and "second" score after whose score it is."""
    first, second = positions
    return {
        name.replace("first", first, 1).replace("second", second, 1): value for name, value in given.items()
    }


_LIMIT_ENDS = frozenset({"length", "max_tokens", "max_output_tokens", "model_length"})
_NORMAL_ENDS = frozenset(
    {"stop", "eos", "eos_token", "end_turn", "stop_sequence", "complete", "completed", "end", "finished"}
)
_OPEN_ENDED = re.compile(r"(?:^|[^0-9])1$|\.$")
"""A text that may go on: "8 1" to "8 10", "8." to "8.5"."""


def _cut_off(reply: Reply) -> bool:
    return (reply.finish_reason or "").lower() in _LIMIT_ENDS


def _stated(reply: Reply) -> Scores | None:
    text = reply.text or ""
    end = (reply.finish_reason or "").lower()
    unfinished = _OPEN_ENDED.search(text.rstrip()) if not end else end not in _NORMAL_ENDS
    if unfinished:
        # The last line may lack its end: "8 1" may have been going to be "8 10".
        text = text.rpartition("\n")[0]
    return parse_verdict(text)


def _filtered(reply: Reply) -> bool:
    return (reply.finish_reason or "").lower() == "content_filter"


def _said(reply: Reply) -> str:
    text = " ".join((reply.text or "").split())
    return f"the judge said {text[:200]!r}" if text else "the judge said nothing"
