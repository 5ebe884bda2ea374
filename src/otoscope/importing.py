"""Foreign files -> a new run directory, whole or not at all: no run appears that is half imported."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from otoscope import audio, dataset
from otoscope.benchmark import BENCHMARK, TASKS
from otoscope.config import JUDGE_PARAMETERS, EmbeddedSettings, JudgeSettings, SelectionSettings
from otoscope.dataset import Dataset
from otoscope.errors import ConfigError, DatasetError, RunDirectoryError
from otoscope.exchange import (
    BATCH_OUTPUT,
    CHAT_RESULT,
    CHAT_SCORE,
    UNJOINED,
    Findings,
    ForeignFile,
    Joined,
    Settled,
    files_of,
    is_unknown,
    join,
    read_file,
    settle,
)
from otoscope.judge import PROMPT_SHA256, Judge, judge_identity, render_prompt
from otoscope.parsing import PARSER_VERSION, AnswerFilter, thinking_unclosed
from otoscope.records import (
    Answer,
    AudioClip,
    Failure,
    FailureKind,
    Json,
    Order,
    Reply,
    Sample,
)
from otoscope.runs import Run, write_results
from otoscope.scoring import Summary
from otoscope.shell import shell_command
from otoscope.store import ANSWERS, MANIFEST, SAMPLES, SUMMARY, VERDICTS, RunStore, run_folders

UNKNOWN_MODEL, UNKNOWN_JUDGE = "unknown model", "unknown judge"
"""The names of those that nothing tells: different, since no model judges itself because both are unknown."""

ANSWER_FILTER = "strip-thinking"
"""The filter of answers that are still to be judged, unless the user says another: as where they are made."""

_ALIKE = {CHAT_RESULT, *BATCH_OUTPUT.values(), *CHAT_SCORE.values()}
"""Names that the files of all models have."""
_MOST_VARIANTS = 20
"""Different prompts that the manifest tells: a tool has one for each task, and not one for each sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportSettings:
    """What is imported, and where to."""

    files: Sequence[Path]
    """Files of answers or verdicts, and folders that an export, evalscope or lmms-eval wrote."""
    reference_first: Sequence[Path] = ()
    """Files of verdicts of which the user says that the judge read the reference answer first."""
    answer_first: Sequence[Path] = ()
    format: str | None = None
    """One of :data:`otoscope.exchange.FORMATS`; ``None``: what each file looks like."""
    data: Path | None = None
    """The folder that contains ``Chat/``; ``None``: the samples are those that the files tell."""
    run_dir: Path | None = None
    work_dir: Path = Path("outputs")
    model: str | None = None
    judge_model: str | None = None
    label: str | None = None
    """``None``: where no file names the model, the name of the first file or of its folder."""
    tags: Mapping[str, str] = field(default_factory=dict)
    answer_filter: str | None = None
    """As for answers that are made here (:class:`otoscope.parsing.AnswerFilter`), of those that are to be
    judged; ``None``: :data:`ANSWER_FILTER`. With verdicts the answers stay as they were judged."""


@dataclass(frozen=True, slots=True)
class Imported:
    """A run that was imported, and what is to be told of it."""

    run: Run
    answers: int
    failed: int
    """Samples whose answer is a failure: null in the file, told differently by several rows, or blank once
    filtered."""
    verdicts: Mapping[Order, int]
    """Number of replies of the judge, by order."""
    unjoined: bool
    """Whether no sample has both orders: then official scoring alone is possible."""
    findings: Findings


def import_files(settings: ImportSettings) -> Imported:
    """Make a new run of what foreign files hold: answers to be judged, or verdicts, or both.

    Raises ``ConfigError``, ``DatasetError`` where nothing can be used, and ``RunDirectoryError``.
    """
    files = list(_read(settings))
    data = _dataset(settings.data)
    joined = join([row for file in files for row in file.rows], data.samples if data is not None else None)
    joined.findings.include(file.findings for file in files)
    settled = settle(joined)
    answer_filter = _answer_filter(settings, settled)
    _filter(settled, answer_filter, joined.findings)
    if not any(isinstance(answer, Answer) for answer in settled.answers.values()):
        raise DatasetError(_nothing_usable(files, settled, joined.findings, data))
    _note_the_missing(joined, settled)
    settings = _named(replace(settings, answer_filter=answer_filter.spec), joined)
    path = _place(settings)
    manifest = _manifest(settings, path, files, joined, settled, data)
    summary = _write(path, manifest, settled, data, joined.findings)
    answers = [answer for answer in settled.answers.values() if not is_unknown(answer)]
    failed = sum(isinstance(answer, Failure) for answer in answers)
    return Imported(
        run=Run(path, summary),
        answers=len(answers) - failed,
        failed=failed,
        verdicts=Counter(order for _, order, _ in settled.verdicts),
        unjoined=_is_unjoined(settled),
        findings=joined.findings,
    )


