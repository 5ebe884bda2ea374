"""Comparisons: what is paired, what is refused, and numbers checked against counting by hand."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otoscope.benchmark import AVERAGE_PARTS, CATEGORIES, MIXED_PARTS, TASKS
from otoscope.comparison import CELLS, Comparison, JudgedRun, ModelCell, compare
from otoscope.errors import ConfigError
from otoscope.records import Answer, Failure, FailureKind, Json, Order, Outcome, Reply, Sample, Verdict
from otoscope.scoring import summarise
from otoscope.stats import Stratum, estimate

ORDERS = tuple(Order)
TIMEOUT = Failure(FailureKind.TIMEOUT, "took too long", 6)
UNPARSEABLE = Failure(FailureKind.UNPARSEABLE, "the judge said 'no'", 3, (Reply(text="no", model="j"),))
JUDGE: Json = {
    "name": "gpt-4-0125-preview",
    "revision": None,
    "api_url": "http://judge/v1",
    "parameters": {"temperature": 0, "max_tokens": 1024},
    "protocol": "default",
    "do_swap": True,
    "prompt_sha256": "cd66",
    "parser_version": 1,
}
PROMPT: Json = {"template": "{question}", "system": None, "part_order": "audio-first"}
DRAWS = 10_000


def manifest(*, judge: Json | None = None, prompt: Json | None = None, **more: Any) -> Json:
    """Return what a run's manifest says, with other values where given."""
    fingerprint = {
        "model": {"name": "qwen2-audio"},
        "prompt": {**PROMPT, **(prompt or {})},
        "judge": {**JUDGE, **(judge or {})},
    }
    return {"fingerprint": fingerprint, "dataset": {"digest": "d"}, **more}


def an_outcome(
    number: int,
    scores: Sequence[float] | Failure | None,
    *,
    references: Sequence[float] = (8, 8),
    task: str = "speech_QA",
    clip: str | None = "own",
    text: str = "Mom",
    record: str = "record",
    reply: Reply | None = None,
    kind: str = "integer",
) -> Outcome:
    """Return the outcome of a sample: its score in each order, a failed verdict, or none yet."""
    sample = Sample(task, TASKS[task].folders[0], f"{number}.wav", number, "q", "r", "d", "", record)
    answer = Answer(raw_text=text, text=text, replies=(Reply(text=text),))
    facts = None if clip is None else {"sha256": f"{number}" if clip == "own" else clip}
    verdicts: dict[Order, Verdict | Failure] = {}
    if isinstance(scores, Failure):
        verdicts = dict.fromkeys(ORDERS, scores)
    elif scores is not None:
        for order, score, reference in zip(ORDERS, scores, references, strict=False):
            verdicts[order] = Verdict(
                order=order,
                judge_id="judge",
                answer_sha256=answer.sha256,
                score_kind=kind,
                reference_score=reference,
                answer_score=score,
                replies=(reply or Reply(text="8 7", model="gpt-4", parameters={"temperature": 0}),),
            )
    return Outcome(sample, answer, verdicts, facts)


def a_run(
    outcomes: Iterable[Outcome], name: str = "run", *, orders: Sequence[Order] = ORDERS, **more: Any
) -> JudgedRun:
    """Return a run with these outcomes."""
    return JudgedRun(name, manifest(**more), orders, list(outcomes))


def scored(scores: Iterable[float], **more: Any) -> list[Outcome]:
    """Return samples of one task with these scores, each on a clip of its own."""
    return [an_outcome(number, (score, score), **more) for number, score in enumerate(scores)]


def of_all_tasks(scores: Mapping[str, Sequence[float]], text: str) -> list[Outcome]:
    """Return samples with these scores by task; numbers run on, so that every sample has its own."""
    numbers = itertools.count()
    return [
        an_outcome(next(numbers), (score, score), task=task, text=text)
        for task, own in scores.items()
        for score in own
    ]


def cell(comparison: Comparison, name: str = "speech", run: int = 0) -> ModelCell:
    """Return a cell of the comparison of models."""
    return comparison.models[run].cells[name]


def warned(comparison: Comparison) -> dict[str, str]:
    """Return the warnings by their name, in their order."""
    return {warning["name"]: warning["message"] for warning in comparison.warnings}


def left_out(comparison: Comparison) -> dict[tuple[str, tuple[str, ...]], int]:
    """Return how many samples are left out, by reason and runs."""
    return {(one.reason, one.runs): one.samples for one in comparison.left_out}


# --- what is compared -------------------------------------------------------------------------------------


