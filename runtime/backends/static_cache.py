"""KV caches of graphs whose sizes are fixed: room for the whole context goes into every pass.

What a pass computed comes out and is copied behind the other rows. A pass takes the smallest graph
that its rows fit in, or several; what is left over is hidden by the attention bias.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edgedec.models.static_passes import BUCKETS, StaticPass
from edgedec.runtime.backends.whole_cache import WholeCache
from edgedec.runtime.sequences.passes import Pass
from edgedec.runtime.sequences.row_stats import RowStats
from edgedec.runtime.sequences.rows import Rows
from edgedec.runtime.sequences.state import KVRows
from edgedec.runtime.sequences.token_tree import TokenTree

Array = npt.NDArray[Any]

_MAX_LOGITS = max(BUCKETS, key=lambda bucket: bucket.n_logits)


class BucketPart(NamedTuple):
    """Tokens of a tree that one graph computes, and of which logits are wanted."""

    bucket: StaticPass
    tokens: range
    logit_rows: tuple[int, ...]


def parts_of(pass_: Pass) -> Iterator[BucketPart]:
    """Yields the parts of a pass, each for the smallest graph that it fits in."""
    start, stop = pass_.n_known, len(pass_.tree)
    while start < stop:
        fitting = [bucket for bucket in BUCKETS if bucket.n_rows >= stop - start]
        for bucket in (*(fitting or BUCKETS[-1:]), _MAX_LOGITS):
            tokens = range(start, min(start + bucket.n_rows, stop))
            rows = tuple(row for row in pass_.logit_rows if row in tokens)
            if len(rows) <= bucket.n_logits:
                break
        start = tokens.stop
        yield BucketPart(bucket, tokens, rows)


class StaticKVCache(WholeCache):
    """A `SequenceState` in the host's memory, token i in row i, of which graphs read all rows."""

    def __init__(self, context: int, arrays: Mapping[str, Array], dtype: np.dtype[Any]) -> None:
        """arrays: by the graph's names, tokens on the third axis. dtype: of a state's arrays."""
        self._context, self._dtype = context, dtype
        self._kv_rows = dict(arrays)

    @abstractmethod
    def _compute(self, pass_: Pass, n_past: int, part: BucketPart) -> Rows:
        """Returns the rows of ``part`` in memory of their own; writes its keys and values."""

    def run(self, pass_: Pass) -> Rows:
        """Returns the asked rows, in memory of their own."""
        parts = [*parts_of(pass_)]
        computed = [self._compute(pass_, pass_.n_past, part) for part in parts]
        logit_rows = [row for part in parts for row in part.logit_rows]
        order = [logit_rows.index(row) for row in pass_.logit_rows]
        logits = np.concatenate([rows.logits for rows in computed])
        logits = logits[order] if len(logits) else logits
        hidden = {
            layer: np.concatenate([rows.hidden[layer] for rows in computed])
            for layer in pass_.hidden_layers
        }
        if any(rows.row_stats is None for rows in computed):
            return Rows(logits, hidden)
        stats = [vars(rows.row_stats) for rows in computed]
        joined = {
            name: np.concatenate([part_stats[name] for part_stats in stats])[order]
            for name in stats[0]
        }
        return Rows(logits, hidden, RowStats(**joined))

    def commit(self, n_past: int, tree: TokenTree, path: Sequence[int]) -> None:
        """Moves the rows of ``path`` behind those before the pass."""
        places = n_past + np.asarray(path, int)
        if len(path) and places[-1] != n_past + len(path) - 1:
            for array in self._kv_rows.values():
                array[:, :, n_past : n_past + len(path)] = array[:, :, places]

    def snapshot(self, start: int, stop: int) -> KVRows:
        return {
            name: array[:, :, start:stop].astype(self._dtype)
            for name, array in self._kv_rows.items()
        }

    def restore(self, start: int, stop: int, kv_rows: KVRows) -> None:
        self._write(start, kv_rows, stop - start)

    def close(self) -> None:
        """Releases the arrays."""
        self._kv_rows.clear()

    def _write(self, start: int, kv_rows: KVRows, n_rows: int) -> None:
        """Writes the first ``n_rows`` of ``kv_rows`` from the row ``start`` on."""
        for name, array in self._kv_rows.items():
            array[:, :, start : start + n_rows] = kv_rows[name][:, :, :n_rows]

    def _visible(self, tree: TokenTree, n_past: int, part: BucketPart) -> npt.NDArray[np.bool_]:
        """Returns what each row of a graph attends to [rows, context + rows]."""
        n, (first, stop) = part.bucket.n_rows, (part.tokens.start, part.tokens.stop)
        sees = np.zeros((n, self._context + n), np.bool_)
        sees[:, self._context :] = np.eye(n, dtype=np.bool_)  # also of rows that are no tokens
        m = stop - first
        sees[:m, :n_past] = True
        ancestry = tree.ancestry()[first:stop]
        sees[:m, n_past : n_past + first] = ancestry[:, :first]
        sees[:m, self._context : self._context + m] = ancestry[:, first:stop]
        return sees


class PartInputs(NamedTuple):
    """What a graph is given of a part, filled up with zeros.

    Shapes: ids, positions [1, rows] int64; logit_rows [rows with logits] int64.
    """

    ids: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    logit_rows: npt.NDArray[np.int64]

    @classmethod
    def of(cls, tree: TokenTree, n_past: int, part: BucketPart) -> PartInputs:
        """Returns those of ``part`` after ``n_past`` tokens."""
        n, tokens = part.bucket.n_rows, slice(part.tokens.start, part.tokens.stop)
        rows = np.array(part.logit_rows, np.int64) - tokens.start
        return cls(
            _filled(tree.tokens[tokens], n)[np.newaxis],
            _filled(n_past + np.array(tree.depths[tokens]), n)[np.newaxis],
            _filled(rows, part.bucket.n_logits),
        )


def _filled(values: Any, n: int) -> npt.NDArray[np.int64]:
    """Returns ``values``, and zeros behind them up to ``n``."""
    filled = np.zeros(n, np.int64)
    filled[: len(values)] = values
    return filled
