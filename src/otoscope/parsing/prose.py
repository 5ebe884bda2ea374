"""Prose: which of its numbers are scores."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

from otoscope.parsing.claims import Doubt

ANNOUNCES = re.compile(r"\b(?:scores?|ratings?|verdict|evaluation)\b|评分|得分|分数|打分", re.IGNORECASE)
"""What announces scores that follow: "The scores:"."""

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
_PROSE = rf"""
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
    """
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


@cache
def _prose() -> re.Pattern[str]:
    # Not at import: no reply is read before the first request was sent.
    return re.compile(_PROSE, re.IGNORECASE | re.VERBOSE)


def prose_said(line: str) -> Iterator[Doubt]:
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

    def ended() -> Iterator[Doubt]:
        pair = len(run.numbers) == 2 and (run.side_by_side or run.heading or short)
        speaks = run.speaks or final or correcting or pair
        if run.numbers and speaks:
            yield Doubt(tuple(run.labels or labels), tuple(run.numbers), final)
            labels.clear()
        else:
            labels.extend(run.labels)

    marker = _LEADING_MARKER.match(line)
    for token in _prose().finditer(line, marker.end() if marker else 0):
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
        score_noun = kind == "score" and ANNOUNCES.fullmatch(token[0]) is not None
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
