"""Speculative decoding on a real graph: bit for bit plain decoding's tokens, on every ISA."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graph_models import open_graph_model

from edgedec.export import kv_panels
from edgedec.export.to_onnx.emit import emit_portable
from edgedec.export.to_onnx.external_weights import write_weights
from edgedec.export.to_onnx.fuse import fuse
from edgedec.export.to_onnx.messages import save_model
from edgedec.kernels import library
from edgedec.models.config import LayerConfig
from edgedec.models.families import weight_shapes
from edgedec.runtime.config import GenerationConfig, SamplingConfig
from edgedec.runtime.decoding.plain import Plain
from edgedec.runtime.decoding.planner import FixedPlanner
from edgedec.runtime.decoding.speculative import Speculative
from edgedec.runtime.decoding.strategy import DecodeState, DecodingStrategy
from edgedec.runtime.drafting.draft_tree import DraftTree
from edgedec.runtime.drafting.drafter import Budget, DraftContext, DraftPrompt, RoundOutcome
from edgedec.runtime.sampling.noise import Noise
from edgedec.runtime.sequences.passes import run_passes
from edgedec.runtime.sequences.prefill import ExactPrefiller, PrefillRequest
from edgedec.runtime.sequences.sequence import TokenSequence

from ..isas import ISAS, isa_params

pytestmark = pytest.mark.parity

CONTEXT = 96
N_NEW = 60
PROMPT = [3, 80, 7, 7, 41, 0, 12, 66, 5, 19]
SAMPLINGS = [
    SamplingConfig(),  # a random model soon repeats itself
    SamplingConfig(frequency_penalty=1.0),
    SamplingConfig(temperature=0.9),
    SamplingConfig(temperature=0.9, top_k=9, repetition_penalty=1.2),
]


class HalfKnowing:
    """Hides the true continuation in a tree that is wrong in every other place."""

    name = "toy"
    hidden_layers = ()

    def __init__(self, truth: Sequence[int]) -> None:
        self._truth = truth
        self._rng = np.random.default_rng(0)
        self.close = lambda: None

    def begin(self, prompt: DraftPrompt) -> HalfKnowing:
        return self

    def observe(self, context: DraftContext, outcome: RoundOutcome) -> None:
        """Learns nothing."""

    def end(self, tokens: Sequence[int]) -> None:
        """Keeps nothing."""

    def propose(self, context: DraftContext, budget: Budget) -> DraftTree:
        tree, parent = DraftTree(), -1
        for token in self._truth[len(context.tokens) :][: budget.depth]:
            siblings = [token, *self._rng.integers(0, 83, 2).tolist()]
            self._rng.shuffle(siblings)
            nodes = [tree.add(sibling, parent, 0.3, "toy") for sibling in siblings]
            parent = nodes[int(self._rng.integers(0, 3))]
        return tree


@pytest.fixture(scope="module", params=["float16", "int8", "int8 ring", "k5v4 ring"])
def open_tiny(
    request: pytest.FixtureRequest, make_source: Any, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Any]:
    """Returns a maker of fused sessions over a tiny model; the argument is their threads."""
    if not library.has_library():
        pytest.skip("the kernel library is not built")
    kv_format, is_ring = request.param.split()[0], "ring" in request.param
    layers = [LayerConfig(48, 1e4, window=window) for window in (11, 0, 8)] if is_ring else []
    source = make_source(has_qkv_bias=True, layers=layers)
    shapes = weight_shapes(source.config)
    formats = {name: source.format(name) for name, s in shapes.items() if len(s) == 2}
    portable = emit_portable(source.config, ())
    graph = fuse(portable, source.config, formats, kv_format=kv_format)
    folder: Path = tmp_path_factory.mktemp("tiny")
    write_weights(graph, source, folder)
    save_model(graph, folder / "model.onnx")

    def make(threads: int) -> TokenSequence:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kv_panels, "RING_ROOM", 20)  # 32 rows, for texts of twice as many tokens
            model = open_graph_model(folder / "model.onnx", source.config, threads)
        return TokenSequence(model, CONTEXT)

    return make


def emit(
    session: TokenSequence, sampling: SamplingConfig, strategy: DecodingStrategy
) -> DecodeState:
    """Returns the state after N_NEW tokens, the session rewound."""
    config = GenerationConfig(max_new_tokens=N_NEW, seed=11, sampling=sampling)
    state, noise = DecodeState.start(session, PROMPT, config), Noise(config.seed)
    asked = PrefillRequest(state.stats, state.needs_logits)
    prefilled = run_passes(ExactPrefiller().prefill(session, PROMPT, asked))
    assert prefilled is not None
    state.rows = prefilled.rows
    decoding = strategy.begin(state, prefilled.hidden)
    while state.n_left > 0:
        for token in run_passes(decoding.step(noise)).tokens:
            state.append(token)
    decoding.end()
    return state


@pytest.fixture(params=isa_params(ISAS))
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("EDGEDEC_ISA", request.param)
    return str(request.param)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_tokens_equal_plain(
    open_tiny: Callable[..., Any], isa: str, sampling: SamplingConfig, threads: int
) -> None:
    plain = emit(open_tiny(threads), sampling, Plain())
    assert len(set(plain.tokens[len(PROMPT) :])) >= (2 if sampling == SamplingConfig() else 4)
    session = open_tiny(threads)
    strategy = Speculative(FixedPlanner([HalfKnowing(plain.tokens)], Budget(12, 4)))
    state = emit(session, sampling, strategy)
    assert state.tokens == plain.tokens
    assert list(session.tokens) == state.tokens[: session.n_tokens]
    assert 0 < state.stats.n_accepted < state.stats.n_evaluated
    assert state.stats.n_passes < plain.stats.n_passes
