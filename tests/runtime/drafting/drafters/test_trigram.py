"""Counts of third tokens against counting by hand."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedec.runtime.drafting.draft_tree import DraftTree
from edgedec.runtime.drafting.drafter import Budget, RoundOutcome
from edgedec.runtime.drafting.drafters.trigram import Trigrams
from edgedec.runtime.sequences.row_stats import RowStats

from ..reference import trigram as reference
from .rounds import (
    BUDGET,
    begin,
    check_tree,
    context_of,
    outcome_of,
    paths_of,
    probability_of,
    run_round,
)
from .test_token_recycling import tree_of

NO_ROW: list[tuple[int, float]] = []


def test_proposes_what_came_third() -> None:
    text = [1, 2, 3, 4, 9, 1, 2, 3, 5, 9, 1, 2]
    tree = begin(Trigrams(), text).propose(context_of(text), BUDGET)
    assert {(3,), (3, 4), (3, 5), (3, 4, 9), (3, 5, 9)} <= paths_of(tree)
    assert probability_of(tree, 3) > probability_of(tree, 3, 4)


def test_short_texts() -> None:
    for text in ([1], [1, 2], [1, 1]):
        drafting = begin(Trigrams(), text)
        assert len(drafting.propose(context_of(text), BUDGET)) == 0
        drafting.observe(context_of(text), outcome_of(DraftTree(), [3]))
        drafting.end([*text, 3])


def test_candidates_of_verified_rows_count_their_probability() -> None:
    drafter = Trigrams()
    rows = [[(3, 0.75), (4, 0.25)], [(5, 0.5), (6, 0.01)], [(7, 1.0)]]
    outcome = outcome_of(tree_of((3, -1), (8, 0)), [3, 5], rows)
    begin(drafter, [1]).observe(context_of([1, 2]), outcome)
    assert drafter.counts(1, 2) == pytest.approx({3: 0.75, 4: 0.25})
    assert drafter.counts(2, 3) == pytest.approx({5: 0.5})  # 6 is too unlikely
    assert drafter.counts(3, 8) == pytest.approx({7: 1.0})


def test_probabilities_are_those_of_the_whole_row() -> None:
    logits = np.log(np.array([[0.5, 0.2, 0.1, 0.1, 0.1]], np.float32)) + 3
    stats, drafter = RowStats.of(logits), Trigrams()
    assert stats.log_sum_exp == pytest.approx(3.0)
    begin(drafter, [1]).observe(context_of([1, 2]), RoundOutcome(DraftTree(), (), (0,), stats))
    assert drafter.counts(1, 2) == pytest.approx({0: 0.5, 1: 0.2, 2: 0.1, 3: 0.1})


def test_little_that_was_counted_is_believed_little() -> None:
    """Counts that add up to a half are half believed."""
    drafter = reference.Trigrams()
    drafter.add((1, 2), [(7, 0.4), (8, 0.1)])
    found = drafter.options((1, 2), 0)
    assert [(option.token, option.share) for option in found] == [
        (7, pytest.approx(0.4)),
        (8, pytest.approx(0.1)),
    ]
    assert [option.state for option in found] == [(2, 7), (2, 8)]
    kinds = [drafter.options((1, 2), depth)[0].kind for depth in range(6)]
    assert [kind - kinds[0] for kind in kinds] == [0, 1, 1, 2, 2, 2]
    drafter.add((1, 2), [(7, 1.0)])
    assert drafter.options((1, 2), 0)[0].kind - kinds[0] == 3


def test_the_largest_counts_are_kept() -> None:
    drafter = reference.Trigrams()
    drafter.add((1, 2), [(token, 1.0 + token % 5) for token in range(10)])
    assert sorted(drafter.counts(1, 2).values()) == [2.0, 2.0, 3.0, 3.0, 4.0, 4.0, 5.0, 5.0]
    drafter.add((1, 2), [(20, 30.0)])
    assert drafter.counts(1, 2)[20] == 15.0  # all are halved


def test_emitted_tokens_count_once() -> None:
    drafter, text = Trigrams(), [1, 2]
    drafting = begin(drafter, text)
    drafting.observe(context_of(text), outcome_of(DraftTree(), [3], [NO_ROW]))
    text.append(3)
    drafting.propose(context_of(text), BUDGET)
    drafting.propose(context_of(text), BUDGET)
    drafting.end(text)
    assert drafter.counts(1, 2) == {3: 1.0}


@given(st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=20), min_size=1, max_size=4))
def test_counts_equal_those_of_the_texts(texts: list[list[int]]) -> None:
    drafter = Trigrams()
    expected: Counter[tuple[int, int, int]] = Counter()
    for text in texts:
        emitted = list(text[:2])
        drafting = begin(drafter, emitted)
        for token in text[2:]:
            context = context_of(emitted)
            tree = drafting.propose(context, BUDGET)
            check_tree(tree, BUDGET, "trigram")
            rows = [NO_ROW] * (len(tree) + 1)
            drafting.observe(context, outcome_of(tree, [token], rows))
            emitted.append(token)
        drafting.end(emitted)
        expected.update(zip(text, text[1:], text[2:], strict=False))
    for a in range(3):
        for b in range(3):
            counts = {c: float(n) for (x, y, c), n in expected.items() if (x, y) == (a, b)}
            assert sum(counts.values()) > 32 or drafter.counts(a, b) == counts


def test_pairs_not_touched_for_longest_are_forgotten() -> None:
    drafter = Trigrams(max_pairs=3)
    for text in ([1, 2, 3, 4, 5], [1, 2, 9], [7, 8, 9]):
        begin(drafter, text)
    assert len(drafter) == 3
    assert drafter.counts(2, 3) == {}
    assert drafter.counts(1, 2) == {3: 1.0, 9: 1.0}
    assert drafter.counts(3, 4) == {5: 1.0}
    assert drafter.counts(7, 8) == {9: 1.0}


def test_few_successors_are_kept_and_the_old_fade() -> None:
    drafter = Trigrams()
    for token in range(20):
        begin(drafter, [1, 2, token])
    assert len(drafter.counts(1, 2)) <= 8
    for _ in range(40):
        begin(drafter, [1, 3, 5])
    assert sum(drafter.counts(1, 3).values()) <= 32
    for _ in range(40):
        begin(drafter, [1, 3, 6])
    counts = drafter.counts(1, 3)
    assert counts[6] > 2 * counts[5]


def test_belief_follows_what_is_accepted() -> None:
    def belief(truths: list[int]) -> float:
        """Returns the belief in 9 after 7 and 8, which were seen as often as all pairs before."""
        drafter = Trigrams()
        for i, truth in enumerate(truths):
            text = [100 + i, 2]
            begin(drafter, [*text, 3])
            run_round(begin(drafter, text), text, [truth], Budget(1, 1))
        begin(drafter, [7, 8, 9])
        drafting = begin(drafter, [7, 8])
        return probability_of(drafting.propose(context_of([7, 8]), Budget(1, 1)), 9)

    assert belief([3] * 20) > belief([]) > belief([4] * 20)
