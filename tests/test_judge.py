from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otoscope.chat_api import ChatEndpoint
from otoscope.config import EndpointSettings, JudgeSettings, resolve
from otoscope.judge import CORRECTION, PROMPT_SHA256, Judge, judge_identity, render_prompt
from otoscope.prompts import JUDGE_PROMPT
from otoscope.records import Failure, FailureKind, Order, Reply, Sample, Verdict
from tests.scripted_server import Response, Script, ScriptedServer, sequence
from tests.support import FAST, config

SAMPLE = Sample(
    task="speech_QA",
    dataset="tones",
    path="a.wav",
    uniq_id=1,
    question="What is said?",
    reference="The reference.",
    description="{'transcription': 'hello'}",
    audio_path="/nowhere/a.wav",
    digest="d" * 64,
)
PINNED = "cd6670d4c68764ac4d302596691d96d9678c9397f97d8c017537f1c68f9e69da"


def judge_settings(url: str, **generation: Any) -> JudgeSettings:
    """Resolve a judge behind this URL."""
    protocol = generation.pop("protocol", None)
    given = config(
        url, Path("/data"), judge_args={"generation_config": {**FAST, **generation}}, protocol=protocol
    )
    settings = resolve(given, {}).judge
    assert settings is not None
    return settings


def ask(
    script: Script | Response,
    order: Order = Order.REFERENCE_FIRST,
    *,
    earlier: Sequence[Reply] = (),
    times: int = 1,
    **generation: Any,
) -> tuple[list[Verdict | Failure], list[Failure], list[Any]]:
    """Ask a scripted judge and return its verdicts, what was kept on the way, and the requests it got."""
    kept: list[Failure] = []

    async def run(settings: JudgeSettings) -> list[Verdict | Failure]:
        assert isinstance(settings.endpoint, EndpointSettings)
        async with ChatEndpoint(settings.endpoint, lambda _: None) as endpoint:
            judge = Judge(endpoint, settings, "judge-id")
            return [
                await judge.verdict(
                    SAMPLE, f"The answer {n}.", "a" * 64, order, earlier=earlier, keep=kept.append
                )
                for n in range(times)
            ]

    answer = script if callable(script) else sequence(script)
    with ScriptedServer(answer, keep_bodies=True) as server:
        results = asyncio.run(run(judge_settings(server.url, **generation)))
        return results, kept, [seen.payload for seen in server.requests]


def test_the_prompt_is_the_benchmarks_byte_for_byte() -> None:
    """The prompt file has the official script's 911 bytes, and no final newline."""
    stored = (Path(__file__).parent.parent / "src" / "otoscope" / "prompts" / "judge.txt").read_bytes()
    assert len(stored) == 911
    assert hashlib.sha256(stored).hexdigest() == PINNED == PROMPT_SHA256
    assert stored.decode() == JUDGE_PROMPT


def test_the_reference_is_assistant_1_in_the_first_order() -> None:
    """In reference_first the reference answer stands first, in answer_first the model's."""
    first = render_prompt(SAMPLE, "The answer.", Order.REFERENCE_FIRST)
    assert first.index("The reference.") < first.index("The answer.")
    second = render_prompt(SAMPLE, "The answer.", Order.ANSWER_FIRST)
    assert second.index("The answer.") < second.index("The reference.")


TEXT = st.one_of(
    st.text(),
    st.sampled_from(
        ["{question}", "{assistant_1}{assistant_2}", "[The End of Assistant 1s Answer]", "  x\r\n", "\\1"]
    ),
)


@given(question=TEXT, reference=TEXT, description=TEXT, answer=TEXT, order=st.sampled_from(Order))
def test_texts_are_inserted_unchanged_and_never_substituted_again(
    question: str, reference: str, description: str, answer: str, order: Order
) -> None:
    """Whatever the texts hold, placeholders and delimiters included, the prompt is their plain insertion."""
    sample = replace(SAMPLE, question=question, reference=reference, description=description)
    first, second = (reference, answer) if order is Order.REFERENCE_FIRST else (answer, reference)
    pieces = [JUDGE_PROMPT]
    for name, value in (
        ("{meta_info}", description),
        ("{question}", question),
        ("{assistant_1}", first),
        ("{assistant_2}", second),
    ):
        before, after = pieces[-1].split(name)
        pieces[-1:] = [before, value, after]
    assert render_prompt(sample, answer, order) == "".join(pieces)


