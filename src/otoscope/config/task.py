"""What a user asks for: laid over what was stored with a run, and checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from os import PathLike
from types import MappingProxyType
from typing import Any

from otoscope.benchmark import BENCHMARK
from otoscope.config.checks import (
    checked_flag,
    checked_text,
    checked_urls,
    checked_words,
    only_known,
    plain_object,
)
from otoscope.config.defaults import BASELINE
from otoscope.config.layers import Layer, Origin, Place, at, leaves
from otoscope.config.providers import with_provider
from otoscope.config.variables import replacing
from otoscope.errors import Role

TEXT_FIELDS = (
    "model judge_model provider api_url api_key api_key_file ca_file model_revision protocol system_prompt "
    "part_order "
    "audio_part answer_filter label "
    "audio_policy control dataset_hub dataset_dir "
    "work_dir run_dir use_cache weights shard engine ray_address"
).split()

_MAY_BE_OBJECTS = ("model", "judge_model")


TRUST = "trust_remote_code"
"""The model argument that no run directory decides about: whether code that comes with weights is run."""


@dataclass(kw_only=True)
class TaskConfig:
    """What a user asks for, under the names that the field's most used tool has for it.

    ``model`` is the name of one behind ``api_url``; or what names one in Python (``"module:name"``,
    ``"path/to/file.py:name"``), or that itself: a function, an object, or a class, which is built with
    ``model_args``; or a folder with weights, or a model of the Hugging Face hub (``"org/name"``), which is
    loaded with them. ``judge_model`` is the judge's name, or a function from a prompt to the judge's text.
    ``engine`` ``"ray"`` has one in Python asked on Ray (the extra ``ray``), with ``eval_batch_size`` for each
    of its workers: ``ray_workers`` says how many of them hold a model, ``gpus_per_model`` what each gets
    (fractions as Ray has them), and ``ray_address`` which cluster is joined (``host:port`` or ``auto``;
    without it a Ray of this machine is started, or that of ``RAY_ADDRESS`` joined).
    ``dataset_args`` has one key, ``air_bench_chat``, with ``local_path`` (the root that contains
    ``Chat/``; without it the data set comes from ``dataset_hub``, into ``dataset_dir`` or the hub's own
    cache), ``dataset_id`` (a copy on the hub), ``subset_list`` and ``extra_params.tasks`` (their
    intersection is evaluated), ``prompt_template``, ``shuffle`` and ``extra_params.do_swap``.
    ``judge_model_args`` has ``model_id``, ``provider``, ``api_url``, ``api_key``, ``api_key_file``,
    ``revision``, ``generation_config``, ``extra_body``, ``extra_headers``, ``rpm`` and ``tpm``.
    ``provider``, also the judge's, is one of ``PROVIDERS``: it stands for a URL, the variable with the key,
    the form of the clip and whether replies are streamed, where those are not given.
    ``api_url``, also the judge's, may be those of replicas of one model: ``"A,B,C"``, or a list.
    ``api_key_file`` is a file with the key alone on its first line. ``ca_file`` (PEM) holds the certificates
    that vouch for the model's and the judge's servers, in place of the system's.
    ``wait_ready`` is for how many seconds a server that is not ready yet, or dies in the run, is waited for.
    ``rpm`` and ``tpm`` are the requests and tokens a minute that the model's endpoint is sent at most.
    ``judge_price`` is what a million of the judge's tokens cost, in and out: two numbers, or ``"2.5,10"``.
    ``max_judge_calls``, ``max_judge_tokens`` and ``max_cost`` are what may be used on the judge; what the run
    used on it before counts. At such a limit it stops, and can be resumed.
    ``audio_cache_size`` (GB) is how much of converted clips is kept for the next run.
    ``track`` names trackers (``mlflow``) that are told of the run at its end.
    ``limit`` is per task: an ``int`` is the first N of each task, a ``float`` that share of each task.
    ``shard`` (``"I/N"``, counted from 1) is a fixed share of the samples that are chosen so;
    :func:`otoscope.merge_runs` joins the runs of all N shards.
    ``generation_config`` replaces or adds to what is sent by default, ``None`` in it removes, and an empty
    one sends nothing; it also takes ``timeout``, ``retries``, ``retry_interval``, ``stream``,
    ``extra_body`` and ``extra_headers``. A URL may hold ``user:password@``; an explicit key goes before
    it, and it goes before a key from the environment.

    A field left at ``None`` means its default, which :func:`resolve` fills in.
    """

    model: Any = None
    model_args: dict[str, Any] | None = None
    engine: str | None = None
    ray_address: str | None = None
    ray_workers: int | None = None
    gpus_per_model: float | None = None
    provider: str | None = None
    api_url: str | Sequence[str] | None = field(default=None, repr=False)
    api_key: str | None = field(default=None, repr=False)
    api_key_file: str | PathLike[str] | None = None
    ca_file: str | PathLike[str] | None = None
    model_revision: str | None = None
    datasets: list[str] | None = None
    dataset_args: dict[str, Any] | None = None
    dataset_hub: str | None = None
    dataset_dir: str | PathLike[str] | None = None
    follow_links: bool | None = None
    judge_model: Any = None
    judge_model_args: dict[str, Any] | None = field(default=None, repr=False)
    generation_config: dict[str, Any] | None = field(default=None, repr=False)
    extra_body: dict[str, Any] | None = None
    extra_headers: dict[str, str] | None = field(default=None, repr=False)
    stream: bool | None = None
    eval_batch_size: int | None = None
    judge_batch_size: int | None = None
    rpm: float | None = None
    tpm: float | None = None
    judge_price: str | Sequence[float] | None = None
    max_judge_calls: int | None = None
    max_judge_tokens: float | None = None
    max_cost: float | None = None
    wait_ready: float | None = None
    limit: int | float | None = None
    shuffle: bool | None = None
    seed: int | None = None
    shard: str | None = None
    protocol: str | None = None
    system_prompt: str | None = None
    part_order: str | None = None
    audio_part: str | None = None
    audio_policy: str | None = None
    control: str | None = None
    audio_cache_size: float | None = None
    answer_filter: str | None = None
    no_judge: bool | None = None
    judge_blank: bool | None = None
    work_dir: str | PathLike[str] | None = None
    run_dir: str | PathLike[str] | None = None
    use_cache: str | PathLike[str] | None = None
    label: str | None = None
    tags: dict[str, str] | None = None
    min_coverage: float | None = None
    retry_failed: list[str] | None = None
    allow_changed: list[str] | None = None
    take_over: bool | None = None
    weights: str | PathLike[str] | None = None
    track: list[str] | None = None
    origins: Mapping[Place, Origin] | None = field(default=None, init=False, repr=False, compare=False)
    """Where values came from, as far as that is known."""

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any]) -> TaskConfig:
        """Build one from a dict. Raises ``ConfigError`` for a key that does not exist."""
        only_known(given, [f.name for f in fields(cls) if f.init], "TaskConfig")
        return cls(**given)

    @classmethod
    def from_layer(cls, layer: Layer) -> TaskConfig:
        """Build one that knows where its values came from. Raises as ``from_mapping`` does."""
        config = cls.from_mapping(layer.values)
        config.origins = MappingProxyType(dict(layer.origins))
        return config

    @property
    def layer(self) -> Layer:
        """What is set here, and where it came from as far as that is known."""
        given = {f.name: getattr(self, f.name) for f in fields(self) if f.init}
        return Layer({name: value for name, value in given.items() if value is not None}, self.origins or {})

    def changed(self, **changes: Any) -> TaskConfig:
        """Return these settings with some fields replaced, for reasons that are not the user's."""
        changed = replace(self, **changes)
        changed.origins = self.origins
        return changed

    def over(self, stored: Mapping[str, Any], run: str = "") -> TaskConfig:
        """Return the settings stored with a run, with whatever is set here laid over them.

        Objects are merged key by key, but for an empty ``generation_config``, which replaces. What was
        stored of another judge does not describe the judge that is named here. ``run`` is the run's path.
        """
        below = {name: value for name, value in stored.items() if name in STORED_FIELDS}
        above = self.layer
        judge = dict(below.get("judge_model_args") or {})
        # Never written by us: see STORED_FIELDS.
        judge.pop("api_key_file", None)
        judge.pop("provider", None)
        if "judge_model_args" in below:
            below["judge_model_args"] = judge
        if isinstance(below.get("model_args"), Mapping):
            below["model_args"] = {n: v for n, v in below["model_args"].items() if n != TRUST}
        named = above.values.get("judge_model") or at(above.values, ("judge_model_args", "model_id"))
        if named is not None and judge.get("model_id") not in (None, named):
            of_judge = ("judge_model_args", "judge_batch_size", "judge_price")
            below = {name: value for name, value in below.items() if name not in of_judge}
        origin = Origin("stored", run)
        return TaskConfig.from_layer(above.over(Layer(below, {place: origin for place, _ in leaves(below)})))


