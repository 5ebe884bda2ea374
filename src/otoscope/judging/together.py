"""The work on several runs: one limit, and one judge model for all that ask it alike."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from otoscope.breaker import Breaker
from otoscope.chat_api import Budget
from otoscope.config import EndpointSettings, JudgeLimits, ModelSettings, TaskConfig
from otoscope.errors import (
    EndpointError,
    LimitReachedError,
    OtoscopeError,
    RunDirectoryError,
    RunInterruptedError,
)
from otoscope.estimate import in_all
from otoscope.judge import Judge, JudgeModel
from otoscope.judging.looking import Found, Owed, Skipped, Unusable, look
from otoscope.lock import RunLock
from otoscope.opening import opened
from otoscope.parts import Parts, prepare
from otoscope.pipeline import SERVED, Pipeline, Slots
from otoscope.records import (
    Estimate,
    Event,
    Failure,
    Judged,
    Notice,
    Reply,
    RunFailed,
    RunsPlanned,
    Sample,
    Verdict,
)
from otoscope.runs import Run, judged_orders
from otoscope.session import OnEvent, carry_out, ignore, no_clip, what_is_owed
from otoscope.stopping import Stop, run_stoppable
from otoscope.store import Plan, RunStore
from otoscope.tracking import track_and_tell

MAX_OPEN = 8
"""Runs that are open at a time, each with its lines' index in memory. More than one only at a run's end."""

_T = TypeVar("_T")


def judge_runs(
    runs: Sequence[str | Path],
    task_cfg: TaskConfig | Mapping[str, Any] | None = None,
    *,
    on_event: OnEvent | None = None,
    environ: Mapping[str, str] | None = None,
) -> list[Run]:
    """Judge the stored answers of these runs, and return the runs that hold the verdicts.

    ``task_cfg`` says which judge (:func:`look` which of its settings count); without one, each run's own.
    Also works inside a running event loop. Raises :class:`otoscope.errors.OtoscopeError`; where single runs
    could not be judged, once the others are. The same call goes on from what is stored. Ctrl-C as for
    :func:`otoscope.run_task`.
    """
    environ = os.environ if environ is None else environ
    found = look(task_cfg or TaskConfig(), runs, environ)
    ended = run_stoppable(lambda stop: judge_all(found, on_event=on_event, stop=stop))
    done = [end.path for end in ended if isinstance(end, Run)]
    track_and_tell(done, trackers_of(found), environ, on_event or ignore)
    if errors := [one for one in ended if isinstance(one, OtoscopeError)]:
        raise max(errors, key=lambda error: error.exit_code)
    return [one for one in ended if isinstance(one, Run)]


async def judge_all(
    found: Sequence[Found], *, on_event: OnEvent | None = None, stop: Stop | None = None
) -> list[Run | OtoscopeError | None]:
    """Judge what was found to be owed; return how each ended, in the given order.

    That is the run, what kept it from being judged, or ``None`` for one whose answers are judged elsewhere.
    Raises ``EndpointError`` when the judge cannot go on, ``LimitReachedError``, and ``RunInterruptedError``;
    all is stored then.
    """
    stop, tell = stop or Stop(), on_event or ignore
    owed = [one for one in found if isinstance(one, Owed)]
    ended: dict[Path, Run | OtoscopeError] = {}
    if owed:
        models = [one.judge.endpoint for one in owed]
        weights = owed[0].settings.weights
        budget = _budget(found, owed[0].settings.run.judge_limits)
        prepared = await asyncio.to_thread(prepare, models, weights, stop.heeded(tell))
        async with Parts(prepared, tell, budget) as parts:
            ended = await _Together(owed, parts, budget, tell, stop).judge()
    return [_end_of(one, ended) for one in found]


def trackers_of(found: Iterable[Found]) -> tuple[str, ...]:
    """Return the trackers that are told of these runs: all are judged by one command."""
    return next((one.settings.run.track for one in found if not isinstance(one, Unusable)), ())


def foreseen(found: Sequence[Found], budget: Budget | None = None) -> tuple[Estimate | None, str | None]:
    """Return what judging these runs will use in all, and what is to be said where a limit leaves less.

    ``None`` where nobody is paid. Without a ``budget`` it is what they have left of their limits.
    """
    owed = [one for one in found if isinstance(one, Owed)]
    estimate = in_all([one.started.estimate for one in owed if one.started.estimate is not None])
    if estimate is None:
        return None, None
    budget = budget or _budget(found, owed[0].settings.run.judge_limits)
    return estimate, budget.warning(estimate)


def _budget(found: Iterable[Found], limits: JudgeLimits) -> Budget:
    """Return what may be spent on all runs together, less what they, and those that are done, have spent."""
    budget = Budget(limits)
    for one in found:
        if not isinstance(one, Unusable) and one.settings.judge is not None:
            budget.count(one.spent, one.settings.judge.price)
    return budget


def _end_of(one: Found, ended: Mapping[Path, Run | OtoscopeError]) -> Run | OtoscopeError | None:
    match one:
        case Owed():
            return ended[one.path]
        case Skipped():
            return one.run
        case Unusable():
            return one.error


class _SharedJudge:
    """A judge model that several runs ask."""

    def __init__(self, model: JudgeModel, slots: asyncio.Semaphore, stop: Stop) -> None:
        self._model = model
        self._slots = slots
        self._stop = stop
        self.proven = False
        """Whether it is known to work."""
        self.breaker = Breaker("judge")

    async def until_ready(self) -> None:
        await self._model.until_ready()

    async def ask(self, messages: Sequence[Mapping[str, Any]], **overrides: Any) -> Reply | Failure:
        async with self._slots:
            if self._stop.requested.is_set():
                raise asyncio.CancelledError("no more is asked: the runs stop")
            reply = await self._model.ask(messages, **overrides)
        self.proven = self.proven or isinstance(reply, Reply) or reply.kind in SERVED
        return reply


class _Together:
    """The work on several runs. They are begun one after the other, the next when slots would be idle.

    The first sample of the first run goes alone; no other run is begun before the judge is known to work.
    """

    def __init__(self, owed: Sequence[Owed], parts: Parts, budget: Budget, tell: OnEvent, stop: Stop) -> None:
        self._owed = owed
        self._parts = parts
        self._budget = budget
        self._tell = tell
        self._stop = stop
        self._limit = min(one.judge.endpoint.concurrency for one in owed)
        self._slots = asyncio.Semaphore(self._limit)
        self._rates = _strictest(one.judge.endpoint for one in owed)
        self._models: list[tuple[ModelSettings, _SharedJudge]] = []
        self._open: dict[Path, _SharedJudge] = {}
        self._left: dict[Path, int] = {}
        """Verdicts that each open run still owes."""
        self._judged = 0
        """Verdicts that came, on all runs."""
        self._changed = asyncio.Event()
        self._ended: dict[Path, Run | OtoscopeError] = {}
        self._trouble: list[OtoscopeError] = []
        self._said: list[Notice] = []
        """What a run said that several say in the same words: that they stop."""

    async def judge(self) -> dict[Path, Run | OtoscopeError]:
        """Judge all; return how each ended, by its path. Raises what stopped all of them."""
        judges = [await self._shared(one) for one in self._owed]
        started = tuple(one.started for one in self._owed)
        self._tell(RunsPlanned(started))
        if (warning := foreseen(self._owed, self._budget)[1]) is not None:
            self._tell(Notice(warning))
        tasks: list[asyncio.Task[None]] = []
        try:
            for one, judge in zip(self._owed, judges, strict=True):
                while not self._room_for(judge):
                    self._changed.clear()
                    await self._changed.wait()
                if self._stop.requested.is_set():
                    break
                self._open[one.path], self._left[one.path] = judge, one.started.verdicts_owed
                tasks.append(asyncio.ensure_future(self._keep_going(one, judge)))
            if tasks:
                await asyncio.wait(tasks)
        finally:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        for bug in filter(None, results):
            raise bug
        # A run that stopped because the judge is gone says so itself; the others were only told to stop.
        self._trouble.sort(key=lambda error: isinstance(error, RunInterruptedError))
        if self._trouble and isinstance(self._trouble[0], LimitReachedError):
            raise self._budget.error(owed=sum(one.verdicts_owed for one in started) - self._judged)
        if self._trouble:
            raise self._trouble[0]
        if len(self._ended) < len(self._owed):
            raise RunInterruptedError("stopped", terminated=self._stop.terminated)
        return self._ended

    async def _shared(self, one: Owed) -> _SharedJudge:
        """Return the judge model that all runs share which ask it alike."""
        asked = self._asked(one)
        for known, judge in self._models:
            if known == asked:
                return judge
        alike = (other for other in self._owed if self._asked(other) == asked)
        served = any(other.judged_before for other in alike)
        judge = _SharedJudge(
            await self._parts.judge_model(asked, served_before=served), self._slots, self._stop
        )
        self._models.append((asked, judge))
        return judge

    def _asked(self, one: Owed) -> ModelSettings:
        """Return the settings under which a run's judge is asked: the limits are those of all runs."""
        asked = replace(one.judge.endpoint, concurrency=self._limit)
        if isinstance(asked, EndpointSettings):
            rpm, tpm = self._rates[asked.service]
            asked = replace(asked, rpm=rpm, tpm=tpm)
        return asked

    def _room_for(self, judge: _SharedJudge) -> bool:
        if not judge.proven and any(other is judge for other in self._open.values()):
            return False
        # A little ahead, so that the next run is open when the slots are free.
        return len(self._open) < MAX_OPEN and sum(self._left.values()) < 2 * self._limit

    async def _keep_going(self, one: Owed, judge: _SharedJudge) -> None:
        """Judge one run; its own trouble ends it alone."""
        try:
            self._ended[one.path] = await self._judge_one(one, judge)
        except OtoscopeError as error:
            if _is_its_own(error):
                self._ended[one.path] = error
                if len(self._owed) > 1:
                    self._tell(RunFailed(one.path, str(error)))
            else:
                self._trouble.append(error)
        finally:
            if one.path not in self._ended:
                self._stop_all()
            del self._open[one.path], self._left[one.path]
            self._changed.set()

    async def _judge_one(self, one: Owed, judge: _SharedJudge) -> Run:
        with contextlib.ExitStack() as stack:
            # In a thread: other runs are asking meanwhile.
            store, lock, samples, plan = await _in_thread(lambda: _opened(one, stack))
            self._left[one.path] = len(plan.verdicts)
            pipeline = Pipeline(
                store=store,
                lock=lock,
                clips=None,
                backend=None,
                judge=Judge(judge, one.judge, store.manifest["judge_id"]),
                orders=judged_orders(store.manifest),
                slots=Slots(0, self._limit),
                judge_blank=one.settings.run.judge_blank,
                on_event=self._hear,
                on_stopping=self._on_stopping,
                stop=self._stop,
                first_alone=not judge.proven,
                breakers={"judge": judge.breaker},
            )
            orders = len(judged_orders(store.manifest))
            return await carry_out(
                pipeline.run,
                plan,
                store,
                lock,
                samples,
                orders=orders,
                budget=self._budget,
                estimate=None,
                tell=self._tell,
            )

    def _hear(self, event: Event) -> None:
        if isinstance(event, Judged) and event.run_path in self._left:
            self._left[event.run_path] -= 1
            self._judged += isinstance(event.result, Verdict)
            self._changed.set()
        if isinstance(event, Notice):
            if event in self._said:
                return
            self._said.append(event)
        self._tell(event)

    def _on_stopping(self, trouble: BaseException | None) -> None:
        if trouble is None or not _is_its_own(trouble):
            self._stop_all()

    def _stop_all(self) -> None:
        self._parts.stop_asking()
        self._stop.requested.set()


