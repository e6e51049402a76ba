"""Attention over a KV cache that stays on the device, in steps whose threads need no other's work.

A KV cache of C rows: keys [n_layers, n_kv_heads, head_size, C], so that neighbouring threads read
neighbouring rows; values [n_layers, n_kv_heads, C, head_size]; both float16. A row of a pass sees
the first ``seen[m]`` rows, and of those from ``base`` on the ones whose bits are set.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import te
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T  # noqa: N812

from edgedec.kernels.device_program import MASK_WORDS, SCALARS
from edgedec.targets.cuda.export_kernel import (
    Expr,
    Kernel,
    constant,
    of_tensors,
    one_thread_each,
    placeholder,
)
from edgedec.targets.cuda.export_rows import capped, digits

SPLIT = 64
"""Rows of the KV cache whose part in a result one thread sums up."""

_LOWEST = -3.0e38  # -inf would turn rows that see nothing into NaN
_WORD = 32


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


def append(shape: AttentionShape) -> Kernel:
    """Writes a layer's new keys and values to the rows ``slots`` of the KV cache.

    Arguments: k, v [rows, n_kv_heads * head_size]; slots [rows] int32, -1 for rows that fill up a
    pass; keys, values.
    """
    width = shape.n_kv_heads * shape.head_size
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("append")
        k, v = (T.arg(name, T.buffer((shape.rows, width), "float32")) for name in ("k", "v"))
        slots = T.arg("slots", T.buffer((shape.rows,), "int32"))
        keys, values = T.arg("keys", shape.keys()), T.arg("values", shape.values())
        with (
            T.grid(shape.rows, shape.n_kv_heads, shape.head_size) as (m, h, d),
            T.sblock("append"),
        ):
            m, h, d = T.axis.remap("SSS", [m, h, d])
            place = h * shape.head_size + d
            T.reads(k[m, place], v[m, place], slots[m])
            T.writes(keys[h, d, 0 : shape.capacity], values[h, 0 : shape.capacity, d])
            with T.If(slots[m] >= 0), T.Then():
                T.buffer_store(keys, T.Cast("float16", k[m, place]), [h, d, slots[m]])
                T.buffer_store(values, T.Cast("float16", v[m, place]), [h, slots[m], d])
    return Kernel(
        f"append_{shape.key}", builder.get(), lambda schedule: one_thread_each(schedule, "append")
    )


def scores(shape: AttentionShape) -> Kernel:
    """Returns the scaled products of queries and keys of all rows below ``scalars[0]``.

    Arguments: q [rows, n_heads * head_size]; keys; scalars int32; y [rows, n_heads, capacity].
    """
    q = placeholder("q", shape.rows, shape.n_heads * shape.head_size)
    keys = placeholder("keys", shape.n_kv_heads, shape.head_size, shape.capacity, dtype="float16")
    scalars = placeholder("scalars", SCALARS, dtype="int32")
    along = te.reduce_axis((0, shape.head_size), name="k")
    group = shape.n_heads // shape.n_kv_heads

    def term(m: Expr, h: Expr, j: Expr) -> Expr:
        query = q[m, h * shape.head_size + along] * constant(shape.scale)
        product = query * keys[h // group, along, j].astype("float32")
        return te.sum(te.if_then_else(j < scalars[0], product, constant(0)), along)

    y = te.compute((shape.rows, shape.n_heads, shape.capacity), term, name="y")
    return of_tensors(f"scores_{shape.key}", [q, keys, scalars, y])


def partials(shape: AttentionShape) -> Kernel:
    """Returns what each part of the KV cache has to say: numerators, denominators, largest scores.

    Arguments: scores [rows, n_heads, capacity]; values; seen [rows], mask [rows, `MASK_WORDS`],
    scalars int32; sums [rows, n_heads, n_splits, head_size]; totals, tops [rows, n_heads,
    n_splits].
    """
    m_h_s = (shape.rows, shape.n_heads, shape.n_splits)
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("partials")
        found = T.arg("scores", T.buffer((*m_h_s[:2], shape.capacity), "float32"))
        values = T.arg("values", shape.values())
        seen = T.arg("seen", T.buffer((shape.rows,), "int32"))
        mask = T.arg("mask", T.buffer((shape.rows, MASK_WORDS), "int32"))
        scalars = T.arg("scalars", T.buffer((SCALARS,), "int32"))
        sums = T.arg("sums", T.buffer((*m_h_s, shape.head_size), "float32"))
        totals, tops = (T.arg(name, T.buffer(m_h_s, "float32")) for name in ("totals", "tops"))
        with T.grid(*m_h_s, shape.head_size) as loops, T.sblock("partials"):
            m, h, s, d = T.axis.remap("SSSS", list(loops))
            first = s * SPLIT
            T.reads(
                found[m, h, first : first + SPLIT],
                values[h // (shape.n_heads // shape.n_kv_heads), first : first + SPLIT, d],
                seen[m], mask[m, 0:MASK_WORDS], scalars[0:SCALARS],
            )  # fmt: skip
            T.writes(sums[m, h, s, d], totals[m, h, s], tops[m, h, s])
            top, total, part = (T.sblock_alloc_buffer((1,), "float32", scope="local")
                                for _ in range(3))  # fmt: skip
            T.buffer_store(top, T.float32(_LOWEST), [0])
            T.buffer_store(total, T.float32(0), [0])
            T.buffer_store(part, T.float32(0), [0])

            def is_seen(j: Expr) -> Expr:
                bit = T.max(j - scalars[1], 0)
                word = mask[m, T.min(bit // _WORD, MASK_WORDS - 1)]
                in_tree = T.bitwise_and(T.shift_right(word, bit % _WORD), 1) == 1
                is_inside = T.And(j >= scalars[1], j < scalars[0])
                return T.Or(j < seen[m], T.And(is_inside, in_tree))

            def score(j: Expr) -> Expr:
                return capped(found[m, h, j], shape.softcap)

            with T.If(first < scalars[0]), T.Then():
                with T.serial(0, SPLIT) as j, T.If(is_seen(first + j)), T.Then():
                    T.buffer_store(top, T.max(top[0], score(first + j)), [0])
                with T.serial(0, SPLIT) as j, T.If(is_seen(first + j)), T.Then():
                    share = T.bind(T.exp(score(first + j) - top[0]))
                    head = h // (shape.n_heads // shape.n_kv_heads)
                    value = T.Cast("float32", values[head, first + j, d])
                    T.buffer_store(total, total[0] + share, [0])
                    T.buffer_store(part, part[0] + share * value, [0])
            T.buffer_store(sums, part[0], [m, h, s, d])
            with T.If(d == 0), T.Then():
                T.buffer_store(totals, total[0], [m, h, s])
                T.buffer_store(tops, top[0], [m, h, s])
    name = f"partials_{shape.key}{'_' + digits(shape.softcap) if shape.softcap else ''}"
    return Kernel(name, builder.get(), lambda schedule: one_thread_each(schedule, "partials"))


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
