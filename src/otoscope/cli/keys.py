"""Keys that a command was given: a word about those that others can see, and none of them in a traceback."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from otoscope.cli.arguments import flag_name
from otoscope.config import environment_secrets, parse_object
from otoscope.errors import ConfigError
from otoscope.secrecy import forms, in_url, looks_real, secrets_in, without

_INSTEAD = {
    "--api-key": "--api-key-file FILE or OTOSCOPE_API_KEY",
    "--judge-api-key": "--judge-api-key-file FILE or OTOSCOPE_JUDGE_API_KEY",
    "--api-url": "OTOSCOPE_API_URL",
    "--judge-api-url": "OTOSCOPE_JUDGE_API_URL",
    "--extra-headers": "--api-key-file FILE",
    "--generation-config": "--api-key-file FILE",
    "--judge-model-args": "--judge-api-key-file FILE or OTOSCOPE_JUDGE_API_KEY",
}

JSON_FLAGS = ("--generation-config", "--judge-model-args")
"""Objects of settings, among which a secret may be."""


def holds_back(args: argparse.Namespace, flag: str) -> bool:
    """Whether one of ``JSON_FLAGS`` holds a secret, or headers: what no run keeps, and no message repeats."""
    return _keeps_back(parse_object(_value(args, flag) or "{}", flag))


def _keeps_back(given: Mapping[str, Any]) -> bool:
    generation = given.get("generation_config")
    return bool(
        given.get("api_key")
        or given.get("extra_headers")
        or in_url(_urls(given))
        or (isinstance(generation, Mapping) and _keeps_back(generation))
    )


def says_whose_key(args: argparse.Namespace) -> bool:
    """Whether ``--judge-model-args`` say which file or variable holds the judge's key, which no run keeps."""
    flag = "--judge-model-args"
    given = parse_object(_value(args, flag) or "{}", flag)
    return bool(given.get("api_key_file") or given.get("provider"))


def warning_of_keys(args: argparse.Namespace) -> str | None:
    """Return one line about keys on the command line that are no placeholders, or ``None``."""
    given = dict.fromkeys(flag for flag, secret in _on_command_line(args) if looks_real(secret))
    if not given:
        return None
    instead = dict.fromkeys(_INSTEAD[flag] for flag in given)
    return (
        f"otoscope: warning: others on this machine can see a key that stands on the command line "
        f"({', '.join(given)}) in the list of processes; give it with {', and with '.join(instead)} instead"
    )


def without_keys(text: str, args: argparse.Namespace, environ: Mapping[str, str]) -> str:
    """Return a text, such as a traceback, without any key that this command was given, in any way."""
    secrets = [secret for _, secret in _on_command_line(args)]
    secrets += environment_secrets(environ)
    for flag in ("--api-key-file", "--judge-api-key-file"):
        if file := getattr(args, flag_name(flag), None):
            with contextlib.suppress(OSError, ValueError):
                secrets.append(Path(file).expanduser().read_text(encoding="utf-8").strip())
    if getattr(args, "config", None):
        from otoscope.cli.configured import file_secrets, settings_file

        with contextlib.suppress(ConfigError):
            secrets += [] if (file := settings_file(args)) is None else file_secrets(file)
    return without(text, forms(secrets))


def _on_command_line(args: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Yield flags and the secrets in them."""
    for flag in ("--api-key", "--judge-api-key"):
        if key := _value(args, flag):
            yield flag, key
    for flag in ("--api-url", "--judge-api-url"):
        yield from ((flag, secret) for secret in in_url(_value(args, flag)))
    for flag in ("--extra-headers", *JSON_FLAGS):
        with contextlib.suppress(ConfigError):  # which is told where it is read
            if text := _value(args, flag):
                given = parse_object(text, flag)
                told = {"extra_headers": given} if flag == "--extra-headers" else given
                yield from ((flag, secret) for secret in secrets_in(told))


def _value(args: argparse.Namespace, flag: str) -> str:
    return getattr(args, flag_name(flag), None) or ""


def _urls(given: Mapping[str, Any]) -> str:
    """Return the URL of a judge, or those of replicas, which may be a list."""
    url = given.get("api_url") or ""
    return ",".join(map(str, url)) if isinstance(url, list) else str(url)
