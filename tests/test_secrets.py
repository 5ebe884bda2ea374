"""Nothing secret that a run was given is found in what it wrote or printed, whatever happened to it."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest

from otoscope.cli import main
from tests.scripted_server import Response, ScriptedServer, Seen, scripted_answers
from tests.support import command, environment, lines, otoscope, write_data

SECRETS = {
    "model key": "sk-proj-Q7vZ/m2Kx+9pLw4RtY==",
    "model key of the environment": "sk-env-h3Jd8Wq5Zb1Nc6Tf",
    "model key in a file": "sk-file-x9Gk2Vp7Ls4Mr8Bn",
    "judge key": "jk-flag-t5Yh1Xc8Qw3Ez6Pa",
    "judge key in JSON": "jk-json-u4Ri7Op2Da9Sf5Gj",
    "judge key in a file": "jk-file-l6Zx3Cv8Bn1Mq4We",
    "judge key of the environment": "jk-env-r2Ty5Ui8Op1As4Df",
    "password": "p@ss/w0rd+G8hJ1kL4",
    "judge password": "jp@ss/Z5xC9vB2nM7q",
    "query": "qk-W3eR6tY9uI2oP5",
    "judge query": "jqk-A1sD4fG7hJ3kL6",
    "header": "hd-Z8xC5vB2nM9aS6",
    "authorization": "au-K7jH4gF1dS8aP5",
    "judge header": "jh-M3nB6vC9xZ2lK5",
    "inner header": "ih-P4oI7uY1tR8eW5",
    "proxy password": "px-L9kJ2hG5fD8sA1",
}
_BLOB = re.compile(rb"[A-Za-z0-9+/]{200,}={0,2}")


def needles() -> Iterator[tuple[str, bytes]]:
    """Yield every secret in every form in which it may stand somewhere, with its name."""
    for name, secret in SECRETS.items():
        yield name, secret.encode()
        yield f"{name}, percent-encoded", quote(secret, safe="").encode()
        yield f"{name}, percent-encoded but for slashes", quote(secret).encode()
        yield f"{name}, in JSON", secret.replace("/", "\\/").encode()
        yield f"{name}, in JSON in JSON", secret.replace("/", "\\\\/").encode()
        for before in range(3):
            encoded = base64.b64encode(bytes(before) + secret.encode()).decode()
            piece = encoded[-(-before * 4 // 3) : (before + len(secret)) * 4 // 3]
            yield f"{name}, in Base64", piece.encode()
        # Half of it is as good as nothing hidden.
        yield f"{name}, a part", secret.encode()[: len(secret) // 2 + 3]


def readable(content: bytes) -> Iterator[bytes]:
    """Yield content as it is, and what is packed inside of it."""
    yield content
    for blob in _BLOB.findall(content):
        packed = base64.b64decode(blob + b"=" * (-len(blob) % 4))
        try:
            yield zlib.decompress(packed)
        except zlib.error:
            yield packed


def found_in(content: bytes) -> set[str]:
    """Return the names of the secrets that content holds."""
    return {name for text in readable(content) for name, needle in needles() if needle in text}


def written(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the files below a folder, and those in archives."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield str(path.relative_to(folder)), path.read_bytes()
            if zipfile.is_zipfile(path):
                with zipfile.ZipFile(path) as archive:
                    yield from ((f"{path.name}:{name}", archive.read(name)) for name in archive.namelist())


class Evaluated:
    """A folder in which commands run; what they write and print is kept to be looked through."""

    def __init__(self, folder: Path, data: Path) -> None:
        self.folder = folder
        self.data = data
        self.printed: dict[str, bytes] = {}
        self.key_file = folder.parent / "model.key"
        self.key_file.write_text(SECRETS["model key in a file"] + "\n", encoding="utf-8")
        self.judge_key_file = folder.parent / "judge.key"
        self.judge_key_file.write_text(f" {SECRETS['judge key in a file']}\r\n\n", encoding="utf-8")
        for file in (self.key_file, self.judge_key_file):
            file.chmod(0o600)

    def run(
        self, *arguments: str, page: bool = False, code: int = 0, environ: Mapping[str, str] | None = None
    ) -> str:
        """Run a command in the folder; return what it printed."""
        done = otoscope(*arguments, cwd=self.folder, environ=environ, page=page)
        assert done.returncode == code, done.stderr
        return self.keep(" ".join(arguments[:3]), done.stdout + done.stderr)

    def keep(self, name: str, printed: str) -> str:
        """Keep what was printed to be looked through."""
        self.printed[f"{len(self.printed)}: {name}"] = printed.encode("utf-8", "surrogatepass")
        return printed

    def call(self, *arguments: str) -> tuple[int, str]:
        """Run a command in this process, where no work of its own is to be done by another one."""
        with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO(), "utf-8")) as out:
            before = Path.cwd()
            os.chdir(self.folder)
            try:
                with contextlib.redirect_stderr(io.StringIO()) as err:
                    code = main(arguments)
            except SystemExit as end:
                code = int(str(end.code))
            finally:
                os.chdir(before)
            out.seek(0)
            return code, self.keep(" ".join(arguments[:3]), out.read() + err.getvalue())

    def eval(
        self,
        name: str,
        *arguments: str,
        page: bool = False,
        code: int = 0,
        environ: Mapping[str, str] | None = None,
    ) -> str:
        """Evaluate into the run ``name``."""
        return self.run(
            "eval", "--run-dir", name, "--model", "model", "--data", str(self.data), "--min-coverage", "0",
            "--judge-model", "judge", *arguments, page=page, code=code, environ=environ,
        )  # fmt: skip

    def check(self) -> None:
        """Assert that no secret was written or printed."""
        things = {**dict(written(self.folder)), **self.printed}
        assert len(things) > len(self.printed)
        held = {name: found for name, content in things.items() if (found := found_in(content))}
        assert not held


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a small data set."""
    return write_data(tmp_path_factory.mktemp("data"), each=2, tasks=["sound_QA", "music_QA"])


