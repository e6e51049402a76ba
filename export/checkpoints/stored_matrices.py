"""Matrices that safetensors directories hold quantised: FP8, GPTQ, AWQ, MXFP4, and others.

Each is several tensors of a file. Together they make one matrix, read by rows as any other.

Sources: AutoGPTQ ``auto_gptq/nn_modules/qlinear/qlinear_cuda_old.py`` (MIT), AutoAWQ
``awq/modules/linear/gemm.py`` (MIT), transformers ``integrations/mxfp4.py`` (Apache-2.0), vLLM
``docs/features/quantization/fp8`` (layouts, Apache-2.0).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from edgedec.export.checkpoints.float_groups import (
    FloatGroups,
    eight_bit_floats,
    modelopt_floats,
    packed_floats,
)
from edgedec.export.checkpoints.gguf_codes import plain_mxfp4
from edgedec.export.checkpoints.grouped_matrices import GroupedMatrix, compressed_matrix
from edgedec.export.checkpoints.mlx_matrices import mlx_matrix
from edgedec.export.checkpoints.safetensors_file import StoredTensor
from edgedec.export.checkpoints.small_floats import fp8_table
from edgedec.export.checkpoints.table_matrices import STATES, TableMatrix, table_matrix
from edgedec.models.errors import CheckpointError, UnsupportedModelError
from edgedec.models.fields import Fields
from edgedec.models.quant import FORMATS, PlainTensor, QuantFormat

Floats = npt.NDArray[np.float32]
Rows = npt.NDArray[np.intp]

FP8_SCALES = ("weight_scale_inv", "weight_scale")
"""Names of what FP8 values are multiplied with, whichever a checkpoint has."""
_FP4_BLOCKS, _FP4_SCALES = "_blocks", "_scales"
_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""Nibble of an AWQ word that holds its column i."""
_GROUP = 32


