"""What several test modules need: a small data set on disk, settings, the real command as a process."""

from __future__ import annotations

import json
import math
import os
import struct
import subprocess
import sys
import wave
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from otoscope.benchmark import BENCHMARK, TASKS
from otoscope.config import EndpointSettings, Settings, TaskConfig

REPOSITORY = Path(__file__).parent.parent
DEMO = REPOSITORY / "src" / "otoscope" / "demo"
FAST = {"retry_interval": 0.01}
"""Generation settings under which retries cost a test no time."""


def write_wav(path: Path, *, seconds: float = 0.1, tone: float = 440.0, rate: int = 8000) -> None:
    """Write a 16-bit mono wav with one tone, different bytes for each tone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    frames = [int(12000 * math.sin(2 * math.pi * tone * i / rate)) for i in range(int(seconds * rate))]
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(struct.pack(f"<{len(frames)}h", *frames))


def write_data(
    root: Path, *, each: int = 2, tasks: Sequence[str] = tuple(TASKS), seconds: float = 0.1
) -> Path:
    """Write a data set with ``each`` samples of each task, every clip with bytes of its own."""
    records: list[dict[str, Any]] = []
    for task in tasks:
        for number in range(each):
            uniq_id = len(records)
            name = f"clip_{number}.wav"
            write_wav(root / "Chat" / f"{task}_tones" / name, seconds=seconds, tone=200 + 7 * uniq_id)
            records.append(
                {
                    "path": name,
                    "question": f"What is heard in clip {uniq_id} of {task}?",
                    "answer_gt": f"A steady tone, number {uniq_id}.",
                    "task_name": task,
                    "dataset_name": "tones",
                    "uniq_id": uniq_id,
                    "meta_info": str({"tone": uniq_id}),
                }
            )
    (root / "Chat" / "Chat_meta.json").write_text(json.dumps(records), encoding="utf-8")
    return root


def config(url: str, data: Path, run_dir: Path | None = None, **more: Any) -> TaskConfig:
    """Return settings for a model and a judge behind one scripted server, with quick retries.

    ``extra_params`` and ``judge_args`` are merged into their objects; everything else is a field.
    """
    extra = more.pop("extra_params", {})
    judge: dict[str, Any] = {"model_id": "scripted-judge", "api_url": url, "api_key": "judge-key"}
    judge.update({"generation_config": FAST, **more.pop("judge_args", {})})
    return TaskConfig(
        **{
            "model": "scripted-model",
            "api_url": url,
            "api_key": "model-key",
            "dataset_args": {BENCHMARK: {"local_path": str(data), "extra_params": extra}},
            "judge_model_args": judge,
            "generation_config": FAST,
            "run_dir": str(run_dir) if run_dir is not None else None,
            **more,
        }
    )


def flags(url: str, data: Path, *more: str) -> list[str]:
    """Return the arguments of the seed command, against a scripted server, with quick retries."""
    return [
        "eval", "--model", "scripted-model", "--api-url", url, "--api-key", "model-key",
        "--datasets", "air_bench_chat", "--data", str(data),
        "--generation-config", "retry_interval=0.01",
        "--judge-model-args",
        json.dumps(
            {
                "model_id": "scripted-judge", "api_url": url, "api_key": "judge-key",
                "generation_config": {"retry_interval": 0.01},
            }
        ),
        *more,
    ]  # fmt: skip


def write_config(folder: Path, url: str, data: Path, models: str, more: str = "") -> str:
    """Write a file of settings for models and a judge behind one scripted server; return its name."""
    (folder / "two.yaml").write_text(
        f"dataset_args: {{air_bench_chat: {{local_path: {data}}}}}\n"
        f"api_url: {url}\ngeneration_config: {{retry_interval: 0.01}}\n"
        f"judge_model_args:\n  model_id: j\n  api_url: {url}\n  api_key: none\n"
        f"  generation_config: {{retry_interval: 0.01}}\n{more}\nmodels:\n{models}",
        encoding="utf-8",
    )
    return "two.yaml"


def command(*arguments: str, page: bool = False) -> list[str]:
    """Return the real command, as a process would start it.

    Without ``page``, what evaluates leaves its page out: it takes seconds, and is tested by itself.
    """
    evaluates = arguments[:1] in (("eval",), ("demo",), ("judge",)) and "--help" not in arguments
    more = () if page or not evaluates else ("--no-html",)
    return [sys.executable, "-X", "utf8", "-m", "otoscope", *arguments, *more]


def environment(**variables: str) -> dict[str, str]:
    """Return this process's environment without anything that Otoscope reads, plus ``variables``."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OPENAI_", "OTOSCOPE_"))}
    return {**kept, "NO_COLOR": "1", "COLUMNS": "100", **variables}


def otoscope(
    *arguments: str,
    cwd: Path | None = None,
    environ: Mapping[str, str] | None = None,
    timeout: float = 60,
    page: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run the real command to its end and return what it printed; ``page`` as in :func:`command`."""
    return subprocess.run(
        command(*arguments, page=page),
        cwd=cwd,
        env=environment(**(environ or {})),
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=timeout,
        check=False,
    )


def lines(path: Path) -> list[dict[str, Any]]:
    """Read a JSON Lines file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def model_endpoint(settings: Settings) -> EndpointSettings:
    """Return the settings of the model's endpoint."""
    assert isinstance(settings.model, EndpointSettings)
    return settings.model


def judge_endpoint(settings: Settings) -> EndpointSettings:
    """Return the settings of the judge's endpoint."""
    assert settings.judge is not None
    assert isinstance(settings.judge.endpoint, EndpointSettings)
    return settings.judge.endpoint
