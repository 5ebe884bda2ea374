"""The process that tells a tracker of runs, as this one sees it."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from otoscope.children import module_command
from otoscope.config import environment_secrets
from otoscope.errors import ConfigError
from otoscope.records import Event, Notice
from otoscope.secrecy import forms, without
from otoscope.shell import shell_command

SECONDS = 120.0
"""How long a tracker may take at the end of an evaluation, and as long again for every further run."""
_LAST_WORDS = 300


@dataclass(frozen=True, slots=True)
class Tracked:
    """A run that a tracker was told of."""

    run: Path
    tracker: str
    where: str
    """Where it is to be seen."""
    with_page: bool
    """Whether the report went with it."""


@dataclass(frozen=True, slots=True)
class NotTracked:
    """A run that a tracker was not told of, or not in full."""

    run: Path
    tracker: str
    why: str

    @property
    def message(self) -> str:
        """What happened, and the command that does it later."""
        later = shell_command(["otoscope", "report", str(self.run), "--track", self.tracker])
        said = f"{self.run} was not logged in {self.tracker}: {self.why}"
        return f"{said}. It is stored; log it later with:\n  {later}"


def require(trackers: Sequence[str]) -> None:
    """Raise ``ConfigError`` where the library of a tracker is not installed; none is loaded."""
    for name in trackers:
        spec = importlib.util.find_spec(name)
        # A folder of that name is not it.
        if spec is None or spec.origin is None:
            raise ConfigError(f"--track {name} needs its library: pip install 'otoscope[{name}]'")


def track(
    runs: Sequence[Path],
    trackers: Sequence[str],
    environ: Mapping[str, str],
    *,
    scoring: str = "default",
    view: str = "full",
    page: str | None = None,
    seconds: float = SECONDS,
) -> list[Tracked | NotTracked]:
    """Tell each of the trackers of each of the runs, as they are stored; return what came of it.

    ``page`` is the name of the report in a run's folder: it goes with the run where it is up to date.
    ``seconds`` is how long that may take for each run. Blocks, and raises nothing.
    """
    told: list[Tracked | NotTracked] = []
    for tracker in trackers if runs else ():
        job = {
            "tracker": tracker,
            "runs": [str(run.absolute()) for run in runs],
            "scoring": scoring,
            "view": view,
            "page": page,
        }
        said, trouble = _carried_out(json.dumps(job), environ, seconds * len(runs))
        for run, line in zip(runs, [*said, *[None] * len(runs)], strict=False):
            match line:
                case {"where": str(where), "with_page": bool(with_page)}:
                    told.append(Tracked(run, tracker, where, with_page))
                case {"trouble": str(why)}:
                    told.append(NotTracked(run, tracker, why))
                case _:
                    told.append(NotTracked(run, tracker, trouble))
    return told


def track_and_tell(
    runs: Sequence[Path],
    trackers: Sequence[str],
    environ: Mapping[str, str],
    tell: Callable[[Event], None],
) -> None:
    """Tell trackers of runs at the end of an evaluation; trouble is a notice, and costs nothing else."""
    for one in track(runs, trackers, environ):
        if isinstance(one, NotTracked):
            tell(Notice(one.message))


def _carried_out(job: str, environ: Mapping[str, str], seconds: float) -> tuple[list[object], str]:
    """Have a job done by another process; return what it said of each run, and why it said no more."""
    try:
        process = subprocess.Popen(  # noqa: S603 (our own command)
            module_command("otoscope.tracking"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            env=dict(environ),
            # Ctrl-C at a terminal is for this process, which ends the other one.
            start_new_session=True,
        )
    except OSError as error:
        return [], str(error)
    try:
        said, complaints = process.communicate(job, timeout=seconds)
        trouble = f"the process for it ended (exit code {process.returncode}): {_last_words(complaints)}"
    except (subprocess.TimeoutExpired, KeyboardInterrupt) as error:
        process.kill()
        said, _ = process.communicate()
        stopped = isinstance(error, KeyboardInterrupt)
        trouble = "stopped" if stopped else f"that was not done within {seconds:g} s"
    secrets = forms(environment_secrets(environ))
    return [json.loads(line) for line in without(said, secrets).splitlines()], without(trouble, secrets)


def _last_words(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:_LAST_WORDS] if lines else "without a word"
