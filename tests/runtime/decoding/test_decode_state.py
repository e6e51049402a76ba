"""A generation's state: what fits, and what the target model says after each drafted node."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgedec.runtime.config import GenerationConfig, SamplingConfig
from edgedec.runtime.decoding.speculative import TreeRows, fit
from edgedec.runtime.decoding.strategy import DecodeState
from edgedec.runtime.drafting.draft_tree import DraftTree
from edgedec.runtime.drafting.drafter import Budget
from edgedec.runtime.sampling.noise import Noise
from edgedec.runtime.sequences.token_tree import TokenTree

from ..conftest import ToySession
from ..draft_toys import PROMPT, SAMPLINGS, VOCAB, ToyMask, bush


def start(mask: ToyMask | None = None, context: int = 256, **fields: Any) -> DecodeState:
    config = GenerationConfig(**fields)
    stops = frozenset(config.stop_token_ids)
    return DecodeState.start(ToySession(VOCAB, context), PROMPT, config, stops, mask)


def chain(*tokens: int) -> DraftTree:
    tree = DraftTree()
    tree.add_chain(tokens, 0.5, "toy")
    return tree


ROOMY = Budget(n_nodes=20, depth=20)


def test_fit_keeps_a_good_tree() -> None:
    tree = chain(1, 2, 3)
    assert fit(tree, start(), ROOMY) is tree


@pytest.mark.parametrize(
    ("tree", "room", "n_left"),
    [
        (chain(1, 2, VOCAB, 3), ROOMY, 2),
        (chain(-1, 2), ROOMY, 0),
        (chain(1, 2, 3, 4), Budget(n_nodes=3, depth=20), 3),
        (chain(1, 2, 3, 4), Budget(n_nodes=20, depth=1), 1),
        (chain(1, 50, 2), ROOMY, 1),  # 50 stops
    ],
)
def test_fit_drops_what_is_worth_no_row(tree: DraftTree, room: Budget, n_left: int) -> None:
    fitted = fit(tree, start(stop_token_ids=(50,)), room)
    assert fitted.nodes == tree.nodes[:n_left]


def test_fit_drops_what_the_mask_forbids() -> None:
    state = start(ToyMask(VOCAB))
    allowed = int(np.flatnonzero(state.allowed_after(()))[0])
    tree = chain(allowed, 1, 2)
    tree.add(allowed + 1, -1, 0.5, "toy")
    assert state.allowed_after([allowed])[1] == ((1 + sum(PROMPT) + allowed) % 3 == 0)
    kept = [node.token for node in fit(tree, state, ROOMY).nodes]
    assert allowed in kept
    assert allowed + 1 not in kept


def test_room_left() -> None:
    state = start(max_new_tokens=5)
    assert state.n_left == 5
    state.append(1)
    assert state.n_left == 4
    state = start(max_new_tokens=5, context=8)
    state.append(1)
    assert state.n_left == 2  # the last token needs no row of the KV cache
    assert len(state.tokens) == 7


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("is_masked", [False, True])
def test_every_node_is_judged_as_if_its_path_had_been_emitted(
    sampling: SamplingConfig, is_masked: bool
) -> None:
    def fresh() -> DecodeState:
        mask = ToyMask(VOCAB) if is_masked else None
        config = GenerationConfig(sampling=sampling)
        return DecodeState.start(ToySession(VOCAB), PROMPT, config, mask=mask)

    state, noise = fresh(), Noise(4)
    grown = bush(np.random.default_rng(1), PROMPT, Budget(n_nodes=60, depth=5))
    tree = fit(grown, state, Budget(n_nodes=60, depth=5))
    assert len(tree) > 3
    state.sequence.forward(TokenTree.chain(PROMPT[:-1]), ())
    state.sequence.commit(range(len(PROMPT) - 1))
    rows = state.sequence.forward(tree.to_pass(PROMPT[-1]), range(len(tree) + 1))
    judged = TreeRows(state, tree, rows, noise)
    for node in range(-1, len(tree)):
        other = fresh()
        for i in tree.path(node):
            other.append(tree.nodes[i].token)
        row = other.sequence.forward(TokenTree.chain(other.tokens), (len(other.tokens) - 1,))
        assert judged.pick(node) == other.pick_from(row, 0, noise)
        distribution, expected = judged.distribution(node), other.survivors_from(row, 0)
        assert distribution.ids.tolist() == expected.ids.tolist()
        assert distribution.scores.tolist() == expected.scores.tolist()
        assert judged.position(node) == len(other.tokens)
    assert vars(state.history) == vars(fresh().history)
