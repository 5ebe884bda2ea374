"""Charts: what is drawn stands where the numbers are, and foreign text stays text."""

from __future__ import annotations

import hashlib
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.font_manager import fontManager

from otoscope.benchmark import TASKS
from otoscope.comparison import Comparison, JudgedRun, compare
from otoscope.errors import ConfigError
from otoscope.judge import PROMPT_SHA256
from otoscope.parsing import PARSER_VERSION
from otoscope.records import Answer, Failure, FailureKind, Order, Outcome, Reply, Sample, Verdict
from otoscope.reports.charts import (
    charts_of,
    difference_chart,
    numeric_tags,
    pdf_language,
    trend_chart,
    write_figures,
)
from otoscope.reports.charts.style import LogScale
from otoscope.reports.reported import Reported
from otoscope.scoring import summarise
from tests.support import REPOSITORY

BOTH = (Order.REFERENCE_FIRST, Order.ANSWER_FIRST)
JUDGE = "gpt-4-0125-preview"
NAMES = ["categories", "distribution", "orders", "length", "failures", "timing"]
HOSTILE = '"><script>alert(1)</script> $x_1^2$ {0} &amp; 模型\x00\x1b[31m\ud800'
SVG = "{http://www.w3.org/2000/svg}"
HREF = "{http://www.w3.org/1999/xlink}href"
ALLOWED = {"svg", "title", "desc", "g", "path", "text", "use", "defs"}


def a_sample(task: str, number: int) -> Sample:
    """Return a sample of a task; two share a clip."""
    folder = TASKS[task].folders[0]
    return Sample(task, folder, f"{number // 2}.wav", number, "What?", "That.", "{}", "", f"{task}{number}")


def scored(
    task: str,
    number: int,
    *,
    better: float = 0,
    judge: str = JUDGE,
    text: str = "a",
    orders: Sequence[Order] = BOTH,
) -> Outcome:
    """Return a scored sample: its scores differ between orders and from sample to sample."""
    usage = {"prompt_tokens": 100 + number, "completion_tokens": 5 + number}
    reply = Reply(text=text, model="m", usage=usage, latency=0.5 + 0.1 * number)
    answer = Answer(raw_text=text, text=text * (1 + 7 * number), replies=(reply,))
    verdicts: dict[Order, Verdict | Failure] = {}
    for order in orders:
        first = order is Order.ANSWER_FIRST
        verdicts[order] = Verdict(
            order=order,
            judge_id="j",
            answer_sha256=answer.sha256,
            score_kind="integer",
            answer_score=min(10, (number * 7 + len(task)) % 9 + first + better),
            reference_score=8 + number % 2,
            replies=(Reply(text="8 5", model=judge, usage=usage, latency=0.2 + 0.01 * number),),
        )
    return Outcome(a_sample(task, number), answer, verdicts)


def failed(task: str, number: int, kind: FailureKind = FailureKind.TIMEOUT) -> Outcome:
    """Return a sample without an answer."""
    return Outcome(a_sample(task, number), Failure(kind, "a message"))


def a_few(tasks: Iterable[str] = TASKS, each: int = 12, **how: Any) -> list[Outcome]:
    """Return outcomes of these tasks, the last of each failed."""
    return [
        outcome
        for task in tasks
        for outcome in (*(scored(task, number, **how) for number in range(each - 1)), failed(task, each))
    ]


def reported(
    outcomes: Sequence[Outcome],
    *,
    judge: str = JUDGE,
    orders: Sequence[Order] = BOTH,
    label: str | None = "a label",
    tags: Mapping[str, str] | None = None,
    model: str = "a model",
    path: str = "run",
    **summarised: Any,
) -> Reported:
    """Return a run of these outcomes as reporters see it."""
    manifest = {
        "fingerprint": {
            "model": {"name": model},
            "judge": {
                "name": judge,
                "protocol": "default",
                "do_swap": len(orders) == 2,
                "parameters": {"temperature": 0, "max_tokens": 1024},
                "prompt_sha256": PROMPT_SHA256,
                "parser_version": PARSER_VERSION,
            },
        },
        "label": label,
        "tags": tags or {},
        "created_at": "2026-11-30T10:15:00Z",
    }
    summary = summarise(outcomes, orders=orders, manifest=manifest, **summarised)
    return Reported(Path(path), summary, manifest, lambda: iter(outcomes))


