from __future__ import annotations

import io

from rich.console import Console

from otoscope.records import Fetching, RunStarted
from otoscope.reports.fetching import FetchDisplay
from otoscope.reports.live import LiveDisplay
from tests.support import REPOSITORY


def console(*, terminal: bool = False) -> Console:
    """Return a console that keeps what it prints."""
    return Console(file=io.StringIO(), force_terminal=terminal, width=100, color_system=None)


def printed(shown: Console) -> str:
    """Return what was printed."""
    assert isinstance(shown.file, io.StringIO)
    return shown.file.getvalue()


def test_a_log_gets_a_line_for_each_tenth() -> None:
    """Where nothing can be drawn, a file's progress is a line for each tenth of it."""
    shown = console()
    display = FetchDisplay(shown, interactive=False)
    for done in range(0, 1_000_000_001, 1_000_000):
        display(Fetching("model.gguf", "a hub", done, 1_000_000_000))
    display.close()
    lines = printed(shown).splitlines()
    assert len(lines) == 11
    assert lines[0] == "fetching model.gguf from a hub: 0 B of 1.0 GB"
    assert lines[-1] == "fetching model.gguf from a hub: 1.0 GB of 1.0 GB"


def test_a_terminal_gets_a_bar_for_each_file() -> None:
    """On a terminal each file has a bar with its name, and closing leaves the cursor shown."""
    shown = console(terminal=True)
    display = FetchDisplay(shown, interactive=True)
    display(Fetching("one.bin", "a hub", 5, 10))
    display(Fetching("one.bin", "a hub", 10, 10))
    display(Fetching("two.bin", "", 1, 10))
    display.close()
    assert "fetching one.bin from a hub" in printed(shown)
    assert "fetching two.bin" in printed(shown)
    assert printed(shown).rstrip().endswith("\x1b[?25h")


def test_the_live_display_shows_what_is_fetched_before_a_run() -> None:
    """Weights are fetched before the run starts, and the display of a run tells of both."""
    shown = console()
    with LiveDisplay(shown, interactive=False) as display:
        display(Fetching("model.gguf", "a hub", 10, 10))
        display(RunStarted(REPOSITORY, 1, 0, 1, 0, 2))
    assert "fetching model.gguf" in printed(shown)
    assert "1 samples" in printed(shown)
