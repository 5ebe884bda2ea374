"""Which form of a request this server takes: parameter names, streaming, the part with the clip.

Learnt from its refusals.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from otoscope.chat_api.replies import ServerError

Message = Mapping[str, Any]

_OTHER_NAME = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
_UNSUPPORTED = re.compile(
    r"unsupported|not support|unrecogni[sz]ed|unknown|unexpected|not permitted|not allowed|"
    r"deprecated|only the default|extra (?:inputs|fields)|no longer"
)
_STREAM_ONLY = re.compile(
    r"only (?:support\w* )?stream|only support\w*.{0,20}stream|stream(?:ing)?[- ]only|"
    r"(?:must|should|need\w*|require\w*) (?:be |set |to |use |enable )*[\"'`]?stream|"
    r"stream\W{1,3}(?:must|should|needs to) be (?:set to )?\W?true|"
    r"non-?stream\w*.{0,40}not (?:be )?(?:support|allow)|stream\W{0,4}false.{0,40}not (?:support|allow)"
)
# Servers that know no such part, and (the URL) those that want a data URI where others take bare base64.
_AUDIO_PART = re.compile(
    r"input_audio|audio_url|unknown part type|content\[\d*\]\.type|content blocks are expected to be|"
    r"(?:unsupported|unknown|invalid|unexpected) (?:message )?(?:content|part)(?: part)? type|"
    r"(?:content|part) type\b.{0,40}(?:not support|unsupported|unknown|invalid)|"
    r"provided url does not appear to be valid|must be a (?:valid )?(?:data )?ur[li]\b"
)


def speaks_of_audio_part(error: ServerError) -> bool:
    """Whether a refusal is about the form of the part with the clip, rather than about the clip."""
    return _AUDIO_PART.search(f"{error.code} {error.param} {error.message}".lower()) is not None


@dataclass(frozen=True)
class WireForm:
    """The form of the next requests. A new object each time something was learnt."""

    stream: bool
    stream_usage: bool = True
    renamed: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    dropped: frozenset[str] = frozenset()
    audio_part: str | None = None
    """The form in which a clip was taken first, one of :data:`otoscope.choices.AUDIO_PARTS`."""

    def parameters(self, wanted: Mapping[str, Any], extra_body: Mapping[str, Any]) -> dict[str, Any]:
        """Return everything that is sent beside model and messages; ``extra_body`` has the last word."""
        sent = {
            self.renamed.get(name, name): value for name, value in wanted.items() if name not in self.dropped
        }
        if self.stream:
            sent["stream"] = True
            if self.stream_usage:
                sent["stream_options"] = {"include_usage": True}
        return {**sent, **extra_body}

    def after(self, error: ServerError, sent: Mapping[str, Any]) -> tuple[WireForm, str] | None:
        """Return the form to try after this refusal, and what changes in words; ``None`` for no idea.

        ``sent`` are the parameters of the refused request.
        """
        words = f"{error.code} {error.param} {error.message}".lower()
        unsupported = _UNSUPPORTED.search(words) is not None
        for old, new in _OTHER_NAME.items():
            # Refused under both names, or sent again by extra_body: another name does not help.
            untried = old not in self.renamed and old not in self.renamed.values()
            if unsupported and untried and old in sent and old in words:
                renamed = MappingProxyType({**self.renamed, old: new})
                return replace(self, renamed=renamed), f"refuses {old}; {new} is sent instead"
        refused = unsupported and "temperature" in words and "temperature" in sent
        if refused and "temperature" not in self.dropped:
            dropped = self.dropped | {"temperature"}
            return replace(self, dropped=dropped), "refuses temperature; it is left to the server"
        if self.stream and self.stream_usage and "stream_options" in words:
            return replace(self, stream_usage=False), "refuses stream_options; token counts may be missing"
        if not self.stream and _STREAM_ONLY.search(words):
            return replace(self, stream=True), "only streams; replies are streamed"
        return None
