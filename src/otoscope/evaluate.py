"""Composition root of an evaluation: settings -> parts -> pipeline -> Run; the sync and the async way in.

Nothing here knows how a part works; this is where the parts meet.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from otoscope import audio, dataset, embedded
from otoscope.config import Settings, TaskConfig
from otoscope.dataset import Dataset
from otoscope.judge import Judge
from otoscope.obtaining import obtain
from otoscope.opening import opened, peek, settings_for
from otoscope.parts import Parts
from otoscope.pipeline import Pipeline, Slots, Stop
from otoscope.records import Failure, FailureKind, Json, Sample
from otoscope.runs import DryRun, Run, judged_orders
from otoscope.session import OnEvent, carry_out, ignore, run_blocking, what_is_owed
from otoscope.store import RunStore, StoredAnswer, StoredFailure


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
    return run_blocking(lambda: asyncio.run(evaluate(settings, on_event=on_event)))


async def evaluate(settings: Settings, *, on_event: OnEvent | None = None, stop: Stop | None = None) -> Run:
    """Evaluate a model: answer what is owed, judge it, store all of it, and sum it up."""
    stop, tell = stop or Stop(), on_event or ignore
    data = await asyncio.to_thread(obtain, settings.data, settings.selection)
    models = [settings.model, *([settings.judge.endpoint] if settings.judge is not None else [])]
    folders = await asyncio.to_thread(embedded.prepare, models, settings.weights, stop.heeded(tell))
    with opened(settings, _about(data, settings)) as (store, lock):
        plan = what_is_owed(
            store, data.samples, settings, clip_changed=_clip_changed, mended=_mended(data.root)
        )
        async with Parts(folders, tell) as parts:
            judge = await _judge(settings, parts, store)
            pipeline = Pipeline(
                store=store,
                lock=lock,
                root=data.root,
                backend=await parts.backend(settings.model, settings.prompt, served_before=store.has_answers),
                judge=judge,
                orders=judged_orders(store.manifest),
                slots=Slots(
                    settings.model.concurrency, settings.judge.endpoint.concurrency if settings.judge else 0
                ),
                judge_blank=settings.run.judge_blank,
                on_event=tell,
                on_stopping=lambda _trouble: parts.stop_asking(),
                stop=stop,
            )
            orders = len(judged_orders(store.manifest)) if judge is not None else 0
            return await carry_out(pipeline.run, plan, store, lock, data.samples, orders=orders, tell=tell)


async def _judge(settings: Settings, parts: Parts, store: RunStore) -> Judge | None:
    if settings.judge is None:
        return None
    model = await parts.judge_model(settings.judge.endpoint, served_before=store.has_verdicts)
    return Judge(model, settings.judge, store.manifest["judge_id"])


def dry_run(settings: Settings) -> DryRun:
    """Resolve what a run would do, reading the header of every chosen clip.

    Raises ``DatasetError``, and ``RunDirectoryError`` where the real run would.
    """
    data = obtain(settings.data, settings.selection)
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
            plan = what_is_owed(
                store, data.samples, settings, clip_changed=_clip_changed, mended=_mended(data.root)
            )
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
