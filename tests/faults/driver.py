"""Runs the real command as a process, interferes, lets it go on, and says what must be true at the end.

::

    whole = uninterrupted(data, folder)             once for a data set
    evaluation = Evaluation(server, whole, folder)
    process = evaluation.start()                    ... interfere with it, until it ends
    evaluation.interrupted(in_flight=8)             what may be lost by that: at most so many calls
    evaluation.resume()                             the same command, to its end
    found = evaluation.findings()                   lost, paid twice, wrong numbers

What was paid for is what the server says it served; what was kept is what the run's lines hold; what counts
is what the run's outcomes hold. Each served reply has an id of its own, by which the three are compared.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from otoscope import load_run
from otoscope.chat_api.server import PROBE_TEXT
from otoscope.judge import CORRECTION
from otoscope.records import Answer, Failure, Outcome, Reply
from otoscope.runs import Run
from tests.scripted_server import Response, Script, ScriptedServer, Seen, delayed, scripted_answers
from tests.support import command, environment, flags, lines, write_data

SLOTS = 4
"""Calls in flight at each endpoint."""
IN_FLIGHT = 2 * SLOTS
EACH = 3
"""Samples of each task."""
INSIDE = Path(__file__).parent / "inside"
SETTLED = 2.0
"""Seconds that a server gets at most to notice that a client is gone; another client may be there."""
DEADLINE = 60.0
"""Seconds after which whatever is waited for has failed."""
BLANK, REFUSED = "clip 5 of", "clip 11 of"
"""Of the questions of two samples: one is always answered with nothing, the other never."""
PAID = ("usage.", "fingerprint.observed.")
"""Where a summary tells what was paid for."""
SKIPPED_LINES = "skipped_lines"
"""The warning about torn and foreign lines."""


def evaluation_script(*, model: float = 0.01, judge: float = 0.01) -> Script:
    """Return a script whose replies are a function of the request alone, with all that healthy runs meet.

    Answers with thinking, a blank one, a lasting refusal, and judge's replies without scores that are asked
    for again. ``model`` and ``judge`` are delays in seconds.
    """
    plain = scripted_answers()

    def script(seen: Seen, attempt: int) -> Response:
        response = plain(seen, attempt)
        if seen.kind == "judge":
            unclear = CORRECTION not in seen.text and int(seen.digest[:2], 16) < 40
            return Response(text="Both of them are good.") if unclear else response
        if BLANK in seen.text:
            return Response(text="")
        if REFUSED in seen.text:
            return Response(status=400, error={"message": "flagged", "code": "content_filter"})
        if int(seen.digest[:2], 16) < 60:
            return Response(text=f"<think>What is it?</think>{response.text}")
        return response

    return delayed(script, model=model, judge=judge)


_started: list[subprocess.Popen[str]] = []


# --- what is compared -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Whole:
    """An evaluation that nothing interfered with."""

    data: Path
    summary: Mapping[str, Any]
    files: Sequence[str]
    served: Counter[str]
    """How often each request was answered with a completion, by its body's digest."""
    calls: Mapping[str, int]
    """Requests to the model and to the judge."""
    steps: Sequence[str]
    """What it did with its files, one after the other."""


def uninterrupted(data: Path, folder: Path, *more: str) -> Whole:
    """Evaluate a data set without any interference."""
    folder.mkdir(parents=True)
    with ScriptedServer(evaluation_script()) as server:
        nothing = Whole(data, {}, (), Counter(), {}, ())
        evaluation = Evaluation(server, nothing, folder, *more)
        ended = evaluation.run()
        assert ended.code == 0, ended.stderr
        kinds: Counter[str] = Counter(seen.kind for seen in server.requests)
        return Whole(
            data,
            numbers(evaluation.run_dir),
            files_in(evaluation.run_dir),
            Counter(seen.digest for seen in evaluation.completions()),
            kinds,
            evaluation.steps(),
        )


def numbers(run: Path) -> dict[str, Any]:
    """Return a run's summary without what two runs of the same evaluation differ in: times and places."""
    return comparable(json.loads((run / "summary.json").read_text(encoding="utf-8")))