@given(reference=TEXT, answer=TEXT)
def test_swapping_twice_is_the_identity(reference: str, answer: str) -> None:
    """A sample whose texts change places, judged in the other order, gives the same prompt."""
    swapped = replace(SAMPLE, reference=answer)
    one = render_prompt(replace(SAMPLE, reference=reference), answer, Order.REFERENCE_FIRST)
    assert one == render_prompt(swapped, reference, Order.ANSWER_FIRST)


@pytest.mark.parametrize(
    ("order", "reference", "answer"), [(Order.REFERENCE_FIRST, 9, 4), (Order.ANSWER_FIRST, 4, 9)]
)
def test_the_swap_is_undone(order: Order, reference: int, answer: int) -> None:
    """Scores come back by role, whichever order the judge read."""
    (verdict,), _, (payload,) = ask(Response(text="9 4"), order)
    assert isinstance(verdict, Verdict)
    assert (verdict.reference_score, verdict.answer_score) == (reference, answer)
    assert verdict.score_kind == "integer"
    assert payload["temperature"] == 0
    assert payload["max_tokens"] == 1024
    assert [m["role"] for m in payload["messages"]] == ["user"]


def test_zero_is_a_score() -> None:
    """A judge's 0 is kept, although the prompt names a scale from 1."""
    (verdict,), _, _ = ask(Response(text="8 0"))
    assert isinstance(verdict, Verdict)
    assert verdict.answer_score == 0


def test_an_unparseable_reply_is_asked_again_with_a_correction() -> None:
    """A greedy judge gets its own reply back with a one-line correction, and every reply is kept."""
    script = sequence(Response(text="Both are fine."))

    def second(seen: Any, attempt: int) -> Response:
        return Response(text="7 6") if len(seen.payload["messages"]) == 3 else script(seen, attempt)

    (verdict,), kept, payloads = ask(second)
    assert isinstance(verdict, Verdict)
    assert [reply.text for reply in verdict.replies] == ["Both are fine.", "7 6"]
    assert payloads[1]["messages"][1:] == [
        {"role": "assistant", "content": "Both are fine."},
        {"role": "user", "content": CORRECTION},
    ]
    assert [failure.kind for failure in kept] == [FailureKind.ASKED_AGAIN]
    assert [reply.text for reply in kept[0].replies] == ["Both are fine."]


def test_three_unparseable_replies_are_a_failure() -> None:
    """After being asked again twice the order has failed, with all three replies, and has no score."""
    (failure,), kept, payloads = ask(Response(text="I like both."))
    assert isinstance(failure, Failure)
    assert failure.kind is FailureKind.UNPARSEABLE
    assert [reply.text for reply in failure.replies] == ["I like both."] * 3
    assert len(payloads) == 3
    assert len(kept) == 2


def test_a_sampling_judge_is_asked_again_plainly() -> None:
    """At a temperature above 0 the same prompt is sent again, without a correction."""
    _, _, payloads = ask(Response(text="I like both."), temperature=0.7)
    assert [len(payload["messages"]) for payload in payloads] == [1, 1, 1]


def test_the_official_protocol_asks_once_at_temperature_1() -> None:
    """Under the official protocol an unparseable reply is not asked for again."""
    (failure,), _, (payload,) = ask(Response(text="I like both."), protocol="official")
    assert isinstance(failure, Failure)
    assert failure.kind is FailureKind.UNPARSEABLE
    assert (payload["temperature"], payload["max_tokens"]) == (1.0, 1024)


def test_the_first_reply_cut_off_raises_the_limit_for_the_rest_of_the_run() -> None:
    """A verdict lost to the token limit is asked for with 8192 tokens, and so are all after it."""

    def script(seen: Any, attempt: int) -> Response:
        if seen.payload["max_tokens"] == 1024:
            return Response(text="<think>Let me see", finish_reason="length")
        return Response(text="<think>Well.</think>8 7")

    results, _, payloads = ask(script, times=2)
    assert all(isinstance(result, Verdict) for result in results)
    assert [payload["max_tokens"] for payload in payloads] == [1024, 8192, 8192]
    assert [len(payload["messages"]) for payload in payloads] == [1, 1, 1]


def test_a_reply_cut_off_at_the_raised_limit_is_a_failure() -> None:
    """Where 8192 tokens do not suffice either, the order fails as cut off."""
    (failure,), _, payloads = ask(Response(text="<think>Let me see", finish_reason="length"))
    assert isinstance(failure, Failure)
    assert failure.kind is FailureKind.CUT_OFF
    assert [payload["max_tokens"] for payload in payloads] == [1024, 8192]


