"""One exchange over HTTP by libcurl: pool, proxy, ``Expect: 100-continue``, and no socket left behind."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import ssl
import string
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import pycurl

from otoscope._version import __version__
from otoscope.chat_api.body import Body
from otoscope.chat_api.masking import Mask
from otoscope.config import EndpointSettings
from otoscope.errors import ConfigError

CONNECT_TIMEOUT = 10.0
"""For name, connection, proxy and TLS together."""
EXPECT_TIMEOUT = 2.0
MAX_REPLY_BYTES = 16 << 20
MAX_HEADER_BYTES = 64 << 10
"""For each line of a reply's head: what gateways add there must not cost a paid reply."""
_MAX_HEAD_BYTES = 256 << 10
"""For all lines together; libcurl breaks off a little later."""
LISTING_TIMEOUT = 5.0

_SEND_BYTES = 64 << 10
"""What libcurl takes of a body at a time, and holds for each request that is being sent."""
E_TOO_LARGE = 100
"""CURLE_TOO_LARGE; pycurl has no name for it, nor for the next."""
_SUPPRESS_CONNECT_HEADERS = 265
_GZIP = b"\x1f\x8b"
_MOST_LAYERS = 5
_MOST_MEMBERS = 64
"""Of a packed reply: without an end of them, one would keep every other request waiting."""
_FOR_EVER = 1 << 30
"""Milliseconds. Whether a server consents to a body is watched by our own clock."""


