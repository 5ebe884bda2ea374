"""Fuzzing: the judge's parser, the metadata, the audio sniffer and the run directory get what nobody wrote.

Derandomised, so that a failure comes again; bounded in number (see ``conftest``) and, for each, in time.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import math
import select
import shutil
import signal
import string
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from otoscope import dataset, load_run
from otoscope.benchmark import TASKS
from otoscope.config import SelectionSettings
from otoscope.errors import DatasetError, OtoscopeError
from otoscope.parsing import AnswerFilter, parse_official, parse_verdict, strip_thinking
from otoscope.reports.csv_files import samples_csv, scores_csv
from otoscope.reports.html import render_html
from otoscope.reports.markdown import render_markdown
from otoscope.reports.reported import Reported
from otoscope.reports.terminal import render
from otoscope.store import ANSWERS, MANIFEST, SAMPLES, VERDICTS
from otoscope.texts import catalogue
from tests.faults.driver import small_data, uninterrupted
from tests.support import environment

pytestmark = [pytest.mark.faults, pytest.mark.kind("fuzzing")]

LONGEST = 10.0
"""Seconds that one input may take: far above what any takes, far below a hang."""
MEMORY = 2 << 30
"""Bytes that the process which reads audio may have."""


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """Fail what takes too long."""

    def hung(_number: int, _frame: FrameType | None) -> None:
        raise AssertionError(f"still at it after {LONGEST:.0f} s")

    before = signal.signal(signal.SIGALRM, hung)
    signal.setitimer(signal.ITIMER_REAL, LONGEST)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# --- the judge's parser -----------------------------------------------------------------------------------

PIECES = st.sampled_from(
    [
        "8 7", "8, 7", "8/10 7/10", "Assistant 1: 8", "Assistant 2: 7.5", "Assistant 1s score:", "10 10",
        "0 0", "11 7", "-1 5", "8.5", "1e1 5", "NaN 7", "inf 7", "８ ７", "八 七", "8\u00a07", "助手1: 8",
        "评分：8 7", '{"assistant1": 8, "assistant2": 7}', "[8, 7]", '{"score": {"a": 8', "}}", "[[", "“8 7”",
        "<think>", "</think>", "<|channel|>final<|message|>", "◁think▷", "[/THINK]", "<analysis>", "~~~json",
        '"8 7"', "</analysis>", "```", "**", "|", "> ", "# ", "- ", "[System]", "[Question]",
        "[The Start of Assistant 1s Answer]", "[The End of Assistant 1s Answer]", "Final scores:", "\r\n",
        "Correction:", "because", "I would rate", "sounds", "9 out of 10", "9 of the 10 clips", "12:30", "\t",
        "\u2028", "\x00", "\ud800", "\U0001f3a7", "e" * 50, "9" * 400, "1" + "0" * 350, "." * 60,
    ]
)  # fmt: skip
SEPARATORS = st.sampled_from(["\n", " ", "", "\n\n", ", "])


@st.composite
def replies(draw: st.DrawFn) -> str:
    """Draw a reply put together from what means something to the parser, some of it very often."""
    text = ""
    for piece, separator in draw(st.lists(st.tuples(PIECES | st.text(max_size=8), SEPARATORS), max_size=14)):
        text += (piece + separator) * draw(st.sampled_from([1, 1, 1, 1, 1, 2, 30, 1500]))
    return text


@given(replies())
def test_no_reply_hangs_the_parser_or_gives_scores_out_of_range(text: str) -> None:
    """Whatever a judge writes is read in bounded time, and gives two numbers from 0 to 10, or none."""
    with bounded():
        scores = parse_verdict(text)
        parse_official(text)
        assert len(strip_thinking(text)) <= len(text)
    if scores is not None:
        for score in (scores.first, scores.second):
            assert isinstance(score, (int, float))
            assert math.isfinite(score)
            assert 0 <= score <= 10
        # Both were written there; nothing was calculated, rounded or guessed.
        written = set(text.replace("\uff0c", ","))
        assert written & set(string.digits + "零〇一二两三四五六七八九十") or "ten" in text.lower()


CONTENT = st.sampled_from(
    "piano dog violin rain speaker guitar crowd engine bird melody applause train".split()
)
AROUND = st.text(
    st.sampled_from(string.digits + " 0123456789 .,:;/|-+*_`()!?'") | st.sampled_from("abcdefg"), max_size=30
)
SAYING = st.sampled_from(
    [
        "Assistant 1",
        "Assistant 2:",
        "score",
        "scores are",
        "8 7",
        "9/10",
        "final",
        "I give",
        "both",
        "out of 10",
        "",
    ]
)


@given(st.lists(st.tuples(AROUND, SAYING, CONTENT, SAYING, AROUND), min_size=1, max_size=8))
def test_nothing_is_read_from_prose(lines: Sequence[Sequence[str]]) -> None:
    """Where every line speaks of something that is heard there is no verdict, whatever numbers there are."""
    text = "\n".join(" ".join(parts) for parts in lines)
    with bounded():
        assert parse_verdict(text) is None


@given(
    text=replies(), spec=st.sampled_from(["none", "strip-thinking", "after:Answer", r"regex:scores: (.*)"])
)
def test_no_answer_hangs_a_filter(text: str, spec: str) -> None:
    """What is judged of an answer is found in bounded time."""
    with bounded():
        assert isinstance(AnswerFilter.parse(spec).apply(text), str)


# --- whatever JSON holds ----------------------------------------------------------------------------------

JUNK: st.SearchStrategy[Any] = st.sampled_from(
    [
        None, True, False, 0, -1, 1.5, 1e308, 10**30, 10**400, "", "x", "\ud800", "../../passwd", "a\x00b",
        "x" * 3000, [], ["a"], [[]], {}, {"a": 1}, {"kind": "timeout"},
    ]
)  # fmt: skip


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where everything in a JSON value lies, but for itself."""
    entries = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for name, inner in entries:
        yield (*place, name)
        yield from places(inner, (*place, name))


