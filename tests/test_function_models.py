"""Models and judges written in Python: found, called and evaluated, as objects and by the real command."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from otoscope import AudioClip, AudioQuestion, Failure, Reply, evaluate, load_run
from otoscope.errors import ConfigError, EndpointError, RunDirectoryError
from otoscope.records import FailureKind
from otoscope.runs import Run
from tests.scripted_server import ScriptedServer
from tests.support import command, environment, lines, otoscope, write_data, write_wav

TASK = "speech_QA"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a data set with six samples of one task, of unequal lengths."""
    return write_data(tmp_path / "data", each=6, tasks=[TASK])


def answered(model: Any, data: Path, run_dir: Path | None = None, **more: Any) -> Run:
    """Have a model answer, without a judge."""
    return evaluate(model=model, data=data, run_dir=run_dir or data.parent / "run", no_judge=True, **more)


def texts(run: Run) -> list[str | None]:
    """Return each sample's answer, ``None`` where there is none."""
    return [
        None if isinstance(o.answer, Failure) or o.answer is None else o.answer.text for o in run.outcomes()
    ]


def failures(run: Run) -> list[Failure]:
    """Return the failures among the answers."""
    return [o.answer for o in run.outcomes() if isinstance(o.answer, Failure)]


def module(folder: Path, text: str, name: str = "model.py") -> Path:
    """Write a file of Python."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


# --- every form ---------------------------------------------------------------------------------------------


def say(audio: AudioClip | None, question: str) -> str:
    """Answer with what is known of the clip."""
    assert audio is not None
    return f"{question} {audio.seconds:g} {audio.samples().shape}"


async def say_async(audio: AudioClip, question: str) -> str:
    """Answer a little later."""
    await asyncio.sleep(0.001)
    return say(audio, question)


def say_all(questions: list[AudioQuestion]) -> list[str]:
    """Answer a batch."""
    return [say(audio, question) for audio, question in questions]


class Says:
    """Answers by a method."""

    def __init__(self, lead: str = "") -> None:
        self.lead = lead

    def answer(self, audio: AudioClip | None, question: str) -> str:
        """Answer one."""
        return self.lead + say(audio, question)


class SaysAll(Says):
    """Answers batches."""

    async def answer_batch(self, questions: Sequence[AudioQuestion]) -> list[str]:
        """Answer a batch."""
        return [self.answer(*question) for question in questions]


class Called:
    """Is called itself."""

    def __call__(self, audio: AudioClip, question: str) -> str:
        """Answer one."""
        return say(audio, question)


@pytest.mark.parametrize(
    "model",
    [say, say_async, say_all, Says, Says(), SaysAll, SaysAll(), Called, Called(), Says().answer],
    ids=lambda model: getattr(model, "__qualname__", f"object of {type(model).__qualname__}"),
)
@pytest.mark.parametrize("at_once", [None, 4])
def test_every_form_of_a_model_answers(data: Path, model: Any, at_once: int | None) -> None:
    """Functions, classes, objects; sync, async; one by one, in batches: each sample gets its own answer."""
    run = answered(model, data, eval_batch_size=at_once)
    assert texts(run) == [f"What is heard in clip {n} of speech_QA? 0.1 (800,)" for n in range(6)]
    reply = lines(run.path / "answers.jsonl")[0]["replies"][0]
    assert (reply["endpoint"], reply["finish_reason"]) == ("python", "stop")


def test_a_class_is_built_once_with_its_arguments_and_stays_in_its_thread(data: Path) -> None:
    """What a library keeps for each thread, such as whether it wants gradients, holds for the calls, too."""
    built: list[tuple[int, str]] = []
    called: list[int] = []

    class Model:
        def __init__(self, lead: str) -> None:
            built.append((threading.get_ident(), lead))

        def answer(self, audio: AudioClip, question: str) -> str:
            called.append(threading.get_ident())
            return "yes"

    run = answered(Model, data, model_args={"lead": "a"})
    assert built == [(called[0], "a")]
    assert called == called[:1] * 6
    manifest = json.loads((run.path / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["fingerprint"]["model"]["arguments"] == {"lead": "a"}
    assert manifest["fingerprint"]["prompt"]["audio_part"] is None


def test_batches_are_full_and_alike_in_length(tmp_path: Path) -> None:
    """After the first sample, which goes alone, a batch has as many as were asked for, of similar lengths."""
    root = write_data(tmp_path / "data", each=13, tasks=[TASK])
    for number in range(13):
        seconds = 0.1 if number % 2 else 1.0
        write_wav(root / "Chat" / f"{TASK}_tones" / f"clip_{number}.wav", seconds=seconds, tone=200 + number)
    batches: list[list[float]] = []

    def answer_batch(questions: list[AudioQuestion]) -> list[str]:
        batches.append([q.audio.seconds for q in questions if q.audio is not None])
        if len(batches) == 2:
            time.sleep(0.5)  # until all others wait
        return ["yes"] * len(questions)

    answered(answer_batch, root, eval_batch_size=3)
    assert batches[0] == [1.0]
    assert [len(batch) for batch in batches[1:]] == [3, 3, 3, 3]
    assert sum(len(set(batch)) == 1 for batch in batches[1:]) >= 2


@pytest.mark.parametrize("at_once", [None, 3])
def test_as_many_are_called_at_a_time_as_was_said(data: Path, at_once: int | None) -> None:
    """Without a word it is one: a model is rarely safe to be called by two threads."""
    now, most, counting, full = 0, 0, threading.Lock(), threading.Event()

    def answer(audio: AudioClip, question: str) -> str:
        nonlocal now, most
        with counting:
            now += 1
            most = max(most, now)
            if now == (at_once or 2):
                full.set()
        if "clip 0" not in question:
            full.wait(5 if at_once else 0.05)
        with counting:
            now -= 1
        return "yes"

    answered(answer, data, eval_batch_size=at_once)
    assert most == (at_once or 1)


def test_a_reply_can_tell_more_than_a_text(data: Path) -> None:
    """Reason of its end and numbers of tokens are taken over; what was cut off counts as such."""

    def answer(audio: AudioClip, question: str) -> Reply:
        return Reply(text="<think>hm</think>yes", finish_reason="length", usage={"completion_tokens": 3})

    run = answered(answer, data)
    assert texts(run) == ["yes"] * 6
    stored = lines(run.path / "answers.jsonl")[0]
    assert (stored["raw_text"], stored["replies"][0]["usage"]) == (
        "<think>hm</think>yes",
        {"completion_tokens": 3},
    )


def test_a_blank_answer_is_asked_for_once_more(data: Path) -> None:
    """As of every model; the second one stands."""
    asked: list[str] = []

    def answer(audio: AudioClip, question: str) -> str:
        asked.append(question)
        return "" if "clip 2" in question else "yes"

    run = answered(answer, data)
    assert len(asked) == 7
    assert texts(run)[2] == ""


def test_without_audio_the_clip_is_none(data: Path) -> None:
    """The control asks the question alone."""
    given: list[Any] = []

    def answer(audio: AudioClip | None, question: str) -> str:
        given.append(audio)
        return question

    run = answered(answer, data, control="no-audio")
    assert given == [None] * 6
    assert None not in texts(run)


# --- what goes wrong ----------------------------------------------------------------------------------------


def test_what_a_model_raises_is_its_samples_failure_with_the_traceback(data: Path) -> None:
    """The others go on; the line keeps the traceback, from the model's own code on; a resume asks again."""
    broken = True

    def answer(audio: AudioClip, question: str) -> str:
        if broken and "clip 3" in question:
            raise RuntimeError("out of luck\nand more")
        return "yes"

    run = answered(answer, data)
    assert texts(run) == ["yes"] * 3 + [None] + ["yes"] * 2
    (failure,) = failures(run)
    assert failure.kind is FailureKind.MODEL_ERROR
    assert failure.message.startswith(
        "the model raised RuntimeError: out of luck and more (test_function_models.py"
    )
    assert failure.traceback is not None
    assert failure.traceback.count("File ") == 1
    assert "if broken" not in failure.traceback
    assert 'raise RuntimeError("out of luck\\nand more")' in failure.traceback
    assert run.summary.counts["failures"] == {"model_error": 1}
    broken = False
    assert texts(answered(answer, data)) == ["yes"] * 6


