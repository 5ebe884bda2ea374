"""``otoscope data show``: one sample as JSON."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from otoscope.cli.data.choosing import chosen, root_of
from otoscope.cli.data.quiet import quiet_decoders
from otoscope.cli.terminal import as_json, complain


def add(actions: Any) -> None:
    """Add the action and its flags."""
    parser = actions.add_parser(
        "show",
        help="one sample as JSON, in the form of the benchmark's page",
        description="Print one sample as JSON: what is sent, the reference answer, and what is known of it.",
    )
    parser.add_argument(
        "key",
        metavar="KEY",
        help="task/dataset/path#uniq_id, as in reports; or TASK#N for the N-th of a task, counted from 0",
    )
    parser.add_argument(
        "--data",
        dest="root",
        metavar="ROOT",
        help="the folder that contains Chat/ (default: OTOSCOPE_DATA, then the hub's cache)",
    )
    parser.set_defaults(carry_out=run)


def run(args: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Print the sample. Raises ``ConfigError`` and ``DatasetError``."""
    from otoscope.audit import example, find_sample, survey

    data, selection = chosen(args, environ)
    told = survey(root_of(data, "--data ROOT"), selection)
    sample = find_sample(args.key, told.samples)
    with quiet_decoders():
        form, failure = example(sample, told.samples)
    if failure is not None:
        complain(f"otoscope: warning: its clip cannot be sent: {failure.message}")
    print(as_json(form))
    return 0
