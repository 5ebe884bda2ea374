"""What verify finds: every kind of damage, in real files, and nothing where nothing is wrong."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import struct
import tempfile
import threading
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otoscope.audit import Finding, Inspection, Kind, Progress, Verification, inspect, verify
from otoscope.audit.threads import in_threads
from otoscope.benchmark import TASKS
from otoscope.errors import DatasetError
from otoscope.reports.audit import to_tsv
from tests.odd_data import MP3, RATE, SOUND, WAV, Data, encoded, selection
from tests.support import DEMO

FINE = b"LIST\x04\0\0\0INFO"
"""A chunk that may follow the samples."""
APE = b"APETAGEX" + struct.pack("<IIII", 2000, 32, 0, 0xA000_0000) + bytes(8)
LYRICS = b"LYRICSBEGIN" + b"x" * 20 + b"000031LYRICS200"
DATA = WAV.find(b"data") + 4
CONSTANT = encoded("MP3", "MPEG_LAYER_III", bitrate_mode="CONSTANT", compression_level=0.5)
HALF = len(MP3) // 2


def with_size(size: int) -> bytes:
    """Return the wav with another size of its samples in the header."""
    return WAV[:DATA] + struct.pack("<I", size) + WAV[DATA + 4 :]


def without_info(mp3: bytes) -> bytes:
    """Return an mp3 whose first frame states nothing."""
    place = max(mp3.find(b"Xing"), mp3.find(b"Info"))
    return mp3[:place] + b"none" + mp3[place + 4 :]


def look(tmp_path: Path, content: bytes, name: str = "clip.wav") -> Inspection:
    """Return what is found out about a file with this content."""
    path = tmp_path / name
    path.write_bytes(content)
    return inspect(str(path))


def kinds(found: Inspection) -> list[Kind]:
    """Return the kinds of a clip's troubles."""
    return [kind for kind, _ in found.troubles]


# --- one clip -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.wav", WAV),
        ("float.wav", encoded(subtype="FLOAT")),
        ("24 bit.wav", encoded(subtype="PCM_24")),
        ("8 bit.wav", encoded(subtype="PCM_U8")),
        ("u-law.wav", encoded(subtype="ULAW")),
        ("adpcm.wav", encoded(subtype="IMA_ADPCM")),
        ("extensible.wav", encoded("WAVEX")),
        ("long.wav", encoded("RF64")),
        ("chunk behind.wav", WAV + FINE),
        ("odd chunk without padding.wav", with_size(2 * RATE - 1)[: DATA + 4 + 2 * RATE - 1] + FINE),
        ("zeros behind.wav", WAV + bytes(1000)),
        ("line break behind.wav", WAV + b"\n"),
        ("outer size wrong.wav", WAV[:4] + bytes(4) + WAV[8:]),
        ("a.mp3", MP3),
        ("constant.mp3", CONSTANT),
        ("nothing stated.mp3", without_info(CONSTANT)),
        ("tags.mp3", b"ID3\x04\0\0\0\0\x01\0" + bytes(128) + MP3 + LYRICS + APE + APE + b"TAG" + bytes(125)),
        ("tag behind.mp3", MP3 + b"ID3\x04\0\0\0\0\0\x08" + bytes(8)),
        ("zeros behind.mp3", MP3 + bytes(500)),
        ("low rate.mp3", encoded("MP3", "MPEG_LAYER_III", sound=SOUND[::4])),
        ("stereo.mp3", encoded("MP3", "MPEG_LAYER_III", np.stack([SOUND, -SOUND], 1))),
        ("a.flac", encoded("FLAC")),
        ("a.ogg", encoded("OGG", "VORBIS")),
        ("no ending", MP3),
        ("one channel silent.wav", encoded(sound=np.stack([SOUND, 0 * SOUND], 1))),
        ("very quiet.wav", encoded(subtype="PCM_24", sound=SOUND * 1e-5)),
    ],
)
def test_a_sound_clip_has_no_finding(tmp_path: Path, name: str, content: bytes) -> None:
    """Every sound file passes, whatever its format, its tags, and what lies behind its samples."""
    found = look(tmp_path, content, name)
    assert found.troubles == []
    assert found.seconds > 0.4


