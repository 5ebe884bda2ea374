"""An account of settings: what each of them is, and where it came from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any

from otoscope.benchmark import BENCHMARK
from otoscope.choices import HUBS
from otoscope.config.checks import expanded_path
from otoscope.config.layers import ALTERNATIVES, OF_ALL_MODELS, Origin, Place, at, leaves
from otoscope.config.settings import EndpointSettings, JudgeSettings, Settings
from otoscope.config.task import PATH_FIELDS, TaskConfig, checked_config
from otoscope.config.urls import display_url
from otoscope.config.variables import (
    API_KEY,
    DATA_ROOT,
    JUDGE_API_KEY,
    VARIABLES,
    cache_variable,
    variable_for,
)
from otoscope.errors import ConfigError
from otoscope.secrecy import MASK, is_secret_name

_OF_DATA: Place = ("dataset_args", BENCHMARK)
_TASKS: Place = (*_OF_DATA, "extra_params", "tasks")
_SWAP: Place = (*_OF_DATA, "extra_params", "do_swap")
_TEMPLATE: Place = (*_OF_DATA, "prompt_template")

GROUPS = ("data", "model", "prompt", "audio", "judge", "run")
_GROUP_OF: Mapping[str, str] = MappingProxyType(
    {
        name: group
        for group, names in (
            ("data", "datasets dataset_args dataset_hub dataset_dir follow_links limit shuffle seed shard"),
            (
                "model",
                "model api_url api_key api_key_file model_revision ca_file generation_config extra_body",
            ),
            ("model", "extra_headers stream eval_batch_size rpm tpm wait_ready weights"),
            ("prompt", "system_prompt part_order answer_filter"),
            ("audio", "audio_part audio_policy control audio_cache_size"),
            (
                "judge",
                "judge_model judge_model_args judge_batch_size judge_price protocol no_judge judge_blank",
            ),
            ("judge", "max_judge_calls max_judge_tokens max_cost"),
        )
        for name in names.split()
    }
)
"""Where a field of ``TaskConfig`` is listed; those that are not named here are the run's."""
_ALSO: Mapping[Place, Place] = MappingProxyType(
    {
        ("shuffle",): (*_OF_DATA, "shuffle"),
        ("stream",): ("generation_config", "stream"),
        _TASKS: (*_OF_DATA, "subset_list"),
    }
)
"""Settings that can be said in a second place."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting."""

    place: Place
    value: Any
    """What it comes to, plain JSON without secrets; ``None``: nothing."""
    origin: Origin | None
    """``None``: nothing was said, and this is the default."""
    given: Any = None
    """What was said."""

    @property
    def name(self) -> str:
        """The names on the way to it."""
        return ".".join(self.place)

    @property
    def group(self) -> str:
        """One of ``GROUPS``."""
        special = {_TEMPLATE: "prompt", _SWAP: "judge"}
        return special.get(self.place) or _GROUP_OF.get(self.place[0], "run")


def account(config: TaskConfig, environ: Mapping[str, str], settings: Settings | None) -> list[Setting]:
    """Return every setting, in the order of ``GROUPS``, with what it comes to and where that came from.

    ``settings`` are what ``config`` was resolved into; without them, since they are wrong, only what was said
    is told, as it was said.
    """
    try:
        layer = checked_config(config, environ).layer
    except ConfigError:
        layer = config.layer
    given = dict(leaves(layer.values))
    origins: dict[Place, Origin] = dict(layer.origins)
    for place, variable in _from_variables(layer.values, environ, settings):
        given[place], origins[place] = environ[variable], Origin("environment", variable)
    comes_to = dict(_comes_to(settings)) if settings is not None else {}
    known = {**comes_to, **given}
    names = [(f.name,) for f in fields(TaskConfig) if f.init]
    places = dict.fromkeys(place for place in (*names, *known) if not _is_within(place, known))
    told = []
    for place in places:
        origin = origins.get(place) or origins.get(_ALSO.get(place, ()))
        value = comes_to[place] if place in comes_to else given.get(place)
        told.append(Setting(place, _shown(place, value), origin, given.get(place)))
    order = list(dict.fromkeys(f.name for f in fields(TaskConfig)))
    if settings is None:
        told = [one for one in told if one.origin is not None]
    return sorted(told, key=lambda one: (GROUPS.index(one.group), order.index(one.place[0])))


def as_said(settings: list[Setting]) -> dict[str, Any]:
    """Return what was said, by whatever means, as fields of ``TaskConfig``: no secrets, paths absolute."""
    said: dict[str, Any] = {}
    for one in settings:
        if one.origin is None or one.given is None or _shown(one.place, one.given) == MASK:
            continue
        *way, last = one.place
        holder = said
        for name in way:
            holder = holder.setdefault(name, {})
        is_path = one.place in ((*_OF_DATA, "local_path"), ("judge_model_args", "api_key_file"))
        if is_path or (not way and last in PATH_FIELDS):
            holder[last] = str(expanded_path(one.given).absolute())
        else:
            holder[last] = _shown(one.place, one.given)
    return said


