"""Row statistics on the device: a row of logits never has to leave it.

Threads go over a row side by side, each keeping the likeliest tokens it met and sums of what it
saw; two more steps put their lists and sums together.
"""

from __future__ import annotations

import math
from typing import Any

from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T  # noqa: N812

from edgedec.models.graph import N_TOP, ROW_STATS
from edgedec.targets.cuda.export_kernel import Expr, Kernel, one_thread_each

LISTS = (2048, 128, 8, 1)
"""Lists of likeliest tokens, of each row, after each step."""

_INT, _FLOAT = "int32", "float32"
_LOWEST = float("-inf")
_AT_ONCE, _LISTS_AT_ONCE = 8, 2
"""Logits, and lists, that a thread loads at once."""


class _Tokens:
    """The likeliest tokens met so far, in a thread's registers, and sums over all of them.

    sums: the largest logit, the sum of exponentials relative to it, and that of them times their
    exponents.
    """

    def __init__(self) -> None:
        self.logits, self.sums = (
            T.sblock_alloc_buffer((size,), _FLOAT, scope="local") for size in (N_TOP, 3)
        )
        self.ids = T.sblock_alloc_buffer((N_TOP,), _INT, scope="local")
        for i in range(N_TOP):
            T.buffer_store(self.logits, T.float32(_LOWEST), [i])
            T.buffer_store(self.ids, T.int32(-1), [i])
        for i, value in enumerate((_LOWEST, 0.0, 0.0)):
            T.buffer_store(self.sums, T.float32(value), [i])

    def is_likely_enough(self, logit: Expr, index: Expr) -> Expr:
        """Says whether a token belongs to the list; the index -1 is that of none."""
        last = N_TOP - 1
        return T.And(index >= 0, _is_before(logit, index, self.logits[last], self.ids[last]))

    def insert(self, logit: Expr, index: Expr) -> None:
        """Takes a token in that is likely enough, and moves the others down."""
        last = N_TOP - 1
        T.buffer_store(self.logits, logit, [last])
        T.buffer_store(self.ids, index, [last])
        for i in reversed(range(last)):
            lower = (self.logits[i + 1], self.ids[i + 1])
            with T.If(_is_before(*lower, self.logits[i], self.ids[i])), T.Then():
                logit_above, id_above = T.bind(self.logits[i]), T.bind(self.ids[i])
                T.buffer_store(self.logits, lower[0], [i])
                T.buffer_store(self.ids, lower[1], [i])
                T.buffer_store(self.logits, logit_above, [i + 1])
                T.buffer_store(self.ids, id_above, [i + 1])

    def add(self, top: Expr, total: Expr, weighted: Expr) -> None:
        """Adds sums relative to ``top``."""
        with T.If(total > 0), T.Then():
            old = [T.bind(self.sums[i]) for i in range(3)]
            largest = T.bind(T.max(old[0], top))
            before, now = T.bind(old[0] - largest), T.bind(top - largest)
            share = T.bind(T.Select(old[1] > 0, T.exp(before), T.float32(0)))
            shift = T.bind(T.Select(old[1] > 0, before, T.float32(0)))
            factor = T.bind(T.exp(now))
            moved = share * (old[2] + old[1] * shift) + factor * (weighted + total * now)
            T.buffer_store(self.sums, largest, [0])
            T.buffer_store(self.sums, share * old[1] + factor * total, [1])
            T.buffer_store(self.sums, moved, [2])


