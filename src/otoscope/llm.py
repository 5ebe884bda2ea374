"""The language model in this process: one thread, greedy completions, scores by expectation.

It serves the baseline, which has it answer questions, and the embedded judge. The runtime behind it is
:mod:`otoscope.gguf`, or anything of that form; this module needs none to be imported.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from otoscope.errors import ConfigError
from otoscope.expectation import MIN_MASS, ScoreDistribution, ScorePair, distribution, probabilities
from otoscope.records import Failure, FailureKind, Reply

_T = TypeVar("_T")

CONTEXT = 8192
"""Tokens that a prompt to be scored may have: the longest of the benchmark's descriptions is over 4,000."""
ANSWER_CONTEXT = 4096
"""Tokens of a prompt to be completed, completion included."""
BLOCK = 32
"""Tokens that are read at a time: less knows more of a prompt's beginning, more reads faster."""
_VERDICT = 4
"""Tokens read behind a prompt at most, for its scores: "10", a space, and "1"."""
DEFAULT_SYSTEM = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
"""What the model's own chat template puts first when the messages have no system message."""


class Context(Protocol):
    """One sequence of tokens that the model has read. Blocks; ``interrupt`` is for other threads."""

    def read(self, tokens: Sequence[int], position: int) -> None:
        """Read tokens from a position on. Raises ``InterruptedError`` when it was interrupted."""

    def forget(self, position: int) -> None:
        """Forget everything from a position on."""

    def logits(self) -> Sequence[float]:
        """Return the logits of the whole vocabulary after the last token read."""

    def likeliest(self) -> int:
        """Return the most probable next token."""

    def interrupt(self, on: bool) -> None:
        """Make ``read`` give up, now and until it is switched off."""

    def close(self) -> None:
        """Give the memory back."""


