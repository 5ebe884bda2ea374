"""The run directory: what is written is read back, and what is not there is owed."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otoscope.errors import RunDirectoryError
from otoscope.records import (
    Answer,
    AudioClip,
    Failure,
    FailureKind,
    Json,
    Order,
    Outcome,
    Reply,
    Sample,
    Verdict,
    canonical_digest,
    text_digest,
)
from otoscope.store import (
    ANSWERS,
    EMPTY_ANSWER,
    FORMAT,
    MANIFEST,
    SAMPLES,
    SUMMARY,
    VERDICTS,
    Plan,
    RunStore,
    StoredAnswer,
    StoredFailure,
    sample_from_line,
    sample_to_line,
)

JUDGE = "gpt-4-0125-preview#0123456789ab"
ORDERS = tuple(Order)
REFERENCE_FIRST, ANSWER_FIRST = ORDERS
NASTY_TEXTS = [
    "plain",
    "",
    " \t",
    "one\ntwo\r\nthree\u2028four\x85",
    'a "quoted" {"text": null}',
    "NUL \x00 inside",
    "half an emoji \ud83d and the other half \ude00",
    "a pair in halves \ud83d\ude00",
    "whole emoji 🎧 and é, 助手",
    "long " * 40_000,
]


def a_sample(number: int = 1, *, digest: str | None = None) -> Sample:
    """Return a sample; ``digest`` stands for another record of the same key."""
    path = f"clip {number}.wav"
    return Sample(
        task="speech_QA",
        dataset="iemocap",
        path=path,
        uniq_id=number,
        question="Who speaks?",
        reference="Mom.",
        description="{'gender': 'female'}",
        audio_path=f"Chat/speech_QA_iemocap/{path}",
        digest=digest or canonical_digest(number),
    )


def a_clip(content: str = "first") -> AudioClip:
    """Return a clip whose bytes are this text's."""
    return AudioClip(
        "clip.wav", text_digest(content), len(content), 17, "wav", 1.5, 16_000, 1, ("flac to wav",)
    )


def a_reply(text: str | None = "8 7", at: float = 1.0) -> Reply:
    """Return a reply that ended normally."""
    return Reply(text=text, finish_reason="stop", started_at=at, latency=0.25)


def an_answer(text: str = "It is Mom.", *, replies: Sequence[Reply] | None = None) -> Answer:
    """Return an unfiltered answer."""
    return Answer(raw_text=text, text=text, replies=tuple(replies) if replies else (a_reply(text),))


def a_verdict(
    order: Order, answer: str = "It is Mom.", *, judge: str = JUDGE, replies: Sequence[Reply] | None = None
) -> Verdict:
    """Return 8 for the reference and 7 for the answer."""
    return Verdict(
        order=order,
        judge_id=judge,
        answer_sha256=text_digest(answer),
        score_kind="integer",
        reference_score=8,
        answer_score=7,
        replies=tuple(replies) if replies else (a_reply(),),
    )


def a_failure(kind: FailureKind, *replies: Reply) -> Failure:
    """Return a failure that cost these replies."""
    return Failure(kind, f"it was {kind.value}", len(replies), replies)


def writable(path: Path, manifest: Json | None = None) -> RunStore:
    """Create the run or continue it."""
    store = RunStore.open(path) if RunStore.exists(path) else RunStore.create(path, manifest or {})
    store.open_for_writing()
    return store


def judge_it(store: RunStore, sample: Sample, result: Verdict | Failure, order: Order | None = None) -> None:
    """Store a verdict of the answer that the sample has now."""
    if isinstance(result, Verdict):
        order = result.order
    assert order is not None
    store.append_verdict(sample, order, JUDGE, store.answer_text(sample)[1], result)


def planned(
    store: RunStore,
    samples: Sequence[Sample],
    *,
    retry: Iterable[str] = (),
    clip_changed: Callable[[Sample, StoredAnswer], bool] = lambda _sample, _stored: False,
    mended: Callable[[Sample, StoredFailure], bool] = lambda _sample, _failure: False,
    judge: str | None = JUDGE,
) -> Plan:
    """Return what is owed for both orders, by default with all clips as they were."""
    return store.plan(samples, ORDERS, judge, retry_failed=retry, clip_changed=clip_changed, mended=mended)


def lines_of(path: Path, name: str = ANSWERS) -> list[Json]:
    """Return a file's lines as objects."""
    return [json.loads(line) for line in (path / name).read_bytes().splitlines()]


def append_raw(path: Path, name: str, *lines: bytes) -> None:
    """Append lines as a stranger would."""
    with (path / name).open("ab") as file:
        file.writelines(line + b"\n" for line in lines)