def test_only_samples_that_all_runs_scored_are_compared_and_each_other_one_is_accounted_for() -> None:
    """Absent, changed, failed, pending samples and other clips are left out, each under its reason, once."""
    first = a_run(
        [
            an_outcome(1, (5, 5)),
            an_outcome(2, (5, 5)),
            an_outcome(3, (5, 5), record="older"),
            an_outcome(4, TIMEOUT),
            an_outcome(5, (5, 5)),
            an_outcome(6, UNPARSEABLE),
            an_outcome(7, (5,)),
            an_outcome(8, (5, 5), clip="x"),
            an_outcome(9, (5, 5), clip=None),
            an_outcome(10, (5, 5), clip=None),
        ]
    )
    second = a_run(
        [
            an_outcome(1, (6, 6), text="Dad"),
            an_outcome(3, (6, 6)),
            an_outcome(4, (6, 6)),
            an_outcome(5, TIMEOUT),
            an_outcome(6, TIMEOUT),
            an_outcome(7, (6, 6)),
            an_outcome(8, (6, 6), clip="y"),
            an_outcome(9, (6, 6), clip="z"),
            an_outcome(10, (6, 6), clip=None),
            an_outcome(11, (6, 6)),
        ]
    )
    comparison = compare([first, second])
    assert comparison.samples == 2
    assert left_out(comparison) == {
        ("not_in", ("B",)): 1,
        ("not_in", ("A",)): 1,
        ("record", ("B",)): 1,
        ("failed", ("A",)): 1,
        ("failed", ("B",)): 1,
        ("failed", ("A", "B")): 1,
        ("pending", ("A",)): 1,
        ("clip", ("B",)): 1,
        ("clip_unknown", ("A",)): 1,
    }
    assert comparison.samples + sum(one.samples for one in comparison.left_out) == 11
    run = comparison.run("A")
    assert (run.samples, run.scored, run.failed, run.pending) == (10, 7, 2, 1)


def test_more_runs_are_compared_on_the_one_set_that_all_have() -> None:
    """A sample that one of five runs failed counts for none of them, and each is set against the baseline."""
    runs = [a_run(scored([level] * 6, text=f"answer {level}"), f"run {level}") for level in range(5)]
    runs[3] = replace(runs[3], outcomes=[an_outcome(0, TIMEOUT), *list(runs[3].outcomes)[1:]])
    comparison = compare(runs, baseline=2)
    assert comparison.samples == 5
    assert left_out(comparison) == {("failed", ("D",)): 1}
    assert comparison.baseline == "C"
    assert [one.run for one in comparison.models] == ["A", "B", "D", "E"]
    values = [one.cells["speech"].gpt_score for one in comparison.models]
    assert [value.value for value in values if value] == [-2, -1, 1, 2]
    assert comparison.holm_tests == 4


def test_nothing_in_common_is_an_error_that_says_why() -> None:
    """Runs without a common sample are refused, with the number of samples for each reason."""
    first, second = a_run(scored([5, 5], record="older"), "old"), a_run(scored([6, 6, 6]), "new")
    with pytest.raises(ConfigError, match=r"no sample was scored by all.*old.*new") as error:
        compare([first, second])
    assert "2 with another record in B" in str(error.value)
    assert "1 not in A" in str(error.value)
    assert error.value.exit_code == 2
    with pytest.raises(ConfigError, match=r"2 whose clip is not known in B\n.*import with --data"):
        compare([a_run(scored([5, 5])), a_run(scored([6, 6], clip=None), "imported")])


@pytest.mark.parametrize("count", [0, 1, 27])
def test_there_must_be_two_runs_at_least(count: int) -> None:
    """One run alone cannot be compared, nor more than there are letters."""
    with pytest.raises(ConfigError, match=f"but got {count}"):
        compare([a_run(scored([5]))] * count)


def test_a_run_without_scores_of_its_samples_is_refused() -> None:
    """An import whose orders are not joined, and a run that was never judged, are refused by their name."""
    good = a_run(scored([5]))
    with pytest.raises(ConfigError, match=r"official-import.*joined"):
        compare([good, a_run(scored([6]), "official-import", unjoined={"rows": 3})])
    bare = a_run(scored([6]), "no judge")
    bare.manifest["fingerprint"]["judge"] = None
    with pytest.raises(ConfigError, match=r"not judged.*\n.*otoscope judge 'no judge'"):
        compare([good, bare])


def test_another_data_set_warns_with_the_number_of_differing_records() -> None:
    """Different digests warn, counting the samples that both have with other records; equal ones do not."""
    first = a_run(scored([5, 5, 5]))
    second = a_run(
        [*scored([6, 6], text="Dad"), an_outcome(2, (6, 6), record="newer")], dataset={"digest": "other"}
    )
    assert "in 1 of the 3 samples" in warned(compare([first, second]))["dataset"]
    assert "dataset" not in warned(compare([first, first]))


