"""What the tests of audio share: sounds written to files, and what arrived at a scripted server decoded."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import soundfile as sf

from otoscope.audio import ConvertedClips, Loader
from otoscope.config import AudioPolicy
from otoscope.records import AudioClip, Failure
from tests.scripted_server import ScriptedServer

KINDS = {
    "wav": ("WAV", "PCM_16"),
    "float wav": ("WAV", "FLOAT"),
    "mp3": ("MP3", "MPEG_LAYER_III"),
    "flac": ("FLAC", "PCM_16"),
    "24-bit flac": ("FLAC", "PCM_24"),
    "ogg": ("OGG", "VORBIS"),
}
Sound = Any
"""Float samples, full scale 1, of shape (frames, channels)."""


def tone(seconds: float, rate: int, channels: int = 1, *, hertz: float = 440.0, level: float = 0.3) -> Sound:
    """Return a tone, the same in every channel."""
    one = level * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)
    return np.stack([one] * channels, axis=1).astype("float32")


def write_sound(path: Path, sound: Sound, rate: int, kind: str = "wav") -> str:
    """Write a sound to a file, which need not be called like its format; return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    form, subtype = KINDS[kind]
    with path.open("w+b") as file:
        sf.write(file, sound, rate, format=form, subtype=subtype)
    return str(path)


def loader(policy: str, cache: Path | None = None, *, limit: int = 10**9) -> Loader:
    """Return a loader under a policy; without a cache nothing is kept."""
    converted = ConvertedClips(cache or Path("unused"), limit if cache is not None else 0)
    return Loader(AudioPolicy.parse(policy), converted)


def clip_of(loaded: AudioClip | Failure) -> AudioClip:
    """Return the clip of a file that must be a good one."""
    assert isinstance(loaded, AudioClip), loaded
    return loaded


def failure_of(loaded: AudioClip | Failure) -> Failure:
    """Return the Failure of a file that must be a bad one."""
    assert isinstance(loaded, Failure), loaded
    return loaded


def sent_bytes(clip: AudioClip) -> bytes:
    """Return the bytes that are sent for a clip."""
    with clip.open() as file:
        return file.read()


def decoded(data: bytes) -> tuple[Any, Sound]:
    """Return libsndfile's facts of some bytes, and their samples of shape (frames, channels)."""
    info = sf.info(io.BytesIO(data))
    return info, sf.read(io.BytesIO(data), always_2d=True)[0]


def pitch(sound: Sound, rate: int) -> float:
    """Return the frequency (Hz) that is strongest in the first channel."""
    spectrum = np.abs(np.fft.rfft(sound[:, 0] * np.hanning(len(sound))))
    return float(np.argmax(spectrum) * rate / len(sound))


def write_records(root: Path, clips: Sequence[tuple[str, str, str]]) -> Path:
    """Write the metadata of samples given as (task, path, question), about files that lie below ``root``."""
    records = [
        {
            "path": path,
            "question": question,
            "answer_gt": f"The reference of {question}",
            "task_name": task,
            "dataset_name": "made",
            "uniq_id": number,
            "meta_info": str({"number": number}),
        }
        for number, (task, path, question) in enumerate(clips)
    ]
    (root / "Chat").mkdir(parents=True, exist_ok=True)
    (root / "Chat" / "Chat_meta.json").write_text(json.dumps(records), encoding="utf-8")
    return root


def place(root: Path, task: str, path: str) -> Path:
    """Return where a clip of such a sample lies."""
    return root / "Chat" / f"{task}_made" / path


def arrived(server: ScriptedServer) -> dict[str, tuple[bytes, str] | None]:
    """Return by question what the model got: the decoded bytes and the format said, or ``None``.

    The server must have been told to keep bodies.
    """
    got: dict[str, tuple[bytes, str] | None] = {}
    for seen in server.requests:
        if seen.kind != "model":
            continue
        parts = {part["type"]: part for part in seen.payload["messages"][-1]["content"]}
        question = parts["text"]["text"]
        if "input_audio" in parts:
            audio = parts["input_audio"]["input_audio"]
            got[question] = (base64.b64decode(audio["data"].rpartition(",")[2]), audio["format"])
        elif "audio_url" in parts:
            head, _, data = parts["audio_url"]["audio_url"]["url"].partition(",")
            got[question] = (base64.b64decode(data), head)
        else:
            got[question] = None
    return got
