"""By which rule a run was scored, in words: the same in every format."""

from __future__ import annotations

from otoscope.scoring import Summary


def scoring_words(summary: Summary) -> tuple[str, dict[str, str]]:
    """Return the catalogue's key and values for a scoring rule.

    Official scoring of replies that were not sampled as the official script does says over which they are.
    """
    if summary.scoring == "default":
        return "scoring.default", {}
    temperatures = summary.judge_temperatures
    if temperatures is None:
        return "scoring.official_over_unknown", {}
    if summary.sampled_officially:
        return "scoring.official", {}
    return "scoring.official_over", {"temperatures": ", ".join(temperatures)}
