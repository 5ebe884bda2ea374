"""Which samples are evaluated: tasks, then shuffle, then limit, each task for itself; of these, a shard.

And whose clip takes whose place in a control run.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Iterable, Sequence

from otoscope.config import SelectionSettings, Shard
from otoscope.errors import ConfigError
from otoscope.records import Sample, text_digest


def select(samples: Iterable[Sample], selection: SelectionSettings) -> list[Sample]:
    """Return the chosen samples, task by task."""
    by_task: dict[str, list[Sample]] = {task: [] for task in selection.tasks}
    for sample in samples:
        if sample.task in by_task:
            by_task[sample.task].append(sample)
    chosen: list[Sample] = []
    for task, pool in by_task.items():
        if selection.shuffle:
            # Seeded for each task, so that choosing other tasks beside it changes nothing; sorted first,
            # so that the same data set in another order gives the same choice.
            pool.sort(key=lambda sample: sample.key)
            random.Random(f"{selection.seed}/{task}").shuffle(pool)  # noqa: S311 (no secret hangs on it)
        chosen.extend(pool[: _count(selection.limit, len(pool))])
    return chosen


def of_shard(samples: Sequence[Sample], shard: Shard | None) -> list[Sample]:
    """Return a shard's share of the chosen samples, in their order; without a shard, all of them.

    Questions about one clip stay together, so that it is read by one shard alone. Task by task its clips, in
    the order of their keys' SHA-256, go each to the shard that has the fewest samples of the task so far, and
    of those that are equal, in all. So of a task no shard has more than another by more samples than one
    clip has questions; and which sample is whose depends on nothing but which samples were chosen.
    """
    if shard is None:
        return list(samples)
    clips: dict[str, Counter[str]] = {}
    for sample in samples:
        clips.setdefault(sample.task, Counter())[sample.clip_key] += 1
    # Of more shards than clips, those after the last clip get nothing.
    in_all = [0] * min(shard.of, sum(map(len, clips.values())))
    own: set[str] = set()
    for task in sorted(clips):
        least = [(0, total, number) for number, total in enumerate(in_all, start=1)]
        heapq.heapify(least)
        for clip in sorted(clips[task], key=text_digest):
            of_task, total, number = least[0]
            more = clips[task][clip]
            heapq.heapreplace(least, (of_task + more, total + more, number))
            if number == shard.number:
                own.add(clip)
        for _, total, number in least:
            in_all[number - 1] = total
    return [sample for sample in samples if sample.clip_key in own]


def shuffled_clips(samples: Iterable[Sample], seed: int) -> dict[str, Sample]:
    """Return for each sample, by its key, one whose clip takes the place of its own.

    Within a task the distinct clips are put in a seeded order, and each gives way to the one after it, the
    last to the first: every clip takes one other's place, and none its own. The order of the data changes
    nothing. Raises ``ConfigError`` when a task has one clip only.
    """
    by_task: dict[str, dict[str, list[Sample]]] = {}
    for sample in samples:
        by_task.setdefault(sample.task, {}).setdefault(sample.clip_key, []).append(sample)
    if alone := [task for task, clips in by_task.items() if len(clips) == 1]:
        raise ConfigError(
            f"control: shuffled takes the clip of another sample of the task, and of {', '.join(alone)} "
            "there is one clip alone. Choose more of it with --limit, or leave it out with --tasks"
        )
    others: dict[str, Sample] = {}
    for clips in by_task.values():
        order = sorted(clips, key=lambda clip: text_digest(f"{seed}/{clip}"))
        for clip, after in zip(order, [*order[1:], order[0]], strict=True):
            others.update((sample.key, clips[after][0]) for sample in clips[clip])
    return others


def _count(limit: float | None, size: int) -> int:
    if limit is None:
        return size
    if isinstance(limit, int):
        return min(limit, size)
    # The small term keeps 0.29 of 100 at 29; a task that is there at all keeps at least one sample.
    return max(1, int(limit * size + 1e-9)) if size else 0
