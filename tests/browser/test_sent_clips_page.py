"""Controls and audio policies on the page, in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from otoscope.reports.reported import control_first
from tests.browser.conftest import Pages, WritePage
from tests.browser.test_report_page import option, serious, shown
from tests.report_runs import POLICY, control_run, reported, small_run, truncated, write_run

pytestmark = pytest.mark.browser


def told(page: Page) -> str:
    """Return what is told of the clip that was sent for the sample that is open."""
    return " ".join(page.locator("#detail .told.sent").first.inner_text().split())


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_control_has_its_banner_in_both_languages(
    pages: Pages, write_page: WritePage, tmp_path: Path, scheme: str
) -> None:
    """It is seen without scrolling, is said by more than colour, and each sample says what was sent."""
    run = reported(control_run(tmp_path / "run", "silence"))
    page = pages.open(write_page([run]), color_scheme=scheme)
    assert page.title() == "qwen2-audio (control run: silent clips) · AIR-Bench Chat"
    banner = page.locator(".control-run")
    expect(banner).to_be_in_viewport()
    expect(banner).to_have_text(
        "CONTROL RUN: silent clips in place of the audio. Not an evaluation of the model"
    )
    option(page, 0)
    assert told(page).startswith("Sent to the model: silence in place of the clip · 1.0 s")
    assert serious(page) == []
    page.get_by_role("button", name="中文").click()
    expect(banner).to_have_text("对照运行：以静音代替音频。这不是对模型的评测")
    assert told(page).startswith("发给模型的音频： 以静音代替该音频")


def test_a_page_of_an_evaluation_and_its_control(pages: Pages, write_page: WritePage, tmp_path: Path) -> None:
    """The control is A; the heading says what B less A is; each run says what it sent of a clip."""
    evaluation = reported(write_run(tmp_path / "evaluation", small_run(), label="heard"))
    control = reported(control_run(tmp_path / "control", "shuffled", label="other clips"))
    page = pages.open(write_page(control_first([evaluation, control])))
    heading = page.locator("#difference h2")
    expect(heading).to_have_text("What the audio contributes: B, the evaluation, less A, its control")
    expect(page.locator("h1 .mark.control")).to_have_count(1)
    assert page.locator("[name=run] option").all_inner_texts() == [
        "A or B",
        "A: other clips (control run: other samples' clips)",
        "B: heard",
    ]
    option(page, 0)
    expect(page.locator("#detail .clip .told")).to_contain_text("1.0 s")
    expect(page.locator("#detail .told.sent")).to_have_count(1)
    assert "another sample's clip: speech_QA/iemocap/clip_1.wav" in told(page)
    assert serious(page) == []


def test_clips_that_were_shortened_are_found(pages: Pages, write_page: WritePage, tmp_path: Path) -> None:
    """By the filter; the sample tells both lengths and what else was done."""
    prompt = {"audio_policy": POLICY}
    run = reported(write_run(tmp_path / "run", small_run(), facts=truncated, prompt=prompt))
    page = pages.open(write_page([run]))
    expect(page.locator(".warnings li").first).to_contain_text(f"audio: {POLICY}", ignore_case=True)
    page.select_option("[name=sign]", "shortened")
    assert shown(page) == f"{run.summary.audio['shortened']} of 32 samples"
    option(page, 0)
    expect(page.locator("#detail .clip .told")).to_contain_text("5.0 s · 44.1 kHz · 2 ch")
    assert told(page).startswith("Sent to the model: cut: 1.0 s of 5.0 s · 4.0 s · 16 kHz · 1 ch · wav")
    page.select_option("[name=sign]", "")
    page.locator("[type=reset]").click()
    option(page, 0)
    expect(page.locator("#detail .told.sent")).not_to_contain_text("cut:")
