"""The catalogues: every language says everything, with the same values."""

from __future__ import annotations

import string

import pytest

from otoscope.texts import LANGUAGES, catalogue


def fields(text: str) -> set[str]:
    """Return the names of the values that a text is filled in with."""
    return {name for _, name, _, _ in string.Formatter().parse(text) if name is not None}


def test_every_language_has_the_same_keys_and_values() -> None:
    """A text is there in every language, says something, and takes the values that it takes in English."""
    english = catalogue("en").texts
    for language in LANGUAGES:
        texts = catalogue(language).texts
        assert set(texts) == set(english), language
        for key, text in texts.items():
            assert text or key.endswith("separator"), key
            assert fields(text) == fields(english[key]), f"{language}: {key}"


def test_parentheses_close_in_the_width_in_which_they_open() -> None:
    """Chinese has its own, which a text may take for one end alone."""
    for language in LANGUAGES:
        for key, text in catalogue(language).texts.items():
            for opening, closing in ("()", "（）", "[]", "「」"):
                assert text.count(opening) == text.count(closing), (language, key)


def test_a_text_is_filled_in() -> None:
    """Values are filled in by name; a missing key or language is an error."""
    say = catalogue("zh")
    assert "3" in say("warning.coverage", failed=3, ended=9)
    assert say.language == "zh"
    assert "warning.coverage" in say
    assert "warning.none" not in say
    with pytest.raises(KeyError):
        say("warning.none")
    with pytest.raises(KeyError):
        catalogue("xx")
