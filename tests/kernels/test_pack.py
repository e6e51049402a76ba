"""Packing and reading back: the packed matrix holds exactly the plain one."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from edgedec.kernels import cpu, embed_op
from edgedec.models.quant import FORMATS, PlainTensor, ScaleKind


def sizes(fmt):
    """Edge shapes (n, k) of a format: below, at and past a panel; below, at and past a group."""
    if fmt.kind in (ScaleKind.TWO, ScaleKind.TWO_MIN):
        return [(1, 256), (16, 512), (17, 256), (48, 768)]
    return [(1, 1), (15, 31), (16, 32), (17, 33), (33, 256), (48, 300), (5, 259)]


def test_formats_agree_with_models():
    assert len(FORMATS) == len(cpu._FORMATS)
    for fmt, plain in zip(FORMATS.values(), cpu._FORMATS, strict=True):
        assert fmt.bits == plain.bits
        assert fmt.is_float == (plain.scale_group == 0)


def test_embed_equals_dequantize(fmt, isa, make_plain, packed, same_bits):
    for n, k in sizes(fmt):
        plain = make_plain(fmt, n, k)
        ids = np.arange(n, dtype=np.int64)[::-1].copy()
        rows = embed_op.embed(ids, packed(plain), isa=isa, n_threads=2)
        assert same_bits(rows, plain.dequantize()[::-1].copy())


def test_unpack_rows(fmt, make_plain, packed, same_bits):
    plain = make_plain(fmt, 40, 256)
    assert same_bits(embed_op.unpack_rows(packed(plain), 7, 33), plain.dequantize()[7:33])


def test_chunks_join_to_the_whole(fmt, make_plain, packed):
    plain = make_plain(fmt, 50, 512)
    whole = packed(plain).data
    assert whole.size == cpu.packed_nbytes(fmt.index, 50, 512)
    assert whole.size == cpu.packed_nbytes(fmt.index, 64, 512)
    chunks = []
    for start, stop in ((0, 16), (16, 48), (48, 50)):
        rows = {
            field.name: getattr(plain, field.name)[start:stop]
            for field in dataclasses.fields(plain)
            if field.name != "format"
        }
        chunks.append(packed(PlainTensor(fmt, **rows)).data)
    assert np.array_equal(np.concatenate(chunks), whole)


@pytest.mark.parametrize("code", ["zero", "largest"])
def test_extreme_codes(fmt, code, isa, make_plain, packed, same_bits):
    if fmt.is_float:
        pytest.skip("floats have no codes")
    plain = make_plain(fmt, 17, 256)
    plain.codes[...] = 0 if code == "zero" else (1 << fmt.bits) - 1
    rows = embed_op.embed(np.arange(17), packed(plain), isa=isa)
    assert same_bits(rows, plain.dequantize())


def test_strided_fields_are_copied(fmt, make_plain, packed):
    plain = make_plain(fmt, 20, 256)
    fields = (plain.scale, plain.minimum, plain.sub_scale, plain.sub_minimum)
    strided = [np.asfortranarray(field) for field in (plain.codes, *fields)]
    assert np.array_equal(cpu.pack(fmt.index, *strided), packed(plain).data)


def test_guard_bytes(fmt, isa, make_plain, packed, guards, same_bits):
    plain = make_plain(fmt, 19, 256)
    matrix = packed(plain)
    inside = dataclasses.replace(matrix, data=guards.copy(matrix.data))
    ids = guards.copy(np.array([0, 18, 5], np.int64))
    out = guards.copy(np.zeros((3, 256), np.float32))
    embed_op.embed(ids, inside, isa=isa, out=out)
    assert same_bits(out, plain.dequantize()[ids])
