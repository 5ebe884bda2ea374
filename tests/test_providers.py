"""Providers by name: what each stands for, whose key goes where, what is stored, and the page about them."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from otoscope import choices, load_run
from otoscope.cli.arguments import judge_config, task_config
from otoscope.cli.parser import command_parser
from otoscope.config import (
    PROVIDERS,
    Settings,
    TaskConfig,
    changed_fields,
    environment_secrets,
    fingerprint,
    resolve,
)
from otoscope.errors import ConfigError
from scripts.provider_table import PAGE, page_with_table
from tests.scripted_server import ScriptedServer, require_key, scripted_answers
from tests.support import judge_endpoint, lines, model_endpoint, otoscope, write_data

AZURE = "https://ears.openai.azure.com"
ENVIRON = {
    "AZURE_OPENAI_ENDPOINT": f"{AZURE}/",
    **{provider.key: f"{name}-key-1" for name, provider in PROVIDERS.items() if provider.key is not None},
}
HOSTED = [name for name, provider in PROVIDERS.items() if not provider.local]


def settled(environ: Mapping[str, str] = ENVIRON, **given: Any) -> Settings:
    """Resolve settings, without a judge unless one is given."""
    fields = {"model": "m", "no_judge": "judge_model_args" not in given or None, **given}
    fields["dataset_args"] = {"air_bench_chat": {"local_path": "."}}
    return resolve(TaskConfig(**fields), environ)


def refused(environ: Mapping[str, str] = ENVIRON, **given: Any) -> str:
    """Return what is said of settings that are refused."""
    with pytest.raises(ConfigError) as caught:
        settled(environ, **given)
    return str(caught.value)


def prints(settings: Settings) -> dict[str, Any]:
    """Return the fingerprint."""
    return fingerprint(settings, judge_prompt_sha256="p", parser_version=1)


def url_of(name: str) -> str:
    """Return a provider's URL in this environment."""
    return PROVIDERS[name].url.replace("{AZURE_OPENAI_ENDPOINT}", AZURE)


def key_of(name: str) -> str | None:
    """Return what is sent as the key of a provider in this environment."""
    return None if PROVIDERS[name].key is None else f"Bearer {name}-key-1"


# --- what a name stands for -------------------------------------------------------------------------------


def test_the_table_has_the_names_that_flags_take() -> None:
    """In the same order; every form of a clip in it is one."""
    assert tuple(PROVIDERS) == choices.PROVIDERS
    assert {provider.audio_part for provider in PROVIDERS.values()} <= set(choices.AUDIO_PARTS)


@pytest.mark.parametrize("name", choices.PROVIDERS)
def test_a_model_s_provider(name: str) -> None:
    """URL, key, form of the clip and streaming are the table's; no other form is tried."""
    settings = settled(provider=name)
    endpoint = model_endpoint(settings)
    assert endpoint.shown_url == url_of(name)
    assert endpoint.authorization == key_of(name)
    assert endpoint.stream == PROVIDERS[name].stream
    assert (settings.prompt.audio_part, settings.prompt.audio_fallbacks) == (PROVIDERS[name].audio_part, ())
    assert dict(endpoint.parameters) == {"temperature": 0, "max_tokens": 2048}


@pytest.mark.parametrize("name", choices.PROVIDERS)
def test_a_judge_s_provider(name: str) -> None:
    """URL and key alone; a server of one's own may do without a key."""
    endpoint = judge_endpoint(settled(provider="vllm", judge_model_args={"model_id": "j", "provider": name}))
    assert endpoint.shown_url == url_of(name)
    assert endpoint.authorization == key_of(name)
    assert not endpoint.stream


@pytest.mark.parametrize("endpoint", [AZURE, f"{AZURE}/openai/v1", f" {AZURE}/openai/v1/ "])
def test_azure_s_address_is_in_a_variable(endpoint: str) -> None:
    """With or without the path; where it is missing, that is said."""
    settings = settled({**ENVIRON, "AZURE_OPENAI_ENDPOINT": endpoint}, provider="azure")
    assert model_endpoint(settings).url == f"{AZURE}/openai/v1/chat/completions"
    assert "Set AZURE_OPENAI_ENDPOINT" in refused({"AZURE_OPENAI_API_KEY": "k"}, provider="azure")
    given = settled({"AZURE_OPENAI_API_KEY": "k"}, provider="azure", api_url="https://other.test/openai/v1")
    assert model_endpoint(given).shown_url == "https://other.test/openai/v1"


def test_what_is_given_goes_before_the_provider() -> None:
    """Each of its values can be replaced by itself."""
    settings = settled(
        provider="dashscope",
        api_url="https://b.test/v1,https://a.test/v1",
        api_key="mine",
        audio_part="data_uri",
        stream=False,
    )
    endpoint = model_endpoint(settings)
    assert endpoint.shown_url == "https://a.test/v1,https://b.test/v1"
    assert [one.authorization for one in endpoint.replicas] == ["Bearer mine"] * 2
    assert settings.prompt.audio_part == "data_uri"
    assert not endpoint.stream
    assert not model_endpoint(settled(provider="dashscope", generation_config={"stream": False})).stream
    assert dict(model_endpoint(settled(provider="dashscope", generation_config={})).parameters) == {}


