"""The files that lie in the data set's folders, whether a record names them or not."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from otoscope.records import Sample


@dataclass(frozen=True)
class Folder:
    """One folder below ``Chat/``: its files' paths from the folder on, hidden ones left out."""

    name: str
    files: tuple[str, ...]

    def alike(self, path: str) -> str | None:
        """Return the file that differs only in case or Unicode form, where there is one."""
        found = self._folded.get(_folded(path))
        return None if found == path else found

    @cached_property
    def _folded(self) -> dict[str, str]:
        return {_folded(name): name for name in self.files}


def folder_name(sample: Sample) -> str:
    """Return the name of a sample's folder below ``Chat/``."""
    return f"{sample.task}_{sample.dataset}"


def list_folder(root: Path, name: str) -> Folder:
    """Return what lies in a folder, nothing where it is not there or cannot be read."""
    top = os.path.join(root, "Chat", name)  # noqa: PTH118 (a thousand of them)
    files = [
        os.path.normpath(os.path.join(os.path.relpath(place, top), file))  # noqa: PTH118
        for place, _, names in os.walk(top)
        for file in names
        if not file.startswith(".")
    ]
    return Folder(name, tuple(sorted(files)))


def unnamed(folder: Folder, samples: Iterable[Sample]) -> list[str]:
    """Return the folder's files that none of the samples names."""
    named = {os.path.normpath(sample.path) for sample in samples if folder_name(sample) == folder.name}
    return [file for file in folder.files if file not in named]


def _folded(path: str) -> str:
    return unicodedata.normalize("NFC", path).casefold()
