from __future__ import annotations

import copy
import json
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from otoscope.records import Answer, Failure, FailureKind, Order, Verdict
from otoscope.reports.reported import Reported
from otoscope.scoring import FORMAT
from tests.conftest import Golden
from tests.report_runs import Ended, a_sample, hostile_run, judged, reported, small_run, write_run

SCHEMA = json.loads((resources.files("otoscope") / "schemas" / "summary.schema.json").read_text("utf-8"))
VALIDATOR = Draft202012Validator(SCHEMA)


def stored(run: Reported) -> dict[str, Any]:
    """Return a summary as the file has it."""
    summary: dict[str, Any] = json.loads(json.dumps(run.summary.to_json(), allow_nan=False))
    return summary


def negative(ended: Ended) -> Ended:
    """Return a sample whose judge said -3, which official scoring lets pass."""
    sample, answer, verdicts = ended
    assert isinstance(answer, Answer)
    changed: dict[Order, Verdict | Failure] = {}
    for order, verdict in verdicts.items():
        assert isinstance(verdict, Verdict)
        (reply,) = verdict.replies
        told = type(reply)(text="-3 -3", started_at=1.0)
        changed[order] = Failure(FailureKind.UNPARSEABLE, "no scores", 1, (told,))
    return sample, answer, changed


RUNS: dict[str, tuple[list[Ended], dict[str, Any]]] = {
    "small": (small_run(), {}),
    "hostile": (hostile_run(), {"label": "x", "tags": {"step": "10"}}),
    "empty": ([], {}),
    "one task": ([entry for entry in small_run() if entry[0].task == "music_QA"], {}),
    "one sample": (small_run()[:1], {}),
    "not judged": (small_run(), {"judged": False}),
    "one order": (
        [(s, a, {k: v for k, v in vs.items() if k is Order.REFERENCE_FIRST}) for s, a, vs in small_run()],
        {"judge": {"do_swap": False}},
    ),
    "nothing done": ([(sample, None, {}) for sample, _, _ in small_run()], {}),
    "all failed": ([(s, Failure(FailureKind.MISSING_AUDIO, "none"), {}) for s, _, _ in small_run()], {}),
    "unjoined": (small_run(), {"unjoined": True}),
    "official protocol": (small_run(), {"judge": {"protocol": "official"}}),
    "negative": ([negative(judged(a_sample(n, "speech_QA"), "yes", (5, 8))) for n in range(4)], {}),
}


def test_the_schema_is_one() -> None:
    """It is valid by its own draft, and of the format that is written."""
    Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["properties"]["format"]["const"] == FORMAT


@pytest.mark.parametrize("scoring", ["default", "official"])
@pytest.mark.parametrize("view", ["full", "paper-2000"])
@pytest.mark.parametrize("name", RUNS)
def test_summaries_of_all_kinds_of_runs_are_as_the_schema_says(
    tmp_path: Path, name: str, view: str, scoring: str
) -> None:
    """Full, empty, unfinished, unjudged, failed and official runs; no name is missing and none is new."""
    ended, about = RUNS[name]
    if about.get("unjoined") and scoring == "default":
        scoring = "official"
    summary = stored(reported(write_run(tmp_path / "run", ended, **about), scoring=scoring, view=view))
    VALIDATOR.validate(summary)
    assert set(summary) == set(SCHEMA["properties"])
    assert set(summary["average"]) == set(SCHEMA["$defs"]["cell"]["properties"])


def test_a_negative_score_is_one_under_official_scoring_alone(tmp_path: Path) -> None:
    """The official rule lets it pass, and the schema with it."""
    ended, about = RUNS["negative"]
    summary = stored(reported(write_run(tmp_path / "run", ended, **about), scoring="official"))
    assert summary["categories"]["speech"]["gpt_score"] == -3
    assert not VALIDATOR.is_valid({**summary, "scoring": "default"})


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("average", "gpt_score"), 10.5),
        (("average", "gpt_score"), -0.5),
        (("average", "gpt_score"), "5.0"),
        (("average", "ci95"), [1.0]),
        (("average", "win_rate"), 55),
        (("categories", "speech", "n"), -1),
        (("categories", "noise"), None),
        (("tasks", "speech_QA", "scored"), 0),
        (("counts", "failures"), {"timeout": 0}),
        (("scoring",), "other"),
        (("format",), 2),
        (("label",), 7),
        (("warnings", 0, "message"), None),
    ],
)
def test_what_is_no_summary_is_refused(tmp_path: Path, place: tuple[Any, ...], value: Any) -> None:
    """Scores, rates and counts have their ranges, names their places."""
    summary = stored(reported(write_run(tmp_path / "run", small_run())))
    broken = copy.deepcopy(summary)
    inner: Any = broken
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    assert VALIDATOR.is_valid(summary)
    assert not VALIDATOR.is_valid(broken)


@pytest.mark.parametrize("name", SCHEMA["required"])
def test_every_name_is_needed(tmp_path: Path, name: str) -> None:
    """A summary without one of the names is none; one with a further name is one of a later version."""
    summary = stored(reported(write_run(tmp_path / "run", small_run()[:8])))
    assert VALIDATOR.is_valid({**summary, "further": 1})
    del summary[name]
    assert not VALIDATOR.is_valid(summary)


def test_a_summary_is_as_the_golden_file_has_it(tmp_path: Path, golden: Golden) -> None:
    """The whole summary of a small run."""
    path = write_run(tmp_path / "run", small_run(), label="baseline")
    golden.check("report.json", (path / "summary.json").read_bytes())
