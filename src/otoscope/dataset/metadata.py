"""``Chat_meta.json``: found, read, and its records made into samples."""

from __future__ import annotations

import codecs
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, BinaryIO

from otoscope.benchmark import HUGGINGFACE_DATASET, MODELSCOPE_DATASET, TASKS
from otoscope.errors import DatasetError, did_you_mean
from otoscope.nesting import MAX_DEPTH, decoded, refuse_deep
from otoscope.records import Sample, canonical_digest

METADATA = "Chat_meta.json"
_BLOCK = 1 << 18
_DECODER = json.JSONDecoder()
_SPACE = frozenset(" \t\n\r")
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


def read_records(path: Path) -> Iterator[Any]:
    """Yield the records as they stand in the file, one at a time: it is never held whole.

    Raises ``DatasetError``, what is wrong at its end only after the records before that, and ``OSError``.
    """
    read = 0
    try:
        for record in _streamed(path):
            yield record
            read += 1
    except _NotPlainError:
        yield from _read_whole(path)[read:]


class _NotPlainError(Exception):
    """The file is no list of records; what is wrong with it shows when it is read whole."""


def _streamed(path: Path) -> Iterator[Any]:
    with path.open("rb") as file:
        try:
            window = _Window(file)
            if window.take() != "[":
                raise _NotPlainError
            if window.token() != "]":
                yield window.value()
                while window.token() == ",":
                    window.take()
                    yield window.value()
            if window.take() != "]" or window.token():
                raise _NotPlainError
        except (ValueError, RecursionError):
            raise _NotPlainError from None


class _Window:
    """What was read of a JSON text and is not done with. Raises ``ValueError`` for what is no JSON."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        start = file.read(_BLOCK)
        self._decoder = codecs.getincrementaldecoder(json.detect_encoding(start))("surrogatepass")
        self._text = self._decoder.decode(start)
        self._at = 0

    def token(self) -> str:
        """Return the character that comes next, after white space; empty at the end."""
        while True:
            self._at = self._after_space(self._at)
            if (token := self._text[self._at : self._at + 1]) or not self._more():
                return token

    def take(self) -> str:
        """Return that character and go on after it."""
        token = self.token()
        self._at += 1
        return token

    def value(self) -> Any:
        """Return the value that comes next and go on after it."""
        self.token()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
                # A number may go on behind the window: 1 and 1e may be 1e16.
                after = self._after_space(end)
                if self._text[after : after + 1] in (",", "]") or not self._more():
                    break
            except ValueError:
                if not self._more():
                    raise
        if self._text.count("{", self._at, end) + self._text.count("[", self._at, end) >= MAX_DEPTH:
            refuse_deep(value, MAX_DEPTH - 1)
        self._at = end
        return value

    def _after_space(self, at: int) -> int:
        while self._text[at : at + 1] in _SPACE:
            at += 1
        return at

    def _more(self) -> bool:
        block = self._file.read(_BLOCK)
        self._text = self._text[self._at :] + self._decoder.decode(block, final=not block)
        self._at = 0
        return bool(block)


def _read_whole(path: Path) -> list[Any]:
    content = path.read_bytes()
    try:
        records = decoded(content)
    except ValueError as error:
        raise DatasetError(
            f"{path}: is not valid JSON ({error}); it has {len(content)} bytes. Fetch it again: it may be "
            "cut off, or a Git LFS pointer instead of the file"
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
