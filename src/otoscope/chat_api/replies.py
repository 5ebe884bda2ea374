"""What came back: completions, event streams, errors, ``Retry-After``. Nothing here raises on any bytes."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any

from otoscope.nesting import TooDeepError, decoded

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_SECONDS = re.compile(r"\d{1,9}(\.\d{1,9})?", re.ASCII)
_STREAM_START = re.compile(rb"\s*(?:data|event|id|retry)?:")
_START_SHOWN = 2000
MOST_EVENTS = 100_000
"""Of a stream: several for each token. Reading more would keep every other request waiting."""


@dataclass(frozen=True, slots=True)
class ServerError:
    """An error as the server words it; what it did not say is empty."""

    message: str = ""
    code: str = ""
    type: str = ""
    param: str = ""
    status: int | None = None
    """The HTTP status that it claims to be, when it came inside of another one."""


@dataclass(slots=True)
class Completion:
    """What a reply holds."""

    text: str | None = None
    reasoning: str | None = None
    finish_reason: str | None = None
    usage: dict[str, Any] | None = None
    model: str | None = None
    id: str | None = None


def clean(text: str, limit: int = 400) -> str:
    """Return ``text`` as one line without control characters, cut to a length that a message can bear."""
    text = _CONTROL.sub(" ", text).strip()
    return text if len(text) <= limit else text[: limit - 1] + "…"


def read_completion(content: bytes, content_type: str) -> Completion | ServerError:
    """Read the body of a good status: a JSON completion, an event stream, or an error in disguise."""
    is_stream = content_type.lower().startswith("text/event-stream") or _STREAM_START.match(content)
    try:
        if is_stream and not content.lstrip().startswith(b"{"):
            return _read_stream(content)
        return _read_json(content)
    except TooDeepError:
        return ServerError("the reply is nested too deeply")
    except ValueError:
        return ServerError(f"the reply is not JSON: {_start(content)}" if content else "the reply is empty")


def read_error(content: bytes) -> ServerError:
    """Read the several shapes in which servers put their errors; plain text serves as the message."""
    try:
        return _error_in(_loads(content))
    except ValueError:
        return ServerError(_start(content))


def read_models(content: bytes | None) -> set[str] | None:
    """Return the names that ``GET /models`` lists; ``None`` when that is no such list."""
    try:
        return {str(entry["id"]) for entry in _loads(content or b"")["data"]}
    except (ValueError, KeyError, TypeError):
        return None


def retry_after(headers: Mapping[str, str]) -> float:
    """Return the seconds that ``Retry-After`` asks for; 0 when it asks for none or cannot be read.

    A date counts from the server's own ``Date``, since the two clocks may differ.
    """
    value = headers.get("retry-after", "").strip()
    if _SECONDS.fullmatch(value):
        return float(value)
    until = _date(value)
    if until is None:
        return 0.0
    now = _date(headers.get("date", ""))
    return max(0.0, until.timestamp() - (time.time() if now is None else now.timestamp()))


def _date(text: str) -> datetime | None:
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    return date.replace(tzinfo=timezone.utc) if date.tzinfo is None else date


def _loads(content: bytes) -> Any:
    """Read JSON. NaN and infinities become ``None``: what is stored of a reply must be JSON again."""
    return decoded(content, _DECODER)


def _finite(text: str) -> float | None:
    number = float(text)
    return number if math.isfinite(number) else None


_DECODER = json.JSONDecoder(parse_constant=lambda _: None, parse_float=_finite)


def _start(content: bytes) -> str:
    return content[:_START_SHOWN].decode("utf-8", "replace")


# --- errors -----------------------------------------------------------------------------------------------


def _is_error(value: Any) -> bool:
    return isinstance(value, dict) and bool(value.get("error") or value.get("object") == "error")


def _error_in(value: Any) -> ServerError:
    if isinstance(value, list) and value:
        value = value[0]
    inner = (value.get("error") or value) if isinstance(value, dict) else value
    if not isinstance(inner, dict):
        return ServerError(str(inner))
    message = inner.get("message") or inner.get("detail") or inner.get("error") or ""
    if isinstance(message, list):
        message = "; ".join(map(_validation_error, message))
    code = inner.get("code")
    return ServerError(
        message=str(message),
        code=str(code or ""),
        type=str(inner.get("type") or ""),
        param=str(inner.get("param") or ""),
        status=_status(code),
    )


def _status(code: Any) -> int | None:
    text = str(code)
    return int(text) if re.fullmatch("[45][0-9][0-9]", text) else None


def _validation_error(entry: Any) -> str:
    if not isinstance(entry, dict):
        return str(entry)
    place = entry.get("loc")
    where = ".".join(map(str, place)) if isinstance(place, list) else ""
    return f"{where}: {entry.get('msg')}"


# --- completions ------------------------------------------------------------------------------------------


def _read_json(content: bytes) -> Completion | ServerError:
    value = _loads(content)
    if _is_error(value):
        return _error_in(value)
    choices = value.get("choices") if isinstance(value, dict) else None
    if not isinstance(choices, list) or not choices:
        return ServerError(f"the reply has no choices: {_start(content)}")
    return _with_envelope(_first_with_text([_read_choice(choice) for choice in choices]), value)


def _first_with_text(choices: Sequence[Completion]) -> Completion:
    """Return the first choice with text; else the first with an empty text; else the first."""
    with_text = (choice for choice in choices if (choice.text or "").strip())
    with_any = (choice for choice in choices if choice.text is not None)
    return next(with_text, None) or next(with_any, None) or choices[0]


def _read_choice(choice: Any) -> Completion:
    if not isinstance(choice, dict):
        return Completion()
    message = choice.get("message")
    finish = choice.get("finish_reason")
    completion = _read_message(message) if isinstance(message, dict) else Completion()
    completion.finish_reason = str(finish) if finish else None
    return completion


def _read_message(message: Mapping[str, Any]) -> Completion:
    """Read a message, or a piece of one."""
    content = message.get("content")
    text = _text(content)
    if text is None:
        # A refusal is what the model chose to say.
        text = _text(message.get("refusal")) or _of_parts(content, {"refusal": "refusal"})
    reasoning = (
        _text(message.get("reasoning_content"))
        or _text(message.get("reasoning"))
        or _of_parts(content, {"thinking": "thinking", "reasoning": "text"})
    )
    return Completion(text=text, reasoning=reasoning or None)


def _text(value: Any) -> str | None:
    """Return a text, also one that comes as a list of parts."""
    return value if isinstance(value, str) else _of_parts(value, {"text": "text", "output_text": "text"})


def _of_parts(parts: Any, fields: Mapping[str, str]) -> str | None:
    """Return the joined texts of the parts whose type has a field in ``fields``; ``None`` without any."""
    texts: list[str] = []
    for part in parts if isinstance(parts, list) else ():
        field = fields.get(str(part.get("type", "text"))) if isinstance(part, dict) else None
        value = part.get(field) if field is not None else None
        if isinstance(value, list):  # Mistral's thinking
            texts += [inner["text"] for inner in value if isinstance(inner, dict) and _has_text(inner)]
        elif isinstance(value, str):
            texts.append(value)
    return "".join(texts) if texts else None


def _has_text(part: Mapping[str, Any]) -> bool:
    return isinstance(part.get("text"), str)


def _with_envelope(completion: Completion, value: Mapping[str, Any]) -> Completion:
    if isinstance(value.get("usage"), dict):
        completion.usage = value["usage"]
    if isinstance(value.get("model"), str):
        completion.model = value["model"]
    if isinstance(value.get("id"), str):
        completion.id = value["id"]
    return completion


# --- event streams ----------------------------------------------------------------------------------------


def _read_stream(content: bytes) -> Completion | ServerError:
    envelope = Completion()
    choices: dict[int, _Growing] = {}
    ended = False
    for number, data in enumerate(_events(content)):
        if number >= MOST_EVENTS:
            return ServerError(f"the stream has over {MOST_EVENTS:,} events")
        if data == b"[DONE]":
            ended = True
            break
        event = _loads(data)
        if _is_error(event):
            return _error_in(event)
        if not isinstance(event, dict):
            continue
        _with_envelope(envelope, event)
        listed = event.get("choices")
        for choice in listed if isinstance(listed, list) else ():
            index = choice.get("index") if isinstance(choice, dict) else None
            growing = choices.setdefault(index if isinstance(index, int) else 0, _Growing())
            growing.add(choice)
    grown = [choices[index].completion() for index in sorted(choices)]
    if not grown:
        return ServerError("the stream holds no reply")
    best = _first_with_text(grown)
    if not ended and best.finish_reason is None:
        return ServerError("the stream ended before the reply did")
    best.usage, best.model, best.id = envelope.usage, envelope.model, envelope.id
    return best


def _events(content: bytes) -> Iterator[bytes]:
    for line in content.splitlines():
        if line.startswith(b"data:") and (data := line[5:].strip()):
            yield data


class _Growing:
    """One choice of a stream, put together from its pieces."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._reasonings: list[str] = []
        self._finish_reason: str | None = None

    def add(self, choice: Any) -> None:
        if not isinstance(choice, dict):
            return
        delta = choice.get("delta")
        piece = _read_message(delta) if isinstance(delta, dict) else Completion()
        if piece.text is not None:
            self._texts.append(piece.text)
        if piece.reasoning is not None:
            self._reasonings.append(piece.reasoning)
        if choice.get("finish_reason"):
            self._finish_reason = str(choice["finish_reason"])

    def completion(self) -> Completion:
        return Completion(
            text="".join(self._texts) if self._texts else None,
            reasoning="".join(self._reasonings) or None,
            finish_reason=self._finish_reason,
        )
