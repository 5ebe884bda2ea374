from __future__ import annotations

import ast
import base64
import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import otoscope
from otoscope.benchmark import BENCHMARK, HUGGINGFACE_DATASET, MODELSCOPE_DATASET, TASK_GROUPS, TASKS
from otoscope.config import (
    OPENAI_URL,
    URL_FIELDS,
    AudioPolicy,
    EmbeddedSettings,
    Settings,
    TaskConfig,
    changed_fields,
    display_url,
    fingerprint,
    judging_only,
    parse_limit,
    parse_object,
    resolve,
    with_judge_of,
)
from otoscope.errors import ConfigError
from tests.support import judge_endpoint, model_endpoint
from tests.support import otoscope as run_command

MODEL_URL = "http://model.test:8000/v1"
JUDGE_URL = "https://judge.test/v1"
KEYS = {"OTOSCOPE_JUDGE_API_KEY": "judge-key"}

Fields = dict[str, Any]


def config(**changed: Any) -> TaskConfig:
    """Return a complete configuration, with some fields changed."""
    fields: Fields = {
        "model": "m",
        "api_url": MODEL_URL,
        "api_key": "model-key",
        "dataset_args": {BENCHMARK: {"local_path": "/data"}},
        "judge_model_args": {"model_id": "j", "api_url": JUDGE_URL, "api_key": "judge-key"},
    }
    return TaskConfig(**(fields | changed))


def settled(environ: Mapping[str, str] | None = None, **changed: Any) -> Settings:
    """Resolve a complete configuration with some fields changed, in an empty environment."""
    return resolve(config(**changed), environ or {})


def data(**args: Any) -> Fields:
    """Return the fields for arguments of the data set."""
    return {"dataset_args": {BENCHMARK: {"local_path": "/data"} | args}}


def judge(**args: Any) -> Fields:
    """Return the fields for arguments of the judge."""
    return {"judge_model_args": {"model_id": "j", "api_url": JUDGE_URL, "api_key": "judge-key"} | args}


def refused(environ: Mapping[str, str] | None = None, **changed: Any) -> str:
    """Return what is said of a configuration that must be refused; the exit code is that of usage."""
    with pytest.raises(ConfigError) as caught:
        settled(environ, **changed)
    assert caught.value.exit_code == 2
    return str(caught.value)


def prints(settings: Settings) -> Fields:
    """Return the fingerprint of settings."""
    return fingerprint(settings, judge_prompt_sha256="p", parser_version=1)


# --- where settings come from ----------------------------------------------------------------------------


def test_what_a_user_leaves_out_is_the_benchmark_s() -> None:
    """Defaults are the benchmark's prompt and parameters, all tasks, the paper's judge, both orders."""
    settings = settled({"OPENAI_API_KEY": "k"}, judge_model_args=None)
    assert settings.selection.tasks == tuple(TASKS)
    assert (settings.selection.limit, settings.selection.shuffle, settings.selection.seed) == (
        None,
        False,
        42,
    )
    assert settings.prompt.is_the_benchmarks
    assert (settings.prompt.audio_part, settings.prompt.answer_filter) == ("input_audio", "strip-thinking")
    assert dict(settings.model.parameters) == {"temperature": 0, "max_tokens": 2048}
    assert (
        model_endpoint(settings).attempt_timeout,
        model_endpoint(settings).total_timeout,
        model_endpoint(settings).tries,
    ) == (
        600,
        1800,
        6,
    )
    assert settings.model.concurrency == 16
    assert settings.judge is not None
    assert settings.judge.endpoint.name == "gpt-4-0125-preview"
    assert judge_endpoint(settings).url == "https://api.openai.com/v1/chat/completions"
    assert dict(settings.judge.endpoint.parameters) == {"temperature": 0, "max_tokens": 1024}
    assert judge_endpoint(settings).attempt_timeout == 180
    assert (settings.judge.protocol, settings.judge.swap) == ("default", True)
    assert settings.run.work_dir == Path("outputs")
    assert (settings.run.path, settings.run.min_coverage) == (None, 0.99)


def test_flags_stand_above_the_environment() -> None:
    """Every variable is used where the flag is left out, and not where it is given."""
    environ = {
        "OTOSCOPE_API_URL": "http://env-model.test/v1",
        "OTOSCOPE_API_KEY": "env-model-key",
        "OTOSCOPE_JUDGE_API_URL": "http://env-judge.test/v1",
        "OTOSCOPE_JUDGE_API_KEY": "env-judge-key",
        "OTOSCOPE_DATA": "/env-data",
    }
    taken = resolve(TaskConfig(model="m"), environ)
    assert taken.judge is not None
    assert model_endpoint(taken).shown_url == "http://env-model.test/v1"
    assert model_endpoint(taken).authorization == "Bearer env-model-key"
    assert judge_endpoint(taken).shown_url == "http://env-judge.test/v1"
    assert judge_endpoint(taken).authorization == "Bearer env-judge-key"
    assert taken.data.root == Path("/env-data")
    assert settled(environ) == settled()


def test_otoscope_s_own_variables_stand_above_openai_s() -> None:
    """The judge's URL and key come from OTOSCOPE_JUDGE_* first, then from OPENAI_*."""
    openai = {"OPENAI_BASE_URL": "http://openai.test/v1", "OPENAI_API_KEY": "openai-key"}
    own = {"OTOSCOPE_JUDGE_API_URL": "http://own.test/v1", "OTOSCOPE_JUDGE_API_KEY": "own-key"}
    for environ, url, key in (
        (openai, "http://openai.test/v1", "openai-key"),
        (openai | own, "http://own.test/v1", "own-key"),
    ):
        settings = settled(environ, judge_model_args=None)
        assert settings.judge is not None
        assert judge_endpoint(settings).shown_url == url
        assert judge_endpoint(settings).authorization == f"Bearer {key}"


def test_the_model_never_uses_what_is_the_judge_s() -> None:
    """Without a URL of its own the model is refused, without a key it sends none, whatever the judge has."""
    environ = {
        "OPENAI_BASE_URL": "http://openai.test/v1",
        "OPENAI_API_KEY": "openai-key",
        "OTOSCOPE_JUDGE_API_URL": JUDGE_URL,
        "OTOSCOPE_JUDGE_API_KEY": "judge-key",
    }
    assert "--api-url" in refused(environ, api_url=None)
    assert model_endpoint(settled(environ, api_key=None)).authorization is None


