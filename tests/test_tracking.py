"""Runs told to trackers: what is told, and what becomes of a run when a tracker is trouble.

The tracker's library is one that the tests write; tests/extras has the real ones.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from otoscope import TaskConfig, load_run, run_task
from otoscope.benchmark import TASKS
from otoscope.config import resolve
from otoscope.errors import ConfigError
from otoscope.records import Notice
from otoscope.runs import write_results
from otoscope.store import RunStore
from otoscope.tracking import NotTracked, require, track
from otoscope.tracking.logged import Logged, logged
from tests.report_runs import manifest, small_run, write_run
from tests.scripted_server import ScriptedServer
from tests.support import config, environment, flags, otoscope, write_data

ABSENT = importlib.util.find_spec("mlflow") is None


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a small stored run."""
    return write_run(tmp_path_factory.mktemp("tracking") / "run", small_run())


def told(path: Path, *, scoring: str = "default", view: str = "full") -> Logged:
    """Return what a tracker is told of a stored run."""
    return logged(load_run(path, scoring=scoring, view=view))


def library(folder: Path, source: str) -> dict[str, str]:
    """Write an ``mlflow`` of our own; return the environment of a process that finds it."""
    package = folder / "library" / "mlflow"
    (package / "entities").mkdir(parents=True)
    entities = "from types import SimpleNamespace\nMetric = Param = Run = RunTag = SimpleNamespace\n"
    (package / "entities" / "__init__.py").write_text(entities, encoding="utf-8")
    variables = "MLFLOW_EXPERIMENT_ID = MLFLOW_EXPERIMENT_NAME = None\n"
    (package / "environment_variables.py").write_text(variables, encoding="utf-8")
    (package / "__init__.py").write_text(source, encoding="utf-8")
    return environment(PYTHONPATH=os.pathsep.join([str(package.parent), *sys.path]))


# --- what is told ------------------------------------------------------------------------------------------


def test_every_number_is_one_of_the_summary(run: Path) -> None:
    """Means, rates and both bounds of their intervals are told of each cell, as the summary has them."""
    summary, metrics = load_run(run).summary, told(run).metrics
    for name in ("average", "mixed_audio", "speech", "music_QA", "all_samples"):
        cell = summary.cell(name)
        for number in ("gpt_score", "win_rate", "tie_rate", "reference_score", "scored", "failed"):
            assert metrics.get(f"{name}/{number}") == getattr(cell, number)
        interval = (metrics.get(f"{name}/gpt_score_ci95_low"), metrics.get(f"{name}/gpt_score_ci95_high"))
        assert interval == (cell.ci95 or (None, None))
    assert metrics["counts/expected"] == summary.counts["expected"]
    assert metrics["usage/judge/calls"] == summary.usage["judge"]["calls"]


def test_what_is_not_available_is_left_out(run: Path) -> None:
    """No metric is NaN or stands for nothing; what is left out is known by name."""
    one = told(run)
    assert all(math.isfinite(value) for value in one.metrics.values())
    assert "speech_QA/gpt_score_full_weights" in one.not_available
    assert one.not_available.isdisjoint(one.metrics)
    text = json.dumps([dict(one.params), dict(one.tags)])
    assert "NaN" not in text
    assert "null" not in text


def test_a_run_may_have_the_same_metrics_whatever_was_chosen(tmp_path: Path) -> None:
    """A run of one task names what it lacks of all the others, so that what was told before can be missed."""
    one = told(write_run(tmp_path / "run", [small_run()[0]]))
    known = one.not_available | set(one.metrics)
    assert {f"{name}/gpt_score" for name in (*TASKS, "average", "speech")} <= known
    assert "average/gpt_score" in one.not_available


def test_params_are_what_was_asked_and_no_address(run: Path) -> None:
    """The fingerprint is told under dotted names; addresses, which may change, are tags."""
    one = told(run)
    fingerprint = load_run(run).manifest["fingerprint"]
    assert one.params["model.name"] == fingerprint["model"]["name"]
    assert one.params["judge.prompt_sha256"] == fingerprint["judge"]["prompt_sha256"]
    assert one.params["judge.parameters.temperature"] == "0"
    assert not [name for name in one.params if "api_url" in name]
    assert one.tags["otoscope.endpoint.judge"] == fingerprint["judge"]["api_url"]


