"""The tolerant rule: the scores that a judge's reply states, where it is certain which they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from otoscope.parsing.claims import NAN, Claim, Doubt, as_doubts
from otoscope.parsing.grammar import is_decimal_comma, is_number_alone, line_said
from otoscope.parsing.json_scores import JsonScores
from otoscope.parsing.lines import own_lines
from otoscope.parsing.thinking import strip_judges_thinking

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
    text = strip_judges_thinking(text)
    claimed: dict[int, set[float]] = {1: set(), 2: set()}
    doubts: list[Doubt] = []
    for said in _said(text):
        if not isinstance(said, Doubt):
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


def _said(text: str) -> Iterator[Claim | Doubt]:
    values = JsonScores(text)
    pair_with_comma, commas, alone = False, 0, 0
    for line in own_lines(text):
        if line.start < values.end:
            continue  # under a key of its own, a line of a JSON value means something else
        said = values.said(line.text, line.start)
        if said is None:
            said = tuple(line_said(line.text))
            comma = is_decimal_comma(line.text)
            pair_with_comma |= comma and not any(isinstance(one, Doubt) for one in said) and len(said) == 2
            commas += comma
            alone += is_number_alone(line.text)
        yield from (said if line.counts else as_doubts(said))
    if pair_with_comma and commas + alone > 1:
        yield 1, NAN