def changed_line(path: Path, name: str, **changes: Any) -> bytes:
    """Return the file's last line with other values; ``...`` takes a field away."""
    line = lines_of(path, name)[-1]
    line.update(changes)
    return json.dumps({field: value for field, value in line.items() if value is not ...}).encode()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a run in which one sample is answered and judged in both orders."""
    path = tmp_path / "run"
    with writable(path) as store:
        store.append_answer(a_sample(), a_clip(), an_answer())
        for order in ORDERS:
            judge_it(store, a_sample(), a_verdict(order))
    return path


# --- what is written is read back ---------------------------------------------------------------------------


@pytest.mark.parametrize("text", NASTY_TEXTS, ids=lambda text: repr(text[:20]))
def test_any_text_is_read_back(tmp_path: Path, text: str) -> None:
    """An answer with any text comes back unchanged; only the halves of a surrogate pair come back joined."""
    sample = a_sample()
    with writable(tmp_path) as store:
        store.append_answer(sample, a_clip(), an_answer(text))
        live = store.answer_text(sample)
    joined = text.replace("\ud83d\ude00", "😀")
    with RunStore.open(tmp_path) as store:
        outcome = store.outcome(sample, None)
        assert store.skipped_lines == 0
        assert store.answer_text(sample) == live == (joined, text_digest(joined))
    assert outcome == Outcome(sample, an_answer(joined), {}, a_clip().facts())


def test_every_field_is_read_back(tmp_path: Path) -> None:
    """Answers, verdicts, failures and their replies come back with every field that they had."""
    full = Reply(
        text="8 7.5",
        reasoning="well \ud83d",
        finish_reason="stop",
        usage={"prompt_tokens": 3, "completion_tokens": 4, "details": {"audio": None}},
        model="gpt-4-0125-preview",
        request_id="r-1",
        parameters={"temperature": 0, "stop": ["\n"]},
        endpoint="http://127.0.0.1/v1",
        started_at=1_700_000_000.125,
        latency=2.5,
        attempts=3,
        probabilities={"8": 0.5},
    )
    answer = Answer(
        raw_text="<think>hm</think> Mom",
        text="Mom",
        reasoning="hm",
        filter="strip-thinking",
        audio_part="input_audio",
        replies=(full,),
    )
    verdict = Verdict(
        order=REFERENCE_FIRST,
        judge_id=JUDGE,
        answer_sha256=answer.sha256,
        score_kind="decimal",
        reference_score=8,
        answer_score=7.5,
        probabilities={"answer": {"7": 0.5, "8": 0.5}},
        replies=(full,),
    )
    failure = Failure(FailureKind.CONTENT_FILTER, "blocked \x00", 2, (full, a_reply(None, 2.0)))
    bad_clip = Failure(FailureKind.BAD_AUDIO, "empty", file={"bytes": 0, "mtime_ns": 5})
    with writable(tmp_path) as store:
        store.append_answer(a_sample(1), a_clip(), answer)
        judge_it(store, a_sample(1), verdict)
        judge_it(store, a_sample(1), failure, ANSWER_FIRST)
        store.append_answer(a_sample(2), None, bad_clip)
    with RunStore.open(tmp_path) as store:
        first, second = store.outcomes([a_sample(1), a_sample(2)], JUDGE)
    verdicts: dict[Order, Verdict | Failure] = {REFERENCE_FIRST: verdict, ANSWER_FIRST: failure}
    assert first == Outcome(a_sample(1), answer, verdicts, a_clip().facts(), unanswered=2)
    assert second == Outcome(a_sample(2), bad_clip)


def test_a_line_is_one_write_to_an_append_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line, however long, is written by one os.write to a descriptor opened with O_APPEND."""
    written: list[tuple[int, bytes]] = []
    real_write = os.write

    def spy(descriptor: int, data: bytes) -> int:
        written.append((fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_APPEND, bytes(data)))
        return real_write(descriptor, data)

    with writable(tmp_path) as store:
        monkeypatch.setattr(os, "write", spy)
        store.append_answer(a_sample(), a_clip(), an_answer("long " * 40_000))
        store.append_answer(a_sample(2), a_clip(), a_failure(FailureKind.TIMEOUT))
        monkeypatch.undo()
    assert [data for _, data in written] == (tmp_path / ANSWERS).read_bytes().splitlines(keepends=True)
    assert all(append for append, _ in written)


def test_a_line_is_in_the_file_before_append_returns(tmp_path: Path) -> None:
    """A reader sees a line at once: nothing is held back until a sync or the close."""
    with writable(tmp_path) as store:
        store.append_answer(a_sample(), a_clip(), an_answer())
        with RunStore.open(tmp_path) as reader:
            assert reader.stored_answer(a_sample()) is not None


def test_a_usage_with_nan_is_stored_without_it(tmp_path: Path) -> None:
    """A server's NaN, which is not JSON, becomes null; the reply that was paid for is kept."""
    reply = Reply(text="Mom", usage={"prompt_tokens": 3, "cost": [float("nan"), float("inf")]})
    with writable(tmp_path) as store:
        store.append_answer(a_sample(), a_clip(), an_answer(replies=[reply]))
    with RunStore.open(tmp_path) as store:
        answer = store.outcome(a_sample(), None).answer
    assert answer is not None
    assert answer.replies[0].usage == {"prompt_tokens": 3, "cost": [None, None]}


@pytest.mark.parametrize("score", [-1, 10.5, float("nan"), float("inf")])
def test_a_verdict_without_a_real_score_is_refused(tmp_path: Path, score: float) -> None:
    """Appending a score outside of 0 to 10 is our own bug: it raises and writes nothing."""
    with writable(tmp_path) as store:
        store.append_answer(a_sample(), a_clip(), an_answer())
        wrong = Verdict(
            order=REFERENCE_FIRST,
            judge_id=JUDGE,
            answer_sha256=an_answer().sha256,
            score_kind="decimal",
            reference_score=8,
            answer_score=score,
        )
        with pytest.raises(ValueError, match="not a score"):
            judge_it(store, a_sample(), wrong)
    assert (tmp_path / VERDICTS).read_bytes() == b""


def test_unknown_fields_are_ignored(run: Path) -> None:
    """Fields that a later version added to lines, replies and failures do not matter."""
    replies = [{**a_reply("Dad").to_json(), "mood": "good"}]
    failure = {"kind": "content_filter", "message": "no", "attempts": 1, "mood": "bad"}
    append_raw(run, ANSWERS, changed_line(run, ANSWERS, key=a_sample(2).key, new={"a": 1}, replies=replies))
    append_raw(run, ANSWERS, changed_line(run, ANSWERS, key=a_sample(3).key, failure=failure))
    digest = a_sample(1).digest
    with RunStore.open(run) as store:
        answered, failed = (store.outcome(a_sample(n, digest=digest), None).answer for n in (2, 3))
        assert store.skipped_lines == 0
    assert isinstance(answered, Answer)
    assert answered.replies == (a_reply("Dad"),)
    assert isinstance(failed, Failure)
    assert failed.kind is FailureKind.CONTENT_FILTER


# --- torn files -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [ANSWERS, VERDICTS])
def test_a_file_cut_at_any_byte_owes_exactly_the_rest(tmp_path: Path, name: str) -> None:
    """Cut anywhere in its last two lines, a run owes what is missing, and once that is done, nothing."""
    samples = [a_sample(n) for n in (1, 2, 3)]
    whole, cut_run = tmp_path / "whole", tmp_path / "cut"

    def finish(store: RunStore) -> Plan:
        plan = planned(store, samples)
        for sample in plan.answers:
            store.append_answer(sample, None, an_answer(replies=[Reply(text="a")]))
        for sample, order in planned(store, samples).verdicts:
            judge_it(store, sample, a_verdict(order, replies=[Reply(text="8 7")]))
        return plan

    with writable(whole) as store:
        finish(store)
        expected = list(store.outcomes(samples, JUDGE))
    content = (whole / name).read_bytes()
    lines = content.splitlines(keepends=True)
    for cut in range(len(content) - len(lines[-1]) - len(lines[-2]), len(content) + 1):
        shutil.copytree(whole, cut_run)
        os.truncate(cut_run / name, cut)
        # A line that lacks only its newline is whole.
        complete = content[: cut + 1].count(b"\n")
        torn = content[:cut].rpartition(b"\n")[2] != b"" and content[cut : cut + 1] != b"\n"
        with RunStore.open(cut_run) as store:
            store.open_for_writing()
            plan = finish(store)
        if name == ANSWERS:
            assert list(plan.answers) == samples[complete:]
            assert plan.verdicts == ()
        else:
            assert plan.answers == ()
            assert list(plan.verdicts) == [(s, order) for s in samples for order in ORDERS][complete:]
        with RunStore.open(cut_run) as store:
            assert store.skipped_lines == torn
            assert (planned(store, samples).answers, planned(store, samples).verdicts) == ((), ())
            assert list(store.outcomes(samples, JUDGE)) == expected
        shutil.rmtree(cut_run)


