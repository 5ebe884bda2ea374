"""Both languages' texts: written in one, and marked so that the page can switch to the other."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup, escape

from otoscope.texts import LANGUAGES, Catalogue, catalogue

_PREFIXES = ("html.", "cell.", "control.", "audio.", "cost.", "failure.", "scoring.", "warning.")
"""Of the keys that stand in the page."""


@dataclass(frozen=True, slots=True)
class Said:
    """A text by its key. ``values`` fill it in; one of them can be such a text itself."""

    key: str
    values: Mapping[str, str | Said]

    def to_json(self) -> dict[str, Any]:
        """Return what the page's scripts read."""
        return {"key": self.key, "values": _values_json(self.values)}


def said(key: str, **values: str | int | Said) -> Said:
    """Return a text by its key; numbers are written as they are."""
    return Said(
        key, {name: value if isinstance(value, Said) else str(value) for name, value in values.items()}
    )


class Words:
    """Writes texts in the page's first language."""

    def __init__(self, language: str) -> None:
        self.language = language
        self._say: Catalogue = catalogue(language)

    def plain(self, text: str | Said) -> str:
        """Return a text as it is; one by its key in the first language."""
        if isinstance(text, str):
            return text
        return self._say(text.key, **{name: self.plain(value) for name, value in text.values.items()})

    def show(self, text: str | Said) -> Markup:
        """Return a text as HTML: escaped, and marked with its key where it has one."""
        if isinstance(text, str):
            return escape(text)
        values = json.dumps(_values_json(text.values), ensure_ascii=False) if text.values else ""
        mark = Markup(' data-values="{}"').format(values) if values else Markup()
        return Markup('<span data-text="{}"{}>{}</span>').format(text.key, mark, self.plain(text))

    def say(self, key: str, **values: str | int | Said) -> Markup:
        """Return a text by its key, as HTML."""
        return self.show(said(key, **values))

    def attribute(self, name: str, key: str, **values: str | int | Said) -> Markup:
        """Return an attribute whose value is a text by its key, marked as such."""
        text = said(key, **values)
        mark = json.dumps(text.to_json(), ensure_ascii=False)
        template = Markup('{0}="{1}" data-say-{0}="{2}"')
        return template.format(name, self.plain(text), mark)


def known(key: str, otherwise: str) -> Said | str:
    """Return the text of a key, or ``otherwise`` where a language does not have it."""
    return said(key) if all(key in catalogue(language) for language in LANGUAGES) else otherwise


def texts() -> dict[str, dict[str, str]]:
    """Return the texts that the page needs, by language and key."""
    return {
        language: {key: text for key, text in catalogue(language).texts.items() if key.startswith(_PREFIXES)}
        for language in LANGUAGES
    }


def _values_json(values: Mapping[str, str | Said]) -> dict[str, Any]:
    return {name: value.to_json() if isinstance(value, Said) else value for name, value in values.items()}
