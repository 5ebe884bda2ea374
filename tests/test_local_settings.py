"""A local model as it is asked for: which names are one, how it is loaded and asked, what is stored of it."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from otoscope.config import LocalSettings, Settings, TaskConfig, changed_fields, fingerprint, resolve
from otoscope.errors import ConfigError
from otoscope.refusal import refusal
from tests.support import otoscope, write_data


def resolved(model: str, environ: dict[str, str] | None = None, **more: Any) -> Settings:
    """Resolve a run without a judge."""
    return resolve(TaskConfig(model=model, no_judge=True, **more), environ or {})


def local(model: str, **more: Any) -> LocalSettings:
    """Return the settings of a model that is local."""
    found = resolved(model, **more).model
    assert isinstance(found, LocalSettings)
    return found


def refused(model: str, **more: Any) -> str:
    """Return why a run is not begun."""
    with pytest.raises(ConfigError) as caught:
        resolved(model, **more)
    return str(caught.value)


def test_a_folder_is_a_model_called_as_the_folder_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that exists is a local model; its absolute path is stored, so that a resume finds it."""
    (tmp_path / "my-model").mkdir()
    monkeypatch.chdir(tmp_path)
    found = local("my-model")
    assert (found.name, found.source, found.on_hub) == ("my-model", str(tmp_path / "my-model"), False)
    assert resolved("my-model").stored["model"] == str(tmp_path / "my-model")


def test_an_id_of_the_hub_is_a_model() -> None:
    """``org/name`` without a URL is on the hub; what nothing is said of is greedy, one sample at a time."""
    found = local("Qwen/Qwen2-Audio-7B-Instruct")
    assert (found.name, found.on_hub, found.calls) == ("Qwen/Qwen2-Audio-7B-Instruct", True, 1)
    assert found.parameters == {"temperature": 0, "max_tokens": 2048}
    assert not found.trust_remote_code


def test_with_a_url_it_is_a_servers_model(tmp_path: Path) -> None:
    """A server may call its model by a folder, or by an id of the hub."""
    for model in (str(tmp_path), "Qwen/Qwen2-Audio-7B-Instruct"):
        for more in (
            {"api_url": "http://127.0.0.1:1/v1"},
            {"environ": {"OTOSCOPE_API_URL": "http://127.0.0.1:1"}},
        ):
            assert not isinstance(resolved(model, **more).model, LocalSettings)


@pytest.mark.parametrize("model", ["./nowhere", "/nowhere/at/all", "~/nowhere-at-all"])
def test_a_folder_that_is_not_there_is_no_model(model: str) -> None:
    """What can only be a folder is not looked for on a server or a hub."""
    assert "there is no such folder" in refused(model)


@pytest.mark.parametrize("model", ["mine.py", "lab/mine.py", "./mine.py"])
def test_a_file_of_python_wants_a_name(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is neither a folder nor a hub's model, and no server's; what is in it has a name."""
    monkeypatch.chdir(tmp_path)
    assert "name what is in it" not in refused("mine.py")
    (tmp_path / "lab").mkdir()
    (tmp_path / model).touch()
    for environ in ({}, {"OTOSCOPE_API_URL": "http://127.0.0.1:1"}):
        assert refused(model, environ=environ).endswith(f"name what is in it: --model {model}:NAME")
    assert resolved(model, api_url="http://127.0.0.1:1").model.name == model


def test_a_bare_word_names_every_way() -> None:
    """Without a URL a word alone is neither folder nor id; the ways are named."""
    told = refused("my-model")
    assert "--api-url" in told
    assert "org/name" in told
    assert "--model FOLDER" in told
    assert "file.py:NAME" in told


@pytest.mark.parametrize(
    ("given", "parameters"),
    [
        ({}, {}),
        ({"temperature": 0.7, "top_p": 0.9}, {"temperature": 0.7, "top_p": 0.9, "max_tokens": 2048}),
        ({"max_completion_tokens": 5}, {"temperature": 0, "max_tokens": 5}),
        ({"temperature": None}, {"max_tokens": 2048}),
        ({"stop": "\n"}, {"temperature": 0, "max_tokens": 2048, "stop": ["\n"]}),
    ],
)
def test_decoding_is_asked_for_as_of_a_server(given: dict[str, Any], parameters: dict[str, Any]) -> None:
    """The names and defaults are those of a server's requests; an empty object leaves all to the model."""
    assert local("lab/model", generation_config=given).parameters == parameters


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"presence_penalty": 1}, "'presence_penalty' is nothing that a local model is asked with"),
        ({"max_new_tokens": 1}, "did you mean 'max_tokens'?"),
        ({"temprature": 1}, "did you mean 'temperature'?"),
        ({"temperature": "hot"}, "generation_config.temperature"),
        ({"max_tokens": 0}, "generation_config.max_tokens"),
        ({"top_k": 1.5}, "generation_config.top_k"),
        ({"stop": 3}, "generation_config.stop"),
    ],
)
def test_decoding_that_there_is_not_is_refused(given: dict[str, Any], told: str) -> None:
    """A parameter of servers alone, a slip of the pen and a wrong type are named."""
    assert told in refused("lab/model", generation_config=given)


