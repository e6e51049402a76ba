"""Texts as vectors: what the model's last layer leaves of their tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import numpy as np

from edgedec.models.errors import ConfigError, SessionError
from edgedec.models.fields import shown
from edgedec.models.final_norm import FinalNorm
from edgedec.runtime.config.checks import check_callable
from edgedec.runtime.engine.lending import Lending
from edgedec.runtime.sequences.passes import Pass, Passes, while_idle
from edgedec.runtime.sequences.prefill import PREFILL_CHUNK, check_fits
from edgedec.runtime.sequences.rows import Float32
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree
from edgedec.runtime.text.prompt import Prompt

Pooling = Literal["mean", "last"]


def embed(
    lending: Lending,
    prompts: Sequence[Prompt],
    pooling: Pooling,
    is_over: Callable[[], bool],
) -> Float32:
    """Returns the vectors of ``prompts``; see `Engine.embed`."""
    check_callable("is_over", is_over)
    texts = [lending.encode(prompt) for prompt in prompts]
    model, read_norm = lending.loaded.model, lending.loaded.final_norm
    if model.n_layers not in model.capabilities.hidden:
        raise SessionError("this bundle's graph returns no hidden states, which vectors need")
    if read_norm is None:
        raise SessionError("this bundle lacks the final norm's weights: export the model again")
    if pooling not in ("mean", "last"):
        raise ConfigError(f"pooling is {shown(pooling)}, expected mean or last")
    for text in texts:  # a bad one stops all before any
        check_fits(text, lending.loaded.context, model.vocab_size)
    norm = read_norm()

    def vector(text: Sequence[int]) -> Float32 | None:
        def steps(sequence: TokenSequence) -> Passes[Float32 | None]:
            return while_idle(_embed(sequence, text, norm, pooling), is_over)

        return lending.run(text, steps, is_recalled=False)  # every token's state is wanted

    with ThreadPoolExecutor(max(1, min(len(texts), model.capabilities.n_sequences))) as pool:
        found = [row for row in pool.map(vector, texts) if row is not None]
    is_whole = found and len(found) == len(texts)
    return np.stack(found) if is_whole else np.zeros((0, 0), np.float32)


def _embed(
    sequence: TokenSequence, tokens: Sequence[int], norm: FinalNorm, pooling: Pooling
) -> Passes[Float32]:
    """Returns the vector of ``tokens``, of length 1. Shapes: [hidden_size]."""
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
