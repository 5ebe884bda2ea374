"""The data set of a run: the folder that was named, or what a hub has of it.

Metadata first, then only the clips that the chosen samples need. Whatever is missing, empty or of another
size than the hub's is fetched: that a folder is there says nothing.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from otoscope import dataset
from otoscope.config import DataSettings, HubSettings, SelectionSettings
from otoscope.dataset import METADATA, Dataset
from otoscope.errors import DatasetError
from otoscope.hub import HubProcess, Listed, NotFetched, UnreachableError, another_place, cached_roots
from otoscope.nesting import decoded
from otoscope.records import Downloading, DownloadPlanned, Event, Notice, Sample
from otoscope.shell import shell_command

_METADATA = f"Chat/{METADATA}"
_GONE = ".otoscope-lacking.json"
"""Below the root: the files that the hub does not have."""
_TOLD = 10
"""Files that are named in a notice; the others are counted."""


@dataclass(frozen=True, slots=True)
class TaskFiles:
    """Numbers of files of one task, and their bytes where the hub tells them."""

    wanted: int = 0
    here: int = 0
    """Before anything was fetched."""
    fetched: int = 0
    lacking: int = 0
    bytes: int = 0
    """Of all wanted files."""
    fetched_bytes: int = 0

    def __add__(self, other: TaskFiles) -> TaskFiles:
        return TaskFiles(
            self.wanted + other.wanted,
            self.here + other.here,
            self.fetched + other.fetched,
            self.lacking + other.lacking,
            self.bytes + other.bytes,
            self.fetched_bytes + other.fetched_bytes,
        )


@dataclass(frozen=True, slots=True)
class Download:
    """What came of a download."""

    data: Dataset
    hub: HubSettings
    tasks: Mapping[str, TaskFiles]
    lacking: Mapping[str, str] = field(default_factory=dict)
    """Why each file that is not here could not be had."""
    compared: bool = True
    """Whether the hub was asked for the sizes; what is here without that is taken as it is."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a download would fetch. Nothing was fetched but, where they were asked for, the metadata."""

    hub: HubSettings
    place: Path | None
    """The data set's root; ``None``: the library's cache, which holds nothing of it yet."""
    data: Dataset | None
    """``None``: the metadata would have to be fetched first."""
    tasks: Mapping[str, TaskFiles]
    """``fetched`` are those that would be."""
    lacking: Mapping[str, str]
    compared: bool
    """Whether the hub was asked for the sizes."""
    missing: frozenset[str] = frozenset()
    """Keys of the samples whose clips would be fetched."""

    @property
    def all(self) -> TaskFiles:
        """The numbers of all tasks together."""
        return sum(self.tasks.values(), TaskFiles())


def obtain(
    data: DataSettings, selection: SelectionSettings, tell: Callable[[Event], None] = lambda _event: None
) -> Dataset:
    """Return the chosen samples, and see to it that their clips are on this disk.

    Without a folder of the user's own, the hub's cache is looked through first, without any network; what is
    not there is downloaded. Clips that the hub does not have are told of, and their samples stay: they fail
    at their turn. It blocks, and is ended by what ``tell`` raises. Raises ``DatasetError``.
    """
    if data.root is not None:
        return dataset.load(data.root, selection)
    held = _held(data.hub, selection)
    if held is not None and not held.missing:
        tell(Notice(f"data: {held.data.root}"))
        if held.gone:
            tell(Notice(f"not there, since the hub did not have them: {', '.join(held.gone[:_TOLD])}"))
        return held.data
    try:
        came = _Job(data.hub, selection, tell, held=held).run()
    except UnreachableError as error:
        raise _with_what_is_here(error, _held(data.hub, selection)) from None
    if len(came.lacking) == len(clips_of(came.data)):
        raise DatasetError(f"{data.hub.dataset}: none of its clips could be had: {_first(came.lacking)}")
    return came.data


