"""``otoscope import`` and ``otoscope export``: the official scripts' files, and other tools' answers."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from otoscope.cli.terminal import complain
from otoscope.errors import ConfigError
from otoscope.shell import shell_command

if TYPE_CHECKING:
    from otoscope.exchange import Findings

FORMATS = ("auto", "chat-result", "batch-output", "chat-score", "evalscope", "lmms-eval", "answers")


def add(commands: Any) -> None:
    """Add both commands and their flags."""
    importing = commands.add_parser(
        "import",
        help="the official scripts' files, or answers of evalscope or lmms-eval",
        description="Make a run of answers (Chat_result_modelx.jsonl, evalscope's predictions/, lmms-eval's "
        "*_samples_*.jsonl, or lines with key and answer), which 'otoscope judge' then judges, or of "
        "verdicts (batch_run_output.jsonl, chat_score.json and chat_score_cir.json), or of both.",
    )
    importing.add_argument(
        "files", nargs="*", type=Path, metavar="FILE", help="or the folder of an export or of evalscope"
    )
    importing.add_argument(
        "--reference-first",
        action="append",
        default=[],
        type=Path,
        metavar="FILE",
        help="verdicts for which the judge read the reference answer first",
    )
    importing.add_argument(
        "--answer-first",
        action="append",
        default=[],
        type=Path,
        metavar="FILE",
        help="verdicts for which the judge read the model's answer first",
    )
    importing.add_argument(
        "--format",
        choices=FORMATS,
        default="auto",
        metavar="FORMAT",
        help=f"of all files: {', '.join(FORMATS[1:])} (default auto: what each looks like)",
    )
    importing.add_argument(
        "--data",
        type=Path,
        metavar="ROOT",
        help="the folder that contains Chat/: samples and clips are then the data set's. Needed for "
        "evalscope and lmms-eval, whose files lack the reference answer or the path",
    )
    importing.add_argument("--model", metavar="NAME", help="which model answered")
    importing.add_argument("--judge-model", metavar="NAME", help="which judge the verdicts are from")
    importing.add_argument(
        "--answer-filter",
        metavar="RULE",
        help="none, strip-thinking (default), after:TEXT or regex:RE: what of an answer is judged, where the "
        "files hold no verdicts; else answers stay as they were judged",
    )
    importing.add_argument(
        "--work-dir", type=Path, default=Path("outputs"), metavar="DIR", help="default outputs"
    )
    importing.add_argument("--run-dir", type=Path, metavar="DIR", help="make the run here")
    importing.add_argument(
        "--label",
        metavar="TEXT",
        help="the run's name in tables (default: where no file names the model, the file's or folder's)",
    )
    importing.add_argument("--tag", action="append", metavar="K=V", help="may be repeated")
    importing.set_defaults(carry_out=run_import)

    exporting = commands.add_parser(
        "export",
        help="write a run as the official scripts' files, or as one file to pass on",
        description="With --to: write Chat_result_modelx.jsonl, batch_run_output.jsonl and chat_score.json, "
        "and for the other order batch_run_output_cir.jsonl and chat_score_cir.json: the official scorer "
        "runs on them. Of each order the first reply counts. With --bundle: write the run into one zip file, "
        "without paths, hosts and user names; unpacked, it is a run that every report reads.",
    )
    exporting.add_argument("run", type=Path, metavar="RUN")
    where = exporting.add_mutually_exclusive_group(required=True)
    where.add_argument("--to", type=Path, metavar="DIR", help="the folder for the official files")
    where.add_argument("--bundle", type=Path, metavar="FILE", help="the zip file to pass on")
    exporting.add_argument(
        "--no-data",
        action="store_true",
        help="of a bundle: without the data set's texts and what quotes them; every number stays",
    )
    exporting.add_argument("--force", action="store_true", help="replace such files that are there")
    exporting.add_argument(
        "--force-control",
        action="store_true",
        help="write official files of a control run too, though nothing in them says that it is one",
    )
    exporting.set_defaults(carry_out=run_export)


def run_import(args: argparse.Namespace, _environ: Mapping[str, str]) -> int:
    """Import, and print what came of it."""
    from otoscope.cli.arguments import given_tags
    from otoscope.importing import ImportSettings, import_files
    from otoscope.records import Order

    imported = import_files(
        ImportSettings(
            files=args.files,
            reference_first=args.reference_first,
            answer_first=args.answer_first,
            format=None if args.format == "auto" else args.format,
            data=args.data,
            run_dir=args.run_dir,
            work_dir=args.work_dir,
            model=args.model,
            judge_model=args.judge_model,
            label=args.label,
            tags=given_tags(args.tag) or {},
            answer_filter=args.answer_filter,
        )
    )
    _tell(imported.findings)
    print(f"run: {imported.run.path}")
    if imported.answers or imported.failed:
        print(f"answers: {imported.answers}; samples that failed: {imported.failed}")
    run = str(imported.run.path)
    if not imported.verdicts:
        print(f"Judge them with:\n  {shell_command(['otoscope', 'judge', run])}")
        return 0
    counts = ", ".join(f"{order.value} {imported.verdicts.get(order, 0)}" for order in Order)
    print(f"verdicts: {counts}")
    if imported.unjoined:
        complain(
            "otoscope: no sample has both orders' verdicts for certain: only official scoring is possible"
        )
    scoring = ["--scoring", "official"] if imported.unjoined else []
    print(f"Show the numbers with:\n  {shell_command(['otoscope', 'report', run, *scoring])}")
    return 0


def run_export(args: argparse.Namespace, _environ: Mapping[str, str]) -> int:
    """Export, and print what was written."""
    if args.bundle is not None:
        if args.force_control:
            raise ConfigError("--force-control is for --to: a bundle keeps the mark of a control run")
        return _export_bundle(args)
    if args.no_data:
        raise ConfigError("--no-data is for --bundle")
    from otoscope.exporting import export_run

    exported = export_run(args.run, args.to, force=args.force, control=args.force_control)
    _tell(exported.findings)
    if exported.control is not None:
        complain(
            f"otoscope: these are the files of a control run (--control {exported.control}), not of an "
            "evaluation, and nothing in them says so"
        )
    if exported.expected_scores:
        complain(
            "otoscope: the run has expected scores, not replies with two numbers: there are no official "
            "files of its verdicts"
        )
    for name, count in exported.rows.items():
        print(f"{exported.folder / name}: {count}")
    if not exported.rows:
        complain("otoscope: the run holds nothing to export")
    return 0


def _export_bundle(args: argparse.Namespace) -> int:
    from otoscope.bundle import export_bundle

    bundled = export_bundle(args.run, args.bundle, with_data=not args.no_data, force=args.force)
    print(f"{bundled.file}: {bundled.samples} samples; unpacked, the run is {bundled.folder}/")
    if not args.no_data:
        complain(
            "otoscope: it holds the data set's texts, which are under its licence; --no-data leaves them out"
        )
    return 0


def _tell(findings: Findings) -> None:
    for line in findings.told():
        complain(f"otoscope: {line}")
