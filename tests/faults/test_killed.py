"""SIGKILL at random moments, at every step, and in the middle of a write."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.conftest import Tally
from tests.faults.driver import (
    EACH,
    IN_FLIGHT,
    Evaluation,
    Whole,
    evaluation_script,
    kill,
    line_count,
    requests_of,
    spin,
    until,
)
from tests.scripted_server import ScriptedServer

pytestmark = [pytest.mark.faults, pytest.mark.kind("killed")]

KILLS = 5
"""Of one evaluation, one after the other: each process goes on where the one before was killed."""
LAST_STEPS = (
    "open .samples.jsonl.tmp",
    "rename samples.jsonl",
    "open .summary.json.tmp",
    "rename summary.json",
)


def moment(evaluation: Evaluation, phase: str, dice: random.Random, left: int) -> Callable[[], bool]:
    """Return what becomes true at a random moment of a phase; ``left`` is how many more kills are to come."""
    server, whole, begun = evaluation.server, evaluation.whole, len(evaluation.steps())

    def share(total: int, done: int) -> int:
        return done + dice.randint(1, max(1, (total - done) // left))

    match phase:
        case "reading data":
            return lambda: "read Chat/Chat_meta.json" in evaluation.steps()[begun:]
        case "answering" | "judging":
            kind = "model" if phase == "answering" else "judge"
            target = share(whole.calls[kind], requests_of(server, kind))
            return lambda: requests_of(server, kind) >= target
        case "writing":
            written = line_count(evaluation.run_dir)
            lines = share(whole.calls["model"] + whole.calls["judge"], written)
            return lambda: line_count(evaluation.run_dir) >= min(lines, written + 40)
        case _:
            step = dice.choice(LAST_STEPS)
            return lambda: (
                len(evaluation.served()) >= whole.served.total()
                and (step in evaluation.steps()[max(begun, len(evaluation.steps()) - 12) :])
            )


@pytest.mark.rounds(full=2, short=1)
@pytest.mark.parametrize("phase", ["reading data", "answering", "judging", "writing", "summarising"])
def test_a_kill_at_a_random_moment_loses_only_calls_in_flight(
    phase: str, seed: int, short: bool, whole: Whole, slow_to_read: Whole, folder: Path, tally: Tally
) -> None:
    """Killed again and again in one phase, an evaluation ends with the uninterrupted one's numbers."""
    dice = random.Random(f"{phase} {seed}")  # noqa: S311 (a test's dice)
    reading = phase == "reading data"
    more = ("--limit", str(EACH)) if reading else ()
    killed = 0
    with ScriptedServer(evaluation_script()) as server:
        evaluation = Evaluation(server, slow_to_read if reading else whole, folder, *more)
        for left in range(1 if short else KILLS, 0, -1):
            now = moment(evaluation, phase, dice, left)
            process = evaluation.start()
            if until(now, process):
                spin(dice, 0.1 if reading else 0.005)
            killed += kill(process)
            evaluation.interrupted(in_flight=IN_FLIGHT)
        ended = evaluation.run()
        assert ended.code == 0, ended.stderr
        tally.add(f"SIGKILL while {phase}", evaluation.findings(), killed)
    assert killed


def points(whole: Whole, dice: random.Random) -> list[tuple[str, int]]:
    """Return each step that changes the run's files, and which time it is taken: first, last, one between."""
    counts = Counter(step for step in whole.steps if not step.startswith(("read ", "open Chat")))
    chosen = {
        (step, number)
        for step, count in counts.items()
        for number in (1, count, dice.randint(1, count))
        if number == 1 or step.startswith(("write ", "fsync ", "open ", "rename "))
    }
    found = sorted(chosen)
    dice.shuffle(found)
    return found


@pytest.mark.rounds(full=4, short=1)
def test_a_kill_before_any_step_loses_only_calls_in_flight(
    seed: int, short: bool, whole: Whole, folder: Path, tally: Tally
) -> None:
    """Killed just before any of its steps with files, an evaluation goes on to the same numbers."""
    every = points(whole, random.Random(0))  # noqa: S311
    mine = every[seed :: 12 if short else 4]
    for number, group in enumerate(mine[at : at + KILLS] for at in range(0, len(mine), KILLS)):
        with ScriptedServer(evaluation_script()) as server:
            (folder / str(number)).mkdir()
            evaluation = Evaluation(server, whole, folder / str(number))
            killed = 0
            # The earliest first: what one that was killed has done, the next one does not do again.
            for step, time in sorted(group, key=lambda point: (whole.steps.index(point[0]), point[1])):
                ended = evaluation.run(die=[step, time])
                assert ended.code in (0, -9), f"{step} {time}: {ended.stderr}"
                killed += ended.code == -9
                evaluation.interrupted(in_flight=IN_FLIGHT)
            ended = evaluation.run()
            assert ended.code == 0, f"{group}: {ended.stderr}"
            tally.add("SIGKILL before a step with files", evaluation.findings(), killed)