def charts(outcomes: Sequence[Outcome] | None = None, language: str = "en", **how: Any) -> dict[str, str]:
    """Return the charts of a run of these outcomes."""
    return charts_of(reported(a_few() if outcomes is None else outcomes, **how), language=language)


def compared(*runs: Reported, across_judges: bool = False) -> Comparison:
    """Compare runs with the first of them."""
    return compare(
        [JudgedRun(run.path.name, run.manifest, run.orders, run.outcomes()) for run in runs],
        across_judges=across_judges,
    )


def root(svg: str) -> ET.Element:
    """Return a chart's element."""
    return ET.fromstring(svg)  # noqa: S314 - the charts are our own


def texts(svg: str) -> list[str]:
    """Return everything that is written in a chart."""
    return [text.text or "" for text in root(svg).iter(f"{SVG}text")]


def shown(svg: str, kind: str, name: str | None = None) -> list[ET.Element]:
    """Return what a chart shows of a kind, of one name or all."""
    return [
        element
        for element in root(svg).iter()
        if element.get("class") == kind and name in (None, element.get("data-name"))
    ]


def points(element: ET.Element) -> list[tuple[float, float]]:
    """Return the corners of an element's paths, in points."""
    numbers = [
        float(number)
        for path in element.iter(f"{SVG}path")
        for number in re.findall(r"-?\d+(?:\.\d+)?", path.attrib["d"])
    ]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def marks(element: ET.Element) -> list[tuple[float, float]]:
    """Return where an element's marks stand, in points."""
    return [(float(use.attrib["x"]), float(use.attrib["y"])) for use in element.iter(f"{SVG}use")]


def across(svg: str) -> Iterator[tuple[str, float]]:
    """Yield the texts of a chart that are centred, as ticks below an axis are, with their x."""
    for text in root(svg).iter(f"{SVG}text"):
        if text.get("text-anchor") == "middle":
            yield text.text or "", float(text.attrib["x"])


def at_score(svg: str, score: float) -> float:
    """Return where a score stands on the axis whose ticks are 0 to 10."""
    ticks = dict(across(svg))
    return ticks["0"] + score / 10 * (ticks["10"] - ticks["0"])


# --- as elements of a page ----------------------------------------------------------------------------------


@cache
def every_chart(language: str = "en") -> dict[str, str]:
    """Return one chart of every kind."""
    one, other = (
        reported(a_few(), tags={"step": "1"}),
        reported(a_few(better=1, text="b"), tags={"step": "2"}),
    )
    trend = trend_chart([one, other], "step", language=language)
    assert trend is not None
    return {
        **charts_of(one, language=language),
        "difference": difference_chart(compared(one, other), language=language),
        "trend": trend,
    }


def apart(code: str, **environ: str) -> list[str]:
    """Return the words that code prints in a process of its own, which complains of nothing."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=REPOSITORY,
        env={**os.environ, **environ},
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_a_run_has_its_charts_under_stable_names() -> None:
    """The names and their order are what the documentation says."""
    assert list(charts()) == NAMES


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_chart_is_an_image_with_title_and_description(language: str) -> None:
    """Each is one svg element whose first children, named by it, are a title and a description."""
    for svg in every_chart(language).values():
        element = root(svg)
        title, description = element[0], element[1]
        assert (title.tag, description.tag) == (f"{SVG}title", f"{SVG}desc")
        assert title.text
        assert description.text
        assert element.get("role") == "img"
        assert element.get("aria-labelledby") == f"{title.get('id')} {description.get('id')}"
        assert svg.startswith("<svg ")


def test_charts_bring_nothing_into_a_page_but_shapes_and_text() -> None:
    """No script, style, image or link is in a chart, nor a style attribute, which a policy would refuse."""
    for svg in every_chart().values():
        for element in root(svg).iter():
            assert element.tag.removeprefix(SVG) in ALLOWED
            assert "style" not in element.attrib
            assert not [name for name in element.attrib if name.startswith("on")]
            assert element.get(HREF, "#").startswith("#")


def test_texts_are_text() -> None:
    """What is written in a chart is found in its text elements, not drawn as shapes."""
    written = texts(charts()["categories"])
    assert {"Speech", "Average", "reference answers", "10"} <= set(written)


def test_colours_are_the_pages() -> None:
    """In a page ink is the page's own colour and every other one is a property that the page may set."""
    for svg in every_chart().values():
        for element in root(svg).iter():
            for name in ("fill", "stroke"):
                colour = element.get(name, "none")
                assert colour in ("none", "currentColor") or re.fullmatch(
                    r"var\(--chart-[1-5], #[0-9a-f]{6}\)", colour
                )
            if element.tag == f"{SVG}text":
                assert element.get("fill") == "currentColor"


