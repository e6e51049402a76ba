"""What a text keeps for recurrent layers.

Fused graphs read and write this memory. What portable graphs take and return is copied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from edgedec.models.config import ModelConfig
from edgedec.models.graph import RECURRENT_PAST, RECURRENT_ROWS, STATE_PLACE, STATES, KVLayout
from edgedec.runtime.backends.kv_cache import Array, lazy_zeros
from edgedec.runtime.sequences.state import TOGETHER, KVRows
from edgedec.runtime.sequences.state_checkpoints import Checkpoints
from edgedec.runtime.sequences.token_tree import TokenTree

ROWS = f"{TOGETHER}_rows"
"""Name of the rows of recurrent layers in a `SessionState`."""

_FLOAT_BYTES = 4
_MAX_DRAFTS = 32
"""Rows of a chain that may be drafts; longer ones are read from a prompt, and stay."""


class StateRead(NamedTuple):
    """What a pass reads: a state of all layers behind ``base`` tokens, and rows from there on.

    writes_last: the state that it writes is the one behind its last node.
    """

    base: int
    states: Array
    writes_last: bool


class _Writing(NamedTuple):
    """A state that the latest pass wrote: behind ``n_tokens``, if all of its nodes are kept."""

    entry: int
    n_tokens: int


class RecurrentState:
    """The latest rows of one text's recurrent layers, states, and checkpoints of earlier ones.

    A layer with states has two: a pass reads the later one that is of committed tokens, replays
    the rows between them and its own, and writes the other. A text can be cut wherever rows from
    such a state on are still there, or at a checkpoint, which has all that a pass reads.

    Shapes: rows [n_layers, Q, row_size] float32, that of token t at t modulo Q; states
    [n_layers, 2, n_state_floats] float32.
    """

    def __init__(self, config: ModelConfig, layout: KVLayout) -> None:
        recurrence, n_layers = config.recurrence, len(config.recurrent_layers)
        self.look_back = recurrence.look_back
        self.rows = lazy_zeros((n_layers, layout.recurrent_rows, recurrence.row_size), np.float32)
        self._states = lazy_zeros((n_layers, 2, recurrence.n_state_floats), np.float32)
        self._n_part = recurrence.state_part_size
        self._past = np.zeros(1, np.int64)
        self._place = np.zeros(4, np.int64)
        self._tokens_of: list[int | None] = [None, None]  # that each state is behind
        self._written: _Writing | None = None
        self._first = 0  # token from which on all rows are there
        self._stop = 0  # tokens whose rows there were at most
        self._row_nbytes = _FLOAT_BYTES * n_layers * recurrence.row_size
        kept_nbytes = _FLOAT_BYTES * n_layers * recurrence.kept_size * max(1, self.look_back)
        self.checkpoints = Checkpoints[Array](kept_nbytes)

    @property
    def has_states(self) -> bool:
        """Whether rows alone are not enough."""
        return self._n_part > 0

    @property
    def arrays(self) -> Mapping[str, npt.NDArray[np.generic]]:
        """What the graph's inputs of these names are bound to."""
        rows: dict[str, npt.NDArray[np.generic]] = {
            RECURRENT_ROWS: self.rows,
            RECURRENT_PAST: self._past,
        }
        return rows | {STATES: self._states, STATE_PLACE: self._place} if self.has_states else rows

    @property
    def n_rows(self) -> int:
        """Rows there is memory for."""
        return int(self.rows.shape[1])

    def nbytes(self, n_tokens: int) -> int:
        """Returns the bytes that ``n_tokens`` take."""
        n_rows = min(n_tokens, self.n_rows)
        return n_rows * self._row_nbytes + self._states.nbytes + self.checkpoints.nbytes

    def reachable(self, n_tokens: int) -> int:
        """Returns the most tokens, up to ``n_tokens``, that a pass may follow."""
        if self._has_rows(self._base(n_tokens)):
            return n_tokens
        checkpoint = self.checkpoints.latest(n_tokens)
        return checkpoint[0] if checkpoint else 0

    def resting(self, n_tokens: int) -> int:
        """Returns the most tokens, up to ``n_tokens``, whose state is there."""
        base, checkpoint = self._base(n_tokens), self.checkpoints.latest(n_tokens)
        at_base = base if self._has_rows(base) and base >= self.look_back * self.has_states else 0
        return max(at_base, checkpoint[0] if checkpoint else 0)

    def reserve(self, n_kept: int, stop: int) -> bool:
        """Makes room for rows up to ``stop``; says whether the memory is another now."""
        n_needed = stop - max(0, self._base(n_kept) - self.look_back)
        has_grown = n_needed > self.n_rows
        if has_grown:
            first, latest = self._first, self._taken(self._first, self._stop)
            n_layers, n_rows, row_size = self.rows.shape
            self.rows = lazy_zeros((n_layers, max(n_needed, 2 * n_rows), row_size), np.float32)
            self.put_rows(first, latest)
        self._note(stop)
        return has_grown

    def begin(self, n_past: int, tree: TokenTree) -> None:
        """Tells the graph what its next pass follows, and which state it reads and writes."""
        self._past[0] = n_past
        if not self.has_states:
            return
        base = self._base(n_past)
        read = self._tokens_of.index(base) if base in self._tokens_of else -1
        node = _written_node(tree)
        if node < 0 and base == n_past:
            self._written = None
            self._place[:] = base, read, -1, -1
            return
        entry = 1 - read if read >= 0 else 0
        self._tokens_of[entry] = None
        self._written = _Writing(entry, n_past + node + 1)
        self._place[:] = base, read, node, entry

    def reading(self) -> StateRead:
        """Returns what the pass that has begun reads, for graphs that take copies."""
        if not self.has_states:
            return StateRead(int(self._past[0]), self._states[:, 0], False)
        base, read, node, _ = self._place.tolist()
        states = self._states[:, read] if read >= 0 else np.zeros_like(self._states[:, 0])
        return StateRead(base, states, node >= 0)

    def rows_between(self, start: int, stop: int) -> Array:
        """Returns copies of the rows of these tokens, zeros of those before the text.

        Shapes: [n_layers, stop - start, row_size].
        """
        rows = self._taken(max(0, start), stop)
        return np.pad(rows, ((0, 0), (max(0, -start), 0), (0, 0)))

    def put_rows(self, start: int, rows: Array) -> None:
        """Puts rows of tokens from ``start`` on in place. Shapes: [n_layers, n, row_size]."""
        self.rows[:, np.arange(start, start + rows.shape[1]) % self.n_rows] = rows

    def put_states(self, states: Array) -> None:
        """Takes what a graph returned for the state that the pass writes, if it writes one.

        Shapes: [n_layers, n_floats], up to n_state_floats.
        """
        if (entry := int(self._place[3])) >= 0:
            self._states[:, entry, : states.shape[1]] = states

    def finish(self, n_past: int) -> None:
        """Learns that the pass was computed: a state of committed tokens is there now."""
        if self._written is not None and self._written.n_tokens == n_past:
            self._tokens_of[self._written.entry] = n_past

    def commit(self, n_past: int, tree: TokenTree, path: Sequence[int]) -> None:
        """Moves the rows of ``path`` together behind the first ``n_past``."""
        if list(path) != list(range(len(path))):
            source = (n_past + np.asarray(path, np.int64)) % self.n_rows
            target = (n_past + np.arange(len(path))) % self.n_rows
            self.rows[:, target] = self.rows[:, source]
        n_tokens, written = n_past + len(path), self._written
        if written is not None and written.n_tokens == n_tokens and len(path) == len(tree):
            self._tokens_of[written.entry] = n_tokens
        self._written = None
        n_resting = self._base(n_tokens)
        if n_resting >= self.look_back and self.checkpoints.is_due(n_resting):
            self.checkpoints.add(n_resting, self._at(n_resting))

    def truncate(self, n_tokens: int) -> None:
        """Forgets all but the first ``n_tokens``, which `reachable` returned."""
        self.checkpoints.truncate(n_tokens)
        self._written = None
        self._tokens_of = [n if n is not None and n <= n_tokens else None for n in self._tokens_of]
        if n_tokens == 0:
            self._first = self._stop = 0
        elif not self._has_rows(self._base(n_tokens)):
            checkpoint = self.checkpoints.latest(n_tokens)
            assert checkpoint is not None
            assert checkpoint[0] == n_tokens
            self._load(n_tokens, checkpoint[1])

    def snapshot(self, stop: int) -> KVRows:
        """Returns copies of what a pass behind the first ``stop`` tokens reads.

        Shapes: [n_layers, 1, n, kept_size]: rows, each with a part of the state.
        """
        checkpoint = self.checkpoints.latest(stop)
        if checkpoint is not None and checkpoint[0] == stop:
            return {ROWS: checkpoint[1][:, np.newaxis].copy()}
        return {ROWS: self._at(stop)[:, np.newaxis]}

    def restore(self, stop: int, kv_rows: KVRows) -> None:
        """Puts rows as `snapshot` returns them in place; they end at token ``stop``."""
        latest = kv_rows[ROWS][:, 0]
        self.truncate(0)
        if latest.shape[1] >= min(stop, self.look_back):  # otherwise another piece follows
            self._load(stop, latest)

    def _base(self, n_tokens: int) -> int:
        """Returns the most tokens, up to ``n_tokens``, that there is a state of; 0 always is."""
        if not self.has_states:
            return n_tokens
        return max((n for n in self._tokens_of if n is not None and n <= n_tokens), default=0)

    def _has_rows(self, base: int) -> bool:
        return self._first <= max(0, base - self.look_back)

    def _at(self, n_tokens: int) -> Array:
        """Returns copies of what a pass behind ``n_tokens`` reads, which is in place."""
        rows = self._taken(max(0, n_tokens - self.look_back), n_tokens)
        if not self.has_states:
            return rows
        n_layers, n, _ = rows.shape
        parts = np.zeros((n_layers, n, self._n_part), np.float32)
        if n:
            entry = self._tokens_of.index(n_tokens)
            state = self._states[:, entry]
            parts.reshape(n_layers, -1)[:, : state.shape[1]] = state
        return np.concatenate([rows, parts], axis=2)

    def _load(self, stop: int, kept: Array) -> None:
        row_size = self.rows.shape[2]
        self._first, self._stop = stop - kept.shape[1], stop
        self.put_rows(self._first, kept[..., :row_size])
        if self.has_states and stop:
            n_layers, _, n_floats = self._states.shape
            parts = kept[..., row_size:].reshape(n_layers, -1)
            self._states[:, 0] = parts[:, :n_floats]
            self._tokens_of = [stop, None]

    def _taken(self, start: int, stop: int) -> Array:
        """Returns copies of rows. Shapes: [n_layers, stop - start, row_size]."""
        return self.rows[:, np.arange(start, stop) % self.n_rows]

    def _note(self, stop: int) -> None:
        """Learns that rows up to ``stop`` are written, over the oldest."""
        self._stop = max(self._stop, stop)
        self._first = max(self._first, self._stop - self.n_rows)


def _written_node(tree: TokenTree) -> int:
    """Returns the node whose state a pass writes: its last where that will stay, -1 for none."""
    n_nodes = len(tree)
    is_kept = tree.is_chain and (n_nodes == 1 or n_nodes > _MAX_DRAFTS)
    return n_nodes - 1 if is_kept else -1
