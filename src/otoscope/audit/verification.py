"""Everything that a run needs, looked at before it starts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from otoscope.audio import file_sha256
from otoscope.audit.clips import Inspection, inspect
from otoscope.audit.findings import Finding, Kind
from otoscope.audit.folders import Folder, folder_name, list_folder, unnamed
from otoscope.audit.survey import Survey, survey
from otoscope.audit.threads import Progress, in_threads
from otoscope.benchmark import TASKS
from otoscope.config import SelectionSettings
from otoscope.dataset import outside_root
from otoscope.records import Json, Sample

FORMAT = 1
"""Of what :meth:`Verification.to_json` returns."""

_NOT_THERE = frozenset({Kind.MISSING, Kind.OUTSIDE_ROOT})


@dataclass(slots=True)
class Row:
    """What one task, one source folder, or all of it should hold, and does."""

    expected: int | None = None
    """Samples in the full benchmark; ``None`` where that is not known, or only a part was asked for."""
    samples: int = 0
    """Samples that the metadata name."""
    clips: int = 0
    """Files that these samples need."""
    found: int = 0
    """Of those, how many are there."""
    usable: int = 0
    """Of those, how many can be used whole."""

    def to_json(self) -> Json:
        """Return the form that machines read."""
        return {
            "expected": self.expected,
            "samples": self.samples,
            "clips": self.clips,
            "found": self.found,
            "usable": self.usable,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The outcome. ``seconds`` of audio were decoded, of ``size`` bytes."""

    selection: SelectionSettings
    total: Row
    tasks: Mapping[str, Row]
    folders: Mapping[tuple[str, str], Row]
    """By task and source."""
    findings: tuple[Finding, ...]
    """In the order of their kinds."""
    size: int
    seconds: float
    descriptions_converted: int
    shared: int = 0
    """Clips whose bytes more than one task uses under one name, as the benchmark does."""

    @property
    def counts(self) -> dict[Kind, int]:
        """Number of findings of each kind that there are."""
        counted = Counter(finding.kind for finding in self.findings)
        return {kind: counted[kind] for kind in Kind if kind in counted}

    @property
    def samples_lost(self) -> int:
        """Samples and records that a finding loses or falsifies."""
        failing = [finding for finding in self.findings if finding.kind.fails]
        keys = {key for finding in failing for key in finding.keys}
        return len(keys) + sum(finding.kind is Kind.BAD_RECORD for finding in failing)

    def failed(self, *, strict: bool = False) -> bool:
        """Return whether anything loses or falsifies a sample; ``strict`` counts warnings as well."""
        return any(strict or kind.fails for kind in self.counts)

    def to_json(self) -> Json:
        """Return the form that machines read."""
        folders: dict[str, Json] = defaultdict(dict)
        for (task, source), row in self.folders.items():
            folders[task][source] = row.to_json()
        return {
            "format": FORMAT,
            "ok": not self.failed(),
            "selection": {
                "tasks": list(self.selection.tasks),
                "limit": self.selection.limit,
                "shuffle": self.selection.shuffle,
                "seed": self.selection.seed,
            },
            "total": self.total.to_json(),
            "tasks": {task: {**row.to_json(), "datasets": folders[task]} for task, row in self.tasks.items()},
            "samples_lost": self.samples_lost,
            "bytes": self.size,
            "seconds": round(self.seconds, 3),
            "descriptions_converted": self.descriptions_converted,
            "shared_clips": self.shared,
            "counts": {kind.value: count for kind, count in self.counts.items()},
            "findings": [finding.to_json() for finding in self.findings],
        }


@dataclass(slots=True)
class _Clip:
    """One file, with the samples that need it."""

    path: str
    samples: list[Sample] = field(default_factory=list)
    size: int = 0
    compared: bool = False
    """Whether another clip is as large, so that its bytes may be the same."""
    inspection: Inspection = field(default_factory=Inspection)
    sha256: str | None = None

    @property
    def name(self) -> tuple[str, str]:
        """What it is called: one name in two tasks' folders is one clip."""
        return self.samples[0].dataset, self.samples[0].path

    @property
    def place(self) -> str:
        """Where it lies, from the root on."""
        return f"Chat/{folder_name(self.samples[0])}/{self.samples[0].path}"