@pytest.fixture
def here(tmp_path: Path, data: Path) -> Evaluated:
    """Give a folder for runs."""
    folder = tmp_path / "here"
    folder.mkdir()
    return Evaluated(folder, data)


def keys_of(seen: Seen, *, in_base64: bool = True) -> list[str]:
    """Return every secret that a request brought: as it came, and encoded in several ways."""
    authorization = seen.headers.get("authorization", "")
    secret = authorization.partition(" ")[2]
    told = [authorization, secret, seen.headers.get("x-api-token", ""), urlsplit(seen.path).query]
    if authorization.startswith("Basic "):
        told.append(base64.b64decode(secret).decode())
    told += [quote(text, safe="") for text in told]
    told += [base64.b64encode(text.encode()).decode() for text in told if in_base64]
    return [*told, *(text.replace("/", "\\/") for text in told)]


def repeats_keys(seen: Seen, attempt: int) -> Response:
    """Answer well, and repeat every key in every place of the reply."""
    told = " ".join(keys_of(seen, in_base64=False))
    response = scripted_answers()(seen, attempt)
    text = response.text if seen.kind == "judge" else f"{response.text} You sent {told}"
    secret = seen.headers.get("authorization", "").partition(" ")[2]
    return Response(
        text=text,
        reasoning=f"I was sent {told}",
        model=f"{seen.model}-{secret}",
        request_id=f"for-{secret}",
        usage={"prompt_tokens": 7, "completion_tokens": 5, "billed_to": [{"key": told}]},
    )


def repeats_in_errors(seen: Seen, attempt: int) -> Response:
    """Answer three samples, and give the others errors of all kinds that repeat keys and headers."""
    told = " ".join([*keys_of(seen), *(f"{name}: {value}" for name, value in seen.headers.items())])
    kind = int(seen.digest[:2], 16) % 6
    if seen.kind == "judge" and kind < 3:
        return Response(text=f"No scores, but your key: {told}")
    match kind:
        case 0:
            return Response(status=400, error={"message": told, "code": "content_filter"})
        case 1:
            return Response(body=f"<html>{told}".encode())
        case 2:
            return Response(status=500, body=json.dumps({"detail": [{"loc": [told], "msg": told}]}).encode())
        case _:
            return repeats_keys(seen, attempt)


