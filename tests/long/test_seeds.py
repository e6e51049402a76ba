"""Sampled text with and without speculation: the same seed gives the same tokens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import edgedec
from edgedec import EngineOptions
from edgedec.runtime.config import GenerationConfig, SamplingConfig
from edgedec.runtime.drafting.stats import DraftCounts
from edgedec.runtime.engine.engine import Engine

from .conftest import CONTEXT, Note
from .prompts import encoded_prompts

pytestmark = pytest.mark.long

N_TOKENS = 64
N_PROMPTS = 8
SAMPLINGS = [
    SamplingConfig(temperature=0.3),
    SamplingConfig(temperature=0.8),
    SamplingConfig(temperature=1.0),
    SamplingConfig(temperature=1.5),
    SamplingConfig(temperature=0.8, top_k=40),
    SamplingConfig(temperature=1.0, top_p=0.9),
    SamplingConfig(temperature=1.2, min_p=0.05),
    SamplingConfig(temperature=0.9, top_k=100, top_p=0.95, min_p=0.01),
    SamplingConfig(temperature=0.7, repetition_penalty=1.15),
    SamplingConfig(temperature=0.8, presence_penalty=0.6, frequency_penalty=0.4),
    SamplingConfig(temperature=0.9, top_p=0.95, repetition_penalty=1.1, frequency_penalty=0.2),
    SamplingConfig(temperature=0.8, logit_bias={28: -2.0, 30: float("-inf"), 260: 1.5}),
    SamplingConfig(repetition_penalty=1.2),
    SamplingConfig(frequency_penalty=0.5, presence_penalty=0.2),
]
METHODS = ["auto", "lookup+recycling+trigram", "draft", "draft+lookup"]


def request(sampling: SamplingConfig, seed: int, method: str) -> GenerationConfig:
    return GenerationConfig(
        max_new_tokens=N_TOKENS, ignore_eos=True, sampling=sampling, seed=seed, method=method
    )


def name_of(sampling: SamplingConfig) -> str:
    """Returns what of ``sampling`` is not as it is by default."""
    default = vars(SamplingConfig())
    changed = {key: value for key, value in vars(sampling).items() if value != default[key]}
    return ",".join(f"{key}={value}" for key, value in changed.items() if key != "logit_bias") + (
        ",logit_bias" if sampling.logit_bias else ""
    )


@pytest.fixture(scope="module")
def engine(smollm2_pair: Path) -> Iterator[Engine]:
    options = EngineOptions(context=CONTEXT, prefix_cache_mb=0)
    with edgedec.load(smollm2_pair, options) as engine:
        yield engine


@pytest.fixture(scope="module")
def prompts(engine: Engine) -> list[list[int]]:
    found = encoded_prompts(engine)
    return found[3 :: len(found) // N_PROMPTS][:N_PROMPTS]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=name_of)
def test_seed_gives_the_same_text(
    engine: Engine, prompts: list[list[int]], sampling: SamplingConfig, note: Note
) -> None:
    counts = {method: DraftCounts() for method in METHODS}
    texts = set[tuple[int, ...]]()
    for seed, ids in enumerate(prompts, start=100):
        plain = engine.generate(ids, request(sampling, seed, "plain"))
        texts.add(plain.token_ids)
        for method in METHODS:
            result = engine.generate(ids, request(sampling, seed, method))
            assert result.token_ids == plain.token_ids, (seed, method)
            assert not result.stats.failed_drafters
            counts[method] = DraftCounts.total([counts[method], result.stats.total_drafted])
    assert len(texts) == len(prompts)
    assert all(counts[method].n_accepted > 0 for method in METHODS)
    rates = ", ".join(f"{method} {found.acceptance_rate:.0%}" for method, found in counts.items())
    note(f"{len(prompts)} prompts and seeds, {len(prompts) * N_TOKENS} tokens; accepted: {rates}")


def test_other_seeds_give_other_texts(engine: Engine, prompts: list[list[int]]) -> None:
    sampling = SamplingConfig(temperature=1.0)
    texts = {
        engine.generate(prompts[0], request(sampling, seed, "auto")).token_ids for seed in range(5)
    }
    assert len(texts) == 5