def test_the_judge_never_uses_what_is_the_model_s() -> None:
    """Without a key of its own the judge is refused; without a URL it is asked at OpenAI, never elsewhere."""
    environ = {"OTOSCOPE_API_URL": MODEL_URL, "OTOSCOPE_API_KEY": "model-key"}
    assert "no key for the judge" in refused(environ, judge_model_args=None)
    settings = settled(environ, judge_model_args={"api_key": "judge-key"})
    assert settings.judge is not None
    assert judge_endpoint(settings).shown_url == "https://api.openai.com/v1"


def test_a_missing_judge_key_lists_the_ways() -> None:
    """Without a key for the judge the message names flags, variables and --no-judge."""
    said = refused(judge_model_args={"model_id": "j"})
    for way in ("--judge-api-key", "OTOSCOPE_JUDGE_API_KEY", "OPENAI_API_KEY", "--no-judge"):
        assert way in said
    assert settled(judge_model_args={"model_id": "j"}, no_judge=True).judge is None


@pytest.mark.parametrize("name", ["Authorization", "api-key", "X-API-Key"])
def test_a_judge_s_key_may_be_a_header(name: str) -> None:
    """A header that servers read the key from takes the place of the key."""
    settings = settled(judge_model_args={"extra_headers": {name: "k"}})
    assert settings.judge is not None
    assert judge_endpoint(settings).authorization is None


@pytest.mark.parametrize("name", ["model", "api_url", "api_key", "model_revision", "run_dir", "weights"])
@pytest.mark.parametrize("text", ["", " \n"])
def test_an_empty_text_stands_for_no_default(name: str, text: str) -> None:
    """A variable that was not set must not choose another model or server than was meant."""
    assert f"{name}: is empty" in refused({"OTOSCOPE_API_URL": MODEL_URL}, **{name: text})


@pytest.mark.parametrize("name", ["model_id", "api_url", "api_key", "revision"])
def test_an_empty_text_of_the_judge_stands_for_no_default(name: str) -> None:
    """Neither the paper's judge nor OpenAI's server is asked because a name or a URL is empty."""
    said = refused({"OPENAI_API_KEY": "k"}, judge_model_args={"api_key": "k", name: ""})
    assert f"judge_model_args.{name}: is empty" in said


def test_an_empty_text_where_none_can_be_meant_is_none() -> None:
    """No system prompt and no label can be meant; an empty variable of the environment is not set."""
    environ = {"OTOSCOPE_API_URL": "", "OTOSCOPE_JUDGE_API_URL": "", "OPENAI_BASE_URL": ""}
    assert settled(environ, system_prompt="", label="").prompt.system is None


@pytest.mark.parametrize(
    "flag", ["--judge-model", "--judge-api-url", "--model", "--api-url", "--tasks", "--tag"]
)
def test_an_empty_flag_is_refused_by_its_name(flag: str) -> None:
    """Whatever the command would have put in its place: an unset shell variable is said to be one."""
    done = run_command("demo", flag, "")
    assert done.returncode == 2
    assert f"{flag}: is empty" in done.stderr


def test_missing_necessities_name_their_flags() -> None:
    """Without a model or an endpoint the message names the flag to give."""
    assert "--model" in refused(model=None)
    assert "--api-url" in refused(api_url=None)


def test_without_a_folder_the_data_set_comes_from_a_hub() -> None:
    """ModelScope unless another is named; a copy of the data set and the cache folder can be named, too."""
    data = settled(dataset_args=None).data
    assert (data.root, data.hub.name, data.hub.dataset) == (None, "modelscope", MODELSCOPE_DATASET)
    data = settled(dataset_args=None, dataset_hub="huggingface", dataset_dir="/cache").data
    assert (data.hub.dataset, data.hub.cache) == (HUGGINGFACE_DATASET, Path("/cache"))
    assert settled(dataset_args={BENCHMARK: {"dataset_id": "our/copy"}}).data.hub.dataset == "our/copy"
    assert "did you mean 'huggingface'" in refused(dataset_hub="hugingface")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("as-is", "as-is"),
        ("format=flac, mono ,rate=16000", "rate=16000,mono,format=flac"),
        ("over=truncate,max-seconds=30.0", "max-seconds=30,over=truncate"),
    ],
)
def test_an_audio_policy_has_one_form(given: str, meant: str) -> None:
    """However it is written, the fingerprint has the same text for the same policy."""
    settings = settled(audio_policy=given)
    requested = fingerprint(settings, judge_prompt_sha256="", parser_version=1)
    assert requested["prompt"]["audio_policy"] == meant
    assert AudioPolicy.parse(meant) == settings.audio.policy


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("rat=16000", "did you mean 'rate'"),
        ("rate=16k", "samples per second"),
        ("rate=0", "samples per second"),
        ("mono=1", "mono, without a value"),
        ("rate", "rate=VALUE"),
        ("max-seconds=30", "needs over="),
        ("over=skip", "needs max-seconds="),
        ("max-seconds=nan,over=skip", "seconds from"),
        ("format=ogg", "wav, mp3, flac"),
        ("max-seconds=30,over=trunc", "truncate"),
        ("mono,mono", "twice"),
    ],
)
def test_a_wrong_audio_policy_is_refused(given: str, said: str) -> None:
    """The message names the key and what it takes."""
    assert said in refused(audio_policy=given)


def test_white_space_around_keys_and_urls_is_dropped() -> None:
    """A key or URL read from a file with its line break works."""
    settings = settled({"OTOSCOPE_API_KEY": "k\n"}, api_key=None, api_url=f" {MODEL_URL}\n")
    assert model_endpoint(settings).authorization == "Bearer k"
    assert model_endpoint(settings).shown_url == MODEL_URL


def test_a_key_with_a_line_break_is_refused_without_being_shown() -> None:
    """A key that cannot be a header's value is refused by the field's name."""
    said = refused(api_key="secret\nX-Other: 1")
    assert "api_key" in said
    assert "secret" not in said


