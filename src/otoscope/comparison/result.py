"""Judged runs -> Comparison."""

from __future__ import annotations

import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from otoscope.benchmark import BENCHMARK, CATEGORIES, MIXED_PARTS
from otoscope.comparison.cells import Group, group
from otoscope.comparison.judges import JudgeDifference, compare_judges
from otoscope.comparison.likeness import (
    Differing,
    judged_differently,
    other_address,
    prompted_differently,
)
from otoscope.comparison.models import DRAWS, SEED, ModelDifference, compare_models
from otoscope.comparison.pairing import LeftOut, Paired, differing_records, pair, same_answers
from otoscope.comparison.reading import JudgedRun, ReadRun, read_run
from otoscope.errors import ConfigError
from otoscope.records import Json
from otoscope.scoring import CONTROL_WARNINGS, FULL_COVERAGE
from otoscope.shell import shell_command
from otoscope.stats import INTERVAL_LABEL
from otoscope.texts import catalogue

FORMAT = 1
Kind = Literal["models", "judges"]
Contrast = Literal["evaluations", "audio", "without_audio", "same_control", "controls", "mixed"]
"""What a difference between two runs is about: see :meth:`Comparison.contrast`."""
_TEST: Json = {"draws": DRAWS, "seed": SEED, "holm": CATEGORIES}
"""``holm``: the cells whose p-values are one family, over all models compared."""
_UNKNOWN = "unknown"
"""What the manifest of an import has for a name that no file tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRun:
    """One of the compared runs. ``samples`` = ``scored`` + ``failed`` + ``pending``."""

    letter: str
    name: str
    model: str
    control: str | None
    """What it sent in place of the clips; ``None`` for an evaluation."""
    judge: str
    label: str | None
    protocol: str | None
    orders: int
    """How many orders it judges: 2 with the swap."""
    samples: int
    scored: int
    failed: int
    pending: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What compared runs have in common, and how they differ from the baseline.

    ``kind`` says what is compared: ``judges`` where all answers are the same, and the judge or the scores are
    not; else ``models``. There is an entry in the field of that name for each run but the baseline.
    """

    kind: Kind
    baseline: str
    """The letter of the run that the others are compared with. Each difference is another run's minus its."""
    runs: Sequence[ComparedRun]
    samples: int
    """Number of samples compared."""
    clips: int
    left_out: Sequence[LeftOut]
    headline: str
    """The cell that stands for the comparison: ``average``, or what there is in its place."""
    holm_tests: int
    """How many tests Holm's correction is over: the categories there are, times the models compared."""
    judged_differently: Sequence[Differing]
    """In what of judge, sampling and scoring runs differ from the baseline."""
    warnings: Sequence[Mapping[str, str]]
    models: Sequence[ModelDifference] = ()
    judges: Sequence[JudgeDifference] = ()

    def run(self, letter: str) -> ComparedRun:
        """Return a run by its letter. Raises ``KeyError``."""
        return {run.letter: run for run in self.runs}[letter]

    def contrast(self, letter: str) -> Contrast:
        """Return what the difference between a run and the baseline is about.

        ``audio``: an evaluation less its control, which is what the audio contributes; ``without_audio``: the
        reverse. ``same_control`` and ``controls``: no evaluation is among them. ``mixed``: an evaluation and
        a control of different models. Raises ``KeyError`` for a letter that there is not.
        """
        base, run = self.run(self.baseline), self.run(letter)
        if base.control is None and run.control is None:
            return "evaluations"
        if base.control is not None and run.control is not None:
            return "same_control" if base.control == run.control else "controls"
        if base.model != run.model:
            return "mixed"
        return "without_audio" if base.control is None else "audio"

    @property
    def contrasts(self) -> dict[str, Contrast]:
        """What each difference is about, by the letter of the run."""
        return {run.letter: self.contrast(run.letter) for run in self.runs if run.letter != self.baseline}

    def to_json(self) -> Json:
        """Return plain JSON values, n/a as ``null``, never NaN."""
        return {
            "format": FORMAT,
            "benchmark": BENCHMARK,
            "scoring": "default",
            "interval": INTERVAL_LABEL,
            "permutation_test": _TEST if self.kind == "models" else None,
            "contrasts": self.contrasts,
            **asdict(self),
        }


