"""A local model's files: in a folder, or fetched from the Hugging Face hub; and which they are."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

from huggingface_hub import snapshot_download
from huggingface_hub.errors import (  # type: ignore[attr-defined]
    GatedRepoError,
    HFValidationError,
    HTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from tqdm.auto import tqdm

from otoscope.config import LocalSettings
from otoscope.errors import ConfigError
from otoscope.nesting import decoded
from otoscope.records import Event, Fetching

_TEXTS = ("*.json", "*.jinja", "*.txt", "*.model")
"""Configuration, processor and tokenizer: what is small."""
_KNOWN_TEXTS = (
    "config.json generation_config.json *processor_config.json chat_template* tokenizer* vocab* merges.txt "
    "special_tokens_map.json added_tokens.json spiece.model tekken.json *.safetensors.index.json"
).split()
"""Those of them that an answer may depend on; beside them a training leaves logs."""
_WEIGHTS = ("*.safetensors",)
_OLD_WEIGHTS = ("pytorch_model*.bin",)
"""What weights were before; fetched where a model has no others."""
_CODE = ("*.py",)
_TWICE = ("original/*", "consolidated*", "onnx/*", "openvino/*")
"""The same weights once more, in another program's form."""

_PROCESSORS = ("processor_config.json", "preprocessor_config.json")
_TOKENIZERS = (
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "spiece.model", "tekken.json",
)  # fmt: skip
_INDICES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_SINGLE = ("model.safetensors", "pytorch_model.bin")
_POINTER = b"version https://git-lfs"

_WHOLE = 64 << 20
"""Bytes: files that are no larger are read whole for the digest."""
_BLOCK = 1 << 20
_SAMPLE = 4 << 10
"""Bytes: of each tensor in a larger file so many count from its beginning, its middle and its end."""
_LONGEST_HEADER = 100 << 20
"""Bytes: what the format itself allows."""


def located(settings: LocalSettings, tell: Callable[[Event], None], *, fetch: bool = True) -> LocalSettings:
    """Return the settings with where the model's files lie and which they are. Blocks; ``tell`` of progress.

    What is missing on the hub's side of the cache is fetched, by the hub's own library: mirror, token,
    cache and offline mode are its own settings. Without ``fetch`` a model that is not there stays unlocated.
    Raises ``ConfigError`` for a model that is nowhere, and for a folder in which something is missing.
    """
    if not settings.on_hub:
        folder = Path(settings.source)
        _check(folder, settings)
        return replace(settings, folder=folder, checkpoint={"digest": digest(folder)})
    try:
        folder = _snapshot(settings, tell, fetch=fetch)
    except LocalEntryNotFoundError:
        if fetch:
            raise
        return settings
    _check(folder, settings)
    return replace(settings, folder=folder, checkpoint={"commit": folder.name})


def digest(folder: Path) -> str:
    """Return a SHA-256 (hex) of what a folder's model consists of: names, sizes and contents of its files.

    Of safetensors over 64 MB the header is read, and a part of each tensor: what was trained on, if only a
    small projector, differs all over its tensors, and tens of gigabytes need not be read twice at each start.
    """
    whole = hashlib.sha256()
    for path in sorted(set(_files(folder))):
        whole.update(f"{path.name}\0{path.stat().st_size}\0".encode("utf-8", "surrogateescape"))
        with path.open("rb") as file:
            for offset, size in _counting(file, path):
                file.seek(offset)
                while size > 0 and (block := file.read(min(size, _BLOCK))):
                    whole.update(block)
                    size -= len(block)
    return whole.hexdigest()


def _files(folder: Path) -> Iterator[Path]:
    for pattern in (*_KNOWN_TEXTS, *_WEIGHTS, *_OLD_WEIGHTS, *_CODE):
        yield from (path for path in folder.glob(pattern) if path.is_file())


def _counting(file: BinaryIO, path: Path) -> Iterable[tuple[int, int]]:
    """Return offset and size of what of a file counts in the digest: all, unless it names its tensors."""
    size = path.stat().st_size
    if size <= _WHOLE or path.suffix != ".safetensors" or (ends := _ends(file, size)) is None:
        return [(0, size)]
    return _sampled(ends)


def _ends(file: BinaryIO, size: int) -> list[int] | None:
    """Return where the header of a safetensors file ends, and each of its tensors; ``None`` if it is not one.

    It begins with the header's length, 8 bytes, little-endian; offsets in the header count from its end.
    """
    length = int.from_bytes(file.read(8), "little")
    if length > min(_LONGEST_HEADER, size - 8):
        return None
    try:
        header = decoded(file.read(length).decode("utf-8"))
        places = sorted(header[name]["data_offsets"] for name in header if name != "__metadata__")
        tensors = [(first, end) for first, end in places]
    except (ValueError, TypeError, LookupError):
        return None
    ends = [0, *(end for _, end in tensors)]
    if not all(type(end) is int for end in ends) or ends != sorted(ends):
        return None
    # One behind the other, as the format wants it: else something may belong to no tensor.
    if [first for first, _ in tensors] != ends[:-1] or ends[-1] != size - 8 - length:
        return None
    return [8 + length + end for end in ends]


