"""What each status and each broken connection means: two tables, read from the top, the first row counts."""

from __future__ import annotations

import errno
import re
from collections.abc import Container
from dataclasses import dataclass
from enum import Enum, auto

import pycurl

from otoscope.chat_api.connections import E_TOO_LARGE, MAX_HEADER_BYTES, TLS_CODES, BrokenError
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

    @property
    def broken(self) -> bool:
        """Whether there was a connection, which broke before the reply was whole."""
        return self.kind is FailureKind.CONNECTION and not (self.unreachable or self.ours)


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
    starting: bool = False
    """Whether a server that is not ready yet may say so, where the next step would not be to try again."""


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
    # Routers answer so while nothing stands behind them yet, and servers while the model is being fetched.
    StatusRow((404, 405), _ANYTHING, FailureKind.REJECTED, Next.STOP_UNLESS_SERVED, "{place}", starting=True),
    StatusRow((200, 400, 413, 422, 500), _CONTEXT, FailureKind.CONTEXT_TOO_SMALL, Next.GIVE_UP),
    StatusRow((400, 422), _ANYTHING, FailureKind.REJECTED, Next.ADAPT),
    StatusRow((413,), _ANYTHING, FailureKind.TOO_LARGE, Next.GIVE_UP),
    StatusRow((408,), _ANYTHING, FailureKind.TIMEOUT, Next.BACK_OFF),
    StatusRow((429,), _ANYTHING, FailureKind.RATE_LIMITED, Next.BACK_OFF),
    StatusRow((409, 425), _ANYTHING, FailureKind.SERVER_ERROR, Next.BACK_OFF),
    StatusRow(range(500, 1000), _ANYTHING, FailureKind.SERVER_ERROR, Next.BACK_OFF),
    StatusRow((200,), _ANYTHING, FailureKind.BAD_REPLY, Next.BACK_OFF),
    StatusRow(range(1000), _ANYTHING, FailureKind.REJECTED, Next.GIVE_UP, starting=True),
)


def meaning_of(status: int, error: ServerError) -> StatusRow:
    """Return the row that fits a status and the server's words."""
    words = f"{error.code} {error.type} {error.message}".lower()
    return next(row for row in _STATUSES if status in row.statuses and row.words.search(words))


# --- connections ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConnectionRow:
    """One row: an exchange that broke so is this kind of trouble."""

    codes: Container[int]
    """libcurl's numbers; 0 is an ``OSError`` of this process's own."""
    kind: FailureKind
    unreachable: bool
    say: str
    """May hold ``{limit}`` (seconds) and ``{error}``."""
    next: Next = Next.BACK_OFF
    connected: bool | None = None
    """Whether there was a connection; ``None``: either."""
    answered: bool | None = None
    """Whether the head of a reply had come."""
    through_proxy: bool | None = None
    errnos: Container[int] | None = None
    """``None``: any, or none."""
    ours: bool = False
    """As in :class:`Trouble`."""

    def fits(self, error: BrokenError | OSError) -> bool:
        """Whether the exception is of this row."""
        if self.errnos is not None and error.errno not in self.errnos:
            return False
        if isinstance(error, OSError):
            return 0 in self.codes
        return error.code in self.codes and all(
            wanted in (None, found)
            for wanted, found in (
                (self.connected, error.connected),
                (self.answered, error.answered),
                (self.through_proxy, error.through_proxy),
            )
        )


_ANY_CODE = range(1000)

_CONNECTIONS = (
    # Requests that end meanwhile set descriptors free, hence a back-off. It may be the socket, the look-up of
    # the host or the clip's file that found none.
    ConnectionRow(
        _ANY_CODE,
        FailureKind.CONNECTION,
        False,
        "this process has too many open files: raise ulimit -n or lower the batch sizes",
        errnos=(errno.EMFILE, errno.ENFILE),
        ours=True,
    ),
    # Paid for and thrown away: the next one would have the same header.
    ConnectionRow(
        (E_TOO_LARGE,),
        FailureKind.BAD_REPLY,
        False,
        f"the reply has a header of over {MAX_HEADER_BYTES >> 10} KB, or too many headers, and cannot be "
        "read",
        next=Next.GIVE_UP,
    ),
    ConnectionRow(
        (pycurl.E_PEER_FAILED_VERIFICATION,),
        FailureKind.CONNECTION,
        True,
        "the server's certificate cannot be verified: {error}. Check the URL; for an authority of your own, "
        "or a server that signs itself, give the certificate (PEM) with --ca-file FILE",
    ),
    ConnectionRow(
        TLS_CODES,
        FailureKind.CONNECTION,
        True,
        "no secure connection: {error}. Check the URL and the server's certificate",
    ),
    ConnectionRow(
        _ANY_CODE,
        FailureKind.CONNECTION,
        True,
        "no connection through the proxy of the environment (HTTP_PROXY, HTTPS_PROXY): {error}",
        through_proxy=True,
    ),
    ConnectionRow(_ANY_CODE, FailureKind.CONNECTION, True, "no connection: {error}", connected=False),
    ConnectionRow(
        (pycurl.E_OPERATION_TIMEDOUT,),
        FailureKind.TIMEOUT,
        False,
        "no complete reply within {limit:.3g} s",
    ),
    ConnectionRow(
        (pycurl.E_UNSUPPORTED_PROTOCOL, pycurl.E_FTP_WEIRD_SERVER_REPLY),
        FailureKind.CONNECTION,
        False,
        "the reply is not HTTP: {error}",
    ),
    ConnectionRow(_ANY_CODE, FailureKind.CONNECTION, False, "the reply broke off: {error}", answered=True),
    ConnectionRow(_ANY_CODE, FailureKind.CONNECTION, False, "the connection broke: {error}"),
)

CONNECTION_ERRORS: tuple[type[BrokenError], type[OSError]] = (BrokenError, OSError)
"""Everything that an exchange may raise; each has a row."""


def meaning_of_break(error: BrokenError | OSError) -> ConnectionRow:
    """Return the row that fits an exception out of :data:`CONNECTION_ERRORS`."""
    return next(row for row in _CONNECTIONS if row.fits(error))


def is_tls(error: BrokenError | OSError) -> bool:
    """Whether the two ends found no common ground for an encrypted connection."""
    return isinstance(error, BrokenError) and error.code in TLS_CODES
