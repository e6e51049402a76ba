"""Random plain matrices in every format, KV caches in both, guarded buffers, and the ISAs here."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from edgedec.kernels import cpu, library
from edgedec.models.quant import FORMATS, PlainTensor, QuantFormat, ScaleKind

from ..doors import attention_op
from ..isas import isa_params

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
    if not library.has_library():
        pytest.skip("the compiled kernels are missing")


@pytest.fixture
def all_isas() -> tuple[str, ...]:
    """Returns the instruction sets these tests cover."""
    return ALL_ISAS


@pytest.fixture(params=isa_params(ALL_ISAS))
def isa(request: pytest.FixtureRequest) -> str:
    """Each instruction set; those this machine lacks are visibly skipped."""
    return str(request.param)


@pytest.fixture(params=isa_params(name for name in ALL_ISAS if name != "scalar"))
def simd(request: pytest.FixtureRequest) -> str:
    """Each instruction set but scalar."""
    return str(request.param)


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
        case ScaleKind.SINGLE:
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


def pack_plain(plain: PlainTensor, bias: Array | None = None) -> cpu.PackedMatrix:
    data = cpu.pack(
        plain.format.index, plain.codes, plain.scale, plain.minimum,
        plain.sub_scale, plain.sub_minimum,
    )  # fmt: skip
    return cpu.PackedMatrix(data, plain.format.index, *plain.shape, bias)


@pytest.fixture
def make_plain(rng: np.random.Generator) -> Callable[[QuantFormat, int, int], PlainTensor]:
    return lambda fmt, n, k: random_plain(fmt, n, k, rng)


@pytest.fixture
def packed() -> Callable[..., cpu.PackedMatrix]:
    return pack_plain


@pytest.fixture
def make_matrix(rng: np.random.Generator) -> Callable[..., cpu.PackedMatrix]:
    """Returns a maker of random packed matrices."""

    def make(fmt: QuantFormat, n: int, k: int, bias: Array | None = None) -> cpu.PackedMatrix:
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


N_POSITIONS = 800
KV_FORMATS = {"float16": 0, "int8": 1, "k5v4": 2}
"""Numbers in the C interface."""


@dataclass
class AttentionCase:
    """Shapes of one attention and the state its calls share."""

    n_heads: int
    n_kv_heads: int
    head_size: int
    rope: tuple[Array, Array]
    keys: Array
    values: Array
    kv_format: str
    key_offsets: Array | None = None

    @property
    def has_codes(self) -> bool:
        return self.kv_format != "float16"

    @property
    def format_index(self) -> int:
        """What the kernels call the format of the cache."""
        return KV_FORMATS[self.kv_format]

    def run(
        self,
        qkv: Array,
        parents: Any,
        past: int,
        positions: Array | None = None,
        **options: Any,
    ) -> Array:
        """Runs one pass; a row's position is by default ``past`` plus its depth.

        Parents beyond one per row are those of nodes that earlier passes computed.
        """
        parents = np.asarray(parents, np.int64)
        if positions is None:
            positions = past + tree_depths(parents)[len(parents) - len(qkv) :]
        cache = (self.keys, self.values)
        options = {"kv_format": self.format_index, **options}
        if self.key_offsets is not None:
            options["key_offsets"] = self.key_offsets
        return attention_op.attention(qkv, positions, parents, past, self.rope, cache, **options)

    def chain(self, qkv: Array, past: int = 0, **options: Any) -> Array:
        return self.run(qkv, np.arange(len(qkv)) - 1, past, **options)

    def qkv(self, rng: np.random.Generator, n_rows: int) -> Array:
        width = (self.n_heads + 2 * self.n_kv_heads) * self.head_size
        return rng.standard_normal((n_rows, width)).astype(np.float32)

    def split(self, qkv: Array) -> list[Array]:
        """Returns q [rows, H, d], k and v [rows, Hkv, d]."""
        heads = qkv.reshape(len(qkv), -1, self.head_size)
        return np.split(heads, [self.n_heads, self.n_heads + self.n_kv_heads], axis=1)

    def copy(self) -> AttentionCase:
        """Returns a case with a KV cache of its own."""
        return replace(self, keys=self.keys.copy(), values=self.values.copy())

    def scales(self) -> tuple[Array, Array]:
        """Returns what a code of each key and value stands for. Shapes: [Hkv, C] float64."""
        keys, values = (
            np.ascontiguousarray(blocks[..., :32]).view(np.float16).reshape(self.n_kv_heads, -1)
            for blocks in (self.keys, self.values)
        )
        return keys.astype(np.float64), values.astype(np.float64)

    def stored(self) -> tuple[Array, Array]:
        """Returns the keys, as their products are taken, and values that the KV cache stands for.

        Shapes: [Hkv, C, d] float64.
        """
        n_heads, d = self.n_kv_heads, self.head_size
        if self.kv_format == "float16":
            keys = self.keys.swapaxes(2, 3).reshape(self.values.shape)
            return keys.astype(np.float64), self.values.astype(np.float64)
        if self.kv_format == "k5v4":
            keys, values = (
                np.stack([of(blocks, i).reshape(n_heads, -1) for i in range(d)], axis=2)
                for blocks, of in ((self.keys, key_levels), (self.values, value_levels))
            )
            of_keys, of_values = (scales[..., None] for scales in self.scales())
            return keys * of_keys, mixed(values * of_values)
        key_codes, value_codes = (a[..., 32:].view(np.int8) for a in (self.keys, self.values))
        keys = key_codes[..., : 16 * d].reshape(n_heads, -1, d, 16).swapaxes(2, 3)
        values = value_codes.reshape(n_heads, len(self.values[0]), 16, -1)[..., :d]
        return tuple(
            codes.reshape(n_heads, -1, d) * scales[..., None]
            for codes, scales in zip((keys, values), self.scales(), strict=True)
        )

    def turn(self, heads: Array, positions: Array) -> Array:
        """Returns queries or keys [rows, heads, d] as their products are taken, in float64.

        Pairs of channels half a head apart are rotated; for a KV cache of codes they are mixed,
        too.
        """
        cos, sin = (table[positions][:, None, :].astype(np.float64) for table in self.rope)
        low, high = np.split(heads.astype(np.float64), 2, axis=2)
        turned = np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=2)
        return mixed(turned) if self.has_codes else turned


LEVELS = [-127, -96, -75, -58, -44, -31, -18, -6, 6, 18, 31, 44, 58, 75, 96, 127]
SIZES = [3, 8, 13, 18, 24, 29, 35, 41, 47, 54, 61, 70, 79, 90, 105, 127]
"""What k5v4's codes of values, and of keys but for signs, stand for, in scales of a row."""