def test_no_module_looks_into_the_environment() -> None:
    """`os.environ` is handed to the settings whole: no module reads a variable; one tells OpenMP its own."""
    package = Path(otoscope.__file__).parent
    for path in package.rglob("*.py"):
        in_config = path.is_relative_to(package / "config")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            looked_into = node.value if isinstance(node, (ast.Attribute, ast.Subscript)) else None
            name = (
                looked_into.attr if isinstance(looked_into, ast.Attribute) else getattr(looked_into, "id", "")
            )
            called = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
            where = f"{path.name}, line {getattr(node, 'lineno', 0)}"
            assert called not in ("getenv", "environb", "putenv"), where
            assert name != "environ" or in_config or called == "setdefault", where


def test_config_s_environment_is_a_parameter() -> None:
    """The settings themselves do not know the process's environment either."""
    sources = list((Path(otoscope.__file__).parent / "config").rglob("*.py"))
    assert sources
    for path in sources:
        assert "os.environ" not in path.read_text(encoding="utf-8"), path.name


# --- flags as text ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{}", {}),
        ('{"temperature": 0.5, "stop": ["a,b"]}', {"temperature": 0.5, "stop": ["a,b"]}),
        ("temperature=0.5,max_tokens=100", {"temperature": 0.5, "max_tokens": 100}),
        (" do_sample = true , stop=null,", {"do_sample": True, "stop": None}),
        ("stream=True,a=False,b=None", {"stream": True, "a": False, "b": None}),
        ("x=NaN,y=word,z=a=b,e=", {"x": "NaN", "y": "word", "z": "a=b", "e": ""}),
    ],
)
def test_objects_are_json_or_pairs(text: str, expected: Fields) -> None:
    """A flag for an object takes JSON and name=value pairs, whose values are JSON or else text."""
    assert parse_object(text, "--x") == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a": 1 "b": 2}', "Expecting ',' delimiter at character 9."),
        ("{'a': 1}", "at character 2"),
        ('{"a": 1} x', "Extra data at character 10"),
        ('{"a": NaN}', "NaN is not a JSON number"),
        ('{"a": -Infinity}', "-Infinity is not a JSON number"),
        ('{"a":' * 100_000, "not valid JSON"),
        ("", "is empty"),
        ("[1, 2]", "neither JSON ({...}) nor of the form name=value"),
        ("temperature", "neither JSON ({...}) nor of the form name=value"),
        ("=5", "neither JSON"),
    ],
)
def test_a_bad_object_names_flag_and_place(text: str, said: str) -> None:
    """What is neither JSON nor pairs is refused with the flag's name, and bad JSON with the position."""
    with pytest.raises(ConfigError) as caught:
        parse_object(text, "--generation-config")
    assert str(caught.value).startswith("--generation-config: ")
    assert said in str(caught.value)


@given(st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.text()))
def test_any_json_object_is_read_as_json_reads_it(value: Fields) -> None:
    """What JSON writes comes back unchanged."""
    assert parse_object(json.dumps(value), "--x") == value


@given(start=st.sampled_from(["", "{", "a="]), text=st.text())
def test_no_text_crashes_the_reader_of_objects(start: str, text: str) -> None:
    """Any text is an object or a ConfigError."""
    with contextlib.suppress(ConfigError):
        assert isinstance(parse_object(start + text, "--x"), dict)


@pytest.mark.parametrize(
    ("text", "expected"), [("10", 10), (" 7 ", 7), ("0.1", 0.1), ("1.0", 1.0), ("1e2", 100.0)]
)
def test_a_limit_is_a_number_or_a_fraction(text: str, expected: float) -> None:
    """A whole number stays whole, and a fraction a fraction."""
    assert parse_limit(text) == expected
    assert type(parse_limit(text)) is type(expected)


@pytest.mark.parametrize("text", ["", "ten", "10%", "1,5"])
def test_a_limit_that_is_no_number_names_the_flag(text: str) -> None:
    """Other text is refused by the flag's name."""
    with pytest.raises(ConfigError, match="--limit"):
        parse_limit(text)


@pytest.mark.parametrize(
    ("limit", "expected"), [(10, 10), (0.1, 0.1), (1.0, 1.0), (300.0, 300), (None, None)]
)
def test_limits_that_can_be(limit: float | None, expected: float | None) -> None:
    """A whole limit is at least 1, a fraction at most 1.0, and 300.0 is 300."""
    resolved = settled(limit=limit).selection.limit
    assert resolved == expected
    assert type(resolved) is type(expected)


@pytest.mark.parametrize("limit", [0, -1, 0.0, -0.5, 1.5, float("nan"), float("inf"), True, "10"])
def test_limits_that_cannot_be(limit: Any) -> None:
    """Other limits are refused, with the two forms there are."""
    assert "whole number above 0, or a fraction" in refused(limit=limit)


# --- unknown keys and wrong types ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "where", "meant"),
    [
        ({"dataset_args": {"air_bench": {}}}, "dataset_args", "air_bench_chat"),
        (data(localpath="/x"), "dataset_args.air_bench_chat", "local_path"),
        (data(extra_params={"do_swop": True}), "dataset_args.air_bench_chat.extra_params", "do_swap"),
        (judge(model="x"), "judge_model_args", "model_id"),
        (judge(generation_config={"temprature": 1}), "judge_model_args.generation_config", "temperature"),
        ({"generation_config": {"max_token": 5}}, "generation_config", "max_tokens"),
        ({"generation_config": {"retry": 5}}, "generation_config", "retries"),
    ],
)
def test_unknown_keys_are_refused_with_the_closest_one(changed: Fields, where: str, meant: str) -> None:
    """A key that does not exist is refused in every object, with its place and what was likely meant."""
    said = refused(**changed)
    assert said.startswith(f"{where}: unknown key")
    assert f"did you mean {meant!r}?" in said


def test_unknown_fields_are_refused_with_the_closest_one() -> None:
    """A task configuration from a dict refuses a key that does not exist."""
    assert TaskConfig.from_mapping({"model": "m", "limit": 3}) == TaskConfig(model="m", limit=3)
    with pytest.raises(ConfigError, match="unknown key 'modle', did you mean 'model'"):
        TaskConfig.from_mapping({"modle": "m"})
    with pytest.raises(ConfigError, match="unknown key 'origins'"):
        TaskConfig.from_mapping({"origins": ()})


def test_an_unknown_key_like_none_lists_all() -> None:
    """Where no key is close, the known ones are listed; for generation_config the way out is named."""
    assert "Known: local_path, dataset_id, subset_list" in refused(**data(zzz=1))
    assert "extra_body" in refused(generation_config={"zzz": 1})


