"""A local copy of the data set -> the samples that a run evaluates."""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from otoscope.benchmark import HUGGINGFACE_DATASET, MODELSCOPE_DATASET, TASKS
from otoscope.config import SelectionSettings
from otoscope.errors import DatasetError, did_you_mean
from otoscope.records import Failure, FailureKind, Sample, canonical_digest

METADATA = "Chat_meta.json"
_TEXT_FIELDS = ("path", "question", "answer_gt", "task_name", "dataset_name")


@dataclass(frozen=True, slots=True)
class Dataset:
    """The chosen samples, and what is known of the data set that they were chosen from."""

    root: Path
    """The folder that contains ``Chat/``."""
    digest: str
    """SHA-256 over the keys and digests of all records, in key order."""
    task_sizes: dict[str, int]
    """Number of records of each task in the data set, before any selection."""
    samples: tuple[Sample, ...]
    descriptions_converted: int
    """Records whose ``meta_info`` was not text and became Python's ``str()`` of it."""


def load(selection: SelectionSettings, *, clips_needed: bool = True) -> Dataset:
    """Read the metadata and choose samples: tasks, then shuffle, then limit, each task for itself.

    ``clips_needed`` refuses a data set that lacks the folders of the chosen samples. Raises ``DatasetError``
    when the folder or the metadata cannot be used, naming record and field.
    """
    try:
        return _load(selection, clips_needed=clips_needed)
    except OSError as error:
        place = error.filename or selection.root
        raise DatasetError(f"{place}: cannot be read: {error.strerror or error}") from None


def _load(selection: SelectionSettings, *, clips_needed: bool) -> Dataset:
    root = _find_root(selection.root)
    records = _read_metadata(root / "Chat" / METADATA)
    samples: list[Sample] = []
    converted = 0
    for index, record in enumerate(records):
        sample, was_converted = _sample(index, record, root)
        samples.append(sample)
        converted += was_converted
    _refuse_duplicates(samples)
    sizes = dict.fromkeys(TASKS, 0)
    for sample in samples:
        sizes[sample.task] += 1
    chosen = _select(samples, selection)
    if not chosen:
        raise DatasetError(
            f"{root / 'Chat' / METADATA}: no sample of {', '.join(selection.tasks)}. "
            f"It holds {', '.join(f'{n} of {task}' for task, n in sizes.items() if n) or 'no record at all'}"
        )
    if clips_needed:
        _refuse_missing_folders(root, chosen)
    return Dataset(root, _digest(samples), sizes, tuple(chosen), converted)


def outside_root(sample: Sample, root: Path) -> Failure | None:
    """Return a Failure when the clip's real place, links followed, is not inside ``root``.

    Sending it would give a stranger's file to a server. Asked at the sample's own turn: on a network file
    system it costs a round trip.
    """
    # realpath, since Path.resolve raises for links that lead in a circle; such a clip cannot be opened.
    real = Path(os.path.realpath(sample.audio_path))
    if real.is_relative_to(os.path.realpath(root)):
        return None
    return Failure(
        FailureKind.OUTSIDE_ROOT,
        f"{sample.path!r} is or lies behind a link that leaves the data root {root}; the file was not read. "
        "Put the file itself there, or give the folder that really holds the data",
    )


def _find_root(given: Path) -> Path:
    given = given.absolute()
    if (given / "Chat" / METADATA).is_file():
        return given
    what = f"holds no Chat/{METADATA}" if given.exists() else "there is no such folder"
    if (given / METADATA).is_file():
        for chat in (given, given.resolve()):
            if chat.name == "Chat":
                return chat.parent
        what = f"holds {METADATA}, but is not called Chat"
    raise DatasetError(
        f"{given}: {what}. Give the folder that contains Chat/. "
        f"The data set is {MODELSCOPE_DATASET} on ModelScope and {HUGGINGFACE_DATASET} on Hugging Face; "
        f"of its Chat/ part you need Chat/{METADATA} and the folders of the tasks that you evaluate"
    )


def _read_metadata(path: Path) -> list[Any]:
    text = path.read_bytes()
    try:
        records = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DatasetError(
            f"{path}: is not valid JSON ({error}); it has {len(text)} bytes. Fetch it again: it may be cut "
            "off, or a Git LFS pointer instead of the file"
        ) from None
    if not isinstance(records, list):
        raise DatasetError(
            f"{path}: must be a JSON list of records, but is {type(records).__name__}. "
            "Was another file put in its place?"
        )
    return records