WRONG_IN_REPLIES: list[Json] = [
    {"text": 5},
    {"text": ["Mom"]},
    {"finish_reason": 1},
    {"usage": [1]},
    {"model": {}},
    {"endpoint": 80},
    {"parameters": None},
    {"parameters": []},
    {"started_at": None},
    {"started_at": "yesterday"},
    {"started_at": -1},
    {"started_at": 1e300},
    {"latency": -0.5},
    {"latency": None},
    {"attempts": True},
    {"attempts": 1.5},
    {"attempts": 10**400},
]
WRONG_IN_CLIPS: list[Json] = [
    {"sha256": 5},
    {"bytes": "many"},
    {"seconds": -1},
    {"seconds": "long"},
    {"rate": 1.5},
    {"changed": "mono"},
    {"changed": [1]},
]


def test_foreign_lines_are_skipped_and_counted(run: Path) -> None:
    """NUL, null, lists, lines of other runs or repeats and malformed ones are counted and not read."""
    other = a_sample(2)
    malformed: list[Json] = [
        {"run": "another"},
        {"run": ...},
        {"run": ["a list"]},
        {"repeat": 1},
        {"key": 5},
        {"key": ["a list"]},
        {"sample_digest": None},
        {"text": None},
        {"raw_text": 5},
        {"clip": "a clip"},
        {"replies": None},
        {"replies": [{}]},
        {"replies": ["text"]},
        {"replies": [{"text": "Mom", "latency": float("nan")}]},
        *({"replies": [{"text": "Mom", **wrong}]} for wrong in WRONG_IN_REPLIES),
        *({"clip": wrong} for wrong in WRONG_IN_CLIPS),
        {"reasoning": 5},
        {"filter": ["none"]},
        {"audio_part": {}},
        {"failure": "failed"},
        {"failure": {"kind": "unheard_of"}},
        {"failure": {"kind": "bad_audio", "file": "a file"}},
    ]
    foreign = [
        b"\0" * 5000,
        b"null",
        b"[]",
        b'"text"',
        b"17",
        b"{}",
        b"\xff\xfe\xfa",
        b"[" * 100_000,
        *(
            changed_line(run, ANSWERS, **{"key": other.key, "sample_digest": other.digest, **wrong})
            for wrong in malformed
        ),
    ]
    append_raw(run, ANSWERS, *foreign)
    append_raw(run, ANSWERS, b"", b"   ")
    with RunStore.open(run) as store:
        assert store.skipped_lines == len(foreign)
        assert planned(store, [a_sample(), other]).answers == (other,)


@pytest.mark.parametrize(
    "wrong",
    [
        *({"answer_score": score} for score in (-1, 11, 10.01, True, False, "7", None, [7], ...)),
        {"answer_score": float("nan")},
        {"reference_score": float("inf")},
        {"reference_score": float("-inf")},
        {"score_kind": None},
        {"order": "sideways"},
        {"order": []},
        {"judge_id": 5},
        {"answer_sha256": ...},
        {"probabilities": "many"},
    ],
    ids=str,
)
def test_a_verdict_line_without_real_scores_is_never_read(run: Path, wrong: Json) -> None:
    """Numbers outside of 0 to 10, NaN, booleans, texts and malformed lines are no scores: owed again."""
    last = changed_line(run, VERDICTS, **wrong)
    kept = (run / VERDICTS).read_bytes().splitlines()[0]
    (run / VERDICTS).write_bytes(kept + b"\n" + last + b"\n")
    with RunStore.open(run) as store:
        assert store.skipped_lines == 1
        assert planned(store, [a_sample()]).verdicts == ((a_sample(), ANSWER_FIRST),)
        assert list(store.outcome(a_sample(), JUDGE).verdicts) == [REFERENCE_FIRST]


def test_scores_of_zero_and_ten_are_read(run: Path) -> None:
    """Both ends of the scale are scores."""
    line = changed_line(run, VERDICTS, reference_score=10, answer_score=0)
    (run / VERDICTS).write_bytes(line + b"\n")
    with RunStore.open(run) as store:
        verdict = store.outcome(a_sample(), JUDGE).verdicts[ANSWER_FIRST]
    assert isinstance(verdict, Verdict)
    assert (verdict.reference_score, verdict.answer_score) == (10, 0)


def test_another_judges_verdicts_do_not_count(run: Path) -> None:
    """Verdicts of another judge are good lines, not skipped ones, and neither settle nor change anything."""
    with RunStore.open(run) as store:
        assert store.skipped_lines == 0
        plan = planned(store, [a_sample()], judge="another judge")
        assert plan.verdicts == tuple((a_sample(), order) for order in ORDERS)
        assert store.outcome(a_sample(), "another judge").verdicts == {}
        assert store.outcome(a_sample(), None).verdicts == {}


def test_copied_answers_are_this_runs_own(run: Path, tmp_path: Path) -> None:
    """Answers copied from another run count, also those that it had copied itself; its verdicts do not."""
    source = json.loads((run / MANIFEST).read_bytes())["run_id"]
    copied = tmp_path / "copied"
    RunStore.create(copied, {"answers_from": {"run_id": "between", "answers_from": {"run_id": source}}})
    for name in (ANSWERS, VERDICTS):
        shutil.copy(run / name, copied / name)
    with RunStore.open(copied) as store:
        plan = planned(store, [a_sample()])
        assert store.skipped_lines == 2
    assert (plan.answers_done, len(plan.verdicts)) == (1, 2)


# --- what counts ------------------------------------------------------------------------------------------


def test_the_first_success_wins(tmp_path: Path) -> None:
    """A second answer or verdict of the same identity changes nothing."""
    sample = a_sample()
    with writable(tmp_path) as store:
        for text in ("first", "second"):
            store.append_answer(sample, a_clip(), an_answer(text))
        for score in (3, 9):
            verdict = Verdict(
                order=REFERENCE_FIRST,
                judge_id=JUDGE,
                answer_sha256=text_digest("first"),
                score_kind="integer",
                reference_score=8,
                answer_score=score,
            )
            judge_it(store, sample, verdict)
    with RunStore.open(tmp_path) as store:
        outcome = store.outcome(sample, JUDGE)
    verdict_read = outcome.verdicts[REFERENCE_FIRST]
    assert isinstance(outcome.answer, Answer)
    assert isinstance(verdict_read, Verdict)
    assert (outcome.answer.text, verdict_read.answer_score) == ("first", 3)