def comparable(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return a summary as :func:`numbers` does."""
    kept: dict[str, Any] = json.loads(json.dumps(summary))
    for name in ("created_at", "timing", "label"):
        kept.pop(name)
    for role in ("model", "judge"):
        kept["fingerprint"]["requested"][role].pop("api_url")
        kept["fingerprint"]["observed"][role].pop("endpoints")
    # Requests that brought no reply count, too: those are what interfering makes.
    calls = kept["usage"]["judge"].pop("calls", None)
    assert calls is None or calls >= kept["usage"]["judge"]["replies"]
    # What the interference left in the files is told: that, and only that, may be new.
    kept["warnings"] = [warning for warning in kept["warnings"] if warning["name"] != SKIPPED_LINES]
    return kept


def differing(one: Any, other: Any, place: str = "") -> Iterator[str]:
    """Yield the places at which two JSON values differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        for name in sorted(one.keys() | other.keys()):
            yield from differing(one.get(name), other.get(name), f"{place}.{name}" if place else name)
    elif one != other:
        yield f"{place}: {one!r:.120} is not {other!r:.120}"


def files_in(folder: Path) -> list[str]:
    """Return every file and folder below a folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def stored_ids(run: Path) -> set[str]:
    """Return the ids of the replies that a run's lines hold; torn lines hold none."""
    found: set[str] = set()
    for name in ("answers.jsonl", "verdicts.jsonl"):
        path = run / name
        for line in path.read_bytes().splitlines() if path.exists() else ():
            with contextlib.suppress(ValueError, KeyError, TypeError):
                found.update(reply["request_id"] for reply in json.loads(line)["replies"])
    return found


def counted_ids(run: Run) -> Counter[str]:
    """Return how often each reply stands in the outcomes of a run: once, if all is well."""
    counted: Counter[str] = Counter()
    for outcome in run.outcomes():
        counted.update(str(reply.request_id) for reply in replies_of(outcome))
    return counted


def replies_of(outcome: Outcome) -> list[Reply]:
    """Return every reply of one sample."""
    answer = outcome.answer
    replies = list(answer.replies) if isinstance(answer, (Answer, Failure)) else []
    for verdict in outcome.verdicts.values():
        replies += verdict.replies
    return [*replies, *outcome.superseded, *outcome.surplus]


# --- driving ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ended:
    """A process that has ended, and what it said."""

    code: int
    stdout: str
    stderr: str


@dataclass
class Findings:
    """What an interference cost, and in words what is wrong. All zeros, if all is well."""

    lost: int = 0
    paid_twice: int = 0
    wrong_numbers: int = 0
    words: list[str] = field(default_factory=list)


class Evaluation:
    """One evaluation of a data set by the real command, in a folder of its own."""

    def __init__(
        self,
        server: ScriptedServer,
        whole: Whole,
        folder: Path,
        *more: str,
        judge: ScriptedServer | None = None,
        timeout: float = DEADLINE,
        retries: int = 5,
    ) -> None:
        self.server = server
        self.judge = judge or server
        self.whole = whole
        self._patience = {"retry_interval": 0.01, "timeout": timeout, "retries": retries}
        self.run_dir = folder / "run"
        self.log = folder / "steps"
        self.source: Path | None = None
        """The run of whose answers this one is a copy."""
        self._more = more
        self._folder = folder
        self._temporary = folder / "temporary"
        self._temporary.mkdir()
        self._kept: set[str] = set()
        """Replies that were on disk when the evaluation was interrupted."""
        self._unkept: set[str] = set()
        """Replies that were served, and were not on disk then."""
        self._too_many: list[str] = []
        """In words: when more was lost than could be in flight."""

    def arguments(self, *more: str) -> list[str]:
        """Return the command's arguments."""
        batch = ("--eval-batch-size", str(SLOTS), "--judge-batch-size", str(SLOTS))
        # One sample of 24 is always refused.
        place = ("--run-dir", str(self.run_dir), "--min-coverage", "0.9")
        patience = ("--generation-config", json.dumps(self._patience))
        judge = ("--judge-model-args", self._judge_arguments())
        return flags(self.server.url, self.whole.data, *place, *batch, *patience, *judge, *self._more, *more)

    def judging(self, source: Path) -> list[str]:
        """Return the arguments of ``otoscope judge`` that judge a copy of a run's answers."""
        place = ("--run-dir", str(self.run_dir), "--min-coverage", "0.9")
        judge = ("--judge-model-args", self._judge_arguments(), "--judge-batch-size", str(SLOTS))
        return ["judge", str(source), *place, *judge]

    def _judge_arguments(self) -> str:
        endpoint = {"model_id": "scripted-judge", "api_url": self.judge.url, "api_key": "judge-key"}
        return json.dumps({**endpoint, "generation_config": self._patience})

    def start(
        self,
        *more: str,
        arguments: Sequence[str] | None = None,
        prefix: Sequence[str] = (),
        page: bool = False,
        environ: Mapping[str, str] | None = None,
        **plan: Any,
    ) -> subprocess.Popen[str]:
        """Start the command; ``plan`` is for the ``sitecustomize`` that it loads.

        ``prefix`` is what starts it, such as ``unshare``; ``arguments`` replace those of the evaluation.
        """
        plan = {"roots": [str(self.run_dir), str(self.whole.data)], "log": str(self.log), **plan}
        process = subprocess.Popen(
            [*prefix, *command(*(arguments or self.arguments(*more)), page=page)],
            env=environment(
                **{
                    "PYTHONPATH": os.pathsep.join([str(INSIDE), *sys.path]),
                    "FAULT_PLAN": json.dumps(plan),
                    "TMPDIR": str(self._temporary),
                    **(environ or {}),
                }
            ),
            cwd=self._folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        _started.append(process)
        return process

    def run(self, *more: str, **options: Any) -> Ended:
        """Run the command to its end."""
        return end_of(self.start(*more, **options))

    def steps(self) -> list[str]:
        """Return what all processes did with the run's and the data set's files."""
        return self.log.read_text(encoding="utf-8").splitlines() if self.log.exists() else []

    @property
    def _servers(self) -> list[ScriptedServer]:
        return [self.server, *([self.judge] if self.judge is not self.server else [])]

    def requests(self) -> list[Seen]:
        """Return every request so far, to the model and to the judge."""
        return [seen for server in self._servers for seen in server.requests]

    def completions(self) -> list[Seen]:
        """Return the requests that were answered with a completion, but for those that came too late.

        On a machine that is busy a server may answer when the client has turned away already.
        """
        late = self._patience["timeout"] * 0.8
        seen = (one for one in self.requests() if not is_probe(one))
        return [one for one in seen if one.served_at is not None and one.served_at - one.at < late]

    def served(self) -> set[str]:
        """Return the ids of the replies that were served."""
        return {seen.request_id for seen in self.completions()}

    def interrupted(self, *, in_flight: int) -> None:
        """Note what is on disk after an interference, that may have cost so many calls in flight.

        A server may still answer, for a moment, a client that is no more: those calls were in flight, too.
        """
        end = time.monotonic() + SETTLED
        while any(server.open_connections for server in self._servers) and time.monotonic() < end:
            time.sleep(0.005)
        kept = stored_ids(self.run_dir) | (stored_ids(self.source) if self.source else set())
        unkept = self.served() - kept - self._unkept
        if len(unkept) > in_flight:
            self._too_many.append(f"{in_flight} calls were in flight, and not kept were {sorted(unkept)}")
        self._kept |= kept
        self._unkept |= unkept

    def findings(self, *, stray: int = 0) -> Findings:
        """Compare the finished run with the uninterrupted one, what was served with what counts.

        ``stray`` is how many replies another process, which did not know yet that it had lost the lock, may
        have been given and may have written: they are told as paid for, and change no number beside that.
        """
        found = Findings(lost=len(self._too_many), words=list(self._too_many))
        counted = counted_ids(load_run(self.run_dir))
        lost = sorted(self._kept - counted.keys())
        found.lost += len(lost)
        found.words += [f"was on disk and counts no more: {reply}" for reply in lost]
        served = self.completions()
        again = Counter(seen.digest for seen in served) - self.whole.served
        again -= Counter(seen.digest for seen in served if seen.request_id in self._unkept)
        found.paid_twice = max(0, again.total() - stray)
        found.words += [f"paid for {count} times too often: {digest}" for digest, count in again.items()]
        wrong = [f"counts {count} times: {reply}" for reply, count in counted.items() if count > 1]
        wrong += [f"counts, and was never served: {reply}" for reply in counted.keys() - self.served()]
        for summary in (numbers(self.run_dir), comparable(load_run(self.run_dir).summary.to_json())):
            differences = differing(summary, self.whole.summary)
            wrong += [told for told in differences if not (stray and told.startswith(PAID))]
        wrong += [f"left behind: {name}" for name in set(files_in(self.run_dir)) - set(self.whole.files)]
        wrong += [f"is not there: {name}" for name in set(self.whole.files) - set(files_in(self.run_dir))]
        wrong += [f"left behind: {path}" for path in self._temporary.iterdir()]
        found.wrong_numbers = len(wrong)
        found.words += wrong
        return found


def end_of(process: subprocess.Popen[str], seconds: float = DEADLINE) -> Ended:
    """Wait for a process, and kill it when that takes too long."""
    try:
        stdout, stderr = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        _, stderr = process.communicate()
        raise AssertionError(f"still running after {seconds:.0f} s: {stderr[-2000:]}") from None
    return Ended(process.returncode, stdout, stderr)


def until(
    condition: Callable[[], object], process: subprocess.Popen[str] | None = None, seconds: float = DEADLINE
) -> bool:
    """Wait for something to become true; returns whether it did before the process ended."""
    end = time.monotonic() + seconds
    while not condition():
        if process is not None and process.poll() is not None:
            return False
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.001)
    return True


def end_all() -> None:
    """Kill what a test that failed has left running."""
    while _started:
        process = _started.pop()
        if process.poll() is None:
            process.kill()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        process.wait()


def kill(process: subprocess.Popen[str]) -> bool:
    """Kill a process by SIGKILL; returns whether it was still running."""
    process.kill()
    process.communicate()
    return process.returncode == -signal.SIGKILL


def spin(dice: random.Random, seconds: float) -> None:
    """Let a random part of so many seconds pass."""
    time.sleep(dice.uniform(0, seconds))


def is_probe(seen: Seen) -> bool:
    """Whether a request only asked whether a completion works: it is of no sample, and counts nowhere."""
    return seen.text == PROBE_TEXT


def requests_of(server: ScriptedServer, kind: str) -> int:
    """Return how many requests of a kind have come so far."""
    return sum(seen.kind == kind for seen in server.requests)


def line_count(run: Path) -> int:
    """Return how many lines a run holds so far."""
    files = [run / name for name in ("answers.jsonl", "verdicts.jsonl")]
    return sum(path.read_bytes().count(b"\n") for path in files if path.exists())


def stored_lines(run: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's answers and verdicts."""
    return [line for name in ("answers.jsonl", "verdicts.jsonl") for line in lines(run / name)]


def small_data(folder: Path, *, each: int = EACH, seconds: float = 0.1) -> Path:
    """Write a data set of which one sample is answered with nothing and one is refused."""
    return write_data(folder, each=each, seconds=seconds)


def large_metadata(folder: Path, *, records: int = 6000) -> Path:
    """Write a data set that takes time to read: behind its samples come records that a limit leaves out."""
    path = write_data(folder, each=EACH) / "Chat" / "Chat_meta.json"
    known = json.loads(path.read_text(encoding="utf-8"))
    more = [
        {**known[number % len(known)], "uniq_id": f"more-{number}", "path": f"more_{number}.wav"}
        for number in range(records)
    ]
    path.write_text(json.dumps([*known, *more]), encoding="utf-8")
    return folder
