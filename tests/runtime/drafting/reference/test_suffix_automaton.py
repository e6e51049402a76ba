"""The incremental index against a search through the whole text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from .suffix_automaton import START, SuffixAutomaton

TEXTS = st.lists(st.integers(0, 3), max_size=60)


def places(text: list[int], part: list[int]) -> list[int]:
    """Returns where ``part`` ends in ``text``, but for the end of ``text``."""
    n = len(part)
    return [end for end in range(n, len(text)) if text[end - n : end] == part]


def longest_repeat(text: list[int]) -> int:
    """Returns the length of the longest suffix that also ends earlier."""
    return max(n for n in range(len(text) + 1) if n == 0 or places(text, text[-n:]))


@given(TEXTS)
def test_longest_repeat_after_every_token(text: list[int]) -> None:
    index = SuffixAutomaton()
    for i, token in enumerate(text):
        index.append(token)
        assert index.length(index.longest_repeat()) == longest_repeat(text[: i + 1])
    assert index.tokens == text


@given(TEXTS)
def test_followers_of_every_shorter_suffix(text: list[int]) -> None:
    index = SuffixAutomaton(text)
    state = index.longest_repeat()
    while state != START:
        suffix = text[len(text) - index.length(state) :]
        ends = places(text, suffix)
        expected = {}
        for end in ends:
            count, _ = expected.get(text[end], (0, 0))
            expected[text[end]] = (count + 1, end)
        found = {token: (n, latest) for token, _, n, latest in index.followers(state)}
        assert found == expected
        shorter = index.shorter(state)
        assert index.length(shorter) < index.length(state)
        state = shorter


@given(TEXTS, st.integers(0, 3))
def test_a_follower_is_the_state_of_the_longer_match(text: list[int], next_token: int) -> None:
    index = SuffixAutomaton(text)
    suffix = text[len(text) - index.length(index.longest_repeat()) :]
    for token, to, *_ in index.followers(index.longest_repeat()):
        nexts = {text[end] for end in places(text, [*suffix, token])}
        assert {found[0] for found in index.followers(to)} == nexts


def test_a_text_of_one_token_stays_quick_to_index() -> None:
    index = SuffixAutomaton([7] * 5000)
    state = index.longest_repeat()
    assert index.length(state) == 4999
    assert [token for token, *_ in index.followers(state)] == [7]
