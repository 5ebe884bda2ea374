"""Runs on disk for the tests of reports: as large and as varied as asked for, the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from otoscope import dataset
from otoscope.benchmark import TASKS
from otoscope.config import SelectionSettings
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
    text_digest,
)
from otoscope.reports.reported import Reported
from otoscope.runs import load_run, write_results
from otoscope.store import RunStore, sample_to_line

Write = Callable[[random.Random, int], str]
"""Makes a text of about so many characters."""

_WORDS = (
    "a the of and to in is with from while then near far slow bright speaker voice bird rain street guitar "
    "piano crowd engine bell door laughs asks answers begins ends softly loudly twice again before after "
    "melody rhythm chord minor major station kitchen garden evening question calm angry happy tired first "
    "second clip recording sound music speech noise background foreground man woman child teacher"
).split()
LENGTHS = {"sound_generation_QA": 860, "music_generation_analysis_QA": 1060}
"""Characters of the answers of tasks that ask for long ones."""
_JUDGE = "gpt-4-0125-preview"


def words(chance: random.Random, characters: int) -> str:
    """Return a sentence of random words."""
    text = ""
    while len(text) < characters:
        text += f"{chance.choice(_WORDS)} "
    return f"{text[:1].upper()}{text[1:].strip()}."


@dataclass(frozen=True)
class Special:
    """What one sample says instead of random words."""

    question: str | None = None
    reference: str | None = None
    description: str | None = None
    answer: str | None = None
    raw_answer: str | None = None
    finish_reason: str = "stop"
    scores: Sequence[tuple[float, float]] | None = None
    """Of answer and reference, in each order."""
    failure: FailureKind | None = None
    judge_failure: FailureKind | None = None


def samples(sizes: Mapping[str, int], *, seed: int = 1, write: Write = words) -> list[Sample]:
    """Return samples of these tasks; dialogues have a description of 5 KB, and two questions share a clip."""
    chance = random.Random(seed)  # noqa: S311 (no secret hangs on it)
    made: list[Sample] = []
    for task, size in sizes.items():
        folders = TASKS[task].folders
        for number in range(size):
            name = f"clip_{number // 2:04}.wav"
            folder = folders[number // 2 % len(folders)]
            characters = 5000 if "dialogue" in task else 180
            if number % 2 == 0:
                description = f"{{'clip': {number}, 'transcription': '{write(chance, characters)}'}}"
            made.append(
                Sample(
                    task=task,
                    dataset=folder,
                    path=name,
                    uniq_id=len(made),
                    question=write(chance, 70).rstrip(".") + "?",
                    reference=write(chance, LENGTHS.get(task, 80)),
                    description=description,
                    audio_path=f"Chat/{task}_{folder}/{name}",
                    digest=canonical_digest([task, number]),
                )
            )
    return made


def demo_samples(root: Path) -> list[Sample]:
    """Return the samples of a data set with clips."""
    return list(
        dataset.load(root, SelectionSettings(tasks=tuple(TASKS), limit=None, shuffle=False, seed=42)).samples
    )


def write_run(
    path: Path,
    chosen: Sequence[Sample],
    *,
    seed: int = 1,
    write: Write = words,
    better: float = 0.0,
    unfinished: float = 0.0,
    judged: bool = True,
    swap: bool = True,
    special: Mapping[int, Special] | None = None,
    root: Path | None = None,
    judge: str = _JUDGE,
    model: str = "qwen2-audio",
    **manifest: Any,
) -> Path:
    """Write a run directory. ``special`` is by the sample's index; ``unfinished`` the share never asked."""
    chance = random.Random(seed)  # noqa: S311 (no secret hangs on it)
    special = special or {}
    chosen = [_with_texts(sample, special.get(index)) for index, sample in enumerate(chosen)]
    store = RunStore.create(path, _manifest(chosen, judge if judged else None, swap, root, model, manifest))
    store.open_for_writing()
    with store:
        store.write_samples(map(sample_to_line, chosen))
        for index, sample in enumerate(chosen):
            if chance.random() < unfinished:
                continue
            said = special.get(index, Special())
            clip = _clip(sample, chance)
            if said.failure is not None:
                store.append_answer(sample, None, Failure(said.failure, "the clip is <b>not</b> there", 1))
                continue
            answer = _answer(sample, said, clip, chance, write, model, len(chosen))
            store.append_answer(sample, clip, answer)
            for order in Order.judged(swap=swap) if judged else ():
                result = _verdict(order, answer, said, chance, better, judge)
                store.append_verdict(sample, order, str(store.manifest["judge_id"]), answer.sha256, result)
        write_results(store, chosen)
    return path


def reported(path: Path, **how: str) -> Reported:
    """Return a stored run as reporters see it."""
    return Reported.of(load_run(path, **how))


