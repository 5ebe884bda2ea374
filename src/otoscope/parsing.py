"""What counts in a text: the scores in a judge's reply, the answer in a model's.

Pure functions over text. None of them raises on a text, whatever it holds (a NUL, a lone surrogate, a
megabyte of brackets), and each takes time that grows with the text's length and not faster.
"""

from __future__ import annotations

import difflib
import json
import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
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

_Blocks = tuple[list[tuple[int, int]], int | None]
"""The spans to remove, in order and apart, and where thinking starts that never ends."""


def _tag_pattern(more_names: str) -> re.Pattern[str]:
    """Match a tag around thinking: ``<think>``, ``<|start_thinking|>``, ``◁think▷``, ``[THINK]`` and others.

    Only the names that are always there are tags in square brackets: "[Analysis]" is a heading.
    """
    return re.compile(
        rf"""
        (?: (?P<angle><\|?) | (?P<square>\[) | ◁ )
        (?: (?P<closing> / | end_(?:of_)? ) | start_ | begin_(?:of_)? )?
        (?: [a-z0-9_.-]{{1,32}}: )?
        (?P<name> think(?:ing)? | thoughts? | (?(square)(?!)|(?:{more_names})) )
        (?(angle)\|?>|(?:(?(square)\]|▷)))
        | (?P<channel> <\|channel>\s*thought | (?P<channel_end> <channel\|> ) )
        """,
        re.IGNORECASE | re.ASCII | re.VERBOSE,
    )


_ANSWERS_TAG = _tag_pattern("reasoning|reflection")
_JUDGES_TAG = _tag_pattern(
    "reasoning|(?:self[_-]?)?reflection|analysis|rationale|explanation|critique|deliberation|considerations?"
    "|scratch[_-]?pad|scratch|draft|notes?|brainstorm(?:ing)?|plan(?:ning)?|cot|chain[_-]of[_-]thought"
    "|(?:inner|internal)[_-]?(?:thoughts?|monologue)"
)


def _tag_blocks(text: str, pattern: re.Pattern[str]) -> _Blocks:
    blocks: list[tuple[int, int]] = []
    opened: dict[tuple[str, str], int] = {}
    for tag in pattern.finditer(text):
        kind = (tag[0][0], "<channel|>" if tag["channel"] else tag["name"].lower())
        if tag["closing"] is None and tag["channel_end"] is None:
            opened.setdefault(kind, tag.start())
            continue
        start = opened.get(kind, 0)
        opened = {other: position for other, position in opened.items() if position < start}
        while blocks and blocks[-1][0] >= start:
            blocks.pop()
        blocks.append((start, tag.end()))
    return blocks, min(opened.values(), default=None)


# The harmony format: <|start|>assistant<|channel|>analysis<|message|>...<|end|>; the last channel is "final".
_CHANNEL = re.compile(
    r"(?:<\|start\|>[^<]*)?<\|channel\|>\s*(?!\s)(?P<name>\w*)(?!\w)[^<]*(?:<\|constrain\|>[^<]*)?(?:<\|message\|>|\Z)"
)
_CHANNEL_END = re.compile(r"<\|(?:end|return|call)\|>|(?=<\|(?:start|channel)\|>)|\Z")
# What is left of it where a server deletes its special tokens and nothing else.
_BARE_FINAL = "assistantfinal"
_BARE_ANALYSIS = re.compile(r"\s*analysis(?=[A-Z])")


def _channel_blocks(text: str) -> _Blocks:
    if _BARE_FINAL in text:
        return [(0, text.rindex(_BARE_FINAL) + len(_BARE_FINAL))], None
    bare = _BARE_ANALYSIS.match(text)
    if bare:
        return [], bare.start()
    blocks: list[tuple[int, int]] = []
    outside_final: list[tuple[int, int]] = []
    position, unclosed = 0, None
    for channel in _CHANNEL.finditer(text):
        end = _CHANNEL_END.search(text, channel.end())
        body_end, message_end = (end.start(), end.end()) if end else (len(text), len(text))
        if channel["name"].lower() == "final":
            outside_final.append((position, channel.end()))
            position = body_end
        elif end and (end[0] or body_end < len(text)):
            blocks.append((channel.start(), message_end))
        else:
            unclosed = channel.start()
    if outside_final:
        return [*outside_final, (position, len(text))], None
    return blocks, unclosed


