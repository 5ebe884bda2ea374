"""Where a sample's clip is found from the page, or its bytes in the page itself."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from otoscope.records import Sample

_MEDIA_TYPES = {
    ".wav": "audio/wav",
    ".mp3": "audio/mpeg",
    ".flac": "audio/flac",
    ".ogg": "audio/ogg",
    ".opus": "audio/ogg",
    ".m4a": "audio/mp4",
}


_PLAIN_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")


class Clips:
    """The clips of a run, seen from the folder in which the page lies."""

    def __init__(self, manifest: Mapping[str, Any], folder: Path) -> None:
        root = (manifest.get("dataset") or {}).get("root")
        self.root = Path(_place(Path(root))) if root and Path(root).is_dir() else None
        """The data root, ``None`` where it is not known or cannot be reached now."""
        self._folder = _place(folder)
        self._links: dict[str, str | None] = {}

    def link(self, sample: Sample) -> str | None:
        """Return the clip's place as a relative URL. It is not looked at: the player says what is missing."""
        # Names with nothing to be resolved in them are only appended to their folder's link, which is fast.
        folder, _, name = sample.audio_path.rpartition("/")
        if folder and _PLAIN_NAME.fullmatch(name):
            if folder not in self._links:
                self._links[folder] = self._link(folder)
            link = self._links[folder]
            return link if link is None else name if link == "." else f"{link}/{name}"
        return self._link(sample.audio_path)

    def _link(self, path: str) -> str | None:
        place = self._place_of(path)
        if place is None:
            return None
        try:
            relative = os.path.relpath(place, self._folder)
            return quote(os.fsencode(relative.replace(os.sep, "/")))
        except ValueError:  # another drive, or a name that no file system can hold
            return None

    def embedded(self, sample: Sample) -> str | None:
        """Return the clip as a ``data:`` URL, ``None`` where it cannot be read or is not within the root."""
        place = self._place_of(sample.audio_path)
        if place is None or self.root is None:
            return None
        # realpath: a link that leaves the root would put a stranger's file into a page that is shared.
        real = Path(os.path.realpath(place))
        media_type = _MEDIA_TYPES.get(place.suffix.lower())
        if media_type is None or not real.is_relative_to(os.path.realpath(self.root)):
            return None
        try:
            content = real.read_bytes()
        except OSError:
            return None
        return f"data:{media_type};base64,{base64.b64encode(content).decode('ascii')}"

    def _place_of(self, path: str) -> Path | None:
        if self.root is None:
            return None
        place = Path(_place(self.root / path))
        return place if place.is_relative_to(self.root) else None


def _place(path: Path) -> str:
    # By the names alone, links not followed, as a browser goes from the page's own address.
    return os.path.normpath(path.absolute())
