"""A model or a judge in Python: questions that come one by one become batches, and replies become answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from otoscope.audio.heard import AudioClip
from otoscope.backends.calling import Workers
from otoscope.backends.python_model import AudioQuestion
from otoscope.backends.reading import read_answer
from otoscope.config import PromptSettings
from otoscope.parsing import AnswerFilter
from otoscope.records import Answer, Failure, FailureKind, Reply, Sample
from otoscope.records import AudioClip as Clip

SETTLE = 0.05
"""Seconds for which a batch that is not full waits for another question."""


class FunctionBackend:
    """Asks a model in Python for answers. May be asked for many at once."""

    def __init__(self, workers: Workers, prompt: PromptSettings) -> None:
        self._workers = workers
        self._batches = _Batches(workers)
        self._template = prompt.template
        self._filter = AnswerFilter.parse(prompt.answer_filter)

    async def until_ready(self) -> None:
        """Build the model. Raises ``EndpointError`` when it cannot be."""
        await self._workers.start()

    def stop_asking(self) -> None:
        """Begin no call any more: whoever waits for one gets ``asyncio.CancelledError``."""
        self._batches.stop()

    async def answer(
        self,
        sample: Sample,
        clip: Clip | None,
        *,
        earlier: Sequence[Reply] = (),
        keep: Callable[[Failure], None],
    ) -> Answer | Failure:
        """Ask about one clip, or without one; a blank answer is asked for once more, then taken as it is.

        ``earlier`` and ``keep`` as for :meth:`otoscope.judge.Judge.verdict`. Raises ``EndpointError`` when
        the model is given up.
        """
        audio = None if clip is None else AudioClip(clip)
        question = AudioQuestion(audio, self._template.replace("{question}", sample.question))
        replies = list(earlier)
        try:
            while True:
                if replies:
                    read = read_answer(replies, self._filter, form=None)
                    if read is not None:
                        return read
                    if len(replies) > len(earlier):
                        keep(Failure(FailureKind.ASKED_AGAIN, "the answer was blank", 1, tuple(replies)))
                asked = await self._batches.ask(question)
                if isinstance(asked, Failure):
                    failure = replace(asked, replies=(*replies, *asked.replies))
                    if clip is None or asked.kind is not FailureKind.BAD_AUDIO:
                        return failure
                    file = {"bytes": clip.size, "mtime_ns": clip.mtime_ns}
                    return replace(failure, message=f"{clip.path}: {asked.message}", file=file)
                replies.append(asked)
        finally:
            if clip is not None and clip.held is not None:
                clip.held.drop()


class FunctionJudge:
    """A judge in Python: a function from a prompt to what a judge would write. May be asked at once."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._batches = _Batches(workers)

    async def until_ready(self) -> None:
        """Build it. Raises ``EndpointError`` when it cannot be."""
        await self._workers.start()

    def stop_asking(self) -> None:
        """Begin no call any more: whoever waits for one gets ``asyncio.CancelledError``."""
        self._batches.stop()

    async def ask(self, messages: Sequence[Mapping[str, Any]], **_overrides: Any) -> Reply | Failure:
        """Return its reply to a prompt. It has no parameters that could be overridden."""
        return await self._batches.ask(AudioQuestion(None, str(messages[-1]["content"])))


class _Waiting(NamedTuple):
    question: AudioQuestion
    future: asyncio.Future[Reply | Failure]

    @property
    def seconds(self) -> float:
        return 0.0 if self.question.audio is None else self.question.audio.seconds


class _Batches:
    """Questions that wait, and the batches that are made of them.

    A batch has the question that has waited longest, and those whose clips are the most like its own in
    length: what is filled up to the longest of a batch is computed for nothing.
    """

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._waiting: list[_Waiting] = []
        self._calls: set[asyncio.Task[None]] = set()
        self._settling: asyncio.TimerHandle | None = None
        self._over = False

    def stop(self) -> None:
        """Send nothing any more, and let whoever waits for that know."""
        self._over = True
        for waiting in self._waiting:
            waiting.future.cancel()

    async def ask(self, question: AudioQuestion) -> Reply | Failure:
        """Return what became of a question."""
        if self._over:
            raise asyncio.CancelledError("no more is asked: the run stops")
        waiting = _Waiting(question, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._send(settled=False)
        try:
            return await waiting.future
        finally:
            # Whoever no longer waits for an answer does not have it worked out.
            if waiting in self._waiting:
                self._waiting.remove(waiting)

    def _send(self, *, settled: bool) -> None:
        """Send what can be sent; ``settled``: also a batch that is not full."""
        if self._settling is not None:
            self._settling.cancel()
            self._settling = None
        while self._waiting and len(self._calls) < self._workers.calls and not self._over:
            if len(self._waiting) < self._workers.batch and not settled:
                loop = asyncio.get_running_loop()
                self._settling = loop.call_later(SETTLE, lambda: self._send(settled=True))
                return
            call = asyncio.ensure_future(self._call(self._batch()))
            self._calls.add(call)
            call.add_done_callback(self._ended)

    def _batch(self) -> list[_Waiting]:
        first = self._waiting[0]
        alike = sorted(self._waiting[1:], key=lambda other: abs(other.seconds - first.seconds))
        batch = [first, *alike[: self._workers.batch - 1]]
        self._waiting = [waiting for waiting in self._waiting if waiting not in batch]
        return batch

    async def _call(self, batch: Sequence[_Waiting]) -> None:
        try:
            results = await self._workers.call([waiting.question for waiting in batch])
            if len(batch) > 1 and any(_is_error(result) for result in results):
                # One of them may have spoilt it for all.
                for waiting, result in zip(batch, results, strict=True):
                    alone = [result]
                    if _is_error(result) and not (waiting.future.done() or self._over):
                        alone = list(await self._workers.call([waiting.question]))
                    _end(waiting, alone[0])
                return
            for waiting, result in zip(batch, results, strict=True):
                _end(waiting, result)
        except BaseException as error:
            for waiting in batch:
                if not waiting.future.done():
                    waiting.future.set_exception(error)
            if not isinstance(error, Exception):
                raise

    def _ended(self, call: asyncio.Task[None]) -> None:
        self._calls.discard(call)
        self._send(settled=False)


def _end(waiting: _Waiting, result: Reply | Failure) -> None:
    if not waiting.future.done():
        waiting.future.set_result(result)


def _is_error(result: Reply | Failure) -> bool:
    return isinstance(result, Failure) and result.kind is FailureKind.MODEL_ERROR and bool(result.traceback)
