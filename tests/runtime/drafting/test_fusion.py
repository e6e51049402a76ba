"""Several trees in one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedec.runtime.drafting.draft_tree import ROOT, DraftTree
from edgedec.runtime.drafting.drafter import Budget
from edgedec.runtime.drafting.fusion import fuse

from .drafters.rounds import BUDGET, check_tree, paths_of, probability_of

Edge = tuple[int, int, float]


def tree_of(name: str, *edges: Edge) -> DraftTree:
    """Returns the tree of (token, parent, probability) nodes."""
    tree = DraftTree()
    for token, parent, probability in edges:
        tree.add(token, parent, probability, name)
    return tree


@st.composite
def trees(draw: st.DrawFn) -> DraftTree:
    tree = DraftTree()
    for _ in range(draw(st.integers(0, 8))):
        parent = draw(st.integers(-1, len(tree) - 1))
        tree.add(draw(st.integers(0, 3)), parent, draw(st.floats(0.01, 1.0)), draw(NAMES))
    return tree


NAMES = st.sampled_from(["a", "b", "draft"])


def test_common_beginnings_occur_once() -> None:
    one = tree_of("a", (1, ROOT, 0.6), (2, 0, 0.5))
    other = tree_of("b", (1, ROOT, 0.8), (3, 0, 0.4))
    fused = fuse([one, other], BUDGET)
    assert paths_of(fused) == {(1,), (1, 2), (1, 3)}
    assert probability_of(fused, 1) == 0.8
    assert fused.nodes[0].origin == "b"


def test_a_token_gets_what_likelier_ones_of_others_leave() -> None:
    one = tree_of("a", (1, ROOT, 0.8), (2, ROOT, 0.1))
    other = tree_of("b", (3, ROOT, 0.5))
    fused = fuse([one, other], BUDGET)
    assert probability_of(fused, 1) == 0.8
    assert probability_of(fused, 3) == pytest.approx(0.5 * 0.2)
    # The drafter of 1 gave 2 its share beside 1 already, but none to 3.
    assert probability_of(fused, 2) == pytest.approx(0.1 * (1 - 0.1))


def test_branches_the_draft_model_finds_unlikely_are_dropped() -> None:
    found = tree_of("lookup", (7, ROOT, 0.9), (8, 0, 0.9), (1, ROOT, 0.5), (9, 2, 0.9))
    sure = tree_of("draft", (1, ROOT, 0.95), (2, ROOT, 0.04))
    assert paths_of(fuse([found, sure], BUDGET)) == {(1,), (2,), (1, 9)}
    unsure = tree_of("draft", (1, ROOT, 0.5), (2, ROOT, 0.2))
    assert (7, 8) in paths_of(fuse([found, unsure], BUDGET))
    assert (7, 8) in paths_of(fuse([found, sure], BUDGET, unlikely=0.001))
    assert (7, 8) in paths_of(fuse([found, sure], BUDGET, model_name="other"))


def test_nothing_to_fuse() -> None:
    assert len(fuse([], BUDGET)) == 0
    assert len(fuse([DraftTree(), DraftTree()], BUDGET)) == 0


@given(
    st.lists(trees(), max_size=4),
    st.integers(0, 12),
    st.integers(0, 6),
    st.sampled_from([0.0, 0.1]),
)
def test_what_holds_of_every_fusion(
    parts: list[DraftTree], n_nodes: int, depth: int, min_value: float
) -> None:
    budget = Budget(n_nodes, depth, min_value)
    fused = fuse(parts, budget, unlikely=0.0)
    check_tree(fused, budget)
    every_path = {path for tree in parts for path in paths_of(tree)}
    assert paths_of(fused) <= every_path
    for node in fused.nodes:
        assert any(node.token == other.token for tree in parts for other in tree.nodes)
        assert node.origin in {other.origin for tree in parts for other in tree.nodes}
    whole = fuse(parts, Budget(99, 99), unlikely=0.0)
    assert paths_of(whole) == {p for p in every_path if p in paths_of(whole)}
    worthy = sorted(
        (
            value
            for node, value in zip(whole.nodes, whole.values(), strict=True)
            if node.depth <= depth and value >= min_value
        ),
        reverse=True,
    )
    assert sorted(fused.values(), reverse=True) == pytest.approx(worthy[:n_nodes])


@given(trees())
def test_one_tree_stays_as_it_is_but_for_certainty(tree: DraftTree) -> None:
    fused = fuse([tree], Budget(99, 99), unlikely=0.0)
    assert paths_of(fused) == paths_of(tree)
    for i, node in enumerate(tree.nodes):
        path = [tree.nodes[j].token for j in tree.path(i)]
        assert probability_of(fused, *path) == min(node.probability, 0.98)
