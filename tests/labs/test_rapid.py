"""A draft model that reads excerpts of a long text: which, and that the text stays the same."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from edgedec.labs.drafters.rapid.excerpts import N_CHUNK, N_CHUNKS, excerpts
from edgedec.labs.drafters.rapid.rapid_drafter import RapidDrafter
from edgedec.models.errors import ConfigError
from edgedec.runtime.config import GenerationConfig, SamplingConfig
from edgedec.runtime.decoding.planner import FixedPlanner
from edgedec.runtime.decoding.speculative import Speculative
from edgedec.runtime.decoding.strategy import DecodeState
from edgedec.runtime.drafting.draft_role import DraftRole
from edgedec.runtime.drafting.drafter import Budget, DraftPrompt
from edgedec.runtime.drafting.drafters.draft.tree_drafting import MAX_MISSING
from edgedec.runtime.sampling.noise import Noise
from edgedec.runtime.sequences.passes import run_passes
from edgedec.runtime.sequences.pool import SequencePool
from edgedec.runtime.sequences.prefill import ExactPrefiller, PrefillRequest
from edgedec.runtime.text.token_map import TokenMap

from ..runtime.conftest import Row, ToyModel, ToySession

V = 500
RNG = np.random.default_rng(3)
TEXT = RNG.zipf(1.3, 1000).clip(max=V - 1).tolist()
BUDGET = Budget(n_nodes=6, depth=4, n_step_nodes=2)


def after_three(prefix: Sequence[int]) -> Row:
    """Returns logits that the last three tokens decide, wherever they stand."""
    return (4 * np.random.default_rng([*prefix[-3:]]).standard_normal(V)).astype(np.float32)


def scores(chunks: list[list[int]], query: list[int]) -> list[float]:
    """Returns BM25 with k1 = 1.5, b = 0.75 and Lucene's idf (Kamphuis et al., 2020, table 1)."""
    counts = [Counter(chunk) for chunk in chunks]
    average = np.mean([len(chunk) for chunk in chunks])
    found = []
    for chunk, n_of in zip(chunks, counts, strict=True):
        total = 0.0
        for token in query:
            n_with = sum(token in one for one in counts)
            idf = np.log(1 + (len(chunks) - n_with + 0.5) / (n_with + 0.5))
            length = 1.5 * (1 - 0.75 + 0.75 * len(chunk) / average)
            total += idf * n_of[token] / (n_of[token] + length)
        found.append(float(total))
    return found


def test_the_library_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("bm25s")
    with caplog.at_level(logging.DEBUG):
        excerpts(TEXT, TEXT[-8:])
    assert not caplog.records


def test_excerpts_are_the_best_chunks_of_bm25_in_the_order_of_the_text() -> None:
    pytest.importorskip("bm25s")
    chunks = [TEXT[i : i + N_CHUNK] for i in range(0, len(TEXT), N_CHUNK)]
    for seed in range(5):
        query = np.random.default_rng(seed).choice(TEXT, 40).tolist()
        best = np.argsort(scores(chunks, query))[-N_CHUNKS:]
        assert excerpts(TEXT, query) == [t for i in sorted(best.tolist()) for t in chunks[i]]
    assert excerpts(TEXT[:20], [1]) == TEXT[:20]


def test_the_draft_model_reads_excerpts_and_then_the_end() -> None:
    pytest.importorskip("bm25s")
    model = ToyModel(V)
    pool = SequencePool(model, 2048)
    drafter = RapidDrafter(DraftRole(pool, TokenMap.same(V, V), V))
    drafting = drafter.begin(DraftPrompt(TEXT))
    expected = [*excerpts(TEXT[:-N_CHUNK], TEXT[-N_CHUNK:]), *TEXT[-N_CHUNK:]]
    assert drafting.unread(TEXT).n_missing == len(expected) == MAX_MISSING
    short = drafter.begin(DraftPrompt(TEXT[:MAX_MISSING]))
    assert short.unread(TEXT[:MAX_MISSING]).n_missing == MAX_MISSING  # which is read as it is
    for one in (drafting, short):
        one.end(TEXT[:MAX_MISSING])


@pytest.mark.parametrize("sampling", [SamplingConfig(), SamplingConfig(temperature=0.9)])
def test_the_text_is_plain_decodings(sampling: SamplingConfig) -> None:
    pytest.importorskip("bm25s")
    config = GenerationConfig(max_new_tokens=40, sampling=sampling, seed=5)
    role = DraftRole(SequencePool(ToyModel(V, after_three), 2048), TokenMap.same(V, V), V)
    rapid = Speculative(FixedPlanner([], BUDGET, model=RapidDrafter(role)))
    found = decoded(rapid, config)
    assert found.tokens == decoded(Speculative(FixedPlanner([], Budget(0, 0))), config).tokens
    assert found.stats.n_accepted > 20
    assert rapid.failures == {}


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bm25s", None)
    with pytest.raises(ConfigError, match=r"method rapid needs bm25s.*retrieval"):
        excerpts(TEXT, TEXT[:3])


def decoded(strategy: Speculative, config: GenerationConfig) -> DecodeState:
    sequence = ToySession(V, 2048, after_three)
    state = DecodeState.start(sequence, TEXT, config)
    run_passes(ExactPrefiller().prefill(sequence, TEXT[:-1], PrefillRequest(state.stats)))
    decoding, noise = strategy.begin(state, {}), Noise(config.seed)
    while state.n_left > 0:
        for token in run_passes(decoding.step(noise)).tokens:
            state.append(token)
    decoding.end()
    return state
