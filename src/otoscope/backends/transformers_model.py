"""A local model, run by transformers: clip and question through its processor and chat template -> a reply.

::

    questions -> chat template -> processor (samples at its own rate, padding on the left) -> generate
    -> replies

Temperature 0 means what it means to a server: greedy, and of the model's own ``generation_config.json``
nothing but the special tokens. Where no temperature is asked for, that file decides.
"""

from __future__ import annotations

import copy
import gc
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
import transformers
from transformers import AutoConfig, AutoProcessor, GenerationConfig

from otoscope.audio.heard import DamagedClipError
from otoscope.backends.python_model import AudioQuestion
from otoscope.config import LocalSettings, PromptSettings
from otoscope.errors import ConfigError, counted
from otoscope.records import Failure, FailureKind, Reply

MAX_TOKENS = 2048
"""What an answer may have where neither the settings nor the model say it; transformers would cut at 20."""
_AUTO_CLASSES = ("AutoModelForMultimodalLM", "AutoModelForSeq2SeqLM", "AutoModelForSpeechSeq2Seq")
"""Where a configuration is looked up whose ``architectures`` name no class that writes."""
_OTHER_ALLOCATORS = ("DefaultCPUAllocator", "MPS backend out of memory")
"""What errors that have no class of their own say when there is no memory."""
_OF_THE_TEXT = frozenset({"input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids"})
_SURELY_HEARD, _PROBED = 1.0, 60.0
"""Seconds that every processor passes on, and up to which it is tried out at first whether it does."""
_RUN = 8
"""So many of one special token in a row are told as one, with their number."""
_BOOKKEEPING = frozenset(
    {"_from_model_config", "transformers_version", "output_attentions", "output_hidden_states", "use_cache"}
)
"""What of a generation configuration chooses no token."""


@dataclass(frozen=True, slots=True)
class _Prepared:
    """One question, ready for the processor."""

    text: str
    """The prompt, with one marker where the clip stands."""
    samples: Any
    """Mono, float32, at the processor's rate; ``None`` without a clip."""
    heard: float | None
    """Seconds of the clip that the model gets, where that is not all of it."""


