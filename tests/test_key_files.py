"""Keys in files: --api-key-file and --judge-api-key-file; and the word about keys on the command line."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from otoscope.cli.keys import warning_of_keys
from otoscope.cli.parser import command_parser
from otoscope.config import Settings, TaskConfig, resolve
from otoscope.errors import ConfigError
from tests.scripted_server import Response, ScriptedServer
from tests.support import judge_endpoint, model_endpoint, otoscope, write_data

URL = "http://127.0.0.1:9/v1"


def settled(**given: Any) -> Settings:
    """Resolve settings for a model and a judge, both at ``URL``."""
    environ = given.pop("environ", {})
    config: dict[str, Any] = {
        "model": "m",
        "api_url": URL,
        "dataset_args": {"air_bench_chat": {"local_path": "."}},
        "judge_model_args": {"api_url": URL, "api_key": "EMPTY"},
    }
    return resolve(TaskConfig(**{**config, **given}), environ)


def file_with(folder: Path, content: bytes | str) -> Path:
    """Write a key file that only its owner may read."""
    path = folder / "the.key"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    path.chmod(0o600)
    return path


@pytest.mark.parametrize(
    "content", ["sk-1", "sk-1\n", "  sk-1\t\r\n", "\ufeffsk-1\n", "sk-1\n\n \n"], ids=ascii
)
def test_the_first_line_is_the_key(tmp_path: Path, content: str) -> None:
    """Blanks around it, a byte order mark and blank lines behind it do no harm."""
    file = file_with(tmp_path, content)
    settings = settled(api_key_file=file, judge_model_args={"api_url": URL, "api_key_file": str(file)})
    for endpoint in (model_endpoint(settings), judge_endpoint(settings)):
        assert endpoint.authorization == "Bearer sk-1"
        assert endpoint.key_file == file


def test_what_goes_before_a_key_file_and_behind_it(tmp_path: Path) -> None:
    """It goes before credentials in the URL, and they go before the environment."""
    file = file_with(tmp_path, "from-file")
    with_credentials = "http://user:pass@127.0.0.1:9/v1"
    environ = {"OTOSCOPE_API_KEY": "from-environment"}
    for url in (URL, with_credentials):
        settings = settled(api_key_file=file, api_url=url, environ=environ)
        assert model_endpoint(settings).authorization == "Bearer from-file"
    settings = settled(api_url=with_credentials, environ=environ)
    assert str(model_endpoint(settings).authorization).startswith("Basic ")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is empty"),
        (b" \n\t\n", "is empty"),
        (b"sk-secret\nsk-other\n", "holds more than one line"),
        (b"\nsk-secret\n", "holds more than one line"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", "is not text"),
        (b"sk-\x00secret", "is not text"),
        (b"sk-secret\x1b[31m", "is not text"),
        ("sk-sécret".encode(), "is not text"),
        (b"s" * 100_000, "is not text"),
    ],
    ids=ascii,
)
def test_a_file_that_holds_no_key_is_refused(tmp_path: Path, content: bytes, why: str) -> None:
    """The message names flag and file and shows nothing of what is in it."""
    file = file_with(tmp_path, content)
    for flag, given in (
        ("--api-key-file", {"api_key_file": str(file)}),
        ("--judge-api-key-file", {"judge_model_args": {"api_url": URL, "api_key_file": str(file)}}),
    ):
        with pytest.raises(ConfigError) as caught:
            settled(**given)
        assert str(caught.value).startswith(f"{flag}: {file}: {why}")
        assert "secret" not in str(caught.value)
        assert "sk-" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "why"), [("gone", "cannot be read: No such file"), ("", "cannot be read: Is a directory"),
                      ("nul\0", "is no name of a file")]
)  # fmt: skip
def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, name: str, why: str) -> None:
    """What the system says of it is told."""
    with pytest.raises(ConfigError, match="--api-key-file: ") as caught:
        settled(api_key_file=f"{tmp_path}/{name}")
    assert why in str(caught.value)


def test_a_key_and_a_key_file_are_refused_together(tmp_path: Path) -> None:
    """Which is meant is not guessed, and neither is shown."""
    file = str(file_with(tmp_path, "sk-secret-1"))
    with pytest.raises(ConfigError, match="--api-key and --api-key-file are both given"):
        settled(api_key="sk-secret-2", api_key_file=file)
    both = {"api_url": URL, "api_key": "sk-secret-2", "api_key_file": file}
    with pytest.raises(ConfigError, match="--judge-api-key and --judge-api-key-file are both given"):
        settled(judge_model_args=both)


def test_a_run_does_not_keep_which_file_held_the_key(tmp_path: Path) -> None:
    """Nor who vouched for the server: and what somebody else's run says of that is not heeded."""
    file = str(file_with(tmp_path, "sk-secret"))
    settings = settled(api_key_file=file, judge_model_args={"api_url": URL, "api_key_file": file})
    assert file not in json.dumps(settings.stored)
    theirs = {
        **settings.stored,
        "api_key_file": file,
        "ca_file": file,
        "judge_model_args": {"api_url": URL, "api_key_file": file},
    }
    again = resolve(TaskConfig().over(theirs), {"OPENAI_API_KEY": "mine"})
    assert model_endpoint(again).authorization is None
    assert judge_endpoint(again).authorization == "Bearer mine"
    assert model_endpoint(again).ca_file is None


