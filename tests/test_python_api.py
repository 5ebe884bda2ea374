"""The API for Python: objects or names, events, running event loops; ``make check`` checks its types."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.util
import signal
import subprocess
import sys
import threading
import time
import typing
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from typing_extensions import Self, assert_type

import otoscope
from otoscope import (
    AudioClip,
    AudioQuestion,
    Event,
    Reply,
    Run,
    TaskConfig,
    evaluate,
    evaluate_async,
    run_task,
)
from otoscope.config import TaskSettings
from otoscope.errors import ConfigError
from otoscope.records import Answered, Judged, Notice, RunStarted
from tests.scripted_server import Response, ScriptedServer, Seen, scripted_answers
from tests.support import REPOSITORY, environment, lines, write_data


def answer(audio: AudioClip, question: str) -> str:
    """Answer a question."""
    return f"{audio.seconds:g} s: {question}"


def judge(prompt: str) -> str:
    """Prefer whatever is longer."""
    return "5 7" if len(prompt) % 2 else "7 5"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a data set with one sample of each task."""
    return write_data(tmp_path / "data", each=1)


def test_objects_are_evaluated_without_any_server(tmp_path: Path, data: Path) -> None:
    """A function for the model and one for the judge; what comes back is a whole run."""
    run = evaluate(model=answer, judge=judge, data=data, run_dir=tmp_path / "run", label="mine")
    assert run.summary.counts["scored"] == 8
    assert run.summary.average.gpt_score is not None
    assert run.summary.label == "mine"
    assert otoscope.load_run(run.path) == run


def test_names_are_as_good(tmp_path: Path, data: Path) -> None:
    """A served model and a served judge, by name; other settings are those of TaskConfig."""
    with ScriptedServer() as server:
        run = evaluate(
            model="scripted-model",
            api_url=server.url,
            judge="scripted-judge",
            judge_model_args={"api_url": server.url, "api_key": "EMPTY"},
            data=str(data),
            run_dir=tmp_path / "run",
            dataset_args={"air_bench_chat": {"extra_params": {"tasks": ["speech"]}}},
        )
    assert (run.summary.model, run.summary.judge) == ("scripted-model", "scripted-judge")
    assert run.summary.counts["scored"] == 2


def test_events_tell_of_the_progress(tmp_path: Path, data: Path) -> None:
    """Each answer and each verdict, as they are stored."""
    events: list[Event] = []
    evaluate(model=answer, judge=judge, data=data, run_dir=tmp_path / "run", on_event=events.append)
    assert isinstance(events[0], RunStarted)
    assert sum(isinstance(event, Answered) for event in events) == 8
    assert sum(isinstance(event, Judged) for event in events) == 16


def test_it_works_inside_of_a_running_event_loop(tmp_path: Path, data: Path) -> None:
    """As a notebook has one: the call blocks that cell, and the asynchronous one lets the loop go on."""

    async def notebook() -> tuple[Run, Run, int]:
        blocking = evaluate(model=answer, no_judge=True, data=data, run_dir=tmp_path / "a")
        turns = 0

        async def other_work() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0.001)

        other = asyncio.ensure_future(other_work())
        awaited = await evaluate_async(model=answer, judge=judge, data=data, run_dir=tmp_path / "b")
        other.cancel()
        return blocking, awaited, turns

    blocking, awaited, turns = asyncio.run(notebook())
    assert blocking.summary.counts["pending"] == 8
    assert awaited.summary.counts["scored"] == 8
    assert turns > 5


