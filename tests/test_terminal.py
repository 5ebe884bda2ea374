from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from otoscope.benchmark import TASKS
from otoscope.records import Answer, Failure, FailureKind, Order, Outcome, Reply, Sample, Verdict
from otoscope.reports.terminal import render
from otoscope.scoring import Summary, summarise

BOTH = (Order.REFERENCE_FIRST, Order.ANSWER_FIRST)
HOSTILE = "[bold]x\x1b[31m\r\n\u202e[/bold]"
RUN_PATH = Path("outputs/20261130-101500-qwen2-audio")
PROMPT = {"template": "{question}", "system": None, "part_order": "audio-first"}


FULL_REPORT = """\
qwen2-audio on AIR-Bench Chat: Average 5.00 [4.87, 5.13]
Judged by gpt-4-0125-preview in both orders, default protocol, label baseline

                               score    95% CI ref. win tie  scored/n failed
Speech                          5.00 4.80-5.20 8.00 15% 10%   800/800      0
  speech_QA                     5.00 4.72-5.28 8.00 10% 20%   400/400      0
  speech_dialogue_QA            5.00 4.72-5.28 8.00 20%  0%   400/400      0
Sound                           5.00 4.72-5.28 8.00 18%  4%   500/500      0
  sound_QA                      5.00 4.72-5.28 8.00 20%  0%   400/400      0
  sound_generation_QA           5.00 4.43-5.57 8.00 10% 20%   100/100      0
Music                           5.00 4.70-5.30 8.00 20%  0%   500/500      0
  music_QA                      5.00 4.72-5.28 8.00 20%  0%   400/400      0
  music_generation_analysis_QA  5.00 4.43-5.57 8.00 20%  0%   100/100      0
Mixed audio                     5.00 4.72-5.28 8.00 10% 20%   400/400      0
  speech_and_sound_QA           5.00 4.60-5.40 8.00 10% 20%   200/200      0
  speech_and_music_QA           5.00 4.60-5.40 8.00 10% 20%   200/200      0
────────────────────────────────────────────────────────────────────────────
Average                         5.00 4.87-5.13 8.00 16%  8% 2200/2200      0
All samples                     5.00 4.87-5.13 8.00 16%  8% 2200/2200      0

Intervals 95%, over questions and clips; judge and decoding held fixed
Samples   2,200 scored + 0 failed + 0 pending = 2,200
Position  first place: answer +1.00, reference +1.00; orders disagree in 32%
Judge     4,400 verdicts, '9 7' the most often (260), answer scored 0 in 220, 10
          in 220
Length    answers 22 characters, references 5; correlation with the score within
          tasks +0.00 [-0.04, +0.04]
Tokens    model 1.24M in, 83.6k out; judge 2.48M in, 167k out; over 42 min
Run       outputs/20261130-101500-qwen2-audio
! in 31.8 % of the samples the winner depends on which answer the judge reads
  first"""


def reply(role: str, name: str | None) -> Reply:
    """Return a reply with everything that a good server tells."""
    parameters = {"temperature": 0, "max_tokens": 2048 if role == "model" else 1024}
    usage = {"prompt_tokens": 563, "completion_tokens": 38}
    started = 1_800_000_000.0 if role == "model" else 1_800_002_500.0
    return Reply(text="...", model=name, usage=usage, parameters=parameters, started_at=started, latency=1.3)


def scored(
    task: str,
    number: int,
    answer_score: float,
    reference_score: float = 8,
    *,
    orders: Sequence[Order] = BOTH,
    judge: str = "gpt-4-0125-preview",
) -> Outcome:
    """Return an outcome whose scores are a point better for what stands first."""
    text = f"yes, {task} {number}"
    answer = Answer(raw_text=text, text=text, replies=(reply("model", "qwen2-audio"),))
    verdicts = {
        order: Verdict(
            order=order,
            judge_id="j",
            answer_sha256=answer.sha256,
            score_kind="integer",
            answer_score=answer_score + (order is Order.ANSWER_FIRST),
            reference_score=reference_score + (order is Order.REFERENCE_FIRST),
            replies=(reply("judge", judge),),
        )
        for order in orders
    }
    return Outcome(sample(task, number), answer, verdicts)


def failed(task: str, number: int, kind: FailureKind = FailureKind.BAD_AUDIO) -> Outcome:
    """Return an outcome without an answer."""
    return Outcome(sample(task, number), Failure(kind, "a message"))


def pending(task: str, number: int, *, answered: bool = False) -> Outcome:
    """Return an outcome that the run still owes something."""
    answer = Answer(raw_text="yes", text="yes", replies=(reply("model", "qwen2-audio"),))
    return Outcome(sample(task, number), answer if answered else None)


