"""What judging runs comes to: looked at without sending or writing anything."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from otoscope.config import JudgeSettings, Settings, TaskConfig
from otoscope.errors import ConfigError, RunDirectoryError
from otoscope.estimate import estimated
from otoscope.nesting import STORED_DEPTH, decoded
from otoscope.opening import asks_another_judge, continued, peek, requested_judge, settings_for
from otoscope.records import Order, RunStarted, Spent
from otoscope.runs import Run, load_run
from otoscope.session import no_clip
from otoscope.store import MANIFEST, SUMMARY, RunStore, answers_digest, is_current_copy, read_manifest
from otoscope.tracking import require


@dataclass(frozen=True, slots=True)
class Owed:
    """A run that will be judged: in place, or where ``path`` is another than ``source``, over a copy."""

    source: Path
    path: Path
    settings: Settings
    judge: JudgeSettings
    judge_id: str
    started: RunStarted
    """What it will do."""
    judged_before: bool
    """Whether this judge has given it verdicts already."""
    spent: Spent
    """What it used on its judge before."""

    @property
    def copied(self) -> bool:
        """Whether the verdicts go to a run over a copy of the answers."""
        return self.path != self.source


@dataclass(frozen=True, slots=True)
class Skipped:
    """A run of which this judge is asked nothing, and ``why``; ``run`` is where its verdicts are."""

    source: Path
    path: Path
    settings: Settings
    judge_id: str
    why: str
    run: Run | None
    spent: Spent
    """What was used on the judge there."""


@dataclass(frozen=True, slots=True)
class Unusable:
    """A run that cannot be judged as it is."""

    source: Path
    error: RunDirectoryError


Found = Owed | Skipped | Unusable


def look(
    task_cfg: TaskConfig | Mapping[str, Any], runs: Sequence[str | Path], environ: Mapping[str, str]
) -> list[Found]:
    """Look at what judging these runs comes to; nothing is sent, and nothing written.

    Of the settings those of the judge count, ``run_dir`` (where the verdicts on one run go) and ``work_dir``
    (where copies are made; else beside their source). A run without verdicts, or with those of the same
    judge, is judged in place. Raises ``ConfigError``.
    """
    config = task_cfg if isinstance(task_cfg, TaskConfig) else TaskConfig.from_mapping(task_cfg)
    sources = {path.resolve(): path for path in (Path(run).expanduser() for run in runs)}.values()
    if config.run_dir and len(sources) > 1:
        raise ConfigError("--run-dir is where the verdicts on one run go; for several runs give --work-dir")
    found = [_look_at(config, source, environ) for source in sources]
    return _nothing_paid_twice(_one_for_each_place(found))


def _look_at(config: TaskConfig, source: Path, environ: Mapping[str, str]) -> Found:
    try:
        # That it judges is not for the settings to leave out, and no advice for them to give.
        asked = config.changed(
            use_cache=str(source), run_dir=None, work_dir=None, no_judge=config.no_judge or False
        )
        settings = settings_for(asked, environ, judge_only=True)
        require(settings.run.track)
        with RunStore.open(source) as store:
            if reason := store.manifest.get("cannot_be_judged"):
                raise RunDirectoryError(f"{source}: its answers cannot be judged: {reason}")
            path = _place(config, store, settings)
            return _looked_at(store, replace(settings, run=replace(settings.run, path=path)), path)
    except RunDirectoryError as error:
        return Unusable(source, error)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None


def _place(config: TaskConfig, store: RunStore, settings: Settings) -> Path:
    """Return where the verdicts go: a name made of the judge, so that the same command goes on with it."""
    source = store.path
    if config.run_dir:
        path = Path(config.run_dir).expanduser()
        return source if path.resolve() == source.resolve() else path
    if not asks_another_judge(store, settings):
        return source
    real = source.resolve() if source.is_symlink() or source.name in ("", "..") else source
    folder = Path(config.work_dir).expanduser() if config.work_dir else real.parent
    name, _, digest = requested_judge(settings).rpartition("#")
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", name.rpartition("/")[2]).strip("-.")[:60] or "judge"
    return folder / f"{real.name}--judged-by-{slug}-{digest}"


def _looked_at(store: RunStore, settings: Settings, path: Path) -> Found:
    source, judge = store.path, settings.judge
    if judge is None:
        raise ConfigError("there is no judge to be asked: leave no_judge out")
    judge_id = requested_judge(settings)
    with contextlib.ExitStack() as stack:
        if path == source:
            settled = store.manifest.get("judge_id") == judge_id
            continued(store, settings, judge_only=True)
            judged = store
        else:
            judged = stack.enter_context(peek(settings, judge_only=True) or RunStore(path))
            settled = RunStore.exists(path) and is_current_copy(source, path)
        samples, orders = store.samples(), Order.judged(swap=judge.swap)
        plan = store.plan(
            samples,
            orders,
            judge_id,
            retry_failed=settings.run.retry_failed,
            clip_changed=no_clip,
            mended=no_clip,
            verdicts_in=judged,
        )
        spent = judged.judge_spent
    if settled and not plan.verdicts and _has_price(path, settings) and (run := _written(path)) is not None:
        why = f"already judged by {judge.endpoint.name}"
        return Skipped(source, path, settings, judge_id, why, run, spent)
    started = RunStarted(
        run_path=path,
        samples=len(samples),
        answers_done=plan.answers_done,
        answers_owed=0,
        verdicts_done=plan.verdicts_done,
        verdicts_owed=len(plan.verdicts),
        orders=len(orders),
        estimate=estimated(judge, replace(plan, answers=()), len(orders), samples, store, spent),
    )
    return Owed(source, path, settings, judge, judge_id, started, judged.has_verdicts, spent)


def _has_price(path: Path, settings: Settings) -> bool:
    """Whether the run was stored with the judge's price as it is now."""
    stored = read_manifest(path / MANIFEST).get("settings") or {}
    return bool(stored.get("judge_price") == settings.stored.get("judge_price"))


