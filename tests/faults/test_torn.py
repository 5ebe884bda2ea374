"""Files that are torn, foreign or of another time: the mean is exact, or the run refused with the reason."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from otoscope import load_run
from otoscope.errors import RunDirectoryError
from otoscope.records import Answer, Order, Verdict
from otoscope.store import ANSWERS, FORMAT, MANIFEST, SAMPLES, VERDICTS, RunStore
from tests.faults.conftest import Tally
from tests.faults.driver import (
    PAID,
    Evaluation,
    Findings,
    Whole,
    differing,
    evaluation_script,
    numbers,
    small_data,
    uninterrupted,
)
from tests.scripted_server import ScriptedServer
from tests.support import write_wav

pytestmark = [pytest.mark.faults, pytest.mark.kind("torn files")]

TAIL = 4096
ORDERS = [order.value for order in Order]
Json = dict[str, Any]
Scores = dict[str, dict[str, tuple[float, float]]]
"""Of each sample with an answer, by order: reference and answer score."""


@dataclass(frozen=True)
class Stored:
    """A finished run on disk, and what its lines say, read without the package."""

    path: Path
    answers: Sequence[bytes]
    verdicts: Sequence[bytes]

    def copy(self, to: Path) -> Path:
        """Copy the run, in the place of what is there."""
        shutil.rmtree(to, ignore_errors=True)
        return Path(shutil.copytree(self.path, to))


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    """Make a run of eight samples, as small as can be: it is read thousands of times."""
    folder = tmp_path_factory.mktemp("torn")
    uninterrupted(small_data(folder / "data", each=1), folder / "whole")
    run = folder / "whole" / "run"
    return Stored(
        run,
        (run / ANSWERS).read_bytes().splitlines(keepends=True),
        (run / VERDICTS).read_bytes().splitlines(keepends=True),
    )


def intact(lines: Sequence[bytes], size: int) -> list[Json]:
    """Return the lines of which nothing but the newline is lost when a file is cut to a size."""
    found: list[Json] = []
    for line in lines:
        if size < len(line) - 1:
            break
        found.append(json.loads(line))
        size -= len(line)
    return found


def scores_in(answers: Sequence[Json], verdicts: Sequence[Json]) -> Scores:
    """Return what lines say of the samples, read by the format's own rules."""
    texts = {line["key"]: line["answer_sha256"] for line in answers if "failure" not in line}
    found: Scores = {key: {} for key in texts}
    for line in verdicts:
        if "failure" not in line and texts.get(line["key"]) == line["answer_sha256"]:
            pair = (line["reference_score"], line["answer_score"])
            found[line["key"]].setdefault(line["order"], pair)
    return found


def scores_read(run: Path) -> Scores:
    """Return what the package reads of the same."""
    found: Scores = {}
    with RunStore.open(run) as store:
        for outcome in store.outcomes(store.samples(), store.manifest["judge_id"]):
            if isinstance(outcome.answer, Answer):
                found[outcome.sample.key] = {
                    order.value: (verdict.reference_score, verdict.answer_score)
                    for order, verdict in outcome.verdicts.items()
                    if isinstance(verdict, Verdict)
                }
    return found


def check_mean(run: Path, scores: Scores) -> None:
    """Assert that the mean over all samples is that of these scores, and every sample accounted for."""
    summary = load_run(run).summary.to_json()
    complete = [pair for pair in scores.values() if len(pair) == len(ORDERS)]
    means = [sum(pair[order][1] for order in ORDERS) / len(ORDERS) for pair in complete]
    assert summary["counts"]["scored"] == len(means)
    counts = summary["counts"]
    assert counts["scored"] + counts["failed"] + counts["pending"] == counts["expected"] == 8
    mean = summary["all_samples"]["gpt_score"]
    assert mean == (pytest.approx(sum(means) / len(means), abs=1e-12) if means else None)


def cuts(size: int, *, every: int) -> Iterator[int]:
    """Yield sizes to which a file is cut, from its whole down: all of its last 4 KB, or some."""
    yield from range(size, max(-1, size - TAIL - 1), -every)


@pytest.mark.parametrize("name", [ANSWERS, VERDICTS])
def test_lines_cut_at_any_byte_leave_the_rest_exact(
    name: str, stored: Stored, tmp_path: Path, short: bool, tally: Tally
) -> None:
    """Wherever the last 4 KB of a file end, what is whole counts exactly, and nothing else does."""
    run = stored.copy(tmp_path / "cut")
    size = (run / name).stat().st_size
    times, known = 0, -1
    for cut in cuts(size, every=17 if short else 1):
        os.truncate(run / name, cut)
        answers = intact(stored.answers, cut) if name == ANSWERS else list(map(json.loads, stored.answers))
        verdicts = (
            intact(stored.verdicts, cut) if name == VERDICTS else list(map(json.loads, stored.verdicts))
        )
        scores = scores_in(answers, verdicts)
        assert scores_read(run) == scores, f"{name} cut to {cut} bytes"
        if known != len(answers) + len(verdicts):
            check_mean(run, scores)
        known = len(answers) + len(verdicts)
        times += 1
    tally.add(f"{name} cut at a byte", Findings(), times)


