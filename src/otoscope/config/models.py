"""The model and the judge: where they are and how they are asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Literal

from otoscope.benchmark import BENCHMARK, PAPER_JUDGE
from otoscope.choices import PROTOCOLS
from otoscope.config.checks import (
    checked_choice,
    checked_flag,
    checked_integer,
    checked_number,
    checked_rate,
    checked_text,
    checked_urls,
    expanded_path,
    only_known,
    or_default,
    plain_object,
)
from otoscope.config.defaults import (
    ANSWER_PARAMETERS,
    BASELINE,
    EMBEDDED,
    JUDGE_PARAMETERS,
    OPENAI_URL,
    PROMPT_TEMPLATE,
)
from otoscope.config.endpoints import endpoint_settings, has_key, refuse_two_keys
from otoscope.config.engines import refuse_engine
from otoscope.config.functions import function_judge, function_settings, names_file, names_function
from otoscope.config.local import is_local, local_settings
from otoscope.config.providers import PROVIDERS, key_of
from otoscope.config.settings import EmbeddedSettings, JudgeSettings, ModelSettings
from otoscope.config.spending import judge_price
from otoscope.config.task import TaskConfig
from otoscope.config.trust import checked_ca_file
from otoscope.config.variables import API_KEY, API_URL, JUDGE_API_KEY, JUDGE_API_URL, from_environment
from otoscope.errors import ConfigError

JUDGE_TEXTS = ("model_id", "provider", "api_url", "api_key", "api_key_file", "revision")
_JUDGE_KEYS = (
    *JUDGE_TEXTS,
    "generation_config",
    "extra_body",
    "extra_headers",
    "rpm",
    "tpm",
)
_WHOLE_NUMBERS = ("max_tokens", "max_completion_tokens", "top_k", "seed", "top_logprobs")
_NUMBERS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
"""What of a request's parameters a server can only read as a number."""


def model_settings(config: TaskConfig, environ: Mapping[str, str]) -> ModelSettings:
    """Resolve which model answers, and how it is asked."""
    if config.model is None:
        raise ConfigError(
            "no model: name the one that the server serves with --model NAME, one in Python with --model "
            "file.py:NAME, weights with --model FOLDER or --model org/name (Hugging Face), or "
            "--model baseline for the recogniser and language model inside of this process"
        )
    url = checked_urls(config.api_url, "api_url") or from_environment(API_URL, environ)
    if _is_function(config, url):
        return function_settings(config, environ)
    if not config.api_url and config.model.endswith(".py") and expanded_path(config.model).is_file():
        raise ConfigError(
            f"{config.model} is a file of Python: name what is in it: --model {config.model}:NAME"
        )
    if not url and config.model != BASELINE and is_local(config.model):
        return local_settings(config, environ)
    if config.model_args:
        raise ConfigError(
            "--model-args is for a model in this process (--model file.py:NAME, a folder, or a hub's "
            "org/name without a URL): leave it out"
        )
    refuse_engine(config)
    rpm, tpm = checked_rate(config.rpm, "rpm"), checked_rate(config.tpm, "tpm")
    key_file = checked_text(config.api_key_file, "api_key_file")
    refuse_two_keys(config.api_key, key_file, "model")
    wait_ready = _wait_ready(config)
    if config.model == BASELINE and not config.api_url:
        _refuse_prompt_settings(config)
        return EmbeddedSettings(
            role="model",
            name=BASELINE,
            parameters=MappingProxyType({"temperature": 0, "max_tokens": 96}),
            concurrency=2,
        )
    if not url:
        raise ConfigError(
            f"no endpoint for the model {config.model!r}: give its OpenAI-compatible URL with --api-url URL "
            "(or OTOSCOPE_API_URL), for example --api-url http://127.0.0.1:8000/v1. "
            "OPENAI_BASE_URL is the judge's and is never used for the model. (A model in Python is named "
            "--model file.py:NAME or --model module:NAME; weights that lie here, or on the Hugging Face hub, "
            "--model FOLDER or --model org/name)"
        )
    endpoint = endpoint_settings(
        role="model",
        name=config.model,
        provider=config.provider,
        url=url,
        api_key=config.api_key,
        api_key_file=key_file,
        environment_key=key_of(config.provider, environ) or from_environment(API_KEY, environ),
        ca_file=checked_ca_file(config.ca_file),
        revision=config.model_revision,
        base={} if config.generation_config == {} else ANSWER_PARAMETERS,
        generation=_with_numbers(config.generation_config or {}, "generation_config"),
        extra_body=config.extra_body or {},
        extra_headers=config.extra_headers or {},
        stream=config.stream,
        concurrency=checked_integer(or_default(config.eval_batch_size, 16), "eval_batch_size", low=1),
        rpm=rpm,
        tpm=tpm,
        attempt_timeout=600.0,
        wait_ready=wait_ready,
    )
    provider = None if config.provider is None else PROVIDERS[config.provider]
    if provider is not None and not (provider.local or has_key(endpoint)):
        raise ConfigError(
            f"no key for {provider.title}: set {provider.key}, or give it with --api-key-file FILE, "
            "OTOSCOPE_API_KEY or --api-key"
        )
    return endpoint


