"""What light draft heads are given to read, which of them, and how deep they draft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from edgedec.labs.drafters.hydra.light_drafter import LightDrafter
from edgedec.models.draft_heads import light_gates
from edgedec.models.hidden_states import normed
from edgedec.runtime.config import SamplingConfig
from edgedec.runtime.drafting.draft_tree import ROOT, DraftTree
from edgedec.runtime.drafting.drafter import Budget, DraftContext, DraftPrompt
from edgedec.runtime.drafting.head_role import HeadRole
from edgedec.runtime.sampling.noise import Noise
from edgedec.runtime.sequences.passes import Pass, run_passes
from edgedec.runtime.sequences.pool import SequencePool
from edgedec.runtime.sequences.rows import Rows
from edgedec.runtime.text.token_map import TokenMap

from ..runtime.draft_toys import HEAD_WIDTH, ToyHead
from ..runtime.drafting.drafters.rounds import outcome_of

V, N_HEADS, LAYER, EPSILON = 12, 3, 3, 1e-5
TEXT = [3, 1, 4, 1, 5, 9]


class LightHeads(ToyHead):
    """Light heads that note their passes."""

    def __init__(self, sees_tokens: bool) -> None:
        super().__init__(V, (N_HEADS if sees_tokens else 1) * HEAD_WIDTH, N_HEADS)
        self.passes: list[Pass] = []

    def rows_of(self, wanted: Pass) -> Rows:
        self.passes.append(wanted)
        return Rows(
            super().rows_of(wanted).logits, {1: np.stack([*map(vector, wanted.tree.tokens)])}
        )


def vector(token: int) -> np.ndarray:
    """Returns the embedding of a token."""
    return np.arange(HEAD_WIDTH, dtype=np.float32) + token + 1


def state(place: int) -> np.ndarray:
    """Returns the hidden state of the token at ``place`` of a text."""
    return np.random.default_rng(place).standard_normal((1, HEAD_WIDTH)).astype(np.float32)


def drafter_of(heads: LightHeads) -> LightDrafter:
    same = TokenMap.same(V, V)
    return LightDrafter(
        "light", HeadRole(SequencePool(heads, 60), same, V, (LAYER,), EPSILON, costs={LAYER: 0.1})
    )


def proposed(heads: LightHeads, budget: Budget) -> DraftTree:
    """Returns what is proposed after `TEXT`, of which all but the last token was prefilled."""
    hidden = np.concatenate([state(i) for i in range(len(TEXT) - 1)])
    drafting = drafter_of(heads).begin(DraftPrompt(TEXT[:-1], {LAYER: hidden}))
    context = DraftContext(TEXT, len(TEXT) - 1, SamplingConfig(), Noise(0))
    tree = run_passes(drafting.propose(context, budget))
    drafting.end(TEXT)
    return tree


@pytest.mark.parametrize("n_step_nodes", [1, 2, 3])
def test_each_level_is_a_heads_and_reads_what_is_before_it(n_step_nodes: int) -> None:
    heads = LightHeads(sees_tokens=True)
    tree = proposed(heads, Budget(12, 9, n_step_nodes=n_step_nodes))
    assert max(node.depth for node in tree.nodes) == N_HEADS  # of nine that were allowed
    known = normed(state(len(TEXT) - 2), EPSILON)[0]
    before = {(): known}  # what those behind a way down the tree read
    for wanted in heads.passes:
        assert wanted.features is not None
        assert set(wanted.tree.parents) == {ROOT}  # rows see none of each other
        gates = list(wanted.layer_gates or ())
        head = next(i for i in range(N_HEADS) if gates == light_gates(N_HEADS, i))
        for token, features in zip(wanted.tree.tokens, wanted.features, strict=True):
            n_read = (head + 1) * HEAD_WIDTH
            assert not features[n_read:].any()
            ways = [way for way in before if len(way) == head]
            found = [way for way in ways if np.array_equal(features[:n_read], before[way])]
            assert found, "a row read something else than a way down the tree"
            (way,) = found
            before[*way, token] = np.concatenate([features[:n_read], vector(token)])
    assert heads.passes[0].tree.tokens == (TEXT[-1],)
    ways = {(TEXT[-1], *(tree.nodes[j].token for j in tree.path(i))) for i in inner(tree)}
    assert ways <= set(before)


def inner(tree: DraftTree) -> Sequence[int]:
    """Returns the nodes that others follow."""
    return sorted({node.parent for node in tree.nodes} - {ROOT})


def test_heads_that_see_no_tokens_run_once_a_round() -> None:
    heads = LightHeads(sees_tokens=False)
    tree = proposed(heads, Budget(60, 9, n_step_nodes=2))
    assert max(node.depth for node in tree.nodes) == N_HEADS
    gates = [tuple(wanted.layer_gates or ()) for wanted in heads.passes]
    assert sorted(gates) == sorted(tuple(light_gates(N_HEADS, i)) for i in range(N_HEADS))
    for wanted in heads.passes:
        np.testing.assert_array_equal(wanted.features, normed(state(len(TEXT) - 2), EPSILON))
        assert not wanted.hidden_layers


def test_the_state_is_that_of_the_last_accepted_token() -> None:
    heads = LightHeads(sees_tokens=True)
    drafting = drafter_of(heads).begin(DraftPrompt(TEXT[:1], {LAYER: state(0)}))
    text = TEXT[:2]
    for emitted in ([7], [2, 5, 8], [1]):
        context = DraftContext(list(text), 1, SamplingConfig(), Noise(0))
        heads.passes.clear()
        tree = run_passes(drafting.propose(context, Budget(4, 2)))
        read = heads.passes[0].features
        assert read is not None
        np.testing.assert_array_equal(
            read[0, :HEAD_WIDTH], normed(state(len(text) - 2), EPSILON)[0]
        )
        chain = DraftTree()
        at = ROOT
        for token in emitted[:-1]:
            at = chain.add(token, at, 0.5, "light")
        states = np.concatenate([state(len(text) - 1 + i) for i in range(len(emitted))])
        outcome = replace(outcome_of(chain, emitted), hidden={LAYER: states})
        drafting.observe(context, outcome)
        text += emitted
        assert len(tree) > 0


def test_nothing_is_drafted_without_the_state() -> None:
    drafting = drafter_of(LightHeads(sees_tokens=True)).begin(DraftPrompt(TEXT))
    context = DraftContext(TEXT, 1, SamplingConfig(), Noise(0))
    assert len(run_passes(drafting.propose(context, Budget(4, 2)))) == 0
