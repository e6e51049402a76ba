"""Drawn draft trees: their tokens follow the draft distribution, and what rejection leaves of them
follows the target model's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from edgedec.runtime.config import GenerationConfig, SamplingConfig
from edgedec.runtime.decoding.planner import FixedPlanner
from edgedec.runtime.decoding.speculative import Speculative
from edgedec.runtime.decoding.strategy import DecodeState
from edgedec.runtime.decoding.verifiers import find_verifier
from edgedec.runtime.drafting.draft_role import DraftRole
from edgedec.runtime.drafting.draft_tree import ROOT, DraftTree, SiblingKind
from edgedec.runtime.drafting.drafter import Budget, DraftContext, DraftPrompt
from edgedec.runtime.drafting.drafters.draft.draft_model import DraftModelDrafter
from edgedec.runtime.drafting.drafters.draft.tree_drafting import TreeDrafting
from edgedec.runtime.sampling.noise import Noise
from edgedec.runtime.sequences.passes import Passes, run_passes
from edgedec.runtime.sequences.prefill import ExactPrefiller, PrefillRequest
from edgedec.runtime.text.token_map import TokenMap

from ...conftest import OnePool, ToySession

VOCAB = 5
PROMPT = [1, 2]
TEMPERATURE = SamplingConfig(temperature=1.0)
WOR, IID = SiblingKind.WITHOUT_REPLACEMENT, SiblingKind.INDEPENDENT
Rule = Callable[[Sequence[int]], npt.NDArray[np.float32]]


def rule(seed: int) -> Rule:
    """Returns logits that depend on the last token."""
    table = np.random.default_rng(seed).normal(0, 1.2, (VOCAB, VOCAB)).astype(np.float32)
    return lambda prefix: table[prefix[-1]]


TARGET_RULE, DRAFT_RULE = rule(1), rule(2)


def distribution(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    weights = np.exp(logits.astype(np.float64))
    return np.asarray(weights / weights.sum())


def make_drafter(context: int = 64, rule: Rule = DRAFT_RULE) -> DraftModelDrafter:
    pool = OnePool(ToySession(VOCAB, context, rule))
    return DraftModelDrafter(DraftRole(pool, TokenMap.same(VOCAB, VOCAB), VOCAB))


def context_of(
    kind: SiblingKind, sampling: SamplingConfig = TEMPERATURE, seed: int = 0
) -> DraftContext:
    return DraftContext(PROMPT, len(PROMPT), sampling, Noise(seed), kind=kind)


def propose(drafter: DraftModelDrafter, kind: SiblingKind, seed: int, budget: Budget) -> DraftTree:
    drafting = drafter.begin(DraftPrompt(PROMPT))
    tree = run_passes(drafting.propose(context_of(kind, seed=seed), budget))
    drafting.end(PROMPT)
    return tree


def chi_square(counts: npt.NDArray[np.int64], probs: npt.NDArray[np.float64]) -> float:
    """Returns how many deviations the statistic is above its mean; rare cells count as one."""
    expected = counts.sum() * probs
    rare = expected < 10
    observed = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], max(expected[rare].sum(), 1e-9))
    statistic = float(((observed - expected) ** 2 / expected).sum())
    freedom = len(expected) - 1
    return (statistic - freedom) / (2 * freedom) ** 0.5


def test_siblings_without_replacement() -> None:
    drafter, pairs = make_drafter(), np.zeros((VOCAB, VOCAB), np.int64)
    for seed in range(4000):
        tree = propose(drafter, WOR, seed, Budget(n_nodes=2, depth=1))
        assert tree.kind is WOR
        first, second = (tree.nodes[i].token for i in tree.children(ROOT))
        pairs[first, second] += 1
        np.testing.assert_allclose(
            tree.draft_rows[ROOT], distribution(DRAFT_RULE(PROMPT)), rtol=1e-6
        )
    probs = distribution(DRAFT_RULE(PROMPT))
    expected = np.array([[p * q / (1 - p) for q in probs] for p in probs])
    np.fill_diagonal(expected, 0)
    assert pairs.diagonal().sum() == 0
    off = ~np.eye(VOCAB, dtype=bool)
    assert expected.sum() == pytest.approx(1)
    assert chi_square(pairs[off], expected[off]) < 4


class WatchedNoise(Noise):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.counters: list[int] = []

    def gumbel(self, position: int, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        self.counters.append(position)
        return super().gumbel(position, ids)


@pytest.mark.parametrize("kind", [WOR, IID])
def test_no_draw_of_a_text_has_the_noise_of_another(kind: SiblingKind) -> None:
    """Else what a later round draws would depend on what became of an earlier one's drafts."""
    noise, drafting = WatchedNoise(0), make_drafter().begin(DraftPrompt(PROMPT))
    for n_more in range(4):
        text = PROMPT + [0] * n_more
        context = DraftContext(text, len(PROMPT), TEMPERATURE, noise, kind=kind)
        run_passes(drafting.propose(context, Budget(n_nodes=6, depth=3, n_step_nodes=2)))
    assert len(noise.counters) > 12
    assert len(set(noise.counters)) == len(noise.counters)
    assert min(noise.counters) > 1 << 32, "positions of texts have noise of their own"


