"""A local copy of the data set -> the samples that a run evaluates."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from otoscope.benchmark import TASKS
from otoscope.config import SelectionSettings, Shard
from otoscope.dataset.metadata import METADATA, find_root, read_records, to_sample
from otoscope.dataset.places import refuse_missing_folders
from otoscope.dataset.selection import of_shard, select
from otoscope.errors import DatasetError
from otoscope.records import Sample


@dataclass(frozen=True, slots=True)
class Dataset:
    """The chosen samples, and what is known of the data set that they were chosen from."""

    root: Path
    """The folder that contains ``Chat/``."""
    digest: str
    """SHA-256 over the keys and digests of all records, in key order."""
    task_sizes: dict[str, int]
    """Number of records of each task in the data set, before any selection."""
    selected: tuple[Sample, ...]
    """The chosen samples of all shards."""
    samples: tuple[Sample, ...]
    """Those that are evaluated: the shard's."""
    descriptions_converted: int
    """Records whose ``meta_info`` was not text and became Python's ``str()`` of it."""

    def of_shard(self, shard: Shard | None) -> Dataset:
        """Return the data set with a shard's samples. Raises ``DatasetError`` where it has none."""
        samples = of_shard(self.selected, shard)
        if shard is not None and not samples:
            clips = len({sample.clip_key for sample in self.selected})
            raise DatasetError(
                f"shard {shard}: there is nothing for it, since {len(self.selected):,} samples about "
                f"{clips:,} clips are chosen. Divide them into fewer shards"
            )
        return replace(self, samples=tuple(samples))


def load(root: Path, selection: SelectionSettings, *, clips_needed: bool = True) -> Dataset:
    """Read the metadata below ``root`` and choose samples.

    ``clips_needed`` refuses a data set that lacks the folders of the chosen samples. Raises ``DatasetError``
    when the folder or the metadata cannot be used, naming record and field.
    """
    try:
        return _load(root, selection, clips_needed=clips_needed)
    except OSError as error:
        place = error.filename or root
        raise DatasetError(f"{place}: cannot be read: {error.strerror or error}") from None


def _load(root: Path, selection: SelectionSettings, *, clips_needed: bool) -> Dataset:
    root = find_root(root)
    records = read_records(root / "Chat" / METADATA)
    samples: list[Sample] = []
    converted = 0
    for index, record in enumerate(records):
        sample, was_converted = to_sample(index, record, root)
        samples.append(sample)
        converted += was_converted
    _refuse_duplicates(samples)
    sizes = dict.fromkeys(TASKS, 0)
    for sample in samples:
        sizes[sample.task] += 1
    chosen = select(samples, selection)
    if not chosen:
        raise DatasetError(
            f"{root / 'Chat' / METADATA}: no sample of {', '.join(selection.tasks)}. "
            f"It holds {', '.join(f'{n} of {task}' for task, n in sizes.items() if n) or 'no record at all'}"
        )
    whole = Dataset(root, _digest(samples), sizes, tuple(chosen), tuple(chosen), converted)
    data = whole.of_shard(selection.shard)
    if clips_needed:
        refuse_missing_folders(root, data.samples)
    return data


def _refuse_duplicates(samples: Sequence[Sample]) -> None:
    seen: dict[str, int] = {}
    for index, sample in enumerate(samples):
        first = seen.setdefault(sample.key, index)
        if first != index:
            raise DatasetError(
                f"{METADATA}: records {first} and {index} (counted from 0) have the same key {sample.key!r}. "
                "One would overwrite the other; remove one or give it another uniq_id"
            )


def _digest(samples: Iterable[Sample]) -> str:
    hasher = hashlib.sha256()
    for line in sorted(f"{sample.key}\0{sample.digest}\n" for sample in samples):
        hasher.update(line.encode("utf-8", "surrogatepass"))
    return hasher.hexdigest()
