"""One exchange over HTTP: sessions, proxy, ``Expect: 100-continue``, and no socket left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass
from weakref import WeakSet

import aiohttp
from aiohttp.http_exceptions import LineTooLong

from otoscope._version import __version__
from otoscope.chat_api.body import Body
from otoscope.config import EndpointSettings
from otoscope.errors import ConfigError

CONNECT_TIMEOUT = 10.0
"""For name, connection, proxy and TLS together."""
EXPECT_TIMEOUT = 2.0
MAX_REPLY_BYTES = 16 << 20
MAX_HEADER_BYTES = 64 << 10
"""For each line of a reply's head: what gateways add there must not cost a paid reply."""
LISTING_TIMEOUT = 5.0


class HeaderTooLargeError(aiohttp.ClientError):
    """A reply came whose head has a line of over :data:`MAX_HEADER_BYTES`; it cannot be read."""


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
    head_sent: asyncio.Event = field(default_factory=asyncio.Event)
    transport: asyncio.BaseTransport | None = None

    def restart(self) -> None:
        """Forget what is known of the attempt before."""
        self.reused = self.answered = False
        self.head_sent = asyncio.Event()
        self.transport = None


@dataclass(frozen=True, slots=True)
class Exchanged:
    """What came back; ``content`` is ``None`` when it was larger than :data:`MAX_REPLY_BYTES`."""

    status: int
    headers: Mapping[str, str]
    content: bytes | None


_route: ContextVar[Route | None] = ContextVar("_route", default=None)


class _Connector(aiohttp.TCPConnector):
    """Tells each attempt which transport it uses, so that it can be cut, and whether it is a used one."""

    # aiohttp would tell it through a trace, which costs every request several calls more.
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._used: WeakSet[asyncio.BaseTransport] = WeakSet()

    async def connect(
        self, req: aiohttp.ClientRequest, traces: list[Any], timeout: aiohttp.ClientTimeout
    ) -> aiohttp.connector.Connection:
        connection = await super().connect(req, traces, timeout)
        transport, route = connection.transport, _route.get()
        if route is not None and transport is not None:
            route.transport, route.reused = transport, transport in self._used
            self._used.add(transport)
        return connection


