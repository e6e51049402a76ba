"""What `make test-sanitize` relies on: the sanitizer of memory sees where arrays end."""

from __future__ import annotations

import ctypes
import os

import numpy as np
import pytest

from .op_node import open_node

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(
        "libasan" not in os.environ.get("LD_PRELOAD", ""), reason="no sanitizer of memory here"
    ),
]


def is_poisoned(address: int) -> bool:
    """Whether the sanitizer reports a kernel that reads or writes the byte there."""
    function = ctypes.CDLL(None).__asan_address_is_poisoned
    function.argtypes = [ctypes.c_void_p]
    return bool(function(address))


def test_arrays_of_onnx_runtime_end_where_they_end() -> None:
    """Its usual allocator takes large pieces, in which an array is followed by another."""
    feeds = {"qkv": np.ones((1, 3, 40), np.float32)}
    weights = {name: np.ones(10, np.float32) for name in ("q_weight", "k_weight")}
    attributes = {"n_heads": 2, "n_kv_heads": 1, "epsilon": 1e-5}
    session = open_node("HeadNorm", [*feeds, *weights], feeds, weights, attributes)
    binding = session.io_binding()
    binding.bind_cpu_input("qkv", feeds["qkv"])
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    begin, n_bytes = binding.get_outputs()[0].data_ptr(), feeds["qkv"].nbytes
    assert [is_poisoned(begin + place) for place in (-1, 0, n_bytes - 1, n_bytes)] == [
        True, False, False, True,
    ]  # fmt: skip