def _written(path: Path) -> Run | None:
    """Return the run, if what is written of its numbers is what they are; a killed process wrote none."""
    run = load_run(path)
    try:
        written = decoded((path / SUMMARY).read_bytes(), depth=STORED_DEPTH)
    except (OSError, ValueError):
        return None
    return run if written == json.loads(json.dumps(run.summary.to_json(), allow_nan=False)) else None


def _one_for_each_place(found: Sequence[Found]) -> list[Found]:
    """Keep one for each folder that verdicts go to: a run and its copy may both have been named."""
    kept: dict[Path, Owed | Skipped] = {}
    unusable: list[Found] = []
    for one in found:
        if isinstance(one, Unusable):
            unusable.append(one)
            continue
        place = one.path.resolve()
        other = kept.get(place)
        if other is not None and one.path != one.source and other.path != other.source:
            taken = RunDirectoryError(
                f"{one.source}: its copy would lie in {one.path}, and so would that of {other.source}. "
                "Judge one of them with another --work-dir"
            )
            unusable.append(Unusable(one.source, taken))
        elif other is None or other.path == other.source:
            kept[place] = one
    return [*kept.values(), *unusable]


def _nothing_paid_twice(found: Sequence[Found]) -> list[Found]:
    """Skip copies of answers that this judge has judged, or will, with another of the runs."""
    answers = [
        None if isinstance(one, Unusable) else (one.judge_id, answers_digest(one.source)) for one in found
    ]
    first: dict[Any, Found] = {}
    for copied in (False, True):
        for one, about in zip(found, answers, strict=True):
            if (isinstance(one, Owed) and one.copied) is copied:
                first.setdefault(about, one)
    return [
        _repeated(one, first[about].source)
        if isinstance(one, Owed) and one.copied and first[about] is not one
        else one
        for one, about in zip(found, answers, strict=True)
    ]


def _repeated(one: Owed, other: Path) -> Skipped:
    why = f"its answers are those of {other}, which this judge has; name it alone to have them judged again"
    return Skipped(one.source, one.path, one.settings, one.judge_id, why, None, one.spent)
