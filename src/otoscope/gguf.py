"""A GGUF file behind llama.cpp, through the package ``cyllama``: the only module that touches it.

Everything here blocks and belongs to one thread, save for :meth:`GgufContext.interrupt`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cyllama.llama.llama_cpp import (
    LlamaBatch,
    LlamaContext,
    LlamaContextParams,
    LlamaModel,
    LlamaModelParams,
    LlamaSampler,
    LlamaSamplerChainParams,
    disable_logging,
)

from otoscope.errors import ConfigError

_BATCH = 512
"""Tokens per call of llama.cpp, which aborts the whole process when a batch is larger than announced."""


class _Weights(LlamaModel):  # type: ignore[misc] # cyllama has no types
    """The model, with the attribute that ``LlamaContext.get_logits_ith`` asks it for and 0.2.18 lacks."""

    @property
    def n_vocab(self) -> int:
        return int(self.get_vocab().n_vocab)


class Gguf:
    """A loaded model. Its log goes nowhere. Raises ``ConfigError`` when the file is no usable GGUF model."""

    def __init__(self, path: Path, *, threads: int) -> None:
        disable_logging()
        params = LlamaModelParams()
        params.n_gpu_layers = 0
        # Most weights are repacked for the processor anyway: with mmap both copies would be in memory.
        params.use_mmap = False
        try:
            self._weights = _Weights(str(path), params)
        except (ValueError, RuntimeError, OSError) as error:
            raise ConfigError(f"{path}: llama.cpp cannot load this as a GGUF model ({error})") from error
        self._vocabulary = self._weights.get_vocab()
        self._threads = threads

    def tokens(self, text: str) -> list[int]:
        """Return the tokens of a text in which markers like ``<|im_end|>`` are text too.

        A lone surrogate, which has no UTF-8 form, is read as a question mark.
        """
        clean = text.encode("utf-8", "replace").decode("utf-8")
        return [int(token) for token in self._vocabulary.tokenize(clean, False, False)]

    def marker(self, text: str) -> int:
        """Return the one token of a marker of the chat template. Raises ``ConfigError`` when it is none."""
        found = self._vocabulary.tokenize(text, False, True)
        if len(found) != 1:
            raise ConfigError(f"the model has no token {text!r}: its chat template is another")
        return int(found[0])

    @property
    def template(self) -> str:
        """The model's own chat template (Jinja)."""
        return str(self._weights.get_default_chat_template())

    def template_tokens(self, rendered: str) -> list[int]:
        """Return the tokens of a rendered template, in which markers are markers wherever they stand."""
        return [int(token) for token in self._vocabulary.tokenize(rendered, False, True)]

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text of these tokens; bytes that are no whole character become U+FFFD."""
        if not tokens:
            return ""
        longest = max(len(self._vocabulary.get_text(token)) for token in tokens)
        return str(self._vocabulary.detokenize(list(tokens), 4 * longest * len(tokens) + 16, False, False))

    def ends(self, token: int) -> bool:
        """Whether the model ends its turn with this token."""
        return bool(self._vocabulary.is_eog(token))

    def context(self, size: int) -> GgufContext:
        """Return a new, empty context for ``size`` tokens."""
        return GgufContext(self._weights, size, self._threads)

    def close(self) -> None:
        """Give the memory back. Contexts must be closed before."""
        self._weights.close()


class GgufContext:
    """One sequence of tokens that the model has read."""

    def __init__(self, weights: LlamaModel, size: int, threads: int) -> None:
        params = LlamaContextParams()
        params.n_ctx = size
        params.n_batch = params.n_ubatch = _BATCH
        params.n_threads = params.n_threads_batch = threads
        self._context = LlamaContext(weights, params)
        self._context.install_cancel_callback()
        self._batch = LlamaBatch(n_tokens=_BATCH, embd=0, n_seq_max=1)
        self._greedy = LlamaSampler(LlamaSamplerChainParams())
        self._greedy.add_greedy()

    def read(self, tokens: Sequence[int], position: int) -> None:
        """Read ``tokens`` from ``position`` on. Raises ``InterruptedError`` when it was interrupted."""
        last = len(tokens) - 1
        for start in range(0, len(tokens), _BATCH):
            self._batch.clear()
            for index, token in enumerate(tokens[start : start + _BATCH], start):
                self._batch.add(token, position + index, [0], index == last)
            self._context.decode(self._batch)

    def forget(self, position: int) -> None:
        """Forget everything from ``position`` on."""
        self._context.memory_seq_rm(0, position, -1)

    def logits(self) -> Sequence[float]:
        """Return the logits of the whole vocabulary after the last token read."""
        return self._context.get_logits_ith(-1)  # type: ignore[no-any-return]

    def likeliest(self) -> int:
        """Return the most probable next token."""
        return int(self._greedy.sample(self._context, -1))

    def interrupt(self, on: bool) -> None:
        """Make :meth:`read` give up, now and until it is switched off. May be called from any thread."""
        self._context.cancel = on

    def close(self) -> None:
        """Give the memory back."""
        self._batch.close()
        self._context.close()
