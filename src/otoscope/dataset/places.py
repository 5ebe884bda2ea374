"""Where clips really lie: nothing outside of the data set is ever sent to a server."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from otoscope.benchmark import TASKS
from otoscope.errors import DatasetError
from otoscope.records import Failure, FailureKind, Sample


def outside_root(sample: Sample, root: Path | None) -> Failure | None:
    """Return a Failure when the clip's real place, links followed, is not inside ``root``.

    Sending it would give a stranger's file to a server. In a snapshot of Hugging Face's cache a clip is a
    link to where the cache keeps the bytes, which is inside. Without a ``root``, every link is meant.
    Asked at the sample's own turn: on a network file system it costs a round trip.
    """
    if root is None:
        return None
    # realpath, since Path.resolve raises for links that lead in a circle; such a clip cannot be opened.
    real, real_root = Path(os.path.realpath(sample.audio_path)), Path(os.path.realpath(root))
    if any(real.is_relative_to(place) for place in (real_root, *_stores(real_root))):
        return None
    return Failure(
        FailureKind.OUTSIDE_ROOT,
        f"{sample.path!r} is or lies behind a link that leaves the data root {root}; the file was not read. "
        "Put the file itself there, give the folder that really holds the data, or, where the link is meant, "
        "--follow-links",
    )


def _stores(root: Path) -> tuple[Path, ...]:
    """Return the folders that a snapshot of Hugging Face's cache links into: its own, and the cache's.

    ``CACHE/datasets--OWNER--NAME/snapshots/REVISION`` is such a snapshot.
    """
    repository = root.parent.parent
    if root.parent.name != "snapshots" or not repository.name.startswith("datasets--"):
        return ()
    return repository / "blobs", repository.parent / "blobs"


def refuse_missing_folders(root: Path, samples: Iterable[Sample]) -> None:
    """Raise ``DatasetError`` when folders of these samples are not there."""
    folders = {f"{sample.task}_{sample.dataset}": sample.task for sample in samples}
    missing = {name: task for name, task in folders.items() if not (root / "Chat" / name).is_dir()}
    if missing:
        present = sorted(set(folders.values()) - set(missing.values()), key=list(TASKS).index)
        advice = f", or evaluate what is there: --tasks {','.join(present)}" if present else ""
        raise DatasetError(
            f"{root / 'Chat'}: the chosen samples need folders that are not there: "
            f"{', '.join(sorted(missing))}. Fetch them{advice}"
        )
