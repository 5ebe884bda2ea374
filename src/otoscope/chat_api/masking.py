"""Secrets of an endpoint, taken out of what comes back from it: some servers repeat them."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator

from otoscope.config import EndpointSettings
from otoscope.secrecy import MASK, credential, forms, in_url, is_secret_name, without

_SURE = re.compile(r"(?=.*[A-Za-z])(?=.*\d)\S{12,}")
"""A key that nobody says by chance, so that no answer can lose a word that was its own."""


class Mask:
    """Puts ``***`` in the place of an endpoint's secrets, also where they are escaped.

    Secrets are the key, the values of the user's own headers, and what the URL and that of the ``proxy`` hold
    of credentials.
    """

    def __init__(self, settings: EndpointSettings, proxy: str | None) -> None:
        keys = set(_keys(settings, proxy))
        self._in_messages = forms(keys | set(settings.extra_headers.values()))
        # Each is looked for in every reply: of most keys this is one.
        sure = forms(filter(_SURE.fullmatch, keys), in_base64=False)
        self._in_replies = [form.encode("utf-8", "surrogatepass") for form in sure]

    def text(self, text: str) -> str:
        """Return what is told to people without any secret, be it in Base64."""
        return without(text, self._in_messages)

    def reply(self, content: bytes) -> bytes:
        """Return a reply's body without the keys in it: it is stored as it comes, and passed on."""
        for key in self._in_replies:
            if key in content:
                content = content.replace(key, MASK.encode())
        return content


def _keys(settings: EndpointSettings, proxy: str | None) -> Iterator[str]:
    # Those of the URL itself have become a header.
    yield from in_url(settings.url)
    yield from in_url(proxy or "")
    headers = {"Authorization": settings.authorization or "", **settings.extra_headers}
    for name, value in headers.items():
        if is_secret_name(name):
            secret = credential(value)
            yield secret
            if value.lower().startswith("basic "):
                try:
                    pair = base64.b64decode(secret, validate=True).decode("utf-8", "replace")
                except (binascii.Error, ValueError):
                    continue
                user, _, password = pair.partition(":")
                yield password or user
