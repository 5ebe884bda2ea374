"""One endpoint: the parameters, the key and the headers of its requests."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from otoscope.config.checks import (
    checked_flag,
    checked_integer,
    checked_number,
    expanded_path,
    or_default,
    plain_object,
)
from otoscope.config.key_files import read_key
from otoscope.config.settings import EndpointSettings
from otoscope.config.urls import split_urls
from otoscope.errors import ConfigError, Role, did_you_mean

_WIRE_PARAMETERS = frozenset(
    "temperature max_tokens max_completion_tokens top_p top_k min_p seed stop presence_penalty "
    "frequency_penalty repetition_penalty logit_bias logprobs top_logprobs response_format "
    "reasoning_effort modalities".split()
)
_CALL_PARAMETERS = frozenset("timeout retries retry_interval stream extra_body extra_headers".split())
SECRET_FIELD = re.compile(
    r"(?:^|_)(?:api_?key|key|secret|password|authorization|auth|credentials?|jwt)$", re.IGNORECASE
)
KEY_FILE_FLAGS: Mapping[Role, str] = MappingProxyType(
    {"model": "--api-key-file", "judge": "--judge-api-key-file"}
)
_KEY_HEADERS = frozenset({"authorization", "api-key", "x-api-key"})
_OF_THE_BODY = frozenset({"content-length", "transfer-encoding", "expect"})
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


def endpoint_settings(
    *,
    role: Role,
    name: str,
    provider: str | None,
    url: str,
    api_key: str | None,
    api_key_file: str | None,
    environment_key: str | None,
    ca_file: Path | None,
    revision: str | None,
    base: Mapping[str, Any],
    generation: Mapping[str, Any],
    extra_body: Mapping[str, Any],
    extra_headers: Mapping[str, Any],
    stream: bool | None,
    concurrency: int,
    rpm: float | None,
    tpm: float | None,
    attempt_timeout: float,
    wait_ready: float,
) -> EndpointSettings:
    """Resolve an endpoint's settings; ``base`` is what is sent unless ``generation`` says otherwise.

    A key that is given, by itself or in a file, goes before credentials in the URL, and they go before the
    environment's. ``url`` may be those of replicas, ``A,B,C``: a key is for all, credentials for their own.
    """
    prefix = "" if role == "model" else "judge_model_args."
    where = f"{prefix}generation_config"
    for key in generation:
        if key not in _WIRE_PARAMETERS | _CALL_PARAMETERS:
            raise ConfigError(
                f"{where}: unknown key {key!r}{did_you_mean(key, _WIRE_PARAMETERS | _CALL_PARAMETERS)}\n"
                "A field that only your server knows goes into extra_body"
            )
    wire = {**base, **{k: v for k, v in generation.items() if k in _WIRE_PARAMETERS}}
    if generation.get("max_completion_tokens") is not None and "max_tokens" not in generation:
        wire.pop("max_tokens", None)
    (address, credentials), *others = split_urls(url, f"{prefix}api_url")
    key_file = None if api_key_file is None else expanded_path(api_key_file)
    given_key = _bearer(api_key, f"{prefix}api_key") or _key_in(key_file, role)
    own_key = _bearer(environment_key, f"the {role}'s key")
    timeout = checked_number(
        or_default(generation.get("timeout"), attempt_timeout), f"{where}.timeout", low=0.001
    )
    return EndpointSettings(
        role=role,
        name=name,
        url=address,
        authorization=given_key or credentials or own_key,
        revision=revision,
        parameters=MappingProxyType({k: v for k, v in wire.items() if v is not None}),
        extra_body=MappingProxyType(
            {
                **_body(
                    plain_object(or_default(generation.get("extra_body"), {}), f"{where}.extra_body"),
                    f"{where}.extra_body",
                ),
                **_body(extra_body, f"{prefix}extra_body"),
            }
        ),
        extra_headers=MappingProxyType(
            {
                **_headers(or_default(generation.get("extra_headers"), {}), f"{where}.extra_headers"),
                **_headers(extra_headers, f"{prefix}extra_headers"),
            }
        ),
        stream=checked_flag(
            or_default(or_default(stream, generation.get("stream")), False), f"{where}.stream"
        ),
        concurrency=concurrency,
        rpm=rpm,
        tpm=tpm,
        attempt_timeout=timeout,
        total_timeout=max(1800.0, timeout),
        tries=checked_integer(or_default(generation.get("retries"), 5), f"{where}.retries", low=0) + 1,
        retry_interval=checked_number(
            or_default(generation.get("retry_interval"), 1.0), f"{where}.retry_interval", low=0
        ),
        key_file=key_file,
        ca_file=ca_file,
        wait_ready=wait_ready,
        provider=provider,
        others=tuple((other, given_key or its_own or own_key) for other, its_own in others),
    )


def has_key(endpoint: EndpointSettings) -> bool:
    """Return whether every request carries a key, in whichever header."""
    keys = [replica.authorization for replica in endpoint.replicas]
    return None not in keys or bool(_KEY_HEADERS & {name.lower() for name in endpoint.extra_headers})


def _body(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return fields to add to a request's body, which is stored: no secret, and nothing that is ours."""
    for name in given:
        if name in ("model", "messages"):
            raise ConfigError(f"{where}: {name!r} is what is evaluated and cannot be replaced")
        if SECRET_FIELD.search(name):
            raise ConfigError(f"{where}: {name!r} looks like a key, and would be stored: send it as a header")
    return dict(given)


def _bearer(key: str | None, what: str) -> str | None:
    key = (key or "").strip()
    if _CONTROL.search(key):
        raise ConfigError(f"{what}: holds a line break or another character that no key has")
    return f"Bearer {key}" if key else None


def _key_in(file: Path | None, role: Role) -> str | None:
    return None if file is None else f"Bearer {read_key(file, KEY_FILE_FLAGS[role])}"


def refuse_two_keys(api_key: str | None, api_key_file: str | None, role: Role) -> None:
    """Refuse a key beside a file with a key: which of them is meant is not for us to guess."""
    if api_key is not None and api_key_file is not None:
        flag = KEY_FILE_FLAGS[role]
        raise ConfigError(f"{flag.removesuffix('-file')} and {flag} are both given: give one of them")


def _headers(given: Any, where: str) -> dict[str, str]:
    headers: dict[str, str] = {}
    for name, value in plain_object(given, where).items():
        if value is None:
            continue
        text = str(value).strip()
        if isinstance(value, (bool, dict, list)) or _CONTROL.search(text) or not _HEADER_NAME.fullmatch(name):
            raise ConfigError(f"{where}: {name!r} must be a header's name, and its value text on one line")
        if name.lower() in _OF_THE_BODY:
            raise ConfigError(f"{where}: {name!r} follows from the body that is sent and cannot be given")
        headers[name] = text
    return headers
