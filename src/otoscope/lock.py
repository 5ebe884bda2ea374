"""One writer for a run directory, also where it lies on a network file system.

::

    RUN/.lock/owner.json         who writes here; its mtime is the sign of life, renewed every 10 s
    RUN/.lock-stale-<token>/     the lock that was taken from the owner of that token
    RUN/.lock-clock-<token>      touched for a moment, to ask the file system for its time

The lock is a directory made by ``mkdir``, because that is atomic on every file system where ``flock`` is
not. Whether a lock is *stale* is decided like this:

* owner on this host, in this boot and this pid namespace: when that process is gone, and only then. A
  process that is stopped or hangs still is a writer;
* any other owner, or a system that does not tell its boot and pid namespace (macOS, Windows): when the sign
  of life is older than 120 s;
* no readable owner (a crash while the lock was made): after 5 s, which :meth:`RunLock.acquire` waits for.

Ages are differences of two mtimes of the same file system, so that the clocks of the hosts play no part.

A stale lock is renamed to a name that contains its owner's token. Renaming onto a directory with something
in it fails, so however many processes judged the same lock stale, exactly one can take it, and a late one
cannot take the lock of the winner by mistake. That is why a taken lock stays until the new owner releases
his, or 120 s, before it is removed.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType
from typing import IO, final

from otoscope.errors import RunDirectoryError
from otoscope.nesting import decoded

RENEW_SECONDS = 10.0
"""How often the owner has to call :meth:`RunLock.renew`."""

STALE_SECONDS = 120.0
"""How old the sign of life of an owner elsewhere has to be. NFS clients cache an mtime for up to 60 s."""

GRACE_SECONDS = 5.0
"""How long a lock may be without a readable owner: it is made in two steps."""

_ACQUIRE_SECONDS = 3 * GRACE_SECONDS
_POLL_SECONDS = 0.05
_STALE_PREFIX = ".lock-stale-"
_CLOCK_PREFIX = ".lock-clock-"
_OWNER_TEXTS = ("token", "since", "host", "boot_id", "pid_namespace", "process_start")


@dataclass(frozen=True, slots=True)
class Identity:
    """Where a process runs and which one it is. Empty texts stand for what the system does not tell."""

    host: str
    boot_id: str
    pid_namespace: str
    pid: int
    process_start: str
    """Clock ticks from boot to the start of the process: a pid alone can have been given away again."""

    @classmethod
    def of_this_process(cls) -> Identity:
        """Return the identity of the running process."""
        boot_id = pid_namespace = ""
        with suppress(OSError):
            boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        with suppress(OSError):
            pid_namespace = str(Path("/proc/self/ns/pid").readlink())
        _state, process_start = _process_state_and_start(os.getpid())
        return cls(socket.gethostname(), boot_id, pid_namespace, os.getpid(), process_start)

    def can_see(self, other: Identity) -> bool:
        """Return whether a look at this system's processes tells whether ``other`` is alive.

        Containers can share host name and boot id while each has its own pids, hence the namespace.
        """
        here = (self.host, self.boot_id, self.pid_namespace)
        return all(here) and here == (other.host, other.boot_id, other.pid_namespace)

    def is_alive(self) -> bool:
        """Return whether the process exists and can still write; only for one that this process can see."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass  # it exists and is another user's
        state, start = _process_state_and_start(self.pid)
        if state in {"Z", "X"}:  # killed; only its parent has not asked for the exit code yet
            return False
        return "" in (start, self.process_start) or start == self.process_start


