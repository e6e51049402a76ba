"""Arrays of passes over a fused graph, bound to its ports."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnxruntime
from onnxruntime import OrtValue

from edgedec.models.graph import (
    ENTRY,
    INPUT_IDS,
    LOGIT_ROWS,
    LOGITS,
    N_TOP,
    PARENTS,
    PAST_LENGTH,
    POSITION_IDS,
    hidden_port,
    stats_port,
)
from edgedec.runtime.sessions.passes import Pass
from edgedec.runtime.sessions.row_stats import RowStats
from edgedec.runtime.sessions.rows import Float32, Rows


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

    def empty_rows(self, logits: Float32, hidden_size: int, has_stats: bool) -> Rows:
        """Returns rows of this shape, those of logits in ``logits``."""
        n_copied = self.n_rows if self.has_logits else 0
        hidden = {i: np.empty((self.n_new, hidden_size), np.float32) for i, _ in self.hidden}
        return Rows(logits[:n_copied], hidden, _empty_stats(self.n_rows) if has_stats else None)


class Binding:
    """Arrays of one shape of pass, bound to the graph's inputs and outputs."""

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        shape: PassShape,
        rows: Rows,
        shared_values: dict[str, OrtValue],
        hidden_size: int,
    ) -> None:
        self.rows = rows
        self._n_known = shape.n_known
        n_entered = shape.n_new if shape.is_entered else 0
        self._ids = np.zeros((1, shape.n_new - n_entered), np.int64)
        self._entry = np.zeros((1, n_entered, hidden_size), np.float32)
        self._positions = np.zeros((1, shape.n_new), np.int64)
        self._parents = np.zeros((1, shape.n_tokens), np.int64)
        self._past_length = np.zeros(1, np.int64)
        self._logit_rows = np.zeros(shape.n_rows, np.int64)
        inputs: dict[str, npt.NDArray[Any]] = {
            INPUT_IDS: self._ids,
            ENTRY: self._entry,
            POSITION_IDS: self._positions,
            PARENTS: self._parents,
            PAST_LENGTH: self._past_length,
            LOGIT_ROWS: self._logit_rows,
        }
        # The graph's rows have a batch axis, its statistics do not.
        outputs: dict[str, npt.NDArray[Any]] = {
            hidden_port(port): rows.hidden[i][np.newaxis] for i, port in shape.hidden
        }
        if shape.has_logits:
            outputs[LOGITS] = rows.logits[np.newaxis]
        if rows.row_stats is not None:
            outputs |= {stats_port(name): array for name, array in vars(rows.row_stats).items()}
        self.io = session.io_binding()
        ports = {port.name for port in session.get_inputs()}
        for name, array in inputs.items():
            if name == ENTRY and name not in ports:
                continue
            self.io.bind_ortvalue_input(name, OrtValue.ortvalue_from_numpy(array))
        for name, value in shared_values.items():
            self.io.bind_ortvalue_input(name, value)
        for name, array in outputs.items():
            self.io.bind_ortvalue_output(name, OrtValue.ortvalue_from_numpy(array))

    def fill(self, wanted: Pass, n_past: int) -> None:
        """Writes the inputs of a pass whose rows come after ``n_past`` tokens."""
        tree, logit_rows = wanted.tree, wanted.logit_rows
        self._past_length[0] = n_past
        if wanted.entry is not None:
            self._entry[0] = wanted.entry
        else:
            self._ids[0] = tree.tokens[self._n_known :]
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


def _empty_stats(n_rows: int) -> RowStats:
    return RowStats(
        argmax=np.empty(n_rows, np.int64),
        log_sum_exp=np.empty(n_rows, np.float32),
        entropy=np.empty(n_rows, np.float32),
        top_ids=np.empty((n_rows, N_TOP), np.int64),
        top_logits=np.empty((n_rows, N_TOP), np.float32),
    )
