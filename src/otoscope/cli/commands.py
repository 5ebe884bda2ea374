"""A command being carried out: what it asks of the parts, and what a person needs to go on with it."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from otoscope.cli.arguments import (
    CLIP_KINDS,
    DRY_RUN_KEYS,
    JUDGING_FLAGS,
    LIMIT_FLAGS,
    OF_ONE_START,
    SECRET_FLAGS,
    URL_FLAGS,
    flag_name,
    given_flags,
    refuse_empty_flags,
)
from otoscope.cli.keys import JSON_FLAGS, holds_back, says_whose_key, warning_of_keys, without_keys
from otoscope.cli.reporting import has_page, track_runs, write_page_apart
from otoscope.cli.terminal import as_json, complain, console
from otoscope.config import FunctionSettings, LocalSettings, shown_urls
from otoscope.errors import (
    EndpointError,
    LimitReachedError,
    OtoscopeError,
    RunDirectoryError,
    RunInterruptedError,
)
from otoscope.records import FailureKind
from otoscope.shell import shell_command

if TYPE_CHECKING:
    from otoscope.cli.configured import Asked
    from otoscope.config import Settings
    from otoscope.config.files import SettingsFile
    from otoscope.records import Event
    from otoscope.runs import Run
    from otoscope.stopping import Stop

_T = TypeVar("_T")

EXIT_INCOMPLETE = 1
"""The run finished, but its coverage is under ``--min-coverage``."""


class Command:
    """One command being carried out; remembers what a person needs to go on with it."""

    def __init__(self, args: argparse.Namespace, environ: Mapping[str, str]) -> None:
        self._args = args
        self._environ = environ
        self._run_path: Path | None = None
        self._runs = _Runs([])
        self._judge_is_gone = False
        self._model_again: list[str] = []
        """What no run directory's word is enough for: a model in Python, trust in the code of weights."""
        self._reached: LimitReachedError | None = None

    def run(self) -> int:
        """Carry the command out and return its exit code."""
        refuse_empty_flags(self._args)
        if warning := warning_of_keys(self._args):
            complain(warning)
        match self._args.command:
            case "eval" | "demo":
                return self.eval()
            case "judge":
                return self.judge()
            case "models":
                return self.fetch_models()
            case _:
                # A command with a module of its own, which its parser names.
                return int(self._args.carry_out(self._args, self._environ))

    def traceback(self) -> str:
        """Return the traceback of the exception that is being handled, without any key."""
        return without_keys(traceback.format_exc().rstrip(), self._args, self._environ)

    def eval(self) -> int:
        """Answer and judge."""
        from otoscope.cli.configured import asked_for
        from otoscope.evaluation import answer_and_judge, dry_run
        from otoscope.reports.plan import render_dry_run, render_settings

        keyless = DRY_RUN_KEYS if self._args.dry_run else {}
        file = self._settings_file()
        asked = asked_for(self._args, file, self._environ)
        several = [one.settings({**keyless, **self._environ}) for one in asked]
        self._runs = _Runs([(one, its.run.path) for one, its in zip(asked, several, strict=True)])
        where = console(stderr=not self._args.dry_run)
        for number, (one, settings) in enumerate(zip(asked, several, strict=True), start=1):
            if len(several) > 1:
                where.print(f"Model {number} of {len(several)}: {one.title}", style="bold", markup=False)
            if self._args.dry_run:
                render_dry_run(dry_run(settings), where)
            else:
                render_settings(settings, where)
        if self._args.dry_run:
            return 0
        if len(several) > 1:
            return self._eval_all(several)
        (settings,) = several
        if isinstance(settings.model, (FunctionSettings, LocalSettings)):
            self._model_again = settings.model.words_again
        try:
            run = self._with_display(
                lambda on_event, stop: answer_and_judge(settings, on_event=on_event, stop=stop)
            )
        except EndpointError as error:
            self._judge_is_gone = error.role == "judge"
            raise
        self._show([run], several=False)
        self._track([run], settings.run.track)
        return self._coverage([(run, settings)])

    def _settings_file(self) -> SettingsFile | None:
        """Return what the file of ``--config`` says, with a word about one whose keys others can read."""
        from otoscope.cli.configured import settings_file, warning_of_file

        file = settings_file(self._args)
        if file is not None and (warning := warning_of_file(file)):
            complain(warning)
        return file

    def _eval_all(self, several: Sequence[Settings]) -> int:
        """Evaluate the models of a file, one after the other; the exit code is the worst."""
        from otoscope.evaluation import evaluate_all

        ended = self._with_display(
            lambda on_event, stop: evaluate_all(
                several, on_event=on_event, stop=stop, on_run=self._runs.begin
            )
        )
        for error in ended:
            if isinstance(error, LimitReachedError):
                self._reached = error
            self._judge_is_gone |= isinstance(error, EndpointError) and error.role == "judge"
        done = [
            (end, settings)
            for end, settings in zip(ended, several, strict=True)
            if end is not None and not isinstance(end, OtoscopeError)
        ]
        self._show([run for run, _ in done], several=True)
        trackers = dict.fromkeys(name for settings in several for name in settings.run.track)
        self._track([run for run, _ in done], list(trackers))
        code = self._coverage(done)
        errors = [(number, error) for number, error in enumerate(ended) if isinstance(error, OtoscopeError)]
        for number, error in errors:
            if str(error) != "stopped":
                complain(f"otoscope: error: {self._runs.title(number)}: {error}")
        for line in self._runs.told(ended):
            complain(line)
        if errors:
            self.say_how_to_resume()
        return max([code, *(error.exit_code for _, error in errors)])

    def judge(self) -> int:
        """Judge what is stored."""
        from otoscope.cli.judging import dry_run, runs_to_judge, tell_plan
        from otoscope.judging import Unusable, judge_all, look, trackers_of

        self._settings_file()
        if self._args.dry_run:
            return dry_run(self._args, self._environ)
        config, runs = runs_to_judge(self._args)
        found = look(config, runs, self._environ)
        if len(found) == 1 and isinstance(found[0], Unusable):
            raise found[0].error
        tell_plan(found)
        ended = self._with_display(lambda on_event, stop: judge_all(found, on_event=on_event, stop=stop))
        errors = [
            (one.source, end) for one, end in zip(found, ended, strict=True) if isinstance(end, OtoscopeError)
        ]
        if len(found) == len(errors) == 1:
            raise errors[0][1]
        done = [
            (end, one.settings)
            for one, end in zip(found, ended, strict=True)
            if not (isinstance(one, Unusable) or end is None or isinstance(end, OtoscopeError))
        ]
        self._show([run for run, _ in done], several=len(runs) > 1)
        self._track([run for run, _ in done], trackers_of(found))
        for source, error in errors:
            # Trouble with its folder names that itself.
            which = "" if isinstance(error, RunDirectoryError) else f"{source}: "
            complain(f"otoscope: error: {which}{error}")
        if errors:
            self.say_how_to_resume()
        return max([self._coverage(done), *(error.exit_code for _, error in errors)])

    def fetch_models(self) -> int:
        """Fetch the weights of the models inside of this process."""
        from otoscope.config import resolve_weights
        from otoscope.embedded import fetch
        from otoscope.reports.live import LiveDisplay
        from otoscope.weights import MODELS

        where = resolve_weights(self._args.weights, self._environ)
        with LiveDisplay(console(stderr=True)) as display:
            folders = {model.title: fetch(model, where, display) for model in MODELS}
        for title, folder in folders.items():
            print(f"{title}: {folder}")
        return 0

    def say_how_to_resume(self) -> None:
        """Print the command that goes on with this run, where there is one to go on with."""
        if self._run_path is not None and self._reached is not None:
            complain(f"Go on with a higher limit, for example:\n  {self._resuming()}")
        elif self._run_path is not None:
            complain(f"What was done is stored. Resume with:\n  {self._resuming()}")
            if self._judge_is_gone:
                complain(f"Or answer what is left now, and judge later:\n  {self._resuming('--no-judge')}")

    def _say_what_helps(self, failures: Mapping[str, int]) -> None:
        """Print, for the kinds of failures that there are, what makes another try worth it."""
        kinds = [FailureKind(name) for name in failures]
        clips = [kind for kind in kinds if kind in CLIP_KINDS]
        if clips:
            complain(
                f"Put the clips right ({', '.join(clips)}: see samples.jsonl), then:\n  {self._resuming()}"
            )
        elif any(kind.passing for kind in kinds) or not kinds:
            complain(f"Try again with:\n  {self._resuming()}")
        if FailureKind.OVER_LIMIT in kinds:
            complain("The audio policy left clips out (over_limit): a new run with another asks about them")
        of_clips = (*CLIP_KINDS, FailureKind.OVER_LIMIT)
        if lasting := [kind for kind in kinds if not kind.passing and kind not in of_clips]:
            again = self._resuming("--retry-failed", ",".join(lasting))
            complain(f"What failed for good is asked for again with:\n  {again}")

    def _resuming(self, *more: str) -> str:
        """Return the command that goes on with this run, with a place for each key that it needs again."""
        given = self._secret_flags()
        if self._args.command == "eval" and self._args.config:
            return self._resuming_with_file(given, more)
        if self._args.command == "judge":
            # What is judged over a copy is named by its source and this judge.
            known = [flag for flag in JUDGING_FLAGS if flag not in given]
            words = ["judge", *map(str, self._args.runs), *given_flags(self._args, known)]
        else:
            words = ["eval", "--use-cache", str(self._run_path), *self._model_again]
        words += ["--no-judge"] if getattr(self._args, "no_judge", False) else []
        files = list(OF_ONE_START)
        if "--no-judge" in (*words, *more):
            given = [flag for flag in given if not flag.startswith("--judge")]
            files = [flag for flag in files if not flag.startswith("--judge")]
        else:
            words += self._limits()
            if words[0] == "eval" and "--judge-model-args" not in given and says_whose_key(self._args):
                files.append("--judge-model-args")
        words += given_flags(self._args, files)
        words += ["--judge-blank"] if self._args.judge_blank else []
        words += given_flags(self._args, ["--track"])
        if self._args.retry_failed and "--retry-failed" not in more:
            words += ["--retry-failed", ",".join(self._args.retry_failed)]
        keys = "".join(f" {flag} ..." for flag in given)
        note = "\n(what holds a key is not stored: give it again)" if given else ""
        return f"{shell_command(['otoscope', *words, *more])}{keys}{note}"

    def _secret_flags(self) -> list[str]:
        """Return the flags that were given and hold a secret, which no message repeats."""
        given = [flag for flag in SECRET_FLAGS if getattr(self._args, flag_name(flag), None)]
        given += [flag for flag in JSON_FLAGS if holds_back(self._args, flag)]
        urls = {flag: getattr(self._args, flag_name(flag), None) or "" for flag in URL_FLAGS}
        return [*given, *(flag for flag, url in urls.items() if "@" in url or "***" in shown_urls(url))]

    def _resuming_with_file(self, secret: Sequence[str], more: Sequence[str]) -> str:
        """Return the same command again, or where no place was given for a run, one for each that is left."""
        left_out = {flag_name(flag) for flag in (*secret, *(more[:1]))} | {"command", "format", "lang"}
        if "--no-judge" in more or self._args.no_judge:
            left_out |= {flag_name(flag) for flag in LIMIT_FLAGS}
        elif self._reached is not None:
            more = (*more, self._reached.flag, f"{self._reached.enough:.12g}")
            left_out.add(flag_name(self._reached.flag))
        keys = "".join(f" {flag} ..." for flag in secret)
        note = "\n(what holds a key is not repeated: give it again)" if secret else ""
        commands = []
        for words in self._runs.left():
            own = left_out | {flag_name(flag) for flag in words if flag.startswith("--")}
            flags = [f"--{name.replace('_', '-')}" for name in vars(self._args) if name not in own]
            again = ["otoscope", "eval", *given_flags(self._args, flags), *words, *more]
            commands.append(f"{shell_command(again)}{keys}")
        return "\n  ".join(commands) + note

    def _limits(self) -> list[str]:
        """Return the limits of this command as words of the next one, one that was reached with more room."""
        reached = self._reached
        if reached is None:
            return given_flags(self._args, LIMIT_FLAGS)
        # A limit that was reached may have come from a file, above which a flag stands.
        others = [flag for flag in LIMIT_FLAGS if flag != reached.flag]
        return [*given_flags(self._args, others), reached.flag, f"{reached.enough:.12g}"]

    def _with_display(self, work: Callable[[Callable[[Event], None], Stop], Awaitable[_T]]) -> _T:
        from otoscope.reports.live import LiveDisplay
        from otoscope.stopping import run_in_loop

        # What a model in Python prints is not what this command was asked for.
        with LiveDisplay(console(stderr=True)) as display, contextlib.redirect_stdout(sys.stderr):

            def on_event(event: Event) -> None:
                self._run_path = getattr(event, "run_path", self._run_path)
                self._runs.lies_in(self._run_path)
                display(event)

            def leave(code: int) -> None:
                try:
                    display.__exit__(RunInterruptedError, None, None)
                    complain("otoscope: stopped")
                    self.say_how_to_resume()
                finally:
                    os._exit(code)

            _share_memory_between_threads()
            try:
                return run_in_loop(_interruptible(partial(work, on_event), leave))
            except LimitReachedError as error:
                self._reached = error
                raise

    def _coverage(self, runs: Sequence[tuple[Run, Settings]]) -> int:
        """Say of which runs too much is lacking, and what helps; return the exit code."""
        failures: Counter[str] = Counter()
        short = helped_by_judging = False
        for run, settings in runs:
            counts = run.summary.counts
            unscored = counts["failed"] + counts["pending"]
            lacking = counts["failed"] if settings.judge is None else unscored
            if lacking <= (1 - settings.run.min_coverage) * counts["expected"] + 1e-9:
                self._runs.fine.add(run.path)
            else:
                short = True
                failures.update(counts["failures"])
                helped_by_judging |= bool(counts["failed_at"].get("verdict"))
                which = f"{run.path}: " if len(runs) > 1 else ""
                have = "has" if lacking == 1 else "have"
                complain(
                    f"otoscope: {which}{lacking} of {counts['expected']} samples {have} no score: coverage "
                    f"is under --min-coverage {settings.run.min_coverage:g}"
                )
        if not short:
            return 0
        if self._args.command == "judge" and not helped_by_judging:
            complain("They have no answer: what 'otoscope eval --use-cache RUN' answers can be judged then")
        else:
            self._say_what_helps(failures)
        return EXIT_INCOMPLETE

    def _show(self, runs: Sequence[Run], *, several: bool) -> None:
        """Print the reports of what was run, and write the page of each run that changed or has none."""
        self._print(runs, several=several)
        if not self._args.no_html:
            for run in runs:
                if run.changed or not has_page(run.path, self._args.lang):
                    write_page_apart(run.path, self._args.lang)

    def _track(self, runs: Sequence[Run], trackers: Sequence[str]) -> None:
        """Log the runs where that was asked for; whatever comes of it, they are done."""
        if not trackers:
            return
        from otoscope.tracking import SECONDS

        for trouble in track_runs(runs, trackers, self._environ, seconds=SECONDS):
            complain(f"otoscope: warning: {trouble}")

    def _print(self, runs: Sequence[Run], *, several: bool) -> None:
        if self._args.format == "json":
            told = [run.summary.to_json() for run in runs]
            print(as_json(told if several else told[0]))
            return
        if len(runs) > 1:
            from otoscope.reports.plan import render_judged
            from otoscope.texts import catalogue

            render_judged(runs, catalogue(self._args.lang), console())
            return
        from otoscope.reports.terminal import render

        for run in runs:
            render(run.summary, console(), run_path=run.path, language=self._args.lang)


