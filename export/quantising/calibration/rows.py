"""A model computed on several texts at once, a sub-layer at a time.

Rows of two kinds pass through it side by side: those that the quantised model computes, and those
of held-out texts once more as the float model computes them. So one pass both quantises a model
and measures what that cost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from edgedec.models.blocks import head_weight
from edgedec.models.reference import CHUNK_ROWS, ExpertRows, LayerPart, ReferenceModel, ReferenceOps
from edgedec.models.weights import WeightSource, float_rows

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]
OnInputs = Callable[[str, Floats], None]
"""Called with the name of a matrix and its inputs [T, K] before it is used. Here and below T counts
the tokens of all texts but those held out: what they are measured on must not adapt to them."""
OnNorm = Callable[[str, Floats], Floats | None]
"""Called with the name of a norm and its outputs [T, K]; may divide the norm by what it returns."""


class _Forgetful(ReferenceModel):
    """A model of one pass: what a layer keeps is of no use behind it."""

    def append(self, layer: int, part: LayerPart, *new: Floats) -> tuple[Floats, ...]:
        """Returns ``new``."""
        return new


class SideBySideOps(ReferenceOps):
    """`Ops` over the rows of several texts: first those of ``quantised``, then of ``original``.

    Rows of a matrix are read from the source that the texts belong to.
    """

    def __init__(
        self,
        original: WeightSource,
        quantised: WeightSource,
        texts: Sequence[Ids],
        held_out: Sequence[Ids],
        on_inputs: OnInputs,
        on_norm: OnNorm = lambda name, outputs: None,
    ) -> None:
        """Takes token ids of each text; those ``held_out`` are computed by both models."""
        both = [(quantised, text) for text in (*texts, *held_out)]
        both += [(original, text) for text in held_out]
        self._texts = [
            ReferenceOps(_Forgetful(source), source, ids, range(-1, len(ids) - 1), [], np.float32)
            for source, ids in both
        ]
        self._cuts = np.cumsum([len(ids) for _, ids in both])[:-1]
        self._n_held = sum(map(len, held_out))
        self._original, self._quantised = original, quantised
        self._on_inputs = on_inputs
        self._on_norm = on_norm
        every = np.concatenate([ids for _, ids in both])
        super().__init__(_Forgetful(original), original, every, (), [], np.float32)

    def embed(self, weight: str) -> Floats:
        """Returns the embeddings of all texts [T, hidden_size]."""
        return np.concatenate([ops.embed(weight) for ops in self._texts])

    def rms_norm(self, x: Floats, weight: str) -> Floats:
        """Returns the norm of all rows, by the weights it has after they were seen."""
        normed = super().rms_norm(x, weight)
        scale = self._on_norm(weight, normed[: len(normed) - 2 * self._n_held])
        result: Floats = np.asarray(normed if scale is None else normed / scale, np.float32)
        return result

    def attention(self, q: Floats, k: Floats, v: Floats, layer: int) -> Floats:
        """Returns the attended heads; a text sees itself alone."""
        return self._by_text(lambda ops, *qkv: ops.attention(*qkv, layer), q, k, v)

    def sink_attention(self, q: Floats, k: Floats, v: Floats, layer: int, sinks: str) -> Floats:
        """Returns as `attention`, a score of each head among those of its softmax."""
        return self._by_text(lambda ops, *qkv: ops.sink_attention(*qkv, layer, sinks), q, k, v)

    def recurrence(self, parts: Sequence[Floats], layer: int) -> Floats:
        """Returns what the recurrence makes of each text, from its own beginning on."""
        return self._by_text(lambda ops, *inputs: ops.recurrence(inputs, layer), *parts)

    def rotate(self, x: Floats, n_heads: int) -> Floats:
        """Returns the heads rotated by their positions in their texts."""
        return self._by_text(lambda ops, x: ops.rotate(x, n_heads), x)

    def grow_queries(self, q: Floats) -> Floats:
        """Returns queries times what they grow to at their positions in their texts."""
        return self._by_text(lambda ops, queries: ops.grow_queries(queries), q)

    def _by_text(self, step: Callable[..., Floats], *inputs: Floats) -> Floats:
        """Returns ``step`` of each text's own `Ops` and rows, one text after the other."""
        cut = zip(*(np.split(x, self._cuts) for x in inputs), strict=True)
        of_texts = zip(self._texts, cut, strict=True)
        return np.concatenate([step(ops, *of_text) for ops, of_text in of_texts])

    def linear(self, x: Floats, weight: str, bias: str | None = None) -> Floats:
        """Returns ``x @ W.T + b``, each row with the matrix of its model.

        The LM head's are those of texts held out alone: nobody reads other logits.
        """
        n_seen = len(x) - 2 * self._n_held
        self._on_inputs(weight, x[:n_seen])
        if weight == head_weight(self._config):
            x = x[n_seen:]
        n_quantised = len(x) - self._n_held
        y = np.concatenate(
            [
                _product(x[:n_quantised], self._quantised, weight, self._shapes[weight][0]),
                _product(x[n_quantised:], self._original, weight, self._shapes[weight][0]),
            ]
        )
        self._original.release()
        return y if bias is None else y + self._source.vector(bias)

    def expert_products(
        self, chosen: list[ExpertRows], inputs: list[Floats], weight: str
    ) -> list[Floats]:
        """Returns ``inputs @ W.T`` of each expert, each row with the matrix of its model.

        What the experts of a matrix read is noted together: they are rounded alike.
        """
        n_quantised = len(self._tokens) - self._n_held
        is_quantised = [rows < n_quantised for _, rows, _ in chosen]
        pairs = list(zip(inputs, is_quantised, strict=True))
        is_seen = [rows < n_quantised - self._n_held for _, rows, _ in chosen]
        read = [x[seen] for x, seen in zip(inputs, is_seen, strict=True)]
        self._on_inputs(weight, np.concatenate(read))
        n = self._shapes[weight][0] // self._config.n_experts
        parts = []
        for (expert, *_), (x, kept) in zip(chosen, pairs, strict=True):
            y = np.empty((len(x), n), np.float32)
            for source, rows in ((self._quantised, kept), (self._original, ~kept)):
                if rows.any():
                    y[rows] = x[rows] @ float_rows(source, weight, expert * n, (expert + 1) * n).T
            parts.append(y)
        self._original.release()
        return parts

    def select_rows(self, x: Floats) -> Floats:
        """Returns ``x``: the LM head is rounded for what all texts have it read."""
        return x


def _product(x: Floats, source: WeightSource, weight: str, n: int) -> Floats:
    y = np.empty((len(x), n), np.float32)
    for start in range(0, n, CHUNK_ROWS):
        stop = min(start + CHUNK_ROWS, n)
        y[:, start:stop] = x @ float_rows(source, weight, start, stop).T
    return y
