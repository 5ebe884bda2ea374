"""One exchange over HTTP: broken connections, refusals hidden by them, proxies, and nothing left behind."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import errno
import gc
import gzip
import itertools
import json
import os
import resource
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import pycurl
import pytest

from otoscope.chat_api import ChatEndpoint, connections
from otoscope.chat_api.connections import E_TOO_LARGE, BrokenError
from otoscope.chat_api.troubles import meaning_of_break
from otoscope.errors import ConfigError, EndpointError
from otoscope.records import Failure, FailureKind, Reply
from tests.chat_helpers import (
    COMPLETION,
    KEY,
    QUESTION,
    about,
    asked,
    failed,
    make_clip,
    raw_server,
    read_head,
    read_request,
    replied,
    settings,
    use,
)
from tests.scripted_server import Response, ScriptedServer, Seen, early, sequence

LARGE = 8 << 20


def ask_twice(chat: ChatEndpoint) -> asyncio.Future[tuple[Reply | Failure, Reply | Failure]]:
    """Ask one after the other, so that the second may reuse the connection."""

    async def twice() -> tuple[Reply | Failure, Reply | Failure]:
        first = await chat.ask([{"role": "user", "content": "first"}])
        await asyncio.sleep(0.05)
        return first, await chat.ask([{"role": "user", "content": "second"}])

    return asyncio.ensure_future(twice())


def test_connection_is_reused() -> None:
    """Requests after each other share one connection."""
    with ScriptedServer() as server:
        use(settings(server), ask_twice)
    assert {seen.connection for seen in server.requests} == {1}


@pytest.mark.parametrize(
    "response", [Response(break_next=True), Response(silent_close=True), Response(close=True)]
)
def test_broken_reused_connection_costs_no_try(response: Response) -> None:
    """A kept connection that turns out to be dead is replaced at once, even when there is only one try."""
    with ScriptedServer(sequence(response)) as server:
        _, second = use(settings(server, tries=1), ask_twice)
    assert isinstance(second, Reply)
    assert second.attempts <= 2


def test_connection_that_breaks_every_time_uses_up_the_tries() -> None:
    """A server that breaks new connections too is retried only as often as the settings say."""

    def script(seen: Seen, _attempt: int) -> Response:
        return Response(drop=seen.text == "second")

    with ScriptedServer(script) as server:
        first, second = use(settings(server, tries=3), ask_twice)
    assert isinstance(first, Reply)
    assert isinstance(second, Failure)
    assert second.kind is FailureKind.CONNECTION
    assert second.attempts == 3  # the kept connection was replaced besides
    assert len(server.requests) == 5


def test_cut_reply_backs_off() -> None:
    """A connection that breaks in the middle of the reply costs a try: the server had begun to answer."""
    with ScriptedServer(sequence(Response(cut=20))) as server:
        failure = failed(settings(server, tries=2))
    assert (failure.kind, failure.attempts) == (FailureKind.CONNECTION, 2)


def test_handle_of_a_broken_request_is_used_again() -> None:
    """However many requests break, there is one handle for those that are made one after the other."""
    gc.collect()
    before = sum(isinstance(one, pycurl.Curl) for one in gc.get_objects())
    gc.disable()  # which would hide what holds itself in a circle
    try:
        with ScriptedServer(sequence(Response(cut=20))) as server:
            failure = failed(settings(server, tries=10))
        after = sum(isinstance(one, pycurl.Curl) for one in gc.get_objects())
    finally:
        gc.enable()
    assert failure.attempts == 10
    assert after - before <= 2  # one that asks whether the server lives


def test_cut_reply_on_a_reused_connection_backs_off_too() -> None:
    """Only a connection that broke before the reply began is replaced for nothing."""

    def script(seen: Seen, _attempt: int) -> Response:
        return Response(cut=20 if seen.text == "second" else None)

    with ScriptedServer(script) as server:
        _, second = use(settings(server, tries=1), ask_twice)
    assert isinstance(second, Failure)
    assert (second.kind, second.attempts) == (FailureKind.CONNECTION, 1)


# --- refusals hidden by a broken upload -------------------------------------------------------------------


@pytest.mark.parametrize("status", [401, 413, 429])
def test_refusal_before_the_body_is_found(tmp_path: Path, status: int) -> None:
    """A server that refuses after the headers and closes is understood, although the upload breaks."""
    clip = make_clip(tmp_path, LARGE)
    answer = Response(status=status, before_body=True)
    with ScriptedServer(sequence(answer)) as server:
        endpoint = settings(server, tries=2)
        if status == 401:
            with pytest.raises(EndpointError, match="401"):
                asked(endpoint, about(clip))
        else:
            failure = failed(endpoint, about(clip))
            kinds = {413: FailureKind.TOO_LARGE, 429: FailureKind.RATE_LIMITED}
            assert failure.kind is kinds[status]
    assert not any(seen.complete for seen in server.requests)


def test_broken_upload_asks_before_it_sends_again(tmp_path: Path) -> None:
    """After a broken upload the next try asks with Expect, on a new connection, at once."""
    clip = make_clip(tmp_path, LARGE)
    with ScriptedServer(sequence(Response(cut_upload=True), Response(text="fine"))) as server:
        reply = replied(settings(server, tries=1), about(clip))
    assert reply.attempts == 2
    assert [seen.headers.get("expect") for seen in server.requests] == [None, "100-continue"]
    assert [seen.connection for seen in server.requests] == [1, 2]
    assert server.requests[1].audio_sha256 == clip.sha256


def test_server_that_ignores_expect_gets_the_body_unasked(tmp_path: Path) -> None:
    """Without an answer to Expect in 2 s the body goes without, and nobody asks again in this run."""
    clips = [make_clip(tmp_path, LARGE), make_clip(tmp_path, LARGE + 1000)]

    async def both(chat: ChatEndpoint) -> list[Reply | Failure]:
        return [await chat.ask(about(clip)) for clip in clips]

    script = sequence(Response(cut_upload=True), Response(text="fine"))
    with ScriptedServer(script, ignore_expect=True) as server:
        began = time.monotonic()
        first, second = use(settings(server, tries=1), both)
        took = time.monotonic() - began
    assert isinstance(first, Reply)
    assert isinstance(second, Reply)
    assert (first.attempts, second.attempts) == (3, 2)
    assert 2 < took < 4
    expects = [seen.headers.get("expect") for seen in server.requests]
    assert expects == [None, "100-continue", None, None, None]


def test_server_that_ignores_expect_is_found_out_within_a_short_timeout(tmp_path: Path) -> None:
    """An attempt shorter than the wait for consent does not end as a timeout each time."""
    clip = make_clip(tmp_path, LARGE)
    with ScriptedServer(sequence(Response(cut_upload=True), Response()), ignore_expect=True) as server:
        given = settings(server, attempt_timeout=connections.EXPECT_TIMEOUT, tries=1)
        assert replied(given, about(clip)).attempts == 3


def test_slow_reply_to_expect_is_waited_for(tmp_path: Path) -> None:
    """The 2 s are for the server's consent, not for its reply."""
    clip = make_clip(tmp_path, LARGE)
    with ScriptedServer(sequence(Response(cut_upload=True), Response(text="fine", delay=2.3))) as server:
        assert replied(settings(server, tries=1), about(clip)).attempts == 2


