"""The nouns of an evaluation. Every other module takes and returns these.

::

    Sample --audio--> AudioClip --backend--> Answer | Failure --judge--> Verdict | Failure (one an order)

An :class:`Outcome` is everything known of one sample. Names carry roles, never positions: once a
:class:`Verdict` exists, nobody needs to know who was "Assistant 1".
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import orjson

Json = dict[str, Any]

_MOST_TOKENS = 1 << 50
"""Of one reply; a server may report anything."""


def json_bytes(value: Any, default: Callable[[Any], Any] | None = None) -> bytes:
    """Return ``value`` as compact UTF-8 JSON on one line.

    Text stays readable for people and ``grep``; only where a lone surrogate occurs, which UTF-8 cannot
    carry, is it escaped. NaN and infinities are refused (``ValueError``): they are not JSON.
    """
    # Twenty times as fast for a long text, and the same bytes. It refuses a lone surrogate, and deep nesting.
    with contextlib.suppress(orjson.JSONEncodeError, RecursionError):
        if _is_plain(value, others=default is not None):
            return orjson.dumps(value, default, _OPTIONS)
    try:
        return json.dumps(
            value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=default
        ).encode("utf-8")
    except UnicodeEncodeError:
        return json.dumps(value, allow_nan=False, separators=(",", ":"), default=default).encode("ascii")


# Types that are not JSON's: none that orjson knows by itself.
_OPTIONS = (
    orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS
)


def _is_plain(value: Any, *, others: bool) -> bool:
    """Whether orjson writes ``value`` as the standard library does; ``others``: types that are not JSON's."""
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return True
    # No call for a text: this is asked of all that is stored or sent.
    if kind is dict:
        for name, item in value.items():
            if type(name) is not str or (type(item) is not str and not _is_plain(item, others=others)):
                return False
        return True
    if kind is list or kind is tuple:
        return all(type(item) is str or _is_plain(item, others=others) for item in value)
    if kind is int:
        return bool(-(1 << 63) <= value < 1 << 63)
    if kind is float:
        # Beyond, one writes 1e-05 and the other 1e-5; NaN is in no range.
        return bool(value == 0 or 1e-4 <= abs(value) < 1e16)
    return others and not isinstance(value, (str, int, float, dict, list, tuple))


def canonical_digest(value: Any) -> str:
    """Return the SHA-256 (hex) of ``value`` as canonical JSON: sorted keys, no spaces, ASCII."""
    with contextlib.suppress(orjson.JSONEncodeError, RecursionError):
        if _is_plain(value, others=False):
            data = orjson.dumps(value, option=_OPTIONS | orjson.OPT_SORT_KEYS)
            # What is ASCII anyway has no second form, but for DEL, which the standard library escapes.
            if data.isascii() and b"\x7f" not in data:
                return hashlib.sha256(data).hexdigest()
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def text_digest(text: str) -> str:
    """Return the SHA-256 (hex) of a text, also of one that holds a lone surrogate."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class Order(str, Enum):
    """Which of the two texts the judge reads first, as "Assistant 1"."""

    REFERENCE_FIRST = "reference_first"
    ANSWER_FIRST = "answer_first"

    @classmethod
    def judged(cls, *, swap: bool) -> tuple[Order, ...]:
        """Return the orders that are judged; without the swap the reference always stands first."""
        return (cls.REFERENCE_FIRST, cls.ANSWER_FIRST) if swap else (cls.REFERENCE_FIRST,)


@dataclass(frozen=True, slots=True)
class Sample:
    """One question about one clip, with its reference answer and the description the judge reads."""

    task: str
    dataset: str
    path: str
    uniq_id: int | str
    question: str
    reference: str
    description: str
    audio_path: str
    """Where the clip should lie: absolute, not yet checked."""
    digest: str
    """SHA-256 of the record's canonical JSON."""

    @property
    def clip_key(self) -> str:
        """The clip's name within the data set: ``task_name/dataset_name/path``."""
        return f"{self.task}/{self.dataset}/{self.path}"

    @property
    def key(self) -> str:
        """The sample's identity: ``task_name/dataset_name/path#uniq_id``."""
        return f"{self.clip_key}#{self.uniq_id}"


