"""The data set in numbers: what the benchmark's page tells, and what it leaves out.

Everything is counted per sample: a clip with three questions is three times in it, as it is three times sent.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import soundfile

from otoscope.audio import Header, measure
from otoscope.audit.survey import survey
from otoscope.audit.threads import Progress, in_threads
from otoscope.config import SelectionSettings
from otoscope.dataset import outside_root
from otoscope.records import Failure, Json, Sample

_Value = TypeVar("_Value", str, int)

FORMAT = 1
"""Of what :meth:`Description.to_json` returns."""
LIMITS = (10, 20, 30, 60)
"""Seconds. 30 is what many servers and audio encoders cut at."""
EXCERPT_SECONDS = 2.0
"""From the middle of a clip: what its loudness is estimated from, unless all of it is decoded."""

_BLOCK = 1 << 16
_NAMES = {"WAVEX": "wav", "RF64": "wav"}


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of texts in characters (Unicode code points)."""

    mean: float
    least: int
    most: int
    deviation: float
    """The sample's standard deviation; 0 of a single text."""

    @classmethod
    def of(cls, texts: Sequence[str]) -> Lengths:
        """Measure some texts, at least one."""
        counts = [len(text) for text in texts]
        deviation = statistics.stdev(counts) if len(counts) > 1 else 0.0
        return cls(statistics.mean(counts), min(counts), max(counts), deviation)

    def to_json(self) -> Json:
        """Return the form that machines read, rounded as the benchmark's page is."""
        return {
            "mean": round(self.mean, 2),
            "min": self.least,
            "max": self.most,
            "std": round(self.deviation, 2),
        }


@dataclass(frozen=True, slots=True)
class Durations:
    """Durations in seconds, by the clips' headers."""

    least: float
    mean: float
    median: float
    p95: float
    most: float
    total: float
    histogram: tuple[int, ...]
    """Samples up to each of ``LIMITS``, and above the last."""

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Durations | None:
        """Return what some durations come to; ``None`` where there are none."""
        if not seconds:
            return None
        counted = Counter(sum(one > limit for limit in LIMITS) for one in seconds)
        return cls(
            min(seconds),
            statistics.fmean(seconds),
            statistics.median(seconds),
            _percentile(seconds, 95),
            max(seconds),
            math.fsum(seconds),
            tuple(counted[index] for index in range(len(LIMITS) + 1)),
        )

    @property
    def over_30_seconds(self) -> int:
        """Samples longer than 30 s."""
        return sum(self.histogram[LIMITS.index(30) + 1 :])

    def to_json(self) -> Json:
        """Return the form that machines read."""
        names = [f"up_to_{limit}" for limit in LIMITS] + [f"over_{LIMITS[-1]}"]
        return {
            "min": round(self.least, 2),
            "mean": round(self.mean, 2),
            "median": round(self.median, 2),
            "p95": round(self.p95, 2),
            "max": round(self.most, 2),
            "total": round(self.total, 2),
            "histogram": dict(zip(names, self.histogram, strict=True)),
        }


