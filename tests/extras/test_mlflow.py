"""Runs logged in MLflow itself: into a store on disk, and read back with its own client."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from otoscope import judge_runs, load_run, run_task
from otoscope.records import Event, Notice
from otoscope.tracking import Tracked, track
from tests.scripted_server import ScriptedServer
from tests.support import config, otoscope, write_data

# What MLflow and what it uses warn of is theirs.
pytestmark = [pytest.mark.extras, pytest.mark.filterwarnings("ignore")]

MODEL_KEY, JUDGE_KEY = "sk-Zq8vT3xLw6Rn2Bd9", "jk-Hs4mC7yPk1Gf5Ja3"


@dataclass
class Tracking:
    """A data set, a scripted server, and an experiment of its own in an MLflow store."""

    folder: Path
    """For runs."""
    data: Path
    server: ScriptedServer
    store: Path
    """The folder in which MLflow keeps everything."""
    experiment: str

    @property
    def environ(self) -> dict[str, str]:
        """What says where MLflow keeps things."""
        return {
            "MLFLOW_TRACKING_URI": f"sqlite:///{self.store}/store.db",
            "MLFLOW_EXPERIMENT_NAME": self.experiment,
        }

    @property
    def client(self) -> MlflowClient:
        """MLflow's own client."""
        return MlflowClient(self.environ["MLFLOW_TRACKING_URI"])

    def run(self, *words: str, page: bool = False, **environ: str) -> str:
        """Run a command that ends with 0; return what it said beside its result."""
        done = otoscope(*words, cwd=self.store, environ={**self.environ, **environ}, timeout=500, page=page)
        assert done.returncode == 0, done.stderr
        return done.stderr

    def evaluate(self, *, environ: Mapping[str, str] | None = None, **more: Any) -> list[str]:
        """Evaluate into ``run`` with the tracker, in this process; return the notices."""
        notices: list[str] = []

        def listen(event: Event) -> None:
            if isinstance(event, Notice):
                notices.append(event.message)

        given = config(self.server.url, self.data, self.folder / "run", track="mlflow", **more)
        run_task(given, on_event=listen, environ={**os.environ, **(environ or self.environ)})
        return notices

    def track(self) -> None:
        """Tell of the run once more."""
        (told,) = track([self.folder / "run"], ["mlflow"], {**os.environ, **self.environ}, seconds=500)
        assert isinstance(told, Tracked)

    def runs(self) -> Sequence[Run]:
        """Return the runs that MLflow has."""
        found = self.client.get_experiment_by_name(self.experiment)
        return [] if found is None else list(self.client.search_runs([found.experiment_id]))

    def artifacts(self, run: Run) -> dict[str, bytes]:
        """Return the files that MLflow has of a run."""
        run_id = run.info.run_id
        paths = [found.path for found in self.client.list_artifacts(run_id)]
        return {path: Path(self.client.download_artifacts(run_id, path)).read_bytes() for path in paths}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the folder of one store for all tests: its tables take MLflow seconds."""
    return tmp_path_factory.mktemp("mlflow")


@pytest.fixture
def tracking(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Tracking]:
    """Give an experiment with nothing in it."""
    # MLflow puts what is not in the database where it is called.
    monkeypatch.chdir(store)
    with ScriptedServer() as server:
        yield Tracking(tmp_path, write_data(tmp_path / "data", each=4), server, store, request.node.name)


def test_an_evaluation_stands_in_mlflow_as_it_is_on_disk(tracking: Tracking) -> None:
    """Settings, numbers with both bounds, tags and files are there; what is n/a is not, and no key is."""
    run = tracking.folder / "run"
    address = tracking.server.url.replace("://", f"://user:{MODEL_KEY}@")
    said = tracking.run(
        "eval", "--model", "scripted-model", "--api-url", address, "--data", str(tracking.data),
        "--extra-headers", f'{{"X-Api-Key": "{MODEL_KEY}"}}', "--run-dir", str(run),
        "--judge-model", "scripted-judge", "--judge-api-url", tracking.server.url,
        "--label", "mine", "--tag", "step=7", "--track", "mlflow",
        page=True, OPENAI_API_KEY=JUDGE_KEY, OTOSCOPE_API_KEY=MODEL_KEY,
    )  # fmt: skip
    assert "Logged in mlflow: run " in said
    (logged,) = tracking.runs()
    summary = load_run(run).summary
    assert (logged.info.run_name, logged.info.status) == ("mine", "FINISHED")
    assert logged.info.start_time <= logged.info.end_time
    metrics, params, tags = logged.data.metrics, logged.data.params, logged.data.tags
    for name in ("average", "speech", "mixed_audio", "music_QA"):
        cell = summary.cell(name)
        assert metrics[f"{name}/gpt_score"] == cell.gpt_score
        assert metrics[f"{name}/win_rate"] == cell.win_rate
        if cell.ci95 is not None:
            told = (metrics[f"{name}/gpt_score_ci95_low"], metrics[f"{name}/gpt_score_ci95_high"])
            assert told == cell.ci95
    assert summary.average.ci95 is not None
    assert "speech_QA/gpt_score_full_weights" not in metrics
    assert metrics["counts/scored"] == 32
    assert metrics["usage/judge/calls"] == 64
    assert params["model.name"] == "scripted-model"
    assert params["judge.parameters.temperature"] == "0"
    assert (tags["step"], tags["otoscope.judge"]) == ("7", "scripted-judge")
    assert tags["otoscope.selection.samples"] == "32"
    assert tracking.artifacts(logged) == {n: (run / n).read_bytes() for n in ("report.html", "summary.json")}
    kept = [path for path in tracking.store.rglob("*") if path.is_file()]
    assert tracking.store / "store.db" in kept
    for path in kept:
        assert not [key for key in (MODEL_KEY, JUDGE_KEY) if key.encode() in path.read_bytes()], path


def test_a_resumed_run_is_the_same_mlflow_run(tracking: Tracking) -> None:
    """More samples, other tags and a judge that comes later change the one MLflow run; nothing is doubled."""
    assert not tracking.evaluate(limit=2, no_judge=True, tags={"a": "1"})
    (answered,) = tracking.runs()
    assert answered.info.status == "SCHEDULED"
    assert answered.data.metrics["counts/pending"] == 16
    assert "judge.name" not in answered.data.params
    assert not tracking.evaluate(tags={"b": "2"})
    (judged,) = tracking.runs()
    assert judged.info.run_id == answered.info.run_id
    assert judged.info.status == "FINISHED"
    assert judged.data.metrics["counts/scored"] == 32
    assert judged.data.params["judge.name"] == "scripted-judge"
    assert judged.data.tags["b"] == "2"
    assert "a" not in judged.data.tags
    assert "otoscope.selection.limit" not in judged.data.tags
    history = tracking.client.get_metric_history(judged.info.run_id, "average/gpt_score")
    tracking.track()
    assert tracking.client.get_metric_history(judged.info.run_id, "average/gpt_score") == history
    assert len(tracking.runs()) == 1


def test_a_number_that_is_gone_stands_nowhere_as_the_runs(tracking: Tracking) -> None:
    """With fewer samples the average is n/a: a new MLflow run takes the old one's place, which says so."""
    tracking.evaluate()
    tracking.evaluate(extra_params={"tasks": ["speech_QA"]})
    now, before = sorted(tracking.runs(), key=lambda run: "otoscope.superseded_by" in run.data.tags)
    assert "average/gpt_score" in before.data.metrics
    assert before.data.tags["otoscope.superseded_by"] == now.info.run_id
    assert "average/gpt_score" not in now.data.metrics
    tracking.track()
    assert len(tracking.runs()) == 2


