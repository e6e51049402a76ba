"""NVIDIA GPUs through their driver alone: `libcuda`, which comes with it, called by ctypes.

Nothing of CUDA's toolkit is needed to run.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edgedec.kernels.device_program import KernelCall
from edgedec.system.machine import nvidia_driver

LIBRARY = nvidia_driver()

_OUT_OF_MEMORY, _NO_DEVICE = 2, 100
_MAJOR, _MINOR = 75, 76  # attributes of a device: its compute capability
_NAME_BYTES = 256

Array = npt.NDArray[Any]


class _NodeParameters(ctypes.Structure):
    """``CUDA_KERNEL_NODE_PARAMS_v2`` of the driver."""

    _fields_ = (
        ("function", c_void_p),
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared_bytes", c_uint),
        ("parameters", c_void_p),
        ("extra", c_void_p),
        ("kernel", c_void_p),
        ("context", c_void_p),
    )


_EARLY = (ctypes.c_ubyte * 8)(1, 0, 1)
"""``CUgraphEdgeData``: a kernel starts when all blocks of the one before said that it may."""


_NEEDED = ("cuGraphInstantiateWithFlags", "cuGraphAddKernelNode_v2")
_NEEDED_TO_WAIT = ("cuGraphAddDependencies_v2",)
"""Functions that older drivers lack; the second where kernels wait for the one before."""


class CudaError(RuntimeError):
    """The driver, or a device, refused. The message is one line."""


class CudaKernelsError(CudaError):
    """The driver does not take the kernels."""


@dataclass(frozen=True)
class GpuFacts:
    """A GPU that the driver offers. arch: such as sm_87."""

    index: int
    name: str
    arch: str
    n_bytes: int

    def runs(self, arch: str) -> bool:
        """Says whether kernels for ``arch`` run on it: those for older GPUs do."""
        return _number(self.arch) >= _number(arch)


def find_gpus() -> list[GpuFacts]:
    """Returns the GPUs that the driver offers.

    Raises:
        CudaError: There is no driver, or it does not start.
    """
    driver, count = _load_driver(), c_int()
    if driver.cuInit(0) == _NO_DEVICE:
        return []
    driver = _open_driver()
    _check(driver, driver.cuDeviceGetCount(byref(count)), "count the devices")
    return [_facts(driver, index) for index in range(count.value)]


class CudaDevice:
    """A GPU with the kernels of one program; a `Device`."""

    def __init__(self, facts: GpuFacts, image: bytes, waits: bool = False) -> None:
        """Opens the GPU and loads ``image``, a cubin or fatbin, or PTX.

        waits: its kernels wait for the one before, so that they are launched early.

        Raises:
            CudaKernelsError: They do not run there.
            CudaError: The GPU does not start.
            MemoryError: It has too little memory.
        """
        self._driver, self._waits = _open_driver(_NEEDED_TO_WAIT if waits else ()), waits
        self._device, self._context, self._module = c_int(), c_void_p(), c_void_p()
        self._addresses: set[int] = set()
        self._graphs: set[int] = set()
        self._functions: dict[str, c_void_p] = {}
        driver = self._driver
        self._call(driver.cuDeviceGet(byref(self._device), facts.index), "open the GPU")
        error = driver.cuDevicePrimaryCtxRetain(byref(self._context), self._device)
        self._call(error, "start the GPU")
        self._make_current()
        try:
            self._load(image)
        except (CudaError, MemoryError):
            driver.cuDevicePrimaryCtxRelease_v2(self._device)
            raise

    def allocate(self, n_bytes: int) -> int:
        """Returns the address of so many bytes; a MemoryError where there are not so many."""
        self._make_current()
        address = c_uint64()
        error = self._driver.cuMemAlloc_v2(byref(address), c_size_t(max(n_bytes, 1)))
        self._call(error, f"allocate {n_bytes:,} bytes")
        self._addresses.add(address.value)
        return address.value

    def free(self, address: int) -> None:
        """Gives memory back, as far as the device still answers."""
        if address in self._addresses:
            self._make_current()
            self._addresses.discard(address)
            self._driver.cuMemFree_v2(c_uint64(address))

    def write(self, address: int, values: Array) -> None:
        """Copies ``values`` to the device."""
        self._make_current()
        values = np.ascontiguousarray(values)
        source = c_void_p(values.ctypes.data)
        self._call(
            self._driver.cuMemcpyHtoD_v2(c_uint64(address), source, c_size_t(values.nbytes)),
            "copy to the GPU",
        )

    def read(self, address: int, values: Array) -> None:
        """Copies from the device to ``values``, behind all that was launched."""
        self._make_current()
        into = c_void_p(values.ctypes.data)
        self._call(
            self._driver.cuMemcpyDtoH_v2(into, c_uint64(address), c_size_t(values.nbytes)),
            "copy from the GPU",
        )

    def prepare(self, calls: Sequence[KernelCall]) -> int:
        """Returns a graph of ``calls``: the driver launches it as one."""
        self._make_current()
        driver, graph, ready = self._driver, c_void_p(), c_void_p()
        self._call(driver.cuGraphCreate(byref(graph), c_uint(0)), "make a graph")
        try:
            before: c_void_p | None = None
            for call in calls:
                before = self._add_node(graph, call, before)
            self._call(
                driver.cuGraphInstantiateWithFlags(byref(ready), graph, c_uint64(0)),
                "make a graph of kernels",
            )
        finally:
            driver.cuGraphDestroy(graph)
        assert ready.value is not None
        self._graphs.add(ready.value)
        return ready.value

    def launch(self, prepared: int) -> None:
        """Runs a graph; the next `read` reports what fails in it."""
        self._make_current()
        self._call(self._driver.cuGraphLaunch(c_void_p(prepared), None), "launch kernels")

    def discard(self, prepared: int) -> None:
        """Gives a graph back, as far as the device still answers."""
        if prepared in self._graphs:
            self._make_current()
            self._graphs.discard(prepared)
            self._driver.cuGraphExecDestroy(c_void_p(prepared))

    def close(self) -> None:
        """Gives all back; a device that does not answer any more cannot refuse."""
        if not self._context:
            return
        self._make_current()
        for graph in [*self._graphs]:
            self.discard(graph)
        for address in [*self._addresses]:
            self.free(address)
        self._driver.cuModuleUnload(self._module)
        self._driver.cuDevicePrimaryCtxRelease_v2(self._device)
        self._context = c_void_p()

    def _make_current(self) -> None:
        """Makes the device that of this thread."""
        if not self._context:
            raise CudaError("the device is closed")
        self._driver.cuCtxSetCurrent(self._context)

    def _load(self, image: bytes) -> None:
        try:
            error = self._driver.cuModuleLoadData(byref(self._module), image)
            self._call(error, "load the kernels")
        except CudaError as error:
            raise CudaKernelsError(str(error)) from None

    def _add_node(self, graph: c_void_p, call: KernelCall, before: c_void_p | None) -> c_void_p:
        """Adds ``call`` to ``graph``, behind the node ``before``, and returns its node."""
        node, geometry = c_void_p(), call.geometry
        pointers = [c_uint64(call.addresses[i]) for i in geometry.order]
        parameters = (c_void_p * len(pointers))(*(ctypes.addressof(p) for p in pointers))
        node_parameters = _NodeParameters(
            self._function(call.kernel),
            (c_uint * 3)(*geometry.grid),
            (c_uint * 3)(*geometry.block),
            parameters=ctypes.cast(parameters, c_void_p),
        )
        driver, what = self._driver, f"add the kernel {call.kernel} to a graph"
        behind = [before] if before and not self._waits else []
        nodes, n_nodes = (c_void_p * len(behind))(*behind), c_size_t(len(behind))
        added = driver.cuGraphAddKernelNode_v2(
            byref(node), graph, nodes, n_nodes, byref(node_parameters)
        )
        self._call(added, what)
        if before and self._waits:
            ends = (byref(before), byref(node), _EARLY, c_size_t(1))
            self._call(driver.cuGraphAddDependencies_v2(graph, *ends), what)
        return node

    def _function(self, kernel: str) -> c_void_p:
        if kernel not in self._functions:
            function, name = c_void_p(), f"{kernel}_kernel".encode()
            self._call(
                self._driver.cuModuleGetFunction(byref(function), self._module, name),
                f"find the kernel {kernel}",
            )
            self._functions[kernel] = function
        return self._functions[kernel]

    def _call(self, error: int, what: str) -> None:
        _check(self._driver, error, what)


def _number(arch: str) -> int:
    digits = arch.removeprefix("sm_")
    return int(digits) if digits.isdigit() else 0


def _facts(driver: Any, index: int) -> GpuFacts:
    device, major, minor, total = c_int(), c_int(), c_int(), c_size_t()
    name = ctypes.create_string_buffer(_NAME_BYTES)
    for error in (
        driver.cuDeviceGet(byref(device), index),
        driver.cuDeviceGetName(name, _NAME_BYTES, device),
        driver.cuDeviceGetAttribute(byref(major), _MAJOR, device),
        driver.cuDeviceGetAttribute(byref(minor), _MINOR, device),
        driver.cuDeviceTotalMem_v2(byref(total), device),
    ):
        _check(driver, error, f"look at device {index}")
    arch = f"sm_{major.value}{minor.value}"
    return GpuFacts(index, name.value.decode(errors="replace"), arch, total.value)


def driver_version() -> str:
    """Returns the newest version of CUDA that the driver supports, such as 12.4.

    Raises:
        CudaError: There is no driver.
    """
    version = c_int()
    _load_driver().cuDriverGetVersion(byref(version))
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def _load_driver() -> Any:
    try:
        return ctypes.CDLL(LIBRARY)
    except OSError:
        raise CudaError(f"there is no NVIDIA driver here ({LIBRARY} is missing)") from None


def _open_driver(needed: Sequence[str] = ()) -> Any:
    """Returns the driver, started; a CudaError where it lacks `_NEEDED` or ``needed``."""
    driver = _load_driver()
    _check(driver, driver.cuInit(0), "start the driver")
    if missing := [name for name in (*_NEEDED, *needed) if not hasattr(driver, name)]:
        raise CudaError(
            f"NVIDIA's driver here is too old: it supports CUDA {driver_version()}, which has no "
            f"{missing[0]}"
        )
    return driver


def _check(driver: Any, error: int, what: str) -> None:
    """Raises a MemoryError or a CudaError where a call of the driver returned ``error``."""
    if error:
        text = c_char_p()
        driver.cuGetErrorString(error, byref(text))
        reason = text.value.decode(errors="replace") if text.value else f"error {error}"
        kind = MemoryError if error == _OUT_OF_MEMORY else CudaError
        raise kind(f"CUDA cannot {what}: {reason}")
