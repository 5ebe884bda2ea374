from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from otoscope import dataset
from otoscope.benchmark import TASKS
from otoscope.config import SelectionSettings
from otoscope.dataset import Dataset, outside_root
from otoscope.errors import DatasetError
from otoscope.records import FailureKind

Record = dict[str, Any]


def record(number: int = 0, task: str = "sound_QA", source: str = "clotho", **changed: Any) -> Record:
    """Return a good record, with some fields changed."""
    return {
        "path": f"clip {number}.wav",
        "question": f"What is heard in {number}?",
        "answer_gt": "Rain.",
        "task_name": task,
        "dataset_name": source,
        "uniq_id": number,
        "meta_info": "{'sound': 'rain'}",
    } | changed


def make(root: Path, records: Iterable[Any]) -> Path:
    """Write a data set's metadata, and its folders with a small file for every clip; return its root."""
    chat = root / "Chat"
    chat.mkdir(parents=True, exist_ok=True)
    records = list(records)
    (chat / "Chat_meta.json").write_text(json.dumps(records, ensure_ascii=False), encoding="utf-8")
    for entry in records:
        folder = chat / f"{entry['task_name']}_{entry['dataset_name']}"
        folder.mkdir(exist_ok=True)
        clip = folder / entry["path"]
        clip.parent.mkdir(parents=True, exist_ok=True)
        clip.write_bytes(b"RIFF")
    return root


def load(
    root: Path,
    *,
    tasks: Iterable[str] = tuple(TASKS),
    limit: float | None = None,
    shuffle: bool = False,
    seed: int = 42,
) -> Dataset:
    """Load a data set with a selection."""
    return dataset.load(root, SelectionSettings(tasks=tuple(tasks), limit=limit, shuffle=shuffle, seed=seed))


def refused(root: Path) -> str:
    """Return what is said of a data set that must be refused; the exit code is that of data sets."""
    with pytest.raises(DatasetError) as caught:
        load(root)
    assert caught.value.exit_code == 3
    return str(caught.value)


def refused_record(tmp_path: Path, entry: Any) -> str:
    """Return what is said of a record that stands after a good one."""
    chat = tmp_path / "Chat"
    chat.mkdir()
    (chat / "Chat_meta.json").write_text(json.dumps([record(), entry]), encoding="utf-8")
    return refused(tmp_path)


# --- the folder and its metadata -------------------------------------------------------------------------


def test_the_root_or_chat_itself_may_be_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The root, its Chat folder, a link to either, and the current folder all mean the same data."""
    root = make(tmp_path / "data", [record()])
    (tmp_path / "link").symlink_to(root / "Chat")
    (tmp_path / "root link").symlink_to(root)
    for given in (root, root / "Chat", tmp_path / "link"):
        assert load(given).root == root
    assert load(tmp_path / "root link").root == tmp_path / "root link"
    monkeypatch.chdir(root / "Chat")
    assert load(Path()).root == root


def test_a_sample_holds_what_its_record_says(tmp_path: Path) -> None:
    """Every field of a record arrives unchanged, and the clip's place follows the benchmark's rule."""
    entry = record(7, path="ä b/Größe 音.wav", question="  Wer\r\nspricht? {x} ", answer_gt="\u2028é")
    sample = load(make(tmp_path, [entry])).samples[0]
    assert (sample.question, sample.reference) == (entry["question"], entry["answer_gt"])
    assert (sample.description, sample.uniq_id) == (entry["meta_info"], 7)
    assert sample.key == "sound_QA/clotho/ä b/Größe 音.wav#7"
    assert Path(sample.audio_path) == tmp_path / "Chat" / "sound_QA_clotho" / "ä b" / "Größe 音.wav"
    assert Path(sample.audio_path).read_bytes() == b"RIFF"


def test_a_missing_root_says_how_to_get_the_data(tmp_path: Path) -> None:
    """A root that is not there names the data set's two homes and the parts that are needed."""
    said = refused(tmp_path / "nowhere")
    assert "there is no such folder" in said
    for needed in ("evalscope/AIR-Bench-Dataset", "qyang1021/AIR-Bench-Dataset", "Chat/Chat_meta.json"):
        assert needed in said