def sample(task: str, number: int) -> Sample:
    """Return one sample of a task."""
    dataset = TASKS[task].folders[0]
    return Sample(task, dataset, f"{number}.wav", number, "What?", "That.", "{}", f"/{number}.wav", "0")


def full_run() -> list[Outcome]:
    """Return outcomes of all 2,200 samples."""
    return [
        scored(task.name, number, (number * 7 + len(task.name)) % 10, 7 + number % 2)
        for task in TASKS.values()
        for number in range(task.samples)
    ]


def a_few(tasks: Iterable[str] = TASKS, each: int = 10) -> list[Outcome]:
    """Return the first outcomes of each task, all scored."""
    return [scored(task, number, number % 9) for task in tasks for number in range(each)]


def all_failed() -> list[Outcome]:
    """Return the outcomes of a run that scored nothing."""
    kinds = {"speech_QA": FailureKind.TIMEOUT}
    return [
        failed(task, number, kinds.get(task, FailureKind.MISSING_AUDIO))
        for task in TASKS
        for number in (1, 2)
    ]


def summary_of(
    outcomes: Iterable[Outcome],
    *,
    orders: Sequence[Order] = BOTH,
    judge: Mapping[str, Any] | None = {"name": "gpt-4-0125-preview", "protocol": "default"},
    model: str = "qwen2-audio",
    label: str | None = None,
    prompt: Mapping[str, Any] = PROMPT,
    limit: int | None = None,
) -> Summary:
    """Return the summary of these outcomes in a run with these settings."""
    manifest = {
        "fingerprint": {"model": {"name": model}, "judge": judge, "prompt": prompt},
        "label": label,
        "selection": {"limit": limit, "shuffle": False},
    }
    return summarise(outcomes, orders=orders, manifest=manifest)


def shown(
    summary: Summary, *, run_path: Path | None = None, width: int = 80, height: int | None = None
) -> list[str]:
    """Return the lines of the report without colours: in a file, or in a window of a height."""
    window = height is not None
    console = Console(
        file=io.StringIO(), width=width, height=height, force_terminal=window, color_system=None
    )
    render(summary, console, run_path=run_path)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def header(lines: Sequence[str]) -> list[str]:
    """Return the headings of the table."""
    return next(line for line in lines if line.split()[:1] == ["score"]).split()


def row(lines: Sequence[str], name: str) -> list[str]:
    """Return what the table shows for a name."""
    return next(line for line in lines if re.match(rf" *{name}  ", line)).split(name)[1].split()


def test_a_full_run_shows_every_task() -> None:
    """In a file, and in a tall window, all eight tasks have their rows."""
    summary = summary_of(full_run(), label="baseline")
    lines = shown(summary, run_path=RUN_PATH)
    assert "\n".join(lines) == FULL_REPORT
    assert max(map(len, lines)) <= 80
    assert [line.rstrip() for line in shown(summary, run_path=RUN_PATH, height=34)] == lines


def test_a_full_run_fits_on_a_screen_of_24_lines_at_80_columns() -> None:
    """The five means with intervals, counts, the judge and the run's path take 24 lines, warnings aside."""
    lines = shown(summary_of(full_run(), label="baseline"), run_path=RUN_PATH, height=24)
    first_warning = next(number for number, line in enumerate(lines) if line.startswith("! "))
    assert first_warning <= 24
    assert max(map(len, lines)) <= 80
    assert not any("speech_QA" in line for line in lines)
    assert row(lines, "Average")[:2] == ["5.00", "4.87-5.13"]


def test_failures_of_a_full_run_are_named_by_kind_and_counted_in_their_rows() -> None:
    """Three failures change no row's sum, and the weighted mean tells what they do to the shares."""
    outcomes = full_run()
    outcomes[5] = failed("speech_QA", 5)
    outcomes[500] = failed("speech_dialogue_QA", 100)
    outcomes[2100] = failed("speech_and_music_QA", 100, FailureKind.TIMEOUT)
    lines = shown(summary_of(outcomes))
    assert row(lines, "speech_QA")[-2:] == ["399/400", "1"]
    assert row(lines, "All samples")[-2:] == ["2197/2200", "3"]
    assert "Samples   2,197 scored + 3 failed (bad_audio 2, timeout 1) + 0 pending = 2,200" in lines
    assert "Partial   not the full set's shares of tasks; with those: All samples 5.00" in lines


def test_a_run_of_one_category_has_it_as_headline_and_says_why_the_average_is_not_available() -> None:
    """The Average is n/a with its reason, and the category's mean stands in the first line."""
    lines = shown(summary_of(a_few(["speech_QA"])))
    assert lines[0] == "qwen2-audio on AIR-Bench Chat: Speech 4.10 [2.04, 6.16]"
    assert row(lines, "Average")[:2] == ["n/a", "n/a"]
    assert "Average   n/a because it needs a score in Sound, Music and Mixed audio too" in lines


