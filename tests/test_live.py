from __future__ import annotations

import contextlib
import fcntl
import io
import os
import re
import struct
import subprocess
import sys
import termios
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from otoscope.records import (
    Answer,
    Answered,
    Failure,
    FailureKind,
    Judged,
    Notice,
    Order,
    Reply,
    RunFailed,
    RunsPlanned,
    RunStarted,
    Verdict,
)
from otoscope.reports.live import LiveDisplay

REPLY = Reply(text="...", usage={"prompt_tokens": 900, "completion_tokens": 100})
ANSWER = Answer(raw_text="yes", text="yes", replies=(REPLY,))
HOSTILE = "[bold]no\x1b[31m\r\n\u202e[/bold]"
RUN_PATH = Path("outputs/run")


class Clock:
    """Time that goes on when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


def log() -> Console:
    """Return a console that is no terminal."""
    return Console(file=io.StringIO(), width=80)


def lines_of(console: Console) -> list[str]:
    """Return what was printed so far."""
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def started(
    owed: int, *, before: int = 0, verdicts: int | None = None, verdicts_before: int = 0
) -> RunStarted:
    """Return the start of a run with two orders, or with this number of verdicts owed."""
    verdicts_owed = 2 * owed if verdicts is None else verdicts
    return RunStarted(RUN_PATH, owed + before, before, owed, verdicts_before, verdicts_owed)


def judged(order: Order = Order.REFERENCE_FIRST) -> Judged:
    """Return one verdict that came."""
    verdict = Verdict(
        order=order,
        judge_id="j",
        answer_sha256="0",
        score_kind="integer",
        reference_score=8,
        answer_score=7,
        replies=(REPLY,),
    )
    return Judged("k", order, verdict)


def failure(kind: FailureKind = FailureKind.MISSING_AUDIO, message: str = "no such file") -> Answered:
    """Return one sample that got no answer."""
    return Answered("k", Failure(kind, message))


def test_a_log_gets_a_first_line_that_says_what_is_to_be_done() -> None:
    """The plan tells what is owed apart from what was done before."""
    console = log()
    with LiveDisplay(console) as display:
        display(started(12, before=4, verdicts=24, verdicts_before=8))
    assert lines_of(console)[0] == (
        "16 samples: 12 to answer (4 done before), 24 verdicts to get (8 done before); run outputs/run"
    )


def test_a_log_gets_a_line_every_ten_seconds_at_most() -> None:
    """However many events come, lines come every ten seconds while no tenth of the run is passed."""
    console, clock = log(), Clock()
    with LiveDisplay(console, clock=clock) as display:
        display(started(100_000, verdicts=0))
        for _ in range(35 * 64):
            clock.now += 1 / 64
            display(Answered("k", ANSWER))
        printed = lines_of(console)
    assert len(printed) == 1 + 3
    assert printed[1].startswith(
        "answered 640/100,000, 3,840/min; 0:10 passed, 25:52 left; tokens: model 640k"
    )


def test_a_log_gets_a_line_at_each_tenth_but_not_more_than_one_a_second() -> None:
    """A short run tells its tenths; a very short one does not flood the log."""
    console, clock = log(), Clock()
    with LiveDisplay(console, clock=clock) as display:
        display(started(100, verdicts=0))
        for _ in range(100):
            clock.now += 0.2
            display(Answered("k", ANSWER))
        assert [line.split(",")[0] for line in lines_of(console)[1:]] == [
            f"answered {number}/100" for number in range(10, 101, 10)
        ]
    console = log()
    with LiveDisplay(console, clock=clock) as display:
        display(started(100, verdicts=0))
        for _ in range(100):
            clock.now += 0.025
            display(Answered("k", ANSWER))
        assert len(lines_of(console)) == 1 + 2


def test_a_log_ends_with_how_it_ended() -> None:
    """The last line has the final counts, also of a run that was stopped."""
    console = log()
    with LiveDisplay(console, clock=Clock()) as display:
        display(started(1))
        display(Answered("k", ANSWER))
        display(judged())
    assert lines_of(console)[-1] == (
        "finished: answered 1/1, -/min; judged 1/2, -/min; 0:00 passed; tokens: model 1k, judge 1k"
    )
    with contextlib.suppress(KeyboardInterrupt), LiveDisplay(console, clock=Clock()) as display:
        display(started(1))
        raise KeyboardInterrupt
    assert lines_of(console)[-1].startswith("stopped: answered 0/1")


def test_a_log_has_no_control_sequences_even_where_colours_are_forced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A build server that asks for colours is still no screen to draw on."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    console = Console(file=io.StringIO(), width=80)
    with LiveDisplay(console) as display:
        display(started(1))
        display(failure(message=HOSTILE))
    assert "\x1b" not in "".join(lines_of(console))


def test_notices_are_printed_at_once_and_whole() -> None:
    """A notice does not wait for a line, and a long one stays one line of the log."""
    console = log()
    with LiveDisplay(console, clock=Clock()) as display:
        display(Notice("before the start"))
        display(started(5))
        display(Notice("the server said 429: " + "x" * 100))
        assert lines_of(console)[0] == "before the start"
        assert lines_of(console)[2] == "the server said 429: " + "x" * 100


def test_each_kind_of_failure_is_told_once_and_then_counted() -> None:
    """The first message of a kind is a notice; the counts are in the lines."""
    console = log()
    with LiveDisplay(console, clock=Clock()) as display:
        display(started(10))
        for number in range(3):
            display(failure(message=f"a{number}.wav: no such file"))
        display(Judged("k", Order.ANSWER_FIRST, Failure(FailureKind.UNPARSEABLE, "'I like both'")))
    lines = lines_of(console)
    assert lines[1:3] == ["first missing_audio: a0.wav: no such file", "first unparseable: 'I like both'"]
    assert lines[-1].endswith("failed: missing_audio 3, unparseable 1")
    assert len(lines) == 4


def test_a_failed_answer_takes_its_verdicts_out_of_the_total() -> None:
    """What will never be judged is not waited for: one failed answer drops as many as there are orders."""
    console = log()
    with LiveDisplay(console, clock=Clock()) as display:
        display(started(10))
        display(failure())
        display(Answered("k", ANSWER))
        display(judged())
    assert "answered 2/10, -/min; judged 1/18" in lines_of(console)[-1]


def test_several_runs_add_up() -> None:
    """Totals are those of all runs from the start; a run that fails takes along what it still owed."""

    def run(name: str, owed: int, done: int = 0) -> RunStarted:
        return RunStarted(Path(name), 10, 10, 0, done, owed)

    console = log()
    with LiveDisplay(console, clock=Clock()) as display:
        display(RunsPlanned((run("a", 20), run("b", 10, 10))))
        assert lines_of(console) == []
        display(run("a", 20))
        for _ in range(5):
            display(replace(judged(), run_path=Path("a")))
        display(run("b", 8, 12))
        display(RunFailed(Path("a"), "somebody else has it"))
        display(replace(judged(), run_path=Path("b")))
    assert "a: cannot go on, which stops no other run: somebody else has it" in lines_of(console)
    assert lines_of(console)[-1].startswith("finished: judged 18/25 (12 before), -/min")


def test_where_all_that_is_to_be_done_is_to_judge_answers_are_no_progress() -> None:
    """What was answered before is neither in the lines nor in the tenths at which they come."""
    console, clock = log(), Clock()
    with LiveDisplay(console, clock=clock) as display:
        display(started(0, before=100, verdicts=20, verdicts_before=180))
        for _ in range(20):
            clock.now += 2
            display(judged())
    plan, *progress = lines_of(console)
    assert plan == "100 samples: 20 verdicts to get (180 done before); run outputs/run"
    assert [line.split(",")[0] for line in progress[:2]] == [
        "judged 185/200 (180 before)",
        "judged 190/200 (180 before)",
    ]
    assert not any("answer" in line for line in progress)


def test_a_run_without_a_judge_shows_no_verdicts() -> None:
    """Where nothing is or was to be judged, judging is not mentioned."""
    console = log()
    with LiveDisplay(console, clock=Clock()) as display:
        display(started(3, verdicts=0))
        display(Answered("k", ANSWER))
    assert lines_of(console)[0] == "3 samples: 3 to answer, none to judge; run outputs/run"
    assert "judged" not in lines_of(console)[-1]


def test_rate_and_time_left_count_this_session_only() -> None:
    """What was done before a resume is in the counts and neither in the rate nor in the time left."""
    console, clock = log(), Clock()
    with LiveDisplay(console, clock=clock) as display:
        display(started(100, before=900, verdicts=0))
        for _ in range(20):
            clock.now += 1
            display(Answered("k", ANSWER))
        line = lines_of(console)[-1]
    assert line.startswith("answered 920/1,000 (900 before), 60/min; 0:20 passed, 1:20 left")


def test_time_left_is_that_of_the_slower_queue_and_of_late() -> None:
    """The judge's backlog counts, and so does the pace of the last minute, not that of an hour ago."""
    console, clock = log(), Clock()
    with LiveDisplay(console, clock=clock) as display:
        display(started(10_000))
        for second in range(600):
            clock.now += 1
            display(Answered("k", ANSWER))
            if second % 2 == 0:
                display(judged())
        line = lines_of(console)[-1]
        assert "60/min; judged" in line
        assert "30/min" in line
        assert re.search(r"10:00 passed, 10:\d\d:\d\d left", line), "19,700 verdicts at 30 a minute"
        for _ in range(120):
            clock.now += 10
            display(Answered("k", ANSWER))
        assert " 6.0/min; judged 300/20,000, -/min; 30:00 passed, - left" in lines_of(console)[-1]