def test_a_provider_goes_before_addresses_of_the_environment() -> None:
    """So that its key is sent to nobody else."""
    environ = {
        **ENVIRON,
        "OTOSCOPE_API_URL": "http://elsewhere.test/v1",
        "OTOSCOPE_JUDGE_API_URL": "http://elsewhere.test/v1",
        "OPENAI_BASE_URL": "http://elsewhere.test/v1",
    }
    settings = settled(environ, provider="gemini", judge_model_args={"provider": "openai"})
    assert model_endpoint(settings).shown_url == url_of("gemini")
    assert judge_endpoint(settings).shown_url == url_of("openai")


def test_a_key_is_for_its_own_role_and_provider() -> None:
    """Neither role gets what the other's provider has, and no provider another's."""
    settings = settled(provider="openai", judge_model_args={"provider": "gemini"})
    assert model_endpoint(settings).authorization == "Bearer openai-key-1"
    assert judge_endpoint(settings).authorization == "Bearer gemini-key-1"
    only_openai = {"OPENAI_API_KEY": "openai-key-1"}
    assert "GEMINI_API_KEY" in refused(only_openai, provider="vllm", judge_model_args={"provider": "gemini"})
    assert "set GEMINI_API_KEY" in refused(only_openai, provider="gemini")
    assert model_endpoint(settled(only_openai, provider="vllm")).authorization is None
    assert model_endpoint(settled(api_url="http://a.test/v1")).authorization is None


def test_otoscope_s_own_variable_stands_in_for_a_missing_key() -> None:
    """The provider's own goes before it: the other may be another server's."""
    environ = {"OTOSCOPE_API_KEY": "mine", "OTOSCOPE_JUDGE_API_KEY": "the-judge-s"}
    settings = settled(environ, provider="openai", judge_model_args={"provider": "gemini"})
    assert model_endpoint(settings).authorization == "Bearer mine"
    assert judge_endpoint(settings).authorization == "Bearer the-judge-s"
    assert model_endpoint(settled({**ENVIRON, **environ}, provider="openai")).authorization == key_of(
        "openai"
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"provider": "opnai"}, "did you mean 'openai'?"),
        ({"provider": "vllm", "judge_model_args": {"provider": "gemni"}}, "did you mean 'gemini'?"),
        ({"provider": ""}, "provider: is empty"),
        ({"provider": "vllm", "model": "baseline"}, "a model inside of this process has no provider"),
        (
            {"provider": "vllm", "judge_model_args": {"provider": "openai", "model_id": "embedded"}},
            "judge_model_args.provider: a model inside of this process has no provider",
        ),
    ],
)
def test_a_provider_that_cannot_be_meant_is_refused(given: dict[str, Any], said: str) -> None:
    """By the field's name."""
    assert said in refused(**given)


def test_keys_of_all_providers_are_secrets() -> None:
    """They are masked in whatever is printed."""
    keys = {f"{name}-key-1" for name, provider in PROVIDERS.items() if provider.key is not None}
    assert keys <= set(environment_secrets(ENVIRON))
    assert "pw-pw-pw" in environment_secrets({"AZURE_OPENAI_ENDPOINT": "https://u:pw-pw-pw@a.test"})


# --- what is stored, and going on -------------------------------------------------------------------------


@pytest.mark.parametrize("name", choices.PROVIDERS)
def test_what_is_stored_is_what_the_name_stood_for(name: str) -> None:
    """The run is the same one without the name, whatever the table says by then."""
    judge = {"model_id": "j", "provider": name}
    settings = settled(provider=name, judge_model_args=judge)
    stored = json.loads(json.dumps(settings.stored))
    assert "provider" not in json.dumps(stored)
    assert "key-1" not in json.dumps(stored)
    assert stored["audio_part"] == PROVIDERS[name].audio_part
    keys = {"OTOSCOPE_API_KEY": "k", "OTOSCOPE_JUDGE_API_KEY": "k"}
    again = resolve(TaskConfig().over(stored), keys)
    assert changed_fields(prints(settings), prints(again)) == {}
    assert model_endpoint(again).stream == model_endpoint(settings).stream
    named = resolve(TaskConfig(provider=name, judge_model_args={"provider": name}).over(stored), ENVIRON)
    assert changed_fields(prints(settings), prints(named)) == {}
    assert model_endpoint(named).authorization == key_of(name)
    assert judge_endpoint(named).authorization == key_of(name)


@pytest.mark.parametrize("name", HOSTED)
def test_a_stored_address_gets_no_provider_s_key_unless_it_is_that_one_s(name: str) -> None:
    """Somebody else may have made the run; who means it says the URL."""
    stored = {
        "model": "m",
        "api_url": "https://mine.test/v1",
        "judge_model_args": {"model_id": "j", "api_url": "https://mine.test/v1"},
    }
    for given in (
        TaskConfig(provider=name, no_judge=True),
        TaskConfig(judge_model_args={"provider": name}),
    ):
        with pytest.raises(ConfigError, match="not https://") as caught:
            resolve(given.over(stored), {**ENVIRON, "OTOSCOPE_API_KEY": "k"})
        assert "api-url" in str(caught.value)
    meant = TaskConfig(provider=name, api_url="https://mine.test/v1", no_judge=True).over(stored)
    assert model_endpoint(resolve(meant, ENVIRON)).authorization == key_of(name)