# --- reading ----------------------------------------------------------------------------------------------


def _read(settings: ImportSettings) -> Iterator[ForeignFile]:
    given: list[tuple[Path, Order | None]] = [(path, None) for path in settings.files]
    given += [(path, Order.REFERENCE_FIRST) for path in settings.reference_first]
    given += [(path, Order.ANSWER_FIRST) for path in settings.answer_first]
    if not given:
        raise ConfigError("nothing to import: give the files that the official scripts or another tool wrote")
    for path, _ in given:
        _refuse_runs(path)
    places = [(place, order) for path, order in given for place in files_of(path)]
    # The official script gives both orders' outputs one name, so that they lie in two folders.
    names = Counter(place.name for place, _ in places)
    seen: dict[str, Path] = {}
    for place, order in places:
        name = place.name if names[place.name] == 1 else str(place)
        file = read_file(place, name=name, format=settings.format, order=order)
        if file.sha256 in seen:
            # In two orders it would give every verdict twice, once to the wrong one.
            raise ConfigError(f"{place}: has the same content as {seen[file.sha256]}. Give it once")
        seen[file.sha256] = place
        yield file


def _refuse_runs(path: Path) -> None:
    """Refuse a run, and a run's own files: what they hold needs no import, and would lose by it."""
    folder = path if path.is_dir() else path.parent
    own = path == folder or path.name in (ANSWERS, VERDICTS, SAMPLES, MANIFEST, SUMMARY)
    if own and RunStore.exists(folder):
        what = "is a run" if path == folder else f"is a run's own {path.name}"
        raise DatasetError(
            f"{path}: {what}, which needs no import. Give the run's folder to what you want to be done:\n"
            f"  otoscope judge {shell_command([str(folder)])}"
        )


def _dataset(root: Path | None) -> Dataset | None:
    """Load all samples; which tasks the rows are about is known once they are joined."""
    if root is None:
        return None
    selection = SelectionSettings(tasks=tuple(TASKS), limit=None, shuffle=False, seed=42)
    return dataset.load(root, selection, clips_needed=False)


# --- the answers ------------------------------------------------------------------------------------------


def _is_judged(settled: Settled) -> bool:
    """Whether the files hold verdicts; else the answers are still to be judged."""
    return bool(settled.verdicts or settled.failures)


def _answer_filter(settings: ImportSettings, settled: Settled) -> AnswerFilter:
    if not _is_judged(settled):
        return AnswerFilter.parse(settings.answer_filter or ANSWER_FILTER)
    if settings.answer_filter not in (None, "none"):
        raise ConfigError(
            "--answer-filter is for answers that are still to be judged; on these the files hold verdicts. "
            "Import the answers alone, or leave the filter out"
        )
    return AnswerFilter.parse("none")


def _filter(settled: Settled, answer_filter: AnswerFilter, findings: Findings) -> None:
    """Filter the answers as where they are made here."""
    if answer_filter.spec == "none":
        return
    for key, answer in settled.answers.items():
        if isinstance(answer, Failure):
            continue
        filtered = settled.answers[key] = _filtered(answer, answer_filter)
        if isinstance(filtered, Failure):
            what = f"answers of which the filter {answer_filter.spec} leaves nothing, whose samples failed"
            findings.add(what, key)
        elif filtered.text != answer.text:
            findings.add(f"answers from which the filter {answer_filter.spec} has taken something", key)


def _filtered(answer: Answer, answer_filter: AnswerFilter) -> Answer | Failure:
    """Return what is judged of an answer, or why nothing is, by the same rules as for an endpoint's."""
    text, spec = answer_filter.apply(answer.text), answer_filter.spec
    cut = any(reply.finish_reason == "length" for reply in answer.replies)
    thinking = cut and spec == "strip-thinking" and thinking_unclosed(answer.text)
    if thinking or (answer.text.strip() and not text.strip()):
        kind = FailureKind.CUT_WHILE_THINKING if cut else FailureKind.BLANK_AFTER_FILTER
        return Failure(kind, f"nothing is left after the answer filter {spec!r}", 1, answer.replies)
    return replace(answer, text=text, filter=spec if answer.filter == "none" else f"{answer.filter}, {spec}")


