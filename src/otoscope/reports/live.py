"""Progress while a run goes on: drawn in place on a terminal, a plain line now and then anywhere else.

An event only counts. What is shown is worked out when it is shown: by a thread a few times a second on a
terminal, and on the rare lines of a log.
"""

from __future__ import annotations

import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from otoscope.errors import counted
from otoscope.records import (
    Answered,
    Downloading,
    DownloadPlanned,
    Event,
    Failure,
    Fetching,
    Judged,
    Notice,
    RunFailed,
    RunsPlanned,
    RunStarted,
    tokens_used,
)
from otoscope.reports.counts import estimate_told, short_count
from otoscope.reports.fetching import FetchDisplay
from otoscope.reports.text import Cleaner

REDRAWS_PER_SECOND = 4
LINE_EVERY = 10.0
"""Seconds between two lines of a log."""
STEP_LINE_EVERY = 1.0
"""Seconds between two lines of a log where the run has gone on by a tenth in between."""
RECENT = 60.0
"""Seconds over which the rates are measured."""

_SHOWN_KINDS = 3
_MESSAGE_CHARACTERS = 500
_UNKNOWN = "-"


class LiveDisplay:
    """Shows the events of a run, or of several together. Enter it around the work, call it with each event.

    ``interactive`` ``True`` draws in place if the console can, ``False`` prints lines, and ``None`` draws
    only on what really is a terminal, whatever the environment says of colours. ``clock`` returns seconds.

    Notices are printed at once, above what is drawn. Of each kind of failure the first message is told,
    the others are counted. Leaving gives the terminal back as it was, whatever was raised. Text from models,
    judges and data is shown without its control characters and never read as markup.
    """

    def __init__(
        self,
        console: Console,
        *,
        interactive: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console
        self._clock = clock
        wanted = _is_terminal(console.file) if interactive is None else interactive
        self._interactive = wanted and console.is_interactive
        self._fetch = FetchDisplay(console, interactive=self._interactive, clock=clock)
        self._live: Live | None = None
        self._progress: _Progress | None = None
        self._kinds_told: set[str] = set()
        self._last_line = 0.0
        self._last_step = 0

    def __enter__(self) -> LiveDisplay:  # noqa: PYI034 (Self needs Python 3.11)
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._fetch.close()
        if self._live is not None:
            self._live.stop()
            self._live = None
        elif self._progress is not None:
            how = "finished" if error_type is None else "stopped"
            self._print(f"{how}: {self._progress.line(self._clock(), over=True)}")
        self._progress = None

    def __call__(self, event: Event) -> None:
        """Take in one event. Never raises for trouble with what it is shown on: progress is not the work."""
        try:
            self._take_in(event)
        except OSError:
            self._console.quiet = True

    def _take_in(self, event: Event) -> None:
        match event:
            case Notice(message):
                self._print(message)
            case Fetching() | DownloadPlanned() | Downloading():
                self._fetch(event)
            case RunsPlanned(runs):
                self._fetch.close()
                self._start(runs)
            case RunStarted():
                self._fetch.close()
                self._print(_plan(event))
                if event.estimate is not None and event.estimate.calls:
                    self._print(f"cost: {estimate_told(event.estimate)}")
                self._start([event])
            case RunFailed(run_path, message):
                self._print(f"{run_path}: cannot go on, which stops no other run: {message}")
                if self._progress is not None:
                    self._progress.give_up(run_path)
            case Answered(_, result) | Judged(_, _, result):
                if self._progress is None:
                    return
                self._progress.add(event)
                if isinstance(result, Failure) and result.kind.value not in self._kinds_told:
                    self._kinds_told.add(result.kind.value)
                    self._print(f"first {result.kind.value}: {result.message}")
                if not self._interactive:
                    self._maybe_print_line(self._progress)

    def _start(self, runs: Sequence[RunStarted]) -> None:
        """Count what these runs owe; those that were planned do not count twice."""
        begun = self._progress is not None
        now = self._clock()
        self._progress = progress = self._progress or _Progress(now)
        for run in runs:
            progress.expect(run)
        self._last_step = progress.tenths
        if not begun:
            self._last_line = now
        if self._interactive and not begun:
            self._live = Live(
                console=self._console,
                get_renderable=lambda: _drawn(progress, self._clock()),
                refresh_per_second=REDRAWS_PER_SECOND,
                # Only what would land on this screen: a redirected stream keeps its own lines.
                redirect_stdout=_is_terminal(sys.stdout),
                redirect_stderr=_is_terminal(sys.stderr),
            )
            self._live.start(refresh=True)

    def _maybe_print_line(self, progress: _Progress) -> None:
        now = self._clock()
        since = now - self._last_line
        if since < STEP_LINE_EVERY or (since < LINE_EVERY and progress.tenths <= self._last_step):
            return
        self._last_line, self._last_step = now, progress.tenths
        self._print(progress.line(now))

    def _print(self, message: str) -> None:
        text = Text(_cut(Cleaner(self._console.encoding)(message)))
        # A log keeps one line for one message; on a screen, a display below needs lines that are known.
        if self._interactive:
            self._console.print(text, overflow="fold")
        else:
            self._console.print(text, soft_wrap=True)


# --- counting ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Queue:
    """What one endpoint has to do; ``ended`` are those of this session, failed ones included."""

    marks: deque[tuple[float, int]]
    total: int = 0
    before: int = 0
    ended: int = 0
    tokens: int = 0

    @property
    def done(self) -> int:
        return self.before + self.ended

    @property
    def owed(self) -> int:
        """How many this session has to do, those that ended included."""
        return self.total - self.before

    @property
    def left(self) -> int:
        return max(0, self.total - self.done)

    def rate(self, now: float) -> float | None:
        """Return how many ended per second of late, or ``None`` while that is not known."""
        if now > self.marks[-1][0]:
            self.marks.append((now, self.ended))
        while len(self.marks) > 2 and self.marks[1][0] <= now - RECENT:
            self.marks.popleft()
        since, ended = self.marks[0]
        return (self.ended - ended) / (now - since) if now - since >= 1 and self.ended > ended else None


@dataclass(slots=True)
class _Progress:
    """Where the run is, or all of several runs."""

    started_at: float
    answers: _Queue = field(init=False)
    verdicts: _Queue = field(init=False)
    judged: bool = False
    """Whether there is a judge."""
    orders: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    _runs: dict[Path, RunStarted] = field(default_factory=dict)
    _ended: Counter[tuple[Path | None, str]] = field(default_factory=Counter)
    """Answers and verdicts of each run that ended in this session."""

    def __post_init__(self) -> None:
        self.answers, self.verdicts = (_Queue(deque([(self.started_at, 0)])) for _ in range(2))

    def expect(self, run: RunStarted) -> None:
        """Add what a run has and owes, in the place of what was said of it before."""
        before = self._runs.get(run.run_path)
        for sign, said in ((-1, before), (1, run)):
            if said is not None:
                self.answers.total += sign * (said.answers_done + said.answers_owed)
                self.answers.before += sign * said.answers_done
                self.verdicts.total += sign * (said.verdicts_done + said.verdicts_owed)
                self.verdicts.before += sign * said.verdicts_done
        self._runs[run.run_path] = run
        self.orders = run.orders
        self.judged = self.verdicts.total > 0

    def give_up(self, run_path: Path) -> None:
        """Take out of the totals what a run still owed."""
        run = self._runs.get(run_path)
        if run is not None:
            self.answers.total -= run.answers_owed - self._ended[run_path, "answered"]
            self.verdicts.total -= run.verdicts_owed - self._ended[run_path, "judged"]

    @property
    def tenths(self) -> int:
        """How many tenths of everything that is shown have ended."""
        queues = [queue for _, queue in self.queues()]
        total = sum(queue.total for queue in queues)
        return 10 * sum(queue.done for queue in queues) // total if total else 10

    def add(self, event: Answered | Judged) -> None:
        result = event.result
        name, queue = ("answered", self.answers) if isinstance(event, Answered) else ("judged", self.verdicts)
        queue.ended += 1
        self._ended[event.run_path, name] += 1
        queue.tokens += tokens_used(result.replies)
        if isinstance(result, Failure):
            self.failures[result.kind.value] += 1
            if isinstance(event, Answered):
                self.verdicts.total = max(self.verdicts.done, self.verdicts.total - self.orders)

    def queues(self) -> list[tuple[str, _Queue]]:
        """Return the queues to show, with what to call what has ended there.

        Where nothing is to be answered but there is a judge, what was answered before is no progress.
        """
        shown = []
        if self.answers.owed or not self.judged:
            shown.append(("answered", self.answers))
        if self.judged:
            shown.append(("judged", self.verdicts))
        return shown

    def line(self, now: float, *, over: bool = False) -> str:
        """Return everything in one line; once it is ``over`` there is no time left to tell."""
        parts = [
            f"{name} {queue.done:,}/{queue.total:,}{_before(queue)}, {_per_minute(queue.rate(now))}"
            for name, queue in self.queues()
        ]
        return "; ".join([*parts, self.times_and_tokens(now, over=over), *self.failed()])

    def times_and_tokens(self, now: float, *, over: bool = False) -> str:
        """Return the time that passed, the time left, and the tokens used in this session."""
        left = "" if over else f", {self.time_left(now)} left"
        parts = [f"{_duration(now - self.started_at)} passed{left}"]
        tokens = [
            f"{role} {short_count(queue.tokens)}"
            for role, queue in (("model", self.answers), ("judge", self.verdicts))
            if queue.tokens
        ]
        if tokens:
            parts.append(f"tokens: {', '.join(tokens)}")
        return "; ".join(parts)

    def time_left(self, now: float) -> str:
        """Return how long the slower queue needs at its rate of late."""
        needed = 0.0
        for _, queue in self.queues():
            if not queue.left:
                continue
            rate = queue.rate(now)
            if rate is None:
                return _UNKNOWN
            needed = max(needed, queue.left / rate)
        return _duration(needed)

    def failed(self) -> list[str]:
        """Return the commonest kinds of failure with their counts, as one text, or nothing."""
        # A copy: the thread that draws must not walk over what an event may be adding to.
        kinds = self.failures.copy().most_common()
        shown = [f"{kind} {count:,}" for kind, count in kinds[:_SHOWN_KINDS]]
        if others := sum(count for _, count in kinds[_SHOWN_KINDS:]):
            shown.append(f"others {others:,}")
        return [f"failed: {', '.join(shown)}"] if shown else []


# --- drawing ----------------------------------------------------------------------------------------------


def _drawn(progress: _Progress, now: float) -> RenderableType:
    bars = Table.grid(padding=(0, 1), expand=True)
    bars.add_column(no_wrap=True, overflow="crop")
    bars.add_column(ratio=1)
    for _ in range(2):
        bars.add_column(justify="right", no_wrap=True, overflow="crop")
    for name, queue in progress.queues():
        bars.add_row(
            name,
            ProgressBar(
                total=max(1, queue.total),
                completed=queue.done if queue.total else 1,
                style="dim",
                complete_style="cyan",
                finished_style="cyan",
            ),
            f"{queue.done:,}/{queue.total:,}{_before(queue)}",
            _per_minute(queue.rate(now)),
        )
    below = [progress.times_and_tokens(now), *progress.failed()]
    return Group(bars, *(Text(line, overflow="fold") for line in below))


def _plan(event: RunStarted) -> str:
    answers = _owed(event.answers_owed, "to answer", event.answers_done)
    verdict = "verdict" if event.verdicts_owed == 1 else "verdicts"
    verdicts = _owed(event.verdicts_owed, f"{verdict} to get", event.verdicts_done)
    if event.verdicts_owed and not event.answers_owed:
        todo = verdicts
    elif event.verdicts_owed or event.verdicts_done:
        todo = f"{answers}, {verdicts}"
    else:
        todo = f"{answers}, none to judge"
    return f"{counted(event.samples, 'sample')}: {todo}; run {event.run_path}"


def _owed(count: int, what: str, done: int) -> str:
    return f"{count:,} {what}" + (f" ({done:,} done before)" if done else "")


def _before(queue: _Queue) -> str:
    return f" ({queue.before:,} before)" if queue.before else ""


def _per_minute(rate: float | None) -> str:
    if rate is None:
        return f"{_UNKNOWN}/min"
    minute = 60 * rate
    return f"{minute:,.0f}/min" if minute >= 10 else f"{minute:.1f}/min"


def _duration(seconds: float) -> str:
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


def _cut(text: str) -> str:
    return text if len(text) <= _MESSAGE_CHARACTERS else text[:_MESSAGE_CHARACTERS] + " ..."


def _is_terminal(stream: IO[str] | None) -> bool:
    return stream is not None and not stream.closed and stream.isatty()
