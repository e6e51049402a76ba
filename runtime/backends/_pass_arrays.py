"""Arrays of passes over a graph that writes its KV cache in place."""

from __future__ import annotations

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
    PAST_LENGTH,
    POSITION_IDS,
)
from edgedec.runtime.sessions.passes import Pass


class PassShape(NamedTuple):
    """What decides the sizes of a pass's arrays.

    hidden: layers whose hidden states are wanted, each with the layer of the port they come from.
    is_entered: the rows begin with given hidden states. has_mtp: light heads go on from all rows
    with logits.
    """

    n_tokens: int
    n_known: int
    n_rows: int
    has_logits: bool
    hidden: tuple[tuple[int, int], ...]
    is_entered: bool
    has_mtp: bool = False

    @classmethod
    def of(cls, wanted: Pass, has_logits: bool, n_layers: int) -> PassShape:
        """Returns the shape of a pass over a graph of ``n_layers``."""
        stop = n_layers if wanted.layers is None else wanted.layers.stop
        # Closed gates pass on what the last layer that runs leaves.
        hidden = tuple((i, n_layers if i == stop else i) for i in wanted.hidden_layers)
        return cls(
            len(wanted.tree.tokens),
            wanted.n_known,
            len(wanted.logit_rows),
            has_logits,
            hidden,
            wanted.entry is not None,
            wanted.with_mtp,
        )

    @property
    def n_new(self) -> int:
        """Tokens that are computed."""
        return self.n_tokens - self.n_known


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

    def __init__(self, shape: PassShape, hidden_size: int, n_features: int = 0) -> None:
        self._n_known = shape.n_known
        n_entered = shape.n_new if shape.is_entered else 0
        self._ids = _Numbers(1, shape.n_new - n_entered)
        self._entry = np.zeros((1, n_entered, hidden_size), np.float32)
        self._features = np.zeros((1, shape.n_new, n_features), np.float32)
        self._positions = _Numbers(1, shape.n_new)
        self._parents = _Numbers(1, shape.n_tokens)
        self._past_length = _Numbers(1)
        self._logit_rows = _Numbers(shape.n_rows)
        self._mtp_rows = np.arange(shape.n_rows if shape.has_mtp else 0)

    def by_port(self) -> dict[str, npt.NDArray[Any]]:
        """Returns the array of each input."""
        features = {FEATURES: self._features} if self._features.size else {}
        return features | {
            INPUT_IDS: self._ids.array,
            ENTRY: self._entry,
            POSITION_IDS: self._positions.array,
            PARENTS: self._parents.array,
            PAST_LENGTH: self._past_length.array,
            LOGIT_ROWS: self._logit_rows.array,
            MTP_ROWS: self._mtp_rows,
        }

    def fill(self, wanted: Pass) -> None:
        """Writes the inputs of a pass."""
        tree, n_known, n_past = wanted.tree, self._n_known, wanted.n_past
        self._past_length.write(n_past)
        if wanted.entry is not None:
            self._entry[0] = wanted.entry
        else:
            self._ids.write(*tree.tokens[n_known:])
        if self._features.size:
            self._features[0] = 0 if wanted.features is None else wanted.features
        self._positions.write(*[n_past + depth for depth in tree.depths[n_known:]])
        self._parents.write(*tree.parents)
        self._logit_rows.write(*[row - n_known for row in wanted.logit_rows])