def spoil(data: st.DataObject, value: Any) -> None:
    """Replace, remove or double something in a JSON value."""
    found = list(places(value))
    if not found:
        return
    *path, last = data.draw(st.sampled_from(found))
    holder = value
    for name in path:
        holder = holder[name]
    match data.draw(st.sampled_from(["replace", "replace", "remove", "rename"])):
        case "remove":
            del holder[last]
        case "rename" if isinstance(holder, dict):
            holder[f"{last} "] = holder.pop(last)
        case _:
            holder[last] = copy.deepcopy(data.draw(JUNK))


def spoil_bytes(data: st.DataObject, content: bytes) -> bytes:
    """Overwrite, cut out or insert a few bytes."""
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content)))
        length = data.draw(st.sampled_from([0, 1, 1, 2, 50]))
        new = data.draw(st.binary(max_size=4) | st.sampled_from([b'"', b"}", b"\n", b"\0" * 20, b"[" * 3000]))
        content = content[:at] + new + content[at + length :]
    return content


# --- the metadata -----------------------------------------------------------------------------------------

ALL = SelectionSettings(tasks=tuple(TASKS), limit=None, shuffle=False, seed=42)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a data set of one sample a task."""
    return small_data(tmp_path_factory.mktemp("metadata") / "data", each=1)


@given(data=st.data())
def test_no_metadata_crash_the_reader(small: Path, data: st.DataObject) -> None:
    """What is no list of records is refused in words; what is one gives samples inside of the data set."""
    file = small / "Chat" / dataset.METADATA
    before = file.read_bytes()
    records = json.loads(before)
    if data.draw(st.booleans()):
        for _ in range(data.draw(st.integers(1, 3))):
            spoil(data, records)
        content = json.dumps(records).encode()
    else:
        content = spoil_bytes(data, before)
    try:
        file.write_bytes(content)
        with bounded():
            found = dataset.load(small, ALL)
    except DatasetError:
        return
    finally:
        file.write_bytes(before)
    assert len({sample.key for sample in found.samples}) == len(found.samples)
    for sample in found.samples:
        assert Path(sample.audio_path).is_relative_to(small / "Chat")
        assert ".." not in Path(sample.audio_path).parts


# --- the audio sniffer ------------------------------------------------------------------------------------

READER = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, ({memory}, {memory}))
from otoscope import audio
from otoscope.records import AudioClip
for line in sys.stdin:
    loaded = audio.load(line.rstrip("\\n"))
    if isinstance(loaded, AudioClip):
        with loaded.open() as file:
            sent = len(file.read())
        print("clip" if sent == loaded.size_sent and loaded.seconds >= 0 else "wrong", flush=True)
    else:
        print(loaded.kind.value, flush=True)
"""
FORMATS = [
    ("WAV", "PCM_16"), ("WAV", "PCM_24"), ("WAV", "FLOAT"), ("WAV", "IMA_ADPCM"), ("WAV", "MS_ADPCM"),
    ("WAV", "GSM610"), ("WAVEX", "PCM_16"), ("W64", "PCM_16"), ("RF64", "PCM_16"), ("FLAC", "PCM_16"),
    ("OGG", "VORBIS"), ("OGG", "OPUS"), ("MP3", "MPEG_LAYER_III"), ("AIFF", "PCM_16"), ("AU", "PCM_16"),
    ("CAF", "ALAC_16"), ("VOC", "PCM_16"), ("NIST", "PCM_16"), ("MAT5", "PCM_16"), ("PAF", "PCM_24"),
    ("XI", "DPCM_16"), ("SDS", "PCM_16"), ("HTK", "PCM_16"), ("SVX", "PCM_16"), ("AVR", "PCM_16"),
]  # fmt: skip
EDGES = st.sampled_from(
    [b"\xff" * 4, b"\0" * 4, b"\xff\xff\xff\x7f", b"\x80\0\0\0", b"\0\0\0\x80", b"\1\0\0\0"]
)


