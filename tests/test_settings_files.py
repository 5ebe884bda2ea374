"""A file of settings: what is read from YAML, what is refused, and how it stands among other settings."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otoscope.benchmark import BENCHMARK
from otoscope.config import EndpointSettings, Settings, TaskConfig
from otoscope.config.files import MAX_BYTES, SettingsFile, read_settings, text_of
from otoscope.config.layers import Layer
from otoscope.errors import ConfigError
from otoscope.opening import settings_for
from tests.support import model_endpoint

WHOLE = """\
model: m
api_url: http://model.test/v1
dataset_args:
  air_bench_chat:
    local_path: /data
judge_model_args:
  model_id: j
  api_url: http://judge.test/v1
  api_key: judge-key
"""


def read(folder: Path, text: str | bytes) -> SettingsFile:
    """Write a file of settings and read it."""
    path = folder / "settings.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_settings(path)


def values(folder: Path, text: str | bytes) -> dict[str, Any]:
    """Return what a file says of its only model."""
    (layer,) = read(folder, text).models
    return dict(layer.values)


def refused(folder: Path, text: str | bytes) -> str:
    """Return what is said of a file that must be refused, without the folder's name."""
    with pytest.raises(ConfigError) as caught:
        read(folder, text)
    return str(caught.value).replace(f"{folder}/", "")


def settled(folder: Path, text: str, environ: dict[str, str] | None = None, **flags: Any) -> Settings:
    """Resolve a file with flags above it."""
    (layer,) = read(folder, text).models
    return settings_for(TaskConfig.from_layer(Layer(flags).over(layer)), environ or {})


def mistaken(folder: Path, text: str, **flags: Any) -> str:
    """Return what is said of a file that can be read and not be used."""
    with pytest.raises(ConfigError) as caught:
        settled(folder, text, **flags)
    return str(caught.value).replace(f"{folder}/", "")


# --- what is read ----------------------------------------------------------------------------------------


def test_the_names_are_those_of_task_config(tmp_path: Path) -> None:
    """Objects are nested as in Python; JSON is YAML; a mark at the file's start and a null say nothing."""
    assert values(tmp_path, WHOLE)["judge_model_args"]["model_id"] == "j"
    assert values(tmp_path, '{"model": "m", "limit": 0.5, "shuffle": true, "seed": null}') == {
        "model": "m",
        "limit": 0.5,
        "shuffle": True,
    }
    assert values(tmp_path, "\ufeffmodel: m\nlabel:\nrpm: ~\n") == {"model": "m"}


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1", 1),
        ("-7", -7),
        ("1e-3", 0.001),
        ("1.5E+2", 150.0),
        (".5", 0.5),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("no", "no"),
        ("on", "on"),
        ("y", "y"),
        ("010", "010"),
        ("0x1F", "0x1F"),
        ("1_000", "1_000"),
        ("12:30:45", "12:30:45"),
        ("2024-05-01", "2024-05-01"),
        (".inf", ".inf"),
        ("'1'", "1"),
        ('"true"', "true"),
        (".", "."),
        ("e5", "e5"),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_a_word_is_what_it_looks_like(tmp_path: Path, written: str, value: Any) -> None:
    """What YAML 1.1 makes of no, of 010 and of 12:30:45 is made of none of them; 1e-3 is a number."""
    assert values(tmp_path, f"extra_body:\n  x: {written}\n")["extra_body"]["x"] == value
    assert values(tmp_path, f"extra_body: {{x: [[{written or 'null'}]]}}\n")["extra_body"]["x"] == [[value]]


def test_where_a_setting_is_text_text_is_read(tmp_path: Path) -> None:
    """A label, revision, tag or header that looks like a number or like false keeps its characters."""
    said = values(
        tmp_path,
        "model: 7\nlabel: no\nmodel_revision: 1.10\ntags: {version: 1.10, date: 2024-05-01, off: true}\n"
        "extra_headers: {X-Version: 007}\njudge_model_args: {revision: 1e3, extra_headers: {a: on}}\n",
    )
    assert (said["model"], said["label"], said["model_revision"]) == ("7", "no", "1.10")
    assert said["tags"] == {"version": "1.10", "date": "2024-05-01", "off": "true"}
    assert said["extra_headers"] == {"X-Version": "007"}
    assert said["judge_model_args"] == {"revision": "1e3", "extra_headers": {"a": "on"}}


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    """Every path in a file is taken from the file's folder; absolute ones and ~ stay as they are."""
    said = values(
        tmp_path,
        "work_dir: ../out\nrun_dir: runs/a\napi_key_file: ~/key\nca_file: /etc/ca.pem\nweights: w\n"
        "dataset_args: {air_bench_chat: {local_path: data}}\njudge_model_args: {api_key_file: key}\n",
    )
    folder = tmp_path.resolve()
    assert said["work_dir"] == str(folder.parent / "out")
    assert said["run_dir"] == str(folder / "runs" / "a")
    assert (said["api_key_file"], said["ca_file"]) == ("~/key", "/etc/ca.pem")
    assert said["weights"] == str(folder / "w")
    assert said["dataset_args"][BENCHMARK]["local_path"] == str(folder / "data")
    assert said["judge_model_args"]["api_key_file"] == str(folder / "key")
    assert values(tmp_path, "model: mine/model.py:Model\n")["model"] == f"{folder}/mine/model.py:Model"
    assert values(tmp_path, "model: ./weights\n")["model"] == f"{folder}/weights"
    assert values(tmp_path, "model: org/model:7b\n")["model"] == "org/model:7b"