def test_nothing_is_ever_shown_as_nan_or_none() -> None:
    """What is not available reads n/a in every kind of run."""
    for outcomes in (a_few(["speech_QA"]), a_few(["music_QA", "speech_and_sound_QA"]), [], all_failed()):
        text = "\n".join(shown(summary_of(outcomes), run_path=RUN_PATH))
        assert "n/a" in text
        assert "nan" not in text.lower()
        assert "None" not in text


def test_a_mean_under_full_coverage_has_its_lower_bound_beside_it() -> None:
    """Where over 1 % of the samples failed, the mean with these as 0 stands next to the mean."""
    outcomes = a_few()
    outcomes[:5] = [failed("speech_QA", number) for number in range(5)]
    lines = shown(summary_of(outcomes))
    assert header(lines)[:4] == ["score", "95%", "CI", "least"]
    assert row(lines, "speech_QA")[::2][:2] == ["5.70", "2.85"]
    assert row(lines, "sound_QA")[::2][:2] == ["4.10", "8.50"], "a mean over everything has no bound"
    first = " ".join(lines[:2])
    assert re.search(r"Average 4.23 \[[0-9.]+, [0-9.]+\] \(at least 3.94, 4.30 with full weights\)", first)
    assert "Failed    5 at the answer; each one's reason is in samples.jsonl" in lines


def test_a_partial_run_says_so_and_shows_the_means_with_full_weights() -> None:
    """A limit changes the tasks' shares: the full set's weights give a second mean, shown beside."""
    outcomes = [
        scored(task, number, 4 if "generation" in task else 6) for task in TASKS for number in range(4)
    ]
    lines = shown(summary_of(outcomes, limit=4))
    assert lines[0] == "qwen2-audio on AIR-Bench Chat: Average 6.00 (6.30 with full weights)"
    text = " ".join(" ".join(lines).split())
    assert (
        "Partial not the full set's shares of tasks; with those: "
        "Sound 6.10, Music 6.10, Average 6.30, All samples 6.32" in text
    )
    assert "! first 4 of each task, not a random sample" in lines


def test_counts_of_every_row_add_up_while_samples_are_pending() -> None:
    """Scored + failed + pending = n, in each row and in the line below."""
    outcomes = full_run()
    outcomes[:300] = [failed("speech_QA", number) for number in range(300)]
    outcomes[2000:2010] = [pending("speech_and_music_QA", number) for number in range(10)]
    lines = shown(summary_of(outcomes))
    assert max(map(len, lines)) <= 80
    assert header(lines)[-3:] == ["scored/n", "failed", "pending"]
    for name in ("Speech", "speech_QA", "sound_QA", "speech_and_music_QA", "Average", "All samples"):
        of_n, *others = row(lines, name)[-3:]
        done, n = map(int, of_n.split("/"))
        assert done + sum(map(int, others)) == n
    assert "Samples   1,890 scored + 300 failed (bad_audio 300) + 10 pending = 2,200" in lines


def test_a_run_without_a_judge_shows_its_counts_and_the_next_step() -> None:
    """What was only answered is said to be not judged, without a table of n/a."""
    outcomes = [pending(task, number, answered=True) for task in TASKS for number in range(2)]
    lines = shown(summary_of([*outcomes, failed("sound_QA", 9)], judge=None), run_path=Path("a run"))
    assert lines[:8] == [
        "qwen2-audio on AIR-Bench Chat: not judged",
        "No judge was asked",
        "",
        "Samples   0 scored + 1 failed (bad_audio 1) + 16 pending = 17; 16 answered",
        "Failed    1 at the answer; each one's reason is in samples.jsonl",
        "Tokens    model 9.01k in, 608 out; over 1 s",
        "Run       a run",
        "Next      otoscope judge 'a run'",
    ]


def test_the_path_and_the_command_are_never_broken() -> None:
    """What is there to be copied stays one line, however long it is."""
    path = Path("/scratch") / ("x" * 100)
    outcomes = [pending("sound_QA", 1, answered=True)]
    lines = shown(summary_of(outcomes, judge=None), run_path=path)
    assert f"Run       {path}" in lines
    assert f"Next      otoscope judge {path}" in lines