class AudioBytes(Protocol):
    """Bytes that are sent, wherever they come from. Several threads may read them at once."""

    def read_at(self, offset: int, size: int) -> bytes:
        """Return ``size`` bytes from ``offset`` on, fewer only at the end. Raises ``OSError``."""


class HeldAudio(AudioBytes, Protocol):
    """A clip's bytes as they were hashed, held in memory until they were sent once; then it yields none."""

    def drop(self) -> None:
        """Let the bytes go. May be called again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SentAudio:
    """What is sent in place of a clip's file as it lies.

    ``seconds``, ``rate`` (Hz) and ``channels`` are those of ``content``; ``size`` is in bytes.
    """

    sha256: str
    size: int
    format: str
    seconds: float
    rate: int
    channels: int
    content: AudioBytes = field(repr=False, compare=False)
    converter: str | None = None
    """The libraries that made it, with their versions."""

    def facts(self) -> Json:
        """Return what is stored of it with an answer."""
        return {
            "sha256": self.sha256,
            "bytes": self.size,
            "format": self.format,
            "seconds": self.seconds,
            "rate": self.rate,
            "channels": self.channels,
        }


@dataclass(frozen=True, slots=True)
class AudioClip:
    """A clip whose header was read and found good.

    All but what stands below ``changed`` is said of the file in the data set: ``size`` is in bytes, ``rate``
    in Hz. ``changed`` says what was done before it was sent (empty: sent as it is).
    """

    path: str
    sha256: str
    size: int
    mtime_ns: int
    format: str
    seconds: float
    rate: int
    channels: int
    changed: tuple[str, ...] = ()
    sent: SentAudio | None = None
    """``None``: the file as it lies."""
    control: str | None = None
    """The control that chose what is sent; ``None`` in an evaluation."""
    taken_from: str | None = None
    """Where the control took another sample's clip: ``task/dataset/path`` of that clip."""
    held: HeldAudio | None = field(default=None, repr=False, compare=False)
    """The file's bytes, where there was room for them in memory."""

    def open(self) -> BinaryIO:
        """Return a new reader at the start of the bytes to send. Raises ``OSError``."""
        if self.sent is not None:
            return io.BufferedReader(_Reader(self.sent.content, self.sent.size))
        return Path(self.path).open("rb", buffering=0)

    @property
    def format_sent(self) -> str:
        """The format of the bytes that :meth:`open` yields."""
        return self.format if self.sent is None else self.sent.format

    @property
    def size_sent(self) -> int:
        """Number of bytes that :meth:`open` yields."""
        return self.size if self.sent is None else self.sent.size

    @property
    def sha256_sent(self) -> str:
        """SHA-256 (hex) of the bytes that :meth:`open` yields."""
        return self.sha256 if self.sent is None else self.sent.sha256

    def facts(self) -> Json:
        """Return what is stored of the clip with an answer."""
        told: Json = {
            "sha256": self.sha256,
            "bytes": self.size,
            "mtime_ns": self.mtime_ns,
            "format": self.format,
            "seconds": self.seconds,
            "rate": self.rate,
            "channels": self.channels,
            "changed": list(self.changed),
        }
        if self.sent is not None:
            told["sent"] = self.sent.facts()
            if self.sent.converter is not None:
                told["converter"] = self.sent.converter
        if self.control is not None:
            told["control"] = self.control
        if self.taken_from is not None:
            told["from"] = self.taken_from
        return told


class _Reader(io.RawIOBase):
    """A reader of ``AudioBytes`` with a position of its own."""

    def __init__(self, content: AudioBytes, size: int) -> None:
        self._content = content
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, start + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        block = self._content.read_at(self._position, len(buffer))
        buffer[: len(block)] = block
        self._position += len(block)
        return len(block)


