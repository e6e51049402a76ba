"""Attention over a KV cache that stays on the device, in steps whose threads need no other's work.

A KV cache of C rows: keys [n_layers, n_kv_heads, head_size, C], so that neighbouring threads read
neighbouring rows; values [n_layers, n_kv_heads, C, head_size]; both float16. A row of a pass sees
the first ``seen[m]`` rows, and of those from ``base`` on the ones whose bits are set.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm.s_tir import Schedule
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T  # noqa: N812

from edgedec.kernels.device_program import MASK_WORDS, SCALARS
from edgedec.targets.cuda.export_kernel import Expr, Kernel, one_thread_each
from edgedec.targets.cuda.export_rows import capped, digits

SPLIT = 64
"""Rows of the KV cache whose part in a result one block of threads sums up."""

_LOWEST = -3.0e38  # -inf would turn rows that see nothing into NaN
_WORD = 32
_AT_ONCE = 32
"""Loads of a thread that are on their way at once."""


@dataclass(frozen=True)
class AttentionShape:
    """Sizes of an attention over a KV cache of ``capacity`` rows, a multiple of `SPLIT`."""

    rows: int
    n_heads: int
    n_kv_heads: int
    head_size: int
    capacity: int
    scale: float
    softcap: float

    @property
    def n_splits(self) -> int:
        """Parts of the KV cache."""
        return self.capacity // SPLIT

    @property
    def key(self) -> str:
        """Names what decides the code of a kernel over it."""
        return f"{self.rows}_{self.n_heads}x{self.n_kv_heads}x{self.head_size}_{self.capacity}"

    def keys(self) -> Any:
        """Returns the buffer of a layer's keys."""
        return T.buffer((self.n_kv_heads, self.head_size, self.capacity), "float16")

    def values(self) -> Any:
        """Returns the buffer of a layer's values."""
        return T.buffer((self.n_kv_heads, self.capacity, self.head_size), "float16")


def rotate_append(shape: AttentionShape, n_angles: int, is_joined: bool) -> Kernel:
    """Rotates queries and keys, and writes keys and values to the rows ``slots`` of the KV cache.

    Channel i of a head is rotated against channel i + head_size / 2.

    Args:
        n_angles: rows of the tables of rotations, 0 for none.
        is_joined: queries, keys and values are columns of one matrix.

    Arguments: q [rows, n_heads * head_size], k, v [rows, n_kv_heads * head_size], or qkv; cos, sin
    [n_angles, head_size / 2], positions [rows] int32, where there are rotations; slots [rows]
    int32, -1 for rows that fill up a pass; keys, values; y like q.
    """
    size, half = shape.head_size, shape.head_size // 2
    widths = [n * size for n in (shape.n_heads, shape.n_kv_heads, shape.n_kv_heads)]
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("rotate_append")
        inputs, starts = _queries_keys_values(shape.rows, widths, is_joined)
        if n_angles:
            cos, sin = (
                T.arg(name, T.buffer((n_angles, half), "float32")) for name in ("cos", "sin")
            )
            positions = T.arg("positions", T.buffer((shape.rows,), "int32"))
        slots = T.arg("slots", T.buffer((shape.rows,), "int32"))
        keys, values = T.arg("keys", shape.keys()), T.arg("values", shape.values())
        y = T.arg("y", T.buffer((shape.rows, widths[0]), "float32"))
        with (
            T.grid(shape.rows, shape.n_heads + shape.n_kv_heads, size) as (m, h, d),
            T.sblock("rotate_append"),
        ):
            m, h, d = T.axis.remap("SSS", [m, h, d])
            T.reads(*(each[m, 0 : each.shape[1]] for each in inputs[: 1 if is_joined else 3]))
            T.writes(
                y[m, 0 : widths[0]], keys[0 : shape.n_kv_heads, d, 0 : shape.capacity],
                values[0 : shape.n_kv_heads, 0 : shape.capacity, d],
            )  # fmt: skip

            def rotated(part: int, head: Expr) -> Expr:
                x, first = inputs[part], starts[part] + head * size
                if not n_angles:
                    return x[m, first + d]
                other = x[m, first + T.Select(d < half, d + half, d - half)]
                angle = (positions[m], d % half)
                return x[m, first + d] * cos[angle] + T.Select(d < half, -other, other) * sin[angle]

            with T.If(h < shape.n_heads):
                with T.Then():
                    T.buffer_store(y, rotated(0, h), [m, h * size + d])
                with T.Else(), T.If(slots[m] >= 0), T.Then():
                    head = h - shape.n_heads
                    key, value = rotated(1, head), inputs[2][m, starts[2] + head * size + d]
                    T.buffer_store(keys, T.Cast("float16", key), [head, d, slots[m]])
                    T.buffer_store(values, T.Cast("float16", value), [head, slots[m], d])
    name = f"rotate_append_{shape.key}_{n_angles}{'_joined' * is_joined}"
    return Kernel(name, builder.get(), lambda sch: one_thread_each(sch, "rotate_append"))


