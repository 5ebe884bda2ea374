"""A data set in the exact layout of AIR-Bench Chat, with made-up clips and texts.

    python benchmarks/synthetic_data.py ROOT [--seed N] [--scale X] [--small-clips] [--shared-clips]

2,200 samples with the real numbers in each folder; questions and references as long as the real ones (mean,
shortest and longest of each task, and nearly their spread); durations such that it is 1.8 GB. The clips'
contents, rates and channels are made up. The same arguments give the same texts and the same wav files, byte
for byte; the mp3 files depend on the version of the encoder alone.

It is written to ROOT/Chat, the metadata last: where they lie, all of it is there.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import random
import sys
import wave
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import soundfile


class Folder(NamedTuple):
    """One folder of the data set. Its clips last between ``shortest`` and ``longest`` seconds."""

    task: str
    source: str
    samples: int
    shortest: float
    longest: float
    ending: str = "wav"
    rate: int = 16_000
    channels: int = 1


class Lengths(NamedTuple):
    """Numbers of characters over all samples of a task. ``deviation`` is that of the questions' lengths."""

    questions: int
    shortest: int
    longest: int
    deviation: float
    references: int


FOLDERS = (
    Folder("speech_QA", "common_voice_en", 200, 4, 6, "mp3", 32_000),
    Folder("speech_QA", "iemocap", 200, 4, 6),
    Folder("speech_dialogue_QA", "fisher", 200, 60, 120, rate=8_000, channels=2),
    Folder("speech_dialogue_QA", "spokenwoz", 200, 60, 120),
    Folder("sound_QA", "clotho", 400, 15, 30),
    Folder("sound_generation_QA", "clotho", 100, 15, 30),
    Folder("music_QA", "musiccaps", 400, 10, 10),
    Folder("music_generation_analysis_QA", "musiccaps", 100, 10, 10),
    Folder("speech_and_sound_QA", "audiocaps_cv", 200, 9, 11),
    Folder("speech_and_music_QA", "musiccaps_cv", 200, 9, 11),
)
LENGTHS = {
    "speech_QA": Lengths(25_732, 23, 148, 28.48, 29_599),
    "speech_dialogue_QA": Lengths(30_812, 29, 206, 26.74, 34_055),
    "sound_QA": Lengths(29_316, 17, 166, 31.89, 23_703),
    "sound_generation_QA": Lengths(22_252, 130, 423, 56.74, 86_363),
    "music_QA": Lengths(23_016, 24, 202, 29.09, 15_655),
    "music_generation_analysis_QA": Lengths(26_752, 148, 395, 51.70, 106_828),
    "speech_and_sound_QA": Lengths(12_796, 25, 127, 16.05, 6_810),
    "speech_and_music_QA": Lengths(13_874, 32, 127, 16.51, 5_834),
}
"""Sums that give the published means to two decimals, of each task and in all."""
SMALL = 1 / 40
"""What ``--small-clips`` makes of every duration."""

_BLOCK = 1 << 14
_TABLE_BITS = 12
_WORDS = (
    "the speaker audio sound music guitar piano slow fast calm angry male female rain dog bark car engine "
    "crowd applause melody rhythm drum bass synth vocal tempo minor major happy sad question answer tells "
    "about plan meeting dinner travel hotel train restaurant booking time place price"
).split()

Samples = npt.NDArray[np.int16]


class Clip(NamedTuple):
    """One file to write. Its content hangs on ``seed`` alone."""

    path: Path
    folder: Folder
    frames: int
    seed: int