def compare(
    runs: Sequence[JudgedRun], *, baseline: int | None = None, across_judges: bool = False
) -> Comparison:
    """Compare runs, on the samples that all of them scored, with the one at the index ``baseline``.

    Without one that is the first, or a single control among evaluations: what an evaluation scores above its
    control is what the audio contributes.

    Samples are the same where key, record and clip are. Runs that were not judged alike are compared only
    with ``across_judges``, or where all their answers are the same: then their judges are compared.

    Raises ``ConfigError`` for fewer than two runs, one that was not judged, one whose orders are not joined,
    runs that were not judged alike, and runs without a sample in common.
    """
    letters = string.ascii_uppercase
    if not 2 <= len(runs) <= len(letters):
        raise ConfigError(f"compare takes 2 to {len(letters)} runs, but got {len(runs)}")
    for run in runs:
        _check_comparable(run)
    read = [read_run(letter, run) for letter, run in zip(letters, runs, strict=False)]
    base = read[_usual_baseline(runs) if baseline is None else baseline]
    others = [run for run in read if run is not base]
    paired, left_out = pair(read, base.letter)
    if not paired:
        raise ConfigError(_nothing_in_common(read, left_out))
    unlike = [difference for run in others for difference in judged_differently(base, run)]
    kind = _kind(paired, base, others, unlike)
    if unlike and kind == "models" and not across_judges:
        raise ConfigError(_refusal(read, base, unlike))
    groups = group(paired)
    names = [run.letter for run in others]
    models, tests = compare_models(groups, base.letter, names) if kind == "models" else ((), 0)
    judges = compare_judges(groups, paired, base.letter, names) if kind == "judges" else ()
    headline = _headline(groups)
    warnings = [
        *_warnings(base, others, kind, unlike),
        *_little_in_common(read, len(paired)),
        *_other_shares(groups, headline, base.letter, models or judges),
    ]
    return Comparison(
        kind=kind,
        baseline=base.letter,
        runs=tuple(_compared(run) for run in read),
        samples=len(paired),
        clips=groups["all_samples"].clips,
        left_out=left_out,
        headline=headline,
        holm_tests=tests,
        judged_differently=tuple(unlike),
        warnings=tuple({"name": name, "message": message} for name, message in warnings),
        models=models,
        judges=judges,
    )


def _usual_baseline(runs: Sequence[JudgedRun]) -> int:
    controls = [index for index, run in enumerate(runs) if run.control is not None]
    return controls[0] if len(controls) == 1 else 0


def _kind(
    paired: Sequence[Paired], base: ReadRun, others: Sequence[ReadRun], unlike: Sequence[Differing]
) -> Kind:
    controls = {read.run.control for read in (base, *others)}
    if not same_answers(paired) or len(controls) > 1:
        return "models"
    equal = all(
        (one.score(run.letter), one.reference(run.letter))
        == (one.score(base.letter), one.reference(base.letter))
        for one in paired
        for run in others
    )
    return "models" if equal and not unlike else "judges"


def _headline(groups: Mapping[str, Group]) -> str:
    if groups["average"].complete:
        return "average"
    there = [name for name in CATEGORIES if groups[name].complete]
    if len(there) == 1:
        return there[0]
    return "mixed_audio" if set(there) == set(MIXED_PARTS) else "all_samples"


def _model(read: ReadRun) -> str:
    return (read.run.requested.get("model") or {}).get("name") or "?"


def _compared(read: ReadRun) -> ComparedRun:
    requested = read.run.requested
    judge = requested.get("judge") or {}
    return ComparedRun(
        letter=read.letter,
        name=read.run.name,
        model=_model(read),
        control=read.run.control,
        judge=judge.get("name") or "?",
        label=read.run.label,
        protocol=judge.get("protocol"),
        orders=len(read.run.orders),
        samples=len(read.samples),
        scored=read.count("scored"),
        failed=read.count("failed"),
        pending=read.count("pending"),
    )


# --- what is refused --------------------------------------------------------------------------------------


def _check_comparable(run: JudgedRun) -> None:
    if run.manifest.get("unjoined"):
        raise ConfigError(
            f"{run.name}: its two orders could not be joined when it was imported, so no sample has a score "
            "of its own to be paired. Import it with files that hold the keys of the samples"
        )
    if not run.requested.get("judge"):
        raise ConfigError(
            f"{run.name}: not judged. Judge it first:\n  otoscope judge {shell_command([run.name])}"
        )


def _nothing_in_common(runs: Sequence[ReadRun], left_out: Sequence[LeftOut]) -> str:
    names = ", ".join(f"{run.letter} = {run.run.name}" for run in runs)
    reasons = "".join(f"\n  {one.samples} {one.told()}" for one in left_out) or "\n  there are no samples"
    unknown = any(one.reason == "clip_unknown" for one in left_out)
    importing = "; import with --data, so that the clips are known" if unknown else ""
    return (
        f"no sample was scored by all of these runs, so there is nothing to compare ({names}):{reasons}\n"
        f"Compare runs over the same tasks and data, or resume those that are not finished{importing}"
    )


