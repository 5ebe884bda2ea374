"""What a setting can be, where that is one of a few words. Light, because the command line needs it first."""

from __future__ import annotations

AUDIO_PARTS = ("input_audio", "audio_url", "data_uri", "bare_uri", "file_url")
FALLBACK_AUDIO_PARTS = ("audio_url", "data_uri")
"""What is tried when an endpoint refuses the default. Not ``file_url``: it would tell a server, which may be
anybody's, paths of this machine."""
PART_ORDERS = ("audio-first", "text-first")
PROTOCOLS = ("default", "official")
CONTROLS = ("silence", "shuffled", "no-audio")
"""What can be sent instead of the clip, to know what a score owes to the text."""
PROVIDERS = ("openai", "azure", "gemini", "dashscope", "openrouter", "vllm", "sglang", "llama.cpp")
ENGINES = ("ray",)
"""What can carry out the calls of a model in this process's place."""
HUBS = ("modelscope", "huggingface")
TRACKERS = ("mlflow",)
"""Where runs can be logged. Each is the name of its library, and of our extra that installs it."""
LANGUAGES = ("en", "zh")
"""Of texts for people."""
