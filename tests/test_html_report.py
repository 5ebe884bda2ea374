"""The page as a file: what stands in it, and that nothing foreign can act in it."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import random
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from otoscope.errors import ConfigError
from otoscope.records import Answer, FailureKind, Outcome, Sample
from otoscope.reports.html import compared, render_html
from otoscope.reports.html.clips import Clips
from otoscope.reports.html.page import SCRIPTS
from otoscope.reports.reported import Reported
from otoscope.texts import LANGUAGES, catalogue
from tests.browser.stored_runs import (
    Special,
    demo_samples,
    few,
    full_sizes,
    reported,
    samples,
    write_run,
)
from tests.conftest import Golden
from tests.support import DEMO

PACKAGE = Path(__file__).parent.parent / "src" / "otoscope" / "reports" / "html"
NOW = "2026-11-30 12:00 UTC"
HOSTILE = '"><img src=x onerror=alert(1)></script><script>alert(2)</script>{{7*7}}'


def page(*runs: Reported, **options: Any) -> str:
    """Return the page of these runs."""
    return render_html(runs, **{"language": "en", "figures": {}, "now": NOW, **options})


def unpacked(text: str, block: str = "packed-samples") -> Any:
    """Return what a compressed block of the page holds."""
    found = re.search(rf'<script type="application/octet-stream" id="{block}">([^<]*)</script>', text)
    assert found is not None
    return json.loads(zlib.decompress(base64.b64decode(found[1])))


def inline(text: str, element: str) -> str:
    """Return the content of the page's own script or style."""
    found = re.search(rf"<{element}>(.*?)</{element}>", text, re.DOTALL)
    assert found is not None
    return found[1]


def main_part(text: str) -> str:
    """Return the page between its bar and its footer, without what is loaded later."""
    return text[text.index("<main") : text.index("</main>")]


