"""Families of models: which names are of one maker's line, and which only look like it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otoscope.scoring.families import family

NAMES = {
    "Qwen": (
        "Qwen/Qwen2-Audio-7B-Instruct qwen2.5-omni-7b qwen2.5:7b-instruct Qwen-Audio-Chat "
        "qwen3-omni-flash /data/models/Qwen2-Audio-7B-Instruct/ C:\\models\\Qwen2.5-7B.gguf "
        "QwQ-32B my-qwen2-audio-finetune qwen_2_5"
    ),
    "GPT": (
        "gpt-4-0125-preview openai/gpt-4o-audio-preview o1 o3-mini openai/o4-mini "
        "chatgpt-4o-latest gpt-35-turbo gpt-4 gpt4o GPT-5.2 gpt-audio gpt-realtime-mini "
        "gpt-oss-120b ft:gpt-4o-mini:acme::abc ft:o3-mini:acme azure/gpt-4.1"
    ),
    "Gemini": (
        "gemini-2.0-flash models/gemini-1.5-pro google/gemini-2.5-pro openrouter/google/gemini-2.0-flash-001"
    ),
    "Gemma": "gemma-3n google/gemma-3n-E4B-it gemma2:9b medgemma-4b paligemma-3b",
    "Claude": (
        "claude-3-5-sonnet anthropic/claude-opus-4 us.anthropic.claude-3-5-sonnet-20240620-v1:0 claude2"
    ),
    "Llama": (
        "meta-llama/Llama-3.1-8B-Instruct llama3.2:3b Meta-Llama-3-70B "
        "meta.llama3-1-8b-instruct-v1:0 llama-v3p1 CodeLlama-7b "
        "hf.co/bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M ICTNLP/Llama-3.1-8B-Omni"
    ),
    "Mistral": (
        "mistralai/Voxtral-Mini-3B mixtral open-mixtral-8x7b mistral-large-latest ministral-8b Pixtral-12B"
    ),
    "Phi": "microsoft/Phi-4-multimodal-instruct phi3:mini phi-4 Phi_3_mini",
    "DeepSeek": "deepseek-chat deepseek-ai/DeepSeek-V3 deepseek-r1:7b DeepSeek-R1-Distill-Qwen-7B",
    "GLM": "THUDM/glm-4-voice chatglm3-6b glm-4.5 zai-org/GLM-4-9b",
    "Kimi": "moonshotai/Kimi-Audio kimi-k2 moonshot-v1-8k",
    "Step": "step-audio stepfun-ai/Step-Audio-2-mini step-1o-audio step-2-16k step3 step-1-8k",
    "MiniCPM": "MiniCPM-o openbmb/MiniCPM-o-2_6",
    "InternLM": "internlm internlm2-chat-7b",
    "Baichuan": "baichuan-omni Baichuan2-7B",
    "Audio Flamingo": "audio-flamingo nvidia/audio-flamingo-3 Audio_Flamingo_2 music-flamingo",
    "SALMONN": "SALMONN salmonn-13b",
    "Grok": "grok-4 xai/grok-2-latest",
}
UNKNOWN = (
    "my-model sophia-2 delphi-2 pro1 marco-o1 video-o3 Qwen/other openai/whisper-large-v3 "
    "MiniGPT-4 SpeechGPT next-gpt gpt4all-13b gpt-j-6b gpt4-x-alpaca vicuna-13b llamacpp "
    "llama.cpp ollama/my-model tinyllama phind geminids claudette glmnet step-2000 step-2 "
    "checkpoint-500 checkpoint-step-1 judge model test gemstone kimino model-o2 o1x default "
    "astral-7b electrical"
)


@pytest.mark.parametrize(
    ("line", "name"), [(line, name) for line, names in NAMES.items() for name in names.split()]
)
def test_a_name_is_recognised_as_servers_and_hubs_write_it(line: str, name: str) -> None:
    """Owner, provider, path, tag, version, case and underscores do not hide a family."""
    assert family(name) == line
    assert family(name.upper()) == line


@pytest.mark.parametrize("name", [*UNKNOWN.split(), "", " ", "/", "Qwen2-Audio/my-model"])
def test_an_unknown_name_has_no_family(name: str) -> None:
    """Letters inside of another word, an owner alone, and a name of its own say nothing."""
    assert family(name) is None


@given(st.text())
def test_any_name_can_be_asked_about(name: str) -> None:
    """Whatever a server calls its model, the answer is a family or none."""
    assert family(name) is None or family(f"{name}/mistral-7b") == "Mistral"
