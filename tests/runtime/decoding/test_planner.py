"""Planners: drafters asked within the room there is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from edgedec.runtime.config import SamplingConfig
from edgedec.runtime.config.speculation import SpeculationConfig
from edgedec.runtime.decoding.cost_book import CostBook
from edgedec.runtime.decoding.cost_table import CostTable
from edgedec.runtime.decoding.planner import FixedPlanner, RoundTimings
from edgedec.runtime.drafting.draft_tree import DraftTree
from edgedec.runtime.drafting.drafter import Budget, DraftContext, DraftPrompt, RoundOutcome
from edgedec.runtime.sampling.noise import Noise
from edgedec.runtime.sequences.passes import run_passes
from edgedec.runtime.sequences.row_stats import RowStats

from ..draft_toys import Grow, ToyDrafter

CONTEXT = DraftContext([1, 2, 3], 2, SamplingConfig(), Noise(0))


def propose(planner: FixedPlanner, room: Budget) -> DraftTree:
    planning = planner.begin(DraftPrompt(CONTEXT.tokens))
    return run_passes(planning.propose(CONTEXT, room))


def chain(tokens: Sequence[int], probability: float, origin: str) -> DraftTree:
    tree = DraftTree()
    tree.add_chain(tokens, probability, origin)
    return tree


def growing(tree: DraftTree) -> Grow:
    return lambda rng, truth, budget: tree


def test_fixed_planner_fuses_within_budget_and_room() -> None:
    seen: list[Budget] = []

    def grow(rng: np.random.Generator, truth: Sequence[int], budget: Budget) -> DraftTree:
        seen.append(budget)
        return chain([1, 2, 3], 0.5, "a")

    other = ToyDrafter([], growing(chain([8, 9], 0.6, "b")))
    planner = FixedPlanner([ToyDrafter([], grow), other], Budget(4, 9, min_value=0.1))
    tree = propose(planner, Budget(n_nodes=100, depth=6))
    assert seen == [Budget(4, 6, min_value=0.1)]
    assert [node.token for node in tree.nodes] == [8, 9, 1, 2]
    assert planner.name == "toy+toy"
    assert FixedPlanner([other], Budget(1, 1), "lookup").name == "lookup"


@pytest.mark.parametrize(
    ("asked", "n_nodes", "depth"),
    [
        (SpeculationConfig(), 4, 6),
        (SpeculationConfig(draft_len=2), 2, 6),
        (SpeculationConfig(draft_len=9), 9, 9),
        (SpeculationConfig(draft_len=9, depth=3), 9, 3),
        (SpeculationConfig(draft_len=60, depth=60), 40, 30),
    ],
)
def test_what_a_request_asks_for_bounds_what_is_drafted(
    asked: SpeculationConfig, n_nodes: int, depth: int
) -> None:
    seen: list[Budget] = []

    def grow(rng: np.random.Generator, truth: Sequence[int], budget: Budget) -> DraftTree:
        seen.append(budget)
        return DraftTree()

    planner = FixedPlanner([ToyDrafter([], grow)], Budget(4, 6), "lookup")
    planning = planner.begin(DraftPrompt(CONTEXT.tokens))
    run_passes(planning.propose(replace(CONTEXT, speculation=asked), Budget(40, 30)))
    assert seen == [Budget(n_nodes, depth)]
    assert planning.explain() == ["lookup: at most 4 drafted tokens every round, 6 deep"]


@pytest.mark.parametrize(("ms", "which"), [(5.0, "saved 0.01"), (40.0, "cost 0.02")])
def test_a_fixed_budget_says_how_it_compares_with_plain_decoding(ms: float, which: str) -> None:
    costs = CostBook()
    planner = FixedPlanner([], Budget(4, 4), "draft", costs=costs)
    planning = planner.begin(DraftPrompt(CONTEXT.tokens))
    outcome = RoundOutcome(DraftTree(), (), (1, 2), RowStats.of(np.zeros((1, 9), np.float32)))
    planning.observe(CONTEXT, outcome, RoundTimings(0.0, ms))
    (line,) = planning.explain()
    assert "4 deep" in line, "nothing is known of plain decoding"
    costs._tables["target"] = CostTable({1: 10.0})
    assert planning.explain()[0] == (
        "plain decoding would have taken about 0.02 s for the tokens of all rounds; "
        f"drafts {which} s"
    )