def visible(text: str) -> str:
    """Return the words of a piece of the page, on one line."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", text)).split())


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Reported:
    """Give a run of 24 samples with two failures."""
    special = {
        2: Special(failure=FailureKind.MISSING_AUDIO),
        3: Special(judge_failure=FailureKind.UNPARSEABLE),
        4: Special(answer="Calm.", raw_answer="<think>Low.</think>Calm."),
    }
    path = tmp_path_factory.mktemp("small") / "run"
    return reported(write_run(path, samples(few(3)), special=special, label="baseline", run_id="0" * 16))


def a_run(path: Path, chosen: Sequence[Sample] | None = None, **options: Any) -> Reported:
    """Write a run of a few samples and return it."""
    return reported(write_run(path, samples(few(3)) if chosen is None else chosen, **options))


def test_the_numbers_stand_in_the_page(small: Reported, golden: Golden) -> None:
    """Headline, warnings, tables and facts of one small run, as they are written."""
    text = re.sub(r"(?m)^\s+|\s+$", "", main_part(page(small)))
    golden.check("report.html", text.encode() + b"\n")


def test_the_same_run_makes_the_same_page(small: Reported) -> None:
    """Byte for byte: nothing depends on chance or on the time."""
    assert page(small) == page(small)


def test_the_policy_lets_only_the_pages_own_script_and_style_act(small: Reported) -> None:
    """They are named by their SHA-256; nothing is loaded, and no handler stands in an element."""
    text = page(small)
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in html.unescape(policy[1]).split(";"))
    for rule, element in (("script-src", "script"), ("style-src-elem", "style")):
        digest = hashlib.sha256(inline(text, element).encode()).digest()
        assert rules[rule] == f"'sha256-{base64.b64encode(digest).decode()}'"
    assert rules["default-src"] == "'none'"
    assert not re.search(r"<[^>]*\son[a-z]+=", main_part(text))
    assert not re.search(r'(src|href)="(?!#)', text)


def test_foreign_text_is_inert(tmp_path: Path) -> None:
    """Label, model, judge, tags and every text of a sample are escaped, or packed away from the markup."""
    texts = Special(question=HOSTILE, reference=HOSTILE, description=HOSTILE, answer=HOSTILE)
    run = a_run(
        tmp_path / HOSTILE.replace("/", "_"),
        special={0: texts},
        label=HOSTILE,
        model=HOSTILE,
        judge=HOSTILE,
        tags={HOSTILE: HOSTILE},
    )
    text = page(run, embed_audio=[HOSTILE])
    assert "<img" not in text
    assert "alert(2)</script>" not in text
    assert "49" not in html.unescape(text.split("<h1", 1)[1].split("</h1>")[0])
    assert len(re.findall(r"<script\b", text)) == 5
    sample = unpacked(text)["samples"][0]
    assert (sample["question"], sample["runs"][0]["answer"]["text"]) == (HOSTILE, HOSTILE)


def test_every_sample_is_in_the_page_with_everything(small: Reported) -> None:
    """Texts, scores by role, every reply, failures and clip facts, as the run has them."""
    book = unpacked(page(small))
    outcomes = {outcome.sample.key: outcome for outcome in small.outcomes()}
    assert [sample["key"] for sample in book["samples"]] == list(outcomes)
    for sample in book["samples"]:
        outcome = outcomes[sample["key"]]
        assert sample["question"] == outcome.sample.question
        assert book["descriptions"][sample["description"]] == outcome.sample.description
        for order, verdict in outcome.verdicts.items():
            there = sample["runs"][0]["verdicts"][order.value]
            assert [reply["text"] for reply in there["replies"]] == [reply.text for reply in verdict.replies]
            assert there.get("answer") == getattr(verdict, "answer_score", None)
            assert there.get("reference") == getattr(verdict, "reference_score", None)
    missing, unparseable, filtered = (sample["runs"][0] for sample in book["samples"][2:5])
    assert (missing["stage"], missing["failure"]["kind"]) == ("answer", "missing_audio")
    assert (unparseable["stage"], unparseable["failure"]["kind"]) == ("verdict", "unparseable")
    assert filtered["answer"]["raw"] == "<think>Low.</think>Calm."


def test_descriptions_that_samples_share_stand_there_once(small: Reported) -> None:
    """Two questions about one clip have one description."""
    book = unpacked(page(small))
    assert len(book["descriptions"]) == len(set(book["descriptions"])) < len(book["samples"])


def test_a_full_run_with_long_descriptions_takes_three_megabytes_at_most(tmp_path: Path) -> None:
    """2,200 samples whose texts are as hard to compress as prose, each dialogue with 5 KB of its own."""
    chance = random.Random(3)  # noqa: S311 (no secret hangs on it)
    letters, frequent = "etaoinshrdlucmfwypvbgk", [1 / (rank + 2.7) for rank in range(8000)]
    vocabulary = ["".join(chance.choices(letters, k=chance.randint(2, 9))) for _ in frequent]

    def prose(chance: random.Random, characters: int) -> str:
        return " ".join(chance.choices(vocabulary, frequent, k=characters // 6))

    chosen = [
        replace(sample, description=prose(chance, 5000) if "dialogue" in sample.task else sample.description)
        for sample in samples(full_sizes(), write=prose)
    ]
    text = page(a_run(tmp_path / "run", chosen, write=prose))
    assert len(zlib.compress(prose(chance, 100_000).encode(), 9)) > 38_000
    assert len(text.encode()) < 3_000_000


def test_an_unfinished_run_is_marked_with_counts(tmp_path: Path) -> None:
    """Beside the title stands how many samples are pending."""
    run = a_run(tmp_path / "run", unfinished=0.5)
    pending, n = run.summary.all_samples.pending, run.summary.all_samples.n
    assert 0 < pending < n
    assert f"This run is not finished. {pending} of {n} samples are pending" in visible(main_part(page(run)))


def test_a_run_without_a_judge_shows_its_answers(tmp_path: Path) -> None:
    """It says that it is not judged, and has no table of scores."""
    text = page(a_run(tmp_path / "run", judged=False))
    assert "not judged" in visible(main_part(text))
    assert 'id="scores"' not in text
    assert all("answer" in sample["runs"][0] for sample in unpacked(text)["samples"])


def test_a_run_in_which_everything_failed_is_reported(tmp_path: Path) -> None:
    """Every number is n/a, and it is said why."""
    failed = {index: Special(failure=FailureKind.TIMEOUT) for index in range(24)}
    text = visible(main_part(page(a_run(tmp_path / "run", special=failed))))
    assert "Not available: every sample failed." in text
    assert "nan" not in text.lower().split()


def test_an_average_that_is_not_available_says_what_it_needs(tmp_path: Path) -> None:
    """The missing categories are named."""
    text = visible(main_part(page(a_run(tmp_path / "run", samples(few(4, ["speech_QA", "music_QA"]))))))
    assert "it needs a score in Sound, Mixed audio too" in text


def test_official_scoring_shows_each_orders_mean(small: Reported) -> None:
    """The rule is named, and the two orders have their columns."""
    text = page(reported(small.path, scoring="official"))
    assert "official scoring over temperature-0 replies" in visible(main_part(text))
    assert "Answer first" in visible(main_part(text))


def test_official_scoring_shows_what_it_reads_of_each_sample(tmp_path: Path) -> None:
    """A first reply in prose has no score, whatever came later; the sample's is the other order's."""
    run = a_run(tmp_path / "run", samples(few(40)), seed=3)
    read = [sample["runs"][0] for sample in unpacked(page(reported(run.path, scoring="official")))["samples"]]
    half_read = 0
    for part in read:
        scores = [one["answer"] for one in part["verdicts"].values() if "answer" in one]
        for verdict in part["verdicts"].values():
            assert ("answer" in verdict) == verdict["replies"][0]["text"][0].isdigit()
        assert (part["status"], part["score"]) == ("scored", sum(scores) / len(scores))
        half_read += len(scores) == 1
    assert half_read


def test_the_papers_view_leaves_the_generation_tasks_out(small: Reported) -> None:
    """Of the samples too."""
    tasks = {sample["task"] for sample in unpacked(page(reported(small.path, view="paper-2000")))["samples"]}
    assert len(tasks) == 6


def test_two_runs_are_compared_pair_by_pair(small: Reported, tmp_path: Path) -> None:
    """Each cell's difference stands in the page with its interval, and each sample has both runs' results."""
    other = a_run(tmp_path / "run", seed=2, better=1.0, label="tuned")
    comparison = compared([small, other])
    assert not isinstance(comparison, ConfigError)
    text = page(small, other)
    difference = comparison.models[0].cells["all_samples"].gpt_score
    assert difference is not None
    assert f"{difference.value:+.2f}".replace("-", "−") in visible(main_part(text))
    assert all(len(sample["runs"]) == 2 for sample in unpacked(text)["samples"])


def test_differences_are_those_of_the_rule_and_view_asked_for(small: Reported, tmp_path: Path) -> None:
    """A view takes its samples; official scoring, which pairs none, gets no differences and says why."""
    other = a_run(tmp_path / "run", seed=2, better=1.0, label="tuned")
    paper = [reported(run.path, view="paper-2000") for run in (small, other)]
    whole, viewed = compared([small, other]), compared(paper)
    assert not isinstance(whole, ConfigError)
    assert not isinstance(viewed, ConfigError)
    assert viewed.samples < whole.samples
    by_official = compared([reported(run.path, scoring="official") for run in (small, other)])
    assert isinstance(by_official, ConfigError)
    assert "each order's mean by itself" in str(by_official)


def test_two_judges_of_the_same_answers_are_compared(small: Reported, tmp_path: Path) -> None:
    """The page says that the judge is what differs, with the agreement."""
    chosen = samples(few(3))
    one = a_run(tmp_path / "one", chosen, label="one")
    other = a_run(tmp_path / "other", chosen, judge="another-judge", better=1.0, label="other")
    text = visible(main_part(page(one, other)))
    assert "what differs is the judge" in text
    assert "Same winner" in text


def test_runs_that_cannot_be_compared_are_shown_with_the_reason(small: Reported, tmp_path: Path) -> None:
    """They stand side by side all the same."""
    other = a_run(tmp_path / "run", seed=2, judge="another-judge", label="other")
    text = visible(main_part(page(small, other)))
    assert "these runs were not judged alike" in text
    assert "judge.name" in text or "another-judge" in text
    assert text.count("on a scale from 0 to 10") == 2


def test_several_runs_are_a_table_by_judge(small: Reported, tmp_path: Path) -> None:
    """A row each, the judges apart, and no samples, which are in the runs' own pages."""
    other = a_run(tmp_path / "b", judge="another-judge", label="b")
    official = reported(small.path, scoring="official")
    text = page(small, other, official, a_run(tmp_path / "c", label="c", judged=False))
    for judge in ("gpt-4-0125-preview", "another-judge"):
        assert f"Judged by {judge}" in visible(main_part(text))
    assert visible(main_part(text)).count("Judged by gpt-4-0125-preview") == 2, "another rule, another table"
    assert "official scoring over temperature-0 replies" in visible(main_part(text))
    assert 'id="list"' not in text