# --- what is to be told -----------------------------------------------------------------------------------


def _without_row(settled: Settled) -> list[Sample]:
    """Return the samples that no row is about."""
    return [sample for sample in settled.samples if sample.key not in settled.answers]


def _note_the_missing(joined: Joined, settled: Settled) -> None:
    if missing := _without_row(settled):
        what = "samples of these tasks without a row, which are pending"
        joined.findings.add(what, *(sample.key for sample in missing))


def _nothing_usable(
    files: Sequence[ForeignFile], settled: Settled, findings: Findings, data: Dataset | None
) -> str:
    what = "no answer can be judged" if settled.answers else "nothing can be imported"
    told = "; ".join(findings.told())
    advice = ". With --data ROOT the samples come from the data set"
    told += advice if data is None and "--data" not in told and not settled.answers else ""
    return f"{', '.join(file.name for file in files)}: {what}: {told}"


# --- the run ----------------------------------------------------------------------------------------------


def _named(settings: ImportSettings, joined: Joined) -> ImportSettings:
    """Name the model as the files do, and where nothing does, label the run after its file or folder."""
    model = settings.model or _model(joined)
    if model is not None or settings.label is not None:
        return replace(settings, model=model)
    first = next(iter((*settings.files, *settings.reference_first, *settings.answer_first))).resolve()
    if first.name in _ALIKE:
        first = first.parent
    return replace(settings, label=first.name if first.is_dir() else first.stem)


def _place(settings: ImportSettings) -> Path:
    """Return where the run will be: a folder that is not there yet, or is empty."""
    if settings.run_dir is not None:
        path = settings.run_dir.absolute()
        try:
            taken = path.exists() and (not path.is_dir() or any(path.iterdir()))
        except OSError as error:
            raise RunDirectoryError(f"{path}: cannot be looked into: {error.strerror or error}") from None
        if taken:
            raise RunDirectoryError(f"{path}: is not empty. An import makes a new run: give a new folder")
        return path
    folders = run_folders(settings.work_dir.absolute(), settings.model or settings.label or "")
    return next(path for path in folders if not path.exists())


