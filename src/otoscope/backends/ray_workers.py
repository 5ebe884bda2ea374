"""Models that actors of Ray hold, each in a process of its own, on this machine or on a cluster.

The only module that knows Ray. What an actor does with its model is what this process would do
(:class:`otoscope.backends.calling.Threads`); here is who is asked, and what becomes of one that is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import math
import os
import re
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import ray
from ray import cloudpickle
from ray.exceptions import RayError, RayTaskError

from otoscope._version import __version__
from otoscope.backends.calling import HUNG_LIMIT, Threads
from otoscope.backends.python_model import AudioQuestion, PythonModel
from otoscope.config import (
    LOCAL_RAY,
    FunctionSettings,
    LocalSettings,
    RaySettings,
    environment_secrets,
)
from otoscope.errors import ConfigError, EndpointError, OtoscopeError, counted
from otoscope.records import Failure, FailureKind, Reply

PLACE_SECONDS = 120.0
"""For an actor's process to start where there is a place for it."""
LOOK_SECONDS, JOIN_SECONDS = 5.0, 120.0
"""For a cluster's port to answer, and for Ray to join it or to start."""
LEAVE_SECONDS = 5.0
"""For Ray to be left: a cluster may be gone."""
FREE_SECONDS = 5.0
"""For a cluster to tell what is free: just after another run's end it may not know yet."""
TRIES = 6
"""For one question, where workers are lost through no fault of its own."""
DEATHS_EACH = 3
"""Deaths in a row for each worker, without any answer in between, at which the model is given up."""
STORE_BYTES = 1 << 30
"""Ray's memory for what is passed on, where it is ours: room for some batches of clips for each worker."""


# --- the cluster ------------------------------------------------------------------------------------------


class Needs(NamedTuple):
    """What each model takes of a cluster, and how many of them there are."""

    workers: int
    gpus: float
    cpus: int


class Cluster:
    """A Ray that was joined, or started, and the model that it has room for.

    ``find`` finds the model where it is called, and is sent to the workers with all that it holds; without
    it, that is left to :meth:`send`. Blocks. Raises ``ConfigError`` for a model that cannot be sent, a
    cluster that is not there, and one that has not what was asked for.
    """

    def __init__(
        self,
        settings: RaySettings,
        model: FunctionSettings | LocalSettings,
        *,
        batched: bool,
        find: Callable[[], PythonModel] | None = None,
    ) -> None:
        self.model = model
        self.batched = batched
        parcel = None if find is None else _parcel(model, find)
        self._left, self._gone = threading.Event(), threading.Event()
        self._own = False
        if not ray.is_initialized():
            joined: Future[None] = Future()
            # What Ray starts dies with the thread that started it: that is Linux's way of telling a parent.
            threading.Thread(
                target=self._stay, args=(settings, joined), name="otoscope ray", daemon=True
            ).start()
            try:
                joined.result(JOIN_SECONDS)
            except FutureTimeoutError:
                late = f"it did not happen within {JOIN_SECONDS:.0f} s"
                raise ConfigError(_not_joined(settings.address, late)) from None
        with contextlib.ExitStack() as unless_fit:
            unless_fit.callback(self.leave)
            self.needs = self._needs(settings)
            self._parcel = None if parcel is None else ray.put(parcel)
            unless_fit.pop_all()

    def send(self, find: Callable[[], PythonModel]) -> None:
        """Have the workers that are begun from now on find the model by this."""
        self._parcel = ray.put(_parcel(self.model, find))

    def actor(self) -> Any:
        """Begin a new actor, which has no model yet."""
        needs = self.needs
        # Over as many machines as there are; and whether it is begun anew is decided here.
        kept = {"scheduling_strategy": "SPREAD", "max_restarts": 0}
        return ray.remote(OtoscopeWorker).options(num_cpus=needs.cpus, num_gpus=needs.gpus, **kept).remote()

    def build(self, actor: Any) -> Any:
        """Have an actor build the model; return what will hold what went wrong, empty where nothing did."""
        return actor.build.remote(self._parcel)

    def leave(self) -> None:
        """Leave the cluster, or end the Ray that is ours. May be called again."""
        self._left.set()
        if self._own:
            self._gone.wait(LEAVE_SECONDS)

    def _stay(self, settings: RaySettings, joined: Future[None]) -> None:
        try:
            _join(settings)
        except BaseException as error:  # it is raised where the cluster was asked for
            with contextlib.suppress(Exception):
                ray.shutdown()
            joined.set_exception(error)
            return
        self._own = True
        joined.set_result(None)
        self._left.wait()
        try:
            ray.shutdown()
        finally:
            self._gone.set()

    def _needs(self, settings: RaySettings) -> Needs:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        needs = places(settings, nodes)
        ours = self._own and settings.address == LOCAL_RAY
        waited = 0.0
        while not ours and (room := self._room(needs)) < (settings.workers or 1):
            if waited >= FREE_SECONDS:
                raise ConfigError(_refused(settings, needs.gpus, nodes, ray.available_resources()))
            threading.Event().wait(0.25)
            waited += 0.25
        return needs if ours else needs._replace(workers=min(needs.workers, room))

    def _room(self, needs: Needs) -> int:
        """Return how many models the cluster has room for, with all else that is done on it."""
        free = ray.available_resources()
        rooms = [
            int(free.get(name, 0.0) / each + 1e-6)
            for name, each in (("GPU", needs.gpus), ("CPU", float(needs.cpus)))
            if each
        ]
        return min(rooms, default=needs.workers)


