"""What the source does not do: run or unpack what comes from elsewhere, or trust a server unverified.

ruff's S rules find some of it; a ``noqa`` could wave it through, and there is none for these.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent
MODULES = sorted((REPOSITORY / "src").rglob("*.py"))
FORBIDDEN_MODULES = frozenset(
    "pickle cPickle _pickle dill cloudpickle joblib marshal shelve dbm yaml xml telnetlib ftplib code".split()
)
FORBIDDEN_CALLS = frozenset("eval exec compile __import__ breakpoint".split())
FORBIDDEN_METHODS = frozenset(
    "extractall extract unpack_archive popen _create_unverified_context read_pickle getoutput "
    "getstatusoutput check_hostname mktemp".split()
)
FORBIDDEN_OF_LIBCURL = frozenset(
    "FOLLOWLOCATION UNRESTRICTED_AUTH SSL_VERIFYPEER SSL_VERIFYHOST PROXY_SSL_VERIFYPEER "
    "PROXY_SSL_VERIFYHOST NETRC".split()
)
READS_YAML = REPOSITORY / "src" / "otoscope" / "config" / "files.py"
"""The one module that may import yaml."""
SAFE_OF_YAML = frozenset(
    "SafeLoader SafeDumper compose dump Node MappingNode ScalarNode SequenceNode YAMLError "
    "MarkedYAMLError".split()
)
"""What it may use of yaml: nodes are made, and nothing is ever constructed by their tags."""
FORBIDDEN_OPTIONS = {
    "shell": True,
    "verify": False,
    "ssl": False,
    "verify_ssl": False,
    "check_hostname": False,
    "allow_redirects": True,
    "trust_env": True,
    "allow_pickle": True,
    "autoescape": False,
}


def offences(source: str, path: Path | None = None) -> Iterator[str]:
    """Yield what a module does of all that."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=[ast.alias(name="yaml", asname=None)]) if path == READS_YAML:
                pass
            case ast.Attribute(value=ast.Name(id="yaml"), attr=name) if name not in SAFE_OF_YAML:
                yield f"yaml.{name}"
            case ast.Import(names=names):
                yield from (n.name for n in names if n.name.split(".")[0] in FORBIDDEN_MODULES)
            case ast.ImportFrom(module=str(name), names=names):
                yield from [name] if name.split(".")[0] in FORBIDDEN_MODULES else []
                yield from (n.name for n in names if n.name in FORBIDDEN_METHODS)
            case ast.Call(func=ast.Name(id=name)) if name in FORBIDDEN_CALLS:
                yield f"{name}()"
            case ast.Attribute(attr=name) if name in FORBIDDEN_METHODS:
                yield name
            case ast.Attribute(value=ast.Name(id="os"), attr="system"):
                yield "os.system"
            case ast.Attribute(attr="CERT_NONE" | "verify_mode" as name):
                yield name
            # libcurl follows no redirect, and verifies servers, unless it is told otherwise.
            case ast.Attribute(value=ast.Name(id="pycurl"), attr=name) if name in FORBIDDEN_OF_LIBCURL:
                yield name
            case ast.keyword(arg=str(name), value=ast.Constant(value=value)) if name in FORBIDDEN_OPTIONS:
                yield from [f"{name}={value}"] if value is FORBIDDEN_OPTIONS[name] else []
            case _:
                pass


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(REPOSITORY / "src")))
def test_no_module_does_it(path: Path) -> None:
    """No module of the package has any of it."""
    assert list(offences(path.read_text(encoding="utf-8"), path)) == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import os.path, xml.etree.ElementTree",
        "from marshal import loads",
        "from tarfile import TarFile; TarFile('x').extractall()",
        "from shutil import unpack_archive",
        "eval('1')",
        "exec('1')",
        "import yaml; yaml.load('')",
        "subprocess.run('ls', shell=True)",
        "os.system('ls')",
        "requests.get(url, verify=False)",
        "session.post(url, ssl=False)",
        "session.post(url, allow_redirects=True)",
        "requests.Session(trust_env=True)",
        "curl.setopt(pycurl.FOLLOWLOCATION, 1)",
        "curl.setopt(pycurl.SSL_VERIFYPEER, 0)",
        "context.check_hostname = False",
        "context.verify_mode = ssl.CERT_NONE",
        "numpy.load(path, allow_pickle=True)",
        "ssl._create_unverified_context()",
    ],
)
def test_it_would_be_found(source: str) -> None:
    """Each kind of it is found in a source that does it."""
    assert list(offences(source))


@pytest.mark.parametrize(
    "source",
    [
        "import yaml; yaml.load('', Loader=yaml.SafeLoader)",
        "import yaml; yaml.unsafe_load('')",
        "import yaml; yaml.full_load('')",
        "import yaml; yaml.safe_load('')",
        "import yaml; yaml.compose('', Loader=yaml.Loader)",
        "import yaml; yaml.compose('', Loader=yaml.UnsafeLoader)",
        "import yaml; yaml.constructor.Constructor()",
        "import yaml as anything",
        "from yaml import load",
        "import yaml.constructor",
    ],
)
def test_yaml_is_used_for_nodes_alone(source: str) -> None:
    """Where yaml may be imported, all of it that constructs objects is found, under whatever name."""
    assert list(offences(source, READS_YAML))


def test_the_linter_looks_for_it_too() -> None:
    """Ruff's S rules are on, in make check, and nothing of the package is exempt from all of them."""
    settings = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    selected = re.search(r"^select = \[(.*)\]$", settings, re.MULTILINE)
    assert selected is not None
    assert '"S"' in selected[1]
    ignored = settings.partition("ignore = [")[2].partition("]")[0]
    assert not re.search(r'"S\d*"', ignored)
    assert "ruff check ." in (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    for path in MODULES:
        text = path.read_text(encoding="utf-8")
        assert "ruff: noqa" not in text
        # Those that may be waved through, each with its reason beside it.
        for rules, reason in re.findall(r"# noqa: ((?:[A-Z]+\d+,? ?)+)(.*)", text):
            for rule in re.findall(r"\bS\d+", rules):
                assert rule in {"S310", "S311", "S603", "S704"}, (path, rule)
                assert reason.startswith("("), (path, rule)