def with_credentials(url: str, password: str, query: str) -> str:
    """Return a URL with a user, a password, and a key in its query."""
    credentials = quote(SECRETS[password], safe="")
    return url.replace("://", f"://user:{credentials}@") + f"?api-version=1&code={SECRETS[query]}"


def all_by_flags(url: str) -> list[str]:
    """Return flags that hold a key in every place that a flag has for one."""
    headers = {"X-Api-Token": SECRETS["header"], "X-Authorization": f"Bearer {SECRETS['authorization']}"}
    return [
        "--api-url", f"{url}?key={SECRETS['query']}", "--api-key", SECRETS["model key"],
        "--extra-headers", json.dumps(headers),
        "--generation-config", json.dumps(
            {"retry_interval": 0.01, "retries": 1, "extra_headers": {"X-Secret": SECRETS["inner header"]}}
        ),
        "--judge-model-args", json.dumps(
            {
                "api_url": f"{url}?sig={SECRETS['judge query']}", "api_key": SECRETS["judge key in JSON"],
                "extra_headers": {"X-Judge-Token": SECRETS["judge header"]},
                "generation_config": {"retry_interval": 0.01, "retries": 1},
            }
        ),
    ]  # fmt: skip


def test_keys_given_by_flags(here: Evaluated) -> None:
    """A server that repeats them in good replies gets them into no file and no report; nor does the page."""
    with ScriptedServer(repeats_keys) as server:
        said = here.eval("run", *all_by_flags(server.url), page=True)
        here.eval("planned", *all_by_flags(server.url), "--dry-run")
        sent = server.requests[0]
    assert sent.headers["authorization"] == f"Bearer {SECRETS['model key']}"
    assert SECRETS["query"] in sent.path
    for flag in ("--api-key", "--api-url", "--extra-headers", "--generation-config", "--judge-model-args"):
        assert flag in said.partition("warning: others on this machine can see a key")[2]
    assert (here.folder / "run" / "report.html").exists()
    here.check()


def test_keys_in_urls_files_and_the_environment(here: Evaluated) -> None:
    """However a key comes, it is in nothing that a run, another judge, an export or a report writes."""
    with ScriptedServer(repeats_keys) as server:
        files = ["--api-key-file", str(here.key_file), "--judge-api-key-file", str(here.judge_key_file)]
        here.eval("by-files", "--api-url", server.url, "--judge-api-url", server.url, *files)
        used = {seen.headers["authorization"] for seen in server.requests}
        assert used == {f"Bearer {SECRETS[f'{role} key in a file']}" for role in ("model", "judge")}
        variables = {
            "OTOSCOPE_API_URL": with_credentials(server.url, "password", "query"),
            "OTOSCOPE_API_KEY": SECRETS["model key of the environment"],
            "OTOSCOPE_JUDGE_API_URL": server.url,
            "OTOSCOPE_JUDGE_API_KEY": SECRETS["judge key of the environment"],
        }
        here.eval("by-environment", environ=variables)
        judge_url = with_credentials(server.url, "judge password", "judge query")
        here.run(
            "judge", "by-files", "by-environment", "--judge-model", "another", "--judge-api-url", judge_url
        )
        assert "Basic " in server.requests[-1].headers["authorization"]
    for form, more in {
        "terminal": [],
        "html": ["--output", "page.html"],
        "md": ["--output", "tables.md", "--appendix"],
        "latex": ["--output", "tables.tex", "--appendix"],
        "csv": ["--output", "csv"],
        "json": ["--output", "summaries.json"],
    }.items():
        assert here.call("report", "by-files", "by-environment", "--format", form, *more)[0] == 0
    assert here.call("compare", "by-files", "by-environment")[0] == 0
    for form in ("terminal", "csv", "md", "json"):
        assert here.call("leaderboard", ".", "--format", form)[0] == 0
    assert here.call("export", "by-files", "--to", "official")[0] == 0
    assert here.call("export", "by-files", "--bundle", "bundle.zip")[0] == 0
    here.check()


