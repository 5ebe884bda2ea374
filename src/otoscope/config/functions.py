"""Models written in Python: what names one, and which source that is. None of it is run here."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from types import MappingProxyType
from typing import Any

from otoscope.config.checks import (
    checked_integer,
    checked_number,
    expanded_path,
    only_known,
    or_default,
)
from otoscope.config.endpoints import SECRET_FIELD
from otoscope.config.engines import ray_settings
from otoscope.config.objects import object_digest
from otoscope.config.settings import FunctionSettings
from otoscope.config.task import TaskConfig
from otoscope.config.variables import environment_secrets
from otoscope.errors import ConfigError
from otoscope.secrecy import is_secret_name, looks_real

_SPEC = re.compile(r"(?P<place>.+\.py|[^\W\d]\w*(?:\.[^\W\d]\w*)*):(?P<name>[^\W\d]\w*(?:\.[^\W\d]\w*)*)")
METHODS = ("answer_batch", "answer")
"""How an object is asked, where it is not called itself; the first that it has."""
WAITING = 4
"""Times as many questions wait as a model in this process is asked at a time."""
_WITHOUT_EFFECT = (
    "api_key api_key_file extra_headers extra_body stream audio_part part_order system_prompt rpm tpm"
).split()


def names_function(model: str) -> bool:
    """Whether a model's name is that of something in Python: ``module:name`` or ``file.py:name``."""
    return _SPEC.fullmatch(model) is not None


def names_file(model: str) -> bool:
    """Whether a model's name is that of something in a file of Python."""
    return names_function(model) and model.rpartition(":")[0].endswith(".py")


def function_settings(config: TaskConfig, environ: Mapping[str, str]) -> FunctionSettings:
    """Resolve a model in Python that answers. Raises ``ConfigError`` for a file that is not there.

    Also for settings that would have no effect on it.
    """
    model = config.model
    if not (isinstance(model, str) or callable(model) or any(hasattr(model, name) for name in METHODS)):
        raise ConfigError(
            f"model: must be a name, or something that can be asked, not {type(model).__name__}"
        )
    if config.api_url:
        raise ConfigError("model is the model itself, which needs no api_url: leave one of them out")
    given = [name for name in _WITHOUT_EFFECT if getattr(config, name)]
    if given:
        raise ConfigError(
            f"the model {shown_name(model)} is written in Python, where {', '.join(given)} would have no "
            "effect: leave that out. What its class is built with is given as --model-args"
        )
    generation = config.generation_config or {}
    only_known(
        generation, ("timeout",), f"generation_config of {shown_name(model)}, which is written in Python"
    )
    refuse_keys(config.model_args or {})
    calls = checked_integer(or_default(config.eval_batch_size, 1), "eval_batch_size", low=1)
    spec = whole_spec(model) if isinstance(model, str) else None
    return FunctionSettings(
        role="model",
        name=_with_arguments(shown_name(model), config.model_args or {}),
        spec=spec,
        target=None if spec is not None else model,
        revision=config.model_revision,
        source_sha256=_file_digest(spec) if spec is not None else object_digest(model),
        arguments=MappingProxyType(config.model_args or {}),
        calls=calls,
        concurrency=WAITING * calls,
        timeout=checked_number(
            or_default(generation.get("timeout"), 600.0), "generation_config.timeout", low=0.001
        ),
        secrets=_secrets(environ),
        engine=ray_settings(config, environ),
    )


def function_judge(judge: Callable[..., Any], *, calls: int, environ: Mapping[str, str]) -> FunctionSettings:
    """Resolve a judge that was given as an object."""
    return FunctionSettings(
        role="judge",
        name=shown_name(judge),
        spec=None,
        target=judge,
        source_sha256=object_digest(judge),
        calls=calls,
        concurrency=calls,
        timeout=180.0,
        secrets=_secrets(environ),
    )


def _secrets(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return what is taken out of a model's tracebacks: it may use a service that we know nothing of."""
    others = (value for name, value in environ.items() if is_secret_name(name) and looks_real(value))
    return tuple(dict.fromkeys([*environment_secrets(environ), *others]))


def refuse_keys(arguments: Any) -> None:
    """Raise ``ConfigError`` for what looks like a key, however deep in arguments, which are stored."""
    if isinstance(arguments, Mapping):
        for name, value in arguments.items():
            if SECRET_FIELD.search(name) or name.endswith("token"):
                raise ConfigError(
                    f"--model-args: {name!r} looks like a key, and would be stored with the run: have the "
                    "model read it from the environment or a file"
                )
            refuse_keys(value)
    elif isinstance(arguments, (list, tuple)):
        for value in arguments:
            refuse_keys(value)


def _with_arguments(name: str, arguments: Mapping[str, Any]) -> str:
    """Return a name that tells one model of a class from another, in every table."""
    told = ", ".join(f"{one}={json.dumps(value, ensure_ascii=False)}" for one, value in arguments.items())
    return f"{name}({told})" if told else name


def shown_name(model: Any) -> str:
    """Return what a model in Python is called: its file without folders, an object by where it was made."""
    if isinstance(model, str):
        place, _, name = model.rpartition(":")
        return f"{Path(place).name if place.endswith('.py') else place}:{name}"
    named = model if hasattr(model, "__qualname__") else type(model)
    name = getattr(named, "__qualname__", "model").replace("<locals>.", "")
    module = getattr(named, "__module__", "__main__")
    return name if module == "__main__" else f"{module}:{name}"


def whole_spec(spec: str) -> str:
    """Return what names a model in Python with the whole path of its file."""
    place, _, name = spec.rpartition(":")
    if not place.endswith(".py"):
        return spec
    return f"{expanded_path(place).absolute()}:{name}"


def _file_digest(spec: str) -> str | None:
    place = spec.rpartition(":")[0]
    file = place if place.endswith(".py") else _file_of(place)
    try:
        return None if file is None else hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError as error:
        raise ConfigError(f"--model {file}: cannot be read: {error.strerror}") from None


def _file_of(module: str) -> str | None:
    """Return the file that a module lies in, without importing anything; ``None`` where it is not known."""
    where: Sequence[str] | None = [str(Path.cwd()), *sys.path]
    name = ""
    found = None
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        found = PathFinder.find_spec(name, where)
        if found is None:
            return None
        where = found.submodule_search_locations
    return found.origin if found is not None and found.has_location else None