def test_the_demo_clips_have_no_finding() -> None:
    """The bundled clips, of other encoders, pass."""
    clips = [path for path in (DEMO / "Chat").rglob("*.*") if path.suffix in (".wav", ".mp3")]
    assert len(clips) == 15
    assert [(path, kinds(inspect(str(path)))) for path in clips if inspect(str(path)).troubles] == []


@pytest.mark.parametrize(
    ("name", "content", "kind", "said"),
    [
        ("cut.wav", WAV[: len(WAV) // 2], Kind.TRUNCATED, "says 2.00 s, the file ends after 1.00 s"),
        ("cut.wav", encoded(subtype="FLOAT")[:64_000], Kind.TRUNCATED, "ends after 1.00 s"),
        ("cut.wav", encoded(subtype="IMA_ADPCM")[:10_000], Kind.TRUNCATED, "says 2.03 s"),
        ("cut.wav", encoded("RF64")[:40_000], Kind.TRUNCATED, "says 2.00 s"),
        ("says more.wav", with_size(8 * RATE), Kind.TRUNCATED, "says 4.00 s, the file ends after 2.00 s"),
        ("says less.wav", with_size(RATE), Kind.LENGTH_MISMATCH, "says 0.50 s, another"),
        ("junk.wav", WAV + b"\1\2" * 5000, Kind.LENGTH_MISMATCH, "another 10,000 bytes"),
        ("pipe.wav", with_size(0xFFFF_FFFF), Kind.LENGTH_MISMATCH, "does not say"),
        ("pipe.wav", with_size(0), Kind.LENGTH_MISMATCH, "the file holds 2.00 s"),
        ("head.wav", WAV[:40], Kind.DAMAGED, "cannot be opened"),
        ("bare.wav", encoded(sound=SOUND[:0]), Kind.ZERO_DURATION, ""),
        ("silent.wav", encoded(sound=0 * SOUND), Kind.SILENT, "2.00 s"),
        ("offset.wav", encoded(sound=0 * SOUND + 0.5), Kind.SILENT, "2.00 s"),
        ("silent.wav", encoded(subtype="FLOAT", sound=0 * SOUND), Kind.SILENT, "2.00 s"),
        ("silent.mp3", encoded("MP3", "MPEG_LAYER_III", 0 * SOUND), Kind.SILENT, ""),
        ("cut.mp3", MP3[:HALF], Kind.TRUNCATED, "says 2.09 s, the file holds 0.97 s"),
        ("last frame cut.mp3", MP3[:-20], Kind.TRUNCATED, "ends within a frame"),
        ("nothing stated, cut.mp3", without_info(CONSTANT)[:10_007], Kind.TRUNCATED, "ends within a frame"),
        ("twice.mp3", MP3 + MP3, Kind.LENGTH_MISMATCH, "says 2.09 s, the file holds 4.21 s"),
        ("nothing stated.mp3", without_info(MP3), Kind.LENGTH_MISMATCH, "may stop after 1.09 s of 2.12 s"),
        ("hole.mp3", MP3[:HALF] + bytes(3000) + MP3[HALF + 3000 :], Kind.DAMAGED, "are no frames"),
        ("small hole.mp3", MP3[:HALF] + bytes(600) + MP3[HALF + 600 :], Kind.DAMAGED, "are no frames"),
        ("between.mp3", MP3[:HALF] + b"garbage" * 20 + MP3[HALF:], Kind.DAMAGED, "140 bytes"),
        ("never came.mp3", MP3[:HALF] + bytes(HALF), Kind.DAMAGED, "are no frames"),
        ("head.mp3", MP3[:300], Kind.DAMAGED, "damaged or cut off"),
        ("cut.flac", encoded("FLAC")[:30_000], Kind.DAMAGED, "cannot be decoded"),
        ("empty.wav", b"", Kind.EMPTY, ""),
        ("text.wav", b"not audio at all " * 50, Kind.NOT_AUDIO, "begins with b'not audio at all'"),
        ("pointer.wav", b"version https://git-lfs.github.com/spec/v1\n", Kind.NOT_AUDIO, "Git LFS pointer"),
        ("page.mp3", b"<!DOCTYPE html>\n<html>", Kind.NOT_AUDIO, "web page"),
        ("zeros.wav", bytes(5000), Kind.NOT_AUDIO, "zeros"),
        ("really mp3.wav", MP3, Kind.NAME_MISMATCH, "holds mp3"),
        ("really wav.mp3", WAV, Kind.NAME_MISMATCH, "holds wav"),
    ],
)
def test_each_damage_is_found(tmp_path: Path, name: str, content: bytes, kind: Kind, said: str) -> None:
    """Every kind of damage is found as just that, once, with what there is to know."""
    found = look(tmp_path, content, name)
    assert kinds(found) == [kind]
    assert said in found.troubles[0][1]


def test_an_mp3_cut_at_any_byte_is_found(tmp_path: Path) -> None:
    """Wherever an mp3 that states its length ends early, more than its last frame lacking, it is found."""
    for size in range(500, len(MP3) - 200, 97):
        assert kinds(look(tmp_path, MP3[:size], "a.mp3"))[0] in (Kind.TRUNCATED, Kind.DAMAGED), size


def test_two_troubles_of_one_clip_are_both_told(tmp_path: Path) -> None:
    """A silent clip under another format's name has two findings."""
    assert kinds(look(tmp_path, encoded(sound=0 * SOUND), "a.mp3")) == [Kind.SILENT, Kind.NAME_MISMATCH]


def test_what_is_no_file_is_unreadable(tmp_path: Path) -> None:
    """A folder, a named pipe and a circle of links are named as what they are, and nobody waits."""
    (tmp_path / "folder.wav").mkdir()
    (tmp_path / "a.wav").symlink_to(tmp_path / "b.wav")
    (tmp_path / "b.wav").symlink_to(tmp_path / "a.wav")
    os.mkfifo(tmp_path / "pipe.wav")
    for name, said in (("folder.wav", "a folder"), ("pipe.wav", "a named pipe"), ("a.wav", "symbolic links")):
        ((kind, detail),) = inspect(str(tmp_path / name)).troubles
        assert (kind, said in detail) == (Kind.UNREADABLE, True), detail


def test_a_file_that_is_not_there_is_missing(tmp_path: Path) -> None:
    """No file, a path through a file, and a link to nothing are missing; of the link that is said."""
    (tmp_path / "link.wav").symlink_to(tmp_path / "gone.wav")
    (tmp_path / "file").write_bytes(b"x")
    assert inspect(str(tmp_path / "none.wav")).troubles == [(Kind.MISSING, "")]
    assert inspect(str(tmp_path / "file" / "a.wav")).troubles == [(Kind.MISSING, "")]
    assert "link" in inspect(str(tmp_path / "link.wav")).troubles[0][1]


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="this system does not list descriptors")
def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    """Good and bad clips leave no file open."""
    for index, content in enumerate((WAV, MP3, MP3[:HALF] + bytes(3000), b"text", WAV[:40])):
        (tmp_path / str(index)).write_bytes(content)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for path in sorted(tmp_path.iterdir()):
        inspect(str(path))
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@settings(max_examples=150, deadline=None)
@given(
    start=st.sampled_from([WAV[:60], MP3[:400], b"RF64", b"ID3\x04\0\0\0\0\0\x0a", b""]),
    rest=st.binary(max_size=900),
)
def test_no_bytes_crash_the_inspection(start: bytes, rest: bytes) -> None:
    """Whatever a file holds, it is found sound or there is a finding; nothing is raised."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "clip"
        path.write_bytes(start + rest)
        found = inspect(str(path))
        assert found.troubles or found.frames > 0


# --- a data set -----------------------------------------------------------------------------------------


@pytest.fixture
def data(tmp_path: Path) -> Data:
    """Give an empty data set."""
    return Data(tmp_path / "data")


def only(found: Verification) -> Finding:
    """Return the one finding that there is."""
    assert len(found.findings) == 1, found.findings
    return found.findings[0]


def test_a_sound_data_set_has_no_finding(data: Data) -> None:
    """Names with spaces and letters of all kinds, folders within folders and shared clips are all right."""
    data.add("Größe — 音.wav")
    data.add("a folder/b c.mp3", MP3)
    data.add("a folder/b c.mp3")
    data.add("./dotted.wav")
    found = data.verify()
    assert found.findings == ()
    assert not found.failed(strict=True)
    assert (found.total.samples, found.total.clips, found.total.found, found.total.usable) == (4, 3, 3, 3)
    assert found.seconds == pytest.approx(2.2, abs=0.01)
    assert found.size == sum(path.stat().st_size for path in data.folder().rglob("*.*") if path.is_file())


def test_expected_and_found_are_told_for_each_task_and_source(data: Data) -> None:
    """Each task is compared with the benchmark's size, and each of its sources has its own counts."""
    data.add("a.wav", task="speech_QA", dataset_name="iemocap")
    data.add("b.wav", b"", task="speech_QA", dataset_name="iemocap")
    data.add("c.wav", task="sound_QA", dataset_name="own")
    gone = data.add("gone.wav", task="sound_QA", dataset_name="own")
    (data.folder("sound_QA", "own") / "gone.wav").unlink()
    found = data.verify()
    rows = {name: row.to_json() for name, row in found.tasks.items()}
    assert set(rows) == set(TASKS)
    assert rows["speech_QA"] == {"expected": 400, "samples": 2, "clips": 2, "found": 2, "usable": 1}
    assert rows["sound_QA"] == {"expected": 400, "samples": 2, "clips": 2, "found": 1, "usable": 1}
    assert found.total.to_json() == {"expected": 2200, "samples": 4, "clips": 4, "found": 3, "usable": 2}
    assert found.folders["speech_QA", "iemocap"].clips == 2
    assert found.folders["speech_QA", "common_voice_en"].samples == 0
    assert ("sound_QA", "clotho") not in found.folders
    assert {finding.kind for finding in found.findings} == {Kind.EMPTY, Kind.MISSING}
    missing = found.findings[0]
    assert (missing.keys, missing.path) == ((gone,), "Chat/sound_QA_own/gone.wav")


def test_a_finding_names_all_samples_of_its_clip(data: Data) -> None:
    """What is wrong with a clip is found once, for all questions about it."""
    keys = [data.add("a.wav", b""), data.add("a.wav"), data.add("a.wav")]
    found = data.verify()
    assert only(found) == Finding(
        kind=Kind.EMPTY,
        task="sound_QA",
        dataset="clotho",
        path="Chat/sound_QA_clotho/a.wav",
        keys=tuple(keys),
    )
    assert found.samples_lost == 3
    assert found.failed()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"task_name": "speach_QA"}, "did you mean 'speech_QA'"),
        ({"question": None}, "field 'question' is null"),
        ({"path": "../../secret.wav"}, "leaves the data set"),
        ({"uniq_id": 1.5}, "field 'uniq_id'"),
    ],
)
def test_a_bad_record_does_not_hide_the_rest(data: Data, changed: dict[str, Any], said: str) -> None:
    """A record that cannot be used is told with its place and field, and the others are looked at."""
    data.add("a.wav")
    data.records.append({**data.records[0], "uniq_id": 7, **changed})
    data.add("b.wav", b"")
    found = data.verify()
    assert [finding.kind for finding in found.findings] == [Kind.BAD_RECORD, Kind.EMPTY]
    assert found.findings[0].detail.startswith("record 1 (counted from 0)")
    assert said in found.findings[0].detail
    assert found.samples_lost == 2


