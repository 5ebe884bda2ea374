"""Variables of the environment that may hold a secret."""

from __future__ import annotations

from collections.abc import Mapping

from otoscope.secrecy import in_url

_KEYS = (
    "OTOSCOPE_API_KEY",
    "OTOSCOPE_JUDGE_API_KEY",
    "OPENAI_API_KEY",
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
    "MODELSCOPE_API_TOKEN",
)
_URLS = (
    "OTOSCOPE_API_URL",
    "OTOSCOPE_JUDGE_API_URL",
    "OPENAI_BASE_URL",
    "HF_ENDPOINT",
    "MODELSCOPE_ENDPOINT",
)
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")


def environment_secrets(environ: Mapping[str, str]) -> list[str]:
    """Return keys, and credentials in URLs, of the variables that are read here or by what is used."""
    urls = [*_URLS, *_PROXIES, *(name.upper() for name in _PROXIES)]
    keys = [environ[name] for name in _KEYS if environ.get(name)]
    return [*keys, *(secret for name in urls for secret in in_url(environ.get(name, "")))]
