"""The door for compiled programs: lists of nodes that make no sense are refused with a reason.

What programs compute is compared with ONNX Runtime in tests/targets/tvm/test_tvm.py.
"""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from edgedec.kernels import library
from edgedec.kernels.library import open_library

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(not library.has_library(), reason="the kernel library is not built"),
]

WEIGHTS = np.zeros(4096, np.uint8)
EMBED = "Embed inputs=0 format=0 n=16 k=4"
TABLE = "constant.1=2,0,256"


def opened(nodes: str, weights: np.ndarray = WEIGHTS) -> str:
    """Returns why a list of nodes is refused; empty where it is not."""
    library = open_library()
    why = ctypes.create_string_buffer(512)
    handle = library.edgedec_program_open(
        nodes.encode(), weights.ctypes.data, weights.nbytes, why, len(why)
    )
    if handle:
        library.edgedec_program_close(handle)
    return why.value.decode()


@pytest.mark.parametrize("nodes", ["", f"{EMBED} {TABLE}", f"{EMBED} {TABLE}\n{EMBED}"])
def test_lists_that_make_sense(nodes: str) -> None:
    assert opened(nodes) == ""


@pytest.mark.robustness
@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ("Emboss inputs=0", "there is no operator Emboss"),
        ("Embed nonsense", "nonsense is no attribute"),
        ("Embed inputs=0 n=16 k=4", "attribute format is missing"),
        (f"Embed format=0 n=16 k=4 {TABLE}", "attribute inputs is missing"),
        ("Embed inputs=0 format=0 n=x k=4", "sto"),
        ("Embed inputs=0 format=0 n=16 k=99999999999999999999", "sto"),
        (f"{EMBED} constant.1=2,0", "table has shape []"),
        (f"{EMBED} constant.1=2", "constant 1 has no place"),
        (f"{EMBED} constant.1=2,0,255", "table has shape [255], expected [256]"),
        (f"{EMBED} constant.1=9,0,256", "a constant of element type 9"),
        (f"{EMBED} constant.1=2,3841,256", "lies outside the 4096 bytes of weights"),
        (f"{EMBED} constant.1=2,-1,256", "lies outside the 4096 bytes of weights"),
        (f"{EMBED} constant.1=2,0,-256", "lies outside the 4096 bytes of weights"),
        (f"{EMBED} constant.1=2,0,4611686018427387904,4", "lies outside the 4096 bytes"),
        (f"{EMBED} constant.1=2,2,256", "lies at an odd address"),
        (f"{EMBED} {TABLE}\nLinear inputs=0", "Linear: attribute formats is missing"),
    ],
)
def test_lists_that_do_not(nodes: str, reason: str) -> None:
    assert reason in opened(nodes)
