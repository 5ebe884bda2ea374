"""What a reader should know before believing a number. A warning never changes a score."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from otoscope.benchmark import TASKS
from otoscope.config.audio_policy import AS_IS
from otoscope.records import Json
from otoscope.scoring.answers import Answers
from otoscope.scoring.audio_tokens import audio_growth
from otoscope.scoring.behaviour import Behaviour
from otoscope.scoring.cells import FULL_COVERAGE, Cells
from otoscope.scoring.families import family
from otoscope.scoring.samples import mean
from otoscope.scoring.sent import CONTROL_WARNINGS, NO_AUDIO, SILENCE, control_of
from otoscope.texts import Catalogue, catalogue

BLANK_SHARE = 0.01
DISAGREE_SHARE = 0.30
IDENTICAL_SHARE = 0.02
ONE_PAIR_SHARE = 0.80
CANNOT_HEAR_SHARE = 0.05
OTHER_LANGUAGE_SHARE = 0.01
LEAST_REPLIES = 20
"""Under so many, one pair of scores or one answer for several clips says nothing."""

_Values = dict[str, str | int | list[str]]
_Text = TypeVar("_Text")
_Warned = Iterator[tuple[str, _Values]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What warnings are drawn from."""

    manifest: Mapping[str, Any]
    orders: int
    cells: Cells
    headline: str
    """The cell that stands for the run."""
    flagged: Json
    """Of the answers that address the judge, as the summary has it."""
    answers: Answers
    behaviour: Behaviour
    audio: Json
    """What was sent of the clips: :meth:`otoscope.scoring.sent.SentClips.summary`."""
    position: Json
    model_names: tuple[str, ...]
    """As the server returned them."""
    judge_names: tuple[str, ...]
    negative: int
    """Replies with a negative score that official scoring let pass."""
    skipped_lines: int
    outside: int

    @property
    def requested(self) -> Mapping[str, Any]:
        """The fingerprint's requested values."""
        return self.manifest.get("fingerprint") or {}

    @property
    def model(self) -> Mapping[str, Any]:
        """What was requested of the model."""
        return self.requested.get("model") or {}

    @property
    def judge(self) -> Mapping[str, Any]:
        """What was requested of the judge; empty without one."""
        return self.requested.get("judge") or {}

    @property
    def control(self) -> str | None:
        """What was sent in place of the clips."""
        return control_of(self.manifest)

    @property
    def imported(self) -> Mapping[str, Any]:
        """What an import has noted of its files; empty for a run that was made here."""
        imported = self.manifest.get("imported")
        return imported if isinstance(imported, Mapping) else {}


def find_warnings(evidence: Evidence) -> list[Json]:
    """Return what there is to warn of: ``name``, ``values``, and the ``message`` in English.

    In another language the message is that of the catalogue's key ``warning.NAME``, see :func:`worded`.
    """
    say = catalogue()
    found = [warned for rule in _RULES for warned in rule(evidence)]
    return [
        {"name": name, "values": values, "message": worded(f"warning.{name}", values, say)}
        for name, values in found
    ]


def worded(key: str, values: Mapping[str, Any], say: Catalogue) -> str:
    """Return a warning's text in a language, its means by the names that they have there."""
    joined = say("table.list_separator").join
    return say(key, **with_names(values, lambda cell: say(f"cell.{cell}"), joined))


def with_names(
    values: Mapping[str, Any], name: Callable[[str], _Text], joined: Callable[[Sequence[_Text]], _Text]
) -> dict[str, Any]:
    """Return a warning's values, with names in the place of the cells that it speaks of."""
    named = dict(values)
    if "cell" in named:
        named["cell"] = name(named["cell"])
    # A summary that was written before has them joined.
    if isinstance(named.get("cells"), list):
        named["cells"] = joined([name(cell) for cell in named["cells"]])
    return named


# --- what was sent ----------------------------------------------------------------------------------------


def _control(evidence: Evidence) -> _Warned:
    if evidence.control is not None:
        yield CONTROL_WARNINGS[evidence.control], {}


def _audio_policy(evidence: Evidence) -> _Warned:
    if (policy := evidence.audio["policy"]) not in (None, AS_IS):
        yield "audio_policy", {"policy": policy}


def _shortened(evidence: Evidence) -> _Warned:
    audio = evidence.audio
    if n := audio["shortened"]:
        seconds = f"{audio['seconds_cut']:,.1f}"
        yield "clips_shortened", {"n": n, "of": audio["clips"], "seconds": seconds}


# --- what was compared with what --------------------------------------------------------------------------


