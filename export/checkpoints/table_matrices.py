"""Matrices of bitsandbytes in 4 bits: codes of a table of 16 numbers, a scale for each block.

Source: bitsandbytes-foundation/bitsandbytes ``functional.py`` ``dequantize_4bit`` and
``QuantState`` (layout, MIT).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from edgedec.export.checkpoints.safetensors_file import StoredTensor
from edgedec.models.errors import CheckpointError
from edgedec.models.fields import Fields
from edgedec.models.quant import FORMATS, PlainTensor

Floats = npt.NDArray[np.float32]
Rows = npt.NDArray[np.intp]

STATES = ("quant_state.bitsandbytes__nf4", "quant_state.bitsandbytes__fp4")
"""Parts whose JSON says how the others belong together."""


@dataclass(frozen=True)
class TableMatrix:
    """Codes of 4 bits, the upper half of a byte first, row after row.

    table: what a code stands for. scales: of each ``block`` of weights, row after row.
    """

    codes: StoredTensor
    shape: tuple[int, ...]
    table: Floats
    scales: Floats
    block: int

    format = FORMATS["f32"]
    stand_in = FORMATS["q8_0"]

    def plain(self, rows: Rows) -> PlainTensor:
        """Returns some rows as floats."""
        places = rows[:, np.newaxis] * self.shape[1] + np.arange(self.shape[1])
        packed = self._packed[places // 2]
        codes = np.where(places % 2, packed & 15, packed >> 4)
        return PlainTensor(self.format, self.table[codes] * self.scales[places // self.block])

    @cached_property
    def _packed(self) -> npt.NDArray[np.uint8]:
        return np.asarray(self.codes.values().reshape(-1))


def table_matrix(tensors: dict[str, Any], name: str) -> TableMatrix:
    """Returns the matrix ``name`` of bitsandbytes, and takes its parts out of ``tensors``.

    Raises:
        CheckpointError: Parts are missing or do not fit each other.
    """
    codes = tensors.pop(name)
    state = _state(tensors, name)
    shape, block = state.integers("shape", least=1), state.integer("blocksize", least=1)
    table, scales = (_floats(tensors, f"{name}.{part}") for part in ("quant_map", "absmax"))
    if f"{name}.nested_absmax" in tensors:
        scales = _nested(tensors, name, scales, state)
    n_weights = int(np.prod(shape))
    fits = len(shape) == 2 and table.shape == (16,) and scales.ndim == 1
    fits = fits and codes.values().size == -(-n_weights // 2)
    if not fits or len(scales) != -(-n_weights // block):
        raise CheckpointError(
            f"{name}: {codes.values().size} bytes and {scales.size} scales do not fit a matrix of "
            f"{list(shape)} in blocks of {block}; fetch it again"
        )
    return TableMatrix(codes, shape, table.astype(np.float32), scales, block)


def _nested(tensors: dict[str, Any], name: str, codes: Floats, state: Fields) -> Floats:
    """Returns scales that are quantised themselves, in 8 bits."""
    table, scales = (_floats(tensors, f"{name}.{p}") for p in ("nested_quant_map", "nested_absmax"))
    block = state.integer("nested_blocksize", least=1)
    index = codes.astype(np.intp)
    if table.shape != (256,) or len(scales) != -(-len(index) // block):
        raise CheckpointError(f"{name}: nested scales do not fit each other; fetch it again")
    nested = table[index] * scales[np.arange(len(index)) // block]
    return np.asarray(nested + np.float32(state.number("nested_offset")), np.float32)


def _state(tensors: dict[str, Any], name: str) -> Fields:
    part = next((p for p in (f"{name}.{state}" for state in STATES) if p in tensors), None)
    if part is None:
        raise CheckpointError(f"missing tensor {name}.{STATES[0]}; fetch it again")
    try:
        values: Any = json.loads(tensors.pop(part).values().tobytes())
    except (ValueError, RecursionError):
        raise CheckpointError(f"{part} is not JSON; fetch it again") from None
    return Fields(values, part, CheckpointError)


def _floats(tensors: dict[str, Any], name: str) -> Floats:
    if name not in tensors:
        raise CheckpointError(f"missing tensor {name}; the file is incomplete, fetch it again")
    tensor = tensors.pop(name)
    if tensor.is_raw:
        return np.asarray(tensor.values().reshape(-1), np.float32)
    return PlainTensor(tensor.format, tensor.values()).dequantize().reshape(-1)
