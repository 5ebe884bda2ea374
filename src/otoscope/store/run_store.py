"""A run directory, opened: append, read back, and what is still owed."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

from otoscope._version import __version__
from otoscope.benchmark import BENCHMARK
from otoscope.descriptors import BINARY, read_at
from otoscope.errors import RunDirectoryError
from otoscope.records import (
    Answer,
    AudioClip,
    Failure,
    FailureKind,
    Json,
    Order,
    Outcome,
    Reply,
    Sample,
    Spent,
    Verdict,
    json_bytes,
    text_digest,
)
from otoscope.store.files import (
    ANSWERS,
    FORMAT,
    MANIFEST,
    SAMPLES,
    VERDICTS,
    directory_errors,
    now,
    pretty_json,
    read_manifest,
)
from otoscope.store.lines import (
    Place,
    SampleLines,
    StoredAnswer,
    StoredFailure,
    VerdictLines,
    check_line,
    check_scores,
    failure_of,
    line_bytes,
    new_replies,
    open_end,
    parse_line,
    replies_of,
    same_verdict,
    sample_from_line,
    shared,
    stored_failure,
    text_of,
    unanswered,
)

EMPTY_ANSWER = "empty_answer"

_TEXTS_KEPT = 64
_NO_LINES = SampleLines()
_NO_END = frozenset({FailureKind.ASKED_AGAIN, FailureKind.CLIP_CHANGED})
"""Failures after which a sample is as open as before."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run still owes. ``verdicts`` are those whose answers exist already."""

    answers: tuple[Sample, ...]
    verdicts: tuple[tuple[Sample, Order], ...]
    answers_done: int
    verdicts_done: int
    blank: int
    """Answers among those done that are blank."""
    superseded: tuple[Sample, ...] = ()
    """Samples whose stored answer is about other bytes than their clip has now."""