@pytest.mark.slow
def test_independent_chains() -> None:
    drafter, tokens = make_drafter(), np.zeros((VOCAB, VOCAB), np.int64)
    followers = np.zeros(VOCAB, np.int64)
    for seed in range(3000):
        tree = propose(drafter, IID, seed, Budget(n_nodes=5, depth=4, n_step_nodes=2))
        assert tree.kind is IID
        assert [node.depth for node in tree.nodes] == [1, 1, 2, 2]
        a, b, c, _ = (node.token for node in tree.nodes)
        tokens[a, b] += 1
        if a == 0:
            followers[c] += 1
        np.testing.assert_allclose(tree.draft_rows[0], distribution(DRAFT_RULE([a])), rtol=1e-6)
    probs = distribution(DRAFT_RULE(PROMPT))
    assert chi_square(tokens, np.outer(probs, probs)) < 4
    assert chi_square(followers, distribution(DRAFT_RULE([0]))) < 4


@pytest.mark.parametrize("kind", [WOR, IID])
def test_greedy_trees_are_deterministic(kind: SiblingKind) -> None:
    drafting = make_drafter().begin(DraftPrompt(PROMPT))
    context = context_of(kind, SamplingConfig())
    tree = run_passes(drafting.propose(context, Budget(n_nodes=4, depth=2)))
    assert tree.kind is SiblingKind.DETERMINISTIC
    assert not tree.draft_rows


@pytest.mark.parametrize("kind", [WOR, IID])
def test_budgets_and_the_end_of_the_context(kind: SiblingKind) -> None:
    drafter = make_drafter(context=4)
    for n_nodes in (1, 2, 3, 7):
        for n_step_nodes in (1, 3):
            budget = Budget(n_nodes, 3, n_step_nodes=n_step_nodes)
            tree = propose(drafter, kind, n_nodes, budget)
            assert 0 < len(tree) <= n_nodes
            assert all(node.depth <= 3 for node in tree.nodes)
    tree = propose(drafter, kind, 0, Budget(6, 3, min_step_value=5.0, n_step_nodes=2))
    assert {node.depth for node in tree.nodes} == {1}


def test_trees_grow_where_the_draft_model_is_sure() -> None:
    drafter = make_drafter(rule=lambda prefix: 6 * np.eye(VOCAB, dtype=np.float32)[2])
    budget = Budget(n_nodes=4, depth=4, n_step_nodes=1)
    trees = [propose(drafter, WOR, seed, budget) for seed in range(50)]
    depths = [max(n.depth for n in tree.nodes) for tree in trees]
    assert np.mean(depths) > 3.5


@pytest.mark.slow
@pytest.mark.parametrize("kind", [WOR, IID])
def test_what_rejection_leaves_is_the_target_models_law(kind: SiblingKind) -> None:
    """The first two tokens of whole rounds, against their exact distribution."""
    budget, drafter = Budget(n_nodes=4, depth=2, n_step_nodes=2), Drawing(make_drafter().role, kind)
    strategy = Speculative(FixedPlanner([], budget, model=drafter), find_verifier("rejection"))
    counts, accepted = np.zeros((VOCAB, VOCAB), np.int64), Counter[str]()
    for seed in range(6000):
        first, second, origins = two_tokens(strategy, seed)
        counts[first, second] += 1
        accepted.update(origins)
    probs = distribution(TARGET_RULE(PROMPT))
    expected = np.array([probs[i] * distribution(TARGET_RULE([i])) for i in range(VOCAB)])
    assert chi_square(counts, expected) < 4
    assert accepted["draft"] > 1000
    assert accepted["target"] > 1000


class Drawing(DraftModelDrafter):
    """Draws siblings of one kind, whichever the verifier asks for."""

    def __init__(self, role: DraftRole, kind: SiblingKind) -> None:
        super().__init__(role)
        self.kind = kind

    def begin(self, prompt: DraftPrompt) -> DrawingDrafting:
        return DrawingDrafting(self, prompt, self.kind)


class DrawingDrafting(TreeDrafting):
    def __init__(self, drafter: Drawing, prompt: DraftPrompt, kind: SiblingKind) -> None:
        super().__init__(drafter, prompt)
        self._kind = kind

    def propose(self, context: DraftContext, budget: Budget) -> Passes[DraftTree]:
        tree = yield from super().propose(replace(context, kind=self._kind), budget)
        assert tree.kind is self._kind
        return tree


def two_tokens(strategy: Speculative, seed: int) -> tuple[int, int, list[str]]:
    """Returns the two tokens that follow the prompt, and where they came from."""
    config = GenerationConfig(max_new_tokens=6, sampling=TEMPERATURE, seed=seed)
    state = DecodeState.start(ToySession(VOCAB, 64, TARGET_RULE), PROMPT, config)
    # The anchor is the prompt's last token: no row is left by prefill.
    run_passes(ExactPrefiller().prefill(state.sequence, PROMPT[:-1], PrefillRequest(state.stats)))
    noise, origins = Noise(seed), list[str]()
    decoding = strategy.begin(state, {})
    while len(state.tokens) < len(PROMPT) + 2:
        result = run_passes(decoding.step(noise))
        for token in result.tokens:
            state.append(token)
        origins += result.origins
    decoding.end()
    return state.tokens[len(PROMPT)], state.tokens[len(PROMPT) + 1], origins
