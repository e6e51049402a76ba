"""The target model drafts for itself with sub-layers left out: same text, nothing kept of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import edgedec
from edgedec.labs.drafters.skip.skip_drafter import SkipDrafter
from edgedec.models.errors import BundleError
from edgedec.models.manifest import MANIFEST_NAME, SKIP_KEY, read_manifest
from edgedec.runtime.config import GenerationConfig, SamplingConfig
from edgedec.runtime.decoding.auto_planner import AutoPlanner
from edgedec.runtime.decoding.cost_book import CostBook
from edgedec.runtime.decoding.cost_table import CostTable
from edgedec.runtime.decoding.planner import FixedPlanner
from edgedec.runtime.decoding.speculative import Speculative
from edgedec.runtime.decoding.strategy import DecodeState
from edgedec.runtime.drafting.draft_cost import Promise
from edgedec.runtime.drafting.drafter import Budget
from edgedec.runtime.drafting.skip_set import SkipSet
from edgedec.runtime.sampling.noise import Noise
from edgedec.runtime.sequences.passes import Pass, Passes, run_passes
from edgedec.runtime.sequences.prefill import ExactPrefiller, PrefillRequest
from edgedec.runtime.sequences.rows import Rows
from edgedec.runtime.sequences.sequence import TokenSequence

from ..runtime.conftest import ToyModel, ToySession, prefix_of

V = 24
PROMPT = [3, 1, 4, 1, 5]
SKIPPED = SkipSet((1,), 1, V, Promise(cost=0.4, acceptance=0.7))
PAYS = Promise(cost=0.3, acceptance=0.9)
LOSES = Promise(cost=0.8, acceptance=0.5)


class ThinkingLess(ToyModel):
    """A model that is wrong after every fourth text when its MLP is left out."""

    n_gated = 0

    def rows_of(self, wanted: Pass) -> Rows:
        if wanted.layer_gates is None:
            return super().rows_of(wanted)
        assert list(wanted.layer_gates) == [True, False]
        self.n_gated += 1
        rows = super().rows_of(wanted).logits.copy()
        for i, row in enumerate(wanted.logit_rows):
            if sum(prefix_of(wanted, row)) % 4 == 0:
                rows[i] = rows[i][::-1]
        return Rows(rows)


def decoded(
    strategy: Speculative, model: ToyModel, config: GenerationConfig, context: int = 128
) -> DecodeState:
    """Returns what a whole output came to; its KV cache holds all of it but the last token."""
    sequence = ToySession(V, context, model=model)
    state = DecodeState.start(sequence, PROMPT, config)
    run_passes(ExactPrefiller().prefill(sequence, PROMPT[:-1], PrefillRequest(state.stats)))
    decoding, noise = strategy.begin(state, {}), Noise(config.seed or 0)
    while state.n_left > 0:
        for token in run_passes(decoding.step(noise)).tokens:
            state.append(token)
        assert list(sequence.tokens) == list(state.tokens[: sequence.n_tokens])
    decoding.end()
    return state


def fixed() -> Speculative:
    budget = Budget(n_nodes=6, depth=4, n_step_nodes=2)
    return Speculative(FixedPlanner([], budget, model=SkipDrafter(SKIPPED)))


@pytest.mark.parametrize("sampling", [SamplingConfig(), SamplingConfig(temperature=0.9)])
def test_the_text_is_the_whole_models(sampling: SamplingConfig) -> None:
    config = GenerationConfig(max_new_tokens=60, sampling=sampling, seed=5)
    alone = decoded(Speculative(FixedPlanner([], Budget(0, 0))), ThinkingLess(V), config)
    model = ThinkingLess(V)
    state = decoded(fixed(), model, config)
    assert state.tokens == alone.tokens
    assert model.n_gated > 10
    assert state.stats.n_accepted > 10


def test_it_drafts_to_the_end_of_the_context() -> None:
    config = GenerationConfig(max_new_tokens=16 - len(PROMPT), sampling=SamplingConfig())
    state = decoded(fixed(), ThinkingLess(V), config, context=16)
    assert len(state.tokens) == 16
    assert fixed().failures == {}


class FixedCosts(CostBook):
    """A step takes 10 ms, every further row 1 ms."""

    def of(self, role: str, sequence: TokenSequence) -> Passes[CostTable]:
        yield from ()
        return CostTable({m: 9.0 + m for m in (1, 2, 4, 8, 16)})


@pytest.mark.parametrize(("promise", "is_asked"), [(PAYS, True), (LOSES, False)])
def test_auto_asks_it_where_it_promises_to_pay(promise: Promise, is_asked: bool) -> None:
    model, skipped = ThinkingLess(V), SkipSet((1,), 1, V, promise)
    strategy = Speculative(AutoPlanner([], FixedCosts(), {"skip": SkipDrafter(skipped)}))
    decoded(strategy, model, GenerationConfig(max_new_tokens=40, sampling=SamplingConfig()))
    assert (model.n_gated > 0) == is_asked


@pytest.mark.parametrize(
    "found",
    [{}, [], {"off": [], "cost": 0.5, "acceptance": 0.5}, {"off": [1e400], "cost": 1},
     {"off": [9999], "cost": 0.5, "acceptance": 0.5}, {"off": [1], "cost": 0, "acceptance": 0.5}],
)  # fmt: skip
def test_what_is_no_set_is_refused(found: object, smollm2_bundle: Path) -> None:
    config = read_manifest(smollm2_bundle).target.config
    with pytest.raises(BundleError, match="run `edgedec tune --skip` on the bundle again"):
        SkipSet.read({SKIP_KEY: found}, config)


@pytest.fixture(scope="module")
def skipping(smollm2_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2 with three of its sixty sub-layers left out."""
    bundle = tmp_path_factory.mktemp("skip") / "smollm2.edgedec"
    shutil.copytree(smollm2_bundle, bundle, copy_function=shutil.copy)
    fields = json.loads((bundle / MANIFEST_NAME).read_text("utf-8"))
    fields["defaults"][SKIP_KEY] = {"off": [19, 25, 41], "cost": 0.9, "acceptance": 0.7}
    (bundle / MANIFEST_NAME).write_text(json.dumps(fields), "utf-8")
    return bundle


def rows_of(sequence: TokenSequence, n_tokens: int) -> Sequence[np.ndarray]:
    return list(sequence.snapshot(n_tokens).kv_rows.values())


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_smollm2_writes_the_same_and_keeps_the_same_rows(
    skipping: Path, temperature: float
) -> None:
    sampling = SamplingConfig(temperature=temperature)
    prompt, found = "Name the planets of the solar system.", {}
    with edgedec.load(skipping) as engine:
        for method in ("plain", "skip"):
            request = GenerationConfig(max_new_tokens=24, sampling=sampling, seed=11, method=method)
            found[method] = engine.generate(prompt, request)
        assert found["skip"].token_ids == found["plain"].token_ids
        assert found["skip"].stats.n_accepted > 5
        text = [*engine.encode(prompt), *found["skip"].token_ids][:-1]
        with engine.borrowed(text) as sequence:
            n_kept = sequence.n_tokens
            assert list(sequence.tokens) == text[:n_kept]
            kept = rows_of(sequence, n_kept)
        fresh = engine.new_sequence()
        run_passes(ExactPrefiller().prefill(fresh, text, PrefillRequest(found["skip"].stats)))
        assert n_kept >= len(text) - 1
        for ours, theirs in zip(kept, rows_of(fresh, n_kept), strict=True):
            assert ours.tobytes() == theirs.tobytes()
        fresh.close()
