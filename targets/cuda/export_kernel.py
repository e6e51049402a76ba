"""A kernel: one function of TVM's tensor IR, and how its loops become a GPU's blocks and threads.

The same function is compiled for the CPU, where its loops stay loops: that is how its arithmetic is
checked on machines without a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from tvm import te, tirx
from tvm.s_tir import Schedule

Function: TypeAlias = Any  # tvm.tirx.PrimFunc
Tensor: TypeAlias = Any  # tvm.te.Tensor, or a buffer
Expr: TypeAlias = Any  # an expression of the tensor IR
Scheduling: TypeAlias = Callable[[Schedule], None]

THREADS = 128
"""Threads of a block where nothing else is said."""


@dataclass(frozen=True)
class Kernel:
    """One function under its name, and what `for_gpu` and `for_cpu` make of its loops.

    Parameters are named, in order, by the function's own buffers.
    """

    name: str
    function: Function
    for_gpu: Scheduling
    for_cpu: Scheduling = lambda schedule: None


def of_tensors(name: str, tensors: list[Tensor], for_gpu: Scheduling | None = None) -> Kernel:
    """Returns the kernel that computes the last of ``tensors`` of the others.

    for_gpu: by default one thread for each number of the last one.
    """
    last = tensors[-1].op.name
    return Kernel(
        name, te.create_prim_func(tensors), for_gpu or (lambda sch: one_thread_each(sch, last))
    )


def one_thread_each(schedule: Schedule, block: str, threads: int = THREADS) -> None:
    """Gives each iteration of the loops around ``block`` a thread of its own."""
    sblock = schedule.get_sblock(block)
    spatial = [
        loop
        for loop, axis in zip(
            schedule.get_loops(sblock), schedule.get(sblock).iter_vars, strict=False
        )
        if axis.iter_type == tirx.IterVar.DataPar
    ]
    fused = schedule.fuse(*spatial) if len(spatial) > 1 else spatial[0]
    outer, inner = schedule.split(fused, [None, threads])
    schedule.bind(outer, "blockIdx.x")
    schedule.bind(inner, "threadIdx.x")


def placeholder(name: str, *sizes: int, dtype: str = "float32") -> Tensor:
    """Returns an argument of ``sizes``."""
    return te.placeholder(sizes, dtype, name=name)


def constant(value: float, dtype: str = "float32") -> Expr:
    """Returns a constant."""
    return tirx.const(value, dtype)
