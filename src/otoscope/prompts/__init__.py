"""The judge prompt, as a text file: :data:`JUDGE_PROMPT` has it byte for byte, placeholders as written."""

from __future__ import annotations

from importlib import resources

JUDGE_PROMPT = (resources.files(__name__) / "judge.txt").read_text(encoding="utf-8")
