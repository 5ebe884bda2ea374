"""What each status and each broken connection means: two tables, read from the top, the first row counts."""

from __future__ import annotations

import asyncio
import errno
import re
import ssl
from collections.abc import Container
from dataclasses import dataclass
from enum import Enum, auto

import aiohttp

from otoscope.chat_api.connections import MAX_HEADER_BYTES, HeaderTooLargeError
from otoscope.chat_api.replies import ServerError
from otoscope.records import FailureKind


class Next(Enum):
    """What to do after an attempt that brought no reply."""

    STOP = auto()
    """Raise ``EndpointError``: no other request would fare better."""
    STOP_UNLESS_SERVED = auto()
    """Raise ``EndpointError``; but where others were served, give up, unless several in a row fare so."""
    GIVE_UP = auto()
    """This sample has failed; the others go on."""
    BACK_OFF = auto()
    ADAPT = auto()
    """Try the request in another form, when the server's words suggest one; else give up."""
    AT_ONCE = auto()
    """Try again now, and use up no try."""
    PAUSE = auto()
    """The server said how long to wait: every request to it waits, and no try is used up."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why an attempt brought no reply."""

    kind: FailureKind
    message: str
    next: Next
    pause: float = 0.0
    """Seconds the server asked for."""
    unreachable: bool = False
    """Whether there was not even a connection."""
    ours: bool = False
    """Whether this process is at fault, whatever the server does."""


# --- statuses ---------------------------------------------------------------------------------------------

_QUOTA = re.compile(
    r"insufficient_quota|insufficient_balance|insufficient balance|billing_hard_limit|arrearage|"
    r"credits? (?:limit|balance)"
)
_CONTENT_FILTER = re.compile(
    r"content_filter|content[_ ]policy|content management policy|data_inspection_failed|datainspectionfailed|"
    r"moderation|was flagged|safety system|responsibleaipolicy"
)
_CONTEXT = re.compile(
    r"context_length|context length|context window|context size|maximum context|"
    r"max(?:imum)?[_ ]model[_ ]len|too many tokens|(?:prompt|input) is too long|"
    r"exceeds? the (?:available |maximum )?context|longer than the (?:maximum )?model|reduce the length"
)
_ANYTHING = re.compile("")


@dataclass(frozen=True, slots=True)
class StatusRow:
    """One row: when a status and the server's words match, this is what it is."""

    statuses: Container[int]
    words: re.Pattern[str]
    kind: FailureKind
    next: Next
    say: str = "{text}"
    """May hold ``{text}`` (the server's words), ``{key}`` and ``{place}`` (advice)."""


# 200 stands for an error without a status of its own inside of a good reply.
_STATUSES = (
    StatusRow(
        range(300, 400),
        _ANYTHING,
        FailureKind.REJECTED,
        Next.STOP_UNLESS_SERVED,
        "{text}. Redirects are not followed, since the key would go with them; give that URL yourself",
    ),
    StatusRow(
        (402,),
        _ANYTHING,
        FailureKind.RATE_LIMITED,
        Next.STOP,
        "the quota is used up ({text}). Nothing is lost: raise it, then resume the run",
    ),
    StatusRow(
        (200, 400, 403, 429),
        _QUOTA,
        FailureKind.RATE_LIMITED,
        Next.STOP,
        "the quota is used up ({text}). Nothing is lost: raise it, then resume the run",
    ),
    StatusRow((200, 400, 403, 422, 451), _CONTENT_FILTER, FailureKind.CONTENT_FILTER, Next.GIVE_UP),
    StatusRow((401,), _ANYTHING, FailureKind.REJECTED, Next.STOP, "the key was refused ({text}). {key}"),
    StatusRow(
        (403,),
        _ANYTHING,
        FailureKind.REJECTED,
        Next.STOP_UNLESS_SERVED,
        "the key was refused ({text}). {key}",
    ),
    StatusRow(
        (407,),
        _ANYTHING,
        FailureKind.REJECTED,
        Next.STOP,
        "the proxy of the environment (HTTP_PROXY, HTTPS_PROXY) wants other credentials ({text})",
    ),
    StatusRow((404, 405), _ANYTHING, FailureKind.REJECTED, Next.STOP_UNLESS_SERVED, "{place}"),
    StatusRow((200, 400, 413, 422, 500), _CONTEXT, FailureKind.CONTEXT_TOO_SMALL, Next.GIVE_UP),
    StatusRow((400, 422), _ANYTHING, FailureKind.REJECTED, Next.ADAPT),
    StatusRow((413,), _ANYTHING, FailureKind.TOO_LARGE, Next.GIVE_UP),
    StatusRow((408,), _ANYTHING, FailureKind.TIMEOUT, Next.BACK_OFF),
    StatusRow((429,), _ANYTHING, FailureKind.RATE_LIMITED, Next.BACK_OFF),
    StatusRow((409, 425), _ANYTHING, FailureKind.SERVER_ERROR, Next.BACK_OFF),
    StatusRow(range(500, 1000), _ANYTHING, FailureKind.SERVER_ERROR, Next.BACK_OFF),
    StatusRow((200,), _ANYTHING, FailureKind.BAD_REPLY, Next.BACK_OFF),
    StatusRow(range(1000), _ANYTHING, FailureKind.REJECTED, Next.GIVE_UP),
)


