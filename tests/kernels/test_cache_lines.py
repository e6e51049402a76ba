"""No two tasks of an operator write the same cache line, for the shapes of real models.

Tasks run one by one; what each of them changed is seen by comparing memory. A task that writes what
was there already stays unseen, so every case runs over memory of two different fillings.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from edgedec.kernels import cpu, library
from edgedec.models.quant import FORMATS

from ..doors import experts_op, head_norm_op, linear_op
from ..doors.row_stats_op import RowStatsArgs

Writers = dict[tuple[int, int], set[int]]
LINE = 64
ROWS = (1, 2, 3, 4, 8, 9, 16, 40)
_OBSERVER = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)


def aligned(shape, dtype, fill=0):
    """Returns an array that begins where a cache line does, as ONNX Runtime's tensors do."""
    n_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    whole = np.full(n_bytes + LINE, fill, np.uint8)
    start = -whole.ctypes.data % LINE
    return whole[start : start + n_bytes].view(dtype).reshape(shape)


def shared_memory():
    """Returns the memory that the tasks of the latest operator share, uint8 [n]."""
    n_bytes = ctypes.c_int64()
    function = library.open_library().edgedec_shared_memory
    function.restype = ctypes.c_void_p
    address = function(ctypes.byref(n_bytes))
    if not n_bytes.value:
        return np.zeros(0, np.uint8)
    return np.ctypeslib.as_array(
        ctypes.cast(address, ctypes.POINTER(ctypes.c_uint8)), (n_bytes.value,)
    )


def words(array):
    """Returns the memory of ``array`` in pieces that each lie in one line: 8 bytes, or else one."""
    flat = array.reshape(-1).view(np.uint8)
    return flat if flat.ctypes.data % 8 or len(flat) % 8 else flat.view(np.uint64)


@dataclass
class Watch:
    """Which cache lines of some arrays, and of the operators' own memory, the tasks wrote.

    writers: of each parallel region, by array and line, the tasks that wrote it.
    """

    arrays: list[Any]
    writers: list[Writers] = field(default_factory=list)
    n_tasks: list[int] = field(default_factory=list)
    _before: list[Any] = field(default_factory=list)

    def see(self, task: int, n_tasks: int) -> None:
        now = [words(array) for array in (*self.arrays, shared_memory())]
        if task < 0:
            self.writers.append({})
            self.n_tasks.append(n_tasks)
            self._before = [a.copy() for a in now]
            return
        for i, (old, new) in enumerate(zip(self._before, now, strict=True)):
            changed = np.flatnonzero(old != new)
            for line in np.unique((new.ctypes.data + new.itemsize * changed) // LINE):
                self.writers[-1].setdefault((i, int(line)), set()).add(task)
            old[changed] = new[changed]


@contextmanager
def watching(arrays: list[Any]) -> Iterator[Watch]:
    watch = Watch(arrays)
    observer = _OBSERVER(watch.see)
    observe = library.open_library().edgedec_observe_tasks
    observe.argtypes = (ctypes.c_void_p,)
    observe(ctypes.cast(observer, ctypes.c_void_p))
    try:
        yield watch
    finally:
        observe(None)


def regions_of(run: Callable[[], object], arrays: list[Any]) -> list[Writers]:
    """Returns the writers of each parallel region of ``run``, over memory of two fillings."""
    found: list[Writers] = []
    run()  # gives the operators their memory
    for fill in (0x00, 0xFF):
        for array in (*arrays, shared_memory()):
            array.reshape(-1).view(np.uint8)[:] = fill
        with watching(arrays) as watch:
            run()
        found = found or [{} for _ in watch.writers]
        for region, writers in zip(found, watch.writers, strict=True):
            for line, tasks in writers.items():
                region.setdefault(line, set()).update(tasks)
    return found


def assert_no_line_is_shared(run: Callable[[], object], arrays: list[Any]) -> int:
    """Returns the number of parallel regions in which several tasks wrote."""
    n_parallel = 0
    for number, region in enumerate(regions_of(run, arrays)):
        assert region, f"region {number} writes nothing that is watched"
        shared = {line: sorted(tasks) for line, tasks in region.items() if len(tasks) > 1}
        assert not shared, (
            f"region {number}: {len(shared)} of {len(region)} lines are written by several tasks,"
            f" such as {next(iter(shared.items()))}"
        )
        n_parallel += len(set.union(*region.values())) > 1
    return n_parallel


# Operators of SmolLM2-135M (Q4_1) and Qwen2.5 1.5B (Q4_K_M): formats, k, columns of each matrix.
# Panels are alike, so wide matrices are cut to some.
LINEARS = {
    "smollm2-qkv": (("q4_1", "q4_1", "q4_1"), 576, (192, 64, 64)),
    "smollm2-down": (("q4_1",), 1536, (192,)),
    "qwen-qkv": (("q4_k", "q4_k", "q6_k"), 1536, (192, 64, 64)),
    "qwen-down": (("q6_k",), 8960, (128,)),
    "float": (("f16",), 576, (64,)),
}


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", LINEARS)
def test_linear(isa, name, rows, make_matrix, rng):
    formats, k, columns = LINEARS[name]
    matrices = [make_matrix(FORMATS[f], n, k) for f, n in zip(formats, columns, strict=True)]
    x = rng.standard_normal((rows, k)).astype(np.float32)
    norm = np.ones(k, np.float32)
    out = aligned((rows, sum(columns)), np.float32)

    def run():
        linear_op.linear(x, matrices, norm_weight=norm, epsilon=1e-5, out=out, isa=isa)

    n_parallel = assert_no_line_is_shared(run, [out])
    assert n_parallel >= (2 if rows >= 16 else 1)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("n_heads", "n_kv_heads", "d"), [(9, 3, 64), (12, 2, 128)])
