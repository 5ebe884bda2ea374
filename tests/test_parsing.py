"""What counts in a text: verdicts, the official rule, thinking blocks, answer filters."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from otoscope.errors import ConfigError
from otoscope.parsing import (
    AnswerFilter,
    Scores,
    parse_official,
    parse_verdict,
    strip_thinking,
    thinking_unclosed,
)

SCORES = st.integers(0, 10) | st.integers(0, 100).map(lambda tenths: tenths / 10)
LINES = [
    "{a} {b}",
    "  {a}\t{b}  ",
    "{a}, {b}",
    "{a},{b}",
    "{a}; {b}",
    "{a} {b}.",
    "{a}/10 {b}/10",
    "{a}/10, {b}/10",
    "{a} / 10 {b} / 10",
    "{a} out of 10, {b} out of 10",
    "**{a} {b}**",
    "**{a}** **{b}**",
    "__{a}__ __{b}__",
    "`{a} {b}`",
    "### {a} {b}",
    "- {a} {b}",
    "| {a} | {b} |",
    "({a}, {b})",
    "({a}) ({b})",
    "[{a}, {b}]",
    '["{a}", "{b}"]',
    "Scores: {a} {b}",
    "**Final Scores:** {a} {b}",
    "| Score | {a} | {b} |",
    "Scores for Assistant 1 and 2, respectively: {a} {b}",
    "Scores for Assistant 2 and Assistant 1: {b} {a}",
    "Assistant 1, Assistant 2: {a}, {b}",
    "Assistant 1: {a}, Assistant 2: {b}",
    "Assistant 2: {b}, Assistant 1: {a}",
    "assistant_1={a} assistant_2={b}",
    "Assistant 1s score: {a}; Assistant 2s score: {b}",
    "Assistant 1's score: {a} and Assistant 2's score: {b}",
    "**Assistant 1:** {a}/10 / **Assistant 2:** {b}/10",
    "Assistant 1 ({a}/10), Assistant 2 ({b}/10)",
    "Score for AI Assistant #1: {a} points, score for AI Assistant #2: {b} points",
    "助手1：{a}，助手2：{b}",
    "助手1的得分：{a}分；助手2的得分：{b}分",
    "最终评分：{a}、{b}",
    '{{"assistant1": {a}, "assistant2": {b}}}',
    '{{"assistant_2_score": {b}, "assistant_1_score": "{a}"}}',
    '{{"scores": [{a}, {b}], "reason": "The second misses 3 of 4 sounds."}}',
    '{{"Assistant 1": {{"reason": "1 2", "score": {a}}}, "Assistant 2": {{"score": "{b}/10"}}}}',
    '{{"scores": {{"1": {a}, "2": {b}}}, "confident": true, "note": null}}',
]
BLOCKS = [
    "Assistant 1: {a}\nAssistant 2: {b}",
    "Assistant 2: {b}\r\nAssistant 1: {a}\r\n",
    "- **Assistant 1**: {a}/10\n- **Assistant 2**: {b}/10",
    "Assistant 1 - {a}\nAssistant 2 – {b}",
    "| Assistant 1 | Assistant 2 |\n|---|---|\n| {a} | {b} |",
    "| Assistant 1 | {a} |\n| Assistant 2 | {b} |",
    "```\n{a} {b}\n```",
    '```json\n{{\n  "assistant1": {a},\n  "assistant2": {b}\n}}\n```',
    "[\n  {a},\n  {b}\n]",
    '[{{"assistant1": {a}}},\n {{"assistant2": {b}}}]',
    "{a} {b}\n\nAssistant 1 names 3 of 4 sounds; I would give it 9 in 10 cases. Assistant 2 is vague.",
    "Let me compare the two answers.\n\n{a} {b}",
    "{a} {b}\n\n{a} {b}",
    "Scores: {a} {b}\nAssistant 1: {a}",
    "<think>Perhaps 1 2?\n1 2</think>{a} {b}",
    "First 1 2\n1 2\n</think>\n\n{a} {b}",
    "{a} {b}\n<think>or rather\n1 2",
    "[THINK]1 2[/THINK]\n{a} {b}",
    '{a} {b}\nThe 12" record was missed.',
]
NO_VERDICT = [
    "",
    "   \n\n",
    "Both answers are good.",
    # sentences
    "I would give 8 and 7 because the first is better.",
    "The scores are 8 7",
    "8 7 because the first is better",
    "8 and 7",
    "Assistant 1 gave 3 examples 4",
    "Assistant 1: 8 - correct.\nAssistant 2: 7 - vague.",
    "[8, 7] is my verdict",
    '{"assistant1": 8, "assistant2": 7} it is',
    # quotes and the answers' texts
    '"8 7"',
    "'8 7'",
    "“8 7”",
    "「8 7」",
    "> 8 7",
    'Assistant 1 said "the scores:\n8 7\nare right".',
    "[The Start of Assistant 1s Answer]\n8 7\n[The End of Assistant 1s Answer]\nis good.",
    "[The Start of Assistant 1s Answer]\n8 7",
    # the wrong number of numbers
    "8",
    "8\n7",
    "87",
    "8 7 6",
    "1. 8 7",
    "1) 8",
    "(1) 8 7",
    "Assistant 1: 8 7",
    "[8, 7, 6]",
    "[[8, 7]]",
    "8,5 7,5",
    "10,000",
    # numbers that are no pair
    "8 - 7",
    "8-7",
    "7:8",
    "12:05",
    "8/7",
    "8/10",
    "8/5 7/5",
    "8/100 7/100",
    "05 06",
    "2024-05-01",
    "8*7",
    "8**7",
    "8_7",
    "8 + 7",
    "8% 7%",
    "Score 1 8",
    "8th 7th",
    # not from 0 to 10
    "11 5",
    "5 10.1",
    "-1 5",
    "−1 5",
    "+8 7",
    "nan 5",
    "5 inf",
    "-Infinity 5",
    "1e1 5",
    ".5 7",
    "1.2.3 5",
    "Assistant 1: 11\nAssistant 2: 7",
    '{"assistant1": NaN, "assistant2": 7}',
    '{"assistant1": 1e400, "assistant2": 7}',
    '{"assistant1": -1, "assistant2": 7}',
    # other digits
    "８ ７",
    "٨ ٧",
    "八 七",
    # labels without their scores
    "Assistant 1 Assistant 2",
    "Assistant 1: Assistant 2:",
    "Assistant 1 2",
    "Assistant 1, 2",
    "Assistant 1 and 2: 8",
    "Assistant 1: 8",
    "Assistant 1: 8, Assistant 1: 8",
    "Assistant 1: 8, Assistant 3: 7",
    "Assistant 10: 8, Assistant 2: 7",
    '{"assistant1": 8}',
    '{"assistant1": 8, "assistant2": true}',
    '{"assistant1": 8, "assistant2": null}',
    '{"assistant1": 8, "assistant2": "seven"}',
    '{"helpfulness": [8, 7]}',
    '{"helpfulness":\n[8, 7]\n}',
    '{"assistant1": {"examples": 3}, "assistant2": {"examples": 4}}',
    '{"assistant1": 8, "assistant2": 7',
    # contradictions
    "8 7\n7 8",
    "8 7\n11 5",
    "8 7\nAssistant 2: 8",
    "Assistant 1: 8, Assistant 2: 7, Assistant 1: 9",
    "Assistant 1: 8\nAssistant 2: 7\nAssistant 1: 9",
    '{"assistant1": 8, "assistant2": 7, "assistant1": 9}',
    '{"assistant1": 8, "assistant2": 7}\n\n8 8',
    "Assistant 2 | Assistant 1\n8 | 7",
    # thinking
    "<think>8 7",
    "<think>8 7</think>",
    "8 7</think>",
    "<seed:think>\n8 7\n",
    # what is hardly text
    "8\x007",
    "8 7\ud800",
    "{",
    "[",
]
HOSTILE = {
    name: piece * (200_000 // len(piece))
    for name, piece in {
        "opening tags": "<think>",
        "closing tags": "</think>",
        "crossing tags": "<think></thought>",
        "angles": "<",
        "brackets": "[",
        "brackets on lines": "[\n",
        "objects": '{"a":',
        "objects on lines": '{"a":\n',
        "texts on lines": '["a",\n',
        "digits": "9",
        "numbers": "1 ",
        "dotted": "1.",
        "stars": "*",
        "spaces": " ",
        "lines": "\n",
        "quotation marks": '"\n',
        "labels": "Assistant 1: ",
        "bars": ":|(\n",
        "contradictions": "1 2\n2 1\n",
    }.items()
}
PROSE = st.text(st.sampled_from("abcdefgh ,.'\n"), max_size=40)


def number(score: float) -> str:
    """Write a score as a judge would."""
    return f"{score:g}"


# --- the tolerant parse


@pytest.mark.parametrize("form", LINES + BLOCKS)
@settings(max_examples=30)
@given(a=SCORES, b=SCORES)
@example(a=8, b=7.5)
@example(a=0, b=10)
@example(a=1, b=2)
def test_accepted_forms_give_the_scores_written(form: str, a: float, b: float) -> None:
    """Every accepted form gives back exactly the two scores that were written into it."""
    scores = parse_verdict(form.format(a=number(a), b=number(b)))
    assert scores is not None
    assert (scores.first, scores.second) == (a, b)


@pytest.mark.parametrize("text", NO_VERDICT)
def test_what_is_not_a_verdict_gives_none(text: str) -> None:
    """Sentences, quotes, wrong counts, wrong ranges and contradictions are unparseable."""
    assert parse_verdict(text) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8 7", Scores(8, 7, "integer")),
        ("8.0 7.0", Scores(8, 7, "integer")),
        ("8.5 7", Scores(8.5, 7, "decimal")),
        ('{"assistant1": 8, "assistant2": 7.25}', Scores(8, 7.25, "decimal")),
    ],
)
def test_whole_scores_are_ints_and_the_kind_says_so(text: str, expected: Scores) -> None:
    """Whole numbers become ints however they are written; one decimal makes the verdict decimal."""
    scores = parse_verdict(text)
    assert scores == expected
    assert scores is not None
    for score in (scores.first, scores.second):
        assert isinstance(score, int) == float(score).is_integer()


@given(st.text() | st.text(st.sampled_from('0123456789 .,:/|-+*_`"()[]{}<>\n think/Assistant12aeinf')))
@example('{"assistant1": ' + "9" * 5000 + ', "assistant2": 7}')
@example("9" * 5000 + " 7")
@example("\ud800 7\x00")
def test_any_text_gives_scores_in_range_or_none(text: str) -> None:
    """No text makes the parse raise, or return a score that is not a finite number from 0 to 10."""
    scores = parse_verdict(text)
    if scores is not None:
        assert all(math.isfinite(score) and 0 <= score <= 10 for score in (scores.first, scores.second))


@settings(max_examples=500)
@given(form=st.sampled_from(LINES), a=SCORES, b=SCORES, before=PROSE, after=PROSE)
def test_scores_inside_a_sentence_are_no_verdict(
    form: str, a: float, b: float, before: str, after: str
) -> None:
    """A well-formed scores line within a sentence never makes a verdict."""
    line = form.format(a=number(a), b=number(b)).strip()
    assert parse_verdict(f"{before} so I gave it {line} because it was better {after}") is None
    assert parse_verdict(f"{line} seems fair to me") is None
    assert parse_verdict(f"{before} so I would rate them {line}") is None


@settings(max_examples=500)
@given(
    form=st.sampled_from(LINES),
    first=st.tuples(SCORES, SCORES),
    other=st.sampled_from(LINES),
    second=st.tuples(SCORES, SCORES),
)
def test_two_lines_that_disagree_are_unparseable(
    form: str, first: tuple[float, float], other: str, second: tuple[float, float]
) -> None:
    """Two scores lines, in whatever forms, count only when they agree."""
    lines = [
        template.format(a=number(a), b=number(b)) for template, (a, b) in ((form, first), (other, second))
    ]
    scores = parse_verdict("\nAnd once more:\n".join(lines))
    assert (scores and (scores.first, scores.second)) == (first if first == second else None)


def test_an_explanation_of_any_length_does_not_hide_the_scores() -> None:
    """A megabyte of prose after the scores line leaves the verdict as it is."""
    prose = "Assistant 1 hears 3 of 4 sounds, and it says so in 2 sentences.\n" * 16_000
    assert parse_verdict("8 7\n" + prose) == Scores(8, 7, "integer")


def test_json_after_lines_that_only_look_like_it_is_still_read() -> None:
    """Time stamps and notes in brackets do not keep a JSON verdict from being found."""
    notes = "[00:12] A dog barks.\n[note] {aside}\n" * 100
    assert parse_verdict(notes + '{"assistant1": 8, "assistant2": 7}') == Scores(8, 7, "integer")


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_texts_are_finished_with(text: str) -> None:
    """Texts of 200,000 characters made to blow up a parser end as no verdict, by every function."""
    assert parse_verdict(text) is None
    assert parse_official(text) is None
    assert len(strip_thinking(text)) <= len(text)
    thinking_unclosed(text)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_texts_do_not_hide_scores_before_them(name: str) -> None:
    """A verdict is found before a hostile tail, unless the tail speaks of scores or removes what precedes."""
    contrary = {"closing tags", "crossing tags", "contradictions"}
    scores = parse_verdict("8 7\n\n" + HOSTILE[name])
    assert scores == (None if name in contrary else Scores(8, 7, "integer"))


# --- the official rule


def official_rule(text: str) -> tuple[int, int] | None:
    """Apply the official rule, written anew from its description."""
    parts = re.split(" ", re.sub("\n", "", text.strip()))
    try:
        values = [int(part) for part in parts]
    except ValueError:
        return None
    return (values[0], values[1]) if len(values) == 2 and max(values) <= 10 else None


@given(
    st.text(st.sampled_from("0123456789 \n+-_.x\t７٣"), max_size=8)
    | st.text()
    | st.tuples(st.integers(-12, 12), st.sampled_from([" ", "\n", " \n", "  "]), st.integers(-12, 12)).map(
        lambda parts: "".join(map(str, parts))
    )
)
def test_the_official_parse_agrees_with_the_official_rule(text: str) -> None:
    """The official parse gives what an independent writing of the rule gives."""
    assert parse_official(text) == official_rule(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8 7", (8, 7)),
        ("\n 8 7 \n", (8, 7)),
        ("8 \n7", (8, 7)),
        ("-3 10", (-3, 10)),
        ("+7 1_0", (7, 10)),
        ("８ ٧", (8, 7)),
        ("8\t 7", (8, 7)),
        ("8  7", None),
        ("8\n7", None),
        ("8 7\nAssistant 1 is better.", None),
        ("8.5 7", None),
        ("11 5", None),
        ("8", None),
        ("8 7 6", None),
        ("", None),
        ("\ud800 7", None),
        ("9" * 5000 + " 7", None),
        ("1 " + "9" * 5000, None),
    ],
)
def test_the_official_parse_keeps_the_rules_oddities(text: str, expected: tuple[int, int] | None) -> None:
    """What Python's int() accepts passes, a second space or a decimal does not, and nothing raises."""
    assert parse_official(text) == expected


