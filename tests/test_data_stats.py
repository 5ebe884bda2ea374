"""The data set in numbers: those of the benchmark's page, and what it leaves out."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from otoscope.audit import Description, Durations, Progress, describe
from otoscope.benchmark import TASKS
from otoscope.errors import DatasetError
from tests.odd_data import MP3, RATE, SOUND, WAV, Data, Here, encoded, selection
from tests.support import otoscope


class Published(NamedTuple):
    """What is published of one task: of questions mean, min and max, of reference answers the mean."""

    mean: str
    least: int
    most: int
    target: str


PUBLISHED = {
    "speech_QA": Published("64.33", 23, 148, "74.00"),
    "speech_dialogue_QA": Published("77.03", 29, 206, "85.14"),
    "sound_QA": Published("73.29", 17, 166, "59.26"),
    "sound_generation_QA": Published("222.52", 130, 423, "863.63"),
    "music_QA": Published("57.54", 24, 202, "39.14"),
    "music_generation_analysis_QA": Published("267.52", 148, 395, "1068.28"),
    "speech_and_sound_QA": Published("63.98", 25, 127, "34.05"),
    "speech_and_music_QA": Published("69.37", 32, 127, "29.17"),
}
ALL = Published("83.89", 17, 423, "140.38")
FEWER = dict.fromkeys(["speech_QA", "speech_dialogue_QA", "sound_QA", "music_QA"], 1)
"""Characters fewer than the targets' rounded means come to: only so is the mean of all of them 140.38."""


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Here:
    """Give what runs commands inside of this process."""
    return Here(capsys, monkeypatch)


@pytest.fixture
def data(tmp_path: Path) -> Data:
    """Give an empty data set."""
    return Data(tmp_path / "data")


def stats(data: Data, **more: Any) -> Description:
    """Describe a data set."""
    return describe(data.write(), selection(**more.pop("selection", {})), **more)


# --- what the benchmark's page tells --------------------------------------------------------------------


