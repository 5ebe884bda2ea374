"""The frozen objects that settings are resolved into."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from otoscope.choices import PART_ORDERS
from otoscope.config.audio_policy import AudioPolicy
from otoscope.config.defaults import LOCAL_RAY, PROMPT_TEMPLATE
from otoscope.config.shard import Shard
from otoscope.config.urls import display_url
from otoscope.errors import Role
from otoscope.records import Price

_Weights = Mapping[str, Mapping[str, str]]
"""The SHA-256 of the files behind each embedded model, by its name."""
_PLACEMENT = ("device_map", "max_memory", "offload_folder")
"""What a local model is told of where to lie; it answers the same anywhere, but for rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSettings:
    """One OpenAI-compatible endpoint and everything that is sent to it beside the messages."""

    role: Role
    name: str
    url: str = field(repr=False)
    """The full address of ``chat/completions``, credentials removed; of replicas, that of the first."""
    authorization: str | None = field(repr=False)
    revision: str | None
    parameters: Mapping[str, Any]
    extra_body: Mapping[str, Any]
    extra_headers: Mapping[str, str] = field(repr=False)
    stream: bool
    concurrency: int
    rpm: float | None
    """Requests a minute that it may be sent at most; ``None``: no limit."""
    tpm: float | None
    """Tokens a minute, of requests and replies."""
    attempt_timeout: float
    total_timeout: float
    tries: int
    retry_interval: float
    wait_ready: float
    """Seconds for which it is waited for when it is not ready yet, or dies in the run; 0: not at all."""
    price: Price | None = None
    """What its tokens cost; ``None``: not known."""
    key_file: Path | None = None
    """The file that the key was read from."""
    ca_file: Path | None = None
    """Certificates (PEM) that vouch for the server, in place of the system's."""
    provider: str | None = None
    """The name, one of ``PROVIDERS``, that was given for it: its variable may hold the key."""
    others: tuple[tuple[str, str | None], ...] = field(default=(), repr=False)
    """The other replicas of the same model: ``url`` and ``authorization`` of each, in a fixed order."""

    @property
    def replicas(self) -> tuple[EndpointSettings, ...]:
        """The settings of each replica by itself; of one server, these."""
        alone = ((self.url, self.authorization), *self.others)
        return tuple(replace(self, url=url, authorization=key, others=()) for url, key in alone)

    @property
    def shown_url(self) -> str:
        """The base URL without anything secret, for people and for the manifest; of replicas ``A,B,C``."""
        return ",".join(display_url(url) for url in (self.url, *(url for url, _ in self.others)))

    @property
    def service(self) -> tuple[str, str, str]:
        """What ``rpm`` and ``tpm`` are counted by: role, addresses and model's name."""
        return self.role, ",".join((self.url, *(url for url, _ in self.others))), self.name

    @property
    def server(self) -> str:
        """What lives and dies as one, whatever it is asked for: host and port. Of replicas, the first's."""
        return urlsplit(self.url).netloc

    @property
    def told(self) -> str:
        """The model, as people are told of it at the start."""
        limits = [
            f"{limit:,.12g} {what}{'' if limit == 1 else 's'}"
            for limit, what in ((self.rpm, "request"), (self.tpm, "token"))
            if limit is not None
        ]
        rate = f", at most {' and '.join(limits)} a minute" if limits else ""
        waited = f", waited for up to {self.wait_ready:g} s" if self.wait_ready else ""
        return (
            f"{self.name}{_in_brackets(self.revision)} at {self.shown_url}, {self.concurrency} at a time"
            f"{rate}{waited}"
        )

    def identity(self, _weights: _Weights) -> dict[str, Any]:
        """Return what is requested of it that answers, or verdicts, depend on: its part of a fingerprint."""
        return {
            "name": self.name,
            "revision": self.revision,
            "api_url": self.shown_url,
            "parameters": dict(self.parameters),
            "extra_body": dict(self.extra_body),
            # Names only: a header's value may be a key, and a renewed key changes nothing.
            "extra_headers": sorted(name.lower() for name in self.extra_headers),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedSettings:
    """A model inside of this process: the baseline, or the embedded judge."""

    role: Role
    name: str
    parameters: Mapping[str, Any]
    concurrency: int
    """Calls that may wait for the model at a time; it does one after the other."""

    @property
    def told(self) -> str:
        """The model, as people are told of it at the start."""
        return f"{self.name}, inside of this process"

    def identity(self, weights: _Weights) -> dict[str, Any]:
        """Return its part of a fingerprint."""
        of_files = dict(weights.get(self.name, {}))
        return {"name": self.name, "parameters": dict(self.parameters), "weights": of_files}


@dataclass(frozen=True, slots=True, kw_only=True)
class RaySettings:
    """Actors of Ray that hold a model each."""

    address: str
    """Of a cluster (``host:port``), ``auto`` for the one of this machine, ``local`` for one of its own."""
    gpus: float | None
    """For each model; ``None``: one where the cluster has some."""
    workers: int | None
    """How many models; ``None``: as many as fit."""

    @property
    def flags(self) -> list[str]:
        """What asks for it again: no run keeps it, since another start may have another cluster."""
        words = ["--engine", "ray"]
        for flag, value in (("--gpus-per-model", self.gpus), ("--ray-workers", self.workers)):
            words += [flag, f"{value:g}"] if value is not None else []
        return words + (["--ray-address", self.address] if self.address != LOCAL_RAY else [])


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionSettings:
    """A model, or a judge, written in Python by the user."""

    role: Role
    name: str
    """As it is shown: ``module:name``, ``file.py:name``, or an object's own name."""
    spec: str | None
    """Where it is found: the same, with the whole path of a file; ``None``: it was given as an object."""
    target: Any = field(default=None, repr=False, compare=False)
    """The object."""
    revision: str | None = None
    source_sha256: str | None = None
    """Of the file that it lies in, or of an object's own source; ``None`` where there is none to be seen."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """What its class is built with."""
    calls: int
    """At a time; or, for one that takes batches, questions in a batch."""
    concurrency: int
    """Questions that may wait for it at a time, their clips ready: more than it is asked, so that there are
    some to choose a batch from."""
    timeout: float = 600.0
    """Seconds for one call."""
    secrets: tuple[str, ...] = field(default=(), repr=False, compare=False)
    """Keys of the environment, which are taken out of its tracebacks."""
    engine: RaySettings | None = None
    """What carries its calls out; ``None``: threads of this process. ``calls`` and ``concurrency`` are then
    each worker's."""

    @property
    def parameters(self) -> Mapping[str, Any]:
        """What it is asked with beside the question: nothing that is known here."""
        return {}

    @property
    def words_again(self) -> list[str]:
        """What a command that goes on with a run says again: no run's word is enough to run Python."""
        return ["--model", self.spec or self.name, *_flags(self.engine)]

    @property
    def told(self) -> str:
        """The model, as people are told of it at the start."""
        name = f"{self.name}{_in_brackets(self.revision)}"
        if self.engine is None:
            return f"{name}, Python, {self.calls} at a time"
        return f"{name}, Python on Ray ({self.engine.address}), {self.calls} at a time for each worker"

    def identity(self, _weights: _Weights) -> dict[str, Any]:
        """Return its part of a fingerprint."""
        return {
            "name": self.name,
            "revision": self.revision,
            "source_sha256": self.source_sha256,
            "arguments": dict(self.arguments),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSettings:
    """A model of the user's own, or of a hub, that transformers runs inside of this process."""

    role: Role
    name: str
    """The folder's own name, or the hub's id."""
    source: str
    """The folder, absolute; or the id on the Hugging Face hub."""
    on_hub: bool
    revision: str | None
    """On the hub a branch, tag or commit; of a folder what its user calls it."""
    parameters: Mapping[str, Any]
    """The decoding as a server would be asked for it; what is not named is the model's own to say."""
    model_args: Mapping[str, Any]
    """What ``from_pretrained`` is told beside: dtype, device_map, attn_implementation and the like."""
    trust_remote_code: bool
    """Whether Python code that comes with the model is run. Said at each start, never stored."""
    calls: int
    """Samples that are answered at once."""
    concurrency: int
    """Samples that may wait for it, as for a model in Python."""
    timeout: float
    """Seconds for one batch."""
    secrets: tuple[str, ...] = field(default=(), repr=False, compare=False)
    """Keys of the environment, which are taken out of tracebacks."""
    engine: RaySettings | None = None
    """What asks it, and how many times it is loaded; ``None``: this process, once."""
    folder: Path | None = None
    """Where its files lie, once they were looked up."""
    checkpoint: Mapping[str, str] | None = None
    """What tells these weights from others, once they were looked up: the hub's commit, or a digest."""

    @property
    def words_again(self) -> list[str]:
        """What a command that goes on with a run says again: what no run keeps."""
        trusted = ["--model-args", "trust_remote_code=true"] if self.trust_remote_code else []
        return [*trusted, *_flags(self.engine)]

    @property
    def told(self) -> str:
        """The model, as people are told of it at the start."""
        where = "from Hugging Face" if self.on_hub else f"in {self.source}"
        loaded = f", {_listed(self.model_args)}" if self.model_args else ""
        name = f"{self.name}{_in_brackets(self.revision)}"
        by = "" if self.engine is None else f" on Ray ({self.engine.address})"
        each = "" if self.engine is None else " for each worker"
        return f"{name} {where}, by transformers{by}, {self.calls} at a time{each}{loaded}"

    def identity(self, _weights: _Weights) -> dict[str, Any]:
        """Return its part of a fingerprint."""
        return {
            "name": self.name,
            "revision": self.revision,
            "parameters": dict(self.parameters),
            "model_args": {n: v for n, v in self.model_args.items() if n not in _PLACEMENT},
            "checkpoint": None if self.checkpoint is None else dict(self.checkpoint),
        }


def _flags(engine: RaySettings | None) -> list[str]:
    return [] if engine is None else engine.flags


def _in_brackets(text: str | None) -> str:
    return f" ({text})" if text else ""


def _listed(given: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in given.items())


ModelSettings = EndpointSettings | EmbeddedSettings | FunctionSettings | LocalSettings
"""Whatever answers, or judges."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsSettings:
    """Where the weights of the models inside of this process lie, and where they may be fetched from."""

    cache: Path
    local: Path | None
    modelscope: str
    huggingface: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HubSettings:
    """Where the data set comes from when no folder of it is given."""

    name: str
    """One of ``HUBS``."""
    dataset: str
    """The data set's id there."""
    cache: Path
    """The hub's cache folder, by the hub's own settings unless another one was named."""
    environment: Mapping[str, str] = field(repr=False, compare=False)
    """Handed on whole to the hub's own library, which takes mirror, token and proxies from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSettings:
    """Where the data lie."""

    root: Path | None
    """The folder that contains ``Chat/``; ``None``: the hub's cache, filled as it is needed."""
    hub: HubSettings
    follow_links: bool
    """Whether a clip may lie outside of the root, behind a link."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionSettings:
    """Which samples are evaluated."""

    tasks: tuple[str, ...]
    limit: int | float | None
    shuffle: bool
    seed: int
    shard: Shard | None = None
    """Which share of what is chosen by the others; ``None``: all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSettings:
    """What the model is asked, and how its answer is read."""

    template: str
    system: str | None
    part_order: str
    audio_part: str
    audio_fallbacks: tuple[str, ...]
    """Wire forms of the clip that are tried when the endpoint refuses that; none where the user named it."""
    answer_filter: str

    @property
    def is_the_benchmarks(self) -> bool:
        """Whether the prompt is the benchmark's own."""
        return (self.template, self.system, self.part_order) == (PROMPT_TEMPLATE, None, PART_ORDERS[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioSettings:
    """What becomes of a clip before it is sent."""

    policy: AudioPolicy
    control: str | None
    """One of ``CONTROLS``: what is sent instead of the clip; ``None`` in an evaluation."""
    cache: Path
    """The folder of converted clips."""
    cache_bytes: int
    """How much of them is kept there; 0: nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeSettings:
    """Which judge, asked how."""

    endpoint: ModelSettings
    protocol: Literal["default", "official"]
    swap: bool

    @property
    def price(self) -> Price | None:
        """What the judge's tokens cost; ``None`` where that is not known, and inside of this process."""
        return self.endpoint.price if isinstance(self.endpoint, EndpointSettings) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeLimits:
    """What may be used on the judge, with all that a run used on it before; ``None``: no limit."""

    calls: int | None = None
    tokens: float | None = None
    """Of requests and replies."""
    cost: float | None = None
    """In the currency of the price."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """Where a run lives and how it is continued."""

    work_dir: Path
    path: Path | None
    label: str | None
    tags: Mapping[str, str]
    min_coverage: float
    retry_failed: tuple[str, ...]
    allow_changed: tuple[str, ...]
    take_over: bool
    judge_blank: bool
    judge_limits: JudgeLimits
    track: tuple[str, ...]
    """Those of ``TRACKERS`` that are told of the run at its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything resolved."""

    data: DataSettings
    selection: SelectionSettings
    model: ModelSettings
    prompt: PromptSettings
    audio: AudioSettings
    judge: JudgeSettings | None
    weights: WeightsSettings
    run: RunSettings
    stored: Mapping[str, Any]
    """What the manifest keeps of the user's own settings: plain JSON, without secrets."""
