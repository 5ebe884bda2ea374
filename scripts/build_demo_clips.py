"""Rebuild the demo clips from the Debian packages that they come from.

The clips lie in `src/otoscope/demo/Chat`, in the folders that the benchmark's own layout asks for. Their
questions, reference answers and descriptions have one home, `Chat_meta.json` in the same folder; this script
reads it (the turns of the dialogues are spoken from there) and never writes it. Which clip is made from which
source, and how, is the table `CLIPS` below; authors and licences are in `src/otoscope/demo/PROVENANCE.md`.

Run it without arguments from anywhere:

    python scripts/build_demo_clips.py

It needs the Debian packages `sonic-pi-samples`, `pocketsphinx-testdata`, `espeak-ng` and `sox`, and says
which is missing. Nothing is random: the same versions of these packages and of the `soundfile` library give
the same bytes.
"""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import soundfile as sf

Signal: TypeAlias = npt.NDArray[np.float64]

CHAT = Path(__file__).resolve().parent.parent / "src" / "otoscope" / "demo" / "Chat"
META = CHAT / "Chat_meta.json"

SONIC_PI = Path("/usr/share/sonic-pi/samples")
LIBRIVOX = Path("/usr/share/pocketsphinx/test/data/librivox")
READING = "sense_and_sensibility_01_austen_64kb-{}.wav"

PEAK = 0.8  # of full scale, for every finished clip: loud enough to hear, far enough from clipping
TURN_PAUSE = 0.35  # seconds between two turns of a dialogue
SPEECH_RATE = 170  # words per minute, for the synthetic voices


class BuildError(Exception):
    """A clip cannot be built; the message says why."""


@dataclass(frozen=True)
class Layer:
    """One recording placed into a clip.

    `source` is brought to a peak of 1 and then to `gain_db`; `at` says when it starts; `seconds` cuts it,
    with a fade of `fade` seconds at the end, and None takes all of it.
    """

    source: Path
    at: float = 0.0
    gain_db: float = 0.0
    seconds: float | None = None
    fade: float = 0.0


@dataclass(frozen=True)
class Mix:
    """A clip made of recordings laid over and after each other; `tail` is the silence after the last one."""

    rate: int
    layers: tuple[Layer, ...]
    tail: float = 0.0


@dataclass(frozen=True)
class Dialogue:
    """A clip made of synthetic voices that take turns; `voices` maps a speaker to a voice of espeak-ng."""

    rate: int
    voices: Mapping[str, str]


def sample(
    name: str, at: float = 0.0, gain_db: float = 0.0, seconds: float | None = None, fade: float = 0.0
) -> Layer:
    """Return a layer of the Sonic Pi sample `name`."""
    return Layer(SONIC_PI / f"{name}.flac", at, gain_db, seconds, fade)


def reading(number: str, at: float = 0.0) -> Layer:
    """Return a layer of the LibriVox sentence `number`, the last part of its file name."""
    return Layer(LIBRIVOX / READING.format(number), at)


BELL_CROWS_TILL = Mix(
    16000,
    (
        sample("perc_bell", at=0.2, seconds=3.0, fade=0.6),
        sample("misc_crow", at=3.6),
        sample("misc_crow", at=4.5),
        sample("perc_till", at=5.8),
    ),
)

# Clip (folder of the task and the data set, file) -> how it is made.
CLIPS: Mapping[str, Mix | Dialogue] = {
    "speech_QA_librivox/sense_and_sensibility_01_0870.wav": Mix(16000, (reading("0870"),)),
    "speech_QA_librivox/sense_and_sensibility_01_0890.mp3": Mix(16000, (reading("0890"),)),
    "speech_dialogue_QA_espeak/dialogue_station.mp3": Dialogue(16000, {"A": "en-gb", "B": "en-us+f3"}),
    "speech_dialogue_QA_espeak/dialogue_library.wav": Dialogue(16000, {"A": "en-us+f3", "B": "en-gb"}),
    "sound_QA_sonicpi/crow_three_calls.wav": Mix(
        16000,
        (sample("misc_crow", at=0.3), sample("misc_crow", at=1.5), sample("misc_crow", at=2.7)),
        tail=0.3,
    ),
    "sound_QA_sonicpi/bell_crows_till.mp3": BELL_CROWS_TILL,
    "sound_generation_QA_sonicpi/bell_crows_till.mp3": BELL_CROWS_TILL,
    "sound_generation_QA_sonicpi/record_player.wav": Mix(
        16000,
        (
            sample("vinyl_hiss", gain_db=-8.0, seconds=4.6, fade=0.05),
            sample("vinyl_scratch", at=2.0, gain_db=-3.0),
            sample("vinyl_scratch", at=2.6, gain_db=-3.0),
            sample("vinyl_backspin", at=4.0),
        ),
        tail=0.2,
    ),
    "music_QA_sonicpi/guitar_harmonics.wav": Mix(22050, (sample("guit_harmonics"),)),
    "music_generation_analysis_QA_sonicpi/tabla_loop.mp3": Mix(22050, (sample("loop_tabla"),)),
    "music_generation_analysis_QA_sonicpi/guitar_e_minor_ninth.mp3": Mix(
        22050, (sample("guit_em9", seconds=8.5, fade=0.5),)
    ),
    "speech_and_sound_QA_librivox_sonicpi/reading_0930_with_crow.wav": Mix(
        16000,
        (
            reading("0930"),
            sample("misc_crow", at=1.2, gain_db=-4.0),
            sample("misc_crow", at=3.2, gain_db=-4.0),
        ),
        tail=0.1,
    ),
    "speech_and_sound_QA_librivox_sonicpi/bell_then_reading_0880.wav": Mix(
        16000, (sample("perc_bell", seconds=2.5, fade=1.0), reading("0880", at=1.6))
    ),
    "speech_and_music_QA_librivox_sonicpi/reading_0920_with_guitar.mp3": Mix(
        22050, (reading("0920"), sample("guit_em9", gain_db=-8.0, seconds=6.05, fade=0.8))
    ),
    "speech_and_music_QA_librivox_sonicpi/reading_0890_with_tabla.mp3": Mix(
        16000, (reading("0890"), sample("loop_tabla", gain_db=-6.0, seconds=5.3, fade=0.4))
    ),
}


