"""Recurrences whose state is a matrix for each head: Mamba-2 and the gated delta rule."""

from __future__ import annotations

import ctypes
from ctypes import c_bool, c_int64, c_void_p
from dataclasses import dataclass

import numpy as np

from edgedec.kernels.checks import Floats, Integers, expect, expect_range, output, pointer
from edgedec.kernels.cpu import PANEL, run


class StateSpaceArgs(ctypes.Structure):
    """``StateSpaceArgs`` of src/kernels.h."""

    _fields_ = (
        ("x", c_void_p),
        ("gates", c_void_p),
        ("parents", c_void_p),
        ("rows", c_int64),
        ("known", c_int64),
        ("past", c_int64),
        ("base", c_int64),
        ("is_delta", c_bool),
        ("is_tiled", c_bool),
        ("n_heads", c_int64),
        ("n_groups", c_int64),
        ("head_size", c_int64),
        ("state_size", c_int64),
        ("channels", c_int64),
        ("size", c_int64),
        ("weight", c_void_p),
        ("bias", c_void_p),
        ("a_log", c_void_p),
        ("dt_bias", c_void_p),
        ("skip", c_void_p),
        ("n_kept", c_int64),
        ("kept", c_void_p),
        ("read", c_void_p),
        ("write", c_void_p),
        ("write_node", c_int64),
        ("out", c_void_p),
    )


@dataclass(frozen=True)
class StateSpaceSizes:
    """Heads of a state-space layer: values of head_size, keys and queries of state_size.

    is_tiled: as in `models.recurrence.Recurrence`.
    """

    n_heads: int
    n_groups: int
    head_size: int
    state_size: int
    is_delta: bool
    is_tiled: bool = False

    @property
    def n_channels(self) -> int:
        """Channels of the convolution."""
        return self.n_heads * self.head_size + 2 * self.n_groups * self.state_size

    @property
    def n_gates(self) -> int:
        """Gates of a row."""
        return (2 if self.is_delta else 1) * self.n_heads

    @property
    def n_state_floats(self) -> int:
        """Numbers of a state, in the operator's own order."""
        return state_floats(self.n_heads, self.head_size, self.state_size)


@dataclass(frozen=True, eq=False)
class StateSpaceWeights:
    """Shapes: conv [C, K]; conv_bias [C]; a_log, dt_bias and skip [n_heads]; float32."""

    conv: Floats
    a_log: Floats
    dt_bias: Floats
    conv_bias: Floats | None = None
    skip: Floats | None = None


def state_floats(n_heads: int, head_size: int, state_size: int) -> int:
    """Returns the numbers that the states of all heads are kept as."""
    return n_heads * -(-head_size // PANEL) * state_size * PANEL


def state_space(
    x: Floats,
    gates: Floats,
    parents: Integers,
    sizes: StateSpaceSizes,
    weights: StateSpaceWeights,
    kept: Floats,
    past: int,
    *,
    base: int = 0,
    read: Floats | None = None,
    write: Floats | None = None,
    write_node: int = -1,
    out: Floats | None = None,
    isa: str | None = None,
    n_threads: int = 1,
) -> Floats:
    """Returns the outputs of the rows of a pass behind ``past`` tokens.

    Shapes: x [T, C], gates [T, n_gates] float32; parents [P] int64, the last T of these rows; kept
        [Q, C + n_gates] float32, written as by `short_conv`, with the rows from ``base`` on; read,
        the state behind ``base`` tokens, and write, that of ``write_node`` or of the last token
        before the pass, [n_state_floats] float32; result [T, n_heads * head_size] (``out`` if
        given).
    """
    rows, n_nodes, channels = len(x), len(parents), sizes.n_channels
    expect("conv", weights.conv, np.float32, (channels, -1))
    expect("x", x, np.float32, (rows, channels))
    expect("gates", gates, np.float32, (rows, sizes.n_gates))
    expect("kept", kept, np.float32, (-1, channels + sizes.n_gates))
    expect("parents", parents, np.int64, (-1,))
    expect_range("parents", parents, -1, np.arange(n_nodes))
    size = weights.conv.shape[1]
    seen = past - base + min(base, size - 1)
    if not 0 <= base <= past or not rows <= n_nodes <= len(kept) - seen:
        raise ValueError(
            f"kept: got {len(kept)} rows, expected {seen + n_nodes} for {n_nodes} nodes behind "
            f"{past} tokens, {rows} of them or more"
        )
    out = output(out, (rows, sizes.n_heads * sizes.head_size))
    head = (sizes.n_heads,)

    def optional(name: str, array: Floats | None, n: int) -> int | None:
        return None if array is None else pointer(name, array, np.float32, (n,))

    args = StateSpaceArgs(
        x.ctypes.data, gates.ctypes.data, parents.ctypes.data, rows, n_nodes - rows, past, base,
        sizes.is_delta, sizes.is_tiled, sizes.n_heads, sizes.n_groups, sizes.head_size,
        sizes.state_size, channels, size, weights.conv.ctypes.data,
        optional("conv_bias", weights.conv_bias, channels),
        pointer("a_log", weights.a_log, np.float32, head),
        pointer("dt_bias", weights.dt_bias, np.float32, head),
        optional("skip", weights.skip, sizes.n_heads), len(kept), kept.ctypes.data,
        optional("read", read, sizes.n_state_floats),
        optional("write", write, sizes.n_state_floats), write_node, out.ctypes.data,
    )  # fmt: skip
    run("state_space", args, isa, n_threads)
    return out
