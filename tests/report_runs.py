"""Run directories for the tests of written reports: small and fixed, one of them with hostile texts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from otoscope.benchmark import TASKS
from otoscope.judge import PROMPT_SHA256, judge_identity
from otoscope.records import (
    Answer,
    AudioClip,
    Failure,
    FailureKind,
    Order,
    Reply,
    Sample,
    Verdict,
    canonical_digest,
)
from otoscope.reports.reported import Reported
from otoscope.runs import load_run, write_results
from otoscope.store import ANSWERS, SAMPLES, SUMMARY, RunStore

URL, JUDGE_URL = "http://gpu-17.lab.example:8000/v1", "https://judge.example/v1"
STARTED = 1_800_000_000.0
PROMPT = {
    "template": "{question}",
    "system": None,
    "part_order": "audio-first",
    "audio_part": "input_audio",
    "answer_filter": "strip-thinking",
    "audio_policy": "as-is",
    "control": None,
}
POLICY = "rate=16000,mono,max-seconds=4,over=truncate,format=wav"
CONVERTER = "soundfile 0.13.1, libsndfile 1.2.2, soxr 1.1.0"
HOSTILE = (
    "=1+1", "@SUM(A1)", "a | b", "`x` *y* _z_ ~~w~~", "<script>alert(1)</script>", '"><img src=x onerror=y>',
    "[text](http://evil.example) www.evil.example a@b.example", "1. first", "- point", "# head", "> quote",
    r"\input{/etc/passwd} $x^2$ 100 % & ~ #1 {y}", "line one\nline two\r\n\tthree",
    "你好，世界", "emoji 🎧👩‍🔬",
    "cafe\u0301 na\u00efve ﬁ x\u0304", "\u202eright\u202c to left: שלום", "nul \x00 esc \x1b[31m bell \x07",
    "half \ud800 pair", "''quoted'' --- \"x\" ?` !`", "", "   ", "**", "[6.85]", "|",
    "\\", "a" * 5000, "مرحبا بالعالم",
)  # fmt: skip
"""Texts that some format would take for more than texts."""


def a_sample(number: int, task: str, **more: Any) -> Sample:
    """Return one sample of a task."""
    folder = TASKS[task].folders[number % len(TASKS[task].folders)]
    fields = {
        "task": task,
        "dataset": folder,
        "path": f"clip_{number}.wav",
        "uniq_id": number,
        "question": f"What is heard in clip {number}?",
        "reference": f"A steady tone, number {number}.",
        "description": str({"tone": number}),
        **more,
    }
    return Sample(**fields, audio_path="", digest=canonical_digest(fields))


def a_reply(text: str | None, *, judge: bool = False, **more: Any) -> Reply:
    """Return a reply as a good server gives it."""
    number = more.pop("number", 0)
    told: dict[str, Any] = {
        "finish_reason": "stop",
        "usage": {"prompt_tokens": 500 + number, "completion_tokens": 20},
        "model": "gpt-4-0125-preview" if judge else "qwen2-audio",
        "request_id": f"gpu-17.lab.example-{number}",
        "parameters": {"temperature": 0, "max_tokens": 1024 if judge else 2048},
        "endpoint": JUDGE_URL if judge else URL,
        "started_at": STARTED + number + (1000 if judge else 0),
        "latency": 1.25,
        **more,
    }
    return Reply(text=text, **told)


def a_clip(number: int) -> AudioClip:
    """Return the facts of a clip; two questions share one."""
    clip = number // 2
    return AudioClip(
        f"/home/alice/data/clip_{clip}.wav",
        f"{clip:064x}",
        32_000 + clip,
        7,
        "wav",
        1.0 + clip % 9,
        16_000,
        1,
    )


def manifest(**more: Any) -> dict[str, Any]:
    """Return a manifest as ``eval`` writes it, with paths and hosts in all places that have some."""
    judge = {
        "name": "gpt-4-0125-preview",
        "revision": None,
        "api_url": JUDGE_URL,
        "parameters": {"temperature": 0, "max_tokens": 1024},
        "extra_body": {},
        "extra_headers": [],
        "protocol": "default",
        "do_swap": True,
        "prompt_sha256": PROMPT_SHA256,
        "parser_version": 1,
        **more.pop("judge", {}),
    }
    model = {
        "name": "qwen2-audio",
        "revision": None,
        "api_url": URL,
        "parameters": {"temperature": 0, "max_tokens": 2048},
        "extra_body": {},
        "extra_headers": [],
        **more.pop("model", {}),
    }
    judged = more.pop("judged", True)
    prompt = {**PROMPT, **more.pop("prompt", {})}
    return {
        "run_id": "0123456789abcdef",
        "created_at": "2026-11-30T10:15:00Z",
        "package_version": "0.1.0",
        "label": None,
        "tags": {},
        "settings": {
            "model": "qwen2-audio",
            "api_url": URL,
            "dataset_args": {"air_bench_chat": {"local_path": "/home/alice/data"}},
        },
        "dataset": {
            "root": "/home/alice/data",
            "digest": "d" * 64,
            "task_sizes": {name: task.samples for name, task in TASKS.items()},
            "descriptions_converted": 0,
        },
        "selection": {"tasks": list(TASKS), "limit": None, "shuffle": False, "seed": 42, "samples": 0},
        "fingerprint": {"model": model, "prompt": prompt, "judge": judge if judged else None},
        "judge_id": judge_identity(judge) if judged else None,
        **more,
    }


Ended = tuple[Sample, Answer | Failure | None, Mapping[Order, Verdict | Failure]]
"""A sample, its answer, and what came of each order."""


def judged(
    sample: Sample, text: str, scores: tuple[int, int], *, replies: Sequence[str] = (), **more: Any
) -> Ended:
    """Return a sample whose answer got these scores (its own, the reference's), a point more when first."""
    number = int(sample.uniq_id)
    answer = Answer(
        raw_text=text, text=text, filter="strip-thinking", replies=(a_reply(text, number=number, **more),)
    )
    verdicts: dict[Order, Verdict | Failure] = {}
    for order in Order:
        own = min(10, scores[0] + (order is Order.ANSWER_FIRST))
        reference = min(10, scores[1] + (order is Order.REFERENCE_FIRST))
        first, second = (reference, own) if order is Order.REFERENCE_FIRST else (own, reference)
        told = (*replies, f"{first} {second}")
        verdicts[order] = Verdict(
            order=order,
            judge_id="",
            answer_sha256=answer.sha256,
            score_kind="integer",
            reference_score=reference,
            answer_score=own,
            replies=tuple(
                a_reply(one, judge=True, number=number, started_at=STARTED + 1000 + number + k)
                for k, one in enumerate(told)
            ),
        )
    return sample, answer, verdicts


def small_run() -> list[Ended]:
    """Return four samples of each task: scored, but for one that failed to answer and one verdict."""
    ended: list[Ended] = []
    for number in range(4 * len(TASKS)):
        task = list(TASKS)[number % len(TASKS)]
        ended.append(
            judged(a_sample(number, task), f"A tone, number {number}.", ((number * 7) % 10, 7 + number % 2))
        )
    sample, _, _ = ended[3]
    ended[3] = (sample, Failure(FailureKind.TIMEOUT, "no complete reply within 600 s", 6), {})
    sample, answer, verdicts = ended[12]
    broken = Failure(
        FailureKind.UNPARSEABLE, "the judge said 'no'", 3, (a_reply("no", judge=True, number=12),)
    )
    ended[12] = (sample, answer, {**verdicts, Order.ANSWER_FIRST: broken})
    return ended


def hostile_run() -> list[Ended]:
    """Return a run in which every text, key part and name is one that some format would take for more."""
    ended = []
    for number, text in enumerate(HOSTILE):
        task = list(TASKS)[number % len(TASKS)]
        path = f"{text[:40] or 'x'}_{number}.wav".replace("\ud800", "?").replace("/", "_")
        sample = a_sample(number, task, question=text, reference=text, description=text, path=path)
        ended.append(judged(sample, text, (number % 10, 8)))
    return ended


Facts = Callable[[dict[str, Any], int], dict[str, Any] | None]
"""Makes a clip's facts, as a line has them, of those of an untouched clip and the sample's number."""


def truncated(clip: dict[str, Any], _number: int) -> dict[str, Any]:
    """Return the facts of a clip of 44.1 kHz and two channels that was sent under ``POLICY``."""
    seconds = min(4.0, clip["seconds"])
    sent = {
        "sha256": "5" * 64,
        "bytes": 9,
        "format": "wav",
        "seconds": seconds,
        "rate": 16_000,
        "channels": 1,
    }
    changed = ["44.1 to 16 kHz", "2 channels to 1"]
    return {**clip, "rate": 44_100, "channels": 2, "changed": changed, "sent": sent, "converter": CONVERTER}


def controlled(control: str) -> Facts:
    """Return what makes the facts of clips in a control run."""

    def silent(clip: dict[str, Any], _number: int) -> dict[str, Any]:
        sent = {name: clip[name] for name in ("bytes", "format", "seconds", "rate", "channels")}
        return {**clip, "control": control, "sent": {"sha256": "0" * 64, **sent}}

    def shuffled(clip: dict[str, Any], number: int) -> dict[str, Any]:
        other = f"speech_QA/iemocap/clip_{number + 1}.wav"
        return {**clip, "sha256": f"{number:x}".rjust(64, "e"), "control": control, "from": other}

    return {"silence": silent, "shuffled": shuffled, "no-audio": lambda _clip, _number: None}[control]


def write_run(
    path: Path, ended: Iterable[Ended], *, finished: bool = True, facts: Facts | None = None, **more: Any
) -> Path:
    """Write a run directory, as ``eval`` leaves it. ``facts`` are the clips', ``more`` is the manifest's."""
    about = manifest(**more)
    ended = list(ended)
    about["selection"] = {**about["selection"], "samples": len(ended)}
    with RunStore.create(path, about) as store:
        store.open_for_writing()
        for sample, answer, verdicts in ended:
            if answer is not None:
                failed = isinstance(answer, Failure) and answer.kind is FailureKind.MISSING_AUDIO
                store.append_answer(sample, None if failed else a_clip(int(sample.uniq_id)), answer)
            for order, verdict in verdicts.items():
                if isinstance(answer, Answer) and about["judge_id"]:
                    store.append_verdict(sample, order, about["judge_id"], answer.sha256, verdict)
    if facts is not None:
        _tell_clips(path / ANSWERS, facts)
    with RunStore.open(path) as store:
        write_results(store, [sample for sample, _, _ in ended])
    if not finished:
        (path / SUMMARY).unlink()
    assert (path / SAMPLES).exists()
    return path


def _tell_clips(file: Path, facts: Facts) -> None:
    lines = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    for line in lines:
        if line["clip"] is not None:
            line["clip"] = facts(line["clip"], int(line["key"].rpartition("#")[2]))
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")


def control_run(path: Path, control: str, ended: Iterable[Ended] | None = None, **more: Any) -> Path:
    """Write a control run."""
    prompt = {"control": control, **more.pop("prompt", {})}
    return write_run(path, ended or small_run(), facts=controlled(control), prompt=prompt, **more)


def reported(path: Path, *, scoring: str = "default", view: str = "full") -> Reported:
    """Return a run directory as reporters see it."""
    return Reported.of(load_run(path, scoring=scoring, view=view))