def places(settings: RaySettings, nodes: Sequence[Mapping[str, float]]) -> Needs:
    """Work out how many models fit on nodes with these resources.

    With GPUs, as many as these give; they take no CPU. Without, one for each CPU, or as many as were asked
    for, each with as many CPUs as there are for it. Raises ``ConfigError`` where too few of them fit.
    """
    gpus = settings.gpus
    if gpus is None:
        gpus = 1.0 if any(node.get("GPU", 0) >= 1 for node in nodes) else 0.0
    if gpus:
        each = math.floor(1 / gpus + 1e-6)
        fit = sum(
            int(node.get("GPU", 0)) * each if gpus < 1 else int(node.get("GPU", 0) / gpus) for node in nodes
        )
        cpus = 0
    else:
        wanted = settings.workers or sum(int(node.get("CPU", 0)) for node in nodes)
        most = max((int(node.get("CPU", 0)) for node in nodes), default=0)
        fits = {cpus: sum(int(node.get("CPU", 0)) // cpus for node in nodes) for cpus in range(1, most + 1)}
        cpus = max((cpus for cpus, fit in fits.items() if fit >= wanted), default=1)
        fit = fits.get(cpus, 0)
    if fit < (settings.workers or 1):
        raise ConfigError(_refused(settings, gpus, nodes))
    return Needs(settings.workers or fit, gpus, cpus)


def _refused(
    settings: RaySettings,
    gpus: float,
    nodes: Sequence[Mapping[str, float]],
    free: Mapping[str, float] | None = None,
) -> str:
    each = f"{gpus:g} GPU{'' if gpus == 1 else 's'}" if gpus else "1 CPU"
    asked = (
        f"{counted(settings.workers, 'model')} with {each} each" if settings.workers else f"{each} a model"
    )
    has = [_of(sum(node.get(name, 0) for node in nodes), name) for name in ("GPU", "CPU")]
    told = f"asked for {asked}, and Ray has {' and '.join(has)} on {counted(len(nodes), 'node')}"
    if free is not None:
        told += f", of which {' and '.join(_of(free.get(name, 0), name) for name in ('GPU', 'CPU'))} are free"
    flags = "--gpus-per-model and --ray-workers say what is asked for, --ray-address which cluster"
    return f"--engine ray: {told} ({flags})"


def _of(amount: float, name: str) -> str:
    return f"{amount:g} {name}{'' if amount == 1 else 's'}"


def _join(settings: RaySettings) -> None:
    """Join the cluster, or start one for this process alone. Raises ``ConfigError``."""
    local = settings.address == LOCAL_RAY
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": True}
    if not sys.stderr.isatty():
        os.environ.setdefault("RAY_COLOR_PREFIX", "0")
    if local:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # Whoever asks for more models than there are CPUs means it.
        cpus = max(_cpus(), settings.workers or 0)
        quiet.update(num_cpus=cpus, include_dashboard=False, object_store_memory=STORE_BYTES)
    if not local and settings.address != "auto":
        _look_for(settings.address)
    try:
        ray.init(address=settings.address, **quiet)
    except Exception as error:  # Ray has no class of its own for what keeps it from starting
        raise ConfigError(_not_joined(settings.address, _reason(error))) from None


def _look_for(address: str) -> None:
    """Look whether anybody answers there: Ray would wait for minutes. Raises ``ConfigError``."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), LOOK_SECONDS).close()
    except ValueError:
        raise ConfigError(f"ray_address: {address!r} must be host:port, or auto, or local") from None
    except OSError as error:
        raise ConfigError(_not_joined(address, f"nobody answers there ({error})")) from None


def _not_joined(address: str, reason: str) -> str:
    if address == LOCAL_RAY:
        return f"--engine ray: Ray could not be started here: {reason}"
    return (
        f"--ray-address {address}: the cluster could not be joined: {reason}. Otoscope has to run on a "
        "machine of that cluster, with the same versions of Ray and Python"
    )


def _reason(error: BaseException) -> str:
    """Return what lies behind an error of Ray's, in short."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = " ".join(str(error).split())
    if "AuthenticationError" in text or "InvalidAuthToken" in text:
        return "it wants its owner's token: set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN if it is not yours"
    return text[:500]


def _cpus() -> int:
    """Return how many CPUs this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# --- in a worker's process --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _About:
    """What an actor tells of where it is."""

    place: str
    """Machine and GPUs."""
    process: int
    node: str
    version: str
    """Of Otoscope."""


@dataclass(frozen=True, slots=True)
class _Parcel:
    """What a worker needs for finding the model as this process found it."""

    find: Callable[[], PythonModel]
    folder: str
    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Stopped:
    """An error that stops the run, on its way to whoever can stop it."""

    message: str


class OtoscopeWorker:
    """An actor: a model in a process of its own. Ray prints the class's name before what a model prints."""

    def __init__(self) -> None:
        self._threads: Threads | None = None

    async def about(self) -> _About:
        """Return where this is."""
        context = ray.get_runtime_context()
        gpus = ", ".join(f"GPU {name}" for name in ray.get_gpu_ids())
        place = ray.util.get_node_ip_address()
        return _About(f"{place}, {gpus}" if gpus else place, os.getpid(), context.get_node_id(), __version__)

    async def build(self, parcel: bytes) -> str:
        """Find and build the model; return what went wrong, empty where nothing did."""
        try:
            found = _found(parcel)
            # What its traceback could hold are the secrets of this process.
            secrets = tuple(environment_secrets(os.environ))
            settings = replace(found.settings, secrets=secrets, timeout=math.inf)
            self._threads = Threads(found._replace(settings=settings))
            await self._threads.start()
        except OtoscopeError as error:
            return str(error)
        except Exception as error:  # a model's parts may raise what they like as they are unpacked
            return f"the model could not be unpacked there: {type(error).__name__}: {error}"
        return ""

    async def call(self, questions: Sequence[AudioQuestion]) -> Sequence[Reply | Failure] | _Stopped:
        """Put a batch to the model."""
        if self._threads is None:
            raise RuntimeError("a model is asked that was not built")
        try:
            return await self._threads.call(questions)
        except OtoscopeError as error:
            return _Stopped(str(error))


def _found(parcel: bytes) -> PythonModel:
    """Find the model, from where the command was started if there is such a folder on this machine, too."""
    # As Ray unpacks whatever an actor is sent; apart from that, what is wrong with it can be told.
    unpacked: _Parcel = cloudpickle.loads(parcel)
    if Path(unpacked.folder).is_dir():
        os.chdir(unpacked.folder)
    sys.path += [place for place in unpacked.path if place not in sys.path]
    return unpacked.find()


def _parcel(model: FunctionSettings | LocalSettings, find: Callable[[], PythonModel]) -> bytes:
    """Return what a worker finds the model by. Raises ``ConfigError`` for an object that cannot be sent."""
    here = str(Path.cwd())
    path = tuple(dict.fromkeys([here, *(place for place in sys.path if place)]))
    try:
        with _by_value(getattr(model, "target", None)):
            return bytes(cloudpickle.dumps(_Parcel(find, here, path)))
    except Exception as error:  # an object may hold whatever cannot be sent, and raise whatever it likes
        raise ConfigError(
            f"--engine ray: the model {model.name} cannot be sent to another process: "
            f"{type(error).__name__}: {error}. Give a class, which is built there with model_args, or "
            "name it by file.py:NAME"
        ) from None


@contextlib.contextmanager
def _by_value(target: Any) -> Iterator[None]:
    """Have the modules that an object's code lies in sent along, unless they are installed."""
    inner = getattr(target, "func", target)
    owner = getattr(inner, "__self__", inner)
    names = {getattr(one, "__module__", None) for one in (inner, owner, type(owner))}
    modules = [sys.modules[name] for name in names if name in sys.modules and name != "__main__"]
    sent = [module for module in modules if not _installed(getattr(module, "__file__", None))]
    for module in sent:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in sent:
            cloudpickle.unregister_pickle_by_value(module)


def _installed(file: str | None) -> bool:
    """Whether a module's file lies where every machine of a cluster has the same."""
    if file is None:
        return True
    path = Path(file).resolve()
    ours = Path(__file__).resolve().parent.parent
    return any(path.is_relative_to(place) for place in (Path(sys.prefix), Path(sys.base_prefix), ours))


# --- in this process --------------------------------------------------------------------------------------


class _Worker:
    """An actor that has built its model."""

    def __init__(self, actor: Any, about: _About, name: str) -> None:
        self.actor = actor
        self.node = about.node
        self.name = name
        self.busy = 0
        self.reserved = False
        """Whether the call that it is in must be its only one."""
        self.ended_by_us = False


class _Seat:
    """A place of the cluster: a worker, or none while one is built; for good once that cannot be done."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.worker: _Worker | None = None
        self.given_up = False


class _LostError(Exception):
    """A worker was lost with what it was asked."""

    def __init__(self, reason: str, *, suspect: bool) -> None:
        super().__init__(reason)
        self.suspect = suspect
        """Whether what it was asked may have been the reason."""


class RayWorkers:
    """Puts batches to the models that the actors of a cluster hold.

    A batch goes to the worker that has the fewest, and none waits at a worker: what is not put yet is not in
    Ray's memory. When a worker dies, each question that it had is put once more, alone, to another one; one
    that two workers died of is a failure. A call that does not return in time costs its worker, too. The
    model of a worker that was lost is built anew, while the others go on.
    """

    def __init__(self, cluster: Cluster, tell: Callable[[str], None]) -> None:
        settings = cluster.model
        self._cluster = cluster
        self._tell = tell
        self._name, self._role, self._timeout = settings.name, settings.role, settings.timeout
        many = cluster.needs.workers
        self.batch, self._each = (settings.calls, 1) if cluster.batched else (1, settings.calls)
        self.calls = many * self._each
        self._seats = [_Seat(number + 1) for number in range(many)]
        self._queue: deque[tuple[asyncio.Future[_Worker], bool]] = deque()
        self._filling: set[asyncio.Task[None]] = set()
        self._ready: asyncio.Event | None = None
        self._reason = ""
        self._answered = False
        self._hung = self._died = 0
        self._closed = False

    async def start(self) -> None:
        """Wait until one model is built. Raises ``EndpointError`` when none can be."""
        if self._ready is None:
            self._ready = asyncio.Event()
            for seat in self._seats:
                self._fill_soon(seat)
        await self._ready.wait()
        if all(seat.given_up for seat in self._seats):
            raise self._nobody()

    async def call(self, batch: Sequence[AudioQuestion]) -> Sequence[Reply | Failure]:
        """Put a batch to a model. ``EndpointError`` when no worker is left, or the model is given up."""
        await self.start()
        with contextlib.suppress(_LostError):
            return await self._put(batch, alone=False)
        return [await self._again(question) for question in batch]

    async def close(self) -> None:
        """Let the workers end, whatever they are in."""
        self._closed = True
        for task in self._filling:
            task.cancel()
        await asyncio.gather(*self._filling, return_exceptions=True)
        for seat in self._seats:
            if seat.worker is not None:
                await asyncio.to_thread(_end, seat.worker.actor)

    # --- asking -------------------------------------------------------------------------------------------

    async def _again(self, question: AudioQuestion) -> Reply | Failure:
        """Put one question once more, after its worker was lost, until it cannot be for another reason."""
        deaths, tries = 1, 1
        while True:
            tries += 1
            try:
                (result,) = await self._put([question], alone=True)
            except _LostError as lost:
                deaths += lost.suspect
                if deaths >= 2 and lost.suspect:
                    told = (
                        f"two workers were lost while they were asked this, the second nothing else: {lost}"
                    )
                    return Failure(FailureKind.SERVER_CRASH, told, tries)
                if tries >= TRIES:
                    told = f"{tries} workers were lost while they were asked this: {lost}"
                    return Failure(FailureKind.SERVER_ERROR, told, tries)
            else:
                return replace(result, attempts=tries)

    async def _put(self, batch: Sequence[AudioQuestion], *, alone: bool) -> list[Reply | Failure]:
        worker = await self._take(alone=alone)
        try:
            return await self._call(worker, batch)
        finally:
            worker.busy -= 1
            worker.reserved = False
            self._serve()

    async def _call(self, worker: _Worker, batch: Sequence[AudioQuestion]) -> list[Reply | Failure]:
        packed = await asyncio.to_thread(lambda: [_with_bytes(question) for question in batch])
        sent = [one for one in packed if not isinstance(one, Failure)]
        try:
            # In a thread: where the store is full, Ray waits.
            put = asyncio.to_thread(worker.actor.call.remote, sent)
            got = await asyncio.wait_for(_result(put), self._timeout) if sent else []
        except asyncio.TimeoutError:
            return await self._timed_out(worker, batch)
        except RayTaskError as error:
            said = str(error).strip().rpartition("\n")[2]
            failed = Failure(FailureKind.MODEL_ERROR, f"the answer could not be sent back: {said}", 1)
            return [failed for _ in batch]
        except RayError as error:
            raise await self._lost(worker, error) from None
        if isinstance(got, _Stopped):
            raise EndpointError(self._role, got.message)
        self._hung = self._died = 0
        self._answered = True
        results = iter(got)
        return [one if isinstance(one, Failure) else _by(worker, next(results)) for one in packed]

    async def _timed_out(self, worker: _Worker, batch: Sequence[AudioQuestion]) -> list[Reply | Failure]:
        self._hung += 1
        late = f"did not return within {self._timeout:g} s (--timeout)"
        worker.ended_by_us = True
        await asyncio.to_thread(_end, worker.actor)
        self._leave_seat(worker, f"a call {late}, and it was ended")
        if self._hung >= HUNG_LIMIT:
            raise EndpointError(
                self._role,
                f"{self._hung} calls in a row of {self._name} {late}. What was done is stored: put it right, "
                "then resume the run",
            )
        message = f"the call {late}; its worker was ended, and the model built anew"
        return [Failure(FailureKind.TIMEOUT, message, 1) for _ in batch]

    async def _lost(self, worker: _Worker, error: RayError) -> _LostError:
        """Return what a worker was lost by, and have its place filled again."""
        node_lives = await asyncio.to_thread(_lives, worker.node)
        suspect = node_lives and not worker.ended_by_us and not self._closed
        reason = _why(error) if node_lives else "its machine was lost"
        if self._leave_seat(worker, reason) and suspect:
            self._died += 1
        await asyncio.to_thread(_end, worker.actor)
        if self._died >= DEATHS_EACH * len(self._seats):
            raise EndpointError(
                self._role,
                f"{self._died} workers of {self._name} in a row were lost without any answer, the last one: "
                f"{reason}. What was done is stored: put it right, then resume the run",
            )
        return _LostError(reason, suspect=suspect)

    # --- who is asked -------------------------------------------------------------------------------------

    async def _take(self, *, alone: bool) -> _Worker:
        """Wait for a worker that can take a call; ``alone``: one that is in no other call, and gets none."""
        turn: asyncio.Future[_Worker] = asyncio.get_running_loop().create_future()
        self._queue.append((turn, alone))
        self._serve()
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                turn.result().busy -= 1
            raise

    def _serve(self) -> None:
        """Give those that wait, in their order, a worker each."""
        while self._queue:
            turn, alone = self._queue[0]
            room = 1 if alone else self._each
            workers = [seat.worker for seat in self._seats if seat.worker is not None]
            free = [one for one in workers if one.busy < room and not one.reserved]
            if not turn.done() and free:
                worker = min(free, key=lambda one: one.busy)
                worker.busy += 1
                worker.reserved = alone
                turn.set_result(worker)
            elif not turn.done() and (self._closed or all(seat.given_up for seat in self._seats)):
                turn.set_exception(self._nobody())
            elif not turn.done():
                return
            self._queue.popleft()

    def _nobody(self) -> EndpointError:
        if not self._answered:
            return EndpointError(self._role, self._reason)
        return EndpointError(
            self._role,
            f"no worker of {self._name} is left. The last one: {self._reason}\nWhat was done is stored: put "
            "it right, then resume the run",
        )

    # --- the workers --------------------------------------------------------------------------------------

    def _leave_seat(self, worker: _Worker, reason: str) -> bool:
        """Have a lost worker's place filled again, and tell of it; ``False`` where that was done before."""
        seat = next((seat for seat in self._seats if seat.worker is worker), None)
        if seat is None:
            return False
        seat.worker = None
        if not self._closed:
            self._tell(f"{worker.name} was lost: {reason}. What it was asked goes to another one")
            self._fill_soon(seat)
        return True

    def _fill_soon(self, seat: _Seat) -> None:
        task = asyncio.ensure_future(self._fill(seat))
        self._filling.add(task)
        task.add_done_callback(self._filling.discard)

    async def _fill(self, seat: _Seat) -> None:
        """Have a model built in a place, or give the place up."""
        name, reason = f"worker {seat.number} of {len(self._seats)}", ""
        for _ in range(HUNG_LIMIT):
            actor = await asyncio.to_thread(self._cluster.actor)
            try:
                about: _About = await asyncio.wait_for(_result(actor.about.remote()), PLACE_SECONDS)
                if about.version != __version__:
                    reason = f"{about.place} has Otoscope {about.version}, and this is {__version__}"
                    break
                reason = await _result(self._cluster.build(actor))
                if reason:
                    break
                name = f"{name} ({about.place}, process {about.process})"
                seat.worker = _Worker(actor, about, name)
                self._tell(f"{name} is ready")
                break
            except asyncio.TimeoutError:
                reason = f"Ray found no place for it, or could not start it, within {PLACE_SECONDS:.0f} s"
                break
            except RayError as error:
                reason = f"the model {self._name} could not be built, its process did not live: {_why(error)}"
            finally:
                if seat.worker is None:
                    _end(actor)
        if seat.worker is None:
            seat.given_up = True
            self._reason = reason
            if not all(seat.given_up for seat in self._seats):
                self._tell(f"{name} is given up: {reason.rstrip()}")
        if self._ready is not None and (
            seat.worker is not None or all(seat.given_up for seat in self._seats)
        ):
            self._ready.set()
        self._serve()


async def _result(pending: Any) -> Any:
    """Return what a call of an actor returns, or raise what it raises."""
    reference = await pending if asyncio.iscoroutine(pending) else pending
    return await asyncio.wrap_future(reference.future())


def _with_bytes(question: AudioQuestion) -> AudioQuestion | Failure:
    """Return a question with a copy of its clip, which has its bytes along, or why these cannot be had."""
    try:
        return question._replace(audio=copy.copy(question.audio))
    except OSError as error:
        return Failure(FailureKind.UNREADABLE_AUDIO, f"cannot be read: {error}", 1)


def _by(worker: _Worker, result: Reply | Failure) -> Reply | Failure:
    """Return a result with who gave it."""
    if isinstance(result, Reply) and result.endpoint in (None, "python"):
        return replace(result, endpoint=f"ray {worker.name.rpartition(', process')[0]})")
    return result


def _end(actor: Any) -> None:
    """End an actor's process, whatever it is in; one that has ended already too."""
    with contextlib.suppress(Exception):  # the cluster may be gone
        ray.kill(actor)


def _lives(node: str) -> bool:
    """Whether a machine is still part of the cluster."""
    with contextlib.suppress(Exception):  # the cluster may be gone, which says nothing of the machine
        return any(one["NodeID"] == node and one["Alive"] for one in ray.nodes())
    return True


def _why(error: RayError) -> str:
    """Return in short what Ray says that an actor was lost by."""
    text = str(error)
    if (
        "OUT_OF_MEMORY" in text
        or "running low on memory" in text
        or isinstance(error, ray.exceptions.OutOfMemoryError)
    ):
        return "its machine ran out of memory, and Ray ended it"
    if found := re.search(r"exit detail: (.+?)(?: Some common causes|\n|$)", text, re.DOTALL):
        return f"its process ended ({' '.join(found[1].split())[:200].rstrip('. ')})"
    return " ".join(text.split())[:300]
