from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from otoscope import run_task
from otoscope.benchmark import BENCHMARK
from otoscope.config import DataSettings, SelectionSettings, TaskConfig, resolve, resolve_data
from otoscope.dataset import load, outside_root
from otoscope.errors import DatasetError
from otoscope.evaluation import dry_run
from otoscope.obtaining import Download, TaskFiles, download, obtain, plan
from otoscope.records import Downloading, DownloadPlanned, Event, FailureKind, Notice
from otoscope.reports.plan import render_dry_run
from otoscope.runs import DryRun
from tests.hub_servers import COMMIT, HubServer, serving
from tests.scripted_server import ScriptedServer
from tests.support import FAST, command, environment, otoscope, write_data

META = "Chat/Chat_meta.json"
TASKS = ("speech_QA", "music_QA")
CLIP = "Chat/speech_QA_tones/clip_0.wav"
IDS = {"modelscope": "evalscope/AIR-Bench-Dataset", "huggingface": "qyang1021/AIR-Bench-Dataset"}
CACHED = Path("modelscope/datasets/evalscope--AIR-Bench-Dataset/snapshots/master")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a data set: three samples of each of two tasks."""
    return write_data(tmp_path_factory.mktemp("original"), each=3, tasks=TASKS)


def contents(root: Path) -> dict[str, bytes]:
    """Return the bytes of everything below ``Chat/``."""
    files = (path for path in (root / "Chat").rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


@pytest.fixture
def hub(original: Path) -> Iterator[HubServer]:
    """Serve it as ModelScope would."""
    with serving(HubServer(contents(original), IDS["modelscope"])) as served:
        yield served


def settings(
    hub: HubServer, folder: Path, *, name: str = "modelscope", **chosen: Any
) -> tuple[DataSettings, SelectionSettings]:
    """Return settings under which the data come from this hub, into caches below ``folder``."""
    environ = {**os.environ, **hub.environment(str(folder))}
    environ.pop("OTOSCOPE_DATA", None)
    args = {BENCHMARK: {"extra_params": {"tasks": chosen.pop("tasks", TASKS)}}}
    return resolve_data(TaskConfig(dataset_hub=name, dataset_args=args, **chosen), environ)


def fill(folder: Path, original: Path, *, without: Sequence[str] = ()) -> Path:
    """Put a copy of the data set there, as some other tool may have."""
    shutil.copytree(original, folder)
    for path in without:
        (folder / path).unlink()
    return folder


def total(tasks: Any) -> TaskFiles:
    """Return the numbers of all tasks together."""
    return sum(tasks.values(), TaskFiles())


def notices(events: Sequence[Event]) -> list[str]:
    """Return what was told in words."""
    return [event.message for event in events if isinstance(event, Notice)]


# --- settings ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "environ", "cache"),
    [
        ("modelscope", {}, "~/.cache/modelscope"),
        ("modelscope", {"MODELSCOPE_CACHE": "/ms"}, "/ms"),
        ("huggingface", {}, "~/.cache/huggingface/hub"),
        ("huggingface", {"XDG_CACHE_HOME": "/xdg"}, "/xdg/huggingface/hub"),
        ("huggingface", {"XDG_CACHE_HOME": "/xdg", "HF_HOME": "$SCRATCH/hf", "SCRATCH": "/s"}, "/s/hf/hub"),
        ("huggingface", {"HF_HOME": "/hf", "HUGGINGFACE_HUB_CACHE": "/older"}, "/older"),
        ("huggingface", {"HUGGINGFACE_HUB_CACHE": "/older", "HF_HUB_CACHE": "/newer"}, "/newer"),
    ],
)
def test_the_cache_is_the_one_that_the_hubs_own_library_takes(
    name: str, environ: dict[str, str], cache: str
) -> None:
    """The libraries' own variables name it, with their own precedence; --dataset-dir stands above them."""
    data, _ = resolve_data(TaskConfig(dataset_hub=name), environ)
    assert data.hub.cache == Path(cache).expanduser()
    named, _ = resolve_data(TaskConfig(dataset_hub=name, dataset_dir="/named"), environ)
    assert named.hub.cache == Path("/named")


# --- what is fetched --------------------------------------------------------------------------------------


