"""The baseline: a cascade that never hears the clip. What was measured of it -> words -> an LLM's answer.

The benchmark's paper has such a cascade too. Here a speech recogniser and signal analysis
(:mod:`otoscope.backends.listening`) give an :class:`Analysis`; :func:`describe` puts it into plain words, and
nothing that was not measured: no mood, no genre, no instrument. A model that listens has to beat this.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from otoscope.llm import LocalModel, PromptTooLongError
from otoscope.records import Answer, AudioClip, Failure, FailureKind, Reply, Sample

MAX_TOKENS = 96
"""What an answer may have."""
SYSTEM = (
    "You answer questions about an audio clip. You cannot hear it: all you know is the notes that an "
    "automatic analysis made of it. Answer in one to three short sentences, from the notes alone. The notes "
    "never name an instrument, an animal or an object: when you are asked for one, say that it cannot be "
    "told from them, and tell what they do say."
)

_LANGUAGES = {
    "ar": "Arabic", "cs": "Czech", "de": "German", "en": "English", "es": "Spanish", "fr": "French",
    "hi": "Hindi", "it": "Italian", "ja": "Japanese", "ko": "Korean", "nl": "Dutch", "pl": "Polish",
    "pt": "Portuguese", "ru": "Russian", "tr": "Turkish", "zh": "Chinese",
}  # fmt: skip
_QUIET, _LOUD = -32.0, -14.0
"""Mean levels (dBFS) below and above which a clip is called quiet and loud."""
_CHANGE = 6.0
"""Difference (dB) between a clip's beginning and end that is heard as getting louder or softer."""
_DARK, _BRIGHT = 1000.0, 2500.0
"""Spectral centres (Hz) below and above which a sound is called dark and bright."""

_BREATH = 0.5
"""Seconds: shorter gaps within one kind of sound, and shorter rests outside of it, are not worth a word."""

Span = tuple[float, float]
"""From when to when, in seconds."""


@dataclass(frozen=True, slots=True)
class Phrase:
    """What the recogniser wrote down, and from when to when (s) it was said."""

    start: float
    end: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """What was measured of one clip. ``None`` and empty mean: not found, or not sure enough to be said."""

    seconds: float
    speech: tuple[Span, ...] = ()
    singing: tuple[Span, ...] = ()
    music: tuple[Span, ...] = ()
    words: tuple[Phrase, ...] = ()
    language: str | None = None
    """Two-letter code of the language of ``words``."""
    sounding: tuple[Span, ...] = ()
    """Where the clip is not silent."""
    level: float | None = None
    """Mean level (dBFS) of what is not silent; ``None`` when all is."""
    loudest: float = 0.0
    """When (s) the clip is loudest."""
    change: float = 0.0
    """Level (dB) of the last third of what sounds, above that of the first third."""
    centre: float | None = None
    """Spectral centre (Hz) of what is not silent."""
    tempo: float | None = None
    """Beats per minute."""
    key: str | None = None
    """As in "E minor"."""
    notes: tuple[str, ...] = ()
    """The strongest pitch classes, the strongest first."""


class BaselineBackend:
    """Answers questions about clips from their analysis. May be asked for many at once.

    ``listen`` analyses a clip, or says why it cannot; it blocks, and is called in the model's thread, once
    for each clip. Answers are greedy: the same clip and question give the same answer.
    """

    def __init__(self, model: LocalModel, listen: Callable[[AudioClip], Analysis | Failure]) -> None:
        self._model = model
        self._listen = listen
        self._heard: dict[str, Analysis | Failure] = {}
        """By SHA-256 of the bytes that it was given. Touched in the model's thread only."""

    async def until_ready(self) -> None:
        """Return: it is ready at once."""

    async def answer(
        self,
        sample: Sample,
        clip: AudioClip | None,
        *,
        earlier: Sequence[Reply] = (),
        keep: Callable[[Failure], None],
    ) -> Answer | Failure:
        """Answer one question. ``earlier`` and ``keep`` are not needed: asking again changes nothing.

        An answer cut at ``MAX_TOKENS`` is taken as it is, with finish_reason ``length``. Returns the
        Failures of ``listen``, and ``context_too_small`` when very much was said in the clip.
        """
        if clip is None:
            raise RuntimeError("the baseline answers from a clip alone, and there is none")
        started_at = time.time()
        heard, listening = await self._model.run(self._listened, clip)
        if isinstance(heard, Failure):
            return heard
        messages = prompt(describe(heard), sample.question)
        try:
            done = await self._model.complete(messages, max_tokens=MAX_TOKENS)
        except PromptTooLongError as error:
            return Failure(FailureKind.CONTEXT_TOO_SMALL, f"{error}; nothing was cut to make it fit", 1)
        text = done.text.strip()
        reply = Reply(
            text=text,
            finish_reason=done.finish_reason,
            usage=done.call.usage,
            model="baseline",
            parameters={"temperature": 0, "max_tokens": MAX_TOKENS},
            endpoint="embedded",
            started_at=started_at,
            latency=listening + done.call.seconds,
        )
        return Answer(raw_text=text, text=text, replies=(reply,))

    def _listened(self, clip: AudioClip) -> tuple[Analysis | Failure, float]:
        """Return a clip's analysis and the seconds that it took now."""
        start = time.perf_counter()
        given = clip.sha256_sent
        if given not in self._heard:
            self._heard[given] = self._listen(clip)
        return self._heard[given], time.perf_counter() - start


