"""Runs over several servers of one model: what is asked for, stored, refused and resumed."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from otoscope import load_run, run_task
from otoscope.bundle.scrubbing import Scrubber
from otoscope.config import (
    EndpointSettings,
    Settings,
    TaskConfig,
    changed_fields,
    environment_secrets,
    fingerprint,
    resolve,
    shown_urls,
)
from otoscope.errors import ConfigError
from otoscope.secrecy import in_url
from tests.scripted_server import Response, Script, ScriptedServer, Seen, scripted_answers
from tests.support import (
    command,
    config,
    environment,
    judge_endpoint,
    lines,
    model_endpoint,
    otoscope,
    write_data,
)

A, B, C = (f"http://{name}.test/v1" for name in "abc")
SAMPLES = 8


def settled(environ: dict[str, str] | None = None, **given: Any) -> Settings:
    """Resolve settings for a model at these URLs."""
    fields = {
        "model": "m",
        "no_judge": True,
        "dataset_args": {"air_bench_chat": {"local_path": "."}},
        **given,
    }
    return resolve(TaskConfig(**fields), environ or {})


def model(**given: Any) -> EndpointSettings:
    """Return the settings of the model's endpoint."""
    return model_endpoint(settled(**given))


def refused(**given: Any) -> str:
    """Return what is said of settings that are refused."""
    with pytest.raises(ConfigError) as caught:
        settled(**given)
    return str(caught.value)


def prints(settings: Settings) -> dict[str, Any]:
    """Return the fingerprint."""
    return fingerprint(settings, judge_prompt_sha256="p", parser_version=1)


# --- what is given ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("urls", [f"{C},{A},{B}", f" {A} , {B},{C}/", [B, C, A], (A, B, C)])
def test_the_order_of_urls_does_not_matter(urls: Any) -> None:
    """However they are written, the same set is the same endpoint, with each server's own settings."""
    settings = settled(api_url=urls, api_key="k")
    endpoint = model_endpoint(settings)
    assert endpoint.shown_url == settings.stored["api_url"] == f"{A},{B},{C}"
    assert prints(settings) == prints(settled(api_url=f"{A},{B},{C}"))
    assert [one.url for one in endpoint.replicas] == [f"{url}/chat/completions" for url in (A, B, C)]
    assert [one.authorization for one in endpoint.replicas] == ["Bearer k"] * 3
    assert {one.others for one in endpoint.replicas} == {()}


def test_one_url_is_no_set_of_replicas() -> None:
    """A single URL is its only replica, also as a list."""
    for urls in (A, [A]):
        endpoint = model(api_url=urls)
        assert endpoint.replicas == (endpoint,)


def test_the_judge_and_the_environment_take_several_as_well() -> None:
    """``judge_model_args.api_url`` may be a list, and variables may hold several."""
    judge = {"model_id": "j", "api_url": [B, A], "api_key": "k"}
    settings = settled(no_judge=None, api_url=A, judge_model_args=judge)
    assert judge_endpoint(settings).shown_url == f"{A},{B}"
    assert settings.stored["judge_model_args"]["api_url"] == f"{A},{B}"
    environ = {"OTOSCOPE_API_URL": f"{B},{A}", "OTOSCOPE_JUDGE_API_URL": f"{C},{B}", "OPENAI_API_KEY": "k"}
    settings = settled(environ, no_judge=None)
    assert model_endpoint(settings).shown_url == f"{A},{B}"
    assert judge_endpoint(settings).shown_url == f"{B},{C}"
    stored = settled(api_url=A, judge_model_args={"api_url": [B, A]}).stored
    assert stored["judge_model_args"]["api_url"] == f"{A},{B}"


@pytest.mark.parametrize(
    ("urls", "said"),
    [
        (f"{A},,{B}", "nothing stands at place 2 of 3"),
        (f"{A},", "nothing stands at place 2 of 2"),
        (f",{A}", "nothing stands at place 1 of 2"),
        ([A, ""], "nothing stands at place 2 of 2"),
        (f"{A},{B},{A}/", f"{A!r} is given twice"),
        (f"{A},{A}/chat/completions", f"{A!r} is given twice"),
        (f"{A},b.test/v1", "place 2 of 2 ('b.test/v1') is not a URL"),
        (f"{A}?x=1,2", "within a URL it is written %2C"),
        ([], "the URLs of replicas"),
        ([A, 5], "the URLs of replicas"),
        ({"A": A}, "the URLs of replicas"),
    ],
)
def test_a_set_that_cannot_be_meant_is_refused(urls: Any, said: str) -> None:
    """For the model and for the judge, by the field's name and the place in it."""
    for told in (
        refused(api_url=urls),
        refused(api_url=A, no_judge=None, judge_model_args={"api_url": urls}),
    ):
        assert "api_url: " in told
        assert said in told


