"""A real model drafting: for itself, and across tokenizers."""

from __future__ import annotations

from pathlib import Path

import pytest

import edgedec
from edgedec.runtime.config import GenerationConfig, SamplingConfig
from edgedec.runtime.decoding.planner import FixedPlanner
from edgedec.runtime.decoding.speculative import Speculative
from edgedec.runtime.decoding.strategy import DecodeState
from edgedec.runtime.drafting.draft_tree import DraftTree
from edgedec.runtime.drafting.drafter import Budget, DraftContext
from edgedec.runtime.methods.draft_source import DraftSource
from edgedec.runtime.sampling.noise import Noise
from edgedec.runtime.sessions.prefill import prefill

pytestmark = pytest.mark.e2e

PROMPT = "The three primary colours are"
WIDE = Budget(n_nodes=6, depth=4, n_step_nodes=2)


@pytest.fixture(scope="module")
def engine(smollm2_bundle: Path) -> edgedec.Engine:
    """SmolLM2 with itself as the draft model, in another session."""
    return edgedec.load(smollm2_bundle, context=256, draft=smollm2_bundle)


def source_of(engine: edgedec.Engine) -> DraftSource:
    assert engine.draft is not None
    return engine.draft


def decode(engine: edgedec.Engine, strategy: Speculative, config: GenerationConfig) -> DecodeState:
    """Returns the state after the output of ``config``."""
    tokens = engine.encode(PROMPT)
    state = DecodeState.start(engine.session, tokens, config)
    state.rows = prefill(engine.session, tokens, state.stats)
    noise = Noise(config.seed)
    strategy.begin(state)
    while state.n_left > 0:
        for token in strategy.step(state, noise).tokens[: state.n_left]:
            state.append(token)
    strategy.end(state)
    return state


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_model_that_drafts_for_itself_is_always_right(
    engine: edgedec.Engine, temperature: float
) -> None:
    sampling = SamplingConfig(temperature=temperature)
    config = GenerationConfig(max_new_tokens=24, ignore_eos=True, sampling=sampling, seed=3)
    plain = engine.generate(PROMPT, config)
    drafter = source_of(engine).open()
    budget = Budget(n_nodes=3, depth=3, min_value=0.0)
    state = decode(engine, Speculative(FixedPlanner([drafter], budget)), config)
    assert tuple(state.tokens[state.n_prompt :]) == plain.token_ids
    if temperature == 0:  # the leading child is always accepted
        first = state.stats.drafted["draft"][0]
        assert first.n_accepted >= state.stats.n_passes - 1
    assert list(drafter.session.tokens) == state.tokens[: drafter.session.n_tokens]
    drafter.close()


def test_levels_and_kept_rows_give_what_fresh_passes_would(engine: edgedec.Engine) -> None:
    """Bit for bit: the probabilities of nodes, round after round, with rejected drafts between."""
    drafter, text = source_of(engine).open(), engine.encode(PROMPT)
    for wrong in (False, True, False, False, True):
        context = DraftContext(list(text), 3, SamplingConfig(), Noise(0))
        tree = drafter.propose(context, WIDE)
        fresh = source_of(engine).open()
        assert nodes_of(fresh.propose(context, WIDE)) == nodes_of(tree)
        fresh.close()
        deepest = max(range(len(tree)), key=lambda i: tree.nodes[i].depth)
        text += [tree.nodes[i].token for i in tree.path(deepest)][: 1 if wrong else None]
        text.append(5 if wrong else 28)
    drafter.close()


def nodes_of(tree: DraftTree) -> list[tuple[int, int, float]]:
    return [(node.token, node.parent, node.probability) for node in tree.nodes]
