"""A model written in Python: how it is found, what it must look like, and how questions are put to it.

::

    def answer(audio: AudioClip, question: str) -> str                 one at a time
    def answer_batch(questions: list[AudioQuestion]) -> list[str]      a batch at a time, in its order

Either may be ``async``, and either may be a method, of an object or of a class that is built once. Nothing
here knows of threads, event loops of ours, or processes: :meth:`Built.answer` is what any of them calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib
import importlib.util
import inspect
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, NamedTuple

from otoscope.audio.heard import AudioClip, DamagedClipError
from otoscope.config import FunctionSettings, LocalSettings
from otoscope.config.functions import METHODS
from otoscope.errors import ConfigError, OtoscopeError, did_you_mean
from otoscope.records import Failure, FailureKind, Reply
from otoscope.secrecy import forms, without

JUDGE_FORM = "a judge is def judge(prompt: str) -> str, or async def, or an object that is called so"
FORM = (
    "a model is def answer(audio: AudioClip, question: str) -> str, or def answer_batch(questions: list) -> "
    "list for a batch at a time; async def will do; or a class or object with one of them as its method"
)
_OUTSIDE = "the audio cannot be used: "
_TRACEBACK_CHARACTERS = 8_000
"""Of a traceback that is kept: the last ones, where it says what happened."""


class AudioQuestion(NamedTuple):
    """One question about one clip."""

    audio: AudioClip | None
    """``None`` where the question is asked alone (``--control no-audio``)."""
    question: str


_Put = Callable[[Sequence[AudioQuestion]], Sequence[Any]]
"""Makes of a batch what the model is called with."""


class PythonModel(NamedTuple):
    """A model that was found and looks right, but is not built yet."""

    settings: FunctionSettings | LocalSettings
    build: Callable[[], Built]
    """Builds it, which may take minutes. Raises whatever its class raises."""
    batched: bool
    """Whether it takes a batch at a time."""
    asynchronous: bool
    replaceable: bool
    """Whether another one can take its place when a call does not come back: a class is built anew, and a
    function has nothing of its own that two calls could share."""


class Built:
    """A model that can be asked. Who calls it sees to it that not more ask at a time than it can bear."""

    def __init__(
        self, settings: FunctionSettings | LocalSettings, call: Callable[..., Any], put: _Put
    ) -> None:
        self._name = settings.name
        self._secrets = forms(settings.secrets)
        self._call = call
        self._put = put
        self._method = getattr(call, "__name__", "the model")

    def answer(self, batch: Sequence[AudioQuestion]) -> list[Reply | Failure]:
        """Answer a batch, of one for a model that takes one at a time. Blocks.

        Whatever the model raises becomes Failures, but for ``OtoscopeError``, which stops the run.
        """
        return self._caught(batch, lambda: self._call(*self._put(batch)), time.time())

    async def answer_async(self, batch: Sequence[AudioQuestion]) -> list[Reply | Failure]:
        """Answer a batch by a model that is ``async``, likewise."""
        started_at, start = time.time(), time.perf_counter()
        call = asyncio.ensure_future(self._awaited(batch))
        try:
            # Apart, so that what is cancelled in there is not taken for us being cancelled.
            await asyncio.wait((call,))
        except asyncio.CancelledError:
            call.cancel()
            raise
        seconds = time.perf_counter() - start
        return self._caught(batch, call.result, started_at, seconds)

    async def _awaited(self, batch: Sequence[AudioQuestion]) -> Any:
        return await self._call(*self._put(batch))

    def failure(self, error: BaseException) -> Failure:
        """Return what a model raised as the Failure of a sample."""
        if isinstance(error, DamagedClipError):
            return Failure(FailureKind.BAD_AUDIO, _OUTSIDE + str(error), 1)
        trace = _of_the_model(error.__traceback__)
        # Which also copes with an error that cannot say what it is.
        told = traceback.TracebackException(type(error), error, trace)
        said = " ".join(str(told).split())[:500]
        where = ""
        if trace is not None:
            last = traceback.extract_tb(trace)[-1]
            where = f" ({Path(last.filename).name}, line {last.lineno})"
        message = f"the model raised {type(error).__name__}{': ' if said else ''}{said}{where}"
        text = "".join(told.format())
        return Failure(
            FailureKind.MODEL_ERROR,
            without(message, self._secrets),
            1,
            traceback=without(text, self._secrets)[-_TRACEBACK_CHARACTERS:],
        )

    def _caught(
        self,
        batch: Sequence[AudioQuestion],
        call: Callable[[], Any],
        started_at: float,
        seconds: float | None = None,
    ) -> list[Reply | Failure]:
        """Return what a call amounts to; ``seconds`` is how long it took, where that is over."""
        start = time.perf_counter()
        try:
            returned = call()
            took = time.perf_counter() - start if seconds is None else seconds
            # What it returned is its own, too: it is looked at as carefully as it was called.
            return self._replies(batch, returned, started_at, took)
        except OtoscopeError:
            raise
        except BaseException as error:  # a model may raise what it likes; even SystemExit is its own affair
            return [self.failure(error) for _ in batch]

    def _replies(
        self, batch: Sequence[AudioQuestion], returned: Any, started_at: float, seconds: float
    ) -> list[Reply | Failure]:
        if self._put is not a_batch:
            returned = [returned]
        elif isinstance(returned, (str, bytes)) or not isinstance(returned, Sequence):
            why = f"{self._method} returned {_told(returned)}, not a list of texts"
            if self._method != "answer_batch":
                why += " (it takes one thing, so it is given a batch, a list)"
            returned = [_wrong(why)] * len(batch)
        elif len(returned) != len(batch):
            many = f"{self._method} returned {len(returned)} answers to {len(batch)} questions"
            returned = [_wrong(f"{many}: which belongs to which is not known")] * len(batch)
        return [self._reply(one, started_at, seconds) for one in returned]

    def _reply(self, returned: Any, started_at: float, seconds: float) -> Reply | Failure:
        match returned:
            case Failure():
                return replace(returned, kind=FailureKind(returned.kind))
            case Reply():
                return self._checked(returned, started_at, seconds)
            case str():
                return Reply(
                    text=str.__str__(returned),
                    finish_reason="stop",
                    model=self._name,
                    endpoint="python",
                    started_at=started_at,
                    latency=seconds,
                )
            case BaseException():
                return self.failure(returned)
            case _:
                return _wrong(f"the model returned {_told(returned)}, and must return text (str)")

    def _checked(self, reply: Reply, started_at: float, seconds: float) -> Reply | Failure:
        """Return a model's own Reply once it can be stored, with what it does not say filled in."""
        for name in ("text", "reasoning", "finish_reason", "model", "endpoint"):
            value = getattr(reply, name)
            if not isinstance(value, str | None):
                return _wrong(f"the model returned a Reply whose {name} is {_told(value)}, and no text (str)")
        usage = {str(name): int(count) for name, count in (reply.usage or {}).items()}
        return replace(
            reply,
            usage=usage or None,
            model=reply.model or self._name,
            endpoint=reply.endpoint or "python",
            started_at=reply.started_at or started_at,
            latency=reply.latency or seconds,
            parameters=json.loads(json.dumps(dict(reply.parameters), default=str)),
        )


