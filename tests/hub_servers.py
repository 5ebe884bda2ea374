"""Two hubs on loopback: as much of the protocols of ModelScope and Hugging Face as their own libraries use.

One server speaks both; of Hugging Face's models, too. It lists, sends whole files and ranges, redirects large
files elsewhere as the real hubs do, and misbehaves as it is told.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
_BLOCK = 1 << 16
_HF_PAGE = 1000


@dataclass(frozen=True)
class Asked:
    """One request."""

    method: str
    path: str
    """The file, or the folder that was listed, in the data set; else the URL's path."""
    what: str
    """``file``, ``listing`` or ``about``."""
    range: str | None = None
    token: str | None = None


@dataclass
class HubServer:
    """A hub with one data set or model, and what it was asked. What it does can be changed at any time."""

    files: dict[str, bytes]
    """By path in the data set."""
    dataset: str
    """Its id, or that of the model."""
    kind: str = "datasets"
    """Or ``models``."""
    sizes: dict[str, int] = field(default_factory=dict)
    """What the listing says instead of the truth."""
    gone: set[str] = field(default_factory=set)
    """Listed, and 404 when asked for."""
    cuts: dict[str, list[int]] = field(default_factory=dict)
    """After how many bytes of a file's body the connection is closed, for its next requests."""
    private: str | None = None
    """The token without which nothing is shown."""
    revision: str = COMMIT
    asked: list[Asked] = field(default_factory=list)
    hold: threading.Event | None = None
    """While it is set to nothing and not ``None``, files stop after their first block."""
    held: threading.Event = field(default_factory=threading.Event)
    """Set once a file has stopped."""
    url: str = ""
    _server: ThreadingHTTPServer | None = None
    _sockets: set[socket.socket] = field(default_factory=set)

    def environment(self, cache: str) -> dict[str, str]:
        """Return the variables that lead both libraries here, and their caches below a folder."""
        return {
            "MODELSCOPE_ENDPOINT": self.url,
            "MODELSCOPE_CACHE": f"{cache}/modelscope",
            "MODELSCOPE_HOME": f"{cache}/modelscope-home",
            "HF_ENDPOINT": self.url,
            "HF_HOME": f"{cache}/huggingface",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "NO_PROXY": "*",
            "no_proxy": "*",
        }

    def asked_for(self, what: str = "file", method: str = "GET") -> list[str]:
        """Return the paths of the requests of one kind, in their order."""
        return [one.path for one in self.asked if one.what == what and one.method == method]

    def die(self) -> None:
        """Close the port and every connection; nobody listens there any more."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()
            for connection in list(self._sockets):
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def start(self) -> None:
        """Listen, at the same port as before where there was one."""
        port = urlsplit(self.url).port or 0
        hub = self

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 64

        class Handler(_Handler):
            pass

        Handler.hub = hub
        self._server = Server(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()

    def listed(self, folder: str) -> list[tuple[str, int]]:
        """Return path and size of the files below a folder, as the listing has them."""
        below = f"{folder.strip('/')}/" if folder.strip("/") else ""
        names = sorted({*self.files, *self.gone})
        return [
            (name, self.sizes.get(name, len(self.files.get(name, b""))))
            for name in names
            if name.startswith(below)
        ]


@contextlib.contextmanager
def serving(hub: HubServer) -> Iterator[HubServer]:
    """Run a hub."""
    hub.start()
    try:
        yield hub
    finally:
        if hub.hold is not None:
            hub.hold.set()
        hub.die()


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer

    def setup(self) -> None:
        super().setup()
        self.hub._sockets.add(self.connection)  # noqa: SLF001 (written in this module)

    def finish(self) -> None:
        self.hub._sockets.discard(self.connection)  # noqa: SLF001 (written in this module)
        with contextlib.suppress(OSError):
            super().finish()

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, *args: Any) -> None:
        """Keep the output clean."""

    def _answer(self) -> None:
        with contextlib.suppress(OSError):
            url = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(url.query).items()}
            self._route(unquote(url.path), query)

    def _route(self, path: str, query: Mapping[str, str]) -> None:
        hub = self.hub
        if path.startswith("/storage/"):
            self._file(path.removeprefix("/storage/"), direct=True)
            return
        if hub.private is not None and self._token() != hub.private and path != "/":
            self._json({"Code": 10010205001, "Message": "private", "error": "private"}, status=401)
            return
        name = re.escape(hub.dataset)
        if re.fullmatch(rf"/api/v1/datasets/({name}|7)/repo/tree", path):
            self._modelscope_listing(query)
        elif path == f"/api/v1/datasets/{hub.dataset}/repo":
            self._file(query["FilePath"])
        elif path == f"/api/v1/datasets/{hub.dataset}":
            self._note("", "about")
            self._json({"Code": 200, "Success": True, "Data": {"Id": 7, "Type": 1, "Name": hub.dataset}})
        elif found := re.fullmatch(rf"/api/{hub.kind}/{name}(?:/revision/([^/]+))?", path):
            self._note("", "about")
            if found[1] not in (None, "main", hub.revision):
                self._json({"error": "no such revision"}, status=404, missing="Revision")
                return
            self._json({"id": hub.dataset, "sha": hub.revision, "siblings": [], "_id": "1", "tags": []})
        elif found := re.fullmatch(rf"/api/{hub.kind}/{name}/tree/[^/]+(?:/(.*))?", path):
            self._huggingface_listing(found[1] or "", query)
        elif found := re.fullmatch(
            rf"{'/datasets' if hub.kind == 'datasets' else ''}/{name}/resolve/[^/]+/(.*)", path
        ):
            self._file(found[1])
        else:
            self._note(path, "about")
            self._json(
                {"Code": 404, "Message": "not found", "error": "not found"}, status=404, missing="Repo"
            )

    def _modelscope_listing(self, query: Mapping[str, str]) -> None:
        folder = query.get("Root", "/")
        self._note(folder.strip("/"), "listing")
        number, size = int(query.get("PageNumber", 1)), int(query.get("PageSize", 100))
        entries = [
            {
                "Path": path,
                "Name": path.rpartition("/")[2],
                "Type": "blob",
                "Size": count,
                "Sha256": hashlib.sha256(self.hub.files.get(path, b"")).hexdigest(),
            }
            for path, count in self.hub.listed(folder)
        ]
        self._json({"Code": 200, "Success": True, "Data": {"Files": entries[(number - 1) * size :][:size]}})

    def _huggingface_listing(self, folder: str, query: Mapping[str, str]) -> None:
        self._note(folder, "listing")
        listed = self.hub.listed(folder)
        if not listed:
            self._json({"error": "no such folder"}, status=404, missing="Entry")
            return
        first = int(query.get("cursor", 0))
        entries = [self._huggingface_entry(path, size) for path, size in listed[first:][:_HF_PAGE]]
        headers = {}
        if first + _HF_PAGE < len(listed):
            after = f"{self.hub.url}{urlsplit(self.path).path}?recursive=true&cursor={first + _HF_PAGE}"
            headers["Link"] = f'<{after}>; rel="next"'
        self._json(entries, headers=headers)

    def _huggingface_entry(self, path: str, size: int) -> dict[str, Any]:
        entry: dict[str, Any] = {"type": "file", "path": path, "size": size, "oid": _blob(path)}
        if _is_large(path):
            oid = self._etag(path)
            entry["lfs"] = {"oid": oid, "size": size, "pointerSize": 130}
        return entry

    def _file(self, path: str, *, direct: bool = False) -> None:
        """Send a file as either hub does: large ones are redirected to another address."""
        body = self.hub.files.get(path)
        asked = self.headers.get("Range")
        if not (_is_large(path) and not direct):
            self._note(path, "file", asked)
        if body is None or path in self.hub.gone:
            if _is_large(path) and not direct:
                self._note(path, "file", asked)
            self._json({"Code": 404, "Message": "no such file"}, status=404, missing="Entry")
            return
        if _is_large(path) and not direct:
            self.send_response(302)
            self.send_header("Location", f"{self.hub.url}/storage/{quote(path)}")
            self.send_header("X-Linked-Size", str(self.hub.sizes.get(path, len(body))))
            self.send_header("X-Linked-Etag", f'"{self._etag(path)}"')
            self.send_header("X-Repo-Commit", self.hub.revision)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self._send(path, body, asked)

    def _send(self, path: str, body: bytes, asked: str | None) -> None:
        start = int(asked.removeprefix("bytes=").split("-")[0]) if asked else 0
        if start and start >= len(body):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(body)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        self.send_header("Content-Length", str(len(body) - start))
        self.send_header("ETag", f'"{self._etag(path)}"')
        self.send_header("X-Repo-Commit", self.hub.revision)
        self.send_header("Accept-Ranges", "bytes")
        self.end_headers()
        if self.command == "HEAD":
            return
        cuts = self.hub.cuts.get(path)
        rest = body[start:][: cuts.pop(0)] if cuts else body[start:]
        for offset in range(0, len(rest), _BLOCK):
            self.wfile.write(rest[offset : offset + _BLOCK])
            self.wfile.flush()
            if self.hub.hold is not None and _is_large(path) and not self.hub.hold.is_set():
                self.hub.held.set()
                self.hub.hold.wait(60)

    def _json(
        self,
        value: Any,
        *,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        missing: str | None = None,
    ) -> None:
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        if missing is not None:
            self.send_header("X-Error-Code", f"{missing}NotFound")
            self.send_header("X-Repo-Commit", self.hub.revision)
        for name, text in (headers or {}).items():
            self.send_header(name, text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _note(self, path: str, what: str, asked: str | None = None) -> None:
        self.hub.asked.append(Asked(self.command, path, what, asked, self._token()))

    def _token(self) -> str | None:
        return (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None

    def _etag(self, path: str) -> str:
        body = self.hub.files.get(path, b"")
        return hashlib.sha256(body).hexdigest() if _is_large(path) else _blob(path)


def _is_large(path: str) -> bool:
    """Whether the hubs keep a file apart from the repository."""
    return not path.endswith((".json", ".md"))


def _blob(path: str) -> str:
    return hashlib.sha1(path.encode("utf-8", "surrogatepass")).hexdigest()  # noqa: S324 (git's own)