@pytest.mark.parametrize("name", ["api_key", "extra_body", "extra_headers", "stream", "rpm", "audio_part"])
def test_what_only_a_server_takes_is_refused(name: str) -> None:
    """A setting that would have no effect is not passed over."""
    values: dict[str, Any] = {"extra_body": {"a": 1}, "extra_headers": {"a": "b"}, "stream": True, "rpm": 5.0}
    given = values.get(name, "input_audio" if name == "audio_part" else "k")
    assert f"{name}: is for a model behind a server" in refused("lab/model", **{name: given})


def test_model_arguments_are_passed_on_under_their_names_of_now() -> None:
    """The old name of dtype is its new one, as are Python's own spelling and a revision among them."""
    found = local(
        "lab/model",
        model_args={"torch_dtype": "torch.bfloat16", "revision": "v2", "attn_implementation": "sdpa"},
    )
    assert found.model_args == {"dtype": "bfloat16", "attn_implementation": "sdpa"}
    assert found.revision == "v2"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"token": "hf_secret"}, "HF_TOKEN"),
        ({"cache_dir": "/x"}, "HF_HUB_CACHE"),
        ({"dtype": "float16", "torch_dtype": "float32"}, "torch_dtype is the old name"),
        ({"trust_remote_code": "yes"}, "model_args.trust_remote_code"),
        ({"revision": "other"}, "different revisions"),
    ],
)
def test_model_arguments_that_are_none_are_refused(given: dict[str, Any], told: str) -> None:
    """A token above all: it would be stored with the run. It is not repeated in the message either."""
    message = refused("lab/model", model_args=given, model_revision="v1")
    assert told in message
    assert "hf_secret" not in message


def test_trust_is_neither_stored_nor_taken_from_a_run() -> None:
    """Whether code that comes with weights is run, nobody's run directory decides."""
    given = {"dtype": "float32", "trust_remote_code": True}
    settings = resolved("lab/model", model_args=given)
    assert isinstance(settings.model, LocalSettings)
    assert settings.model.trust_remote_code
    assert settings.stored["model_args"] == {"dtype": "float32"}
    foreign = {"model": "lab/model", "model_args": given, "no_judge": True}
    resumed = resolve(TaskConfig(no_judge=True).over(foreign), {}).model
    assert isinstance(resumed, LocalSettings)
    assert not resumed.trust_remote_code
    assert resumed.model_args == {"dtype": "float32"}


def requested(checkpoint: dict[str, str] | None, **more: Any) -> dict[str, Any]:
    """Return the fingerprint of a run with a local model whose weights were found to be these."""
    settings = resolved("lab/model", **more)
    assert isinstance(settings.model, LocalSettings)
    settings = replace(settings, model=replace(settings.model, checkpoint=checkpoint))
    return fingerprint(settings, judge_prompt_sha256="", parser_version=1)


def test_other_weights_and_arguments_are_another_model() -> None:
    """What an answer depends on is compared, by name; where the model lies in memory is not part of it."""
    before = requested({"commit": "a"}, model_args={"dtype": "float16", "device_map": "cpu"})
    assert changed_fields(before, requested({"commit": "b"}, model_args={"dtype": "float32"})) == {
        "model.checkpoint": ({"commit": "a"}, {"commit": "b"}),
        "model.model_args": ({"dtype": "float16"}, {"dtype": "float32"}),
    }


def test_weights_that_were_not_looked_up_are_no_difference() -> None:
    """A dry run fetches nothing, and cannot tell; nor is a branch's name one, of the same commit."""
    before = requested({"commit": "a"})
    assert not changed_fields(before, requested(None))
    assert not changed_fields(before, requested({"commit": "a"}, model_revision="main"))


def test_a_refusal_says_how_to_have_the_old_weights() -> None:
    """On the hub the old commit is still there, and the command names it; a folder is what it is."""
    for was, way in (
        ({"commit": "abc123"}, "--model-revision abc123"),
        ({"digest": "d"}, "files as they were"),
    ):
        before, settings = requested(was), resolved("lab/model")
        changes = {"model.checkpoint": (was, {"commit": "now"})}
        assert way in refusal(Path("run"), before, settings, changes, answers_too=True)


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="the extra is installed")
def test_a_missing_extra_is_named(tmp_path: Path) -> None:
    """Without torch, a local model is an error that says what to install; no run directory is made."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"model_type": "qwen2_audio"}), encoding="utf-8")
    data = write_data(tmp_path / "data", each=1, tasks=["speech_QA"])
    run = tmp_path / "run"
    done = otoscope("eval", "--model", str(model), "--data", str(data), "--no-judge", "--run-dir", str(run))
    assert done.returncode == 2
    assert "pip install 'otoscope[local]'" in done.stderr
    assert not run.exists()
