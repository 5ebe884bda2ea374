"""What is said of a run that cannot go on as it was asked to: every difference, and the commands that can."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from otoscope.config import (
    URL_FIELDS,
    EndpointSettings,
    FunctionSettings,
    JudgeSettings,
    LocalSettings,
    ModelSettings,
    Settings,
)
from otoscope.shell import shell_command

Changes = Mapping[str, tuple[Any, Any]]
"""By field of the fingerprint (``model.name``): what it was, and what it would be now."""

SAME_JUDGE = frozenset({"judge.api_url", "judge.prompt_sha256", "judge.parser_version", "judge.weights"})
"""Differences that may lie between two times that the same judge is asked."""
_NO_SETTING = frozenset({"judge.prompt_sha256", "judge.parser_version", "judge.weights", "model.weights"})
"""What comes with the version of Otoscope: no flag gives the old values."""
_NEW_RUN = (
    "For the new values start a new run: the command that made this one, with them and another --run-dir"
)
_ABSENT = "..."
"""Stands in a command for what is not stored."""


def refusal(
    path: Path, before: Mapping[str, Any], settings: Settings, changes: Changes, *, answers_too: bool
) -> str:
    """Return the message: each field that differs and is not allowed to, both values, and the ways on.

    ``before`` is the run's fingerprint; ``changes`` are all differences from it. ``answers_too`` is whether
    answers were to be asked for, or verdicts alone. Commands hold no key: ``...`` stands for header values,
    and ``***`` for secrets in a URL.
    """
    way = _Way(path, before, settings, changes, answers_too=answers_too)
    return "\n".join(
        [
            f"{path}: this run was made with other settings that its numbers depend on:",
            *(f"  {name}: was {old!r}, now {new!r}" for name, (old, new) in way.refused.items()),
            *way.told(),
            "(Keys and header values are not stored: give them as before)",
        ]
    )


class _Way:
    """The ways on from one refusal."""

    def __init__(
        self,
        path: Path,
        before: Mapping[str, Any],
        settings: Settings,
        changes: Changes,
        *,
        answers_too: bool,
    ) -> None:
        allowed = settings.run.allow_changed
        self.refused = {name: change for name, change in changes.items() if name not in allowed}
        self._path = path
        self._model, self._judge = (before.get(role) or {} for role in ("model", "judge"))
        self._settings = settings
        self._changes = changes
        self._answers_too = answers_too

    def told(self) -> Iterator[str]:
        """Yield the lines below the fields."""
        if self.refused.keys() <= set(URL_FIELDS):
            yield from self._same_behind_another_address()
        elif self.refused.keys() == {"model.source_sha256"}:
            yield from self._same_in_another_form()
        elif all(name.startswith("judge.") for name in self.refused):
            yield "A run has one judge: verdicts of two would be mixed."
            yield from self._old_values()
            yield from self._copy_for_the_new_judge()
        else:
            yield from self._old_values()
            yield _NEW_RUN

    def _same_behind_another_address(self) -> Iterator[str]:
        moved = [name for name in self._changes if name in URL_FIELDS]
        roles = [name.partition(".")[0] for name in moved]
        allowed = [word for name in moved for word in ("--allow-changed", name)]
        yield (
            f"If it is the same {' and '.join(roles)} behind another address, add {' '.join(allowed)} to the "
            "command, or go on with what the run was for:"
        )
        yield self._going_on({name: self._changes[name][1] for name in moved}, *allowed)
        revisions = " and ".join(f"--{role}-revision" for role in roles)
        yield f"(With {revisions} the revision is the identity, and the URL is free)"

    def _same_in_another_form(self) -> Iterator[str]:
        moved = {name: new for name, (_, new) in self._changes.items() if name in URL_FIELDS}
        allowed = [word for name in self._changes for word in ("--allow-changed", name)]
        yield "The file that the model lies in was changed. If none of its answers changes with that:"
        yield self._going_on(moved, *allowed)
        yield "(With --model-revision the revision is the identity, and the file may change)"
        yield _NEW_RUN

    def _old_values(self) -> Iterator[str]:
        lacking = sorted(_NO_SETTING & self.refused.keys())
        if "model.source_sha256" in self.refused:
            yield "For the old values the file that the model lies in would have to be as it was."
            return
        if "model.checkpoint" in self.refused:
            yield from self._old_checkpoint()
            return
        if lacking:
            yield f"{', '.join(lacking)}: only another version of Otoscope goes on with the old values."
            return
        yield "To go on with the old values:"
        yield self._going_on({name: old for name, (old, _) in self._changes.items() if name in URL_FIELDS})

    def _old_checkpoint(self) -> Iterator[str]:
        """Yield how to go on with what a local model was."""
        was = self._changes["model.checkpoint"][0] or {}
        if commit := was.get("commit"):
            yield "To go on with the old weights:"
            yield self._going_on({}, "--model-revision", str(commit))
        else:
            yield "model.checkpoint: the run goes on with the model's files as they were; these are others."

    def _copy_for_the_new_judge(self) -> Iterator[str]:
        judge = self._settings.judge
        if judge is None or not self._can_be_asked_anew(judge):
            yield _NEW_RUN
            return
        words = ["otoscope", "judge", str(self._path), "--judge-model-args", json.dumps(self._asked(judge))]
        words += _provider("--judge-provider", judge.endpoint)
        words += ["--protocol", judge.protocol]
        words += [] if judge.swap else ["--no-swap"]
        if self.refused.keys() <= SAME_JUDGE:
            words += ["--run-dir", f"{self._path}--judged-anew"]
        yield "To have a copy of the answers judged with the new values:"
        yield f"  {shell_command(words)}"

    def _can_be_asked_anew(self, judge: JudgeSettings) -> bool:
        """Whether flags can take back all that is stored of the judge."""
        if self._changes.get("judge.do_swap") == (False, True):
            return False
        endpoint = judge.endpoint
        renamed = "judge.name" in self._changes
        body = endpoint.extra_body if isinstance(endpoint, EndpointSettings) else {}
        return renamed or set(self._judge.get("extra_body") or {}) <= set(body)

    def _asked(self, judge: JudgeSettings) -> dict[str, Any]:
        """Return what asks this judge, laid over what is stored of the run's."""
        endpoint = judge.endpoint
        if not isinstance(endpoint, EndpointSettings):
            return {"model_id": endpoint.name}
        taken_back = dict.fromkeys(self._judge.get("parameters") or {})
        asked: dict[str, Any] = {"model_id": endpoint.name, "api_url": endpoint.shown_url}
        if endpoint.revision or self._judge.get("revision"):
            asked["revision"] = endpoint.revision
        for name, value in (
            ("generation_config", {**taken_back, **endpoint.parameters}),
            ("extra_body", dict(endpoint.extra_body)),
            ("extra_headers", dict.fromkeys(endpoint.extra_headers, _ABSENT)),
        ):
            asked.update({name: value} if value else {})
        return asked

    def _going_on(self, urls: Mapping[str, Any], *more: str) -> str:
        """Return the command that goes on with this run by its stored settings, but for these URLs."""
        words = ["eval", "--use-cache", str(self._path)] if self._answers_too else ["judge", str(self._path)]
        if self._answers_too:
            if isinstance(model := self._settings.model, (FunctionSettings, LocalSettings)):
                words += model.words_again
            words += _provider("--provider", model)
            words += _url("--api-url", urls.get("model.api_url"), self._model)
            if names := self._model.get("extra_headers"):
                words += ["--extra-headers", json.dumps(dict.fromkeys(names, _ABSENT))]
        if self._settings.judge is None:
            words.append("--no-judge")
        else:
            words += _provider("--judge-provider", self._settings.judge.endpoint)
            words += _url("--judge-api-url", urls.get("judge.api_url"), self._judge)
            if names := self._judge.get("extra_headers"):
                words += ["--judge-model-args", json.dumps({"extra_headers": dict.fromkeys(names, _ABSENT)})]
        return f"  {shell_command(['otoscope', *words, *more])}"


def _provider(flag: str, endpoint: ModelSettings) -> list[str]:
    """Return the flag for whose key is used: no run keeps that."""
    name = endpoint.provider if isinstance(endpoint, EndpointSettings) else None
    return [flag, name] if name else []


def _url(flag: str, url: str | None, stored: Mapping[str, Any]) -> list[str]:
    """Return the flag for a URL that has to be said, or that holds a secret and so has to be said again."""
    known = stored.get("api_url") or ""
    said = url or (known if "***" in known else None)
    return [flag, said] if said else []
