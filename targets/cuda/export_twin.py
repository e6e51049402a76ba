"""A program's kernels on this machine's CPU: the same functions, whose loops stay loops.

That is how a program is verified where it is made, and where there is no GPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm_ffi

from edgedec.kernels.device_program import ALIGNMENT, KernelCall
from edgedec.targets.cuda.export_cuda_source import cpu_function
from edgedec.targets.cuda.export_kernel import Kernel

Array = npt.NDArray[Any]


class CpuTwin:
    """A `Device` whose memory is the host's."""

    def __init__(self, kernels: Iterable[Kernel]) -> None:
        kernels = list(kernels)
        self._kernels = {kernel.name: kernel for kernel in kernels}
        self._functions: dict[str, Any] = {}
        self._shapes = {
            kernel.name: [
                (tuple(int(n) for n in p.shape), np.dtype(str(p.dtype)))
                for p in kernel.function.params
            ]
            for kernel in kernels
        }
        self._memory: dict[int, Array] = {}

    def allocate(self, n_bytes: int) -> int:
        """Returns the address of so many bytes."""
        memory = np.zeros(n_bytes + ALIGNMENT, np.uint8)
        address = -(-memory.ctypes.data // ALIGNMENT) * ALIGNMENT
        self._memory[address] = memory
        return address

    def free(self, address: int) -> None:
        """Gives memory back."""
        del self._memory[address]

    def write(self, address: int, values: Array) -> None:
        """Copies ``values`` to the memory."""
        values = np.ascontiguousarray(values)
        ctypes.memmove(address, values.ctypes.data, values.nbytes)

    def read(self, address: int, values: Array) -> None:
        """Copies from the memory to ``values``."""
        ctypes.memmove(values.ctypes.data, address, values.nbytes)

    def prepare(self, calls: Sequence[KernelCall]) -> list[tuple[Any, list[Any]]]:
        """Returns functions and tensors over their arguments; the geometries are a GPU's.

        What is never launched is never compiled.
        """
        return [self._prepared(call) for call in calls]

    def launch(self, prepared: list[tuple[Any, list[Any]]]) -> None:
        """Runs functions, one after the other."""
        for function, tensors in prepared:
            function(*tensors)

    def discard(self, prepared: list[tuple[Any, list[Any]]]) -> None:
        """Forgets the tensors."""
        prepared.clear()

    def close(self) -> None:
        """Gives all memory back."""
        self._memory.clear()

    def _prepared(self, call: KernelCall) -> tuple[Any, list[Any]]:
        if call.kernel not in self._functions:
            self._functions[call.kernel] = cpu_function(self._kernels[call.kernel])
        both = zip(call.addresses, self._shapes[call.kernel], strict=True)
        tensors = [tvm_ffi.from_dlpack(_view(address, *shape)) for address, shape in both]
        return self._functions[call.kernel], tensors


def _view(address: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    n_bytes = int(np.prod(shape)) * dtype.itemsize
    raw = (ctypes.c_uint8 * n_bytes).from_address(address)
    whole: Array = np.frombuffer(raw, np.uint8)  # type: ignore[call-overload]
    return whole.view(dtype).reshape(shape)
