"""The radix tree against sets of prefixes, and what it may forget."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedec.runtime.sequences.prefix_cache import PrefixCache
from edgedec.runtime.sequences.state import SessionState, cut

from ..conftest import toy_state

Prefix = tuple[int, ...]
ROW = 8
"""Bytes of a row of `toy_state`."""
LAYOUT = toy_state([], 0).layout
TEXTS = st.lists(st.integers(0, 2), min_size=1, max_size=12).map(tuple)
"""Few token ids, so that texts share much."""
STEPS = st.lists(st.tuples(st.booleans(), TEXTS), max_size=40)


class Counting:
    """Takes snapshots of one text and counts the rows it copies."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = tuple(tokens)
        self.n_copied = 0

    def __call__(self, n_tokens: int, start: int) -> SessionState:
        self.n_copied += n_tokens - start
        return toy_state(self.tokens[:n_tokens], start)


def insert(cache: PrefixCache, tokens: Sequence[int], model: str = "target") -> int:
    """Inserts ``tokens`` and returns how many rows were copied for it."""
    snapshot = Counting(tokens)
    cache.insert(model, list(tokens), snapshot)
    return snapshot.n_copied


def find(cache: PrefixCache, tokens: Sequence[int], model: str = "target") -> Prefix:
    """Returns the prefix found, after checking every row of it."""
    pieces = cache.find(model, list(tokens), LAYOUT)
    found: Prefix = ()
    for piece in pieces:
        assert piece.start == len(found)
        assert piece.tokens[: piece.start] == found
        found = piece.tokens
        expected = toy_state(found, piece.start).kv_rows["rows"]
        np.testing.assert_array_equal(piece.kv_rows["rows"], expected)
    assert tuple(tokens[: len(found)]) == found
    return found


def prefixes(tokens: Sequence[int]) -> list[Prefix]:
    return [tuple(tokens[: i + 1]) for i in range(len(tokens))]


def held(cache: PrefixCache, texts: set[Prefix], model: str = "target") -> set[Prefix]:
    """Returns every prefix of ``texts`` that the cache knows."""
    return {p for text in texts for p in prefixes(text) if cache.n_known(model, p) == len(p)}


@given(STEPS)
def test_longest_prefix_without_a_limit(steps: list[tuple[bool, Prefix]]) -> None:
    cache, known = PrefixCache(1 << 20), set[Prefix]()
    for is_insert, tokens in steps:
        longest = max((len(p) for p in prefixes(tokens) if p in known), default=0)
        if is_insert:
            assert insert(cache, tokens) == len(tokens) - longest  # nothing is copied twice
            known.update(prefixes(tokens))
        else:
            assert len(find(cache, tokens)) == longest
        assert cache.nbytes == ROW * len(known)  # what texts share is stored once


@given(STEPS, st.integers(0, 20))
def test_limited_memory(steps: list[tuple[bool, Prefix]], n_rows: int) -> None:
    """Rows stay under the limit, and those forgotten were used no later than those that stay.

    Use of a prefix may count for what follows it up to the next fork, so what stays is given the
    benefit of the doubt.
    """
    cache = PrefixCache(ROW * n_rows + ROW - 1)
    texts, known, used = set[Prefix](), set[Prefix](), dict[Prefix, int]()
    maybe_used: dict[Prefix, int] = {}
    for now, (is_insert, tokens) in enumerate(steps):
        longest = max((p for p in prefixes(tokens) if p in known), key=len, default=())
        if is_insert:
            insert(cache, tokens)
            texts.add(tokens)
        else:
            assert find(cache, tokens) == longest
        after = held(cache, texts)
        assert cache.nbytes == ROW * len(after) <= cache.max_bytes
        wanted = prefixes(tokens)[:n_rows] if is_insert else prefixes(longest)
        assert after >= set(wanted)
        assert after - known <= set(wanted)
        used.update(dict.fromkeys(wanted, now))
        followers = [p for p in after if after <= known and p[: len(longest)] == longest]
        maybe_used.update(dict.fromkeys([*followers, *wanted], now))
        forgotten = known - after
        assert is_insert or not forgotten
        ends = {p for p in after if not any(q[: len(p)] == p for q in after if len(q) > len(p))}
        for end in ends - set(wanted):
            assert all(used[p] <= maybe_used[end] for p in forgotten)
        known = after