def test_stored_runs_are_logged_later_by_each_rule_and_judge(tracking: Tracking) -> None:
    """What is stored is logged by ``report`` and ``judge``; other rules or judges are other MLflow runs."""
    run_task(config(tracking.server.url, tracking.data, tracking.folder / "run"), environ={})
    run = str(tracking.folder / "run")
    sent = len(tracking.server.requests)
    assert not tracking.runs()
    said = tracking.run("report", run, "--track", "mlflow")
    assert "Logged in mlflow, without report.html, which is missing or older than the run: run " in said
    tracking.run("report", run, "--scoring", "official", "--track", "mlflow")
    assert len(tracking.server.requests) == sent
    found = {one.data.tags["otoscope.scoring"]: one for one in tracking.runs()}
    assert set(found) == {"default", "official"}
    official = load_run(run, scoring="official").summary
    assert found["official"].data.metrics["average/gpt_score"] == official.average.gpt_score
    judge = {"model_id": "scripted-model", "api_url": tracking.server.url, "api_key": "none"}
    judge_runs(
        [run], {"judge_model_args": judge, "track": ["mlflow"]}, environ={**os.environ, **tracking.environ}
    )
    judges = [one.data.params["judge.name"] for one in tracking.runs()]
    assert sorted(judges) == ["scripted-judge", "scripted-judge", "scripted-model"]


def test_texts_longer_than_mlflow_takes_are_cut(tracking: Tracking) -> None:
    """A long prompt, a long tag and hundreds of parameters go in; the summary has them whole."""
    prompt = "Listen well. " * 600
    body = {f"p{number}": number for number in range(230)}
    tracking.evaluate(limit=1, system_prompt=prompt, tags={"note": "x" * 9000}, extra_body=body)
    (logged,) = tracking.runs()
    assert logged.data.params["prompt.system"] == prompt[:499] + "…"
    assert len(logged.data.tags["note"]) == 5000
    assert logged.data.params["model.extra_body.p229"] == "229"
    assert prompt.encode() in tracking.artifacts(logged)["summary.json"]


def test_a_server_that_is_gone_or_silent_costs_no_run(tracking: Tracking) -> None:
    """Refused, never answered, or no server at all: a notice says how to log it later, which then works."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for address in (
            f"http://127.0.0.1:{closed_port()}",
            f"http://127.0.0.1:{silent.getsockname()[1]}",
            "nosuch://place",
        ):
            own = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "1", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
            (notice,) = tracking.evaluate(limit=1, environ={**own, "MLFLOW_TRACKING_URI": address})
            assert "run was not logged in mlflow: " in notice
            assert "that was not done within" not in notice
            assert "run --track mlflow" in notice
    assert load_run(tracking.folder / "run").summary.counts["scored"] == 8
    assert not tracking.runs()
    tracking.track()
    assert len(tracking.runs()) == 1


def closed_port() -> int:
    """Return a port at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