def a_batch(batch: Sequence[AudioQuestion]) -> Sequence[Any]:
    """Put all of it at once."""
    return [list(batch)]


def one(batch: Sequence[AudioQuestion]) -> Sequence[Any]:
    """Put clip and question of the only one."""
    return batch[0]


def a_prompt(batch: Sequence[AudioQuestion]) -> Sequence[Any]:
    """Put a judge's prompt."""
    return [batch[0].question]


def find(settings: FunctionSettings) -> PythonModel:
    """Find a model, importing what it lies in, and check what it looks like.

    Raises ``ConfigError`` for a module or file that cannot be imported, a name that it does not have, and
    something that cannot be called as a model is.
    """
    target = settings.target if settings.spec is None else _imported(settings.spec)
    name = settings.name
    if settings.role == "judge":
        return _judge(settings, target)
    if isinstance(target, type):
        method = _method(target)
        # Of a class itself, "__call__" is how it is built.
        call = next((vars(one)[method] for one in target.__mro__ if method in vars(one)), None)
        if not inspect.isroutine(call):
            raise ConfigError(f"--model {name}: the class has no method answer or answer_batch: {FORM}")
        _check_arguments(name, target, settings.arguments)
        put = _how(name, method, call, itself=1)

        def build() -> Built:
            return Built(settings, getattr(target(**settings.arguments), method), put)

        return PythonModel(
            settings, build, put is a_batch, inspect.iscoroutinefunction(call), replaceable=True
        )
    if inspect.isroutine(target) or isinstance(target, partial):
        method, call = getattr(target, "__name__", ""), target
    else:
        method = _method(target)
        call = getattr(target, method, None)
    if not callable(call):
        raise ConfigError(f"--model {name}: {_told(target)} cannot be called: {FORM}")
    if settings.arguments:
        raise ConfigError(f"--model-args: {name} is no class that could be built with them: leave them out")
    put = _how(name, method, call)
    return PythonModel(
        settings,
        lambda: Built(settings, call, put),
        put is a_batch,
        _is_async(call),
        replaceable=inspect.isfunction(target),
    )


def _judge(settings: FunctionSettings, target: Any) -> PythonModel:
    if isinstance(target, type) or not callable(target) or not _fits(target, 1):
        raise ConfigError(f"the judge {settings.name} cannot be called as a judge is: {JUDGE_FORM}")
    return PythonModel(
        settings,
        lambda: Built(settings, target, a_prompt),
        False,
        _is_async(target),
        replaceable=inspect.isfunction(target),
    )


def _is_async(call: Any) -> bool:
    of_object = getattr(call, "__call__", None)  # noqa: B004 (not whether it can be called, but how)
    return inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(of_object)


