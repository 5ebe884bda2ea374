from __future__ import annotations

import errno
import fnmatch
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from modelscope_hub.utils.patterns import normalize_patterns

from otoscope.config import HubSettings
from otoscope.errors import ConfigError, DatasetError
from otoscope.hub import HubProcess, UnreachableError, cached_roots
from otoscope.hub.from_modelscope import pattern
from otoscope.hub.troubles import Kind, disk_trouble, failed_files, hub_trouble, network_words, words
from tests.hub_servers import COMMIT, HubServer, serving

META, FOLDER = "Chat/Chat_meta.json", "Chat/speech_QA_iemocap"
ODD = [f"{FOLDER}/a [1], b*?.wav", f"{FOLDER}/Grüße 你好 .wav", f"{FOLDER}/deep/er.wav"]
LARGE = os.urandom(1_500_000)
BOTH = pytest.mark.parametrize("name", ["modelscope", "huggingface"])


def files() -> dict[str, bytes]:
    """Return a small data set with names of every kind."""
    plain = {f"{FOLDER}/{number}.wav": os.urandom(1000 + number) for number in range(4)}
    return {META: b"[]", **dict.fromkeys(ODD, b"odd"), **plain, "Foundation/other.wav": b"unwanted"}


def settings(name: str, hub: HubServer, folder: Path, **more: str) -> HubSettings:
    """Return settings that lead to a hub on loopback."""
    cache = folder / ("modelscope" if name == "modelscope" else "huggingface/hub")
    return HubSettings(
        name=name,
        dataset=hub.dataset,
        cache=cache,
        environment={**os.environ, **hub.environment(str(folder)), **more},
    )


@contextmanager
def working(
    name: str, hub: HubServer, folder: Path, *, patience: float = 5.0, place: Path | None = None
) -> Iterator[HubProcess]:
    """Run a hub's library against a hub on loopback."""
    with HubProcess(settings(name, hub, folder), place=place, patience=patience) as process:
        yield process


@pytest.fixture
def hub() -> Iterator[HubServer]:
    """Give a hub on loopback."""
    with serving(HubServer(files(), "owner/data-set")) as served:
        yield served


# --- what the libraries do, behind one face ---------------------------------------------------------------


@BOTH
def test_exactly_what_is_asked_for_comes_and_damage_is_replaced(
    name: str, hub: HubServer, tmp_path: Path
) -> None:
    """Names with signs of patterns, spaces and other scripts come whole, and nothing beside them.

    An empty file and one of another size are no file; in a cache of links the bytes behind them go, too.
    """
    many = {f"Chat/sound_QA_clotho/{number}.wav": b"x" for number in range(450)}
    empty, cut, good = (f"{FOLDER}/{number}.wav" for number in range(3))
    wanted = [*ODD, empty, cut, good]
    hub.files |= many
    with working(name, hub, tmp_path) as process:
        root = process.metadata(META)
        listed = process.look([*wanted, f"{FOLDER}/lost.wav", "Chat/no_such_folder/1.wav"], root)
        assert {path: (one.size, one.here) for path, one in listed.items()} == {
            path: (len(hub.files[path]), False) for path in wanted
        }
        assert process.fetch(wanted) == {}
        found = {path.relative_to(root).as_posix(): path for path in root.rglob("*") if path.is_file()}
        assert {path: place.read_bytes() for path, place in found.items()} == {
            path: hub.files[path] for path in [META, *wanted]
        }
        (root / empty).write_bytes(b"")
        (root / cut).write_bytes(b"short")
        hub.asked.clear()
        here = {path: one.here for path, one in process.look([empty, cut, good], root).items()}
        assert here == {empty: False, cut: False, good: True}
        assert process.fetch([empty, cut]) == {}
        assert len(process.look(list(many), root)) == 450, "a listing is read to its last page"
    assert (root / empty).read_bytes() == hub.files[empty]
    assert (root / cut).read_bytes() == hub.files[cut]
    assert good not in hub.asked_for("file")
    expected = "datasets/owner--data-set/snapshots/master"
    if name == "huggingface":
        expected = f"datasets--owner--data-set/snapshots/{COMMIT}"
    assert root == settings(name, hub, tmp_path).cache / expected