def test_expectation_failed_goes_without(tmp_path: Path) -> None:
    """A 417 means that this server knows no Expect."""
    clip = make_clip(tmp_path, LARGE)

    def script(seen: Seen, attempt: int) -> Response:
        if "expect" in seen.headers:
            return Response(status=417, before_body=True)
        return Response(cut_upload=True) if attempt == 0 else Response(text="fine")

    with ScriptedServer(early(script)) as server:
        assert replied(settings(server, tries=1), about(clip)).attempts == 3


# --- nobody there -----------------------------------------------------------------------------------------


def free_port() -> int:
    """Return a port on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.mark.parametrize(("role", "exit_code"), [("model", 4), ("judge", 5)])
def test_refused_connection_stops_the_run_quickly(role: str, exit_code: int) -> None:
    """A server that was never there stops the run after three tries."""
    port = free_port()
    with pytest.raises(EndpointError, match="3 attempts") as caught:
        asked(settings(f"http://127.0.0.1:{port}/v1", role=role))
    assert caught.value.exit_code == exit_code
    assert f"127.0.0.1:{port}" in str(caught.value)
    assert "resume" in str(caught.value)


def test_unknown_host_stops_the_run() -> None:
    """A host name that does not exist stops the run."""
    with pytest.raises(EndpointError, match="no connection"):
        asked(settings("http://no-such-host.invalid/v1"))


def test_server_that_dies_stops_the_run() -> None:
    """A server that dies in the middle is tried as often as the settings say, then stops the run."""
    with ScriptedServer(sequence(Response(hang=True))) as server:

        async def main(chat: ChatEndpoint) -> list[Reply | Failure | BaseException]:
            asking = [asyncio.create_task(chat.ask(about_number(number))) for number in range(5)]
            await asyncio.sleep(0.2)
            server.script = sequence(Response())
            assert isinstance(await chat.ask(QUESTION), Reply)
            await asyncio.to_thread(server.stop)
            return await asyncio.gather(*asking, return_exceptions=True)

        results = use(settings(server), main)
    assert len(results) == 5
    for result in results:
        assert isinstance(result, EndpointError)
        assert "7 attempts" in str(result) or "6 attempts" in str(result)


def about_number(number: int) -> list[dict[str, str]]:
    """Return messages that differ by their number."""
    return [{"role": "user", "content": f"question {number}"}]


def test_server_that_comes_back_is_met_again() -> None:
    """A server that is restarted in time costs tries, and no sample."""
    with ScriptedServer() as server:

        async def main(chat: ChatEndpoint) -> Reply | Failure:
            await chat.ask(QUESTION)
            server.stop()
            asking = asyncio.create_task(chat.ask(about_number(1)))
            await asyncio.sleep(0.05)
            server.start()
            return await asking

        assert isinstance(use(settings(server, tries=100), main), Reply)


def test_server_that_only_breaks_stops_the_run() -> None:
    """A port where every connection breaks, and nothing was ever answered, is no endpoint."""

    def close(connection: socket.socket, _number: int) -> None:
        read_request(connection)

    with raw_server(close) as url, pytest.raises(EndpointError, match="connection broke"):
        asked(settings(url))


def test_other_protocol_is_named() -> None:
    """A server that does not speak HTTP is said not to."""

    def greet(connection: socket.socket, _number: int) -> None:
        read_request(connection)
        connection.sendall(b"220 mail.example.org ESMTP\r\n\r\n")

    with raw_server(greet) as url, pytest.raises(EndpointError, match="not HTTP"):
        asked(settings(url))


def test_no_tls_stops_the_run() -> None:
    """An https URL for a server without TLS stops the run at once and says why."""
    hellos = []

    def complain(connection: socket.socket, _number: int) -> None:
        hellos.append(connection.recv(65536))
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

    with raw_server(complain) as url, pytest.raises(EndpointError, match="no secure connection"):
        asked(settings(url.replace("http:", "https:")))
    assert len(hellos) == 1


def test_handshake_that_hangs_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that accepts the connection and never ends the TLS handshake is no server."""
    monkeypatch.setattr(connections, "CONNECT_TIMEOUT", 0.2)
    stopped = threading.Event()
    with raw_server(lambda _connection, _number: bool(stopped.wait())) as url:
        began = time.monotonic()
        with pytest.raises(EndpointError, match=r"timed? ?out"):
            asked(settings(url.replace("http:", "https:")))
        assert time.monotonic() - began < 2
        stopped.set()


