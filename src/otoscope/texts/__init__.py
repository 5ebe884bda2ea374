"""Every text for people that is not an error, in one catalogue file per language.

A text is found by its key and filled in with named values, as ``str.format`` does: values come formatted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any

from otoscope.choices import LANGUAGES

__all__ = ["LANGUAGES", "Catalogue", "catalogue"]


class Catalogue:
    """The texts of one language."""

    def __init__(self, language: str, texts: Mapping[str, str]) -> None:
        self.language = language
        self.texts = texts

    def __call__(self, key: str, **values: Any) -> str:
        """Return a key's text with the values filled in. Raises ``KeyError`` when there is none."""
        return self.texts[key].format(**values)

    def __contains__(self, key: str) -> bool:
        return key in self.texts


@cache
def catalogue(language: str = "en") -> Catalogue:
    """Return the catalogue of a language of ``LANGUAGES``. Raises ``KeyError`` for another."""
    if language not in LANGUAGES:
        raise KeyError(language)
    file = resources.files("otoscope.texts") / f"{language}.json"
    return Catalogue(language, MappingProxyType(json.loads(file.read_text(encoding="utf-8"))))