def test_one_of_a_batch_does_not_cost_the_others(data: Path) -> None:
    """A batch that raised is asked one by one, so that the one at fault is found."""
    sizes: list[int] = []

    def answer_batch(questions: list[AudioQuestion]) -> list[str]:
        sizes.append(len(questions))
        if any("clip 3" in question for _, question in questions):
            raise ValueError("this one")
        return [question for _, question in questions]

    run = answered(answer_batch, data, eval_batch_size=5)
    assert sizes == [1, 5, 1, 1, 1, 1, 1]
    assert [text is None for text in texts(run)] == [False, False, False, True, False, False]


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (None, "the model returned None, and must return text (str)"),
        (b"yes", "the model returned something of type bytes, and must return text (str)"),
        (3.5, "the model returned something of type float, and must return text (str)"),
    ],
)
def test_what_is_no_text_is_a_failure(data: Path, returned: Any, said: str) -> None:
    """A model that always returns it is one clear error, and nothing of it is stored as the samples' own."""
    with pytest.raises(EndpointError) as stopped:
        answered(lambda audio, question: returned, data)
    assert "the first 3 requests to the model all failed" in str(stopped.value)
    assert said in str(stopped.value)
    assert stopped.value.run_path is not None
    assert lines(stopped.value.run_path / "answers.jsonl") == []


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        (["one"], "answer_batch returned 1 answers to 2 questions: which belongs to which is not known"),
        ("yes", "answer_batch returned something of type str, not a list of texts"),
        (None, "answer_batch returned None, not a list of texts"),
    ],
)
def test_a_batch_that_cannot_be_told_apart_is_failures(data: Path, answers: Any, said: str) -> None:
    """No answer is guessed to be a sample's."""

    def answer_batch(questions: list[AudioQuestion]) -> Any:
        return answers if len(questions) == 2 else ["yes"] * len(questions)

    run = answered(answer_batch, data, eval_batch_size=2)
    found = failures(run)
    assert len(found) >= 2
    assert {(failure.kind, failure.message) for failure in found} == {(FailureKind.MODEL_ERROR, said)}