class Model(Protocol):
    """A loaded model: its vocabulary, and contexts to read in."""

    def tokens(self, text: str) -> list[int]:
        """Return the tokens of a text in which markers of the chat template are text too."""

    def marker(self, text: str) -> int:
        """Return the one token of a marker of the chat template."""

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text of these tokens."""

    def ends(self, token: int) -> bool:
        """Whether the model ends its turn with this token."""

    def context(self, size: int) -> Context:
        """Return a new, empty context for so many tokens."""

    def close(self) -> None:
        """Give the memory back."""


class PromptTooLongError(Exception):
    """The prompt, with what is to come after it, does not fit into the context. Nothing was cut."""

    def __init__(self, tokens: int, context: int) -> None:
        super().__init__(f"the prompt needs {tokens} tokens, the model's context here has {context}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What a call took. Times are those of the work itself, without waiting for calls before it."""

    prompt_tokens: int
    cached_tokens: int
    """Of the prompt: those that had been read for the prompt before, and were not read again."""
    completion_tokens: int
    started_at: float
    """Unix time (s)."""
    seconds: float

    @property
    def usage(self) -> dict[str, Any]:
        """The tokens, in the form in which servers report them."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


@dataclass(frozen=True, slots=True)
class Completion:
    """What the model wrote, always its most probable words."""

    text: str
    finish_reason: str
    """``stop``, or ``length`` at the limit."""
    call: Call


@dataclass(frozen=True, slots=True)
class Scored:
    """The distributions of the two scores that the model was about to write."""

    scores: ScorePair
    call: Call


class LocalModel:
    """A chat model in this process. May be asked for many things at once; it does them one by one.

    ``load`` is called once, at first use, in the one thread where everything happens; what it raises comes
    out of the call. A cancelled call is taken out of the queue, or interrupted within a fraction of a second.
    """

    def __init__(
        self,
        name: str,
        load: Callable[[], Model],
        *,
        context: int = CONTEXT,
        answer_context: int = ANSWER_CONTEXT,
    ) -> None:
        self.name = name
        self._load = load
        self._sizes = {"score": context, "complete": answer_context}
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="otoscope-model")
        self._model: Model | None = None
        self._digits: tuple[int, ...] = ()
        self._space = -1
        # Apart, so that judging and answering in turns do not make each other read their prompts again.
        self._readers: dict[str, _Reader] = {}
        self._gate = threading.Lock()
        self._current: _Job | None = None

    @property
    def loaded(self) -> Model | None:
        """The model itself, once something was asked of it. It belongs to another thread."""
        return self._model

    async def complete(self, messages: Sequence[Mapping[str, Any]], *, max_tokens: int) -> Completion:
        """Return the most probable continuation of a chat, at most ``max_tokens`` long.

        Raises ``PromptTooLongError``.
        """
        return await self.run(self._complete, messages, max_tokens)

    async def score(self, messages: Sequence[Mapping[str, Any]]) -> Scored:
        """Return the probabilities of the two scores with which the model would begin its reply.

        The first score is read right after the header of the assistant's turn, the second one after the most
        probable first score and a space. Raises ``PromptTooLongError``, and ``ConfigError`` when the model's
        tokenizer does not give each digit, and the space before it, a token of its own.
        """
        return await self.run(self._score, messages)

    async def run(self, function: Callable[..., _T], *arguments: Any) -> _T:
        """Return what a blocking function returns, called in the model's thread, in turn with its own work.

        For other work that takes all processor cores: two such things at a time would take longer than one
        after the other.
        """
        job = _Job()
        future = self._thread.submit(self._do, job, function, arguments)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            self._interrupt(job)
            raise

    async def close(self) -> None:
        """Give all memory back, after what is queued. The model cannot be used any more."""
        await self.run(self._close)
        self._thread.shutdown(wait=False)

    # --- in the event loop's thread -----------------------------------------------------------------------

    def _interrupt(self, job: _Job) -> None:
        with self._gate:
            if self._current is job:
                for reader in self._readers.values():
                    reader.interrupt(on=True)
            job.cancelled = True

    # --- in the model's thread ----------------------------------------------------------------------------

    def _do(self, job: _Job, function: Callable[..., _T], arguments: Sequence[Any]) -> _T:
        with self._gate:
            self._current = job
            for reader in self._readers.values():
                reader.interrupt(on=job.cancelled)
        try:
            return function(*arguments)
        finally:
            with self._gate:
                self._current = None

    def _complete(self, messages: Sequence[Mapping[str, Any]], max_tokens: int) -> Completion:
        model, reader = self._ready("complete")
        watch = _Watch()
        prompt = chat_tokens(model, messages)
        cached = reader.begin(prompt, room=max_tokens)
        written: list[int] = []
        ended = False
        while len(written) < max_tokens:
            token = reader.context.likeliest()
            ended = model.ends(token)
            if ended:
                break
            written.append(token)
            if len(written) < max_tokens:
                reader.extend([token])
        text = model.text(written)
        return Completion(text, "stop" if ended else "length", watch.call(len(prompt), cached, len(written)))

    def _score(self, messages: Sequence[Mapping[str, Any]]) -> Scored:
        model, reader = self._ready("score")
        watch = _Watch()
        prompt = chat_tokens(model, messages)
        cached = reader.begin(prompt, room=_VERDICT)
        first = self._distribution(reader)
        reader.rewind(len(prompt))
        written = [*(self._digits[int(digit)] for digit in str(first.greedy)), self._space]
        reader.extend(written)
        second = self._distribution(reader)
        completion = len(written) + len(str(second.greedy))
        return Scored(ScorePair(first, second), watch.call(len(prompt), cached, completion))

    def _distribution(self, reader: _Reader) -> ScoreDistribution:
        """Return the distribution of the score that is due now. A "1" is left behind it."""
        digits = probabilities(reader.context.logits(), self._digits)
        reader.extend([self._digits[1]])
        (zero,) = probabilities(reader.context.logits(), self._digits[:1])
        return distribution(digits, zero)

    def _ready(self, use: str) -> tuple[Model, _Reader]:
        if self._model is None:
            model = self._load()
            self._digits, self._space = digit_tokens(model)
            self._model = model
        reader = self._readers.get(use)
        if reader is None:
            reader = _Reader(self._model.context(self._sizes[use]), self._sizes[use])
            with self._gate:
                # Cancelled while it was loading: then nobody waits for what would be read now.
                if self._current is not None and self._current.cancelled:
                    reader.interrupt(on=True)
                self._readers[use] = reader
        return self._model, reader

    def _close(self) -> None:
        with self._gate:
            readers, self._readers = self._readers, {}
        for reader in readers.values():
            reader.context.close()
        if self._model is not None:
            self._model.close()
            self._model = None


class EmbeddedJudge:
    """A judge model (see :class:`otoscope.judge.JudgeModel`) that scores by expectation, in this process.

    The prompt goes through the model's own chat template, which puts ``DEFAULT_SYSTEM`` before a prompt
    without system message, as a server with this model would.
    """

    def __init__(self, model: LocalModel) -> None:
        self._model = model

    @property
    def name(self) -> str:
        """The model's name."""
        return self._model.name

    async def until_ready(self) -> None:
        """Return: it is ready at once."""

    async def ask(self, messages: Sequence[Mapping[str, Any]], **overrides: Any) -> Reply | Failure:
        """Return the scores' probabilities, and as text the most probable scores.

        ``overrides`` change nothing: no text is generated, so there is no limit to raise. A prompt that is
        too long is a ``context_too_small`` Failure; less than ``MIN_MASS`` on digits an ``unparseable`` one.
        """
        try:
            scored = await self._model.score(messages)
        except PromptTooLongError as error:
            return Failure(FailureKind.CONTEXT_TOO_SMALL, f"{error}; nothing was cut to make it fit", 1)
        reply = Reply(
            text=scored.scores.text,
            finish_reason="stop",
            usage=scored.call.usage,
            model=self._model.name,
            parameters={"expectation": True},
            endpoint="embedded",
            started_at=scored.call.started_at,
            latency=scored.call.seconds,
            probabilities=scored.scores.to_json(),
        )
        if scored.scores.usable:
            return reply
        first, second = scored.scores.first.mass, scored.scores.second.mass
        message = (
            f"the judge was not about to write scores: the probability of a digit is {first:.2f} at the "
            f"first and {second:.2f} at the second score, and has to be {MIN_MASS} at least"
        )
        return Failure(FailureKind.UNPARSEABLE, message, 1, (reply,))


