from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from otoscope.records import Downloading, DownloadPlanned, Fetching, RunStarted
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
    assert "1 sample:" in printed(shown)


PLANNED = DownloadPlanned("ModelScope", Path("/data/[root]"), 2200, 12, 2188, 12_345_678_900, 66_900_000_000)


def test_a_download_is_announced_and_then_told_by_tenths_or_minutes() -> None:
    """A log has what is wanted, here and to come before the first byte; then a line a step or minute."""
    shown, now = console(), [0.0]
    display = FetchDisplay(shown, interactive=False, clock=lambda: now[0])
    display(Downloading("ModelScope", 0, 0, 0, 0))
    display(PLANNED)
    for second in range(150):
        now[0] = float(second)
        display(Downloading("ModelScope", second, 2188, 1_000_000 * second, 12_345_678_900))
    display(Downloading("ModelScope", 2188, 2188, 12_345_678_900, 12_345_678_900))
    display.close()
    planned, *lines = printed(shown).splitlines()
    assert planned == (
        "2,200 files wanted, 12 here already; 2,188 to fetch from ModelScope, 12.3 GB, into /data/[root] "
        "(66.9 GB free)"
    )
    assert lines == [
        "ModelScope: 0/2,188 files: 0 B of 12.3 GB",
        "ModelScope: 60/2,188 files: 60.0 MB of 12.3 GB",
        "ModelScope: 120/2,188 files: 120.0 MB of 12.3 GB",
        "ModelScope: 2,188/2,188 files: 12.3 GB of 12.3 GB",
    ]


def test_nothing_to_fetch_is_one_line() -> None:
    """Where every file is here, that and the place are said, and no bar comes."""
    shown = console()
    display = FetchDisplay(shown, interactive=False)
    display(DownloadPlanned("ModelScope", Path("/data"), 3, 3, 0, 0, 10))
    assert printed(shown) == "3 files wanted, 3 here already: nothing to fetch; /data\n"


def test_a_terminal_gets_one_bar_for_a_whole_download() -> None:
    """Files and bytes are counted in place; while the hub is asked something moves; the cursor comes back."""
    shown = console(terminal=True)
    display = FetchDisplay(shown, interactive=True)
    for _ in range(3):
        display(Downloading("Hugging Face", 0, 0, 0, 0))
    display(PLANNED)
    for files in range(3):
        display(Downloading("Hugging Face", files, 2, 500_000 * files, 1_000_000))
    display.close()
    text = printed(shown)
    assert "waiting for Hugging Face" in text
    assert "2/2 files" in text
    assert "1.0/1.0 MB" in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
