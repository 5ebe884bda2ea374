"""Thinking: which spans of a reply are not meant as the answer."""

from __future__ import annotations

import re
from collections.abc import Iterable

_Blocks = tuple[list[tuple[int, int]], int | None]
"""The spans to remove, in order and apart, and where thinking starts that never ends."""


def _tag_pattern(more_names: str) -> re.Pattern[str]:
    """Match a tag around thinking: ``<think>``, ``<|start_thinking|>``, ``◁think▷``, ``[THINK]`` and others.

    Only the names that are always there are tags in square brackets: "[Analysis]" is a heading.
    """
    return re.compile(
        rf"""
        (?: (?P<angle><\|?) | (?P<square>\[) | ◁ )
        (?: (?P<closing> / | end_(?:of_)? ) | start_ | begin_(?:of_)? )?
        (?: [a-z0-9_.-]{{1,32}}: )?
        (?P<name> think(?:ing)? | thoughts? | (?(square)(?!)|(?:{more_names})) )
        (?(angle)\|?>|(?:(?(square)\]|▷)))
        | (?P<channel> <\|channel>\s*thought | (?P<channel_end> <channel\|> ) )
        """,
        re.IGNORECASE | re.ASCII | re.VERBOSE,
    )


_ANSWERS_TAG = _tag_pattern("reasoning|reflection")
_JUDGES_TAG = _tag_pattern(
    "reasoning|(?:self[_-]?)?reflection|analysis|rationale|explanation|critique|deliberation|considerations?"
    "|scratch[_-]?pad|scratch|draft|notes?|brainstorm(?:ing)?|plan(?:ning)?|cot|chain[_-]of[_-]thought"
    "|(?:inner|internal)[_-]?(?:thoughts?|monologue)"
)


def _tag_blocks(text: str, pattern: re.Pattern[str]) -> _Blocks:
    blocks: list[tuple[int, int]] = []
    opened: dict[tuple[str, str], int] = {}
    for tag in pattern.finditer(text):
        kind = (tag[0][0], "<channel|>" if tag["channel"] else tag["name"].lower())
        if tag["closing"] is None and tag["channel_end"] is None:
            opened.setdefault(kind, tag.start())
            continue
        start = opened.get(kind, 0)
        opened = {other: position for other, position in opened.items() if position < start}
        while blocks and blocks[-1][0] >= start:
            blocks.pop()
        blocks.append((start, tag.end()))
    return blocks, min(opened.values(), default=None)


# The harmony format: <|start|>assistant<|channel|>analysis<|message|>...<|end|>; the last channel is "final".
_CHANNEL = re.compile(
    r"(?:<\|start\|>[^<]*)?<\|channel\|>\s*(?!\s)(?P<name>\w*)(?!\w)[^<]*(?:<\|constrain\|>[^<]*)?(?:<\|message\|>|\Z)"
)
_CHANNEL_END = re.compile(r"<\|(?:end|return|call)\|>|(?=<\|(?:start|channel)\|>)|\Z")
# What is left of it where a server deletes its special tokens and nothing else.
_BARE_FINAL = "assistantfinal"
_BARE_ANALYSIS = re.compile(r"\s*analysis(?=[A-Z])")


def _channel_blocks(text: str) -> _Blocks:
    if _BARE_FINAL in text:
        return [(0, text.rindex(_BARE_FINAL) + len(_BARE_FINAL))], None
    bare = _BARE_ANALYSIS.match(text)
    if bare:
        return [], bare.start()
    blocks: list[tuple[int, int]] = []
    outside_final: list[tuple[int, int]] = []
    position, unclosed = 0, None
    for channel in _CHANNEL.finditer(text):
        end = _CHANNEL_END.search(text, channel.end())
        body_end, message_end = (end.start(), end.end()) if end else (len(text), len(text))
        if channel["name"].lower() == "final":
            outside_final.append((position, channel.end()))
            position = body_end
        elif end and (end[0] or body_end < len(text)):
            blocks.append((channel.start(), message_end))
        else:
            unclosed = channel.start()
    if outside_final:
        return [*outside_final, (position, len(text))], None
    return blocks, unclosed


def _without(text: str, blocks: Iterable[tuple[int, int]]) -> str:
    kept, position = [], 0
    for start, end in blocks:
        kept.append(text[position:start])
        position = end
    kept.append(text[position:])
    return "".join(kept)


def _with_the_unclosed(found: _Blocks, text: str) -> list[tuple[int, int]]:
    blocks, unclosed = found
    if unclosed is None:
        return blocks
    return [block for block in blocks if block[1] <= unclosed] + [(unclosed, len(text))]


def strip_thinking(text: str) -> str:
    """Return a model's answer ``text`` without its thinking blocks.

    Tags are ``think``, ``thinking``, ``thought``, ``thoughts``, ``reasoning`` and ``reflection`` in any case,
    as ``<think>`` or ``<|think|>``, with a namespace (``<seed:think>``), as ``<|START_THINKING|>`` and
    ``<|END_THINKING|>``, ``<|begin_of_thought|>`` and ``<|end_of_thought|>``, as ``◁think▷``; the first four
    also as ``[THINK]``; and ``<|channel>thought`` with ``<channel|>``. Others, such as ``<analysis>``, may be
    a part of the answer and stay. Paired tags go with what is between them, an unpaired closing tag with
    all before it; an opening tag that is never closed stays.

    Of a text in the harmony format (``<|channel|>analysis<|message|>...``) only the final channel is kept;
    without one, the other channels go that are closed. Where only its special tokens were deleted, all up to
    ``assistantfinal`` goes. What is left is trimmed only if something was removed: otherwise the very same
    text is returned.
    """
    rest = _without(text, _channel_blocks(text)[0])
    rest = _without(rest, _tag_blocks(rest, _ANSWERS_TAG)[0])
    return text if len(rest) == len(text) else rest.strip()


def thinking_unclosed(text: str) -> bool:
    """Return whether an answer opens a thinking block, or a channel but the final, and never closes it."""
    blocks, unclosed = _channel_blocks(text)
    return unclosed is not None or _tag_blocks(_without(text, blocks), _ANSWERS_TAG)[1] is not None


def strip_judges_thinking(text: str) -> str:
    """Return a judge's reply without its thinking: unclosed too, and within more tags than an answer's."""
    text = _without(text, _with_the_unclosed(_channel_blocks(text), text))
    return _without(text, _with_the_unclosed(_tag_blocks(text, _JUDGES_TAG), text))
