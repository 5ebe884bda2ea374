"""``Chat_meta.json``: found, read, and its records made into samples."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from otoscope.benchmark import HUGGINGFACE_DATASET, MODELSCOPE_DATASET, TASKS
from otoscope.errors import DatasetError, did_you_mean
from otoscope.nesting import decoded
from otoscope.records import Sample, canonical_digest

METADATA = "Chat_meta.json"
# Without one of these no path is absolute or climbs. Almost none has one, and pathlib takes its time.
_MAY_LEAVE = re.compile(r"\A/|\.\.|[:\\]")
_TEXT_FIELDS = ("path", "question", "answer_gt", "task_name", "dataset_name")


def find_root(given: Path) -> Path:
    """Return the folder that contains ``Chat/``. Raises ``DatasetError`` where the metadata are not there."""
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


def read_records(path: Path) -> list[Any]:
    """Return the records as they stand in the file. Raises ``DatasetError``, and ``OSError``."""
    content = path.read_bytes()
    size = len(content)
    try:
        # As json.loads does, which would hold bytes, text and records at the same time.
        text = content.decode(json.detect_encoding(content), "surrogatepass")
        del content
        records = decoded(text)
    except ValueError as error:
        raise DatasetError(
            f"{path}: is not valid JSON ({error}); it has {size} bytes. Fetch it again: it may be cut "
            "off, or a Git LFS pointer instead of the file"
        ) from None
    if not isinstance(records, list):
        raise DatasetError(
            f"{path}: must be a JSON list of records, but is {type(records).__name__}. "
            "Was another file put in its place?"
        )
    return records


def to_sample(index: int, record: Any, root: Path) -> tuple[Sample, bool]:
    """Return a record's sample, and whether its description was not text and became Python's ``str()`` of it.

    ``index`` counts from 0. Raises ``DatasetError`` that names record and field.
    """
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
        audio_path=os.path.join(root, "Chat", folder, record["path"]),  # noqa: PTH118 (a third of the time)
        digest=canonical_digest(record),
    )
    return sample, not is_text


def _is_file_name(path: str) -> bool:
    if path.isascii():
        return bool(path) and "\0" not in path
    try:
        return bool(path) and b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        return False


def _leaves_its_folder(path: str) -> bool:
    """Whether a path is absolute or climbs, read as POSIX or as Windows would read it."""
    if not _MAY_LEAVE.search(path):
        return False
    windows = PureWindowsPath(path)
    absolute = PurePosixPath(path).is_absolute() or bool(windows.drive) or bool(windows.root)
    return absolute or ".." in windows.parts or ".." in PurePosixPath(path).parts