def test_charts_stand_in_their_places_in_the_first_language(small: Reported) -> None:
    """As they are given; the other language's are packed away until they are wanted."""
    figures = {
        language: {name: f"<svg><title>{name} {language}</title></svg>" for name in ("categories", "timing")}
        for language in LANGUAGES
    }
    text = page(small, figures=figures, language="zh")
    assert "<svg><title>categories zh</title></svg>" in text
    assert "categories en" not in text
    assert unpacked(text, "packed-figures")["en"]["timing"] == figures["en"]["timing"]


def test_a_lone_surrogate_does_not_stop_the_page(tmp_path: Path) -> None:
    """In the markup it is replaced, in a sample it is what it was."""
    run = a_run(tmp_path / "run", special={0: Special(answer="half \ud83d of it")}, label="half \ud83d of it")
    text = page(run)
    assert "half ? of it" in text.split("<h1", 1)[1].split("</h1>")[0]
    assert unpacked(text)["samples"][0]["runs"][0]["answer"]["text"] == "half \ud83d of it"


def test_there_is_no_third_language(small: Reported) -> None:
    """A language that there is not is refused."""
    with pytest.raises(KeyError):
        page(small, language="fr")


# --- clips ------------------------------------------------------------------------------------------------


def test_clips_are_linked_from_where_the_page_lies(tmp_path: Path) -> None:
    """Relative to its folder, quoted as a URL, whatever the names."""
    root = tmp_path / "data #1"
    root.mkdir()
    sample = replace(samples(few(1))[0], audio_path='Chat/speech_QA_x/a "b" 語?.wav')
    clips = Clips({"dataset": {"root": str(root)}}, tmp_path / "runs" / "one")
    assert clips.link(sample) == "../../data%20%231/Chat/speech_QA_x/a%20%22b%22%20%E8%AA%9E%3F.wav"


