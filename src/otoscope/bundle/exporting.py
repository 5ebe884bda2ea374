"""A run directory -> one file to share."""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from otoscope.bundle.scrubbing import REMOVED, Scrubber
from otoscope.bundle.withholding import WITHHELD, Withholder, withheld_reply
from otoscope.config.defaults import PROMPT_TEMPLATE
from otoscope.errors import ConfigError, RunDirectoryError
from otoscope.judge import judge_identity
from otoscope.records import FailureKind, Json, Sample, text_digest
from otoscope.runs import summary_of, write_results
from otoscope.scoring import Scoring
from otoscope.store import ANSWERS, MANIFEST, SAMPLES, SUMMARY, VERDICTS, RunStore, sample_to_line
from otoscope.store.lines import line_bytes, parse_line

_FILES = (MANIFEST, ANSWERS, VERDICTS, SAMPLES, SUMMARY)
_TEXTS = ("question", "answer_gt", "meta_info", "answer", "judge_reply")
_KEPT = (
    "format benchmark run_id created_at package_version unjoined unknown_answers cannot_be_judged withheld"
).split()
"""Of the manifest, what is kept as it is. ``settings`` are for going on, on the machine they are about; the
judge's price among them stays, since a number depends on it."""
_PROMPT_TEXTS = ("template", "system", "source", "templates", "systems")
_OF_DATASET = ("digest", "task_sizes", "descriptions_converted")
_OF_CLIP = ("sha256", "bytes", "mtime_ns", "format", "seconds", "rate", "channels", "changed")
_OF_SENT_CLIP = ("control", "from", "converter")
_OF_SENT = ("sha256", "bytes", "format", "seconds", "rate", "channels")
_OF_REPLY = "finish_reason started_at latency attempts audio_part probabilities estimated".split()
_OF_ANSWER = "run key sample_digest repeat filter audio_part".split()
_OF_VERDICT = (
    "run key order sample_digest repeat score_kind reference_score answer_score probabilities"
).split()
_OWN_MESSAGES = frozenset(
    kind.value
    for kind in (
        FailureKind.UNPARSEABLE,
        FailureKind.CUT_OFF,
        FailureKind.NO_ANSWER,
        FailureKind.BLANK_AFTER_FILTER,
        FailureKind.CUT_WHILE_THINKING,
        FailureKind.ASKED_AGAIN,
    )
)
"""Failures whose message has no path and nothing of a server's words, which may name hosts and accounts."""
_OF_SOURCE = ("run_id", "sha256", "shard", "samples")
_EPOCH = (1980, 1, 1, 0, 0, 0)
_NOT_NUMBERS = ("model", "judge", "label", "tags", "fingerprint", "selection", "warnings")
_ABOUT_NAMES = frozenset(("same_family", "self_judged", "withheld"))
"""Warnings that follow from a model's name, of which a path is cut off, and from the bundle itself."""


@dataclass(frozen=True, slots=True)
class Bundled:
    """What was written."""

    file: Path
    folder: str
    """The folder that the file unpacks to."""
    samples: int


def export_bundle(run: Path, file: Path, *, with_data: bool, force: bool = False) -> Bundled:
    """Write a run as a zip that unpacks to a run directory, without hosts, paths, user names and settings.

    Removed are also request ids and what servers said of failures. Without data, so are questions,
    references, descriptions, answers, reasoning and the words of the judge's replies; texts of the same
    length and kind stand for them. Every number stays, by default and by official scoring; that is checked.
    The same run always gives the same bytes.

    Raises ``ConfigError`` when the file is there already (without ``force``), and ``RunDirectoryError``,
    also where the numbers would not be the same. Nothing is then written.
    """
    if file.exists() and not force:
        raise ConfigError(f"{file}: is there already. Give --force to replace it, or another name")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=file.parent, prefix=".otoscope-") as scratch:
            with RunStore.open(run) as store:
                copy = _Copy(store, with_data=with_data)
                bundle = Path(scratch) / copy.folder
                copy.write(bundle)
                _check_numbers(store, bundle)
            packed = Path(scratch) / "bundle.zip"
            _pack(bundle, packed)
            packed.replace(file)
    except OSError as error:
        raise RunDirectoryError(
            f"{error.filename or file}: cannot be written: {error.strerror or error}. "
            "Make room, or give another file"
        ) from None
    return Bundled(file, copy.folder, len(copy.samples))