def test_records_that_are_no_objects_are_told(data: Data) -> None:
    """A list, a text and null among the records are findings; with nothing else there are only these."""
    data.records = [[], "x", None]
    found = data.verify()
    assert [finding.kind for finding in found.findings] == [Kind.BAD_RECORD] * 3
    assert found.total.samples == 0


def test_keys_that_occur_twice_are_told_with_all_places(data: Data) -> None:
    """Of records with one key the places are told, and the sample counts once."""
    key = data.add("a.wav", uniq_id=1)
    data.add("b.wav")
    data.add("a.wav", uniq_id=1)
    data.add("a.wav", uniq_id="1")
    found = data.verify()
    assert only(found).kind is Kind.DUPLICATE_KEY
    assert only(found).keys == (key,)
    assert "records 0, 2, 3 " in only(found).detail
    assert (found.total.samples, found.samples_lost) == (2, 1)


@pytest.mark.parametrize(
    ("field", "kind", "fails"),
    [
        ("question", Kind.EMPTY_QUESTION, True),
        ("answer_gt", Kind.EMPTY_REFERENCE, True),
        ("meta_info", Kind.EMPTY_DESCRIPTION, False),
    ],
)
@pytest.mark.parametrize("text", ["", " \n\t"])
def test_empty_texts_are_told(data: Data, field: str, kind: Kind, *, fails: bool, text: str) -> None:
    """A blank question or reference loses its sample, a blank description is a warning."""
    changed: dict[str, Any] = {field: text}
    key = data.add("a.wav", **changed)
    found = data.verify()
    assert (only(found).kind, only(found).keys) == (kind, (key,))
    assert found.failed() is fails
    assert found.failed(strict=True)