@pytest.mark.parametrize("page", [".", "data", "data/Chat/x", "data/Chat", "runs/one"])
@pytest.mark.parametrize("folder", ["Chat/x", "Chat/./x/", "Chat/x/../y z", "Chat", "#1/é"])
@pytest.mark.parametrize("name", ["a.wav", "A-b_0.mp3", "a b.wav", ".wav", "-", "%41.wav"])
def test_a_link_leads_from_the_page_to_the_clip(tmp_path: Path, page: str, folder: str, name: str) -> None:
    """Followed as a browser follows it, it ends at the clip, whatever the names and wherever the page."""
    (tmp_path / "data").mkdir()
    sample = replace(samples(few(1))[0], audio_path=f"{folder}/{name}")
    clips = Clips({"dataset": {"root": str(tmp_path / "data")}}, tmp_path / page)
    clip = os.path.normpath(tmp_path / "data" / folder / name)
    assert clips.link(sample) == quote(os.path.relpath(clip, tmp_path / page))
    assert clips.link(sample) == clips.link(replace(sample, uniq_id=2))


@pytest.mark.parametrize("path", ["/a.wav", "/etc/a.wav", "../a.wav", "Chat/../../a.wav", "../data-2/a.wav"])
def test_there_is_no_link_out_of_the_data(tmp_path: Path, path: str) -> None:
    """A path that leaves the data root has none."""
    (tmp_path / "data").mkdir()
    clips = Clips({"dataset": {"root": str(tmp_path / "data")}}, tmp_path)
    assert clips.link(replace(samples(few(1))[0], audio_path=path)) is None


