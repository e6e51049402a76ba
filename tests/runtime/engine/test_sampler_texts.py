"""The same seed gives the same text plainly, with drafts and beside other texts, by any sampler."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import edgedec
from edgedec import Engine, GenerationConfig, SamplingConfig

pytestmark = pytest.mark.e2e

SAMPLERS = {
    "typical": SamplingConfig(temperature=1.0, typical_p=0.6),
    "sigma": SamplingConfig(temperature=1.4, top_n_sigma=1.2),
    "temperature last": SamplingConfig(temperature=1.5, top_p=0.7, temperature_last=True),
    "xtc": SamplingConfig(temperature=0.8, xtc_probability=0.5, xtc_threshold=0.1),
    "dry": SamplingConfig(temperature=0.7, dry_multiplier=0.8),
    "dry greedy": SamplingConfig(dry_multiplier=0.8),
    "mirostat 1": SamplingConfig(temperature=1.0, mirostat=1, mirostat_tau=3.0),
    "mirostat 2": SamplingConfig(temperature=1.0, mirostat=2, mirostat_tau=3.0),
    "bans greedy": SamplingConfig(no_repeat_ngram_size=2, bad_words_ids=((33, 34), (40,))),
    "bans": SamplingConfig(
        temperature=0.9, no_repeat_ngram_size=3, min_new_tokens=9, begin_suppress_tokens=(35, 36)
    ),
    "momentum": SamplingConfig(momentum=0.2),
    "top-k and min-p": SamplingConfig(temperature=1.3, top_k=20, min_p=0.05),
    "top-p and penalties": SamplingConfig(
        temperature=1.2, top_p=0.8, repetition_penalty=1.2, presence_penalty=0.4
    ),
}
PROMPTS = [
    "One two three. One two three. One two",
    "The capital of France is Paris. The capital of",
    "a b c a b c a b c",
    "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return",
]


@pytest.fixture(scope="module")
def engine(small_bundle: Path) -> Iterator[Engine]:
    with edgedec.load(small_bundle) as loaded:
        yield loaded


@pytest.mark.parametrize("name", SAMPLERS)
def test_texts_are_the_same(engine: Engine, name: str) -> None:
    def config(method: str) -> GenerationConfig:
        return GenerationConfig(
            max_new_tokens=24, sampling=SAMPLERS[name], seed=5, method=method, ignore_eos=True
        )

    plain = [engine.generate(prompt, config("plain")).token_ids for prompt in PROMPTS]
    for method in ("lookup", "auto"):
        drafted = [engine.generate(prompt, config(method)) for prompt in PROMPTS]
        assert [result.token_ids for result in drafted] == plain
    together = engine.generate_many(PROMPTS * 2, config("plain"))
    assert len(together) == 8
    assert [result.token_ids for result in together] == plain * 2
    ordinary = GenerationConfig(
        max_new_tokens=24,
        sampling=SamplingConfig(temperature=SAMPLERS[name].temperature),
        seed=5,
        method="plain",
        ignore_eos=True,
    )
    assert [engine.generate(prompt, ordinary).token_ids for prompt in PROMPTS] != plain