def test_equal_clips_under_two_names_are_told(data: Data) -> None:
    """The same bytes under another name, or of another source, are a warning that names all of them."""
    keys = [data.add("b.wav", WAV), data.add("a.wav", WAV), data.add("b.wav", WAV, dataset_name="other")]
    data.add("c.wav", WAV[:-1] + b"\x7f")
    found = data.verify()
    assert only(found).kind is Kind.DUPLICATE_CLIP
    assert only(found).path == "Chat/sound_QA_clotho/a.wav"
    assert "Chat/sound_QA_clotho/b.wav, Chat/sound_QA_other/b.wav" in only(found).detail
    assert set(only(found).keys) == set(keys)
    assert (found.failed(), found.failed(strict=True)) == (False, True)


def test_one_clip_of_two_tasks_is_no_duplicate(data: Data) -> None:
    """The same file of the same source in two tasks' folders is counted, and is as it should be."""
    data.add("a.wav", WAV)
    data.add("a.wav", WAV, task="sound_generation_QA")
    found = data.verify()
    assert (found.findings, found.shared) == ((), 1)


@pytest.mark.parametrize("link_is", ["file", "folder"])
def test_a_link_that_leaves_the_root_is_not_read(data: Data, tmp_path: Path, link_is: str) -> None:
    """Clips behind links out of the data set are not opened, unless links are followed."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "a.wav").write_bytes(b"secret")
    data.add("a.wav")
    if link_is == "file":
        (data.folder() / "a.wav").unlink()
        (data.folder() / "a.wav").symlink_to(tmp_path / "elsewhere" / "a.wav")
    else:
        shutil.rmtree(data.folder())
        data.folder().symlink_to(tmp_path / "elsewhere")
    found = data.verify()
    assert only(found).kind is Kind.OUTSIDE_ROOT
    assert "secret" not in only(found).detail
    assert (found.total.found, found.size) == (0, 0)
    assert only(data.verify(follow_links=True)).kind is Kind.NOT_AUDIO


def test_a_link_within_the_root_is_followed(data: Data) -> None:
    """A link from one folder of the data set to another is all right."""
    data.add("a.wav", WAV)
    data.add("a.wav", WAV, task="sound_generation_QA")
    shutil.rmtree(data.folder("sound_generation_QA"))
    data.folder("sound_generation_QA").symlink_to(data.folder())
    assert data.verify().findings == ()


def test_files_that_no_record_names_are_counted(data: Data) -> None:
    """Files beside the named ones are a warning for each folder; hidden files are not."""
    data.add("a/./b.wav")
    (data.folder() / "a" / "extra.wav").write_bytes(b"x")
    (data.folder() / "more.txt").write_bytes(b"x")
    (data.folder() / ".DS_Store").write_bytes(b"x")
    (data.root / "Chat" / "another_task").mkdir()
    found = data.verify()
    assert (only(found).kind, only(found).path) == (Kind.UNNAMED_FILES, "Chat/sound_QA_clotho")
    assert "2 files" in only(found).detail
    assert not found.failed()


@pytest.mark.parametrize(
    ("recorded", "lies_there"),
    [
        (unicodedata.normalize("NFC", "Größe.wav"), unicodedata.normalize("NFD", "Größe.wav")),
        ("Clip.WAV", "clip.wav"),
    ],
)
def test_a_name_in_another_form_is_pointed_at(data: Data, recorded: str, lies_there: str) -> None:
    """A clip that is there under the same name in another Unicode form or case is told beside the missing."""
    data.add(recorded)
    (data.folder() / recorded).rename(data.folder() / lies_there)
    if (data.folder() / recorded).exists():
        pytest.skip("this file system does not tell them apart")
    found = data.verify()
    missing, extra = found.findings
    assert (missing.kind, extra.kind) == (Kind.MISSING, Kind.UNNAMED_FILES)
    assert f"but there is {lies_there!a}" in missing.detail


def test_tasks_and_limit_restrict_it_to_what_a_run_needs(data: Data) -> None:
    """Only the clips of the chosen samples are decoded; the metadata are looked at whole."""
    for number in range(4):
        data.add(f"{number}.wav", b"" if number == 2 else None)
        data.add(f"{number}.wav", b"", task="music_QA", dataset_name="musiccaps")
    data.records.append({"task_name": "music_QA"})
    found = data.verify(selection={"tasks": ("sound_QA",), "limit": 2})
    assert [finding.kind for finding in found.findings] == [Kind.BAD_RECORD]
    assert found.total.to_json() == {"expected": None, "samples": 2, "clips": 2, "found": 2, "usable": 2}
    assert list(found.tasks) == ["sound_QA"]
    found = data.verify(selection={"tasks": ("sound_QA",)})
    assert (found.total.expected, found.total.samples) == (400, 4)
    assert found.counts == {Kind.BAD_RECORD: 1, Kind.EMPTY: 1}


def test_metadata_without_a_chosen_sample_are_refused(data: Data) -> None:
    """An empty list, and tasks of which there is no sample, are errors that say so."""
    with pytest.raises(DatasetError, match=r"no sample of .* among 0 records"):
        data.verify()
    data.add("a.wav")
    with pytest.raises(DatasetError, match="no sample of music_QA among 1 records"):
        data.verify(selection={"tasks": ("music_QA",)})


@pytest.mark.parametrize("content", [b"", b'[{"path": "a.w', b"{}"])
def test_metadata_that_cannot_be_read_are_an_error(data: Data, content: bytes) -> None:
    """A metadata file of 0 bytes, cut in the middle, or no list is refused as a run refuses it."""
    (data.root / "Chat" / "Chat_meta.json").write_bytes(content)
    with pytest.raises(DatasetError, match=r"Chat_meta\.json") as caught:
        verify(data.root, selection())
    assert caught.value.exit_code == 3


def test_progress_ends_with_all_files_and_bytes(data: Data) -> None:
    """Progress starts at nothing, never goes back, and ends with everything, missing files included."""
    for number in range(5):
        data.add(f"{number}.wav")
    (data.folder() / "3.wav").unlink()
    told: list[Progress] = []
    found = data.verify(on_progress=told.append)
    assert told[0] == Progress(0, 5, 0, found.size)
    assert told[-1] == Progress(5, 5, found.size, found.size)
    done = [(one.files_done, one.bytes_done) for one in told]
    assert done == sorted(done)


def test_the_list_can_be_passed_on(data: Data, tmp_path: Path) -> None:
    """The list and the JSON name no folder above the data set, and odd names stay on their line."""
    odd = "tab\tand\\line\nbreak.wav"
    key = data.add(odd, b"")
    data.add("link.wav")
    (data.folder() / "link.wav").unlink()
    (data.folder() / "link.wav").symlink_to(tmp_path / "private" / "a.wav")
    data.records.append({**data.records[0], "path": str(tmp_path / "private.wav")[1:] + "/../.."})
    found = data.verify()
    text = to_tsv(found.findings).decode()
    assert str(data.root) not in text + json.dumps(found.to_json())
    head, *rows = [line.split("\t") for line in text.splitlines()]
    assert head == ["kind", "task", "dataset", "path", "keys", "detail"]
    assert [row[0] for row in rows] == ["bad_record", "outside_root", "empty"]
    assert all(len(row) == 6 for row in rows)
    unescaped = rows[2][4].replace("\\\\", "\0").replace("\\t", "\t").replace("\\n", "\n").replace("\0", "\\")
    assert unescaped == key


def test_what_machines_read_is_complete(data: Data) -> None:
    """The JSON has its format's version, the verdict, all counts and all findings."""
    data.add("a.wav", b"")
    data.add("b.wav", encoded(sound=0 * SOUND))
    told = json.loads(json.dumps(data.verify().to_json()))
    assert (told["format"], told["ok"], told["samples_lost"]) == (1, False, 1)
    assert told["counts"] == {"empty": 1, "silent": 1}
    assert [(one["kind"], one["fails"]) for one in told["findings"]] == [("empty", True), ("silent", False)]
    assert told["tasks"]["sound_QA"]["datasets"]["clotho"]["usable"] == 1
    assert told["selection"]["limit"] is None