def _models(evidence: Evidence) -> _Warned:
    model, judge = evidence.model, evidence.judge
    if "weights" in judge:
        yield "embedded_judge", {}
    if "weights" in model:
        yield "baseline", {}
    judges = _all_names(judge.get("name"), evidence.judge_names)
    models = _all_names(model.get("name"), evidence.model_names)
    same = judges & models
    if same or ("weights" in model and "weights" in judge):
        yield "self_judged", {"name": min(same or judges)}
    elif kin := {family(name) for name in judges} & {family(name) for name in models} - {None}:
        yield "same_family", {"family": min(map(str, kin))}


def _all_names(requested: Any, returned: tuple[str, ...]) -> set[str]:
    return {str(name).lower() for name in (requested, *returned) if name}


def _prompt(evidence: Evidence) -> _Warned:
    prompt = evidence.requested.get("prompt")
    if not prompt:
        return
    if source := prompt.get("source"):
        yield "foreign_prompt", {"source": source}
    elif (prompt.get("template"), prompt.get("system"), prompt.get("part_order")) != (
        "{question}",
        None,
        "audio-first",
    ):
        yield "prompt", {}


def _withheld(evidence: Evidence) -> _Warned:
    if evidence.manifest.get("withheld"):
        yield "withheld", {}


def _judge_names(evidence: Evidence) -> _Warned:
    if len(evidence.judge_names) > 1:
        yield "several_judges", {"names": ", ".join(sorted(evidence.judge_names))}


# --- which samples ----------------------------------------------------------------------------------------


def _coverage(evidence: Evidence) -> _Warned:
    everything = evidence.cells.all_samples
    unknown = min(_without_row(evidence), everything.pending)
    if waiting := everything.pending - unknown:
        name = "pending" if evidence.judge else "not_judged"
        yield name, {"pending": waiting, "n": everything.n}
    if unknown:
        yield "not_imported", {"count": unknown, "n": everything.n}
    if everything.coverage is None or everything.coverage >= FULL_COVERAGE:
        return
    ended = everything.scored + everything.failed
    if everything.orders is not None:
        counted, missing = (
            int(sum(order[name] or 0 for order in everything.orders.values())) for name in ("n", "missing")
        )
        yield "reply_coverage", {"missing": missing, "ended": counted + missing}
    elif everything.scored:
        yield "coverage", {"failed": everything.failed, "ended": ended}
    elif evidence.judge:
        yield "nothing_scored", {"failed": everything.failed}


def _without_row(evidence: Evidence) -> int:
    """Return the number of samples that the files of an import say nothing of: no resume can finish them."""
    counts: Mapping[str, int] = evidence.imported.get("without_row") or {}
    return sum(counts.get(task, 0) for task in evidence.cells.tasks)


def _imported(evidence: Evidence) -> _Warned:
    if left_out := evidence.imported.get("left_out"):
        yield "import_incomplete", {"count": left_out}


def _selection(evidence: Evidence) -> _Warned:
    if evidence.orders == 1 and evidence.judge:
        yield "no_swap", {}
    if first := _first_of_each(evidence):
        yield "first_n", {"first": first}
    selection = evidence.manifest.get("selection") or {}
    if shard := selection.get("shard"):
        yield "shard", {"shard": shard}
    if missing := selection.get("missing_shards"):
        yield "missing_shards", {"shards": ", ".join(missing)}
    cells = evidence.cells
    if cells.all_samples.partial:
        names = [*(name for name, cell in cells.categories.items() if cell.partial), "all_samples"]
        yield "partial", {"cells": names}


def lacks_shards(manifest: Mapping[str, Any]) -> bool:
    """Whether a run's samples are one shard of those that were chosen, or lack some."""
    selection = manifest.get("selection") or {}
    return bool(selection.get("shard") or selection.get("missing_shards"))


def _first_of_each(evidence: Evidence) -> str | None:
    """Return how much of each task a limit left, where it cut any task without shuffling it."""
    selection = evidence.manifest.get("selection") or {}
    sizes = (evidence.manifest.get("dataset") or {}).get("task_sizes") or {}
    limit = selection.get("limit")
    if limit is None or selection.get("shuffle"):
        return None
    # Not by how many there are: of a shard, fewer.
    of_each = [sizes.get(name, TASKS[name].samples) for name in evidence.cells.tasks]
    if not any((limit if isinstance(limit, int) else limit * size) < size for size in of_each):
        return None
    return str(limit) if isinstance(limit, int) else f"{100 * limit:g} %"


def _lines(evidence: Evidence) -> _Warned:
    if evidence.outside:
        yield "outside_selection", {"outside": evidence.outside}
    if evidence.skipped_lines:
        yield "skipped_lines", {"skipped": evidence.skipped_lines}


# --- the judge --------------------------------------------------------------------------------------------


