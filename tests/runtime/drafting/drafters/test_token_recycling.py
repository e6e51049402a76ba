"""The table of last seen candidates against a replay of the rounds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edgedec.runtime.drafting.draft_tree import ROOT, DraftTree
from edgedec.runtime.drafting.drafter import Budget, RoundOutcome
from edgedec.runtime.drafting.drafters.recycling import TokenRecycling

from ..reference import recycling as reference
from .rounds import (
    BUDGET,
    begin,
    check_tree,
    context_of,
    outcome_of,
    paths_of,
    probability_of,
    run_round,
    stats_of,
)

Row = list[tuple[int, float]]


def row_of(*tokens: int) -> Row:
    return [(token, 0.5 / (1 + i)) for i, token in enumerate(tokens)]


def tree_of(*edges: tuple[int, int]) -> DraftTree:
    """Returns the tree of (token, parent) nodes."""
    tree = DraftTree()
    for token, parent in edges:
        tree.add(token, parent, 0.5, "toy")
    return tree


def test_prompt_neighbours_seed_the_table_latest_first() -> None:
    drafter = TokenRecycling()
    begin(drafter, [1, 2, 1, 3, 1, 2, 4, 1])
    assert drafter.successors(1) == [2, 3]
    assert drafter.successors(4) == [1]
    assert drafter.successors(9) == []
    begin(drafter, [1, *range(20, 40), *[t for i in range(20, 32) for t in (1, i)]])
    assert drafter.successors(1) == [31, 30, 29, 28, 27, 26, 25, 24]


def test_verified_rows_replace_seeds_and_outlive_requests() -> None:
    drafter = TokenRecycling()
    drafting = begin(drafter, [1, 2, 1])
    drafting.observe(context_of([1, 2, 1]), outcome_of(DraftTree(), [5], [row_of(5, 6, 7)]))
    assert drafter.successors(1) == [5, 6, 7]
    drafting.end([1, 2, 1, 5])
    begin(drafter, [1, 2, 1])
    assert drafter.successors(1) == [5, 6, 7]
    assert drafter.successors(2) == [1]


def test_places_of_a_row_without_a_token_are_left_out() -> None:
    drafter = reference.TokenRecycling()
    for n_missing in (0, 1, 7):
        drafter.store(1, [5] * (8 - n_missing) + [-1] * n_missing)
        assert drafter.successors(1) == [5] * (8 - n_missing)


def test_every_row_is_stored_that_of_rejected_drafts_too() -> None:
    drafter = TokenRecycling()
    tree = tree_of((10, ROOT), (11, ROOT), (12, 0))
    rows = [row_of(10), row_of(20, 21), row_of(30), row_of(40)]
    begin(drafter, [1]).observe(context_of([1, 2]), outcome_of(tree, [10, 20], rows))
    assert [drafter.successors(t) for t in (2, 10, 11, 12)] == [[10], [20, 21], [30], [40]]


def test_of_equal_tokens_the_deepest_accepted_one_counts() -> None:
    # Token 5 is the anchor, an accepted node, a rejected one and one deeper below it.
    tree = tree_of((9, ROOT), (5, ROOT), (7, 1), (5, 2), (5, 3))
    rows = [row_of(t) for t in (50, 51, 52, 53, 54, 55)]
    cases = {(9, 1): 50, (5, 1): 52, (5, 7, 1): 52, (5, 7, 5, 1): 54, (9,): 50}
    for truth, first in cases.items():
        drafter = TokenRecycling()
        begin(drafter, [1]).observe(context_of([1, 5]), outcome_of(tree, truth, rows))
        assert drafter.successors(5) == [first], truth
    drafter = TokenRecycling()
    begin(drafter, [1]).observe(context_of([1, 2]), outcome_of(tree, (9, 1), rows))
    assert drafter.successors(5) == [55]  # all rejected: the one after most tokens


def test_rows_that_were_not_verified_are_missing() -> None:
    tree = tree_of((10, ROOT), (11, 0), (12, 1))
    drafter = TokenRecycling()
    outcome = RoundOutcome(tree, (0, 1, 2), (10, 11, 12), stats_of(row_of(1), row_of(2)))
    begin(drafter, [3]).observe(context_of([3]), outcome)
    assert drafter.successors(10) == [2]
    assert drafter.successors(11) == []


def test_proposes_candidates_of_candidates() -> None:
    drafting = begin(TokenRecycling(), [1])
    rows = [row_of(2, 3), row_of(4, 5)]
    drafting.observe(context_of([1]), outcome_of(tree_of((2, ROOT)), [2, 4], rows))
    tree = drafting.propose(context_of([1]), BUDGET)
    assert paths_of(tree) == {(2,), (3,), (2, 4), (2, 5)}
    assert probability_of(tree, 2) > probability_of(tree, 3)


def test_ranks_depths_and_seeds_are_kept_apart() -> None:
    drafter = reference.TokenRecycling()
    begin(drafter, [1, 2, 1, 3])
    drafter.store(9, [4, 5, 6])
    kinds = {
        (token, depth): [option.kind for option in drafter.options(token, depth)]
        for token in (1, 9)
        for depth in (0, 1, 2, 3, 4, 5, 8, 9)
    }
    first = kinds[9, 0]
    assert len(set(first)) == 3
    assert set(first).isdisjoint(kinds[1, 0])
    columns = len({tuple(kinds[9, depth]) for depth in (0, 1, 2, 3, 4, 5, 8, 9)})
    assert first == [rank * columns for rank in range(3)]
    assert kinds[1, 0] == [8 * columns, 9 * columns]
    assert [option.token for option in drafter.options(1, 0)] == [3, 2]


def test_belief_in_a_rank_follows_what_is_accepted() -> None:
    def belief(accepted: int) -> list[float]:
        drafting = begin(TokenRecycling(), [1])
        for _ in range(30):
            context = context_of([1])
            tree = drafting.propose(context, Budget(4, 1))
            rows = [row_of(2, 3)] * (len(tree) + 1)
            drafting.observe(context, outcome_of(tree, [accepted], rows))
        tree = drafting.propose(context_of([1]), Budget(4, 1))
        return [probability_of(tree, 2), probability_of(tree, 3)]

    first, second = belief(2)
    assert first > 0.8
    assert second < 0.1
    first, second = belief(3)
    assert first < 0.2
    assert second > 0.6


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 4), min_size=1, max_size=5), st.integers(0, 2**20)),
        min_size=1,
        max_size=8,
    )
)
def test_table_equals_a_replay(rounds: list[tuple[list[int], int]]) -> None:
    drafter, text = TokenRecycling(), [0, 1, 2]
    drafting = begin(drafter, text)
    table: dict[int, list[int]] = {}
    for truth, seed in rounds:
        context = context_of(text)
        tree = drafting.propose(context, BUDGET)
        check_tree(tree, BUDGET, "recycling")
        rows = [row_of(*dict.fromkeys((seed >> i, seed % 7, i))) for i in range(len(tree) + 1)]
        outcome = outcome_of(tree, truth, rows)
        drafting.observe(context, outcome)
        for token in {text[-1], *(node.token for node in tree.nodes)}:
            # depth of the best accepted place, else of the deepest rejected one, the first of them
            places = [(True, 0, 0, ROOT)] if token == text[-1] else []
            places += [
                (i in outcome.path, node.depth, -i, i)
                for i, node in enumerate(tree.nodes)
                if node.token == token
            ]
            table[token] = [t for t, _ in rows[max(places)[3] + 1]]
        text += outcome.emitted
        assert all(drafter.successors(token) == row for token, row in table.items())


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.integers(0, 9), st.integers(0, 9))
def test_budgets(text: list[int], n_nodes: int, depth: int) -> None:
    budget = Budget(n_nodes, depth, 0.05)
    drafting = begin(TokenRecycling(), text)
    check_tree(drafting.propose(context_of(text), budget), budget, "recycling")
    run_round(drafting, text, [1, 2, 3], budget)
    check_tree(drafting.propose(context_of(text), budget), budget, "recycling")