def chat_tokens(model: Model, messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return a chat as the model's template (ChatML, as Qwen2.5 has it) renders it, up to where it answers.

    Contents must be text. A marker inside of a content stays text, so that a judged answer cannot end its
    own turn; for all other texts the tokens are those of the rendered template.
    """
    begin, end = model.marker("<|im_start|>"), model.marker("<|im_end|>")
    newline = model.tokens("\n")
    turns = [(str(message["role"]), str(message["content"])) for message in messages]
    if not turns or turns[0][0] != "system":
        turns.insert(0, ("system", DEFAULT_SYSTEM))
    tokens: list[int] = []
    for role, content in turns:
        tokens += [begin, *model.tokens(f"{role}\n{content}"), end, *newline]
    return [*tokens, begin, *model.tokens("assistant\n")]


def digit_tokens(model: Model) -> tuple[tuple[int, ...], int]:
    """Return the tokens of "0" to "9" and of a space.

    Raises ``ConfigError`` unless "10 7" is made of exactly such tokens, on which the expectation rests.
    """
    digits = [model.tokens(str(digit)) for digit in range(10)]
    space = model.tokens(" ")
    if any(len(tokens) != 1 for tokens in (*digits, space)) or model.tokens("10 7") != [
        token for part in (digits[1], digits[0], space, digits[7]) for token in part
    ]:
        raise ConfigError("the model's tokenizer does not split numbers into digits: it cannot be this judge")
    return tuple(tokens[0] for tokens in digits), space[0]


class _Job:
    """One call, from its place in the queue to its end."""

    def __init__(self) -> None:
        self.cancelled = False


class _Watch:
    """Takes the time of one call."""

    def __init__(self) -> None:
        self._wall, self._start = time.time(), time.perf_counter()

    def call(self, prompt: int, cached: int, completion: int) -> Call:
        return Call(
            prompt_tokens=prompt,
            cached_tokens=cached,
            completion_tokens=completion,
            started_at=self._wall,
            seconds=time.perf_counter() - self._start,
        )


class _Reader:
    """A context, and which tokens it has read, so that a prompt's known beginning is not read again.

    A prompt is read in blocks that begin at fixed places, and only whole blocks are kept for the next one.
    How many tokens are read at a time changes the rounding of what the runtime computes, enough for a tenth
    of a point between two readings of one prompt; this way each result depends on the prompt alone.
    """

    def __init__(self, context: Context, size: int) -> None:
        self.context = context
        self._size = size
        self._prompt: list[int] = []
        """The last prompt, as far as it was read."""
        self._length = 0

    def interrupt(self, *, on: bool) -> None:
        self.context.interrupt(on)

    def begin(self, prompt: Sequence[int], *, room: int) -> int:
        """Have a prompt read, and return how many of its tokens had been already.

        Raises ``PromptTooLongError`` when it and ``room`` more tokens do not fit.
        """
        if len(prompt) + room > self._size:
            raise PromptTooLongError(len(prompt) + room, self._size)
        # The last block is always read: only then are there logits after it.
        known = min(common_prefix(self._prompt, prompt), len(prompt) - 1) // BLOCK * BLOCK
        del self._prompt[known:]
        self.rewind(known)
        for start in range(known, len(prompt), BLOCK):
            block = prompt[start : start + BLOCK]
            self.extend(block)
            self._prompt.extend(block)
        return known

    def extend(self, tokens: Sequence[int]) -> None:
        """Have these tokens read after what was read."""
        read = False
        try:
            self.context.read(tokens, self._length)
            read = True
        finally:
            if not read:  # what of it was read is not known
                self._prompt.clear()
                self.rewind(0)
        self._length += len(tokens)

    def rewind(self, length: int) -> None:
        """Forget all but the first ``length`` tokens."""
        self.context.forget(length)
        self._length = length


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many tokens two sequences have in common at their beginning."""
    for index, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return index
    return min(len(one), len(other))