def test_missing_metadata_says_how_to_get_the_data(tmp_path: Path) -> None:
    """A folder without metadata names what it lacks and where that is found."""
    (tmp_path / "Chat").mkdir()
    for given in (tmp_path, tmp_path / "Chat"):
        said = refused(given)
        assert "holds no Chat/Chat_meta.json" in said
        assert "ModelScope" in said


def test_a_renamed_chat_folder_is_named_as_the_reason(tmp_path: Path) -> None:
    """Metadata in a folder that is not called Chat is recognised, and the name said to be the reason."""
    (make(tmp_path, [record()]) / "Chat").rename(tmp_path / "chat-copy")
    assert "is not called Chat" in refused(tmp_path / "chat-copy")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_unreadable_metadata_is_named(tmp_path: Path) -> None:
    """Metadata without permission to read it is an error that names the file."""
    make(tmp_path, [record()])
    (tmp_path / "Chat" / "Chat_meta.json").chmod(0)
    assert "Chat_meta.json: cannot be read: Permission denied" in refused(tmp_path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it has 0 bytes"),
        (json.dumps([record(), record(1)]).encode()[:-40], "not valid JSON"),
        (b"version https://git-lfs.github.com/spec/v1\nsize 3000000\n", "Git LFS pointer"),
        (b"[" * 100_000, "not valid JSON"),
        (b'["\xff\xfe\xfa"]', "not valid JSON"),
        (b'{"a": 1}', "must be a JSON list of records, but is dict"),
        (b"null", "but is NoneType"),
        (b"[]", "no record at all"),
    ],
)
def test_damaged_metadata_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    """Metadata that is empty, cut off, no JSON or no list is refused with its path and the reason."""
    (tmp_path / "Chat").mkdir()
    (tmp_path / "Chat" / "Chat_meta.json").write_bytes(content)
    message = refused(tmp_path)
    assert said in message
    assert str(tmp_path / "Chat" / "Chat_meta.json") in message


def test_a_byte_order_mark_is_accepted(tmp_path: Path) -> None:
    """Metadata that an editor saved with a byte order mark reads the same."""
    digest = load(make(tmp_path, [record()])).digest
    path = tmp_path / "Chat" / "Chat_meta.json"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert load(tmp_path).digest == digest


# --- records ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", [None, 5, "text", ["a"]])
def test_a_record_must_be_an_object(tmp_path: Path, entry: Any) -> None:
    """A record that is no object is refused by its index."""
    said = refused_record(tmp_path, entry)
    assert f"record 1 (counted from 0): is {type(entry).__name__}, not an object" in said


@pytest.mark.parametrize("name", record())
@pytest.mark.parametrize("state", ["missing", "null"])
def test_a_record_must_have_every_field(tmp_path: Path, name: str, state: str) -> None:
    """A field that is missing or null is refused by index and name."""
    entry = record(1) | {name: None}
    if state == "missing":
        del entry[name]
    assert f"record 1 (counted from 0): field {name!r} is {state}" in refused_record(tmp_path, entry)


@pytest.mark.parametrize("name", ["path", "question", "answer_gt", "task_name", "dataset_name", "uniq_id"])
@pytest.mark.parametrize("value", [True, 1.5, ["a"], {"a": 1}])
def test_a_field_must_have_its_type(tmp_path: Path, name: str, value: Any) -> None:
    """A field of a wrong type is refused by index and name, and shows its value."""
    said = refused_record(tmp_path, record(1) | {name: value})
    assert f"record 1 (counted from 0): field {name!r} must be" in said
    assert repr(value) in said


def test_an_unknown_task_lists_the_eight(tmp_path: Path) -> None:
    """A record of an unknown task is refused with the closest name and all eight."""
    said = refused_record(tmp_path, record(1, task="sound_qa"))
    assert "record 1 (counted from 0): unknown task 'sound_qa', did you mean 'sound_QA'?" in said
    assert all(task in said for task in TASKS)


