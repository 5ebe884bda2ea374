"""Clips' bytes in memory from when they were hashed until they were sent, within a limit for all of them."""

from __future__ import annotations

import threading


class HeldClips:
    """Room for ``limit`` bytes of clips. Several threads may use it."""

    def __init__(self, limit: int) -> None:
        self._left = limit
        self._counting = threading.Lock()

    def room(self, size: int) -> bool:
        """Take room for ``size`` bytes; ``False`` where there is not enough."""
        with self._counting:
            if size > self._left:
                return False
            self._left -= size
            return True

    def give_back(self, size: int) -> None:
        """Give room back."""
        with self._counting:
            self._left += size


class HeldBytes:
    """One clip's bytes, in room for ``size`` of them that was taken before and is given back when they go."""

    def __init__(self, room: HeldClips, size: int) -> None:
        self._data = b""
        self._size = size
        self._room: HeldClips | None = room

    def fill(self, data: bytes) -> None:
        """Put the bytes in."""
        self._data = data

    def read_at(self, offset: int, size: int) -> bytes:
        """Return ``size`` bytes from ``offset`` on, fewer only at the end; none once they were dropped."""
        return self._data[offset : offset + size]

    def drop(self) -> None:
        """Let the bytes go: whoever still wants them reads the file. May be called again."""
        room, self._room, self._data = self._room, None, b""
        if room is not None:
            room.give_back(self._size)

    def __del__(self) -> None:
        self.drop()
