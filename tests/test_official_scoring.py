"""Official scoring of stored replies, against the official rules computed here once more, independently."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otoscope.benchmark import TASK_GROUPS, TASKS, VIEWS
from otoscope.errors import ConfigError
from otoscope.parsing import parse_verdict
from otoscope.records import Answer, Failure, FailureKind, Json, Order, Outcome, Reply, Sample, Verdict
from otoscope.scoring import Cell, Summary, summarise

ORDERS = tuple(Order)
REFERENCE_FIRST, ANSWER_FIRST = ORDERS
MANIFEST: Json = {"fingerprint": {"model": {"name": "m"}, "judge": {"name": "j", "protocol": "default"}}}

Row = tuple[str, str]
"""A task, and the raw reply."""


def outcome(number: int, task: str, replies: dict[Order, Sequence[str]]) -> Outcome:
    """Return a sample whose judge said this in each order, the first reply first, and what was read."""
    sample = Sample(task, TASKS[task].folders[0], f"{number}.wav", number, "q", "r", "d", "", str(number))
    verdicts: dict[Order, Verdict | Failure] = {}
    for order, texts in replies.items():
        said = tuple(Reply(text=text, started_at=100.0 + at) for at, text in enumerate(texts))
        scores = parse_verdict(texts[-1])
        if scores is None:
            verdicts[order] = Failure(FailureKind.UNPARSEABLE, "no", len(said), said)
            continue
        first, second = scores.first, scores.second
        reference, answer = (first, second) if order is REFERENCE_FIRST else (second, first)
        verdicts[order] = Verdict(
            order=order,
            judge_id="j",
            answer_sha256="a",
            score_kind=scores.kind,
            reference_score=reference,
            answer_score=answer,
            replies=said,
        )
    return Outcome(sample, Answer(raw_text="a", text="a"), verdicts)


def official(outcomes: Sequence[Outcome], **more: Any) -> Summary:
    """Sum up by the official rules."""
    orders = more.pop("orders", ORDERS)
    return summarise(outcomes, orders=orders, manifest={**MANIFEST, **more}, scoring="official")


def official_by_hand(rows: Sequence[Row], tasks: Sequence[str], answer_at: int) -> tuple[int, float, float]:
    """Return n, mean score of the answer and win rate of one order, as the official scorer counts them."""
    kept = []
    for task, reply in rows:
        if task not in tasks:
            continue
        parts = reply.strip().replace("\n", "").split(" ")
        if len(parts) != 2:
            continue
        try:
            numbers = [int(parts[0]), int(parts[1])]
        except ValueError:
            continue
        if max(numbers) <= 10:
            kept.append((numbers[answer_at], numbers[1 - answer_at]))
    if not kept:
        return 0, float("nan"), float("nan")
    wins = sum(answer > reference for answer, reference in kept)
    return len(kept), sum(answer for answer, _ in kept) / len(kept), wins / len(kept)


def check(outcomes: Sequence[Outcome], summary: Summary) -> int:
    """Compare every category with the rules computed by hand; return how many were n/a."""
    rows: dict[Order, list[Row]] = {order: [] for order in ORDERS}
    for one in outcomes:
        for order, verdict in one.verdicts.items():
            rows[order].append((one.sample.task, verdict.replies[0].text or ""))
    missing = 0
    for category, cell in summary.categories.items():
        tasks = TASK_GROUPS[category]
        n1, mean1, win1 = official_by_hand(rows[REFERENCE_FIRST], tasks, answer_at=1)
        n2, mean2, win2 = official_by_hand(rows[ANSWER_FIRST], tasks, answer_at=0)
        if not (n1 and n2):
            assert cell.gpt_score is None
            missing += 1
            continue
        assert cell.orders is not None
        assert cell.gpt_score == (mean1 + mean2) / 2
        assert cell.win_rate == (win1 + win2) / 2
        assert [cell.orders[order.value]["n"] for order in ORDERS] == [n1, n2]
        assert cell.orders["reference_first"]["gpt_score"] == mean1
        assert cell.orders["answer_first"]["win_rate"] == win2
    return missing


FORMS = (
    "{} {}",
    "{} {}\n",
    "\n{} {}",
    "{}\n{}",
    "{}  {}",
    "{}, {}",
    "{}.5 {}",
    "+{} {}",
    "Scores: {} {}",
    "{}",
)


def some_replies(seed: int, count: int = 300) -> list[Outcome]:
    """Return samples over all tasks, judged in forms that the two parses read differently."""
    rng = random.Random(seed)  # noqa: S311 (no secret hangs on it)

    def reply() -> str:
        return rng.choice((*FORMS, *FORMS[:1] * 20)).format(rng.randint(-1, 11), rng.randint(0, 10))

    return [
        outcome(
            number,
            rng.choice(tuple(TASKS)),
            {order: [reply() for _ in range(rng.choice((1, 1, 1, 2)))] for order in ORDERS},
        )
        for number in range(count)
    ]


@pytest.mark.parametrize("seed", range(5))
def test_categories_are_the_official_rules(seed: int) -> None:
    """Scores, win rates and each order's count are those of the official rules, to the last digit."""
    outcomes = some_replies(seed)
    summary = official(outcomes)
    assert check(outcomes, summary) == 0
    parts = [summary.cell(name).gpt_score for name in ("speech", "sound", "music", "mixed_audio")]
    assert summary.average.gpt_score == pytest.approx(sum(part or 0 for part in parts) / 4, rel=1e-15)
    assert (summary.scoring, summary.all_samples.n) == ("official", len(outcomes))


