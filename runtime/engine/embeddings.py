"""Texts as vectors: what the model's last layer leaves of their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from edgedec.runtime.sequences.passes import Pass, Passes
from edgedec.runtime.sequences.prefill import PREFILL_CHUNK
from edgedec.runtime.sequences.rows import Float32
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree

Float64 = npt.NDArray[np.float64]
Pooling = Literal["mean", "last"]


def embed(
    sequence: TokenSequence, tokens: Sequence[int], layer: int, pooling: Pooling
) -> Passes[Float32]:
    """Returns the vector of ``tokens``, of length 1; they are committed then.

    Every token's hidden state is wanted, so nothing that the KV cache holds of them is of use. A
    hidden state counts by its direction alone, as behind the norm in front of the LM head.

    Args:
        layer: After how many layers the hidden states are taken.

    Shapes: [hidden_size].
    """
    sequence.truncate(0)
    total = np.zeros(0)
    for start in range(0, len(tokens), PREFILL_CHUNK):
        chunk = tokens[start : start + PREFILL_CHUNK]
        rows = yield Pass(sequence, TokenTree.chain(chunk), (), (layer,), with_logits=False)
        states = _unit(rows.hidden[layer].astype(np.float64))
        sequence.commit(range(len(chunk)))
        if pooling == "last":
            total = states[-1]
        else:
            total = states.sum(axis=0) + (total if len(total) else 0.0)
    return _unit(total).astype(np.float32)


def _unit(vectors: Float64) -> Float64:
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    found: Float64 = vectors / np.maximum(lengths, np.finfo(np.float64).tiny)
    return found