def test_a_failure_never_replaces_a_success(run: Path) -> None:
    """Failures written after a success leave it as it is; what they cost is told apart from its replies."""
    sample, late = a_sample(), a_reply("late", 9.0)
    with writable(run) as store:
        store.append_answer(sample, a_clip(), a_failure(FailureKind.TIMEOUT, late))
        judge_it(store, sample, a_failure(FailureKind.UNPARSEABLE, late), REFERENCE_FIRST)
    with RunStore.open(run) as store:
        outcome = store.outcome(sample, JUDGE)
        assert planned(store, [sample]) == Plan((), (), 1, 2, 0)
    answer, verdict = outcome.answer, outcome.verdicts[REFERENCE_FIRST]
    assert isinstance(answer, Answer)
    assert isinstance(verdict, Verdict)
    assert answer.replies == (a_reply("It is Mom."),)
    assert verdict.replies == (a_reply(),)
    assert (outcome.superseded, outcome.surplus) == ((late,), (late,))


def test_a_text_supersedes_a_blank_answer(tmp_path: Path) -> None:
    """A blank answer that was asked for again gives way to one with a text, and never the reverse."""
    sample = a_sample()
    with writable(tmp_path) as store:
        for at, text in enumerate(("", "Mom", " ")):
            store.append_answer(sample, a_clip(), an_answer(text, replies=[a_reply(text, at)]))
            if not at:
                judge_it(store, sample, a_verdict(REFERENCE_FIRST, ""))
    with RunStore.open(tmp_path) as store:
        outcome = store.outcome(sample, JUDGE)
        assert planned(store, [sample]).blank == 0
        assert len(planned(store, [sample]).verdicts) == 2
    assert isinstance(outcome.answer, Answer)
    assert outcome.answer.text == "Mom"
    assert [reply.text for reply in outcome.answer.replies] == ["", "Mom"]
    assert [reply.text for reply in outcome.superseded] == [" "]
    assert outcome.verdicts == {}
    assert len(outcome.surplus) == 1, "the verdict on the blank answer was paid for, too"


def test_a_second_success_of_a_verdict_is_paid_for_and_changes_nothing(run: Path) -> None:
    """Two success lines of one identity, as of two processes: the first counts, both are accounted for."""
    sample = a_sample()
    before = RunStore.open(run).outcome(sample, JUDGE).verdicts[REFERENCE_FIRST]
    assert isinstance(before, Verdict)
    again = replace(before, answer_score=1, replies=(a_reply("9 1", 9.0),))
    with writable(run) as store:
        store.append_verdict(sample, REFERENCE_FIRST, JUDGE, before.answer_sha256, again)
    with RunStore.open(run) as store:
        outcome = store.outcome(sample, JUDGE)
    assert outcome.verdicts[REFERENCE_FIRST] == before
    assert [reply.text for reply in outcome.surplus] == ["9 1"]


def test_an_answer_about_a_changed_clip_supersedes(tmp_path: Path) -> None:
    """Whenever a sample is answered about another clip than before, that answer counts; also back again."""
    sample = a_sample()
    with writable(tmp_path) as store:
        for text, clip in (("one", "A"), ("one again", "A"), ("two", "B"), ("three", "A")):
            store.append_answer(sample, a_clip(clip), an_answer(text))
            stored = store.stored_answer(sample)
            assert stored is not None
            assert stored.clip_sha256 == text_digest(clip)
            assert store.answer_text(sample)[0] == text.removesuffix(" again")
    with RunStore.open(tmp_path) as store:
        assert store.answer_text(sample)[0] == "three"


def test_a_changed_clip_is_owed_again(run: Path) -> None:
    """The caller decides by the stored facts whether the clip changed; then answer and verdicts are owed."""
    facts: list[tuple[str, int, int]] = []

    def changed(_sample: Sample, stored: StoredAnswer) -> bool:
        facts.append((stored.clip_sha256, stored.clip_bytes, stored.clip_mtime_ns))
        return True

    with RunStore.open(run) as store:
        assert planned(store, [a_sample()], clip_changed=changed) == Plan(
            (a_sample(),), (), 0, 0, 0, superseded=(a_sample(),)
        )
    assert facts == [(a_clip().sha256, a_clip().size, a_clip().mtime_ns)]


def test_a_verdict_of_a_former_answer_is_owed_again(run: Path) -> None:
    """Once another text is the sample's answer, verdicts of the former one are ignored."""
    with writable(run) as store:
        store.append_answer(a_sample(), a_clip("other"), an_answer("It is Dad."))
    with RunStore.open(run) as store:
        assert planned(store, [a_sample()]).verdicts == tuple((a_sample(), order) for order in ORDERS)
        assert store.outcome(a_sample(), JUDGE).verdicts == {}


def test_an_answer_edited_by_hand_is_judged_again(run: Path) -> None:
    """The digest that counts is that of the text in the file, not one written beside it."""
    (run / ANSWERS).write_bytes(changed_line(run, ANSWERS, text="It is Dad.") + b"\n")
    with RunStore.open(run) as store:
        assert len(planned(store, [a_sample()]).verdicts) == 2
        assert store.answer_text(a_sample()) == ("It is Dad.", text_digest("It is Dad."))


def test_a_changed_record_is_owed_again(run: Path) -> None:
    """Answer and verdicts of a former record are ignored, also where the new answer has the same text."""
    changed = a_sample(digest="another record")
    with writable(run) as store:
        assert planned(store, [changed]).answers == (changed,)
        assert store.outcome(changed, JUDGE) == Outcome(changed, None)
        store.append_answer(changed, a_clip(), an_answer())
        assert len(planned(store, [changed]).verdicts) == 2
        assert store.outcome(changed, JUDGE).verdicts == {}


def test_answer_text_of_a_sample_without_answer_is_an_error(run: Path) -> None:
    """Asking for a text that is not there raises KeyError with the sample's key."""
    with RunStore.open(run) as store, pytest.raises(KeyError, match="clip 2"):
        store.answer_text(a_sample(2))