@pytest.mark.parametrize(
    "changed",
    [
        {"model": 5},
        {"api_url": 5},
        {"label": ["x"]},
        {"dataset_args": ["x"]},
        {"dataset_args": {BENCHMARK: ["x"]}},
        {"dataset_args": {BENCHMARK: 0}},
        data(local_path=5),
        data(extra_params=["x"]),
        data(extra_params={"do_swap": "no"}),
        data(extra_params={"tasks": 5}),
        data(subset_list=[["speech_QA"]]),
        data(shuffle="yes"),
        data(prompt_template="no placeholder"),
        data(prompt_template=5),
        {"judge_model_args": "secret"},
        judge(model_id=5),
        judge(revision=5),
        judge(generation_config=[1]),
        judge(extra_headers="secret"),
        {"generation_config": [1]},
        {"generation_config": {"timeout": "long"}},
        {"generation_config": {"timeout": 0}},
        {"generation_config": {"timeout": float("inf")}},
        {"generation_config": {"retries": 1.5}},
        {"generation_config": {"retries": -1}},
        {"generation_config": {"retry_interval": -1}},
        {"generation_config": {"stream": 1}},
        {"generation_config": {"temperature": "hot"}},
        {"generation_config": {"temperature": True}},
        {"generation_config": {"max_tokens": "2048"}},
        {"generation_config": {"max_tokens": 2048.5}},
        {"generation_config": {"top_p": [1]}},
        {"generation_config": {"seed": "x"}},
        judge(generation_config={"temperature": "0"}),
        judge(generation_config={"max_completion_tokens": {}}),
        {"generation_config": {"extra_body": 5}},
        {"generation_config": {"stop": {object()}}},
        {"extra_body": {"x": float("nan")}},
        {"extra_headers": {"X": ["secret"]}},
        {"extra_headers": {"X": "secret\r\nY: 1"}},
        {"extra_headers": {"X Y": "secret"}},
        {"extra_headers": {"Content-length": "5"}},
        {"extra_headers": {"Transfer-Encoding": "chunked"}},
        {"stream": "yes"},
        {"eval_batch_size": 0},
        {"judge_batch_size": 1.5},
        {"rpm": 0},
        {"rpm": -1},
        {"rpm": float("nan")},
        {"tpm": float("inf")},
        {"tpm": "many"},
        {"tpm": True},
        {"wait_ready": -1},
        {"wait_ready": float("nan")},
        {"wait_ready": "soon", "model": "baseline", "api_url": None},
        judge(rpm=0.0),
        judge(tpm=[1]),
        {"seed": 1.5},
        {"seed": True},
        {"protocol": "offical"},
        {"part_order": "audio_first"},
        {"audio_part": "audio"},
        {"min_coverage": 1.01},
        {"min_coverage": -0.1},
        {"min_coverage": float("nan")},
        {"min_coverage": "all"},
        {"datasets": ["air_bench_foundation"]},
        {"tags": ["x"]},
        {"retry_failed": [5]},
        {"allow_changed": ["model.name"]},
        {"allow_changed": ["prompt.template"]},
        {"run_dir": "a", "use_cache": "b"},
    ],
)
def test_wrong_values_are_refused_by_name(changed: Fields) -> None:
    """A value of a wrong type or out of range is a ConfigError that names it and shows nothing secret."""
    said = refused(**changed)
    assert "secret" not in said
    assert "api_key" not in said


@pytest.mark.parametrize("min_coverage", [0, 0.0, 0.5, 1, 1.0])
def test_min_coverage_is_from_0_to_1(min_coverage: float) -> None:
    """Both ends belong to what --min-coverage takes."""
    assert settled(min_coverage=min_coverage).run.min_coverage == min_coverage


def test_run_settings_are_taken_over() -> None:
    """Folders, tags, kinds and permissions arrive, from --use-cache as from --run-dir."""
    run = settled(
        use_cache="a", tags={"gpu": 4}, retry_failed="bad_audio,empty_answer", allow_changed=URL_FIELDS
    ).run
    assert run.path == Path("a")
    assert dict(run.tags) == {"gpu": "4"}
    assert run.retry_failed == ("bad_audio", "empty_answer")
    assert run.allow_changed == ("model.api_url", "judge.api_url")
    assert settled(run_dir=Path("a")).run.path == Path("a")
    assert "~" not in str(settled(run_dir="~/a").run.path)


def test_settings_are_cut_off_from_what_they_were_made_of() -> None:
    """Changing an object after resolving it changes nothing."""
    body = {"x": [1]}
    settings = settled(extra_body=body)
    body["x"].append(2)
    assert dict(model_endpoint(settings).extra_body) == {"x": [1]}


# --- what is sent ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_config", "expected"),
    [
        (None, {"temperature": 0, "max_tokens": 2048}),
        ({}, {}),
        ({"temperature": 0.7}, {"temperature": 0.7, "max_tokens": 2048}),
        ({"top_p": 0.9}, {"temperature": 0, "max_tokens": 2048, "top_p": 0.9}),
        ({"temperature": None}, {"max_tokens": 2048}),
        ({"temperature": None, "max_tokens": None}, {}),
        ({"max_completion_tokens": 99}, {"temperature": 0, "max_completion_tokens": 99}),
        ({"timeout": 5}, {"temperature": 0, "max_tokens": 2048}),
    ],
)
def test_generation_config_replaces_adds_and_removes(given_config: Fields | None, expected: Fields) -> None:
    """A key replaces or adds, null removes, and an empty object sends nothing."""
    assert dict(settled(generation_config=given_config).model.parameters) == expected


def test_the_judge_s_parameters_follow_the_protocol() -> None:
    """The official protocol samples at 1.0; the judge's generation_config goes before either, {} is none."""
    for args, expected in (
        ({}, 1.0),
        ({"generation_config": {}}, 1.0),
        ({"generation_config": {"temperature": 0.2}}, 0.2),
    ):
        settings = settled(protocol="official", **judge(**args))
        assert settings.judge is not None
        assert dict(settings.judge.endpoint.parameters) == {"temperature": expected, "max_tokens": 1024}