TEXTS = st.sampled_from(("8 7", "7 8\n", "8\n7", "8, 7", "11 3", "-1 5", "none", "", "8 7 6", "7.5 8"))


@settings(max_examples=100, deadline=None)
@given(
    given_replies=st.lists(
        st.tuples(
            st.sampled_from(tuple(TASKS)),
            st.lists(TEXTS, min_size=1, max_size=3),
            st.lists(TEXTS, min_size=1),
        ),
        max_size=20,
    )
)
def test_any_replies_are_scored_by_the_official_rules(
    given_replies: list[tuple[str, list[str], list[str]]],
) -> None:
    """Whatever was said first counts, and only if the official rule reads it; every sample is counted."""
    outcomes = [
        outcome(number, task, {REFERENCE_FIRST: first, ANSWER_FIRST: second})
        for number, (task, first, second) in enumerate(given_replies)
    ]
    summary = official(outcomes)
    check(outcomes, summary)
    everything = summary.all_samples
    assert everything.n == len(outcomes) == everything.scored + everything.failed
    assert sum(summary.counts["failures"].values()) == everything.failed


def test_the_first_reply_counts_whatever_came_later() -> None:
    """A second reply that parsed gives the default score; the official rule drops that order's row."""
    one = outcome(1, "music_QA", {REFERENCE_FIRST: ["Sorry?", "8 6"], ANSWER_FIRST: ["5 8"]})
    other = outcome(2, "music_QA", {REFERENCE_FIRST: ["9 7"], ANSWER_FIRST: ["5 8"]})
    cell = official([one, other]).categories["music"]
    assert cell.orders is not None
    assert (cell.orders["reference_first"]["n"], cell.orders["answer_first"]["n"]) == (1, 2)
    assert cell.gpt_score == (7 + 5) / 2
    assert (cell.scored, cell.failed) == (2, 0)
    assert cell.bounds == ((7 / 2 + 5) / 2, (17 / 2 + 5) / 2)
    assert summarise([one], orders=ORDERS, manifest=MANIFEST).categories["music"].gpt_score == 5.5


def test_the_first_reply_is_the_one_stored_first() -> None:
    """The order of the lines decides, and no clock: hosts' clocks differ."""
    one = outcome(1, "music_QA", {REFERENCE_FIRST: ["3 4"], ANSWER_FIRST: ["4 3"]})
    verdict = one.verdicts[REFERENCE_FIRST]
    assert isinstance(verdict, Verdict)
    first, later = Reply(text="9 1", started_at=200.0), Reply(text="3 4", started_at=100.0)
    verdicts = {**one.verdicts, REFERENCE_FIRST: Verdict(**{**fields_of(verdict), "replies": (first, later)})}
    cell = official([Outcome(one.sample, one.answer, verdicts)]).categories["music"]
    assert cell.orders is not None
    assert cell.orders["reference_first"]["gpt_score"] == 1


def test_replies_that_do_not_count_are_told_and_counted() -> None:
    """Dropped replies widen the bounds and lower the coverage, though every sample has one that counts."""
    outcomes = [
        outcome(n, "music_QA", {REFERENCE_FIRST: ["8 6"], ANSWER_FIRST: ["6 8" if n % 2 else "6, 8"]})
        for n in range(40)
    ]
    summary = official(outcomes)
    cell = summary.categories["music"]
    assert (cell.scored, cell.failed, cell.coverage) == (40, 0, 60 / 80)
    assert cell.lower_bound == (6 + 3) / 2
    warned = {warning["name"]: warning["message"] for warning in summary.warnings}
    assert "20 of 80" in warned["reply_coverage"]
    assert summary.verdicts["failed"] == 20
    assert summary.verdicts["judged"] == 60


def test_an_order_without_any_reply_leaves_the_others_numbers() -> None:
    """Where one order has nothing that counts, its mean is n/a and the cell's, not the other order's."""
    one = outcome(1, "music_QA", {REFERENCE_FIRST: ["8 6"], ANSWER_FIRST: ["no"]})
    cell = official([one]).categories["music"]
    assert cell.orders is not None
    assert (cell.gpt_score, cell.orders["reference_first"]["gpt_score"]) == (None, 6)
    assert (cell.orders["answer_first"]["gpt_score"], cell.orders["answer_first"]["missing"]) == (None, 1)


