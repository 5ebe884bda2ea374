"""What is a secret, and texts without any."""

from __future__ import annotations

import base64
import json
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otoscope.secrecy import SHORTEST, credential, forms, in_url, looks_real, without


@pytest.mark.parametrize(
    "key",
    "EMPTY EMPTY_TOKEN none None dummy sk-no-key-required token-abc123 test test-1 sk-1234 not-needed xxx "
    "YOUR_API_KEY 12345 sk-test-0123456789".split(),
)
def test_placeholders_are_no_keys(key: str) -> None:
    """What servers that need no key are commonly given is a placeholder."""
    assert not looks_real(key)


@pytest.mark.parametrize(
    "key", "sk-proj-Q7vZm2Kx9pLw4RtY hunter2 0f3e9ab27cd1 gsk_Zk2P testify пароль hf_abcdefg".split()
)
def test_other_keys_may_open_something(key: str) -> None:
    """Anything that is not made of common words and numbers is taken for a key."""
    assert looks_real(key)


@pytest.mark.parametrize(
    ("url", "secrets"),
    [
        ("https://host/v1?api-version=2024-10-21", []),
        ("https://user:p%40ss@host/v1?key=one&code=two&a=three", ["p@ss", "one", "two"]),
        ("https://token@host/v1", ["token"]),
        ("https://user:@host/v1?key=", ["user"]),
        ("https://[::1", []),
        ("", []),
    ],
)
def test_secrets_of_a_url(url: str, secrets: list[str]) -> None:
    """They are the password, or a user's name without one, and what in the query sounds like a key."""
    assert in_url(url) == secrets


@pytest.mark.parametrize(
    ("header", "secret"), [("Bearer abc", "abc"), ("abc", "abc"), (" Basic  eDp5 ", "eDp5"), ("", "")]
)
def test_the_secret_of_a_header(header: str, secret: str) -> None:
    """It stands behind the scheme, where there is one."""
    assert credential(header) == secret


@given(
    st.text(st.characters(codec="utf-8", exclude_characters="*"), min_size=SHORTEST),
    st.text(max_size=4),
    st.text(max_size=4),
)
def test_a_text_is_left_without_any_form_of_a_secret(secret: str, before: str, after: str) -> None:
    """As it is, in a URL, in JSON and inside of Base64, a secret is replaced."""
    data = f"{before}{secret}{after}".encode("utf-8", "surrogatepass")
    said = [
        f"{before}{secret}{after}",
        quote(data, safe=""),
        json.dumps(secret),
        base64.b64encode(data).decode(),
    ]
    for text in said:
        left = without(text, forms([secret]))
        assert "***" in left
        assert secret not in left
        assert not any(form in left for form in forms([secret]))


def test_short_words_are_not_taken_out() -> None:
    """A placeholder such as EMPTY would be found where it is none."""
    assert without("an EMPTY reply", forms(["EMPTY", ""])) == "an EMPTY reply"