def test_only_what_the_chosen_samples_need_is_fetched_and_never_twice(hub: HubServer, tmp_path: Path) -> None:
    """Metadata first, then the files of the limit; a larger one fetches the rest; nothing is asked again."""
    data, selection = settings(hub, tmp_path, limit=1, tasks=["speech_QA"])
    events: list[Event] = []
    first = download(data.hub, selection, events.append)
    assert hub.asked_for() == [META, CLIP]
    assert first.data.root == tmp_path / CACHED
    assert first.tasks == {"speech_QA": TaskFiles(1, 0, 1, 0, 1644, 1644)}
    (planned,) = (event for event in events if isinstance(event, DownloadPlanned))
    assert (planned.wanted, planned.here, planned.files, planned.bytes) == (1, 0, 1, 1644)
    assert planned.free > 0
    assert events.index(planned) < events.index(Downloading("ModelScope", 1, 1, 1644, 1644))

    hub.asked.clear()
    data, selection = settings(hub, tmp_path)
    second = download(data.hub, selection)
    assert total(second.tasks) == TaskFiles(6, 1, 5, 0, 6 * 1644, 5 * 1644)
    assert sorted(hub.asked_for()) == sorted(set(hub.files) - {META, CLIP})
    assert contents(second.data.root) == hub.files


def test_what_is_missing_empty_or_cut_is_fetched_again(
    hub: HubServer, tmp_path: Path, original: Path
) -> None:
    """A folder that is there is no complete download: each file counts, by its size at the hub."""
    root = fill(tmp_path / CACHED, original, without=[CLIP])
    (root / "Chat/speech_QA_tones/clip_1.wav").write_bytes(b"")
    (root / "Chat/music_QA_tones/clip_2.wav").write_bytes(b"cut")
    (root / META).write_bytes(hub.files[META][:100])
    data, selection = settings(hub, tmp_path)
    assert total(download(data.hub, selection).tasks).fetched == 3
    assert contents(root) == hub.files
    assert len(hub.asked_for()) == 4


def test_empty_metadata_are_fetched_by_a_run(hub: HubServer, tmp_path: Path, original: Path) -> None:
    """Metadata of 0 bytes that lie in the cache are replaced by the hub's, and nothing else is asked for."""
    root = fill(tmp_path / CACHED, original)
    (root / META).write_bytes(b"")
    data, selection = settings(hub, tmp_path)
    assert len(obtain(data, selection).samples) == 6
    assert hub.asked_for() == [META]


def test_metadata_that_the_hub_has_damaged_are_an_error(hub: HubServer, tmp_path: Path) -> None:
    """After a second try that ends the same way, the file and its trouble are named."""
    hub.files[META] = b"[{"
    data, selection = settings(hub, tmp_path)
    events: list[Event] = []
    with pytest.raises(DatasetError, match=r"Chat_meta\.json: is not valid JSON.*it has 2 bytes"):
        obtain(data, selection, events.append)
    assert hub.asked_for() == [META, META]
    assert any("fetched once more" in text for text in notices(events))


# --- what is here already ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "place",
    [CACHED, "modelscope/hub/datasets/evalscope/AIR-Bench-Dataset", "modelscope/evalscope/AIR-Bench-Dataset"],
)
def test_a_cache_that_holds_everything_needs_no_network(tmp_path: Path, original: Path, place: str) -> None:
    """Whoever filled it, in whichever layout: the data are used where they are, and no hub is asked."""
    root = fill(tmp_path / place, original)
    nowhere = HubServer({}, IDS["modelscope"], url="http://127.0.0.1:1")
    data, selection = settings(nowhere, tmp_path)
    assert obtain(data, selection).root == root


def test_a_cache_in_an_old_layout_is_completed_where_it_is(
    hub: HubServer, tmp_path: Path, original: Path
) -> None:
    """What another tool began is gone on with in its own place, not fetched anew into another one."""
    root = fill(
        tmp_path / "modelscope/datasets/datasets/evalscope--AIR-Bench-Dataset/snapshots/master", original
    )
    (root / CLIP).unlink()
    data, selection = settings(hub, tmp_path)
    assert obtain(data, selection).root == root
    assert hub.asked_for() == [CLIP]
    assert not (tmp_path / CACHED).exists()