class _Runs:
    """The runs that a command evaluates one after the other, and what is left to do of them."""

    def __init__(self, asked: Sequence[tuple[Asked, Path | None]]) -> None:
        self._asked = asked
        self._paths: dict[int, Path] = {}
        self._now = 0
        self.fine: set[Path] = set()
        """Those that need no other try."""

    def begin(self, number: int) -> None:
        """Take note which run begins."""
        self._now = number

    def lies_in(self, path: Path | None) -> None:
        """Take note where the run that goes on lies."""
        if path is not None:
            self._paths[self._now] = path

    def title(self, number: int) -> str:
        """Return what a run's model is called."""
        return self._asked[number][0].title

    def left(self) -> list[list[str]]:
        """Return what is added to the same command for each run that is left; an empty one does for all."""
        if all(given is not None for _, given in self._asked):
            return [[]]
        words = []
        for number, (asked, given) in enumerate(self._asked):
            path = self._paths.get(number)
            if path not in self.fine:
                place = ["--use-cache", str(path)] if path is not None and given is None else []
                words.append([*(["--model", asked.title] if asked.chosen else []), *place])
        return words

    def told(self, ended: Sequence[Run | OtoscopeError | None]) -> Iterator[str]:
        """Yield a line for each run that says how it ended."""
        width = max(len(asked.title) for asked, _ in self._asked)
        for number, end in enumerate(ended):
            path = self._paths.get(number)
            match end:
                case None:
                    state = "not begun"
                case RunInterruptedError():
                    state = "stopped"
                case OtoscopeError():
                    state = f"stopped, exit code {end.exit_code}"
                case _:
                    path = end.path
                    state = "done" if path in self.fine else f"done, exit code {EXIT_INCOMPLETE}"
            yield f"  {self.title(number).ljust(width)}  {state}{f': {path}' if path is not None else ''}"


