"""The grammar of one line: scores and decoration, or else prose.

A line becomes a shape, one character per token, with its numbers beside it.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cache

from otoscope.parsing.claims import NAN, Claim, Doubt
from otoscope.parsing.prose import prose_said

MAX_LINE = 200
"""A verdict is short: this bounds the work on a line, however its patterns backtrack."""
_END = r"(?![0-9a-z]|\.[0-9])"
_OUT_OF = r"(?:\s*(?:/\s*10(?:\.0)?|out\s+of\s+10|points?|分))?"
# A zero in front is a part of a date or of "10,000".
_NUMBER = re.compile(rf"([1-9]?[0-9](?:\.[0-9]+)?){_OUT_OF}", re.IGNORECASE)
# None of the words is a verb, so that no sentence can be built of them.
_TOKEN = rf"""
      (?P<label> (?:ai\s*)? (?:assistants?|助手|助理) [\s_#*]* (?P<one>[12]) (?:['’]?s)? {_END}
          (?: \s* (?:[,，、/&]|and|和|与) \s* (?P<two>[12]) {_END} )? )
    | (?P<number> [-+−]? (?:\.?[0-9]+(?:\.[0-9]+)*(?:e[-+]?[0-9]+)? | nan | inf(?:inity)?) {_OUT_OF} {_END})
    | (?P<word> (?:my|the|final|overall|scores?|ratings?|verdict|results?|output|answers?|responses?
                  |for|of|respectively) {_END} | 最终|总体|评分|得分|分数|回答|的|分别)
    | (?P<joint> and {_END} | [&和与]) | (?P<versus> vs\.? {_END} | /)
    | (?P<colon> [:：=]) | (?P<comma> [,，、;；]) | (?P<bar> \|) | (?P<stop> [.。]) | (?P<dash> [-–—])
    | (?P<open> [(\[{{（【]) | (?P<close> [)\]}}）】])
    | (?P<nothing> \s+ | (?<![0-9])[*_`~]+ | [*_`~]+(?![0-9*_`~]))
    """
_SHAPE = {
    "number": "n", "word": "w", "joint": "&", "versus": "/", "colon": ":", "comma": ",", "bar": "|",
    "open": "(", "close": ")", "stop": ".", "dash": "-", "nothing": "",
}  # fmt: skip
_BULLET = re.compile(r"(?:[-+*•]|#{1,6})\s+")

# Shapes of a line: one character per token. A word is tied to what follows by a colon, bar, bracket or dash:
# "Score 1 8" may be the first score as well as both.
_TWO_NUMBERS = r"n(?:[,|]*|,?&|\)[,|]*&?\()n[)|.,]*"
_BARE_PAIR = re.compile(rf"(?:[w:|(\-]*[:|(\-])?{_TWO_NUMBERS}")
_HEADED_PAIR = re.compile(rf"[w:|(\-]*([12])[w,|&/()]*([12])[w,|()]*[:|(\-]+{_TWO_NUMBERS}")
_LABELLED = re.compile(r"[w:|()\-]*(?:[12][w:|()\-]+n[w|(),.\-&/]*)+")
_REVERSED_HEADER = re.compile(r"[^n12]*2[^n12]*1[^n12]*")
# "Scores (1, 2)" may be the head of what is below it.
_NUMBERED_HEADER = re.compile(r"w+\(n[,&/]*n\)[.,]*")

# In a half of the world "8,5" is one number. It is read as two, unless there is another one somewhere.
_DECIMAL_COMMA = re.compile(r"[^0-9]*[0-9]{1,2},[0-9]{1,2}[^0-9]*")
_NUMBER_ALONE = re.compile(
    rf"[\W_]*(?:[^\W\d_]+[\W_]+){{0,3}}(?:10|[0-9]){_OUT_OF}[\s*_`|\])}}]*", re.IGNORECASE
)

# What the grammar has no token for and what is no word either: quotation marks, arrows, signs, symbols.
_ODD_SIGN = re.compile(r"[^\w\s:=,;|.()\[\]{}/&，、；：。（）【】–—-]|(?<=-)>")
_LIST_MARKER = re.compile(r"\(?n[).:]")
_FINAL = re.compile(r"\bfinal|\bverdict\b|最终", re.IGNORECASE)


def line_said(line: str) -> Iterable[Claim | Doubt]:
    """Return what a line says of scores: its claims, or else what it could gainsay."""
    line = line.strip()
    tokens = line_tokens(line)
    claims = _shape_claims(*tokens) if tokens else ()
    if claims:
        return claims
    if tokens is None and len(line) <= MAX_LINE:
        tokens = line_tokens(_ODD_SIGN.sub(" ", unicodedata.normalize("NFKC", line)))
    if tokens is None:
        return prose_said(line)
    shape, numbers = tokens
    final = _FINAL.search(line) is not None
    if _LIST_MARKER.fullmatch(shape) or any(math.isnan(number) for number in numbers):
        return ()
    if not any(0 <= number <= 10 for number in numbers):
        return ()
    return (Doubt([int(char) for char in shape if char in "12"], numbers, final),)


def _shape_claims(shape: str, numbers: Sequence[float]) -> Sequence[Claim]:
    if shape.count("(") != shape.count(")"):
        return ()
    if _NUMBERED_HEADER.fullmatch(shape) and set(numbers) == {1, 2}:
        return ((1, NAN),)
    if _BARE_PAIR.fullmatch(shape):
        return tuple(zip((1, 2), numbers, strict=True))
    headed = _HEADED_PAIR.fullmatch(shape)
    if headed and headed[1] != headed[2]:
        return tuple(zip((int(headed[1]), int(headed[2])), numbers, strict=True))
    if _LABELLED.fullmatch(shape):
        return tuple(zip((int(char) for char in shape if char in "12"), numbers, strict=True))
    # Columns in the other order: a bare pair below it would go to the wrong assistants.
    return ((1, NAN),) if _REVERSED_HEADER.fullmatch(shape) else ()


def line_tokens(line: str) -> tuple[str, list[float]] | None:
    """Return a line's shape and numbers, or ``None`` when there is more on it than scores and decoration."""
    line = line.strip()
    if len(line) > MAX_LINE:
        return None
    shape: list[str] = []
    numbers: list[float] = []
    token_at = _tokens().match
    bullet = _BULLET.match(line)
    position = bullet.end() if bullet else 0
    while position < len(line):
        token = token_at(line, position)
        if token is None:
            return None
        position = token.end()
        shape.append(token["one"] + (token["two"] or "") if token["label"] else _SHAPE[token.lastgroup or ""])
        if token["number"]:
            number = written_score(token[0])
            numbers.append(NAN if number is None else number)
    return "".join(shape), numbers


@cache
def _tokens() -> re.Pattern[str]:
    # Not at import: no reply is read before the first request was sent.
    return re.compile(_TOKEN, re.IGNORECASE | re.VERBOSE)


def written_score(text: str) -> float | None:
    """Return the number that a text is, "8" as well as "8.5/10", or ``None`` for anything else."""
    number = _NUMBER.fullmatch(text)
    return float(number[1]) if number else None


def is_decimal_comma(line: str) -> bool:
    """Return whether the only digits of a line are "8,5" or its like: two numbers, or one."""
    return _DECIMAL_COMMA.fullmatch(line) is not None


def is_number_alone(line: str) -> bool:
    """Return whether a line is one whole number with a few words before it."""
    return len(line) <= MAX_LINE and _NUMBER_ALONE.fullmatch(line) is not None
