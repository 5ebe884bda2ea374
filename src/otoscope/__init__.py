"""Otoscope evaluates large audio-language models on AIR-Bench Chat.

The public names are loaded when they are first used, so that ``import otoscope`` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from otoscope._version import __version__

if TYPE_CHECKING:
    from otoscope.audio.heard import AudioClip
    from otoscope.backends.python_model import AudioQuestion
    from otoscope.config import TaskConfig
    from otoscope.errors import OtoscopeError
    from otoscope.evaluation import evaluate, evaluate_async, run_task
    from otoscope.judging import judge_runs
    from otoscope.merging import merge_runs
    from otoscope.records import Answer, Event, Failure, Order, Outcome, Reply, Sample, Verdict
    from otoscope.runs import Run, load_run
    from otoscope.scoring import Summary

__all__ = [
    "Answer",
    "AudioClip",
    "AudioQuestion",
    "Event",
    "Failure",
    "Order",
    "OtoscopeError",
    "Outcome",
    "Reply",
    "Run",
    "Sample",
    "Summary",
    "TaskConfig",
    "Verdict",
    "__version__",
    "evaluate",
    "evaluate_async",
    "judge_runs",
    "load_run",
    "merge_runs",
    "run_task",
]

_HOMES = {
    "Answer": "otoscope.records",
    "AudioClip": "otoscope.audio.heard",
    "AudioQuestion": "otoscope.backends.python_model",
    "Event": "otoscope.records",
    "Failure": "otoscope.records",
    "Order": "otoscope.records",
    "Outcome": "otoscope.records",
    "Reply": "otoscope.records",
    "Sample": "otoscope.records",
    "Verdict": "otoscope.records",
    "OtoscopeError": "otoscope.errors",
    "Run": "otoscope.runs",
    "Summary": "otoscope.scoring",
    "TaskConfig": "otoscope.config",
    "evaluate": "otoscope.evaluation",
    "evaluate_async": "otoscope.evaluation",
    "judge_runs": "otoscope.judging",
    "load_run": "otoscope.runs",
    "merge_runs": "otoscope.merging",
    "run_task": "otoscope.evaluation",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