def _manifest(
    chosen: Sequence[Sample],
    judge: str | None,
    swap: bool,
    root: Path | None,
    model: str,
    more: Mapping[str, Any],
) -> dict[str, Any]:
    sizes = {task: sum(sample.task == task for sample in chosen) for task in TASKS}
    fingerprint = {
        "model": {"name": model, "revision": None, "api_url": "http://model.test/v1", "parameters": {}},
        "prompt": {"template": "{question}", "system": None, "part_order": "audio-first"},
        "judge": judge
        and {
            "name": judge,
            "api_url": "https://judge.test/v1",
            "protocol": "default",
            "do_swap": swap,
            "prompt_sha256": "cd66" * 16,
            "parser_version": 1,
        },
    }
    return {
        "created_at": "2026-11-30T10:15:00+00:00",
        "package_version": "0.1.0",
        "dataset": {"root": root and str(root), "digest": "d1" * 32, "task_sizes": sizes},
        "selection": {"tasks": list(TASKS), "limit": None, "shuffle": False, "samples": len(chosen)},
        "fingerprint": fingerprint,
        "judge_id": judge and f"{judge}#0123456789ab",
        **more,
    }


def _with_texts(sample: Sample, said: Special | None) -> Sample:
    if said is None:
        return sample
    texts = {name: getattr(said, name) for name in ("question", "reference", "description")}
    return replace(sample, **{name: text for name, text in texts.items() if text is not None})


def _clip(sample: Sample, chance: random.Random) -> AudioClip:
    seconds = round(chance.lognormvariate(2.2, 0.7), 3)
    sha256 = text_digest(f"{sample.dataset}/{sample.path}")
    return AudioClip(sample.audio_path, sha256, int(seconds * 32_000) + 44, 17, "wav", seconds, 16_000, 1)


def _answer(
    sample: Sample,
    said: Special,
    clip: AudioClip,
    chance: random.Random,
    write: Write,
    model: str,
    total: int,
) -> Answer:
    text = said.answer
    if text is None:
        text = write(chance, int(LENGTHS.get(sample.task, 90) * chance.lognormvariate(0, 0.5)))
    raw = said.raw_answer if said.raw_answer is not None else text
    usage = {
        "prompt_tokens": 40 + int(25 * clip.seconds) + len(sample.question) // 4,
        "completion_tokens": 1 + len(raw) // 4,
    }
    started = 1_796_000_000.0 + 1800 * chance.random() * total / 2200
    reply = _reply(
        raw, usage, model, started, chance.lognormvariate(0.3, 0.5), {"temperature": 0, "max_tokens": 2048}
    )
    reply = replace(reply, finish_reason=said.finish_reason)
    return Answer(
        raw_text=raw,
        text=text,
        filter="strip-thinking",
        audio_part="input_audio",
        replies=(reply,),
    )


def _verdict(
    order: Order, answer: Answer, said: Special, chance: random.Random, better: float, judge: str
) -> Verdict | Failure:
    usage = {"prompt_tokens": 900 + len(answer.text) // 4, "completion_tokens": 3}
    sent = {"temperature": 0, "max_tokens": 1024}
    started = 1_796_002_000.0 + 1800 * chance.random()

    def reply(text: str, later: float = 0.0) -> Reply:
        latency = chance.lognormvariate(-0.4, 0.4)
        return _reply(text, usage, judge, started + later, latency, sent)

    if said.judge_failure is not None:
        replies = tuple(reply(f"Both are fine, attempt {n}.", n) for n in range(3))
        return Failure(said.judge_failure, "no line holds two scores", 3, replies)
    if said.scores is not None:
        mine, reference = said.scores[order is Order.ANSWER_FIRST]
    else:
        first = order is Order.ANSWER_FIRST
        mine = min(10, max(0, round(chance.gauss(6.4 + better + 0.5 * first, 2.2))))
        reference = min(10, max(1, round(chance.gauss(8.3 - 0.4 * first, 1.0))))
    pair = (reference, mine) if order is Order.REFERENCE_FIRST else (mine, reference)
    replies = (reply(f"{pair[0]:g} {pair[1]:g}"),)
    if chance.random() < 0.02:
        replies = (
            reply("Assistant 1 is a little better overall."),
            replace(replies[0], started_at=started + 5),
        )
    return Verdict(
        order=order,
        judge_id=f"{judge}#0123456789ab",
        answer_sha256=answer.sha256,
        score_kind="integer",
        reference_score=float(reference),
        answer_score=float(mine),
        replies=replies,
    )


def _reply(
    text: str, usage: Mapping[str, int], model: str, started: float, latency: float, sent: Mapping[str, Any]
) -> Reply:
    return Reply(
        text=text,
        finish_reason="stop",
        usage=usage,
        model=model,
        request_id=f"chatcmpl-{int(started * 1e6):x}",
        parameters=sent,
        endpoint="http://model.test/v1/chat/completions",
        started_at=started,
        latency=latency,
    )


def full_sizes() -> dict[str, int]:
    """Return the sizes of the full set."""
    return {task.name: task.samples for task in TASKS.values()}


def few(each: int, tasks: Iterable[str] = TASKS) -> dict[str, int]:
    """Return as many samples of each task."""
    return dict.fromkeys(tasks, each)