def eval_flags(url: str, data: Path, *more: str) -> list[str]:
    """Return flags of a small evaluation."""
    return ["eval", "--model", "m", "--api-url", url, "--data", str(data), "--judge-model", "j",
            "--judge-api-url", url, *more]  # fmt: skip


@pytest.mark.skipif(os.name != "posix", reason="rights of files are POSIX's")
def test_key_files_from_start_to_resume(tmp_path: Path) -> None:
    """They are read, a file that others may read is told of once, and the command to resume names them."""
    data = write_data(tmp_path / "data", each=1, tasks=["sound_QA"])
    model, judge = tmp_path / "model key", tmp_path / "judge.key"
    for path in (model, judge):
        path.write_text(f"sk-{path.stem.replace(' ', '-')}\n", encoding="utf-8")
    model.chmod(0o644)
    judge.chmod(0o600)
    files = ["--api-key-file", str(model), "--judge-api-key-file", str(judge)]
    with ScriptedServer(lambda _seen, _attempt: Response(status=401)) as server:
        done = otoscope(*eval_flags(server.url, data, *files, "--run-dir", str(tmp_path / "run")))
    assert done.returncode == 4
    assert server.requests[0].headers["authorization"] == "Bearer sk-model-key"
    assert done.stderr.count("chmod 600") == 1
    assert f"others than its owner may read {model}, which holds a key: chmod 600 '{model}'" in " ".join(
        done.stderr.split()
    )
    assert f"--api-key-file '{model}' --judge-api-key-file {judge}" in done.stderr
    assert "..." not in done.stderr
    with ScriptedServer() as server:
        url = ["--api-url", server.url, "--judge-api-url", server.url]
        resumed = otoscope("eval", "--use-cache", str(tmp_path / "run"), *files, *url)
        assert resumed.returncode == 0, resumed.stderr
        another = ["--judge-model", "k", "--judge-api-url", server.url, "--judge-api-key-file", str(judge)]
        judged = otoscope("judge", str(tmp_path / "run"), *another)
        assert judged.returncode == 0, judged.stderr
        assert server.requests[-1].headers["authorization"] == "Bearer sk-judge"


# --- keys on the command line -----------------------------------------------------------------------------

WARNING = "otoscope: warning: others on this machine can see a key"
REAL = "sk-proj-Q7vZm2Kx9pLw4RtY"


@pytest.mark.parametrize(
    ("flags", "instead"),
    [
        (["--api-key", REAL], "(--api-key) in the list of processes; give it with --api-key-file FILE"),
        (["--judge-api-key", REAL], "--judge-api-key-file FILE or OTOSCOPE_JUDGE_API_KEY"),
        (["--judge-model-args", f'{{"api_key": "{REAL}"}}'], "(--judge-model-args)"),
        (["--judge-model-args", f'{{"extra_headers": {{"api-key": "{REAL}"}}}}'], "(--judge-model-args)"),
        (["--judge-model-args", f"api_key={REAL}"], "(--judge-model-args)"),
        (["--extra-headers", f'{{"Authorization": "Bearer {REAL}"}}'], "(--extra-headers)"),
        (["--generation-config", f'{{"extra_headers": {{"X-Token": "{REAL}"}}}}'], "(--generation-config)"),
        (["--api-url", "http://user:hunter2@127.0.0.1:9/v1"], "give it with OTOSCOPE_API_URL"),
        (["--api-url", f"{URL}?key={REAL}"], "(--api-url)"),
        (["--judge-api-url", "http://user:hunter2@127.0.0.1:9/v1"], "OTOSCOPE_JUDGE_API_URL"),
        (["--api-key", REAL, "--judge-api-key", REAL], "(--api-key, --judge-api-key)"),
    ],
    ids=lambda value: " ".join(value[::2]) if isinstance(value, list) else "",
)
def test_a_key_on_the_command_line_is_warned_of(flags: list[str], instead: str) -> None:
    """In one line, without the key, and with what to use instead."""
    line = warning_of_keys(command_parser().parse_args(["eval", *flags]))
    assert line is not None
    assert line.startswith(WARNING)
    assert instead in line
    assert not any(secret in line for secret in (REAL, "hunter2", "\n"))


def test_the_warning_is_told_once(tmp_path: Path) -> None:
    """On stderr, before anything else, also by the command that judges."""
    for command in (["eval", "--dry-run"], ["judge", str(tmp_path)]):
        done = otoscope(*command, "--judge-api-key", REAL)
        assert done.stderr.startswith(WARNING)
        assert done.stderr.count("warning:") == 1
        assert REAL not in done.stdout + done.stderr


def test_placeholders_and_the_environment_are_not_warned_of(tmp_path: Path) -> None:
    """A server without a key is given a placeholder, and the environment is the better way."""
    (tmp_path / "the.key").write_text(REAL, encoding="utf-8")
    done = otoscope(
        "eval", "--model", "m", "--dry-run", "--data", str(tmp_path / "gone"), "--api-url", URL,
        "--api-key", "EMPTY", "--judge-api-key-file", str(tmp_path / "the.key"),
        "--judge-model-args", '{"extra_headers": {"X-Project": "q7vzm2kx9plw4rty"}}',
        environ={"OPENAI_API_KEY": REAL, "OTOSCOPE_JUDGE_API_URL": "http://user:hunter2@127.0.0.1:9/v1"},
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert "warning" not in done.stderr
