"""A foreign file -> its JSON objects: JSON Lines or one JSON list, as tolerant as can be without guessing."""

from __future__ import annotations

import codecs
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from otoscope.errors import DatasetError
from otoscope.exchange.rows import Findings
from otoscope.nesting import decoded, refuse_deep
from otoscope.records import Json

# NaN and the infinities, which Python writes though they are no JSON, stand for "no value".
_DECODER = json.JSONDecoder(parse_constant=lambda _name: None)
_OTHER_ENCODINGS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_BETWEEN = " \t\r\n,"
_NO_JSON = object()
_NOT_UTF_8 = "lines that are not UTF-8"


@dataclass(frozen=True, slots=True)
class Records:
    """The objects of one file, each with its number from 1 (its line, or its place in the list)."""

    path: Path
    name: str
    """By which people are told of it."""
    sha256: str
    objects: list[tuple[int, Json]]
    findings: Findings = field(default_factory=Findings)


def read_records(path: Path, name: str | None = None) -> Records:
    """Read JSON Lines, a JSON list of objects, or one object.

    A byte order mark, CRLF and blank lines do no harm. What is no JSON object is found, not fatal: torn or
    foreign lines, lines that are not UTF-8, a list that is cut off (what stands before the cut is read).
    Raises ``DatasetError`` when the file cannot be read, is empty, or holds no object at all.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read: {error.strerror or error}") from None
    if data.startswith(_OTHER_ENCODINGS):
        raise DatasetError(f"{path}: is UTF-16, not UTF-8. Save it as UTF-8")
    records = Records(path, name or path.name, hashlib.sha256(data).hexdigest(), [])
    content = data.removeprefix(codecs.BOM_UTF8)
    if not content.strip():
        raise DatasetError(f"{path}: is empty. Was it written to its end?")
    values = _listed(content, records) if content.lstrip()[:1] == b"[" else _lines(content, records)
    for number, value in values:
        if isinstance(value, dict):
            records.objects.append((number, value))
        else:
            records.findings.leave_out("rows that are no JSON object", _place(records, number))
    if not records.objects:
        if _NOT_UTF_8 in records.findings:
            raise _not_utf_8(path)
        raise DatasetError(
            f"{path}: holds no JSON object; it begins with {content.lstrip()[:40]!r}. "
            "Give the JSON or JSON Lines file that the tool wrote"
        )
    return records


def _lines(content: bytes, records: Records) -> Iterator[tuple[int, Any]]:
    # Only at "\n": texts may hold the other characters that Python counts as line ends.
    lines = [(number, line) for number, line in enumerate(content.split(b"\n"), start=1) if line.strip()]
    values = [(number, line, _decoded(line)) for number, line in lines]
    if not any(isinstance(value, dict) for *_, value in values):
        whole = _decoded(content)  # one object, laid out over several lines
        if whole is not _NO_JSON:
            yield 1, whole
            return
    for number, line, value in values:
        if value is not _NO_JSON:
            yield number, value
        elif _is_not_utf_8(line):
            records.findings.leave_out(_NOT_UTF_8, _place(records, number))
        elif number == values[-1][0] and not content.endswith(b"\n"):
            records.findings.leave_out("last lines that are cut off", _place(records, number))
        else:
            records.findings.leave_out("lines that are not JSON", _place(records, number))


def _is_not_utf_8(line: bytes) -> bool:
    """Whether a line is written in another encoding; one that ends within a character is torn."""
    try:
        line.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.reason != "unexpected end of data"
    return False


def _decoded(data: bytes) -> Any:
    try:
        return decoded(data.decode("utf-8"), _DECODER)
    except ValueError:
        return _NO_JSON


def _listed(content: bytes, records: Records) -> Iterator[tuple[int, Any]]:
    text = content.decode("utf-8", "replace")
    if "\ufffd" in text and "\ufffd".encode() not in content:
        raise _not_utf_8(records.path)
    position, number = text.index("[") + 1, 0
    while True:
        while position < len(text) and text[position] in _BETWEEN:
            position += 1
        if text[position : position + 1] == "]":
            return
        number += 1
        try:
            value, position = _DECODER.raw_decode(text, position)
            refuse_deep(value)
        except (ValueError, RecursionError):
            records.findings.leave_out(
                "lists that are cut off or damaged from there on", _place(records, number)
            )
            return
        yield number, value


def _not_utf_8(path: Path) -> DatasetError:
    return DatasetError(f"{path}: is not UTF-8. Save it as UTF-8")


def _place(records: Records, number: int) -> str:
    return f"{records.name}:{number}"