class Connections:
    """The connections to one endpoint: a pool, and single ones for attempts after a broken connection.

    Raises ``ConfigError`` for a proxy in the environment that cannot be used.
    """

    def __init__(self, settings: EndpointSettings) -> None:
        self._settings = settings
        self._headers = _headers(settings)
        self._proxy = _proxy(settings.url)
        self._pool: aiohttp.ClientSession | None = None
        self._single: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """Get ready; needs the running event loop."""
        self._pool = self._new_session(force_close=False)
        self._single = self._new_session(force_close=True)

    async def close(self) -> None:
        """Close every connection."""
        for session in (self._pool, self._single):
            if session is not None:
                await session.close()

    async def exchange(self, body: Body, route: Route, limit: float) -> Exchanged | None:
        """Send one request and read its reply, in ``limit`` seconds at most.

        Returns ``None`` when the server ignored ``Expect``: the body was not sent. Raises what aiohttp
        raises, and ``HeaderTooLargeError``.
        """
        route.restart()
        if not route.expect:
            return await self._post(body, route, limit)
        sending = asyncio.create_task(self._post(body, route, limit))
        clock = asyncio.create_task(_expect_clock(route))
        try:
            await asyncio.wait({sending, clock}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done() or body.begun.is_set() or route.answered:
                return await sending
            return None
        finally:
            clock.cancel()
            sending.cancel()
            await asyncio.gather(clock, sending, return_exceptions=True)

    async def _post(self, body: Body, route: Route, limit: float) -> Exchanged:
        session = self._single if route.fresh else self._pool
        if session is None:
            raise RuntimeError("the endpoint is used outside of its context manager")
        _route.set(route)
        try:
            async with session.post(
                self._settings.url,
                # What is whole already goes out in one piece with the head.
                data=body if route.expect or body.whole is None else body.whole,
                headers={"Content-Length": str(body.length), "Content-Type": "application/json"},
                allow_redirects=False,
                expect100=route.expect,
                proxy=self._proxy,
                timeout=aiohttp.ClientTimeout(total=limit, connect=CONNECT_TIMEOUT),
                trace_request_ctx=route,
            ) as response:
                route.answered = True
                content = await _read(response)
                return Exchanged(response.status, response.headers, content)
        except aiohttp.ClientResponseError as error:
            if any(isinstance(cause, LineTooLong) for cause in _causes(error)):
                route.answered = True
                # Without the header's text, which may hold a cookie.
                raise HeaderTooLargeError from error
            raise
        finally:
            _route.set(None)
            transport = route.transport
            # A transport that is closed flushes what it holds first, which a server that no longer reads
            # would draw out for ever.
            if isinstance(transport, asyncio.Transport) and transport.is_closing():
                transport.abort()

    async def listing(self) -> bytes | None:
        """Return the server's answer to ``GET /models``, or ``None`` when there is none. Raises nothing."""
        url = urlsplit(self._settings.url)
        url = url._replace(path=url.path.removesuffix("/chat/completions") + "/models")
        if self._single is None:
            return None
        try:
            async with self._single.get(
                url.geturl(),
                allow_redirects=False,
                proxy=self._proxy,
                timeout=aiohttp.ClientTimeout(total=LISTING_TIMEOUT),
                trace_request_ctx=Route(),
            ) as response:
                return await _read(response) if response.status == 200 else None
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError):
            return None

    def _new_session(self, *, force_close: bool) -> aiohttp.ClientSession:
        async def on_head_sent(_session: Any, context: Any, _params: Any) -> None:
            context.trace_request_ctx.head_sent.set()

        trace = aiohttp.TraceConfig()
        trace.on_request_headers_sent.append(on_head_sent)
        return aiohttp.ClientSession(
            connector=_Connector(limit=0, force_close=force_close),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=self._headers,
            # Only the single ones ask with Expect, and only those ask when the head was sent.
            trace_configs=[trace] if force_close else [],
            max_line_size=MAX_HEADER_BYTES,
            max_field_size=MAX_HEADER_BYTES,
            # Would let ~/.netrc override the key, or make the request impossible where both are there.
            trust_env=False,
        )


async def _expect_clock(route: Route) -> None:
    await route.head_sent.wait()
    await asyncio.sleep(EXPECT_TIMEOUT)


def _causes(error: BaseException) -> Iterator[BaseException]:
    while (cause := error.__cause__) is not None:
        yield cause
        error = cause


async def _read(response: aiohttp.ClientResponse) -> bytes | None:
    blocks: list[bytes] = []
    size = 0
    async for block in response.content.iter_any():
        size += len(block)
        if size > MAX_REPLY_BYTES:
            response.close()
            return None
        blocks.append(block)
    return b"".join(blocks)


def _headers(settings: EndpointSettings) -> dict[str, str]:
    """Return our headers with the user's in the place of those of the same name."""
    ours = {"User-Agent": f"otoscope/{__version__}"}
    if settings.authorization is not None:
        ours["Authorization"] = settings.authorization
    theirs = settings.extra_headers
    replaced = {name.lower() for name in theirs}
    kept = {name: value for name, value in ours.items() if name.lower() not in replaced}
    return {**kept, **theirs}


def _proxy(url: str) -> str | None:
    """Return the proxy that the environment names for a URL: HTTP_PROXY, HTTPS_PROXY, NO_PROXY."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    proxy = getproxies().get(parts.scheme)
    if not proxy or proxy_bypass(host) or proxy_bypass(f"{host}:{parts.port}"):
        return None
    if "://" not in proxy:
        proxy = f"http://{proxy}"
    if urlsplit(proxy).scheme not in ("http", "https"):
        raise ConfigError(
            f"the proxy that the environment names for {parts.scheme} is a {urlsplit(proxy).scheme} proxy; "
            "only http and https proxies can be used (or NO_PROXY for this host)"
        )
    return proxy