# --- failures ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FailureKind)
def test_passing_failures_are_owed_again_and_lasting_ones_are_not(tmp_path: Path, kind: FailureKind) -> None:
    """A resume owes passing kinds; lasting ones only when their kind, or ``all``, is named."""
    failed, judged = a_sample(1), a_sample(2)
    with writable(tmp_path) as store:
        store.append_answer(failed, None, a_failure(kind))
        store.append_answer(judged, None, an_answer())
        for order in ORDERS:
            judge_it(store, judged, a_failure(kind), order)
    both = tuple((judged, order) for order in ORDERS)
    with RunStore.open(tmp_path) as store:
        for retry in ((), (EMPTY_ANSWER,), (kind.value,), ("all",)):
            again = kind.passing or kind.value in retry or "all" in retry
            plan = planned(store, [failed, judged], retry=retry)
            assert plan.answers == ((failed,) if again else ())
            assert plan.verdicts == (both if again else ())
            assert (plan.answers_done, plan.verdicts_done) == ((1, 0) if again else (2, 2))


def test_the_last_failure_decides(tmp_path: Path) -> None:
    """A passing failure after a lasting one is owed again, and the outcome tells the last one."""
    with writable(tmp_path) as store:
        for kind in (FailureKind.BAD_AUDIO, FailureKind.TIMEOUT):
            store.append_answer(a_sample(), None, a_failure(kind, a_reply(kind.value)))
        assert planned(store, [a_sample()]).answers == (a_sample(),)
        answer = store.outcome(a_sample(), None).answer
    assert isinstance(answer, Failure)
    assert answer.kind is FailureKind.TIMEOUT
    assert [reply.text for reply in answer.replies] == ["bad_audio", "timeout"]


def test_a_mended_cause_is_owed_again(tmp_path: Path) -> None:
    """A lasting failure is owed again when the caller finds its cause gone, by what was stored of it."""
    file = {"bytes": 0, "mtime_ns": 5}
    seen: list[Any] = []
    with writable(tmp_path) as store:
        store.append_answer(a_sample(), None, Failure(FailureKind.BAD_AUDIO, "empty", file=file))
    with RunStore.open(tmp_path) as store:

        def mended(_sample: Sample, failure: StoredFailure) -> bool:
            seen.append((failure.kind, failure.file))
            return True

        assert planned(store, [a_sample()], mended=mended).answers == (a_sample(),)
    assert seen == [(FailureKind.BAD_AUDIO, file)]


def test_blank_answers_are_owed_again_only_by_name(tmp_path: Path) -> None:
    """A blank answer is an answer: counted as blank, and asked for again only with ``empty_answer``."""
    with writable(tmp_path) as store:
        store.append_answer(a_sample(), None, an_answer(" \n"))
        for retry in ((), ("all",)):
            plan = planned(store, [a_sample()], retry=retry)
            assert (plan.answers, len(plan.verdicts), plan.blank) == ((), 2, 1)
        assert planned(store, [a_sample()], retry=[EMPTY_ANSWER]) == Plan((a_sample(),), (), 0, 0, 0)


def test_without_a_judge_no_verdicts_are_owed(tmp_path: Path) -> None:
    """A run that only answers is done once all is answered."""
    with writable(tmp_path) as store:
        store.append_answer(a_sample(), None, an_answer())
        assert planned(store, [a_sample()], judge=None) == Plan((), (), 1, 0, 0)


# --- asking again -----------------------------------------------------------------------------------------


def test_an_interrupted_asking_is_pending_and_goes_on(tmp_path: Path) -> None:
    """Interim lines are no end: owed, pending, and their replies are handed back to go on from."""
    sample, replies = a_sample(), [a_reply("no", 1.0), a_reply("no", 2.0)]
    digest = an_answer().sha256
    with writable(tmp_path) as store:
        store.append_answer(sample, None, a_failure(FailureKind.ASKED_AGAIN, replies[0]))
    with writable(tmp_path) as store:
        assert store.interim_replies(sample) == (replies[0],)
        assert store.outcome(sample, JUDGE) == Outcome(sample, None)
        assert planned(store, [sample]).answers == (sample,)
        store.append_answer(sample, None, an_answer())
        assert store.interim_replies(sample) == ()
        for count in (1, 2):
            judge_it(store, sample, a_failure(FailureKind.ASKED_AGAIN, *replies[:count]), ANSWER_FIRST)
    with RunStore.open(tmp_path) as store:
        assert store.interim_replies(sample, (ANSWER_FIRST, JUDGE, digest)) == tuple(replies)
        assert store.interim_replies(sample, (REFERENCE_FIRST, JUDGE, digest)) == ()
        assert store.interim_replies(sample, (ANSWER_FIRST, "another judge", digest)) == ()
        assert store.outcome(sample, JUDGE).verdicts == {}
        assert (sample, ANSWER_FIRST) in planned(store, [sample]).verdicts


@pytest.mark.parametrize("kind", [FailureKind.TIMEOUT, FailureKind.BAD_REPLY, FailureKind.REJECTED])
def test_an_asking_that_found_no_further_reply_goes_on(tmp_path: Path, kind: FailureKind) -> None:
    """What was paid for before an endpoint failed is not paid for again, and counts once."""
    sample, first, second = a_sample(), a_reply("no", 1.0), a_reply("8 7", 2.0)
    digest = an_answer("Mom").sha256
    with writable(tmp_path) as store:
        store.append_answer(sample, a_clip("A"), a_failure(kind, a_reply("")))
        assert store.interim_replies(sample, clip_sha256=a_clip("A").sha256) == (a_reply(""),)
        assert store.interim_replies(sample, clip_sha256=a_clip("B").sha256) == ()
        store.append_answer(sample, a_clip("A"), an_answer("Mom", replies=[a_reply(""), a_reply("Mom")]))
        judge_it(store, sample, a_failure(FailureKind.ASKED_AGAIN, first), ANSWER_FIRST)
        judge_it(store, sample, a_failure(kind, first), ANSWER_FIRST)
    with writable(tmp_path) as store:
        assert store.interim_replies(sample, (ANSWER_FIRST, JUDGE, digest)) == (first,)
        judge_it(store, sample, a_verdict(ANSWER_FIRST, replies=[first, second]))
    with RunStore.open(tmp_path) as store:
        outcome = store.outcome(sample, JUDGE)
    assert outcome.answer is not None
    assert [reply.text for reply in outcome.answer.replies] == ["", "Mom"]
    assert outcome.verdicts[ANSWER_FIRST].replies == (first, second)


@pytest.mark.parametrize("kind", [FailureKind.UNPARSEABLE, FailureKind.CUT_OFF, FailureKind.CONTENT_FILTER])
def test_an_asking_that_its_replies_ended_begins_anew(tmp_path: Path, kind: FailureKind) -> None:
    """Where replies came and none served, the next asking starts without them."""
    with writable(tmp_path) as store:
        store.append_answer(a_sample(), None, an_answer())
        judge_it(store, a_sample(), a_failure(kind, a_reply("no")), ANSWER_FIRST)
        assert store.interim_replies(a_sample(), (ANSWER_FIRST, JUDGE, an_answer().sha256)) == ()