def _without(text: str, blocks: Iterable[tuple[int, int]]) -> str:
    kept, position = [], 0
    for start, end in blocks:
        kept.append(text[position:start])
        position = end
    kept.append(text[position:])
    return "".join(kept)


def _with_the_unclosed(found: _Blocks, text: str) -> list[tuple[int, int]]:
    blocks, unclosed = found
    if unclosed is None:
        return blocks
    return [block for block in blocks if block[1] <= unclosed] + [(unclosed, len(text))]


def strip_thinking(text: str) -> str:
    """Return a model's answer ``text`` without its thinking blocks.

    Tags are ``think``, ``thinking``, ``thought``, ``thoughts``, ``reasoning`` and ``reflection`` in any case,
    as ``<think>`` or ``<|think|>``, with a namespace (``<seed:think>``), as ``<|START_THINKING|>`` and
    ``<|END_THINKING|>``, ``<|begin_of_thought|>`` and ``<|end_of_thought|>``, as ``◁think▷``; the first four
    also as ``[THINK]``; and ``<|channel>thought`` with ``<channel|>``. Others, such as ``<analysis>``, may be
    a part of the answer and stay. Paired tags go with what is between them, an unpaired closing tag with
    all before it; an opening tag that is never closed stays.

    Of a text in the harmony format (``<|channel|>analysis<|message|>...``) only the final channel is kept;
    without one, the other channels go that are closed. Where only its special tokens were deleted, all up to
    ``assistantfinal`` goes. What is left is trimmed only if something was removed: otherwise the very same
    text is returned.
    """
    rest = _without(text, _channel_blocks(text)[0])
    rest = _without(rest, _tag_blocks(rest, _ANSWERS_TAG)[0])
    return text if len(rest) == len(text) else rest.strip()


def thinking_unclosed(text: str) -> bool:
    """Return whether an answer opens a thinking block, or a channel but the final, and never closes it."""
    blocks, unclosed = _channel_blocks(text)
    return unclosed is not None or _tag_blocks(_without(text, blocks), _ANSWERS_TAG)[1] is not None


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


@dataclass(frozen=True, slots=True)
class _Doubt:
    """What speaks of scores without being a verdict: it never gives scores, but it must not gainsay them."""

    labels: Sequence[int]
    """The assistants that are named beside the numbers, in their order; 0 stands for both."""
    numbers: Sequence[float]
    final: bool = False
    """Whether it calls itself final: such words count wherever they stand, others only below a verdict."""

    def agrees(self, first: float, second: float) -> bool:
        """Return whether it can be read as these scores, and as no others."""
        if any(number not in (first, second) for number in self.numbers):
            return False
        stated, named = tuple(self.numbers), tuple(self.labels)
        if len(stated) == 2:
            return stated == ((second, first) if named == (2, 1) else (first, second)) or 0 < len(named) != 2
        if len(stated) == 1 and 0 in named:
            return first == second
        if len(stated) == 1 and len(set(named)) == 1:
            return stated[0] == (first, second)[named[0] - 1]
        return True