def test_several_models_lie_over_what_they_have_in_common(tmp_path: Path) -> None:
    """An entry is a name or an object; objects are merged key by key, and {} for parameters replaces."""
    file = read(
        tmp_path,
        "api_key: common\ngeneration_config: {temperature: 0, stream: true}\nlimit: 3\n"
        "models:\n- a\n- {model: b, limit: 5, generation_config: {temperature: 1}}\n"
        "- {model: c, label: see, generation_config: {}, api_key_file: /key}\n",
    )
    assert [file.title(one) for one in file.models] == ["a", "b", "see"]
    a, b, c = (one.values for one in file.models)
    assert (a["model"], a["limit"], b["limit"]) == ("a", 3, 5)
    assert b["generation_config"] == {"temperature": 1, "stream": True}
    assert c["generation_config"] == {}
    # Two ways to give a key are no contradiction when one of them is the model's own.
    assert (b.get("api_key"), c.get("api_key"), c.get("api_key_file")) == ("common", None, "/key")
    assert [str(one.origins["limit",])[-2:] for one in file.models] == [":3", ":6", ":3"]
    assert [one.values["model"] for one in file.named("see").models] == ["c"]
    with pytest.raises(ConfigError, match="no model 'sea', did you mean 'see'"):
        file.named("sea")


def test_an_alias_stands_for_what_it_names(tmp_path: Path) -> None:
    """Anchors and aliases work where YAML has them."""
    said = values(
        tmp_path, "generation_config: &g {temperature: 1}\njudge_model_args: {generation_config: *g}"
    )
    assert said["judge_model_args"]["generation_config"] == {"temperature": 1}


