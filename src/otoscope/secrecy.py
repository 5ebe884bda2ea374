"""What is a secret, what it looks like once encoded, and texts without any."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

MASK = "***"
SHORTEST = 6
"""Characters of a secret that is masked: a shorter one would be found where it is none."""

_SECRET_NAME = re.compile(r"key|token|secret|sig|pass|pwd|auth|cred|jwt|cookie|session|^code$", re.IGNORECASE)
_WORD = re.compile(r"[a-z]+|[^\W\d_]+", re.IGNORECASE)
_COMMON = frozenset(
    "a abc an any anything api apikey basic bearer change changeme default demo dev dummy empty example fake "
    "for here is it judge key keys llm lm local localhost me mock model my na needed no none not nothing "
    "null ollama openai or pass password placeholder replace required secret server sk studio test testing "
    "tests the this token unused user value vllm with x xx xxx xxxx xxxxxxxx your".split()
)
"""Words of which keys are made that are none."""


def is_secret_name(name: str) -> bool:
    """Whether a header or a parameter of a URL sounds as if it held a key."""
    return _SECRET_NAME.search(name) is not None


def looks_real(key: str) -> bool:
    """Whether a key may open anything: one that is made of common words and numbers alone is a placeholder.

    ``EMPTY``, ``none``, ``sk-no-key-required``, ``token-abc123`` and ``test-1`` are placeholders.
    """
    return any(word.lower() not in _COMMON for word in _WORD.findall(key))


def credential(header: str) -> str:
    """Return what of a header's value is the secret: without ``Bearer`` or another scheme before it."""
    scheme, _, rest = header.strip().partition(" ")
    return rest.strip() or scheme


def in_url(url: str) -> list[str]:
    """Return the secrets in a URL: its password, or a user's name without one, and values of its query.

    Of several, separated by commas, those of each; and of all of it, as if it were one.
    """
    pieces = url.split(",")
    return list(dict.fromkeys(s for one in (url, *pieces[len(pieces) == 1 :]) for s in _in_one_url(one)))


def _in_one_url(url: str) -> list[str]:
    try:
        parts = urlsplit(url)
    except ValueError:
        return []
    user, _, password = parts.netloc.rpartition("@")[0].partition(":")
    query = parse_qsl(parts.query)
    found = [unquote(password or user), *(value for name, value in query if is_secret_name(name))]
    return [secret for secret in found if secret]


def secrets_in(settings: Mapping[str, Any]) -> Iterator[str]:
    """Yield the secrets in settings of an endpoint, and of what is nested in them."""
    if isinstance(key := settings.get("api_key"), str):
        yield key
    urls = settings.get("api_url")
    for url in urls if isinstance(urls, (list, tuple)) else [urls]:
        yield from in_url(url) if isinstance(url, str) else ()
    if isinstance(headers := settings.get("extra_headers"), Mapping):
        yield from (credential(str(value)) for name, value in headers.items() if is_secret_name(str(name)))
    for name in ("generation_config", "judge_model_args"):
        if isinstance(nested := settings.get(name), Mapping):
            yield from secrets_in(nested)


def forms(secrets: Iterable[str], *, in_base64: bool = True) -> list[str]:
    """Return secrets as they are, and as they stand in a URL, in JSON and in Base64; the longest first.

    Those under ``SHORTEST`` are left out.
    """
    found: set[str] = set()
    for secret in secrets:
        if len(secret) >= SHORTEST:
            data = secret.encode("utf-8", "surrogatepass")
            found.update(_in_base64(data) if in_base64 else ())
            escaped = [secret.replace("/", "\\/"), json.dumps(secret)[1:-1]]
            # And where JSON is told in JSON.
            found.update(escaped, [text.replace("\\", "\\\\") for text in escaped])
            found |= {secret, quote(data, safe=""), quote(data)}
    return sorted((form for form in found if len(form) >= SHORTEST), key=lambda form: (-len(form), form))


def _in_base64(data: bytes) -> Iterator[str]:
    """Yield what stands for data in Base64, wherever they begin; the edges depend on what is beside them."""
    for before in range(3):
        encoded = base64.b64encode(bytes(before) + data).decode()
        yield encoded[-(-before * 4 // 3) : (before + len(data)) * 4 // 3]


def without(text: str, secret_forms: Iterable[str]) -> str:
    """Return a text with ``***`` in the place of each of these, which are from :func:`forms`."""
    for form in secret_forms:
        text = text.replace(form, MASK)
    return text