@pytest.mark.parametrize("past", [0, 37, 600])
def test_attention(make_case, isa, n_heads, n_kv_heads, d, past, rows, rng):
    case = make_case(n_heads, n_kv_heads, d, capacity=1024)
    keys, values = (aligned(a.shape, a.dtype) for a in (case.keys, case.values))
    qkv = rng.standard_normal((rows, (n_heads + 2 * n_kv_heads) * d)).astype(np.float32)
    positions, parents = np.arange(past, past + rows), np.arange(-1, rows - 1)
    table = np.ones((1024, d // 2), np.float32)
    out = aligned((rows, n_heads * d), np.float32)
    watched = replace(case, rope=(table, table), keys=keys, values=values)

    def run():
        watched.run(qkv, parents, past, positions, out=out, isa=isa)

    assert assert_no_line_is_shared(run, [out, keys, values]) >= (1 if rows < 4 else 2)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("n_heads", "n_kv_heads", "d"), [(9, 3, 20), (16, 8, 128)])
def test_head_norm(isa, n_heads, n_kv_heads, d, rows, rng):
    qkv = rng.standard_normal((rows, (n_heads + 2 * n_kv_heads) * d)).astype(np.float32)
    weights = (np.ones(d, np.float32),) * 2
    out = aligned(qkv.shape, np.float32)

    def run():
        head_norm_op.head_norm(qkv, weights, n_kv_heads, 1e-6, out=out, isa=isa)

    assert assert_no_line_is_shared(run, [out]) == (1 if rows > 16 else 0)


@pytest.mark.parametrize("rows", [1, 8, 40])
def test_experts(isa, rows, make_matrix, rng):
    fmt, n_experts, n_used, k, inner = FORMATS["q4_0"], 4, 2, 512, 128
    parts = []
    for n, columns in ((inner, k), (inner, k), (k, inner)):
        data = np.stack([make_matrix(fmt, n, columns).data] * n_experts)
        parts.append(experts_op.PackedExperts(data, fmt.index, n, columns))
    x = rng.standard_normal((rows, k)).astype(np.float32)
    router = rng.standard_normal((rows, n_experts)).astype(np.float32)
    out = aligned(x.shape, np.float32)

    def run():
        experts_op.experts(x, router, tuple(parts), n_used, residual=x, out=out, isa=isa)

    assert assert_no_line_is_shared(run, [out]) == {1: 2, 8: 3, 40: 6}[rows]


@pytest.mark.parametrize("rows", ROWS)
def test_row_stats(isa, rows, rng):
    logits = rng.standard_normal((rows, 49152)).astype(np.float32)
    types = (np.int64, np.float32, np.float32, np.int64, np.float32)
    results = [aligned((rows, 8 if i > 2 else 1), dtype) for i, dtype in enumerate(types)]
    args = RowStatsArgs(
        logits.ctypes.data, rows, logits.shape[1], *(array.ctypes.data for array in results)
    )

    def run():
        library.open_library().edgedec_row_stats(isa.encode(), ctypes.byref(args), 1)

    assert assert_no_line_is_shared(run, results) == (1 if rows <= 16 else 2)


def test_shared_lines_are_seen(rng):
    """Results of one float32 a column and task end within a line: what the others must never do."""
    codes = rng.integers(0, 16, (32, 256), dtype=np.uint8)
    data = cpu.pack(FORMATS["q4_0"].index, codes, np.ones((32, 8), np.float16))
    matrix = cpu.PackedMatrix(data, FORMATS["q4_0"].index, 32, 256)
    x = rng.standard_normal((1, 256)).astype(np.float32)
    whole = aligned((48,), np.float32)
    out = whole[4:36].reshape(1, 32)
    regions = regions_of(lambda: linear_op.linear(x, [matrix], out=out), [whole[:36]])
    assert [len(tasks) for tasks in regions[-1].values()].count(2) == 1
