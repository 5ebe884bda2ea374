"""The facts of AIR-Bench Chat: tasks, sizes, categories, source folders, judge, and the paper's means.

Source: "AIR-Bench: Benchmarking Large Audio-Language Models via Generative Comprehension", ACL 2024,
arXiv 2402.07729, and the released data set (2,200 rows; the paper's own table lists 2,000).
"""

from __future__ import annotations

from typing import NamedTuple

BENCHMARK = "air_bench_chat"
PAPER_JUDGE = "gpt-4-0125-preview"
"""The official judge; its maker has retired it."""

MODELSCOPE_DATASET = "evalscope/AIR-Bench-Dataset"
HUGGINGFACE_DATASET = "qyang1021/AIR-Bench-Dataset"

SCORE_MIN, SCORE_MAX = 0, 10
"""The prompt names 1 to 10, but judges do answer 0 for a useless reply and the published tables keep it."""


class Task(NamedTuple):
    """One of the eight tasks, with its size in the full data set."""

    name: str
    samples: int
    category: str
    folders: tuple[str, ...]


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task("speech_QA", 400, "speech", ("common_voice_en", "iemocap")),
        Task("speech_dialogue_QA", 400, "speech", ("fisher", "spokenwoz")),
        Task("sound_QA", 400, "sound", ("clotho",)),
        Task("sound_generation_QA", 100, "sound", ("clotho",)),
        Task("music_QA", 400, "music", ("musiccaps",)),
        Task("music_generation_analysis_QA", 100, "music", ("musiccaps",)),
        Task("speech_and_sound_QA", 200, "speech_and_sound", ("audiocaps_cv",)),
        Task("speech_and_music_QA", 200, "speech_and_music", ("musiccaps_cv",)),
    )
}

CATEGORIES: tuple[str, ...] = ("speech", "sound", "music", "speech_and_sound", "speech_and_music")
MIXED_PARTS: tuple[str, ...] = ("speech_and_sound", "speech_and_music")
"""mixed_audio is the mean of these two category scores."""
AVERAGE_PARTS: tuple[str, ...] = ("speech", "sound", "music", "mixed_audio")
"""The paper's headline is the mean of these four."""

TASK_GROUPS: dict[str, tuple[str, ...]] = {
    **{category: tuple(t.name for t in TASKS.values() if t.category == category) for category in CATEGORIES},
    "mixed_audio": tuple(t.name for t in TASKS.values() if t.category in MIXED_PARTS),
}
"""What may stand for several tasks: a category, or mixed_audio."""

VIEWS: dict[str, tuple[str, ...]] = {
    "full": tuple(TASKS),
    "paper-2000": tuple(name for name in TASKS if "generation" not in name),
}
"""Which tasks a report is over: the released 2,200 samples, or the 2,000 that the paper's own table lists."""