class TransformersModel:
    """A model that transformers knows, loaded. Blocks, and answers one batch after the other.

    ``settings`` are located (:func:`otoscope.backends.checkpoint.located`); ``tell`` gets what a person
    should know, and ``keep_prompt`` the first sample's prompt as the model reads it. Raises ``ConfigError``
    for a model that cannot be loaded, does not fit, or takes no clip.
    """

    def __init__(
        self,
        settings: LocalSettings,
        prompt: PromptSettings,
        tell: Callable[[str], None],
        keep_prompt: Callable[[str], None],
    ) -> None:
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        self._source = settings.source
        self._prompt = prompt
        self._tell = tell
        self._keep_prompt: Callable[[str], None] | None = keep_prompt
        self._most = settings.calls
        """Samples that are answered at once: fewer after the device was out of memory."""
        self._processor, self._rate = _processor(settings)
        self._tokenizer = self._processor.tokenizer
        self._tokenizer.padding_side = "left"
        if self._tokenizer.pad_token is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token
        self._limit: int | None = None
        """Samples of a clip that the processor passes on, once that was measured."""
        self._surely_heard, self._told_of_cut = _SURELY_HEARD, False
        self._model = _loaded(settings)
        self._context = _context(self._model.config)
        self._seed = settings.parameters.get("seed")
        self._generation = self._decoding(settings.parameters)
        self._model.generation_config = self._generation
        self._parameters = _told(self._generation) | ({} if self._seed is None else {"seed": self._seed})
        self._probe = self._checked_prompt()
        attention = getattr(self._model.config, "_attn_implementation", None) or "eager"
        number = str(self._model.dtype).removeprefix("torch.")
        self.runtime = (
            f"transformers {transformers.__version__}, torch {torch.__version__}, {self._model.device}, "
            f"{number}, {attention} attention"
        )
        """What the last digit of a number may depend on; stored with every reply, as its endpoint."""

    def answer_batch(self, questions: Sequence[AudioQuestion]) -> list[Reply | Failure]:
        """Answer each question, in order; of one that cannot be answered, say why.

        When the device is out of memory the batch is halved, for good; a single sample that does not fit is
        an ``out_of_memory`` Failure.
        """
        answered: list[Reply | Failure] = []
        while len(answered) < len(questions):
            batch = questions[len(answered) :][: self._most]
            try:
                answered += self._answered(batch)
                continue
            except (RuntimeError, MemoryError) as error:
                if not _is_out_of_memory(error):
                    raise
                message = _in_short(error)
            # Out here, since the error's frames hold all that the batch needed.
            _give_back_memory()
            if len(batch) > 1:
                self._most = len(batch) // 2
                self._tell(
                    f"the device is out of memory with {len(batch)} samples at once: {self._most} from now on"
                )
            else:
                answered.append(
                    Failure(FailureKind.OUT_OF_MEMORY, f"this sample does not fit, even alone: {message}", 1)
                )
        return answered

    def _answered(self, questions: Sequence[AudioQuestion]) -> list[Reply | Failure]:
        """Answer one batch, all of it at once."""
        started_at, start = time.time(), time.perf_counter()
        prepared = [self._prepared(question) for question in questions]
        done: dict[int, Reply | Failure] = {
            place: one for place, one in enumerate(prepared) if isinstance(one, Failure)
        }
        batch = {place: one for place, one in enumerate(prepared) if isinstance(one, _Prepared)}
        inputs = self._inputs(batch.values())
        lengths = _lengths(inputs)
        for place, length in zip(list(batch), lengths, strict=True):
            if length >= self._context:
                del batch[place]
                told = (
                    f"clip and question are {counted(length, 'token')}, and the model takes {self._context:,}"
                )
                done[place] = Failure(FailureKind.CONTEXT_TOO_SMALL, told, 1)
        if len(batch) < len(lengths):
            inputs = self._inputs(batch.values())
        if batch:
            if self._keep_prompt is not None:
                self._keep_prompt(self._as_read(inputs))
                self._keep_prompt = None
            written = self._written(inputs)
            seconds = time.perf_counter() - start
            for place, length, tokens in zip(batch, _lengths(inputs), written, strict=True):
                done[place] = self._reply(tokens, length, batch[place].heard, started_at, seconds)
        return [done[place] for place in range(len(questions))]

    # --- from a question to the model's inputs ------------------------------------------------------------

    def _prepared(self, question: AudioQuestion) -> _Prepared | Failure:
        marker = getattr(self._processor, "audio_token", None)
        if marker and marker in question.question:
            return Failure(
                FailureKind.REJECTED,
                f"the question holds {marker!r}, which is the model's marker for a clip",
                1,
            )
        text = self._rendered(question.question, with_clip=question.audio is not None)
        if question.audio is None:
            return _Prepared(text, None, None)
        try:
            samples = question.audio.samples(self._rate)
        except DamagedClipError as error:
            return Failure(FailureKind.BAD_AUDIO, f"the audio cannot be used: {error}", 1)
        except OSError as error:
            return Failure(FailureKind.UNREADABLE_AUDIO, f"the clip cannot be read: {error}", 1)
        return _Prepared(text, *self._passed_on(samples))

    def _rendered(self, question: str, *, with_clip: bool) -> str:
        """Return the prompt by the model's chat template, with a marker where the clip stands."""
        content = [{"type": "text", "text": question}]
        if with_clip:
            content.insert(0, {"type": "audio"})
        if self._prompt.part_order == "text-first":
            content.reverse()
        conversation: list[dict[str, Any]] = [{"role": "user", "content": content}]
        if self._prompt.system is not None:
            system = [{"type": "text", "text": self._prompt.system}]
            conversation.insert(0, {"role": "system", "content": system})
        text: str = self._processor.apply_chat_template(
            conversation, tokenize=False, add_generation_prompt=True
        )
        return text

    def _inputs(self, batch: Iterable[_Prepared]) -> Any:
        """Return a batch as tensors on the model's device, padded on the left; ``None`` for an empty one."""
        batch = list(batch)
        if not batch:
            return None
        # Padding is for the text alone: encoders want clips at lengths of their own.
        options: dict[str, Any] = {
            "text_kwargs": {"padding": True, "padding_side": "left", "return_tensors": "pt"}
        }
        start = getattr(self._tokenizer, "bos_token", None)
        if start and batch[0].text.startswith(start):
            options["text_kwargs"]["add_special_tokens"] = False
        if sounds := [one.samples for one in batch if one.samples is not None]:
            audio = {"sampling_rate": self._rate, "return_tensors": "pt"}
            options |= {"audio": sounds, "audio_kwargs": audio}
        inputs = self._processor(text=[one.text for one in batch], **options)
        return inputs.to(self._model.device, dtype=self._model.dtype)

    def _passed_on(self, samples: Any) -> tuple[Any, float | None]:
        """Return what the model gets of a clip and, where that is not all of it, how long that is (s).

        Processors cut a long clip without a word, each at a length of its own, so that is measured.
        """
        seconds = len(samples) / self._rate
        if self._limit is None and seconds > self._surely_heard:
            self._surely_heard = max(_PROBED, 2 * seconds)
            self._limit = self._measured_limit(int(self._surely_heard * self._rate))
        if self._limit is None or len(samples) <= self._limit:
            return samples, None
        heard = self._limit / self._rate
        if not self._told_of_cut:
            self._told_of_cut = True
            self._tell(
                f"this model's processor passes on the first {heard:g} s of a clip, and some are longer: the "
                "rest of them is not heard. Their replies are stored with heard_seconds"
            )
        return samples[: self._limit], heard

    def _measured_limit(self, length: int) -> int | None:
        """Return how many of so many samples the processor passes on, to 10 ms; ``None`` for all of them."""
        noise = np.random.default_rng(0).standard_normal(length).astype(np.float32) / 10
        whole = self._inputs([_Prepared(self._probe, noise, None)])

        def is_as_good(count: int) -> bool:
            part = self._inputs([_Prepared(self._probe, noise[:count], None)])
            return all(torch.equal(part[name], whole[name]) for name in whole)

        step = self._rate // 100
        if not is_as_good(length - step):
            return None
        low, high = 0, length // step
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if is_as_good(middle * step) else (middle + 1, high)
        return low * step

    def _checked_prompt(self) -> str:
        """Return a prompt with a clip, once the processor made something of it. Raises ``ConfigError``."""
        processor = type(self._processor).__name__
        try:
            text = self._rendered("?", with_clip=True)
            inputs = self._inputs([_Prepared(text, np.zeros(self._rate, np.float32), None)])
        except Exception as error:  # what a foreign template and processor do to each other, nobody can list
            raise ConfigError(
                f"{self._source}: its processor ({processor}) cannot be asked about a clip: "
                f"{_in_short(error)}. It needs a chat template that takes one (chat_template.jinja)"
            ) from error
        marker = getattr(self._processor, "audio_token", None)
        if (marker and marker not in text) or not set(inputs) - _OF_THE_TEXT:
            raise ConfigError(
                f"{self._source}: its chat template leaves the clip out, or its processor ({processor}) "
                "makes nothing of it; it needs a template that takes a clip (chat_template.jinja)"
            )
        return text

    def _as_read(self, inputs: Any) -> str:
        """Return the first prompt as the model reads it: special tokens kept, runs of one of them counted."""
        tokens = inputs["input_ids"][0][inputs["attention_mask"][0].bool()].tolist()
        special = self._tokenizer.added_tokens_decoder
        told: list[str] = []
        plain: list[int] = []
        for token, same in groupby(tokens):
            count = len(list(same))
            if count < _RUN or token not in special:
                plain += [token] * count
                continue
            told += [self._tokenizer.decode(plain), f"{self._tokenizer.decode([token])}x{count}"]
            plain = []
        return "".join([*told, self._tokenizer.decode(plain)])

    # --- from inputs to replies ---------------------------------------------------------------------------

    def _decoding(self, parameters: Mapping[str, Any]) -> GenerationConfig:
        """Return how tokens are chosen: as it is asked for; without a temperature, as the model has it."""
        own = self._model.generation_config
        ends = own.eos_token_id if own.eos_token_id is not None else self._tokenizer.eos_token_id
        special = {
            "eos_token_id": list(ends) if isinstance(ends, (list, tuple)) else [ends],
            "pad_token_id": self._tokenizer.pad_token_id if own.pad_token_id is None else own.pad_token_id,
            "bos_token_id": own.bos_token_id,
            "decoder_start_token_id": own.decoder_start_token_id,
        }
        asked: dict[str, Any] = {
            theirs: parameters[ours]
            for ours, theirs in (
                ("max_tokens", "max_new_tokens"),
                ("repetition_penalty", "repetition_penalty"),
                ("stop", "stop_strings"),
                ("top_p", "top_p"),
                ("min_p", "min_p"),
            )
            if ours in parameters
        }
        if "top_k" in parameters:
            asked["top_k"] = max(0, parameters["top_k"])
        temperature = parameters.get("temperature")
        if temperature is None:
            generation = copy.deepcopy(own)
            if own.max_new_tokens is None and own.max_length is None:
                asked.setdefault("max_new_tokens", MAX_TOKENS)
        else:
            generation = GenerationConfig(num_beams=1)
            asked.setdefault("max_new_tokens", MAX_TOKENS)
            self._tell_unused(own, special)
        if temperature:
            asked |= {"do_sample": True, "temperature": temperature}
            # Else transformers would take the 50 likeliest tokens.
            asked.setdefault("top_k", 0)
        elif temperature == 0:
            asked = {n: v for n, v in asked.items() if n not in ("top_p", "min_p", "top_k")} | {
                "do_sample": False
            }
        generation.update(**special, **asked)
        return generation

    def _tell_unused(self, own: GenerationConfig, special: Mapping[str, Any]) -> None:
        """Tell what the model's own file says of decoding, and is not done."""
        unused = {name: value for name, value in _told(own).items() if name not in special}
        if unused:
            listed = ", ".join(f"{name}={json.dumps(value, default=str)}" for name, value in unused.items())
            self._tell(
                "of the model's generation_config.json this is not used, since a temperature is asked for: "
                f"{listed}"
            )

    def _written(self, inputs: Any) -> list[list[int]]:
        """Return the tokens that the model wrote for each sample, with what fills the batch up."""
        if self._seed is not None:
            torch.manual_seed(self._seed)
        more = {"tokenizer": self._tokenizer} if self._generation.stop_strings else {}
        with torch.inference_mode():
            whole = self._model.generate(**inputs, generation_config=self._generation, **more)
        asked = 0 if self._model.config.is_encoder_decoder else inputs["input_ids"].shape[1]
        return [row.tolist() for row in whole[:, asked:]]

    def _reply(
        self, tokens: list[int], prompt_tokens: int, heard: float | None, started_at: float, seconds: float
    ) -> Reply:
        """Return what was written, up to its end."""
        ends = self._generation.eos_token_id
        end = next((place for place, token in enumerate(tokens) if token in ends), None)
        text = self._tokenizer.decode(tokens[:end], skip_special_tokens=True)
        count = len(tokens) if end is None else end + 1
        stops = [place for stop in self._generation.stop_strings or () if (place := text.find(stop)) >= 0]
        if stops:
            text = text[: min(stops)]
            count = sum(token != self._generation.pad_token_id for token in tokens[:count])
        return Reply(
            text=text,
            finish_reason="length" if end is None and not stops else "stop",
            usage={"prompt_tokens": prompt_tokens, "completion_tokens": count},
            model=type(self._model).__name__,
            parameters=self._parameters | ({} if heard is None else {"heard_seconds": heard}),
            endpoint=self.runtime,
            started_at=started_at,
            latency=seconds,
        )


