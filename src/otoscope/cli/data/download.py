"""``otoscope data download``: the clips that the chosen samples need, from a hub."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from otoscope.choices import HUBS
from otoscope.cli.data.choosing import add_selection, chosen
from otoscope.cli.terminal import as_json, complain, console
from otoscope.errors import DatasetError, RunInterruptedError

_KEPT = "what has come is kept; the same command goes on"


def add(actions: Any) -> None:
    """Add the action and its flags."""
    parser = actions.add_parser(
        "download",
        help="get the metadata, and the clips of the tasks that you evaluate",
        description="Get the metadata and the clips that the chosen samples need from a hub: what is "
        "missing, empty or of another size than the hub's. An interrupted download goes on. The hub's own "
        "settings name mirrors, tokens and caches: MODELSCOPE_ENDPOINT, MODELSCOPE_API_TOKEN, "
        "MODELSCOPE_CACHE; HF_ENDPOINT, HF_TOKEN, HF_HOME, HF_HUB_CACHE.",
        epilog="Exit codes: 0 every file is here; 3 some are not, or the hub is out of reach; 130 "
        "interrupted; 143 terminated.",
    )
    add_selection(parser)
    group = parser.add_argument_group("from where, to where")
    group.add_argument(
        "--hub",
        "--dataset-hub",
        dest="dataset_hub",
        choices=HUBS,
        help=f"default {HUBS[0]}; huggingface needs pip install 'otoscope[hf]'",
    )
    group.add_argument(
        "--dest",
        metavar="DIR",
        help="make DIR/Chat/, for --data DIR (default: the hub's cache, for no --data)",
    )
    group.add_argument("--dataset-dir", metavar="DIR", help="the hub's cache folder (default: its own)")
    group.add_argument(
        "--dataset-args", metavar="JSON", help='{"air_bench_chat": {"dataset_id": ...}} for a copy'
    )
    parser.add_argument("--dry-run", action="store_true", help="show what would be fetched; fetch no clip")
    parser.add_argument("--json", action="store_true", help="for machines, on stdout")
    parser.set_defaults(carry_out=run)


def run(args: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Download, and print what came. Raises ``DatasetError`` and ``ConfigError``."""
    from otoscope.obtaining import download, plan
    from otoscope.reports.download import download_to_json, plan_to_json, render_download, render_plan
    from otoscope.reports.live import LiveDisplay

    data, selection = chosen(args, environ)
    dest = Path(args.dest).expanduser().absolute() if args.dest else None
    with _stoppable(), LiveDisplay(console(stderr=True)) as display:
        if args.dry_run:
            planned = plan(data.hub, selection, display, dest=dest, fetch_metadata=True)
        else:
            came = download(data.hub, selection, display, dest=dest)
    if args.dry_run:
        _print(plan_to_json(planned)) if args.json else render_plan(planned, console())
        return 0
    _print(download_to_json(came)) if args.json else render_download(came, selection, console())
    if came.lacking:
        complain(
            f"otoscope: {len(came.lacking):,} files could not be had. A run goes on without them: their "
            "samples fail as missing_audio"
        )
        return DatasetError.exit_code
    return 0


def _print(value: Any) -> None:
    print(as_json(value))


@contextmanager
def _stoppable() -> Iterator[None]:
    """End at Ctrl-C and SIGTERM alike, saying how to go on."""

    def stop(_number: int, _frame: object) -> None:
        raise RunInterruptedError(_KEPT, terminated=True)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt:
        raise RunInterruptedError(_KEPT) from None
    finally:
        signal.signal(signal.SIGTERM, before)