def of_several(said: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what was said of several models as one file says it: the limits of all stand above them."""
    above = {name: one[name] for one in said for name in OF_ALL_MODELS if name in one}
    models = [{name: value for name, value in one.items() if name not in above} for one in said]
    return {**above, "models": models}


def _from_variables(
    values: Mapping[str, Any], environ: Mapping[str, str], settings: Settings | None
) -> Iterator[tuple[Place, str]]:
    """Yield the settings that are the environment's, each with its variable."""
    if at(values, ("dataset_dir",)) is None and (settings is None or settings.data.root is None):
        hub = at(values, ("dataset_hub",)) if settings is None else settings.data.hub.name
        if (variable := cache_variable(hub or HUBS[0], environ)) is not None:
            yield ("dataset_dir",), variable
    for place in VARIABLES:
        said = [at(values, (*place[:-1], name)) for name in {place[-1], *ALTERNATIVES}]
        if place in (API_KEY, JUDGE_API_KEY):
            is_said = any(value is not None for value in said)
        else:
            is_said = at(values, place) is not None
        variable = variable_for(place, environ)
        if variable is not None and not is_said and _is_used(place, settings):
            yield place, variable


def _is_used(place: Place, settings: Settings | None) -> bool:
    """Whether what the environment says here is asked for: a model inside of this process has no address."""
    if settings is None or place == DATA_ROOT:
        return True
    if place[0] == "judge_model_args":
        return settings.judge is not None and isinstance(settings.judge.endpoint, EndpointSettings)
    return isinstance(settings.model, EndpointSettings)


def _is_within(place: Place, others: Mapping[Place, Any]) -> bool:
    """Whether a setting is told by the values within it."""
    return place not in others and any(other[: len(place)] == place for other in others)


def _comes_to(settings: Settings) -> Iterator[tuple[Place, Any]]:
    data, chosen, prompt, run = settings.data, settings.selection, settings.prompt, settings.run
    yield ("datasets",), [BENCHMARK]
    yield DATA_ROOT, data.root and str(data.root)
    yield ("dataset_hub",), data.hub.name
    yield (*_OF_DATA, "dataset_id"), data.hub.dataset
    yield ("dataset_dir",), str(data.hub.cache)
    yield ("follow_links",), data.follow_links
    yield _TASKS, list(chosen.tasks)
    yield ("limit",), chosen.limit
    yield ("shuffle",), chosen.shuffle
    yield ("seed",), chosen.seed
    yield ("model",), settings.model.name
    yield from _of_endpoint(settings.model, (), "eval_batch_size")
    yield ("part_order",), prompt.part_order
    yield ("audio_part",), prompt.audio_part
    yield ("answer_filter",), prompt.answer_filter
    yield _TEMPLATE, prompt.template
    yield ("audio_policy",), str(settings.audio.policy)
    yield ("audio_cache_size",), settings.audio.cache_bytes / 1e9
    if settings.judge is not None:
        yield from _of_judge(settings.judge)
    yield ("no_judge",), settings.judge is None
    yield ("judge_blank",), run.judge_blank
    yield ("work_dir",), str(run.work_dir)
    yield ("min_coverage",), run.min_coverage
    yield ("take_over",), run.take_over


def _of_judge(judge: JudgeSettings) -> Iterator[tuple[Place, Any]]:
    yield ("judge_model_args", "model_id"), judge.endpoint.name
    yield from _of_endpoint(judge.endpoint, ("judge_model_args",), "judge_batch_size")
    yield ("protocol",), judge.protocol
    yield _SWAP, judge.swap


def _of_endpoint(endpoint: Any, within: Place, batch_size: str) -> Iterator[tuple[Place, Any]]:
    """Yield what is known of an endpoint, or of a model without one."""
    if isinstance(endpoint, EndpointSettings):
        yield (*within, "api_url"), endpoint.shown_url
        yield (*within, "generation_config", "timeout"), endpoint.attempt_timeout
        yield (*within, "generation_config", "retries"), endpoint.tries - 1
        yield (*within, "generation_config", "retry_interval"), endpoint.retry_interval
        yield (*within, "rpm"), endpoint.rpm
        yield (*within, "tpm"), endpoint.tpm
        if not within:
            yield ("stream",), endpoint.stream
            yield ("wait_ready",), endpoint.wait_ready
    for name, value in getattr(endpoint, "parameters", {}).items():
        yield (*within, "generation_config", name), value
    yield (batch_size,), getattr(endpoint, "calls", endpoint.concurrency)


def _shown(place: Place, value: Any) -> Any:
    """Return a value without what is secret in it."""
    if value is None:
        return None
    if place[-1] == "api_key" or "extra_headers" in place:
        return MASK
    if place[-1] == "api_url":
        urls = value if isinstance(value, list) else str(value).split(",")
        return ",".join(display_url(str(url)) for url in urls)
    is_free = len(place) > 1 and place[0] not in ("dataset_args", "judge_model_args", "generation_config")
    if (is_free or "extra_body" in place) and isinstance(value, str) and is_secret_name(place[-1]):
        return MASK
    return value