@dataclass(frozen=True)
class Fp8Matrix:
    """FP8 values, and scales, each of a block of ``block`` rows and columns."""

    values: StoredTensor
    scale: StoredTensor
    block: tuple[int, int]

    format = FORMATS["f32"]
    stand_in = FORMATS["q8_0"]

    @property
    def shape(self) -> tuple[int, ...]:
        """Its dimensions [N, K]."""
        return self.values.shape

    def plain(self, rows: Rows) -> PlainTensor:
        """Returns some rows as floats."""
        table = fp8_table(5 if self.values.type == "F8_E5M2" else 4)
        height, width = self.block
        floats = PlainTensor(self.scale.format, self.scale.values()).dequantize()
        by_block = floats.reshape(-(-self.shape[0] // height), -1)
        scale = np.repeat(by_block[rows // height], width, axis=1)[:, : self.shape[1]]
        return PlainTensor(self.format, table[self.values.values()[rows]] * scale)


@dataclass(frozen=True)
class PackedMatrix:
    """Codes in words of 32 bits, with a scale and a zero for each group of a row.

    words: GPTQ packs rows of [K, N] into a word, AWQ eight columns. n_bits: of a code.
    zero_offset: what the packed zeros lack. groups: the group of each input, None where they
    follow each other.
    """

    words: StoredTensor
    zeros: StoredTensor
    scales: StoredTensor
    groups: StoredTensor | None
    is_awq: bool
    zero_offset: int
    n_bits: int = 4

    @property
    def shape(self) -> tuple[int, ...]:
        """Its dimensions [N, K]."""
        first, second = self.words.shape
        return (8 * second, first) if self.is_awq else (second, 32 // self.n_bits * first)

    @property
    def format(self) -> QuantFormat:
        """The smallest format that holds it to the last bit; floats if none does."""
        if not self._is_regular:
            return FORMATS["f32"]
        if self.n_bits == 8:
            return FORMATS["q8_0" if (self._zero == 128).all() else "f32"]
        lowest, highest = int(self._zero.min()), int(self._zero.max())
        fits = highest <= 8 and (1 << self.n_bits) - 1 - lowest <= 7
        return FORMATS["q4_0" if fits else "q5_0"]

    @property
    def stand_in(self) -> QuantFormat | None:
        """The format that stands in for floats."""
        return FORMATS["q8_0"] if self.format.is_float else None

    def plain(self, rows: Rows) -> PlainTensor:
        """Returns some rows."""
        fmt, k = self.format, self.shape[1]
        group = self._group_of
        zero = self._zero[rows][:, group]
        signed = self._codes(rows).astype(np.int16) - zero
        scale = self.scales.values()[:, rows].T
        if fmt.is_float:
            floats = PlainTensor(self.scales.format, np.ascontiguousarray(scale)).dequantize()
            return PlainTensor(fmt, signed.astype(np.float32) * floats[:, group])
        codes = (signed + fmt.zero_point).astype(np.uint8)
        return PlainTensor(fmt, codes, np.ascontiguousarray(scale[:, group[0:k:_GROUP]]))

    @cached_property
    def _group_of(self) -> npt.NDArray[np.intp]:
        """The group of each input."""
        if self.groups is not None:
            return self.groups.values().astype(np.intp)
        k, n_groups = self.shape[1], self.scales.shape[0]
        return np.arange(k) // (k // n_groups)

    @cached_property
    def _is_regular(self) -> bool:
        """Whether groups of 32 inputs share a scale, and scales are float16."""
        group = self._group_of
        if len(group) % _GROUP or self.scales.format.name != "f16":
            return False
        return bool((group.reshape(-1, _GROUP) == group[::_GROUP, None]).all())

    @cached_property
    def _zero(self) -> npt.NDArray[np.int16]:
        """The zero of each group [N, groups]."""
        nibbles = _columns(self.zeros.values(), self.is_awq, self.n_bits)
        return (nibbles.astype(np.int16) + self.zero_offset).T

    def _codes(self, rows: Rows) -> npt.NDArray[np.uint8]:
        """Returns the codes of some rows [n, K]."""
        if not self.is_awq:
            words = np.ascontiguousarray(self.words.values()[:, rows]).view(np.uint32)
            shifts = np.arange(0, 32, self.n_bits, dtype=np.uint32)[None, :, None]
            codes = (words[:, None, :] >> shifts & (1 << self.n_bits) - 1).astype(np.uint8)
            return codes.reshape(-1, len(rows)).T
        words = np.ascontiguousarray(self.words.values()[:, rows // 8]).view(np.uint32)
        shifts = 4 * np.array(_AWQ_ORDER, np.uint32)[rows % 8]
        return (words >> shifts & 15).astype(np.uint8).T


def _columns(words: npt.NDArray[Any], is_awq: bool, n_bits: int) -> npt.NDArray[np.uint8]:
    """Returns the columns [M, 32 / n_bits * W] of words [M, W]."""
    order = _AWQ_ORDER if is_awq else range(32 // n_bits)
    shifts = n_bits * np.array(order, np.uint32)
    packed = np.ascontiguousarray(words).view(np.uint32)[:, :, None]
    return (packed >> shifts & (1 << n_bits) - 1).astype(np.uint8).reshape(len(words), -1)


@dataclass(frozen=True)
class Fp4Experts:
    """Matrices of experts in MXFP4: two codes to a byte, a power of two for each 32.

    blocks: [E, N, K / 32, 16] bytes. scales: their exponents [E, N, K / 32].
    """

    blocks: StoredTensor
    scales: StoredTensor

    format = FORMATS["q5_0"]  # holds them to the last bit
    stand_in = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The dimensions [E, K, N] of the floats that stand for it in other checkpoints."""
        n_experts, n, n_groups, _ = self.blocks.shape
        return n_experts, n_groups * _GROUP, n

    def plain(self, rows: Rows) -> PlainTensor:
        """Returns some rows, counted through all experts."""
        n_experts, k, n = self.shape
        packed = self.blocks.values().reshape(n_experts * n, -1)[rows]
        codes = np.stack([packed & 15, packed >> 4], axis=-1).reshape(len(rows), k)
        exponents = self.scales.values().reshape(n_experts * n, -1)[rows]
        return plain_mxfp4(self.format, codes, exponents)


QuantisedMatrix = Fp8Matrix | PackedMatrix | GroupedMatrix | FloatGroups | TableMatrix | Fp4Experts


def gather(
    tensors: Mapping[str, StoredTensor], config: Fields
) -> dict[str, StoredTensor | QuantisedMatrix]:
    """Returns tensors by name, with one matrix ``NAME.weight`` in place of those it consists of.

    Args:
        config: config.json, whose quantization_config says how matrices are packed.

    Raises:
        CheckpointError: parts of a matrix are missing or do not fit each other.
        UnsupportedModelError: FP8 without scales, other bits than 4, or another layout.
    """
    gathered: dict[str, StoredTensor | QuantisedMatrix] = dict(tensors)
    for name, tensor in tensors.items():
        stem, _, part = name.rpartition(".")
        if name not in gathered:  # a part of a matrix by now
            continue
        if tensor.type.startswith("F8_"):
            if not _is_scale_of_bytes(gathered, stem, part):
                gathered |= _fp8(gathered, stem, name, config)
        elif part == "weight" and tensor.type == "U32":
            gathered[name] = mlx_matrix(gathered, stem, config)
        elif part == "weight_packed" and tensor.type == "U8":
            gathered[f"{stem}.weight"] = packed_floats(gathered, stem)
        elif part == "weight" and f"{stem}.weight_scale_2" in gathered:
            gathered[name] = modelopt_floats(gathered, stem)
        elif part == "weight_packed" or (part == "weight" and tensor.type == "I8"):
            gathered[f"{stem}.weight"] = compressed_matrix(gathered, stem, config)
        elif part == "weight" and any(f"{name}.{state}" in gathered for state in STATES):
            gathered[name] = table_matrix(gathered, name)
        elif part == "qweight":
            gathered |= _packed(gathered, stem, config)
        elif part.endswith(_FP4_BLOCKS):
            gathered |= _fp4(gathered, name)
    left = next((n for n, t in gathered.items() if isinstance(t, StoredTensor) and t.is_raw), None)
    if left is not None:
        raise UnsupportedModelError(f"tensor {left} holds whole numbers, expected floats")
    return gathered


def _is_scale_of_bytes(tensors: Mapping[str, Any], stem: str, part: str) -> bool:
    """Whether a tensor of FP8 is the scales of codes that are bytes, and read with them."""
    codes = (tensors.get(f"{stem}.{name}") for name in ("weight_packed", "weight"))
    return part == "weight_scale" and any(
        isinstance(tensor, StoredTensor) and tensor.type == "U8" for tensor in codes
    )


def unused_biases(gathered: Mapping[str, StoredTensor | QuantisedMatrix]) -> set[str]:
    """Returns the biases of packed matrices that are zero, which some packers add to all."""
    return {
        f"{name.removesuffix('weight')}bias"
        for name, matrix in gathered.items()
        if isinstance(matrix, PackedMatrix)
        and isinstance(bias := gathered.get(f"{name.removesuffix('weight')}bias"), StoredTensor)
        and not bias.values().any()
    }


def _fp4(tensors: dict[str, Any], name: str) -> dict[str, QuantisedMatrix]:
    stem = name.removesuffix(_FP4_BLOCKS)
    if (of_scales := f"{stem}{_FP4_SCALES}") not in tensors:
        raise CheckpointError(f"missing tensor {of_scales}; the file is incomplete, fetch it again")
    blocks, scales = tensors.pop(name), tensors.pop(of_scales)
    fits = blocks.type == scales.type == "U8" and len(blocks.shape) == 4
    if not fits or blocks.shape[3] != _GROUP // 2 or scales.shape != blocks.shape[:3]:
        raise CheckpointError(
            f"{name} has shape {list(blocks.shape)} and {of_scales} {list(scales.shape)}, expected "
            f"bytes [experts, rows, groups, {_GROUP // 2}] and [experts, rows, groups]"
        )
    return {stem: Fp4Experts(blocks, scales)}


def _fp8(
    tensors: dict[str, Any], stem: str, name: str, config: Fields
) -> dict[str, QuantisedMatrix]:
    scales = [f"{stem}.{part}" for part in FP8_SCALES if f"{stem}.{part}" in tensors]
    values = tensors[name]
    if len(values.shape) != 2 or not name.endswith(".weight") or not scales:
        raise UnsupportedModelError(
            f"tensor {name} has type {values.type} and no scales beside it, expected "
            f"{stem}.{' or '.join(FP8_SCALES)}: take the checkpoint in another type"
        )
    scale = tensors.pop(scales[0])
    tensors.pop(f"{stem}.input_scale", None)  # of activations, which are quantised as they come
    if scale.type == "U8":
        return {name: eight_bit_floats(stem, values, scale)}
    if scale.is_raw:
        raise CheckpointError(f"{scales[0]} has type {scale.type}, expected floats")
    sizes = [128, 128]
    if config.get("quantization_config"):
        block_size = config.table("quantization_config").get("weight_block_size")
        sizes = block_size if isinstance(block_size, list) and len(block_size) == 2 else sizes
    n_scales = (*scale.shape, 1, 1)[:2] if scale.shape else (1, 1)
    blocks = [
        _fp8_block(size, count, block)
        for size, count, block in zip(values.shape, n_scales, sizes, strict=True)
    ]
    fits = len(scale.shape) <= 2 and all(
        type(block) is int and block > 0 and -(-size // block) == count
        for size, count, block in zip(values.shape, n_scales, blocks, strict=True)
    )
    if not fits:
        raise CheckpointError(
            f"{scales[0]} has shape {list(scale.shape)}, expected a scale, one for each row, or "
            f"for each block of {sizes} of {list(values.shape)}"
        )
    return {name: Fp8Matrix(values, scale, (blocks[0], blocks[1]))}


def _fp8_block(size: int, n_scales: int, block: Any) -> Any:
    """Returns how many rows or columns share a scale: as stated, or what divides them evenly."""
    if type(block) is int and block > 0 and -(-size // block) == n_scales:
        return block
    return size // n_scales if n_scales and size % n_scales == 0 else block


def _packed(tensors: dict[str, Any], stem: str, config: Fields) -> dict[str, QuantisedMatrix]:
    settings = config.table("quantization_config")
    method = settings.text("quant_method")
    settings.refuse("checkpoint_format", "gptq", "gptq_v2")
    settings.refuse("is_marlin_format", False)
    settings.refuse("bits", *((2, 4, 8) if method == "gptq" else (4,)))
    if method not in ("gptq", "awq"):
        settings.fail("quant_method", method, "'gptq' or 'awq'")
    if method == "awq":
        settings.refuse("version", "gemm", "GEMM")
    is_awq = method == "awq"
    names = [f"{stem}.{part}" for part in ("qweight", "qzeros", "scales")]
    if missing := [name for name in names if name not in tensors]:
        raise CheckpointError(
            f"missing tensor {missing[0]}; the file is incomplete, fetch it again"
        )
    words, zeros, scales = (tensors.pop(name) for name in names)
    groups = tensors.pop(f"{stem}.g_idx", None)
    n_bits = 4 if is_awq else _gptq_bits(stem, words, zeros)
    if not settings.get("dynamic") and settings.get("bits") not in (None, n_bits):
        settings.fail("bits", settings.get("bits"), f"{n_bits}, as {stem} has")
    offset = 0 if is_awq else _gptq_zero_offset(zeros, n_bits, settings)
    matrix = PackedMatrix(words, zeros, scales, groups, is_awq, offset, n_bits)
    _check(stem, matrix)
    return {f"{stem}.weight": matrix}


def _gptq_zero_offset(zeros: StoredTensor, n_bits: int, settings: Fields) -> int:
    """Returns what stored zeros lack: one, unless the format says otherwise.

    Some packers state the wrong format. Zeros of symmetric codes are in the middle, so that they
    show it.
    """
    words = np.ascontiguousarray(zeros.values()).view(np.uint32)
    if settings.flag("sym", True) and words.size and (words == words.flat[0]).all():
        middle = 1 << n_bits - 1
        stored = set(_columns(words.reshape(-1, 1)[:1], False, n_bits).flat)
        if stored in ({middle - 1}, {middle}):
            return middle - int(stored.pop())
    return int(settings.text("checkpoint_format", "gptq") == "gptq")


def _gptq_bits(stem: str, words: StoredTensor, zeros: StoredTensor) -> int:
    """Returns the bits of a code, which ``dynamic`` may set for each module, from the shapes."""
    if len(words.shape) != 2 or len(zeros.shape) != 2 or not words.shape[1]:
        return 4  # refused with the other shapes
    n_bits, remainder = divmod(32 * zeros.shape[1], words.shape[1])
    if remainder:
        return 4
    if n_bits not in (2, 4, 8):
        raise UnsupportedModelError(
            f"{stem}: has {n_bits} bits for a weight, expected 2, 4 or 8: take the checkpoint in "
            "another type"
        )
    return n_bits


def _check(stem: str, matrix: PackedMatrix) -> None:
    """Raises a CheckpointError unless the parts of a matrix fit each other."""
    parts = (matrix.words, matrix.zeros, matrix.scales)
    if any(len(part.shape) != 2 for part in parts) or 0 in matrix.shape:
        raise CheckpointError(f"{stem}: qweight, qzeros or scales is not a matrix; fetch it again")
    n, k = matrix.shape
    n_groups = matrix.scales.shape[0]
    per_word = 32 // matrix.n_bits
    fits = n_groups > 0 and n % per_word == 0
    fits &= matrix.scales.shape == (n_groups, n)
    fits &= matrix.zeros.shape == (n_groups, n // per_word)
    if matrix.words.type != "I32" or matrix.zeros.type != "I32" or matrix.scales.is_raw:
        raise CheckpointError(f"{stem}: expected qweight and qzeros of I32, scales of floats")
    if not fits or (matrix.groups is None and k % n_groups):
        raise CheckpointError(
            f"{stem}: scales of shape {list(matrix.scales.shape)} and qzeros of "
            f"{list(matrix.zeros.shape)} do not fit a matrix of {[n, k]}; fetch it again"
        )
    if matrix.groups is not None:
        values = matrix.groups.values()
        is_index = matrix.groups.type == "I32" and matrix.groups.shape == (k,)
        if not is_index or values.min() < 0 or values.max() >= n_groups:
            raise CheckpointError(f"{stem}: g_idx names groups that are not there; fetch it again")
