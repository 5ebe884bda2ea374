"""What counts in a text: the scores in a judge's reply, the answer in a model's.

Pure functions over text. None of them raises on a text, whatever it holds (a NUL, a lone surrogate, a
megabyte of brackets), and each takes time that grows with the text's length and not faster.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from otoscope.errors import ConfigError

PARSER_VERSION: int = 1
"""Part of a run's fingerprint: raised whenever some text gets another verdict than before."""


@dataclass(frozen=True, slots=True)
class Scores:
    """The two scores of one reply, each from 0 to 10, still by position in the prompt.

    Whole numbers are ``int`` values however they were written (``8.0`` is 8). ``kind`` is ``integer`` when
    both are whole, else ``decimal``.
    """

    first: float
    """Of Assistant 1."""
    second: float
    """Of Assistant 2."""
    kind: str


# --- thinking --------------------------------------------------------------------------------------------

_THINKING_TAG = re.compile(
    r"(?:(?P<angle><)|\[)(?P<closing>/?)(?:[a-z0-9_.-]{1,32}:)?(?P<name>think(?:ing)?|thought)(?(angle)>|\])",
    re.IGNORECASE | re.ASCII,
)


def _thinking_blocks(text: str) -> tuple[list[tuple[int, int]], int | None]:
    """Return the spans to remove, in order and apart, and where a block starts that is never closed."""
    blocks: list[tuple[int, int]] = []
    opened: dict[tuple[bool, str], int] = {}
    for tag in _THINKING_TAG.finditer(text):
        kind = (tag["angle"] is not None, tag["name"].lower())
        if not tag["closing"]:
            opened.setdefault(kind, tag.start())
            continue
        start = opened.get(kind, 0)
        opened = {other: position for other, position in opened.items() if position < start}
        while blocks and blocks[-1][0] >= start:
            blocks.pop()
        blocks.append((start, tag.end()))
    return blocks, min(opened.values(), default=None)


def _without(text: str, blocks: Iterable[tuple[int, int]]) -> str:
    kept, position = [], 0
    for start, end in blocks:
        kept.append(text[position:start])
        position = end
    kept.append(text[position:])
    return "".join(kept)


def strip_thinking(text: str) -> str:
    """Return ``text`` without its thinking blocks.

    Tags are ``think``, ``thinking`` and ``thought`` in any case, as ``<think>``, with a namespace
    (``<seed:think>``) or as ``[THINK]``. Paired tags go with what is between them, an unpaired closing tag
    with all before it; an opening tag that is never closed stays. What is left is trimmed only if something
    was removed: otherwise the very same text is returned.
    """
    blocks, _ = _thinking_blocks(text)
    return _without(text, blocks).strip() if blocks else text


def thinking_unclosed(text: str) -> bool:
    """Return whether ``text`` opens a thinking block that it never closes."""
    return _thinking_blocks(text)[1] is not None


# --- the official rule -----------------------------------------------------------------------------------


def parse_official(text: str) -> tuple[int, int] | None:
    """Return the scores of Assistant 1 and 2 by the official script's rule, or ``None``.

    The text is stripped, every newline deleted, the rest split at each single space: there must be exactly
    two parts, both accepted by Python's ``int()`` (``+7``, ``1_0`` and other scripts' digits are), neither
    above 10. Negative numbers pass.
    """
    try:
        first, second = map(int, text.strip().replace("\n", "").split(" "))
    except ValueError:  # from int(), and from a number of parts that is not two
        return None
    return (first, second) if first <= 10 and second <= 10 else None


# --- the tolerant parse ----------------------------------------------------------------------------------

# What a line or a JSON value says: (1 or 2, score). A score that cannot be is claimed as it is, or as NaN, so
# that it contradicts every other claim instead of vanishing.
_Claim = tuple[int, float]
_NAN = float("nan")


def parse_verdict(text: str) -> Scores | None:
    """Return the scores that a judge's reply states, or ``None`` where it is not certain which they are.

    Thinking blocks, closed or not, are removed. A verdict is a line of two numbers and decoration, a line
    or lines with a labelled score for each assistant, or a JSON object or list with both. Decoration is:
    labels (which decide whose score it is, in any order), words such as "final scores:", commas, semicolons,
    bars, brackets, "/10", Markdown emphasis, headings and bullets, code fences; also in Chinese. Whatever
    is repeated must agree, and be from 0 to 10.

    A line with anything else on it is prose and says nothing: verbs, quotation marks, ``>``. So do lines
    within quotation marks or within the prompt's own answer delimiters. A range, ratio or fraction
    (``8 - 7``, ``8:7``, ``8/7``) is no pair, nor are three numbers; only ASCII digits are digits.
    """
    blocks, unclosed = _thinking_blocks(text)
    if unclosed is not None:
        blocks = [block for block in blocks if block[1] <= unclosed] + [(unclosed, len(text))]
    claimed: dict[int, set[float]] = {1: set(), 2: set()}
    for assistant, score in _claims(_without(text, blocks)):
        claimed[assistant].add(score)
    if any(len(scores) != 1 for scores in claimed.values()):
        return None
    (first,), (second,) = claimed[1], claimed[2]
    if not (0 <= first <= 10 and 0 <= second <= 10):
        return None
    kind = "integer" if first.is_integer() and second.is_integer() else "decimal"
    first, second = (int(score) if score.is_integer() else score for score in (first, second))
    return Scores(first, second, kind)