@given(STEPS)
def test_models_share_the_limit_and_nothing_else(steps: list[tuple[bool, Prefix]]) -> None:
    cache, texts = PrefixCache(ROW * 15), {"target": set[Prefix](), "draft": set[Prefix]()}
    for is_target, tokens in steps:
        model = "target" if is_target else "draft"
        insert(cache, tokens, model)
        texts[model].add(tokens)
        assert len(find(cache, tokens, model)) == len(tokens)
        n_held = sum(len(held(cache, texts[m], m)) for m in texts)
        assert cache.nbytes == ROW * n_held <= ROW * 15


def test_the_least_recently_used_end_goes_first() -> None:
    cache = PrefixCache(ROW * 9)
    for tokens in [(1, 1, 1, 5, 5), (1, 1, 1, 6, 6), (2, 2)]:
        insert(cache, tokens)
    find(cache, (1, 1, 1, 5, 5))
    insert(cache, (3,))  # the tail (6, 6) must go
    assert [cache.n_known("target", t) for t in [(1, 1, 1, 6, 6), (2, 2), (3,)]] == [3, 2, 1]
    assert find(cache, (1, 1, 1, 5, 5)) == (1, 1, 1, 5, 5)
    insert(cache, (4, 4))
    assert cache.n_known("target", (2, 2)) == 0
    assert cache.nbytes == ROW * 8


def test_found_pieces_outlive_what_is_forgotten() -> None:
    cache = PrefixCache(ROW * 6)
    insert(cache, (1, 2, 3, 4, 5, 6))
    insert(cache, (1, 2, 9))
    pieces = cache.find("target", [1, 2, 9], LAYOUT)
    insert(cache, (7,) * 6)
    assert cache.n_known("target", (1, 2, 9)) == 0
    assert [piece.tokens for piece in pieces] == [(1, 2), (1, 2, 9)]
    for piece in pieces:
        expected = toy_state(piece.tokens, piece.start).kv_rows["rows"]
        np.testing.assert_array_equal(piece.kv_rows["rows"], expected)


def test_halves_of_a_split_are_independent() -> None:
    """A half that stays must not keep the memory of the half that goes."""
    cache = PrefixCache(ROW * 100)
    insert(cache, range(50))
    insert(cache, (*range(10), 99))
    for piece in cache.find("target", list(range(50)), LAYOUT):
        rows = piece.kv_rows["rows"]
        owner = rows if rows.base is None else rows.base
        assert owner.nbytes == rows.nbytes


def test_another_kind_of_kv_cache_finds_nothing() -> None:
    cache = PrefixCache(ROW * 100)
    insert(cache, (1, 2, 3))

    def halves(n_tokens: int, start: int) -> SessionState:
        state = toy_state((1, 2, 3)[:n_tokens], start)
        return SessionState(state.tokens, start, {"rows": state.kv_rows["rows"].astype(np.float32)})

    assert cache.find("target", [1, 2, 3], halves(0, 0).layout) == []
    cache.insert("target", [1, 2, 3], halves)
    assert cache.find("target", [1, 2, 3], LAYOUT) == []
    assert cache.find("target", [1, 2, 3], halves(0, 0).layout)[0].tokens == (1, 2, 3)
    assert cache.nbytes == 3 * 4


@pytest.mark.parametrize("start", [0, 2, 5])
def test_state_after(start: int) -> None:
    state = toy_state((4, 5, 6, 7, 8), 0)
    rest = state.after(start)
    assert (rest.tokens, rest.start, rest.nbytes) == (state.tokens, start, ROW * (5 - start))
    expected = cut(state.kv_rows, 5, start, 5)["rows"]
    np.testing.assert_array_equal(rest.kv_rows["rows"], expected)
    assert rest.after(5).nbytes == 0