def test_a_call_that_does_not_return_is_left_alone(data: Path) -> None:
    """It is a timeout, the rest is answered meanwhile, and the process can end."""
    for_ever = threading.Event()

    def answer(audio: AudioClip, question: str) -> str:
        if "clip 3" in question:
            for_ever.wait()
        return "yes"

    run = answered(answer, data, generation_config={"timeout": 0.3})
    assert texts(run) == ["yes"] * 3 + [None] + ["yes"] * 2
    (failure,) = failures(run)
    assert (failure.kind, "did not return within 0.3 s" in failure.message) == (FailureKind.TIMEOUT, True)
    for_ever.set()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_model_that_never_returns_is_given_up(data: Path, *, asynchronous: bool) -> None:
    """After three in a row: each of them holds a thread."""
    for_ever = threading.Event()

    async def answer_async(audio: AudioClip, question: str) -> str:
        if "clip 0" not in question:
            await asyncio.sleep(60)
        return "yes"

    def answer(audio: AudioClip, question: str) -> str:
        if "clip 0" not in question:
            for_ever.wait()
        return "yes"

    with pytest.raises(EndpointError, match=r"3 calls in a row of .* did not return within 0\.2 s"):
        answered(answer_async if asynchronous else answer, data, generation_config={"timeout": 0.2})
    for_ever.set()


def test_a_model_that_cannot_be_built_asks_nothing(data: Path) -> None:
    """What its class raised is told with its traceback; the run can be gone on with."""

    class Model:
        def __init__(self) -> None:
            raise OSError("no weights here")

        def answer(self, audio: AudioClip, question: str) -> str:
            raise AssertionError

    with pytest.raises(EndpointError) as stopped:
        answered(Model, data)
    assert "could not be built, nothing was asked" in str(stopped.value)
    assert 'raise OSError("no weights here")' in str(stopped.value)


def test_a_clip_that_cannot_be_decoded_is_the_clips_failure(data: Path) -> None:
    """Not the model's: it is bad audio, owed again once the file was mended."""
    path = data / "Chat" / f"{TASK}_tones" / "clip_2.wav"
    whole = path.read_bytes()
    header = bytearray(whole)
    header[20:22] = (0x55).to_bytes(2, "little")  # says that it is an mp3 within a wav
    path.write_bytes(bytes(header))
    asked: list[str] = []

    def answer(audio: AudioClip, question: str) -> str:
        asked.append(question)
        return str(len(audio.samples()))

    run = answered(answer, data)
    (failure,) = failures(run)
    assert failure.kind is FailureKind.BAD_AUDIO
    path.write_bytes(whole)
    before = len(asked)
    assert texts(answered(answer, data)) == ["800"] * 6
    assert len(asked) == before + 1


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (lambda: "x", "cannot be called as a model is"),
        (lambda a, b, c: "x", "cannot be called as a model is"),
        (int, "has no method answer or answer_batch"),
        (type("Odd", (), {"answer": lambda self: "x"}), "answer(self) cannot be called as a model is"),
    ],
)
def test_something_that_is_no_model_is_refused_before_anything(data: Path, model: Any, said: str) -> None:
    """The message says what a model looks like, and no run is begun."""
    with pytest.raises(ConfigError) as refused:
        answered(model, data)
    assert said in str(refused.value)
    assert "def answer(audio: AudioClip, question: str) -> str" in str(refused.value)
    assert not (data.parent / "run").exists()