class BrokenError(Exception):
    """An exchange ended without a whole reply: libcurl's ``code`` (``pycurl.E_...``) and words."""

    def __init__(
        self,
        code: int,
        message: str,
        *,
        connected: bool = True,
        answered: bool = False,
        through_proxy: bool = False,
        errno: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.connected = connected
        """Whether there was a connection, through proxy and TLS."""
        self.answered = answered
        """Whether the head of a reply had come."""
        self.through_proxy = through_proxy
        """Whether it is the proxy that gave no connection."""
        self.errno = errno
        """The system's number, where it gave one."""


@dataclass(slots=True)
class Route:
    """How the next attempt is to be made, and what became known of it."""

    fresh: bool = False
    """On a connection of its own."""
    expect: bool = False
    """Ask with ``Expect: 100-continue`` before the body is sent."""
    reused: bool = False
    answered: bool = False
    """Whether the head of a reply came."""

    def restart(self) -> None:
        """Forget what is known of the attempt before."""
        self.reused = self.answered = False


@dataclass(slots=True)
class Exchanged:
    """What came back; ``content`` is ``None`` when it was larger than :data:`MAX_REPLY_BYTES`."""

    status: int
    headers: Mapping[str, str]
    """By their names in lower case; of several with one name the first."""
    content: bytes | None


class _Transfer:
    """One attempt, as libcurl's callbacks see it. None of them may raise: it would only be printed."""

    def __init__(self, curl: Any, body: Body | None, route: Route) -> None:
        self.headers: dict[str, str] = {}
        self.header_too_large = self.reply_too_large = False
        self.body_error: BaseException | None = None
        self.head_sent: asyncio.Future[None] | None = None
        self.consent: asyncio.Future[None] | None = None
        """With ``Expect``: done when the server wants the body, or has answered without it."""
        self.ended: asyncio.Future[Any] | None = None
        self._curl = curl
        self._body = body
        self._unsent = 0 if body is None or body.whole is not None else body.length
        self._route = route
        self._blocks: list[bytes] = []
        self._size = self._head_size = 0
        self._final = False
        """Whether the head that comes is that of the reply; those before it only announce one."""
        self._rest, self._given = b"", 0
        """A block of the body, and how many bytes of it libcurl has."""
        self._loading: asyncio.Task[None] | None = None

    @property
    def content(self) -> bytes:
        """What came of the reply's body."""
        return b"".join(self._blocks)

    def give(self, size: int) -> bytes | int:
        """Give libcurl at most ``size`` bytes of the body, or have it wait until they are read."""
        _settle(self.consent)
        if self.body_error is not None or self._body is None:
            return int(pycurl.READFUNC_ABORT)
        if self._given == len(self._rest):
            try:
                block = self._body.ready()
            except Exception as error:
                # It is raised where the request is awaited; from here it would not get there.
                self.body_error = error
                return int(pycurl.READFUNC_ABORT)
            if block is None:
                self._loading = asyncio.ensure_future(self._body.load())
                self._loading.add_done_callback(self._loaded)
                return int(pycurl.READFUNC_PAUSE)
            self._rest, self._given = block, 0
        given = self._rest[self._given : self._given + size]
        self._given += len(given)
        self._unsent -= len(given)
        if self._given == len(self._rest):
            self._rest, self._given = b"", 0
        return given

    def _loaded(self, loading: asyncio.Task[None]) -> None:
        self._loading = None
        if loading.cancelled():
            return
        self.body_error = loading.exception()
        # It may have ended meanwhile: then there is nothing left to wake.
        with contextlib.suppress(pycurl.error):
            self._curl.pause(pycurl.PAUSE_CONT)

    async def end(self) -> None:
        """Leave no task behind."""
        if self._loading is not None:
            self._loading.cancel()
            await asyncio.gather(self._loading, return_exceptions=True)

    def take_header(self, line: bytes) -> int | None:
        """Take one line of the reply's head, the status line included."""
        self._head_size += len(line)
        if len(line) > MAX_HEADER_BYTES or self._head_size > _MAX_HEAD_BYTES:
            self.header_too_large = self._route.answered = True
            return -1
        if line[:5].upper() == b"HTTP/":
            self.headers.clear()
            self._final = not line.partition(b" ")[2].lstrip().startswith(b"1")
        elif not line.strip():
            if self._final:
                self._route.answered = True
                _settle(self.consent)
                self._end_early()
        else:
            name, _, value = line.partition(b":")
            self.headers.setdefault(name.decode("latin-1").lower(), value.decode("utf-8", "replace").strip())
        return None

    def take(self, block: bytes) -> int | None:
        """Take a block of the reply's body, packed as it may be."""
        self._size += len(block)
        if self._size > MAX_REPLY_BYTES:
            self.reply_too_large = True
            return -1
        self._blocks.append(block)
        self._end_early()
        return None

    def _end_early(self) -> None:
        """End where the whole reply came before the body was sent: the server may read no more of it."""
        if self._unsent and self.headers.get("content-length") == str(self._size):
            _settle(self.ended)

    def note(self, kind: int, _data: bytes) -> None:
        """Learn when the head of the request is on its way."""
        if kind == pycurl.INFOTYPE_HEADER_OUT:
            _settle(self.head_sent)


class Connections:
    """The connections to one endpoint: a pool, and single ones for attempts after a broken connection.

    Raises ``ConfigError`` for a proxy in the environment that cannot be used.
    """

    def __init__(self, settings: EndpointSettings) -> None:
        self._settings = settings
        self._url = _ascii(settings.url)
        self._headers = _headers(settings)
        self._proxy = _proxy(settings.url)
        encrypted = any(url.startswith("https:") for url in (settings.url, self._proxy or ""))
        self._trust = _trust(settings.ca_file) if encrypted else ()
        self.mask = Mask(settings, self._proxy)
        self._multi: pycurl.AsyncCurlMulti | None = None
        self._unused: list[Any] = []

    async def open(self) -> None:
        """Get ready; needs the running event loop."""
        self._multi = pycurl.AsyncCurlMulti()

    async def close(self) -> None:
        """Close every connection."""
        if self._multi is not None:
            await self._multi.aclose()
        for curl in self._unused:
            curl.close()
        self._unused.clear()

    async def exchange(self, body: Body, route: Route, limit: float) -> Exchanged | None:
        """Send one request and read its reply, in ``limit`` seconds at most.

        Returns ``None`` when the server ignored ``Expect``: the body was not sent. Raises ``BrokenError``,
        and what the body raises: ``OSError`` when its clip cannot be read.
        """
        route.restart()
        if not route.expect:
            return await self._perform(self._url, limit, route, body)
        loop = asyncio.get_running_loop()
        consent, head_sent = loop.create_future(), loop.create_future()
        sending = asyncio.create_task(
            self._perform(self._url, limit, route, body, consent=consent, head_sent=head_sent)
        )
        try:
            await asyncio.wait({sending, head_sent}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait(
                {sending, consent},
                timeout=min(EXPECT_TIMEOUT, limit / 2),
                return_when=asyncio.FIRST_COMPLETED,
            )
            if sending.done() or consent.done():
                return await sending
            return None
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def listing(self) -> bytes | None:
        """Return the server's answer to ``GET /models``, or ``None`` when there is none. Raises nothing."""
        url = urlsplit(self._url)
        url = url._replace(path=url.path.removesuffix("/chat/completions") + "/models")
        try:
            exchanged = await self._perform(url.geturl(), LISTING_TIMEOUT, Route(fresh=True), None)
        except BrokenError:
            return None
        return exchanged.content if exchanged.status == 200 else None

    async def _perform(
        self,
        url: str,
        limit: float,
        route: Route,
        body: Body | None,
        *,
        consent: asyncio.Future[None] | None = None,
        head_sent: asyncio.Future[None] | None = None,
    ) -> Exchanged:
        if self._multi is None:
            raise RuntimeError("the endpoint is used outside of its context manager")
        curl = self._unused.pop() if self._unused else pycurl.Curl()
        transfer = _Transfer(curl, body, route)
        transfer.consent, transfer.head_sent = consent, head_sent
        self._set_up(curl, transfer, url, limit, route, body)
        try:
            exchanged = await self._exchanged(self._multi, curl, transfer, route)
        except (BrokenError, OSError):
            self._give_back(curl)
            raise
        # One that was cancelled may still be in libcurl's hands.
        self._give_back(curl)
        return exchanged

    def _give_back(self, curl: Any) -> None:
        """Keep a handle for the next request, without what holds it in a circle with its transfer."""
        curl.reset()
        self._unused.append(curl)

    async def _exchanged(self, multi: Any, curl: Any, transfer: _Transfer, route: Route) -> Exchanged:
        try:
            transfer.ended = multi.add_handle(curl)
            await transfer.ended
        except pycurl.error as error:
            code, message = error.args
            if transfer.body_error is not None:
                raise transfer.body_error from None
            if transfer.header_too_large or code == E_TOO_LARGE:
                route.answered = True
                raise BrokenError(E_TOO_LARGE, message, answered=True) from None
            if not transfer.reply_too_large:
                raise self._broken(curl, code, message, route) from None
        finally:
            await transfer.end()
        if not route.answered:
            # libcurl takes what came of a head for all of it.
            raise self._broken(curl, pycurl.E_GOT_NOTHING, "it ended within its headers", route)
        content = None
        if not transfer.reply_too_large:
            try:
                content = _unpacked(transfer.content, transfer.headers.get("content-encoding", ""))
            except zlib.error as error:
                raise self._broken(curl, pycurl.E_BAD_CONTENT_ENCODING, str(error), route) from None
        return Exchanged(
            curl.getinfo(pycurl.RESPONSE_CODE),
            transfer.headers,
            None if content is None else self.mask.reply(content),
        )

    def _set_up(
        self, curl: Any, transfer: _Transfer, url: str, limit: float, route: Route, body: Body | None
    ) -> None:
        curl.setopt(pycurl.URL, url)
        curl.setopt(pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_1_1)
        curl.setopt(pycurl.PATH_AS_IS, 1)
        curl.setopt(pycurl.NOSIGNAL, 1)
        # Given in any case: libcurl reads the environment by other rules than ours.
        curl.setopt(pycurl.PROXY, self._proxy or "")
        curl.setopt(pycurl.NOPROXY, "")
        curl.setopt(_SUPPRESS_CONNECT_HEADERS, 1)
        # Our key is not the proxy's.
        curl.setopt(pycurl.HEADEROPT, pycurl.HEADER_SEPARATE)
        curl.setopt(pycurl.CONNECTTIMEOUT_MS, int(1000 * CONNECT_TIMEOUT))
        curl.setopt(pycurl.TIMEOUT_MS, max(1, int(1000 * limit)))
        curl.setopt(pycurl.FRESH_CONNECT, route.fresh)
        curl.setopt(pycurl.FORBID_REUSE, route.fresh)
        curl.setopt(pycurl.HEADERFUNCTION, transfer.take_header)
        curl.setopt(pycurl.WRITEFUNCTION, transfer.take)
        for option, value in self._trust:
            curl.setopt(option, value)
        headers = self._headers
        if body is not None:
            curl.setopt(pycurl.POST, 1)
            if body.whole is not None and not route.expect:
                curl.setopt(pycurl.POSTFIELDS, body.whole)
            else:
                curl.setopt(pycurl.POSTFIELDSIZE_LARGE, body.length)
                curl.setopt(pycurl.READFUNCTION, transfer.give)
                curl.setopt(pycurl.UPLOAD_BUFFERSIZE, _SEND_BYTES)
            if route.expect:
                curl.setopt(pycurl.EXPECT_100_TIMEOUT_MS, _FOR_EVER)
                curl.setopt(pycurl.VERBOSE, 1)
                curl.setopt(pycurl.DEBUGFUNCTION, transfer.note)
            expect = b"Expect: 100-continue" if route.expect else b"Expect:"
            headers = [*headers, expect]
        curl.setopt(pycurl.HTTPHEADER, headers)

    def _broken(self, curl: Any, code: int, message: str, route: Route) -> BrokenError:
        connected = curl.getinfo(pycurl.REQUEST_SIZE) > 0
        route.reused = connected and curl.getinfo(pycurl.NUM_CONNECTS) == 0
        number = curl.getinfo(pycurl.OS_ERRNO) or None
        if code == pycurl.E_SSL_CONNECT_ERROR and number is not None:
            # It broke during the handshake, which says nothing about keys and certificates.
            code = pycurl.E_COULDNT_CONNECT
        if not connected:
            # A resolver that found no descriptor does not tell so.
            number = _want_of_descriptors() or number
            refused_by_proxy = curl.getinfo(pycurl.HTTP_CONNECTCODE) != 0
            if code == pycurl.E_COULDNT_CONNECT and number is None and not refused_by_proxy:
                # A server's refusal has a number. Without one there was no socket to begin with, though a
                # descriptor may have become free since.
                number = errno.EMFILE
        return BrokenError(
            code,
            # It has no words for some.
            message or f"libcurl's error {code}",
            connected=connected,
            answered=route.answered,
            through_proxy=self._proxy is not None and not connected,
            errno=number,
        )


TLS_CODES = frozenset(
    {
        pycurl.E_SSL_CONNECT_ERROR,
        pycurl.E_SSL_CERTPROBLEM,
        pycurl.E_SSL_CIPHER,
        pycurl.E_PEER_FAILED_VERIFICATION,
        pycurl.E_SSL_CACERT_BADFILE,
        pycurl.E_SSL_ISSUER_ERROR,
        pycurl.E_SSL_INVALIDCERTSTATUS,
    }
)
"""What ends an encrypted connection before it began."""


def _settle(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)


def _want_of_descriptors() -> int | None:
    """Return the system's number for "too many open files" where that is so."""
    try:
        os.close(os.dup(0))
    except OSError as error:
        return error.errno
    return None


def _unpacked(content: bytes, encodings: str) -> bytes | None:
    """Return a reply's body unpacked, or ``None`` when it then is larger than :data:`MAX_REPLY_BYTES`.

    libcurl gives up a reply whose header names what it does not know, or what was not done; here such a body
    stays as it came. Raises ``zlib.error``.
    """
    unpacked: bytes | None = content
    for name in reversed(encodings.lower().replace(" ", "").split(",")[-_MOST_LAYERS:]):
        if unpacked and name in ("gzip", "x-gzip") and unpacked.startswith(_GZIP):
            unpacked = _inflated(unpacked, zlib.MAX_WBITS | 16)
        elif unpacked and name == "deflate":
            # It means zlib's form, and some servers send without that form's two bytes.
            named = unpacked[0] & 15 == zlib.DEFLATED and int.from_bytes(unpacked[:2], "big") % 31 == 0
            unpacked = _inflated(unpacked, zlib.MAX_WBITS if named else -zlib.MAX_WBITS)
    return unpacked


def _inflated(packed: bytes, form: int) -> bytes | None:
    blocks: list[bytes] = []
    room = MAX_REPLY_BYTES + 1
    while not blocks or (packed.startswith(_GZIP) and len(blocks) < _MOST_MEMBERS):
        stream = zlib.decompressobj(form)
        blocks.append(stream.decompress(packed, room))
        room -= len(blocks[-1])
        if room <= 0:
            return None
        packed = stream.unused_data
    return b"".join(blocks)


def _trust(ca_file: Path | None) -> Sequence[tuple[int, bytes | int]]:
    """Return the options that verify servers by these certificates, else by those that Python takes.

    Those are of ``SSL_CERT_FILE`` and ``SSL_CERT_DIR``, else the system's.
    """
    system = ssl.get_default_verify_paths()
    if ca_file is not None:
        # libcurl has a folder of its own besides, unless another one is named.
        file, folder = str(ca_file), os.devnull
    elif sys.platform in ("win32", "darwin") and not system.cafile:
        return [(pycurl.SSL_OPTIONS, pycurl.SSLOPT_NATIVE_CA)]
    else:
        file, folder = system.cafile, system.capath
    given = (
        (pycurl.CAINFO, file),
        (pycurl.PROXY_CAINFO, file),
        (pycurl.CAPATH, folder),
        (pycurl.PROXY_CAPATH, folder),
    )
    return [(option, os.fsencode(value)) for option, value in given if value]


def _ascii(url: str) -> str:
    """Return a URL whose host is written as names are looked up, and the rest as it travels.

    Raises ``UnicodeError`` for a host that is no name.
    """
    if url.isascii():
        return url
    parts = urlsplit(url)
    userinfo, at, place = parts.netloc.rpartition("@")
    if not place.isascii():
        host, colon, port = place.partition(":")
        place = host.encode("idna").decode() + colon + port
    url = parts._replace(netloc=userinfo + at + place).geturl()
    return quote(url, safe=string.printable, errors="surrogateescape")


def _headers(settings: EndpointSettings) -> list[bytes]:
    """Return our headers with the user's in the place of those of the same name."""
    ours = {"User-Agent": f"otoscope/{__version__}", "Content-Type": "application/json"}
    ours["Accept-Encoding"] = "gzip, deflate"
    if settings.authorization is not None:
        ours["Authorization"] = settings.authorization
    theirs = settings.extra_headers
    replaced = {name.lower() for name in theirs}
    kept = {name: value for name, value in ours.items() if name.lower() not in replaced}
    # A header without a value is written with a semicolon; with a colon it would be left out.
    return [
        (f"{name}: {value}" if value else f"{name};").encode() for name, value in {**kept, **theirs}.items()
    ]


def _proxy(url: str) -> str | None:
    """Return the proxy that the environment names for a URL: HTTP_PROXY, HTTPS_PROXY, NO_PROXY."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    proxy = getproxies().get(parts.scheme)
    if not proxy or proxy_bypass(host) or proxy_bypass(f"{host}:{parts.port}"):
        return None
    if "://" not in proxy:
        proxy = f"http://{proxy}"
    try:
        found = urlsplit(proxy)
        fine = bool(found.hostname) and found.port != 0
        user, colon, password = found.netloc.rpartition("@")[0].partition(":")
        # A password may hold what a URL has a meaning for.
        userinfo = f"{_quoted(user)}{colon}{_quoted(password)}@" if user or password else ""
        proxy = _ascii(found._replace(netloc=userinfo + found.netloc.rpartition("@")[2]).geturl())
    except ValueError:
        fine = False
    if not fine:
        raise ConfigError(
            f"the proxy that the environment names for {parts.scheme} is not a URL such as http://host:3128"
        )
    if found.scheme not in ("http", "https"):
        raise ConfigError(
            f"the proxy that the environment names for {parts.scheme} is a {found.scheme} proxy; "
            "only http and https proxies can be used (or NO_PROXY for this host)"
        )
    return proxy


def _quoted(text: str) -> str:
    return quote(unquote(text, errors="surrogateescape"), safe="", errors="surrogateescape")