def key_levels(blocks: Array, channel: int) -> Array:
    """Returns the level of a channel of each token in blocks of k5v4 keys. Shape: [..., 16]."""
    eight = blocks[..., 32 + channel // 8 * 80 :]
    n_pairs = min(eight.shape[-1] // 16, 5) - 1
    pair = channel % 8 // 2
    codes = eight[..., 16 * pair : 16 * pair + 16] >> 4 * (channel % 2) & 15
    is_below = eight[..., 16 * n_pairs : 16 * n_pairs + 16] >> channel % 8 & 1
    sizes = np.array(SIZES)[codes]
    return np.where(is_below, -sizes, sizes)


def value_levels(blocks: Array, dimension: int) -> Array:
    """Returns the level of a dimension of each token in blocks of k5v4 values. Shape: [..., 16]."""
    run, within = divmod(dimension, 32)
    at = 32 + (blocks.shape[-1] - 32) // 16 * np.arange(16) + 16 * run + within % 16
    return np.array(LEVELS)[blocks[..., at] >> 4 * (within // 16) & 15]


def mixed(x: Array) -> Array:
    """Returns runs of 2^n channels, n as large as divides them all, times a Hadamard matrix."""
    matrix = hadamard(x.shape[-1])
    runs = x.reshape(*x.shape[:-1], -1, len(matrix))
    return (runs @ matrix / np.sqrt(len(matrix))).reshape(x.shape)


@cache
def hadamard(d: int) -> Array:
    """Returns the Hadamard matrix of the largest power of two that divides ``d``."""
    matrix = np.ones((1, 1))
    while d % (2 * len(matrix)) == 0:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix


def tree_depths(parents: Any) -> Array:
    found = np.zeros(len(parents), np.int64)
    for i, parent in enumerate(parents):
        found[i] = 0 if parent < 0 else found[parent] + 1
    return found


@cache
def rotations(head_size: int) -> tuple[Array, Array]:
    """Returns cosines and sines of each position and pair of channels."""
    angles = np.outer(np.arange(N_POSITIONS), 0.7 ** np.arange(head_size // 2))
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def make_attention_case(
    kv_format: str,
    n_heads: int = 6,
    n_kv_heads: int = 2,
    head_size: int = 64,
    capacity: int = 128,
) -> AttentionCase:
    """Returns a case with an empty KV cache that is full of NaN where nobody may look."""
    rope = rotations(head_size)
    n_blocks = capacity // 16
    if kv_format != "float16":
        keys, values = (
            np.full((n_kv_heads, n_blocks, nbytes), 0x7F, np.uint8)
            for nbytes in attention_op.kv_block_nbytes(head_size, KV_FORMATS[kv_format])
        )
    else:
        keys = np.full((n_kv_heads, n_blocks, head_size, 16), np.nan, np.float16)
        values = np.full((n_kv_heads, capacity, head_size), np.nan, np.float16)
    return AttentionCase(n_heads, n_kv_heads, head_size, rope, keys, values, kv_format)


@pytest.fixture(params=["float16", "int8", "k5v4"])
def make_case(request: pytest.FixtureRequest) -> Callable[..., AttentionCase]:
    """Returns a maker of attention cases, for each format of the KV cache."""
    return partial(make_attention_case, request.param)


@pytest.fixture
def make_case_of() -> Callable[..., AttentionCase]:
    """Returns a maker of attention cases of a format."""
    return make_attention_case


@pytest.fixture
def make_int8_case() -> Callable[..., AttentionCase]:
    """Returns a maker of attention cases with an int8 KV cache."""
    return partial(make_attention_case, "int8")


@pytest.fixture
def path_of() -> Callable[[Any, int], list[int]]:
    """Returns a finder of a row's ancestors and itself, oldest first."""

    def find(parents: Any, row: int) -> list[int]:
        path = [row]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        return path

    return find