def test_settings_without_effect_are_refused(data: Path) -> None:
    """Nobody should believe that a temperature was sent."""
    for more, name in (
        ({"generation_config": {"temperature": 0}}, "temperature"),
        ({"system_prompt": "Be brief"}, "system_prompt"),
        ({"extra_body": {"a": 1}}, "extra_body"),
        ({"model_args": {"api_key": "k"}}, "api_key"),
    ):
        with pytest.raises(ConfigError, match=name):
            answered(Says, data, **more)
    with pytest.raises(ConfigError, match="no class that could be built"):
        answered(say, data, model_args={"a": 1})
    with pytest.raises(ConfigError, match="cannot be built with those given"):
        answered(Says, data, model_args={"a": 1})


# --- judges -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_judge_in_python_judges(data: Path, *, asynchronous: bool) -> None:
    """A function from the prompt to what a judge would write; both orders; what it raises is a failure."""
    prompts: list[str] = []

    def judge(prompt: str) -> str:
        prompts.append(prompt)
        if "clip 5" in prompt:
            raise RuntimeError("no")
        return "4 8" if "1s Answer]\nA steady tone" in prompt else "8 4"

    async def judge_async(prompt: str) -> str:
        return judge(prompt)

    asked = judge_async if asynchronous else judge
    run = evaluate(model=say, judge=asked, data=data, run_dir=data.parent / "run")
    assert run.summary.counts["failures"] == {"model_error": 1}
    assert run.summary.tasks[TASK].gpt_score == 8
    assert prompts[0].startswith("You are a helpful and precise assistant")
    assert run.summary.judge is not None
    assert run.summary.judge.endswith(asked.__name__)
    assert load_run(run.path).summary.to_json() == run.summary.to_json()


# --- by the command -----------------------------------------------------------------------------------------

FILE = """
import os
from beside import lead

class Model:
    def __init__(self, mark="!"):
        print("built")
        self.mark = mark

    def answer(self, audio, question):
        print("asked")
        return f"{lead} {question}{self.mark}"
"""


def asked_of(server: ScriptedServer, data: Path, *more: str) -> list[str]:
    """Return the arguments that evaluate a model in Python with a scripted judge."""
    return [
        "eval", "--data", str(data), "--judge-model", "scripted-judge", "--judge-api-url", server.url,
        "--judge-api-key", "EMPTY", *more,
    ]  # fmt: skip


