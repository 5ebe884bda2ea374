"""docs/how-to/new-backend.md does what it says: its code, put where it says, in a copy of the package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import REPOSITORY, environment

PAGE = (REPOSITORY / "docs" / "how-to" / "new-backend.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"<!-- (\S+?)(?:, (before|instead of): (.+?))? -->\n```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of package and test helpers with the page's code in it."""
    root = tmp_path_factory.mktemp("copy")
    shutil.copytree(REPOSITORY / "src", root / "src", ignore=shutil.ignore_patterns("__pycache__"))
    (root / "tests").mkdir()
    for name in ("__init__.py", "support.py", "test_architecture.py"):
        if (source := REPOSITORY / "tests" / name).exists():
            shutil.copy(source, root / "tests")
    for name, how, anchor, code in BLOCKS:
        path = root / name
        if not how:
            path.write_text(code, encoding="utf-8")
            continue
        text = path.read_text(encoding="utf-8")
        place = re.search(rf"^{re.escape(anchor)}", text, re.MULTILINE)
        assert place is not None, f"{name} has no {anchor!r}"
        rest = text[place.end() if how == "instead of" else place.start() :]
        between = "\n\n\n" if code.startswith("@") else ""
        path.write_text(
            text[: place.start()] + code.rstrip("\n") + (between or "\n" * (how == "before")) + rest,
            encoding="utf-8",
        )
    return root


def test_the_page_has_all_of_it() -> None:
    """A backend, its arm, its settings, what names it, and its tests."""
    assert {name for name, *_ in BLOCKS} == {
        "src/otoscope/config/settings.py",
        "src/otoscope/config/models.py",
        "src/otoscope/backends/program.py",
        "src/otoscope/parts.py",
        "tests/test_program.py",
    }


@pytest.mark.skipif(os.name == "nt", reason="the page's program is a shell script")
def test_it_works(copy: Path) -> None:
    """Its own tests pass, and imports still go one way."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/test_program.py",
         "tests/test_architecture.py", "-k", "program or lower_layers or stand_at"],
        cwd=copy, env=environment(PYTHONPATH=f"{copy / 'src'}{os.pathsep}{copy}"), capture_output=True,
        encoding="utf-8", timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
