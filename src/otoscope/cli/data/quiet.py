"""Quiet decoders: the mp3 decoder writes its notes about each odd frame to the process's own descriptor 2."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

_STDERR = 2


@contextlib.contextmanager
def quiet_decoders() -> Iterator[None]:
    """Send nowhere what libraries write to descriptor 2; ``sys.stderr`` goes where it went before."""
    stream = sys.stderr
    try:
        if stream is None or stream.fileno() != _STDERR:
            raise OSError
        kept = os.dup(_STDERR)
    except OSError:  # closed, or replaced by what writes elsewhere
        yield
        return
    stream.flush()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, _STDERR)
    os.close(nowhere)
    sys.stderr = os.fdopen(os.dup(kept), "w", 1, stream.encoding, stream.errors, newline=None)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            sys.stderr.close()
        sys.stderr = stream
        os.dup2(kept, _STDERR)
        os.close(kept)
