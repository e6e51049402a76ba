"""Matrices of small floats, of which each group of a row shares a scale: MXFP4, NVFP4, MXFP8.

Sources: ml-explore/mlx ``mlx.core.dequantize`` (definition, MIT), vllm-project/compressed-tensors
``compressors/nvfp4``, ``mxfp4`` and ``mxfp8`` (layouts, Apache-2.0), NVIDIA/Model-Optimizer
``torch/quantization/qtensor/nvfp4_tensor.py`` (layout, Apache-2.0).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from edgedec.export.checkpoints.gguf_codes import plain_mxfp4
from edgedec.export.checkpoints.grouped_matrices import taken_parts, unpacked
from edgedec.export.checkpoints.safetensors_file import StoredTensor
from edgedec.export.checkpoints.small_floats import FP4_VALUES, fp8_table
from edgedec.models.errors import CheckpointError, UnsupportedModelError
from edgedec.models.quant import FORMATS, PlainTensor, QuantFormat

Floats = npt.NDArray[np.float32]
Rows = npt.NDArray[np.intp]

MODES = {"mxfp4": (32, 4), "nvfp4": (16, 4), "mxfp8": (32, 8)}
"""Mode -> weights of a group, bits of a code."""
_EXPONENT_BIAS = 127


@dataclass(frozen=True)
class FloatGroups:
    """Weights ``scale * code``, where codes are floats of 4 or 8 bits, and so are scales.

    codes: [N, W] words or bytes that hold codes from their lowest bits on. scales: bytes
    [N, groups]. whole: what all scales are multiplied with, or divided by if ``is_divisor``.
    """

    codes: StoredTensor
    shape: tuple[int, ...]
    mode: str
    scales: StoredTensor
    whole: float = 1.0
    is_divisor: bool = False

    @property
    def format(self) -> QuantFormat:
        """The smallest format that holds it to the last bit; floats if none does."""
        return FORMATS["q5_0" if self.mode == "mxfp4" else "f32"]

    @property
    def stand_in(self) -> QuantFormat | None:
        """The format that stands in for floats."""
        return FORMATS["q8_0"] if self.format.is_float else None

    def plain(self, rows: Rows) -> PlainTensor:
        """Returns some rows."""
        size, n_bits = MODES[self.mode]
        codes = unpacked(self.codes.values()[rows], n_bits, self.shape[1])
        scales = self.scales.values()[rows]
        if self.mode == "mxfp4":
            return plain_mxfp4(self.format, codes, scales)
        values = (FP4_VALUES if n_bits == 4 else fp8_table(4))[codes]
        return PlainTensor(self.format, values * np.repeat(self._factors(scales), size, axis=1))

    def _factors(self, scales: npt.NDArray[Any]) -> Floats:
        """Returns what the bytes of scales stand for."""
        if self.mode == "mxfp8":
            return np.ldexp(np.float32(1), scales.astype(np.int32) - _EXPONENT_BIAS)
        factors, whole = fp8_table(4)[scales], np.float32(self.whole)
        return cast(Floats, factors / whole if self.is_divisor else factors * whole)


def packed_floats(tensors: dict[str, Any], stem: str) -> FloatGroups:
    """Returns a matrix of compressed-tensors in 4 bits, and takes its parts out of ``tensors``.

    Raises:
        CheckpointError: Parts are missing or do not fit each other.
        UnsupportedModelError: It has 6 bits, or zeros.
    """
    codes, scales = taken_parts(tensors, stem, ("weight_packed", "weight_scale"))
    tensors.pop(f"{stem}.input_global_scale", None)  # of activations
    if f"{stem}.weight_zero_point" in tensors:
        raise UnsupportedModelError(
            f"{stem}: has small floats and zeros, expected scales alone: take the checkpoint in "
            "another type"
        )
    if scales.type == "F8_E4M3":
        (whole,) = taken_parts(tensors, stem, ("weight_global_scale",))
        return _checked(stem, FloatGroups(codes, (), "nvfp4", scales, _number(stem, whole), True))
    n_groups = scales.shape[-1] if scales.shape else 0
    if scales.type == "U8" and codes.shape[-1] * 8 == n_groups * 32 * 6:
        raise UnsupportedModelError(
            f"{stem}: has 6 bits for a weight (MXFP6), expected 4 or 8: take the checkpoint in "
            "another type"
        )
    return _checked(stem, FloatGroups(codes, (), "mxfp4", scales))


def modelopt_floats(tensors: dict[str, Any], stem: str) -> FloatGroups:
    """Returns a matrix of ModelOpt in NVFP4, and takes its parts out of ``tensors``.

    Raises:
        CheckpointError: Parts are missing or do not fit each other.
    """
    codes, scales, whole = taken_parts(tensors, stem, ("weight", "weight_scale", "weight_scale_2"))
    tensors.pop(f"{stem}.input_scale", None)  # of activations
    return _checked(stem, FloatGroups(codes, (), "nvfp4", scales, _number(stem, whole)))


def eight_bit_floats(stem: str, codes: StoredTensor, scales: StoredTensor) -> FloatGroups:
    """Returns a matrix of floats of 8 bits whose scales are exponents.

    Raises:
        CheckpointError: The parts do not fit each other.
    """
    return _checked(stem, FloatGroups(codes, (), "mxfp8", scales))


def _checked(stem: str, matrix: FloatGroups) -> FloatGroups:
    """Returns ``matrix`` with its dimensions, which its parts have to fit."""
    codes, scales, (size, n_bits) = matrix.codes, matrix.scales, MODES[matrix.mode]
    n, width = codes.shape if len(codes.shape) == 2 else (0, 0)
    k = width * 8 // n_bits
    kinds = ("F8_E4M3",) if matrix.mode == "nvfp4" else ("U8",)
    of_codes = ("F8_E4M3",) if matrix.mode == "mxfp8" else ("U8",)
    fits = n and codes.type in of_codes and scales.type in kinds
    if not fits or k % size or scales.shape != (n, k // size):
        raise CheckpointError(
            f"{stem}: scales of type {scales.type} and shape {list(scales.shape)} do not fit codes "
            f"of type {codes.type} and shape {list(codes.shape)}, expected one for each {size} "
            f"weights of {n_bits} bits; fetch it again"
        )
    return dataclasses.replace(matrix, shape=(n, k))


def _number(stem: str, tensor: StoredTensor) -> float:
    """Returns the scale of a whole matrix."""
    values = None if tensor.is_raw else PlainTensor(tensor.format, tensor.values()).dequantize()
    if values is None or values.size != 1 or not 0 < values.flat[0] < np.inf:
        raise CheckpointError(
            f"{stem}: the scale of the whole matrix has type {tensor.type} and shape "
            f"{list(tensor.shape)}, expected a positive number; fetch it again"
        )
    return float(values.flat[0])
