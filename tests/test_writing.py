"""Files of reports: whole or not at all, and nothing left beside them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from otoscope.lock import Identity
from otoscope.reports.writing import write_whole

needs_proc = pytest.mark.skipif(
    not Identity.of_this_process().can_see(Identity.of_this_process()), reason="needs /proc"
)

# Writes half of a file, says so, and waits.
HALF = """
import sys, time
from pathlib import Path
from otoscope.reports.writing import write_whole

def blocks():
    yield b"half"
    print("half", flush=True)
    time.sleep(60)

write_whole(Path(sys.argv[1]), blocks())
"""


def half_written(path: Path) -> subprocess.Popen[str]:
    """Start a process that is in the middle of writing a file."""
    process = subprocess.Popen(
        [sys.executable, "-c", HALF, str(path)], stdout=subprocess.PIPE, encoding="utf-8"
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "half\n"
    return process


def names(folder: Path) -> list[str]:
    """Return what lies in a folder."""
    return sorted(entry.name for entry in folder.iterdir())


def test_what_goes_wrong_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    """A content that cannot be made changes nothing, and leaves nothing beside the file."""

    def broken() -> Iterator[bytes]:
        yield b"half"
        raise RuntimeError("our own bug")

    path = tmp_path / "report.html"
    write_whole(path, [b"old"])
    with pytest.raises(RuntimeError, match="our own bug"):
        write_whole(path, broken())
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["report.html"]
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@needs_proc
def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path) -> None:
    """A process that was killed while it wrote leaves half a file, which the next one that writes removes."""
    path = tmp_path / "report[1].html"
    process = half_written(path)
    process.kill()
    process.communicate()
    assert len(names(tmp_path)) == 1
    write_whole(path, [b"new"])
    assert names(tmp_path) == ["report[1].html"]


@needs_proc
def test_what_another_process_is_writing_is_left_to_it(tmp_path: Path) -> None:
    """Two that write one file at once do not take each other's; nor are other files taken for any."""
    path = tmp_path / "report.html"
    process = half_written(path)
    (written,) = names(tmp_path)
    strangers = [".report.html.notes", f"{written[:22]}-no-number", f"{written[:22]}-{'9' * 40}-"]
    for name in strangers:
        (tmp_path / name).touch()
    try:
        write_whole(path, [b"new"])
        assert names(tmp_path) == sorted([*strangers, written, "report.html"])
    finally:
        process.terminate()
        process.communicate()
    assert path.read_bytes() == b"new"