@dataclass(slots=True)
class Sending:
    """What a run would send of its clips, told from their headers: numbers of clips, seconds, bytes."""

    seconds: float = 0.0
    """Of the files."""
    size: int = 0
    """Of the files."""
    changed: int = 0
    """Clips that the audio policy, or a format that does not travel, has converted."""
    over_limit: int = 0
    """Clips that are longer than the audio policy lets one be."""
    seconds_over: float = 0.0
    """How much longer they are, in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One finished reply of a model or judge: paid for, and therefore always stored."""

    text: str | None
    reasoning: str | None = None
    finish_reason: str | None = None
    usage: Mapping[str, Any] | None = None
    model: str | None = None
    """The model name that the server returned."""
    request_id: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """What was really sent beside the messages, after adaptation to the server."""
    endpoint: str | None = None
    started_at: float = 0.0
    """Unix time (s) at which the successful attempt began."""
    latency: float = 0.0
    """Seconds from the start of the successful attempt to its last byte."""
    attempts: int = 1
    audio_part: str | None = None
    """The wire form of the clip in the request, where there was one."""
    probabilities: Mapping[str, Any] | None = None
    """Of the two scores, from judges that give them."""
    estimated: Mapping[str, int] | None = None
    """Numbers of tokens, under the names that they have in ``usage``, which the server did not give there."""

    def to_json(self) -> Json:
        """Return the stored form; what is unknown is left out."""
        stored: Json = {"text": self.text}
        for name in (
            "reasoning",
            "finish_reason",
            "usage",
            "model",
            "request_id",
            "endpoint",
            "audio_part",
            "probabilities",
            "estimated",
        ):
            if (value := getattr(self, name)) is not None:
                stored[name] = value
        stored["parameters"] = dict(self.parameters)
        stored["started_at"] = round(self.started_at, 3)
        stored["latency"] = round(self.latency, 4)
        stored["attempts"] = self.attempts
        return stored

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Reply:
        """Read the stored form; unknown fields are ignored."""
        return cls(**{name: stored[name] for name in cls.__slots__ if name in stored})


class FailureKind(str, Enum):
    """Why a sample has no answer or no verdict. The value is what is stored and reported."""

    MISSING_AUDIO = "missing_audio"
    BAD_AUDIO = "bad_audio"
    OUTSIDE_ROOT = "outside_root"
    TIMEOUT = "timeout"
    CONNECTION = "connection"
    RATE_LIMITED = "rate_limited"
    SERVER_ERROR = "server_error"
    BAD_REPLY = "bad_reply"
    REJECTED = "rejected"
    TOO_LARGE = "too_large"
    CONTEXT_TOO_SMALL = "context_too_small"
    OUT_OF_MEMORY = "out_of_memory"
    """A local model's device has no room for this sample, even alone."""
    CONTENT_FILTER = "content_filter"
    NO_ANSWER = "no_answer"
    BLANK_AFTER_FILTER = "blank_after_filter"
    CUT_WHILE_THINKING = "cut_while_thinking"
    UNPARSEABLE = "unparseable"
    CUT_OFF = "cut_off"
    SERVER_CRASH = "server_crash"
    """The server died while this was in flight, and once more when nothing else was."""
    ENDPOINT_FAILED = "endpoint_failed"
    """The failure before says nothing of the sample: many calls in a row failed like it."""
    OVER_LIMIT = "over_limit"
    """The clip is longer than the audio policy lets one be; by ``over=skip`` it is left out."""
    UNREADABLE_AUDIO = "unreadable_audio"
    """The system did not give the clip: no right, too many open files, a network disk that is away."""
    MODEL_ERROR = "model_error"
    """A model written in Python raised something, or returned what is no text."""
    CLIP_CHANGED = "clip_changed"
    """Not an end: from here on the stored answer, which is about other bytes, does not count."""
    ASKED_AGAIN = "asked_again"
    """Not an end: a reply that did not serve was stored while the next one was asked for."""

    @property
    def passing(self) -> bool:
        """Whether the same request may well succeed later, so that a resume owes it again."""
        return self in _PASSING