def _share_memory_between_threads() -> None:
    """Have the C library keep two heaps for all threads, not one for each, where it can be told.

    Clips are read by threads, and what each heap has freed is of no use to the others: a fifth of the memory.
    """
    if sys.platform == "linux":
        import ctypes

        # M_ARENA_MAX of glibc's malloc.h; other C libraries have no such function, or ignore it.
        with contextlib.suppress(AttributeError, OSError):
            ctypes.CDLL(None).mallopt(-8, 2)


async def _interruptible(work: Callable[[Stop], Awaitable[_T]], leave: Callable[[int], None]) -> _T:
    """Await the work; Ctrl-C and SIGTERM ask it to stop, a second one to stop at once.

    ``leave`` ends the process with an exit code. It is called when a stop takes too long all the same: a
    thread that waits for a dead network disk cannot be ended in any other way.
    """
    from otoscope.stopping import LAST_SECONDS, STOP_SECONDS, Stop

    stop = Stop()
    loop = asyncio.get_running_loop()

    def ask(*, terminated: bool) -> None:
        stop.request(terminated=terminated)
        code = RunInterruptedError("stopped", terminated=stop.terminated).exit_code
        loop.call_later(LAST_SECONDS if stop.at_once else STOP_SECONDS, leave, code)

    listened = [(signal.SIGINT, False), (signal.SIGTERM, True)]
    hangup = getattr(signal, "SIGHUP", None)
    if hangup is not None and signal.getsignal(hangup) is not signal.SIG_IGN:
        listened.append((hangup, True))  # a terminal that was closed; nohup has it ignored
    for number, terminated in listened:
        listen = partial(ask, terminated=terminated)
        try:
            loop.add_signal_handler(number, listen)
        except NotImplementedError:  # Windows: its event loop takes no signals
            signal.signal(number, lambda *_, listen=listen: loop.call_soon_threadsafe(listen))
    return await work(stop)
