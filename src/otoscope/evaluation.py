"""Composition root of an evaluation: settings -> parts -> pipeline -> Run; the sync and the async way in.

Nothing here knows how a part works; this is where the parts meet.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from otoscope.benchmark import BENCHMARK
from otoscope.chat_api import Budget
from otoscope.clips import Clips
from otoscope.config import (
    EndpointSettings,
    JudgeLimits,
    SelectionSettings,
    Settings,
    TaskConfig,
    plain_object,
)
from otoscope.dataset import Dataset
from otoscope.errors import EndpointError, LimitReachedError, OtoscopeError, RunDirectoryError
from otoscope.estimate import estimated, of_calls
from otoscope.judge import Judge
from otoscope.obtaining import Plan, obtain, plan
from otoscope.opening import opened, peek, settings_for
from otoscope.parts import Parts, Rates, located, prepare
from otoscope.pipeline import Pipeline, Slots
from otoscope.records import Event, Json, Judged, Order, Price, RunFailed, RunStarted, Sending, Spent, Verdict
from otoscope.runs import DryRun, Run, ToDownload, judged_orders
from otoscope.session import OnEvent, carry_out, ignore, what_is_owed
from otoscope.stopping import Stop, run_stoppable, stoppable
from otoscope.store import Plan as Owed
from otoscope.store import RunStore
from otoscope.tracking import require, track_and_tell

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from otoscope.config import TaskSettings


def run_task(
    task_cfg: TaskConfig | Mapping[str, Any],
    *,
    on_event: OnEvent | None = None,
    environ: Mapping[str, str] | None = None,
) -> Run:
    """Evaluate a model as ``task_cfg`` says and return the run. Also works inside a running event loop.

    ``on_event`` gets each :data:`otoscope.records.Event`; ``environ`` stands for the process's environment.
    Raises :class:`otoscope.errors.OtoscopeError` with the next step in its message; whatever was done until
    then is stored, and the same call with ``use_cache`` set to the run's path goes on from there. Ctrl-C is
    ``KeyboardInterrupt`` once calls in flight have ended, or had their time to; a second one does not wait.
    """
    environ = os.environ if environ is None else environ
    settings = settings_for(task_cfg, environ)
    run = run_stoppable(lambda stop: answer_and_judge(settings, on_event=on_event, stop=stop))
    track_and_tell([run.path], settings.run.track, environ, on_event or ignore)
    return run


def evaluate(
    *,
    model: Any = None,
    judge: Any = None,
    data: str | PathLike[str] | None = None,
    on_event: OnEvent | None = None,
    environ: Mapping[str, str] | None = None,
    **settings: Unpack[TaskSettings],
) -> Run:
    """Evaluate a model and return the run. Also works inside a running event loop, as a notebook has one.

    ``model`` is a name, as for ``otoscope eval --model``, or the model itself: a function ``(audio,
    question) -> text``, an object with such a method ``answer`` or a method ``answer_batch`` (a list of
    :class:`AudioQuestion` -> a list of texts), or a class of such objects, which is built with
    ``model_args``; ``async`` is fine. ``judge`` is a judge's name, or a function from its prompt to what it
    writes; without one it is the paper's, with the key of the environment (``no_judge=True``: none). ``data``
    is the folder with ``Chat/``; without it the data set comes from its hub. ``settings`` are the fields of
    :class:`TaskConfig`. ``on_event`` and ``environ``, and what is raised, as for :func:`run_task`.
    """
    config = _config(model, judge, data, settings)
    return run_task(config, on_event=on_event, environ=environ)


async def evaluate_async(
    *,
    model: Any = None,
    judge: Any = None,
    data: str | PathLike[str] | None = None,
    on_event: OnEvent | None = None,
    environ: Mapping[str, str] | None = None,
    **settings: Unpack[TaskSettings],
) -> Run:
    """Evaluate a model as :func:`evaluate` does, in the event loop that is running.

    Cancelling it stops the run once calls in flight have ended, or had their time to; a second time it does
    not wait. The same call with the same ``run_dir`` goes on from there.
    """
    config = _config(model, judge, data, settings)
    environ = os.environ if environ is None else environ
    resolved = settings_for(config, environ)
    run = await stoppable(lambda stop: answer_and_judge(resolved, on_event=on_event, stop=stop))
    await asyncio.to_thread(track_and_tell, [run.path], resolved.run.track, environ, on_event or ignore)
    return run


def _config(
    model: Any, judge: Any, data: str | PathLike[str] | None, settings: Mapping[str, Any]
) -> TaskConfig:
    given = {**settings, "model": model, "judge_model": judge}
    if data is not None:
        args = plain_object(settings.get("dataset_args") or {}, "dataset_args")
        of_benchmark = {**(args.get(BENCHMARK) or {}), "local_path": fspath(data)}
        given["dataset_args"] = {**args, BENCHMARK: of_benchmark}
    return TaskConfig.from_mapping(given)


async def answer_and_judge(
    settings: Settings,
    *,
    on_event: OnEvent | None = None,
    stop: Stop | None = None,
    budget: Budget | None = None,
    rates: Rates | None = None,
) -> Run:
    """Evaluate a model: answer what is owed, judge it, store all of it, and sum it up.

    ``budget`` and ``rates`` are what several runs share; what this run used before is counted in that budget.
    """
    stop, tell = stop or Stop(), on_event or ignore
    require(settings.run.track)
    wanted = _wanted(settings)
    data = await asyncio.to_thread(obtain, settings.data, wanted, stop.heeded(tell))
    data = data.of_shard(settings.selection.shard)
    clips = Clips(data, settings, tell)
    settings = await asyncio.to_thread(located, settings, stop.heeded(tell))
    models = [settings.model, *([settings.judge.endpoint] if settings.judge is not None else [])]
    prepared = await asyncio.to_thread(prepare, models, settings.weights, stop.heeded(tell))
    with contextlib.closing(prepared), opened(settings, _about(data, settings)) as (store, lock):
        owed = what_is_owed(store, data.samples, settings, clip_changed=clips.changed, mended=clips.mended)
        await asyncio.to_thread(clips.refuse_over_limit, owed.answers)
        budget = budget or _budget(settings, store.judge_spent)
        async with Parts(prepared, tell, budget, rates, run_path=store.path) as parts:
            judge = await _judge(settings, parts, store)
            pipeline = Pipeline(
                store=store,
                lock=lock,
                clips=clips,
                backend=await parts.backend(settings.model, settings.prompt, served_before=store.has_answers),
                judge=judge,
                orders=judged_orders(store.manifest),
                slots=Slots(
                    parts.slots(settings.model), settings.judge.endpoint.concurrency if settings.judge else 0
                ),
                judge_blank=settings.run.judge_blank,
                on_event=tell,
                on_stopping=lambda _trouble: parts.stop_asking(),
                stop=stop,
            )
            orders = len(judged_orders(store.manifest)) if judge is not None else 0
            return await carry_out(
                pipeline.run,
                owed,
                store,
                lock,
                data.samples,
                orders=orders,
                budget=budget,
                estimate=estimated(settings.judge, owed, orders, data.samples, store, store.judge_spent),
                tell=tell,
            )


async def evaluate_all(
    several: Sequence[Settings],
    *,
    on_event: OnEvent | None = None,
    stop: Stop | None = None,
    on_run: Callable[[int], None] | None = None,
) -> list[Run | OtoscopeError | None]:
    """Evaluate models, one after the other; all runs share what may be used on the judge, and its rates.

    Returned is how each ended: the run, what stopped it, or ``None`` for one that was not begun. A limit that
    was reached and a signal stop all of them, a judge that cannot go on those that ask it; any other trouble
    is one run's own. ``on_run`` is told the number of each run before it begins.
    """
    stop, tell = stop or Stop(), on_event or ignore
    judged = [settings.run.judge_limits for settings in several if settings.judge is not None]
    budget, rates = Budget(judged[0] if judged else JudgeLimits()), Rates()
    for settings in several:
        budget.count(await asyncio.to_thread(_spent_before, settings), _price(settings))
    ended: list[Run | OtoscopeError | None] = []
    gone: set[tuple[str, str, str]] = set()
    """Judges that cannot go on."""
    for number, settings in enumerate(several):
        service = _judge_service(settings)
        if stop.requested.is_set() or service in gone:
            ended.append(None)
            continue
        if on_run is not None:
            on_run(number)
        owing = _Owing()
        try:
            ended.append(
                await answer_and_judge(
                    settings, on_event=owing.heard_by(tell), stop=stop, budget=budget, rates=rates
                )
            )
        except LimitReachedError as error:
            stop.requested.set()
            # Those that come after it owe as much, as far as is known.
            later = len(several) - number - 1
            reached = budget.error(owed=owing.now + owing.of_a_run * later)
            reached.run_path = error.run_path
            ended.append(reached)
        except OtoscopeError as error:
            ended.append(error)
            if error.run_path is not None and len(several) > number + 1 and not stop.requested.is_set():
                tell(RunFailed(error.run_path, str(error)))
            if isinstance(error, EndpointError) and error.role == "judge" and service is not None:
                gone.add(service)
    return ended


class _Owing:
    """What a run owes of verdicts, by what it tells."""

    def __init__(self) -> None:
        self.of_a_run = 0
        self.now = 0

    def heard_by(self, tell: OnEvent) -> OnEvent:
        """Return a listener that takes note, and tells what it hears."""

        def listen(event: Event) -> None:
            if isinstance(event, RunStarted):
                self.of_a_run, self.now = event.samples * event.orders, event.verdicts_owed
            elif isinstance(event, Judged):
                self.now -= isinstance(event.result, Verdict)
            tell(event)

        return listen


def _spent_before(settings: Settings) -> Spent:
    """Return what a run used on its judge before; why it cannot go on is told when it begins."""
    with contextlib.suppress(RunDirectoryError):
        store = peek(settings)
        if store is not None:
            with store:
                return store.judge_spent
    return Spent()


def _judge_service(settings: Settings) -> tuple[str, str, str] | None:
    endpoint = settings.judge.endpoint if settings.judge is not None else None
    return endpoint.service if isinstance(endpoint, EndpointSettings) else None


def _wanted(settings: Settings) -> SelectionSettings:
    """Return the samples whose clips are needed."""
    if settings.audio.control == "shuffled":
        # Whose clip takes whose place is the same whatever the shards: it may be another shard's.
        return replace(settings.selection, shard=None)
    return settings.selection


def _budget(settings: Settings, spent: Spent) -> Budget:
    """Return what may be spent on the judge, less what was spent on it."""
    budget = Budget(settings.run.judge_limits)
    budget.count(spent, _price(settings))
    return budget


def _price(settings: Settings) -> Price | None:
    return settings.judge.price if settings.judge is not None else None


async def _judge(settings: Settings, parts: Parts, store: RunStore) -> Judge | None:
    if settings.judge is None:
        return None
    model = await parts.judge_model(settings.judge.endpoint, served_before=store.has_verdicts)
    return Judge(model, settings.judge, store.manifest["judge_id"])


def dry_run(settings: Settings) -> DryRun:
    """Resolve what a run would do, reading the header of every chosen clip.

    Raises ``DatasetError``, and ``RunDirectoryError`` where the real run would.
    """
    require(settings.run.track)
    settings = located(settings, ignore, fetch=False)
    planned = None if settings.data.root is not None else plan(settings.data.hub, _wanted(settings))
    download = None if planned is None else _to_download(planned)
    data = obtain(settings.data, _wanted(settings)) if planned is None else planned.data
    if data is None:
        return DryRun(settings, {}, {}, Sending(), (), download=download)
    data = data.of_shard(settings.selection.shard)
    clips = Clips(data, settings, ignore)
    sending, unusable = clips.sending()
    if planned is not None:
        # What is still to come is not what cannot be sent.
        sources = {sample.key: clips.source(sample).key for sample in data.samples}
        unusable = [(key, failure) for key, failure in unusable if sources[key] not in planned.missing]
    owed = Owed(data.samples, (), answers_done=0, verdicts_done=0, blank=0)
    store = peek(settings)
    if store is not None:
        with store:
            owed = what_is_owed(
                store, data.samples, settings, clip_changed=clips.changed, mended=clips.mended
            )
    samples = Counter(sample.task for sample in data.samples)
    done = (owed.answers_done, owed.verdicts_done)
    dry = DryRun(settings, samples, data.task_sizes, sending, unusable, *done, download=download)
    orders = len(Order.judged(swap=settings.judge.swap)) if settings.judge is not None else 0
    spent = store.judge_spent if store is not None else Spent()
    whole = estimated(settings.judge, owed, orders, data.samples, store, spent)
    if whole is None:
        return dry
    estimate = of_calls(whole, dry.verdicts)
    return replace(dry, estimate=estimate, limit_warning=_budget(settings, spent).warning(estimate))


def _to_download(planned: Plan) -> ToDownload | None:
    """Return what would be downloaded first, where there is something."""
    if planned.data is not None and not planned.all.fetched:
        return None
    known = planned.data is not None
    return ToDownload(
        planned.hub.name,
        planned.hub.dataset,
        files=planned.all.fetched if known else None,
        bytes=planned.all.fetched_bytes if known and planned.compared else None,
        place=planned.place,
    )


def _about(data: Dataset, settings: Settings) -> Json:
    selection = settings.selection
    shard = {} if selection.shard is None else {"shard": str(selection.shard), "selected": len(data.selected)}
    return {
        "label": settings.run.label,
        "tags": dict(settings.run.tags),
        "settings": dict(settings.stored),
        "dataset": {
            "root": str(data.root),
            "digest": data.digest,
            "task_sizes": data.task_sizes,
            "descriptions_converted": data.descriptions_converted,
        },
        "selection": {
            "tasks": list(selection.tasks),
            "limit": selection.limit,
            "shuffle": selection.shuffle,
            "seed": selection.seed,
            "samples": len(data.samples),
            **shard,
        },
    }