def test_every_connection_error_has_a_row() -> None:
    """Every way in which an exchange may break is in the table, and the special rows come first."""
    kinds = {FailureKind.CONNECTION, FailureKind.TIMEOUT, FailureKind.BAD_REPLY}
    facts = itertools.product((True, False), repeat=3)
    for code, (connected, answered, through_proxy) in itertools.product(range(120), facts):
        error = BrokenError(
            code, "", connected=connected, answered=answered, through_proxy=through_proxy, errno=None
        )
        assert meaning_of_break(error).kind in kinds
    assert meaning_of_break(BrokenError(E_TOO_LARGE, "")).kind is FailureKind.BAD_REPLY
    for number in (errno.EMFILE, errno.ENFILE):
        assert meaning_of_break(OSError(number, "")).ours
        assert meaning_of_break(BrokenError(pycurl.E_COULDNT_CONNECT, "", errno=number)).ours
    assert not meaning_of_break(OSError(errno.EIO, "")).ours
    assert not meaning_of_break(BrokenError(pycurl.E_RECV_ERROR, "", errno=errno.ECONNRESET)).ours
    assert meaning_of_break(BrokenError(pycurl.E_OPERATION_TIMEDOUT, "")).kind is FailureKind.TIMEOUT
    assert not meaning_of_break(BrokenError(pycurl.E_GOT_NOTHING, "")).unreachable
    assert meaning_of_break(BrokenError(pycurl.E_COULDNT_CONNECT, "", connected=False)).unreachable


