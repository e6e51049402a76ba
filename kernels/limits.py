"""How fast this machine reads memory and multiplies bytes: what bounds every pass of a model."""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_double, c_int, c_int64, c_void_p

import numpy as np
import numpy.typing as npt

from edgedec.kernels import cpu, library


def read_rate(data: npt.NDArray[np.uint8], n_threads: int, seconds: float) -> float:
    """Returns the rate at which threads stream through ``data``, again and again.

    It is the memory's rate if ``data`` is far larger than the CPU's caches.

    Shapes: data [n] uint8, at least 4096 bytes per thread.
    Units: bytes per second.
    """
    _check(n_threads, seconds)
    if data.dtype != np.uint8 or data.ndim != 1 or not data.flags.c_contiguous:
        raise ValueError(f"data: got {data.dtype} {list(data.shape)}, expected uint8 [any], whole")
    if data.size < 4096 * n_threads:
        raise ValueError(f"data has {data.size} bytes, expected 4096 or more for each thread")
    function = _function("edgedec_read_rate", c_void_p, c_int64, c_int, c_double)
    return float(function(data.ctypes.data, data.size, n_threads, seconds))


def multiply_rate(n_threads: int, seconds: float, isa: str | None = None) -> float:
    """Returns the rate of the dot product the kernels use, with nothing else in its way.

    Units: multiply-accumulates of bytes per second.
    """
    _check(n_threads, seconds)
    isa_name = cpu.active_isa() if isa is None else isa
    function = _function("edgedec_multiply_rate", c_char_p, c_int, c_double)
    rate = float(function(isa_name.encode(), n_threads, seconds))
    if rate <= 0:
        raise RuntimeError(f"cannot use {isa_name!r}; usable: {', '.join(cpu.available_isas())}")
    return rate


def _check(n_threads: int, seconds: float) -> None:
    if n_threads < 1:
        raise ValueError(f"n_threads is {n_threads}, expected 1 or more")
    if not 0 < seconds <= 60:
        raise ValueError(f"seconds is {seconds}, expected above 0, 60 at most")


def _function(name: str, *arguments: type) -> ctypes._NamedFuncPointer:
    try:
        function: ctypes._NamedFuncPointer = getattr(library.open_library(), name)
    except AttributeError:
        raise RuntimeError(
            "the compiled kernels are from another version of edgedec: install it again"
        ) from None
    function.argtypes = arguments
    function.restype = c_double
    return function