def download(
    hub: HubSettings,
    selection: SelectionSettings,
    tell: Callable[[Event], None] = lambda _event: None,
    *,
    dest: Path | None = None,
) -> Download:
    """Bring the clips of the chosen samples, and the metadata, into ``dest`` or the hub's cache.

    Sizes are compared with the hub's. Where it is out of reach, and every file is here, that is enough.
    Otherwise as :func:`obtain`.
    """
    held = _held(hub, selection, dest)
    job = _Job(hub, selection, tell, held=held, dest=dest)
    try:
        return job.run()
    except UnreachableError as error:
        if held is None or held.missing or job.compared:
            raise
        tell(Notice(f"every file is here; sizes are not compared: {str(error).splitlines()[0]}"))
        lacking = held.lacking()
        return Download(held.data, hub, _tally(held.clips, held.listed(), lacking), lacking, compared=False)


def plan(
    hub: HubSettings,
    selection: SelectionSettings,
    tell: Callable[[Event], None] = lambda _event: None,
    *,
    dest: Path | None = None,
    fetch_metadata: bool = False,
) -> Plan:
    """Return what :func:`obtain` would fetch, or, with ``fetch_metadata``, what :func:`download` would.

    The latter asks the hub in any case, and fetches metadata that are not here into a temporary folder. A hub
    out of reach leaves the sizes open, unless the metadata are wanted of it. Raises ``DatasetError``.
    """
    held = _held(hub, selection, dest)
    place = dest or (held.data.root if held is not None else None)
    if held is None and not fetch_metadata:
        return Plan(hub, place, None, {}, {}, compared=False)
    if held is not None and not held.missing and not fetch_metadata:
        lacking = held.lacking()
        tasks = _tally(held.clips, held.listed(), lacking)
        return Plan(hub, place, held.data, tasks, lacking, compared=False)
    with tempfile.TemporaryDirectory(prefix="otoscope-") as folder:
        job = _Job(hub, selection, tell, held=held, dest=dest, metadata_in=Path(folder))
        return job.plan(place)


def _with_what_is_here(error: UnreachableError, held: _Held | None) -> UnreachableError:
    """Return the error with the way to use the part of the data that is on this disk."""
    if held is None or len(held.missing) == len(held.clips):
        return error
    part = f"{len(held.clips) - len(held.missing):,} of {len(held.clips):,} clips"
    root = shell_command([str(held.data.root)])
    return UnreachableError(f"{error}\n{part} are here: --data {root} uses them")


def _first(lacking: Mapping[str, str]) -> str:
    path, reason = next(iter(lacking.items()))
    return f"{path}: {reason}"


@dataclass(frozen=True, slots=True)
class _Held:
    """A copy of the data set on this disk, as far as can be told without the hub."""

    data: Dataset
    clips: Mapping[str, Sample]
    """A sample for each clip that is needed, by the clip's path below the root."""
    missing: Sequence[str]
    """Clips that are not there, or empty, and that the hub may have."""
    gone: Sequence[str]
    """Clips that are not there, and that the hub did not have when it was asked for them."""

    def listed(self) -> dict[str, Listed]:
        """Return what the hub might say of these clips."""
        absent = {*self.missing, *self.gone}
        return {path: Listed(None, here=path not in absent) for path in self.clips}

    def lacking(self) -> dict[str, str]:
        """Return what is known to be not to be had."""
        return dict.fromkeys(self.gone, "the hub did not have it")


def clips_of(data: Dataset) -> dict[str, Sample]:
    """Return the clips that the chosen samples need, by path below the root, each with a sample it is of."""
    clips: dict[str, Sample] = {}
    for sample in data.samples:
        clips.setdefault(Path(sample.audio_path).relative_to(data.root).as_posix(), sample)
    return clips


