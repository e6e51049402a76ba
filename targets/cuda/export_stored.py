"""The weights of a device program: words of codes, and groups' scales, in one file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from edgedec.export.to_onnx.nbits import plain_rows
from edgedec.export.weights_file import Chunks, StoredTensor
from edgedec.models.quant import PlainTensor
from edgedec.models.weights import WeightSource
from edgedec.targets.cuda.export_products import StoredMatrix

Array = npt.NDArray[Any]

CODES, SCALES, MINIMUMS = "codes", "scales", "minimums"


def tensors_of(name: str, matrix: StoredMatrix) -> tuple[StoredTensor, ...]:
    """Returns what the matrix ``name`` consists of, in the order of a kernel's arguments.

    All are bytes; sizes are those of `StoredMatrix.arguments`, the last one in bytes.
    """
    if matrix.bits == 16:
        return (StoredTensor(f"{name}.{CODES}", True, (matrix.n, 2 * matrix.k)),)
    codes = StoredTensor(f"{name}.{CODES}", True, (matrix.n, matrix.k * matrix.bits // 8))
    parts = (SCALES, MINIMUMS) if matrix.has_minimum else (SCALES,)
    dims = (matrix.n, 2 * (matrix.k // matrix.group))
    return codes, *(StoredTensor(f"{name}.{part}", True, dims) for part in parts)


def chunks_of(
    name: str, matrix: StoredMatrix, parts: Sequence[str], source: WeightSource
) -> dict[str, Chunks]:
    """Returns what yields the arrays of each tensor of ``name``, the rows of ``parts``."""
    makers = {CODES: partial(codes_of, matrix), SCALES: scales_of, MINIMUMS: minimums_of}
    return {
        tensor.name: partial(_each, makers[tensor.name.rpartition(".")[2]], source, parts)
        for tensor in tensors_of(name, matrix)
    }


def codes_of(matrix: StoredMatrix, plain: PlainTensor) -> Array:
    """Returns rows of words: the first code in the lowest bits. Floats become float16.

    Shapes: [N, K / per_word] uint32, or [N, K] float16.
    """
    if matrix.bits == 16:
        return plain.dequantize().astype(np.float16)
    codes: Array = plain.codes.astype(np.uint8)
    if matrix.bits == 4:
        codes = codes[:, 0::2] | codes[:, 1::2] << np.uint8(4)
    return np.ascontiguousarray(codes).view("<u4")


def scales_of(plain: PlainTensor) -> Array:
    """Returns what codes of each group are multiplied by; a product of two scales is rounded."""
    return plain.groups()[0].astype(np.float16)


def minimums_of(plain: PlainTensor) -> Array:
    """Returns what is added to the weights of each group."""
    minimums = plain.groups()[1]
    assert minimums is not None
    return minimums.astype(np.float16)


def _each(make: Any, source: WeightSource, names: Sequence[str]) -> Iterator[Array]:
    return map(make, plain_rows(source, names))
