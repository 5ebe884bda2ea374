"""The resolution: what a user asked for becomes settings."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from string import Template
from types import MappingProxyType
from typing import Any

from otoscope.benchmark import BENCHMARK, HUGGINGFACE_DATASET, MODELSCOPE_DATASET, TASK_GROUPS, TASKS
from otoscope.choices import AUDIO_PARTS, CONTROLS, FALLBACK_AUDIO_PARTS, HUBS, PART_ORDERS, TRACKERS
from otoscope.config.audio_policy import AS_IS, AudioPolicy
from otoscope.config.checks import (
    checked_choice,
    checked_flag,
    checked_integer,
    checked_number,
    checked_text,
    checked_words,
    expanded_path,
    only_known,
    or_default,
    plain_object,
)
from otoscope.config.defaults import AUDIO_CACHE_GB, HUGGINGFACE_URL, MODELSCOPE_URL, PROMPT_TEMPLATE
from otoscope.config.fingerprints import allowed_changes
from otoscope.config.functions import shown_name
from otoscope.config.models import judge_arguments, judge_settings, model_settings
from otoscope.config.settings import (
    AudioSettings,
    DataSettings,
    EmbeddedSettings,
    EndpointSettings,
    FunctionSettings,
    HubSettings,
    JudgeSettings,
    LocalSettings,
    ModelSettings,
    PromptSettings,
    RunSettings,
    SelectionSettings,
    Settings,
    WeightsSettings,
)
from otoscope.config.shard import Shard
from otoscope.config.spending import judge_limits, judge_price
from otoscope.config.task import STORED_FIELDS, TaskConfig, checked_config
from otoscope.config.urls import shown_urls
from otoscope.config.variables import DATA_ROOT, cache_variable, from_environment
from otoscope.errors import ConfigError, did_you_mean

_DATASET_KEYS = ("local_path", "dataset_id", "subset_list", "prompt_template", "extra_params", "shuffle")
_NEVER_STORED = ("provider", "api_key", "api_key_file", "extra_headers")
"""Of the judge's arguments; see ``STORED_FIELDS`` for the reasons."""
_EXTRA_PARAMS = ("tasks", "do_swap")


def resolve(config: TaskConfig, environ: Mapping[str, str]) -> Settings:
    """Resolve what a user asked for. Raises ``ConfigError`` with the next step in the message."""
    given = checked_config(config, environ)
    if given.datasets not in (None, [BENCHMARK]):
        raise ConfigError(f"datasets: only {BENCHMARK!r} can be evaluated, not {given.datasets!r}")
    dataset_args = _benchmark_args(given)
    data, selection = _data(given, dataset_args, environ), _selection(given, dataset_args)
    model = model_settings(given, environ)
    judge_args = judge_arguments(given)
    judge = None if given.no_judge else judge_settings(given, judge_args, dataset_args, environ)
    return Settings(
        data=data,
        selection=selection,
        model=model,
        prompt=_prompt(given, dataset_args),
        audio=_audio(given, model, environ),
        judge=judge,
        weights=resolve_weights(given.weights, environ),
        run=_run(given, judge, runs_here=isinstance(model, (FunctionSettings, LocalSettings))),
        stored=_stored(given, dataset_args, judge_args, data, model, judge),
    )


def resolve_data(config: TaskConfig, environ: Mapping[str, str]) -> tuple[DataSettings, SelectionSettings]:
    """Resolve where the data lie and which samples are chosen, alone. Raises ``ConfigError``."""
    given = checked_config(config, environ)
    args = _benchmark_args(given)
    return _data(given, args, environ), _selection(given, args)


def resolve_weights(local: str | PathLike[str] | None, environ: Mapping[str, str]) -> WeightsSettings:
    """Resolve where weights lie: a folder or file of the user's own, else the cache (``OTOSCOPE_CACHE``)."""
    domain = environ.get("MODELSCOPE_DOMAIN", "").strip("/")
    return WeightsSettings(
        cache=_cache(environ) / "models",
        local=expanded_path(local) if local else None,
        modelscope=f"https://{domain.removeprefix('https://')}" if domain else MODELSCOPE_URL,
        huggingface=(environ.get("HF_ENDPOINT") or HUGGINGFACE_URL).rstrip("/"),
    )


def _cache(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("OTOSCOPE_CACHE") or "~/.cache/otoscope").expanduser()