# --- thinking


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>a</think> b ", "b"),
        ("<THINKING>a</Thinking>\n\nb", "b"),
        ("<thought>a</thought>b", "b"),
        ("<seed:think>a</seed:think>b", "b"),
        ("[THINK]a[/THINK]b", "b"),
        ("a </think> b", "b"),
        ("a <think>b</think> c <think>d</think> e", "a  c  e"),
        ("a <think>b</think> c </think> d", "d"),
        ("<think>a <think>b</think> c</think> d", "d"),
        ("<think>a <thought>b</thought> c</think> d", "d"),
        ("<think>a <thought>b</think> c", "c"),
        ("<think>a</thinking> b", "b"),
        ("<think>a</think>", ""),
        ("<think>a</think> b <think> c", "b <think> c"),
    ],
)
def test_thinking_is_removed_and_the_rest_trimmed(text: str, expected: str) -> None:
    """Paired blocks go, an unpaired closing tag goes with all before it, and the rest is trimmed."""
    assert strip_thinking(text) == expected


@pytest.mark.parametrize(
    "text", ["", "  a\n", " <think>a", "<think", "think>a</think", "<thinker>a</thinker>", "<think]a[/think>"]
)
def test_a_text_without_thinking_stays_the_very_same(text: str) -> None:
    """Where nothing is removed nothing is trimmed either; an unclosed opening tag stays."""
    assert strip_thinking(text) is text


