"""Opens a run directory for this process: created or continued, and locked against every other."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from otoscope import embedded
from otoscope.config import (
    Settings,
    TaskConfig,
    changed_fields,
    fingerprint,
    judging_only,
    located,
    names_function,
    resolve,
    shown_name,
    whole_spec,
    with_judge_of,
    without_selection,
)
from otoscope.errors import ConfigError, OtoscopeError, RunDirectoryError, did_you_mean
from otoscope.judge import PROMPT_SHA256, judge_identity
from otoscope.lock import RunLock
from otoscope.parsing import PARSER_VERSION, AnswerFilter
from otoscope.records import FailureKind, Json
from otoscope.refusal import SAME_JUDGE, refusal
from otoscope.shell import shell_command
from otoscope.store import (
    ANSWERS,
    EMPTY_ANSWER,
    MANIFEST,
    VERDICTS,
    RunStore,
    copy_run,
    read_manifest,
    run_folders,
)


def settings_for(
    task_cfg: TaskConfig | Mapping[str, Any], environ: Mapping[str, str], *, judge_only: bool = False
) -> Settings:
    """Resolve settings, those of a run that is continued with them (:func:`over_stored`).

    ``judge_only`` leaves the model's endpoint out, whose URL may have held a secret that was not stored.

    Raises ``ConfigError``, and ``RunDirectoryError`` when the run to continue cannot be read.
    """
    config = over_stored(task_cfg, judge_only=judge_only)
    if judge_only:
        config = judging_only(config)
    try:
        settings = resolve(config, environ)
        AnswerFilter.parse(settings.prompt.answer_filter)
        _check_kinds(settings.run.retry_failed)
    except ConfigError as error:
        raise located(error, config.layer) from None
    return settings


def over_stored(task_cfg: TaskConfig | Mapping[str, Any], *, judge_only: bool = False) -> TaskConfig:
    """Return what is asked for; where a run is continued, its own settings are the base for the rest.

    A whole command, which names a model, chooses its samples itself: tasks, limit and shuffle are not taken
    over. With ``run_dir`` and a model nothing is: a requeued job's command means what it says.

    Raises ``RunDirectoryError`` when the run to continue cannot be read.
    """
    config = task_cfg if isinstance(task_cfg, TaskConfig) else TaskConfig.from_mapping(task_cfg)
    path = Path(config.use_cache or config.run_dir or "")
    if config.use_cache and not RunStore.exists(path):
        there = f"it holds no {MANIFEST}" if path.exists() else "there is no such folder"
        new = "" if judge_only else "; to start one in a folder of your choice, give it with --run-dir"
        raise RunDirectoryError(
            f"{path}: not a run: {there}. Runs lie under outputs/ unless --work-dir says so{new}"
        )
    if (config.use_cache or (config.run_dir and config.model is None)) and RunStore.exists(path):
        manifest = read_manifest(path / MANIFEST)
        stored = manifest.get("settings")
        stored = stored if isinstance(stored, dict) else {}
        same = _names_the_same(config.model, manifest, stored, path) if not judge_only else False
        _refuse_judge_of_python(config, manifest, path)
        taken = stored if config.model is None or same else without_selection(stored)
        return config.over(taken, str(path))
    return config


def _refuse_judge_of_python(config: TaskConfig, manifest: Json, path: Path) -> None:
    """Raise ``ConfigError`` for a run whose judge was an object, and is not given again."""
    judge = (manifest.get("fingerprint") or {}).get("judge") or {}
    args = config.judge_model_args or {}
    named = config.judge_model is not None or args.get("model_id") or args.get("api_url")
    if "source_sha256" in judge and not (named or config.no_judge):
        raise ConfigError(
            f"{path}: its judge, {judge.get('name')}, was written in Python. Give it again, by the same call "
            "of otoscope.evaluate(judge=..., use_cache=...), or name another one with --judge-model"
        )


def _names_the_same(model: Any, manifest: Json, stored: Json, path: Path) -> bool:
    """Whether the model that is named is the one in Python that a run was made with.

    Such a model has to be named again, which is then no whole command: what a run directory says is no reason
    to run anything. Raises ``ConfigError`` where it is not named.
    """
    spec = stored.get("model")
    if "source_sha256" not in ((manifest.get("fingerprint") or {}).get("model") or {}):
        return False
    if model is None:
        command = shell_command(["otoscope", "eval", "--use-cache", str(path), "--model", str(spec)])
        of_api = (
            "" if ".py:" in str(spec) else "\nor, where it was given as an object, by the same call again"
        )
        raise ConfigError(
            f"{path}: was made with a model in Python, which is run only when you name it. If it is yours:\n"
            f"  {command}{of_api}"
        )
    if not isinstance(model, str):
        return shown_name(model) == spec
    return names_function(model) and whole_spec(model) == spec


def _check_kinds(names: Sequence[str]) -> None:
    known = [*(kind.value for kind in FailureKind), EMPTY_ANSWER, "all"]
    for name in names:
        if name not in known:
            raise ConfigError(
                f"--retry-failed: there is no kind {name!r}{did_you_mean(name, known)}. "
                f"The kinds are {', '.join(known)}"
            )


@contextlib.contextmanager
def opened(
    settings: Settings, about: Json, *, answers_of: Path | None = None
) -> Iterator[tuple[RunStore, RunLock]]:
    """Create or continue the run, locked for this process; ``about`` is what its manifest says of it.

    An empty ``about`` only judges what is there: no answer is written. ``answers_of`` is the run that this
    one holds, or gets, a copy of. Raises ``RunDirectoryError``, with its ``run_path`` set.
    """
    path = _run_path(settings)
    requested = _requested(settings)
    try:
        with RunLock(path, take_over=settings.run.take_over) as lock:
            if answers_of is not None:
                copy_run(answers_of, path)
            if RunStore.exists(path):
                store = RunStore.open(path)
                _continue(store, settings, requested, about)
            else:
                store = RunStore.create(path, {**about, "fingerprint": requested})
            with store:
                _name_judge(store)
                store.write_manifest()
                store.open_for_writing((ANSWERS, VERDICTS) if about else (VERDICTS,))
                yield store, lock
    except OtoscopeError as error:
        error.run_path = path
        raise


def peek(settings: Settings, *, judge_only: bool = False) -> RunStore | None:
    """Open, for reading alone, the run that these settings would continue; ``None`` when it would be new.

    Raises ``RunDirectoryError`` as continuing it would.
    """
    path = settings.run.path
    if path is None or not RunStore.exists(path):
        return None
    store = RunStore.open(path)
    continued(store, settings, judge_only=judge_only)
    return store


def continued(store: RunStore, settings: Settings, *, judge_only: bool) -> None:
    """Bring an opened run's manifest to these settings, in memory alone.

    Raises ``RunDirectoryError`` as continuing it would.
    """
    about = {} if judge_only else {"settings": store.manifest.get("settings")}
    _continue(store, settings, _requested(settings), about)
    _name_judge(store)


def requested_judge(settings: Settings) -> str:
    """Return the identity of the judge that these settings ask for."""
    return judge_identity(_requested(settings)["judge"])


def asks_another_judge(store: RunStore, settings: Settings) -> bool:
    """Whether the run has verdicts, and these settings ask another judge, or the same one differently.

    What no setting names, such as how replies are parsed, makes no other judge.
    """
    before = (store.manifest.get("fingerprint") or {}).get("judge")
    changes = changed_fields({"judge": before}, {"judge": _requested(settings)["judge"]})
    return store.has_verdicts and not changes.keys() <= SAME_JUDGE


def _requested(settings: Settings) -> Json:
    return fingerprint(
        settings,
        judge_prompt_sha256=PROMPT_SHA256,
        parser_version=PARSER_VERSION,
        weights=embedded.hashes(),
    )


def _run_path(settings: Settings) -> Path:
    """Return where the run lives, the folder made. Raises ``RunDirectoryError``."""
    path = settings.run.path
    if path is not None and not RunStore.exists(path):
        try:
            entries = list(path.iterdir()) if path.is_dir() else []
        except OSError as error:
            raise RunDirectoryError(f"{path}: cannot be looked into: {error.strerror or error}") from None
        strangers = [entry.name for entry in entries if not entry.name.startswith(".")]
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
    for path in run_folders(work_dir, model):
        with contextlib.suppress(FileExistsError):
            path.mkdir(parents=True)
            return path
    raise AssertionError("there is always another number")


def _continue(store: RunStore, settings: Settings, requested: Json, about: Json) -> None:
    """Refuse, by name, a changed setting that affects answers or verdicts; else note what is new."""
    manifest = store.manifest
    before = manifest.get("fingerprint") or {}
    if not about:
        # Only judged: what the answers were made with stays as it is.
        requested = {**before, "judge": requested["judge"]}
    changes = {
        name: change
        for name, change in changed_fields(before, requested).items()
        # What no line depends on yet may still be corrected: a mistyped URL must not lock an empty run.
        if store.has_verdicts or (store.has_answers and not name.startswith("judge."))
    }
    if not changes.keys() <= set(settings.run.allow_changed):
        raise RunDirectoryError(refusal(store.path, before, settings, changes, answers_too=bool(about)))
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
        manifest["settings"] = with_judge_of(manifest.get("settings") or {}, settings.stored)


def _name_judge(store: RunStore) -> None:
    judge = store.manifest["fingerprint"].get("judge")
    store.manifest["judge_id"] = judge_identity(judge) if judge else None
