"""The command ``compare``: paired statistics of two or more runs."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from otoscope.cli.terminal import as_json, console
from otoscope.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from otoscope.comparison import JudgedRun


def add(commands: Any) -> None:
    """Add the command's flags."""
    parser = commands.add_parser(
        "compare",
        help="compare runs on the samples that all of them scored",
        description="Compare runs, pair by pair, on the samples that all of them scored: differences with "
        "intervals and tests. Of runs with the same answers, the judges are compared. With a control run "
        "(eval --control) the difference is what the audio contributes.",
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument(
        "--baseline",
        metavar="RUN",
        help="what the others are compared with: path or label (default: the first, or a single control)",
    )
    parser.add_argument(
        "--across-judges",
        action="store_true",
        help="compare also runs with another judge, sampling or scoring; the report says so",
    )
    parser.add_argument(
        "--format", choices=("terminal", "json"), default="terminal", help="of the report (default terminal)"
    )
    parser.set_defaults(carry_out=run)


def run(args: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Compare the runs and print the report. Raises ``ConfigError`` and ``RunDirectoryError``."""
    del environ
    from otoscope.comparison import JudgedRun, compare
    from otoscope.reports.comparison import render
    from otoscope.runs import judged_orders
    from otoscope.store import RunStore

    with ExitStack() as opened:
        runs = []
        for path in args.runs:
            store = opened.enter_context(RunStore.open(path))
            outcomes = store.outcomes(store.samples(), store.manifest.get("judge_id"))
            runs.append(JudgedRun(str(path), store.manifest, judged_orders(store.manifest), outcomes))
        comparison = compare(runs, baseline=_baseline(args.baseline, runs), across_judges=args.across_judges)
    if args.format == "json":
        print(as_json(comparison.to_json()))
    else:
        render(comparison, console())
    return 0


def _baseline(named: str | None, runs: Sequence[JudgedRun]) -> int | None:
    """Return the index of the run that has this path, or else this label."""
    if named is None:
        return None
    places = [Path(run.name).resolve() for run in runs]
    if Path(named).resolve() in places:
        return places.index(Path(named).resolve())
    found = [index for index, run in enumerate(runs) if run.label == named]
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigError(f"--baseline: {len(found)} runs have the label {named!r}; name the run by its path")
    known = [run.name for run in runs] + [run.label for run in runs if run.label]
    raise ConfigError(
        f"--baseline: none of the compared runs has the path or label {named!r}{did_you_mean(named, known)}; "
        f"there are {', '.join(known)}"
    )
