"""A local copy of the data set -> the samples that a run evaluates.

::

    loading      load(): metadata, records, selection
    ├── metadata     Chat_meta.json read, its records made into samples
    ├── selection    tasks, shuffle, limit, shard
    └── places       where clips really lie
"""

from otoscope.dataset.loading import Dataset, load
from otoscope.dataset.metadata import METADATA, find_root, read_records, to_sample
from otoscope.dataset.places import outside_root
from otoscope.dataset.selection import shuffled_clips

__all__ = [
    "METADATA",
    "Dataset",
    "find_root",
    "load",
    "outside_root",
    "read_records",
    "shuffled_clips",
    "to_sample",
]