def parse_verdict(text: str) -> Scores | None:
    """Return the scores that a judge's reply states, or ``None`` where it is not certain which they are.

    Thinking is removed as by :func:`strip_thinking`, unclosed too and within more tags (``<analysis>``,
    ``<scratchpad>``). A verdict is a line of two numbers and decoration, a line or lines with a labelled
    score for each assistant, or a JSON object or list with both. Decoration is: labels (which decide whose
    score it is, in any order), words such as "final scores:", commas, semicolons, bars, "and", brackets,
    "/10", Markdown emphasis, headings and bullets, code fences; also in Chinese. Whatever is repeated must
    agree, and be from 0 to 10.

    A line with anything else on it is prose and gives no scores: verbs, quotation marks, ``>``. A range,
    ratio or fraction (``8 - 7``, ``8:7``, ``8/7``) is no pair, nor are three numbers; only ASCII digits are
    digits. But no such line may gainsay the verdict: below it, other scores in whatever form (``9 2!``,
    "Assistant 2 deserves a 2", "Correction: 9 and 2 it is") leave none, and so does anywhere a line that
    calls other scores final. Numbers in prose that are nobody's scores ("3 of 4 sounds") do no harm.

    Lines within quotation marks, within the prompt's own answer delimiters or in its other sections, echoed,
    say nothing. A code fence beside prose that does not announce it may be a quotation: it gives no scores,
    and must not gainsay any. "8,5" may be one number: with a lone number or its like elsewhere it is no pair.
    """
    text = _without(text, _with_the_unclosed(_channel_blocks(text), text))
    text = _without(text, _with_the_unclosed(_tag_blocks(text, _JUDGES_TAG), text))
    claimed: dict[int, set[float]] = {1: set(), 2: set()}
    doubts: list[_Doubt] = []
    for said in _said(text):
        if not isinstance(said, _Doubt):
            claimed[said[0]].add(said[1])
        elif said.final or claimed[1] or claimed[2]:
            doubts.append(said)
    if any(len(scores) != 1 for scores in claimed.values()):
        return None
    (first,), (second,) = claimed[1], claimed[2]
    if not (0 <= first <= 10 and 0 <= second <= 10):
        return None
    if not all(doubt.agrees(first, second) for doubt in doubts):
        return None
    kind = "integer" if first.is_integer() and second.is_integer() else "decimal"
    first, second = (int(score) if score.is_integer() else score for score in (first, second))
    return Scores(first, second, kind)


def _said(text: str) -> Iterator[_Claim | _Doubt]:
    json_end, json_failures = 0, 0
    pair_with_comma, commas, alone = False, 0, 0
    for line in _own_lines(text):
        if line.start < json_end:
            continue  # under a key of its own, a line of a JSON value means something else
        said: Iterable[_Claim | _Doubt]
        opening = _JSON_OPENING.match(line.text)
        value = None
        if opening and json_failures < _MAX_JSON_FAILURES:
            try:
                value, json_end = _JSON.raw_decode(text, line.start + opening.end())
            except (ValueError, RecursionError):
                json_failures += 1
        if value is not None:
            said = _json_said(value, alone=_JSON_REST.match(text, json_end) is not None)
        else:
            said = tuple(_line_said(line.text))
            comma = _DECIMAL_COMMA.fullmatch(line.text) is not None
            pair_with_comma |= comma and not any(isinstance(one, _Doubt) for one in said) and len(said) == 2
            commas += comma
            alone += len(line.text) <= _MAX_LINE and _NUMBER_ALONE.fullmatch(line.text) is not None
        yield from (said if line.counts else _as_doubts(said))
    if pair_with_comma and commas + alone > 1:
        yield 1, _NAN


def _as_doubts(said: Iterable[_Claim | _Doubt]) -> Iterator[_Doubt]:
    claims: list[_Claim] = []
    for one in said:
        if isinstance(one, _Doubt):
            yield one
        else:
            claims.append(one)
    if claims:
        labels, numbers = zip(*claims, strict=True)
        yield _Doubt(labels, numbers)


# --- which lines are the judge's own words


@dataclass(frozen=True, slots=True)
class _Line:
    start: int
    text: str
    counts: bool
    """Whether it can give scores: not in a code fence that may hold a quotation."""


