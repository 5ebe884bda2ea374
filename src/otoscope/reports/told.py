"""What every format tells of a run in the same way: the control, the audio, the rule, and returned names."""

from __future__ import annotations

from collections.abc import Iterator

from otoscope.config.audio_policy import AS_IS
from otoscope.reports.counts import money
from otoscope.scoring import CONTROL_WARNINGS, Summary
from otoscope.texts import Catalogue


def control_mark(summary: Summary, say: Catalogue) -> str | None:
    """Return the sentence that says what was sent in place of the clips; ``None`` for an evaluation."""
    if summary.control is None:
        return None
    return say(f"warning.{CONTROL_WARNINGS[summary.control]}")


def with_control(name: str, control: str | None, say: Catalogue) -> str:
    """Return a run's name, with the control that it is, if it is one."""
    return name if control is None else say("control.name", name=name, control=say(f"control.{control}"))


def audio_told(summary: Summary) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the catalogue's keys and values for what was done to the clips; nothing where nothing was."""
    audio = summary.audio
    if audio["policy"] in (None, AS_IS) and not audio["changed"] and not audio["skipped"]:
        return
    if audio["clips"]:
        yield "audio.changed", {"changed": f"{audio['changed']:,}", "clips": f"{audio['clips']:,}"}
    if audio["shortened"]:
        yield (
            "audio.shortened",
            {
                "count": f"{audio['shortened']:,}",
                "cut": f"{audio['seconds_cut']:,.1f}",
                "seconds": f"{audio['seconds']:,.1f}",
            },
        )
    for name in ("resampled", "mixed_down", "encoded", "skipped"):
        if audio[name]:
            yield f"audio.{name}", {"count": f"{audio[name]:,}"}


def converters_told(summary: Summary) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the catalogue's keys and values for the libraries that converted clips, the commonest first."""
    counts = summary.audio["converters"]
    for name in sorted(counts, key=lambda name: (-counts[name], name)):
        yield "audio.converter", {"what": name, "count": f"{counts[name]:,}"}


def flagged_keys(summary: Summary, say: Catalogue, *, shown: int) -> str | None:
    """Return which answers address the judge: so many keys, and where all are; ``None`` where none does."""
    keys = summary.flagged["keys"]
    if not keys:
        return None
    listed = say("table.list_separator").join(keys[:shown])
    if len(keys) <= shown:
        return say("flagged.keys", keys=listed)
    return say("flagged.first_keys", keys=listed, more=f"{len(keys) - shown:,}")


def cost_told(summary: Summary) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the catalogue's keys and values for what the judge cost; nothing where replies and tokens say it.

    Those are all there is to tell without a price, if every request had a reply and the server counted.
    """
    used = summary.usage.get("judge") or {}
    if used.get("cost") is not None:
        price = {name: f"{value:,.12g}" for name, value in used["price"].items()}
        yield "cost.paid", {"cost": money(used["cost"]), **price}
    if used.get("calls") not in (None, used.get("replies")):
        yield "cost.calls", {"calls": f"{used['calls']:,}", "replies": f"{used['replies']:,}"}
    if used.get("estimated_replies"):
        yield "cost.estimated", {"count": f"{used['estimated_replies']:,}"}


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
