"""Look every installed package up among the known vulnerabilities, with pip-audit.

    python scripts/audit_dependencies.py --pip-audit PROGRAM [--packages FOLDER]

Ends with 0 where none is known, with 1 where one is, and with 2, loudly, where it could not be looked up: the
services are on the network, and a gate without one must be able to tell that from a finding.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

SERVICES = ("osv", "pypi")
"""Asked one after the other until one answers."""
SECONDS = 240.0
"""For each service."""
ACCEPTED: Mapping[str, str] = {}
"""Vulnerabilities that do not matter here, each with the reason: they are told and fail nothing."""
NONE_KNOWN, FOUND, NOT_LOOKED_UP = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Look up, tell, and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pip-audit", required=True, type=Path, help="the program")
    parser.add_argument("--packages", type=Path, default=Path(sysconfig.get_path("purelib")))
    given = parser.parse_args(arguments)
    for service in SERVICES:
        if (told := _asked(given.pip_audit, given.packages, service)) is not None:
            return _tell(told, service)
    print(
        "audit: NOT DONE: no service of known vulnerabilities could be asked, and nothing is known of these "
        "packages. Run it again where the network is",
        file=sys.stderr,
    )
    return NOT_LOOKED_UP


def _asked(program: Path, packages: Path, service: str) -> list[dict[str, Any]] | None:
    """Return what a service knows of each package; ``None``, once it was told why, where it cannot say."""
    try:
        return _looked_up(program, packages, service)
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError) as error:
        print(f"audit: no answer from the service {service}: {error}", file=sys.stderr)
        return None


def _looked_up(program: Path, packages: Path, service: str) -> list[dict[str, Any]]:
    """Return what is known of each package. Raises ``ValueError`` with the program's last words."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "found.json"
        command = [
            str(program), "--path", str(packages), "--vulnerability-service", service, "--skip-editable",
            "--progress-spinner", "off", "--format", "json", "--output", str(output),
        ]  # fmt: skip
        done = subprocess.run(  # noqa: S603 (our own command)
            command, capture_output=True, encoding="utf-8", timeout=SECONDS, check=False
        )
        # It ends with 1 for a finding, and for every trouble of its own.
        if not output.exists() or not output.stat().st_size:
            raise ValueError((done.stderr.strip().splitlines() or ["it said nothing"])[-1][:400])
        told = json.loads(output.read_text(encoding="utf-8"))["dependencies"]
    found = [one for one in told if "skip_reason" not in one]
    unknown = [one["name"] for one in told if "not found" in one.get("skip_reason", "")]
    # pip-audit itself ends well where the service knows none of the packages, as a mirror may.
    if not found:
        raise ValueError(f"it knows none of {len(unknown)} packages")
    if unknown:
        print(f"audit: {service} does not know {', '.join(unknown)}", file=sys.stderr)
    return found


def _tell(dependencies: Sequence[Mapping[str, Any]], service: str) -> int:
    findings = list(_findings(dependencies))
    for name, version, identity, mended in findings:
        accepted = f" (accepted: {ACCEPTED[identity]})" if identity in ACCEPTED else ""
        print(f"audit: {name} {version}: {identity}, mended in {mended or 'no version'}{accepted}")
    counted = [finding for finding in findings if finding[2] not in ACCEPTED]
    print(f"audit: {len(dependencies)} packages looked up by {service}: {len(counted)} known vulnerabilities")
    return FOUND if counted else NONE_KNOWN


def _findings(dependencies: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str, str, str]]:
    for one in dependencies:
        for found in one["vulns"]:
            yield one["name"], one["version"], found["id"], ", ".join(found["fix_versions"])


if __name__ == "__main__":
    sys.exit(main())
