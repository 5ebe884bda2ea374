"""A comparison on the terminal, for 80 columns: which run is which, a table for each run but the baseline.

Only ASCII is written besides the tables' rules and foreign text, and nothing is told by colour alone. Every
difference is the other run's minus the baseline's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console
from rich.text import Text

from otoscope.benchmark import CATEGORIES
from otoscope.comparison import (
    CELLS,
    ComparedRun,
    Comparison,
    Contrast,
    Difference,
    JudgeCell,
    JudgeDifference,
    ModelCell,
    ModelDifference,
)
from otoscope.reports.text import Cleaner, print_line, print_wrapped
from otoscope.stats import INTERVAL_LABEL
from otoscope.texts import catalogue

NOT_AVAILABLE = "n/a"
_NAMES = {
    "speech": "Speech",
    "sound": "Sound",
    "music": "Music",
    "speech_and_sound": "Speech and sound",
    "speech_and_music": "Speech and music",
    "mixed_audio": "Mixed audio",
    "average": "Average",
    "all_samples": "All samples",
}
_TITLES: Mapping[Contrast, str] = {
    "evaluations": "Models compared",
    "audio": "What the audio contributes (evaluation - control)",
    "without_audio": "What is lost without the audio (control - evaluation)",
    "same_control": "Models compared in a control",
    "controls": "Controls compared",
    "mixed": "An evaluation and a control of another model compared",
}
_ABOUT: Mapping[Contrast, str] = {
    "evaluations": "",
    "audio": ", what the audio contributes",
    "without_audio": ", what is lost without the audio",
    "same_control": ", in the same control",
    "controls": ", two controls",
    "mixed": ", an evaluation and a control of another model",
}
_SIGN: Mapping[Contrast, str] = {
    "audio": "above 0: {run}, which was sent the clips, scored higher than {base}, which was not",
    "without_audio": "above 0: {run}, which was not sent the clips, scored higher than {base}, which was",
}
_HEADLINE, _TOTAL, _CELL, _QUIET, _WARNING = "bold cyan", "bold", "", "dim", "bold yellow"


def render(comparison: Comparison, console: Console) -> None:
    """Print a comparison: its warnings, what is compared, the differences, and how to read them.

    Text from models, servers and paths is printed without its control characters and never read as markup.
    """
    say = Cleaner(console.encoding)
    for warning in comparison.warnings:
        style = _TOTAL if warning["name"] == "control" else ""
        print_wrapped(console, Text(say(warning["message"]), style=style), lead=Text("! ", style=_WARNING))
    print_wrapped(console, _title(comparison))
    _print_runs(comparison, console, say)
    for difference in comparison.models:
        _print_models(difference, comparison, console)
    for judge in comparison.judges:
        _print_judges(judge, comparison, console)
    console.print()
    for label, text in _notes(comparison, say):
        print_wrapped(console, Text(text), lead=Text(label.ljust(11), style=_QUIET))


# --- what is compared -------------------------------------------------------------------------------------


def _title(comparison: Comparison) -> Text:
    title = Text(f"{_what(comparison)} on AIR-Bench Chat: ", style=_TOTAL)
    samples = _counted(comparison.samples, "sample")
    return title.append(f"{samples} in common, {_counted(comparison.clips, 'clip')}", style=_HEADLINE)


def _what(comparison: Comparison) -> str:
    contrasts = set(comparison.contrasts.values())
    if comparison.kind == "judges":
        of_what = "" if contrasts == {"evaluations"} else " of a control"
        return f"Judges of the same answers{of_what} compared"
    return _TITLES[contrasts.pop()] if len(contrasts) == 1 else "Evaluations and controls compared"


def _print_runs(comparison: Comparison, console: Console, say: Cleaner) -> None:
    judged = [_judged(run, say) for run in comparison.runs]
    alike = len(set(judged)) == 1 and not comparison.judged_differently
    if alike:
        print_wrapped(console, Text(f"All {judged[0]}"))
    for run, how in zip(comparison.runs, judged, strict=True):
        told = [say(run.model)] if alike else [say(run.model), how]
        if run.label:
            told.append(f"label {say(run.label)}")
        text = Text(", ".join(told))
        if run.letter == comparison.baseline:
            text.append(" (baseline)", style=_TOTAL)
        if run.control is not None:
            text.append(f", {catalogue()(f'control.{run.control}')}", style=_TOTAL)
        print_wrapped(console, text, lead=Text(f"{run.letter}  ", style=_TOTAL))
        print_line(console, Text(f"   {say(run.name)}", style=_QUIET))


def _judged(run: ComparedRun, say: Cleaner) -> str:
    orders = "in both orders" if run.orders == 2 else "in one order only (the reference first)"
    protocol = f", {say(run.protocol)} protocol" if run.protocol is not None else ""
    return f"judged by {say(run.judge)} {orders}{protocol}"


# --- tables -----------------------------------------------------------------------------------------------


def _print_table(headers: Sequence[str], rows: Mapping[str, Sequence[str]], console: Console) -> None:
    """Print the cells of each row, by its name, under their headers: categories, a rule, means over them.

    What does not fit into the width goes into further tables below.
    """
    texts = [headers, *rows.values()]
    widths = [max(len(row[column]) for row in texts) for column in range(len(headers))]
    names = max(len(_NAMES[name]) for name in rows)
    gap = "  " if names + sum(widths) + 2 * len(widths) <= console.width else " "

    def line(name: str, cells: Sequence[str], columns: Sequence[int], style: str) -> Text:
        shown = [cells[column].rjust(widths[column]) for column in columns]
        return Text(gap.join([name.ljust(names), *shown]), style=style)

    for number, columns in enumerate(_fitting(widths, console.width - names, len(gap))):
        if number:
            console.print()
        header = line("", headers, columns, _QUIET)
        print_line(console, header)
        for name, cells in rows.items():
            if name == "mixed_audio":
                rule = "-" if console.options.ascii_only else "─"
                print_line(console, Text(rule * len(header.plain), style=_QUIET))
            print_line(console, line(_NAMES[name], cells, columns, _TOTAL if name == "average" else _CELL))


def _fitting(widths: Sequence[int], space: int, gap: int) -> list[list[int]]:
    """Return the columns of each table, so that none is wider than the space, but for single columns."""
    tables: list[list[int]] = [[]]
    left = space
    for column, width in enumerate(widths):
        if tables[-1] and width + gap > left:
            tables.append([])
            left = space
        tables[-1].append(column)
        left -= width + gap
    return tables


def _print_models(difference: ModelDifference, comparison: Comparison, console: Console) -> None:
    base, run = comparison.baseline, difference.run
    headline = difference.cells[comparison.headline]
    console.print()
    about = _ABOUT[comparison.contrast(run)]
    title = Text(f"{run} against {base}{about}: ", style=_TOTAL)
    title.append(_headline(difference.cells, comparison.headline), style=_HEADLINE)
    print_wrapped(console, title.append(_beside(headline)))
    headers = (base, run, f"{run}-{base}", "95 %", "p", "win/tie/loss", "detect")
    console.print()
    _print_table(
        headers, {name: _model_row(difference.cells[name]) for name in _shown(difference.cells)}, console
    )


def _model_row(cell: ModelCell) -> tuple[str, ...]:
    score = cell.gpt_score
    p = cell.p if cell.p_holm is None else cell.p_holm
    return (*_columns(score), _p(p), _rates(cell), _number(cell.detectable_difference))


def _beside(cell: ModelCell) -> str:
    score = cell.gpt_score
    if score is None or score.identical:
        return ""
    interval = f" {_interval(score)}" if score.ci95 is not None else ""
    p = _p(cell.p) if cell.p_holm is None else _p(cell.p_holm)
    which = "p" if cell.p_holm is None else "adjusted p"
    return f"{interval}, {which} {p}" if p.startswith("<") else f"{interval}, {which} = {p}"


def _print_judges(difference: JudgeDifference, comparison: Comparison, console: Console) -> None:
    base, run = comparison.baseline, difference.run
    headline = difference.cells[comparison.headline].gpt_score
    console.print()
    title = Text(f"{run}'s judge against {base}'s: ", style=_TOTAL)
    title.append(_headline(difference.cells, comparison.headline), style=_HEADLINE)
    if headline is not None and headline.ci95 is not None:
        title.append(f" {_interval(headline)}")
    print_wrapped(console, title)
    agreed = difference.cells["all_samples"]
    told = [
        f"rank correlation {_number(difference.rank_correlation)}",
        f"agree on the winner in {_percent(agreed.agreement)}%{_percents(agreed.agreement_ci95)}",
        f"kappa {_number(difference.kappa)}",
    ]
    print_wrapped(console, Text(", ".join(told)))
    cells = {name: difference.cells[name] for name in _shown(difference.cells)}
    headers = (base, run, f"{run}-{base}", "95 %")
    print_line(console, Text("\nThe model's answers", style=_TOTAL))
    _print_table((*headers, "agree"), {name: _answer_row(cell) for name, cell in cells.items()}, console)
    print_line(console, Text("\nThe reference answers", style=_TOTAL))
    _print_table(headers, {name: _columns(cell.reference_score) for name, cell in cells.items()}, console)


def _shown(cells: Mapping[str, ModelCell] | Mapping[str, JudgeCell]) -> list[str]:
    """Return the rows of a table: the categories there are, and every mean over several."""
    return [name for name in CELLS if name not in CATEGORIES or cells[name].n]


def _answer_row(cell: JudgeCell) -> tuple[str, ...]:
    agreement = NOT_AVAILABLE if cell.agreement is None else f"{_percent(cell.agreement)}%"
    return (*_columns(cell.gpt_score), agreement)


# --- the lines below --------------------------------------------------------------------------------------


def _notes(comparison: Comparison, say: Cleaner) -> Iterator[tuple[str, str]]:
    """Yield a label and a text for each line below the tables."""
    yield "Samples", _samples(comparison)
    base = comparison.baseline
    others = [run.letter for run in comparison.runs if run.letter != base]
    other = others[0] if len(others) == 1 else "the other"
    if comparison.kind == "models":
        contrasts = set(comparison.contrasts.values())
        plain = "above 0: {run} scored higher than {base}"
        sign = _SIGN.get(contrasts.pop(), plain) if len(contrasts) == 1 else plain
        yield "Sign", sign.format(run=other, base=base)
        yield "Win", f"% of samples on which {other} scored higher than, like, lower than {base}"
        yield "p", _test(comparison)
        yield "Detect", "a true difference this large is found in 80 % of cases: 2.80 standard errors"
    else:
        yield "Judges", _judges(comparison, say)
        yield "Sign", f"above 0: the judge of {other} gave more than that of {base}"
        yield "Agree", "% of samples in which both let model or reference win, or neither"
    yield "95 %", INTERVAL_LABEL
    scores = [one.cells[name].gpt_score for one in comparison.models for name in _shown(one.cells)]
    scores += [one.cells[name].gpt_score for one in comparison.judges for name in _shown(one.cells)]
    if any(score is not None and score.ci95 is None and not score.identical for score in scores):
        yield "", f"{NOT_AVAILABLE} with under 2 clips in a task, too few in all, or no variation"
    if None in scores:
        yield NOT_AVAILABLE, "a mean of categories needs every one of them"


def _samples(comparison: Comparison) -> str:
    of = ", ".join(f"{run.letter}'s {run.samples:,}" for run in comparison.runs)
    text = f"{comparison.samples:,} of {of}"
    if not comparison.left_out:
        return f"{text}; none left out"
    return f"{text}; left out: " + ", ".join(f"{one.samples:,} {one.told()}" for one in comparison.left_out)


def _judges(comparison: Comparison, say: Cleaner) -> str:
    fields = [say(field.told(comparison.baseline)) for field in comparison.judged_differently]
    return "; ".join(fields) or "asked alike: what differs is the judge's own variation"


def _test(comparison: Comparison) -> str:
    tests = _counted(comparison.holm_tests, "test")
    return (
        "sign-flip permutation test, 10,000 draws, one flip per clip. Above the rule: adjusted by Holm "
        f"over {tests}, the categories times the models compared. Below it: outside that family, not adjusted"
    )


# --- words and numbers ------------------------------------------------------------------------------------


def _columns(difference: Difference | None) -> tuple[str, str, str, str]:
    if difference is None:
        return (NOT_AVAILABLE,) * 4
    interval = "identical" if difference.identical else _interval(difference)
    return (
        f"{difference.baseline_mean:.2f}",
        f"{difference.mean:.2f}",
        _signed(difference.value),
        interval,
    )


def _headline(cells: Mapping[str, ModelCell] | Mapping[str, JudgeCell], name: str) -> str:
    everything, difference = cells["all_samples"], cells[name].gpt_score
    scores = [everything.gpt_score]
    if isinstance(everything, JudgeCell):
        scores.append(everything.reference_score)
    if all(score is not None and score.identical for score in scores):
        return "identical on every sample in common"
    if difference is None:
        return f"{_NAMES[name]} {NOT_AVAILABLE}"
    return f"{_NAMES[name]} {'identical' if difference.identical else _signed(difference.value)}"


def _interval(difference: Difference) -> str:
    if difference.ci95 is None:
        return NOT_AVAILABLE
    low, high = difference.ci95
    return f"[{_signed(low)}, {_signed(high)}]"


def _signed(value: float) -> str:
    """Return two decimals with their sign: also where only it is left of a small difference."""
    return f"{value:+.2f}" if value else "0.00"


def _number(value: float | None) -> str:
    return NOT_AVAILABLE if value is None else f"{value:.2f}"


def _p(value: float | None) -> str:
    if value is None:
        return NOT_AVAILABLE
    if value == 1:
        return "1"
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def _rates(cell: ModelCell) -> str:
    rates = (cell.win_rate, cell.tie_rate, cell.loss_rate)
    return NOT_AVAILABLE if None in rates else "/".join(_percent(rate) for rate in rates)


def _percent(share: float | None) -> str:
    return NOT_AVAILABLE if share is None else f"{100 * share:.0f}"


def _percents(interval: tuple[float, float] | None) -> str:
    return "" if interval is None else f" [{_percent(interval[0])}%, {_percent(interval[1])}%]"


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
