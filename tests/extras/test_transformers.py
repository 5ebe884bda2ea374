"""Local models through their real loading code: tiny ones with random weights, of each family's classes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from otoscope.backends.checkpoint import located
from otoscope.backends.python_model import AudioQuestion
from otoscope.backends.transformers_model import TransformersModel
from otoscope.config import LocalSettings, PromptSettings
from otoscope.errors import ConfigError
from otoscope.records import Failure, FailureKind, Reply
from tests.extras.tiny_models import audio_flamingo, byte_tokenizer, deaf, qwen2_audio

pytestmark = pytest.mark.extras

TOKENS = 12
GREEDY = {"temperature": 0, "max_tokens": TOKENS}
HEARD = 4
"""Seconds that the tiny encoders take at a time."""
MAKERS = {"qwen2_audio": qwen2_audio, "audio_flamingo": audio_flamingo}


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    """Threads that wait for each other are most of what a tiny model does on a busy machine."""
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Save a model of each family."""
    return {name: make(tmp_path_factory.mktemp(name) / name, seconds=HEARD) for name, make in MAKERS.items()}


@pytest.fixture(params=sorted(MAKERS))
def folder(request: pytest.FixtureRequest, saved: dict[str, Path]) -> Path:
    """Give one family's model after the other."""
    return saved[request.param]


@pytest.fixture
def qwen(saved: dict[str, Path], tmp_path: Path) -> Path:
    """Give a Qwen2-Audio model that a test may change."""
    return Path(shutil.copytree(saved["qwen2_audio"], tmp_path / "model"))


class Tone:
    """A clip of one tone in a little noise, the same for the same number."""

    def __init__(self, seconds: float, number: int) -> None:
        self.seconds = seconds
        self._number = number

    def samples(self, rate: int | None = None) -> Any:
        """Return it at 16 kHz."""
        assert rate == 16000
        time = np.arange(int(self.seconds * rate)) / rate
        tone = np.sin(2 * np.pi * 150 * 2**self._number * time)
        noise = np.random.default_rng(self._number).standard_normal(len(time))
        return (tone / 2 + noise / 100).astype(np.float32)


def ask(text: str, seconds: float = 1.0, number: int = 0) -> AudioQuestion:
    """Return a question about a clip."""
    return AudioQuestion(Tone(seconds, number), text)  # type: ignore[arg-type]


UNEQUAL = [
    ask("What?", 1.0, 1),
    ask("What is heard in this clip, and where may it have been recorded?", 3.3, 2),
    ask("Who speaks", 0.2, 3),
    ask("Is it music? " * 9, 6.5, 4),
]
"""Four questions of unequal lengths, about clips of unequal lengths."""


class Loaded:
    """A model, and what was told while it was used."""

    def __init__(
        self,
        folder: Path,
        *,
        batch: int = 1,
        parameters: dict[str, Any] = GREEDY,
        trust: bool = False,
        system: str | None = None,
        part_order: str = "audio-first",
        **arguments: Any,
    ) -> None:
        self.told: list[str] = []
        self.prompts: list[str] = []
        settings = LocalSettings(
            role="model",
            name=folder.name,
            source=str(folder),
            on_hub=False,
            revision=None,
            parameters=MappingProxyType(parameters),
            model_args=MappingProxyType(arguments),
            trust_remote_code=trust,
            calls=batch,
            concurrency=4 * batch,
            timeout=600.0,
        )
        prompt = PromptSettings(
            template="{question}",
            system=system,
            part_order=part_order,
            audio_part="input_audio",
            audio_fallbacks=(),
            answer_filter="none",
        )
        self.model = TransformersModel(
            located(settings, lambda event: None), prompt, self.told.append, self.prompts.append
        )

    def replies(self, *questions: AudioQuestion) -> list[Reply]:
        """Answer questions that can be answered."""
        answered = self.model.answer_batch(questions)
        replies = [one for one in answered if isinstance(one, Reply)]
        assert len(replies) == len(questions), answered
        return replies

    def texts(self, *questions: AudioQuestion) -> list[str | None]:
        """Return the answers."""
        return [reply.text for reply in self.replies(*questions)]


