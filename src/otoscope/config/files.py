"""A file of settings: YAML with the names of ``TaskConfig``, for one model or several.

Nothing is constructed from YAML's tags: the file is read into nodes, and this module makes plain values of
them, by the rules of YAML 1.2 (``no`` is a word, ``1e-3`` a number; ``010`` is text). Where a setting is
text, what stands there is text: ``label: 1.10`` is not 1.1.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from os.path import normpath
from pathlib import Path
from typing import Any, NoReturn

import yaml

from otoscope.benchmark import BENCHMARK
from otoscope.config.flags import PLACES_OF_FLAGS
from otoscope.config.layers import OF_ALL_MODELS, Layer, Origin, Place
from otoscope.config.models import JUDGE_TEXTS
from otoscope.config.task import PATH_FIELDS, TEXT_FIELDS, TaskConfig
from otoscope.errors import ConfigError, did_you_mean
from otoscope.nesting import MAX_DEPTH

MAX_BYTES, MAX_VALUES = 1 << 18, 10_000
"""Of a file, and of what it says with every alias written out."""
MODELS = "models"

_OF_DATASET_ARGS = ("local_path", "dataset_id", "prompt_template")
_TEXTS: frozenset[Place] = frozenset(
    [
        *((name,) for name in TEXT_FIELDS),
        *(("judge_model_args", name) for name in JUDGE_TEXTS),
        *(("dataset_args", BENCHMARK, name) for name in _OF_DATASET_ARGS),
    ]
)
_ENDPOINTS: tuple[Place, ...] = ((), ("judge_model_args",))
_OBJECTS_OF_TEXTS: frozenset[Place] = frozenset(
    {
        ("tags",),
        *((*endpoint, "extra_headers") for endpoint in _ENDPOINTS),
        *((*endpoint, "generation_config", "extra_headers") for endpoint in _ENDPOINTS),
    }
)
_PATHS: tuple[Place, ...] = (
    *((name,) for name in PATH_FIELDS),
    ("judge_model_args", "api_key_file"),
    ("dataset_args", BENCHMARK, "local_path"),
)
_TAG = "!..."
_QUOTED = re.compile(r" ?'(?!<)[^']{3,}'")
_STR, _MAP, _SEQ = (f"tag:yaml.org,2002:{name}" for name in ("str", "map", "seq"))
_WORDS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_NULLS = frozenset(("", "~", "null", "Null", "NULL"))
_WHOLE = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_NUMBER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)?(?:\.[0-9]*)?(?<=[0-9.])(?:[eE][-+]?[0-9]+)?")
_WORD = re.compile(r"[A-Za-z_/][A-Za-z0-9_./@+-]*(?: [A-Za-z0-9_./@+-]+)*")
"""What needs no quotes when it is written."""
_DIGITS = 300
"""Of a number; Python refuses to read one of thousands."""


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """What a file says: the settings of each of its models, laid over those that all have in common."""

    path: Path
    models: Sequence[Layer]
    common: Layer
    several: bool
    """Whether it has a list of models, be it of one."""

    def named(self, name: str) -> SettingsFile:
        """Return the file as if it had one of its models alone, by label or name. Raises ``ConfigError``."""
        found = [layer for layer in self.models if name in _names(layer)]
        if not found:
            known = [_title(layer) for layer in self.models]
            raise ConfigError(
                f"--model: {self.path} has no model {name!r}{did_you_mean(name, known)}\n"
                f"It has {', '.join(known)}"
            )
        return SettingsFile(self.path, found, self.common, several=True)

    def title(self, layer: Layer) -> str:
        """Return what one of the models is called: its label, or its name."""
        return _title(layer)


def read_settings(path: Path) -> SettingsFile:
    """Read a file of settings. Raises ``ConfigError`` that says file, line and key.

    Relative paths in it are relative to its folder.
    """
    reader = _Reader(path)
    common, below = reader.top()
    shared = reader.layer(common)
    if below is None:
        return SettingsFile(path, [shared], shared, several=False)
    models = [reader.layer(one).over(shared) for one in reader.models(below)]
    reader.refuse_namesakes(models)
    return SettingsFile(path, models, shared, several=True)


def _names(layer: Layer) -> list[str]:
    return [layer.values[name] for name in ("label", "model") if layer.values.get(name)]


def _title(layer: Layer) -> str:
    return (_names(layer) or ["?"])[0]


class _Loader(yaml.SafeLoader):
    """Makes nodes; what a plain scalar is, is said here and not by YAML 1.1's rules."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 (as the base class has it)


@dataclass(frozen=True, slots=True)
class _Object:
    """What was read of one object: its values, and the line of each, by place."""

    values: dict[str, Any]
    lines: dict[Place, int] = field(default_factory=dict)