def test_hostile_text_is_cleaned_and_never_markup() -> None:
    """Messages that came from servers print as text, without control characters, in any encoding."""
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii", newline="\n")
    with LiveDisplay(Console(file=file, width=80), clock=Clock()) as display:
        display(Notice(HOSTILE + "é"))
        display(started(2))
        display(failure(message=HOSTILE))
    file.seek(0)
    text = file.read()
    assert text.startswith("[bold]no [31m [/bold]\\xe9\n")
    assert "first missing_audio: [bold]no [31m [/bold]\n" in text
    assert not set(text) & {"\x1b", "\r"}


def test_events_only_count_and_cost_no_drawing() -> None:
    """A flood of events prints no more than a trickle: drawing is left to the display's own pace."""
    console = Console(file=io.StringIO(), width=80, force_terminal=True)
    with LiveDisplay(console, interactive=True) as display:
        display(started(20_000, verdicts=0))
        for _ in range(20_000):
            display(Answered("k", ANSWER))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert text.count("answered") < 50
    assert "20,000/20,000" in text


# Shows a run on a real terminal, and ends it as its argument says.
PROGRAM = """
import sys, time
from pathlib import Path
from rich.console import Console
from otoscope.records import *
from otoscope.reports.live import LiveDisplay

with LiveDisplay(Console()) as display:
    display(RunStarted(Path("outputs/run"), 30, 10, 20, 20, 40))
    for number in range(20):
        time.sleep(0.03)
        display(Answered("k", Answer(raw_text="a", text="a")))
        if number == 10:
            display(Notice("the server [b]pauses[/b]"))
            print("printed by another")
    if sys.argv[1] == "fail":
        raise ZeroDivisionError
"""


