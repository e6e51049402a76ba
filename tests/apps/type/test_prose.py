"""Which part of a continuation somebody who writes prose is shown."""

from __future__ import annotations

import pytest

from edgedec.apps.type.prose import first_word, fitted

CASES = [
    # before, after, the model's continuation, what is shown
    ("The cat sat on the", "", " mat and looked at me.", " mat and looked"),
    ("I am writ", "", "ing to you today", "ing to you"),
    ("We met. ", "", "then we left", "Then we left"),
    ("we met. ", "", "then we left", "then we left"),
    ("THE WEA", "", "ther is fine", "THER is fine"),
    ("Hello ", "", " there friend", "there friend"),
    ("One line", "", " ends\nand another", " ends"),
    ("She said", "", ".", ""),
    ("I have 2", "", "5 apples", ""),
    ("Write to me@exam", "", "ple.com please", ""),
    ("See www.exam", "", "ple.com", ""),
    ("cd /usr/lo", "", "cal/bin", ""),
    ("It was t", "", "he best", ""),
    ("I", "", " am very glad", " am very glad"),
    ("It costs about", "", " 20 dollars", ""),
    ("It costs about", "", " the same 20", " the same"),
    ("in the mid", "dle of it", "dle", ""),
    ("in the", " end", " end", ""),
    ("", "", "Once upon a time", ""),
    ("Done.", "", " Next one", ""),
]


@pytest.mark.parametrize(("before", "after", "text", "shown"), CASES)
def test_fitted(before: str, after: str, text: str, shown: str) -> None:
    assert fitted(before, after, text, is_complete=True) == shown


def test_word_that_may_grow_is_left_out() -> None:
    assert fitted("The cat sat on the", "", " mat and look", is_complete=False) == " mat and"
    assert fitted("The cat sat on the", "", " mat", is_complete=False) == ""


def test_words_at_a_time() -> None:
    assert fitted("The cat sat", "", " on the mat", is_complete=True, n_words=1) == " on"
    assert first_word(" on the mat") == " on"
    assert first_word("ing to") == "ing"
