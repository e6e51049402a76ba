"""Finds and opens the compiled kernels, and states what of their C interface operators share."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from ctypes import POINTER, c_char_p, c_int, c_int64, c_void_p
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

_NAMES = ("libedgedec_kernels.so", "libedgedec_kernels.dylib", "libedgedec_kernels.dll")
_REBUILD = "install edgedec again: its wheel for this system, or a checkout with a C++ compiler"


_PROGRAMS: tuple[tuple[str, tuple[Any, ...], Any], ...] = (
    ("edgedec_tvm_register", (c_void_p,), c_int),
    ("edgedec_program_open", (c_char_p, c_void_p, c_int64, c_char_p, c_int64), c_void_p),
    ("edgedec_program_close", (c_void_p,), None),
    ("edgedec_pool_open", (c_int, POINTER(c_int), c_int), c_void_p),
    ("edgedec_pool_close", (c_void_p,), None),
    ("edgedec_pool_wake", (c_void_p,), None),
    ("edgedec_pass_begin", (c_void_p, c_void_p), None),
    ("edgedec_pass_end", (c_void_p,), None),
    ("edgedec_pass_stop", (c_void_p,), None),
)
"""What src/tvm_ops.cc exports: name, arguments, result."""


class MatrixArgs(ctypes.Structure):
    """``Matrix`` of src/kernels.h."""

    _fields_ = (("packed", c_void_p), ("bias", c_void_p), ("format", c_int), ("n", c_int64))


class PlainArgs(ctypes.Structure):
    """``PlainMatrix`` of src/kernels.h."""

    _fields_ = (
        ("format", c_int),
        ("n", c_int64),
        ("k", c_int64),
        ("codes", c_void_p),
        ("scale", c_void_p),
        ("minimum", c_void_p),
        ("sub_scale", c_void_p),
        ("sub_minimum", c_void_p),
    )


_lent: list[Path] = []


def lend_library(path: Path) -> None:
    """Makes ``path`` the compiled kernels of this process, if they were not built."""
    _lent[:] = [path]


def library_path() -> Path:
    """Returns where the compiled kernels are; RuntimeError if they were not built, or lent.

    In an editable installation they lie beside the installed package, not beside this file, so
    every folder of the package is searched.
    """
    package = find_spec("edgedec.kernels")
    for folder in (package and package.submodule_search_locations) or ():
        for name in _NAMES:
            if (path := Path(folder) / name).is_file():
                return path
    if _lent:
        return _lent[0]
    raise RuntimeError(f"the compiled kernels ({_NAMES[0]}) are missing: {_REBUILD}")


def has_library() -> bool:
    """Returns whether the compiled kernels were built."""
    try:
        library_path()
    except RuntimeError:
        return False
    return True


@functools.cache
def open_library() -> ctypes.CDLL:
    """Returns the opened library; RuntimeError if it is missing or from another version."""
    path = library_path()
    try:
        library = ctypes.CDLL(str(path))
        _declare(library)
    except (OSError, AttributeError) as error:
        raise RuntimeError(f"cannot use {path.name}: {error}; {_REBUILD}") from None
    _check_size(library, "pack", PlainArgs)
    return library


@functools.cache
def operator(name: str, struct: type[ctypes.Structure]) -> Callable[[bytes, object, int], int]:
    """Returns the operator ``name``, called with instruction set, arguments and threads.

    It returns 1, 0 without that instruction set, or -1 without memory.

    Raises:
        RuntimeError: The library has no such operator, or one with other arguments.
    """
    library = open_library()
    _check_size(library, name, struct)
    function = getattr(library, f"edgedec_{name}")
    function.argtypes = (c_char_p, POINTER(struct), c_int)
    function.restype = c_int
    return cast("Callable[[bytes, object, int], int]", function)


def _declare(library: ctypes.CDLL) -> None:
    library.edgedec_args_bytes.argtypes = (c_char_p,)
    library.edgedec_args_bytes.restype = c_int64
    library.edgedec_available_isas.argtypes = ()
    library.edgedec_available_isas.restype = c_char_p
    library.edgedec_active_isa.argtypes = (POINTER(c_char_p),)
    library.edgedec_active_isa.restype = c_char_p
    library.edgedec_packed_nbytes.argtypes = (c_int, c_int64, c_int64)
    library.edgedec_packed_nbytes.restype = c_int64
    library.edgedec_pack.argtypes = (POINTER(PlainArgs), c_void_p)
    library.edgedec_pack.restype = None
    for name, argtypes, restype in _PROGRAMS:
        function = getattr(library, name)
        function.argtypes, function.restype = argtypes, restype


def wrong_version() -> RuntimeError:
    """Returns the error of a library whose functions are others, or take other arguments."""
    return RuntimeError(f"the compiled kernels are from another version of edgedec: {_REBUILD}")


def _check_size(library: ctypes.CDLL, name: str, struct: type[ctypes.Structure]) -> None:
    if library.edgedec_args_bytes(name.encode()) != ctypes.sizeof(struct):
        raise wrong_version()
