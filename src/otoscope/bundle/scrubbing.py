"""Names of machines, folders and people, taken out of what a run stores."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
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
_PART = r"[^\s/\"':;,<>|]+"
_PATH = re.compile(
    r"(?<!\w)(?:[A-Za-z]:[\\/]|\\\\)[^\s\"'<>|]+"
    rf"|(?<![\w./~])(?:~(?:[A-Za-z_][\w.-]*)?|//?{_PART})(?:/{_PART})+/?"
    rf"|(?<![\w./~])~[A-Za-z_][\w.-]*/"
    rf"|(?<![\w./~\\])\.\.?(?:[\\/]{_PART})+[\\/]?"
)
"""A path as POSIX or Windows write it: absolute of at least two parts, or from a home or this folder."""
_ROOT_FOLDER = re.compile(r"(?<![^\s\"'(\[=,;:])/(?!(?:no_)?think\b)[^\W\d][\w.-]{2,}/?(?![^\s\"')\],;:.!?])")
"""An absolute path of one part, alone as a word, but for the switches that some models' prompts have."""
_WHOLE_PATH = re.compile(r"[\\/~]|\.\.?(?:[\\/]|$)|[A-Za-z]:[\\/]")
"""How a name begins that is a path, which may then hold spaces."""
_HOST = re.compile(
    r"(?<![\w.-])(?:"
    r"(?!(?:\d{4}-\d\d-\d\d)?T\d\d:)(?=[\w.-]*[A-Za-z])\w[\w.-]*:\d{2,5}(?![\w:])"
    r"|\w[\w-]*(?:\.[\w-]+)*\.(?i:local|internal|lan|corp|cluster)(?![\w-]|\.\w)"
    r"|\d{1,3}(?:\.\d{1,3}){3}(?![\w.-]*\w)(?::\d{2,5})?"
    r")"
)
"""A host without a scheme: with a port, in a private domain, or an address. Times of day are none."""
_HOME = re.compile(
    r"(?:/home/|/[Uu]sers/|\\[Uu]sers\\)([^\s/\\\"',;:<>|)]+)|(?<![^\s\"'(=])~([A-Za-z_][\w.-]+)(?=[\\/])"
)


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
            self._learn_users(value)
        elif isinstance(value, Mapping):
            for name, item in value.items():
                self.learn(name)
                self.learn(item)
        elif isinstance(value, (list, tuple)):
            for item in value:
                self.learn(item)

    def _learn_users(self, text: str) -> None:
        self._words.update(of_folder or of_tilde for of_folder, of_tilde in _HOME.findall(text))

    def _learn_host(self, url: str) -> None:
        for one in url.split(","):
            with suppress(ValueError):
                if host := urlsplit(one).hostname:
                    self._words.add(host)

    def url(self, url: str) -> str:
        """Return what stands for a URL, or for several. What is none, as ``embedded``, is a text."""
        scheme, found, _ = url.partition("://")
        if not found:
            return self.text(url)
        if "," in url:
            return ",".join(map(self.url, url.split(",")))
        number = self._endpoints.setdefault(url.rstrip("/.,;"), len(self._endpoints) + 1)
        self._learn_host(url)
        return f"{scheme}://endpoint-{number}.invalid"

    def text(self, text: str) -> str:
        """Return a text of the run's own, such as a label, without such names."""
        self._learn_users(text)
        scrubbed = _URL.sub(lambda match: self.url(match[0]), text)
        scrubbed = _EMAIL.sub(REMOVED, scrubbed)
        scrubbed = _PATH.sub(lambda match: _without_folders(match[0]), scrubbed)
        scrubbed = _ROOT_FOLDER.sub(REMOVED, scrubbed)
        scrubbed = _HOST.sub(REMOVED, scrubbed)
        for word in sorted(self._words, key=lambda word: (-len(word), word)):
            scrubbed = re.sub(rf"(?i)(?<![\w.-]){re.escape(word)}(?![\w-])(?::\d+)?", REMOVED, scrubbed)
        return scrubbed

    def name(self, name: str) -> str:
        """Return a model's name: of one that is a path, the last part. Two names never become one."""
        if name not in self._names:
            self._learn_users(name)
            is_path = _WHOLE_PATH.match(name) is not None
            plain = self.text((_last_part(name) or REMOVED) if is_path else name)
            self._names[name] = _unlike(plain, self._names.values())
        return self._names[name]

    def value(self, value: Any) -> Any:
        """Return a JSON value with every text and key in it scrubbed, and what says who asked removed.

        Keys that would then be equal are told apart.
        """
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            scrubbed: dict[str, Any] = {}
            for name, item in value.items():
                shown = _unlike(self.text(name), scrubbed)
                scrubbed[shown] = REMOVED if name in _PERSONAL and item is not None else self.value(item)
            return scrubbed
        if isinstance(value, (list, tuple)):
            return [self.value(item) for item in value]
        return value


def _without_folders(path: str) -> str:
    last = _last_part(path)
    return f"{REMOVED}/{last}" if last else REMOVED


def _last_part(path: str) -> str:
    """Return a path's last part, or nothing where that names a drive, a home or a folder further up."""
    last = re.split(r"[/\\]", path.rstrip("/\\"))[-1]
    return "" if re.fullmatch(r"\.\.?|~.*|[A-Za-z]:", last) else last


def _unlike(name: str, taken: Collection[str]) -> str:
    """Return a name, with a number where it is taken."""
    shown, number = name, 1
    while shown in taken:
        number += 1
        shown = f"{name}-{number}"
    return shown
