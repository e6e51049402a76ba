"""Drafts from the n-gram store."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedec.runtime.decoding.planner import FixedPlanner
from edgedec.runtime.drafting.draft_tree import DraftTree
from edgedec.runtime.drafting.drafter import Budget, DraftPrompt
from edgedec.runtime.drafting.drafters.store.store_drafter import StoreDrafter
from edgedec.runtime.drafting.ngrams.ngram_store import NgramStore
from edgedec.runtime.sequences.passes import run_passes

from ...conftest import ToySession
from .rounds import (
    BUDGET,
    begin,
    check_tree,
    context_of,
    paths_of,
    probability_of,
    run_round,
)


@pytest.fixture
def store(tmp_path: Path) -> NgramStore:
    return NgramStore.open(tmp_path / "store", "ab" * 32)


def test_proposes_what_followed_by_frequency(store: NgramStore) -> None:
    for last in (30, 40, 40, 40):
        store.add([1, 2, 3, last, 5])
    tree = begin(StoreDrafter(store), [9, 2, 3]).propose(context_of([9, 2, 3]), BUDGET)
    assert paths_of(tree) == {(40,), (40, 5), (30,), (30, 5)}
    assert probability_of(tree, 40) == pytest.approx(3 * probability_of(tree, 30))


def test_texts_do_not_run_into_each_other(store: NgramStore) -> None:
    store.add([1, 2, 3])
    store.add([4, 5, 6])
    drafter = StoreDrafter(store)
    for text, following in (([1, 2], {(3,)}), ([2, 3], set())):
        assert paths_of(begin(drafter, text).propose(context_of(text), BUDGET)) == following


def test_grows_with_use_by_what_is_new(store: NgramStore) -> None:
    drafter, text = StoreDrafter(store), [1, 2]
    drafting = begin(drafter, text)
    for token in (3, 4, 5):
        run_round(drafting, text, [token])
    drafting.end(text)
    assert store.query([3, 4], 1).following == [[5]]
    n_before = store.n_tokens
    begin(drafter, [*text, 6]).end([*text, 6, 7])
    assert store.n_tokens == n_before + 3  # 6, 7 and the end of the text
    begin(drafter, [1, 9]).end([1, 9, 8])
    assert store.query([9, 8], 1).length == 0  # nothing follows
    assert len(store.query([1, 2], 1).following) == 1


def test_retrieved_text_hangs_on_what_a_draft_model_proposes(store: NgramStore) -> None:
    """What both propose is there once, and the store's continuation goes on from it."""
    store.add([7, 1, 2, 3, 4, 5])
    drafted = DraftTree()
    drafted.add_chain([3, 9], 0.9, "draft")
    drafter = StoreDrafter(store)
    for planner in (
        FixedPlanner([Proposing(drafted), drafter], BUDGET),
        FixedPlanner([drafter, Proposing(drafted)], BUDGET),
    ):
        planning = planner.begin(DraftPrompt([7, 1, 2]), ToySession(10))
        tree = run_passes(planning.propose(context_of([7, 1, 2]), BUDGET))
        assert paths_of(tree) == {(3,), (3, 9), (3, 4), (3, 4, 5)}
        origins = {node.token: node.origin for node in tree.nodes}
        assert origins == {3: "draft", 9: "draft", 4: "store", 5: "store"}


class Proposing:
    """A draft model that always proposes the same tree."""

    name = "draft"
    hidden_layers = ()

    def __init__(self, tree: DraftTree) -> None:
        self.propose = lambda context, budget: tree
        self.begin = lambda prompt: self
        self.observe = self.end = lambda *_: None
        self.close = lambda: None


def test_growing_can_be_turned_off(store: NgramStore) -> None:
    begin(StoreDrafter(store, is_growing=False), [1, 2]).end([1, 2, 3])
    assert store.n_tokens == 0


def test_belief_follows_what_is_accepted(store: NgramStore) -> None:
    store.add([1, 2, 3])

    def belief(truth: list[int]) -> float:
        drafter = StoreDrafter(store, is_growing=False)
        for _ in range(20):
            run_round(begin(drafter, [1, 2]), [1, 2], truth)
        return probability_of(begin(drafter, [1, 2]).propose(context_of([1, 2]), BUDGET), 3)

    fresh = StoreDrafter(store, is_growing=False)
    before = probability_of(begin(fresh, [1, 2]).propose(context_of([1, 2]), BUDGET), 3)
    assert belief([3, 4]) > before > belief([5])


@pytest.mark.slow
@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=20), max_size=4),
    st.integers(0, 9),
    st.integers(0, 20),
    st.sampled_from([0.0, 0.1]),
)
def test_budgets(
    tmp_path_factory: pytest.TempPathFactory,
    texts: list[list[int]],
    n_nodes: int,
    depth: int,
    min_value: float,
) -> None:
    store = NgramStore.open(tmp_path_factory.mktemp("store") / "store", "ab" * 32)
    drafter, budget = StoreDrafter(store), Budget(n_nodes, depth, min_value)
    for text in texts:
        drafting = begin(drafter, text[:1])
        tree = drafting.propose(context_of(text), budget)
        check_tree(tree, budget, "store")
        drafting.end(text)
