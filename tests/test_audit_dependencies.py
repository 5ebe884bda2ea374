"""The dependency audit tells a known vulnerability from a service that is out of reach."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import REPOSITORY

SCRIPT = REPOSITORY / "scripts" / "audit_dependencies.py"
FINE = {"name": "fine", "version": "1.0", "vulns": []}
BAD = {"name": "bad", "version": "1.0", "vulns": [{"id": "CVE-1", "fix_versions": ["1.1"]}]}
SKIPPED = {"name": "skipped", "skip_reason": "an editable install"}
UNKNOWN = {"name": "unknown", "skip_reason": "Dependency not found on PyPI and could not be audited"}


def audited(folder: Path, told: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """Run the script with a pip-audit that knows, for each service, the packages, or fails with a message."""
    program = folder / "pip-audit"
    program.write_text(
        f"#!{sys.executable}\nimport json, sys\n"
        f"told = json.loads({json.dumps(told)!r})[sys.argv[sys.argv.index('--vulnerability-service') + 1]]\n"
        "if isinstance(told, str):\n    sys.exit(told)\n"
        "with open(sys.argv[sys.argv.index('--output') + 1], 'w') as file:\n"
        "    json.dump({'dependencies': told}, file)\n"
        "sys.exit(any(one.get('vulns') for one in told))\n",
        encoding="utf-8",
    )
    program.chmod(0o700)
    return subprocess.run(
        [sys.executable, str(SCRIPT), "--pip-audit", str(program), "--packages", str(folder)],
        capture_output=True, encoding="utf-8", check=False,
    )  # fmt: skip


def test_nothing_known(tmp_path: Path) -> None:
    """Packages without a known vulnerability end with 0, and are counted."""
    done = audited(tmp_path, {"osv": [FINE, SKIPPED], "pypi": "must not be asked"})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "audit: 1 packages looked up by osv: 0 known vulnerabilities\n"


def test_a_known_vulnerability(tmp_path: Path) -> None:
    """It is named, with the version that mends it, and ends with 1; so it does from the second service."""
    for told in ({"osv": [FINE, BAD]}, {"osv": "ERROR: no connection", "pypi": [BAD]}):
        done = audited(tmp_path, told)
        assert done.returncode == 1
        assert "audit: bad 1.0: CVE-1, mended in 1.1\n" in done.stdout


def test_packages_that_a_service_does_not_know(tmp_path: Path) -> None:
    """They are named, since nothing is known of them; of the others it can be said."""
    done = audited(tmp_path, {"osv": [FINE, UNKNOWN]})
    assert done.returncode == 0
    assert done.stderr == "audit: osv does not know unknown\n"


@pytest.mark.parametrize("second", ["ERROR: no connection", [], [SKIPPED], [UNKNOWN]])
def test_no_service_answers(tmp_path: Path, second: Any) -> None:
    """That nothing could be looked up is said loudly and ends with 2, which a gate tells from a finding."""
    done = audited(tmp_path, {"osv": "ERROR: no connection", "pypi": second})
    assert done.returncode == 2
    assert "no answer from the service osv: ERROR: no connection" in done.stderr
    assert "audit: NOT DONE" in done.stderr
    assert "|| [ $$? -eq 2 ]" in (REPOSITORY / "Makefile").read_text(encoding="utf-8")


def test_without_the_program(tmp_path: Path) -> None:
    """Where pip-audit could not be installed, nothing was looked up."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--pip-audit", str(tmp_path / "gone")],
        capture_output=True, encoding="utf-8", check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "NOT DONE" in done.stderr
