"""Prompt tokens and clip lengths -> whether the server counted the audio, and up to which length."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

MIN_PROMPTS = 20
"""Under so many prompts nothing is said."""
_MIN_SPREAD = 0.5  # seconds; clips whose lengths have a smaller standard deviation hardly differ
# The slowest encoders in use make a token every 2 s: growth surely under half of that is none.
_NO_GROWTH = 0.25
_MIN_SHORTER = 10  # prompts whose clip is shorter than a cut: a line through fewer fits a staircase too
_MIN_LONGER = 5
_FAR_BETTER = 30.0  # F; the best of many hinges reaches about 15 by chance
_SURELY = 3.0  # standard errors
_LEVEL = 0.2  # of the slope below a hinge: the slope beyond it is surely less
_STRAIGHT = 0.05  # of the tokens' rise up to a hinge: they scatter less about a line, text apart
_TEXT_SCATTER = 0.1  # tokens per character (and 20) by which a text's tokens scatter at most
_CANDIDATE_STEP = 1.01  # ratio of neighbouring hinges
_SHORTEST_HINGE = 0.1  # seconds
_LIKELY = 4.0  # F of two standard errors
_PRECISION = 0.05  # of a cut's length
_ROUNDING_VARIANCE = 1 / 12  # of a whole number: tokens never fit better than this


class Prompt(NamedTuple):
    """One prompt as the server counted it."""

    seconds: float
    """Length of the clip that was sent."""
    characters: int
    """Length of the text that was sent with it."""
    tokens: int
    """Prompt tokens that the server reported."""
    score: float | None
    """The sample's score, from 0 to 10, where it has one."""


@dataclass(frozen=True, slots=True)
class Growth:
    """How prompt tokens grow with the length of a clip; at most one of ``ignored`` and ``cut_at`` is set."""

    ignored: bool = False
    """The tokens do not grow. A model with a fixed number of tokens per clip looks the same."""
    cut_at: float | None = None
    """Seconds after which the tokens grow no more."""
    longer: int = 0
    """Prompts whose clip is longer than ``cut_at``."""
    score_longer: float | None = None
    """Mean score of those, and of all others (``score_others``); ``None`` where none has a score."""
    score_others: float | None = None


def audio_growth(prompts: Sequence[Prompt]) -> Growth | None:
    """Tell whether prompt tokens grow with the length of the clip, and whether they stop at some length.

    ``None``: fewer than 20 prompts of clips with a finite length, or clips of nearly one length. Nothing set
    in the result: they grow, or the prompts are too few to say. The tokens are fitted by weighted least
    squares to a constant, a share of the characters and ``min(seconds, N)``: a line where N is the longest
    clip, else a line with a hinge. The weights are those of a text whose tokens scatter in proportion to its
    length.

    - ``ignored``: the line's slope plus three standard errors is under a quarter of a token a second.
    - ``cut_at``: the best hinge fits far better than the line (F over 30) and is known to 5 %; tokens beyond
      it surely have less than a fifth of the slope before it; and before it the line holds, as it does not
      where a server counts started blocks of 30 s. It is given as the nearest 10 s, 5 s or whole second
      within those 5 %.
    """
    prompts = [prompt for prompt in prompts if math.isfinite(prompt.seconds)]
    if len(prompts) < MIN_PROMPTS or _spread([prompt.seconds for prompt in prompts]) < _MIN_SPREAD:
        return None
    hinges = _Hinges(prompts)
    line, bent = hinges.fit(hinges.seconds[-1]), hinges.all_fits()
    best = min(bent, key=lambda fit: fit.squares)
    freedom = len(prompts) - 4
    if (line.squares - best.squares) * freedom < _FAR_BETTER * best.squares:
        return Growth(ignored=line.slope + _SURELY * line.standard_error < _NO_GROWTH)
    likely = [fit.hinge for fit in bent if (fit.squares - best.squares) * freedom <= _LIKELY * best.squares]
    known = max(likely) / best.hinge - 1 <= _PRECISION and 1 - min(likely) / best.hinge <= _PRECISION
    if not known or not hinges.stops_growing(best):
        return Growth()
    cut = _round_length(best.hinge)
    # Only clips that are surely longer tell that there is a cut; then all longer ones are cut.
    if sum(prompt.seconds > (1 + _PRECISION) * cut for prompt in prompts) < _MIN_LONGER:
        return Growth()
    longer = [prompt for prompt in prompts if prompt.seconds > cut]
    others = [prompt for prompt in prompts if prompt.seconds <= cut]
    return Growth(
        cut_at=cut, longer=len(longer), score_longer=_mean_score(longer), score_others=_mean_score(others)
    )


class _Fit(NamedTuple):
    hinge: float
    slope: float
    """Tokens per second below the hinge."""
    standard_error: float
    squares: float
    """Weighted sum of the squared residuals, rounding included."""


