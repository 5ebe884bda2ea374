"""What a run is going to do: its resolved settings before it starts, and the whole plan of a dry run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from otoscope.benchmark import TASKS
from otoscope.config import EndpointSettings, Settings
from otoscope.reports.text import Cleaner
from otoscope.runs import DryRun

_SHOWN_UNUSABLE = 10


def render_settings(settings: Settings, console: Console) -> None:
    """Print the resolved settings, without secrets."""
    prompt, judge, selection = settings.prompt, settings.judge, settings.selection
    if not prompt.is_the_benchmarks:
        console.print(Text("The model's prompt is not the benchmark's.", style="bold yellow"))
    rows = [
        ("model", _endpoint(settings.model)),
        ("sent", f"{_parameters(settings.model)}; audio as {prompt.audio_part}, {prompt.part_order}"),
    ]
    if judge is None:
        rows.append(("judge", "none: answers only"))
    else:
        orders = "both orders" if judge.swap else "one order only (the reference first)"
        rows.append(("judge", _endpoint(judge.endpoint)))
        rows.append(("asked", f"{_parameters(judge.endpoint)}; protocol {judge.protocol}, {orders}"))
    rows.append(("data", str(selection.root)))
    chosen = "all tasks" if len(selection.tasks) == len(TASKS) else ", ".join(selection.tasks)
    rows.append(("samples", f"{chosen}; {_limit(settings)}"))
    say = Cleaner(console.encoding)
    table = Table.grid(padding=(0, 2))
    for name, value in rows:
        table.add_row(Text(name, style="dim"), Text(say(value)))
    console.print(table)


def render_dry_run(dry: DryRun, console: Console) -> None:
    """Print what a run would do: samples per task, calls, audio seconds and bytes, unusable clips."""
    render_settings(dry.settings, console)
    say = Cleaner(console.encoding)
    utf = console.encoding.lower().startswith("utf")
    table = Table(box=box.SIMPLE_HEAD if utf else box.ASCII_DOUBLE_HEAD)
    table.add_column("task")
    table.add_column("samples", justify="right")
    table.add_column("in the data", justify="right")
    for task, count in dry.samples.items():
        table.add_row(task, f"{count:,}", f"{dry.task_sizes[task]:,}")
    table.add_section()
    table.add_row("all", f"{sum(dry.samples.values()):,}", f"{sum(dry.task_sizes.values()):,}")
    console.print(table)
    size, sent = _size(dry.audio_bytes), _size(dry.audio_bytes * 4 // 3)
    console.print(f"calls        {dry.answers:,} to the model, {dry.verdicts:,} to the judge, plus retries")
    console.print(f"audio        {dry.seconds:,.1f} s in {size}; {sent} to send as base64")
    for key, failure in dry.unusable[:_SHOWN_UNUSABLE]:
        console.print(Text(say(f"unusable     {key}: {failure.message}"), style="yellow"))
    if len(dry.unusable) > _SHOWN_UNUSABLE:
        console.print(f"unusable     and {len(dry.unusable) - _SHOWN_UNUSABLE:,} more")
    console.print("Nothing was sent and nothing written.")


def _endpoint(endpoint: EndpointSettings) -> str:
    revision = f" ({endpoint.revision})" if endpoint.revision else ""
    return f"{endpoint.name}{revision} at {endpoint.shown_url}, {endpoint.concurrency} at a time"


def _parameters(endpoint: EndpointSettings) -> str:
    sent: Mapping[str, Any] = {**endpoint.parameters, **endpoint.extra_body}
    if not sent:
        return "no parameters"
    return ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in sent.items())


def _limit(settings: Settings) -> str:
    selection = settings.selection
    which = f"shuffled with seed {selection.seed}" if selection.shuffle else "in the order of the data"
    if selection.limit is None:
        return "no limit"
    amount = f"{selection.limit}" if isinstance(selection.limit, int) else f"{selection.limit:.3g} of the"
    return f"{amount} samples of each task, {which}"


def _size(count: int) -> str:
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError("unreachable")