def edited(folder: Path, name: str, change: Callable[[dict[str, Any]], object]) -> Path:
    """Change a JSON file of a model; it may be missing."""
    file = folder / name
    value = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    change(value)
    file.write_text(json.dumps(value), encoding="utf-8")
    return folder


def refused(folder: Path, **more: Any) -> str:
    """Return why a model is not loaded."""
    with pytest.raises(ConfigError) as caught:
        Loaded(folder, **more)
    return str(caught.value)


# --- answers ----------------------------------------------------------------------------------------------


def test_a_batch_answers_as_single_samples_do(folder: Path) -> None:
    """Four of unequal lengths get the same tokens at once as one by one: padding is heard by nobody."""
    together = Loaded(folder, batch=4).replies(*UNEQUAL)
    alone = Loaded(folder).replies(*UNEQUAL)
    assert [(one.text, one.usage) for one in together] == [(one.text, one.usage) for one in alone]
    assert len({one.text for one in together}) == len(UNEQUAL)


def test_the_clip_is_heard(folder: Path) -> None:
    """Another clip of the same length gets another answer, and so does none."""
    model = Loaded(folder)
    first, other, again = model.texts(ask("What?", 1, 1), ask("What?", 1, 2), ask("What?", 1, 1))
    assert first == again != other
    assert model.texts(AudioQuestion(None, "What?")) != [first]


def test_an_answer_is_what_transformers_itself_generates(qwen: Path) -> None:
    """The same as the few lines on the model's page: processor, generate, decode."""
    processor = transformers.AutoProcessor.from_pretrained(qwen)
    model = transformers.Qwen2AudioForConditionalGeneration.from_pretrained(qwen)
    question = UNEQUAL[1]
    assert question.audio is not None
    content = [
        {"type": "audio", "audio": question.audio.samples(16000)},
        {"type": "text", "text": question.question},
    ]
    inputs = processor.apply_chat_template(
        [{"role": "user", "content": content}],
        tokenize=True,
        add_generation_prompt=True,
        return_dict=True,
        return_tensors="pt",
    )
    tokens = model.generate(**inputs, do_sample=False, max_new_tokens=TOKENS)[
        0, inputs["input_ids"].shape[1] :
    ]
    assert Loaded(qwen).texts(question) == [processor.decode(tokens, skip_special_tokens=True)]


def test_a_reply_tells_how_it_came_about(folder: Path) -> None:
    """Tokens, why it ended, the effective decoding, and versions, device and type of numbers are stored."""
    (reply,) = Loaded(folder, dtype="bfloat16").replies(ask("What?", 2.0))
    assert reply.finish_reason == "length"
    assert reply.usage is not None
    assert reply.usage["completion_tokens"] == TOKENS
    assert reply.usage["prompt_tokens"] > 50
    assert reply.parameters["do_sample"] is False
    assert reply.parameters["max_new_tokens"] == TOKENS
    assert reply.endpoint is not None
    assert f"torch {torch.__version__}, cpu, bfloat16" in reply.endpoint
    assert str(reply.model).endswith("ForConditionalGeneration")
    assert json.loads(json.dumps(reply.to_json())) == reply.to_json()


def test_an_answer_ends_where_the_model_ends_it(qwen: Path) -> None:
    """Any of the model's own ending tokens ends an answer; in a batch what follows fills it up."""
    tokenizer = byte_tokenizer("<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>")
    whole = Loaded(qwen).texts(ask("What?"))[0] or ""
    letter = next(one for one in whole if one.isascii())
    (end,) = tokenizer.encode(letter)
    edited(qwen, "generation_config.json", lambda value: value.update(eos_token_id=[258, end]))
    for batch in (1, 2):
        reply = Loaded(qwen, batch=batch).replies(ask("What?"), ask("Who speaks in this?", 3.0, 2))[0]
        assert reply.text == whole[: whole.index(letter)]
        assert reply.finish_reason == "stop"
        assert reply.usage is not None
        assert reply.usage["completion_tokens"] < TOKENS


