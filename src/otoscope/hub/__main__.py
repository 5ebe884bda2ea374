"""The process that works with a hub: requests come in, events go out, one JSON object a line.

The first line says what is worked with: ``hub``, ``dataset``, ``cache``, ``place``, ``patience``. Each
further one is a request: ``do`` is ``metadata``, ``look`` (below a ``root``) or ``fetch`` (what was looked
for). What comes back is ``progress`` while
something goes on, and then ``done`` or ``error``. When the input ends, so does the process, at once.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from collections.abc import Callable
from concurrent.futures import wait
from pathlib import Path
from typing import Any, TextIO

from otoscope.hub.fetching import Copy, Source, Watch, found
from otoscope.hub.troubles import HubTrouble, hub_trouble
from otoscope.threads import in_thread

_POLL_SECONDS = 0.2

Json = dict[str, Any]


def main() -> None:
    """Work until the input ends."""
    channel = os.fdopen(os.dup(1), "w", encoding="ascii", newline="\n")
    # Whatever the libraries print is no event.
    os.dup2(2, 1)
    requests: queue.Queue[Json] = queue.Queue()
    opening = json.loads(sys.stdin.readline())
    worker = Worker(channel, opening)
    threading.Thread(target=_read, args=(requests, worker), daemon=True).start()
    worker.open()
    while True:
        worker.carry_out(requests.get())


def _read(requests: queue.Queue[Json], worker: Worker) -> None:
    for line in sys.stdin:
        requests.put(json.loads(line))
    worker.leave()


class Worker:
    """Carries requests out and tells of them."""

    def __init__(self, channel: TextIO, opening: Json) -> None:
        self._channel = channel
        self._opening = opening
        self._source: Source | None = None
        self._copy: Copy | None = None

    def open(self) -> None:
        """Load the library, and find the hub and the data set."""

        def find() -> Json:
            self._source = source(self._opening)
            found(self._source)
            place = self._opening["place"]
            self._copy = Copy(self._source, Path(place or ""))
            return {"endpoint": self._source.endpoint}

        self._work(find)

    def carry_out(self, request: Json) -> None:
        """Carry a request out."""
        copy = self._copy
        if copy is None:
            raise RuntimeError("a request came before the hub was found")
        match request["do"]:
            case "metadata":
                self._work(lambda: {"root": str(copy.metadata(request["path"], again=request["again"]))})
            case "look":
                copy.root = Path(request["root"])
                self._work(lambda: {"found": copy.look(request["paths"])})
            case "fetch":
                self._work(lambda: {"failed": copy.fetch(request["paths"])})

    def leave(self) -> None:
        """End the process: threads of the library may wait for the network for minutes."""
        try:
            if self._source is not None:
                self._source.clean_up()
        finally:
            os._exit(0)

    def _work(self, job: Callable[[], Json]) -> None:
        """Do one thing in a thread, telling how far it is; leave where there is no going on."""
        doing = in_thread(job)
        watch = Watch(self._copy, self._opening["patience"]) if self._copy is not None else None
        while True:
            done = bool(wait([doing], _POLL_SECONDS).done)
            error = doing.exception() if done else self._look(watch)
            if error is not None:
                trouble = hub_trouble(error)
                self._tell({"event": "error", "kind": trouble.kind.value, "message": str(trouble)})
                self.leave()
            if done:
                self._tell({"event": "done", **doing.result()})
                return

    def _look(self, watch: Watch | None) -> HubTrouble | None:
        if watch is not None:
            try:
                progress = watch.look()
            except HubTrouble as trouble:
                return trouble
            self._tell({"event": "progress", "files": progress.files, "bytes": progress.bytes})
        return None

    def _tell(self, event: Json) -> None:
        try:
            self._channel.write(json.dumps(event) + "\n")
            self._channel.flush()
        except OSError:
            self.leave()


def source(opening: Json) -> Source:
    """Return the hub behind its own library, which is loaded now."""
    place = opening["place"]
    about = (opening["dataset"], Path(opening["cache"]), None if place is None else Path(place))
    match opening["hub"]:
        case "huggingface":
            from otoscope.hub.from_huggingface import HuggingFace

            return HuggingFace(*about)
        case _:
            from otoscope.hub.from_modelscope import ModelScope

            return ModelScope(*about)


if __name__ == "__main__":
    main()
