"""Random matrices through the packers: whatever fits reads back exactly, the rest is refused.

`make test-sanitize` runs these with many more examples.
"""

from __future__ import annotations

import ctypes
import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedec.kernels import cpu, embed_op, library
from edgedec.models.quant import FORMATS, PlainTensor, ScaleKind

from ..doors import linear_op

CANARY, MARGIN = 0xA5, 256
FIELDS = ("codes", "scale", "minimum", "sub_scale", "sub_minimum")
TWO_LEVEL = (ScaleKind.TWO, ScaleKind.TWO_MIN)
SIZES = st.integers(1, 70) | st.sampled_from([15, 16, 17, 31, 32, 33, 255, 256, 257, 289, 511, 600])
SEEDS = st.integers(0, 2**32 - 1)


def field_shapes(fmt, n, k):
    """Element type and shape of each field the format uses."""
    if fmt.is_float:
        return {"codes": ({"f32": np.float32, "f16": np.float16}.get(fmt.name, np.uint16), (n, k))}
    outer = (np.float16, (n, k // 256 if fmt.kind in TWO_LEVEL else -(-k // 32)))
    fields = {"codes": (np.uint8, (n, k)), "scale": outer}
    if fmt.kind in (ScaleKind.ONE_MIN, ScaleKind.TWO_MIN):
        fields["minimum"] = outer
    if fmt.kind is ScaleKind.TWO_MIN:
        fields["sub_scale"] = fields["sub_minimum"] = (np.uint8, (n, k // 32))
    if fmt.kind is ScaleKind.TWO:
        fields["sub_scale"] = (np.int8, (n, k // 16))
    return fields


@st.composite
def plains(draw, finite=False):
    """Random bits in every field, or finite scales; codes within the format's bits."""
    fmt = draw(st.sampled_from(list(FORMATS.values())))
    n = draw(st.integers(1, 50) | st.sampled_from([15, 16, 17, 32, 33]))
    k = 256 * draw(st.integers(1, 3)) if fmt.kind in TWO_LEVEL else draw(SIZES)
    rng = np.random.default_rng(draw(SEEDS))
    fields = {}
    for name, (dtype, shape) in field_shapes(fmt, n, k).items():
        values = rng.integers(0, 256, (*shape, np.dtype(dtype).itemsize), np.uint8)
        if name == "codes" and not fmt.is_float:
            values &= (1 << fmt.bits) - 1
        fields[name] = values.reshape(shape[0], -1).view(dtype)
        if finite and np.dtype(dtype).kind == "f":
            fields[name] = rng.uniform(-1, 1, shape).astype(dtype)
        elif finite and fmt.name == "bf16":
            fields[name] &= 0xBFFF  # below 2
    return PlainTensor(fmt, **fields)


@st.composite
def layouts(draw, array):
    """Returns an equal array whose elements lie apart, backwards or at odd addresses."""
    kind = draw(st.sampled_from(["whole", "columns", "apart", "backwards", "odd"]))
    if kind == "columns":
        return np.asfortranarray(array)
    if kind == "apart":
        steps = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
        wide = np.zeros([size * step for size, step in zip(array.shape, steps, strict=True)],
                        array.dtype)  # fmt: skip
        view = wide[:: steps[0], :: steps[1]]
        view[...] = array
        return view
    if kind == "backwards":
        return array[::-1, ::-1].copy()[::-1, ::-1]
    if kind == "odd":
        raw = np.zeros(array.nbytes + 1, np.uint8)
        raw[1:] = np.frombuffer(array.tobytes(), np.uint8)
        return raw[1:].view(array.dtype).reshape(array.shape)
    return array


def guarded(shape, dtype):
    """Returns a zeroed array between canaries and the whole that holds it."""
    n_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    whole = np.full(n_bytes + 2 * MARGIN, CANARY, np.uint8)
    inside = whole[MARGIN : MARGIN + n_bytes].view(dtype).reshape(shape)
    inside[...] = 0
    return inside, whole


def assert_canaries(*wholes):
    for whole in wholes:
        assert (whole[:MARGIN] == CANARY).all()
        assert (whole[-MARGIN:] == CANARY).all()


def assert_same(got, want):
    """Equal bit patterns; a NaN may be any NaN."""
    assert got.dtype == want.dtype == np.float32
    assert got.shape == want.shape
    is_nan = np.isnan(want)
    assert np.array_equal(np.isnan(got), is_nan)
    assert np.array_equal(got.view(np.uint32)[~is_nan], want.view(np.uint32)[~is_nan])


def pack_plain(plain):
    data = cpu.pack(plain.format.index, *(getattr(plain, name) for name in FIELDS))
    return cpu.PackedMatrix(data, plain.format.index, *plain.shape)


def pack_between_canaries(plain):
    """The packer itself, without the door before it."""
    n, k = plain.shape
    args = library.PlainArgs(plain.format.index, n, k)
    for name in FIELDS:
        setattr(args, name, getattr(plain, name).ctypes.data)
    out, whole = guarded((cpu.packed_nbytes(plain.format.index, n, k),), np.uint8)
    library.open_library().edgedec_pack(ctypes.byref(args), out.ctypes.data)
    assert_canaries(whole)
    return out


def expected_nbytes(fmt, n, k):
    """Bytes of the layout that kernels/src/layout.h draws."""
    panels = -(-n // 16)
    if fmt.is_float:
        return panels * 16 * k * fmt.bits // 8
    outer = {ScaleKind.TWO_MIN: 64, ScaleKind.TWO: 32}.get(fmt.kind, 0)
    own = 64 if fmt.kind is ScaleKind.ONE_MIN else 32
    full, rest = divmod(-(-k // 32), 8)
    panel = 0
    for n_blocks, groups in ((full, 8), (1, rest)):
        if groups:
            panel += n_blocks * (-(-(outer + groups * own) // 64) * 64 + groups * 64 * fmt.bits)
    return panels * panel


@given(st.data())
def test_reads_back_exactly(data):
    plain = data.draw(plains())
    (n, k), fmt = plain.shape, plain.format
    fields = [data.draw(layouts(getattr(plain, name))) for name in FIELDS]
    packed = cpu.pack(fmt.index, *fields)
    assert packed.size == cpu.packed_nbytes(fmt.index, n, k) == expected_nbytes(fmt, n, k)
    assert np.array_equal(packed, pack_between_canaries(plain))
    ids = np.array(data.draw(st.lists(st.integers(0, n - 1), max_size=12)), np.int64)
    out, whole = guarded((ids.size, k), np.float32)
    isa = data.draw(st.sampled_from(cpu.available_isas()))
    embed_op.embed(ids, cpu.PackedMatrix(packed, fmt.index, n, k), out=out, isa=isa, n_threads=2)
    assert_canaries(whole)
    with np.errstate(all="ignore"):
        assert_same(out, plain.dequantize()[ids])


@given(plains(), st.integers(0, 3))
def test_panels_are_packed_alone(plain, cut):
    cut *= cpu.PANEL
    parts = [
        cpu.pack(
            plain.format.index,
            *(getattr(plain, name)[rows] if getattr(plain, name).size else None for name in FIELDS),
        )
        for rows in (slice(0, cut), slice(cut, None))
        if plain.codes[rows].size
    ]
    assert np.array_equal(np.concatenate(parts), pack_plain(plain).data)


@given(plains(finite=True), st.integers(1, 11), SEEDS)
def test_every_isa_multiplies_alike(plain, rows, seed):
    n, k = plain.shape
    matrix = pack_plain(plain)
    x = np.random.default_rng(seed).standard_normal((rows, k)).astype(np.float32)
    want = linear_op.linear(x, [matrix], isa="scalar")
    for isa in cpu.available_isas():
        out, whole = guarded((rows, n), np.float32)
        linear_op.linear(x, [matrix], out=out, isa=isa)
        assert_canaries(whole)
        assert_same(out, want)


@st.composite
def misfits(draw):
    """Arguments of `pack`, one of which does not fit."""
    plain = draw(plains())
    fmt = plain.format
    used = sorted(field_shapes(fmt, *plain.shape))
    fields = {name: getattr(plain, name) if name in used else None for name in FIELDS}
    name = draw(st.sampled_from(used))
    array = fields[name]
    unused = [other for other in FIELDS if other not in used]
    faults = ["index", "type", "rank", "rows", "columns", "empty"]
    faults += ["missing"] * (name != "codes") + ["unused"] * bool(unused)
    faults += ["code"] * (fmt.bits < 8)
    index = fmt.index
    match draw(st.sampled_from(faults)):
        case "index":
            index = draw(st.integers(-(2**70), -1) | st.integers(len(FORMATS), 2**70))
        case "type":
            fields[name] = np.zeros(array.shape, draw(st.sampled_from([np.float64, np.int64])))
        case "rank":
            fields[name] = array[0]
        case "rows" if len(used) > 1:
            fields[name] = np.concatenate([array, array[:1]])
        case "columns" if len(used) > 1 and name != "codes":
            fields[name] = np.concatenate([array, array[:, :1]], axis=1)
        case "missing":
            fields[name] = None
        case "unused":
            fields[draw(st.sampled_from(unused))] = np.zeros((1, 1), np.uint8)
        case "code":
            row, column = (draw(st.integers(0, size - 1)) for size in plain.shape)
            fields["codes"] = plain.codes.copy()
            fields["codes"][row, column] = draw(st.integers(1 << fmt.bits, 255))
        case _:
            fields[name] = array[:, :0] if draw(st.booleans()) else array[:0]
    return index, *fields.values()


@given(misfits())
def test_what_does_not_fit_is_refused(arguments):
    with pytest.raises(ValueError, match=r"expect|format \d+ has no|codes reach"):
        cpu.pack(*arguments)


@given(plains(), st.data())
def test_a_packed_matrix_of_another_size_is_refused(plain, data):
    matrix = pack_plain(plain)
    for name in ("n", "k", "format"):
        value = data.draw(st.integers(-(2**70), 2**70) | st.integers(0, 700))
        try:
            other = dataclasses.replace(matrix, **{name: value})
        except ValueError:
            continue
        assert expected_nbytes(list(FORMATS.values())[other.format], other.n, other.k) == (
            matrix.data.size
        )


INT64 = st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 2**33) | st.integers(-2, 700)


@given(st.integers(-(2**31), 2**31 - 1) | st.integers(-1, len(FORMATS)), INT64, INT64)
def test_sizes_never_overflow(index, n, k):
    """The library's own arithmetic, for sizes that the door would refuse."""
    got = library.open_library().edgedec_packed_nbytes(index, n, k)
    if not (0 <= index < len(FORMATS) and 0 <= n <= 2**31 and 0 <= k <= 2**31):
        assert got == -1
        return
    want = expected_nbytes(list(FORMATS.values())[index], n, k)
    assert got == (want if want < 2**63 else -1)
