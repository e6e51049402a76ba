"""The Python door refuses what does not fit, and says which ISA it uses."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import re
import subprocess
import sys

import numpy as np
import pytest

from edgedec import kernels
from edgedec.kernels import cpu, embed_op, library
from edgedec.models.quant import FORMATS

from ..doors import attention_op, linear_op
from ..doors.linear_op import LinearArgs


def f32(*shape):
    return np.zeros(shape, np.float32)


def i64(*values):
    return np.array(values, np.int64)


@pytest.fixture
def matrix(make_matrix):
    return make_matrix(FORMATS["q4_1"], 20, 64)


def test_every_isa_is_tested(all_isas):
    """A new instruction set has to join the list in conftest.py."""
    assert set(cpu.available_isas()) <= set(all_isas)
    assert cpu.available_isas()[-1] == "scalar"


def run_python(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_library_of_another_platform_is_one_line(tmp_path):
    """What a wheel for Windows would leave behind on another system."""
    dll = tmp_path / "libedgedec_kernels.dll"
    dll.write_bytes(b"MZ" + bytes(4094))
    code = (
        "import sys; from pathlib import Path\n"
        "from edgedec.kernels import cpu, library\n"
        "library.library_path = lambda: Path(sys.argv[1])\n"
        "try: cpu.available_isas()\n"
        "except RuntimeError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(dll)], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("cannot use libedgedec_kernels.dll: ")
    assert "install edgedec again: its wheel for this system" in done.stdout
    assert len(done.stdout.splitlines()) == 1


def test_isa_is_chosen_by_environment():
    code = "from edgedec.kernels import cpu; print(cpu.active_isa())"
    assert run_python(code, EDGEDEC_ISA="scalar").stdout.strip() == "scalar"
    assert run_python(code, EDGEDEC_ISA="").stdout.strip() == cpu.available_isas()[0]


def test_unusable_isa_is_an_error_not_a_downgrade():
    code = "from edgedec.kernels import cpu; cpu.active_isa()"
    error = run_python(code, EDGEDEC_ISA="sse9").stderr
    assert "RuntimeError" in error
    assert "EDGEDEC_ISA" in error
    assert "scalar" in error


def test_unknown_isa_argument(matrix):
    with pytest.raises(RuntimeError, match=r"cannot use 'sse9'; usable: .*scalar"):
        linear_op.linear(f32(1, 64), [matrix], isa="sse9")


def test_missing_library(monkeypatch, tmp_path):
    monkeypatch.setattr(kernels.__spec__, "submodule_search_locations", [str(tmp_path)])
    assert not library.has_library()
    with pytest.raises(RuntimeError, match=r"compiled kernels .* are missing: install"):
        library.library_path()


def test_library_that_is_no_library(monkeypatch, tmp_path):
    (tmp_path / "libedgedec_kernels.so").write_bytes(b"not a library")
    monkeypatch.setattr(kernels.__spec__, "submodule_search_locations", [str(tmp_path)])
    library.open_library.cache_clear()
    try:
        with pytest.raises(RuntimeError, match=r"cannot use libedgedec_kernels\.so"):
            cpu.available_isas()
    finally:
        library.open_library.cache_clear()


def test_struct_of_another_version():
    class Longer(ctypes.Structure):
        _fields_ = (*LinearArgs._fields_, ("more", ctypes.c_int64))

    with pytest.raises(RuntimeError, match="another version of edgedec"):
        library.operator("linear", Longer)


@pytest.mark.parametrize(
    ("fmt", "n", "k", "text"),
    [
        (14, 16, 32, "weight format is 14, expected 0 to 13"),
        (-1, 16, 32, "weight format is -1"),
        (4, 0, 32, "matrix is [0, 32]"),
        (4, 16, -5, "matrix is [16, -5]"),
        (0, 2**62, 2**62, "expected sizes of 1 to 2**31"),
        (9, 16, 288, "k is 288, format 9 expects a multiple of 256"),
    ],
)
def test_packed_nbytes_refuses(fmt, n, k, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        cpu.packed_nbytes(fmt, n, k)


CODES = np.zeros((4, 64), np.uint8)
SCALE = np.zeros((4, 2), np.float16)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((3, np.zeros(64, np.uint8), SCALE), "codes have shape [64], expected [n, k]"),
        ((3, np.zeros((4, 64), np.int8), SCALE), "codes: got int8 [4, 64], expected uint8 [4, 64]"),
        ((3, CODES), "format 3 expects scale"),
        ((3, CODES, SCALE[:, :1]), "scale: got float16 [4, 1], expected float16 [4, 2]"),
        ((3, CODES, SCALE.astype(np.float32)), "scale: got float32"),
        ((3, CODES, SCALE, SCALE), "format 3 has no minimum"),
        ((4, CODES, SCALE), "format 4 expects minimum"),
        ((3, CODES + 16, SCALE), "codes reach 16, expected below 16"),
        ((11, CODES, SCALE), "k is 64, format 11 expects a multiple of 256"),
        ((0, CODES), "codes: got uint8 [4, 64], expected float32 [4, 64]"),
        ((2, np.zeros((4, 4), np.float16)), "codes: got float16 [4, 4], expected uint16 [4, 4]"),
        ((1, np.zeros((0, 4), np.float16)), "matrix is [0, 4]"),
    ],
)
def test_pack_refuses(arguments, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        cpu.pack(*arguments)


def test_packed_matrix_refuses(matrix):
    with pytest.raises(ValueError, match="packed matrix: got uint8"):
        dataclasses.replace(matrix, data=matrix.data[:-1].copy())
    with pytest.raises(ValueError, match=re.escape("bias: got float32 [19], expected float32")):
        dataclasses.replace(matrix, bias=f32(19))


def at_odd_address(array):
    raw = np.zeros(array.nbytes + 1, np.uint8)
    raw[1:] = array.view(np.uint8).reshape(-1)
    return raw[1:].view(array.dtype).reshape(array.shape)


def test_odd_addresses_are_refused(matrix):
    with pytest.raises(ValueError, match=r"packed matrix: got address % 4 = \d, expected 0"):
        dataclasses.replace(matrix, data=at_odd_address(matrix.data))
    with pytest.raises(ValueError, match="x: got elements at odd addresses"):
        linear_op.linear(at_odd_address(f32(1, 64)), [matrix])


@pytest.mark.parametrize(
    ("x", "options", "text"),
    [
        (f32(64), {}, "x: got float32 [64], expected float32 [any, any]"),
        (np.zeros((1, 64)), {}, "x: got float64"),
        (f32(1, 63), {}, "a matrix is [20, 64], expected 63 columns, as x"),
        (f32(64, 2).T, {}, "x: got a strided view"),
        (f32(1, 64), {"norm_weight": f32(63)}, "norm_weight: got float32 [63]"),
        (f32(1, 64), {"residual": f32(1, 19)}, "residual: got float32 [1, 19]"),
        (f32(1, 64), {"out": f32(2, 20)}, "out: got float32 [2, 20]"),
        (f32(1, 64), {"gate": True}, "gate expects two matrices with equal n, got [20]"),
        (f32(1, 64), {"n_threads": 0}, "n_threads is 0"),
    ],
)
def test_linear_refuses(matrix, x, options, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        linear_op.linear(x, [matrix], **options)


def test_linear_refuses_matrices(matrix):
    x = f32(1, 64)
    for count in (0, 4):
        with pytest.raises(ValueError, match=f"got {count} matrices, expected 1 to 3"):
            linear_op.linear(x, [matrix] * count)
    with pytest.raises(ValueError, match="gate expects no bias"):
        linear_op.linear(x, [matrix, dataclasses.replace(matrix, bias=f32(20))], gate=True)
    with pytest.raises(ValueError, match="gate expects no residual"):
        linear_op.linear(x, [matrix, matrix], gate=True, residual=f32(1, 20))


@pytest.mark.parametrize("ids", [i64(20), i64(-1), i64(3, 2**40)])
def test_embed_refuses_foreign_ids(matrix, ids):
    with pytest.raises(ValueError, match=r"ids: got .* expected 0 and up, below 20"):
        embed_op.embed(ids, matrix)


def attention(**changes):
    """Runs two rows of 4 heads over 2 KV heads of size 8, with some arguments changed."""
    arguments = {
        "qkv": f32(2, 64),
        "positions": i64(0, 1),
        "parents": i64(-1, 0),
        "past": 0,
        "rope": (f32(9, 4), f32(9, 4)),
        "kv_cache": (np.zeros((2, 2, 8, 16), np.float16), np.zeros((2, 32, 8), np.float16)),
    }
    return attention_op.attention(**{**arguments, **changes})


def halves(*shape):
    return np.zeros(shape, np.float16)


def blocks(*shape):
    return np.zeros(shape, np.uint8)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"qkv": f32(2, 60)}, "qkv [2, 60] and values [2, 32, 8] do not fit together"),
        ({"qkv": f32(2, 32)}, "do not fit together"),
        ({"qkv": f32(2, 56)}, "do not fit together"),
        ({"positions": i64(0)}, "positions: got int64 [1], expected int64 [2]"),
        ({"positions": i64(0, 9)}, "positions: got 0 to 9, expected 0 and up, below 9"),
        ({"positions": i64(-1, 0)}, "positions: got -1 to 0"),
        ({"parents": i64(-1, 1)}, "parents: got -1 to 1, expected -1 and up, below the own row"),
        ({"parents": i64(-2, 0)}, "parents: got -2 to 0"),
        ({"parents": i64(-1)}, "parents are 1, expected one for each of the 2 rows, or more"),
        ({"parents": i64(*[-1] * 33)}, "past 0 + 33 rows do not fit a KV cache of 32 rows"),
        ({"past": 31}, "past 31 + 2 rows do not fit a KV cache of 32 rows"),
        ({"past": -1}, "past -1 + 2 rows"),
        ({"rope": (f32(9, 3), f32(9, 3))}, "values: got float16 [2, 32, 8], expected float16 [any"),
        ({"rope": (f32(36), f32(9, 4))}, "cosines: got float32 [36]"),
        ({"rope": (f32(9, 4), f32(8, 4))}, "sines: got float32 [8, 4]"),
        ({"kv_cache": (halves(2, 2, 8, 16), halves(2, 31, 8))}, "keys: got float16 [2, 2, 8, 16]"),
        ({"kv_cache": (halves(2, 1, 8, 16), halves(2, 17, 8))}, "do not fit together"),
        ({"kv_cache": (halves(2, 2, 7, 16), halves(2, 32, 7))}, "values: got float16 [2, 32, 7]"),
        ({"kv_cache": (blocks(2, 2, 287), blocks(2, 2, 287))}, "keys: got uint8 [2, 2, 287]"),
        ({"kv_cache": (blocks(2, 2, 288), blocks(2, 1, 288))}, "values: got uint8 [2, 1, 288]"),
        ({"kv_cache": (blocks(2, 2, 288), halves(2, 32, 8))}, "values: got float16 [2, 32, 8]"),
        ({"kv_cache": (blocks(2, 2, 288),) * 2, "past": 31}, "KV cache of 32 rows"),
    ],
)
def test_attention_refuses(changes, text):
    assert attention().shape == (2, 32)
    with pytest.raises(ValueError, match=re.escape(text)):
        attention(**changes)


def test_attention_refuses_a_read_only_cache():
    keys, values = halves(2, 2, 8, 16), halves(2, 32, 8)
    values.flags.writeable = False
    with pytest.raises(ValueError, match="KV cache is read-only"):
        attention(kv_cache=(keys, values))
