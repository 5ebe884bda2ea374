"""``otoscope config show``, as the real command."""

from __future__ import annotations

import json
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from otoscope.config import TaskConfig
from tests.scripted_server import ScriptedServer
from tests.support import DEMO, otoscope, write_config, write_data

GONE = "http://127.0.0.1:9/v1"


def shown(
    *arguments: str, cwd: Path, environ: dict[str, str] | None = None
) -> list[dict[str, dict[str, Any]]]:
    """Return what is told of each model's settings, by name."""
    done = otoscope("config", "show", *arguments, "--format", "json", cwd=cwd, environ=environ)
    assert done.returncode == 0, done.stderr
    return [{one["name"]: one for one in model["settings"]} for model in json.loads(done.stdout)]


def test_every_setting_is_told_with_its_origin(tmp_path: Path) -> None:
    """Flag, variable, line of the file, stored run and default are told apart; nothing is sent."""
    data = write_data(tmp_path / "data", each=1, tasks=["music_QA"])
    with ScriptedServer() as server:
        file = write_config(
            tmp_path, server.url, data, "- a\n- {model: b, limit: 3, generation_config: {top_p: 1}}\n"
        )
        sent = len(server.requests)
        a, b = shown(
            "--config", file, "--seed", "5", "--timeout", "7", "--tasks", "music", "--tag", "k=v",
            cwd=tmp_path, environ={"OTOSCOPE_API_KEY": "s3cret", "OTOSCOPE_JUDGE_API_URL": GONE},
        )  # fmt: skip
        assert len(server.requests) == sent
    told = {name: (one["value"], one["from"]) for name, one in b.items()}
    assert told["model"] == ("b", f"{file}:12")
    assert told["limit"] == (3, f"{file}:12")
    assert told["seed"] == (5, "flag --seed")
    assert told["generation_config.timeout"] == (7.0, "flag --timeout")
    assert told["generation_config.retry_interval"] == (0.01, f"{file}:3")
    assert told["generation_config.top_p"] == (1, f"{file}:12")
    assert told["generation_config.max_tokens"] == (2048, "default")
    assert told["api_key"] == ("***", "environment variable OTOSCOPE_API_KEY")
    assert told["judge_model_args.api_url"] == (GONE, "environment variable OTOSCOPE_JUDGE_API_URL")
    assert told["judge_model_args.api_key"] == ("***", f"{file}:7")
    assert told["tags.k"] == ("v", "flag --tag")
    assert told["dataset_args.air_bench_chat.extra_params.tasks"] == (
        ["music_QA", "music_generation_analysis_QA"],
        "flag --tasks",
    )
    assert (a["limit"]["value"], a["limit"]["from"]) == (None, "default")
    assert a.keys() - b.keys() == set()


def test_a_stored_run_is_an_origin(tmp_path: Path) -> None:
    """What a run that is continued has, and nobody says, is told to be the run's."""
    data = write_data(tmp_path / "data", each=1, tasks=["music_QA"])
    with ScriptedServer() as server:
        done = otoscope(
            "eval", "--model", "m", "--api-url", server.url, "--data", str(data), "--no-judge",
            "--run-dir", "run", "--seed", "9", cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    (told,) = shown("--use-cache", "run", "--label", "x", cwd=tmp_path)
    assert (told["seed"]["value"], told["seed"]["from"]) == (9, "stored run run")
    assert told["label"]["from"] == "flag --label"
    assert told["api_url"]["from"] == "stored run run"


def test_every_field_is_told(tmp_path: Path) -> None:
    """Each setting that a run can be given is listed, whoever added it."""
    (told,) = shown("--model", "m", "--api-url", GONE, cwd=tmp_path)
    named = {name.split(".")[0] for name in told}
    assert named == {f.name for f in fields(TaskConfig) if f.init}


def test_wrong_settings_are_shown_with_what_is_wrong(tmp_path: Path) -> None:
    """What was said is still listed, the error names the line, and the exit code is that of usage."""
    write_config(tmp_path, GONE, DEMO, "- {model: a, limit: ten}\n- b\n")
    done = otoscope("config", "show", "--config", "two.yaml", "--seed", "3", cwd=tmp_path)
    assert done.returncode == 2
    assert "two.yaml:11: limit: 'ten'" in done.stderr
    assert "ten" in done.stdout
    assert "flag --seed" in done.stdout
    assert done.stdout.index("Model 2 of 2: b") > done.stdout.index("ten")


def test_it_shows_a_model_inside_of_the_process(tmp_path: Path) -> None:
    """A model without an address has no settings of one, whatever the environment says."""
    (told,) = shown(
        "--model", "baseline", "--judge-model", "embedded", cwd=tmp_path,
        environ={"OTOSCOPE_JUDGE_API_KEY": "k", "OTOSCOPE_API_KEY": "k"},
    )  # fmt: skip
    assert told["api_key"]["from"] == "default"
    assert told["judge_model_args.model_id"]["value"] == "embedded"


@pytest.mark.parametrize("models", ["- a\n- {model: b, label: 010, rpm: 5}\n", "- a\n"])
def test_as_a_file_it_says_the_same(tmp_path: Path, models: str) -> None:
    """--format yaml is a file for --config under which every setting is what it was, but for the keys."""
    write_config(tmp_path, GONE, DEMO, models, "max_judge_calls: 7\njudge_price: [1, 2.5]")
    flags = (
        "--tasks",
        "music",
        "--tag",
        "version=1.10",
        "--work-dir",
        "out",
        "--generation-config",
        "top_p=1e-3",
    )
    done = otoscope("config", "show", "--config", "two.yaml", *flags, "--format", "yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    elsewhere = tmp_path / "else" / "where"
    elsewhere.mkdir(parents=True)
    (elsewhere / "again.yaml").write_text(done.stdout, encoding="utf-8")
    before = shown("--config", "two.yaml", *flags, cwd=tmp_path)
    after = shown("--config", "else/where/again.yaml", cwd=tmp_path)
    for one, other in zip(before, after, strict=True):
        work_dir = one.pop("work_dir"), other.pop("work_dir")
        assert [told["value"] for told in work_dir] == ["out", str(tmp_path / "out")]
        assert {n: told["value"] for n, told in one.items() if not n.endswith("api_key")} == {
            n: told["value"] for n, told in other.items() if not n.endswith("api_key")
        }


@pytest.mark.skipif(os.name != "posix", reason="rights as POSIX has them")
def test_a_key_in_a_file_that_others_can_read_is_warned_of(tmp_path: Path) -> None:
    """As for key files; and the key is in nothing that is printed or written."""
    data = write_data(tmp_path / "data", each=1, tasks=["music_QA"])
    with ScriptedServer() as server:
        models = "- {model: a, api_key: sk-s3cret-of-a}\n- b\n"
        file = write_config(tmp_path, server.url, data, models)
        for rights, warned in ((0o644, True), (0o600, False)):
            (tmp_path / file).chmod(rights)
            done = otoscope("eval", "--config", file, cwd=tmp_path)
            assert done.returncode == 0, done.stderr
            assert ("chmod 600 two.yaml" in done.stderr) is warned
            shown = otoscope("config", "show", "--config", file, cwd=tmp_path)
            assert "***" in shown.stdout
            assert "s3cret" not in done.stdout + done.stderr + shown.stdout + shown.stderr
        keys = {seen.headers.get("authorization") for seen in server.requests if seen.model in ("a", "b")}
        assert keys == {"Bearer sk-s3cret-of-a", None}
    written = b"".join(path.read_bytes() for path in (tmp_path / "outputs").rglob("*") if path.is_file())
    assert b"s3cret" not in written
