"""Rows of recurrent layers, which go in and come out of each pass of a portable graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edgedec.models.graph import CONV_TAPS, new_rows_port, rows_port
from edgedec.models.recurrence import Recurrence, conv_taps
from edgedec.runtime.sequences.state import TOGETHER, KVRows
from edgedec.runtime.sequences.state_checkpoints import Checkpoints
from edgedec.runtime.sequences.token_tree import TokenTree

Array = npt.NDArray[Any]


class PortableRows:
    """The latest rows of one text's recurrent layers, and checkpoints of earlier ones.

    Before the text begins rows are zeros. A pass reads the last `look_back` ones before itself.

    Shapes: of each layer [1, n, row_size] float32, the last row that of the last committed token.
    """

    def __init__(self, layers: Sequence[int], own: Recurrence, n_kept: int) -> None:
        self._layers = layers
        self._own = own
        self._n_kept = n_kept  # rows that are kept to go back
        self.look_back = own.look_back
        row_nbytes = 4 * own.row_size * len(layers)
        self._row_nbytes = row_nbytes
        self.checkpoints = Checkpoints[dict[int, Array]](own.look_back * row_nbytes)
        self._present: dict[int, Array] = {}
        self._first = 0
        self._rows: dict[int, Array] = {}
        self._begin_anew()

    @property
    def outputs(self) -> list[str]:
        """The graph's outputs for `take`."""
        return [new_rows_port(layer) for layer in self._layers]

    @property
    def nbytes(self) -> int:
        """Bytes that are kept."""
        n_rows: int = self._rows[self._layers[0]].shape[1]
        return n_rows * self._row_nbytes + self.checkpoints.nbytes

    def inputs(self, tree: TokenTree, n_past: int, n_known: int) -> dict[str, Array]:
        """Returns what a pass reads: ``n_known`` nodes of ``tree`` were computed before it."""
        source = self._present if n_known else self._before(n_past)
        n_rows = self.look_back + n_known
        inputs = {rows_port(i): source[i][:, :n_rows] for i in self._layers}
        taps = conv_taps(tree.parents, self.look_back, self._own.conv_size)
        inputs[CONV_TAPS] = taps[n_known:]
        return inputs

    def take(self, results: Mapping[str, Array]) -> None:
        """Takes what a pass returned: the rows that it read, then those of its nodes."""
        self._present = {layer: results[new_rows_port(layer)] for layer in self._layers}

    def commit(self, n_past: int, path: Sequence[int]) -> None:
        """Takes the rows of ``path`` over, behind those of the first ``n_past`` tokens."""
        nodes = [self.look_back + i for i in path]
        before = {i: rows[:, : n_past - self._first] for i, rows in self._rows.items()}
        self._rows = {
            i: np.concatenate([before[i], self._present[i][:, nodes]], axis=1)[:, -self._n_kept :]
            for i in self._layers
        }
        n_tokens = n_past + len(path)
        self._first = n_tokens - self._rows[self._layers[0]].shape[1]
        if self.checkpoints.is_due(n_tokens):
            self.checkpoints.add(n_tokens, _copies(self._before(n_tokens)))

    def reachable(self, n_tokens: int) -> int:
        """Returns the most tokens, up to ``n_tokens``, that a pass may follow."""
        if self._has(n_tokens):
            return n_tokens
        found = self.checkpoints.latest(n_tokens)
        return found[0] if found else 0

    def truncate(self, n_tokens: int) -> None:
        """Forgets all but the first ``n_tokens``, which `reachable` returned."""
        self.checkpoints.truncate(n_tokens)
        if self._has(n_tokens):
            self._rows = {i: rows[:, : n_tokens - self._first] for i, rows in self._rows.items()}
        else:
            self._rows, self._first = self._at(n_tokens), n_tokens - self.look_back

    def snapshot(self, stop: int) -> dict[str, Array]:
        """Returns copies of the rows that a pass behind the first ``stop`` tokens reads.

        Shapes: of each layer [1, 1, n, row_size].
        """
        n_zeros = max(0, self.look_back - stop)
        source = self._before(stop) if self._has(stop) else self._at(stop)
        return {_name(i): rows[:, np.newaxis, n_zeros:].copy() for i, rows in source.items()}

    def restore(self, stop: int, kv_rows: KVRows) -> None:
        """Puts rows as `snapshot` returns them in place; they end at token ``stop``."""
        self._begin_anew()
        n_rows = max(self.look_back, kv_rows[_name(self._layers[0])].shape[2])
        self._rows = {
            i: np.concatenate([zeros, kv_rows[_name(i)][:, 0]], axis=1)[:, -n_rows:]
            for i, zeros in self._rows.items()
        }
        self._first = stop - self._rows[self._layers[0]].shape[1]
        self.checkpoints.truncate(0)

    def _has(self, n_tokens: int) -> bool:
        return self._first <= n_tokens - self.look_back

    def _before(self, n_tokens: int) -> dict[int, Array]:
        """Returns the rows that a pass behind ``n_tokens`` reads."""
        stop = n_tokens - self._first
        return {i: rows[:, stop - self.look_back : stop] for i, rows in self._rows.items()}

    def _at(self, n_tokens: int) -> dict[int, Array]:
        if n_tokens == 0:
            return self._zeros()
        found = self.checkpoints.latest(n_tokens)
        assert found is not None
        assert found[0] == n_tokens
        return found[1]

    def _begin_anew(self) -> None:
        self._rows = self._zeros()
        self._first = -self.look_back  # of the first row, which lies before the text

    def _zeros(self) -> dict[int, Array]:
        shape = 1, self.look_back, self._own.row_size
        return {layer: np.zeros(shape, np.float32) for layer in self._layers}


def _copies(rows: dict[int, Array]) -> dict[int, Array]:
    return {i: of_layer.copy() for i, of_layer in rows.items()}


def _name(layer: int) -> str:
    """Returns the name of a layer's rows in a `SessionState`."""
    return f"{TOGETHER}_{rows_port(layer)}"
