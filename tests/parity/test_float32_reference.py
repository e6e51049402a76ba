"""Whole models against transformers running the same weights, dequantised, in float32."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from float32_reference import (
    PROMPTS,
    Agreement,
    agreement,
    greedy,
    load_reference,
    pooled,
    reference_nll,
    session_nll,
)
from tokenizers import Tokenizer

from edgedec import load
from edgedec.export.config import ExportConfig
from edgedec.export.pipeline import export
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.sequences.sequence import TokenSequence

N_NEW = 64
N_CHARACTERS = 20_000
MAX_GAP = 0.35
"""Largest logit by which the reference may prefer another token: what 8-bit activations cost."""
MAX_PERPLEXITY_ERROR = 0.005
WIKITEXT = Path(__file__).parents[3] / "shared/data/wikitext2_valid.txt"


@dataclass
class Case:
    """One model in both implementations.

    min_identical: prompts of 20 whose first 32 tokens llama.cpp 0c1e570 (AVX-512, 1 thread) gets
        identical to float32 on the same file and prompts.
    """

    engine: Engine
    session: TokenSequence
    reference: Any
    tokenizer: Tokenizer
    min_identical: int


FILES = {
    "SmolLM2-135M-Instruct.Q4_1.gguf": 11,
    "Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf": 13,
    "Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf": 12,
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        marks = [(), pytest.mark.pair, pytest.mark.pair]
        params = [pytest.param(f, marks=m) for f, m in zip(FILES, marks, strict=True)]
        metafunc.parametrize("case", params, indirect=True, scope="module")


@pytest.fixture(scope="module")
def case(
    request: pytest.FixtureRequest, find_model: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Case]:
    gguf = find_model(request.param)
    bundle = tmp_path_factory.mktemp("parity") / "model.edgedec"
    export(ExportConfig(source=str(gguf), destination=bundle))
    with load(bundle) as engine:
        tokenizer = Tokenizer.from_file(str(bundle / "tokenizer.json"))
        session = engine.new_sequence()
        yield Case(engine, session, load_reference(gguf), tokenizer, FILES[request.param])


@pytest.mark.slow
@pytest.mark.parity
def test_greedy_tokens_agree(case: Case, record_property: Any) -> None:
    prompts = [case.tokenizer.encode(text).ids for text in PROMPTS]
    answers = [greedy(case.session, prompt, N_NEW) for prompt in prompts]
    result: Agreement = agreement(case.reference, prompts, answers)
    record_property("largest_gap", result.largest_gap)
    record_property("n_identical_32", result.n_identical(32))
    print(f"largest gap {result.largest_gap:.3f}, identical for 32: {result.n_identical(32)}")
    assert result.largest_gap <= MAX_GAP
    assert result.n_identical(32) >= case.min_identical


@pytest.mark.parity
@pytest.mark.slow
def test_perplexity_agrees(case: Case) -> None:
    if not WIKITEXT.exists():
        pytest.skip(f"no text at {WIKITEXT}")
    ids = case.tokenizer.encode(WIKITEXT.read_text()[:N_CHARACTERS]).ids
    windows = [ids[i : i + 1024] for i in range(0, len(ids), 1024)]
    ours = sum(session_nll(case.session, window) for window in windows)
    theirs = sum(reference_nll(case.reference, window) for window in windows)
    n_predicted = sum(len(window) - 1 for window in windows)
    ratio = float(2.718281828459045 ** ((ours - theirs) / n_predicted))
    print(f"perplexity over the float32 reference's: {ratio:.5f} ({n_predicted} tokens)")
    assert abs(ratio - 1) <= MAX_PERPLEXITY_ERROR


TEXTS = ["How do I bake bread?", "What is the recipe for a loaf?", "The rocket left the orbit."]


@pytest.mark.parity
@pytest.mark.slow
def test_vectors_agree(case: Case) -> None:
    long = "The quick brown fox jumps over the lazy dog. " * 20  # several passes
    together = case.engine.embed(TEXTS)
    for pooling in ("mean", "last"):
        for text in (TEXTS[0], long):
            ours = case.engine.embed([text], pooling)[0]
            # Activations of 8 bits turn the vector a little.
            assert ours @ pooled(case.reference, case.engine.encode(text), pooling) > 0.999
    for text, row in zip(TEXTS, together, strict=True):
        assert np.array_equal(row, case.engine.embed([text])[0])
    alike = together @ together.T
    assert alike[0, 1] > alike[0, 2]
