"""A checkpoint with LoRA adapters merged into its weights."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgedec.export.checkpoints.adapter_config import CONFIG, MERGE_WITH_PEFT
from edgedec.export.checkpoints.adapter_edits import Edit, Floats, TokenRows, VectorEdit
from edgedec.export.checkpoints.adapter_file import WEIGHTS, read_adapter
from edgedec.export.checkpoints.checkpoint import Checkpoint, EditedCheckpoint
from edgedec.export.quantising.quantise import square_sum
from edgedec.models.errors import CheckpointError, UnsupportedModelError
from edgedec.models.families import find_family, scales_weights
from edgedec.models.quant import FORMATS, PlainTensor, QuantFormat
from edgedec.models.weights import Weight, float_rows

__all__ = ["CONFIG", "WEIGHTS", "Merged"]

_CHUNK_ROWS = 1024
_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


class Merged(EditedCheckpoint):
    """A checkpoint with adapters merged into it.

    Float matrices keep their type. Quantised ones become floats, for which 8 bits stand in.
    """

    def __init__(self, checkpoint: Checkpoint, adapters: tuple[tuple[Path, float], ...]) -> None:
        """Reads adapters, each with the weight it is merged with.

        Raises:
            CheckpointError: A file is missing or damaged, or an adapter is of another model.
            UnsupportedModelError: An adapter does what merging cannot do.
        """
        super().__init__(checkpoint)
        if scales_weights(family := checkpoint.config.family):
            raise UnsupportedModelError(
                f"{checkpoint.name}: adapters are not merged into {family}, whose matrices are "
                "multiplied as they are read: merge them with PEFT and export the result"
            )
        self._weights = find_family(family).weights(checkpoint.config)
        self._edits: dict[str, list[Edit]] = {}
        self._vector_edits: dict[str, list[VectorEdit]] = {}
        self._unapplied: tuple[str, ...] = ()
        for folder, scale in adapters:
            self._add(folder, scale)

    def _add(self, folder: Path, scale: float) -> None:
        adapter = read_adapter(folder, scale, self.config.vocab_size)
        for name, edits in adapter.matrices.items():
            for edit in edits:
                unties = not isinstance(edit, TokenRows)
                for ours in self._adapted(folder, name, edit.shape, unties):
                    self._edits.setdefault(ours, []).append(edit)
        for name, vectors in adapter.vectors.items():
            for vector in vectors:
                for ours in self._adapted(folder, name, vector.shape):
                    self._vector_edits.setdefault(ours, []).append(vector)
        self._unapplied += adapter.unapplied

    @property
    def unapplied(self) -> tuple[str, ...]:
        """What publishers state, of the model or of adapters, that is not applied."""
        return (*super().unapplied, *self._unapplied)

    def format(self, name: str) -> QuantFormat:
        """Returns the storage format of the matrix ``name`` once merged."""
        stored = self._checkpoint.format(name)
        return stored if stored.is_float or name not in self._edits else FORMATS["f32"]

    def stand_in(self, name: str) -> QuantFormat | None:
        """Returns the format that stands in for floats that were merged into a quantised matrix."""
        is_kept = name not in self._edits or self._checkpoint.format(name).is_float
        return self._checkpoint.stand_in(name) if is_kept else FORMATS["q8_0"]

    def rows(self, name: str, start: int, stop: int) -> PlainTensor:
        """Returns rows [start, stop) of the matrix ``name``, merged."""
        if name not in self._edits:
            return self._checkpoint.rows(name, start, stop)
        values = float_rows(self._checkpoint, name, start, stop)
        fmt = self.format(name)
        with np.errstate(over="ignore", invalid="ignore"):
            merged = _stored(self._edited(values, name, start, stop), fmt)
        if not np.isfinite(merged.dequantize()).all():
            raise CheckpointError(
                f"{name}: what adapters add to it is beyond {fmt.name}: merge them with less weight"
            )
        return merged

    def vector(self, name: str) -> npt.NDArray[np.float32]:
        """Returns the norm weight or bias ``name``, merged."""
        values = self._checkpoint.vector(name)
        for edit in self._vector_edits.get(name, ()):
            values = edit.of_vector(values, self._weights[name])
        return values

    def changes(self) -> dict[str, float]:
        """Returns the size of what was added to each matrix, relative to what it had."""
        found = {}
        for name in self._edits:
            n = self._weights[name].shape[0]
            added, had = 0.0, 0.0
            for start in range(0, n, _CHUNK_ROWS):
                stop = min(start + _CHUNK_ROWS, n)
                values = float_rows(self._checkpoint, name, start, stop)
                with np.errstate(over="ignore", invalid="ignore"):  # reported where it is merged
                    added += square_sum(self._edited(values, name, start, stop) - values)
                had += square_sum(values)
            found[name] = math.sqrt(added / max(had, 1e-30))
        return found

    def _edited(self, values: Floats, name: str, start: int, stop: int) -> Floats:
        for edit in self._edits[name]:
            values = edit.edited(values, self._weights[name], start, stop)
        return values

    def _adapted(
        self, folder: Path, name: str, shape: tuple[int, ...], unties: bool = False
    ) -> list[str]:
        """Returns our weights that the published tensor ``name`` holds; checks their shape.

        unties: a head that shares the embedding does not share the change.
        """
        if unties and self.config.is_head_tied and name in (_EMBEDDING, _HEAD):
            raise UnsupportedModelError(
                f"{folder}: adapts {name}, but embedding and head of {self.name} are one matrix, "
                "and the adapter was trained with two: merge it with PEFT, set tie_word_embeddings "
                "to false, and export the result"
            )
        found: dict[str, Weight] = {
            ours: weight for ours, weight in self._weights.items() if weight.hf.name == name
        }
        if not found or any(weight.hf.n_experts for weight in found.values()):
            raise CheckpointError(
                f"{folder}: adapts {name}, which {self.name} does not have; it is an adapter of "
                f"another model"
            )
        n = max(weight.hf.first_row + weight.shape[0] for weight in found.values())
        expected = (n, *next(iter(found.values())).shape[1:])
        if shape != expected:
            self._refuse_shape(folder, name, shape, expected)
        return list(found)

    def _refuse_shape(
        self, folder: Path, name: str, shape: tuple[int, ...], expected: tuple[int, ...]
    ) -> None:
        if name in (_EMBEDDING, _HEAD) and shape[1:] == expected[1:]:
            raise UnsupportedModelError(
                f"{folder}: {name} has {shape[0]} rows, that of {self.name} {expected[0]}: the "
                f"vocabulary was changed, and its tokenizer; {MERGE_WITH_PEFT}"
            )
        raise CheckpointError(
            f"{folder}: adapts {name} of shape {list(shape)}, that of "
            f"{self.name} is {list(expected)}; it is an adapter of another model"
        )


def _stored(values: Floats, fmt: QuantFormat) -> PlainTensor:
    """Returns floats rounded to the type ``fmt``."""
    if fmt.name == "f16":
        return PlainTensor(fmt, values.astype(np.float16))
    if fmt.name == "bf16":
        bits = np.ascontiguousarray(values).view(np.uint32)
        rounded = bits + 0x7FFF + (bits >> 16 & 1)  # to nearest, ties to even
        return PlainTensor(fmt, (rounded >> 16).astype(np.uint16))
    return PlainTensor(fmt, np.ascontiguousarray(values, np.float32))