# --- no file descriptor left ------------------------------------------------------------------------------


@contextlib.contextmanager
def no_descriptors(but: int = 0) -> Iterator[None]:
    """Let this process open no more files or sockets, or only a few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free + but, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def server_elsewhere() -> Iterator[str]:
    """Run a server in a process with descriptors of its own; gives its URL."""
    code = (
        "import sys; from tests.scripted_server import ScriptedServer\n"
        "with ScriptedServer() as server: print(server.url, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="utf-8",
        cwd=Path(__file__).parents[1],
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.communicate()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_want_of_descriptors_is_named(host: str) -> None:
    """A process with too many open files is told so, not asked about the server, and can resume."""

    async def main(chat: ChatEndpoint) -> None:
        with no_descriptors():
            await chat.ask(QUESTION)

    with pytest.raises(EndpointError, match="ulimit -n") as caught:
        use(settings(f"http://{host}:9/v1"), main)
    assert "6 attempts" in str(caught.value)
    assert "resume" in str(caught.value)
    assert "running" not in str(caught.value)


def test_want_of_descriptors_is_named_when_some_are_free_again(tmp_path: Path) -> None:
    """A socket that could not be had is told as such, though others were closed before anybody looked."""
    clip = make_clip(tmp_path, 200_000)

    async def main(chat: ChatEndpoint) -> list[Reply | Failure | BaseException]:
        with no_descriptors(but=30):
            return await asyncio.gather(*[chat.ask(about(clip)) for _ in range(100)], return_exceptions=True)

    with server_elsewhere() as url:
        results = use(settings(url), main)
    assert [str(r) for r in results if not isinstance(r, Reply) and "ulimit -n" not in str(r)] == []


def test_want_of_descriptors_passes() -> None:
    """Descriptors that become free in time cost tries, and no sample."""

    async def main(chat: ChatEndpoint) -> Reply | Failure:
        with no_descriptors():
            asking = asyncio.create_task(chat.ask(QUESTION))
            await asyncio.sleep(0.1)
        return await asking

    with ScriptedServer() as server:
        reply = use(settings(server, tries=1000), main)
    assert isinstance(reply, Reply)
    assert reply.attempts > 1


def test_clip_that_cannot_be_opened_for_want_of_descriptors(tmp_path: Path) -> None:
    """A clip for whose file there is no descriptor is not to blame."""
    clip = make_clip(tmp_path, 1000)

    async def main(chat: ChatEndpoint) -> None:
        await chat.ask(QUESTION)  # leaves a connection, so that only the file wants a descriptor
        with no_descriptors():
            await chat.ask(about(clip))

    with ScriptedServer() as server, pytest.raises(EndpointError, match="ulimit -n"):
        use(settings(server, tries=1), main)


# --- the environment --------------------------------------------------------------------------------------


def test_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """HTTP_PROXY gets the request, with the whole URL and the proxy's credentials beside our key."""
    with ScriptedServer() as proxy:
        monkeypatch.setenv("http_proxy", f"http://me:pass@127.0.0.1:{proxy.port}")
        monkeypatch.delenv("no_proxy", raising=False)
        with pytest.raises(EndpointError):
            asked(settings("http://model.invalid:8000/v1"))
    seen = proxy.requests[0]
    assert seen.path == "http://model.invalid:8000/v1/chat/completions"
    assert seen.headers["proxy-authorization"] == "Basic bWU6cGFzcw=="
    assert seen.headers["authorization"] == f"Bearer {KEY}"


