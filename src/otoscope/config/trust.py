"""Certificates that vouch for servers, in a file of the user's own."""

from __future__ import annotations

import ssl
from os import PathLike
from pathlib import Path

from otoscope.config.checks import expanded_path
from otoscope.errors import ConfigError

_FLAG = "--ca-file"


def checked_ca_file(given: str | PathLike[str] | None) -> Path | None:
    """Return the file's path, once it was found to hold certificates.

    Raises ``ConfigError`` for a file that cannot be read, is not PEM, or holds no certificate.
    """
    if given is None:
        return None
    file = expanded_path(given)
    why = "holds no certificate"
    try:
        # With a file, those of the system are left out.
        if ssl.create_default_context(cafile=file).cert_store_stats()["x509"]:
            return file
    except ssl.SSLError:
        why = "is not PEM with certificates (-----BEGIN CERTIFICATE-----)"
    except (OSError, ValueError) as error:
        why = f"cannot be read: {getattr(error, 'strerror', None) or error}"
    raise ConfigError(
        f"{_FLAG}: {file}: {why}. Give the certificate of the authority that signed the server's, or the "
        "server's own where it signs itself"
    )
