"""What every format tells of a run in the same way: the rule, and the names that servers returned."""

from __future__ import annotations

from otoscope.scoring import Summary


def names_returned(summary: Summary, role: str) -> list[tuple[str, int]]:
    """Return the names by which the ``model`` or ``judge`` called itself, with counts, the commonest first.

    Empty where they are just the name that was asked for, or where no reply has one.
    """
    asked = summary.judge if role == "judge" else summary.model
    names = (summary.observed.get(role) or {}).get("names") or {}
    returned = {name: count for name, count in names.items() if name != "not named"}
    if set(returned) <= {asked}:
        return []
    return sorted(returned.items(), key=lambda entry: (-entry[1], entry[0]))


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
