"""Control runs: marked in every format, never ranked, and compared for what the audio contributes."""

from __future__ import annotations

import csv
import html
import io
import json
import re
import zipfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

from otoscope.benchmark import TASKS
from otoscope.bundle import export_bundle
from otoscope.choices import CONTROLS
from otoscope.comparison import Comparison, JudgedRun, compare
from otoscope.config import TaskConfig
from otoscope.errors import ConfigError
from otoscope.exporting import export_run
from otoscope.judging import judge_runs
from otoscope.leaderboard import Row, leaderboard
from otoscope.records import Order
from otoscope.reports.charts import charts_of, difference_chart, trend_chart
from otoscope.reports.comparison import render as render_comparison
from otoscope.reports.csv_files import samples_csv, scores_csv
from otoscope.reports.html import compared, render_html
from otoscope.reports.latex import render_latex
from otoscope.reports.leaderboard import render as render_board
from otoscope.reports.leaderboard import to_csv, to_json, to_markdown
from otoscope.reports.markdown import render_markdown
from otoscope.reports.reported import control_first
from otoscope.reports.terminal import render
from otoscope.scoring import CONTROL_WARNINGS
from otoscope.store import MANIFEST, RunStore, read_manifest
from otoscope.texts import LANGUAGES, catalogue
from tests.report_runs import (
    Ended,
    a_sample,
    control_run,
    judged,
    reported,
    small_run,
    write_run,
)
from tests.scripted_server import ScriptedServer, scripted_answers
from tests.support import otoscope

NOW = "2026-11-30 12:00 UTC"
MARKS = {
    language: {control: catalogue(language)(f"warning.{name}") for control, name in CONTROL_WARNINGS.items()}
    for language in LANGUAGES
}
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(params=CONTROLS)
def control(request: pytest.FixtureRequest) -> str:
    """Give each control."""
    return str(request.param)


@pytest.fixture(params=LANGUAGES)
def language(request: pytest.FixtureRequest) -> str:
    """Give each language."""
    return str(request.param)


def flat(text: str) -> str:
    """Return a text without the breaks of its lines."""
    return re.sub(r"\s+", " ", text)


def terminal(path: Path, language: str = "en") -> str:
    """Return a run's report as a terminal of 80 columns shows it."""
    stream = io.StringIO()
    render(reported(path).summary, Console(file=stream, width=80), language=language)
    return stream.getvalue()