def _held(hub: HubSettings, selection: SelectionSettings, dest: Path | None = None) -> _Held | None:
    """Return the copy in ``dest``, or the one in the hub's cache that lacks the least."""
    best: _Held | None = None
    for root in cached_roots(hub) if dest is None else [dest]:
        try:
            data = dataset.load(root, selection, clips_needed=False)
        except DatasetError:
            continue  # no metadata, or damaged ones: the hub has others
        clips = clips_of(data)
        absent, gone = [path for path in clips if not _has_bytes(data.root / path)], _remembered(data.root)
        held = _Held(
            data,
            clips,
            [path for path in absent if path not in gone],
            [path for path in absent if path in gone],
        )
        if not held.missing:
            return held
        if best is None or len(held.missing) < len(best.missing):
            best = held
    return best


class _Job:
    """One download, or the plan of one."""

    def __init__(
        self,
        hub: HubSettings,
        selection: SelectionSettings,
        tell: Callable[[Event], None],
        *,
        held: _Held | None,
        dest: Path | None = None,
        metadata_in: Path | None = None,
    ) -> None:
        self._hub = self._worked_with = hub
        self._selection = selection
        self._tell = tell
        self._held = held
        self._metadata_in = metadata_in
        # Where a copy was begun it is completed, in whichever layout. Hugging Face's library finds its own.
        begun = held.data.root if held is not None and hub.name == "modelscope" else None
        self._place = dest.absolute() if dest is not None else begun
        if dest is not None and hub.name == "modelscope":
            # The library's locks: beside the data, where every machine that writes there sees them.
            self._worked_with = replace(hub, cache=dest.absolute() / ".cache" / "modelscope")
        self._to_fetch = TaskFiles()
        self._source = ""
        self.compared = False
        """Whether the hub has told its sizes."""

    def run(self) -> Download:
        """Fetch what is not here."""
        place = self._place or self._hub.cache
        _check_writable(place, self._hub.name)
        with self._process(self._place) as process:
            data = self._metadata(process)
            clips = clips_of(data)
            listed = _look(process, clips, data.root)
            self.compared = True
            not_fetched = _unlisted(clips, listed)
            wanted = [path for path, one in listed.items() if not one.here]
            self._announce(clips, listed, data.root)
            if wanted:
                not_fetched |= process.fetch(wanted)
        _remember(data.root, clips, [path for path, one in not_fetched.items() if one.gone])
        lacking = {path: one.reason for path, one in not_fetched.items()}
        self._say_lacking(lacking)
        tasks = _tally(clips, listed, lacking)
        if wanted:
            came = sum(tasks.values(), TaskFiles())
            self._tick(came.fetched, came.fetched_bytes)
        return Download(data, self._hub, tasks, lacking)

    def plan(self, place: Path | None) -> Plan:
        """Find out what is not here."""
        data = None if self._held is None else self._held.data
        lacking: dict[str, str] = {}
        try:
            with self._process(self._metadata_in if data is None else self._place) as process:
                data = data or self._metadata(process)
                clips = clips_of(data)
                listed = _look(process, clips, place or self._hub.cache)
                self.compared = True
                lacking = {path: one.reason for path, one in _unlisted(clips, listed).items()}
        except UnreachableError as error:
            if data is None or self._held is None:
                raise
            self._tell(Notice(f"sizes are not known: {str(error).splitlines()[0]}"))
            clips, listed, lacking = dict(self._held.clips), self._held.listed(), self._held.lacking()
        missing = {path for path, one in listed.items() if not one.here and path not in lacking}
        root = data.root
        keys = frozenset(
            sample.key
            for sample in data.samples
            if Path(sample.audio_path).relative_to(root).as_posix() in missing
        )
        tasks = _tally(clips, listed, lacking)
        return Plan(self._hub, place, data, tasks, lacking, compared=self.compared, missing=keys)

    def _process(self, place: Path | None) -> HubProcess:
        process = HubProcess(self._worked_with, place=place, tick=self._tick)
        self._source = process.name
        self._tell(Notice(f"asking {process.name} for {self._hub.dataset}"))
        return process

    def _metadata(self, process: HubProcess) -> Dataset:
        """Fetch the metadata, once more where they are damaged, and choose the samples."""
        root = process.metadata(_METADATA)
        try:
            for _ in dataset.read_records(root / _METADATA):
                pass  # to its end, where a damaged file is cut
        except DatasetError as error:
            self._tell(Notice(f"{error}; it is fetched once more"))
            root = process.metadata(_METADATA, again=True)
        return dataset.load(root, self._selection, clips_needed=False)

    def _announce(self, clips: Mapping[str, Sample], listed: Mapping[str, Listed], root: Path) -> None:
        """Tell what will be fetched. Raises ``DatasetError`` where there is no room for it."""
        everything = sum(_tally(clips, listed, {}).values(), TaskFiles())
        self._to_fetch = everything
        free = shutil.disk_usage(root).free
        if everything.fetched_bytes > free:
            raise DatasetError(
                f"{everything.fetched:,} files to fetch: needs {everything.fetched_bytes / 1e9:,.1f} GB in "
                f"{root}, {free / 1e9:,.1f} GB are free. Make room, choose less (--tasks, --limit), or name "
                "another place (--dest, --dataset-dir)"
            )
        self._tell(
            DownloadPlanned(
                self._source,
                root,
                everything.wanted,
                everything.here,
                everything.fetched,
                everything.fetched_bytes,
                free,
            )
        )

    def _say_lacking(self, lacking: Mapping[str, str]) -> None:
        for path, reason in list(lacking.items())[:_TOLD]:
            self._tell(Notice(f"not to be had: {path}: {reason}"))
        if len(lacking) > _TOLD:
            self._tell(Notice(f"not to be had: {len(lacking) - _TOLD:,} further files"))

    def _tick(self, files: int, count: int) -> None:
        of = self._to_fetch
        done = min(count, of.fetched_bytes)
        self._tell(Downloading(self._source, files, of.fetched, done, of.fetched_bytes))