def _benchmark_args(config: TaskConfig) -> dict[str, Any]:
    given = config.dataset_args or {}
    only_known(given, (BENCHMARK,), "dataset_args")
    where = f"dataset_args.{BENCHMARK}"
    args = plain_object(or_default(given.get(BENCHMARK), {}), where)
    only_known(args, _DATASET_KEYS, where)
    args["extra_params"] = plain_object(or_default(args.get("extra_params"), {}), f"{where}.extra_params")
    only_known(args["extra_params"], _EXTRA_PARAMS, f"{where}.extra_params")
    return args


def _data(config: TaskConfig, args: Mapping[str, Any], environ: Mapping[str, str]) -> DataSettings:
    root = checked_text(args.get("local_path"), "local_path") or from_environment(DATA_ROOT, environ)
    hub = checked_choice(or_default(config.dataset_hub, HUBS[0]), HUBS, "dataset_hub")
    ids = {"modelscope": MODELSCOPE_DATASET, "huggingface": HUGGINGFACE_DATASET}
    return DataSettings(
        root=expanded_path(root) if root else None,
        hub=HubSettings(
            name=hub,
            dataset=checked_text(args.get("dataset_id"), "dataset_id") or ids[hub],
            cache=expanded_path(config.dataset_dir) if config.dataset_dir else _hub_cache(hub, environ),
            environment=environ,
        ),
        follow_links=bool(config.follow_links),
    )


def _hub_cache(hub: str, environ: Mapping[str, str]) -> Path:
    """Return the cache folder that a hub's own library takes."""
    variable = cache_variable(hub, environ)
    match variable:
        case None:
            named = "~/.cache/modelscope" if hub == "modelscope" else "~/.cache/huggingface/hub"
        case "HF_HOME":
            named = f"{environ[variable]}/hub"
        case "XDG_CACHE_HOME":
            named = f"{environ[variable]}/huggingface/hub"
        case _:
            named = environ[variable]
    return expanded_path(Template(named).safe_substitute(environ))


def _audio(config: TaskConfig, model: ModelSettings, environ: Mapping[str, str]) -> AudioSettings:
    control = config.control and checked_choice(config.control, CONTROLS, "control")
    if control == "no-audio" and isinstance(model, EmbeddedSettings):
        raise ConfigError(f"control: {model.name!r} is nothing without a clip; use --control silence")
    if control == "silence" and config.audio_part == "file_url":
        raise ConfigError(
            "control: file_url sends the place of a clip's own file, and silence lies in none; "
            "use another --audio-part"
        )
    size = or_default(config.audio_cache_size, AUDIO_CACHE_GB)
    return AudioSettings(
        policy=AudioPolicy.parse(or_default(config.audio_policy, AS_IS)),
        control=control,
        cache=_cache(environ) / "audio",
        cache_bytes=int(checked_number(size, "audio_cache_size", low=0.0, high=1e6) * 1e9),
    )


def _selection(config: TaskConfig, args: Mapping[str, Any]) -> SelectionSettings:
    chosen = _tasks(args.get("subset_list"), "subset_list") & _tasks(
        args["extra_params"].get("tasks"), "tasks"
    )
    if not chosen:
        raise ConfigError("subset_list and tasks have no task in common; their intersection is evaluated")
    return SelectionSettings(
        tasks=tuple(name for name in TASKS if name in chosen),
        limit=_limit(config.limit),
        shuffle=checked_flag(or_default(or_default(config.shuffle, args.get("shuffle")), False), "shuffle"),
        seed=checked_integer(or_default(config.seed, 42), "seed"),
        shard=_shard(config.shard),
    )


def _limit(limit: Any) -> int | float | None:
    if isinstance(limit, float) and limit > 1 and limit.is_integer():
        limit = int(limit)
    if limit is None:
        return None
    if isinstance(limit, int) and not isinstance(limit, bool) and limit > 0:
        return limit
    if isinstance(limit, float) and 0 < limit <= 1:
        return limit
    raise ConfigError(
        f"limit: {limit!r} must be a whole number above 0, or a fraction of each task up to 1.0"
    )


def _shard(given: str | None) -> Shard | None:
    shard = None if given is None else Shard.parse(given)
    # The only shard is the whole.
    return shard if shard is not None and shard.of > 1 else None