def test_call_settings_inside_generation_config() -> None:
    """Timeout, retries, interval, stream, body and headers are taken from it and not sent as parameters."""
    call = {
        "timeout": 7,
        "retries": 0,
        "retry_interval": 0.5,
        "stream": True,
        "extra_body": {"a": 1, "b": 1},
        "extra_headers": {"X-A": "1", "X-Gone": None, "X-N": 5},
    }
    settings = settled(
        generation_config=call,
        extra_body={"b": 2},
        extra_headers={"X-B": "2"},
        **judge(generation_config=call),
    )
    assert settings.judge is not None
    for endpoint in (model_endpoint(settings), judge_endpoint(settings)):
        assert not set(endpoint.parameters) & set(call)
        assert (endpoint.attempt_timeout, endpoint.tries, endpoint.retry_interval) == (7, 1, 0.5)
        assert endpoint.stream
    assert dict(model_endpoint(settings).extra_body) == {"a": 1, "b": 2}
    assert dict(model_endpoint(settings).extra_headers) == {"X-A": "1", "X-N": "5", "X-B": "2"}
    assert not model_endpoint(settled(generation_config=call, stream=False)).stream


def test_a_long_timeout_is_not_cut_by_the_total() -> None:
    """An attempt that may take an hour has an hour."""
    assert model_endpoint(settled(generation_config={"timeout": 3600})).total_timeout == 3600


def test_nulls_mean_the_default() -> None:
    """A null for a call setting or a switch is the same as leaving it out."""
    nulls = settled(
        generation_config=dict.fromkeys(
            ("timeout", "retries", "retry_interval", "stream", "extra_body", "extra_headers")
        ),
        **data(shuffle=None, subset_list=None, extra_params={"do_swap": None, "tasks": None}),
        **judge(generation_config=None, extra_body=None, extra_headers=None, revision=None),
    )
    assert (nulls.model, nulls.selection, nulls.judge) == (
        settled().model,
        settled().selection,
        settled().judge,
    )


def test_another_prompt_is_not_the_benchmark_s() -> None:
    """A template, a system prompt or another order of parts is known not to be the benchmark's prompt."""
    assert not settled(**data(prompt_template="Q: {question}")).prompt.is_the_benchmarks
    assert not settled(system_prompt="Be brief.").prompt.is_the_benchmarks
    assert not settled(part_order="text-first").prompt.is_the_benchmarks
    assert settled(system_prompt="", **data(prompt_template="{question}")).prompt.is_the_benchmarks


# --- tasks -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tasks", "subset", "expected"),
    [
        (None, None, list(TASKS)),
        ([], None, list(TASKS)),
        (["sound_QA", "speech_QA"], None, ["speech_QA", "sound_QA"]),
        ("sound_QA, speech_QA", None, ["speech_QA", "sound_QA"]),
        (["speech_QA", "sound_QA"], ["sound_QA", "music_QA"], ["sound_QA"]),
        (["sound"], None, ["sound_QA", "sound_generation_QA"]),
        (None, "mixed_audio", ["speech_and_sound_QA", "speech_and_music_QA"]),
        (["mixed_audio", "music"], ["music_QA", "speech_and_sound"], ["music_QA", "speech_and_sound_QA"]),
        ({"music_QA"}, ("music",), ["music_QA"]),
    ],
)
def test_tasks_and_subsets_intersect(tasks: Any, subset: Any, expected: list[str]) -> None:
    """Tasks and subset_list take tasks, categories and mixed_audio; both together mean their intersection."""
    selection = settled(**data(subset_list=subset, extra_params={"tasks": tasks})).selection
    assert list(selection.tasks) == expected


def test_an_unknown_task_lists_the_eight() -> None:
    """A task that does not exist is refused with the closest name, the eight tasks and the groups."""
    for args in ({"subset_list": ["speech_qa"]}, {"extra_params": {"tasks": ["speech_qa"]}}):
        said = refused(**data(**args))
        assert "there is no task 'speech_qa', did you mean 'speech_QA'?" in said
        assert all(name in said for name in (*TASKS, *TASK_GROUPS))


def test_an_empty_intersection_is_refused() -> None:
    """Tasks and subset_list without a common task are an error that says how they combine."""
    said = refused(**data(subset_list=["sound"], extra_params={"tasks": ["music"]}))
    assert "intersection" in said


# --- URLs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "address", "shown"),
    [
        ("http://h:1/v1", "http://h:1/v1/chat/completions", "http://h:1/v1"),
        ("http://h:1/v1/", "http://h:1/v1/chat/completions", "http://h:1/v1"),
        ("http://h/v1/chat/completions", "http://h/v1/chat/completions", "http://h/v1"),
        ("http://h/v1/chat/completions/", "http://h/v1/chat/completions", "http://h/v1"),
        ("http://h/v1//chat/completions", "http://h/v1/chat/completions", "http://h/v1"),
        ("http://h", "http://h/chat/completions", "http://h"),
        ("HTTPS://[::1]:8000/v1#x", "https://[::1]:8000/v1/chat/completions", "https://[::1]:8000/v1"),
        (
            "https://h/d?api-version=1",
            "https://h/d/chat/completions?api-version=1",
            "https://h/d?api-version=1",
        ),
        (
            "https://h/v1/chat/completions?v=1&api_key=s3cret",
            "https://h/v1/chat/completions?v=1&api_key=s3cret",
            "https://h/v1?v=1&api_key=***",
        ),
        ("http://u:s3cret@h/v1", "http://h/v1/chat/completions", "http://h/v1"),
    ],
)
def test_the_forms_of_a_url(url: str, address: str, shown: str) -> None:
    """All usual forms of a URL lead to the same address; what is shown of it holds no secret."""
    model = model_endpoint(settled(api_url=url))
    assert model.url == address
    assert model.shown_url == display_url(url) == display_url(shown) == shown


@pytest.mark.parametrize(
    "name", ["key", "access_token", "sig", "Password", "pwd", "X-Amz-Credential", "auth"]
)
def test_secret_query_values_are_hidden(name: str) -> None:
    """Values of query parameters that sound secret are not shown."""
    assert display_url(f"http://h/v1?{name}=s3cret&a=1") == f"http://h/v1?{name}=***&a=1"


@pytest.mark.parametrize(
    ("url", "pair"),
    [("http://u:p@h/v1", b"u:p"), ("http://u%40x:p%2Fq@h/v1", b"u@x:p/q"), ("http://u@h/v1", b"u:")],
)
def test_credentials_in_a_url_become_basic_authorization(url: str, pair: bytes) -> None:
    """User and password, decoded, are sent as Basic; only an explicit key goes before."""
    basic = "Basic " + base64.b64encode(pair).decode()
    assert (
        model_endpoint(settled({"OTOSCOPE_API_KEY": "k"}, api_url=url, api_key=None)).authorization == basic
    )
    assert model_endpoint(settled(api_url=url, api_key="k")).authorization == "Bearer k"
    settings = settled({"OPENAI_API_KEY": "k"}, judge_model_args={"api_url": url})
    assert settings.judge is not None
    assert judge_endpoint(settings).authorization == basic


