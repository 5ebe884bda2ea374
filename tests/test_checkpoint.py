"""Where a local model's files are found, what is said where some are missing, what tells weights apart."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from otoscope.backends.checkpoint import digest, located
from otoscope.config import LocalSettings
from otoscope.errors import ConfigError
from tests.hub_servers import COMMIT, HubServer, serving

MODEL = "lab/listener"
FILES = {
    "config.json": b"{}",
    "processor_config.json": b"{}",
    "tokenizer.json": b"{}",
    "model.safetensors": b"weights",
}


def settings(folder: Path | None = None, **more: Any) -> LocalSettings:
    """Return the settings of a model in a folder, or of the hub's."""
    return LocalSettings(
        role="model",
        name=MODEL if folder is None else folder.name,
        source=MODEL if folder is None else str(folder),
        on_hub=folder is None,
        parameters=MappingProxyType({}),
        model_args=MappingProxyType({}),
        calls=1,
        concurrency=4,
        timeout=60.0,
        **{"revision": None, "trust_remote_code": False, **more},
    )


def whole(folder: Path, *without: str, **more: bytes) -> Path:
    """Fill a folder with a model's files."""
    folder.mkdir(exist_ok=True)
    for name, content in {**FILES, **more}.items():
        if name not in without:
            (folder / name).write_bytes(content)
    return folder


def refused(folder: Path) -> str:
    """Return what is said of a folder that is no whole model."""
    with pytest.raises(ConfigError) as caught:
        located(settings(folder), lambda event: None)
    return str(caught.value)


def test_a_whole_folder_is_found_and_known_by_its_contents(tmp_path: Path) -> None:
    """A folder's weights are told apart by a digest, wherever the folder lies and whatever it is called."""
    found = located(settings(whole(tmp_path / "one")), lambda event: None)
    again = located(settings(whole(tmp_path / "two")), lambda event: None)
    assert found.folder == tmp_path / "one"
    assert found.checkpoint == again.checkpoint == {"digest": digest(tmp_path / "one")}


@pytest.mark.parametrize(
    ("without", "told"),
    [
        ("config.json", "no config.json"),
        ("processor_config.json", "no processor: processor_config.json or preprocessor_config.json"),
        ("tokenizer.json", "no processor: tokenizer.json or tokenizer_config.json"),
        ("model.safetensors", "weights are missing: model.safetensors or model.safetensors.index.json"),
    ],
)
def test_what_a_folder_lacks_is_named(without: str, told: str, tmp_path: Path) -> None:
    """Each of the parts that a model cannot do without is named where it is missing."""
    assert told in refused(whole(tmp_path / "model", without))


def test_a_lost_shard_is_named(tmp_path: Path) -> None:
    """Of weights in several files, the missing one is named."""
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    more = {"model.safetensors.index.json": json.dumps(index).encode(), "model-1.safetensors": b"1"}
    folder = whole(tmp_path / "model", "model.safetensors", **more)
    assert refused(folder).endswith("weights are missing: model-2.safetensors")


@pytest.mark.parametrize(
    ("name", "told"),
    [("adapter_config.json", "merge it into its model first"), ("model.gguf", "serve that with llama.cpp")],
)
def test_folders_of_other_kinds_are_told_what_to_do(name: str, told: str, tmp_path: Path) -> None:
    """An adapter alone, and a GGUF file, are no models for transformers; each has its own way on."""
    assert told in refused(whole(tmp_path / "model", *FILES, **{name: b"{}"}))


def test_a_pointer_of_git_lfs_is_no_weight(tmp_path: Path) -> None:
    """A clone without its large files says so, instead of an error of a parser of tensors."""
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    assert "git lfs pull" in refused(whole(tmp_path / "model", **{"model.safetensors": pointer}))