def scored(lead: int = 0) -> list[Ended]:
    """Return four samples of each task, all scored, with ``lead`` points more in half of them."""
    return [
        judged(
            a_sample(n, task), f"Answer {n}, {lead}.", (2 + n % 3 + lead * ((n // len(TASKS)) % 2 == 0), 8)
        )
        for n, task in enumerate(list(TASKS) * 4)
    ]


# --- marked in every format -------------------------------------------------------------------------------


def test_the_terminal_says_so_first(tmp_path: Path, control: str, language: str) -> None:
    """In the first line, and once more before the score."""
    shown = terminal(control_run(tmp_path / "run", control), language)
    first, *_ = shown.split("qwen2-audio", 1)
    assert flat(first).replace(" ", "") == f"!{MARKS[language][control]}".replace(" ", "")
    assert catalogue(language)(f"control.{control}") in flat(shown)
    assert all(len(line) <= 80 for line in shown.splitlines())


def test_tables_for_papers_say_so_in_the_caption(tmp_path: Path, control: str, language: str) -> None:
    """The caption begins with it, an evaluation never shares the table, and the appendix names it."""
    runs = [reported(write_run(tmp_path / "run", small_run(), label="evaluated"))]
    runs.append(reported(control_run(tmp_path / "control", control, label="heard nothing")))
    say = catalogue(language)
    for appendix in (False, True):
        text = render_markdown(runs, say, appendix=appendix)
        assert text.count(MARKS[language][control]) == (2 if appendix else 1)
        before, after = text.split(MARKS[language][control], 1)
        assert "| evaluated |" in before
        assert "heard nothing |" not in before
        assert after.index("| heard nothing |") < (after.index("#") if appendix else len(after))
    assert say("control.name", name="heard nothing", control=say(f"control.{control}")) in text
    tex = render_latex(runs, say, appendix=False)
    assert tex.count(f"[AIR-Bench Chat ({catalogue()(f'control.{control}')})]") == 1
    if language == "en":
        assert f"{{{MARKS['en'][control]}." in tex


def test_csv_and_json_have_it_in_every_line(tmp_path: Path, control: str) -> None:
    """A column of both files, and a name of the summary; an evaluation has an empty one."""
    paths = {
        control: control_run(tmp_path / "control", control),
        "": write_run(tmp_path / "run", small_run()),
    }
    for name, path in paths.items():
        run = reported(path)
        for text in ("".join(samples_csv(run)), scores_csv([run])):
            rows = list(csv.DictReader(io.StringIO(text)))
            assert {row["control"] for row in rows} == {name}
        assert (run.summary.to_json()["control"] or "") == name
        kept = [json.loads(line) for line in (path / "samples.jsonl").read_text("utf-8").splitlines()]
        assert {line["control"] or "" for line in kept} == {name}


def test_the_page_has_a_banner_and_a_title(tmp_path: Path, control: str, language: str) -> None:
    """Above everything else; it can be switched to the other language, and the title says it too."""
    run = reported(control_run(tmp_path / "run", control))
    text = render_html([run], language=language, figures={}, now=NOW)
    say = catalogue(language)
    named = say("control.name", name=run.name, control=say(f"control.{control}"))
    assert f"<title>{named} · AIR-Bench Chat</title>" in html.unescape(text)
    main = text[text.index("<main") :]
    before_title = main[: main.index("<h1")]
    assert f'data-text="warning.{CONTROL_WARNINGS[control]}"' in before_title
    assert "control-run" in before_title
    assert f'data-text="control.{control}"' in main[main.index("<h1") : main.index("</h1>")]
    assert 'class="own"' not in main


def test_the_page_of_an_evaluation_has_none(tmp_path: Path) -> None:
    """And its row stands among the published ones, where a control's does not."""
    text = render_html(
        [reported(write_run(tmp_path / "run", small_run()))], language="en", figures={}, now=NOW
    )
    assert "control" not in text[text.index("<main") : text.index("</main>")]
    assert 'class="own"' in text


def test_a_page_of_several_runs_says_which_is_one(tmp_path: Path) -> None:
    """By name at the top, and above its own table."""
    runs = [reported(write_run(tmp_path / f"{n}", small_run(), label=f"run {n}")) for n in range(2)]
    runs.append(reported(control_run(tmp_path / "c", "silence", label="deaf")))
    text = render_html(runs, language="en", figures={}, now=NOW)
    main = text[text.index("<main") :]
    head = main[: main.index("<h1")]
    assert "<bdi>deaf</bdi>: " in head
    assert "run 0" not in head
    table = main.index('class="control-run"', main.index("<h1"))
    assert main.index("run 1</bdi>") < table < main.index("deaf</bdi>", main.index("<h1"))


@pytest.mark.parametrize(("control", "language"), [("silence", "en"), ("shuffled", "zh")])
def test_every_figure_says_so(tmp_path: Path, control: str, language: str) -> None:
    """In its title, and in the drawing itself, which a paper takes without its title."""
    run = reported(control_run(tmp_path / "run", control))
    said = catalogue(language)(f"control.{control}")
    charts = charts_of(run, language=language)
    assert set(charts) == {"categories", "distribution", "orders", "length", "failures", "timing"}
    for name, chart in charts.items():
        drawn = ET.fromstring(chart)  # noqa: S314 (our own)
        assert said in (drawn.findtext(f"{SVG}title") or ""), name
        texts = [element for element in drawn.iter(f"{SVG}text") if element.text == said]
        assert len(texts) == 1, name
        height = float(str(drawn.get("viewBox")).split()[3])
        place = float(str(texts[0].get("y")))
        others = [float(str(one.get("y", height))) for one in drawn.iter(f"{SVG}text") if one is not texts[0]]
        assert 0 < place < min(others), name


def test_a_figure_is_not_changed_otherwise(tmp_path: Path) -> None:
    """What is drawn keeps its shape: only the line above is added."""
    own = charts_of(reported(write_run(tmp_path / "run", small_run())), language="en")
    control = charts_of(reported(control_run(tmp_path / "c", "silence")), language="en")
    for name in ("distribution", "orders", "failures", "timing"):
        shapes = [re.findall(r'class="(\w+)"', charts[name]) for charts in (own, control)]
        assert shapes[0] == shapes[1], name
        heights = [
            float(re.findall(r'viewBox="0 0 [\d.]+ ([\d.]+)"', charts[name])[0]) for charts in (own, control)
        ]
        assert heights[1] - heights[0] == pytest.approx(0.22 * 72, abs=0.5), name


def test_a_trend_does_not_join_controls_and_evaluations(tmp_path: Path) -> None:
    """They are lines of their own, and named; a trend of controls alone says so above."""
    evaluated = [
        reported(write_run(tmp_path / f"e{step}", scored(), tags={"step": str(step)})) for step in (1, 2)
    ]
    controls = [
        reported(control_run(tmp_path / f"c{step}", "silence", scored(), tags={"step": str(step)}))
        for step in (1, 2)
    ]
    mixed = str(trend_chart([*evaluated, *controls], "step", language="en"))
    assert "judged by gpt-4-0125-preview (control run: silent clips)" in mixed
    alone = str(trend_chart(controls, "step", language="en"))
    assert ">control run: silent clips<" in alone
    assert "control" not in str(trend_chart(evaluated, "step", language="en"))


# --- the leaderboard --------------------------------------------------------------------------------------


def test_a_control_is_never_ranked(tmp_path: Path, control: str) -> None:
    """It stands below in a part of its own, without a rank, with the mark in every format."""
    control_run(tmp_path / "control", control, scored(2), label="deaf")
    write_run(tmp_path / "run", scored(), label="heard")
    board = leaderboard(tmp_path)
    rows = {row.label: row for group in board.groups for row in group.rows if row.path}
    assert (rows["deaf"].rank, rows["deaf"].control) == (None, control)
    assert str(rows["deaf"].partial).startswith(MARKS["en"][control])
    assert rows["heard"].control is None
    stream = io.StringIO()
    render_board(board, Console(file=stream, width=100))
    for text in (stream.getvalue(), to_markdown(board)):
        assert f"CONTROL ({control})" in flat(text).replace("\\", "")
        assert text.index("Apart, without a rank") < text.index("Controls, not evaluations")
        assert text.index("Controls, not evaluations") < text.index("deaf")
        assert MARKS["en"][control] in flat(text)
    of_csv = {row["label"]: row for row in csv.DictReader(io.StringIO(to_csv(board)))}
    assert (of_csv["deaf"]["control"], of_csv["heard"]["control"]) == (control, "")
    of_json = [row for group in to_json(board)["groups"] for row in group["rows"] if row["label"] == "deaf"]
    assert (of_json[0]["control"], of_json[0]["rank"]) == (control, None)


def test_controls_can_be_asked_for(tmp_path: Path) -> None:
    """By name."""
    for name in CONTROLS:
        control_run(tmp_path / name, name)
    board = leaderboard(tmp_path, where=[("control", "silence")])
    rows: list[Row] = [row for group in board.groups for row in group.rows]
    assert [row.control for row in rows] == ["silence"]


# --- compare ----------------------------------------------------------------------------------------------


def comparison(*paths: Path, baseline: int | None = None) -> Comparison:
    """Compare runs that are stored."""
    runs = []
    for path in paths:
        with RunStore.open(path) as store:
            outcomes = list(store.outcomes(store.samples(), store.manifest.get("judge_id")))
            runs.append(JudgedRun(path.name, store.manifest, tuple(Order), outcomes))
    return compare(runs, baseline=baseline)


def shown(comparison: Comparison) -> str:
    """Return a comparison as a terminal of 80 columns shows it, on one line."""
    stream = io.StringIO()
    render_comparison(comparison, Console(file=stream, width=80))
    assert all(len(line) <= 80 for line in stream.getvalue().splitlines())
    return flat(stream.getvalue())


def test_an_evaluation_less_its_control_is_what_the_audio_contributes(tmp_path: Path, control: str) -> None:
    """Whichever is named first, the control is the baseline, and all samples are paired."""
    evaluation = write_run(tmp_path / "evaluation", scored(2))
    other = control_run(tmp_path / "control", control, scored())
    for paths in ((evaluation, other), (other, evaluation)):
        found = comparison(*paths)
        assert found.run(found.baseline).control == control
        assert (found.samples, found.left_out) == (32, ())
        assert set(found.contrasts.values()) == {"audio"}
        (difference,) = found.models
        score = difference.cells["average"].gpt_score
        assert score is not None
        assert score.value == pytest.approx(1.0)
        text = shown(found)
        assert f"! {found.baseline}: {MARKS['en'][control]}" in text
        assert "What the audio contributes (evaluation - control) on AIR-Bench Chat" in text
        assert "what the audio contributes: Average +1.00" in text
        assert not {"prompt", "control_of_another"} & {warning["name"] for warning in found.warnings}
        stored = found.to_json()
        assert {run["control"] for run in stored["runs"]} == {None, control}
        assert list(stored["contrasts"].values()) == ["audio"]


def test_clips_are_the_samples_own_in_a_comparison(tmp_path: Path) -> None:
    """What varies is the clip that was asked about, as in the evaluation, whatever was sent."""
    evaluation = write_run(tmp_path / "evaluation", scored(2))
    intervals = set()
    for name in CONTROLS:
        found = comparison(evaluation, control_run(tmp_path / name, name, scored()))
        score = found.models[0].cells["average"].gpt_score
        assert score is not None
        assert found.clips == 16
        intervals.add(score.ci95)
    assert len(intervals) == 1


def test_a_baseline_that_is_asked_for_stays_one(tmp_path: Path) -> None:
    """Then the difference is what is lost without the audio."""
    evaluation = write_run(tmp_path / "evaluation", scored(2))
    found = comparison(evaluation, control_run(tmp_path / "control", "silence", scored()), baseline=0)
    assert found.contrasts == {"B": "without_audio"}
    assert "What is lost without the audio (control - evaluation)" in shown(found)
    assert "B, which was not sent the clips, scored higher than A, which was" in shown(found)


def test_controls_can_be_compared_with_each_other(tmp_path: Path) -> None:
    """Of two kinds, of one kind (two models), and several with one evaluation."""
    silent = control_run(tmp_path / "silent", "silence", scored())
    shuffled = control_run(tmp_path / "shuffled", "shuffled", scored(1))
    assert comparison(silent, shuffled).contrasts == {"B": "controls"}
    assert "Controls compared on AIR-Bench Chat" in shown(comparison(silent, shuffled))
    tuned = control_run(tmp_path / "tuned", "silence", scored(1), model={"name": "tuned"})
    assert comparison(silent, tuned).contrasts == {"B": "same_control"}
    assert "Models compared in a control" in shown(comparison(silent, tuned))
    evaluation = write_run(tmp_path / "evaluation", scored(2))
    several = comparison(evaluation, silent, shuffled)
    assert several.baseline == "A"
    assert several.contrasts == {"B": "without_audio", "C": "without_audio"}


def test_a_control_of_another_model_says_nothing_of_this_one(tmp_path: Path) -> None:
    """It is compared, and not called the audio's contribution."""
    evaluation = write_run(tmp_path / "evaluation", scored(2))
    other = control_run(tmp_path / "control", "silence", scored(), model={"name": "another"})
    found = comparison(evaluation, other)
    assert found.contrasts == {"A": "mixed"}
    assert "control_of_another" in {warning["name"] for warning in found.warnings}
    assert "what the audio contributes:" not in shown(found)


def test_equal_answers_with_and_without_audio_are_no_comparison_of_judges(tmp_path: Path) -> None:
    """A model that never listens answers alike: that is a difference of 0, the models' own."""
    ended = scored()
    found = comparison(
        write_run(tmp_path / "evaluation", ended), control_run(tmp_path / "c", "silence", ended)
    )
    assert found.kind == "models"
    assert "what the audio contributes: identical on every sample in common" in shown(found)


def test_judges_of_a_controls_answers_are_compared_as_judges(tmp_path: Path) -> None:
    """And the title says that the answers are a control's."""
    ended = scored()
    judges = [control_run(tmp_path / name, "silence", ended, judge={"name": name}) for name in ("one", "two")]
    found = comparison(*judges)
    assert found.kind == "judges"
    assert "Judges of the same answers of a control compared" in shown(found)


def test_a_page_of_two_puts_the_control_first(tmp_path: Path, language: str) -> None:
    """So that B less A is what the audio contributes; the heading says it."""
    evaluation = reported(write_run(tmp_path / "evaluation", scored(2)))
    other = reported(control_run(tmp_path / "control", "shuffled", scored()))
    pair = control_first([evaluation, other])
    assert [run.summary.control for run in pair] == ["shuffled", None]
    assert control_first([other, evaluation]) == pair
    assert control_first([evaluation, evaluation, other]) == [evaluation, evaluation, other]
    text = render_html(pair, language=language, figures={}, now=NOW)
    main = text[text.index("<main") :]
    assert 'data-text="html.contrast.audio"' in main
    assert 'data-text="warning.control_shuffled"' in main
    found = compared(pair)
    assert isinstance(found, Comparison)
    say = catalogue(language)
    chart = ET.fromstring(difference_chart(found, language=language))  # noqa: S314 (our own)
    assert say("control.shuffled") in (chart.findtext(f"{SVG}title") or "")


def test_the_commands_say_so(tmp_path: Path) -> None:
    """As processes: report, compare and the refusal to export."""
    evaluation = write_run(tmp_path / "evaluation", scored(2))
    other = control_run(tmp_path / "control", "no-audio", scored())
    done = otoscope("compare", str(evaluation), str(other), cwd=tmp_path)
    assert done.returncode == 0
    assert "What the audio contributes" in done.stdout
    page = tmp_path / "two.html"
    done = otoscope(
        "report", str(evaluation), str(other), "--format", "html", "--output", str(page), cwd=tmp_path
    )
    assert done.returncode == 0
    assert "html.contrast.audio" in page.read_text("utf-8")
    done = otoscope("export", str(other), "--to", "official", cwd=tmp_path)
    assert done.returncode == 2
    assert "control run (--control no-audio)" in done.stderr
    assert "--force-control" in done.stderr
    assert not (tmp_path / "official").exists()
    done = otoscope("export", str(other), "--to", "official", "--force-control", cwd=tmp_path)
    assert done.returncode == 0
    assert "files of a control run (--control no-audio)" in done.stderr
    assert (tmp_path / "official" / "chat_score.json").exists()
    done = otoscope("export", str(other), "--bundle", "x.zip", "--force-control", cwd=tmp_path)
    assert done.returncode == 2
    assert "a bundle keeps the mark" in done.stderr


# --- passed on --------------------------------------------------------------------------------------------


def test_official_files_of_a_control_are_refused(tmp_path: Path, control: str) -> None:
    """Nothing in them would tell it from an evaluation; asked for twice they are written, and told."""
    run = control_run(tmp_path / "run", control)
    with pytest.raises(ConfigError, match="taken for an evaluation"):
        export_run(run, tmp_path / "official")
    exported = export_run(run, tmp_path / "official", control=True)
    assert (exported.control, exported.rows["Chat_result_modelx.jsonl"]) == (control, 32)
    assert export_run(write_run(tmp_path / "e", small_run()), tmp_path / "o").control is None


@pytest.mark.parametrize("with_data", [True, False])
def test_a_bundle_keeps_it(tmp_path: Path, control: str, with_data: bool) -> None:
    """Manifest, lines and numbers: the unpacked run is marked like its source, and compares with it."""
    run = control_run(tmp_path / "run", control)
    bundled = export_bundle(run, tmp_path / "run.zip", with_data=with_data)
    with zipfile.ZipFile(bundled.file) as file:
        file.extractall(tmp_path / "unpacked")
    copy = tmp_path / "unpacked" / bundled.folder
    before, after = (reported(path).summary for path in (run, copy))
    assert after.control == control
    assert after.audio == before.audio
    assert MARKS["en"][control] in flat(terminal(copy))
    kept = [json.loads(line)["clip"] for line in (copy / "answers.jsonl").read_text("utf-8").splitlines()]
    told: list[Any] = [
        json.loads(line)["clip"] for line in (run / "answers.jsonl").read_text("utf-8").splitlines()
    ]
    assert kept == told


def test_another_judges_copy_keeps_it(tmp_path: Path) -> None:
    """Its manifest has the answers' own prompt, and so the mark."""
    run = control_run(tmp_path / "run", "silence", scored())
    with ScriptedServer(scripted_answers()) as server:
        asked = {"model_id": "other-judge", "api_url": server.url, "api_key": "k"}
        (judged_run,) = judge_runs([run], TaskConfig(judge_model_args=asked), environ={})
    assert judged_run.path != run
    assert read_manifest(judged_run.path / MANIFEST)["fingerprint"]["prompt"]["control"] == "silence"
    assert (judged_run.summary.control, judged_run.summary.judge) == ("silence", "other-judge")
    assert MARKS["en"]["silence"] in flat(terminal(judged_run.path))
