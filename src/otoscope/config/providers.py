"""Servers and hosted services by name: what ``--provider`` stands for.

The table in docs/how-to/servers.md is made of this one by scripts/provider_table.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from otoscope.config.checks import checked_choice
from otoscope.config.defaults import BASELINE, EMBEDDED
from otoscope.config.urls import display_url, shown_urls
from otoscope.errors import ConfigError, Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """Where a service is, which variable holds its key, and in which form it takes a clip."""

    title: str
    url: str
    """May hold one ``{VARIABLE}`` of the environment."""
    key: str | None
    """The variable of the environment that holds the key; ``None``: there is none that is common."""
    audio_part: str
    """One of :data:`otoscope.choices.AUDIO_PARTS`."""
    stream: bool = False
    """Whether a model that takes audio answers only when it may stream."""
    local: bool = False
    """Whether it is a server of one's own: it may do without a key, and its URL is only the usual one."""
    note: str = ""
    """For the docs: what has to be known beside that."""
    sources: tuple[str, ...]
    """For the docs: where that is documented."""


PROVIDERS: Mapping[str, Provider] = MappingProxyType(
    {
        "openai": Provider(
            title="OpenAI",
            url="https://api.openai.com/v1",
            key="OPENAI_API_KEY",
            audio_part="input_audio",
            note="wav and mp3 alone; audio models refuse a request without audio",
            sources=("platform.openai.com/docs/guides/audio",),
        ),
        "azure": Provider(
            title="Azure OpenAI (v1 API)",
            url="{AZURE_OPENAI_ENDPOINT}/openai/v1",
            key="AZURE_OPENAI_API_KEY",
            audio_part="input_audio",
            note="`--model` is the deployment's name; wav and mp3 alone",
            sources=("learn.microsoft.com/azure/foundry/openai/api-version-lifecycle",),
        ),
        "gemini": Provider(
            title="Gemini API (its OpenAI-compatible endpoint)",
            url="https://generativelanguage.googleapis.com/v1beta/openai",
            key="GEMINI_API_KEY",
            audio_part="input_audio",
            note="thinking uses up `max_tokens`",
            sources=("ai.google.dev/gemini-api/docs/openai",),
        ),
        "dashscope": Provider(
            title="DashScope, Model Studio (its OpenAI-compatible mode)",
            url="https://dashscope.aliyuncs.com/compatible-mode/v1",
            key="DASHSCOPE_API_KEY",
            audio_part="bare_uri",
            stream=True,
            note="omni models only stream; Singapore: `--api-url "
            "https://dashscope-intl.aliyuncs.com/compatible-mode/v1`; a workspace has a URL of its own",
            sources=("help.aliyun.com/model-studio/qwen-omni",),
        ),
        "openrouter": Provider(
            title="OpenRouter",
            url="https://openrouter.ai/api/v1",
            key="OPENROUTER_API_KEY",
            audio_part="input_audio",
            note="which formats are taken depends on who serves the model",
            sources=("openrouter.ai/docs/guides/overview/multimodal/audio",),
        ),
        "vllm": Provider(
            title="vLLM",
            url="http://127.0.0.1:8000/v1",
            key="VLLM_API_KEY",
            audio_part="input_audio",
            local=True,
            note="also takes `audio_url`; serve with `--generation-config vllm`",
            sources=("docs.vllm.ai: Multimodal Inputs, Engine Arguments",),
        ),
        "sglang": Provider(
            title="SGLang",
            url="http://127.0.0.1:30000/v1",
            key=None,
            audio_part="audio_url",
            local=True,
            note="takes no `input_audio`; serve with `--sampling-defaults openai`",
            sources=("sgl-project/sglang: srt/entrypoints/openai/protocol.py, srt/server_args.py",),
        ),
        "llama.cpp": Provider(
            title="llama.cpp server",
            url="http://127.0.0.1:8080/v1",
            key="LLAMA_API_KEY",
            audio_part="input_audio",
            local=True,
            note="wav and mp3 alone; needs the model's `--mmproj`",
            sources=("ggml-org/llama.cpp: docs/multimodal.md, tools/server/README.md",),
        ),
    }
)
"""In the order of :data:`otoscope.choices.PROVIDERS`."""


def with_provider(
    given: Mapping[str, Any], role: Role, environ: Mapping[str, str], *, continued: bool
) -> dict[str, Any]:
    """Return a role's settings, ``TaskConfig``'s or ``judge_model_args``, with what its provider stands for.

    What is given stands above it. Where the URL is that of a stored run (``continued``), so does all that was
    stored with it, and the provider says only whose key is used: it has to be that provider's URL.
    """
    name = given.get("provider")
    if name is None:
        return dict(given)
    where = "provider" if role == "model" else "judge_model_args.provider"
    provider = PROVIDERS[checked_choice(name, tuple(PROVIDERS), where)]
    url = given.get("api_url")
    if url is None and given.get("model" if role == "model" else "model_id") in (BASELINE, EMBEDDED):
        raise ConfigError(f"{where}: a model inside of this process has no provider: leave out one of them")
    if continued:
        _refuse_another_address(provider, str(url), environ, where)
        return dict(given)
    settled = {**given, "api_url": _url(provider, environ, where) if url is None else url}
    if role == "model":
        generation = given.get("generation_config") or {}
        streams = provider.stream if generation.get("stream") is None else None
        settled["audio_part"] = given.get("audio_part") or provider.audio_part
        settled["stream"] = (streams or None) if given.get("stream") is None else given["stream"]
    return settled


def key_of(name: str | None, environ: Mapping[str, str]) -> str | None:
    """Return the key that the environment holds for a provider, if it holds one."""
    variable = None if name is None else PROVIDERS[name].key
    return environ.get(variable) or None if variable else None


def _url(provider: Provider, environ: Mapping[str, str], where: str) -> str:
    before, brace, rest = provider.url.partition("{")
    if not brace:
        return provider.url
    variable, _, after = rest.partition("}")
    # Some have all of the address in it.
    value = environ.get(variable, "").strip().rstrip("/").removesuffix(after)
    if not value:
        raise ConfigError(
            f"{where}: {provider.title} has an address for each customer. Set {variable} to its first part "
            f"(the whole is {provider.url}), or give the URL"
        )
    return f"{before}{value}{after}"


def _refuse_another_address(provider: Provider, url: str, environ: Mapping[str, str], where: str) -> None:
    """Refuse to send a provider's key where a stored run says, which somebody else may have written."""
    if provider.local:
        return
    own = _url(provider, environ, where)
    if shown_urls(url) != display_url(own):
        flag = "--api-url" if where == "provider" else "--judge-api-url"
        raise ConfigError(
            f"{where}: the run's URL is {shown_urls(url)}, and not {display_url(own)}, which is "
            f"{provider.title}'s. If its key is to be sent there, say so with {flag}"
        )