def prompt(description: str, question: str) -> list[dict[str, str]]:
    """Return the chat messages that ask the LLM a question about a described clip."""
    return [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": f"Notes:\n{description}\n\nQuestion: {question}"},
    ]


def describe(heard: Analysis) -> str:
    """Return an analysis in plain words, a line for each thing; what was not found is said to be missing."""
    lines = [f"The clip is {heard.seconds:.1f} seconds long."]
    if heard.level is None:
        return "\n".join([*lines, "It is silent."])
    lines.append(_voice(heard))
    lines += _words(heard)
    lines.append(_presence("Music", heard.music))
    lines += _music(heard)
    lines += _other(heard)
    lines.append(_loudness(heard.level, heard))
    if heard.centre is not None:
        lines.append(f"The tone is {_tone(heard.centre)}.")
    return "\n".join(lines)


def joined(spans: Sequence[Span]) -> list[Span]:
    """Return the spans in order, those that overlap or have only a breath between them as one."""
    found: list[Span] = []
    for start, end in sorted(spans):
        if found and start - found[-1][1] < _BREATH:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def without(spans: Sequence[Span], others: Sequence[Span]) -> list[Span]:
    """Return what of the spans lies outside of the others, leaving out rests that are as short as a breath.

    A span that touches none of the others is kept, however short.
    """
    left: list[Span] = []
    for span in spans:
        start, end = span
        for other_start, other_end in joined(others):
            if other_start >= end or other_end <= start:
                continue
            if other_start - start >= _BREATH:
                left.append((start, other_start))
            start = other_end
        if end - start >= _BREATH or start == span[0]:
            left.append((start, end))
    return left


def _voice(heard: Analysis) -> str:
    if not heard.speech and not heard.singing:
        return "No speech and no singing is heard."
    if not heard.singing:
        return _presence("Speech", heard.speech)
    return f"{_presence('Speech', heard.speech)} {_presence('Singing', heard.singing)}"


def _presence(what: str, spans: Sequence[Span]) -> str:
    return f"{what} is heard {_times(joined(spans))}." if spans else f"No {what.lower()} is heard."


def _words(heard: Analysis) -> list[str]:
    if not heard.words:
        return ["No words could be made out."] if heard.speech or heard.singing else []
    language = f" in {_LANGUAGES.get(heard.language, heard.language)}" if heard.language else ""
    if len(heard.words) == 1:
        return [f'The words are{language}: "{heard.words[0].text}"']
    said = [f'  at {phrase.start:.1f} s: "{phrase.text}"' for phrase in heard.words]
    return [f"The words are{language}:", *said]


def _music(heard: Analysis) -> list[str]:
    lines = []
    if heard.tempo is not None:
        lines.append(f"Its beat is regular, with about {heard.tempo:.0f} beats per minute.")
    if heard.key is not None:
        lines.append(f"Its key is probably {heard.key}.")
    if len(heard.notes) == 1:
        lines.append(f"Its strongest note is {heard.notes[0]}.")
    elif heard.notes:
        lines.append(f"Its strongest notes are {_listed(heard.notes)}.")
    return lines


def _other(heard: Analysis) -> list[str]:
    """Say when something is heard that is neither a voice nor music."""
    other = without(heard.sounding, (*heard.speech, *heard.singing, *heard.music))
    if not other:
        return []
    count = "once" if len(other) == 1 else f"{len(other)} times"
    return [f"Sound that is neither speech nor music is heard {count}: {_times(other)}."]


def _loudness(level: float, heard: Analysis) -> str:
    how = "quiet" if level < _QUIET else "loud" if level > _LOUD else "of medium loudness"
    trend = ""
    if abs(heard.change) >= _CHANGE:
        trend = f" It gets {'louder' if heard.change > 0 else 'softer'} towards its end."
    return f"The clip is {how}, and loudest at {heard.loudest:.1f} s.{trend}"


def _tone(centre: float) -> str:
    return "dark" if centre < _DARK else "bright" if centre > _BRIGHT else "neither dark nor bright"


def _times(spans: Sequence[Span]) -> str:
    return _listed([f"from {start:.1f} to {end:.1f} s" for start, end in spans])


def _listed(items: Sequence[str]) -> str:
    """Return "a", "a and b", "a, b and c"."""
    return " and ".join([part for part in (", ".join(items[:-1]), *items[-1:]) if part])