def test_hugging_faces_cache_is_used_offline_and_its_links_are_no_strangers(
    original: Path, tmp_path: Path
) -> None:
    """A snapshot's links into the cache's own blobs are inside; any other link out of it is not."""
    with serving(HubServer(contents(original), IDS["huggingface"])) as hub:
        data, selection = settings(hub, tmp_path, name="huggingface")
        root = obtain(data, selection).root
    found = obtain(data, selection)  # nobody serves it any more
    assert found.root == root
    assert contents(root) == contents(original)
    assert all(Path(sample.audio_path).is_symlink() for sample in found.samples)
    given = load(root, selection)
    assert [outside_root(sample, given.root) for sample in given.samples] == [None] * 6
    (root / CLIP).unlink()
    (root / CLIP).symlink_to(original / CLIP)
    outside = outside_root(given.samples[0], given.root)
    assert outside is not None
    assert outside.kind is FailureKind.OUTSIDE_ROOT
    assert "--follow-links" in outside.message
    assert outside_root(given.samples[0], None) is None


def test_after_a_new_upload_only_links_are_made(original: Path, tmp_path: Path) -> None:
    """Another version with the same files costs no byte of them, and what it changed comes."""
    with serving(HubServer(contents(original), IDS["huggingface"])) as hub:
        data, selection = settings(hub, tmp_path, name="huggingface")
        first = download(data.hub, selection).data.root
        hub.revision = "f" * 40
        hub.files[CLIP] = os.urandom(2000)
        hub.asked.clear()
        came = download(data.hub, selection)
        assert hub.asked_for() == [CLIP]
    assert total(came.tasks) == TaskFiles(6, 0, 6, 0, 5 * 1644 + 2000, 2000)
    assert (first.name, came.data.root.name) == (COMMIT, "f" * 40)
    assert contents(came.data.root) == hub.files


def test_what_is_here_and_not_at_the_hub_is_here(hub: HubServer, tmp_path: Path, original: Path) -> None:
    """A clip that the hub has lost is used as it lies in the cache."""
    fill(tmp_path / CACHED, original)
    del hub.files[CLIP]
    data, selection = settings(hub, tmp_path)
    came = download(data.hub, selection)
    assert (came.compared, came.lacking, total(came.tasks).here) == (True, {}, 6)


def test_without_the_hub_a_complete_cache_is_enough(tmp_path: Path, original: Path) -> None:
    """Sizes cannot be compared then, which is told; every file is there."""
    fill(tmp_path / CACHED, original)
    data, selection = settings(HubServer({}, IDS["modelscope"], url="http://127.0.0.1:1"), tmp_path)
    came = download(data.hub, selection)
    assert (came.compared, came.lacking, total(came.tasks).here) == (False, {}, 6)


# --- what can go wrong ------------------------------------------------------------------------------------


def test_what_the_hub_lacks_is_told_and_costs_nothing_else(hub: HubServer, tmp_path: Path) -> None:
    """A file that is not listed and one that is 404: the rest comes, and both are named with the reason."""
    unlisted = "Chat/music_QA_tones/clip_1.wav"
    del hub.files[unlisted]
    hub.gone = {CLIP}
    data, selection = settings(hub, tmp_path)
    events: list[Event] = []
    came = download(data.hub, selection, events.append)
    assert came.lacking == {
        unlisted: "the hub does not have it",
        CLIP: "the hub lists it and does not have it (404)",
    }
    assert total(came.tasks) == TaskFiles(6, 0, 4, 2, 5 * 1644, 4 * 1644)
    assert sum("not to be had" in text for text in notices(events)) == 2
    hub.gone.clear()
    assert list(download(data.hub, selection).lacking) == [unlisted], "what the hub has by now is fetched"


def test_a_run_goes_on_without_what_the_hub_lacks(hub: HubServer, tmp_path: Path) -> None:
    """The first evaluation downloads by itself; a sample whose clip is nowhere fails as missing_audio."""
    hub.gone = {CLIP}
    with ScriptedServer() as server:
        run = run_task(
            TaskConfig(
                model="m",
                api_url=server.url,
                no_judge=True,
                run_dir=tmp_path / "run",
                generation_config=FAST,
                dataset_args={BENCHMARK: {"extra_params": {"tasks": list(TASKS)}}},
            ),
            environ={**os.environ, **hub.environment(str(tmp_path))},
        )
    assert run.summary.counts["failures"] == {"missing_audio": 1}
    assert len([seen for seen in server.requests if seen.kind == "model"]) == 5
    hub.die()
    data, selection = settings(hub, tmp_path)
    events: list[Event] = []
    assert len(obtain(data, selection, events.append).samples) == 6, "without a link it is known to lack"
    assert CLIP in notices(events)[-1]