@BOTH
def test_a_folder_that_is_wanted_whole_comes_by_one_pattern_and_one_lost_file_costs_no_other(
    name: str, hub: HubServer, tmp_path: Path
) -> None:
    """What the hub lists and does not have is named with its reason, and all the rest comes."""
    wanted = [path for path in hub.files if path.startswith(FOLDER)]
    hub.gone = {f"{FOLDER}/2.wav"}
    with working(name, hub, tmp_path, place=tmp_path / "place") as process:
        root = process.metadata(META)
        process.look(wanted, root)
        failed = process.fetch(wanted)
    assert list(failed) == [f"{FOLDER}/2.wav"]
    assert failed[f"{FOLDER}/2.wav"].gone
    assert "404" in failed[f"{FOLDER}/2.wav"].reason
    assert root == tmp_path / "place"
    assert {path for path in wanted if (root / path).is_file()} == set(wanted) - hub.gone


def test_modelscope_goes_on_with_partial_files(hub: HubServer, tmp_path: Path) -> None:
    """What another process left beside a file's place, and what came before a cut, is asked for only once."""
    left, cut = f"{FOLDER}/left.wav", f"{FOLDER}/cut.wav"
    hub.files |= {left: LARGE, cut: LARGE}
    hub.cuts[cut] = [700_000]
    with working("modelscope", hub, tmp_path) as process:
        root = process.metadata(META)
        (root / FOLDER).mkdir()
        (root / f"{left}.incomplete").write_bytes(LARGE[:1_000_000])
        process.look([left, cut], root)
        assert process.fetch([left, cut]) == {}
    assert (root / left).read_bytes() == (root / cut).read_bytes() == LARGE
    assert [one.range for one in hub.asked if one.path == left] == ["bytes=1000000-"]
    assert [one.range for one in hub.asked if one.path == cut] == [None, "bytes=700000-"]


@pytest.mark.parametrize("lasting", [True, False])
def test_a_file_whose_size_changes_under_way(hub: HubServer, tmp_path: Path, lasting: bool) -> None:
    """Where the new listing agrees with what came, all is well; a hub that contradicts itself is told of."""
    path = f"{FOLDER}/1.wav"
    hub.sizes[path] = 5
    with working("modelscope", hub, tmp_path) as process:
        root = process.metadata(META)
        process.look([path], root)
        if not lasting:
            hub.sizes.clear()
        failed = process.fetch([path])
    assert list(failed) == ([path] if lasting else [])
    if lasting:
        assert "5 bytes" in failed[path].reason
        assert not failed[path].gone
    else:
        assert (root / path).read_bytes() == hub.files[path]


def test_a_hub_that_dies_is_noticed_and_what_came_stays(hub: HubServer, tmp_path: Path) -> None:
    """Half-way nobody answers any more: that is said, with what to do, and finished files are not lost."""
    small, large = f"{FOLDER}/1.wav", f"{FOLDER}/large.wav"
    hub.files[large], hub.hold = LARGE, threading.Event()
    with working("modelscope", hub, tmp_path, patience=0.1) as process:
        root = process.metadata(META)
        process.look([small, large], root)
        hub.hold.set()
        process.fetch([small])
        hub.hold.clear()

        def kill() -> None:
            hub.held.wait(30)
            hub.die()

        killer = threading.Thread(target=kill)
        killer.start()
        with pytest.raises(UnreachableError, match=r"does not answer any more.*\n*.*--data PATH"):
            process.fetch([large])
        killer.join()
    assert (root / small).read_bytes() == hub.files[small]
    assert not (root / large).exists()


# --- what can go wrong ------------------------------------------------------------------------------------


