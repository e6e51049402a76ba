"""How likely a text is, against the logits of its tokens one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec import load
from edgedec.models.errors import ConfigError, SessionError
from edgedec.runtime.search.scores import logprobs_after
from edgedec.runtime.sequences.passes import run_passes
from edgedec.runtime.sequences.token_tree import TokenTree

from ..conftest import Row, ToySession


@pytest.mark.slow
@pytest.mark.parity
def test_scores_are_those_of_the_logits(smollm2_bundle: Path) -> None:
    with load(smollm2_bundle) as engine:
        ids = engine.encode("The quick brown fox jumps over the lazy dog. " * 5)
        engine.generate(ids[:20])  # what it left in the KV cache does not matter
        found = engine.score(ids, 3)
        assert [one.token for one in found] == ids[1:]
        with engine.borrowed(()) as sequence:
            sequence.truncate(0)
            for i, one in enumerate(found):
                row = sequence.forward(TokenTree.chain([ids[i]]), [0]).logits[0].astype(np.float64)
                sequence.commit([0])
                exact = row - np.log(np.sum(np.exp(row - row.max()))) - row.max()
                # The sum over the vocabulary is rounded to float32, 2e-6 where it is below 32.
                assert one.logprob == pytest.approx(exact[ids[i + 1]], abs=4e-6)
                assert [token for token, _ in one.top] == list(np.argsort(-exact)[:3])
        assert engine.score(ids[:1]) == []


def test_what_cannot_be_scored(smollm2_bundle: Path) -> None:
    with load(smollm2_bundle) as engine:
        assert engine.score("The quick brown fox", is_over=lambda: True) == []
        with pytest.raises(ConfigError, match="n_top is 21"):
            engine.score("a b", 21)
        with pytest.raises(SessionError, match="at least one"):
            engine.score([])
        with pytest.raises(SessionError, match="expected 0 to"):
            engine.score([1, -1])


V = 30
PROMPT = [3, 5, 11, 2]
CONTINUATIONS = [[4], [4, 9, 1], [4, 9, 7, 7], [12], [8] * 70, [8, 8], [4, 9, 1]]


@pytest.fixture(scope="module")
def llama() -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=V, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
            num_attention_heads=4,
        )
    ).eval()  # fmt: skip


def likelihood_of(model: Any, prompt: list[int], continuation: list[int]) -> float:
    """Returns what transformers says of a continuation, computed by itself."""
    import torch

    with torch.no_grad():
        logits = model(torch.tensor([prompt + continuation])).logits[0].double()
    log_probs = torch.log_softmax(logits[len(prompt) - 1 : -1], -1)
    return float(log_probs[range(len(continuation)), continuation].sum())


@pytest.mark.parity
@pytest.mark.parametrize("has_trees", [True, False])
@pytest.mark.parametrize("context", [4096, 75])
def test_continuations_are_as_likely_as_transformers_says(
    llama: Any, has_trees: bool, context: int
) -> None:
    import torch

    def row(prefix: Sequence[int]) -> Row:
        with torch.no_grad():
            found: Row = llama(torch.tensor([list(prefix)])).logits[0, -1].numpy()
        return found

    sequence = ToySession(V, context, row)
    sequence.toy.capabilities = replace(sequence.toy.capabilities, trees=has_trees)
    found = run_passes(logprobs_after(sequence, PROMPT, CONTINUATIONS))
    assert [sum(token.logprob for token in tokens) for tokens in found] == pytest.approx(
        [likelihood_of(llama, PROMPT, one) for one in CONTINUATIONS], abs=1e-4
    )
    assert list(sequence.tokens) == PROMPT[:-1]
    # The prompt is one pass; without trees each continuation that is not a beginning takes one.
    assert sequence.n_passes <= (4 if has_trees else 7)


def test_continuations_of_a_real_model(smollm2_bundle: Path) -> None:
    with load(smollm2_bundle) as engine:
        prompt = engine.encode("The capital of France is")
        ends = [engine.tokenizer.encode(text) for text in (" Paris, of course", " Rome", " Paris.")]
        found = engine.score_continuations(prompt, ends)
        for end, log_prob in zip(ends, found, strict=True):
            alone = engine.score(prompt + end)[len(prompt) - 1 :]
            assert log_prob == sum(one.logprob for one in alone)
        assert found[2] > found[1]
        with pytest.raises(ConfigError, match="a continuation is empty"):
            engine.score_continuations(prompt, [[]])
        with pytest.raises(SessionError, match="shorten"):
            engine.score_continuations(prompt, [[1] * engine.context])
        with pytest.raises(SessionError, match="expected 0 to"):
            engine.score_continuations(prompt, [[10**6]])
