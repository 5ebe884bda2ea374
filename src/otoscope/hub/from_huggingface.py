"""Hugging Face, behind its own library."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from huggingface_hub import HfApi, constants, get_session, hf_hub_download, snapshot_download
from huggingface_hub.errors import EntryNotFoundError
from huggingface_hub.hf_api import DatasetInfo, RepoFile

from otoscope.config import display_url

_WORKERS = 8


class FilesError(Exception):
    """Files that could not be fetched, each with the reason."""

    def __init__(self, failed_files: Mapping[str, BaseException]) -> None:
        super().__init__(f"{len(failed_files)} files could not be fetched")
        self.failed_files = failed_files


class HuggingFace:
    """A data set at Hugging Face, kept in ``place``, or in the library's ``cache``.

    The library goes on with a partial file after each 10 MB of one download, and starts it anew in the next.
    """

    def __init__(self, dataset: str, cache: Path, place: Path | None) -> None:
        self._dataset = dataset
        self._place = place
        self._cache = cache
        self._repository = cache / f"datasets--{dataset.replace('/', '--')}"
        self._revision: str | None = None
        self._root = Path()
        self._blobs: dict[str, str] = {}
        """Names of the files in the cache, by path."""

    @property
    def endpoint(self) -> str:
        """The hub's URL for people."""
        return display_url(constants.ENDPOINT)

    def probe(self, seconds: float) -> None:
        """Get any answer at all from the hub."""
        get_session().head(constants.ENDPOINT, timeout=seconds)

    def find(self) -> None:
        """Find the data set at the hub."""
        self._about(30)

    def download(self, paths: Sequence[str], folder: str | None = None) -> Path:
        """Fetch files, which may be all of a folder; return the folder that the paths are relative to.

        Single files are not looked for by patterns: the library would match each with the whole repository.
        """
        if self._revision is not None and folder is None:
            return self._download_each(paths)
        root = Path(
            snapshot_download(
                self._dataset,
                repo_type="dataset",
                revision=self._revision,
                cache_dir=self._cache,
                local_dir=self._place,
                allow_patterns=[f"{glob.escape(folder)}/*"] if folder else [glob.escape(p) for p in paths],
            )
        )
        if self._revision is None:
            # From now on it is one version of the data set, whatever is uploaded meanwhile.
            self._root = root
            self._revision = root.name if self._place is None else self._about(30).sha
        return root

    def _download_each(self, paths: Sequence[str]) -> Path:
        """Fetch files one by one; return the root. Raises ``FilesError`` that says what came of each."""

        def fetch(path: str) -> None:
            hf_hub_download(
                self._dataset,
                path,
                repo_type="dataset",
                revision=self._revision,
                cache_dir=self._cache,
                local_dir=self._place,
            )

        with ThreadPoolExecutor(_WORKERS) as threads:
            fetched = {path: threads.submit(fetch, path) for path in paths}
        failed = {path: error for path, one in fetched.items() if (error := one.exception()) is not None}
        if failed:
            raise FilesError(failed)
        return self._root

    def listing(self, folder: str) -> dict[str, int | None]:
        """Return the size (bytes) of each file below a folder."""
        sizes: dict[str, int | None] = {}
        try:
            for entry in HfApi().list_repo_tree(
                self._dataset, folder, recursive=True, revision=self._revision, repo_type="dataset"
            ):
                if isinstance(entry, RepoFile):
                    sizes[entry.path] = entry.size if entry.lfs is None else entry.lfs.size
                    self._blobs[entry.path] = entry.blob_id if entry.lfs is None else entry.lfs.sha256
        except EntryNotFoundError:
            return sizes
        return sizes

    def keeps(self, path: str, size: int | None) -> bool:
        """Whether the cache keeps a file's bytes, so that only a link is missing."""
        if self._place is None and path in self._blobs:
            with suppress(OSError):
                return (self._repository / "blobs" / self._blobs[path]).stat().st_size == size
        return False

    def partial_bytes(self, paths: Iterable[str], root: Path) -> int:
        """Return the bytes that have come of files which are not whole yet, for whichever process."""
        total = 0
        for folder in self._partial_folders(paths):
            for partial in folder.glob("*.incomplete"):
                with suppress(OSError):
                    total += partial.stat().st_size
        return total

    def discard(self, path: str, root: Path) -> None:
        """Remove a file that is there and is not what it should be, with what it links to in the cache."""
        place = root / path
        blobs = self._repository.resolve() / "blobs"
        if place.is_symlink() and (blob := place.resolve()).parent == blobs:
            blob.unlink(missing_ok=True)
        place.unlink(missing_ok=True)

    def clean_up(self) -> None:
        """Remove the partial files of this process: nobody goes on with them."""
        with suppress(OSError):
            for descriptor in Path("/proc/self/fd").iterdir():
                with suppress(OSError):
                    opened = descriptor.readlink()
                    if opened.suffix == ".incomplete":
                        opened.unlink()

    def _about(self, seconds: float) -> DatasetInfo:
        return HfApi().dataset_info(self._dataset, expand=["sha"], timeout=seconds)

    def _partial_folders(self, paths: Iterable[str]) -> set[Path]:
        if self._place is None:
            return {self._repository / "blobs"}
        kept = self._place / ".cache" / "huggingface" / "download"
        return {(kept / path).parent for path in paths}
