"""The layout shows the architecture: imports go one way."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "otoscope"

LAYERS: dict[str, int] = {
    "_version": 0,
    "children": 0,
    "descriptors": 0,
    "records": 0,
    "errors": 0,
    "nesting": 0,
    "shell": 0,
    "threads": 0,
    "secrecy": 0,
    "benchmark": 1,
    "breaker": 1,
    "choices": 1,
    "config": 1,
    "parsing": 1,
    "lock": 1,
    "weights": 1,
    "expectation": 1,
    "stats": 1,
    "stopping": 1,
    "published": 1,
    "texts": 1,
    "prompts": 1,
    "dataset": 2,
    "hub": 2,
    "audio": 2,
    "llm": 2,
    "gguf": 2,
    "chat_api": 2,
    "store": 2,
    "scoring": 2,
    "exchange": 2,
    "judge_profile": 2,
    "refusal": 2,
    "backends": 3,
    "clips": 3,
    "obtaining": 3,
    "judge": 3,
    "embedded": 3,
    "runs": 3,
    "audit": 3,
    "comparison": 3,
    "demo": 3,
    "pipeline": 4,
    "opening": 4,
    "parts": 4,
    "session": 4,
    "estimate": 4,
    "leaderboard": 4,
    "exporting": 4,
    "bundle": 4,
    "importing": 4,
    "merging": 4,
    "tracking": 4,
    "reports": 5,
    "judging": 5,
    "evaluation": 5,
    "cli": 6,
    "__main__": 7,
}
"""A module may import from lower layers only. ``benchmark`` and ``choices`` are the words of layer 1."""

ALLOWED = {("config", "benchmark"), ("config", "choices"), ("texts", "choices")}
"""Neighbours in a layer that may import each other, each with the reason above."""

HIDDEN_IMPORTS = {"cli", "parts", "embedded", "audio", "hub", "stats", "tracking", "__init__"}
"""Where an import may stand inside a function: where a subcommand, backend, runtime, hub or tracker is
chosen. In ``stats`` it is numpy, which permutation tests need and most reports do not."""


def modules() -> list[Path]:
    """Return every module of the package."""
    return sorted(SOURCE.rglob("*.py"))


def part(path: Path) -> str:
    """Return the name under which a module stands in the table."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported(tree: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yield every part of the package that a module imports, with the statement."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "otoscope":
            yield from ((alias.name, node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("otoscope."):
            yield str(node.module).split(".")[1], node
        elif isinstance(node, ast.Import):
            yield from ((a.name.split(".")[1], node) for a in node.names if a.name.startswith("otoscope."))


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_module_imports_from_lower_layers_only(path: Path) -> None:
    """No module imports from its own layer or a higher one, save within its own package."""
    own = part(path)
    if own == "__init__":
        return
    for other, node in imported(ast.parse(path.read_text(encoding="utf-8"))):
        if other in (own, "__version__") or (own, other) in ALLOWED:
            continue
        assert LAYERS[other] < LAYERS[own], f"{path.name}:{getattr(node, 'lineno', 0)} imports {other}"


def test_every_module_has_a_layer() -> None:
    """A new module has to be given its place in the table."""
    assert {part(path) for path in modules()} - {"__init__"} == set(LAYERS) - {"demo"}


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_stand_at_the_top(path: Path) -> None:
    """An import inside a function is found only where a subcommand or a backend is chosen."""
    # What a local model needs is loaded by the thread that builds it.
    if part(path) in HIDDEN_IMPORTS or path == SOURCE / "backends" / "local.py":
        return
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
    inside = [n for f in functions for n in ast.walk(f) if isinstance(n, (ast.Import, ast.ImportFrom))]
    assert not inside


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        (
            "import otoscope",
            "torch modelscope numpy jinja2 matplotlib rich pycurl soundfile yaml asyncio otoscope.config",
        ),
        (
            "from otoscope.cli.parser import command_parser; command_parser()",
            "numpy rich asyncio subprocess dataclasses otoscope.config otoscope.cli.commands",
        ),
        (
            "from otoscope import evaluate",
            "numpy soundfile soxr matplotlib jinja2 modelscope cyllama yaml",
        ),
        (
            "from otoscope import load_run",
            "pycurl soundfile numpy matplotlib jinja2 otoscope.judge otoscope.pipeline otoscope.backends",
        ),
        ("import otoscope.reports.terminal", "pycurl soundfile numpy otoscope.judge otoscope.pipeline"),
        (
            "import otoscope.evaluation, otoscope.judging, otoscope.cli.commands, otoscope.reports.live",
            "matplotlib jinja2 scipy pandas otoscope.reports.html otoscope.reports.charts",
        ),
        ("import otoscope.reports.gathered, otoscope.reports.figures", "matplotlib numpy rich pycurl"),
    ],
)
def test_nothing_is_loaded_that_is_not_used(statement: str, absent: str) -> None:
    """Importing the package, building the parser and reading a run load none of the heavy modules."""
    code = f"import sys; {statement}; print(*(m for m in {absent.split()!r} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True)
    assert done.stdout.split() == []
