"""Texts as vectors: what the model's last layer leaves of their tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import get_args

import numpy as np
import numpy.typing as npt

from edgedec.models.errors import ConfigError, SessionError
from edgedec.models.fields import shown
from edgedec.models.final_norm import FinalNorm
from edgedec.models.pooling import DenseLayer, EmbeddingConfig, Pooling
from edgedec.runtime.config.checks import check_callable
from edgedec.runtime.engine.lending import Lending
from edgedec.runtime.engine.loaded import LoadedModel
from edgedec.runtime.sequences.passes import Pass, Passes, while_idle
from edgedec.runtime.sequences.prefill import PREFILL_CHUNK, check_fits
from edgedec.runtime.sequences.rows import Float32
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree
from edgedec.runtime.text.prompt import Prompt

__all__ = ["EmbeddingOptions", "Pooling", "embed", "embedding_tokens"]

_Vector = npt.NDArray[np.float64]
_Steps = Callable[[TokenSequence, Sequence[int]], Passes[_Vector]]


@dataclass(frozen=True)
class EmbeddingOptions:
    """How texts become vectors.

    pooling: The mean of all tokens' hidden states, that of the first (``cls``) or that of the last
        token. None for what the model was trained with, the mean where it does not say.
    prompt_name: Which of the model's prompts stands before plain text; its default one when None.
    most_tokens: Longer texts are cut to so many tokens; 0 for the context. None refuses those that
        do not fit the context.
    n_dimensions: Numbers of a vector that are kept, the first; all when None.
    """

    pooling: Pooling | None = None
    prompt_name: str | None = None
    most_tokens: int | None = None
    n_dimensions: int | None = None

    def __post_init__(self) -> None:
        if self.pooling is not None and self.pooling not in get_args(Pooling):
            known = " or ".join(get_args(Pooling))
            raise ConfigError(f"pooling is {shown(self.pooling)}, expected {known}")
        for name, least in (("most_tokens", 0), ("n_dimensions", 1)):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < least):
                raise ConfigError(f"{name} is {shown(value)}, expected {least} or more")


def embedding_tokens(
    loaded: LoadedModel, prompts: Sequence[Prompt], options: EmbeddingOptions
) -> list[list[int]]:
    """Returns the ids of ``prompts`` as the model was trained to read them; see `Engine.embed`.

    Raises:
        SessionError: A prompt is empty or too long.
        ConfigError: The model has no such prompt.
    """
    config = loaded.embedding or EmbeddingConfig("mean")
    before, cut = config.prompt(options.prompt_name), options.most_tokens
    encoder = loaded.encoder if cut is None else loaded.encoder.without_limit()
    most = min(cut or loaded.context, loaded.context)

    def ids(prompt: Prompt) -> list[int]:
        closing: tuple[int, ...] = ()
        if isinstance(prompt, str):
            closing, prompt = config.closing_token_ids, before + prompt
        is_empty = closing and not prompt
        token_ids = list(encoder.opening) if is_empty else encoder.encode(prompt)
        if cut is not None:
            token_ids = token_ids[: max(0, most - len(closing))]
        return [*token_ids, *closing][: most if cut is not None else None]

    return [ids(prompt) for prompt in prompts]


def embed(
    lending: Lending,
    prompts: Sequence[Prompt],
    options: EmbeddingOptions,
    is_over: Callable[[], bool],
) -> Float32:
    """Returns the vectors of ``prompts``; see `Engine.embed`."""
    check_callable("is_over", is_over)
    loaded = lending.loaded
    texts = embedding_tokens(loaded, prompts, options)
    for text in texts:  # a bad one stops all before any
        check_fits(text, loaded.context, loaded.model.n_token_ids)
    steps, dense = _steps_of(loaded, options), loaded.dense() if loaded.dense else ()
    size = _kept_size(loaded, options.n_dimensions)

    def vector(text: Sequence[int]) -> Float32 | None:
        def of_text(sequence: TokenSequence) -> Passes[_Vector | None]:
            return while_idle(steps(sequence, text), is_over)

        row = lending.run(text, of_text, is_recalled=False)  # every token's state is wanted
        return None if row is None else _finished(row, dense, size)

    with ThreadPoolExecutor(max(1, min(len(texts), _n_together(loaded)))) as pool:
        rows = [row for row in pool.map(vector, texts) if row is not None]
    is_whole = rows and len(rows) == len(texts)
    return np.stack(rows) if is_whole else np.zeros((0, 0), np.float32)


def _n_together(loaded: LoadedModel) -> int:
    return loaded.model.capabilities.n_sequences


def _kept_size(loaded: LoadedModel, n_dimensions: int | None) -> int | None:
    """Returns how many numbers of a vector are kept, None for all."""
    if n_dimensions is None:
        return None
    if loaded.embedding is None:
        raise ConfigError("n_dimensions is given, but this model's vectors have one length")
    size = loaded.embedding.size(loaded.hidden_size)
    if n_dimensions > size:
        raise ConfigError(
            f"n_dimensions is {n_dimensions}, expected at most the {size} of this model's vectors"
        )
    return n_dimensions


def _steps_of(loaded: LoadedModel, options: EmbeddingOptions) -> _Steps:
    """Returns what computes the pooled hidden states of a text, one row of float64."""
    default: Pooling = "mean" if loaded.embedding is None else loaded.embedding.pooling
    pooling = options.pooling or default
    if loaded.is_embedder:
        return partial(_read_whole, pooling=pooling)
    model, read_norm = loaded.model, loaded.final_norm
    if model.n_layers not in model.capabilities.hidden:
        raise SessionError("this bundle's graph returns no hidden states, which vectors need")
    if read_norm is None:
        raise SessionError("this bundle lacks the final norm's weights: export the model again")
    return partial(_read_chunks, norm=read_norm(), pooling=pooling)


def _read_whole(
    sequence: TokenSequence, tokens: Sequence[int], pooling: Pooling
) -> Passes[_Vector]:
    """Computes a text in one pass of an embedding model. Shapes: [hidden_size]."""
    sequence.truncate(0)
    last = len(tokens) - 1
    logit_rows = {"mean": range(len(tokens)), "cls": (0,), "last": (last,)}[pooling]
    rows = yield Pass(sequence, TokenTree.block(tokens, range(len(tokens))), logit_rows)
    pooled: _Vector = rows.logits.astype(np.float64).mean(axis=0)
    return pooled


def _read_chunks(
    sequence: TokenSequence, tokens: Sequence[int], norm: FinalNorm, pooling: Pooling
) -> Passes[_Vector]:
    """Computes a text as models that write do. Shapes: [hidden_size]."""
    layer = sequence.model.n_layers
    sequence.truncate(0)
    total, first = np.zeros(len(norm.weights)), np.zeros(0)
    for start in range(0, len(tokens), PREFILL_CHUNK):
        chunk = tokens[start : start + PREFILL_CHUNK]
        rows = yield Pass(sequence, TokenTree.chain(chunk), (), (layer,), with_logits=False)
        states = norm.of(rows.hidden[layer]).astype(np.float64)
        sequence.commit(range(len(chunk)))
        first = first if start else states[0]
        total = states[-1] if pooling == "last" else total + states.sum(axis=0)
    return first if pooling == "cls" else total / (1 if pooling == "last" else len(tokens))


def _finished(pooled: _Vector, dense: Sequence[DenseLayer], size: int | None) -> Float32:
    """Returns the vector of length 1 that a pooled hidden state becomes."""
    for layer in dense:
        pooled = layer.of(pooled)
    kept = pooled[:size]
    length = max(float(np.linalg.norm(kept)), np.finfo(np.float64).tiny)
    unit: Float32 = (kept / length).astype(np.float32)
    return unit