class _Reader:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._left = MAX_VALUES

    def top(self) -> tuple[_Object, yaml.Node | None]:
        """Return what all models have in common, and the node of the list of models, if there is one."""
        node = self._composed()
        if not isinstance(node, yaml.MappingNode):
            self._refuse(node, "must be an object: lines of the form name: value")
        pairs = self._pairs(node, ())
        below = next((value for name, _, value in pairs if name == MODELS), None)
        return self._settings([pair for pair in pairs if pair[0] != MODELS], more=(MODELS,)), below

    def models(self, node: yaml.Node) -> list[_Object]:
        """Return what is said of each model."""
        if not isinstance(node, yaml.SequenceNode) or not node.value:
            self._refuse(node, f"{MODELS}: must be a list of models, each a name or an object of settings")
        return [self._model(one) for one in node.value]

    def layer(self, read: _Object) -> Layer:
        """Return what was read as settings, relative paths below the file's folder."""
        for *way, last in _PATHS:
            holder: Any = read.values
            for name in way:
                holder = holder.get(name) if isinstance(holder, dict) else None
            if isinstance(holder, dict) and isinstance(text := holder.get(last), str) and text.strip():
                holder[last] = self._whole(text)
        model = read.values.get("model")
        if isinstance(model, str) and (
            model.startswith(("./", "../")) or model.rpartition(":")[0].endswith(".py")
        ):
            read.values["model"] = self._whole(model)
        return Layer(
            {name: value for name, value in read.values.items() if value is not None},
            {place: Origin("file", f"{self._path}:{line}") for place, line in read.lines.items()},
        )

    def _whole(self, path: str) -> str:
        return path if path.startswith("~") else normpath(self._path.parent.resolve() / path)

    def refuse_namesakes(self, models: Sequence[Layer]) -> None:
        """Refuse models that nobody can tell apart, and runs that would lie in one folder."""
        for what, told in (("name", _title), ("run_dir", lambda layer: layer.values.get("run_dir"))):
            first: dict[Any, int] = {}
            for number, layer in enumerate(models, start=1):
                value = told(layer)
                if value is not None and first.setdefault(value, number) != number:
                    other = "a label" if what == "name" else "a run_dir"
                    raise ConfigError(
                        f"{self._path}: {MODELS}: number {first[value]} and number {number} have the same "
                        f"{what} {value!r}; give each {other} of its own"
                    )

    def _model(self, node: yaml.Node) -> _Object:
        if isinstance(node, yaml.ScalarNode) and (name := self._text(node, ("model",))) is not None:
            return _Object({"model": name}, {("model",): _line(node)})
        if not isinstance(node, yaml.MappingNode):
            self._refuse(node, f"{MODELS}: must be the name of a model, or an object of settings")
        pairs = self._pairs(node, ())
        for name, key, _ in pairs:
            if name in OF_ALL_MODELS:
                self._refuse(key, f"{name}: counts for all models together: it stands above {MODELS}")
        return self._settings(pairs)

    def _settings(
        self, pairs: Sequence[tuple[str, yaml.Node, yaml.Node]], more: Sequence[str] = ()
    ) -> _Object:
        known = [f.name for f in fields(TaskConfig) if f.init]
        read = _Object({})
        for name, key, value in pairs:
            if name not in known:
                self._refuse(key, f"unknown key {name!r}{_hint(name, [*known, *more])}")
            read.values[name] = self._value(value, (name,), read.lines, _line(key))
        return read

    def _composed(self) -> yaml.Node:
        try:
            with self._path.open("rb") as opened:
                content = opened.read(MAX_BYTES + 1)
        except OSError as error:
            raise ConfigError(f"--config: {self._path}: cannot be read: {error.strerror or error}") from None
        except ValueError:
            raise ConfigError(f"--config: {str(self._path)!r} is no name of a file") from None
        if len(content) > MAX_BYTES:
            raise ConfigError(f"--config: {self._path}: is over {MAX_BYTES // 1024} KiB: no file of settings")
        try:
            node = yaml.compose(content.decode("utf-8-sig"), Loader=_Loader)
        except UnicodeDecodeError:
            raise ConfigError(f"--config: {self._path}: is not text in UTF-8") from None
        except RecursionError:
            raise ConfigError(f"--config: {self._path}: is nested over {MAX_DEPTH} levels deep") from None
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            where = f":{mark.line + 1}" if mark is not None else ""
            raise ConfigError(f"{self._path}{where}: {_problem(error)}") from None
        except yaml.YAMLError as error:
            # A character that no text file has. What stands around it is not shown.
            why = getattr(error, "reason", "cannot be read")
            raise ConfigError(f"{self._path}: not valid YAML: {why}") from None
        if node is None:
            raise ConfigError(f"--config: {self._path}: is empty")
        return node

    def _pairs(self, node: yaml.MappingNode, within: Place) -> list[tuple[str, yaml.Node, yaml.Node]]:
        if node.tag != _MAP:
            self._refuse(node, f"{'.'.join(within) or 'here'}: a tag ({_TAG}) is not read; leave it out")
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag != _STR:
                self._refuse(key, "a key must be a word")
            told = ".".join((*within, key.value))
            if key.value == "<<" and key.style is None:
                self._refuse(key, f"<< is not read; what models have in common stands above {MODELS}")
            if key.value in lines:
                self._refuse(key, f"{told}: stands there twice, in lines {lines[key.value]} and {_line(key)}")
            lines[key.value] = _line(key)
        return [(key.value, key, value) for key, value in node.value]

    def _value(self, node: yaml.Node, place: Place, lines: dict[Place, int], line: int) -> Any:
        self._left -= 1
        if self._left < 0:
            self._refuse(node, f"{place[0]}: over {MAX_VALUES:,} values, each alias written out")
        if len(place) > MAX_DEPTH:
            self._refuse(node, f"{place[0]}: nested over {MAX_DEPTH} levels deep")
        match node:
            case yaml.MappingNode():
                pairs = self._pairs(node, place)
                if not pairs:
                    lines[place] = line
                return {
                    name: self._value(value, (*place, name), lines, _line(key)) for name, key, value in pairs
                }
            case yaml.SequenceNode():
                if node.tag != _SEQ:
                    self._refuse(node, f"{'.'.join(place)}: a tag ({_TAG}) is not read; leave it out")
                lines[place] = line
                # What is within counts as deeper; its lines are those of the list.
                return [self._element(one, place) for one in node.value]
            case _:
                lines[place] = line
                return self._text(node, place) if _is_text(place) else self._scalar(node, place)

    def _element(self, node: yaml.Node, place: Place) -> Any:
        if isinstance(node, yaml.ScalarNode) and _is_text(place):
            self._left -= 1
            return self._text(node, place)
        return self._value(node, (*place, "[]"), {}, _line(node))

    def _text(self, node: yaml.ScalarNode, place: Place) -> str | None:
        self._scalar(node, place)
        text: str = node.value
        return None if node.style is None and text in _NULLS else text

    def _scalar(self, node: yaml.ScalarNode, place: Place) -> Any:
        if node.tag != _STR:
            self._refuse(node, f"{'.'.join(place)}: a tag ({_TAG}) is not read; leave it out")
        return _plain(node.value) if node.style is None else node.value

    def _refuse(self, node: yaml.Node, why: str) -> NoReturn:
        raise ConfigError(f"{self._path}:{_line(node)}: {why}")


