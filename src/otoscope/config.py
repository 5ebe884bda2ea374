"""Settings: what a user says, resolved once into frozen objects.

Precedence: defaults < a stored run's settings (when it is continued without ``--model``) < environment <
flags or :class:`TaskConfig` fields. This is the only module that knows the environment's variables; the
environment itself is a parameter.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from os import PathLike, fspath
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NoReturn
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from otoscope.benchmark import (
    BENCHMARK,
    HUGGINGFACE_DATASET,
    MODELSCOPE_DATASET,
    PAPER_JUDGE,
    TASK_GROUPS,
    TASKS,
)
from otoscope.errors import ConfigError, Role, did_you_mean

AUDIO_PARTS = ("input_audio", "audio_url", "data_uri", "file_url")
PART_ORDERS = ("audio-first", "text-first")
PROTOCOLS = ("default", "official")
PROMPT_TEMPLATE = "{question}"
OPENAI_URL = "https://api.openai.com/v1"
BASELINE, EMBEDDED = "baseline", "embedded"
"""The names, given without a URL, of the model and of the judge inside of this process."""
MODELSCOPE_URL, HUGGINGFACE_URL = "https://modelscope.cn", "https://huggingface.co"

ANSWER_PARAMETERS: Mapping[str, Any] = MappingProxyType({"temperature": 0, "max_tokens": 2048})
JUDGE_PARAMETERS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "default": MappingProxyType({"temperature": 0, "max_tokens": 1024}),
        "official": MappingProxyType({"temperature": 1.0, "max_tokens": 1024}),
    }
)

_WIRE_PARAMETERS = frozenset(
    "temperature max_tokens max_completion_tokens top_p top_k min_p seed stop presence_penalty "
    "frequency_penalty repetition_penalty logit_bias logprobs top_logprobs response_format "
    "reasoning_effort modalities".split()
)
_CALL_PARAMETERS = frozenset("timeout retries retry_interval stream extra_body extra_headers".split())
_DATASET_KEYS = ("local_path", "subset_list", "prompt_template", "extra_params", "shuffle")
_EXTRA_PARAMS = ("tasks", "do_swap")
_JUDGE_KEYS = (
    "model_id",
    "api_url",
    "api_key",
    "revision",
    "generation_config",
    "extra_body",
    "extra_headers",
)
_TEXT_FIELDS = (
    "model api_url api_key model_revision protocol system_prompt part_order audio_part answer_filter label "
    "work_dir run_dir use_cache weights"
).split()

_ENVIRONMENT = MappingProxyType(
    {
        "OTOSCOPE_API_URL": ("api_url",),
        "OTOSCOPE_JUDGE_API_URL": ("judge_model_args", "api_url"),
    }
)
"""Variables that stand above a stored run's setting: a restarted server has another address. OPENAI_BASE_URL
and OTOSCOPE_DATA are not among them: they speak to every run, and this one has its own judge and data."""

_SECRET_QUERY = re.compile(r"key|token|secret|sig|pass|pwd|auth|cred|jwt", re.IGNORECASE)
_SECRET_FIELD = re.compile(
    r"(?:^|_)(?:api_?key|key|secret|password|authorization|auth|credentials?|jwt)$", re.IGNORECASE
)
_KEY_HEADERS = frozenset({"authorization", "api-key", "x-api-key"})
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_CONTROL_OR_SPACE = re.compile(r"[\s\x00-\x1f\x7f\ud800-\udfff]")


@dataclass(kw_only=True)
class TaskConfig:
    """What a user asks for, under the names that the field's most used tool has for it.

    ``dataset_args`` has one key, ``air_bench_chat``, with ``local_path`` (the root that contains
    ``Chat/``), ``subset_list`` and ``extra_params.tasks`` (their intersection is evaluated),
    ``prompt_template``, ``shuffle`` and ``extra_params.do_swap``. ``judge_model_args`` has ``model_id``,
    ``api_url``, ``api_key``, ``revision``, ``generation_config``, ``extra_body`` and ``extra_headers``.
    ``limit`` is per task: an ``int`` is the first N of each task, a ``float`` that share of each task.
    ``generation_config`` replaces or adds to what is sent by default, ``None`` in it removes, and an empty
    one sends nothing; it also takes ``timeout``, ``retries``, ``retry_interval``, ``stream``,
    ``extra_body`` and ``extra_headers``. A URL may hold ``user:password@``; an explicit key goes before
    it, and it goes before a key from the environment.

    A field left at ``None`` means its default, which :func:`resolve` fills in.
    """

    model: str | None = None
    api_url: str | None = field(default=None, repr=False)
    api_key: str | None = field(default=None, repr=False)
    model_revision: str | None = None
    datasets: list[str] | None = None
    dataset_args: dict[str, Any] | None = None
    judge_model_args: dict[str, Any] | None = field(default=None, repr=False)
    generation_config: dict[str, Any] | None = field(default=None, repr=False)
    extra_body: dict[str, Any] | None = None
    extra_headers: dict[str, str] | None = field(default=None, repr=False)
    stream: bool | None = None
    eval_batch_size: int | None = None
    judge_batch_size: int | None = None
    limit: int | float | None = None
    shuffle: bool | None = None
    seed: int | None = None
    protocol: str | None = None
    system_prompt: str | None = None
    part_order: str | None = None
    audio_part: str | None = None
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
    weights: str | None = None
    _from_stored: frozenset[tuple[str, ...]] = field(
        default=frozenset(), init=False, repr=False, compare=False
    )
    """Which of the places in ``_ENVIRONMENT`` hold a stored value, which the environment may replace."""

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any]) -> TaskConfig:
        """Build one from a dict. Raises ``ConfigError`` for a key that does not exist."""
        _only_known(given, [f.name for f in fields(cls) if f.init], "TaskConfig")
        return cls(**given)

    def over(self, stored: Mapping[str, Any]) -> TaskConfig:
        """Return the settings stored with a run, with whatever is set here laid over them.

        Objects are merged key by key, but for an empty ``generation_config``, which replaces. What was
        stored of another judge's revision does not describe the judge that is named here.
        """
        below = {name: value for name, value in stored.items() if name in _STORED_FIELDS}
        above = {f.name: getattr(self, f.name) for f in fields(self) if f.init}
        above = {name: value for name, value in above.items() if value is not None}
        judge = below.get("judge_model_args") or {}
        named = _at(above, ("judge_model_args", "model_id"))
        if named is not None and named != judge.get("model_id"):
            below["judge_model_args"] = {k: v for k, v in judge.items() if k != "revision"}
        merged = TaskConfig(**_deep_merge(below, above))
        merged._from_stored = frozenset(
            place for place in _ENVIRONMENT.values() if _at(below, place) and not _at(above, place)
        )
        return merged


def without_selection(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return stored settings without what chooses the samples: tasks, limit, shuffle and seed."""
    kept = {name: value for name, value in stored.items() if name not in ("limit", "shuffle", "seed")}
    args = dict(_at(stored, ("dataset_args", BENCHMARK)) or {})
    extra = {name: value for name, value in (args.get("extra_params") or {}).items() if name != "tasks"}
    chosen = {n: v for n, v in args.items() if n not in ("subset_list", "shuffle", "extra_params")}
    return {**kept, "dataset_args": {BENCHMARK: {**chosen, "extra_params": extra}}}


