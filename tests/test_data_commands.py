"""``otoscope data verify`` and ``show`` as commands: what they print, where, and how they end."""

from __future__ import annotations

import io
import json
import os
import re
import select
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from otoscope.audit import Verification, find_sample, survey
from otoscope.errors import ConfigError
from otoscope.reports.audit import render
from tests.odd_data import MP3, SOUND, WAV, Data, Here, encoded, selection
from tests.support import DEMO, command, environment, otoscope

HALF = len(MP3) // 2


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Here:
    """Give what runs commands inside of this process."""
    return Here(capsys, monkeypatch)


@pytest.fixture
def data(tmp_path: Path) -> Data:
    """Give an empty data set."""
    return Data(tmp_path / "data")


def flat(text: str) -> str:
    """Return a text on one line."""
    return " ".join(text.split())


# --- verify ---------------------------------------------------------------------------------------------


def test_a_sound_data_set_ends_with_0(data: Data) -> None:
    """Where nothing is wrong the command says so and ends with 0; progress goes to stderr, in plain lines."""
    for number in range(4):
        data.add(f"{number}.wav")
    done = otoscope("data", "verify", str(data.write()))
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "All of it is there and sound.")
    lines = done.stderr.splitlines()
    assert [line.split(",")[0] for line in lines] == [f"decoding: {n} of 4 clips" for n in (1, 2, 3, 4)]


def test_what_loses_samples_ends_with_3(data: Data) -> None:
    """Damage is told by kind with the next step, and the command ends with 3; decoders are not heard."""
    data.add("cut.wav", WAV[:30_000])
    data.add("hole.mp3", MP3[:HALF] + bytes(3000) + MP3[HALF + 3000 :])
    data.add("gone.wav")
    (data.folder() / "gone.wav").unlink()
    done = otoscope("data", "verify", str(data.write()))
    assert done.returncode == 3
    for said in (
        "1 clip that is not there (fetch with: otoscope data download)",
        "Chat/sound_QA_clotho/gone.wav",
        "Chat/sound_QA_clotho/cut.wav: the header says 2.00 s, the file ends after 0.94 s",
        "3 samples are lost or falsified.",
    ):
        assert said in flat(done.stdout)
    assert {line.split(":")[0] for line in done.stderr.splitlines()} == {"decoding"}


def test_warnings_end_with_0_unless_strict(data: Data, run: Here) -> None:
    """A silent clip is a warning: exit code 0, and 3 with --strict."""
    data.add("silent.wav", encoded(sound=0 * SOUND))
    root = str(data.write())
    done, strict = run("data", "verify", root), run("data", "verify", root, "--strict")
    assert (done.returncode, strict.returncode) == (0, 3)
    assert "Nothing is lost or falsified; 1 warning." in done.stdout
    assert "1 warning; with --strict that is a failure." in strict.stdout


def test_json_and_list_have_all_findings(data: Data, tmp_path: Path, run: Here) -> None:
    """--json prints one document, --list writes every finding; neither names the folder above the data."""
    for number in range(12):
        data.add(f"Größe {number}.wav", b"")
    listed = tmp_path / "new folder" / "findings.tsv"
    done = run("data", "verify", str(data.write()), "--json", "--list", str(listed))
    assert done.returncode == 3
    told = json.loads(done.stdout)
    assert told["counts"] == {"empty": 12}
    rows = [line.split("\t") for line in listed.read_text(encoding="utf-8").splitlines()]
    assert [row[3] for row in rows[1:]] == [one["path"] for one in told["findings"]]
    assert rows[1][3].startswith("Chat/sound_QA_clotho/Größe ")
    assert str(tmp_path) not in done.stdout + listed.read_text(encoding="utf-8")


def test_a_list_that_cannot_be_written_does_not_hide_the_findings(
    data: Data, tmp_path: Path, run: Here
) -> None:
    """Where the list's place is no place for a file, the report is printed, and the command ends with 6."""
    data.add("a.wav", b"")
    (tmp_path / "file").write_bytes(b"")
    done = run("data", "verify", str(data.write()), "--list", str(tmp_path / "file" / "list.tsv"))
    assert done.returncode == 6
    assert "1 sample is lost or falsified." in done.stdout
    assert "All findings" not in done.stdout
    assert "cannot be written" in done.stderr


