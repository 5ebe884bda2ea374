r"""A model as a class that answers batches, as one on a GPU would: put your own in the place of the levels.

    otoscope eval --model examples/batches.py:Levels --model-args threshold=-30 --eval-batch-size 8 \
        --data ROOT --limit 1 --no-judge

Questions wait until there are eight of them, or no more come.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from otoscope import AudioQuestion, Reply


class Levels:
    """Built once, with what ``--model-args`` says; asked again and again, always from the same thread."""

    def __init__(self, threshold: float = -40.0) -> None:
        self.threshold = threshold  # this is where weights are loaded

    def answer_batch(self, questions: Sequence[AudioQuestion]) -> list[Reply]:
        """Answer up to ``--eval-batch-size`` questions, those of clips of similar length together."""
        if any(question.audio is None for question in questions):  # with --control no-audio
            return [Reply(text="There is no clip.", finish_reason="stop") for _ in questions]
        clips = [question.audio.samples(16_000) for question in questions if question.audio is not None]
        batch = np.zeros((len(clips), max(map(len, clips))), np.float32)
        for row, clip in zip(batch, clips, strict=True):
            row[: len(clip)] = clip
        lengths = np.array([len(clip) for clip in clips])
        levels = 10 * np.log10(np.maximum((batch**2).sum(axis=1) / lengths, 1e-12))
        # A text would do, too; a Reply can also say why it ended, and how many tokens it had.
        return [Reply(text=self._told(level), finish_reason="stop") for level in levels]

    def _told(self, level: float) -> str:
        return f"The clip is {'quiet' if level < self.threshold else 'loud'}, at {level:.0f} dB."