def test_what_was_sent_stands_only_beside_replies_for_which_it_was_another(small: Reported) -> None:
    """What was sent most often the page says once; it is not repeated with thousands of replies."""
    special = {5: {"temperature": 1, "top_p": 0.5}}

    def outcomes() -> Iterator[Outcome]:
        for number, outcome in enumerate(small.outcomes()):
            if number in special and isinstance(outcome.answer, Answer):
                reply = replace(outcome.answer.replies[0], parameters=special[number])
                yield replace(outcome, answer=replace(outcome.answer, replies=(reply,)))
            else:
                yield outcome

    rows = unpacked(page(replace(small, outcomes=outcomes)))["samples"]
    replies = [reply for row in rows for reply in row["runs"][0].get("replies", ())]
    verdicts = [verdict for row in rows for verdict in row["runs"][0].get("verdicts", {}).values()]
    assert [reply["sent"] for reply in replies if "sent" in reply] == ['{"temperature":1,"top_p":0.5}']
    assert not [reply for verdict in verdicts for reply in verdict["replies"] if "sent" in reply]


def test_embedded_clips_are_in_the_page_with_a_word_about_their_licences(tmp_path: Path) -> None:
    """Only those that were asked for."""
    chosen = demo_samples(DEMO)
    run = a_run(tmp_path / "run", chosen, root=DEMO)
    text = page(run, embed_audio=[chosen[1].key, "no such sample"])
    block = re.search(r'<script type="application/json" id="carried-clips">(.*?)</script>', text)
    assert block is not None
    carried = json.loads(block[1])
    assert list(carried) == [chosen[1].key]
    assert carried[chosen[1].key].startswith("data:audio/mpeg;base64,")
    assert "This file holds 1 clips" in visible(text)
    assert "clips-licence" not in main_part(page(run))


# --- texts ------------------------------------------------------------------------------------------------


def test_every_text_of_the_page_is_in_both_catalogues_and_used() -> None:
    """Keys that are put together at run time are known by their beginning."""
    sources = "\n".join(
        file.read_text(encoding="utf-8") for file in PACKAGE.iterdir() if file.suffix in (".py", ".js", ".j2")
    )
    beginnings = tuple(re.findall(r"html\.(?:[a-z_]+\.)?(?=\"? ?~|\{|\$)", sources))
    used = set(re.findall(r"[\"'](html\.[a-zA-Z0-9_.-]+[a-z0-9])[\"']", sources))
    for language in LANGUAGES:
        there = {key for key in catalogue(language).texts if key.startswith("html.")}
        assert used - there == set()
        unused = {key for key in there - used if not key.startswith(tuple(set(beginnings) - {"html."}))}
        assert unused - {f"html.{name}" for name in ("answer_first", "reference_first")} == set()


def keys_of(value: Any) -> Iterator[str]:
    """Yield the keys of texts that stand, however deep, in the values of another one."""
    if isinstance(value, dict):
        if "key" in value:
            yield value["key"]
        for inner in value.values():
            yield from keys_of(inner)


def test_the_page_can_say_all_that_it_says_in_both_languages(small: Reported, tmp_path: Path) -> None:
    """What is marked with a key is in the page's own texts: else the other language would show the key."""
    lost = {3: Special(judge_failure=FailureKind.TIMEOUT)}
    paid = a_run(tmp_path / "paid", special=lost, settings={"judge_price": [2.5, 10]})
    control = a_run(tmp_path / "control", model="another", tags={"step": "1"})
    for runs in ((paid,), (small, paid), (small, paid, control)):
        text = page(*runs)
        found = re.search(r'<script type="application/json" id="facts">(.*?)</script>', text, re.DOTALL)
        assert found is not None
        there = json.loads(found[1])["texts"]
        used = set(re.findall(r'data-text="([^"]*)"', text))
        for marked in re.findall(r'data-(?:values|say-[a-z-]+)="([^"]*)"', text):
            used.update(keys_of(json.loads(html.unescape(marked))))
        assert len(runs) > 2 or used >= {"cost.paid", "cost.calls", "cost.separator"}
        for language in LANGUAGES:
            assert used - there[language].keys() == set()


def test_scripts_are_files_of_the_package() -> None:
    """Each is named once in the order in which they build on each other."""
    assert {file.name for file in PACKAGE.glob("*.js")} == set(SCRIPTS)
