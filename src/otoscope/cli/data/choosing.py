"""Which data set, and which of its samples: the flags that all actions share."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from otoscope.benchmark import BENCHMARK, TASK_GROUPS, TASKS
from otoscope.errors import ConfigError

if TYPE_CHECKING:
    from otoscope.config import DataSettings, SelectionSettings


def add_root(parser: argparse.ArgumentParser) -> None:
    """Add the data set's folder as the first argument."""
    parser.add_argument(
        "root",
        nargs="?",
        metavar="ROOT",
        help="the folder that contains Chat/ (or OTOSCOPE_DATA, or the hub's cache)",
    )


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Add the flags that restrict an action to what a run would need."""
    group = parser.add_argument_group("what of it")
    group.add_argument("--tasks", metavar="A,B", help=f"of {', '.join(TASKS)}; or {', '.join(TASK_GROUPS)}")
    group.add_argument("--limit", metavar="N", help="first N of each task, or a fraction of each such as 0.1")
    group.add_argument("--shuffle", action="store_true", help="a random sample: shuffled before the limit")
    group.add_argument("--seed", type=int, metavar="N", help="of the shuffle (default 42)")


def add_follow_links(parser: argparse.ArgumentParser) -> None:
    """Add the flag that allows links which leave the data set."""
    parser.add_argument(
        "--follow-links", action="store_true", help="also read clips behind links out of Chat/"
    )


def chosen(args: argparse.Namespace, environ: Mapping[str, str]) -> tuple[DataSettings, SelectionSettings]:
    """Return what these flags ask for. Raises ``ConfigError``."""
    from otoscope.config import TaskConfig, parse_limit, parse_object, resolve_data

    given: dict[str, Any] = vars(args)
    tasks = [word.strip() for word in (given.get("tasks") or "").split(",") if word.strip()]
    told = parse_object(given["dataset_args"], "--dataset-args") if given.get("dataset_args") else {}
    benchmark: dict[str, Any] = dict(told.get(BENCHMARK) or {})
    if given.get("root"):
        benchmark["local_path"] = given["root"]
    if tasks:
        benchmark["extra_params"] = {"tasks": tasks}
    config = TaskConfig(
        dataset_args={**told, BENCHMARK: benchmark},
        dataset_hub=given.get("dataset_hub"),
        dataset_dir=given.get("dataset_dir"),
        follow_links=given.get("follow_links") or None,
        limit=None if given.get("limit") is None else parse_limit(given["limit"]),
        shuffle=given.get("shuffle") or None,
        seed=given.get("seed"),
    )
    return resolve_data(config, environ)


def root_of(data: DataSettings, how: str) -> Path:
    """Return the data set's folder: the one that was named, else what the hub's cache has.

    Raises ``ConfigError`` that says ``how`` to name one.
    """
    if data.root is not None:
        return data.root
    from otoscope.dataset import METADATA
    from otoscope.hub import cached_roots

    for root in cached_roots(data.hub):
        if (root / "Chat" / METADATA).is_file():
            return root
    raise ConfigError(
        f"no data: name the folder that contains Chat/ ({how}, or OTOSCOPE_DATA), or get it into the hub's "
        "cache with 'otoscope data download'"
    )
