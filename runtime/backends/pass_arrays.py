"""Arrays of passes over a graph that writes its KV cache in place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from struct import Struct
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edgedec.models.graph import (
    ENTRY,
    FEATURES,
    INPUT_IDS,
    LOGIT_ROWS,
    MTP_ROWS,
    PARENTS,
    POSITION_IDS,
    RING_SEQUENCES,
    SEQUENCE_FIELDS,
    SEQUENCES,
    SOURCES,
    Capabilities,
)
from edgedec.runtime.sequences.passes import Pass


class PassShape(NamedTuple):
    """What decides the sizes of a pass's arrays, the rows of all its sequences together.

    n_new: tokens that are computed. n_nodes: those and the known ones before them.
    hidden: layers whose hidden states are wanted, each with the layer of the port they come from.
    is_entered: the rows begin with given hidden states. n_mtp: rows with logits from which light
    heads go on. n_places: places of all sequences in the KV cache; in rings each has one.
    """

    n_new: int
    n_nodes: int
    n_rows: int
    has_logits: bool
    hidden: tuple[tuple[int, int], ...]
    is_entered: bool
    n_mtp: int
    n_sequences: int
    n_places: int


def gathered(
    passes: Sequence[Pass], n_layers: int, can: Capabilities, has_places: bool = True
) -> tuple[PassShape, list[int]]:
    """Returns the shape of passes that run as one over a graph, and the integers of its inputs.

    Those of several sequences run all layers.

    n_layers, can: of the graph. has_places: it is stated where the rows of `LayerCaches` are.
    """
    ids: list[int] = []
    positions: list[int] = []
    parents: list[int] = []
    rows: list[int] = []
    mtp_rows: list[int] = []
    whole: list[int] = []
    rings: list[int] = []
    has_logits, has_hidden = not can.row_stats, False
    for pass_ in passes:
        tree, n_known, n_past = pass_.tree, pass_.n_known, pass_.n_past
        logit_rows, n_before = pass_.logit_rows, len(positions) - n_known
        if pass_.with_mtp:
            mtp_rows += range(len(rows), len(rows) + len(logit_rows))
        if pass_.with_logits:
            has_logits = True
        if pass_.hidden_layers:
            has_hidden = True
        if pass_.entry is None:
            ids += tree.tokens[n_known:]
        positions += tree.positions(n_past)[n_known:]
        parents += tree.parents
        rows += [n_before + row for row in logit_rows] if n_before else logit_rows
        if has_places:
            in_whole, in_ring = pass_.sequence.state.caches.places
            counts = n_past, len(tree.tokens) - n_known, len(tree.tokens)
            whole += counts + in_whole
            rings += counts + in_ring
    hidden = _hidden(passes, n_layers) if has_hidden else ()
    shape = PassShape(
        len(positions),
        len(parents),
        len(rows),
        has_logits,
        hidden,
        passes[0].entry is not None,
        len(mtp_rows),
        len(passes),
        len(whole) // SEQUENCE_FIELDS,
    )
    sources = [pass_.sequence.n_source for pass_ in passes] if can.sources else ()
    return shape, [*ids, *positions, *parents, *whole, *rings, *rows, *mtp_rows, *sources]


def end_of(passes: Sequence[Pass]) -> int:
    """Returns the position behind those of all rows of ``passes``."""
    return max(pass_.n_past + len(pass_.tree.tokens) for pass_ in passes)


def _hidden(passes: Sequence[Pass], n_layers: int) -> tuple[tuple[int, int], ...]:
    """Returns the layers whose hidden states are pass_, each with the layer of its port."""
    layers: Iterable[int] = passes[0].hidden_layers
    if len(passes) > 1:
        layers = dict.fromkeys(layer for pass_ in passes for layer in pass_.hidden_layers)
    # Closed gates pass on what the last layer that runs leaves.
    stop = n_layers if passes[0].layers is None else passes[0].layers.stop
    return tuple((i, n_layers if i == stop else i) for i in layers)


class PassArrays:
    """The inputs of one shape of pass, by port, in arrays that stay where they are."""

    def __init__(
        self, shape: PassShape, hidden_size: int, n_features: int = 0, has_sources: bool = False
    ) -> None:
        n_entered = shape.n_new if shape.is_entered else 0
        n_rings = shape.n_sequences if shape.n_places else 0
        # In the order of `gathered`: between passes little of NumPy is in caches, so that all
        # integers are written at once.
        sizes: dict[str, tuple[int, ...]] = {
            INPUT_IDS: (1, shape.n_new - n_entered),
            POSITION_IDS: (1, shape.n_new),
            PARENTS: (1, shape.n_nodes),
            SEQUENCES: (shape.n_places, SEQUENCE_FIELDS),
            RING_SEQUENCES: (n_rings, SEQUENCE_FIELDS),
            LOGIT_ROWS: (shape.n_rows,),
            MTP_ROWS: (shape.n_mtp,),
        }
        if has_sources:
            sizes[SOURCES] = (shape.n_sequences,)
        self._integers = _Integers(sizes)
        self._entry = np.zeros((1, n_entered, hidden_size), np.float32)
        self._features = np.zeros((1, shape.n_new, n_features), np.float32)

    def by_port(self) -> dict[str, npt.NDArray[Any]]:
        """Returns the array of each input."""
        features = {FEATURES: self._features} if self._features.size else {}
        return {**self._integers.arrays, ENTRY: self._entry, **features}

    def fill(self, passes: Sequence[Pass], integers: Sequence[int]) -> None:
        """Writes the inputs of passes. integers: what `gathered` returns of them."""
        self._integers.format.pack_into(self._integers.memory, 0, *integers)
        if passes[0].entry is not None:
            self._entry[0] = passes[0].entry
        if self._features.size:
            n_before = 0
            for pass_ in passes:
                n_behind = n_before + pass_.n_rows
                features = 0 if pass_.features is None else pass_.features
                self._features[0, n_before:n_behind] = features
                n_before = n_behind


_ALIGNED = 2
"""Integers, of 8 bytes each: where an array begins, as if it had memory of its own."""


class _Integers:
    """Arrays of int64 by name, one behind the other: ``format`` writes all into ``memory``."""

    def __init__(self, sizes: Mapping[str, tuple[int, ...]]) -> None:
        counts = [prod(size) for size in sizes.values()]
        padded = [count + -count % _ALIGNED for count in counts]
        memory = np.zeros(sum(padded), np.int64)
        self.arrays: dict[str, npt.NDArray[np.int64]] = {}
        start = 0
        for (name, size), count, step in zip(sizes.items(), counts, padded, strict=True):
            self.arrays[name] = memory[start : start + count].reshape(size)
            start += step
        self.memory = memory.data
        self.format = Struct(
            "".join(f"{n}q{8 * (all_ - n)}x" for n, all_ in zip(counts, padded, strict=True))
        )
