"""The model in NumPy: slow, obvious, and the truth for every other implementation.

Matrices are streamed from the weight source in row chunks, so memory stays small whatever the
model's size. Nothing is approximated: the KV cache keeps the computing type.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from edgedec.models.blocks import (
    GATE_SLOPE,
    MIN_SQUARE,
    SUPPRESSED,
    Ops,
    mixer_prefix,
    source_kv,
)
from edgedec.models.distance_bias import DISTANCE_BIAS, distance_buckets
from edgedec.models.encoder_weights import EncoderWeights
from edgedec.models.families import find_family, read_source, weight_shapes
from edgedec.models.recurrence import conv_taps, convolved, state_outputs
from edgedec.models.rope import Rope, query_growth, rope_of, rope_tables
from edgedec.models.weights import WeightSource, float_rows

Array: TypeAlias = npt.NDArray[Any]  # of the computing type, float32 or float64
CHUNK_ROWS = 256
"""Rows of a matrix read at a time: few enough that dequantising stays in the CPU's caches."""

ExpertRows: TypeAlias = tuple[int, npt.NDArray[np.intp], Array]
"""An expert, the rows that chose it, and what it counts for in each."""


LayerPart = Literal["kv", "row"]


@dataclass(frozen=True)
class ReferenceRows:
    """What one pass returns.

    Shapes:
        logits: [n_rows asked for, V].
        hidden: by layer, [T, hidden_size]; layer 0 is the embeddings.
    """

    logits: Array
    hidden: dict[int, Array] = field(default_factory=dict)


class ReferenceModel:
    """A model and what its layers keep: of every token keys and values, the recurrence's row.

    Rows of a pass stay until `commit` or `truncate` drops them.
    """

    def __init__(
        self, source: WeightSource, dtype: type[np.float32] | type[np.float64] = np.float32
    ) -> None:
        self._source = source
        self._dtype = dtype
        config = source.config
        row = (np.zeros((0, config.recurrence.row_size), dtype),)
        self._kept: dict[tuple[int, LayerPart], tuple[Array, ...]] = {}
        for i in config.kv_layers:
            sizes = config.n_kv_heads, config.head_size_of(i)
            self._kept[i, "kv"] = (np.zeros((0, *sizes), dtype),) * 2
        for i in config.recurrent_layers:
            self._kept[i, "row"] = row
        self._n_committed = 0
        self.n_source = 0

    def read_source(self, tokens: Sequence[int]) -> None:
        """Has the encoder read a source of these ids; its rows are the first committed ones."""
        assert not self._n_committed
        encoder, chain = EncoderWeights(self._source), range(-1, len(tokens) - 1)
        inner = ReferenceModel(encoder, self._dtype)
        of_encoder = ReferenceOps(inner, encoder, np.asarray(tokens), chain, [], self._dtype)
        read = read_source(of_encoder, encoder.config)
        ops = ReferenceOps(self, self._source, np.asarray(tokens), chain, [], self._dtype)
        config = self._source.config
        for layer in range(config.n_layers):
            sizes = -1, config.n_kv_heads, config.head_size_of(layer)
            self.append(layer, "kv", *(rows.reshape(sizes) for rows in source_kv(ops, read, layer)))
        self.n_source = self._n_committed = len(tokens)

    @property
    def n_tokens(self) -> int:
        """Tokens of the committed prefix."""
        return self._n_committed

    def forward(
        self,
        tokens: Sequence[int],
        parents: Sequence[int] | None = None,
        logit_rows: Sequence[int] | None = None,
        layer_gates: Sequence[bool] | None = None,
    ) -> ReferenceRows:
        """Returns logits and hidden states of ``tokens`` after the committed prefix.

        Args:
            tokens: one id per row.
            parents: index of each row's parent within the pass, -1 for the end of the prefix; a
                chain when None. Rows attend to the prefix, their ancestors and themselves; those
                of a bidirectional model to all rows.
            logit_rows: rows whose logits are wanted; all when None.
            layer_gates: sub-layers that take part, as for `decoder`. Such a pass cannot be
                committed.
        """
        self.truncate(self._n_committed)
        n = len(tokens)
        parents = range(-1, n - 1) if parents is None else parents
        rows = list(range(n) if logit_rows is None else logit_rows)
        ops = ReferenceOps(self, self._source, np.asarray(tokens), parents, rows, self._dtype)
        config = self._source.config
        logits = find_family(config.family).recipe(ops, config, layer_gates)
        return ReferenceRows(logits, ops.hidden_states)

    def largest_kv(self) -> float:
        """Returns the largest key or value, without its sign, of what is kept; 0 of none."""
        rows = [np.abs(part).max() for kept in self._kept.values() for part in kept if part.size]
        return float(max(rows, default=0.0))

    def commit(self, path: Sequence[int] | int) -> None:
        """Keeps the rows ``path`` of the last pass (or its first ``path`` rows) as the prefix."""
        path = range(path) if isinstance(path, int) else path
        kept = [*range(self._n_committed), *(self._n_committed + row for row in path)]
        self._keep(kept)
        self._n_committed = len(kept)

    def truncate(self, n_tokens: int) -> None:
        """Drops everything after the first ``n_tokens`` tokens."""
        assert self.n_source <= n_tokens <= self._n_committed
        self._keep(slice(n_tokens))
        self._n_committed = n_tokens

    def _keep(self, tokens: list[int] | slice) -> None:
        for place, kept in self._kept.items():
            self._kept[place] = tuple(rows[tokens] for rows in kept)

    def append(self, layer: int, part: LayerPart, *new: Array) -> tuple[Array, ...]:
        """Returns all rows that a part of ``layer`` keeps after appending those of this pass.

        Shapes: keys and values [rows, n_kv_heads, head_size], or [rows, row_size] of a recurrence.
        """
        place = layer, part
        both = zip(self._kept[place], new, strict=True)
        self._kept[place] = tuple(np.concatenate([old, added]) for old, added in both)
        return self._kept[place]

    def kept(self, layer: int) -> tuple[Array, ...]:
        """Returns all keys and values that ``layer`` keeps."""
        return self._kept[layer, "kv"]


