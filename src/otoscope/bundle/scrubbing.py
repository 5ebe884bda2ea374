"""Names of machines, folders and people, taken out of what a run stores."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

REMOVED = "(removed)"

_PERSONAL = frozenset(
    "user username email metadata organization project host hostname safety_identifier prompt_cache_key "
    "session_id".split()
)
"""Names of parameters that say who sent a request, or from where."""
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s\"'<>()\[\]{}\\^`|]+")
_EMAIL = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_PATH = re.compile(
    r"(?<![\w./~:])(?:~|/[^\s/\"':;,<>|]+)(?:/[^\s/\"':;,<>|]+)+/?"
    r"|(?<!\w)(?:[A-Za-z]:|\\)\\[^\s\"'<>|]+"
)
"""An absolute path of at least two parts, as POSIX or Windows write it."""
_HOME = re.compile(r"(?:/home/|/Users/|\\Users\\)([^\s/\\\"']+)")


class Scrubber:
    """Takes out URLs, hosts, paths and addresses, the same one always for the same name.

    URLs become ``scheme://endpoint-N.invalid``, numbered as they come: which endpoints were the same is
    still seen.
    """

    def __init__(self) -> None:
        self._endpoints: dict[str, int] = {}
        self._words: set[str] = set()
        """Hosts and users, by name."""
        self._names: dict[str, str] = {}

    def learn(self, value: Any) -> None:
        """Note the hosts and users that the URLs and home folders in a JSON value name."""
        if isinstance(value, str):
            for url in _URL.findall(value):
                self._learn_host(url)
            self._words.update(_HOME.findall(value))
        elif isinstance(value, Mapping):
            for item in value.values():
                self.learn(item)
        elif isinstance(value, (list, tuple)):
            for item in value:
                self.learn(item)

    def _learn_host(self, url: str) -> None:
        with suppress(ValueError):
            if host := urlsplit(url).hostname:
                self._words.add(host)

    def url(self, url: str) -> str:
        """Return what stands for a URL. What is none, as ``embedded``, is a text."""
        scheme, found, _ = url.partition("://")
        if not found:
            return self.text(url)
        number = self._endpoints.setdefault(url.rstrip("/.,;"), len(self._endpoints) + 1)
        self._learn_host(url)
        return f"{scheme}://endpoint-{number}.invalid"

    def text(self, text: str) -> str:
        """Return a text of the run's own, such as a label, without such names."""
        scrubbed = _URL.sub(lambda match: self.url(match[0]), text)
        scrubbed = _EMAIL.sub(REMOVED, scrubbed)
        scrubbed = _PATH.sub(lambda match: f"{REMOVED}/{_last_part(match[0])}", scrubbed)
        for word in sorted(self._words, key=lambda word: (-len(word), word)):
            scrubbed = re.sub(rf"(?i)(?<![\w.-]){re.escape(word)}(?![\w-])(?::\d+)?", REMOVED, scrubbed)
        return scrubbed

    def name(self, name: str) -> str:
        """Return a model's name: of one that is a path, the last part. Two names never become one."""
        if name not in self._names:
            is_path = _PATH.fullmatch(name) is not None or name.startswith("/")
            plain = _last_part(name) if is_path else _URL.sub(lambda match: self.url(match[0]), name)
            taken, number = set(self._names.values()), 1
            shown = plain
            while shown in taken:
                number += 1
                shown = f"{plain}-{number}"
            self._names[name] = shown
        return self._names[name]

    def value(self, value: Any) -> Any:
        """Return a JSON value with every text in it scrubbed, and what says who asked removed."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {
                name: REMOVED if name in _PERSONAL and item is not None else self.value(item)
                for name, item in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self.value(item) for item in value]
        return value


def _last_part(path: str) -> str:
    return re.split(r"[/\\]", path.rstrip("/\\"))[-1]