def of_length(length: int) -> str:
    """Return a text of so many characters, some of which are several bytes."""
    return ("é音a " * (length // 4 + 1))[:length]


def question_lengths(task: str) -> list[int]:
    """Return lengths with the published mean (to two decimals), minimum and maximum."""
    told, count = PUBLISHED[task], TASKS[task].samples
    rest = round(float(told.mean) * count) - told.least - told.most
    base, longer = divmod(rest, count - 2)
    assert told.least <= base < told.most
    return [told.most, told.least, *([base + 1] * longer), *([base] * (count - 2 - longer))]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a data set whose texts have the very lengths of the real ones; each folder has one clip."""
    root = tmp_path_factory.mktemp("published")
    records: list[dict[str, Any]] = []
    for task in TASKS.values():
        total = round(float(PUBLISHED[task.name].target) * task.samples) - FEWER.get(task.name, 0)
        base, longer = divmod(total, task.samples)
        for number, length in enumerate(question_lengths(task.name)):
            source = task.folders[number * len(task.folders) // task.samples]
            ending = "mp3" if source == "common_voice_en" else "wav"
            records.append(
                {
                    "path": f"a.{ending}",
                    "question": of_length(length),
                    "answer_gt": of_length(base + (number < longer)),
                    "task_name": task.name,
                    "dataset_name": source,
                    "uniq_id": len(records),
                    "meta_info": "{}",
                }
            )
            place = root / "Chat" / f"{task.name}_{source}" / f"a.{ending}"
            if number in (0, task.samples - 1):
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(MP3 if ending == "mp3" else WAV)
    (root / "Chat" / "Chat_meta.json").write_text(json.dumps(records), encoding="utf-8")
    return root


def cells(line: str) -> list[str]:
    """Return the cells of a table's line, on the terminal or in Markdown."""
    return [cell for cell in re.split(r"[|`\s]+", line) if cell]


def row(told: Published, samples: int) -> list[str]:
    """Return the cells that a task's row must have."""
    return [f"{samples:,}", told.mean, str(told.least), str(told.most), told.target]


def test_the_terminal_tells_the_published_lengths(published: Path) -> None:
    """Every task's count, mean, minimum, maximum and target mean are those of the benchmark's page."""
    done = otoscope("data", "stats", str(published), environ={"COLUMNS": "80"})
    assert done.returncode == 0, done.stderr
    table = done.stdout.split("Lengths of questions")[1].split("\nClips")[0]
    shown = {line[0]: line[1:] for line in map(cells, table.splitlines()) if len(line) == 6}
    assert shown == {
        **{task: row(told, TASKS[task].samples) for task, told in PUBLISHED.items()},
        "all": row(ALL, 2200),
    }
    assert max(map(len, done.stdout.splitlines()[1:])) <= 80


def test_markdown_tells_the_published_lengths_in_the_page_s_words(published: Path, run: Here) -> None:
    """The first tables of the Markdown are the page's: same names, same numbers."""
    done = run("data", "stats", str(published), "--format", "md")
    assert done.returncode == 0, done.stderr
    for line in (
        "| Total Samples | 2,200 |",
        "| Prompt Length (Mean) | 83.89 chars |",
        "| Prompt Length (Min/Max) | 17 / 423 chars |",
        "| Target Length (Mean) | 140.38 chars |",
        "| Total Audio Files | 2,200 |",
        "| Audio per Sample | min: 1, max: 1, mean: 1 |",
        "| Formats | mp3, wav |",
    ):
        assert line in done.stdout.splitlines()
    subsets = done.stdout.split("**Per-Subset Statistics:**")[1].split("**Audio Statistics:**")[0]
    shown = {line[0]: line[1:] for line in map(cells, subsets.splitlines()) if line and line[0] in TASKS}
    assert shown == {task: row(told, TASKS[task].samples) for task, told in PUBLISHED.items()}


def test_json_tells_the_published_lengths(published: Path, run: Here) -> None:
    """The JSON has the same numbers, rounded to two decimals."""
    done = run("data", "stats", str(published), "--format", "json")
    told = json.loads(done.stdout)

    def lengths(part: Mapping[str, Any]) -> tuple[float, int, int, float]:
        question = part["question_length"]
        return question["mean"], question["min"], question["max"], part["target_length"]["mean"]

    assert told["format"] == 1
    assert lengths(told) == (83.89, 17, 423, 140.38)
    assert {task: lengths(part) for task, part in told["tasks"].items()} == {
        task: (float(one.mean), one.least, one.most, float(one.target)) for task, one in PUBLISHED.items()
    }
    assert told["samples"] == told["audio"]["total_files"] == 2200
    assert told["audio"]["per_sample"] == {"min": 1, "max": 1, "mean": 1}
    assert told["audio"]["formats"] == {"mp3": 200, "wav": 2000}
    assert told["audio"]["different_files"] == 10
    assert [part["samples"] for part in told["tasks"].values()] == [task.samples for task in TASKS.values()]


# --- what the page leaves out ---------------------------------------------------------------------------


def seconds_long(seconds: float, rate: int = 8000, channels: int = 1) -> bytes:
    """Return a wav of this duration."""
    frames = round(seconds * rate)
    return encoded(sound=np.full((frames, channels), 0.1, "float32"), rate=rate)


def test_durations_are_those_of_the_clips(data: Data) -> None:
    """Mean, median, percentile, extremes and sum are those that numpy computes, per sample."""
    lengths = [0.25, 10.0, 10.125, 20.0, 30.0, 30.125, 61.0]
    for number, length in enumerate(lengths):
        data.add(f"{number}.wav", seconds_long(length))
    data.add("6.wav")
    told = stats(data).total.durations
    used = [*lengths, 61.0]
    assert told is not None
    assert (told.least, told.most) == (0.25, 61.0)
    assert told.mean == pytest.approx(np.mean(used))
    assert told.median == pytest.approx(np.median(used))
    assert told.p95 == pytest.approx(np.percentile(used, 95))
    assert told.total == pytest.approx(sum(used))
    assert told.histogram == (2, 2, 1, 1, 2)
    assert told.over_30_seconds == 3


def test_the_duration_of_an_mp3_is_its_own(data: Data) -> None:
    """What the encoder put before and behind the sound is not counted."""
    data.add("a.mp3", MP3)
    told = stats(data).total.durations
    assert told is not None
    assert told.most == pytest.approx(len(SOUND) / RATE, abs=0.001)


def test_one_or_no_duration_is_enough() -> None:
    """Of a single clip every number is its duration; of none there is nothing to tell."""
    told = Durations.of([2.5])
    assert told is not None
    assert (told.mean, told.median, told.p95, told.total, told.histogram) == (
        2.5,
        2.5,
        2.5,
        2.5,
        (1, 0, 0, 0, 0),
    )
    assert Durations.of([]) is None


def test_rates_channels_and_formats_are_counted_per_sample(data: Data) -> None:
    """Each sample counts with its clip's rate, channels and format, which the bytes decide."""
    data.add("a.wav", seconds_long(0.1, rate=44_100, channels=2))
    data.add("a.wav")
    data.add("really mp3.wav", MP3)
    data.add("extensible.wav", encoded("WAVEX"), task="music_QA", dataset_name="musiccaps")
    told = stats(data)
    assert told.total.rates == {16_000: 2, 44_100: 2}
    assert told.total.channels == {1: 2, 2: 2}
    assert told.total.formats == {"mp3": 1, "wav": 3}
    assert (told.total.samples, told.total.clips) == (4, 3)
    assert told.tasks["music_QA"].formats == {"wav": 1}
    assert list(told.tasks) == ["sound_QA", "music_QA"]


def level(amplitude: float) -> float:
    """Return the RMS level of a sine in dBFS."""
    return 20 * math.log10(amplitude / math.sqrt(2))


def tone(seconds: float, amplitude: float) -> Any:
    """Return a sine, in whole turns."""
    return amplitude * np.sin(2 * np.pi * 100 * np.arange(round(seconds * RATE)) / RATE)


def test_loudness_is_the_rms_level_of_the_middle(data: Data) -> None:
    """Two seconds from the middle are heard, unless all of the clip is asked for."""
    sound = np.concatenate([tone(4, 0.01), tone(2, 0.5), tone(4, 0.01)])
    data.add("a.wav", encoded(sound=sound, subtype="FLOAT"))
    middle, whole = stats(data).total.loudness, stats(data, whole=True).total.loudness
    assert middle is not None
    assert whole is not None
    assert middle.median == pytest.approx(level(0.5), abs=0.01)
    power = (8 * 0.01**2 + 2 * 0.5**2) / 10 / 2
    assert whole.median == pytest.approx(10 * math.log10(power), abs=0.01)


def test_levels_are_compared_and_silence_is_counted_apart(data: Data) -> None:
    """Quietest, median and loudest are of what can be heard; channels count alike; short clips are whole."""
    for number, amplitude in enumerate((0.5, 0.1, 0.02)):
        data.add(f"{number}.wav", encoded(sound=tone(1, amplitude), subtype="FLOAT"))
    data.add("silent.wav", encoded(sound=0 * SOUND))
    data.add("half.wav", encoded(sound=np.stack([tone(1, 0.1), 0 * tone(1, 1)], 1), subtype="FLOAT"))
    told = stats(data).total.loudness
    assert told is not None
    assert told.loudest == pytest.approx(level(0.5), abs=0.01)
    assert told.quietest == pytest.approx(level(0.02), abs=0.01)
    assert told.median == pytest.approx((level(0.1) + level(0.1) - 10 * math.log10(2)) / 2, abs=0.01)
    assert told.silent == 1


def test_clips_that_cannot_be_read_are_counted_and_left_out(data: Data, tmp_path: Path) -> None:
    """Missing, empty and outside clips leave only their texts in the numbers; bad records leave nothing."""
    data.add("good.wav", seconds_long(2))
    data.add("empty.wav", b"")
    data.add("gone.wav")
    data.add("outside.wav")
    (data.folder() / "gone.wav").unlink()
    (data.folder() / "outside.wav").replace(tmp_path / "elsewhere.wav")
    (data.folder() / "outside.wav").symlink_to(tmp_path / "elsewhere.wav")
    data.records.append({"path": "x"})
    told = stats(data)
    assert (told.total.samples, told.total.unusable, told.bad_records) == (4, 3, 1)
    assert told.total.durations is not None
    assert (told.total.durations.total, sum(told.total.durations.histogram)) == (2.0, 1)
    assert told.total.formats == {"wav": 1}
    assert stats(data, follow_links=True).total.unusable == 2


def test_without_any_clip_the_texts_are_told(data: Data, run: Here) -> None:
    """With metadata alone the texts' numbers are there, and the clips' are n/a in every format."""
    data.add("a.wav")
    shutil.rmtree(data.folder())
    told = stats(data)
    assert (told.total.durations, told.total.loudness, told.size) == (None, None, 0)
    for form in ("terminal", "md", "json"):
        done = run("data", "stats", str(data.root), "--format", form)
        assert done.returncode == 0, done.stderr
        assert ("n/a" in done.stdout) is (form != "json")
        assert ("Without a clip that can be read: 1 of 1 samples" in " ".join(done.stdout.split())) is (
            form != "json"
        )


def test_no_chosen_sample_is_an_error(data: Data) -> None:
    """Where the chosen tasks have no sample, or every record is bad, that is said."""
    data.add("a.wav")
    with pytest.raises(DatasetError, match="no sample of music_QA"):
        stats(data, selection={"tasks": ("music_QA",)})
    data.records = [{}]
    with pytest.raises(DatasetError, match="no sample of"):
        stats(data)


def test_progress_is_told(data: Data) -> None:
    """Progress ends with all clips, each once."""
    data.add("a.wav")
    data.add("a.wav")
    data.add("b.wav")
    told: list[Progress] = []
    size = stats(data, on_progress=told.append).size
    assert (told[0].files_done, told[-1].files_done, told[-1].files, told[-1].bytes_done) == (0, 2, 2, size)


def test_the_terminal_tells_what_is_over_30_seconds(data: Data, run: Here) -> None:
    """The histogram and the sentence about long clips are there, and the way out."""
    data.add("a.wav", seconds_long(31))
    data.add("b.wav", seconds_long(5))
    said = " ".join(run("data", "stats", str(data.write())).stdout.split())
    assert "Longer than 30 s: the clips of 1 of 2 samples" in said
    assert "--audio-policy" in said
    assert "sound_QA 1 - - 1 -" in said
