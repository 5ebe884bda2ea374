"""``--config FILE``, as the real command."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.scripted_server import Response, ScriptedServer, by_model, delayed, scripted_answers
from tests.support import DEMO, REPOSITORY, command, environment, lines, otoscope, write_config, write_data

posix_only = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
GONE = "http://127.0.0.1:9/v1"


def counts(run: Path) -> dict[str, Any]:
    """Return the counts of a run's summary."""
    stored: dict[str, Any] = json.loads((run / "summary.json").read_text(encoding="utf-8"))["counts"]
    return stored


def commands(text: str) -> list[list[str]]:
    """Return the commands that were printed, without the program's name."""
    return [shlex.split(line)[1:] for line in text.splitlines() if line.startswith("  otoscope ")]


def by_kind(server: ScriptedServer) -> dict[str, int]:
    """Return how many completions the model and the judge gave."""
    told = {"model": 0, "judge": 0}
    for seen in list(server.requests):
        if seen.kind in told and seen.status == 200:
            told[seen.kind] += 1
    return told


def test_the_example_evaluates_two_models(tmp_path: Path) -> None:
    """The file in examples/ makes one run for each model; the same command then finds nothing to do."""
    with ScriptedServer() as server:
        text = (REPOSITORY / "examples" / "two-models.yaml").read_text(encoding="utf-8")
        told = (REPOSITORY / "docs" / "how-to" / "config.md").read_text(encoding="utf-8")
        assert told.partition("```yaml\n")[2].partition("```")[0] in text.replace(
            "# One run each, one after the other.\n", ""
        )
        for port in (8000, 8001):
            assert f"http://127.0.0.1:{port}/v1" in text
            text = text.replace(f"http://127.0.0.1:{port}/v1", server.url)
        (tmp_path / "examples").mkdir()
        (tmp_path / "examples" / "two-models.yaml").write_text(
            text.replace("/path/to/AIR-Bench-Dataset", str(DEMO)), encoding="utf-8"
        )
        environ = {"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "k"}
        arguments = ("eval", "--config", "examples/two-models.yaml")
        done = otoscope(*arguments, cwd=tmp_path, environ=environ)
        assert done.returncode == 0, done.stderr
        first = by_kind(server)
        assert first == {"model": 32, "judge": 64}
        again = otoscope(*arguments, cwd=tmp_path, environ=environ)
        assert (again.returncode, again.stdout) == (0, done.stdout)
        assert by_kind(server) == first
    assert "Qwen2-Audio" in done.stdout
    for name in ("qwen2-audio", "another-model"):
        assert counts(tmp_path / "outputs" / name)["scored"] == 16
    sent = [seen.payload["temperature"] for seen in server.requests if seen.model == "another-model"]
    assert set(sent) == {0.7}


def test_a_model_that_fails_costs_no_other_its_run(tmp_path: Path) -> None:
    """The rest goes on, each run's end is told, the exit code is the worst, and the command goes on."""
    data = write_data(tmp_path / "data", each=1)
    with ScriptedServer() as server:
        models = f"- {{model: gone, api_url: {GONE}}}\n- fine\n- {{model: bare, no_judge: true}}\n"
        file = write_config(tmp_path, server.url, data, models)
        done = otoscope("eval", "--config", file, "--limit", "1", "--format", "json", cwd=tmp_path)
        assert done.returncode == 4, done.stderr
        assert [one["model"] for one in json.loads(done.stdout)] == ["fine", "bare"]
        assert "gone" in done.stderr
        told = done.stderr.splitlines()
        assert [line.split()[1] for line in told if line.startswith(("  gone ", "  fine ", "  bare "))] == [
            "stopped,", "done:", "done:",
        ]  # fmt: skip
        (again,) = commands(done.stderr)
        (tmp_path / file).write_text(
            (tmp_path / file).read_text(encoding="utf-8").replace(GONE, server.url), encoding="utf-8"
        )
        resumed = otoscope(*again, "--allow-changed", "model.api_url", cwd=tmp_path)
        assert resumed.returncode == 0, resumed.stderr
    runs = {
        json.loads((run / "summary.json").read_text(encoding="utf-8"))["model"]
        for run in (tmp_path / "outputs").iterdir()
    }
    assert runs == {"gone", "fine", "bare"}
    assert len(list((tmp_path / "outputs").iterdir())) == 3
    assert "--limit 1" in shlex.join(again)


def test_the_judge_s_limit_is_one_for_all(tmp_path: Path) -> None:
    """Calls of all runs count together; at the limit all stop, and the commands printed finish them."""
    data = write_data(tmp_path / "data", each=1)
    with ScriptedServer() as server:
        file = write_config(tmp_path, server.url, data, "- a\n- b\n- c\n", "max_judge_calls: 20")
        done = otoscope("eval", "--config", file, cwd=tmp_path)
        assert done.returncode == 7, done.stderr
        asked = by_kind(server)
        assert asked["judge"] == 20
        # The second model stops as well, wherever it is.
        assert 8 < asked["model"] <= 16
        # Twelve of the second, and those of the third, which has not begun.
        assert "28 verdicts are owed still" in done.stderr
        assert "  c  not begun" in done.stderr
        left = commands(done.stderr)
        assert [words[words.index("--model") + 1] for words in left] == ["b", "c"]
        for words in left:
            resumed = otoscope(*words, cwd=tmp_path)
            assert resumed.returncode == 0, resumed.stderr
        assert by_kind(server) == {"model": 24, "judge": 48}


def test_what_earlier_starts_used_counts(tmp_path: Path) -> None:
    """With a place for each run the same command goes on, and knows what all of them used before."""
    data = write_data(tmp_path / "data", each=1)
    models = "- {model: a, run_dir: runs/a}\n- {model: b, run_dir: runs/b}\n"
    with ScriptedServer() as server:
        file = write_config(tmp_path, server.url, data, models, "max_judge_calls: 20")
        for _ in range(2):
            done = otoscope("eval", "--config", file, cwd=tmp_path)
            assert done.returncode == 7, done.stderr
        assert by_kind(server)["judge"] == 20
        (again,) = commands(done.stderr)
        assert again[:3] == ["eval", "--config", "two.yaml"]
        assert "--use-cache" not in again
        resumed = otoscope(*again, cwd=tmp_path)
        assert resumed.returncode == 0, resumed.stderr
        assert by_kind(server) == {"model": 16, "judge": 32}


def test_a_judge_that_is_gone_stops_those_that_ask_it(tmp_path: Path) -> None:
    """Runs with this judge are not begun; those without go on."""
    data = write_data(tmp_path / "data", each=1)
    refusing = by_model({"j": Response(status=401, error={"message": "no"})})
    with ScriptedServer(refusing) as server:
        file = write_config(tmp_path, server.url, data, "- a\n- b\n- {model: c, no_judge: true}\n")
        done = otoscope("eval", "--config", file, cwd=tmp_path)
        assert done.returncode == 5, done.stderr
        assert "  a  stopped, exit code 5" in done.stderr
        assert "  b  not begun" in done.stderr
        assert "  c  done" in done.stderr
        assert {seen.model for seen in server.requests} == {"a", "j", "c"}


@posix_only
@pytest.mark.parametrize("placed", [True, False])
def test_ctrl_c_stops_all_and_the_commands_go_on(tmp_path: Path, placed: bool) -> None:
    """One signal stops the run that goes on and those that come; what is printed finishes all of them."""
    data = write_data(tmp_path / "data", each=2)
    models = "".join(
        f"- {{model: {name}{f', run_dir: runs/{name}' if placed else ''}}}\n" for name in ("a", "b", "c")
    )
    with ScriptedServer(delayed(scripted_answers(), judge=0.05)) as server:
        file = write_config(tmp_path, server.url, data, models, "judge_batch_size: 2")
        process = subprocess.Popen(
            command("eval", "--config", file), cwd=tmp_path, env=environment(),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8",
        )  # fmt: skip
        deadline = time.monotonic() + 60
        while not any(seen.model == "b" for seen in list(server.requests)):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=30)
        assert process.returncode == 130, told
        assert "  a  done" in told
        assert "  b  stopped" in told
        assert "  c  not begun" in told
        again = commands(told)
        assert len(again) == (1 if placed else 2)
        for words in again:
            resumed = otoscope(*words, cwd=tmp_path)
            assert resumed.returncode == 0, resumed.stderr
    runs = sorted((tmp_path / ("runs" if placed else "outputs")).iterdir())
    assert [counts(run)["scored"] for run in runs] == [16, 16, 16]
    for run in runs:
        assert len({line["key"] for line in lines(run / "answers.jsonl")}) == 16


