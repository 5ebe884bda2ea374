"""The published rows: what they say, and what they say against themselves."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from decimal import ROUND_DOWN, ROUND_HALF_EVEN, ROUND_HALF_UP, Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otoscope.benchmark import PAPER_JUDGE, SCORE_MAX, SCORE_MIN
from otoscope.published import PublishedScore, published_scores

CENT = Decimal("0.01")
COLUMNS = ("speech", "sound", "music", "mixed")
ROWS = {row.model: row for row in published_scores()}


def published(columns: list[Decimal], average: Decimal) -> PublishedScore:
    """Return a row with these four columns and this average."""
    speech, sound, music, mixed = map(float, columns)
    return replace(ROWS["BLSP"], speech=speech, sound=sound, music=music, mixed=mixed, average=float(average))


def test_the_papers_row_is_there() -> None:
    """The row behind the paper's headline has its five numbers, its judge and where they were published."""
    row = ROWS["Qwen2-Audio-Instruct"]
    assert (row.speech, row.sound, row.music, row.mixed, row.average) == (7.18, 6.99, 6.79, 6.77, 6.93)
    assert (row.judge, row.status, row.source) == (PAPER_JUDGE, "official", "OFA-Sys/AIR-Bench README")
    assert row.inconsistency is None


def test_every_row_says_what_it_is() -> None:
    """Each row has scores in range, a defined status, a judge or that it is unknown, and a source."""
    assert len(ROWS) == len(published_scores()) == 32
    for row in ROWS.values():
        scores = [getattr(row, name) for name in (*COLUMNS, "average")]
        present = [score for score in scores if score is not None]
        assert present
        assert all(SCORE_MIN <= score <= SCORE_MAX for score in present)
        assert row.status in {"official", "self-reported", "third-party", "reproduction"}
        assert row.judge
        assert row.protocol
        assert row.source
    assert Counter(row.judge_known for row in ROWS.values()) == {True: 16, False: 16}


def test_what_is_not_published_is_none() -> None:
    """An empty column is not a zero."""
    row = ROWS["Whisper-large-v2 + GPT-4 Turbo"]
    assert (row.speech, row.sound, row.music, row.mixed, row.average) == (7.54, None, None, None, None)
    assert row.note == "speech only"


def test_a_row_that_is_not_over_the_benchmarks_samples_says_so() -> None:
    """Missing samples are told apart from notes, so that the row is ranked nowhere."""
    partial = {model: row.partial for model, row in ROWS.items() if row.partial}
    assert partial == {"Gemini-1.5-pro": "about a fifth of the samples is missing (safety blocks)"}


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ("NExT-GPT", "the average 4.13 contradicts its own columns, whose mean is 3.93"),
        ("Macaw-LLM", "the average 1.01 contradicts its own columns, whose mean is 0.9725"),
        ("SALMONN", "the average 6.11 is not the rounded mean of its own columns, 6.1175: it was cut"),
        ("PandaGPT", "the average 4.25 is not the rounded mean of its own columns, 4.2575: it was cut"),
    ],
)
def test_a_row_that_contradicts_itself_is_found(model: str, told: str) -> None:
    """The average is compared with the mean of the row's own columns; what disagrees is said with numbers."""
    assert (ROWS[model].inconsistency or "").startswith(told)


def test_no_other_row_is_accused() -> None:
    """Ties rounded either way, one decimal and missing columns are no contradictions."""
    assert {model for model, row in ROWS.items() if row.inconsistency} == {
        "NExT-GPT", "Macaw-LLM", "SALMONN", "PandaGPT",
    }  # fmt: skip


def test_a_row_keeps_its_decimals() -> None:
    """A row with one decimal is not shown as if it had two, and a trailing zero is not lost."""
    models = ("MGM-Omni-7B", "Gemini-1.5-pro", "Audio-Reasoner (user re-run)")
    assert [ROWS[model].decimals for model in models] == [1, 2, 3]


# One column at least shows that the row has two decimals.
hundredths = st.lists(st.integers(1, 999).map(lambda n: n * CENT), min_size=4, max_size=4).filter(
    lambda columns: any(column % (10 * CENT) for column in columns)
)


@given(hundredths, st.sampled_from([ROUND_HALF_UP, ROUND_HALF_EVEN]))
@settings(deadline=None)
def test_a_rounded_mean_agrees(columns: list[Decimal], rounding: str) -> None:
    """However ties are rounded, the mean of the columns is what the row should say."""
    row = published(columns, (sum(columns, Decimal()) / 4).quantize(CENT, rounding))
    assert row.inconsistency is None


@given(st.lists(st.integers(10, 9989).map(lambda n: n * Decimal("0.001")), min_size=4, max_size=4))
@settings(deadline=None)
def test_honest_rounding_is_no_contradiction(scores: list[Decimal]) -> None:
    """Columns and average rounded from finer numbers never count as contradicting each other."""
    columns = [score.quantize(CENT, ROUND_HALF_EVEN) for score in scores]
    row = published(columns, (sum(scores, Decimal()) / 4).quantize(CENT, ROUND_HALF_EVEN))
    assert "contradicts" not in (row.inconsistency or "")


@given(hundredths)
@settings(deadline=None)
def test_a_mean_that_was_cut_is_named(columns: list[Decimal]) -> None:
    """An average cut where it should be rounded up is found whatever the columns are."""
    mean = sum(columns, Decimal()) / 4
    row = published(columns, mean.quantize(CENT, ROUND_DOWN))
    should_go_up = mean - mean.quantize(CENT, ROUND_DOWN) > CENT / 2
    assert ("cut" in (row.inconsistency or "")) == should_go_up


@given(hundredths, st.sampled_from([-1, 1]), st.integers(2, 100))
@settings(deadline=None)
def test_an_average_from_elsewhere_is_a_contradiction(
    columns: list[Decimal], side: int, hundredths_off: int
) -> None:
    """An average more than rounding away from its columns is found, above and below."""
    row = published(columns, (sum(columns, Decimal()) / 4).quantize(CENT) + side * hundredths_off * CENT)
    assert "contradicts" in (row.inconsistency or "")
