"""What ``verify`` found: on the terminal, and as a list to pass on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from otoscope.audit import Finding, Kind, Row, Verification
from otoscope.benchmark import TASKS
from otoscope.reports.aligned import print_aligned
from otoscope.reports.text import Cleaner, print_line, print_wrapped, size

SHOWN = 5
"""Findings of a kind that the terminal lists; the list has all."""

_FETCH = "fetch with: otoscope data download"
_AGAIN = "remove, then: otoscope data download"
_TOLD: dict[Kind, tuple[str, str, str]] = {
    Kind.BAD_RECORD: (
        "record that cannot be used",
        "records that cannot be used",
        "no evaluation starts with it: correct or remove",
    ),
    Kind.DUPLICATE_KEY: (
        "key that several records have",
        "keys that several records have",
        "no evaluation starts with it: one would overwrite the other",
    ),
    Kind.EMPTY_QUESTION: ("sample without a question", "samples without a question", "nothing is asked"),
    Kind.EMPTY_REFERENCE: (
        "sample without a reference answer",
        "samples without a reference answer",
        "the judge compares with nothing",
    ),
    Kind.MISSING: ("clip that is not there", "clips that are not there", _FETCH),
    Kind.OUTSIDE_ROOT: (
        "clip outside of the data set",
        "clips outside of the data set",
        "put the file itself there, or use --follow-links",
    ),
    Kind.UNREADABLE: (
        "clip that the system does not give",
        "clips that the system does not give",
        "check rights, links and disk",
    ),
    Kind.EMPTY: ("clip of 0 bytes", "clips of 0 bytes", _FETCH),
    Kind.NOT_AUDIO: ("file that is not audio", "files that are not audio", _AGAIN),
    Kind.DAMAGED: ("clip that is damaged", "clips that are damaged", _AGAIN),
    Kind.ZERO_DURATION: ("clip without duration", "clips without duration", _AGAIN),
    Kind.TRUNCATED: ("clip that ends early", "clips that end early", _AGAIN),
    Kind.LENGTH_MISMATCH: (
        "clip of another length than its header says",
        "clips of another length than their headers say",
        "servers disagree about what they hear",
    ),
    Kind.SILENT: ("silent clip", "silent clips", "every sample has the same value"),
    Kind.NAME_MISMATCH: (
        "clip of another format than its name says",
        "clips of another format than their names say",
        "sent by what the bytes are",
    ),
    Kind.DUPLICATE_CLIP: (
        "clip that lies there under several names",
        "clips that lie there under several names",
        "its samples depend on each other more than they seem to",
    ),
    Kind.EMPTY_DESCRIPTION: (
        "sample without a description",
        "samples without a description",
        "the judge is told nothing of the sound",
    ),
    Kind.UNNAMED_FILES: (
        "folder with files that no record names",
        "folders with files that no record names",
        "not used",
    ),
}
"""What one and what several of a kind are, and what follows or helps."""


def render(
    found: Verification, console: Console, *, root: Path, listed: str | None = None, strict: bool = False
) -> None:
    """Print the outcome: what there should be and is, then the findings by kind, then the verdict.

    ``listed`` is the file in which all findings are, where one was written.
    """
    _Report(found, console).print(root, listed, strict=strict)


def to_tsv(findings: Iterable[Finding]) -> bytes:
    r"""Return the findings as UTF-8 text: a line of names, then one line each, tab-separated.

    Keys are joined by ``; ``. In a value, a tab is written ``\t``, a line break ``\n``, a
    backslash ``\\``.
    """
    lines = ["kind\ttask\tdataset\tpath\tkeys\tdetail"]
    lines += [
        "\t".join(
            _field(value)
            for value in (one.kind.value, one.task, one.dataset, one.path, "; ".join(one.keys), one.detail)
        )
        for one in findings
    ]
    return ("\n".join(lines) + "\n").encode("utf-8", "backslashreplace")


def duration(seconds: float) -> str:
    """Return a duration in the unit that fits: 12.3 s, 4.5 min, 1,016.1 h."""
    for unit, size_of_unit in (("h", 3600), ("min", 60)):
        if seconds >= size_of_unit:
            return f"{seconds / size_of_unit:,.1f} {unit}"
    return f"{seconds:.1f} s"


def _field(value: str | None) -> str:
    escaped = (value or "").replace("\\", "\\\\").replace("\t", "\\t")
    return escaped.replace("\n", "\\n").replace("\r", "\\r")


class _Report:
    def __init__(self, found: Verification, console: Console) -> None:
        self._found = found
        self._console = console
        self._clean = Cleaner(console.encoding)

    def print(self, root: Path, listed: str | None, *, strict: bool) -> None:
        found = self._found
        print_line(self._console, Text(self._clean(str(root)), style="bold"))
        decoded = f"{size(found.size)}, {duration(found.seconds)} of audio, all decoded"
        self._say(f"{found.total.found:,} {_plural('clip', found.total.found)}, {decoded}")
        self._console.print()
        self._print_table()
        for note in self._notes():
            self._console.print()
            self._say(note)
        for kind, count in found.counts.items():
            self._print_kind(kind, count, listed)
        if listed:
            print_line(self._console, Text(f"All findings: {self._clean(listed)}"))
        verdict, style = self._verdict(strict=strict)
        self._console.print()
        print_wrapped(self._console, Text(verdict, style=style))

    def _say(self, text: str) -> None:
        print_wrapped(self._console, Text(self._clean(text)))

    def _print_table(self) -> None:
        rows: list[tuple[Sequence[str], str]] = []
        for task, row in self._found.tasks.items():
            rows.append((self._cells(task, row), ""))
            rows += [
                (self._cells(source, part, indent="  "), "dim")
                for (of, source), part in self._found.folders.items()
                if of == task
            ]
        rows.append((self._cells("all", self._found.total), "bold"))
        head = ("task / source", "full set", "samples", "clips", "found", "usable", "")
        print_aligned(self._console, head, rows)

    def _cells(self, name: str, row: Row, *, indent: str = "") -> list[str]:
        counts = (row.expected, row.samples, row.clips, row.found, row.usable)
        lacks = row.usable < row.clips or row.samples < (row.expected or 0)
        shown = ["" if count is None else f"{count:,}" for count in counts]
        return [indent + self._clean(name), *shown, "!" if lacks else ""]

    def _notes(self) -> Iterable[str]:
        found = self._found
        for task, row in found.tasks.items():
            if row.expected is not None and row.samples > row.expected:
                yield f"{task} has more samples than the benchmark's {row.expected:,}."
        total = found.total
        if total.expected is not None and total.samples < total.expected:
            yield (
                f"The metadata name {total.samples:,} of the {total.expected:,} samples of "
                f"{'the benchmark' if len(found.tasks) == len(TASKS) else 'these tasks'}: "
                "what is computed from them is not the benchmark's."
            )
        if found.shared:
            which = "clip lies" if found.shared == 1 else "clips lie"
            yield f"{found.shared:,} {which} in the folders of several tasks, which is as it should be."
        if converted := found.descriptions_converted:
            which = "description is" if converted == 1 else "descriptions are"
            yield f"{converted:,} {which} no text: the judge is given what Python's str() makes of it."

    def _print_kind(self, kind: Kind, count: int, listed: str | None) -> None:
        one, several, advice = _TOLD[kind]
        self._console.print()
        lead = Text("! " if kind.fails else "- ", style="bold yellow" if kind.fails else "dim")
        told = f"{count:,} {one if count == 1 else several} ({advice})"
        print_wrapped(self._console, Text(told, style="bold" if kind.fails else ""), lead=lead)
        findings = [finding for finding in self._found.findings if finding.kind is kind]
        for finding in findings[:SHOWN]:
            print_wrapped(self._console, Text(self._clean(_line(finding))), lead=Text("    "))
        if count > SHOWN:
            where = "" if listed else "; --list FILE writes all of them"
            self._console.print(Text(f"    and {count - SHOWN:,} more{where}"))

    def _verdict(self, *, strict: bool) -> tuple[str, str]:
        found = self._found
        if found.failed():
            lost = found.samples_lost
            which = "sample is" if lost == 1 else "samples are"
            return f"{lost:,} {which} lost or falsified.", "bold red"
        warned = sum(found.counts.values())
        if warned:
            ending = "; with --strict that is a failure" if strict else ""
            return f"Nothing is lost or falsified; {warned:,} {_plural('warning', warned)}{ending}.", "bold"
        return "All of it is there and sound.", "bold green"


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"


def _line(finding: Finding) -> str:
    about: Sequence[str] = finding.keys if _is_about_record(finding) else [finding.path or ""]
    return ": ".join(part for part in (", ".join(about), finding.detail) if part)


def _is_about_record(finding: Finding) -> bool:
    return finding.kind in (
        Kind.BAD_RECORD,
        Kind.DUPLICATE_KEY,
        Kind.EMPTY_QUESTION,
        Kind.EMPTY_REFERENCE,
        Kind.EMPTY_DESCRIPTION,
    )