def test_no_identifier_is_twice_in_a_page() -> None:
    """Charts of several runs and languages, two of them alike but for their names, stand in one page."""
    outcomes = a_few()
    page = [
        *charts(outcomes).values(),
        *charts(outcomes, "zh").values(),
        *charts(outcomes, path="another").values(),
        *charts(outcomes, model="other", label=None).values(),
    ]
    found = [element.attrib["id"] for svg in page for element in root(svg).iter() if "id" in element.attrib]
    assert len(found) == len(set(found))
    referred = {
        element.attrib[HREF][1:] for svg in page for element in root(svg).iter() if HREF in element.attrib
    }
    assert referred <= set(found)


def test_a_chart_is_the_same_bytes_whenever_it_is_drawn() -> None:
    """Another process with another hash seed draws the same."""
    code = (
        "import hashlib; from tests.test_charts import every_chart; "
        "print(hashlib.sha256(repr(every_chart()).encode()).hexdigest())"
    )
    assert apart(code, PYTHONHASHSEED="1") == [hashlib.sha256(repr(every_chart()).encode()).hexdigest()]


def test_matplotlib_stays_as_it_was() -> None:
    """Drawing loads no pyplot and leaves no setting changed."""
    code = (
        # Asking for the backend would itself load pyplot.
        "import sys, matplotlib; from tests.test_charts import every_chart; "
        "now = lambda: {n: matplotlib.rcParams[n] for n in matplotlib.rcParams if n != 'backend'}; "
        "before = now(); every_chart(); "
        "print('matplotlib.pyplot' in sys.modules, now() == before)"
    )
    assert apart(code) == ["False", "True"]


def test_foreign_text_is_inert() -> None:
    """Markup, mathematics, format fields and control characters in names do nothing."""
    run = reported(a_few(judge=HOSTILE), judge=HOSTILE, label=HOSTILE, model=HOSTILE, tags={HOSTILE: "1"})
    other = replace(
        run, summary=replace(run.summary, tags={HOSTILE: "2"}), manifest={**run.manifest, "label": None}
    )
    drawn = charts_of(run, language="en")
    trend = trend_chart([run, other], HOSTILE, language="en")
    difference = difference_chart(compared(run, other, across_judges=True), language="en")
    assert trend is not None
    for svg in (*drawn.values(), trend, difference):
        assert {element.tag.removeprefix(SVG) for element in root(svg).iter()} <= ALLOWED
        assert not re.search(r"[\x00-\x08\x0b-\x1f\ud800-\udfff]", svg)
        assert svg.count("<script") == 0
    assert '"><script>alert(1)</script>' in (root(drawn["categories"])[0].text or "")
    assert "$x_1^2$ {0} &amp; 模型" in (root(drawn["categories"])[0].text or "")
    assert any('"><script>alert(1)</script> $' in text for text in texts(trend))


# --- categories ---------------------------------------------------------------------------------------------


def test_means_and_intervals_stand_at_their_scores() -> None:
    """Read back from the drawing, whisker ends, mean and reference are the summary's numbers."""
    run = reported(a_few())
    svg = charts_of(run, language="en")["categories"]
    for name in ("speech", "sound", "music", "mixed_audio", "average"):
        cell = run.summary.cell(name)
        assert cell.ci95 is not None
        assert cell.gpt_score is not None
        assert cell.reference_score is not None
        ends = [x for x, _ in points(shown(svg, "interval", name)[0])]
        assert ends == pytest.approx([at_score(svg, end) for end in cell.ci95], abs=0.02)
        ((mean, _),) = marks(shown(svg, "mean", name)[0])
        assert mean == pytest.approx(at_score(svg, cell.gpt_score), abs=0.02)
        ((reference, _),) = marks(shown(svg, "reference", name)[0])
        assert reference == pytest.approx(at_score(svg, cell.reference_score), abs=0.02)
        (value,) = shown(svg, "value", name)
        assert "".join(value.itertext()) == (f"{cell.gpt_score:.2f} [{cell.ci95[0]:.2f}, {cell.ci95[1]:.2f}]")