@pytest.mark.parametrize(("failed", "told"), [(1, None), (2, "98.9 % of A's 199, 98.5 % of B's 200")])
def test_little_in_common_is_warned_of_with_its_numbers(failed: int, told: str | None) -> None:
    """Under 99 % of any run's samples in common is said, for each such run; 99 % and more is not."""
    scores: list[float] = [5, 6] * 100
    second = scored(scores, text="Dad")
    second[:failed] = [an_outcome(number, TIMEOUT) for number in range(failed)]
    first = scored(scores[: 200 - failed + 1])
    warning = warned(compare([a_run(first), a_run(second)])).get("in_common")
    assert warning == (told and f"only 197 samples are in common: {told}")


def test_other_shares_than_the_full_sets_are_warned_of_with_the_full_sets_difference() -> None:
    """Two samples of 400 and one of 100 weigh 2:1, not 4:1: the difference with 4:1 stands beside."""
    sizes = {"sound_QA": [1.0, 3.0], "sound_generation_QA": [7.0]}
    first = {task: [0.0] * len(leads) for task, leads in sizes.items()}
    comparison = compare([a_run(of_all_tasks(first, "Mom")), a_run(of_all_tasks(sizes, "Dad"))])
    score = cell(comparison, "sound").gpt_score
    assert score is not None
    assert score.value == pytest.approx(11 / 3)
    assert score.value_full_weights == pytest.approx(3)
    assert warned(comparison)["partial"].endswith("(Sound); with those, Sound is B-A +3.00 (here +3.67)")
    everything = cell(comparison, "all_samples").gpt_score
    assert everything is not None
    assert everything.value_full_weights is None, "most tasks are missing"