def _queries_keys_values(
    rows: int, widths: Sequence[int], is_joined: bool
) -> tuple[list[Any], tuple[int, int, int]]:
    """Adds the arguments q, k and v; returns the buffer of each, and its first column there."""
    if is_joined:
        qkv = T.arg("qkv", T.buffer((rows, sum(widths)), "float32"))
        return [qkv] * 3, (0, widths[0], widths[0] + widths[1])
    buffers = [
        T.arg(name, T.buffer((rows, width), "float32"))
        for name, width in zip("qkv", widths, strict=True)
    ]
    return buffers, (0, 0, 0)


def partials(shape: AttentionShape) -> Kernel:
    """Returns what each part of the KV cache has to say: numerators, denominators, largest scores.

    A block for each part: its threads first compute a score each, then a channel each. Loads do
    not depend on what a row sees, so that many are on their way at once.

    Arguments: q [rows, n_heads * head_size]; keys, values; seen [rows], mask [rows, `MASK_WORDS`],
    scalars int32; sums [rows, n_heads, n_splits, head_size]; totals, tops [rows, n_heads,
    n_splits].
    """
    m_h_s, size = (shape.rows, shape.n_heads, shape.n_splits), shape.head_size
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("partials")
        q = T.arg("q", T.buffer((shape.rows, shape.n_heads * size), "float32"))
        keys, values = T.arg("keys", shape.keys()), T.arg("values", shape.values())
        seen = T.arg("seen", T.buffer((shape.rows,), "int32"))
        mask = T.arg("mask", T.buffer((shape.rows, MASK_WORDS), "int32"))
        scalars = T.arg("scalars", T.buffer((SCALARS,), "int32"))
        sums = T.arg("sums", T.buffer((*m_h_s, size), "float32"))
        totals, tops = (T.arg(name, T.buffer(m_h_s, "float32")) for name in ("totals", "tops"))
        scores = T.sblock_alloc_buffer((*m_h_s, SPLIT), "float32")
        _score(shape, q, keys, seen, mask, scalars, scores)
        _sum_up(shape, scores, values, scalars, sums, totals, tops)
    name = f"partials_{shape.key}{'_' + digits(shape.softcap) if shape.softcap else ''}"
    return Kernel(name, builder.get(), lambda schedule: _partials_on_gpu(schedule, size))