def test_the_root_comes_from_the_environment(tmp_path: Path, run: Here) -> None:
    """Without ROOT, OTOSCOPE_DATA is taken, then the hub's cache; without any it is said what to name."""
    data = Data(tmp_path / "cache" / "datasets" / "evalscope" / "AIR-Bench-Dataset")
    data.add("a.wav")
    root = str(data.write())
    empty = str(tmp_path / "empty")
    assert run("data", "verify", OTOSCOPE_DATA=root, MODELSCOPE_CACHE=empty).returncode == 0
    cached = run("data", "verify", MODELSCOPE_CACHE=str(tmp_path / "cache"))
    assert (cached.returncode, cached.stdout.splitlines()[0]) == (0, root)
    nowhere = run("data", "verify", MODELSCOPE_CACHE=empty)
    assert nowhere.returncode == 2
    for way in ("otoscope data verify ROOT", "OTOSCOPE_DATA", "otoscope data download"):
        assert way in nowhere.stderr
    gone = run("data", "verify", str(tmp_path / "nowhere"))
    assert gone.returncode == 3
    assert "there is no such folder" in gone.stderr


@pytest.mark.parametrize("content", [b"", b'[{"path": "a'])
def test_cut_metadata_end_with_3(data: Data, content: bytes, run: Here) -> None:
    """Metadata of 0 bytes or cut in the middle are told with their size and the next step."""
    (data.root / "Chat" / "Chat_meta.json").write_bytes(content)
    done = run("data", "verify", str(data.root))
    assert (done.returncode, done.stdout) == (3, "")
    assert f"it has {len(content)} bytes. Fetch it again" in done.stderr


def test_tasks_limit_and_links_are_those_of_eval(data: Data, tmp_path: Path, run: Here) -> None:
    """--tasks takes groups and refuses unknown names, --limit is per task, --follow-links opens links."""
    for number in range(3):
        data.add(f"{number}.wav", b"" if number == 2 else None)
        data.add(f"{number}.wav", b"", task="music_QA", dataset_name="musiccaps")
    (data.folder() / "1.wav").replace(tmp_path / "1.wav")
    (data.folder() / "1.wav").symlink_to(tmp_path / "1.wav")
    root = str(data.write())
    verify = ("data", "verify", root, "--json")
    assert json.loads(run(*verify, "--tasks", "sound").stdout)["counts"] == {
        "outside_root": 1,
        "empty": 1,
    }
    done = run(*verify, "--tasks", "sound", "--limit", "2", "--follow-links")
    assert (done.returncode, json.loads(done.stdout)["total"]["clips"]) == (0, 2)
    wrong = run(*verify, "--tasks", "sound_QB")
    assert wrong.returncode == 2
    assert "did you mean 'sound_QA'" in wrong.stderr


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="this system has no pseudo-terminals")
def test_ctrl_c_ends_it_at_once(data: Data) -> None:
    """On a terminal a bar is drawn; Ctrl-C ends the command with 130, however much is left to decode."""
    first = data.root / "Chat" / "sound_QA_clotho" / "0.wav"
    data.add("0.wav", encoded(sound=list(SOUND) * 60))
    for number in range(1, 3000):
        data.add(f"{number}.wav", None if not first.exists() else b"")
        (first.parent / f"{number}.wav").unlink()
        os.link(first, first.parent / f"{number}.wav")
    ours, theirs = os.openpty()
    with subprocess.Popen(
        command("data", "verify", str(data.write())), stdout=subprocess.PIPE, stderr=theirs, env=environment()
    ) as process:
        os.close(theirs)
        drawn = b""
        while b"3000" not in drawn and select.select([ours], [], [], 30)[0]:
            drawn += os.read(ours, 4096)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=30)
    rest = b""
    with open(ours, "rb", buffering=0) as terminal:  # noqa: PTH123 (a descriptor)
        while select.select([terminal], [], [], 0)[0]:
            try:
                block = terminal.read(4096)
            except OSError:  # the terminal's other end is closed
                break
            rest += block or b""
    assert (process.returncode, output) == (130, b""), (drawn, rest)
    assert b"decoding" in drawn
    assert b"stopped" in rest


