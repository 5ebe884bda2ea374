"""What a run is going to do: its resolved settings before it starts, and the whole plan of a dry run.

Of several that are judged together also how they ended, in a line each.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table
from rich.text import Text

from otoscope.benchmark import TASKS
from otoscope.config import (
    EndpointSettings,
    JudgeLimits,
    JudgeSettings,
    LocalSettings,
    ModelSettings,
    Settings,
)
from otoscope.errors import counted
from otoscope.records import Estimate
from otoscope.reports.blocks import Score, interval, number
from otoscope.reports.counts import estimate_told
from otoscope.reports.terminal import NOT_AVAILABLE
from otoscope.reports.text import Cleaner, print_line, print_wrapped, size
from otoscope.runs import DryRun, Run, ToDownload
from otoscope.scoring import Cell
from otoscope.texts import Catalogue, catalogue

_SHOWN_UNUSABLE = 10
_NOTHING_DONE = "Nothing was sent and nothing written."


def render_settings(settings: Settings, console: Console) -> None:
    """Print the resolved settings, without secrets."""
    prompt, judge, selection = settings.prompt, settings.judge, settings.selection
    if (control := settings.audio.control) is not None:
        told = catalogue("en")(f"warning.control_{control.replace('-', '_')}")
        print_wrapped(console, Text(f"{told}.", style="bold reverse yellow"))
    if not prompt.is_the_benchmarks:
        console.print(Text("The model's prompt is not the benchmark's.", style="bold yellow"))
    rows = [("model", settings.model.told)]
    if isinstance(settings.model, LocalSettings):
        rows.append(("asked", f"{_parameters(settings.model)}; {prompt.part_order}"))
    if isinstance(settings.model, EndpointSettings):
        audio = f"audio as {prompt.audio_part}, {prompt.part_order}" if control != "no-audio" else "no audio"
        rows.append(("sent", f"{_parameters(settings.model)}; {audio}"))
    if not settings.audio.policy.is_as_is:
        rows.append(("audio", str(settings.audio.policy)))
    if judge is None:
        rows.append(("judge", "none: answers only"))
    else:
        rows += _judge(judge)
        if told := _limits(settings.run.judge_limits):
            rows.append(("limits", told))
    data = settings.data
    where = f"{data.hub.dataset} from {data.hub.name}" if data.root is None else str(data.root)
    rows.append(("data", where))
    chosen = "all tasks" if len(selection.tasks) == len(TASKS) else ", ".join(selection.tasks)
    rows.append(("samples", f"{chosen}; {_chosen(settings)}"))
    say = Cleaner(console.encoding)
    for name, value in rows:
        print_wrapped(console, Text(say(value)), lead=Text(name.ljust(9), style="dim"))


def render_judging(
    judges: Sequence[JudgeSettings],
    runs: Sequence[tuple[str, str]],
    verdicts: int,
    console: Console,
    *,
    limits: JudgeLimits | None = None,
    estimate: Estimate | None = None,
    warning: str | None = None,
) -> None:
    """Print which judges are asked how, what becomes of each run, and what is asked for in all.

    ``estimate`` is what all the ``verdicts`` will use, where somebody is paid; ``warning`` is what is to be
    said where that is more than the ``limits`` leave.
    """
    rows = [row for judge in judges for row in _judge(judge)]
    rows += [("run", f"{run}: {what}") for run, what in runs]
    in_all = f"{counted(verdicts, 'verdict')} to ask for, plus retries" if verdicts else "nothing to ask for"
    rows.append(("in all", in_all))
    if estimate is not None and estimate.calls:
        rows.append(("cost", estimate_told(estimate)))
    if limits is not None and (told := _limits(limits)):
        rows.append(("limits", told))
    if warning is not None:
        rows.append(("limits", warning))
    say = Cleaner(console.encoding)
    for name, value in dict.fromkeys(rows):
        print_wrapped(console, Text(say(value)), lead=Text(name.ljust(9), style="dim"))


def render_judged(runs: Sequence[Run], say: Catalogue, console: Console) -> None:
    """Print one line for each run: name, headline, scored samples of all, number of warnings, and place."""
    clean = Cleaner(console.encoding)
    rows = [[clean(text) for text in _judged(run, say)] for run in runs]
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        # The place stands last, where it can be copied whole.
        cells = [set_cell_size(text, width) for text, width in zip(row[:-1], widths[:-1], strict=True)]
        print_line(console, Text("  ".join([*cells, row[-1]])))


def _judged(run: Run, say: Catalogue) -> list[str]:
    summary = run.summary
    cell = summary.cell(summary.headline)
    warnings = say("plan.warnings", count=len(summary.warnings)) if summary.warnings else ""
    name = summary.label or summary.model
    return [name, _headline(summary.headline, cell, say), f"{cell.scored}/{cell.n}", warnings, str(run.path)]


def _headline(name: str, cell: Cell, say: Catalogue) -> str:
    """Return a mean with what always stands beside one: its interval, and what it may be instead."""
    score = Score.of(cell)
    if score.value is None:
        return f"{say(f'cell.{name}')} {NOT_AVAILABLE}"
    told = f"{say(f'cell.{name}')} {number(score.value)}"
    if score.ci95 is not None:
        told += f" {interval(score.ci95)}"
    if score.least is not None:
        told += f", {say('terminal.at_least', score=number(score.least))}"
    if cell.partial and cell.gpt_score_full_weights is not None:
        told += f", {say('terminal.with_full_weights', score=number(cell.gpt_score_full_weights))}"
    return told


def render_dry_run(dry: DryRun, console: Console) -> None:
    """Print what a run would do: samples per task, calls, audio seconds and bytes, unusable clips."""
    render_settings(dry.settings, console)
    say = Cleaner(console.encoding)
    if dry.download is not None:
        print_wrapped(console, Text(say(_download(dry.download))), lead=Text("download ", style="dim"))
        if dry.download.files is None:
            console.print(_NOTHING_DONE)
            return
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
    rows = [("calls", f"{dry.answers:,} to the model, {dry.verdicts:,} to the judge, plus retries")]
    if dry.answers_done or dry.verdicts_done:
        rows.append(
            ("done", f"{dry.answers_done:,} answers and {dry.verdicts_done:,} verdicts, by this run before")
        )
    if dry.estimate is not None and dry.estimate.calls:
        rows.append(("cost", estimate_told(dry.estimate)))
    if dry.limit_warning is not None:
        rows.append(("limits", dry.limit_warning))
    rows += [("audio", told) for told in _sending(dry)]
    rows += [("unusable", f"{key}: {failure.message}") for key, failure in dry.unusable[:_SHOWN_UNUSABLE]]
    if len(dry.unusable) > _SHOWN_UNUSABLE:
        rows.append(("unusable", f"and {len(dry.unusable) - _SHOWN_UNUSABLE:,} more"))
    for name, value in rows:
        print_wrapped(console, Text(say(value)), lead=Text(name.ljust(9), style="dim"))
    console.print(_NOTHING_DONE)


def _download(download: ToDownload) -> str:
    if download.files is None:
        return (
            f"the metadata of {download.dataset} would be fetched first; they say which clips are needed. "
            f"'otoscope data download --dry-run' asks {download.hub} now"
        )
    known = "of unknown size" if download.bytes is None else size(download.bytes)
    return f"{download.files:,} clips, {known}, from {download.hub} into {download.place}"


def _sending(dry: DryRun) -> list[str]:
    """Return what would be sent of the clips, a line for each thing."""
    sending, audio = dry.sending, dry.settings.audio
    if audio.control == "no-audio":
        return ["none is sent"]
    files = f"{sending.seconds:,.1f} s in {size(sending.size)}"
    if audio.control == "silence":
        told = [f"{files}, for all samples; silence as long is sent"]
    elif sending.changed:
        told = [f"{files}, for all samples; {_samples(sending.changed)} converted before they are sent"]
    else:
        told = [f"{files}; {size(sending.size * 4 // 3)} as base64, for all samples"]
    if sending.over_limit:
        clips = _samples(sending.over_limit)
        limit = f"{audio.policy.max_seconds:g} s"
        match audio.policy.over:
            case "truncate":
                cut = f"{sending.seconds_over:,.1f} s in all"
                told.append(f"{clips} over {limit} would be cut, by {cut}")
            case "skip":
                told.append(f"{clips} over {limit} would be skipped")
            case _:
                told.append(f"{clips} over {limit}: the run would stop before anything is sent")
    return told


def _samples(count: int) -> str:
    return f"{count:,} samples' clips" if count != 1 else "1 sample's clip"


def _judge(judge: JudgeSettings) -> list[tuple[str, str]]:
    orders = "both orders" if judge.swap else "one order only (the reference first)"
    asked = f"{_parameters(judge.endpoint)}; protocol {judge.protocol}, {orders}"
    rows = [("judge", judge.endpoint.told), ("asked", asked)]
    if (price := judge.price) is not None:
        rows.append(("price", f"{price.prompt:,.12g} in and {price.completion:,.12g} out, a million tokens"))
    return rows


def _limits(limits: JudgeLimits) -> str:
    told = [counted(limits.calls, "call")] if limits.calls is not None else []
    told += [f"{limits.tokens:,.12g} tokens"] if limits.tokens is not None else []
    told += [f"a cost of {limits.cost:,.12g}"] if limits.cost is not None else []
    return f"at most {', '.join(told)} for the judge, with what the run used before" if told else ""


def _parameters(endpoint: ModelSettings) -> str:
    sent: dict[str, Any] = dict(endpoint.parameters)
    if isinstance(endpoint, EndpointSettings):
        sent |= endpoint.extra_body
    if not sent:
        return "no parameters"
    return ", ".join(f"{name}={_json(value)}" for name, value in sent.items())


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _chosen(settings: Settings) -> str:
    shard = settings.selection.shard
    part = "" if shard is None else f"; of these shard {shard.number:,} of {shard.of:,}"
    return f"{_limit(settings)}{part}"


def _limit(settings: Settings) -> str:
    selection = settings.selection
    which = f"shuffled with seed {selection.seed}" if selection.shuffle else "in the order of the data"
    if selection.limit is None:
        return "no limit"
    if isinstance(selection.limit, int):
        return f"at most {selection.limit:,} of each task, {which}"
    return f"{100 * selection.limit:g} % of each task, {which}"
