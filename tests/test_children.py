"""Processes of our own modules: the folder that they are started in is not theirs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from otoscope.children import module_command
from tests.report_runs import small_run, write_run
from tests.support import environment

SOURCE = Path(__file__).parent.parent / "src" / "otoscope"


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """Give somebody else's run, with files that bear the names of modules and leave a mark where they run."""
    run = write_run(tmp_path / "run", small_run())
    names = "json rich numpy runpy mlflow huggingface_hub modelscope sitecustomize".split()
    for place in (run, run / "otoscope", run / "otoscope" / "hub", run / "otoscope" / "tracking"):
        place.mkdir(exist_ok=True)
        for name in names if place == run else ["__init__", "__main__"]:
            source = f"open({str(tmp_path / 'mark')!r}, 'a').write(__file__)\n"
            (place / f"{name}.py").write_text(source, encoding="utf-8")
    return run


@pytest.mark.parametrize("module", ["otoscope", "otoscope.hub", "otoscope.tracking"])
def test_a_module_is_ours_in_any_folder(module: str, foreign: Path, tmp_path: Path) -> None:
    """Whatever lies in the current folder, nothing of it is run, and the module is: it reads its input."""
    done = subprocess.run(
        module_command(module, "--version"),
        cwd=foreign, env=environment(), input="", capture_output=True, encoding="utf-8", timeout=60,
        check=False,
    )  # fmt: skip
    assert not (tmp_path / "mark").exists()
    if module == "otoscope":
        assert (done.returncode, done.stdout.startswith("otoscope ")) == (0, True), done.stderr
    else:
        assert str(SOURCE / module.rpartition(".")[2] / "__main__.py") in done.stderr
        assert "Expecting value" in done.stderr


def test_a_page_is_written_beside_files_that_bear_the_names_of_modules(foreign: Path, tmp_path: Path) -> None:
    """What ``otoscope judge .`` does at its end, in a run that came from elsewhere."""
    (foreign / "report.html").unlink(missing_ok=True)
    # A script, as pip makes one of an entry point: it does not look into the current folder either.
    script = tmp_path / "script.py"
    program = "from pathlib import Path\nfrom otoscope.cli.reporting import write_page_apart\n"
    script.write_text(f"{program}write_page_apart(Path('.'), 'en')\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=foreign, env=environment(), capture_output=True, encoding="utf-8", timeout=120, check=False,
    )  # fmt: skip
    assert not (tmp_path / "mark").exists()
    assert done.stderr == "Report: report.html\n"
    assert (foreign / "report.html").is_file()


def test_pythonpath_counts_as_ever(tmp_path: Path) -> None:
    """Modules that the user put on the path are found, and found first."""
    (tmp_path / "a_module.py").write_text(
        "import sys\nprint(sys.argv[1:], sys.flags.utf8_mode)\n", encoding="utf-8"
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        module_command("a_module", "one", "-X"),
        cwd=tmp_path.parent, env=environment(PYTHONPATH=path), capture_output=True, encoding="utf-8",
        timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout == "['one', '-X'] 1\n"


def test_a_child_runs_the_sources_of_its_parent() -> None:
    """They may not be installed, and others may be."""
    program = (
        "import subprocess, sys\nfrom otoscope.children import module_command\n"
        "sys.exit(subprocess.call(module_command('otoscope.children')))\n"
    )
    variables = environment()
    variables.pop("PYTHONPATH", None)
    done = subprocess.run(
        [sys.executable, "-S", "-c", program], cwd=SOURCE.parent, env=variables, timeout=60, check=False
    )
    assert done.returncode == 0


def test_there_is_one_way_to_run_a_module_of_ours() -> None:
    """Nobody else starts an interpreter, save for pip, which is started in an empty folder."""
    starting = {path.name for path in SOURCE.rglob("*.py") if "sys.executable" in path.read_text("utf-8")}
    assert starting == {"children.py", "weights.py"}
