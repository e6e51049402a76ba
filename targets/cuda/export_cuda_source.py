"""Kernels compiled: to CUDA source and what it is launched with, and for this machine's CPU."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.target import Target
from tvm.tirx.build import codegen_build, split_host_device_mods

from edgedec.kernels.device_program import KernelGeometry
from edgedec.targets.cuda.export_kernel import Kernel

_KERNEL = re.compile(r'(?<=\n)extern "C" __global__ void [^;{]*\{\n')
_WAITING = (
    r'\g<0>  asm volatile("griddepcontrol.wait; griddepcontrol.launch_dependents;" ::: "memory");'
    "\n"
)
_FIRST_WAITING = 90
_DIMENSIONS = tuple(f"{kind}Idx.{axis}" for kind in ("block", "thread") for axis in "xyz")


@dataclass(frozen=True)
class CudaSource:
    """CUDA source of kernels.

    geometries: name -> how it is launched. waits: kernels wait for the one before, so that they may
    be launched before that ends.
    """

    text: str
    geometries: dict[str, KernelGeometry]
    waits: bool


def cuda_source(kernels: Iterable[Kernel], arch: str) -> CudaSource:
    """Returns the source of ``kernels`` for GPUs of ``arch``, such as sm_87."""
    kernels = list(kernels)
    target = Target({"kind": "cuda", "arch": arch, "host": {"kind": "llvm"}})
    pipeline, _, finish = tvm.tirx.get_tir_pipeline("s_tir")
    module = tirx.transform.BindTarget(target)(_module(kernels, for_gpu=True))
    _, on_device = split_host_device_mods(pipeline(module))
    ((device_target, device),) = on_device.items()
    device = finish()(device)
    functions = {gv.name_hint: function for gv, function in device.functions.items()}
    geometries = {k.name: _geometry(k, functions[f"{k.name}_kernel"]) for k in kernels}
    text, waits = codegen_build(device, device_target).inspect_source(), _can_wait(arch)
    return CudaSource(_KERNEL.sub(_WAITING, text) if waits else text, geometries, waits)


def _can_wait(arch: str) -> bool:
    """Says whether kernels of GPUs of ``arch`` can wait for the one before them."""
    return int(arch.removeprefix("sm_")) >= _FIRST_WAITING


def cpu_function(kernel: Kernel) -> Any:
    """Returns the function of ``kernel`` for this machine; it takes tensors."""
    target = Target({"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu()})
    return tvm.compile(_module([kernel], for_gpu=False), target)[kernel.name]


def _module(kernels: list[Kernel], for_gpu: bool) -> Any:
    functions = {}
    for kernel in kernels:
        attributes = {"global_symbol": kernel.name, "tirx.noalias": True}
        module = tvm.IRModule({"main": kernel.function.with_attrs(attributes)})
        schedule = s_tir.Schedule(module)
        (kernel.for_gpu if for_gpu else kernel.for_cpu)(schedule)
        functions[kernel.name] = schedule.mod["main"]
    return tvm.IRModule(functions)


def _geometry(kernel: Kernel, function: Any) -> KernelGeometry:
    extents = dict.fromkeys(_DIMENSIONS, 1)

    def note(node: Any) -> None:
        if node.attr_key == "thread_extent":
            extents[node.node.thread_tag] = int(node.value)

    tvm_ffi.structural_walk(function.body, (tirx.AttrStmt, note))
    names = [p.name for p in kernel.function.params]
    order = tuple(names.index(p.name.removesuffix("_ptr")) for p in function.params)
    x, y, z, *threads = (extents[name] for name in _DIMENSIONS)
    return KernelGeometry((x, y, z), (threads[0], threads[1], threads[2]), order)