def test_an_index_that_is_no_json_is_named(tmp_path: Path) -> None:
    """A damaged index is a user's trouble, not a traceback."""
    folder = whole(tmp_path / "model", "model.safetensors", **{"model.safetensors.index.json": b"{"})
    assert "model.safetensors.index.json: cannot be read" in refused(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_every_file_counts_in_the_digest(name: str, tmp_path: Path) -> None:
    """Another content under the same name and of the same size is another model."""
    before = digest(whole(tmp_path / "model"))
    (tmp_path / "model" / name).write_bytes(bytes(len(FILES[name])))
    assert digest(tmp_path / "model") != before


def test_logs_of_a_training_do_not_count(tmp_path: Path) -> None:
    """What no answer depends on may come and go."""
    folder = whole(tmp_path / "model")
    before = digest(folder)
    (folder / "trainer_state.json").write_text("{}", encoding="utf-8")
    assert digest(folder) == before


LARGE, SMALL = 2 << 30, 1 << 20
"""Bytes of tensors in a file with holes, which takes no disk."""
ENDS = (0, LARGE, LARGE + SMALL, 2 * LARGE + SMALL)
NAMES = ("z.tower", "projector", "a.language")


def large(folder: Path, *written: int, dtype: str = "U8") -> str:
    """Write safetensors of three tensors, with another byte at some offsets; return the folder's digest."""
    tensors = {
        name: {"dtype": dtype, "shape": [end - first], "data_offsets": [first, end]}
        for name, first, end in zip(NAMES, ENDS, ENDS[1:], strict=False)
    }
    header = json.dumps({"__metadata__": {"format": "pt"}, **tensors}).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + ENDS[-1])
        for offset in written:
            file.seek(8 + len(header) + offset)
            file.write(b"x")
    return digest(folder)