def test_a_run_in_which_everything_failed_says_why_by_kind() -> None:
    """The means are n/a with the reason, and the failures are named by kind and stage."""
    lines = shown(summary_of(all_failed()))
    assert lines[0] == "qwen2-audio on AIR-Bench Chat: Average n/a"
    assert "Scores    n/a because every sample failed" in lines
    assert "Samples   0 scored + 16 failed (missing_audio 14, timeout 2) + 0 pending = 16" in lines
    assert header(lines) == ["score", "scored/n", "failed"]


def test_a_prompt_that_is_not_the_benchmarks_comes_first() -> None:
    """Nothing below it means the same, so it stands above everything, and once."""
    lines = shown(summary_of(full_run(), prompt={**PROMPT, "system": "Be brief."}))
    assert lines[0] == "! the model's prompt is not the benchmark's"
    assert sum("not the benchmark's" in line for line in lines) == 1


def test_one_order_only_is_said_at_the_top() -> None:
    """Without the swap, the judge's line says which order was judged, and the effect is n/a."""
    outcomes = [scored("speech_QA", 1, 5, orders=BOTH[:1])]
    lines = shown(summary_of(outcomes, orders=BOTH[:1]))
    assert lines[1] == "Judged by gpt-4-0125-preview in one order only (the reference first), default"
    assert "Position  n/a, since it takes both orders" in lines


def test_names_that_the_servers_returned_are_shown_where_they_differ() -> None:
    """A judge that answers under another name is named with both, and several with their counts."""
    one = shown(summary_of([scored("speech_QA", 1, 5, judge="gpt-4-turbo")]), width=120)
    assert one[1] == (
        "Judged by gpt-4-0125-preview (the server says gpt-4-turbo) in both orders, default protocol"
    )
    several = [scored("speech_QA", number, 5, judge="ab"[number // 2]) for number in range(3)]
    lines = shown(summary_of(several, model="qwen"), width=120)
    assert lines[0].startswith("qwen (the server says qwen2-audio) on AIR-Bench Chat")
    assert "(the server says a 4 times, b 2 times)" in lines[1]


def test_parameters_that_are_not_the_protocols_are_shown() -> None:
    """What the server made us change, or the user asked for, is told as it was sent."""
    changed = replace(reply("model", "m"), parameters={"max_completion_tokens": 2048, "stop": ["\x1b[2J"]})
    outcome = scored("speech_QA", 1, 5)
    assert isinstance(outcome.answer, Answer)
    outcome = replace(outcome, answer=replace(outcome.answer, replies=(changed,)))
    lines = shown(summary_of([outcome]))
    assert r'Sent      to the model: max_completion_tokens 2048, stop ["\u001b[2J"]' in lines
    assert not any("to the judge" in line for line in lines)


def test_hostile_names_cannot_style_or_steer_the_terminal() -> None:
    """Control characters are gone and markup is plain text, wherever the text came from."""
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system="truecolor")
    outcomes = [scored("speech_QA", 1, 5, judge=HOSTILE), scored("speech_QA", 2, 5, judge="b" + HOSTILE)]
    render(summary_of(outcomes, model=HOSTILE, label=HOSTILE), console, run_path=Path(HOSTILE))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "[bold]x [31m [/bold]" in text
    assert not {"\r", "\u202e", "\x1b[31m"} & set(re.findall(r"\x1b\[[0-9;]*[A-Za-z]|[^ -~\n]", text))


def test_a_terminal_without_unicode_gets_ascii() -> None:
    """Neither the rule nor a name that the encoding lacks stops the report."""
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    render(
        summary_of(a_few(), model="modèle", label="日本"), Console(file=file, width=80, force_terminal=False)
    )
    file.seek(0)
    text = file.read()
    assert text.startswith("mod\\xe8le (the server says qwen2-audio) on AIR-Bench Chat")
    assert "-" * 70 in text


def test_a_narrow_terminal_loses_rates_before_counts() -> None:
    """Columns that follow from others go first; the mean and its counts never do."""
    lines = shown(summary_of(full_run()), width=60)
    assert header(lines) == ["score", "95%", "CI", "scored/n"]
    lines = shown(summary_of(full_run()), width=40)
    assert header(lines) == ["score", "95%", "CI", "scored/n"]


@pytest.mark.parametrize("no_color", [False, True])
def test_colours_only_on_a_terminal_that_wants_them(no_color: bool) -> None:
    """A file gets no control sequence at all, and a terminal with NO_COLOR gets bold but no colour."""
    assert "\x1b" not in "".join(shown(summary_of(a_few())))
    console = Console(
        file=io.StringIO(), width=80, force_terminal=True, color_system="standard", no_color=no_color
    )
    render(summary_of(a_few()), console)
    assert isinstance(console.file, io.StringIO)
    headline = console.file.getvalue().splitlines()[0]
    assert "\x1b[1m" in headline
    assert ("\x1b[1;36m" in headline) is not no_color
