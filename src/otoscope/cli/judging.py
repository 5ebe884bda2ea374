"""``otoscope judge``: files of answers become runs, and what is going to be judged is told before it is."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from otoscope.cli.arguments import judge_config
from otoscope.cli.terminal import complain, console
from otoscope.config import TaskConfig
from otoscope.errors import ConfigError
from otoscope.judging import Found, Owed, Skipped, Unusable, run_of_file
from otoscope.reports.plan import render_judging

_SHOWN = 5
"""How many of the places where something was found in a file are named."""


def runs_to_judge(args: argparse.Namespace) -> tuple[TaskConfig, Sequence[Path]]:
    """Return what is asked for, and the runs, of which each file of answers becomes one."""
    config, files = judge_config(args), [path for path in args.runs if path.is_file()]
    if args.data is not None and not files:
        raise ConfigError("--data is for answers in a file; a run knows its samples")
    if not files:
        return config, args.runs
    if args.run_dir and len(args.runs) > 1:
        raise ConfigError("--run-dir is where one run is made; for several give --work-dir")
    runs = [_run_of(path, args) if path in files else path for path in args.runs]
    # Where a file's run lies is where its verdicts go.
    return replace(config, run_dir=None), runs


def _run_of(file: Path, args: argparse.Namespace) -> Path:
    run, findings = run_of_file(file, data=args.data, run_dir=args.run_dir, work_dir=args.work_dir)
    for what, places in findings.items():
        more = f" and {len(places) - _SHOWN} more" if len(places) > _SHOWN else ""
        complain(f"otoscope: {len(places)} {what}: {', '.join(places[:_SHOWN])}{more}")
    return run


def tell_plan(found: Sequence[Found]) -> None:
    """Tell which runs are judged where, which are not and why, and how many verdicts are asked for in all."""
    owed = [one for one in found if isinstance(one, Owed)]
    render_judging(
        [one.judge for one in owed],
        [(str(one.source), _said(one)) for one in found],
        sum(one.started.verdicts_owed for one in owed),
        console(stderr=True),
    )


def _said(one: Found) -> str:
    match one:
        case Owed() if one.copied:
            return f"{one.started.verdicts_owed:,} verdicts, over a copy of the answers in {one.path}"
        case Owed():
            return f"{one.started.verdicts_owed:,} verdicts, in place"
        case Skipped():
            return one.why if one.path == one.source else f"{one.why}, in {one.path}"
        case Unusable():
            return f"cannot be judged: {one.error}"
