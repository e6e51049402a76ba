"""Programs that TVM compiled, over the operators of this library: opened, and run.

Nothing here needs TVM's compiler, or its Python package: `tvm_ffi`, and `RUNTIME_NAMES`.
"""

from __future__ import annotations

import ctypes
import math
import mmap
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgedec.kernels.library import open_library
from edgedec.kernels.thread_pool import ThreadPool
from edgedec.kernels.tvm_ffi_import import import_tvm_ffi

tvm_ffi = import_tvm_ffi()

MAIN, LISTING, OUTPUTS = "main", "edgedec_nodes", "edgedec_outputs"
"""Functions of a program: the pass, the list of its nodes (src/tvm_ops.h), its outputs' names."""

RUNTIME_NAMES = ("libtvm_runtime.so", "libtvm_runtime_extra.so")
"""Libraries that run any program, in the order in which they are loaded."""

_BUILTIN = "vm.builtin.alloc_storage"
"""A function that `RUNTIME_NAMES` bring along."""

_CPU, _POOLED = 1, 2
_MAX_BYTES = 1024


class Program:
    """A compiled graph over its weights, which are mapped. inputs, outputs: names of its ports."""

    def __init__(self, library: Path, weights: Path, runtime: Sequence[Path]) -> None:
        """Opens ``library``, which executes code of it.

        runtime: `RUNTIME_NAMES`, loaded unless this process has their functions already.

        Raises:
            RuntimeError: One of these is not what it should be.
        """
        _load_runtime(runtime)
        _register()
        try:
            self._module = tvm_ffi.load_module(str(library))
            machine = self._machine()
            nodes = str(machine[LISTING]())
            n_inputs = machine["get_function_arity"](MAIN)
            name_of = machine["get_function_param_name"]
            self.inputs = tuple(str(name_of(MAIN, i)) for i in range(n_inputs))
            self.outputs = tuple(str(machine[OUTPUTS]()).split(","))
        except Exception as error:  # TVM's errors share no base of their own
            raise RuntimeError(one_line(error)) from None
        self._weights = _map(weights)
        self._handle = _open_nodes(nodes, self._weights)

    def machine(self, n_threads: int, processors: Sequence[int] = ()) -> Machine:
        """Returns what runs passes on so many threads, which stay on ``processors`` if any."""
        return Machine(self, self._machine(), n_threads, processors)

    @property
    def handle(self) -> int:
        """Address of the nodes."""
        return self._handle

    def close(self) -> None:
        """Releases the nodes; no pass follows."""
        if self._handle:
            open_library().edgedec_program_close(self._handle)
        self._handle = 0

    def _machine(self) -> Any:
        machine = self._module["vm_load_executable"]()
        machine["vm_initialization"](_CPU, 0, _POOLED, _CPU, 0, _POOLED)
        return machine


class Machine:
    """Runs passes of one program, one at a time, on threads of its own."""

    def __init__(
        self, program: Program, machine: Any, n_threads: int, processors: Sequence[int]
    ) -> None:
        self._program = program
        self._main = machine[MAIN]
        self._pool = ThreadPool(n_threads, processors)
        self._inputs: Sequence[Any] | None = None

    def run(self, inputs: Sequence[Any]) -> Any:
        """Returns the outputs of a pass over ``inputs``, tensors in the order of the ports.

        Raises:
            RuntimeError: The pass failed, or was stopped.
        """

        def call() -> Any:
            self._inputs = inputs
            try:
                return self._main(*inputs)
            except Exception as error:
                raise RuntimeError(one_line(error)) from None
            finally:
                self._inputs = None

        return self._pool.run(call, program=self._program.handle)

    def stop(self, inputs: Sequence[Any]) -> None:
        """Ends the pass over ``inputs``, if it is under way, between two nodes of its graph."""
        if self._inputs is inputs:
            self._pool.stop()

    def close(self) -> None:
        """Ends the threads; no pass follows."""
        self._pool.close()


def as_tensor(array: npt.NDArray[Any]) -> Any:
    """Returns ``array`` as an input of a program; the memory is shared."""
    if array.size == 0:  # of which NumPy does not tell the steps that programs look at
        steps = [math.prod(array.shape[i + 1 :]) for i in range(array.ndim)]
        strides = [array.itemsize * step for step in steps]
        array = np.lib.stride_tricks.as_strided(array, array.shape, strides)
    return tvm_ffi.from_dlpack(array)


def as_array(tensor: Any) -> npt.NDArray[Any]:
    """Returns an output of a program; the memory is shared."""
    return np.from_dlpack(tensor)


def one_line(error: Exception) -> str:
    """Returns the last line of ``error``, of bounded length."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    text = " ".join(lines[-1].split()) if lines else type(error).__name__
    return text if len(text) <= 300 else f"{text[:297]}..."


def _load_runtime(paths: Sequence[Path]) -> None:
    if tvm_ffi.get_global_func(_BUILTIN, allow_missing=True) is not None:
        return
    for path in paths:
        try:
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise RuntimeError(f"cannot load {path.name}: {one_line(error)}") from None


@cache
def _register() -> None:
    library = open_library()
    if not library.edgedec_tvm_register(tvm_ffi.LIB._handle):
        raise RuntimeError("this tvm_ffi lacks functions of version 0.1: upgrade apache-tvm-ffi")


def _map(path: Path) -> npt.NDArray[np.uint8]:
    with path.open("rb") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)


def _open_nodes(nodes: str, weights: npt.NDArray[np.uint8]) -> int:
    why = ctypes.create_string_buffer(_MAX_BYTES)
    handle: int | None = open_library().edgedec_program_open(
        nodes.encode(), weights.ctypes.data, weights.nbytes, why, _MAX_BYTES
    )
    if not handle:
        raise RuntimeError(why.value.decode(errors="replace"))
    return handle