def test_replies_are_told_once(tmp_path: Path) -> None:
    """The end of an asking repeats its interim replies: they count once, even when two of them are equal."""
    sample, twice = a_sample(), a_reply("no")
    with writable(tmp_path) as store:
        store.append_answer(sample, None, a_failure(FailureKind.ASKED_AGAIN, a_reply("")))
        store.append_answer(sample, None, an_answer(replies=[a_reply(""), a_reply("Mom")]))
        for count in (1, 2):
            judge_it(store, sample, a_failure(FailureKind.ASKED_AGAIN, *[twice] * count), ANSWER_FIRST)
        judge_it(store, sample, a_verdict(ANSWER_FIRST, replies=[twice, twice, a_reply("8 7")]))
    with RunStore.open(tmp_path) as store:
        outcome = store.outcome(sample, JUDGE)
        assert store.interim_replies(sample, (ANSWER_FIRST, JUDGE, an_answer().sha256)) == ()
    assert outcome.answer is not None
    assert [reply.text for reply in outcome.answer.replies] == ["", "Mom"]
    assert [reply.text for reply in outcome.verdicts[ANSWER_FIRST].replies] == ["no", "no", "8 7"]


def test_replies_of_failed_askings_stand_in_front(tmp_path: Path) -> None:
    """What failed askings cost is kept, in order, in front, also where a new asking went the same way."""
    sample = a_sample()
    with writable(tmp_path) as store:
        store.append_answer(sample, None, an_answer())
        judge_it(store, sample, a_failure(FailureKind.ASKED_AGAIN, a_reply("a")), ANSWER_FIRST)
        judge_it(store, sample, a_failure(FailureKind.TIMEOUT, a_reply("a")), ANSWER_FIRST)
        judge_it(store, sample, a_failure(FailureKind.UNPARSEABLE, a_reply("b"), a_reply("c")), ANSWER_FIRST)
        failed = store.outcome(sample, JUDGE).verdicts[ANSWER_FIRST]
        same = [a_reply("b"), a_reply("c")]
        judge_it(store, sample, a_verdict(ANSWER_FIRST, replies=[*same, a_reply("8 7")]))
        judged = store.outcome(sample, JUDGE).verdicts[ANSWER_FIRST]
    assert isinstance(failed, Failure)
    assert failed.kind is FailureKind.UNPARSEABLE
    assert [reply.text for reply in failed.replies] == ["a", "b", "c"]
    assert [reply.text for reply in judged.replies] == ["a", "b", "c", "b", "c", "8 7"]


def test_an_asking_that_ended_is_not_gone_on_with(tmp_path: Path) -> None:
    """A blank answer that is asked for again begins anew, not after the replies that led to it."""
    blanks = [a_reply("", 1.0), a_reply("", 2.0)]
    with writable(tmp_path) as store:
        store.append_answer(a_sample(), None, a_failure(FailureKind.ASKED_AGAIN, blanks[0]))
        store.append_answer(a_sample(), None, an_answer("", replies=blanks))
        assert planned(store, [a_sample()], retry=[EMPTY_ANSWER]).answers == (a_sample(),)
        assert store.interim_replies(a_sample()) == ()


# --- manifest and whole files -----------------------------------------------------------------------------


def test_a_manifest_is_read_back(tmp_path: Path) -> None:
    """The manifest holds format, run id, version and time, and what the caller gave."""
    path = tmp_path / "deep" / "run"
    RunStore.create(path, {"label": "é", "tags": {"a": "b"}})
    manifest = RunStore.open(path).manifest
    assert {"run_id", "created_at", "package_version"} < manifest.keys()
    assert (manifest["format"], manifest["label"], manifest["tags"]) == (FORMAT, "é", {"a": "b"})


def test_a_run_is_never_created_over_another(run: Path) -> None:
    """Creating a run where one is would make its lines foreign: refused, and nothing is changed."""
    before = (run / MANIFEST).read_bytes()
    with pytest.raises(RunDirectoryError, match="holds a run already"):
        RunStore.create(run, {})
    assert (run / MANIFEST).read_bytes() == before


def test_a_place_that_cannot_be_a_folder_is_refused(tmp_path: Path) -> None:
    """A file in the way is a run-directory error with exit code 6."""
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(RunDirectoryError, match="file") as caught:
        RunStore.create(tmp_path / "file" / "run", {})
    assert caught.value.exit_code == 6


@pytest.mark.parametrize(("made", "message"), [(True, "holds no manifest.json"), (False, "no such folder")])
def test_a_folder_that_is_no_run_is_refused(tmp_path: Path, made: bool, message: str) -> None:
    """Opening a folder without a manifest, or none at all, says which of both it is."""
    path = tmp_path / "run"
    if made:
        path.mkdir()
    assert not RunStore.exists(path)
    with pytest.raises(RunDirectoryError, match=message):
        RunStore.open(path)


def test_a_newer_format_is_refused(run: Path) -> None:
    """A run of a newer format is not read; the message says which version wrote it."""
    manifest = json.loads((run / MANIFEST).read_bytes())
    (run / MANIFEST).write_text(
        json.dumps({**manifest, "format": FORMAT + 1, "package_version": "9.8.7"}), encoding="utf-8"
    )
    with pytest.raises(
        RunDirectoryError, match=rf"run format {FORMAT + 1}.* otoscope 9\.8\.7: use that"
    ) as caught:
        RunStore.open(run)
    assert caught.value.exit_code == 6


