"""The API for Python: objects or names, events, running event loops; ``make check`` checks its types."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.util
import threading
import typing
from collections.abc import Sequence
from pathlib import Path

import pytest
from typing_extensions import assert_type

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
from otoscope.records import Answered, Judged, RunStarted
from tests.scripted_server import ScriptedServer
from tests.support import write_data


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
    """What was answered before is not asked again."""
    asked: list[str] = []
    third, go_on = threading.Event(), threading.Event()

    def slow(audio: AudioClip, question: str) -> str:
        asked.append(question)
        if len(asked) == 3:
            third.set()
            go_on.wait(10)
        return f"{audio.seconds}"

    async def cancelled() -> None:
        task = asyncio.ensure_future(
            evaluate_async(model=slow, data=data, run_dir=tmp_path / "run", no_judge=True)
        )
        await asyncio.to_thread(third.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    go_on.set()
    before = len(asked)
    run = evaluate(model=slow, data=data, run_dir=tmp_path / "run", no_judge=True)
    assert run.summary.counts["pending"] == 8
    assert sum(outcome.answer is not None for outcome in run.outcomes()) == 8
    assert len(asked) == before + 6


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
