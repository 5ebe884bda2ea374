"""Answer filters: which part of a model's text is its answer."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from otoscope.errors import ConfigError
from otoscope.parsing.thinking import strip_thinking

_FILTER_FORMS = ("none", "strip-thinking", "after:TEXT", "regex:RE")


@dataclass(frozen=True, slots=True)
class AnswerFilter:
    """Which part of a model's text is its answer.

    ==================  =================================================================================
    ``none``            the text as it is
    ``strip-thinking``  the text without its thinking blocks, see :func:`strip_thinking`
    ``after:TEXT``      what follows the last occurrence of TEXT, trimmed
    ``regex:RE``        group 1 of the first match of RE (Python's syntax), or the whole match when RE has
                        no group or its group 1 took no part; not trimmed
    ==================  =================================================================================

    A text in which TEXT or RE does not occur is left unchanged. Raises :class:`ConfigError` for any other
    ``spec``, an empty TEXT or RE, and an RE that does not compile.
    """

    spec: str

    def __post_init__(self) -> None:
        kind, colon, argument = self.spec.partition(":")
        forms = {form.partition(":")[0]: form for form in _FILTER_FORMS}
        if kind not in forms or (colon and ":" not in forms[kind]):
            close = difflib.get_close_matches(kind.lower(), forms, n=1)
            hint = f" Did you mean {forms[close[0]]}?" if close else ""
            raise ConfigError(
                f"There is no answer filter {self.spec!r}.{hint} Use {' | '.join(_FILTER_FORMS)}."
            )
        if not argument and ":" in forms[kind]:
            raise ConfigError(f"The answer filter {self.spec!r} lacks what to look for: write {forms[kind]}.")
        if kind == "regex":
            try:
                re.compile(argument)
            except (re.error, OverflowError, RecursionError) as error:
                message = f"The answer filter {self.spec!r} is no regular expression: {error}."
                raise ConfigError(message) from error

    @classmethod
    def parse(cls, spec: str) -> AnswerFilter:
        """Return the filter that ``spec`` names. Raises :class:`ConfigError`, see the class."""
        return cls(spec)

    def apply(self, text: str) -> str:
        """Return the part of ``text`` that is judged."""
        kind, _, argument = self.spec.partition(":")
        if kind == "strip-thinking":
            return strip_thinking(text)
        if kind == "after":
            return text.rpartition(argument)[2].strip() if argument in text else text
        if kind == "regex" and (found := re.search(argument, text)):
            group: str | None = (*found.groups(), None)[0]
            return found[0] if group is None else group
        return text