@pytest.mark.parametrize("number", [0, -1])
def test_a_format_that_is_too_old_is_refused(run: Path, number: int) -> None:
    """A run of a format that this version does not read is refused with that number, not read as its own."""
    manifest = json.loads((run / MANIFEST).read_bytes())
    (run / MANIFEST).write_text(json.dumps({**manifest, "format": number}), encoding="utf-8")
    with pytest.raises(RunDirectoryError, match=f"run format {number}.* none older than 1"):
        RunStore.open(run)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"\xff",
        b"{}",
        b'{"format": "1"}',
        b'{"format": true, "run_id": "a"}',
        b'{"format": 1}',
    ],
    ids=repr,
)
def test_an_unreadable_manifest_is_refused(run: Path, content: bytes) -> None:
    """A torn manifest, or one that names no format or run, is an error that names the file."""
    (run / MANIFEST).write_bytes(content)
    with pytest.raises(RunDirectoryError, match=r"manifest\.json: cannot be read"):
        RunStore.open(run)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"tags": ["a"]}, "tags must be an object of texts"),
        ({"label": 5}, "label must be text"),
        ({"dataset": "air"}, "dataset must be an object"),
        (
            {"dataset": {"task_sizes": {"speech_QA": "many"}}},
            r"dataset\.task_sizes must be an object of counts",
        ),
        ({"selection": {"samples": -1}}, r"selection\.samples must be a count"),
        ({"fingerprint": []}, "fingerprint must be an object"),
        ({"fingerprint": {"judge": {"do_swap": "no"}}}, r"fingerprint\.judge\.do_swap must be true or false"),
        ({"settings": 5}, "settings must be an object"),
    ],
)
def test_a_manifest_of_another_shape_is_refused(run: Path, wrong: Json, says: str) -> None:
    """What an editor or another program made of it is said by field, and is no traceback later."""
    manifest = json.loads((run / MANIFEST).read_bytes())
    (run / MANIFEST).write_text(json.dumps({**manifest, **wrong}), encoding="utf-8")
    with pytest.raises(RunDirectoryError, match=rf"cannot be read: {says}, but is .*restore it from a copy"):
        RunStore.open(run)


def test_null_stands_for_what_is_not_there(run: Path) -> None:
    """Fields of a manifest or a line that are null are as good as absent, where they may be absent."""
    manifest = json.loads((run / MANIFEST).read_bytes())
    nothing = dict.fromkeys(("label", "tags", "dataset", "selection", "fingerprint", "answers_from"))
    (run / MANIFEST).write_text(json.dumps({**manifest, **nothing}), encoding="utf-8")
    append_raw(run, ANSWERS, changed_line(run, ANSWERS, clip=None, reasoning=None, failure=None))
    with RunStore.open(run) as store:
        assert store.skipped_lines == 0


@pytest.mark.parametrize(
    ("content", "says"), [(b"", "it is empty"), (b"\n", "it is empty"), (b"{", "it holds no JSON object")]
)
def test_what_is_wrong_with_a_manifest_is_said_in_words(run: Path, content: bytes, says: str) -> None:
    """An empty manifest is called empty, and a torn one torn; no parser's own words are shown."""
    (run / MANIFEST).write_bytes(content)
    with pytest.raises(RunDirectoryError, match=says) as refused:
        RunStore.open(run)
    assert "char" not in str(refused.value)


def test_a_file_is_replaced_whole_or_not_at_all(run: Path) -> None:
    """When making the content fails, the old file stays and no remains are left; the next write succeeds."""

    def failing() -> Iterator[bytes]:
        yield b"half"
        raise RuntimeError("our own bug")

    names = {entry.name for entry in run.iterdir()}
    with RunStore.open(run) as store:
        store.write_file(SUMMARY, b"old")
        with pytest.raises(RuntimeError, match="our own bug"):
            store.write_file(SUMMARY, failing())
        assert (run / SUMMARY).read_bytes() == b"old"
        assert {entry.name for entry in run.iterdir()} == {*names, SUMMARY}
        store.write_file(SUMMARY, [b"new ", b"content"])
    assert (run / SUMMARY).read_bytes() == b"new content"
    assert {entry.name for entry in run.iterdir()} == {*names, SUMMARY}


def test_remains_of_a_killed_write_do_not_matter(run: Path) -> None:
    """A temporary file that a killed process left is overwritten by the next write and gone afterwards."""
    (run / f".{SUMMARY}.tmp").write_bytes(b"a much longer half of something")
    with RunStore.open(run) as store:
        store.write_file(SUMMARY, b"new")
    assert (run / SUMMARY).read_bytes() == b"new"
    assert not list(run.glob(".*"))


def test_samples_are_read_back(run: Path) -> None:
    """samples.jsonl gives this run's samples, whatever else its lines tell; the clip's place is relative."""
    samples = [
        a_sample(1),
        Sample(
            "music_QA",
            "musiccaps",
            "x/y.wav",
            "a-1",
            "q\ud83d",
            "r\x00",
            "",
            "Chat/music_QA_musiccaps/x/y.wav",
            "d",
        ),
    ]
    with RunStore.open(run) as store:
        store.write_samples({**sample_to_line(sample), "status": "scored"} for sample in samples)
        assert store.samples() == samples
    assert [sample_from_line(line) for line in lines_of(run, SAMPLES)] == samples


def test_samples_that_are_not_the_manifest_s_are_an_error(tmp_path: Path) -> None:
    """A list that lost its last lines, or holds one twice, would give another mean, unnoticed."""
    lines = [sample_to_line(a_sample(number)) for number in (1, 2, 3)]
    with writable(tmp_path, {"selection": {"samples": 3}}) as store:
        store.write_samples(lines)
        assert len(store.samples()) == 3
        for wrong in (lines[:2], [], [*lines, sample_to_line(a_sample(4))], [*lines[:2], lines[0]]):
            store.write_samples(wrong)
            with pytest.raises(RunDirectoryError, match=r"samples\.jsonl.*Resume the run"):
                store.samples()


@pytest.mark.parametrize("content", [None, b"{", b"[]\n", b"{}\n", b"null\n", b"[" * 100_000])
def test_unreadable_samples_are_an_error(run: Path, content: bytes | None) -> None:
    """A missing or torn samples.jsonl names the file and says that resuming writes it anew."""
    if content is not None:
        (run / SAMPLES).write_bytes(content)
    with (
        RunStore.open(run) as store,
        pytest.raises(RunDirectoryError, match=r"samples\.jsonl.*Resume the run"),
    ):
        store.samples()


# --- the disk's trouble -----------------------------------------------------------------------------------

_FULL_DISK = """
import resource, sys
from pathlib import Path
from otoscope.errors import OtoscopeError
from otoscope.records import Answer, Sample
from otoscope.store import ANSWERS, RunStore

path = Path(sys.argv[1])
def answer(number, length):
    sample = Sample("speech_QA", "iemocap", str(number), number, "q", "r", "d", "", str(number))
    store.append_answer(sample, None, Answer(raw_text="x" * length, text="x" * length))

store = RunStore.create(path, {})
store.open_for_writing()
answer(1, 10)
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, ((path / ANSWERS).stat().st_size + 500, hard))
for number in (2, 3):
    try:
        answer(number, 3000)
    except OtoscopeError as error:
        print(error.exit_code, error)
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
answer(4, 10)
store.close()
"""


