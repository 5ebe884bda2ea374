"""Which run's lines count for a sample that several runs have: the same ones once, different ones nowhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from otoscope.errors import RunDirectoryError
from otoscope.merging.sources import Source
from otoscope.records import Answer, Order, Outcome, Verdict

_SHOWN = 5


@dataclass(slots=True)
class Owners:
    """Whose lines are taken, by their place among the runs."""

    answers: dict[str, int] = field(default_factory=dict)
    """By key."""
    verdicts: dict[tuple[str, Order], int] = field(default_factory=dict)
    """By key and order, where that is another run than the answer's."""
    shared: int = 0
    """Samples that several runs have something of."""

    def takes(self, place: int, key: str, order: Order | None) -> bool:
        """Whether a line about a sample is taken from the run at this place."""
        answers = self.answers.get(key)
        return place == (answers if order is None else self.verdicts.get((key, order), answers))


def owners(sources: Sequence[Source]) -> Owners:
    """Return whose lines are taken. Of a run, only those about its own samples are.

    Of a sample that several runs have, the first one that has answered it counts, and its failures with it;
    a verdict that this run lacks is taken from one that has it. Raises ``RunDirectoryError`` that names
    samples which were answered, or judged, differently.
    """
    found = Owners()
    holders: dict[str, list[int]] = {}
    for place, source in enumerate(sources):
        for key in source.samples:
            holders.setdefault(key, []).append(place)
    conflicts: list[str] = []
    for key, places in holders.items():
        if len(places) == 1:
            found.answers[key] = places[0]
            continue
        told = {place: _outcome(sources[place], key) for place in places}
        there = {place: outcome for place, outcome in told.items() if outcome.answer is not None}
        found.shared += len(there) > 1
        if conflict := _conflict(there, sources):
            conflicts.append(f"  {key}: {conflict}")
        answered = [place for place, outcome in there.items() if isinstance(outcome.answer, Answer)]
        owner = found.answers[key] = next(iter((*answered, *there, *places)))
        if answered:
            found.verdicts.update(_judged_elsewhere(key, owner, answered, told))
    if conflicts:
        raise RunDirectoryError("\n".join(_refusal(conflicts)))
    return found


def _outcome(source: Source, key: str) -> Outcome:
    return source.store.outcome(source.samples[key], source.manifest.get("judge_id"))


def _judged_elsewhere(
    key: str, owner: int, answered: Iterable[int], told: dict[int, Outcome]
) -> Iterator[tuple[tuple[str, Order], int]]:
    """Yield the orders whose verdict another run has, and the one that has the answer lacks."""
    for order in Order:
        judged = [place for place in answered if isinstance(told[place].verdicts.get(order), Verdict)]
        tried = [place for place in answered if order in told[place].verdicts]
        best = next(iter((*judged, *tried)), owner)
        if not isinstance(told[owner].verdicts.get(order), Verdict) and best != owner:
            yield (key, order), best


def _conflict(there: dict[int, Outcome], sources: Sequence[Source]) -> str | None:
    """Return, in words, the first thing that two runs say differently of one sample."""
    answers = {place: one.answer for place, one in there.items() if isinstance(one.answer, Answer)}
    for first, place in _pairs(answers):
        one, other = sources[first].path, sources[place].path
        if answers[first].text != answers[place].text:
            return f"{answers[first].text!r:.60} in {one}, {answers[place].text!r:.60} in {other}"
        clips = [(there[at].clip or {}).get("sha256") for at in (first, place)]
        if None not in clips and clips[0] != clips[1]:
            return f"about the clip {clips[0]:.12} in {one}, {clips[1]:.12} in {other}"
    for order in Order:
        verdicts = {
            place: (verdict.reference_score, verdict.answer_score)
            for place in answers
            if isinstance(verdict := there[place].verdicts.get(order), Verdict)
        }
        for first, place in _pairs(verdicts):
            if verdicts[first] != verdicts[place]:
                return (
                    f"{order.value}, reference and answer scored {verdicts[first]} in {sources[first].path}, "
                    f"{verdicts[place]} in {sources[place].path}"
                )
    return None


def _pairs(places: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield the first of these with each of the others."""
    ordered = list(places)
    yield from ((ordered[0], place) for place in ordered[1:])


def _refusal(conflicts: Sequence[str]) -> Iterator[str]:
    yield f"these runs say different things of the same samples ({len(conflicts):,}):"
    yield from conflicts[:_SHOWN]
    if len(conflicts) > _SHOWN:
        yield f"  and {len(conflicts) - _SHOWN:,} more"
    yield (
        "Which of them counts cannot be told afterwards. Leave one of these runs out, and give the run "
        "of the shard, or of the samples, that is then missing"
    )