_NOT_STORED = frozenset(
    "api_key extra_headers work_dir run_dir use_cache retry_failed allow_changed take_over "
    "no_judge judge_blank".split()
)
_STORED_FIELDS = frozenset(f.name for f in fields(TaskConfig) if f.init) - _NOT_STORED


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSettings:
    """One OpenAI-compatible endpoint and everything that is sent to it beside the messages."""

    role: Role
    name: str
    url: str = field(repr=False)
    """The full address of ``chat/completions``, credentials removed."""
    authorization: str | None = field(repr=False)
    revision: str | None
    parameters: Mapping[str, Any]
    extra_body: Mapping[str, Any]
    extra_headers: Mapping[str, str] = field(repr=False)
    stream: bool
    concurrency: int
    attempt_timeout: float
    total_timeout: float
    tries: int
    retry_interval: float

    @property
    def shown_url(self) -> str:
        """The base URL without anything secret, for people and for the manifest."""
        return display_url(self.url)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedSettings:
    """A model inside of this process: the baseline, or the embedded judge."""

    role: Role
    name: str
    parameters: Mapping[str, Any]
    concurrency: int
    """Calls that may wait for the model at a time; it does one after the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsSettings:
    """Where the weights of the models inside of this process lie, and where they may be fetched from."""

    cache: Path
    local: Path | None
    modelscope: str
    huggingface: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionSettings:
    """Which samples are evaluated."""

    root: Path
    tasks: tuple[str, ...]
    limit: int | float | None
    shuffle: bool
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSettings:
    """What the model is asked, and how its answer is read."""

    template: str
    system: str | None
    part_order: str
    audio_part: str
    answer_filter: str

    @property
    def is_the_benchmarks(self) -> bool:
        """Whether the prompt is the benchmark's own."""
        return (self.template, self.system, self.part_order) == (PROMPT_TEMPLATE, None, PART_ORDERS[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeSettings:
    """Which judge, asked how."""

    endpoint: EndpointSettings | EmbeddedSettings
    protocol: Literal["default", "official"]
    swap: bool


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything resolved."""

    selection: SelectionSettings
    model: EndpointSettings | EmbeddedSettings
    prompt: PromptSettings
    judge: JudgeSettings | None
    weights: WeightsSettings
    run: RunSettings
    stored: Mapping[str, Any]
    """What the manifest keeps of the user's own settings: plain JSON, without secrets."""


def resolve(config: TaskConfig, environ: Mapping[str, str]) -> Settings:
    """Resolve what a user asked for. Raises ``ConfigError`` with the next step in the message."""
    given = _checked(config, environ)
    if given.datasets not in (None, [BENCHMARK]):
        raise ConfigError(f"datasets: only {BENCHMARK!r} can be evaluated, not {given.datasets!r}")
    dataset_args = _benchmark_args(given)
    selection = _selection(given, dataset_args, environ)
    model = _model(given, environ)
    judge_args = _judge_args(given)
    judge = None if given.no_judge else _judge(given, judge_args, dataset_args, environ)
    return Settings(
        selection=selection,
        model=model,
        prompt=_prompt(given, dataset_args),
        judge=judge,
        weights=resolve_weights(given.weights, environ),
        run=_run(given),
        stored=_stored(given, dataset_args, judge_args, selection, model, judge),
    )


def resolve_weights(local: str | None, environ: Mapping[str, str]) -> WeightsSettings:
    """Resolve where weights lie: a folder or file of the user's own, else the cache (``OTOSCOPE_CACHE``)."""
    cache = environ.get("OTOSCOPE_CACHE") or "~/.cache/otoscope"
    domain = environ.get("MODELSCOPE_DOMAIN", "").strip("/")
    return WeightsSettings(
        cache=Path(cache).expanduser() / "models",
        local=_path(local) if local else None,
        modelscope=f"https://{domain.removeprefix('https://')}" if domain else MODELSCOPE_URL,
        huggingface=(environ.get("HF_ENDPOINT") or HUGGINGFACE_URL).rstrip("/"),
    )


def fingerprint(
    settings: Settings,
    *,
    judge_prompt_sha256: str,
    parser_version: int,
    weights: Mapping[str, Mapping[str, str]] | None = None,
) -> dict[str, Any]:
    """Return the requested values that answers and verdicts depend on: compared, by name, on resume.

    ``weights`` are the SHA-256 of the files behind each embedded model, by that model's name.
    """
    weights = weights or {}
    model, prompt, judge = settings.model, settings.prompt, settings.judge
    requested: dict[str, Any] = {
        "model": _model_fingerprint(model, weights),
        "prompt": {
            "template": prompt.template,
            "system": prompt.system,
            "part_order": prompt.part_order,
            "audio_part": prompt.audio_part,
            "answer_filter": prompt.answer_filter,
            "audio_policy": "as-is",
        },
        "judge": None,
    }
    if judge is not None:
        requested["judge"] = {
            **_model_fingerprint(judge.endpoint, weights),
            "protocol": judge.protocol,
            "do_swap": judge.swap,
            "prompt_sha256": judge_prompt_sha256,
            "parser_version": parser_version,
        }
    return requested


URL_FIELDS = ("model.api_url", "judge.api_url")
"""The only differences that ``--allow-changed`` can wave through: a restarted server has another host."""


def changed_fields(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return ``{"model.name": (before, now), ...}`` for every requested value that differs.

    A part that one side lacks (a run made without a judge) does not differ. The URL does not count where
    both sides name the same revision: then that is the endpoint's identity.
    """
    changes: dict[str, tuple[Any, Any]] = {}
    for part in ("model", "prompt", "judge"):
        old, new = before.get(part), now.get(part)
        if not old or not new:
            continue
        same_revision = old.get("revision") is not None and old.get("revision") == new.get("revision")
        for name in sorted({*old, *new}):
            if old.get(name) == new.get(name) or (name == "api_url" and same_revision):
                continue
            changes[f"{part}.{name}"] = (old.get(name), new.get(name))
    return changes


def parse_object(text: str, flag: str) -> dict[str, Any]:
    """Read a flag given as a JSON object or as ``k=v,k=v``. Raises ``ConfigError`` that names the flag."""
    text = text.strip()
    if not text:
        raise ConfigError(f"{flag}: is empty; give a JSON object, {{}} for one without keys, or name=value")
    if not text.startswith("{"):
        return _parse_pairs(text, flag)
    try:
        return dict(_json(text))
    except json.JSONDecodeError as error:
        # Not what stands there: it may be a part of a key.
        raise ConfigError(
            f"{flag}: not valid JSON: {error.msg} at character {error.pos + 1}. "
            "Quote the whole value for the shell in single quotes, names and texts in double quotes"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{flag}: not valid JSON: {error}") from None


def parse_limit(text: str) -> int | float:
    """Read ``--limit``: ``10`` is the first ten of each task, ``0.1`` a tenth of each.

    Raises ``ConfigError`` for what is no number; whether it is a possible one is :func:`resolve`'s to say.
    """
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"--limit: {text!r} is neither a whole number nor a fraction such as 0.1") from None


def display_url(url: str) -> str:
    """Return a URL without credentials, secret query values and ``/chat/completions``.

    Of what is no URL, only what can hold no credentials is returned.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        return url.rpartition("@")[2].partition("?")[0]
    if not parts.netloc:
        return url.rpartition("@")[2].partition("?")[0]
    host = parts.netloc.rpartition("@")[2]
    query = urlencode(
        [
            (k, "***" if _SECRET_QUERY.search(k) else v)
            for k, v in parse_qsl(parts.query, keep_blank_values=True)
        ],
        safe="*",
    )
    return urlunsplit(SplitResult(parts.scheme, host, _base_path(parts.path), query, ""))


# --- the parts of resolve() ------------------------------------------------------------------------------


def _checked(config: TaskConfig, environ: Mapping[str, str]) -> TaskConfig:
    """Return a deep copy as plain JSON values of the right types, without what the environment replaces."""
    given: dict[str, Any] = {f.name: getattr(config, f.name) for f in fields(config) if f.init}
    for name in _TEXT_FIELDS:
        given[name] = _text(given[name], name)
    for name in (
        "dataset_args",
        "judge_model_args",
        "generation_config",
        "extra_body",
        "extra_headers",
        "tags",
    ):
        if given[name] is not None:
            given[name] = _object(given[name], name)
    for name in ("stream", "shuffle", "no_judge", "judge_blank", "take_over"):
        if given[name] is not None:
            _flag(given[name], name)
    for name in ("datasets", "retry_failed", "allow_changed"):
        if given[name] is not None:
            given[name] = _words(given[name], name)
    for variable, place in _ENVIRONMENT.items():
        if environ.get(variable) and place in config._from_stored:  # noqa: SLF001 (written in this module)
            *way, last = place
            below: Any = given
            for name in way:
                below = below[name]
            below[last] = None
    return TaskConfig(**given)


def _benchmark_args(config: TaskConfig) -> dict[str, Any]:
    given = config.dataset_args or {}
    _only_known(given, (BENCHMARK,), "dataset_args")
    where = f"dataset_args.{BENCHMARK}"
    args = _object(_default(given.get(BENCHMARK), {}), where)
    _only_known(args, _DATASET_KEYS, where)
    args["extra_params"] = _object(_default(args.get("extra_params"), {}), f"{where}.extra_params")
    _only_known(args["extra_params"], _EXTRA_PARAMS, f"{where}.extra_params")
    return args


def _selection(config: TaskConfig, args: Mapping[str, Any], environ: Mapping[str, str]) -> SelectionSettings:
    root = _text(args.get("local_path"), "local_path") or environ.get("OTOSCOPE_DATA")
    if not root:
        raise ConfigError(
            "no data: give the folder that contains Chat/ with --data PATH (or dataset_args.local_path, or "
            f"OTOSCOPE_DATA). The data set is {MODELSCOPE_DATASET} on ModelScope and "
            f"{HUGGINGFACE_DATASET} on Hugging Face, about 49 GB; of its Chat/ part you need "
            "Chat/Chat_meta.json and the folders of the tasks that you evaluate"
        )
    chosen = _tasks(args.get("subset_list"), "subset_list") & _tasks(
        args["extra_params"].get("tasks"), "tasks"
    )
    if not chosen:
        raise ConfigError("subset_list and tasks have no task in common; their intersection is evaluated")
    return SelectionSettings(
        root=_path(root),
        tasks=tuple(name for name in TASKS if name in chosen),
        limit=_limit(config.limit),
        shuffle=_flag(_default(_default(config.shuffle, args.get("shuffle")), False), "shuffle"),
        seed=_integer(_default(config.seed, 42), "seed"),
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


def _tasks(given: Any, name: str) -> set[str]:
    words = _words(given, name) if given is not None else []
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


def _run(config: TaskConfig) -> RunSettings:
    if config.run_dir and config.use_cache and _path(config.run_dir) != _path(config.use_cache):
        raise ConfigError("--run-dir and --use-cache name different runs; give one of them")
    path = config.run_dir or config.use_cache
    return RunSettings(
        work_dir=_path(config.work_dir or "outputs"),
        path=_path(path) if path else None,
        label=config.label,
        tags=MappingProxyType({name: str(value) for name, value in (config.tags or {}).items()}),
        min_coverage=_number(_default(config.min_coverage, 0.99), "min_coverage", low=0.0, high=1.0),
        retry_failed=tuple(config.retry_failed or ()),
        allow_changed=_allowed_changes(config.allow_changed or ()),
        take_over=bool(config.take_over),
        judge_blank=bool(config.judge_blank),
    )


def _prompt(config: TaskConfig, args: Mapping[str, Any]) -> PromptSettings:
    template = _default(args.get("prompt_template"), PROMPT_TEMPLATE)
    if not isinstance(template, str) or "{question}" not in template:
        raise ConfigError(f"prompt_template: {template!r} must contain {{question}}")
    return PromptSettings(
        template=template,
        system=config.system_prompt or None,
        part_order=_one_of(_default(config.part_order, PART_ORDERS[0]), PART_ORDERS, "part_order"),
        audio_part=_one_of(_default(config.audio_part, AUDIO_PARTS[0]), AUDIO_PARTS, "audio_part"),
        answer_filter=_default(config.answer_filter, "strip-thinking"),
    )


def _model(config: TaskConfig, environ: Mapping[str, str]) -> EndpointSettings | EmbeddedSettings:
    if not config.model:
        raise ConfigError(
            "no model: name the one that the server serves with --model NAME, or --model baseline for the "
            "recogniser and language model inside of this process"
        )
    if config.model == BASELINE and not config.api_url:
        return EmbeddedSettings(
            role="model",
            name=BASELINE,
            parameters=MappingProxyType({"temperature": 0, "max_tokens": 96}),
            concurrency=2,
        )
    url = config.api_url or environ.get("OTOSCOPE_API_URL")
    if not url:
        raise ConfigError(
            f"no endpoint for the model {config.model!r}: give its OpenAI-compatible URL with --api-url URL "
            "(or OTOSCOPE_API_URL), for example --api-url http://127.0.0.1:8000/v1. "
            "OPENAI_BASE_URL is the judge's and is never used for the model"
        )
    return _endpoint(
        role="model",
        name=config.model,
        url=url,
        api_key=config.api_key,
        environment_key=environ.get("OTOSCOPE_API_KEY"),
        revision=config.model_revision,
        base={} if config.generation_config == {} else ANSWER_PARAMETERS,
        generation=config.generation_config or {},
        extra_body=config.extra_body or {},
        extra_headers=config.extra_headers or {},
        stream=config.stream,
        concurrency=_integer(_default(config.eval_batch_size, 16), "eval_batch_size", low=1),
        attempt_timeout=600.0,
    )


def _judge_args(config: TaskConfig) -> dict[str, Any]:
    args = dict(config.judge_model_args or {})
    _only_known(args, _JUDGE_KEYS, "judge_model_args")
    for name in ("model_id", "api_url", "api_key", "revision"):
        _text(args.get(name), f"judge_model_args.{name}")
    for name in ("generation_config", "extra_body", "extra_headers"):
        args[name] = _object(_default(args.get(name), {}), f"judge_model_args.{name}")
    return args


def _judge(
    config: TaskConfig,
    args: Mapping[str, Any],
    dataset_args: Mapping[str, Any],
    environ: Mapping[str, str],
) -> JudgeSettings:
    protocol = _one_of(_default(config.protocol, "default"), PROTOCOLS, "protocol")
    swap = _flag(_default(dataset_args["extra_params"].get("do_swap"), True), "do_swap")
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
    endpoint = _endpoint(
        role="judge",
        name=args.get("model_id") or PAPER_JUDGE,
        url=args.get("api_url")
        or environ.get("OTOSCOPE_JUDGE_API_URL")
        or environ.get("OPENAI_BASE_URL")
        or OPENAI_URL,
        api_key=args.get("api_key"),
        environment_key=environ.get("OTOSCOPE_JUDGE_API_KEY") or environ.get("OPENAI_API_KEY"),
        revision=args.get("revision"),
        base=JUDGE_PARAMETERS[protocol],
        generation=args["generation_config"],
        extra_body=args["extra_body"],
        extra_headers=args["extra_headers"],
        stream=None,
        concurrency=_integer(_default(config.judge_batch_size, 16), "judge_batch_size", low=1),
        attempt_timeout=180.0,
    )
    if endpoint.authorization is None and not _KEY_HEADERS & {n.lower() for n in endpoint.extra_headers}:
        raise ConfigError(
            "no key for the judge. Give one of:\n"
            "  --judge-api-key KEY [--judge-api-url URL] [--judge-model NAME]  an OpenAI-compatible judge\n"
            "  OTOSCOPE_JUDGE_API_KEY or OPENAI_API_KEY (and _API_URL / OPENAI_BASE_URL) in the environment\n"
            "  --judge-api-key EMPTY --judge-api-url URL                       a server that needs no key\n"
            "  eval --no-judge                                                 answer now, judge later\n"
            "  --judge-model embedded                                          a small judge in here\n"
            "The model's own key is never used for the judge"
        )
    return JudgeSettings(
        endpoint=endpoint,
        protocol="official" if protocol == "official" else "default",
        swap=swap,
    )


def _endpoint(
    *,
    role: Role,
    name: str,
    url: str,
    api_key: str | None,
    environment_key: str | None,
    revision: str | None,
    base: Mapping[str, Any],
    generation: Mapping[str, Any],
    extra_body: Mapping[str, Any],
    extra_headers: Mapping[str, Any],
    stream: bool | None,
    concurrency: int,
    attempt_timeout: float,
) -> EndpointSettings:
    prefix = "" if role == "model" else "judge_model_args."
    where = f"{prefix}generation_config"
    for key in generation:
        if key not in _WIRE_PARAMETERS | _CALL_PARAMETERS:
            raise ConfigError(
                f"{where}: unknown key {key!r}{did_you_mean(key, _WIRE_PARAMETERS | _CALL_PARAMETERS)}\n"
                "A field that only your server knows goes into extra_body"
            )
    wire = {**base, **{k: v for k, v in generation.items() if k in _WIRE_PARAMETERS}}
    if generation.get("max_completion_tokens") is not None and "max_tokens" not in generation:
        wire.pop("max_tokens", None)
    address, credentials = _split_url(url, f"{prefix}api_url")
    given_key = _bearer(api_key, f"{prefix}api_key")
    timeout = _number(_default(generation.get("timeout"), attempt_timeout), f"{where}.timeout", low=0.001)
    return EndpointSettings(
        role=role,
        name=name,
        url=address,
        authorization=given_key or credentials or _bearer(environment_key, f"the {role}'s key"),
        revision=revision,
        parameters=MappingProxyType({k: v for k, v in wire.items() if v is not None}),
        extra_body=MappingProxyType(
            {
                **_body(
                    _object(_default(generation.get("extra_body"), {}), f"{where}.extra_body"),
                    f"{where}.extra_body",
                ),
                **_body(extra_body, f"{prefix}extra_body"),
            }
        ),
        extra_headers=MappingProxyType(
            {
                **_headers(_default(generation.get("extra_headers"), {}), f"{where}.extra_headers"),
                **_headers(extra_headers, f"{prefix}extra_headers"),
            }
        ),
        stream=_flag(_default(_default(stream, generation.get("stream")), False), f"{where}.stream"),
        concurrency=concurrency,
        attempt_timeout=timeout,
        total_timeout=max(1800.0, timeout),
        tries=_integer(_default(generation.get("retries"), 5), f"{where}.retries", low=0) + 1,
        retry_interval=_number(
            _default(generation.get("retry_interval"), 1.0), f"{where}.retry_interval", low=0
        ),
    )


def _split_url(url: str, what: str) -> tuple[str, str | None]:
    """Return the address of ``chat/completions`` and, for credentials in the URL, the header for them."""
    url = url.strip()
    try:
        parts = urlsplit(url)
        fine = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fine = False
    if not fine or _CONTROL_OR_SPACE.search(url):
        # Where a password holds a slash, what lies before the @ is in no place that a URL has for it.
        shown = display_url(url.rpartition("@")[2])
        raise ConfigError(
            f"{what}: {shown!r} is not a URL such as http://127.0.0.1:8000/v1 or https://host/v1"
        )
    if "***" in parts.query:
        raise ConfigError(f"{what}: the stored URL had a secret, which is not kept; give the URL again")
    userinfo, _, host = parts.netloc.rpartition("@")
    credentials = None
    if userinfo:
        user, _, password = userinfo.partition(":")
        pair = f"{unquote(user)}:{unquote(password)}"
        credentials = "Basic " + base64.b64encode(pair.encode()).decode()
    path = _base_path(parts.path) + "/chat/completions"
    return urlunsplit(SplitResult(parts.scheme, host, path, parts.query, "")), credentials


def _base_path(path: str) -> str:
    return path.rstrip("/").removesuffix("/chat/completions").rstrip("/")


def _body(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return fields to add to a request's body, which is stored: no secret, and nothing that is ours."""
    for name in given:
        if name in ("model", "messages"):
            raise ConfigError(f"{where}: {name!r} is what is evaluated and cannot be replaced")
        if _SECRET_FIELD.search(name):
            raise ConfigError(f"{where}: {name!r} looks like a key, and would be stored: send it as a header")
    return dict(given)


def _bearer(key: str | None, what: str) -> str | None:
    key = (key or "").strip()
    if _CONTROL.search(key):
        raise ConfigError(f"{what}: holds a line break or another character that no key has")
    return f"Bearer {key}" if key else None


def _headers(given: Any, where: str) -> dict[str, str]:
    headers: dict[str, str] = {}
    for name, value in _object(given, where).items():
        if value is None:
            continue
        text = str(value).strip()
        if isinstance(value, (bool, dict, list)) or _CONTROL.search(text) or not _HEADER_NAME.fullmatch(name):
            raise ConfigError(f"{where}: {name!r} must be a header's name, and its value text on one line")
        headers[name] = text
    return headers


def _model_fingerprint(
    model: EndpointSettings | EmbeddedSettings, weights: Mapping[str, Mapping[str, str]]
) -> dict[str, Any]:
    if isinstance(model, EndpointSettings):
        return _endpoint_fingerprint(model)
    return {
        "name": model.name,
        "parameters": dict(model.parameters),
        "weights": dict(weights.get(model.name, {})),
    }


def _endpoint_fingerprint(endpoint: EndpointSettings) -> dict[str, Any]:
    return {
        "name": endpoint.name,
        "revision": endpoint.revision,
        "api_url": endpoint.shown_url,
        "parameters": dict(endpoint.parameters),
        "extra_body": dict(endpoint.extra_body),
        # Names only: a header's value may be a key, and a renewed key changes nothing.
        "extra_headers": sorted(name.lower() for name in endpoint.extra_headers),
    }


def _allowed_changes(names: Iterable[str]) -> tuple[str, ...]:
    for name in names:
        if name not in URL_FIELDS:
            raise ConfigError(
                f"--allow-changed: {name!r} cannot be waved through{did_you_mean(name, URL_FIELDS)}; "
                f"only {' and '.join(URL_FIELDS)} can, since anything else changes what is measured"
            )
    return tuple(names)


# --- small checks ----------------------------------------------------------------------------------------


def _only_known(given: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    known = tuple(known)
    for key in given:
        if key not in known:
            raise ConfigError(
                f"{where}: unknown key {key!r}{did_you_mean(str(key), known)}\nKnown: {', '.join(known)}"
            )


def _object(given: Any, where: str) -> dict[str, Any]:
    """Return a deep copy as plain JSON. Messages never show the value: it may hold a key."""
    if not isinstance(given, Mapping):
        raise ConfigError(f"{where}: must be an object, not {type(given).__name__}")
    try:
        copy = json.loads(json.dumps(given, allow_nan=False, default=_plain))
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: cannot be written as JSON: {error}") from None
    return dict(copy)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, PathLike):
        return fspath(value)
    raise TypeError(f"a value of type {type(value).__name__}")


def _text(value: Any, name: str) -> str | None:
    if isinstance(value, PathLike):
        value = fspath(value)
    if value is not None and not isinstance(value, str):
        raise ConfigError(f"{name}: must be text, not {type(value).__name__}")
    return value


def _words(given: Any, name: str) -> list[str]:
    """Return a list of words; ``"a,b"`` is two."""
    if isinstance(given, str):
        return [word.strip() for word in given.split(",") if word.strip()]
    if not isinstance(given, (list, tuple, set, frozenset)) or not all(isinstance(w, str) for w in given):
        raise ConfigError(f"{name}: {given!r} must be a list of names")
    return list(given)


def _path(text: Any) -> Path:
    return Path(text).expanduser()


def _one_of(value: str, known: tuple[str, ...], name: str) -> str:
    if value not in known:
        raise ConfigError(f"{name}: {value!r} is not one of {', '.join(known)}{did_you_mean(value, known)}")
    return value


def _number(value: Any, name: str, *, low: float = -math.inf, high: float = math.inf) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        _refuse_number(value, name, "a number", low, high)
    return value


def _integer(value: Any, name: str, *, low: float = -math.inf) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        _refuse_number(value, name, "a whole number", low, math.inf)
    return value


def _refuse_number(value: Any, name: str, what: str, low: float, high: float) -> NoReturn:
    bounds = f" from {low:g}" + (f" to {high:g}" if high < math.inf else " up") if low > -math.inf else ""
    raise ConfigError(f"{name}: {value!r} must be {what}{bounds}")


def _flag(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{name}: {value!r} must be true or false")
    return value


def _default(value: Any, default: Any) -> Any:
    return default if value is None else value


# --- what is stored, and laid over what was stored -------------------------------------------------------


def _at(given: Any, place: Iterable[str]) -> Any:
    """Return what lies at a place in nested objects, or ``None``."""
    for name in place:
        given = given.get(name) if isinstance(given, Mapping) else None
    return given


def _deep_merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        lower = merged.get(key)
        replaces = key == "generation_config" and not value
        if isinstance(lower, Mapping) and isinstance(value, Mapping) and not replaces:
            value = _deep_merge(lower, value)
        merged[key] = value
    return merged


def _stored(
    config: TaskConfig,
    dataset_args: Mapping[str, Any],
    judge_args: Mapping[str, Any],
    selection: SelectionSettings,
    model: EndpointSettings | EmbeddedSettings,
    judge: JudgeSettings | None,
) -> dict[str, Any]:
    """Return what a manifest keeps of the user's settings: no keys, no header values, no credentials.

    What came from the environment is written in, and the data root is absolute, so that the run can be
    continued from another shell and folder.
    """
    stored = {name: value for name in _STORED_FIELDS if (value := getattr(config, name)) is not None}
    if isinstance(model, EndpointSettings):
        stored["api_url"] = model.shown_url
    stored["dataset_args"] = {BENCHMARK: {**dataset_args, "local_path": str(selection.root.absolute())}}
    kept = {n: v for n, v in _without(judge_args, "api_key", "extra_headers").items() if v}
    if judge is not None:
        kept["model_id"] = judge.endpoint.name
        if isinstance(judge.endpoint, EndpointSettings):
            kept["api_url"] = judge.endpoint.shown_url
    elif "api_url" in kept:
        kept["api_url"] = display_url(kept["api_url"])
    stored["judge_model_args"] = kept
    for holder in (stored, kept):
        if generation := holder.get("generation_config"):
            holder["generation_config"] = _without(generation, "extra_headers")
            # What held nothing but headers must not become {}, which means "send nothing".
            if not holder["generation_config"]:
                del holder["generation_config"]
    return stored


def _without(given: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name not in names}


# --- flags as text ---------------------------------------------------------------------------------------


def _json(text: str) -> Any:
    """Read JSON. Raises ``ValueError`` for NaN and infinities too, which Python's reader would take."""

    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is not a JSON number")

    return json.loads(text, parse_constant=refuse)


def _parse_pairs(text: str, flag: str) -> dict[str, Any]:
    pairs: dict[str, Any] = {}
    for piece in filter(None, (p.strip() for p in text.split(","))):
        name, equals, value = (part.strip() for part in piece.partition("="))
        if not equals or not name:
            raise ConfigError(
                f"{flag}: {piece!r} is neither JSON ({{...}}) nor of the form name=value,name=value"
            )
        lowered = value.lower()
        try:
            pairs[name] = _json(
                {"none": "null"}.get(lowered, lowered if lowered in ("true", "false") else value)
            )
        except (ValueError, RecursionError):
            pairs[name] = value
    return pairs
