from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from otoscope.benchmark import CATEGORIES, TASKS
from otoscope.records import Failure, FailureKind
from otoscope.reports import protocol_card
from otoscope.reports.blocks import END_ISOLATE, ISOLATE, inert
from otoscope.reports.examples import choose
from otoscope.reports.markdown import escape, render_markdown
from otoscope.reports.reported import Reported
from otoscope.texts import LANGUAGES, catalogue
from tests.conftest import Golden
from tests.report_runs import (
    HOSTILE,
    Ended,
    a_sample,
    hostile_run,
    judged,
    manifest,
    reported,
    small_run,
    write_run,
)

ENGLISH = catalogue("en")
TEXTS = st.one_of(
    st.text(alphabet="\\`*_[]{}()<>&|~$#@!-+=.:/ w1a\n\t\"'", max_size=30),
    st.text(alphabet=st.characters(codec="utf-8"), max_size=60),
)
OTHER_JUDGE = {"name": "other-judge"}


def markdown(*runs: Reported, appendix: bool = False, language: str = "en") -> str:
    """Return the report of these runs."""
    return render_markdown(runs, catalogue(language), appendix=appendix)


def tokens(text: str) -> list[Token]:
    """Return what a Markdown renderer makes of a report: every token, those within lines included."""
    found = MarkdownIt("commonmark").enable("table").enable("strikethrough").parse(text)
    return [one for token in found for one in (token, *(token.children or ()))]


def tables(text: str) -> list[list[list[str]]]:
    """Return the cells of each table, as text."""
    found: list[list[list[str]]] = []
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.type == "table_open":
            found.append([])
        elif token.type == "tr_open":
            found[-1].append([])
        elif token.type == "inline" and found and found[-1] and token.level > 3:
            found[-1][-1].append("".join(child.content for child in token.children or ()))
    return found


