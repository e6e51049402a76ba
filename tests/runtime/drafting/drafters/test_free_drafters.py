"""What holds of every drafter that needs no model: alone and all together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from edgedec.runtime.config import GenerationConfig, SamplingConfig
from edgedec.runtime.decoding.planner import FixedPlanner
from edgedec.runtime.decoding.speculative import Speculative
from edgedec.runtime.drafting.drafter import Budget, Drafter
from edgedec.runtime.drafting.drafters import find_drafter
from edgedec.runtime.drafting.drafters.lookup import PromptLookup
from edgedec.runtime.drafting.drafters.recycling import TokenRecycling
from edgedec.runtime.drafting.drafters.store.store_drafter import StoreDrafter
from edgedec.runtime.drafting.drafters.trigram import Trigrams
from edgedec.runtime.drafting.ngrams.ngram_store import NgramStore

from ...draft_toys import StatsSession, generate
from .rounds import begin, check_tree, context_of, outcome_of, paths_of

V = 12
BUDGET = Budget(n_nodes=7, depth=5, min_value=0.02)
MAKERS: dict[str, Callable[[Path], Drafter]] = {
    "lookup": lambda folder: PromptLookup(),
    "recycling": lambda folder: TokenRecycling(),
    "trigram": lambda folder: Trigrams(),
    "store": lambda folder: StoreDrafter(NgramStore.open(folder / "store", "ab" * 32)),
}

make_each = pytest.mark.parametrize("name", MAKERS)


def looping(prefix: Sequence[int]) -> np.ndarray:
    """Depends on the last two tokens: its texts run into loops."""
    rng = np.random.default_rng([3, *prefix[-2:]])
    return (4 * rng.standard_normal(V)).astype(np.float32)


def texts_of(drafters: Sequence[Drafter], temperature: float) -> tuple[list[list[int]], int]:
    """Returns three outputs one after the other, and how many tokens were drafted rightly."""
    texts, n_accepted = [], 0
    session = StatsSession(V, rule=looping)
    strategy = Speculative(FixedPlanner(drafters, BUDGET)) if drafters else None
    for seed, prompt in enumerate(([1, 2, 3], [1, 2, 3, 4, 5], [7])):
        sampling = SamplingConfig(temperature=temperature)
        config = GenerationConfig(max_new_tokens=60, seed=seed, sampling=sampling)
        result = generate(session, prompt, config, strategy)
        texts.append(list(result.token_ids))
        n_accepted += result.stats.n_accepted
        assert not result.stats.failed_drafters
    return texts, n_accepted


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("names", [*((name,) for name in MAKERS), tuple(MAKERS)], ids="+".join)
def test_texts_are_those_of_plain_decoding(
    tmp_path: Path, names: tuple[str, ...], temperature: float
) -> None:
    drafters = [MAKERS[name](tmp_path) for name in names]
    texts, n_accepted = texts_of(drafters, temperature)
    assert texts == texts_of([], temperature)[0]
    assert n_accepted > 20, "next to nothing was drafted rightly, so little was tested"


@make_each
def test_equal_histories_give_equal_trees(tmp_path: Path, name: str) -> None:
    def trees(folder: Path) -> list[object]:
        drafter = MAKERS[name](folder)
        rng = np.random.default_rng(5)
        text, found = [1, 2, 3], list[object]()
        drafting = begin(drafter, text)
        for i in range(60):
            if i == 30:
                drafting.end(text)
                text = text[:20]
                drafting = begin(drafter, text)
            context = context_of(text)
            tree = drafting.propose(context, BUDGET)
            check_tree(tree, BUDGET, name)
            found.append(tree.nodes)
            truth = rng.integers(0, 4, 3).tolist()
            rows = [[(int(rng.integers(0, 4)), 0.5)] for _ in range(len(tree) + 1)]
            outcome = outcome_of(tree, truth, rows)
            drafting.observe(context, outcome)
            text += outcome.emitted
        drafting.end(text)
        assert any(found)
        return found

    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert trees(tmp_path / "a") == trees(tmp_path / "b")


@make_each
def test_shortest_texts_and_smallest_budgets(tmp_path: Path, name: str) -> None:
    drafter = MAKERS[name](tmp_path)
    for text in ([5], [5, 5], [5, 5, 5, 5, 5, 5]):
        drafting = begin(drafter, text)
        for budget in (Budget(0, 0), Budget(0, 5), Budget(5, 0), Budget(1, 1), Budget(3, 99)):
            tree = drafting.propose(context_of(text), budget)
            check_tree(tree, budget, name)
        drafting.end(text)
    assert find_drafter(name).is_free
    assert drafter.name == name


@make_each
def test_an_end_before_what_was_seen(tmp_path: Path, name: str) -> None:
    drafter = MAKERS[name](tmp_path)
    text = [1, 2, 3, 1, 2, 3, 1, 2, 3, 1]
    drafting = begin(drafter, text[:3])
    for n in range(3, len(text)):
        context = context_of(text[:n])
        tree = drafting.propose(context, BUDGET)
        drafting.observe(context, outcome_of(tree, text[n : n + 1]))
    drafting.end(text[:5])
    again = [*text[:5], 9, 8, 6, 9, 8]
    tree = begin(drafter, again).propose(context_of(again), BUDGET)
    check_tree(tree, BUDGET, name)
    if name != "store":
        assert (6, 9) in paths_of(tree)


@make_each
def test_rounds_without_a_proposal_and_rows_for_part_of_the_tree(tmp_path: Path, name: str) -> None:
    drafter = MAKERS[name](tmp_path)
    text = [1, 2, 3, 1, 2]
    drafting = begin(drafter, text)
    tree = begin(PromptLookup(), text).propose(context_of(text), BUDGET)
    assert len(tree) > 1
    outcome = outcome_of(tree, [3, 1, 5], [[(7, 0.9)]])  # the anchor's row alone
    drafting.observe(context_of(text), outcome)
    text += outcome.emitted
    check_tree(drafting.propose(context_of(text), BUDGET), BUDGET, name)
    drafting.end(text)
    drafter.close()