def _write(path: Path, manifest: Json, settled: Settled, data: Dataset | None, findings: Findings) -> Summary:
    """Write the run beside its place, and rename it there once it is whole."""
    staging = path.with_name(f".importing-{secrets.token_hex(4)}")
    try:
        with _trouble_at(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with RunStore.create(staging, manifest) as store:
                summary = _fill(store, settled, data, findings)
            if path.is_dir():
                path.rmdir()
            staging.rename(path)
    finally:
        # Where all went well it has been renamed, and there is nothing left to remove.
        shutil.rmtree(staging, ignore_errors=True)
    return summary


def _fill(store: RunStore, settled: Settled, data: Dataset | None, findings: Findings) -> Summary:
    store.open_for_writing()
    for sample in settled.samples:
        if sample.key in settled.answers:
            clip = _clip(sample, data, findings)
            store.append_answer(sample, clip, settled.answers[sample.key])
    _append_verdicts(store, settled)
    # Only now, since what is wrong with clips is found last.
    store.manifest["imported"] |= {"findings": findings.to_json(), "left_out": findings.left_out}
    store.write_manifest()
    return write_results(store, settled.samples)


@contextlib.contextmanager
def _trouble_at(path: Path) -> Iterator[None]:
    """Tell of trouble with the folder beside the run's place as of that place: nothing of it is kept."""
    try:
        yield
    except (OSError, RunDirectoryError) as error:
        trouble = error if isinstance(error, OSError) else error.__context__
        match trouble:
            case FileExistsError() | NotADirectoryError():
                reason = "there is a file where its folder should be"
            case OSError():
                reason = trouble.strerror or str(trouble)
            case _:
                reason = "the disk is full, or a quota or size limit is reached"
        raise RunDirectoryError(
            f"{path}: cannot be made: {reason}. Nothing was imported. Give another place with --work-dir or "
            "--run-dir, or put this one right"
        ) from None


def _clip(sample: Sample, data: Dataset | None, findings: Findings) -> AudioClip | None:
    """Return the facts of a sample's clip, where there is one that can be used."""
    if data is None or sample.dataset == UNJOINED:
        return None
    found = dataset.outside_root(sample, data.root) or audio.examine(sample.audio_path)
    if isinstance(found, AudioClip):
        return found
    findings.add(f"clips that cannot be used ({found.kind.value}): intervals take each for one", sample.key)
    return None


def _manifest(
    settings: ImportSettings,
    path: Path,
    files: Sequence[ForeignFile],
    joined: Joined,
    settled: Settled,
    data: Dataset | None,
) -> Json:
    """Return the manifest, in the form that a run made with ``eval`` has it."""
    judge = _judge_part(settings, settled) if _is_judged(settled) else None
    model = settings.model or UNKNOWN_MODEL
    tasks = [task for task in TASKS if any(sample.task == task for sample in settled.samples)]
    # Without the data, any folder serves: judging reads no clip, but settings name a place for them.
    args: Json = {"local_path": str(path if data is None else data.root.absolute())}
    # Nothing of the judge: whoever judges the answers once more says with which one.
    stored: Json = {"model": model, "datasets": [BENCHMARK], "dataset_args": {BENCHMARK: args}}
    if settings.label is not None:
        stored["label"] = settings.label
    if settings.tags:
        stored["tags"] = dict(settings.tags)
    manifest: Json = {
        "label": settings.label,
        "tags": dict(settings.tags),
        "settings": stored,
        "dataset": {
            "root": str(data.root) if data is not None else None,
            "digest": data.digest if data is not None else None,
            "task_sizes": data.task_sizes if data is not None else {},
            "descriptions_converted": data.descriptions_converted if data is not None else 0,
        },
        "selection": {
            "tasks": tasks,
            "limit": None,
            "shuffle": False,
            "seed": 42,
            "samples": len(settled.samples),
        },
        "fingerprint": {
            "model": {"name": model, "parameters": {}, "imported": sorted({file.format for file in files})},
            "prompt": _prompt_part(settings, files, joined),
            "judge": judge,
        },
        "judge_id": judge_identity(judge) if judge is not None else None,
        "imported": {
            "files": [
                {"name": file.name, "format": file.format, "sha256": file.sha256, "rows": len(file.rows)}
                for file in files
            ],
            "without_row": Counter(sample.task for sample in _without_row(settled)),
        },
    }
    if _is_unjoined(settled):
        manifest["unjoined"] = True
    unknown = sum(map(is_unknown, settled.answers.values()))
    if unknown:
        manifest["unknown_answers"] = unknown
    if unknown or joined.incomplete:
        manifest["cannot_be_judged"] = (
            "it was imported from files that do not tell every answer, or not what the answers were about"
        )
    return manifest


def _is_unjoined(settled: Settled) -> bool:
    """Whether no sample has both orders, so that official scoring alone can use the verdicts."""
    orders = {order for _, order, _ in settled.verdicts}
    return orders == {Order.ANSWER_FIRST} or any(s.dataset == UNJOINED for s, _, _ in settled.verdicts)


def _model(joined: Joined) -> str | None:
    """Return the model that the rows name, if any. Raises ``DatasetError`` when they name several."""
    names = {row.model for rows in joined.answers.values() for row in rows if row.model}
    if len(names) > 1:
        raise DatasetError(
            f"the files hold answers of several models: {', '.join(sorted(names))}. Import each model's "
            "files for themselves; if it is one model under several names, give --model NAME"
        )
    return next(iter(names), None)


def _prompt_part(settings: ImportSettings, files: Sequence[ForeignFile], joined: Joined) -> Json:
    """Return the fingerprint's ``prompt``: what the files tell, ``None`` for what they do not.

    What was sent differently for different samples is in ``templates``, ``systems`` and ``part_orders``, each
    with the number of rows.
    """
    samples = {sample.key: sample for sample in joined.samples}
    told: dict[str, Counter[str | None]] = {name: Counter() for name in ("template", "system", "part_order")}
    for key, rows in joined.answers.items():
        for row in rows:
            if row.asked is None or key not in samples:
                continue
            told["template"][_template(row.asked.text, samples[key].question)] += 1
            told["system"][row.asked.system] += 1
            told["part_order"][row.asked.part_order] += 1
    part: Json = {name: next(iter(values)) if len(values) == 1 else None for name, values in told.items()}
    part |= {"audio_part": None, "answer_filter": settings.answer_filter, "audio_policy": None}
    part["source"] = ", ".join(sorted({file.format for file in files}))
    for name, values in told.items():
        if len(values) > 1:
            part[f"{name}s"] = [{name: value, "rows": n} for value, n in values.most_common(_MOST_VARIANTS)]
    return part


def _template(sent: str, question: str) -> str | None:
    """Return what was sent with the question taken out, or ``None`` where it is not in it just once."""
    if not question or sent.count(question) != 1:
        return None
    before, _, after = sent.partition(question)
    return f"{before}{{question}}{after}"


def _judge_part(settings: ImportSettings, settled: Settled) -> Json:
    """Return the fingerprint's ``judge``; its ``protocol`` is ``None`` where it is not the official one."""
    rows = [row for _, _, row in settled.verdicts]
    names = {row.judge for row in rows if row.judge}
    if len(names) > 1 and settings.judge_model is None:
        raise DatasetError(
            f"the files hold verdicts of several judges: {', '.join(sorted(names))}. Verdicts of two would "
            "be mixed; if it is one judge under several names, give --judge-model NAME"
        )
    temperatures = {row.reply.parameters.get("temperature", "not stated") for row in rows}
    prompt_sha256 = _prompt_sha256(settled)
    orders = {order for _, order, _ in (*settled.verdicts, *settled.failures)}
    return {
        "name": settings.judge_model or next(iter(names), UNKNOWN_JUDGE),
        "parameters": {},
        "protocol": "official" if prompt_sha256 and _is_officially_sampled(temperatures) else None,
        "do_swap": Order.ANSWER_FIRST in orders,
        "prompt_sha256": prompt_sha256,
        "parser_version": PARSER_VERSION,
        "imported": {"temperatures": sorted(map(str, temperatures))},
    }


def _is_officially_sampled(temperatures: AbstractSet[float | str]) -> bool:
    """Whether these were sent by the official script: 1.0, and on a random half of the calls 2.0."""
    official = JUDGE_PARAMETERS["official"]["temperature"]
    return official in temperatures and temperatures <= {official, 2.0}


def _prompt_sha256(settled: Settled) -> str | None:
    """Return the SHA-256 of the benchmark's prompt where every row shows it, else ``None``: not known."""
    for sample, order, row in settled.verdicts:
        answer = settled.answers[sample.key]
        if not isinstance(answer, Answer) or row.prompt != render_prompt(sample, answer.text, order):
            return None
    return PROMPT_SHA256


# --- verdicts ---------------------------------------------------------------------------------------------


class _Silent:
    """A judge that is never asked: its replies are there already."""

    async def until_ready(self) -> None:
        """Return: nobody waits for it."""

    async def ask(self, messages: Sequence[Mapping[str, Any]], **overrides: Any) -> Reply | Failure:
        raise AssertionError("an imported verdict is never asked for again")


def _append_verdicts(store: RunStore, settled: Settled) -> None:
    """Read each reply by the judge's own rules, and store what it says or why it says nothing."""
    requested = store.manifest["fingerprint"]["judge"]
    if requested is None:
        return
    endpoint = EmbeddedSettings(
        role="judge", name=requested["name"], parameters=MappingProxyType({}), concurrency=1
    )
    settings = JudgeSettings(endpoint=endpoint, protocol="official", swap=requested["do_swap"])
    judge = Judge(_Silent(), settings, store.manifest["judge_id"])

    async def read() -> None:
        for sample, order, row in settled.verdicts:
            answer = settled.answers[sample.key]
            if isinstance(answer, Answer):
                # An asking that ended after its only reply: by the official protocol, that was the last.
                result = await judge.verdict(
                    sample, answer.text, answer.sha256, order, earlier=(_ended(row.reply),), keep=_ignore
                )
                result = replace(result, replies=(row.reply,))
                store.append_verdict(sample, order, judge.judge_id, answer.sha256, result)

    asyncio.run(read())
    for sample, order, failure in settled.failures:
        answer = settled.answers[sample.key]
        if isinstance(answer, Answer):
            store.append_verdict(sample, order, judge.judge_id, answer.sha256, failure)


def _ended(reply: Reply) -> Reply:
    """Return a reply with its normal end, where the file has left that out and it cannot have been cut off.

    A file of scores has no ``finish_reason``, and "8 1" may be the beginning of "8 10"; but no text with
    fewer bytes than the tokens that the official script allows has met that limit.
    """
    limit = reply.parameters.get("max_tokens", JUDGE_PARAMETERS["official"]["max_tokens"])
    if reply.finish_reason is None and len((reply.text or "").encode("utf-8", "replace")) < limit:
        return replace(reply, finish_reason="stop")
    return reply


def _ignore(_failure: Failure) -> None:
    pass
