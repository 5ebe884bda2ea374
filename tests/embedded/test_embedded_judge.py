"""The judge that scores by expectation, with the real model."""

from __future__ import annotations

import asyncio
import time
from statistics import mean

import pytest

from otoscope.judge import render_prompt
from otoscope.llm import EmbeddedJudge, LocalModel, chat_tokens
from otoscope.records import Failure, FailureKind, Order, Reply
from tests.embedded.measured import peak_memory, report
from tests.embedded.pairs import PAIRS, Pair

pytestmark = pytest.mark.embedded

LEAST_RIGHT = 10
MAX_MEMORY = 3.5
"""GB."""


def ask(model: LocalModel, content: str) -> Reply | Failure:
    """Ask the judge one thing."""
    return asyncio.run(EmbeddedJudge(model).ask([{"role": "user", "content": content}]))


def verdict(model: LocalModel, pair: Pair, answer: str, order: Order) -> Reply:
    """Judge one answer in one order."""
    reply = ask(model, render_prompt(pair.sample, answer, order))
    assert isinstance(reply, Reply), reply
    return reply


def scores(replies: dict[Order, Reply], what: str) -> list[float]:
    """Return what the answer (not the reference) got in each order."""
    places = {Order.REFERENCE_FIRST: "second", Order.ANSWER_FIRST: "first"}
    return [float((reply.probabilities or {})[f"{places[order]}_{what}"]) for order, reply in replies.items()]


def test_good_answers_are_scored_above_bad_ones(local_model: LocalModel) -> None:
    """Of twelve pairs at least ten rank right by the expected score, averaged over both orders."""
    right = greedy_ties = 0
    leads: list[float] = []
    seconds: dict[Order, list[float]] = {order: [] for order in Order}
    for pair in PAIRS:
        good, bad = (
            {order: verdict(local_model, pair, answer, order) for order in Order}
            for answer in (pair.good, pair.bad)
        )
        right += mean(scores(good, "mean")) > mean(scores(bad, "mean"))
        greedy_ties += mean(scores(good, "greedy")) == mean(scores(bad, "greedy"))
        for replies in (good, bad):
            for order, reply in replies.items():
                found = reply.probabilities or {}
                assert min(found["first_mass"], found["second_mass"]) > 0.9
                leads.append(found["first_mean"] - found["second_mean"])
                seconds[order].append(reply.latency)
    report(
        f"{right} of {len(PAIRS)} pairs right by the expected score; {greedy_ties} greedy ties",
        f"position bias {mean(leads):+.2f} points for the first place",
        *(f"{mean(times):.1f} s a call, {order.value}" for order, times in seconds.items()),
    )
    assert right >= LEAST_RIGHT


def test_a_verdict_does_not_depend_on_what_was_asked_before(local_model: LocalModel) -> None:
    """The same prompt gets the same probabilities to the last digit, whatever is known of it already."""
    first, second = (render_prompt(PAIRS[0].sample, PAIRS[0].good, order) for order in Order)
    found: list[Reply] = []
    for before in (None, None, "Something else.", first):
        if before is not None:
            ask(local_model, before)
        reply = ask(local_model, second)
        assert isinstance(reply, Reply)
        found.append(reply)
    cached = [(reply.usage or {})["prompt_tokens_details"]["cached_tokens"] for reply in found]
    assert all(reply.probabilities == found[0].probabilities for reply in found)
    assert cached[1] > cached[3] > cached[2]


def test_the_prompt_is_tokenised_as_the_models_own_template_is(local_model: LocalModel) -> None:
    """Header, default system message and turns are those of the template in the model's file."""
    content = render_prompt(PAIRS[3].sample, "  Two lines,\n\nand 12 digits.\n", Order.ANSWER_FIRST)
    rendered = (
        "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
        f"<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n"
    )

    async def tokens() -> tuple[list[int], list[int], str]:
        from otoscope.gguf import Gguf

        await local_model.complete([{"role": "user", "content": "Hello."}], max_tokens=1)
        model = local_model.loaded
        assert isinstance(model, Gguf)
        ours = chat_tokens(model, [{"role": "user", "content": content}])
        return ours, model.template_tokens(rendered), model.template

    ours, theirs, template = asyncio.run(tokens())
    assert ours == theirs
    assert "You are Qwen, created by Alibaba Cloud. You are a helpful assistant." in template


def test_a_prompt_longer_than_the_context_fails_by_name(local_model: LocalModel) -> None:
    """Nothing is cut, and nothing crashes in the runtime."""
    failure = ask(local_model, "word " * 9000)
    assert isinstance(failure, Failure)
    assert failure.kind is FailureKind.CONTEXT_TOO_SMALL


def test_a_long_description_is_judged(local_model: LocalModel) -> None:
    """The longest dialogues of the benchmark have over 4,000 tokens."""
    start = time.perf_counter()
    reply = ask(local_model, render_prompt(PAIRS[3].sample, "word " * 2000, Order.REFERENCE_FIRST))
    assert isinstance(reply, Reply)
    report(f"{(reply.usage or {})['prompt_tokens']} prompt tokens: {time.perf_counter() - start:.0f} s")


def test_a_cancelled_call_ends_at_once(local_model: LocalModel) -> None:
    """A long prompt is left in the middle, the event loop stays free, and the next verdict is right."""
    prompt = render_prompt(PAIRS[5].sample, PAIRS[5].good, Order.REFERENCE_FIRST)
    before = ask(local_model, prompt)

    async def cancel() -> tuple[float, float]:
        judge = EmbeddedJudge(local_model)
        call = asyncio.ensure_future(judge.ask([{"role": "user", "content": "many words " * 3000}]))
        longest, last = 0.0, time.perf_counter()
        for _ in range(100):
            await asyncio.sleep(0.01)
            longest, last = max(longest, time.perf_counter() - last), time.perf_counter()
        start = time.perf_counter()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await local_model.run(lambda: None)
        return time.perf_counter() - start, longest

    ended, gap = asyncio.run(cancel())
    after = ask(local_model, prompt)
    report(f"cancelled within {ended:.2f} s; longest gap of the event loop {gap:.3f} s")
    assert ended < 2
    assert gap < 0.5
    assert isinstance(before, Reply)
    assert isinstance(after, Reply)
    assert after.probabilities == before.probabilities


def test_memory_stays_below_the_limit(local_model: LocalModel) -> None:
    """With the model loaded and a full context's cache, the process has less than was promised."""
    ask(local_model, "Hello.")
    report(f"peak memory {peak_memory():.2f} GB")
    assert peak_memory() < MAX_MEMORY


def test_the_runtimes_log_reaches_nobody(local_model: LocalModel, capfd: pytest.CaptureFixture[str]) -> None:
    """llama.cpp writes pages about a model and each context; a terminal shows none of it."""
    from otoscope.gguf import Gguf

    assert ask(local_model, "Hello.") is not None
    model = local_model.loaded
    assert isinstance(model, Gguf)
    model.context(64).close()
    assert capfd.readouterr() == ("", "")