def test_a_text_that_ends_an_answer_is_not_part_of_it(qwen: Path) -> None:
    """``stop`` does what it does on a server, also in a batch whose others go on."""
    whole = Loaded(qwen).texts(ask("What?"))[0] or ""
    letter = next(one for one in whole if one.isascii())
    model = Loaded(qwen, batch=2, parameters={**GREEDY, "stop": [letter]})
    reply = model.replies(ask("What?"), ask("Who speaks in this?", 3.0, 2))[0]
    assert (reply.text, reply.finish_reason) == (whole[: whole.index(letter)], "stop")


OWN = {"do_sample": True, "temperature": 0.7, "top_k": 5, "repetition_penalty": 9.0, "max_new_tokens": 3}


def test_temperature_0_leaves_nothing_of_the_models_own_decoding(qwen: Path) -> None:
    """What ``generation_config.json`` says of sampling is not done, as by a server, and that is said."""
    plain = Loaded(qwen).replies(*UNEQUAL)
    model = Loaded(edited(qwen, "generation_config.json", lambda value: value.update(OWN)))
    assert [one.text for one in model.replies(*UNEQUAL)] == [one.text for one in plain]
    (told,) = [one for one in model.told if "generation_config.json" in one]
    assert "repetition_penalty=9.0" in told
    assert model.replies(UNEQUAL[0])[0].parameters == plain[0].parameters


def test_without_a_temperature_the_models_own_decoding_counts(qwen: Path) -> None:
    """An empty ``generation_config`` leaves it to the model, as it leaves it to a server; it is recorded."""
    edited(qwen, "generation_config.json", lambda value: value.update(OWN))
    (reply,) = Loaded(qwen, parameters={"seed": 1}).replies(ask("What?"))
    assert OWN.items() <= dict(reply.parameters).items()
    assert reply.usage is not None
    assert reply.usage["completion_tokens"] <= 3


def test_a_seed_makes_sampling_repeatable(qwen: Path) -> None:
    """The same seed draws the same answer, another one another."""

    def drawn(seed: int) -> list[str | None]:
        return Loaded(qwen, parameters={"temperature": 1.5, "max_tokens": TOKENS, "seed": seed}).texts(
            ask("What?")
        )

    assert drawn(1) == drawn(1) != drawn(2)


def test_sampling_takes_all_tokens_unless_told_otherwise(qwen: Path) -> None:
    """Of transformers' own 50 likeliest tokens nobody spoke; ``top_k`` -1 is a server's word for all."""
    (reply,) = Loaded(qwen, parameters={"temperature": 0.5, "top_k": -1}).replies(ask("What?"))
    assert reply.parameters["top_k"] == 0
    assert reply.parameters["max_new_tokens"] == 2048


# --- the prompt -------------------------------------------------------------------------------------------