@BOTH
def test_a_private_copy_needs_its_token(name: str, hub: HubServer, tmp_path: Path) -> None:
    """Without the right token the message says where it is looked for; with it, the data are there."""
    hub.private = "secret-token"
    variable = {"modelscope": "MODELSCOPE_API_TOKEN", "huggingface": "HF_TOKEN"}[name]
    if name == "modelscope":
        refused = pytest.raises(DatasetError, match=rf"does not show.*HTTP status 401\n.*{variable}")
        with refused, HubProcess(settings(name, hub, tmp_path, **{variable: "wrong"})) as process:
            process.metadata(META)
    with HubProcess(settings(name, hub, tmp_path, **{variable: "secret-token"})) as process:
        assert (process.metadata(META) / META).read_bytes() == b"[]"


def test_a_data_set_that_is_not_there_is_said(hub: HubServer, tmp_path: Path) -> None:
    """A wrong name, or a copy without metadata, is neither an empty data set nor a hub out of reach."""
    about = settings("modelscope", hub, tmp_path)
    hub.dataset = "owner/another"
    no_such = pytest.raises(DatasetError, match=r"has no owner/data-set: HTTP status 404\n.*dataset_id")
    with HubProcess(about) as process, no_such:
        process.metadata(META)


def test_a_closed_port_is_a_hub_out_of_reach(hub: HubServer, tmp_path: Path) -> None:
    """That nobody listens is said at once, with the system's own word and the ways out."""
    about = settings("modelscope", hub, tmp_path)
    hub.die()
    with pytest.raises(UnreachableError) as raised, HubProcess(about):
        pass
    said = str(raised.value)
    assert said.startswith(f"ModelScope is out of reach: {hub.url}: Connection refused\n")
    for way in (
        "--data PATH",
        "otoscope data download --dest",
        "MODELSCOPE_ENDPOINT",
        "HTTPS_PROXY",
        "--hub huggingface",
    ):
        assert way in said


def test_a_process_that_is_killed_is_no_success(hub: HubServer, tmp_path: Path) -> None:
    """The end of the other process is an error that says how it ended, and that it can go on."""
    hub.hold = threading.Event()
    hub.files[f"{FOLDER}/large.wav"] = LARGE
    with working("modelscope", hub, tmp_path) as process:
        process.look([f"{FOLDER}/large.wav"], process.metadata(META))
        other = process._process  # noqa: SLF001 (nobody else knows whom to kill)
        assert other is not None

        def kill() -> None:
            hub.held.wait(30)
            other.send_signal(signal.SIGKILL)

        threading.Thread(target=kill).start()
        with pytest.raises(DatasetError, match=r"exit code -9.*Repeat"):
            process.fetch([f"{FOLDER}/large.wav"])


