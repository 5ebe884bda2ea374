"""A disk that is full, and a run directory that cannot be written."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.conftest import Tally
from tests.faults.driver import (
    IN_FLIGHT,
    Evaluation,
    Whole,
    end_of,
    evaluation_script,
    requests_of,
    until,
)
from tests.scripted_server import ScriptedServer

pytestmark = pytest.mark.faults

PAGE = 4096
DISK = 1 << 20
WITHOUT_RIGHTS = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
"""Starts a process of root to which mode bits apply, as they do to anybody else."""


def mount(*arguments: str) -> None:
    """Mount something; skips the test where the machine refuses."""
    done = subprocess.run(["mount", *arguments], capture_output=True, encoding="utf-8", check=False)
    if done.returncode:
        pytest.skip(f"mount {' '.join(arguments)}: {done.stderr.strip()}")


@contextlib.contextmanager
def mounted(place: Path, *arguments: str) -> Iterator[None]:
    """Mount something on a place for the time of a block."""
    place.mkdir(exist_ok=True)
    mount(*arguments, str(place))
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(folder: Path, pages: int) -> Path:
    """Leave so many pages free of a file system, and return the file that takes up the rest."""
    ballast = folder / "ballast"
    free = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
    ballast.write_bytes(bytes(free - pages * PAGE))
    return ballast


@pytest.mark.kind("disk full")
@pytest.mark.rounds(full=10, short=2)
def test_a_full_disk_loses_nothing_that_was_stored(
    seed: int, short: bool, whole: Whole, folder: Path, tally: Tally
) -> None:
    """Wherever the space ends, the command says so with exit code 6, and goes on once there is some."""
    pages = ((12, 33) if short else (1, 2, 3, 4, 6, 9, 13, 20, 27, 33))[seed]
    disk = folder / "disk"
    with (
        mounted(disk, "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs"),
        ScriptedServer(evaluation_script()) as server,
    ):
        evaluation = Evaluation(server, whole, folder)
        evaluation.run_dir = disk / "run"
        ballast = fill(disk, pages)
        ended = evaluation.run()
        assert ended.code == 6, (ended.code, ended.stderr)
        assert "Traceback" not in ended.stderr
        assert "space" in ended.stderr
        evaluation.interrupted(in_flight=IN_FLIGHT)
        if not short and seed % 4 == 1:
            # Still full: it says so again, and harms nothing.
            again = evaluation.run()
            assert again.code == 6, again.stderr
            evaluation.interrupted(in_flight=IN_FLIGHT)
        ballast.unlink()
        resumed = evaluation.run()
        assert resumed.code == 0, resumed.stderr
        tally.add("disk full", evaluation.findings())


@pytest.mark.kind("disk full")
@pytest.mark.rounds(full=3, short=1)
def test_a_limit_of_file_sizes_loses_nothing_that_was_stored(
    seed: int, whole: Whole, folder: Path, tally: Tally
) -> None:
    """A quota that ends in the midst of a line is told like a full disk; needs no mount."""
    blocks = (24, 40, 56)[seed]
    with ScriptedServer(evaluation_script()) as server:
        evaluation = Evaluation(server, whole, folder)
        evaluation.log = Path(os.devnull)  # which would reach the limit, too
        ended = evaluation.run(prefix=["sh", "-c", f'ulimit -f {blocks}; exec "$@"', "sh"])
        assert ended.code == 6, (ended.code, ended.stderr)
        assert "Traceback" not in ended.stderr
        assert "size limit" in ended.stderr or "too large" in ended.stderr
        evaluation.interrupted(in_flight=IN_FLIGHT)
        resumed = evaluation.run()
        assert resumed.code == 0, resumed.stderr
        tally.add("limit of file sizes", evaluation.findings())


def refuse_plain_writes(folder: Path, prefix: list[str]) -> None:
    """Assert that what the test relies on holds: not even a plain write is possible."""
    tried = [*prefix, "sh", "-c", 'echo > "$0"/plain', str(folder)]
    assert subprocess.run(tried, capture_output=True, check=False).returncode != 0
    assert not (folder / "plain").exists()


@contextlib.contextmanager
def read_only(folder: Path, way: str) -> Iterator[list[str]]:
    """Make a folder unwritable for the time of a block; gives what has to start a process that cannot."""
    if way == "mount":
        with mounted(folder, "--bind", str(folder)):
            mount("-o", "remount,ro,bind", str(folder))
            refuse_plain_writes(folder, [])
            yield []
        return
    prefix = WITHOUT_RIGHTS if os.geteuid() == 0 else []
    if prefix and shutil.which(prefix[0]) is None:
        pytest.skip("setpriv is not there, and mode bits do not apply to root")
    folder.chmod(0o555)
    try:
        refuse_plain_writes(folder, prefix)
        yield prefix
    finally:
        folder.chmod(0o755)


@pytest.mark.kind("read-only")
@pytest.mark.full(begun=[False], way=["rights"])
@pytest.mark.full(begun=[True], way=["mount"])
@pytest.mark.parametrize("begun", [False, True], ids=["new", "begun"])
@pytest.mark.parametrize("way", ["mount", "rights"])
def test_a_read_only_run_directory_is_refused_before_any_call(
    way: str, begun: bool, whole: Whole, folder: Path, tally: Tally
) -> None:
    """The command says so with exit code 6 and asks nobody anything; writable again, the run goes on."""
    with ScriptedServer(evaluation_script()) as server:
        evaluation = Evaluation(server, whole, folder)
        evaluation.run_dir.mkdir()
        if begun:
            process = evaluation.start()
            until(lambda: requests_of(server, "judge") >= 20, process)
            process.kill()
            process.communicate()
            evaluation.interrupted(in_flight=IN_FLIGHT)
        asked = len(server.requests)
        with read_only(evaluation.run_dir, way) as prefix:
            ended = evaluation.run(prefix=prefix)
        assert ended.code == 6, ended.stderr
        assert "read-only" in ended.stderr
        assert "Traceback" not in ended.stderr
        assert len(server.requests) == asked
        resumed = evaluation.run()
        assert resumed.code == 0, resumed.stderr
        tally.add("read-only run directory", evaluation.findings())


@pytest.mark.kind("read-only")
@pytest.mark.rounds(full=2, short=1)
def test_a_run_directory_that_becomes_read_only_loses_nothing(
    seed: int, whole: Whole, folder: Path, tally: Tally
) -> None:
    """Rights that are taken away in the middle of a run end it with exit code 6; what was stored stays."""
    dice = random.Random(seed)  # noqa: S311 (a test's dice)
    target = dice.randint(5, whole.calls["judge"] - 5)
    prefix = WITHOUT_RIGHTS if os.geteuid() == 0 else []
    if prefix and shutil.which(prefix[0]) is None:
        pytest.skip("setpriv is not there, and mode bits do not apply to root")
    with ScriptedServer(evaluation_script()) as server:
        evaluation = Evaluation(server, whole, folder)
        process = evaluation.start(prefix=prefix)
        assert until(lambda: requests_of(server, "judge") >= target, process)
        with read_only(evaluation.run_dir, "rights"):
            ended = end_of(process)
        assert ended.code == 6, ended.stderr
        assert "Traceback" not in ended.stderr
        evaluation.interrupted(in_flight=IN_FLIGHT)
        resumed = evaluation.run()
        assert resumed.code == 0, resumed.stderr
        tally.add("rights taken away in the run", evaluation.findings())
