"""Planners: trees fused and cut, drafters asked within the room there is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from edgedec.runtime.config import SamplingConfig
from edgedec.runtime.decoding.draft_tree import ROOT, DraftTree, SiblingKind
from edgedec.runtime.decoding.planner import FixedPlanner, best_nodes, fuse
from edgedec.runtime.drafters.drafter import Budget, DraftContext
from edgedec.runtime.noise import Noise

from .draft_toys import Grow, ToyDrafter, bush

CONTEXT = DraftContext([1, 2, 3], 2, SamplingConfig(), Noise(0))


def chain(tokens: Sequence[int], probability: float, origin: str) -> DraftTree:
    tree = DraftTree()
    tree.add_chain(tokens, probability, origin)
    return tree


def growing(tree: DraftTree) -> Grow:
    return lambda rng, truth, budget: tree


def test_fused_trees_share_common_beginnings() -> None:
    fused = fuse([chain([1, 2, 3], 0.5, "a"), chain([1, 2, 4], 0.9, "b"), chain([7], 0.2, "c")])
    assert [node.token for node in fused.nodes] == [1, 2, 3, 4, 7]
    assert [node.parent for node in fused.nodes] == [ROOT, 0, 1, 1, ROOT]
    assert [node.origin for node in fused.nodes] == ["b", "b", "a", "b", "c"]
    assert fuse([]).nodes == []


def test_drawn_trees_fuse_into_a_deterministic_one() -> None:
    drawn = DraftTree(kind=SiblingKind.INDEPENDENT)
    for _ in range(2):
        drawn.add_chain([5, 6], 0.5, "a")
    assert len(drawn) == 4
    fused = fuse([drawn, chain([5, 7], 0.5, "b")])
    assert fused.kind is SiblingKind.DETERMINISTIC
    assert [node.token for node in fused.nodes] == [5, 6, 7]


@pytest.mark.parametrize("n_nodes", range(1, 12))
def test_best_nodes_are_the_likeliest_and_connected(n_nodes: int) -> None:
    rng = np.random.default_rng(n_nodes)
    tree = bush(rng, [], Budget(n_nodes=12, depth=5))
    kept = best_nodes(tree, n_nodes)
    assert len(kept) == min(n_nodes, len(tree))
    expected = sorted(tree.values(), reverse=True)[:n_nodes]
    assert sorted(kept.values(), reverse=True) == pytest.approx(expected)


def test_best_nodes_of_equal_value_keep_parents() -> None:
    tree = chain([1, 2, 3, 4], 1.0 + 1e-7, "a")
    assert [node.token for node in best_nodes(tree, 2).nodes] == [1, 2]


def test_fixed_planner_fuses_within_budget_and_room() -> None:
    seen: list[Budget] = []

    def grow(rng: np.random.Generator, truth: Sequence[int], budget: Budget) -> DraftTree:
        seen.append(budget)
        return chain([1, 2, 3], 0.5, "a")

    other = ToyDrafter([], growing(chain([8, 9], 0.6, "b")))
    planner = FixedPlanner([ToyDrafter([], grow), other], Budget(4, 9, min_value=0.1))
    tree = planner.propose(CONTEXT, Budget(n_nodes=100, depth=6))
    assert seen == [Budget(4, 6, min_value=0.1)]
    assert [node.token for node in tree.nodes] == [1, 2, 8, 9]
    assert planner.name == "toy+toy"
    assert FixedPlanner([other], Budget(1, 1), "lookup").name == "lookup"


def test_a_single_drawn_tree_stays_as_it_was_drawn() -> None:
    drawn = DraftTree(kind=SiblingKind.INDEPENDENT, draft_rows={ROOT: np.ones(9)})
    drawn.add(5, ROOT, 0.5, "a")
    drafters = [ToyDrafter([], growing(drawn)), ToyDrafter([], growing(DraftTree()))]
    assert FixedPlanner(drafters, Budget(4, 4)).propose(CONTEXT, Budget(4, 4)) is drawn