def _process_state_and_start(pid: int) -> tuple[str, str]:
    """Return state letter and start time from ``/proc``; empty where it cannot be read (``hidepid``)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "", ""
    fields = stat.rpartition(")")[2].split()  # the program's name before it may hold blanks and brackets
    return (fields[0], fields[19]) if len(fields) > 19 else ("", "")


@dataclass(frozen=True, slots=True)
class _Owner:
    """What ``owner.json`` says."""

    token: str
    since: str
    identity: Identity

    def to_json(self) -> bytes:
        record = {"token": self.token, "since": self.since, **asdict(self.identity)}
        return json.dumps(record, indent=1).encode("ascii") + b"\n"

    @classmethod
    def from_json(cls, content: bytes) -> _Owner | None:
        """Return the owner, or None when the file is torn or not ours."""
        try:
            record = decoded(content)
        except ValueError:
            return None
        if not isinstance(record, dict):
            return None
        texts = {name: text for name in _OWNER_TEXTS if isinstance(text := record.get(name), str)}
        pid = record.get("pid")
        if len(texts) < len(_OWNER_TEXTS):
            return None
        # 0 and negative numbers would ask for process groups; the token becomes part of a file name
        if not isinstance(pid, int) or not 0 < pid < 2**31 or not texts["token"].isalnum():
            return None
        token, since = texts.pop("token"), texts.pop("since")
        return cls(token, since, Identity(pid=pid, **texts))

    def __str__(self) -> str:
        return f"pid {self.identity.pid} on host {self.identity.host} (since {self.since})"


@dataclass(frozen=True, slots=True)
class _Seen:
    """A lock directory at one moment."""

    mark: str
    """The owner's token, or for a lock without a readable owner something that names this very state."""

    owner: _Owner | None
    touched_ns: int
    is_empty: bool


def _look(lock_path: Path) -> _Seen | None:
    """Return what is in a lock directory, or None when there is none."""
    try:
        with _owner_path(lock_path).open("rb") as file:  # opening makes NFS ask the server again
            touched_ns = os.fstat(file.fileno()).st_mtime_ns
            owner = _Owner.from_json(file.read())
            return _Seen(owner.token if owner else f"torn-{touched_ns}", owner, touched_ns, is_empty=False)
    except FileNotFoundError:
        try:
            made_ns = lock_path.stat().st_mtime_ns
        except FileNotFoundError:
            return None
        return _Seen(f"empty-{made_ns}", None, made_ns, is_empty=True)


def _owner_path(lock_path: Path) -> Path:
    return lock_path / "owner.json"


def _touch(file: IO[bytes]) -> None:
    """Set an open file's mtime to now; without a time given, it is a server's clock that counts."""
    os.utime(file.fileno() if os.utime in os.supports_fd else file.name)


