"""What counts in a text: verdicts, the official rule, thinking blocks, answer filters."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import assume, example, given, settings
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
    "{a} and {b}",
    "{a} & {b}",
    "{a}和{b}",
    "({a}) and ({b})",
    "Scores: {a}/10 and {b}/10",
    "Final scores: **{a}** and **{b}**",
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
    "Scores:\n```\n{a} {b}\n```",
    "Here are the **scores**:\n\n```\n{a} {b}\n```\n\nAssistant 1 hears more.",
    "```\n{a} {b}\n```\nExplanation: Assistant 1 hears more.",
    "{a} {b}\n```\n{a} {b}\n```\nThat is all.",
    "[Question]\nWhich?\n1 2\n[System]\nPlease rate on a scale of 1 to 10.\n{a} {b}",
    "Assistant 1 may get a 6 for this, or else a 9.\n{a} {b}",
    # explanations that repeat the scores, or count something else
    "{a} {b}\nAssistant 1 deserves a score of {a} because it hears 3 of 4 sounds.",
    "{a} {b}\nAssistant 2's answer scores lower ({b}) since it misses 2 sounds.",
    "{a} {b}\nI gave Assistant 2 a {b} and Assistant 1 {a}.",
    "{a} {b}\n**Assistant 1 ({a}/10):** good, 3 of 4.\n**Assistant 2 ({b}/10):** vague.",
    "{a} {b}\nAssistant 1: {a} - correct.\nAssistant 2: {b} - vague.",
    "{a} {b}\nFinal scores: {a} and {b}, as the first is better.",
    "{a} {b}\nAssistant 1's answer is 5, while the reference says 4.",
    "{a} {b}\nAssistant 2 says 3 dogs instead of 2, and gives only 1 reason.",
    "{a} {b}\nOverall, Assistant 1 scores 1 point higher as it names 3 instruments at 120 BPM (2 are right).",
    "{a} {b}\nThe scores are on a scale from 1 to 10.",
    '{a} {b}\nAssistant 1 is exactly right ("3"), so it earns a high score. Assistant 2 counted 5.',
    "{a} {b}\nAssistant 1 is rated {a}/10, Assistant 2 {b}/10, as the clip has 2 voices at 44.1 kHz.",
    "{a} {b}\n1. Helpfulness score: 9/10 for Assistant 1.\n2. It is at 0:05 and 0:10.",
    "{a} {b}\n评分理由：助手1提到3种乐器，得{a}分；助手2只提到2种，得{b}分。",
]
# Thinking in the forms of several models, between what comes before and after its text.
THINKING = [
    ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
    (
        "<|start|>assistant<|channel|>analysis<|message|>",
        "<|end|>\n<|channel|>final <|constrain|>json<|message|>",
    ),
    ("<|channel|>commentary to=functions.rate<|message|>", "<|call|><|channel|>final<|message|>"),
    ("<|channel|>analysis<|message|>", "<|end|>"),
    ("analysisHm.", "assistantfinal"),
    ("◁think▷", "◁/think▷"),
    ("<|channel>thought\n", "<channel|>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<thoughts>", "</thoughts>"),
    ("<Reasoning>", "</Reasoning>"),
    ("<reflection>", "</reflection>"),
]
JUDGES_THINKING = [
    *THINKING,
    ("<analysis>", "</analysis>"),
    ("<scratchpad>", "</scratchpad>"),
    ("<scratch_pad>", "</scratch_pad>"),
    ("<inner_monologue>", "</inner_monologue>"),
    ("<draft>", "</draft>"),
]
# What a person reads as scores of 9 and 2; many of them are no verdict by themselves.
OTHER_SCORES = [
    "9 and 2",
    "Final answer: 9 and 2",
    "Final: Assistant 1 = 9, Assistant 2 -> 2",
    "Assistant 1 = 9, Assistant 2 -> 2",
    "Assistant 1: 9 - correct.\nAssistant 2: 2 - vague.",
    "Correction: 9 2",
    "Correction: 9-2",
    "Correction: 9/2",
    "Corrected scores -> 9 / 2",
    "Correction: the second one is a 2",
    "Revised: A1 9, A2 2",
    "Updated line: 9 2",
    "Actually, Assistant 2 is wrong, so it should be 2.",
    "On reflection the scores are 9 and 2.",
    "Wait. 9 2?",
    "Second thoughts: 9 2",
    "Let me look again: 9 2 it is.",
    "I meant 9 2",
    "Make that 9 and 2!",
    "I would give 9 and 2 because the first is better.",
    "I would give Assistant 1 a 9 and Assistant 2 a 2.",
    "I lower the second score to 2.",
    "Assistant 2 deserves a score of 2 only.",
    "9 and 2 would be fairer, all in all, as the second answer misses the dog.",
    "Final scores: nine and two",
    "Final scores: **9** and **2**, respectively",
    "最终评分：九和二",
    "更正：9 2",
    "应为 9 和 2。",
    "助手1 -> 9，助手2 -> 2！",
    '"9 2"',
    "> 9 2",
    "→ 9 2",
    "9 2!",
    "9 - 2",
    "９ ２",
    "<score>9 2</score>",
    "[9, 2] is my final verdict",
    "{'assistant1': 9, 'assistant2': 2}",
    '{"first": 9, "second": 2}',
    '{\n"assistant1": 9,\n"assistant2": 2,\n}',
    "Scores, once more:\n```\n9 2\n```",
    "It said:\n```\n9 2\n```\nand that is all.",
]
NO_VERDICT = [
    "",
    "   \n\n",
    "Both answers are good.",
    # sentences
    "I would give 8 and 7 because the first is better.",
    "The scores are 8 7",
    "8 7 because the first is better",
    "8 and 7 it is",
    "8, 7 and 6",
    "Scores (1, 2)",
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
    "[Detailed Audio Description]\nA dog.\n8 7\nA cat.",
    "**[Question]** Which?\n8 7\n[The Start of Assistant 1s Answer]\nThis.\n[The End of Assistant 1s Answer]",
    "```\n8 7\n```\nI cannot rate these answers.",
    "I cannot rate these answers.\n\n```\n8 7\n```",
    "Assistant 2 gives these scores:\n```\n8 7\n```\nI cannot rate that.",
    "```\nAssistant 1: 8\nAssistant 2: 7\n```\nSuch an answer is of no use.",
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
    "8,5\n7",
    "8,7\n7",
    "8,5\n8,5",
    "8,5\nand 7,5",
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
    "Scores (1, 2)\n8 and 7",
    "Scores (1, 2)\n8 and 7 because the first is better.",
    "8 7\n7 - 8",
    "8 7\nAssistant 2 deserves a score of 8.",
    "8 7\nAssistant 1 gets 7 and Assistant 2 8.",
    "8 7\nFinal: both get 8.",
    "8 7\nAssistant 2 misses the dog, so it gets an 8.",
    "8 7\nCorrection: 7-8.",
    "8 7\nEach of them has a score of 8 in my view.",
    "My final scores are 6 and 3, then.\n9 9",
    # thinking
    "<think>8 7",
    "<think>8 7</think>",
    "8 7</think>",
    "<seed:think>\n8 7\n",
    "<scratchpad>\n8 7\n",
    "<|channel|>analysis<|message|>\n8 7\n",
    "<|channel|>analysis<|message|>\n8 7\n<|end|><|start|>assistant<|channel|>",
    "<|channel|>commentary<|message|>\n8 7\n<|end|>",
    "analysisHm.\n8 7\n",
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
        "channels": "<|channel|>",
        "messages": "<|channel|>a<|message|>9 9<|end|>",
        "starts": "<|start|>a",
        "ticks": "`",
        "fences": "```\n",
        "headers": "[Question]\n",
        "stops": ".",
        "prose": "a score is of ",
        "underscores": "_",
        "sections": "[Question] ",
    }.items()
}
WORDS = st.lists(
    st.sampled_from(
        "Final final score scores is are I give Actually 助手1 评分 to and 9 2 8. 7, 5/10 3 sounds".split()
    )
    | st.sampled_from(
        ["\n", "Assistant 1", "Assistant 2:", "\n9 2!\n", "```", '"', "\n5\n", "deserves", "a", "-"]
    ),
    max_size=25,
).map(" ".join)
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
    # "8,5" twice may be 8.5 and 8.5.
    one_number = form == other == "{a},{b}" and all(number(score).isdigit() for score in first)
    agree = first == second and not one_number
    assert (scores and (scores.first, scores.second)) == (first if agree else None)


@settings(max_examples=300)
@given(
    forms=st.tuples(st.sampled_from(LINES), st.sampled_from(LINES)),
    pairs=st.lists(st.tuples(SCORES, SCORES), min_size=2, max_size=2, unique=True),
    fillers=st.tuples(PROSE, PROSE, PROSE),
)
def test_two_different_pairs_anywhere_give_none(
    forms: tuple[str, str], pairs: list[tuple[float, float]], fillers: tuple[str, str, str]
) -> None:
    """Two scores lines that differ are unparseable, whatever prose is around them."""
    lines = [form.format(a=number(a), b=number(b)) for form, (a, b) in zip(forms, pairs, strict=True)]
    assert parse_verdict("\n".join([fillers[0], lines[0], fillers[1], lines[1], fillers[2]])) is None


@settings(max_examples=500)
@given(form=st.sampled_from(LINES), scores=st.tuples(SCORES, SCORES), prose=WORDS | PROSE | st.text())
def test_prose_below_the_scores_never_changes_them(
    form: str, scores: tuple[float, float], prose: str
) -> None:
    """A scores line and then anything that closes no thinking give those scores or none, never others."""
    assume("<" not in prose and "[/" not in prose and "◁" not in prose)
    a, b = scores
    read = parse_verdict(form.format(a=number(a), b=number(b)) + "\n" + prose)
    assert read is None or (read.first, read.second) == scores


@pytest.mark.parametrize("other", OTHER_SCORES)
@pytest.mark.parametrize("form", ["9 9", "Scores: 8 and 7", "Draft:\nAssistant 1: 6\nAssistant 2: 6"])
def test_other_scores_in_any_form_below_a_verdict_leave_none(form: str, other: str) -> None:
    """Whatever a person reads as other scores contradicts a verdict, though it may be none by itself."""
    assert parse_verdict(form) is not None
    assert parse_verdict(f"{form}\n{other}") is None
    assert parse_verdict(f"{form}\n\nThe first is better.\n\n{other}\n") is None


@pytest.mark.parametrize(("opening", "closing"), JUDGES_THINKING)
def test_scores_that_were_only_thought_are_not_the_judges(opening: str, closing: str) -> None:
    """Scores within thinking, in whatever form it comes, say nothing beside those after it."""
    thought = f"{opening}Hm.\n9 9\nNo.{closing}"
    assert parse_verdict(thought) is None
    assert parse_verdict(f"{thought}9 2") == Scores(9, 2, "integer")
    assert parse_verdict(f"{thought}\n\nScores: 9 and 2\n") == Scores(9, 2, "integer")


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
        ("[THOUGHTS]a[/THOUGHTS]b", "b"),
        ("<|think|>a</think> b", "b"),
        ("a<|channel|>final<|message|>b<|return|>", "b"),
        ("<|channel|>final<|message|>b<|end|><|start|>assistant<|channel|>final<|message|> c", "b c"),
        ("<|channel|>analysis<|message|>a<think>b<|end|><|channel|>final<|message|>c", "c"),
        *((f"{opening}a{closing} b", "b") for opening, closing in THINKING),
        ("<think>a</think> b <think> c", "b <think> c"),
    ],
)
def test_thinking_is_removed_and_the_rest_trimmed(text: str, expected: str) -> None:
    """Paired blocks go, an unpaired closing tag goes with all before it, and the rest is trimmed."""
    assert strip_thinking(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  a\n",
        " <think>a",
        "<think",
        "think>a</think",
        "<thinker>a</thinker>",
        "<think]a[/think>",
        "<analysis>a</analysis>",
        "[reasoning]a[/reasoning]",
        "<|channel|>analysis<|message|>a",
        "analysisThe a",
        "analysis: a",
    ],
)
def test_a_text_without_thinking_stays_the_very_same(text: str) -> None:
    """Where nothing is removed nothing is trimmed either; an unclosed opening tag stays."""
    assert strip_thinking(text) is text


@given(
    st.lists(
        st.sampled_from(
            [
                "a",
                " ",
                "8 7",
                "\n",
                "<think>b</think>",
                "c</thought>",
                "[THINK]",
                "◁think▷",
                "<|end|>",
                "<|channel|>final<|message|>",
                "<|channel|>a<|message|>",
            ]
        )
    )
)
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
        ("◁think▷a", True),
        ("<reasoning>a", True),
        ("<analysis>a", False),
        ("<|channel>thought\na", True),
        ("<|channel|>analysis<|message|>a", True),
        ("<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>", True),
        ("<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b", False),
        ("analysisThe a", True),
        ("analysisThe a.assistantfinalb", False),
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