def _look(process: HubProcess, clips: Iterable[str], root: Path) -> dict[str, Listed]:
    """Return what the hub says of these clips; one that it lacks, and that is here, is here."""
    paths = list(clips)
    listed = process.look(paths, root)
    own = [path for path in paths if path not in listed and _has_bytes(root / path)]
    return listed | dict.fromkeys(own, Listed(None, here=True))


def _unlisted(clips: Iterable[str], listed: Mapping[str, Listed]) -> dict[str, NotFetched]:
    return {path: NotFetched("the hub does not have it", gone=True) for path in clips if path not in listed}


def _remembered(root: Path) -> set[str]:
    """Return what the hub did not have when it was last asked: without a link, that need not stop a run."""
    try:
        stored = decoded((root / _GONE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return set()
    return set(map(str, stored)) if isinstance(stored, list) else set()


def _remember(root: Path, asked: Iterable[str], gone: Iterable[str]) -> None:
    """Keep which of the files that the hub was asked for it does not have."""
    before = _remembered(root)
    after = (before - set(asked)) | set(gone)
    if after != before:
        with contextlib.suppress(OSError):  # then the hub is asked again the next time
            (root / _GONE).write_text(json.dumps(sorted(after), indent=1), encoding="utf-8", newline="\n")


def _tally(
    clips: Mapping[str, Sample], listed: Mapping[str, Listed], lacking: Mapping[str, str]
) -> dict[str, TaskFiles]:
    """Count files by task: what is neither here nor lacking is, or would be, fetched."""
    tasks: dict[str, TaskFiles] = {}
    for path, sample in clips.items():
        one = listed.get(path)
        size = (one.size if one is not None else None) or 0
        here = one is not None and one.here
        lacks = path in lacking or one is None
        comes = not (here or lacks)
        to_come = size if comes and one is not None and not one.kept else 0
        counted = TaskFiles(1, here, comes, lacks, size, to_come)
        tasks[sample.task] = tasks.get(sample.task, TaskFiles()) + counted
    return tasks


def _check_writable(place: Path, hub: str) -> None:
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise DatasetError(
            f"{place}: cannot be written: {error.strerror or error}. {another_place(hub)}"
        ) from None


def _has_bytes(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except OSError:
        return False