class _Copy:
    """A run, and how its manifest and its lines are written into a bundle."""

    def __init__(self, store: RunStore, *, with_data: bool) -> None:
        self._store = store
        self._scrub = Scrubber()
        self._withhold = None if with_data else Withholder(_secret(store.path))
        self._digests: dict[str, str] = {}
        """Of texts that are withheld: those of what stands for them."""
        self._judge_ids: dict[str, str] = {}
        self.samples = [self._sample(sample) for sample in store.samples()]
        self.folder = "run-" + re.sub(r"[^A-Za-z0-9_-]+", "", str(store.manifest["run_id"]))[:8]

    def write(self, path: Path) -> None:
        """Write the copy as a run directory."""
        manifest = self._manifest(self._store.manifest)
        with RunStore.create(path, manifest) as copy:
            # Answers first: verdicts name them by their digests.
            for name, rewrite in ((ANSWERS, self._answer), (VERDICTS, self._verdict)):
                if (self._store.path / name).exists():
                    copy.write_file(name, _rewritten(self._store.path / name, rewrite))
            copy.write_samples(map(sample_to_line, self.samples))
        with RunStore.open(path) as copy:
            write_results(copy, self.samples)

    # --- the manifest -------------------------------------------------------------------------------------

    def _manifest(self, manifest: Json) -> Json:
        requested = manifest.get("fingerprint") or {}
        self._scrub.learn(manifest)
        parts = {role: self._asked(requested.get(role)) for role in ("model", "judge")}
        written = {name: manifest[name] for name in _KEPT if name in manifest}
        written["fingerprint"] = {**requested, **parts}
        if requested.get("prompt"):
            written["fingerprint"]["prompt"] = self._prompt(requested["prompt"])
        if "selection" in manifest:
            written["selection"] = {
                name: self._scrub.value(item) for name, item in (manifest["selection"] or {}).items()
            }
        written["judge_id"] = self._judge_id(manifest.get("judge_id"), parts["judge"])
        if price := (manifest.get("settings") or {}).get("judge_price"):
            written["settings"] = {"judge_price": price}
        written["label"] = self._scrub.value(manifest.get("label"))
        written["tags"] = self._scrub.value(manifest.get("tags") or {})
        dataset = manifest.get("dataset") or {}
        written["dataset"] = {name: dataset[name] for name in _OF_DATASET if name in dataset}
        for name in ("imported", "allowed_changes"):
            if name in manifest:
                written[name] = self._scrub.value(manifest[name])
        written.update(_sources(manifest))
        if self._withhold is not None:
            written["withheld"] = list(_TEXTS)
            written["cannot_be_judged"] = "it was shared without its texts"
        return written

    def _asked(self, requested: Json | None) -> Json | None:
        """Return what was requested of the model or of the judge."""
        if not requested:
            return requested
        url = requested.get("api_url")
        shown = {"api_url": self._scrub.url(url)} if isinstance(url, str) else {}
        name = self._scrub.name(str(requested.get("name")))
        scrubbed = {field: self._scrub.value(item) for field, item in requested.items()}
        return {**scrubbed, **shown, "name": name}

    def _prompt(self, requested: Json) -> Json:
        """Return what was requested of the prompt, its texts scrubbed."""
        return {
            field: self._prompt_text(item) if field in _PROMPT_TEXTS else item
            for field, item in requested.items()
        }

    def _prompt_text(self, item: Any) -> Any:
        if isinstance(item, str):
            # The placeholder is none of the run's words: without it a template would be another one.
            return PROMPT_TEMPLATE.join(map(self._scrub.text, item.split(PROMPT_TEMPLATE)))
        if isinstance(item, list):  # of variants, each with its number of rows
            return [{name: self._prompt_text(of) for name, of in variant.items()} for variant in item]
        return item

    def _judge_id(self, judge_id: str | None, requested: Json | None) -> str | None:
        if judge_id is None or requested is None:
            return None
        self._judge_ids[judge_id] = judge_identity(requested)
        return self._judge_ids[judge_id]

    # --- samples and lines --------------------------------------------------------------------------------

    def _sample(self, sample: Sample) -> Sample:
        if self._withhold is None:
            return sample
        return replace(
            sample,
            question=self._withhold.text(sample.question),
            reference=self._withhold.text(sample.reference),
            description=WITHHELD,
        )

    def _answer(self, line: Json) -> Json:
        written = {name: line[name] for name in _OF_ANSWER if name in line}
        written["clip"] = line.get("clip") and _clip(line["clip"])
        if line.get("failure") is not None:
            written["failure"] = self._failure(line["failure"])
        else:
            text = self._text(line["text"])
            written.update(
                answer_sha256=text_digest(text),
                raw_text=self._text(line["raw_text"]),
                text=text,
                reasoning=line.get("reasoning") if self._withhold is None else None,
            )
            self._digests[text_digest(line["text"])] = text_digest(text)
        written["replies"] = [self._reply(reply, self._text) for reply in line.get("replies", [])]
        return written

    def _verdict(self, line: Json) -> Json:
        written = {name: line[name] for name in _OF_VERDICT if name in line}
        judge_id, digest = line["judge_id"], line["answer_sha256"]
        written["judge_id"] = self._judge_ids.get(judge_id) or _other_judge(judge_id)
        if self._withhold is not None:
            digest = self._digests.get(digest) or self._withhold.digest(digest)
        written["answer_sha256"] = digest
        if line.get("failure") is not None:
            written["failure"] = self._failure(line["failure"])
        words = _same if self._withhold is None else withheld_reply
        written["replies"] = [self._reply(reply, words) for reply in line.get("replies", [])]
        return written

    def _failure(self, failure: Json) -> Json:
        written: Json = {name: failure[name] for name in ("kind", "attempts", "file") if name in failure}
        own = failure["kind"] in _OWN_MESSAGES and self._withhold is None
        written["message"] = self._scrub.text(failure.get("message", "")) if own else REMOVED
        return written

    def _reply(self, reply: Json, words: Callable[[str], str | None]) -> Json:
        text = reply.get("text")
        written: Json = {"text": None if text is None else words(text)}
        if self._withhold is None and reply.get("reasoning") is not None:
            written["reasoning"] = reply["reasoning"]
        for name, scrubbed in (("model", self._scrub.name), ("endpoint", self._scrub.url)):
            if reply.get(name) is not None:
                written[name] = scrubbed(str(reply[name]))
        for name in ("usage", "parameters"):
            if name in reply:
                written[name] = self._scrub.value(reply[name])
        written.update({name: reply[name] for name in _OF_REPLY if name in reply})
        return written

    def _text(self, text: str) -> str:
        return text if self._withhold is None else self._withhold.text(text)


