"""The process that tells a tracker of runs: a job comes in, and one line of JSON for each run goes out."""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from otoscope.errors import OtoscopeError
from otoscope.runs import load_run
from otoscope.tracking.logged import logged
from otoscope.tracking.tracker import Tracker

_LONGEST = 600

Json = dict[str, Any]


def main() -> None:
    """Do the job on stdin."""
    job = json.load(sys.stdin)
    channel = os.fdopen(os.dup(1), "w", encoding="ascii", newline="\n")
    # Whatever the library prints is no result.
    os.dup2(2, 1)
    for run in job["runs"]:
        channel.write(json.dumps(_told(job, Path(run))) + "\n")
        channel.flush()
    channel.close()
    # Threads of the library may wait for the network; all that was asked of it is done.
    sys.stderr.flush()
    os._exit(0)


def _told(job: Json, path: Path) -> Json:
    try:
        run = logged(load_run(path, scoring=job["scoring"], view=job["view"]), page=job["page"])
    except OtoscopeError as error:
        return {"trouble": str(error)}
    try:
        where = tracker(job["tracker"]).log(run)
    except Exception as error:  # whatever a tracker's library raises is trouble with the tracker
        traceback.print_exc()
        return {"trouble": " ".join(str(error).split())[:_LONGEST].rstrip(".") or type(error).__name__}
    return {"where": where, "with_page": run.page is not None}


def tracker(name: str) -> Tracker:
    """Return the tracker behind its own library, which is loaded now."""
    match name:
        case "mlflow":
            from otoscope.tracking.mlflow import MLflow

            return MLflow()
        case _:
            raise ValueError(f"there is no tracker {name!r}")


if __name__ == "__main__":
    main()
