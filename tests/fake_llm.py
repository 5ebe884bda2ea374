"""A small stand-in for a model file: a token for each byte, and what comes next is up to the test."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence

MARKERS = {"<|im_start|>": 256, "<|im_end|>": 257}
END = MARKERS["<|im_end|>"]
VOCABULARY = 258

Says = Callable[[str], dict[str, float]]
"""What may come next (token texts -> probabilities) after all that was read, as text."""


class FakeContext:
    """A context that keeps what it reads, and how many tokens it was given at a time."""

    def __init__(self, model: FakeModel, size: int) -> None:
        self.model = model
        self.size = size
        self.tokens: list[int] = []
        self.blocks: list[tuple[int, int]] = []
        self.interrupted = threading.Event()
        self.reading = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    def read(self, tokens: Sequence[int], position: int) -> None:
        """Read, or wait until a test lets it go on; an interruption leaves something half read."""
        assert position == len(self.tokens), "a gap in the context"
        self.reading.set()
        while not self.go_on.wait(0.01):
            if self.interrupted.is_set():
                self.tokens += tokens[:1]
                raise InterruptedError
        self.tokens += tokens
        self.blocks.append((position, len(tokens)))
        assert len(self.tokens) <= self.size
        if read(self.tokens).endswith("assistant\n"):
            self.model.prompts.append(read(self.tokens))

    def forget(self, position: int) -> None:
        """Forget."""
        del self.tokens[position:]

    def logits(self) -> list[float]:
        """Return what the test makes the model say."""
        logits = [-30.0] * VOCABULARY
        for text, probability in self.model.says(read(self.tokens)).items():
            logits[MARKERS.get(text) or ord(text)] = math.log(max(probability, 1e-12))
        return logits

    def likeliest(self) -> int:
        """Return the most probable of it."""
        logits = self.logits()
        return logits.index(max(logits))

    def interrupt(self, on: bool) -> None:
        """Interrupt."""
        (self.interrupted.set if on else self.interrupted.clear)()

    def close(self) -> None:
        """Close before the model is."""
        assert not self.model.closed


class FakeModel:
    """A model with a token for each byte, which says what a test makes it say."""

    def __init__(self, says: Says = lambda _: {"<|im_end|>": 1.0}) -> None:
        self.says = says
        self.contexts: list[FakeContext] = []
        self.prompts: list[str] = []
        """All that was read up to where the model is to answer."""
        self.closed = False

    def tokens(self, text: str) -> list[int]:
        """Return the text's bytes."""
        return list(text.encode("utf-8"))

    def marker(self, text: str) -> int:
        """Return a token above all bytes."""
        return MARKERS[text]

    def text(self, tokens: Sequence[int]) -> str:
        """Return the bytes' text."""
        return bytes(tokens).decode("utf-8", "replace")

    def ends(self, token: int) -> bool:
        """Whether it is the end of a turn."""
        return token == END

    def context(self, size: int) -> FakeContext:
        """Return a new context, and keep it for the test to look at."""
        self.contexts.append(FakeContext(self, size))
        return self.contexts[-1]

    def close(self) -> None:
        """Close."""
        self.closed = True


def read(tokens: Sequence[int]) -> str:
    """Return tokens as text, markers included."""
    names = {number: name for name, number in MARKERS.items()}
    return "".join(names.get(token) or chr(token) for token in tokens)


def spelling(answer: str) -> Says:
    """Return a model that writes this answer, then ends its turn."""

    def says(text: str) -> dict[str, float]:
        written = text.rpartition("assistant\n")[2]
        rest = answer.removeprefix(written)
        return {rest[0] if rest else "<|im_end|>": 1.0}

    return says