class Reader:
    """A process of its own that loads clips: should one end or stop it, that is seen, and pytest goes on."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", READER.format(memory=MEMORY)],
            env=environment(PYTHONPATH=":".join(sys.path)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
        )

    def load(self, path: Path) -> str:
        """Return what came of a clip. Fails when the process ended, hangs, or printed anything else."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{path}\n")
        process.stdin.flush()
        readable, _, _ = select.select([process.stdout], [], [], LONGEST)
        assert readable, f"{path}: still at it after {LONGEST:.0f} s"
        said = process.stdout.readline().strip()
        assert said, f"{path}: ended the process with {process.wait()}"
        return said

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="module")
def clips() -> list[bytes]:
    """Make a quarter of a second in every format that can be written."""
    tone = (np.sin(np.arange(2000) / 10) * 0.3).astype("float32")
    made: list[bytes] = []
    for name, subtype in FORMATS:
        file = io.BytesIO()
        soundfile.write(file, tone, 8000, format=name, subtype=subtype)
        made.append(file.getvalue())
    return made


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    """Start the process that loads clips."""
    reader = Reader()
    yield reader
    reader.close()


@given(data=st.data())
def test_no_clip_crashes_the_sniffer(clips: Sequence[bytes], reader: Reader, data: st.DataObject) -> None:
    """A spoilt file is a clip whose bytes can be sent, or bad audio; it ends, stops and prints nothing."""
    content = data.draw(st.sampled_from(clips))
    for _ in range(data.draw(st.sampled_from([1, 1, 2, 3, 10]))):
        at = data.draw(st.integers(0, min(len(content), data.draw(st.sampled_from([16, 64, 200, 1 << 20])))))
        new = data.draw(EDGES | st.binary(max_size=6))
        gone = data.draw(st.sampled_from([0, len(new), len(new), 40]))
        content = content[:at] + new + content[at + gone :]
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content)))]
    with tempfile.NamedTemporaryFile(suffix=".wav") as file:
        file.write(content)
        file.flush()
        assert reader.load(Path(file.name)) in ("clip", "bad_audio")


# --- the run directory ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a run of eight samples."""
    folder = tmp_path_factory.mktemp("fuzzed")
    uninterrupted(small_data(folder / "data", each=1), folder / "whole")
    return folder / "whole" / "run"


def read_everything(path: Path, *, pages: bool) -> None:
    """Read a run and report on it, ``pages`` in every form. Raises ``OtoscopeError``."""
    loaded = load_run(path)
    summary = loaded.summary.to_json()
    json.dumps(summary, allow_nan=False)
    counts = summary["counts"]
    assert counts["scored"] + counts["failed"] + counts["pending"] == counts["expected"]
    cells: list[Mapping[str, Any]] = [summary["average"], summary["mixed_audio"], summary["all_samples"]]
    for group in ("categories", "tasks", "datasets"):
        cells += summary[group].values()
    for cell in cells:
        for name in ("gpt_score", "reference_score"):
            assert cell[name] is None or 0 <= cell[name] <= 10
    for outcome in loaded.outcomes():
        assert outcome.sample.key
    render(loaded.summary, Console(file=io.StringIO()), run_path=path, language="en")
    if not pages:
        return
    reported = Reported.of(loaded)
    assert list(samples_csv(reported))
    assert scores_csv([reported])
    assert render_markdown([reported], catalogue("en"), appendix=True)
    assert render_html(
        [reported], language="en", figures={}, embed_audio=[], comparison=None, folder=path, now="now"
    )


@given(data=st.data())
def test_no_run_directory_crashes_the_reader(run: Path, data: st.DataObject) -> None:
    """Spoilt files are read for what is sound in them, or refused in words; every report can be made."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(shutil.copytree(run, Path(folder) / "run"))
        names = st.lists(
            st.sampled_from([MANIFEST, ANSWERS, VERDICTS, SAMPLES]), min_size=1, max_size=3, unique=True
        )
        for name in data.draw(names):
            content = (path / name).read_bytes()
            if data.draw(st.sampled_from([True, True, False])):
                whole = [content] if name == MANIFEST else content.splitlines()
                values = [json.loads(line) for line in whole]
                for _ in range(data.draw(st.integers(1, 3))):
                    spoil(data, data.draw(st.sampled_from(values)))
                content = b"".join(json.dumps(value).encode() + b"\n" for value in values)
            else:
                content = spoil_bytes(data, content)
            (path / name).write_bytes(content)
        with bounded(), contextlib.suppress(OtoscopeError):
            read_everything(path, pages=data.draw(st.integers(0, 3)) == 0)