@pytest.mark.parametrize("name", [MANIFEST, SAMPLES])
def test_whole_files_cut_at_any_byte_are_refused(
    name: str, stored: Stored, tmp_path: Path, short: bool, tally: Tally
) -> None:
    """A manifest or list of samples that is not whole is refused, with its name and the next step."""
    run = stored.copy(tmp_path / "cut")
    size = (run / name).stat().st_size
    whole = scores_read(run)
    times = 0
    for cut in cuts(size, every=17 if short else 1):
        os.truncate(run / name, cut)
        times += 1
        if cut >= size - 1:
            assert scores_read(run) == whole
            continue
        with pytest.raises(RunDirectoryError) as caught:
            load_run(run)
        assert name in str(caught.value), f"cut to {cut} bytes"
    tally.add(f"{name} cut at a byte", Findings(), times)


@pytest.mark.parametrize("name", [ANSWERS, VERDICTS])
def test_a_tail_of_nul_is_no_line(
    name: str, stored: Stored, tmp_path: Path, short: bool, tally: Tally
) -> None:
    """Bytes that a crash of the system left as NUL, at the end or behind it, are skipped."""
    dice = random.Random(name)  # noqa: S311 (a test's dice)
    content = b"".join(stored.answers if name == ANSWERS else stored.verdicts)
    run = tmp_path / "run"
    times = 5 if short else 60
    for _ in range(times):
        stored.copy(run)
        cut = len(content) - dice.randrange(TAIL)
        behind = dice.choice([0, 1, 100, 5000])
        (run / name).write_bytes(content[:cut] + b"\0" * (len(content) - cut + behind))
        answers = intact(stored.answers, cut) if name == ANSWERS else list(map(json.loads, stored.answers))
        verdicts = (
            intact(stored.verdicts, cut) if name == VERDICTS else list(map(json.loads, stored.verdicts))
        )
        # A whole line that lacks its newline has NUL in its place: it is none.
        lines = answers if name == ANSWERS else verdicts
        if cut < len(content) and not content[:cut].endswith(b"\n") and content[cut : cut + 1] == b"\n":
            lines.pop()
        scores = scores_in(answers, verdicts)
        assert scores_read(run) == scores
        check_mean(run, scores)
    tally.add(f"{name} ends in NUL", Findings(), times)


def foreign_lines(stored: Stored, name: str) -> Mapping[str, bytes]:
    """Return lines that are not this run's, by what they are."""
    lines = stored.answers if name == ANSWERS else stored.verdicts
    line = json.loads(lines[0])
    better = (
        {"answer_score": 10, "reference_score": 0} if name == VERDICTS else {"text": "x", "raw_text": "x"}
    )
    return {
        "null": b"null\n" * 50,
        "NUL": b"\0" * 5000 + b"\n",
        "blank": b"\n  \n\r\n\n",
        "of another run": json.dumps({**line, **better, "run": "0123456789abcdef"}).encode() + b"\n",
        "of another repeat": json.dumps({**line, **better, "repeat": 1}).encode() + b"\n",
        "twice": b"".join(lines),
        "with other scores": json.dumps({**line, **better}).encode() + b"\n",
        "without end": b'{"run": "' + b"a" * 100_000,
        "nested": b'{"run":' + b"[" * 100_000 + b"\n",
        "of a newer kind": b'{"kind": "note", "text": "8 7"}\n',
        "not UTF-8": b"\xff\xfe{\x00}\x00\n",
    }


KINDS = (
    "null", "NUL", "blank", "of another run", "of another repeat", "twice", "with other scores",
    "without end", "nested", "of a newer kind", "not UTF-8",
)  # fmt: skip


@pytest.mark.parametrize("where", ["behind", "between"])
@pytest.mark.parametrize("name", [ANSWERS, VERDICTS])
def test_foreign_lines_change_no_number(
    name: str, where: str, stored: Stored, tmp_path: Path, tally: Tally
) -> None:
    """Whatever is pasted into a file behind its own lines or between them, the first of a kind counts."""
    lines = list(stored.answers if name == ANSWERS else stored.verdicts)
    whole = scores_in(list(map(json.loads, stored.answers)), list(map(json.loads, stored.verdicts)))
    found = foreign_lines(stored, name)
    assert tuple(found) == KINDS
    for kind, foreign in found.items():
        run = stored.copy(tmp_path / "run")
        at = len(lines) if where == "behind" else 3
        ended = foreign if foreign.endswith(b"\n") or where == "behind" else foreign + b"\n"
        (run / name).write_bytes(b"".join([*lines[:at], ended, *lines[at:]]))
        assert scores_read(run) == whole, kind
        check_mean(run, whole)
    tally.add(f"foreign lines {where} those of {name}", Findings(), len(found))