def test_two_runs_and_their_appendix_are_as_the_golden_file_has_them(
    tmp_path: Path, golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole report of two small runs of two judges."""
    monkeypatch.setattr(protocol_card, "__version__", "0")
    runs = [
        reported(write_run(tmp_path / "a", small_run(), label="baseline")),
        reported(write_run(tmp_path / "b", small_run()[:16], judge=OTHER_JUDGE, tags={"step": "10"})),
    ]
    golden.check("report.md", markdown(*runs, appendix=True).encode())


@given(TEXTS)
def test_a_text_in_a_cell_shows_as_it_is(text: str) -> None:
    """Whatever a text holds, its cell shows it and nothing else, and the table keeps its form."""
    shown = inert(text)
    line = f"| a | b |\n| -- | -- |\n| {escape(shown)} | end |\n"
    assert tables(line) == [[["a", "b"], [shown.replace("@", "@\u200b"), "end"]]]
    kinds = {token.type for token in tokens(line) if token.type not in ("text", "text_special", "inline")}
    assert all(re.match("(table|thead|tbody|tr|th|td)_", kind) for kind in kinds)


@given(TEXTS)
def test_a_text_on_its_own_line_is_a_paragraph(text: str) -> None:
    """No text begins a list, a heading, a quotation or HTML, nor underlines a heading."""
    shown = inert(text) or "x"
    for lines in (escape(shown), f"before\n{escape(shown)}"):
        kinds = {token.type for token in tokens(lines)}
        assert kinds <= {"paragraph_open", "inline", "text", "text_special", "softbreak", "paragraph_close"}


def test_hostile_texts_make_no_markup(tmp_path: Path) -> None:
    """Question, answer, file name and label stay text: no HTML, link, image, emphasis or further column."""
    run = reported(write_run(tmp_path / "run", hostile_run(), label="a | <b>x</b> [l](http://evil.example)"))
    text = markdown(run, appendix=True)
    kinds = {token.type for token in tokens(text)}
    assert not kinds & {"html_inline", "html_block", "link_open", "image", "em_open", "s_open", "code_inline"}
    assert all(len({len(row) for row in table}) == 1 for table in tables(text))
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202a-\u202e\ud800-\udfff]", text)


def test_addresses_and_mentions_are_broken() -> None:
    """What pages turn into links by themselves is no longer that."""
    assert escape("www.a.example") == r"www\.a.example"
    assert escape("https://a.example") == r"https\://a.example"
    assert escape("mailto:a") == r"mailto\:a"
    assert escape("@team") == "@&#8203;team"


def test_right_to_left_text_is_isolated(tmp_path: Path) -> None:
    """A Hebrew label does not turn the numbers beside it around."""
    label = "\u05e9\u05dc\u05d5\u05dd"
    text = markdown(reported(write_run(tmp_path / "run", small_run(), label=label)))
    assert f"| {ISOLATE}{label}{END_ISOLATE} | 5.50" in text


def test_runs_of_different_judges_stand_in_different_tables(tmp_path: Path) -> None:
    """One judge, one table, in the order given; another judge or one order only is another table."""
    paths: dict[str, dict[str, Any]] = {
        "one": {},
        "two": {"judge": OTHER_JUDGE},
        "three": {},
        "four": {"judge": {"do_swap": False}},
        "five": {"judge": {"parameters": {"temperature": 1}}},
    }
    runs = [
        reported(write_run(tmp_path / name, small_run(), label=name, **more)) for name, more in paths.items()
    ]
    names = [[row[0] for row in table[1:]] for table in tables(markdown(*runs))]
    assert names == [["one", "three"], ["two"], ["four"], ["five"]]


def test_an_endpoint_is_no_judge(tmp_path: Path) -> None:
    """The same judge behind another address is the same judge."""
    runs = [
        reported(write_run(tmp_path / name, small_run(), judge={"api_url": f"http://{name}.example"}))
        for name in ("a", "b")
    ]
    (table,) = tables(markdown(*runs))
    assert [row[0] for row in table[1:]] == ["qwen2-audio (1)", "qwen2-audio (2)"]


def test_the_caption_names_judge_protocol_n_and_coverage(tmp_path: Path) -> None:
    """Judge as returned, protocol, orders, scoring, what the intervals are about, and what is scored."""
    run = write_run(tmp_path / "run", small_run(), judge=OTHER_JUDGE)
    caption = markdown(reported(run)).splitlines()[0]
    assert "other-judge (returned as gpt-4-0125-preview)" in caption
    assert "default protocol, both orders, default scoring" in caption
    assert "95 % intervals, over questions and clips; judge and decoding held fixed" in caption
    assert "n = 32, 30 scored (coverage 93.7 %), 2 failed" in caption
    official = markdown(reported(run, scoring="official", view="paper-2000")).splitlines()[0]
    assert "official scoring over temperature-0 replies" in official
    assert "The paper's 2,000 samples" in official


def without_failures() -> list[Ended]:
    """Return a run of which every sample is scored."""
    return [judged(sample, "yes", (5, 8)) for sample, _, _ in small_run()]


def test_the_lower_bound_stands_beside_a_mean_of_too_few(tmp_path: Path) -> None:
    """Under 99 % scored, the mean with failures as 0 is there too, and what it is."""
    text = markdown(reported(write_run(tmp_path / "run", small_run())))
    assert "4.93 [3.15, 6.71] (≥ 4.31)" in text
    assert "failed samples counted as 0" in text
    full = markdown(reported(write_run(tmp_path / "full", without_failures())), appendix=True)
    assert "≥" not in full


@pytest.mark.parametrize("language", LANGUAGES)
def test_what_is_not_available_is_a_dash(tmp_path: Path, language: str) -> None:
    """A run of one task has no Average, one without a judge has no score at all, an empty one no row."""
    one_task = [entry for entry in small_run() if entry[0].task == "music_QA"]
    runs = [
        reported(write_run(tmp_path / "one", one_task)),
        reported(write_run(tmp_path / "none", small_run(), judged=False)),
        reported(write_run(tmp_path / "empty", [])),
    ]
    rows = [table[1] for table in tables(markdown(*runs, language=language))]
    assert [row[1:].count("--") for row in rows] == [4, 5, 5]
    markdown(*runs, appendix=True, language=language)


def test_an_unfinished_run_is_marked(tmp_path: Path) -> None:
    """The caption counts what is pending, and a note says so."""
    ended: list[Ended] = [
        (sample, None if n > 20 else answer, {}) for n, (sample, answer, _) in enumerate(small_run())
    ]
    text = markdown(reported(write_run(tmp_path / "run", ended)))
    assert "pending (unfinished)" in text
    assert re.search(r"- qwen2-audio: \d+ of 32 samples are not finished", text)


def test_what_the_numbers_mean_less_for_is_said_below_the_table(tmp_path: Path) -> None:
    """A judge that judges itself, a prompt of one's own and a single order are notes, without an appendix."""
    fingerprint = manifest(judge={"name": "qwen2-audio", "do_swap": False})["fingerprint"]
    fingerprint["prompt"] = {**fingerprint["prompt"], "system": "Be brief."}
    run = reported(write_run(tmp_path / "run", small_run()[:2], fingerprint=fingerprint, label="self"))
    notes = [line for line in markdown(run).splitlines() if line.startswith("- self: ")]
    assert any("the judge is the model" in note for note in notes)
    assert any("prompt is not the benchmark's" in note for note in notes)
    assert any("in one order only" in note for note in notes)


def test_the_card_says_how_the_run_was_made(tmp_path: Path) -> None:
    """Prompt hash, judge, parameters, dates, counts, failures by kind, versions; no path, host or URL."""
    text = markdown(reported(write_run(tmp_path / "run", small_run())), appendix=True)
    card = {row[0]: row[1] for row in tables(text)[1]}
    assert card["Judge prompt, SHA-256"].startswith("cd6670d4")
    assert card["Sent to the judge"] == '{"max_tokens": 1024, "temperature": 0}'
    assert card["Dates"].startswith("2026-11-30T10:15:00Z; 2027-01-15T08:00:00Z")
    assert card["Failures by kind"] == "timeout 1, unparseable 1"
    assert card["Samples"] == "30 scored + 2 failed + 0 pending = 32"
    assert not re.search("gpu-17|alice|http", text)


def test_six_examples_of_all_categories_are_the_same_for_every_run(tmp_path: Path) -> None:
    """They depend on the samples, not on the run; each category has one."""
    one = reported(write_run(tmp_path / "one", small_run()))
    other = reported(write_run(tmp_path / "two", reversed(without_failures()), run_id="another"))
    chosen = [outcome.sample for outcome in choose(one)]
    assert len(chosen) == 6
    assert {TASKS[sample.task].category for sample in chosen} == set(CATEGORIES)
    assert [sample.key for sample in chosen] == [outcome.sample.key for outcome in choose(other)]


def test_examples_of_a_view_are_from_the_view(tmp_path: Path) -> None:
    """The paper's view shows no sample of a generation task."""
    run = reported(write_run(tmp_path / "run", small_run()), view="paper-2000")
    assert not any("generation" in outcome.sample.task for outcome in choose(run))


def test_long_texts_are_shortened_and_say_so(tmp_path: Path) -> None:
    """An answer of 200 KB takes some lines, with the number of characters left out."""
    run = reported(write_run(tmp_path / "run", [judged(a_sample(1, "speech_QA"), "word " * 40_000, (5, 8))]))
    text = markdown(run, appendix=True)
    assert len(text) < 10_000
    assert "(199,399 more characters)" in text


def test_a_run_without_its_texts_has_no_examples(tmp_path: Path) -> None:
    """What stands for withheld texts is not shown as if it were them."""
    run = reported(write_run(tmp_path / "run", small_run(), withheld=["question"]))
    text = markdown(run, appendix=True)
    assert "The texts of this run are withheld." in text
    assert "Reference answer:" not in text


def test_chinese_headings_and_captions(tmp_path: Path) -> None:
    """In Chinese no heading, caption or note is left in English."""
    run = reported(write_run(tmp_path / "run", small_run()))
    text = markdown(run, language="zh")
    assert tables(text)[0][0] == ["运行", "语音", "声音", "音乐", "混合音频", "平均"]
    assert "评审模型为 gpt-4-0125-preview" in text
    assert "samples" not in text


@pytest.mark.parametrize("text", HOSTILE)
def test_inert_texts_are_one_clean_line(text: str) -> None:
    """No line break, control character or half of a surrogate pair is left of any text."""
    shown = inert(text)
    assert shown.encode().decode() == shown
    assert all(c.isprintable() or c in f"\u200c\u200d{ISOLATE}{END_ISOLATE}" for c in shown)


def test_a_run_that_scored_nothing_is_shown(tmp_path: Path) -> None:
    """Dashes, and the failures by kind."""
    ended: Ended = (a_sample(0, "sound_QA"), Failure(FailureKind.MISSING_AUDIO, "a message"), {})
    run = reported(write_run(tmp_path / "run", [ended]))
    text = markdown(run, appendix=True)
    assert "n = 1, 0 scored (coverage 0.0 %), 1 failed" in text
    assert "| Failures by kind | missing\\_audio 1 |" in text