def test_a_full_disk_stops_the_run_and_loses_nothing(tmp_path: Path) -> None:
    """A write cut short, or refused, is an error with exit code 6; lines before and after are whole."""
    path = tmp_path / "run"
    ended = subprocess.run(
        [sys.executable, "-c", _FULL_DISK, str(path)],
        capture_output=True,
        encoding="utf-8",
        check=True,
        timeout=60,
    )
    cut_short, refused = ended.stdout.splitlines()
    assert cut_short.startswith("6 ")
    assert "only 500 of" in cut_short
    assert refused.startswith("6 ")
    assert all(str(path / ANSWERS) in line and "resume the run" in line for line in (cut_short, refused))
    samples = [Sample("speech_QA", "iemocap", str(n), n, "q", "r", "d", "", str(n)) for n in (1, 2, 3, 4)]
    with RunStore.open(path) as store:
        assert store.skipped_lines == 1
        assert planned(store, samples).answers == tuple(samples[1:3])


def test_a_device_without_space_is_an_error(tmp_path: Path) -> None:
    """When nothing can be written at all, the error has exit code 6 and says what to do."""
    store = RunStore.create(tmp_path, {})
    (tmp_path / ANSWERS).symlink_to("/dev/full")
    store.open_for_writing()
    with (
        store,
        pytest.raises(RunDirectoryError, match=r"answers\.jsonl: No space left.*then resume") as caught,
    ):
        store.append_answer(a_sample(), None, an_answer())
    assert caught.value.exit_code == 6


def test_a_line_changed_under_an_open_run_is_an_error(run: Path) -> None:
    """A reader whose file is cut by someone else gets an error that names file and place, no traceback."""
    with RunStore.open(run) as store:
        os.truncate(run / ANSWERS, 20)
        with pytest.raises(RunDirectoryError, match=r"answers\.jsonl: the line at byte 0 was changed"):
            store.outcome(a_sample(), JUDGE)


def test_a_closed_run_can_be_closed_again(run: Path) -> None:
    """Closing twice does nothing the second time, and syncing with nothing to sync neither."""
    store = writable(run)
    store.append_answer(a_sample(2), None, an_answer())
    store.sync()
    store.sync()
    store.close()
    store.close()


# --- for any history --------------------------------------------------------------------------------------

TEXTS = st.text(st.sampled_from("ab \n\x00\ud83d\ude00é😀\u2028"), max_size=4)
KINDS = st.sampled_from(FailureKind)
REPLIES = st.lists(st.builds(a_reply, st.none() | TEXTS, st.sampled_from((0.0, 1.5))), max_size=2).map(tuple)
SAMPLES_DRAWN = st.builds(a_sample, st.integers(1, 2), digest=st.sampled_from(("old", "new")))
CLIPS = st.none() | st.sampled_from("AB").map(a_clip)
ANSWERS_DRAWN = st.builds(
    lambda raw, text, replies: Answer(raw_text=raw, text=text, replies=replies), TEXTS, TEXTS, REPLIES
)
FAILURES_DRAWN = st.builds(
    lambda kind, replies, file: Failure(kind, "why", len(replies), replies, file),
    KINDS,
    REPLIES,
    st.none() | st.just({"bytes": 1, "mtime_ns": 2}),
)
SCORES = st.integers(0, 10) | st.floats(0, 10)
HISTORY = st.lists(
    st.tuples(
        SAMPLES_DRAWN,
        CLIPS,
        ANSWERS_DRAWN | FAILURES_DRAWN,
        st.sampled_from(ORDERS),
        st.sampled_from((JUDGE, "another judge")),
        FAILURES_DRAWN | st.tuples(SCORES, SCORES),
    ),
    max_size=8,
)


@settings(max_examples=150, deadline=None)
@given(history=HISTORY, retry=st.sets(st.sampled_from(("all", EMPTY_ANSWER, "bad_audio"))))
def test_a_run_reads_the_same_after_reopening(
    tmp_path_factory: pytest.TempPathFactory, history: Sequence[Any], retry: set[str]
) -> None:
    """Whatever was appended: a re-opened run has the plan, outcomes and interim replies of the open one."""
    path = tmp_path_factory.mktemp("history")
    samples = [a_sample(number, digest=digest) for number in (1, 2) for digest in ("old", "new")]

    def view(store: RunStore) -> object:
        plan = planned(store, samples, retry=retry)
        digests = {sample: store.stored_answer(sample) for sample in samples}
        interim = [store.interim_replies(sample) for sample in samples] + [
            store.interim_replies(sample, (order, JUDGE, stored.answer_sha256))
            for sample, stored in digests.items()
            if stored is not None
            for order in ORDERS
        ]
        return plan, list(store.outcomes(samples, JUDGE)), interim, digests, store.skipped_lines

    with writable(path) as store:
        for sample, clip, result, order, judge, judged in history:
            store.append_answer(sample, clip, result)
            if store.stored_answer(sample) is None:
                continue
            digest = store.answer_text(sample)[1]
            if not isinstance(judged, Failure):
                reference, answer = judged
                judged = Verdict(
                    order=order,
                    judge_id=judge,
                    answer_sha256=digest,
                    score_kind="decimal",
                    reference_score=reference,
                    answer_score=answer,
                )
            store.append_verdict(sample, order, judge, digest, judged)
        live = view(store)
    with RunStore.open(path) as store:
        assert view(store) == live


@settings(max_examples=150, deadline=None)
@given(data=st.data(), history=HISTORY)
def test_done_and_owed_are_the_selection_wherever_a_file_is_cut(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, history: Sequence[Any]
) -> None:
    """For any cut in either file, every sample is done or owed, and nothing is both."""
    path = tmp_path_factory.mktemp("cut")
    with writable(path) as store:
        for sample, clip, result, order, _, _ in history:
            store.append_answer(sample, clip, result)
            if store.stored_answer(sample) is not None:
                judge_it(store, sample, a_verdict(order))
    for name in (ANSWERS, VERDICTS):
        size = (path / name).stat().st_size
        os.truncate(path / name, data.draw(st.integers(0, size), label=f"cut of {name}"))
    samples = [a_sample(number, digest="new") for number in (1, 2, 3)]
    with RunStore.open(path) as store:
        plan = planned(store, samples)
        outcomes = list(store.outcomes(samples, JUDGE))
    answered = [o.sample for o in outcomes if isinstance(o.answer, Answer)]
    lasting = [o.sample for o in outcomes if isinstance(o.answer, Failure) and not o.answer.kind.passing]
    assert plan.answers_done + len(plan.answers) == len(samples)
    assert {*plan.answers} == {*samples} - {*answered} - {*lasting}
    assert plan.verdicts_done + len(plan.verdicts) == len(ORDERS) * len(answered)
    done = {(o.sample, order) for o in outcomes for order in o.verdicts}
    assert {*plan.verdicts} | done == {(sample, order) for sample in answered for order in ORDERS}
    assert not {*plan.verdicts} & done