def _is_function(config: TaskConfig, url: str | None) -> bool:
    """Whether the model is one in Python. Names that servers have for models can look like a module's."""
    if not isinstance(config.model, str):
        return True
    return not config.api_url and (names_file(config.model) or (names_function(config.model) and not url))


def _with_numbers(generation: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """Return the parameters as they are, once those that are numbers are some; ``None`` removes one."""
    for names, checked in ((_NUMBERS, checked_number), (_WHOLE_NUMBERS, checked_integer)):
        for name in names:
            if generation.get(name) is not None:
                checked(generation[name], f"{where}.{name}")
    return generation


def _wait_ready(config: TaskConfig) -> float:
    return checked_number(or_default(config.wait_ready, 0.0), "wait_ready", low=0.0, high=1e9)


def _refuse_prompt_settings(config: TaskConfig) -> None:
    """Refuse what would have no effect: the baseline's prompt and parameters are its own."""
    names = ("system_prompt", "part_order", "audio_part", "answer_filter", "generation_config", "extra_body")
    given = [name for name in names if getattr(config, name)]
    template = ((config.dataset_args or {}).get(BENCHMARK) or {}).get("prompt_template")
    given += ["prompt_template"] if template not in (None, PROMPT_TEMPLATE) else []
    if given:
        raise ConfigError(f"--model baseline has its own prompt and parameters: leave out {', '.join(given)}")


def judge_arguments(config: TaskConfig) -> dict[str, Any]:
    """Return the judge's arguments, checked; the objects among them are always there."""
    args = dict(config.judge_model_args or {})
    if isinstance(config.judge_model, str):
        if args.get("model_id", config.judge_model) != config.judge_model:
            raise ConfigError("judge_model and judge_model_args.model_id name two judges: give one of them")
        args["model_id"] = config.judge_model
    only_known(args, _JUDGE_KEYS, "judge_model_args")
    args["api_url"] = checked_urls(args.get("api_url"), "judge_model_args.api_url")
    for name in JUDGE_TEXTS:
        checked_text(args.get(name), f"judge_model_args.{name}")
    refuse_two_keys(args.get("api_key"), args.get("api_key_file"), "judge")
    for name in ("generation_config", "extra_body", "extra_headers"):
        args[name] = plain_object(or_default(args.get(name), {}), f"judge_model_args.{name}")
    for name in ("rpm", "tpm"):
        args[name] = checked_rate(args.get(name), f"judge_model_args.{name}")
    return args


def judge_settings(
    config: TaskConfig,
    args: Mapping[str, Any],
    dataset_args: Mapping[str, Any],
    environ: Mapping[str, str],
) -> JudgeSettings:
    """Resolve which judge is asked, and how; ``args`` are from :func:`judge_arguments`."""
    protocol = checked_choice(or_default(config.protocol, "default"), PROTOCOLS, "protocol")
    swap = checked_flag(or_default(dataset_args["extra_params"].get("do_swap"), True), "do_swap")
    in_python = config.judge_model is not None and not isinstance(config.judge_model, str)
    # What is written in Python is rarely safe to be called by several threads.
    calls = checked_integer(
        or_default(config.judge_batch_size, 1 if in_python else 16), "judge_batch_size", low=1
    )
    if in_python:
        if any(args.values()):
            raise ConfigError("judge_model is the judge itself: leave judge_model_args out")
        function = function_judge(config.judge_model, calls=calls, environ=environ)
        return JudgeSettings(endpoint=function, protocol=_protocol(protocol), swap=swap)
    if names_file(args.get("model_id") or "") and not args.get("api_url"):
        raise ConfigError(
            f"--judge-model {args['model_id']}: a judge in Python is given from Python alone: "
            "otoscope.evaluate(judge=...)"
        )
    if args.get("model_id") == EMBEDDED and not args.get("api_url"):
        if protocol != "default":
            raise ConfigError(
                "--judge-model embedded scores by expectation; it has no protocol but the default"
            )
        embedded = EmbeddedSettings(
            role="judge",
            name=EMBEDDED,
            parameters=MappingProxyType({"expectation": True}),
            concurrency=2,
        )
        return JudgeSettings(endpoint=embedded, protocol="default", swap=swap)
    provider = args.get("provider")
    # Another provider's key is not for this one.
    own_key = (
        from_environment(JUDGE_API_KEY, environ)
        if provider is None
        else environ.get("OTOSCOPE_JUDGE_API_KEY")
    )
    endpoint = endpoint_settings(
        role="judge",
        provider=provider,
        name=args.get("model_id") or PAPER_JUDGE,
        url=args.get("api_url") or from_environment(JUDGE_API_URL, environ) or OPENAI_URL,
        api_key=args.get("api_key"),
        api_key_file=args.get("api_key_file"),
        ca_file=checked_ca_file(config.ca_file),
        environment_key=key_of(provider, environ) or own_key,
        revision=args.get("revision"),
        base=JUDGE_PARAMETERS[protocol],
        generation=_with_numbers(args["generation_config"], "judge_model_args.generation_config"),
        extra_body=args["extra_body"],
        extra_headers=args["extra_headers"],
        stream=None,
        concurrency=calls,
        rpm=args["rpm"],
        tpm=args["tpm"],
        attempt_timeout=180.0,
        wait_ready=_wait_ready(config),
    )
    if not (has_key(endpoint) or (provider is not None and PROVIDERS[provider].local)):
        # Who says that something is to be judged is not told to leave that for later.
        way = "  --no-judge                                                      answer now, judge later\n"
        later = way if config.no_judge is None else ""
        of_provider = "" if provider is None else f"  {PROVIDERS[provider].key} in the environment\n"
        raise ConfigError(
            "no key for the judge. Give one of:\n"
            f"{of_provider}"
            "  --judge-api-key-file FILE [--judge-api-url URL] [--judge-model NAME]  a file with the key\n"
            "  --judge-api-key KEY, likewise                                   the key itself\n"
            "  OTOSCOPE_JUDGE_API_KEY or OPENAI_API_KEY (and _API_URL / OPENAI_BASE_URL) in the environment\n"
            "  --judge-api-key EMPTY --judge-api-url URL                       a server that needs no key\n"
            f"{later}"
            "  --judge-model embedded                                          a small judge in here\n"
            "The model's own key is never used for the judge"
        )
    return JudgeSettings(
        endpoint=replace(endpoint, price=judge_price(config)),
        protocol=_protocol(protocol),
        swap=swap,
    )


def _protocol(name: str) -> Literal["default", "official"]:
    return "official" if name == "official" else "default"