def test_no_proxy_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts in NO_PROXY, with or without their port, are reached directly."""
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    with ScriptedServer() as server:
        for exempt in ("127.0.0.1", f"127.0.0.1:{server.port}"):
            monkeypatch.setenv("no_proxy", exempt)
            replied(settings(server))


def test_absent_proxy_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy that is not there is named as such, without its credentials."""
    monkeypatch.setenv("http_proxy", f"http://me:pass@127.0.0.1:{free_port()}")
    monkeypatch.delenv("no_proxy", raising=False)
    with pytest.raises(EndpointError, match="HTTP_PROXY") as caught:
        asked(settings("http://model.invalid/v1"))
    assert "pass" not in str(caught.value)


def test_proxy_that_is_no_http_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A SOCKS proxy is a configuration error, not a silent direct connection."""
    monkeypatch.setenv("http_proxy", "socks5://127.0.0.1:1080")
    monkeypatch.delenv("no_proxy", raising=False)
    with pytest.raises(ConfigError, match="socks5"):
        ChatEndpoint(settings("http://model.invalid/v1"), print)


@pytest.mark.parametrize("key", [KEY, None])
def test_netrc_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str | None) -> None:
    """A login for the host in ~/.netrc neither replaces our key nor is sent without one."""
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password netrc-password\n", encoding="utf-8")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    with ScriptedServer() as server:
        replied(settings(server, api_key=key))
    assert server.requests[0].headers.get("authorization") == (f"Bearer {key}" if key else None)


@pytest.mark.parametrize(("status", "says"), [(407, "407"), (502, "502")])
def test_proxy_that_gives_no_tunnel(status: int, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy gets its own credentials with CONNECT, never the endpoint's key; its refusal is named."""
    heads = []

    def refuse(connection: socket.socket, _number: int) -> None:
        heads.append(read_head(connection)[0])
        connection.sendall(b"HTTP/1.1 %d No\r\nContent-Length: 0\r\n\r\n" % status)

    with raw_server(refuse) as url:
        monkeypatch.setenv("https_proxy", url.replace("http://", "http://me:pass@").removesuffix("/v1"))
        monkeypatch.delenv("no_proxy", raising=False)
        with pytest.raises(EndpointError, match="HTTP_PROXY") as caught:
            asked(settings("https://model.invalid/v1"))
    assert says in str(caught.value)
    assert heads[0].startswith(b"CONNECT model.invalid:443 ")
    assert b"Basic bWU6cGFzcw==" in heads[0]
    assert KEY.encode() not in heads[0]


def test_host_in_another_script_is_looked_up_as_such() -> None:
    """A host name beyond ASCII is asked for in the form that name servers know."""
    with pytest.raises(EndpointError, match=r"xn--bcher-kva\.invalid"):
        asked(settings("http://bücher.invalid/v1"))