def test_a_missing_library_is_named(hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hugging Face without its extra says which package to install."""
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    about = settings("huggingface", hub, tmp_path)
    with pytest.raises(ConfigError, match=r"otoscope\[hf\]"), HubProcess(about):
        pass


def test_troubles_with_the_disk_are_found_wherever_they_are_buried() -> None:
    """In a cause, and in what a library says of one of its files; a forbidden socket is another matter."""
    full = OSError(errno.ENOSPC, "No space left on device", "/data/x")
    wrapped = RuntimeError("failed")
    wrapped.__cause__ = full
    of_a_file = RuntimeError("1 of 2 files failed")
    of_a_file.failed_files = {"a": ValueError(), "b": full}  # type: ignore[attr-defined]
    for error in (full, wrapped, of_a_file):
        trouble = disk_trouble(error)
        assert trouble is not None
        assert (trouble.kind, str(trouble)) == (Kind.NO_SPACE, "/data/x: No space left on device")
    read_only = disk_trouble(OSError(errno.EROFS, "Read-only file system", "/data"))
    assert read_only is not None
    assert read_only.kind is Kind.UNWRITABLE
    assert disk_trouble(OSError(errno.EACCES, "Permission denied")) is None
    assert set(failed_files(of_a_file)) == {"a", "b"}


def test_troubles_with_the_hub_are_told_apart_by_status() -> None:
    """401 and 403 need a token, 404 is no data set, and anything else is told as it is."""

    def with_status(code: int) -> Exception:
        error = RuntimeError(f"status {code}")
        error.response = SimpleNamespace(status_code=code)  # type: ignore[attr-defined]
        return error

    kinds = {code: hub_trouble(with_status(code)).kind for code in (401, 403, 404, 500)}
    assert kinds == {401: Kind.REFUSED, 403: Kind.REFUSED, 404: Kind.NO_DATASET, 500: Kind.OTHER}


def test_words_hold_no_secret_and_no_novel() -> None:
    """What a signed URL carries and who asked for it is cut out, and long texts are cut off."""
    told = words(RuntimeError("GET https://user:pw@host/file?sig=abc&x=1 failed\n  twice " + "x" * 1000))
    assert told.startswith("GET https://host/file failed twice xxx")
    assert len(told) < 320
    assert words(None) == "no reason given"
    outer = RuntimeError("a tower of wrappers")
    outer.__cause__ = ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
    assert network_words(outer) == "Connection refused"


# --- names ------------------------------------------------------------------------------------------------

NAMES = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/\\"), min_size=1, max_size=20
)


@given(NAMES, NAMES)
def test_every_name_is_matched_by_its_own_pattern(name: str, other: str) -> None:
    """Whatever signs a name has, the library's own treatment leaves a pattern that finds it."""
    path = f"Chat/{name}"
    patterns = normalize_patterns([pattern(path)])
    assert patterns is not None
    assert len(patterns) == 1
    assert fnmatch.fnmatchcase(path, patterns[0])
    assert fnmatch.fnmatchcase(f"Chat/{other}", patterns[0]) <= (len(other) == len(name))


# --- caches -----------------------------------------------------------------------------------------------

LAYOUTS = {
    "today's": "datasets/owner--data.set/snapshots/master",
    "a revision's": "datasets/owner--data.set/snapshots/v1",
    "before 1.38, MODELSCOPE_CACHE set": "datasets/owner/data___set",
    "before 1.38": "hub/datasets/owner/data___set",
    "before 1.38, the name as it is": "hub/datasets/owner/data.set",
    "a cache folder was named, before 1.38": "owner/data___set",
    "the first": "hub/owner/data.set",
    "evalscope's": "hub/datasets/datasets/owner--data.set/snapshots/master",
    "evalscope's, MODELSCOPE_CACHE set": "datasets/datasets/owner--data.set/snapshots/master",
}


@pytest.mark.parametrize("place", LAYOUTS.values(), ids=LAYOUTS)
def test_every_layout_of_modelscopes_cache_is_known(place: str, tmp_path: Path) -> None:
    """Whichever version of whichever tool has put the data there, they are found."""
    hub = HubSettings(name="modelscope", dataset="owner/data.set", cache=tmp_path, environment={})
    assert cached_roots(hub) == []
    (tmp_path / place / "Chat").mkdir(parents=True)
    assert cached_roots(hub) == [tmp_path / place]


def test_of_several_places_the_newest_layout_and_the_named_revision_come_first(tmp_path: Path) -> None:
    """In Hugging Face's cache the revision that main stands for goes before others, which go by their age."""
    ms = HubSettings(name="modelscope", dataset="owner/data", cache=tmp_path, environment={})
    for place in ("hub/datasets/owner/data", "datasets/owner--data/snapshots/master"):
        (tmp_path / place / "Chat").mkdir(parents=True)
    assert cached_roots(ms)[0] == tmp_path / "datasets/owner--data/snapshots/master"
    hf = HubSettings(name="huggingface", dataset="owner/data", cache=tmp_path, environment={})
    repository = tmp_path / "datasets--owner--data"
    for age, revision in enumerate(("old", "named", "new")):
        (repository / "snapshots" / revision / "Chat").mkdir(parents=True)
        os.utime(repository / "snapshots" / revision, (1000 + age, 1000 + age))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("named", encoding="utf-8")
    assert [path.name for path in cached_roots(hf)] == ["named", "new", "old"]
