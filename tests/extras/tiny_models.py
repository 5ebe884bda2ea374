"""Tiny models with random weights, made of each family's own configuration and processor, saved to disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

MELS = 16
"""Of a frame of a clip; the real models have 128."""
FLAMINGO_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% for part in message['content'] %}{% if part['type'] == 'audio' %}<sound>{% else %}{{ part['text'] }}"
    "{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def qwen2_audio(folder: Path, *, seconds: int = 4, seed: int = 0, spread: float = 0.5, **text: Any) -> Path:
    """Save a Qwen2-Audio model, which hears so many seconds of a clip (the real one 30).

    ``text`` is laid over the configuration of its language model.
    """
    tokenizer = byte_tokenizer("<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>")
    processor = transformers.Qwen2AudioProcessor(feature_extractor=_ears(seconds), tokenizer=tokenizer)
    encoder = {
        "model_type": "qwen2_audio_encoder",
        "num_mel_bins": MELS,
        "d_model": 16,
        "encoder_layers": 1,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 32,
        "max_source_positions": 50 * seconds,
    }
    configuration = transformers.Qwen2AudioConfig(
        audio_config=encoder,
        text_config=_language(tokenizer, spread, text),
        audio_token_index=tokenizer.convert_tokens_to_ids("<|AUDIO|>"),
    )
    return _saved(
        transformers.Qwen2AudioForConditionalGeneration, configuration, tokenizer, processor, folder, seed
    )


def audio_flamingo(
    folder: Path, *, seconds: int = 4, seed: int = 0, spread: float = 0.5, **text: Any
) -> Path:
    """Save an Audio Flamingo 3 model, which hears a clip in windows of so many seconds (the real one 30)."""
    tokenizer = byte_tokenizer("<sound>")
    processor = transformers.AudioFlamingo3Processor(
        feature_extractor=_ears(seconds),
        tokenizer=tokenizer,
        chat_template=FLAMINGO_TEMPLATE,
    )
    encoder = {
        "model_type": "audioflamingo3_encoder",
        "num_mel_bins": MELS,
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_source_positions": 50 * seconds,
    }
    configuration = transformers.AudioFlamingo3Config(
        audio_config=encoder,
        text_config=_language(tokenizer, spread, text),
        audio_token_id=tokenizer.convert_tokens_to_ids("<sound>"),
    )
    return _saved(
        transformers.AudioFlamingo3ForConditionalGeneration, configuration, tokenizer, processor, folder, seed
    )


def deaf(folder: Path) -> Path:
    """Save a model that reads and writes, and takes no clip."""
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    language = _language(tokenizer, 0.5, {})
    configuration = transformers.Qwen2Config(**{n: v for n, v in language.items() if n != "model_type"})
    return _saved(transformers.Qwen2ForCausalLM, configuration, tokenizer, tokenizer, folder, 0)


def byte_tokenizer(*special: str) -> Any:
    """Return a tokenizer that has a token for each byte, and special ones."""
    alphabet = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    named = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *special)
    tokenizer.add_special_tokens([AddedToken(one, special=True) for one in named])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )


def _ears(seconds: int) -> Any:
    return transformers.WhisperFeatureExtractor(feature_size=MELS, chunk_length=seconds)


def _language(tokenizer: Any, spread: float, more: dict[str, Any]) -> dict[str, Any]:
    return {
        "model_type": "qwen2",
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 4096,
        # Of the usual 0.02 all tokens are about as likely: the first digits of two sums would decide.
        "initializer_range": spread,
        **more,
    }


def _saved(kind: Any, configuration: Any, tokenizer: Any, processor: Any, folder: Path, seed: int) -> Path:
    torch.manual_seed(seed)
    model = kind(configuration)
    for name, weights in model.named_parameters():
        if "projector" in name:
            # What is heard must weigh as much as what is read.
            weights.data *= 50
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder
