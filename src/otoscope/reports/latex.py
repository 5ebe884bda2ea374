"""Runs as LaTeX tables for a paper: booktabs, and no other package.

The source is ASCII for pdfLaTeX wherever that is possible. A character that pdfLaTeX has no way to set is
given twice: as it is, for XeLaTeX and LuaLaTeX with a font that has it, and by its code for pdfLaTeX.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence

from otoscope.reports.blocks import (
    END_ISOLATE,
    ISOLATE,
    NOT_AVAILABLE,
    Block,
    Heading,
    Pairs,
    Paragraph,
    Score,
    Table,
    Value,
    interval,
    number,
)
from otoscope.reports.reported import Reported
from otoscope.reports.tables import document
from otoscope.texts import Catalogue

_HEAD = r"""% Needs \usepackage{booktabs}. Compiles with pdfLaTeX, XeLaTeX and LuaLaTeX.
% Where the text has two columns: table* instead of table."""
_UNICODE = r"""% Text that pdfLaTeX cannot set shows there by its character codes; XeLaTeX and LuaLaTeX
% set it, with a font that has it (package xeCJK or ctex for Chinese).
\ifdefined\otoscopeunicode\else
  \ifdefined\XeTeXversion \DeclareRobustCommand{\otoscopeunicode}[2]{#1}%
  \else\ifdefined\luatexversion \DeclareRobustCommand{\otoscopeunicode}[2]{#1}%
  \else \DeclareRobustCommand{\otoscopeunicode}[2]{#2}\fi\fi
\fi"""
_SECTIONS = {1: "section", 2: "subsection", 3: "paragraph"}
_FEW_COLUMNS = 6
"""A table with more is set smaller."""
_MOST_CODES = 12
"""Of a longer stretch the other characters are only counted: long texts are for XeLaTeX."""

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "_": r"\_",
    "%": r"\%",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "`": r"\textasciigrave{}",
    '"': r"\symbol{34}",
    "\u00a0": "~",
    "¡": r"\textexclamdown{}",
    "¿": r"\textquestiondown{}",
    "ß": r"\ss{}",
    "æ": r"\ae{}",
    "Æ": r"\AE{}",
    "œ": r"\oe{}",
    "Œ": r"\OE{}",
    "ø": r"\o{}",
    "Ø": r"\O{}",
    "ł": r"\l{}",
    "Ł": r"\L{}",
    "ı": r"\i{}",
    "§": r"\S{}",
    "©": r"\textcopyright{}",
    "·": r"\textperiodcentered{}",
    "×": r"$\times$",
    "÷": r"$\div$",
    "±": r"$\pm$",
    "°": r"$^{\circ}$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "→": r"$\rightarrow$",
    "–": r"\textendash{}",
    "—": r"\textemdash{}",
    "‘": r"\textquoteleft{}",
    "’": r"\textquoteright{}",
    "“": r"\textquotedblleft{}",
    "”": r"\textquotedblright{}",
    "…": r"\ldots{}",
    "•": r"\textbullet{}",
    "\u2010": "-",
    "\u2011": "-",
}
_ACCENTS = {
    "\u0300": r"\`",
    "\u0301": r"\'",
    "\u0302": r"\^",
    "\u0303": r"\~",
    "\u0304": r"\=",
    "\u0306": r"\u",
    "\u0307": r"\.",
    "\u0308": r"\"",
    "\u030a": r"\r",
    "\u030b": r"\H",
    "\u030c": r"\v",
    "\u0327": r"\c",
}
_DROPPED = frozenset((ISOLATE, END_ISOLATE))
_BOUND = re.compile(r"^[\[*]|-(?=-)|'(?=')")
"""What would be an option of the row's end before it, or with its neighbour another character."""
_OTHERS = re.compile("[^\x00-\x7f]+")
_LONGEST_WORD = 32
"""Characters of a word after which its line may be broken: digests would stand out into the margin."""


def render_latex(runs: Sequence[Reported], say: Catalogue, *, appendix: bool) -> str:
    """Return the runs as LaTeX: a table for each judge, ``appendix`` with sections all about each run.

    All text in it is inert: no command, no mathematics, and nothing that keeps it from compiling.
    """
    body = "\n\n".join("\n".join(_lines(block)) for block in document(runs, say, appendix=appendix))
    head = f"{_HEAD}\n{_UNICODE}" if r"\otoscopeunicode" in body else _HEAD
    return f"{head}\n\n{body}\n"


def escape(text: str) -> str:
    """Return one line of text so that it shows as it is, or says which characters are not shown."""
    composed = unicodedata.normalize("NFC", "".join(c for c in text if c not in _DROPPED))
    bound = {match.start() for match in _BOUND.finditer(composed)}
    written, word = [], 0
    for position, character in enumerate(composed):
        word = word + 1 if "!" <= character <= "~" else 0
        if word > _LONGEST_WORD:
            written.append(r"\allowbreak{}")
            word = 1
        written.append(f"{{{character}}}" if position in bound else _command(character))
    return _OTHERS.sub(lambda match: _both_ways(match[0]), "".join(written))


def _command(character: str) -> str:
    """Return the command for a character, or the character itself where there is none."""
    if character in _SPECIAL:
        return _SPECIAL[character]
    if character.isascii():
        return character
    base, *marks = list(unicodedata.normalize("NFD", character))
    if len(marks) == 1 and marks[0] in _ACCENTS and base.isascii() and base.isalpha():
        # A dotless letter stays dotted: \'{i} is what T1 and OT1 fonts have.
        return f"{_ACCENTS[marks[0]]}{{{base}}}"
    return character


def _both_ways(text: str) -> str:
    codes = " ".join(f"U+{ord(character):04X}" for character in text[:_MOST_CODES])
    more = f" and {len(text) - _MOST_CODES} more" if len(text) > _MOST_CODES else ""
    return rf"\otoscopeunicode{{{text}}}{{{{[}}{codes}{more}{{]}}}}"


# --- blocks -----------------------------------------------------------------------------------------------


def _lines(block: Block) -> Iterator[str]:
    match block:
        case Heading():
            # Floats that found no page yet are set first: there may be no more than some dozens.
            yield r"\clearpage" if block.level == 1 else ""
            yield rf"\{_SECTIONS[block.level]}*{{{escape(block.text)}}}"
        case Paragraph():
            yield rf"\noindent {escape(block.text)}\par"
        case Pairs():
            yield r"\begin{description}"
            yield from (rf"\item[{{{escape(name)}}}] {escape(text)}".rstrip() for name, text in block.pairs)
            yield r"\end{description}"
        case Table():
            yield from _table(block)


def _table(table: Table) -> Iterator[str]:
    columns = r"lp{0.66\linewidth}" if table.prose else "l" + "r" * (len(table.head) - 1)
    yield r"\begin{table}"
    yield r"\centering"
    # The short form keeps what a list of tables shows before this file is read free of its own command.
    yield rf"\caption[{escape(table.listed_as)}]{{{escape(table.caption)}}}"
    yield rf"\label{{tab:{table.name}}}\smallskip"
    yield rf"\{'small' if len(table.head) <= _FEW_COLUMNS else 'footnotesize'}\setlength{{\tabcolsep}}{{3pt}}"
    yield rf"\begin{{tabular}}{{{columns}}}"
    yield r"\toprule"
    yield _row([escape(text) for text in table.head])
    yield r"\midrule"
    for row in table.rows:
        yield from _prose_row(row) if table.prose else _rows(row)
    yield r"\bottomrule"
    yield r"\end{tabular}"
    yield from (rf"\par\smallskip{{\raggedright\footnotesize {escape(note)}\par}}" for note in table.notes)
    yield r"\end{table}"


def _rows(values: Sequence[Value]) -> Iterator[str]:
    """Yield a row, and below it in small print the intervals and the lower bounds of its scores."""
    lines = [
        [_shown(value) for value in values],
        [_small(_interval(value)) for value in values],
        [_small(_least(value)) for value in values],
    ]
    filled = [line for line in lines if any(line)]
    for line in filled[:-1]:
        yield _row(line, end=r"\\[-2pt]")
    yield _row(filled[-1], end=r"\\[2pt]" if len(filled) > 1 else r"\\")


def _prose_row(values: Sequence[Value]) -> Iterator[str]:
    name, *texts = map(_shown, values)
    yield _row([name, *(rf"{{\raggedright {text}\par}}" for text in texts)])


def _row(values: Sequence[str], *, end: str = r"\\") -> str:
    return f"{' & '.join(values)} {end}"


def _shown(value: Value) -> str:
    if isinstance(value, str):
        return value if value == NOT_AVAILABLE else escape(value)
    return _signed(number(value.value)) if value.value is not None else NOT_AVAILABLE


def _interval(value: Value) -> str:
    return _signed(interval(value.ci95)) if isinstance(value, Score) and value.ci95 is not None else ""


def _least(value: Value) -> str:
    if not isinstance(value, Score) or value.least is None:
        return ""
    return rf"$\geq$\,{_signed(number(value.least))}"


def _signed(text: str) -> str:
    return text.replace("-", "$-$")


def _small(text: str) -> str:
    return rf"{{\scriptsize {text}}}" if text else ""