@pytest.mark.parametrize(
    "url",
    [
        "model.test:8000/v1",
        "u:s3cret@model.test/v1",
        "ftp://u:s3cret@model.test/v1",
        "http://u:s3/cret@model.test/v1",
        "http://u:s3cret@[::1/v1",
        "http://u:s3cret@model.test:port/v1",
        "http://model.test:99999/v1",
        "http://model.test:0/v1",
        "http://mod el.test/v1?key=s3cret",
        "http://model.test/\ud800?key=s3cret",
        "http:///v1",
        "http://[::1?key=s3cret",
        "s3cret@",
    ],
)
def test_a_bad_url_is_refused_without_its_secrets(url: str) -> None:
    """What is no http URL is refused by its field, for the model and the judge, and shows no password."""
    for said in (refused(api_url=url), refused(**judge(api_url=url))):
        assert "api_url: " in said
        assert "is not a URL such as http" in said
        assert "s3" not in said


@given(st.text())
def test_showing_a_url_never_crashes(text: str) -> None:
    """Any text can be shown, and what stands before the @ of a URL is not."""
    display_url(text)
    assert "s3cret" not in display_url(f"http://u:s3cret@{text}")


# --- what is stored, and resuming ------------------------------------------------------------------------

SECRETS = {
    "api_url": "http://user:s3cret@model.test/v1",
    "api_key": "s3cret-model-key",
    "extra_headers": {"X-Auth": "s3cret-header"},
    "generation_config": {"temperature": 0.5, "extra_headers": {"X-Inner": "s3cret-inner"}},
    "judge_model_args": {
        "api_url": "https://judge:s3cret@judge.test/v1",
        "api_key": "s3cret-judge-key",
        "extra_headers": {"X-Judge": "s3cret-judge-header"},
        "generation_config": {"extra_headers": {"X-Judge-Inner": "s3cret-judge-inner"}},
    },
}


@pytest.mark.parametrize("no_judge", [False, True])
def test_nothing_secret_is_stored_or_shown(no_judge: bool) -> None:
    """Keys, header values and credentials are neither stored nor in the fingerprint nor in any repr."""
    environ = {"OTOSCOPE_API_KEY": "s3cret-env", "OPENAI_API_KEY": "s3cret-env"}
    settings = settled(environ, no_judge=no_judge, **SECRETS)
    shown = (
        json.dumps(settings.stored),
        json.dumps(prints(settings)),
        repr(settings),
        repr(config(**SECRETS)),
    )
    for text in shown:
        assert "s3cret" not in text
        assert "dTpz" not in text


def test_a_hidden_query_value_must_be_given_again() -> None:
    """A stored URL whose secret was left out is not used as it is; giving it again continues."""
    url = "http://h/v1?key=s3cret"
    settings = settled(api_url=url)
    with pytest.raises(ConfigError, match="give the URL again"):
        resolve(TaskConfig(api_key="k").over(settings.stored), KEYS)
    again = resolve(TaskConfig(api_key="k", api_url=url).over(settings.stored), KEYS)
    assert prints(again) == prints(settings)


def test_what_came_from_the_environment_is_stored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """URLs from the environment and a relative data root are stored so that another shell can continue."""
    monkeypatch.chdir(tmp_path)
    environ = {"OTOSCOPE_API_URL": MODEL_URL, "OTOSCOPE_DATA": "data", "OPENAI_BASE_URL": JUDGE_URL} | KEYS
    settings = resolve(TaskConfig(model="m"), environ)
    monkeypatch.chdir("/")
    again = resolve(TaskConfig().over(settings.stored), KEYS)
    assert prints(again) == prints(settings)
    assert again.data.root == tmp_path / "data"


parameters = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.none() | st.floats(0, 2),
        "max_tokens": st.none() | st.integers(1, 9999),
        "stop": st.lists(st.text(), max_size=2),
        "timeout": st.none() | st.floats(0.1, 100),
        "stream": st.booleans(),
        "extra_body": st.dictionaries(st.text(), st.none() | st.integers() | st.text(), max_size=2),
        "extra_headers": st.dictionaries(st.sampled_from(["X-A", "X-B"]), st.just("s3cret"), max_size=1),
    },
)
urls = st.sampled_from(
    [MODEL_URL, "http://h/v1/chat/completions/", "https://s3cret:s3cret@h:1/?v=1&w", "http://h//v1//"]
)
names = st.lists(st.sampled_from([*TASKS, *TASK_GROUPS]), max_size=3)
said = st.text(min_size=1).filter(str.strip)


@given(
    base=st.fixed_dictionaries(
        {"api_url": urls, "generation_config": st.none() | parameters},
        optional={
            "model_revision": said,
            "datasets": st.sampled_from([[BENCHMARK], BENCHMARK]),
            "extra_body": st.dictionaries(st.text(), st.integers(), max_size=2),
            "limit": st.integers(1, 500) | st.floats(0.01, 1),
            "shuffle": st.booleans(),
            "seed": st.integers(),
            "protocol": st.sampled_from(["default", "official"]),
            "system_prompt": st.text(),
            "part_order": st.sampled_from(["audio-first", "text-first"]),
            "label": st.text(),
            "tags": st.dictionaries(st.text(), st.text() | st.integers(), max_size=2),
        },
    ),
    subset=st.none() | names | st.tuples(st.sampled_from(list(TASKS))),
    template=st.none() | st.text().map(lambda text: text + "{question}"),
    swap=st.none() | st.booleans(),
    judge_args=st.fixed_dictionaries(
        {"generation_config": st.none() | parameters},
        optional={"model_id": said, "api_url": urls, "revision": said},
    ),
)
def test_stored_settings_resolve_to_the_same_run(
    base: Fields, subset: Any, template: str | None, swap: bool | None, judge_args: Fields
) -> None:
    """Settings stored as JSON, laid under nothing but keys and headers, give the same run again."""
    base = base | data(subset_list=subset, prompt_template=template, extra_params={"do_swap": swap})
    settings = settled(KEYS, **base, judge_model_args=judge_args)
    text = json.dumps(settings.stored)
    assert "s3cret" not in text

    def headers(part: Fields) -> Fields:
        return (part.get("generation_config") or {}).get("extra_headers") or {}

    resumed = TaskConfig(
        extra_headers=headers(base), judge_model_args={"extra_headers": headers(judge_args)}
    ).over(json.loads(text))
    again = resolve(resumed, KEYS)
    assert prints(again) == prints(settings)
    assert changed_fields(json.loads(json.dumps(prints(settings))), prints(again)) == {}
    assert (again.selection, again.run) == (settings.selection, settings.run)
    assert again.stored == settings.stored


