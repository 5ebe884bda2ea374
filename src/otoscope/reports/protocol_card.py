"""How a run was made: what a reader needs to repeat it, or to doubt it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

from otoscope._version import __version__
from otoscope.reports.blocks import Table, coverage, inert
from otoscope.reports.reported import Reported
from otoscope.reports.told import audio_told, converters_told, cost_told, names_returned, with_control
from otoscope.scoring import Summary
from otoscope.texts import Catalogue

_MOST_VARIANTS = 5
"""Different parameters that are named; a server that made us change them has two or three."""


def protocol_card(run: Reported, say: Catalogue, *, name: str, scoring: str) -> Table:
    """Return the card as a table of two columns. ``scoring`` is the rule's name."""
    rows = [(say(f"table.card_{key}"), text) for key, text in _facts(run, say, scoring) if text]
    named = with_control(inert(run.name), run.summary.control, say)
    caption = say("table.card_caption", run=named)
    return Table(name, caption, [say("table.card_fact"), say("table.card_value")], rows, prose=True)


def served(summary: Summary, role: str, say: Catalogue) -> str:
    """Return the name asked for and, where they are not just that, the names that the server returned."""
    asked = summary.judge if role == "judge" else summary.model
    returned = names_returned(summary, role)
    if not returned:
        return inert(asked)
    if len(returned) == 1:
        return say("table.served", asked=inert(asked), returned=inert(returned[0][0]))
    told = [say("table.times", what=inert(name), count=f"{count:,}") for name, count in returned]
    return say("table.served", asked=inert(asked), returned=say("table.list_separator").join(told))


def _facts(run: Reported, say: Catalogue, scoring: str) -> Iterator[tuple[str, str]]:
    """Yield the key and the text of each fact; an empty text is left out."""
    summary = run.summary
    requested = summary.requested
    model, judge = (requested.get(part) or {} for part in ("model", "judge"))
    listed = say("table.list_separator").join
    yield "run_id", inert(run.manifest.get("run_id") or "")
    yield "tags", listed(inert(f"{name}={value}") for name, value in summary.tags.items())
    yield "model", served(summary, "model", say)
    yield "model_revision", inert(model.get("revision") or "")
    yield "model_sent", _sent(summary, "model", say)
    yield "prompt", _prompt(summary.prompt, say)
    yield "control", say(f"control.{summary.control}") if summary.control is not None else ""
    yield "audio_policy", inert(summary.audio["policy"] or "")
    yield "audio", listed(say(key, **values) for key, values in audio_told(summary))
    yield "converter", listed(inert(say(key, **values)) for key, values in converters_told(summary))
    yield "answer_filter", inert(summary.prompt.get("answer_filter") or "")
    if summary.judge is not None:
        yield "judge", served(summary, "judge", say)
        yield "judge_revision", inert(judge.get("revision") or "")
        yield "judge_sent", _sent(summary, "judge", say)
        yield "judge_prompt", inert(judge.get("prompt_sha256") or say("table.unknown"))
        yield "protocol", inert(summary.protocol or say("table.unknown"))
        yield "orders", say("table.both_orders" if summary.do_swap else "table.one_order")
        yield "scoring", scoring
        yield "parser", inert(judge.get("parser_version", ""))
    yield "weights", listed(inert(text) for part in (model, judge) for text in _weights(part))
    yield "view", say("table.paper_view") if summary.view != "full" else ""
    yield "selection", _selection(summary)
    yield "data", inert((run.manifest.get("dataset") or {}).get("digest") or "")
    yield "dates", _dates(run)
    yield from _counts(summary, say)
    yield "intervals", say("table.interval_label")
    yield "tokens", listed(_tokens(summary, say))
    yield "cost", say("cost.separator").join(say(key, **values) for key, values in cost_told(summary))
    yield (
        "versions",
        say("table.versions", run=inert(run.manifest.get("package_version") or "?"), report=__version__),
    )


def _counts(summary: Summary, say: Catalogue) -> Iterator[tuple[str, str]]:
    counts, everything = summary.counts, summary.all_samples
    yield (
        "samples",
        say(
            "table.counts",
            scored=f"{everything.scored:,}",
            failed=f"{everything.failed:,}",
            pending=f"{everything.pending:,}",
            n=f"{everything.n:,}",
        ),
    )
    if everything.n:
        yield "coverage", coverage(everything.scored, everything.n)
    kinds: Mapping[str, int] = counts.get("failures") or {}
    most = sorted(kinds.items(), key=lambda entry: (-entry[1], entry[0]))
    yield "failures", say("table.list_separator").join(f"{kind} {count:,}" for kind, count in most)


def _prompt(prompt: Mapping[str, Any], say: Catalogue) -> str:
    if not prompt:
        return ""
    parts = [
        f"{name} {_json(prompt[name])}"
        for name in ("source", "template", "system", "part_order", "audio_part")
        if prompt.get(name) is not None
    ]
    return inert(say("table.list_separator").join(parts), longest=1000, say=say)


def _sent(summary: Summary, role: str, say: Catalogue) -> str:
    """Return the parameters really sent, after adaptation to the server."""
    variants = (summary.observed.get(role) or {}).get("parameters") or ()
    if not variants:
        return inert(_json((summary.requested.get(role) or {}).get("parameters") or {}))
    told = [inert(_json(variant["sent"])) for variant in variants[:_MOST_VARIANTS]]
    if len(variants) > 1:
        counts = [f"{variant['replies']:,}" for variant in variants]
        told = [say("table.times", what=text, count=count) for text, count in zip(told, counts, strict=False)]
    if len(variants) > _MOST_VARIANTS:
        told.append(say("table.and_more", count=f"{len(variants) - _MOST_VARIANTS:,}"))
    return say("table.list_separator").join(told)


def _weights(part: Mapping[str, Any]) -> Iterator[str]:
    weights = part.get("weights") or part.get("checkpoint")
    for file, digest in weights.items() if isinstance(weights, Mapping) else ():
        yield f"{file} {digest}"


def _selection(summary: Summary) -> str:
    chosen = {
        name: value for name, value in summary.selection.items() if value is not None and name != "tasks"
    }
    tasks = ", ".join(map(str, summary.selection.get("tasks") or summary.tasks))
    return inert("; ".join([tasks, *(f"{name} {_json(value)}" for name, value in chosen.items())]))


def _dates(run: Reported) -> str:
    timings = [timing for timing in run.summary.timing.values() if timing]
    created = [inert(run.summary.created_at)] if run.summary.created_at else []
    if not timings:
        return "".join(created)
    first, last = min(t["first_at"] for t in timings), max(t["last_at"] for t in timings)
    return "; ".join([*created, f"{_utc(first)} – {_utc(last)}"])


def _utc(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def _tokens(summary: Summary, say: Catalogue) -> Iterator[str]:
    for role, usage in summary.usage.items():
        if usage["replies"]:
            yield say(
                f"table.tokens_{role}",
                replies=f"{usage['replies']:,}",
                prompt=f"{usage['prompt_tokens']:,}",
                completion=f"{usage['completion_tokens']:,}",
            )


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)
