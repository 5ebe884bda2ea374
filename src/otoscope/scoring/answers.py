"""What the model's answers are like: how they ended, how long they are, and signs that something is wrong."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from otoscope.records import Answer, Json, Outcome, token_count
from otoscope.scoring.audio_tokens import Prompt
from otoscope.scoring.identical import IdenticalAnswers
from otoscope.scoring.samples import mean
from otoscope.scoring.sent import seconds_sent
from otoscope.scoring.wording import in_another_language, says_it_cannot_hear
from otoscope.stats import PairedStratum, correlation_within


@dataclass(slots=True)
class _Lengths:
    """Of the scored samples of one task, in characters."""

    answers: list[float] = field(default_factory=list)
    references: list[float] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    clips: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Answers:
    """What the answers of a run add up to. Holds numbers, digests and a few keys, no text."""

    counts: Counter[str] = field(default_factory=Counter)
    identical: IdenticalAnswers = field(default_factory=IdenticalAnswers)
    prompts: list[Prompt] = field(default_factory=list)
    scores_of_other_language: list[float] = field(default_factory=list)
    scores_of_same_language: list[float] = field(default_factory=list)
    addressing: list[str] = field(default_factory=list)
    """Keys of the samples whose answer addresses the judge."""
    _lengths: dict[str, _Lengths] = field(default_factory=dict)

    def add(self, outcome: Outcome, score: float | None, clip: str, *, addresses: bool) -> None:
        """Add one sample; ``score`` is what its answer got, ``None`` where it has no score.

        ``addresses`` is whether its answer addresses the judge.
        """
        answer, sample = outcome.answer, outcome.sample
        # An imported verdict may stand for an answer that nobody tells: nothing can be said about that.
        if not isinstance(answer, Answer) or (answer.blank and not answer.replies):
            return
        last = answer.replies[-1] if answer.replies else None
        self.counts["answered"] += 1
        self.counts["empty_answer"] += answer.blank
        self.counts["filtered"] += answer.filtered
        self.counts["cut_at_token_limit"] += last is not None and last.finish_reason == "length"
        self.counts["asked_again"] += len(answer.replies) > 1
        self.counts["says_it_cannot_hear"] += says_it_cannot_hear(answer.text)
        self.counts["addresses_judge"] += addresses
        if addresses:
            self.addressing.append(sample.key)
        self.identical.add(clip, answer.text)
        other = in_another_language(sample.question, answer.text)
        self.counts["other_language"] += other
        seconds = seconds_sent(outcome)
        tokens = token_count(last, "prompt_tokens") if last is not None else None
        if seconds is not None and tokens:
            self.prompts.append(Prompt(seconds, len(sample.question), tokens, score))
        if score is not None:
            (self.scores_of_other_language if other else self.scores_of_same_language).append(score)
            lengths = self._lengths.setdefault(sample.task, _Lengths())
            lengths.answers.append(float(len(answer.text)))
            lengths.references.append(float(len(sample.reference)))
            lengths.scores.append(score)
            lengths.clips.append(clip)

    def length(self) -> Json:
        """Return mean lengths in characters over the scored samples, and what length has to do with score.

        ``correlation`` is that of the answer's length with its score within tasks (Pearson, of residuals from
        the tasks' means), since a task that asks for long answers says nothing about length.
        """
        tasks = [self._lengths[name] for name in sorted(self._lengths)]
        related = correlation_within([PairedStratum(task.answers, task.scores, task.clips) for task in tasks])
        answers = [length for task in tasks for length in task.answers]
        references = [length for task in tasks for length in task.references]
        return {
            "answer": mean(answers) if answers else None,
            "reference": mean(references) if references else None,
            "correlation": related.value,
            "correlation_ci95": related.ci95,
            "tasks": {
                name: {"answer": mean(task.answers), "reference": mean(task.references)}
                for name, task in sorted(self._lengths.items())
            },
        }