def test_what_is_given_again_lies_over_what_was_stored() -> None:
    """Flags replace stored settings key by key; an empty generation_config replaces the stored one."""
    stored = settled(
        generation_config={"temperature": 0.5}, limit=3, **data(extra_params={"do_swap": False})
    ).stored
    again = resolve(
        TaskConfig(
            limit=5,
            generation_config={"timeout": 9},
            dataset_args={BENCHMARK: {"extra_params": {"tasks": ["sound"]}}},
        ).over(stored),
        KEYS,
    )
    assert again.selection.limit == 5
    assert again.data.root == Path("/data")
    assert dict(again.model.parameters) == {"temperature": 0.5, "max_tokens": 2048}
    assert model_endpoint(again).attempt_timeout == 9
    assert again.judge is not None
    assert not again.judge.swap
    assert dict(resolve(TaskConfig(generation_config={}).over(stored), KEYS).model.parameters) == {}


def test_another_judge_inherits_nothing_of_the_stored_one() -> None:
    """A judge named over a stored one has neither its place nor anything else; only how judges are asked."""
    stored = settled(
        **judge(revision="r1", extra_body={"top_k": 1}, generation_config={"temperature": 0.3}),
        **data(extra_params={"do_swap": False}),
        judge_batch_size=3,
        protocol="official",
    ).stored
    other, same = (
        resolve(TaskConfig(judge_model_args={"model_id": name}).over(stored), KEYS) for name in ("other", "j")
    )
    asked, before = judge_endpoint(other), judge_endpoint(same)
    assert (asked.revision, before.revision) == (None, "r1")
    assert (asked.shown_url, before.shown_url) == (OPENAI_URL, JUDGE_URL)
    assert (asked.extra_body, before.extra_body) == ({}, {"top_k": 1})
    assert (asked.concurrency, before.concurrency) == (16, 3)
    assert (asked.parameters["temperature"], before.parameters["temperature"]) == (1.0, 0.3)
    for again in (other, same):
        assert again.judge is not None
        assert (again.judge.protocol, again.judge.swap) == ("official", False)


def test_the_environment_stands_above_what_was_stored() -> None:
    """A server's variables replace what was stored, flags replace both; a run keeps its own data."""
    stored = settled().stored
    environ = {
        "OTOSCOPE_API_URL": "http://new-model.test/v1",
        "OTOSCOPE_JUDGE_API_URL": "http://new-judge.test/v1",
        "OTOSCOPE_DATA": "/new-data",
    }
    again = resolve(TaskConfig().over(stored), environ | KEYS)
    assert again.judge is not None
    assert model_endpoint(again).shown_url == "http://new-model.test/v1"
    assert judge_endpoint(again).shown_url == "http://new-judge.test/v1"
    here = settled().data.root
    assert here is not None
    assert again.data.root == here.absolute()
    flags = TaskConfig(api_url=MODEL_URL, judge_model_args={"api_url": JUDGE_URL}, **data()).over(stored)
    assert resolve(flags, environ | KEYS).stored == stored
    kept = resolve(TaskConfig().over(stored), {"OPENAI_BASE_URL": "http://openai.test/v1"} | KEYS)
    assert kept.judge is not None
    assert judge_endpoint(kept).shown_url == JUDGE_URL


def test_unknown_stored_settings_are_ignored() -> None:
    """Settings that a later version stored do not stop this one, and a stored key is never read."""
    merged = TaskConfig(model="m").over({"future": 1, "api_key": "k", "limit": 2})
    assert (merged.limit, merged.api_key) == (2, None)


def test_judging_alone_heeds_the_environment_and_needs_no_data() -> None:
    """A restarted judge's address in the environment replaces the stored one, and no data set is named."""
    stored = {name: value for name, value in settled().stored.items() if name != "dataset_args"}
    environ = {"OTOSCOPE_JUDGE_API_URL": "http://new-judge.test/v1"} | KEYS
    again = resolve(judging_only(TaskConfig().over(stored)), environ)
    assert judge_endpoint(again).shown_url == "http://new-judge.test/v1"


def test_stored_settings_take_the_judge_of_others() -> None:
    """What says who judges and how comes from the one side, everything else from the other."""
    first = settled(limit=3, **data(extra_params={"do_swap": False}), protocol="official").stored
    second = settled(KEYS, limit=5, judge_model_args={"model_id": "k"}, judge_batch_size=2).stored
    mixed = with_judge_of(first, second)
    again = resolve(TaskConfig().over(mixed), KEYS)
    assert again.selection.limit == 3
    assert again.judge is not None
    assert (judge_endpoint(again).name, judge_endpoint(again).concurrency) == ("k", 2)
    assert (again.judge.protocol, again.judge.swap) == ("default", True)