def _refusal(runs: Sequence[ReadRun], base: ReadRun, unlike: Sequence[Differing]) -> str:
    names = "\n".join(f"  {run.letter} = {run.run.name}" for run in runs)
    fields = "\n".join(f"  {difference.told(base.letter)}" for difference in unlike)
    return (
        f"these runs were not judged alike, so a difference would not be the models' alone:\n{names}\n"
        f"{fields}\n"
        "Judge their answers alike (otoscope judge RUN --judge-model ...), or compare them all the same with "
        "--across-judges"
    )


# --- what a reader should know ----------------------------------------------------------------------------


def _warnings(
    base: ReadRun, others: Sequence[ReadRun], kind: Kind, unlike: Sequence[Differing]
) -> Iterator[tuple[str, str]]:
    """Yield the name and the message of each warning."""
    say = catalogue()
    for run in sorted((base, *others), key=lambda run: run.letter):
        if (control := run.run.control) is not None:
            yield "control", f"{run.letter}: {say(f'warning.{CONTROL_WARNINGS[control]}')}"
    for run in others:
        one_is_a_control = (base.run.control is None) != (run.run.control is None)
        if one_is_a_control and _model(base) != _model(run):
            models = f"{base.letter} and {run.letter} are of different models"
            yield "control_of_another", f"{models}: their difference is not what the audio contributes"
    if unlike and kind == "models":
        yield "across_judges", "the runs were not judged alike: differences are of models and judges together"
    for run in others:
        digests = [(one.run.manifest.get("dataset") or {}).get("digest") for one in (base, run)]
        if all(digests) and digests[0] != digests[1]:
            both = len(base.samples.keys() & run.samples.keys())
            differing = f"{differing_records(base, run):,} of the {both:,} samples that both runs have"
            yield "dataset", f"the data sets of {base.letter} and {run.letter} differ: in {differing}"
        if kind == "models" and (prompts := prompted_differently(base, run)):
            fields = "; ".join(difference.told(base.letter) for difference in prompts)
            yield "prompt", f"the models were not prompted alike: {fields}"
        if address := other_address(base, run):
            yield "judge_address", f"the judge was asked at two addresses: {address.told(base.letter)}"
    for run in (base, *others):
        yield from _judge_in_doubt(run)


def _little_in_common(runs: Sequence[ReadRun], samples: int) -> Iterator[tuple[str, str]]:
    little = [run for run in runs if samples < FULL_COVERAGE * len(run.samples)]
    if little:
        # Cut, so that under 99 % never reads as 99 %.
        shares = ", ".join(
            f"{1000 * samples // len(run.samples) / 10:g} % of {run.letter}'s {len(run.samples):,}"
            for run in little
        )
        yield "in_common", f"only {samples:,} samples are in common: {shares}"


def _other_shares(
    groups: Mapping[str, Group],
    headline: str,
    baseline: str,
    compared: Sequence[ModelDifference] | Sequence[JudgeDifference],
) -> Iterator[tuple[str, str]]:
    """Say which cells weight tasks otherwise than the full set does, and what of it the first number is."""
    names = [name for name, group in groups.items() if group.has_other_shares]
    if not names:
        return
    say = catalogue()
    name = headline if headline in names else names[-1]
    told = []
    for difference in compared:
        score = difference.cells[name].gpt_score
        if score is not None and score.value_full_weights is not None:
            both = f"{score.value_full_weights:+.2f} (here {score.value:+.2f})"
            told.append(f"{difference.run}-{baseline} {both}")
    cells = ", ".join(say(f"cell.{cell}") for cell in names)
    shares = f"the tasks' shares of the samples in common are not the full set's ({cells})"
    yield "partial", f"{shares}; with those, {say(f'cell.{name}')} is {', '.join(told)}"


def _judge_in_doubt(run: ReadRun) -> Iterator[tuple[str, str]]:
    if len(run.judge.names) > 1:
        names = ", ".join(sorted(run.judge.names))
        yield "several_judges", f"the server of {run.letter}'s judge returned several model names: {names}"
    if run.run.manifest.get("imported") and _compared(run).judge == _UNKNOWN:
        yield "judge_unknown", f"{run.letter} was imported from files that do not name its judge"
