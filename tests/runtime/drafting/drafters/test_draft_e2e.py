"""A real model drafting: for itself, and across tokenizers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import edgedec
from edgedec import EngineOptions
from edgedec.runtime.config import GenerationConfig, SamplingConfig
from edgedec.runtime.decoding.planner import FixedPlanner
from edgedec.runtime.decoding.speculative import Speculative
from edgedec.runtime.decoding.strategy import DecodeState
from edgedec.runtime.drafting.draft_tree import DraftTree
from edgedec.runtime.drafting.drafter import Budget, DraftContext, DraftPrompt
from edgedec.runtime.drafting.drafters.draft.draft_model import DraftModelDrafter
from edgedec.runtime.sampling.noise import Noise
from edgedec.runtime.sequences.passes import run_passes
from edgedec.runtime.sequences.prefill import ExactPrefiller, PrefillRequest

from .watched_session import propose

pytestmark = pytest.mark.e2e

PROMPT = "The three primary colours are"
WIDE = Budget(n_nodes=6, depth=4, n_step_nodes=2)


@pytest.fixture(scope="module")
def engine(smollm2_bundle: Path) -> edgedec.Engine:
    """SmolLM2 with itself as the draft model, opened another time."""
    return edgedec.load(smollm2_bundle, EngineOptions(context=256, draft=smollm2_bundle))


@pytest.fixture
def drafter(engine: edgedec.Engine) -> Iterator[DraftModelDrafter]:
    """A drafter that computes all texts itself."""
    assert engine.draft is not None
    role = engine.draft.open()
    yield DraftModelDrafter(replace(role, recall=lambda sequence, text: None))
    role.close()


def decode(engine: edgedec.Engine, strategy: Speculative, config: GenerationConfig) -> DecodeState:
    """Returns the state after the output of ``config``."""
    tokens = engine.encode(PROMPT)
    with engine.borrowed(tokens) as sequence:
        state = DecodeState.start(sequence, tokens, config)
        wanted = PrefillRequest(state.stats)
        prefilled = run_passes(ExactPrefiller().prefill(sequence, tokens, wanted))
        assert prefilled is not None
        state.rows, noise = prefilled.rows, Noise(config.seed)
        decoding = strategy.begin(state, prefilled.hidden)
        while state.n_left > 0:
            for token in run_passes(decoding.step(noise)).tokens[: state.n_left]:
                state.append(token)
        decoding.end()
    return state


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_model_that_drafts_for_itself_is_always_right(
    engine: edgedec.Engine, drafter: DraftModelDrafter, temperature: float
) -> None:
    sampling = SamplingConfig(temperature=temperature)
    config = GenerationConfig(max_new_tokens=24, ignore_eos=True, sampling=sampling, seed=3)
    plain = engine.generate(PROMPT, config)
    budget = Budget(n_nodes=3, depth=3, min_value=0.0)
    state = decode(engine, Speculative(FixedPlanner([], budget, model=drafter)), config)
    assert tuple(state.tokens[state.n_prompt :]) == plain.token_ids
    if temperature == 0:  # the leading child is always accepted
        first = state.stats.drafted["draft"][0]
        assert first.n_accepted >= state.stats.n_passes - 1
    kept = drafter.role.pool.latest.tokens
    assert list(kept) == state.tokens[: len(kept)]
    assert len(kept) > state.n_prompt


def test_levels_and_kept_rows_give_what_fresh_passes_would(
    engine: edgedec.Engine, drafter: DraftModelDrafter
) -> None:
    """Bit for bit: the probabilities of nodes, round after round, with rejected drafts between."""
    text = engine.encode(PROMPT)
    drafting = drafter.begin(DraftPrompt(text))
    for wrong in (False, True, False, False, True):
        context = DraftContext(list(text), 3, SamplingConfig(), Noise(0))
        tree = propose(drafting, context, WIDE)
        drafter.role.pool.forget()
        fresh = DraftModelDrafter(drafter.role).begin(DraftPrompt(text))
        assert fresh.passes.sequence.n_tokens == 0
        assert nodes_of(propose(fresh, context, WIDE)) == nodes_of(tree)
        fresh.end(text)
        deepest = max(range(len(tree)), key=lambda i: tree.nodes[i].depth)
        text += [tree.nodes[i].token for i in tree.path(deepest)][: 1 if wrong else None]
        text.append(5 if wrong else 28)


def nodes_of(tree: DraftTree) -> list[tuple[int, int, float]]:
    return [(node.token, node.parent, node.probability) for node in tree.nodes]
