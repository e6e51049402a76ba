"""Layers that keep a state instead of keys and values: what they are, and what they compute.

A token's *row* is what its layer's projections put into the recurrence. A causal convolution over
the rows of a token and its latest ancestors comes first. Everything that later tokens need follows
from rows, so rows, and states that stand for all rows before them, are what is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from edgedec.models.errors import ConfigError

Array = npt.NDArray[Any]  # of the computing type, float32 or float64
RecurrenceKind = Literal["none", "short_conv", "mamba2", "delta"]
GatedNorm = Literal["last", "first", "none"]

MAX_CONV_SIZE = 64
"""Rows that a convolution may span; published models have 3 or 4."""

MIN_KEY_SQUARE = 1e-6
"""What the delta rule adds to the sum of squares of a key, before it divides by the root."""

_LANES = 16  # values of a head that the kernels' states hold side by side


@dataclass(frozen=True)
class Recurrence:
    """What recurrent layers of a model compute.

    kind: ``short_conv``: ``c * conv(b * x)`` of three projections, LFM2's. ``mamba2``: Mamba-2.
        ``delta``: the gated delta rule of Gated DeltaNet.
    conv_size: rows that the convolution spans, a token's own the last. n_channels: of a short one.
    has_conv_bias: it adds a bias. has_bias: the projections do.
    n_heads, head_size: of values. n_groups, state_size: heads of keys, and of queries, and their
        size. The state of a head is a matrix [state_size, head_size].
    is_tiled: head h of values has the keys of head h modulo n_groups; else heads that share keys
        lie together.
    output_scale: what comes out is multiplied by.
    gated_norm: of Mamba-2: where the RMS norm of what comes out stands, behind its gate
        (``last``) or before it, or that there is none. It is over each of n_groups by itself.

    Raises:
        ConfigError: These do not go together.
    """

    kind: RecurrenceKind = "none"
    conv_size: int = 1
    n_channels: int = 0
    has_conv_bias: bool = False
    has_bias: bool = False
    n_heads: int = 0
    head_size: int = 0
    n_groups: int = 0
    state_size: int = 0
    output_scale: float = 1.0
    is_tiled: bool = False
    gated_norm: GatedNorm = "last"

    def __post_init__(self) -> None:
        if self.kind not in get_args(RecurrenceKind):
            known = ", ".join(get_args(RecurrenceKind))
            raise ConfigError(f"recurrence is {self.kind!r}, expected one of {known}")
        if self.gated_norm not in get_args(GatedNorm):
            known = ", ".join(get_args(GatedNorm))
            raise ConfigError(f"gated_norm is {self.gated_norm!r}, expected one of {known}")
        least = 2 if self.has_states else 1
        if not least <= self.conv_size <= MAX_CONV_SIZE:
            raise ConfigError(
                f"conv_size of the recurrence is {self.conv_size}, expected {least} to "
                f"{MAX_CONV_SIZE}"
            )
        sizes = {"n_channels": self.n_channels}
        if self.has_states:
            names = ("n_heads", "head_size", "n_groups", "state_size")
            sizes = {name: getattr(self, name) for name in names}
        for name, size in sizes.items():
            if self.kind != "none" and not 0 < size < 2**31:
                raise ConfigError(f"{name} of the recurrence is {size}, expected 1 or more")
        if self.has_states and self.n_heads % self.n_groups:
            raise ConfigError(
                f"{self.n_heads} heads of the recurrence, expected a multiple of n_groups "
                f"{self.n_groups}"
            )

    @property
    def has_states(self) -> bool:
        """Whether there is a state beside the latest rows."""
        return self.kind in ("mamba2", "delta")

    @property
    def value_size(self) -> int:
        """Numbers of all values of a token, and of what comes out."""
        return self.n_heads * self.head_size if self.has_states else self.n_channels

    @property
    def key_size(self) -> int:
        """Numbers of all keys of a token."""
        return self.n_groups * self.state_size

    @property
    def conv_channels(self) -> int:
        """Channels of the convolution."""
        return self.value_size + 2 * self.key_size

    @property
    def n_gates(self) -> int:
        """Gates of a token: of its step and, for the delta rule, its strength before that."""
        return {"mamba2": 1, "delta": 2}.get(self.kind, 0) * self.n_heads

    @property
    def row_size(self) -> int:
        """Numbers of a token's row: channels, then gates."""
        return self.conv_channels + self.n_gates

    @property
    def look_back(self) -> int:
        """Rows before its own that a token's convolution reads."""
        return self.conv_size - 1

    @property
    def state_sizes(self) -> tuple[int, int, int]:
        """Sizes of a layer's state, a matrix for each head."""
        return self.n_heads, self.state_size, self.head_size

    @property
    def n_state_floats(self) -> int:
        """Numbers of a layer's state as the kernels keep it: sixteen values side by side."""
        width = -(-self.head_size // _LANES) * _LANES
        return self.n_heads * width * self.state_size

    @property
    def state_part_size(self) -> int:
        """Numbers of the state that a snapshot keeps with each of the latest rows."""
        return -(-self.n_state_floats // max(1, self.look_back))

    @property
    def kept_size(self) -> int:
        """Numbers that a snapshot keeps with each of the latest rows, the row's included."""
        return self.row_size + self.state_part_size


def conv_taps(parents: Sequence[int], n_past: int, conv_size: int) -> npt.NDArray[np.int64]:
    """Returns which rows each new token's convolution reads, its own the last.

    parents: of each new token, -1 for the last of ``n_past`` rows before them.

    Shapes: [T, conv_size] int64, indices into those rows and then the new ones; -1 where the text
        has not begun.
    """
    taps = np.full((len(parents), conv_size), -1, np.int64)
    for i, parent in enumerate(parents):
        taps[i, -1] = n_past + i
        if parent >= 0:
            taps[i, :-1] = taps[parent, 1:]
        else:
            before = np.arange(n_past - conv_size + 1, n_past)
            taps[i, :-1] = np.maximum(before, -1)
    return taps


class StateWalk(NamedTuple):
    """In which order a portable graph computes states, each from that of its token's parent.

    Steps are committed tokens behind the state that the pass reads, then all nodes of the tree.

    Shapes: taps [S, conv_size] int64, of each step as `conv_taps` counts them from the first row
        that the pass reads; trunk [B] int64, the steps of a chain, behind which the state is
        returned; levels [2, D, V] int64, the steps that each level of the tree behind it computes
        at once, and where in the level before their parents are, 0 for the trunk; order [T] int64,
        where the output of each row of the pass is among those of trunk and levels.
    """

    taps: npt.NDArray[np.int64]
    trunk: npt.NDArray[np.int64]
    levels: npt.NDArray[np.int64]
    order: npt.NDArray[np.int64]


def state_walk(
    parents: Sequence[int], n_known: int, n_replayed: int, is_kept: bool, conv_size: int
) -> StateWalk:
    """Returns the walk of a pass whose rows before the state that it reads are ``conv_size`` - 1.

    parents: of each node, -1 for the last committed token; ``n_known`` belong to earlier passes.
    n_replayed: committed tokens behind the state. is_kept: the nodes are a chain, and the state
        behind it is returned; otherwise that behind the replayed tokens.
    """
    every = [*range(-1, n_replayed - 1), *(n_replayed + parent for parent in parents)]
    taps = conv_taps(every, conv_size - 1, conv_size)
    if is_kept:
        steps = np.arange(len(every))
        nothing = np.zeros((2, 0, 1), np.int64)
        return StateWalk(taps, steps, nothing, steps[n_replayed + n_known :])
    levels: list[list[int]] = []
    depths: list[int] = []
    for node, parent in enumerate(parents):
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
        if depths[node] == len(levels):
            levels.append([])
        levels[depths[node]].append(node)
    width = max(map(len, levels), default=1)
    table = np.zeros((2, len(levels), width), np.int64)
    order = np.zeros(len(parents), np.int64)
    for depth, level in enumerate(levels):
        above = [parents[node] for node in level]
        table[0, depth, : len(level)] = np.add(level, n_replayed)
        table[1, depth, : len(level)] = [levels[depth - 1].index(p) if p >= 0 else 0 for p in above]
        order[level] = n_replayed + depth * width + np.arange(len(level))
    return StateWalk(taps, np.arange(n_replayed), table, order[n_known:])


def convolved(rows: Array, taps: npt.NDArray[np.int64], weights: Mapping[str, Array]) -> Array:
    """Returns the causal convolution of each new token's channels.

    Shapes: rows [P + T, C]; taps as of `conv_taps`; weights ``conv.weight`` [C, 1, K] and perhaps
        ``conv.bias`` [C]; result [T, C].
    """
    read = np.where((taps >= 0)[:, :, None], rows[taps], 0)
    kernel = weights["conv.weight"][:, 0].T  # [K, C]
    result: Array = np.sum(read * kernel, axis=1)
    return result + weights["conv.bias"] if "conv.bias" in weights else result


def state_outputs(
    recurrence: Recurrence,
    rows: Array,
    parents: Sequence[int],
    weights: Mapping[str, Array],
) -> Array:
    """Returns what a state-space layer makes of the last tokens of ``rows``, one for each parent.

    Everything is computed from the beginning of the text, a node's state from its parent's.

    Shapes: rows [P + T, row_size]; weights ``conv.weight`` [C, 1, K], perhaps ``conv.bias`` [C],
        ``a_log``, ``dt_bias`` and perhaps ``skip`` [n_heads]; result [T, n_heads * head_size].

    Source: transformers ``modeling_granitemoehybrid.py``, ``modeling_qwen3_next.py``
    ``torch_recurrent_gated_delta_rule``.
    """
    n_past = len(rows) - len(parents)
    every = [*range(-1, n_past - 1), *(n_past + parent for parent in parents)]
    channels = convolved(
        rows[:, : recurrence.conv_channels], conv_taps(every, 0, recurrence.conv_size), weights
    )
    channels = channels / (1 + np.exp(-channels))
    values, keys, queries = _heads(recurrence, channels)
    decay, strength = _gates(recurrence, rows[:, recurrence.conv_channels :], weights)
    states: dict[int, Array] = {}
    nothing = np.zeros(
        (recurrence.n_heads, recurrence.state_size, recurrence.head_size), rows.dtype
    )
    out = np.zeros_like(values)
    for i, parent in enumerate(every):
        state = states[parent] if parent >= 0 else nothing
        state = state * decay[i, :, None, None]
        known = np.einsum("hn,hnp->hp", keys[i], state) if recurrence.kind == "delta" else 0
        change = (values[i] - known) * strength[i, :, None]
        states[i] = state + keys[i, :, :, None] * change[:, None]
        out[i] = np.einsum("hn,hnp->hp", queries[i], states[i])
        if i < n_past:
            states.pop(parent, None)  # the text goes on from its latest token alone
    if "skip" in weights:
        out += weights["skip"][:, None] * values
    result: Array = out[n_past:].reshape(len(parents), -1)
    return result


def _heads(recurrence: Recurrence, channels: Array) -> tuple[Array, Array, Array]:
    """Returns values [n, H, P], keys and queries [n, H, N] of each head."""
    n, v, k = len(channels), recurrence.value_size, recurrence.key_size
    cuts = [k, 2 * k] if recurrence.kind == "delta" else [v, v + k]
    parts = np.split(channels, cuts, axis=1)
    queries, keys, values = parts if recurrence.kind == "delta" else parts[::-1]
    shape, each = (
        (n, recurrence.n_groups, recurrence.state_size),
        recurrence.n_heads // recurrence.n_groups,
    )
    keys, queries = (x.reshape(shape) for x in (keys, queries))
    if recurrence.kind == "delta":
        keys, queries = (
            x / np.sqrt((x * x).sum(axis=-1, keepdims=True) + MIN_KEY_SQUARE)
            for x in (keys, queries)
        )
        queries = queries * recurrence.state_size**-0.5
    values = values.reshape(n, recurrence.n_heads, recurrence.head_size)
    if recurrence.is_tiled:
        return values, np.tile(keys, (1, each, 1)), np.tile(queries, (1, each, 1))
    return values, np.repeat(keys, each, axis=1), np.repeat(queries, each, axis=1)


def _gates(
    recurrence: Recurrence, gates: Array, weights: Mapping[str, Array]
) -> tuple[Array, Array]:
    """Returns by how much a state fades and how strongly a value is written, each [n, H]."""
    step = np.logaddexp(0, gates[:, -recurrence.n_heads :] + weights["dt_bias"]).astype(gates.dtype)
    decay = np.exp(-np.exp(weights["a_log"]) * step)
    if recurrence.kind == "delta":
        return decay, 1 / (1 + np.exp(-gates[:, : recurrence.n_heads]))
    return decay, step