def _sample(index: int, record: Any, root: Path) -> tuple[Sample, bool]:
    where = f"{METADATA}, record {index} (counted from 0)"
    if not isinstance(record, dict):
        raise DatasetError(f"{where}: is {type(record).__name__}, not an object")
    for name in (*_TEXT_FIELDS, "uniq_id", "meta_info"):
        if record.get(name) is None:
            state = "is null" if name in record else "is missing"
            raise DatasetError(f"{where}: field {name!r} {state}. Correct the record or remove it")
    for name in _TEXT_FIELDS:
        if not isinstance(record[name], str):
            raise DatasetError(f"{where}: field {name!r} must be text, but is {record[name]!r:.80}")
    if isinstance(record["uniq_id"], bool) or not isinstance(record["uniq_id"], (int, str)):
        raise DatasetError(
            f"{where}: field 'uniq_id' must be a whole number or text, but is {record['uniq_id']!r:.80}"
        )
    if record["task_name"] not in TASKS:
        raise DatasetError(
            f"{where}: unknown task {record['task_name']!r:.80}{did_you_mean(record['task_name'], TASKS)}. "
            f"The eight tasks are {', '.join(TASKS)}"
        )
    folder = f"{record['task_name']}_{record['dataset_name']}"
    for name, part in (("dataset_name", folder), ("path", record["path"])):
        if not _is_file_name(part):
            raise DatasetError(f"{where}: field {name!r} is no name of a file: {record[name]!r:.120}")
        if _leaves_its_folder(part):
            raise DatasetError(
                f"{where}: field {name!r} leaves the data set: {record[name]!r:.120}. "
                "Nothing outside of it is ever sent to a server; correct the record or remove it"
            )
    description = record["meta_info"]
    is_text = isinstance(description, str)
    sample = Sample(
        task=record["task_name"],
        dataset=record["dataset_name"],
        path=record["path"],
        uniq_id=record["uniq_id"],
        question=record["question"],
        reference=record["answer_gt"],
        description=description if is_text else str(description),
        audio_path=str(root / "Chat" / folder / record["path"]),
        digest=canonical_digest(record),
    )
    return sample, not is_text


def _is_file_name(path: str) -> bool:
    try:
        return bool(path) and b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        return False


def _leaves_its_folder(path: str) -> bool:
    """Whether a path is absolute or climbs, read as POSIX or as Windows would read it."""
    windows = PureWindowsPath(path)
    absolute = PurePosixPath(path).is_absolute() or bool(windows.drive) or bool(windows.root)
    return absolute or ".." in windows.parts or ".." in PurePosixPath(path).parts


def _refuse_duplicates(samples: Sequence[Sample]) -> None:
    seen: dict[str, int] = {}
    for index, sample in enumerate(samples):
        first = seen.setdefault(sample.key, index)
        if first != index:
            raise DatasetError(
                f"{METADATA}: records {first} and {index} (counted from 0) have the same key {sample.key!r}. "
                "One would overwrite the other; remove one or give it another uniq_id"
            )


def _refuse_missing_folders(root: Path, samples: Iterable[Sample]) -> None:
    folders = {f"{sample.task}_{sample.dataset}": sample.task for sample in samples}
    missing = {name: task for name, task in folders.items() if not (root / "Chat" / name).is_dir()}
    if missing:
        present = sorted(set(folders.values()) - set(missing.values()), key=list(TASKS).index)
        advice = f", or evaluate what is there: --tasks {','.join(present)}" if present else ""
        raise DatasetError(
            f"{root / 'Chat'}: the chosen samples need folders that are not there: "
            f"{', '.join(sorted(missing))}. Fetch them{advice}"
        )


def _select(samples: Iterable[Sample], selection: SelectionSettings) -> list[Sample]:
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


def _digest(samples: Iterable[Sample]) -> str:
    hasher = hashlib.sha256()
    for line in sorted(f"{sample.key}\0{sample.digest}\n" for sample in samples):
        hasher.update(line.encode("utf-8", "surrogatepass"))
    return hasher.hexdigest()
