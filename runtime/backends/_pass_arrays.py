"""Arrays of passes over a graph that writes its KV cache in place."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edgedec.models.graph import (
    ENTRY,
    FEATURES,
    INPUT_IDS,
    LOGIT_ROWS,
    PARENTS,
    PAST_LENGTH,
    POSITION_IDS,
)
from edgedec.runtime.sessions.passes import Pass


class PassShape(NamedTuple):
    """What decides the sizes of a pass's arrays.

    hidden: layers whose hidden states are wanted, each with the layer of the port they come from.
    is_entered: the rows begin with given hidden states.
    """

    n_tokens: int
    n_known: int
    n_rows: int
    has_logits: bool
    hidden: tuple[tuple[int, int], ...]
    is_entered: bool

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
        )

    @property
    def n_new(self) -> int:
        """Tokens that are computed."""
        return self.n_tokens - self.n_known


class PassArrays:
    """The inputs of one shape of pass, by port, in arrays that stay where they are."""

    def __init__(self, shape: PassShape, hidden_size: int, n_features: int = 0) -> None:
        self._n_known = shape.n_known
        n_entered = shape.n_new if shape.is_entered else 0
        self._ids = np.zeros((1, shape.n_new - n_entered), np.int64)
        self._entry = np.zeros((1, n_entered, hidden_size), np.float32)
        self._features = np.zeros((1, shape.n_new, n_features), np.float32)
        self._positions = np.zeros((1, shape.n_new), np.int64)
        self._parents = np.zeros((1, shape.n_tokens), np.int64)
        self._past_length = np.zeros(1, np.int64)
        self._logit_rows = np.zeros(shape.n_rows, np.int64)

    def by_port(self) -> dict[str, npt.NDArray[Any]]:
        """Returns the array of each input."""
        features = {FEATURES: self._features} if self._features.size else {}
        return features | {
            INPUT_IDS: self._ids,
            ENTRY: self._entry,
            POSITION_IDS: self._positions,
            PARENTS: self._parents,
            PAST_LENGTH: self._past_length,
            LOGIT_ROWS: self._logit_rows,
        }

    def fill(self, wanted: Pass, n_past: int) -> None:
        """Writes the inputs of a pass whose rows come after ``n_past`` tokens."""
        tree, logit_rows = wanted.tree, wanted.logit_rows
        self._past_length[0] = n_past
        if wanted.entry is not None:
            self._entry[0] = wanted.entry
        else:
            self._ids[0] = tree.tokens[self._n_known :]
        self._features[0] = 0 if wanted.features is None else wanted.features
        if len(tree.tokens) == 1:
            self._positions[0, 0] = n_past
            self._parents[0, 0] = -1
        else:
            self._positions[0] = tree.depths[self._n_known :]
            self._positions += n_past
            self._parents[0] = tree.parents
        if logit_rows:
            self._logit_rows[:] = logit_rows
            self._logit_rows -= self._n_known