def _method(target: Any) -> str:
    """Return the name of the method by which an object, or what a class builds, answers."""
    return next((one for one in METHODS if callable(getattr(target, one, None))), "__call__")


def _how(name: str, method: str, call: Callable[..., Any], itself: int = 0) -> _Put:
    """Return how questions are put. Raises ``ConfigError`` for what takes no list, nor clip and question.

    ``itself`` is 1 for a method that is looked at in its class.
    """
    if method != "answer_batch" and _fits(call, 2 + itself):
        return one
    if method != "answer" and _fits(call, 1 + itself):
        return a_batch
    shown = inspect.signature(call)
    raise ConfigError(f"--model {name}: {method or 'it'}{shown} cannot be called as a model is: {FORM}")


def _fits(call: Callable[..., Any], count: int) -> bool:
    """Whether it can be called with so many things. Of what is written in C nothing may be known."""
    try:
        signature = inspect.signature(call)
    except (TypeError, ValueError):
        return True
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True


def _check_arguments(name: str, target: type, arguments: Any) -> None:
    try:
        inspect.signature(target).bind(**arguments)
    except TypeError as error:
        given = ", ".join(arguments) or "none"
        raise ConfigError(
            f"--model-args: {name}{inspect.signature(target)} cannot be built with those given ({given}): "
            f"{error}"
        ) from None
    except ValueError:
        return  # of what is written in C nothing may be known


# --- finding it -------------------------------------------------------------------------------------------


def _imported(spec: str) -> Any:
    place, _, attribute = spec.rpartition(":")
    try:
        module = _module(place)
    except ConfigError:
        raise
    except BaseException as error:  # a file may raise what it likes as it is imported; even sys.exit() counts
        trace = _of_the_model(error.__traceback__)
        lines = "".join(traceback.format_exception(type(error), error, trace)).rstrip()
        raise ConfigError(f"--model {spec}: {place} cannot be imported:\n{lines}") from None
    found: Any = module
    for name in attribute.split("."):
        if not hasattr(found, name):
            known = [n for n in vars(found) if not n.startswith("_")]
            hint = did_you_mean(name, known)
            raise ConfigError(f"--model {spec}: {place} has no {name!r}{hint}")
        found = getattr(found, name)
    return found


def _module(place: str) -> ModuleType:
    """Import a module by its name, from where this was started too, or a file; raises what it raises."""
    if not place.endswith(".py"):
        here = str(Path.cwd())
        if here not in sys.path:
            sys.path.insert(0, here)
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            if error.name is None or not (place == error.name or place.startswith(f"{error.name}.")):
                raise
            raise ConfigError(
                f"--model {place}:...: there is no module {error.name!r} here ({here}) or among the "
                "installed ones. A file is given by its path: --model path/to/file.py:NAME"
            ) from None
    path = Path(place).expanduser().resolve()
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if (known := _files.get(path)) is not None and known.digest == digest:
        return known.module
    _forget_files()
    # What lies beside it can be imported, as where the file is run.
    sys.path.insert(0, str(path.parent))
    name = path.stem if path.stem not in sys.modules else f"otoscope_model_{path.stem}"
    loaded = importlib.util.spec_from_file_location(name, path)
    if loaded is None or loaded.loader is None:
        raise ConfigError(f"--model {place}: is no Python file")
    module = importlib.util.module_from_spec(loaded)
    before = set(sys.modules)
    sys.modules[name] = module
    _files[path] = _File(module, digest, before)
    with contextlib.ExitStack() as unless_loaded:
        unless_loaded.callback(_forget_files)
        loaded.loader.exec_module(module)
        unless_loaded.pop_all()
    return module


class _File(NamedTuple):
    """A file of Python that was loaded as a model."""

    module: ModuleType
    digest: str
    """SHA-256 (hex) of what was loaded, which the file may no longer be."""
    before: set[str]
    """The names of modules that were there before."""


_files: dict[Path, _File] = {}
"""The model's file whose neighbours can be imported now: one at most, so that no model gets another's."""


def _forget_files() -> None:
    """Have nothing imported any more that a model's file brought from its own folder, nor from there."""
    for path, file in _files.items():
        folder = str(path.parent)
        for name in set(sys.modules) - file.before:
            place = getattr(sys.modules[name], "__file__", None) or ""
            if sys.modules[name] is file.module or place.startswith(folder + os.sep):
                del sys.modules[name]
        if folder in sys.path:
            sys.path.remove(folder)
    _files.clear()
    importlib.invalidate_caches()


def _of_the_model(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback from where it leaves our own code and the import's machinery."""
    ours = str(Path(__file__))
    while trace is not None and trace.tb_next is not None:
        name = trace.tb_frame.f_code.co_filename
        if name != ours and not name.startswith("<frozen importlib"):
            break
        trace = trace.tb_next
    return trace


def _wrong(message: str) -> Failure:
    return Failure(FailureKind.MODEL_ERROR, message, 1)


def _told(value: Any) -> str:
    return "None" if value is None else f"something of type {type(value).__name__}"
