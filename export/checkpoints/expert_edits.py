"""What adapters do to matrices of experts: stacked in one tensor, or one tensor for each.

Source: huggingface/peft ``src/peft/tuners/lora/layer.py`` ``ParamWrapper`` (Apache-2.0).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np

from edgedec.export.checkpoints.adapter_edits import Edit, Floats
from edgedec.models.weights import SourceWeight, Weight

_STACKED = re.compile(r"model\.layers\.(\d+)\..*\bexperts\.(gate_up_proj|down_proj)")
_ROUTER = re.compile(r"model\.layers\.(\d+)\.mlp\.gate\.weight")
_PARTS = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}


@dataclass(frozen=True)
class StackedPair:
    """``scale * up @ down`` of each expert is added to a tensor that stacks experts.

    Shapes: down [E * r, in], up [out, r * E], where experts take turns.
    """

    down: Floats
    up: Floats
    scale: float

    def is_of(self, shape: tuple[int, int]) -> set[bool]:
        """Returns whether products are transposed in matrices of ``shape``: what may be so."""
        n_out, n_in = len(self.up), self.down.shape[1]
        return {
            is_transposed
            for is_transposed, fitting in ((False, (n_out, n_in)), (True, (n_in, n_out)))
            if fitting == shape
        }


@dataclass(frozen=True)
class _Products(Sequence[Floats]):
    """The product of each expert, computed when it is asked for."""

    pair: StackedPair
    n_experts: int
    is_transposed: bool

    def __len__(self) -> int:
        return self.n_experts

    @overload
    def __getitem__(self, expert: int) -> Floats: ...
    @overload
    def __getitem__(self, expert: slice) -> Sequence[Floats]: ...
    def __getitem__(self, expert: int | slice) -> Floats | Sequence[Floats]:
        if isinstance(expert, slice):
            return [self[i] for i in range(self.n_experts)[expert]]
        rank = len(self.pair.down) // self.n_experts
        down = self.pair.down[expert * rank : (expert + 1) * rank]
        product = np.float32(self.pair.scale) * (self.pair.up[:, expert :: self.n_experts] @ down)
        return np.asarray(product.T if self.is_transposed else product, np.float32)


@dataclass(frozen=True)
class StackedEdit:
    """The products of a pair, as an edit of those of our rows that ``source`` finds in them."""

    pair: StackedPair
    source: SourceWeight
    is_transposed: bool
    shape: tuple[int, ...]

    def edited(self, values: Floats, weight: Weight, start: int, stop: int) -> Floats:
        """Returns rows [start, stop) of our ``weight`` with the products added."""
        products = _Products(self.pair, self.source.n_experts, self.is_transposed)
        with np.errstate(over="ignore", invalid="ignore"):
            added: Floats = values + self.source.take(products, weight.shape[0], start, stop)
        return added


@dataclass(frozen=True)
class OfExpert:
    """An edit of the matrix of one expert, as an edit of ours, in which experts are stacked."""

    edit: Edit
    expert: int
    n_experts: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the published tensor, [N, K]."""
        return self.edit.shape

    def edited(self, values: Floats, weight: Weight, start: int, stop: int) -> Floats:
        """Returns rows [start, stop) of our ``weight``."""
        n, k = weight.shape[0] // self.n_experts, weight.shape[1]
        first = self.expert * n
        low, high = max(start, first), min(stop, first + n)
        if low >= high:
            return values
        alone = dataclasses.replace(weight, shape=(n, k), hf=SourceWeight(""))
        edited = np.array(values, np.float32)
        ours = slice(low - start, high - start)
        edited[ours] = self.edit.edited(edited[ours], alone, low - first, high - first)
        return edited


def stacked_sources(weights: Mapping[str, Weight], name: str) -> dict[str, SourceWeight]:
    """Returns, by our names, where weights lie in the parameter ``name`` of stacked experts.

    transformers 5 stacks gates above up projections where directories have a tensor each.
    """
    sources = {ours: w.hf for ours, w in weights.items() if w.hf.n_experts and w.hf.name == name}
    if sources or not (match := _STACKED.fullmatch(name)):
        return sources
    first_row = 0
    for part in _PARTS[match[2]]:
        ours = f"layers.{match[1]}.mlp.experts.{part}.weight"
        if ours not in weights or "{expert}" not in weights[ours].hf.name:
            return {}
        n_experts = weights[ours].hf.n_experts
        sources[ours] = SourceWeight(name, n_experts, first_row=first_row)
        first_row += weights[ours].shape[0] // n_experts
    return sources


def published_router(weights: Mapping[str, Weight], name: str) -> str | None:
    """Returns the published name of the router that transformers 5 calls ``name``."""
    match = _ROUTER.fullmatch(name)
    router = weights.get(f"layers.{match[1]}.mlp.router.weight") if match else None
    return router.hf.name if router else None


def stacked_shape(
    weights: Mapping[str, Weight], sources: Mapping[str, SourceWeight]
) -> tuple[int, int]:
    """Returns the shape of an expert's matrix in the tensor that ``sources`` lie in."""
    ours, source = next(iter(sources.items()))
    n_rows = sum(weights[name].shape[0] for name in sources) // source.n_experts
    n_columns = weights[ours].shape[1]
    return (n_columns, n_rows) if source.is_transposed else (n_rows, n_columns)


def experts_by_name(weights: Mapping[str, Weight]) -> dict[str, tuple[str, int]]:
    """Returns our name and the expert, by the published names of tensors of one expert each."""
    return {
        name: (ours, expert)
        for ours, weight in weights.items()
        if "{expert}" in weight.hf.name
        for expert, name in enumerate(weight.hf.names)
    }