@pytest.mark.parametrize("seed", range(3))
def test_the_same_replies_are_as_sure_by_either_rule(seed: int) -> None:
    """Where every reply is two whole numbers, official cells have the default cells' means and intervals."""
    rng = random.Random(seed)  # noqa: S311
    outcomes = [
        outcome(n, task, {order: [f"{rng.randint(1, 10)} {rng.randint(1, 10)}"] for order in ORDERS})
        for n, task in enumerate(list(TASKS) * 6)
    ]
    default = summarise(outcomes, orders=ORDERS, manifest=MANIFEST)
    by_official = official(outcomes)
    for name in ("speech", "mixed_audio", "average", "all_samples"):
        one, other = default.cell(name), by_official.cell(name)
        assert one.gpt_score == pytest.approx(other.gpt_score, rel=1e-12)
        assert one.ci95 == pytest.approx(other.ci95, rel=1e-9)


def fields_of(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict's fields."""
    return {name: getattr(verdict, name) for name in verdict.__slots__}


def test_negative_scores_pass_and_are_said() -> None:
    """The official rule lets negative numbers through: they count, and a warning says how many there are."""
    summary = official([outcome(1, "sound_QA", {REFERENCE_FIRST: ["8 -2"], ANSWER_FIRST: ["0 8"]})])
    assert summary.categories["sound"].gpt_score == -1
    warned = {warning["name"]: warning["message"] for warning in summary.warnings}
    assert "among the numbers: 1" in warned["negative_scores"]


def test_one_order_alone_is_scored_by_itself() -> None:
    """Without the swap the only order's mean is the score."""
    one = outcome(1, "sound_QA", {REFERENCE_FIRST: ["8 5"]})
    cell = official([one], orders=[REFERENCE_FIRST]).categories["sound"]
    assert (cell.gpt_score, list(cell.orders or {})) == (5, ["reference_first"])


def test_a_sample_that_is_not_judged_yet_is_pending() -> None:
    """An order without any verdict leaves its sample pending, as by the default rules."""
    cell = official([outcome(1, "sound_QA", {REFERENCE_FIRST: ["8 5"]})]).all_samples
    assert (cell.pending, cell.gpt_score) == (1, None)


def test_unjoined_rows_have_one_order_each() -> None:
    """Rows that could not be joined to samples are scored officially, and by no other rule."""
    rows = [
        outcome(1, "sound_QA", {REFERENCE_FIRST: ["8 5"]}),
        outcome(2, "sound_QA", {REFERENCE_FIRST: ["8 6"]}),
        outcome(3, "sound_QA", {ANSWER_FIRST: ["9 5"]}),
        outcome(4, "sound_QA", {ANSWER_FIRST: ["none"]}),
    ]
    summary = official(rows, unjoined=True)
    cell = summary.categories["sound"]
    assert cell.orders is not None
    assert (cell.gpt_score, cell.orders["answer_first"]["n"]) == ((5.5 + 9) / 2, 1)
    assert (cell.scored, cell.failed, cell.pending) == (3, 1, 0)
    assert summary.position["answer_effect"] is None
    with pytest.raises(ConfigError, match="only --scoring official"):
        summarise(rows, orders=ORDERS, manifest={**MANIFEST, "unjoined": True})


def test_expected_scores_have_no_official_form() -> None:
    """Scores by expectation are not what the official rule reads: it says so instead of giving a number."""
    one = outcome(1, "sound_QA", {REFERENCE_FIRST: ["8 5"], ANSWER_FIRST: ["5 8"]})
    verdicts: dict[Order, Verdict | Failure] = {}
    for order, verdict in one.verdicts.items():
        assert isinstance(verdict, Verdict)
        verdicts[order] = Verdict(**{**fields_of(verdict), "score_kind": "expected"})
    with pytest.raises(ConfigError, match="expectations"):
        official([Outcome(one.sample, one.answer, verdicts)])


def test_the_papers_view_leaves_the_generation_tasks_out() -> None:
    """paper-2000 counts neither generation task, and takes shares and weights from the other six."""
    outcomes = [
        outcome(
            number, task, {REFERENCE_FIRST: ["8 2" if "generation" in task else "8 6"], ANSWER_FIRST: ["6 8"]}
        )
        for task in TASKS
        for number in range(TASKS[task].samples // 100)
    ]
    whole = summarise(outcomes, orders=ORDERS, manifest=MANIFEST)
    paper = summarise(outcomes, orders=ORDERS, manifest=MANIFEST, view="paper-2000")
    assert (whole.all_samples.n, paper.all_samples.n) == (22, 20)
    assert set(paper.tasks) == set(VIEWS["paper-2000"]) == {t for t in TASKS if "generation" not in t}
    assert whole.categories["sound"].gpt_score == (4 * 6 + 4) / 5
    assert paper.categories["sound"].gpt_score == 6
    assert not paper.partial
    assert (paper.view, paper.to_json()["view"]) == ("paper-2000", "paper-2000")
    assert isinstance(paper.categories["sound"], Cell)
