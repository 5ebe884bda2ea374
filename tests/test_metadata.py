"""The metadata, read record by record: the same records, and the same errors, as when they are read whole."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from otoscope.dataset import metadata, read_records
from otoscope.errors import DatasetError

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
quick = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])


def read(path: Path) -> list[Any] | str:
    """Return the records, or what is said of the file."""
    try:
        return list(read_records(path))
    except DatasetError as error:
        return str(error)


def whole(content: bytes) -> list[Any] | None:
    """Return what the standard library makes of it, where that is a list."""
    try:
        value = json.loads(content)
    except ValueError:
        return None
    return value if isinstance(value, list) else None


@quick
@given(
    records=st.lists(VALUES, max_size=6),
    block=st.integers(4, 40),
    indent=st.none() | st.integers(0, 2),
    ascii_only=st.booleans(),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-32"]),
)
def test_records_are_those_of_the_whole(
    tmp_path: Path, records: list[Any], block: int, indent: int | None, ascii_only: bool, encoding: str
) -> None:
    """Whatever they hold, wherever a block ends, and however the file is written."""
    path = tmp_path / "Chat_meta.json"
    text = json.dumps(records, indent=indent, ensure_ascii=ascii_only)
    path.write_bytes(text.encode(encoding, "surrogatepass"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metadata, "_BLOCK", block)
        assert read(path) == records


@quick
@given(
    records=st.lists(VALUES, max_size=4),
    cut=st.integers(0, 60),
    put=st.binary(max_size=3) | st.sampled_from([b",", b"]", b"[", b"{", b"1", b'"', b"\\", b" ", b"NaN"]),
    block=st.integers(4, 40),
)
def test_damaged_files_are_told_as_when_they_are_read_whole(
    tmp_path: Path, records: list[Any], cut: int, put: bytes, block: int
) -> None:
    """Cut off, or with something else in them: the same records, or the standard library's own words."""
    path = tmp_path / "Chat_meta.json"
    content = json.dumps(records).encode()
    content = content[:cut] + put + content[cut + 1 :]
    path.write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metadata, "_BLOCK", block)
        found = read(path)
    expected = whole(content)
    if expected is None:
        assert isinstance(found, str)
        assert f"it has {len(content)} bytes" in found or "must be a JSON list" in found
    else:
        # As texts: NaN is not equal to itself.
        assert repr(found) == repr(expected)


def test_what_is_read_is_not_held(tmp_path: Path) -> None:
    """Reading takes the memory of a few blocks, whatever the size of the file."""
    path = tmp_path / "Chat_meta.json"
    record = {"question": "What is heard?" * 20, "meta_info": "rain " * 400}
    path.write_text(json.dumps([record] * 8000), encoding="utf-8")
    size = path.stat().st_size
    tracemalloc.start()
    try:
        assert sum(1 for _ in read_records(path)) == 8000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < size / 8
