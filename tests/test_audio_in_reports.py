"""The audio policy in every format: what it is, in the first lines, and what it did."""

from __future__ import annotations

import base64
import csv
import html
import io
import json
import re
import zipfile
import zlib
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from rich.console import Console

from otoscope.bundle import export_bundle
from otoscope.leaderboard import leaderboard
from otoscope.records import Failure, FailureKind
from otoscope.reports.charts import charts_of
from otoscope.reports.csv_files import samples_csv, scores_csv
from otoscope.reports.html import render_html
from otoscope.reports.latex import render_latex
from otoscope.reports.markdown import render_markdown
from otoscope.reports.reported import Reported
from otoscope.reports.terminal import render
from otoscope.texts import LANGUAGES, catalogue
from tests.report_runs import (
    CONVERTER,
    POLICY,
    Ended,
    control_run,
    reported,
    small_run,
    truncated,
    write_run,
)
from tests.test_summary_schema import SCHEMA

NOW = "2026-11-30 12:00 UTC"


def skipped_run() -> list[Ended]:
    """Return a run in which the policy left out two clips."""
    ended = small_run()
    for number in (5, 6):
        over = Failure(FailureKind.OVER_LIMIT, "clip.wav: lasts 45 s, and the audio policy takes 4 s", 0)
        ended[number] = (ended[number][0], over, {})
    return ended


@pytest.fixture
def policy_run(tmp_path: Path) -> Reported:
    """Give a run of 32 samples: 29 with an answer, whose clips are 1 to 9 s long and were cut at 4 s."""
    prompt = {"audio_policy": POLICY}
    return reported(write_run(tmp_path / "policy", skipped_run(), facts=truncated, prompt=prompt))


@pytest.fixture(params=LANGUAGES)
def language(request: pytest.FixtureRequest) -> str:
    """Give each language."""
    return str(request.param)


def flat(text: str) -> str:
    """Return a text without the breaks of its lines, which may be within a long word."""
    return re.sub(r"\s+", "", text)


def terminal(run: Reported, language: str = "en") -> str:
    """Return a run's report as a terminal of 80 columns shows it."""
    stream = io.StringIO()
    render(run.summary, Console(file=stream, width=80), language=language)
    assert all(len(line) <= 80 for line in stream.getvalue().splitlines())
    return stream.getvalue()