def main() -> None:
    """Write the data set and print what it holds, as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("root", type=Path, help="where Chat/ is made; it must not be there yet")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of samples in each folder")
    parser.add_argument("--small-clips", action="store_true", help="a fortieth of the duration")
    parser.add_argument(
        "--shared-clips",
        action="store_true",
        help="every fifth question is about the clip before; the generation tasks use other tasks' clips",
    )
    args = parser.parse_args()
    if not args.scale > 0:
        parser.error("--scale must be above 0")
    if (args.root / "Chat").exists():
        sys.exit(f"{args.root / 'Chat'} is there already: remove it, or name another folder")
    duration = SMALL if args.small_clips else 1.0
    records, clips = plan(args.root, args.seed, args.scale, duration=duration, shared=args.shared_clips)
    for folder in {clip.path.parent for clip in clips}:
        folder.mkdir(parents=True)
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        sizes = list(pool.map(write, clips, chunksize=8))
    text = json.dumps(records, ensure_ascii=False, indent=1)
    (args.root / "Chat" / "Chat_meta.json").write_text(text, encoding="utf-8", newline="\n")
    seconds = sum(clip.frames / clip.folder.rate for clip in clips)
    told = {
        "samples": len(records),
        "clips": len(clips),
        "audio_bytes": sum(sizes),
        "seconds": round(seconds, 1),
    }
    print(json.dumps(told))


def plan(
    root: Path, seed: int, scale: float = 1.0, *, duration: float = 1.0, shared: bool = False
) -> tuple[list[dict[str, Any]], list[Clip]]:
    """Return the metadata's records and the clips that they name, each clip once."""
    records: list[dict[str, Any]] = []
    clips: dict[Path, Clip] = {}
    for task, folders in _by_task():
        counts = [max(1, round(folder.samples * scale)) for folder in folders]
        texts = _texts(random.Random(f"{seed}/{task}"), task, sum(counts))  # noqa: S311 (no secret)
        for folder, count in zip(folders, counts, strict=True):
            for number in range(count):
                name = _name(folder, number, count, shared=shared)
                place = root / "Chat" / f"{task}_{folder.source}" / name
                if place not in clips:
                    clips[place] = _clip(place, folder, seed, duration)
                question, reference, description = next(texts)
                records.append(
                    {
                        "path": name,
                        "question": question,
                        "answer_gt": reference,
                        "task_name": task,
                        "dataset_name": folder.source,
                        "uniq_id": len(records),
                        "meta_info": description,
                    }
                )
    return records, list(clips.values())