def test_names_and_texts_are_such_as_trackers_take(tmp_path: Path) -> None:
    """Tags and parameters may hold anything: their names are made harmless, and their texts legible."""
    tags = {"step": "7", "../up": "a", "a/b:c": "d", "": "e", "n" * 400: "f", "odd": "\ud800\0"}
    made = manifest(tags=tags, label="half \ud800")
    made["fingerprint"]["model"]["extra_body"] = {"top k/1": {"é": [1, "x"]}}
    one = told(write_run(tmp_path / "run", small_run(), **made))
    names = [*one.params, *one.tags, *one.metrics, *one.not_available]
    assert max(map(len, names)) <= 250
    assert not [name for name in names if not name.isascii() or name.startswith((".", "/"))]
    assert one.tags["step"] == "7"
    assert one.tags["_up"] == "a"
    assert one.params["model.extra_body.top k_1._"] == '[1, "x"]'
    json.dumps([dict(one.tags), one.name], ensure_ascii=False).encode()
    assert one.tags["odd"] == "?\ufffd"


def test_other_rules_make_another_identity(run: Path) -> None:
    """Official numbers, and those of a view, are never told as the run's own."""
    ways = (("default", "full"), ("official", "full"), ("default", "paper-2000"))
    found = [tuple(told(run, scoring=scoring, view=view).identity.values()) for scoring, view in ways]
    assert len(set(found)) == len(ways)
    assert len({identity[0] for identity in found}) == 1


def test_a_page_counts_while_nothing_it_was_made_of_is_newer(tmp_path: Path) -> None:
    """The report is told of where it is up to date, and under default rules or not."""
    path = write_run(tmp_path / "run", small_run())
    with RunStore.open(path) as store:
        write_results(store, store.samples())
    page = path / "report.html"
    assert logged(load_run(path), page=page.name).page is None
    page.write_text("<html>", encoding="utf-8")
    newest = max(file.stat().st_mtime_ns for file in path.iterdir())
    os.utime(page, ns=(newest + 1, newest + 1))
    assert logged(load_run(path), page=page.name).page == page
    os.utime(path / "answers.jsonl", ns=(newest + 2, newest + 2))
    assert logged(load_run(path), page=page.name).page is None


def test_a_run_is_complete_when_nothing_is_pending(run: Path, tmp_path: Path) -> None:
    """A run that still owes something is told as such."""
    assert told(run).complete
    assert not told(write_run(tmp_path / "run", [(*small_run()[0][:2], {})])).complete


# --- settings ----------------------------------------------------------------------------------------------


def settled(track: object) -> tuple[str, ...]:
    """Return which trackers these settings name."""
    given = TaskConfig.from_mapping({"model": "baseline", "no_judge": True, "track": track})
    return resolve(given, {}).run.track


def test_trackers_are_words_of_which_each_counts_once() -> None:
    """One name, a list, or nothing; anything else is refused with what there is."""
    assert settled("mlflow") == settled(["mlflow", "mlflow"]) == ("mlflow",)
    assert settled(None) == settled([]) == ()
    with pytest.raises(ConfigError, match="'mlflo' is not one of mlflow, did you mean 'mlflow'"):
        settled(["mlflo"])


def test_a_run_does_not_keep_its_tracker() -> None:
    """Who continues a run tells whom they like: no manifest names a tracker."""
    given = TaskConfig(model="baseline", no_judge=True, track=["mlflow"])
    assert "track" not in resolve(given, {}).stored


def test_a_library_that_is_not_there_is_named_with_its_extra() -> None:
    """A folder of that name is no library."""
    with pytest.raises(ConfigError, match=r"pip install 'otoscope\[nosuch_tracker\]'"):
        require(["nosuch_tracker"])


@pytest.mark.skipif(not ABSENT, reason="MLflow is installed here")
def test_a_missing_library_ends_a_command_before_anything_is_sent(tmp_path: Path, run: Path) -> None:
    """``eval``, its dry run, ``judge`` and ``report`` say which extra is missing; no request was made."""
    data = write_data(tmp_path / "data", each=1)
    (tmp_path / "mlflow").mkdir()  # where the command runs: a folder is no library
    with ScriptedServer() as server:
        asked = flags(server.url, data, "--run-dir", "run")
        judging = ["judge", str(run), "--judge-api-url", server.url, "--judge-api-key", "none"]
        for words in (asked, [*asked, "--dry-run"], judging, ["report", str(run)]):
            done = otoscope(*words, "--track", "mlflow", cwd=tmp_path)
            assert done.returncode == 2, done.stderr
            assert "pip install 'otoscope[mlflow]'" in done.stderr
        assert server.requests == []
    assert not (tmp_path / "run").exists()


# --- trouble -----------------------------------------------------------------------------------------------