@pytest.mark.parametrize(
    "urls",
    [
        f"http://u:s3,cret@a.test/v1,{B}",
        f"{A}?key=s3,cret,{B}",
        f"{A},u:s3cret@b.test",
        f"{A},http://u:s3cret@b.test:port/v1",
        f"http://u:s3cret@a.test/v1,{B},s3cret",
    ],
)
def test_no_part_of_a_secret_is_shown(urls: str) -> None:
    """Neither of a password nor of a key that a comma has cut in two."""
    told = refused(api_url=urls)
    assert "s3" not in told
    assert "cret" not in told


def test_a_list_may_hold_commas() -> None:
    """They are written so that the stored text can be read again as the same set."""
    urls = [f"{B}?x=1,2", "http://u:s3,cret@a.test/v1"]
    settings = settled(api_url=urls)
    assert settings.stored["api_url"] == f"{A},{B}?x=1%2C2"
    assert prints(settled(api_url=settings.stored["api_url"])) == prints(settings)
    assert model_endpoint(settings).replicas[0].authorization == "Basic dTpzMyxjcmV0"


def test_secrets_of_all_of_them_are_known() -> None:
    """Each URL's own are masked, wherever it stands in the text."""
    urls = f"http://u:first-pw@a.test/v1,{B}?key=second-key,http://u:third-pw@c.test/v1?x=1"
    assert {"first-pw", "second-key", "third-pw"} <= set(in_url(urls))
    assert set(in_url(urls)) <= set(environment_secrets({"OTOSCOPE_API_URL": urls}))
    assert shown_urls(urls) == f"{A},{B}?key=***,{C}?x=1"
    assert "give the URL again" in refused(api_url=shown_urls(urls))


def test_a_bundle_names_none_of_them() -> None:
    """Each gets a stand-in of its own, the same wherever it is named."""
    scrub = Scrubber()
    scrub.learn({"api_url": f"{A},{B}"})
    joined = scrub.url(f"{A},{B}")
    assert joined == f"{scrub.url(A)},{scrub.url(B)}"
    assert scrub.url(A) != scrub.url(B)
    assert "test" not in scrub.text(f"{B} is set aside: no connection to b.test; see {A}, too")


# --- the fingerprint --------------------------------------------------------------------------------------


def test_another_set_is_another_url() -> None:
    """One more or one less is a difference that may be waved through; a revision makes the URL free."""
    three, two = settled(api_url=f"{A},{B},{C}"), settled(api_url=f"{A},{B}")
    assert changed_fields(prints(three), prints(two)) == {"model.api_url": (f"{A},{B},{C}", f"{A},{B}")}
    named = [prints(settled(api_url=urls, model_revision="r")) for urls in (f"{A},{B}", C)]
    assert changed_fields(*named) == {}


# --- runs -------------------------------------------------------------------------------------------------


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Give a small data set."""
    return write_data(tmp_path / "data", each=1)


def joined(*servers: ScriptedServer) -> str:
    """Return the servers' URLs in the order in which they are stored."""
    return ",".join(sorted(server.url for server in servers))


def dying(at: int) -> Script:
    """Answer; die of the request of that number, counted from 1."""
    healthy, count = scripted_answers(), 0

    def script(seen: Seen, attempt: int) -> Response:
        nonlocal count
        count += 1
        return Response(die=True) if count == at else healthy(seen, attempt)

    return script


def flags(servers: tuple[ScriptedServer, ...], judge: str, data: Path, run: Path, *more: str) -> list[str]:
    """Return the command that evaluates over these servers."""
    of_judge = {
        "model_id": "scripted-judge",
        "api_key": "EMPTY",
        "generation_config": {"retry_interval": 0.01},
    }
    return [
        "eval", "--model", "scripted-model", "--api-url", ",".join(server.url for server in servers),
        "--data", str(data), "--run-dir", str(run), "--generation-config", "retry_interval=0.01",
        "--judge-api-url", judge, "--judge-model-args", json.dumps(of_judge), *more,
    ]  # fmt: skip


def test_a_replica_dies_in_the_middle_of_a_run(data: Path, tmp_path: Path) -> None:
    """Same numbers as with one server; it is told, and each answer names who gave it."""
    run = tmp_path / "run"
    with ScriptedServer() as one, ScriptedServer(dying(at=2)) as two, ScriptedServer() as judge:
        done = otoscope(*flags((one, two), judge.url, data, run))
        assert done.returncode == 0, done.stderr
        assert f"at {two.url} is set aside: " in " ".join(done.stderr.split())
        counts = load_run(run).summary.counts
        assert (counts["scored"], counts["failed"]) == (SAMPLES, 0)
        endpoints = [line["replies"][0]["endpoint"] for line in lines(run / "answers.jsonl")]
        assert sorted(set(endpoints)) == sorted({one.url, two.url})
        alone = run_task(config(judge.url, data, tmp_path / "alone"))
        assert alone.summary.to_json()["average"] == load_run(run).summary.to_json()["average"]