def test_cancelling_stops_it_and_the_same_call_goes_on(tmp_path: Path, data: Path) -> None:
    """What was answered before is not asked again, nor is what was being answered."""
    asked: list[str] = []
    third, go_on = threading.Event(), threading.Event()

    def slow(audio: AudioClip, question: str) -> str:
        asked.append(question)
        if len(asked) == 3:
            third.set()
            go_on.wait(10)
        return f"{audio.seconds}"

    def hear(event: Event) -> None:
        if isinstance(event, Notice) and event.message.startswith("stopping"):
            go_on.set()

    async def cancelled() -> None:
        task = asyncio.ensure_future(
            evaluate_async(model=slow, data=data, run_dir=tmp_path / "run", no_judge=True, on_event=hear)
        )
        await asyncio.to_thread(third.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    before = len(asked)
    run = evaluate(model=slow, data=data, run_dir=tmp_path / "run", no_judge=True)
    assert run.summary.counts["pending"] == 8
    assert sum(outcome.answer is not None for outcome in run.outcomes()) == 8
    assert len(asked) == before + 5


# --- stopped in a script or a notebook --------------------------------------------------------------------

posix_only = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
SCRIPT = """
import asyncio, signal, sys
from otoscope import evaluate, evaluate_async, judge_runs

way, url, data, folder = sys.argv[1:]
judge = {"model_id": "scripted-judge", "api_url": url, "api_key": "none"}
given = {"model": "scripted-model", "api_url": url, "data": data, "run_dir": folder + "/run"}


def tell(event):
    print(getattr(event, "message", ""), flush=True)


async def in_a_loop():
    if way == "kernel":
        # As a notebook's kernel has it while a cell is run: an exception, not asyncio's cancellation.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    evaluate(**given, judge_model_args=judge, on_event=tell)


if way == "judge_runs":
    evaluate(**given, no_judge=True)
    judge_runs([folder + "/run"], {"judge_model_args": judge}, on_event=tell)
elif way == "evaluate":
    evaluate(**given, judge_model_args=judge, on_event=tell)
elif way == "evaluate_async":
    asyncio.run(evaluate_async(**given, judge_model_args=judge, on_event=tell))
else:
    asyncio.run(in_a_loop())
print("went on")
"""


class Stopped:
    """A script whose judge has answered one of 48 samples, and leaves calls in flight until ``go_on``."""

    def __init__(self, way: str, folder: Path) -> None:
        data = write_data(folder / "data", each=6)
        self.go_on = threading.Event()
        self.server = ScriptedServer(self._reply)
        self._verdicts = folder / "run" / "verdicts.jsonl"
        self._begin = [sys.executable, "-c", SCRIPT, way, "{url}", str(data), str(folder)]

    def __enter__(self) -> Self:
        self.server.__enter__()
        words = [word.replace("{url}", self.server.url) for word in self._begin]
        self.process = subprocess.Popen(
            words, env=environment(), cwd=REPOSITORY, encoding="utf-8",
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        # One that does not stop would have the test wait for its output for ever.
        self._watchdog = threading.Timer(60, self.process.kill)
        self._watchdog.start()
        until(lambda: len(self.asked()) > 5)
        return self

    def __exit__(self, *_: object) -> None:
        self._watchdog.cancel()
        self.go_on.set()
        self.process.kill()
        self.process.communicate()
        self.server.__exit__(None, None, None)

    def _reply(self, seen: Seen, attempt: int) -> Response:
        reply = scripted_answers()(seen, attempt)
        held = seen.kind == "judge" and len(self.asked()) > 2
        return dataclasses.replace(reply, after=self.go_on) if held else reply

    def asked(self) -> list[Seen]:
        """Return what the judge was asked."""
        return [seen for seen in list(self.server.requests) if seen.kind == "judge"]

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        self.process.send_signal(signal.SIGINT)

    def until_it_says(self, start: str) -> None:
        """Wait until the run tells something that begins so."""
        assert self.process.stdout is not None
        assert any(line.startswith(start) for line in self.process.stdout)

    def ended(self, seconds: float) -> str:
        """Wait for the process to end by ``KeyboardInterrupt``; return what else it printed."""
        printed, complaint = self.process.communicate(timeout=seconds)
        assert complaint.rstrip().endswith("KeyboardInterrupt"), complaint
        assert self.process.returncode == -signal.SIGINT
        return printed

    def stored(self) -> int:
        """Return how many verdicts are stored."""
        return len(lines(self._verdicts))


def until(condition: Callable[[], bool], seconds: float = 30) -> None:
    """Wait for something to become true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


WAYS = [
    "evaluate",
    "judge_runs",
    "kernel",
    *(
        # Before Python 3.11, asyncio's loops do not tell what runs in them of Ctrl-C.
        pytest.param(way, marks=pytest.mark.skipif(sys.version_info < (3, 11), reason="asyncio's Ctrl-C"))
        for way in ("evaluate_async", "loop")
    ),
]


@posix_only
@pytest.mark.parametrize("way", WAYS)
def test_ctrl_c_in_a_script_stores_every_call_in_flight(tmp_path: Path, way: str) -> None:
    """What the judge was asked is paid for: it gets its time, is stored, and nothing more is asked."""
    with Stopped(way, tmp_path) as script:
        script.interrupt()
        script.until_it_says("stopping: calls in flight")
        script.go_on.set()
        assert "went on" not in script.ended(30)
        assert 5 < script.stored() == len(script.asked()) < 96
        assert {seen.status for seen in script.asked()} == {200}
    assert otoscope.load_run(tmp_path / "run").summary.counts["pending"] > 0  # summed up, too


@posix_only
@pytest.mark.parametrize("way", WAYS)
def test_a_second_ctrl_c_in_a_script_does_not_wait(tmp_path: Path, way: str) -> None:
    """Calls in flight are given up; what was stored stays."""
    with Stopped(way, tmp_path) as script:
        script.interrupt()
        script.until_it_says("stopping: calls in flight")
        script.interrupt()
        script.ended(6)
        assert script.stored() == 2


@posix_only
def test_a_script_ends_though_the_judge_never_answers(tmp_path: Path) -> None:
    """The time that calls in flight get has an end."""
    with Stopped("kernel", tmp_path) as script:
        script.interrupt()
        script.ended(30)
        assert script.stored() == 2


def test_cancelling_stores_the_verdicts_in_flight(tmp_path: Path) -> None:
    """As Ctrl-C does; to be cancelled once more does not wait."""
    data = write_data(tmp_path / "data", each=6)
    go_on = threading.Event()

    def reply(seen: Seen, attempt: int) -> Response:
        held = seen.kind == "judge" and len(judged()) > 2
        return dataclasses.replace(scripted_answers()(seen, attempt), after=go_on if held else None)

    def judged() -> list[Seen]:
        return [seen for seen in list(server.requests) if seen.kind == "judge"]

    async def cancelled(run_dir: Path, *, twice: bool) -> None:
        stopping = asyncio.Event()

        def hear(event: Event) -> None:
            if isinstance(event, Notice) and event.message.startswith("stopping"):
                stopping.set()

        task = asyncio.ensure_future(
            evaluate_async(
                model=answer,
                judge_model_args={"model_id": "j", "api_url": server.url, "api_key": "none"},
                data=data,
                run_dir=run_dir,
                on_event=hear,
            )
        )
        await asyncio.to_thread(until, lambda: len(judged()) > 5)
        task.cancel()
        await stopping.wait()
        if twice:
            task.cancel()
        else:
            go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    with ScriptedServer(reply) as server:
        asyncio.run(cancelled(tmp_path / "twice", twice=True))
        assert len(lines(tmp_path / "twice" / "verdicts.jsonl")) == 2
        go_on.set()
    go_on.clear()
    with ScriptedServer(reply) as server:
        asyncio.run(cancelled(tmp_path / "once", twice=False))
        assert len(lines(tmp_path / "once" / "verdicts.jsonl")) == len(judged())
        assert 5 < len(judged()) < 96


def test_a_wrong_name_is_refused_with_the_right_one(data: Path) -> None:
    """As TaskConfig refuses it."""
    with pytest.raises(ConfigError, match="did you mean 'run_dir'"):
        evaluate(model=answer, data=data, run_dirr="x")  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="judge_model is the judge itself"):
        evaluate(model=answer, judge=judge, data=data, judge_model_args={"model_id": "other"})
    with pytest.raises(ConfigError, match="name two judges"):
        evaluate(model=answer, judge="one", data=data, judge_model_args={"model_id": "other"})
    with pytest.raises(ConfigError, match="cannot be called as a judge is"):
        evaluate(model=answer, judge=lambda: "1 2", data=data)
    with pytest.raises(ConfigError, match="needs no api_url"):
        evaluate(model=answer, data=data, api_url="http://127.0.0.1:1/v1", no_judge=True)


def test_keywords_are_the_fields_of_the_settings() -> None:
    """None is lacking, none is left over, and their types are the same."""
    known = {field.name: field.type for field in dataclasses.fields(TaskConfig) if field.init}
    del known["model"], known["judge_model"]
    assert TaskSettings.__annotations__.keys() == known.keys()
    hints = {
        name: getattr(hint, "__forward_arg__", hint) for name, hint in TaskSettings.__annotations__.items()
    }
    assert hints == known


def test_types_are_shipped() -> None:
    """Type checkers of users look for the marker in the package."""
    spec = importlib.util.find_spec("otoscope")
    assert spec is not None
    assert spec.origin is not None
    assert (Path(spec.origin).parent / "py.typed").is_file()


def test_all_that_is_public_is_there() -> None:
    """Each name can be had from the package, and has a docstring; whatever else is asked for is an error."""
    for name in otoscope.__all__:
        assert getattr(otoscope, name) is not None
        assert name in dir(otoscope)
    with pytest.raises(AttributeError):
        otoscope.evalute  # noqa: B018


if typing.TYPE_CHECKING:
    # Types alone: nothing of this is run. A comment that ignores nothing fails the check.

    class _Batches:
        async def answer_batch(self, questions: Sequence[AudioQuestion]) -> list[str | Reply]:
            assert_type(questions[0].audio, AudioClip | None)
            assert_type(questions[0].question, str)
            return [Reply(text="x", finish_reason="length"), "y"]

    def _checked(clip: AudioClip) -> None:
        assert_type(evaluate(model=answer, judge=judge, data="x", limit=0.5), Run)
        assert_type(evaluate(model=_Batches, model_args={"a": 1}, eval_batch_size=4, no_judge=True), Run)
        assert_type(run_task({"model": "x"}), Run)
        assert_type(clip.path, Path)
        assert_type(clip.read(), bytes)
        evaluate(model="x", limit="10")  # type: ignore[arg-type]
        evaluate(model="x", on_event=3)  # type: ignore[arg-type]
        evaluate("x")  # type: ignore[call-arg]
        clip.samples(rate="16k")  # type: ignore[arg-type]

    async def _awaited() -> None:
        assert_type(await evaluate_async(model=answer), Run)
