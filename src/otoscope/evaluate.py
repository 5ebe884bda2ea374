"""Composition root: settings -> parts -> pipeline -> Run; the sync and the async way in.

Nothing here knows how a part works; this is where the parts meet.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from otoscope import audio, dataset, embedded
from otoscope.chat_api import ChatEndpoint
from otoscope.config import (
    EmbeddedSettings,
    EndpointSettings,
    Settings,
    TaskConfig,
    judging_only,
    resolve,
    without_selection,
)
from otoscope.dataset import Dataset
from otoscope.errors import ConfigError, RunDirectoryError, RunInterruptedError, did_you_mean
from otoscope.judge import Judge, JudgeModel
from otoscope.llm import EmbeddedJudge
from otoscope.lock import RunLock
from otoscope.opening import opened, peek
from otoscope.parsing import AnswerFilter
from otoscope.pipeline import Backend, Pipeline, Slots, Stop
from otoscope.records import Event, Failure, FailureKind, Json, Notice, RunStarted, Sample
from otoscope.runs import DryRun, Run, joined_lines, judged_orders, summary_of
from otoscope.scoring import Summary
from otoscope.store import (
    EMPTY_ANSWER,
    MANIFEST,
    SAMPLES,
    SUMMARY,
    Plan,
    RunStore,
    StoredAnswer,
    StoredFailure,
    read_manifest,
    sample_to_line,
)

OnEvent = Callable[[Event], None]
_T = TypeVar("_T")


def run_task(
    task_cfg: TaskConfig | Mapping[str, Any],
    *,
    on_event: OnEvent | None = None,
    environ: Mapping[str, str] | None = None,
) -> Run:
    """Evaluate a model as ``task_cfg`` says and return the run. Also works inside a running event loop.

    ``on_event`` gets each :data:`otoscope.records.Event`; ``environ`` stands for the process's environment.
    Raises :class:`otoscope.errors.OtoscopeError` with the next step in its message; whatever was done until
    then is stored, and the same call with ``use_cache`` set to the run's path goes on from there.
    """
    settings = settings_for(task_cfg, os.environ if environ is None else environ)
    return _run_blocking(lambda: asyncio.run(evaluate(settings, on_event=on_event)))


def settings_for(
    task_cfg: TaskConfig | Mapping[str, Any], environ: Mapping[str, str], *, judge_only: bool = False
) -> Settings:
    """Resolve settings; where a run is continued, its own are the base for what is not given.

    A whole command, which names a model, chooses its samples itself: tasks, limit and shuffle are not taken
    over. With ``run_dir`` and a model nothing is: a requeued job's command means what it says.
    ``judge_only`` leaves the model's endpoint out, whose URL may have held a secret that was not stored.

    Raises ``ConfigError``, and ``RunDirectoryError`` when the run to continue cannot be read.
    """
    config = task_cfg if isinstance(task_cfg, TaskConfig) else TaskConfig.from_mapping(task_cfg)
    path = Path(config.use_cache or config.run_dir or "")
    if config.use_cache and not RunStore.exists(path):
        there = f"it holds no {MANIFEST}" if path.exists() else "there is no such folder"
        raise RunDirectoryError(
            f"{path}: not a run: {there}. Runs lie under outputs/ unless --work-dir says so; "
            "to start one in a folder of your choice, give it with --run-dir"
        )
    if (config.use_cache or (config.run_dir and not config.model)) and RunStore.exists(path):
        stored = read_manifest(path / MANIFEST).get("settings")
        stored = stored if isinstance(stored, dict) else {}
        config = config.over(without_selection(stored) if config.model else stored)
    if judge_only:
        config = judging_only(config)
    settings = resolve(config, environ)
    AnswerFilter.parse(settings.prompt.answer_filter)
    _check_kinds(settings.run.retry_failed)
    return settings


async def evaluate(settings: Settings, *, on_event: OnEvent | None = None, stop: Stop | None = None) -> Run:
    """Evaluate a model: answer what is owed, judge it, store all of it, and sum it up."""
    data = await asyncio.to_thread(dataset.load, settings.selection)
    models = [settings.model, *_judge_models(settings)]
    folders = await asyncio.to_thread(embedded.prepare, models, settings.weights, _stoppable(on_event, stop))
    with opened(settings, _about(data, settings)) as (store, lock):
        plan = _plan(store, data.samples, settings, _clip_changed, _mended(data.root))
        async with _parts(settings, store, on_event or _ignore, folders) as parts:
            pipeline = _pipeline(settings, store, lock, data.root, parts, on_event, stop)
            return await _work(settings, pipeline, plan, store, lock, data.samples, on_event or _ignore)


async def judge_run(settings: Settings, *, on_event: OnEvent | None = None, stop: Stop | None = None) -> Run:
    """Judge a run's stored answers in place. Needs neither the data set nor the model.

    Raises ``RunDirectoryError`` when another judge has judged the run.
    """
    models = _judge_models(settings)
    folders = await asyncio.to_thread(embedded.prepare, models, settings.weights, _stoppable(on_event, stop))
    with opened(settings, {}) as (store, lock):
        samples = store.samples()
        plan = _plan(store, samples, settings, lambda *_: False, lambda *_: False)
        plan = Plan((), plan.verdicts, plan.answers_done, plan.verdicts_done, plan.blank)
        async with _parts(settings, store, on_event or _ignore, folders, judge_only=True) as parts:
            pipeline = _pipeline(settings, store, lock, store.path, parts, on_event, stop)
            return await _work(settings, pipeline, plan, store, lock, samples, on_event or _ignore)


def dry_run(settings: Settings) -> DryRun:
    """Resolve what a run would do, reading the header of every chosen clip.

    Raises ``DatasetError``, and ``RunDirectoryError`` where the real run would.
    """
    data = dataset.load(settings.selection)
    samples: dict[str, int] = {}
    seconds, size = 0.0, 0
    unusable: list[tuple[str, Failure]] = []
    for sample in data.samples:
        samples[sample.task] = samples.get(sample.task, 0) + 1
        found = dataset.outside_root(sample, data.root) or audio.measure(sample.audio_path)
        if isinstance(found, Failure):
            unusable.append((sample.key, found))
        else:
            seconds += found.seconds
            size += found.size
    done = (0, 0)
    store = peek(settings)
    if store is not None:
        with store:
            plan = _plan(store, data.samples, settings, _clip_changed, _mended(data.root))
        done = (plan.answers_done, plan.verdicts_done)
    return DryRun(settings, samples, data.task_sizes, seconds, size, unusable, *done)


def _about(data: Dataset, settings: Settings) -> Json:
    selection = settings.selection
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
        },
    }


# --- the parts --------------------------------------------------------------------------------------------


def _judge_models(settings: Settings) -> list[EndpointSettings | EmbeddedSettings]:
    return [settings.judge.endpoint] if settings.judge is not None else []


@dataclass(frozen=True, slots=True)
class _Parts:
    backend: Backend | None
    judge: Judge | None
    hush: Sequence[Callable[[], None]]
    """What keeps each endpoint from beginning new calls, once the run stops."""

    def stop_asking(self) -> None:
        for hush in self.hush:
            hush()


@contextlib.asynccontextmanager
async def _parts(
    settings: Settings,
    store: RunStore,
    tell: OnEvent,
    folders: Mapping[str, Path],
    *,
    judge_only: bool = False,
) -> AsyncIterator[_Parts]:
    """Build backend and judge, and close their connections and models at the end."""

    def notify(message: str) -> None:
        tell(Notice(message))

    endpoints: list[ChatEndpoint] = []
    async with contextlib.AsyncExitStack() as stack:
        # One language model for both, where both are inside of this process.
        language_model = embedded.language_model(folders)
        stack.push_async_callback(language_model.close)
        backend: Backend | None = None
        match None if judge_only else settings.model:
            case EndpointSettings() as model:
                from otoscope.backends.endpoint import EndpointBackend

                endpoint = await stack.enter_async_context(
                    ChatEndpoint(model, notify, served_before=store.has_answers)
                )
                endpoints.append(endpoint)
                backend = EndpointBackend(endpoint, settings.prompt)
            case EmbeddedSettings():
                from otoscope.backends.baseline import BaselineBackend
                from otoscope.backends.listening import Listener

                listener = Listener(embedded.recogniser(folders), threads=embedded.threads())
                backend = BaselineBackend(language_model, listener)
        judge = None
        if settings.judge is not None:
            asked: JudgeModel
            match settings.judge.endpoint:
                case EndpointSettings() as judge_endpoint:
                    judging = ChatEndpoint(judge_endpoint, notify, served_before=store.has_verdicts)
                    endpoint = await stack.enter_async_context(judging)
                    endpoints.append(endpoint)
                    asked = endpoint
                case EmbeddedSettings():
                    asked = EmbeddedJudge(language_model)
            judge = Judge(asked, settings.judge, store.manifest["judge_id"])
        yield _Parts(backend, judge, [endpoint.stop_asking for endpoint in endpoints])


def _pipeline(
    settings: Settings,
    store: RunStore,
    lock: RunLock,
    root: Path,
    parts: _Parts,
    on_event: OnEvent | None,
    stop: Stop | None,
) -> Pipeline:
    verdicts = settings.judge.endpoint.concurrency if settings.judge is not None else 0
    return Pipeline(
        store=store,
        lock=lock,
        root=root,
        backend=parts.backend,
        judge=parts.judge,
        orders=judged_orders(store.manifest),
        slots=Slots(settings.model.concurrency, verdicts),
        judge_blank=settings.run.judge_blank,
        on_event=on_event or _ignore,
        on_stopping=parts.stop_asking,
        stop=stop or Stop(),
    )


# --- the work ---------------------------------------------------------------------------------------------


def _plan(
    store: RunStore,
    samples: Sequence[Sample],
    settings: Settings,
    clip_changed: Callable[[Sample, StoredAnswer], bool],
    mended: Callable[[Sample, StoredFailure], bool],
) -> Plan:
    return store.plan(
        samples,
        judged_orders(store.manifest),
        store.manifest["judge_id"] if settings.judge is not None else None,
        retry_failed=settings.run.retry_failed,
        clip_changed=clip_changed,
        mended=mended,
    )


async def _work(
    settings: Settings,
    pipeline: Pipeline,
    plan: Plan,
    store: RunStore,
    lock: RunLock,
    samples: Sequence[Sample],
    tell: OnEvent,
) -> Run:
    """Run the pipeline; whatever happens in it, what there is gets summed up and written."""
    for sample in plan.superseded:
        changed = Failure(FailureKind.CLIP_CHANGED, "the stored answer is about another clip than this one")
        store.append_answer(sample, None, changed)
    if plan.answers or plan.verdicts or not (store.path / SAMPLES).exists():
        store.write_samples(map(sample_to_line, samples))
    if count := store.skipped_lines:
        tell(Notice(f"{count} lines of this run are torn or foreign: what only they held is owed again"))
    orders = len(judged_orders(store.manifest)) if settings.judge is not None else 0
    tell(
        RunStarted(
            run_path=store.path,
            samples=len(samples),
            answers_done=plan.answers_done,
            answers_owed=len(plan.answers),
            verdicts_done=plan.verdicts_done,
            verdicts_owed=len(plan.verdicts) + orders * len(plan.answers),
            orders=orders,
        )
    )
    try:
        await pipeline.run(plan)
    except BaseException:
        # Whose lock was taken must not write over what the new owner knows.
        if lock.still_ours():
            _write_results(store, samples)
        raise
    return Run(store.path, _write_results(store, samples))


def _write_results(store: RunStore, samples: Sequence[Sample]) -> Summary:
    summary = summary_of(store, samples)
    store.write_samples(joined_lines(store, samples))
    store.write_file(SUMMARY, json.dumps(summary.to_json(), indent=1, allow_nan=False).encode() + b"\n")
    return summary


def _clip_changed(sample: Sample, stored: StoredAnswer) -> bool:
    return _is_another(sample, stored.clip_bytes, stored.clip_mtime_ns, stored.clip_sha256)


def _is_another(sample: Sample, size: int, mtime_ns: int, sha256: str) -> bool:
    """Whether the clip is another one than it was: size and time first, then the bytes."""
    state = audio.file_state(sample.audio_path)
    if state is None or state == {"bytes": size, "mtime_ns": mtime_ns}:
        return False
    found = audio.file_sha256(sample.audio_path)
    return found is not None and found != sha256


def _mended(root: Path) -> Callable[[Sample, StoredFailure], bool]:
    """Return whether what made a clip unusable is gone, so that its sample is owed again."""

    def mended(sample: Sample, failure: StoredFailure) -> bool:
        match failure.kind:
            case FailureKind.MISSING_AUDIO:
                return audio.file_state(sample.audio_path) is not None
            case FailureKind.BAD_AUDIO:
                return failure.file is None or dict(failure.file) != audio.file_state(sample.audio_path)
            case FailureKind.OUTSIDE_ROOT:
                return dataset.outside_root(sample, root) is None
            case _:
                clip = failure.clip
                return clip is not None and _is_another(
                    sample, clip["bytes"], clip["mtime_ns"], clip["sha256"]
                )

    return mended


def _check_kinds(names: Sequence[str]) -> None:
    known = [*(kind.value for kind in FailureKind), EMPTY_ANSWER, "all"]
    for name in names:
        if name not in known:
            raise ConfigError(
                f"--retry-failed: there is no kind {name!r}{did_you_mean(name, known)}. "
                f"The kinds are {', '.join(known)}"
            )


def _run_blocking(call: Callable[[], _T]) -> _T:
    """Call something that runs an event loop, in a thread of its own where one is running already."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return call()
    with ThreadPoolExecutor(max_workers=1) as executor:
        return executor.submit(call).result()


def _stoppable(on_event: OnEvent | None, stop: Stop | None) -> OnEvent:
    """Return a listener that ends, at its next event, what goes on in a thread once a stop is asked for."""

    def tell(event: Event) -> None:
        if stop is not None and stop.requested.is_set():
            raise RunInterruptedError("stopped", terminated=stop.terminated)
        if on_event is not None:
            on_event(event)

    return tell


def _ignore(_event: Event) -> None:
    pass
