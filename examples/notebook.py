"""From Python, a notebook included: a model and a judge as objects, progress as events.

python examples/notebook.py ROOT
"""

from __future__ import annotations

import sys

from otoscope import AudioClip, Event, evaluate
from otoscope.records import Answered


def answer(audio: AudioClip, question: str) -> str:
    """Answer one question about one clip."""
    return f"I heard {audio.seconds:.1f} s of something."


def judge(prompt: str) -> str:
    """Stand in for a judge: both are equally good. Its reply is what a judge LLM would write."""
    return "5 5"


def progress(event: Event) -> None:
    """Listen to what happens."""
    if isinstance(event, Answered):
        print("answered", event.key)


if __name__ == "__main__":
    run = evaluate(
        model=answer, judge=judge, data=sys.argv[1], limit=1, run_dir="runs/notebook", on_event=progress
    )
    print(run.summary.average.gpt_score, run.path)
