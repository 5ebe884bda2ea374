"""The data set of a run: the folder that was named, or what a hub has of it."""

from __future__ import annotations

from otoscope import dataset
from otoscope.config import DataSettings, SelectionSettings
from otoscope.dataset import Dataset
from otoscope.errors import DatasetError


def obtain(data: DataSettings, selection: SelectionSettings) -> Dataset:
    """Return the chosen samples. It blocks. Raises ``DatasetError``."""
    if data.root is None:
        raise DatasetError("no data: give the folder that contains Chat/ with --data PATH")
    return dataset.load(data.root, selection)
