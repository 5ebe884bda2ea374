"""Which samples are evaluated: tasks, then shuffle, then limit, each task for itself."""

from __future__ import annotations

import random
from collections.abc import Iterable

from otoscope.config import SelectionSettings
from otoscope.records import Sample


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


def _count(limit: float | None, size: int) -> int:
    if limit is None:
        return size
    if isinstance(limit, int):
        return min(limit, size)
    # The small term keeps 0.29 of 100 at 29; a task that is there at all keeps at least one sample.
    return max(1, int(limit * size + 1e-9)) if size else 0
