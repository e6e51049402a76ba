"""Arrays of passes over a graph that writes its KV cache in place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
)
from edgedec.runtime.backends._kv_cache import Places
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
    n_mtp: int = 0
    n_sequences: int = 1
    n_places: int = 1

    @classmethod
    def of(
        cls,
        passes: Sequence[Pass],
        has_logits: bool,
        n_layers: int,
        places: Sequence[tuple[Places, Places]] = (),
    ) -> PassShape:
        """Returns the shape of passes that run as one over a graph of ``n_layers``.

        Those of several sequences run all layers. places: of each sequence; see `PassArrays.fill`.
        """
        first = passes[0]
        stop = n_layers if first.layers is None else first.layers.stop
        layers: Iterable[int] = first.hidden_layers
        if len(passes) > 1:
            layers = dict.fromkeys(layer for p in passes for layer in p.hidden_layers)
        # Closed gates pass on what the last layer that runs leaves.
        hidden = tuple([(i, n_layers if i == stop else i) for i in layers]) if layers else ()
        n_nodes = n_known = n_rows = n_mtp = n_places = 0
        for wanted in passes:
            n_nodes += len(wanted.tree.tokens)
            n_known += wanted.n_known
            n_rows += len(wanted.logit_rows)
            n_mtp += len(wanted.logit_rows) if wanted.with_mtp else 0
        for whole, _ in places:
            n_places += len(whole)
        return cls(
            n_nodes - n_known,
            n_nodes,
            n_rows,
            has_logits,
            hidden,
            first.entry is not None,
            n_mtp,
            len(passes),
            n_places or 1,
        )


_MORE_PLACES = -1, 0, 0
"""Instead of counts: the place goes on with the sequence before."""


class _Numbers:
    """An array of int64 that is written between all passes, when little of NumPy is in caches."""

    def __init__(self, *shape: int) -> None:
        self.array = np.zeros(shape, np.int64)
        self._view = self.array.reshape(-1).data
        self._format = Struct(f"{self.array.size}q")

    def write(self, *numbers: int) -> None:
        """Replaces all."""
        self._format.pack_into(self._view, 0, *numbers)


class PassArrays:
    """The inputs of one shape of pass, by port, in arrays that stay where they are."""

    def __init__(
        self, shape: PassShape, hidden_size: int, n_features: int = 0, has_sources: bool = False
    ) -> None:
        n_entered = shape.n_new if shape.is_entered else 0
        self._ids = _Numbers(1, shape.n_new - n_entered)
        self._entry = np.zeros((1, n_entered, hidden_size), np.float32)
        self._features = np.zeros((1, shape.n_new, n_features), np.float32)
        self._positions = _Numbers(1, shape.n_new)
        self._parents = _Numbers(1, shape.n_nodes)
        self._sequences = _Numbers(shape.n_places, SEQUENCE_FIELDS)
        self._ring_sequences = _Numbers(shape.n_sequences, SEQUENCE_FIELDS)
        self._logit_rows = _Numbers(shape.n_rows)
        self._mtp_rows = _Numbers(shape.n_mtp)
        self._sources = _Numbers(shape.n_sequences) if has_sources else None

    def by_port(self) -> dict[str, npt.NDArray[Any]]:
        """Returns the array of each input."""
        optional: dict[str, npt.NDArray[Any]] = {}
        if self._features.size:
            optional[FEATURES] = self._features
        if self._sources is not None:
            optional[SOURCES] = self._sources.array
        return optional | {
            INPUT_IDS: self._ids.array,
            ENTRY: self._entry,
            POSITION_IDS: self._positions.array,
            PARENTS: self._parents.array,
            SEQUENCES: self._sequences.array,
            RING_SEQUENCES: self._ring_sequences.array,
            LOGIT_ROWS: self._logit_rows.array,
            MTP_ROWS: self._mtp_rows.array,
        }

    def fill(self, passes: Sequence[Pass], places: Sequence[tuple[Places, Places]] = ()) -> None:
        """Writes the inputs of passes. places: of each sequence, in the KV cache and in rings."""
        ids: list[int] = []
        positions: list[int] = []
        parents: list[int] = []
        rows: list[int] = []
        mtp_rows: list[int] = []
        for wanted in passes:
            tree, n_known, n_past = wanted.tree, wanted.n_known, wanted.n_past
            if self._features.size:
                here = slice(len(positions), len(positions) + len(tree.tokens) - n_known)
                self._features[0, here] = 0 if wanted.features is None else wanted.features
            if wanted.with_mtp:
                mtp_rows += range(len(rows), len(rows) + len(wanted.logit_rows))
            n_before = len(positions) - n_known
            rows += [n_before + row for row in wanted.logit_rows]
            ids += tree.tokens[n_known:]
            positions += tree.positions(n_past)[n_known:]
            parents += tree.parents
        if passes[0].entry is not None:
            self._entry[0] = passes[0].entry
        else:
            self._ids.write(*ids)
        self._positions.write(*positions)
        self._parents.write(*parents)
        self._logit_rows.write(*rows)
        if mtp_rows:
            self._mtp_rows.write(*mtp_rows)
        if places:
            self._fill_sequences(passes, places)

    def _fill_sequences(
        self, passes: Sequence[Pass], places: Sequence[tuple[Places, Places]]
    ) -> None:
        whole: list[int] = []
        rings: list[int] = []
        for wanted, (whole_places, ring_places) in zip(passes, places, strict=True):
            n_nodes = len(wanted.tree.tokens)
            counts = wanted.n_past, n_nodes - wanted.n_known, n_nodes
            whole += stated_places(counts, whole_places)
            rings += stated_places(counts, ring_places)
        if self._sources is not None:
            self._sources.write(*(wanted.sequence.n_source for wanted in passes))
        self._sequences.write(*whole)
        self._ring_sequences.write(*rings)


def stated_places(counts: tuple[int, int, int], places: Places) -> list[int]:
    """Returns the rows of `SEQUENCES` of one sequence, one behind the other.

    counts: committed tokens, rows, and nodes.
    """
    first, *rest = places
    stated = [*counts, *first]
    for place in rest:
        stated += (*_MORE_PLACES, *place)
    return stated
