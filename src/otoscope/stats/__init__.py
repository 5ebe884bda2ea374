"""Estimates with their uncertainty: numbers in, numbers out, with the standard library alone.

``otoscope.stats.permutation`` needs numpy and is imported by its own name.
"""

from __future__ import annotations

from otoscope.stats.correlation import Correlation, PairedStratum, correlation_within
from otoscope.stats.estimates import Design, Estimate, Stratum, estimate, rate, wilson
from otoscope.stats.student_t import student_t_quantile

INTERVAL_LABEL = "over questions and clips; judge and decoding held fixed"
"""What every interval is about; shown with each."""

__all__ = [
    "INTERVAL_LABEL",
    "Correlation",
    "Design",
    "Estimate",
    "PairedStratum",
    "Stratum",
    "correlation_within",
    "estimate",
    "rate",
    "student_t_quantile",
    "wilson",
]
