"""Flags -> TaskConfig."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from otoscope.benchmark import BENCHMARK
from otoscope.config import BASELINE, EMBEDDED, PROVIDERS, TaskConfig, parse_limit, parse_object, shown_urls
from otoscope.config.checks import refuse_empty
from otoscope.config.flags import PLACES_OF_FLAGS
from otoscope.config.layers import Layer, Origin, Place, leaves
from otoscope.errors import ConfigError
from otoscope.records import FailureKind

CLIP_KINDS = (FailureKind.MISSING_AUDIO, FailureKind.BAD_AUDIO, FailureKind.OUTSIDE_ROOT)
FILE_FLAGS = ("--data", "--model", "--label", "--tag", "--answer-filter")
"""What ``judge`` is told of answers in a file; a run knows it."""
URL_FLAGS = ("--api-url", "--judge-api-url")
JUDGING_FLAGS = (
    "--config",
    "--judge-model",
    "--judge-api-url",
    "--judge-revision",
    "--judge-model-args",
    "--judge-batch-size",
    "--judge-rpm",
    "--judge-tpm",
    "--judge-price",
    "--protocol",
    "--no-swap",
    "--run-dir",
    "--work-dir",
    *FILE_FLAGS,
    "--min-coverage",
    "--wait-ready",
    "--allow-changed",
)
"""What makes a command that judges the same command again, beside its runs."""
LIMIT_FLAGS = ("--max-judge-calls", "--max-judge-tokens", "--max-cost")
"""What is about one start of a run, and not stored with it."""
DRY_RUN_KEYS = {provider.key: "none" for provider in PROVIDERS.values() if provider.key is not None}
"""A dry run sends nothing, so it needs no key: whoever has one gives it for the real run."""
OF_ONE_START = ("--provider", "--judge-provider", "--api-key-file", "--judge-api-key-file", "--ca-file")
"""What a run does not keep, and which holds no secret itself: given again by name."""
SECRET_FLAGS = ("--api-key", "--judge-api-key", "--extra-headers")


def refuse_empty_flags(args: argparse.Namespace) -> None:
    """Refuse a flag whose value is empty, as it is from a shell variable that was not set."""
    for name, given in vars(args).items():
        for value in given if isinstance(given, list) else [given]:
            if isinstance(value, str):
                refuse_empty(value, f"--{name.replace('_', '-')}")


def task_config(args: argparse.Namespace) -> TaskConfig:
    """Return what the flags of ``eval`` and ``demo`` ask for. Raises ``ConfigError``."""
    if args.command == "demo":
        _set_demo_defaults(args)
    generation = _object(args.generation_config, "--generation-config")
    if args.timeout is not None:
        generation = _with(generation or {}, ("timeout",), args.timeout, "--timeout")
    dataset_args = _object(args.dataset_args, "--dataset-args") or {}
    for keys, value, flag in (
        (("local_path",), args.data, "--data"),
        (("extra_params", "tasks"), _words(args.tasks), "--tasks"),
        (("extra_params", "do_swap"), False if args.no_swap else None, "--no-swap"),
    ):
        if value is not None:
            dataset_args = _with(dataset_args, (BENCHMARK, *keys), value, flag)
    config = TaskConfig(
        model=args.model,
        model_args=_object(args.model_args, "--model-args"),
        engine=args.engine,
        ray_address=args.ray_address,
        ray_workers=args.ray_workers,
        gpus_per_model=args.gpus_per_model,
        provider=args.provider,
        api_url=args.api_url,
        api_key=args.api_key,
        api_key_file=args.api_key_file,
        ca_file=args.ca_file,
        model_revision=args.model_revision,
        datasets=_words(args.datasets),
        dataset_args=dataset_args or None,
        dataset_hub=args.dataset_hub,
        dataset_dir=args.dataset_dir,
        follow_links=args.follow_links or None,
        judge_model_args=_judge_args(args),
        generation_config=generation,
        extra_body=_object(args.extra_body, "--extra-body"),
        extra_headers=_object(args.extra_headers, "--extra-headers"),
        stream=args.stream or None,
        eval_batch_size=args.eval_batch_size,
        judge_batch_size=args.judge_batch_size,
        rpm=args.rpm,
        tpm=args.tpm,
        judge_price=args.judge_price,
        max_judge_calls=args.max_judge_calls,
        max_judge_tokens=args.max_judge_tokens,
        max_cost=args.max_cost,
        wait_ready=args.wait_ready,
        limit=None if args.limit is None else parse_limit(args.limit),
        shuffle=args.shuffle or None,
        seed=args.seed,
        shard=args.shard,
        protocol=args.protocol,
        system_prompt=args.system_prompt,
        part_order=args.part_order,
        audio_part=args.audio_part,
        audio_policy=args.audio_policy,
        control=args.control,
        audio_cache_size=args.audio_cache_size,
        answer_filter=args.answer_filter,
        no_judge=args.no_judge or None,
        judge_blank=args.judge_blank or None,
        work_dir=args.work_dir,
        run_dir=args.run_dir,
        use_cache=args.use_cache,
        label=args.label,
        tags=given_tags(args.tag),
        min_coverage=args.min_coverage,
        retry_failed=_words(args.retry_failed),
        allow_changed=_words(args.allow_changed),
        take_over=args.take_over or None,
        weights=args.weights,
        track=_words(args.track),
    )
    return _from_flags(config, args)


def _from_flags(config: TaskConfig, args: argparse.Namespace) -> TaskConfig:
    """Return settings that know which flag each of their values came from."""
    given = config.layer.values
    origins = {place: Origin("flag", f"--{_flag_of(place, args)}") for place, _ in leaves(given)}
    return TaskConfig.from_layer(Layer(given, origins))


def _flag_of(place: Place, args: argparse.Namespace) -> str:
    own = (
        name
        for name, its in PLACES_OF_FLAGS.items()
        if place[: len(its)] == its and getattr(args, name, None) not in (None, False)
    )
    return next(own, place[0]).replace("_", "-")


def _set_demo_defaults(args: argparse.Namespace) -> None:
    """Fill in what was not given: the bundled clips, the baseline, the embedded judge, one sample a task."""
    if args.use_cache:
        return
    args.data = args.data or str(Path(__file__).parent.parent / "demo")
    args.model = args.model or BASELINE
    args.limit = args.limit or "1"
    args.label = args.label or "demo"
    if args.judge_model is None and args.judge_model_args is None and args.judge_api_url is None:
        args.judge_model = EMBEDDED


def judge_config(args: argparse.Namespace) -> TaskConfig:
    """Return what the flags of ``judge`` ask for. Raises ``ConfigError``."""
    config = TaskConfig(
        judge_model_args=_judge_args(args),
        ca_file=args.ca_file,
        judge_batch_size=args.judge_batch_size,
        judge_price=args.judge_price,
        max_judge_calls=args.max_judge_calls,
        max_judge_tokens=args.max_judge_tokens,
        max_cost=args.max_cost,
        wait_ready=args.wait_ready,
        protocol=args.protocol,
        dataset_args=_with({}, (BENCHMARK, "extra_params", "do_swap"), False, "") if args.no_swap else None,
        judge_blank=args.judge_blank or None,
        run_dir=args.run_dir,
        work_dir=args.work_dir,
        min_coverage=args.min_coverage,
        retry_failed=_words(args.retry_failed),
        allow_changed=_words(args.allow_changed),
        take_over=args.take_over or None,
        track=_words(args.track),
    )
    return _from_flags(config, args)


def _judge_args(args: argparse.Namespace) -> dict[str, Any] | None:
    given = _object(args.judge_model_args, "--judge-model-args") or {}
    for key, value, flag in (
        ("model_id", args.judge_model, "--judge-model"),
        ("provider", args.judge_provider, "--judge-provider"),
        ("api_url", args.judge_api_url, "--judge-api-url"),
        ("api_key", args.judge_api_key, "--judge-api-key"),
        ("api_key_file", args.judge_api_key_file, "--judge-api-key-file"),
        ("revision", args.judge_revision, "--judge-revision"),
        ("rpm", args.judge_rpm, "--judge-rpm"),
        ("tpm", args.judge_tpm, "--judge-tpm"),
    ):
        if value is not None:
            given = _with(given, (key,), value, flag)
    return given or None


def _with(given: Mapping[str, Any], keys: Sequence[str], value: Any, flag: str) -> dict[str, Any]:
    """Return ``given`` with a value set deep inside. Raises ``ConfigError`` where it says otherwise."""
    first, *rest = keys
    below = given.get(first)
    if not rest:
        if below is not None and below != value:
            shown = [shown_urls(str(one)) if first == "api_url" else one for one in (value, below)]
            said = "" if first == "api_key" else f" {shown[0]!r}, and {shown[1]!r} there"
            raise ConfigError(f"{flag} contradicts {first!r} in the JSON flag{said}: give one of them")
        return {**given, first: value}
    if not isinstance(below, Mapping | None):
        raise ConfigError(f"{first!r} must be an object, not {below!r}")
    return {**given, first: _with(below or {}, rest, value, flag)}


def flag_name(flag: str) -> str:
    """Return the name under which the parser keeps a flag."""
    return flag.strip("-").replace("-", "_")


def given_flags(args: argparse.Namespace, flags: Sequence[str]) -> list[str]:
    """Return those of the flags that were given, with their values, as words of a command."""
    words: list[str] = []
    for flag in flags:
        value = getattr(args, flag_name(flag), None)
        if value is True:
            words.append(flag)
        elif value is not None and value is not False:
            for one in value if isinstance(value, list) else [value]:
                words += [flag, str(one)]
    return words


def _object(text: str | None, flag: str) -> dict[str, Any] | None:
    return None if text is None else parse_object(text, flag)


def _words(text: str | Sequence[str] | None) -> list[str] | None:
    if not text:
        return None
    texts = [text] if isinstance(text, str) else text
    return [word.strip() for piece in texts for word in piece.split(",") if word.strip()]


def given_tags(pairs: Sequence[str] | None) -> dict[str, str] | None:
    """Return what ``--tag`` says. Raises ``ConfigError``."""
    tags: dict[str, str] = {}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ConfigError(f"--tag {pair!r}: must have the form name=value")
        tags[name] = value
    return tags or None