def _claims(text: str) -> Iterator[_Claim]:
    json_end, json_failures = 0, 0
    for start, line in _own_lines(text):
        if start < json_end:
            continue  # under a key of its own, a line of a JSON value means something else
        opening = _JSON_OPENING.match(line)
        if opening and json_failures < _MAX_JSON_FAILURES:
            try:
                value, json_end = _JSON.raw_decode(text, start + opening.end())
            except (ValueError, RecursionError):
                json_failures += 1
            else:
                if _JSON_REST.match(text, json_end):
                    yield from _json_claims(value)
                continue
        yield from _line_claims(line)


# --- which lines are the judge's own words

_LINE = re.compile(r"[^\r\n]+")
_QUOTATION_MARK = re.compile('["“”„«»「」『』]')
_DELIMITER = re.compile(r"\[The (Start|End) of Assistant [12]'?s Answer\]", re.IGNORECASE)


def _own_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield (offset, line) of the lines that quote neither somebody nor one of the two answers."""
    lines = list(_LINE.finditer(text))
    odd = [index for index, line in enumerate(lines) if len(_QUOTATION_MARK.findall(line[0])) % 2]
    quoted: set[int] = set()
    # An odd mark without a partner is an inch or a slip: it must not swallow the rest of the reply.
    for opening, closing in zip(odd[::2], odd[1::2], strict=False):
        quoted.update(range(opening + 1, closing))
    inside_answer = False
    for index, line in enumerate(lines):
        for delimiter in _DELIMITER.finditer(line[0]):
            inside_answer = delimiter[1].lower() == "start"
        if not inside_answer and index not in quoted:
            yield line.start(), line[0]


# --- one line

_MAX_LINE = 200  # a verdict is short; this bounds the work on a line, however its patterns backtrack
_END = r"(?![0-9a-z]|\.[0-9])"
_OUT_OF = r"(?:\s*(?:/\s*10(?:\.0)?|out\s+of\s+10|points?|分))?"
# A zero in front is a part of a date or of "10,000".
_NUMBER = re.compile(rf"([1-9]?[0-9](?:\.[0-9]+)?){_OUT_OF}", re.IGNORECASE)
# None of the words is a verb, so that no sentence can be built of them.
_TOKEN = re.compile(
    rf"""
      (?P<label> (?:ai\s*)? (?:assistants?|助手|助理) [\s_#*]* (?P<one>[12]) (?:['’]?s)? {_END}
          (?: \s* (?:[,，、/&]|and|和|与) \s* (?P<two>[12]) {_END} )? )
    | (?P<number> [-+−]? (?:\.?[0-9]+(?:\.[0-9]+)*(?:e[-+]?[0-9]+)? | nan | inf(?:inity)?) {_OUT_OF} {_END})
    | (?P<word> (?:my|the|final|overall|scores?|ratings?|verdict|results?|output|answers?|responses?
                  |for|of|respectively) {_END} | 最终|总体|评分|得分|分数|回答|的|分别)
    | (?P<joint> (?:and|vs\.?) {_END} | [&/和与])
    | (?P<colon> [:：=]) | (?P<comma> [,，、;；]) | (?P<bar> \|) | (?P<stop> [.。]) | (?P<dash> [-–—])
    | (?P<open> [(\[{{（【]) | (?P<close> [)\]}}）】])
    | (?P<nothing> \s+ | (?<![0-9])[*_`~]+ | [*_`~]+(?![0-9*_`~]))
    """,
    re.IGNORECASE | re.VERBOSE,
)
_SHAPE = {
    "number": "n", "word": "w", "joint": "&", "colon": ":", "comma": ",", "bar": "|",
    "open": "(", "close": ")", "stop": ".", "dash": "-", "nothing": "",
}  # fmt: skip
_BULLET = re.compile(r"(?:[-+*•]|#{1,6})\s+")

# Shapes of a line: one character per token. A word is tied to what follows by a colon, bar, bracket or dash:
# "Score 1 8" may be the first score as well as both.
_TWO_NUMBERS = r"n(?:[,|]*|\)[,|]*\()n[)|.,]*"
_BARE_PAIR = re.compile(rf"(?:[w:|(\-]*[:|(\-])?{_TWO_NUMBERS}")
_HEADED_PAIR = re.compile(rf"[w:|(\-]*([12])[w,|&()]*([12])[w,|()]*[:|(\-]+{_TWO_NUMBERS}")
_LABELLED = re.compile(r"[w:|()\-]*(?:[12][w:|()\-]+n[w|(),.\-&]*)+")
_REVERSED_HEADER = re.compile(r"[^n12]*2[^n12]*1[^n12]*")


def _line_claims(line: str) -> Iterable[_Claim]:
    line = line.strip()
    tokens = _tokens(line) if len(line) <= _MAX_LINE else None
    if tokens is None:
        return ()
    shape, numbers = tokens
    if shape.count("(") != shape.count(")"):
        return ()
    if _BARE_PAIR.fullmatch(shape):
        return zip((1, 2), numbers, strict=True)
    headed = _HEADED_PAIR.fullmatch(shape)
    if headed and headed[1] != headed[2]:
        return zip((int(headed[1]), int(headed[2])), numbers, strict=True)
    if _LABELLED.fullmatch(shape):
        return zip((int(char) for char in shape if char in "12"), numbers, strict=True)
    # Columns in the other order: a bare pair below it would go to the wrong assistants.
    return ((1, _NAN),) if _REVERSED_HEADER.fullmatch(shape) else ()


def _tokens(line: str) -> tuple[str, list[float]] | None:
    """Return a line's shape and numbers, or ``None`` when there is more on it than scores and decoration."""
    shape: list[str] = []
    numbers: list[float] = []
    bullet = _BULLET.match(line)
    position = bullet.end() if bullet else 0
    while position < len(line):
        token = _TOKEN.match(line, position)
        if token is None:
            return None
        position = token.end()
        shape.append(token["one"] + (token["two"] or "") if token["label"] else _SHAPE[token.lastgroup or ""])
        if token["number"]:
            number = _NUMBER.fullmatch(token[0])
            numbers.append(float(number[1]) if number else _NAN)
    return "".join(shape), numbers


# --- JSON

_MAX_JSON_FAILURES = 16  # each costs up to the whole text; a reply holds one JSON value, not dozens
_JSON_OPENING = re.compile(r'[\s`*]*(?:json\s*)?(?=\{\s*(?:"|$)|\[\s*(?:[\[{"]|[0-9.]+\s*(?:,|$)|$))')
_JSON_REST = re.compile(r"[ \t`*.,;]*(?![^\r\n])")
# Numbers are read as floats because int() refuses very long ones. Objects become tuples of pairs, so that a
# repeated key is seen twice, and stay apart from lists.
_JSON = json.JSONDecoder(parse_int=float, parse_float=float, object_pairs_hook=tuple)
_SCORE_KEY = re.compile(r"(?:final|overall)?(?:scores?|ratings?)")
_LABEL_KEY = re.compile(
    r"(?:scores?|ratings?)?(?:of|for)?(?:ai)?(?:assistant|助手|助理)?([12])s?(?:scores?|ratings?)?"
)


def _json_claims(value: Any) -> Iterator[_Claim]:
    yield from _json_pair(value)
    pending: list[tuple[int, Any]] = [(0, value)]  # with the assistant under whose key the value lies, or 0
    while pending:
        owner, value = pending.pop()
        if isinstance(value, list):
            pending += [(owner, item) for item in value]
        elif isinstance(value, tuple):
            for key, item in value:
                name = re.sub(r"[\W_]+", "", key.lower()) if len(key) <= _MAX_LINE else ""
                label = _LABEL_KEY.fullmatch(name)
                is_score = _SCORE_KEY.fullmatch(name) is not None
                assistant = int(label[1]) if label else owner
                score = _json_score(item)
                if score is None:
                    pending.append((assistant, item))
                elif assistant and (label or is_score):
                    yield assistant, score
                if is_score and not owner:
                    yield from _json_pair(item)


def _json_pair(value: Any) -> Iterable[_Claim]:
    if not isinstance(value, list) or len(value) != 2:
        return ()
    first, second = _json_score(value[0]), _json_score(value[1])
    return () if first is None or second is None else ((1, first), (2, second))


def _json_score(value: Any) -> float | None:
    """Return a number, or a text that is one, as it is claimed; ``None`` for anything else."""
    if isinstance(value, float):
        return value
    number = _NUMBER.fullmatch(value.strip()) if isinstance(value, str) else None
    return float(number[1]) if number else None


# --- the answer filter -----------------------------------------------------------------------------------

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