class ReferenceOps(Ops[Array]):
    """`Ops` over arrays [T, features], for one pass."""

    def __init__(
        self,
        model: ReferenceModel,
        source: WeightSource,
        tokens: npt.NDArray[np.integer],
        parents: Sequence[int],
        logit_rows: list[int],
        dtype: type[np.float32] | type[np.float64],
    ) -> None:
        self._model = model
        self._source = source
        self._config = source.config
        self._shapes = weight_shapes(source.config)
        self._tokens = tokens
        self._logit_rows = logit_rows
        self._dtype = dtype
        self._parents = parents
        self._mask, depths = tree_mask(parents, model.n_tokens)
        self._mask[:, : model.n_source] = False
        if self._config.stack != "decoder":
            self._mask[:] = True
        self._positions = model.n_tokens + depths
        self._ropes: dict[Rope, tuple[Array, Array]] = {}
        self._distance_bias: Array | None = None
        self.hidden_states: dict[int, Array] = {}

    def embed(self, weight: str) -> Array:
        """Returns the embedding rows of the pass's tokens [T, hidden_size]."""
        rows = [float_rows(self._source, weight, int(i), int(i) + 1) for i in self._tokens]
        return np.concatenate(rows).astype(self._dtype)

    def embed_layers(self, weight: str) -> Array:
        """Returns the rows of the pass's tokens [T, n_layers * width], side by side."""
        n, (n_rows, _) = self._config.n_layers, self._shapes[weight]
        known = (int(i) if (i + 1) * n <= n_rows else 0 for i in self._tokens)
        rows = [float_rows(self._source, weight, n * i, n * (i + 1)).ravel() for i in known]
        return np.stack(rows).astype(self._dtype)

    def rms_norm(self, x: Array, weight: str) -> Array:
        """Returns `x / sqrt(mean(x^2) + eps) * weight`."""
        normed: Array = self._normed(x) * self._source.vector(weight).astype(self._dtype)
        return normed

    def _normed(self, x: Array) -> Array:
        normed: Array = x * (1 / np.sqrt(_mean_square(x) + self._dtype(self._config.rms_norm_eps)))
        return normed

    def unit_norm(self, x: Array, size: int) -> Array:
        """Returns `rms_norm` of each run of ``size`` channels, without weights."""
        return self._normed(x.reshape(len(x), -1, size)).reshape(x.shape)

    def head_norm(self, x: Array, weight: str) -> Array:
        """Returns `rms_norm` of each head of ``x`` by itself."""
        heads = x.reshape(len(x), -1, self._shapes[weight][0])
        return self.rms_norm(heads, weight).reshape(x.shape)

    def linear(self, x: Array, weight: str, bias: str | None = None) -> Array:
        """Returns `x @ W.T + b`, the matrix read a chunk of rows at a time."""
        n = self._shapes[weight][0]
        parts = []
        for start in range(0, n, CHUNK_ROWS):
            rows = float_rows(self._source, weight, start, min(start + CHUNK_ROWS, n))
            parts.append(x @ rows.astype(self._dtype, copy=False).T)
        self._source.release()
        y = np.concatenate(parts, axis=-1)
        return y if bias is None else y + self._source.vector(bias).astype(self._dtype)

    def attention(self, q: Array, k: Array, v: Array, layer: int) -> Array:
        """Returns the attended heads [T, n_heads * head_size] after appending k and v."""
        return self._attention(q, k, v, layer, np.full(self._config.n_heads, -np.inf, self._dtype))

    def sink_attention(self, q: Array, k: Array, v: Array, layer: int, sinks: str) -> Array:
        """Returns as `attention`, a score of each head among those of its softmax."""
        return self._attention(q, k, v, layer, self._source.vector(sinks).astype(self._dtype))

    def shared_attention(self, q: Array, layer: int) -> Array:
        """Returns the attended heads, over what another layer has appended."""
        source = self._config.layer(layer).kv_layer
        assert source is not None
        sinks = np.full(self._config.n_heads, -np.inf, self._dtype)
        return self._attended(q, self._model.kept(source), layer, sinks)

    def _attention(self, q: Array, k: Array, v: Array, layer: int, sinks: Array) -> Array:
        c = self._config
        sizes = -1, c.n_kv_heads, c.head_size_of(layer)
        rotated = self._rotate(k.reshape(sizes), rope_of(c.layer(layer)))
        kv = self._model.append(layer, "kv", rotated, v.reshape(sizes))
        return self._attended(q, kv, layer, sinks)

    def _attended(self, q: Array, kv: tuple[Array, ...], layer: int, sinks: Array) -> Array:
        c, (keys, values) = self._config, kv
        by_head = q.reshape(-1, c.n_heads, c.head_size_of(layer))
        queries = self._rotate(by_head, rope_of(c.layer(layer)))
        group, mask = c.n_heads // c.n_kv_heads, self._within(c.layer(layer).window)
        biases = self._biases()
        heads = [
            self._attend(
                queries[:, h], keys[:, h // group], values[:, h // group], mask, sink, biases[h]
            )
            for h, sink in enumerate(sinks)
        ]
        return np.concatenate(heads, axis=-1)

    def source_attention(self, q: Array, layer: int) -> Array:
        """Returns the attended heads, over what the layer has of the source."""
        c, n = self._config, self._model.n_source
        keys, values = (rows[:n] for rows in self._model.kept(layer))
        queries = q.reshape(-1, c.n_heads, c.head_size_of(layer))
        mask, sink = np.ones((len(queries), n), np.bool_), self._dtype(-np.inf)
        group, nothing = c.n_heads // c.n_kv_heads, self._dtype(0)
        heads = [
            self._attend(
                queries[:, h], keys[:, h // group], values[:, h // group], mask, sink, nothing
            )
            for h in range(c.n_heads)
        ]
        return np.concatenate(heads, axis=-1)

    def _within(self, window: int) -> npt.NDArray[np.bool_]:
        """Returns what each row sees of what a window leaves."""
        if not window:
            return self._mask
        if self._config.is_encoder or self._config.is_embedder:
            seen: npt.NDArray[np.bool_] = np.abs(self._offsets()) < window
            return seen
        # A row's own tokens lie in order, so those in the window are the last it sees.
        return self._mask & (self._places() <= window)

    def _places(self) -> npt.NDArray[np.int64]:
        """Returns of what each row sees the place of each, counted from the end."""
        places = np.cumsum(self._mask[:, ::-1], axis=1, dtype=np.int64)
        return places[:, ::-1]

    def _offsets(self) -> npt.NDArray[np.int64]:
        """Returns how far behind each row of an encoder each other one comes."""
        places = np.arange(len(self._mask))
        return places - places[:, None]

    def _biases(self) -> Array | list[Array]:
        """Returns what is added to the scores of each head. Shapes: [n_heads, T, P + T] or [1]."""
        c, farthest = self._config, self._config.max_distance
        if not c.n_distance_buckets:
            return [np.zeros(1, self._dtype)] * c.n_heads
        if self._distance_bias is None:
            behind = self._offsets() + farthest if c.is_encoder else self._places() - 1
            table = self._source.vector(DISTANCE_BIAS).astype(self._dtype).reshape(-1, c.n_heads)
            by_distance = table[distance_buckets(c)]
            biases = by_distance[np.clip(behind, 0, len(by_distance) - 1)]
            self._distance_bias = np.moveaxis(biases, -1, 0)
        return self._distance_bias

    def recurrence(self, parts: Sequence[Array], layer: int) -> Array:
        """Returns what the recurrence makes of ``parts`` after appending the tokens' rows."""
        recurrence, weights = self._config.recurrence, self._vectors(mixer_prefix(layer))
        if recurrence.has_states:
            (rows,) = self._model.append(layer, "row", np.concatenate(parts, axis=-1))
            return state_outputs(recurrence, rows, self._parents, weights)
        b, c, x = parts
        (rows,) = self._model.append(layer, "row", b * x)
        taps = conv_taps(self._parents, self._model.n_tokens, recurrence.conv_size)
        y: Array = c * convolved(rows, taps, weights)
        return y

    def _vectors(self, prefix: str) -> dict[str, Array]:
        """Returns what lies below ``prefix`` and is no matrix, by the rest of its name."""
        return {
            name.removeprefix(f"{prefix}."): self._source.vector(name).astype(self._dtype)
            for name, shape in self._shapes.items()
            if name.startswith(f"{prefix}.") and len(shape) != 2
        }

    def rotate(self, x: Array, n_heads: int) -> Array:
        """Returns the heads ``x`` rotated by the model's own base."""
        heads = x.reshape(len(x), n_heads, self._config.head_size)
        return self._rotate(heads, Rope(self._config.rope_theta, True)).reshape(x.shape)

    def grow_queries(self, q: Array) -> Array:
        """Returns queries times what they grow to at their positions."""
        grown: Array = q * query_growth(self._config, self._positions)[:, None].astype(self._dtype)
        return grown

    def sigmoid_gate(self, x: Array, gate: Array) -> Array:
        """Returns ``x`` times the sigmoid of ``gate``."""
        gated: Array = x / (1 + np.exp(-gate))
        return gated

    def gate(self, gate: Array, up: Array) -> Array:
        """Returns `activation(gate) * up`."""
        if self._config.activation == "gelu_tanh":
            inner = self._dtype(np.sqrt(2 / np.pi)) * (gate + self._dtype(0.044715) * gate**3)
            gated: Array = self._dtype(0.5) * gate * (1 + np.tanh(inner)) * up
        elif self._config.activation == "gelu":
            gated = self._dtype(0.5) * gate * (1 + _erf(gate / self._dtype(np.sqrt(2)))) * up
        else:
            gated = gate / (1 + np.exp(-gate)) * up
        return gated

    def embed_positions(self, weight: str, first: int) -> Array:
        """Returns the rows of a table for the positions of the pass's tokens."""
        rows = [
            float_rows(self._source, weight, first + int(i), first + int(i) + 1)
            for i in self._positions
        ]
        return np.concatenate(rows).astype(self._dtype)

    def layer_norm(self, x: Array, weight: str, bias: str | None = None) -> Array:
        """Returns the layer norm of each row."""
        centred = x - x.mean(axis=-1, keepdims=True)
        size = np.sqrt(_mean_square(centred) + self._dtype(self._config.rms_norm_eps))
        normed = self.scale_channels(centred / size, weight)
        return normed if bias is None else self.shift_channels(normed, bias)

    def shift_channels(self, x: Array, weight: str) -> Array:
        """Returns ``x`` plus a vector."""
        shifted: Array = x + self._source.vector(weight).astype(self._dtype)
        return shifted

    def activate(self, x: Array) -> Array:
        """Returns the activation of each number."""
        return self.relu(x) if self._config.activation == "relu" else self.gate(x, np.ones_like(x))

    def squared_relu(self, x: Array) -> Array:
        """Returns the square of what is above 0."""
        squares: Array = np.square(np.maximum(x, 0))
        return squares

    def relu(self, x: Array) -> Array:
        """Returns each number, 0 where it is negative."""
        return np.maximum(x, 0)

    def largest(self, x: Array, sparsity: float) -> Array:
        """Returns what each number exceeds mean and standard deviations of its row by."""
        deviations = self._dtype(NormalDist().inv_cdf(sparsity))
        limit = x.mean(axis=-1, keepdims=True) + x.std(axis=-1, keepdims=True) * deviations
        above: Array = np.maximum(x - limit, 0)
        return above

    def parts(self, x: Array, n: int) -> Sequence[Array]:
        """Returns ``x`` as ``n`` parts of the same width."""
        return np.split(x, n, axis=-1)

    def match_size(self, x: Array, like: Array) -> Array:
        """Returns ``x`` with the root mean square of ``like``."""
        least = self._dtype(MIN_SQUARE)
        size = np.sqrt(_mean_square(like)) / np.sqrt(np.maximum(_mean_square(x), least))
        scaled: Array = x * size
        return scaled

    def tanh(self, x: Array) -> Array:
        """Returns the hyperbolic tangent of each number."""
        return np.tanh(x)

    def mix(self, bases: Sequence[Array], xs: Sequence[Array], weights: Array) -> Sequence[Array]:
        """Returns each of ``bases`` plus its weighted sum of ``xs``."""
        by_base = weights.reshape(len(weights), len(bases), len(xs))
        sums = np.einsum("tji,itk->jtk", by_base, np.stack(xs))
        return [base + added for base, added in zip(bases, sums, strict=True)]

    def scale_channels(self, x: Array, weight: str) -> Array:
        """Returns ``x`` times a vector."""
        scaled: Array = x * self._source.vector(weight).astype(self._dtype)
        return scaled

    def experts(self, x: Array, router: Array, prefix: str) -> Array:
        """Returns what the chosen experts make of ``x`` [T, hidden_size], weighted."""
        chosen = self._route(router)
        inputs = [x[rows] for _, rows, _ in chosen]
        gates = self.expert_products(chosen, inputs, f"{prefix}.gate_proj.weight")
        ups = self.expert_products(chosen, inputs, f"{prefix}.up_proj.weight")
        gated = [self.gate(gate, up) for gate, up in zip(gates, ups, strict=True)]
        return self._down(chosen, gated, prefix, np.zeros_like(x))

    def clamped_experts(self, x: Array, router: Array, prefix: str) -> Array:
        """Returns as `experts`, of MLPs with biases and a bounded activation."""
        chosen, limit = self._route(router), self._dtype(self._config.expert_limit)
        inputs = [x[rows] for _, rows, _ in chosen]
        gates = self.expert_products(chosen, inputs, f"{prefix}.gate_proj.weight")
        ups = self.expert_products(chosen, inputs, f"{prefix}.up_proj.weight")
        gate_bias, up_bias, down_bias = (
            self._expert_bias(f"{prefix}.{part}_proj.bias") for part in ("gate", "up", "down")
        )
        gated, y = [], np.zeros_like(x)
        for gate, up, (expert, rows, weights) in zip(gates, ups, chosen, strict=True):
            bounded = np.minimum(gate + gate_bias[expert], limit)
            sigmoid = 1 / (1 + np.exp(-self._dtype(GATE_SLOPE) * bounded))
            gated.append(bounded * sigmoid * (np.clip(up + up_bias[expert], -limit, limit) + 1))
            y[rows] += weights[:, None] * down_bias[expert]
        return self._down(chosen, gated, prefix, y)

    def _expert_bias(self, name: str) -> Array:
        """Returns the bias of every expert [n_experts, n]."""
        return self._source.vector(name).astype(self._dtype).reshape(self._config.n_experts, -1)

    def _down(self, chosen: list[ExpertRows], gated: list[Array], prefix: str, y: Array) -> Array:
        """Adds to ``y`` what the last matrices make of ``gated``, weighted; returns it."""
        pairs = zip(gated, chosen, strict=True)
        weighted = [part * weights[:, None] for part, (*_, weights) in pairs]
        parts = self.expert_products(chosen, weighted, f"{prefix}.down_proj.weight")
        for part, (_, rows, _) in zip(parts, chosen, strict=True):
            y[rows] += part
        return y

    def expert_products(
        self, chosen: list[ExpertRows], inputs: list[Array], weight: str
    ) -> list[Array]:
        """Returns ``inputs @ W.T`` of each of ``chosen`` with its own part of ``weight``."""
        n = self._shapes[weight][0] // self._config.n_experts
        parts = []
        for (expert, *_), rows in zip(chosen, inputs, strict=True):
            matrix = float_rows(self._source, weight, expert * n, (expert + 1) * n)
            parts.append(rows @ matrix.astype(self._dtype, copy=False).T)
        self._source.release()
        return parts

    def _route(self, router: Array) -> list[ExpertRows]:
        """Returns the experts that rows choose; of equal logits the first is chosen."""
        c = self._config
        scores = np.exp(router - router.max(axis=-1, keepdims=True))
        scores /= scores.sum(axis=-1, keepdims=True)
        ids = np.argsort(-scores, axis=-1, kind="stable")[:, : c.n_experts_used]
        weights = np.take_along_axis(scores, ids, axis=-1)
        if c.is_routing_normed:
            weights /= weights.sum(axis=-1, keepdims=True)
        outputs = []
        for expert in np.unique(ids):
            rows, ranks = np.nonzero(ids == expert)
            outputs.append((int(expert), rows, weights[rows, ranks]))
        return outputs

    def add(self, a: Array, b: Array) -> Array:
        """Returns the sum."""
        return a + b

    def scale(self, x: Array, factor: float) -> Array:
        """Returns ``x`` times ``factor``."""
        scaled: Array = x * self._dtype(factor)
        return scaled

    def soft_cap(self, x: Array, bound: float) -> Array:
        """Returns `bound * tanh(x / bound)`."""
        capped: Array = self._dtype(bound) * np.tanh(x / self._dtype(bound))
        return capped

    def suppress(self, logits: Array) -> Array:
        """Returns logits, lower for the suppressed tokens."""
        lowered = logits.copy()
        lowered[:, list(self._config.suppressed_tokens)] += self._dtype(SUPPRESSED)
        return lowered

    def select_rows(self, x: Array) -> Array:
        """Returns the rows whose logits were asked for."""
        return x[self._logit_rows]

    def hidden(self, x: Array, layer: int) -> None:
        """Notes the residual stream [T, hidden_size] after ``layer`` layers."""
        self.hidden_states[layer] = x

    def _rotate(self, x: Array, rope: Rope) -> Array:
        """Rotates channel i with channel i + head_size / 2."""
        cos, sin = self._rope(rope)
        low, high = np.split(x, 2, axis=-1)
        return np.concatenate((low * cos - high * sin, high * cos + low * sin), axis=-1)

    def _rope(self, rope: Rope) -> tuple[Array, Array]:
        """Returns cosine and sine at this pass's positions [T, 1, head_size / 2]."""
        if rope not in self._ropes:
            tables = rope_tables(self._config, int(self._positions.max(initial=0)) + 1, rope)
            cos, sin = (t[self._positions, None, :].astype(self._dtype) for t in tables)
            self._ropes[rope] = cos, sin
        return self._ropes[rope]

    def _attend(
        self,
        q: Array,
        k: Array,
        v: Array,
        mask: npt.NDArray[np.bool_],
        sink: Any,
        bias: Any,
    ) -> Array:
        scale = self._config.attention_scale or q.shape[-1] ** -0.5
        scores = q @ k.T * self._dtype(scale)
        if cap := self._dtype(self._config.attention_softcap):
            scores = cap * np.tanh(scores / cap)
        scores = np.where(mask, scores + bias, self._dtype(-np.inf))
        top = np.maximum(scores.max(axis=-1, keepdims=True), sink)
        weights = np.exp(scores - top)
        attended: Array = weights @ v / (weights.sum(axis=-1, keepdims=True) + np.exp(sink - top))
        return attended


def _erf(x: Array) -> Array:
    """Returns the error function of each number."""
    values: Array = np.vectorize(math.erf, otypes=[x.dtype])(x)
    return values


def _mean_square(x: Array) -> Array:
    mean: Array = np.mean(x * x, axis=-1, keepdims=True)
    return mean


def tree_mask(
    parents: Sequence[int], n_past: int
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
    """Returns which rows may be attended to, and each row's depth below the prefix.

    Shapes: mask [T, n_past + T] bool; depths [T] int64, 0 for children of the prefix.
    """
    n = len(parents)
    mask = np.zeros((n, n_past + n), np.bool_)
    depths = np.zeros(n, np.int64)
    mask[:, :n_past] = True
    for row, parent in enumerate(parents):
        assert -1 <= parent < row
        if parent >= 0:
            mask[row] = mask[parent]
            depths[row] = depths[parent] + 1
        mask[row, n_past + row] = True
    return mask, depths
