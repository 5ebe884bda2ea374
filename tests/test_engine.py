"""What may be asked of an engine, before any is started: the rest is in tests/extras/test_ray.py."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from otoscope import TaskConfig
from otoscope.config import FunctionSettings, RaySettings, judging_only, resolve
from otoscope.errors import ConfigError
from tests.support import config, otoscope, write_data


def answer(audio: Any, question: str) -> str:
    """Stand for a model."""
    return question


def settings_of(environ: dict[str, str] | None = None, **given: Any) -> RaySettings | None:
    """Return what is resolved for the model above."""
    model = resolve(TaskConfig(model=answer, no_judge=True, **given), environ or {}).model
    assert isinstance(model, FunctionSettings)
    return model.engine


def test_without_an_engine_this_process_asks() -> None:
    """Whatever the environment says of Ray."""
    assert settings_of({"RAY_ADDRESS": "a:1"}) is None


@pytest.mark.parametrize(
    ("given", "environ", "engine"),
    [
        ({}, {}, RaySettings(address="local", gpus=None, workers=None)),
        ({}, {"RAY_ADDRESS": "head:6379"}, RaySettings(address="head:6379", gpus=None, workers=None)),
        (
            {"ray_address": "auto", "gpus_per_model": 0.5, "ray_workers": 3},
            {"RAY_ADDRESS": "head:6379"},
            RaySettings(address="auto", gpus=0.5, workers=3),
        ),
        ({"gpus_per_model": 2}, {}, RaySettings(address="local", gpus=2.0, workers=None)),
    ],
)
def test_an_address_goes_before_the_environments(
    given: dict[str, Any], environ: dict[str, str], engine: RaySettings
) -> None:
    """As a job of Ray has it; without either, a Ray of its own is started."""
    assert settings_of(environ, engine="ray", **given) == engine


def test_what_asks_for_it_again_is_all_of_it() -> None:
    """For the command that goes on with a run, which keeps none of it."""
    engine = settings_of(engine="ray", ray_address="head:1", gpus_per_model=0.5, ray_workers=3)
    assert engine is not None
    assert " ".join(engine.flags) == (
        "--engine ray --gpus-per-model 0.5 --ray-workers 3 --ray-address head:1"
    )
    assert RaySettings(address="local", gpus=None, workers=None).flags == ["--engine", "ray"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"engine": "rey"}, "engine: 'rey' is not one of ray, did you mean 'ray'?"),
        ({"gpus_per_model": 1}, "gpus_per_model would have no effect without --engine ray"),
        ({"ray_workers": 2, "ray_address": "auto"}, "ray_address, ray_workers would have no effect"),
        ({"engine": "ray", "gpus_per_model": 1.5}, "must be a whole number, or a fraction below 1"),
        ({"engine": "ray", "gpus_per_model": -1}, "gpus_per_model: -1 must be a number from 0"),
        ({"engine": "ray", "gpus_per_model": float("nan")}, "gpus_per_model: nan must be a number"),
        ({"engine": "ray", "gpus_per_model": 1e-5}, "Ray has no smaller share than 0.0001"),
        ({"engine": "ray", "ray_workers": 0}, "ray_workers: 0 must be a whole number from 1 up"),
        ({"engine": "ray", "ray_address": ""}, "ray_address: is empty"),
        ({"engine": "ray", "ray_address": "ray://head:10001"}, "--ray-address auto joins it"),
    ],
)
def test_what_no_engine_can_do_is_refused(given: dict[str, Any], said: str) -> None:
    """By the setting's name."""
    with pytest.raises(ConfigError) as refused:
        settings_of(**given)
    assert said in str(refused.value)


@pytest.mark.parametrize("given", [{"engine": "ray"}, {"ray_workers": 2}])
@pytest.mark.parametrize("model", ["served", "baseline"])
def test_a_model_that_is_not_in_python_has_no_engine(given: dict[str, Any], model: str) -> None:
    """Nobody should believe that a server's model was spread over GPUs."""
    asked = config("http://127.0.0.1:1/v1", Path("data"), model=model, **given)
    if model == "baseline":
        asked.api_url = None
        asked.generation_config = None
    with pytest.raises(ConfigError, match="is asked by no engine of ours"):
        resolve(asked, {})


def test_an_engine_is_no_part_of_what_a_run_keeps() -> None:
    """Its answers are the same; and no run directory's word is enough for joining a cluster."""
    asked = TaskConfig(model=answer, no_judge=True, engine="ray", ray_address="head:1", ray_workers=2)
    assert not {"engine", "ray_address", "ray_workers"} & set(resolve(asked, {}).stored)
    stored = {"engine": "ray", "ray_address": "evil:1"}
    assert TaskConfig(model=answer).over(stored).ray_address is None
    assert judging_only(asked).engine is None


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed")
def test_without_ray_the_extra_is_named(tmp_path: Path) -> None:
    """Before any run is begun."""
    write_data(tmp_path / "data", each=1, tasks=["speech_QA"])
    (tmp_path / "model.py").write_text("def answer(audio, question):\n    return 'x'\n", encoding="utf-8")
    done = otoscope(
        "eval", "--model", "model.py:answer", "--data", "data", "--no-judge", "--run-dir", "run",
        "--engine", "ray", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 2
    assert "--engine ray needs Ray: pip install 'otoscope[ray]'" in done.stderr
    assert "Python on Ray (local), 1 at a time for each worker" in done.stderr
    assert not (tmp_path / "run").exists()