# --- loading ----------------------------------------------------------------------------------------------


def _processor(settings: LocalSettings) -> tuple[Any, int]:
    """Load what turns clips and texts into tensors; return it with the sampling rate (Hz) that it takes."""
    try:
        processor = AutoProcessor.from_pretrained(
            settings.folder, trust_remote_code=settings.trust_remote_code
        )
    except Exception as error:  # files of anybody's, read by libraries of others
        raise _not_loaded(settings, "its processor", error) from error
    ears = next(
        (
            part
            for name in ("feature_extractor", "audio_processor")
            if (part := getattr(processor, name, None))
        ),
        None,
    )
    rate = getattr(ears, "sampling_rate", None)
    if not rate or getattr(processor, "tokenizer", None) is None:
        raise ConfigError(
            f"{settings.source}: its processor ({type(processor).__name__}) takes no audio; a model "
            "that hears and writes is needed"
        )
    return processor, int(rate)


def _loaded(settings: LocalSettings) -> Any:
    """Load the model, with the weights that the folder has for all of it."""
    try:
        config = AutoConfig.from_pretrained(settings.folder, trust_remote_code=settings.trust_remote_code)
        model, found = _model_class(config, settings).from_pretrained(
            settings.folder,
            trust_remote_code=settings.trust_remote_code,
            output_loading_info=True,
            **{"dtype": "auto", "device_map": _devices(), **settings.model_args},
        )
    except ConfigError:
        raise
    except Exception as error:  # files of anybody's, read by libraries of others
        raise _not_loaded(settings, "the model", error) from error
    if missing := sorted(found["missing_keys"]):
        raise ConfigError(
            f"{settings.source}: its files lack weights of the model ({counted(len(missing), 'tensor')}, for "
            f"example {missing[0]}), which would be random"
        )
    return model.eval()


