"""Which samples several runs are together: one selection, whole, or without some of its shards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from otoscope.benchmark import BENCHMARK, TASKS
from otoscope.config import Shard, without_selection
from otoscope.errors import ConfigError, RunDirectoryError
from otoscope.merging.sources import Source
from otoscope.records import Json, Sample
from otoscope.store import MANIFEST


@dataclass(frozen=True, slots=True)
class Together:
    """The samples of several runs, and how they were chosen."""

    samples: tuple[Sample, ...]
    """In the order of the tasks, and within each of the keys: whichever runs they came from."""
    chosen: Json
    """Limit, shuffle and seed, which all runs share."""
    missing: tuple[str, ...]
    """Shards without a run, as ``I/N``."""
    selected: int
    """The number of samples with those of the missing shards."""

    @property
    def tasks(self) -> list[str]:
        """The tasks of the samples, and of those that are missing."""
        return list(self.chosen["tasks"])

    def to_json(self) -> Json:
        """Return the selection as a manifest has it."""
        lacking = {"missing_shards": list(self.missing), "selected": self.selected} if self.missing else {}
        return {**self.chosen, "samples": len(self.samples), **lacking}

    def settings(self, stored: Json) -> Json:
        """Return a run's stored settings with this selection in the place of its own."""
        kept = without_selection(stored)
        given = {name: value for name, value in stored.items() if name in ("limit", "shuffle", "seed")}
        args = dict((kept.get("dataset_args") or {}).get(BENCHMARK) or {})
        shuffle = ((stored.get("dataset_args") or {}).get(BENCHMARK) or {}).get("shuffle")
        args.update({} if shuffle is None else {"shuffle": shuffle})
        if len(self.tasks) < len(TASKS):
            args["extra_params"] = {**(args.get("extra_params") or {}), "tasks": self.tasks}
        return {**kept, **given, "dataset_args": {BENCHMARK: args}}


def together(sources: Sequence[Source], *, partial: bool) -> Together:
    """Return what the runs are together.

    Raises ``RunDirectoryError`` where they were chosen differently, or, unless ``partial``, where shards are
    missing.
    """
    chosen = _chosen_alike(sources)
    samples: dict[str, Sample] = {}
    for source in sources:
        for key, sample in source.samples.items():
            samples.setdefault(key, sample)
    missing: list[str] = []
    lacking = 0
    for tasks, group in _by_tasks(sources).items():
        if any(not _is_part(source) for source in group):
            continue
        there = sum(sample.task in tasks for sample in samples.values())
        selected = max(source.selection.get("selected") or 0 for source in group)
        if there < selected:
            missing += _missing(group)
            lacking += selected - there
    if lacking and not partial:
        which = ", ".join(missing) or "none by its number: were they cut from the same selection?"
        raise RunDirectoryError(
            f"these runs are not the whole selection: {lacking:,} of {len(samples) + lacking:,} samples are "
            f"in none of them; missing shards: {which}\n"
            "Give the runs of these, too, or --partial to join what there is"
        )
    named = (source.selection.get("tasks") or () for source in sources)
    tasks_of_all = {task for tasks in named for task in tasks} or {sample.task for sample in samples.values()}
    order = {task: place for place, task in enumerate(TASKS)}
    return Together(
        samples=tuple(sorted(samples.values(), key=lambda sample: (order[sample.task], sample.key))),
        chosen={"tasks": [task for task in TASKS if task in tasks_of_all], **chosen},
        missing=tuple(dict.fromkeys(missing)),
        selected=len(samples) + lacking,
    )


def _chosen_alike(sources: Sequence[Source]) -> Json:
    """Return limit, shuffle and seed. Raises ``RunDirectoryError`` where they differ and that matters."""
    first, *others = sources
    differences = [
        f"  {name}: {one!r} in {first.path}, {other!r} in {source.path}"
        for source in others
        for name in ("limit", "shuffle", "seed")
        if (one := _value(first, name)) != (other := _value(source, name))
        and (name != "seed" or _seed_matters(first) or _seed_matters(source))
    ]
    if differences:
        raise RunDirectoryError(
            "\n".join(
                [
                    "the samples of these runs were not chosen alike:",
                    *differences,
                    "Merge runs of the same --limit, --shuffle and --seed; tasks and shards may differ",
                ]
            )
        )
    return {name: _value(first, name) for name in ("limit", "shuffle", "seed")}


def _value(source: Source, name: str) -> Any:
    return source.selection.get(name, {"shuffle": False, "seed": 42}.get(name))


def _seed_matters(source: Source) -> bool:
    prompt = (source.manifest.get("fingerprint") or {}).get("prompt") or {}
    return bool(source.selection.get("shuffle")) or prompt.get("control") == "shuffled"


def _by_tasks(sources: Sequence[Source]) -> dict[AbstractSet[str], list[Source]]:
    """Return the runs apart by the tasks that their selections name."""
    groups: dict[AbstractSet[str], list[Source]] = {}
    for source in sources:
        groups.setdefault(frozenset(source.selection.get("tasks") or TASKS), []).append(source)
    return groups


def _is_part(source: Source) -> bool:
    return bool(source.selection.get("shard") or source.selection.get("missing_shards"))


def _missing(group: Sequence[Source]) -> Iterator[str]:
    """Yield the shards that no run of the group covers, by their number and the number of all."""
    covered: dict[int, set[int]] = {}
    for source in group:
        if shard := source.selection.get("shard"):
            one = _shard(source, shard)
            covered.setdefault(one.of, set()).add(one.number)
        absent = [_shard(source, text) for text in source.selection.get("missing_shards") or ()]
        for of in {one.of for one in absent}:
            lacking = {one.number for one in absent if one.of == of}
            covered.setdefault(of, set()).update({*range(1, of + 1)} - lacking)
    for of, numbers in sorted(covered.items()):
        yield from (f"{number}/{of}" for number in range(1, of + 1) if number not in numbers)


def _shard(source: Source, text: str) -> Shard:
    try:
        return Shard.parse(text)
    except ConfigError as error:
        raise RunDirectoryError(f"{source.path / MANIFEST}: {error}") from None
