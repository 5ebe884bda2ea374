"""What went wrong at a hub or on the disk, made out from the exceptions of two libraries."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_UNWRITABLE = frozenset({errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.EEXIST})
_QUERY = re.compile(r"(https?://[^\s?'\")]+)\?[^\s'\")]+")
_USERINFO = re.compile(r"(https?://)[^\s/@]+@")
_SHOWN = 300


class Kind(str, Enum):
    """What the next step depends on."""

    UNREACHABLE = "unreachable"
    REFUSED = "refused"
    """401 or 403."""
    NO_DATASET = "no_dataset"
    NO_SPACE = "no_space"
    UNWRITABLE = "unwritable"
    OTHER = "other"


class HubTrouble(Exception):  # noqa: N818 (named after what it tells of)
    """What ends the work with a hub."""

    def __init__(self, kind: Kind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def failed_files(error: BaseException | None) -> dict[str, BaseException]:
    """Return what a library says of each file that it could not fetch, where it does."""
    for one in chain(error):
        failed = getattr(one, "failed_files", None)
        if isinstance(failed, Mapping):
            return {str(path): why for path, why in failed.items() if isinstance(why, BaseException)}
    return {}


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and those that it came from."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def status_of(error: BaseException | None) -> int | None:
    """Return the HTTP status behind an exception."""
    for one in chain(error):
        response: Any = getattr(one, "response", None)
        for holder in (one, response):
            status = getattr(holder, "status_code", None)
            if isinstance(status, int):
                return status
    return None


def disk_trouble(error: BaseException | None) -> HubTrouble | None:
    """Return the trouble with the disk that is behind an exception, or behind one of its files'."""
    for one in [*chain(error), *(cause for why in failed_files(error).values() for cause in chain(why))]:
        if not isinstance(one, OSError):
            continue
        if one.errno in _NO_SPACE:
            return HubTrouble(Kind.NO_SPACE, _named(one))
        # Without a file it is a socket that a firewall forbids.
        if one.errno in _UNWRITABLE and one.filename is not None:
            return HubTrouble(Kind.UNWRITABLE, _named(one))
    return None


def hub_trouble(error: BaseException) -> HubTrouble:
    """Return what ends the work, for an exception that is about the whole data set and not about one file."""
    if isinstance(error, HubTrouble):
        return error
    if (trouble := disk_trouble(error)) is not None:
        return trouble
    # What a library says of one file says more than that one file failed.
    error = next(iter(failed_files(error).values()), error)
    match status_of(error):
        case 401 | 403 as status:
            return HubTrouble(Kind.REFUSED, f"HTTP status {status}")
        case 404:
            return HubTrouble(Kind.NO_DATASET, "HTTP status 404")
        case _:
            return HubTrouble(Kind.OTHER, words(error))


def words(error: BaseException | None) -> str:
    """Return an exception in one short line, without what may be secret in its URLs."""
    if error is None:
        return "no reason given"
    if isinstance(error, OSError) and error.errno is not None and error.strerror:
        return _named(error)
    text = " ".join(str(error).split())
    if " " not in text:
        text = f"{type(error).__name__} {text}".rstrip()
    text = _USERINFO.sub(r"\1", _QUERY.sub(r"\1", text))
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]} ..."


def network_words(error: BaseException) -> str:
    """Return the system's own word for trouble on the network, which libraries bury, or :func:`words`."""
    for one in reversed(list(chain(error))):
        if isinstance(one, OSError) and one.errno is not None and one.strerror:
            return one.strerror
    return words(error)


def _named(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}"
