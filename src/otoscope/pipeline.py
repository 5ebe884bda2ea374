"""Owed samples -> answers -> verdicts -> store: bounded, overlapping, and stoppable at any moment.

An answer is on disk before its verdicts are queued, and the queue holds no text: a slow judge costs no
memory and never holds up the model. The first sample goes alone, answer and verdicts, so that a wrong key,
model name or wire form is one clear error and not sixteen. Before it, whoever is not ready yet is waited for.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from otoscope.backends import Backend
from otoscope.breaker import LIMIT, Breaker
from otoscope.clips import Clips
from otoscope.errors import EndpointError, LimitReachedError, Role, RunDirectoryError, RunInterruptedError
from otoscope.judge import Judge
from otoscope.lock import RENEW_SECONDS, RunLock
from otoscope.records import (
    Answer,
    Answered,
    AudioClip,
    Event,
    Failure,
    FailureKind,
    Judged,
    Notice,
    Order,
    Sample,
    Verdict,
)
from otoscope.stopping import Stop
from otoscope.store import EMPTY_ANSWER, Plan, RunStore
from otoscope.store.lines import open_end

GRACE = 8.0
"""Seconds that calls in flight get to end when the run stops: they are paid for."""
_STOPPING = {
    False: f"stopping: calls in flight get {GRACE:.0f} s to end; once more stops at once",
    True: "stopping at a limit: calls in flight get the time that they need; Ctrl-C gives them less",
}
"""What is said of calls in flight, by whether there is no hurry."""
SYNC_INTERVAL = 0.2
LOOK_INTERVAL = 1.0
"""Seconds between two looks at whether the lock is ours: what is paid for after that is paid for twice."""
LOOK_OVERDUE = 2 * LOOK_INTERVAL
"""After so many seconds without a look this process may have been stopped, and another one gone on."""
FIRST_TRIES = 3
"""Samples that may fail in a row, each alone, before an endpoint that served none is given up."""
BLANK_WINDOW, BLANK_LIMIT = 100, 5
"""More than 5 blank answers among the first 100: something is wrong with the server, not with the model."""

_NOT_SENT = frozenset(
    {
        FailureKind.MISSING_AUDIO,
        FailureKind.BAD_AUDIO,
        FailureKind.UNREADABLE_AUDIO,
        FailureKind.OUTSIDE_ROOT,
        FailureKind.OVER_LIMIT,
    }
)
SERVED = frozenset(
    {
        FailureKind.UNPARSEABLE,
        FailureKind.CUT_OFF,
        FailureKind.CONTENT_FILTER,
        FailureKind.CONTEXT_TOO_SMALL,
        FailureKind.TOO_LARGE,
        FailureKind.NO_ANSWER,
        FailureKind.BLANK_AFTER_FILTER,
        FailureKind.CUT_WHILE_THINKING,
    }
)
"""Failures that a working endpoint gives: they say nothing about key, model name or wire form."""


@dataclass(frozen=True, slots=True)
class Slots:
    """How many calls may be in flight at each endpoint."""

    answers: int
    verdicts: int


class Pipeline:
    """One run's work. ``judge`` ``None`` only answers; ``clips`` and ``backend`` ``None`` only judge.

    ``on_stopping`` is called once when the run begins to stop, with what went wrong, or ``None`` when the
    stop was asked for. ``first_alone`` ``False`` begins with all slots: the endpoints are known to work.
    ``breakers`` are those of endpoints that other runs ask, too.
    """

    def __init__(
        self,
        *,
        store: RunStore,
        lock: RunLock,
        clips: Clips | None,
        backend: Backend | None,
        judge: Judge | None,
        orders: Sequence[Order],
        slots: Slots,
        judge_blank: bool,
        on_event: Callable[[Event], None],
        on_stopping: Callable[[BaseException | None], None],
        stop: Stop,
        first_alone: bool = True,
        breakers: Mapping[Role, Breaker] | None = None,
    ) -> None:
        self._store = store
        self._lock = lock
        self._clips = clips
        self._backend = backend
        self._judge = judge
        self._orders = orders if judge is not None else ()
        self._slots = slots
        self._judge_blank = judge_blank
        self._on_event = on_event
        self._on_stopping = on_stopping
        self._stop = stop
        self._first_alone = first_alone
        self._breakers: dict[Role, Breaker] = {
            "model": Breaker("model"),
            "judge": Breaker("judge"),
            **(breakers or {}),
        }
        # What served this run before is no wrong key, name or wire form: its trouble is the samples' own.
        self._served_before = {"model": store.has_answers, "judge": store.has_verdicts}
        self._to_answer: deque[Sample] = deque()
        self._to_judge: asyncio.Queue[tuple[Sample, Order] | None] = asyncio.Queue()
        self._held: list[Sample] = []
        """Blank answers whose judging waits until it is known that they are exceptions."""
        self._answered = 0
        self._blank = 0
        self._trouble: BaseException | None = None
        self._looked = 0.0
        """When it was last known that the lock is ours, by the event loop's clock."""
        self._over = False

    async def run(self, plan: Plan) -> None:
        """Do all that is owed. Raises what stopped it, after calls in flight had their time to end."""
        self._answered, self._blank = plan.answers_done, plan.blank
        if self._answered <= BLANK_WINDOW or not plan.verdicts_done:
            self._check_blank(max(BLANK_LIMIT, plan.answers_done * BLANK_LIMIT // BLANK_WINDOW))
        self._to_answer.extend(plan.answers)
        owed = deque(plan.verdicts)
        self._looked = asyncio.get_running_loop().time()
        house = asyncio.ensure_future(self._keep_house())
        try:
            if self._first_alone:
                ready = [asyncio.ensure_future(wait()) for wait in self._to_be_ready(plan)]
                await self._until_stopped(ready, house)
            if self._first_alone and self._trouble is None:
                await self._until_stopped([asyncio.ensure_future(self._first(owed))], house)
            if self._trouble is None:
                for item in owed:
                    self._to_judge.put_nowait(item)
                await self._until_stopped(self._workers(), house)
        finally:
            self._over = True
            house.cancel()
            await asyncio.gather(house, return_exceptions=True)
        if self._trouble is not None:
            raise self._trouble

    def _to_be_ready(self, plan: Plan) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        """Return how to wait for each that this plan asks."""
        waits: list[Callable[[], Coroutine[Any, Any, None]]] = []
        if self._backend is not None and plan.answers:
            waits.append(self._backend.until_ready)
        if self._judge is not None and (plan.answers or plan.verdicts):
            waits.append(self._judge.until_ready)
        return waits

    # --- the first sample ---------------------------------------------------------------------------------

    async def _first(self, owed: deque[tuple[Sample, Order]]) -> None:
        """Send samples one by one until both endpoints have served one; what fails before that is withheld.

        A failure that the endpoint's set-up caused must not be stored as a sample's own: once the set-up is
        mended, the sample is owed as if nothing had been.
        """
        withheld: list[Callable[[], object]] = []
        failed: list[tuple[Role, Failure]] = []
        while (self._to_answer or owed) and not self._stopping:
            unproven = await self._one_alone(owed, withheld)
            if unproven is None:
                break
            role, failure = unproven
            if failure.kind not in _NOT_SENT:
                failed.append(unproven)
            if len(failed) == FIRST_TRIES:
                if self._served_before[role]:
                    break
                raise EndpointError(
                    role,
                    f"the first {FIRST_TRIES} requests to the {role} all failed, the last one with "
                    f"{failure.kind.value}: {failure.message}. No other was sent; nothing is lost: put it "
                    f"right, then resume the run{_traced(failure)}",
                )
        if not self._stopping:
            for store_it in withheld:
                store_it()

    async def _one_alone(
        self, owed: deque[tuple[Sample, Order]], withheld: list[Callable[[], object]]
    ) -> tuple[Role, Failure] | None:
        """Take one sample through; return the failure that leaves an endpoint unproven, or ``None``."""
        if self._to_answer:
            sample = self._to_answer.popleft()
            clip, answer = await self._ask_model(sample)
            if isinstance(answer, Failure):
                store_it = partial(self._store_answer, sample, clip, answer)
                if answer.kind in SERVED or self._served_before["model"]:
                    store_it()
                else:
                    withheld.append(store_it)
                return None if answer.kind in SERVED else ("model", answer)
            # A blank answer is not judged before it is known to be an exception.
            judge_now = self._store_answer(sample, clip, answer)
            if not judge_now or self._stopping:
                return None
            orders: Sequence[Order] = self._orders_owed(sample)
        else:
            sample = owed[0][0]
            orders = [order for other, order in owed if other is sample]
            for _ in orders:
                owed.popleft()
        # Each is stored as it comes: the one must not wait, unstored, for the other.
        judged = await asyncio.gather(
            *(self._one_verdict(sample, order, withheld) for order in orders), return_exceptions=True
        )
        unproven: tuple[Role, Failure] | None = None
        for result in judged:
            if isinstance(result, BaseException):
                raise result
            if result is not None:
                unproven = ("judge", result)
        return unproven

    async def _one_verdict(
        self, sample: Sample, order: Order, withheld: list[Callable[[], object]]
    ) -> Failure | None:
        digest, verdict = await self._ask_judge(sample, order)
        unproven = verdict if isinstance(verdict, Failure) and verdict.kind not in SERVED else None
        if unproven is not None and not self._served_before["judge"]:
            withheld.append(partial(self._store_verdict, sample, order, digest, verdict))
        else:
            self._store_verdict(sample, order, digest, verdict)
        return unproven

    # --- everything else ----------------------------------------------------------------------------------

    def _workers(self) -> list[asyncio.Future[Any]]:
        answering = [
            asyncio.ensure_future(self._answer_worker())
            for _ in range(min(self._slots.answers, len(self._to_answer)))
        ]
        judging = [
            asyncio.ensure_future(self._judge_worker())
            for _ in range(self._slots.verdicts if self._judge is not None else 0)
        ]
        return [*answering, *judging, asyncio.ensure_future(self._close_queue(answering, len(judging)))]

    async def _answer_worker(self) -> None:
        while self._to_answer and not self._stopping:
            sample = self._to_answer.popleft()
            with self._breakers["model"].call() as ended:
                clip, result = await self._ask_model(sample)
                if self._store_answer(sample, clip, result):
                    self._queue(sample)
                ended(result, partial(self._owe_answer, sample, clip))

    async def _judge_worker(self) -> None:
        while (item := await self._to_judge.get()) is not None and not self._stopping:
            sample, order = item
            with self._breakers["judge"].call() as ended:
                digest, result = await self._ask_judge(sample, order)
                self._store_verdict(sample, order, digest, result)
                ended(result, partial(self._owe_verdict, sample, order, digest))

    async def _close_queue(self, answering: Iterable[asyncio.Future[Any]], judges: int) -> None:
        """Once nothing more will be answered, let the judge workers end with the queue."""
        await asyncio.gather(*answering)
        self._release_held()
        for _ in range(judges):
            self._to_judge.put_nowait(None)

    async def _ask_model(self, sample: Sample) -> tuple[AudioClip | None, Answer | Failure]:
        if self._backend is None or self._clips is None:
            raise RuntimeError("an answer is owed, but there is no backend")
        await self._look_if_overdue()
        clip = await self._clips.load(sample)
        if isinstance(clip, Failure):
            return None, clip
        result = await self._backend.answer(
            sample,
            clip,
            earlier=self._store.interim_replies(sample, clip_sha256=None if clip is None else clip.sha256),
            keep=partial(self._keep_answer, sample, clip),
        )
        await self._look_if_overdue()
        return clip, result

    def _store_answer(self, sample: Sample, clip: AudioClip | None, result: Answer | Failure) -> bool:
        """Store an answer and return whether it is to be judged now."""
        self._store.append_answer(sample, clip, result)
        self._on_event(Answered(sample.key, result, self._store.path))
        self._answered += 1
        ready = isinstance(result, Answer)
        if isinstance(result, Answer) and result.blank:
            self._blank += 1
            if self._answered <= BLANK_WINDOW:
                self._check_blank(BLANK_LIMIT)
                if not self._judge_blank:
                    self._held.append(sample)
                    ready = False
        if self._answered >= BLANK_WINDOW:
            self._release_held()
        return ready

    async def _ask_judge(self, sample: Sample, order: Order) -> tuple[str, Verdict | Failure]:
        if self._judge is None:
            raise RuntimeError("a verdict is owed, but there is no judge")
        await self._look_if_overdue()
        judge_id = self._judge.judge_id
        text, digest = self._store.answer_text(sample)
        result = await self._judge.verdict(
            sample,
            text,
            digest,
            order,
            earlier=self._store.interim_replies(sample, (order, judge_id, digest)),
            keep=partial(self._keep_verdict, sample, order, digest),
        )
        await self._look_if_overdue()
        return digest, result

    def _store_verdict(self, sample: Sample, order: Order, digest: str, result: Verdict | Failure) -> None:
        if self._judge is not None:
            self._store.append_verdict(sample, order, self._judge.judge_id, digest, result)
            self._on_event(Judged(sample.key, order, result, self._store.path))

    def _owe_answer(self, sample: Sample, clip: AudioClip | None, failure: Failure) -> None:
        """Take a failure that would last for one that says nothing of the sample."""
        if not self._over:
            self._store.append_answer(sample, clip, _of_the_endpoint(failure))

    def _owe_verdict(self, sample: Sample, order: Order, digest: str, failure: Failure) -> None:
        if not self._over and self._judge is not None:
            judge_id = self._judge.judge_id
            self._store.append_verdict(sample, order, judge_id, digest, _of_the_endpoint(failure))

    def _queue(self, sample: Sample) -> None:
        # Next to each other, so that a server's prefix cache serves the second.
        for order in self._orders_owed(sample):
            self._to_judge.put_nowait((sample, order))

    def _orders_owed(self, sample: Sample) -> list[Order]:
        """Return the orders to judge: a text that was judged before has its verdicts, and costs nothing."""
        if self._judge is None:
            return []
        judge_id = self._judge.judge_id
        return [order for order in self._orders if not self._store.is_judged(sample, order, judge_id)]

    def _release_held(self) -> None:
        for sample in self._held:
            self._queue(sample)
        self._held.clear()

    def _check_blank(self, limit: int) -> None:
        if self._blank > limit and not self._judge_blank and self._judge is not None:
            blank = f"{self._blank} of the first {self._answered} answers are blank"
            if self._backend is None:
                raise EndpointError("model", f"{blank}. To judge them as they are, give --judge-blank")
            raise EndpointError(
                "model",
                f"{blank}. Is the server's chat template the model's own, and does it get the audio? They "
                f"are stored and not judged yet. Once it is mended, resume with --retry-failed {EMPTY_ANSWER}"
                "; to judge them as they are, with --judge-blank",
            )

    # --- stopping -----------------------------------------------------------------------------------------

    @property
    def _stopping(self) -> bool:
        return self._trouble is not None or self._stop.requested.is_set()

    async def _until_stopped(self, work: Sequence[asyncio.Future[Any]], house: asyncio.Future[Any]) -> None:
        """Wait for the work to end. Once something stops the run, give calls in flight a last while.

        The first trouble is left in ``self._trouble``, and none of the work is left running.
        """
        loop = asyncio.get_running_loop()
        pending = set(work)
        stop = asyncio.ensure_future(self._stop.requested.wait())
        deadline = math.inf
        told = False
        said: bool | None = None
        try:
            while pending and loop.time() < deadline:
                others = {task for task in (stop, house) if not task.done()}
                timeout = min(0.1, deadline - loop.time()) if told else None
                done, _ = await asyncio.wait(
                    pending | others, timeout=timeout, return_when=asyncio.FIRST_COMPLETED
                )
                pending -= done
                for task in done - {stop}:
                    self._note(task)
                if self._stopping and not told:
                    told = True
                    self._on_stopping(self._trouble)
                    self._wake_judges()
                # Who hurries a run that waits at a limit is told that it was heard.
                if self._stopping and pending and self._may_wait and said is not self._stop.patient:
                    said = self._stop.patient
                    self._on_event(Notice(_STOPPING[said]))
                if self._stopping and deadline == math.inf and not self._stop.patient:
                    deadline = loop.time() + GRACE
                if self._stopping and not self._may_wait:
                    deadline = loop.time()
        finally:
            for task in (stop, *pending):
                task.cancel()
            await asyncio.gather(stop, *pending, return_exceptions=True)
        if self._trouble is None and self._stop.requested.is_set():
            self._trouble = RunInterruptedError("stopped", terminated=self._stop.terminated)

    @property
    def _may_wait(self) -> bool:
        """Whether what is in flight can still be stored, and nobody is in a hurry."""
        by_plan = self._trouble is None or isinstance(self._trouble, (EndpointError, LimitReachedError))
        return by_plan and not self._stop.at_once

    def _note(self, task: asyncio.Future[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        # While calls in flight end after a limit, the run may still be taken away.
        worse = isinstance(self._trouble, LimitReachedError) and isinstance(error, RunDirectoryError)
        if error is not None and (self._trouble is None or worse):
            self._trouble = error
            if isinstance(error, LimitReachedError):
                # Nobody is in a hurry, and what is in flight is paid for.
                self._stop.begin_no_more()

    def _wake_judges(self) -> None:
        for _ in range(self._slots.verdicts):
            self._to_judge.put_nowait(None)

    async def _keep_house(self) -> None:
        """Force lines to the disk soon after they were written, and keep the lock ours."""
        loop = asyncio.get_running_loop()
        renewed = loop.time()
        while True:
            await asyncio.sleep(SYNC_INTERVAL)
            await asyncio.to_thread(self._store.sync)
            if loop.time() - renewed >= RENEW_SECONDS:
                # From before: this process may be stopped while it renews, and wake up long after.
                at = loop.time()
                await asyncio.to_thread(self._lock.renew)
                renewed = self._looked = at
            elif loop.time() - self._looked >= LOOK_INTERVAL:
                await self._look()

    async def _look(self) -> None:
        """Look whether the lock is ours. Raises ``RunDirectoryError`` when it is not."""
        at = asyncio.get_running_loop().time()
        if not await asyncio.to_thread(self._lock.still_ours):
            await asyncio.to_thread(self._lock.renew)  # which says who has it now
        self._looked = at

    @property
    def _look_is_overdue(self) -> bool:
        return asyncio.get_running_loop().time() - self._looked > LOOK_OVERDUE

    async def _look_if_overdue(self) -> None:
        """Look at the lock before anything is asked or written by a process that may just have woken up."""
        if self._look_is_overdue:
            await self._look()

    def _keep_answer(self, sample: Sample, clip: AudioClip | None, failure: Failure) -> None:
        """Store a reply that did not serve, before the next is asked for."""
        self._look_at_once()
        self._store.append_answer(sample, clip, failure)

    def _keep_verdict(self, sample: Sample, order: Order, digest: str, failure: Failure) -> None:
        if self._judge is not None:
            self._look_at_once()
            self._store.append_verdict(sample, order, self._judge.judge_id, digest, failure)

    def _look_at_once(self) -> None:
        # In the midst of an asking nothing can be awaited, and this is rare.
        if self._look_is_overdue and not self._lock.still_ours():
            self._lock.renew()  # which says who has it now


def _traced(failure: Failure) -> str:
    """Return the traceback of what a model in Python raised, for whoever has to mend it."""
    return f"\n{failure.traceback.rstrip()}" if failure.traceback else ""


def _of_the_endpoint(failure: Failure) -> Failure:
    """Return the failure as one of many alike, under which the sample is owed again."""
    return Failure(
        FailureKind.ENDPOINT_FAILED,
        f"one of {LIMIT} or more calls in a row that failed with {failure.kind.value}: {failure.message}",
        failure.attempts,
        # Where they ended the asking, it begins anew.
        failure.replies if open_end(failure.kind) else (),
    )