def test_url_beyond_ascii_travels_as_utf8() -> None:
    """Path and query go percent-encoded; what is so already, and dots, are left alone."""
    with ScriptedServer() as server, contextlib.suppress(EndpointError):
        asked(settings(f"http://127.0.0.1:{server.port}/a%2Fb/../é/v1?v=ü", tries=1))
    assert server.requests[0].path == "/a%2Fb/../%C3%A9/v1/chat/completions?v=%C3%BC"


@pytest.mark.parametrize("host", ["straße.example", "a\u200db.example", "½.example", "ü" * 70, "ü..example"])
def test_host_with_a_namesake_is_refused(host: str) -> None:
    """Where two standards make two names of a host, the key might go to the wrong one."""
    with pytest.raises(ConfigError, match="xn--"):
        settings(f"http://{host}:8000/v1")


def test_file_of_certificates_may_have_any_name(tmp_path: Path) -> None:
    """A name beyond ASCII, or beyond UTF-8, is opened like any other."""
    with raw_server(lambda connection, _number: read_head(connection)) as url:
        for name in ("é.pem", "\udcff.pem"):
            file = tmp_path / name
            file.write_text("no certificate", encoding="utf-8")
            given = settings(url.replace("http:", "https:"), tries=1)
            with pytest.raises(EndpointError, match="no secure connection"):
                asked(dataclasses.replace(given, ca_file=file))


@pytest.mark.parametrize(
    ("userinfo", "sent"),
    [
        ("mé:pä", "mé:pä"),
        ("m%C3%A9:p%40%3A", "mé:p@:"),
        ("me:p@ss", "me:p@ss"),
        ("me:50%", "me:50%"),
        ("me:%FF", b"me:\xff".decode("utf-8", "surrogateescape")),
        ("me", "me:"),
    ],
)
def test_credentials_of_a_proxy(userinfo: str, sent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may be written as they are, or percent-encoded."""
    with ScriptedServer() as proxy:
        address = f"http://{userinfo}@127.0.0.1:{proxy.port}"
        monkeypatch.setenv("http_proxy", address)
        monkeypatch.delenv("no_proxy", raising=False)
        with contextlib.suppress(EndpointError):
            asked(settings("http://model.invalid/v1", tries=1))
    encoded = base64.b64encode(sent.encode("utf-8", "surrogateescape")).decode()
    assert proxy.requests[0].headers["proxy-authorization"] == f"Basic {encoded}"


@pytest.mark.parametrize(
    "proxy", ["http://[::1", "http://me:secret@host:x", "http://", "http://:3128", "://"]
)
def test_proxy_that_is_no_url(proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be a proxy's URL is a configuration error, and is not shown."""
    monkeypatch.setenv("http_proxy", proxy)
    monkeypatch.delenv("no_proxy", raising=False)
    with pytest.raises(ConfigError, match="the proxy that the environment names") as caught:
        ChatEndpoint(settings("http://model.invalid/v1"), print)
    assert "secret" not in str(caught.value)


def test_reply_that_grows_when_unpacked_is_bounded() -> None:
    """What counts is the size of what was unpacked: a bomb of a few kilobytes costs no memory."""
    packed = gzip.compress(b" " * (connections.MAX_REPLY_BYTES + 1))

    def bomb(connection: socket.socket, _number: int) -> None:
        read_request(connection)
        head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed)
        connection.sendall(head + packed)

    with raw_server(bomb) as url:
        failure = failed(settings(url, tries=2))
    assert (failure.kind, failure.attempts) == (FailureKind.BAD_REPLY, 1)
    assert "16 MB" in failure.message


def test_packed_reply_is_unpacked() -> None:
    """A gateway may pack what it passes on."""
    head, content = COMPLETION.split(b"\r\n\r\n")
    packed = gzip.compress(content)

    def answer(connection: socket.socket, _number: int) -> None:
        assert b"gzip" in read_head(connection)[0]
        length = b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed)
        connection.sendall(head.partition(b"\r\n")[0] + b"\r\n" + length + packed)

    with raw_server(answer) as url:
        assert replied(settings(url)).text == "fine"


