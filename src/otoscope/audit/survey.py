"""The records of the metadata, one by one: bad ones do not hide the rest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from otoscope.audit.findings import Finding, Kind
from otoscope.benchmark import TASKS
from otoscope.config import SelectionSettings
from otoscope.dataset import METADATA, find_root, read_records, to_sample
from otoscope.dataset.selection import select
from otoscope.errors import DatasetError
from otoscope.records import Sample

_METADATA_PATH = f"Chat/{METADATA}"


@dataclass(frozen=True, slots=True)
class Survey:
    """What the metadata hold."""

    root: Path
    samples: tuple[Sample, ...]
    """Of every record that can be used, in the order of the file; of several with one key the first."""
    chosen: tuple[Sample, ...]
    """Those that a run with this selection evaluates."""
    findings: tuple[Finding, ...]
    """About all records; empty texts only of the chosen samples."""
    descriptions_converted: int
    """Records whose ``meta_info`` was not text and became Python's ``str()`` of it."""

    @property
    def bad_records(self) -> int:
        """Records that cannot be used."""
        return sum(finding.kind is Kind.BAD_RECORD for finding in self.findings)


def survey(root: Path, selection: SelectionSettings, *, needed: bool = False) -> Survey:
    """Read all records below ``root``.

    Raises ``DatasetError`` where the metadata cannot be read, or where nothing is chosen and no bad record is
    the reason; where samples are ``needed``, also then.
    """
    root = find_root(root)
    try:
        records = list(read_records(root / "Chat" / METADATA))
    except OSError as error:
        raise DatasetError(f"{root / 'Chat' / METADATA}: cannot be read: {error.strerror or error}") from None
    findings: list[Finding] = []
    places: dict[str, list[int]] = {}
    samples: dict[str, Sample] = {}
    converted = 0
    for index, record in enumerate(records):
        try:
            sample, was_converted = to_sample(index, record, root)
        except DatasetError as error:
            findings.append(_bad_record(record, str(error)))
            continue
        places.setdefault(sample.key, []).append(index)
        samples.setdefault(sample.key, sample)
        converted += was_converted
    chosen = select(samples.values(), selection)
    if not chosen and (needed or not findings):
        raise DatasetError(
            f"{root / 'Chat' / METADATA}: no sample of {', '.join(selection.tasks)} "
            f"among {len(records):,} records"
        )
    findings += _duplicates(samples, places)
    findings += _empty_texts(chosen)
    return Survey(root, tuple(samples.values()), tuple(chosen), tuple(findings), converted)


def _bad_record(record: Any, said: str) -> Finding:
    known = record if isinstance(record, dict) else {}
    task = known.get("task_name")
    dataset = known.get("dataset_name")
    return Finding(
        kind=Kind.BAD_RECORD,
        task=task if isinstance(task, str) and task in TASKS else None,
        dataset=dataset if isinstance(dataset, str) else None,
        path=_METADATA_PATH,
        detail=said.removeprefix(f"{METADATA}, "),
    )


def _duplicates(samples: dict[str, Sample], places: dict[str, list[int]]) -> Iterator[Finding]:
    for key, indices in places.items():
        if len(indices) > 1:
            where = ", ".join(map(str, indices))
            yield _about(samples[key], Kind.DUPLICATE_KEY, f"records {where} (counted from 0)")


def _empty_texts(samples: Sequence[Sample]) -> Iterator[Finding]:
    for sample in samples:
        for kind, text in (
            (Kind.EMPTY_QUESTION, sample.question),
            (Kind.EMPTY_REFERENCE, sample.reference),
            (Kind.EMPTY_DESCRIPTION, sample.description),
        ):
            if not text.strip():
                yield _about(sample, kind, "")


def _about(sample: Sample, kind: Kind, detail: str) -> Finding:
    return Finding(
        kind=kind,
        task=sample.task,
        dataset=sample.dataset,
        path=_METADATA_PATH,
        keys=(sample.key,),
        detail=detail,
    )
