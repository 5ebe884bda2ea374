"""A local model behind the seam of models in Python: in this process, or in one of Ray's."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from otoscope.backends.python_model import Built, PythonModel, a_batch
from otoscope.config import LocalSettings, PromptSettings

RENDERED_PROMPT = "rendered_prompt.txt"
"""The file of a run that has the first prompt as a local model read it."""


def find(
    settings: LocalSettings, prompt: PromptSettings, run_path: Path | None, tell: Callable[[str], None]
) -> PythonModel:
    """Return the model that these settings, which are located, are about. Building it loads its weights.

    ``run_path`` is the run that keeps the first prompt; ``tell`` gets what a person should know.
    """

    def build() -> Built:
        # In the thread that builds it: this takes seconds, and the weights minutes.
        from otoscope.backends.transformers_model import TransformersModel

        model = TransformersModel(settings, prompt, tell, partial(_keep_prompt, run_path, tell))
        return Built(settings, model.answer_batch, a_batch)

    # Not replaceable: there is rarely room for the weights twice.
    return PythonModel(settings, build, batched=True, asynchronous=False, replaceable=False)


def find_in_worker(settings: LocalSettings, prompt: PromptSettings, run_path: Path | None) -> PythonModel:
    """Return the model as :func:`find` does; what a person should know is printed, which Ray passes on."""
    return find(settings, prompt, run_path, partial(print, file=sys.stderr, flush=True))


def _keep_prompt(run_path: Path | None, tell: Callable[[str], None], text: str) -> None:
    """Keep a prompt as the model reads it, where none was kept before."""
    if run_path is None or not run_path.is_dir():
        return  # on another machine, which has not the run's disk
    try:
        with (run_path / RENDERED_PROMPT).open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except FileExistsError:
        return
    except OSError as error:
        tell(f"{RENDERED_PROMPT} cannot be written ({error.strerror}); the run goes on")
