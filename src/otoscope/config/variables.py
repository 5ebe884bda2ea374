"""Variables of the environment: which setting each stands for, and which may hold a secret."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from otoscope.benchmark import BENCHMARK
from otoscope.config.layers import Origin, Place
from otoscope.config.providers import PROVIDERS
from otoscope.secrecy import in_url

API_URL: Place = ("api_url",)
API_KEY: Place = ("api_key",)
JUDGE_API_URL: Place = ("judge_model_args", "api_url")
JUDGE_API_KEY: Place = ("judge_model_args", "api_key")
DATA_ROOT: Place = ("dataset_args", BENCHMARK, "local_path")
VARIABLES: Mapping[Place, tuple[str, ...]] = MappingProxyType(
    {
        API_URL: ("OTOSCOPE_API_URL",),
        API_KEY: ("OTOSCOPE_API_KEY",),
        JUDGE_API_URL: ("OTOSCOPE_JUDGE_API_URL", "OPENAI_BASE_URL"),
        JUDGE_API_KEY: ("OTOSCOPE_JUDGE_API_KEY", "OPENAI_API_KEY"),
        DATA_ROOT: ("OTOSCOPE_DATA",),
    }
)
"""The variables that stand for a setting which nothing else gives; the first that is set counts."""
_CACHES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "modelscope": ("MODELSCOPE_CACHE",),
        "huggingface": ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"),
    }
)
"""By hub, the variables that its own library takes its cache folder from, the first one first."""

_ABOVE_FILE: Mapping[Place, str] = MappingProxyType(
    {
        **{place: names[0] for place, names in VARIABLES.items()},
        ("api_key_file",): "OTOSCOPE_API_KEY",
        ("judge_model_args", "api_key_file"): "OTOSCOPE_JUDGE_API_KEY",
    }
)
"""Variables that stand above what a file of settings says. OPENAI_* are not among them: they are there for
every program, and the file has the judge that is meant."""
_ABOVE_STORED: Mapping[Place, str] = MappingProxyType(
    {place: VARIABLES[place][0] for place in (API_URL, JUDGE_API_URL)}
)
"""Variables that stand above a stored run's setting: a restarted server has another address. OTOSCOPE_DATA is
not among them: it speaks to every run, and this one has its own data."""

_KEYS = (
    "OTOSCOPE_API_KEY",
    "OTOSCOPE_JUDGE_API_KEY",
    *(provider.key for provider in PROVIDERS.values() if provider.key is not None),
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
    "MODELSCOPE_API_TOKEN",
    "MLFLOW_TRACKING_PASSWORD",
    "MLFLOW_TRACKING_TOKEN",
)
_URLS = (
    "OTOSCOPE_API_URL",
    "OTOSCOPE_JUDGE_API_URL",
    "OPENAI_BASE_URL",
    "AZURE_OPENAI_ENDPOINT",
    "HF_ENDPOINT",
    "MODELSCOPE_ENDPOINT",
    "MLFLOW_TRACKING_URI",
)
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")


def variable_for(place: Place, environ: Mapping[str, str]) -> str | None:
    """Return the variable that stands for a setting, where one is set."""
    return next((name for name in VARIABLES.get(place, ()) if environ.get(name)), None)


def cache_variable(hub: str, environ: Mapping[str, str]) -> str | None:
    """Return the variable that says where a hub's cache lies, where one is set."""
    return next((name for name in _CACHES.get(hub, ()) if environ.get(name)), None)


def from_environment(place: Place, environ: Mapping[str, str]) -> str | None:
    """Return what the environment says of a setting, which counts where nothing else does."""
    variable = variable_for(place, environ)
    return environ[variable] if variable is not None else None


def replacing(place: Place, origin: Origin, environ: Mapping[str, str]) -> str | None:
    """Return the variable that is set and stands above a value of this origin."""
    above = {"file": _ABOVE_FILE, "stored": _ABOVE_STORED}.get(origin.kind, {})
    variable = above.get(place)
    return variable if variable is not None and environ.get(variable) else None


def environment_secrets(environ: Mapping[str, str]) -> list[str]:
    """Return keys, and credentials in URLs, of the variables that are read here or by what is used."""
    urls = [*_URLS, *_PROXIES, *(name.upper() for name in _PROXIES)]
    keys = [environ[name] for name in _KEYS if environ.get(name)]
    return [*keys, *(secret for name in urls for secret in in_url(environ.get(name, "")))]