@pytest.mark.parametrize("number", [0, -1, FORMAT + 1, "1", 1.0, True, None])
def test_a_run_of_another_format_is_refused(number: Any, stored: Stored, tmp_path: Path) -> None:
    """A format number that this version does not know, older or newer, is refused with that number."""
    run = stored.copy(tmp_path / "run")
    manifest = json.loads((run / MANIFEST).read_bytes())
    (run / MANIFEST).write_text(json.dumps({**manifest, "format": number}), encoding="utf-8")
    with pytest.raises(RunDirectoryError, match="format") as caught:
        load_run(run)
    assert repr(number) in str(caught.value)


# --- gone on with by the command --------------------------------------------------------------------------


@pytest.mark.rounds(full=4, short=1)
def test_a_run_cut_anywhere_goes_on_to_the_same_numbers(
    seed: int, whole: Whole, folder: Path, tally: Tally
) -> None:
    """Both files cut at any byte: the command asks for what is missing, and for nothing else."""
    dice = random.Random(seed)  # noqa: S311 (a test's dice)
    with ScriptedServer(evaluation_script()) as server:
        evaluation = Evaluation(server, whole, folder)
        assert evaluation.run().code == 0
        for name in (ANSWERS, VERDICTS):
            path = evaluation.run_dir / name
            os.truncate(path, dice.randrange(path.stat().st_size))
        if seed % 2:
            (evaluation.run_dir / SAMPLES).unlink()
        evaluation.interrupted(in_flight=len(whole.served) * 2)
        ended = evaluation.run()
        assert ended.code == 0, ended.stderr
        tally.add("answers and verdicts cut, and gone on", evaluation.findings())


def test_foreign_lines_are_told_and_cost_nothing(whole: Whole, folder: Path, tally: Tally) -> None:
    """Lines of another run of the same samples are skipped and said, and nothing is asked for again."""
    with ScriptedServer(evaluation_script()) as server:
        (folder / "other").mkdir()
        other = Evaluation(server, whole, folder / "other")
        assert other.run().code == 0
        server.reset()
        evaluation = Evaluation(server, whole, folder)
        assert evaluation.run().code == 0
        for name in (ANSWERS, VERDICTS):
            with (evaluation.run_dir / name).open("ab") as file:
                file.write((other.run_dir / name).read_bytes() + b"null\n\0\0\0\0")
        ended = evaluation.run()
        assert ended.code == 0, ended.stderr
        assert "torn or foreign" in ended.stderr
        tally.add("lines of another run, and gone on", evaluation.findings())


def changed_data(data: Path, change: str) -> None:
    """Change a data set under its name: a field of one record, or the bytes of one clip."""
    path = data / "Chat" / "Chat_meta.json"
    records = json.loads(path.read_text(encoding="utf-8"))
    record = records[7]
    if change == "clip":
        write_wav(data / "Chat" / f"{record['task_name']}_tones" / record["path"], tone=1234.5)
        return
    if change == "order":
        records.reverse()
    else:
        record[change] = f"{record[change]} Indeed?"
    path.write_text(json.dumps(records), encoding="utf-8")


@pytest.mark.full(change=["question", "answer_gt", "meta_info", "order"])
@pytest.mark.parametrize("change", ["question", "answer_gt", "meta_info", "clip", "order"])
def test_a_data_set_that_changed_under_its_name_gives_its_own_numbers(
    change: str, tmp_path: Path, folder: Path, tally: Tally
) -> None:
    """What a record or clip says now is asked about anew; all else stays, and is not paid for again."""
    data = small_data(tmp_path / "data")
    before = uninterrupted(data, tmp_path / "before")
    with ScriptedServer(evaluation_script()) as server:
        evaluation = Evaluation(server, before, folder)
        assert evaluation.run().code == 0
        changed_data(data, change)
        asked = len(server.requests)
        ended = evaluation.run()
        assert ended.code == 0, ended.stderr
        anew = len(server.requests) - asked
    after = uninterrupted(data, tmp_path / "after")
    told = [
        place for place in differing(numbers(evaluation.run_dir), after.summary) if not place.startswith(PAID)
    ]
    # One sample has an answer and two verdicts, each of which may have been asked for twice.
    assert (anew == 0) is (change == "order")
    assert anew <= 6
    tally.add(f"data set changed: {change}", Findings(wrong_numbers=len(told), words=told))
