"""Texts that would steer a terminal, a spreadsheet or a page stay texts in all that any command prints."""

from __future__ import annotations

import csv
import io
import json
import sys
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import pytest

from otoscope.cli import main
from otoscope.records import Failure, FailureKind
from tests.report_runs import Ended, a_sample, judged, write_run
from tests.scripted_server import Response, ScriptedServer
from tests.support import otoscope, write_data

STEERS = (
    "\x1b[2J\x1b]0;title\x07 \x1b]8;;http://evil.example\x1b\\link\x1b]8;;\x1b\\ "
    "\x9b31m \x9d0;t\x9c \x90q\x9c \u202egnitirw\u202c \u2066i\u2069 \u200f \u2028 \r over\b\x7f\x00"
)
"""Sequences of seven and of eight bits, links, titles, directions, and moves of the cursor."""
FORMULAS = ("=HYPERLINK(A1)", "+1+1", "-1+1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "＝1+1", "＠SUM(A1)")


def steering(text: str) -> set[str]:
    """Return the characters of a text that steer what shows it."""
    return {c for c in text if c != "\n" and unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp")}


def ended() -> list[Ended]:
    """Return samples whose texts, keys, replies and failures all hold such sequences."""
    made: list[Ended] = []
    for number in range(6):
        sample = a_sample(number, "sound_QA", question=STEERS, reference=STEERS, description=STEERS,
                          path=f"clip_{number}{STEERS[:30]}.wav".replace("\0", ""))  # fmt: skip
        made.append(judged(sample, STEERS, (number, 8), model=STEERS))
    sample, _, _ = made[0]
    made[0] = (sample, Failure(FailureKind.REJECTED, STEERS, 1), {})
    return made


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder with two runs whose names, labels, tags, models and judges hold such sequences."""
    folder = tmp_path_factory.mktemp("runs")
    for number, name in enumerate(("one", "two")):
        steers = f"{STEERS}{number}"
        write_run(folder / name, ended(), label=steers, tags={STEERS: STEERS}, model={"name": steers},
                  judge={"name": STEERS, "revision": STEERS},
                  prompt={"system": STEERS, "template": f"{STEERS}{{question}}"})  # fmt: skip
    return folder


def printed(capfd: pytest.CaptureFixture[str], arguments: Sequence[str]) -> str:
    """Run a command in this process; return what it printed. No argument of a process can hold NUL."""
    code = main([argument.replace("\0", "") for argument in arguments])
    sys.stdout.flush()
    out, err = capfd.readouterr()
    assert code in (0, 2, 3, 6), err
    return out + err


@pytest.mark.parametrize(
    "arguments",
    [
        ["report", "one"],
        ["report", "one", "two"],
        ["report", "one", "--format", "json"],
        ["report", "one", "two", "--format", "json"],
        ["report", "one", "--format", "md", "--appendix"],
        ["report", "one", "--format", "latex", "--appendix"],
        ["report", "one", "--format", "html", "--embed-audio", STEERS, "--output", "page.html"],
        ["compare", "one", "two"],
        ["compare", "one", "two", "--across-judges"],
        ["compare", "one", "two", "--format", "json"],
        ["compare", "one", "two", "--baseline", STEERS],
        ["leaderboard", "."],
        ["leaderboard", ".", "--format", "md"],
        ["leaderboard", ".", "--format", "json"],
        ["leaderboard", ".", "--where", f"label={STEERS}0"],
        ["judge", "one", "two", "--dry-run"],
        ["judge", f"gone{STEERS}", "--dry-run"],
        ["export", "one", "--to", "official", "--force"],
        ["export", "one", "--bundle", "bundle.zip", "--force"],
        ["eval", "--use-cache", "one", "--dry-run"],
        ["data", "verify", f"gone{STEERS}"],
    ],
    ids=lambda arguments: " ".join(arguments)[:40].replace("\x1b", "").replace("\0", ""),
)
def test_no_command_prints_what_steers_a_terminal(
    runs: Path,
    arguments: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Neither reports nor errors nor progress, of runs that somebody else made."""
    monkeypatch.chdir(runs)
    monkeypatch.setenv("NO_COLOR", "1")
    text = printed(capfd, arguments)
    assert text
    # What keeps right-to-left text apart is ours.
    assert steering(text) <= {"\u2068", "\u2069"}


def test_a_run_prints_nothing_that_steers_a_terminal(tmp_path: Path) -> None:
    """What a server says in answers, errors and names, and what a data set says, is told as text."""
    data = write_data(tmp_path / "data", each=1, tasks=["sound_QA", "music_QA"])
    meta = data / "Chat" / "Chat_meta.json"
    records = json.loads(meta.read_text(encoding="utf-8"))
    for record in records:
        record["question"] = record["answer_gt"] = STEERS
    meta.write_text(json.dumps(records), encoding="utf-8")
    with ScriptedServer(
        lambda seen, _attempt: (
            Response(status=400, error={"message": STEERS})
            if seen.kind == "judge"
            else Response(text=STEERS, model=STEERS.replace("\r", ""))
        )
    ) as server:
        done = otoscope(
            "eval", "--model", "m", "--api-url", server.url, "--data", str(data), "--judge-model", "j",
            "--judge-api-url", server.url, "--judge-api-key", "EMPTY", "--run-dir", str(tmp_path / "run"),
        )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "evil.example" in done.stderr
    assert steering(done.stdout + done.stderr) == set()
    shown = otoscope("data", "show", "sound_QA#0", "--data", str(data))
    assert shown.returncode == 0
    assert steering(shown.stdout) == set()


def test_csv_holds_no_formulas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whatever a run's texts and names begin with: samples.csv, scores.csv and the leaderboard's table."""
    monkeypatch.chdir(tmp_path)
    for number, formula in enumerate(FORMULAS):
        sample = a_sample(number, "sound_QA", question=formula, reference=formula, description=formula)
        write_run(tmp_path / f"run-{number}", [judged(sample, formula, (1, 2))], label=formula,
                  model={"name": formula}, judge={"name": formula}, tags={"t": formula})  # fmt: skip
        assert main(["report", f"run-{number}", "--format", "csv"]) == 0
    assert main(["leaderboard", ".", "--format", "csv"]) == 0
    tables = [path.read_text("utf-8") for path in tmp_path.glob("*/*.csv")]
    tables.append(capfd.readouterr().out)
    assert len(tables) == 2 * len(FORMULAS) + 1
    guarded = 0
    for table in tables:
        for row in csv.reader(io.StringIO(table, newline="")):
            for cell in row:
                assert not cell.startswith(tuple("=+-@\t\r\n＝＋－＠")) or _is_number(cell), cell
                guarded += cell.startswith("'")
    assert guarded > 10 * len(FORMULAS)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