def _score(
    shape: AttentionShape, q: Any, keys: Any, seen: Any, mask: Any, scalars: Any, scores: Any
) -> None:
    """Writes the score of each row of the KV cache, `_LOWEST` where it is not seen."""
    m_h_s, size = (shape.rows, shape.n_heads, shape.n_splits), shape.head_size
    group, at_once = shape.n_heads // shape.n_kv_heads, math.gcd(size, _AT_ONCE)
    with T.grid(*m_h_s, SPLIT) as loops, T.sblock("scores"):
        m, h, s, j = T.axis.remap("SSSS", list(loops))
        row = s * SPLIT + j
        T.reads(
            q[m, h * size : h * size + size], keys[h // group, 0:size, row], seen[m],
            mask[m, 0:MASK_WORDS], scalars[0:SCALARS],
        )  # fmt: skip
        T.writes(scores[m, h, s, j])
        dot = T.sblock_alloc_buffer((1,), "float32", scope="local")
        T.buffer_store(dot, T.float32(0), [0])
        n_steps = T.bind(T.Select(s * SPLIT < scalars[0], size // at_once, 0))
        with T.serial(0, n_steps) as i, T.unroll(0, at_once) as u:
            channel = i * at_once + u
            query = q[m, h * size + channel] * T.float32(shape.scale)
            key = T.Cast("float32", keys[h // group, channel, row])
            T.buffer_store(dot, dot[0] + query * key, [0])
        bit = T.max(row - scalars[1], 0)
        word = mask[m, T.min(bit // _WORD, MASK_WORDS - 1)]
        in_tree = T.bitwise_and(T.shift_right(word, bit % _WORD), 1) == 1
        is_inside = T.And(row >= scalars[1], row < scalars[0])
        is_seen = T.Or(row < seen[m], T.And(is_inside, in_tree))
        score = T.Select(is_seen, capped(dot[0], shape.softcap), T.float32(_LOWEST))
        T.buffer_store(scores, score, [m, h, s, j])


def _sum_up(
    shape: AttentionShape, scores: Any, values: Any, scalars: Any, sums: Any, totals: Any, tops: Any
) -> None:
    """Writes what the scores of each part of the KV cache make of its values."""
    m_h_s, size = (shape.rows, shape.n_heads, shape.n_splits), shape.head_size
    group = shape.n_heads // shape.n_kv_heads
    with T.grid(*m_h_s, size) as loops, T.sblock("partials"):
        m, h, s, d = T.axis.remap("SSSS", list(loops))
        first = s * SPLIT
        T.reads(
            scores[m, h, s, 0:SPLIT], values[h // group, first : first + SPLIT, d],
            scalars[0:SCALARS],
        )  # fmt: skip
        T.writes(sums[m, h, s, d], totals[m, h, s], tops[m, h, s])
        top, total, part = (T.sblock_alloc_buffer((1,), "float32", scope="local")
                            for _ in range(3))  # fmt: skip
        T.buffer_store(top, T.float32(_LOWEST), [0])
        T.buffer_store(total, T.float32(0), [0])
        T.buffer_store(part, T.float32(0), [0])
        n_steps = T.bind(T.Select(first < scalars[0], SPLIT // _AT_ONCE, 0))
        with T.serial(0, n_steps) as i, T.unroll(0, _AT_ONCE) as u:
            T.buffer_store(top, T.max(top[0], scores[m, h, s, i * _AT_ONCE + u]), [0])
        with T.serial(0, n_steps) as i, T.unroll(0, _AT_ONCE) as u:
            score = T.bind(scores[m, h, s, i * _AT_ONCE + u])
            # Rows that nobody wrote yet may hold NaN: those that are not seen count nothing.
            value = T.bind(T.Cast("float32", values[h // group, first + i * _AT_ONCE + u, d]))
            share = T.bind(T.Select(score > _LOWEST, T.exp(score - top[0]), T.float32(0)))
            T.buffer_store(total, total[0] + share, [0])
            term = T.Select(score > _LOWEST, share * value, T.float32(0))
            T.buffer_store(part, part[0] + term, [0])
        T.buffer_store(sums, part[0], [m, h, s, d])
        with T.If(d == 0), T.Then():
            T.buffer_store(totals, total[0], [m, h, s])
            T.buffer_store(tops, top[0], [m, h, s])


def _partials_on_gpu(schedule: Schedule, head_size: int) -> None:
    """A block for each part of the KV cache, whose scores its threads share."""
    n_threads = SPLIT if head_size <= SPLIT else 2 * SPLIT
    scores, sums = map(schedule.get_sblock, ("scores", "partials"))
    *parts, channel = schedule.get_loops(sums)
    part = schedule.fuse(*parts)
    schedule.bind(part, "blockIdx.x")
    _, tx = schedule.split(channel, [None, n_threads])
    schedule.bind(tx, "threadIdx.x")
    schedule.set_scope(scores, 0, "shared")
    schedule.compute_at(scores, part, preserve_unit_loops=True)
    _, tx = schedule.split(schedule.get_loops(scores)[-1], [None, n_threads])
    schedule.bind(tx, "threadIdx.x")


def combine(shape: AttentionShape) -> Kernel:
    """Returns the attended heads from what the parts of the KV cache have to say.

    Arguments: sums, totals, tops as of `partials`; scalars int32; y [rows, n_heads * head_size].
    """
    m_h_s = (shape.rows, shape.n_heads, shape.n_splits)
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("combine")
        sums = T.arg("sums", T.buffer((*m_h_s, shape.head_size), "float32"))
        totals, tops = (T.arg(name, T.buffer(m_h_s, "float32")) for name in ("totals", "tops"))
        scalars = T.arg("scalars", T.buffer((SCALARS,), "int32"))
        y = T.arg("y", T.buffer((shape.rows, shape.n_heads * shape.head_size), "float32"))
        with T.grid(*m_h_s[:2], shape.head_size) as loops, T.sblock("combine"):
            m, h, d = T.axis.remap("SSS", list(loops))
            T.reads(
                sums[m, h, 0 : shape.n_splits, d], totals[m, h, 0 : shape.n_splits],
                tops[m, h, 0 : shape.n_splits], scalars[0:SCALARS],
            )  # fmt: skip
            T.writes(y[m, h * shape.head_size + d])
            top, total, part = (T.sblock_alloc_buffer((1,), "float32", scope="local")
                                for _ in range(3))  # fmt: skip
            n_used = T.bind((scalars[0] + SPLIT - 1) // SPLIT)
            T.buffer_store(top, T.float32(_LOWEST), [0])
            T.buffer_store(total, T.float32(0), [0])
            T.buffer_store(part, T.float32(0), [0])
            with T.serial(0, n_used) as s:
                T.buffer_store(top, T.max(top[0], tops[m, h, s]), [0])
            with T.serial(0, n_used) as s:
                share = T.bind(T.exp(tops[m, h, s] - top[0]))
                T.buffer_store(total, total[0] + share * totals[m, h, s], [0])
                T.buffer_store(part, part[0] + share * sums[m, h, s, d], [0])
            T.buffer_store(y, part[0] / total[0], [m, h * shape.head_size + d])
    return Kernel(
        f"combine_{shape.key}", builder.get(), lambda schedule: one_thread_each(schedule, "combine")
    )


def keep(n_layers: int, shape: AttentionShape, n_moves: int) -> Kernel:
    """Moves rows of the KV cache together: row ``places[i]`` to row ``scalars[1] + i``.

    Arguments: keys, values of all layers; places [n_moves] int32, rising; scalars int32, how many
    first.
    """
    n_heads = n_layers * shape.n_kv_heads
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("keep")
        whole = (n_heads, shape.head_size, shape.capacity)
        keys = T.arg("keys", T.buffer(whole, "float16"))
        values = T.arg("values", T.buffer((n_heads, shape.capacity, shape.head_size), "float16"))
        places = T.arg("places", T.buffer((n_moves,), "int32"))
        scalars = T.arg("scalars", T.buffer((SCALARS,), "int32"))
        with T.grid(n_heads, shape.head_size) as (h, d), T.sblock("keep"):
            h, d = T.axis.remap("SS", [h, d])
            T.reads(places[0:n_moves], scalars[0:SCALARS])
            T.writes(keys[h, d, 0 : shape.capacity], values[h, 0 : shape.capacity, d])
            with T.serial(0, scalars[0]) as i:
                T.buffer_store(keys, keys[h, d, places[i]], [h, d, scalars[1] + i])
                T.buffer_store(values, values[h, places[i], d], [h, scalars[1] + i, d])
    return Kernel(
        f"keep_{n_heads}x{shape.head_size}_{shape.capacity}",
        builder.get(),
        lambda schedule: one_thread_each(schedule, "keep"),
    )