def test_the_full_sets_shares_are_not_warned_of() -> None:
    """A hundredth of each task, or half of a task that is a category by itself, has the full set's shares."""
    hundredth = {name: [5.0 + n % 2 for n in range(task.samples // 100)] for name, task in TASKS.items()}
    for scores in (hundredth, {"speech_and_sound_QA": [5.0, 6.0]}):
        comparison = compare([a_run(of_all_tasks(scores, text)) for text in ("Mom", "Dad")])
        assert "partial" not in warned(comparison)
    one_less = {**hundredth, "music_QA": hundredth["music_QA"][1:]}
    comparison = compare([a_run(of_all_tasks(one_less, text)) for text in ("Mom", "Dad")])
    assert "(Music, Average, All samples)" in warned(comparison)["partial"]


# --- judged alike -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"name": "gpt-4o"}, "judge.name: 'gpt-4-0125-preview' in A, 'gpt-4o' in B"),
        ({"revision": "r2"}, "judge.revision: None in A, 'r2' in B"),
        ({"protocol": "official"}, "judge.protocol: 'default' in A, 'official' in B"),
        ({"parser_version": 2}, "judge.parser_version: 1 in A, 2 in B"),
        ({"do_swap": False}, "judge.do_swap: True in A, False in B"),
        ({"prompt_sha256": "other"}, "judge.prompt_sha256: 'cd66' in A, 'other' in B"),
    ],
)
def test_runs_that_were_not_judged_alike_are_refused_by_name(changed: Json, told: str) -> None:
    """Each differing field is named with both values; --across-judges compares, and a warning comes first."""
    orders = Order.judged(swap=changed.get("do_swap", True))
    runs = [a_run(scored([5, 6])), a_run(scored([6, 7], text="Dad"), orders=orders, judge=changed)]
    with pytest.raises(ConfigError, match="--across-judges") as error:
        compare(runs)
    assert told in str(error.value)
    comparison = compare(runs, across_judges=True)
    assert next(iter(warned(comparison))) == "across_judges"
    assert [one.field for one in comparison.judged_differently] == [told.partition(":")[0]]
    assert comparison.models


def test_every_differing_field_is_named() -> None:
    """A refusal lists all the fields at once, of every run."""
    judges: list[Json] = [{}, {"name": "gpt-4o", "protocol": "official"}, {"parser_version": 2}]
    runs = [a_run(scored([5], text=str(one)), judge=one) for one in judges]
    with pytest.raises(ConfigError) as error:
        compare(runs)
    for told in ("'gpt-4o' in B", "'official' in B", "2 in C"):
        assert told in str(error.value)


def test_what_the_judges_server_returned_and_was_sent_counts() -> None:
    """Other returned names or other parameters really sent are refused; a raised token limit is not."""

    def replied(text: str, model: str | None, **parameters: Any) -> JudgedRun:
        return a_run(scored([5, 6], text=text, reply=Reply(text="", model=model, parameters=parameters)))

    base = replied("Mom", "gpt-4-0125", temperature=0, max_tokens=1024)
    with pytest.raises(ConfigError, match=r"as returned: 'gpt-4-0125' in A, 'gpt-4-0613' in B"):
        compare([base, replied("Dad", "gpt-4-0613", temperature=0)])
    with pytest.raises(ConfigError, match=r"judge.parameters: {'temperature': 0} in A, {'top_p': 1} in B"):
        compare([base, replied("Dad", "gpt-4-0125", top_p=1)])
    assert compare([base, replied("Dad", "gpt-4-0125", temperature=0.0, max_tokens=8192)]).models
    assert compare([base, replied("Dad", None)]).models, "an import knows neither: nothing differs"


def test_what_was_requested_counts_where_no_reply_tells_what_was_sent() -> None:
    """A judge asked for at another temperature is refused; another token limit is no other sampling."""
    runs = {
        name: a_run(
            scored([5, 6], text=name, reply=Reply(text="", model="j")), judge={"parameters": parameters}
        )
        for name, parameters in {
            "Mom": {"temperature": 0, "max_tokens": 1024},
            "Dad": {"temperature": 0.7, "max_tokens": 1024},
            "Me": {"temperature": 0, "max_completion_tokens": 8192},
        }.items()
    }
    with pytest.raises(ConfigError, match=r"judge.parameters: {'temperature': 0} in A, {'temperature': 0.7}"):
        compare([runs["Mom"], runs["Dad"]])
    assert compare([runs["Mom"], runs["Me"]]).models


def test_scores_from_probabilities_are_another_scoring() -> None:
    """Expected scores and scores that a reply spells out are not compared; whole and decimal ones are."""
    written, decimal = a_run(scored([5, 6])), a_run(scored([5.5, 6], text="Dad", kind="decimal"))
    assert compare([written, decimal]).models
    with pytest.raises(ConfigError, match="scoring: 'written' in A, 'expected' in B"):
        compare([written, a_run(scored([5.5, 6], text="Dad", kind="expected"))])


def test_a_judge_at_another_address_is_the_same_judge_with_a_warning() -> None:
    """Without a revision another URL is named; with one, the revision is the identity."""
    moved = {"api_url": "http://other/v1"}
    runs = [a_run(scored([5, 6])), a_run(scored([6, 7], text="Dad"), judge=moved)]
    assert "'http://judge/v1' in A, 'http://other/v1' in B" in warned(compare(runs))["judge_address"]
    runs = [
        a_run(scored([5, 6]), judge={"revision": "r"}),
        a_run(scored([6, 7]), judge={**moved, "revision": "r"}),
    ]
    assert "judge_address" not in warned(compare(runs))


def test_several_names_of_one_judge_warn() -> None:
    """Runs whose judges returned the same several names are compared, and the names are told."""
    replies = [Reply(text="", model=name) for name in ("gpt-4-b", "gpt-4-a")]
    runs = [
        a_run([an_outcome(n, (5, 5), text=text, reply=reply) for n, reply in enumerate(replies)])
        for text in ("Mom", "Dad")
    ]
    assert "gpt-4-a, gpt-4-b" in warned(compare(runs))["several_judges"]


def test_an_import_whose_files_name_no_judge_warns() -> None:
    """That two runs have the same judge is only said, where an import's files do not tell who replied."""
    for name, warns in (("unknown", True), ("gpt-4-0125-preview", False)):
        runs = [
            a_run(scored([level, 6], text=text), judge={"name": name}, imported=[{}])
            for level, text in ((5, "Mom"), (7, "Dad"))
        ]
        assert ("judge_unknown" in warned(compare(runs))) is warns


def test_another_model_prompt_is_named_and_not_refused() -> None:
    """Models may be prompted differently, that is what is compared; which prompt is which is said."""
    long = "Listen. " * 40
    runs = [a_run(scored([5, 6])), a_run(scored([6, 7], text="Dad"), prompt={"system": long})]
    message = warned(compare(runs))["prompt"]
    assert "prompt.system: None in A, 'Listen." in message
    assert "322 characters" in message
    assert len(message) < 300


def test_what_an_import_does_not_tell_is_no_differing_prompt() -> None:
    """Only what both runs know of their prompts is compared: files of other tools leave much out."""
    imported = a_run(
        scored([6, 7], text="Dad"), prompt={"template": None, "source": "evalscope"}, imported=[{}]
    )
    assert "prompt" not in warned(compare([a_run(scored([5, 6])), imported]))


def test_answers_that_no_file_tells_are_not_the_same() -> None:
    """Verdicts imported without their answers never make a comparison of judges."""

    def without_answers(level: float) -> JudgedRun:
        known = a_run(scored([level, 6]), imported=[{}])
        bare = Answer(raw_text="", text="", replies=())
        return replace(known, outcomes=[replace(outcome, answer=bare) for outcome in known.outcomes])

    assert compare([without_answers(4), without_answers(5)]).kind == "models"


# --- differences between models ---------------------------------------------------------------------------

FIRST = {
    "speech_QA": [5, 6, 7], "speech_dialogue_QA": [4, 4], "sound_QA": [3, 8], "sound_generation_QA": [7, 7],
    "music_QA": [9, 2, 5], "music_generation_analysis_QA": [6, 1], "speech_and_sound_QA": [5, 5],
    "speech_and_music_QA": [8, 3, 3],
}  # fmt: skip
SECOND = {
    "speech_QA": [6, 6, 9], "speech_dialogue_QA": [5, 3], "sound_QA": [4, 8], "sound_generation_QA": [9, 8],
    "music_QA": [9, 4, 4], "music_generation_analysis_QA": [7, 1], "speech_and_sound_QA": [2, 6],
    "speech_and_music_QA": [9, 4, 2],
}  # fmt: skip


def by_hand(values: Mapping[str, Sequence[float]]) -> dict[str, Fraction]:
    """Return every cell's mean: a category pools its samples, Mixed and the Average are means of parts."""

    def mean(numbers: Iterable[Fraction]) -> Fraction:
        listed = list(numbers)
        return sum(listed, Fraction(0)) / len(listed)

    means = {
        category: mean(
            Fraction(v) for task, own in values.items() for v in own if TASKS[task].category == category
        )
        for category in CATEGORIES
    }
    means["mixed_audio"] = mean(means[part] for part in MIXED_PARTS)
    means["average"] = mean(means[part] for part in AVERAGE_PARTS)
    means["all_samples"] = mean(Fraction(v) for own in values.values() for v in own)
    return means


def test_every_cell_is_what_counting_by_hand_gives() -> None:
    """Means, differences and the rates of wins, ties and losses of each cell are the hand-made ones."""
    comparison = compare([a_run(of_all_tasks(FIRST, "Mom")), a_run(of_all_tasks(SECOND, "Dad"))])
    pairs = {task: list(zip(FIRST[task], SECOND[task], strict=True)) for task in FIRST}
    leads = {task: [b - a for a, b in own] for task, own in pairs.items()}
    signs = {task: [(d > 0) - (d < 0) for d in own] for task, own in leads.items()}
    rates = {
        name: by_hand({task: [float(sign == wanted) for sign in own] for task, own in signs.items()})
        for name, wanted in (("win", 1), ("tie", 0), ("loss", -1))
    }
    assert tuple(comparison.models[0].cells) == CELLS
    for name, own in comparison.models[0].cells.items():
        assert own.gpt_score is not None
        assert own.gpt_score.baseline_mean == pytest.approx(float(by_hand(FIRST)[name]), abs=1e-12)
        assert own.gpt_score.mean == pytest.approx(float(by_hand(SECOND)[name]), abs=1e-12)
        assert own.gpt_score.value == pytest.approx(float(by_hand(leads)[name]), abs=1e-12)
        assert own.win_rate == pytest.approx(float(rates["win"][name]), abs=1e-12)
        assert own.tie_rate == pytest.approx(float(rates["tie"][name]), abs=1e-12)
        assert own.loss_rate == pytest.approx(float(rates["loss"][name]), abs=1e-12)
    speech = cell(comparison)
    assert (speech.n, speech.wins, speech.ties, speech.losses) == (5, 3, 1, 1)
    assert comparison.headline == "average"


def test_intervals_are_those_of_the_paired_differences_by_task() -> None:
    """The Average's interval is that of weighted strata of differences: a quarter for each part."""
    comparison = compare([a_run(of_all_tasks(FIRST, "Mom")), a_run(of_all_tasks(SECOND, "Dad"))])
    weights = {
        "speech_QA": 3 / 5 / 4, "speech_dialogue_QA": 2 / 5 / 4, "sound_QA": 1 / 2 / 4,
        "sound_generation_QA": 1 / 2 / 4,
        "music_QA": 3 / 5 / 4, "music_generation_analysis_QA": 2 / 5 / 4, "speech_and_sound_QA": 1 / 8,
        "speech_and_music_QA": 1 / 8,
    }  # fmt: skip
    strata = [
        Stratum(
            weight,
            [b - a for a, b in zip(FIRST[task], SECOND[task], strict=True)],
            [f"{task} {n}" for n in range(len(FIRST[task]))],
        )
        for task, weight in weights.items()
    ]
    expected = estimate(strata)
    own = cell(comparison, "average")
    assert own.gpt_score is not None
    assert expected.standard_error is not None
    assert own.gpt_score.standard_error == pytest.approx(expected.standard_error)
    assert own.gpt_score.ci95 == pytest.approx(expected.ci95)
    assert own.detectable_difference == pytest.approx(2.80 * expected.standard_error)


def test_a_runs_means_are_those_of_its_own_report() -> None:
    """Where all samples are in common, each mean is to the last bit what the run's report says."""
    outcomes = of_all_tasks(FIRST, "Mom")
    run = a_run(outcomes)
    comparison = compare([run, a_run(of_all_tasks(SECOND, "Dad"))])
    summary = summarise(outcomes, orders=ORDERS, manifest=run.manifest)
    for name, own in comparison.models[0].cells.items():
        assert own.gpt_score is not None
        assert own.gpt_score.baseline_mean == summary.cell(name).gpt_score


def exact_p(differences: Mapping[str, float]) -> float:
    """Return the p of the sign-flip test over all flips of the clips' sums: two-sided."""
    sums = list(differences.values())
    seen = abs(math.fsum(sums))
    flips = list(itertools.product((-1, 1), repeat=len(sums)))
    return sum(
        abs(sum(f * s for f, s in zip(flip, sums, strict=True))) >= seen - 1e-9 for flip in flips
    ) / len(flips)


def test_the_test_flips_a_clip_with_all_its_samples() -> None:
    """The p is that of all flips by clip, as near as 10,000 draws get; by sample it would be another."""
    leads = {"c1": [2, 1], "c2": [1, 1, 1], "c3": [-1], "c4": [2], "c5": [1], "c6": [-1, 2], "c7": [1]}
    numbers = itertools.count()
    rows = [(next(numbers), clip, lead) for clip, own in leads.items() for lead in own]
    first = a_run([an_outcome(n, (5, 5), clip=clip) for n, clip, _ in rows])
    second = a_run([an_outcome(n, (5 + d, 5 + d), clip=clip, text="Dad") for n, clip, d in rows])
    p = cell(compare([first, second])).p
    assert p is not None
    by_clip = exact_p({clip: sum(own) for clip, own in leads.items()})
    by_sample = exact_p({str(n): lead for n, _, lead in rows})
    margin = 5 * math.sqrt(by_clip * (1 - by_clip) / DRAWS)
    assert abs(by_clip - by_sample) > margin
    assert p == pytest.approx(by_clip, abs=margin)
    assert round(p * (DRAWS + 1), 6) == round(p * (DRAWS + 1)), "(1 + b) / (1 + B)"
    assert cell(compare([first, second])).clips == 7


def test_holms_correction_is_over_the_categories_of_all_models_and_nothing_else() -> None:
    """Ten tests for two models; Mixed, the Average and all samples stay outside of the family."""
    third = {task: [min(10, score + 1) for score in own] for task, own in FIRST.items()}
    runs = [
        a_run(of_all_tasks(scores, text)) for scores, text in ((FIRST, "Mom"), (SECOND, "Dad"), (third, "Me"))
    ]
    comparison = compare(runs)
    assert comparison.holm_tests == 10
    family = [one.cells[name] for one in comparison.models for name in CATEGORIES]
    ranked = sorted(family, key=lambda own: own.p or 0)
    adjusted = [min(1, (10 - rank) * (own.p or 0)) for rank, own in enumerate(ranked)]
    assert [own.p_holm for own in ranked] == pytest.approx(list(itertools.accumulate(adjusted, max)))
    for one in comparison.models:
        assert all(one.cells[name].p_holm is None for name in ("mixed_audio", "average", "all_samples"))
        assert all(one.cells[name].p is not None for name in ("mixed_audio", "average", "all_samples"))


def test_a_missing_category_leaves_the_average_not_available() -> None:
    """Without music there is no Average, no test of it, and speech and sound stand; four tests become two."""
    chosen = ("speech_QA", "sound_QA")
    runs = [
        a_run(of_all_tasks({task: scores[task] for task in chosen}, text))
        for scores, text in ((FIRST, "Mom"), (SECOND, "Dad"))
    ]
    comparison = compare(runs)
    assert cell(comparison, "average") == ModelCell(n=5, clips=5)
    assert cell(comparison, "music") == ModelCell(n=0, clips=0)
    assert comparison.holm_tests == 2
    assert comparison.headline == "all_samples"
    assert cell(comparison, "all_samples").gpt_score is not None


@pytest.mark.parametrize(
    ("tasks", "headline"),
    [
        (("music_QA", "music_generation_analysis_QA"), "music"),
        (("speech_and_sound_QA", "speech_and_music_QA"), "mixed_audio"),
    ],
)
def test_the_headline_is_the_cell_that_stands_for_the_runs(tasks: Sequence[str], headline: str) -> None:
    """Runs of one category, or of mixed audio, have that for their headline."""
    runs = [a_run(of_all_tasks({t: scores[t] for t in tasks}, str(scores))) for scores in (FIRST, SECOND)]
    assert compare(runs).headline == headline


def test_differences_of_binary_fractions_are_ties() -> None:
    """(8.1 + 8.2) / 2 and (8.3 + 8.0) / 2 are the same score: identical, with p = 1 and no interval."""
    first = a_run([an_outcome(n, (8.1, 8.2), text="Mom") for n in range(4)])
    second = a_run([an_outcome(n, (8.3, 8.0), text="Dad") for n in range(4)])
    own = cell(compare([first, second]))
    assert own.gpt_score is not None
    assert own.gpt_score.identical
    assert (own.gpt_score.value, own.gpt_score.ci95, own.p, own.ties) == (0, None, 1, 4)
    assert own.detectable_difference is None


def test_one_difference_for_all_samples_has_no_interval_and_a_test_all_the_same() -> None:
    """Where no difference varies there is no interval and nothing detectable, but there is a p."""
    own = cell(compare([a_run(scored([5] * 8)), a_run(scored([6] * 8, text="Dad"))]))
    assert own.gpt_score is not None
    assert own.gpt_score.ci95 is None
    assert own.detectable_difference is None
    assert own.p == pytest.approx(2 / 2**8, abs=0.005)


# --- properties -------------------------------------------------------------------------------------------

score = st.integers(0, 20).map(lambda half: half / 2)
rows = st.lists(
    st.tuples(st.sampled_from(list(TASKS)), st.integers(0, 5), score, score, score), min_size=1, max_size=14
)
Row = tuple[str, int, float, float, float]


def two_runs(drawn: Sequence[Row]) -> tuple[JudgedRun, JudgedRun]:
    """Return two runs over samples with drawn tasks, clips, scores of both models and of the reference."""
    sides: tuple[list[Outcome], list[Outcome]] = ([], [])
    for number, (task, clip, first, second, reference) in enumerate(drawn):
        given_to: dict[str, Any] = {"references": (reference, reference), "task": task, "clip": f"c{clip}"}
        sides[0].append(an_outcome(number, (first, first), text="Mom", **given_to))
        sides[1].append(an_outcome(number, (second, second), text="Dad", **given_to))
    return a_run(sides[0]), a_run(sides[1])


@given(rows)
@settings(max_examples=30, deadline=None)
def test_swapping_the_runs_negates_differences_and_keeps_p(drawn: list[Row]) -> None:
    """B against A is A against B with the signs turned: values, intervals, wins and losses; p is the same."""
    first, second = two_runs(drawn)
    there, back = compare([first, second]), compare([second, first])
    assert compare([first, second], baseline=1).models[0].cells == back.models[0].cells
    for name in CELLS:
        one, other = cell(there, name), cell(back, name)
        assert (one.p, one.p_holm, one.ties) == (other.p, other.p_holm, other.ties)
        assert (one.wins, one.win_rate) == (other.losses, other.loss_rate)
        assert one.detectable_difference == pytest.approx(other.detectable_difference)
        if one.gpt_score is not None and other.gpt_score is not None:
            assert one.gpt_score.value == -other.gpt_score.value
            assert one.gpt_score.mean == other.gpt_score.baseline_mean
            if one.gpt_score.ci95 is not None and other.gpt_score.ci95 is not None:
                low, high = other.gpt_score.ci95
                assert one.gpt_score.ci95 == pytest.approx((-high, -low))


@given(rows, st.randoms(use_true_random=False))
@settings(max_examples=30, deadline=None)
def test_the_order_of_samples_is_irrelevant(drawn: list[Row], random: Any) -> None:
    """Runs that were stored in another order compare to the same numbers, to the last bit."""
    runs = two_runs(drawn)
    shuffled = [replace(run, outcomes=random.sample(list(run.outcomes), len(drawn))) for run in runs]
    assert compare(shuffled) == compare(runs)


@given(rows)
@settings(max_examples=30, deadline=None)
def test_a_run_against_itself_is_identical(drawn: list[Row]) -> None:
    """Every cell there is is identical, without an interval, with p = 1 and ties alone."""
    run, _ = two_runs(drawn)
    comparison = compare([run, run])
    assert comparison.kind == "models"
    for own in comparison.models[0].cells.values():
        if own.gpt_score is not None:
            assert own.gpt_score.identical
            assert (own.gpt_score.value, own.gpt_score.ci95, own.p, own.ties) == (0, None, 1, own.n)
    assert all(own.p_holm in (1, None) for own in comparison.models[0].cells.values())


@given(rows, st.integers(1, 4))
@settings(max_examples=30, deadline=None)
def test_samples_that_only_one_run_has_change_no_number(drawn: list[Row], more: int) -> None:
    """Adding samples to one run alone changes what is left out, and no mean, interval or test."""
    first, second = two_runs(drawn)
    extra = [an_outcome(1000 + n, (9, 9), task="sound_QA") for n in range(more)]
    with_more = compare([replace(first, outcomes=[*first.outcomes, *extra]), second])
    assert with_more.models == compare([first, second]).models
    assert left_out(with_more) == {("not_in", ("B",)): more}


@given(rows)
@settings(max_examples=30, deadline=None)
def test_a_comparison_is_plain_json(drawn: list[Row]) -> None:
    """What is written is JSON without NaN, with the letters, counts and every cell."""
    comparison = compare(two_runs(drawn))
    stored = json.loads(json.dumps(comparison.to_json(), allow_nan=False))
    assert stored["samples"] == len(drawn)
    assert list(stored["models"][0]["cells"]) == list(CELLS)
    assert stored["permutation_test"] == {"draws": DRAWS, "seed": 0, "holm": list(CATEGORIES)}


# --- differences between judges ---------------------------------------------------------------------------


def test_the_same_answers_under_another_judge_compare_the_judges() -> None:
    """Without a flag: shifts of both scores, rank correlation, agreement on the winner and kappa, by hand."""
    ours, theirs = [2, 4, 6, 9], [3, 6, 5, 9]
    references = ([5, 4, 5, 5], [5, 5, 6, 5])
    judged = [
        [
            an_outcome(n, (own, own), references=(ref, ref))
            for n, (own, ref) in enumerate(zip(scores, refs, strict=True))
        ]
        for scores, refs in zip((ours, theirs), references, strict=True)
    ]
    comparison = compare([a_run(judged[0]), a_run(judged[1], judge={"name": "gpt-4o"})])
    assert comparison.kind == "judges"
    assert comparison.models == ()
    (difference,) = comparison.judges
    own = difference.cells["speech"]
    assert own.gpt_score is not None
    assert own.reference_score is not None
    assert (own.gpt_score.baseline_mean, own.gpt_score.mean, own.gpt_score.value) == (5.25, 5.75, 0.5)
    assert (own.reference_score.baseline_mean, own.reference_score.mean) == (4.75, 5.25)
    assert own.gpt_score.ci95 is not None
    assert own.reference_score.ci95 is not None
    # Ranks 1 2 3 4 and 1 3 2 4: 1 - 6 * 2 / (4 * 15).
    assert difference.rank_correlation == pytest.approx(0.8)
    # loss tie win win against loss win loss win: two of four; by chance (1*2 + 1*0 + 2*2) / 16.
    assert own.agreement == 0.5
    assert difference.kappa == pytest.approx((0.5 - 6 / 16) / (1 - 6 / 16))
    assert [one.field for one in comparison.judged_differently] == ["judge.name"]
    assert "across_judges" not in warned(comparison)
    assert json.dumps(comparison.to_json(), allow_nan=False)


def test_one_order_is_compared_with_both_over_the_same_answers() -> None:
    """What the swap changes can be seen: the same answers judged in one order and in two."""
    both = a_run([an_outcome(n, (5, 7 + n % 2)) for n in range(4)])
    one = a_run([an_outcome(n, (5,)) for n in range(4)], orders=ORDERS[:1], judge={"do_swap": False})
    own = compare([both, one]).judges[0].cells["speech"]
    assert own.gpt_score is not None
    assert own.gpt_score.value == -1.25


def test_one_judge_asked_twice_is_compared_with_itself() -> None:
    """The same answers and judge with other scores show the judge's own variation."""
    comparison = compare([a_run(scored([5, 6, 7])), a_run(scored([5, 6, 8]))])
    assert comparison.kind == "judges"
    assert comparison.judged_differently == ()


def test_another_judge_that_agrees_in_all_is_identical() -> None:
    """The same scores are identical; constant ones have no rank correlation, one winner alone no kappa."""
    (difference,) = compare([a_run(scored([5, 5])), a_run(scored([5, 5]), judge={"name": "gpt-4o"})]).judges
    own = difference.cells["speech"]
    assert own.gpt_score is not None
    assert own.gpt_score.identical
    assert (own.agreement, difference.rank_correlation, difference.kappa) == (1, None, None)


def test_three_runs_of_which_one_has_other_answers_are_compared_as_models() -> None:
    """Answers must be the same in all runs for their judges to be compared; otherwise the flag is needed."""
    runs = [
        a_run(scored([5, 6])),
        a_run(scored([6, 6]), judge={"name": "gpt-4o"}),
        a_run(scored([7, 6], text="Dad")),
    ]
    with pytest.raises(ConfigError, match="'gpt-4o' in B"):
        compare(runs)
    assert compare(runs, across_judges=True).kind == "models"
