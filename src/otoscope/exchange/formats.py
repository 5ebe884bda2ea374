"""Which format a foreign file has, and its rows."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from otoscope.benchmark import BENCHMARK
from otoscope.errors import ConfigError, DatasetError
from otoscope.exchange.answers import ANSWER_FIELDS, answer_rows
from otoscope.exchange.evalscope import evalscope_rows
from otoscope.exchange.lmms_eval import lmms_eval_rows
from otoscope.exchange.official import (
    BATCH_OUTPUT,
    CHAT_RESULT,
    CHAT_SCORE,
    batch_output_rows,
    chat_score_rows,
)
from otoscope.exchange.reading import Records, read_records
from otoscope.exchange.rows import AnswerRow, ForeignFile, VerdictRow
from otoscope.records import Json, Order

FORMATS = ("chat-result", "batch-output", "chat-score", "evalscope", "lmms-eval", "answers")
_VERDICT_FORMATS = ("batch-output", "chat-score")

_FOLDER_PATTERNS = (f"{BENCHMARK}_*.jsonl", f"*_samples_{BENCHMARK}_*.jsonl")
"""Of evalscope, and of lmms-eval."""

_OTHER_FILES = (
    (("openai_args",), "the official judge's input; its replies are in batch_run_output.jsonl"),
    (("sample_score",), "evalscope's reviews; its answers are in the folder predictions/"),
    (("reference_score", "judge_id"), "the verdicts.jsonl of a run, which needs no import"),
    (("run_id", "fingerprint"), "the manifest.json of a run, which needs no import"),
    (("results", "configs"), "lmms-eval's results; its answers are in *_samples_*.jsonl (--log_samples)"),
    (("answer_gt", "question"), "the data set's metadata, without answers: give its root with --data"),
)
"""What a file is that is none of the formats, by fields that it has."""


def files_of(path: Path) -> list[Path]:
    """Return the file itself, or the files in a folder that an export, evalscope or lmms-eval wrote.

    Where both orders have a file of outputs, its scores say nothing more and are not read. Raises
    ``DatasetError`` when there are none, or those of several models.
    """
    if not path.is_dir():
        return [path]
    if official := _official_files(path):
        return official
    found = sorted({file for pattern in _FOLDER_PATTERNS for file in path.rglob(pattern) if file.is_file()})
    if not found:
        names = (CHAT_RESULT, *_FOLDER_PATTERNS)
        raise DatasetError(f"{path}: holds no {' and no '.join(names)}. Give the files themselves")
    folders = sorted({str(file.parent) for file in found})
    if len(folders) > 1:
        raise DatasetError(
            f"{path}: holds the answers of several models or runs: {', '.join(folders)}. Give one of them"
        )
    return found


def _official_files(folder: Path) -> list[Path]:
    outputs = [folder / name for name in BATCH_OUTPUT.values()]
    files = [folder / CHAT_RESULT, *outputs]
    # One file of outputs may be either order's, whatever its name: the official script calls both alike.
    if not all(file.is_file() for file in outputs):
        files += [folder / name for name in CHAT_SCORE.values()]
    return [file for file in files if file.is_file()]


def read_file(
    path: Path,
    *,
    name: str | None = None,
    format: str | None = None,  # noqa: A002 (as the flag is called)
    order: Order | None = None,
) -> ForeignFile:
    """Read a file's rows; without a ``format``, by what its rows look like.

    ``name`` is what people are told of the file (default: its own), ``order`` that of a file of verdicts,
    where the user says it. Raises ``DatasetError`` when the file
    cannot be read or has another form, and ``ConfigError`` when its order is not known or is another one.
    """
    records = read_records(path, name)
    kind = format or _format_of(records)
    if order is not None and kind not in _VERDICT_FORMATS:
        raise ConfigError(
            f"{path}: looks like {kind}, which holds answers and no verdicts: it has no order. "
            "Give it without --reference-first and --answer-first"
        )
    rows: Iterable[AnswerRow | VerdictRow]
    match kind:
        case "batch-output":
            rows = batch_output_rows(records, order)
        case "chat-score":
            rows = chat_score_rows(records, order)
        case "evalscope":
            rows = evalscope_rows(records)
        case "lmms-eval":
            rows = lmms_eval_rows(records)
        case "chat-result" | "answers":
            rows = answer_rows(records)
        case _:
            raise ConfigError(f"there is no format {kind!r}; there are {', '.join(FORMATS)}")
    read: tuple[AnswerRow | VerdictRow, ...] = tuple(rows)
    if not read:
        what = "; ".join(records.findings) or "it has no rows"
        raise DatasetError(f"{path}: nothing in it can be read as {kind}: {what}")
    return ForeignFile(records.name, kind, records.sha256, read, records.findings)


def _format_of(records: Records) -> str:
    for _number, record in records.objects:
        if (kind := _kind(record)) is not None:
            return kind
    _number, first = records.objects[0]
    known = next((what for names, what in _OTHER_FILES if all(name in first for name in names)), None)
    raise DatasetError(
        f"{records.path}: looks like {known}"
        if known
        else f"{records.path}: is none of {', '.join(FORMATS)}: its first row has the fields "
        f"{', '.join(map(repr, list(first)[:12])) or '(none)'}. If it is one of them, say which with --format"
    )


def _kind(record: Json) -> str | None:
    if "gpt-score" in record:
        return "chat-score"
    if "gen" in record:
        return "batch-output"
    if "model_output" in record:
        return "evalscope"
    if "filtered_resps" in record or ("resps" in record and "doc_id" in record):
        return "lmms-eval"
    if "sample_score" in record or "judge_id" in record:
        return None
    if "response" in record and "answer_gt" in record:
        return "chat-result"
    told = "key" in record or "question" in record or "path" in record
    return "answers" if told and any(name in record for name in ANSWER_FIELDS) else None