def _line(node: yaml.Node) -> int:
    line: int = node.start_mark.line
    return line + 1


def _is_text(place: Place) -> bool:
    return place in _TEXTS or place[:-1] in _OBJECTS_OF_TEXTS


def _plain(text: str) -> Any:
    """Return what a word without quotes is: nothing, true or false, a number, or text."""
    if text in _NULLS:
        return None
    if text in _WORDS:
        return _WORDS[text]
    if len(text) <= _DIGITS and _WHOLE.fullmatch(text):
        return int(text)
    if len(text) <= _DIGITS and _NUMBER.fullmatch(text) and any(c.isdigit() for c in text):
        return float(text)
    return text


def _hint(name: str, known: Sequence[str]) -> str:
    word = name.replace("-", "_").strip("_")
    if word in known:
        return f", did you mean {word!r}?"
    if place := PLACES_OF_FLAGS.get(word):
        return f"; what --{word.replace('_', '-')} says stands in {'.'.join(place)}"
    return did_you_mean(name, [*known, *PLACES_OF_FLAGS])


def _problem(error: yaml.MarkedYAMLError) -> str:
    """Return what is wrong, without what stands there, which may be a key."""
    problem = _QUOTED.sub("", str(error.problem or error.context or "cannot be read"))
    if "'\\t'" in problem:
        return "a tab stands where YAML takes spaces alone: indent with spaces"
    more = "; quote a text that holds ': ' or ' #'" if "mapping values" in problem else ""
    return f"not valid YAML: {problem}{more}"


class _Writer(yaml.SafeDumper):
    """Writes what the reader reads back as it was."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 (as the base class has it)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _written_text(writer: _Writer, text: str) -> yaml.ScalarNode:
    is_plain = _WORD.fullmatch(text) and _plain(text) == text
    return writer.represent_scalar(_STR, text, style=None if is_plain else '"')


def _written_value(writer: _Writer, value: float | None) -> yaml.ScalarNode:
    return writer.represent_scalar(_STR, json.dumps(value))


_Writer.add_representer(str, _written_text)
for _kind in (bool, int, float, type(None)):
    _Writer.add_representer(_kind, _written_value)


def text_of(values: Mapping[str, Any]) -> str:
    """Return a file that says these settings; ``models`` may be among them."""
    text: str = yaml.dump(dict(values), Dumper=_Writer, sort_keys=False, allow_unicode=True, width=110)
    return text
