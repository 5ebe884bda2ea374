"""Defaults: what a setting is when nothing is said."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

AUDIO_CACHE_GB = 20
PROMPT_TEMPLATE = "{question}"
OPENAI_URL = "https://api.openai.com/v1"
BASELINE, EMBEDDED = "baseline", "embedded"
"""The names, given without a URL, of the model and of the judge inside of this process."""
LOCAL_RAY = "local"
"""What stands for a Ray of this process's own, where a cluster's address could."""
MODELSCOPE_URL, HUGGINGFACE_URL = "https://modelscope.cn", "https://huggingface.co"

ANSWER_PARAMETERS: Mapping[str, Any] = MappingProxyType({"temperature": 0, "max_tokens": 2048})
JUDGE_PARAMETERS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "default": MappingProxyType({"temperature": 0, "max_tokens": 1024}),
        "official": MappingProxyType({"temperature": 1.0, "max_tokens": 1024}),
    }
)
