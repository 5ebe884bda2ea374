from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from otoscope.errors import RunDirectoryError
from otoscope.lock import GRACE_SECONDS, STALE_SECONDS, Identity, RunLock

HERE = Identity.of_this_process()
ELSEWHERE = replace(HERE, host="other-host", boot_id="another-boot")

needs_proc = pytest.mark.skipif(not HERE.can_see(HERE), reason="this system does not tell its boot id")

# Tries for the lock once the file "go" exists, says how that ended, and then does as it is told.
CONTENDER = """
import sys, time
from pathlib import Path
from otoscope.errors import RunDirectoryError
from otoscope.lock import RunLock

run_path, start = Path(sys.argv[1]), Path(sys.argv[2])
print("ready", flush=True)
while not start.exists():
    time.sleep(0.001)
lock = RunLock(run_path, take_over="--take-over" in sys.argv)
try:
    lock.acquire()
    print("acquired", flush=True)
    for order in sys.stdin:
        getattr(lock, order.strip())()
        print("done", flush=True)
except RunDirectoryError as error:
    print(f"{error.exit_code} {error}", flush=True)
"""

Contender = subprocess.Popen[str]


def line_of(process: Contender) -> str:
    """Return the next line the process prints; empty once it has ended."""
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def tell(process: Contender, order: str) -> str:
    """Have the process call a method of its lock; return how that ended."""
    assert process.stdin is not None
    process.stdin.write(order + "\n")
    process.stdin.flush()
    return line_of(process)


@pytest.fixture
def go_path(tmp_path: Path) -> Path:
    """Return the file that starts the contenders once it exists."""
    return tmp_path / "go"


@pytest.fixture
def run_path(tmp_path: Path) -> Path:
    """Return an empty run directory."""
    path = tmp_path / "run"
    path.mkdir()
    return path


