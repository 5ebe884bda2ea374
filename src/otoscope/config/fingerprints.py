"""What answers and verdicts depend on: compared when a run is continued."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from otoscope.config.audio_policy import AS_IS
from otoscope.config.settings import FunctionSettings, LocalSettings, Settings
from otoscope.errors import ConfigError, did_you_mean

URL_FIELDS = ("model.api_url", "judge.api_url")
_WAIVABLE = (*URL_FIELDS, "model.source_sha256", "judge.source_sha256")
"""The only differences that ``--allow-changed`` can wave through: a restarted server has another host, and a
file of Python may have been changed where it does not matter."""
_REVISED = ("api_url", "source_sha256")
"""What does not count where both sides name the same revision: then that is the model's identity."""

_UNSAID = {"prompt.audio_policy": AS_IS}
"""What a value is that a run's fingerprint does not name."""


def fingerprint(
    settings: Settings,
    *,
    judge_prompt_sha256: str,
    parser_version: int,
    weights: Mapping[str, Mapping[str, str]] | None = None,
) -> dict[str, Any]:
    """Return the requested values that answers and verdicts depend on: compared, by name, on resume.

    ``weights`` are the SHA-256 of the files behind each embedded model, by that model's name.
    """
    weights = weights or {}
    model, prompt, judge = settings.model, settings.prompt, settings.judge
    requested: dict[str, Any] = {
        "model": model.identity(weights),
        "prompt": {
            "template": prompt.template,
            "system": prompt.system,
            "part_order": prompt.part_order,
            # What runs here is handed its clips.
            "audio_part": None if isinstance(model, (FunctionSettings, LocalSettings)) else prompt.audio_part,
            "answer_filter": prompt.answer_filter,
            "audio_policy": str(settings.audio.policy),
            "control": settings.audio.control,
        },
        "judge": None,
    }
    if judge is not None:
        requested["judge"] = {
            **judge.endpoint.identity(weights),
            "protocol": judge.protocol,
            "do_swap": judge.swap,
            "prompt_sha256": judge_prompt_sha256,
            "parser_version": parser_version,
        }
    return requested


def changed_fields(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return ``{"model.name": (before, now), ...}`` for every requested value that differs.

    A part that one side lacks (a run made without a judge) does not differ. Neither URL nor source count
    where both sides name the same revision: then that is the model's identity.
    """
    changes: dict[str, tuple[Any, Any]] = {}
    for part in ("model", "prompt", "judge"):
        old, new = before.get(part), now.get(part)
        if not old or not new:
            continue
        same_revision = old.get("revision") is not None and old.get("revision") == new.get("revision")
        for name in sorted({*old, *new}):
            unsaid = _UNSAID.get(f"{part}.{name}")
            was, is_now = (side.get(name, unsaid) for side in (old, new))
            if (
                was != is_now
                and not (name in _REVISED and same_revision)
                and not _says_nothing(name, old, new)
            ):
                changes[f"{part}.{name}"] = (was, is_now)
    return changes


def _says_nothing(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether a difference is none: a local model is its weights, and a dry run does not look for those."""
    if name == "checkpoint":
        return "checkpoint" in new and new["checkpoint"] is None
    return name == "revision" and bool(old.get("checkpoint")) and "checkpoint" in new


def allowed_changes(names: Iterable[str]) -> tuple[str, ...]:
    """Return the differences that a user waves through; only those of ``_WAIVABLE`` can be."""
    for name in names:
        if name not in _WAIVABLE:
            raise ConfigError(
                f"--allow-changed: {name!r} cannot be waved through{did_you_mean(name, _WAIVABLE)}; "
                f"only {', '.join(_WAIVABLE)} can, since anything else changes what is measured"
            )
    return tuple(names)