def test_the_judge_may_have_replicas(data: Path, tmp_path: Path) -> None:
    """Verdicts come from both, and one that is dead from the start costs none."""
    with ScriptedServer() as one, ScriptedServer() as two, ScriptedServer() as dead:
        dead.stop()
        run = run_task(
            config(one.url, data, tmp_path / "run", judge_args={"api_url": [one.url, two.url, dead.url]})
        )
        assert run.summary.counts["scored"] == SAMPLES
        judged = [line["replies"][0]["endpoint"] for line in lines(run.path / "verdicts.jsonl")]
        assert set(judged) == {one.url, two.url}


def test_all_dead_prints_a_command_that_resumes(data: Path, tmp_path: Path) -> None:
    """It stops with the model's exit code; the printed command goes on once a server is back."""
    run = tmp_path / "run"
    with ScriptedServer(dying(at=3)) as one, ScriptedServer(dying(at=3)) as two, ScriptedServer() as judge:
        done = otoscope(*flags((one, two), judge.url, data, run, "--eval-batch-size", "2"))
        assert done.returncode == 4, done.stderr
        assert "Is the server running" in " ".join(done.stderr.split())
        resume = re.search(r"otoscope eval --use-cache .*", done.stderr)
        assert resume is not None
        two.start()
        key = "--judge-api-key EMPTY"
        words = shlex.split(resume[0].replace("--judge-model-args ...", key))[1:]
        again = otoscope(*words, *([] if key in " ".join(words) else key.split()))
        assert again.returncode == 0, again.stderr
    assert load_run(run).summary.counts["scored"] == SAMPLES


def test_another_set_is_refused_and_can_be_waved_through(data: Path, tmp_path: Path) -> None:
    """The order does not matter; a server less does, and the command that is printed goes on."""
    run = tmp_path / "run"
    with ScriptedServer() as one, ScriptedServer() as two, ScriptedServer() as judge:
        few = otoscope(*flags((one, two), judge.url, data, run, "--tasks", "speech_QA"))
        assert few.returncode == 0, few.stderr
        swapped = otoscope(*flags((two, one), judge.url, data, run, "--tasks", "speech"))
        assert swapped.returncode == 0, swapped.stderr
        fewer = otoscope(*flags((two,), judge.url, data, run))
        assert fewer.returncode == 6, fewer.stderr
        assert f"model.api_url: was '{joined(one, two)}', now '{two.url}'" in fewer.stderr
        way = re.search(r"otoscope eval --use-cache .*", fewer.stderr)
        assert way is not None
        assert f"--api-url {two.url}" in way[0]
        assert way[0].endswith("--allow-changed model.api_url")
        on = otoscope(*shlex.split(way[0])[1:], "--judge-api-key", "EMPTY")
        assert on.returncode == 0, on.stderr


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL")
def test_a_killed_run_is_resumed_over_the_same_servers(data: Path, tmp_path: Path) -> None:
    """Nothing that was stored is asked for again, whichever server gave it."""
    run = tmp_path / "run"

    def script(seen: Seen, attempt: int) -> Response:
        return Response(hang=True) if "clip 6 of" in seen.text else scripted_answers()(seen, attempt)

    with ScriptedServer(script) as one, ScriptedServer(script) as two, ScriptedServer() as judge:
        arguments = flags((one, two), judge.url, data, run, "--eval-batch-size", "2")
        process = subprocess.Popen(command(*arguments), env=environment(), stderr=subprocess.DEVNULL)
        answers = run / "answers.jsonl"
        while not answers.exists() or answers.read_text(encoding="utf-8").count("\n") < SAMPLES - 1:
            assert process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
        before = {
            seen.digest for server in (one, two) for seen in server.requests if seen.served_at is not None
        }
        for server in (one, two):
            server.reset()
            server.script = scripted_answers()
        again = otoscope(*arguments)
        assert again.returncode == 0, again.stderr
        after = [seen.digest for server in (one, two) for seen in server.requests]
        assert len(after) == 1
        assert not before & set(after)
    assert load_run(run).summary.counts["scored"] == SAMPLES


def test_a_dry_run_shows_all_of_them(data: Path) -> None:
    """And sends nothing."""
    done = otoscope(
        "eval", "--model", "m", "--api-url", f"{B},{A}", "--data", str(data), "--dry-run"
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert A in done.stdout
    assert B in done.stdout