def _clip(clip: Json) -> Json:
    written = {name: clip[name] for name in (*_OF_CLIP, *_OF_SENT_CLIP) if name in clip}
    if clip.get("sent"):
        written["sent"] = {name: clip["sent"][name] for name in _OF_SENT if name in clip["sent"]}
    return written


def _same(text: str) -> str:
    return text


def _sources(recorded: Json) -> Json:
    """Return what a manifest says of the runs that a run was made of, without their paths."""
    named: Json = {}
    if isinstance(source := recorded.get("answers_from"), dict):
        named["answers_from"] = _source(source)
    if isinstance(sources := recorded.get("merged_from"), list):
        named["merged_from"] = [_source(source) for source in sources if isinstance(source, dict)]
    return named


def _source(recorded: Json) -> Json:
    return {**{name: recorded[name] for name in _OF_SOURCE if name in recorded}, **_sources(recorded)}


def _other_judge(judge_id: str) -> str:
    """Return what stands for a judge that is no longer the run's: its verdicts do not count."""
    return f"another-judge#{hashlib.sha256(judge_id.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"


def _secret(run: Path) -> bytes:
    """Return what only those know who have the run's texts: a digest over them."""
    digest = hashlib.sha256()
    for name in (SAMPLES, ANSWERS):
        with suppress(FileNotFoundError):
            digest.update((run / name).read_bytes())
    return digest.digest()


def _rewritten(path: Path, rewrite: Callable[[Json], Json]) -> Iterator[bytes]:
    """Yield a file's lines rewritten. One that is torn or foreign stays one that is not used."""
    with path.open("rb") as file:
        for data in file:
            if not data.strip():
                continue
            try:
                written = line_bytes(rewrite(parse_line(data)))
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                written = b"{}\n"
            yield written


# --- the same numbers -------------------------------------------------------------------------------------


def _check_numbers(run: RunStore, bundle: Path) -> None:
    """Raise ``RunDirectoryError`` unless both runs yield the same numbers by every rule."""
    with RunStore.open(bundle) as copy:
        for scoring in get_args(Scoring):
            try:
                before = summary_of(run, run.samples(), scoring=scoring).to_json()
            except ConfigError:  # cannot be scored like that
                continue
            after = summary_of(copy, copy.samples(), scoring=scoring).to_json()
            differing = [name for name in before if name not in _NOT_NUMBERS and before[name] != after[name]]
            if _warned_of(before) != _warned_of(after):
                differing.append("warnings")
            if differing:
                raise RunDirectoryError(
                    f"{run.path}: a bundle would have other numbers than the run ({', '.join(differing)}, by "
                    f"{scoring} scoring). Nothing was written; share the report instead"
                )


def _warned_of(summary: Mapping[str, Any]) -> set[str]:
    return {warning["name"] for warning in summary["warnings"]} - _ABOUT_NAMES


# --- the file ---------------------------------------------------------------------------------------------


def _pack(bundle: Path, file: Path) -> None:
    """Write the folder as a zip whose bytes depend on what is in it alone."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as packed:
        for name in _FILES:
            if (bundle / name).exists():
                entry = zipfile.ZipInfo(f"{bundle.name}/{name}", date_time=_EPOCH)
                entry.external_attr, entry.create_system = 0o644 << 16, 3
                entry.compress_type = zipfile.ZIP_DEFLATED
                with (
                    packed.open(entry, "w", force_zip64=True) as target,
                    (bundle / name).open("rb") as source,
                ):
                    shutil.copyfileobj(source, target)
