"""``otoscope judge``: files of answers become runs, and what is going to be judged is told before it is."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from otoscope.cli.arguments import DRY_RUN_KEYS, FILE_FLAGS, given_flags, given_tags, judge_config
from otoscope.cli.configured import of_judge, settings_file
from otoscope.cli.terminal import complain, console
from otoscope.config import TaskConfig
from otoscope.errors import ConfigError, counted
from otoscope.importing import ImportSettings
from otoscope.judging import FileRun, Found, Owed, Skipped, Unusable, file_sha256, foreseen, look, run_of_file
from otoscope.reports.plan import render_judging
from otoscope.reports.text import ReportConsole


def runs_to_judge(args: argparse.Namespace) -> tuple[TaskConfig, Sequence[Path]]:
    """Return what is asked for, and the runs, of which each file of answers becomes one."""
    files = _files(args)
    made = {file: _run_of(file, args).path for file in files}
    runs = [made.get(path, path) for path in args.runs if path in made or not path.is_file()]
    return _config(args, files), runs


def dry_run(args: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Tell what would be judged, and return the exit code. Nothing is sent, and nothing stays written."""
    files = _files(args)
    config = _config(args, files)
    found: list[Found] = []
    with tempfile.TemporaryDirectory(prefix="otoscope-") as trial:
        made = [_run_of(file, args, trial=Path(trial)) for file in files]

        def as_it_will_be(text: str) -> str:
            for run in made:
                text = text.replace(str(run.lies_in), str(run.path))
            return text

        environ = {**DRY_RUN_KEYS, **environ}
        try:
            found += look(config, [path for path in args.runs if not path.is_file()], environ)
            for run in made:
                beside = config.changed(work_dir=config.work_dir or run.path.parent)
                found += look(beside, [run.lies_in], environ)
        except ConfigError as error:
            raise ConfigError(as_it_will_be(str(error))) from None
        _render_plan(found, console(), as_it_will_be, dry=True)
    console().print("Nothing was sent and nothing written.")
    return max([0, *(one.error.exit_code for one in found if isinstance(one, Unusable))])


def _config(args: argparse.Namespace, files: Sequence[Path]) -> TaskConfig:
    config = judge_config(args)
    if (file := settings_file(args)) is not None:
        config = TaskConfig.from_layer(config.layer.over(of_judge(file)))
    # Where a file's run lies is where its verdicts go.
    return config.changed(run_dir=None) if files else config


def _files(args: argparse.Namespace) -> list[Path]:
    """Return the files of answers among what is to be judged, of several with the same content the first."""
    first: dict[str, Path] = {}
    for path in args.runs:
        if path.is_file():
            other = first.setdefault(file_sha256(path), path)
            if other is not path:
                complain(f"otoscope: {path}: has the same content as {other}, which is judged once")
    given = given_flags(args, FILE_FLAGS)
    if given and not first:
        raise ConfigError(f"{given[0]} is for answers in a file; a run knows that of its answers")
    if "--model" in given and len(first) > 1:
        raise ConfigError("--model is the one that a file's answers are from: judge each file by itself")
    if first and args.run_dir and len(args.runs) > 1:
        raise ConfigError("--run-dir is where one run is made; for several give --work-dir")
    return list(first.values())


def _run_of(file: Path, args: argparse.Namespace, *, trial: Path | None = None) -> FileRun:
    settings = ImportSettings(
        files=[file],
        data=args.data,
        run_dir=Path(args.run_dir) if args.run_dir else None,
        work_dir=Path(args.work_dir or "outputs"),
        model=args.model,
        label=args.label,
        tags=given_tags(args.tag) or {},
        answer_filter=args.answer_filter,
    )
    run = run_of_file(settings, take_over=args.take_over, trial=trial)
    for finding in run.findings.told():
        complain(f"otoscope: {finding}")
    return run


def tell_plan(found: Sequence[Found]) -> None:
    """Tell which runs are judged where, which are not and why, and how many verdicts are asked for in all."""
    _render_plan(found, console(stderr=True), str, dry=False)


def _render_plan(
    found: Sequence[Found], where: ReportConsole, shown: Callable[[str], str], *, dry: bool
) -> None:
    owed = [one for one in found if isinstance(one, Owed)]
    estimate, warning = foreseen(found)
    render_judging(
        [one.judge for one in owed],
        [(shown(str(one.source)), shown(_said(one))) for one in found],
        sum(one.started.verdicts_owed for one in owed),
        where,
        limits=owed[0].settings.run.judge_limits if owed else None,
        estimate=estimate,
        warning=warning if dry else None,
    )


def _said(one: Found) -> str:
    match one:
        case Owed() if one.copied:
            return (
                f"{counted(one.started.verdicts_owed, 'verdict')}, over a copy of the answers in {one.path}"
            )
        case Owed():
            return f"{counted(one.started.verdicts_owed, 'verdict')}, in place"
        case Skipped():
            return one.why if one.path == one.source else f"{one.why}, in {one.path}"
        case Unusable():
            return f"cannot be judged: {one.error}"
