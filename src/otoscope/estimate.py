"""About what the verdicts that a run owes will use of its judge, by the lengths of the texts it will read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from otoscope.chat_api.budget import TYPICAL_VERDICT_TOKENS
from otoscope.chat_api.rate import CHARACTERS_PER_TOKEN
from otoscope.config import EndpointSettings, JudgeSettings
from otoscope.prompts import JUDGE_PROMPT
from otoscope.records import Estimate, Sample, Spent
from otoscope.store import Plan, RunStore

TYPICAL_ANSWER_CHARACTERS = 400.0
"""Of an answer, while the run has none whose lengths could be taken."""

_PROMPT_CHARACTERS = len(re.sub(r"\{\w+\}", "", JUDGE_PROMPT))


def estimated(
    judge: JudgeSettings | None,
    plan: Plan,
    orders: int,
    samples: Sequence[Sample],
    answers: RunStore | None,
    spent: Spent,
) -> Estimate | None:
    """Return what the verdicts of a plan will use, without asking again; ``None`` where nobody is paid.

    ``answers`` is the run that has the answers, and ``spent`` what was used on this judge before. Nothing is
    read: the texts of samples and the lengths of stored answers are in memory.
    """
    if judge is None or not isinstance(judge.endpoint, EndpointSettings):
        return None
    stored = {} if answers is None else _lengths(answers, samples)
    unknown = sum(stored.values()) / len(stored) if stored else TYPICAL_ANSWER_CHARACTERS
    characters = sum(_around(sample) + stored.get(sample.key, unknown) for sample, _ in plan.verdicts)
    characters += orders * (sum(map(_around, plan.answers)) + unknown * len(plan.answers))
    calls = len(plan.verdicts) + orders * len(plan.answers)
    prompt = characters / CHARACTERS_PER_TOKEN
    mean = spent.completion_tokens / spent.replies if spent.replies else TYPICAL_VERDICT_TOKENS
    return Estimate(
        calls=calls,
        prompt_tokens=prompt,
        completion_tokens=calls * mean,
        cost=None if judge.price is None else judge.price.of(prompt, calls * mean),
        unknown_answers=orders * len(plan.answers),
        answer_characters=unknown,
        answers_known=len(stored),
        replies_known=spent.replies,
    )


def of_calls(estimate: Estimate, calls: int) -> Estimate:
    """Return an estimate for so many calls of the same kind."""
    if estimate.calls in (0, calls):
        return estimate
    share = calls / estimate.calls
    return replace(
        estimate,
        calls=calls,
        prompt_tokens=share * estimate.prompt_tokens,
        completion_tokens=share * estimate.completion_tokens,
        cost=None if estimate.cost is None else share * estimate.cost,
        unknown_answers=min(calls, estimate.unknown_answers),
    )


def in_all(estimates: Sequence[Estimate]) -> Estimate | None:
    """Return what several runs will use together; the cost is known where all have a price."""
    costs = [one.cost for one in estimates]
    if not estimates:
        return None
    return Estimate(
        calls=sum(one.calls for one in estimates),
        prompt_tokens=sum(one.prompt_tokens for one in estimates),
        completion_tokens=sum(one.completion_tokens for one in estimates),
        cost=None if None in costs else sum(cost for cost in costs if cost is not None),
        unknown_answers=sum(one.unknown_answers for one in estimates),
        answer_characters=estimates[0].answer_characters,
        answers_known=sum(one.answers_known for one in estimates),
        # What one of them takes for typical is so for all of them together.
        replies_known=min(one.replies_known for one in estimates),
    )


def _around(sample: Sample) -> int:
    """Return the characters of a judge's prompt without the answer."""
    return _PROMPT_CHARACTERS + len(sample.question) + len(sample.reference) + len(sample.description)


def _lengths(store: RunStore, samples: Sequence[Sample]) -> dict[str, int]:
    """Return the characters of each answer that there is, by its sample's key."""
    answers = ((sample.key, store.stored_answer(sample)) for sample in samples)
    return {key: answer.characters for key, answer in answers if answer is not None}