REPORT = """\
/data/AIR-Bench
5 clips, 164.6 kB, 5.1 s of audio, all decoded

task / source       full set   samples   clips   found   usable
───────────────────────────────────────────────────────────────────
speech_QA                400         2       2       2        1   !
  common_voice_en                    0       0       0        0
  iemocap                            2       2       2        1   !
sound_QA                 400         4       4       3        3   !
  clotho                             4       4       3        3   !
───────────────────────────────────────────────────────────────────
all                      800         6       6       5        4   !

The metadata name 6 of the 800 samples of these tasks: what is computed from
them is not the benchmark's.

! 1 record that cannot be used (no evaluation starts with it: correct or remove)
    record 6 (counted from 0): field 'question' is null. Correct the record or
    remove it

! 1 clip that is not there (fetch with: otoscope data download)
    Chat/sound_QA_clotho/gone.wav

! 1 clip that ends early (remove, then: otoscope data download)
    Chat/speech_QA_iemocap/cut.wav: the header says 2.00 s, the file ends after
    0.94 s

- 1 clip that lies there under several names (its samples depend on each other
  more than they seem to)
    Chat/sound_QA_clotho/a.wav: has the same bytes as Chat/sound_QA_clotho/b.wav

- 1 folder with files that no record names (not used)
    Chat/sound_QA_clotho: 1 file that no record names, such as 'extra [b].wav'

3 samples are lost or falsified.
"""


def rendered(
    found: Verification,
    *,
    root: str = "/data/AIR-Bench",
    encoding: str = "utf-8",
    width: int = 80,
    **more: Any,
) -> str:
    """Return the report on a terminal of so many columns."""
    written = io.BytesIO()
    file = io.TextIOWrapper(written, encoding=encoding, newline="")
    render(found, Console(file=file, width=width, highlight=False), root=Path(root), **more)
    file.flush()
    shown = written.getvalue().decode(encoding)
    assert max(map(len, shown.split("\n"))) <= width
    return shown


def test_the_report_fits_on_80_columns(data: Data) -> None:
    """Rows, notes, findings by kind and the verdict, as they stand on a terminal."""
    data.add("cut.wav", WAV[:30_000], task="speech_QA", dataset_name="iemocap")
    data.add("whole.wav", task="speech_QA", dataset_name="iemocap")
    data.add("b.wav", WAV)
    data.add("a.wav", WAV)
    data.add("c.wav")
    data.add("gone.wav")
    (data.folder() / "gone.wav").unlink()
    (data.folder() / "extra [b].wav").write_bytes(b"x")
    data.records.append({**data.records[0], "question": None})
    found = data.verify(selection={"tasks": ("speech_QA", "sound_QA")})
    assert rendered(found) == REPORT


def test_a_narrow_terminal_cuts_names_and_no_number(data: Data) -> None:
    """In 50 columns a task's name is shortened, and its five numbers are whole."""
    for number in range(11):
        data.add(f"{number}.wav", task="music_generation_analysis_QA", dataset_name="musiccaps")
    shown = rendered(data.verify(), width=50, encoding="ascii")
    rows = [line.split() for line in shown.splitlines() if line.startswith("music_gen")]
    assert rows == [[rows[0][0], "100", "11", "11", "11", "11", "!"]]
    assert rows[0][0].endswith("~")


def test_many_findings_are_cut_on_the_terminal(data: Data) -> None:
    """Five of a kind are shown; of the rest the number is, and how to get them."""
    for number in range(8):
        data.add(f"{number}.wav", b"")
    found = data.verify()
    assert "    and 3 more; --list FILE writes all of them\n" in rendered(found)
    listed = rendered(found, listed="all.tsv")
    assert "    and 3 more\n" in listed
    assert "All findings: all.tsv\n" in listed


def test_odd_names_are_printed_inert(data: Data) -> None:
    """Names with markup, escapes and other letters are shown as text; no terminal is told anything."""
    data.add("[bold]x\x1b[31m\ny 音.wav", b"")
    shown = rendered(data.verify(), root="/data/[red]\x1b[2J")
    assert "\x1b" not in shown
    assert "[bold]x [31m y 音.wav" in shown
    assert "/data/[red] [2J" in shown
    assert "y \\u97f3.wav" in rendered(data.verify(), encoding="ascii")


# --- show -----------------------------------------------------------------------------------------------


