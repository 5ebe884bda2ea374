"""What a download brought, or would bring: a table for people, an object for machines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from otoscope.benchmark import TASKS
from otoscope.config import SelectionSettings
from otoscope.obtaining import Download, Plan, TaskFiles
from otoscope.reports.text import Cleaner, print_line, print_wrapped, size
from otoscope.shell import shell_command

FORMAT = 1
_SHOWN = 20


def render_download(download: Download, selection: SelectionSettings, console: Console) -> None:
    """Print files and bytes by task, what is lacking, the root, and the command that uses it."""
    _table(download.tasks, ("fetched", "came"), console)
    _lacking(download.lacking, console)
    root = str(download.data.root)
    print_line(console, Text(Cleaner(console.encoding)(f"The data set is in {root}")))
    print_line(console, Text("Evaluate on it with:"))
    words = ["otoscope", "eval", "--data", root, *_selecting(selection)]
    print_line(console, Text(f"  {shell_command(words)} --model ... --api-url ..."))


def render_plan(plan: Plan, console: Console) -> None:
    """Print what would be fetched, by task, and where to."""
    _table(plan.tasks, ("to fetch", "to come"), console)
    _lacking(plan.lacking, console)
    place = plan.place or f"the cache {plan.hub.cache}"
    unknown = "" if plan.compared else " Sizes are not known."
    print_wrapped(console, Text(Cleaner(console.encoding)(f"It goes to {place}.{unknown}")))
    print_line(console, Text("No clip was fetched."))


def download_to_json(download: Download) -> dict[str, Any]:
    """Return a download as plain JSON; sizes in bytes."""
    return {
        **_about(download),
        "root": str(download.data.root),
        "complete": not download.lacking,
        "samples": len(download.data.samples),
    }


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """Return a plan as plain JSON; sizes in bytes. ``fetched`` is what would be."""
    return {
        **_about(plan),
        "root": None if plan.place is None else str(plan.place),
        "dry_run": True,
        "samples": 0 if plan.data is None else len(plan.data.samples),
    }


def _about(download: Download | Plan) -> dict[str, Any]:
    everything = sum(download.tasks.values(), TaskFiles())
    return {
        "format": FORMAT,
        "hub": download.hub.name,
        "dataset": download.hub.dataset,
        "compared": download.compared,
        "tasks": {task: _numbers(files) for task, files in download.tasks.items()},
        "all": _numbers(everything),
        "lacking": dict(download.lacking),
    }


def _numbers(files: TaskFiles) -> dict[str, int]:
    return {
        "wanted": files.wanted,
        "here": files.here,
        "fetched": files.fetched,
        "lacking": files.lacking,
        "bytes": files.bytes,
        "fetched_bytes": files.fetched_bytes,
    }


def _table(tasks: Mapping[str, TaskFiles], words: tuple[str, str], console: Console) -> None:
    """Print the numbers by task; ``words`` are for the files that are fetched, and for their bytes."""
    utf = console.encoding.lower().startswith("utf")
    table = Table(
        box=box.SIMPLE_HEAD if utf else box.ASCII_DOUBLE_HEAD, pad_edge=False, collapse_padding=True
    )
    table.add_column("task", no_wrap=True)
    for name in ("wanted", "here", words[0], "lacking", "size", words[1]):
        table.add_column(name, justify="right")
    everything = sum(tasks.values(), TaskFiles())
    for name, files in tasks.items():
        table.add_row(name, *_cells(files))
    table.add_section()
    table.add_row("all", *_cells(everything))
    console.print(table)


def _cells(files: TaskFiles) -> list[str]:
    counts = [f"{count:,}" for count in (files.wanted, files.here, files.fetched, files.lacking)]
    known = files.bytes or not files.wanted
    return [*counts, size(files.bytes) if known else "-", size(files.fetched_bytes)]


def _lacking(lacking: Mapping[str, str], console: Console) -> None:
    say = Cleaner(console.encoding)
    for path, reason in list(lacking.items())[:_SHOWN]:
        print_wrapped(console, Text(say(f"{path}: {reason}")), lead=Text("lacking  ", style="bold yellow"))
    if len(lacking) > _SHOWN:
        print_line(console, Text(f"lacking  and {len(lacking) - _SHOWN:,} more"))


def _selecting(selection: SelectionSettings) -> list[str]:
    """Return the flags that choose the same samples again."""
    words = [] if len(selection.tasks) == len(TASKS) else ["--tasks", ",".join(selection.tasks)]
    if selection.limit is not None:
        words += ["--limit", str(selection.limit)]
    if selection.shuffle:
        words += ["--shuffle", "--seed", str(selection.seed)]
    return words