def on_a_terminal(how: str, **environ: str) -> str:
    """Run the program on a pseudo-terminal of 80 columns and return all that it wrote there."""
    steering = {"COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"}
    inherited = {name: value for name, value in os.environ.items() if name not in steering}
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, how],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**inherited, "TERM": "xterm-256color", "PYTHONUTF8": "1", **environ},
    )
    os.close(theirs)
    written = b""
    # Reading a pseudo-terminal whose other end is closed is an error on Linux and nothing elsewhere.
    with contextlib.suppress(OSError):
        while block := os.read(ours, 65536):
            written += block
    os.close(ours)
    process.wait(30)
    return written.decode()


@pytest.mark.parametrize("how", ["end", "fail"])
def test_a_terminal_gets_bars_and_is_given_back_as_it_was(how: str) -> None:
    """Bars, counts and notices are drawn in place; at the end, also a bad one, the cursor is back."""
    text = on_a_terminal(how)
    assert "answered" in text
    assert "30/30 (10 before)" in text
    assert "20/60 (20 before)" in text
    assert "the server [b]pauses[/b]\r\n" in text
    assert "printed by another\r\n" in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[2K"), "nothing is erased once the cursor is back"
    assert ("ZeroDivisionError" in text) is (how == "fail")


def test_a_dumb_terminal_gets_plain_lines() -> None:
    """Where nothing can be drawn in place, a terminal is a log."""
    text = on_a_terminal("end", TERM="dumb")
    assert "\x1b" not in text
    assert "finished: answered 30/30 (10 before)" in text


def test_no_color_is_honoured() -> None:
    """With NO_COLOR the bars have no colours."""
    assert "\x1b[36m" in on_a_terminal("end")
    assert "\x1b[36m" not in on_a_terminal("end", NO_COLOR="1")
