"""Rotary tables against transformers' own rotary embedding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgedec.models.errors import CheckpointError
from edgedec.models.families import find_family
from edgedec.models.fields import Fields
from edgedec.models.rope import rope_tables

torch = pytest.importorskip("torch", reason="needs the dev extra")
transformers = pytest.importorskip("transformers", reason="needs the dev extra")

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}


@pytest.mark.parity
@pytest.mark.parametrize(
    "scaling",
    [None, {"rope_type": "linear", "factor": 4.0}, LLAMA3],
    ids=["none", "linear", "llama3"],
)
@pytest.mark.parametrize(("theta", "head_size"), [(10000.0, 8), (500000.0, 128), (1e6, 64)])
def test_tables_equal_transformers(
    scaling: dict[str, Any] | None, theta: float, head_size: int
) -> None:
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = transformers.LlamaConfig(
        vocab_size=8,
        hidden_size=2 * head_size,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=1024,
        rope_theta=theta,
        rope_scaling=scaling,
    )
    positions = torch.arange(300)[None]
    with torch.no_grad():
        cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1, 1, 1), positions)
    ours = find_family("llama").read_hf(Fields(config.to_dict(), "config.json", CheckpointError))
    got_cos, got_sin = rope_tables(ours, 300)
    # Their angles are float32: at position 300 they are right to about 300 * 2**-24.
    for got, expected in ((got_cos, cos), (got_sin, sin)):
        assert got.shape == (300, head_size // 2)
        halves = expected[0].numpy()
        np.testing.assert_allclose(got, halves[:, : head_size // 2], atol=1e-4)
        np.testing.assert_array_equal(halves[:, : head_size // 2], halves[:, head_size // 2 :])