def test_a_judge_named_beside_no_judge_is_stored() -> None:
    """With --no-judge the judge's settings are kept for judging later."""
    settings = settled(no_judge=True, **judge(generation_config={"temperature": 0.3}))
    later = resolve(TaskConfig().over(settings.stored), KEYS)
    assert later.judge is not None
    assert (judge_endpoint(later).name, judge_endpoint(later).shown_url) == ("j", JUDGE_URL)
    assert later.judge.endpoint.parameters["temperature"] == 0.3


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"model": "other"}, "model.name"),
        ({"model_revision": "r2"}, "model.revision"),
        ({"api_url": "http://other.test/v1"}, "model.api_url"),
        ({"generation_config": {"temperature": 1}}, "model.parameters"),
        ({"extra_body": {"a": 1}}, "model.extra_body"),
        ({"extra_headers": {"X-Variant": "b"}}, "model.extra_headers"),
        (data(prompt_template="{question}?"), "prompt.template"),
        ({"system_prompt": "x"}, "prompt.system"),
        ({"part_order": "text-first"}, "prompt.part_order"),
        ({"audio_part": "data_uri"}, "prompt.audio_part"),
        ({"answer_filter": "none"}, "prompt.answer_filter"),
        (judge(model_id="other"), "judge.name"),
        (judge(revision="r2"), "judge.revision"),
        (judge(api_url="http://other.test/v1"), "judge.api_url"),
        (judge(generation_config={"max_tokens": 9}), "judge.parameters"),
        (data(extra_params={"do_swap": False}), "judge.do_swap"),
    ],
)
def test_a_changed_setting_is_found_by_name(changed: Fields, name: str) -> None:
    """Every setting that answers or verdicts depend on is found by name, with both its values."""
    before, now = prints(settled()), prints(settled(**changed))
    changes = changed_fields(before, now)
    assert list(changes) == [name]
    part, field = name.split(".")
    assert changes[name] == (before[part][field], now[part][field])


def test_prompt_and_parser_of_the_judge_are_found_by_name() -> None:
    """Another judge prompt, parser or protocol is another judge."""
    before = prints(settled())
    now = fingerprint(settled(protocol="official"), judge_prompt_sha256="q", parser_version=2)
    changes = changed_fields(before, now)
    assert set(changes) == {
        f"judge.{n}" for n in ("parameters", "parser_version", "prompt_sha256", "protocol")
    }


@pytest.mark.parametrize(
    "changed",
    [
        {"api_key": "renewed"},
        judge(api_key="renewed"),
        {"limit": 5, "seed": 1, "shuffle": True},
        data(subset_list=["sound"]),
        {"eval_batch_size": 1, "judge_batch_size": 2, "stream": True},
        {"rpm": 5, "tpm": 600, **judge(rpm=0.5, tpm=7)},
        {"wait_ready": 600},
        {"generation_config": {"timeout": 5, "retries": 9, "retry_interval": 2}},
        {"label": "x", "tags": {"a": "b"}, "min_coverage": 0.5},
        {"no_judge": True},
    ],
)
def test_what_changes_no_answer_is_no_change(changed: Fields) -> None:
    """Keys, selection, speed, labels, and a judge that one side lacks are no changes."""
    before, now = prints(settled()), prints(settled(**changed))
    assert changed_fields(before, now) == {}
    assert changed_fields(now, before) == {}


def test_a_revision_is_an_endpoint_s_identity() -> None:
    """With the same revision on both sides another URL is no change; with another one it is."""
    here, there = (settled(model_revision="r", api_url=f"http://{host}/v1") for host in "ab")
    assert changed_fields(prints(here), prints(there)) == {}
    other = settled(model_revision="s", api_url="http://b/v1")
    assert set(changed_fields(prints(here), prints(other))) == {"model.revision", "model.api_url"}
    assert "model.api_url" in changed_fields(prints(settled()), prints(there))


def test_only_a_url_may_be_allowed_to_change() -> None:
    """--allow-changed takes URLs and sources, and refuses anything else with the closest of them."""
    assert settled(allow_changed="judge.api_url").run.allow_changed == ("judge.api_url",)
    said = refused(allow_changed=["model.apiurl"])
    assert "did you mean 'model.api_url'?" in said
    said = refused(allow_changed=["judge.parameters"])
    assert "only model.api_url, judge.api_url, model.source_sha256, judge.source_sha256 can" in said


@pytest.mark.parametrize("name", ["model", "messages", "api_key", "secret", "access_key"])
def test_a_body_can_hold_neither_secrets_nor_what_is_ours(name: str) -> None:
    """What is added to requests is stored with the run: a key there is refused, and so is another model."""
    for place in ({"extra_body": {name: "x"}}, {"generation_config": {"extra_body": {name: "x"}}}):
        with pytest.raises(ConfigError, match=name):
            settled(**place)


def test_bad_json_is_told_without_its_text() -> None:
    """What stands where the JSON breaks may be a part of a key."""
    with pytest.raises(ConfigError) as caught:
        parse_object('{"api_key": "sk-1234" oops}', "--judge-model-args")
    assert "1234" not in str(caught.value)
    assert "character 23" in str(caught.value)


def test_the_models_in_this_process_need_no_url_and_no_key() -> None:
    """Baseline and embedded are inside of this process; given with a URL they are a server's names."""
    settings = resolve(
        TaskConfig(
            model="baseline",
            dataset_args={"air_bench_chat": {"local_path": "data"}},
            judge_model_args={"model_id": "embedded"},
        ),
        {"OTOSCOPE_CACHE": "/cache", "OPENAI_BASE_URL": "http://elsewhere.test/v1"},
    )
    assert settings.judge is not None
    assert isinstance(settings.model, EmbeddedSettings)
    assert isinstance(settings.judge.endpoint, EmbeddedSettings)
    assert settings.weights.cache == Path("/cache/models")
    assert "api_url" not in settings.stored
    assert settings.stored["judge_model_args"] == {"model_id": "embedded"}
    served = settled(model="baseline")
    assert model_endpoint(served).name == "baseline"


def test_the_embedded_judge_has_one_protocol() -> None:
    """It scores by expectation, which the official protocol does not know."""
    with pytest.raises(ConfigError, match="expectation"):
        settled(protocol="official", judge_model_args={"model_id": "embedded"})


def test_the_weights_behind_a_model_are_part_of_the_fingerprint() -> None:
    """Other weights are another model, and the refusal says so."""
    settings = settled(judge_model_args={"model_id": "embedded"})
    prints = [
        fingerprint(
            settings, judge_prompt_sha256="p", parser_version=1, weights={"embedded": {"a.gguf": sha}}
        )
        for sha in ("1", "2")
    ]
    assert changed_fields(*prints) == {"judge.weights": ({"a.gguf": "1"}, {"a.gguf": "2"})}


@pytest.mark.parametrize("name", ["system_prompt", "part_order", "answer_filter", "generation_config"])
def test_the_baseline_refuses_what_would_have_no_effect(name: str) -> None:
    """Its prompt and parameters are its own; a setting that changes nothing must not seem to."""
    value: Any = {"temperature": 1} if name == "generation_config" else "text-first"
    with pytest.raises(ConfigError, match=name):
        resolve(config(model="baseline", api_url=None, **{name: value}), KEYS)