def test_one_model_s_file_is_resumed_with_its_flags(tmp_path: Path) -> None:
    """A file without a list is settings like any other; the command that goes on repeats file and flags."""
    data = write_data(tmp_path / "data", each=1)
    (tmp_path / "one.yaml").write_text(
        f"model: m\napi_url: {GONE}\nlimit: 1\n"
        f"dataset_args: {{air_bench_chat: {{local_path: {data}}}}}\nno_judge: true\nmax_judge_calls: 3\n",
        encoding="utf-8",
    )
    with ScriptedServer() as server:
        failed = otoscope("eval", "--config", "one.yaml", "--tasks", "music_QA", cwd=tmp_path)
        assert failed.returncode == 4, failed.stderr
        (again,) = commands(failed.stderr)
        assert "music_QA" in again
        done = otoscope(*again, "--api-url", server.url, "--allow-changed", "model.api_url", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert by_kind(server) == {"model": 1, "judge": 0}


@pytest.mark.parametrize(
    ("flags", "environ", "said"),
    [
        (["--api-url", "http://x/v1"], {}, "--api-url: would give the 2 models"),
        ([], {"OTOSCOPE_API_URL": "http://x/v1"}, "OTOSCOPE_API_URL: would give the 2 models"),
        (["--label", "x"], {}, "--label: would give the 2 models"),
        (["--run-dir", "x"], {}, "--run-dir: would give the 2 models"),
        (["--use-cache", "x"], {}, "--use-cache: would give the 2 models"),
        (["--model", "c"], {}, "has no model 'c'"),
        (["--config", ""], {}, "--config: is empty"),
        (["--limit", "-1"], {}, "otoscope: error: limit: -1"),
        (["--judge-model-args", '{"api_key": ""}'], {}, "judge_model_args.api_key: is empty"),
    ],
)
def test_what_cannot_be_said_of_several(
    tmp_path: Path, flags: list[str], environ: dict[str, str], said: str
) -> None:
    """A flag or variable that would replace what a file says for each model is refused, and names a way."""
    models = f"- {{model: a, label: A, api_url: {GONE}}}\n- {{model: b, label: B}}\n"
    write_config(tmp_path, "http://127.0.0.1:1/v1", DEMO, models)
    done = otoscope("eval", "--config", "two.yaml", *flags, cwd=tmp_path, environ=environ)
    assert done.returncode == 2
    assert said in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["two.yaml"]


def test_a_file_says_who_judges_stored_answers(tmp_path: Path) -> None:
    """What the file says of the judge for all models counts for judge, too, and nothing else of it."""
    data = write_data(tmp_path / "data", each=1)
    with ScriptedServer() as server:
        models = "- {model: a, run_dir: runs/a}\n- {model: b, run_dir: runs/b}\n"
        file = write_config(tmp_path, server.url, data, models, "max_judge_calls: 20\nwork_dir: elsewhere")
        answered = otoscope("eval", "--config", file, "--no-judge", cwd=tmp_path)
        assert answered.returncode == 0, answered.stderr
        assert by_kind(server) == {"model": 16, "judge": 0}
        told = otoscope("judge", "runs/a", "runs/b", "--config", file, "--dry-run", cwd=tmp_path)
        assert "at most 20 calls" in told.stdout
        judged = otoscope("judge", "runs/a", "runs/b", "--config", file, cwd=tmp_path)
        assert judged.returncode == 7, judged.stderr
        assert by_kind(server) == {"model": 16, "judge": 20}
        (again,) = commands(judged.stderr)
        assert again[:3] == ["judge", "runs/a", "runs/b"]
        assert otoscope(*again, cwd=tmp_path).returncode == 0
        assert by_kind(server) == {"model": 16, "judge": 32}
        (tmp_path / file).write_text(
            (tmp_path / file).read_text(encoding="utf-8").replace("max_judge_calls: 20", "protocol: x"),
            encoding="utf-8",
        )
        wrong = otoscope("judge", "runs/a", "--config", file, cwd=tmp_path)
        assert wrong.returncode == 2
        assert "two.yaml:9: protocol: 'x'" in wrong.stderr
    assert not (tmp_path / "elsewhere").exists()
