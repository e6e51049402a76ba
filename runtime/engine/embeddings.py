"""Texts as vectors: what the model's last layer leaves of their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from edgedec.models.final_norm import FinalNorm
from edgedec.runtime.sequences.passes import Pass, Passes
from edgedec.runtime.sequences.prefill import PREFILL_CHUNK
from edgedec.runtime.sequences.rows import Float32
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree

Pooling = Literal["mean", "last"]


def embed(
    sequence: TokenSequence, tokens: Sequence[int], norm: FinalNorm, pooling: Pooling
) -> Passes[Float32]:
    """Returns the vector of ``tokens``, of length 1; they are committed then.

    Every token's hidden state is wanted, so nothing that the KV cache holds of them is of use.

    Args:
        norm: The norm behind the last layer.
        pooling: The mean of the hidden states behind it, or the last one.

    Shapes: [hidden_size].
    """
    layer = sequence.model.n_layers
    sequence.truncate(0)
    total = np.zeros(len(norm.weights))
    for start in range(0, len(tokens), PREFILL_CHUNK):
        chunk = tokens[start : start + PREFILL_CHUNK]
        rows = yield Pass(sequence, TokenTree.chain(chunk), (), (layer,), with_logits=False)
        states = norm.of(rows.hidden[layer]).astype(np.float64)
        sequence.commit(range(len(chunk)))
        total = states[-1] if pooling == "last" else total + states.sum(axis=0)
    length = max(float(np.linalg.norm(total)), np.finfo(np.float64).tiny)
    unit: Float32 = (total / length).astype(np.float32)
    return unit