def test_a_duplicate_key_names_both_records(tmp_path: Path) -> None:
    """Two records with one key are refused by both indices, also where the ids differ only in type."""
    root = make(tmp_path, [record(0), record(1), record(0, uniq_id="0")])
    said = refused(root)
    assert "records 0 and 2 (counted from 0)" in said
    assert "sound_QA/clotho/clip 0.wav#0" in said


def test_one_clip_may_carry_several_questions(tmp_path: Path) -> None:
    """Records that share a clip and differ in their id are different samples."""
    root = make(tmp_path, [record(0), record(0, uniq_id=1), record(0, task="sound_generation_QA")])
    assert len({sample.key for sample in load(root).samples}) == 3


@pytest.mark.parametrize("value", [{"a": [1, None, True], "b": "ü"}, ["x"], 5, 1.5, False, {}])
def test_a_description_that_is_no_text_becomes_python_s_text_of_it(tmp_path: Path, value: Any) -> None:
    """A description that is not text becomes `str()` of it, and is counted."""
    loaded = load(make(tmp_path, [record(0), record(1, meta_info=value)]))
    assert loaded.samples[1].description == str(value)
    assert loaded.descriptions_converted == 1


# --- nothing outside of the root is sent -----------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "../secret.wav",
        "a/../../secret.wav",
        "a/..",
        "/etc/passwd",
        "..\\secret.wav",
        "a\\..\\..\\secret.wav",
        "C:\\secret.wav",
        "C:secret.wav",
        "\\secret.wav",
        "\\\\server\\share\\secret.wav",
    ],
)
def test_a_path_that_leaves_the_data_is_refused(tmp_path: Path, path: str) -> None:
    """A path that climbs or is absolute, for POSIX or for Windows, is refused by its record."""
    said = refused_record(tmp_path, record(1, path=path))
    assert "record 1 (counted from 0): field 'path' leaves the data set" in said


@pytest.mark.parametrize("source", ["x/../../..", "x\\..\\.."])
def test_a_source_name_that_leaves_the_data_is_refused(tmp_path: Path, source: str) -> None:
    """A source name that makes the folder climb is refused by its record."""
    said = refused_record(tmp_path, record(1, source=source))
    assert "record 1 (counted from 0): field 'dataset_name' leaves the data set" in said


@pytest.mark.parametrize("path", ["", "a\0.wav", "a\ud800.wav"])
def test_a_path_that_no_file_can_have_is_refused(tmp_path: Path, path: str) -> None:
    """An empty path, a NUL and a lone surrogate are refused by their record."""
    said = refused_record(tmp_path, record(1, path=path))
    assert "record 1 (counted from 0): field 'path' is no name of a file" in said


def test_a_link_that_leaves_the_root_is_a_failure(tmp_path: Path) -> None:
    """A clip that is a link to the outside, or lies behind one, fails by name and is never read."""
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "clip 1.wav").write_bytes(b"secret")
    root = make(tmp_path / "data", [record(0), record(2, task="sound_generation_QA")])
    records = [record(0), record(1), record(1, task="music_QA", source="musiccaps")]
    (root / "Chat" / "sound_QA_clotho" / "clip 1.wav").symlink_to(secret / "clip 1.wav")
    (root / "Chat" / "music_QA_musiccaps").symlink_to(secret)
    (root / "Chat" / "Chat_meta.json").write_text(json.dumps(records), encoding="utf-8")
    for path in (secret / "clip 1.wav", secret):
        path.chmod(0)
    try:
        loaded = load(root)
        found = [outside_root(sample, loaded.root) for sample in loaded.samples]
    finally:
        secret.chmod(0o700)
    assert found[0] is None
    for failure in found[1:]:
        assert failure is not None
        assert failure.kind is FailureKind.OUTSIDE_ROOT
        assert "clip 1.wav" in failure.message
        assert not failure.kind.passing


def test_links_inside_the_root_are_fine(tmp_path: Path) -> None:
    """A clip that is a link to another place under the root, and a root that is itself a link, are fine."""
    root = make(tmp_path / "data", [record(0)])
    clip = root / "Chat" / "sound_QA_clotho" / "clip 0.wav"
    (root / "blobs").mkdir()
    clip.rename(root / "blobs" / "1")
    clip.symlink_to("../../blobs/1")
    (tmp_path / "link").symlink_to(root)
    for given in (root, tmp_path / "link"):
        loaded = load(given)
        assert outside_root(loaded.samples[0], loaded.root) is None