def _strictest(
    judges: Iterable[ModelSettings],
) -> dict[tuple[str, str, str], tuple[float | None, float | None]]:
    """Return for each service the least requests and the least tokens a minute that any run allows it."""
    limits: dict[tuple[str, str, str], tuple[float | None, float | None]] = {}
    for judge in judges:
        if isinstance(judge, EndpointSettings):
            rpm, tpm = limits.get(judge.service, (None, None))
            limits[judge.service] = (_less(rpm, judge.rpm), _less(tpm, judge.tpm))
    return limits


def _less(one: float | None, other: float | None) -> float | None:
    return min((limit for limit in (one, other) if limit is not None), default=None)


def _is_its_own(trouble: BaseException) -> bool:
    """Whether this is the trouble of one run: with its folder, or with the answers it has."""
    of_answers = isinstance(trouble, EndpointError) and trouble.role == "model"
    return of_answers or isinstance(trouble, RunDirectoryError)


def _opened(one: Owed, stack: contextlib.ExitStack) -> tuple[RunStore, RunLock, Sequence[Sample], Plan]:
    store, lock = stack.enter_context(opened(one.settings, {}, answers_of=one.source if one.copied else None))
    samples = store.samples()
    plan = what_is_owed(store, samples, one.settings, clip_changed=no_clip, mended=no_clip)
    return store, lock, samples, replace(plan, answers=())


async def _in_thread(call: Callable[[], _T]) -> _T:
    """Await a call in a thread to its end, also when cancelled: what it has taken by then is given back."""
    called = asyncio.ensure_future(asyncio.to_thread(call))
    try:
        return await asyncio.shield(called)
    except asyncio.CancelledError:
        await asyncio.wait([called])
        raise