PATH_FIELDS = tuple(f.name for f in fields(TaskConfig) if "PathLike" in str(f.type))
"""The fields that are paths."""

_NOT_STORED = frozenset(
    "provider api_key api_key_file ca_file judge_model extra_headers work_dir run_dir use_cache retry_failed "
    "allow_changed take_over audio_cache_size no_judge judge_blank max_judge_calls max_judge_tokens "
    "max_cost track engine ray_address ray_workers gpus_per_model".split()
)
STORED_FIELDS = frozenset(f.name for f in fields(TaskConfig) if f.init) - _NOT_STORED
"""The fields that a run's manifest keeps: no keys, and nothing that is about one start of it alone.

Nor what says which file or variable is read for a key, or who is trusted to vouch for a server: a run that
somebody else made could name any file of its user's, to be sent to an address of its own. Nor who is told of
a run, or which cluster is sent code: another user's tracker or cluster is not this one's.
"""


def without_selection(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return stored settings without what chooses the samples: tasks, limit, shuffle, seed and shard."""
    chosen_by = ("limit", "shuffle", "seed", "shard")
    kept = {name: value for name, value in stored.items() if name not in chosen_by}
    args = dict(at(stored, ("dataset_args", BENCHMARK)) or {})
    extra = {name: value for name, value in (args.get("extra_params") or {}).items() if name != "tasks"}
    chosen = {n: v for n, v in args.items() if n not in ("subset_list", "shuffle", "extra_params")}
    return {**kept, "dataset_args": {BENCHMARK: {**chosen, "extra_params": extra}}}


def with_judge_of(stored: Mapping[str, Any], judged: Mapping[str, Any]) -> dict[str, Any]:
    """Return stored settings with those of the judge, and of how it is asked, from other stored settings."""
    names = ("judge_model_args", "judge_batch_size", "judge_price", "protocol")
    kept = {name: value for name, value in stored.items() if name not in names}
    kept.update({name: judged[name] for name in names if name in judged})
    args = dict(at(stored, ("dataset_args", BENCHMARK)) or {})
    extra = {name: value for name, value in (args.get("extra_params") or {}).items() if name != "do_swap"}
    swap = at(judged, ("dataset_args", BENCHMARK, "extra_params", "do_swap"))
    extra.update({} if swap is None else {"do_swap": swap})
    return {**kept, "dataset_args": {BENCHMARK: {**args, "extra_params": extra}}}


def checked_config(config: TaskConfig, environ: Mapping[str, str]) -> TaskConfig:
    """Return a deep copy as plain JSON values of the right types, without what the environment replaces."""
    given: dict[str, Any] = {f.name: getattr(config, f.name) for f in fields(config) if f.init}
    given["api_url"] = checked_urls(given["api_url"], "api_url")
    for name in TEXT_FIELDS:
        # What is no text names no model, but may be one.
        if name not in _MAY_BE_OBJECTS or isinstance(given[name], (str, PathLike)):
            given[name] = checked_text(given[name], name)
    for name in (
        "dataset_args",
        "judge_model_args",
        "model_args",
        "generation_config",
        "extra_body",
        "extra_headers",
        "tags",
    ):
        if given[name] is not None:
            given[name] = plain_object(given[name], name)
    for name in ("stream", "shuffle", "follow_links", "no_judge", "judge_blank", "take_over"):
        if given[name] is not None:
            checked_flag(given[name], name)
    for name in ("datasets", "retry_failed", "allow_changed", "track"):
        if given[name] is not None:
            given[name] = checked_words(given[name], name)
    origins = dict(config.layer.origins)
    for place, origin in config.layer.origins.items():
        *way, last = place
        if replacing(place, origin, environ) and isinstance(below := at(given, way), dict):
            below[last] = None
            del origins[place]
    _let_provider_speak(given, (), "model", environ, origins)
    if judge := given["judge_model_args"]:
        _let_provider_speak(judge, ("judge_model_args",), "judge", environ, origins)
    return TaskConfig.from_layer(Layer(given, origins))


def _let_provider_speak(
    held: dict[str, Any], way: Place, role: Role, environ: Mapping[str, str], origins: dict[Place, Origin]
) -> None:
    """Fill in, where nothing else says it, what the provider stands for that one role's settings name."""
    if (name := held.get("provider")) is None:
        return
    of_url = origins.get((*way, "api_url"))
    stored = of_url is not None and of_url.kind == "stored"
    for key, value in with_provider(held, role, environ, continued=stored).items():
        if value is not None and held.get(key) is None:
            held[key] = value
            place: Place = (*way, key)
            origins[place] = Origin("provider", str(name))


def judging_only(config: TaskConfig) -> TaskConfig:
    """Return the settings for judging what is stored, with nothing of the model that gave the answers.

    In its place stands the one that needs neither URL nor key; it is never asked, and no data are read.
    """
    args = (config.dataset_args or {}).get(BENCHMARK) or {}
    kept = {name: value for name, value in args.items() if name != "prompt_template"}
    return config.changed(
        model=BASELINE,
        model_args=None,
        engine=None,
        ray_address=None,
        ray_workers=None,
        gpus_per_model=None,
        provider=None,
        api_url=None,
        generation_config=None,
        extra_body=None,
        system_prompt=None,
        part_order=None,
        audio_part=None,
        answer_filter=None,
        audio_policy=None,
        control=None,
        dataset_args={BENCHMARK: kept},
    )