def test_a_sibling_with_the_root_s_name_as_prefix_is_outside(tmp_path: Path) -> None:
    """`data-private` is not inside `data`."""
    (tmp_path / "data-private").mkdir()
    (tmp_path / "data-private" / "a.wav").write_bytes(b"secret")
    root = make(tmp_path / "data", [record(0)])
    clip = root / "Chat" / "sound_QA_clotho" / "clip 0.wav"
    clip.unlink()
    clip.symlink_to(tmp_path / "data-private" / "a.wav")
    loaded = load(root)
    assert outside_root(loaded.samples[0], loaded.root) is not None


def test_links_in_a_circle_and_missing_clips_are_not_called_outside(tmp_path: Path) -> None:
    """A clip that is not there, or a link to itself, is left to the audio's own check."""
    root = make(tmp_path, [record(0), record(1)])
    folder = root / "Chat" / "sound_QA_clotho"
    (folder / "clip 0.wav").unlink()
    (folder / "clip 1.wav").unlink()
    (folder / "clip 1.wav").symlink_to(folder / "clip 1.wav")
    loaded = load(root)
    assert [outside_root(sample, loaded.root) for sample in loaded.samples] == [None, None]


def test_a_missing_folder_names_what_can_be_evaluated(tmp_path: Path) -> None:
    """Missing folders are named, with the --tasks that would do without them."""
    records = [record(0), record(0, task="music_QA", source="musiccaps"), record(0, "speech_QA", "iemocap")]
    root = make(tmp_path, records)
    folder = root / "Chat" / "music_QA_musiccaps"
    (folder / "clip 0.wav").unlink()
    folder.rmdir()
    said = refused(root)
    assert "music_QA_musiccaps" in said
    assert "sound_QA_clotho" not in said
    assert "--tasks speech_QA,sound_QA" in said
    assert len(load(root, tasks=["speech_QA", "sound_QA"]).samples) == 2


def test_a_data_set_without_the_chosen_tasks_says_what_it_holds(tmp_path: Path) -> None:
    """When no record is of a chosen task, the tasks that are there are listed with their sizes."""
    make(tmp_path, [record(0), record(1)])
    with pytest.raises(DatasetError, match=r"no sample of music_QA\. It holds 2 of sound_QA"):
        load(tmp_path, tasks=["music_QA"])


# --- selection -------------------------------------------------------------------------------------------

SOURCES = {task.name: task.folders[0] for task in TASKS.values()}


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Return a data set with 10 sound, 7 music and 3 speech samples, interleaved."""
    sizes = {"sound_QA": 10, "music_QA": 7, "speech_QA": 3}
    records = [
        record(number, task, SOURCES[task])
        for number in range(10)
        for task, size in sizes.items()
        if number < size
    ]
    return make(tmp_path, records)


def keys(loaded: Dataset, task: str) -> list[str]:
    """Return the keys of one task's samples, in order."""
    return [sample.key for sample in loaded.samples if sample.task == task]


def counts(loaded: Dataset) -> Mapping[str, int]:
    """Return the number of chosen samples of each task that has some."""
    return {task: n for task in TASKS if (n := len(keys(loaded, task)))}


def test_a_limit_takes_the_first_of_each_task(mixed: Path) -> None:
    """A whole limit is the first N of each task in the file's order; sizes are those before it."""
    loaded = load(mixed, limit=4)
    assert counts(loaded) == {"sound_QA": 4, "music_QA": 4, "speech_QA": 3}
    assert keys(loaded, "music_QA") == [f"music_QA/musiccaps/clip {n}.wav#{n}" for n in range(4)]
    sizes = {task: n for task, n in loaded.task_sizes.items() if n}
    assert sizes == {"sound_QA": 10, "music_QA": 7, "speech_QA": 3}
    assert list(loaded.task_sizes) == list(TASKS)


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (0.5, {"sound_QA": 5, "music_QA": 3, "speech_QA": 1}),
        (0.001, {"sound_QA": 1, "music_QA": 1, "speech_QA": 1}),
        (0.7, {"sound_QA": 7, "music_QA": 4, "speech_QA": 2}),
        (1.0, {"sound_QA": 10, "music_QA": 7, "speech_QA": 3}),
    ],
)
def test_a_fraction_is_taken_of_each_task_s_own_size(
    mixed: Path, limit: float, expected: Mapping[str, int]
) -> None:
    """A fraction is rounded down for each task, but never to nothing."""
    assert counts(load(mixed, limit=limit)) == expected