def test_a_sample_has_the_form_of_the_benchmark_s_page(data: Data) -> None:
    """The page's example comes out in the page's form; id and group_id count the samples of a task."""
    question = "Who is the speaker addressing at the end of the speech?"
    target = "The speaker is addressing Mom at the end of the speech."
    description = (
        "{'emotion': 'neutral', 'gender': 'male', 'transcription': "
        "\"And then we'll thrash it out with father. Okay Mom? Don't avoid me.\"}"
    )
    data.add("other.wav", task="sound_QA")
    data.add("first.mp3", MP3, task="speech_QA", dataset_name="common_voice_en")
    key = data.add(
        "Ses01F_script01_1_M025.wav",
        task="speech_QA",
        dataset_name="iemocap",
        uniq_id=400,
        question=question,
        answer_gt=target,
        meta_info=description,
    )
    assert key == "speech_QA/iemocap/Ses01F_script01_1_M025.wav#400"
    done = otoscope("data", "show", key, "--data", str(data.write()))
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    clip = data.root / "Chat" / "speech_QA_iemocap" / "Ses01F_script01_1_M025.wav"
    message = told["input"][0]
    assert re.fullmatch("[0-9a-f]{8}", message.pop("id"))
    assert list(told) == ["input", "target", "id", "group_id", "subset_key", "metadata"]
    assert told == {
        "input": [
            {
                "role": "user",
                "content": [
                    {"type": "audio", "audio": str(clip), "format": "wav"},
                    {"type": "text", "text": question},
                ],
            }
        ],
        "target": target,
        "id": 1,
        "group_id": 1,
        "subset_key": "speech_QA",
        "metadata": {
            "uniq_id": 400,
            "task_name": "speech_QA",
            "dataset_name": "iemocap",
            "category": "speech",
            "meta_info": description,
            "question": question,
        },
    }
    assert otoscope("data", "show", key, environ={"OTOSCOPE_DATA": str(data.root)}).stdout == done.stdout


def test_the_format_is_that_of_the_bytes(data: Data, run: Here) -> None:
    """An mp3 called wav is an mp3; a clip that is not there has its name's format, and a warning."""
    data.add("really mp3.wav", MP3)
    key = data.add("gone.mp3", MP3)
    (data.folder() / "gone.mp3").unlink()
    root = str(data.write())
    first = run("data", "show", "sound_QA#0", "--data", root)
    assert json.loads(first.stdout)["input"][0]["content"][0]["format"] == "mp3"
    gone = run("data", "show", key, "--data", root)
    assert gone.returncode == 0
    assert json.loads(gone.stdout)["input"][0]["content"][0]["format"] == "mp3"
    assert "there is no such file" in gone.stderr


def test_an_unknown_key_gives_those_near_it(data: Data, run: Here) -> None:
    """A mistyped key, a part of one, and a number too high are told what there is; exit code 2."""
    for number in range(3):
        data.add(f"rain_{number}.wav")
    samples = survey(data.write(), selection()).samples
    for key, near in (
        ("sound_QA/clotho/rain_1.wav#7", "sound_QA/clotho/rain_1.wav#1"),
        ("rain_2", "sound_QA/clotho/rain_2.wav#2"),
    ):
        with pytest.raises(ConfigError, match=re.escape(near)) as caught:
            find_sample(key, samples)
        assert caught.value.exit_code == 2
    with pytest.raises(ConfigError, match="sound_QA has 3 samples"):
        find_sample("sound_QA#3", samples)
    with pytest.raises(ConfigError, match=r"no sample with the key 'xyz'(?!.*Near)"):
        find_sample("xyz", samples)
    assert find_sample("sound_QA#2", samples).path == "rain_2.wav"
    done = run("data", "show", "rain", "--data", str(data.root))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n  sound_QA/clotho/rain_") == 3


def test_a_bad_record_does_not_hide_a_sample(data: Data, run: Here) -> None:
    """One sample can be shown although another record cannot be used."""
    key = data.add("a.wav")
    data.records.append({})
    assert json.loads(run("data", "show", key, "--data", str(data.write())).stdout)["id"] == 0


def test_the_demo_s_samples_can_be_shown(run: Here) -> None:
    """A sample of the bundled data set is found by its number."""
    done = run("data", "show", "speech_dialogue_QA#1", "--data", str(DEMO))
    assert json.loads(done.stdout)["metadata"]["dataset_name"] == "espeak"


# --- the command line -----------------------------------------------------------------------------------


def test_the_help_says_what_ends_with_3() -> None:
    """The help of verify tells failures from warnings."""
    done = flat(otoscope("data", "verify", "--help").stdout)
    assert "Exit code 3: something loses or falsifies samples" in done
    assert "are warnings: exit code 0, unless --strict" in done