# --- what is refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("# nothing\n", "is empty"),
        ("just text", "settings.yaml:1: must be an object"),
        ("\n- model: m\n", "settings.yaml:2: must be an object"),
        ("model: m\nlimt: 3\n", "settings.yaml:2: unknown key 'limt', did you mean 'limit'?"),
        ("model: m\napi-url: u\n", "settings.yaml:2: unknown key 'api-url', did you mean 'api_url'?"),
        ("tasks: [music]\n", "what --tasks says stands in dataset_args.air_bench_chat.extra_params.tasks"),
        ("model: m\nlimit: 1\n\nmodel: n\n", "settings.yaml:4: model: stands there twice, in lines 1 and 4"),
        (
            "generation_config:\n  temperature: 0\n  temperature: 1\n",
            "settings.yaml:3: generation_config.temperature: stands there twice, in lines 2 and 3",
        ),
        ("model:\n\t- m\n", "settings.yaml:2: a tab stands where YAML takes spaces"),
        ("model: m: n\n", "settings.yaml:1: not valid YAML: mapping values are not allowed here"),
        ("model: [m\n", "settings.yaml:2: not valid YAML"),
        ("model: m\n---\nmodel: n\n", "settings.yaml:2: not valid YAML"),
        ("model: !!python/object/apply:os.system ['id']\n", "settings.yaml:1: model: a tag"),
        ("seed: !!int 3\n", "settings.yaml:1: seed: a tag"),
        ("extra_body: !mine {a: 1}\n", "settings.yaml:1: extra_body: a tag"),
        ("tags: !!set {a, b}\n", "settings.yaml:1: tags: a tag"),
        ("1: x\n", "settings.yaml:1: unknown key '1'"),
        ("? [a]\n: x\n", "settings.yaml:1: a key must be a word"),
        ("label: &a x\n<<: {limit: 1}\n", "settings.yaml:2: << is not read"),
        ("label: *secretkey\n", "settings.yaml:1: not valid YAML: found undefined alias"),
        ("models: m\n", "settings.yaml:1: models: must be a list"),
        ("models: []\n", "settings.yaml:1: models: must be a list"),
        ("models:\n- m\n-\n", "settings.yaml:3: models: must be the name of a model"),
        ("models:\n- [m]\n", "settings.yaml:2: models: must be the name of a model"),
        ("models:\n- model: m\n  modle: n\n", "settings.yaml:3: unknown key 'modle', did you mean 'model'?"),
        ("models:\n- models: [m]\n", "settings.yaml:2: unknown key 'models'"),
        ("models:\n- model: m\n  max_cost: 3\n", "settings.yaml:3: max_cost: counts for all models together"),
        ("models: [m, n, m]\n", "number 1 and number 3 have the same name 'm'; give each a label"),
        ("run_dir: r\nmodels: [m, n]\n", "have the same run_dir"),
        (b"model: \xff\xfe\n", "is not text in UTF-8"),
        (b"model: a\x00b\n", "not valid YAML: special characters are not allowed"),
        ("#" * (MAX_BYTES + 1), "is over 256 KiB"),
        ("extra_body: " + "[" * 2000 + "]" * 2000, "is nested over 64 levels deep"),
        ("extra_body: " + "[" * 100 + "]" * 100, "settings.yaml:1: extra_body: nested over 64 levels deep"),
        ("extra_body: &x [*x]\n", "settings.yaml:1: extra_body: nested over 64 levels deep"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(tmp_path: Path, text: str | bytes, said: str) -> None:
    """A file that is no file of settings is refused by name, line and key, as far as there are some."""
    told = refused(tmp_path, text)
    assert said in told
    assert "settings.yaml" in told
    assert "secretkey" not in told


def test_aliases_of_aliases_are_bounded(tmp_path: Path) -> None:
    """Ten lines that stand for a billion values are refused before they are written out."""
    lines = ["  a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"  a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    assert "over 10,000 values" in refused(tmp_path, "extra_body:\n" + "\n".join(lines) + "\n")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    """A missing file and a folder are told apart from a file of settings."""
    for path, why in ((tmp_path / "none.yaml", "No such file"), (tmp_path, "directory")):
        with pytest.raises(ConfigError, match=rf"--config: .*{why}"):
            read_settings(path)


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_no_file_ends_in_anything_but_settings_or_an_error(content: bytes) -> None:
    """Whatever a file holds, it is read or refused."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s.yaml"
        path.write_bytes(content)
        with contextlib.suppress(ConfigError):
            assert read_settings(path).models


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("limit: -1", "settings.yaml:10: limit: -1"),
        ("limit: 010", "settings.yaml:10: limit: '010'"),
        ("shuffle: yes", "settings.yaml:10: shuffle: 'yes' must be true or false"),
        ("protocol: offical", "settings.yaml:10: protocol: 'offical' is not one of"),
        ("generation_config: {temperature: hot}", "settings.yaml:10: generation_config.temperature: 'hot'"),
        (
            "generation_config: {temprature: 1}",
            "settings.yaml:10: generation_config: unknown key 'temprature'",
        ),
        ("label: [a]", "settings.yaml:10: label: must be text"),
        ("eval_batch_size: 0", "settings.yaml:10: eval_batch_size: 0"),
        ("retry_failed: [nonsense]", "settings.yaml:10: --retry-failed: there is no kind 'nonsense'"),
        ("max_cost: 5", "settings.yaml:10: --max-cost needs --judge-price"),
        ("api_key_file: /not/there", "settings.yaml:10: --api-key-file: /not/there: cannot be read"),
        ("tags: [a]", "settings.yaml:10: tags: must be an object"),
    ],
)
def test_a_wrong_value_is_told_with_its_line(tmp_path: Path, line: str, said: str) -> None:
    """What is found when settings are resolved names file, line and key, too."""
    assert said in mistaken(tmp_path, f"{WHOLE}{line}\n")


@pytest.mark.parametrize(
    ("within", "said"),
    [
        ("    subset_list: [speach_QA]", "settings.yaml:6: subset_list: there is no task 'speach_QA'"),
        ("    extra_params: {tasks: [x]}", "settings.yaml:6: tasks: there is no task 'x'"),
        ("    prompt_template: none", "settings.yaml:6: prompt_template: 'none' must contain"),
        ("    shuffel: true", "settings.yaml:6: dataset_args.air_bench_chat: unknown key 'shuffel'"),
    ],
)
def test_a_wrong_value_of_the_data_set_is_told_with_its_line(tmp_path: Path, within: str, said: str) -> None:
    """So is what lies deeper."""
    text = WHOLE.replace("    local_path: /data\n", f"    local_path: /data\n{within}\n")
    assert said in mistaken(tmp_path, text)


def test_a_flag_s_mistake_is_not_the_file_s(tmp_path: Path) -> None:
    """A value that stands above the file's is not told with the file's line."""
    assert mistaken(tmp_path, f"{WHOLE}limit: 3\n", limit=-1).startswith("limit: -1")


# --- where it stands -------------------------------------------------------------------------------------

OWN = {
    "OTOSCOPE_API_URL": "http://env-model.test/v1",
    "OTOSCOPE_API_KEY": "env-model-key",
    "OTOSCOPE_JUDGE_API_URL": "http://env-judge.test/v1",
    "OTOSCOPE_JUDGE_API_KEY": "env-judge-key",
    "OTOSCOPE_DATA": "/env-data",
}
OPENAI = {"OPENAI_BASE_URL": "http://openai.test/v1", "OPENAI_API_KEY": "openai-key"}


def places(settings: Settings) -> tuple[Any, ...]:
    """Return addresses, keys and the data's place."""
    model = model_endpoint(settings)
    assert settings.judge is not None
    judge = settings.judge.endpoint
    assert isinstance(judge, EndpointSettings)
    keys = [str(one.authorization).removeprefix("Bearer ") for one in (model, judge)]
    return model.shown_url, keys[0], judge.shown_url, keys[1], str(settings.data.root)


def test_the_environment_stands_above_a_file(tmp_path: Path) -> None:
    """OTOSCOPE_* replace what a file says; OPENAI_*, which every program has, do not."""
    text = f"{WHOLE}api_key: file-key\n"
    of_file = ("http://model.test/v1", "file-key", "http://judge.test/v1", "judge-key", "/data")
    assert places(settled(tmp_path, text)) == places(settled(tmp_path, text, OPENAI)) == of_file
    of_environment = tuple(OWN[name] for name in OWN)
    assert places(settled(tmp_path, text, OPENAI | OWN)) == of_environment
    key = tmp_path / "key"
    key.write_text("in-a-file", encoding="utf-8")
    by_file = text.replace("api_key: file-key", f"api_key_file: {key}")
    assert places(settled(tmp_path, by_file))[1] == "in-a-file"
    assert places(settled(tmp_path, by_file, OWN))[1] == "env-model-key"


def test_flags_stand_above_the_environment_and_the_file(tmp_path: Path) -> None:
    """A field that is given replaces both; an object is merged."""
    flags = {
        "api_url": "http://flag.test/v1",
        "api_key": "flag-key",
        "judge_model_args": {"api_key": "flag-judge-key"},
        "dataset_args": {BENCHMARK: {"local_path": "/flag-data"}},
    }
    told = places(settled(tmp_path, f"{WHOLE}api_key_file: /not/there\n", OWN, **flags))
    assert told == (
        "http://flag.test/v1",
        "flag-key",
        OWN["OTOSCOPE_JUDGE_API_URL"],
        "flag-judge-key",
        "/flag-data",
    )


def test_a_file_stands_above_a_stored_run(tmp_path: Path) -> None:
    """A run that is continued is the base for what neither flags nor file say."""
    (layer,) = read(tmp_path, "limit: 5\njudge_model_args: {rpm: 9}\n").models
    stored = {"model": "m", "limit": 3, "seed": 7, "judge_model_args": {"model_id": "j", "rpm": 4}}
    merged = TaskConfig.from_layer(layer).over(stored, "runs/a")
    assert (merged.model, merged.limit, merged.seed) == ("m", 5, 7)
    assert merged.judge_model_args == {"model_id": "j", "rpm": 9}
    told = {".".join(place): str(origin) for place, origin in merged.layer.origins.items()}
    assert told == {
        "model": "stored run runs/a",
        "limit": f"{tmp_path}/settings.yaml:1",
        "seed": "stored run runs/a",
        "judge_model_args.model_id": "stored run runs/a",
        "judge_model_args.rpm": f"{tmp_path}/settings.yaml:2",
    }


# --- written ---------------------------------------------------------------------------------------------

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(min_size=1), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(min_size=1), _JSON, min_size=1, max_size=4))
def test_what_is_written_is_read_as_it_was(body: dict[str, Any]) -> None:
    """Whatever plain values are written as a file of settings, the same are read."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s.yaml"
        path.write_text(text_of({"extra_body": body}), encoding="utf-8")
        assert read_settings(path).models[0].values["extra_body"] == body


@pytest.mark.skipif(os.name != "posix", reason="links as POSIX has them")
def test_a_link_to_a_folder_is_followed(tmp_path: Path) -> None:
    """What lies beside the file's folder is looked for where that folder is, not where a link to it is."""
    real = tmp_path / "real" / "configs"
    real.mkdir(parents=True)
    (tmp_path / "link").symlink_to(real)
    (real / "s.yaml").write_text("work_dir: ../out\n", encoding="utf-8")
    (layer,) = read_settings(tmp_path / "link" / "s.yaml").models
    assert layer.values["work_dir"] == str(tmp_path.resolve() / "real" / "out")