def meaning_of(status: int, error: ServerError) -> StatusRow:
    """Return the row that fits a status and the server's words."""
    words = f"{error.code} {error.type} {error.message}".lower()
    return next(row for row in _STATUSES if status in row.statuses and row.words.search(words))


# --- connections ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConnectionRow:
    """One row: an exception of such a type, and with such a number, is this kind of trouble."""

    types: tuple[type[Exception], ...]
    kind: FailureKind
    unreachable: bool
    say: str
    """May hold ``{limit}`` (seconds) and ``{error}``."""
    next: Next = Next.BACK_OFF
    errnos: Container[int] | None = None
    """``None``: any, or none."""
    ours: bool = False
    """As in :class:`Trouble`."""

    def fits(self, error: Exception) -> bool:
        """Whether the exception is of this row."""
        if not isinstance(error, self.types):
            return False
        return self.errnos is None or getattr(error, "errno", None) in self.errnos


_CONNECTIONS = (
    # Requests that end meanwhile set descriptors free, hence a back-off. It may be the socket, the look-up of
    # the host or the clip's file that found none.
    ConnectionRow(
        (OSError,),
        FailureKind.CONNECTION,
        False,
        "this process has too many open files: raise ulimit -n or lower the batch sizes",
        errnos=(errno.EMFILE, errno.ENFILE),
        ours=True,
    ),
    # Paid for and thrown away: the next one would have the same header.
    ConnectionRow(
        (HeaderTooLargeError,),
        FailureKind.BAD_REPLY,
        False,
        f"the reply has a header of over {MAX_HEADER_BYTES >> 10} KB and cannot be read",
        next=Next.GIVE_UP,
    ),
    ConnectionRow(
        (aiohttp.ClientSSLError, ssl.SSLError),
        FailureKind.CONNECTION,
        True,
        "no secure connection: {error}. Check the URL and the server's certificate",
    ),
    ConnectionRow(
        (aiohttp.ClientHttpProxyError, aiohttp.ClientProxyConnectionError),
        FailureKind.CONNECTION,
        True,
        "no connection through the proxy of the environment (HTTP_PROXY, HTTPS_PROXY): {error}",
    ),
    ConnectionRow(
        (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError),
        FailureKind.CONNECTION,
        True,
        "no connection: {error}",
    ),
    ConnectionRow(
        (asyncio.TimeoutError,), FailureKind.TIMEOUT, False, "no complete reply within {limit:.3g} s"
    ),
    ConnectionRow(
        (aiohttp.ClientPayloadError,), FailureKind.CONNECTION, False, "the reply broke off: {error}"
    ),
    ConnectionRow(
        (aiohttp.ClientResponseError,), FailureKind.CONNECTION, False, "the reply is not HTTP: {error}"
    ),
    ConnectionRow(
        (aiohttp.ClientError, OSError), FailureKind.CONNECTION, False, "the connection broke: {error}"
    ),
)

CONNECTION_ERRORS: tuple[type[Exception], ...] = (aiohttp.ClientError, asyncio.TimeoutError, OSError)
"""Everything that an exchange may raise; each has a row."""


def meaning_of_break(error: Exception) -> ConnectionRow:
    """Return the row that fits an exception out of :data:`CONNECTION_ERRORS`."""
    return next(row for row in _CONNECTIONS if row.fits(error))


def is_tls(error: Exception) -> bool:
    """Whether the two ends found no common ground for an encrypted connection."""
    return isinstance(error, (aiohttp.ClientSSLError, ssl.SSLError))