@dataclass(frozen=True, slots=True)
class Loudness:
    """RMS levels in dBFS: 20 log10 of the root mean square over all channels, full scale being 1."""

    quietest: float | None
    median: float | None
    loudest: float | None
    silent: int
    """Samples in which nothing was heard; they are in none of the levels."""

    @classmethod
    def of(cls, levels: Sequence[float]) -> Loudness | None:
        """Return what some levels come to, minus infinity among them; ``None`` where there are none."""
        if not levels:
            return None
        heard = [level for level in levels if level > -math.inf]
        silent = len(levels) - len(heard)
        if not heard:
            return cls(None, None, None, silent)
        return cls(min(heard), statistics.median(heard), max(heard), silent)

    def to_json(self) -> Json:
        """Return the form that machines read."""
        levels = {"min": self.quietest, "median": self.median, "max": self.loudest}
        rounded = {name: None if level is None else round(level, 1) for name, level in levels.items()}
        return {**rounded, "silent": self.silent}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The numbers of one task, or of all of them."""

    samples: int
    questions: Lengths
    targets: Lengths
    """Of the reference answers."""
    clips: int
    """Different files."""
    unusable: int
    """Samples whose clip has no header that can be read; they are in none of the numbers below."""
    formats: Mapping[str, int]
    rates: Mapping[int, int]
    channels: Mapping[int, int]
    durations: Durations | None
    loudness: Loudness | None

    def to_json(self) -> Json:
        """Return the form that machines read."""
        return {
            "samples": self.samples,
            "question_length": self.questions.to_json(),
            "target_length": self.targets.to_json(),
            "audio": {
                "total_files": self.samples,
                "per_sample": {"min": 1, "max": 1, "mean": 1},
                "different_files": self.clips,
                "unusable": self.unusable,
                "formats": dict(self.formats),
                "sample_rates": {str(rate): count for rate, count in self.rates.items()},
                "channels": {str(count): samples for count, samples in self.channels.items()},
                "duration": None if self.durations is None else self.durations.to_json(),
                "rms_dbfs": None if self.loudness is None else self.loudness.to_json(),
            },
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """All numbers. ``size`` is the bytes of the different files."""

    selection: SelectionSettings
    total: Part
    tasks: Mapping[str, Part]
    """Of the tasks that have samples."""
    size: int
    bad_records: int
    """Records that cannot be used; they are in none of the numbers."""
    whole: bool
    """Whether the levels are over whole clips, not over excerpts."""

    def to_json(self) -> Json:
        """Return the form that machines read."""
        return {
            "format": FORMAT,
            "selection": {
                "tasks": list(self.selection.tasks),
                "limit": self.selection.limit,
                "shuffle": self.selection.shuffle,
                "seed": self.selection.seed,
            },
            **self.total.to_json(),
            "bytes": self.size,
            "bad_records": self.bad_records,
            "rms_dbfs_over": "whole clips" if self.whole else f"{EXCERPT_SECONDS:g} s from the middle",
            "tasks": {task: part.to_json() for task, part in self.tasks.items()},
        }


@dataclass(frozen=True, slots=True)
class _Clip:
    path: str
    header: Header | None
    level: float | None


def describe(
    root: Path,
    selection: SelectionSettings,
    *,
    whole: bool = False,
    follow_links: bool = False,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> Description:
    """Measure the chosen samples: texts, headers, and levels of excerpts or, with ``whole``, of whole clips.

    It blocks, with several threads. Raises ``DatasetError`` where the metadata cannot be read or have no
    sample of the chosen tasks.
    """
    told = survey(root, selection, needed=True)
    firsts = {sample.audio_path: sample for sample in reversed(told.chosen)}
    look = partial(_look, root=None if follow_links else told.root, whole=whole)
    clips: dict[str, _Clip] = {}
    size = 0
    on_progress(Progress(0, len(firsts), 0, 0))
    for clip in in_threads(look, firsts.values()):
        clips[clip.path] = clip
        size += 0 if clip.header is None else clip.header.size
        on_progress(Progress(len(clips), len(firsts), size, 0))
    by_task: dict[str, list[Sample]] = defaultdict(list)
    for sample in told.chosen:
        by_task[sample.task].append(sample)
    return Description(
        selection=selection,
        total=_part(told.chosen, clips),
        tasks={task: _part(samples, clips) for task, samples in by_task.items()},
        size=size,
        bad_records=told.bad_records,
        whole=whole,
    )


def _part(samples: Sequence[Sample], clips: Mapping[str, _Clip]) -> Part:
    used = [clips[sample.audio_path] for sample in samples]
    headers = [clip.header for clip in used if clip.header is not None]
    formats = (_NAMES.get(header.format, header.format.lower()) for header in headers)
    return Part(
        samples=len(samples),
        questions=Lengths.of([sample.question for sample in samples]),
        targets=Lengths.of([sample.reference for sample in samples]),
        clips=len({clip.path for clip in used}),
        unusable=len(used) - len(headers),
        formats=_counted(formats),
        rates=_counted(header.rate for header in headers),
        channels=_counted(header.channels for header in headers),
        durations=Durations.of([header.seconds for header in headers]),
        loudness=Loudness.of([clip.level for clip in used if clip.level is not None]),
    )


def _counted(values: Iterable[_Value]) -> dict[_Value, int]:
    counts = Counter(values)
    return {value: counts[value] for value in sorted(counts)}


def _percentile(values: Sequence[float], percent: int) -> float:
    """Return a percentile by linear interpolation between the values next to it."""
    if len(values) == 1:
        return values[0]
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def _look(sample: Sample, root: Path | None, *, whole: bool) -> _Clip:
    path = sample.audio_path
    if outside_root(sample, root) is not None:
        return _Clip(path, None, None)
    header = measure(path)
    if isinstance(header, Failure):
        return _Clip(path, None, None)
    return _Clip(path, header, _level(path, whole=whole))


def _level(path: str, *, whole: bool) -> float | None:
    """Return the RMS level in dBFS, ``None`` where nothing can be decoded there."""
    try:
        with (
            Path(path).open("rb", buffering=0) as file,
            soundfile.SoundFile(file.fileno(), closefd=False) as sound,
        ):
            wanted = sound.frames
            if not whole and wanted > (excerpt := int(EXCERPT_SECONDS * sound.samplerate)):
                sound.seek((wanted - excerpt) // 2)
                wanted = excerpt
            buffer = np.empty((max(1, _BLOCK // sound.channels), sound.channels), np.float32)
            power, count = 0.0, 0
            while count < wanted and len(block := sound.read(wanted - count, out=buffer)):
                flat = block.ravel()
                power += float(np.dot(flat, flat))
                count += len(block)
    except (OSError, soundfile.SoundFileError):
        return None
    if count == 0:
        return None
    mean = power / (count * buffer.shape[1])
    return 10 * math.log10(mean) if mean > 0 else -math.inf
