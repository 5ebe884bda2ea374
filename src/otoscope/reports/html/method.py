"""How the numbers came about: what was requested, what was sent, and what the servers said of themselves."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from otoscope.reports.html import numbers
from otoscope.reports.html.headline import Fact, converters, served
from otoscope.reports.html.words import Said, known, said
from otoscope.reports.reported import Reported

_PROMPT = ("template", "system", "part_order", "audio_part", "answer_filter", "audio_policy", "source")
_JUDGE = ("prompt_sha256", "parser_version")


def method(run: Reported) -> list[tuple[Said, list[Fact]]]:
    """Return groups of facts: the model, its prompt, the judge, the data, the run."""
    requested: Mapping[str, Any] = run.summary.requested
    groups = [
        (said("html.model"), list(_endpoint(run, "model"))),
        (said("html.prompt"), list(_prompt(run))),
        (
            said("html.judge"),
            [*_endpoint(run, "judge"), *_named(requested.get("judge") or {}, _JUDGE)],
        ),
        (said("html.data"), list(_data(run.manifest))),
        (said("html.run"), list(_run(run.manifest))),
    ]
    return [(name, facts) for name, facts in groups if facts]


def _endpoint(run: Reported, role: str) -> Iterator[Fact]:
    requested = run.summary.requested.get(role) or {}
    observed = run.summary.observed.get(role) or {}
    if not requested.get("name"):
        return
    yield Fact(said("html.name"), served(run.summary, role, str(requested["name"])))
    if requested.get("revision"):
        yield Fact(said("html.revision"), [str(requested["revision"])])
    endpoints: Mapping[str, int] = observed.get("endpoints") or {}
    if known_endpoints := [one for one in sorted(endpoints, key=lambda one: -endpoints[one]) if one != "?"]:
        yield Fact(said("html.endpoint"), known_endpoints)
    variants: Sequence[Mapping[str, Any]] = observed.get("parameters") or ()
    if variants:
        yield Fact(said("html.sent"), [_sent(variant, len(variants)) for variant in variants])
    if weights := requested.get("weights") or requested.get("checkpoint"):
        yield Fact(said("html.weights"), [f"{name}: {digest}" for name, digest in weights.items()])


def _prompt(run: Reported) -> Iterator[Fact]:
    if (control := run.summary.control) is not None:
        yield Fact(said("html.fact.control"), [said(f"control.{control}")])
    yield from _named(run.summary.prompt, _PROMPT)
    if by := converters(run.summary):
        yield Fact(said("html.fact.converter"), by)


def _sent(variant: Mapping[str, Any], variants: int) -> Said | str:
    sent = ", ".join(f"{name} {_value(value)}" for name, value in variant["sent"].items())
    shown: Said | str = sent or said("html.nothing_sent")
    if variants == 1:
        return shown
    return said("html.times", what=shown, count=numbers.count(variant["replies"]))


def _named(facts: Mapping[str, Any], names: Sequence[str]) -> Iterator[Fact]:
    for name in names:
        if (value := facts.get(name)) is not None:
            yield Fact(known(f"html.fact.{name}", name), [_value(value)])


def _data(manifest: Mapping[str, Any]) -> Iterator[Fact]:
    data: Mapping[str, Any] = manifest.get("dataset") or {}
    selection: Mapping[str, Any] = manifest.get("selection") or {}
    yield from _named(data, ("root", "digest"))
    if tasks := selection.get("tasks"):
        yield Fact(said("html.fact.tasks"), [", ".join(map(str, tasks))])
    yield from _named(selection, ("limit", "shuffle", "seed", "shard", "missing_shards"))


def _run(manifest: Mapping[str, Any]) -> Iterator[Fact]:
    yield from _named(manifest, ("run_id", "package_version"))


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