def trouble(run: Path, environ: Mapping[str, str], seconds: float = 60) -> str:
    """Return why a run was not logged."""
    (one,) = track([run], ["mlflow"], environ, seconds=seconds)
    assert isinstance(one, NotTracked)
    assert f"otoscope report {run} --track mlflow" in one.message
    return one.why


def test_a_tracker_that_hangs_is_given_up(run: Path, tmp_path: Path) -> None:
    """A library that never comes back is ended after its time."""
    environ = library(tmp_path, "import time\nwhile True:\n    time.sleep(60)\n")
    assert trouble(run, environ, seconds=2) == "that was not done within 2 s"


def test_a_tracker_that_ends_the_process_is_told_by_its_last_words(run: Path, tmp_path: Path) -> None:
    """A library may take its process with it; this one goes on."""
    dying = "import os, sys\nprint('out of luck', file=sys.stderr, flush=True)\nos._exit(9)\n"
    assert trouble(run, library(tmp_path, dying)) == "the process for it ended (exit code 9): out of luck"


def test_what_a_tracker_raises_is_told_in_one_line_without_secrets(run: Path, tmp_path: Path) -> None:
    """Whatever is raised is trouble with the tracker; passwords are masked, and prints are no results."""
    source = (
        "print('noise')\n"
        "class MlflowClient:\n"
        "    def __init__(self): raise KeyError('no way to\\n postgresql://me:hunter2-long@host/db')\n"
    )
    environ = library(tmp_path, source)
    environ["MLFLOW_TRACKING_URI"] = "postgresql://me:hunter2-long@host/db"
    why = trouble(run, environ)
    assert "no way to" in why
    assert "hunter2" not in why
    assert "\n" not in why


def test_runs_that_cannot_be_read_do_not_keep_others_from_being_told(run: Path, tmp_path: Path) -> None:
    """Of several runs each has its own end, in the order given."""
    environ = library(tmp_path, "def MlflowClient(): raise ValueError('here')\n")
    missing = tmp_path / "nothing"
    first, second = track([missing, run], ["mlflow"], environ)
    assert isinstance(first, NotTracked)
    assert isinstance(second, NotTracked)
    assert "nothing" in first.why
    assert second.why == "here"


def test_a_tracker_costs_an_evaluation_neither_its_end_nor_its_exit_code(tmp_path: Path) -> None:
    """``eval`` ends with 0 and a warning that holds the way; ``report`` then ends with 8."""
    data = write_data(tmp_path / "data", each=1)
    environ = library(tmp_path, "def MlflowClient(): raise ConnectionError('nobody there')\n")
    with ScriptedServer() as server:
        words = flags(server.url, data, "--run-dir", "run", "--limit", "1", "--track", "mlflow")
        done = otoscope(*words, cwd=tmp_path, environ=environ)
    assert done.returncode == 0, done.stderr
    assert "otoscope: warning: run was not logged in mlflow: nobody there" in done.stderr
    assert "otoscope report run --track mlflow" in done.stderr
    again = otoscope("report", "run", "--track", "mlflow", cwd=tmp_path, environ=environ)
    assert again.returncode == 8, again.stderr
    assert "otoscope: error: run was not logged in mlflow: nobody there" in again.stderr
    assert "Traceback" not in again.stderr


def test_a_stopped_run_is_resumed_with_its_tracker(tmp_path: Path) -> None:
    """The command that goes on names the tracker, which the run does not keep."""
    data = write_data(tmp_path / "data", each=1)
    environ = library(tmp_path, "")
    with ScriptedServer() as server:
        words = flags(server.url, data, "--run-dir", "run", "--track", "mlflow", "--max-judge-calls", "2")
        done = otoscope(*words, cwd=tmp_path, environ=environ)
    assert done.returncode == 7, done.stderr
    assert "--track mlflow" in done.stderr.partition("Go on with")[2]
    assert "not logged" not in done.stderr


@pytest.mark.skipif(not ABSENT, reason="MLflow is installed here")
def test_python_is_told_the_same_before_anything_is_sent(tmp_path: Path) -> None:
    """``run_task`` raises where the library is missing."""
    data = write_data(tmp_path / "data", each=1)
    events: list[object] = []
    with ScriptedServer() as server:
        with pytest.raises(ConfigError, match="otoscope\\[mlflow\\]"):
            run_task(config(server.url, data, tmp_path / "run", track=["mlflow"]), on_event=events.append)
        assert server.requests == []
    assert not [event for event in events if isinstance(event, Notice)]