@final
class RunLock:
    """The right to write to one run directory, which has to exist.

    ``take_over`` takes the lock from whoever holds it when :meth:`acquire` is called. ``identity`` says who
    asks; without it, that is the running process. Use it as a context manager, and call :meth:`renew` every
    ``RENEW_SECONDS`` while inside.
    """

    def __init__(self, run_path: Path, *, take_over: bool = False, identity: Identity | None = None) -> None:
        self._run_path = run_path
        self._lock_path = run_path / ".lock"
        self._take_over = take_over
        self._identity = identity or Identity.of_this_process()
        self._tokens: set[str] = set()  # each time we wrote our name; more than one only after contention
        self._forced_mark = ""
        self._may_force = False
        self._renewed_at = 0.0

    def acquire(self) -> None:
        """Take the lock, from a dead owner too; waits a few seconds while others take or release it.

        Raises :class:`RunDirectoryError` when somebody else holds it, or when the directory is not writable.
        """
        self._tokens, self._forced_mark, self._may_force = set(), "", self._take_over
        with ExitStack() as undoing:
            undoing.callback(self.release)  # also what an interrupt left half done
            with _explained(self._run_path):
                self._acquire()
            undoing.pop_all()

    def _acquire(self) -> None:
        deadline = time.monotonic() + _ACQUIRE_SECONDS
        while not self._try_to_acquire():
            if time.monotonic() > deadline:
                raise RunDirectoryError(
                    f"other processes keep taking and releasing the run directory {self._run_path}. "
                    f"Wait until they have finished; if there are none, delete {self._lock_path}."
                )
            time.sleep(_POLL_SECONDS)
        self._renewed_at = time.monotonic()
        self._sweep()

    def renew(self) -> None:
        """Give the sign of life.

        Raises :class:`RunDirectoryError` when the lock is no longer ours; then nothing may be written any
        more. A file system that does not answer is forgiven for half of ``STALE_SECONDS``.
        """
        try:
            with _owner_path(self._lock_path).open("rb") as file:
                if self._is_mine(_Owner.from_json(file.read())):
                    _touch(file)
        except FileNotFoundError:
            pass  # the look below finds out whether it is gone
        except OSError as error:
            self._forgive(error)
            return
        # Only now: who takes a lock over looks at its mtime after renaming it. So one of us sees the other.
        try:
            owner = self._current_owner()
        except OSError as error:
            self._forgive(error)
            return
        if not self._is_mine(owner):
            raise RunDirectoryError(self._loss(owner))
        self._renewed_at = time.monotonic()

    def refuse_writer_of(self, other: Path) -> None:
        """Raise :class:`RunDirectoryError` while somebody writes to another run; nothing is written there.

        Only for the owner of this lock. Its file system is asked for the time, which for a run on another
        one is as good as the clocks of both agree.
        """
        try:
            seen = _look(other / ".lock")
            age = self._file_system_seconds() - seen.touched_ns / 1e9 if seen is not None else 0.0
        except OSError as error:
            raise RunDirectoryError(f"{other}: cannot be looked into: {error.strerror or error}") from None
        if seen is None or self._is_over(seen, age):
            return
        if seen.owner is None:
            raise RunDirectoryError(f"{other}: is just being taken by a process. Repeat the command")
        raise RunDirectoryError(f"{other}: is {self._in_use(seen.owner, age)}, then repeat the command")

    def still_ours(self) -> bool:
        """Return whether the lock is ours: one small file is read.

        While the file system does not answer, that is a yes: how long to bear it is for :meth:`renew` to say.
        """
        try:
            return self._is_mine(self._current_owner())
        except OSError:
            return bool(self._tokens)

    def release(self) -> None:
        """Remove the lock if it is ours; one that is gone, or somebody else's, is left alone."""
        with suppress(OSError):
            seen = _look(self._lock_path)
            if seen and self._is_mine(seen.owner) and self._bury(seen, even_if_touched=True):
                # Who does not hold the lock leaves these: others may still be reaching for the same owner's.
                for grave in self._run_path.glob(f"{_STALE_PREFIX}*"):
                    shutil.rmtree(grave, ignore_errors=True)
        self._tokens.clear()

    def __enter__(self) -> RunLock:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _is_mine(self, owner: _Owner | None) -> bool:
        return owner is not None and owner.token in self._tokens

    def _try_to_acquire(self) -> bool:
        """Return whether the lock is ours now; False asks for another try."""
        try:
            self._lock_path.mkdir()
        except FileExistsError:
            seen = _look(self._lock_path)
            if seen is None:
                return False
            if self._is_mine(seen.owner):  # it was away for a moment, see _bury
                return True
            if self._is_free(seen):
                self._clear_away(seen)
            return False
        self._may_force = False
        return self._claim()

    def _claim(self) -> bool:
        """Write our name into the directory just made; return whether the lock is ours.

        Created exclusively rather than renamed into place: when we slept long enough for the empty directory
        to be taken for a left-over, a rename would replace the next owner. A torn file has no owner, as
        an empty directory has none, so nothing is lost.
        """
        # A new token each time: a lock that was taken from us once could never be taken again by its name.
        token = secrets.token_hex(8)
        since = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
        self._tokens.add(token)
        try:
            with _owner_path(self._lock_path).open("xb") as file:
                file.write(_Owner(token, since, self._identity).to_json())
                file.flush()
                os.fsync(file.fileno())
                _touch(file)
        except (FileExistsError, FileNotFoundError):
            return False
        seen = _look(self._lock_path)
        return seen is not None and self._is_mine(seen.owner)

    def _is_free(self, seen: _Seen) -> bool:
        """Return whether a lock may be taken; raises when its owner is alive."""
        if self._may_force:  # whoever comes after the owner of this moment has the lock by right
            self._forced_mark, self._may_force = seen.mark, False
        if seen.mark == self._forced_mark:
            return True
        age = self._file_system_seconds() - seen.touched_ns / 1e9
        if self._is_over(seen, age):
            return True
        if seen.owner is None:
            return False
        raise RunDirectoryError(
            f"the run directory {self._run_path} is {self._in_use(seen.owner, age)}; or repeat the command "
            "with --take-over, which stops it."
        )

    def _is_over(self, seen: _Seen, age: float) -> bool:
        """Whether nobody writes under a lock any more whose sign of life is so many seconds old."""
        if seen.owner is None:
            return age > GRACE_SECONDS
        if self._identity.can_see(seen.owner.identity):
            return not seen.owner.identity.is_alive()
        return age > STALE_SECONDS

    def _in_use(self, owner: _Owner, age: float) -> str:
        next_step = "Wait until it has finished"
        if not self._identity.can_see(owner.identity):
            next_step += f", or, if it crashed, until {STALE_SECONDS:.0f} s after its last sign of life"
        return f"in use by {owner}; its last sign of life was {max(age, 0):.0f} s ago. {next_step}"

    def _clear_away(self, seen: _Seen) -> None:
        """Make place for our own lock, if what is there still is what was judged to be free."""
        if seen.is_empty:
            with suppress(FileNotFoundError):
                try:
                    self._lock_path.rmdir()  # refused by the system once it has an owner
                except OSError as error:
                    if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                        raise
            return
        self._bury(seen, even_if_touched=seen.mark == self._forced_mark)

    def _bury(self, seen: _Seen, *, even_if_touched: bool) -> bool:
        """Rename a lock out of the way, unless it has changed hands or shows a new sign of life.

        Returns whether it was renamed by us, once and for all.
        """
        grave = self._run_path / f"{_STALE_PREFIX}{seen.mark}"
        with suppress(OSError):  # the directory of another user, perhaps
            os.utime(self._lock_path)  # so that nobody sweeps it as an old one
        try:
            self._lock_path.rename(grave)
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):  # somebody took this owner's lock before us
                return False
            raise
        found = _look(grave)
        if found and found.mark == seen.mark and (even_if_touched or found.touched_ns == seen.touched_ns):
            # An NFS client that still takes this directory for the lock must not find its name in it.
            with suppress(OSError):
                _owner_path(grave).rename(grave / "former-owner.json")
            return True
        with suppress(OSError):  # if there is a new owner already, the one just renamed finds out and stops
            grave.rename(self._lock_path)
        return False

    def _sweep(self) -> None:
        """Remove what crashed processes left, and locks taken so long ago that nobody still wants them.

        Only for the owner.
        """
        now = self._file_system_seconds()
        for path in self._run_path.glob(f"{_STALE_PREFIX}*"):
            with suppress(OSError):
                if now - path.stat().st_mtime > STALE_SECONDS:
                    shutil.rmtree(path)
        # Of any age: whoever is asking for the time just now asks again.
        for path in self._run_path.glob(f"{_CLOCK_PREFIX}*"):
            with suppress(OSError):
                path.unlink()

    def _file_system_seconds(self) -> float:
        """Return the time by the clock that also dates the sign of life."""
        try:
            return self._probe()
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ESTALE):
                raise
            return self._probe()  # the first one was swept away by an owner elsewhere

    def _probe(self) -> float:
        probe = self._run_path / f"{_CLOCK_PREFIX}{secrets.token_hex(8)}"
        try:
            with probe.open("wb") as file:
                _touch(file)
                return os.fstat(file.fileno()).st_mtime
        finally:
            probe.unlink(missing_ok=True)

    def _current_owner(self) -> _Owner | None:
        """Return who holds the lock; asks again before "nobody": it may be away for a moment, see _bury."""
        for pause in (0.0, 0.05, 0.2):
            time.sleep(pause)
            seen = _look(self._lock_path)
            if seen and seen.owner:
                return seen.owner
        return None

    def _forgive(self, error: OSError) -> None:
        """Return while nobody can have taken our lock for stale; raise afterwards."""
        silent = time.monotonic() - self._renewed_at
        if silent > STALE_SECONDS / 2:
            raise RunDirectoryError(
                f"the lock of the run directory {self._run_path} could not be renewed for {silent:.0f} s "
                f"({error}); this process stopped writing. What was written before is kept: repeat the "
                "command to continue when the file system works again."
            ) from error

    def _loss(self, owner: _Owner | None) -> str:
        kept = "this process stopped writing. Nothing that was stored is lost"
        if owner is None:
            return (
                f"the lock of the run directory {self._run_path} is gone: it was deleted, or taken over by a "
                f"process that has finished since; {kept}: repeat the command to continue."
            )
        return (
            f"the run directory {self._run_path} was taken over by {owner}; {kept}, and the new owner "
            "continues from it. Wait until that has finished."
        )


@contextmanager
def _explained(run_path: Path) -> Iterator[None]:
    """Turn what the operating system says into a :class:`RunDirectoryError` with the next step."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            message = (
                f"the run directory {run_path} is read-only for this user ({error}). "
                "Change its permissions, or choose another directory with --run-dir."
            )
        elif error.errno in (errno.ENOSPC, errno.EDQUOT):
            message = (
                f"there is no space left for the run directory {run_path} ({error}). Free some and repeat."
            )
        else:
            message = (
                f"the run directory {run_path} cannot be locked ({error}). Choose another one with --run-dir."
            )
        raise RunDirectoryError(message) from error
