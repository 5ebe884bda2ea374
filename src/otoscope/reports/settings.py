"""Settings for people: one a line, with what each comes to and where that came from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from otoscope.config.account import Setting
from otoscope.reports.text import Cleaner, print_line

DEFAULT = "default"
_NOTHING = "-"


def render(settings: Sequence[Setting], console: Console) -> None:
    """Print settings by group."""
    say = Cleaner(console.encoding)
    texts = [(say(one.name), say(_told(one.value)), say(origin(one))) for one in settings]
    widths = [max((cell_len(row[column]) for row in texts), default=0) for column in (0, 1)]
    # A value may be long; where it came from then stands further to the right.
    widths[1] = min(widths[1], max(20, console.width - widths[0] - 30))
    group = ""
    for one, (*columns, source) in zip(settings, texts, strict=True):
        if one.group != group:
            group = one.group
            print_line(console, Text(group, style="bold"))
        cells = [
            text + " " * max(0, width - cell_len(text)) for text, width in zip(columns, widths, strict=True)
        ]
        print_line(console, Text("  ".join(["", *cells, source]), style="dim" if one.origin is None else ""))


def to_json(settings: Sequence[Setting]) -> list[dict[str, Any]]:
    """Return settings as plain JSON."""
    return [
        {"group": one.group, "name": one.name, "value": one.value, "from": origin(one)} for one in settings
    ]


def origin(one: Setting) -> str:
    """Return where a setting came from."""
    return DEFAULT if one.origin is None else str(one.origin)


def _told(value: Any) -> str:
    if value is None:
        return _NOTHING
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
