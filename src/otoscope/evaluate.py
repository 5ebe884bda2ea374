"""Composition root: settings -> parts -> pipeline -> Run; the sync and the async way in.

Nothing here knows how a part works; this is where the parts meet.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from otoscope import audio, dataset
from otoscope.chat_api import ChatEndpoint
from otoscope.config import (
    URL_FIELDS,
    EndpointSettings,
    Settings,
    TaskConfig,
    changed_fields,
    fingerprint,
    resolve,
)
from otoscope.dataset import Dataset
from otoscope.errors import ConfigError, RunDirectoryError, did_you_mean
from otoscope.judge import PROMPT_SHA256, Judge, judge_identity
from otoscope.lock import RunLock
from otoscope.parsing import PARSER_VERSION, AnswerFilter
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


def settings_for(task_cfg: TaskConfig | Mapping[str, Any], environ: Mapping[str, str]) -> Settings:
    """Resolve settings; where a run is continued and no model is named, the run's own are the base.

    Raises ``ConfigError``, and ``RunDirectoryError`` when the run to continue cannot be read.
    """
    config = task_cfg if isinstance(task_cfg, TaskConfig) else TaskConfig.from_mapping(task_cfg)
    path = Path(config.use_cache or config.run_dir or "")
    if config.use_cache and not RunStore.exists(path):
        raise RunDirectoryError(
            f"{path}: not a run: it holds no {MANIFEST}. Runs lie under outputs/ unless --work-dir says so; "
            "to start one in a folder of your choice, give it with --run-dir"
        )
    if (config.use_cache or config.run_dir) and not config.model and RunStore.exists(path):
        config = config.over(read_manifest(path / MANIFEST).get("settings") or {})
    settings = resolve(config, environ)
    AnswerFilter.parse(settings.prompt.answer_filter)
    _check_kinds(settings.run.retry_failed)
    return settings


async def evaluate(settings: Settings, *, on_event: OnEvent | None = None, stop: Stop | None = None) -> Run:
    """Evaluate a model: answer what is owed, judge it, store all of it, and sum it up."""
    data = await asyncio.to_thread(dataset.load, settings.selection)
    with _opened(settings, _about(data, settings)) as (store, lock):
        plan = _plan(store, data.samples, settings, _clip_changed, _mended(data.root))
        async with _parts(settings, store, on_event or _ignore) as (backend, judge):
            pipeline = _pipeline(settings, store, lock, data.root, backend, judge, on_event, stop)
            return await _work(settings, pipeline, plan, store, data.samples, on_event or _ignore)


async def judge_run(settings: Settings, *, on_event: OnEvent | None = None, stop: Stop | None = None) -> Run:
    """Judge a run's stored answers in place. Needs neither the data set nor the model.

    Raises ``RunDirectoryError`` when another judge has judged the run.
    """
    with _opened(settings, {}) as (store, lock):
        samples = store.samples()
        plan = _plan(store, samples, settings, lambda *_: False, lambda *_: False)
        plan = Plan((), plan.verdicts, plan.answers_done, plan.verdicts_done, plan.blank)
        async with _parts(settings, store, on_event or _ignore) as (_, judge):
            pipeline = _pipeline(settings, store, lock, store.path, None, judge, on_event, stop)
            return await _work(settings, pipeline, plan, store, samples, on_event or _ignore)


def dry_run(settings: Settings) -> DryRun:
    """Resolve what a run would do, reading the header of every chosen clip. Raises ``DatasetError``."""
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
    return DryRun(settings, samples, data.task_sizes, seconds, size, unusable)


# --- the run directory ------------------------------------------------------------------------------------


@contextlib.contextmanager
def _opened(settings: Settings, about: Json) -> Iterator[tuple[RunStore, RunLock]]:
    """Create or continue the run, locked for this process; ``about`` is what its manifest says of it."""
    requested = fingerprint(settings, judge_prompt_sha256=PROMPT_SHA256, parser_version=PARSER_VERSION)
    path = _run_path(settings)
    lock = RunLock(path, take_over=settings.run.take_over)
    with lock:
        if RunStore.exists(path):
            store = RunStore.open(path)
            _continue(store, settings, requested, about)
        else:
            store = RunStore.create(path, {**about, "fingerprint": requested})
        with store:
            _name_judge(store)
            store.write_manifest()
            store.open_for_writing()
            yield store, lock


def _run_path(settings: Settings) -> Path:
    """Return where the run lives, the folder made. Raises ``RunDirectoryError``."""
    path = settings.run.path
    if path is not None and path.is_dir() and not RunStore.exists(path):
        strangers = [entry.name for entry in path.iterdir() if not entry.name.startswith(".")]
        if strangers:
            raise RunDirectoryError(
                f"{path}: holds {strangers[0]!r}, but no {MANIFEST}: it is no run. Give a new folder"
            )
    try:
        if path is not None:
            path.mkdir(parents=True, exist_ok=True)
            return path
        return _new_folder(settings.run.work_dir, settings.model.name)
    except OSError as error:
        raise RunDirectoryError(
            f"{error.filename}: cannot be made: {error.strerror}. "
            "Give another place with --work-dir or --run-dir"
        ) from None


def _new_folder(work_dir: Path, model: str) -> Path:
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", model.rpartition("/")[2]).strip("-.")[:60] or "model"
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{slug}"
    number = 1
    while True:
        path = work_dir / (name if number == 1 else f"{name}-{number}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            number += 1
        else:
            return path


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


def _continue(store: RunStore, settings: Settings, requested: Json, about: Json) -> None:
    """Refuse, by name, a changed setting that affects answers or verdicts; else note what is new."""
    manifest = store.manifest
    before = manifest.get("fingerprint") or {}
    changes = changed_fields(before, requested)
    refused = {name: change for name, change in changes.items() if name not in settings.run.allow_changed}
    if refused:
        raise RunDirectoryError(_refusal(store.path, refused))
    if changes:
        manifest.setdefault("allowed_changes", []).extend(
            {"field": name, "from": old, "to": new} for name, (old, new) in changes.items()
        )
    if requested["judge"] is None:
        requested = {**requested, "judge": before.get("judge")}
    manifest["fingerprint"] = requested
    kept = {name: value for name, value in about.items() if value or name not in ("label", "tags")}
    manifest.update(kept)
    if not about and settings.judge is not None:
        stored = manifest.setdefault("settings", {})
        stored["judge_model_args"] = settings.stored.get("judge_model_args")


def _refusal(path: Path, refused: Mapping[str, tuple[Any, Any]]) -> str:
    lines = [f"  {name}: was {old!r}, now {new!r}" for name, (old, new) in refused.items()]
    if all(name in URL_FIELDS for name in refused):
        flags = " ".join(f"--allow-changed {name}" for name in refused)
        advice = (
            f"If it is the same model behind another address, go on with the same command and {flags}. "
            "(With --model-revision or --judge-revision the revision is the identity, and the URL is free)"
        )
    else:
        advice = "Give the old values to go on with this run, or start a new one with another --run-dir"
    what = "\n".join(lines)
    return f"{path}: this run was made with other settings that its numbers depend on:\n{what}\n{advice}"


def _name_judge(store: RunStore) -> None:
    judge = store.manifest["fingerprint"].get("judge")
    store.manifest["judge_id"] = judge_identity(judge) if judge else None


# --- the parts --------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _parts(
    settings: Settings, store: RunStore, tell: OnEvent
) -> AsyncIterator[tuple[Backend, Judge | None]]:
    """Build backend and judge, and close their connections at the end."""

    def notify(message: str) -> None:
        tell(Notice(message))

    async with contextlib.AsyncExitStack() as stack:
        backend: Backend
        match settings.model:
            case EndpointSettings():
                from otoscope.backends.endpoint import EndpointBackend

                endpoint = await stack.enter_async_context(ChatEndpoint(settings.model, notify))
                backend = EndpointBackend(endpoint, settings.prompt)
        judge = None
        if settings.judge is not None:
            model = await stack.enter_async_context(ChatEndpoint(settings.judge.endpoint, notify))
            judge = Judge(model, settings.judge, store.manifest["judge_id"])
        yield backend, judge


def _pipeline(
    settings: Settings,
    store: RunStore,
    lock: RunLock,
    root: Path,
    backend: Backend | None,
    judge: Judge | None,
    on_event: OnEvent | None,
    stop: Stop | None,
) -> Pipeline:
    verdicts = settings.judge.endpoint.concurrency if settings.judge is not None else 0
    return Pipeline(
        store=store,
        lock=lock,
        root=root,
        backend=backend,
        judge=judge,
        orders=judged_orders(store.manifest),
        slots=Slots(settings.model.concurrency, verdicts),
        judge_blank=settings.run.judge_blank,
        on_event=on_event or _ignore,
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
    samples: Sequence[Sample],
    tell: OnEvent,
) -> Run:
    """Run the pipeline; whatever happens in it, what there is gets summed up and written."""
    owed = len(plan.answers) + len(plan.verdicts)
    if owed or not (store.path / SAMPLES).exists():
        store.write_samples(map(sample_to_line, samples))
    if store.skipped_lines:
        tell(
            Notice(
                f"{store.skipped_lines} lines of this run are torn or foreign; what they held is owed again"
            )
        )
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
    finally:
        summary = await asyncio.to_thread(_write_results, store, samples)
    return Run(store.path, summary)


def _write_results(store: RunStore, samples: Sequence[Sample]) -> Summary:
    summary = summary_of(store, samples)
    store.write_samples(joined_lines(store, samples))
    store.write_file(SUMMARY, json.dumps(summary.to_json(), indent=1, allow_nan=False).encode() + b"\n")
    return summary


def _clip_changed(sample: Sample, stored: StoredAnswer) -> bool:
    """Whether the clip is another one than was answered about: size and time first, then the bytes."""
    state = audio.file_state(sample.audio_path)
    if state is None or state == {"bytes": stored.clip_bytes, "mtime_ns": stored.clip_mtime_ns}:
        return False
    sha256 = audio.file_sha256(sample.audio_path)
    return sha256 is not None and sha256 != stored.clip_sha256


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
                return False

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


def _ignore(_event: Event) -> None:
    pass