@pytest.fixture
def contender(run_path: Path, go_path: Path) -> Iterator[Callable[..., Contender]]:
    """Start processes that wait for the file "go", and end them after the test."""
    processes: list[Contender] = []

    def start(*arguments: str) -> Contender:
        process = subprocess.Popen(
            [sys.executable, "-c", CONTENDER, str(run_path), str(go_path), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
        )
        processes.append(process)
        assert line_of(process) == "ready"
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def owner_path(run_path: Path) -> Path:
    """Return the file whose mtime is the sign of life."""
    return run_path / ".lock" / "owner.json"


def owner_pid(run_path: Path) -> int:
    """Return which process the lock names."""
    return int(json.loads(owner_path(run_path).read_bytes())["pid"])


def age(path: Path, seconds: float) -> None:
    """Make a file or directory look as if it was last touched so many seconds ago."""
    then = time.time() - seconds
    os.utime(path, (then, then))


def owner_json(**changes: object) -> bytes:
    """Return an owner file as such, but for what the test changes."""
    return json.dumps({"token": "ab", "since": "", **asdict(ELSEWHERE), **changes}).encode()


def leftovers(run_path: Path) -> list[str]:
    """Return what lies beside the lock."""
    return sorted(path.name for path in run_path.iterdir() if path.name != ".lock")


# --- one process ---------------------------------------------------------------------------------


def test_a_free_directory_is_locked_and_left_clean(run_path: Path) -> None:
    """Acquiring, renewing and releasing leaves nothing behind, and the lock can be acquired again."""
    lock = RunLock(run_path)
    for _ in range(2):
        with lock:
            assert lock.still_ours()
            lock.renew()
            assert owner_pid(run_path) == os.getpid()
            assert leftovers(run_path) == []
        assert list(run_path.iterdir()) == []
        assert not lock.still_ours()


def test_renewing_is_a_sign_of_life(run_path: Path) -> None:
    """The mtime of the owner file is set to now by each renewal."""
    with RunLock(run_path) as lock:
        age(owner_path(run_path), 1000)
        lock.renew()
        assert time.time() - owner_path(run_path).stat().st_mtime < 100


def test_the_lock_is_released_when_the_run_fails(run_path: Path) -> None:
    """Leaving the context by an exception releases the lock and lets the exception through."""
    with pytest.raises(ZeroDivisionError), RunLock(run_path):
        raise ZeroDivisionError
    assert list(run_path.iterdir()) == []


def test_releasing_twice_or_without_a_lock_does_nothing(run_path: Path) -> None:
    """A release never raises, whether the lock was never taken, is released already, or was deleted."""
    lock = RunLock(run_path)
    lock.release()
    lock.acquire()
    lock.release()
    lock.release()
    lock.acquire()
    shutil.rmtree(run_path)
    lock.release()


def test_a_deleted_lock_stops_its_owner(run_path: Path) -> None:
    """When somebody deletes the lock directory, renewing raises and says what to do."""
    lock = RunLock(run_path)
    lock.acquire()
    shutil.rmtree(run_path / ".lock")
    assert not lock.still_ours()
    with pytest.raises(RunDirectoryError, match=r"is gone.*Nothing that was stored is lost.*repeat"):
        lock.renew()


def test_a_lock_away_for_a_moment_is_not_lost(run_path: Path) -> None:
    """A late contender that renames a live lock puts it back; its owner does not stop over that."""
    with RunLock(run_path) as lock:
        (run_path / ".lock").rename(run_path / "away")
        timer = threading.Timer(0.02, (run_path / "away").rename, [run_path / ".lock"])
        timer.start()
        lock.renew()
        timer.join()
        assert lock.still_ours()


def test_a_file_system_that_does_not_answer_is_forgiven(run_path: Path) -> None:
    """An error other than "not there" while renewing does not stop a run that renewed a moment ago."""
    with RunLock(run_path) as lock:
        content = owner_path(run_path).read_bytes()
        owner_path(run_path).unlink()
        owner_path(run_path).mkdir()
        lock.renew()
        assert lock.still_ours()
        owner_path(run_path).rmdir()
        owner_path(run_path).write_bytes(content)


def test_a_file_system_that_stays_silent_stops_the_owner(
    run_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After half of the time that makes a lock stale, an owner that cannot renew stops with exit code 6."""
    lock = RunLock(run_path)
    lock.acquire()
    owner_path(run_path).unlink()
    owner_path(run_path).mkdir()
    later = time.monotonic() + STALE_SECONDS / 2 + 1
    monkeypatch.setattr(time, "monotonic", lambda: later)
    with pytest.raises(RunDirectoryError, match="could not be renewed for 61 s") as caught:
        lock.renew()
    assert caught.value.exit_code == 6


def test_a_missing_run_directory_is_an_error_of_ours(tmp_path: Path) -> None:
    """What the operating system says arrives as a RunDirectoryError that names the directory."""
    with pytest.raises(RunDirectoryError, match="absent cannot be locked"):
        RunLock(tmp_path / "absent").acquire()


def test_a_read_only_directory_says_so(run_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory without the right to write is refused with the reason and the next step."""
    monkeypatch.chdir(run_path)
    run_path.chmod(0o555)
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    try:
        with pytest.raises(RunDirectoryError, match=r"read-only for this user.*--run-dir") as caught:
            RunLock(Path()).acquire()
    finally:
        if is_root:
            os.seteuid(0)
        run_path.chmod(0o755)
    assert caught.value.exit_code == 6


# --- owners on the same host ---------------------------------------------------------------------


def test_a_live_owner_is_respected(
    run_path: Path, go_path: Path, contender: Callable[..., Contender]
) -> None:
    """While its process lives, a lock is refused, by a message with pid, host, time and next step."""
    go_path.touch()
    owner = contender()
    assert line_of(owner) == "acquired"
    with pytest.raises(RunDirectoryError) as caught:
        RunLock(run_path).acquire()
    message = str(caught.value)
    assert caught.value.exit_code == 6
    assert f"in use by pid {owner.pid} on host {HERE.host} (since 2" in message
    assert "Wait until it has finished" in message
    assert "--take-over" in message
    assert tell(owner, "renew") == "done"
    assert tell(owner, "release") == "done"
    assert list(run_path.iterdir()) == []


@needs_proc
def test_a_stopped_process_still_is_the_owner(
    run_path: Path, go_path: Path, contender: Callable[..., Contender]
) -> None:
    """A process of this host that was stopped for long would write again: its lock is not stale."""
    go_path.touch()
    owner = contender()
    assert line_of(owner) == "acquired"
    owner.send_signal(signal.SIGSTOP)
    age(owner_path(run_path), 10 * STALE_SECONDS)
    with pytest.raises(RunDirectoryError, match=f"pid {owner.pid} .* 1200 s ago"):
        RunLock(run_path).acquire()


@needs_proc
@pytest.mark.parametrize("is_reaped", [False, True])
def test_a_killed_owner_is_followed_at_once(
    run_path: Path, go_path: Path, contender: Callable[..., Contender], is_reaped: bool
) -> None:
    """After SIGKILL the lock is free without waiting, also while the dead process is a zombie."""
    go_path.touch()
    owner = contender()
    assert line_of(owner) == "acquired"
    owner.kill()
    os.waitid(os.P_PID, owner.pid, os.WEXITED | os.WNOWAIT)
    if is_reaped:
        owner.wait()
    started = time.monotonic()
    with RunLock(run_path) as lock:
        assert time.monotonic() - started < GRACE_SECONDS / 2
        assert owner_pid(run_path) == os.getpid()
        lock.renew()
    assert list(run_path.iterdir()) == []


@needs_proc
def test_a_recycled_pid_is_not_the_owner(run_path: Path) -> None:
    """A live process with the owner's pid but another start time does not keep the lock."""
    RunLock(run_path, identity=replace(HERE, process_start="1")).acquire()
    with RunLock(run_path) as lock:
        lock.renew()


@needs_proc
def test_another_users_process_counts_as_alive(run_path: Path) -> None:
    """A process that may not be signalled is there all the same."""
    RunLock(run_path, identity=replace(HERE, pid=1, process_start="")).acquire()
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    try:
        assert replace(HERE, pid=1, process_start="").is_alive()
    finally:
        if is_root:
            os.seteuid(0)
    with pytest.raises(RunDirectoryError, match="pid 1 on host"):
        RunLock(run_path).acquire()


# --- owners elsewhere ----------------------------------------------------------------------------

DEAD_PID = 2**31 - 1  # above the largest pid that Linux gives

STRANGERS = {
    "another host": replace(ELSEWHERE, pid=DEAD_PID),
    "another boot": replace(HERE, boot_id="another-boot", pid=DEAD_PID),
    "another container": replace(HERE, pid_namespace="pid:[1]", pid=DEAD_PID),
    "unknown boot": replace(HERE, boot_id="", pid=DEAD_PID),
}


@pytest.mark.parametrize("stranger", STRANGERS.values(), ids=list(STRANGERS))
def test_an_owner_elsewhere_is_judged_by_its_sign_of_life(run_path: Path, stranger: Identity) -> None:
    """Where its pid says nothing to us, a lock is respected until it has not been renewed for 120 s."""
    displaced = RunLock(run_path, identity=stranger)
    displaced.acquire()
    age(owner_path(run_path), STALE_SECONDS - 10)
    with pytest.raises(RunDirectoryError, match=r"110 s ago.*until 120 s after its last sign of life"):
        RunLock(run_path).acquire()
    age(owner_path(run_path), STALE_SECONDS + 10)
    with RunLock(run_path) as lock:
        lock.renew()
        assert not displaced.still_ours()


def test_only_the_clock_of_the_file_system_counts(run_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host whose own clock is a year ahead does not take a live lock for a stale one."""
    RunLock(run_path, identity=ELSEWHERE).acquire()
    a_year_on = time.time() + 365 * 86400
    monkeypatch.setattr(time, "time", lambda: a_year_on)
    with pytest.raises(RunDirectoryError, match="in use by"):
        RunLock(run_path).acquire()


def test_two_systems_without_a_boot_id_do_not_see_each_other() -> None:
    """Equal but unknown boot ids or namespaces are no proof of being in one place."""
    for unknown in (replace(HERE, boot_id=""), replace(HERE, pid_namespace="")):
        assert not unknown.can_see(unknown)


# --- taking over ---------------------------------------------------------------------------------


def test_take_over_stops_a_live_owner(
    run_path: Path, go_path: Path, contender: Callable[..., Contender]
) -> None:
    """With take_over a live owner loses the lock, and its next renewal ends it with exit code 6."""
    go_path.touch()
    owner = contender()
    assert line_of(owner) == "acquired"
    with RunLock(run_path, take_over=True) as lock:
        answer = tell(owner, "renew")
        assert answer.startswith("6 ")
        assert f"taken over by pid {os.getpid()} on host {HERE.host}" in answer
        assert "Nothing that was stored is lost" in answer
        assert owner.wait() == 0
        lock.renew()


def test_a_displaced_owner_leaves_the_new_lock_alone(run_path: Path) -> None:
    """Neither release nor a failing renewal of the old owner touches the lock of the new one."""
    displaced, new = RunLock(run_path, identity=ELSEWHERE), RunLock(run_path, take_over=True)
    displaced.acquire()
    new.acquire()
    age(owner_path(run_path), 50)
    before = owner_path(run_path).stat().st_mtime_ns
    assert not displaced.still_ours()
    with pytest.raises(RunDirectoryError, match="taken over by pid") as caught:
        displaced.renew()
    displaced.release()
    assert caught.value.exit_code == 6
    assert owner_path(run_path).stat().st_mtime_ns == before
    new.renew()
    new.release()
    assert list(run_path.iterdir()) == []


def test_a_lock_can_change_hands_again_and_again(run_path: Path) -> None:
    """Two owners that keep taking over from each other each get the lock every time."""
    first, second = RunLock(run_path, take_over=True), RunLock(run_path, take_over=True)
    for _ in range(3):
        first.acquire()
        assert (first.still_ours(), second.still_ours()) == (True, False)
        second.acquire()
        assert (first.still_ours(), second.still_ours()) == (False, True)


def test_take_over_of_a_free_directory_is_an_ordinary_lock(run_path: Path) -> None:
    """The flag may stay in a job script: where nobody holds the lock it changes nothing."""
    with RunLock(run_path, take_over=True) as lock:
        lock.renew()


@needs_proc
@pytest.mark.parametrize("kind", ["free", "killed", "silent", "empty", "torn"])
def test_one_of_many_contenders_wins(
    run_path: Path, go_path: Path, contender: Callable[..., Contender], kind: str
) -> None:
    """However many processes reach for a free or stale lock at the same moment, exactly one gets it."""
    if kind == "killed":
        RunLock(run_path, identity=replace(HERE, pid=DEAD_PID)).acquire()
    elif kind == "silent":
        RunLock(run_path, identity=ELSEWHERE).acquire()
        age(owner_path(run_path), STALE_SECONDS + 10)
    elif kind != "free":
        (run_path / ".lock").mkdir()
        if kind == "torn":
            owner_path(run_path).write_text('{"token": "ab', encoding="utf-8")
            age(owner_path(run_path), GRACE_SECONDS + 10)
        age(run_path / ".lock", GRACE_SECONDS + 10)
    contenders = [contender() for _ in range(8)]
    go_path.touch()
    answers = [line_of(process) for process in contenders]
    winners = [process for process, answer in zip(contenders, answers, strict=True) if answer == "acquired"]
    assert len(winners) == 1
    assert owner_pid(run_path) == winners[0].pid
    assert all(f"in use by pid {winners[0].pid} " in answer for answer in answers if answer != "acquired")
    assert tell(winners[0], "renew") == "done"
    assert tell(winners[0], "release") == "done"
    assert list(run_path.iterdir()) == []


def test_of_many_that_take_over_one_remains(
    run_path: Path, go_path: Path, contender: Callable[..., Contender]
) -> None:
    """When several processes take over at once, one holds the lock afterwards and the others stop."""
    RunLock(run_path, identity=ELSEWHERE).acquire()
    contenders = [contender("--take-over") for _ in range(6)]
    go_path.touch()
    acquired = [process for process in contenders if line_of(process) == "acquired"]
    answers = {process.pid: tell(process, "renew") for process in acquired}
    assert [pid for pid, answer in answers.items() if answer == "done"] == [owner_pid(run_path)]
    assert all(answer == "done" or "taken over by" in answer for answer in answers.values())


def test_a_contender_that_was_too_late_keeps_the_trace(run_path: Path) -> None:
    """A refused contender leaves what guards the winner; the winner's release removes it."""
    RunLock(run_path, identity=ELSEWHERE).acquire()
    winner = RunLock(run_path, take_over=True)
    winner.acquire()
    loser = RunLock(run_path)
    with pytest.raises(RunDirectoryError):
        loser.acquire()
    loser.release()
    assert len(list(run_path.glob(".lock-stale-*"))) == 1
    winner.release()
    assert list(run_path.iterdir()) == []


def test_a_late_contender_cannot_take_the_winners_lock(run_path: Path) -> None:
    """A lock taken from one owner cannot be taken from it again: renaming onto the first fails."""
    RunLock(run_path, identity=ELSEWHERE).acquire()
    winner = RunLock(run_path, take_over=True)
    winner.acquire()
    (stale_path,) = run_path.glob(".lock-stale-*")
    with pytest.raises(OSError, match="not empty"):
        (run_path / ".lock").rename(stale_path)
    winner.renew()


# --- what crashes leave --------------------------------------------------------------------------


def test_a_lock_without_an_owner_is_free_after_a_grace(run_path: Path) -> None:
    """A crash between the two steps of locking delays the next run by the grace at most."""
    (run_path / ".lock").mkdir()
    age(run_path / ".lock", GRACE_SECONDS - 1)
    started = time.monotonic()
    with RunLock(run_path) as lock:
        assert 0.5 < time.monotonic() - started < GRACE_SECONDS
        lock.renew()


def test_a_lock_that_gets_its_owner_within_the_grace_is_respected(run_path: Path) -> None:
    """A process that finds a lock half made waits, and is refused once the owner has its name in it."""
    RunLock(run_path).acquire()
    content = owner_path(run_path).read_bytes()
    owner_path(run_path).unlink()
    timer = threading.Timer(0.3, owner_path(run_path).write_bytes, [content])
    timer.start()
    with pytest.raises(RunDirectoryError, match=f"in use by pid {os.getpid()}"):
        RunLock(run_path).acquire()
    timer.join()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"\xff\x00",
        b'{"token": "ab", "pid": "7"}',
        owner_json(token="../.."),
        owner_json(pid=-1),
        owner_json(host=None),
    ],
)
def test_an_unreadable_owner_is_no_owner(run_path: Path, content: bytes) -> None:
    """A torn or foreign owner file, as a power cut leaves it, is cleared away after the grace."""
    (run_path / ".lock").mkdir()
    owner_path(run_path).write_bytes(content)
    age(owner_path(run_path), GRACE_SECONDS + 10)
    with RunLock(run_path) as lock:
        lock.renew()


def test_leftovers_of_crashes_are_swept(run_path: Path) -> None:
    """Probes of the clock and old remains of take-overs go when the lock is acquired; all else stays."""
    for name in (".lock-stale-old", ".lock-stale-young"):
        (run_path / name).mkdir()
        (run_path / name / "owner.json").write_text("{}", encoding="utf-8")
    for name in (".lock-clock-old", ".lock-clock-young", "answers.jsonl"):
        (run_path / name).touch()
    for name in (".lock-stale-old", ".lock-clock-old", "answers.jsonl"):
        age(run_path / name, STALE_SECONDS + 10)
    with RunLock(run_path):
        assert leftovers(run_path) == [".lock-stale-young", "answers.jsonl"]


def test_a_probe_that_is_swept_away_is_made_again(run_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks a network file system for its time while the owner sweeps gets it at the next try."""
    touch, swept = os.utime, 0

    def sweep(path: Any, *rest: Any, **more: Any) -> None:
        nonlocal swept
        swept += 1
        if swept == 1:
            raise OSError(errno.ESTALE, "Stale file handle")
        touch(path, *rest, **more)

    with RunLock(run_path):
        monkeypatch.setattr(os, "utime", sweep)
        monkeypatch.setattr(os, "supports_fd", {sweep})
        with pytest.raises(RunDirectoryError, match="in use by"):
            RunLock(run_path, identity=replace(HERE, pid=os.getpid() + 1)).acquire()
    assert swept > 1
    assert leftovers(run_path) == []