_LINE = re.compile(r"[^\r\n]+")
_QUOTATION_MARK = re.compile('["“”„«»「」『』]')
# The prompt's own headers. Where one of those that open a section is echoed, what follows is not the judge's.
_DELIMITER = re.compile(
    r"""
      \[The\ (?:(?P<start>Start)|End)\ of\ Assistant\ [12]['’]?s\ Answer\]
    | (?<![^\r\n])[\s>*_#`]*\[(?:(?P<section>Detailed\ Audio\ Description|Question)|System)\]
    """,
    re.IGNORECASE | re.VERBOSE,
)
_FENCE = re.compile(r"\s*(?:```+|~~~+)\s*[a-z]*\s*", re.IGNORECASE)
_ANNOUNCES = re.compile(r"\b(?:scores?|ratings?|verdict|evaluation)\b|评分|得分|分数|打分", re.IGNORECASE)
_EXPLAINS = re.compile(
    r"[\W_]*(?:explanations?|reason(?:ing|s)?|rationale|justification|解释|理由|说明)[\W_]*[:：]|[\W_]*because\b",
    re.IGNORECASE,
)
_ONE_OF_THEM = re.compile(r"(?:assistants?|助手|助理)\W*([12])", re.IGNORECASE)


def _own_lines(text: str) -> Iterator[_Line]:
    """Yield the lines that quote neither somebody nor the prompt."""
    lines = list(_LINE.finditer(text))
    odd = [index for index, line in enumerate(lines) if len(_QUOTATION_MARK.findall(line[0])) % 2]
    quoted: set[int] = set()
    # An odd mark without a partner is an inch or a slip: it must not swallow the rest of the reply.
    for opening, closing in zip(odd[::2], odd[1::2], strict=False):
        quoted.update(range(opening + 1, closing))
    own: list[re.Match[str]] = []
    inside_prompt = False
    for index, line in enumerate(lines):
        for delimiter in _DELIMITER.finditer(line[0]):
            inside_prompt = delimiter["start"] is not None or delimiter["section"] is not None
        if not inside_prompt and index not in quoted and not line[0].isspace():
            own.append(line)
    quoting = _quoting_fences([line[0] for line in own])
    for index, line in enumerate(own):
        yield _Line(line.start(), line[0], index not in quoting)


def _quoting_fences(lines: Sequence[str]) -> set[int]:
    """Return the indices of lines in code fences that stand beside prose which does not announce them."""
    fences: list[range] = []
    start: int | None = None
    for index, line in enumerate(lines):
        if start is None:
            start = index if _FENCE.fullmatch(line) else None
        elif line.rstrip().endswith(("```", "~~~")):
            fences.append(range(start, index + 1))
            start = None
    if start is not None:
        fences.append(range(start, len(lines)))
    fenced = {index for fence in fences for index in fence}
    if not any(_tokens(line) is None for index, line in enumerate(lines) if fences and index not in fenced):
        return set()
    return {index for fence in fences if not _announced(lines, fence) for index in fence}


