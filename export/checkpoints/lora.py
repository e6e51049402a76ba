"""LoRA adapters in the layout of PEFT, merged into the matrices they adapt.

Source: huggingface/peft ``src/peft/tuners/lora/layer.py`` (what is added, Apache-2.0).
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgedec.export.checkpoints.checkpoint import Checkpoint, EditedCheckpoint
from edgedec.export.checkpoints.safetensors_file import read_tensors
from edgedec.export.quantising.quantise import square_sum
from edgedec.models.errors import CheckpointError, UnsupportedModelError
from edgedec.models.families import find_family, scales_weights
from edgedec.models.fields import Fields
from edgedec.models.quant import FORMATS, PlainTensor, QuantFormat
from edgedec.models.weights import Weight, float_rows

Floats = npt.NDArray[np.float32]

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
_CHUNK_ROWS = 1024


@dataclass(frozen=True)
class _Pair:
    """What is added to a matrix of the published model: ``scale * up @ down``."""

    down: Floats  # [r, K]
    up: Floats  # [N, r]
    scale: float


class Merged(EditedCheckpoint):
    """A checkpoint with adapters merged into it.

    Float matrices keep their type. Quantised ones become floats, for which 8 bits stand in.
    """

    def __init__(self, checkpoint: Checkpoint, adapters: tuple[tuple[Path, float], ...]) -> None:
        """Reads adapters, each with the weight it is merged with.

        Raises:
            CheckpointError: a file is missing or damaged, or an adapter is of another model.
            UnsupportedModelError: an adapter is more than pairs of matrices.
        """
        super().__init__(checkpoint)
        if scales_weights(family := checkpoint.config.family):
            raise UnsupportedModelError(
                f"{checkpoint.name}: adapters are not merged into {family}, whose matrices are "
                "multiplied as they are read: merge them with PEFT and export the result"
            )
        self._weights = find_family(family).weights(checkpoint.config)
        self._pairs: dict[str, list[_Pair]] = {}
        for folder, scale in adapters:
            for name, pair in _read(folder, scale).items():
                for ours in self._adapted(folder, name, pair):
                    self._pairs.setdefault(ours, []).append(pair)

    def format(self, name: str) -> QuantFormat:
        """Returns the storage format of the matrix ``name`` once merged."""
        stored = self._checkpoint.format(name)
        return stored if stored.is_float or name not in self._pairs else FORMATS["f32"]

    def stand_in(self, name: str) -> QuantFormat | None:
        """Returns the format that stands in for floats that were merged into a quantised matrix."""
        is_kept = name not in self._pairs or self._checkpoint.format(name).is_float
        return self._checkpoint.stand_in(name) if is_kept else FORMATS["q8_0"]

    def rows(self, name: str, start: int, stop: int) -> PlainTensor:
        """Returns rows [start, stop) of the matrix ``name``, merged."""
        if name not in self._pairs:
            return self._checkpoint.rows(name, start, stop)
        values = float_rows(self._checkpoint, name, start, stop)
        fmt = self.format(name)
        with np.errstate(over="ignore", invalid="ignore"):
            merged = _stored(values + self._difference(name, start, stop), fmt)
        if not np.isfinite(merged.dequantize()).all():
            raise CheckpointError(
                f"{name}: what adapters add to it is beyond {fmt.name}: merge them with less weight"
            )
        return merged

    def changes(self) -> dict[str, float]:
        """Returns the size of what was added to each matrix, relative to what it had."""
        found = {}
        for name in self._pairs:
            n = self._weights[name].shape[0]
            added, had = 0.0, 0.0
            for start in range(0, n, _CHUNK_ROWS):
                stop = min(start + _CHUNK_ROWS, n)
                added += square_sum(self._difference(name, start, stop))
                had += square_sum(float_rows(self._checkpoint, name, start, stop))
            found[name] = math.sqrt(added / max(had, 1e-30))
        return found

    def _difference(self, name: str, start: int, stop: int) -> Floats:
        weight = self._weights[name]
        total = np.zeros((stop - start, weight.shape[1]), np.float32)
        for pair in self._pairs[name]:
            up = weight.hf.take(pair.up, weight.shape[0], start, stop)
            with np.errstate(over="ignore", invalid="ignore"):  # reported where it is merged
                total += np.float32(pair.scale) * (up @ pair.down)
        return total

    def _adapted(self, folder: Path, name: str, pair: _Pair) -> list[str]:
        """Returns our matrices that the published matrix ``name`` holds; checks their shape."""
        found: dict[str, Weight] = {
            ours: weight for ours, weight in self._weights.items() if weight.hf.name == name
        }
        if not found or any(weight.hf.n_experts for weight in found.values()):
            raise CheckpointError(
                f"{folder}: adapts {name}, which {self.name} does not have; it is an adapter of "
                f"another model"
            )
        n = max(weight.hf.first_row + weight.shape[0] for weight in found.values())
        k = next(iter(found.values())).shape[1]
        if (len(pair.up), pair.down.shape[1]) != (n, k):
            raise CheckpointError(
                f"{folder}: adapts {name} of shape {[len(pair.up), pair.down.shape[1]]}, that of "
                f"{self.name} is {[n, k]}; it is an adapter of another model"
            )
        return list(found)


def _stored(values: Floats, fmt: QuantFormat) -> PlainTensor:
    """Returns floats rounded to the type ``fmt``."""
    if fmt.name == "f16":
        return PlainTensor(fmt, values.astype(np.float16))
    if fmt.name == "bf16":
        bits = np.ascontiguousarray(values).view(np.uint32)
        rounded = bits + 0x7FFF + (bits >> 16 & 1)  # to nearest, ties to even
        return PlainTensor(fmt, (rounded >> 16).astype(np.uint16))
    return PlainTensor(fmt, values)


def _read(folder: Path, weight: float) -> dict[str, _Pair]:
    """Returns the pairs of an adapter by the published name of the matrix they adapt."""
    config = _read_config(folder)
    if not (folder / WEIGHTS).is_file():
        raise CheckpointError(
            f"{folder}: has no {WEIGHTS}; pickled adapters are not read, save it as safetensors"
        )
    tensors = read_tensors(folder / WEIGHTS)
    modules: dict[str, dict[str, Floats]] = {}
    for name, tensor in tensors.items():
        stem, _, kind = name.removesuffix(".weight").rpartition(".")
        if kind not in ("lora_A", "lora_B") or not stem.startswith(_PREFIX):
            raise UnsupportedModelError(
                f"{folder}: holds {name[:80]}, expected only pairs lora_A and lora_B of "
                f"linear layers"
            )
        if tensor.is_raw:
            raise UnsupportedModelError(
                f"{folder}: {name[:80]} has type {tensor.type}, expected floats"
            )
        values = PlainTensor(tensor.format, tensor.values()).dequantize()
        modules.setdefault(stem.removeprefix(_PREFIX), {})[kind] = values
    return {
        f"{module}.weight": _pair(folder, module, parts, config, weight)
        for module, parts in modules.items()
    }


def _read_config(folder: Path) -> Fields:
    path = folder / CONFIG
    try:
        values = json.loads(path.read_bytes())
    except OSError:
        raise CheckpointError(
            f"{folder}: has no {CONFIG}; expected the folder of a LoRA adapter, as PEFT saves it"
        ) from None
    except (ValueError, RecursionError):
        raise CheckpointError(f"{path}: is not JSON; fetch it again") from None
    config = Fields(values, f"{folder.name}/{CONFIG}", CheckpointError)
    config.refuse("peft_type", "LORA")
    for key in ("use_dora", "fan_in_fan_out"):
        config.refuse(key, False)
    config.refuse("bias", "none")
    for key in ("rank_pattern", "alpha_pattern"):
        if config.get(key):
            raise UnsupportedModelError(f"{config.origin}: {key} is set, expected the same for all")
    return config


def _pair(
    folder: Path, module: str, parts: dict[str, Floats], config: Fields, weight: float
) -> _Pair:
    rank, alpha = config.integer("r", least=1), config.number("lora_alpha")
    down, up = parts.get("lora_A"), parts.get("lora_B")
    is_pair = down is not None and up is not None and down.ndim == up.ndim == 2
    if not is_pair or down is None or up is None or not len(down) == up.shape[1] == rank:
        raise CheckpointError(
            f"{folder}: {module} has no pair of matrices of rank {rank}; fetch it again"
        )
    is_scaled_by_root = config.flag("use_rslora", False)
    return _Pair(down, up, weight * alpha / (math.sqrt(rank) if is_scaled_by_root else rank))