def lengths(
    rng: random.Random, count: int, *, total: int, shortest: int, longest: int, deviation: float
) -> list[int]:
    """Return ``count`` whole numbers with this sum, about this deviation, and both limits among them.

    They are drawn from a beta distribution between the limits. Of fewer than eight numbers only the sum is
    kept, as far as the limits allow.
    """
    span = longest - shortest
    mean = (total / count - shortest) / span
    weight = mean * (1 - mean) * (span / deviation) ** 2 - 1
    drawn = [
        shortest + round(span * rng.betavariate(mean * weight, (1 - mean) * weight)) for _ in range(count)
    ]
    kept = 0
    if count >= 8:
        drawn[:2] = shortest, longest
        kept = 2
    for index in _turns(kept, count):
        missing = total - sum(drawn)
        step = (missing > 0) - (missing < 0)
        if missing == 0 or all(not shortest < n + step < longest for n in drawn[kept:]):
            break
        # Spread over all, so that no length stands out.
        share = step * max(1, abs(missing) // (count - kept))
        drawn[index] = min(longest - 1, max(shortest + 1, drawn[index] + share))
    rng.shuffle(drawn)
    return drawn


def write(clip: Clip) -> int:
    """Write a clip and return its size in bytes."""
    folder = clip.folder
    rngs = [random.Random(f"{clip.seed}/{channel}") for channel in range(folder.channels)]  # noqa: S311
    voices = [_voice(rng, folder) for rng in rngs]
    bits = np.random.PCG64(clip.seed)
    blocks = (
        np.stack([_heard(folder.task, voice, bits, start, count) for voice in voices], axis=1)
        for start, count in _blocks(clip.frames)
    )
    if folder.ending == "mp3":
        layout = {"format": "MP3", "subtype": "MPEG_LAYER_III"}
        with soundfile.SoundFile(clip.path, "w", folder.rate, folder.channels, **layout) as sound:
            for block in blocks:
                sound.write(block)
    else:
        with wave.open(str(clip.path), "wb") as file:
            file.setnchannels(folder.channels)
            file.setsampwidth(2)
            file.setframerate(folder.rate)
            file.setnframes(clip.frames)
            for block in blocks:
                file.writeframesraw(block.astype("<i2", copy=False).tobytes())
    return clip.path.stat().st_size


# --- clips: whole numbers throughout, so that every processor makes the same bytes ------------------------


def _voice(rng: random.Random, folder: Folder) -> tuple[list[int], int]:
    """Return steps through the table for each frame: of three tones, and of the envelope."""
    base = rng.uniform(90, 400)
    ratios = (1, 1.25, 1.5) if _kind(folder.task) == "music" else (1, 2, 3)
    pulse = {"speech": rng.uniform(2, 5), "music": 2.0, "sound": 0.3}[_kind(folder.task)]
    return [_step(base * ratio, folder.rate) for ratio in ratios], _step(pulse, folder.rate)


def _step(frequency: float, rate: int) -> int:
    return round(frequency * (1 << 32) / rate)


def _heard(task: str, voice: tuple[list[int], int], bits: np.random.PCG64, start: int, count: int) -> Samples:
    """Return the frames from ``start``: one channel, 16 bit."""
    tones, pulse = voice
    frames = np.arange(start, start + count, dtype=np.uint32)
    noise = bits.random_raw(-(-count // 4)).astype("<u8").view("<i2")[:count].astype(np.int32)
    table = _sine()
    turn = frames * np.uint32(pulse)
    shift = 32 - _TABLE_BITS
    if _kind(task) == "music":
        # From loud to silent within a beat.
        envelope = 32_767 - (turn >> np.uint32(17)).astype(np.int32)
    else:
        wave_ = table[turn >> np.uint32(shift)]
        envelope = wave_ * wave_ >> 15
    if _kind(task) == "sound":
        rustle: Samples = (noise * (8_192 + (envelope >> 1)) >> 16).astype(np.int16)
        return rustle
    tone = np.zeros(count, np.int32)
    for weight, step in enumerate(tones, start=1):
        tone += table[(frames * np.uint32(step)) >> np.uint32(shift)] >> weight
    heard: Samples = ((tone * (envelope >> 1) >> 15) + (noise >> 5)).astype(np.int16)
    return heard


@cache
def _sine() -> npt.NDArray[np.int32]:
    size = 1 << _TABLE_BITS
    return np.array([round(32_767 * math.sin(2 * math.pi * i / size)) for i in range(size)], np.int32)


def _blocks(frames: int) -> Iterator[tuple[int, int]]:
    return ((start, min(_BLOCK, frames - start)) for start in range(0, frames, _BLOCK))


def _kind(task: str) -> str:
    return task.split("_", 1)[0]


# --- records --------------------------------------------------------------------------------------------


def _by_task() -> Iterator[tuple[str, list[Folder]]]:
    for task in LENGTHS:
        yield task, [folder for folder in FOLDERS if folder.task == task]


def _name(folder: Folder, number: int, count: int, *, shared: bool) -> str:
    if shared:
        number -= number % 5 == 4
    elif "generation" in folder.task:
        # Its source is another task's as well: names of its own, behind that one's.
        number += 4 * count
    return f"{folder.source}_{number:05d}.{folder.ending}"


def _clip(place: Path, folder: Folder, seed: int, duration: float) -> Clip:
    # By source and name, so that what two tasks share has the same bytes.
    own = hashlib.sha256(f"{seed}/{folder.source}/{place.name}".encode()).digest()
    number = int.from_bytes(own[:8], "big")
    seconds = duration * random.Random(number).uniform(folder.shortest, folder.longest)  # noqa: S311
    return Clip(place, folder, round(seconds * folder.rate), number)


def _texts(rng: random.Random, task: str, count: int) -> Iterator[tuple[str, str, str]]:
    """Yield question, reference and description of every sample of a task."""
    known = LENGTHS[task]
    size = sum(folder.samples for folder in FOLDERS if folder.task == task)
    draw = partial(lengths, rng, count)
    mean = known.references / size
    questions = draw(
        total=round(known.questions * count / size),
        shortest=known.shortest,
        longest=known.longest,
        deviation=known.deviation,
    )
    references = draw(
        total=round(known.references * count / size),
        shortest=round(mean / 8) + 1,
        longest=round(3 * mean),
        deviation=mean / 2,
    )
    dialogue = "dialogue" in task
    for question, reference in zip(questions, references, strict=True):
        # Descriptions of dialogues can be longer than 4,000 tokens.
        length = round(rng.triangular(500, 18_000, 1_500)) if dialogue else rng.randint(80, 600)
        yield (
            _text(rng, question, "?"),
            _text(rng, reference, "."),
            str({"transcription": _text(rng, length, ".")}),
        )


def _text(rng: random.Random, length: int, end: str) -> str:
    """Return a sentence of just so many characters."""
    words: list[str] = []
    size = 0
    while size <= length:
        words.append(rng.choice(_WORDS))
        size += len(words[-1]) + 1
    text = " ".join(words)[: length - len(end)]
    return (text[:-1] + "s" if text.endswith(" ") else text).capitalize() + end


def _turns(first: int, count: int) -> Iterator[int]:
    while True:
        yield from range(first, count)


if __name__ == "__main__":
    main()