def test_keys_that_refusing_servers_repeat(here: Evaluated) -> None:
    """Neither a sample's failure nor what stops a run has a key in it, and the command to resume has none."""
    with ScriptedServer(repeats_in_errors) as server:
        here.eval("failing", *all_by_flags(server.url))
        assert any(line.get("failure") for line in lines(here.folder / "failing" / "answers.jsonl"))
    for status in (401, 404, 307):

        def refuse(seen: Seen, _attempt: int, status: int = status) -> Response:
            told = " ".join([*keys_of(seen), *(f"{name}: {value}" for name, value in seen.headers.items())])
            headers = {"Location": f"http://127.0.0.1:9/?{quote(told)}"}
            return Response(status=status, error={"message": told}, headers=headers)

        known = [SECRETS[name] for name in ("model key", "query", "header", "authorization", "inner header")]
        with ScriptedServer(refuse, models=known) as server:
            assert str(status) in here.eval(f"by-flags-{status}", *all_by_flags(server.url), code=4)
            if status == 401:
                url = with_credentials(server.url, "password", "query")
                judge_url = with_credentials(server.url, "judge password", "judge query")
                here.eval("by-url", "--api-url", url, "--judge-api-url", judge_url, code=4)
    here.check()


def test_keys_in_mistaken_commands(here: Evaluated) -> None:
    """A flag that is mistyped, contradicts another, or is of no right form shows no key in it."""
    key, url = SECRETS["model key"], with_credentials("http://127.0.0.1:9/v1", "password", "query")
    there = json.dumps(
        {"api_url": with_credentials("http://127.0.0.1:9/v2", "judge password", "judge query")}
    )
    for arguments in (
        ["--api_key", key],
        [f"--apikey={key}"],
        ["--extra-headers", f"X-Api-Key: {key}"],
        ["--extra-headers", f'{{"X-Api-Key": "{key}"'],
        ["--judge-model-args", f"x,{key}"],
        ["--judge-model-args", there, "--judge-api-url", url],
        ["--api-key", key, "--api-key-file", str(here.key_file)],
        ["--api-url", url.replace("http", "htp")],
        ["--api-url", url, "--api-key", f"{key}\n{key}"],
        ["--judge-model-args", json.dumps({"api_keys": key})],
        ["--extra-body", json.dumps({"api_key": key})],
    ):
        flags = ["--model", "model", "--judge-model", "judge", "--no-html", "--data", str(here.data)]
        code, said = here.call("eval", *flags, *arguments)
        assert code == 2
        assert "error" in said
    (here.folder / "anything").write_text("kept so that something is looked through", encoding="utf-8")
    here.check()


_BREAKS = """
from otoscope.chat_api.connections import Connections


async def perform(self, url, *_given, **_options):
    try:
        raise ValueError(f"cannot send to {url} with {self._headers} through {self._proxy}")
    except ValueError as error:
        raise RuntimeError("a bug") from error


Connections._perform = perform
"""


def test_keys_in_a_traceback(here: Evaluated, tmp_path: Path) -> None:
    """A bug is told with its traceback, and what a library said of the request before has no key in it."""
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "sitecustomize.py").write_text(_BREAKS, encoding="utf-8")
    path = {"PYTHONPATH": os.pathsep.join([str(broken), *sys.path])}
    proxies = {"http_proxy": f"http://me:{SECRETS['proxy password']}@127.0.0.1:9", "no_proxy": ""}
    said = here.eval("by-flags", *all_by_flags("http://model.test/v1"), code=1, environ={**path, **proxies})
    assert "Traceback (most recent call last)" in said
    assert "cannot send to" in said
    assert "RuntimeError: a bug" in said
    url = {"OTOSCOPE_API_URL": with_credentials("http://model.test/v1", "password", "query")}
    for name, *flags in (
        ("by-files", "--api-key-file", str(here.key_file), "--judge-api-key-file", str(here.judge_key_file)),
        ("by-environment", "--judge-api-key", "EMPTY"),
    ):
        assert "cannot send to" in here.eval(name, *flags, code=1, environ={**path, **url})
    here.check()


