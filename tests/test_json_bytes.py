"""JSON as it is stored and sent: the same bytes as the standard library's, whatever writes them."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otoscope.chat_api import AudioData
from otoscope.records import Order, canonical_digest, json_bytes

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(1 << 65), 1 << 65)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.floats(1e-6, 1e-2)
    | st.floats(1e14, 1e18)
    | st.text()
    | st.text(st.characters(max_codepoint=0xFF))
    | st.text(st.characters(categories=["Cs", "Lu", "So"]))
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=5) | st.integers(0, 9), inner, max_size=4)
    ),
    max_leaves=12,
)


def standard(value: Any) -> bytes:
    """Return what the standard library writes."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()


@given(VALUES)
def test_bytes_are_the_standard_librarys(value: Any) -> None:
    """Escapes, numbers, the order of keys and lone surrogates come out the same."""
    assert json_bytes(value) == standard(value)


@given(st.floats(allow_nan=False, allow_infinity=False).filter(lambda value: 1e-5 < abs(value) < 1e17))
def test_numbers_near_the_exponent_are_the_standard_librarys(value: float) -> None:
    """A number is written alike where the one form of it gives way to the other."""
    assert json_bytes({"temperature": value}) == standard({"temperature": value})


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("default", [None, str])
def test_what_is_not_json_is_refused(value: float, default: Any) -> None:
    """NaN and infinities are no JSON, however deep they lie."""
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_bytes({"usage": [1, {"cost": value}]}, default)


def test_other_types_go_to_default_alone() -> None:
    """What a caller puts in the place of its own type is written, and nothing is guessed without it."""
    audio = AudioData.__new__(AudioData)
    assert json_bytes({"a": [audio]}, lambda _value: "é") == '{"a":["é"]}'.encode()
    with pytest.raises(TypeError, match="AudioData is not JSON serializable"):
        json_bytes({"a": [audio]})


def test_enums_of_text_are_texts() -> None:
    """A member of an enumeration of texts is written as the standard library writes it."""
    assert json_bytes({"order": Order.ANSWER_FIRST}) == standard({"order": Order.ANSWER_FIRST})


def test_deep_nesting_is_written() -> None:
    """What a server nested deeply is stored like anything else."""
    value: Any = 1
    for _ in range(450):
        value = [value]
    assert json_bytes(value) == standard(value)


@given(VALUES | st.dictionaries(st.text(st.characters(max_codepoint=0x7F)), st.integers()))
def test_canonical_digest_is_of_the_standard_librarys_bytes(value: Any) -> None:
    """A digest is that of sorted, escaped JSON, whatever writes it."""
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    except TypeError:  # keys of two types have no order
        return
    assert canonical_digest(value) == hashlib.sha256(text.encode()).hexdigest()


def test_canonical_digest_knows_the_escaped_control() -> None:
    """DEL is ASCII and escaped all the same."""
    assert canonical_digest("\x7f") == hashlib.sha256(b'"\\u007f"').hexdigest()