def test_the_demo_data_set_is_sound() -> None:
    """Of the bundled data set there is nothing to find, and its shared clip is counted."""
    found = verify(DEMO, selection())
    assert (found.findings, found.shared, found.total.samples) == ((), 1, 16)


# --- threads --------------------------------------------------------------------------------------------


def test_every_item_is_worked_on_once() -> None:
    """Each item's result comes once, in whatever order."""
    assert sorted(in_threads(lambda number: number * 2, range(500))) == list(range(0, 1000, 2))
    assert list(in_threads(lambda number: number, ())) == []


def test_an_error_in_a_thread_is_raised() -> None:
    """What the work, or the items' source, raises arrives where the results are taken."""

    def fail(number: int) -> int:
        raise ZeroDivisionError(number)

    def broken() -> Iterator[int]:
        yield 1
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(in_threads(fail, range(5)))
    with pytest.raises(ZeroDivisionError):
        list(in_threads(lambda number: number, broken()))


def test_whoever_stops_taking_ends_the_work() -> None:
    """Once the results are no longer taken, each thread ends with the item that it has."""
    before = set(threading.enumerate())
    begun: list[int] = []
    gate = threading.Event()

    def work(number: int) -> None:
        begun.append(number)
        if number:
            gate.wait(30)

    results = in_threads(work, itertools.count())
    next(results)
    threads = set(threading.enumerate()) - before
    results.close()
    gate.set()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert len(begun) <= 1 + len(threads)