def require_sources() -> None:
    """Raise a BuildError that names every Debian package that is missing."""
    missing = [
        package
        for package, present in (
            ("sonic-pi-samples", SONIC_PI.is_dir()),
            ("pocketsphinx-testdata", LIBRIVOX.is_dir()),
            ("espeak-ng", shutil.which("espeak-ng") is not None),
            ("sox", shutil.which("sox") is not None),
        )
        if not present
    ]
    if missing:
        raise BuildError(
            f"missing Debian packages: {', '.join(missing)} (apt-get install {' '.join(missing)})"
        )


def run(command: Sequence[str | Path]) -> None:
    """Run a program; raise a BuildError with its own words when it fails."""
    done = subprocess.run([str(part) for part in command], capture_output=True, encoding="utf-8", check=False)  # noqa: S603
    if done.returncode != 0:
        raise BuildError(f"{command[0]} failed: {done.stderr.strip()}")


def load(source: Path, rate: int, work: Path) -> Signal:
    """Return a recording as one channel at `rate`, with a peak of 1."""
    if not source.is_file():
        raise BuildError(f"missing source file: {source}")
    converted = work / "converted.wav"
    # -D: no dither, so that no bit depends on chance; half volume leaves room for the resampler's overshoot.
    encoding = ["-r", str(rate), "-e", "floating-point", "-b", "32"]
    run(["sox", "-D", "-v", "0.5", source, *encoding, converted, "channels", "1"])
    signal: Signal = sf.read(converted, dtype="float64")[0]
    signal /= np.abs(signal).max()
    return signal


def mix(recipe: Mix, work: Path) -> Signal:
    """Return the layers of a recipe, placed and summed."""
    placed: list[tuple[int, Signal]] = []
    for layer in recipe.layers:
        signal = load(layer.source, recipe.rate, work) * 10 ** (layer.gain_db / 20)
        if layer.seconds is not None:
            signal = signal[: round(layer.seconds * recipe.rate)]
        if layer.fade:
            length = round(layer.fade * recipe.rate)
            signal[-length:] *= np.linspace(1.0, 0.0, length)
        placed.append((round(layer.at * recipe.rate), signal))
    end = max(start + len(signal) for start, signal in placed)
    total: Signal = np.zeros(end + round(recipe.tail * recipe.rate))
    for start, signal in placed:
        total[start : start + len(signal)] += signal
    return total


def speak(recipe: Dialogue, turns: Sequence[Mapping[str, str]], work: Path) -> Signal:
    """Return the turns of a dialogue, each in its speaker's voice, with a pause between two turns."""
    pause: Signal = np.zeros(round(TURN_PAUSE * recipe.rate))
    parts: list[Signal] = []
    for turn in turns:
        spoken = work / "spoken.wav"
        voice = recipe.voices[turn["speaker"]]
        run(["espeak-ng", "-v", voice, "-s", str(SPEECH_RATE), "-w", spoken, turn["text"]])
        parts += [load(spoken, recipe.rate, work), pause]
    spoken_turns: Signal = np.concatenate(parts[:-1])
    return spoken_turns


def write(signal: Signal, rate: int, target: Path) -> None:
    """Write a clip, at the common peak, as 16-bit wav or as mp3, whichever its name says."""
    target.parent.mkdir(parents=True, exist_ok=True)
    signal = signal * (PEAK / np.abs(signal).max())
    if target.suffix == ".mp3":
        sf.write(target, signal, rate, format="MP3", subtype="MPEG_LAYER_III")
    else:
        sf.write(target, signal, rate, format="WAV", subtype="PCM_16")


def read_descriptions() -> dict[str, dict[str, Any]]:
    """Return the description of every clip that `Chat_meta.json` names, by the clip's place."""
    records: list[dict[str, str]] = json.loads(META.read_text(encoding="utf-8"))
    descriptions: dict[str, dict[str, Any]] = {}
    for record in records:
        place = f"{record['task_name']}_{record['dataset_name']}/{record['path']}"
        descriptions[place] = ast.literal_eval(record["meta_info"])
    return descriptions


def build() -> None:
    """Build every clip."""
    require_sources()
    descriptions = read_descriptions()
    if descriptions.keys() != CLIPS.keys():
        unmatched = ", ".join(sorted(descriptions.keys() ^ CLIPS.keys()))
        raise BuildError(f"these clips are not both in Chat_meta.json and in this script: {unmatched}")
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        for place, recipe in CLIPS.items():
            if isinstance(recipe, Dialogue):
                signal = speak(recipe, descriptions[place]["dialogue"], work)
            else:
                signal = mix(recipe, work)
            write(signal, recipe.rate, CHAT / place)
            print(f"{place}: {len(signal) / recipe.rate:.2f} s, {(CHAT / place).stat().st_size} bytes")


def main() -> int:
    """Build the clips; return the exit status."""
    try:
        build()
    except BuildError as error:
        print(f"build_demo_clips: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