_CONTENT = COMPLETION.partition(b"\r\n\r\n")[2]
_DEFLATED = zlib.compressobj(wbits=-zlib.MAX_WBITS)


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [
        pytest.param("x-gzip", gzip.compress(_CONTENT), id="old-name"),
        pytest.param("gzip, gzip", gzip.compress(gzip.compress(_CONTENT)), id="twice"),
        pytest.param("gzip", gzip.compress(_CONTENT[:20]) + gzip.compress(_CONTENT[20:]), id="in-two"),
        pytest.param("gzip", gzip.compress(_CONTENT) + b"left over", id="more"),
        pytest.param("gzip", gzip.compress(_CONTENT)[:-4], id="less"),
        pytest.param("gzip", _CONTENT, id="unpacked"),
        pytest.param("deflate", zlib.compress(_CONTENT), id="zlib"),
        pytest.param("deflate", _DEFLATED.compress(_CONTENT) + _DEFLATED.flush(), id="deflate"),
        pytest.param("utf-8", _CONTENT, id="charset"),
        pytest.param("br", _CONTENT, id="wrong"),
        pytest.param("", _CONTENT, id="empty"),
    ],
)
def test_no_reply_is_lost_over_its_encoding(encoding: str, packed: bytes) -> None:
    """A reply was paid for, however loosely a gateway packs or labels it."""
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: %s\r\nContent-Length: %d\r\n\r\n"
    reply = head % (encoding.encode(), len(packed)) + packed

    def answer(connection: socket.socket, _number: int) -> None:
        read_request(connection)
        connection.sendall(reply)

    with raw_server(answer) as url:
        found = replied(settings(url))
    assert (found.text, found.attempts) == ("fine", 1)


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [
        pytest.param("gzip", gzip.compress(b"") * 500_000, id="members"),
        pytest.param("gzip," * 5000 + "gzip", gzip.compress(b" " * 1000), id="layers"),
    ],
)
def test_unpacking_has_an_end(encoding: str, packed: bytes) -> None:
    """A reply in pieces or layers without number holds up no other request."""

    def answer(connection: socket.socket, _number: int) -> None:
        read_request(connection)
        head = b"HTTP/1.1 200 OK\r\nContent-Encoding: %s\r\nContent-Length: %d\r\n\r\n"
        connection.sendall(head % (encoding.encode(), len(packed)) + packed)

    with raw_server(answer) as url:
        assert failed(settings(url, tries=1)).kind is FailureKind.BAD_REPLY


def test_damaged_reply_is_asked_for_again() -> None:
    """A packed reply that is no longer what it was is a broken connection's."""
    packed = bytearray(gzip.compress(_CONTENT))
    packed[-8] ^= 255

    def answer(connection: socket.socket, number: int) -> None:
        read_request(connection)
        head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
        connection.sendall(COMPLETION if number else head % len(packed) + packed)

    with raw_server(answer) as url:
        assert replied(settings(url)).attempts == 2


def test_packed_reply_before_the_body_is_sent(tmp_path: Path) -> None:
    """A whole reply counts though the server reads no more of the body, also where it is packed."""
    packed = gzip.compress(_CONTENT)
    stopped = threading.Event()

    def answer_early(connection: socket.socket, _number: int) -> None:
        read_head(connection)
        head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed)
        connection.sendall(head + packed)
        stopped.wait()

    with raw_server(answer_early) as url:
        reply = asked(settings(url, attempt_timeout=3, tries=1), about(make_clip(tmp_path, LARGE)))
        stopped.set()
    assert isinstance(reply, Reply), reply


@pytest.mark.parametrize("status", [200, 401])
def test_reply_that_ends_within_its_head_is_none(status: int) -> None:
    """A server that died while it wrote its headers has neither replied nor refused."""

    def answer(connection: socket.socket, number: int) -> None:
        read_request(connection)
        connection.sendall(COMPLETION if number else b"HTTP/1.1 %d Some\r\nContent-Le" % status)

    with raw_server(answer) as url:
        assert replied(settings(url)).attempts == 2