def test_keys_that_a_proxy_repeats(here: Evaluated) -> None:
    """A proxy with a password gets it; when it refuses the request, the message has no password in it."""

    def refuse(seen: Seen, _attempt: int) -> Response:
        return Response(status=407, error={"message": seen.headers.get("proxy-authorization", "nothing")})

    with ScriptedServer(refuse) as server:
        port = urlsplit(server.url).port
        proxy = f"http://me:{SECRETS['proxy password']}@127.0.0.1:{port}"
        for scheme in ("http", "https"):
            here.eval(f"by-{scheme}", *all_by_flags(f"{scheme}://model.test/v1"), code=4,
                      environ={f"{scheme}_proxy": proxy, "no_proxy": ""})  # fmt: skip
        assert server.requests[0].headers["proxy-authorization"].startswith("Basic ")
    here.check()


@pytest.mark.parametrize("hub", ["modelscope", "huggingface"])
def test_credentials_of_a_mirror(here: Evaluated, hub: str) -> None:
    """A mirror of a hub, named with a password, that is out of reach is told of without it."""
    address = f"user:{quote(SECRETS['password'], safe='')}@127.0.0.1:9"
    variables = {"HF_ENDPOINT": f"http://{address}", "MODELSCOPE_ENDPOINT": f"http://{address}"}
    places = {"HF_HOME": str(here.folder), "MODELSCOPE_CACHE": str(here.folder)}
    more = ["--hub", hub, "--tasks", "sound_QA", "--limit", "1"]
    said = here.run("data", "download", *more, code=3, environ={**variables, **places})
    assert "http://127.0.0.1:9: " in said
    (here.folder / "anything").write_text("kept so that something is looked through", encoding="utf-8")
    here.check()


@pytest.mark.skipif(os.name != "posix", reason="a terminal is a POSIX device")
def test_keys_on_a_live_display(here: Evaluated) -> None:
    """What is drawn on a terminal, and the notices above it, hold no key."""
    with ScriptedServer(repeats_in_errors) as server:
        arguments = ["eval", "--run-dir", "live", "--model", "model", "--data", str(here.data),
                     "--judge-model", "judge", "--min-coverage", "0"]  # fmt: skip
        screen, theirs = os.openpty()
        process = subprocess.Popen(
            command(*arguments, *all_by_flags(server.url)), cwd=here.folder, stdout=subprocess.DEVNULL,
            stderr=theirs, env=environment(TERM="xterm"),
        )  # fmt: skip
        os.close(theirs)
        drawn = b""
        while piece := _read(screen):
            drawn += piece
        os.close(screen)
        assert process.wait(30) == 0, drawn
    assert b"\x1b[" in drawn
    assert b"first " in drawn
    here.printed["live"] = drawn
    here.check()


def _read(screen: int) -> bytes:
    try:
        return os.read(screen, 65536)
    except OSError:  # EIO: the other end is closed
        return b""


def test_what_looks_for_secrets_finds_them(tmp_path: Path, data: Path) -> None:
    """Each form of a secret would be found, in a file, in an archive, and compressed in a page."""
    folder = tmp_path / "here"
    folder.mkdir()
    secret = SECRETS["model key"].encode()
    page = base64.b64encode(zlib.compress(secret + os.urandom(400)))
    samples = {"plain": secret, "page": b'"' + page + b'"', "encoded": base64.b64encode(b"x" + secret)}
    for name, content in samples.items():
        (folder / name).write_bytes(content)
    with zipfile.ZipFile(folder / "archive", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("inner", secret)
    found = {name for name, content in written(folder) if "model key" in " ".join(found_in(content))}
    assert found == {*samples, "archive:inner"}
    with pytest.raises(AssertionError):
        Evaluated(folder, data).check()