def test_nothing_is_drawn_for_a_cell_that_is_not_available() -> None:
    """A run of speech alone has marks in speech, and n/a without any mark in the other rows."""
    svg = charts(a_few(["speech_QA"]))["categories"]
    kinds = ("interval", "mean", "reference", "bound", "published-same", "published-other")
    assert {element.get("data-name") for kind in kinds for element in shown(svg, kind)} == {"speech"}
    for name in ("sound", "music", "mixed_audio", "average"):
        (value,) = shown(svg, "value", name)
        assert "".join(value.itertext()) == "n/a"


def test_a_cell_without_an_interval_has_a_mean_and_no_whisker() -> None:
    """One clip is too few for an interval."""
    svg = charts(a_few(["speech_QA"], each=2))["categories"]
    assert shown(svg, "mean", "speech")
    assert not shown(svg, "interval")


def test_published_scores_stand_at_their_place_and_the_nearest_are_named() -> None:
    """Rows by the run's own judge are apart from the others, and the two around the mean are labelled."""
    run = reported(a_few())
    svg = charts_of(run, language="en")["categories"]
    xs = sorted({x for x, _ in points(shown(svg, "published-same", "average")[0])})
    published = (6.93, 6.34, 6.11, 6.08, 5.70, 5.33, 4.25, 4.13, 1.15, 1.01)
    assert xs == pytest.approx([at_score(svg, score) for score in sorted(published)], abs=0.02)
    mean = run.summary.average.gpt_score
    assert mean is not None
    below, above = max(s for s in published if s <= mean), min(s for s in published if s > mean)
    assert [text for text in texts(svg) if text.endswith((f" {below:.2f}", f" {above:.2f}"))]


@pytest.mark.parametrize(
    ("asked", "returned"), [("gpt-4o", "gpt-4o"), (JUDGE, "gpt-4o"), ("gpt-4o", JUDGE)], ids=str
)
def test_scores_by_another_judge_are_never_highlighted(asked: str, returned: str) -> None:
    """Unless the judge asked for and the one that the server named are the published one, all are faint."""
    svg = charts(a_few(judge=returned), judge=asked)["categories"]
    assert not shown(svg, "published-same")
    assert shown(svg, "published-other", "average")
    assert not [text for text in texts(svg) if text.startswith("Qwen")]


def test_scores_of_one_order_are_not_marked_as_by_the_same_judge() -> None:
    """What the leaderboard ranks apart is not highlighted as alike."""
    svg = charts(a_few(orders=BOTH[:1]), orders=BOTH[:1])["categories"]
    assert not shown(svg, "published-same")


def test_the_lower_bound_is_shown_where_many_failed() -> None:
    """Under 99 % coverage the mean with failed samples as 0 stands beside the mean."""
    run = reported(a_few(["speech_QA"], each=10))
    svg = charts_of(run, language="en")["categories"]
    bounds = run.summary.cell("speech").bounds
    assert bounds is not None
    assert f"failed as 0: {bounds[0]:.2f}" in texts(svg)
    ((x, _), _) = points(shown(svg, "bound", "speech")[0])
    assert x == pytest.approx(at_score(svg, bounds[0]), abs=0.02)
    complete = charts([scored("speech_QA", number) for number in range(10)])["categories"]
    assert not shown(complete, "bound")


# --- the other charts of a run ------------------------------------------------------------------------------


