"""What a data set on disk really holds: its damage, its numbers, one sample of it. It prints nothing.

::

    verification    verify(): every record looked at and every clip decoded -> findings
    ├── survey      the metadata's records, bad ones included
    ├── folders     the files that lie in the folders
    ├── clips       one clip decoded from its first to its last frame
    │   ├── riff    what the chunks of a wav say of its length
    │   └── mpeg    the frames of an mp3, counted
    └── findings    the kinds of findings, and which of them lose or falsify samples
    description     describe(): lengths of texts, durations, rates, channels, loudness
    example         one sample in the form that the benchmark's page shows
    threads         work on many files at once
"""

from otoscope.audit.clips import Inspection, inspect
from otoscope.audit.description import LIMITS, Description, Durations, Lengths, Loudness, Part, describe
from otoscope.audit.example import example, find_sample
from otoscope.audit.findings import Finding, Kind
from otoscope.audit.survey import Survey, survey
from otoscope.audit.threads import Progress
from otoscope.audit.verification import Row, Verification, verify

__all__ = [
    "LIMITS",
    "Description",
    "Durations",
    "Finding",
    "Inspection",
    "Kind",
    "Lengths",
    "Loudness",
    "Part",
    "Progress",
    "Row",
    "Survey",
    "Verification",
    "describe",
    "example",
    "find_sample",
    "inspect",
    "survey",
    "verify",
]