@given(st.lists(st.sampled_from(["a", " ", "8 7", "\n", "<think>b</think>", "c</thought>", "[THINK]"])))
def test_stripping_twice_is_stripping_once(pieces: list[str]) -> None:
    """What is left after stripping has nothing more to strip."""
    once = strip_thinking("".join(pieces))
    assert strip_thinking(once) == once


@pytest.mark.parametrize(
    ("text", "unclosed"),
    [
        ("a", False),
        ("<think>a", True),
        ("a [THINK] b", True),
        ("<think>a</think>b", False),
        ("<think>a</think> <think>b", True),
        ("<think>a <thought>b</thought> c", True),
        ("<think>a <thought>b</think> c", False),
        ("a</think>b", False),
        ("<think>a</thinking>b", False),
    ],
)
def test_thinking_that_never_ends_is_noticed(text: str, unclosed: bool) -> None:
    """A text is cut while thinking when its last opening tag has no closing one."""
    assert thinking_unclosed(text) is unclosed


# --- the answer filter


@pytest.mark.parametrize(
    ("spec", "text", "expected"),
    [
        ("none", " <think>a</think> b ", " <think>a</think> b "),
        ("strip-thinking", " <think>a</think> b ", "b"),
        ("strip-thinking", " b ", " b "),
        ("after:Answer:", "Answer: no. Answer: yes \n", "yes"),
        ("after:Answer:", " yes ", " yes "),
        ("after: ", "a b", "b"),
        (r"regex:Answer: (\w+)", "Answer: yes. Answer: no", "yes"),
        (r"regex:\d+", "it is 42.", "42"),
        (r"regex:(a)|b", "b", "b"),
        (r"regex:(?s)<a>(.*)</a>", "<a> x\ny </a>", " x\ny "),
        (r"regex:\d+", " none ", " none "),
    ],
)
def test_an_answer_filter_keeps_the_part_that_is_judged(spec: str, text: str, expected: str) -> None:
    """Each filter returns its part of the text, or the text unchanged where it finds nothing."""
    answer_filter = AnswerFilter.parse(spec)
    assert answer_filter.spec == spec
    assert answer_filter.apply(text) == expected


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("strip-thinkng", "Did you mean strip-thinking?"),
        ("None", "Did you mean none?"),
        ("regexp:a", "Did you mean regex:RE?"),
        ("xyz", "Use none | strip-thinking | after:TEXT | regex:RE."),
        ("", "There is no answer filter ''."),
        ("none:a", "There is no answer filter 'none:a'."),
        ("after", "write after:TEXT"),
        ("after:", "write after:TEXT"),
        ("regex:", "write regex:RE"),
        ("regex:a(b", "missing ), unterminated subpattern at position 1"),
        ("regex:a{99999999999999999999}", "too large"),
    ],
)
def test_a_wrong_answer_filter_is_refused_with_the_way_out(spec: str, message: str) -> None:
    """A wrong filter is a configuration error that says what is wrong and what to write instead."""
    with pytest.raises(ConfigError, match=re.escape(message)):
        AnswerFilter.parse(spec)