def test_a_fraction_is_not_lost_to_rounding(tmp_path: Path) -> None:
    """0.29 of 100 is 29, although 0.29 * 100 is a little less in floating point."""
    assert len(load(make(tmp_path, map(record, range(100))), limit=0.29).samples) == 29


def test_the_shuffle_comes_before_the_limit(mixed: Path) -> None:
    """A limited choice is the beginning of the shuffled whole: a larger limit contains a smaller one."""
    whole = keys(load(mixed, shuffle=True), "sound_QA")
    assert sorted(whole) == sorted(keys(load(mixed), "sound_QA"))
    assert whole != keys(load(mixed), "sound_QA")
    assert keys(load(mixed, shuffle=True, limit=4), "sound_QA") == whole[:4]


def test_a_seed_always_gives_the_same_choice(mixed: Path) -> None:
    """The same seed gives the same choice, other seeds give others, and none matters without a shuffle."""
    choices = {tuple(keys(load(mixed, shuffle=True, seed=n, limit=4), "sound_QA")) for n in range(10)}
    assert len(choices) > 5
    for seed in range(3):
        first, again = (load(mixed, shuffle=True, seed=seed, limit=4) for _ in range(2))
        assert first == again
    assert load(mixed, seed=1).samples == load(mixed, seed=2).samples


def test_a_shuffle_does_not_depend_on_the_other_tasks(mixed: Path) -> None:
    """What is chosen of a task is the same whether or not other tasks are evaluated beside it."""
    alone = load(mixed, tasks=["music_QA"], shuffle=True, limit=3)
    assert keys(alone, "music_QA") == keys(load(mixed, shuffle=True, limit=3), "music_QA")
    assert counts(alone) == {"music_QA": 3}


# --- digests ---------------------------------------------------------------------------------------------


def test_a_digest_changes_with_every_field_and_not_with_their_order(tmp_path: Path) -> None:
    """A changed or added field gives sample and data set another digest; another order of keys does not."""
    first = load(make(tmp_path, [record()]))
    assert load(make(tmp_path, [dict(reversed(record().items()))])) == first
    for changed in ({"question": "?"}, {"answer_gt": "-"}, {"meta_info": "{}"}, {"extra": None}):
        other = load(make(tmp_path, [record() | changed]))
        assert other.samples[0].digest != first.samples[0].digest
        assert other.digest != first.digest


def test_the_data_set_s_digest_does_not_depend_on_order_or_selection(tmp_path: Path) -> None:
    """Records in another order change neither the data set's digest nor what a shuffle chooses."""
    records = [record(n, task, SOURCES[task]) for n in range(8) for task in ("sound_QA", "music_QA")]
    first = load(make(tmp_path, records), shuffle=True, limit=3)
    records = records[5:] + records[:5]
    again = load(make(tmp_path, records), shuffle=True, limit=3)
    assert again == first
    assert load(tmp_path, tasks=["music_QA"], limit=1).digest == first.digest
    assert load(make(tmp_path, records[1:])).digest != first.digest


def test_the_full_size_loads(tmp_path: Path) -> None:
    """A metadata file of the benchmark's 2,200 records loads whole."""
    records = [
        record(n, task.name, task.folders[n % len(task.folders)], meta_info="word " * 500)
        for task in TASKS.values()
        for n in range(task.samples)
    ]
    loaded = load(make(tmp_path, records))
    assert len(loaded.samples) == 2200
    assert loaded.task_sizes == {task.name: task.samples for task in TASKS.values()}
