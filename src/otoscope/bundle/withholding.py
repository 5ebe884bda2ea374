"""Texts in place of those that are withheld, so that a run still yields every number without them.

What is counted of an answer is kept: its length in characters, whether it is blank, which other answers it is
equal to, the script it is written in, whether it says that it hears nothing, and whether it addresses the
judge. Of a judge's reply the scores are kept, by the default and by the official rule.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterator
from functools import cache
from itertools import cycle, islice

from otoscope.errors import RunDirectoryError
from otoscope.parsing import parse_official, parse_verdict
from otoscope.scoring.addressing import addresses_judge
from otoscope.scoring.wording import says_it_cannot_hear, script, without_quotations

WITHHELD = "(withheld)"

_FEW = 6
"""Letters under which a text has no script: see :func:`otoscope.scoring.wording.script`."""
_LABELLED = 24
"""Characters from which on there is room to say that a text is withheld."""
_DEAF = ("I cannot hear the audio. ", "我无法听到音频。")
_ADDRESSING = "[[9]] "
"""A verdict: it has no letters, so that the text after it decides the script."""
_BASIC, _DIGITS = "abcdefghijklmnopqrstuvwxyz0123456789", "0123456789"
_SPACES = " \n\t\r\x0b\x0c\u2002\u2003\u3000"
_TRIES = 1000
_SCORES_ALONE = re.compile(r"[\d\s.,;:/|()\[\]{}*_+-]*")


class Withholder:
    """Gives a text for each one that is withheld: always the same, and never the same for two.

    Nobody can tell from it what the text was: ``secret`` is known only to whoever has the texts.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._given: dict[str, str] = {}
        self._taken: dict[str, str] = {}
        """What was given for which text with its white space collapsed, and the other way round."""
        self._texts: dict[str, str] = {}
        self._used: set[str] = set()

    def text(self, text: str) -> str:
        """Return what stands for a text. A blank one stays; so does a short one that is deaf or to the judge.

        Raises ``RunDirectoryError`` where too many different texts are so short that none is left.
        """
        if not text.strip():
            return text
        if text not in self._texts:
            collapsed = " ".join(text.split())
            core = self._core(collapsed)
            for attempt in range(_TRIES):
                spaces = self._letters(f"{attempt}:{text}", _SPACES, len(text) - len(collapsed))
                if core + spaces not in self._used:
                    break
            self._texts[text] = core + spaces
            self._used.add(core + spaces)
        return self._texts[text]

    def digest(self, digest: str) -> str:
        """Return what stands for the digest of a text that is no longer there."""
        return hmac.new(self._secret, digest.encode("utf-8", "surrogatepass"), "sha256").hexdigest()

    def _core(self, text: str) -> str:
        if text not in self._given:
            for candidate in self._candidates(text):
                if candidate not in self._taken:
                    break
            else:
                raise RunDirectoryError(
                    f"too many different answers of {len(text)} characters: no bundle without texts can be "
                    "made that yields the same numbers. Share the run with its texts"
                )
            self._given[text] = candidate
            self._taken[candidate] = text
        return self._given[text]

    def _candidates(self, text: str) -> Iterator[str]:
        signs = written_in, deaf, addresses = _signs(text)
        length = len(text)
        labelled = written_in == "Latin" and length >= _LABELLED
        openings: tuple[str, ...] = _DEAF if deaf else (f"{WITHHELD} " if labelled else "",)
        if addresses:
            openings = tuple(_ADDRESSING + opening for opening in openings)
        fitting = [opening for opening in openings if len(opening) + _FEW <= length or not opening]
        for attempt in range(_TRIES if fitting else 0):
            drawn = f"{attempt}:{text}"
            if written_in is not None and attempt >= _TRIES // 2:
                letters = self._alike(drawn, text)
            else:
                letters = self._letters(drawn, _letters_of(written_in, length, attempt), length)
            for opening in fitting:
                candidate = (opening + letters)[:length]
                if _signs(candidate) == signs:
                    yield candidate
        if deaf or addresses:
            # Too short to say it in other words, and hence to say much else.
            yield text

    def _alike(self, drawn: str, text: str) -> str:
        """Return letters of the same scripts in the same places: a few of one alone may be too few."""
        digits = self._letters(drawn, _DIGITS, len(text))
        return "".join(
            _alphabet(name)[int(digit)] if (name := script(character * _FEW)) else digit
            for character, digit in zip(text, digits, strict=True)
        )

    def _letters(self, text: str, alphabet: str, length: int) -> str:
        drawn = hmac.new(self._secret, text.encode("utf-8", "surrogatepass"), hashlib.sha256).digest()
        # Sixteen of them over and over: as unlikely to meet again, and small in a compressed file.
        return "".join(islice(cycle(alphabet[byte % len(alphabet)] for byte in drawn[:16]), length))


def _signs(text: str) -> tuple[str | None, bool, bool]:
    """Return the script of a text without its quotations, and whether it is deaf or addresses the judge."""
    return script(without_quotations(text)), says_it_cannot_hear(text), addresses_judge(text)


def withheld_reply(text: str | None) -> str | None:
    """Return a judge's reply without its words: the same scores by the default and by the official rule.

    One that is nothing but numbers stays as it is.
    """
    if not text or parse_official(text) is not None or _SCORES_ALONE.fullmatch(text):
        return text
    scores = parse_verdict(text)
    if scores is None:
        return WITHHELD
    return f"Assistant 1: {scores.first}\nAssistant 2: {scores.second}"


def _letters_of(written_in: str | None, length: int, attempt: int) -> str:
    """Return letters of which a text of this length is in this script, or in none."""
    if written_in is not None:
        return _alphabet(written_in)
    if length >= _FEW:
        return _DIGITS
    return _BASIC if attempt < _TRIES // 2 else _many_letters()


@cache
def _alphabet(name: str) -> str:
    """Return letters of a script."""
    if name == "Latin":
        return _BASIC[:26]
    return "".join(islice((c for c in map(chr, range(0x80, 0xD800)) if script(c * _FEW) == name), 32))


@cache
def _many_letters() -> str:
    """Return more Latin letters than there are answers of one character."""
    return "".join(c for c in map(chr, range(0xC0, 0x250)) if c.isalpha())
