"""What a text keeps for recurrent layers, in memory that a fused graph reads and writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from edgedec.models.config import ModelConfig
from edgedec.models.graph import RECURRENT_PAST, RECURRENT_ROWS, KVLayout
from edgedec.runtime.backends._kv_cache import Array, lazy_zeros
from edgedec.runtime.sequences.checkpoints import Checkpoints
from edgedec.runtime.sequences.state import LATEST, KVRows

ROWS = f"{LATEST}recurrent_rows"
"""Name of the rows of recurrent layers in a `SessionState`."""

_FLOAT_BYTES = 4


class RecurrentRows:
    """The latest rows of one text's recurrent layers, and checkpoints of earlier ones.

    A pass behind n tokens reads the last `look_back` rows before them. A text can be cut wherever
    those are still there, or at a checkpoint, which has them.

    Shapes: rows [n_layers, Q, row_size] float32, that of token t at t modulo Q.
    """

    def __init__(self, config: ModelConfig, layout: KVLayout) -> None:
        own, n_layers = config.recurrence, len(config.recurrent_layers)
        self.look_back = own.look_back
        self.rows = lazy_zeros((n_layers, layout.recurrent_rows, own.row_size), np.float32)
        self._past = np.zeros(1, np.int64)
        self._first = 0  # token from which on all rows are there
        self._stop = 0  # tokens whose rows there were at most
        self._row_nbytes = _FLOAT_BYTES * n_layers * own.row_size
        self.checkpoints = Checkpoints[Array](self.look_back * self._row_nbytes)

    @property
    def arrays(self) -> Mapping[str, npt.NDArray[np.generic]]:
        """What the graph's inputs of these names are bound to."""
        return {RECURRENT_ROWS: self.rows, RECURRENT_PAST: self._past}

    @property
    def n_rows(self) -> int:
        """Rows there is memory for."""
        return int(self.rows.shape[1])

    def nbytes(self, n_tokens: int) -> int:
        """Returns the bytes that ``n_tokens`` take."""
        return min(n_tokens, self.n_rows) * self._row_nbytes + self.checkpoints.nbytes

    def reachable(self, n_tokens: int) -> int:
        """Returns the most tokens, up to ``n_tokens``, that a pass may follow."""
        if self._first <= max(0, n_tokens - self.look_back):
            return n_tokens
        found = self.checkpoints.latest(n_tokens)
        return found[0] if found else 0

    def reserve(self, n_kept: int, stop: int) -> bool:
        """Makes room for rows up to ``stop``; says whether the memory is another now."""
        n_needed = stop - max(0, n_kept - self.look_back)
        has_grown = n_needed > self.n_rows
        if has_grown:
            first, latest = self._first, self._taken(self._first, self._stop)
            self.rows = lazy_zeros(
                (self.rows.shape[0], max(n_needed, 2 * self.n_rows), self.rows.shape[2]), np.float32
            )
            self._put(first, latest)
        self._note(stop)
        return has_grown

    def begin(self, n_past: int) -> None:
        """Tells the graph how many tokens its next pass follows."""
        self._past[0] = n_past

    def commit(self, n_past: int, path: Sequence[int]) -> None:
        """Moves the rows of ``path`` together behind the first ``n_past``."""
        if list(path) != list(range(len(path))):
            source = (n_past + np.asarray(path, np.int64)) % self.n_rows
            target = (n_past + np.arange(len(path))) % self.n_rows
            self.rows[:, target] = self.rows[:, source]
        n_tokens = n_past + len(path)
        if self.checkpoints.is_due(n_tokens):
            self.checkpoints.add(n_tokens, self._taken(n_tokens - self.look_back, n_tokens))

    def truncate(self, n_tokens: int) -> None:
        """Forgets all but the first ``n_tokens``, which `reachable` returned."""
        self.checkpoints.truncate(n_tokens)
        if n_tokens == 0:
            self._first = self._stop = 0
        elif self._first > max(0, n_tokens - self.look_back):
            found = self.checkpoints.latest(n_tokens)
            assert found is not None
            assert found[0] == n_tokens
            self._load(n_tokens, found[1])

    def snapshot(self, stop: int) -> KVRows:
        """Returns copies of the rows that a pass behind the first ``stop`` tokens reads.

        Shapes: [n_layers, 1, n, row_size].
        """
        found = self.checkpoints.latest(stop)
        if self._first > max(0, stop - self.look_back) and found is not None and found[0] == stop:
            return {ROWS: found[1][:, np.newaxis].copy()}
        return {ROWS: self._taken(max(0, stop - self.look_back), stop)[:, np.newaxis]}

    def restore(self, stop: int, kv_rows: KVRows) -> None:
        """Puts rows as `snapshot` returns them in place; they end at token ``stop``."""
        self.checkpoints.truncate(0)
        self._load(stop, kv_rows[ROWS][:, 0])

    def _load(self, stop: int, latest: Array) -> None:
        self._first, self._stop = stop - latest.shape[1], stop
        self._put(self._first, latest)

    def _taken(self, start: int, stop: int) -> Array:
        """Returns copies of rows. Shapes: [n_layers, stop - start, row_size]."""
        return self.rows[:, np.arange(start, stop) % self.n_rows]

    def _put(self, start: int, latest: Array) -> None:
        self.rows[:, np.arange(start, start + latest.shape[1]) % self.n_rows] = latest

    def _note(self, stop: int) -> None:
        """Learns that rows up to ``stop`` are written, over the oldest."""
        self._stop = max(self._stop, stop)
        self._first = max(self._first, self._stop - self.n_rows)
