"""Prompt tokens against clip lengths, from simulated servers."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otoscope.scoring.audio_tokens import MIN_PROMPTS, Growth, Prompt, audio_growth

SEEDS = range(200)
Server = Callable[[float], int]
"""Seconds of a clip -> the audio tokens that the server counts for it."""


def per_second(rate: float) -> Server:
    """Return a server that counts ``rate`` tokens a second, rounded down."""
    return lambda seconds: int(rate * seconds)


def per_block(seconds_each: float, tokens_each: int) -> Server:
    """Return a server that counts started blocks."""
    return lambda seconds: math.ceil(seconds / seconds_each) * tokens_each


def cut(server: Server, limit: float) -> Server:
    """Return the server that drops what comes after ``limit`` seconds."""
    return lambda seconds: server(min(seconds, limit))


HEALTHY = {
    "25 tokens a second": per_second(25),
    "6.25 tokens a second": per_second(6.25),
    "a token per 2 s": per_second(0.5),
    "started seconds of 25 tokens": per_block(1, 25),
    "started blocks of 30 s": per_block(30, 750),
}
LENGTHS: list[Callable[[random.Random], float]] = [
    lambda rng: rng.uniform(1, 120),
    lambda rng: math.exp(rng.uniform(0, math.log(120))),
    lambda rng: rng.choice([10.0, rng.uniform(2, 12), rng.uniform(15, 30), rng.uniform(10, 60)]),
]
"""Lengths of clips in seconds: even, mostly short, and as in the benchmark, where many are 10 s long."""


def prompts(
    seed: int, server: Server, length: Callable[[random.Random], float] | None = None, n: int = 120
) -> list[Prompt]:
    """Return prompts with questions of many lengths, whose tokens vary by 30 % about a quarter of theirs."""
    rng = random.Random(seed)  # noqa: S311 (no secret hangs on it)
    length = length or LENGTHS[seed % len(LENGTHS)]
    template = rng.randint(5, 60)
    found = []
    for _ in range(n):
        seconds = length(rng)
        characters = rng.randint(17, 166) if rng.random() < 0.9 else rng.randint(130, 423)
        text = round(characters / 4 * rng.uniform(0.7, 1.3))
        found.append(Prompt(seconds, characters, template + server(seconds) + text, rng.uniform(0, 10)))
    return found


@pytest.mark.parametrize("server", HEALTHY.values(), ids=HEALTHY)
def test_a_server_that_hears_all_raises_no_alarm(server: Server) -> None:
    """Over 200 sets of clips, steps and noise are taken neither for a cut nor for deafness."""
    assert [audio_growth(prompts(seed, server)) for seed in SEEDS] == [Growth()] * len(SEEDS)


@pytest.mark.parametrize("tokens", [0, 1500])
def test_a_server_that_ignores_the_audio_is_always_found(tokens: int) -> None:
    """No tokens for a clip, or always as many, is told over all of 200 sets of clips."""
    found = [audio_growth(prompts(seed, lambda _: tokens)) for seed in SEEDS]
    assert found == [Growth(ignored=True)] * len(SEEDS)


@pytest.mark.parametrize("limit", [10, 30])
def test_a_server_that_cuts_is_always_found(limit: int) -> None:
    """Over 200 sets of clips the length is within 5 %, and the clips that are longer are counted exactly."""
    for seed in SEEDS:
        asked = prompts(seed, cut(per_second(25), limit), n=400)
        growth = audio_growth(asked)
        assert growth is not None
        assert growth.cut_at is not None
        assert growth.cut_at == pytest.approx(limit, rel=0.05)
        assert not growth.ignored
        assert growth.longer == sum(prompt.seconds > growth.cut_at for prompt in asked)


@pytest.mark.parametrize("server", [per_second(12.5), per_second(6.25), per_block(1, 25)])
def test_slower_and_stepwise_servers_that_cut_are_found_too(server: Server) -> None:
    """With a few hundred prompts a cut at 30 s shows at a quarter of the rate, and in steps of a second."""
    for seed in range(30):
        growth = audio_growth(prompts(seed, cut(server, 30), n=300))
        assert growth is not None
        assert growth.cut_at == pytest.approx(30, rel=0.05)


@pytest.mark.parametrize("limit", [10, 30])
def test_clips_that_are_all_shorter_than_the_cut_show_none(limit: int) -> None:
    """What no clip reaches is not reported."""
    for seed in SEEDS:
        asked = prompts(seed, cut(per_second(25), limit), lambda rng: rng.uniform(1, limit))
        assert audio_growth(asked) == Growth()


def test_scores_are_averaged_on_both_sides_of_the_cut() -> None:
    """The mean of the longer clips' scores stands beside the others'; samples without one are left out."""
    asked = [
        prompt._replace(score=None if prompt.seconds < 5 else 2.0 if prompt.seconds > 30 else 8.0)
        for prompt in prompts(0, cut(per_second(25), 30))
        if not 30 < prompt.seconds < 32
    ]
    growth = audio_growth(asked)
    assert growth is not None
    assert (growth.cut_at, growth.score_longer, growth.score_others) == (30.0, 2.0, 8.0)
    unscored = audio_growth([prompt._replace(score=None) for prompt in asked])
    assert unscored is not None
    assert (unscored.cut_at, unscored.score_longer, unscored.score_others) == (30.0, None, None)


def test_too_few_or_too_equal_clips_say_nothing() -> None:
    """Under 20 prompts, and where all clips are 10 s long, there is no result."""
    asked = prompts(0, lambda _: 0)
    assert audio_growth([]) is None
    assert audio_growth(asked[: MIN_PROMPTS - 1]) is None
    assert audio_growth([prompt._replace(seconds=10.0) for prompt in asked]) is None


@pytest.mark.parametrize("seconds", [math.nan, math.inf])
def test_a_clip_without_a_proper_length_is_left_out(seconds: float) -> None:
    """A length that is no number changes nothing for the others."""
    asked = prompts(0, cut(per_second(25), 30))
    assert audio_growth([*asked, Prompt(seconds, 80, 100, 5.0)]) == audio_growth(asked)


def test_a_text_that_grows_with_the_clip_is_not_taken_for_audio() -> None:
    """Where questions are longer for longer clips, the tokens' growth is the text's."""
    rng = random.Random(0)  # noqa: S311
    asked = []
    for _ in range(400):
        seconds = rng.uniform(1, 60)
        characters = 20 + round(4 * seconds + rng.uniform(0, 80))
        asked.append(Prompt(seconds, characters, 10 + round(characters / 4 * rng.uniform(0.7, 1.3)), None))
    assert audio_growth(asked) == Growth(ignored=True)


def test_text_and_clip_that_grow_in_step_cannot_be_told_apart() -> None:
    """Where the length of the text foretells that of the clip, nothing is said."""
    asked = [Prompt(float(second), 10 * second, 25 * second, None) for second in range(1, 61)]
    assert audio_growth(asked) == Growth()


@settings(max_examples=50)
@given(
    st.integers(0, 10_000), st.sampled_from(sorted(HEALTHY)), st.sampled_from([None, 10, 30]), st.randoms()
)
def test_the_order_of_the_prompts_is_all_the_same(
    seed: int, name: str, limit: int | None, rng: random.Random
) -> None:
    """Whatever the server does, shuffled prompts give the same result but for rounding."""
    server = HEALTHY[name] if limit is None else cut(HEALTHY[name], limit)
    asked = prompts(seed, server, n=60)
    growth, shuffled = audio_growth(asked), audio_growth(rng.sample(asked, len(asked)))
    assert growth is not None
    assert shuffled is not None
    assert (growth.ignored, growth.longer) == (shuffled.ignored, shuffled.longer)
    assert growth.cut_at == pytest.approx(shuffled.cut_at)


NUMBERS = st.floats(0, 1e4) | st.sampled_from([0.0, 1.0, 10.0])
PROMPTS = st.lists(
    st.builds(Prompt, NUMBERS, st.integers(0, 100_000), st.integers(0, 10**9), st.none() | st.floats(0, 10)),
    min_size=MIN_PROMPTS,
    max_size=40,
)


@settings(max_examples=50)
@given(PROMPTS)
def test_any_numbers_give_a_result(asked: list[Prompt]) -> None:
    """No lengths and counts, however odd, make it fail or give something that is not a number."""
    growth = audio_growth(asked)
    if growth is not None and growth.cut_at is not None:
        assert 0 < growth.cut_at <= max(prompt.seconds for prompt in asked)
        assert not growth.ignored
        assert growth.longer >= 5