def _model_class(config: Any, settings: LocalSettings) -> Any:
    """Return the class of the configuration's ``architectures``, or the one that goes with its kind."""
    named = list(getattr(config, "architectures", None) or ())
    own = next(
        (name for name in getattr(config, "auto_map", None) or () if name.startswith("AutoModel")), None
    )
    if own is not None and settings.trust_remote_code:
        return getattr(transformers, own)
    for name in named:
        found = getattr(transformers, name, None)
        if found is not None and hasattr(found, "generate"):
            return found
    if own is not None:
        raise _untrusted(settings)
    for name in _AUTO_CLASSES:
        auto = getattr(transformers, name, None)
        if auto is not None and type(config) in auto._model_mapping:  # noqa: SLF001 (there is no other way to ask)
            return auto
    raise ConfigError(
        f"{settings.source}: transformers {transformers.__version__} has no model that hears and writes "
        f"for it (model_type {config.model_type!r}, architectures {', '.join(named) or 'not named'})"
    )


def _devices() -> str | None:
    """Return where a model goes of which nothing is said: all that is faster than the processor."""
    return "auto" if torch.accelerator.is_available() else None


def _not_loaded(settings: LocalSettings, what: str, error: Exception) -> ConfigError:
    """Return what a user reads of an error of transformers."""
    told = _in_short(error)
    if _is_out_of_memory(error):
        way = "it does not fit into the device's memory: try --model-args dtype=bfloat16 or device_map=auto"
        return ConfigError(f"{settings.source}: {way} ({told})")
    if "trust_remote_code" in str(error) and not settings.trust_remote_code:
        return _untrusted(settings)
    return ConfigError(
        f"{settings.source}: {what} cannot be loaded by transformers {transformers.__version__}: "
        f"{type(error).__name__}: {told}"
    )


def _untrusted(settings: LocalSettings) -> ConfigError:
    return ConfigError(
        f"{settings.source}: comes with Python code of its own, which is run only with "
        "--model-args trust_remote_code=true. Read it before you do"
    )


def _context(config: Any) -> float:
    """Return how many tokens the model takes."""
    most = getattr(config.get_text_config(), "max_position_embeddings", None)
    return most if isinstance(most, int) and most > 0 else math.inf


def _told(generation: GenerationConfig) -> dict[str, Any]:
    """Return what of a generation configuration is set, without what says where it comes from."""
    known = json.loads(generation.to_json_string(use_diff=True))
    return {name: value for name, value in known.items() if name not in _BOOKKEEPING and value is not None}


def _lengths(inputs: Any) -> list[int]:
    """Return the number of tokens of each prompt, clips included."""
    return [] if inputs is None else [int(count) for count in inputs["attention_mask"].sum(dim=1)]


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _OTHER_ALLOCATORS)


def _give_back_memory() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _in_short(error: BaseException) -> str:
    """Return an error's first line."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
