"""Weights by our names: where each comes from, and whether a checkpoint has what a recipe reads."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from edgedec.models.config import ModelConfig
from edgedec.models.errors import CheckpointError, UnsupportedModelError
from edgedec.models.quant import PlainTensor, QuantFormat

V = TypeVar("V", bound=np.generic)

N_NAMED = 3
"""How many weights an error names before it only counts."""


class WeightSource(Protocol):
    """Weights of one model, read a few rows at a time so that no whole model is ever in memory."""

    @property
    def config(self) -> ModelConfig:
        """The hyper-parameters the weights belong to."""

    def format(self, name: str) -> QuantFormat:
        """Returns the storage format of the matrix ``name``."""

    def rows(self, name: str, start: int, stop: int) -> PlainTensor:
        """Returns rows [start, stop) of the matrix ``name`` [N, K], rotary halves apart."""

    def vector(self, name: str) -> npt.NDArray[np.float32]:
        """Returns the norm weight or bias ``name``."""

    def release(self) -> None:
        """Drops mapped pages of what was read; the next read maps them again."""


def float_rows(source: WeightSource, name: str, start: int, stop: int) -> npt.NDArray[np.float32]:
    """Returns rows [start, stop) of the matrix ``name`` as float32 [stop - start, K]."""
    return source.rows(name, start, stop).dequantize()


class RowOrder(Protocol):
    """A transform that keeps rows whole: quantised ones stay equal to the last bit."""

    def of(self, n_rows: int) -> npt.NDArray[np.intp]:
        """Returns, for each of our ``n_rows`` rows, its row in the checkpoint."""


@dataclass(frozen=True)
class PairedHeads:
    """Rows of ``n_heads`` heads stored in rotary pairs (0, d/2, 1, d/2 + 1, ...).

    They are put back into halves (0, 1, ..., d - 1).
    """

    n_heads: int

    def of(self, n_rows: int) -> npt.NDArray[np.intp]:
        """Returns, for each of our ``n_rows`` rows, its row in the checkpoint."""
        order = np.arange(n_rows, dtype=np.intp).reshape(self.n_heads, -1, 2)
        return order.swapaxes(1, 2).reshape(n_rows)


@dataclass(frozen=True)
class PartialHeads:
    """Rows of ``n_heads`` heads of which only the first ``rotary_size`` rotate, among themselves.

    They are put where a rotation of whole heads, channel i with channel i + d/2, finds them: each
    half of a head begins with a half of those that rotate.
    """

    n_heads: int
    rotary_size: int

    def of(self, n_rows: int) -> npt.NDArray[np.intp]:
        """Returns, for each of our ``n_rows`` rows, its row in the checkpoint."""
        heads = np.arange(n_rows, dtype=np.intp).reshape(self.n_heads, -1)
        turning, still = np.split(heads, [self.rotary_size], axis=1)
        halves = zip(np.split(turning, 2, axis=1), np.split(still, 2, axis=1), strict=True)
        return np.concatenate([part for half in halves for part in half], axis=1).reshape(n_rows)


@dataclass(frozen=True)
class GroupedRows:
    """Our rows of a tensor that holds several weights in turn, a part of each for every group.

    n_groups: such as heads. sizes: rows of each weight in a group. parts: of these weights, those
    that are ours, one behind the other.
    """

    n_groups: int
    sizes: tuple[int, ...]
    parts: tuple[int, ...]

    @property
    def n_stored(self) -> int:
        """Rows of the whole tensor."""
        return self.n_groups * sum(self.sizes)

    def of(self, n_rows: int) -> npt.NDArray[np.intp]:
        """Returns, for each of our ``n_rows`` rows, its row in the tensor."""
        stored = np.arange(self.n_stored, dtype=np.intp).reshape(self.n_groups, -1)
        weights = np.split(stored, np.cumsum(self.sizes)[:-1], axis=1)
        rows = np.concatenate([weights[part].reshape(-1) for part in self.parts])
        assert len(rows) == n_rows
        return rows


@dataclass(frozen=True)
class SourceWeight:
    """Where one of our weights lies in a checkpoint: a tensor, a slice of it, a transform.

    name: the checkpoint's own name of the tensor.
    n_experts: of experts whose rows lie below each other in our matrix; 0 where it is not of
        experts. A name with ``{expert}`` in it is one tensor for each, any other one that stacks
        them on its first axis.
    first_row: of the rows that are ours, where a tensor joins several of our weights (q, k, v).
    grouped: which rows are ours where those weights take turns.
    order: how those rows are arranged; as ours when None.
    offset: what is added to the values of a vector, such as 1 where norms are stored without it.
    is_negative_exp: the tensor holds ``-exp(x)`` of the values ``x`` of our vector.
    step: how far apart our rows are from ``first_row`` on, where a tensor of experts holds rows of
        several weights in turn.
    is_transposed: the matrices of experts are stored [columns, rows].
    entry: which matrix is ours, where a tensor stacks several on its first axis.
    n_folded: our rows, or numbers of a vector, that lie side by side in one row of the tensor's.
    scales: runs of our rows, and what each run is multiplied by; empty where nothing is.
    stored_shape: of a tensor whose rows, one behind the other, are our vector.
    """

    name: str
    n_experts: int = 0
    first_row: int = 0
    order: RowOrder | None = None
    offset: float = 0.0
    grouped: GroupedRows | None = None
    is_negative_exp: bool = False
    step: int = 1
    is_transposed: bool = False
    entry: int | None = None
    n_folded: int = 1
    scales: tuple[tuple[int, float], ...] = ()
    stored_shape: tuple[int, ...] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The checkpoint's own names of the tensors it lies in."""
        if "{expert}" not in self.name:
            return (self.name,)
        return tuple(self.name.format(expert=expert) for expert in range(self.n_experts))

    def take(
        self,
        stored: npt.NDArray[V] | Sequence[npt.NDArray[V]],
        n_rows: int,
        start: int = 0,
        stop: int | None = None,
    ) -> npt.NDArray[V]:
        """Returns rows [start, stop) of our weight, which has ``n_rows``, from its tensor.

        Shapes: stored [rows, ...] or [experts, rows, ...]; any element type.
        """
        stop = n_rows if stop is None else stop
        assert 0 <= start <= stop <= n_rows
        if self.n_experts:
            return self._of_experts(stored, n_rows, start, stop)
        assert isinstance(stored, np.ndarray)
        stored = self._unfolded(stored)
        if self.grouped is not None:
            rows = self.grouped.of(n_rows)
            return stored[(rows if self.order is None else rows[self.order.of(n_rows)])[start:stop]]
        ours: npt.NDArray[V] = stored[self.first_row : self.first_row + n_rows]
        assert n_rows <= len(ours)
        return ours[start:stop] if self.order is None else ours[self.order.of(n_rows)[start:stop]]

    def _unfolded(self, stored: npt.NDArray[V]) -> npt.NDArray[V]:
        """Returns the matrix that is ours in its tensor, a row of ours in each row."""
        if self.stored_shape is not None:
            return stored.reshape(-1)
        ours: npt.NDArray[V] = stored if self.entry is None else stored[self.entry]
        return ours if self.n_folded == 1 else ours.reshape(-1, ours.shape[1] // self.n_folded)

    def values(self, stored: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Returns what the stored numbers of our vector stand for."""
        if self.is_negative_exp:
            return np.log(-stored)
        if self.scales:
            stored = stored * self.row_scales()
        return stored + np.float32(self.offset)

    def row_scales(self, start: int = 0, stop: int | None = None) -> npt.NDArray[np.float32]:
        """Returns what rows [start, stop) of a weight with ``scales`` are multiplied by."""
        counts, factors = zip(*self.scales, strict=True)
        return np.repeat(np.array(factors, np.float32), counts)[start:stop]

    def part_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the stored shape of our weight, of one expert's part where there are some."""
        if self.stored_shape is not None:
            return self.stored_shape
        if self.n_folded > 1:
            n_rows, *width = shape
            return n_rows // self.n_folded, math.prod(width) * self.n_folded
        if not self.n_experts:
            return shape
        n, *k = shape
        return n // self.n_experts, *k

    def _of_experts(
        self,
        stored: npt.NDArray[V] | Sequence[npt.NDArray[V]],
        n_rows: int,
        start: int,
        stop: int,
    ) -> npt.NDArray[V]:
        first, step = self.first_row, self.step
        n_each = n_rows // self.n_experts
        parts = []
        for expert in range(start // n_each, -(-stop // n_each)):
            low, high = start - expert * n_each, stop - expert * n_each
            rows = stored[expert].T if self.is_transposed else stored[expert]
            ours = slice(first + step * max(low, 0), first + step * min(high, n_each), step)
            parts.append(rows[ours])
        return np.concatenate(parts) if parts else stored[0][:0]


@dataclass(frozen=True)
class Weight:
    """One weight of a recipe: its shape (matrices [N, K]), and where it lies in either format."""

    shape: tuple[int, ...]
    hf: SourceWeight
    gguf: SourceWeight


WeightMap = dict[str, tuple[tuple[int, ...], SourceWeight]]
"""Our weight name -> its shape and where it lies in the checkpoint at hand."""


def check_layers(config: ModelConfig, n_stored: int) -> None:
    """Checks the stated layer count before anything is built per layer.

    Raises:
        CheckpointError: there are fewer tensors than layers.
    """
    if config.n_layers > n_stored:
        raise CheckpointError(
            f"the configuration states {config.n_layers} layers, but there are only {n_stored} "
            f"tensors; the file is damaged or incomplete"
        )


def check_weights(
    family: str,
    weights: WeightMap,
    stored: Mapping[str, tuple[int, ...]],
    ignorable: frozenset[str] = frozenset(),
) -> None:
    """Checks that the checkpoint holds exactly what a recipe reads.

    Args:
        stored: shape of every tensor by the checkpoint's own name.
        ignorable: stored names that carry nothing the recipe needs.

    Raises:
        CheckpointError: a weight is missing or has another shape.
        UnsupportedModelError: a tensor, or a part of one, is there that the recipe would leave out.
    """
    parts: dict[str, list[tuple[tuple[int, ...], SourceWeight]]] = {}
    for shape, source in weights.values():
        for name in source.names:
            parts.setdefault(name, []).append((source.part_shape(shape), source))
    if missing := [name for name in parts if name not in stored]:
        raise CheckpointError(f"missing {_named(missing)}; the file is incomplete, fetch it again")
    for name, of_tensor in parts.items():
        expected = _joined_shape(of_tensor)
        if stored[name] != expected:
            raise CheckpointError(
                f"tensor {name} has shape {list(stored[name])}, expected {list(expected)} "
                f"from the checkpoint's own configuration"
            )
    if extra := sorted(set(stored) - set(parts) - ignorable):
        raise UnsupportedModelError(
            f"the {family} recipe does not read {_named(extra)}; the model is a variant "
            f"of {family} that edgedec does not know"
        )


def _joined_shape(parts: list[tuple[tuple[int, ...], SourceWeight]]) -> tuple[int, ...]:
    """Returns the shape of the tensor that consists of ``parts`` and nothing else."""
    shape, first = parts[0]
    if first.entry is not None:
        assert sorted(source.entry or 0 for _, source in parts) == list(range(len(parts)))
        return (len(parts), *shape)
    n_rows = max(source.first_row + source.step * (shape[0] - 1) + 1 for shape, source in parts)
    if first.grouped is not None:
        n_rows = first.grouped.n_stored
    lead = (first.n_experts,) if first.n_experts and first.names == (first.name,) else ()
    n_covered = sum(shape[0] for shape, _ in parts)
    assert n_covered == n_rows, f"{first.name}: parts overlap or leave gaps"
    return (*lead, *shape[1:], n_rows) if first.is_transposed else (*lead, n_rows, *shape[1:])


def _named(names: list[str]) -> str:
    noun = "tensor" if len(names) == 1 else f"{len(names)} tensors:"
    more = ", ..." if len(names) > N_NAMED else ""
    return f"{noun} {', '.join(names[:N_NAMED])}{more}"
