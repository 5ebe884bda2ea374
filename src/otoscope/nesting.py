"""JSON from elsewhere, nested no deeper than what reads and writes it later can bear.

Python reads, writes and prints nested values by recursion, which ends the process or the call at a depth that
depends on the version and on who calls. What is over a fixed depth is refused here, when it is read.
"""

from __future__ import annotations

import json
from typing import Any

MAX_DEPTH = 64
"""Objects and lists within each other; what any server or data set says needs a tenth of it."""
STORED_DEPTH = MAX_DEPTH + 16
"""Of a stored line or file, which has what a server said within its own."""
_PLAIN = json.JSONDecoder()


class TooDeepError(ValueError):
    """A value is nested too deeply."""


def decoded(content: bytes | str, decoder: json.JSONDecoder = _PLAIN, depth: int = MAX_DEPTH) -> Any:
    """Read JSON. Raises ``ValueError`` where it is none; ``TooDeepError``, which is one, over ``depth``."""
    if isinstance(content, bytes):
        content = content.decode(json.detect_encoding(content), "surrogatepass")
    try:
        value = decoder.decode(content)
    except RecursionError:
        raise TooDeepError("nested too deeply") from None
    # Almost nothing has so many brackets.
    if content.count("{") + content.count("[") > depth:
        refuse_deep(value, depth)
    return value


def refuse_deep(value: Any, depth: int = MAX_DEPTH) -> None:
    """Raise ``TooDeepError`` for a value of objects and lists that are nested over ``depth``."""
    level = [value] if type(value) in (dict, list) else []
    for _ in range(depth):
        if not level:
            return
        level = [
            inner
            for outer in level
            for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) in (dict, list)
        ]
    if level:
        raise TooDeepError(f"nested over {depth} levels deep")