def _orders_disagree(evidence: Evidence) -> _Warned:
    share = evidence.position["orders_disagree"]
    enough = evidence.position["samples"] >= LEAST_REPLIES
    if enough and share is not None and share > DISAGREE_SHARE:
        yield "orders_disagree", {"share": _percent(share)}


def _one_pair(evidence: Evidence) -> _Warned:
    judged = evidence.behaviour.verdicts["judged"]
    if judged < LEAST_REPLIES:
        return
    common = evidence.behaviour.most_common_pair()
    if common is not None and common[1] > ONE_PAIR_SHARE * judged:
        yield "one_pair", {"scores": common[0], "count": common[1], "judged": judged}
        return
    by_role = evidence.behaviour.most_common_pair_by_role()
    if by_role is not None and by_role[1] > ONE_PAIR_SHARE * judged:
        yield "one_pair_by_role", {"scores": by_role[0], "count": by_role[1], "judged": judged}


def _negative(evidence: Evidence) -> _Warned:
    if evidence.negative:
        yield "negative_scores", {"count": evidence.negative}


# --- the answers ------------------------------------------------------------------------------------------


def _answers(evidence: Evidence) -> _Warned:
    counts = evidence.answers.counts
    answered = counts["answered"]
    if (blank := counts["empty_answer"]) > BLANK_SHARE * answered:
        yield "empty_answer", {"count": blank, "answered": answered}
    if cut := counts["cut_at_token_limit"]:
        yield "cut_at_token_limit", {"count": cut, "answered": answered}
    deaf = counts["says_it_cannot_hear"] if evidence.control is None else 0
    if deaf > CANNOT_HEAR_SHARE * answered:
        yield "cannot_hear", {"count": deaf, "answered": answered, "share": _percent(deaf / answered)}


def _identical(evidence: Evidence) -> _Warned:
    if evidence.control is not None:  # where the clip tells nothing, the question alone makes the answer
        return
    found = evidence.answers.identical
    common = found.most_common
    if common and found.clips >= LEAST_REPLIES and found.identical > IDENTICAL_SHARE * found.clips:
        yield (
            "identical_answers",
            {
                "identical": found.identical,
                "clips": found.clips,
                "share": _percent(found.identical / found.clips),
                "example": common[0],
                "count": common[1],
            },
        )


def _language(evidence: Evidence) -> _Warned:
    answers = evidence.answers
    other, answered = answers.counts["other_language"], answers.counts["answered"]
    if other > OTHER_LANGUAGE_SHARE * answered:
        scored, same = answers.scores_of_other_language, answers.scores_of_same_language
        yield (
            "other_language",
            {
                "count": other,
                "answered": answered,
                "share": _percent(other / answered),
                "mean_with": _mean_or_not([*scored, *same]),
                "mean_without": _mean_or_not(same),
            },
        )


def _addressing(evidence: Evidence) -> _Warned:
    if not (count := evidence.flagged["count"]):
        return
    cells = {
        **evidence.cells.categories,
        "mixed_audio": evidence.cells.mixed_audio,
        "average": evidence.cells.average,
        "all_samples": evidence.cells.all_samples,
    }
    name = evidence.headline if cells[evidence.headline].gpt_score is not None else "all_samples"
    answered = evidence.answers.counts["answered"]
    yield (
        "addresses_judge",
        {
            "count": count,
            "answered": answered,
            "share": _percent(count / answered),
            "cell": name,
            "mean_with": _score_or_not(cells[name].gpt_score),
            "mean_without": _score_or_not(evidence.flagged["gpt_score_without"][name]),
        },
    )


def _audio_tokens(evidence: Evidence) -> _Warned:
    if evidence.control in (SILENCE, NO_AUDIO):  # servers may leave out what is silent
        return
    growth = audio_growth(evidence.answers.prompts)
    if growth is None:
        return
    if growth.ignored:
        yield "audio_ignored", {}
    elif growth.cut_at is not None:
        yield (
            "audio_cut",
            {
                "seconds": f"{growth.cut_at:.0f}",
                "longer": growth.longer,
                "mean_longer": _score_or_not(growth.score_longer),
                "mean_others": _score_or_not(growth.score_others),
            },
        )


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _mean_or_not(scores: Sequence[float]) -> str:
    return _score_or_not(mean(scores) if scores else None)


def _score_or_not(score: float | None) -> str:
    return "n/a" if score is None else f"{score:.2f}"


_RULES: tuple[Callable[[Evidence], _Warned], ...] = (
    _control,
    _models,
    _prompt,
    _audio_policy,
    _withheld,
    _imported,
    _coverage,
    _selection,
    _judge_names,
    _orders_disagree,
    _one_pair,
    _negative,
    _answers,
    _identical,
    _language,
    _addressing,
    _shortened,
    _audio_tokens,
    _lines,
)
