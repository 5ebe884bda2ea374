"""Settings: what a user says, resolved once into frozen objects.

Precedence: defaults < a stored run's settings (when it is continued without ``--model``) < environment <
flags or :class:`TaskConfig` fields. This is the only package that knows the environment's variables; the
environment itself is a parameter.

::

    resolution       resolve(): what the user asked for becomes Settings
    ├── models       the model and the judge: where they are and how they are asked
    ├── local        a model of the user's own in this process: how it is loaded and asked
    ├── spending     what the judge may use, and what its tokens cost
    ├── endpoints    one endpoint: its parameters, key and headers
    ├── engines      what carries its calls out, where that is not this process
    ├── functions    a model or judge written in Python: what names it, and its source
    ├── key_files    a key in a file of its own
    ├── trust        certificates that vouch for servers
    ├── providers    servers and hosted services by name
    ├── task         TaskConfig, laid over what was stored, and checked
    │   └── keywords its fields as keywords of a function
    ├── layers       settings laid over each other, each value with where it came from
    └── fingerprints what answers and verdicts depend on, compared on resume
    account          what each setting comes to, and where it came from
    files            a file of settings, for one model or several (not loaded with the package: it needs yaml)
    settings         the frozen objects
    audio_policy     what is done to a clip, given as text
    shard            one of the shares that the samples are divided into
    flags            flags given as text
    urls             URLs taken apart, and shown without their secrets
    variables        variables that may hold a secret
    checks           small checks of one value each
    defaults         what a setting is when nothing is said
"""

from otoscope.config.audio_policy import AS_IS, MP3_RATES, AudioPolicy
from otoscope.config.checks import plain_object
from otoscope.config.defaults import (
    ANSWER_PARAMETERS,
    BASELINE,
    EMBEDDED,
    HUGGINGFACE_URL,
    JUDGE_PARAMETERS,
    LOCAL_RAY,
    MODELSCOPE_URL,
    OPENAI_URL,
    PROMPT_TEMPLATE,
)
from otoscope.config.fingerprints import URL_FIELDS, changed_fields, fingerprint
from otoscope.config.flags import parse_limit, parse_object
from otoscope.config.functions import names_function, shown_name, whole_spec
from otoscope.config.key_files import open_to_others
from otoscope.config.keywords import TaskSettings
from otoscope.config.layers import Layer, Origin, Place, located, origin_of
from otoscope.config.providers import PROVIDERS, Provider
from otoscope.config.resolution import resolve, resolve_data, resolve_weights
from otoscope.config.settings import (
    AudioSettings,
    DataSettings,
    EmbeddedSettings,
    EndpointSettings,
    FunctionSettings,
    HubSettings,
    JudgeLimits,
    JudgeSettings,
    LocalSettings,
    ModelSettings,
    PromptSettings,
    RaySettings,
    RunSettings,
    SelectionSettings,
    Settings,
    WeightsSettings,
)
from otoscope.config.shard import Shard
from otoscope.config.task import TaskConfig, judging_only, with_judge_of, without_selection
from otoscope.config.urls import display_url, shown_urls
from otoscope.config.variables import environment_secrets

__all__ = [
    "ANSWER_PARAMETERS",
    "AS_IS",
    "BASELINE",
    "EMBEDDED",
    "HUGGINGFACE_URL",
    "JUDGE_PARAMETERS",
    "LOCAL_RAY",
    "MODELSCOPE_URL",
    "MP3_RATES",
    "OPENAI_URL",
    "PROMPT_TEMPLATE",
    "PROVIDERS",
    "URL_FIELDS",
    "AudioPolicy",
    "AudioSettings",
    "DataSettings",
    "EmbeddedSettings",
    "EndpointSettings",
    "FunctionSettings",
    "HubSettings",
    "JudgeLimits",
    "JudgeSettings",
    "Layer",
    "LocalSettings",
    "ModelSettings",
    "Origin",
    "Place",
    "PromptSettings",
    "Provider",
    "RaySettings",
    "RunSettings",
    "SelectionSettings",
    "Settings",
    "Shard",
    "TaskConfig",
    "TaskSettings",
    "WeightsSettings",
    "changed_fields",
    "display_url",
    "environment_secrets",
    "fingerprint",
    "judging_only",
    "located",
    "names_function",
    "open_to_others",
    "origin_of",
    "parse_limit",
    "parse_object",
    "plain_object",
    "resolve",
    "resolve_data",
    "resolve_weights",
    "shown_name",
    "shown_urls",
    "whole_spec",
    "with_judge_of",
    "without_selection",
]