def bars(element: ET.Element) -> list[tuple[float, float]]:
    """Return the middle and the height of each bar, in points."""
    found = []
    for path in element.iter(f"{SVG}path"):
        for outline in path.attrib["d"].split("M")[1:]:
            numbers = [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", outline)]
            xs, ys = numbers[::2], numbers[1::2]
            found.append(((min(xs) + max(xs)) / 2, max(ys) - min(ys)))
    return found


def test_the_distribution_has_a_bar_for_each_half_point() -> None:
    """Bars stand at the scores given, and their heights are the scores' shares."""
    outcomes = [scored("speech_QA", number) for number in (0, 0, 0, 1)]
    run = reported([replace(one, sample=a_sample("speech_QA", n)) for n, one in enumerate(outcomes)])
    svg = charts_of(run, language="en")["distribution"]
    (first, high), (second, low) = sorted(bars(shown(svg, "shares", "answer")[0]))
    assert (first, second) == pytest.approx((at_score(svg, 0.5), at_score(svg, 7.5)), abs=0.02)
    assert high / low == pytest.approx(3, abs=0.01)


def test_the_heat_map_counts_every_sample_by_its_two_scores() -> None:
    """A cell stands at the score of each order, and all cells add up to the samples scored."""
    run = reported(a_few())
    svg = charts_of(run, language="en")["orders"]
    cells = [tuple(map(int, str(cell.get("data-name")).split(","))) for cell in shown(svg, "count")]
    assert sum(count for _, _, count in cells) == run.summary.counts["scored"]
    assert {above - first for first, above, _ in cells} == {1}
    for cell, (first, _, _) in zip(shown(svg, "count"), cells, strict=True):
        assert bars(cell)[0][0] == pytest.approx(at_score(svg, first), abs=0.02)
    assert "100% higher" in texts(svg)


def test_one_order_has_no_heat_map() -> None:
    """Without the swap there are no two scores to compare."""
    outcomes = [
        replace(one, verdicts={order: one.verdicts[order] for order in BOTH[:1] if order in one.verdicts})
        for one in a_few()
    ]
    assert "orders" not in charts(outcomes, orders=BOTH[:1])


def test_the_means_by_length_are_those_of_the_answers() -> None:
    """With few answers there is one group, whose mean and interval are of all scored samples."""
    outcomes = [scored("speech_QA", number) for number in range(20)]
    run = reported(outcomes)
    svg = charts_of(run, language="en")["length"]
    ticks = {
        text.text: float(text.attrib["y"])
        for text in root(svg).iter(f"{SVG}text")
        if text.get("text-anchor") == "end" and (text.text or "").isdigit()
    }
    cell = run.summary.cell("speech")
    assert cell.ci95 is not None
    assert cell.gpt_score is not None
    unit = (ticks["10"] - ticks["0"]) / 10
    ((_, mean),) = marks(shown(svg, "mean", "length")[0])
    low, high = (y for _, y in points(shown(svg, "interval", "0")[0]))
    assert (low - mean) / unit == pytest.approx(cell.ci95[0] - cell.gpt_score, abs=0.01)
    assert (high - mean) / unit == pytest.approx(cell.ci95[1] - cell.gpt_score, abs=0.01)


def test_failures_have_a_bar_each_as_long_as_their_count() -> None:
    """The most frequent kind comes first."""
    kinds = [FailureKind.TIMEOUT, FailureKind.BAD_AUDIO, FailureKind.TIMEOUT, FailureKind.TIMEOUT]
    outcomes = [failed("speech_QA", number, kind) for number, kind in enumerate(kinds)]
    svg = charts(outcomes)["failures"]
    found = shown(svg, "failed")
    assert [bar.get("data-name") for bar in found] == ["timeout", "bad_audio"]
    widths = [max(x for x, _ in points(bar)) - min(x for x, _ in points(bar)) for bar in found]
    assert widths[0] / widths[1] == pytest.approx(3, abs=0.01)
    assert ["".join(value.itertext()) for value in shown(svg, "value")] == ["3", "1"]


def test_charts_without_anything_to_show_are_not_there() -> None:
    """A run where nothing failed, was judged, or told its times, and an empty one, have fewer charts."""
    assert list(charts([])) == []
    assert list(charts([failed("speech_QA", 1)])) == ["failures"]
    assert "failures" not in charts([scored("speech_QA", 1)])
    silent = scored("speech_QA", 1)
    assert isinstance(silent.answer, Answer)
    imported = replace(silent, answer=replace(silent.answer, replies=(Reply(text="a"),)), verdicts={})
    assert list(charts([imported])) == []


def test_timing_tells_the_median_of_all_replies() -> None:
    """Median and 95 % end are those of the replies' own values."""
    svg = charts([scored("speech_QA", number) for number in range(21)])["timing"]
    assert "median 1.5 s, 95% up to 2.4 s" in texts(svg)
    assert "median 110, 95% up to 119" in texts(svg)


def test_samples_outside_of_the_view_are_not_drawn() -> None:
    """The paper's view leaves the generation tasks out of every chart."""
    outcomes = a_few()
    run = reported(outcomes, view="paper-2000")
    cells = shown(charts_of(run, language="en")["orders"], "count")
    counted = sum(int(str(cell.get("data-name")).split(",")[2]) for cell in cells)
    assert counted == run.summary.counts["scored"] < len(outcomes)


def test_official_scoring_draws_what_the_official_rule_reads() -> None:
    """The replies are '8 5' in both orders: an answer got 5 where the reference stood first, else 8."""
    svg = charts([scored("speech_QA", number) for number in range(4)], scoring="official")["orders"]
    assert [cell.get("data-name") for cell in shown(svg, "count")] == ["5,8,4"]


# --- several runs -------------------------------------------------------------------------------------------


def test_differences_stand_around_zero() -> None:
    """Read back from the drawing, each whisker and mark is the comparison's number."""
    comparison = compared(
        reported(a_few()), reported([*a_few(each=8, text="b"), scored("sound_QA", 9, better=2, text="b")])
    )
    svg = difference_chart(comparison, language="en")
    ticks = {text: x for text, x in across(svg) if re.fullmatch(r"[+0-9.]+", text)}
    zero, (furthest, x) = ticks["0"], max(ticks.items(), key=lambda tick: tick[1])
    unit = (x - zero) / float(furthest)
    drawn = 0
    for name, cell in comparison.models[0].cells.items():
        one = cell.gpt_score
        assert one is not None
        ((x, _),) = marks(shown(svg, "difference", f"B-{name}")[0])
        assert (x - zero) / unit == pytest.approx(one.value, abs=0.002)
        whiskers = shown(svg, "interval", f"B-{name}")
        assert bool(whiskers) == (one.ci95 is not None)
        for whisker in whiskers:
            assert one.ci95 is not None
            ends = [(end - zero) / unit for end, _ in points(whisker)]
            assert ends == pytest.approx(list(one.ci95), abs=0.002)
            drawn += 1
    assert drawn
    assert "identical" in texts(svg)


def test_a_difference_that_is_not_available_is_not_drawn() -> None:
    """Runs of speech alone have no mark in the other cells."""
    runs = [reported(a_few(["speech_QA"], better=better, text=text)) for better, text in ((0, "a"), (1, "b"))]
    svg = difference_chart(compared(*runs), language="en")
    assert {mark.get("data-name") for mark in shown(svg, "difference")} == {"B-speech", "B-all_samples"}
    assert texts(svg).count("n/a") == 6


def test_judges_are_compared_by_answers_and_references() -> None:
    """Two judges of the same answers have a mark each for what they gave the answers and the references."""
    runs = [reported(a_few(better=better, judge=name), judge=name) for better, name in ((0, "j"), (1, "k"))]
    svg = difference_chart(compared(*runs), language="en")
    names = {mark.get("data-name") for mark in shown(svg, "difference")}
    assert {"B-answer-average", "B-reference-average"} <= names


def test_only_tags_that_are_different_numbers_in_every_run_count() -> None:
    """A word, a number that is always the same, one that is missing, and not-a-number are no axis."""
    tags = [
        {"step": "100", "lr": "1e-4", "name": "a", "same": "1", "some": "1", "odd": "nan"},
        {"step": "200", "lr": "1e-5", "name": "b", "same": "1.0", "odd": "2"},
    ]
    runs = [reported(a_few(each=3), tags=one) for one in tags]
    assert numeric_tags(runs) == ["lr", "step"]
    assert numeric_tags(runs[:1]) == []
    assert trend_chart(runs, "name", language="en") is None
    assert trend_chart(runs, "same", language="en") is None


def test_the_trend_has_every_run_at_its_number() -> None:
    """Marks stand in the order of the numbers, in proportion, each with its interval."""
    runs = [
        reported(a_few(better=better), tags={"step": step})
        for step, better in (("1000", 0), ("4000", 1), ("2000", 0.5))
    ]
    svg = trend_chart(runs, "step", language="en")
    assert svg is not None
    xs = [x for mark in shown(svg, "mean", "average") for x, _ in marks(mark)]
    assert (xs[1] - xs[0]) * 2 == pytest.approx(xs[2] - xs[1], abs=0.03)
    assert len(shown(svg, "interval", "average")) == 3
    assert [x for x, _ in (points(one)[0] for one in shown(svg, "interval", "average"))] == pytest.approx(xs)


def test_runs_by_different_judges_are_not_joined() -> None:
    """Each judge has a line of its own, and is named."""
    runs = [
        reported(a_few(judge=judge), judge=judge, tags={"step": step})
        for step, judge in (("1", "j"), ("2", "j"), ("3", "k"))
    ]
    svg = trend_chart(runs, "step", language="en")
    assert svg is not None
    assert {"judged by j", "judged by k"} <= set(texts(svg))
    lines = [points(one) for one in shown(svg, "line", "average")]
    assert [len(line) for line in lines] == [2]


@given(st.lists(st.floats(0, 1e7), min_size=1, max_size=20), st.integers(3, 8))
def test_a_logarithmic_axis_holds_its_values_and_has_ticks(values: list[float], most: int) -> None:
    """Every value, 0 included, lies within the axis, which has one tick at least and not too many."""
    scale = LogScale(values)
    assert all(scale.low <= scale.at(value) <= scale.high for value in values)
    ticks = scale.ticks(most)
    assert 1 <= len(ticks) <= most
    assert all(scale.low <= math.log10(1 + tick) <= scale.high for tick in ticks)


# --- files --------------------------------------------------------------------------------------------------


def test_figures_are_written_as_files_of_their_own(tmp_path: Path) -> None:
    """An SVG file has its size and colours of its own; one run's files are named by the charts alone."""
    written = write_figures([reported(a_few())], tmp_path / "new", file_format="svg", language="en")
    assert [path.name for path in written] == [f"{name}.svg" for name in NAMES]
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == sorted(p.name for p in written)
    for path in written:
        text = path.read_text(encoding="utf-8")
        assert root(text.encode().decode().partition("?>")[2]).get("width") in ("6.9in", "3.3in")
        assert "currentColor" not in text
        assert "var(" not in text


def test_figures_of_several_runs_do_not_overwrite_each_other(tmp_path: Path) -> None:
    """Files begin with the run's number and its name, made fit for file systems."""
    runs = [
        reported(a_few(better=better, text=text), label="../a: b/模型", tags={"step": text, "n": str(better)})
        for better, text in ((0, "a"), (1, "b"))
    ]
    written = write_figures(runs, tmp_path, file_format="svg", language="en", comparison=compared(*runs))
    names = [path.name for path in written]
    assert names[0] == "1-a-b-categories.svg"
    assert "2-a-b-categories.svg" in names
    assert names[-2:] == ["difference.svg", "trend-n.svg"]
    assert all(path.parent == tmp_path for path in written)


def test_pdf_is_the_same_bytes_each_time(tmp_path: Path) -> None:
    """No date is in a PDF, and its fonts are TrueType."""
    run = reported([*(replace(one, verdicts={}) for one in a_few(each=3))])
    first, second = (
        write_figures([run], tmp_path / name, file_format="pdf", language="en") for name in ("a", "b")
    )
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()
        assert one.read_bytes().startswith(b"%PDF")
        assert b"/Type3" not in one.read_bytes()


def test_chinese_pdf_falls_back_to_english_without_a_font(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no font has the characters, texts are English rather than empty boxes."""
    own = [font for font in fontManager.ttflist if font.name.startswith("DejaVu")]
    monkeypatch.setattr(fontManager, "ttflist", own)
    assert pdf_language("zh") == "en"
    written = write_figures([reported([failed("speech_QA", 1)])], tmp_path, file_format="pdf", language="zh")
    assert b"Failures of a label" in written[0].read_bytes()


def test_a_folder_that_cannot_be_written_is_a_users_mistake(tmp_path: Path) -> None:
    """The message names the place and what to do."""
    (tmp_path / "taken").write_text("a file", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"taken.*--figures"):
        write_figures([reported(a_few())], tmp_path / "taken", file_format="svg", language="en")
