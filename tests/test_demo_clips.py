from __future__ import annotations

import ast
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import soundfile as sf

DEMO = Path(__file__).resolve().parent.parent / "src" / "otoscope" / "demo"
CHAT = DEMO / "Chat"
RECORDS: list[dict[str, object]] = json.loads((CHAT / "Chat_meta.json").read_text(encoding="utf-8"))

FIELDS = {"path", "question", "answer_gt", "task_name", "dataset_name", "uniq_id", "meta_info"}
TASKS = {
    "speech_QA",
    "speech_dialogue_QA",
    "sound_QA",
    "sound_generation_QA",
    "music_QA",
    "music_generation_analysis_QA",
    "speech_and_sound_QA",
    "speech_and_music_QA",
}
GENERATION_TASKS = {"sound_generation_QA", "music_generation_analysis_QA"}


def place(record: dict[str, object]) -> str:
    """Return the clip's place below `Chat`, by the benchmark's own rule."""
    return f"{record['task_name']}_{record['dataset_name']}/{record['path']}"


PLACES = sorted({place(record) for record in RECORDS})


def test_every_record_has_exactly_the_fields_of_the_benchmark() -> None:
    """Every record has the seven fields and no other, an integer id and non-blank text elsewhere."""
    for record in RECORDS:
        assert set(record) == FIELDS
        assert type(record["uniq_id"]) is int
        for field in FIELDS - {"uniq_id"}:
            value = record[field]
            assert isinstance(value, str)
            assert value.strip()


def test_every_description_is_the_text_of_a_python_dict() -> None:
    """The description of every record is what `str()` makes of a dict."""
    for record in RECORDS:
        description = ast.literal_eval(str(record["meta_info"]))
        assert isinstance(description, dict)
        assert str(description) == record["meta_info"]


def test_there_are_two_samples_for_each_task() -> None:
    """The sixteen samples are spread evenly over the eight tasks."""
    assert Counter(record["task_name"] for record in RECORDS) == dict.fromkeys(TASKS, 2)


def test_no_two_records_share_an_identity() -> None:
    """Neither an id nor a question about the same clip occurs twice."""
    assert len({record["uniq_id"] for record in RECORDS}) == len(RECORDS)
    assert len({(place(record), record["question"]) for record in RECORDS}) == len(RECORDS)


def test_clips_are_shared_as_in_the_benchmark() -> None:
    """One clip carries two questions, and one stands in two tasks with the same bytes."""
    assert len(PLACES) < len(RECORDS)
    contents = Counter((CHAT / name).read_bytes() for name in PLACES)
    assert 2 in contents.values()


def test_the_demo_data_stay_small() -> None:
    """Everything in the demo folder's data is at most 2 MB."""
    assert sum(file.stat().st_size for file in CHAT.rglob("*") if file.is_file()) <= 2_000_000


@pytest.mark.parametrize("name", PLACES)
def test_every_clip_is_one_audible_channel_without_clipping(name: str) -> None:
    """Every clip opens, is mono, lasts a few seconds, is loud enough to hear and does not clip."""
    audio, rate = sf.read(CHAT / name, dtype="float64")
    assert audio.ndim == 1
    assert 2.0 <= len(audio) / rate <= 20.0
    assert float(np.sqrt(np.mean(audio**2))) > 0.03
    assert 0.5 < float(np.abs(audio).max()) < 0.99


@pytest.mark.parametrize("name", PLACES)
def test_every_clip_is_what_its_name_says(name: str) -> None:
    """A clip named mp3 has an mp3's first bytes, any other is 16-bit wav."""
    info = sf.info(CHAT / name)
    start = (CHAT / name).read_bytes()[:3]
    if name.endswith(".mp3"):
        assert info.format == "MP3"
        assert start == b"ID3" or (start[0] == 0xFF and start[1] & 0xE0 == 0xE0)
    else:
        assert name.endswith(".wav")
        assert (info.format, info.subtype) == ("WAV", "PCM_16")


def test_both_kinds_of_clips_are_there() -> None:
    """The demo data have mp3 clips and wav clips, as the benchmark has."""
    assert {Path(name).suffix for name in PLACES} == {".mp3", ".wav"}


def test_the_folder_holds_nothing_that_no_record_names() -> None:
    """The files in the folder are the records' clips and the list of records."""
    files = {file.relative_to(CHAT).as_posix() for file in CHAT.rglob("*") if file.is_file()}
    assert files == {*PLACES, "Chat_meta.json"}


@pytest.mark.parametrize("name", PLACES)
def test_every_clip_is_named_in_the_provenance(name: str) -> None:
    """The provenance page has an entry for every clip."""
    assert f"| `{name}` |" in (DEMO / "PROVENANCE.md").read_text(encoding="utf-8")


def test_texts_are_as_long_as_the_benchmarks() -> None:
    """Generation tasks have long questions and references, the other tasks short ones."""
    for record in RECORDS:
        question, reference = len(str(record["question"])), len(str(record["answer_gt"]))
        if record["task_name"] in GENERATION_TASKS:
            assert 150 <= question <= 400
            assert 800 <= reference <= 1100
        else:
            assert 17 <= question <= 166
            assert 10 <= reference <= 150
