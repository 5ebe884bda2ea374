"""The README tells the truth: its commands are run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.scripted_server import ScriptedServer
from tests.support import DEMO, REPOSITORY, environment, otoscope

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")


def block(name: str) -> str:
    """Return the code block of the README that is marked with this name."""
    found = re.search(rf"<!-- tested: {name} -->\n```\w+\n(.*?)```", README, re.DOTALL)
    assert found is not None
    return found[1]


def test_the_command_works(tmp_path: Path) -> None:
    """The first command that the README shows evaluates the bundled clips, once its names are filled in."""
    with ScriptedServer() as server:
        text = block("seed").replace("export OPENAI_API_KEY=...", "export OPENAI_API_KEY=key")
        text = text.replace("http://127.0.0.1:8000/v1", server.url)
        text = text.replace("/path/to/AIR-Bench-Dataset", str(DEMO))
        text = text.replace("otoscope eval", f"{sys.executable} -m otoscope eval")
        done = subprocess.run(
            ["bash", "-ec", text],
            cwd=tmp_path,
            env=environment(OPENAI_BASE_URL=server.url),
            capture_output=True,
            encoding="utf-8",
            timeout=60,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert "YOUR_MODEL on AIR-Bench Chat" in done.stdout


def test_the_python_example_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python example of the README runs as it stands, once its names are filled in."""
    monkeypatch.chdir(tmp_path)
    with ScriptedServer() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        text = block("python").replace("http://127.0.0.1:8000/v1", server.url)
        text = text.replace("/path/to/AIR-Bench-Dataset", str(DEMO))
        names: dict[str, object] = {}
        exec(compile(text, "README.md", "exec"), names)  # noqa: S102 (our own README)
    assert getattr(names["run"], "summary").counts["scored"] == 16  # noqa: B009 (typed as object)


def test_every_flag_that_is_named_exists() -> None:
    """No document names a flag that no command has."""
    flag = r"(?<![\w-])--[a-z][a-z-]+"
    commands = ["", *"eval judge report compare leaderboard merge import export".split()]
    commands += ["config show"]
    commands += [f"data {action}" for action in ("download", "verify", "stats", "show")]
    helps = "".join(otoscope(*command.split(), "--help").stdout for command in commands)
    known = {*re.findall(flag, helps), "--update-golden", "--runs", "--small-clips"}
    known |= {"--array", "--open-mode", "--port", "--requeue", "--signal"}  # Slurm's and vLLM's
    known |= {"--address", "--block", "--gpus-per-node", "--head"}  # Ray's, and Slurm's beside it
    # Of the servers that docs/how-to/servers.md starts.
    known |= {"--port", "--max-model-len", "--model-path", "--sampling-defaults", "--mmproj"}
    for path in (REPOSITORY / "README.md", REPOSITORY / "CHANGELOG.md", *(REPOSITORY / "docs").rglob("*.md")):
        for named in re.findall(flag, path.read_text(encoding="utf-8")):
            assert named in known, f"{path.name} names {named}"