def scan(rows: int, n_logits: int) -> Kernel:
    """Goes over logits. Arguments: logits [rows, n_logits]; logits_out, ids_out, sums_out."""
    n_lists = LISTS[0]
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("scan")
        logits = T.arg("logits", T.buffer((rows, n_logits), _FLOAT))
        out = _lists("out", rows, n_lists)
        with T.grid(rows, n_lists) as (m, t), T.sblock("scan"):
            m, t = T.axis.remap("SS", [m, t])
            T.reads(logits[m, 0:n_logits])
            T.writes(*_region(out, m, t))
            tokens = _Tokens()
            with T.serial(0, -(-n_logits // (n_lists * _AT_ONCE))) as i:
                indices = [t + (i * _AT_ONCE + u) * n_lists for u in range(_AT_ONCE)]
                values = [T.bind(logits[m, T.min(index, n_logits - 1)]) for index in indices]
                for logit, index in zip(values, indices, strict=True):
                    with T.If(index < n_logits), T.Then():
                        with T.If(tokens.is_likely_enough(logit, index)), T.Then():
                            tokens.insert(logit, index)
                        count = T.Select(logit > T.float32(_LOWEST), T.float32(1), T.float32(0))
                        tokens.add(logit, count, T.float32(0))
            _store(tokens, out, m, t)
    return Kernel(
        f"scan_{rows}_{n_logits}", builder.get(), lambda schedule: one_thread_each(schedule, "scan")
    )


def merge(rows: int, step: int) -> Kernel:
    """Puts lists and sums together. Arguments: logits_in, ids_in, sums_in; logits_out, ..."""
    n_from, n_to = LISTS[step], LISTS[step + 1]
    name = f"merge_{rows}_{n_from}_{n_to}"
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("merge")
        inputs, out = _lists("in", rows, n_from), _lists("out", rows, n_to)
        with T.grid(rows, n_to) as (m, t), T.sblock("merge"):
            m, t = T.axis.remap("SS", [m, t])
            T.reads(*_region(inputs, m, slice(0, n_from)))
            T.writes(*_region(out, m, t))
            tokens = _Tokens()
            _take_lists(tokens, inputs, m, t, n_from // n_to, n_to)
            _store(tokens, out, m, t)
    return Kernel(name, builder.get(), lambda schedule: one_thread_each(schedule, "merge"))


def finish(rows: int) -> Kernel:
    """Puts the last lists and sums together.

    Arguments: logits_in, ids_in, sums_in; the row statistics in the order of `ROW_STATS`, ids
    int32.
    """
    n_from = LISTS[-2]
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("finish")
        inputs = _lists("in", rows, n_from)
        argmax, log_sum_exp, entropy, ids, logits = (
            T.arg(name, T.buffer((rows, *sizes), _FLOAT if dtype == _FLOAT else _INT))
            for name, (dtype, sizes) in ROW_STATS.items()
        )
        with T.grid(rows, 1) as (m, t), T.sblock("finish"):
            m, t = T.axis.remap("SS", [m, t])
            T.reads(*_region(inputs, m, slice(0, n_from)))
            T.writes(argmax[m], log_sum_exp[m], entropy[m], ids[m, 0:N_TOP], logits[m, 0:N_TOP])
            tokens = _Tokens()
            _take_lists(tokens, inputs, m, t, n_from, 1)
            top, total, weighted = (T.bind(tokens.sums[i]) for i in range(3))
            log_total = T.bind(T.log(total))
            is_number = T.bind(T.isfinite(tokens.logits[0]))
            nan = T.float32(float("nan"))
            T.buffer_store(argmax, tokens.ids[0], [m])
            T.buffer_store(log_sum_exp, T.Select(is_number, top + log_total, nan), [m])
            mean = weighted / total
            T.buffer_store(entropy, T.Select(is_number, log_total - mean, nan), [m])
            for i in range(N_TOP):
                T.buffer_store(ids, tokens.ids[i], [m, i])
                T.buffer_store(logits, tokens.logits[i], [m, i])
    return Kernel(
        f"finish_{rows}", builder.get(), lambda schedule: one_thread_each(schedule, "finish", 32)
    )


def _lists(suffix: str, rows: int, n_lists: int) -> tuple[Any, Any, Any]:
    """Returns the arguments that hold lists: their logits and ids, and the sums."""
    return (
        T.arg(f"logits_{suffix}", T.buffer((rows, n_lists, N_TOP), _FLOAT)),
        T.arg(f"ids_{suffix}", T.buffer((rows, n_lists, N_TOP), _INT)),
        T.arg(f"sums_{suffix}", T.buffer((rows, n_lists, 3), _FLOAT)),
    )


def _region(lists: tuple[Any, Any, Any], m: Expr, t: Any) -> list[Any]:
    logits, ids, sums = lists
    return [logits[m, t, 0:N_TOP], ids[m, t, 0:N_TOP], sums[m, t, 0:3]]


def _take_lists(
    tokens: _Tokens, lists: tuple[Any, Any, Any], m: Expr, t: Expr, n_lists: int, step: int
) -> None:
    """Takes in the lists t, t + step, ... of row ``m``, ``n_lists`` of them.

    Whole lists are loaded, some at once, for a thread that waits for each token waits long.
    """
    logits, ids, sums = lists
    at_once = math.gcd(n_lists, _LISTS_AT_ONCE)
    taken = T.sblock_alloc_buffer((at_once, N_TOP), _FLOAT, scope="local")
    found_ids = T.sblock_alloc_buffer((at_once, N_TOP), _INT, scope="local")
    parts = T.sblock_alloc_buffer((at_once, 3), _FLOAT, scope="local")
    with T.serial(0, n_lists // at_once) as i:
        with _unrolled(at_once) as u:
            source = t + (i * at_once + u) * step
            with _unrolled(N_TOP) as j:
                T.buffer_store(taken, logits[m, source, j], [u, j])
                T.buffer_store(found_ids, ids[m, source, j], [u, j])
            with _unrolled(3) as part:
                T.buffer_store(parts, sums[m, source, part], [u, part])
        with _unrolled(at_once) as u:
            likeliest = tokens.is_likely_enough(taken[u, 0], found_ids[u, 0])
            with T.If(likeliest), T.Then(), _unrolled(N_TOP) as j:
                token = taken[u, j], found_ids[u, j]
                with T.If(tokens.is_likely_enough(*token)), T.Then():
                    tokens.insert(*token)
            tokens.add(*(parts[u, part] for part in range(3)))


def _unrolled(n: int) -> Any:
    """Returns a loop that the CUDA compiler unrolls: its copies need no time of TVM's."""
    return T.unroll(0, n, annotations={"pragma_unroll_explicit": False})


def _store(tokens: _Tokens, out: tuple[Any, Any, Any], m: Expr, t: Expr) -> None:
    logits, ids, sums = out
    for i in range(N_TOP):
        T.buffer_store(logits, tokens.logits[i], [m, t, i])
        T.buffer_store(ids, tokens.ids[i], [m, t, i])
    for i in range(3):
        T.buffer_store(sums, tokens.sums[i], [m, t, i])


def _is_before(logit: Expr, index: Expr, other: Expr, other_index: Expr) -> Expr:
    """Says whether a token is listed before another: NaN first, of equals the lowest id."""
    is_nan, other_is_nan = T.isnan(logit), T.isnan(other)
    is_equal = T.Or(logit == other, T.And(is_nan, other_is_nan))
    is_larger = T.Or(logit > other, T.And(is_nan, T.Not(other_is_nan)))
    is_first = T.Or(other_index < 0, index < other_index)
    return T.Or(is_larger, T.And(is_equal, is_first))
