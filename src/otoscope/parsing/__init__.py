"""What counts in a text: the scores in a judge's reply, the answer in a model's.

Pure functions over text. None of them raises on a text, whatever it holds (a NUL, a lone surrogate, a
megabyte of brackets), and each takes time that grows with the text's length and not faster.

::

    filters          AnswerFilter: which part of a model's text is its answer
    official         parse_official(): the official script's rule
    verdict          parse_verdict(): the tolerant rule, and its version
    ├── json_scores  what a JSON value in a reply says
    ├── lines        which lines are the judge's own words
    ├── grammar      what one line says: scores and decoration, or else prose
    ├── prose        which of the numbers in prose are scores
    └── claims       what can be said of scores: claims and doubts
    thinking         the blocks of thinking, for the filters and for the verdict
"""

from otoscope.parsing.filters import AnswerFilter
from otoscope.parsing.official import parse_official
from otoscope.parsing.thinking import strip_thinking, thinking_unclosed
from otoscope.parsing.verdict import PARSER_VERSION, Scores, parse_verdict

__all__ = [
    "PARSER_VERSION",
    "AnswerFilter",
    "Scores",
    "parse_official",
    "parse_verdict",
    "strip_thinking",
    "thinking_unclosed",
]