class RunStore:
    """One run directory, opened for reading, or with :meth:`open_for_writing` also for writing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest: Json = {}
        self.skipped_lines = 0
        """Lines that are torn, null, foreign or of another form; what they held is owed again."""
        self._files = {name: path / name for name in (ANSWERS, VERDICTS)}
        self.judge_spent = Spent()
        """What all verdict lines tell of, also of those that count no more, or for samples not chosen now."""
        self._lines: dict[str, SampleLines] = {}
        self._readers: dict[str, int] = {}
        self._writers: dict[str, int] = {}
        self._torn: set[str] = set()
        """Files whose last write was cut short: the next line must not be glued to its remains."""
        self._unsynced: set[str] = set()
        self._syncing = threading.Lock()
        self._texts: dict[Place, str] = {}
        """The last answers' texts, by their lines: most are judged, in both orders, soon after they came."""

    # --- opening ------------------------------------------------------------------------------------------

    @classmethod
    def create(cls, path: Path, manifest: Json) -> RunStore:
        """Make a run directory (or use one that holds no run) and write its manifest.

        Raises ``RunDirectoryError``, also when there is a run already.
        """
        store = cls(path)
        if cls.exists(path):
            raise RunDirectoryError(f"{path}: holds a run already. Resume that one, or give another folder")
        with directory_errors(path):
            path.mkdir(parents=True, exist_ok=True)
        store.manifest = {
            "format": FORMAT,
            "benchmark": BENCHMARK,
            "run_id": secrets.token_hex(8),
            "created_at": now(),
            "package_version": __version__,
            **manifest,
        }
        store.write_manifest()
        return store

    @classmethod
    def exists(cls, path: Path) -> bool:
        """Whether ``path`` holds a run. Raises ``RunDirectoryError`` when that cannot be looked up."""
        with directory_errors(path):
            return (path / MANIFEST).is_file()

    @classmethod
    def open(cls, path: Path) -> RunStore:
        """Open a run and index its lines. Raises ``RunDirectoryError`` when it is none, or a newer one.

        Whoever wants to write holds the run's lock before: lines that others append later are not seen.
        """
        store = cls(path)
        if not cls.exists(path):
            there = f"it holds no {MANIFEST}" if path.exists() else "there is no such folder"
            raise RunDirectoryError(
                f"{path}: not a run: {there}. Runs lie under outputs/ unless --work-dir says so"
            )
        store.manifest = read_manifest(path / MANIFEST)
        store._index()
        return store

    def open_for_writing(self, names: Sequence[str] = (ANSWERS, VERDICTS)) -> None:
        """Open these line files for appending; a torn tail gets its newline first.

        Raises ``RunDirectoryError``.
        """
        for name in names:
            path = self.path / name
            with directory_errors(path):
                descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | BINARY, 0o666)
                self._writers[name] = descriptor
                size = os.fstat(descriptor).st_size
                if size and read_at(descriptor, 1, size - 1) != b"\n":
                    os.write(descriptor, b"\n")

    def close(self) -> None:
        """Write what is pending to the disk and close all files. Raises ``RunDirectoryError``."""
        try:
            self.sync()
        finally:
            descriptors = (*self._writers.values(), *self._readers.values())
            self._writers.clear()
            self._readers.clear()
            with directory_errors(self.path):
                for descriptor in descriptors:
                    os.close(descriptor)

    def __enter__(self) -> RunStore:  # noqa: PYI034 (Self needs Python 3.11)
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    # --- writing ------------------------------------------------------------------------------------------

    def write_manifest(self) -> None:
        """Write the manifest whole and rename it into place; one that says the same stays as it is."""
        content = pretty_json(self.manifest)
        # Its time tells whether what was made of the run is still right.
        with contextlib.suppress(OSError, ValueError):
            if json.loads((self.path / MANIFEST).read_bytes()) == json.loads(content):
                return
        self.write_file(MANIFEST, content)

    def write_file(self, name: str, content: bytes | Iterable[bytes]) -> None:
        """Write a file whole, beside its place, and rename it there. Raises ``RunDirectoryError``.

        Whatever goes wrong, also in making ``content``: the file that was there stays as it is.
        """
        blocks = [content] if isinstance(content, bytes) else content
        beside = self.path / f".{name}.tmp"
        try:
            with directory_errors(self.path / name):
                with beside.open("wb") as file:
                    for block in blocks:
                        file.write(block)
                    file.flush()
                    os.fsync(file.fileno())
                beside.replace(self.path / name)
        finally:
            # Where all went well it has been renamed, and there is nothing left to remove.
            with contextlib.suppress(OSError):
                beside.unlink()

    def write_samples(self, lines: Iterable[Json]) -> None:
        """Write ``samples.jsonl``: one line a sample, which also says what this run's samples are."""
        self.write_file(SAMPLES, (json_bytes(line) + b"\n" for line in lines))

    def append_answer(self, sample: Sample, clip: AudioClip | None, result: Answer | Failure) -> None:
        """Append one answer line. Raises ``RunDirectoryError`` when it could not be written whole."""
        line: Json = {
            "run": self.manifest["run_id"],
            "key": sample.key,
            "sample_digest": sample.digest,
            "repeat": 0,
            "clip": clip.facts() if clip is not None else None,
        }
        if isinstance(result, Answer):
            line.update(
                answer_sha256=result.sha256,
                raw_text=result.raw_text,
                text=result.text,
                reasoning=result.reasoning,
                filter=result.filter,
                audio_part=result.audio_part,
            )
        else:
            line["failure"] = result.to_json()
        line["replies"] = [reply.to_json() for reply in result.replies]
        self._append(ANSWERS, line)

    def append_verdict(
        self, sample: Sample, order: Order, judge_id: str, answer_sha256: str, result: Verdict | Failure
    ) -> None:
        """Append one verdict line. Raises ``RunDirectoryError`` when it could not be written whole.

        A verdict with a score that is none (see :class:`otoscope.records.Verdict`) raises ``ValueError``.
        """
        line: Json = {
            "run": self.manifest["run_id"],
            "key": sample.key,
            "order": order.value,
            "judge_id": judge_id,
            "repeat": 0,
            "sample_digest": sample.digest,
            "answer_sha256": answer_sha256,
        }
        if isinstance(result, Verdict):
            check_scores(result.reference_score, result.answer_score)
            line.update(
                score_kind=result.score_kind,
                reference_score=result.reference_score,
                answer_score=result.answer_score,
            )
            if result.probabilities is not None:
                line["probabilities"] = dict(result.probabilities)
        else:
            line["failure"] = result.to_json()
        line["replies"] = [reply.to_json() for reply in result.replies]
        self._append(VERDICTS, line)

    def sync(self) -> None:
        """Force what was appended since the last call to the disk. Blocks; call it in a thread.

        Raises ``RunDirectoryError``; the next call then tries again.
        """
        with self._syncing, directory_errors(self.path):
            while self._unsynced:
                # Taken out before, so that a line appended during the call is not forgotten.
                name = self._unsynced.pop()
                try:
                    os.fsync(self._writers[name])
                except OSError:
                    self._unsynced.add(name)
                    raise

    def _append(self, name: str, line: Json) -> None:
        data = line_bytes(line)
        gap = b"\n" if name in self._torn else b""
        descriptor = self._writers[name]
        with directory_errors(self._files[name]):
            written = os.write(descriptor, gap + data)
            if written != len(gap + data):
                self._torn.add(name)
                raise RunDirectoryError(
                    f"{self._files[name]}: only {written} of {len(gap + data)} bytes could be written: the "
                    "disk is full, or a quota or size limit is reached. Nothing that was stored before is "
                    "lost; make room, then resume the run"
                )
            end = os.lseek(descriptor, 0, os.SEEK_CUR)
        self._torn.discard(name)
        self._unsynced.add(name)
        # What a reader will find is indexed, not what was meant: a split surrogate pair reads back joined.
        # Lone surrogates alone are written as escapes that begin so.
        found = parse_line(data) if b"\\ud" in data else line
        place = (end - len(data), len(data))
        self._index_line(name, found, place)
        if name == ANSWERS and "failure" not in found:
            self._keep_text(place, found["text"])

    # --- what is there, and what is owed ------------------------------------------------------------------

    def plan(
        self,
        samples: Sequence[Sample],
        orders: Sequence[Order],
        judge_id: str | None,
        *,
        retry_failed: Iterable[str] = (),
        clip_changed: Callable[[Sample, StoredAnswer], bool],
        mended: Callable[[Sample, StoredFailure], bool],
        verdicts_in: RunStore | None = None,
    ) -> Plan:
        """Work out what is owed: answers that are not there or not current, then verdicts on the others.

        Passing failures are owed again; lasting ones only when ``retry_failed`` names their kind (or
        ``all``) or ``mended`` says that their cause is gone. ``judge_id`` ``None`` owes no verdicts.
        ``verdicts_in`` is the run whose verdicts count, where that is not this one: a copy of it.
        """
        judged = verdicts_in or self
        retry = set(retry_failed)
        answers: list[Sample] = []
        failed_before: list[Sample] = []
        superseded: list[Sample] = []
        verdicts: list[tuple[Sample, Order]] = []
        answers_done = verdicts_done = blank = 0
        for sample in samples:
            stored = self.stored_answer(sample)
            if stored is None:
                failure = next(reversed(self._failures(sample)), None)
                if failure is None or failure.kind in _NO_END:
                    answers.append(sample)
                elif _owed_again(failure.kind, retry) or mended(sample, failure):
                    failed_before.append(sample)
                else:
                    answers_done += 1
                continue
            if changed := clip_changed(sample, stored):
                superseded.append(sample)
            if changed or (stored.blank and EMPTY_ANSWER in retry):
                answers.append(sample)
                continue
            answers_done += 1
            blank += stored.blank
            if judge_id is None:
                continue
            for order in orders:
                lines = judged._verdict_lines(  # noqa: SLF001 (of another run)
                    sample, order, judge_id, stored.answer_sha256
                )
                if lines.success is None and (
                    not lines.failures or _owed_again(lines.failures[-1].kind, retry)
                ):
                    verdicts.append((sample, order))
                else:
                    verdicts_done += 1
        # What failed before goes last: it says least about whether the endpoint works.
        owed = (*answers, *failed_before)
        return Plan(owed, tuple(verdicts), answers_done, verdicts_done, blank, tuple(superseded))

    @property
    def has_answers(self) -> bool:
        """Whether any answer was stored."""
        return any(lines.answers for lines in self._lines.values())

    @property
    def has_verdicts(self) -> bool:
        """Whether any verdict was stored."""
        return any(verdict.success for lines in self._lines.values() for verdict in lines.verdicts)

    def answered_outside(self, keys: AbstractSet[str]) -> int:
        """Return how many samples with other keys have an answer."""
        return sum(bool(lines.answers) for key, lines in self._lines.items() if key not in keys)

    def stored_answer(self, sample: Sample) -> StoredAnswer | None:
        """Return the answer that counts for this sample as its record is now, or ``None``.

        The first success wins, except that one for another clip than before supersedes it, and that one with
        a text supersedes a blank one (which is asked for again when ``retry_failed`` says so). After a
        ``clip_changed`` line none before it counts.
        """
        best: StoredAnswer | None = None
        marks = [f.place for f in self._failures(sample) if f.kind is FailureKind.CLIP_CHANGED]
        for stored in self._answers(sample):
            if marks and stored.place < marks[-1]:
                continue
            new_clip = best is not None and stored.clip_sha256 != best.clip_sha256
            if best is None or new_clip or (best.blank and not stored.blank):
                best = stored
        return best

    def is_judged(self, sample: Sample, order: Order, judge_id: str) -> bool:
        """Whether the text that counts for this sample has this verdict already, whoever wrote it when."""
        stored = self.stored_answer(sample)
        if stored is None:
            return False
        return self._verdict_lines(sample, order, judge_id, stored.answer_sha256).success is not None

    def answer_text(self, sample: Sample) -> tuple[str, str]:
        """Return the text to judge and its SHA-256, as a reader finds them.

        Raises ``KeyError`` when the sample has no answer, and ``RunDirectoryError``.
        """
        stored = self.stored_answer(sample)
        if stored is None:
            raise KeyError(sample.key)
        text = self._texts.get(stored.place)
        if text is None:
            text = self._read(ANSWERS, stored.place)["text"]
            self._keep_text(stored.place, text)
        return text, stored.answer_sha256

    def _keep_text(self, place: Place, text: str) -> None:
        self._texts[place] = text
        if len(self._texts) > _TEXTS_KEPT:
            del self._texts[next(iter(self._texts))]

    def interim_replies(
        self,
        sample: Sample,
        verdict_of: tuple[Order, str, str] | None = None,
        *,
        clip_sha256: str | None = None,
    ) -> tuple[Reply, ...]:
        """Return the replies after which an asking was cut off, or found no further reply: it goes on there.

        ``verdict_of`` is (order, judge id, digest of the judged text); without it, the answer is meant, and
        replies about another clip than that of ``clip_sha256`` are left out.
        """
        ended: tuple[Place, ...]
        if verdict_of is None:
            name, failures = ANSWERS, self._failures(sample)
            ended = tuple(answer.place for answer in self._answers(sample))
        else:
            lines = self._verdict_lines(sample, *verdict_of)
            name, failures = VERDICTS, lines.failures
            ended = () if lines.success is None else (lines.success,)
        if not failures or not open_end(failures[-1].kind):
            return ()
        clip = failures[-1].clip
        if clip_sha256 is not None and clip is not None and clip.get("sha256") != clip_sha256:
            return ()
        if any(place > failures[-1].place for place in ended):
            return ()
        return replies_of([self._read(name, failures[-1].place)])

    def samples(self) -> list[Sample]:
        """Return this run's samples, as ``samples.jsonl`` has them.

        Raises ``RunDirectoryError``, also when they are not as many as the manifest says, or not all
        different: every mean would be another one, and nobody would see why.
        """
        path = self.path / SAMPLES
        try:
            with path.open("rb") as file:
                samples = [sample_from_line(parse_line(line)) for line in file if line.strip()]
            self._check_selection(samples)
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise RunDirectoryError(
                f"{path}: cannot be read ({type(error).__name__}: {error}). Resume the run: it writes the "
                "file anew"
            ) from None
        return samples

    def _check_selection(self, samples: Sequence[Sample]) -> None:
        expected = (self.manifest.get("selection") or {}).get("samples")
        if expected is not None and len(samples) != expected:
            raise ValueError(f"it holds {len(samples)} samples, and the manifest says {expected}")
        if len({sample.key for sample in samples}) < len(samples):
            raise ValueError("it holds a sample twice")

    def outcomes(self, samples: Iterable[Sample], judge_id: str | None) -> Iterator[Outcome]:
        """Yield everything known of each sample, one at a time, in the order of ``samples``."""
        for sample in samples:
            yield self.outcome(sample, judge_id)

    def outcome(self, sample: Sample, judge_id: str | None) -> Outcome:
        """Return everything known of one sample; ``judge_id`` is the judge whose verdicts count.

        Raises ``RunDirectoryError`` when the lines are no longer what they were when the run was opened.
        """
        stored = self.stored_answer(sample)
        failures = self._failures(sample)
        lines: list[StoredAnswer | StoredFailure] = [*failures, *self._answers(sample)]
        mark = max((f.place for f in failures if f.kind is FailureKind.CLIP_CHANGED), default=(-1, 0))
        current = [line for line in lines if line.place > mark]
        past = sorted(line.place for line in lines if line.place < mark)
        if stored is None:
            if not failures or failures[-1].kind in _NO_END:
                return Outcome(sample, None, superseded=self._replies(ANSWERS, past))
            told, later = self._told(ANSWERS, current, failures[-1].place)
            superseded = self._replies(ANSWERS, [*past, *later])
            return Outcome(sample, failure_of(told), clip=told[-1].get("clip"), superseded=superseded)
        told, told_later = self._told(ANSWERS, current, stored.place)
        line = told[-1]
        answer = Answer(
            raw_text=line["raw_text"],
            text=line["text"],
            reasoning=line.get("reasoning"),
            filter=line.get("filter", "none"),
            audio_part=line.get("audio_part"),
            replies=replies_of(told),
        )
        verdicts: dict[Order, Verdict | Failure] = {}
        surplus: list[Place] = []
        lost = 0
        for judged in self._lines.get(sample.key, _NO_LINES).verdicts:
            if judged.judge_id != judge_id:
                continue
            lost += judged.unanswered
            if (judged.answer_sha256, judged.sample_digest) != (stored.answer_sha256, sample.digest):
                surplus += judged.places
                continue
            verdict, later = self._verdict(judged)
            surplus += later
            if verdict is not None:
                verdicts[judged.order] = verdict
        return Outcome(
            sample,
            answer,
            {order: verdicts[order] for order in Order if order in verdicts},
            clip=line.get("clip"),
            superseded=self._replies(ANSWERS, [*past, *told_later]),
            surplus=self._replies(VERDICTS, surplus),
            unanswered=lost,
        )

    def _verdict(self, lines: VerdictLines) -> tuple[Verdict | Failure | None, list[Place]]:
        """Return the verdict that counts, and the places of the lines that came after it."""
        if lines.success is None:
            if not lines.failures or lines.failures[-1].kind in _NO_END:
                return None, []
            told, later = self._told(VERDICTS, lines.failures, lines.failures[-1].place)
            return failure_of(told), later
        told, later = self._told(VERDICTS, lines.failures, lines.success)
        line = told[-1]
        verdict = Verdict(
            order=lines.order,
            judge_id=lines.judge_id,
            answer_sha256=lines.answer_sha256,
            score_kind=line["score_kind"],
            reference_score=line["reference_score"],
            answer_score=line["answer_score"],
            probabilities=line.get("probabilities"),
            replies=replies_of(told),
        )
        return verdict, [*later, *lines.surplus]

    def _verdict_lines(self, sample: Sample, order: Order, judge_id: str, answer_sha256: str) -> VerdictLines:
        """Return the lines of one verdict; empty ones when there are none."""
        sought = VerdictLines(order, judge_id, answer_sha256, sample.digest)
        return same_verdict(self._lines.get(sample.key, _NO_LINES), sought) or sought

    def _answers(self, sample: Sample) -> tuple[StoredAnswer, ...]:
        answers = self._lines.get(sample.key, _NO_LINES).answers
        return tuple(answer for answer in answers if answer.sample_digest == sample.digest)

    def _failures(self, sample: Sample) -> tuple[StoredFailure, ...]:
        failures = self._lines.get(sample.key, _NO_LINES).failures
        return tuple(failure for failure in failures if failure.sample_digest == sample.digest)

    def _told(
        self, name: str, lines: Iterable[StoredAnswer | StoredFailure], counts: Place
    ) -> tuple[list[Json], list[Place]]:
        """Read the lines of one identity as they were written, up to the one that counts.

        Returned beside them are the places of those after it, which changed nothing.
        """
        places = sorted({*(line.place for line in lines), counts})
        until = places.index(counts) + 1
        return [self._read(name, place) for place in places[:until]], places[until:]

    def _replies(self, name: str, places: Sequence[Place]) -> tuple[Reply, ...]:
        return replies_of([self._read(name, place) for place in sorted(places)])

    def lines(self, name: str, wanted: Callable[[str, Order | None], bool]) -> Iterator[bytes]:
        """Yield the lines of a file that were indexed, as they were written, in their order.

        Of those the ones of a key, and of a verdict's order, that are ``wanted``. Raises
        ``RunDirectoryError``.
        """
        places: list[Place] = []
        for key, lines in self._lines.items():
            if name == VERDICTS:
                places += (p for one in lines.verdicts if wanted(key, one.order) for p in one.places)
            elif wanted(key, None):
                places += [answer.place for answer in lines.answers]
                places += [failure.place for failure in lines.failures]
        for place in sorted(places):
            data = self._data(name, place)
            # The last line may have been cut just before its end.
            yield data if data.endswith(b"\n") else data + b"\n"

    # --- reading ------------------------------------------------------------------------------------------

    def _index(self) -> None:
        for name in (ANSWERS, VERDICTS):
            path = self.path / name
            runs = self._writers_of(name)
            with directory_errors(path):
                if not path.exists():
                    continue
                with path.open("rb") as file:
                    offset = 0
                    for data in file:
                        place = (offset, len(data))
                        offset += len(data)
                        if data.strip() and not self._indexed(name, data, place, runs):
                            self.skipped_lines += 1

    def _writers_of(self, name: str) -> set[str]:
        """Return the ids of the runs whose lines count: this one, and those that it was made of."""
        runs: set[str] = set()
        sources: list[object] = [self.manifest]
        while sources:
            source = sources.pop()
            if isinstance(source, dict):
                runs.add(str(source.get("run_id")))
                merged = source.get("merged_from")
                sources += merged if isinstance(merged, list) else []
                # Who copies answers leaves the verdicts.
                sources += [source.get("answers_from")] if name == ANSWERS else []
        return runs

    def _indexed(self, name: str, data: bytes, place: Place, runs: set[str]) -> bool:
        try:
            line = parse_line(data)
            if line["run"] not in runs or line.get("repeat", 0) != 0:
                return False
            check_line(line)
            self._index_line(name, line, place)
        except (ValueError, KeyError, TypeError, RecursionError):
            return False
        return True

    def _index_line(self, name: str, line: Json, place: Place) -> None:
        """Index a line whose form was checked, or is ours. Raises as its own fields' checks do."""
        key, failure = text_of(line, "key"), line.get("failure")
        read = self._index_answer if name == ANSWERS else self._index_verdict
        read(self._lines.get(key) or SampleLines(), key, line, failure, place)

    def _index_answer(
        self, lines: SampleLines, key: str, line: Json, failure: Json | None, place: Place
    ) -> None:
        digest, clip = text_of(line, "sample_digest"), line.get("clip") or {}
        if failure is not None:
            lines.failures += (stored_failure(place, digest, failure, clip),)
        else:
            text = text_of(line, "text")
            answer = StoredAnswer(
                place=place,
                sample_digest=digest,
                answer_sha256=text_digest(text),
                clip_sha256=clip.get("sha256", ""),
                clip_bytes=clip.get("bytes", -1),
                clip_mtime_ns=clip.get("mtime_ns", -1),
                blank=not text_of(line, "raw_text").strip(),
                characters=len(text),
                clip_from=clip.get("from"),
            )
            lines.answers += (answer,)
        self._lines[key] = lines

    def _index_verdict(
        self, lines: SampleLines, key: str, line: Json, failure: Json | None, place: Place
    ) -> None:
        known = [text for answer in lines.answers for text in (answer.answer_sha256, answer.sample_digest)]
        read = VerdictLines(
            Order(line["order"]),
            sys.intern(text_of(line, "judge_id")),
            shared(text_of(line, "answer_sha256"), known),
            shared(text_of(line, "sample_digest"), known),
        )
        verdict = same_verdict(lines, read) or read
        if failure is not None:
            told = stored_failure(place, read.sample_digest, failure)
            self._count_spent(verdict, line)
            verdict.failures += (told,)
        else:
            check_scores(line["reference_score"], line["answer_score"])
            text_of(line, "score_kind")
            self._count_spent(verdict, line)
            if verdict.success is None:
                verdict.success = place
            else:
                verdict.surplus += (place,)
        if verdict is read:
            lines.verdicts += (verdict,)
        self._lines[key] = lines

    def _count_spent(self, verdict: VerdictLines, line: Json) -> None:
        """Add what a line tells of that those before it, of the same identity, do not."""
        before = None
        last = verdict.failures[-1] if verdict.failures else None
        # Almost every verdict has one line, and none is read twice.
        if last is not None and open_end(last.kind) and max(verdict.places) == last.place:
            before = self._read(VERDICTS, last.place)
        spent, lost = self.judge_spent, unanswered(line)
        for reply in new_replies(before, line):
            spent.calls += reply.get("attempts", 1)
            spent.add_reply(reply.get("usage"), reply.get("estimated"))
        spent.calls += lost
        verdict.unanswered += lost

    def _read(self, name: str, place: Place) -> Json:
        try:
            return parse_line(self._data(name, place))
        except (ValueError, TypeError):
            raise RunDirectoryError(
                f"{self._files[name]}: the line at byte {place[0]} was changed while the run was open. Run "
                "the command again"
            ) from None

    def _data(self, name: str, place: Place) -> bytes:
        path, (offset, length) = self._files[name], place
        with directory_errors(path):
            if name not in self._readers:
                self._readers[name] = os.open(path, os.O_RDONLY | BINARY)
            return read_at(self._readers[name], length, offset)


def _owed_again(kind: FailureKind, retry: set[str]) -> bool:
    return kind.passing or "all" in retry or kind.value in retry
