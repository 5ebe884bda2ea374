"""A file -> an AudioClip: what it really is, whether it can be used, and what is sent of it.

The format comes from the bytes, never from the name. What fulfils the audio policy travels as it is, byte for
byte. Functions here block; call them in a thread.

::

    loading      a clip under a policy, or silence of its length
    ├── header       what the bytes say of themselves
    ├── policy       what a policy does to one clip
    ├── conversion   decode, cut, mix down, resample, encode: block by block
    ├── cache        converted clips on disk, for the next run
    ├── held         clips in memory until they were sent, within a limit
    └── silence      a wav of zeros that is never held whole
    heard            a clip as a model written in Python hears it
"""

from otoscope.audio.cache import ConvertedClips
from otoscope.audio.header import Header, file_sha256, file_state, measure
from otoscope.audio.held import HeldClips
from otoscope.audio.loading import Loader, examine, load
from otoscope.audio.policy import Change, change_of, over_limit

__all__ = [
    "Change",
    "ConvertedClips",
    "Header",
    "HeldClips",
    "Loader",
    "change_of",
    "examine",
    "file_sha256",
    "file_state",
    "load",
    "measure",
    "over_limit",
]