def test_the_numbers_are_in_the_summary(policy_run: Reported) -> None:
    """As the schema describes them, and no name is missing from it."""
    summary = json.loads(json.dumps(policy_run.summary.to_json(), allow_nan=False))
    Draft202012Validator(SCHEMA).validate(summary)
    assert set(summary["audio"]) == set(SCHEMA["properties"]["audio"]["properties"])
    lengths = [1.0 + number // 2 % 9 for number in range(32) if number not in (3, 5, 6)]
    assert summary["audio"] == {
        "policy": POLICY,
        "clips": 29,
        "changed": 29,
        "shortened": sum(length > 4 for length in lengths),
        "resampled": 29,
        "mixed_down": 29,
        "encoded": 0,
        "skipped": 2,
        "seconds": sum(lengths),
        "seconds_cut": sum(max(0.0, length - 4) for length in lengths),
        "converters": {CONVERTER: 29},
    }
    assert list(summary).index("audio") < 8


@pytest.mark.parametrize(
    ("place", "value"), [("policy", 3), ("clips", -1), ("seconds", None), ("converters", {"x": 0})]
)
def test_other_numbers_are_refused_by_the_schema(policy_run: Reported, place: str, value: Any) -> None:
    """Counts, seconds and names have their forms."""
    summary = json.loads(json.dumps(policy_run.summary.to_json()))
    summary["audio"][place] = value
    assert not Draft202012Validator(SCHEMA).is_valid(summary)


def test_the_terminal_shows_it(policy_run: Reported, language: str) -> None:
    """The policy in the first line; below the table what was done; a warning for what was cut."""
    text = terminal(policy_run, language)
    say = catalogue(language)
    first, *_ = text.split("qwen2-audio", 1)
    assert flat(first) == flat(f"! {say('warning.audio_policy', policy=POLICY)}")
    told = [
        say("audio.changed", changed=29, clips=29),
        say("audio.shortened", count=16, cut="42.0", seconds="137.0"),
        say("audio.resampled", count=29),
        say("audio.mixed_down", count=29),
        say("audio.skipped", count=2),
    ]
    assert flat(f"{say('terminal.label.audio')} {say('table.list_separator').join(told)}") in flat(text)
    assert flat(f"! {say('warning.clips_shortened', n=16, of=29, seconds='42.0')}") in flat(text)
    assert "over_limit 2" in text


def test_clips_that_were_sent_as_they_are_take_no_line(tmp_path: Path, language: str) -> None:
    """The report of such a run is as it always was."""
    run = reported(write_run(tmp_path / "run", small_run()))
    say = catalogue(language)
    assert f"\n{say('terminal.label.audio')} " not in terminal(run, language)
    assert say("html.audio") not in _facts(render_html([run], language=language, figures={}, now=NOW))
    for render_tables in (render_markdown, render_latex):
        assert "as-is" not in render_tables([run], say, appendix=False)


def test_of_no_clip_only_the_skipped_ones_are_told(tmp_path: Path) -> None:
    """A run in which every clip was too long, and a control that sends none."""
    over = Failure(FailureKind.OVER_LIMIT, "lasts 45 s, and the audio policy takes 4 s", 0)
    prompt = {"audio_policy": "max-seconds=4,over=skip"}
    ended: list[Ended] = [(sample, over, {}) for sample, _, _ in small_run()]
    assert "\nAudio     32 skipped as too long\n" in terminal(
        reported(write_run(tmp_path / "run", ended, prompt=prompt))
    )
    silent = reported(control_run(tmp_path / "control", "no-audio", prompt=prompt))
    assert "\nAudio " not in terminal(silent)


def test_tables_for_papers_tell_it_in_the_caption(
    policy_run: Reported, tmp_path: Path, language: str
) -> None:
    """Of one run, and of several each; what was cut is said below, and in the card all of it."""
    say = catalogue(language)
    caption = render_markdown([policy_run], say, appendix=False).splitlines()[0]
    assert say("table.audio", policy=POLICY) in caption
    other = reported(write_run(tmp_path / "run", small_run(), label="as it is"))
    caption = render_markdown([policy_run, other], say, appendix=False).splitlines()[0].replace("\\", "")
    assert say("table.of_run", run="as it is", text="as-is") in caption
    assert say("table.of_run", run="qwen2-audio", text=POLICY) in caption
    text = render_markdown([policy_run], say, appendix=True)
    assert say("warning.clips_shortened", n=16, of=29, seconds="42.0") in text
    card = dict(re.findall(r"(?m)^\| (.*) \| (.*) \|$", text.replace("\\", "")))
    assert card[say("table.card_audio_policy")] == POLICY
    assert say("audio.mixed_down", count=29) in card[say("table.card_audio")]
    assert card[say("table.card_converter")] == say("audio.converter", what=CONVERTER, count=29)
    assert say("table.card_control") not in card
    assert POLICY in render_latex([policy_run], say, appendix=False).replace(r"\allowbreak{}", "")


def test_imports_that_do_not_tell_stand_beside_runs_that_do(policy_run: Reported, tmp_path: Path) -> None:
    """Nobody knows what another tool did to the clips."""
    imported = reported(
        write_run(tmp_path / "run", small_run(), label="imported", prompt={"audio_policy": None})
    )
    say = catalogue()
    caption = render_markdown([policy_run, imported], say, appendix=False).splitlines()[0]
    assert "imported: not told" in caption
    assert "Audio" not in render_markdown([imported], say, appendix=False)
    assert "Audio" not in terminal(imported)


def test_csv_has_it_sample_by_sample(policy_run: Reported) -> None:
    """Seconds sent and cut, what was changed; and the policy in the other file."""
    rows = list(csv.DictReader(io.StringIO("".join(samples_csv(policy_run)))))
    for row in rows:
        whole = float(row["seconds"] or "nan")
        assert row["seconds_sent"] == str(min(4.0, whole))
        assert row["seconds_cut"] == str(max(0.0, whole - 4.0))
        assert row["audio_changed"] == "44.1 to 16 kHz; 2 channels to 1"
    assert [row["failure"] for row in rows].count("over_limit") == 2
    scores = list(csv.DictReader(io.StringIO(scores_csv([policy_run]))))
    assert {row["audio_policy"] for row in scores} == {POLICY}


def _facts(page: str) -> str:
    found = re.search(r'<dl class="facts">.*?</dl>', page, re.DOTALL)
    assert found is not None
    return html.unescape(re.sub(r"<[^>]*>", "", found[0]))


def test_the_page_shows_it(policy_run: Reported, language: str) -> None:
    """Beside the headline, first among what to mind, in the method, and with each sample."""
    page = render_html([policy_run], language=language, figures={}, now=NOW)
    say = catalogue(language)
    facts = _facts(page)
    assert POLICY in facts
    assert say("audio.shortened", count=16, cut="42.0", seconds="137.0") in facts
    assert f"{say('failure.over_limit')}" in facts
    warned = re.findall(r'<li dir="auto"><span data-text="warning\.(\w+)"', page)
    assert warned[0] == "audio_policy"
    assert "clips_shortened" in warned
    method = html.unescape(page[page.index('id="method"') :])
    assert say("audio.converter", what=CONVERTER, count=29) in method
    packed = re.search(r'id="packed-samples">([^<]*)<', page)
    assert packed is not None
    samples = json.loads(zlib.decompress(base64.b64decode(packed[1])))["samples"]
    (long,) = [sample for sample in samples if sample["key"].endswith("#16")]
    assert long["clip"] == {"seconds": 9.0, "rate": 44_100, "channels": 2, "format": "wav", "bytes": 32_008}
    assert long["runs"][0]["sent"] == {
        "seconds": 4.0,
        "rate": 16_000,
        "channels": 1,
        "format": "wav",
        "bytes": 9,
        "cut": 5.0,
        "whole": 9.0,
        "changed": ["44.1 to 16 kHz", "2 channels to 1"],
    }


def test_a_page_of_several_runs_names_the_policy_at_the_top(policy_run: Reported, tmp_path: Path) -> None:
    """Of the run that has one."""
    others = [reported(write_run(tmp_path / f"{n}", small_run())) for n in range(2)]
    page = render_html([*others, policy_run], language="en", figures={}, now=NOW)
    top = page[page.index("<header") : page.index("</header>")]
    assert top.count('data-text="warning.audio_policy"') == 1


def test_the_failures_are_named_in_the_chart(policy_run: Reported, language: str) -> None:
    """In words."""
    assert catalogue(language)("failure.over_limit") in charts_of(policy_run, language=language)["failures"]


def test_such_a_run_is_not_ranked_with_the_benchmarks(policy_run: Reported) -> None:
    """The model was not sent what the benchmark sends: like another prompt, that sets a row apart."""
    board = leaderboard(policy_run.path.parent)
    (row,) = [row for group in board.groups for row in group.rows if row.path]
    assert row.rank is None
    assert f"audio: {POLICY}" in str(row.partial)
    assert row.audio_policy == POLICY
    assert "clips_shortened" not in row.note


@pytest.mark.parametrize("with_data", [True, False])
def test_a_bundle_keeps_the_facts(policy_run: Reported, tmp_path: Path, with_data: bool) -> None:
    """So that every number is the same."""
    bundled = export_bundle(policy_run.path, tmp_path / "run.zip", with_data=with_data)
    with zipfile.ZipFile(bundled.file) as file:
        file.extractall(tmp_path / "unpacked")
    assert reported(tmp_path / "unpacked" / bundled.folder).summary.audio == policy_run.summary.audio
