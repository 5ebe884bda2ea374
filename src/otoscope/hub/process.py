"""The process that works with a hub, as this one sees it."""

from __future__ import annotations

import importlib.util
import json
import queue
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from otoscope.children import module_command
from otoscope.config import HubSettings
from otoscope.errors import ConfigError, DatasetError
from otoscope.hub.troubles import Kind, words

PATIENCE = 5.0
"""Seconds without a byte after which a hub is asked for a sign of life."""
_TICK_SECONDS = 0.2
_LEAVE_SECONDS = 1.0
_LAST_WORDS_BYTES = 4096
_QUIET = {"TQDM_DISABLE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
_NAMES = {"modelscope": "ModelScope", "huggingface": "Hugging Face"}
_MIRRORS = {"modelscope": "MODELSCOPE_ENDPOINT", "huggingface": "HF_ENDPOINT"}
_OTHERS = {"modelscope": "huggingface", "huggingface": "modelscope"}
_TOKENS = {
    "modelscope": "set MODELSCOPE_API_TOKEN, or run 'modelscope login'",
    "huggingface": "set HF_TOKEN, or run 'hf auth login'",
}
_CACHES = {"modelscope": "MODELSCOPE_CACHE", "huggingface": "HF_HUB_CACHE"}


class UnreachableError(DatasetError):
    """The hub is out of reach, or does not answer any more."""


@dataclass(frozen=True, slots=True)
class Listed:
    """What a hub says of a file, and whether it is here already."""

    size: int | None
    """Bytes, where the hub tells it."""
    here: bool
    kept: bool = False
    """Its bytes need not be fetched, though it may not be in its place."""


@dataclass(frozen=True, slots=True)
class NotFetched:
    """Why a file did not come."""

    reason: str
    gone: bool
    """The hub does not have it, however often it is asked."""


class HubProcess:
    """A hub's own library at work in a process of its own; use as a context manager.

    ``place`` is the folder that the data set goes to; ``None`` leaves that to the library and its cache.
    ``tick`` is called several times a second while something is waited for; what it raises ends the process.
    Leaving ends the process within about a second, whatever it does: the next one goes on from what is there.

    Every method blocks, and raises ``DatasetError`` with the next step: :class:`UnreachableError` for a hub
    that is out of reach, others for a data set that is not there or not shown, a full disk, or a place that
    cannot be written. Entering also raises ``ConfigError`` where the library is not installed.
    """

    def __init__(
        self,
        hub: HubSettings,
        *,
        place: Path | None = None,
        tick: Callable[[int, int], None] = lambda _files, _bytes: None,
        patience: float = PATIENCE,
    ) -> None:
        self._hub = hub
        self._place = place
        self._tick = tick
        self._patience = patience
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._process: subprocess.Popen[str] | None = None
        self._said: IO[bytes] | None = None
        self._progress = (0, 0)
        self.endpoint = ""
        """The hub's URL."""

    @property
    def name(self) -> str:
        """The hub's name for people."""
        return _NAMES[self._hub.name]

    def __enter__(self) -> HubProcess:  # noqa: PYI034 (Self needs Python 3.11)
        if self._hub.name == "huggingface" and importlib.util.find_spec("huggingface_hub") is None:
            raise ConfigError("Hugging Face needs its library: pip install 'otoscope[hf]'")
        self._said = tempfile.TemporaryFile()
        self._process = subprocess.Popen(  # noqa: S603 (our own command)
            module_command("otoscope.hub"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            encoding="ascii",
            env={**self._hub.environment, **_QUIET},
            # Ctrl-C at a terminal is for this process, which ends the other one.
            start_new_session=True,
        )
        threading.Thread(target=self._listen, args=(self._process.stdout,), daemon=True).start()
        try:
            self._ask(
                hub=self._hub.name,
                dataset=self._hub.dataset,
                cache=str(self._hub.cache.absolute()),
                place=None if self._place is None else str(self._place.absolute()),
                patience=self._patience,
            )
            self.endpoint = str(self._answer()["endpoint"])
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()
        try:
            process.wait(_LEAVE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if self._said is not None:
            self._said.close()

    def metadata(self, path: str, *, again: bool = False) -> Path:
        """Fetch one file where the one that is here is not the hub's; return the data set's root.

        ``again`` does not trust the one that is here, however it looks.
        """
        self._ask(do="metadata", path=path, again=again)
        return Path(self._answer()["root"])

    def look(self, paths: Sequence[str], root: Path) -> dict[str, Listed]:
        """Return what the hub says of these files, those left out that it does not have."""
        self._ask(do="look", paths=list(paths), root=str(root))
        return {path: Listed(*told) for path, told in self._answer()["found"].items()}

    def fetch(self, paths: Sequence[str]) -> dict[str, NotFetched]:
        """Fetch files that :meth:`look` found; return why for each that did not come as it is listed."""
        self._progress = (0, 0)
        self._ask(do="fetch", paths=list(paths))
        return {path: NotFetched(*told) for path, told in self._answer()["failed"].items()}

    def _listen(self, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                with suppress(ValueError):  # the last line of a process that was killed may be torn
                    self._events.put(json.loads(line))
        self._events.put(None)

    def _ask(self, **request: Any) -> None:
        if self._process is None or self._process.stdin is None:
            raise RuntimeError("the process is not running: use it as a context manager")
        # Where it has ended, its end is what comes as the answer.
        with suppress(OSError):
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()

    def _answer(self) -> dict[str, Any]:
        while True:
            try:
                event = self._events.get(timeout=_TICK_SECONDS)
            except queue.Empty:
                self._tick(*self._progress)
                continue
            if event is None:
                raise DatasetError(f"{self.name}: the download ended without a word{self._last_words()}")
            match event.get("event"):
                case "progress":
                    self._progress = (int(event["files"]), int(event["bytes"]))
                    self._tick(*self._progress)
                case "error":
                    raise self._error(Kind(event["kind"]), str(event["message"]))
                case _:
                    return event

    def _last_words(self) -> str:
        """Return how the process ended, and the last line that it left."""
        code = self._process.wait() if self._process is not None else None
        text = b""
        if self._said is not None:
            self._said.seek(0, 2)
            self._said.seek(max(0, self._said.tell() - _LAST_WORDS_BYTES))
            text = self._said.read()
        lines = text.decode("utf-8", "replace").strip().splitlines()
        last = f"; its last words: {words(Exception(lines[-1]))}" if lines else ""
        return f" (exit code {code}){last}. Repeat the command: it goes on from what is there"

    def _error(self, kind: Kind, message: str) -> DatasetError:
        name, hub = self._hub.name, f"{self.name} ({self.endpoint or 'not reached yet'})"
        match kind:
            case Kind.UNREACHABLE if not self.endpoint:
                return UnreachableError(f"{self.name} is out of reach: {message}\n{_offline(name)}")
            case Kind.UNREACHABLE:
                return UnreachableError(
                    f"{hub}: {message}. What has come is kept: repeat the command, and it goes on\n"
                    f"{_offline(name)}"
                )
            case Kind.REFUSED:
                return DatasetError(
                    f"{hub} does not show {self._hub.dataset}: {message}\nFor a private copy {_TOKENS[name]}"
                )
            case Kind.NO_DATASET:
                return DatasetError(
                    f"{hub} has no {self._hub.dataset}: {message}\nA copy under another name is named with "
                    "dataset_id in --dataset-args; of a private one nothing is shown without a token: "
                    f"{_TOKENS[name]}"
                )
            case Kind.NO_SPACE:
                return DatasetError(
                    f"no space left: {message}. What has come is kept: make room and repeat the command, or "
                    f"name another place: --dest, --dataset-dir or {_CACHES[name]}"
                )
            case Kind.UNWRITABLE:
                return DatasetError(f"{message}. {another_place(name)}")
            case Kind.OTHER:
                return DatasetError(f"{hub}: {message}. Repeat the command: it goes on from what is there")


def another_place(hub: str) -> str:
    """Return the next step where a place cannot be written."""
    return f"Name a place that can be written: --dest, --dataset-dir or {_CACHES[hub]}"


def _offline(hub: str) -> str:
    return f"""Without a link, --data PATH names a folder with the data; on a machine with one, this makes it:
  otoscope data download --dest DIR
Or reach the hub by a mirror ({_MIRRORS[hub]}) or a proxy (HTTPS_PROXY), or take the other one:
--hub {_OTHERS[hub]}"""
