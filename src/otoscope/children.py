"""Commands that run one of our modules in a process of its own."""

from __future__ import annotations

import sys
from pathlib import Path

_HOME = str(Path(__file__).absolute().parent.parent)
_START = """\
import sys
sys.path[:] = [place for place in sys.path if place]
home, module = sys.argv[1:3]
del sys.argv[1:3]
sys.path.insert(0, home)
import otoscope
sys.path.remove(home)
import runpy
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""
"""What ``-m`` does, without the current folder: it may be somebody else's run, with files that bear the names
of our modules or of our libraries'. ``-P`` is not known before Python 3.11. ``PYTHONPATH`` counts as ever."""


def module_command(module: str, *words: str) -> list[str]:
    """Return the command that runs a module with these arguments, in UTF-8, safe in any folder.

    Our modules are those that lie beside this one, also where only ``-m`` had found them.
    """
    return [sys.executable, "-X", "utf8", "-c", _START, _HOME, module, *words]