def test_other_values_of_a_stored_run_stay() -> None:
    """A provider that is named again says only whose key it is."""
    stored = {**settled(provider="vllm").stored, "audio_part": "audio_url", "stream": True}
    settings = resolve(TaskConfig(provider="vllm").over(stored), ENVIRON)
    assert settings.prompt.audio_part == "audio_url"
    assert model_endpoint(settings).stream


def test_a_run_with_a_provider_and_its_resume(tmp_path: Path) -> None:
    """The real command: the key goes out, is kept nowhere, and the printed command goes on."""
    data, run = write_data(tmp_path / "data", each=1, tasks=["speech_QA", "sound_QA"]), tmp_path / "run"
    key = {"LLAMA_API_KEY": "llama-key-77"}
    with ScriptedServer(require_key(scripted_answers(), "llama-key-77")) as server:
        server.stop()
        words = [
            "eval", "--provider", "llama.cpp", "--api-url", server.url, "--model", "scripted-model",
            "--judge-provider", "llama.cpp", "--judge-api-url", server.url, "--judge-model", "scripted-judge",
            "--generation-config", "retry_interval=0.01", "--data", str(data), "--run-dir", str(run),
        ]  # fmt: skip
        dead = otoscope(*words, environ=key)
        assert dead.returncode == 4, dead.stderr
        server.start()
        resume = re.search(r"otoscope eval --use-cache .*", dead.stderr)
        assert resume is not None
        assert "--provider llama.cpp --judge-provider llama.cpp" in resume[0]
        done = otoscope(*shlex.split(resume[0])[1:], environ=key)
        assert done.returncode == 0, done.stderr
    assert load_run(run).summary.counts["scored"] == 2
    assert {line["audio_part"] for line in lines(run / "answers.jsonl")} == {"input_audio"}
    assert all(
        "llama-key-77" not in file.read_text(encoding="utf-8")
        for file in run.rglob("*.json*")
        if file.is_file()
    )


def test_a_refused_key_names_the_variable(tmp_path: Path) -> None:
    """Where it was read from is where it is put right."""
    data = write_data(tmp_path / "data", each=1, tasks=["speech_QA"])
    with ScriptedServer(require_key(scripted_answers(), "another")) as server:
        done = otoscope(
            "eval", "--provider", "openai", "--api-url", server.url, "--model", "m", "--no-judge",
            "--data", str(data), "--run-dir", str(tmp_path / "run"),
            environ={"OPENAI_API_KEY": "wrong-key-1"},
        )  # fmt: skip
    assert done.returncode == 4
    assert "it is read from OPENAI_API_KEY" in " ".join(done.stderr.split())
    assert "wrong-key-1" not in done.stderr


def test_the_bare_uri_of_dashscope(tmp_path: Path) -> None:
    """The clip goes as a data URI without a type, and the reply is streamed."""
    data = write_data(tmp_path / "data", each=1, tasks=["speech_QA"])
    with ScriptedServer(keep_bodies=True) as server:
        done = otoscope(
            "eval", "--provider", "dashscope", "--api-url", server.url, "--model", "scripted-model",
            "--no-judge", "--data", str(data), "--run-dir", str(tmp_path / "run"),
            environ={"DASHSCOPE_API_KEY": "k"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        sent = json.loads(server.requests[0].body)
    part = sent["messages"][0]["content"][0]
    assert part["type"] == "input_audio"
    assert part["input_audio"]["data"].startswith("data:;base64,UklGR")
    assert part["input_audio"]["format"] == "wav"
    assert sent["stream"] is True


# --- the page ---------------------------------------------------------------------------------------------


def test_the_page_s_table_is_the_table() -> None:
    """Where this fails: scripts/provider_table.py --write."""
    page = PAGE.read_text(encoding="utf-8")
    assert page == page_with_table(page)


def commands_of_the_page() -> list[str]:
    """Return every command of ours that the page shows."""
    found = re.findall(r"^\$ (otoscope .*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(found) >= 6
    return found


@pytest.mark.parametrize("line", commands_of_the_page())
def test_the_page_s_commands_are_ours(line: str) -> None:
    """They are parsed by the real parser, and resolve with nothing but what the page says is set."""
    args = command_parser().parse_args(shlex.split(line)[1:])
    environ = {"GEMINI_API_KEY": "k", "OPENAI_API_KEY": "k"}
    if args.command == "judge":
        config = judge_config(args).over({"model": "baseline"})
        assert judge_endpoint(resolve(config, environ)).shown_url == url_of("openai")
    else:
        endpoint = model_endpoint(resolve(task_config(args), environ))
        assert endpoint.shown_url.split(",")[0] == url_of(args.provider)
