"""Counters of a generation: proposed, evaluated, accepted, and that everything adds up."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedec.runtime.drafting.draft_tree import ROOT, DraftTree
from edgedec.runtime.drafting.stats import DecodeStats, DraftCounts


def two_drafters() -> DraftTree:
    """Returns a: 1 2 3 in a row; b: 4 after the root and 5 after 1."""
    tree = DraftTree()
    tree.add_chain([1, 2, 3], 0.5, "a")
    tree.add(4, ROOT, 0.5, "b")
    tree.add(5, 0, 0.5, "b")
    return tree


def test_counts_by_drafter_and_depth() -> None:
    stats = DecodeStats()
    stats.count_pass(two_drafters(), {0, 1, 3, 4}, (0, 4), is_bonus=True)
    stats.count_pass(two_drafters(), {0, 3}, (), is_bonus=False)
    stats.count_pass(DraftTree(), (), (), is_bonus=True)
    assert stats.drafted == {
        "a": [DraftCounts(2, 2, 1), DraftCounts(2, 1, 0), DraftCounts(2, 0, 0)],
        "b": [DraftCounts(2, 2, 0), DraftCounts(2, 1, 1)],
    }
    assert stats.by_drafter() == {"a": DraftCounts(6, 3, 1), "b": DraftCounts(4, 3, 1)}
    assert stats.by_depth() == [DraftCounts(4, 4, 1), DraftCounts(4, 2, 1), DraftCounts(2, 0, 0)]
    assert (stats.n_proposed, stats.n_evaluated, stats.n_accepted) == (10, 6, 2)
    assert (stats.n_rounds, stats.n_bonus, stats.n_correction) == (2, 1, 1)
    assert (stats.n_passes, stats.n_pass_tokens) == (3, 5)
    assert stats.acceptance_rate == pytest.approx(2 / 6)
    assert stats.block_efficiency == pytest.approx(5 / 3)


def test_discarded_tokens_were_not_emitted() -> None:
    stats = DecodeStats()
    stats.count_pass(two_drafters(), {0, 1, 3, 4}, (0, 1), is_bonus=False)
    stats.discard(2)
    assert (stats.n_pass_tokens, stats.n_discarded, stats.n_accepted) == (1, 2, 2)
    assert stats.block_efficiency == 1.0


def test_nothing_drafted() -> None:
    stats = DecodeStats(n_passes=4, n_pass_tokens=4)
    assert (stats.n_proposed, stats.n_rounds, stats.acceptance_rate) == (0, 0, 0.0)
    assert stats.block_efficiency == 1.0
    assert DecodeStats().block_efficiency == 0.0
    assert (stats.by_drafter(), stats.by_depth()) == ({}, [])


def test_json() -> None:
    stats = DecodeStats(draft_ms=1.5, failed_drafters={"c": "RuntimeError: broken"})
    stats.count_pass(two_drafters(), {0, 1, 3, 4}, (0, 4), is_bonus=True)
    document = stats.to_dict()
    assert json.loads(json.dumps(document)) == document
    assert document["n_proposed"] == 5
    assert document["by_drafter"]["b"] == {
        "n_proposed": 2, "n_evaluated": 2, "n_accepted": 1, "acceptance_rate": 0.5,
    }  # fmt: skip
    assert [level["n_accepted"] for level in document["by_depth"]] == [1, 1, 0]
    assert document["failed_drafters"] == {"c": "RuntimeError: broken"}
    assert document["draft_ms"] == 1.5


@given(st.lists(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abc")), max_size=6)))
def test_sums(rounds: list[list[tuple[int, str]]]) -> None:
    stats, n_emitted, n_nodes = DecodeStats(), 0, 0
    for chain in rounds:
        tree, parent = DraftTree(), ROOT
        for token, origin in chain:
            parent = tree.add(token, parent, 0.5, origin)
        path = range(len(chain) // 2)
        stats.count_pass(tree, {*path, *range(len(path) + 1)}, path, is_bonus=not chain)
        n_emitted += len(path) + 1
        n_nodes += len(tree)
    total = DraftCounts.total(stats.by_drafter().values())
    assert total == DraftCounts.total(stats.by_depth()) == stats.total_drafted
    assert (total.n_proposed, stats.n_pass_tokens) == (n_nodes, n_emitted)
    assert n_emitted == total.n_accepted + stats.n_passes
    assert stats.n_rounds == sum(map(bool, rounds))
    assert total.n_accepted <= total.n_evaluated <= total.n_proposed
