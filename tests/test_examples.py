"""The examples do what they say, run as their own first lines say it."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from otoscope import load_run
from otoscope.records import Answer
from tests.scripted_server import ScriptedServer
from tests.support import DEMO, REPOSITORY, environment, lines, otoscope

EXAMPLES = REPOSITORY / "examples"


def told(name: str) -> list[str]:
    """Return the arguments of the command in an example's docstring, with the bundled clips as its data."""
    text = (EXAMPLES / name).read_text(encoding="utf-8").split('"""')[1]
    command = text.split("    otoscope ")[1].split("\n\n")[0].replace("\\\n", " ")
    return [str(DEMO) if word == "ROOT" else word for word in shlex.split(command)]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("loudness.py", "The clip lasts 7.1 s and its mean level is -"),
        ("batches.py", "The clip is loud, at -"),
    ],
)
def test_a_model_answers_every_sample(tmp_path: Path, name: str, said: str) -> None:
    """By the command that stands in it."""
    done = otoscope(*told(name), "--run-dir", str(tmp_path / "run"), cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
    answers = [outcome.answer for outcome in load_run(tmp_path / "run").outcomes()]
    assert len(answers) == 8
    texts = [answer.text for answer in answers if isinstance(answer, Answer)]
    assert len(texts) == 8
    assert any(text.startswith(said) for text in texts), texts


@pytest.mark.parametrize("name", ["loudness.py", "batches.py"])
def test_a_model_copes_without_a_clip(tmp_path: Path, name: str) -> None:
    """A control without audio asks it, too."""
    done = otoscope(*told(name), "--control", "no-audio", "--run-dir", str(tmp_path / "run"), cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
    answers = [outcome.answer for outcome in load_run(tmp_path / "run").outcomes()]
    assert [answer.text for answer in answers if isinstance(answer, Answer)] == ["There is no clip."] * 8


def test_the_notebook_tells_its_progress_and_its_score(tmp_path: Path) -> None:
    """It runs from any folder, and its run lies there."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "notebook.py"), str(DEMO)],
        cwd=tmp_path, env=environment(), capture_output=True, encoding="utf-8", timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("answered ") == 8
    assert done.stdout.splitlines()[-1].split()[0] == "5.0"
    assert load_run(tmp_path / "runs" / "notebook").summary.counts["scored"] == 8


def test_answers_in_a_file_are_judged(tmp_path: Path) -> None:
    """Each of them in both orders; samples without an answer are pending."""
    with ScriptedServer() as server:
        done = otoscope(
            "judge", "examples/answers.jsonl", "--data", str(DEMO), "--model", "mine", "--run-dir",
            str(tmp_path / "run"), "--judge-model", "scripted-judge", "--judge-api-url", server.url,
            "--judge-api-key", "EMPTY", cwd=REPOSITORY,
        )  # fmt: skip
    assert "mine on AIR-Bench Chat" in done.stdout, done.stderr
    assert len(lines(tmp_path / "run" / "verdicts.jsonl")) == 2 * len(lines(EXAMPLES / "answers.jsonl"))
