"""Whole processes measured from outside: wall, CPU, peak memory; and the loopback server as one of them.

Only the standard library, and little of it: a process that is started takes over its parent's peak memory in
what ``wait4`` tells, so the parent has to stay small.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

REPOSITORY = Path(__file__).parent.parent
SAMPLE_EVERY = 0.05
"""Seconds between two looks at the memory of a process tree. The kernel keeps the peaks."""
_TICKS = os.sysconf("SC_CLK_TCK")


class CommandError(Exception):
    """A measured command failed; the message holds the last lines it wrote."""


@dataclass(frozen=True)
class Measured:
    """What a command took, from its start until it had ended with all that it waited for."""

    started: float
    """Unix time."""
    wall: float
    """Seconds."""
    cpu: float
    """Seconds, user and system, of the process and of those that it started and waited for."""
    cpu_children: float
    """Seconds of those that it started alone, to a hundredth."""
    peak: int
    """Peak resident memory of the process itself, in bytes."""
    peak_largest: int
    """The same of the largest process of its tree."""
    output: str

    @property
    def cpu_self(self) -> float:
        """Seconds of CPU of the process without its children."""
        return self.cpu - self.cpu_children


class Running:
    """A command that runs and is looked at meanwhile. Everything it writes goes to a file."""

    def __init__(self, command: Sequence[str], log: Path, environ: Mapping[str, str] | None = None) -> None:
        self._command = command
        self._log = log
        self._ended = threading.Event()
        self._peak = self._peak_largest = 0
        with log.open("wb") as file:
            self.started, self._clock = time.time(), time.perf_counter()
            self._process = subprocess.Popen(  # noqa: S603 (our own commands)
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=environ or clean_environment(),
            )
        self._watch = threading.Thread(target=self._look, daemon=True)
        self._watch.start()

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def kill(self) -> None:
        """End it with SIGKILL, and take note of its end."""
        self._process.send_signal(signal.SIGKILL)
        self._reap()

    def finish(self, *, expect: Sequence[int] = (0,)) -> Measured:
        """Wait for the end. Raises ``CommandError`` when the exit code is not one of ``expect``."""
        # Without reaping it: the kernel still tells then which part of the CPU was the children's.
        os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        wall = time.perf_counter() - self._clock
        children = _children_cpu(self._process.pid)
        code, cpu, largest = self._reap()
        output = self._log.read_text(encoding="utf-8", errors="replace")
        if code not in expect:
            tail = "\n".join(output.splitlines()[-15:])
            raise CommandError(f"exit code {code}: {' '.join(self._command)}\n{tail}")
        return Measured(
            started=self.started,
            wall=wall,
            cpu=cpu,
            cpu_children=children,
            peak=self._peak,
            peak_largest=max(largest, self._peak_largest),
            output=output,
        )

    def _reap(self) -> tuple[int, float, int]:
        _, status, used = os.wait4(self._process.pid, 0)
        self._ended.set()
        self._watch.join()
        # So that nobody waits for this id again, which may be another process's by now.
        self._process.returncode = os.waitstatus_to_exitcode(status)
        return self._process.returncode, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024

    def _look(self) -> None:
        pid = self._process.pid
        while not self._ended.is_set():
            self._peak = max(self._peak, _peak_of(pid))
            self._peak_largest = max([self._peak_largest, self._peak, *map(_peak_of, _descendants(pid))])
            self._ended.wait(SAMPLE_EVERY)


def measure(
    command: Sequence[str],
    log: Path,
    *,
    environ: Mapping[str, str] | None = None,
    expect: Sequence[int] = (0,),
) -> Measured:
    """Run a command to its end. Raises ``CommandError`` when it fails."""
    return Running(command, log, environ).finish(expect=expect)


def clean_environment() -> dict[str, str]:
    """Return this process's environment without settings, keys, proxies and what changes how Python starts.

    Where compiled modules are not kept, a start would compile all of them.
    """
    unwanted = ("OPENAI_", "OTOSCOPE_", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "PYTHON")
    kept = ("PYTHONPATH",)
    return {n: v for n, v in os.environ.items() if n in kept or not n.upper().startswith(unwanted)}


def _peak_of(pid: int) -> int:
    """Return the peak resident memory (bytes) that a process has had, 0 once it is gone."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def _descendants(pid: int) -> Iterator[int]:
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                for child in (thread / "children").read_text(encoding="ascii").split():
                    yield int(child)
                    yield from _descendants(int(child))


def _children_cpu(pid: int) -> float:
    """Return the CPU (s) of the children that a process has waited for, also of one that has just ended."""
    # The name of the command stands in brackets and may hold anything.
    fields = (
        Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    )
    return (int(fields[13]) + int(fields[14])) / _TICKS


class Server:
    """The loopback server as a process of its own; use as a context manager."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self.url = ""

    def __enter__(self) -> Server:  # noqa: PYI034 (Self needs Python 3.11)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.loopback_server"],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            encoding="utf-8",
        )
        if self._process.stdout is None:
            raise RuntimeError("the server has no output")
        line = self._process.stdout.readline()
        if not line.startswith("listening on "):
            raise CommandError("the loopback server did not start; its own words are above")
        self.url = line.removeprefix("listening on ").strip()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            if self._process.stdout is not None:
                self._process.stdout.close()

    def reset(self, **wanted: Any) -> None:
        """Begin to count anew; see :mod:`benchmarks.loopback_server` for what may be given."""
        self._exchange("/reset", json.dumps(wanted).encode())

    def stats(self) -> dict[str, Any]:
        """Return what was counted since the last reset."""
        stats: dict[str, Any] = json.loads(self._exchange("/stats"))
        return stats

    def _exchange(self, path: str, body: bytes | None = None) -> bytes:
        request = urllib.request.Request(self.url + path, data=body)  # noqa: S310 (loopback)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=60) as response:
            content: bytes = response.read()
        return content