class _Hinges:
    """Every fit of the same prompts with ``min(seconds, hinge)``, each from running sums over sorted clips.

    Constant and characters are taken out of the tokens beforehand, and out of the hinged seconds by
    their sums (the theorem of Frisch, Waugh and Lovell): a fit takes the same time for any number of prompts.
    """

    def __init__(self, prompts: Sequence[Prompt]) -> None:
        ordered = sorted(prompts, key=lambda prompt: prompt.seconds)
        self.seconds = [prompt.seconds for prompt in ordered]
        # 20 characters scatter by about the one token that rounding costs.
        self.weights = [(20 + prompt.characters) ** -2.0 for prompt in ordered]
        self.total = math.fsum(self.weights)
        self.characters = self._centred([float(prompt.characters) for prompt in ordered])
        self.characters_square = self._dot(self.characters, self.characters)
        tokens = self._centred([float(prompt.tokens) for prompt in ordered])
        share = _ratio(self._dot(self.characters, tokens), self.characters_square)
        self.tokens = [t - share * c for t, c in zip(tokens, self.characters, strict=True)]
        self.tokens_square = self._dot(self.tokens, self.tokens)
        self._sums = [
            self._running([1.0] * len(ordered)),
            self._running(self.seconds),
            self._running([second * second for second in self.seconds]),
            self._running(self.characters),
            self._running([s * c for s, c in zip(self.seconds, self.characters, strict=True)]),
            self._running(self.tokens),
            self._running([s * t for s, t in zip(self.seconds, self.tokens, strict=True)]),
        ]

    def fit(self, hinge: float) -> _Fit:
        """Return the fit with this hinge; its standard error is infinite where the slope cannot be told."""
        below = bisect_right(self.seconds, hinge)
        one, second, square, text, second_text, token, second_token = (
            (running[below], running[-1] - running[below]) for running in self._sums
        )
        mean = (second[0] + hinge * one[1]) / self.total
        with_text = second_text[0] + hinge * text[1]
        variation = (
            square[0]
            + hinge * hinge * one[1]
            - self.total * mean * mean
            - _ratio(with_text * with_text, self.characters_square)
        )
        product = second_token[0] + hinge * token[1]
        rounding = self.total * _ROUNDING_VARIANCE
        # Clip lengths that the lengths of the texts foretell leave no variation but that of floating point.
        if variation <= 1e-9 * (square[0] + hinge * hinge * one[1]):
            return _Fit(hinge, 0.0, math.inf, self.tokens_square + rounding)
        squares = max(0.0, self.tokens_square - product * product / variation) + rounding
        variance = squares / (len(self.seconds) - 3)
        return _Fit(hinge, product / variation, math.sqrt(variance / variation), squares)

    def all_fits(self) -> list[_Fit]:
        """Return the fits of hinges from the shortest clip to the longest."""
        first, last = max(self.seconds[0], _SHORTEST_HINGE), self.seconds[-1]
        steps = math.ceil(math.log(last / first) / math.log(_CANDIDATE_STEP))
        return [self.fit(first * _CANDIDATE_STEP**step) for step in range(steps)] + [self.fit(last)]

    def stops_growing(self, fit: _Fit) -> bool:
        """Return whether the tokens follow a line up to the fit's hinge and stay level beyond it."""
        tokens, edge = self._without_text(fit), bisect_right(self.seconds, fit.hinge)
        if fit.slope <= 0 or edge < _MIN_SHORTER or len(tokens) - edge < _MIN_LONGER:
            return False
        below = _Line.through(self.seconds[:edge], tokens[:edge], self.weights[:edge])
        above = _Line.through(self.seconds[edge:], tokens[edge:], self.weights[edge:])
        rise = fit.slope * (fit.hinge - self.seconds[0])
        text = _TEXT_SCATTER * math.sqrt(len(tokens) / self.total)
        level = abs(above.slope) + _SURELY * above.standard_error < _LEVEL * fit.slope
        return level and below.scatter < _STRAIGHT * rise + text

    def _without_text(self, fit: _Fit) -> list[float]:
        """Return each prompt's tokens without its text's, up to a constant, in the order of ``seconds``."""
        hinged = self._centred([min(second, fit.hinge) for second in self.seconds])
        overlap = _ratio(self._dot(hinged, self.characters), self.characters_square)
        return [
            token + fit.slope * overlap * text
            for token, text in zip(self.tokens, self.characters, strict=True)
        ]

    def _centred(self, values: list[float]) -> list[float]:
        mean = math.fsum(w * value for w, value in zip(self.weights, values, strict=True)) / self.total
        return [value - mean for value in values]

    def _dot(self, left: list[float], right: list[float]) -> float:
        return math.fsum(w * x * y for w, x, y in zip(self.weights, left, right, strict=True))

    def _running(self, values: list[float]) -> list[float]:
        return list(accumulate((w * v for w, v in zip(self.weights, values, strict=True)), initial=0.0))


class _Line(NamedTuple):
    slope: float
    standard_error: float
    scatter: float
    """Root of the weighted mean squared residual."""

    @classmethod
    def through(cls, x: list[float], y: list[float], weights: list[float]) -> _Line:
        """Return the weighted least-squares line of ``y`` on ``x``."""
        total = math.fsum(weights)
        x_mean = math.fsum(w * v for w, v in zip(weights, x, strict=True)) / total
        y_mean = math.fsum(w * v for w, v in zip(weights, y, strict=True)) / total
        variation = math.fsum(w * (v - x_mean) ** 2 for w, v in zip(weights, x, strict=True))
        product = math.fsum(w * (a - x_mean) * (b - y_mean) for w, a, b in zip(weights, x, y, strict=True))
        slope = _ratio(product, variation)
        squares = total * _ROUNDING_VARIANCE + math.fsum(
            w * (b - y_mean - slope * (a - x_mean)) ** 2 for w, a, b in zip(weights, x, y, strict=True)
        )
        variance = squares / max(1, len(x) - 2)
        error = math.sqrt(variance / variation) if variation > 0 else math.inf
        return cls(slope, error, math.sqrt(squares / total))


def _round_length(seconds: float) -> float:
    """Return the nearest 10 s, 5 s or whole second within the fit's precision, else the length itself."""
    for unit in (10, 5, 1):
        near = float(unit * round(seconds / unit))
        if abs(near - seconds) <= _PRECISION * seconds:
            return near
    return seconds


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0


def _spread(values: list[float]) -> float:
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))


def _mean_score(prompts: list[Prompt]) -> float | None:
    scores = [prompt.score for prompt in prompts if prompt.score is not None]
    return math.fsum(scores) / len(scores) if scores else None