def _announced(lines: Sequence[str], fence: range) -> bool:
    lead = lines[fence.start - 1].strip(" \t*_`") if fence.start else ""
    # Of one assistant alone it tells what that one said.
    if lead.endswith((":", "：")) and _ANNOUNCES.search(lead) and len(set(_ONE_OF_THEM.findall(lead))) != 1:
        return True
    return fence.stop < len(lines) and _EXPLAINS.match(lines[fence.stop]) is not None


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
    | (?P<joint> and {_END} | [&和与]) | (?P<versus> vs\.? {_END} | /)
    | (?P<colon> [:：=]) | (?P<comma> [,，、;；]) | (?P<bar> \|) | (?P<stop> [.。]) | (?P<dash> [-–—])
    | (?P<open> [(\[{{（【]) | (?P<close> [)\]}}）】])
    | (?P<nothing> \s+ | (?<![0-9])[*_`~]+ | [*_`~]+(?![0-9*_`~]))
    """,
    re.IGNORECASE | re.VERBOSE,
)
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


def _line_said(line: str) -> Iterable[_Claim | _Doubt]:
    line = line.strip()
    tokens = _tokens(line)
    claims = _shape_claims(*tokens) if tokens else ()
    if claims:
        return claims
    if tokens is None and len(line) <= _MAX_LINE:
        tokens = _tokens(_ODD_SIGN.sub(" ", unicodedata.normalize("NFKC", line)))
    if tokens is None:
        return _prose_said(line)
    shape, numbers = tokens
    final = _FINAL.search(line) is not None
    if _LIST_MARKER.fullmatch(shape) or any(math.isnan(number) for number in numbers):
        return ()
    if not any(0 <= number <= 10 for number in numbers):
        return ()
    return (_Doubt([int(char) for char in shape if char in "12"], numbers, final),)


def _shape_claims(shape: str, numbers: Sequence[float]) -> Sequence[_Claim]:
    if shape.count("(") != shape.count(")"):
        return ()
    if _NUMBERED_HEADER.fullmatch(shape) and set(numbers) == {1, 2}:
        return ((1, _NAN),)
    if _BARE_PAIR.fullmatch(shape):
        return tuple(zip((1, 2), numbers, strict=True))
    headed = _HEADED_PAIR.fullmatch(shape)
    if headed and headed[1] != headed[2]:
        return tuple(zip((int(headed[1]), int(headed[2])), numbers, strict=True))
    if _LABELLED.fullmatch(shape):
        return tuple(zip((int(char) for char in shape if char in "12"), numbers, strict=True))
    # Columns in the other order: a bare pair below it would go to the wrong assistants.
    return ((1, _NAN),) if _REVERSED_HEADER.fullmatch(shape) else ()


def _tokens(line: str) -> tuple[str, list[float]] | None:
    """Return a line's shape and numbers, or ``None`` when there is more on it than scores and decoration."""
    line = line.strip()
    if len(line) > _MAX_LINE:
        return None
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


# --- prose: which of its numbers are scores

_FINAL = re.compile(r"\bfinal|\bverdict\b|最终", re.IGNORECASE)
_CRITERION = (
    r"(?:helpful|relevan|accura|comprehensive|complete|clarity|clear|detail|depth|fluency|coheren|creativ)\w*"
)
_NUMERAL = {
    word: value
    for value, words in enumerate(
        "zero〇零 one一 two二两 three三 four四 five五 six六 seven七 eight八 nine九 ten十".split()
    )
    for word in re.findall("[a-z]+|[^a-z]", words)
}
_NUMERAL_WORD = "zero|two|three|four|five|six|seven|eight|nine|ten"
# What can follow a score. Before another word, the number counts something: "3 sounds", "2 of them".
_AFTER_SCORE = rf"""
    [*_`]* (?= \s+ \d | \s* (?: \Z | [^\w\s%°-] | -(?![a-z]) | [和与而但因且]
        | (?:and|or|to|because|since|as|while|whereas|but|due|given|based|respectively|vs|than|if|when|which
            |is|are|was|were|would|will|should|seems?|feels?|looks?|can|could
            |may|might|must|only|alone|just|accordingly|therefore|again|maybe|perhaps|instead|rather|here|now
            |overall|too|also|each|apiece|both|it|so|then|at|with|from|after|my|final|ai|assistants?) \b
        | (?:for|on|in) \b (?!\s+(?:its\s+|the\s+)?{_CRITERION}|\s+[0-9]) ) )
"""
_PROSE = re.compile(
    rf"""
      (?P<label> \b (?:ai\s*)? assistants? [\s_#*]* (?P<one>[12ab]|one|two) (?:['’]?s)? \b
          (?: \s* (?:,|/|&|and) \s* (?P<two>[12]) \b (?![./]?[0-9]) )?
        | (?:助手|助理) \s* (?P<zh>[12])
        | \b (?:(?P<former>first|former)|(?P<latter>second|latter)) \b (?!\s+(?:thought|look|pass)) )
    | (?P<both> \b (?:both|each|either|apiece) \b)
    | (?P<no_score> [0-9]{{1,2}}:[0-9]{{2}}(?:[:.][0-9]+)*
        | \b [0-9]+ \s+ (?:(?:out\s+)?of|in) \s+ (?:the\s+|all\s+)? (?!10\b) [0-9]+
        | \b [0-9]+ \s+ in \s+ 10 \b
        | \b [01] \s* (?:to|through|[-–—~至到]) \s* 10 \b
        | \b (?:the|these|those|all|other) \s+ (?:{_NUMERAL_WORD}) \b
        | \b {_CRITERION} [\s*_`]* (?:scores?|ratings?)? )
    | (?P<number> (?:
          (?<![\w.,]) (?P<digits>\d{{1,4}}(?:[.,]\d{{1,4}})?)
          (?:\s*(?:/\s*10\b|(?:out\s+)?of\s+10\b|points?\b|分))?
        | \b (?:{_NUMERAL_WORD}) \b | (?:(?<=and\s)|(?<=:\s)|(?<=of\s)|(?<=,\s)) one \b
        | [零〇一二两三四五六七八九十] (?=\s*(?:分|[，,、；;。.和与/]|\Z)) 分?
      ) {_AFTER_SCORE})
    | (?P<quantity> (?<![\w.,]) (?P<amount>\d{{1,4}}(?:[.,]\d{{1,4}})?) (?![\w%°]|[.,]\d)
        (?! (?:\s+points?)? \s+ (?:lower|higher|less|more|fewer|below|above|behind|ahead) \b ) )
    | (?P<final> \b (?:final(?:ly)? | verdict) \b | 最终)
    | (?P<correcting> \b (?:correct(?:ion|ed|ing) | revis(?:ion|ed|ing) | updat(?:e|ed|ing) | amend(?:ed|ment)
        | adjust(?:ed|ment|ing) | reconsider(?:ed|ing)? | actually | instead | rather | wait | sorry | oops
        | edit | apologies | mistake | on\s+(?:second\s+thought|reflection)) \b
        | 更正|修正|纠正|其实|抱歉|应为|改为)
    | (?P<score> \b (?:scor(?:e|es|ed|ing) | rat(?:e|es|ed|ing|ings) | grad(?:e|es|ed|ing) | marks? | marked
        | giv(?:e|en|ing) | (?<=i\s)gave | award(?:s|ed|ing)? | assign(?:s|ed|ing)? | deserv(?:e|es|ed|ing)
        | gets? | got | receiv(?:e|es|ed|ing) | earn(?:s|ed)? | merit(?:s|ed)?) \b | 评分|得分|分数|打分|给)
    | (?P<link> \b (?:i|we|gives|gave|i['’]d|i['’]ll|would|will|should|must|could|may|now|be|is|are|was|were
        |becomes?|a|an|the|my|its|their|of|to|from|at|as|by|for|and|or|vs|it|them|this|that|one|ones|s|ai|assistants?
        |answers?|responses?|overall|total|respectively|still|only|just|mere|solid|low|lower|high|higher|good
        |poor|fair|fairer|excellent|strong|weak|modest|generous|slightly|about|around|roughly|maybe|perhaps
        |here|then|out|on|with|each|new|own|right|better|best|go|going|stay|am|respective) \b
        | [的为是和与给应改总体] )
    | (?P<sentence_end> [.!?;。！？；]+ (?=\s|\Z) )
    | (?P<breaker> \w+(?:['’]\w+)* )
    | (?P<sign> [.!?;。！？；]+ | \S )
    """,
    re.IGNORECASE | re.VERBOSE,
)
_ADVERBS = {"actually", "instead", "rather"}  # within a sentence, of anything: "2 dogs instead of 3"
_OF = {"of", "is", "are", "was", "to", "at", "as", "be", "a", "an"}
_SHORT = 40
_LEADING_MARKER = re.compile(r"\s*(?:(?:[-+*•>]|#{1,6}|\(?[0-9]{1,2}[.)])\s+)*")


@dataclass(slots=True)
class _Run:
    """Words that stand together, each of which can be a part of stating scores."""

    heading: bool
    """Whether a sentence begins with it."""
    speaks: bool = False
    """Whether it holds a word that makes its numbers scores."""
    side_by_side: bool = False
    """Whether two numbers have nothing but a space between them."""
    labels: list[int] = field(default_factory=list)
    numbers: list[float] = field(default_factory=list)


def _prose_said(line: str) -> Iterator[_Doubt]:
    """Yield the scores that prose states, as far as it can be told.

    That is: numbers after or before a word such as "score" or "deserves" with nothing between them but words
    like "a", "of" or "is"; numbers beside a label ("Assistant 2 -> 2"); two numbers with only a space between
    them, at the very beginning of a sentence or on a short line; and all numbers of a sentence that begins as
    a final word, or of a line from where it begins to correct itself.
    """
    labels: list[int] = []  # named in this sentence by what came before the run
    run = _Run(heading=True)
    final = correcting = False
    beside_label, previous = False, ""
    score_noun = score_of = False
    short = len(line) <= _SHORT

    def ended() -> Iterator[_Doubt]:
        pair = len(run.numbers) == 2 and (run.side_by_side or run.heading or short)
        speaks = run.speaks or final or correcting or pair
        if run.numbers and speaks:
            yield _Doubt(tuple(run.labels or labels), tuple(run.numbers), final)
            labels.clear()
        else:
            labels.extend(run.labels)

    marker = _LEADING_MARKER.match(line)
    for token in _PROSE.finditer(line, marker.end() if marker else 0):
        kind = token.lastgroup
        if kind == "sentence_end":
            yield from ended()
            labels, run, final = [], _Run(heading=True), False
        elif kind == "breaker":
            if not (final or correcting):
                yield from ended()
                run = _Run(heading=False)
        elif kind == "label":
            run.labels += _named(token)
        elif kind == "both":
            run.labels.append(0)
        elif kind == "number":
            run.numbers.append(_value(token))
            run.speaks |= beside_label
            run.side_by_side |= previous == "number"
        elif kind == "quantity":
            # Whatever follows, "a score of 2" is one.
            if score_of:
                run.numbers.append(_value(token))
            elif not (final or correcting):
                yield from ended()
                run = _Run(heading=False)
        elif kind == "score":
            run.speaks = True
        elif kind == "final":
            final |= run.heading and not run.numbers
            run.speaks = True
        elif kind == "correcting":
            correcting |= run.heading and not run.numbers
            run.speaks |= token[0].lower() not in _ADVERBS
        beside_label = kind == "label" or (beside_label and kind == "sign")
        score_of = (score_of or score_noun) and (kind == "sign" or token[0].lower() in _OF)
        score_noun = kind == "score" and _ANNOUNCES.fullmatch(token[0]) is not None
        previous = kind or ""
    yield from ended()


def _named(token: re.Match[str]) -> list[int]:
    if token["former"] or token["latter"]:
        return [1 if token["former"] else 2]
    name = (token["zh"] or token["one"]).lower()
    return [1 if name in ("1", "a", "one") else 2] + ([int(token["two"])] if token["two"] else [])


def _value(token: re.Match[str]) -> float:
    digits = token["digits"] or token["amount"]
    if digits:
        return float(digits.replace(",", "."))
    numeral = token["number"].strip("*_`分").lower()
    return float(_NUMERAL[numeral])


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


def _json_said(value: Any, *, alone: bool) -> Iterable[_Claim | _Doubt]:
    """Return what a JSON value says; within a sentence, or under unknown keys, it is no verdict."""
    claims = list(_json_claims(value))
    if claims:
        return claims if alone else _as_doubts(claims)
    numbers = _json_numbers(value)
    return (_Doubt((), numbers),) if len(numbers) == 2 else ()


def _json_numbers(value: Any) -> list[float]:
    numbers: list[float] = []
    pending = [value]
    while pending:
        value = pending.pop()
        if isinstance(value, list):
            pending += reversed(value)
        elif isinstance(value, tuple):
            pending += [item for _, item in reversed(value)]
        elif isinstance(value, float):
            numbers.append(value)
    return numbers


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