def test_every_tensor_of_a_large_file_counts(tmp_path: Path) -> None:
    """A projector that was trained shows in 4 GB of weights that were not; the names and types count, too."""
    folder = whole(tmp_path / "model")
    places = [at for first, end in pairwise(ENDS) for at in (first, (first + end) // 2, end - 1)]
    before = large(folder)
    assert before == large(folder)
    assert len({before, large(folder, dtype="I8"), *(large(folder, at) for at in places)}) == 11


@pytest.mark.parametrize(
    ("name", "length", "header"),
    [
        ("pytorch_model.bin", 0, b""),
        ("model.safetensors", 0, b""),
        ("model.safetensors", 1 << 60, b"{}"),
        ("model.safetensors", 3, b"[1]"),
        ("model.safetensors", 2, b"{}"),
        ("model.safetensors", 35, b'{"a": {"data_offsets": [0, 10000]}}'),
        ("model.safetensors", 35, b'{"a": {"data_offsets": ["0", nul]}}'),
        ("model.safetensors", 35, b'{"a": {"data_offsets": ["0", "9"]}}'),
        ("model.safetensors", 34, b'{"a": {"data_offsets": [0, 1, 2]}}'),
    ],
)
def test_other_large_files_count_with_every_byte(
    name: str, length: int, header: bytes, tmp_path: Path
) -> None:
    """What does not name its tensors, or not all of its bytes, is read whole."""
    folder = whole(tmp_path / "model")
    seen = set()
    for written in (None, 20_001, 50_000_003, (65 << 20) - 1):
        with (folder / name).open("wb") as file:
            file.write(length.to_bytes(8, "little") + header)
            file.truncate(65 << 20)
            if written is not None:
                file.seek(written)
                file.write(b"x")
        seen.add(digest(folder))
    assert len(seen) == 4


# --- the hub ----------------------------------------------------------------------------------------------

FETCH = """
import json, sys
from otoscope.records import Notice
from tests.test_checkpoint import settings
from otoscope.backends.checkpoint import located
from otoscope.errors import ConfigError
told = []
try:
    found = located(settings(**json.loads(sys.argv[1])), told.append, fetch=json.loads(sys.argv[2]))
except ConfigError as error:
    print(json.dumps({"error": str(error)}))
else:
    names = sorted(path.name for path in found.folder.iterdir()) if found.folder else None
    fetched = [event.done for event in told if hasattr(event, "done")]
    which = found.checkpoint and dict(found.checkpoint)
    print(json.dumps({"weights": which, "names": names, "told": bool(fetched)}))
"""


@pytest.fixture
def hub() -> Iterator[HubServer]:
    """Serve a model as Hugging Face would, with much beside that is not wanted."""
    more = {
        "README.md": b"#",
        "modeling_listener.py": b"raise SystemExit",
        "consolidated.safetensors": b"the same once more",
        "original/model.safetensors": b"and again",
        "pytorch_model.bin": b"and again",
    }
    with serving(HubServer({**FILES, **more}, MODEL, kind="models")) as served:
        yield served


def fetched(
    hub: HubServer, cache: Path, *, fetch: bool = True, environ: dict[str, str] | None = None, **more: Any
) -> Any:
    """Locate the hub's model in a process of its own: the hub's library is set up when it is imported."""
    done = subprocess.run(
        [sys.executable, "-c", FETCH, json.dumps(more), json.dumps(fetch)],
        env={**os.environ, **hub.environment(str(cache)), **(environ or {})},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_model_of_the_hub_is_fetched_once_and_known_by_its_commit(hub: HubServer, tmp_path: Path) -> None:
    """What a model needs comes into the hub's own cache, once; neither code nor the same weights twice."""
    found = fetched(hub, tmp_path)
    assert found["weights"] == {"commit": COMMIT}
    assert found["names"] == sorted(FILES)
    files = sorted(hub.asked_for())
    assert fetched(hub, tmp_path) == {**found, "told": False}
    assert sorted(hub.asked_for()) == files


def test_code_of_a_model_comes_only_where_it_is_trusted(hub: HubServer, tmp_path: Path) -> None:
    """Python files are fetched with ``trust_remote_code`` alone."""
    assert "modeling_listener.py" in fetched(hub, tmp_path, trust_remote_code=True)["names"]


def test_old_weights_are_fetched_where_there_are_no_others(hub: HubServer, tmp_path: Path) -> None:
    """A model without safetensors comes with its pickled weights, which are read as weights alone."""
    for name in list(hub.files):
        if name.endswith(".safetensors"):
            del hub.files[name]
    assert "pytorch_model.bin" in fetched(hub, tmp_path)["names"]


def test_the_hubs_own_offline_mode_is_heeded(hub: HubServer, tmp_path: Path) -> None:
    """Offline, a model that is there is found, one that is not is an error that says so; nobody is asked."""
    offline = {"HF_HUB_OFFLINE": "1"}
    assert "cannot be fetched, and is not whole" in fetched(hub, tmp_path, environ=offline)["error"]
    assert not hub.asked
    found = fetched(hub, tmp_path)
    assert fetched(hub, tmp_path, environ=offline)["weights"] == found["weights"]


def test_a_private_model_needs_the_hubs_token(hub: HubServer, tmp_path: Path) -> None:
    """The token comes from the hub's own variable; without one, the variable is named."""
    hub.private = "secret-token"
    assert "HF_TOKEN" in fetched(hub, tmp_path)["error"]
    assert fetched(hub, tmp_path, environ={"HF_TOKEN": "secret-token"})["weights"] == {"commit": COMMIT}


def test_a_model_and_a_revision_that_are_not_there_are_said(hub: HubServer, tmp_path: Path) -> None:
    """Each is told apart, with what to do."""
    assert "no such revision" in fetched(hub, tmp_path, revision="v9")["error"]
    hub.dataset = "lab/another"
    assert "the hub knows no such model" in fetched(hub, tmp_path)["error"]


def test_a_hub_that_is_away_is_said(hub: HubServer, tmp_path: Path) -> None:
    """A closed port is no traceback."""
    hub.die()
    assert f"{MODEL}: cannot be fetched" in fetched(hub, tmp_path)["error"]


def test_looking_alone_fetches_nothing(hub: HubServer, tmp_path: Path) -> None:
    """A dry run asks no hub: what is not there is left open, what is there is known."""
    assert fetched(hub, tmp_path, fetch=False) == {"weights": None, "names": None, "told": False}
    assert not hub.asked
    fetched(hub, tmp_path)
    assert fetched(hub, tmp_path, fetch=False)["weights"] == {"commit": COMMIT}


def test_located_settings_are_those_that_were_given(tmp_path: Path) -> None:
    """Nothing else of the settings changes."""
    given = settings(whole(tmp_path / "model"))
    assert replace(located(given, lambda event: None), folder=None, checkpoint=None) == given