def _sampled(ends: Sequence[int]) -> Iterator[tuple[int, int]]:
    yield 0, ends[0]
    for first, end in pairwise(ends):
        if end - first <= 3 * _SAMPLE:
            yield first, end - first
        else:
            yield from ((at, _SAMPLE) for at in (first, (first + end - _SAMPLE) // 2, end - _SAMPLE))


def _check(folder: Path, settings: LocalSettings) -> None:
    """Raise ``ConfigError`` for a folder that is no whole model; it names what is missing."""
    here = f"{folder}: " if not settings.on_hub else f"{settings.source} (in {folder}): "
    if not (folder / "config.json").is_file():
        other = ""
        if (folder / "adapter_config.json").is_file():
            other = ". It holds an adapter: merge it into its model first (merge_and_unload, save_pretrained)"
        elif next(folder.glob("*.gguf"), None) is not None:
            other = ". It holds a GGUF file: serve that with llama.cpp, and give --api-url"
        raise ConfigError(f"{here}no config.json, so no model for transformers{other}")
    lacking = [
        f"{' or '.join(names)} ({what})"
        for names, what in ((_PROCESSORS, "how audio is prepared"), (_TOKENIZERS, "the tokenizer"))
        if not any((folder / name).is_file() for name in names)
    ]
    if lacking:
        raise ConfigError(
            f"{here}no processor: {' and '.join(lacking)} {'is' if len(lacking) == 1 else 'are'} missing. "
            "A checkpoint of a training often lacks them: copy them from the model that it began with "
            "(AutoProcessor.from_pretrained(...).save_pretrained(FOLDER))"
        )
    missing, cut = _weights(folder)
    if missing:
        raise ConfigError(f"{here}weights are missing: {', '.join(missing)}")
    if cut:
        raise ConfigError(
            f"{here}{', '.join(cut)}: a pointer of Git LFS in place of the file; get it with git lfs pull"
        )


def _weights(folder: Path) -> tuple[list[str], list[str]]:
    """Return the files of weights that are not there, and those that are pointers to them."""
    index = next((folder / name for name in _INDICES if (folder / name).is_file()), None)
    single = next((name for name in _SINGLE if (folder / name).is_file()), None)
    if single is not None:
        names = [single]
    elif index is not None:
        names = sorted(set(_object(index).get("weight_map", {}).values()))
    else:
        return [" or ".join((_SINGLE[0], _INDICES[0]))], []
    missing = [name for name in names if not (folder / name).is_file()]
    return missing, [name for name in names if name not in missing and _is_pointer(folder / name)]


def _is_pointer(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_POINTER)) == _POINTER


def _object(path: Path) -> dict[str, Any]:
    try:
        value = decoded(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: is not a JSON object")
    return value


# --- the hub ----------------------------------------------------------------------------------------------


def _snapshot(settings: LocalSettings, tell: Callable[[Event], None], *, fetch: bool) -> Path:
    """Return the folder, named by its commit, that has the model's files in the hub's cache."""
    code = _CODE if settings.trust_remote_code else ()

    def get(*patterns: str) -> Path:
        return Path(
            snapshot_download(
                settings.source,
                revision=settings.revision,
                allow_patterns=list(patterns),
                ignore_patterns=list(_TWICE),
                local_files_only=not fetch,
                tqdm_class=_progress(settings.source, tell),
            )
        )

    where = f"{settings.source}{f' at {settings.revision}' if settings.revision else ''}"
    try:
        folder = get(*_TEXTS, *code, *_WEIGHTS)
        if not any(folder.glob(_WEIGHTS[0])):
            folder = get(*_TEXTS, *code, *_OLD_WEIGHTS)
    except GatedRepoError:
        raise ConfigError(
            f"{where}: its owner lets only those have it who ask: ask on the model's page, then set HF_TOKEN"
        ) from None
    except RevisionNotFoundError:
        raise ConfigError(
            f"{where}: there is no such revision; --model-revision takes a branch, tag or commit"
        ) from None
    except RepositoryNotFoundError:
        raise ConfigError(
            f"{settings.source}: the hub knows no such model, or shows it to no one without a token "
            "(HF_TOKEN). A model behind a server needs --api-url; a folder of that name is not here"
        ) from None
    except HFValidationError as error:
        raise ConfigError(f"{settings.source}: {error}") from None
    except LocalEntryNotFoundError as error:
        if not fetch:
            raise
        raise ConfigError(
            f"{where}: cannot be fetched, and is not whole in the hub's cache: {_first_line(error)}"
        ) from None
    except (HTTPError, OSError) as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        token = ". The hub wants a token: set HF_TOKEN" if status in (401, 403) else ""
        raise ConfigError(f"{where}: cannot be fetched: {_first_line(error)}{token}") from None
    return folder


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _progress(source: str, tell: Callable[[Event], None]) -> type[Any]:
    """Return a class of progress bars that draws none, and tells how many bytes are there."""

    class Told(tqdm):  # type: ignore[misc]
        def display(self, msg: str | None = None, pos: int | None = None) -> None:
            if self.unit == "B" and self.total:
                tell(Fetching(source, "Hugging Face", int(self.n), int(self.total)))

    return Told