_PASSING = frozenset(
    {
        FailureKind.UNREADABLE_AUDIO,
        FailureKind.CLIP_CHANGED,
        FailureKind.TIMEOUT,
        FailureKind.CONNECTION,
        FailureKind.RATE_LIMITED,
        FailureKind.SERVER_ERROR,
        FailureKind.BAD_REPLY,
        FailureKind.OUT_OF_MEMORY,
        FailureKind.NO_ANSWER,
        FailureKind.CUT_WHILE_THINKING,
        FailureKind.UNPARSEABLE,
        FailureKind.CUT_OFF,
        FailureKind.ENDPOINT_FAILED,
        FailureKind.MODEL_ERROR,
        FailureKind.ASKED_AGAIN,
    }
)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why there is no result. A value like any other: counted, stored, reported, never scored."""

    kind: FailureKind
    message: str
    attempts: int = 0
    replies: tuple[Reply, ...] = ()
    file: Mapping[str, Any] | None = None
    """For trouble with a clip: its ``bytes`` and ``mtime_ns``, to notice when it was mended."""
    traceback: str | None = None
    """Of what a model written in Python raised, as Python prints one."""

    def to_json(self) -> Json:
        """Return the stored form, without the replies, which the line holds."""
        stored: Json = {"kind": self.kind.value, "message": self.message, "attempts": self.attempts}
        if self.file is not None:
            stored["file"] = dict(self.file)
        if self.traceback is not None:
            stored["traceback"] = self.traceback
        return stored


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the model said about one sample."""

    raw_text: str
    """As the server sent it."""
    text: str
    """After the answer filter: what is judged."""
    reasoning: str | None = None
    filter: str = "none"
    audio_part: str | None = None
    replies: tuple[Reply, ...] = ()

    @property
    def filtered(self) -> bool:
        """Whether the answer filter removed anything."""
        return self.raw_text != self.text

    @property
    def blank(self) -> bool:
        """Whether the model answered with nothing, before any filtering."""
        return not self.raw_text.strip()

    @property
    def sha256(self) -> str:
        """SHA-256 (hex) of the text that is judged."""
        return text_digest(self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One order's scores, each from 0 to 10, already freed from their positions."""

    order: Order
    judge_id: str
    answer_sha256: str
    score_kind: str
    """``integer``, ``decimal`` or ``expected``."""
    reference_score: float
    answer_score: float
    probabilities: Mapping[str, Any] | None = None
    replies: tuple[Reply, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything a run knows of one sample.

    ``answer`` is ``None`` while the sample is owed; ``verdicts`` has an entry for each order that ended.
    ``replies`` of the verdicts hold every reply paid for, failed asking included.
    """

    sample: Sample
    answer: Answer | Failure | None
    verdicts: Mapping[Order, Verdict | Failure] = field(default_factory=dict)
    clip: Mapping[str, Any] | None = None
    """Clip facts as stored (see :meth:`AudioClip.facts`)."""
    superseded: tuple[Reply, ...] = ()
    """The model's replies that are not the answer's: about bytes that the clip no longer has, or come after
    the answer that counts. Paid for, and of no other account."""
    surplus: tuple[Reply, ...] = ()
    """The judge's replies that are not the verdicts': about another answer, or come after the verdict that
    counts. Likewise."""
    unanswered: int = 0
    """Requests to the judge that ended an asking without a reply."""

    @property
    def clip_identity(self) -> str:
        """What tells clips apart: the SHA-256 of the bytes, else the file's name within its source.

        It is the sample's own clip, also where a control sent another sample's.
        """
        clip = self.clip or {}
        known = clip.get("sha256") if clip.get("from") is None else None
        return str(known) if known else f"{self.sample.dataset}/{self.sample.path}"


@dataclass(frozen=True, slots=True)
class Price:
    """What tokens cost, in any currency; ``prompt`` and ``completion`` are the prices of a million."""

    prompt: float
    completion: float

    def of(self, prompt_tokens: float, completion_tokens: float) -> float:
        """Return what so many tokens cost."""
        return (prompt_tokens * self.prompt + completion_tokens * self.completion) / 1e6

    @classmethod
    def from_json(cls, stored: Any) -> Price | None:
        """Read a price as a manifest has it; ``None`` for what is none."""
        if not isinstance(stored, (list, tuple)) or len(stored) != 2:
            return None
        if any(isinstance(p, bool) or not isinstance(p, (int, float)) or not 0 <= p < 1e12 for p in stored):
            return None
        return cls(float(stored[0]), float(stored[1]))


@dataclass(slots=True)
class Spent:
    """What a judge was asked and what that used. It grows."""

    calls: int = 0
    """Requests, those that brought no reply included."""
    replies: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    estimated: int = 0
    """Replies whose tokens, or some of them, were estimated: the server did not tell."""

    def add_reply(self, usage: Mapping[str, Any] | None, estimated: Mapping[str, int] | None) -> None:
        """Add a reply, but not the requests that brought it."""
        self.replies += 1
        self.prompt_tokens += _spent(usage, estimated, "prompt_tokens")
        self.completion_tokens += _spent(usage, estimated, "completion_tokens")
        self.estimated += estimated is not None

    def add(self, other: Spent) -> None:
        """Add what others spent."""
        self.calls += other.calls
        self.replies += other.replies
        self.prompt_tokens += other.prompt_tokens
        self.completion_tokens += other.completion_tokens
        self.estimated += other.estimated


@dataclass(frozen=True, slots=True)
class Estimate:
    """About what verdicts that are owed will use, told before any is asked for."""

    calls: int
    prompt_tokens: float
    completion_tokens: float
    cost: float | None
    """``None`` without a price."""
    unknown_answers: int
    """Of the calls, those about answers that are not there yet."""
    answer_characters: float
    """What each of those was taken to have: the mean of the stored ones, or without any a typical number."""
    answers_known: int
    """Stored answers."""
    replies_known: int
    """Stored replies of the judge, of whose mean length the replies are expected; 0: of a typical one."""


# --- events: what the core tells whoever draws progress --------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunStarted:
    """What this run will do. Counts are samples for answers and (sample, order) pairs for verdicts."""

    run_path: Path
    samples: int
    answers_done: int
    answers_owed: int
    verdicts_done: int
    verdicts_owed: int
    orders: int = 2
    """How many verdicts each answer gets, and how many will never come for a sample without one."""
    estimate: Estimate | None = None
    """What the verdicts that are owed will use; ``None`` where they cost nothing, or where it was told."""


@dataclass(frozen=True, slots=True)
class RunsPlanned:
    """What each of several runs that are judged together will do; each tells again when it starts."""

    runs: tuple[RunStarted, ...]


@dataclass(frozen=True, slots=True)
class RunFailed:
    """One of several runs cannot go on, the others do. What was done of it is stored."""

    run_path: Path
    message: str


@dataclass(frozen=True, slots=True)
class Answered:
    """One sample was answered (or failed) and stored."""

    key: str
    result: Answer | Failure
    run_path: Path | None = None


@dataclass(frozen=True, slots=True)
class Judged:
    """One order of one sample was judged (or failed) and stored."""

    key: str
    order: Order
    result: Verdict | Failure
    run_path: Path | None = None


@dataclass(frozen=True, slots=True)
class Notice:
    """Something a person should know: an adaptation to the server, a pause, a skipped line."""

    message: str


@dataclass(frozen=True, slots=True)
class Fetching:
    """Weights of an embedded model are being fetched. Sizes in bytes."""

    file: str
    source: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class DownloadPlanned:
    """What will be downloaded of the data set, before it begins. Sizes in bytes."""

    source: str
    place: Path
    wanted: int
    """Files that the chosen samples need."""
    here: int
    files: int
    """Files to fetch."""
    bytes: int
    free: int
    """Room in the place."""


@dataclass(frozen=True, slots=True)
class Downloading:
    """Files of the data set are being downloaded, or, while ``files`` is 0, the hub is asked for their sizes.

    Comes several times a second, also while nothing moves. ``done_files`` and ``done_bytes`` are those of
    this download; what lay there before is in neither, nor in the totals.
    """

    source: str
    done_files: int
    files: int
    done_bytes: int
    bytes: int


Event = (
    RunStarted
    | RunsPlanned
    | RunFailed
    | Answered
    | Judged
    | Notice
    | Fetching
    | DownloadPlanned
    | Downloading
)


def token_count(reply: Reply, name: str) -> int | None:
    """Return a number of tokens that the server reported; ``None`` where it reported none that can be one."""
    return _count((reply.usage or {}).get(name))


def tokens_spent(reply: Reply, name: str) -> int:
    """Return a number of tokens as it was reported, or else estimated; 0 where it was neither."""
    return _spent(reply.usage, reply.estimated, name)


def tokens_used(replies: Iterable[Reply]) -> int:
    """Return the tokens (prompt and completion) that these replies used."""
    names = ("prompt_tokens", "completion_tokens")
    return sum(tokens_spent(reply, name) for reply in replies for name in names)


def _spent(usage: Mapping[str, Any] | None, estimated: Mapping[str, int] | None, name: str) -> int:
    if estimated is not None and name in estimated:
        return estimated[name]
    return _count((usage or {}).get(name)) or 0


def _count(value: Any) -> int | None:
    can_be_one = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST_TOKENS
    return value if can_be_one else None
