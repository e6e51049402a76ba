"""Random plain matrices in every format, guarded buffers, and the ISAs of this machine."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from edgedec import kernels
from edgedec.models.quant import FORMATS, PlainTensor, QuantFormat, ScaleKind

IS_ARM = platform.machine().lower() in ("aarch64", "arm64")
ALL_ISAS = (
    ("scalar", "neondot", "neoni8mm") if IS_ARM else ("scalar", "avx2", "avxvnni", "avx512vnni")
)
Array = npt.NDArray[Any]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "kernels" in item.path.parts:
            item.add_marker(pytest.mark.kernel)


@pytest.fixture(autouse=True)
def _library() -> None:
    if not kernels.has_library():
        pytest.skip("the compiled kernels are missing")


@pytest.fixture
def all_isas() -> tuple[str, ...]:
    """Returns the instruction sets these tests cover."""
    return ALL_ISAS


@pytest.fixture(params=ALL_ISAS)
def isa(request: pytest.FixtureRequest) -> str:
    """Each instruction set; those this machine lacks are visibly skipped."""
    name: str = request.param
    if name not in kernels.available_isas():
        pytest.skip(f"no {name} here")
    return name


@pytest.fixture(params=[name for name in ALL_ISAS if name != "scalar"])
def simd(request: pytest.FixtureRequest) -> str:
    """Each instruction set but scalar."""
    name: str = request.param
    if name not in kernels.available_isas():
        pytest.skip(f"no {name} here")
    return name


@pytest.fixture(params=FORMATS.values(), ids=FORMATS)
def fmt(request: pytest.FixtureRequest) -> QuantFormat:
    """Each weight format."""
    row: QuantFormat = request.param
    return row


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20261121)


def random_plain(fmt: QuantFormat, n: int, k: int, rng: np.random.Generator) -> PlainTensor:
    """Returns weights of size about 1 in format ``fmt``, all codes equally likely."""
    if fmt.is_float:
        values = rng.standard_normal((n, k)).astype(np.float32)
        if fmt.name == "bf16":
            return PlainTensor(fmt, (values.view(np.uint32) >> 16).astype(np.uint16))
        return PlainTensor(fmt, values.astype({"f32": np.float32, "f16": np.float16}[fmt.name]))
    codes = rng.integers(0, 1 << fmt.bits, (n, k), dtype=np.uint8)
    step = 2.0 / (1 << fmt.bits)
    n_outer = k // 256 if fmt.kind in (ScaleKind.TWO, ScaleKind.TWO_MIN) else -(-k // 32)

    def halves(low: float, high: float) -> npt.NDArray[np.float16]:
        return rng.uniform(low, high, (n, n_outer)).astype(np.float16)

    match fmt.kind:
        case ScaleKind.ONE:
            return PlainTensor(fmt, codes, halves(-step, step))
        case ScaleKind.ONE_MIN:
            return PlainTensor(fmt, codes, halves(0, step), halves(-1.5, 0.5))
        case ScaleKind.TWO_MIN:
            sub = rng.integers(0, 64, (2, n, k // 32), dtype=np.uint8)
            scale, minimum = halves(0, step / 32), halves(0, 1 / 32)
            return PlainTensor(fmt, codes, scale, minimum, sub[0], sub[1])
        case _:
            sub_scale = rng.integers(-128, 128, (n, k // 16), dtype=np.int8)
            return PlainTensor(fmt, codes, halves(0, step / 64), sub_scale=sub_scale)


def pack_plain(plain: PlainTensor, bias: Array | None = None) -> kernels.PackedMatrix:
    data = kernels.pack(
        plain.format.index, plain.codes, plain.scale, plain.minimum,
        plain.sub_scale, plain.sub_minimum,
    )  # fmt: skip
    return kernels.PackedMatrix(data, plain.format.index, *plain.shape, bias)


@pytest.fixture
def make_plain(rng: np.random.Generator) -> Callable[[QuantFormat, int, int], PlainTensor]:
    return lambda fmt, n, k: random_plain(fmt, n, k, rng)


@pytest.fixture
def packed() -> Callable[..., kernels.PackedMatrix]:
    return pack_plain


@pytest.fixture
def make_matrix(rng: np.random.Generator) -> Callable[..., kernels.PackedMatrix]:
    """Returns a maker of random packed matrices."""

    def make(fmt: QuantFormat, n: int, k: int, bias: Array | None = None) -> kernels.PackedMatrix:
        return pack_plain(random_plain(fmt, n, k, rng), bias)

    return make


class Guards:
    """Copies arrays between canaries, aligned to an element but never to a vector."""

    _CANARY = 0xA5
    _MARGIN = 192

    def __init__(self) -> None:
        self._kept: list[tuple[Array, int, int]] = []

    def copy(self, array: Array) -> Array:
        """Returns an equal array with canaries before and after it."""
        whole = np.full(2 * self._MARGIN + array.nbytes + 64, self._CANARY, np.uint8)
        past = max(4, array.itemsize)
        start = self._MARGIN + (past - (whole.ctypes.data + self._MARGIN)) % 64
        stop = start + array.nbytes
        self._kept.append((whole, start, stop))
        inside = whole[start:stop].view(array.dtype).reshape(array.shape)
        inside[...] = array
        return inside

    def check(self) -> None:
        assert self._kept
        for whole, start, stop in self._kept:
            assert (whole[:start] == self._CANARY).all()
            assert (whole[stop:] == self._CANARY).all()


@pytest.fixture
def guards() -> Iterator[Guards]:
    """Guarded copies; the canaries are checked after the test."""
    made = Guards()
    yield made
    made.check()


@pytest.fixture
def same_bits() -> Callable[[Array, Array], bool]:
    """Returns whether two float32 arrays hold the same bit patterns."""

    def same(a: Array, b: Array) -> bool:
        assert a.dtype == b.dtype == np.float32
        return np.array_equal(a.view(np.uint32), b.view(np.uint32))

    return same
