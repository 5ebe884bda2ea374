"""A hub's copy of a data set: what its cache holds, and what the hub itself has.

The hubs' own libraries do the work, in a process of their own: they are heavy, they print, and a download
has to end at once when it is told to.

::

    caches            where a hub's cache may hold a data set
    process           HubProcess: the other process, as this one sees it
    __main__          the other process: requests in, events out, one JSON object a line
    └── fetching      patterns, batches, progress, what is missing and why
        ├── from_modelscope, from_huggingface    the two libraries behind one protocol
        └── troubles  what went wrong, for whoever reads it
"""

from otoscope.hub.caches import cached_roots
from otoscope.hub.process import HubProcess, Listed, NotFetched, UnreachableError, another_place

__all__ = ["HubProcess", "Listed", "NotFetched", "UnreachableError", "another_place", "cached_roots"]
