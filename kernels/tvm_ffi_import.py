"""The package `tvm_ffi`, imported without PyTorch, which it would load where there is one.

That takes seconds, and nothing of it is used here.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

_TORCH = "torch"


def import_tvm_ffi() -> Any:
    """Returns the package; raises an ImportError where there is none."""
    is_hidden = "tvm_ffi" not in sys.modules and _TORCH not in sys.modules
    if is_hidden:
        sys.modules[_TORCH] = None  # type: ignore[assignment]  # is how Python spells "not there"
    try:
        return import_module("tvm_ffi")
    finally:
        if is_hidden:
            del sys.modules[_TORCH]
