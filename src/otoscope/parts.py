"""What answers and what judges, built from the settings and closed at the end."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from otoscope import embedded
from otoscope.backends import Backend
from otoscope.chat_api import Budget, ChatEndpoint, Gate, RateLimit, Replicas
from otoscope.config import (
    LOCAL_RAY,
    EmbeddedSettings,
    EndpointSettings,
    FunctionSettings,
    LocalSettings,
    ModelSettings,
    PromptSettings,
    RaySettings,
    Settings,
    WeightsSettings,
    open_to_others,
)
from otoscope.errors import ConfigError
from otoscope.judge import JudgeModel
from otoscope.llm import EmbeddedJudge
from otoscope.records import Event, Notice
from otoscope.shell import shell_command

Rates = dict[tuple[tuple[str, str, str], float | None, float | None], RateLimit]
"""One for each service and what it allows a minute, however differently it is asked."""

if TYPE_CHECKING:
    from otoscope.backends.calling import Workers
    from otoscope.backends.function import FunctionBackend, FunctionJudge
    from otoscope.backends.python_model import PythonModel
    from otoscope.backends.ray_workers import Cluster


_Asked = TypeVar("_Asked", "FunctionBackend", "FunctionJudge")


@dataclass(frozen=True, slots=True)
class Prepared:
    """What had to be there before anything was begun: weights, and what users wrote in Python."""

    folders: Mapping[str, Path]
    functions: Sequence[PythonModel]
    cluster: Cluster | None = None
    """Where the model that answers is asked, if not in this process."""

    def close(self) -> None:
        """Leave the cluster. May be called again."""
        if self.cluster is not None:
            self.cluster.leave()


def prepare(
    models: Sequence[ModelSettings], weights: WeightsSettings, tell: Callable[[Event], None]
) -> Prepared:
    """Make sure that models inside of this process can run: fetch weights, import what is in Python. Blocks.

    Also that there is a cluster where one is asked for. Raises ``ConfigError`` as
    :func:`otoscope.embedded.prepare` does, for Python that holds no model, and for a cluster that is not
    there or has too little.
    """
    functions = [model for model in models if isinstance(model, FunctionSettings)]
    found: list[PythonModel] = []
    if functions:
        from otoscope.backends import python_model

        found = [python_model.find(model) for model in functions]
    folders = embedded.prepare(models, weights, tell)
    cluster = None
    for model in models:
        if isinstance(model, (FunctionSettings, LocalSettings)) and model.engine is not None:
            cluster = _cluster(model, model.engine, found, tell)
    return Prepared(folders, found, cluster)


def _cluster(
    model: FunctionSettings | LocalSettings,
    engine: RaySettings,
    found: Sequence[PythonModel],
    tell: Callable[[Event], None],
) -> Cluster:
    """Join, or start, the Ray that is to ask a model, and see that there is room for it."""
    if importlib.util.find_spec("ray") is None:
        raise ConfigError("--engine ray needs Ray: pip install 'otoscope[ray]'")
    from otoscope.backends import python_model, ray_workers

    tell(Notice("starting Ray" if engine.address == LOCAL_RAY else f"joining Ray ({engine.address})"))
    if isinstance(model, LocalSettings):
        return ray_workers.Cluster(engine, model, batched=True)
    batched = next(one.batched for one in found if one.settings is model)
    # What is sent is plain, and holds no secret.
    sent = replace(model, arguments=dict(model.arguments), secrets=())
    return ray_workers.Cluster(engine, model, batched=batched, find=partial(python_model.find, sent))


def located(settings: Settings, tell: Callable[[Event], None], *, fetch: bool = True) -> Settings:
    """Return the settings with where a local model's files lie and which they are. Blocks: it may fetch them.

    Raises ``ConfigError`` as :func:`otoscope.backends.checkpoint.located` does, and for a missing package.
    """
    if not isinstance(settings.model, LocalSettings):
        return settings
    embedded.check_local(settings.model)
    from otoscope.backends import checkpoint

    return replace(settings, model=checkpoint.located(settings.model, tell, fetch=fetch))


class Parts:
    """Backends and judge models that live as long as this; use as an async context manager.

    All judges are paid from ``budget``; ``rates`` are those of what was done before this, to which its own
    are added; ``run_path`` is the run that is answered. Raises ``ConfigError`` for a proxy in the environment
    that cannot be used.
    """

    def __init__(
        self,
        prepared: Prepared,
        tell: Callable[[Event], None],
        budget: Budget,
        rates: Rates | None = None,
        *,
        run_path: Path | None = None,
    ) -> None:
        self._run_path = run_path
        self._prepared = prepared
        self._functions = prepared.functions
        self._folders = folders = prepared.folders
        self._tell = tell
        self._budget = budget
        # One language model for all that is inside of this process.
        self._language_model = embedded.language_model(folders)
        self._asked: list[ChatEndpoint | Replicas | FunctionBackend | FunctionJudge] = []
        self._rates: Rates = {} if rates is None else rates
        self._told: set[Path] = set()
        """Key files that were spoken of."""
        self._gates: dict[str, Gate] = {}
        """One for each server: whatever is asked of it, it dies as one."""
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Parts:  # noqa: PYI034 (Self needs Python 3.11)
        self._stack.push_async_callback(asyncio.to_thread, self._prepared.close)
        self._stack.push_async_callback(self._language_model.close)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def backend(self, model: ModelSettings, prompt: PromptSettings, *, served_before: bool) -> Backend:
        """Return what answers."""
        match model:
            case EndpointSettings():
                from otoscope.backends.endpoint import EndpointBackend

                return EndpointBackend(await self._endpoint(model, served_before=served_before), prompt)
            case EmbeddedSettings():
                from otoscope.backends.baseline import BaselineBackend
                from otoscope.backends.listening import Listener

                listener = Listener(embedded.recogniser(self._folders), threads=embedded.threads())
                return BaselineBackend(self._language_model, listener)
            case FunctionSettings():
                from otoscope.backends.function import FunctionBackend

                return self._stopped_with_others(FunctionBackend(self._workers(model), prompt))
            case LocalSettings():
                from otoscope.backends.function import FunctionBackend

                return self._stopped_with_others(FunctionBackend(self._local(model, prompt), prompt))

    async def judge_model(self, judge: ModelSettings, *, served_before: bool) -> JudgeModel:
        """Return what is asked for verdicts."""
        match judge:
            case EndpointSettings():
                return await self._endpoint(judge, served_before=served_before, budget=self._budget)
            case EmbeddedSettings():
                return EmbeddedJudge(self._language_model)
            case FunctionSettings():
                from otoscope.backends.function import FunctionJudge

                return self._stopped_with_others(FunctionJudge(self._workers(judge)))
            case _:
                raise RuntimeError(f"no setting makes a judge of {judge.told}")

    def slots(self, model: ModelSettings) -> int:
        """Return how many samples may be answered at a time, their clips ready."""
        cluster = self._prepared.cluster
        return model.concurrency * (1 if cluster is None else cluster.needs.workers)

    def stop_asking(self) -> None:
        """Keep whatever is asked from beginning new calls: a run that stops lets those in flight end."""
        for asked in self._asked:
            asked.stop_asking()

    def _stopped_with_others(self, asked: _Asked) -> _Asked:
        self._asked.append(asked)
        return asked

    def _local(self, settings: LocalSettings, prompt: PromptSettings) -> Workers:
        from otoscope.backends import local

        run_path = None if self._run_path is None else self._run_path.absolute()
        if self._prepared.cluster is None:
            return self._threads(local.find(settings, prompt, run_path, self._notify))
        plain = replace(
            settings,
            parameters=dict(settings.parameters),
            model_args=dict(settings.model_args),
            secrets=(),
        )
        self._prepared.cluster.send(partial(local.find_in_worker, plain, prompt, run_path))
        return self._of_ray(self._prepared.cluster)

    def _workers(self, settings: FunctionSettings) -> Workers:
        cluster = self._prepared.cluster
        if cluster is not None and settings.engine is not None:
            return self._of_ray(cluster)
        spec, target = settings.spec, settings.target
        found = next(
            one
            for one in self._functions
            if isinstance(one.settings, FunctionSettings)
            # One object may be both, the model and its judge, which are called in different ways.
            and one.settings.role == settings.role
            and one.settings.spec == spec
            and one.settings.target is target
        )
        return self._threads(found)

    def _of_ray(self, cluster: Cluster) -> Workers:
        from otoscope.backends.ray_workers import RayWorkers

        workers = RayWorkers(cluster, self._notify)
        self._stack.push_async_callback(workers.close)
        return workers

    def _threads(self, model: PythonModel) -> Workers:
        from otoscope.backends import calling

        workers = calling.Threads(model)
        self._stack.push_async_callback(workers.close)
        return workers

    async def _endpoint(
        self, settings: EndpointSettings, *, served_before: bool, budget: Budget | None = None
    ) -> ChatEndpoint | Replicas:
        file = settings.key_file
        if file is not None and file not in self._told and open_to_others(file):
            self._told.add(file)
            mended = shell_command(["chmod", "600", str(file)])
            self._notify(f"others than its owner may read {file}, which holds a key: {mended}")
        limits = (settings.service, settings.rpm, settings.tpm)
        rate = self._rates.setdefault(limits, RateLimit(settings.rpm, settings.tpm))
        endpoint: ChatEndpoint | Replicas
        if settings.others:
            endpoint = Replicas(settings, self._notify, served_before=served_before, rate=rate, budget=budget)
        else:
            gate = self._gates.setdefault(settings.server, Gate(settings.wait_ready))
            endpoint = ChatEndpoint(
                settings, self._notify, served_before=served_before, rate=rate, gate=gate, budget=budget
            )
        await self._stack.enter_async_context(endpoint)
        self._asked.append(endpoint)
        return endpoint

    def _notify(self, message: str) -> None:
        self._tell(Notice(message))