def test_too_little_room_is_said_before_anything_is_fetched(hub: HubServer, tmp_path: Path) -> None:
    """The message has what is needed, where, and what is free; no clip was asked for."""
    hub.sizes[CLIP] = 10**18
    data, selection = settings(hub, tmp_path)
    with pytest.raises(DatasetError, match=r"needs 1,000,000,000\.0 GB in .*master, [\d.]+ GB are free"):
        download(data.hub, selection)
    assert hub.asked_for() == [META]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_disk_that_fills_up_ends_the_download(hub: HubServer, tmp_path: Path, original: Path) -> None:
    """The system's refusal in the middle is told as what it is, with the place."""
    root = fill(tmp_path / CACHED, original, without=[CLIP])
    (root / f"{CLIP}.incomplete").symlink_to("/dev/full")
    data, selection = settings(hub, tmp_path)
    with pytest.raises(DatasetError, match=r"no space left: .*What has come is kept: make room"):
        download(data.hub, selection)


def test_a_place_that_cannot_be_written_is_named(hub: HubServer, tmp_path: Path) -> None:
    """A file in the way of the destination is an error that names it, before any hub is asked."""
    (tmp_path / "file").write_bytes(b"")
    data, selection = settings(hub, tmp_path)
    with pytest.raises(DatasetError, match=r"file/below: cannot be written: .*--dest"):
        download(data.hub, selection, dest=tmp_path / "file" / "below")
    assert hub.asked == []


# --- the command ------------------------------------------------------------------------------------------


def chosen(*more: str) -> list[str]:
    """Return the command that downloads both tasks."""
    return ["data", "download", "--tasks", ",".join(TASKS), *more]


def test_the_command_lays_out_a_folder_that_a_run_takes(hub: HubServer, tmp_path: Path) -> None:
    """--dest makes DIR/Chat/..., says how it went by task, and prints the command that uses it."""
    dest = tmp_path / "my data"
    done = otoscope(*chosen("--dest", str(dest)), environ=hub.environment(str(tmp_path / "cache")))
    assert done.returncode == 0, done.stderr
    assert contents(dest) == hub.files
    assert not (tmp_path / "cache/modelscope/datasets").exists()
    rows = [line.split() for line in done.stdout.splitlines() if line.strip()]
    assert ["speech_QA", "3", "0", "3", "0", "4.9", "kB", "4.9", "kB"] in rows
    assert ["all", "6", "0", "6", "0", "9.9", "kB", "9.9", "kB"] in rows
    assert f"otoscope eval --data '{dest}' --tasks speech_QA,music_QA" in done.stdout
    assert "6 files wanted, 0 here already; 6 to fetch from ModelScope, 9.9 kB" in done.stderr
    assert "ModelScope: 6/6 files" in done.stderr
    assert len(load(dest, settings(hub, tmp_path)[1]).samples) == 6


def test_the_command_exits_with_3_where_files_are_lacking(hub: HubServer, tmp_path: Path) -> None:
    """Machines get it as JSON; a dry run before it fetches no clip, and keeps nothing."""
    hub.gone = {CLIP}
    environ = hub.environment(str(tmp_path))
    dry = otoscope(*chosen("--dry-run", "--json"), environ=environ)
    assert dry.returncode == 0, dry.stderr
    foreseen = json.loads(dry.stdout)
    assert foreseen["all"] == {
        "wanted": 6, "here": 0, "fetched": 6, "lacking": 0, "bytes": 6 * 1644, "fetched_bytes": 6 * 1644,
    }  # fmt: skip
    assert hub.asked_for() == [META]
    assert not (tmp_path / CACHED).exists()
    done = otoscope(*chosen("--json"), environ=environ)
    assert done.returncode == 3
    told = json.loads(done.stdout)
    assert list(told["lacking"]) == [CLIP]
    assert told["root"] == str(tmp_path / CACHED)
    assert (told["complete"], told["all"]["fetched"], told["all"]["lacking"]) == (False, 5, 1)
    assert "1 files could not be had" in done.stderr


