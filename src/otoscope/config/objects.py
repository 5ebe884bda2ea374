"""What a model or judge given as an object is: a digest of its code and of what it holds."""

from __future__ import annotations

import contextlib
import functools
import inspect
import secrets
import weakref
from collections.abc import Iterator, Mapping
from types import CodeType
from typing import Any

from otoscope.records import canonical_digest

_PLAIN = (str, bytes, int, float, complex, bool, type(None))
_DEEPEST = 20
_seen: dict[tuple[int, str], tuple[weakref.ref[Any], str]] = {}
"""Digests of objects, by their ids and names of methods. What an object counts or caches changes as it is
asked, and it is the same one all the same."""


class _UnknownError(Exception):
    """Something of which it cannot be said whether another one is the same."""


def object_digest(target: Any) -> str:
    """Return the SHA-256 (hex) of what an object is: its code, and all that it and its code hold.

    The code is the one that runs, whatever its file has become meanwhile. Where an object holds more than
    plain values (loaded weights, a client), nothing tells whether another one is the same: it gets a digest
    that no other object has, in this process or in the next.
    """
    owner = target.__self__ if inspect.ismethod(target) else target
    key = (id(owner), target.__name__ if owner is not target else "")
    if key in _seen and _seen[key][0]() is owner:
        return _seen[key][1]
    try:
        digest = canonical_digest(_told(target, 0))
    except (_UnknownError, RecursionError):
        digest = secrets.token_hex(32)
    with contextlib.suppress(TypeError):  # what cannot be remembered is looked at again
        _seen[key] = (weakref.ref(owner), digest)
    return digest


def _told(value: Any, depth: int) -> Any:
    """Return plain JSON that is the same for what is the same."""
    if depth > _DEEPEST:
        raise _UnknownError
    below = depth + 1
    match value:
        case functools.partial():
            held = (value.func, value.args, value.keywords)
            return ["partial", *(_told(one, below) for one in held)]
        case staticmethod() | classmethod():
            return [type(value).__name__, _told(value.__func__, below)]
        case property():
            return ["property", *(_told(one, below) for one in (value.fget, value.fset, value.fdel))]
        case type():
            return _of_class(value, below)
        case Mapping() if type(value) is dict or type(value).__module__ == "builtins":
            pairs = [[_told(name, below), _told(item, below)] for name, item in value.items()]
            return ["mapping", *sorted(pairs, key=repr)]
        case list() | tuple():
            return [type(value).__name__, *(_told(one, below) for one in value)]
        case set() | frozenset():
            return [type(value).__name__, *sorted((_told(one, below) for one in value), key=repr)]
        case CodeType():
            return _of_code(value, below)
        case _ if type(value) in _PLAIN:
            return [type(value).__name__, repr(value)]
        case _ if inspect.isfunction(value):
            return _of_function(value, below)
        case _ if inspect.ismethod(value):
            return ["method", _told(value.__self__, below), value.__name__]
        case _ if inspect.ismodule(value) or inspect.isbuiltin(value):
            return ["named", getattr(value, "__module__", None), value.__name__]
        case _:
            return _of_instance(value, below)


def _of_function(function: Any, depth: int) -> Any:
    cells = [cell.cell_contents if _is_filled(cell) else None for cell in function.__closure__ or ()]
    wrapped = getattr(function, "__wrapped__", None)
    held = (function.__code__, function.__defaults__, function.__kwdefaults__, cells, wrapped)
    return ["function", *(_told(one, depth) for one in held)]


def _is_filled(cell: Any) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def _of_code(code: CodeType, depth: int) -> Any:
    return [
        "code",
        code.co_code.hex(),
        list(code.co_names),
        list(code.co_varnames),
        [_told(one, depth) for one in code.co_consts],
    ]


def _of_class(target: type, depth: int) -> Any:
    if target.__module__ == "builtins":
        return ["class", target.__qualname__]
    bases = [_told(base, depth) for base in target.__bases__]
    return ["class", target.__qualname__, bases, [[name, _told(one, depth)] for name, one in _held(target)]]


def _held(target: type) -> Iterator[tuple[str, Any]]:
    """Yield what a class has of its own that can matter."""
    for name, value in sorted(vars(target).items()):
        code = callable(value) or isinstance(value, staticmethod | classmethod)
        quiet = name.startswith("__") and not code
        if not quiet and not inspect.isgetsetdescriptor(value) and not inspect.ismemberdescriptor(value):
            yield name, value


def _of_instance(value: Any, depth: int) -> Any:
    if inspect.getattr_static(type(value), "__slots__", None) or not hasattr(value, "__dict__"):
        raise _UnknownError
    if type(value).__module__ in ("builtins", "_thread"):
        raise _UnknownError
    return ["object", _told(type(value), depth), _told(dict(vars(value)), depth)]
