"""A model as a function: it only measures how loud a clip is, and says so whatever it is asked.

Use it as it stands, to see that data, judge and paths work before a real model takes hours:

    otoscope eval --model examples/loudness.py:answer --data ROOT --limit 1 --no-judge
"""

from __future__ import annotations

import numpy as np

from otoscope import AudioClip


def answer(audio: AudioClip | None, question: str) -> str:
    """Answer one question about one clip."""
    if audio is None:  # with --control no-audio
        return "There is no clip."
    samples = audio.samples(16_000)  # float32, mono, shape (frames,)
    level = 20 * np.log10(max(float(np.sqrt(np.mean(samples**2))), 1e-6))
    return f"The clip lasts {audio.seconds:.1f} s and its mean level is {level:.0f} dB."
