"""What would work on one system only: encodings, ends of lines, calls that Windows lacks."""

from __future__ import annotations

import ast
import functools
import io
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from otoscope import descriptors, load_run, run_task
from otoscope.records import Answer
from otoscope.shell import shell_command
from tests.scripted_server import Response, ScriptedServer, Seen, scripted_answers
from tests.support import REPOSITORY, config, environment, write_data

SHIPPED = sorted((REPOSITORY / "src").rglob("*.py"))
MEASURING = [
    *sorted((REPOSITORY / "benchmarks").rglob("*.py")),
    *sorted((REPOSITORY / "scripts").rglob("*.py")),
]
TESTING = sorted((REPOSITORY / "tests").rglob("*.py"))

PATHS = re.compile(r"(?:path|file|folder|log)$|^Path\(| / ", re.IGNORECASE)
"""What ``open`` without arguments belongs to, where it opens a file and not a connection or a clip."""
MODE = re.compile(r"[rwxabt+]{1,4}")
MODULES = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"}
CALLS = {
    "os": set(
        "chown chroot fchmod fchown fdatasync fork forkpty getegid geteuid getgid getgroups getloadavg "
        "getpgid getpgrp getpriority getresuid getsid getuid kill killpg lchown lockf major minor mkfifo "
        "mknod nice openpty pathconf posix_fadvise posix_fallocate posix_spawn pread preadv pwrite "
        "pwritev readv sched_getaffinity sched_setaffinity sendfile setgid setpgid setpriority setsid "
        "setuid statvfs sync sysconf uname wait wait3 wait4 waitid writev O_CLOEXEC O_DIRECTORY O_DSYNC "
        "O_NOCTTY O_NOFOLLOW O_NONBLOCK O_SYNC P_PID WEXITED WNOHANG WNOWAIT".split()
    ),
    "signal": set(
        "SIGALRM SIGCHLD SIGCONT SIGHUP SIGKILL SIGPIPE SIGQUIT SIGSTOP SIGTSTP SIGUSR1 SIGUSR2 SIGWINCH "
        "SIG_BLOCK alarm pause pthread_kill pthread_sigmask setitimer sigpending sigwait".split()
    ),
}
"""What Windows lacks; and ``os.kill``, which there ends the process that it is only to ask about."""
ASKED_BEFORE = re.compile(r"sys\.platform|os\.name|hasattr\(")

ALLOWED = {
    ("lock.py", "os.kill"): "asked only of a process that /proc has named",
    ("lock.py", "/proc"): "an OSError stands for a system that does not tell",
    ("embedded.py", "/proc"): "an OSError stands for a system that does not tell",
    ("from_huggingface.py", "/proc"): "without it partial files stay, and are gone on with",
}
"""Places in the package, each with the other way that is beside it."""


@functools.cache
def parsed(path: Path) -> ast.Module:
    """Return a module as a tree whose nodes know their parents."""
    return with_parents(ast.parse(path.read_bytes(), str(path)))


def with_parents(tree: ast.Module) -> ast.Module:
    """Return a tree after its nodes were told their parents."""
    for node in ast.walk(tree):
        for child in ast.iter_child_nodes(node):
            child.parent = node  # type: ignore[attr-defined]
    return tree


def place(path: Path, node: ast.AST) -> str:
    """Return where a node stands, for an error."""
    return f"{path.relative_to(REPOSITORY)}:{getattr(node, 'lineno', 0)}: {ast.unparse(node)[:90]}"


def calls(tree: ast.Module) -> Iterator[tuple[ast.Call, str, str, dict[str, ast.expr]]]:
    """Yield calls with the name of what is called, what it belongs to, and the arguments given by name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            named = {argument.arg: argument.value for argument in node.keywords if argument.arg}
            if isinstance(node.func, ast.Attribute):
                yield node, node.func.attr, ast.unparse(node.func.value), named
            elif isinstance(node.func, ast.Name):
                yield node, node.func.id, "", named


def text_mode(call: ast.Call, name: str, owner: str, named: dict[str, ast.expr]) -> str | None:
    """Return the mode of a call that opens a file as text; ``None`` for any other call."""
    if name in ("read_text", "write_text"):
        return "r" if name == "read_text" else "w"
    if name not in ("open", "fdopen", "NamedTemporaryFile", "TemporaryFile", "SpooledTemporaryFile"):
        return None
    if name == "open" and owner in ("os", "wave", "tarfile", "zipfile", "webbrowser"):
        return None
    at = 1 if (name == "open" and owner in ("", "io", "gzip")) or name == "fdopen" else 0
    given = named.get("mode") or (call.args[at] if len(call.args) > at else None)
    if given is None:
        is_file = not owner or (not call.args and PATHS.search(owner))
        return None if "Temporary" in name or not is_file else "r"
    mode = given.value if isinstance(given, ast.Constant) else None
    if not isinstance(mode, str) or not MODE.fullmatch(mode) or "b" in mode:
        return None
    return mode


def encodes(call: ast.Call, name: str, named: dict[str, ast.expr]) -> bool:
    """Whether a call that opens text names its encoding."""
    return (
        "encoding" in named
        or (name == "read_text" and bool(call.args))
        or (name == "fdopen" and len(call.args) > 3)
    )


def ends_lines(named: dict[str, ast.expr]) -> bool:
    """Whether a call that writes text says how lines end: "" for csv, which does it, None for a terminal."""
    given = named.get("newline")
    return isinstance(given, ast.Constant) and given.value in ("\n", "", None)


def test_text_names_its_encoding() -> None:
    """Text that is read, written, or exchanged with a process is not in the encoding of the user's locale."""
    found = [
        place(path, call)
        for path in [*SHIPPED, *MEASURING, *TESTING]
        for call, name, owner, named in calls(parsed(path))
        if (text_mode(call, name, owner, named) is not None and not encodes(call, name, named))
        or (name in ("run", "Popen", "check_output") and "text" in named and "encoding" not in named)
    ]
    assert not found