def verify(
    root: Path,
    selection: SelectionSettings,
    *,
    follow_links: bool = False,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> Verification:
    """Look at every record, and decode every clip that the selection needs, whole.

    ``follow_links`` also takes clips behind links that leave the root. It blocks, with several threads.
    Raises ``DatasetError`` where the metadata cannot be read at all; everything else is a finding.
    """
    told = survey(root, selection)
    clips = _clips(told.chosen)
    folders = {name: list_folder(told.root, name) for name in _folder_names(told, selection)}
    total = sum(clip.size for clip in clips)
    on_progress(Progress(0, len(clips), 0, total))
    look = partial(_look, root=None if follow_links else told.root)
    done = 0
    for number, clip in enumerate(in_threads(look, clips), start=1):
        done += clip.size
        on_progress(Progress(number, len(clips), done, total))
    findings = [
        *told.findings,
        *_clip_findings(clips, folders),
        *_same_bytes(clips),
        *_unnamed(folders.values(), told.samples),
    ]
    order = list(Kind)
    findings.sort(key=lambda finding: (order.index(finding.kind), finding.path or "", finding.keys))
    tasks, sources = _rows(clips, told, selection)
    return Verification(
        selection=selection,
        total=_sum(tasks.values()),
        tasks=tasks,
        folders=sources,
        findings=tuple(findings),
        size=sum(clip.size for clip in clips if _is_there(clip)),
        seconds=sum(clip.inspection.seconds for clip in clips),
        descriptions_converted=told.descriptions_converted,
        shared=_shared(clips),
    )


def _clips(samples: Iterable[Sample]) -> list[_Clip]:
    clips: dict[str, _Clip] = {}
    for sample in samples:
        clips.setdefault(sample.audio_path, _Clip(sample.audio_path)).samples.append(sample)
    by_size: dict[int, list[_Clip]] = defaultdict(list)
    for clip in clips.values():
        try:
            clip.size = Path(clip.path).stat().st_size
        except OSError:
            continue
        by_size[clip.size].append(clip)
    for same in by_size.values():
        for clip in same:
            clip.compared = len(same) > 1
    return list(clips.values())


def _look(clip: _Clip, root: Path | None) -> _Clip:
    if outside_root(clip.samples[0], root) is not None:
        clip.inspection.add(Kind.OUTSIDE_ROOT, "is or lies behind a link that leaves the data set; not read")
        clip.size = 0
        return clip
    clip.inspection = inspect(clip.path)
    if clip.compared and clip.inspection.format is not None:
        clip.sha256 = file_sha256(clip.path)
    return clip


def _clip_findings(clips: Iterable[_Clip], folders: Mapping[str, Folder]) -> Iterator[Finding]:
    for clip in clips:
        for kind, detail in clip.inspection.troubles:
            first = clip.samples[0]
            folder = folders.get(folder_name(first))
            if kind is Kind.MISSING and folder and (alike := folder.alike(first.path)):
                detail = f"but there is {alike!a}, whose name differs in case or Unicode form"
            yield _finding(kind, clip, detail)


def _same_bytes(clips: Iterable[_Clip]) -> Iterator[Finding]:
    groups: dict[str, list[_Clip]] = defaultdict(list)
    for clip in clips:
        if clip.sha256 is not None:
            groups[clip.sha256].append(clip)
    for group in groups.values():
        if len({clip.name for clip in group}) > 1:
            first, *others = sorted(group, key=lambda clip: clip.place)
            keys = tuple(sample.key for clip in (first, *others) for sample in clip.samples)
            same = ", ".join(clip.place for clip in others)
            yield _finding(Kind.DUPLICATE_CLIP, first, f"has the same bytes as {same}", keys)


def _finding(kind: Kind, clip: _Clip, detail: str, keys: tuple[str, ...] | None = None) -> Finding:
    return Finding(
        kind=kind,
        task=clip.samples[0].task,
        dataset=clip.samples[0].dataset,
        path=clip.place,
        keys=tuple(sample.key for sample in clip.samples) if keys is None else keys,
        detail=detail,
    )


def _unnamed(folders: Iterable[Folder], samples: Sequence[Sample]) -> Iterator[Finding]:
    known = {folder_name(sample): sample for sample in samples}
    for folder in folders:
        files = unnamed(folder, samples)
        if files:
            which = "file" if len(files) == 1 else "files"
            yield Finding(
                kind=Kind.UNNAMED_FILES,
                task=known[folder.name].task,
                dataset=known[folder.name].dataset,
                path=f"Chat/{folder.name}",
                detail=f"{len(files):,} {which} that no record names, such as {files[0]!a}",
            )


def _folder_names(told: Survey, selection: SelectionSettings) -> list[str]:
    """Return the folders of the chosen tasks that the metadata name."""
    return list(
        dict.fromkeys(folder_name(sample) for sample in told.samples if sample.task in selection.tasks)
    )


def _rows(
    clips: Iterable[_Clip], told: Survey, selection: SelectionSettings
) -> tuple[dict[str, Row], dict[tuple[str, str], Row]]:
    whole = selection.limit is None
    tasks = {task: Row(TASKS[task].samples if whole else None) for task in selection.tasks}
    sources = {(task, source): Row() for task in selection.tasks for source in TASKS[task].folders}
    for sample in told.chosen:
        for row in (tasks[sample.task], sources.setdefault((sample.task, sample.dataset), Row())):
            row.samples += 1
    for clip in clips:
        first = clip.samples[0]
        usable = not any(kind.fails for kind, _ in clip.inspection.troubles)
        for row in (tasks[first.task], sources[first.task, first.dataset]):
            row.clips += 1
            row.found += _is_there(clip)
            row.usable += usable
    # A data set with sources of its own has none of the benchmark's: their rows would say nothing.
    own = {
        task
        for task, row in tasks.items()
        if row.samples and not any(sources[task, source].samples for source in TASKS[task].folders)
    }
    return tasks, {key: row for key, row in sources.items() if row.samples or key[0] not in own}


def _sum(rows: Iterable[Row]) -> Row:
    total = Row(0)
    for row in rows:
        unknown = total.expected is None or row.expected is None
        total.expected = None if unknown else (total.expected or 0) + (row.expected or 0)
        total.samples += row.samples
        total.clips += row.clips
        total.found += row.found
        total.usable += row.usable
    return total


def _is_there(clip: _Clip) -> bool:
    return not any(kind in _NOT_THERE for kind, _ in clip.inspection.troubles)


def _shared(clips: Iterable[_Clip]) -> int:
    tasks: dict[tuple[tuple[str, str], str], set[str]] = defaultdict(set)
    for clip in clips:
        if clip.sha256 is not None:
            tasks[clip.name, clip.sha256].add(clip.samples[0].task)
    return sum(len(used) > 1 for used in tasks.values())