def test_a_last_line_that_may_lack_its_end_is_no_verdict() -> None:
    """A line "8 1" that ends at the token limit may have been going to be "8 10"."""
    (result,), _, _ = ask(Response(text="8 1", finish_reason="length"), max_tokens=8192)
    assert isinstance(result, Failure)
    assert result.kind is FailureKind.CUT_OFF


def test_scores_before_a_cut_explanation_count() -> None:
    """A scores line that is complete counts, although the explanation after it was cut."""
    (result,), _, _ = ask(Response(text="8 7\nBecause the", finish_reason="length"))
    assert isinstance(result, Verdict)


def test_an_interrupted_asking_goes_on_where_it_was() -> None:
    """A reply that was paid for before a crash is not paid for again: the correction is asked at once."""
    (verdict,), kept, (payload,) = ask(Response(text="6 5"), earlier=[Reply(text="Hm.")])
    assert isinstance(verdict, Verdict)
    assert [reply.text for reply in verdict.replies] == ["Hm.", "6 5"]
    assert len(payload["messages"]) == 3
    assert kept == []


def test_a_failed_call_keeps_the_replies_before_it() -> None:
    """When asking again ends in an error, the replies paid for until then stay with the Failure."""

    def script(seen: Any, attempt: int) -> Response:
        if len(seen.payload["messages"]) == 3:
            return Response(status=400, error={"message": "This model's maximum context length is 10 tokens"})
        return Response(text="no scores")

    (failure,), _, _ = ask(script)
    assert isinstance(failure, Failure)
    assert failure.kind is FailureKind.CONTEXT_TOO_SMALL
    assert [reply.text for reply in failure.replies] == ["no scores"]


@pytest.mark.parametrize("order", list(Order))
def test_expected_scores_are_freed_from_their_positions_too(order: Order) -> None:
    """What a judge gives as probabilities of its first and second score comes back by role."""

    class Expecting:
        async def until_ready(self) -> None:
            pass

        async def ask(self, messages: Sequence[Mapping[str, Any]], **overrides: Any) -> Reply | Failure:
            given = {"first": [0.0, 1.0], "first_mean": 7.5, "second_mean": 2.25, "second_greedy": 2}
            return Reply(text="8 2", finish_reason="stop", probabilities=given)

    settings = judge_settings("http://127.0.0.1:9/v1")
    judge = Judge(Expecting(), settings, "judge-id")
    verdict = asyncio.run(judge.verdict(SAMPLE, "An answer.", "a" * 64, order, keep=lambda _: None))
    assert isinstance(verdict, Verdict)
    assert verdict.score_kind == "expected"
    first, second = ("reference", "answer") if order is Order.REFERENCE_FIRST else ("answer", "reference")
    scores = {"reference": verdict.reference_score, "answer": verdict.answer_score}
    assert (scores[first], scores[second]) == (7.5, 2.25)
    assert verdict.probabilities == {
        first: [0.0, 1.0], f"{first}_mean": 7.5, f"{second}_mean": 2.25, f"{second}_greedy": 2,
    }  # fmt: skip


@pytest.mark.parametrize("end", ["max_tokens", "MAX_TOKENS", "weird", None])
def test_a_reply_that_did_not_end_normally_is_not_read_to_its_end(end: str | None) -> None:
    """However a server names it: "8 1" that was broken off may have been going to be "8 10"."""
    (result,), _, _ = ask(Response(text="8 1", finish_reason=end), max_tokens=8192)
    assert isinstance(result, Failure)


@pytest.mark.parametrize("end", ["stop", "STOP", "end_turn", None])
def test_a_reply_that_ended_is_read_whole(end: str | None) -> None:
    """A normal end is a normal end, however a server names it, and also where it names none."""
    (result,), _, _ = ask(Response(text="8 7", finish_reason=end))
    assert isinstance(result, Verdict)


def test_a_content_filter_is_a_failure_by_that_name() -> None:
    """A reply that the judge's content filter stopped is not asked for again."""
    (failure,), _, payloads = ask(Response(text=None, finish_reason="content_filter"))
    assert isinstance(failure, Failure)
    assert failure.kind is FailureKind.CONTENT_FILTER
    assert len(payloads) == 1


def test_the_judges_identity_is_what_shapes_a_verdict() -> None:
    """Another URL is the same judge; another prompt, parameter or protocol is another one."""
    one = {"name": "j", "api_url": "http://a", "parameters": {"temperature": 0}, "protocol": "default"}
    assert judge_identity(one) == judge_identity({**one, "api_url": "http://b"})
    assert judge_identity(one) != judge_identity({**one, "parameters": {"temperature": 1}})
    assert judge_identity(one) != judge_identity({**one, "protocol": "official"})