def test_the_first_prompt_is_kept_as_the_model_reads_it(qwen: Path) -> None:
    """Special tokens stay, the many tokens of a clip are counted, and one prompt is enough."""
    model = Loaded(qwen, batch=2)
    model.replies(ask("What?", 2.0), ask("A longer question, so that the first one is padded?"))
    model.replies(ask("And now?"))
    (prompt,) = model.prompts
    assert prompt == (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
        "Audio 1: <|audio_bos|><|AUDIO|>x50<|audio_eos|>\nWhat?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_system_prompt_and_order_of_parts_are_as_set(folder: Path) -> None:
    """A system prompt is the first message, and the text may come before the clip."""
    model = Loaded(folder, system="Be brief.", part_order="text-first")
    model.replies(ask("What?"))
    (prompt,) = model.prompts
    assert prompt.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhat?")
    assert "x25" in prompt.partition("What?")[2]


def test_a_question_with_the_marker_of_a_clip_is_its_own_failure(qwen: Path) -> None:
    """It would stand for a second clip; the others of the batch are answered."""
    failed, answered = Loaded(qwen, batch=2).model.answer_batch([ask("What is <|AUDIO|>?"), ask("What?")])
    assert isinstance(failed, Failure)
    assert failed.kind is FailureKind.REJECTED
    assert isinstance(answered, Reply)


def test_a_prompt_that_is_too_long_is_its_own_failure(tmp_path: Path) -> None:
    """A clip and question over the model's context fail by name, and nothing is cut to make them fit."""
    folder = qwen2_audio(tmp_path / "model", seconds=HEARD, max_position_embeddings=160)
    long = ask("What? " * 30)
    for batch in (1, 3):
        model = Loaded(folder, batch=batch)
        first, second, third = model.model.answer_batch([ask("What?"), long, ask("Who?")])
        assert isinstance(second, Failure)
        assert second.kind is FailureKind.CONTEXT_TOO_SMALL
        assert "160" in second.message
        assert [one.text for one in (first, third) if isinstance(one, Reply)] == model.texts(
            ask("What?"), ask("Who?")
        )


def test_a_clip_that_is_cut_by_the_processor_is_told(saved: dict[str, Path]) -> None:
    """Qwen2-Audio hears a clip's first window: replies about longer ones say so, and it is told once."""
    model = Loaded(saved["qwen2_audio"])
    whole, cut, more = model.replies(ask("What?", HEARD), ask("What?", HEARD + 1), ask("What?", HEARD + 3))
    assert "heard_seconds" not in whole.parameters
    assert cut.parameters["heard_seconds"] == more.parameters["heard_seconds"] == HEARD
    assert len(model.told) == 1
    assert "the first 4 s" in model.told[0]


def test_a_clip_that_is_taken_in_windows_is_not_cut(saved: dict[str, Path]) -> None:
    """Audio Flamingo 3 hears window after window: the end of a long clip makes a difference."""
    model = Loaded(saved["audio_flamingo"])
    (reply,) = model.replies(ask("What?", 3 * HEARD))
    assert "heard_seconds" not in reply.parameters
    assert not model.told
    assert "x300" in model.prompts[0]


# --- a device without memory ------------------------------------------------------------------------------

CROWDED = """
import torch
import transformers

class Qwen2AudioForConditionalGeneration(transformers.Qwen2AudioForConditionalGeneration):
    def forward(
        self, input_ids=None, attention_mask=None, input_features=None, feature_attention_mask=None, **more
    ):
        more |= {{"attention_mask": attention_mask, "input_features": input_features}}
        more |= {{"feature_attention_mask": feature_attention_mask}}
        if input_ids is not None and len(input_ids) > {most}:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.\\nmore of it")
        return super().forward(input_ids=input_ids, **more)
"""


def crowded(folder: Path, most: int) -> Path:
    """Make a model's code raise, for more samples than so many, what a GPU without memory does."""
    (folder / "modeling_crowded.py").write_text(CROWDED.format(most=most), encoding="utf-8")

    # A model with code of its own has its weights under the names that this code has for them.
    plain = transformers.Qwen2AudioForConditionalGeneration.from_pretrained(folder)
    weights = {name: value.clone() for name, value in plain.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    own = {"AutoModelForMultimodalLM": "modeling_crowded.Qwen2AudioForConditionalGeneration"}
    return edited(folder, "config.json", lambda value: value.update(auto_map=own))


def test_a_batch_that_does_not_fit_is_halved_for_good(saved: dict[str, Path], qwen: Path) -> None:
    """Half of the samples at once, until it fits; each step is told, and the answers are the same."""
    model = Loaded(crowded(qwen, 1), batch=4, trust=True)
    questions = UNEQUAL[:3]
    assert model.texts(*questions) == Loaded(saved["qwen2_audio"]).texts(*questions)
    assert [one for one in model.told if "memory" in one] == [
        "the device is out of memory with 3 samples at once: 1 from now on"
    ]
    model.texts(*questions)
    assert len([one for one in model.told if "memory" in one]) == 1


def test_a_sample_that_does_not_fit_alone_is_a_failure(qwen: Path) -> None:
    """It costs that sample, and no run; it is owed again on another device."""
    model = Loaded(crowded(qwen, 0), batch=2, trust=True)
    for answered in model.model.answer_batch([ask("What?"), ask("Who?")]):
        assert isinstance(answered, Failure)
        assert answered.kind is FailureKind.OUT_OF_MEMORY
        assert answered.kind.passing
        assert answered.message.endswith("CUDA out of memory. Tried to allocate 20.00 MiB.")


def test_another_error_is_no_lack_of_memory(qwen: Path) -> None:
    """Whatever else the model raises is raised."""
    folder = crowded(qwen, 0)
    code = folder / "modeling_crowded.py"
    code.write_text(
        code.read_text(encoding="utf-8").replace("torch.OutOfMemoryError", "RuntimeError"), encoding="utf-8"
    )
    with pytest.raises(RuntimeError, match="Tried to allocate"):
        Loaded(folder, trust=True).texts(ask("What?"))


# --- what cannot be loaded --------------------------------------------------------------------------------


def test_code_of_a_model_is_run_only_where_it_is_trusted(qwen: Path) -> None:
    """A model with code of its own is refused, and not run; the argument that would run it is named."""
    folder = crowded(qwen, 0)
    edited(folder, "config.json", lambda value: value.update(architectures=["Listener"]))
    (folder / "modeling_crowded.py").write_text("raise SystemExit('it was run')", encoding="utf-8")
    assert "--model-args trust_remote_code=true" in refused(folder)


def test_a_model_that_takes_no_audio_is_refused(tmp_path: Path) -> None:
    """A language model has a tokenizer for a processor; it is named."""
    folder = edited(deaf(tmp_path / "model"), "processor_config.json", lambda value: None)
    assert "takes no audio" in refused(folder)


@pytest.mark.parametrize(
    "template", [None, "{% for m in messages %}{{ m['content'][-1]['text'] }}{% endfor %}"]
)
def test_a_chat_template_that_takes_no_clip_is_refused(
    template: str | None, saved: dict[str, Path], tmp_path: Path
) -> None:
    """No template, and one that leaves the clip out, are found before the first sample."""
    folder = Path(shutil.copytree(saved["audio_flamingo"], tmp_path / "model"))
    (folder / "chat_template.jinja").unlink()
    if template is not None:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    assert "chat_template.jinja" in refused(folder)


def test_weights_that_are_not_all_there_are_refused(qwen: Path) -> None:
    """Transformers would make up the missing ones at random, with a warning."""
    weights = load_file(qwen / "model.safetensors")
    kept = {name: value for name, value in weights.items() if "layers.1" not in name}
    save_file(kept, qwen / "model.safetensors", metadata={"format": "pt"})
    assert "its files lack weights of the model" in refused(qwen)


@pytest.mark.parametrize(
    ("name", "change", "told"),
    [
        ("config.json", {"model_type": "qwen9_audio"}, "qwen9_audio"),
        (
            "config.json",
            {"model_type": "bert", "architectures": ["BertModel"]},
            "no model that hears and writes",
        ),
        ("processor_config.json", {"processor_class": "NoSuchProcessor"}, "its processor"),
    ],
)
def test_what_transformers_does_not_know_is_named(
    name: str, change: dict[str, Any], told: str, qwen: Path
) -> None:
    """A newer family, another kind of model, another library's processor: the message names what."""
    assert told in refused(edited(qwen, name, lambda value: value.update(change)))


def test_weights_that_are_damaged_are_named(qwen: Path) -> None:
    """A file that was cut is a user's trouble."""
    weights = (qwen / "model.safetensors").read_bytes()
    (qwen / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    assert f"{qwen}: the model cannot be loaded by transformers" in refused(qwen)


@pytest.mark.parametrize(
    "arguments", [{"dtype": "float17"}, {"device_map": "cuda"}, {"attn_implementation": "no_such_attention"}]
)
def test_arguments_that_cannot_be_are_named(arguments: dict[str, Any], qwen: Path) -> None:
    """What this machine or transformers does not have is an error before the first sample."""
    if arguments == {"device_map": "cuda"} and torch.cuda.is_available():
        pytest.skip("there is one")
    assert "the model cannot be loaded" in refused(qwen, **arguments)


def test_old_weights_load_too(qwen: Path) -> None:
    """Pickled weights are read as weights alone."""
    texts = Loaded(qwen).texts(*UNEQUAL)
    torch.save(load_file(qwen / "model.safetensors"), qwen / "pytorch_model.bin")
    (qwen / "model.safetensors").unlink()
    assert Loaded(qwen).texts(*UNEQUAL) == texts
