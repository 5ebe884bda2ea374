"""Lines: which of a reply's are the judge's own words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from otoscope.parsing.grammar import line_tokens
from otoscope.parsing.prose import ANNOUNCES


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a reply that the judge says itself."""

    start: int
    """Where it begins in the reply."""
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
_EXPLAINS = re.compile(
    r"[\W_]*(?:explanations?|reason(?:ing|s)?|rationale|justification|解释|理由|说明)[\W_]*[:：]|[\W_]*because\b",
    re.IGNORECASE,
)
_ONE_OF_THEM = re.compile(r"(?:assistants?|助手|助理)\W*([12])", re.IGNORECASE)


def own_lines(text: str) -> Iterator[Line]:
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
        yield Line(line.start(), line[0], index not in quoting)


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
    if not any(
        line_tokens(line) is None for index, line in enumerate(lines) if fences and index not in fenced
    ):
        return set()
    return {index for fence in fences if not _announced(lines, fence) for index in fence}


def _announced(lines: Sequence[str], fence: range) -> bool:
    lead = lines[fence.start - 1].strip(" \t*_`") if fence.start else ""
    # Of one assistant alone it tells what that one said.
    if lead.endswith((":", "：")) and ANNOUNCES.search(lead) and len(set(_ONE_OF_THEM.findall(lead))) != 1:
        return True
    return fence.stop < len(lines) and _EXPLAINS.match(lines[fence.stop]) is not None