def test_headers_of_the_user_go_before_ours() -> None:
    """Each name is sent once, also one without a value."""
    theirs = {"User-Agent": "mine", "content-type": "application/json; charset=utf-8", "X-Empty": ""}
    with ScriptedServer() as server:
        replied(settings(server, extra_headers=theirs))
    (seen,) = server.requests
    assert seen.headers["user-agent"] == "mine"
    assert seen.headers["content-type"] == theirs["content-type"]
    assert seen.headers["x-empty"] == ""


def test_import_is_left_to_who_needs_it() -> None:
    """`import otoscope` does not load libcurl."""
    code = "import sys, otoscope; assert 'pycurl' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


# --- nothing left behind ----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, LARGE])
def test_cancelled_request_leaves_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, size: int
) -> None:
    """A cancelled request leaves no task and no connection, whether it was sending or waiting."""
    messages = about(make_clip(tmp_path, size)) if size else QUESTION
    stopped = threading.Event()

    def stall(connection: socket.socket, _number: int) -> None:
        read_head(connection)
        stopped.wait()

    async def main(url: str, server: ScriptedServer | None) -> None:
        async with ChatEndpoint(settings(url), print) as chat:
            tasks = asyncio.all_tasks()
            asking = [asyncio.create_task(chat.ask(messages)) for _ in range(4)]
            await asyncio.sleep(0.3)
            for task in asking:
                task.cancel()
            results = await asyncio.gather(*asking, return_exceptions=True)
            assert all(isinstance(result, asyncio.CancelledError) for result in results)
            await asyncio.sleep(0.05)
            assert asyncio.all_tasks() == tasks
            if server is not None:
                assert server.open_connections == 0

    if size:
        with raw_server(stall) as url:
            asyncio.run(main(url, None))
            stopped.set()
    else:
        with ScriptedServer(sequence(Response(hang=True))) as server:
            asyncio.run(main(server.url, server))
    gc.collect()
    assert caplog.messages == []


def test_cancelled_expect_leaves_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A request cancelled while it waits for the server's consent leaves no task."""
    clip = make_clip(tmp_path, LARGE)

    async def main(chat: ChatEndpoint) -> None:
        tasks = asyncio.all_tasks()
        asking = asyncio.create_task(chat.ask(about(clip)))
        await asyncio.sleep(0.5)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await asyncio.sleep(0.05)
        assert asyncio.all_tasks() == tasks

    with ScriptedServer(sequence(Response(cut_upload=True), Response()), ignore_expect=True) as server:
        use(settings(server), main)
        assert "expect" in server.requests[-1].headers
        assert server.open_connections == 0
    gc.collect()
    assert caplog.messages == []


def test_early_reply_leaves_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A server that answers before it has read the body, and then reads no more, holds nothing open."""
    clip = make_clip(tmp_path, LARGE)
    stopped = threading.Event()

    def answer_early(connection: socket.socket, _number: int) -> None:
        read_head(connection)
        connection.sendall(COMPLETION)
        stopped.wait()

    with raw_server(answer_early) as url:
        assert replied(settings(url), about(clip)).text == "fine"
        stopped.set()
    gc.collect()
    assert caplog.messages == []


def test_many_at_once(tmp_path: Path) -> None:
    """256 requests with clips are in flight at the same time, and each gets its own reply."""
    clip = make_clip(tmp_path, 10_000)

    def echo(seen: Seen, _attempt: int) -> Response:
        return Response(text=json.dumps(seen.payload["messages"][-1]["content"]), delay=1.0)

    async def main(chat: ChatEndpoint) -> list[Reply | Failure]:
        return await asyncio.gather(*[chat.ask([*about(clip), *about_number(n)]) for n in range(256)])

    with ScriptedServer(echo) as server:
        replies = use(settings(server), main)
    assert [reply.text for reply in replies if isinstance(reply, Reply)] == [
        f'"question {number}"' for number in range(256)
    ]
    assert server.max_in_flight["scripted-model"] == 256
