"""URLs: taken apart for a request, and shown without their secrets."""

from __future__ import annotations

import base64
import re
import unicodedata
from collections.abc import Iterable
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


def shown_urls(text: str) -> str:
    """Return the URLs of replicas, ``A,B,C``, each as :func:`display_url` has it, in a fixed order."""
    return ",".join(sorted(display_url(url.strip()) for url in text.split(",")))


def joined_urls(urls: Iterable[str]) -> str:
    """Return the URLs of replicas as one text, in which a comma separates them alone."""
    return ",".join(url.replace(",", "%2C") for url in urls)


def split_urls(text: str, what: str) -> list[tuple[str, str | None]]:
    """Return for each replica in ``A,B,C`` what :func:`split_url` does, in a fixed order.

    Raises ``ConfigError`` for an empty piece, one that is no URL, and a URL that is given twice.
    """
    pieces = [piece.strip() for piece in text.split(",")]
    if len(pieces) == 1:
        return [split_url(text, what)]
    found: dict[str, str | None] = {}
    for number, piece in enumerate(pieces, start=1):
        if not piece:
            raise ConfigError(
                f"{what}: nothing stands at place {number} of {len(pieces)}. Replicas are separated by one "
                "comma: A,B,C"
            )
        if _parts(piece) is None:
            # What stands there may be a part of a password, or of a key.
            shown = "" if "@" in text or "?" in text else f" ({piece!r})"
            raise ConfigError(
                f"{what}: place {number} of {len(pieces)}{shown} is not a URL such as "
                "http://127.0.0.1:8000/v1. A comma separates replicas; within a URL it is written %2C"
            )
        address, credentials = split_url(piece, what)
        if address in found:
            raise ConfigError(
                f"{what}: {display_url(address)!r} is given twice; each replica is named once. For more "
                "requests in flight there is --eval-batch-size, or --judge-batch-size"
            )
        found[address] = credentials
    return sorted(found.items(), key=lambda one: (display_url(one[0]), one[0]))


def split_url(url: str, what: str) -> tuple[str, str | None]:
    """Return the address of ``chat/completions`` and, for credentials in the URL, the header for them."""
    url = url.strip()
    parts = _parts(url)
    if parts is None:
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


def _parts(url: str) -> SplitResult | None:
    """Return the parts of a URL that a request can be sent to, else ``None``."""
    try:
        parts = urlsplit(url)
        fine = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return None
    return parts if fine and not _CONTROL_OR_SPACE.search(url) else None


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
