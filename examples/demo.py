"""`make demo`: the whole of Otoscope on three bundled clips, against a scripted server.

The server only pretends: its answers say so, and its verdicts are drawn from a hash of the prompt. What is
real is everything else: the clips, the requests, both orders, the run directory, the report.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "src" / "otoscope" / "demo"
SERVER = ROOT / "tests" / "scripted_server.py"
TASKS = "speech_QA,sound_QA,music_QA"


def main() -> int:
    """Start the scripted server, evaluate one sample of three tasks against it, and stop it again."""
    print(
        "This demonstration talks to a SCRIPTED server: no model hears the clips, no judge reads the answers."
    )
    print("The numbers below mean nothing; they show what a run prints.\n")
    delays = ["--delay-model", "0.3", "--delay-judge", "0.2"]
    server = subprocess.Popen(  # noqa: S603 (our own file)
        [sys.executable, str(SERVER), "--port", "0", *delays], stdout=subprocess.PIPE, text=True
    )
    try:
        line = server.stdout.readline() if server.stdout is not None else ""
        url = line.rpartition(" ")[2].strip()
        command = [
            "otoscope", "eval", "--model", "scripted-model", "--api-url", url, "--api-key", "EMPTY",
            "--datasets", "air_bench_chat", "--data", str(DATA), "--tasks", TASKS, "--limit", "1",
            "--judge-model", "scripted-judge", "--judge-api-url", url, "--judge-api-key", "EMPTY",
            "--label", "scripted demonstration",
        ]  # fmt: skip
        print("$ " + shlex.join(command), flush=True)
        return subprocess.call([sys.executable, "-m", *command])  # noqa: S603 (our own command)
    finally:
        server.terminate()
        server.wait(timeout=10)
        if server.stdout is not None:
            server.stdout.close()


if __name__ == "__main__":
    sys.exit(main())
