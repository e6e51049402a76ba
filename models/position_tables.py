"""Tables with a row for each position, as graphs take them: as long as texts have become."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from edgedec.models.config import ModelConfig
from edgedec.models.rope import query_growth, rope_names, rope_tables, ropes_of

QUERY_GROWTH = "query_growth"
"""What queries are multiplied by; see `ModelConfig.query_growth`."""

_MIN_ROWS = 1024
_BLOCK_ROWS = 4096
"""Rows that are computed at once, in float64."""

Array = npt.NDArray[Any]


def position_tables(config: ModelConfig) -> dict[str, int]:
    """Returns the tables that graphs of a model may take, and numbers per position of each."""
    tables = {} if config.encoder is None else position_tables(config.encoder)
    for rope in ropes_of(config):
        half = (rope.head_size or config.head_size) // 2
        tables |= dict.fromkeys(rope_names(config, rope), half)
    return tables | ({QUERY_GROWTH: 1} if config.query_growth else {})


class PositionTables:
    """The first rows of the tables that a graph takes, by input.

    Tables of a million positions take hundreds of megabytes, and most texts are short. So rows are
    computed when a pass first needs them. Each row is the same whenever that is.
    """

    def __init__(
        self,
        config: ModelConfig,
        ports: Collection[str],
        dtype: npt.DTypeLike = np.float32,
    ) -> None:
        """Computes the first rows.

        ports: the graph's inputs; others than tables are left out. dtype: what it computes in.
        """
        self._config, self._dtype = config, dtype
        self._widths = {name: n for name, n in position_tables(config).items() if name in ports}
        self._n_rows = 0
        self._arrays: dict[str, Array] = {}
        self.up_to(1)

    @property
    def sizes(self) -> dict[str, tuple[int | None, ...]]:
        """The shape of each table; None for any number of positions."""
        return {name: (None, width) for name, width in self._widths.items()}

    def up_to(self, n_positions: int) -> Mapping[str, Array]:
        """Returns tables of at least ``n_positions``: the same object until they have to grow.

        Shapes: each [positions, numbers per position].
        """
        if n_positions > self._n_rows:
            n_rows = max(_MIN_ROWS, 1 << (n_positions - 1).bit_length())
            n_rows = max(n_positions, min(n_rows, self._config.max_positions))
            self._arrays = self._grown(n_rows)
            self._n_rows = n_rows
        return self._arrays

    def rows_at(self, positions: npt.NDArray[np.integer]) -> dict[str, Array]:
        """Returns the rows of ``positions`` [T] alone.

        Shapes: each [T, numbers per position].
        """
        tables = self.up_to(int(positions.max(initial=0)) + 1)
        return {name: table[positions] for name, table in tables.items()}

    def _grown(self, n_rows: int) -> dict[str, Array]:
        """Returns the tables with ``n_rows``."""
        start, grown = self._n_rows, dict[str, Array]()
        for name, width in self._widths.items():
            grown[name] = np.empty((n_rows, width), self._dtype)
            if start:
                grown[name][:start] = self._arrays[name]
        for first in range(start, n_rows, _BLOCK_ROWS):
            stop = min(first + _BLOCK_ROWS, n_rows)
            for name, rows in _rows(self._config, self._widths, first, stop):
                grown[name][first:stop] = rows
        return grown


def _rows(
    config: ModelConfig, names: Collection[str], start: int, stop: int
) -> Iterator[tuple[str, Array]]:
    """Yields the rows [start, stop) of each table in ``names``."""
    if config.encoder is not None:
        yield from _rows(config.encoder, names, start, stop)
    for rope in ropes_of(config):
        both = rope_names(config, rope)
        if both[0] in names:
            yield from zip(both, rope_tables(config, stop, rope, start), strict=True)
    if QUERY_GROWTH in names and config.query_growth:
        yield QUERY_GROWTH, query_growth(config, np.arange(start, stop))[:, np.newaxis]