def test_an_interrupted_download_goes_on(hub: HubServer, tmp_path: Path) -> None:
    """Ctrl-C ends it with 130 and leaves no process; the next one asks for the rest of the file alone."""
    large = "Chat/speech_QA_tones/clip_0.wav"
    hub.files[large] = os.urandom(400_000)
    hub.hold = threading.Event()
    environ = environment(**hub.environment(str(tmp_path)))
    process = subprocess.Popen(command(*chosen()), env=environ, stderr=subprocess.PIPE, encoding="utf-8")
    assert hub.held.wait(60)
    partial = tmp_path / CACHED / f"{large}.incomplete"
    while not (partial.exists() and partial.stat().st_size):
        pass
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "otoscope: stopped: what has come is kept; the same command goes on" in said
    there = partial.stat().st_size
    hub.hold.set()
    hub.asked.clear()
    data, selection = settings(hub, tmp_path)
    assert download(data.hub, selection).lacking == {}
    assert [one.range for one in hub.asked if one.path == large] == [f"bytes={there}-"]
    assert (tmp_path / CACHED / large).read_bytes() == hub.files[large]


def test_two_downloads_into_one_place_both_end_well(hub: HubServer, tmp_path: Path) -> None:
    """Started at the same moment, each finds or fetches what it needs, and the files are whole."""
    dest = tmp_path / "shared"
    data, selection = settings(hub, tmp_path)
    start = threading.Barrier(2)

    def run(_number: int) -> Download:
        start.wait()
        return download(data.hub, selection, dest=dest)

    with ThreadPoolExecutor(2) as threads:
        both = list(threads.map(run, range(2)))
    assert [came.lacking for came in both] == [{}, {}]
    assert contents(dest) == hub.files
    assert len(hub.asked_for()) < 2 * len(hub.files), "what the other one fetched is not fetched again"


# --- a dry run --------------------------------------------------------------------------------------------


def test_a_plan_tells_what_is_still_to_come(hub: HubServer, tmp_path: Path, original: Path) -> None:
    """With the metadata here the hub is asked for sizes; out of its reach they stay open; nothing comes."""
    root = fill(tmp_path / CACHED, original, without=[CLIP])
    data, selection = settings(hub, tmp_path)
    foreseen = plan(data.hub, selection)
    assert (foreseen.place, foreseen.compared) == (root, True)
    assert (foreseen.all.fetched, foreseen.all.fetched_bytes) == (1, 1644)
    assert foreseen.missing == {"speech_QA/tones/clip_0.wav#0"}
    assert hub.asked_for() == []
    hub.die()
    foreseen = plan(data.hub, selection)
    assert (foreseen.all.fetched, foreseen.compared) == (1, False)
    with pytest.raises(DatasetError, match="out of reach") as raised:
        obtain(data, selection)
    assert f"5 of 6 clips are here: --data {root} uses them" in str(raised.value)


def test_a_dry_run_of_an_evaluation_downloads_nothing(hub: HubServer, tmp_path: Path, original: Path) -> None:
    """Without metadata it says that they come first; with them, how much comes; nothing is fetched."""
    environ = {**os.environ, **hub.environment(str(tmp_path))}
    environ.pop("OTOSCOPE_DATA", None)
    config = TaskConfig(
        model="m",
        api_url="http://127.0.0.1:1/v1",
        no_judge=True,
        dataset_args={BENCHMARK: {"extra_params": {"tasks": list(TASKS)}}},
    )
    before = shown(dry_run(resolve(config, environ)))
    assert "metadata of evalscope/AIR-Bench-Dataset would be fetched first" in before
    assert hub.asked == []
    fill(tmp_path / CACHED, original, without=[CLIP])
    after = shown(dry_run(resolve(config, environ)))
    assert "download 1 clips, 1.6 kB, from modelscope" in after
    assert "unusable" not in after
    assert hub.asked_for() == []


def shown(dry: DryRun) -> str:
    """Return what is printed of a dry run, in one line."""
    console = Console(file=io.StringIO(), width=100)
    render_dry_run(dry, console)
    assert isinstance(console.file, io.StringIO)
    return " ".join(console.file.getvalue().split())
