"""A checkpoint with LoRA adapters merged into its weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from edgedec.export.checkpoints.adapter_config import CONFIG, MERGE_WITH_PEFT
from edgedec.export.checkpoints.adapter_edits import Edit, Floats, Replaced, TokenRows, VectorEdit
from edgedec.export.checkpoints.adapter_file import WEIGHTS, read_adapter
from edgedec.export.checkpoints.adapter_names import published_modules
from edgedec.export.checkpoints.checkpoint import Checkpoint, EditedCheckpoint
from edgedec.export.checkpoints.expert_edits import (
    OfExpert,
    StackedEdit,
    StackedPair,
    experts_by_name,
    published_router,
    stacked_shape,
    stacked_sources,
)
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
        self._of_expert = experts_by_name(self._weights)
        for folder, scale in adapters:
            self._add(folder, scale)

    def _add(self, folder: Path, scale: float) -> None:
        modules = published_modules(self._weights)
        adapter = read_adapter(folder, scale, self.config.vocab_size, modules, self._has)
        self._add_stacked(folder, adapter.stacked)
        is_shared = adapter.is_tied and self.config.is_head_tied
        matrices = _with_shared_head(adapter.matrices) if is_shared else adapter.matrices
        for name, edits in matrices.items():
            if name in self._of_expert:
                self._add_to_expert(folder, name, edits)
                continue
            for edit in edits:
                is_of_both = isinstance(edit, Replaced) and edit.is_of_both
                unties = not (is_shared or is_of_both or isinstance(edit, TokenRows))
                for ours in self._adapted(folder, name, edit.shape, unties):
                    self._edits.setdefault(ours, []).append(edit)
        for name, vectors in adapter.vectors.items():
            for vector in vectors:
                for ours in self._adapted(folder, name, vector.shape):
                    self._vector_edits.setdefault(ours, []).append(vector)
        self._unapplied += adapter.unapplied

    def _has(self, name: str) -> bool:
        """Whether the published model has the parameter ``name``."""
        published = published_router(self._weights, name) or name
        is_matrix = any(weight.hf.name == published for weight in self._weights.values())
        return is_matrix or bool(stacked_sources(self._weights, name))

    def _add_to_expert(self, folder: Path, name: str, edits: list[Edit]) -> None:
        """Adds edits of a tensor that is the matrix of one expert."""
        ours, expert = self._of_expert[name]
        weight = self._weights[ours]
        n_experts, (n_rows, *k) = weight.hf.n_experts, weight.shape
        for edit in edits:
            if edit.shape != (expected := (n_rows // n_experts, *k)):
                self._refuse_shape(folder, name, edit.shape, expected)
            self._edits.setdefault(ours, []).append(OfExpert(edit, expert, n_experts))

    def _add_stacked(self, folder: Path, pairs: dict[str, StackedPair]) -> None:
        """Adds edits of tensors that stack experts.

        PEFT says nowhere which side of a matrix is the output. Matrices that are no squares show
        it, and those of one adapter agree.
        """
        sources = {name: stacked_sources(self._weights, name) for name in pairs}
        shapes, may_be = {}, {}
        for name, pair in pairs.items():
            if not sources[name]:
                self._refuse_name(folder, name)
            shapes[name] = stacked_shape(self._weights, sources[name])
            may_be[name] = pair.is_of(shapes[name])
            n_experts = next(iter(sources[name].values())).n_experts
            if not may_be[name] or len(pair.down) % n_experts:
                shape = (len(pair.up), pair.down.shape[1])
                self._refuse_shape(folder, name, shape, shapes[name])
        sides = {next(iter(either)) for either in may_be.values() if len(either) == 1}
        if pairs and len(sides) != 1:
            raise UnsupportedModelError(
                f"{folder}: adapts {next(iter(pairs))}, whose matrices are squares: nothing says "
                f"which side of them is the output; {MERGE_WITH_PEFT}"
            )
        for name, pair in pairs.items():
            for ours, source in sources[name].items():
                edit = StackedEdit(pair, source, True in sides, shapes[name])
                self._edits.setdefault(ours, []).append(edit)

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
        changes = {}
        for name in self._edits:
            n = self._weights[name].shape[0]
            added, had = 0.0, 0.0
            for start in range(0, n, _CHUNK_ROWS):
                stop = min(start + _CHUNK_ROWS, n)
                values = float_rows(self._checkpoint, name, start, stop)
                with np.errstate(over="ignore", invalid="ignore"):  # reported where it is merged
                    added += square_sum(self._edited(values, name, start, stop) - values)
                had += square_sum(values)
            changes[name] = math.sqrt(added / max(had, 1e-30))
        return changes

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
        published = published_router(self._weights, name) or name
        weights: dict[str, Weight] = {
            ours: weight for ours, weight in self._weights.items() if weight.hf.name == published
        }
        if not weights or any(weight.hf.n_experts for weight in weights.values()):
            self._refuse_name(folder, name)
        n = max(weight.hf.first_row + weight.shape[0] for weight in weights.values())
        expected = (n, *next(iter(weights.values())).shape[1:])
        if shape != expected:
            self._refuse_shape(folder, name, shape, expected)
        return list(weights)

    def _refuse_name(self, folder: Path, name: str) -> NoReturn:
        raise CheckpointError(
            f"{folder}: adapts {name}, which {self.name} does not have; it is an adapter of "
            f"another model"
        )

    def _refuse_shape(
        self, folder: Path, name: str, shape: tuple[int, ...], expected: tuple[int, ...]
    ) -> NoReturn:
        if name in (_EMBEDDING, _HEAD) and shape[1:] == expected[1:]:
            raise UnsupportedModelError(
                f"{folder}: {name} has {shape[0]} rows, that of {self.name} {expected[0]}: the "
                f"vocabulary was changed, and its tokenizer; {MERGE_WITH_PEFT}"
            )
        raise CheckpointError(
            f"{folder}: adapts {name} of shape {list(shape)}, that of "
            f"{self.name} is {list(expected)}; it is an adapter of another model"
        )


def _with_shared_head(matrices: Mapping[str, list[Edit]]) -> dict[str, list[Edit]]:
    """Returns edits where those of the embedding are the head's, too."""
    shared = matrices.get(_EMBEDDING) or matrices.get(_HEAD)
    others = {k: edits for k, edits in matrices.items() if k not in (_EMBEDDING, _HEAD)}
    return {**others, _EMBEDDING: shared} if shared else others


def _stored(values: Floats, fmt: QuantFormat) -> PlainTensor:
    """Returns floats rounded to the type ``fmt``."""
    if fmt.name == "f16":
        return PlainTensor(fmt, values.astype(np.float16))
    if fmt.name == "bf16":
        bits = np.ascontiguousarray(values).view(np.uint32)
        rounded = bits + 0x7FFF + (bits >> 16 & 1)  # to nearest, ties to even
        return PlainTensor(fmt, (rounded >> 16).astype(np.uint16))
    return PlainTensor(fmt, np.ascontiguousarray(values, np.float32))
