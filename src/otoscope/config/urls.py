"""URLs: taken apart for a request, and shown without their secrets."""

from __future__ import annotations

import base64
import re
import unicodedata
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from otoscope.errors import ConfigError
from otoscope.secrecy import MASK, is_secret_name

_CONTROL_OR_SPACE = re.compile(r"[\s\x00-\x1f\x7f\ud800-\udfff]")


def display_url(url: str) -> str:
    """Return a URL without credentials, secret query values and ``/chat/completions``.

    Of what is no URL, only what can hold no credentials is returned.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        return url.rpartition("@")[2].partition("?")[0]
    if not parts.netloc:
        return url.rpartition("@")[2].partition("?")[0]
    host = parts.netloc.rpartition("@")[2]
    query = urlencode(
        [(k, MASK if is_secret_name(k) else v) for k, v in parse_qsl(parts.query, keep_blank_values=True)],
        safe="*",
    )
    return urlunsplit(SplitResult(parts.scheme, host, _base_path(parts.path), query, ""))


def split_url(url: str, what: str) -> tuple[str, str | None]:
    """Return the address of ``chat/completions`` and, for credentials in the URL, the header for them."""
    url = url.strip()
    try:
        parts = urlsplit(url)
        fine = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fine = False
    if not fine or _CONTROL_OR_SPACE.search(url):
        # Where a password holds a slash, what lies before the @ is in no place that a URL has for it.
        shown = display_url(url.rpartition("@")[2])
        raise ConfigError(
            f"{what}: {shown!r} is not a URL such as http://127.0.0.1:8000/v1 or https://host/v1"
        )
    if not _is_one_name(parts.hostname or ""):
        raise ConfigError(
            f"{what}: the host of {display_url(url)!r} can be read as more than one name; give it as it is "
            "looked up (xn--...)"
        )
    if MASK in parts.query:
        raise ConfigError(f"{what}: the stored URL had a secret, which is not kept; give the URL again")
    userinfo, _, host = parts.netloc.rpartition("@")
    credentials = None
    if userinfo:
        user, _, password = userinfo.partition(":")
        pair = f"{unquote(user)}:{unquote(password)}"
        credentials = "Basic " + base64.b64encode(pair.encode()).decode()
    path = _base_path(parts.path) + "/chat/completions"
    return urlunsplit(SplitResult(parts.scheme, host, path, parts.query, "")), credentials


def _is_one_name(host: str) -> bool:
    """Whether every way to write a host's name in ASCII gives the same: a key goes to no namesake."""
    if host.isascii():
        return True
    try:
        return host.encode("idna").decode("idna") == unicodedata.normalize("NFC", host)
    except UnicodeError:
        return False


def _base_path(path: str) -> str:
    return path.rstrip("/").removesuffix("/chat/completions").rstrip("/")
