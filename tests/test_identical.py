"""Clips that got the same answer."""

from __future__ import annotations

import string
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from otoscope.scoring.identical import IdenticalAnswers

Row = tuple[str, str]
ROWS = st.lists(
    st.tuples(st.sampled_from("abcdef"), st.text(alphabet="xy \n", max_size=3) | st.just("\ud800")),
    max_size=30,
)


def counted(rows: Iterable[Row]) -> tuple[int, int, tuple[str, int] | None]:
    """Return the counts of these answers, each given to a clip."""
    found = IdenticalAnswers()
    for clip, answer in rows:
        found.add(clip, answer)
    return found.clips, found.identical, found.most_common


def test_clips_that_share_an_answer_are_counted() -> None:
    """Three clips of four got an answer that another one got too."""
    rows = [("a", "A woman."), ("b", "A woman."), ("c", "A\n woman. "), ("c", "Rain."), ("d", "Hail.")]
    assert counted(rows) == (4, 3, ("A woman.", 3))


def test_one_clip_may_repeat_itself() -> None:
    """The same answer to two questions about one clip is no sign of anything."""
    assert counted([("a", "Yes."), ("a", "Yes."), ("b", "yes.")]) == (2, 0, None)


def test_blank_answers_are_left_out() -> None:
    """Nothing is not an answer that two clips share."""
    assert counted([("a", " "), ("b", "\n")]) == (0, 0, None)
    assert counted([]) == (0, 0, None)


def test_of_equally_common_answers_the_first_of_the_alphabet_is_named() -> None:
    """The answer that is shown does not depend on the order of the rows."""
    rows = [(clip, letter) for clip in "ab" for letter in string.ascii_lowercase]
    assert counted(rows) == counted(rows[::-1]) == (2, 2, ("a", 2))


def test_a_long_answer_is_shown_by_its_start() -> None:
    """Eighty characters are enough to know it by; what follows them tells answers apart all the same."""
    long = "word " * 40
    assert counted([("a", long), ("b", long)])[2] == (long[:80], 2)
    assert counted([("a", long), ("b", f"{long}more")])[1] == 0


@given(ROWS)
def test_the_counts_are_those_of_comparing_every_pair(rows: list[Row]) -> None:
    """Comparing every answer with every other gives the same numbers, in any order of the rows."""
    given_to = [(clip, " ".join(answer.split())) for clip, answer in rows if answer.strip()]
    identical = {a for a, text in given_to for b, other in given_to if a != b and text == other}
    clips, shared, most_common = counted(rows)
    assert counted(rows[::-1]) == (clips, shared, most_common)
    assert (clips, shared) == (len({clip for clip, _ in given_to}), len(identical))
    if most_common is None:
        assert not identical
    else:
        text, owners = most_common
        assert owners == len({clip for clip, other in given_to if other == text}) > 1
        assert all(owners >= len({c for c, other in given_to if other == t}) for _, t in given_to)