def _tasks(given: Any, name: str) -> set[str]:
    words = checked_words(given, name) if given is not None else []
    chosen: set[str] = set()
    for word in words:
        if word in TASKS:
            chosen.add(word)
        elif word in TASK_GROUPS:
            chosen.update(TASK_GROUPS[word])
        else:
            hint = did_you_mean(word, TASKS) or did_you_mean(word, TASK_GROUPS)
            raise ConfigError(
                f"{name}: there is no task {word!r}{hint}\n"
                f"The eight tasks are {', '.join(TASKS)}; "
                f"{', '.join(TASK_GROUPS)} stand for all tasks of a category"
            )
    return chosen or set(TASKS)


def _run(config: TaskConfig, judge: JudgeSettings | None, *, runs_here: bool) -> RunSettings:
    """Resolve where the run lives; ``runs_here``: foreign code does too, and may change the folder."""
    if (
        config.run_dir
        and config.use_cache
        and expanded_path(config.run_dir) != expanded_path(config.use_cache)
    ):
        raise ConfigError("--run-dir and --use-cache name different runs; give one of them")
    given = config.run_dir or config.use_cache
    path = expanded_path(given) if given else None
    work_dir = expanded_path(config.work_dir or "outputs")
    if runs_here:
        path, work_dir = None if path is None else path.absolute(), work_dir.absolute()
    return RunSettings(
        work_dir=work_dir,
        path=path,
        label=config.label,
        tags=MappingProxyType({name: str(value) for name, value in (config.tags or {}).items()}),
        min_coverage=checked_number(or_default(config.min_coverage, 0.99), "min_coverage", low=0.0, high=1.0),
        retry_failed=tuple(config.retry_failed or ()),
        allow_changed=allowed_changes(config.allow_changed or ()),
        take_over=bool(config.take_over),
        judge_blank=bool(config.judge_blank),
        judge_limits=judge_limits(config, judge),
        track=tuple(dict.fromkeys(checked_choice(name, TRACKERS, "track") for name in config.track or ())),
    )


def _prompt(config: TaskConfig, args: Mapping[str, Any]) -> PromptSettings:
    template = or_default(args.get("prompt_template"), PROMPT_TEMPLATE)
    if not isinstance(template, str) or "{question}" not in template:
        raise ConfigError(f"prompt_template: {template!r} must contain {{question}}")
    return PromptSettings(
        template=template,
        system=config.system_prompt or None,
        part_order=checked_choice(or_default(config.part_order, PART_ORDERS[0]), PART_ORDERS, "part_order"),
        audio_part=checked_choice(or_default(config.audio_part, AUDIO_PARTS[0]), AUDIO_PARTS, "audio_part"),
        audio_fallbacks=FALLBACK_AUDIO_PARTS if config.audio_part is None else (),
        answer_filter=or_default(config.answer_filter, "strip-thinking"),
    )


def _stored(
    config: TaskConfig,
    dataset_args: Mapping[str, Any],
    judge_args: Mapping[str, Any],
    data: DataSettings,
    model: ModelSettings,
    judge: JudgeSettings | None,
) -> dict[str, Any]:
    """Return what a manifest keeps of the user's settings: no keys, no header values, no credentials.

    What came from the environment is written in, and the data root is absolute, so that the run can be
    continued from another shell and folder.
    """
    stored = {name: value for name in STORED_FIELDS if (value := getattr(config, name)) is not None}
    if isinstance(model, EndpointSettings):
        stored["api_url"] = model.shown_url
    if isinstance(model, FunctionSettings):
        stored["model"] = model.spec or shown_name(model.target)
    if isinstance(model, LocalSettings):
        stored["model"] = model.source
        stored["model_args"] = dict(model.model_args)
        stored |= {"model_revision": model.revision} if model.revision else {}
    place = {} if data.root is None else {"local_path": str(data.root.absolute())}
    stored["dataset_args"] = {BENCHMARK: {**dataset_args, **place}}
    kept = {n: v for n, v in _without(judge_args, *_NEVER_STORED).items() if v}
    if judge is not None:
        kept["model_id"] = judge.endpoint.name
        if isinstance(judge.endpoint, EndpointSettings):
            kept["api_url"] = judge.endpoint.shown_url
    elif "api_url" in kept:
        kept["api_url"] = shown_urls(kept["api_url"])
    stored["judge_model_args"] = kept
    if price := judge_price(config):
        stored["judge_price"] = [price.prompt, price.completion]
    for holder in (stored, kept):
        if generation := holder.get("generation_config"):
            holder["generation_config"] = _without(generation, "extra_headers")
            # What held nothing but headers must not become {}, which means "send nothing".
            if not holder["generation_config"]:
                del holder["generation_config"]
    return stored


def _without(given: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name not in names}