def test_written_text_ends_its_lines_in_one_way() -> None:
    r"""A file that is written as text has ``\n`` on every system; the bytes are what digests are of."""
    found = [
        place(path, call)
        for path in [*SHIPPED, *MEASURING]
        for call, name, owner, named in calls(parsed(path))
        if set(text_mode(call, name, owner, named) or "") & set("wax+") and not ends_lines(named)
    ]
    assert not found


def posix_only(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """Yield what works on POSIX or Linux only, and its name, where no condition asks for the system."""
    for node in ast.walk(tree):
        name = ""
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            name = f"{node.value.id}.{node.attr}" if node.attr in CALLS.get(node.value.id, ()) else ""
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [alias.name for alias in node.names]
            module = node.module if isinstance(node, ast.ImportFrom) else None
            name = next((one for one in [module, *names] if one in MODULES), "") or ""
        elif isinstance(node, (ast.Constant, ast.JoinedStr)):
            name = "/proc" if re.match(r"f?['\"]/proc/", ast.unparse(node)) else ""
        if name and not _asked_before(node):
            yield node, name


def _asked_before(node: ast.AST) -> bool:
    while (parent := getattr(node, "parent", None)) is not None:
        if isinstance(parent, (ast.If, ast.IfExp)) and ASKED_BEFORE.search(ast.unparse(parent.test)):
            return True
        node = parent
    return False


def test_what_windows_lacks_has_another_way_beside_it() -> None:
    """The package calls nothing that only POSIX has, unless it asked before or the list says why."""
    found = [
        place(path, node)
        for path in SHIPPED
        for node, name in posix_only(parsed(path))
        if (path.name, name) not in ALLOWED
    ]
    assert not found


def test_the_list_of_allowed_places_is_no_longer_than_needed() -> None:
    """What is allowed is still there."""
    there = {(path.name, name) for path in SHIPPED for _node, name in posix_only(parsed(path))}
    assert not ALLOWED.keys() - there


def test_a_file_opened_by_descriptor_is_opened_as_bytes() -> None:
    """``os.open`` names ``BINARY``: on Windows the ends of lines would change otherwise."""
    found = [
        place(path, call)
        for path in SHIPPED
        for call, name, owner, _named in calls(parsed(path))
        if (owner, name) == ("os", "open")
        and "BINARY" not in ast.unparse(call)
        and "devnull" not in ast.unparse(call)
    ]
    assert not found


@pytest.mark.parametrize(
    "code",
    ["path.open()", "open('x')", "p.open('w')", "p.read_text()", "os.fdopen(1, 'w')", "p.open(mode='a')"],
)
def test_text_without_an_encoding_is_found(code: str) -> None:
    """The search itself finds each way to open a file as text."""
    ((call, name, owner, named),) = calls(ast.parse(code))
    assert text_mode(call, name, owner, named) is not None
    assert not encodes(call, name, named)


@pytest.mark.parametrize(
    "code", ["import fcntl", "os.pread(1, 1, 1)", "Path('/proc/self')", "open(f'/proc/{pid}/stat')"]
)
def test_what_windows_lacks_is_found(code: str) -> None:
    """The search itself finds imports, calls and paths, and lets them be where the system is asked for."""
    tree = with_parents(ast.parse(f"{code}\nif sys.platform == 'linux':\n    {code}"))
    assert {getattr(node, "lineno", 0) for node, _name in posix_only(tree)} == {1}


# --- the other ways, where they can be taken here -----------------------------------------------------------


@pytest.mark.parametrize("with_pread", [True, False])
def test_reading_at_a_place(with_pread: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways give the bytes of the place, fewer only at the end."""
    if not with_pread:
        monkeypatch.delattr(os, "pread", raising=False)
    (tmp_path / "file").write_bytes(bytes(range(100)))
    descriptor = os.open(tmp_path / "file", os.O_RDONLY | descriptors.BINARY)
    try:
        assert descriptors.read_at(descriptor, 10, 50) == bytes(range(50, 60))
        assert descriptors.read_at(descriptor, 10, 95) == bytes(range(95, 100))
        assert descriptors.read_at(descriptor, 10, 200) == b""
    finally:
        os.close(descriptor)


def test_a_run_where_the_system_cannot_read_at_a_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An evaluation, its resume and what is read back of it are the same without that call."""
    data = write_data(tmp_path / "data")
    answers, sent = {}, {}
    for way in ("with", "without"):
        if way == "without":
            monkeypatch.delattr(os, "pread", raising=False)
        with ScriptedServer() as server:
            # The first session asks for answers alone, so that the second reads them from the disk.
            policy = "rate=16000,mono"
            run_task(config(server.url, data, tmp_path / way, no_judge=True, audio_policy=policy))
            run_task(config(server.url, data, tmp_path / way, audio_policy=policy))
            sent[way] = {seen.audio_sha256 for seen in server.requests if seen.kind == "model"}
        answers[way] = [
            (outcome.sample.key, outcome.answer.text, len(outcome.verdicts))
            for outcome in load_run(tmp_path / way).outcomes()
            if isinstance(outcome.answer, Answer)
        ]
    assert sent["with"] == sent["without"]
    assert answers["with"] == answers["without"]
    assert len(answers["with"]) == 16


# --- names of files and folders -----------------------------------------------------------------------------

STRANGE = 'ü 音 🔔 it\'s "$HOME" & (1)'
"""A folder's name with what shells, locales and URLs take for something else."""
PLAIN_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": ""}
"""Python then takes names of files, and the terminal, for ASCII."""


@pytest.mark.skipif(
    os.name == "nt", reason="the commands are for a POSIX shell, and Windows forbids the quotes"
)
@pytest.mark.parametrize("environ", [{}, PLAIN_LOCALE], ids=["UTF-8", "C"])
def test_every_command_takes_strange_names(environ: dict[str, str], tmp_path: Path) -> None:
    """Evaluate, stop, resume by the printed command, report in every format, compare, export: all works."""
    here = tmp_path / STRANGE
    data, run, other = write_data(here / "data", each=1), here / "run", here / "other run"
    told = {**environment(), **environ}

    def done(*words: str, code: int = 0) -> str:
        """Run the real command; it never says anything of a traceback."""
        ended = subprocess.run(
            [sys.executable, "-m", "otoscope", *words], env=told, cwd=here, capture_output=True, timeout=60,
            check=False,
        )  # fmt: skip
        said = (ended.stdout + ended.stderr).decode("utf-8", "replace")
        assert ended.returncode == code, said
        assert "Traceback" not in said
        return said

    key = here / "the key ü"
    refusing = [True]

    def script(seen: Seen, attempt: int) -> Response:
        if seen.kind == "judge" and refusing[0]:
            return Response(status=401, error={"message": "the key is refused"})
        return scripted_answers()(seen, attempt)

    with ScriptedServer(script) as server:
        key.write_text("a-key\n", encoding="utf-8", newline="\n")
        key.chmod(0o600)
        patience = '{"retry_interval": 0.01}'
        url = ["--api-url", server.url, "--judge-api-url", server.url]
        keys = ["--api-key-file", str(key), "--judge-api-key-file", str(key)]
        words = ["eval", "--model", "scripted-model", "--judge-model", "scripted-judge", *url, *keys]
        words += ["--data", str(data), "--generation-config", patience, "--no-html"]
        said = done(*words, "--run-dir", str(run), code=5)
        refusing[0] = False
        line, _without_judge = [line for line in said.splitlines() if line.startswith("  otoscope eval")]
        again = subprocess.run(
            ["bash", "-c", line.replace("otoscope", f"{shlex.quote(sys.executable)} -m otoscope", 1)],
            env=told, cwd=here, capture_output=True, timeout=60, check=False,
        )  # fmt: skip
        assert again.returncode == 0, (line, again.stderr.decode("utf-8", "replace"))
        done(*words, "--run-dir", str(other))
    for form in ("terminal", "html", "md", "latex", "csv", "json"):
        output = [] if form == "terminal" else ["--output", str(here / f"out ü/{form}")]
        done("report", str(run), "--format", form, *output)
    done("report", "run", "other run", "--format", "md", "--figures", str(here / "figures ü"))
    done("compare", str(run), str(other))
    done("export", str(run), "--to", str(here / "official ü"))
    done("export", str(run), "--bundle", str(here / "bundle ü.zip"))
    done("data", "verify", str(data))
    assert json.loads((here / "out ü" / "json").read_text(encoding="utf-8"))


def test_commands_in_messages_are_written_in_one_way() -> None:
    """What is copied into a shell has to work in every locale: one module knows how, and no other quotes."""
    quoting = [
        path.name for path in SHIPPED for node in ast.walk(parsed(path)) if isinstance(node, ast.Import)
        and any(name.name == "shlex" for name in node.names)
    ]  # fmt: skip
    assert quoting == ["shell.py"]


def test_a_name_that_the_terminal_cannot_show_is_written_by_its_bytes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A shell reads it back as it was."""
    name = "it's ü 音 \\ $HOME"
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    command = shell_command(["printf", "%s", name])
    assert command.isascii()
    done = subprocess.run(["bash", "-c", command], capture_output=True, check=True, cwd=tmp_path)
    assert done.stdout.decode("utf-8") == name
