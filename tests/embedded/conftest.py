"""The real models, loaded once. Needs the ``demo`` extra, and the weights of ``otoscope models fetch``."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from otoscope.llm import LocalModel

THREADS = 2


@pytest.fixture(scope="session")
def weights() -> Path:
    """Give the folder of fetched models."""
    folder = Path(os.environ.get("OTOSCOPE_CACHE", "~/.cache/otoscope")).expanduser() / "models"
    if not folder.is_dir():
        pytest.fail(f"{folder} is missing: run `otoscope models fetch` first")
    return folder


@pytest.fixture(scope="session")
def gguf(weights: Path) -> Path:
    """Give the file of the language model."""
    return next(weights.glob("*/*.gguf"))


@pytest.fixture(scope="session")
def recogniser(weights: Path) -> Path:
    """Give the folder of the speech recogniser."""
    return next(weights.glob("*/model.bin")).parent


@pytest.fixture(scope="session")
def local_model(gguf: Path) -> Iterator[LocalModel]:
    """Give the language model, which all tests share."""
    # Here, not above: the tests are collected where the runtime is not installed, too.
    from otoscope.gguf import Gguf

    model = LocalModel(gguf.stem, partial(Gguf, gguf, threads=THREADS))
    yield model
    asyncio.run(model.close())
