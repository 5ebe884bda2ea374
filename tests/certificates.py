"""Certificates for tests, made when they are needed."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest


def certificate(folder: Path, name: str, *extension: str) -> Path:
    """Make a certificate that signs itself, with its key in the same file; skips where openssl is missing."""
    if shutil.which("openssl") is None:
        pytest.skip("the program openssl is not there")
    file = folder / f"{name}.pem"
    subprocess.run(
        [
            *"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2".split(),
            "-subj", f"/CN={name}", "-addext", extension[0] if extension else "subjectAltName=IP:127.0.0.1",
            "-keyout", str(folder / "key.pem"), "-out", str(folder / "certificate.pem"),
        ],
        check=True,
        capture_output=True,
    )  # fmt: skip
    file.write_bytes((folder / "key.pem").read_bytes() + (folder / "certificate.pem").read_bytes())
    return file


def speaks(certificate: Path) -> ssl.SSLContext:
    """Return what lets a server speak TLS with this certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context