@pytest.mark.full(name=["answers.jsonl"])
@pytest.mark.rounds(full=2, short=1)
@pytest.mark.parametrize("name", ["answers.jsonl", "verdicts.jsonl"])
def test_a_line_cut_in_its_writing_is_asked_for_again(
    name: str, seed: int, short: bool, whole: Whole, folder: Path, tally: Tally
) -> None:
    """Killed when a part of a line is on disk, an evaluation asks for what that held, and nothing else."""
    dice = random.Random(f"{name} {seed}")  # noqa: S311 (a test's dice)
    step = f"write {name}"
    torn = 0
    with ScriptedServer(evaluation_script()) as server:
        evaluation = Evaluation(server, whole, folder)
        for left in range(2 if short else KILLS, 0, -1):
            written = sum(known == step for known in evaluation.steps())
            number = dice.randint(1, max(1, (whole.steps.count(step) - written) // left))
            torn += evaluation.run(tear=[step, number, dice.randrange(1, 300)]).code == -9
            evaluation.interrupted(in_flight=IN_FLIGHT)
        ended = evaluation.run()
        assert ended.code == 0, ended.stderr
        tally.add(f"a line of {name} cut in its writing", evaluation.findings(), torn)
    assert torn


@pytest.mark.full
def test_a_kill_while_the_page_is_written_leaves_nothing(whole: Whole, folder: Path, tally: Tally) -> None:
    """Killed is what writes the page: the run is done all the same, and the next page is whole."""
    with ScriptedServer(evaluation_script()) as server:
        evaluation = Evaluation(server, whole, folder)
        ended = evaluation.run(page=True, die=["rename report.html", 1])
        assert ended.code == 0, ended.stderr
        assert "was not written" in ended.stderr
        evaluation.interrupted(in_flight=0)
        asked = len(server.requests)
        assert evaluation.run(page=True).code == 0
        assert len(server.requests) == asked
        page = evaluation.run_dir / "report.html"
        assert page.read_text(encoding="utf-8").rstrip().endswith("</html>")
        page.unlink()
        tally.add("SIGKILL while the page is written", evaluation.findings())


COPYING = [
    ("open .manifest.json.tmp", 1),
    ("rename manifest.json", 1),
    ("open .answers.jsonl.tmp", 1),
    ("fsync .answers.jsonl.tmp", 1),
    ("rename answers.jsonl", 1),
    ("rename samples.jsonl", 1),
    ("rename manifest.json", 2),
    ("write verdicts.jsonl", 1),
    ("write verdicts.jsonl", 20),
    ("rename summary.json", 1),
]
"""Steps of ``otoscope judge`` over a copy of the answers, in their order."""


@pytest.mark.full
@pytest.mark.parametrize("first", [0, 1], ids=["even", "odd"])
def test_a_kill_while_a_copy_is_made_and_judged_loses_only_calls_in_flight(
    first: int, whole: Whole, folder: Path, tally: Tally
) -> None:
    """Answers that exist are copied and judged, however often that is cut off; the source stays as it is."""
    with ScriptedServer(evaluation_script()) as server:
        evaluation = Evaluation(server, whole, folder)
        answered = evaluation.run("--no-judge")
        assert answered.code == 0, answered.stderr
        evaluation.source = source = evaluation.run_dir
        before = {path.name: path.read_bytes() for path in source.iterdir()}
        evaluation.run_dir = folder / "judged"
        killed = 0
        for step, number in COPYING[first::2]:
            ended = evaluation.run(arguments=evaluation.judging(source), die=[step, number])
            assert ended.code in (0, -9), f"{step} {number}: {ended.stderr}"
            killed += ended.code == -9
            evaluation.interrupted(in_flight=IN_FLIGHT)
        ended = evaluation.run(arguments=evaluation.judging(source))
        assert ended.code == 0, ended.stderr
        assert {path.name: path.read_bytes() for path in source.iterdir()} == before
        tally.add("SIGKILL while a copy is judged", evaluation.findings(), killed)
    assert killed == len(COPYING[first::2])