def test_the_command_evaluates_a_file(tmp_path: Path, data: Path) -> None:
    """What lies beside the file can be imported; what it prints is not in what the command was asked for."""
    module(tmp_path, "lead = 'I hear:'\n", "beside.py")
    module(tmp_path, FILE)
    with ScriptedServer() as server:
        done = otoscope(
            *asked_of(server, data, "--model", "model.py:Model", "--model-args", "mark=?"),
            "--run-dir", "run", "--format", "json",
            cwd=tmp_path,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["model"] == 'model.py:Model(mark="?")'
    assert "asked" in done.stderr
    assert 'model    model.py:Model(mark="?"), Python, 1 at a time' in done.stderr
    stored = lines(tmp_path / "run" / "answers.jsonl")
    assert stored[0]["text"] == "I hear: What is heard in clip 0 of speech_QA??"


def test_a_module_is_found_from_where_the_command_is_started(tmp_path: Path, data: Path) -> None:
    """Packages too, by their dotted name; a function of two things is one that answers."""
    (tmp_path / "mine").mkdir()
    module(tmp_path / "mine", "", "__init__.py")
    module(
        tmp_path / "mine",
        "class A:\n    @staticmethod\n    def go(audio, question):\n        return 'x'\n",
        "m.py",
    )
    done = otoscope("eval", "--model", "mine.m:A.go", "--data", str(data), "--no-judge", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "6 answered" in done.stdout


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        ("import nothing_like_it\n", "model.py:Model", "No module named 'nothing_like_it'"),
        ("def f(:\n", "model.py:Model", "SyntaxError"),
        ("import sys\nsys.exit(3)\n", "model.py:Model", "SystemExit: 3"),
        ("x = 1 / 0\n", "model.py:Model", "line 1, in <module>"),
        ("class Modell: pass\n", "model.py:Model", "has no 'Model', did you mean 'Modell'?"),
        ("", "gone.py:Model", "cannot be read: No such file or directory"),
        ("", "no_such_module:Model", "there is no module 'no_such_module' here"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_clear_error(
    tmp_path: Path, data: Path, text: str, name: str, said: str
) -> None:
    """Exit code 2, the reason in what is printed, none of our own code in a traceback, and no run begun."""
    module(tmp_path, text)
    done = otoscope(
        "eval", "--model", name, "--data", str(data), "--no-judge", "--run-dir", "run", cwd=tmp_path
    )
    assert done.returncode == 2
    assert said in done.stderr
    assert "python_model.py" not in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_name_that_a_server_has_is_no_module(tmp_path: Path, data: Path) -> None:
    """With a URL, ``name:tag`` is a served model's name."""
    with ScriptedServer(models=["audio:latest", "scripted-judge"]) as server:
        done = otoscope(
            *asked_of(server, data, "--model", "audio:latest", "--api-url", server.url, "--run-dir", "run"),
            cwd=tmp_path,
        )
    assert done.returncode == 0, done.stderr
    assert "audio:latest on AIR-Bench Chat" in done.stdout


SLOW = """
import time, pathlib

def answer(audio, question):
    with open("asked.txt", "a") as file:
        file.write(question + "\\n")
    time.sleep(0.2)
    return "I hear " + question
"""


def test_a_killed_run_is_gone_on_with(tmp_path: Path, data: Path) -> None:
    """By the same command, or by the printed one; only what was in flight is asked again."""
    module(tmp_path, SLOW)
    arguments = ["eval", "--model", "model.py:answer", "--data", str(data), "--no-judge", "--run-dir", "run"]
    process = subprocess.Popen(
        command(*arguments), cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    answers = tmp_path / "run" / "answers.jsonl"
    while not answers.exists() or len(answers.read_bytes().splitlines()) < 2:
        assert process.poll() is None
        time.sleep(0.02)
    process.kill()
    process.communicate()
    assert otoscope(*arguments, cwd=tmp_path).returncode == 0
    asked = (tmp_path / "asked.txt").read_text(encoding="utf-8").splitlines()
    assert len(set(asked)) == 6
    assert len(asked) <= 7


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_a_stopped_run_says_how_to_go_on_and_that_works(tmp_path: Path, data: Path) -> None:
    """The command names the model again: no run directory's word is enough to run Python."""
    module(tmp_path, SLOW)
    process = subprocess.Popen(
        command(
            "eval", "--model", "model.py:answer", "--data", str(data), "--no-judge", "--run-dir", "run",
            "--limit", "5",
        ),
        cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8",
    )  # fmt: skip
    answers = tmp_path / "run" / "answers.jsonl"
    while not answers.exists() or not answers.read_bytes():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=30)
    assert process.returncode == 130
    # What was in flight is kept, and nothing was begun after the stop.
    asked = (tmp_path / "asked.txt").read_text(encoding="utf-8").splitlines()
    assert len(asked) == len(lines(answers)) < 5
    words = told.split("Resume with:\n  otoscope ")[1].split("\n")[0].split()
    assert words[:5] == ["eval", "--use-cache", f"{tmp_path}/run", "--model", f"{tmp_path}/model.py:answer"]
    refused = otoscope("eval", "--use-cache", "run", "--no-judge", cwd=tmp_path)
    assert refused.returncode == 2
    assert "was made with a model in Python, which is run only when you name it" in refused.stderr
    assert f"otoscope eval --use-cache run --model {tmp_path}/model.py:answer" in refused.stderr
    done = otoscope(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "5 answered" in done.stdout


def test_a_changed_file_is_refused_and_can_be_waved_through(tmp_path: Path, data: Path) -> None:
    """Answers of two models are not mixed; who knows that nothing changed says so, or gives a revision."""
    module(tmp_path, "def answer(audio, question):\n    return 'one'\n")
    arguments = ["eval", "--model", "model.py:answer", "--data", str(data), "--no-judge", "--run-dir"]
    assert otoscope(*arguments, "run", "--limit", "2", cwd=tmp_path).returncode == 0
    revised = [*arguments, "revised", "--model-revision", "a"]
    assert otoscope(*revised, "--limit", "2", cwd=tmp_path).returncode == 0
    module(tmp_path, "def answer(audio, question):\n    return 'two'\n")
    refused = otoscope(*arguments, "run", cwd=tmp_path)
    assert refused.returncode == 6
    assert "model.source_sha256: was" in refused.stderr
    assert "--allow-changed model.source_sha256" in refused.stderr
    allowed = otoscope(*arguments, "run", "--allow-changed", "model.source_sha256", cwd=tmp_path)
    assert allowed.returncode == 0, allowed.stderr
    assert otoscope(*revised, cwd=tmp_path).returncode == 0
    assert [o.text for o in _answers(tmp_path / "run")] == ["one"] * 2 + ["two"] * 4


def _answers(path: Path) -> list[Any]:
    return [outcome.answer for outcome in load_run(path).outcomes()]


def test_a_dry_run_runs_nothing(tmp_path: Path, data: Path) -> None:
    """Not even the import."""
    module(tmp_path, "raise SystemExit('imported')\n")
    done = otoscope("eval", "--model", "model.py:answer", "--data", str(data), "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "6 to the model, 12 to the judge" in done.stdout.replace("\n", " ")


def test_keys_of_the_environment_are_not_in_a_stored_traceback(tmp_path: Path, data: Path) -> None:
    """A model that fails at a service of its own may well tell its key."""
    module(
        tmp_path,
        "import os\ndef answer(audio, question):\n"
        "    if 'clip 1' in question: raise RuntimeError('401 for ' + os.environ['OPENAI_API_KEY'])\n"
        "    return 'x'\n",
    )
    done = otoscope(
        "eval", "--model", "model.py:answer", "--data", str(data), "--no-judge", "--run-dir", "run",
        cwd=tmp_path, environ={"OPENAI_API_KEY": "sk-proj-9f8e7d6c5b4a"},
    )  # fmt: skip
    assert done.returncode == 1
    written = "".join(
        path.read_text(encoding="utf-8") for path in (tmp_path / "run").iterdir() if path.is_file()
    )
    assert "401 for ***" in written
    assert "9f8e7d6c5b4a" not in written + done.stderr + done.stdout


def test_a_refused_run_can_be_gone_on_with_by_a_copied_folder(tmp_path: Path, data: Path) -> None:
    """The whole path of the file is no part of what is compared: a run may move to another machine."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    text = "def answer(audio, question):\n    return 'x'\n"
    module(tmp_path / "a", text)
    module(tmp_path / "b", text)
    arguments = ["--data", str(data), "--no-judge", "--run-dir", str(tmp_path / "run")]
    first = otoscope("eval", "--model", "model.py:answer", *arguments, "--limit", "1", cwd=tmp_path / "a")
    assert first.returncode == 0
    assert otoscope("eval", "--model", "model.py:answer", *arguments, cwd=tmp_path / "b").returncode == 0


def test_an_object_can_be_gone_on_with(data: Path) -> None:
    """The same object, or one of the same source, goes on; another one is refused by its source."""

    def answer(audio: AudioClip, question: str) -> str:
        return "x"

    answered(answer, data, limit=2)
    assert texts(answered(answer, data)) == ["x"] * 6
    with pytest.raises(RunDirectoryError, match=r"model\.name: was"):
        answered(say, data)


# --- whose answer it is -------------------------------------------------------------------------------------


def test_one_object_can_be_model_and_judge(data: Path) -> None:
    """Each is called in its own way."""

    class Both:
        def answer(self, audio: AudioClip, question: str) -> str:
            return f"{audio.seconds} {question}"

        def __call__(self, prompt: str) -> str:
            return "5 7" if prompt.startswith("You are a helpful") else "9 9"

    both = Both()
    run = evaluate(model=both, judge=both, data=data, run_dir=data.parent / "run")
    assert {(o.scores) for o in _scores(run)} == {(7.0, 5.0), (5.0, 7.0)}


class _Scored:
    def __init__(self, verdict: Any) -> None:
        self.scores = (verdict.answer_score, verdict.reference_score)


def _scores(run: Run) -> list[_Scored]:
    return [_Scored(verdict) for outcome in run.outcomes() for verdict in outcome.verdicts.values()]


def test_two_files_with_helpers_of_one_name_have_each_its_own(tmp_path: Path, data: Path) -> None:
    """Also in one process: no model answers with what lies beside another."""
    runs = {}
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        module(tmp_path / name, f"WORD = {name!r}\n", "helper.py")
        path = module(
            tmp_path / name, "import helper\ndef answer(audio, question):\n    return helper.WORD\n"
        )
        runs[name] = answered(f"{path}:answer", data, tmp_path / f"run-{name}")
    assert texts(runs["one"]) == ["one"] * 6
    assert texts(runs["two"]) == ["two"] * 6


def test_a_file_that_was_edited_meanwhile_is_loaded_anew(tmp_path: Path, data: Path) -> None:
    """In a notebook that lives long: the code that answers is the one whose digest is stored."""
    path = module(tmp_path, "def answer(audio, question):\n    return 'first'\n")
    assert texts(answered(f"{path}:answer", data, tmp_path / "a")) == ["first"] * 6
    module(tmp_path, "def answer(audio, question):\n    return 'second'\n")
    assert texts(answered(f"{path}:answer", data, tmp_path / "b")) == ["second"] * 6


def made(word: str) -> Any:
    """Return a function that holds a word."""

    def answer(audio: AudioClip, question: str) -> str:
        return word

    return answer


class Base:
    """What a model is derived from."""

    word = "base"

    def answer(self, audio: AudioClip, question: str) -> str:
        """Answer."""
        return self.word


class Holds(Base):
    """Holds what it is built with."""

    def __init__(self, word: Any) -> None:
        self.word = word


def with_word(audio: AudioClip, question: str, word: str) -> str:
    """Answer with a word."""
    return word


@pytest.mark.parametrize(
    ("before", "same", "other"),
    [
        (made("a"), made("a"), made("b")),
        (Holds("a"), Holds("a"), Holds("b")),
        (Holds("a").answer, Holds("a").answer, Holds("b").answer),
        (partial(with_word, word="a"), partial(with_word, word="a"), partial(with_word, word="b")),
        (lambda audio, question: "a", lambda audio, question: "a", lambda audio, question: "b"),
        (type("M", (Base,), {}), type("M", (Base,), {}), type("M", (Base,), {"word": "b"})),
    ],
    ids=["closure", "object", "method", "partial", "lambda", "class"],
)
def test_what_an_object_holds_is_part_of_which_it_is(data: Path, before: Any, same: Any, other: Any) -> None:
    """One that holds the same goes on with a run, and one that holds something else does not."""
    answered(before, data, limit=1)
    answered(same, data, limit=2)
    with pytest.raises(RunDirectoryError, match=r"model\.source_sha256: was"):
        answered(other, data)


def test_what_cannot_be_told_apart_goes_on_with_no_other_run(data: Path) -> None:
    """Loaded weights, a client: the same object goes on; another one needs a revision, or somebody's word."""
    model = Holds(threading.Lock())
    model.answer = lambda audio, question: "x"  # type: ignore[method-assign]
    other = Holds(threading.Lock())
    other.answer = lambda audio, question: "y"  # type: ignore[method-assign]
    answered(model, data, limit=1)
    assert texts(answered(model, data, limit=2)) == ["x", "x"]
    with pytest.raises(RunDirectoryError, match="--allow-changed"):
        answered(other, data, limit=3)
    run = answered(other, data, limit=3, allow_changed=["model.source_sha256"])
    assert texts(run) == ["x", "x", "y"]


def test_what_an_object_counts_makes_it_no_other(data: Path) -> None:
    """It changes as it is asked, and goes on with its own run."""

    class Counts:
        def __init__(self) -> None:
            self.asked = 0

        def answer(self, audio: AudioClip, question: str) -> str:
            self.asked += 1
            return "x"

    model = Counts()
    answered(model, data, limit=2)
    assert texts(answered(model, data)) == ["x"] * 6


class Remembers:
    """Answers with the last question that it was asked, as one does that two threads are in."""

    built = 0

    def __init__(self) -> None:
        type(self).built += 1
        self.question = ""

    def answer(self, audio: AudioClip, question: str) -> str:
        """Answer slowly about the second clip."""
        self.question = question
        time.sleep(0.5 if "clip 1 " in question else 0.05)
        return self.question


@pytest.mark.parametrize("as_object", [False, True])
def test_no_call_meets_a_late_one_in_the_model(data: Path, *, as_object: bool) -> None:
    """The one that is late is waited for as long again, and its answer is nobody else's."""
    model = Remembers() if as_object else Remembers
    run = answered(model, data, generation_config={"timeout": 0.3})
    found = texts(run)
    assert found[1] is None
    assert all(text is None or f"clip {n} " in text for n, text in enumerate(found))
    assert sum(text is None for text in found) == 1


def test_a_class_that_hangs_is_built_anew_and_an_object_is_given_up(data: Path) -> None:
    """A hung object cannot be told from one that still works on the last question."""
    for_ever = threading.Event()

    class Hangs:
        built = 0

        def __init__(self) -> None:
            type(self).built += 1

        def answer(self, audio: AudioClip, question: str) -> str:
            if "clip 1 " in question:
                for_ever.wait()
            return question

    run = answered(Hangs, data, data.parent / "class", generation_config={"timeout": 0.2})
    assert [text is None for text in texts(run)] == [False, True, False, False, False, False]
    assert Hangs.built == 2
    with pytest.raises(EndpointError, match="this object cannot be built anew"):
        answered(Hangs(), data, data.parent / "object", generation_config={"timeout": 0.2})
    for_ever.set()


def test_late_calls_count_among_those_that_a_model_bears(data: Path) -> None:
    """Two at a time are two, whether or not one of them is over its time."""
    now, most, counting, for_ever = 0, 0, threading.Lock(), threading.Event()

    def answer(audio: AudioClip, question: str) -> str:
        nonlocal now, most
        with counting:
            now += 1
            most = max(most, now)
        if "clip 1 " in question:
            for_ever.wait(5)
        time.sleep(0.15)  # so that there is something left to ask after that
        with counting:
            now -= 1
        return question

    run = answered(answer, data, eval_batch_size=2, generation_config={"timeout": 0.3})
    for_ever.set()
    assert most == 2
    assert [text is None for text in texts(run)] == [False, True, False, False, False, False]


# --- what else goes wrong -----------------------------------------------------------------------------------


def test_an_async_model_whose_inside_is_cancelled_fails_by_name(data: Path) -> None:
    """It is no stop of the run: every sample has its answer or its failure."""

    async def answer(audio: AudioClip, question: str) -> str:
        if "clip 3" in question:
            raise asyncio.CancelledError
        return "x"

    run = answered(answer, data)
    assert [text is None for text in texts(run)] == [False, False, False, True, False, False]
    assert failures(run)[0].message.startswith("the model raised CancelledError")


@pytest.mark.parametrize("error", [StopIteration(), asyncio.CancelledError(), SystemExit(3)])
def test_a_class_may_raise_what_it_likes(data: Path, error: BaseException) -> None:
    """Also what Python gives a meaning of its own."""

    class Model:
        def __init__(self) -> None:
            raise error

        def answer(self, audio: AudioClip, question: str) -> str:
            raise AssertionError

    with pytest.raises(EndpointError, match=f"could not be built(.|\n)*{type(error).__name__}"):
        answered(Model, data)


class Awkward(str):
    """A text that cannot say what it is."""

    __slots__ = ()

    def __str__(self) -> str:
        raise ValueError("no")


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (Reply(text=b"x"), "a Reply whose text is something of type bytes"),  # type: ignore[arg-type]
        (Reply(text="x", finish_reason=5), "a Reply whose finish_reason is"),  # type: ignore[arg-type]
        (Reply(text="x", usage={"prompt_tokens": object()}), "the model raised TypeError"),
        (Failure("boo", "x"), "the model raised ValueError"),  # type: ignore[arg-type]
    ],
)
def test_a_reply_that_cannot_be_stored_is_a_failure(data: Path, returned: Any, said: str) -> None:
    """And ends nothing."""
    run = answered(lambda audio, question: returned if "clip 2" in question else "x", data)
    assert [text is None for text in texts(run)] == [False, False, True, False, False, False]
    assert said in failures(run)[0].message


def test_a_reply_s_numbers_may_be_numpys_and_its_text_awkward(data: Path) -> None:
    """What can be stored is; what it does not say is filled in."""
    replies = [Reply(text="x", usage={"prompt_tokens": np.int64(5)}), Awkward("y")]
    run = answered(lambda audio, question: replies["clip 1" in question], data)
    assert texts(run)[:2] == ["x", "y"]
    stored = lines(run.path / "answers.jsonl")[0]["replies"][0]
    assert stored["usage"] == {"prompt_tokens": 5}
    assert (stored["endpoint"], stored["started_at"] > 0) == ("python", True)


def test_a_model_may_change_the_working_folder(tmp_path: Path, data: Path) -> None:
    """As it is imported, built or asked: the run is where it was said to be."""
    (tmp_path / "elsewhere").mkdir()
    module(
        tmp_path,
        "import os\nos.chdir('elsewhere')\nclass M:\n    def __init__(self):\n        os.chdir('/')\n"
        "    def answer(self, audio, question):\n        os.chdir('/tmp')\n        return 'x'\n",
    )
    done = otoscope(
        "eval", "--model", "model.py:M", "--data", "data", "--no-judge", "--run-dir", "run", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert len(lines(tmp_path / "run" / "answers.jsonl")) == 6
    assert (tmp_path / "run" / "summary.json").exists()


def test_keys_are_refused_however_deep_they_lie(data: Path) -> None:
    """Arguments are stored with the run."""
    for arguments in ({"client": {"api_key": "k"}}, {"clients": [{"headers": {"Authorization": "k"}}]}):
        with pytest.raises(ConfigError, match="looks like a key"):
            answered(Says, data, model_args=arguments)


def test_a_judge_in_python_is_called_by_one_thread(data: Path) -> None:
    """Unless more are asked for."""
    now, most, counting = 0, 0, threading.Lock()

    def judge(prompt: str) -> str:
        nonlocal now, most
        with counting:
            now += 1
            most = max(most, now)
        time.sleep(0.01)
        with counting:
            now -= 1
        return "5 5"

    evaluate(model=say, judge=judge, data=data, run_dir=data.parent / "run")
    assert most == 1


def test_a_judge_in_python_is_nobodys_name(tmp_path: Path, data: Path) -> None:
    """What was judged by a function is not gone on with by a server that happens to be there."""
    run = evaluate(model=say, data=data, run_dir=tmp_path / "run", judge=lambda prompt: "5 5", limit=3)
    judged = otoscope("judge", str(run.path), "--dry-run", environ={"OPENAI_API_KEY": "k"})
    assert judged.returncode != 0
    assert "was written in Python" in judged.stderr
    named = otoscope("judge", str(run.path), "--judge-model", "mine.py:judge", "--judge-api-key", "k")
    assert "a judge in Python is given from Python alone" in named.stderr
