"""Kernels against float64: compiled for the CPU, and as CUDA source on an emulated GPU."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from edgedec.models.quant import FORMATS, PlainTensor
from edgedec.runtime.sequences.row_stats import RowStats

pytest.importorskip("tvm", reason="needs the extra tvm")

from emulated_cuda import build_driver

from edgedec.kernels import cuda_driver
from edgedec.kernels.device_program import MASK_WORDS, SCALARS, Device, KernelCall
from edgedec.targets.cuda import export_attention as attention
from edgedec.targets.cuda import export_rows as rows
from edgedec.targets.cuda import export_stats as stats
from edgedec.targets.cuda.export_cuda_source import CudaSource, cuda_source
from edgedec.targets.cuda.export_kernel import Kernel
from edgedec.targets.cuda.export_products import StoredMatrix, product
from edgedec.targets.cuda.export_stored import codes_of, minimums_of, scales_of
from edgedec.targets.cuda.export_twin import CpuTwin

pytestmark = pytest.mark.kernel

Array = npt.NDArray[Any]
RNG = np.random.default_rng(20261122)
NVCC = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")


@dataclass(frozen=True)
class Case:
    """A kernel, its arguments, and what some of them hold behind it, by their index."""

    kernel: Kernel
    arguments: tuple[Array, ...]
    expected: dict[int, Array]


def floats(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def ints(values: Any) -> Array:
    return np.array(values, np.int32)


def plain(name: str, n: int, k: int) -> PlainTensor:
    """Returns a matrix of random codes, of weights of size about 1."""
    fmt = FORMATS[name]
    if fmt.is_float:
        return PlainTensor(fmt, floats(n, k).astype(np.float16))
    codes = RNG.integers(0, 1 << fmt.bits, (n, k), dtype=np.uint8)
    is_nested = name == "q6_k"
    scale = RNG.uniform(0.5, 1, (n, k // (256 if is_nested else 32))).astype(np.float16)
    scale /= np.float16(1 << fmt.bits)
    if is_nested:  # powers of two, whose products with scales are float16, too
        return PlainTensor(fmt, codes, scale, sub_scale=np.full((n, k // 16), 2, np.int8))
    return PlainTensor(fmt, codes, scale, -scale * np.float16(3) if fmt.has_minimum else scale)


def stored(matrix: PlainTensor) -> tuple[StoredMatrix, list[Array]]:
    layout = StoredMatrix.of(*matrix.shape, matrix.format)
    parts = [codes_of(layout, matrix)]
    if layout.bits < 16:
        parts.append(scales_of(matrix))
    if layout.has_minimum:
        parts.append(minimums_of(matrix))
    return layout, parts


def product_case(n_rows: int, name: str, n: int, k: int, extras: str = "") -> Case:
    matrix = plain(name, n, k)
    layout, parts = stored(matrix)
    x, bias, residual = floats(n_rows, k), floats(n), floats(n_rows, n)
    expected = x.astype(np.float64) @ matrix.dequantize().astype(np.float64).T
    extra = []
    if "bias" in extras:
        expected, extra = expected + bias, [bias]
    if "add" in extras:
        expected, extra = expected + residual, [*extra, residual]
    kernel = product(n_rows, layout, "bias" in extras, "add" in extras)
    arguments = (x, *parts, *extra, np.zeros((n_rows, n), np.float32))
    return Case(kernel, arguments, {len(arguments) - 1: expected})


def embed_case() -> Case:
    matrix = plain("q4_1", 40, 96)
    layout, parts = stored(matrix)
    ids = ints([3, 39, 0, 3])
    y = 2.5 * matrix.dequantize().astype(np.float64)[ids]
    out = np.zeros((4, 96), np.float32)
    return Case(rows.embed(4, layout, 2.5), (ids, *parts, out), {len(parts) + 1: y})


def norm_case(n_heads: int, width: int) -> Case:
    x, weight = floats(4, n_heads * width), floats(width)
    heads = x.astype(np.float64).reshape(4, n_heads, width)
    y = heads / np.sqrt((heads**2).mean(-1, keepdims=True) + 1e-5) * weight
    kernel = rows.rms_norm(4, n_heads, width, 1e-5)
    return Case(kernel, (x, weight, np.zeros_like(y, np.float32)), {2: y})


def elementwise_cases() -> Iterator[Case]:
    a, b, y = floats(4, 96), floats(4, 96), np.zeros((4, 96), np.float32)
    a64, b64 = a.astype(np.float64), b.astype(np.float64)
    inner = np.sqrt(2 / np.pi) * (a64 + 0.044715 * a64**3)
    silu = a64 / (1 + np.exp(-a64)) * b64
    yield Case(rows.gate(4, 96, "silu", False), (a, b, y), {2: silu})
    yield Case(rows.gate(4, 96, "silu", True), (np.hstack((a, b)), y), {1: silu})
    gelu = 0.5 * a64 * (1 + np.tanh(inner)) * b64
    yield Case(rows.gate(4, 96, "gelu_tanh", False), (a, b, y), {2: gelu})
    yield Case(rows.add(4, 96), (a, b, y), {2: a64 + b64})
    yield Case(rows.scale(4, 96, -1.5), (a, y), {1: -1.5 * a64})
    yield Case(rows.soft_cap(4, 96, 1.5), (a, y), {1: 1.5 * np.tanh(a64 / 1.5)})
    places = ints([3, 0])
    yield Case(rows.take_rows(4, 2, 96), (a, places, y[:2]), {2: a64[places]})


SHAPE = attention.AttentionShape(4, 6, 2, 16, 192, 0.25, 0.0)
N_PAST, N_KEYS = 70, 74
PARENTS = (-1, 0, 0, 2)


def pass_facts() -> tuple[Array, Array, Array, Array]:
    """Returns seen, mask, scalars and, of each row, the rows of the KV cache it sees."""
    sees = np.zeros((4, SHAPE.capacity), np.bool_)
    mask = np.zeros((4, MASK_WORDS), np.int32)
    for row, parent in enumerate(PARENTS):
        sees[row, :N_PAST] = True
        if parent >= 0:
            sees[row] = sees[parent]
            mask[row] = mask[parent]
        sees[row, N_PAST + row] = True
        mask[row, 0] |= 1 << row
    scalars = np.zeros(SCALARS, np.int32)
    scalars[:2] = N_KEYS, N_PAST
    return ints([N_PAST] * 4), mask, scalars, sees


def attention_cases(softcap: float) -> Iterator[Case]:
    shape = replace(SHAPE, softcap=softcap)
    q = floats(4, 6 * 16)
    keys, values = (floats(2, *s).astype(np.float16) for s in ((16, 192), (192, 16)))
    seen, mask, scalars, sees = pass_facts()
    heads = q.astype(np.float64).reshape(4, 2, 3, 16) * shape.scale
    products = np.einsum("mgid,gdj->mgij", heads, keys.astype(np.float64)).reshape(4, 6, 192)
    keys[:, :, N_KEYS:], values[:, N_KEYS:] = np.nan, np.nan  # as nobody wrote them yet
    exact = softcap * np.tanh(products / softcap) if softcap else products
    exact = np.where(sees[:, None], exact, -np.inf)
    parts = exact.reshape(4, 6, 3, 64)
    tops = parts.max(-1).clip(-3e38)
    shares = np.exp(parts - tops[..., None])
    seen_values = np.nan_to_num(values.astype(np.float64))
    values_of_heads = seen_values[np.arange(6) // 3].reshape(6, 3, 64, 16)
    sums = np.einsum("mhsj,hsjd->mhsd", shares, values_of_heads)
    outs = [np.zeros(size, np.float32) for size in (sums.shape, tops.shape, tops.shape)]
    expected = dict(enumerate((sums, shares.sum(-1), tops), 6))
    yield Case(attention.partials(shape), (q, keys, values, seen, mask, scalars, *outs), expected)
    if softcap:
        return
    weights = np.exp(exact - exact.max(-1, keepdims=True))
    y = np.einsum("mhj,hjd->mhd", weights, values_of_heads.reshape(6, 192, 16))
    y /= weights.sum(-1)[..., None]
    given = [part.astype(np.float32) for part in expected.values()]
    out = np.zeros((4, 96), np.float32)
    yield Case(attention.combine(shape), (*given, scalars, out), {4: y.reshape(4, 96)})


def rotated(x: Array, cos: Array, sin: Array) -> Array:
    """Returns heads of 16 channels [rows, heads, 16] rotated by angles [rows, 8]."""
    low, high = np.split(x.astype(np.float64), 2, axis=-1)
    c, s = (table[:, None].astype(np.float64) for table in (cos, sin))
    return np.concatenate((low * c - high * s, high * c + low * s), -1)


def append_case(is_joined: bool, n_angles: int) -> Case:
    q, k, v, slots = floats(4, 96), floats(4, 32), floats(4, 32), ints([70, 71, -1, 5])
    positions = ints([0, 5, n_angles - 1, 7])
    angles = np.outer(np.arange(n_angles), 1 / 10.0 ** np.arange(8))
    tables = [np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)]
    keys, values = (floats(2, *s).astype(np.float16) for s in ((16, 192), (192, 16)))
    new_q, new_k = q.reshape(4, 6, 16), k.reshape(4, 2, 16)
    if n_angles:
        at = [table[positions] for table in tables]
        new_q, new_k = rotated(new_q, *at), rotated(new_k, *at)
    new_keys, new_values = keys.copy(), values.copy()
    for row, slot in enumerate(slots):
        if slot >= 0:
            new_keys[:, :, slot] = new_k[row]
            new_values[:, slot] = v[row].reshape(2, 16)
    inputs = [np.hstack((q, k, v))] if is_joined else [q, k, v]
    rotation = [*tables, positions] if n_angles else []
    arguments = (*inputs, *rotation, slots, keys, values, np.zeros_like(q))
    outs = (new_keys, new_values, new_q.reshape(4, 96))
    kernel = attention.rotate_append(SHAPE, n_angles, is_joined)
    return Case(kernel, arguments, dict(enumerate(outs, len(arguments) - 3)))


def cache_cases() -> Iterator[Case]:
    yield from (append_case(*of) for of in ((False, 64), (True, 64), (False, 0), (True, 0)))
    places, scalars = ints([4, 6, 9, 0, 0]), ints([3, 3, 0, 0])
    keys, values = (floats(4, *s).astype(np.float16) for s in ((16, 192), (192, 16)))
    new_keys, new_values = keys.copy(), values.copy()
    new_keys[:, :, 3:6], new_values[:, 3:6] = keys[:, :, [4, 6, 9]], values[:, [4, 6, 9]]
    kernel = attention.keep(2, SHAPE, 5)
    yield Case(kernel, (keys, values, places, scalars), {0: new_keys, 1: new_values})


CASES: dict[str, Callable[[], Case]] = {
    **{
        f"product of {n_rows} rows, {name}{extras}": lambda a=(n_rows, name, n, k, extras): (
            product_case(*a)
        )
        for n_rows, name, n, k, extras in (
            (1, "q4_0", 72, 320, ""), (1, "q4_1", 2048, 64, " add"), (1, "q8_0", 6, 2048, " bias"),
            (1, "q6_k", 33, 256, " bias add"), (1, "f16", 40, 72, ""), (4, "q4_1", 72, 576, " add"),
            (4, "q5_1", 72, 320, " bias"), (16, "q4_0", 24, 96, ""), (16, "f16", 8, 264, " add"),
            (64, "q4_1", 96, 64, " add"), (64, "q8_0", 70, 320, " bias"), (64, "f16", 33, 40, ""),
            (64, "q4_1", 8192, 64, " add"), (64, "q8_0", 8194, 96, " bias"),
        )
    },
    "embeddings": embed_case,
    "norm": lambda: norm_case(1, 576),
    "norm of heads": lambda: norm_case(3, 16),
}  # fmt: skip


def all_cases() -> dict[str, Case]:
    made = {name: make() for name, make in CASES.items()}
    for more in (elementwise_cases(), attention_cases(0), attention_cases(1.5), cache_cases()):
        made |= {case.kernel.name: case for case in more}
    return made


MADE = all_cases()
STATS = [stats.scan(2, 5003), stats.merge(2, 0), stats.merge(2, 1), stats.finish(2)]
KERNELS = [*(case.kernel for case in MADE.values()), *STATS]


@pytest.fixture(scope="module")
def source() -> CudaSource:
    return cuda_source(KERNELS, "sm_87")


@pytest.fixture(scope="module", params=["CPU", "emulated GPU", "emulated GPU, backwards"])
def device(
    request: pytest.FixtureRequest, source: CudaSource, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Device]:
    """What runs kernels. Where threads depend on their order, going backwards shows it."""
    if request.param == "CPU":
        yield CpuTwin(KERNELS)
        return
    library = build_driver(source.text, tmp_path_factory.mktemp("driver"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_driver, "LIBRARY", str(library))
        opened = cuda_driver.CudaDevice(cuda_driver.find_gpus()[0], b"")
        opened._driver.emulated_set_backwards("backwards" in request.param)
        yield opened
        opened.close()


def run(device: Device, source: CudaSource, name: str, arguments: tuple[Array, ...]) -> list[Array]:
    """Returns all arguments behind a kernel."""
    addresses = [device.allocate(array.nbytes) for array in arguments]
    for address, array in zip(addresses, arguments, strict=True):
        device.write(address, array)
    prepared = device.prepare([KernelCall(name, source.geometries[name], tuple(addresses))])
    device.launch(prepared)
    device.discard(prepared)
    after = [np.empty_like(array) for array in arguments]
    for address, array in zip(addresses, after, strict=True):
        device.read(address, array)
        device.free(address)
    return after


@pytest.mark.parametrize("name", MADE)
def test_a_kernel_computes_what_float64_does(device: Device, source: CudaSource, name: str) -> None:
    case = MADE[name]
    after = run(device, source, case.kernel.name, case.arguments)
    for i, argument in enumerate(case.arguments):
        if i not in case.expected:
            np.testing.assert_array_equal(after[i], argument)
            continue
        expected = case.expected[i]
        if after[i].dtype == np.float16:
            np.testing.assert_array_equal(after[i], expected)
        else:
            # Sums of up to 2048 terms, each rounded to float32.
            tolerance = 2048**0.5 * 2.0**-23 * max(1, float(np.abs(expected).max()))
            np.testing.assert_allclose(after[i], expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("special", ["", "equal", "nan", "infinite", "lowest"])
def test_row_stats_are_those_of_numpy(device: Device, source: CudaSource, special: str) -> None:
    logits = 3 * floats(2, 5003)
    logits[0, [7, 4000]] = 20
    match special:
        case "nan":
            logits[1, 11] = np.nan
        case "infinite":
            logits[1, 11] = np.inf
        case "lowest":
            logits[1, 20:] = -np.inf
        case "equal":
            logits[1] = 1.25
    lists = [[np.zeros((2, n, *size), dtype) for size, dtype in _LISTS] for n in stats.LISTS[:-1]]
    merged = run(device, source, STATS[0].name, (logits, *lists[0]))[1:]
    for kernel, out in zip(STATS[1:-1], lists[1:], strict=True):
        merged = run(device, source, kernel.name, (*merged, *out))[3:]
    expected = RowStats.of(logits)
    outs = [
        np.zeros(v.shape, np.int32 if v.dtype == np.int64 else v.dtype)
        for v in vars(expected).values()
    ]
    found = run(device, source, STATS[-1].name, (*merged, *outs))[3:]
    for got, (name, value) in zip(found, vars(expected).items(), strict=True):
        exact = name not in ("log_sum_exp", "entropy")
        np.testing.assert_allclose(got, value, rtol=0 if exact else 1e-5, atol=0 if exact else 1e-5)


def test_the_emulated_gpu_tells_missing_barriers(source: CudaSource, tmp_path: Path) -> None:
    """A norm whose threads do not wait for each other is right in one order at most."""
    broken = re.sub(r"__syncthreads\(\);", "", source.text)
    library = build_driver(broken, tmp_path)
    case, found = MADE["norm"], []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_driver, "LIBRARY", str(library))
        opened = cuda_driver.CudaDevice(cuda_driver.find_gpus()[0], b"")
        for is_backwards in (False, True):
            opened._driver.emulated_set_backwards(is_backwards)
            found.append(run(opened, source, case.kernel.name, case.arguments)[2])
        opened.close()
    assert max(np.nanmax(np.abs(y - case.expected[2])) for y in found) > 0.1


_LISTS = (((8,), np.float32), ((8,), np.int32), ((3,), np.float32))


def test_kernels_of_newer_gpus_wait_for_the_one_before(source: CudaSource) -> None:
    assert not source.waits
    assert "griddepcontrol" not in source.text
    newer = cuda_source(KERNELS[:3], "sm_90")
    assert newer.waits
    assert newer.text.count("griddepcontrol.wait") == 3


@pytest.mark.skipif(NVCC is None, reason="needs nvcc of NVIDIA's CUDA toolkit")
@pytest.mark.parametrize("arch", ["sm_80", "sm_87", "sm_90"])
def test_nvcc_compiles_the_source(tmp_path: Path, arch: str) -> None:
    assert NVCC is not None
    source = cuda_source(KERNELS, arch)
    (tmp_path / "k.cu").write_text(source.text, encoding="utf-8")
    command = [NVCC, "-w", f"-arch={arch}", "-ptx", "-o", "k.ptx", "k.cu"]
    subprocess.run(command, cwd=tmp_path, check=True)
    ptx = (tmp_path / "k.ptx").read_text()
    assert ptx.count(".entry") == len(source.geometries)
    assert f".target {arch}" in ptx
