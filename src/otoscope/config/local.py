"""A local model: weights in a folder or on the Hugging Face hub, run by transformers in this process."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from otoscope.config.checks import (
    checked_flag,
    checked_integer,
    checked_number,
    checked_text,
    checked_words,
    expanded_path,
    or_default,
    plain_object,
)
from otoscope.config.defaults import ANSWER_PARAMETERS
from otoscope.config.engines import ray_settings
from otoscope.config.functions import WAITING, refuse_keys
from otoscope.config.settings import LocalSettings
from otoscope.config.task import TRUST, TaskConfig
from otoscope.config.variables import environment_secrets
from otoscope.errors import ConfigError, did_you_mean

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_DECODING = (
    "temperature max_tokens max_completion_tokens top_p top_k min_p repetition_penalty stop seed".split()
)
"""What of a request's parameters transformers has, too. It has no other: penalties by count, biases, log
probabilities and forms of the reply are a server's."""
_ELSEWHERE = MappingProxyType(
    {
        "token": "set HF_TOKEN in the environment",
        "use_auth_token": "set HF_TOKEN in the environment",
        "cache_dir": "set HF_HUB_CACHE in the environment",
        "local_files_only": "set HF_HUB_OFFLINE=1 in the environment",
        "force_download": "remove the model from the hub's cache",
        "subfolder": "name the folder itself with --model",
    }
)
"""What loading takes and the model arguments do not: a token would be stored with the run."""
_OF_A_SERVER = "api_key api_key_file extra_body extra_headers stream rpm tpm audio_part".split()
_TIMEOUT = 7200.0
"""Seconds for one batch: 2,048 tokens take an hour where there is no GPU."""


def is_local(model: str) -> bool:
    """Whether a name, given without a URL, is that of a folder or of a hub's model (``org/name``).

    Raises ``ConfigError`` for what can only be a folder, and is not there.
    """
    if expanded_path(model).is_dir() or _HUB_ID.fullmatch(model) is not None:
        return True
    if model.startswith((".", "~", "/", "\\")):
        raise ConfigError(f"{model}: there is no such folder. A model behind a server needs --api-url, too")
    return False


def local_settings(config: TaskConfig, environ: Mapping[str, str]) -> LocalSettings:
    """Resolve how a local model is loaded and asked. Raises ``ConfigError``."""
    given = [name for name in _OF_A_SERVER if getattr(config, name)]
    if given:
        raise ConfigError(
            f"{', '.join(given)}: {'is' if len(given) == 1 else 'are'} for a model behind a server, and "
            f"{config.model!r} runs in this process; leave {'it' if len(given) == 1 else 'them'} out, "
            "or give --api-url"
        )
    model = str(config.model)
    folder = expanded_path(model) if expanded_path(model).is_dir() else None
    arguments = _arguments(config.model_args or {})
    revision = _revision(config, arguments, folder)
    calls = checked_integer(or_default(config.eval_batch_size, 1), "eval_batch_size", low=1)
    generation = dict(config.generation_config or {})
    timeout = generation.pop("timeout", None)
    return LocalSettings(
        role="model",
        name=folder.absolute().name or str(folder.absolute()) if folder is not None else model,
        source=str(folder.absolute()) if folder is not None else model,
        on_hub=folder is None,
        revision=revision,
        parameters=MappingProxyType(_parameters(generation, by_model=config.generation_config == {})),
        model_args=MappingProxyType({n: v for n, v in arguments.items() if n != TRUST}),
        trust_remote_code=checked_flag(or_default(arguments.get(TRUST), False), f"model_args.{TRUST}"),
        calls=calls,
        concurrency=WAITING * calls,
        timeout=checked_number(or_default(timeout, _TIMEOUT), "generation_config.timeout", low=0.001),
        engine=ray_settings(config, environ),
        secrets=tuple(environment_secrets(environ)),
    )


def _arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what loading is told beside the model's place, under the names of now."""
    arguments = plain_object(given, "model_args")
    for name, way in _ELSEWHERE.items():
        if name in arguments:
            raise ConfigError(f"model_args: {name!r} is not taken: {way}")
    refuse_keys(arguments)
    if "torch_dtype" in arguments:
        if "dtype" in arguments:
            raise ConfigError("model_args: torch_dtype is the old name of dtype; give one of them")
        arguments["dtype"] = arguments.pop("torch_dtype")
    if "dtype" in arguments:
        # "torch.bfloat16" is how Python prints it.
        arguments["dtype"] = str(checked_text(arguments["dtype"], "model_args.dtype")).removeprefix("torch.")
    return arguments


def _revision(config: TaskConfig, arguments: dict[str, Any], folder: Path | None) -> str | None:
    """Return the hub's branch, tag or commit; a folder has none, and a name for one is free text."""
    named = checked_text(arguments.pop("revision", None), "model_args.revision")
    if named and config.model_revision and named != config.model_revision:
        raise ConfigError(
            "--model-revision and model_args.revision name different revisions; give one of them"
        )
    if named and folder is not None:
        raise ConfigError(f"model_args.revision: {folder} is a folder, which has no revisions")
    return config.model_revision or named


def _parameters(given: dict[str, Any], *, by_model: bool) -> dict[str, Any]:
    """Return the decoding as it is asked for, under the names that a server's requests have for it.

    ``by_model``: what is not given, the model says.
    """
    for name in given:
        if name not in _DECODING:
            hint = (
                ", did you mean 'max_tokens'?" if name == "max_new_tokens" else did_you_mean(name, _DECODING)
            )
            raise ConfigError(
                f"generation_config: {name!r} is nothing that a local model is asked with{hint}\n"
                f"Known: {', '.join(_DECODING)}, timeout"
            )
    if given.get("stop") is not None:
        stop = given["stop"]
        given["stop"] = [stop] if isinstance(stop, str) else checked_words(stop, "generation_config.stop")
    for name in ("temperature", "top_p", "min_p", "repetition_penalty"):
        if given.get(name) is not None:
            checked_number(given[name], f"generation_config.{name}", low=0.0)
    for name, low in (("max_tokens", 1), ("max_completion_tokens", 1), ("top_k", -1), ("seed", 0)):
        if given.get(name) is not None:
            checked_integer(given[name], f"generation_config.{name}", low=low)
    if given.get("max_completion_tokens") is not None:
        given["max_tokens"] = given.pop("max_completion_tokens")
    base = {} if by_model else ANSWER_PARAMETERS
    return {name: value for name, value in {**base, **given}.items() if value is not None}
