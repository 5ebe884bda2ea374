"""Options and fixtures that every test module shares."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
from hypothesis import settings

# No example is timed: on a busy machine each may take long, and the first one compiles patterns.
settings.register_profile("untimed", settings(), deadline=None)
settings.load_profile("untimed")
# What CI takes: a quarter of the examples where a test does not say how many, and the same ones each time, so
# that it fails for what was changed and nothing else. Whoever runs the tests by hand looks for new ones.
settings.register_profile("ci", settings(), deadline=None, max_examples=25, derandomize=True, database=None)

# A shell ignores Ctrl-C for what it starts in the background, and processes hand that on to theirs.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

GOLDEN = Path(__file__).parent / "golden"
_LONG = re.compile(rb"-?\d+\.\d{11,}(?:e-?\d+)?")
"""Numbers with more digits than a platform's mathematical functions agree about: ten are compared."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that writes golden files anew."""
    parser.addoption("--update-golden", action="store_true", help="write tests/golden/ anew")


class Golden:
    """Compares bytes with a stored file, or stores them where that was asked for."""

    def __init__(self, *, update: bool) -> None:
        self._update = update

    def check(self, name: str, content: bytes) -> None:
        """Assert that ``content`` is what ``tests/golden/name`` holds."""
        content = _LONG.sub(lambda found: f"{float(found[0]):.10g}".encode(), content)
        path = GOLDEN / name
        if self._update:
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
        assert content == path.read_bytes(), f"{name} differs; if that is meant: pytest --update-golden"


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Give the golden files."""
    return Golden(update=request.config.getoption("--update-golden"))
