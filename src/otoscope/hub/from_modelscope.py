"""ModelScope, behind its own library."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import requests
from modelscope import dataset_snapshot_download
from modelscope.hub.api import HubApi as ListingApi
from modelscope_hub import HubApi
from modelscope_hub.config import get_default_config
from modelscope_hub.errors import HubError, NotExistError

from otoscope.config import display_url
from otoscope.hub.troubles import HubTrouble, Kind, words

_PAGE = 200
_WORKERS = 8


class ModelScope:
    """A data set at ModelScope, kept in ``place``, or where the library lays out its ``cache``.

    Partial files lie beside their place and are gone on with, whoever left them.
    """

    def __init__(self, dataset: str, cache: Path, place: Path | None) -> None:
        self._dataset = dataset
        self._cache = cache
        self._place = place
        self._endpoint = str(get_default_config().endpoint)

    @property
    def endpoint(self) -> str:
        """The hub's URL: that of a mirror, or of the one of ModelScope's two sites that has the data set."""
        return display_url(self._endpoint)

    def probe(self, seconds: float) -> None:
        """Get any answer at all from the hub."""
        requests.head(self._endpoint, timeout=seconds, allow_redirects=False)

    def find(self) -> None:
        """Find the data set at the hub."""
        try:
            self._endpoint = HubApi().resolve_endpoint_for_read(self._dataset, repo_type="dataset")
        except NotExistError as error:
            raise HubTrouble(Kind.NO_DATASET, words(error)) from error
        except HubError:
            return  # as in the library: what its look at the two sites cannot tell, the download will

    def download(self, paths: Sequence[str], folder: str | None = None) -> Path:
        """Fetch files, which may be all of a folder; return the folder that the paths are relative to."""
        return Path(
            dataset_snapshot_download(
                self._dataset,
                cache_dir=str(self._cache),
                local_dir=None if self._place is None else str(self._place),
                allow_patterns=[f"{pattern(folder)}/*"] if folder else [pattern(path) for path in paths],
                max_workers=_WORKERS,
                endpoint=self._endpoint,
            )
        )

    def listing(self, folder: str) -> dict[str, int | None]:
        """Return the size (bytes) of each file below a folder."""
        api = ListingApi(endpoint=self._endpoint)
        sizes: dict[str, int | None] = {}
        page = 1
        while True:
            try:
                entries = api.get_dataset_files(
                    self._dataset, root_path=folder, page_number=page, page_size=_PAGE
                )
            except NotExistError:
                return sizes
            for entry in entries:
                if entry.get("Type") != "tree":
                    size = entry.get("Size")
                    sizes[str(entry["Path"])] = None if size is None else int(size)
            if len(entries) < _PAGE:
                return sizes
            page += 1

    def keeps(self, path: str, size: int | None) -> bool:
        """Whether a file's bytes are kept apart from the file: they never are."""
        return False

    def partial_bytes(self, paths: Iterable[str], root: Path) -> int:
        """Return the bytes that have come of files which are not whole yet."""
        total = 0
        for path in paths:
            with suppress(OSError):
                total += (root / f"{path}.incomplete").stat().st_size
        return total

    def discard(self, path: str, root: Path) -> None:
        """Remove a file that is there and is not what it should be."""
        (root / path).unlink(missing_ok=True)

    def clean_up(self) -> None:
        """Leave everything: the next download goes on with it."""


def pattern(path: str) -> str:
    """Return a pattern that matches a path, whatever signs it has.

    The library splits patterns at commas and strips them; a question mark stands for any one character.
    """
    escaped = glob.escape(path).replace(",", "?")
    return f"{escaped[:-1]}?" if escaped[-1:].isspace() else escaped
