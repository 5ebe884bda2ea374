"""MLflow: one MLflow run for each run, found again by its tags.

Where that is, and which experiment, MLflow's own variables say: ``MLFLOW_TRACKING_URI``,
``MLFLOW_EXPERIMENT_NAME`` or ``MLFLOW_EXPERIMENT_ID``, and those for users and tokens.

MLflow takes no param and no metric back. So params are only what cannot change while a run goes on, and all
else is tags; and where one would have to be taken back all the same, as when fewer samples are chosen and the
average is not available any more, a new MLflow run takes the place of the old one, which says so.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

# Before MLflow is loaded, which reads them: nobody waits for minutes for a server that is not there (as it
# comes, MLflow tries for a quarter of an hour), and nobody but the user's own server is told of anything.
for _name, _value in {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}.items():
    os.environ.setdefault(_name, _value)

from mlflow import MlflowClient  # noqa: E402
from mlflow.entities import Metric, Param, Run, RunTag  # noqa: E402
from mlflow.environment_variables import MLFLOW_EXPERIMENT_ID, MLFLOW_EXPERIMENT_NAME  # noqa: E402

from otoscope.config import display_url  # noqa: E402
from otoscope.tracking.logged import Logged  # noqa: E402

_T = TypeVar("_T")

_PARAMS, _TAGS, _METRICS = 100, 100, 500
"""How many go into one request: MLflow's own limits, but of metrics half."""
_LONGEST_PARAM, _LONGEST_TAG = 500, 5000
"""Characters of a value that servers of every version take."""
_OURS = "otoscope."
_OWN_TAGS = "otoscope.tags"
"""Names of the user's own tags, so that one that is given up is known for ours to take away."""
_SUPERSEDED = "otoscope.superseded_by"


class MLflow:
    """MLflow behind its client."""

    def __init__(self) -> None:
        self._client = MlflowClient()

    def log(self, run: Logged) -> str:
        """Log a run into its MLflow run; return that one's URL, or its id and where it is stored."""
        experiment = self._experiment()
        now = self._found(experiment, run)
        if now is None:
            now = self._made(experiment, run)
        elif not _can_become(now, run):
            now = self._instead_of(now, experiment, run)
        self._write(now, run)
        return self._where(experiment, now.info.run_id)

    def _experiment(self) -> str:
        """Return the id of the experiment, made where it is named and not there yet."""
        if given := MLFLOW_EXPERIMENT_ID.get():
            return str(given)
        name = MLFLOW_EXPERIMENT_NAME.get() or "Default"
        experiment = self._client.get_experiment_by_name(name)
        return str(self._client.create_experiment(name) if experiment is None else experiment.experiment_id)

    def _found(self, experiment: str, run: Logged) -> Run | None:
        wanted = " and ".join(f"tags.`{name}` = '{value}'" for name, value in run.identity.items())
        runs = self._client.search_runs([experiment], wanted, max_results=1)
        return runs[0] if runs else None

    def _made(self, experiment: str, run: Logged) -> Run:
        return self._client.create_run(
            experiment,
            start_time=None if run.started is None else _milliseconds(run.started),
            tags=dict(run.identity),
            run_name=run.name,
        )

    def _instead_of(self, before: Run, experiment: str, run: Logged) -> Run:
        """Make the MLflow run that takes the place of another one."""
        # First of all: a process that is ended in the middle must not leave two that are found.
        for name in run.identity:
            self._client.delete_tag(before.info.run_id, name)
        made = self._made(experiment, run)
        self._client.set_tag(before.info.run_id, _SUPERSEDED, made.info.run_id)
        return made

    def _write(self, now: Run, run: Logged) -> None:
        """Write what the MLflow run does not say yet; last of all that it has ended."""
        client, run_id, at = self._client, now.info.run_id, int(time.time() * 1000)
        params = [Param(*pair) for pair in _new(_cut(run.params, _LONGEST_PARAM), now.data.params)]
        tags = [RunTag(*pair) for pair in _new(_cut(run.tags, _LONGEST_TAG), now.data.tags)]
        metrics = [Metric(*pair, at, 0) for pair in _new(run.metrics, now.data.metrics)]
        for some_params in _parts(params, _PARAMS):
            client.log_batch(run_id, params=some_params)
        for some_tags in _parts(tags, _TAGS):
            client.log_batch(run_id, tags=some_tags)
        for some_metrics in _parts(metrics, _METRICS):
            client.log_batch(run_id, metrics=some_metrics)
        for name in _given_up(now.data.tags, run):
            client.delete_tag(run_id, name)
        if now.info.run_name != run.name:
            client.update_run(run_id, name=run.name)
        client.log_text(run_id, run.summary, "summary.json")
        if run.page is not None:
            client.log_artifact(run_id, str(run.page))
        if run.complete:
            client.set_terminated(run_id, "FINISHED", _milliseconds(run.ended))
        else:
            # What is pending is owed still.
            client.update_run(run_id, status="SCHEDULED")

    def _where(self, experiment: str, run_id: str) -> str:
        place = self._client.tracking_uri
        if place.startswith(("http://", "https://")):
            return f"{display_url(place).rstrip('/')}/#/experiments/{experiment}/runs/{run_id}"
        return f"run {run_id} in {place}"


def _can_become(before: Run, run: Logged) -> bool:
    """Whether an MLflow run can be made to say just this, with nothing taken back."""
    params = _cut(run.params, _LONGEST_PARAM)
    changed = any(params.get(name, value) != value for name, value in before.data.params.items())
    return not changed and run.not_available.isdisjoint(before.data.metrics)


def _new(now: Mapping[str, _T], before: Mapping[str, Any]) -> Iterator[tuple[str, _T]]:
    """Yield what is not there yet, or otherwise."""
    return ((name, value) for name, value in now.items() if before.get(name) != value)


def _given_up(before: Mapping[str, str], run: Logged) -> list[str]:
    """Return the tags that are ours, and said no more."""
    try:
        own = json.loads(before.get(_OWN_TAGS, "[]"))
    except ValueError:  # it was cut
        own = []
    ours = [name for name in before if name.startswith(_OURS) or name in own]
    return [name for name in ours if name not in run.tags and name not in run.identity]


def _parts(items: Sequence[_T], size: int) -> Iterator[list[_T]]:
    return (list(items[start : start + size]) for start in range(0, len(items), size))


def _cut(texts: Mapping[str, str], longest: int) -> dict[str, str]:
    return {n: text if len(text) <= longest else text[: longest - 1] + "…" for n, text in texts.items()}


def _milliseconds(when: datetime) -> int:
    return int(when.timestamp() * 1000)
